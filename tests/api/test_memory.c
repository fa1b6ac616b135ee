/*
 * test_memory.c: on the CPU, an execute needs no memory beyond what the caller gave: tensors, packed weights and the plan's
 * workspace, all touched beforehand, so that the process must not grow; and threads as the system grants them.
 */
#ifdef __linux__
#define _GNU_SOURCE /* sched_setaffinity */
#include <sched.h>
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <evoformer/evoformer.h>

enum {
    SLACK = 2 << 20, /* bytes: pages of code and stack */
    N = 192,
    SMALL = 24, /* an execute of this size goes before: threads have their stacks then, and sanitizers what they add */
    S = 48,
    SIDE = 64 /* channels: a hidden N * N * SIDE would be 9 MB, an N * N * SIDE * SIDE 600 MB */
};

static void check(evo_status status) {
    if (status == EVO_OK) return;
    fprintf(stderr, "%s\n", evo_last_error());
    exit(2);
}

/* One by one, so that a sanitizer's shadow of it is touched too. */
static void *touched(evo_context *context, size_t bytes) {
    void *memory;
    check(evo_memory_alloc(context, bytes, &memory));
    for (size_t k = 0; k < bytes / sizeof(float); k++) ((float *)memory)[k] = 0.125f * (float)(k % 7);
    return memory;
}

static size_t resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1) exit(3);
    fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static size_t peak(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) exit(3);
    return (size_t)usage.ru_maxrss * 1024;
}

static void fill(evo_weight *first, evo_weight *last, const void *data) {
    for (evo_weight *w = first; w <= last; w++) *w = (evo_weight){ data, EVO_FP32, { 0, 0 } };
}

typedef struct given {
    void *in, *mask, *out, *weights, *packed, *workspace;
} given;

static given give(evo_context *context, const evo_plan *plan, evo_plan_info *info, size_t in, size_t mask, size_t out) {
    check(evo_plan_get_info(plan, info));
    return (given){ touched(context, in),
                    touched(context, mask),
                    touched(context, out),
                    touched(context, SIDE * SIDE * SIDE * sizeof(float)),
                    touched(context, info->pack_size),
                    touched(context, info->workspace_size) };
}

static size_t grown_by_trimul(evo_context *context, int64_t n) {
    evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
    evo_trimul_weights w = EVO_TRIMUL_WEIGHTS_INIT;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_plan *plan;
    evo_pack *pack;
    d.n = n;
    d.c_z = d.c = SIDE;
    d.mask.dtype = EVO_FP32;
    check(evo_trimul_plan_create(context, &d, &plan));
    const size_t pairs = sizeof(float) * (size_t)(n * n);
    const given g = give(context, plan, &info, pairs * SIDE, pairs, pairs * SIDE);
    fill(&w.norm_in_weight, &w.out_gate_bias, g.weights);
    const evo_trimul_args args = { sizeof args, g.in, g.mask, NULL, g.out };
    const size_t before = resident();
    check(evo_trimul_pack_weights(plan, &w, g.packed, info.pack_size, NULL, &pack));
    check(evo_trimul_execute(plan, pack, &args, g.workspace, info.workspace_size, NULL));
    return peak() > before ? peak() - before : 0;
}

static size_t grown_by_opm(evo_context *context, int64_t n) {
    evo_opm_desc d = EVO_OPM_DESC_INIT;
    evo_opm_weights w = EVO_OPM_WEIGHTS_INIT;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_plan *plan;
    evo_pack *pack;
    d.s = S;
    d.n = n;
    d.c_m = d.c = d.c_z = SIDE;
    d.mask.dtype = EVO_FP32;
    check(evo_opm_plan_create(context, &d, &plan));
    const size_t rows = sizeof(float) * S * (size_t)n, pairs = sizeof(float) * (size_t)(n * n);
    const given g = give(context, plan, &info, rows * SIDE, rows, pairs * SIDE);
    fill(&w.norm_weight, &w.out_bias, g.weights);
    const evo_opm_args args = { sizeof args, g.in, g.mask, NULL, g.out };
    const size_t before = resident();
    check(evo_opm_pack_weights(plan, &w, g.packed, info.pack_size, NULL, &pack));
    check(evo_opm_execute(plan, pack, &args, g.workspace, info.workspace_size, NULL));
    return peak() > before ? peak() - before : 0;
}

/* Each in a process of its own, as a peak cannot be taken back. */
static void test_peak(size_t (*grown)(evo_context *, int64_t)) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        evo_context *context;
        check(evo_context_create("cpu", NULL, &context));
        grown(context, SMALL);
        const size_t bytes = grown(context, N);
        printf("grown by %zu bytes\n", bytes);
        fflush(stdout);
        _exit(bytes > SLACK);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_trimul_peak(void **state) {
    (void)state;
    test_peak(grown_by_trimul);
}

static void test_opm_peak(void **state) {
    (void)state;
    test_peak(grown_by_opm);
}

#ifdef __linux__
/* The workspace tells the number of threads, as each has scratch in it. */
static size_t workspace_now(void) {
    evo_opm_desc d = EVO_OPM_DESC_INIT;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_context *context;
    evo_plan *plan;
    d.s = d.n = d.c_m = d.c = d.c_z = 16;
    check(evo_context_create("cpu", NULL, &context));
    check(evo_opm_plan_create(context, &d, &plan));
    check(evo_plan_get_info(plan, &info));
    evo_plan_destroy(plan);
    evo_context_destroy(context);
    return info.workspace_size;
}

static size_t workspace_with(const char *threads) {
    setenv("EVO_NUM_THREADS", threads, 1);
    const size_t bytes = workspace_now();
    unsetenv("EVO_NUM_THREADS");
    return bytes;
}

/* A mask of one processor leaves one thread, whatever the machine has. */
static void test_affinity(void **state) {
    cpu_set_t all, one;
    (void)state;
    unsetenv("EVO_NUM_THREADS");
    CPU_ZERO(&one);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    for (size_t k = 0; k < CPU_SETSIZE && CPU_COUNT(&one) == 0; k++)
        if (CPU_ISSET(k, &all)) CPU_SET(k, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_true(workspace_with("2") > workspace_with("1"));
    assert_int_equal(workspace_now(), workspace_with("1"));
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trimul_peak),
        cmocka_unit_test(test_opm_peak),
#ifdef __linux__
        cmocka_unit_test(test_affinity),
#endif
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
