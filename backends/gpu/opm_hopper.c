/*
 * opm_hopper.c: tier `hopper` of the outer product mean, outer first: what it takes, and the launch of its products. Its pack,
 * form, buffers and projection are those of tier `tensor`; only W_o lies otherwise, two c_a side by side.
 */
#include "backends/gpu/opm_tensor.h"

enum {
    LEAST_S = 16 /* below, tier tensor's weight first is faster */
};

static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    evo_problem outer_first = *problem;
    outer_first.order = 1;
    const evo_status status = gpu_opm_tensor.plan(device, &outer_first, form);
    if (status != EVO_OK) return status;
    form->pack_layout = GPU_LAYOUT_HOPPER;
    const gpu_function own = GPU_HOPPER_OUTER_BF16;
    return gpu_load(device, &own, 1);
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    return gpu_opm_tensor.stage[EVO_STAGE_PACK](call, tile);
}

static evo_status project(const evo_call *call, const evo_tile *tile) {
    return gpu_opm_tensor.stage[EVO_STAGE_OPM_PROJECT](call, tile);
}

/* Tensor maps are made on the stack: they are parameters of the kernel. */
static evo_status map_operands(const evo_call *call, const gpu_opm_tensor_outer_params *from,
                               gpu_opm_hopper_params *params) {
    enum {
        C = GPU_OPM_HOPPER_HIDDEN,
        COLUMNS = GPU_OPM_HOPPER_COLUMNS
    };
    const int64_t s = from->s_pad, batch = params->batch_count;
    const gpu_bulk_tensor a = { from->a,
                                GPU_BF16,
                                4,
                                { s, from->row_count, C, batch },
                                { 1, s, from->a_channel, from->a_batch },
                                { 64, GPU_OPM_HOPPER_ROWS, 1, 1 } };
    const gpu_bulk_tensor b = { from->b,
                                GPU_BF16,
                                4,
                                { s, C, from->col_count, batch },
                                { 1, from->b_channel, s, from->b_batch },
                                { 64, C, GPU_OPM_HOPPER_COLS, 1 } };
    const gpu_bulk_tensor weight = { from->weight,      GPU_BF16, 3, { 64, COLUMNS, C / 2 }, { 1, 64, 64 * COLUMNS },
                                     { 64, COLUMNS, 1 } };
    evo_status status = gpu_tensor_map_of(call, &a, &params->a);
    if (status == EVO_OK) status = gpu_tensor_map_of(call, &b, &params->b);
    if (status == EVO_OK) status = gpu_tensor_map_of(call, &weight, &params->weight);
    return status;
}

static evo_status outer(const evo_call *call, const evo_tile *tile) {
    const gpu_opm_tensor_outer_params from = gpu_opm_outer_of(call, tile);
    gpu_opm_hopper_params params = {
        .output = from.output,
        .row_begin = from.row_begin,
        .col_begin = from.col_begin,
        .row_count = from.row_count,
        .col_count = from.col_count,
        .batch_count = (int32_t)(tile->batch.end - tile->batch.begin),
    };
    const int64_t tiles = gpu_blocks(from.row_count, GPU_OPM_HOPPER_ROWS) *
                          gpu_blocks(from.col_count, GPU_OPM_HOPPER_COLS) * params.batch_count;
    if (tiles == 0) return EVO_OK;
    const evo_status status = map_operands(call, &from, &params);
    if (status != EVO_OK) return status;
    const int64_t most = gpu_device_properties(call->device)->compute_units;
    return gpu_launch_early(call, GPU_HOPPER_OUTER_BF16, tiles < most ? tiles : most, &params, sizeof params);
}

/* --- What it takes --- */

/* True if rows of channels are whole, everything at multiples of 16 bytes: lanes write those. */
static bool lies_in_pieces(const evo_tensor *tensor, const char *name, evo_text *why) {
    bool fits = tensor->strides[3] == 1 && tensor->alignment >= 16;
    for (int i = 0; i < 3; i++)
        if (tensor->strides[i] % 8) fits = false;
    if (!fits)
        evo_text_add(why,
                     "takes out and residual whose last stride is 1 and whose others are multiples of 8, aligned "
                     "to 16 bytes; %s is not",
                     name);
    return fits;
}

/* The kernel finds masks of one batch entry by 32 bits. */
static bool mask_is_near(const evo_opm_desc *d) {
    const int64_t *x = d->mask.strides, most = INT32_MAX;
    if (d->mask.dtype == EVO_NONE) return true;
    if (x[1] < -most || x[1] > most || x[2] < -most || x[2] > most) return false;
    return d->s * (x[1] < 0 ? -x[1] : x[1]) <= most - d->n * (x[2] < 0 ? -x[2] : x[2]);
}

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    const evo_opm_desc *d = &problem->desc.opm;
    const evo_tensor *tensors[] = { &d->out, &d->residual };
    const char *const names[] = { "out", "residual" };
    if (!gpu_has_image(device, GPU_HOPPER_OUTER_BF16) || !gpu_device_properties(device)->tensor_maps) {
        evo_text_add(why, "needs images for sm_90a, a device of compute capability 9.0, and its driver's tensor maps");
        return false;
    }
    if (d->compute != EVO_COMPUTE_BF16) {
        evo_text_add(why, "computes bf16, the descriptor asks for %s", evo_compute_name(d->compute));
        return false;
    }
    if (d->c != GPU_OPM_HOPPER_HIDDEN || d->c_z != GPU_OPM_HOPPER_COLUMNS) {
        evo_text_add(why, "takes c of 32 and c_z of 128");
        return false;
    }
    if (d->s < LEAST_S || d->n > 1 << 20) {
        evo_text_add(why, "takes s of at least %d and n up to 2^20", LEAST_S);
        return false;
    }
    if (d->divide == EVO_DIVIDE_BEFORE && d->count_min <= 0.0) {
        evo_text_add(why, "cannot divide by a count of 0 before the projection: it needs count_min above 0");
        return false;
    }
    if (!mask_is_near(d)) {
        evo_text_add(why, "takes masks whose batch entries span less than 2^31 numbers");
        return false;
    }
    for (int t = 0; t < 2; t++) {
        if (tensors[t]->dtype == EVO_NONE) continue;
        if (tensors[t]->dtype != EVO_BF16) {
            evo_text_add(why, "takes out and residual in bf16, %s is %s", names[t], evo_dtype_name(tensors[t]->dtype));
            return false;
        }
        if (!lies_in_pieces(tensors[t], names[t], why)) return false;
    }
    return gpu_opm_tensor.supports(device, problem, why);
}

const evo_kernel gpu_opm_hopper = {
    .name = "hopper",
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack, [EVO_STAGE_OPM_PROJECT] = project, [EVO_STAGE_OPM_OUTER] = outer },
};
