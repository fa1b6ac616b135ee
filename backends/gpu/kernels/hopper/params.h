/*
 * params.h: the parameters of tier `hopper`, its instances, and the layouts of its buffers. Numbers are bf16 or fp16.
 *
 * a and b: [batch][a's c channels, b's c channels][N][pitch], positions as in z, whatever the direction.
 * t: blocks of 64 positions of a row, [batch][row][block][c][64]. Where the output is free they lie in it, each at the
 * place of its own positions. The positions past the last whole block, if any, lie apart: [batch][c][N][tail].
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_HOPPER_PARAMS_H
#define EVO_BACKENDS_GPU_KERNELS_HOPPER_PARAMS_H

#include "backends/gpu/kernels/params.h"

enum {
    GPU_HOPPER_WARPGROUP = 128,     /* threads */
    GPU_HOPPER_POSITIONS = 64,      /* of one row: what a warpgroup takes through project and finish */
    GPU_HOPPER_MANY_GROUPS = 4,     /* warpgroups of a block of project where tiles are many */
    GPU_HOPPER_MANY_TILES = 6,      /* a multiprocessor: more are many */
    GPU_HOPPER_MOST_BLOCKS = 256,   /* of project, each with its own largest mask */
    GPU_HOPPER_FINISH_GROUPS = 3,   /* warpgroups of a block */
    GPU_HOPPER_FINISH_COLUMNS = 64, /* output channels at once */
    GPU_HOPPER_FEW_GROUPS = 2,
    GPU_HOPPER_FEW_COLUMNS = 128,
    GPU_HOPPER_FEW_TILES = 16, /* a multiprocessor: at most so many are few */
    GPU_HOPPER_STREAM_COLUMNS = 128,
    GPU_HOPPER_STREAM_STAGES = 3, /* of the ring, at least, or else blocks take fewer positions */
    GPU_HOPPER_MOST_WIDTH = 384,
    GPU_HOPPER_NORM_WAVES = 8,
    GPU_HOPPER_NORM_ROUNDS = 4,    /* of positions that a wave has under way */
    GPU_HOPPER_ROWS = 128,         /* rows of t of a block of contract */
    GPU_HOPPER_SHARED = 227 * 1024 /* bytes a block may have */
};

/*
 * Instances of project: X(type, c_z, c, warpgroups of a block). For more channels several blocks share a tile, each with the
 * instance of its part of them: c is a multiple of 32.
 */
#define GPU_HOPPER_PROJECT_OF(X, type)                                                                                \
    X(type, 32, 32, 3)                                                                                                \
    X(type, 32, 64, 3) X(type, 32, 128, 3) X(type, 64, 32, 3) X(type, 64, 64, 3) X(type, 64, 128, 3)                  \
        X(type, 128, 32, 4) X(type, 128, 64, 4) X(type, 128, 128, 3) X(type, 256, 32, 2) X(type, 256, 64, 2)          \
            X(type, 384, 32, 2)
#define GPU_HOPPER_PROJECT(X) GPU_HOPPER_PROJECT_OF(X, BF16) GPU_HOPPER_PROJECT_OF(X, FP16)

/* A further one for many tiles a multiprocessor: X(type, c_z, c), of GPU_HOPPER_MANY_GROUPS warpgroups, with one buffer each. */
#define GPU_HOPPER_MANY(X) X(BF16, 128, 128) X(FP16, 128, 128)

/*
 * Instances of finish that keep their weights: X(type of the output, c_z, c), with c_out = c_z. All other widths stream them. An
 * output in fp32 is one of products in fp16.
 */
#define GPU_HOPPER_FINISH_OF(X, type)                                                                                 \
    X(type, 32, 32)                                                                                                   \
    X(type, 32, 64) X(type, 32, 128) X(type, 64, 32) X(type, 64, 64) X(type, 64, 128) X(type, 128, 32)                \
        X(type, 128, 64) X(type, 128, 128)
#define GPU_HOPPER_FINISH(X)                                                                                          \
    GPU_HOPPER_FINISH_OF(X, BF16)                                                                                     \
    GPU_HOPPER_FINISH_OF(X, FP16)                                                                                     \
    X(FP32, 64, 32) X(FP32, 64, 64) X(FP32, 64, 128) X(FP32, 128, 32) X(FP32, 128, 64) X(FP32, 128, 128)

/* Further ones of finish, for few tiles a multiprocessor: fewer warpgroups, each with more channels at once. */
#define GPU_HOPPER_FEW(X)                                                                                             \
    X(BF16, 128, 32) X(BF16, 128, 64) X(BF16, 128, 128) X(FP16, 128, 32) X(FP16, 128, 64) X(FP16, 128, 128)

/*
 * Instances of the kernel that does all at once, N to GPU_HOPPER_TRIMUL_SMALL_N: X(type of the tensors, c_z, c, kilobytes of shared
 * memory), with c_out = c_z. Tensors in fp32 are products in fp16. Two blocks share a multiprocessor.
 */
enum {
    GPU_HOPPER_TRIMUL_SMALL_N = 32,
    GPU_HOPPER_TRIMUL_SMALL_SIDE = 4, /* i and j of a block */
    GPU_HOPPER_TRIMUL_SMALL_THREADS = 256
};
#define GPU_HOPPER_TRIMUL_SMALL_OF(X, type) X(type, 32, 32, 37) X(type, 64, 32, 65) X(type, 128, 32, 113)
#define GPU_HOPPER_TRIMUL_SMALL(X)                                                                                    \
    GPU_HOPPER_TRIMUL_SMALL_OF(X, BF16) GPU_HOPPER_TRIMUL_SMALL_OF(X, FP16) GPU_HOPPER_TRIMUL_SMALL_OF(X, FP32)

/*
 * Scales, for fp16 only (bf16 has the range of fp32): powers of two that keep what is stored in range, known when the weights
 * are packed, but for the mask's.
 *   a, b      times 2^GPU_HOPPER_SIDE_BITS over a bound of each channel at a mask of 1, and over mask_max where that is above 1
 *             (`mask_unit`, a power of two). So masks may exceed mask_unit by 2^(15 - GPU_HOPPER_SIDE_BITS).
 *   t         times t_scale / (largest / mask_scale^2), the same for all channels, where `largest` is that of the products
 *             of a's and b's inverse scales, so that LayerNorm only has another eps; mask_scale is mask_unit and what the
 *             largest mask exceeds it by, which project finds
 *   W_o       row by row, undone in fp32
 */
enum {
    GPU_HOPPER_SIDE_BITS = 5
};

/*
 * evo_hopper_pack_*: row r of a matrix with a LayerNorm ahead of it folded in: target[row][in] = factor * W[out, in] * norm[in],
 * bias_target[row] = factor * (bias[out] + sum over in of W[out, in] * norm_bias[in]) as two 16-bit numbers whose sum is half
 * of it, then zeros. A block an output. Output o goes to row (o + first) / 8 * row_step + (o + first) % 8 + row_offset.
 */
typedef struct gpu_hopper_pack_item {
    gpu_weight source, norm, norm_bias, bias; /* absent: ones, zeros, zeros */
    void *target;
    uint64_t *bias_target; /* two a row */
    float *inverse_scale;  /* [outs], at o + first; NULL: the row is not scaled */
    int32_t outs, ins, first, row_step, row_offset, first_block;
    float factor, bound; /* bound: what a scaled row's results are kept below at |x| <= sqrt(ins) */
    const float *scale;  /* [outs]: further factors; NULL: ones */
} gpu_hopper_pack_item;

typedef struct gpu_hopper_pack_params {
    gpu_hopper_pack_item items[GPU_PACK_MATRICES];
    int32_t count, unused;
} gpu_hopper_pack_params;

/* evo_hopper_pack_sides, one block: inverse_scale [2 c] of a and b into scale [c], relative to the largest product, which comes last. */
typedef struct gpu_hopper_sides_params {
    const float *inverse_scale;
    float *scale;
    int32_t channels, unused;
} gpu_hopper_sides_params;

/*
 * evo_hopper_norm: for tensors in fp32, LayerNorm(z) without weight and bias in fp16, [positions][c_z], which project and finish
 * take for z. c_z is a multiple of 32, to 384. Grid x: blocks of as many waves as GPU_HOPPER_NORM_WAVES.
 */
typedef struct gpu_hopper_norm_params {
    gpu_tensor z; /* [batch, N, N, c_z], fp32, in pieces of 16 bytes */
    void *target;
    int64_t positions;
    int32_t n, c_z;
    float eps;
    int32_t unused;
} gpu_hopper_norm_params;

/* evo_hopper_project_*: a and b of every position; grid x: persistent blocks, a multiple of column_groups. */
typedef struct gpu_hopper_project_params {
    gpu_tensor_map z;      /* [batch, N, N, c_z], boxes of 64 positions x 64 channels */
    gpu_tensor_map weight; /* [4 c][c_z]: in turn 8 channels and their 8 gates, a's, then b's */
    gpu_tensor_map ab;     /* [batch * 2 c, N, N] */
    gpu_tensor mask;       /* [batch, N, N] */
    const uint64_t *bias;  /* [4 c][2] */
    int32_t n, rows;       /* rows: batch * N */
    int32_t channels;      /* 2 c */
    int32_t column_groups; /* blocks that share a tile of positions, each with its own columns */
    int32_t is_normed;     /* 1 (fp16): z is what evo_hopper_norm wrote */
    uint32_t no_bits;      /* 0, which the compiler does not know */
    float *largest;        /* fp16 with a mask: [blocks], written: the largest |mask| / mask_unit that is finite */
    float eps, mask_unit;
} gpu_hopper_project_params;

/* evo_hopper_contract_*: t of every channel; grid x: persistent blocks. */
typedef struct gpu_hopper_contract_params {
    gpu_tensor_map ab;             /* [batch * 2 c, N, N], boxes of 64 x 64 */
    gpu_tensor_map t_main, t_tail; /* [batch, N, blocks, c, 64] and [batch, N, 1, c, tail], boxes of 64 rows */
    int32_t n, channels, planes;   /* c; batch * c */
    int32_t whole_blocks;          /* of t, in a row */
    const float *scale;            /* fp16: [c], see gpu_hopper_sides_params */
    const float *mask_largest;     /* fp16: [mask_parts], project's `largest` */
    float *mask_scale;             /* fp16: written */
    float t_scale, mask_unit;
    int32_t mask_parts, unused;
} gpu_hopper_contract_params;

/* evo_hopper_finish_*: the output; grid x: persistent blocks. */
typedef struct gpu_hopper_finish_params {
    gpu_tensor_map t_main, t_tail;      /* as above, boxes of all c of one block; for streamed weights of 64 */
    gpu_tensor_map z;                   /* as project's */
    gpu_tensor_map weight, gate_weight; /* [c_out][c], [c_out][c_z] */
    gpu_tensor_map residual, out;       /* [batch, N, N, c_out], boxes of 64 x 64; not in fp32 */
    gpu_tensor wide_residual, wide_out; /* the same in fp32 */
    const uint64_t *bias;               /* [2 c_out][2] */
    int32_t n, rows, c, c_z, c_out;
    int32_t whole_blocks;
    int32_t stages;                 /* of streamed weights */
    int32_t raw_gate, has_residual; /* raw_gate: z is not normed here */
    float eps, t_scale;
    const float *largest, *mask_scale, *out_scale; /* fp16; out_scale [c_out] */
} gpu_hopper_finish_params;

/* evo_hopper_trimul_small_*: from z to the output; grid x: blocks of 4 x 4 pairs, j fastest, then i, then batch entries. */
typedef struct gpu_hopper_trimul_small_params {
    gpu_tensor z, mask, residual, out;
    const void *weight, *gate_weight, *out_weight; /* as project's and finish's */
    const uint64_t *bias, *out_bias;               /* [4 c][2], [2 c_out][2] */
    const float *scale, *out_scale;                /* fp16: [c] and the largest, see gpu_hopper_sides_params; [c_out] */
    int32_t n, incoming;
    int32_t raw_gate; /* z is not normed for it */
    float eps, mask_unit;
    int32_t unused;
} gpu_hopper_trimul_small_params;

#endif
