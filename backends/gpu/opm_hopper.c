/*
 * opm_hopper.c: tier `hopper` of the outer product mean: what it takes, its part of the pack, and the launches of its kernels.
 * Form and buffers, weight first, and the projection of what bulk copies cannot read, are those of tier `tensor`; W_o only
 * lies otherwise, two c_a side by side. Tensor maps are made on the stack: they are parameters of the kernels.
 */
#include <math.h>

#include "backends/gpu/opm_tensor.h"

enum {
    ELEMENT = 2,     /* bytes of bf16 and fp16 */
    OUTER_FIRST = 0, /* form->order, as tier tensor's */
    WEIGHT_FIRST = 1,
    /* form->tuning, beside tier tensor's */
    PROJECT_KERNEL = GPU_OPM_TENSOR_TUNING, /* GPU_FUNCTION_COUNT: tier tensor's */
    OUTER_KERNEL,
    SMALL,     /* 1: weight first in one launch */
    FEW_S = 8, /* see choose_order */
    FEW_PAIRS = 64 * 64,
    MOST_HIDDEN = 64,   /* c */
    MOST_CHANNELS = 384 /* c_z and c_m */
};

/* tf32 too: fp16 with its scales has as many bits. */
static bool is_fp16(const evo_opm_desc *d) {
    return d->compute == EVO_COMPUTE_FP16 || d->compute == EVO_COMPUTE_TF32;
}

static evo_dtype product_type(const evo_opm_desc *d) {
    return is_fp16(d) ? EVO_FP16 : EVO_BF16;
}

/*
 * The problem as tier tensor does its part of it: fp16 for tf32, and a and b so small that with masks as promised no o passes
 * fp16's range, and needs no scale: they are below 2^3, and 2^9 products of them below 2^15.
 */
typedef struct own_problem {
    evo_problem problem;
    evo_call call;
} own_problem;

static evo_problem ask_tensor(const evo_problem *problem) {
    evo_problem own = *problem;
    evo_opm_desc *d = &own.desc.opm;
    if (!is_fp16(d)) return own;
    d->compute = EVO_COMPUTE_FP16;
    if (!(d->mask_max > 1.0)) d->mask_max = 1.0;
    for (int64_t s = d->s; s > 512; s /= 4) d->mask_max *= 2.0;
    return own;
}

static const evo_call *with_problem(const evo_call *call, own_problem *own) {
    if (!is_fp16(&call->problem->desc.opm)) return call;
    own->problem = ask_tensor(call->problem);
    own->call = *call;
    own->call.problem = &own->problem;
    return &own->call;
}

/* --- Kernels --- */

typedef struct instance {
    int dtype;
    int64_t width, parts;
    gpu_function function;
} instance;

static const instance of_project[] = {
#define INSTANCE(type, c_m, groups, stages, buffers) { EVO_##type, c_m, 0, GPU_HOPPER_OPM_PROJECT_##type##_##c_m },
    GPU_HOPPER_OPM_PROJECT(INSTANCE)
#undef INSTANCE
};
static const instance of_outer[] = {
#define INSTANCE(type, columns, parts) \
    { EVO_##type, columns, parts, GPU_HOPPER_OUTER_##type##_##columns##_##parts },
    GPU_HOPPER_OUTER(INSTANCE)
#undef INSTANCE
};

/* GPU_FUNCTION_COUNT: there is none. */
static gpu_function find(const instance *table, size_t count, evo_dtype dtype, int64_t width, int64_t parts) {
    for (size_t i = 0; i < count; i++)
        if (table[i].dtype == (int)dtype && table[i].width == width && table[i].parts == parts)
            return table[i].function;
    return GPU_FUNCTION_COUNT;
}
#define FIND(table, dtype, width, parts) find(table, sizeof table / sizeof *table, dtype, width, parts)

/* Channels of z a tile. */
static int64_t outer_columns(const evo_opm_desc *d) {
    return d->c_z <= 64 ? 64 : 128;
}

/* True if bulk copies read m: the type that is computed in, rows of channels whole, everything at multiples of 16 bytes. */
static bool copies_take_m(const evo_opm_desc *d) {
    const evo_tensor *m = &d->m;
    const int64_t extents[3] = { d->batch, d->s, d->n };
    bool fits = m->dtype == product_type(d) && m->strides[3] == 1 && m->alignment >= 16;
    for (int i = 0; i < 3; i++) {
        const int64_t stride = m->strides[i];
        if (stride % 8 || stride >= (int64_t)1 << 38 || (extents[i] > 1 && stride <= 0)) fits = false;
    }
    return fits;
}

/* --- The pack: tier tensor's, then that of the own projection --- */

typedef struct weights {
    void *project;  /* [64 chunks][c_m], see gpu_opm_hopper_project_params */
    uint64_t *bias; /* [64 chunks][2] */
} weights;

/* Channels of a side in the projection's weights. */
static int64_t side_rows(const evo_opm_desc *d) {
    return gpu_round(d->c, GPU_OPM_HOPPER_HIDDEN);
}

static int64_t all_rows(const evo_opm_desc *d) {
    return gpu_round(2 * side_rows(d), GPU_HOPPER_OPM_COLUMNS);
}

static int64_t own_bytes(const evo_opm_desc *d) {
    return gpu_round(all_rows(d) * d->c_m * ELEMENT, GPU_ALIGN) + gpu_round(all_rows(d) * 16, GPU_ALIGN);
}

static weights map_weights(const evo_call *call) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    unsigned char *first = (unsigned char *)call->pack + call->form->pack_size - (size_t)own_bytes(d);
    return (weights){ first, (uint64_t *)(void *)(first + gpu_round(all_rows(d) * d->c_m * ELEMENT, GPU_ALIGN)) };
}

/* `outs` rows of a side from `first` on; without a weight, zeros. */
static gpu_hopper_pack_item side_item(const evo_call *call, const weights *to, const evo_weight *weight,
                                      const evo_weight *bias, const float *scale, int64_t first, int64_t outs) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_opm_weights *from = &call->args.opm_weights;
    return (gpu_hopper_pack_item){
        .source = gpu_weight_of(weight),
        .norm = gpu_weight_of(weight ? &from->norm_weight : NULL),
        .norm_bias = gpu_weight_of(weight ? &from->norm_bias : NULL),
        .bias = gpu_weight_of(bias),
        .target = to->project,
        .bias_target = to->bias,
        .outs = (int32_t)outs,
        .ins = (int32_t)d->c_m,
        .first = (int32_t)first,
        .row_step = 8,
        .factor = 1.0f,
        .scale = scale,
    };
}

static evo_status pack(const evo_call *caller, const evo_tile *tile) {
    own_problem own;
    const evo_call *const call = with_problem(caller, &own);
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_opm_weights *from = &call->args.opm_weights;
    evo_status status = gpu_opm_tensor.stage[EVO_STAGE_PACK](call, tile);
    if (call->form->tuning[PROJECT_KERNEL] == GPU_FUNCTION_COUNT || status != EVO_OK) return status;
    const weights to = map_weights(call);
    const float *scales = is_fp16(d) ? gpu_opm_scales_of(call) : NULL;
    const int64_t c = d->c, rows = side_rows(d);
    gpu_hopper_pack_params params = {
        .items = { side_item(call, &to, &from->a_weight, &from->a_bias, scales, 0, c),
                   side_item(call, &to, NULL, NULL, NULL, c, rows - c),
                   side_item(call, &to, &from->b_weight, &from->b_bias, scales ? scales + c : NULL, rows, c),
                   side_item(call, &to, NULL, NULL, NULL, rows + c, rows - c) },
        .count = 4,
    };
    status = gpu_pack_folded(call, is_fp16(d), &params);
    /* Nothing for the last kernel: what starts early after it reads a pack that is complete. */
    const gpu_hopper_sides_params sides = { NULL, NULL, 0, 0 };
    return status == EVO_OK ? gpu_launch(call, GPU_HOPPER_PACK_SIDES, 1, 1, 1, &sides, sizeof sides) : status;
}

/* --- Squares of masks, for fp16's scales: behind a and b in the workspace --- */

static bool has_squares(const evo_opm_desc *d) {
    return is_fp16(d) && d->mask.dtype != EVO_NONE;
}

static int64_t square_parts(const evo_opm_desc *d) {
    return gpu_blocks(d->s, GPU_OPM_HOPPER_SQUARED);
}

/* Of a batch entry; -1: too many to count. */
static int64_t squares_bytes(const evo_opm_desc *d) {
    return gpu_bytes(square_parts(d), d->n, 1, 1);
}

static float *squares_of(const evo_call *call, const gpu_opm_tensor_outer_params *from) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    if (!has_squares(d)) return NULL;
    return (float *)((uintptr_t)from->b +
                     (uintptr_t)gpu_round(call->form->schedule.batch * from->b_batch * ELEMENT, GPU_ALIGN));
}

/* Where tier tensor projects. */
static evo_status sum_squares(const evo_call *call, const evo_tile *tile) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const gpu_opm_tensor_outer_params from = gpu_opm_outer_of(call, tile);
    const gpu_opm_hopper_squares_params params = {
        .mask = gpu_tensor_of(&d->mask, call->args.opm.mask),
        .squares = squares_of(call, &from),
        .batch_begin = tile->batch.begin,
        .s = (int32_t)d->s,
        .square_parts = (int32_t)square_parts(d),
        .residues = (int32_t)d->n,
        .batch_count = (int32_t)(tile->batch.end - tile->batch.begin),
    };
    if (!has_squares(d)) return EVO_OK;
    return gpu_launch(call, GPU_HOPPER_OPM_SQUARES,
                      gpu_blocks(params.batch_count * d->n * square_parts(d), GPU_PACK_THREADS), 1, 1, &params,
                      sizeof params);
}

/* --- The form --- */

/* True if one launch can do all: it reads m and writes the output in the type that is computed in. */
static bool is_small(const evo_opm_desc *d) {
    return d->out.dtype == product_type(d) && d->s <= GPU_HOPPER_SMALL_S && d->n <= GPU_HOPPER_SMALL_N &&
           d->c_m == GPU_HOPPER_SMALL_CHANNELS && d->c == GPU_OPM_HOPPER_HIDDEN && copies_take_m(d);
}

/*
 * Which order, counted from 1, as an H200 has it. Small modules go in one launch while the blocks, each of which projects all
 * of its batch entry, are no more than run at once. Else weight first, by tier tensor, is faster for few s, of which it takes eight
 * at a time, where outer first walks over two blocks of c_b, or has too few pairs to fill the chip.
 */
static int choose_order(const evo_device *device, const evo_problem *problem) {
    const evo_opm_desc *d = &problem->desc.opm;
    const int64_t blocks = gpu_blocks(d->c_z, GPU_HOPPER_SMALL_Z) * gpu_blocks(d->n, GPU_HOPPER_SMALL_I) * d->batch;
    if (problem->order) return problem->order;
    if (is_small(d) && blocks <= 2 * gpu_device_properties(device)->compute_units) return 1 + WEIGHT_FIRST;
    const bool few = d->batch * d->n * d->n <= FEW_PAIRS;
    return d->s <= FEW_S && (d->c > GPU_OPM_HOPPER_HIDDEN || few) ? 1 + WEIGHT_FIRST : 1 + OUTER_FIRST;
}

static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_opm_desc *d = &problem->desc.opm;
    evo_problem ordered = ask_tensor(problem);
    ordered.order = choose_order(device, problem);
    form->tuning[GPU_OPM_BESIDE] = has_squares(d) && ordered.order == 1 + OUTER_FIRST ? squares_bytes(d) : 0;
    const evo_status status = gpu_opm_tensor.plan(device, &ordered, form);
    if (status != EVO_OK) return status;
    const gpu_function outer = FIND(of_outer, d->out.dtype, outer_columns(d), d->s <= GPU_OPM_HOPPER_SHORT ? 1 : 2),
                       project = copies_take_m(d) ? FIND(of_project, product_type(d), d->c_m, 0) : GPU_FUNCTION_COUNT;
    form->tuning[OUTER_KERNEL] = outer;
    form->tuning[PROJECT_KERNEL] = project;
    form->tuning[SMALL] =
        form->order == WEIGHT_FIRST && is_small(d) && form->schedule.rows >= d->n && form->schedule.cols >= d->n;
    form->pack_layout = GPU_LAYOUT_HOPPER + (is_fp16(d) ? 2u : 0u);
    if (project != GPU_FUNCTION_COUNT) {
        form->pack_layout++;
        form->pack_size += (size_t)own_bytes(d);
    }
    const gpu_function all[] = { outer,
                                 GPU_HOPPER_PACK_BF16,
                                 GPU_HOPPER_PACK_FP16,
                                 GPU_HOPPER_PACK_SIDES,
                                 GPU_HOPPER_OPM_SMALL_BF16,
                                 GPU_HOPPER_OPM_SMALL_FP16,
                                 GPU_HOPPER_OPM_SQUARES,
                                 project };
    return gpu_load(device, all, (int)(sizeof all / sizeof *all) - (project == GPU_FUNCTION_COUNT));
}

/* --- Projection --- */

/* a or b of the tile, by 32 channels of 64 sequences. */
static gpu_bulk_tensor side_of(const evo_opm_desc *d, const void *data, int64_t rows, int64_t batch, int64_t pitch,
                               int64_t batch_stride) {
    return (gpu_bulk_tensor){ data,
                              (int)product_type(d),
                              4,
                              { d->s, rows, d->c, batch },
                              { 1, pitch, rows * pitch, batch_stride },
                              { 64, 1, GPU_OPM_HOPPER_HIDDEN, 1 } };
}

static evo_status map_projection(const evo_call *call, const evo_tile *tile, const weights *w,
                                 gpu_opm_hopper_project_params *params) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const gpu_opm_tensor_outer_params to = gpu_opm_outer_of(call, tile);
    const int dtype = (int)d->m.dtype;
    int64_t s[3]; /* what an index that is always 0 is multiplied by does not matter, but must be positive */
    for (int i = 0; i < 3; i++) s[i] = d->m.strides[i] > 0 ? d->m.strides[i] : 8;
    const void *first = (const unsigned char *)call->args.opm.m +
                        (tile->batch.begin * d->m.strides[0] + tile->rows.begin * d->m.strides[2]) * ELEMENT;
    const gpu_bulk_tensor m = { first,
                                dtype,
                                4,
                                { d->c_m, d->s, params->rows, params->batch_count },
                                { 1, s[1], s[2], s[0] },
                                { 64, GPU_HOPPER_POSITIONS, 1, 1 } };
    const gpu_bulk_tensor weight = { w->project,
                                     dtype,
                                     3,
                                     { d->c_m, all_rows(d), 1 },
                                     { 1, d->c_m, all_rows(d) * d->c_m },
                                     { 64, GPU_HOPPER_OPM_COLUMNS, 1 } };
    const gpu_bulk_tensor a = side_of(d, to.a, params->rows, params->batch_count, to.s_pad, to.a_batch),
                          b = side_of(d, to.b, params->rows, params->batch_count, to.s_pad, to.b_batch);
    evo_status status = gpu_tensor_map_of(call, &m, &params->m);
    if (status == EVO_OK) status = gpu_tensor_map_of(call, &weight, &params->weight);
    if (status == EVO_OK) status = gpu_tensor_map_of(call, &a, &params->a);
    if (status == EVO_OK) status = gpu_tensor_map_of(call, &b, &params->b);
    return status;
}

static evo_status project(const evo_call *caller, const evo_tile *tile) {
    own_problem own;
    const evo_call *const call = with_problem(caller, &own);
    const evo_opm_desc *d = &call->problem->desc.opm;
    const gpu_function kernel = (gpu_function)call->form->tuning[PROJECT_KERNEL];
    const evo_range rows = tile->rows, cols = tile->cols;
    if (call->form->tuning[SMALL]) return EVO_OK; /* the next stage does all */
    if (call->form->order != OUTER_FIRST || kernel == GPU_FUNCTION_COUNT || rows.begin != cols.begin ||
        rows.end != cols.end) {
        const evo_status status = gpu_opm_tensor.stage[EVO_STAGE_OPM_PROJECT](call, tile);
        return status == EVO_OK && call->form->order == OUTER_FIRST ? sum_squares(call, tile) : status;
    }
    const weights w = map_weights(call);
    const gpu_opm_tensor_outer_params to = gpu_opm_outer_of(call, tile);
    gpu_opm_hopper_project_params params = {
        .mask = gpu_tensor_of(&d->mask, call->args.opm.mask),
        .bias = w.bias,
        .batch_begin = tile->batch.begin,
        .row_begin = rows.begin,
        .s = (int32_t)d->s,
        .rows = (int32_t)(rows.end - rows.begin),
        .batch_count = (int32_t)(tile->batch.end - tile->batch.begin),
        .chunks = (int32_t)(all_rows(d) / GPU_HOPPER_OPM_COLUMNS),
        .halves = (int32_t)(side_rows(d) / GPU_OPM_HOPPER_HIDDEN),
        .mask_b = d->mask_sides == EVO_MASK_BOTH,
        .eps = (float)d->layer_norm_eps,
        .store = gpu_opm_store_of(call),
        .squares = squares_of(call, &to),
        .square_parts = (int32_t)square_parts(d),
        .residues = (int32_t)d->n,
    };
    const int64_t tiles = gpu_blocks(d->s, GPU_HOPPER_POSITIONS) * params.rows * params.batch_count;
    if (tiles == 0) return EVO_OK;
    const evo_status status = map_projection(call, tile, &w, &params);
    if (status != EVO_OK) return status;
    return gpu_launch_early(call, kernel, gpu_persistent(call, tiles), &params, sizeof params);
}

/* --- Products --- */

static evo_status map_operands(const evo_call *call, const gpu_opm_tensor_outer_params *from,
                               gpu_opm_hopper_params *params) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const int64_t s = from->s_pad, batch = params->batch_count, c = d->c, z = from->z_rows;
    const int dtype = (int)product_type(d), columns = (int)outer_columns(d);
    const int64_t slices = gpu_blocks(c, GPU_OPM_HOPPER_HIDDEN) * params->c_a / 2;
    const gpu_bulk_tensor a = { from->a,
                                dtype,
                                4,
                                { d->s, from->row_count, c, batch },
                                { 1, s, from->a_channel, from->a_batch },
                                { 64, GPU_OPM_HOPPER_ROWS, 1, 1 } };
    const gpu_bulk_tensor b = { from->b,
                                dtype,
                                4,
                                { d->s, c, from->col_count, batch },
                                { 1, from->b_channel, s, from->b_batch },
                                { 64, GPU_OPM_HOPPER_HIDDEN, GPU_OPM_HOPPER_COLS, 1 } };
    const gpu_bulk_tensor weight = { from->weight, dtype, 3, { 64, z, slices }, { 1, 64, 64 * z }, { 64, columns, 1 } };
    evo_status status = gpu_tensor_map_of(call, &a, &params->a);
    if (status == EVO_OK) status = gpu_tensor_map_of(call, &b, &params->b);
    if (status == EVO_OK) status = gpu_tensor_map_of(call, &weight, &params->weight);
    return status;
}

static evo_status small(const evo_call *call, const evo_tile *tile) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const gpu_opm_tensor_outer_params from = gpu_opm_outer_of(call, tile);
    const weights w = map_weights(call);
    const gpu_opm_hopper_small_params params = {
        .m = gpu_tensor_of(&d->m, call->args.opm.m),
        .output = from.output,
        .weight = w.project,
        .out_weight = gpu_opm_weigh_of(call),
        .bias = w.bias,
        .z_scale = from.z_scale,
        .n = (int32_t)d->n,
        .mask_b = from.mask_b,
        .eps = (float)d->layer_norm_eps,
        .store = gpu_opm_store_of(call),
        .scale = ldexpf(1.0f, 2 * from.mask_exponent),
    };
    const int64_t blocks = gpu_blocks(d->c_z, GPU_HOPPER_SMALL_Z) * gpu_blocks(d->n, GPU_HOPPER_SMALL_I) *
                           (tile->batch.end - tile->batch.begin);
    if (blocks == 0) return EVO_OK;
    return gpu_launch_early(call, is_fp16(d) ? GPU_HOPPER_OPM_SMALL_FP16 : GPU_HOPPER_OPM_SMALL_BF16, blocks, &params,
                            sizeof params);
}

/* True if four residues of the mask, from a multiple of four on, are one load. */
static bool mask_is_wide(const evo_opm_desc *d, int64_t row_begin, int64_t col_begin) {
    const evo_tensor *mask = &d->mask;
    const size_t bytes = evo_dtype_size(mask->dtype);
    return (bytes == 2 || bytes == 4) && mask->strides[2] == 1 && mask->strides[0] % 4 == 0 &&
           mask->strides[1] % 4 == 0 && mask->alignment >= 4 * bytes && row_begin % 4 == 0 && col_begin % 4 == 0;
}

static evo_status outer(const evo_call *caller, const evo_tile *tile) {
    own_problem own;
    const evo_call *const call = with_problem(caller, &own);
    if (call->form->tuning[SMALL]) return small(call, tile);
    if (call->form->order != OUTER_FIRST) return gpu_opm_tensor.stage[EVO_STAGE_OPM_OUTER](call, tile);
    const evo_opm_desc *d = &call->problem->desc.opm;
    const gpu_opm_tensor_outer_params from = gpu_opm_outer_of(call, tile);
    gpu_opm_hopper_params params = {
        .output = from.output,
        .z_scale = from.z_scale,
        .row_begin = from.row_begin,
        .col_begin = from.col_begin,
        .row_count = from.row_count,
        .col_count = from.col_count,
        .batch_count = (int32_t)(tile->batch.end - tile->batch.begin),
        .c = (int32_t)d->c,
        .c_a = (int32_t)gpu_round(d->c, 2),
        .z_groups = (int32_t)gpu_blocks(d->c_z, outer_columns(d)),
        .mask_b = from.mask_b,
        .mask_exponent = from.mask_exponent,
        .wide_mask = mask_is_wide(d, from.row_begin, from.col_begin),
        .squares = squares_of(call, &from),
        .square_parts = (int32_t)square_parts(d),
        .residues = (int32_t)d->n,
    };
    const int64_t tiles = gpu_blocks(from.row_count, GPU_OPM_HOPPER_ROWS) *
                          gpu_blocks(from.col_count, GPU_OPM_HOPPER_COLS) * params.z_groups * params.batch_count;
    if (tiles == 0) return EVO_OK;
    const evo_status status = map_operands(call, &from, &params);
    if (status != EVO_OK) return status;
    return gpu_launch_early(call, (gpu_function)call->form->tuning[OUTER_KERNEL], gpu_persistent(call, tiles), &params,
                            sizeof params);
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

/* The kernel finds masks of one batch entry by 32 bits of bytes. */
static bool mask_is_near(const evo_opm_desc *d) {
    if (d->mask.dtype == EVO_NONE) return true;
    const int64_t *x = d->mask.strides, most = INT32_MAX / (int64_t)evo_dtype_size(d->mask.dtype);
    if (x[1] < -most || x[1] > most || x[2] < -most || x[2] > most) return false;
    return d->s * (x[1] < 0 ? -x[1] : x[1]) <= most - d->n * (x[2] < 0 ? -x[2] : x[2]);
}

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    const evo_opm_desc *d = &problem->desc.opm;
    const evo_tensor *tensors[] = { &d->out, &d->residual };
    const char *const names[] = { "out", "residual" };
    const bool half = is_fp16(d);
    const evo_problem asked = ask_tensor(problem);
    if (!gpu_has_image(device, GPU_HOPPER_PACK_BF16) || !gpu_device_properties(device)->tensor_maps) {
        evo_text_add(why, "needs images for sm_90a, a device of compute capability 9.0, and its driver's tensor maps");
        return false;
    }
    if (d->compute != EVO_COMPUTE_BF16 && !half) {
        evo_text_add(why, "computes bf16, fp16 and tf32, the descriptor asks for %s", evo_compute_name(d->compute));
        return false;
    }
    if (d->c > MOST_HIDDEN || d->c_z % 8 || d->c_z > MOST_CHANNELS) {
        evo_text_add(why, "takes c to %d and c_z of multiples of 8 to %d", MOST_HIDDEN, MOST_CHANNELS);
        return false;
    }
    if (d->s < 1 || d->n > 1 << 20) {
        evo_text_add(why, "takes s from 1 on and n up to 2^20");
        return false;
    }
    if (d->divide == EVO_DIVIDE_BEFORE && d->count_min <= 0.0) {
        evo_text_add(why, "cannot divide by a count of 0 before the projection: it needs count_min above 0");
        return false;
    }
    if (!mask_is_near(d)) {
        evo_text_add(why, "takes masks whose batch entries span less than 2^31 bytes");
        return false;
    }
    for (int t = 0; t < 2; t++) {
        if (tensors[t]->dtype == EVO_NONE) continue;
        const bool like_out = tensors[t]->dtype == d->out.dtype;
        if (!like_out || (d->out.dtype != product_type(d) && !(half && d->out.dtype == EVO_FP32))) {
            evo_text_add(why, "takes out and residual both in %s, %s is %s", half ? "fp16 or fp32" : "bf16", names[t],
                         evo_dtype_name(tensors[t]->dtype));
            return false;
        }
        if (!lies_in_pieces(tensors[t], names[t], why)) return false;
    }
    return gpu_opm_tensor.supports(device, &asked, why);
}

static const char *const orders[] = { "hopper/outer-first", "hopper/weight-first", NULL };

const evo_kernel gpu_opm_hopper = {
    .name = "hopper",
    .orders = orders,
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack, [EVO_STAGE_OPM_PROJECT] = project, [EVO_STAGE_OPM_OUTER] = outer },
};
