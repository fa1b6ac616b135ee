/* opm.c: tier `portable` of the outer product mean: which order and tiles, the buffers, and the launches of each stage. */
#include <math.h>

#include "backends/gpu/kernels/opm/params.h"
#include "backends/gpu/launch.h"
#include "backends/gpu/opm_tensor.h"

/* form->order */
enum {
    OUTER_FIRST,
    WEIGHT_FIRST /* u = W_o a first */
};

/* form->tuning */
enum {
    U_ROWS /* rows i whose u is held at a time */
};

enum {
    BATCH_BYTES = 64 << 20, /* batch entries go together while a and b take no more than this */
    U_BYTES = 32 << 20
};

/* The packed weights. */
typedef struct weights {
    float *norm_weight, *norm_bias;
    float *project; /* [c_m][a's c4, b's c4] */
    float *project_bias;
    float *out; /* [c][c][z_pitch] */
    float *out_bias;
} weights;

static int64_t c4(const evo_opm_desc *d) {
    return gpu_round(d->c, 4);
}

static int64_t z_pitch(const evo_opm_desc *d) {
    return gpu_round(d->c_z, 4);
}

/* Maps the pack; returns its bytes. */
static int64_t map_weights(const evo_opm_desc *d, void *pack, weights *w) {
    uintptr_t next = (uintptr_t)pack;
    w->norm_weight = gpu_take(&next, gpu_bytes(gpu_round(d->c_m, GPU_STAGE_DEPTH), 1, 1, 1));
    w->norm_bias = gpu_take(&next, gpu_bytes(gpu_round(d->c_m, GPU_STAGE_DEPTH), 1, 1, 1));
    w->project = gpu_take(&next, gpu_bytes(d->c_m, 2 * c4(d), 1, 1));
    w->project_bias = gpu_take(&next, gpu_bytes(2 * c4(d), 1, 1, 1));
    w->out = gpu_take(&next, gpu_bytes(d->c, d->c, z_pitch(d), 1));
    w->out_bias = gpu_take(&next, gpu_bytes(z_pitch(d), 1, 1, 1));
    return (int64_t)(next - (uintptr_t)pack);
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_opm_weights *from = &call->args.opm_weights;
    const int64_t width = c4(d);
    weights to;
    map_weights(d, call->pack, &to);
    gpu_packing packing = { .blocks = 0 };
    gpu_pack_norm(&packing, &from->norm_weight, &from->norm_bias, d->c_m, to.norm_weight, to.norm_bias);
    gpu_pack_matrix(&packing, &from->a_weight, &from->a_bias, d->c, d->c_m, to.project, 2 * width, width,
                    to.project_bias);
    gpu_pack_matrix(&packing, &from->b_weight, &from->b_bias, d->c, d->c_m, to.project + width, 2 * width, width,
                    to.project_bias + width);
    gpu_pack_matrix(&packing, &from->out_weight, &from->out_bias, d->c_z, d->c * d->c, to.out, z_pitch(d), z_pitch(d),
                    to.out_bias);
    return gpu_pack(call, &packing);
}

/* --- The form --- */

/* Workspace: a and b of the schedule's batch entries, then u of one. */
typedef struct buffers {
    float *a, *b, *u;
    int64_t a_batch, b_batch; /* floats of one batch entry */
} buffers;

static int64_t side_bytes(const evo_opm_desc *d, int64_t batch, int64_t residues) {
    return gpu_bytes(batch, d->s, gpu_round(residues, 4), c4(d));
}

static int64_t u_bytes(const evo_opm_desc *d, int64_t rows) {
    return gpu_bytes(rows, d->c, d->s, z_pitch(d));
}

static int64_t form_bytes(const evo_opm_desc *d, const evo_form *form) {
    const evo_schedule *step = &form->schedule;
    const int64_t sides = gpu_sum(side_bytes(d, step->batch, step->rows), side_bytes(d, step->batch, step->cols));
    return form->order == WEIGHT_FIRST ? gpu_sum(sides, u_bytes(d, form->tuning[U_ROWS])) : sides;
}

static buffers map_buffers(const evo_call *call) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_schedule *step = &call->form->schedule;
    uintptr_t next = (uintptr_t)call->workspace;
    buffers to;
    to.a = gpu_take(&next, side_bytes(d, step->batch, step->rows));
    to.b = gpu_take(&next, side_bytes(d, step->batch, step->cols));
    to.u = gpu_take(&next, 0);
    to.a_batch = d->s * gpu_round(step->rows, 4) * c4(d);
    to.b_batch = d->s * gpu_round(step->cols, 4) * c4(d);
    return to;
}

/*
 * The time of each order in multiply-adds of the whole device, with the padding of tiles and with units that have none. A launch takes an H200
 * as long as 6e7 of them.
 */
static const double launch_cost = 6e7;

static double rounds_cost(const evo_device *device, double blocks, double each) {
    const double units = (double)gpu_device_properties(device)->compute_units;
    return ceil(blocks / units) * units * each;
}

static double outer_first_cost(const evo_device *device, const evo_opm_desc *d) {
    const double hidden = (double)gpu_round(d->c, GPU_OPM_HIDDEN), side = (double)gpu_blocks(d->n, GPU_OPM_SIDE);
    const double blocks = (double)d->batch * side * side * (double)gpu_blocks(d->c_z, GPU_OPM_COLUMNS);
    return rounds_cost(device, blocks, (double)GPU_OPM_PAIRS * hidden * hidden * (double)(d->s + GPU_OPM_COLUMNS));
}

static double weight_first_cost(const evo_device *device, const evo_opm_desc *d) {
    const double tile = 128.0 * 128.0, c = (double)d->c;
    const double weigh = (double)gpu_blocks(d->s * d->n, 128) * (double)gpu_blocks((int64_t)d->c * z_pitch(d), 128);
    const double combine = (double)d->n * (double)gpu_blocks(d->n, 128) * (double)gpu_blocks(d->c_z, GPU_OPM_COLUMNS);
    return (double)d->batch *
           (rounds_cost(device, weigh, tile * c) + rounds_cost(device, combine, tile * c * (double)d->s) + launch_cost);
}

static bool weight_first_is_cheaper(const evo_device *device, const evo_opm_desc *d) {
    return d->s > 0 && weight_first_cost(device, d) < outer_first_cost(device, d);
}

double gpu_opm_portable_cost(const evo_device *device, const evo_opm_desc *d) {
    return weight_first_is_cheaper(device, d) ? weight_first_cost(device, d) : outer_first_cost(device, d);
}

static bool fits(const evo_opm_desc *d, const evo_form *form) {
    const int64_t bytes = form_bytes(d, form);
    return bytes >= 0 && (!d->workspace_limit || (uint64_t)bytes <= d->workspace_limit);
}

static int64_t halve(int64_t value, int64_t multiple) {
    return gpu_round((value + 1) / 2, multiple);
}

/* Batch entries first, then u's rows, then the other order, which has no u, if it may, then tiles of rows and columns. */
static void shrink(const evo_opm_desc *d, bool may_reorder, evo_form *form) {
    evo_schedule *step = &form->schedule;
    int64_t *u_rows = &form->tuning[U_ROWS];
    if (!fits(d, form)) step->batch = 1;
    while (form->order == WEIGHT_FIRST && *u_rows > GPU_OPM_SIDE && !fits(d, form))
        *u_rows = halve(*u_rows, GPU_OPM_SIDE);
    if (!fits(d, form) && may_reorder) form->order = OUTER_FIRST;
    while (!fits(d, form) && (step->rows > GPU_OPM_SIDE || step->cols > GPU_OPM_SIDE)) {
        int64_t *larger = step->rows > step->cols ? &step->rows : &step->cols;
        *larger = halve(*larger, GPU_OPM_SIDE);
    }
}

static gpu_function outer_kernel(const evo_device *device, const evo_opm_desc *d) {
    if (!gpu_fits(device, GPU_OPM_OUTER)) return GPU_OPM_OUTER_SMALL;
    return d->c == GPU_OPM_HIDDEN ? GPU_OPM_OUTER : GPU_OPM_OUTER_WIDE;
}

static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_opm_desc *d = &problem->desc.opm;
    const int64_t n = d->n > 0 ? d->n : 1;
    form->schedule = (evo_schedule){ 1, n, n, d->c };
    const int64_t one = gpu_sum(side_bytes(d, 1, n), side_bytes(d, 1, n)), row = u_bytes(d, 1);
    if (one < 0) return gpu_settle(form, -1, 0);
    if (d->batch > 1) form->schedule.batch = one <= BATCH_BYTES / 2 && one > 0 ? BATCH_BYTES / one : 1;
    if (form->schedule.batch > d->batch) form->schedule.batch = d->batch > 0 ? d->batch : 1;
    if (form->schedule.batch > GPU_GRID_LIMIT) form->schedule.batch = GPU_GRID_LIMIT;
    /* A normaliser of 0 must divide each o, which only the other order has. */
    const bool divides_by_zero = d->divide == EVO_DIVIDE_BEFORE && d->count_min <= 0.0;
    /* Blocks of u start at quads of rows, as a's quads of positions are copied whole. */
    const int64_t bearable = row > 0 ? U_BYTES / row : 0, most = bearable < GPU_GRID_LIMIT ? bearable : GPU_GRID_LIMIT;
    const int64_t u_rows = most / GPU_OPM_SIDE * GPU_OPM_SIDE;
    const bool can = u_rows > 0 && !divides_by_zero;
    const int cheaper = can && weight_first_is_cheaper(device, d) ? WEIGHT_FIRST : OUTER_FIRST;
    form->order = problem->order ? problem->order - 1 : cheaper;
    if (form->order == WEIGHT_FIRST && !can)
        return evo_fail(EVO_ERROR_UNSUPPORTED, "weight first %s",
                        divides_by_zero ? "cannot divide by a count of 0: it needs count_min above 0"
                                        : "needs S of at least 1, and a row of u within 32 MiB");
    form->tuning[U_ROWS] = u_rows < n ? u_rows : n;
    shrink(d, problem->order == 0, form);
    evo_status status = gpu_settle(form, form_bytes(d, form), d->workspace_limit);
    if (status != EVO_OK) return status;
    weights none;
    form->compute = d->compute == EVO_COMPUTE_FP32_STRICT ? EVO_COMPUTE_FP32_STRICT : EVO_COMPUTE_FP32;
    form->pack_layout = GPU_LAYOUT_PORTABLE;
    form->pack_size = (size_t)map_weights(d, NULL, &none);
    const gpu_function all[] = { GPU_PACK, GPU_OPM_PROJECT, outer_kernel(device, d), GPU_OPM_WEIGH, GPU_OPM_COMBINE };
    return gpu_load(device, all, (int)(sizeof all / sizeof *all));
}

/* --- Stages --- */

/* Sides first ... last - 1 (a is 0, b is 1) of the residues of `range`. */
static evo_status project_sides(const evo_call *call, const evo_tile *tile, evo_range range, int first, int last) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const int64_t padded = gpu_round(range.end - range.begin, 4), width = c4(d), positions = d->s * padded;
    const bool weight_first = call->form->order == WEIGHT_FIRST;
    const int64_t blocks = gpu_blocks(positions, GPU_PROJECT_ROWS), batch = tile->batch.end - tile->batch.begin;
    const buffers to = map_buffers(call);
    weights w;
    map_weights(d, call->pack, &w);
    const gpu_project_params params = {
        .source = gpu_tensor_of(&d->m, call->args.opm.m),
        .mask = gpu_tensor_of(&d->mask, call->args.opm.mask),
        .norm_weight = w.norm_weight,
        .norm_bias = w.norm_bias,
        .weight = w.project,
        .bias = w.project_bias,
        .target = { to.a, to.b },
        .target_batch = { to.a_batch, to.b_batch },
        .position_stride = weight_first ? 1 : width,
        .channel_stride = weight_first ? positions : GPU_OPM_SIDE,
        .positions = positions,
        .inner_begin = range.begin,
        .batch_begin = tile->batch.begin,
        .inner_count = (int32_t)(range.end - range.begin),
        .inner_padded = (int32_t)padded,
        .channels = (int32_t)d->c_m,
        .width = (int32_t)width,
        .group = (int32_t)width,
        .column_begin = (int32_t)(first * width),
        .column_end = (int32_t)(last * width),
        .columns_per_block = gpu_columns_per_block(call->device, blocks * batch, (last - first) * width),
        .mask_b = d->mask_sides == EVO_MASK_BOTH,
        .eps = (float)d->layer_norm_eps,
    };
    return gpu_launch(call, GPU_OPM_PROJECT, blocks, gpu_blocks((last - first) * width, params.columns_per_block),
                      batch, &params, sizeof params);
}

evo_status gpu_opm_project(const evo_call *call, const evo_tile *tile, gpu_opm_project_sides *sides) {
    const evo_range rows = tile->rows, cols = tile->cols;
    if (rows.begin == cols.begin && rows.end == cols.end) return sides(call, tile, rows, 0, 2);
    evo_status status = EVO_OK;
    if (rows.end > rows.begin) status = sides(call, tile, rows, 0, 1);
    if (cols.end > cols.begin && status == EVO_OK) status = sides(call, tile, cols, 1, 2);
    return status;
}

static evo_status project(const evo_call *call, const evo_tile *tile) {
    return gpu_opm_project(call, tile, project_sides);
}

gpu_opm_output gpu_opm_output_of(const evo_call *call, int64_t batch, const float *bias) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    return (gpu_opm_output){
        .mask = gpu_tensor_of(&d->mask, call->args.opm.mask),
        .residual = gpu_tensor_of(&d->residual, call->args.opm.residual),
        .out = gpu_tensor_of(&d->out, call->args.opm.out),
        .bias = bias,
        .batch_begin = batch,
        .s = (int32_t)d->s,
        .c_z = (int32_t)d->c_z,
        .divide_after = d->divide == EVO_DIVIDE_AFTER,
        .count_eps = (float)d->count_eps,
        .count_min = (float)d->count_min,
    };
}

static evo_status outer_first(const evo_call *call, const evo_tile *tile, const weights *w) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const int64_t rows = tile->rows.end - tile->rows.begin, cols = tile->cols.end - tile->cols.begin;
    const buffers from = map_buffers(call);
    const gpu_opm_outer_params params = {
        .output = gpu_opm_output_of(call, tile->batch.begin, w->out_bias),
        .a = from.a,
        .b = from.b,
        .weight = w->out,
        .a_batch = from.a_batch,
        .b_batch = from.b_batch,
        .row_begin = tile->rows.begin,
        .col_begin = tile->cols.begin,
        .row_count = (int32_t)rows,
        .col_count = (int32_t)cols,
        .c = (int32_t)d->c,
        .c4 = (int32_t)c4(d),
        .z_pitch = (int32_t)z_pitch(d),
    };
    return gpu_launch(call, outer_kernel(call->device, d),
                      gpu_blocks(rows, GPU_OPM_SIDE) * gpu_blocks(cols, GPU_OPM_SIDE),
                      gpu_blocks(d->c_z, GPU_OPM_COLUMNS), tile->batch.end - tile->batch.begin, &params, sizeof params);
}

/* u of some rows of one batch entry, then their outputs. */
static evo_status weigh_rows(const evo_call *call, const evo_tile *tile, const weights *w, int64_t batch, int64_t first,
                             int64_t count) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const int64_t rows4 = gpu_round(tile->rows.end - tile->rows.begin, 4), cols = tile->cols.end - tile->cols.begin;
    const buffers from = map_buffers(call);
    const gpu_opm_weigh_params weigh = {
        .a = from.a + (batch - tile->batch.begin) * from.a_batch,
        .weight = w->out,
        .u = from.u,
        .a_pitch = d->s * rows4,
        .rows4 = (int32_t)rows4,
        .s = (int32_t)d->s,
        .c = (int32_t)d->c,
        .z_pitch = (int32_t)z_pitch(d),
        .u_begin = (int32_t)first,
        .u_count = (int32_t)count,
    };
    const evo_status status = gpu_launch(call, GPU_OPM_WEIGH, gpu_blocks(d->s * gpu_round(count, 4), 128),
                                         gpu_blocks(d->c * z_pitch(d), 128), 1, &weigh, sizeof weigh);
    if (status != EVO_OK) return status;
    const gpu_opm_combine_params combine = {
        .output = gpu_opm_output_of(call, batch, w->out_bias),
        .b = from.b + (batch - tile->batch.begin) * from.b_batch,
        .u = from.u,
        .a = weigh.a + first,
        .weight = w->out,
        .a_pitch = weigh.a_pitch,
        .rows4 = weigh.rows4,
        .row_begin = tile->rows.begin + first,
        .col_begin = tile->cols.begin,
        .row_count = (int32_t)count,
        .col_count = (int32_t)cols,
        .cols4 = (int32_t)gpu_round(cols, 4),
        .depth = (int32_t)(d->c * d->s),
        .z_pitch = (int32_t)z_pitch(d),
    };
    return gpu_launch(call, GPU_OPM_COMBINE, gpu_blocks(cols, 128) * gpu_blocks(z_pitch(d), 128), count, 1, &combine,
                      sizeof combine);
}

static evo_status outer(const evo_call *call, const evo_tile *tile) {
    const int64_t rows = tile->rows.end - tile->rows.begin, step = call->form->tuning[U_ROWS];
    evo_status status = EVO_OK;
    weights w;
    map_weights(&call->problem->desc.opm, call->pack, &w);
    if (call->form->order == OUTER_FIRST) return outer_first(call, tile, &w);
    for (int64_t b = tile->batch.begin; b < tile->batch.end; b++)
        for (int64_t i = 0; i < rows && status == EVO_OK; i += step)
            status = weigh_rows(call, tile, &w, b, i, rows - i < step ? rows - i : step);
    return status;
}

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    (void)device;
    const evo_opm_desc *d = &problem->desc.opm;
    const evo_tensor *tensors[] = { &d->m, &d->residual, &d->out };
    const char *names[] = { "m", "residual", "out" };
    if (!gpu_portable_takes(d->compute, tensors, names, 3, why)) return false;
    /* Kernels count these in 32 bits. */
    const int64_t depth = evo_product(d->s, c4(d), 1, 1), widest = evo_product(d->c, z_pitch(d), 1, 1);
    const bool small = d->n < 1 << 30 && d->c_m < 1 << 30 && d->s < 1 << 30 && depth >= 0 && depth < 1 << 30 &&
                       widest >= 0 && widest < 1 << 30;
    if (!small) evo_text_add(why, "takes n, s, c_m, s * c and c * c_z below 2^30");
    return small;
}

static const char *const orders[] = { "portable/outer-first", "portable/weight-first", NULL };

const evo_kernel gpu_opm_portable = {
    .name = "portable",
    .orders = orders,
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack, [EVO_STAGE_OPM_PROJECT] = project, [EVO_STAGE_OPM_OUTER] = outer },
};
