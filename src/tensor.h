/* tensor.h: checks that every op makes on its tensors and weights: types, strides, spans, alignment, overlap. */
#ifndef EVO_SRC_TENSOR_H
#define EVO_SRC_TENSOR_H

#include <stdbool.h>

#include "src/status.h"
#include "evoformer/tensor.h"

#define EVO_OPERANDS 4 /* the most activations that one op has, its output being the last */

/** Number types that a tensor may have. */
typedef enum evo_number_kind {
    EVO_NUMBER_FLOAT,
    EVO_NUMBER_ANY
} evo_number_kind;

/** One activation of an op, as the front end keeps it in the plan. */
typedef struct evo_operand {
    const char *name; /**< "m", "mask", ... */
    int rank;
    int64_t extent[4];
    evo_tensor layout;   /**< resolved: no stride means contiguous any more, no alignment 0 */
    int64_t first, last; /**< bytes from the pointer to the lowest and past the highest element; equal if empty */
    unsigned alias;      /**< the EVO_ALIAS_... bit that names this operand, 0 if there is none */
} evo_operand;

/** True if the tensor is there and has elements. */
bool evo_operand_used(const evo_operand *operand);

/**
 * Checks the layout of one activation of `function`'s descriptor and resolves it, in the descriptor and in the operand.
 * An optional tensor may be EVO_NONE.
 */
evo_status evo_operand_resolve(const char *function, evo_tensor *tensor, evo_operand *operand, evo_number_kind kind,
                               bool optional);

/** Checks that no two elements of the output share an address. */
evo_status evo_operand_check_output(const char *function, const evo_operand *output);

/** True if two tensors at these addresses may share an element. Interleaved views of one buffer that do not are told apart. */
bool evo_operands_overlap(const evo_operand *a, const void *a_data, const evo_operand *b, const void *b_data);

/** One weight of an op: a vector [out], or a matrix [out, in]. */
typedef struct evo_weight_spec {
    const char *name;
    evo_weight *weight; /**< the caller's view; its strides are made explicit */
    int rank;
    int64_t out, in;
    unsigned bias; /**< the bit of the descriptor's `biases` that says it is there; 0: always */
} evo_weight_spec;

/** Checks an op's weights; those that `biases` leaves out must be absent. */
evo_status evo_weights_resolve(const char *function, const evo_weight_spec *specs, int count, unsigned biases);

/** Checks that none of these resolved weights shares memory with what they are packed into. */
evo_status evo_weights_check_apart(const char *function, const evo_weight_spec *specs, int count,
                                   const evo_operand *packed, const void *memory);

#endif
