/* judge.c: see judge.h. */
#include "judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../naive.h"
#include "../rounding.h"

evo_context *judge_context;
static int refused_cases;

int judge_setup(void **state) {
    (void)state;
    judge_context = test_context(NULL);
    return 0;
}

int judge_teardown(void **state) {
    (void)state;
    if (refused_cases > 0)
        print_message("%d cases skipped: EVO_KERNEL's kernel refuses them, as expected\n", refused_cases);
    evo_context_destroy(judge_context);
    return 0;
}

struct evo_case judge_parse(evo_context *context, const char *text, uint64_t seed) {
    struct evo_case c;
    struct io_error error;
    char fitted[CASE_NAME_SIZE];
    test_fit(context, text, fitted, sizeof fitted);
    if (!case_parse(fitted, seed, &c, &error)) fail_msg("%s: %s", fitted, error.text);
    return c;
}

double *judge_run(evo_context *context, const struct evo_case *c, struct case_outcome *outcome) {
    struct case_outcome own;
    int64_t count = c->tensors[case_find_spec(c->op, "out")].count;
    double *out = calloc((size_t)count + 1, sizeof *out);
    assert_non_null(out);
    if (outcome == NULL) outcome = &own;
    if (!case_run(context, c, out, outcome)) fail_msg("%s (seed %" PRIu64 "): %s", c->name, c->seed, outcome->message);
    return out;
}

/* ---- kernels that are forced ---- */

/* What a kernel may refuse when EVO_KERNEL names it for an op: every other refusal fails the test. */
static const struct {
    const char *kernel, *reason;
} expected_refusals[] = {
    { "opm:tensor", "tensor: computes fp32, tf32, bf16 and fp16, the descriptor asks for" },
    { "opm:tensor", "takes c to 64 in fp32" },
    { "opm:tensor", "whose matrix units take small halves of numbers as 0" },
    { "opm:hopper", "hopper: computes bf16, fp16 and tf32, the descriptor asks for" },
    { "opm:hopper", "takes c to 64 and c_z of multiples of 8 to 384" },
    { "opm:hopper", "takes out and residual both in" },
    { "opm:hopper", "takes out and residual whose last stride is 1" },
    { "opm:hopper", "cannot divide by a count of 0" },
    { "trimul:tensor", "tensor: computes fp32, tf32, bf16 and fp16, the descriptor asks for" },
    { "trimul:tensor", "takes c and c_z from 8 on" },
    { "trimul:tensor", "want more shared memory" },
    { "trimul:hopper", "hopper: computes bf16, fp16 and tf32, the descriptor asks for" },
    { "trimul:hopper", "takes c_z of 32, 64, 128, 256 and 384" },
    { "trimul:hopper", "takes tensors all in" },
    { "trimul:hopper", "takes tensors in fp32 only with gates of the normed z" },
    { "trimul:hopper", "takes tensors whose last stride is 1" },
    { "trimul:hopper/one-launch", "takes one launch for c of 32" },
};

static int may_refuse(const char *text) {
    const char *forced = getenv("EVO_KERNEL");
    for (size_t i = 0; forced != NULL && i < sizeof expected_refusals / sizeof *expected_refusals; i++)
        if (strstr(forced, expected_refusals[i].kernel) != NULL && strstr(text, expected_refusals[i].reason) != NULL)
            return 1;
    return 0;
}

int judge_takes(evo_context *context, const struct evo_case *c) {
    union case_desc desc;
    evo_plan *plan = NULL;
    case_descriptor(c, &desc);
    evo_status status = c->op->plan_create(context, &desc, &plan);
    evo_plan_destroy(plan);
    if (status != EVO_ERROR_UNSUPPORTED || !may_refuse(evo_last_error())) return 1;
    refused_cases++;
    if (getenv("EVO_VERBOSE") != NULL) print_message("skipped: %s\n", evo_last_error());
    return 0;
}

/* ---- masks of any size ---- */

double judge_huge_mask(int64_t i, int64_t j) {
    (void)i, (void)j;
    return 0x1p33; /* about 1e10 */
}

double judge_mask_by_row(int64_t i, int64_t j) {
    (void)j;
    return ldexp(1.0, (int)(i * 37 % 67) - 33);
}

double judge_mask_by_column(int64_t i, int64_t j) {
    return judge_mask_by_row(j, i);
}

double judge_one_huge_mask(int64_t i, int64_t j) {
    return i == 2 && j == 3 ? 0x1p33 : 1.0;
}

double judge_nan_mask(int64_t i, int64_t j) {
    return i == 4 && j == 1 ? (double)NAN : 1.0;
}

double judge_infinite_mask(int64_t i, int64_t j) {
    return i == 1 && j == 5 ? (double)INFINITY : 1.0;
}

void judge_scale_mask(const struct evo_case *c, int64_t batch, int64_t rows, int64_t columns,
                      double (*factor)(int64_t i, int64_t j)) {
    const struct case_tensor *mask = &c->tensors[case_find_spec(c->op, "mask")];
    assert_true(mask->present && mask->values != NULL && mask->count == batch * rows * columns);
    for (int64_t e = 0; e < mask->count; e++) mask->values[e] *= factor(e / columns % rows, e % columns);
}

/* ---- the naive evaluation of a case ---- */

static const double *values_of(const struct evo_case *c, const char *name) {
    int spec = case_find_spec(c->op, name);
    assert_true(spec >= 0);
    return c->tensors[spec].present ? c->tensors[spec].values : NULL;
}

static void naive_opm_of(const struct evo_case *c, long double unit, long double *want, long double *bound) {
    const evo_opm_desc *d = &c->desc.opm;
    const naive_opm p = {
        .batch = d->batch,
        .s = d->s,
        .n = d->n,
        .c_m = d->c_m,
        .c = d->c,
        .c_z = d->c_z,
        .m = values_of(c, "m"),
        .mask = values_of(c, "mask"),
        .residual = values_of(c, "residual"),
        .norm_weight = values_of(c, "norm.weight"),
        .norm_bias = values_of(c, "norm.bias"),
        .a_weight = values_of(c, "a.weight"),
        .a_bias = values_of(c, "a.bias"),
        .b_weight = values_of(c, "b.weight"),
        .b_bias = values_of(c, "b.bias"),
        .out_weight = values_of(c, "out.weight"),
        .out_bias = values_of(c, "out.bias"),
        .divide_after = d->divide == EVO_DIVIDE_AFTER,
        .mask_a_only = d->mask_sides == EVO_MASK_A_ONLY,
        .count_eps = d->count_eps,
        .count_min = d->count_min,
        .layer_norm_eps = d->layer_norm_eps,
    };
    naive_opm_eval(&p, unit, want, bound);
}

static void naive_trimul_of(const struct evo_case *c, long double unit, long double *want, long double *bound) {
    const evo_trimul_desc *d = &c->desc.trimul;
    const naive_trimul p = {
        .batch = d->batch,
        .n = d->n,
        .c_z = d->c_z,
        .c = d->c,
        .c_out = d->c_out > 0 ? d->c_out : d->c_z,
        .z = values_of(c, "z"),
        .mask = values_of(c, "mask"),
        .residual = values_of(c, "residual"),
        .norm_in_weight = values_of(c, "norm_in.weight"),
        .norm_in_bias = values_of(c, "norm_in.bias"),
        .a_proj_weight = values_of(c, "a_proj.weight"),
        .a_proj_bias = values_of(c, "a_proj.bias"),
        .a_gate_weight = values_of(c, "a_gate.weight"),
        .a_gate_bias = values_of(c, "a_gate.bias"),
        .b_proj_weight = values_of(c, "b_proj.weight"),
        .b_proj_bias = values_of(c, "b_proj.bias"),
        .b_gate_weight = values_of(c, "b_gate.weight"),
        .b_gate_bias = values_of(c, "b_gate.bias"),
        .norm_out_weight = values_of(c, "norm_out.weight"),
        .norm_out_bias = values_of(c, "norm_out.bias"),
        .out_weight = values_of(c, "out.weight"),
        .out_bias = values_of(c, "out.bias"),
        .out_gate_weight = values_of(c, "out_gate.weight"),
        .out_gate_bias = values_of(c, "out_gate.bias"),
        .incoming = d->direction == EVO_INCOMING,
        .gate_raw = d->gate_input == EVO_GATE_RAW,
        .layer_norm_eps = d->layer_norm_eps,
    };
    naive_trimul_eval(&p, unit, want, bound);
}

void judge_naive(const struct evo_case *c, long double unit, long double *want, long double *bound) {
    (strcmp(c->op->name, "opm") == 0 ? naive_opm_of : naive_trimul_of)(c, unit, want, bound);
}

/* ---- comparing ---- */

enum special {
    HOLDS_NAN = 1,
    HOLDS_INFINITY = 2
};

/* What a case's inputs and weights hold. */
static unsigned specials_of(const struct evo_case *c) {
    unsigned found = 0;
    for (int t = 0; t < c->op->spec_count; t++)
        for (int64_t i = 0; c->tensors[t].present && c->tensors[t].values != NULL && i < c->tensors[t].count; i++) {
            const double value = c->tensors[t].values[i];
            found |= (isnan(value) ? HOLDS_NAN : 0u) | (isinf(value) ? HOLDS_INFINITY : 0u);
        }
    return found;
}

/*
 * Where an infinity in the inputs makes NaN by inf - inf, another order of sums may keep the infinity; a NaN of the inputs
 * stays one. An infinity of the inputs may become NaN (kernels.md, "Infinite weights"); one of a division by 0 may not. Neither
 * has the other sign, unless it was multiplied by what rounding may take past 0: then its bound is infinite too.
 */
static int within_special(double got, long double want, long double bound, unsigned specials) {
    if (isnan(want)) return specials & HOLDS_NAN ? isnan(got) : !isfinite(got);
    if (!isfinite(bound)) return !isfinite(got);
    return (long double)got == want || (isnan(got) && specials & HOLDS_INFINITY);
}

/*
 * The value before its last rounding lies within twice the bound of the exact one: twice, since the bound is of first
 * order, and some kernels multiply by a reciprocal where ops.md divides. Rounding is monotone, so the stored value
 * lies between the two ends rounded. Far below the smallest normal number, `tiny`, sigmoids and products may vanish.
 */
static int within(const number_format *format, double got, long double want, long double bound, long double tiny,
                  unsigned specials) {
    if (!isfinite(want)) return within_special(got, want, bound, specials);
    long double slack = 2.0L * bound + tiny;
    return (long double)got >= round_to(format, want - slack) && (long double)got <= round_to(format, want + slack);
}

/* Far below the smallest normal number of the arithmetic. */
static long double tiny_of(evo_compute compute) {
    return ldexpl(1.0L, compute == EVO_COMPUTE_FP64 ? -1000 : -110);
}

static void compare_elements(const struct evo_case *c, const double *got, const long double *want,
                             const long double *bound, long double tiny) {
    const struct case_tensor *out = &c->tensors[case_find_spec(c->op, "out")];
    const number_format *format = number_format_of(out->dtype);
    const unsigned specials = specials_of(c);
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < out->count; i++)
        if (!within(format, got[i], want[i], bound[i], tiny, specials)) {
            first = first < 0 ? i : first;
            wrong++;
        }
    if (wrong > 0)
        fail_msg("%s (seed %" PRIu64 "): %" PRId64 " of %" PRId64 " elements are wrong, the first is number %" PRId64
                 ": %.17g, expected %.17Lg within %.3Lg",
                 c->name, c->seed, wrong, out->count, first, got[first], want[first], bound[first]);
}

/* Kernels that compute in less than double are judged as the table in docs/numerics.md does. */
static void compare_norms(const struct evo_case *c, evo_compute compute, const double *got, const long double *want) {
    const struct case_tensor *out = &c->tensors[case_find_spec(c->op, "out")];
    struct case_bound bound = case_bounds(compute, out, c->hard);
    struct case_comparison found;
    double *rounded = calloc((size_t)out->count + 1, sizeof *rounded);
    assert_non_null(rounded);
    for (int64_t i = 0; i < out->count; i++)
        rounded[i] = isfinite(want[i]) || isfinite(got[i]) ? (double)want[i] : got[i];
    case_compare(c, got, rounded, &found);
    free(rounded);
    if (!(found.total <= bound.total))
        fail_msg("%s (seed %" PRIu64 "): error %.3g, expected at most %.3g. %s", c->name, c->seed, found.total,
                 bound.total, found.message);
}

/*
 * Whether the table's figures hold for a case: not where a LayerNorm has so few channels that it may magnify any rounding,
 * nor, for the fine ones of fp32, where an output of 16 bits may be subnormal, nor for hard inputs to coarse products.
 */
static int usual(const struct evo_case *c, int narrow) {
    const evo_trimul_desc *trimul = &c->desc.trimul;
    const int64_t c_in = strcmp(c->op->name, "opm") == 0 ? c->desc.opm.c_m : trimul->c_z;
    const int64_t normed = strcmp(c->op->name, "opm") == 0 || c_in < trimul->c ? c_in : trimul->c;
    const int fp32_out = c->tensors[case_find_spec(c->op, "out")].dtype == EVO_FP32;
    return normed >= 8 && (narrow ? fp32_out : !c->hard);
}

/* What a case's output should be, and how far arithmetic of a mode may be from it. */
typedef struct truth {
    evo_compute compute;
    int narrow; /* fp32 */
    long double *want, *bound;
} truth;

static truth truth_of(const struct evo_case *c, evo_compute compute) {
    size_t count = (size_t)c->tensors[case_find_spec(c->op, "out")].count;
    const int narrow = compute == EVO_COMPUTE_FP32 || compute == EVO_COMPUTE_FP32_STRICT;
    const int wide = compute == EVO_COMPUTE_FP64;
    truth t = { compute, narrow, calloc(count + 1, sizeof *t.want), calloc(count + 1, sizeof *t.bound) };
    assert_true(t.want != NULL && t.bound != NULL);
    judge_naive(c, ldexpl(1.0L, wide ? -53 : narrow ? -24 : compute == EVO_COMPUTE_BF16 ? -8 : -11), t.want, t.bound);
    return t;
}

static void truth_free(truth *t) {
    free(t->want);
    free(t->bound);
}

/* Every element within the bound of its own sums, since a pair of few channels may cancel to any relative error. */
static void compare(const struct evo_case *c, const double *got, const truth *t) {
    compare_elements(c, got, t->want, t->bound, tiny_of(t->compute));
    if (t->compute != EVO_COMPUTE_FP64 && usual(c, t->narrow)) compare_norms(c, t->compute, got, t->want);
}

int64_t judge_first_wrong(const struct evo_case *c, evo_compute compute, const double *got) {
    const struct case_tensor *out = &c->tensors[case_find_spec(c->op, "out")];
    const number_format *format = number_format_of(out->dtype);
    const unsigned specials = specials_of(c);
    truth t = truth_of(c, compute);
    int64_t i = 0;
    while (i < out->count && within(format, got[i], t.want[i], t.bound[i], tiny_of(compute), specials)) i++;
    truth_free(&t);
    return i < out->count ? i : -1;
}

void judge_output(const struct evo_case *c, evo_compute compute, const double *got) {
    truth t = truth_of(c, compute);
    compare(c, got, &t);
    truth_free(&t);
}

void judge_case(evo_context *context, const struct evo_case *c) {
    struct case_outcome outcome;
    double *got = judge_run(context, c, &outcome);
    judge_output(c, outcome.compute, got);
    free(got);
}

void judge_text(evo_context *context, const char *text, uint64_t seed) {
    struct evo_case c = judge_parse(context, text, seed);
    if (judge_takes(context, &c)) judge_case(context, &c);
    case_destroy(&c);
}

void judge_texts(evo_context *context, const char *const *texts, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) judge_text(context, texts[i], seed);
}

void judge_special(evo_context *context, const char *text, const char *tensor, double special) {
    struct evo_case c = judge_parse(context, text, 5);
    struct case_tensor *found = case_find(&c, tensor);
    assert_true(found != NULL && found->present && found->values != NULL);
    found->values[found->count / 3] = special;
    if (judge_takes(context, &c)) judge_case(context, &c);
    case_destroy(&c);
}

/* ---- equality, bit for bit ---- */

void judge_same(const struct evo_case *c, const char *what, const double *got, const double *want, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&got[i], &want[i], sizeof got[i]) != 0)
            fail_msg("%s (seed %" PRIu64 "), %s: element %" PRId64 " is %.17g, was %.17g", c->name, c->seed, what, i,
                     got[i], want[i]);
}

void judge_split(evo_context *context, const char *text) {
    struct evo_case c = judge_parse(context, text, 3);
    if (!judge_takes(context, &c)) {
        case_destroy(&c);
        return;
    }
    struct case_outcome outcome;
    double *whole = judge_run(context, &c, &outcome);
    const struct case_tensor *out = case_output(&c);
    int64_t entries = out->extents[0], each = out->count / entries;
    for (int64_t i = 0; i < entries; i++) {
        struct evo_case one;
        struct io_error error;
        if (!case_split(&c, i, &one, &error)) fail_msg("%s: %s", text, error.text);
        *one.op->common(&one.desc).kernel = outcome.kernel; /* a plan of one entry may prefer another order of sums */
        double *single = judge_run(context, &one, NULL);
        judge_same(&c, "a batch entry alone", single, whole + i * each, each);
        free(single);
        case_destroy(&one);
    }
    free(whole);
    case_destroy(&c);
}

static double *run_with_threads(const struct evo_case *c, const char *threads) {
    const char *before = getenv("EVO_NUM_THREADS");
    char *kept = before != NULL ? strdup(before) : NULL;
    setenv("EVO_NUM_THREADS", threads, 1);
    evo_context *context = test_context(NULL);
    double *out = judge_run(context, c, NULL);
    evo_context_destroy(context);
    unsetenv("EVO_NUM_THREADS");
    if (kept != NULL) setenv("EVO_NUM_THREADS", kept, 1);
    free(kept);
    return out;
}

void judge_threads(evo_context *context, const char *text) {
    evo_device_info info = EVO_DEVICE_INFO_INIT;
    test_needs_cpu(context, "EVO_NUM_THREADS is the CPU's");
    OK(evo_context_device(context, &info));
    struct evo_case c = judge_parse(context, text, 4);
    double *one = run_with_threads(&c, "1");
    for (int threads = 2; threads <= 2 * info.compute_units || threads <= 5; threads++) {
        char number[16], what[32];
        snprintf(number, sizeof number, "%d", threads);
        snprintf(what, sizeof what, "with %d threads", threads);
        double *many = run_with_threads(&c, number);
        judge_same(&c, what, many, one, case_output(&c)->count);
        free(many);
    }
    free(one);
    case_destroy(&c);
}

/* ---- workspace limits ---- */

/* The plan's workspace under a limit; 0 if the limit is refused, and then `least` is the smallest that the text says. */
static size_t planned_size(evo_context *context, struct evo_case *c, size_t limit, size_t *least) {
    union case_desc desc;
    evo_plan *plan = NULL;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    *c->op->common(&c->desc).workspace_limit = limit;
    case_descriptor(c, &desc);
    evo_status status = c->op->plan_create(context, &desc, &plan);
    if (status == EVO_OK) {
        OK(evo_plan_get_info(plan, &info));
        evo_plan_destroy(plan);
        assert_true(info.workspace_size > 0);
        return info.workspace_size;
    }
    REFUSED(status, EVO_ERROR_WORKSPACE_LIMIT, "workspace_limit", "at least");
    /* Each kernel that might take it says its own least. */
    *least = SIZE_MAX;
    for (const char *at = strstr(evo_last_error(), "at least "); at != NULL; at = strstr(at + 1, "at least ")) {
        const size_t said = (size_t)strtoull(at + strlen("at least "), NULL, 10);
        if (said < *least) *least = said;
    }
    assert_true(*least > limit);
    return 0;
}

/* `full` is the output without a limit. */
static void run_limited(evo_context *context, struct evo_case *c, size_t limit, const double *full, const truth *t) {
    char what[64];
    struct case_outcome outcome;
    size_t least = 0, size = planned_size(context, c, limit, &least);
    assert_true(size > 0 && size <= limit);
    double *got = judge_run(context, c, &outcome);
    snprintf(what, sizeof what, "with a workspace of at most %zu bytes", limit);
    /* Another kernel may take a smaller workspace, and compute no worse than was asked for. */
    assert_true(outcome.compute == t->compute || outcome.compute == EVO_COMPUTE_FP32);
    compare(c, got, t);
    if (strcmp(outcome.kernel, "reference") == 0) judge_same(c, what, got, full, case_output(c)->count);
    free(got);
}

void judge_limits(evo_context *context, const char *text) {
    struct evo_case c = judge_parse(context, text, 6);
    if (!judge_takes(context, &c)) {
        case_destroy(&c);
        return;
    }
    struct case_outcome outcome;
    size_t least = 0, full = planned_size(context, &c, 0, &least);
    double *unlimited = judge_run(context, &c, &outcome);
    truth t = truth_of(&c, outcome.compute);
    compare(&c, unlimited, &t);
    assert_int_equal(planned_size(context, &c, full, &least), full);
    assert_int_equal(planned_size(context, &c, 1, &least), 0);
    assert_true(least > 1 && least <= full);
    assert_int_equal(planned_size(context, &c, least - 1, &(size_t){ 0 }), 0);
    const size_t thirds = test_scaled(16) > 1 ? 1 : 2; /* of the way to the least limit, at a time */
    for (size_t limit = full - 1; limit > least; limit -= (limit - least) / 3 * thirds + 1)
        run_limited(context, &c, limit, unlimited, &t);
    run_limited(context, &c, least, unlimited, &t);
    free(unlimited);
    truth_free(&t);
    case_destroy(&c);
}

/* One limit: this share, from 0 to 1, of the way from the least one to none. */
static void judge_one_limit(evo_context *context, const char *text, uint64_t seed, double share) {
    struct evo_case c = judge_parse(context, text, seed);
    struct case_outcome outcome;
    size_t least = 0;
    if (judge_takes(context, &c) && planned_size(context, &c, 1, &least) == 0) {
        const size_t full = planned_size(context, &c, 0, &(size_t){ 0 });
        double *unlimited = judge_run(context, &c, &outcome);
        truth t = truth_of(&c, outcome.compute);
        run_limited(context, &c, least + (size_t)(share * (double)(full - least)), unlimited, &t);
        free(unlimited);
        truth_free(&t);
    }
    case_destroy(&c);
}

/* ---- graphs ---- */

void judge_graph(evo_context *context, const char *text) {
    struct evo_case c = judge_parse(context, text, 1);
    if (!judge_takes(context, &c)) {
        case_destroy(&c);
        return;
    }
    sample *s = sample_create(text, context), *other = sample_create(text, context);
    int input = sample_spec(s, CASE_INPUT);
    evo_stream stream = NULL;
    evo_graph graph = NULL;
    size_t bytes = (size_t)case_input(&c)->count * evo_dtype_size(case_input(&c)->dtype);
    unsigned char *host = malloc(bytes);
    assert_non_null(host);
    device_copy(context, host, s->memory[input], bytes);
    OK(evo_stream_create(context, &stream));
    OK(evo_graph_begin(context, stream));
    OK(s->op->execute(s->plan, s->pack, &s->args, s->workspace, s->workspace_size, stream));
    OK(evo_graph_end(context, stream, &graph));
    for (int round = 0; round < 3; round++) {
        /* The rows move by one channel from round to round. */
        memmove(host, host + evo_dtype_size(case_input(&c)->dtype), bytes - evo_dtype_size(case_input(&c)->dtype));
        device_copy(context, s->memory[input], host, bytes);
        device_copy(context, other->memory[input], host, bytes);
        sample_mark_output(s);
        OK(evo_graph_launch(context, graph, stream));
        OK(evo_stream_synchronize(context, stream));
        OK(sample_run(other));
        unsigned char *replayed = sample_output(s), *plain = sample_output(other);
        assert_memory_equal(replayed, plain, s->out_bytes);
        free(replayed);
        free(plain);
    }
    OK(evo_graph_destroy(context, graph));
    OK(evo_stream_destroy(context, stream));
    free(host);
    case_destroy(&c);
    sample_destroy(s);
    sample_destroy(other);
}

const char *judge_pick(struct case_random *random, const char *const *words, size_t count) {
    return words[case_random_bits(random) % count];
}

/* ---- random texts ---- */

static void append(char *text, size_t size, const char *more) {
    size_t used = strlen(text);
    assert_true(used + strlen(more) < size);
    strcpy(text + used, more);
}

void judge_start(char *text, size_t size, const char *op) {
    text[0] = '\0';
    append(text, size, op);
    append(text, size, "(");
}

void judge_key(char *text, size_t size, const char *key, const char *value) {
    if (text[strlen(text) - 1] != '(') append(text, size, ",");
    append(text, size, key);
    append(text, size, "=");
    append(text, size, value);
}

/* One call a line, since the order in which a call's arguments are evaluated differs between compilers. */
void judge_common(struct case_random *random, char *text, size_t size) {
    judge_key(text, size, "dtype", PICK(random, "fp64", "fp32", "bf16", "fp16"));
    judge_key(text, size, "weights", PICK(random, "fp64", "fp32", "bf16", "fp16", "mixed"));
    judge_key(text, size, "mask",
              PICK(random, "none", "random", "fractional", "large", "row", "column", "batch", "all"));
    judge_key(text, size, "mask_dtype", PICK(random, "fp64", "fp32", "bf16", "fp16", "uint8"));
    judge_key(text, size, "input", PICK(random, "normal", "normal", "shifted", "cauchy", "constant", "nan", "inf"));
    judge_key(text, size, "layout",
              PICK(random, "contiguous", "padded", "offset", "transposed", "broadcast", "negative", "slice"));
    judge_key(text, size, "weight_layout",
              PICK(random, "contiguous", "transposed", "halves", "halves_transposed", "interleaved", "padded"));
}

/* In half of the texts, unless the output lies over a tensor, whose type it must have. */
void judge_types(struct case_random *random, char *text, size_t size) {
    if (strcmp(PICK(random, "usual", "own"), "usual") == 0 || strstr(text, "alias=") != NULL) return;
    judge_key(text, size, "residual_dtype", PICK(random, "fp64", "fp32", "bf16", "fp16"));
    judge_key(text, size, "out_dtype", PICK(random, "fp64", "fp32", "bf16", "fp16"));
}

void judge_end(char *text, size_t size) {
    append(text, size, ")");
}

void judge_random(evo_context *context, judge_writer write, const char *stream, uint64_t seed, int count) {
    struct case_random random;
    case_random_seed(&random, seed, stream);
    for (int i = 0; i < count; i++) {
        char text[CASE_NAME_SIZE];
        write(&random, text, sizeof text);
        judge_text(context, text, seed + (uint64_t)i);
    }
}

void judge_random_limits(evo_context *context, judge_writer write, const char *stream, uint64_t seed, int count) {
    struct case_random random;
    case_random_seed(&random, seed, stream);
    for (int i = 0; i < count; i++) {
        char text[CASE_NAME_SIZE];
        write(&random, text, sizeof text);
        const double share = case_random_uniform(&random);
        judge_one_limit(context, text, seed + (uint64_t)i, i % 2 ? share : share * share * share * share);
    }
}
