/* trimul.c: tier `portable` of the triangle multiplication: tiles, the buffers, and the launches of each stage. */
#include "backends/gpu/kernels/trimul/params.h"

#include "backends/gpu/launch.h"

enum {
    BATCH_BYTES = 64 << 20 /* batch entries go together while their buffers take no more than this */
};

/* The packed weights. */
typedef struct weights {
    float *norm_in_weight, *norm_in_bias, *norm_out_weight, *norm_out_bias;
    float *norm_gate_weight, *norm_gate_bias; /* of the output's gate: ones and zeros where it reads z itself */
    float *proj, *gate;                       /* [c_z][a's c4, b's c4] */
    float *proj_bias, *gate_bias;
    float *out, *out_gate; /* [c][out4], [c_z][out4] */
    float *out_bias, *out_gate_bias;
} weights;

static int64_t c4(const evo_trimul_desc *d) {
    return gpu_round(d->c, 4);
}

static int64_t out4(const evo_trimul_desc *d) {
    return gpu_round(d->c_out, 4);
}

/* Floats of a row of a, b and t: whole quads, whole memory sectors where it costs little. */
static int64_t row_pitch(const evo_trimul_desc *d) {
    return gpu_round(d->n, d->n > 64 ? 8 : 4);
}

/* Maps the pack; returns its bytes. */
static int64_t map_weights(const evo_trimul_desc *d, void *pack, weights *w) {
    uintptr_t next = (uintptr_t)pack;
    float **const norms[] = { &w->norm_in_weight, &w->norm_in_bias,    &w->norm_gate_weight,
                              &w->norm_gate_bias, &w->norm_out_weight, &w->norm_out_bias };
    for (int i = 0; i < 6; i++)
        *norms[i] = gpu_take(&next, gpu_bytes(gpu_round(i < 4 ? d->c_z : d->c, GPU_STAGE_DEPTH), 1, 1, 1));
    w->proj = gpu_take(&next, gpu_bytes(d->c_z, 2 * c4(d), 1, 1));
    w->gate = gpu_take(&next, gpu_bytes(d->c_z, 2 * c4(d), 1, 1));
    w->proj_bias = gpu_take(&next, gpu_bytes(2 * c4(d), 1, 1, 1));
    w->gate_bias = gpu_take(&next, gpu_bytes(2 * c4(d), 1, 1, 1));
    w->out = gpu_take(&next, gpu_bytes(d->c, out4(d), 1, 1));
    w->out_gate = gpu_take(&next, gpu_bytes(d->c_z, out4(d), 1, 1));
    w->out_bias = gpu_take(&next, gpu_bytes(out4(d), 1, 1, 1));
    w->out_gate_bias = gpu_take(&next, gpu_bytes(out4(d), 1, 1, 1));
    return (int64_t)(next - (uintptr_t)pack);
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_trimul_weights *from = &call->args.trimul_weights;
    const int64_t width = c4(d), pitch = 2 * width, n = d->c, k = d->c_z;
    const bool normed = d->gate_input == EVO_GATE_NORMED;
    weights to;
    map_weights(d, call->pack, &to);
    gpu_packing packing = { .blocks = 0 };
    gpu_pack_norm(&packing, &from->norm_in_weight, &from->norm_in_bias, k, to.norm_in_weight, to.norm_in_bias);
    gpu_pack_norm(&packing, normed ? &from->norm_in_weight : NULL, normed ? &from->norm_in_bias : NULL, k,
                  to.norm_gate_weight, to.norm_gate_bias);
    gpu_pack_norm(&packing, &from->norm_out_weight, &from->norm_out_bias, n, to.norm_out_weight, to.norm_out_bias);
    gpu_pack_matrix(&packing, &from->a_proj_weight, &from->a_proj_bias, n, k, to.proj, pitch, width, to.proj_bias);
    gpu_pack_matrix(&packing, &from->b_proj_weight, &from->b_proj_bias, n, k, to.proj + width, pitch, width,
                    to.proj_bias + width);
    gpu_pack_matrix(&packing, &from->a_gate_weight, &from->a_gate_bias, n, k, to.gate, pitch, width, to.gate_bias);
    gpu_pack_matrix(&packing, &from->b_gate_weight, &from->b_gate_bias, n, k, to.gate + width, pitch, width,
                    to.gate_bias + width);
    gpu_pack_matrix(&packing, &from->out_weight, &from->out_bias, d->c_out, n, to.out, out4(d), out4(d), to.out_bias);
    gpu_pack_matrix(&packing, &from->out_gate_weight, &from->out_gate_bias, d->c_out, k, to.out_gate, out4(d), out4(d),
                    to.out_gate_bias);
    return gpu_pack(call, &packing);
}

/* --- The form --- */

/*
 * Workspace: a and b [batch][channels of a group][N][pitch], t [batch][c][rows][pitch], and where the output is written
 * over z in several steps, its rows [batch][rows][N][c_out] until all of z has been read.
 */
typedef struct buffers {
    float *a, *b, *t, *staging;
    int64_t side_channel, t_channel; /* floats of one channel */
    int64_t side_batch, t_batch;     /* and of one batch entry */
} buffers;

static bool is_staged(const evo_trimul_desc *d) {
    return d->alias & EVO_ALIAS_INPUT && d->c_out > GPU_FINISH_COLUMNS;
}

static int64_t side_bytes(const evo_trimul_desc *d, const evo_schedule *step) {
    return gpu_bytes(step->batch, gpu_round(step->channels, 4), d->n, row_pitch(d));
}

static int64_t t_bytes(const evo_trimul_desc *d, const evo_schedule *step) {
    return gpu_bytes(step->batch, d->c, step->rows, row_pitch(d));
}

static int64_t form_bytes(const evo_trimul_desc *d, const evo_schedule *step) {
    const int64_t sides = gpu_sum(side_bytes(d, step), side_bytes(d, step)), t = t_bytes(d, step);
    const int64_t rows = evo_product(step->batch, step->rows, 1, 1);
    return gpu_sum(gpu_sum(sides, t), is_staged(d) ? gpu_bytes(rows, d->n, d->c_out, 1) : 0);
}

static buffers map_buffers(const evo_call *call) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_schedule *step = &call->form->schedule;
    uintptr_t next = (uintptr_t)call->workspace;
    buffers to;
    to.a = gpu_take(&next, side_bytes(d, step));
    to.b = gpu_take(&next, side_bytes(d, step));
    to.t = gpu_take(&next, t_bytes(d, step));
    to.staging = gpu_take(&next, 0);
    to.side_channel = d->n * row_pitch(d);
    to.t_channel = step->rows * row_pitch(d);
    to.side_batch = gpu_round(step->channels, 4) * to.side_channel;
    to.t_batch = d->c * to.t_channel;
    return to;
}

static bool fits(const evo_trimul_desc *d, const evo_schedule *step) {
    const int64_t bytes = form_bytes(d, step);
    return bytes >= 0 && (!d->workspace_limit || (uint64_t)bytes <= d->workspace_limit);
}

static int64_t halve(int64_t value) {
    return gpu_round((value + 1) / 2, 4);
}

/*
 * Batch entries first, then t's rows (no work is done twice), then with all rows the channels (LayerNorm is repeated a
 * group), then rows too, which projects each group once a block: not where finished rows may lie over z, which a later
 * block's projection reads.
 */
static void shrink(const evo_trimul_desc *d, evo_schedule *step) {
    const int64_t all_rows = step->rows;
    if (!fits(d, step)) step->batch = 1;
    while (step->rows > 4 && !fits(d, step)) step->rows = halve(step->rows);
    if (fits(d, step)) return;
    const int64_t least = form_bytes(d, step);
    step->rows = all_rows;
    while (step->channels > 4 && !fits(d, step)) step->channels = halve(step->channels);
    if (fits(d, step)) return;
    if (!(d->alias & EVO_ALIAS_INPUT)) {
        while (step->rows > 4 && !fits(d, step)) step->rows = halve(step->rows);
    } else if (form_bytes(d, step) > least) { /* the least that can be told */
        step->rows = all_rows < 4 ? all_rows : 4;
        step->channels = d->c;
    }
}

static gpu_function contract_kernel(const evo_device *device) {
    return gpu_fits(device, GPU_TRIMUL_CONTRACT) ? GPU_TRIMUL_CONTRACT : GPU_TRIMUL_CONTRACT_SMALL;
}

static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_trimul_desc *d = &problem->desc.trimul;
    evo_schedule *step = &form->schedule;
    const int64_t n = d->n > 0 ? d->n : 1;
    *step = (evo_schedule){ 1, n, n, d->c };
    const int64_t one = form_bytes(d, step);
    if (one < 0) return gpu_settle(form, -1, 0);
    if (d->batch > 1) step->batch = one <= BATCH_BYTES / 2 && one > 0 ? BATCH_BYTES / one : 1;
    if (step->batch > d->batch) step->batch = d->batch > 0 ? d->batch : 1;
    if (step->batch > GPU_GRID_LIMIT) step->batch = GPU_GRID_LIMIT;
    shrink(d, step);
    const evo_status status = gpu_settle(form, form_bytes(d, step), d->workspace_limit);
    if (status != EVO_OK) return status;
    weights none;
    form->compute = d->compute == EVO_COMPUTE_FP32_STRICT ? EVO_COMPUTE_FP32_STRICT : EVO_COMPUTE_FP32;
    form->pack_layout = d->gate_input == EVO_GATE_RAW ? GPU_LAYOUT_RAW_GATE : GPU_LAYOUT_PORTABLE;
    form->pack_size = (size_t)map_weights(d, NULL, &none);
    const gpu_function all[] = { GPU_PACK, GPU_TRIMUL_PROJECT, contract_kernel(device), GPU_TRIMUL_FINISH,
                                 GPU_TRIMUL_COPY };
    return gpu_load(device, all, (int)(sizeof all / sizeof *all));
}

/* --- Stages --- */

/*
 * Channels of a and b at every position. Their matrices are [k][i] in both directions: outgoing a_ik is read at (i, k),
 * incoming a_ki at (k, i), so that only the strides of what is read differ.
 */
static gpu_tensor by_k_and_i(const evo_trimul_desc *d, const evo_tensor *tensor, const void *data) {
    gpu_tensor view = gpu_tensor_of(tensor, data);
    if (d->direction == EVO_OUTGOING) {
        view.strides[1] = tensor->strides[2];
        view.strides[2] = tensor->strides[1];
    }
    return view;
}

static evo_status project(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const int64_t group = gpu_round(tile->channels.end - tile->channels.begin, 4), pitch = row_pitch(d);
    const int64_t positions = d->n * pitch, blocks = gpu_blocks(positions, GPU_PROJECT_ROWS);
    const int64_t batch = tile->batch.end - tile->batch.begin;
    const buffers to = map_buffers(call);
    weights w;
    map_weights(d, call->pack, &w);
    const gpu_project_params params = {
        .source = by_k_and_i(d, &d->z, call->args.trimul.z),
        .mask = by_k_and_i(d, &d->mask, call->args.trimul.mask),
        .norm_weight = w.norm_in_weight,
        .norm_bias = w.norm_in_bias,
        .weight = w.proj,
        .gate_weight = w.gate,
        .bias = w.proj_bias,
        .gate_bias = w.gate_bias,
        .target = { to.a, to.b },
        .target_batch = { to.side_batch, to.side_batch },
        .position_stride = 1,
        .channel_stride = to.side_channel,
        .positions = positions,
        .batch_begin = tile->batch.begin,
        .inner_count = (int32_t)d->n,
        .inner_padded = (int32_t)pitch,
        .channels = (int32_t)d->c_z,
        .width = (int32_t)c4(d),
        .group_begin = (int32_t)tile->channels.begin,
        .group = (int32_t)group,
        .column_end = (int32_t)(2 * group),
        .columns_per_block = gpu_columns_per_block(call->device, blocks * batch, 2 * group),
        .mask_b = 1,
        .eps = (float)d->layer_norm_eps,
    };
    return gpu_launch(call, GPU_TRIMUL_PROJECT, blocks, gpu_blocks(2 * group, params.columns_per_block), batch, &params,
                      sizeof params);
}

static evo_status contract(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const int64_t rows = tile->rows.end - tile->rows.begin, pitch = row_pitch(d);
    const int64_t tiles = gpu_blocks(rows, GPU_CONTRACT_TILE) * gpu_blocks(pitch, GPU_CONTRACT_TILE);
    const buffers w = map_buffers(call);
    const gpu_contract_params params = {
        .a = w.a + tile->rows.begin,
        .b = w.b,
        .t = w.t + tile->channels.begin * w.t_channel,
        .side_batch = w.side_batch,
        .t_batch = w.t_batch,
        .side_channel = w.side_channel,
        .t_channel = w.t_channel,
        .n = (int32_t)d->n,
        .pitch = (int32_t)pitch,
        .rows = (int32_t)rows,
    };
    return gpu_launch(call, contract_kernel(call->device), tiles, tile->channels.end - tile->channels.begin,
                      tile->batch.end - tile->batch.begin, &params, sizeof params);
}

/* Rows of the output on their way to their place over z. */
static gpu_tensor staging_of(const evo_trimul_desc *d, int64_t rows, float *staging) {
    const int64_t row = d->n * d->c_out;
    return (gpu_tensor){ staging, { rows * row, row, d->c_out, 1 }, GPU_FP32, d->c_out % 4 == 0 };
}

static evo_status finish(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const int64_t rows = tile->rows.end - tile->rows.begin, batch = tile->batch.end - tile->batch.begin;
    const int64_t positions = rows * row_pitch(d);
    const bool staged = is_staged(d);
    const gpu_tensor out = gpu_tensor_of(&d->out, call->args.trimul.out);
    const buffers from = map_buffers(call);
    weights w;
    map_weights(d, call->pack, &w);
    const gpu_finish_params params = {
        .z = gpu_tensor_of(&d->z, call->args.trimul.z),
        .residual = gpu_tensor_of(&d->residual, call->args.trimul.residual),
        .out = staged ? staging_of(d, rows, from.staging) : out,
        .t = from.t,
        .norm_t_weight = w.norm_out_weight,
        .norm_t_bias = w.norm_out_bias,
        .norm_z_weight = w.norm_gate_weight,
        .norm_z_bias = w.norm_gate_bias,
        .weight = w.out,
        .gate_weight = w.out_gate,
        .bias = w.out_bias,
        .gate_bias = w.out_gate_bias,
        .t_batch = from.t_batch,
        .t_channel = from.t_channel,
        .positions = positions,
        .row_begin = tile->rows.begin,
        .batch_begin = tile->batch.begin,
        .out_row_begin = staged ? 0 : tile->rows.begin,
        .out_batch_begin = staged ? 0 : tile->batch.begin,
        .n = (int32_t)d->n,
        .pitch = (int32_t)row_pitch(d),
        .c_z = (int32_t)d->c_z,
        .c = (int32_t)d->c,
        .c_out = (int32_t)d->c_out,
        .width = (int32_t)out4(d),
        .raw_gate = d->gate_input == EVO_GATE_RAW,
        .eps_in = (float)d->layer_norm_eps,
        .eps_out = (float)d->layer_norm_eps,
    };
    const evo_status status =
        gpu_launch(call, GPU_TRIMUL_FINISH, gpu_blocks(positions, GPU_FINISH_ROWS), 1, batch, &params, sizeof params);
    if (status != EVO_OK || !staged) return status;
    const gpu_copy_params copy = { out,  from.staging,           tile->rows.begin, tile->batch.begin,
                                   rows, rows * d->n * d->c_out, (int32_t)d->n,    (int32_t)d->c_out };
    return gpu_launch(call, GPU_TRIMUL_COPY, gpu_blocks(copy.elements, GPU_COPY_THREADS), 1, batch, &copy, sizeof copy);
}

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    (void)device;
    const evo_trimul_desc *d = &problem->desc.trimul;
    const evo_tensor *tensors[] = { &d->z, &d->residual, &d->out };
    const char *names[] = { "z", "residual", "out" };
    if (!gpu_portable_takes(d->compute, tensors, names, 3, why)) return false;
    const bool small = d->n < 1 << 20 && d->c_z < 1 << 28 && d->c <= GPU_GRID_LIMIT && d->c_out < 1 << 28;
    if (!small) evo_text_add(why, "takes n below 2^20, c at most %d, c_z and c_out below 2^28", GPU_GRID_LIMIT);
    return small;
}

const evo_kernel gpu_trimul_portable = {
    .name = "portable",
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack,
               [EVO_STAGE_TRIMUL_PROJECT] = project,
               [EVO_STAGE_TRIMUL_CONTRACT] = contract,
               [EVO_STAGE_TRIMUL_FINISH] = finish },
};
