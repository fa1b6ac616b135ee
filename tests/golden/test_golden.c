/*
 * test_golden.c: what other projects' own code computed (golden/README.md). The naive evaluation must agree with it,
 * which shows that tests judge by the right formula; and the device under test must, with the canonical weights and
 * with the peers' own arrays through views.
 */
#include "../ops/judge.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILES_MAX = 256,
    PATH_SIZE = 1024
};

static char files[FILES_MAX][PATH_SIZE];
static int file_count;

static void find_files(void) {
    const char *data = getenv("EVO_TEST_DATA");
    char folder[PATH_SIZE / 2];
    snprintf(folder, sizeof folder, "%s/golden", data != NULL ? data : ".");
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (struct dirent *entry = readdir(dir); entry != NULL && file_count < FILES_MAX; entry = readdir(dir)) {
        const char *end = strstr(entry->d_name, ".safetensors");
        if (end != NULL && strcmp(end, ".safetensors") == 0 && strlen(entry->d_name) < PATH_SIZE / 4)
            snprintf(files[file_count++], PATH_SIZE, "%s/%.255s", folder, entry->d_name);
    }
    closedir(dir);
}

static struct evo_case load(const char *path, enum case_source source, bool *has_views) {
    struct evo_case c;
    struct io_error error;
    if (!case_load(path, source, &c, has_views, &error)) fail_msg("%s: %s", path, error.text);
    assert_non_null(c.expected);
    return c;
}

static void expect_errors(const char *path, const struct evo_case *c, const double *got, double total, double pair) {
    struct case_comparison found;
    case_compare(c, got, c->expected, &found);
    if (!(found.total <= total) || !(found.pair <= pair))
        fail_msg("%s: errors %.3g, worst pair %.3g, expected at most %.3g, %.3g. %s", path, found.total, found.pair,
                 total, pair, found.message);
}

static void retype(struct evo_case *c, evo_dtype dtype) {
    struct io_error error;
    if (!case_retype(c, dtype, dtype, &error)) fail_msg("%s", error.text);
}

static void test_naive_agrees_with_the_peers(void **state) {
    (void)state;
    for (int i = 0; i < file_count; i++) {
        if (!test_takes(i)) continue; /* the same on every device */
        struct evo_case c = load(files[i], CASE_CANONICAL, NULL);
        retype(&c, EVO_FP64);
        size_t count = (size_t)case_output(&c)->count;
        long double *want = calloc(count + 1, sizeof *want), *bound = calloc(count + 1, sizeof *bound);
        double *rounded = calloc(count + 1, sizeof *rounded);
        assert_true(want != NULL && bound != NULL && rounded != NULL);
        judge_naive(&c, ldexpl(1.0L, -53), want, bound);
        for (size_t k = 0; k < count; k++) rounded[k] = (double)want[k];
        /* golden/README.md: HelixFold keeps LayerNorm's eps in fp32, 2e-10; all others agree to 1e-14. */
        double total = strstr(files[i], "helixfold") != NULL ? 1e-9 : 1e-12;
        expect_errors(files[i], &c, rounded, total, strstr(files[i], "helixfold") != NULL ? 1e-8 : 1e-11);
        free(want);
        free(bound);
        free(rounded);
        case_destroy(&c);
    }
}

/*
 * One file in a coarser mode: its numbers rounded to `dtype`, judged by the library's own fp64 result on these. Where every
 * third row has mean 100, rounding to 16 bits takes so much of the rows that the file's result says nothing.
 */
static void check_mode(evo_context *cpu, const char *path, evo_dtype dtype, evo_compute compute) {
    struct case_outcome outcome;
    struct io_error error;
    struct evo_case c = load(path, CASE_CANONICAL, NULL), reference;
    retype(&c, dtype);
    *c.op->common(&c.desc).compute = compute;
    if (judge_takes(judge_context, &c)) {
        if (!case_reference(&c, &reference, &error)) fail_msg("%s: %s", path, error.text);
        double *want = judge_run(cpu, &reference, &outcome), *got = judge_run(judge_context, &c, &outcome);
        memcpy(c.expected, want, (size_t)case_output(&c)->count * sizeof *want);
        struct case_bound bound = case_golden_bounds(outcome.compute, dtype);
        expect_errors(path, &c, got, bound.total, bound.pair);
        case_destroy(&reference);
        free(want);
        free(got);
    }
    case_destroy(&c);
}

/* One file through one source of weights in one type. */
static void check_device(const char *path, enum case_source source, evo_dtype dtype) {
    struct case_outcome outcome;
    struct evo_case c = load(path, source, NULL);
    if (dtype != EVO_FP32) {
        retype(&c, dtype);
        *c.op->common(&c.desc).compute = case_default_compute(dtype);
    }
    if (!judge_takes(judge_context, &c)) {
        case_destroy(&c);
        return;
    }
    double *got = judge_run(judge_context, &c, &outcome);
    struct case_bound bound = case_golden_bounds(outcome.compute, case_output(&c)->dtype);
    /* Sums in double leave nothing but the rounding of the fp32 output. */
    if (outcome.compute == EVO_COMPUTE_FP64 && case_output(&c)->dtype == EVO_FP32)
        bound = (struct case_bound){ 1e-6, 1e-6 };
    expect_errors(path, &c, got, bound.total, bound.pair);
    free(got);
    case_destroy(&c);
}

static void test_device_agrees_with_the_peers(void **state) {
    int with_views = 0;
    (void)state;
    for (int i = 0; i < file_count; i++) {
        bool has_views = false;
        struct evo_case c = load(files[i], CASE_CANONICAL, &has_views);
        case_destroy(&c);
        if (test_takes(i)) check_device(files[i], CASE_CANONICAL, EVO_FP32); /* `evo check --golden` runs all, too */
        if (has_views) {
            check_device(files[i], CASE_VIEWS, EVO_FP32);
            with_views++;
        }
    }
    print_message("%d files, %d of them with a peer's own arrays\n", file_count, with_views);
    assert_true(with_views >= 10);
}

static void test_device_in_coarse_modes(void **state) {
    evo_context *cpu = NULL;
    (void)state;
    OK(evo_context_create("cpu", NULL, &cpu));
    for (int i = 0; i < file_count; i++) {
        check_mode(cpu, files[i], EVO_BF16, EVO_COMPUTE_BF16);
        check_mode(cpu, files[i], EVO_FP16, EVO_COMPUTE_FP16);
        check_mode(cpu, files[i], EVO_FP32, EVO_COMPUTE_TF32);
    }
    evo_context_destroy(cpu);
}

static void test_device_in_fp64(void **state) {
    int checked = 0;
    (void)state;
    for (int i = 0; i < file_count; i++) {
        struct evo_case c = load(files[i], CASE_CANONICAL, NULL);
        const struct case_op *op = c.op;
        case_destroy(&c);
        if (!test_takes_fp64(judge_context, op)) continue;
        check_device(files[i], CASE_CANONICAL, EVO_FP64);
        checked++;
    }
    if (checked == 0) skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_naive_agrees_with_the_peers),
        cmocka_unit_test(test_device_agrees_with_the_peers),
        cmocka_unit_test(test_device_in_coarse_modes),
        cmocka_unit_test(test_device_in_fp64),
    };
    find_files();
    if (file_count == 0) {
        fprintf(stderr, "skipped: no golden/*.safetensors in EVO_TEST_DATA\n");
        return TEST_SKIPPED;
    }
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("golden", tests, judge_setup, judge_teardown);
}
