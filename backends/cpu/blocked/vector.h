/*
 * vector.h: the vectors of the instruction set that a file is compiled for, in GCC's and clang's vector extensions. The
 * build defines EVO_VECTOR_WIDTH, floats in a vector.
 */
#ifndef EVO_BACKENDS_CPU_BLOCKED_VECTOR_H
#define EVO_BACKENDS_CPU_BLOCKED_VECTOR_H

#include <stdint.h>
#include <string.h>

enum {
    WIDTH = EVO_VECTOR_WIDTH
};

#ifndef EVO_PAIRS
#define EVO_PAIRS 0
#endif

typedef float vec __attribute__((vector_size(EVO_VECTOR_WIDTH * 4)));
typedef uint32_t uvec __attribute__((vector_size(EVO_VECTOR_WIDTH * 4)));
typedef uint16_t halves __attribute__((vector_size(EVO_VECTOR_WIDTH * 2)));

#define INLINE static inline __attribute__((always_inline))

INLINE vec vec_load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void vec_store(float *p, vec v) {
    memcpy(p, &v, sizeof v);
}

INLINE vec vec_all(float x) {
    return x - (vec){ 0 };
}

INLINE uvec uvec_of(vec v) {
    uvec b;
    memcpy(&b, &v, sizeof b);
    return b;
}

INLINE vec vec_of(uvec b) {
    vec v;
    memcpy(&v, &b, sizeof v);
    return v;
}

INLINE uvec uvec_all(uint32_t x) {
    return x - (uvec){ 0 };
}

/* a where the mask's bits are set, else b. */
INLINE uvec uvec_choose(uvec mask, uvec a, uvec b) {
    return (mask & a) | (~mask & b);
}

INLINE vec vec_choose(uvec mask, vec a, vec b) {
    return vec_of(uvec_choose(mask, uvec_of(a), uvec_of(b)));
}

/* Comparisons as masks: all ones where true; false for NaN. */
INLINE uvec vec_less(vec a, vec b) {
    return (uvec)(a < b);
}

/* --- 16-bit formats ---------------------------------------------------------------------------- */

INLINE vec vec_load_bf16(const uint16_t *p) {
    halves h;
    memcpy(&h, p, sizeof h);
    return vec_of(__builtin_convertvector(h, uvec) << 16);
}

/* Rounds to nearest even; a NaN stays one. */
INLINE uvec bf16_of(vec v) {
    const uvec b = uvec_of(v), rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    return uvec_choose((uvec)((b & 0x7fffffff) > 0x7f800000), (b >> 16) | 0x40, rounded);
}

INLINE void vec_store_bf16(uint16_t *p, vec v) {
    const halves h = __builtin_convertvector(bf16_of(v), halves);
    memcpy(p, &h, sizeof h);
}

/* Subnormal halves are normal floats, made by a subtraction of normal ones: exact even where subnormals are flushed. */
INLINE vec vec_load_fp16(const uint16_t *p) {
    halves h;
    memcpy(&h, p, sizeof h);
    const uvec wide = __builtin_convertvector(h, uvec), magnitude = (wide & 0x7fff) << 13;
    const uvec exponent = magnitude & 0x0f800000, normal = magnitude + 0x38000000;
    const vec subnormal = vec_of(magnitude + 0x38800000) - vec_of(uvec_all(0x38800000));
    uvec b = uvec_choose((uvec)(exponent == 0x0f800000), normal + 0x38000000, normal);
    b = uvec_choose((uvec)(exponent == 0), uvec_of(subnormal), b);
    return vec_of(b | (wide & 0x8000) << 16);
}

/* Adding 0.5 rounds a subnormal half to its step. */
INLINE void vec_store_fp16(uint16_t *p, vec v) {
    const uvec b = uvec_of(v), magnitude = b & 0x7fffffff;
    const uvec subnormal = uvec_of(vec_of(magnitude) + 0.5f) - 0x3f000000;
    const uvec normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const uvec special = uvec_choose((uvec)(magnitude > 0x7f800000), uvec_all(0x7e00), uvec_all(0x7c00));
    uvec code = uvec_choose((uvec)(magnitude < 0x38800000), subnormal, normal);
    code = uvec_choose((uvec)(magnitude >= 0x47800000), special, code);
    const halves h = __builtin_convertvector(code | (b >> 16 & 0x8000), halves);
    memcpy(p, &h, sizeof h);
}

/* --- exp, sigmoid ------------------------------------------------------------------------------ */

/*
 * exp(x) for x <= 0, all that a sigmoid needs; a NaN stays one. x = n ln 2 + r with |r| <= ln(2)/2, then a polynomial in r
 * (its coefficients fitted to the least relative error) times 2^(n + 64), which is always normal, times 2^-64, so that
 * subnormal results round once. The addend that makes n whole leaves the exponent's bits of 2^(n + 64) in its sum's last nine.
 */
INLINE vec vec_exp(vec x) {
    const vec magic = vec_all(12582912.0f + 127.0f + 64.0f); /* 1.5 * 2^23: the sum's last bit is worth 1 */
    const vec shifted = x * 1.44269504088896341f + magic, n = shifted - magic;
    vec r = x - n * 0.693145751953125f;
    r = r - n * 1.42860676533018704e-06f;
    vec p = vec_all(1.38145406e-03f);
    p = p * r + 8.36874545e-03f;
    p = p * r + 4.16683890e-02f;
    p = p * r + 1.66665211e-01f;
    p = p * r + 4.99999940e-01f;
    const vec sum = 1.0f + r, rest = r - (sum - 1.0f); /* 1 + r exactly, so that only the last sum's rounding counts */
    p = sum + (p * (r * r) + rest);
    p = p * vec_of(uvec_of(shifted) << 23) * 0x1p-64f;
    return vec_of(uvec_of(p) & ~vec_less(x, vec_all(-104.0f))); /* less than half the least number */
}

/*
 * 1 / (1 + exp(-x)), from e = exp(-|x|), which does not overflow and keeps the small values' relative accuracy. Most of what
 * the rounding of 1 + e left off is taken back to first order, q rest / (1 + e).
 */
INLINE vec vec_sigmoid(vec x) {
    const vec one = vec_all(1.0f), e = vec_exp(vec_of(uvec_of(x) | 0x80000000u));
    const vec sum = one + e, rest = e - (sum - one);
    const vec q = vec_choose(vec_less(x, vec_all(0.0f)), e, one) / sum;
    return q - q * (rest * (one - 0.5f * e));
}

#endif
