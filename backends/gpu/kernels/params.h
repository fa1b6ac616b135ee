/*
 * params.h: what launching code (C) and kernels (device.h) say to each other: every kernel takes one struct of these and of
 * <op>/params.h by value. Fixed-width types only.
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_PARAMS_H
#define EVO_BACKENDS_GPU_KERNELS_PARAMS_H

#include <stdint.h>

/* Number types, with the values of evo_dtype; and what is no caller's: fp32 as two halves (matrix.h). */
enum {
    GPU_NONE = 0,
    GPU_FP64 = 1,
    GPU_FP32 = 2,
    GPU_BF16 = 3,
    GPU_FP16 = 4,
    GPU_UINT8 = 5,
    GPU_SPLIT = 6
};

/* A caller's tensor; strides in elements. */
typedef struct gpu_tensor {
    void *data;
    int64_t strides[4];
    int32_t dtype;
    int32_t vector; /* 1: the last stride is 1 and every fourth element of a row is aligned for a load of four; 2: every
                       eighth is aligned for loads of 16 bytes */
} gpu_tensor;

/* A caller's weight: element [out, in] at data[out * strides[0] + in * strides[1]]; no data: absent. */
typedef struct gpu_weight {
    const void *data;
    int64_t strides[2];
    int32_t dtype;
    int32_t unused;
} gpu_weight;

/* What bulk tensor copies read: made on the host (driver.h), opaque. */
typedef struct gpu_tensor_map {
#ifdef __cplusplus
    alignas(64) uint64_t words[16];
#else
    _Alignas(64) uint64_t words[16];
#endif
} gpu_tensor_map;

/*
 * Packs. One launch does all items that do not wait for each other: a recorded launch costs a graph more than most items'
 * work. An item's blocks begin at `first_block`; every params struct of a pack has `items` and their `count`.
 */
enum {
    GPU_PACK_THREADS = 256,
    GPU_PACK_ITEMS = 18, /* the triangle multiplication's: 6 matrices and their biases, 6 vectors of LayerNorms */
    GPU_PACK_MATRICES = 6
};

/*
 * evo_pack: target[in * pitch + out] = source[out, in], `fill` without a source; 0 for out from `outs` up to `width`. A vector is
 * a matrix with one `in`.
 */
typedef struct gpu_pack_item {
    gpu_weight source;
    float *target;
    int64_t pitch, ins;
    int32_t outs, width, first_block;
    float fill;
} gpu_pack_item;

typedef struct gpu_pack_params {
    gpu_pack_item items[GPU_PACK_ITEMS];
    int32_t count, unused;
} gpu_pack_params;

/*
 * Both ops' project kernels: LayerNorm over the channels of every position, then the product with two sides' weights.
 * A position is (outer, inner), numbered m = outer * inner_padded + inner; those with inner >= inner_count are padding:
 * they give numbers on which no output depends. A logical column is a channel of side a (0 ... group - 1) or b (group ... 2 * group - 1).
 */
typedef struct gpu_project_params {
    gpu_tensor source;                    /* [batch, outer, inner, channel] */
    gpu_tensor mask;                      /* [batch, outer, inner]; GPU_NONE: ones */
    const float *norm_weight, *norm_bias; /* [channels, rounded up to GPU_STAGE_DEPTH with zeros] */
    const float *weight, *gate_weight;    /* [channels][2 * width]: a's columns, then b's */
    const float *bias, *gate_bias;        /* [2 * width] */
    float *target[2]; /* of a, b: element m, channel h at (m / 4) * 4 * position_stride + m % 4 + h * channel_stride */
    int64_t target_batch[2]; /* floats from one batch entry to the next */
    int64_t position_stride, channel_stride;
    int64_t positions;   /* outer extent * inner_padded */
    int64_t inner_begin; /* the first inner index in `source` */
    int64_t batch_begin;
    int32_t inner_count, inner_padded; /* inner_padded is a multiple of 4 */
    int32_t channels, width;           /* width: channels of one side in the pack, a multiple of 4 */
    int32_t group_begin, group;        /* channels of a side to compute, from group_begin on; multiples of 4 */
    int32_t column_begin, column_end;  /* logical columns to compute */
    int32_t columns_per_block;         /* a multiple of the kernel's columns */
    int32_t mask_b;                    /* 1: the mask multiplies b too */
    float eps;
    int32_t unused;
} gpu_project_params;

/* --- Matrix units --- */

enum {
    GPU_BLOCK_WAVES = 4,                    /* waves of a block */
    GPU_CHUNK_BYTES = 64,                   /* of K, of every row, in a stage */
    GPU_STAGE_PITCH = GPU_CHUNK_BYTES + 16, /* bytes from row to row in shared memory */
    GPU_ROW_PAD = 16                        /* bytes behind each row of a whole operand in shared memory */
};

/*
 * evo_tensor_pack_rows: a matrix [outs][ins] as the rows of an operand of `dtype` (GPU_BF16, GPU_FP16 or GPU_SPLIT), each
 * `depth` numbers long with zeros at the end. A block a row; row r goes to packed row r / 16 * tile_rows + r % 16.
 * With GPU_FP16 and GPU_SPLIT rows and columns are scaled (scales.h): columns by the scales of the LayerNorm that feeds them. Of
 * each row table[4 * r] gets the inverse scale and table[4 * r + 1] the bias; if store_scale is there both are multiplied by the
 * row's store scale, which is put into it. Rows from `outs` on are zeros. The halves of an infinity are none: with GPU_SPLIT a row
 * that has some is their signs and zeros, and its inverse scale is infinite.
 */
typedef struct gpu_pack_rows_item {
    gpu_weight source, bias;
    gpu_weight norm_weight, norm_bias; /* of the LayerNorm that feeds the columns */
    void *target;
    float *table, *store_scale;
    int64_t ins, depth;
    int32_t outs, rows, tile_rows, dtype; /* rows: those to be written */
    int32_t normed;                       /* 0: the columns are no LayerNorm's and have no scales */
    int32_t first_block;
} gpu_pack_rows_item;

typedef struct gpu_pack_rows_params {
    gpu_pack_rows_item items[GPU_PACK_MATRICES];
    int32_t count, unused;
} gpu_pack_rows_params;

#define GPU_NORM_GROUP 64

/*
 * evo_tensor_pack_norm: a LayerNorm's weight and bias with their columns' scales; zeros from `channels` up to `width`. With stride 2
 * they lie as norm_rows.h reads them: of each 64 channels the first two of each eight, then the next two of each, [width / 64][4][8][2][2],
 * so that eight lanes of eight channels each read 128 bytes side by side. With stride 4: target[4 * i] and [4 * i + 1], and in
 * [4 * i + 2] the factor that takes the scales of a stored number out of it: 1 / (store_scale[0][i] * store_scale[1][i]).
 */
typedef struct gpu_pack_norm_item {
    gpu_weight weight, bias;
    float *target;
    const float *store_scale[2];
    int32_t channels, width, dtype, stride, first_block, unused;
} gpu_pack_norm_item;

typedef struct gpu_pack_norm_params {
    gpu_pack_norm_item items[2];
    int32_t count, unused;
} gpu_pack_norm_params;

/*
 * evo_tensor_mask_rows: exponents[batch * rows + r] of the largest finite |mask| of row r of each batch entry, a power of two that
 * is no less, from -MASK_LIMIT to MASK_LIMIT (scales.h); 0 where all are 0. Grid x: GPU_MASK_ROWS rows a block, z: batch.
 */
enum {
    GPU_MASK_ROWS = GPU_PACK_THREADS / 32
};

typedef struct gpu_mask_rows_params {
    gpu_tensor mask; /* [batch, row, element of it] */
    int32_t *exponents;
    int64_t batch_begin;
    int32_t rows, count; /* count: elements of a row */
} gpu_mask_rows_params;

/* Shared shapes of the kernels, for grids. */
enum {
    GPU_THREADS = 256,
    GPU_STAGE_DEPTH = 8, /* rows of a stage of operands */
    GPU_PROJECT_ROWS = 128,
    GPU_PROJECT_COLUMNS = 64 /* channels of a block, gated or not */
};

#endif
