/*
 * params.h: what launching code (C) and kernels (device.h) say to each other: every kernel takes one struct of these and of
 * <op>/params.h by value. Fixed-width types only.
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_PARAMS_H
#define EVO_BACKENDS_GPU_KERNELS_PARAMS_H

#include <stdint.h>

/* Number types, with the values of evo_dtype. */
enum {
    GPU_NONE = 0,
    GPU_FP64 = 1,
    GPU_FP32 = 2,
    GPU_BF16 = 3,
    GPU_FP16 = 4,
    GPU_UINT8 = 5
};

/* A caller's tensor; strides in elements. */
typedef struct gpu_tensor {
    void *data;
    int64_t strides[4];
    int32_t dtype;
    int32_t vector; /* 1: the last stride is 1 and every fourth element of a row is aligned for a load of four */
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

enum {
    GPU_PACK_THREADS = 256
};

/* evo_pack_matrix: target[in * pitch + out] = source[out, in]; 0 for out from `outs` up to `width`. */
typedef struct gpu_pack_matrix_params {
    gpu_weight source;
    float *target;
    int64_t pitch, ins;
    int32_t outs, width;
} gpu_pack_matrix_params;

/* evo_pack_vector: target[i] = source[i], or `fill` without a source; 0 from `count` up to `width`. */
typedef struct gpu_pack_vector_params {
    gpu_weight source;
    float *target;
    int32_t count, width;
    float fill;
    int32_t unused;
} gpu_pack_vector_params;

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

/* Shared shapes of the kernels, for grids. */
enum {
    GPU_THREADS = 256,
    GPU_STAGE_DEPTH = 8, /* rows of a stage of operands */
    GPU_PROJECT_ROWS = 128,
    GPU_PROJECT_COLUMNS = 64 /* channels of a block, gated or not */
};

#endif
