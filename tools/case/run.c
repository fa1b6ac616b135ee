/*
 * run.c: computes a case on a device. Each buffer stands between two guards; guards, gaps between strides, outputs and
 * workspace hold the byte 0xff, which makes a NaN of every type, so that what is read by mistake shows in the result
 * and what is written by mistake shows in the bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case/ops.h"

enum {
    GUARD = EVO_BUFFER_ALIGNMENT,
    POISON = 0xff
};

/* One piece of device memory and what it should hold. */
struct block {
    unsigned char *device; /* start of the first guard */
    unsigned char *image;  /* all bytes as uploaded, guards too */
    unsigned char *after;  /* all bytes as found after execution */
    size_t size;           /* without the guards */
};

struct run {
    evo_context *context;
    const struct evo_case *c;
    struct case_outcome *outcome;
    evo_stream stream;
    evo_event start, stop;
    evo_plan *plan;
    evo_pack *pack;
    struct block buffers[CASE_MAX_TENSORS];
    struct block workspace, packed;
    unsigned char *result; /* the output's elements in row-major order, as the first execution left them */
};

static bool complain(struct run *run, const char *what, const char *why) {
    run->outcome->result = CASE_FAILED;
    (void)snprintf(run->outcome->message, sizeof run->outcome->message, "%s: %s", what, why);
    return false;
}

/* Records a status that is not EVO_OK. */
static bool attempt(struct run *run, evo_status status, const char *call) {
    if (status == EVO_OK) {
        return true;
    }
    run->outcome->status = status;
    run->outcome->result =
        status == EVO_ERROR_UNSUPPORTED || status == EVO_ERROR_WORKSPACE_LIMIT ? CASE_REFUSED : CASE_FAILED;
    (void)snprintf(run->outcome->message, sizeof run->outcome->message, "%s: %s: %s", call, evo_status_name(status),
                   evo_last_error());
    for (char *p = run->outcome->message; *p != '\0'; p++) {
        *p = *p == '\n' ? ';' : *p;
    }
    return false;
}

/* ---- the bytes ---- */

/* Elements of `width` bytes to others, each so many elements apart. */
static void copy_row(unsigned char *to, int64_t to_step, const unsigned char *from, int64_t from_step, int64_t count,
                     size_t width) {
    if (to_step == 1 && from_step == 1) {
        memcpy(to, from, (size_t)count * width);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        memcpy(to + i * to_step * (int64_t)width, from + i * from_step * (int64_t)width, width);
    }
}

/* Numbers of a tensor in its last dimension, and the elements from one to the next. */
static int64_t row_length(const struct case_tensor *tensor) {
    return tensor->extents[tensor->rank - 1];
}
static int64_t row_step(const struct case_tensor *tensor) {
    return tensor->strides[tensor->rank - 1];
}

/* Writes the tensor's elements to where they lie in its buffer's image. */
static bool scatter(struct run *run, const struct case_tensor *tensor) {
    size_t width = evo_dtype_size(tensor->dtype);
    unsigned char *target = run->buffers[tensor->buffer].image + GUARD;
    unsigned char *elements = malloc((size_t)tensor->count * width + 1);
    if (elements == NULL) {
        return complain(run, tensor->spec->name, "out of memory");
    }
    (void)evo_convert(tensor->values, EVO_FP64, elements, tensor->dtype, (size_t)tensor->count);
    for (int64_t i = 0; i < tensor->count; i += row_length(tensor)) {
        copy_row(target + (size_t)case_element(tensor, i) * width, row_step(tensor), elements + (size_t)i * width, 1,
                 row_length(tensor), width);
    }
    free(elements);
    return true;
}

/* Host and device memory for one block, all poison. */
static bool make_block(struct run *run, struct block *block, int64_t count, size_t width, bool image) {
    int64_t bytes;
    void *device = NULL;
    if (!io_multiply(count, (int64_t)width, &bytes) || bytes > INT64_MAX / 2) {
        return complain(run, "a buffer", "its size overflows");
    }
    block->size = (size_t)bytes;
    size_t all = block->size + 2 * GUARD;
    if (image) {
        block->image = malloc(all);
        block->after = malloc(all);
        if (block->image == NULL || block->after == NULL) {
            return complain(run, "a buffer", "out of host memory");
        }
        memset(block->image, POISON, all);
    }
    if (!attempt(run, evo_memory_alloc(run->context, all, &device), "evo_memory_alloc")) {
        return false;
    }
    block->device = device;
    return attempt(run, evo_memory_fill(run->context, device, POISON, all, run->stream), "evo_memory_fill");
}

static bool make_buffers(struct run *run) {
    const struct evo_case *c = run->c;
    for (int i = 0; i < c->buffer_count; i++) {
        const struct case_buffer *buffer = &c->buffers[i];
        struct block *block = &run->buffers[i];
        if (!make_block(run, block, buffer->count, evo_dtype_size(buffer->dtype), true)) {
            return false;
        }
        if (buffer->values != NULL) {
            (void)evo_convert(buffer->values, EVO_FP64, block->image + GUARD, buffer->dtype, (size_t)buffer->count);
        }
    }
    for (int i = 0; i < c->op->spec_count; i++) {
        const struct case_tensor *tensor = &c->tensors[i];
        if (tensor->present && tensor->values != NULL && !scatter(run, tensor)) {
            return false;
        }
    }
    return true;
}

static bool upload(struct run *run) {
    for (int i = 0; i < run->c->buffer_count; i++) {
        const struct block *block = &run->buffers[i];
        if (!attempt(run,
                     evo_memory_copy(run->context, block->device, block->image, block->size + 2 * GUARD, run->stream),
                     "evo_memory_copy to the device")) {
            return false;
        }
    }
    return true;
}

static bool download(struct run *run) {
    for (int i = 0; i < run->c->buffer_count; i++) {
        const struct block *block = &run->buffers[i];
        if (!attempt(run,
                     evo_memory_copy(run->context, block->after, block->device, block->size + 2 * GUARD, run->stream),
                     "evo_memory_copy from the device")) {
            return false;
        }
    }
    return attempt(run, evo_stream_synchronize(run->context, run->stream), "evo_stream_synchronize");
}

/* ---- plan, pack, execute ---- */

void case_descriptor(const struct evo_case *c, union case_desc *desc) {
    *desc = c->desc;
    for (int i = 0; i < c->op->spec_count; i++) {
        const struct case_tensor *tensor = &c->tensors[i];
        if (tensor->spec->role == CASE_WEIGHT) {
            continue;
        }
        evo_tensor *layout = case_at(desc, tensor->spec->layout);
        *layout = (evo_tensor)EVO_TENSOR_INIT(EVO_NONE);
        if (!tensor->present) {
            continue;
        }
        layout->dtype = tensor->dtype;
        layout->alignment = tensor->alignment;
        int64_t plain[CASE_MAX_RANK];
        case_contiguous(tensor->extents, tensor->rank, plain);
        /* What needs no strides is described without; a promise of less alignment keeps them, so that both forms run. */
        if (tensor->alignment != 0 || memcmp(plain, tensor->strides, (size_t)tensor->rank * sizeof *plain) != 0) {
            memcpy(layout->strides, tensor->strides, (size_t)tensor->rank * sizeof *plain);
        }
    }
}

static unsigned char *element(const struct run *run, const struct case_tensor *tensor) {
    return run->buffers[tensor->buffer].device + GUARD + (size_t)tensor->offset * evo_dtype_size(tensor->dtype);
}

static void fill_weights(const struct run *run, union case_weights *weights) {
    run->c->op->init_weights(weights);
    for (int i = 0; i < run->c->op->spec_count; i++) {
        const struct case_tensor *tensor = &run->c->tensors[i];
        if (tensor->spec->role == CASE_WEIGHT && tensor->present) {
            evo_weight *weight = case_at(weights, tensor->spec->slot);
            weight->data = element(run, tensor);
            weight->dtype = tensor->dtype;
            memcpy(weight->strides, tensor->strides, sizeof weight->strides);
        }
    }
}

static void fill_args(const struct run *run, union case_args *args) {
    run->c->op->init_args(args);
    for (int i = 0; i < run->c->op->spec_count; i++) {
        const struct case_tensor *tensor = &run->c->tensors[i];
        if (tensor->spec->role != CASE_WEIGHT && tensor->present) {
            const void *pointer = element(run, tensor);
            memcpy(case_at(args, tensor->spec->slot), &pointer, sizeof pointer);
        }
    }
}

static bool plan_and_pack(struct run *run) {
    const struct case_op *op = run->c->op;
    union case_desc desc;
    union case_weights weights;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    case_descriptor(run->c, &desc);
    if (!attempt(run, op->plan_create(run->context, &desc, &run->plan), "plan_create") ||
        !attempt(run, evo_plan_get_info(run->plan, &info), "evo_plan_get_info")) {
        return false;
    }
    (void)snprintf(run->outcome->kernel, sizeof run->outcome->kernel, "%s", info.kernel);
    run->outcome->compute = info.compute;
    run->outcome->workspace_size = info.workspace_size;
    if (!make_block(run, &run->workspace, (int64_t)info.workspace_size, 1, false) ||
        !make_block(run, &run->packed, (int64_t)info.pack_size, 1, false) || !make_buffers(run) || !upload(run)) {
        return false;
    }
    fill_weights(run, &weights);
    return attempt(run,
                   op->pack(run->plan, &weights, run->packed.device + GUARD, run->packed.size, run->stream, &run->pack),
                   "pack_weights");
}

static bool execute(struct run *run) {
    union case_args args;
    fill_args(run, &args);
    unsigned char *workspace = run->workspace.device + GUARD;
    return attempt(run, evo_memory_fill(run->context, workspace, POISON, run->workspace.size, run->stream),
                   "evo_memory_fill") &&
           attempt(run, evo_event_record(run->context, run->start, run->stream), "evo_event_record") &&
           attempt(run, run->c->op->execute(run->plan, run->pack, &args, workspace, run->workspace.size, run->stream),
                   "execute") &&
           attempt(run, evo_event_record(run->context, run->stop, run->stream), "evo_event_record") && download(run) &&
           attempt(run, evo_event_elapsed(run->context, run->start, run->stop, &run->outcome->milliseconds),
                   "evo_event_elapsed");
}

/* ---- checks ---- */

static bool guards_hold(struct run *run, const struct block *block, const char *what) {
    unsigned char guards[2 * GUARD];
    if (!attempt(run, evo_memory_copy(run->context, guards, block->device, GUARD, run->stream), "evo_memory_copy") ||
        !attempt(run,
                 evo_memory_copy(run->context, guards + GUARD, block->device + GUARD + block->size, GUARD, run->stream),
                 "evo_memory_copy") ||
        !attempt(run, evo_stream_synchronize(run->context, run->stream), "evo_stream_synchronize")) {
        return false;
    }
    for (size_t i = 0; i < sizeof guards; i++) {
        if (guards[i] != POISON) {
            return complain(run, what,
                            i < GUARD ? "bytes before its start were written" : "bytes after its end were written");
        }
    }
    return true;
}

/* Takes the output's elements out of what came back, and puts in their place what stood there before. */
static void take_output(struct run *run, unsigned char *elements) {
    const struct case_tensor *out = case_result_of(run->c);
    const struct block *block = &run->buffers[out->buffer];
    size_t width = evo_dtype_size(out->dtype);
    for (int64_t i = 0; i < out->count; i += row_length(out)) {
        size_t at = GUARD + (size_t)case_element(out, i) * width;
        copy_row(elements + (size_t)i * width, 1, block->after + at, row_step(out), row_length(out), width);
        copy_row(block->after + at, row_step(out), block->image + at, row_step(out), row_length(out), width);
    }
}

/* The poison is a NaN that no arithmetic gives; a device and its reference that both write nothing would agree on it. */
static bool all_written(struct run *run, const unsigned char *elements) {
    const struct case_tensor *out = case_result_of(run->c);
    size_t width = evo_dtype_size(out->dtype);
    for (int64_t i = 0; i < out->count; i++) {
        size_t poison = 0;
        while (poison < width && elements[(size_t)i * width + poison] == POISON) {
            poison++;
        }
        if (poison == width) {
            return complain(run, "out", "an element was not written");
        }
    }
    return true;
}

/* All bytes but the output's elements must be what they were. */
static bool nothing_else_changed(struct run *run) {
    const struct evo_case *c = run->c;
    for (int i = 0; i < c->op->spec_count; i++) {
        const struct case_tensor *tensor = &c->tensors[i];
        const struct block *block = &run->buffers[tensor->buffer];
        if (tensor->present && memcmp(block->image, block->after, block->size + 2 * GUARD) != 0) {
            return complain(run, tensor->spec->name,
                            tensor->spec->role == CASE_OUTPUT || tensor->buffer == case_result_of(c)->buffer
                                ? "bytes outside the output's elements were written"
                                : "execution changed it, or bytes around it");
        }
    }
    return guards_hold(run, &run->workspace, "the workspace") && guards_hold(run, &run->packed, "the packed weights");
}

static bool run_all(struct run *run) {
    const struct case_tensor *out = case_result_of(run->c);
    size_t bytes = (size_t)out->count * evo_dtype_size(out->dtype);
    unsigned char *again = malloc(bytes + 1);
    run->result = malloc(bytes + 1);
    bool good = (again != NULL && run->result != NULL) || complain(run, "out", "out of memory");
    for (int i = 0; i < run->c->runs && good; i++) {
        good = (i == 0 || upload(run)) && execute(run);
        if (good) {
            take_output(run, i == 0 ? run->result : again);
            good = all_written(run, i == 0 ? run->result : again) && nothing_else_changed(run) &&
                   (i == 0 || memcmp(run->result, again, bytes) == 0 ||
                    complain(run, "out", "another execution of the same plan gave other bits"));
        }
    }
    free(again);
    return good;
}

static bool start(struct run *run) {
    return attempt(run, evo_stream_create(run->context, &run->stream), "evo_stream_create") &&
           attempt(run, evo_event_create(run->context, &run->start), "evo_event_create") &&
           attempt(run, evo_event_create(run->context, &run->stop), "evo_event_create");
}

static void free_block(struct run *run, struct block *block) {
    (void)evo_memory_free(run->context, block->device);
    free(block->image);
    free(block->after);
}

static void finish(struct run *run) {
    /* Work of a failed run may still read what is freed below. */
    (void)evo_stream_synchronize(run->context, run->stream);
    evo_pack_destroy(run->pack);
    evo_plan_destroy(run->plan);
    for (int i = 0; i < run->c->buffer_count; i++) {
        free_block(run, &run->buffers[i]);
    }
    free_block(run, &run->workspace);
    free_block(run, &run->packed);
    if (run->start != NULL) {
        (void)evo_event_destroy(run->context, run->start);
    }
    if (run->stop != NULL) {
        (void)evo_event_destroy(run->context, run->stop);
    }
    (void)evo_stream_destroy(run->context, run->stream);
    free(run->result);
}

bool case_run(evo_context *context, const struct evo_case *c, double *out, struct case_outcome *outcome) {
    struct run run = { .context = context, .c = c, .outcome = outcome };
    memset(outcome, 0, sizeof *outcome);
    bool good = start(&run) && plan_and_pack(&run) && run_all(&run);
    if (good && out != NULL) {
        const struct case_tensor *result = case_result_of(c);
        (void)evo_convert(run.result, result->dtype, out, EVO_FP64, (size_t)result->count);
    }
    finish(&run);
    return good;
}
