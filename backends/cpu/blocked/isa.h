/*
 * isa.h: what the blocked kernels ask of an instruction set. vector.c implements it once and is compiled for each set; the
 * kernels call it through a table that is chosen when a device is opened.
 *
 * Work is done in panels: matrices [channels][lanes] of floats, where a lane is a position (a residue, a pair) and the
 * number of lanes is the instruction set's own. LayerNorm, gates and divisions then need no sum across lanes, and a
 * panel is, as it lies, an operand of the products. With 16-bit products a panel holds two channels a word (`pairs`).
 */
#ifndef EVO_BACKENDS_CPU_BLOCKED_ISA_H
#define EVO_BACKENDS_CPU_BLOCKED_ISA_H

#include <stdbool.h>
#include <stdint.h>

#include "evoformer/tensor.h"

/**
 * Terms of a product's sum that stay in registers; partial sums of so many are added up in memory. The same everywhere,
 * so that results do not depend on tiles, and small, which keeps the error of long sums small.
 */
enum {
    EVO_CPU_DEPTH = 64
};

/** Rows of a tensor, one a lane: element `channel` of lane `l` is number offset + l * lane + channel * channel_stride. */
typedef struct cpu_rows {
    const void *data;
    evo_dtype dtype;
    int64_t offset, lane, channel;
    int count; /* lanes that exist; the others are zero when read, and not written */
} cpu_rows;

/**
 * The left operand of a product: element (row, k) is at data[row / panel * panel_stride + row % panel + k * depth_stride].
 * Rows up to the next multiple of the instruction set's `rows` must be readable.
 */
typedef struct cpu_operand {
    const float *data;
    int64_t depth_stride, panel, panel_stride;
} cpu_operand;

/** c[row][lane] = or += sum over k of a(row, k) * b[k][lane]. */
typedef struct cpu_product {
    int64_t rows, depth;
    int count; /* lanes wanted: whole vectors of them are computed and stored */
    bool add;
    cpu_operand a;
    const float *b; /* a panel */
    float *c;
    int64_t c_stride;
} cpu_product;

typedef struct cpu_isa {
    const char *name;
    int width; /* lanes of a vector: a multiple of 4 */
    int lanes; /* of a panel: a few vectors */
    int rows;  /* the granularity of a left operand: divides the lanes */

    /** Reads rows of a tensor into a panel. `buffer` has room for a panel. */
    void (*read)(const cpu_rows *from, int64_t channels, float *buffer, float *panel);

    /* The functions below compute whole vectors of at least `count` lanes. */

    /** LayerNorm over the channels, each lane by itself, of rows [channel][lanes] that are `stride` apart. */
    void (*normalise)(const float *from, int64_t stride, int count, int64_t channels, float eps, const float *weight,
                      const float *bias, float *panel);

    void (*multiply)(const cpu_product *product);

    /**
     * The same with bf16 products: depth and operands are in words of two terms. NULL where the processor has none. Its
     * left operand comes in multiples of `pair_rows` rows; with `pair_rows_whole` each has its depth contiguous (panel 1,
     * depth_stride 1).
     */
    void (*multiply_pairs)(const cpu_product *product);
    int pair_rows;
    bool pair_rows_whole;

    /** Rounds a panel to bf16, two channels a word: rows `to_stride` apart, (channels + 1) / 2 of them. In place too. */
    void (*pair)(const float *panel, int64_t channels, float *to, int64_t to_stride);

    /**
     * side[h * stride + l] = mask[l] * (p + bias) * sigmoid(g + bias) for both sides of `channels` channels, where rows
     * 4 h, ... 4 h + 3 of `sums` and of `bias` are a's p and g, b's p and g.
     */
    void (*gate_sides)(const float *sums, int count, int64_t channels, const float *bias, const float *mask, float *a,
                       float *b, int64_t stride);

    /** y = sigmoid(gate + gate_bias) * (y + bias) on panels. */
    void (*gate_output)(const float *gate, int count, int64_t channels, const float *gate_bias, const float *bias,
                        float *y);

    /** side[h * stride + l] = mask[l] * (sums[h][l] + bias[h]). */
    void (*mask_side)(const float *sums, int count, int64_t channels, const float *bias, const float *mask, float *side,
                      int64_t stride);

    /** z = z / n[l] + bias, or (z + bias) / n[l]. */
    void (*divide)(float *z, int count, int64_t channels, const float *bias, const float *n, bool bias_divided);

    /** to[column * to_stride + row] = from[row * from_stride + column]. */
    void (*transpose)(const float *from, int64_t from_stride, int64_t rows, int64_t columns, float *to,
                      int64_t to_stride);

    /** Writes a panel to rows of a tensor, plus those of the residual unless its data is NULL. `buffer`: as `read`'s, plus a row. */
    void (*write)(const float *panel, int64_t channels, const cpu_rows *residual, const cpu_rows *to, float *buffer);

    /** exp, right up to 0 and for NaN, and sigmoid of `count` numbers, for tests. */
    void (*exponentials)(const float *x, int64_t count, float *exponential, float *sigmoid);
} cpu_isa;

/** The instruction set `index` of this build; NULL past the last one. Best first. */
const cpu_isa *evo_cpu_isa(int index);

/** Whether this processor and its operating system run it. */
bool evo_cpu_isa_usable(const cpu_isa *isa);

#endif
