/*
 * scales.h: powers of two that keep numbers within fp16, which ends at 65504. They are exact, so that they change nothing
 * but the range; in bf16 all are 1. What a LayerNorm feeds is bounded by the weights alone (docs/numerics.md):
 *
 *   x_j = weight_j * normed_j + bias_j, at most sqrt(c) |weight_j| + |bias_j|     column scale: x_j below 2^10
 *   row r of a matrix, its columns divided by their scales                        row scale: every element below 2^10
 *   w . x + b, at most sqrt(c) |w * weight| + |w . bias + b|                      store scale: below 2^15
 *
 * A product's sum is multiplied by the inverse of its row's scale in fp32. Weights that are not finite have scale 1 and
 * take no part in the others' scales. Masks are divided by the power of two of their row (tensor_mask.cu).
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_SCALES_H
#define EVO_BACKENDS_GPU_KERNELS_SCALES_H

#include "backends/gpu/kernels/numbers.h"

enum {
    OPERAND_EXPONENT = 10,
    STORE_EXPONENT = 15,
    SCALE_LIMIT = 100, /* of exponents, so that a product of two scales and its inverse are floats */
    MASK_LIMIT = 126
};

EVO_DEVICE bool is_finite(float x) {
    return (float_bits(x) & 0x7f800000u) != 0x7f800000u;
}

EVO_DEVICE float finite_magnitude(float x) {
    return is_finite(x) ? bits_float(float_bits(x) & 0x7fffffffu) : 0.0f;
}

EVO_DEVICE float larger(float a, float b) {
    return a > b ? a : b;
}

/* The smallest e with x <= 2^e, within `limit`; 0 where x is 0 or not finite. x is not negative. */
EVO_DEVICE int exponent_above(float x, int limit = SCALE_LIMIT) {
    const uint32_t bits = float_bits(x);
    if (bits == 0 || !is_finite(x)) return 0;
    const int e = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffu) != 0);
    return e > limit ? limit : e < -limit ? -limit : e;
}

/* As evo_tensor_mask_rows finds it, of a short row: its `count` elements, `stride` apart, by 32 lanes together. */
EVO_DEVICE int mask_exponent(const gpu_tensor &mask, int64_t first, int64_t stride, int count) {
    float most = 0.0f;
    for (int k = thread_x() % 32; k < count; k += 32)
        most = larger(most, finite_magnitude(load_mask(mask, first + k * stride)));
    for (int lanes = 16; lanes > 0; lanes /= 2) most = larger(most, wave_shuffle_xor(most, lanes));
    return exponent_above(most, MASK_LIMIT);
}

/* e from -126 to 127. */
EVO_DEVICE float power_of_two(int e) {
    return bits_float(static_cast<uint32_t>(e + 127) << 23);
}

/* A mask as it is stored, so that a loop of loads does not branch on its type: 16 bits are a bfloat or a half. */
template <class NUMBER> EVO_DEVICE float mask_value(NUMBER stored, bool is_bfloat) {
    if constexpr (sizeof(NUMBER) == 2) {
        const float bfloat = bfloat_to_float(stored), half = half_to_float(stored);
        return is_bfloat ? bfloat : half;
    } else {
        (void)is_bfloat;
        return static_cast<float>(stored);
    }
}

/* The exponent of the scale of channel j of what a LayerNorm over `count` channels gives. */
EVO_DEVICE int column_exponent(float weight, float bias, int count) {
    const float most =
        multiply_add(square_root(static_cast<float>(count)), finite_magnitude(weight), finite_magnitude(bias));
    return OPERAND_EXPONENT - exponent_above(most);
}

#endif
