/*
 * test_faults.c: the simulated devices find what they are there to find. Each scenario runs as it should be, with many
 * seeds, and gives the right numbers; then with one mistake, and is caught with every seed: by wrong numbers, by an error
 * of the driver, or by AddressSanitizer, as the scenario says.
 */
#include "child.h"

#include <math.h>

#include "faults.h"

enum {
    SEEDS = 4,
    BLOCKS = 3,
    COUNT = BLOCKS * FAULT_THREADS
};

/* What a child's status says beside 0, all well. */
enum {
    WRONG_NUMBERS = 3,
    DRIVER_ERROR = 4
};

/* An open device, and two buffers of numbers. */
typedef struct bench {
    const gpu_driver *driver;
    void *context, *saved, *module, *in, *out;
    float host[COUNT], got[COUNT];
    size_t out_count;
} bench;

static void bench_open(bench *b, size_t count) {
    evo_text why = { { 0 }, 0 };
    b->driver = tested_driver();
    b->out_count = count;
    REQUIRE(b->driver->device_count(&why) > 0);
    OK(b->driver->open(0, &b->context));
    OK(b->driver->enter(0, b->context, &b->saved));
    OK(b->driver->module_load("any image", 9, &b->module));
    OK(b->driver->memory_alloc(count * sizeof(float), &b->in));
    OK(b->driver->memory_alloc(count * sizeof(float), &b->out));
    for (int i = 0; i < COUNT; i++) b->host[i] = (float)i + 0.5f;
}

static void bench_close(bench *b) {
    b->driver->memory_free(b->in);
    b->driver->memory_free(b->out);
    b->driver->module_unload(b->module);
    b->driver->leave(0, b->context, b->saved);
    b->driver->close(0, b->context);
}

static void bench_launch(bench *b, const char *kernel, int broken, size_t shared, evo_stream stream) {
    void *function;
    const fault_params params = { b->in, b->out, (int)b->out_count, broken };
    OK(b->driver->function_get(b->module, kernel, &function));
    OK(b->driver->launch(function, (gpu_grid){ BLOCKS, 1, 1 }, FAULT_THREADS, shared, stream, &params, sizeof params));
}

/* Whether `out` is `in`, or `in` with each block reversed. */
static int bench_judge(bench *b, int reversed) {
    const size_t bytes = b->out_count * sizeof(float);
    if (b->driver->memory_copy(b->got, b->out, bytes, NULL) != EVO_OK ||
        b->driver->stream_synchronize(NULL) != EVO_OK) {
        fprintf(stderr, "%s\n", evo_last_error());
        return DRIVER_ERROR;
    }
    for (size_t i = 0; i < b->out_count; i++) {
        const size_t from = reversed ? i / FAULT_THREADS * FAULT_THREADS + FAULT_THREADS - 1 - i % FAULT_THREADS : i;
        if (!(fabsf(b->got[i] - b->host[from]) <= 0.0f)) return WRONG_NUMBERS;
    }
    return 0;
}

/* ---- scenarios: what runs, and how a mistake is caught ---- */

typedef struct scenario {
    const char *name; /* of the kernel, if `run` is run_kernel */
    int (*run)(const struct scenario *s, int broken);
    int reversed; /* the result */
    int count;    /* numbers in the buffers */
    int status;   /* of the broken one: WRONG_NUMBERS, DRIVER_ERROR, or 0: the sanitizer's, whatever it is */
    const char *words;
} scenario;

static int run_kernel(const scenario *s, int broken) {
    bench b;
    bench_open(&b, (size_t)s->count);
    OK(b.driver->memory_copy(b.in, b.host, b.out_count * sizeof(float), NULL));
    const size_t shared = (size_t)(FAULT_THREADS - (strcmp(s->name, "fault_dynamic") == 0 && broken)) * sizeof(float);
    bench_launch(&b, s->name, broken, shared, NULL);
    const int judged = bench_judge(&b, s->reversed);
    bench_close(&b);
    return judged;
}

/* A kernel in one stream reads what a copy in another writes: the second has to wait for an event of the first. */
static int run_streams(const scenario *s, int broken) {
    bench b;
    evo_stream streams[2];
    evo_event event;
    bench_open(&b, (size_t)s->count);
    OK(b.driver->stream_create(&streams[0]));
    OK(b.driver->stream_create(&streams[1]));
    OK(b.driver->event_create(&event));
    OK(b.driver->memory_copy(b.in, b.host, sizeof b.host, streams[0]));
    OK(b.driver->event_record(event, streams[0]));
    if (!broken) OK(b.driver->stream_wait_event(streams[1], event));
    bench_launch(&b, "fault_copy", 0, 0, streams[1]);
    OK(b.driver->stream_synchronize(streams[1]));
    const int judged = bench_judge(&b, 0);
    for (int i = 0; i < 2; i++) OK(b.driver->stream_destroy(streams[i]));
    OK(b.driver->event_destroy(event));
    bench_close(&b);
    return judged;
}

/* The default stream does not wait for a stream that was created. */
static int run_default_stream(const scenario *s, int broken) {
    bench b;
    evo_stream stream;
    bench_open(&b, (size_t)s->count);
    OK(b.driver->stream_create(&stream));
    OK(b.driver->memory_copy(b.in, b.host, sizeof b.host, stream));
    if (!broken) OK(b.driver->stream_synchronize(stream));
    bench_launch(&b, "fault_copy", 0, 0, NULL);
    const int judged = bench_judge(&b, 0);
    OK(b.driver->stream_destroy(stream));
    bench_close(&b);
    return judged;
}

/* Two branches of a recording: the one that reads must have joined the one that writes. */
static int run_graph(const scenario *s, int broken) {
    bench b;
    evo_stream streams[2];
    evo_event fork_event, join;
    evo_graph graph;
    bench_open(&b, (size_t)s->count);
    for (int i = 0; i < 2; i++) OK(b.driver->stream_create(&streams[i]));
    OK(b.driver->event_create(&fork_event));
    OK(b.driver->event_create(&join));
    OK(b.driver->graph_begin(streams[0]));
    OK(b.driver->event_record(fork_event, streams[0]));
    OK(b.driver->stream_wait_event(streams[1], fork_event));
    OK(b.driver->memory_copy(b.in, b.host, sizeof b.host, streams[1]));
    OK(b.driver->event_record(join, streams[1]));
    if (!broken) OK(b.driver->stream_wait_event(streams[0], join));
    bench_launch(&b, "fault_copy", 0, 0, streams[0]);
    if (broken) OK(b.driver->stream_wait_event(streams[0], join));
    OK(b.driver->graph_end(streams[0], &graph));
    OK(b.driver->graph_launch(graph, NULL));
    const int judged = bench_judge(&b, 0);
    OK(b.driver->graph_destroy(graph));
    for (int i = 0; i < 2; i++) OK(b.driver->stream_destroy(streams[i]));
    OK(b.driver->event_destroy(fork_event));
    OK(b.driver->event_destroy(join));
    bench_close(&b);
    return judged;
}

/* Device memory that nothing has been written to. */
static int run_unwritten(const scenario *s, int broken) {
    bench b;
    bench_open(&b, (size_t)s->count);
    if (!broken) OK(b.driver->memory_copy(b.in, b.host, sizeof b.host, NULL));
    bench_launch(&b, "fault_copy", 0, 0, NULL);
    const int judged = bench_judge(&b, 0);
    bench_close(&b);
    return judged;
}

/* A host buffer has to live until the copy is done. */
static int run_host_buffer(const scenario *s, int broken) {
    bench b;
    bench_open(&b, (size_t)s->count);
    float *buffer = malloc(sizeof b.host);
    REQUIRE(buffer);
    memcpy(buffer, b.host, sizeof b.host);
    OK(b.driver->memory_copy(b.in, buffer, sizeof b.host, NULL));
    if (!broken) OK(b.driver->stream_synchronize(NULL));
    free(buffer);
    bench_launch(&b, "fault_copy", 0, 0, NULL);
    const int judged = bench_judge(&b, 0);
    bench_close(&b);
    return judged;
}

/* The host cannot read device memory. */
static int run_host_access(const scenario *s, int broken) {
    bench b;
    bench_open(&b, (size_t)s->count);
    OK(b.driver->memory_copy(b.out, b.host, sizeof b.host, NULL));
    OK(b.driver->stream_synchronize(NULL));
    if (broken) fprintf(stderr, "read %g\n", (double)*(const volatile float *)b.out);
    const int judged = bench_judge(&b, 0);
    bench_close(&b);
    return judged;
}

/* A kernel's buffer is freed before the launch. */
static int run_freed(const scenario *s, int broken) {
    bench b;
    bench_open(&b, (size_t)s->count);
    void *const lost = b.in;
    OK(b.driver->memory_copy(b.in, b.host, sizeof b.host, NULL));
    if (broken) OK(b.driver->memory_free(b.in));
    bench_launch(&b, "fault_copy", 0, 0, NULL);
    const int judged = bench_judge(&b, 0);
    if (broken) OK(b.driver->memory_alloc(4, &b.in));
    REQUIRE(lost);
    bench_close(&b);
    return judged;
}

static const scenario scenarios[] = {
    { "fault_barrier", run_kernel, 1, COUNT, WRONG_NUMBERS, "" },
    { "fault_reuse", run_kernel, 1, COUNT, WRONG_NUMBERS, "" },
    { "fault_wave", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_write", run_kernel, 0, COUNT - 30, 0, "heap-buffer-overflow" },
    { "fault_read", run_kernel, 0, COUNT - 30, 0, "heap-buffer-overflow" },
    { "fault_bound", run_kernel, 0, COUNT, 0, "runtime error: index 128 out of bounds" },
    { "fault_dynamic", run_kernel, 1, COUNT, 0, "heap-buffer-overflow" },
    { "fault_async_wait", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_async_group", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_async_barrier", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_async_address", run_kernel, 0, COUNT, DRIVER_ERROR, "misaligned" },
    { "fault_divergence", run_kernel, 0, COUNT, DRIVER_ERROR, "barrier divergence" },
    { "fault_return", run_kernel, 0, COUNT, DRIVER_ERROR, "1 threads from (5, 0, 0) on have returned" },
    { "fault_shuffle", run_kernel, 0, COUNT, DRIVER_ERROR, "wait at the wave shuffle" },
    { "fault_matrix_a", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_matrix_b", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_matrix_place", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_matrix_barrier", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_matrix_lanes", run_kernel, 0, COUNT, DRIVER_ERROR, "wait at the matrix instruction" },
    { "fault_matrix_tf32", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_matrix_cut_off", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "fault_matrix_subnormal", run_kernel, 0, COUNT, WRONG_NUMBERS, "" },
    { "streams", run_streams, 0, COUNT, WRONG_NUMBERS, "" },
    { "default stream", run_default_stream, 0, COUNT, WRONG_NUMBERS, "" },
    { "graph", run_graph, 0, COUNT, WRONG_NUMBERS, "" },
    { "unwritten", run_unwritten, 0, COUNT, WRONG_NUMBERS, "" },
    { "host buffer", run_host_buffer, 0, COUNT, 0, "heap-use-after-free" },
    { "host access", run_host_access, 0, COUNT, 0, "use-after-poison" },
    { "freed", run_freed, 0, COUNT, 0, "use-after-poison" },
};

static int run_healthy(const void *argument) {
    const scenario *s = argument;
    return s->run(s, 0);
}

static int run_broken(const void *argument) {
    const scenario *s = argument;
    return s->run(s, 1);
}

/* A graph's branches have both orders by chance only, and so have streams: enough that most seeds find them. */
static int needed(const scenario *s) {
    return s->run == run_graph || s->run == run_streams || s->run == run_default_stream ? SEEDS / 4 : SEEDS;
}

static void test_scenario(void **state) {
    const scenario *s = *state;
    int caught = 0;
    for (int seed = 1; seed <= SEEDS; seed++) {
        char setting[64];
        snprintf(setting, sizeof setting, "EVO_SIMULATED_SEED=%d", seed);
        const char *const settings[] = { setting, NULL };
        check_child(run_healthy, s, settings);
        const outcome broken = run_child(run_broken, s, settings);
        const int as_expected = s->status ? broken.status == s->status : broken.status != 0;
        if (as_expected && strstr(broken.text, s->words))
            caught++;
        else if (broken.status != 0)
            fail_msg("%s, seed %d: caught in another way, status %d: %s", s->name, seed, broken.status, broken.text);
    }
    print_message("%s: caught with %d of %d seeds\n", s->name, caught, SEEDS);
    assert_true(caught >= needed(s));
}

int main(void) {
    enum {
        TESTS = sizeof scenarios / sizeof *scenarios
    };
    struct CMUnitTest tests[TESTS];
    for (size_t i = 0; i < TESTS; i++)
        tests[i] =
            (struct CMUnitTest){ scenarios[i].name, test_scenario, NULL, NULL, (void *)(uintptr_t)&scenarios[i] };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
