/* blocked.h: what the blocked kernels share: packed weights, the workspace's parts, threads, refusals. */
#ifndef EVO_BACKENDS_CPU_BLOCKED_BLOCKED_H
#define EVO_BACKENDS_CPU_BLOCKED_BLOCKED_H

#include "backends/cpu/blocked/isa.h"
#include "backends/cpu/cpu.h"

/** Slots of evo_form.tuning. */
enum {
    EVO_BLOCKED_THREADS = 0,
    EVO_BLOCKED_SCRATCH = 1, /**< floats a thread */
    EVO_BLOCKED_FORM = 2     /**< the op's own */
};

enum {
    EVO_BLOCKED_LINE = 16 /* floats of a cache line: parts of buffers begin at multiples of it */
};

static inline int64_t evo_blocked_round(int64_t count, int64_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

static inline int64_t evo_blocked_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/** Lanes that a panel along `n` positions uses: all, or fewer where that makes a last panel with few lanes even with the others. */
static inline int64_t evo_blocked_step(const cpu_isa *isa, int64_t n) {
    const int64_t panels = (n + isa->lanes - 1) / isa->lanes;
    return panels ? evo_blocked_round((n + panels - 1) / panels, isa->width) : isa->lanes;
}

static inline const cpu_isa *evo_blocked_isa(const evo_call *call) {
    return ((const cpu_device *)call->device)->isa;
}

/** A buffer that is given out in parts; without memory it is only measured. */
typedef struct cpu_parts {
    float *memory;
    int64_t taken;
} cpu_parts;

/** Takes whole lines with room for `count` floats. */
float *evo_blocked_take(cpu_parts *parts, int64_t count);

/** Packs a vector; an absent bias becomes zeros. Element k goes to `packed[first + k * step]`. */
void evo_blocked_pack_vector(const evo_weight *weight, int64_t count, int64_t first, int64_t step, float *packed);

/**
 * Packs a matrix [out, in] as rows first, first + step, ... of a left operand with panels of `panel` rows and `depth`
 * terms; `in` of them are the matrix's.
 */
void evo_blocked_pack_matrix(const evo_weight *weight, int64_t out, int64_t in, int64_t panel, int64_t first,
                             int64_t step, float *packed);

/** One mask value a lane, from element `first` on, `lane` apart; ones without a mask; zero for lanes that do not exist. */
void evo_blocked_mask(const evo_tensor *layout, const void *data, int64_t first, int64_t lane, int count, int lanes,
                      float *mask);

/** Threads that a stage of this call may use: as planned, or fewer if fewer are allowed now. */
int evo_blocked_threads(const evo_call *call);

/** This thread's scratch: the workspace begins with one slice a planned thread. */
cpu_parts evo_blocked_scratch(const evo_call *call);

/** The workspace after the scratch. */
float *evo_blocked_buffers(const evo_call *call);

/** Refuses fp64, which only the reference computes. */
bool evo_blocked_supports(evo_compute compute, const evo_tensor *const *tensors, int count, evo_text *why);

/** Bytes of a workspace of `floats` and the threads' scratch; INT64_MAX if a number is negative or does not fit. */
int64_t evo_blocked_bytes(int64_t floats, int64_t threads, int64_t scratch);

/** Fills the form for the chosen threads and size, or fails as the size or the limit demands. */
evo_status evo_blocked_settle(const evo_device *device, evo_form *form, evo_compute compute, int64_t bytes,
                              int64_t threads, int64_t scratch, size_t limit);

#endif
