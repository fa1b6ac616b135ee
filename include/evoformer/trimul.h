/** @file
 * trimul.h: the triangle multiplicative update (AlphaFold 2, supplementary algorithms 11 and 12; docs/ops.md).
 *
 *     x    = LayerNorm_in(z)                                                          [B, N, N, c_z]
 *     a    = mask * (W_ap x + b_ap) * sigmoid(W_ag x + b_ag)      b likewise          [B, N, N, c]
 *     t_ij = sum over k of a_ik * b_jk (outgoing) or a_ki * b_kj (incoming), channel by channel
 *     y    = W_o LayerNorm_out(t) + b_o                                               [B, N, N, c_out]
 *     g    = sigmoid(W_g x + b_g)   or   sigmoid(W_g z + b_g)
 *     out  = g * y   or   residual + g * y
 *
 * Some projects name a and b the other way round for incoming edges (AlphaFold 2 and 3, HelixFold, MegaFold): swap them.
 */
#ifndef EVOFORMER_TRIMUL_H
#define EVOFORMER_TRIMUL_H

#include <stddef.h>
#include <stdint.h>

#include "evoformer/plan.h"
#include "evoformer/runtime.h"
#include "evoformer/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which index is summed: t_ij = sum a_ik b_jk (outgoing) or sum a_ki b_kj (incoming). */
typedef enum evo_direction {
    EVO_OUTGOING = 0,
    EVO_INCOMING = 1
} evo_direction;

/** What the output gate reads: LayerNorm_in(z), as every published model does, or z itself. */
typedef enum evo_gate_input {
    EVO_GATE_NORMED = 0,
    EVO_GATE_RAW = 1
} evo_gate_input;

/** Biases that exist, or'ed together in the descriptor. */
enum {
    EVO_TRIMUL_BIAS_NORM_IN = 1,
    EVO_TRIMUL_BIAS_A_PROJ = 2,
    EVO_TRIMUL_BIAS_A_GATE = 4,
    EVO_TRIMUL_BIAS_B_PROJ = 8,
    EVO_TRIMUL_BIAS_B_GATE = 16,
    EVO_TRIMUL_BIAS_NORM_OUT = 32,
    EVO_TRIMUL_BIAS_OUT = 64,
    EVO_TRIMUL_BIAS_OUT_GATE = 128,
    EVO_TRIMUL_BIAS_ALL = 255
};

/**
 * All that a triangle multiplication's plan depends on. Start from EVO_TRIMUL_DESC_INIT: outgoing, "alphafold2". z, residual
 * and out may have any floating-point dtype, each its own.
 */
typedef struct evo_trimul_desc {
    size_t size;                 /**< sizeof(evo_trimul_desc) */
    int64_t batch;               /**< B; 0 is allowed: nothing is done */
    int64_t n;                   /**< N, residues; 0 is allowed: nothing is done */
    int64_t c_z;                 /**< channels of the pair representation, at least 1 */
    int64_t c;                   /**< hidden channels, at least 1 */
    int64_t c_out;               /**< channels of the output; 0: c_z */
    evo_tensor z;                /**< [B, N, N, c_z] */
    evo_tensor mask;             /**< [B, N, N], any dtype; EVO_NONE: all ones */
    evo_tensor residual;         /**< [B, N, N, c_out]; EVO_NONE: nothing is added */
    evo_tensor out;              /**< [B, N, N, c_out] */
    unsigned biases;             /**< EVO_TRIMUL_BIAS_... */
    unsigned alias;              /**< EVO_ALIAS_..., or'ed */
    evo_direction direction;     /**< which index is summed */
    evo_gate_input gate_input;   /**< what the output gate reads */
    double layer_norm_eps;       /**< of both LayerNorms, at least 0; 1e-5 in every published model */
    double mask_max;             /**< largest mask value to expect, without a mask unused: fp16 and tf32 stay finite up
                                      to 2^10 times it, and masks below 2^-7 of it (on MI200 2^-4) lose digits */
    evo_compute compute;         /**< the least accuracy */
    evo_propagation propagation; /**< EVO_INFERENCE */
    size_t workspace_limit; /**< bytes; the plan takes a form that fits, or fails and says the least; 0: no limit */
    const char *kernel;     /**< forces a kernel by name; NULL: EVO_KERNEL, else the best that takes the descriptor */
} evo_trimul_desc;

/** An evo_trimul_desc of fp32 tensors with no mask and no residual, outgoing, variant "alphafold2"; sizes 0 but for one batch. */
#define EVO_TRIMUL_DESC_INIT                                                                                         \
    {                                                                                                                \
        sizeof(evo_trimul_desc), 1, 0, 0, 0, 0, EVO_TENSOR_INIT(EVO_FP32), EVO_TENSOR_INIT(EVO_NONE),                \
            EVO_TENSOR_INIT(EVO_NONE), EVO_TENSOR_INIT(EVO_FP32), EVO_TRIMUL_BIAS_ALL, EVO_ALIAS_NONE, EVO_OUTGOING, \
            EVO_GATE_NORMED, 1e-5, 1.0, EVO_COMPUTE_FP32, EVO_INFERENCE, 0, NULL                                     \
    }

/**
 * Sets what a published model fixes (biases, gate_input) and leaves the rest, the direction among it.
 * Names: "alphafold2", "helixfold" (all biases), "alphafold3", "boltz" (only those of the LayerNorms), "megafold" (all but
 * the output projection's), "mean" (all, and the gate reads z).
 * @returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (the text lists the names)
 */
EVO_API evo_status evo_trimul_set_variant(evo_trimul_desc *desc, const char *variant);

/** The name of variant number `index`; NULL past the last one. */
EVO_API const char *evo_trimul_variant(int index);

/** Plans a triangle multiplication; all that evo_opm_plan_create says holds. */
EVO_API evo_status evo_trimul_plan_create(evo_context *context, const evo_trimul_desc *desc, evo_plan **plan);

/** Weights as views, (out, in) by name; a bias that the descriptor lacks stays EVO_WEIGHT_INIT. */
typedef struct evo_trimul_weights {
    size_t size;                /**< sizeof(evo_trimul_weights) */
    evo_weight norm_in_weight;  /**< [c_z] */
    evo_weight norm_in_bias;    /**< [c_z] */
    evo_weight a_proj_weight;   /**< [c, c_z] */
    evo_weight a_proj_bias;     /**< [c] */
    evo_weight a_gate_weight;   /**< [c, c_z] */
    evo_weight a_gate_bias;     /**< [c] */
    evo_weight b_proj_weight;   /**< [c, c_z] */
    evo_weight b_proj_bias;     /**< [c] */
    evo_weight b_gate_weight;   /**< [c, c_z] */
    evo_weight b_gate_bias;     /**< [c] */
    evo_weight norm_out_weight; /**< [c] */
    evo_weight norm_out_bias;   /**< [c] */
    evo_weight out_weight;      /**< [c_out, c] */
    evo_weight out_bias;        /**< [c_out] */
    evo_weight out_gate_weight; /**< [c_out, c_z] */
    evo_weight out_gate_bias;   /**< [c_out] */
} evo_trimul_weights;

/** An evo_trimul_weights of no weights. */
#define EVO_TRIMUL_WEIGHTS_INIT                                                                                      \
    {                                                                                                                \
        sizeof(evo_trimul_weights), EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT,              \
            EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT,    \
            EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT, EVO_WEIGHT_INIT     \
    }

/** Packs the weights into `memory`; all that evo_opm_pack_weights says holds. */
EVO_API evo_status evo_trimul_pack_weights(const evo_plan *plan, const evo_trimul_weights *weights, void *memory,
                                           size_t memory_size, evo_stream stream, evo_pack **pack);

/** The tensors of one execution: memory of the context's device, laid out as the descriptor says. */
typedef struct evo_trimul_args {
    size_t size;          /**< sizeof(evo_trimul_args) */
    const void *z;        /**< [B, N, N, c_z]; NULL is allowed where there are no elements, as for all of these */
    const void *mask;     /**< NULL if the descriptor has none */
    const void *residual; /**< NULL if the descriptor has none; may equal z */
    void *out;            /**< [B, N, N, c_out] */
} evo_trimul_args;

/** An evo_trimul_args of no tensors. */
#define EVO_TRIMUL_ARGS_INIT { sizeof(evo_trimul_args), NULL, NULL, NULL, NULL }

/** Computes one triangle multiplication in stream order; all that evo_opm_execute says holds. */
EVO_API evo_status evo_trimul_execute(const evo_plan *plan, const evo_pack *pack, const evo_trimul_args *args,
                                      void *workspace, size_t workspace_size, evo_stream stream);

#ifdef __cplusplus
}
#endif
#endif
