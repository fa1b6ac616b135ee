/*
 * norm_rows.h: rows of a tensor whose channels are its last index, normed on the way from global to shared memory, where
 * they are operands of matrix units: [row][depth], rounded to T. Eight lanes share a row, eight channels each at a time;
 * every number is read once. Statistics as in layer_norm.h, but for the spread, which is mean(d^2) - r^2 here, so that sums are
 * exchanged twice, not three times: r is what rounding left of the mean, so that little cancels.
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_NORM_ROWS_H
#define EVO_BACKENDS_GPU_KERNELS_NORM_ROWS_H

#include "backends/gpu/kernels/product.h"
#include "backends/gpu/kernels/scales.h"

enum row_kind {
    ROWS_OF_BFLOATS, /* 16 bytes a load */
    ROWS_OF_HALVES,  /* likewise */
    ROWS_OF_FLOATS,  /* fp32, 16 bytes a load */
    ROWS_OF_ANY
};

EVO_DEVICE row_kind kind_of(const gpu_tensor &t, int channels) {
    if (t.vector == 0 || channels % 8) return ROWS_OF_ANY;
    if (t.dtype == GPU_FP32) return ROWS_OF_FLOATS;
    if (t.vector == 1) return ROWS_OF_ANY;
    return t.dtype == GPU_BF16 ? ROWS_OF_BFLOATS : ROWS_OF_HALVES;
}

/* Eight channels as they are stored. */
template <row_kind KIND> struct octet {
    static constexpr bool PAIRED = KIND == ROWS_OF_BFLOATS || KIND == ROWS_OF_HALVES; /* two numbers a register */
    uint32_t r[PAIRED ? 4 : 8];

    /* From `index` on, `count` of them; the others are 0. */
    EVO_METHOD void load(const gpu_tensor &t, int64_t index, int count) {
        if constexpr (KIND == ROWS_OF_ANY) {
            EVO_UNROLL
            for (int e = 0; e < 8; e++)
                r[e] = e < count ? float_bits(load_number(t.data, t.dtype, index + e * t.strides[3])) : 0u;
        } else {
            constexpr int QUADS = PAIRED ? 1 : 2, SIZE = PAIRED ? 2 : 4;
            const float4_t *from =
                reinterpret_cast<const float4_t *>(static_cast<const unsigned char *>(t.data) + index * SIZE);
            EVO_UNROLL
            for (int q = 0; q < QUADS; q++) {
                float4_t v = { 0.0f, 0.0f, 0.0f, 0.0f };
                if (count > 0) v = from[q];
                r[4 * q] = float_bits(v.x);
                r[4 * q + 1] = float_bits(v.y);
                r[4 * q + 2] = float_bits(v.z);
                r[4 * q + 3] = float_bits(v.w);
            }
        }
    }

    EVO_METHOD void unpack(float *x) const {
        EVO_UNROLL
        for (int e = 0; e < 8; e++) {
            if constexpr (KIND == ROWS_OF_BFLOATS)
                x[e] = bits_float(e % 2 ? r[e / 2] & 0xffff0000u : r[e / 2] << 16);
            else if constexpr (KIND == ROWS_OF_HALVES)
                x[e] = half_to_float(static_cast<uint16_t>(r[e / 2] >> (e % 2 * 16) & 0xffffu));
            else
                x[e] = bits_float(r[e]);
        }
    }
};

/* Eight numbers of a row to shared memory as T, from number k, a multiple of 8, on. */
template <class T> EVO_DEVICE void store_octet(const float (&x)[8], unsigned char *row, int k) {
    unsigned char *target = row + byte_of<T>(k);
    if constexpr (IS_SPLIT<T>) {
        uint32_t high[4], low[4];
        EVO_UNROLL
        for (int q = 0; q < 4; q++) split_pair(x[2 * q], x[2 * q + 1], high + q, low + q);
        *reinterpret_cast<float4_t *>(target) = { bits_float(high[0]), bits_float(high[1]), bits_float(high[2]),
                                                  bits_float(high[3]) };
        *reinterpret_cast<float4_t *>(target + K_BYTES) = { bits_float(low[0]), bits_float(low[1]), bits_float(low[2]),
                                                            bits_float(low[3]) };
    } else {
        *reinterpret_cast<float4_t *>(target) = { bits_float(T::pack(x[0], x[1])), bits_float(T::pack(x[2], x[3])),
                                                  bits_float(T::pack(x[4], x[5])), bits_float(T::pack(x[6], x[7])) };
    }
}

/* What to do with the rows. */
struct norm_task {
    const gpu_tensor *tensor;
    const float *norm;   /* LayerNorm's weight and bias as evo_tensor_pack_norm lays them, zeros past the channels */
    int channels, depth; /* depth: a multiple of 8, at most 64 * OCTETS */
    bool raw;            /* the rows as they are */
    float eps;
};

EVO_DEVICE float sum_of_lanes(float value) {
    value += wave_shuffle_xor(value, 4);
    value += wave_shuffle_xor(value, 2);
    return value + wave_shuffle_xor(value, 1);
}

EVO_DEVICE float largest_of_lanes(float value) {
    EVO_UNROLL
    for (int mask = 4; mask > 0; mask /= 2) value = larger(value, wave_shuffle_xor(value, mask));
    return value;
}

/* Weight and bias of this lane's eight channels of the group from `first` on. */
EVO_DEVICE void load_norm(const norm_task &task, int first, float4_t *norm) {
    const float4_t *from = reinterpret_cast<const float4_t *>(task.norm + 2 * first) + thread_x() % 8;
    EVO_UNROLL
    for (int q = 0; q < 4; q++) norm[q] = from[8 * q];
}

/* 1 / sqrt(variance + eps) of `count` numbers d whose mean is `rest`; `square`: their squares' mean. NaN stays NaN. */
template <class T> EVO_DEVICE float spread_scale(float square, float rest, float eps) {
    const float variance = multiply_add(-rest, rest, square), spread = (variance < 0.0f ? 0.0f : variance) + eps;
    return IS_SPLIT<T> ? 1.0f / square_root(spread) : hardware_rsqrt(spread);
}

/* Of one row: LayerNorm's numbers, or the power of two of a raw row: (x - mean) * scale + shift. */
struct row_scale {
    float mean, scale, shift;

    /* 0 for channels that are not there, so that their zeros stay what they are. */
    EVO_METHOD float mean_at(const norm_task &task, int channel) const {
        return channel < task.channels ? mean : 0.0f;
    }
};

/* Statistics of a row of which this lane has channels first + 64 q + (0 ... 7); a raw row's scale, and its inverse if it is wanted. */
template <class T, row_kind KIND, int OCTETS>
EVO_DEVICE row_scale measure_octets(const norm_task &task, const octet<KIND> (&stored)[OCTETS], int first,
                                    float *inverse) {
    row_scale own = { 0.0f, 1.0f, 0.0f };
    float x[OCTETS * 8];
    EVO_UNROLL
    for (int q = 0; q < OCTETS; q++) stored[q].unpack(x + 8 * q);
    if (!task.raw) {
        const float share = 1.0f / static_cast<float>(task.channels);
        float sum = 0.0f, rest = 0.0f, square = 0.0f;
        EVO_UNROLL
        for (int i = 0; i < OCTETS * 8; i++) sum += x[i];
        own.mean = sum_of_lanes(sum) * share;
        EVO_UNROLL
        for (int i = 0; i < OCTETS * 8; i++) {
            x[i] -= own.mean_at(task, first + i / 8 * 64 + (KIND == ROWS_OF_ANY ? i % 8 : 0));
            rest += x[i];
            square = multiply_add(x[i], x[i], square);
        }
        rest = sum_of_lanes(rest) * share;
        own.scale = spread_scale<T>(sum_of_lanes(square) * share, rest, task.eps);
        own.shift = -rest * own.scale;
    } else if (inverse) {
        float most = 0.0f;
        EVO_UNROLL
        for (int i = 0; i < OCTETS * 8; i++) most = larger(most, finite_magnitude(x[i]));
        const int exponent = OPERAND_EXPONENT - exponent_above(largest_of_lanes(most));
        own.scale = power_of_two(exponent);
        if (thread_x() % 8 == 0) *inverse = power_of_two(-exponent);
    }
    return own;
}

/*
 * Rows TOGETHER at a time: their loads are under way at once, LayerNorm's weight and bias are read once for all of them, and no branch
 * stands between them. Numbers stay as they were stored meanwhile, which takes fewer registers. WAVES: those that share the rows, all of
 * the block's or one for itself.
 */
template <class T, int ROWS, int OCTETS, int WAVES, row_kind KIND, class LOCATE>
EVO_DEVICE void norm_rows_of(const norm_task &task, const LOCATE &locate, unsigned char *shared, int pitch,
                             float *inverse) {
    constexpr int GROUPS = WAVES * WAVE / 8, ROUNDS = ROWS / GROUPS,
                  ROW_REGISTERS = OCTETS * (octet<KIND>::PAIRED ? 4 : 8);
    constexpr int WANTED = KIND == ROWS_OF_ANY || ROW_REGISTERS > 24 ? 1 : OCTETS > 1 ? 2 : 4;
    constexpr int TOGETHER = WANTED < ROUNDS ? WANTED : ROUNDS;
    static_assert(ROUNDS % TOGETHER == 0, "whole rounds");
    const gpu_tensor &t = *task.tensor;
    const int first = thread_x() % 8 * 8, group = thread_x() % (WAVES * WAVE) / 8;
    constexpr bool KEPT = OCTETS <= 2; /* LayerNorm's weight and bias stay in registers */
    float4_t norm[KEPT ? 4 * OCTETS : 4];
    EVO_UNROLL
    for (int q = 0; KEPT && q < OCTETS; q++)
        if (!task.raw && first + 64 * q < task.depth) load_norm(task, 64 * q, norm + 4 * q);
    for (int round = 0; round < ROUNDS; round += TOGETHER) {
        const int row = group + round * GROUPS;
        octet<KIND> stored[TOGETHER][OCTETS];
        row_scale own[TOGETHER];
        EVO_UNROLL
        for (int u = 0; u < TOGETHER; u++) {
            int64_t offset = 0;
            const bool valid = locate(row + u * GROUPS, &offset);
            EVO_UNROLL
            for (int q = 0; q < OCTETS; q++) {
                const int channel = first + 64 * q;
                stored[u][q].load(t, offset + channel * t.strides[3], valid ? task.channels - channel : 0);
            }
        }
        EVO_UNROLL
        for (int u = 0; u < TOGETHER; u++)
            own[u] = measure_octets<T>(task, stored[u], first, inverse ? inverse + row + u * GROUPS : nullptr);
        EVO_UNROLL
        for (int q = 0; q < OCTETS; q++) {
            const int channel = first + 64 * q;
            if (channel >= task.depth) continue;
            if (!KEPT && !task.raw) load_norm(task, 64 * q, norm);
            EVO_UNROLL
            for (int u = 0; u < TOGETHER; u++) {
                float x[8];
                stored[u][q].unpack(x);
                EVO_UNROLL
                for (int e = 0; e < 8; e++) {
                    const float mean = own[u].mean_at(task, channel + (KIND == ROWS_OF_ANY ? e : 0));
                    const float4_t &two = norm[(KEPT ? q : 0) * 4 + e / 2];
                    x[e] = multiply_add(x[e] - mean, own[u].scale, own[u].shift);
                    if (!task.raw) x[e] = multiply_add(x[e], e % 2 ? two.z : two.x, e % 2 ? two.w : two.y);
                }
                store_octet<T>(x, shared + (row + u * GROUPS) * pitch, channel);
            }
        }
    }
}

/*
 * Rows 0 to ROWS - 1, `pitch` bytes apart in shared memory. `locate(row, &offset)` gives where a row's first channel is in
 * the tensor, and false for a row that is not there. Raw rows are scaled to fit fp16 if `inverse` is not null, which gets
 * the inverse of each row's scale.
 */
template <class T, int ROWS, int OCTETS, int WAVES = GPU_BLOCK_WAVES, class LOCATE>
EVO_DEVICE void norm_rows(const norm_task &task, const LOCATE &locate, unsigned char *shared, int pitch,
                          float *inverse) {
    switch (kind_of(*task.tensor, task.channels)) {
    case ROWS_OF_BFLOATS:
        norm_rows_of<T, ROWS, OCTETS, WAVES, ROWS_OF_BFLOATS>(task, locate, shared, pitch, inverse);
        break;
    case ROWS_OF_HALVES:
        norm_rows_of<T, ROWS, OCTETS, WAVES, ROWS_OF_HALVES>(task, locate, shared, pitch, inverse);
        break;
    case ROWS_OF_FLOATS:
        norm_rows_of<T, ROWS, OCTETS, WAVES, ROWS_OF_FLOATS>(task, locate, shared, pitch, inverse);
        break;
    default:
        norm_rows_of<T, ROWS, OCTETS, WAVES, ROWS_OF_ANY>(task, locate, shared, pitch, inverse);
    }
}

#endif
