/*
 * test_guards.c: nothing outside of a tensor's span, the pack or the workspace is read or written: each stands between two
 * pages that may not be touched, once at the end of its own and once at their beginning. While the op runs, inputs and packed
 * weights may only be read, and the weights that were packed not even that. For every kernel; by isas.py for every instruction
 * set of the CPU. Simulated devices compute in the same memory; hardware has compute-sanitizer (tests/hardware/sanitizer.sh).
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "judge.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    POISON = 0xff,
    ROUNDS = 24
};

/* ---- what was running when a guard was touched ---- */

static char running[CASE_NAME_SIZE + 200];

static void touched(int number) {
    static const char words[] = "touched memory outside of a tensor, or wrote where it may only read: ";
    (void)number;
    (void)!write(STDERR_FILENO, words, sizeof words - 1);
    (void)!write(STDERR_FILENO, running, strlen(running));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(1);
}

static void watch(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = touched;
    assert_int_equal(sigaction(SIGSEGV, &action, NULL), 0);
    assert_int_equal(sigaction(SIGBUS, &action, NULL), 0);
}

/* ---- memory between guards ---- */

typedef struct fenced {
    unsigned char *map; /* page that may not be touched, pages, page that may not be touched */
    size_t inner;       /* bytes of the pages between */
    unsigned char *data;
    size_t bytes;
} fenced;

static size_t page_size(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* `data` + `ahead` is a multiple of `alignment`: at the end, up to one multiple lies between the bytes and the guard. */
static fenced fence(size_t bytes, size_t alignment, size_t ahead, int at_end) {
    const size_t page = page_size();
    fenced f = { .inner = (bytes + 2 * alignment + page - 1) / page * page, .bytes = bytes };
    f.map = mmap(NULL, f.inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    assert_int_equal(mprotect(f.map + page, f.inner, PROT_READ | PROT_WRITE), 0);
    memset(f.map + page, POISON, f.inner);
    f.data = f.map + page;
    if (at_end)
        f.data += f.inner - bytes - (f.inner - bytes + ahead) % alignment;
    else
        f.data += (alignment - ahead % alignment) % alignment;
    return f;
}

static void allow(const fenced *f, int protection) {
    assert_int_equal(mprotect(f->map + page_size(), f->inner, protection), 0);
}

static void release(fenced *f) {
    if (f->map != NULL) assert_int_equal(munmap(f->map, f->inner + 2 * page_size()), 0);
}

/* What lies between the guards and the bytes themselves is as it was. */
static void check_margins(const fenced *f, const char *what) {
    const unsigned char *begin = f->map + page_size(), *end = begin + f->inner;
    for (const unsigned char *p = begin; p < end; p++)
        if ((p < f->data || p >= f->data + f->bytes) && *p != POISON)
            fail_msg("%s: bytes beside %s were written", running, what);
}

/* ---- a case between guards ---- */

typedef struct guarded {
    const struct evo_case *c;
    fenced buffers[CASE_MAX_TENSORS], pack, workspace;
    int64_t low[CASE_MAX_TENSORS]; /* the first element of a buffer that a tensor has */
} guarded;

static int64_t place_of(const struct case_tensor *tensor, int64_t element) {
    int64_t place = tensor->offset;
    for (int d = tensor->rank - 1; d >= 0; d--) {
        place += element % tensor->extents[d] * tensor->strides[d];
        element /= tensor->extents[d];
    }
    return place;
}

static unsigned char *address_of(const guarded *g, const struct case_tensor *tensor, int64_t element) {
    const int64_t place = tensor->count > 0 ? place_of(tensor, element) : tensor->offset;
    return g->buffers[tensor->buffer].data + (place - g->low[tensor->buffer]) * (int64_t)evo_dtype_size(tensor->dtype);
}

/* The pointer is that of the element whose indices are all 0. */
static void *pointer_of(const guarded *g, const struct case_tensor *tensor) {
    return address_of(g, tensor, 0);
}

/* As many bytes as its tensors span; the pointer of the last of them keeps its promise, and so do the others'. */
static void fence_buffer(guarded *g, int buffer, int at_end) {
    int64_t low = INT64_MAX, high = INT64_MIN, first = 0;
    size_t alignment = 1, width = evo_dtype_size(g->c->buffers[buffer].dtype);
    for (int t = 0; t < g->c->op->spec_count; t++) {
        const struct case_tensor *tensor = &g->c->tensors[t];
        if (!tensor->present || tensor->buffer != buffer) continue;
        const size_t promised = tensor->spec->role == CASE_WEIGHT ? width : tensor->alignment ? tensor->alignment : 16;
        if (promised > alignment) alignment = promised;
        first = tensor->offset;
        for (int64_t e = 0; e < tensor->count; e++) {
            const int64_t place = place_of(tensor, e);
            low = place < low ? place : low;
            high = place > high ? place : high;
        }
    }
    if (low > high) low = first, high = first - 1;
    g->low[buffer] = low;
    g->buffers[buffer] = fence((size_t)(high - low + 1) * width, alignment, (size_t)(first - low) * width, at_end);
}

static void fill_buffers(guarded *g) {
    for (int t = 0; t < g->c->op->spec_count; t++) {
        const struct case_tensor *tensor = &g->c->tensors[t];
        for (int64_t e = 0; tensor->present && tensor->values != NULL && e < tensor->count; e++)
            OK(evo_convert(&tensor->values[e], EVO_FP64, address_of(g, tensor, e), tensor->dtype, 1));
    }
}

/* Packed weights are not read again; inputs, unless the output lies over them, are not written. */
static void protect_inputs(const guarded *g) {
    const int output = g->c->tensors[case_find_spec(g->c->op, "out")].buffer;
    for (int t = 0; t < g->c->op->spec_count; t++) {
        const struct case_tensor *tensor = &g->c->tensors[t];
        if (tensor->present && tensor->buffer != output)
            allow(&g->buffers[tensor->buffer], tensor->spec->role == CASE_WEIGHT ? PROT_NONE : PROT_READ);
    }
    allow(&g->pack, PROT_READ);
}

static void fill_calls(const guarded *g, union case_weights *weights, union case_args *args) {
    g->c->op->init_weights(weights);
    g->c->op->init_args(args);
    for (int t = 0; t < g->c->op->spec_count; t++) {
        const struct case_tensor *tensor = &g->c->tensors[t];
        if (!tensor->present) continue;
        void *pointer = pointer_of(g, tensor);
        if (tensor->spec->role == CASE_WEIGHT)
            *AT(evo_weight, weights, tensor->spec->slot) =
                (evo_weight){ pointer, tensor->dtype, { tensor->strides[0], tensor->strides[1] } };
        else
            *AT(void *, args, tensor->spec->slot) = pointer;
    }
}

static double *output_of(const guarded *g) {
    const struct case_tensor *out = &g->c->tensors[case_find_spec(g->c->op, "out")];
    double *values = calloc((size_t)out->count + 1, sizeof *values);
    assert_non_null(values);
    for (int64_t e = 0; e < out->count; e++)
        OK(evo_convert(address_of(g, out, e), out->dtype, &values[e], EVO_FP64, 1));
    return values;
}

/* Runs a plan of the case with everything between guards, and judges the output. */
static void run_guarded(const struct evo_case *c, const evo_plan *plan, int at_end) {
    guarded g = { .c = c };
    union case_weights weights;
    union case_args args;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_pack *pack = NULL;
    OK(evo_plan_get_info(plan, &info));
    for (int b = 0; b < c->buffer_count; b++) fence_buffer(&g, b, at_end);
    g.pack = fence(info.pack_size, EVO_BUFFER_ALIGNMENT, 0, at_end);
    g.workspace = fence(info.workspace_size, EVO_BUFFER_ALIGNMENT, 0, at_end);
    fill_buffers(&g);
    fill_calls(&g, &weights, &args);
    OK(c->op->pack(plan, &weights, g.pack.data, info.pack_size, NULL, &pack));
    OK(evo_stream_synchronize(judge_context, NULL));
    protect_inputs(&g);
    OK(c->op->execute(plan, pack, &args, g.workspace.data, info.workspace_size, NULL));
    OK(evo_stream_synchronize(judge_context, NULL));
    check_margins(&g.workspace, "the workspace");
    check_margins(&g.pack, "the packed weights");
    double *got = output_of(&g);
    judge_output(c, info.compute, got);
    free(got);
    evo_pack_destroy(pack);
    for (int b = 0; b < c->buffer_count; b++) release(&g.buffers[b]);
    release(&g.pack);
    release(&g.workspace);
}

/* By one kernel, if it takes the case; at both ends. Without a promise of alignment tensors end right at the guard. */
static int judge_guarded(struct evo_case *c, const char *kernel, int promised) {
    union case_desc desc;
    evo_plan *plan = NULL;
    *c->op->common(&c->desc).kernel = kernel;
    for (int t = 0; t < c->op->spec_count && !promised; t++)
        c->tensors[t].alignment = evo_dtype_size(c->tensors[t].dtype);
    case_descriptor(c, &desc);
    const evo_status status = c->op->plan_create(judge_context, &desc, &plan);
    if (status == EVO_ERROR_UNSUPPORTED) return 0;
    OK(status);
    for (int at_end = 0; at_end < 2; at_end++) {
        snprintf(running, sizeof running, "%s by %s, seed %" PRIu64 ", at the %s of its pages, %s", c->name, kernel,
                 c->seed, at_end ? "end" : "beginning", promised ? "as promised" : "any alignment");
        run_guarded(c, plan, at_end);
    }
    evo_plan_destroy(plan);
    return 1;
}

static void random_text(struct case_random *r, int is_opm, char *text, size_t size) {
    judge_start(text, size, is_opm ? "opm" : "trimul");
    judge_key(text, size, "variant", PICK(r, "alphafold2", "alphafold3", "helixfold", "megafold", "mean"));
    judge_key(text, size, "b", PICK(r, "1", "1", "2"));
    judge_key(text, size, "n", PICK(r, "1", "2", "3", "7", "8", "16", "17", "33"));
    judge_key(text, size, is_opm ? "s" : "direction",
              is_opm ? PICK(r, "0", "1", "2", "7", "16", "33") : PICK(r, "outgoing", "incoming"));
    judge_key(text, size, is_opm ? "c_m" : "c_z", PICK(r, "1", "5", "8", "16", "33"));
    judge_key(text, size, "c", PICK(r, "1", "4", "5", "8", "24"));
    judge_key(text, size, is_opm ? "c_z" : "c_out", PICK(r, "1", "6", "8", "17", "32"));
    judge_key(text, size, "dtype", PICK(r, "fp64", "fp32", "fp32", "bf16", "fp16"));
    judge_key(text, size, "weights", PICK(r, "fp64", "fp32", "bf16", "fp16", "mixed"));
    judge_key(text, size, "mask", PICK(r, "none", "random", "fractional", "row"));
    judge_key(text, size, "mask_dtype", PICK(r, "fp64", "fp32", "bf16", "fp16", "uint8"));
    judge_key(text, size, "weight_layout",
              PICK(r, "contiguous", "transposed", "halves", "halves_transposed", "interleaved", "padded"));
    const char *layout =
        PICK(r, "contiguous", "contiguous", "padded", "offset", "transposed", "broadcast", "negative", "slice");
    judge_key(text, size, "layout", layout);
    judge_key(text, size, "residual",
              strcmp(layout, "broadcast") == 0 ? PICK(r, "0", "1") : PICK(r, "0", "1", "1,alias=residual"));
    judge_types(r, text, size);
    judge_end(text, size);
}

static void test_op(int is_opm, uint64_t fallback) {
    const uint64_t seed = test_seed(fallback);
    struct case_random random;
    int runs = 0;
    if (strncmp(test_device(), "cpu", 3) != 0 && getenv("EVO_SIMULATED_ARCH") == NULL) {
        print_message("skipped on %s: the guards are pages of host memory\n", test_device());
        skip();
    }
    watch();
    case_random_seed(&random, seed, "guards");
    for (int i = 0; i < test_scaled(ROUNDS); i++) {
        char text[CASE_NAME_SIZE];
        const char *kernel;
        random_text(&random, is_opm, text, sizeof text);
        struct evo_case c = judge_parse(judge_context, text, seed + (uint64_t)i);
        for (int promised = 1; promised >= 0; promised--)
            for (int k = 0; (kernel = evo_context_kernel(judge_context, c.op->id, k)) != NULL; k++)
                runs += judge_guarded(&c, kernel, promised);
        case_destroy(&c);
    }
    assert_true(runs >= 2 * test_scaled(ROUNDS));
}

static void test_opm(void **state) {
    (void)state;
    test_op(1, 61);
}

static void test_trimul(void **state) {
    (void)state;
    test_op(0, 62);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opm),
        cmocka_unit_test(test_trimul),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("guards", tests, judge_setup, judge_teardown);
}
