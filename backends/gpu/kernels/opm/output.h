/* output.h: the last step of both contraction orders of the outer product mean. */
#ifndef EVO_BACKENDS_GPU_KERNELS_OPM_OUTPUT_H
#define EVO_BACKENDS_GPU_KERNELS_OPM_OUTPUT_H

#include "backends/gpu/kernels/numbers.h"
#include "backends/gpu/kernels/opm/params.h"

/* The share of the count of pair (i, j) that sequences first, first + step ... have. */
EVO_DEVICE float count_share(const gpu_opm_output &o, int64_t i, int64_t j, int first, int step) {
    if (o.mask.dtype == GPU_NONE) return first < o.s ? static_cast<float>((o.s - 1 - first) / step + 1) : 0.0f;
    const int64_t batch = o.batch_begin + block_z();
    const int64_t at_i = batch * o.mask.strides[0] + i * o.mask.strides[2];
    const int64_t at_j = batch * o.mask.strides[0] + j * o.mask.strides[2];
    float count = 0.0f;
    for (int s = first; s < o.s; s += step)
        count = multiply_add(load_number(o.mask.data, o.mask.dtype, at_i + s * o.mask.strides[1]),
                             load_number(o.mask.data, o.mask.dtype, at_j + s * o.mask.strides[1]), count);
    return count;
}

/* n = max(count + eps, min), where a NaN stays one. */
EVO_DEVICE float normaliser(const gpu_opm_output &o, float count) {
    const float n = count + o.count_eps;
    return n < o.count_min ? o.count_min : n;
}

/* Adds the residual, if there is one, to channels q ... q + 3 of pair (i, j). */
EVO_DEVICE void add_residual(const gpu_opm_output &o, int64_t batch, int64_t i, int64_t j, int q, float (&y)[4]) {
    if (o.residual.dtype == GPU_NONE) return;
    const int64_t *strides = o.residual.strides;
    float x[4];
    load_four(o.residual, batch * strides[0] + i * strides[1] + j * strides[2] + q * strides[3], o.c_z - q, x);
    EVO_UNROLL
    for (int e = 0; e < 4; e++) y[e] += x[e];
}

/* Writes channels q ... q + 3 of pair (i, j) from their sums. */
EVO_DEVICE void write_pair(const gpu_opm_output &o, int64_t i, int64_t j, int q, float n, const float (&sum)[4]) {
    const int64_t batch = o.batch_begin + block_z();
    float y[4];
    EVO_UNROLL
    for (int e = 0; e < 4; e++) {
        const float bias = o.bias[q + e];
        y[e] = o.divide_after ? (sum[e] + bias) / n : sum[e] / n + bias;
    }
    add_residual(o, batch, i, j, q, y);
    const int64_t *strides = o.out.strides;
    store_four(o.out, batch * strides[0] + i * strides[1] + j * strides[2] + q * strides[3], o.c_z - q, y);
}

#endif
