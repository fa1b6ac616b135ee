/* gpu.c: devices, images and functions, and the functions of evo_backend in terms of a driver. */
#include "backends/gpu/launch.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/gpu/kernels/hopper/params.h"
#include "backends/gpu/kernels/opm/params.h"
#include "backends/gpu/kernels/trimul/params.h"

/* --- The instance table --- */

#define SHARED_AS_LAUNCHED ((size_t)-1)
#define TRIMUL_WAVES 0

static const struct {
    const char *unit, *name;
    unsigned threads;
    size_t shared;  /* bytes of dynamic shared memory; SHARED_AS_LAUNCHED: gpu_launch_shared says */
    unsigned waves; /* of a block, where `threads` is 0; TRIMUL_WAVES: gpu_trimul_waves says */
} functions[GPU_FUNCTION_COUNT] = {
#define OF_THREADS(unit, name) { unit, name, GPU_OPM_TENSOR_THREADS, SHARED_AS_LAUNCHED, 0 }
#define OF_TRIMUL_WAVES(unit, name) { unit, name, 0, SHARED_AS_LAUNCHED, TRIMUL_WAVES }
#define OF_WAVES(unit, name) { unit, name, 0, SHARED_AS_LAUNCHED, GPU_BLOCK_WAVES }
#define WHOLE_PROJECT(instance)                                                                               \
    { "trimul/tensor_project", "evo_trimul_project_whole_" instance, 0, SHARED_AS_LAUNCHED, GPU_PROJECT_WHOLE_WAVES }
#define WHOLE_FINISH(instance)                                                                                \
    { "trimul/tensor_finish", "evo_trimul_finish_whole_" instance, 0, SHARED_AS_LAUNCHED, GPU_FINISH_WHOLE_WAVES }
    [GPU_PACK] = { "pack", "evo_pack", GPU_PACK_THREADS, 0, 0 },
    [GPU_OPM_PROJECT] = { "opm/project", "evo_opm_project", GPU_THREADS, 0, 0 },
    [GPU_OPM_OUTER] = { "opm/outer", "evo_opm_outer", GPU_OPM_THREADS, GPU_OPM_SHARED, 0 },
    [GPU_OPM_OUTER_WIDE] = { "opm/outer", "evo_opm_outer_wide", GPU_OPM_THREADS, GPU_OPM_SHARED, 0 },
    [GPU_OPM_OUTER_SMALL] = { "opm/outer", "evo_opm_outer_small", GPU_OPM_THREADS, GPU_OPM_SMALL_SHARED, 0 },
    [GPU_OPM_WEIGH] = { "opm/weight_first", "evo_opm_weigh", GPU_THREADS, 0, 0 },
    [GPU_OPM_COMBINE] = { "opm/weight_first", "evo_opm_combine", GPU_THREADS, 0, 0 },
    [GPU_TRIMUL_PROJECT] = { "trimul/project", "evo_trimul_project", GPU_THREADS, 0, 0 },
    [GPU_TRIMUL_CONTRACT] = { "trimul/contract", "evo_trimul_contract", GPU_CONTRACT_THREADS, GPU_CONTRACT_SHARED, 0 },
    [GPU_TRIMUL_CONTRACT_SMALL] = { "trimul/contract", "evo_trimul_contract_small", GPU_CONTRACT_SMALL_THREADS,
                                    GPU_CONTRACT_SMALL_SHARED, 0 },
    [GPU_TRIMUL_FINISH] = { "trimul/finish", "evo_trimul_finish", GPU_THREADS, 0, 0 },
    [GPU_TRIMUL_COPY] = { "trimul/finish", "evo_trimul_copy", GPU_THREADS, 0, 0 },
    [GPU_TENSOR_PACK_ROWS] = { "tensor_pack", "evo_tensor_pack_rows", GPU_PACK_THREADS, 0, 0 },
    [GPU_TENSOR_PACK_NORM] = { "tensor_pack", "evo_tensor_pack_norm", GPU_PACK_THREADS, 0, 0 },
    [GPU_TENSOR_MASK_ROWS] = { "tensor_mask", "evo_tensor_mask_rows", GPU_PACK_THREADS, 0, 0 },
    [GPU_TRIMUL_PROJECT_BF16_128] = OF_TRIMUL_WAVES("trimul/tensor_project", "evo_trimul_project_bf16_128"),
    [GPU_TRIMUL_PROJECT_BF16_64] = OF_TRIMUL_WAVES("trimul/tensor_project", "evo_trimul_project_bf16_64"),
    [GPU_TRIMUL_PROJECT_BF16_32] = OF_TRIMUL_WAVES("trimul/tensor_project", "evo_trimul_project_bf16_32"),
    [GPU_TRIMUL_PROJECT_FP16_128] = OF_TRIMUL_WAVES("trimul/tensor_project", "evo_trimul_project_fp16_128"),
    [GPU_TRIMUL_PROJECT_FP16_64] = OF_TRIMUL_WAVES("trimul/tensor_project", "evo_trimul_project_fp16_64"),
    [GPU_TRIMUL_PROJECT_FP16_32] = OF_TRIMUL_WAVES("trimul/tensor_project", "evo_trimul_project_fp16_32"),
    [GPU_TRIMUL_PROJECT_SPLIT_64] = OF_TRIMUL_WAVES("trimul/tensor_project", "evo_trimul_project_split_64"),
    [GPU_TRIMUL_PROJECT_SPLIT_32] = OF_TRIMUL_WAVES("trimul/tensor_project", "evo_trimul_project_split_32"),
    [GPU_TRIMUL_PROJECT_WHOLE_BF16_128] = WHOLE_PROJECT("bf16_128"),
    [GPU_TRIMUL_PROJECT_WHOLE_BF16_64] = WHOLE_PROJECT("bf16_64"),
    [GPU_TRIMUL_PROJECT_WHOLE_FP16_128] = WHOLE_PROJECT("fp16_128"),
    [GPU_TRIMUL_PROJECT_WHOLE_FP16_64] = WHOLE_PROJECT("fp16_64"),
    [GPU_TRIMUL_CONTRACT_BF16] = OF_WAVES("trimul/tensor_contract", "evo_trimul_contract_bf16"),
    [GPU_TRIMUL_CONTRACT_FP16] = OF_WAVES("trimul/tensor_contract", "evo_trimul_contract_fp16"),
    [GPU_TRIMUL_CONTRACT_SPLIT] = OF_WAVES("trimul/tensor_contract", "evo_trimul_contract_split"),
    [GPU_TRIMUL_CONTRACT_TALL_BF16] = OF_TRIMUL_WAVES("trimul/tensor_contract", "evo_trimul_contract_tall_bf16"),
    [GPU_TRIMUL_CONTRACT_TALL_FP16] = OF_TRIMUL_WAVES("trimul/tensor_contract", "evo_trimul_contract_tall_fp16"),
    [GPU_TRIMUL_CONTRACT_TALL_SPLIT] = OF_TRIMUL_WAVES("trimul/tensor_contract", "evo_trimul_contract_tall_split"),
    [GPU_TRIMUL_FINISH_BF16_64] = OF_TRIMUL_WAVES("trimul/tensor_finish", "evo_trimul_finish_bf16_64"),
    [GPU_TRIMUL_FINISH_BF16_32] = OF_TRIMUL_WAVES("trimul/tensor_finish", "evo_trimul_finish_bf16_32"),
    [GPU_TRIMUL_FINISH_FP16_64] = OF_TRIMUL_WAVES("trimul/tensor_finish", "evo_trimul_finish_fp16_64"),
    [GPU_TRIMUL_FINISH_FP16_32] = OF_TRIMUL_WAVES("trimul/tensor_finish", "evo_trimul_finish_fp16_32"),
    [GPU_TRIMUL_FINISH_SPLIT_64] = OF_TRIMUL_WAVES("trimul/tensor_finish", "evo_trimul_finish_split_64"),
    [GPU_TRIMUL_FINISH_SPLIT_32] = OF_TRIMUL_WAVES("trimul/tensor_finish", "evo_trimul_finish_split_32"),
    [GPU_TRIMUL_FINISH_WHOLE_BF16_128] = WHOLE_FINISH("bf16_128"),
    [GPU_TRIMUL_FINISH_WHOLE_BF16_64] = WHOLE_FINISH("bf16_64"),
    [GPU_TRIMUL_FINISH_WHOLE_FP16_128] = WHOLE_FINISH("fp16_128"),
    [GPU_TRIMUL_FINISH_WHOLE_FP16_64] = WHOLE_FINISH("fp16_64"),
    [GPU_OPM_PACK_OUT] = { "opm/tensor_pack", "evo_opm_tensor_pack_out", GPU_PACK_THREADS, 0, 0 },
    [GPU_OPM_PROJECT_BF16_64] = OF_WAVES("opm/tensor_project", "evo_opm_tensor_project_bf16_64"),
    [GPU_OPM_PROJECT_BF16_256] = OF_WAVES("opm/tensor_project", "evo_opm_tensor_project_bf16_256"),
    [GPU_OPM_PROJECT_BF16_384] = OF_WAVES("opm/tensor_project", "evo_opm_tensor_project_bf16_384"),
    [GPU_OPM_PROJECT_FP16_64] = OF_WAVES("opm/tensor_project", "evo_opm_tensor_project_fp16_64"),
    [GPU_OPM_PROJECT_FP16_256] = OF_WAVES("opm/tensor_project", "evo_opm_tensor_project_fp16_256"),
    [GPU_OPM_PROJECT_FP16_384] = OF_WAVES("opm/tensor_project", "evo_opm_tensor_project_fp16_384"),
    [GPU_OPM_PROJECT_SPLIT_64] = OF_WAVES("opm/tensor_project", "evo_opm_tensor_project_split_64"),
    [GPU_OPM_PROJECT_SPLIT_256] = OF_WAVES("opm/tensor_project", "evo_opm_tensor_project_split_256"),
    [GPU_OPM_PROJECT_SPLIT_384] = OF_WAVES("opm/tensor_project", "evo_opm_tensor_project_split_384"),
    [GPU_OPM_OUTER_BF16] = OF_THREADS("opm/tensor_outer", "evo_opm_tensor_outer_bf16"),
    [GPU_OPM_OUTER_FP16] = OF_THREADS("opm/tensor_outer", "evo_opm_tensor_outer_fp16"),
    [GPU_OPM_OUTER_SPLIT] = OF_THREADS("opm/tensor_outer", "evo_opm_tensor_outer_split"),
    [GPU_OPM_OUTER_TALL_SPLIT] = OF_THREADS("opm/tensor_outer", "evo_opm_tensor_outer_tall_split"),
    [GPU_OPM_OUTER_SMALL_BF16] = OF_THREADS("opm/tensor_outer", "evo_opm_tensor_outer_small_bf16"),
    [GPU_OPM_OUTER_SMALL_FP16] = OF_THREADS("opm/tensor_outer", "evo_opm_tensor_outer_small_fp16"),
    [GPU_OPM_OUTER_SMALL_SPLIT] = OF_THREADS("opm/tensor_outer", "evo_opm_tensor_outer_small_split"),
    [GPU_OPM_WEIGH_BF16] = OF_WAVES("opm/tensor_weight_first", "evo_opm_tensor_weigh_bf16"),
    [GPU_OPM_WEIGH_FP16] = OF_WAVES("opm/tensor_weight_first", "evo_opm_tensor_weigh_fp16"),
    [GPU_OPM_COMBINE_BF16] = OF_WAVES("opm/tensor_weight_first", "evo_opm_tensor_combine_bf16"),
    [GPU_OPM_COMBINE_FP16] = OF_WAVES("opm/tensor_weight_first", "evo_opm_tensor_combine_fp16"),
#undef WHOLE_FINISH
#undef WHOLE_PROJECT
#undef OF_WAVES
#undef OF_TRIMUL_WAVES
#define INSTANCE(type, c_m, groups, stages, buffers)                                                     \
    [GPU_HOPPER_OPM_PROJECT_##type##_##c_m] = { "hopper/opm_project",                                    \
                                                "evo_hopper_opm_project_" #type "_" #c_m,                \
                                                groups * GPU_HOPPER_WARPGROUP, GPU_HOPPER_SHARED, 0 },
    GPU_HOPPER_OPM_PROJECT(INSTANCE)
#undef INSTANCE
#define INSTANCE(type, columns, parts)                                                                   \
    [GPU_HOPPER_OUTER_##type##_##columns##_##parts] = { "hopper/opm_outer",                              \
                                                        "evo_hopper_outer_" #type "_" #columns "_" #parts, \
                                                        3 * GPU_HOPPER_WARPGROUP, GPU_HOPPER_SHARED, 0 },
        GPU_HOPPER_OUTER(INSTANCE)
#undef INSTANCE
            [GPU_HOPPER_OPM_SQUARES] = { "hopper/opm_project", "evo_hopper_opm_squares", GPU_PACK_THREADS, 0, 0 },
    [GPU_HOPPER_OPM_SMALL_BF16] = { "hopper/opm_small", "evo_hopper_opm_small_BF16", GPU_HOPPER_SMALL_THREADS,
                                    GPU_HOPPER_SMALL_SHARED, 0 },
    [GPU_HOPPER_OPM_SMALL_FP16] = { "hopper/opm_small", "evo_hopper_opm_small_FP16", GPU_HOPPER_SMALL_THREADS,
                                    GPU_HOPPER_SMALL_SHARED, 0 },
    [GPU_HOPPER_PACK_BF16] = { "hopper/trimul_pack", "evo_hopper_pack_BF16", GPU_PACK_THREADS, 0, 0 },
    [GPU_HOPPER_PACK_FP16] = { "hopper/trimul_pack", "evo_hopper_pack_FP16", GPU_PACK_THREADS, 0, 0 },
    [GPU_HOPPER_PACK_SIDES] = { "hopper/trimul_pack", "evo_hopper_pack_sides", GPU_PACK_THREADS, 0, 0 },
    [GPU_HOPPER_NORM] = { "hopper/trimul_norm", "evo_hopper_norm", GPU_HOPPER_NORM_WAVES * 32, 0, 0 },
#define CONTRACT(instance)                                                                                 \
    [GPU_HOPPER_CONTRACT_##instance] = { "hopper/trimul_contract", "evo_hopper_contract_" #instance,       \
                                         3 * GPU_HOPPER_WARPGROUP, GPU_HOPPER_SHARED, 0 },
    CONTRACT(BF16_128_OUT) CONTRACT(BF16_128_IN) CONTRACT(BF16_256_OUT) CONTRACT(BF16_256_IN) CONTRACT(FP16_128_OUT)
        CONTRACT(FP16_128_IN) CONTRACT(FP16_256_OUT) CONTRACT(FP16_256_IN)
#undef CONTRACT
#define STREAM(type, tiles)                                                                                          \
    [GPU_HOPPER_FINISH_STREAM_##type##_##tiles] = { "hopper/trimul_stream", "evo_hopper_stream_" #type "_" #tiles,   \
                                                    3 * GPU_HOPPER_WARPGROUP, GPU_HOPPER_SHARED, 0 },
            STREAM(BF16, 1) STREAM(BF16, 2) STREAM(FP16, 1) STREAM(FP16, 2) STREAM(FP32, 1) STREAM(FP32, 2)
#undef STREAM
#define INSTANCE(type, c_z, c, groups)                                                                               \
    [GPU_HOPPER_PROJECT_##type##_##c_z##_##c] = { "hopper/trimul_project",                                           \
                                                  "evo_hopper_project_" #type "_" #c_z "_" #c,                       \
                                                  groups * GPU_HOPPER_WARPGROUP, GPU_HOPPER_SHARED, 0 },
                GPU_HOPPER_PROJECT(INSTANCE)
#undef INSTANCE
#define INSTANCE(type, c_z, c)                                                                                       \
    [GPU_HOPPER_PROJECT_MANY_##type##_##c_z##_##c] = { "hopper/trimul_project",                                      \
                                                       "evo_hopper_project_many_" #type "_" #c_z "_" #c,             \
                                                       GPU_HOPPER_MANY_GROUPS * GPU_HOPPER_WARPGROUP,                \
                                                       GPU_HOPPER_SHARED, 0 },
                    GPU_HOPPER_MANY(INSTANCE)
#undef INSTANCE
#define INSTANCE(type, c_z, c)                                                                                       \
    [GPU_HOPPER_FINISH_##type##_##c_z##_##c] = { "hopper/trimul_finish", "evo_hopper_finish_" #type "_" #c_z "_" #c, \
                                                 GPU_HOPPER_FINISH_GROUPS * GPU_HOPPER_WARPGROUP,                    \
                                                 GPU_HOPPER_SHARED, 0 },
                        GPU_HOPPER_FINISH(INSTANCE)
#undef INSTANCE
#define INSTANCE(type, c_z, c)                                                                                       \
    [GPU_HOPPER_FINISH_FEW_##type##_##c_z##_##c] = { "hopper/trimul_finish",                                         \
                                                     "evo_hopper_finish_few_" #type "_" #c_z "_" #c,                 \
                                                     GPU_HOPPER_FEW_GROUPS * GPU_HOPPER_WARPGROUP,                   \
                                                     GPU_HOPPER_SHARED, 0 },
                            GPU_HOPPER_FEW(INSTANCE)
#undef INSTANCE
#define INSTANCE(type, c_z, c, kilobytes)                                                                            \
    [GPU_HOPPER_TRIMUL_SMALL_##type##_##c_z##_##c] = { "hopper/trimul_small",                                        \
                                                       "evo_hopper_trimul_small_" #type "_" #c_z "_" #c,             \
                                                       GPU_HOPPER_TRIMUL_SMALL_THREADS, (kilobytes) * 1024, 0 },
                                GPU_HOPPER_TRIMUL_SMALL(INSTANCE)
#undef INSTANCE
#undef OF_THREADS
};

/* What a launch may use without asking first. */
static const size_t shared_by_default = 48 * 1024;

/* --- Devices --- */

/* A module of each unit that has been asked for, by the function that asked first. */
typedef struct gpu_device {
    evo_device base;
    const gpu_vendor *vendor;
    void *context;
    gpu_properties properties;
    int references;
    struct gpu_device *next;
    pthread_mutex_t lock; /* of the two below, while they are written */
    void *modules[GPU_FUNCTION_COUNT];
    void *loaded[GPU_FUNCTION_COUNT];
} gpu_device;

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static gpu_device *open_devices;

static gpu_device *own(const evo_device *device) {
    return (gpu_device *)(uintptr_t)device;
}

static const gpu_driver *driver_of(const evo_device *device) {
    return own(device)->vendor->driver;
}

const gpu_properties *gpu_device_properties(const evo_device *device) {
    return &own(device)->properties;
}

int64_t gpu_trimul_waves(const evo_device *device) {
    return own(device)->properties.has_async_copies ? GPU_TRIMUL_WAVES : GPU_BLOCK_WAVES;
}

static unsigned threads_of(const evo_device *device, gpu_function function) {
    const unsigned wave = (unsigned)own(device)->properties.wave_size;
    if (functions[function].threads) return functions[function].threads;
    if (functions[function].waves == TRIMUL_WAVES) return (unsigned)gpu_trimul_waves(device) * wave;
    return functions[function].waves * wave;
}

bool gpu_fits(const evo_device *device, gpu_function function) {
    return functions[function].shared <= own(device)->properties.shared_memory_size;
}

/*
 * A driver does not survive a fork: in the child its calls fail, hang or reach what is the parent's. So all that would come
 * to it asks this first.
 */
static evo_process found_by;

static const char fork_words[] =
    "this process is a fork of one that has used the driver, expected exec after the fork, "
    "or the first use of a GPU after it";

static evo_status refuse_fork(const gpu_vendor *vendor, int index) {
    if (!evo_process_forked(&found_by)) return EVO_OK;
    return evo_fail(EVO_ERROR_DEVICE, "%s:%d: %s", vendor->driver->name, index, fork_words);
}

/* --- Images --- */

/* "sm_90" with prefix "sm_": 90; -1 for another prefix or a suffix. */
static int arch_number(const char *arch, const char *prefix) {
    const size_t length = strlen(prefix);
    char *end;
    if (strncmp(arch, prefix, length) != 0 || arch[length] < '0' || arch[length] > '9') return -1;
    const long number = strtol(arch + length, &end, 10);
    return *end || number > INT_MAX ? -1 : (int)number;
}

/* "sm_90a" is an image of what only sm_90 has. */
static bool is_specific(const char *image, const char *chip) {
    const size_t length = strlen(chip);
    return strncmp(image, chip, length) == 0 && strcmp(image + length, "a") == 0;
}

/*
 * How well an image suits a chip; 0: not at all. A cubin of the chip itself, specific or not, then the nearest of its family
 * (the same major version, no newer), then the newest PTX that is no newer.
 */
static int image_rank(const char *image, const char *chip) {
    if (is_specific(image, chip)) return INT_MAX;
    if (strcmp(image, chip) == 0) return INT_MAX - 1;
    const int wanted = arch_number(chip, "sm_"), cubin = arch_number(image, "sm_"),
              ptx = arch_number(image, "compute_");
    if (wanted < 0) return 0;
    if (cubin >= 0) return cubin / 10 == wanted / 10 && cubin <= wanted ? 1000000 + cubin : 0;
    return ptx >= 0 && ptx <= wanted ? ptx : 0;
}

static const gpu_image *find_image(const gpu_vendor *vendor, const char *unit, const char *chip) {
    const gpu_image *best = NULL;
    int best_rank = 0;
    for (const gpu_image *image = vendor->images; image->arch; image++) {
        const int rank = strcmp(image->unit, unit) == 0 ? image_rank(image->arch, chip) : 0;
        if (rank <= best_rank) continue;
        best = image;
        best_rank = rank;
    }
    return best;
}

bool gpu_has_image(const evo_device *device, gpu_function function) {
    return find_image(own(device)->vendor, functions[function].unit, own(device)->properties.arch) != NULL;
}

static evo_status fail_image(const gpu_vendor *vendor, int index, const char *chip) {
    return evo_fail(EVO_ERROR_NO_DEVICE, "%s:%d is %s, for which this build has no kernels; it has them for: %s",
                    vendor->driver->name, index, chip, vendor->backend->images);
}

/* --- Discovery and opening --- */

int gpu_device_count(const gpu_vendor *vendor, evo_text *why) {
    if (evo_process_forked(&found_by)) {
        evo_text_add(why, "%s", fork_words);
        return 0;
    }
    const int count = vendor->driver->device_count(why);
    if (count > 0) evo_process_mark(&found_by);
    return count;
}

evo_status gpu_device_info(const gpu_vendor *vendor, int index, evo_device_info *info) {
    gpu_properties found = { { 0 }, { 0 }, 0, 0, 0, 0, false, false, false };
    evo_status status = refuse_fork(vendor, index);
    if (status == EVO_OK) status = vendor->driver->properties(index, &found);
    if (status != EVO_OK) return status;
    snprintf(info->name, sizeof info->name, "%s:%d", vendor->driver->name, index);
    memcpy(info->description, found.description, sizeof info->description);
    memcpy(info->arch, found.arch, sizeof info->arch);
    info->compute_units = found.compute_units;
    info->wave_size = found.wave_size;
    info->memory_size = found.memory_size;
    info->shared_memory_size = found.shared_memory_size;
    return EVO_OK;
}

static evo_status make_device(const gpu_vendor *vendor, int index, gpu_device **made) {
    gpu_device *device = calloc(1, sizeof *device);
    if (!device) return evo_fail(EVO_ERROR_OUT_OF_MEMORY, "evo_context_create: no host memory");
    device->base = (evo_device){ vendor->backend, index };
    device->vendor = vendor;
    evo_status status = vendor->driver->properties(index, &device->properties);
    if (status == EVO_OK && !find_image(vendor, functions[GPU_PACK].unit, device->properties.arch))
        status = fail_image(vendor, index, device->properties.arch);
    if (status == EVO_OK) status = vendor->driver->open(index, &device->context);
    if (status != EVO_OK || pthread_mutex_init(&device->lock, NULL) != 0) {
        if (status == EVO_OK) vendor->driver->close(index, device->context);
        free(device);
        return status != EVO_OK ? status : evo_fail(EVO_ERROR_OUT_OF_MEMORY, "evo_context_create: no mutex");
    }
    *made = device;
    return EVO_OK;
}

evo_status gpu_open(const gpu_vendor *vendor, int index, evo_device **device) {
    evo_status status = refuse_fork(vendor, index);
    if (status != EVO_OK) return status;
    pthread_mutex_lock(&open_lock);
    gpu_device *found = open_devices;
    while (found && (found->vendor != vendor || found->base.index != index)) found = found->next;
    if (!found) {
        status = make_device(vendor, index, &found);
        if (status == EVO_OK) {
            found->next = open_devices;
            open_devices = found;
        }
    }
    if (status == EVO_OK) {
        found->references++;
        *device = &found->base;
    }
    pthread_mutex_unlock(&open_lock);
    return status;
}

/* Also where the context cannot be entered: HIP needs none for it, and CUDA refuses. */
static void unload(gpu_device *device) {
    void *saved;
    const bool entered = gpu_enter(&device->base, &saved) == EVO_OK;
    for (int f = 0; f < GPU_FUNCTION_COUNT; f++)
        if (device->modules[f]) device->vendor->driver->module_unload(device->modules[f]);
    if (entered) gpu_leave(&device->base, saved);
}

/* In a fork the device is the parent's, and the lock may be held by a thread that is not here. */
void gpu_close(evo_device *base) {
    gpu_device *device = own(base), **link = &open_devices;
    if (evo_process_forked(&found_by)) return;
    pthread_mutex_lock(&open_lock);
    if (--device->references == 0) {
        while (*link != device) link = &(*link)->next;
        *link = device->next;
        unload(device);
        device->vendor->driver->close(base->index, device->context);
        pthread_mutex_destroy(&device->lock);
        free(device);
    }
    pthread_mutex_unlock(&open_lock);
}

const evo_kernel *const *gpu_kernels(evo_op op, int *count) {
    static const evo_kernel *const opm[] = { &gpu_opm_hopper, &gpu_opm_tensor, &gpu_opm_portable };
    static const evo_kernel *const trimul[] = { &gpu_trimul_hopper, &gpu_trimul_tensor, &gpu_trimul_portable };
    *count = op == EVO_OP_OPM ? sizeof opm / sizeof *opm : sizeof trimul / sizeof *trimul;
    return op == EVO_OP_OPM ? opm : trimul;
}

/* --- Functions --- */

/* The module of a function's unit, loaded by the first function of the unit that is asked for. */
static evo_status load_module(gpu_device *device, gpu_function function, void **module) {
    const char *unit = functions[function].unit;
    for (int f = 0; f < GPU_FUNCTION_COUNT; f++)
        if (device->modules[f] && strcmp(functions[f].unit, unit) == 0) {
            *module = device->modules[f];
            return EVO_OK;
        }
    const gpu_image *image = find_image(device->vendor, unit, device->properties.arch);
    if (!image) return fail_image(device->vendor, device->base.index, device->properties.arch);
    const evo_status status =
        device->vendor->driver->module_load(image->begin, (size_t)(image->end - image->begin), module);
    if (status == EVO_OK) device->modules[function] = *module;
    return status;
}

static evo_status load_function(gpu_device *device, gpu_function function) {
    const gpu_driver *driver = device->vendor->driver;
    const size_t most = device->properties.shared_memory_size;
    const size_t shared = functions[function].shared == SHARED_AS_LAUNCHED ? most : functions[function].shared;
    void *module, *loaded;
    evo_status status = load_module(device, function, &module);
    if (status == EVO_OK) status = driver->function_get(module, functions[function].name, &loaded);
    if (status == EVO_OK && shared > shared_by_default) status = driver->function_allow_shared(loaded, shared);
    if (status == EVO_OK) device->loaded[function] = loaded;
    return status;
}

evo_status gpu_load(evo_device *base, const gpu_function *wanted, int count) {
    gpu_device *device = own(base);
    void *saved = NULL;
    bool entered = false;
    evo_status status = refuse_fork(device->vendor, base->index);
    if (status != EVO_OK) return status;
    pthread_mutex_lock(&device->lock);
    for (int w = 0; w < count && status == EVO_OK; w++) {
        if (device->loaded[wanted[w]]) continue;
        if (!entered) status = gpu_enter(base, &saved);
        if (status != EVO_OK) break;
        entered = true;
        status = load_function(device, wanted[w]);
    }
    if (entered) gpu_leave(base, saved);
    pthread_mutex_unlock(&device->lock);
    return status;
}

evo_status gpu_launch(const evo_call *call, gpu_function function, int64_t x, int64_t y, int64_t z, const void *params,
                      size_t size) {
    return gpu_launch_shared(call, function, x, y, z, functions[function].shared, params, size);
}

evo_status gpu_launch_shared(const evo_call *call, gpu_function function, int64_t x, int64_t y, int64_t z,
                             size_t shared, const void *params, size_t size) {
    const unsigned threads = threads_of(call->device, function);
    if (x <= 0 || y <= 0 || z <= 0) return EVO_OK;
    const uint64_t most = driver_of(call->device)->grid_threads / threads;
    if (x > INT32_MAX || (uint64_t)x > most || y > GPU_GRID_LIMIT || z > GPU_GRID_LIMIT)
        return evo_fail(EVO_ERROR_UNSUPPORTED, "%s: the grid of %lld x %lld x %lld blocks is more than a device takes",
                        functions[function].name, (long long)x, (long long)y, (long long)z);
    const gpu_grid grid = { (unsigned)x, (unsigned)y, (unsigned)z };
    return driver_of(call->device)
        ->launch(own(call->device)->loaded[function], grid, threads, shared, call->stream, params, size);
}

evo_status gpu_launch_early(const evo_call *call, gpu_function function, int64_t x, const void *params, size_t size) {
    if (x <= 0) return EVO_OK;
    const gpu_grid grid = { (unsigned)x, 1, 1 };
    return driver_of(call->device)
        ->launch_early(own(call->device)->loaded[function], grid, functions[function].threads,
                       functions[function].shared, call->stream, params, size);
}

evo_status gpu_tensor_map_of(const evo_call *call, const gpu_bulk_tensor *tensor, gpu_tensor_map *map) {
    return driver_of(call->device)->tensor_map(tensor, map);
}

evo_status gpu_run(const evo_call *call, int stage, const evo_tile *tile) {
    return call->kernel->stage[stage](call, tile);
}

/* --- What goes straight to the driver, in the device's context --- */

evo_status gpu_enter(evo_device *device, void **saved) {
    const evo_status status = refuse_fork(own(device)->vendor, device->index);
    return status != EVO_OK ? status : driver_of(device)->enter(device->index, own(device)->context, saved);
}

void gpu_leave(evo_device *device, void *saved) {
    driver_of(device)->leave(device->index, own(device)->context, saved);
}

#define IN_CONTEXT(device, function, ...)                                  \
    do {                                                                   \
        void *saved_;                                                      \
        const evo_status entered_ = gpu_enter(device, &saved_);            \
        if (entered_ != EVO_OK) return entered_;                           \
        const evo_status status_ = driver_of(device)->function(__VA_ARGS__); \
        gpu_leave(device, saved_);                                         \
        return status_;                                                    \
    } while (0)

static evo_status allocate(evo_device *device, size_t bytes, void **memory) {
    IN_CONTEXT(device, memory_alloc, bytes, memory);
}

evo_status gpu_memory_alloc(evo_device *device, size_t bytes, void **memory) {
    const evo_status status = allocate(device, bytes, memory);
    if (status == EVO_OK) return EVO_OK;
    *memory = NULL;
    return evo_fail(status, "evo_memory_alloc: bytes is %zu: %s", bytes, evo_last_error());
}

evo_status gpu_memory_free(evo_device *device, void *memory) {
    IN_CONTEXT(device, memory_free, memory);
}

evo_status gpu_memory_copy(evo_device *device, void *target, const void *source, size_t bytes, evo_stream stream) {
    IN_CONTEXT(device, memory_copy, target, source, bytes, stream);
}

evo_status gpu_memory_fill(evo_device *device, void *target, int value, size_t bytes, evo_stream stream) {
    IN_CONTEXT(device, memory_fill, target, value, bytes, stream);
}

evo_status gpu_stream_create(evo_device *device, evo_stream *stream) {
    IN_CONTEXT(device, stream_create, stream);
}

/* Asked before what a recording would not survive; the default stream cannot record. */
static evo_status records(evo_device *device, evo_stream stream, bool *recording) {
    *recording = false;
    return stream ? gpu_stream_is_capturing(device, stream, recording) : EVO_OK;
}

static evo_status end_recording(evo_device *device, evo_stream stream, evo_graph *graph) {
    IN_CONTEXT(device, graph_end, stream, graph);
}

static evo_status destroy(evo_device *device, evo_stream stream) {
    IN_CONTEXT(device, stream_destroy, stream);
}

evo_status gpu_stream_destroy(evo_device *device, evo_stream stream) {
    evo_graph unused = NULL;
    bool recording;
    const evo_status status = records(device, stream, &recording);
    if (status != EVO_OK) return status;
    if (recording && end_recording(device, stream, &unused) == EVO_OK) gpu_graph_destroy(device, unused);
    return destroy(device, stream);
}

static evo_status synchronize(evo_device *device, evo_stream stream) {
    IN_CONTEXT(device, stream_synchronize, stream);
}

evo_status gpu_stream_synchronize(evo_device *device, evo_stream stream) {
    bool recording;
    const evo_status status = records(device, stream, &recording);
    if (status != EVO_OK) return status;
    if (recording)
        return evo_fail(EVO_ERROR_CAPTURE,
                        "evo_stream_synchronize: the stream records a graph, expected evo_graph_end first");
    return synchronize(device, stream);
}

evo_status gpu_stream_wait_event(evo_device *device, evo_stream stream, evo_event event) {
    IN_CONTEXT(device, stream_wait_event, stream, event);
}

evo_status gpu_stream_is_capturing(evo_device *device, evo_stream stream, bool *capturing) {
    IN_CONTEXT(device, stream_is_capturing, stream, capturing);
}

evo_status gpu_event_create(evo_device *device, evo_event *event) {
    IN_CONTEXT(device, event_create, event);
}

evo_status gpu_event_destroy(evo_device *device, evo_event event) {
    IN_CONTEXT(device, event_destroy, event);
}

evo_status gpu_event_record(evo_device *device, evo_event event, evo_stream stream) {
    IN_CONTEXT(device, event_record, event, stream);
}

evo_status gpu_event_synchronize(evo_device *device, evo_event event) {
    IN_CONTEXT(device, event_synchronize, event);
}

evo_status gpu_event_elapsed(evo_device *device, evo_event start, evo_event stop, double *milliseconds) {
    IN_CONTEXT(device, event_elapsed, start, stop, milliseconds);
}

static evo_status begin_recording(evo_device *device, evo_stream stream) {
    IN_CONTEXT(device, graph_begin, stream);
}

evo_status gpu_graph_begin(evo_device *device, evo_stream stream) {
    bool recording;
    const evo_status status = records(device, stream, &recording);
    if (status != EVO_OK) return status;
    if (recording)
        return evo_fail(EVO_ERROR_CAPTURE,
                        "evo_graph_begin: the stream already records a graph, expected evo_graph_end first");
    return begin_recording(device, stream);
}

evo_status gpu_graph_end(evo_device *device, evo_stream stream, evo_graph *graph) {
    bool recording;
    const evo_status status = records(device, stream, &recording);
    if (status != EVO_OK) return status;
    if (!recording)
        return evo_fail(EVO_ERROR_CAPTURE,
                        "evo_graph_end: the stream records no graph, expected evo_graph_begin first");
    return end_recording(device, stream, graph);
}

evo_status gpu_graph_launch(evo_device *device, evo_graph graph, evo_stream stream) {
    IN_CONTEXT(device, graph_launch, graph, stream);
}

evo_status gpu_graph_destroy(evo_device *device, evo_graph graph) {
    IN_CONTEXT(device, graph_destroy, graph);
}
