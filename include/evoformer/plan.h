/** @file
 * plan.h: what plans and packed weights of every op have in common.
 */
#ifndef EVOFORMER_PLAN_H
#define EVOFORMER_PLAN_H

#include <stddef.h>

#include "evoformer/context.h"
#include "evoformer/status.h"
#include "evoformer/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Workspace and pack memory start at a multiple of this many bytes; evo_memory_alloc, cudaMalloc, hipMalloc do so. */
#define EVO_BUFFER_ALIGNMENT 256

/** One op of one size on one device: immutable, and executable by any number of threads at once. */
typedef struct evo_plan evo_plan;

/**
 * Weights in a kernel's own layout, in the caller's memory. It serves the plans of every size with the channels, biases,
 * number types, gate input, strides and kernel (its name up to a "/") of the plan that packed it. Another size may get
 * another kernel: on GPUs small outer product means in fp32 do, and ones of no sequences. Execute refuses a pack that does not
 * fit with EVO_ERROR_PACK_MISMATCH. Pack with that plan too, or name one kernel in the descriptors of all sizes.
 */
typedef struct evo_pack evo_pack;

/** What a plan will do. */
typedef struct evo_plan_info {
    size_t size;           /**< sizeof(evo_plan_info) */
    evo_op op;             /**< what it computes */
    evo_compute compute;   /**< what it computes in: at least what the descriptor asked for */
    const char *kernel;    /**< the kernel's name, with its order if it has several: a name of evo_context_kernel */
    size_t workspace_size; /**< bytes that execute needs */
    size_t pack_size;      /**< bytes that the packed weights need */
    double flops;          /**< floating-point operations of the op's products, by the cheaper order of contraction */
    double bytes;          /**< the fewest bytes that cross memory, each tensor once a pass (docs/ops.md) */
    const char *refusals;  /**< why each better kernel refused, a line each; "" if the best one runs */
} evo_plan_info;

/** An evo_plan_info to be filled. */
#define EVO_PLAN_INFO_INIT                                                                                           \
    { sizeof(evo_plan_info), EVO_OP_OPM, EVO_COMPUTE_FP32, NULL, 0, 0, 0.0, 0.0, NULL }

/** Describes the plan; the strings live as long as it does. @returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT */
EVO_API evo_status evo_plan_get_info(const evo_plan *plan, evo_plan_info *info);

/**
 * Destroys the plan once no call uses it; work already in a stream goes on, but a graph that recorded the plan can be
 * launched no more. NULL is allowed.
 */
EVO_API void evo_plan_destroy(evo_plan *plan);

/** Destroys the handle; the memory stays the caller's. NULL is allowed. */
EVO_API void evo_pack_destroy(evo_pack *pack);

#ifdef __cplusplus
}
#endif
#endif
