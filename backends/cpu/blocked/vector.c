/*
 * vector.c: the blocked kernels' work on panels (isa.h), compiled once for each instruction set. The build defines
 * EVO_VECTOR_WIDTH (floats in a vector), EVO_VECTORS (vectors in a panel's row), EVO_ROWS (rows of the register tile:
 * 4 or 8), EVO_ISA (the table's suffix), EVO_ISA_NAME, and EVO_PAIRS where the set has bf16 products (pairs.h).
 */
#include "backends/cpu/blocked/isa.h"

#include <math.h>

#include "backends/cpu/blocked/pairs.h"
#include "backends/cpu/blocked/vector.h"
#include "src/number.h"

enum {
    LANES = EVO_VECTORS * EVO_VECTOR_WIDTH,
    ROWS = EVO_ROWS,
    PAIR_ROWS = EVO_PAIRS == 2 ? 32 : EVO_ROWS
};

/* --- Products ---------------------------------------------------------------------------------- */

#if EVO_ROWS == 4
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#else
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#endif

/* One row of the register tile: up to three vectors, named, as compilers keep names in registers and arrays not always. */
#define CLEAR_ROW(r) vec c##r##0 = { 0 }, c##r##1 = { 0 }, c##r##2 = { 0 };
#define ADD_ROW(r, ADD)                                     \
    {                                                       \
        const float factor = a[r];                          \
        c##r##0 = ADD(c##r##0, factor, b0);                 \
        if (vectors > 1) c##r##1 = ADD(c##r##1, factor, b1); \
        if (vectors > 2) c##r##2 = ADD(c##r##2, factor, b2); \
    }
#define ADD_TERM_ROW(r) ADD_ROW(r, add_term)
#define ADD_PAIR_ROW(r) ADD_ROW(r, pairs_add)
#define STORE_ROW(r)                                                                     \
    if (r < rows) {                                                                      \
        store_sum(c + r * c_stride, c##r##0, add);                                       \
        if (vectors > 1) store_sum(c + r * c_stride + WIDTH, c##r##1, add);              \
        if (vectors > 2) store_sum(c + r * c_stride + 2 * WIDTH, c##r##2, add);          \
    }

INLINE vec add_term(vec sum, float a, vec b) {
    return sum + b * a;
}

INLINE void store_sum(float *c, vec sum, bool add) {
    vec_store(c, add ? vec_load(c) + sum : sum);
}

/* ROWS x (vectors * WIDTH) sums of `depth` terms, or pairs of them, in registers; the first `rows` are stored or added. */
#define DEFINE_MULTIPLY_TILE(NAME, ADD_TO_ROW)                                                                        \
    INLINE void NAME(int vectors, int64_t rows, int64_t depth, const float *restrict a, int64_t a_stride,             \
                     const float *restrict b, float *restrict c, int64_t c_stride, bool add) {                        \
        EACH_ROW(CLEAR_ROW)                                                                                           \
        for (int64_t k = 0; k < depth; k++, a += a_stride, b += LANES) {                                              \
            const vec b0 = vec_load(b);                                                                               \
            const vec b1 = vectors > 1 ? vec_load(b + WIDTH) : b0, b2 = vectors > 2 ? vec_load(b + 2 * WIDTH) : b0;   \
            EACH_ROW(ADD_TO_ROW)                                                                                      \
        }                                                                                                             \
        EACH_ROW(STORE_ROW)                                                                                           \
    }

DEFINE_MULTIPLY_TILE(multiply_tile, ADD_TERM_ROW)
#if EVO_PAIRS == 1
DEFINE_MULTIPLY_TILE(multiply_pairs_tile, ADD_PAIR_ROW)
#else
#define multiply_pairs_tile multiply_tile
#endif

INLINE void multiply_vectors(const cpu_product *p, int vectors, bool pairs) {
    int64_t k = 0;
    do {
        const int64_t depth = p->depth - k < EVO_CPU_DEPTH ? p->depth - k : EVO_CPU_DEPTH;
        const bool add = p->add || k > 0;
        const float *a = p->a.data + k * p->a.depth_stride;
        int64_t panel = p->a.panel; /* rows that are left of this one */
        for (int64_t row = 0; row < p->rows; row += ROWS) {
            (pairs ? multiply_pairs_tile : multiply_tile)(vectors, p->rows - row, depth, a, p->a.depth_stride,
                                                          p->b + k * LANES, p->c + row * p->c_stride, p->c_stride, add);
            a += ROWS;
            panel -= ROWS;
            if (panel <= 0) {
                a += p->a.panel_stride - p->a.panel;
                panel = p->a.panel;
            }
        }
        k += depth;
    } while (k < p->depth);
}

INLINE void multiply_any(const cpu_product *p, bool pairs) {
    if (p->count > 2 * WIDTH && EVO_VECTORS > 2)
        multiply_vectors(p, 3, pairs);
    else if (p->count > WIDTH)
        multiply_vectors(p, 2, pairs);
    else
        multiply_vectors(p, 1, pairs);
}

static void multiply(const cpu_product *p) {
    multiply_any(p, false);
}

#if EVO_PAIRS == 1
static void multiply_pairs(const cpu_product *p) {
    multiply_any(p, true);
}
#endif

#if EVO_PAIRS == 2
INLINE void multiply_step(const float *a, int64_t a_stride, const float *b) {
    TILE_FENCE();
    TILE_LOAD(TILE_ROWS_0, a, a_stride);
    TILE_LOAD(TILE_LANES_0, b, LANES);
    TILE_LOAD(TILE_LANES_1, b + TILE, LANES);
    TILE_MULTIPLY(TILE_SUMS_00, TILE_ROWS_0, TILE_LANES_0);
    TILE_MULTIPLY(TILE_SUMS_01, TILE_ROWS_0, TILE_LANES_1);
    TILE_LOAD(TILE_ROWS_1, a + TILE * a_stride, a_stride);
    TILE_MULTIPLY(TILE_SUMS_10, TILE_ROWS_1, TILE_LANES_0);
    TILE_MULTIPLY(TILE_SUMS_11, TILE_ROWS_1, TILE_LANES_1);
    TILE_FENCE();
}

/* The last words, fewer than a tile is deep, with zeros after them on both sides. */
static void multiply_rest(const float *a, int64_t a_stride, const float *b, int64_t depth) {
    float rows[2 * TILE][TILE] = { { 0 } }, lanes[TILE][LANES] = { { 0 } };
    for (int r = 0; r < 2 * TILE; r++) memcpy(rows[r], a + r * a_stride, (size_t)depth * sizeof(float));
    memcpy(lanes, b, (size_t)depth * sizeof lanes[0]);
    multiply_step(rows[0], TILE, lanes[0]);
}

static void store_tiles(float *c, int64_t stride) {
    TILE_STORE(TILE_SUMS_00, c, stride);
    TILE_STORE(TILE_SUMS_01, c + TILE, stride);
    TILE_STORE(TILE_SUMS_10, c + TILE * stride, stride);
    TILE_STORE(TILE_SUMS_11, c + TILE * stride + TILE, stride);
}

static void multiply_pairs(const cpu_product *p) {
    const int64_t stride = p->a.panel_stride;
    TILE_BEGIN();
    for (int64_t row = 0; row < p->rows; row += 2 * TILE) {
        const float *a = p->a.data + row * stride;
        float *c = p->c + row * p->c_stride, sums[2 * TILE][LANES];
        int64_t k = 0;
        TILE_CLEAR(TILE_SUMS_00);
        TILE_CLEAR(TILE_SUMS_01);
        TILE_CLEAR(TILE_SUMS_10);
        TILE_CLEAR(TILE_SUMS_11);
        for (; k + TILE <= p->depth; k += TILE) multiply_step(a + k, stride, p->b + k * LANES);
        if (k < p->depth) multiply_rest(a + k, stride, p->b + k * LANES, p->depth - k);
        if (!p->add && p->rows - row >= 2 * TILE && p->count == LANES) {
            store_tiles(c, p->c_stride);
            continue;
        }
        store_tiles(sums[0], LANES);
        for (int64_t r = 0; r < p->rows - row && r < 2 * TILE; r++)
            for (int v = 0; v < p->count; v += WIDTH) store_sum(c + r * p->c_stride + v, vec_load(sums[r] + v), p->add);
    }
    TILE_END();
}
#endif

/* --- Moving data ------------------------------------------------------------------------------- */

typedef float quad __attribute__((vector_size(16)));

INLINE quad quad_load(const float *p) {
    quad q;
    memcpy(&q, p, sizeof q);
    return q;
}

/* 4 x 4 numbers: to[column][row] = from[row][column]. */
INLINE void transpose_block(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    const quad r0 = quad_load(from), r1 = quad_load(from + from_stride), r2 = quad_load(from + 2 * from_stride),
               r3 = quad_load(from + 3 * from_stride);
    const quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
               high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    const quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
               high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    const quad column[4] = { __builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                             __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                             __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                             __builtin_shufflevector(high01, high23, 2, 3, 6, 7) };
    for (int c = 0; c < 4; c++) memcpy(to + c * to_stride, &column[c], sizeof column[c]);
}

static void transpose_quads(const float *from, int64_t from_stride, int64_t rows, int64_t columns, float *to,
                            int64_t to_stride) {
    const int64_t whole_rows = rows & ~INT64_C(3), whole_columns = columns & ~INT64_C(3);
    for (int64_t row = 0; row < whole_rows; row += 4)
        for (int64_t column = 0; column < whole_columns; column += 4)
            transpose_block(from + row * from_stride + column, from_stride, to + column * to_stride + row, to_stride);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = row < whole_rows ? whole_columns : 0; column < columns; column++)
            to[column * to_stride + row] = from[row * from_stride + column];
}

#if EVO_VECTOR_WIDTH >= 8
typedef float oct __attribute__((vector_size(32)));

#define LOW_NUMBERS(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH_NUMBERS(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW_TWOS(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH_TWOS(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define LOW_FOURS(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH_FOURS(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)

INLINE oct oct_load(const float *p) {
    oct o;
    memcpy(&o, p, sizeof o);
    return o;
}

INLINE void oct_store(float *p, oct o) {
    memcpy(p, &o, sizeof o);
}

/* 4 rows of 8 numbers: column[k] holds columns k and k + 4, four numbers of each. */
INLINE void transpose_fours(const float *from, int64_t from_stride, oct *column) {
    const oct r0 = oct_load(from), r1 = oct_load(from + from_stride), r2 = oct_load(from + 2 * from_stride),
              r3 = oct_load(from + 3 * from_stride);
    const oct low01 = LOW_NUMBERS(r0, r1), high01 = HIGH_NUMBERS(r0, r1);
    const oct low23 = LOW_NUMBERS(r2, r3), high23 = HIGH_NUMBERS(r2, r3);
    column[0] = LOW_TWOS(low01, low23);
    column[1] = HIGH_TWOS(low01, low23);
    column[2] = LOW_TWOS(high01, high23);
    column[3] = HIGH_TWOS(high01, high23);
}

/* 8 x 8 numbers. */
INLINE void transpose_octs(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    oct upper[4], lower[4];
    transpose_fours(from, from_stride, upper);
    transpose_fours(from + 4 * from_stride, from_stride, lower);
#define STORE_COLUMNS(k)                                                     \
    oct_store(to + (k)*to_stride, LOW_FOURS(upper[k], lower[k]));            \
    oct_store(to + ((k) + 4) * to_stride, HIGH_FOURS(upper[k], lower[k]));
    STORE_COLUMNS(0) STORE_COLUMNS(1) STORE_COLUMNS(2) STORE_COLUMNS(3)
}
#endif

static void transpose(const float *from, int64_t from_stride, int64_t rows, int64_t columns, float *to,
                      int64_t to_stride) {
    int64_t row = 0; /* the first that is left */
#if EVO_VECTOR_WIDTH >= 8
    int64_t column = 0;
    for (; row + 8 <= rows; row += 8)
        for (column = 0; column + 8 <= columns; column += 8)
            transpose_octs(from + row * from_stride + column, from_stride, to + column * to_stride + row, to_stride);
    if (column < columns)
        transpose_quads(from + column, from_stride, row, columns - column, to + column * to_stride, to_stride);
#endif
    transpose_quads(from + row * from_stride, from_stride, rows - row, columns, to + row, to_stride);
}

/* `count` numbers of a tensor from element `first` on, `stride` apart, as floats. */
static void read_row(const void *data, evo_dtype dtype, int64_t first, int64_t stride, int64_t count, float *to) {
    int64_t k = 0;
    if (stride == 1 && dtype == EVO_FP32) {
        memcpy(to, (const float *)data + first, (size_t)count * sizeof *to);
        return;
    }
    if (stride == 1 && dtype == EVO_BF16)
        for (; k + WIDTH <= count; k += WIDTH) vec_store(to + k, vec_load_bf16((const uint16_t *)data + first + k));
    if (stride == 1 && dtype == EVO_FP16)
        for (; k + WIDTH <= count; k += WIDTH) vec_store(to + k, vec_load_fp16((const uint16_t *)data + first + k));
    for (; k < count; k++) to[k] = (float)evo_load(data, dtype, first + k * stride);
}

static void write_row(const float *from, int64_t count, void *data, evo_dtype dtype, int64_t first, int64_t stride) {
    int64_t k = 0;
    if (stride == 1 && dtype == EVO_FP32) {
        memcpy((float *)data + first, from, (size_t)count * sizeof *from);
        return;
    }
    if (stride == 1 && dtype == EVO_BF16)
        for (; k + WIDTH <= count; k += WIDTH) vec_store_bf16((uint16_t *)data + first + k, vec_load(from + k));
    if (stride == 1 && dtype == EVO_FP16)
        for (; k + WIDTH <= count; k += WIDTH) vec_store_fp16((uint16_t *)data + first + k, vec_load(from + k));
    for (; k < count; k++) evo_store(data, dtype, first + k * stride, (double)from[k]);
}

static void read_panel(const cpu_rows *from, int64_t channels, float *buffer, float *panel) {
    const float *rows = buffer;
    int64_t stride = channels;
    if (from->dtype == EVO_FP32 && from->channel == 1) {
        rows = (const float *)from->data + from->offset;
        stride = from->lane;
    } else {
        for (int l = 0; l < from->count; l++)
            read_row(from->data, from->dtype, from->offset + l * from->lane, from->channel, channels,
                     buffer + l * channels);
    }
    transpose(rows, stride, from->count, channels, panel, LANES);
    for (int64_t k = 0; k < channels && from->count < LANES; k++)
        for (int l = from->count; l < LANES; l++) panel[k * LANES + l] = 0.0f;
}

static void write_panel(const float *panel, int64_t channels, const cpu_rows *residual, const cpu_rows *to,
                        float *buffer) {
    if (to->dtype == EVO_FP32 && to->channel == 1 && !residual->data) {
        transpose(panel, LANES, channels, to->count, (float *)to->data + to->offset, to->lane);
        return;
    }
    float *added = buffer + LANES * channels;
    transpose(panel, LANES, channels, to->count, buffer, channels);
    for (int l = 0; l < to->count; l++) {
        float *row = buffer + l * channels;
        if (residual->data) {
            read_row(residual->data, residual->dtype, residual->offset + l * residual->lane, residual->channel,
                     channels, added);
            for (int64_t k = 0; k < channels; k++) row[k] += added[k];
        }
        write_row(row, channels, (void *)to->data, to->dtype, to->offset + l * to->lane, to->channel);
    }
}

/* --- Arithmetic on panels ---------------------------------------------------------------------- */

/* What is summed over the channels: x, x - mean, the square of x - mean - rest. */
enum {
    NUMBERS,
    DIFFERENCES,
    SQUARES
};

INLINE vec term_of(int what, const float *from, vec mean, vec rest) {
    const vec x = vec_load(from), difference = x - mean;
    return what == NUMBERS ? x : what == DIFFERENCES ? difference : (difference - rest) * (difference - rest);
}

/* Four partial sums a vector, for speed and accuracy. */
INLINE vec mean_of(int what, const float *from, int64_t stride, int64_t channels, vec mean, vec rest) {
    vec s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };
    int64_t k = 0;
    for (; k + 4 <= channels; k += 4, from += 4 * stride) {
        s0 += term_of(what, from, mean, rest);
        s1 += term_of(what, from + stride, mean, rest);
        s2 += term_of(what, from + 2 * stride, mean, rest);
        s3 += term_of(what, from + 3 * stride, mean, rest);
    }
    for (; k < channels; k++, from += stride) s0 += term_of(what, from, mean, rest);
    return ((s0 + s1) + (s2 + s3)) / (float)channels;
}

INLINE vec reciprocal_root(vec v) {
    float x[WIDTH];
    vec_store(x, v);
    for (int l = 0; l < WIDTH; l++) x[l] = 1.0f / sqrtf(x[l]);
    return vec_load(x);
}

/*
 * The mean, then the mean of the differences, which takes out what the first one's rounding left: without it, four digits
 * are lost where the mean is large against the spread (docs/ops.md).
 */
static void normalise(const float *from, int64_t stride, int count, int64_t channels, float eps, const float *weight,
                      const float *bias, float *panel) {
    for (int v = 0; v < count; v += WIDTH) {
        const vec zero = { 0 }, mean = mean_of(NUMBERS, from + v, stride, channels, zero, zero);
        const vec rest = mean_of(DIFFERENCES, from + v, stride, channels, mean, zero);
        const vec scale = reciprocal_root(mean_of(SQUARES, from + v, stride, channels, mean, rest) + eps);
        for (int64_t k = 0; k < channels; k++) {
            const vec difference = vec_load(from + k * stride + v) - mean - rest;
            vec_store(panel + k * LANES + v, difference * scale * weight[k] + bias[k]);
        }
    }
}

INLINE vec gated(const float *sums, const float *bias) {
    return (vec_load(sums) + bias[0]) * vec_sigmoid(vec_load(sums + LANES) + bias[1]);
}

static void gate_sides(const float *sums, int count, int64_t channels, const float *bias, const float *mask, float *a,
                       float *b, int64_t stride) {
    for (int64_t h = 0; h < channels; h++, sums += 4 * LANES, bias += 4, a += stride, b += stride)
        for (int v = 0; v < count; v += WIDTH) {
            vec_store(a + v, vec_load(mask + v) * gated(sums + v, bias));
            vec_store(b + v, vec_load(mask + v) * gated(sums + 2 * LANES + v, bias + 2));
        }
}

static void gate_output(const float *gate, int count, int64_t channels, const float *gate_bias, const float *bias,
                        float *y) {
    for (int64_t q = 0; q < channels; q++, gate += LANES, y += LANES)
        for (int v = 0; v < count; v += WIDTH)
            vec_store(y + v, vec_sigmoid(vec_load(gate + v) + gate_bias[q]) * (vec_load(y + v) + bias[q]));
}

static void mask_side(const float *sums, int count, int64_t channels, const float *bias, const float *mask, float *side,
                      int64_t stride) {
    for (int64_t h = 0; h < channels; h++, sums += LANES, side += stride)
        for (int v = 0; v < count; v += WIDTH) vec_store(side + v, vec_load(mask + v) * (vec_load(sums + v) + bias[h]));
}

static void divide(float *z, int count, int64_t channels, const float *bias, const float *n, bool bias_divided) {
    for (int64_t q = 0; q < channels; q++, z += LANES)
        for (int v = 0; v < count; v += WIDTH) {
            const vec sum = vec_load(z + v), divisor = vec_load(n + v);
            vec_store(z + v, bias_divided ? (sum + bias[q]) / divisor : sum / divisor + bias[q]);
        }
}

static void pair(const float *panel, int64_t channels, float *to, int64_t to_stride) {
    for (int64_t k = 0; k < channels; k += 2, panel += 2 * LANES, to += to_stride)
        for (int v = 0; v < LANES; v += WIDTH) {
            const uvec low = bf16_of(vec_load(panel + v));
            const uvec high = k + 1 < channels ? bf16_of(vec_load(panel + LANES + v)) : low & 0;
            vec_store(to + v, vec_of(low | high << 16));
        }
}

static void exponentials(const float *x, int64_t count, float *exponential, float *sigmoid) {
    for (int64_t k = 0; k + WIDTH <= count; k += WIDTH) {
        vec_store(exponential + k, vec_exp(vec_load(x + k)));
        vec_store(sigmoid + k, vec_sigmoid(vec_load(x + k)));
    }
}

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

extern const cpu_isa PASTE(evo_cpu_isa_, EVO_ISA);
const cpu_isa PASTE(evo_cpu_isa_, EVO_ISA) = {
    .name = EVO_ISA_NAME,
    .width = WIDTH,
    .lanes = LANES,
    .rows = ROWS,
    .read = read_panel,
    .normalise = normalise,
    .multiply = multiply,
    .pair = pair,
#if EVO_PAIRS
    .multiply_pairs = multiply_pairs,
    .pair_rows = PAIR_ROWS,
    .pair_rows_whole = EVO_PAIRS == 2,
#endif
    .gate_sides = gate_sides,
    .gate_output = gate_output,
    .mask_side = mask_side,
    .divide = divide,
    .transpose = transpose,
    .write = write_panel,
    .exponentials = exponentials,
};
