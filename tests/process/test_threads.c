/*
 * test_threads.c: 64 threads at once. They meet the library for the first time together; then share a context, a plan and
 * packed weights, execute with workspaces, outputs and streams of their own, plan, pack and destroy beside each other, fail
 * each in its own words, and drop the last references in any order. Everybody gets the numbers that one thread gets. Under
 * ThreadSanitizer (clang, libomp with Archer) a race fails it. Public API only.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include <evoformer/evoformer.h>

enum {
    THREADS = 64,
    N = 9,
    C = 16,
    COUNT = N * N * C
};

static const char *device(void) {
    const char *name = getenv("EVO_TEST_DEVICE");
    return name && name[0] ? name : "cpu";
}

static void must(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s; %s\n", what, evo_last_error());
    exit(1);
}

#define OK(call) must((call) == EVO_OK, #call)

/* What all share. */
typedef struct shared {
    evo_context *context;
    evo_plan *plan;
    evo_pack *pack;
    evo_plan_info info;
    void *numbers, *packed; /* of the device */
    float want[COUNT];
    atomic_int lines;
    pthread_barrier_t start;
} shared;

typedef struct worker {
    shared *common;
    int number;
    pthread_t thread;
} worker;

/* What is slow, simulated devices and sanitizers, takes one round. */
static int rounds(void) {
    return getenv("EVO_TEST_SCALE") ? 1 : 3;
}

static void count_line(void *user, const char *line) {
    must(strncmp(line, "evoformer,", 10) == 0, "a log line");
    atomic_fetch_add((atomic_int *)user, 1);
}

static evo_trimul_desc describe(void) {
    evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
    d.n = N;
    d.c_z = d.c = C;
    d.compute = EVO_COMPUTE_BF16;
    return d;
}

static evo_status pack(const evo_plan *plan, void *numbers, void *memory, size_t size, evo_stream stream,
                       evo_pack **made) {
    evo_trimul_weights w = EVO_TRIMUL_WEIGHTS_INIT;
    for (evo_weight *each = &w.norm_in_weight; each <= &w.out_gate_bias; each++)
        *each = (evo_weight){ numbers, EVO_FP32, { 0, 0 } };
    return evo_trimul_pack_weights(plan, &w, memory, size, stream, made);
}

/* Executes with memory and a stream of its own; the numbers must be those that one thread gets. */
static void execute(const shared *s, const evo_plan *plan, const evo_pack *packed, float *got) {
    void *out, *workspace;
    evo_stream stream;
    OK(evo_stream_create(s->context, &stream));
    OK(evo_memory_alloc(s->context, COUNT * sizeof *got, &out));
    OK(evo_memory_alloc(s->context, s->info.workspace_size, &workspace));
    const evo_trimul_args args = { sizeof args, s->numbers, NULL, NULL, out };
    OK(evo_memory_fill(s->context, out, 0xff, COUNT * sizeof *got, stream));
    OK(evo_trimul_execute(plan, packed, &args, workspace, s->info.workspace_size, stream));
    OK(evo_memory_copy(s->context, got, out, COUNT * sizeof *got, stream));
    OK(evo_stream_synchronize(s->context, stream));
    OK(evo_memory_free(s->context, workspace));
    OK(evo_memory_free(s->context, out));
    OK(evo_stream_destroy(s->context, stream));
}

/* A plan and packed weights of its own, in the shared context. */
static void plan_and_execute(const shared *s, float *got) {
    const evo_trimul_desc d = describe();
    evo_plan *plan;
    evo_pack *own;
    void *memory;
    OK(evo_trimul_plan_create(s->context, &d, &plan));
    OK(evo_memory_alloc(s->context, s->info.pack_size, &memory));
    OK(pack(plan, s->numbers, memory, s->info.pack_size, NULL, &own));
    OK(evo_stream_synchronize(s->context, NULL));
    execute(s, plan, own, got);
    evo_plan_destroy(plan);
    evo_pack_destroy(own);
    OK(evo_memory_free(s->context, memory));
}

/* Each thread's failure is its own, also when all others have failed since. */
static void fail_in_own_words(worker *w) {
    char name[32];
    evo_context *context = NULL;
    snprintf(name, sizeof name, "thread-%d.", w->number);
    must(evo_context_create(name, NULL, &context) == EVO_ERROR_INVALID_ARGUMENT, name);
    pthread_barrier_wait(&w->common->start);
    must(strstr(evo_last_error(), name) != NULL, name);
}

static void ask_for_devices(void) {
    evo_backend_info backend = EVO_BACKEND_INFO_INIT;
    evo_device_info found = EVO_DEVICE_INFO_INIT;
    int devices = 0;
    for (int i = 0; evo_backend_get(i, &backend) == EVO_OK; i++)
        must(!backend.compiled || backend.device_count > 0 || backend.missing[0], backend.name);
    while (evo_device_get(devices, &found) == EVO_OK) devices++;
    must(devices > 0, "devices");
}

static void *work(void *argument) {
    worker *w = argument;
    shared *s = w->common;
    float *got = malloc(COUNT * sizeof *got);
    evo_context *own;
    must(got != NULL, "memory");
    for (int round = 0; round < rounds(); round++) {
        pthread_barrier_wait(&s->start);
        if (w->number % 3 != 0) {
            execute(s, s->plan, s->pack, got);
        } else {
            plan_and_execute(s, got);
        }
        must(memcmp(got, s->want, sizeof s->want) == 0, "the numbers of one thread");
        fail_in_own_words(w);
        ask_for_devices();
        OK(evo_context_create(device(), NULL, &own));
        evo_context_destroy(own);
        must(strstr(evo_last_error(), "thread-") != NULL, "an error text of its own");
    }
    free(got);
    return NULL;
}

static void run_all(worker *workers, shared *s, void *(*body)(void *argument)) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (size_t)1 << 20);
    pthread_barrier_init(&s->start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        workers[i].common = s;
        workers[i].number = i;
        assert_int_equal(pthread_create(&workers[i].thread, &attributes, body, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
    pthread_barrier_destroy(&s->start);
    pthread_attr_destroy(&attributes);
}

/* Before anything else has called the library. */
static void *meet(void *argument) {
    worker *w = argument;
    evo_context *own;
    pthread_barrier_wait(&w->common->start);
    if (w->number % 2) ask_for_devices();
    OK(evo_context_create(device(), NULL, &own));
    fail_in_own_words(w);
    evo_context_destroy(own);
    return NULL;
}

static void test_first_call(void **state) {
    (void)state;
    static worker workers[THREADS];
    static shared s;
    run_all(workers, &s, meet);
}

static void test_shared_objects(void **state) {
    (void)state;
    static worker workers[THREADS];
    static shared s;
    const evo_context_options told = { sizeof told, 1, count_line, &s.lines };
    const evo_trimul_desc d = describe();
    float numbers[COUNT];
    for (int i = 0; i < COUNT; i++) numbers[i] = 0.0625f * (float)(i % 7 - 2);
    s.info = (evo_plan_info)EVO_PLAN_INFO_INIT;
    OK(evo_context_create(device(), &told, &s.context));
    OK(evo_trimul_plan_create(s.context, &d, &s.plan));
    OK(evo_plan_get_info(s.plan, &s.info));
    OK(evo_memory_alloc(s.context, sizeof numbers, &s.numbers));
    OK(evo_memory_alloc(s.context, s.info.pack_size, &s.packed));
    OK(evo_memory_copy(s.context, s.numbers, numbers, sizeof numbers, NULL));
    OK(pack(s.plan, s.numbers, s.packed, s.info.pack_size, NULL, &s.pack));
    OK(evo_stream_synchronize(s.context, NULL));
    execute(&s, s.plan, s.pack, s.want);
    const int before = s.lines;
    run_all(workers, &s, work);
    const int planners = (THREADS + 2) / 3;
    assert_int_equal(s.lines - before, rounds() * (THREADS + planners)); /* a line an execute and a plan */
    OK(evo_memory_free(s.context, s.packed));
    OK(evo_memory_free(s.context, s.numbers));
    evo_context_destroy(s.context);
    evo_pack_destroy(s.pack);
    evo_plan_destroy(s.plan);
}

/* The context's handle goes first; each thread holds one of the last references. */
static void *let_go(void *argument) {
    worker *w = argument;
    shared *s = w->common;
    const evo_trimul_desc d = describe();
    evo_plan *plan;
    OK(evo_trimul_plan_create(s->context, &d, &plan));
    pthread_barrier_wait(&s->start);
    if (w->number == 0) evo_context_destroy(s->context);
    evo_plan_destroy(plan);
    return NULL;
}

static void test_last_references(void **state) {
    (void)state;
    static worker workers[THREADS];
    static shared s;
    for (int round = 0; round < rounds(); round++) {
        OK(evo_context_create(device(), NULL, &s.context));
        run_all(workers, &s, let_go);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_first_call), cmocka_unit_test(test_shared_objects),
                                        cmocka_unit_test(test_last_references) };
    setenv("EVO_NUM_THREADS", "2", 0);
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
