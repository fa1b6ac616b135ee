/** @file
 * opm.h: the outer product mean of an MSA (AlphaFold 2, supplementary algorithm 10; docs/ops.md has every variant).
 *
 *     x    = LayerNorm(m)                                                             [B, S, N, c_m]
 *     a    = mask * (W_a x + b_a)          b = mask * (W_b x + b_b)                   [B, S, N, c]
 *     o_ij = sum over s of a_si (outer product) b_sj, index c_a * c + c_b             [B, N, N, c * c]
 *     n_ij = max(count_ij + count_eps, count_min), count_ij = sum over s of mask_si * mask_sj (S without a mask)
 *     z_ij = W_o (o_ij / n_ij) + b_o   or   (W_o o_ij + b_o) / n_ij                   [B, N, N, c_z]
 *     out  = z   or   residual + z
 */
#ifndef EVOFORMER_OPM_H
#define EVOFORMER_OPM_H

#include <stddef.h>
#include <stdint.h>

#include "evoformer/plan.h"
#include "evoformer/runtime.h"
#include "evoformer/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Where the mean's division stands; the two differ only in whether b_o is divided too. */
typedef enum evo_divide {
    EVO_DIVIDE_BEFORE = 0,
    EVO_DIVIDE_AFTER = 1
} evo_divide;

/** Which sides the mask multiplies. The count takes both sides' mask either way. */
typedef enum evo_mask_sides {
    EVO_MASK_BOTH = 0,
    EVO_MASK_A_ONLY = 1
} evo_mask_sides;

/** Biases that exist, or'ed together in the descriptor. */
enum {
    EVO_OPM_BIAS_NORM = 1,
    EVO_OPM_BIAS_A = 2,
    EVO_OPM_BIAS_B = 4,
    EVO_OPM_BIAS_OUT = 8,
    EVO_OPM_BIAS_ALL = 15
};

/**
 * All that an outer product mean's plan depends on. Start from EVO_OPM_DESC_INIT, which is variant "mean". m, residual and out
 * may have any floating-point dtype, each its own.
 */
typedef struct evo_opm_desc {
    size_t size;                 /**< sizeof(evo_opm_desc) */
    int64_t batch;               /**< B; 0 is allowed: nothing is done */
    int64_t s;                   /**< S, sequences; 0 is allowed: the sum is empty, the count 0 */
    int64_t n;                   /**< N, residues; 0 is allowed: nothing is done */
    int64_t c_m;                 /**< channels of the MSA, at least 1 */
    int64_t c;                   /**< hidden channels of a and b, at least 1 */
    int64_t c_z;                 /**< channels of the pair representation, at least 1 */
    evo_tensor m;                /**< [B, S, N, c_m] */
    evo_tensor mask;             /**< [B, S, N], any dtype; EVO_NONE: all ones */
    evo_tensor residual;         /**< [B, N, N, c_z]; EVO_NONE: nothing is added */
    evo_tensor out;              /**< [B, N, N, c_z] */
    unsigned biases;             /**< EVO_OPM_BIAS_... */
    unsigned alias;              /**< EVO_ALIAS_NONE or EVO_ALIAS_RESIDUAL */
    evo_divide divide;           /**< before or after W_o */
    evo_mask_sides mask_sides;   /**< which of a and b are masked */
    double count_eps;            /**< at least 0 */
    double count_min;            /**< at least 0 */
    double layer_norm_eps;       /**< at least 0; 1e-5 in every published model */
    double mask_max;             /**< largest mask value to expect, without a mask unused: fp16 and tf32 stay finite up
                                      to 2^10 times it, and masks below 2^-7 of it (on MI200 2^-4) lose digits */
    evo_compute compute;         /**< the least accuracy */
    evo_propagation propagation; /**< EVO_INFERENCE */
    size_t workspace_limit; /**< bytes; the plan takes a form that fits, or fails and says the least; 0: no limit */
    const char *kernel;     /**< forces a kernel by name; NULL: EVO_KERNEL, else the best that takes the descriptor */
} evo_opm_desc;

/** An evo_opm_desc of fp32 tensors with no mask and no residual, variant "mean"; sizes 0 but for one batch. */
#define EVO_OPM_DESC_INIT                                                                                            \
    {                                                                                                                \
        sizeof(evo_opm_desc), 1, 0, 0, 0, 0, 0, EVO_TENSOR_INIT(EVO_FP32), EVO_TENSOR_INIT(EVO_NONE),                \
            EVO_TENSOR_INIT(EVO_NONE), EVO_TENSOR_INIT(EVO_FP32), EVO_OPM_BIAS_ALL, EVO_ALIAS_NONE,                  \
            EVO_DIVIDE_BEFORE, EVO_MASK_BOTH, 0.0, 1.0, 1e-5, 1.0, EVO_COMPUTE_FP32, EVO_INFERENCE, 0, NULL          \
    }

/**
 * Sets what a published model fixes (biases, divide, mask_sides, count_eps, count_min) and leaves the rest.
 * Names: "alphafold2" (OpenFold, FastFold), "alphafold3" (OpenFold-3, Protenix), "boltz", "helixfold", "megafold", "mean".
 * @returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (the text lists the names)
 */
EVO_API evo_status evo_opm_set_variant(evo_opm_desc *desc, const char *variant);

/** The name of variant number `index`; NULL past the last one. */
EVO_API const char *evo_opm_variant(int index);

/**
 * Plans an outer product mean. Thread-safe. The first plan of a kind may load kernels and take long.
 * @returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT, EVO_ERROR_INVALID_SHAPE, EVO_ERROR_INVALID_DTYPE,
 *          EVO_ERROR_INVALID_LAYOUT, EVO_ERROR_SIZE_OVERFLOW, EVO_ERROR_WORKSPACE_LIMIT, EVO_ERROR_UNSUPPORTED,
 *          EVO_ERROR_OUT_OF_MEMORY, EVO_ERROR_DEVICE
 */
EVO_API evo_status evo_opm_plan_create(evo_context *context, const evo_opm_desc *desc, evo_plan **plan);

/** Weights as views, (out, in) by name; a bias that the descriptor lacks stays EVO_WEIGHT_INIT. */
typedef struct evo_opm_weights {
    size_t size;            /**< sizeof(evo_opm_weights) */
    evo_weight norm_weight; /**< [c_m] */
    evo_weight norm_bias;   /**< [c_m] */
    evo_weight a_weight;    /**< [c, c_m] */
    evo_weight a_bias;      /**< [c] */
    evo_weight b_weight;    /**< [c, c_m] */
    evo_weight b_bias;      /**< [c] */
    evo_weight out_weight;  /**< [c_z, c * c], of c * c index c_a * c + c_b */
    evo_weight out_bias;    /**< [c_z] */
} evo_opm_weights;

/** An evo_opm_weights of no weights. */
#define EVO_OPM_WEIGHTS_INIT                                                                                         \
    {                                                                                                                \
        sizeof(evo_opm_weights), EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT,                 \
            EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT                                       \
    }

/**
 * Packs the weights into `memory` (the plan's pack_size bytes at EVO_BUFFER_ALIGNMENT) in stream order. `memory` and the
 * views must live until that is done; after it only `memory` must.
 * @returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (a bias the descriptor lacks), EVO_ERROR_INVALID_DTYPE,
 *          EVO_ERROR_INVALID_LAYOUT, EVO_ERROR_SIZE_OVERFLOW, EVO_ERROR_BUFFER_TOO_SMALL, EVO_ERROR_MISALIGNED,
 *          EVO_ERROR_ALIASED (memory lies over a weight), EVO_ERROR_OUT_OF_MEMORY, EVO_ERROR_DEVICE
 */
EVO_API evo_status evo_opm_pack_weights(const evo_plan *plan, const evo_opm_weights *weights, void *memory,
                                        size_t memory_size, evo_stream stream, evo_pack **pack);

/** The tensors of one execution: memory of the context's device, laid out as the descriptor says. */
typedef struct evo_opm_args {
    size_t size;          /**< sizeof(evo_opm_args) */
    const void *m;        /**< [B, S, N, c_m]; NULL is allowed where there are no elements, as for all of these */
    const void *mask;     /**< NULL if the descriptor has none */
    const void *residual; /**< NULL if the descriptor has none */
    void *out;            /**< [B, N, N, c_z] */
} evo_opm_args;

/** An evo_opm_args of no tensors. */
#define EVO_OPM_ARGS_INIT { sizeof(evo_opm_args), NULL, NULL, NULL, NULL }

/**
 * Computes one outer product mean in stream order. Allocates nothing and waits for nothing (while a stream records a
 * graph, the record itself is allocated); thread-safe with a workspace (EVO_BUFFER_ALIGNMENT) and stream a thread. The
 * workspace's contents mean nothing before and after. A call that is refused writes nothing.
 * @returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (another op's plan, a tensor that the descriptor lacks),
 *          EVO_ERROR_MISALIGNED, EVO_ERROR_ALIASED, EVO_ERROR_BUFFER_TOO_SMALL, EVO_ERROR_PACK_MISMATCH, EVO_ERROR_CAPTURE
 *          (as with verbosity 2), EVO_ERROR_OUT_OF_MEMORY (recording on the CPU), EVO_ERROR_DEVICE
 */
EVO_API evo_status evo_opm_execute(const evo_plan *plan, const evo_pack *pack, const evo_opm_args *args,
                                   void *workspace, size_t workspace_size, evo_stream stream);

#ifdef __cplusplus
}
#endif
#endif
