/*
 * hip.c: the HIP runtime behind backends/gpu/driver.h. It is loaded at run time (libamdhip64.so of ROCm 7, 6 or 5, or
 * what EVO_HIP_LIBRARY names), so this needs neither ROCm nor its headers: the few types and numbers of hip_runtime_api.h
 * stand here. HIP has one context for each device, so "current" is a device of the thread.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends/gpu/gpu.h"
#include "backends/gpu/library.h"

/* ---- what hip_runtime_api.h says; handles are pointers. These numbers are the same from ROCm 5.0 to 7 ---- */

enum {
    hipSuccess = 0,
    hipErrorOutOfMemory = 2,
    hipErrorNoDevice = 100,
    hipErrorInvalidHandle = 400,
    hipErrorNotReady = 600,
    hipErrorStreamCaptureUnsupported = 900, /* and more about recording up to */
    hipErrorStreamCaptureWrongThread = 908,

    hipDeviceAttributeMultiprocessorCount = 63,
    hipDeviceAttributeMaxSharedMemoryPerBlock = 74,
    hipDeviceAttributeWarpSize = 87,

    hipMemcpyDefault = 4,
    hipStreamNonBlocking = 1,
    hipStreamCaptureModeRelaxed = 2,

    OLDEST_RUNTIME = 50000000 /* ROCm 5.0, counted as 10000000 * major + 100000 * minor + patch */
};

/*
 * Of hipDeviceProp_t only two members are read. ROCm 6 changed the struct and named the function that fills the new one
 * hipGetDevicePropertiesR0600; hipGetDeviceProperties still fills the old one.
 */
enum {
    PROPERTIES_SIZE = 1472, /* of the new struct; the old one has 792 */
    NAME_OFFSET = 0,
    ARCH_OFFSET = 1160, /* gcnArchName, 256 bytes */
    ARCH_OFFSET_OLD = 396
};

/* The keys of hipModuleLaunchKernel's list of extra arguments. */
static void *const launch_buffer = (void *)1, *const launch_buffer_size = (void *)2, *const launch_end = (void *)3;

/* Entry points: FUNCTION(name, parameters). */
#define FUNCTIONS                                                                                                     \
    FUNCTION(hipRuntimeGetVersion, (int *version))                                                                    \
    FUNCTION(hipGetLastError, (void))                                                                                 \
    FUNCTION(hipGetDeviceCount, (int *count))                                                                         \
    FUNCTION(hipGetDevice, (int *device))                                                                             \
    FUNCTION(hipSetDevice, (int device))                                                                              \
    FUNCTION(hipDeviceGetAttribute, (int *value, int attribute, int device))                                          \
    FUNCTION(hipDeviceTotalMem, (size_t * bytes, int device))                                                         \
    FUNCTION(hipModuleLoadData, (void **module, const void *image))                                                   \
    FUNCTION(hipModuleUnload, (void *module))                                                                         \
    FUNCTION(hipModuleGetFunction, (void **function, void *module, const char *name))                                 \
    FUNCTION(hipModuleLaunchKernel,                                                                                   \
             (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
              unsigned block_z, unsigned shared, void *stream, void **params, void **extra))                          \
    FUNCTION(hipMalloc, (void **memory, size_t bytes))                                                                \
    FUNCTION(hipFree, (void *memory))                                                                                 \
    FUNCTION(hipMemcpyAsync, (void *target, const void *source, size_t bytes, int kind, void *stream))                \
    FUNCTION(hipMemsetAsync, (void *target, int value, size_t bytes, void *stream))                                   \
    FUNCTION(hipStreamCreateWithFlags, (void **stream, unsigned flags))                                               \
    FUNCTION(hipStreamDestroy, (void *stream))                                                                        \
    FUNCTION(hipStreamSynchronize, (void *stream))                                                                    \
    FUNCTION(hipStreamWaitEvent, (void *stream, void *event, unsigned flags))                                         \
    FUNCTION(hipStreamIsCapturing, (void *stream, int *state))                                                        \
    FUNCTION(hipEventCreateWithFlags, (void **event, unsigned flags))                                                 \
    FUNCTION(hipEventDestroy, (void *event))                                                                          \
    FUNCTION(hipEventRecord, (void *event, void *stream))                                                             \
    FUNCTION(hipEventSynchronize, (void *event))                                                                      \
    FUNCTION(hipEventElapsedTime, (float *milliseconds, void *start, void *stop))                                     \
    FUNCTION(hipStreamBeginCapture, (void *stream, int mode))                                                         \
    FUNCTION(hipStreamEndCapture, (void *stream, void **graph))                                                       \
    FUNCTION(hipGraphInstantiate,                                                                                     \
             (void **executable, void *graph, void **error_node, char *log, size_t log_size))                         \
    FUNCTION(hipGraphLaunch, (void *executable, void *stream))                                                        \
    FUNCTION(hipGraphDestroy, (void *graph))                                                                          \
    FUNCTION(hipGraphExecDestroy, (void *executable))

#define FUNCTION(name, parameters) int(*name) parameters;
static struct {
    FUNCTIONS
    const char *(*hipGetErrorName)(int error);
    const char *(*hipGetErrorString)(int error);
    int (*get_properties)(void *properties, int device);
} api;
#undef FUNCTION

/* ---- loading, once for the process ---- */

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static int device_total, runtime_version, arch_offset;
static evo_text missing; /* why there is no device; empty if there is one */

/* The runtime's words for an error, such as "out of memory (hipErrorOutOfMemory, 2)". */
static void add_words(evo_text *text, int error) {
    const char *name = api.hipGetErrorName(error), *words = api.hipGetErrorString(error);
    evo_text_add(text, "%s (%s, %d)", words ? words : "unknown error", name ? name : "hipError", error);
}

/* The name of the first entry point that is missing; NULL if all are there. */
static const char *bind_functions(void *library) {
    static const gpu_symbol symbols[] = {
#define FUNCTION(name, parameters) { #name, &api.name },
        FUNCTIONS
#undef FUNCTION
        { "hipGetErrorName", &api.hipGetErrorName },
        { "hipGetErrorString", &api.hipGetErrorString },
    };
    static const gpu_symbol properties_new = { "hipGetDevicePropertiesR0600", &api.get_properties };
    static const gpu_symbol properties_old = { "hipGetDeviceProperties", &api.get_properties };
    const char *absent = gpu_library_bind(library, symbols, sizeof symbols / sizeof *symbols);
    if (absent) return absent;
    arch_offset = ARCH_OFFSET;
    if (!gpu_library_bind(library, &properties_new, 1)) return NULL;
    arch_offset = ARCH_OFFSET_OLD;
    return gpu_library_bind(library, &properties_old, 1);
}

static void load_runtime(void) {
    static const char *const names[] = { "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", NULL };
    void *library = gpu_library_open("EVO_HIP_LIBRARY", names, &missing);
    if (!library) return;
    const char *absent = bind_functions(library);
    if (absent) {
        evo_text_add(&missing, "the HIP runtime has no %s, ROCm %d.0 or later is needed", absent,
                     OLDEST_RUNTIME / 10000000);
        return;
    }
    const char *function = "hipRuntimeGetVersion";
    int error = api.hipRuntimeGetVersion(&runtime_version);
    if (!error && runtime_version < OLDEST_RUNTIME) {
        evo_text_add(&missing, "the HIP runtime is of ROCm %d.%d, ROCm %d.0 or later is needed",
                     runtime_version / 10000000, runtime_version / 100000 % 100, OLDEST_RUNTIME / 10000000);
        return;
    }
    if (!error) error = (function = "hipGetDeviceCount", api.hipGetDeviceCount(&device_total));
    if (error) {
        evo_text_add(&missing, "%s: ", function);
        add_words(&missing, error);
        api.hipGetLastError();
    } else if (device_total == 0) {
        evo_text_add(&missing, "the HIP runtime finds no device");
    }
}

/*
 * The status of a call, with this thread's error text set if it failed. The runtime keeps the last error of each thread for
 * whoever asks next; ours is taken away, so that the caller's own checks do not find it.
 */
static evo_status result(const char *function, int error) {
    if (error == hipSuccess) return EVO_OK;
    evo_text words = { { 0 }, 0 };
    add_words(&words, error);
    api.hipGetLastError();
    evo_status status = EVO_ERROR_DEVICE;
    if (error == hipErrorOutOfMemory) status = EVO_ERROR_OUT_OF_MEMORY;
    if (error == hipErrorNoDevice) status = EVO_ERROR_NO_DEVICE;
    if (error >= hipErrorStreamCaptureUnsupported && error <= hipErrorStreamCaptureWrongThread)
        status = EVO_ERROR_CAPTURE;
    return evo_fail(status, "hip: %s: %s", function, words.data);
}

#define CALL(function, ...) result(#function, api.function(__VA_ARGS__))
#define TRY(function, ...)                                                                                            \
    do {                                                                                                              \
        const evo_status tried = CALL(function, __VA_ARGS__);                                                         \
        if (tried != EVO_OK) return tried;                                                                            \
    } while (0)

/* ---- devices ---- */

static int device_count(evo_text *why) {
    pthread_once(&load_once, load_runtime);
    if (missing.length) evo_text_add(why, "%s", missing.data);
    return missing.length ? 0 : device_total;
}

static evo_status require_device(void) {
    evo_text why = { { 0 }, 0 };
    return device_count(&why) > 0 ? EVO_OK : evo_fail(EVO_ERROR_NO_DEVICE, "hip: %s", why.data);
}

/* "gfx942:sramecc+:xnack-" is a gfx942 with its settings; our code objects run with any. */
static evo_status properties(int index, gpu_properties *properties) {
    char found[PROPERTIES_SIZE + 1] = { 0 };
    int shared;
    const evo_status status = require_device();
    if (status != EVO_OK) return status;
    const evo_status asked = result("hipGetDeviceProperties", api.get_properties(found, index));
    if (asked != EVO_OK) return asked;
    TRY(hipDeviceGetAttribute, &properties->compute_units, hipDeviceAttributeMultiprocessorCount, index);
    TRY(hipDeviceGetAttribute, &properties->wave_size, hipDeviceAttributeWarpSize, index);
    TRY(hipDeviceGetAttribute, &shared, hipDeviceAttributeMaxSharedMemoryPerBlock, index);
    TRY(hipDeviceTotalMem, &properties->memory_size, index);
    properties->shared_memory_size = (size_t)shared;
    properties->tensor_maps = false;
    const char *arch = found + arch_offset;
    snprintf(properties->arch, sizeof properties->arch, "%.*s", (int)strcspn(arch, ":"), arch);
    properties->has_async_copies = false;
    properties->flushes_halves = strcmp(properties->arch, "gfx90a") == 0;
    snprintf(properties->description, sizeof properties->description, "%.127s", found + NAME_OFFSET);
    return EVO_OK;
}

/* The runtime makes a device's context when it is first used, and keeps it. */
static evo_status open_device(int index, void **context) {
    *context = NULL;
    (void)index;
    return require_device();
}

static void close_device(int index, void *context) {
    (void)index;
    (void)context;
}

static evo_status enter(int index, void *context, void **saved) {
    int current;
    (void)context;
    TRY(hipGetDevice, &current);
    *saved = (void *)(intptr_t)current;
    return current == index ? EVO_OK : CALL(hipSetDevice, index);
}

static void leave(int index, void *context, void *saved) {
    (void)context;
    if ((int)(intptr_t)saved != index) api.hipSetDevice((int)(intptr_t)saved);
}

/* ---- kernels ---- */

static evo_status module_load(const void *image, size_t size, void **module) {
    (void)size;
    const evo_status status = CALL(hipModuleLoadData, module, image);
    if (status == EVO_ERROR_DEVICE)
        return evo_fail(status, "%s; the runtime is of ROCm %d.%d", evo_last_error(), runtime_version / 10000000,
                        runtime_version / 100000 % 100);
    return status;
}

static void module_unload(void *module) {
    api.hipModuleUnload(module);
}

static evo_status function_get(void *module, const char *name, void **function) {
    const evo_status status = CALL(hipModuleGetFunction, function, module, name);
    return status == EVO_OK ? EVO_OK : evo_fail(status, "%s, of kernel %s", evo_last_error(), name);
}

/* AMD devices give a block all that they have without being asked. */
static evo_status function_allow_shared(void *function, size_t bytes) {
    (void)function;
    (void)bytes;
    return EVO_OK;
}

static evo_status launch(void *function, gpu_grid grid, unsigned threads, size_t shared, evo_stream stream,
                         const void *params, size_t size) {
    void *extra[] = { launch_buffer, (void *)(uintptr_t)params, launch_buffer_size, &size, launch_end };
    return CALL(hipModuleLaunchKernel, function, grid.x, grid.y, grid.z, threads, 1, 1, (unsigned)shared, stream, NULL,
                extra);
}

/* ---- memory ---- */

static evo_status memory_alloc(size_t bytes, void **memory) {
    return CALL(hipMalloc, memory, bytes);
}

static evo_status memory_free(void *memory) {
    return CALL(hipFree, memory);
}

static evo_status memory_copy(void *target, const void *source, size_t bytes, evo_stream stream) {
    return CALL(hipMemcpyAsync, target, source, bytes, hipMemcpyDefault, stream);
}

static evo_status memory_fill(void *target, int value, size_t bytes, evo_stream stream) {
    return CALL(hipMemsetAsync, target, value, bytes, stream);
}

/* ---- streams and events ---- */

static evo_status stream_create(evo_stream *stream) {
    return CALL(hipStreamCreateWithFlags, stream, hipStreamNonBlocking);
}

static evo_status stream_destroy(evo_stream stream) {
    return CALL(hipStreamDestroy, stream);
}

static evo_status stream_synchronize(evo_stream stream) {
    return CALL(hipStreamSynchronize, stream);
}

static evo_status stream_wait_event(evo_stream stream, evo_event event) {
    return CALL(hipStreamWaitEvent, stream, event, 0);
}

static evo_status stream_is_capturing(evo_stream stream, bool *capturing) {
    int state = 0;
    const evo_status status = CALL(hipStreamIsCapturing, stream, &state);
    *capturing = state != 0;
    return status;
}

static evo_status event_create(evo_event *event) {
    return CALL(hipEventCreateWithFlags, event, 0);
}

static evo_status event_destroy(evo_event event) {
    return CALL(hipEventDestroy, event);
}

static evo_status event_record(evo_event event, evo_stream stream) {
    return CALL(hipEventRecord, event, stream);
}

static evo_status event_synchronize(evo_event event) {
    return CALL(hipEventSynchronize, event);
}

static evo_status event_elapsed(evo_event start, evo_event stop, double *milliseconds) {
    float elapsed = 0;
    const int error = api.hipEventElapsedTime(&elapsed, start, stop);
    if (error == hipErrorInvalidHandle || error == hipErrorNotReady) {
        api.hipGetLastError();
        return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "evo_event_elapsed: start or stop is %s",
                        error == hipErrorNotReady ? "not complete, expected evo_event_synchronize first"
                                                  : "not recorded, expected evo_event_record first");
    }
    if (error == hipSuccess) *milliseconds = (double)elapsed;
    return result("hipEventElapsedTime", error);
}

/* ---- graphs ---- */

/* Relaxed: what this thread does beside the recording, such as planning, is its own business. */
static evo_status graph_begin(evo_stream stream) {
    return CALL(hipStreamBeginCapture, stream, hipStreamCaptureModeRelaxed);
}

static evo_status graph_end(evo_stream stream, evo_graph *graph) {
    void *recorded = NULL;
    TRY(hipStreamEndCapture, stream, &recorded);
    const evo_status status = CALL(hipGraphInstantiate, graph, recorded, NULL, NULL, 0);
    api.hipGraphDestroy(recorded);
    return status;
}

static evo_status graph_launch(evo_graph graph, evo_stream stream) {
    return CALL(hipGraphLaunch, graph, stream);
}

static evo_status graph_destroy(evo_graph graph) {
    return CALL(hipGraphExecDestroy, graph);
}

const gpu_driver evo_hip_driver = {
    .name = "hip",
    .grid_threads = UINT32_MAX,
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
    .launch_early = launch,
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

GPU_BACKEND(hip, evo_hip_driver);
