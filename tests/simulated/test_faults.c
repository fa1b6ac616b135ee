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
    DRIVER_ERROR = 4,
    ANYHOW = 0
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
    int status; /* of the broken one: WRONG_NUMBERS, DRIVER_ERROR, or ANYHOW: what comes first, or the sanitizer's own */
    const char *words;
    int mistake; /* which one, of an sm_90's kernel */
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

/* Z of fault_split from first number `first` on: its columns 0 to 7. */
static void multiply_split(uint32_t first, double (*z)[8]) {
    double s[16][16];
    for (uint32_t r = 0; r < 16; r++)
        for (uint32_t c = 0; c < 16; c++) {
            s[r][c] = 0.0;
            for (uint32_t k = 0; k < FAULT_DEPTH; k++)
                s[r][c] += (double)fault_number(first + r * FAULT_DEPTH + k) *
                           (double)fault_number(first + (16 + c) * FAULT_DEPTH + k) / (1 << FAULT_HALVINGS);
        }
    for (uint32_t r = 0; r < 16; r++)
        for (uint32_t c = 0; c < 8; c++) {
            z[r][c] = 0.0;
            for (uint32_t k = 0; k < 16; k++)
                z[r][c] += s[r][k] * (double)fault_number(first + 32 * FAULT_DEPTH + c * 16 + k);
        }
}

/* Products in halves are as exact as the bound of fp32 asks for. */
static int run_split(const scenario *s, int broken) {
    bench b;
    double want[16][8], error = 0.0, size = 0.0;
    bench_open(&b, (size_t)s->count);
    bench_launch(&b, s->name, broken ? s->mistake : 0, 0, NULL);
    OK(b.driver->memory_copy(b.got, b.out, sizeof b.got, NULL));
    OK(b.driver->stream_synchronize(NULL));
    for (uint32_t block = 0; block < BLOCKS; block++) {
        multiply_split(block * 16 * (2 * FAULT_DEPTH + 16), want);
        for (int i = 0; i < FAULT_THREADS; i++) {
            const double d = (double)b.got[block * FAULT_THREADS + (uint32_t)i] - want[i / 8][i % 8];
            error += d * d;
            size += want[i / 8][i % 8] * want[i / 8][i % 8];
        }
    }
    bench_close(&b);
    fprintf(stderr, "error %g\n", sqrt(error / size));
    return sqrt(error / size) <= 3e-7 ? 0 : WRONG_NUMBERS;
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

/* A kernel for sm_90a, which copies tiles of bf16 or transposes each. */
static int run_hopper(const scenario *s, int broken) {
    enum {
        TILE = 64 * 64,
        NUMBERS = FAULT_TILES * TILE,
        SHARED = 64 << 10
    };
    static uint16_t host[NUMBERS], got[NUMBERS];
    const unsigned threads = strcmp(s->name, "fault_ring") == 0 ? 256 : 128;
    hopper_fault_params params = { .broken = broken ? s->mistake : 0 };
    bench b;
    void *function;
    bench_open(&b, NUMBERS / 2); /* which counts floats */
    for (int i = 0; i < NUMBERS; i++) {
        const float number = i / 64 % 64 < FAULT_ROWS ? (float)(i * 7 % 251 + 1) : 0.0f;
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        host[i] = (uint16_t)(bits >> 16);
    }
    gpu_bulk_tensor tensor = { b.in, EVO_BF16, 3, { 64, FAULT_ROWS, FAULT_TILES }, { 1, 64, TILE }, { 64, 64, 1 } };
    OK(b.driver->tensor_map(&tensor, &params.in));
    tensor.data = b.out;
    tensor.extent[1] = 64;
    OK(b.driver->tensor_map(&tensor, &params.out));
    OK(b.driver->memory_copy(b.in, host, sizeof host, NULL));
    OK(b.driver->function_get(b.module, s->name, &function));
    OK(b.driver->function_allow_shared(function, SHARED));
    OK(b.driver->launch_early(function, (gpu_grid){ 1, 1, 1 }, threads, SHARED, NULL, &params, sizeof params));
    int judged = 0;
    if (b.driver->memory_copy(got, b.out, sizeof got, NULL) != EVO_OK || b.driver->stream_synchronize(NULL) != EVO_OK) {
        fprintf(stderr, "%s\n", evo_last_error());
        judged = DRIVER_ERROR;
    }
    for (int i = 0; i < NUMBERS && judged == 0; i++) {
        const int row = i / 64 % 64, column = i % 64, from = s->reversed ? i / TILE * TILE + column * 64 + row : i;
        if (got[i] != host[from]) judged = WRONG_NUMBERS;
    }
    bench_close(&b);
    return judged;
}

/* A kernel that starts before the one ahead of it has ended. */
static int run_ahead(const scenario *s, int broken) {
    bench b;
    void *function;
    bench_open(&b, (size_t)s->count);
    OK(b.driver->memory_copy(b.in, b.host, sizeof b.host, NULL));
    bench_launch(&b, "fault_copy", 0, 0, NULL);
    const fault_params back = { b.out, b.in, s->count, broken };
    OK(b.driver->function_get(b.module, s->name, &function));
    OK(b.driver->launch_early(function, (gpu_grid){ BLOCKS, 1, 1 }, FAULT_THREADS, 0, NULL, &back, sizeof back));
    void *const written = b.in;
    b.in = b.out;
    b.out = written;
    const int judged = bench_judge(&b, 0);
    bench_close(&b);
    return judged;
}

/* What a tensor map must not describe, and its neighbours that it may. */
static int run_tensor_maps(const scenario *s, int broken) {
    bench b;
    gpu_tensor_map map;
    const gpu_bulk_tensor right = { (void *)(uintptr_t)4096, EVO_FP16, 3, { 9, 9, 9 }, { 1, 16, 256 }, { 64, 256, 1 } };
    gpu_bulk_tensor wrong[] = { right, right, right, right, right, right };
    bench_open(&b, (size_t)s->count);
    OK(b.driver->tensor_map(&right, &map));
    wrong[0].data = (void *)(uintptr_t)4104;
    wrong[1].stride[1] = 12;
    wrong[2].stride[2] = (int64_t)1 << 40;
    wrong[3].extent[1] = 0;
    wrong[4].box[1] = 257;
    wrong[5].box[0] = 128;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        FAILS(b.driver->tensor_map(&wrong[i], &map), EVO_ERROR_DEVICE, "cuTensorMapEncodeTiled: invalid argument");
    bench_close(&b);
    return broken ? WRONG_NUMBERS : 0; /* all are broken ones */
}

static const scenario scenarios[] = {
    { "fault_barrier", run_kernel, 1, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_reuse", run_kernel, 1, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_named_barrier", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_other_part", run_kernel, 1, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_wave", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_write", run_kernel, 0, COUNT - 30, 0, "heap-buffer-overflow", 0 },
    { "fault_read", run_kernel, 0, COUNT - 30, 0, "heap-buffer-overflow", 0 },
    { "fault_bound", run_kernel, 0, COUNT, 0, "runtime error: index 128 out of bounds", 0 },
    { "fault_dynamic", run_kernel, 1, COUNT, 0, "heap-buffer-overflow", 0 },
    { "fault_async_wait", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_async_group", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_async_barrier", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_async_address", run_kernel, 0, COUNT, DRIVER_ERROR, "misaligned", 0 },
    { "fault_divergence", run_kernel, 0, COUNT, DRIVER_ERROR, "barrier divergence", 0 },
    { "fault_return", run_kernel, 0, COUNT, DRIVER_ERROR, "1 threads from (5, 0, 0) on have returned", 0 },
    { "fault_shuffle", run_kernel, 0, COUNT, DRIVER_ERROR, "wait at the wave shuffle", 0 },
    { "fault_matrix_a", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_matrix_b", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_matrix_place", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_matrix_barrier", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_matrix_lanes", run_kernel, 0, COUNT, DRIVER_ERROR, "wait at the matrix instruction", 0 },
    { "fault_matrix_cut_off", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_matrix_subnormal", run_kernel, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_split", run_split, 0, COUNT, WRONG_NUMBERS, "", FAULT_SWAPPED_HALVES },
    { "fault_split", run_split, 0, COUNT, WRONG_NUMBERS, "", FAULT_LOW_HIGH },
    { "fault_split", run_split, 0, COUNT, WRONG_NUMBERS, "", FAULT_HIGH_LOW },
    { "fault_split", run_split, 0, COUNT, WRONG_NUMBERS, "", FAULT_LONG_SUM },
    { "streams", run_streams, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "default stream", run_default_stream, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "graph", run_graph, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "unwritten", run_unwritten, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "host buffer", run_host_buffer, 0, COUNT, 0, "heap-use-after-free", 0 },
    { "host access", run_host_access, 0, COUNT, 0, "use-after-poison", 0 },
    { "freed", run_freed, 0, COUNT, 0, "use-after-poison", 0 },
};

#define RING "fault_ring", run_hopper, 0, COUNT
#define PRODUCT "fault_product", run_hopper, 0, COUNT
#define TRANSPOSED "fault_product_transposed", run_hopper, 1, COUNT
static const scenario hopper_scenarios[] = {
    { "tensor maps", run_tensor_maps, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_ahead", run_ahead, 0, COUNT, WRONG_NUMBERS, "", 0 },
    { "fault_no_wait", run_ahead, 0, COUNT, DRIVER_ERROR, "has not waited for the kernels ahead", 0 },
    { RING, ANYHOW, "", FAULT_FEW_ARRIVALS },
    { RING, DRIVER_ERROR, "wait at the barrier in shared memory", FAULT_MANY_ARRIVALS },
    { RING, ANYHOW, "", FAULT_ONE_ARRIVAL },
    { RING, ANYHOW, "", FAULT_PARITY },
    { RING, ANYHOW, "", FAULT_STAGE_REUSED },
    { RING, DRIVER_ERROR, "before thread", FAULT_READ_FENCE },
    { RING, ANYHOW, "", FAULT_FEW_BYTES },
    { RING, DRIVER_ERROR, "wait at the barrier in shared memory", FAULT_MANY_BYTES },
    { RING, ANYHOW, "", FAULT_BUFFER_REUSED },
    { RING, DRIVER_ERROR, "has written and not fenced", FAULT_STORE_FENCE },
    { RING, ANYHOW, "", FAULT_STORE_BARRIER },
    { RING, DRIVER_ERROR, "returns before the bulk store", FAULT_STORE_UNREAD },
    { RING, DRIVER_ERROR, "initialisation was not fenced", FAULT_INIT_FENCE },
    { RING, DRIVER_ERROR, "no barrier was made", FAULT_INIT_BARRIER },
    { RING, DRIVER_ERROR, "wait at the named barrier", FAULT_NAMED_COUNT },
    { RING, DRIVER_ERROR, "wait at the setmaxnreg", FAULT_REGISTERS },
    { PRODUCT, DRIVER_ERROR, "has written and not fenced", FAULT_OPERAND_FENCE },
    { TRANSPOSED, ANYHOW, "", FAULT_OFFSETS },
    { PRODUCT, ANYHOW, "", FAULT_STEP },
    { TRANSPOSED, ANYHOW, "", FAULT_STEP },
    { PRODUCT, DRIVER_ERROR, "without products_begin()", FAULT_PRODUCT_FENCE },
    { PRODUCT, ANYHOW, "", FAULT_PRODUCT_WAIT },
    { PRODUCT, ANYHOW, "", FAULT_OPERAND_REGISTERS },
    { PRODUCT, WRONG_NUMBERS, "", FAULT_ACCUMULATE },
    { PRODUCT, DRIVER_ERROR, "waves of a warpgroup multiply different things", FAULT_WARPGROUP },
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
    if (s->run == run_hopper) return SEEDS / 2; /* some mistakes need one wave to fall far behind */
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
    print_message("%s, mistake %d: caught with %d of %d seeds\n", s->name, s->mistake, caught, SEEDS);
    assert_true(caught >= needed(s));
}

int main(void) {
    enum {
        MOST = sizeof scenarios / sizeof *scenarios > sizeof hopper_scenarios / sizeof *hopper_scenarios
                   ? sizeof scenarios / sizeof *scenarios
                   : sizeof hopper_scenarios / sizeof *hopper_scenarios
    };
    /* An sm_90 runs the kernels of an sm_80, which are tested there, and its own. */
    const char *arch = getenv("EVO_SIMULATED_ARCH");
    const int hopper = arch && strcmp(arch, "sm_90") == 0;
    const scenario *const all = hopper ? hopper_scenarios : scenarios;
    const size_t count =
        hopper ? sizeof hopper_scenarios / sizeof *hopper_scenarios : sizeof scenarios / sizeof *scenarios;
    struct CMUnitTest tests[MOST];
    for (size_t i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){ all[i].name, test_scenario, NULL, NULL, (void *)(uintptr_t)&all[i] };
    return _cmocka_run_group_tests("faults", tests, count, NULL, NULL);
}
