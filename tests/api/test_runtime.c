/* test_runtime.c: backends, devices and contexts by name; memory, streams, events and graphs. */
#include "../support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static evo_context *context;

/* ---- what there is ---- */

static int find_backend(const char *name, evo_backend_info *info) {
    for (int i = 0; evo_backend_get(i, info) == EVO_OK; i++)
        if (strcmp(info->name, name) == 0) return i;
    return -1;
}

static void test_backends(void **state) {
    static const char *const names[] = { "cpu", "cuda", "hip" };
    (void)state;
    for (int i = 0; i < 3; i++) {
        evo_backend_info info = EVO_BACKEND_INFO_INIT;
        assert_true(find_backend(names[i], &info) >= 0);
        assert_true(info.size == sizeof info && info.compiled >= 0 && info.compiled <= 1);
        assert_true(info.device_count >= 0 && (info.compiled || info.device_count == 0));
        assert_non_null(info.missing);
        assert_non_null(info.images);
        assert_int_equal(info.missing[0] == '\0', info.device_count > 0);
        if (!info.compiled) assert_non_null(strstr(info.missing, "not compiled"));
    }
    evo_backend_info cpu = EVO_BACKEND_INFO_INIT;
    find_backend("cpu", &cpu);
    assert_int_equal(cpu.compiled, 1);
    assert_int_equal(cpu.device_count, 1);
}

/* Past the last one: a status, and the last error's text as it was. */
static void test_enumeration_ends_quietly(void **state) {
    evo_backend_info backend = EVO_BACKEND_INFO_INIT;
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    int count = 0, devices = 0;
    (void)state;
    assert_int_equal(evo_memory_alloc(NULL, 1, NULL), EVO_ERROR_NULL_POINTER);
    char before[256];
    snprintf(before, sizeof before, "%s", evo_last_error());
    while (evo_backend_get(count, &backend) == EVO_OK) devices += backend.device_count, count++;
    assert_true(count >= 3);
    for (int i = 0; i < devices; i++) OK(evo_device_get(i, &device));
    assert_int_equal(evo_backend_get(count, &backend), EVO_ERROR_INVALID_ARGUMENT);
    assert_int_equal(evo_backend_get(-1, &backend), EVO_ERROR_INVALID_ARGUMENT);
    assert_int_equal(evo_device_get(devices, &device), EVO_ERROR_INVALID_ARGUMENT);
    assert_int_equal(evo_device_get(-1, &device), EVO_ERROR_INVALID_ARGUMENT);
    assert_string_equal(evo_last_error(), before);
}

static void test_device_info(void **state) {
    evo_device_info info = EVO_DEVICE_INFO_INIT;
    (void)state;
    OK(evo_context_device(context, &info));
    assert_int_equal(info.size, sizeof info);
    if (strcmp(test_device(), "auto") != 0)
        assert_int_equal(strncmp(info.name, test_device(), strlen(test_device())), 0);
    assert_true(info.description[0] != '\0' && info.arch[0] != '\0');
    assert_true(info.compute_units >= 1 && info.wave_size >= 1);
    if (strcmp(info.name, "cpu") == 0) assert_true(info.wave_size == 1 && info.shared_memory_size == 0);
    REFUSED(evo_context_device(NULL, &info), EVO_ERROR_NULL_POINTER, "context is NULL, expected a pointer");
    REFUSED(evo_context_device(context, NULL), EVO_ERROR_NULL_POINTER, "info");
}

static void test_kernels_by_name(void **state) {
    (void)state;
    for (int op = 0; evo_op_name((evo_op)op) != NULL; op++) {
        int count = 0;
        for (; evo_context_kernel(context, (evo_op)op, count) != NULL; count++)
            assert_true(evo_context_kernel(context, (evo_op)op, count)[0] != '\0');
        assert_true(count >= 1);
        assert_null(evo_context_kernel(context, (evo_op)op, -1));
    }
    assert_null(evo_context_kernel(NULL, EVO_OP_OPM, 0));
    assert_null(evo_context_kernel(context, (evo_op)99, 0));
}

static void test_texts(void **state) {
    char version[32];
    (void)state;
    snprintf(version, sizeof version, "%d.%d.%d", EVO_VERSION_MAJOR, EVO_VERSION_MINOR, EVO_VERSION_PATCH);
    assert_string_equal(evo_version(), version);
    assert_non_null(strstr(evo_build_info(), version));
    assert_non_null(strstr(evo_build_info(), "cpu"));
    assert_null(strchr(evo_build_info(), '\n'));
}

/* ---- contexts ---- */

static evo_status open_named(const char *name) {
    evo_context *opened = NULL;
    evo_status status = evo_context_create(name, NULL, &opened);
    if (status != EVO_OK) assert_null(opened);
    evo_context_destroy(opened);
    return status;
}

static void test_context_names(void **state) {
    static const char *const unknown[] = { "",       "gpu",    "CPU",   "cpu:",  "cpu:x",
                                           "cpu:-1", "cpu:0x", "cuda:", "cuda0", "cpu:99999999999999999999",
                                           " cpu" };
    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        REFUSED(open_named(unknown[i]), EVO_ERROR_INVALID_ARGUMENT, "device", unknown[i], "expected", "cpu", "cuda",
                "hip", "auto");
    REFUSED(open_named("cpu:7"), EVO_ERROR_NO_DEVICE, "cpu:7", "expected");
    OK(open_named("cpu"));
    OK(open_named("cpu:0"));
    OK(open_named("auto"));
    evo_context *opened = NULL;
    REFUSED(evo_context_create(NULL, NULL, &opened), EVO_ERROR_NULL_POINTER, "device");
    REFUSED(evo_context_create("cpu", NULL, NULL), EVO_ERROR_NULL_POINTER, "context");
    evo_context_destroy(NULL);
}

static void test_backends_not_compiled_in(void **state) {
    static const char *const names[] = { "cuda", "hip" };
    (void)state;
    for (int i = 0; i < 2; i++) {
        evo_backend_info info = EVO_BACKEND_INFO_INIT;
        char device[16], other[16];
        find_backend(names[i], &info);
        if (info.compiled) continue;
        snprintf(device, sizeof device, "%s:0", names[i]);
        snprintf(other, sizeof other, "-Dbackends=cpu,%s", names[i]);
        REFUSED(open_named(device), EVO_ERROR_NOT_COMPILED, names[i], "not compiled in", "has: ", "cpu", other);
        REFUSED(open_named(names[i]), EVO_ERROR_NOT_COMPILED, names[i], "not compiled in");
    }
}

static void test_thread_environment(void **state) {
    static const char *const wrong[] = { "0", "-1", "two", "3x", "99999999999" };
    (void)state;
    const char *before = getenv("EVO_NUM_THREADS");
    char *kept = before != NULL ? strdup(before) : NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("EVO_NUM_THREADS", wrong[i], 1);
        REFUSED(open_named("cpu"), EVO_ERROR_INVALID_ARGUMENT, "EVO_NUM_THREADS", wrong[i], "expected");
    }
    setenv("EVO_NUM_THREADS", "2", 1);
    OK(open_named("cpu"));
    unsetenv("EVO_NUM_THREADS");
    if (kept != NULL) setenv("EVO_NUM_THREADS", kept, 1);
    free(kept);
}

/* ---- memory ---- */

static void test_memory(void **state) {
    enum {
        SIZE = 1000
    };
    unsigned char host[SIZE], back[SIZE];
    void *a = &host, *b = NULL;
    (void)state;
    OK(evo_memory_alloc(context, 0, &a));
    assert_null(a);
    OK(evo_memory_free(context, NULL));
    OK(evo_memory_alloc(context, SIZE, &a));
    OK(evo_memory_alloc(context, SIZE, &b));
    assert_true((uintptr_t)a % EVO_BUFFER_ALIGNMENT == 0 && (uintptr_t)b % EVO_BUFFER_ALIGNMENT == 0);
    for (int i = 0; i < SIZE; i++) host[i] = (unsigned char)(i * 7);
    OK(evo_memory_copy(context, a, host, SIZE, NULL));
    OK(evo_memory_copy(context, b, a, SIZE, NULL));
    OK(evo_memory_fill(context, (char *)b + 10, 0x5a, 20, NULL));
    OK(evo_memory_copy(context, back, b, SIZE, NULL));
    OK(evo_stream_synchronize(context, NULL));
    for (int i = 0; i < SIZE; i++) assert_int_equal(back[i], i >= 10 && i < 30 ? 0x5a : host[i]);
    OK(evo_memory_copy(context, NULL, NULL, 0, NULL));
    OK(evo_memory_fill(context, NULL, 0, 0, NULL));
    OK(evo_memory_free(context, a));
    OK(evo_memory_free(context, b));
}

static void test_memory_refusals(void **state) {
    char host[8] = "";
    void *memory = host;
    (void)state;
    REFUSED(evo_memory_alloc(NULL, 8, &memory), EVO_ERROR_NULL_POINTER, "evo_memory_alloc", "context");
    REFUSED(evo_memory_alloc(context, 8, NULL), EVO_ERROR_NULL_POINTER, "evo_memory_alloc", "memory");
    REFUSED(evo_memory_free(NULL, host), EVO_ERROR_NULL_POINTER, "evo_memory_free", "context");
    REFUSED(evo_memory_copy(NULL, host, host, 1, NULL), EVO_ERROR_NULL_POINTER, "evo_memory_copy", "context");
    REFUSED(evo_memory_copy(context, NULL, host, 1, NULL), EVO_ERROR_NULL_POINTER, "evo_memory_copy", "target");
    REFUSED(evo_memory_copy(context, host, NULL, 1, NULL), EVO_ERROR_NULL_POINTER, "evo_memory_copy", "source");
    REFUSED(evo_memory_fill(NULL, host, 1, 1, NULL), EVO_ERROR_NULL_POINTER, "evo_memory_fill", "context");
    REFUSED(evo_memory_fill(context, NULL, 1, 1, NULL), EVO_ERROR_NULL_POINTER, "evo_memory_fill", "target");
    REFUSED(evo_memory_fill(context, host, 256, 1, NULL), EVO_ERROR_INVALID_ARGUMENT, "value", "256", "expected");
    REFUSED(evo_memory_fill(context, host, -1, 1, NULL), EVO_ERROR_INVALID_ARGUMENT, "value", "-1", "expected");
    REFUSED(evo_memory_alloc(context, SIZE_MAX / 2, &memory), EVO_ERROR_OUT_OF_MEMORY, "evo_memory_alloc");
    assert_null(memory);
}

/* ---- streams and events ---- */

/* A stream that a graph is recorded in, another one, and an event between them. */
typedef struct recording {
    evo_stream recorded, other;
    evo_event event;
    evo_graph graph;
} recording;

static recording recording_open(void) {
    recording r = { NULL, NULL, NULL, NULL };
    OK(evo_stream_create(context, &r.recorded));
    OK(evo_stream_create(context, &r.other));
    OK(evo_event_create(context, &r.event));
    return r;
}

static void recording_close(recording *r) {
    OK(evo_graph_destroy(context, r->graph));
    OK(evo_event_destroy(context, r->event));
    OK(evo_stream_destroy(context, r->other));
    OK(evo_stream_destroy(context, r->recorded));
}

/* Events recorded before and after a graph order other streams with it. */
static void test_events_in_graphs(void **state) {
    recording r = recording_open();
    (void)state;
    unsigned char *memory = device_alloc(context, 16);
    OK(evo_event_record(context, r.event, r.recorded));
    OK(evo_stream_wait_event(context, r.other, r.event));
    OK(evo_graph_begin(context, r.recorded));
    OK(evo_memory_fill(context, memory, 1, 16, r.recorded));
    OK(evo_graph_end(context, r.recorded, &r.graph));
    OK(evo_graph_launch(context, r.graph, r.recorded));
    OK(evo_event_record(context, r.event, r.recorded));
    OK(evo_stream_wait_event(context, r.other, r.event));
    OK(evo_stream_synchronize(context, r.other));
    recording_close(&r);
    device_free(context, memory);
}

/* A record in a graph is one that has not happened: nobody waits for it before the graph is launched. */
static void test_events_that_are_recorded(void **state) {
    recording r = recording_open();
    (void)state;
    OK(evo_event_record(context, r.event, r.recorded));
    OK(evo_event_synchronize(context, r.event));
    OK(evo_graph_begin(context, r.recorded));
    OK(evo_event_record(context, r.event, r.recorded));
    OK(evo_graph_end(context, r.recorded, &r.graph));
    REFUSED(evo_event_synchronize(context, r.event), EVO_ERROR_CAPTURE, "event");
    REFUSED(evo_stream_wait_event(context, r.other, r.event), EVO_ERROR_CAPTURE, "event");
    double milliseconds;
    REFUSED(evo_event_elapsed(context, r.event, r.event, &milliseconds), EVO_ERROR_CAPTURE, "event");
    OK(evo_event_record(context, r.event, r.other));
    OK(evo_event_synchronize(context, r.event));
    OK(evo_stream_wait_event(context, r.recorded, r.event));
    recording_close(&r);
}

static void test_streams_and_events(void **state) {
    enum {
        SIZE = 4 << 20
    };
    evo_stream first = NULL, second = NULL;
    evo_event start = NULL, stop = NULL;
    (void)state;
    OK(evo_stream_create(context, &first));
    OK(evo_stream_create(context, &second));
    OK(evo_event_create(context, &start));
    OK(evo_event_create(context, &stop));
    assert_true(first != NULL && second != NULL && first != second && start != NULL && stop != NULL);
    double milliseconds = -1;
    REFUSED(evo_event_elapsed(context, start, stop, &milliseconds), EVO_ERROR_INVALID_ARGUMENT, "record");
    assert_true(milliseconds == -1);
    unsigned char *a = device_alloc(context, SIZE), *b = device_alloc(context, SIZE), last = 0;
    OK(evo_event_record(context, start, first));
    OK(evo_memory_fill(context, a, 0x11, SIZE, first));
    OK(evo_event_record(context, stop, first));
    OK(evo_stream_wait_event(context, second, stop));
    OK(evo_memory_copy(context, b, a, SIZE, second));
    OK(evo_memory_copy(context, &last, b + SIZE - 1, 1, second));
    OK(evo_stream_synchronize(context, second));
    assert_int_equal(last, 0x11);
    OK(evo_event_synchronize(context, stop));
    OK(evo_event_elapsed(context, start, stop, &milliseconds));
    assert_true(milliseconds >= 0 && milliseconds < 60000);
    double backwards;
    OK(evo_event_elapsed(context, stop, start, &backwards));
    assert_true(backwards <= 0);
    device_free(context, a);
    device_free(context, b);
    OK(evo_event_destroy(context, start));
    OK(evo_event_destroy(context, stop));
    OK(evo_stream_destroy(context, first));
    OK(evo_stream_destroy(context, second));
    OK(evo_stream_destroy(context, NULL));
    OK(evo_event_destroy(context, NULL));
}

static void test_stream_refusals(void **state) {
    evo_stream stream = NULL;
    evo_event event = NULL;
    double ms;
    (void)state;
    OK(evo_stream_create(context, &stream));
    OK(evo_event_create(context, &event));
    REFUSED(evo_stream_create(NULL, &stream), EVO_ERROR_NULL_POINTER, "evo_stream_create", "context");
    REFUSED(evo_stream_create(context, NULL), EVO_ERROR_NULL_POINTER, "evo_stream_create", "stream");
    REFUSED(evo_stream_destroy(NULL, stream), EVO_ERROR_NULL_POINTER, "evo_stream_destroy", "context");
    REFUSED(evo_stream_synchronize(NULL, stream), EVO_ERROR_NULL_POINTER, "evo_stream_synchronize", "context");
    REFUSED(evo_stream_wait_event(NULL, stream, event), EVO_ERROR_NULL_POINTER, "context");
    REFUSED(evo_stream_wait_event(context, stream, NULL), EVO_ERROR_NULL_POINTER, "event");
    REFUSED(evo_event_create(NULL, &event), EVO_ERROR_NULL_POINTER, "context");
    REFUSED(evo_event_create(context, NULL), EVO_ERROR_NULL_POINTER, "event");
    REFUSED(evo_event_destroy(NULL, event), EVO_ERROR_NULL_POINTER, "context");
    REFUSED(evo_event_record(NULL, event, stream), EVO_ERROR_NULL_POINTER, "context");
    REFUSED(evo_event_record(context, NULL, stream), EVO_ERROR_NULL_POINTER, "event");
    REFUSED(evo_event_synchronize(NULL, event), EVO_ERROR_NULL_POINTER, "context");
    REFUSED(evo_event_synchronize(context, NULL), EVO_ERROR_NULL_POINTER, "event");
    REFUSED(evo_event_elapsed(NULL, event, event, &ms), EVO_ERROR_NULL_POINTER, "context");
    REFUSED(evo_event_elapsed(context, NULL, event, &ms), EVO_ERROR_NULL_POINTER, "start");
    REFUSED(evo_event_elapsed(context, event, NULL, &ms), EVO_ERROR_NULL_POINTER, "stop");
    REFUSED(evo_event_elapsed(context, event, event, NULL), EVO_ERROR_NULL_POINTER, "milliseconds");
    OK(evo_event_destroy(context, event));
    OK(evo_stream_destroy(context, stream));
}

/* ---- graphs ---- */

/* A recorded copy and fill do nothing until they are launched, and then what the buffers hold at that time. */
static void test_graph_replays(void **state) {
    evo_stream stream = NULL;
    evo_graph graph = NULL;
    unsigned char host[64], got[64];
    (void)state;
    OK(evo_stream_create(context, &stream));
    unsigned char *a = device_alloc(context, 64), *b = device_alloc(context, 64);
    OK(evo_memory_fill(context, a, 1, 64, NULL));
    OK(evo_memory_fill(context, b, 2, 64, NULL));
    OK(evo_stream_synchronize(context, NULL));
    OK(evo_graph_begin(context, stream));
    OK(evo_memory_copy(context, b, a, 64, stream));
    OK(evo_memory_fill(context, b, 9, 8, stream));
    OK(evo_graph_end(context, stream, &graph));
    assert_non_null(graph);
    device_copy(context, got, b, 64);
    assert_int_equal(got[0], 2);
    for (int round = 0; round < 3; round++) {
        memset(host, 20 + round, 64);
        device_copy(context, a, host, 64);
        OK(evo_graph_launch(context, graph, stream));
        OK(evo_stream_synchronize(context, stream));
        device_copy(context, got, b, 64);
        for (int i = 0; i < 64; i++) assert_int_equal(got[i], i < 8 ? 9 : 20 + round);
    }
    OK(evo_graph_launch(context, graph, NULL));
    OK(evo_graph_destroy(context, graph));
    OK(evo_graph_destroy(context, NULL));
    OK(evo_stream_destroy(context, stream));
    device_free(context, a);
    device_free(context, b);
}

static void test_graph_in_a_graph(void **state) {
    if (strcmp(test_device(), "cpu") != 0) skip(); /* what a GPU's runtime makes of it is the vendor's */
    evo_stream stream = NULL;
    evo_graph inner = NULL, outer = NULL;
    unsigned char *memory = device_alloc(context, 16), first = 0;
    (void)state;
    OK(evo_stream_create(context, &stream));
    OK(evo_graph_begin(context, stream));
    OK(evo_memory_fill(context, memory, 7, 16, stream));
    OK(evo_graph_end(context, stream, &inner));
    OK(evo_graph_begin(context, stream));
    OK(evo_graph_launch(context, inner, stream));
    OK(evo_graph_end(context, stream, &outer));
    OK(evo_graph_destroy(context, inner));
    OK(evo_graph_launch(context, outer, stream));
    OK(evo_memory_copy(context, &first, memory, 1, stream));
    OK(evo_stream_synchronize(context, stream));
    assert_int_equal(first, 7);
    OK(evo_graph_destroy(context, outer));
    OK(evo_stream_destroy(context, stream));
    device_free(context, memory);
}

static void test_empty_graph(void **state) {
    evo_stream stream = NULL;
    evo_graph graph = NULL;
    (void)state;
    OK(evo_stream_create(context, &stream));
    OK(evo_graph_begin(context, stream));
    OK(evo_graph_end(context, stream, &graph));
    OK(evo_graph_launch(context, graph, stream));
    OK(evo_stream_synchronize(context, stream));
    OK(evo_graph_destroy(context, graph));
    OK(evo_graph_begin(context, stream)); /* destroyed while it records */
    OK(evo_memory_fill(context, &graph, 0, 0, stream));
    OK(evo_stream_destroy(context, stream));
}

static void test_graph_refusals(void **state) {
    evo_stream stream = NULL;
    evo_graph graph = NULL;
    (void)state;
    OK(evo_stream_create(context, &stream));
    REFUSED(evo_graph_begin(NULL, stream), EVO_ERROR_NULL_POINTER, "evo_graph_begin", "context");
    REFUSED(evo_graph_begin(context, NULL), EVO_ERROR_NULL_POINTER, "evo_graph_begin", "stream");
    REFUSED(evo_graph_end(context, stream, &graph), EVO_ERROR_CAPTURE, "evo_graph_end", "expected");
    assert_null(graph);
    OK(evo_graph_begin(context, stream));
    REFUSED(evo_graph_begin(context, stream), EVO_ERROR_CAPTURE, "evo_graph_begin", "expected");
    REFUSED(evo_stream_synchronize(context, stream), EVO_ERROR_CAPTURE, "evo_stream_synchronize", "expected");
    REFUSED(evo_graph_end(NULL, stream, &graph), EVO_ERROR_NULL_POINTER, "evo_graph_end", "context");
    REFUSED(evo_graph_end(context, stream, NULL), EVO_ERROR_NULL_POINTER, "evo_graph_end", "graph");
    OK(evo_graph_end(context, stream, &graph));
    REFUSED(evo_graph_launch(NULL, graph, stream), EVO_ERROR_NULL_POINTER, "evo_graph_launch", "context");
    REFUSED(evo_graph_launch(context, NULL, stream), EVO_ERROR_NULL_POINTER, "evo_graph_launch", "graph");
    REFUSED(evo_graph_destroy(NULL, graph), EVO_ERROR_NULL_POINTER, "evo_graph_destroy", "context");
    OK(evo_graph_destroy(context, graph));
    OK(evo_stream_destroy(context, stream));
}

static int setup(void **state) {
    (void)state;
    context = test_context(NULL);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    evo_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backends),
        cmocka_unit_test(test_enumeration_ends_quietly),
        cmocka_unit_test(test_device_info),
        cmocka_unit_test(test_kernels_by_name),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_context_names),
        cmocka_unit_test(test_backends_not_compiled_in),
        cmocka_unit_test(test_thread_environment),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_refusals),
        cmocka_unit_test(test_streams_and_events),
        cmocka_unit_test(test_events_in_graphs),
        cmocka_unit_test(test_events_that_are_recorded),
        cmocka_unit_test(test_stream_refusals),
        cmocka_unit_test(test_graph_replays),
        cmocka_unit_test(test_empty_graph),
        cmocka_unit_test(test_graph_in_a_graph),
        cmocka_unit_test(test_graph_refusals),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("runtime", tests, setup, teardown);
}
