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

/* --- Tier `tensor` --- */

enum {
    GPU_OPM_TENSOR_PAIRS = 256,                         /* of a block of the outer kernels, at most */
    GPU_OPM_PAIR_BYTES = 8 * GPU_OPM_TENSOR_PAIRS + 32, /* what it notes about them */
    GPU_OPM_TENSOR_HIDDEN = 32,                         /* c_b at a time */
    GPU_OPM_TENSOR_COLUMNS = 128,                       /* channels of the output a block */
    GPU_OPM_TENSOR_THREADS = 256,
    GPU_OPM_TENSOR_POSITIONS =
        64, /* of a block of the project kernel (half as many of four bytes); and its channels at a time */
    GPU_OPM_TENSOR_STEP = 128, /* bytes of S a stage */
    GPU_OPM_TENSOR_PAD = 16,   /* bytes between rows in shared memory, against bank conflicts */
    GPU_OPM_TENSOR_BAND = 8,   /* blocks of rows that run side by side */
    GPU_OPM_WEIGH_ROWS = 128,  /* (q, c_b) and positions of a block of the weigh kernel */
    GPU_OPM_WEIGH_COLS = 64,
    GPU_OPM_COMBINE_ROWS = 64, /* j and channels of a block of the combine kernel */
    GPU_OPM_COMBINE_COLS = 128,
    /* fp16: the weights' scales keep |a| and |b| below 2^15; 2^-12 of that is stored, so that masks of some thousand fit. */
    GPU_OPM_TENSOR_SHIFT = 12,
    GPU_OPM_TENSOR_HALF = 15 - GPU_OPM_TENSOR_SHIFT
};

/*
 * Forms of the outer kernels: rows i and columns j of a block, c_a at a time, stages of a, slices of W_o. Large and tall where shared
 * memory has room; sums of split numbers take registers twice.
 */
#define GPU_OPM_SMALL 64, 4, 1, 2, 2
#define GPU_OPM_SMALL_SPLIT 64, 4, 1, 2, 1
#define GPU_OPM_LARGE 64, 4, 2, 3, 2
#define GPU_OPM_LARGE_SPLIT 64, 4, 1, 3, 2
#define GPU_OPM_TALL_SPLIT 128, 2, 1, 3, 2

/* Their dynamic shared memory, in bytes: what is fixed for a form (bytes: of a number), and with `chunk` bytes of each row of b's tile. */
#define GPU_OPM_TENSOR_FIXED(rows, sides, stages, slices, bytes)                                                      \
    (GPU_OPM_PAIR_BYTES +                                                                                             \
     (slices) * (sides) * GPU_OPM_TENSOR_COLUMNS * (GPU_OPM_TENSOR_HIDDEN * (bytes) + GPU_OPM_TENSOR_PAD) +           \
     (stages) * (sides) * (rows) * (GPU_OPM_TENSOR_STEP + GPU_OPM_TENSOR_PAD))
#define GPU_OPM_TENSOR_TILE(cols, chunk) ((cols) * GPU_OPM_TENSOR_HIDDEN * ((chunk) + GPU_OPM_TENSOR_PAD))

/* Of the kernels whose blocks have GPU_BLOCK_WAVES waves: a block's positions with a row of `row` bytes each; two stages. */
#define GPU_OPM_TENSOR_PROJECT_SHARED(positions, row, bytes)                                                          \
    (2 * GPU_OPM_TENSOR_POSITIONS * 4 + (positions) * ((row) + 16) + GPU_OPM_TENSOR_RING(positions, bytes))
#define GPU_OPM_TENSOR_RING(positions, bytes)                                                                         \
    (64 * ((positions) * (bytes) + 16) > 2 * 64 * GPU_STAGE_PITCH ? 64 * ((positions) * (bytes) + 16)                 \
                                                                  : 2 * 64 * GPU_STAGE_PITCH)
#define GPU_OPM_WEIGH_SHARED (2 * (GPU_OPM_WEIGH_ROWS + GPU_OPM_WEIGH_COLS) * GPU_STAGE_PITCH)
#define GPU_OPM_COMBINE_SHARED (1024 + 2 * (GPU_OPM_COMBINE_ROWS + GPU_OPM_COMBINE_COLS) * GPU_STAGE_PITCH)

/*
 * evo_opm_tensor_project: a and b in 16 bits or as split numbers. Position m is (i, s), s padded to s_pad: m = i * s_pad + s. Element
 * (channel, i, s) of a side goes to target[side] + channel * channel_stride + i * row_stride + s * s_stride; s_stride is 1
 * unless channel_stride is. Rows of `weight` are a's channels, then b's, rounded up to 64 together.
 */
typedef struct gpu_opm_tensor_project_params {
    gpu_tensor source, mask; /* [B, S, N, c_m], [B, S, N] */
    const float *norm;       /* as evo_tensor_pack_norm lays it */
    const void *weight;      /* [rows][depth] of T */
    const float *table;      /* [rows][4]: factor, bias: factor * sum + bias */
    void *target[2];
    int64_t target_batch[2], channel_stride[2], row_stride[2], s_stride[2]; /* in elements */
    int64_t positions, batch_begin, inner_begin;
    int32_t s, s_pad, c, c_m;
    int32_t depth;                       /* c_m rounded up, so that a row is a multiple of GPU_CHUNK_BYTES */
    int32_t first_channel, last_channel; /* of the 2 c */
    int32_t pad;                         /* zeros behind a's channels of a position, where they lie side by side */
    int32_t mask_b;
    float eps, store; /* store: what a and b are multiplied by at last, a power of two */
    int32_t unused;
    const int32_t *mask_exponents; /* [batch][n] from inner_begin on: masks are divided by 2^these; NULL: by 1 */
    int64_t n;
} gpu_opm_tensor_project_params;

/*
 * evo_opm_tensor_outer: outer first. a [c][rows][s_pad] and b [c][cols][s_pad] of T, with zeros past S; weight
 * [blocks of 32 c_b][c_a][z_rows][32] of T.
 */
typedef struct gpu_opm_tensor_outer_params {
    gpu_opm_output output;
    const void *a, *b, *weight;
    const float *z_scale;                           /* [z_rows]: what sums are multiplied by */
    int64_t a_batch, b_batch, a_channel, b_channel; /* in elements */
    int64_t row_begin, col_begin;
    int32_t row_count, col_count, c, s_pad;
    int32_t chunk;         /* numbers of S that b's tile holds at once, a multiple of a step */
    int32_t z_rows;        /* c_z rounded up to 16 */
    int32_t mask_b;        /* 1: b carries the mask too */
    int32_t mask_exponent; /* fp16: a and b are 2^-mask_exponent times what the weights' scales say, for each side */
    uint32_t
        whole; /* blocks that have a tile each: [batch][groups of channels of z][tiles]; later ones have half a tile */
    const int32_t
        *mask_exponents; /* fp32: [batch][n], a and b are divided by 2^theirs where they are masked; NULL: by 1 */
    int64_t n;
} gpu_opm_tensor_outer_params;

/*
 * evo_opm_tensor_weigh: u[i][q * c + c_b][s] = sum over c_a of weight[q * c + c_b][c_a] * a[i * s_pad + s][c_a], both with
 * c_pad numbers a row, zeros past c. Positions from i = 0 on: `a` points at the block's first row. Grid z is the batch entry.
 */
typedef struct gpu_opm_tensor_weigh_params {
    const void *a, *weight;
    void *u;
    int64_t a_batch, u_batch; /* in elements */
    int32_t rows, positions;  /* z_rows * c; u's rows i * s_pad */
    int32_t s_pad, c_pad, unused[2];
} gpu_opm_tensor_weigh_params;

/* evo_opm_tensor_combine: out[i][j] from u[i][q][depth] and b[j][depth], depth = c * s_pad. Grid: (j, q) blocks, i, batch. */
typedef struct gpu_opm_tensor_combine_params {
    gpu_opm_output output;
    const void *b, *u;
    const float *z_scale;
    int64_t b_batch, u_batch; /* in elements */
    int64_t row_begin, col_begin;
    int32_t row_count, col_count, depth, z_rows;
    float scale; /* what sums are multiplied by beside z_scale */
    int32_t unused;
} gpu_opm_tensor_combine_params;

/*
 * evo_opm_tensor_pack_out: W_o for both orders, each of its rows a block's. `scales` are those of a's and b's channels; `outer`
 * holds `together` channels c_a side by side, 1 or 2: [blocks of 32 c_b][c_a / together][z_rows][together][32].
 */
typedef struct gpu_opm_tensor_pack_params {
    gpu_weight source, bias;              /* [c_z, c * c], [c_z] */
    const float *scales;                  /* [2 c], of halves only */
    void *outer, *weigh;                  /* weigh: [z_rows * c][c_pad]; may be NULL */
    float *z_scale, *bias_target;         /* [z_rows] */
    int32_t c, c_pad, c_z, z_rows, dtype; /* dtype: GPU_SPLIT for fp32 */
    float rest;                           /* halves: what z_scale gets beside the row's own scale */
    int32_t together, unused;
} gpu_opm_tensor_pack_params;

/* --- Tier `hopper` --- */

enum {
    GPU_OPM_HOPPER_ROWS = 64, /* a block takes tiles of 64 x 4 pairs (i, j) */
    GPU_OPM_HOPPER_COLS = 4,
    GPU_OPM_HOPPER_HIDDEN = 32, /* c_b at a time */
    GPU_OPM_HOPPER_SHORT = 64   /* s up to which there is one part */
};

/*
 * Instances of the outer kernel: X(type of the output, channels of z a tile, parts of 64 s that pass at once). An output in fp32
 * is one of products in fp16.
 */
#define GPU_HOPPER_OUTER_OF(X, type) X(type, 64, 1) X(type, 64, 2) X(type, 128, 1) X(type, 128, 2)
#define GPU_HOPPER_OUTER(X) GPU_HOPPER_OUTER_OF(X, BF16) GPU_HOPPER_OUTER_OF(X, FP16) GPU_HOPPER_OUTER_OF(X, FP32)

/*
 * Instances of the project kernel: X(type, c_m, warpgroups of a block, tiles of m that each has under way, buffers of results).
 */
#define GPU_HOPPER_OPM_PROJECT_OF(X, type) X(type, 64, 4, 4, 2) X(type, 128, 4, 2, 2) X(type, 256, 3, 1, 2) X(type, 384, 2, 1, 2)
#define GPU_HOPPER_OPM_PROJECT(X) GPU_HOPPER_OPM_PROJECT_OF(X, BF16) GPU_HOPPER_OPM_PROJECT_OF(X, FP16)

enum {
    GPU_HOPPER_OPM_COLUMNS = 64, /* channels of a and b that it multiplies at once; each side has a multiple of 32 */
    GPU_OPM_HOPPER_SQUARED = 16  /* sequences whose masks' squares are summed for fp16's scales */
};

/* evo_hopper_opm_project_*: a and b [batch][c][rows][s_pad] of all sequences of some residues; grid x: persistent blocks. */
typedef struct gpu_opm_hopper_project_params {
    gpu_tensor_map m;      /* [batch, N, S, c_m], boxes of 64 s x 64 channels */
    gpu_tensor_map weight; /* [64 chunks][c_m]: a's channels, then b's, see gpu_hopper_pack_params */
    gpu_tensor_map a, b;   /* [batch, c, rows, S], boxes of 32 c x 64 s */
    gpu_tensor mask;       /* [B, S, N] */
    const uint64_t *bias;  /* [64 chunks][2] */
    int64_t batch_begin, row_begin;
    int32_t s, rows, batch_count;
    int32_t chunks, halves; /* of 64 channels of both sides; of 32 of one */
    int32_t mask_b;
    float eps, store; /* store: what a and b are multiplied by at last, a power of two */
    float *squares;   /* NULL: not wanted; else as in gpu_opm_hopper_params, written */
    int32_t square_parts, residues;
} gpu_opm_hopper_project_params;

/* evo_hopper_opm_squares: the same sums of squares, where another kernel projects; grid x: pieces of GPU_PACK_THREADS of them. */
typedef struct gpu_opm_hopper_squares_params {
    gpu_tensor mask; /* [B, S, N] */
    float *squares;  /* as in gpu_opm_hopper_params */
    int64_t batch_begin;
    int32_t s, square_parts, residues, batch_count;
} gpu_opm_hopper_squares_params;

/* Small modules, in one launch: s and n to these, c_m of CHANNELS, c of 32; a block takes I rows i and Z channels of z. */
enum {
    GPU_HOPPER_SMALL_S = 8,
    GPU_HOPPER_SMALL_N = 32,
    GPU_HOPPER_SMALL_CHANNELS = 64,
    GPU_HOPPER_SMALL_I = 4,
    GPU_HOPPER_SMALL_Z = 8,
    GPU_HOPPER_SMALL_THREADS = 512,
    GPU_HOPPER_SMALL_SHARED = 113 * 1024
};

/* evo_hopper_opm_small_*: from m to the output; grid x: z fastest, then i, then batch entries. */
typedef struct gpu_opm_hopper_small_params {
    gpu_tensor m; /* [B, S, N, c_m], rows of channels in pieces of 16 bytes */
    gpu_opm_output output;
    const void *weight;     /* as project's */
    const void *out_weight; /* [z_rows][c_b][c_a] */
    const uint64_t *bias;   /* as project's */
    const float *z_scale;   /* [z_rows] */
    int32_t n, mask_b;
    float eps, store, scale; /* store: as project's; scale: what sums are multiplied by beside z_scale */
    int32_t unused;
} gpu_opm_hopper_small_params;

/* evo_hopper_outer_*: outer first. a [c][rows][s_pad] and b [c][cols][s_pad]; grid x: persistent blocks. */
typedef struct gpu_opm_hopper_params {
    gpu_tensor_map a; /* [batch, c, rows, s], boxes of 64 rows x 64 s */
    gpu_tensor_map b; /* [batch, cols, c, s], boxes of 4 cols x 32 c x 64 s */
    gpu_tensor_map
        weight; /* [blocks of 32 c_b][c_a / 2][c_z][2 c_a][32 c_b], boxes of a tile's channels of one c_a / 2 */
    gpu_opm_output output;
    const float *z_scale; /* fp16: as in gpu_opm_tensor_outer_params, as mask_b and mask_exponent */
    int64_t row_begin, col_begin;
    int32_t row_count, col_count, batch_count;
    int32_t c, c_a;   /* c_a: c rounded up to 2 */
    int32_t z_groups; /* tiles that share a pair's channels */
    int32_t mask_b, mask_exponent;
    int32_t wide_mask;    /* 1: four residues of the mask are one load */
    const float *squares; /* fp16 with a mask: [batch][parts][residues]: sums over GPU_OPM_HOPPER_SQUARED s of mask^2 */
    int32_t square_parts, residues;
} gpu_opm_hopper_params;

#endif
