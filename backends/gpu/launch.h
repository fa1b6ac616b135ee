/* launch.h: an open device, its kernels by number, and what the plan code of every op needs to launch them. */
#ifndef EVO_BACKENDS_GPU_LAUNCH_H
#define EVO_BACKENDS_GPU_LAUNCH_H

#include "backends/gpu/gpu.h"
#include "backends/gpu/kernels/hopper/params.h"
#include "backends/gpu/kernels/opm/params.h"

/* The instance table in gpu.c has the names. */
typedef enum gpu_function {
    GPU_PACK,
    GPU_OPM_PROJECT,
    GPU_OPM_OUTER,
    GPU_OPM_OUTER_WIDE,
    GPU_OPM_OUTER_SMALL,
    GPU_OPM_WEIGH,
    GPU_OPM_COMBINE,
    GPU_TRIMUL_PROJECT,
    GPU_TRIMUL_CONTRACT,
    GPU_TRIMUL_CONTRACT_SMALL,
    GPU_TRIMUL_FINISH,
    GPU_TRIMUL_COPY,
    GPU_TENSOR_PACK_ROWS,
    GPU_TENSOR_PACK_NORM,
    GPU_TENSOR_MASK_ROWS,
    GPU_TRIMUL_PROJECT_BF16_128,
    GPU_TRIMUL_PROJECT_BF16_64,
    GPU_TRIMUL_PROJECT_BF16_32,
    GPU_TRIMUL_PROJECT_FP16_128,
    GPU_TRIMUL_PROJECT_FP16_64,
    GPU_TRIMUL_PROJECT_FP16_32,
    GPU_TRIMUL_PROJECT_SPLIT_64,
    GPU_TRIMUL_PROJECT_SPLIT_32,
    GPU_TRIMUL_PROJECT_WHOLE_BF16_128,
    GPU_TRIMUL_PROJECT_WHOLE_BF16_64,
    GPU_TRIMUL_PROJECT_WHOLE_FP16_128,
    GPU_TRIMUL_PROJECT_WHOLE_FP16_64,
    GPU_TRIMUL_CONTRACT_BF16,
    GPU_TRIMUL_CONTRACT_FP16,
    GPU_TRIMUL_CONTRACT_SPLIT,
    GPU_TRIMUL_CONTRACT_TALL_BF16,
    GPU_TRIMUL_CONTRACT_TALL_FP16,
    GPU_TRIMUL_CONTRACT_TALL_SPLIT,
    GPU_TRIMUL_FINISH_BF16_64,
    GPU_TRIMUL_FINISH_BF16_32,
    GPU_TRIMUL_FINISH_FP16_64,
    GPU_TRIMUL_FINISH_FP16_32,
    GPU_TRIMUL_FINISH_SPLIT_64,
    GPU_TRIMUL_FINISH_SPLIT_32,
    GPU_TRIMUL_FINISH_WHOLE_BF16_128,
    GPU_TRIMUL_FINISH_WHOLE_BF16_64,
    GPU_TRIMUL_FINISH_WHOLE_FP16_128,
    GPU_TRIMUL_FINISH_WHOLE_FP16_64,
    GPU_OPM_PACK_OUT,
    GPU_OPM_PROJECT_BF16_64,
    GPU_OPM_PROJECT_BF16_256,
    GPU_OPM_PROJECT_BF16_384,
    GPU_OPM_PROJECT_FP16_64,
    GPU_OPM_PROJECT_FP16_256,
    GPU_OPM_PROJECT_FP16_384,
    GPU_OPM_PROJECT_SPLIT_64,
    GPU_OPM_PROJECT_SPLIT_256,
    GPU_OPM_PROJECT_SPLIT_384,
    GPU_OPM_OUTER_BF16,
    GPU_OPM_OUTER_FP16,
    GPU_OPM_OUTER_SPLIT,
    GPU_OPM_OUTER_TALL_SPLIT,
    GPU_OPM_OUTER_SMALL_BF16,
    GPU_OPM_OUTER_SMALL_FP16,
    GPU_OPM_OUTER_SMALL_SPLIT,
    GPU_OPM_WEIGH_BF16,
    GPU_OPM_WEIGH_FP16,
    GPU_OPM_COMBINE_BF16,
    GPU_OPM_COMBINE_FP16,
#define GPU_INSTANCE(type, c_m, groups, stages, buffers) GPU_HOPPER_OPM_PROJECT_##type##_##c_m,
    GPU_HOPPER_OPM_PROJECT(GPU_INSTANCE)
#undef GPU_INSTANCE
#define GPU_INSTANCE(type, columns, parts) GPU_HOPPER_OUTER_##type##_##columns##_##parts,
    GPU_HOPPER_OUTER(GPU_INSTANCE)
#undef GPU_INSTANCE
        GPU_HOPPER_OPM_SQUARES,
    GPU_HOPPER_OPM_SMALL_BF16,
    GPU_HOPPER_OPM_SMALL_FP16,
    GPU_HOPPER_PACK_BF16,
    GPU_HOPPER_PACK_FP16,
    GPU_HOPPER_PACK_SIDES,
    GPU_HOPPER_NORM,
    GPU_HOPPER_CONTRACT_BF16_128_OUT, /* directions, then widths: trimul_hopper.c counts on it and says so */
    GPU_HOPPER_CONTRACT_BF16_128_IN,
    GPU_HOPPER_CONTRACT_BF16_256_OUT,
    GPU_HOPPER_CONTRACT_BF16_256_IN,
    GPU_HOPPER_CONTRACT_FP16_128_OUT,
    GPU_HOPPER_CONTRACT_FP16_128_IN,
    GPU_HOPPER_CONTRACT_FP16_256_OUT,
    GPU_HOPPER_CONTRACT_FP16_256_IN,
    GPU_HOPPER_FINISH_STREAM_BF16_1, /* types and tiles in this order, likewise */
    GPU_HOPPER_FINISH_STREAM_BF16_2,
    GPU_HOPPER_FINISH_STREAM_FP16_1,
    GPU_HOPPER_FINISH_STREAM_FP16_2,
    GPU_HOPPER_FINISH_STREAM_FP32_1,
    GPU_HOPPER_FINISH_STREAM_FP32_2,
#define GPU_INSTANCE(type, c_z, c, groups) GPU_HOPPER_PROJECT_##type##_##c_z##_##c,
    GPU_HOPPER_PROJECT(GPU_INSTANCE)
#undef GPU_INSTANCE
#define GPU_INSTANCE(type, c_z, c) GPU_HOPPER_PROJECT_MANY_##type##_##c_z##_##c,
    GPU_HOPPER_MANY(GPU_INSTANCE)
#undef GPU_INSTANCE
#define GPU_INSTANCE(type, c_z, c) GPU_HOPPER_FINISH_##type##_##c_z##_##c,
        GPU_HOPPER_FINISH(GPU_INSTANCE)
#undef GPU_INSTANCE
#define GPU_INSTANCE(type, c_z, c) GPU_HOPPER_FINISH_FEW_##type##_##c_z##_##c,
            GPU_HOPPER_FEW(GPU_INSTANCE)
#undef GPU_INSTANCE
#define GPU_INSTANCE(type, c_z, c, kilobytes) GPU_HOPPER_TRIMUL_SMALL_##type##_##c_z##_##c,
                GPU_HOPPER_TRIMUL_SMALL(GPU_INSTANCE)
#undef GPU_INSTANCE
                    GPU_FUNCTION_COUNT
} gpu_function;

enum {
    GPU_ALIGN = 256,          /* bytes, of buffers within the workspace and the pack */
    GPU_LAYOUT_PORTABLE = 16, /* pack layouts of tier `portable` */
    GPU_LAYOUT_RAW_GATE = 17, /* the same, where the triangle multiplication's gate reads z itself */
    GPU_LAYOUT_TENSOR = 32,   /* of tier `tensor`: + 2 * the dtype of the operands, + 1 with a raw gate */
    GPU_LAYOUT_HOPPER = 64,   /* of tier `hopper` and any later: plus 1 for raw gates, plus 2 for fp16 */
    GPU_GRID_LIMIT = 65535    /* blocks in y and z */
};

const gpu_properties *gpu_device_properties(const evo_device *device);

/* Waves of a block of project and finish of the triangle multiplication's tier `tensor`. */
int64_t gpu_trimul_waves(const evo_device *device);

/** True if the device has the shared memory that a block of the function takes. */
bool gpu_fits(const evo_device *device, gpu_function function);

/** True if the build has an image of the function for the device. */
bool gpu_has_image(const evo_device *device, gpu_function function);

/** Loads functions that are not loaded yet; thread-safe. */
evo_status gpu_load(evo_device *device, const gpu_function *functions, int count);

/** Launches a loaded function on the call's stream; a grid without blocks is nothing. */
evo_status gpu_launch(const evo_call *call, gpu_function function, int64_t x, int64_t y, int64_t z, const void *params,
                      size_t size);

/** Launches x blocks of a kernel that itself waits for the one ahead of it, which may not have ended. */
evo_status gpu_launch_early(const evo_call *call, gpu_function function, int64_t x, const void *params, size_t size);

/** Describes a tensor to bulk copies. */
evo_status gpu_tensor_map_of(const evo_call *call, const gpu_bulk_tensor *tensor, gpu_tensor_map *map);

/** The same with the bytes of dynamic shared memory, for functions whose table leaves them open. */
evo_status gpu_launch_shared(const evo_call *call, gpu_function function, int64_t x, int64_t y, int64_t z,
                             size_t shared, const void *params, size_t size);

/** A tensor or a weight as kernels take it. `data` is written only where the op says so. */
gpu_tensor gpu_tensor_of(const evo_tensor *tensor, const void *data);
gpu_weight gpu_weight_of(const evo_weight *weight);

/** Items of a pack of tier `portable`, collected and then launched as one. */
typedef struct gpu_packing {
    gpu_pack_params params;
    int64_t blocks;
} gpu_packing;

/** A matrix as [ins][pitch], of which `width` columns are written, and its bias as [width]. */
void gpu_pack_matrix(gpu_packing *packing, const evo_weight *weight, const evo_weight *bias, int64_t outs, int64_t ins,
                     float *target, int64_t pitch, int64_t width, float *bias_target);

/** A LayerNorm's weight and bias (NULL: ones and zeros) as kernels read them: gpu_round(count, GPU_STAGE_DEPTH) floats each. */
void gpu_pack_norm(gpu_packing *packing, const evo_weight *weight, const evo_weight *bias, int64_t count,
                   float *weight_target, float *bias_target);

evo_status gpu_pack(const evo_call *call, const gpu_packing *packing);

/** Packs `count` matrices of a tier with matrix units, at most GPU_PACK_MATRICES; sets their first_block. */
evo_status gpu_pack_matrices(const evo_call *call, const gpu_pack_rows_item *items, int count);

/** Packs the items' matrices with their LayerNorm folded in, for tier `hopper`; sets their first_block. */
evo_status gpu_pack_folded(const evo_call *call, bool fp16, gpu_hopper_pack_params *params);

/** evo_tensor_mask_rows for the batch entries from `begin` to `end`. `mask`: [batch, row, element]. */
evo_status gpu_find_mask_exponents(const evo_call *call, const gpu_tensor *mask, int64_t begin, int64_t end,
                                   int64_t rows, int64_t count, int32_t *exponents);

/** Persistent blocks for `wanted` pieces of work: at most one a multiprocessor. */
int64_t gpu_persistent(const evo_call *call, int64_t wanted);

/** The power of two, from 0 to `most`, that holds the mask values which a descriptor promises: fp16 takes it out of a and b. */
int gpu_mask_exponent(double mask_max, int most);

/** Columns that one block of a project kernel should loop over, so that `blocks` of positions fill the device. */
int32_t gpu_columns_per_block(const evo_device *device, int64_t blocks, int64_t columns);

/** True if every tensor with a dtype is one that tier `portable` takes; else adds the reason. */
bool gpu_portable_takes(evo_compute compute, const evo_tensor *const *tensors, const char *const *names, int count,
                        evo_text *why);

/** Fails unless `bytes` (-1: too many to count) fit the limit (0: none), and sets the form's workspace. */
evo_status gpu_settle(evo_form *form, int64_t bytes, size_t limit);

static inline int64_t gpu_round(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static inline int64_t gpu_blocks(int64_t extent, int64_t tile) {
    return (extent + tile - 1) / tile;
}

/** Bytes of a * b * c * d floats, rounded up to GPU_ALIGN; -1 if they cannot be counted or one of them cannot. */
int64_t gpu_bytes(int64_t a, int64_t b, int64_t c, int64_t d);

/** The sum of two such sizes. */
int64_t gpu_sum(int64_t a, int64_t b);

/** The next `bytes` of a buffer that is being laid out. */
static inline float *gpu_take(uintptr_t *next, int64_t bytes) {
    float *taken = (float *)*next;
    *next += (uintptr_t)bytes;
    return taken;
}

extern const evo_kernel gpu_opm_hopper;
extern const evo_kernel gpu_opm_tensor;
extern const evo_kernel gpu_opm_portable;
extern const evo_kernel gpu_trimul_hopper;
extern const evo_kernel gpu_trimul_tensor;
extern const evo_kernel gpu_trimul_portable;

#endif
