/* layout.c: gives every tensor of a case its place: which buffer, from which element on, with which strides. */
#include "case/ops.h"

#include <stdlib.h>
#include <string.h>

/* Elements from the first to the last that the tensor touches, counted from the buffer's start. */
static int64_t reach(const struct case_tensor *tensor) {
    int64_t last = tensor->offset;
    for (int i = 0; i < tensor->rank && tensor->count > 0; i++) {
        last += tensor->strides[i] > 0 ? (tensor->extents[i] - 1) * tensor->strides[i] : 0;
    }
    return tensor->count > 0 ? last + 1 : last;
}

/* Row-major with the last index's rows this long, and `gap` elements between the blocks of every slower index. */
static void padded(struct case_tensor *tensor, int64_t row, int64_t gap) {
    tensor->strides[tensor->rank - 1] = 1;
    int64_t stride = row;
    for (int i = tensor->rank - 2; i >= 0; i--) {
        tensor->strides[i] = stride;
        stride = stride * (tensor->extents[i] > 1 ? tensor->extents[i] : 1) + gap;
    }
}

static void transposed(struct case_tensor *tensor) {
    int64_t stride = 1;
    for (int i = 0; i < tensor->rank; i++) {
        tensor->strides[i] = stride;
        stride *= tensor->extents[i] > 1 ? tensor->extents[i] : 1;
    }
}

/* Repeats values[:, 0, ...] along the second index, whose stride becomes zero. */
static void broadcast(struct case_tensor *tensor) {
    int64_t extents[CASE_MAX_RANK];
    memcpy(extents, tensor->extents, sizeof extents);
    extents[1] = 1;
    case_contiguous(extents, tensor->rank, tensor->strides);
    int64_t block = tensor->strides[1];
    tensor->strides[1] = 0;
    for (int64_t k = 0; k < tensor->count; k++) {
        if (k / block % tensor->extents[1] != 0) {
            tensor->values[k] = tensor->values[k - block];
        }
    }
}

static void lay_out_activation(struct case_tensor *tensor, enum case_layout layout) {
    size_t element = evo_dtype_size(tensor->dtype);
    int64_t last = tensor->extents[tensor->rank - 1];
    tensor->offset = 0;
    tensor->alignment = 0;
    case_contiguous(tensor->extents, tensor->rank, tensor->strides);
    switch (layout) {
    case CASE_CONTIGUOUS:
        break;
    case CASE_PADDED:
        padded(tensor, (last + 15) / 8 * 8, 16);
        break;
    case CASE_OFFSET:
        tensor->offset = 1;
        tensor->alignment = element;
        break;
    case CASE_TRANSPOSED:
        transposed(tensor);
        break;
    case CASE_BROADCAST:
        if (tensor->spec->role != CASE_OUTPUT && tensor->count > 0) {
            broadcast(tensor);
        }
        break;
    case CASE_NEGATIVE:
        for (int i = 0; i < tensor->rank; i++) {
            tensor->strides[i] = -tensor->strides[i];
        }
        tensor->offset = tensor->count > 0 ? tensor->count - 1 : 0;
        tensor->alignment = element;
        break;
    case CASE_SLICE:
        padded(tensor, last + 5, 0);
        tensor->offset = 3;
        tensor->alignment = element;
        break;
    }
}

/* One weight by itself. */
static void lay_out_weight(struct case_tensor *tensor, enum case_weight_layout layout) {
    bool matrix = tensor->rank == 2;
    tensor->offset = 0;
    tensor->alignment = 0;
    case_contiguous(tensor->extents, tensor->rank, tensor->strides);
    switch (layout) {
    case CASE_WEIGHT_CONTIGUOUS:
    case CASE_WEIGHT_HALVES:
        break;
    case CASE_WEIGHT_TRANSPOSED:
    case CASE_WEIGHT_HALVES_TRANSPOSED:
    case CASE_WEIGHT_INTERLEAVED:
        transposed(tensor);
        break;
    case CASE_WEIGHT_PADDED:
        tensor->offset = matrix ? 0 : 1;
        tensor->strides[0] = matrix ? tensor->extents[1] + 5 : 3;
        break;
    }
}

/* a and b in one buffer, as the layout says; true if it fuses them at all. */
static bool fuse(struct case_tensor *a, struct case_tensor *b, enum case_weight_layout layout) {
    bool matrix = a->rank == 2;
    int64_t wide = 2 * a->extents[0];
    case_contiguous(a->extents, a->rank, a->strides);
    a->offset = 0;
    b->offset = a->count;
    if (layout == CASE_WEIGHT_HALVES_TRANSPOSED && matrix) {
        a->strides[0] = 1;
        a->strides[1] = wide;
        b->offset = a->extents[0];
    } else if (layout == CASE_WEIGHT_INTERLEAVED) {
        a->strides[0] = 2;
        a->strides[1] = matrix ? wide : 0;
        b->offset = 1;
    } else if (layout != CASE_WEIGHT_HALVES && layout != CASE_WEIGHT_HALVES_TRANSPOSED) {
        return false;
    }
    memcpy(b->strides, a->strides, sizeof b->strides);
    return true;
}

/* Opens a buffer for the tensor, or widens the one that it shares. */
static void place(struct evo_case *c, struct case_tensor *tensor, int buffer) {
    int64_t need = reach(tensor);
    tensor->buffer = buffer;
    if (buffer == c->buffer_count) {
        c->buffers[c->buffer_count++] = (struct case_buffer){ tensor->dtype, need, NULL };
    } else if (c->buffers[buffer].count < need) {
        c->buffers[buffer].count = need;
    }
}

/* Whether the output is to lie over this tensor. */
static bool lies_under(const struct case_tensor *tensor, unsigned alias) {
    return (tensor->spec->role == CASE_INPUT && (alias & EVO_ALIAS_INPUT) != 0) ||
           (tensor->spec->role == CASE_RESIDUAL && (alias & EVO_ALIAS_RESIDUAL) != 0);
}

static bool same_shape(const struct case_tensor *a, const struct case_tensor *b) {
    return a->rank == b->rank && memcmp(a->extents, b->extents, (size_t)a->rank * sizeof *a->extents) == 0;
}

/* Puts the output over the input, the residual, or both, which then hold the same numbers. */
static bool alias_output(struct evo_case *c, unsigned alias, struct io_error *error) {
    struct case_tensor *out = case_output(c);
    struct case_tensor *under = NULL;
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        if (!lies_under(tensor, alias)) {
            continue;
        }
        if (!tensor->present || !same_shape(tensor, out) || tensor->dtype != out->dtype) {
            return io_fail(error, "the output cannot lie over %s: %s", tensor->spec->name,
                           tensor->present ? "another shape or type" : "it is absent");
        }
        if (under != NULL) {
            memcpy(tensor->values, under->values, (size_t)under->count * sizeof *under->values);
            tensor->buffer = under->buffer;
        }
        under = under != NULL ? under : tensor;
    }
    if (under == NULL) {
        return io_fail(error, "alias: %s has no such tensor for its output to lie over", c->op->name);
    }
    out->buffer = under->buffer;
    out->offset = under->offset;
    out->alignment = under->alignment;
    memcpy(out->strides, under->strides, sizeof out->strides);
    return true;
}

/* Gives weight `i` its place: by itself, or fused with its partner. */
static void place_weight(struct evo_case *c, int i, enum case_weight_layout layout) {
    struct case_tensor *tensor = &c->tensors[i];
    int partner = case_partner(c->op, i);
    struct case_tensor *other = partner >= 0 && c->tensors[partner].present ? &c->tensors[partner] : NULL;
    if (other != NULL && partner < i && fuse(other, tensor, layout)) {
        place(c, tensor, other->buffer);
        return;
    }
    if (other == NULL || partner < i || !fuse(tensor, other, layout)) {
        lay_out_weight(tensor, layout);
    }
    place(c, tensor, c->buffer_count);
}

bool case_lay_out(struct evo_case *c, enum case_layout layout, enum case_weight_layout weights,
                  struct io_error *error) {
    unsigned alias = *c->op->common(&c->desc).alias;
    c->buffer_count = 0;
    c->layout = layout;
    c->weight_layout = weights;
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        if (!tensor->present || (tensor->spec->role == CASE_OUTPUT && alias != EVO_ALIAS_NONE)) {
            continue;
        }
        if (tensor->spec->role == CASE_WEIGHT) {
            place_weight(c, i, weights);
        } else {
            /* Memory that repeats cannot be written to. */
            bool written = layout == CASE_BROADCAST && lies_under(tensor, alias);
            lay_out_activation(tensor, written ? CASE_CONTIGUOUS : layout);
            place(c, tensor, c->buffer_count);
        }
    }
    return alias == EVO_ALIAS_NONE || alias_output(c, alias, error);
}
