/* params.h: the parameters of the triangle multiplication's kernels; layouts of its buffers. */
#ifndef EVO_BACKENDS_GPU_KERNELS_TRIMUL_PARAMS_H
#define EVO_BACKENDS_GPU_KERNELS_TRIMUL_PARAMS_H

#include "backends/gpu/kernels/params.h"

enum {
    GPU_CONTRACT_TILE = 128,
    GPU_CONTRACT_THREADS = 128,
    GPU_CONTRACT_SHARED = 96 * 1024, /* bytes; the small form is for chips with less */
    GPU_CONTRACT_SMALL_THREADS = 256,
    GPU_CONTRACT_SMALL_SHARED = 32 * 1024,
    GPU_FINISH_ROWS = 64, /* positions of a block */
    GPU_FINISH_COLUMNS = 128,
    GPU_COPY_THREADS = 256
};

/*
 * evo_trimul_contract: t[h][i][j] = sum over k of a[h][k][i] * b[h][k][j]. Grid x: tiles of i and j; y: channels; z: batch.
 * a, b [group][n][pitch], a's first column being i = row_begin; t [c][rows][pitch], its first channel the group's.
 */
typedef struct gpu_contract_params {
    const float *a, *b;
    float *t;
    int64_t side_batch, t_batch, side_channel, t_channel; /* floats from one batch entry or channel to the next */
    int32_t n, pitch;
    int32_t rows, unused;
} gpu_contract_params;

/*
 * evo_trimul_finish: out = [residual +] sigmoid(gate) * (W_o LayerNorm(t) + b_o) for positions (i, j), numbered
 * (i - row_begin) * pitch + j.
 */
typedef struct gpu_finish_params {
    gpu_tensor z, residual, out; /* [batch, i, j, channel]; out may be a staging buffer with its own strides */
    const float *t;              /* [c][rows][pitch] */
    const float *norm_t_weight, *norm_t_bias; /* [c], rounded up to GPU_STAGE_DEPTH with zeros */
    const float *norm_z_weight, *norm_z_bias; /* [c_z], likewise */
    const float *weight, *gate_weight;        /* [c][width], [c_z][width] */
    const float *bias, *gate_bias;            /* [width] */
    int64_t t_batch, t_channel, positions;
    int64_t row_begin, batch_begin;
    int64_t out_row_begin, out_batch_begin; /* what `out` calls these; 0 in a staging buffer */
    int32_t n, pitch;
    int32_t c_z, c, c_out, width; /* width: c_out rounded up to 4 */
    int32_t raw_gate, unused;
    float eps_in, eps_out;
} gpu_finish_params;

/* evo_trimul_copy: out[batch, i, j, q] = staging[batch][i - row_begin][j][q]. */
typedef struct gpu_copy_params {
    gpu_tensor out;
    const float *staging;
    int64_t row_begin, batch_begin, rows, elements; /* elements of one batch entry */
    int32_t n, c_out;
} gpu_copy_params;

#endif
