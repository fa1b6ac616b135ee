/* facts.cpp: the chips that can be simulated, their kernels, and the words for errors. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

#include "driver.h"

#ifndef EVO_SIMULATED_SUFFIX
#define EVO_SIMULATED_SUFFIX ""
#endif

namespace simulated {

/*
 * A chip without kernels of its own runs those of one that executes the same instructions. Some have few multiprocessors, so that small cases
 * have more blocks than these.
 */
static const facts table[] = {
    { "sm_80", "Simulated sm_80", "sm_80", 8, 0, 5, 32, 48 << 10, 163 << 10, 1024, 0x7fffffff, 65535 },
    { "sm_86", "Simulated sm_86", "sm_80", 8, 6, 84, 32, 48 << 10, 99 << 10, 1024, 0x7fffffff, 65535 },
    { "sm_90", "Simulated sm_90, of few multiprocessors", "sm_90", 9, 0, 6, 32, 48 << 10, 227 << 10, 1024, 0x7fffffff,
      65535 },
    { "gfx90a", "gfx90a:sramecc+:xnack-", "gfx90a", 9, 0, 104, 64, 64 << 10, 64 << 10, 1024, 0x7fffffff, 65535 },
    { "gfx942", "gfx942:sramecc+:xnack-", "gfx942", 9, 4, 7, 64, 64 << 10, 64 << 10, 1024, 0x7fffffff, 65535 },
    { "gfx1100", "gfx1100", "gfx1100", 11, 0, 48, 32, 64 << 10, 64 << 10, 1024, 0x7fffffff, 65535 },
    { "gfx1201", "gfx1201", "gfx1201", 12, 0, 32, 32, 64 << 10, 64 << 10, 1024, 0x7fffffff, 65535 },
};

const facts *find_facts(const std::string &arch) {
    for (const facts &row : table)
        if (arch == row.arch) return &row;
    return nullptr;
}

const chip *load_chip(const std::string &name) {
    Dl_info here;
    const char *suffix = getenv("EVO_SIMULATED_SUFFIX");
    std::string folder = dladdr((const void *)&load_chip, &here) && here.dli_fname ? here.dli_fname : "./";
    folder.erase(folder.find_last_of('/') == std::string::npos ? 0 : folder.find_last_of('/') + 1);
    const std::string file = folder + "simulated_" + name + (suffix ? suffix : EVO_SIMULATED_SUFFIX) + ".so";
    void *library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    void *entry = library ? dlsym(library, "evo_simulated_chip") : nullptr;
    if (!entry) {
        fprintf(stderr, "simulated device: no kernels of chip %s: %s\n", name.c_str(), dlerror());
        exit(1);
    }
    chip_entry get;
    memcpy(&get, &entry, sizeof get);
    return get();
}

const error_text *find_error(int code) {
    static const error_text errors[] = {
        { success, "CUDA_SUCCESS", "hipSuccess", "no error" },
        { invalid_value, "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue", "invalid argument" },
        { out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory", "out of memory" },
        { not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "hipErrorNotInitialized", "initialization error" },
        { no_device, "CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice", "no capable device is detected" },
        { invalid_device, "CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice", "invalid device ordinal" },
        { invalid_image, "CUDA_ERROR_INVALID_IMAGE", "hipErrorInvalidImage", "device kernel image is invalid" },
        { invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext", "invalid device context" },
        { no_binary_for_gpu, "CUDA_ERROR_NO_BINARY_FOR_GPU", "hipErrorNoBinaryForGpu",
          "no kernel image is available for execution on the device" },
        { invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle", "invalid resource handle" },
        { illegal_state, "CUDA_ERROR_ILLEGAL_STATE", "hipErrorIllegalState",
          "the operation cannot be performed in the present state" },
        { not_found, "CUDA_ERROR_NOT_FOUND", "hipErrorNotFound", "named symbol not found" },
        { not_ready, "CUDA_ERROR_NOT_READY", "hipErrorNotReady", "device not ready" },
        { launch_out_of_resources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "hipErrorLaunchOutOfResources",
          "too many resources requested for launch" },
        { launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure", "unspecified launch failure" },
        { capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "hipErrorStreamCaptureUnsupported",
          "operation not permitted when stream is capturing" },
        { capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "hipErrorStreamCaptureInvalidated",
          "operation failed due to a previous error during capture" },
        { capture_merge, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "hipErrorStreamCaptureMerge",
          "operation would result in a merge of separate capture sequences" },
        { capture_unmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "hipErrorStreamCaptureUnmatched",
          "capture was not ended in the same stream as it began" },
        { capture_unjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "hipErrorStreamCaptureUnjoined",
          "capturing stream has unjoined work" },
        { capture_isolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "hipErrorStreamCaptureIsolation",
          "dependency created on uncaptured work in another stream" },
        { capture_implicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "hipErrorStreamCaptureImplicit",
          "operation would make the legacy stream depend on a capturing blocking stream" },
        { captured_event, "CUDA_ERROR_CAPTURED_EVENT", "hipErrorCapturedEvent",
          "operation not permitted on an event last recorded in a capturing stream" },
    };
    for (const error_text &row : errors)
        if (row.code == code) return &row;
    return nullptr;
}

} // namespace simulated
