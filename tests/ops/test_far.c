/*
 * test_far.c: views whose offsets pass 2^31 or 2^32 elements: the same bits as from contiguous tensors by the same kernel, and
 * nothing written elsewhere.
 *
 * One tensor at a time, one index at a time, has a stride with which its last element stands so many elements and more behind its
 * first, or before it. On the CPU and on simulated devices the memory between is address space that nothing touches; on hardware it is
 * device memory, up to 17 GiB.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include "judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Offsets that lose their upper bits land among so many elements on either side of the pointer, which are NaNs. */
enum {
    NEAR = 4096
};

/* ---- far memory ---- */

static int is_host_memory(void) {
    return strncmp(test_device(), "cpu", 3) == 0 || getenv("EVO_SIMULATED_ARCH") != NULL;
}

static char *far_alloc(size_t bytes) {
    void *memory = NULL;
    if (!is_host_memory()) {
        const evo_status status = evo_memory_alloc(judge_context, bytes, &memory);
        if (status == EVO_ERROR_OUT_OF_MEMORY) {
            print_message("skipped: %s\n", evo_last_error());
            skip();
        }
        OK(status);
        return memory;
    }
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static void far_free(char *memory, size_t bytes) {
    if (is_host_memory())
        assert_int_equal(munmap(memory, bytes), 0);
    else
        device_free(judge_context, memory);
}

static void far_copy(void *target, const void *source, size_t bytes) {
    if (is_host_memory())
        memcpy(target, source, bytes);
    else
        OK(evo_memory_copy(judge_context, target, source, bytes, NULL));
}

/* ---- one far view ---- */

/* Where the elements of a tensor lie, in row-major order of its indices. */
typedef struct view {
    int rank;
    int64_t extents[CASE_MAX_RANK], strides[CASE_MAX_RANK], count;
    int64_t before;     /* elements of memory before the pointer */
    size_t size, bytes; /* of an element, of the whole span */
} view;

/*
 * Strides with which the last of index d stands `far` behind the first, or before it where that is negative; multiples of four, so
 * that rows stay aligned.
 */
static view make_view(const sample *s, int spec, evo_dtype dtype, int d, int64_t far) {
    view v = { .count = 1, .before = NEAR, .size = evo_dtype_size(dtype) };
    int64_t last = 0;
    assert_true(case_products(s->op, &s->desc, s->op->specs[spec].extents, v.extents, &v.rank));
    for (int i = v.rank - 1; i >= 0; i--) {
        v.strides[i] = v.count;
        v.count *= v.extents[i];
    }
    if (v.extents[d] > 1) v.strides[d] = (far / (v.extents[d] - 1) / 4 + 16) * 4;
    for (int i = 0; i < v.rank; i++) {
        const int64_t reach = (v.extents[i] - 1) * v.strides[i];
        if (reach < 0)
            v.before -= reach;
        else
            last += reach;
    }
    v.bytes = (size_t)(v.before + last + NEAR) * v.size;
    return v;
}

static int64_t element(const view *v, int64_t index) {
    int64_t at = 0;
    for (int i = v->rank - 1; i >= 0; i--) {
        at += index % v->extents[i] * v->strides[i];
        index /= v->extents[i];
    }
    return at;
}

/* Whether an element of the view stands among the NEAR on either side. */
static void mark_own(const view *v, unsigned char *own) {
    memset(own, 0, 2 * NEAR);
    for (int64_t i = 0; i < v->count; i++)
        if (element(v, i) >= -NEAR && element(v, i) < NEAR) own[element(v, i) + NEAR] = 1;
}

/* Runs the sample with the tensor at `far`, and compares with what it gave before. */
static void run_far(sample *s, int spec, const view *v, char *far, const unsigned char *contiguous,
                    const unsigned char *want) {
    static unsigned char near[2 * NEAR * sizeof(double)], own[2 * NEAR];
    char *const around = far - NEAR * v->size;
    const int is_output = s->op->specs[spec].role == CASE_OUTPUT;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_plan *plan = NULL;
    memset(near, 0xff, sizeof near);
    far_copy(around, near, 2 * NEAR * v->size);
    for (int64_t i = 0; i < v->count && !is_output; i++)
        far_copy(far + element(v, i) * (int64_t)v->size, contiguous + (size_t)i * v->size, v->size);
    sample_mark_output(s);
    OK(s->op->plan_create(judge_context, &s->desc, &plan));
    OK(evo_plan_get_info(plan, &info));
    void *workspace = device_alloc(judge_context, info.workspace_size);
    OK(s->op->execute(plan, s->pack, &s->args, workspace, info.workspace_size, NULL));
    OK(evo_stream_synchronize(judge_context, NULL));
    unsigned char *got = is_output ? malloc(s->out_bytes) : sample_output(s);
    assert_non_null(got);
    for (int64_t i = 0; i < v->count && is_output; i++)
        far_copy(got + (size_t)i * v->size, far + element(v, i) * (int64_t)v->size, v->size);
    far_copy(near, around, 2 * NEAR * v->size);
    OK(evo_stream_synchronize(judge_context, NULL));
    assert_memory_equal(got, want, s->out_bytes);
    mark_own(v, own);
    for (size_t i = 0; i < 2 * NEAR * v->size; i++)
        if (!own[i / v->size]) assert_int_equal(near[i], 0xff);
    free(got);
    device_free(judge_context, workspace);
    evo_plan_destroy(plan);
}

/* What the sample gives with contiguous tensors, by the kernel that the planner takes for the view of `tensor`. */
static unsigned char *output_by_its_kernel(sample *s, evo_tensor *tensor, const view *v) {
    static char name[64];
    const evo_tensor contiguous = *tensor;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_plan *plan = NULL;
    *s->op->common(&s->desc).kernel = NULL;
    memcpy(tensor->strides, v->strides, (size_t)v->rank * sizeof *v->strides);
    OK(s->op->plan_create(judge_context, &s->desc, &plan));
    OK(evo_plan_get_info(plan, &info));
    assert_in_range(snprintf(name, sizeof name, "%s", info.kernel), 1, sizeof name - 1);
    evo_plan_destroy(plan);
    *tensor = contiguous;
    sample_force_kernel(s, name);
    OK(sample_run(s));
    OK(evo_stream_synchronize(judge_context, NULL));
    return sample_output(s);
}

/* One activation of the sample in one far view. */
static void test_view(sample *s, int spec, int d, int64_t distance) {
    const struct case_spec *of = &s->op->specs[spec];
    evo_tensor *tensor = AT(evo_tensor, &s->desc, of->layout);
    void **slot = AT(void *, &s->args, of->slot), *contiguous = *slot;
    const evo_tensor kept = *tensor;
    const view v = make_view(s, spec, kept.dtype, d, distance);
    unsigned char *values = malloc((size_t)v.count * v.size), *want = output_by_its_kernel(s, tensor, &v);
    assert_non_null(values);
    device_copy(judge_context, values, contiguous, (size_t)v.count * v.size);
    char *memory = far_alloc(v.bytes), *far = memory + v.before * (int64_t)v.size;
    memcpy(tensor->strides, v.strides, (size_t)v.rank * sizeof *v.strides);
    *slot = far;
    run_far(s, spec, &v, far, values, want);
    far_free(memory, v.bytes);
    free(values);
    free(want);
    *tensor = kept;
    *slot = contiguous;
}

/* Every activation of a call, by every index of it that has a second value, forwards and backwards. */
static void test_views(const char *text) {
    static const int64_t distances[] = { INT64_C(1) << 32, INT64_C(1) << 31, -(INT64_C(1) << 31) };
    sample *s = sample_create(text, judge_context);
    for (int spec = 0; spec < s->op->spec_count; spec++) {
        if (s->op->specs[spec].role == CASE_WEIGHT) continue;
        const int rank = make_view(s, spec, EVO_FP32, 0, 0).rank;
        for (int d = 0; d < rank; d++)
            for (size_t k = 0; k < sizeof distances / sizeof *distances; k++) test_view(s, spec, d, distances[k]);
    }
    sample_destroy(s);
}

static void test_opm(void **state) {
    (void)state;
    test_views("opm(b=2,s=3,n=3,c_m=8,c=4,c_z=8,mask=random,residual=1)");
    test_views("opm(b=2,s=3,n=3,c_m=8,c=4,c_z=8,mask=random,residual=1,dtype=bf16)");
}

/* More sequences than weight first is taken for. */
static void test_opm_outer_first(void **state) {
    (void)state;
    test_views("opm(b=2,s=70,n=3,c_m=8,c=4,c_z=8,mask=random,residual=1)");
}

static void test_trimul(void **state) {
    (void)state;
    test_views("trimul(b=2,n=3,c_z=8,c=4,mask=random,residual=1)");
    test_views("trimul(b=2,n=3,c_z=8,c=4,mask=random,residual=1,direction=incoming,dtype=bf16)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opm),
        cmocka_unit_test(test_opm_outer_first),
        cmocka_unit_test(test_trimul),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("far", tests, judge_setup, judge_teardown);
}
