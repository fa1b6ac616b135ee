/* tensor.c: number types and the checks of tensor layouts. */
#include "src/tensor.h"

#include <stdio.h>
#include <string.h>

size_t evo_dtype_size(evo_dtype dtype) {
    switch (dtype) {
    case EVO_FP64:
        return 8;
    case EVO_FP32:
        return 4;
    case EVO_BF16:
    case EVO_FP16:
        return 2;
    case EVO_UINT8:
        return 1;
    default:
        return 0;
    }
}

const char *evo_dtype_name(evo_dtype dtype) {
    switch (dtype) {
    case EVO_NONE:
        return "none";
    case EVO_FP64:
        return "fp64";
    case EVO_FP32:
        return "fp32";
    case EVO_BF16:
        return "bf16";
    case EVO_FP16:
        return "fp16";
    case EVO_UINT8:
        return "uint8";
    default:
        return "invalid";
    }
}

const char *evo_compute_name(evo_compute compute) {
    switch (compute) {
    case EVO_COMPUTE_FP32:
        return "fp32";
    case EVO_COMPUTE_FP32_STRICT:
        return "fp32_strict";
    case EVO_COMPUTE_TF32:
        return "tf32";
    case EVO_COMPUTE_BF16:
        return "bf16";
    case EVO_COMPUTE_FP16:
        return "fp16";
    case EVO_COMPUTE_FP64:
        return "fp64";
    default:
        return "invalid";
    }
}

bool evo_operand_used(const evo_operand *operand) {
    return operand->first < operand->last;
}

static evo_status check_dtype(const char *function, const char *name, evo_dtype dtype, evo_number_kind kind,
                              bool optional) {
    const bool real = dtype == EVO_FP64 || dtype == EVO_FP32 || dtype == EVO_BF16 || dtype == EVO_FP16;
    if (real || (dtype == EVO_UINT8 && kind == EVO_NUMBER_ANY) || (dtype == EVO_NONE && optional)) return EVO_OK;
    return evo_fail(EVO_ERROR_INVALID_DTYPE, "%s: %s.dtype is %s (%d), expected fp64, fp32, bf16%s fp16%s%s", function,
                    name, evo_dtype_name(dtype), (int)dtype, kind == EVO_NUMBER_ANY || optional ? "," : " or",
                    kind == EVO_NUMBER_ANY ? (optional ? ", uint8" : " or uint8") : "", optional ? " or none" : "");
}

/*
 * The stride of an extent of 1 counts for nothing, and callers leave any value there: it becomes 0, or 1 for the last, so that
 * no kernel refuses it or takes slower loads for it.
 */
static void forget_single(evo_tensor *tensor, const evo_operand *operand) {
    for (int d = 0; d < operand->rank; d++)
        if (operand->extent[d] == 1) tensor->strides[d] = d == operand->rank - 1;
}

/* All strides zero: contiguous. An extent of 0 counts as 1, so that strides of an empty tensor stay usable. */
static bool fill_contiguous(evo_tensor *tensor, const evo_operand *operand) {
    int64_t stride = 1;
    for (int d = 0; d < operand->rank; d++)
        if (tensor->strides[d]) return true;
    for (int d = operand->rank - 1; d >= 0; d--) {
        tensor->strides[d] = stride;
        if (!evo_mul(stride, operand->extent[d] > 0 ? operand->extent[d] : 1, &stride)) return false;
    }
    return true;
}

/* Bytes from the pointer down to the lowest element and up past the highest; false if they do not fit in 63 bits. */
static bool measure(evo_operand *operand) {
    const int64_t element = (int64_t)evo_dtype_size(operand->layout.dtype);
    int64_t low = 0, high = 0;
    for (int d = 0; d < operand->rank; d++) {
        int64_t reach;
        if (operand->extent[d] == 0) {
            operand->first = operand->last = 0;
            return true;
        }
        if (!evo_mul(operand->extent[d] - 1, operand->layout.strides[d], &reach)) return false;
        if (!(reach < 0 ? evo_add(low, reach, &low) : evo_add(high, reach, &high))) return false;
    }
    return evo_mul(low, element, &operand->first) && evo_add(high, 1, &high) &&
           evo_mul(high, element, &operand->last) && operand->first > INT64_MIN / 2 && operand->last < INT64_MAX / 2;
}

static evo_status fail_span(const char *function, const evo_operand *operand, const int64_t *strides) {
    return evo_fail(EVO_ERROR_SIZE_OVERFLOW,
                    "%s: the extents of %s, %lld x %lld x %lld x %lld with strides %lld, %lld, %lld, %lld, span more "
                    "than 2^62 bytes",
                    function, operand->name, (long long)operand->extent[0], (long long)operand->extent[1],
                    (long long)operand->extent[2], (long long)(operand->rank > 3 ? operand->extent[3] : 1),
                    (long long)strides[0], (long long)strides[1], (long long)strides[2], (long long)strides[3]);
}

evo_status evo_operand_resolve(const char *function, evo_tensor *tensor, evo_operand *operand, evo_number_kind kind,
                               bool optional) {
    const evo_status status = check_dtype(function, operand->name, tensor->dtype, kind, optional);
    if (status != EVO_OK) return status;
    operand->first = operand->last = 0;
    if (tensor->dtype == EVO_NONE) {
        /* Kernels may multiply with its strides before they ask for its type. */
        *tensor = (evo_tensor){ .dtype = EVO_NONE };
        operand->layout = *tensor;
        return EVO_OK;
    }

    const size_t element = evo_dtype_size(tensor->dtype);
    if (tensor->alignment == 0) tensor->alignment = 16;
    if (tensor->alignment & (tensor->alignment - 1) || tensor->alignment < element)
        return evo_fail(EVO_ERROR_INVALID_ARGUMENT,
                        "%s: %s.alignment is %zu, expected a power of two of at least the element's %zu bytes",
                        function, operand->name, tensor->alignment, element);
    for (int d = operand->rank; d < 4; d++)
        if (tensor->strides[d])
            return evo_fail(EVO_ERROR_INVALID_LAYOUT,
                            "%s: %s.strides[%d] is %lld, expected 0 as the tensor has %d dimensions", function,
                            operand->name, d, (long long)tensor->strides[d], operand->rank);
    int64_t strides[4]; /* as they were given */
    memcpy(strides, tensor->strides, sizeof strides);
    const bool filled = fill_contiguous(tensor, operand);
    forget_single(tensor, operand);
    operand->layout = *tensor;
    return filled && measure(operand) ? EVO_OK : fail_span(function, operand, strides);
}

static int64_t magnitude(int64_t value) {
    return value < 0 ? -value : value;
}

/* Kernels plan with an empty output's other extents, so they must be those of a tensor that could be: with 1 for each 0. */
static evo_status check_empty(const char *function, const evo_operand *output) {
    evo_operand least = *output;
    memset(least.layout.strides, 0, sizeof least.layout.strides);
    for (int d = 0; d < least.rank; d++)
        if (least.extent[d] == 0) least.extent[d] = 1;
    return fill_contiguous(&least.layout, &least) && measure(&least)
               ? EVO_OK
               : fail_span(function, output, output->layout.strides);
}

evo_status evo_operand_check_output(const char *function, const evo_operand *output) {
    /* From the smallest stride up, each must step over all that the smaller ones reach. */
    bool done[4] = { false, false, false, false };
    int64_t reach = 0;
    if (!evo_operand_used(output)) return check_empty(function, output);
    for (;;) {
        int next = -1;
        for (int d = 0; d < output->rank; d++)
            if (!done[d] && output->extent[d] > 1 &&
                (next < 0 || magnitude(output->layout.strides[d]) < magnitude(output->layout.strides[next])))
                next = d;
        if (next < 0) return EVO_OK;
        done[next] = true;
        const int64_t step = magnitude(output->layout.strides[next]);
        if (step <= reach)
            return evo_fail(
                EVO_ERROR_INVALID_LAYOUT,
                "%s: %s.strides[%d] is %lld, which makes elements of the output share an address: expected a "
                "magnitude above %lld",
                function, output->name, next, (long long)output->layout.strides[next], (long long)reach);
        reach += (output->extent[next] - 1) * step;
    }
}

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return magnitude(a);
}

/* Bytes between neighbours along a dimension; 0 where it leads to no other address. */
static int64_t step_of(const evo_operand *operand, int d) {
    const int64_t element = (int64_t)evo_dtype_size(operand->layout.dtype);
    return operand->extent[d] > 1 ? magnitude(operand->layout.strides[d] * element) : 0;
}

/* The steps of at least `least` bytes are multiples of `period`, and of what is returned. */
static int64_t period_from(const evo_operand *operand, int64_t least, int64_t period) {
    for (int d = 0; d < operand->rank; d++)
        if (step_of(operand, d) >= least) period = greatest_common_divisor(period, step_of(operand, d));
    return period;
}

/* What the steps below `least` bytes reach from the pointer. */
static void window(const evo_operand *operand, uintptr_t data, int64_t least, uintptr_t *begin, uintptr_t *width) {
    int64_t low = 0, high = (int64_t)evo_dtype_size(operand->layout.dtype);
    for (int d = 0; d < operand->rank; d++) {
        const int64_t reach = step_of(operand, d) < least ? (operand->extent[d] - 1) * step_of(operand, d) : 0;
        if (operand->layout.strides[d] < 0)
            low -= reach;
        else
            high += reach;
    }
    *begin = data + (uintptr_t)low;
    *width = (uintptr_t)(high - low);
}

/*
 * True if the two lie, modulo the period of all steps of at least `least` bytes, in windows that are apart: channels of
 * interleaved rows, rows of interleaved blocks, and so on.
 */
static bool apart_from(const evo_operand *a, uintptr_t a_base, const evo_operand *b, uintptr_t b_base, int64_t least) {
    const uintptr_t period = (uintptr_t)period_from(b, least, period_from(a, least, 0));
    uintptr_t a_begin, a_width, b_begin, b_width;
    window(a, a_base, least, &a_begin, &a_width);
    window(b, b_base, least, &b_begin, &b_width);
    /* Distances from a's window to b's and back, around the circle of one period. */
    const uintptr_t forward = (b_begin % period + period - a_begin % period) % period;
    const uintptr_t backward = (period - forward) % period;
    return forward >= a_width && backward >= b_width;
}

bool evo_operands_overlap(const evo_operand *a, const void *a_data, const evo_operand *b, const void *b_data) {
    const uintptr_t a_base = (uintptr_t)a_data, b_base = (uintptr_t)b_data;
    if (!evo_operand_used(a) || !evo_operand_used(b)) return false;
    if (a_base + (uintptr_t)a->last <= b_base + (uintptr_t)b->first ||
        b_base + (uintptr_t)b->last <= a_base + (uintptr_t)a->first)
        return false;
    bool apart = false;
    for (int d = 0; d < a->rank && !apart; d++)
        apart = step_of(a, d) > 0 && apart_from(a, a_base, b, b_base, step_of(a, d));
    for (int d = 0; d < b->rank && !apart; d++)
        apart = step_of(b, d) > 0 && apart_from(a, a_base, b, b_base, step_of(b, d));
    return !apart;
}

/* A weight with its strides made explicit as an operand, to be measured. */
static evo_operand view_of(const evo_weight_spec *spec) {
    const int64_t *strides = spec->weight->strides;
    return (evo_operand){ .name = spec->name,
                          .rank = 2,
                          .extent = { spec->out, spec->in, 1, 1 },
                          .layout = { spec->weight->dtype, { strides[0], strides[1], 0, 0 }, 1 } };
}

static evo_status resolve_weight(const char *function, const evo_weight_spec *spec) {
    evo_weight *weight = spec->weight;
    char name[64];
    snprintf(name, sizeof name, "weights->%s", spec->name);
    if (!weight->data)
        return evo_fail(EVO_ERROR_NULL_POINTER, "%s: %s.data is NULL, expected %lld x %lld elements", function, name,
                        (long long)spec->out, (long long)spec->in);
    const evo_status status = check_dtype(function, name, weight->dtype, EVO_NUMBER_FLOAT, false);
    if (status != EVO_OK) return status;
    if ((uintptr_t)weight->data % evo_dtype_size(weight->dtype))
        return evo_fail(EVO_ERROR_MISALIGNED, "%s: %s.data is %p, expected a multiple of the element's %zu bytes",
                        function, name, weight->data, evo_dtype_size(weight->dtype));
    if (spec->rank == 1 && weight->strides[1])
        return evo_fail(EVO_ERROR_INVALID_LAYOUT, "%s: %s.strides[1] is %lld, expected 0 as it is a vector", function,
                        name, (long long)weight->strides[1]);
    if (!weight->strides[0] && !weight->strides[1]) {
        weight->strides[0] = spec->in;
        weight->strides[1] = spec->rank == 2;
    }
    evo_operand view = view_of(spec);
    if (!measure(&view))
        return evo_fail(EVO_ERROR_SIZE_OVERFLOW,
                        "%s: %s, %lld x %lld with strides %lld, %lld, spans more than 2^62 bytes", function, name,
                        (long long)spec->out, (long long)spec->in, (long long)weight->strides[0],
                        (long long)weight->strides[1]);
    return EVO_OK;
}

evo_status evo_weights_resolve(const char *function, const evo_weight_spec *specs, int count, unsigned biases) {
    for (int s = 0; s < count; s++) {
        const bool present = specs[s].bias == 0 || specs[s].bias & biases;
        if (!present && specs[s].weight->data)
            return evo_fail(EVO_ERROR_INVALID_ARGUMENT,
                            "%s: weights->%s.data is %p, expected NULL as the descriptor's biases (0x%x) leave it out",
                            function, specs[s].name, specs[s].weight->data, biases);
        const evo_status status = present ? resolve_weight(function, &specs[s]) : EVO_OK;
        if (status != EVO_OK) return status;
    }
    return EVO_OK;
}

evo_status evo_weights_check_apart(const char *function, const evo_weight_spec *specs, int count,
                                   const evo_operand *packed, const void *memory) {
    for (int s = 0; s < count; s++) {
        evo_operand view = view_of(&specs[s]);
        if (specs[s].weight->data && measure(&view) &&
            evo_operands_overlap(&view, specs[s].weight->data, packed, memory))
            return evo_fail(EVO_ERROR_ALIASED,
                            "%s: memory (%p) shares memory with weights->%s (%p), expected memory of its own", function,
                            memory, specs[s].name, specs[s].weight->data);
    }
    return EVO_OK;
}
