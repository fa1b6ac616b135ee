/*
 * judge.h: judges the device's results by the naive evaluation (naive.h), and by each other where equality is
 * promised. Cases are texts as case_parse takes them (tools/case/case.h).
 */
#ifndef EVO_TESTS_OPS_JUDGE_H
#define EVO_TESTS_OPS_JUDGE_H

#include "../support.h"

/* A case from a text, fitted to the device (test_fit), the test failing if it is none; case_destroy it. */
struct evo_case judge_parse(evo_context *context, const char *text, uint64_t seed);

/*
 * False if EVO_KERNEL names a kernel that refuses the case for a reason that judge.c expects of it; the case is then skipped,
 * and counted in a line at the end. The functions below that take a text ask it.
 */
int judge_takes(evo_context *context, const struct evo_case *c);

/* The device's output of a case (free() it), the test failing if there is none. `outcome` may be NULL. */
double *judge_run(evo_context *context, const struct evo_case *c, struct case_outcome *outcome);

/* The naive evaluation of a case: the output's elements, and how far arithmetic of this unit may be from them. */
void judge_naive(const struct evo_case *c, long double unit, long double *want, long double *bound);

/* Fails unless the device's output of the case is what ops.md says, within the rounding that its compute allows. */
void judge_case(evo_context *context, const struct evo_case *c);
/* The same of an output that was computed in this mode. */
void judge_output(const struct evo_case *c, evo_compute compute, const double *got);
void judge_text(evo_context *context, const char *text, uint64_t seed);
void judge_texts(evo_context *context, const char *const *texts, size_t count, uint64_t seed);

/* A NaN or an infinity in one element of a tensor by name reaches exactly the outputs that depend on it. */
void judge_special(evo_context *context, const char *text, const char *tensor, double special);

/* Fails unless two outputs of the case agree bit for bit; `what` says how the first was made. */
void judge_same(const struct evo_case *c, const char *what, const double *got, const double *want, int64_t count);

/* What masks are multiplied by at row i and column j: 2^33; 2^-33 to 2^33 by row or by column; 2^33, NaN or infinity at one place. */
double judge_huge_mask(int64_t i, int64_t j);
double judge_mask_by_row(int64_t i, int64_t j);
double judge_mask_by_column(int64_t i, int64_t j);
double judge_one_huge_mask(int64_t i, int64_t j);
double judge_nan_mask(int64_t i, int64_t j);
double judge_infinite_mask(int64_t i, int64_t j);

/* Multiplies the case's mask, [batch, rows, columns], by a factor of its row and column. */
void judge_scale_mask(const struct evo_case *c, int64_t batch, int64_t rows, int64_t columns,
                      double (*factor)(int64_t i, int64_t j));

/* A batch equals single runs of its entries by the same kernel, bit for bit. */
void judge_split(evo_context *context, const char *text);

/* On the CPU: the same bits with 1 to twice as many threads as processors (5 at least), in a context of its own each. */
void judge_threads(evo_context *context, const char *text);

/*
 * Smaller and smaller workspaces down to the least that the library names give the right result, and from the kernel
 * `reference` the same bits; below it the plan is refused with the least in its text.
 */
void judge_limits(evo_context *context, const char *text);

/*
 * The first element of `got`, computed in `compute`, that is further from the naive evaluation than its own bound allows; -1 if
 * none is. For programs that are no cmocka tests; it fails none.
 */
int64_t judge_first_wrong(const struct evo_case *c, evo_compute compute, const double *got);

/* The same bits from a graph, launched again and again with other inputs in the same memory. */
void judge_graph(evo_context *context, const char *text);

/* One of `count` words by random. */
const char *judge_pick(struct case_random *random, const char *const *words, size_t count);
#define PICK(random, ...)                                                                                              \
    judge_pick((random), (const char *const[]){ __VA_ARGS__ },                                                         \
               sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(const char *))

/* Puts a case's text together: "op(", "key=value" for each, types, masks, inputs and layouts by random, ")". */
void judge_start(char *text, size_t size, const char *op);
void judge_key(char *text, size_t size, const char *key, const char *value);
void judge_common(struct case_random *random, char *text, size_t size);
void judge_types(struct case_random *random, char *text, size_t size); /* of residual and output; after the aliases */
void judge_end(char *text, size_t size);

/* So many texts as `write` makes them, each judged; and each under a limit of the workspace, half of these near the least. */
typedef void (*judge_writer)(struct case_random *random, char *text, size_t size);
void judge_random(evo_context *context, judge_writer write, const char *stream, uint64_t seed, int count);
void judge_random_limits(evo_context *context, judge_writer write, const char *stream, uint64_t seed, int count);

/* Group setup and teardown: one context for all tests of a program. */
extern evo_context *judge_context;
int judge_setup(void **state);
int judge_teardown(void **state);

#endif
