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

/* --- Tier `tensor` --- */

enum {
    GPU_TENSOR_ROWS = 128,    /* packed rows of a block of project: 64 channels and their gates */
    GPU_TENSOR_TILE = 128,    /* contract: rows and columns of t of a block, */
    GPU_TENSOR_TALL = 256,    /* or so many rows, where a block has room for their stages */
    GPU_TENSOR_COLUMNS = 128, /* finish: output channels at a time */
    GPU_TENSOR_HIDDEN = 128,  /* the most channels of t */
    GPU_TENSOR_STAGES = 3,    /* of project and finish, where copies are asynchronous; else 2, */
    GPU_SPLIT_STAGES = 2,     /* as in finish of split numbers, of which two blocks fit a multiprocessor so */
    GPU_CONTRACT_STAGES = 4,
    GPU_MASK_ROW = 64,                /* elements of a row to which project finds masks' exponents itself */
    GPU_PROJECT_WHOLE_WAVES = 12,     /* of a block of project that keeps all weights, */
    GPU_PROJECT_WHOLE_POSITIONS = 32, /* and what each takes at a time */
    GPU_FINISH_WHOLE_WAVES = 12,      /* likewise of finish: */
    GPU_FINISH_WHOLE_TILES = 3,       /* so many tiles of t */
    GPU_FINISH_WHOLE_LENGTH = 64,     /* of so many positions are shared by them, */
    GPU_FINISH_WHOLE_BLOCKS = 1,      /* and so many blocks a multiprocessor */
    GPU_TRIMUL_WAVES =
        8 /* of a block of project, finish and the tall contract where copies are asynchronous; else GPU_BLOCK_WAVES */
};

/*
 * evo_trimul_project_<type>_<positions>: a and b, each channel a matrix [i][k], whatever the direction. Position
 * m = i * pitch + k is (i, k) of `source` and `mask`; those with k >= n are written as zeros. Packed rows of a side come in
 * tiles of 32: 16 channels, then their gates. Grid x: positions, y: parts of the chunks of 64 channels, z: batch.
 */
typedef struct gpu_tensor_project_params {
    gpu_tensor source;       /* [batch, i, k, channel] */
    gpu_tensor mask;         /* [batch, i, k] */
    const float *norm;       /* as evo_tensor_pack_norm lays it, zeros to a multiple of 128 */
    const void *weight;      /* [side][side_rows][depth], and a chunk of rows more that may be read */
    const float *table;      /* [side][side_rows / 2][4]: scale and bias of a channel, and of its gate */
    int32_t *mask_exponents; /* [batch][i]: numbers of row i are divided by these powers of two; NULL: by 1 */
    void *target[2];
    int64_t target_batch, channel_stride; /* elements */
    int64_t positions, batch_begin;
    int32_t n, pitch, channels, depth;
    int32_t side_rows, group_begin, group; /* channels to compute, from group_begin (a multiple of 16) on */
    int32_t chunks_per_side, chunks_per_block;
    int32_t whole_rows, blocks; /* packed rows of a side of the group, blocks in x: where all weights stay */
    float eps;
    int32_t finds_exponents; /* project itself writes mask_exponents: not where all weights stay */
} gpu_tensor_project_params;

/* Where t is: element (channel h, i, j) at i * row + j / length * tile + h * (the tile's own length) + j % length. */
typedef struct gpu_t_layout {
    int64_t batch, row, tile; /* elements */
    int32_t length;           /* positions of a tile, a power of two */
    int32_t tiles;            /* of a row */
    int32_t last_length;      /* of the last tile of a row */
    int32_t unused;
} gpu_t_layout;

/* evo_trimul_contract_[tall_]<type>: t[h][i][j] = scale * sum over k of a[h][i][k] * b[h][j][k]. Grid x: tiles, y: channels, z: batch. */
typedef struct gpu_tensor_contract_params {
    const void *a, *b; /* [channel][n][pitch], a from the first row on */
    void *t;           /* its first channel and row are this launch's, but for the tiles' lengths: see `channel` */
    gpu_t_layout layout;
    int64_t side_batch, side_channel; /* elements */
    int32_t n, pitch, rows;
    int32_t channel; /* what t calls the first channel */
    float scale;
    int32_t unused;
} gpu_tensor_contract_params;

/*
 * evo_trimul_finish_<type>_<positions>: out = [residual +] sigmoid(gate) * (W_o LayerNorm(t) + b_o). A block takes one tile of
 * t. Grid x: tiles of a row, y: rows, z: batch.
 */
typedef struct gpu_tensor_finish_params {
    gpu_tensor z, residual, out; /* [batch, i, j, channel] */
    const void *t;
    gpu_t_layout layout;
    const float *norm_t;              /* [c_depth, and zeros to 128][4]: weight, bias, factor of the stored number */
    const float *norm_z;              /* as project's norm */
    const void *weight, *gate_weight; /* [rows][c_depth], [rows][depth]; rows: c_out rounded up to GPU_TENSOR_COLUMNS */
    const float *table;               /* [rows][4]: scale and bias of the projection, and of the gate */
    const int32_t *mask_exponents;    /* as in project */
    int64_t row_begin, batch_begin;
    int32_t n, c_z, depth, c, c_depth, c_out;
    int32_t raw_gate, scaled; /* scaled: raw rows of z are scaled to fit fp16 */
    int32_t rows, blocks;     /* rows of the launch, blocks in x: where all weights stay */
    float eps, t_scale;
} gpu_tensor_finish_params;

#endif
