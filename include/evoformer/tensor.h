/** @file
 * tensor.h: number types, tensor and weight layouts, and the choices that all ops share.
 */
#ifndef EVOFORMER_TENSOR_H
#define EVOFORMER_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "evoformer/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Number type of a tensor as stored. EVO_NONE says that an optional tensor is absent. */
typedef enum evo_dtype {
    EVO_NONE = 0,
    EVO_FP64 = 1,
    EVO_FP32 = 2,
    EVO_BF16 = 3, /**< the upper half of an fp32: 8 exponent bits, 7 of fraction */
    EVO_FP16 = 4, /**< IEEE half precision */
    EVO_UINT8 = 5 /**< masks only; the value counts as a number (0 and 1 as a rule) */
} evo_dtype;

/**
 * The least accuracy of the arithmetic: a kernel may compute better, never worse (docs/numerics.md has the bounds).
 * Sums, LayerNorm statistics and counts are fp32 or better in every mode.
 */
typedef enum evo_compute {
    EVO_COMPUTE_FP32 = 0,        /**< fp32 products, or 16-bit splits of the same accuracy */
    EVO_COMPUTE_FP32_STRICT = 1, /**< IEEE fp32 products only */
    EVO_COMPUTE_TF32 = 2,        /**< tf32 products or better */
    EVO_COMPUTE_BF16 = 3,        /**< bf16 products or better */
    EVO_COMPUTE_FP16 = 4,        /**< fp16 products or better, finite wherever fp32 is */
    EVO_COMPUTE_FP64 = 5         /**< fp64 products and sums: the truth that all others are checked against */
} evo_compute;

/** Which tensors the output may share memory with, or'ed together; else any overlap is refused at execute. */
typedef enum evo_alias {
    EVO_ALIAS_NONE = 0,
    EVO_ALIAS_INPUT = 1,   /**< out may be the input itself: same pointer, dtype and strides */
    EVO_ALIAS_RESIDUAL = 2 /**< out may be the residual itself: same pointer, dtype and strides */
} evo_alias;

/** What a plan is for. Inference is the only value now; backward passes will add theirs. */
typedef enum evo_propagation {
    EVO_INFERENCE = 0
} evo_propagation;

/**
 * How one activation lies in memory. Extents come from the op's sizes; the pointer is given at execute.
 * Strides are in elements, one an index from the slowest on (unused ones stay 0), and may be zero (an input that
 * is repeated along that index) or negative; all zero means contiguous.
 */
typedef struct evo_tensor {
    evo_dtype dtype;    /**< EVO_NONE: there is no such tensor */
    int64_t strides[4]; /**< in elements, of the slowest index first; all 0: contiguous */
    size_t alignment;   /**< bytes, a power of two that every pointer given at execute will keep; 0: 16 bytes */
} evo_tensor;

/** A contiguous, 16-byte aligned tensor of the type; EVO_TENSOR_INIT(EVO_NONE) is an absent one. */
#define EVO_TENSOR_INIT(dtype) { (dtype), { 0, 0, 0, 0 }, 0 }

/**
 * A weight as the caller has it: a view, so that every published layout is taken without a copy. Element
 * [out, in] of a matrix is at data[out * strides[0] + in * strides[1]]; element [i] of a vector (a bias, a
 * LayerNorm weight) at data[i * strides[0]]. All strides zero means contiguous: (in, 1), or 1 for a vector.
 * A matrix stored (in, out) is strides (1, out); a fused half is an offset of data; interleaved rows double a stride.
 */
typedef struct evo_weight {
    const void *data;   /**< memory of the context's device; NULL where the op has no such weight */
    evo_dtype dtype;    /**< EVO_FP64, EVO_FP32, EVO_BF16 or EVO_FP16, whatever the activations have */
    int64_t strides[2]; /**< in elements; all 0: contiguous */
} evo_weight;

/** No weight. */
#define EVO_WEIGHT_INIT { NULL, EVO_NONE, { 0, 0 } }

/** Bytes of one element; 0 for EVO_NONE and values that are no dtype. */
EVO_API size_t evo_dtype_size(evo_dtype dtype);

/** "fp32", "bf16", ...; "none" for EVO_NONE, "invalid" for values that are no dtype. */
EVO_API const char *evo_dtype_name(evo_dtype dtype);

/** "fp32", "fp32_strict", "tf32", ...; "invalid" for values that are no compute mode. */
EVO_API const char *evo_compute_name(evo_compute compute);

/**
 * Converts `count` contiguous host elements, rounding to nearest even (to EVO_UINT8: truncated and saturated, NaN to 0).
 * For programs that have no 16-bit floating-point type of their own. The two buffers must not overlap.
 * @returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_DTYPE
 */
EVO_API evo_status evo_convert(const void *source, evo_dtype source_dtype, void *target, evo_dtype target_dtype,
                               size_t count);

#ifdef __cplusplus
}
#endif
#endif
