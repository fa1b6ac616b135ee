/*
 * test_properties.c: what both ops must do whatever their inputs are, on random cases: permuted residues and sequences, residues
 * and sequences that are masked, scaled masks, batches and their parts, NaN and infinity, subnormal numbers, runs that repeat.
 *
 * Where the order of the arithmetic stays the same, so must the bits. Where it does not (a sum over k or s is taken in another
 * order, or its terms are grouped otherwise), the result is judged by what the untouched case should give (judge_output): its
 * bound holds for every order of summation.
 */
#include "../rounding.h"
#include "judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LONGEST = 64, /* of an index that is permuted */
    ROUNDS = 120
};

static struct case_random random_state;
static uint64_t seed;

static void start(uint64_t fallback) {
    seed = test_seed(fallback);
    case_random_seed(&random_state, seed, "properties");
}

static int64_t below(int64_t count) {
    return (int64_t)(case_random_bits(&random_state) % (uint64_t)count);
}

/* ---- random cases ---- */

/* A case of either op with these sizes and keys; the layouts are those in which no two elements share memory. */
static void random_text(char *text, size_t size, int is_opm, int64_t n, int64_t s, const char *more) {
    struct case_random *r = &random_state;
    char number[24];
    judge_start(text, size, is_opm ? "opm" : "trimul");
    judge_key(text, size, "variant", PICK(r, "alphafold2", "alphafold3", "boltz", "helixfold", "megafold", "mean"));
    judge_key(text, size, "b", PICK(r, "1", "1", "2"));
    snprintf(number, sizeof number, "%" PRId64, n);
    judge_key(text, size, "n", number);
    snprintf(number, sizeof number, "%" PRId64, s);
    judge_key(text, size, is_opm ? "s" : "direction", is_opm ? number : PICK(r, "outgoing", "incoming"));
    judge_key(text, size, is_opm ? "c_m" : "c_z", PICK(r, "5", "8", "16", "33"));
    judge_key(text, size, "c", PICK(r, "1", "4", "5", "8", "24"));
    judge_key(text, size, is_opm ? "c_z" : "c_out", PICK(r, "1", "6", "8", "17"));
    judge_key(text, size, "dtype", PICK(r, "fp64", "fp32", "fp32", "bf16", "fp16"));
    judge_key(text, size, "layout", PICK(r, "contiguous", "padded", "offset", "transposed", "negative", "slice"));
    judge_key(text, size, "weight_layout", PICK(r, "contiguous", "transposed", "halves", "interleaved"));
    judge_key(text, size, "residual", PICK(r, "0", "1", "1,alias=residual"));
    if (more[0] != '\0') strncat(text, more, size - strlen(text) - 1);
    judge_end(text, size);
}

/* The text with another size. */
static void resize(const char *text, const char *key, int64_t value, char *resized, size_t size) {
    char start_of_key[8];
    snprintf(start_of_key, sizeof start_of_key, ",%s=", key);
    const char *at = strstr(text, start_of_key);
    assert_non_null(at);
    snprintf(resized, size, "%.*s%s%" PRId64 "%s", (int)(at - text), text, start_of_key, value,
             at + 1 + strcspn(at + 1, ",)"));
}

/* One of the device's kernels by name, if that takes the case; else the one that the plan chooses. */
static void choose_kernel(struct evo_case *c) {
    const struct case_common common = c->op->common(&c->desc);
    const char *names[32];
    int count = 0;
    while (count < 32 && (names[count] = evo_context_kernel(judge_context, c->op->id, count)) != NULL) count++;
    const int64_t pick = below(2 * count);
    if (pick >= count || getenv("EVO_KERNEL") != NULL) return;
    union case_desc desc;
    evo_plan *plan = NULL;
    *common.kernel = names[pick];
    case_descriptor(c, &desc);
    const evo_status status = c->op->plan_create(judge_context, &desc, &plan);
    evo_plan_destroy(plan);
    if (status != EVO_OK) *common.kernel = NULL;
}

/* The case's output, and the mode that it is in; the kernel is then fixed, so that other sizes are summed in the same order. */
static double *run_fixed(struct evo_case *c, struct case_outcome *outcome) {
    static char names[2][64]; /* a case and the one that it is compared with live at the same time */
    static int turn;
    double *out = judge_run(judge_context, c, outcome);
    turn = !turn;
    snprintf(names[turn], sizeof names[turn], "%s", outcome->kernel);
    *c->op->common(&c->desc).kernel = names[turn];
    return out;
}

/* ---- indices ---- */

/* The letter of each index of an activation: B, S, N or another. */
static void letters_of(const struct case_tensor *tensor, char *letters) {
    const char *text = tensor->spec->extents;
    for (int d = 0; d < tensor->rank; d++, text += strcspn(text, ",") + 1) letters[d] = text[0];
}

static void indices_of(const struct case_tensor *tensor, int64_t element, int64_t *indices) {
    for (int d = tensor->rank - 1; d >= 0; d--) {
        indices[d] = element % tensor->extents[d];
        element /= tensor->extents[d];
    }
}

static int64_t element_of(const struct case_tensor *tensor, const int64_t *indices) {
    int64_t element = 0;
    for (int d = 0; d < tensor->rank; d++) element = element * tensor->extents[d] + indices[d];
    return element;
}

/* Element number `element` of `tensor` after its indices of letter `along` went through `permutation`. */
static int64_t permuted(const struct case_tensor *tensor, int64_t element, char along, const int64_t *permutation) {
    char letters[CASE_MAX_RANK];
    int64_t indices[CASE_MAX_RANK];
    letters_of(tensor, letters);
    indices_of(tensor, element, indices);
    for (int d = 0; d < tensor->rank; d++)
        if (letters[d] == along) indices[d] = permutation[indices[d]];
    return element_of(tensor, indices);
}

/* Whether an index of this letter is the last one. */
static int is_last(const struct case_tensor *tensor, int64_t element, char along) {
    char letters[CASE_MAX_RANK];
    int64_t indices[CASE_MAX_RANK];
    int last = 0;
    letters_of(tensor, letters);
    indices_of(tensor, element, indices);
    for (int d = 0; d < tensor->rank; d++) last = last || (letters[d] == along && indices[d] == tensor->extents[d] - 1);
    return last;
}

static int is_activation(const struct case_tensor *tensor) {
    return tensor->present && tensor->values != NULL && tensor->spec->role != CASE_WEIGHT;
}

static void shuffle(int64_t *permutation, int64_t count) {
    assert_true(count <= LONGEST);
    for (int64_t i = 0; i < count; i++) permutation[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t other = below(i + 1), kept = permutation[i];
        permutation[i] = permutation[other];
        permutation[other] = kept;
    }
}

/* ---- permutations ---- */

static void permute_inputs(struct evo_case *c, const struct evo_case *original, char along,
                           const int64_t *permutation) {
    for (int t = 0; t < c->op->spec_count; t++) {
        const struct case_tensor *from = &original->tensors[t];
        if (!is_activation(from)) continue;
        for (int64_t e = 0; e < from->count; e++)
            c->tensors[t].values[permuted(from, e, along, permutation)] = from->values[e];
    }
}

/* The case with residues or sequences in another order gives the same outputs, in that order. */
static void judge_permutation(const char *text, char along, int64_t count, int same_bits) {
    struct evo_case c = judge_parse(judge_context, text, seed), other;
    struct io_error error;
    int64_t permutation[LONGEST];
    struct case_outcome outcome;
    choose_kernel(&c);
    if (judge_takes(judge_context, &c)) {
        double *want = run_fixed(&c, &outcome);
        shuffle(permutation, count);
        if (!case_copy(&c, &other, &error)) fail_msg("%s: %s", text, error.text);
        permute_inputs(&other, &c, along, permutation);
        double *there = judge_run(judge_context, &other, &outcome);
        const struct case_tensor *out = case_output(&c);
        double *back = calloc((size_t)out->count + 1, sizeof *back);
        assert_non_null(back);
        for (int64_t e = 0; e < out->count; e++) back[e] = there[permuted(out, e, along, permutation)];
        if (same_bits) judge_same(&c, "with its residues permuted", back, want, out->count);
        judge_output(&c, outcome.compute, back);
        free(back);
        free(there);
        free(want);
        case_destroy(&other);
    }
    case_destroy(&c);
}

/* No sum of the outer product mean is over residues; the triangle's is. */
static void test_permuted_residues(void **state) {
    (void)state;
    start(41);
    for (int i = 0; i < test_scaled(ROUNDS); i++) {
        char text[CASE_NAME_SIZE];
        const int64_t n = 2 + below(19);
        random_text(text, sizeof text, i % 2, n, 1 + below(20),
                    PICK(&random_state, ",mask=random", ",mask=fractional", ",mask=none", ",mask=row"));
        judge_permutation(text, 'N', n, i % 2);
    }
}

static void test_permuted_sequences(void **state) {
    (void)state;
    start(42);
    for (int i = 0; i < test_scaled(ROUNDS / 2); i++) {
        char text[CASE_NAME_SIZE];
        const int64_t s = 2 + below(50);
        random_text(text, sizeof text, 1, 1 + below(9), s,
                    PICK(&random_state, ",mask=random", ",mask=fractional", ",mask=none", ",mask=row"));
        judge_permutation(text, 'S', s, 0);
    }
}

/* ---- what is masked ---- */

/* Gives `c` the values that `larger`, which has one more residue or sequence, has at the same indices. */
static void take_part(struct evo_case *c, const struct evo_case *larger) {
    for (int t = 0; t < c->op->spec_count; t++) {
        const struct case_tensor *to = &c->tensors[t], *from = &larger->tensors[t];
        if (!is_activation(to)) continue;
        for (int64_t e = 0; e < to->count; e++) {
            int64_t indices[CASE_MAX_RANK];
            indices_of(to, e, indices);
            to->values[e] = from->values[element_of(from, indices)];
        }
    }
}

/* `text` has one more of N or S than `part`, the last, which is masked: all other outputs are as without it. */
static void judge_masked(const char *text, const char *part, char along, int same_bits) {
    struct evo_case larger = judge_parse(judge_context, text, seed), c = judge_parse(judge_context, part, seed);
    struct case_tensor *mask = case_find(&larger, "mask");
    struct case_outcome outcome;
    for (int64_t e = 0; e < mask->count; e++)
        if (is_last(mask, e, along)) mask->values[e] = 0.0;
    take_part(&c, &larger);
    choose_kernel(&c);
    if (judge_takes(judge_context, &c)) {
        double *want = run_fixed(&c, &outcome);
        *larger.op->common(&larger.desc).kernel = outcome.kernel;
        struct case_outcome with;
        double *whole = judge_run(judge_context, &larger, &with);
        const struct case_tensor *out = case_output(&c);
        double *got = calloc((size_t)out->count + 1, sizeof *got);
        assert_non_null(got);
        for (int64_t e = 0; e < out->count; e++) {
            int64_t indices[CASE_MAX_RANK];
            indices_of(out, e, indices);
            got[e] = whole[element_of(case_output(&larger), indices)];
        }
        if (same_bits) judge_same(&c, "beside one that is masked", got, want, out->count);
        judge_output(&c, with.compute, got);
        free(got);
        free(whole);
        free(want);
    }
    case_destroy(&larger);
    case_destroy(&c);
}

/* A masked residue adds zeros to the triangle's sums, at their ends, and nothing at all to those of the outer product mean. */
static void test_masked_residues(void **state) {
    (void)state;
    start(43);
    for (int i = 0; i < test_scaled(ROUNDS); i++) {
        char text[CASE_NAME_SIZE], part[CASE_NAME_SIZE];
        const int64_t n = 2 + below(33);
        random_text(text, sizeof text, i % 2, n, 1 + below(9), PICK(&random_state, ",mask=random", ",mask=fractional"));
        resize(text, "n", n - 1, part, sizeof part);
        judge_masked(text, part, 'N', i % 2);
    }
}

static void test_masked_sequences(void **state) {
    (void)state;
    start(44);
    for (int i = 0; i < test_scaled(ROUNDS / 2); i++) {
        char text[CASE_NAME_SIZE], part[CASE_NAME_SIZE];
        const int64_t s = 2 + below(50);
        random_text(text, sizeof text, 1, 1 + below(9), s, PICK(&random_state, ",mask=random", ",mask=fractional"));
        resize(text, "s", s - 1, part, sizeof part);
        judge_masked(text, part, 'S', 0);
    }
}

/* ---- scaled masks ---- */

static void scale(struct evo_case *c, const char *tensor, double factor) {
    struct case_tensor *t = case_find(c, tensor);
    for (int64_t e = 0; t->present && e < t->count; e++) t->values[e] *= factor;
}

/*
 * With mask * f the sums of the outer product mean grow by f of each masked side and the counts by f * f. So nothing changes
 * if eps and min grow by f * f, b_o too where it is divided, and W_o by f where b has no mask.
 */
static void scale_opm(struct evo_case *c, double f) {
    evo_opm_desc *d = &c->desc.opm;
    d->count_eps *= f * f;
    d->count_min *= f * f;
    scale(c, "mask", f);
    if (d->divide == EVO_DIVIDE_AFTER) scale(c, "out.bias", f * f);
    if (d->mask_sides == EVO_MASK_A_ONLY) scale(c, "out.weight", f);
}

/* The triangle's t grows by f * f, which its LayerNorm takes out again if eps is 0: then there must be no row of zeros. */
static void scale_trimul(struct evo_case *c, double f) {
    scale(c, "mask", f);
}

/* All factors are powers of two: where products are not rounded otherwise by their size, the bits stay. */
static void test_scaled_masks(void **state) {
    (void)state;
    start(45);
    for (int i = 0; i < test_scaled(ROUNDS); i++) {
        char any[CASE_NAME_SIZE], text[CASE_NAME_SIZE];
        const int is_opm = i % 2;
        random_text(any, sizeof any, is_opm, 1 + below(12), 1 + below(20),
                    is_opm ? PICK(&random_state, ",mask=random", ",mask=fractional", ",mask=row")
                           : ",mask=fractional,ln_eps=0");
        if (is_opm)
            strcpy(text, any);
        else
            resize(any, "c", 8, text, sizeof text);
        struct evo_case c = judge_parse(judge_context, text, seed), scaled;
        struct io_error error;
        struct case_outcome outcome;
        choose_kernel(&c);
        if (judge_takes(judge_context, &c)) {
            double *want = run_fixed(&c, &outcome);
            if (!case_copy(&c, &scaled, &error)) fail_msg("%s: %s", text, error.text);
            (is_opm ? scale_opm : scale_trimul)(&scaled, ldexp(1.0, (int)below(5) - 1)); /* 1/2 to 8 */
            double *got = judge_run(judge_context, &scaled, &outcome);
            const int64_t count = case_output(&c)->count;
            if (outcome.compute != EVO_COMPUTE_FP16) judge_same(&c, "with its mask scaled", got, want, count);
            judge_output(&c, outcome.compute, got);
            free(got);
            free(want);
            case_destroy(&scaled);
        }
        case_destroy(&c);
    }
}

/* ---- batches, special numbers ---- */

static void test_batches(void **state) {
    (void)state;
    start(46);
    for (int i = 0; i < test_scaled(ROUNDS / 2); i++) {
        char any[CASE_NAME_SIZE], text[CASE_NAME_SIZE];
        random_text(any, sizeof any, i % 2, 1 + below(20), 1 + below(40),
                    PICK(&random_state, ",mask=random", ",mask=batch", ",mask=none"));
        resize(any, "b", 2 + i % 3, text, sizeof text);
        judge_split(judge_context, text);
    }
}

/* NaN or infinity in any element of any tensor reaches the outputs that depend on it, and no other. */
static void test_special_values(void **state) {
    (void)state;
    start(47);
    for (int i = 0; i < test_scaled(2 * ROUNDS); i++) {
        static const double specials[] = { (double)NAN, (double)INFINITY, (double)-INFINITY };
        char text[CASE_NAME_SIZE];
        random_text(text, sizeof text, i % 2, 1 + below(12), 1 + below(20),
                    PICK(&random_state, ",mask=random", ",mask=fractional", ",mask=none", ",mask=row"));
        struct evo_case c = judge_parse(judge_context, text, seed + (uint64_t)i);
        const struct case_tensor *tensor;
        do tensor = &c.tensors[below(c.op->spec_count)];
        while (!tensor->present || tensor->values == NULL || tensor->count == 0);
        const int64_t element = below(tensor->count);
        tensor->values[element] = specials[below(3)];
        const size_t used = strlen(c.name);
        snprintf(c.name + used, sizeof c.name - used, " with %s[%" PRId64 "] = %g", tensor->spec->name, element,
                 tensor->values[element]);
        choose_kernel(&c);
        if (judge_takes(judge_context, &c)) judge_case(judge_context, &c);
        case_destroy(&c);
    }
}

/* Inputs, masks, weights that are subnormal in their type; outputs that are. Nothing may become NaN, or large. */
static void test_subnormals(void **state) {
    static const struct {
        const char *keys, *tensor;
        double factor;
    } cases[] = {
        { "dtype=fp16,ln_eps=0,weights=fp32", "input", 0x1p-20 },
        { "dtype=fp16,weights=fp16", "input", 0x1p-22 },
        { "dtype=bf16,weights=fp32", "input", 0x1p-130 },
        { "dtype=fp32,weights=fp32", "input", 0x1p-140 },
        { "dtype=fp64,weights=fp64", "input", 0x1p-1060 },
        { "dtype=fp32,mask=fractional", "mask", 0x1p-140 },
        { "dtype=fp16,mask=fractional", "mask", 0x1p-20 },
        { "dtype=fp16,weights=fp32,biases=none", "out.weight", 0x1p-18 },
        { "dtype=fp16,weights=fp16,biases=none", "out.weight", 0x1p-20 },
        { "dtype=bf16,weights=fp32,biases=none", "out.weight", 0x1p-100 },
        { "dtype=fp32,weights=fp64,biases=none", "out.weight", 0x1p-105 },
        { "dtype=fp32,weights=fp32", "norm", 0x1p-140 },
    };
    (void)state;
    start(48);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int is_opm = 0; is_opm < 2; is_opm++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, "%s(n=7,%sc=8,c_z=16,%s)", is_opm ? "opm" : "trimul", is_opm ? "c_m=16," : "",
                     cases[k].keys);
            struct evo_case c = judge_parse(judge_context, text, seed + k);
            const char *name = cases[k].tensor;
            if (strcmp(name, "input") == 0) name = is_opm ? "m" : "z";
            if (strcmp(name, "norm") == 0) name = is_opm ? "norm.weight" : "norm_out.weight";
            struct case_tensor *tensor = case_find(&c, name);
            assert_true(tensor != NULL && tensor->present);
            scale(&c, name, cases[k].factor);
            /* As they are stored: what is below the least number of the type is 0. */
            const number_format *format = number_format_of(tensor->dtype);
            for (int64_t e = 0; e < tensor->count; e++)
                tensor->values[e] = (double)round_to(format, (long double)tensor->values[e]);
            c.hard = true;
            if (judge_takes(judge_context, &c)) judge_case(judge_context, &c);
            case_destroy(&c);
        }
}

/* ---- repeated runs ---- */

static void test_repeats(void **state) {
    (void)state;
    start(49);
    for (int i = 0; i < 8; i++) {
        char text[CASE_NAME_SIZE], runs[32];
        snprintf(runs, sizeof runs, ",mask=random,runs=%d", test_scaled(100));
        random_text(text, sizeof text, i % 2, 4 + below(30), 1 + below(40), runs);
        judge_text(judge_context, text, seed);
    }
}

static void test_threads(void **state) {
    (void)state;
    start(50);
    for (int i = 0; i < test_scaled(12); i++) {
        char text[CASE_NAME_SIZE];
        random_text(text, sizeof text, i % 2, 1 + below(40), 1 + below(60), ",mask=random");
        judge_threads(judge_context, text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permuted_residues), cmocka_unit_test(test_permuted_sequences),
        cmocka_unit_test(test_masked_residues),   cmocka_unit_test(test_masked_sequences),
        cmocka_unit_test(test_scaled_masks),      cmocka_unit_test(test_batches),
        cmocka_unit_test(test_special_values),    cmocka_unit_test(test_subnormals),
        cmocka_unit_test(test_repeats),           cmocka_unit_test(test_threads),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("properties", tests, judge_setup, judge_teardown);
}
