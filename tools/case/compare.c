/* compare.c: how far two outputs are apart, how far they may be, and the verdict on a whole case. */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case/ops.h"

/* ---- distance ---- */

static double largest(evo_dtype dtype) {
    switch (dtype) {
    case EVO_FP16:
        return 65504.0;
    case EVO_BF16:
        return 0x1.fep127;
    case EVO_FP32:
        return FLT_MAX;
    default:
        return DBL_MAX;
    }
}

/* What an element adds to the sums of its pair. */
struct sums {
    double difference;
    double norm;
};

/*
 * Adds one element, or false if NaN or Inf stand where they should not. Within 2 % of the type's largest value the bound
 * of the coarsest mode leaves open whether the element overflows.
 */
static bool add(double got, double want, double most, struct sums *sums) {
    if (isnan(want)) {
        return isnan(got);
    }
    bool may_overflow = fabs(want) > 0.98 * most;
    if (may_overflow && isinf(got)) {
        return signbit(got) == signbit(want);
    }
    if (fabs(want) > most) {
        return isfinite(want) && fabs(got) > 0.98 * most && signbit(got) == signbit(want);
    }
    if (!isfinite(got)) {
        return false;
    }
    sums->difference += (got - want) * (got - want);
    sums->norm += want * want;
    return true;
}

static double relative(const struct sums *sums) {
    if (sums->norm > 0.0) {
        return sqrt(sums->difference / sums->norm);
    }
    return sums->difference > 0.0 ? (double)INFINITY : 0.0;
}

static void pair_index(const struct case_tensor *out, int64_t pair, int64_t *index) {
    index[2] = pair % out->extents[2];
    index[1] = pair / out->extents[2] % out->extents[1];
    index[0] = pair / out->extents[2] / out->extents[1];
}

void case_compare(const struct evo_case *c, const double *got, const double *want, struct case_comparison *result) {
    const struct case_tensor *out = case_result_of(c);
    int64_t channels = out->extents[3];
    int64_t pairs = channels > 0 ? out->count / channels : 0;
    double most = largest(out->dtype);
    struct sums whole = { 0.0, 0.0 };
    memset(result, 0, sizeof *result);
    for (int64_t pair = 0; pair < pairs; pair++) {
        struct sums one = { 0.0, 0.0 };
        for (int64_t i = pair * channels; i < (pair + 1) * channels; i++) {
            if (!add(got[i], want[i], most, &one)) {
                pair_index(out, pair, result->worst_pair);
                (void)snprintf(result->message, sizeof result->message, "%g at [%lld, %lld, %lld, %lld], expected %.9g",
                               got[i], (long long)result->worst_pair[0], (long long)result->worst_pair[1],
                               (long long)result->worst_pair[2], (long long)(i - pair * channels), want[i]);
                result->total = result->pair = (double)INFINITY;
                return;
            }
        }
        whole.difference += one.difference;
        whole.norm += one.norm;
        if (relative(&one) > result->pair) {
            result->pair = relative(&one);
            pair_index(out, pair, result->worst_pair);
        }
    }
    result->total = relative(&whole);
}

/* ---- bounds ---- */

/* Half the distance of 1 to the next number: the largest relative error of rounding to the type. */
static double roundoff(evo_dtype dtype) {
    switch (dtype) {
    case EVO_FP16:
        return 0x1p-11;
    case EVO_BF16:
        return 0x1p-8;
    case EVO_FP32:
        return 0x1p-24;
    default:
        return 0x1p-53;
    }
}

/*
 * Adds the rounding of the stored output where it is coarser than the arithmetic (the figures of the 16-bit modes hold
 * it already). No element errs by more than that, so no pair does either; of the arithmetic's error a single pair may
 * show ten times the average, where its sums cancel.
 */
static struct case_bound with_storage(double arithmetic, double pair, evo_dtype output_type) {
    double storage = roundoff(output_type) > arithmetic ? roundoff(output_type) : 0.0;
    return (struct case_bound){ arithmetic + storage, pair + storage };
}

static double arithmetic_bound(evo_compute compute, bool hard) {
    /*
     * fp32: products and sums of a few hundred terms, measured at 2.6e-7 on usual inputs; inputs with mean 1e3, heavy
     * tails or large masks lose a digit in LayerNorm and in the sums. tf32 and fp16 round operands to 11 bits, bf16 to 8.
     */
    switch (compute) {
    case EVO_COMPUTE_FP64:
        return 1e-12;
    case EVO_COMPUTE_FP32:
    case EVO_COMPUTE_FP32_STRICT:
        return hard ? 2e-6 : 3e-7;
    case EVO_COMPUTE_BF16:
        return 8e-3;
    default:
        return 1e-3;
    }
}

/*
 * The bounds are those of outputs large enough to average. Over n elements the norm of the error varies by some 1/sqrt(n)
 * of itself, and few pairs may have ill-conditioned LayerNorms. Of p pairs with c channels the smallest norm is about
 * p^(-1/c) of a typical one, by chance, while its error is as large as the others'.
 */
struct case_bound case_bounds(evo_compute compute, const struct case_tensor *out, bool hard) {
    const double arithmetic = arithmetic_bound(compute, hard), count = (double)out->count;
    const double channels = (double)out->extents[3];
    if (out->count == 0) {
        return with_storage(arithmetic, arithmetic, out->dtype);
    }
    return with_storage(arithmetic * (1.0 + 16.0 / sqrt(count)),
                        10.0 * arithmetic * pow(count / channels, 1.0 / channels), out->dtype);
}

struct case_bound case_golden_bounds(evo_compute compute, evo_dtype output_type) {
    static const struct case_bound half = { 3e-3, 3e-2 };
    static const struct case_bound brain = { 2e-2, 1e-1 };
    /* Tensors of 16 bits round the inputs too, whatever the arithmetic. */
    if (compute == EVO_COMPUTE_BF16 || output_type == EVO_BF16) {
        return brain;
    }
    if (compute == EVO_COMPUTE_FP16 || output_type == EVO_FP16) {
        return half;
    }
    if (compute == EVO_COMPUTE_TF32) {
        return (struct case_bound){ 2e-3, 1e-2 };
    }
    return compute == EVO_COMPUTE_FP64 ? with_storage(1e-9, 1e-8, output_type) : (struct case_bound){ 1e-5, 1e-4 };
}

/* ---- the verdict ---- */

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
fail(struct case_verdict *verdict, const char *format, ...);

static bool fail(struct case_verdict *verdict, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    verdict->outcome.result = CASE_FAILED;
    (void)vsnprintf(verdict->outcome.message, sizeof verdict->outcome.message, format, arguments);
    va_end(arguments);
    return false;
}

/* Makes what the output should be; `want` has room for it. */
static bool expect(evo_context *cpu, const struct evo_case *c, double *want, struct case_verdict *verdict) {
    struct evo_case reference;
    struct case_outcome outcome;
    struct io_error error;
    if (c->expected != NULL) {
        memcpy(want, c->expected, (size_t)case_result_of(c)->count * sizeof *want);
        return true;
    }
    if (!case_reference(c, &reference, &error)) {
        return fail(verdict, "%s", error.text);
    }
    bool good = case_run(cpu, &reference, want, &outcome);
    case_destroy(&reference);
    return good || fail(verdict, "the fp64 reference: %s", outcome.message);
}

static bool judge(const struct evo_case *c, const double *got, const double *want, struct case_verdict *verdict) {
    const struct case_comparison *comparison = &verdict->comparison;
    case_compare(c, got, want, &verdict->comparison);
    if (comparison->message[0] != '\0') {
        return fail(verdict, "%s", comparison->message);
    }
    if (!(comparison->total <= verdict->bound.total)) {
        return fail(verdict, "the error %.1e is above the bound %.1e", comparison->total, verdict->bound.total);
    }
    if (!(comparison->pair <= verdict->bound.pair)) {
        return fail(verdict, "the error %.1e of pair [%lld, %lld, %lld] is above the bound %.1e", comparison->pair,
                    (long long)comparison->worst_pair[0], (long long)comparison->worst_pair[1],
                    (long long)comparison->worst_pair[2], verdict->bound.pair);
    }
    return true;
}

/* A NaN or Inf in one row makes NaN of exactly the pairs that the row reaches. */
static bool judge_reach(const struct evo_case *c, const double *got, struct case_verdict *verdict) {
    const struct case_tensor *out = case_result_of(c);
    for (int64_t i = 0; i < out->count && c->poisoned; i++) {
        int64_t pair[3];
        pair_index(out, i / out->extents[3], pair);
        bool reached = c->op->reaches(&c->desc, c->poison_row, pair);
        if (reached ? !isnan(got[i]) : !isfinite(got[i])) {
            return fail(verdict, "%g at [%lld, %lld, %lld, %lld], which the NaN or Inf in row [%lld, %lld, %lld] %s",
                        got[i], (long long)pair[0], (long long)pair[1], (long long)pair[2],
                        (long long)(i % out->extents[3]), (long long)c->poison_row[0], (long long)c->poison_row[1],
                        (long long)c->poison_row[2], reached ? "reaches" : "does not reach");
        }
    }
    return true;
}

/* One batch entry alone must give the same bits by the same kernel, and stay in the bound by another. */
static bool judge_entry(evo_context *context, const struct evo_case *c, int64_t entry, const double *got,
                        double *single, struct case_verdict *verdict) {
    struct evo_case one;
    struct case_outcome outcome;
    struct io_error error;
    if (!case_split(c, entry, &one, &error)) {
        return fail(verdict, "%s", error.text);
    }
    int64_t count = case_result_of(&one)->count;
    const double *mine = got + entry * count;
    bool good = case_run(context, &one, single, &outcome);
    if (!good) {
        (void)fail(verdict, "batch entry %lld alone: %s", (long long)entry, outcome.message);
    } else if (strcmp(outcome.kernel, verdict->outcome.kernel) == 0) {
        good = memcmp(mine, single, (size_t)count * sizeof *single) == 0 ||
               fail(verdict, "batch entry %lld alone gives other bits", (long long)entry);
    } else {
        struct case_comparison comparison;
        case_compare(&one, mine, single, &comparison);
        good = comparison.total <= 2.0 * verdict->bound.total ||
               fail(verdict, "batch entry %lld alone, by kernel %s, differs by %.1e", (long long)entry, outcome.kernel,
                    comparison.total);
    }
    case_destroy(&one);
    return good;
}

static bool judge_split(evo_context *context, const struct evo_case *c, const double *got, double *scratch,
                        struct case_verdict *verdict) {
    bool good = true;
    for (int64_t entry = 0; entry < case_result_of(c)->extents[0] && c->split && good; entry++) {
        good = judge_entry(context, c, entry, got, scratch, verdict);
    }
    return good;
}

bool case_check(evo_context *context, evo_context *cpu, const struct evo_case *c, struct case_verdict *verdict) {
    struct io_error error;
    const struct case_tensor *out = case_result_of(c);
    memset(verdict, 0, sizeof *verdict);
    double *got = case_alloc(out->count, &error);
    double *want = case_alloc(out->count, &error);
    bool good = got != NULL && want != NULL;
    if (!good) {
        (void)fail(verdict, "%s", error.text);
    } else if ((good = case_run(context, c, got, &verdict->outcome))) {
        evo_compute compute = verdict->outcome.compute;
        verdict->bound =
            c->expected != NULL ? case_golden_bounds(compute, out->dtype) : case_bounds(compute, out, c->hard);
        good = expect(cpu, c, want, verdict) && judge(c, got, want, verdict) && judge_reach(c, got, verdict) &&
               judge_split(context, c, got, want, verdict);
    }
    free(got);
    free(want);
    return good;
}
