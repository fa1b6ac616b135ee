/* opm_reference.c: the outer product mean as docs/ops.md writes it, in double. */
#include "backends/cpu/reference.h"

/* The packed weights: matrices as [in, out]. */
typedef struct weights {
    double *norm_weight, *norm_bias; /* [c_m] */
    double *a, *a_bias;              /* [c_m, c], [c] */
    double *b, *b_bias;
    double *out, *out_bias; /* [c * c, c_z], [c_z] */
} weights;

static int64_t pack_doubles(const evo_opm_desc *d) {
    return 2 * d->c_m + 2 * (d->c_m * d->c + d->c) + d->c * d->c * d->c_z + d->c_z;
}

static weights map_weights(const evo_opm_desc *d, void *pack) {
    double *next = pack;
    weights w;
    w.norm_weight = evo_reference_take(&next, d->c_m);
    w.norm_bias = evo_reference_take(&next, d->c_m);
    w.a = evo_reference_take(&next, d->c_m * d->c);
    w.a_bias = evo_reference_take(&next, d->c);
    w.b = evo_reference_take(&next, d->c_m * d->c);
    w.b_bias = evo_reference_take(&next, d->c);
    w.out = evo_reference_take(&next, d->c * d->c * d->c_z);
    w.out_bias = evo_reference_take(&next, d->c_z);
    return w;
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_opm_weights *from = &call->args.opm_weights;
    const weights to = map_weights(d, call->pack);
    evo_reference_pack(&from->norm_weight, d->c_m, 1, to.norm_weight);
    evo_reference_pack(&from->norm_bias, d->c_m, 1, to.norm_bias);
    evo_reference_pack(&from->a_weight, d->c, d->c_m, to.a);
    evo_reference_pack(&from->a_bias, d->c, 1, to.a_bias);
    evo_reference_pack(&from->b_weight, d->c, d->c_m, to.b);
    evo_reference_pack(&from->b_bias, d->c, 1, to.b_bias);
    evo_reference_pack(&from->out_weight, d->c_z, d->c * d->c, to.out);
    evo_reference_pack(&from->out_bias, d->c_z, 1, to.out_bias);
    return EVO_OK;
}

static double mask_at(const evo_call *call, int64_t b, int64_t s, int64_t i) {
    const evo_tensor *mask = &call->problem->desc.opm.mask;
    return evo_reference_mask(mask, call->args.opm.mask,
                              b * mask->strides[0] + s * mask->strides[1] + i * mask->strides[2]);
}

/* side[i, s, :] = mask * (W LayerNorm(m[b, s, i, :]) + bias) for the residues of `range`; [range, S, c]. */
static void project_side(const evo_call *call, int64_t b, evo_range range, const double *matrix, const double *bias,
                         bool masked, double *side) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const int64_t *strides = d->m.strides;
    const weights w = map_weights(d, call->pack);
    const int threads = evo_reference_threads(call, range.end - range.begin, d->s, d->c_m, d->c);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t i = range.begin; i < range.end; i++)
        for (int64_t s = 0; s < d->s; s++) {
            double *x = evo_reference_scratch(call); /* [c_m] */
            double *target = side + ((i - range.begin) * d->s + s) * d->c;
            const double mask = masked ? mask_at(call, b, s, i) : 1.0;
            evo_reference_read(&d->m, call->args.opm.m, b * strides[0] + s * strides[1] + i * strides[2], strides[3],
                               d->c_m, x);
            evo_reference_layer_norm(x, d->c_m, d->layer_norm_eps, w.norm_weight, w.norm_bias, x);
            evo_reference_linear(x, d->c_m, matrix, d->c, 0, d->c, bias, target);
            for (int64_t h = 0; h < d->c; h++) target[h] *= mask;
        }
}

/* In the workspace: a [rows of a tile, S, c], then b [columns of a tile, S, c]. */
static double *buffer_b(const evo_call *call) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    return evo_reference_buffers(call) + call->form->schedule.rows * d->s * d->c;
}

static evo_status project(const evo_call *call, const evo_tile *tile) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const weights w = map_weights(d, call->pack);
    const int64_t b = tile->batch.begin;
    project_side(call, b, tile->rows, w.a, w.a_bias, true, evo_reference_buffers(call));
    project_side(call, b, tile->cols, w.b, w.b_bias, d->mask_sides == EVO_MASK_BOTH, buffer_b(call));
    return EVO_OK;
}

/* n = max(count + eps, min), where a NaN in the mask stays one. */
static double normaliser(const evo_call *call, int64_t b, int64_t i, int64_t j) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    double count = 0.0;
    for (int64_t s = 0; s < d->s; s++) count += mask_at(call, b, s, i) * mask_at(call, b, s, j);
    count += d->count_eps;
    return count < d->count_min ? d->count_min : count;
}

/* o = sum over s of a[s, :] (outer product) b[s, :], [c, c]. */
static void outer_product(const double *restrict a, const double *restrict b, int64_t s_count, int64_t c,
                          double *restrict o) {
    for (int64_t p = 0; p < c * c; p++) o[p] = 0.0;
    for (int64_t s = 0; s < s_count; s++)
        for (int64_t h = 0; h < c; h++)
            for (int64_t g = 0; g < c; g++) o[h * c + g] += a[s * c + h] * b[s * c + g];
}

static void outer_pair(const evo_call *call, const weights *w, int64_t b, int64_t i, int64_t j, const double *a_i,
                       const double *b_j) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const int64_t pairs = d->c * d->c, *out = d->out.strides, *res = d->residual.strides;
    double *o = evo_reference_scratch(call), *z = o + pairs; /* [c * c], [c_z] */
    const double n = normaliser(call, b, i, j);
    outer_product(a_i, b_j, d->s, d->c, o);
    if (d->divide == EVO_DIVIDE_BEFORE)
        for (int64_t p = 0; p < pairs; p++) o[p] /= n;
    evo_reference_linear(o, pairs, w->out, d->c_z, 0, d->c_z, w->out_bias, z);
    for (int64_t q = 0; q < d->c_z; q++) {
        if (d->divide == EVO_DIVIDE_AFTER) z[q] /= n;
        if (d->residual.dtype != EVO_NONE)
            z[q] +=
                evo_load(call->args.opm.residual, d->residual.dtype, b * res[0] + i * res[1] + j * res[2] + q * res[3]);
        evo_store(call->args.opm.out, d->out.dtype, b * out[0] + i * out[1] + j * out[2] + q * out[3], z[q]);
    }
}

static evo_status outer(const evo_call *call, const evo_tile *tile) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const weights w = map_weights(d, call->pack);
    const double *a = evo_reference_buffers(call), *b = buffer_b(call);
    const int64_t residue = d->s * d->c;
    const int64_t rows = tile->rows.end - tile->rows.begin, cols = tile->cols.end - tile->cols.begin;
    const int threads = evo_reference_threads(call, rows, cols, d->c * d->c, d->s + d->c_z);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t i = tile->rows.begin; i < tile->rows.end; i++)
        for (int64_t j = tile->cols.begin; j < tile->cols.end; j++)
            outer_pair(call, &w, tile->batch.begin, i, j, a + (i - tile->rows.begin) * residue,
                       b + (j - tile->cols.begin) * residue);
    return EVO_OK;
}

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    (void)device;
    const evo_opm_desc *d = &problem->desc.opm;
    const evo_tensor *const tensors[] = { &d->m, &d->residual, &d->out };
    return evo_reference_supports(problem, d->compute, tensors, 3, why);
}

/* Tiles of rows and columns shrink by halves, then the threads, until a and b fit the limit. */
static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_opm_desc *d = &problem->desc.opm;
    int64_t rows = d->n, cols = d->n, threads = evo_cpu_threads(device), bytes;
    int64_t scratch = evo_product(d->c, d->c, 1, 1);
    if (scratch >= 0 && !evo_add(scratch, d->c_z, &scratch)) scratch = -1;
    if (scratch >= 0 && scratch < d->c_m) scratch = d->c_m;
    for (;;) {
        int64_t residues;
        const bool countable = evo_add(rows, cols, &residues);
        bytes = evo_reference_bytes(countable ? evo_product(residues, d->s, d->c, 1) : -1, threads, scratch);
        if ((size_t)bytes <= d->workspace_limit || !d->workspace_limit || (rows <= 1 && cols <= 1 && threads == 1))
            break;
        if (rows <= 1 && cols <= 1)
            threads = 1;
        else if (rows > cols)
            rows = (rows + 1) / 2;
        else
            cols = (cols + 1) / 2;
    }
    const evo_status status = evo_reference_settle(form, bytes, threads, scratch, d->workspace_limit);
    if (status != EVO_OK) return status;
    form->pack_size = (size_t)pack_doubles(d) * sizeof(double);
    form->schedule = (evo_schedule){ 1, rows > 0 ? rows : 1, cols > 0 ? cols : 1, d->c };
    return EVO_OK;
}

const evo_kernel evo_cpu_opm_reference = {
    .name = "reference",
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack, [EVO_STAGE_OPM_PROJECT] = project, [EVO_STAGE_OPM_OUTER] = outer },
};
