/*
 * matrix.h: products on matrix units: what a wave multiplies at once, the same on every chip. A tile of sums is 16 x 16; an
 * operand is 16 rows by 16 numbers of K, in 32 bytes; of split_t it is two of these, 64 bytes.
 *
 *   load<T>(shared, pitch)         rows from shared memory, each OPERAND_BYTES<T> contiguous bytes, `pitch` bytes apart
 *   load_from, load_right_from     the same from an address that has the lane's offset already
 *   multiply(sums, x, y)           sums += X Y^T
 *   tile_row(e), tile_column(e)    where element e of this lane's sums stands; own_row(e), own_column(e): the same as a
 *                                  number from 0 on among the OWN_ROWS rows and OWN_COLUMNS columns of this lane
 *   as_operand<T>(sums)            sums, rounded to 16 bits or split, as an operand with X's rows and with K = Y's rows
 *
 * T is bfloat_t, half_t or split_t. Rows are read 16 bytes a lane, eight rows at a time: a pitch that is an odd multiple of 16
 * bytes has no bank conflicts. On AMD's units the product is computed transposed, so that a lane owns a row of sums, as it
 * owns a row of an operand. On gfx12 a lane loads the 8 numbers beside each other that its sums would be, not the two quads that
 * the unit names: K then comes in another order, alike in both operands.
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_MATRIX_H
#define EVO_BACKENDS_GPU_KERNELS_MATRIX_H

#include "backends/gpu/kernels/numbers.h"

static constexpr int TILE_SIDE = 16, TILE_K = 16, K_BYTES = 32;

/* Numbers of products: how they are rounded and how two lie in a register. */
struct bfloat_t {
    static constexpr int BYTES = 2;
    EVO_METHOD static uint32_t pack(float low, float high) {
        return pack_bfloats(low, high);
    }
    EVO_METHOD static float load(uint32_t bits) {
        return bfloat_to_float(bits);
    }
};
struct half_t {
    static constexpr int BYTES = 2;
    EVO_METHOD static uint32_t pack(float low, float high) {
        return pack_halves(low, high);
    }
    EVO_METHOD static float load(uint32_t bits) {
        return half_to_float(static_cast<uint16_t>(bits));
    }
};

/*
 * A number of fp32 as two halves: `high`, the nearest, and `low`, what is left, to 2^-23 of the number unless that is below the
 * smallest half: so a scale has to put what matters well above it. In memory 16 numbers of K are 32 bytes of their high halves,
 * then 32 of their low ones. A product of two is low * high + high * low + high * high: what is left out is 2^-24 of it.
 */
struct split_t {
    static constexpr int BYTES = 4;
};

/* Whether numbers of products are halves, so that their range needs scales. */
template <class T> static constexpr bool IS_HALF = false;
template <> inline constexpr bool IS_HALF<half_t> = true;
template <> inline constexpr bool IS_HALF<split_t> = true;

template <class T> static constexpr bool IS_SPLIT = false;
template <> inline constexpr bool IS_SPLIT<split_t> = true;

/* Bytes of K of an operand. */
template <class T> static constexpr int OPERAND_BYTES = TILE_K * T::BYTES;

/* Where number k of a row is: its byte, and that of its high half. */
template <class T> EVO_DEVICE constexpr int byte_of(int k) {
    return IS_SPLIT<T> ? k / 16 * 64 + k % 16 * 2 : k * T::BYTES;
}

/* Two numbers as their halves. What is no number, or too large, gives NaN. */
EVO_DEVICE void split_pair(float first, float second, uint32_t *high, uint32_t *low) {
    *high = pack_halves(first, second);
    *low = pack_halves(first - half_to_float(static_cast<uint16_t>(*high & 0xffffu)),
                       second - half_to_float(static_cast<uint16_t>(*high >> 16)));
}

#if defined(EVO_MATRIX_MMA)
static constexpr int OPERAND_REGISTERS = 4, TILE_SUMS = 8;
#elif defined(EVO_MATRIX_MFMA)
static constexpr int OPERAND_REGISTERS = 2, TILE_SUMS = 4;
#elif defined(EVO_MATRIX_WMMA11)
static constexpr int OPERAND_REGISTERS = 8, TILE_SUMS = 8;
#else
static constexpr int OPERAND_REGISTERS = 4, TILE_SUMS = 8;
#endif

template <class T> struct operand {
    uint32_t r[OPERAND_REGISTERS];
};

/*
 * An operand that is used as Y alone: mma.sync wants the registers of one row beside each other there, which costs moves for
 * an operand that can be both.
 */
template <class T> struct right_operand {
    uint32_t r[OPERAND_REGISTERS];
};

template <> struct operand<split_t> {
    operand<half_t> high, low;
};
template <> struct right_operand<split_t> {
    right_operand<half_t> high, low;
};

struct sums {
    float v[TILE_SUMS];
};

EVO_DEVICE int lane_number() {
    return thread_x() % WAVE;
}

EVO_DEVICE void clear(sums &s) {
    EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e++) s.v[e] = 0.0f;
}

/* --- Where this lane's elements stand --- */

EVO_DEVICE int tile_row(int e) {
#if defined(EVO_MATRIX_MMA)
    return lane_number() / 4 + e % 4 / 2 * 8;
#else
    (void)e;
    return lane_number() % 16;
#endif
}

EVO_DEVICE int tile_column(int e) {
#if defined(EVO_MATRIX_MMA)
    return e / 4 * 8 + lane_number() % 4 * 2 + e % 2;
#elif defined(EVO_MATRIX_WMMA11)
    return 2 * e + lane_number() / 16;
#else
    return lane_number() / 16 * TILE_SUMS + e;
#endif
}

#if defined(EVO_MATRIX_MMA)
static constexpr int OWN_ROWS = 2, OWN_COLUMNS = 4;
#else
static constexpr int OWN_ROWS = 1, OWN_COLUMNS = TILE_SUMS;
#endif

EVO_DEVICE constexpr int own_row(int e) {
    return OWN_ROWS == 2 ? e % 4 / 2 : 0;
}

EVO_DEVICE constexpr int own_column(int e) {
    return OWN_ROWS == 2 ? e / 4 * 2 + e % 2 : e;
}

/* The element of the lane's sums that stands in its row (column) number i, and the first column (row). */
EVO_DEVICE constexpr int row_element(int i) {
    return 2 * i;
}

EVO_DEVICE constexpr int column_element(int i) {
    return OWN_ROWS == 2 ? i / 2 * 4 + i % 2 : i;
}

/* --- From shared memory --- */

template <int COUNT> EVO_DEVICE void load_words(const unsigned char *shared, uint32_t (&r)[COUNT]) {
    EVO_UNROLL
    for (int i = 0; i < COUNT; i += COUNT < 4 ? 2 : 4) {
        if (COUNT < 4) {
            const uint2_t v = *reinterpret_cast<const uint2_t *>(shared + i * 4);
            r[i] = v.x;
            r[i + 1] = v.y;
        } else {
            const float4_t v = *reinterpret_cast<const float4_t *>(shared + i * 4);
            r[i] = float_bits(v.x);
            r[i + 1] = float_bits(v.y);
            r[i + 2] = float_bits(v.z);
            r[i + 3] = float_bits(v.w);
        }
    }
}

/* What a lane adds to the address of an operand's first number. */
EVO_DEVICE int lane_offset(int pitch) {
#if defined(EVO_MATRIX_WMMA11)
    return lane_number() % 16 * pitch;
#else
    return lane_number() % 16 * pitch + lane_number() / 16 * (OPERAND_REGISTERS * 4);
#endif
}

/* `shared` from the lane's offset on. */
template <class T> EVO_DEVICE operand<T> load_from(const unsigned char *shared) {
    if constexpr (IS_SPLIT<T>) {
        return { load_from<half_t>(shared), load_from<half_t>(shared + K_BYTES) };
    } else {
        operand<T> x;
#if defined(EVO_MATRIX_MMA)
        ldmatrix_x4(x.r, shared);
#else
        load_words(shared, x.r);
#endif
        return x;
    }
}

/* Likewise of a right operand: what a lane adds, and the load from there. */
EVO_DEVICE int right_lane_offset(int pitch) {
#if defined(EVO_MATRIX_MMA)
    return (lane_number() % 8 + lane_number() / 16 * 8) * pitch + lane_number() / 8 % 2 * 16;
#else
    return lane_offset(pitch);
#endif
}

template <class T> EVO_DEVICE right_operand<T> load_right_from(const unsigned char *shared) {
    if constexpr (IS_SPLIT<T>) {
        return { load_right_from<half_t>(shared), load_right_from<half_t>(shared + K_BYTES) };
    } else {
        const operand<T> x = load_from<T>(shared);
        right_operand<T> y;
        EVO_UNROLL
        for (int i = 0; i < OPERAND_REGISTERS; i++) y.r[i] = x.r[i];
        return y;
    }
}

template <class T> EVO_DEVICE operand<T> load(const unsigned char *shared, int pitch) {
    return load_from<T>(shared + lane_offset(pitch));
}

/* --- Products --- */

#if defined(EVO_MATRIX_MMA)
#define EVO_MULTIPLY(T, instruction)                                                                                  \
    EVO_DEVICE void multiply(sums &s, const operand<T> &x, const uint32_t(&first)[2], const uint32_t(&second)[2]) {   \
        instruction(reinterpret_cast<float(&)[4]>(s.v[0]), x.r, first);                                               \
        instruction(reinterpret_cast<float(&)[4]>(s.v[4]), x.r, second);                                              \
    }                                                                                                                 \
    EVO_DEVICE void multiply(sums &s, const operand<T> &x, const operand<T> &y) {                                     \
        multiply(s, x, { y.r[0], y.r[2] }, { y.r[1], y.r[3] });                                                       \
    }                                                                                                                 \
    EVO_DEVICE void multiply(sums &s, const operand<T> &x, const right_operand<T> &y) {                               \
        multiply(s, x, { y.r[0], y.r[1] }, { y.r[2], y.r[3] });                                                       \
    }
EVO_MULTIPLY(bfloat_t, mma_16x8x16_bf16)
EVO_MULTIPLY(half_t, mma_16x8x16_f16)
#else
#define EVO_MULTIPLY(T, instruction)                                                                                  \
    template <class Y> EVO_DEVICE void multiply(sums &s, const operand<T> &x, const Y &y) {                           \
        instruction(s.v, y.r, x.r);                                                                                   \
    }
#if defined(EVO_MATRIX_MFMA)
EVO_MULTIPLY(bfloat_t, mfma_16x16x16_bf16)
EVO_MULTIPLY(half_t, mfma_16x16x16_f16)
#elif defined(EVO_MATRIX_WMMA11) || defined(EVO_MATRIX_WMMA12)
EVO_MULTIPLY(bfloat_t, wmma_16x16x16_bf16)
EVO_MULTIPLY(half_t, wmma_16x16x16_f16)
#endif
#endif
#undef EVO_MULTIPLY

/*
 * Matrix units cut off what does not fit a sum, and by as much each time: so only one product here is as large as the sum, and sums
 * of 16 of k are added up in ordinary registers, where they are rounded to nearest.
 */
template <template <class> class Y> EVO_DEVICE void multiply(sums &s, const operand<split_t> &x, const Y<split_t> &y) {
    sums part;
    clear(part);
    multiply(part, x.low, y.high);
    multiply(part, x.high, y.low);
    multiply(part, x.high, y.high);
    EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e++) s.v[e] += part.v[e];
}

/* Likewise tiles of sums at once, product by product, so that each has others between it and the one that it waits for. */
template <int DOWN, int ACROSS>
EVO_DEVICE void multiply_tiles(sums (&s)[DOWN][ACROSS], const operand<split_t> (&x)[DOWN],
                               const right_operand<split_t> (&y)[ACROSS]) {
    sums part[DOWN][ACROSS];
    EVO_UNROLL
    for (int product = 0; product < 3; product++) EVO_UNROLL
    for (int d = 0; d < DOWN; d++) EVO_UNROLL
    for (int a = 0; a < ACROSS; a++) {
        if (product == 0) clear(part[d][a]);
        multiply(part[d][a], product == 0 ? x[d].low : x[d].high, product == 1 ? y[a].low : y[a].high);
    }
    EVO_UNROLL
    for (int d = 0; d < DOWN; d++) EVO_UNROLL
    for (int a = 0; a < ACROSS; a++) EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e++) s[d][a].v[e] += part[d][a].v[e];
}

/* Sums rounded to 16 bits. */
template <class T> EVO_DEVICE operand<T> as_rounded_operand(const sums &s) {
    static_assert(T::BYTES == 2, "numbers of 16 bits");
    operand<T> x;
#if defined(EVO_MATRIX_WMMA11)
    /* A lane has every other column of its row, the lane 16 further the rest; an operand's lane has all. */
    const bool odd = lane_number() / 16 != 0;
    EVO_UNROLL
    for (int i = 0; i < TILE_SUMS / 2; i++) {
        const uint32_t mine = T::pack(s.v[2 * i], s.v[2 * i + 1]), other = wave_shuffle_xor(mine, 16);
        const uint32_t even = odd ? other : mine, rest = odd ? mine : other;
        x.r[2 * i] = (even & 0xffffu) | rest << 16;
        x.r[2 * i + 1] = even >> 16 | (rest & 0xffff0000u);
    }
#else
    EVO_UNROLL
    for (int i = 0; i < TILE_SUMS / 2; i++) x.r[i] = T::pack(s.v[2 * i], s.v[2 * i + 1]);
#endif
    return x;
}

template <class T> EVO_DEVICE operand<T> as_operand(const sums &s) {
    if constexpr (IS_SPLIT<T>) {
        sums rest;
        EVO_UNROLL
        for (int e = 0; e < TILE_SUMS; e++) rest.v[e] = s.v[e] - half_to_float(float_to_half(s.v[e]));
        return { as_rounded_operand<half_t>(s), as_rounded_operand<half_t>(rest) };
    } else {
        return as_rounded_operand<T>(s);
    }
}

#endif
