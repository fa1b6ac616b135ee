/*
 * number.h: stored numbers as doubles and back. Loads are exact; stores round once, to nearest even, straight from the
 * double (going through fp32 would round twice). 16-bit formats are handled as integers: C11 has no type for them.
 */
#ifndef EVO_SRC_NUMBER_H
#define EVO_SRC_NUMBER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "evoformer/tensor.h"

static inline uint64_t evo_double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double evo_bits_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/** A 16-bit float with `fraction` bits after the point and the exponent bias `bias`. */
static inline double evo_widen16(uint16_t code, int fraction, int bias) {
    const uint64_t sign = (uint64_t)(code >> 15) << 63;
    const int top = 2 * bias + 1, exponent = (code >> fraction) & top;
    const uint64_t mantissa = code & ((1u << fraction) - 1);
    if (exponent == 0) {
        const double magnitude = ldexp((double)mantissa, 1 - bias - fraction);
        return sign ? -magnitude : magnitude;
    }
    const uint64_t wide = exponent == top ? 0x7ff : (uint64_t)(exponent - bias + 1023);
    return evo_bits_double(sign | wide << 52 | mantissa << (52 - fraction));
}

static inline uint16_t evo_narrow16(double value, int fraction, int bias) {
    const uint64_t bits = evo_double_bits(value);
    const uint16_t sign = (uint16_t)(bits >> 48 & 0x8000);
    const uint16_t infinity = (uint16_t)((2 * bias + 1) << fraction);
    const int wide = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & 0xfffffffffffffu;
    if (wide == 0x7ff) return (uint16_t)(sign | infinity | (mantissa ? 1 << (fraction - 1) : 0));
    if (wide == 0) return sign; /* a subnormal double is below half of every 16-bit step */

    mantissa |= 1ull << 52;
    int exponent = wide - 1023 + bias, shift = 52 - fraction;
    if (exponent < 1) { /* subnormal result */
        shift += 1 - exponent;
        exponent = 1;
    }
    if (shift > 53) return sign;
    const uint64_t rest = mantissa & ((1ull << shift) - 1), half = 1ull << (shift - 1);
    uint64_t kept = mantissa >> shift;
    kept += rest > half || (rest == half && (kept & 1));
    /* The implicit bit of `kept` carries into the exponent, as does a rounding up to the next power of two. */
    const uint64_t code = ((uint64_t)(exponent - 1) << fraction) + kept;
    return (uint16_t)(sign | (code < infinity ? code : infinity));
}

static inline double evo_load(const void *data, evo_dtype dtype, int64_t index) {
    switch (dtype) {
    case EVO_FP64:
        return ((const double *)data)[index];
    case EVO_FP32:
        return (double)((const float *)data)[index];
    case EVO_BF16:
        return evo_widen16(((const uint16_t *)data)[index], 7, 127);
    case EVO_FP16:
        return evo_widen16(((const uint16_t *)data)[index], 10, 15);
    case EVO_UINT8:
        return (double)((const uint8_t *)data)[index];
    default:
        return 0.0;
    }
}

static inline void evo_store(void *data, evo_dtype dtype, int64_t index, double value) {
    switch (dtype) {
    case EVO_FP64:
        ((double *)data)[index] = value;
        break;
    case EVO_FP32:
        ((float *)data)[index] = (float)value;
        break;
    case EVO_BF16:
        ((uint16_t *)data)[index] = evo_narrow16(value, 7, 127);
        break;
    case EVO_FP16:
        ((uint16_t *)data)[index] = evo_narrow16(value, 10, 15);
        break;
    case EVO_UINT8:
        ((uint8_t *)data)[index] = value > 0.0 ? (uint8_t)(value < 255.0 ? value : 255.0) : 0;
        break;
    default:
        break;
    }
}

#endif
