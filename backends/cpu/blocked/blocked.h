/* blocked.h: what the blocked kernels share: packed weights, the workspace's parts, threads, refusals. */
#ifndef EVO_BACKENDS_CPU_BLOCKED_BLOCKED_H
#define EVO_BACKENDS_CPU_BLOCKED_BLOCKED_H

#include "backends/cpu/blocked/isa.h"
#include "backends/cpu/cpu.h"

/** Slots of evo_form.tuning. */
enum {
    EVO_BLOCKED_THREADS = 0,
    EVO_BLOCKED_SCRATCH = 1, /**< floats a thread */
    EVO_BLOCKED_PAIRS = 2    /**< whether products are of bf16 numbers, two a word */
};

enum {
    EVO_BLOCKED_LINE = 16,      /* floats of a cache line: parts of buffers begin at multiples of it */
    EVO_BLOCKED_SMALL = 1 << 20 /* floats of workspace that elements of a batch may take together */
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

/** Elements of a batch that a stage takes together, of `floats` of workspace each: small ones would not feed all threads. */
static inline int64_t evo_blocked_elements(int64_t batch, int64_t floats) {
    const int64_t fit = floats > 0 ? EVO_BLOCKED_SMALL / floats : 1;
    return fit < 1 || batch < 1 ? 1 : evo_blocked_least(fit, batch);
}

/**
 * Rows of `floats` floats that a task writes, of `rows` in all: whole cache lines, which are one row, two or four; eight rows
 * where that leaves enough tasks.
 */
static inline int64_t evo_blocked_lines(int64_t floats, int64_t rows, int64_t threads) {
    return rows >= 32 * threads ? 8 : floats % 16 == 0 ? 1 : floats % 8 == 0 ? 2 : 4;
}

static inline const cpu_isa *evo_blocked_isa(const evo_call *call) {
    return ((const cpu_device *)call->device)->isa;
}

/** What products are made of: floats, or words of two bf16 terms. */
typedef struct cpu_numbers {
    const cpu_isa *isa;
    bool pairs;
} cpu_numbers;

/** What a problem's compute mode gets on a device. */
static inline cpu_numbers evo_blocked_choose(const evo_device *device, evo_compute compute) {
    const cpu_isa *isa = ((const cpu_device *)device)->isa;
    return (cpu_numbers){ isa, compute == EVO_COMPUTE_BF16 && isa->multiply_pairs };
}

static inline cpu_numbers evo_blocked_numbers(const evo_call *call) {
    return (cpu_numbers){ evo_blocked_isa(call), call->form->tuning[EVO_BLOCKED_PAIRS] != 0 };
}

/** Whether left operands are rows of contiguous depth. */
static inline bool evo_blocked_whole(cpu_numbers n) {
    return n.pairs && n.isa->pair_rows_whole;
}

/** Words of `terms` terms, and terms of a word. */
static inline int64_t evo_blocked_words(cpu_numbers n, int64_t terms) {
    return n.pairs ? (terms + 1) / 2 : terms;
}

/** Rows in multiples of which a left operand comes. */
static inline int64_t evo_blocked_rows(cpu_numbers n) {
    return n.pairs ? n.isa->pair_rows : n.isa->rows;
}

/** `product` with its depth in words. */
static inline void evo_blocked_multiply(cpu_numbers n, const cpu_product *product) {
    (n.pairs ? n.isa->multiply_pairs : n.isa->multiply)(product);
}

/** Makes a panel an operand: nothing to do for floats. */
static inline void evo_blocked_convert(cpu_numbers n, float *panel, int64_t channels) {
    if (n.pairs) n.isa->pair(panel, channels, panel, n.isa->lanes);
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

/** Floats of a packed matrix of `rows` rows, `terms` deep. */
int64_t evo_blocked_matrix(cpu_numbers n, int64_t rows, int64_t terms);

/** Row `row` of a packed matrix, word `word` of its depth. */
float *evo_blocked_word(cpu_numbers n, float *packed, int64_t terms, int64_t row, int64_t word);

/** A packed matrix from row `first` (a multiple of evo_blocked_rows) and word `word` on. */
cpu_operand evo_blocked_operand(cpu_numbers n, const float *packed, int64_t terms, int64_t first, int64_t word);

/** Puts a term of a matrix into its word, which was zero. */
void evo_blocked_put(cpu_numbers n, float *packed, int64_t terms, int64_t row, int64_t term, double value);

/** Packs a matrix [out, in] as rows first, first + step, ... of a packed matrix; absent rows stay zero. */
void evo_blocked_pack_matrix(cpu_numbers n, const evo_weight *weight, int64_t out, int64_t in, int64_t first,
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

/** Names the layout of weights that are packed for such numbers. */
uint32_t evo_blocked_layout(cpu_numbers n);

/** Fills the form, but for its pack, for the chosen threads and size, or fails as the size or the limit demands. */
evo_status evo_blocked_settle(cpu_numbers n, evo_form *form, evo_compute compute, int64_t bytes, int64_t threads,
                              int64_t scratch, size_t limit);

#endif
