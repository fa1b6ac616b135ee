/*
 * api.c: the library itself, by a small program that the input spells out: up to three problems (an op, its sizes, types,
 * layouts and values, which may be broken in a few places), then calls in any order that the headers allow.
 *
 * Each call is either taken or refused with a status that its header names and a text. What must be taken is: a call without
 * a fault; what must be refused is: one whose fault is certain, and then the text names the argument. A result is compared
 * with the naive evaluation, element by element within the bound of its own sums; everything but the output's elements must
 * be as it was. Tensors, weights, workspace and packs lie in blocks of their exact size, so that AddressSanitizer sees every
 * step outside; workspace and outputs are poison.
 */
#include "fuzz.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ops/judge.h"
#include "case/ops.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISON_REGION(at, size) __asan_poison_memory_region((at), (size))
#define FREE_REGION(at, size) __asan_unpoison_memory_region((at), (size))
void __asan_poison_memory_region(void const volatile *, size_t);
void __asan_unpoison_memory_region(void const volatile *, size_t);
#endif
#endif
#ifndef POISON_REGION
#define POISON_REGION(at, size) ((void)(at), (void)(size))
#define FREE_REGION(at, size) ((void)(at), (void)(size))
#endif

enum {
    POISON = 0xff, /* a NaN of every type */
    MOST_PROBLEMS = 3,
    SLOTS = 3, /* of contexts, plans, packs, streams, events, graphs */
    MOST_STEPS = 40,
    MOST_RUNS = 6,        /* executions whose results are judged */
    MOST_BYTES = 1 << 16, /* of a tensor whose descriptor was broken and taken */
    MOST_WORK = 1 << 20,  /* multiply-adds of such */
    LARGEST_ALIGNMENT = 4096,
};

/* ---- what a call may answer ---- */

#define BIT(status) (1u << (unsigned)(status))

static const unsigned plan_statuses =
    BIT(EVO_ERROR_NULL_POINTER) | BIT(EVO_ERROR_INVALID_ARGUMENT) | BIT(EVO_ERROR_INVALID_SHAPE) |
    BIT(EVO_ERROR_INVALID_DTYPE) | BIT(EVO_ERROR_INVALID_LAYOUT) | BIT(EVO_ERROR_SIZE_OVERFLOW) |
    BIT(EVO_ERROR_WORKSPACE_LIMIT) | BIT(EVO_ERROR_UNSUPPORTED) | BIT(EVO_ERROR_OUT_OF_MEMORY);
static const unsigned pack_statuses = BIT(EVO_ERROR_NULL_POINTER) | BIT(EVO_ERROR_INVALID_ARGUMENT) |
                                      BIT(EVO_ERROR_INVALID_DTYPE) | BIT(EVO_ERROR_INVALID_LAYOUT) |
                                      BIT(EVO_ERROR_SIZE_OVERFLOW) | BIT(EVO_ERROR_BUFFER_TOO_SMALL) |
                                      BIT(EVO_ERROR_MISALIGNED) | BIT(EVO_ERROR_ALIASED) | BIT(EVO_ERROR_OUT_OF_MEMORY);
static const unsigned execute_statuses =
    BIT(EVO_ERROR_NULL_POINTER) | BIT(EVO_ERROR_INVALID_ARGUMENT) | BIT(EVO_ERROR_MISALIGNED) | BIT(EVO_ERROR_ALIASED) |
    BIT(EVO_ERROR_BUFFER_TOO_SMALL) | BIT(EVO_ERROR_PACK_MISMATCH) | BIT(EVO_ERROR_CAPTURE);

/* What is known of a call before it is made. */
enum expectation {
    EITHER,
    TAKEN,
    REFUSED_FOR_SURE
};

/* Checks an answer; `named` (may be NULL) must stand in the text of a refusal. Whether the call was taken. */
static bool answer(const char *call, evo_status status, unsigned allowed, enum expectation expected,
                   const char *named) {
    if (status == EVO_OK) {
        if (expected == REFUSED_FOR_SURE) fuzz_fail("%s was taken, in spite of its %s", call, named ? named : "fault");
        return true;
    }
    const char *text = evo_last_error();
    if (expected == TAKEN) fuzz_fail("%s was refused: %s", call, text);
    if ((unsigned)status > 31 || !(allowed & BIT(status)))
        fuzz_fail("%s: its header has no %s: %s", call, evo_status_name(status), text);
    if (strncmp(text, "evo_", 4) != 0 || strchr(text, ':') == NULL || strchr(text, ':')[1] == '\0')
        fuzz_fail("%s: %s: \"%s\" does not say what is wrong", call, evo_status_name(status), text);
    if (named != NULL && strstr(text, named) == NULL) fuzz_fail("%s: \"%s\" does not name %s", call, text, named);
    return false;
}

/* ---- blocks of memory ---- */

/* `size` bytes from `start` on, which is any multiple of what was asked for; nothing beside them may be touched. */
struct block {
    unsigned char *memory; /* what is freed */
    unsigned char *start;
    size_t size;
    unsigned char *image; /* a copy of what should be there */
};

static void make_block(struct block *block, size_t size, size_t alignment, size_t slack) {
    void *memory = NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    if (posix_memalign(&memory, alignment, slack + size) != 0) fuzz_fail("no memory for a block");
    *block = (struct block){ memory, (unsigned char *)memory + slack, size, malloc(size + 1) };
    FUZZ_CHECK(block->image != NULL);
    memset(memory, POISON, slack + size);
    memset(block->image, POISON, size + 1);
    POISON_REGION(memory, slack);
}

static void free_block(struct block *block) {
    if (block->memory == NULL) return;
    FREE_REGION(block->memory, (size_t)(block->start - block->memory));
    free(block->memory);
    free(block->image);
    *block = (struct block){ NULL, NULL, 0, NULL };
}

/* ---- problems ---- */

struct problem {
    bool made;
    bool doubtful; /* the case's own aliases may be refused, before a fault beside them is told */
    bool broken;   /* the descriptor: it may be refused */
    bool judged;   /* results are known */
    bool overlap;  /* the output shares bytes with an input that it must not share any with */
    enum expectation expected;
    const char *named;
    char fault[64];
    struct evo_case c;
    union case_desc desc;
    unsigned char *given; /* the descriptor as it is handed over: `given_size` bytes, no more */
    size_t given_size;
    struct block blocks[CASE_MAX_TENSORS];
    int block_of[CASE_MAX_TENSORS];   /* of the case's buffers */
    size_t byte_of[CASE_MAX_TENSORS]; /* where they begin in it */
    int block_count;
};

static const char *pick(struct fuzz_input *in, const char *const *words, size_t count) {
    return words[fuzz_byte(in) % count];
}
#define ONE_OF(in, ...)                                                     \
    pick((in), (const char *const[]){ __VA_ARGS__ },                        \
         sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(const char *))

static void add_key(char *text, size_t size, const char *key, const char *value) {
    const size_t used = strlen(text);
    if (value[0] != '\0')
        (void)snprintf(text + used, size - used, "%s%s=%s", text[used - 1] == '(' ? "" : ",", key, value);
}

/* The parameters of the op's variants, most of them as they are. */
static void add_params(struct fuzz_input *in, const struct case_op *op, char *text, size_t size) {
    for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
        if (param->name == NULL || fuzz_byte(in) % 3 != 0) continue;
        const char *value = "";
        if (param->kind == CASE_PARAM_NUMBER) value = ONE_OF(in, "1e-3", "0.1", "1", "1e-5", "2");
        if (param->kind == CASE_PARAM_BITS) value = ONE_OF(in, "none", "all", "out", "out");
        if (param->kind == CASE_PARAM_CHOICE) value = param->choices[fuzz_below(in, 2)];
        add_key(text, size, param->name, value);
    }
}

static bool make_case(struct fuzz_input *in, struct evo_case *c) {
    char text[CASE_NAME_SIZE + 64];
    struct io_error error = { .text = "" };
    const struct case_op *op = case_op_get((int)fuzz_below(in, 2));
    (void)snprintf(text, sizeof text, "%s(", op->name);
    add_key(text, sizeof text, "variant", op->variant((int)fuzz_below(in, 6)));
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++) {
        const char *value = dim->letter == 'B'   ? ONE_OF(in, "1", "1", "2", "0", "3")
                            : dim->letter == 'S' ? ONE_OF(in, "2", "1", "0", "3", "5", "9", "17")
                            : dim->letter == 'N' ? ONE_OF(in, "2", "1", "3", "5", "0", "9", "4")
                            : dim->letter == 'c' ? ONE_OF(in, "1", "2", "3", "4", "5", "8", "16")
                                                 : ONE_OF(in, "1", "2", "3", "4", "7", "8", "16", "17", "33");
        add_key(text, sizeof text, dim->name, value);
    }
    add_params(in, op, text, sizeof text);
    add_key(text, sizeof text, "dtype", ONE_OF(in, "", "bf16", "fp16", "fp64"));
    add_key(text, sizeof text, "weights", ONE_OF(in, "", "fp32", "bf16", "mixed", "fp64"));
    add_key(text, sizeof text, "mask", ONE_OF(in, "", "none", "fractional", "row", "column", "all", "large"));
    add_key(text, sizeof text, "mask_dtype", ONE_OF(in, "", "", "uint8", "fp32", "bf16", "fp64"));
    add_key(
        text, sizeof text, "residual",
        ONE_OF(in, "", "1", "1,residual_dtype=fp32", "1,residual_dtype=bf16", "0,out_dtype=fp32", "1,out_dtype=fp16"));
    add_key(text, sizeof text, "input", ONE_OF(in, "", "", "", "nan", "inf", "shifted", "constant"));
    add_key(text, sizeof text, "weight_layout",
            ONE_OF(in, "", "transposed", "halves", "interleaved", "padded", "halves_transposed"));
    add_key(text, sizeof text, "alias", ONE_OF(in, "", "", "", "residual", "input", "both"));
    add_key(text, sizeof text, "compute", ONE_OF(in, "", "", "fp32", "fp32_strict", "tf32", "bf16", "fp16", "fp64"));
    add_key(text, sizeof text, "workspace_limit", ONE_OF(in, "", "", "", "1", "1000", "10000", "100000"));
    add_key(text, sizeof text, "layout", ONE_OF(in, "", "", "padded", "offset", "transposed", "negative", "slice"));
    (void)snprintf(text + strlen(text), sizeof text - strlen(text), ")");
    if (!case_parse(text, fuzz_byte(in), c, &error)) {
        FUZZ_CHECK(error.text[0] != '\0');
        return false;
    }
    return true;
}

/* ---- layouts that case_lay_out has none of ---- */

static int64_t reach_of(const struct case_tensor *tensor) {
    int64_t last = tensor->offset;
    for (int d = 0; d < tensor->rank && tensor->count > 0; d++)
        if (tensor->strides[d] > 0) last += (tensor->extents[d] - 1) * tensor->strides[d];
    return tensor->count > 0 ? last + 1 : last;
}

/* Values along the dimensions that repeat become those of their first index. */
static void repeat_values(struct case_tensor *tensor, unsigned repeated) {
    int64_t plain[CASE_MAX_RANK];
    case_contiguous(tensor->extents, tensor->rank, plain);
    for (int64_t k = 0; k < tensor->count; k++) {
        int64_t from = k;
        for (int d = 0; d < tensor->rank; d++)
            if (repeated >> d & 1) from -= k / plain[d] % tensor->extents[d] * plain[d];
        tensor->values[k] = tensor->values[from];
    }
}

/* Any order of the dimensions, gaps, directions, and repeats where it is only read. */
static void stride_freely(struct fuzz_input *in, struct evo_case *c, struct case_tensor *tensor, bool written) {
    int order[CASE_MAX_RANK];
    int64_t stride = 1 + fuzz_below(in, 2);
    const unsigned backwards = fuzz_byte(in), gaps = fuzz_byte(in);
    unsigned repeated = written ? 0 : fuzz_byte(in) & fuzz_byte(in) & ((1u << (tensor->rank - 1)) - 1);
    for (int d = 0; d < tensor->rank; d++) order[d] = d;
    for (int d = tensor->rank - 1; d > 0; d--) {
        const int other = (int)fuzz_below(in, (unsigned)d + 1), kept = order[d];
        order[d] = order[other];
        order[other] = kept;
    }
    tensor->offset = fuzz_below(in, 4);
    for (int k = 0; k < tensor->rank; k++) {
        const int d = order[k];
        const int64_t extent = tensor->extents[d] > 0 ? tensor->extents[d] : 1;
        tensor->strides[d] = repeated >> d & 1 ? 0 : backwards >> d & 1 ? -stride : stride;
        if (tensor->strides[d] < 0 && tensor->count > 0) tensor->offset += (extent - 1) * stride;
        if (tensor->strides[d] != 0) stride = stride * extent + (gaps >> 2 * d & 3);
    }
    if (repeated != 0 && tensor->values != NULL && tensor->count > 0) repeat_values(tensor, repeated);
    tensor->alignment = evo_dtype_size(tensor->dtype) << fuzz_below(in, 3);
    c->buffers[tensor->buffer].count = reach_of(tensor);
}

static void lay_out_freely(struct fuzz_input *in, struct evo_case *c) {
    const unsigned alias = *c->op->common(&c->desc).alias;
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        if (!tensor->present || tensor->spec->role == CASE_WEIGHT) continue;
        const unsigned how = fuzz_byte(in);
        /* An output that lies over another tensor has that one's layout. */
        if (how % 2 == 1 && alias == EVO_ALIAS_NONE)
            stride_freely(in, c, tensor, tensor->spec->role == CASE_OUTPUT);
        else if (how % 16 == 2 && alias == EVO_ALIAS_NONE)
            tensor->alignment = (size_t)32 << how / 16 % 8;
    }
}

/* ---- faults of a descriptor ---- */

static const int64_t evil_sizes[] = { -1,
                                      INT64_MIN,
                                      INT64_MAX,
                                      (int64_t)1 << 31,
                                      (int64_t)1 << 32,
                                      1000000,
                                      (int64_t)1 << 40,
                                      (int64_t)1 << 61,
                                      -2147483649LL,
                                      0,
                                      3,
                                      7,
                                      (int64_t)1 << 62,
                                      INT64_MAX / 2,
                                      INT32_MAX };
static const double evil_numbers[] = { (double)NAN, (double)INFINITY, -1.0, -1e-300, 1e308, 0.0, 1e-320, 5.0, -0.0 };
#define EVIL(in, list) ((list)[fuzz_byte(in) % (sizeof(list) / sizeof *(list))])

static void blame(struct problem *p, bool certain, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void blame(struct problem *p, bool certain, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(p->fault, sizeof p->fault, format, arguments);
    va_end(arguments);
    /* Of two faults either may be the one that is told, and the second may mend the first. */
    p->expected = certain && !p->broken && !p->doubtful ? REFUSED_FOR_SURE : EITHER;
    p->named = p->expected == REFUSED_FOR_SURE ? p->fault : NULL;
    p->broken = true;
}

static void break_size(struct fuzz_input *in, struct problem *p, const struct case_op *op) {
    unsigned count = 0;
    while (op->dims[count].letter != 0) count++;
    const struct case_dim *dim = &op->dims[fuzz_below(in, count)];
    const int64_t value = EVIL(in, evil_sizes);
    static const struct {
        char letter;
        const char *field;
    } fields[] = { { 'B', "desc->batch" }, { 'm', "desc->c_m" }, { 's', "desc->s" } };
    *(int64_t *)case_at(&p->desc, dim->offset) = value;
    const bool channels = dim->letter != 'B' && dim->letter != 'S' && dim->letter != 'N';
    if (dim->letter == fields[0].letter)
        blame(p, value < 0, "%s", fields[0].field);
    else
        blame(p, value < 0 || (value == 0 && channels && dim->fallback == 0), "desc->%s", dim->name);
}

static void break_tensor(struct fuzz_input *in, struct problem *p, const struct case_op *op) {
    int spec = (int)fuzz_below(in, (unsigned)op->spec_count);
    while (op->specs[spec].role == CASE_WEIGHT) spec = (spec + 1) % op->spec_count;
    evo_tensor *tensor = case_at(&p->desc, op->specs[spec].layout);
    const char *name = op->specs[spec].name;
    const bool there = tensor->dtype != EVO_NONE;
    switch (fuzz_below(in, 3)) {
    case 0: {
        const unsigned kind = fuzz_byte(in);
        tensor->dtype = (evo_dtype)(kind < 128 ? kind % 8 : kind - 256);
        blame(p, kind >= 128 || kind % 8 > 5, "%s.dtype", name);
        break;
    }
    case 1: {
        const unsigned d = fuzz_below(in, 4);
        tensor->strides[d] = EVIL(in, evil_sizes);
        blame(p, there && d == 3 && op->specs[spec].role == CASE_MASK && tensor->strides[3] != 0, "%s.strides[3]",
              name);
        break;
    }
    default: {
        static const size_t alignments[] = { 1, 2, 3, 4, 8, 24, 64, 4096, 65, SIZE_MAX, (size_t)1 << 63, 12, 0 };
        tensor->alignment = EVIL(in, alignments);
        const bool power = (tensor->alignment & (tensor->alignment - 1)) == 0;
        blame(p, there && !power, "%s.alignment", name);
        break;
    }
    }
}

static void break_param(struct fuzz_input *in, struct problem *p, const struct case_op *op) {
    static const int choices[] = { -1, 2, 99, INT32_MIN, 1, 0 };
    unsigned count = 0;
    while (op->params[count].name != NULL || op->params[count].json != NULL) count++;
    const struct case_param *param = &op->params[fuzz_below(in, count)];
    if (param->kind == CASE_PARAM_NUMBER) {
        double *number = case_at(&p->desc, param->offset);
        *number = EVIL(in, evil_numbers);
        blame(p, !(isfinite(*number) && *number >= 0.0), "desc->%s",
              strcmp(param->name, "ln_eps") == 0 ? "layer_norm_eps" : param->name);
    } else if (param->kind == CASE_PARAM_CHOICE) {
        int *choice = case_at(&p->desc, param->offset);
        *choice = EVIL(in, choices);
        blame(p, *choice < 0 || *choice > 1, "desc->%s", param->name);
    }
}

static void break_common(struct fuzz_input *in, struct problem *p, const struct case_op *op) {
    static const char *const kernels[] = { "reference", "blocked", "nonsense", "", "tensor", "opm:blocked", "%s%n" };
    static const int modes[] = { -1, 6, 0, 1, 2, 3, 4, 5, INT32_MAX };
    struct case_common common = op->common(&p->desc);
    const unsigned bit = 1u << fuzz_below(in, 32);
    switch (fuzz_below(in, 6)) {
    case 0:
        *common.compute = (evo_compute)EVIL(in, modes);
        blame(p, (int)*common.compute < 0 || (int)*common.compute > 5, "desc->compute");
        break;
    case 1:
        *common.kernel = EVIL(in, kernels);
        blame(p, strcmp(*common.kernel, "reference") != 0 && strcmp(*common.kernel, "blocked") != 0, "desc->kernel");
        break;
    case 2:
        *common.workspace_limit = (size_t)fuzz_byte(in) << fuzz_below(in, 64);
        blame(p, false, "desc->workspace_limit");
        break;
    case 3:
        *common.alias ^= bit;
        blame(p, (*common.alias & ~common.allowed_aliases) != 0, "desc->alias");
        break;
    case 4:
        *common.biases ^= bit;
        blame(p, bit > 255, "desc->biases");
        break;
    default:
        if (op->id == EVO_OP_OPM)
            p->desc.opm.propagation = (evo_propagation)(int)bit;
        else
            p->desc.trimul.propagation = (evo_propagation)(int)bit;
        blame(p, true, "desc->propagation");
        break;
    }
}

/* ---- where everything lies ---- */

static int width_of(const struct evo_case *c, int buffer) {
    return (int)evo_dtype_size(c->buffers[buffer].dtype);
}

/* The alignment that the pointers into a buffer promise, and the element that they point to. */
static size_t promise_of(const struct evo_case *c, int buffer, int64_t *element) {
    size_t promise = (size_t)width_of(c, buffer);
    *element = 0;
    for (int i = 0; i < c->op->spec_count; i++) {
        const struct case_tensor *tensor = &c->tensors[i];
        if (!tensor->present || tensor->buffer != buffer || tensor->spec->role == CASE_WEIGHT) continue;
        const size_t asked = tensor->alignment == 0 ? 16 : tensor->alignment;
        promise = asked > promise ? asked : promise;
        *element = tensor->offset;
    }
    return promise;
}

/* Gives a buffer a block of its own: its elements at the least alignment that is promised, and no better. */
static void place_alone(struct fuzz_input *in, struct problem *p, int buffer) {
    int64_t element;
    const size_t width = (size_t)width_of(&p->c, buffer), promise = promise_of(&p->c, buffer, &element);
    const size_t size = (size_t)p->c.buffers[buffer].count * width, ahead = (size_t)element * width;
    size_t slack = (promise - ahead % promise) % promise;
    if (fuzz_byte(in) % 2 == 0) slack += promise; /* an odd multiple of the promise, or an even one */
    p->block_of[buffer] = p->block_count;
    p->byte_of[buffer] = 0;
    make_block(&p->blocks[p->block_count++], size, 2 * promise, slack);
}

static void mark_elements(const struct case_tensor *tensor, unsigned char *marks, size_t start, size_t room) {
    const size_t width = evo_dtype_size(tensor->dtype);
    for (int64_t k = 0; k < tensor->count; k++) {
        const size_t at = start + (size_t)case_element(tensor, k) * width;
        FUZZ_CHECK(at + width <= room);
        memset(marks + at, 1, width);
    }
}

static bool shares_bytes(const struct problem *p, const struct case_tensor *a, const struct case_tensor *b) {
    const struct block *block = &p->blocks[p->block_of[a->buffer]];
    unsigned char *marks = calloc(2, block->size + 1);
    bool shared = false;
    FUZZ_CHECK(marks != NULL);
    if (p->block_of[a->buffer] == p->block_of[b->buffer]) {
        mark_elements(a, marks, p->byte_of[a->buffer], block->size);
        mark_elements(b, marks + block->size, p->byte_of[b->buffer], block->size);
        for (size_t i = 0; i < block->size; i++) shared = shared || (marks[i] && marks[block->size + i]);
    }
    free(marks);
    return shared;
}

/* Puts the output into one block with another activation, at any distance. */
static bool place_together(struct fuzz_input *in, struct problem *p) {
    struct evo_case *c = &p->c;
    const struct case_tensor *out = case_result_of(c);
    const int spec = (int)fuzz_below(in, 3);
    const struct case_tensor *other = &c->tensors[spec];
    const unsigned far = fuzz_byte(in), before = fuzz_byte(in) % 2;
    if (!other->present || other->spec->role == CASE_WEIGHT || other->buffer == out->buffer) return false;
    int64_t out_element, other_element;
    const size_t out_width = (size_t)width_of(c, out->buffer), other_width = (size_t)width_of(c, other->buffer);
    const size_t out_size = (size_t)c->buffers[out->buffer].count * out_width;
    const size_t other_size = (size_t)c->buffers[other->buffer].count * other_width;
    size_t promise = promise_of(c, out->buffer, &out_element);
    const size_t other_promise = promise_of(c, other->buffer, &other_element);
    promise = promise > other_promise ? promise : other_promise;
    /* Both pointers are multiples of the larger promise. */
    const size_t first_size = before ? out_size : other_size;
    const size_t first_ahead = (size_t)(before ? out_element : other_element) * (before ? out_width : other_width);
    const size_t second_ahead = (size_t)(before ? other_element : out_element) * (before ? other_width : out_width);
    const size_t slack = (promise - first_ahead % promise) % promise;
    size_t at = first_size * far / 255 + slack;
    while ((at + second_ahead) % promise != 0) at++;
    at -= slack;
    const size_t end = at + (before ? other_size : out_size);
    p->block_of[out->buffer] = p->block_of[other->buffer] = p->block_count;
    p->byte_of[out->buffer] = before ? 0 : at;
    p->byte_of[other->buffer] = before ? at : 0;
    make_block(&p->blocks[p->block_count++], end > first_size ? end : first_size, promise, slack);
    p->overlap = shares_bytes(p, out, other);
    return true;
}

static unsigned char *element_of(const struct problem *p, const struct case_tensor *tensor) {
    return p->blocks[p->block_of[tensor->buffer]].start + p->byte_of[tensor->buffer] +
           (size_t)tensor->offset * evo_dtype_size(tensor->dtype);
}

/* Writes a tensor's values into the image of its block. */
static void put_values(struct problem *p, const struct case_tensor *tensor) {
    const size_t width = evo_dtype_size(tensor->dtype);
    unsigned char *image = p->blocks[p->block_of[tensor->buffer]].image + p->byte_of[tensor->buffer];
    for (int64_t k = 0; k < tensor->count; k++) {
        unsigned char bytes[sizeof(double)];
        (void)evo_convert(&tensor->values[k], EVO_FP64, bytes, tensor->dtype, 1);
        memcpy(image + (size_t)case_element(tensor, k) * width, bytes, width);
    }
}

/* All blocks as they should be before an execution. */
static void restore_blocks(struct problem *p) {
    for (int b = 0; b < p->block_count; b++) memcpy(p->blocks[b].start, p->blocks[b].image, p->blocks[b].size);
}

static void place_all(struct fuzz_input *in, struct problem *p) {
    struct evo_case *c = &p->c;
    const bool together = fuzz_byte(in) % 4 == 1 && *c->op->common(&c->desc).alias == EVO_ALIAS_NONE;
    for (int b = 0; b < c->buffer_count; b++) p->block_of[b] = -1;
    if (together) (void)place_together(in, p);
    for (int b = 0; b < c->buffer_count; b++)
        if (p->block_of[b] < 0) place_alone(in, p, b);
    for (int i = 0; i < c->op->spec_count; i++)
        if (c->tensors[i].present && c->tensors[i].values != NULL) put_values(p, &c->tensors[i]);
    restore_blocks(p);
}

/* ---- a descriptor that is broken, but taken: what it describes is small enough to be run, or is not ---- */

static bool fits(const struct problem *p, const struct evo_case *c) {
    double work = 1.0;
    for (const struct case_dim *dim = c->op->dims; dim->letter != 0; dim++) {
        const int64_t size = *(const int64_t *)case_at_const(&p->desc, dim->offset);
        if (size < 0 || size > 64) return false;
        work *= size > 0 ? (double)size : 1.0;
    }
    for (int i = 0; i < c->op->spec_count; i++) {
        const struct case_tensor *tensor = &c->tensors[i];
        if (!tensor->present) continue;
        if (tensor->alignment > LARGEST_ALIGNMENT || (tensor->alignment & (tensor->alignment - 1)) != 0) return false;
        if (evo_dtype_size(tensor->dtype) == 0 || tensor->count > MOST_BYTES) return false;
        double reach = 1.0;
        for (int d = 0; d < tensor->rank; d++)
            reach += (double)(tensor->extents[d] - 1) * fabs((double)tensor->strides[d]);
        if (tensor->count > 0 && reach > (double)MOST_BYTES) return false;
    }
    return work <= (double)MOST_WORK;
}

/* Reads the layouts back from the descriptor, into a case of other tensors without values. */
static bool refit(struct problem *p) {
    struct io_error error;
    struct evo_case *c = &p->c;
    case_destroy(c);
    c->desc = p->desc;
    c->buffer_count = 0;
    for (const struct case_dim *dim = c->op->dims; dim->letter != 0; dim++)
        if (*(const int64_t *)case_at_const(&p->desc, dim->offset) > 64) return false;
    if (!case_prepare(c, &error)) return false;
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        int64_t plain[CASE_MAX_RANK] = { 0 };
        bool strided = false;
        case_contiguous(tensor->extents, tensor->rank, plain);
        tensor->offset = 0;
        if (tensor->spec->role == CASE_WEIGHT) {
            memcpy(tensor->strides, plain, sizeof plain);
            tensor->alignment = 0;
        } else {
            const evo_tensor *layout = case_at_const(&p->desc, tensor->spec->layout);
            tensor->present = layout->dtype != EVO_NONE;
            tensor->dtype = layout->dtype;
            tensor->alignment = layout->alignment;
            for (int d = 0; d < tensor->rank; d++) strided = strided || layout->strides[d] != 0;
            memcpy(tensor->strides, strided ? layout->strides : plain, (size_t)tensor->rank * sizeof *plain);
        }
        tensor->buffer = c->buffer_count;
        if (tensor->present) c->buffer_count++;
    }
    return fits(p, c);
}

static void refit_buffers(struct evo_case *c) {
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        if (!tensor->present) continue;
        for (int d = 0; d < tensor->rank && tensor->count > 0; d++)
            if (tensor->strides[d] < 0) tensor->offset -= (tensor->extents[d] - 1) * tensor->strides[d];
        c->buffers[tensor->buffer] = (struct case_buffer){ tensor->dtype, reach_of(tensor), NULL };
    }
}

/* ---- making a problem ---- */

/* Whether the naive evaluation is well defined: not where a sum of nothing is divided by nothing, nor at eps 0. */
static bool is_tame(const struct evo_case *c) {
    if (c->op->id == EVO_OP_TRIMUL) return c->desc.trimul.layer_norm_eps >= 1e-8;
    return c->desc.opm.layer_norm_eps >= 1e-8 && (c->desc.opm.count_eps >= 1e-4 || c->desc.opm.count_min >= 1e-6);
}

/* Whether the op allows the case's aliases; those of an empty tensor may differ in extents. */
static bool may_alias(struct evo_case *c) {
    const struct case_common common = c->op->common(&c->desc);
    return *common.alias == EVO_ALIAS_NONE ||
           ((*common.alias & ~common.allowed_aliases) == 0 && case_result_of(c)->count > 0);
}

/* Hands the descriptor over in memory of its own size, or of one that its `size` lies about. */
static void give_descriptor(struct fuzz_input *in, struct problem *p) {
    const size_t whole = p->desc.size;
    const unsigned how = fuzz_byte(in);
    size_t claimed = whole;
    p->given_size = whole;
    if (how == 1) claimed = fuzz_byte(in) * whole / 256;
    if (how == 2) claimed = SIZE_MAX - fuzz_byte(in);
    if (how == 3) claimed = p->given_size = whole + 8u * (1 + fuzz_byte(in)); /* of a newer header */
    p->given = calloc(1, p->given_size);
    FUZZ_CHECK(p->given != NULL);
    memcpy(p->given, &p->desc, whole);
    memcpy(p->given, &claimed, sizeof claimed);
    if (claimed < whole || claimed > whole + 4096) {
        blame(p, true, "desc->size");
    } else if (how == 3 && fuzz_byte(in) % 2 == 1) {
        p->given[whole + fuzz_byte(in) % (p->given_size - whole)] =
            1; /* which says something that this one does not know */
        blame(p, true, "desc->size");
    }
}

static void make_problem(struct fuzz_input *in, struct problem *p) {
    memset(p, 0, sizeof *p);
    p->expected = EITHER;
    if (!make_case(in, &p->c)) return;
    lay_out_freely(in, &p->c);
    case_descriptor(&p->c, &p->desc);
    p->doubtful = !may_alias(&p->c);
    const unsigned faults = fuzz_byte(in);
    for (unsigned k = 0; k < (faults % 4 == 1 ? 1 + faults / 64 : 0); k++) {
        switch (fuzz_below(in, 4)) {
        case 0:
            break_size(in, p, p->c.op);
            break;
        case 1:
            break_tensor(in, p, p->c.op);
            break;
        case 2:
            break_param(in, p, p->c.op);
            break;
        default:
            break_common(in, p, p->c.op);
            break;
        }
    }
    p->judged = !p->broken && is_tame(&p->c);
    if (!p->broken && !p->doubtful && *p->c.op->common(&p->c.desc).workspace_limit == 0) p->expected = TAKEN;
    give_descriptor(in, p);
    p->made = true;
    if (!p->broken)
        place_all(in, p);
    else if (refit(p)) {
        refit_buffers(&p->c);
        for (int b = 0; b < p->c.buffer_count; b++) place_alone(in, p, b);
    } else {
        p->c.buffer_count = -1; /* only planned */
    }
}

static void free_problem(struct problem *p) {
    for (int b = 0; b < p->block_count; b++) free_block(&p->blocks[b]);
    if (p->made) case_destroy(&p->c);
    free(p->given);
}

/* ---- the program ---- */

/* The op's own functions, with pointers that may be NULL. */
static evo_status plan_create(evo_op op, evo_context *context, const void *desc, evo_plan **plan) {
    return op == EVO_OP_OPM ? evo_opm_plan_create(context, desc, plan) : evo_trimul_plan_create(context, desc, plan);
}

static evo_status run_plan(evo_op op, const evo_plan *plan, const evo_pack *pack, const void *args, void *workspace,
                           size_t size, evo_stream stream) {
    return op == EVO_OP_OPM ? evo_opm_execute(plan, pack, args, workspace, size, stream)
                            : evo_trimul_execute(plan, pack, args, workspace, size, stream);
}

struct plan {
    evo_plan *plan;
    struct problem *problem;
    evo_plan_info info;
    const char *isa; /* of its context: packs are laid out for it */
    struct block *workspace;
};

struct pack {
    evo_pack *pack;
    struct problem *problem;
    evo_plan_info info; /* of the plan that made it */
    const char *isa;
    struct block *memory;
    bool filled; /* false while the packing stands in a graph that was not launched */
};

/* What a graph, or a recording, will do: bits of the slots that must live. */
struct work {
    bool live;  /* false: nothing records, or there is no graph */
    bool stale; /* something that it needs is gone: it may be destroyed and nothing else */
    unsigned plans, events, packs;
    struct plan *executed; /* the last one */
    bool known;            /* its weights were packed */
    int executions;
};

struct machine {
    struct fuzz_input in;
    evo_context *base, *contexts[SLOTS];
    const char *isas[SLOTS]; /* of the contexts */
    struct problem problems[MOST_PROBLEMS];
    int problem_count;
    struct plan plans[SLOTS];
    struct pack packs[SLOTS];
    evo_stream streams[SLOTS];
    struct work recordings[SLOTS]; /* of the streams */
    evo_event events[SLOTS];
    evo_graph graphs[SLOTS];
    struct work works[SLOTS];             /* of the graphs */
    struct block *blocks[2 * MOST_STEPS]; /* workspaces and packs, kept to the end since a graph may use them */
    int block_count, runs;
};

static struct block *new_block(struct machine *m, size_t size) {
    struct block *block = malloc(sizeof *block);
    FUZZ_CHECK(block != NULL && m->block_count < 2 * MOST_STEPS);
    make_block(block, size, EVO_BUFFER_ALIGNMENT, 0);
    m->blocks[m->block_count++] = block;
    return block;
}

static int slot(struct machine *m) {
    return (int)fuzz_below(&m->in, SLOTS);
}

/* A stream and the number of its slot; NULL and -1: the default one. */
static evo_stream any_stream(struct machine *m, int *number) {
    const unsigned k = fuzz_below(&m->in, SLOTS + 2);
    *number = k < SLOTS && m->streams[k] != NULL ? (int)k : -1;
    return *number < 0 ? NULL : m->streams[*number];
}

/* The recording of a stream that records, else NULL. */
static struct work *recording_of(struct machine *m, int stream) {
    return stream >= 0 && m->recordings[stream].live ? &m->recordings[stream] : NULL;
}

static int log_lines;
static void count_line(void *user, const char *line) {
    (void)user;
    FUZZ_CHECK(line != NULL && strncmp(line, "evoformer,", 10) == 0 && strchr(line, '\n') == NULL);
    log_lines++;
}

static void open_context(struct machine *m) {
    const int k = slot(m);
    evo_context_options options = EVO_CONTEXT_OPTIONS_INIT;
    const char *device = ONE_OF(&m->in, "cpu", "cpu", "cpu:0", "auto", "cpu:1", "cuda:0", "hip", "nonsense", "",
                                "cpu:", "cpu:99999999999");
    const char *threads = ONE_OF(&m->in, "1", "1", "2", "3", "0", "x");
    const char *isa = ONE_OF(&m->in, "", "", "baseline", "avx2", "avx512", "avx512_bf16", "amx", "nonsense");
    const unsigned how = fuzz_byte(&m->in);
    const unsigned allowed = BIT(EVO_ERROR_NULL_POINTER) | BIT(EVO_ERROR_INVALID_ARGUMENT) |
                             BIT(EVO_ERROR_NOT_COMPILED) | BIT(EVO_ERROR_NO_DEVICE);
    options.verbose = (int)(how % 8) - 2;
    options.log = count_line;
    if (how / 16 == 1) options.size = how;
    (void)setenv("EVO_NUM_THREADS", threads, 1);
    (void)setenv("EVO_CPU_ISA", isa, 1);
    if (isa[0] == '\0') (void)unsetenv("EVO_CPU_ISA");
    evo_context *context = NULL;
    const bool lied = how / 16 == 1 && options.size != sizeof options;
    const evo_status status =
        evo_context_create(device, how / 16 == 2 ? NULL : &options, how / 16 == 3 ? NULL : &context);
    const bool taken = answer("evo_context_create", status, allowed, how / 16 == 3 || lied ? REFUSED_FOR_SURE : EITHER,
                              how / 16 != 3 && lied && strcmp(device, "cpu") == 0 ? "options->size" : NULL);
    (void)setenv("EVO_NUM_THREADS", "1", 1);
    (void)unsetenv("EVO_CPU_ISA");
    if (!taken) return;
    evo_device_info info = EVO_DEVICE_INFO_INIT;
    FUZZ_CHECK(context != NULL && evo_context_device(context, &info) == EVO_OK && info.name[0] != '\0');
    evo_context_destroy(m->contexts[k]);
    m->contexts[k] = context;
    m->isas[k] = isa;
}

/* Whatever records or recorded what is gone now can be launched no more. */
static void forget(struct machine *m, unsigned plan_bit) {
    for (int k = 0; k < SLOTS; k++) {
        m->works[k].stale = m->works[k].stale || m->works[k].plans & plan_bit;
        m->recordings[k].stale = m->recordings[k].stale || m->recordings[k].plans & plan_bit;
        m->works[k].plans &= ~plan_bit;
        m->recordings[k].plans &= ~plan_bit;
    }
}

static void drop_plan(struct machine *m, int k) {
    evo_plan_destroy(m->plans[k].plan);
    m->plans[k].plan = NULL;
    forget(m, 1u << k);
}

static void make_plan(struct machine *m) {
    const int k = slot(m), c = slot(m);
    struct problem *p = &m->problems[fuzz_below(&m->in, (unsigned)m->problem_count)];
    evo_context *context = m->contexts[c] != NULL ? m->contexts[c] : m->base;
    const unsigned how = fuzz_byte(&m->in);
    struct plan made = { .problem = p, .info = EVO_PLAN_INFO_INIT, .isa = m->contexts[c] != NULL ? m->isas[c] : "" };
    if (!p->made) return;
    enum expectation expected = p->expected;
    const char *named = p->named;
    const void *desc = p->given;
    evo_plan **result = &made.plan;
    if (how < 4) {
        expected = REFUSED_FOR_SURE;
        named = p->expected != TAKEN ? NULL : how == 0 ? "context" : how == 1 ? "desc" : "plan";
        context = how == 0 ? NULL : context;
        desc = how == 1 ? NULL : desc;
        result = how >= 2 ? NULL : result;
    }
    if (!answer("plan_create", plan_create(p->c.op->id, context, desc, result), plan_statuses, expected, named)) {
        FUZZ_CHECK(made.plan == NULL);
        return;
    }
    FUZZ_CHECK(made.plan != NULL && evo_plan_get_info(made.plan, &made.info) == EVO_OK);
    FUZZ_CHECK(made.info.op == p->c.op->id && made.info.kernel != NULL && made.info.refusals != NULL);
    FUZZ_CHECK(p->broken || *p->c.op->common(&p->desc).workspace_limit == 0 ||
               made.info.workspace_size <= *p->c.op->common(&p->desc).workspace_limit);
    if (p->c.buffer_count < 0 || made.info.workspace_size > (1u << 22) || made.info.pack_size > (1u << 22)) {
        evo_plan_destroy(made.plan);
        return;
    }
    made.workspace = new_block(m, made.info.workspace_size);
    drop_plan(m, k);
    m->plans[k] = made;
}

/* ---- packs ---- */

static void fill_weights(const struct problem *p, union case_weights *weights) {
    p->c.op->init_weights(weights);
    for (int i = 0; i < p->c.op->spec_count; i++) {
        const struct case_tensor *tensor = &p->c.tensors[i];
        if (tensor->spec->role != CASE_WEIGHT || !tensor->present) continue;
        evo_weight *weight = case_at(weights, tensor->spec->slot);
        weight->data = element_of(p, tensor);
        weight->dtype = tensor->dtype;
        memcpy(weight->strides, tensor->strides, sizeof weight->strides);
    }
}

/* Breaks one weight; false if that is no certain fault. `name` gets what the text must hold. */
static bool break_weight(struct machine *m, const struct problem *p, union case_weights *weights, char *name,
                         size_t size) {
    int spec = (int)fuzz_below(&m->in, (unsigned)p->c.op->spec_count);
    while (p->c.op->specs[spec].role != CASE_WEIGHT) spec = (spec + 1) % p->c.op->spec_count;
    evo_weight *weight = case_at(weights, p->c.op->specs[spec].slot);
    (void)snprintf(name, size, "weights->%s", p->c.op->specs[spec].name);
    for (char *at = strchr(name, '.'); at != NULL; at = NULL) *at = '_';
    if (weight->data == NULL) {
        weight->data = name;
        return true;
    }
    switch (fuzz_below(&m->in, 5)) {
    case 0:
        weight->data = NULL;
        return true;
    case 1:
        weight->dtype = (evo_dtype)(5 + (int)fuzz_below(&m->in, 3));
        return true;
    case 2:
        weight->data = (const char *)weight->data + 1;
        return true;
    case 3:
        weight->strides[0] = INT64_MIN;
        weight->strides[1] = p->c.tensors[spec].rank == 1 ? 1 : weight->strides[1];
        return p->c.tensors[spec].rank == 1 || p->c.tensors[spec].extents[0] > 1;
    default:
        weights->size = weights->size - 1 - fuzz_byte(&m->in);
        (void)snprintf(name, size, "weights->size");
        return true;
    }
}

static void make_pack(struct machine *m) {
    const int k = slot(m), from = slot(m);
    const struct plan *plan = &m->plans[from];
    const unsigned how = fuzz_byte(&m->in) % 32;
    int number;
    evo_stream stream = any_stream(m, &number);
    struct work *recording = recording_of(m, number);
    union case_weights weights;
    char name[96] = "";
    if (plan->plan == NULL) return;
    struct problem *p = plan->problem;
    struct pack made = {
        .problem = p, .info = plan->info, .isa = plan->isa, .memory = new_block(m, plan->info.pack_size)
    };
    fill_weights(p, &weights);
    unsigned char *memory = made.memory->start;
    size_t size = made.memory->size;
    evo_pack **result = &made.pack;
    enum expectation expected = TAKEN;
    const evo_plan *used = plan->plan;
    if (how < 8 && size > 0) {
        expected = REFUSED_FOR_SURE;
        if (how == 0) (void)snprintf(name, sizeof name, "memory"), memory = NULL;
        if (how == 1) (void)snprintf(name, sizeof name, "memory_size"), size -= 1 + fuzz_byte(&m->in) % size;
        if (how == 2) (void)snprintf(name, sizeof name, "memory"), memory += 1 + fuzz_byte(&m->in) % 255;
        if (how == 3) (void)snprintf(name, sizeof name, "plan"), used = NULL;
        if (how == 4) (void)snprintf(name, sizeof name, "pack"), result = NULL;
        if (how > 4) expected = break_weight(m, p, &weights, name, sizeof name) ? REFUSED_FOR_SURE : EITHER;
    }
    const evo_status status = p->c.op->pack(used, &weights, memory, size, stream, result);
    const unsigned bad = how == 4 && expected == REFUSED_FOR_SURE;
    if (!answer("pack_weights", status, pack_statuses, expected, expected == REFUSED_FOR_SURE ? name : NULL)) {
        FUZZ_CHECK(bad || made.pack == NULL);
        return;
    }
    FUZZ_CHECK(made.pack != NULL);
    if (expected == EITHER) { /* a broken weight that was taken after all */
        evo_pack_destroy(made.pack);
        return;
    }
    made.filled = recording == NULL;
    if (recording != NULL) recording->plans |= 1u << from;
    evo_pack_destroy(m->packs[k].pack);
    for (int g = 0; g < SLOTS; g++) {
        m->works[g].packs &= ~(1u << k);
        m->recordings[g].packs &= ~(1u << k);
    }
    if (recording != NULL) recording->packs |= 1u << k;
    m->packs[k] = made;
}

/* ---- executions ---- */

/* All bytes but the output's elements must be as they were. */
static void check_surroundings(struct problem *p) {
    const struct case_tensor *out = case_result_of(&p->c);
    struct block *block = &p->blocks[p->block_of[out->buffer]];
    const size_t width = evo_dtype_size(out->dtype);
    unsigned char *kept = malloc(block->size + 1);
    FUZZ_CHECK(kept != NULL);
    memcpy(kept, block->start, block->size);
    for (int64_t i = 0; i < out->count; i++) {
        const size_t at = p->byte_of[out->buffer] + (size_t)case_element(out, i) * width;
        memcpy(block->start + at, block->image + at, width);
    }
    for (int b = 0; b < p->block_count; b++)
        if (memcmp(p->blocks[b].start, p->blocks[b].image, p->blocks[b].size) != 0)
            fuzz_fail("%s: bytes beside the output's elements were written", p->c.name);
    memcpy(block->start, kept, block->size);
    free(kept);
}

static void check_result(struct machine *m, const struct plan *plan) {
    struct problem *p = plan->problem;
    const struct case_tensor *out = case_result_of(&p->c);
    const unsigned char *base = p->blocks[p->block_of[out->buffer]].start + p->byte_of[out->buffer];
    const size_t width = evo_dtype_size(out->dtype);
    check_surroundings(p);
    if (!p->judged || ++m->runs > MOST_RUNS) return;
    double *got = malloc(((size_t)out->count + 1) * sizeof *got);
    FUZZ_CHECK(got != NULL);
    for (int64_t i = 0; i < out->count; i++) {
        unsigned char bytes[sizeof(double)];
        memcpy(bytes, base + (size_t)case_element(out, i) * width, width);
        (void)evo_convert(bytes, out->dtype, &got[i], EVO_FP64, 1);
    }
    const int64_t wrong = judge_first_wrong(&p->c, plan->info.compute, got);
    if (wrong >= 0)
        fuzz_fail("%s (seed %llu), kernel %s: element %lld is wrong: %.17g", p->c.name, (unsigned long long)p->c.seed,
                  plan->info.kernel, (long long)wrong, got[wrong]);
    free(got);
}

static void fill_args(const struct problem *p, union case_args *args) {
    p->c.op->init_args(args);
    for (int i = 0; i < p->c.op->spec_count; i++) {
        const struct case_tensor *tensor = &p->c.tensors[i];
        if (tensor->spec->role == CASE_WEIGHT || !tensor->present) continue;
        const void *pointer = element_of(p, tensor);
        memcpy(case_at(args, tensor->spec->slot), &pointer, sizeof pointer);
    }
}

/* An execution's arguments, one of which may be wrong. */
struct call {
    const evo_plan *plan;
    const evo_pack *pack;
    union case_args args;
    const void *arguments;
    unsigned char *workspace;
    size_t workspace_size;
    enum expectation expected;
    char name[64];
};

/* Breaks one pointer of the arguments. */
static void break_argument(struct machine *m, const struct problem *p, struct call *call) {
    int spec = (int)fuzz_below(&m->in, (unsigned)p->c.op->spec_count);
    while (p->c.op->specs[spec].role == CASE_WEIGHT) spec = (spec + 1) % p->c.op->spec_count;
    const struct case_tensor *tensor = &p->c.tensors[spec];
    const void *pointer = NULL;
    memcpy(&pointer, case_at(&call->args, tensor->spec->slot), sizeof pointer);
    if (!tensor->present) {
        pointer = call;
    } else if (fuzz_byte(&m->in) % 2 == 0) {
        pointer = NULL;
    } else {
        pointer = (const char *)pointer + 1;
        if (tensor->alignment == 1 && evo_dtype_size(tensor->dtype) == 1) return; /* any address will do */
    }
    call->expected = tensor->present && tensor->count == 0 ? EITHER : REFUSED_FOR_SURE;
    if (call->expected == EITHER && pointer != NULL) return;
    memcpy(case_at(&call->args, tensor->spec->slot), &pointer, sizeof pointer);
    (void)snprintf(call->name, sizeof call->name, "args->%s", tensor->spec->name);
}

static void break_call(struct machine *m, const struct plan *plan, const struct pack *pack, struct call *call) {
    const size_t workspace = plan->info.workspace_size, packed = pack->memory->size;
    const unsigned how = fuzz_byte(&m->in) % 32;
    const char *name = NULL;
    if (how == 0) name = "plan", call->plan = NULL;
    if (how == 1) name = "pack", call->pack = NULL;
    if (how == 2) name = "args", call->arguments = NULL;
    if (how == 3) name = "args->size", call->args.size -= 1 + fuzz_byte(&m->in) % 8;
    if (name != NULL) {
        call->expected = REFUSED_FOR_SURE;
        (void)snprintf(call->name, sizeof call->name, "%s", name);
        return;
    }
    if (case_result_of(&plan->problem->c)->count == 0) return; /* nothing is done, and nothing else looked at */
    if (how == 4 && workspace > 0) name = "workspace", call->workspace = NULL;
    if (how == 5 && workspace > 0) name = "workspace_size", call->workspace_size -= 1 + fuzz_byte(&m->in) % workspace;
    if (how == 6 && workspace > 0) name = "workspace", call->workspace += 1 + fuzz_byte(&m->in) % 255;
    if (how == 7 && workspace > 0 && packed >= workspace) name = "workspace", call->workspace = pack->memory->start;
    if (name != NULL) {
        call->expected = REFUSED_FOR_SURE;
        (void)snprintf(call->name, sizeof call->name, "%s", name);
    } else if (how < 11) {
        break_argument(m, plan->problem, call);
    }
}

/* Whether the pack is one that the plan must take; if not, it may still. */
static bool belongs(const struct plan *plan, const struct pack *pack) {
    return plan->problem == pack->problem && strcmp(plan->info.kernel, pack->info.kernel) == 0 &&
           plan->info.compute == pack->info.compute && plan->info.pack_size == pack->info.pack_size &&
           strcmp(plan->isa, pack->isa) == 0;
}

static void execute(struct machine *m) {
    const int from = slot(m), with = slot(m);
    struct plan *plan = &m->plans[from];
    struct pack *pack = &m->packs[with];
    int number;
    evo_stream stream = any_stream(m, &number);
    struct work *recording = recording_of(m, number);
    if (plan->plan == NULL || pack->pack == NULL) return;
    struct problem *p = plan->problem;
    struct call call = { plan->plan, pack->pack, { 0 }, &call.args, plan->workspace->start, plan->workspace->size,
                         TAKEN,      "" };
    fill_args(p, &call.args);
    if (recording == NULL) {
        restore_blocks(p);
        memset(plan->workspace->start, POISON, plan->workspace->size);
        memcpy(pack->memory->image, pack->memory->start, pack->memory->size);
    }
    break_call(m, plan, pack, &call);
    if (!belongs(plan, pack) && call.expected == TAKEN) call.expected = EITHER;
    /* The output in a block with another tensor: of two faults either may be the one that is told. */
    const bool joint = p->block_of[case_result_of(&p->c)->buffer] == 0 && p->block_count < p->c.buffer_count;
    if ((joint || !belongs(plan, pack)) && call.expected == REFUSED_FOR_SURE) call.name[0] = '\0';
    if (p->overlap && call.expected != REFUSED_FOR_SURE) {
        call.expected = case_result_of(&p->c)->count > 0 ? REFUSED_FOR_SURE : EITHER;
        (void)snprintf(call.name, sizeof call.name, "%s", belongs(plan, pack) ? "args->out" : "");
    }
    /* A verbose context is refused while it records; bytes of one block the library need not prove apart. */
    if (call.expected == TAKEN && (recording != NULL || joint)) call.expected = EITHER;
    const evo_status status =
        run_plan(p->c.op->id, call.plan, call.pack, call.arguments, call.workspace, call.workspace_size, stream);
    if (!answer("execute", status, execute_statuses, call.expected, call.name[0] != '\0' ? call.name : NULL)) return;
    if (recording != NULL) {
        recording->plans |= 1u << from;
        recording->executed = plan;
        recording->known = belongs(plan, pack) && pack->filled;
        recording->executions++;
        return;
    }
    if (memcmp(pack->memory->image, pack->memory->start, pack->memory->size) != 0)
        fuzz_fail("%s: packed weights were written", p->c.name);
    if (belongs(plan, pack) && pack->filled)
        check_result(m, plan);
    else
        check_surroundings(p);
}

/* ---- streams, events, graphs, memory ---- */

static const unsigned runtime_statuses = BIT(EVO_ERROR_NULL_POINTER) | BIT(EVO_ERROR_INVALID_ARGUMENT) |
                                         BIT(EVO_ERROR_OUT_OF_MEMORY) | BIT(EVO_ERROR_CAPTURE);

static bool runtime(const char *call, evo_status status, enum expectation expected) {
    return answer(call, status, runtime_statuses, expected, NULL);
}

static void use_stream(struct machine *m) {
    const int k = slot(m);
    struct work *recording = &m->recordings[k];
    switch (fuzz_below(&m->in, 4)) {
    case 0:
        if (m->streams[k] == NULL)
            (void)runtime("evo_stream_create", evo_stream_create(m->base, &m->streams[k]), TAKEN);
        break;
    case 1:
        (void)runtime("evo_stream_destroy", evo_stream_destroy(m->base, m->streams[k]), TAKEN);
        m->streams[k] = NULL;
        *recording = (struct work){ .live = false };
        break;
    case 2:
        (void)runtime("evo_stream_synchronize", evo_stream_synchronize(m->base, m->streams[k]),
                      recording->live ? REFUSED_FOR_SURE : TAKEN);
        break;
    default:
        (void)runtime("evo_stream_create", evo_stream_create(NULL, &m->streams[k]), REFUSED_FOR_SURE);
        break;
    }
}

/* Whether a recording or a graph needs the event. */
static bool is_recorded(const struct machine *m, int event) {
    bool found = false;
    for (int k = 0; k < SLOTS; k++)
        found = found || (m->works[k].live && m->works[k].events >> event & 1) ||
                (m->recordings[k].live && m->recordings[k].events >> event & 1);
    return found;
}

static void use_event(struct machine *m) {
    const int k = slot(m), other = slot(m);
    int number;
    evo_stream stream = any_stream(m, &number);
    struct work *recording = recording_of(m, number);
    evo_event event = m->events[k];
    const enum expectation there = event == NULL ? REFUSED_FOR_SURE : TAKEN;
    double milliseconds = -1.0;
    switch (fuzz_below(&m->in, 6)) {
    case 0:
        if (event == NULL) (void)runtime("evo_event_create", evo_event_create(m->base, &m->events[k]), TAKEN);
        break;
    case 1:
        if (is_recorded(m, k)) break;
        (void)runtime("evo_event_destroy", evo_event_destroy(m->base, event), TAKEN);
        m->events[k] = NULL;
        break;
    case 2:
        if (runtime("evo_event_record", evo_event_record(m->base, event, stream), there) && recording != NULL)
            recording->events |= 1u << k;
        break;
    case 3:
        (void)runtime("evo_event_synchronize", evo_event_synchronize(m->base, event),
                      event == NULL ? REFUSED_FOR_SURE : EITHER);
        break;
    case 4:
        if (runtime("evo_event_elapsed", evo_event_elapsed(m->base, event, m->events[other], &milliseconds),
                    event == NULL || m->events[other] == NULL ? REFUSED_FOR_SURE : EITHER))
            FUZZ_CHECK(isfinite(milliseconds));
        break;
    default:
        (void)runtime("evo_stream_wait_event", evo_stream_wait_event(m->base, stream, event),
                      event == NULL ? REFUSED_FOR_SURE : EITHER);
        break;
    }
}

/* The problem that a graph computes, all as it should be before; NULL if its result is not known. */
static struct problem *prepare_launch(struct machine *m, const struct work *work) {
    for (int k = 0; k < m->problem_count; k++)
        if (m->problems[k].made) restore_blocks(&m->problems[k]);
    if (work->executions != 1 || !work->known || work->packs != 0) return NULL;
    return work->executed->problem;
}

static void launch(struct machine *m, int k) {
    struct work *work = &m->works[k];
    int number;
    evo_stream stream = any_stream(m, &number);
    struct work *recording = recording_of(m, number);
    if (work->stale) return;
    struct problem *p = work->live && recording == NULL ? prepare_launch(m, work) : NULL;
    if (!runtime("evo_graph_launch", evo_graph_launch(m->base, m->graphs[k], stream),
                 work->live ? TAKEN : REFUSED_FOR_SURE))
        return;
    if (recording != NULL) {
        recording->plans |= work->plans;
        recording->events |= work->events;
        recording->packs |= work->packs;
        recording->executions += work->executions + 2; /* too many to know the result */
        return;
    }
    for (int i = 0; i < SLOTS; i++) m->packs[i].filled = m->packs[i].filled || work->packs >> i & 1;
    if (p != NULL) check_result(m, work->executed);
}

static void use_graph(struct machine *m) {
    const int k = slot(m), s = slot(m);
    struct work *recording = &m->recordings[s];
    const bool there = m->streams[s] != NULL;
    switch (fuzz_below(&m->in, 4)) {
    case 0:
        if (runtime("evo_graph_begin", evo_graph_begin(m->base, m->streams[s]),
                    there && !recording->live ? TAKEN : REFUSED_FOR_SURE))
            *recording = (struct work){ .live = true };
        break;
    case 1: {
        evo_graph graph = NULL;
        if (!runtime("evo_graph_end", evo_graph_end(m->base, m->streams[s], &graph),
                     there && recording->live ? TAKEN : REFUSED_FOR_SURE))
            break;
        (void)runtime("evo_graph_destroy", evo_graph_destroy(m->base, m->graphs[k]), TAKEN);
        m->graphs[k] = graph;
        m->works[k] = *recording;
        *recording = (struct work){ .live = false };
        break;
    }
    case 2:
        launch(m, k);
        break;
    default:
        (void)runtime("evo_graph_destroy", evo_graph_destroy(m->base, m->graphs[k]), TAKEN);
        m->graphs[k] = NULL;
        m->works[k] = (struct work){ .live = false };
        break;
    }
}

static void use_memory(struct machine *m) {
    const size_t bytes = (size_t)fuzz_byte(&m->in) * 3;
    const int value = (int)fuzz_byte(&m->in) * 2 - 100;
    void *memory = NULL, *other = NULL;
    const unsigned how = fuzz_byte(&m->in) % 8;
    if (how == 0) {
        (void)runtime("evo_memory_alloc", evo_memory_alloc(m->base, SIZE_MAX - bytes, &memory), REFUSED_FOR_SURE);
        return;
    }
    if (!runtime("evo_memory_alloc", evo_memory_alloc(m->base, bytes, &memory), TAKEN)) return;
    FUZZ_CHECK((memory == NULL) == (bytes == 0) && (uintptr_t)memory % EVO_BUFFER_ALIGNMENT == 0);
    const bool valid = value >= 0 && value <= 255;
    const bool filled = runtime("evo_memory_fill", evo_memory_fill(m->base, memory, value, bytes, NULL),
                                valid ? TAKEN : REFUSED_FOR_SURE);
    (void)runtime("evo_memory_alloc", evo_memory_alloc(m->base, bytes, &other), TAKEN);
    (void)runtime("evo_memory_copy", evo_memory_copy(m->base, how == 1 ? NULL : other, memory, bytes, NULL),
                  how == 1 && bytes > 0 ? REFUSED_FOR_SURE : TAKEN);
    for (size_t i = 0; i < bytes && filled && how != 1; i++) FUZZ_CHECK(((unsigned char *)other)[i] == value);
    (void)evo_memory_free(m->base, memory);
    (void)evo_memory_free(m->base, other);
}

/* Numbers of one type as another, and back where that loses nothing; in blocks of their size. */
static void convert(struct machine *m) {
    static const evo_dtype types[] = { EVO_FP64,  EVO_FP32, EVO_BF16,     EVO_FP16,
                                       EVO_UINT8, EVO_NONE, (evo_dtype)6, (evo_dtype)-1 };
    const evo_dtype from = types[fuzz_below(&m->in, 8)], to = types[fuzz_below(&m->in, 8)];
    const size_t count = fuzz_byte(&m->in) % 24, width = evo_dtype_size(from), other = evo_dtype_size(to);
    unsigned char *source = malloc(count * width + 1), *target = malloc(count * other + 1),
                  *back = malloc(count * width + 1);
    FUZZ_CHECK(source != NULL && target != NULL && back != NULL);
    /* One byte ahead: the library asks for no alignment here. */
    for (size_t i = 0; i < count * width; i++) source[i] = fuzz_byte(&m->in);
    const enum expectation valid = width > 0 && other > 0 ? TAKEN : REFUSED_FOR_SURE;
    const unsigned allowed = BIT(EVO_ERROR_NULL_POINTER) | BIT(EVO_ERROR_INVALID_DTYPE);
    if (answer("evo_convert", evo_convert(source, from, target, to, count), allowed, valid, NULL) &&
        (to == EVO_FP64 || (to == EVO_FP32 && from != EVO_FP64))) {
        (void)answer("evo_convert", evo_convert(target, to, back, from, count), allowed, TAKEN, NULL);
        for (size_t i = 0; i < count; i++) {
            double value;
            (void)evo_convert(source + i * width, from, &value, EVO_FP64, 1);
            FUZZ_CHECK(isnan(value) || memcmp(source + i * width, back + i * width, width) == 0);
        }
    }
    free(source);
    free(target);
    free(back);
}

/* What needs no objects: lists end, and names of nothing are refused. */
static void ask(struct machine *m) {
    char name[12];
    const int index = (int)fuzz_byte(&m->in) - 128;
    evo_backend_info backend = EVO_BACKEND_INFO_INIT;
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    evo_opm_desc opm = EVO_OPM_DESC_INIT;
    evo_trimul_desc trimul = EVO_TRIMUL_DESC_INIT;
    (void)evo_backend_get(index, &backend);
    (void)evo_device_get(index, &device);
    FUZZ_CHECK(evo_status_name((evo_status)index) != NULL && evo_dtype_name((evo_dtype)index) != NULL);
    FUZZ_CHECK(evo_compute_name((evo_compute)index) != NULL && evo_build_info() != NULL && evo_version() != NULL);
    (void)evo_context_kernel(m->base, (evo_op)(index % 3), index);
    (void)evo_op_name((evo_op)index);
    for (size_t i = 0; i + 1 < sizeof name; i++) name[i] = (char)fuzz_byte(&m->in);
    name[sizeof name - 1] = '\0';
    const unsigned allowed = BIT(EVO_ERROR_INVALID_ARGUMENT);
    (void)answer("evo_opm_set_variant", evo_opm_set_variant(&opm, name), allowed, EITHER, "variant");
    (void)answer("evo_trimul_set_variant", evo_trimul_set_variant(&trimul, name), allowed, EITHER, "variant");
}

static void close_context(struct machine *m) {
    const int k = slot(m);
    evo_context_destroy(m->contexts[k]);
    m->contexts[k] = NULL;
}

static void drop_any_plan(struct machine *m) {
    drop_plan(m, slot(m));
}

static void drop_pack(struct machine *m) {
    const int k = slot(m);
    evo_pack_destroy(m->packs[k].pack);
    m->packs[k].pack = NULL;
}

static void need_nothing(struct machine *m) {
    (fuzz_byte(&m->in) % 2 == 0 ? convert : ask)(m);
}

/* What is done more often stands here more often. */
static void step(struct machine *m) {
    static void (*const steps[16])(struct machine *) = {
        open_context, close_context, drop_any_plan, drop_pack,  make_plan, make_plan, make_pack,  make_pack,
        execute,      execute,       execute,       use_stream, use_event, use_graph, use_memory, need_nothing,
    };
    steps[fuzz_byte(&m->in) % 16](m);
}

/* Whatever is left goes, in one of two orders; graphs before what they need. */
static void finish(struct machine *m) {
    const bool contexts_first = fuzz_byte(&m->in) % 2 == 0;
    for (int k = 0; k < SLOTS && contexts_first; k++) evo_context_destroy(m->contexts[k]);
    for (int k = 0; k < SLOTS; k++) {
        (void)evo_graph_destroy(m->base, m->graphs[k]);
        (void)evo_stream_destroy(m->base, m->streams[k]);
        evo_plan_destroy(m->plans[k].plan);
        evo_pack_destroy(m->packs[k].pack);
    }
    for (int k = 0; k < SLOTS; k++) (void)evo_event_destroy(m->base, m->events[k]);
    for (int k = 0; k < SLOTS && !contexts_first; k++) evo_context_destroy(m->contexts[k]);
    evo_context_destroy(m->base);
    for (int b = 0; b < m->block_count; b++) {
        free_block(m->blocks[b]);
        free(m->blocks[b]);
    }
    for (int k = 0; k < m->problem_count; k++) free_problem(&m->problems[k]);
}

void fuzz_set_up(void) {
    (void)setenv("EVO_NUM_THREADS", "1", 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct machine m; /* too large for a stack */
    memset(&m, 0, sizeof m);
    m.in = (struct fuzz_input){ data, data + size };
    if (evo_context_create("cpu", NULL, &m.base) != EVO_OK) fuzz_fail("%s", evo_last_error());
    m.problem_count = 1 + (int)fuzz_below(&m.in, MOST_PROBLEMS);
    for (int k = 0; k < m.problem_count; k++) make_problem(&m.in, &m.problems[k]);
    for (int k = 0; k < MOST_STEPS && m.in.at < m.in.end; k++) step(&m);
    finish(&m);
    return 0;
}
