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
 * exp(x) for x <= 0 (a NaN stays one): x = n ln 2 + r with |r| <= ln(2)/2, then a polynomial in r (its coefficients fitted
 * to the least relative error) times 2^n in two steps, so that subnormal results round once.
 */
INLINE vec vec_exp(vec x) {
    const vec magic = vec_all(12582912.0f); /* 1.5 * 2^23: the sum's last bit is worth 1 */
    x = vec_choose(vec_less(x, vec_all(-150.0f)), vec_all(-150.0f), x);
    x = vec_choose(vec_less(vec_all(89.5f), x), vec_all(89.5f), x);
    const vec shifted = x * 1.44269504088896341f + magic, n = shifted - magic;
    const uvec whole = uvec_of(shifted) - uvec_of(magic);
    vec r = x - n * 0.693145751953125f;
    r = r - n * 1.42860676533018704e-06f;
    vec p = vec_all(1.97902438e-04f);
    p = p * r + 1.39447581e-03f;
    p = p * r + 8.33349768e-03f;
    p = p * r + 4.16662954e-02f;
    p = p * r + 1.66666657e-01f;
    p = p * r + 0.5f;
    const vec sum = 1.0f + r, rest = r - (sum - 1.0f); /* 1 + r exactly, so that only the last sum's rounding counts */
    p = sum + (p * (r * r) + rest);
    typedef int32_t ints __attribute__((vector_size(EVO_VECTOR_WIDTH * 4)));
    const uvec first = (uvec)((ints)whole >> 1), second = whole - first;
    return p * vec_of((first + 127) << 23) * vec_of((second + 127) << 23);
}

/*
 * 1 / (1 + exp(-x)), from exp(-|x|), which does not overflow and keeps the small values' relative accuracy. What the
 * rounding of 1 + e left off is taken back to first order; 1 / (1 + e) is q or 1 - q.
 */
INLINE vec vec_sigmoid(vec x) {
    const vec one = vec_all(1.0f), e = vec_exp(vec_of(uvec_of(x) | 0x80000000u));
    const vec sum = 1.0f + e, rest = e - (sum - 1.0f);
    const uvec negative = vec_less(x, vec_all(0.0f));
    const vec q = vec_choose(negative, e, one) / sum;
    return q - q * rest * vec_choose(negative, 1.0f - q, q);
}

#endif
