/*
 * plan.h: what all ops share between a checked descriptor and its execution. An op (src/ops/<op>.c) checks its own
 * fields, describes its activations as operands, and walks its stages; everything else is here.
 */
#ifndef EVO_SRC_PLAN_H
#define EVO_SRC_PLAN_H

#include "src/context.h"
#include "src/tensor.h"

/** What packed weights depend on. Channels are the op's own list, unused ones 0. */
typedef struct evo_pack_key {
    evo_op op;
    int64_t channels[3];
    unsigned biases;
    uint32_t layout;
} evo_pack_key;

struct evo_pack {
    evo_context *context;
    evo_pack_key key;
    void *memory;
};

/** Runs an op's stages over the tiles of the plan's schedule. */
typedef evo_status (*evo_walk)(const evo_call *call);

/** What an op hands to evo_plan_build; the rest of the plan follows from it. */
typedef struct evo_plan_request {
    const char *function; /**< the public function, for messages */
    evo_problem problem;
    evo_compute compute; /**< of the descriptor, as are the next two */
    unsigned alias;
    const char *kernel; /**< the forced kernel, or NULL */
    int operand_count;
    evo_operand operands[EVO_OPERANDS]; /**< in the order of the args struct; the output last */
    bool empty;                         /**< no output element: execute does nothing */
    evo_pack_key key;                   /**< all but the layout */
    double flops, bytes;
    evo_walk walk;
    char sizes[256]; /**< "B=1,N=384,..." for the log */
} evo_plan_request;

struct evo_plan {
    evo_context *context;
    evo_plan_request request;
    const evo_kernel *kernel;
    evo_form form;
    evo_text refusals;
};

/** Checks the descriptor's fields that mean the same in every op. */
evo_status evo_check_common(const char *function, evo_compute compute, evo_propagation propagation,
                            double layer_norm_eps, double mask_max);

/** Fails with EVO_ERROR_INVALID_SHAPE unless `value` is at least `least`. */
evo_status evo_check_extent(const char *function, const char *name, int64_t value, int64_t least);

/** Fails unless `value` is finite and at least 0. */
evo_status evo_check_number(const char *function, const char *name, double value);

/** Fails unless `value` is one of 0 ... count - 1, or of the bits below `count` a power of two. */
evo_status evo_check_choice(const char *function, const char *name, int value, int count);
evo_status evo_check_bits(const char *function, const char *name, unsigned value, unsigned all);

/**
 * Fails with EVO_ERROR_SIZE_OVERFLOW unless matrices of a x b and c x d elements, a handful of each and in any number type,
 * stay far below 2^63 bytes. A negative extent stands for a product that already did not fit.
 */
evo_status evo_check_weights_fit(const evo_plan_request *request, int64_t a, int64_t b, int64_t c, int64_t d);

/** Fails for a variant that is none of those that `names` lists. */
evo_status evo_fail_variant(const char *function, const char *variant, const char *(*names)(int index));

/** Checks what the descriptor lets the output share memory with: the same layout, else it could not. */
evo_status evo_check_alias(const evo_plan_request *request);

/** Chooses a kernel and makes the plan. `context` and `plan` may be NULL: that is checked here. */
evo_status evo_plan_build(evo_context *context, const evo_plan_request *request, evo_plan **plan);

/** Checks and resolves the weights that `specs` describe, which are members of `weights`, and packs them. */
evo_status evo_plan_pack(const char *function, const evo_plan *plan, const evo_weight_spec *specs, int count,
                         const evo_call_args *weights, void *memory, size_t memory_size, evo_stream stream,
                         evo_pack **pack);

/** Checks that `plan` is one of `op`. */
evo_status evo_check_plan(const char *function, const evo_plan *plan, evo_op op);

/** Checks the pointers (in the order of the operands) against the plan's promises and executes. */
evo_status evo_plan_execute(const char *function, const evo_plan *plan, const evo_pack *pack, const evo_call_args *args,
                            const void *const *pointers, void *workspace, size_t workspace_size, evo_stream stream);

/** Runs one stage of a walk, unless the kernel did its work in an earlier one. */
evo_status evo_run_stage(const evo_call *call, int stage, const evo_tile *tile);

/** The range of at most `step` from `begin` on. */
static inline evo_range evo_step(int64_t begin, int64_t step, int64_t extent) {
    return (evo_range){ begin, step < extent - begin ? begin + step : extent };
}

#endif
