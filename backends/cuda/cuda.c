/*
 * cuda.c: the CUDA driver API behind backends/gpu/driver.h. The driver is loaded at run time (libcuda.so.1, or what
 * EVO_CUDA_LIBRARY names), so this needs neither the toolkit nor its headers: the few types and numbers of cuda.h stand
 * here. Work is done in the device's primary context, the one that the CUDA runtime and PyTorch use.
 */
#include <pthread.h>
#include <stdio.h>

#include "backends/gpu/gpu.h"
#include "backends/gpu/library.h"

/* ---- what cuda.h says; handles are pointers, CUdeviceptr is an address ---- */

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, /* and more about recording up to */
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,

    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
    CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3,
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,

    OLDEST_DRIVER = 11040 /* CUDA 11.4: the first with cuGraphInstantiateWithFlags */
};

/* CUlaunchAttribute and CUlaunchConfig. */
typedef struct launch_attribute {
    int id, unused;
    union {
        int allowed;
        char whole[64];
    } value;
} launch_attribute;
typedef struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    launch_attribute *attributes;
    unsigned attribute_count;
} launch_config;

/* The keys of cuLaunchKernel's list of extra arguments. */
static void *const launch_end = (void *)0, *const launch_buffer = (void *)1, *const launch_buffer_size = (void *)2;

/*
 * Entry points, by the names that cuda.h maps its functions to: FUNCTION(name, suffix, parameters). dlsym knows no macros,
 * and the names without a suffix are the first versions, with other parameters.
 */
#define FUNCTIONS                                                                                                     \
    FUNCTION(cuInit, , (unsigned flags))                                                                              \
    FUNCTION(cuDriverGetVersion, , (int *version))                                                                    \
    FUNCTION(cuGetErrorName, , (int error, const char **text))                                                        \
    FUNCTION(cuGetErrorString, , (int error, const char **text))                                                      \
    FUNCTION(cuDeviceGetCount, , (int *count))                                                                        \
    FUNCTION(cuDeviceGet, , (int *device, int index))                                                                 \
    FUNCTION(cuDeviceGetName, , (char *name, int size, int device))                                                   \
    FUNCTION(cuDeviceGetAttribute, , (int *value, int attribute, int device))                                         \
    FUNCTION(cuDeviceTotalMem, _v2, (size_t *bytes, int device))                                                      \
    FUNCTION(cuDevicePrimaryCtxRetain, , (void **context, int device))                                                \
    FUNCTION(cuDevicePrimaryCtxRelease, _v2, (int device))                                                            \
    FUNCTION(cuCtxPushCurrent, _v2, (void *context))                                                                  \
    FUNCTION(cuCtxPopCurrent, _v2, (void **context))                                                                  \
    FUNCTION(cuModuleLoadData, , (void **module, const void *image))                                                  \
    FUNCTION(cuModuleUnload, , (void *module))                                                                        \
    FUNCTION(cuModuleGetFunction, , (void **function, void *module, const char *name))                                \
    FUNCTION(cuFuncSetAttribute, , (void *function, int attribute, int value))                                        \
    FUNCTION(cuLaunchKernel, ,                                                                                        \
             (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
              unsigned block_z, unsigned shared, void *stream, void **params, void **extra))                          \
    FUNCTION(cuMemAlloc, _v2, (uintptr_t * memory, size_t bytes))                                                     \
    FUNCTION(cuMemFree, _v2, (uintptr_t memory))                                                                      \
    FUNCTION(cuMemcpyAsync, , (uintptr_t target, uintptr_t source, size_t bytes, void *stream))                       \
    FUNCTION(cuMemsetD8Async, , (uintptr_t target, unsigned char value, size_t bytes, void *stream))                  \
    FUNCTION(cuStreamCreate, , (void **stream, unsigned flags))                                                       \
    FUNCTION(cuStreamDestroy, _v2, (void *stream))                                                                    \
    FUNCTION(cuStreamSynchronize, , (void *stream))                                                                   \
    FUNCTION(cuStreamWaitEvent, , (void *stream, void *event, unsigned flags))                                        \
    FUNCTION(cuStreamIsCapturing, , (void *stream, int *state))                                                       \
    FUNCTION(cuEventCreate, , (void **event, unsigned flags))                                                         \
    FUNCTION(cuEventDestroy, _v2, (void *event))                                                                      \
    FUNCTION(cuEventRecord, , (void *event, void *stream))                                                            \
    FUNCTION(cuEventSynchronize, , (void *event))                                                                     \
    FUNCTION(cuEventElapsedTime, , (float *milliseconds, void *start, void *stop))                                    \
    FUNCTION(cuStreamBeginCapture, _v2, (void *stream, int mode))                                                     \
    FUNCTION(cuStreamEndCapture, , (void *stream, void **graph))                                                      \
    FUNCTION(cuGraphInstantiateWithFlags, , (void **executable, void *graph, unsigned long long flags))               \
    FUNCTION(cuGraphLaunch, , (void *executable, void *stream))                                                       \
    FUNCTION(cuGraphDestroy, , (void *graph))                                                                         \
    FUNCTION(cuGraphExecDestroy, , (void *executable))

#define FUNCTION(name, suffix, parameters) int(*name) parameters;
static struct {
    FUNCTIONS
} api;
#undef FUNCTION

/* ---- loading, once for the process ---- */

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static int device_total, driver_version;
static evo_text missing; /* why there is no device; empty if there is one */

/* What older drivers lack: cuFuncLoad comes with CUDA 12.4, the others with 11.8 and 12.0. */
static struct {
    int (*cuFuncLoad)(void *function);
    int (*cuLaunchKernelEx)(const launch_config *config, void *function, void **params, void **extra);
    int (*cuTensorMapEncodeTiled)(gpu_tensor_map *map, int dtype, uint32_t rank, void *data, const uint64_t *extents,
                                  const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                  int swizzle, int promotion, int fill);
} newer;

/* The driver's words for an error, such as "out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)". */
static void add_words(evo_text *text, int error) {
    const char *name = NULL, *words = NULL;
    api.cuGetErrorName(error, &name);
    api.cuGetErrorString(error, &words);
    evo_text_add(text, "%s (%s, %d)", words ? words : "unknown error", name ? name : "CUDA_ERROR", error);
}

static void load_driver(void) {
    static const char *const names[] = { "libcuda.so.1", NULL };
    static const gpu_symbol symbols[] = {
#define FUNCTION(name, suffix, parameters) { #name #suffix, &api.name },
        FUNCTIONS
#undef FUNCTION
    };
    static const gpu_symbol newer_symbols[] = { { "cuFuncLoad", &newer.cuFuncLoad },
                                                { "cuLaunchKernelEx", &newer.cuLaunchKernelEx },
                                                { "cuTensorMapEncodeTiled", &newer.cuTensorMapEncodeTiled } };
    void *library = gpu_library_open("EVO_CUDA_LIBRARY", names, &missing);
    if (!library) return;
    const char *absent = gpu_library_bind(library, symbols, sizeof symbols / sizeof *symbols);
    if (absent) {
        evo_text_add(&missing, "the CUDA driver has no %s, a driver of CUDA %d.%d or later is needed", absent,
                     OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
        return;
    }
    for (size_t i = 0; i < sizeof newer_symbols / sizeof *newer_symbols; i++)
        gpu_library_bind(library, &newer_symbols[i], 1);
    const char *function = "cuDriverGetVersion";
    int error = api.cuDriverGetVersion(&driver_version);
    if (!error && driver_version < OLDEST_DRIVER) {
        evo_text_add(&missing, "the driver is of CUDA %d.%d, one of CUDA %d.%d or later is needed",
                     driver_version / 1000, driver_version % 1000 / 10, OLDEST_DRIVER / 1000,
                     OLDEST_DRIVER % 1000 / 10);
        return;
    }
    if (!error) error = (function = "cuInit", api.cuInit(0));
    if (!error) error = (function = "cuDeviceGetCount", api.cuDeviceGetCount(&device_total));
    if (error) {
        evo_text_add(&missing, "%s: ", function);
        add_words(&missing, error);
    } else if (device_total == 0) {
        evo_text_add(&missing, "the CUDA driver finds no device");
    }
}

/* The status of a call, with this thread's error text set if it failed. */
static evo_status result(const char *function, int error) {
    if (error == CUDA_SUCCESS) return EVO_OK;
    evo_text words = { { 0 }, 0 };
    add_words(&words, error);
    evo_status status = EVO_ERROR_DEVICE;
    if (error == CUDA_ERROR_OUT_OF_MEMORY) status = EVO_ERROR_OUT_OF_MEMORY;
    if (error == CUDA_ERROR_NO_DEVICE) status = EVO_ERROR_NO_DEVICE;
    if (error >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && error <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        status = EVO_ERROR_CAPTURE;
    return evo_fail(status, "cuda: %s: %s", function, words.data);
}

#define CALL(function, ...) result(#function, api.function(__VA_ARGS__))
#define TRY(function, ...)                                                                                            \
    do {                                                                                                              \
        const evo_status tried = CALL(function, __VA_ARGS__);                                                         \
        if (tried != EVO_OK) return tried;                                                                            \
    } while (0)

/* ---- devices and their contexts ---- */

static int device_count(evo_text *why) {
    pthread_once(&load_once, load_driver);
    if (missing.length) evo_text_add(why, "%s", missing.data);
    return missing.length ? 0 : device_total;
}

/* CUDA's number for a device, which every function but cuDeviceGet wants. */
static evo_status device_get(int index, int *device) {
    evo_text why = { { 0 }, 0 };
    if (device_count(&why) == 0) return evo_fail(EVO_ERROR_NO_DEVICE, "cuda: %s", why.data);
    return CALL(cuDeviceGet, device, index);
}

static evo_status properties(int index, gpu_properties *properties) {
    int device, major, minor, shared;
    const evo_status found = device_get(index, &device);
    if (found != EVO_OK) return found;
    TRY(cuDeviceGetName, properties->description, (int)sizeof properties->description, device);
    TRY(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    TRY(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    TRY(cuDeviceGetAttribute, &properties->compute_units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    TRY(cuDeviceGetAttribute, &properties->wave_size, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    TRY(cuDeviceGetAttribute, &shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    TRY(cuDeviceTotalMem, &properties->memory_size, device);
    properties->shared_memory_size = (size_t)shared;
    properties->tensor_maps = major >= 9 && newer.cuTensorMapEncodeTiled && newer.cuLaunchKernelEx;
    properties->has_async_copies = major >= 8;
    properties->flushes_halves = false;
    snprintf(properties->arch, sizeof properties->arch, "sm_%d%d", major, minor);
    return EVO_OK;
}

static evo_status open_device(int index, void **context) {
    int device;
    const evo_status found = device_get(index, &device);
    return found == EVO_OK ? CALL(cuDevicePrimaryCtxRetain, context, device) : found;
}

static void close_device(int index, void *context) {
    int device;
    (void)context;
    if (device_get(index, &device) == EVO_OK) api.cuDevicePrimaryCtxRelease(device);
}

/* CUDA keeps the caller's context below ours, on a stack of the thread. */
static evo_status enter(int index, void *context, void **saved) {
    (void)index;
    *saved = NULL;
    return CALL(cuCtxPushCurrent, context);
}

static void leave(int index, void *context, void *saved) {
    void *popped;
    (void)index;
    (void)context;
    (void)saved;
    api.cuCtxPopCurrent(&popped);
}

/* ---- kernels ---- */

static evo_status module_load(const void *image, size_t size, void **module) {
    (void)size;
    const evo_status status = CALL(cuModuleLoadData, module, image);
    if (status == EVO_ERROR_DEVICE)
        return evo_fail(status, "%s; the driver is of CUDA %d.%d", evo_last_error(), driver_version / 1000,
                        driver_version % 1000 / 10);
    return status;
}

static void module_unload(void *module) {
    api.cuModuleUnload(module);
}

/* A module may load its functions when they are first launched, which must not happen under a recording. */
static evo_status function_get(void *module, const char *name, void **function) {
    const evo_status status = CALL(cuModuleGetFunction, function, module, name);
    if (status != EVO_OK) return evo_fail(status, "%s, of kernel %s", evo_last_error(), name);
    return newer.cuFuncLoad ? result("cuFuncLoad", newer.cuFuncLoad(*function)) : EVO_OK;
}

static evo_status function_allow_shared(void *function, size_t bytes) {
    return CALL(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes);
}

static evo_status launch(void *function, gpu_grid grid, unsigned threads, size_t shared, evo_stream stream,
                         const void *params, size_t size) {
    void *extra[] = { launch_buffer, (void *)(uintptr_t)params, launch_buffer_size, &size, launch_end };
    return CALL(cuLaunchKernel, function, grid.x, grid.y, grid.z, threads, 1, 1, (unsigned)shared, stream, NULL, extra);
}

static evo_status launch_early(void *function, gpu_grid grid, unsigned threads, size_t shared, evo_stream stream,
                               const void *params, size_t size) {
    /* A pointer, not a buffer: a struct with tensor maps does not stand at the beginning of a kernel's parameters. */
    void *pointers[] = { (void *)(uintptr_t)params };
    launch_attribute early = { CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 0, { 1 } };
    const launch_config config = { { grid.x, grid.y, grid.z }, { threads, 1, 1 }, (unsigned)shared, stream, &early, 1 };
    if (!newer.cuLaunchKernelEx) return launch(function, grid, threads, shared, stream, params, size);
    return result("cuLaunchKernelEx", newer.cuLaunchKernelEx(&config, function, pointers, NULL));
}

static evo_status tensor_map(const gpu_bulk_tensor *tensor, gpu_tensor_map *map) {
    uint64_t extents[5], strides[5];
    uint32_t box[5], steps[5];
    for (int d = 0; d < tensor->rank; d++) {
        extents[d] = (uint64_t)tensor->extent[d];
        strides[d] = (uint64_t)tensor->stride[d] * 2;
        box[d] = (uint32_t)tensor->box[d];
        steps[d] = 1;
    }
    const int error = newer.cuTensorMapEncodeTiled(
        map, tensor->dtype == EVO_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        (uint32_t)tensor->rank, (void *)(uintptr_t)tensor->data, extents, strides + 1, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result("cuTensorMapEncodeTiled", error);
}

/* ---- memory ---- */

static evo_status memory_alloc(size_t bytes, void **memory) {
    uintptr_t address = 0;
    const evo_status status = CALL(cuMemAlloc, &address, bytes);
    *memory = (void *)address;
    return status;
}

static evo_status memory_free(void *memory) {
    return CALL(cuMemFree, (uintptr_t)memory);
}

static evo_status memory_copy(void *target, const void *source, size_t bytes, evo_stream stream) {
    return CALL(cuMemcpyAsync, (uintptr_t)target, (uintptr_t)source, bytes, stream);
}

static evo_status memory_fill(void *target, int value, size_t bytes, evo_stream stream) {
    return CALL(cuMemsetD8Async, (uintptr_t)target, (unsigned char)value, bytes, stream);
}

/* ---- streams and events ---- */

static evo_status stream_create(evo_stream *stream) {
    return CALL(cuStreamCreate, stream, CU_STREAM_NON_BLOCKING);
}

static evo_status stream_destroy(evo_stream stream) {
    return CALL(cuStreamDestroy, stream);
}

static evo_status stream_synchronize(evo_stream stream) {
    return CALL(cuStreamSynchronize, stream);
}

/* As `result`; a record in a capture that has ended makes an event an invalid value, until it is recorded again. */
static evo_status event_result(const char *function, int error) {
    if (error != CUDA_ERROR_INVALID_VALUE) return result(function, error);
    return evo_fail(EVO_ERROR_CAPTURE, "cuda: %s: the event's last record is in a graph, expected one outside of it",
                    function);
}

static evo_status stream_wait_event(evo_stream stream, evo_event event) {
    return event_result("cuStreamWaitEvent", api.cuStreamWaitEvent(stream, event, 0));
}

static evo_status stream_is_capturing(evo_stream stream, bool *capturing) {
    int state = 0;
    const evo_status status = CALL(cuStreamIsCapturing, stream, &state);
    *capturing = state != 0;
    return status;
}

static evo_status event_create(evo_event *event) {
    return CALL(cuEventCreate, event, 0);
}

static evo_status event_destroy(evo_event event) {
    return CALL(cuEventDestroy, event);
}

static evo_status event_record(evo_event event, evo_stream stream) {
    return CALL(cuEventRecord, event, stream);
}

static evo_status event_synchronize(evo_event event) {
    return event_result("cuEventSynchronize", api.cuEventSynchronize(event));
}

static evo_status event_elapsed(evo_event start, evo_event stop, double *milliseconds) {
    float elapsed = 0;
    const int error = api.cuEventElapsedTime(&elapsed, start, stop);
    if (error == CUDA_ERROR_INVALID_HANDLE || error == CUDA_ERROR_NOT_READY)
        return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "evo_event_elapsed: start or stop is %s",
                        error == CUDA_ERROR_NOT_READY ? "not complete, expected evo_event_synchronize first"
                                                      : "not recorded, expected evo_event_record first");
    if (error == CUDA_SUCCESS) *milliseconds = (double)elapsed;
    return event_result("cuEventElapsedTime", error);
}

/* ---- graphs ---- */

/* Relaxed: what this thread does beside the recording, such as planning, is its own business. */
static evo_status graph_begin(evo_stream stream) {
    return CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
}

static evo_status graph_end(evo_stream stream, evo_graph *graph) {
    void *recorded = NULL;
    TRY(cuStreamEndCapture, stream, &recorded);
    const evo_status status = CALL(cuGraphInstantiateWithFlags, graph, recorded, 0);
    api.cuGraphDestroy(recorded);
    return status;
}

static evo_status graph_launch(evo_graph graph, evo_stream stream) {
    return CALL(cuGraphLaunch, graph, stream);
}

static evo_status graph_destroy(evo_graph graph) {
    return CALL(cuGraphExecDestroy, graph);
}

const gpu_driver evo_cuda_driver = {
    .name = "cuda",
    .grid_threads = UINT64_MAX, /* blocks are counted, not threads */
    .device_count = device_count,
    .properties = properties,
    .open = open_device,
    .close = close_device,
    .enter = enter,
    .leave = leave,
    .module_load = module_load,
    .module_unload = module_unload,
    .function_get = function_get,
    .function_allow_shared = function_allow_shared,
    .launch = launch,
    .launch_early = launch_early,
    .tensor_map = tensor_map,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .memory_copy = memory_copy,
    .memory_fill = memory_fill,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .stream_wait_event = stream_wait_event,
    .stream_is_capturing = stream_is_capturing,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
};

GPU_BACKEND(cuda, evo_cuda_driver);
