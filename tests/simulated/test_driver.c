/*
 * test_driver.c: both adapters against the simulated drivers: what they refuse and in which words, that the caller's
 * context stays, limits of a launch, order, recording, exhaustion, failures of single calls. Each test is a child process.
 */
#include "child.h"

#include <dlfcn.h>
#include <pthread.h>

#include "faults.h"

static const gpu_driver *driver;

static bool is_cuda(void) {
    return strcmp(driver->name, "cuda") == 0;
}

/* The driver's own function, by its name in each vendor's library. */
static void *vendor_function(const char *cuda_name, const char *hip_name) {
    const char *library = getenv(is_cuda() ? "EVO_CUDA_LIBRARY" : "EVO_HIP_LIBRARY");
    void *loaded = dlopen(library ? library : "", RTLD_NOW);
    REQUIRE(loaded);
    void *found = dlsym(loaded, is_cuda() ? cuda_name : hip_name);
    REQUIRE(found);
    return found;
}

/* ---- an open device ---- */

typedef struct opened {
    void *context, *saved, *module, *copy;
    void *in, *out; /* FAULT_THREADS numbers */
} opened;

static opened open_first(void) {
    opened o;
    evo_text why = { { 0 }, 0 };
    REQUIRE(driver->device_count(&why) > 0);
    OK(driver->open(0, &o.context));
    OK(driver->enter(0, o.context, &o.saved));
    OK(driver->module_load("any image", 9, &o.module));
    OK(driver->function_get(o.module, "fault_copy", &o.copy));
    OK(driver->memory_alloc(FAULT_THREADS * sizeof(float), &o.in));
    OK(driver->memory_alloc(FAULT_THREADS * sizeof(float), &o.out));
    return o;
}

static void close_first(const opened *o) {
    OK(driver->memory_free(o->in));
    OK(driver->memory_free(o->out));
    driver->module_unload(o->module);
    driver->leave(0, o->context, o->saved);
    driver->close(0, o->context);
}

static evo_status launch_copy(const opened *o, unsigned blocks, unsigned threads, size_t shared, evo_stream stream,
                              size_t params_size) {
    const fault_params params = { o->in, o->out, FAULT_THREADS, 0 };
    return driver->launch(o->copy, (gpu_grid){ blocks, 1, 1 }, threads, shared, stream, &params, params_size);
}

static evo_status launch_right(const opened *o, evo_stream stream) {
    return launch_copy(o, 1, FAULT_THREADS, 0, stream, sizeof(fault_params));
}

static float first_number(const void *memory) {
    float number = -1;
    OK(driver->memory_copy(&number, memory, sizeof number, NULL));
    OK(driver->stream_synchronize(NULL));
    return number;
}

static void set_numbers(void *memory, float value) {
    float numbers[FAULT_THREADS];
    for (int i = 0; i < FAULT_THREADS; i++) numbers[i] = value;
    OK(driver->memory_copy(memory, numbers, sizeof numbers, NULL));
    OK(driver->stream_synchronize(NULL));
}

/* ---- no device ---- */

static void require_none(const char *words) {
    evo_text why = { { 0 }, 0 };
    void *context;
    gpu_properties properties;
    const int count = driver->device_count(&why);
    if (count == 0 && strstr(why.data, words)) {
        FAILS(driver->open(0, &context), EVO_ERROR_NO_DEVICE, words);
        FAILS(driver->properties(0, &properties), EVO_ERROR_NO_DEVICE, words);
        return;
    }
    fprintf(stderr, "%d devices, expected none and \"%s\": %s\n", count, words, why.data);
    exit(1);
}

static int missing_library(const void *words) {
    require_none("no-such-library");
    require_none(words);
    return 0;
}

static int missing_entry_point(const void *words) {
    require_none(words);
    return 0;
}

static void test_no_device(void **state) {
    (void)state;
    const char *library = is_cuda() ? "EVO_CUDA_LIBRARY" : "EVO_HIP_LIBRARY";
    char nowhere[64], other[64];
    snprintf(nowhere, sizeof nowhere, "%s=/no-such-library.so", library);
    snprintf(other, sizeof other, "%s=libm.so.6", library);
    check_child(missing_library, library, (const char *const[]){ nowhere, NULL });
    check_child(missing_entry_point, is_cuda() ? "has no cuInit" : "has no hipRuntimeGetVersion",
                (const char *const[]){ other, NULL });
    check_child(
        missing_entry_point, is_cuda() ? "is of CUDA 10.2, one of CUDA 11.4" : "is of ROCm 4.5, ROCm 5.0",
        (const char *const[]){ is_cuda() ? "EVO_SIMULATED_VERSION=10020" : "EVO_SIMULATED_VERSION=40500000", NULL });
    check_child(missing_entry_point, is_cuda() ? "CUDA_ERROR_NO_DEVICE, 100" : "hipErrorNoDevice, 100",
                (const char *const[]){ "EVO_SIMULATED_ARCH=none", NULL });
}

/* ---- devices and contexts ---- */

static int properties_body(const void *arch) {
    gpu_properties p;
    evo_text why = { { 0 }, 0 };
    REQUIRE(driver->device_count(&why) == 2);
    OK(driver->properties(1, &p));
    REQUIRE(strcmp(p.arch, arch) == 0);
    REQUIRE(strstr(p.description, "Simulated"));
    REQUIRE(p.wave_size == (strcmp(arch, "gfx942") == 0 ? 64 : 32));
    REQUIRE(p.memory_size == 1000000);
    REQUIRE(p.shared_memory_size == (is_cuda() ? 163u << 10 : 64u << 10));
    FAILS(driver->properties(2, &p), EVO_ERROR_DEVICE, "invalid device ordinal");
    return 0;
}

static void test_properties(void **state) {
    (void)state;
    char archs[64];
    const char *arch = getenv("EVO_SIMULATED_ARCH");
    snprintf(archs, sizeof archs, "EVO_SIMULATED_ARCH=%s,%s", arch, arch);
    check_child(properties_body, arch, (const char *const[]){ archs, "EVO_SIMULATED_MEMORY=1000000", NULL });
}

static void *current_context(void) {
    void *current = NULL;
    int (*get)(void *);
    *(void **)&get = vendor_function("cuCtxGetCurrent", "hipGetDevice");
    REQUIRE(get(&current) == 0);
    return current;
}

/* The caller has the second device current (CUDA: its context) and has it still after every call on the first. */
static int context_body(const void *argument) {
    (void)argument;
    void *contexts[2], *saved, *memory;
    evo_text why = { { 0 }, 0 };
    int (*set)(uintptr_t);
    REQUIRE(driver->device_count(&why) == 2);
    for (int i = 0; i < 2; i++) OK(driver->open(i, &contexts[i]));
    void *const before = current_context();
    *(void **)&set = vendor_function("cuCtxPushCurrent_v2", "hipSetDevice");
    REQUIRE(set(is_cuda() ? (uintptr_t)contexts[1] : 1u) == 0);
    void *const own = current_context();
    REQUIRE(own != before);
    OK(driver->enter(0, contexts[0], &saved));
    REQUIRE(current_context() != own);
    OK(driver->memory_alloc(100, &memory));
    OK(driver->memory_free(memory));
    driver->leave(0, contexts[0], saved);
    REQUIRE(current_context() == own);
    if (is_cuda()) FAILS(driver->enter(0, NULL, &saved), EVO_ERROR_DEVICE, "CUDA_ERROR_INVALID_CONTEXT");
    for (int i = 0; i < 2; i++) driver->close(i, contexts[i]);
    return 0;
}

static void test_context_stays(void **state) {
    (void)state;
    char archs[64];
    const char *arch = getenv("EVO_SIMULATED_ARCH");
    snprintf(archs, sizeof archs, "EVO_SIMULATED_ARCH=%s,%s", arch, arch);
    check_child(context_body, NULL, (const char *const[]){ archs, NULL });
}

/* HIP's last error of the thread is the caller's: a call of ours that fails leaves none behind. */
static int last_error_body(const void *argument) {
    (void)argument;
    const opened o = open_first();
    float host = 0;
    FAILS(driver->memory_free(&host), EVO_ERROR_DEVICE, "invalid argument");
    if (!is_cuda()) {
        int (*peek)(void);
        *(void **)&peek = vendor_function("", "hipPeekAtLastError");
        REQUIRE(peek() == 0);
    }
    close_first(&o);
    return 0;
}

static void test_last_error(void **state) {
    (void)state;
    check_child(last_error_body, NULL, NULL);
}

/* ---- memory ---- */

static int memory_body(const void *argument) {
    (void)argument;
    const opened o = open_first();
    char host[600] = "";
    void *memory = NULL;
    const char *invalid =
        is_cuda() ? "invalid argument (CUDA_ERROR_INVALID_VALUE, 1)" : "invalid argument (hipErrorInvalidValue, 1)";
    OK(driver->memory_alloc(500, &memory));
    REQUIRE((uintptr_t)memory % 256 == 0);
    FAILS(driver->memory_copy(memory, host, 501, NULL), EVO_ERROR_DEVICE, invalid);
    FAILS(driver->memory_copy(host, (char *)memory + 400, 101, NULL), EVO_ERROR_DEVICE, invalid);
    FAILS(driver->memory_copy((char *)memory - 8, host, 16, NULL), EVO_ERROR_DEVICE, invalid);
    FAILS(driver->memory_fill((char *)memory + 1, 0, 500, NULL), EVO_ERROR_DEVICE, invalid);
    FAILS(driver->memory_fill(host, 0, 8, NULL), EVO_ERROR_DEVICE, invalid);
    FAILS(driver->memory_free((char *)memory + 8), EVO_ERROR_DEVICE, invalid);
    OK(driver->memory_fill(memory, 7, 500, NULL));
    OK(driver->memory_copy(host, (char *)memory + 100, 400, NULL));
    OK(driver->stream_synchronize(NULL));
    REQUIRE(host[0] == 7 && host[399] == 7 && host[400] == 0);
    OK(driver->memory_free(memory));
    FAILS(driver->memory_free(memory), EVO_ERROR_DEVICE, invalid);
    FAILS(driver->memory_copy(host, memory, 8, NULL), EVO_ERROR_DEVICE, invalid);
    FAILS(driver->memory_alloc(SIZE_MAX / 2, &memory), EVO_ERROR_OUT_OF_MEMORY, "out of memory");
    FAILS(driver->memory_alloc(100000, &memory), EVO_ERROR_OUT_OF_MEMORY, "out of memory");
    for (int i = 0; i < 10; i++) { /* what is freed can be had again */
        OK(driver->memory_alloc(90000, &memory));
        OK(driver->memory_free(memory));
    }
    close_first(&o);
    return 0;
}

static void test_memory(void **state) {
    (void)state;
    check_child(memory_body, NULL, (const char *const[]){ "EVO_SIMULATED_MEMORY=100000", NULL });
}

/* ---- launches ---- */

static int launch_body(const void *argument) {
    (void)argument;
    const opened o = open_first();
    const char *invalid = "invalid argument";
    void *function;
    const size_t size = sizeof(fault_params), most = is_cuda() ? 163u << 10 : 64u << 10;
    FAILS(driver->function_get(o.module, "fault_nothing", &function), EVO_ERROR_DEVICE, "fault_nothing");
    FAILS(launch_copy(&o, 0, FAULT_THREADS, 0, NULL, size), EVO_ERROR_DEVICE, invalid);
    FAILS(launch_copy(&o, 1, 0, 0, NULL, size), EVO_ERROR_DEVICE, invalid);
    FAILS(launch_copy(&o, 1, 1025, 0, NULL, size), EVO_ERROR_DEVICE, invalid);
    FAILS(launch_copy(&o, 1, FAULT_THREADS + 1, 0, NULL, size), EVO_ERROR_DEVICE, "too many resources");
    FAILS(launch_copy(&o, 1, FAULT_THREADS, 0, NULL, size - 4), EVO_ERROR_DEVICE, invalid);
    FAILS(launch_copy(&o, 1, FAULT_THREADS, (is_cuda() ? 48u << 10 : 64u << 10) + 1, NULL, size), EVO_ERROR_DEVICE,
          invalid);
    const fault_params params = { o.in, o.out, FAULT_THREADS, 0 };
    FAILS(driver->launch(o.copy, (gpu_grid){ 1, 65536, 1 }, FAULT_THREADS, 0, NULL, &params, size), EVO_ERROR_DEVICE,
          invalid);
    if (is_cuda()) FAILS(driver->function_allow_shared(o.copy, most + 1), EVO_ERROR_DEVICE, invalid);
    OK(driver->function_allow_shared(o.copy, most));
    set_numbers(o.in, 3);
    OK(launch_copy(&o, 1, FAULT_THREADS, most, NULL, size));
    REQUIRE(first_number(o.out) == 3);
    close_first(&o);
    return 0;
}

static void test_launch(void **state) {
    (void)state;
    check_child(launch_body, NULL, NULL);
}

/* A kernel whose threads wait forever breaks the device for the rest of the process, as on the real ones. */
static int broken_body(const void *argument) {
    (void)argument;
    const opened o = open_first();
    void *function;
    const char *failed = is_cuda() ? "unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED, 719)"
                                   : "unspecified launch failure (hipErrorLaunchFailure, 719)";
    const fault_params params = { o.in, o.out, FAULT_THREADS, 1 };
    OK(driver->function_get(o.module, "fault_return", &function));
    OK(driver->launch(function, (gpu_grid){ 1, 1, 1 }, FAULT_THREADS, 0, NULL, &params, sizeof params));
    FAILS(driver->stream_synchronize(NULL), EVO_ERROR_DEVICE, failed);
    FAILS(launch_right(&o, NULL), EVO_ERROR_DEVICE, failed);
    FAILS(driver->memory_free(o.in), EVO_ERROR_DEVICE, failed); /* it is freed nevertheless */
    FAILS(driver->memory_free(o.out), EVO_ERROR_DEVICE, failed);
    driver->module_unload(o.module);
    driver->leave(0, o.context, o.saved);
    driver->close(0, o.context);
    return 0;
}

static void test_broken(void **state) {
    (void)state;
    check_child(broken_body, NULL, NULL);
}

/* ---- streams, events, recordings ---- */

static int events_body(const void *argument) {
    (void)argument;
    const opened o = open_first();
    evo_stream stream;
    evo_event start, stop;
    double milliseconds = -1;
    OK(driver->stream_create(&stream));
    OK(driver->event_create(&start));
    OK(driver->event_create(&stop));
    FAILS(driver->event_elapsed(start, stop, &milliseconds), EVO_ERROR_INVALID_ARGUMENT, "not recorded");
    OK(driver->event_synchronize(start)); /* nothing recorded, nothing to wait for */
    OK(driver->event_record(start, stream));
    OK(launch_right(&o, stream));
    OK(driver->event_record(stop, stream));
    FAILS(driver->event_elapsed(start, stop, &milliseconds), EVO_ERROR_INVALID_ARGUMENT, "not complete");
    OK(driver->event_synchronize(stop));
    REQUIRE(milliseconds == -1);
    OK(driver->event_elapsed(start, stop, &milliseconds));
    REQUIRE(milliseconds >= 0);
    OK(driver->event_destroy(start));
    OK(driver->event_destroy(stop));
    OK(driver->stream_destroy(stream));
    FAILS(driver->stream_synchronize(stream), EVO_ERROR_DEVICE, "invalid resource handle");
    close_first(&o);
    return 0;
}

static void test_events(void **state) {
    (void)state;
    check_child(events_body, NULL, NULL);
}

static int recording_body(const void *argument) {
    (void)argument;
    const opened o = open_first();
    evo_stream stream;
    evo_graph graph = NULL;
    bool capturing = true;
    OK(driver->stream_create(&stream));
    OK(driver->stream_is_capturing(stream, &capturing));
    REQUIRE(!capturing);
    set_numbers(o.in, 1);
    set_numbers(o.out, 0);
    OK(driver->graph_begin(stream));
    OK(driver->stream_is_capturing(stream, &capturing));
    REQUIRE(capturing);
    OK(launch_right(&o, stream));
    OK(driver->graph_end(stream, &graph));
    REQUIRE(first_number(o.out) == 0);
    for (int round = 2; round < 5; round++) {
        set_numbers(o.in, (float)round);
        OK(driver->graph_launch(graph, stream));
        OK(driver->stream_synchronize(stream));
        REQUIRE(first_number(o.out) == (float)round);
    }
    OK(driver->graph_launch(graph, NULL));
    OK(driver->graph_destroy(graph));
    OK(driver->stream_destroy(stream));
    close_first(&o);
    return 0;
}

/* What must not happen while a stream records: the recording is then void. */
static int recording_refusals_body(const void *argument) {
    (void)argument;
    const opened o = open_first();
    evo_stream stream, other;
    evo_event event;
    evo_graph graph = NULL;
    OK(driver->stream_create(&stream));
    OK(driver->stream_create(&other));
    OK(driver->event_create(&event));
    FAILS(driver->graph_begin(NULL), EVO_ERROR_CAPTURE, "not permitted");
    OK(driver->graph_begin(stream));
    FAILS(driver->stream_synchronize(stream), EVO_ERROR_CAPTURE, "not permitted when stream is capturing");
    FAILS(launch_right(&o, stream), EVO_ERROR_CAPTURE, "previous error during capture");
    FAILS(driver->graph_end(stream, &graph), EVO_ERROR_CAPTURE, "previous error during capture");

    OK(driver->event_record(event, other));
    OK(driver->graph_begin(stream)); /* it cannot wait for work that is not recorded */
    FAILS(driver->stream_wait_event(stream, event), EVO_ERROR_CAPTURE, "uncaptured work");
    FAILS(driver->graph_end(stream, &graph), EVO_ERROR_CAPTURE, "previous error");

    OK(driver->graph_begin(stream)); /* a stream that joined must be waited for */
    OK(driver->event_record(event, stream));
    OK(driver->stream_wait_event(other, event));
    OK(launch_right(&o, other));
    FAILS(driver->event_synchronize(event), EVO_ERROR_CAPTURE, "capturing stream");
    FAILS(driver->graph_end(stream, &graph), EVO_ERROR_CAPTURE, "unjoined work");
    REQUIRE(!graph);

    OK(driver->graph_begin(stream)); /* other streams go on */
    OK(launch_right(&o, other));
    OK(launch_right(&o, NULL));
    OK(driver->stream_synchronize(other));
    OK(driver->graph_end(stream, &graph));
    OK(driver->graph_destroy(graph));
    OK(driver->event_destroy(event));
    OK(driver->stream_destroy(stream));
    OK(driver->stream_destroy(other));
    close_first(&o);
    return 0;
}

static void test_recording(void **state) {
    (void)state;
    check_child(recording_body, NULL, NULL);
    check_child(recording_refusals_body, NULL, NULL);
}

/* ---- failures on demand ---- */

static int failures_body(const void *argument) {
    (void)argument;
    void *memory[3];
    const opened o = open_first();
    setenv("EVO_SIMULATED_FAIL",
           is_cuda() ? "cuMemAlloc:3,cuLaunchKernel:2:701" : "hipMalloc:3,hipModuleLaunchKernel:2:701", 1);
    OK(driver->memory_alloc(10, &memory[0]));
    OK(driver->memory_alloc(10, &memory[1]));
    FAILS(driver->memory_alloc(10, &memory[2]), EVO_ERROR_OUT_OF_MEMORY, "out of memory");
    OK(driver->memory_alloc(10, &memory[2]));
    OK(launch_right(&o, NULL));
    FAILS(launch_right(&o, NULL), EVO_ERROR_DEVICE, "too many resources requested for launch");
    OK(launch_right(&o, NULL));
    for (int i = 0; i < 3; i++) OK(driver->memory_free(memory[i]));
    close_first(&o);
    return 0;
}

static void test_failures(void **state) {
    (void)state;
    check_child(failures_body, NULL, NULL);
}

/* ---- threads ---- */

typedef struct worker {
    const opened *device;
    int number;
    pthread_t thread;
} worker;

static void *work(void *argument) {
    const worker *w = argument;
    opened own = *w->device;
    evo_stream stream;
    OK(driver->enter(0, own.context, &own.saved));
    OK(driver->stream_create(&stream));
    OK(driver->memory_alloc(FAULT_THREADS * sizeof(float), &own.in));
    OK(driver->memory_alloc(FAULT_THREADS * sizeof(float), &own.out));
    set_numbers(own.in, (float)w->number);
    for (int round = 0; round < 20; round++) {
        float got = -1;
        OK(driver->memory_fill(own.out, 0, sizeof got, stream));
        OK(launch_right(&own, stream));
        OK(driver->memory_copy(&got, own.out, sizeof got, stream));
        OK(driver->stream_synchronize(stream));
        REQUIRE(got == (float)w->number);
    }
    OK(driver->memory_free(own.in));
    OK(driver->memory_free(own.out));
    OK(driver->stream_destroy(stream));
    driver->leave(0, own.context, own.saved);
    return NULL;
}

static int threads_body(const void *argument) {
    enum {
        WORKERS = 4
    };
    worker workers[WORKERS];
    (void)argument;
    const opened o = open_first();
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){ .device = &o, .number = i + 1 };
        REQUIRE(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < WORKERS; i++) REQUIRE(pthread_join(workers[i].thread, NULL) == 0);
    close_first(&o);
    return 0;
}

static void test_threads(void **state) {
    (void)state;
    check_child(threads_body, NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_device),  cmocka_unit_test(test_properties), cmocka_unit_test(test_context_stays),
        cmocka_unit_test(test_last_error), cmocka_unit_test(test_memory),     cmocka_unit_test(test_launch),
        cmocka_unit_test(test_broken),     cmocka_unit_test(test_events),     cmocka_unit_test(test_recording),
        cmocka_unit_test(test_failures),   cmocka_unit_test(test_threads),
    };
    driver = tested_driver();
    return cmocka_run_group_tests_name("driver", tests, NULL, NULL);
}
