/* simcuda.cpp: libsimcuda.so, the entry points of the CUDA driver that backends/cuda uses, over the simulated driver. */
#include <cstdio>
#include <cstring>

#include "driver.h"
#include "tensor_map.h"

using namespace simulated;

#define ENTRY extern "C" __attribute__((visibility("default")))

namespace {

driver &only() {
    static driver made({ "cuda", "sm_80", "sm_" });
    return made;
}

driver *started = nullptr; /* by cuInit */
std::mutex starting;

/* Contexts that the calling thread has pushed; the last is current. A context is its device. */
thread_local std::vector<device *> contexts;

/* Opens every entry point that needs cuInit: takes the lock, and fails if the environment says so. */
class call {
  public:
    explicit call(const char *name) {
        if (!started) {
            state = not_initialized;
            return;
        }
        held = std::unique_lock<std::mutex>(started->lock);
        state = started->injected(name);
    }
    status state;

  private:
    std::unique_lock<std::mutex> held;
};

device *current() {
    return contexts.empty() || contexts.back()->retained == 0 ? nullptr : contexts.back();
}

device *find_device(int index) {
    return index >= 0 && (size_t)index < started->devices.size() ? started->devices[(size_t)index].get() : nullptr;
}

} // namespace

/* The first statements of an entry point: BEGIN needs cuInit, BEGIN_CURRENT a current context `d` too. */
#define BEGIN                                                                                                         \
    call here(__func__);                                                                                              \
    if (here.state != success) return here.state
#define BEGIN_CURRENT                                                                                                 \
    BEGIN;                                                                                                            \
    if (!current()) return invalid_context;                                                                           \
    device &d = *current();                                                                                           \
    (void)d

ENTRY int cuInit(unsigned flags) {
    std::lock_guard<std::mutex> held(starting);
    if (flags) return invalid_value;
    const status injected = only().injected(__func__);
    if (injected != success) return injected;
    if (only().devices.empty()) return no_device;
    started = &only();
    return success;
}

ENTRY int cuDriverGetVersion(int *version) {
    std::lock_guard<std::mutex> held(starting);
    *version = driver::version(12040);
    return only().injected(__func__);
}

/* Not of the real driver: what a test wants to know; `failed` is the entry point that failed on demand, or "". */
ENTRY void simulated_live(counts *live, const char **failed) {
    *live = only().live();
    *failed = only().injected_last.c_str();
}

ENTRY int cuGetErrorName(int code, const char **text) {
    const error_text *found = find_error(code);
    *text = found ? found->cuda_name : nullptr;
    return found ? success : invalid_value;
}

ENTRY int cuGetErrorString(int code, const char **text) {
    const error_text *found = find_error(code);
    *text = found ? found->words : nullptr;
    return found ? success : invalid_value;
}

/* ---- devices and contexts ---- */

ENTRY int cuDeviceGetCount(int *count) {
    BEGIN;
    *count = (int)started->devices.size();
    return success;
}

ENTRY int cuDeviceGet(int *made, int index) {
    BEGIN;
    if (!find_device(index)) return invalid_device;
    *made = index;
    return success;
}

ENTRY int cuDeviceGetName(char *name, int size, int index) {
    BEGIN;
    if (!find_device(index) || size < 1) return invalid_device;
    snprintf(name, (size_t)size, "%s", find_device(index)->about->full_name);
    return success;
}

ENTRY int cuDeviceTotalMem_v2(size_t *bytes, int index) {
    BEGIN;
    if (!find_device(index)) return invalid_device;
    *bytes = find_device(index)->memory_size;
    return success;
}

ENTRY int cuDeviceGetAttribute(int *value, int attribute, int index) {
    BEGIN;
    if (!find_device(index)) return invalid_device;
    const facts &about = *find_device(index)->about;
    const struct {
        int attribute;
        size_t value;
    } known[] = {
        { 1, about.max_threads },            /* MAX_THREADS_PER_BLOCK */
        { 8, about.shared_default },         /* MAX_SHARED_MEMORY_PER_BLOCK */
        { 10, (size_t)about.wave_size },     /* WARP_SIZE */
        { 16, (size_t)about.compute_units }, /* MULTIPROCESSOR_COUNT */
        { 75, (size_t)about.major },         /* COMPUTE_CAPABILITY_MAJOR */
        { 76, (size_t)about.minor },         /* COMPUTE_CAPABILITY_MINOR */
        { 97, about.shared_optin },          /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    };
    for (const auto &row : known)
        if (row.attribute == attribute) {
            *value = (int)row.value;
            return success;
        }
    return invalid_value;
}

ENTRY int cuDevicePrimaryCtxRetain(device **context, int index) {
    BEGIN;
    if (!find_device(index)) return invalid_device;
    *context = find_device(index);
    return started->retain(**context);
}

ENTRY int cuDevicePrimaryCtxRelease_v2(int index) {
    BEGIN;
    return find_device(index) ? started->release(*find_device(index)) : invalid_device;
}

ENTRY int cuCtxPushCurrent_v2(device *context) {
    BEGIN;
    if (!context || context->retained == 0) return invalid_context;
    contexts.push_back(context);
    return success;
}

ENTRY int cuCtxPopCurrent_v2(device **context) {
    BEGIN;
    if (contexts.empty()) return invalid_context;
    if (context) *context = contexts.back();
    contexts.pop_back();
    return success;
}

ENTRY int cuCtxGetCurrent(device **context) {
    BEGIN;
    *context = contexts.empty() ? nullptr : contexts.back();
    return success;
}

/* ---- kernels ---- */

ENTRY int cuModuleLoadData(module **made, const void *image) {
    BEGIN_CURRENT;
    return started->module_load(d, image, made);
}

ENTRY int cuModuleUnload(module *unloaded) {
    BEGIN_CURRENT;
    return started->module_unload(unloaded);
}

ENTRY int cuModuleGetFunction(function **found, module *loaded, const char *name) {
    BEGIN_CURRENT;
    return started->function_get(loaded, name, found);
}

ENTRY int cuFuncSetAttribute(function *f, int attribute, int value) {
    BEGIN_CURRENT;
    const int max_dynamic_shared_size_bytes = 8;
    return attribute == max_dynamic_shared_size_bytes ? started->function_allow_shared(f, value) : invalid_value;
}

/* Parameters come as one buffer: { 1, buffer, 2, &size, 0 }. */
ENTRY int cuLaunchKernel(const function *f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared, stream *in, void **params, void **extra) {
    BEGIN_CURRENT;
    const unsigned grid[3] = { grid_x, grid_y, grid_z }, block[3] = { block_x, block_y, block_z };
    if (params || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)0)
        return invalid_value;
    return started->launch(d, f, grid, block, shared, in, extra[1], *(const size_t *)extra[3]);
}

/* CUlaunchConfig and CUlaunchAttribute, of which only the attribute for an early start is known. */
struct launch_config {
    unsigned grid[3], block[3], shared;
    stream *in;
    struct {
        int id, unused;
        int value[16];
    } *attributes;
    unsigned attribute_count;
};

/* The kernel's one parameter comes as a pointer to it. */
ENTRY int cuLaunchKernelEx(const launch_config *config, const function *f, void **params, void **extra) {
    BEGIN_CURRENT;
    const int programmatic_stream_serialization = 6;
    if (!params || extra) return invalid_value;
    for (unsigned i = 0; i < config->attribute_count; i++)
        if (config->attributes[i].id != programmatic_stream_serialization) return invalid_value;
    return started->launch(d, f, config->grid, config->block, config->shared, config->in, params[0], 0,
                           config->attribute_count > 0 && config->attributes[0].value[0]);
}

/* ---- tensor maps ---- */

/* What the driver's documentation asks for, of tensors of 16-bit numbers in boxes swizzled by 128 bytes; no others are made. */
static bool is_describable(const void *map, int type, unsigned rank, const void *address, const uint64_t *extents,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                           int swizzle, int promotion, int fill) {
    const int float16 = 6, bfloat16 = 9, swizzle_128 = 3;
    if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || !address || rank < 1 || rank > 5) return false;
    if ((type != float16 && type != bfloat16) || interleave || swizzle != swizzle_128) return false;
    if (promotion < 0 || promotion > 3 || fill < 0 || fill > 1) return false;
    for (unsigned i = 0; i < rank; i++) {
        if (extents[i] == 0 || extents[i] > (uint64_t)1 << 32 || box[i] == 0 || box[i] > 256) return false;
        if (i > 0 && (strides[i - 1] % 16 || strides[i - 1] >= (uint64_t)1 << 40)) return false;
        if (steps[i] == 0 || steps[i] > 8) return false;
    }
    return box[0] * 2 % 16 == 0 && box[0] * 2 <= 128;
}

ENTRY int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *extents,
                                 const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                                 int swizzle, int promotion, int fill) {
    BEGIN_CURRENT;
    if (d.about->major < 9 ||
        !is_describable(map, type, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill))
        return invalid_value;
    tensor_map made = {};
    made.magic = tensor_map::MAGIC;
    made.address = (unsigned char *)address;
    made.rank = (uint16_t)rank;
    for (unsigned i = 0; i < rank; i++) {
        made.extents[i] = extents[i];
        if (i > 0) made.strides[i - 1] = strides[i - 1];
        made.box[i] = (uint16_t)box[i];
        if (steps[i] != 1) return invalid_value; /* not simulated */
    }
    if (box[0] * 2 != 128) return invalid_value; /* rows of less than the swizzle are not simulated */
    memcpy(map, &made, sizeof made);
    return success;
}

/* ---- memory ---- */

ENTRY int cuMemAlloc_v2(void **memory, size_t bytes) {
    BEGIN_CURRENT;
    return started->memory_alloc(d, bytes, memory);
}

ENTRY int cuMemFree_v2(void *memory) {
    BEGIN_CURRENT;
    return started->memory_free(memory);
}

ENTRY int cuMemcpyAsync(void *target, const void *source, size_t bytes, stream *in) {
    BEGIN_CURRENT;
    return started->memory_copy(d, target, source, bytes, in);
}

ENTRY int cuMemsetD8Async(void *target, unsigned char value, size_t bytes, stream *in) {
    BEGIN_CURRENT;
    return started->memory_fill(d, target, value, bytes, in);
}

/* ---- streams and events ---- */

ENTRY int cuStreamCreate(stream **made, unsigned flags) {
    BEGIN_CURRENT;
    const unsigned non_blocking = 1;
    return started->stream_create(d, flags != non_blocking, made);
}

ENTRY int cuStreamDestroy_v2(stream *destroyed) {
    BEGIN_CURRENT;
    return started->stream_destroy(destroyed);
}

ENTRY int cuStreamSynchronize(stream *waited) {
    BEGIN_CURRENT;
    return started->stream_synchronize(d, waited);
}

ENTRY int cuStreamWaitEvent(stream *in, event *waited, unsigned flags) {
    BEGIN_CURRENT;
    return flags ? invalid_value : started->stream_wait_event(d, in, waited);
}

ENTRY int cuStreamIsCapturing(stream *asked, int *state) {
    BEGIN_CURRENT;
    return started->stream_capturing(d, asked, state);
}

ENTRY int cuEventCreate(event **made, unsigned flags) {
    BEGIN_CURRENT;
    return flags ? invalid_value : started->event_create(d, made);
}

ENTRY int cuEventDestroy_v2(event *destroyed) {
    BEGIN_CURRENT;
    return started->event_destroy(destroyed);
}

ENTRY int cuEventRecord(event *recorded, stream *in) {
    BEGIN_CURRENT;
    return started->event_record(d, recorded, in);
}

ENTRY int cuEventSynchronize(event *waited) {
    BEGIN_CURRENT;
    return started->event_synchronize(waited);
}

ENTRY int cuEventElapsedTime(float *milliseconds, event *start, event *stop) {
    BEGIN_CURRENT;
    return started->event_elapsed(start, stop, milliseconds);
}

/* ---- graphs ---- */

ENTRY int cuStreamBeginCapture_v2(stream *recorded, int mode) {
    BEGIN_CURRENT;
    return mode < 0 || mode > 2 ? invalid_value : started->capture_begin(d, recorded);
}

ENTRY int cuStreamEndCapture(stream *recorded, graph **made) {
    BEGIN_CURRENT;
    return started->capture_end(d, recorded, made);
}

ENTRY int cuGraphInstantiateWithFlags(graph_exec **made, graph *described, unsigned long long flags) {
    BEGIN_CURRENT;
    return flags ? invalid_value : started->graph_instantiate(d, described, made);
}

ENTRY int cuGraphLaunch(graph_exec *launched, stream *in) {
    BEGIN_CURRENT;
    return started->graph_launch(d, launched, in);
}

ENTRY int cuGraphDestroy(graph *destroyed) {
    BEGIN_CURRENT;
    return started->graph_destroy(destroyed);
}

ENTRY int cuGraphExecDestroy(graph_exec *destroyed) {
    BEGIN_CURRENT;
    return started->graph_exec_destroy(destroyed);
}
