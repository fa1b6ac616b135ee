/* simhip.cpp: libsimhip.so, the entry points of the HIP runtime that backends/hip uses, over the simulated driver. */
#include <cstdio>
#include <cstring>

#include "driver.h"

using namespace simulated;

#define ENTRY extern "C" __attribute__((visibility("default")))

namespace {

/* The runtime starts with the first call. */
driver &runtime() {
    static driver only({ "hip", "gfx942", "gfx" });
    return only;
}

thread_local int current = 0; /* the device of the calling thread */
thread_local int last_error = success;

/* Opens every entry point: takes the lock, and fails if there is no device or the environment says so. */
class call {
  public:
    explicit call(const char *name) : r(runtime()), held(r.lock) {
        state = r.devices.empty() ? no_device : r.injected(name);
    }
    driver &r;
    status state;

  private:
    std::lock_guard<std::mutex> held;
};

device *find_device(driver &r, int index) {
    return index >= 0 && (size_t)index < r.devices.size() ? r.devices[(size_t)index].get() : nullptr;
}

/* What an entry point returns: a failure is also the thread's last error. */
int give(int code) {
    if (code != success) last_error = code;
    return code;
}

} // namespace

/* The first statements of an entry point: `r` is the runtime; BEGIN_CURRENT has the thread's device `d` too. */
#define BEGIN                                                                                                         \
    call here(__func__);                                                                                              \
    driver &r = here.r;                                                                                               \
    (void)r;                                                                                                          \
    if (here.state != success) return give(here.state)
#define BEGIN_CURRENT                                                                                                 \
    BEGIN;                                                                                                            \
    device &d = *find_device(r, current);                                                                             \
    (void)d

/* Not of the real runtime: what a test wants to know; `failed` is the entry point that failed on demand, or "". */
ENTRY void simulated_live(counts *live, const char **failed) {
    *live = runtime().live();
    *failed = runtime().injected_last.c_str();
}

ENTRY int hipRuntimeGetVersion(int *version) {
    *version = driver::version(60241134);
    return runtime().injected(__func__);
}

ENTRY int hipGetLastError() {
    const int code = last_error;
    last_error = success;
    return code;
}

ENTRY int hipPeekAtLastError() {
    return last_error;
}

ENTRY const char *hipGetErrorName(int code) {
    const error_text *found = find_error(code);
    return found ? found->hip_name : "hipErrorUnknown";
}

ENTRY const char *hipGetErrorString(int code) {
    const error_text *found = find_error(code);
    return found ? found->words : "unknown error";
}

/* ---- devices ---- */

ENTRY int hipGetDeviceCount(int *count) {
    *count = 0;
    BEGIN;
    *count = (int)r.devices.size();
    return success;
}

ENTRY int hipGetDevice(int *index) {
    BEGIN;
    *index = current;
    return success;
}

ENTRY int hipSetDevice(int index) {
    BEGIN;
    if (!find_device(r, index)) return give(invalid_device);
    current = index;
    return success;
}

ENTRY int hipDeviceGetAttribute(int *value, int attribute, int index) {
    BEGIN;
    if (!find_device(r, index)) return give(invalid_device);
    const facts &about = *find_device(r, index)->about;
    const int multiprocessor_count = 63, max_shared_memory_per_block = 74, warp_size = 87;
    if (attribute == multiprocessor_count)
        *value = about.compute_units;
    else if (attribute == max_shared_memory_per_block)
        *value = (int)about.shared_optin;
    else if (attribute == warp_size)
        *value = about.wave_size;
    else
        return give(invalid_value);
    return success;
}

ENTRY int hipDeviceTotalMem(size_t *bytes, int index) {
    BEGIN;
    if (!find_device(r, index)) return give(invalid_device);
    *bytes = find_device(r, index)->memory_size;
    return success;
}

/* Of hipDeviceProp_t, the name and gcnArchName; the rest is filled with something that is no text. */
static int fill_properties(driver &r, void *properties, size_t size, size_t arch_offset, int index) {
    char *const bytes = (char *)properties;
    if (!find_device(r, index)) return give(invalid_device);
    const facts &about = *find_device(r, index)->about;
    memset(bytes, 0xa5, size);
    snprintf(bytes, 256, "Simulated %s", about.arch);
    snprintf(bytes + arch_offset, 256, "%s", about.full_name);
    return success;
}

ENTRY int hipGetDevicePropertiesR0600(void *properties, int index) {
    BEGIN;
    return fill_properties(r, properties, 1472, 1160, index);
}

/* The struct of ROCm 5. */
ENTRY int hipGetDeviceProperties(void *properties, int index) {
    BEGIN;
    return fill_properties(r, properties, 792, 396, index);
}

/* ---- kernels ---- */

ENTRY int hipModuleLoadData(module **made, const void *image) {
    BEGIN_CURRENT;
    return give(r.module_load(d, image, made));
}

ENTRY int hipModuleUnload(module *unloaded) {
    BEGIN;
    return give(r.module_unload(unloaded));
}

ENTRY int hipModuleGetFunction(function **found, module *loaded, const char *name) {
    BEGIN;
    return give(r.function_get(loaded, name, found));
}

/* Parameters come as one buffer: { 1, buffer, 2, &size, 3 }. */
ENTRY int hipModuleLaunchKernel(const function *f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                unsigned block_y, unsigned block_z, unsigned shared, stream *in, void **params,
                                void **extra) {
    BEGIN_CURRENT;
    const unsigned grid[3] = { grid_x, grid_y, grid_z }, block[3] = { block_x, block_y, block_z };
    if (params || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3)
        return give(invalid_value);
    return give(r.launch(d, f, grid, block, shared, in, extra[1], *(const size_t *)extra[3]));
}

/* ---- memory ---- */

ENTRY int hipMalloc(void **memory, size_t bytes) {
    BEGIN_CURRENT;
    return give(r.memory_alloc(d, bytes, memory));
}

ENTRY int hipFree(void *memory) {
    BEGIN;
    return give(memory ? r.memory_free(memory) : success);
}

ENTRY int hipMemcpyAsync(void *target, const void *source, size_t bytes, int kind, stream *in) {
    BEGIN_CURRENT;
    const int automatic = 4;
    return give(kind == automatic ? r.memory_copy(d, target, source, bytes, in) : invalid_value);
}

ENTRY int hipMemsetAsync(void *target, int value, size_t bytes, stream *in) {
    BEGIN_CURRENT;
    return give(r.memory_fill(d, target, value, bytes, in));
}

/* ---- streams and events ---- */

ENTRY int hipStreamCreateWithFlags(stream **made, unsigned flags) {
    BEGIN_CURRENT;
    const unsigned non_blocking = 1;
    return give(r.stream_create(d, flags != non_blocking, made));
}

ENTRY int hipStreamDestroy(stream *destroyed) {
    BEGIN;
    return give(r.stream_destroy(destroyed));
}

ENTRY int hipStreamSynchronize(stream *waited) {
    BEGIN_CURRENT;
    return give(r.stream_synchronize(d, waited));
}

ENTRY int hipStreamWaitEvent(stream *in, event *waited, unsigned flags) {
    BEGIN_CURRENT;
    return give(flags ? invalid_value : r.stream_wait_event(d, in, waited));
}

ENTRY int hipStreamIsCapturing(stream *asked, int *state) {
    BEGIN_CURRENT;
    return give(r.stream_capturing(d, asked, state));
}

ENTRY int hipEventCreateWithFlags(event **made, unsigned flags) {
    BEGIN_CURRENT;
    return give(flags ? invalid_value : r.event_create(d, made));
}

ENTRY int hipEventDestroy(event *destroyed) {
    BEGIN;
    return give(r.event_destroy(destroyed));
}

ENTRY int hipEventRecord(event *recorded, stream *in) {
    BEGIN_CURRENT;
    return give(r.event_record(d, recorded, in));
}

ENTRY int hipEventSynchronize(event *waited) {
    BEGIN;
    return give(r.event_synchronize(waited));
}

ENTRY int hipEventElapsedTime(float *milliseconds, event *start, event *stop) {
    BEGIN;
    return give(r.event_elapsed(start, stop, milliseconds));
}

/* ---- graphs ---- */

ENTRY int hipStreamBeginCapture(stream *recorded, int mode) {
    BEGIN_CURRENT;
    return give(mode < 0 || mode > 2 ? invalid_value : r.capture_begin(d, recorded));
}

ENTRY int hipStreamEndCapture(stream *recorded, graph **made) {
    BEGIN_CURRENT;
    return give(r.capture_end(d, recorded, made));
}

ENTRY int hipGraphInstantiate(graph_exec **made, graph *described, void **, char *, size_t) {
    BEGIN_CURRENT;
    return give(r.graph_instantiate(d, described, made));
}

ENTRY int hipGraphLaunch(graph_exec *launched, stream *in) {
    BEGIN_CURRENT;
    return give(r.graph_launch(d, launched, in));
}

ENTRY int hipGraphDestroy(graph *destroyed) {
    BEGIN;
    return give(r.graph_destroy(destroyed));
}

ENTRY int hipGraphExecDestroy(graph_exec *destroyed) {
    BEGIN;
    return give(r.graph_exec_destroy(destroyed));
}
