/* trimul_reference.c: the triangle multiplication as docs/ops.md writes it, in double. */
#include "backends/cpu/reference.h"

/* The packed weights: matrices as [in, out]. */
typedef struct weights {
    double *norm_in_weight, *norm_in_bias; /* [c_z] */
    double *a_proj, *a_proj_bias;          /* [c_z, c], [c] */
    double *a_gate, *a_gate_bias;
    double *b_proj, *b_proj_bias;
    double *b_gate, *b_gate_bias;
    double *norm_out_weight, *norm_out_bias; /* [c] */
    double *out, *out_bias;                  /* [c, c_out], [c_out] */
    double *out_gate, *out_gate_bias;        /* [c_z, c_out], [c_out] */
} weights;

static int64_t pack_doubles(const evo_trimul_desc *d) {
    return 2 * (d->c_z + d->c) + 4 * (d->c_z * d->c + d->c) + (d->c + d->c_z) * d->c_out + 2 * d->c_out;
}

static weights map_weights(const evo_trimul_desc *d, void *pack) {
    double *next = pack;
    weights w;
    w.norm_in_weight = evo_reference_take(&next, d->c_z);
    w.norm_in_bias = evo_reference_take(&next, d->c_z);
    w.a_proj = evo_reference_take(&next, d->c_z * d->c);
    w.a_proj_bias = evo_reference_take(&next, d->c);
    w.a_gate = evo_reference_take(&next, d->c_z * d->c);
    w.a_gate_bias = evo_reference_take(&next, d->c);
    w.b_proj = evo_reference_take(&next, d->c_z * d->c);
    w.b_proj_bias = evo_reference_take(&next, d->c);
    w.b_gate = evo_reference_take(&next, d->c_z * d->c);
    w.b_gate_bias = evo_reference_take(&next, d->c);
    w.norm_out_weight = evo_reference_take(&next, d->c);
    w.norm_out_bias = evo_reference_take(&next, d->c);
    w.out = evo_reference_take(&next, d->c * d->c_out);
    w.out_bias = evo_reference_take(&next, d->c_out);
    w.out_gate = evo_reference_take(&next, d->c_z * d->c_out);
    w.out_gate_bias = evo_reference_take(&next, d->c_out);
    return w;
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_trimul_weights *from = &call->args.trimul_weights;
    const weights to = map_weights(d, call->pack);
    evo_reference_pack(&from->norm_in_weight, d->c_z, 1, to.norm_in_weight);
    evo_reference_pack(&from->norm_in_bias, d->c_z, 1, to.norm_in_bias);
    evo_reference_pack(&from->a_proj_weight, d->c, d->c_z, to.a_proj);
    evo_reference_pack(&from->a_proj_bias, d->c, 1, to.a_proj_bias);
    evo_reference_pack(&from->a_gate_weight, d->c, d->c_z, to.a_gate);
    evo_reference_pack(&from->a_gate_bias, d->c, 1, to.a_gate_bias);
    evo_reference_pack(&from->b_proj_weight, d->c, d->c_z, to.b_proj);
    evo_reference_pack(&from->b_proj_bias, d->c, 1, to.b_proj_bias);
    evo_reference_pack(&from->b_gate_weight, d->c, d->c_z, to.b_gate);
    evo_reference_pack(&from->b_gate_bias, d->c, 1, to.b_gate_bias);
    evo_reference_pack(&from->norm_out_weight, d->c, 1, to.norm_out_weight);
    evo_reference_pack(&from->norm_out_bias, d->c, 1, to.norm_out_bias);
    evo_reference_pack(&from->out_weight, d->c_out, d->c, to.out);
    evo_reference_pack(&from->out_bias, d->c_out, 1, to.out_bias);
    evo_reference_pack(&from->out_gate_weight, d->c_out, d->c_z, to.out_gate);
    evo_reference_pack(&from->out_gate_bias, d->c_out, 1, to.out_gate_bias);
    return EVO_OK;
}

/* In the workspace: a and b [N, N, channels of a group], then t [rows of a block, N, c]. */
typedef struct buffers {
    double *a, *b, *t;
} buffers;

static buffers map_buffers(const evo_call *call) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const int64_t group = d->n * d->n * call->form->schedule.channels;
    double *first = evo_reference_buffers(call);
    return (buffers){ first, first + group, first + 2 * group };
}

static int64_t position(const evo_tensor *layout, int64_t b, int64_t i, int64_t j) {
    return b * layout->strides[0] + i * layout->strides[1] + j * layout->strides[2];
}

/* a[i, k, :] = mask * (W_ap x + b_ap) * sigmoid(W_ag x + b_ag), b likewise, for the channels of the tile. */
static void project_position(const evo_call *call, const weights *w, const evo_tile *tile, int64_t i, int64_t k,
                             double *a, double *b) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const int64_t first = tile->channels.begin, count = tile->channels.end - first, n_b = tile->batch.begin;
    double *x = evo_reference_scratch(call), *gate = x + d->c_z; /* [c_z], [c] */
    const double mask = evo_reference_mask(&d->mask, call->args.trimul.mask, position(&d->mask, n_b, i, k));
    evo_reference_read(&d->z, call->args.trimul.z, position(&d->z, n_b, i, k), d->z.strides[3], d->c_z, x);
    evo_reference_layer_norm(x, d->c_z, d->layer_norm_eps, w->norm_in_weight, w->norm_in_bias, x);
    evo_reference_linear(x, d->c_z, w->a_proj, d->c, first, count, w->a_proj_bias, a);
    evo_reference_linear(x, d->c_z, w->a_gate, d->c, first, count, w->a_gate_bias, gate);
    for (int64_t h = 0; h < count; h++) a[h] *= mask * evo_reference_sigmoid(gate[h]);
    evo_reference_linear(x, d->c_z, w->b_proj, d->c, first, count, w->b_proj_bias, b);
    evo_reference_linear(x, d->c_z, w->b_gate, d->c, first, count, w->b_gate_bias, gate);
    for (int64_t h = 0; h < count; h++) b[h] *= mask * evo_reference_sigmoid(gate[h]);
}

static evo_status project(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const weights w = map_weights(d, call->pack);
    const buffers to = map_buffers(call);
    const int64_t group = call->form->schedule.channels;
    const int threads = evo_reference_threads(call, d->n, d->n, 4 * d->c_z, group);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t i = 0; i < d->n; i++)
        for (int64_t k = 0; k < d->n; k++)
            project_position(call, &w, tile, i, k, to.a + (i * d->n + k) * group, to.b + (i * d->n + k) * group);
    return EVO_OK;
}

/* t[:] = sum over k of a[k, :] * b[k, :], where a step of k is `stride` doubles. */
static void sum_products(const double *restrict a, const double *restrict b, int64_t stride, int64_t n, int64_t count,
                         double *restrict t) {
    for (int64_t h = 0; h < count; h++) t[h] = 0.0;
    for (int64_t k = 0; k < n; k++)
        for (int64_t h = 0; h < count; h++) t[h] += a[k * stride + h] * b[k * stride + h];
}

/* Outgoing: t_ij = sum over k of a_ik * b_jk; incoming: a_ki * b_kj. */
static evo_status contract(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const buffers w = map_buffers(call);
    const int64_t group = call->form->schedule.channels, count = tile->channels.end - tile->channels.begin;
    const bool outgoing = d->direction == EVO_OUTGOING;
    const int64_t start = (outgoing ? d->n : 1) * group, stride = (outgoing ? 1 : d->n) * group;
    const int threads = evo_reference_threads(call, tile->rows.end - tile->rows.begin, d->n, d->n, count);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t i = tile->rows.begin; i < tile->rows.end; i++)
        for (int64_t j = 0; j < d->n; j++)
            sum_products(w.a + i * start, w.b + j * start, stride, d->n, count,
                         w.t + ((i - tile->rows.begin) * d->n + j) * d->c + tile->channels.begin);
    return EVO_OK;
}

/* out_ij = [residual_ij +] sigmoid(W_g x_ij + b_g) * (W_o LayerNorm_out(t_ij) + b_o), or z_ij in place of x_ij. */
static void finish_pair(const evo_call *call, const weights *w, int64_t b, int64_t i, int64_t j, const double *t) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    double *x = evo_reference_scratch(call);                               /* [c_z] */
    double *normed = x + d->c_z, *y = normed + d->c, *gate = y + d->c_out; /* [c], [c_out], [c_out] */
    evo_reference_read(&d->z, call->args.trimul.z, position(&d->z, b, i, j), d->z.strides[3], d->c_z, x);
    if (d->gate_input == EVO_GATE_NORMED)
        evo_reference_layer_norm(x, d->c_z, d->layer_norm_eps, w->norm_in_weight, w->norm_in_bias, x);
    evo_reference_layer_norm(t, d->c, d->layer_norm_eps, w->norm_out_weight, w->norm_out_bias, normed);
    evo_reference_linear(normed, d->c, w->out, d->c_out, 0, d->c_out, w->out_bias, y);
    evo_reference_linear(x, d->c_z, w->out_gate, d->c_out, 0, d->c_out, w->out_gate_bias, gate);
    for (int64_t q = 0; q < d->c_out; q++) {
        double value = evo_reference_sigmoid(gate[q]) * y[q];
        if (d->residual.dtype != EVO_NONE)
            value += evo_load(call->args.trimul.residual, d->residual.dtype,
                              position(&d->residual, b, i, j) + q * d->residual.strides[3]);
        evo_store(call->args.trimul.out, d->out.dtype, position(&d->out, b, i, j) + q * d->out.strides[3], value);
    }
}

static evo_status finish(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const weights w = map_weights(d, call->pack);
    const double *t = map_buffers(call).t;
    const int threads = evo_reference_threads(call, tile->rows.end - tile->rows.begin, d->n, d->c + d->c_z, d->c_out);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t i = tile->rows.begin; i < tile->rows.end; i++)
        for (int64_t j = 0; j < d->n; j++)
            finish_pair(call, &w, tile->batch.begin, i, j, t + ((i - tile->rows.begin) * d->n + j) * d->c);
    return EVO_OK;
}

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    (void)device;
    const evo_trimul_desc *d = &problem->desc.trimul;
    const evo_tensor *const tensors[] = { &d->z, &d->residual, &d->out };
    return evo_reference_supports(problem, d->compute, tensors, 3, why);
}

static int64_t workspace_bytes(const evo_trimul_desc *d, int64_t rows, int64_t channels, int64_t threads,
                               int64_t scratch) {
    const int64_t sides = evo_product(2, d->n, d->n, channels), t = evo_product(rows, d->n, d->c, 1);
    int64_t doubles = -1;
    if (sides >= 0 && t >= 0 && !evo_add(sides, t, &doubles)) doubles = -1;
    return evo_reference_bytes(doubles, threads, scratch);
}

/*
 * Halves t's rows first (no work is done twice), then with all rows the channels (LayerNorm is repeated a group), then the
 * rows of a single channel (each group is projected once a block, which needs z unchanged), then the threads.
 */
static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_trimul_desc *d = &problem->desc.trimul;
    const int64_t limit =
        d->workspace_limit && d->workspace_limit < INT64_MAX ? (int64_t)d->workspace_limit : INT64_MAX - 1;
    int64_t rows = d->n, channels = d->c, threads = evo_cpu_threads(device), scratch;
    bool countable =
        evo_add(d->c_z, d->c, &scratch) && evo_add(scratch, d->c_out, &scratch) && evo_add(scratch, d->c_out, &scratch);
    if (!countable) scratch = -1;
    while (rows > 1 && workspace_bytes(d, rows, channels, threads, scratch) > limit) rows = (rows + 1) / 2;
    if (workspace_bytes(d, rows, channels, threads, scratch) > limit) rows = d->n;
    while (channels > 1 && workspace_bytes(d, rows, channels, threads, scratch) > limit) channels = (channels + 1) / 2;
    const bool repeatable = !(d->alias & EVO_ALIAS_INPUT); /* else finished rows of out have replaced those of z */
    while (repeatable && rows > 1 && workspace_bytes(d, rows, channels, threads, scratch) > limit)
        rows = (rows + 1) / 2;
    if (workspace_bytes(d, rows, channels, threads, scratch) > limit) threads = 1;

    const int64_t bytes = workspace_bytes(d, rows, channels, threads, scratch);
    const evo_status status = evo_reference_settle(form, bytes, threads, scratch, d->workspace_limit);
    if (status != EVO_OK) return status;
    form->pack_size = (size_t)pack_doubles(d) * sizeof(double);
    form->schedule = (evo_schedule){ 1, rows > 0 ? rows : 1, d->n, channels };
    return EVO_OK;
}

const evo_kernel evo_cpu_trimul_reference = {
    .name = "reference",
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack,
               [EVO_STAGE_TRIMUL_PROJECT] = project,
               [EVO_STAGE_TRIMUL_CONTRACT] = contract,
               [EVO_STAGE_TRIMUL_FINISH] = finish },
};
