/*
 * test_tensor.c (white box): layouts, spans and overlaps of src/tensor.c, judged by looking at every element, and the
 * small helpers of src/ that the public API cannot drive to their ends.
 */
#include "../../src/plan.h"
#include "../../src/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUFFER = 4096,
    ROUNDS = 20000
};

static uint64_t random_state = 7;

static int random_below(int n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

/* A tensor of random small extents; strides from a permutation with gaps, some negative, some zero if `repeats`. */
static evo_operand random_operand(evo_dtype dtype, int repeats) {
    evo_operand operand = { .name = "t", .rank = 2 + random_below(3), .extent = { 1, 1, 1, 1 } };
    evo_tensor tensor = { dtype, { 0, 0, 0, 0 }, 1 };
    int order[4] = { 0, 1, 2, 3 };
    int64_t step = 1 + random_below(3);
    for (int d = operand.rank - 1; d > 0; d--) {
        int other = random_below(d + 1), kept = order[d];
        order[d] = order[other];
        order[other] = kept;
    }
    for (int k = 0; k < operand.rank; k++) {
        int d = order[k];
        operand.extent[d] = 1 + random_below(4);
        tensor.strides[d] = random_below(4) == 0 ? -step : step;
        if (repeats && random_below(5) == 0) tensor.strides[d] = 0;
        step = step * operand.extent[d] + random_below(4);
        if (repeats && random_below(6) == 0) step = 1 + random_below(5);
    }
    tensor.alignment = evo_dtype_size(dtype);
    assert_int_equal(evo_operand_resolve("test", &tensor, &operand, EVO_NUMBER_ANY, false), EVO_OK);
    return operand;
}

static int64_t element_count(const evo_operand *o) {
    int64_t count = 1;
    for (int d = 0; d < o->rank; d++) count *= o->extent[d];
    return count;
}

/* The byte offset of element number `index`. */
static int64_t element_at(const evo_operand *o, int64_t index) {
    int64_t at = 0;
    for (int d = o->rank - 1; d >= 0; d--) {
        at += index % o->extent[d] * o->layout.strides[d];
        index /= o->extent[d];
    }
    return at * (int64_t)evo_dtype_size(o->layout.dtype);
}

/* Counts each byte that the tensor touches when it starts at byte `start` of the buffer. */
static void touch(const evo_operand *o, int64_t start, unsigned char *bytes) {
    for (int64_t i = 0; i < element_count(o); i++)
        for (int64_t b = 0; b < (int64_t)evo_dtype_size(o->layout.dtype); b++) {
            int64_t at = start + element_at(o, i) + b;
            assert_true(at >= 0 && at < BUFFER);
            assert_true(at - start >= o->first && at - start < o->last);
            if (bytes[at] < 255) bytes[at]++;
        }
}

static int shares_bytes(const evo_operand *a, int64_t a_start, const evo_operand *b, int64_t b_start) {
    static unsigned char in_a[BUFFER], in_b[BUFFER];
    memset(in_a, 0, sizeof in_a);
    memset(in_b, 0, sizeof in_b);
    touch(a, a_start, in_a);
    touch(b, b_start, in_b);
    for (int i = 0; i < BUFFER; i++)
        if (in_a[i] && in_b[i]) return 1;
    return 0;
}

/* Whatever shares a byte is found. The converse need not hold, but must in most cases or it would be of no use. */
static void test_every_overlap_is_found(void **state) {
    static const evo_dtype dtypes[] = { EVO_UINT8, EVO_FP16, EVO_FP32, EVO_FP64 };
    static unsigned char buffer[BUFFER];
    int apart = 0, told_apart = 0;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        evo_operand a = random_operand(dtypes[random_below(4)], 0), b = random_operand(dtypes[random_below(4)], 1);
        int64_t a_start = BUFFER / 2, b_start = BUFFER / 2 + random_below(200) - 100;
        if (a_start + a.first < 0 || a_start + a.last > BUFFER || b_start + b.first < 0 || b_start + b.last > BUFFER)
            continue;
        int truth = shares_bytes(&a, a_start, &b, b_start);
        int said = evo_operands_overlap(&a, buffer + a_start, &b, buffer + b_start);
        assert_int_equal(evo_operands_overlap(&b, buffer + b_start, &a, buffer + a_start), said);
        if (truth && !said) fail_msg("round %d: an overlap is missed", round);
        apart += !truth;
        told_apart += !truth && !said;
    }
    assert_true(apart > 100 && told_apart > apart / 4);
}

/* What programs do: slices of the channels of one array, blocks of rows, and every second row. */
static void test_interleaved_views_are_told_apart(void **state) {
    float array[4 * 6 * 6 * 16] = { 0 };
    evo_tensor layout = { EVO_FP32, { 6 * 6 * 16, 6 * 16, 16, 1 }, 4 };
    evo_operand slice = { .name = "slice", .rank = 4, .extent = { 4, 6, 6, 5 } };
    (void)state;
    assert_int_equal(evo_operand_resolve("test", &layout, &slice, EVO_NUMBER_FLOAT, false), EVO_OK);
    for (int shift = -20; shift <= 20; shift++) {
        int wrapped = ((shift % 16) + 16) % 16;
        int truth = wrapped < 5 || wrapped > 11;
        assert_int_equal(evo_operands_overlap(&slice, array + 100, &slice, array + 100 + shift), truth);
    }
    evo_operand other = slice;
    other.extent[3] = 11;
    assert_int_equal(evo_operand_resolve("test", &layout, &other, EVO_NUMBER_FLOAT, false), EVO_OK);
    assert_false(evo_operands_overlap(&slice, array, &other, array + 5));
    assert_true(evo_operands_overlap(&slice, array, &other, array + 4));
    evo_operand block = { .name = "block", .rank = 4, .extent = { 1, 3, 6, 16 } };
    evo_tensor rows = { EVO_FP32, { 0, 0, 0, 0 }, 4 };
    assert_int_equal(evo_operand_resolve("test", &rows, &block, EVO_NUMBER_FLOAT, false), EVO_OK);
    assert_false(evo_operands_overlap(&block, array, &block, array + 3 * 6 * 16));
    assert_true(evo_operands_overlap(&block, array, &block, array + 3 * 6 * 16 - 1));
}

/* Halves of an array along any of its indices, among them blocks of rows that stand once an entry of the batch. */
static void test_halves_are_told_apart(void **state) {
    float array[4 * 4 * 4 * 4] = { 0 };
    (void)state;
    for (int half = 0; half < 4; half++) {
        evo_tensor layout = { EVO_FP32, { 64, 16, 4, 1 }, 4 };
        evo_operand slice = { .name = "slice", .rank = 4, .extent = { 4, 4, 4, 4 } };
        slice.extent[half] = 2;
        const int64_t distance = 2 * layout.strides[half];
        assert_int_equal(evo_operand_resolve("test", &layout, &slice, EVO_NUMBER_FLOAT, false), EVO_OK);
        assert_false(evo_operands_overlap(&slice, array, &slice, array + distance));
        assert_false(evo_operands_overlap(&slice, array + distance, &slice, array));
        assert_true(evo_operands_overlap(&slice, array, &slice, array + distance - 1));
    }
}

static void test_absent_tensors_have_no_strides(void **state) {
    evo_tensor layout = { EVO_NONE, { INT64_MIN, INT64_MAX, 5, 1 }, 16 };
    evo_operand absent = { .name = "absent", .rank = 4, .extent = { 2, 3, 4, 5 } };
    (void)state;
    assert_int_equal(evo_operand_resolve("test", &layout, &absent, EVO_NUMBER_ANY, true), EVO_OK);
    for (int d = 0; d < 4; d++) assert_true(layout.strides[d] == 0 && absent.layout.strides[d] == 0);
}

static void test_empty_tensors_overlap_nothing(void **state) {
    float array[16] = { 0 };
    evo_operand empty = { .name = "empty", .rank = 3, .extent = { 2, 0, 4, 1 } }, full = empty;
    evo_tensor layout = EVO_TENSOR_INIT(EVO_FP32), same = layout;
    (void)state;
    full.extent[1] = 2;
    assert_int_equal(evo_operand_resolve("test", &layout, &empty, EVO_NUMBER_FLOAT, false), EVO_OK);
    assert_int_equal(evo_operand_resolve("test", &same, &full, EVO_NUMBER_FLOAT, false), EVO_OK);
    assert_false(evo_operand_used(&empty));
    assert_true(evo_operand_used(&full));
    assert_false(evo_operands_overlap(&empty, array, &full, array));
    assert_int_equal(full.last, 64);
    assert_int_equal(layout.alignment, 16);
}

/* An output whose elements share an address is refused; nested strides, in any order and direction, are taken. */
static void test_outputs_that_overlap_themselves(void **state) {
    static unsigned char bytes[BUFFER];
    int refused = 0, taken = 0;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        evo_operand out = random_operand(EVO_FP32, round % 2);
        if (BUFFER / 2 + out.first < 0 || BUFFER / 2 + out.last > BUFFER) continue;
        memset(bytes, 0, sizeof bytes);
        touch(&out, BUFFER / 2, bytes);
        int clash = 0;
        for (int i = 0; i < BUFFER; i++) clash = clash || bytes[i] > 1;
        evo_status status = evo_operand_check_output("test", &out);
        if (clash) assert_int_equal(status, EVO_ERROR_INVALID_LAYOUT);
        if (round % 2 == 0) assert_int_equal(status, EVO_OK);
        refused += clash;
        taken += status == EVO_OK;
    }
    assert_true(refused > 100 && taken > 1000);
}

__extension__ typedef __int128 wide;

static int64_t random_long(void) {
    const uint64_t bits = (uint64_t)random_below(1 << 30) << 33 ^ (uint64_t)random_below(1 << 30) << 11;
    return (int64_t)(bits >> 1 >> random_below(62));
}

/*
 * Strides that end at the limit and to both sides of it, upwards and downwards: taken just where the span's bytes, in 128 bits, are.
 * The last index is of two elements, and its stride makes up the difference.
 */
static void test_spans(void **state) {
    const wide limit = INT64_MAX / 2;
    int taken = 0, refused = 0;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        static const evo_dtype dtypes[] = { EVO_FP64, EVO_FP32, EVO_BF16, EVO_UINT8 };
        const evo_dtype dtype = dtypes[random_below(4)];
        const wide size = (wide)evo_dtype_size(dtype);
        evo_operand operand = { .name = "t", .rank = 4, .extent = { 1, 1, 1, 2 } };
        evo_tensor tensor = { dtype, { 0, 0, 0, 0 }, (size_t)size };
        wide low = 0, high = 0;
        for (int d = 0; d < 3; d++) {
            operand.extent[d] = 1 + (random_below(3) ? random_below(4) : random_long());
            tensor.strides[d] = random_below(2) ? random_long() : -random_long();
            const wide reach = (wide)(operand.extent[d] - 1) * tensor.strides[d];
            *(reach < 0 ? &low : &high) += reach;
        }
        const int down = random_below(2);
        const wide rest = down ? -limit / size - low : limit / size - high;
        const wide last = rest + random_below(7) - 3;
        if (last > INT64_MAX || last < INT64_MIN || last == 0) continue;
        tensor.strides[3] = (int64_t)last;
        *(last < 0 ? &low : &high) += last;
        const int fits = low * size > INT64_MIN / 2 && (high + 1) * size < limit;
        assert_int_equal(evo_operand_resolve("test", &tensor, &operand, EVO_NUMBER_ANY, false),
                         fits ? EVO_OK : EVO_ERROR_SIZE_OVERFLOW);
        if (fits) assert_true(operand.first == (int64_t)(low * size) && operand.last == (int64_t)((high + 1) * size));
        taken += fits;
        refused += !fits;

        /* The same as a weight, of which there are two indices. */
        if (operand.extent[0] > 1 || operand.extent[1] > 1 || dtype == EVO_UINT8) continue;
        static const double memory = 0.0; /* nothing reads it */
        evo_weight weight = { &memory, dtype, { tensor.strides[2], tensor.strides[3] } };
        const evo_weight_spec spec = { "w", &weight, 2, operand.extent[2], 2, 0 };
        assert_int_equal(evo_weights_resolve("test", &spec, 1, 0), fits ? EVO_OK : EVO_ERROR_SIZE_OVERFLOW);
    }
    assert_true(taken > ROUNDS / 20 && refused > ROUNDS / 20);
}

static void test_products(void **state) {
    (void)state;
    assert_int_equal(evo_product(2, 3, 5, 7), 210);
    assert_int_equal(evo_product(0, INT64_MAX, 1, 1), 0);
    assert_int_equal(evo_product(INT64_MAX, 1, 1, 1), INT64_MAX);
    assert_int_equal(evo_product(1LL << 31, 1LL << 32, 1, 1), -1);
    assert_int_equal(evo_product(1LL << 31, 1LL << 31, 1, 1), 1LL << 62);
    assert_int_equal(evo_product(1, 1, INT64_MAX, 2), -1);
    assert_int_equal(evo_product(1LL << 20, 1LL << 20, 1LL << 20, 1LL << 20), -1);
}

/* A text that is too long is cut off, within its bounds, and stays a string. */
static void test_texts_are_bounded(void **state) {
    evo_text text = { { 0 }, 0 };
    (void)state;
    for (int i = 0; i < 1000; i++) evo_text_add(&text, "%d,", i);
    assert_true(text.length < sizeof text.data);
    assert_int_equal(strlen(text.data), text.length);
    assert_int_equal(strncmp(text.data, "0,1,2,3,", 8), 0);
    evo_text_add(&text, "%s", "more");
    assert_int_equal(strlen(text.data), text.length);
    /* A text may quote the one before it. */
    assert_int_equal(evo_fail(EVO_ERROR_DEVICE, "first"), EVO_ERROR_DEVICE);
    assert_int_equal(evo_fail(EVO_ERROR_INTERNAL, "second, after: %s", evo_last_error()), EVO_ERROR_INTERNAL);
    assert_string_equal(evo_last_error(), "second, after: first");
}

typedef struct early {
    size_t size;
    int known;
} early;

typedef struct late {
    size_t size;
    int known, later;
} late;

/* Structs of callers that are older or newer than this library. */
static void test_struct_sizes(void **state) {
    late source = { sizeof source, 11, 0 };
    early target = { 0, 0 };
    const size_t known = offsetof(late, later);
    (void)state;
    assert_int_equal(evo_struct_read("test", "desc", &target, &source, known), EVO_OK);
    assert_int_equal(target.known, 11);
    source.later = 1;
    assert_int_equal(evo_struct_read("test", "desc", &target, &source, known), EVO_ERROR_INVALID_ARGUMENT);
    source.size = offsetof(late, known);
    assert_int_equal(evo_struct_read("test", "desc", &target, &source, known), EVO_ERROR_INVALID_ARGUMENT);
    assert_int_equal(evo_struct_read("test", "desc", &target, NULL, known), EVO_ERROR_NULL_POINTER);
    /* Written back: as much as the caller has, and not a byte more. */
    const late full = { sizeof full, 22, 33 };
    source.size = known;
    source.later = 5;
    assert_int_equal(evo_struct_write("test", &source, &full, sizeof full), EVO_OK);
    assert_true(source.size == known && source.known == 22 && source.later == 5);
}

static void test_steps(void **state) {
    (void)state;
    evo_range range = evo_step(0, 4, 10);
    assert_true(range.begin == 0 && range.end == 4);
    range = evo_step(8, 4, 10);
    assert_true(range.begin == 8 && range.end == 10);
    range = evo_step(0, INT64_MAX, 3);
    assert_true(range.begin == 0 && range.end == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_overlap_is_found),
        cmocka_unit_test(test_interleaved_views_are_told_apart),
        cmocka_unit_test(test_halves_are_told_apart),
        cmocka_unit_test(test_absent_tensors_have_no_strides),
        cmocka_unit_test(test_empty_tensors_overlap_nothing),
        cmocka_unit_test(test_outputs_that_overlap_themselves),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_texts_are_bounded),
        cmocka_unit_test(test_struct_sizes),
        cmocka_unit_test(test_steps),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
