/*
 * test_overflow.c: every product of sizes that a descriptor forms, walked to its limit: for each size of each product the largest
 * value that is taken and the first that is refused, with the argument and the value in the text. Then plans whose products
 * pass 2^31 and 2^32, and sizes by powers of two as far as any kernel goes: what a plan says that it needs must be at least what
 * its tensors are in long double. With UBSan no product in between may wrap either.
 */
#include "../ops/judge.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t large_size = (1 << 30) + 1;
static const long double narrowest = 2; /* bytes of the smallest number that a kernel may keep */
static const int64_t most_bytes = INT64_MAX / 2 - 1, most_weights = (INT64_C(1) << 54) - 1; /* as the messages say */

/* ---- sizes by their letters ---- */

static int64_t *size_at(const struct case_op *op, union case_desc *desc, char letter) {
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++)
        if (dim->letter == letter) return AT(int64_t, desc, dim->offset);
    fail_msg("%s has no size %c", op->name, letter);
    return NULL;
}

static long double product_of(const struct case_op *op, union case_desc *desc, const char *letters) {
    long double product = 1;
    for (; *letters != '\0'; letters++)
        if (*letters != ',') product *= (long double)*size_at(op, desc, *letters);
    return product;
}

/* The largest v with v^power * rest <= most. */
static int64_t largest(int64_t most, int64_t rest, int power) {
    int64_t low = 0, high = power == 1 ? most : INT64_C(1) << 31;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2 + 1;
        const int fits = power == 1 ? middle <= most / rest : middle <= most / rest / middle;
        if (fits)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* All sizes 1, no mask, no residual, an input that is one row repeated, the narrowest output. */
static union case_desc plain(const struct case_op *op) {
    union case_desc desc;
    op->init(&desc);
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++) *AT(int64_t, &desc, dim->offset) = 1;
    for (int t = 0; t < op->spec_count; t++) {
        evo_tensor *tensor = AT(evo_tensor, &desc, op->specs[t].layout);
        if (op->specs[t].role == CASE_INPUT) tensor->strides[3] = 1;
        if (op->specs[t].role == CASE_OUTPUT) tensor->dtype = EVO_FP16;
    }
    return desc;
}

static evo_status plan_of(const struct case_op *op, const union case_desc *desc) {
    evo_plan *plan = NULL;
    const evo_status status = op->plan_create(judge_context, desc, &plan);
    evo_plan_destroy(plan);
    return status;
}

/* Whether the descriptor is taken as far as this part goes: what another part or the kernels refuse is theirs. */
static void check_taken(const struct case_op *op, const union case_desc *desc, const char *part, int64_t value) {
    if (plan_of(op, desc) == EVO_OK) return;
    const char *text = evo_last_error();
    if (strstr(text, part) != NULL || (strstr(text, "no kernel of") == NULL && strstr(text, "span more than") == NULL))
        fail_msg("%s, %s with %" PRId64 ": %s", op->name, part, value, text);
}

static void check_refused_size(const struct case_op *op, const union case_desc *desc, const char *part, int64_t value) {
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, value);
    REFUSED(plan_of(op, desc), EVO_ERROR_SIZE_OVERFLOW, part, number);
}

/* ---- tensors ---- */

static void walk_size(const struct case_op *op, const struct case_spec *spec, evo_dtype dtype, char letter) {
    union case_desc desc = plain(op);
    evo_tensor *tensor = AT(evo_tensor, &desc, spec->layout);
    char part[64];
    int64_t rest = (int64_t)evo_dtype_size(dtype);
    int power = 0;
    memset(tensor->strides, 0, sizeof tensor->strides);
    tensor->dtype = dtype;
    for (const char *at = spec->extents; *at != '\0'; at++) {
        power += *at == letter;
        if (*at == ',' || *at == letter) continue;
        *size_at(op, &desc, *at) = 3;
        rest *= 3;
    }
    const int64_t value = largest(most_bytes, rest, power);
    snprintf(part, sizeof part, "extents of %s,", spec->name);
    *size_at(op, &desc, letter) = value;
    check_taken(op, &desc, part, value);
    *size_at(op, &desc, letter) = value + 1;
    check_refused_size(op, &desc, part, value + 1);
    *size_at(op, &desc, letter) = INT64_MAX;
    check_refused_size(op, &desc, part, INT64_MAX);
}

static void test_tensors(void **state) {
    static const evo_dtype dtypes[] = { EVO_FP64, EVO_FP32, EVO_BF16, EVO_FP16, EVO_UINT8 };
    const struct case_op *op;
    int walked = 0;
    (void)state;
    for (int o = 0; (op = case_op_get(o)) != NULL; o++)
        for (int t = 0; t < op->spec_count; t++)
            for (int d = 0; d < 5 && op->specs[t].role != CASE_WEIGHT; d++) {
                if (dtypes[d] == EVO_UINT8 && op->specs[t].role != CASE_MASK) continue;
                for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++)
                    if (strchr(op->specs[t].extents, dim->letter) != NULL) {
                        walk_size(op, &op->specs[t], dtypes[d], dim->letter);
                        walked++;
                    }
            }
    assert_true(walked >= 8 * 3 * 4);
}

/* ---- weights ---- */

/* Products of two matrices' sizes; the letter that grows, and another one that is large. */
static void test_weights(void **state) {
    static const struct {
        const char *op, *product;
        char letter, large;
    } walks[] = {
        { "opm", "mc", 'm', 0 },      { "opm", "mc", 'c', 'm' },    { "opm", "ccz", 'c', 0 },
        { "opm", "ccz", 'c', 'z' },   { "opm", "ccz", 'z', 'c' },   { "trimul", "zc", 'z', 'c' },
        { "trimul", "zc", 'c', 'z' }, { "trimul", "co", 'c', 'o' }, { "trimul", "co", 'o', 'c' },
        { "trimul", "zo", 'z', 'o' }, { "trimul", "zo", 'o', 'z' },
    };
    (void)state;
    for (size_t w = 0; w < sizeof walks / sizeof *walks; w++) {
        const struct case_op *op = case_op_find(walks[w].op);
        union case_desc desc = plain(op);
        int64_t rest = 1;
        int power = 0;
        if (walks[w].large != 0) *size_at(op, &desc, walks[w].large) = walks[w].large == 'c' ? 1001 : large_size;
        for (const char *at = walks[w].product; *at != '\0'; at++) {
            power += *at == walks[w].letter;
            if (*at != walks[w].letter) rest *= *size_at(op, &desc, *at);
        }
        const int64_t value = largest(most_weights, rest, power);
        *size_at(op, &desc, walks[w].letter) = value;
        check_taken(op, &desc, "the weights of", value);
        *size_at(op, &desc, walks[w].letter) = value + 1;
        check_refused_size(op, &desc, "the weights of", value + 1);
    }
}

/* ---- plans of large sizes ---- */

/* a and b of one batch entry, if there is one, and each weight once, at the least. */
static void check_figures(const struct case_op *op, union case_desc *desc, const evo_plan *plan) {
    const int is_opm = op->id == EVO_OP_OPM;
    const long double sides =
        *size_at(op, desc, 'B') == 0 ? 0 : 2 * product_of(op, desc, is_opm ? "SNc" : "NNc") * narrowest;
    const long double weights =
        is_opm ? 2 * product_of(op, desc, "mc") + product_of(op, desc, "ccz")
               : 4 * product_of(op, desc, "zc") + product_of(op, desc, "co") + product_of(op, desc, "zo");
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    OK(evo_plan_get_info(plan, &info));
    if ((long double)info.workspace_size < sides || (long double)info.pack_size < weights * narrowest ||
        info.workspace_size > INT64_MAX || info.pack_size > INT64_MAX)
        fail_msg("%s by %s: workspace %zu, expected at least %.0Lf; pack %zu, expected at least %.0Lf", op->name,
                 info.kernel, info.workspace_size, sides, info.pack_size, weights * narrowest);
}

/* By each kernel by name: how many take it. */
static int check_kernels(const struct case_op *op, union case_desc *desc) {
    const bool limited = *op->common(desc).workspace_limit != 0;
    const char *kernel;
    int taken = 0;
    for (int k = 0; (kernel = evo_context_kernel(judge_context, op->id, k)) != NULL; k++) {
        evo_plan *plan = NULL;
        *op->common(desc).kernel = kernel;
        const evo_status status = op->plan_create(judge_context, desc, &plan);
        if (status == EVO_OK)
            check_figures(op, desc, plan);
        else if (status != EVO_ERROR_SIZE_OVERFLOW && !(limited && status == EVO_ERROR_WORKSPACE_LIMIT))
            assert_int_equal(status, EVO_ERROR_UNSUPPORTED);
        taken += status == EVO_OK;
        evo_plan_destroy(plan);
    }
    *op->common(desc).kernel = NULL;
    return taken;
}

/* B N N c of 2^31 and 2^32, and to both sides of them. */
static void test_products_of_32_bits(void **state) {
    static const int64_t sizes[][3] = { { 1, 1 << 15, 2 }, { 1, 1 << 15, 4 }, { 1, 1 << 16, 1 }, { 1, 46341, 1 },
                                        { 2, 4096, 64 },   { 1, 4096, 128 },  { 1, 4096, 256 },  { 128, 4096, 1 },
                                        { 1, 2896, 256 },  { 2, 2897, 128 },  { 512, 2048, 1 },  { 1024, 1024, 4 } };
    const struct case_op *op;
    (void)state;
    for (int o = 0; (op = case_op_get(o)) != NULL; o++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int64_t beside = -1; beside <= 1; beside++) {
                union case_desc desc = plain(op);
                *size_at(op, &desc, 'B') = sizes[i][0];
                *size_at(op, &desc, 'N') = sizes[i][1] + beside;
                *size_at(op, &desc, 'c') = sizes[i][2];
                *size_at(op, &desc, 'z') = op->id == EVO_OP_OPM ? sizes[i][2] : 8;
                if (check_kernels(op, &desc) == 0) fail_msg("no kernel of %s takes it: %s", op->name, evo_last_error());
                OK(plan_of(op, &desc));
            }
}

/* Each size alone by powers of two and beside them, with every other small: to where the last kernel refuses. */
static void test_powers_of_two(void **state) {
    const struct case_op *op;
    (void)state;
    for (int o = 0; (op = case_op_get(o)) != NULL; o++)
        for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++)
            for (int64_t value = 1, farthest = 0; value > 0 && value <= INT64_MAX / 2; value *= 2)
                for (int64_t beside = -1; beside <= 1; beside++) {
                    union case_desc desc = plain(op);
                    for (const struct case_dim *other = op->dims; other->letter != 0; other++)
                        *AT(int64_t, &desc, other->offset) = 5;
                    *AT(int64_t, &desc, dim->offset) = value + beside;
                    const int64_t taken = value + beside > 0 ? check_kernels(op, &desc) : 0;
                    if (taken > 0) farthest = value + beside;
                    /* Kernels of GPUs have limits of their own on channels. */
                    if (strchr("BSN", dim->letter) != NULL && value <= 1 << 15) assert_true(farthest >= value - 1);
                }
}

/* One size alone, with any limit on the workspace; how many kernels take it. */
static int try_size(const struct case_op *op, union case_desc desc, const struct case_dim *dim, int64_t value) {
    static const size_t limits[] = { 0, 1, 1 << 20, SIZE_MAX };
    int taken = 0;
    *AT(int64_t, &desc, dim->offset) = value;
    for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
        *op->common(&desc).workspace_limit = limits[l];
        taken += check_kernels(op, &desc);
    }
    return taken;
}

/* No batch or no side: nothing is computed, but planned with the other sizes. */
static void test_empty(void **state) {
    static const int64_t values[] = { INT64_MAX, INT64_MAX - 1, most_bytes, INT64_C(1) << 54, UINT32_MAX, INT32_MAX };
    const struct case_op *op;
    int taken = 0;
    (void)state;
    for (int o = 0; (op = case_op_get(o)) != NULL; o++) {
        union case_desc desc = plain(op);
        for (int t = 0; t < op->spec_count; t++) /* else its strides would be products of the sizes */
            if (op->specs[t].role == CASE_OUTPUT) AT(evo_tensor, &desc, op->specs[t].layout)->strides[3] = 1;
        for (const char *none = "BN"; *none != '\0'; none++) {
            *size_at(op, &desc, *none) = 0;
            for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++)
                for (size_t v = 0; v < sizeof values / sizeof *values && dim->letter != *none; v++)
                    taken += try_size(op, desc, dim, values[v]);
            *size_at(op, &desc, *none) = 1;
        }
        *size_at(op, &desc, 'B') = 0;
        *size_at(op, &desc, 'N') = INT64_MAX;
        REFUSED(plan_of(op, &desc), EVO_ERROR_SIZE_OVERFLOW, "the extents of out", "9223372036854775807");
    }
    assert_true(taken > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_products_of_32_bits),
        cmocka_unit_test(test_powers_of_two),
        cmocka_unit_test(test_empty),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("overflow", tests, judge_setup, judge_teardown);
}
