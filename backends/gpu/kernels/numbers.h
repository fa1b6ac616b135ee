/* numbers.h: stored numbers as floats and back; the functions that fp32 arithmetic needs. */
#ifndef EVO_BACKENDS_GPU_KERNELS_NUMBERS_H
#define EVO_BACKENDS_GPU_KERNELS_NUMBERS_H

#include "backends/gpu/device.h"
#include "backends/gpu/kernels/params.h"

EVO_DEVICE float bfloat_to_float(uint32_t bits) {
    return bits_float(bits << 16);
}

/* To nearest even; a NaN stays one. */
EVO_DEVICE uint16_t float_to_bfloat(float value) {
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

EVO_DEVICE float load_number(const void *data, int dtype, int64_t index) {
    switch (dtype) {
    case GPU_FP64: /* masks only */
        return static_cast<float>(static_cast<const double *>(data)[index]);
    case GPU_FP32:
        return static_cast<const float *>(data)[index];
    case GPU_BF16:
        return bfloat_to_float(static_cast<const uint16_t *>(data)[index]);
    case GPU_FP16:
        return half_to_float(static_cast<const uint16_t *>(data)[index]);
    default:
        return static_cast<float>(static_cast<const uint8_t *>(data)[index]);
    }
}

EVO_DEVICE double load_double(const void *data, int dtype, int64_t index) {
    if (dtype == GPU_FP64) return static_cast<const double *>(data)[index];
    return static_cast<double>(load_number(data, dtype, index));
}

EVO_DEVICE void store_number(void *data, int dtype, int64_t index, float value) {
    if (dtype == GPU_FP32)
        static_cast<float *>(data)[index] = value;
    else
        static_cast<uint16_t *>(data)[index] = dtype == GPU_BF16 ? float_to_bfloat(value) : float_to_half(value);
}

EVO_DEVICE void unpack(const float4_t &v, float (&x)[4]) {
    x[0] = v.x;
    x[1] = v.y;
    x[2] = v.z;
    x[3] = v.w;
}

/* The numbers index, index + stride ... of a row, `count` of them at most 4; the rest are 0. */
EVO_DEVICE void load_four(const gpu_tensor &t, int64_t index, int count, float (&x)[4]) {
    if (t.vector && count >= 4) {
        if (t.dtype == GPU_FP32) {
            unpack(*reinterpret_cast<const float4_t *>(static_cast<const float *>(t.data) + index), x);
            return;
        }
        const uint2_t v = *reinterpret_cast<const uint2_t *>(static_cast<const uint16_t *>(t.data) + index);
        const uint32_t pairs[2] = { v.x, v.y };
        EVO_UNROLL
        for (int e = 0; e < 4; e++) {
            const uint32_t bits = pairs[e / 2] >> (e % 2 * 16) & 0xffffu;
            x[e] = t.dtype == GPU_BF16 ? bfloat_to_float(bits) : half_to_float(static_cast<uint16_t>(bits));
        }
        return;
    }
    EVO_UNROLL
    for (int e = 0; e < 4; e++) x[e] = e < count ? load_number(t.data, t.dtype, index + e * t.strides[3]) : 0.0f;
}

EVO_DEVICE void store_four(const gpu_tensor &t, int64_t index, int count, const float (&x)[4]) {
    if (t.vector && count >= 4) {
        if (t.dtype == GPU_FP32) {
            *reinterpret_cast<float4_t *>(static_cast<float *>(t.data) + index) = { x[0], x[1], x[2], x[3] };
            return;
        }
        uint32_t bits[4];
        EVO_UNROLL
        for (int e = 0; e < 4; e++) bits[e] = t.dtype == GPU_BF16 ? float_to_bfloat(x[e]) : float_to_half(x[e]);
        *reinterpret_cast<uint2_t *>(static_cast<uint16_t *>(t.data) + index) = { bits[0] | bits[1] << 16,
                                                                                  bits[2] | bits[3] << 16 };
        return;
    }
    EVO_UNROLL
    for (int e = 0; e < 4; e++)
        if (e < count) store_number(t.data, t.dtype, index + e * t.strides[3], x[e]);
}

/* Likewise eight. */
EVO_DEVICE void store_eight(const gpu_tensor &t, int64_t index, int count, const float (&x)[8]) {
    if (t.vector > 1 && count >= 8 && t.dtype != GPU_FP32) {
        float words[4];
        EVO_UNROLL
        for (int w = 0; w < 4; w++)
            words[w] = bits_float(t.dtype == GPU_BF16 ? pack_bfloats(x[2 * w], x[2 * w + 1])
                                                      : pack_halves(x[2 * w], x[2 * w + 1]));
        *reinterpret_cast<float4_t *>(static_cast<uint16_t *>(t.data) + index) = { words[0], words[1], words[2],
                                                                                   words[3] };
        return;
    }
    EVO_UNROLL
    for (int q = 0; q < 8; q += 4)
        if (q < count) store_four(t, index + q * t.strides[3], count - q, { x[q], x[q + 1], x[q + 2], x[q + 3] });
}

/*
 * e^x within 2 units in the last place: 2^n times a polynomial of what is left, at most ln(2) / 2. Arguments beyond +-88
 * count as that (a sigmoid is 1 or below 1e-38 there); NaN stays NaN.
 */
EVO_DEVICE float exponential(float x) {
    const float log2e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, in the low bits */
    x = x > 88.0f ? 88.0f : x < -88.0f ? -88.0f : x;
    const float shifted = multiply_add(x, log2e, shift), n = shifted - shift;
    const float f = multiply_add(n, -ln2_low, multiply_add(n, -ln2_high, x));
    float p = multiply_add(1.9875691500e-4f, f, 1.3981999507e-3f);
    p = multiply_add(p, f, 8.3334519073e-3f);
    p = multiply_add(p, f, 4.1665795894e-2f);
    p = multiply_add(p, f, 1.6666665459e-1f);
    p = multiply_add(p, f, 5.0000001201e-1f);
    p = multiply_add(p, f * f, f) + 1.0f;
    return p * bits_float((float_bits(shifted) << 23) + 0x3f800000u);
}

/* One Newton step takes the reciprocal's error out. */
EVO_DEVICE float sigmoid(float x) {
    const float whole = 1.0f + exponential(-x), part = hardware_reciprocal(whole);
    return multiply_add(part, multiply_add(-whole, part, 1.0f), part);
}

/* A mask of a caller at an offset; absent: 1. */
EVO_DEVICE float load_mask(const gpu_tensor &mask, int64_t index) {
    return mask.dtype == GPU_NONE ? 1.0f : load_number(mask.data, mask.dtype, index);
}

#endif
