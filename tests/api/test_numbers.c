/*
 * test_numbers.c: names of statuses, number types and modes, and evo_convert: every 16-bit pattern, and rounding at
 * and around every tie, judged by rounding.h.
 */
#include "../rounding.h"
#include "../support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const evo_dtype narrow[] = { EVO_FP16, EVO_BF16 };
enum {
    NARROW_COUNT = 2
};

/* The value of a 16-bit code. */
static double value_of(const number_format *f, unsigned code) {
    int fraction = f->digits - 1;
    unsigned scale = 1u << fraction, exponent = (code & 0x7fff) >> fraction, rest = code & (scale - 1);
    double magnitude;
    if ((int)exponent == f->most - f->least + 2)
        magnitude = rest != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        magnitude = ldexp((double)rest / scale, f->least);
    else
        magnitude = ldexp(1.0 + (double)rest / scale, f->least + (int)exponent - 1);
    return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

static int same(double a, double b) {
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

static void check_value(const number_format *f, double x, double got) {
    double want = (double)round_to(f, x);
    if (!same(got, want)) fail_msg("%a to %s gives %a, expected %a", x, evo_dtype_name(f->dtype), got, want);
}

static void test_status_names(void **state) {
    static const char *const names[] = {
        "EVO_OK",
        "EVO_ERROR_INVALID_ARGUMENT",
        "EVO_ERROR_NULL_POINTER",
        "EVO_ERROR_INVALID_SHAPE",
        "EVO_ERROR_INVALID_DTYPE",
        "EVO_ERROR_INVALID_LAYOUT",
        "EVO_ERROR_MISALIGNED",
        "EVO_ERROR_ALIASED",
        "EVO_ERROR_SIZE_OVERFLOW",
        "EVO_ERROR_BUFFER_TOO_SMALL",
        "EVO_ERROR_WORKSPACE_LIMIT",
        "EVO_ERROR_PACK_MISMATCH",
        "EVO_ERROR_UNSUPPORTED",
        "EVO_ERROR_NOT_COMPILED",
        "EVO_ERROR_NO_DEVICE",
        "EVO_ERROR_OUT_OF_MEMORY",
        "EVO_ERROR_DEVICE",
        "EVO_ERROR_CAPTURE",
        "EVO_ERROR_INTERNAL",
    };
    (void)state;
    for (int i = 0; i <= (int)EVO_ERROR_INTERNAL; i++) assert_string_equal(evo_status_name((evo_status)i), names[i]);
    assert_string_equal(evo_status_name((evo_status)19), "EVO_ERROR_UNKNOWN");
    assert_string_equal(evo_status_name((evo_status)-1), "EVO_ERROR_UNKNOWN");
}

static void test_type_names(void **state) {
    static const char *const names[] = { "none", "fp64", "fp32", "bf16", "fp16", "uint8" };
    static const char *const computes[] = { "fp32", "fp32_strict", "tf32", "bf16", "fp16", "fp64" };
    static const size_t sizes[] = { 0, 8, 4, 2, 2, 1 };
    (void)state;
    for (int i = 0; i < 6; i++) {
        assert_string_equal(evo_dtype_name((evo_dtype)i), names[i]);
        assert_int_equal(evo_dtype_size((evo_dtype)i), sizes[i]);
        assert_string_equal(evo_compute_name((evo_compute)i), computes[i]);
    }
    assert_string_equal(evo_dtype_name((evo_dtype)6), "invalid");
    assert_int_equal(evo_dtype_size((evo_dtype)6), 0);
    assert_string_equal(evo_compute_name((evo_compute)6), "invalid");
    assert_string_equal(evo_op_name(EVO_OP_OPM), "opm");
    assert_string_equal(evo_op_name(EVO_OP_TRIMUL), "trimul");
    int ops = 0;
    while (evo_op_name((evo_op)ops) != NULL) ops++;
    assert_true(ops > EVO_OP_TRIMUL);
    assert_null(evo_op_name((evo_op)(ops + 1)));
    assert_null(evo_op_name((evo_op)-1));
}

/* Every code widened, exactly; and narrowed again to itself (a NaN to a NaN). */
static void test_every_pattern(void **state) {
    enum {
        CODES = 65536
    };
    (void)state;
    uint16_t *codes = malloc(CODES * sizeof *codes), *back = malloc(CODES * sizeof *back);
    double *wide = malloc(CODES * sizeof *wide);
    float *single = malloc(CODES * sizeof *single);
    assert_true(codes != NULL && back != NULL && wide != NULL && single != NULL);
    for (unsigned i = 0; i < CODES; i++) codes[i] = (uint16_t)i;
    for (int k = 0; k < NARROW_COUNT; k++) {
        const number_format *f = number_format_of(narrow[k]);
        OK(evo_convert(codes, f->dtype, wide, EVO_FP64, CODES));
        OK(evo_convert(codes, f->dtype, single, EVO_FP32, CODES));
        for (unsigned i = 0; i < CODES; i++)
            if (!same(wide[i], value_of(f, i)) || !same((double)single[i], value_of(f, i)))
                fail_msg("%s 0x%04x gives %a and %a, expected %a", evo_dtype_name(f->dtype), i, wide[i],
                         (double)single[i], value_of(f, i));
        for (int from_single = 0; from_single < 2; from_single++) {
            OK(evo_convert(from_single ? (void *)single : (void *)wide, from_single ? EVO_FP32 : EVO_FP64, back,
                           f->dtype, CODES));
            for (unsigned i = 0; i < CODES; i++)
                if (!same(value_of(f, back[i]), value_of(f, i)))
                    fail_msg("%s 0x%04x comes back as 0x%04x", evo_dtype_name(f->dtype), i, back[i]);
        }
    }
    free(codes);
    free(back);
    free(wide);
    free(single);
}

/* `count` numbers narrowed by the library, from fp64 and where they fit from fp32. */
static void check_narrowing(const number_format *f, const double *values, size_t count) {
    uint16_t codes[16];
    float singles[16];
    assert_true(count <= 16);
    OK(evo_convert(values, EVO_FP64, codes, f->dtype, count));
    for (size_t i = 0; i < count; i++) check_value(f, values[i], value_of(f, codes[i]));
    for (size_t i = 0; i < count; i++) singles[i] = (float)values[i];
    OK(evo_convert(singles, EVO_FP32, codes, f->dtype, count));
    for (size_t i = 0; i < count; i++) check_value(f, (double)singles[i], value_of(f, codes[i]));
}

/* Between each two neighbours: the tie, and numbers just beside it, nearer than a detour over fp32 could tell. */
static void test_every_tie(void **state) {
    (void)state;
    for (int k = 0; k < NARROW_COUNT; k++) {
        const number_format *f = number_format_of(narrow[k]);
        double largest = ldexp(2.0 - ldexp(1.0, 1 - f->digits), f->most);
        for (unsigned code = 0; value_of(f, code) <= largest && (code == 0 || value_of(f, code - 1) < largest);
             code++) {
            double low = value_of(f, code), high = value_of(f, code + 1);
            if (isinf(high)) high = ldexp(1.0, f->most + 1);
            double tie = low + (high - low) / 2;
            const double around[] = { tie,
                                      nextafter(tie, 0.0),
                                      nextafter(tie, (double)INFINITY),
                                      -tie,
                                      -nextafter(tie, 0.0),
                                      -nextafter(tie, (double)INFINITY),
                                      nextafter(low, (double)INFINITY),
                                      nextafter(high, 0.0) };
            check_narrowing(f, around, sizeof around / sizeof *around);
        }
    }
}

static void test_far_values(void **state) {
    (void)state;
    const double values[] = { 0.0,     -0.0,         (double)INFINITY, (double)-INFINITY, (double)NAN,
                              DBL_MAX, -DBL_MAX,     DBL_MIN,          DBL_TRUE_MIN,      -DBL_TRUE_MIN,
                              FLT_MAX, FLT_TRUE_MIN, FLT_TRUE_MIN / 2, 65519.0,           65520.0,
                              1e300 };
    for (int k = 0; k < NARROW_COUNT; k++) {
        uint16_t codes[16];
        OK(evo_convert(values, EVO_FP64, codes, narrow[k], 16));
        for (size_t i = 0; i < 16; i++)
            check_value(number_format_of(narrow[k]), values[i], value_of(number_format_of(narrow[k]), codes[i]));
    }
    float singles[16];
    OK(evo_convert(values, EVO_FP64, singles, EVO_FP32, 16));
    for (size_t i = 0; i < 16; i++) assert_true(same((double)singles[i], (double)(float)values[i]));
}

static void test_random_values(void **state) {
    uint64_t bits = test_seed(20240611);
    (void)state;
    for (int i = 0; i < test_scaled(200000); i++) {
        double values[8];
        for (int j = 0; j < 8; j++) {
            bits = bits * 6364136223846793005u + 1442695040888963407u;
            /* A random significand, and an exponent near the formats' ranges. */
            values[j] = ldexp((double)(bits >> 11) / 9007199254740992.0, (int)(bits % 301) - 150);
            if ((bits >> 20 & 1) != 0) values[j] = -values[j];
        }
        check_narrowing(number_format_of(narrow[i % 2]), values, 8);
    }
}

static void test_uint8(void **state) {
    const float values[] = { 0.0f, 0.99f, 1.0f, 254.9f, 255.0f, 300.0f, -1.0f, -0.5f, NAN, INFINITY, -INFINITY };
    const uint8_t want[] = { 0, 0, 1, 254, 255, 255, 0, 0, 0, 255, 0 };
    uint8_t got[11];
    (void)state;
    OK(evo_convert(values, EVO_FP32, got, EVO_UINT8, 11));
    assert_memory_equal(got, want, sizeof want);
    double back[11];
    OK(evo_convert(got, EVO_UINT8, back, EVO_FP64, 11));
    for (int i = 0; i < 11; i++) assert_true(back[i] == want[i]);
}

static void test_refusals(void **state) {
    float value = 1.0f;
    double wide = 7.0;
    (void)state;
    REFUSED(evo_convert(NULL, EVO_FP32, &wide, EVO_FP64, 1), EVO_ERROR_NULL_POINTER, "evo_convert", "source");
    REFUSED(evo_convert(&value, EVO_FP32, NULL, EVO_FP64, 1), EVO_ERROR_NULL_POINTER, "evo_convert", "target");
    REFUSED(evo_convert(&value, EVO_NONE, &wide, EVO_FP64, 1), EVO_ERROR_INVALID_DTYPE, "source_dtype", "none",
            "expected");
    REFUSED(evo_convert(&value, EVO_FP32, &wide, (evo_dtype)42, 1), EVO_ERROR_INVALID_DTYPE, "target_dtype", "42",
            "expected");
    assert_true(wide == 7.0);
    OK(evo_convert(NULL, EVO_FP32, NULL, EVO_FP64, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_names), cmocka_unit_test(test_type_names), cmocka_unit_test(test_every_pattern),
        cmocka_unit_test(test_every_tie),    cmocka_unit_test(test_far_values), cmocka_unit_test(test_random_values),
        cmocka_unit_test(test_uint8),        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("numbers", tests, NULL, NULL);
}
