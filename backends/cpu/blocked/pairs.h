/*
 * pairs.h: products of bf16 numbers with fp32 sums, two terms a 32-bit word (the lower half first), for the sets that have
 * them: EVO_PAIRS is 1 where an instruction adds pairs to vectors (AVX-512 BF16, NEON and SVE with BF16), 2 for AMX. With EVO_EMULATED the instructions are plain C, so that any machine
 * can test what is around them.
 */
#ifndef EVO_BACKENDS_CPU_BLOCKED_PAIRS_H
#define EVO_BACKENDS_CPU_BLOCKED_PAIRS_H

#include "backends/cpu/blocked/vector.h"

#if EVO_PAIRS && !defined EVO_EMULATED
#if defined __ARM_FEATURE_SVE
#include <arm_sve.h>
#elif defined __aarch64__
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif
#endif

#if EVO_PAIRS == 1

/* sum + both products of the words' halves. */
INLINE vec pairs_add(vec sum, float word, vec words) {
#ifdef EVO_EMULATED
    const uvec a = uvec_of(vec_all(word)), b = uvec_of(words);
    sum += vec_of(a << 16) * vec_of(b << 16);
    return sum + vec_of(a & 0xffff0000u) * vec_of(b & 0xffff0000u);
#elif defined __ARM_FEATURE_SVE
    typedef svfloat32_t fixed __attribute__((arm_sve_vector_bits(32 * EVO_VECTOR_WIDTH)));
    const fixed factor = svdup_f32(word), others = (fixed)words;
    return (vec)(fixed)svbfdot_f32((fixed)sum, svreinterpret_bf16_f32(factor), svreinterpret_bf16_f32(others));
#elif defined __aarch64__
    return (vec)vbfdotq_f32((float32x4_t)sum, vreinterpretq_bf16_f32(vdupq_n_f32(word)),
                            vreinterpretq_bf16_f32((float32x4_t)words));
#else
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)vec_all(word), (__m512bh)words);
#endif
}

#elif EVO_PAIRS == 2

/* The tiles: sums of 32 rows by 32 lanes in four, rows and lanes in two each. 16 rows of 64 bytes. */
enum {
    TILE = 16
};
#define TILE_SUMS_00 0
#define TILE_SUMS_01 1
#define TILE_SUMS_10 2
#define TILE_SUMS_11 3
#define TILE_ROWS_0 4
#define TILE_ROWS_1 5
#define TILE_LANES_0 6
#define TILE_LANES_1 7

#ifdef EVO_EMULATED

static _Thread_local float tiles[8][TILE][TILE];

static void emulate_load(int tile, const float *from, int64_t stride) {
    for (int r = 0; r < TILE; r++) memcpy(tiles[tile][r], from + r * stride, sizeof tiles[tile][r]);
}

static void emulate_store(int tile, float *to, int64_t stride) {
    for (int r = 0; r < TILE; r++) memcpy(to + r * stride, tiles[tile][r], sizeof tiles[tile][r]);
}

static float half_of(float word, int half) {
    uint32_t number;
    float value;
    memcpy(&number, &word, sizeof number);
    number = half ? number & 0xffff0000u : number << 16;
    memcpy(&value, &number, sizeof value);
    return value;
}

static void emulate_multiply(int sums, int rows, int lanes) {
    for (int r = 0; r < TILE; r++)
        for (int k = 0; k < TILE; k++)
            for (int l = 0; l < TILE; l++)
                for (int half = 0; half < 2; half++)
                    tiles[sums][r][l] += half_of(tiles[rows][r][k], half) * half_of(tiles[lanes][k][l], half);
}

#define TILE_BEGIN() ((void)0)
#define TILE_END() ((void)0)
#define TILE_FENCE() ((void)0)
#define TILE_CLEAR(tile) memset(tiles[tile], 0, sizeof tiles[tile])
#define TILE_LOAD(tile, from, stride) emulate_load(tile, from, stride)
#define TILE_STORE(tile, to, stride) emulate_store(tile, to, stride)
#define TILE_MULTIPLY(sums, rows, lanes) emulate_multiply(sums, rows, lanes)

#else

/* Palette 1: eight tiles of 16 rows of 64 bytes. In memory for good: compilers do not see that the instruction reads it. */
#define EIGHT(x) x, x, x, x, x, x, x, x
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes = { .palette = 1, .bytes = { EIGHT(4 * TILE) }, .rows = { EIGHT(TILE) } };

#define TILE_BEGIN() _tile_loadconfig(&tile_shapes)
#define TILE_END() _tile_release()
/* gcc 12 does not say that a tile's load reads memory: stores before it stay before it, and later ones after it. */
#define TILE_FENCE() __asm__ volatile("" ::: "memory")
#define TILE_CLEAR(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, (stride) * 4)
#define TILE_STORE(tile, to, stride) _tile_stored(tile, to, (stride) * 4)
#define TILE_MULTIPLY(sums, rows, lanes) _tile_dpbf16ps(sums, rows, lanes)

#endif
#endif
#endif
