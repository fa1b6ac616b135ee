/*
 * support.h: what the test programs share: the device under test, its memory, checks of refusals, and one small valid
 * call of an op that a test can break in one place. Public API only.
 */
#ifndef EVO_TESTS_SUPPORT_H
#define EVO_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <evoformer/evoformer.h>

#include "case/case.h"

/* The status of a test program that found nothing to test: Meson shows it as skipped, never as passed. */
enum {
    TEST_SKIPPED = 77
};

/* The device under test: EVO_TEST_DEVICE, else "cpu". */
const char *test_device(void);

/* 1, with a line on stderr, if the device is not in this binary or not on this machine: main returns TEST_SKIPPED. */
int test_device_missing(void);

/* A new context of the device under test; the options may be NULL. */
evo_context *test_context(const evo_context_options *options);

/* EVO_TEST_SEED, or `fallback`; printed, so that a failure can be repeated. */
uint64_t test_seed(uint64_t fallback);

/* `count` divided by EVO_TEST_SCALE (1 by default; builds with sanitizers take more), at least 1. */
int test_scaled(int count);

/**
 * Whether a run takes case number `index` of a long list: all of them, unless EVO_TEST_TURN is set, a number: then one in
 * EVO_TEST_SCALE / 2, which depends on it, so that the runs on several devices share the list.
 */
int test_takes(int index);

/* The same of a short list, which so many runs share, whatever EVO_TEST_SCALE says. */
int test_takes_share(int index, int runs);

/*
 * Whether kernels of the device take fp64 tensors of an op: asked once of a small plan, which may be refused as
 * EVO_ERROR_UNSUPPORTED with "fp64" in its text, and in no other way.
 */
int test_takes_fp64(evo_context *context, const struct case_op *op);

/*
 * A case's text for the device: where it takes no fp64, tensors and compute that are fp64 become fp32, and weights that
 * were fp64 with them stay so. Every shape, layout, alias and limit is tested there too, by its nearest type.
 */
void test_fit(evo_context *context, const char *text, char *fitted, size_t size);

/* Skips the running test, with the reason, unless the context is one of the CPU. */
void test_needs_cpu(evo_context *context, const char *reason);

/*
 * Whether chip and build have tier hopper, by what they say of themselves: where a plan fails that should be, its tests must not
 * skip.
 */
int test_has_hopper(evo_context *context);

/* Device memory; each fails the test if the library does. A copy is complete on return. */
void *device_alloc(evo_context *context, size_t bytes);
void device_free(evo_context *context, void *memory);
void device_copy(evo_context *context, void *target, const void *source, size_t bytes);

/* Fails the test unless `got` is EVO_OK, with the library's words. */
void check_ok(evo_status got, const char *call, const char *file, int line);
#define OK(call) check_ok((call), #call, __FILE__, __LINE__)

/* Fails unless `got` is `want` and the last error's text has every one of `parts` (ends with NULL). */
void check_refused(evo_status got, evo_status want, const char *const *parts, const char *call, const char *file,
                   int line);
#define REFUSED(call, want, ...)                                                                              \
    check_refused((call), (want), (const char *const[]){ __VA_ARGS__, NULL }, #call, __FILE__, __LINE__)

/* The member of type `type` at a byte offset of a struct. */
#define AT(type, base, offset) ((type *)(void *)((char *)(base) + (offset)))

/* A valid call: everything allocated, filled, planned and packed, and each part in reach. */
typedef struct sample {
    evo_context *context;
    const struct case_op *op;
    union case_desc desc;
    union case_weights weights;
    union case_args args;
    evo_plan *plan;
    evo_pack *pack;
    void *pack_memory, *workspace;
    size_t pack_size, workspace_size;
    size_t out_bytes;
    void *memory[CASE_MAX_TENSORS]; /* one a spec of the op, NULL if it is absent */
} sample;

/* The text of a small call of each op with mask, residual and all biases, all fp32 and contiguous. */
extern const char *const sample_texts[];
enum {
    SAMPLE_COUNT = 2
};

/* A call from a text as case_parse takes it, fitted to the device (test_fit), contiguous. The context stays the caller's. */
sample *sample_create(const char *text, evo_context *context);
void sample_destroy(sample *s);

/* The kernel of its plan, as long as the plan lives: the best that takes it, not always the device's first. */
const char *sample_kernel(const sample *s);

/* Plans and packs anew with this kernel, a name that the caller keeps as long as the sample. */
void sample_force_kernel(sample *s, const char *kernel);

/* The index of the activation with this role in op->specs; what the descriptor and the args have of it. */
int sample_spec(const sample *s, enum case_role role);
evo_tensor *sample_tensor(sample *s, enum case_role role);
void **sample_pointer(sample *s, enum case_role role);

evo_status sample_run(const sample *s);        /* executes as it stands, on the default stream */
unsigned char *sample_output(const sample *s); /* a host copy of the output, to be freed */
void sample_mark_output(const sample *s);      /* fills the output with a pattern */
int sample_output_marked(const sample *s);     /* whether the pattern is still there */

#endif
