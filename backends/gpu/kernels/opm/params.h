/* params.h: the parameters of the outer product mean's kernels; layouts of its buffers. */
#ifndef EVO_BACKENDS_GPU_KERNELS_OPM_PARAMS_H
#define EVO_BACKENDS_GPU_KERNELS_OPM_PARAMS_H

#include "backends/gpu/kernels/params.h"

enum {
    GPU_OPM_SIDE = 4, /* a block of the outer kernels takes 4 x 4 pairs (i, j) */
    GPU_OPM_PAIRS = GPU_OPM_SIDE * GPU_OPM_SIDE,
    GPU_OPM_COLUMNS = 128, /* channels of the output a block */
    GPU_OPM_BAND = 16,     /* blocks of rows that run side by side, so that operands stay in the cache */
    GPU_OPM_THREADS = 128,
    /* Hidden channels c_a, and c_b, at a time; bytes of shared memory. The small form is for chips with less than that. */
    GPU_OPM_HIDDEN = 32,
    GPU_OPM_SHARED = 96 * 1024 + 512,
    GPU_OPM_SMALL_HIDDEN = 16,
    GPU_OPM_SMALL_SHARED = 32 * 1024 + 512
};

/* What turns a sum over S into an output: normaliser, bias, residual. */
typedef struct gpu_opm_output {
    gpu_tensor mask;          /* [B, S, N] */
    gpu_tensor residual, out; /* [B, N, N, c_z] */
    const float *bias;        /* [z_pitch], packed */
    int64_t batch_begin;
    int32_t s, c_z;
    int32_t divide_after; /* 1: the bias is divided too */
    float count_eps, count_min;
    int32_t unused;
} gpu_opm_output;

/*
 * evo_opm_outer: sum over S, then over (c_a, c_b), for pairs of rows and columns.
 * a [S][row blocks of 4][c4][4 rows], b likewise of the columns; weight [c][c][z_pitch].
 */
typedef struct gpu_opm_outer_params {
    gpu_opm_output output;
    const float *a, *b, *weight;
    int64_t a_batch, b_batch;     /* floats from one batch entry to the next */
    int64_t row_begin, col_begin; /* of the tile in the output */
    int32_t row_count, col_count; /* a and b hold these, rounded up to 4 */
    int32_t c, c4;                /* c4: c rounded up to 4 */
    int32_t z_pitch, unused;      /* c_z rounded up to 4 */
} gpu_opm_outer_params;

/*
 * evo_opm_weigh: u[i][c_b * S + s][q] = sum over c_a of a[s, i, c_a] * weight[c_a][c_b][q].
 * a [c][S][rows, rounded up to 4], rows from u_begin on; u [u_count][c * S][z_pitch].
 */
typedef struct gpu_opm_weigh_params {
    const float *a, *weight;
    float *u;
    int64_t a_batch; /* floats from one batch entry to the next; grid z is the batch entry, u belongs to one */
    int64_t a_pitch; /* floats of one c_a: S * rows4 */
    int32_t rows4, s, c, z_pitch;
    int32_t u_begin, u_count;
} gpu_opm_weigh_params;

/* evo_opm_combine: z[i][j][q] = sum over (c_b, s) of b[c_b, s, j] * u[i][c_b, s][q], then the output. b [c][S][cols4]. */
typedef struct gpu_opm_combine_params {
    gpu_opm_output output;
    const float *b, *u;
    const float *a, *weight; /* as in evo_opm_weigh, a from u's first row on */
    int64_t a_pitch;
    int64_t row_begin, col_begin; /* of u's first row and b's first column in the output */
    int32_t row_count, col_count;
    int32_t cols4, depth; /* depth = c * S */
    int32_t z_pitch, rows4;
} gpu_opm_combine_params;

#endif
