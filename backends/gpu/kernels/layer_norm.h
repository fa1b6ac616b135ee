/*
 * layer_norm.h: LayerNorm's statistics of a tile's positions, and the tile itself as a product's operand.
 *
 * m = mean(x); d = x - m; r = mean(d); var = mean((d - r)^2); normed = (x - m - r) / sqrt(var + eps). r takes out what the
 * rounding of m left, which matters where the mean is large against the spread. Weight and bias are applied at once, not
 * folded into what follows, so that infinities and NaNs go where the formula says.
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_LAYER_NORM_H
#define EVO_BACKENDS_GPU_KERNELS_LAYER_NORM_H

#include "backends/gpu/kernels/tile.h"

/* In shared memory, one entry a position. */
template <int ROWS> struct statistics {
    float mean[ROWS], rest[ROWS], scale[ROWS];
};

/* Sums over the 8 threads that share a position. */
EVO_DEVICE float sum_of_eight(float value) {
    value += wave_shuffle_xor(value, 4);
    value += wave_shuffle_xor(value, 2);
    return value + wave_shuffle_xor(value, 1);
}

/*
 * sum over the channels of (x - mean - rest)^POWER for this thread's share of a position: quads of channels in turn among 8
 * threads.
 */
template <int POWER>
EVO_DEVICE float sum_channels(const gpu_tensor &t, int64_t offset, int channels, float mean, float rest) {
    float sum = 0.0f;
    for (int first = thread_x() % 8 * 4; first < channels; first += 32) {
        float x[4];
        load_four(t, offset + first * t.strides[3], channels - first, x);
        EVO_UNROLL
        for (int e = 0; e < 4; e++) {
            const float d = x[e] - mean - rest;
            if (first + e < channels) sum += POWER == 1 ? d : d * d;
        }
    }
    return sum_of_eight(sum);
}

/* Statistics of one position, whose channels start at `offset`; all 8 threads get them. */
EVO_DEVICE void position_statistics(const gpu_tensor &t, int64_t offset, int channels, float eps, float *mean,
                                    float *rest, float *scale) {
    const float count = static_cast<float>(channels);
    *mean = sum_channels<1>(t, offset, channels, 0.0f, 0.0f) / count;
    *rest = sum_channels<1>(t, offset, channels, *mean, 0.0f) / count;
    *scale = 1.0f / square_root(sum_channels<2>(t, offset, channels, *mean, *rest) / count + eps);
}

/*
 * A tile's positions as the source of staged operands, normed on the way from a tensor whose channels are its last index.
 * LANES threads share a position; each reads a quad of channels of every DEPTH. Threads beyond that have nothing to read.
 */
template <class TILE> struct normed_rows {
    static constexpr int ROWS = TILE::ROWS, LANES = TILE::DEPTH / 4;
    static_assert(LANES * ROWS <= TILE::THREADS, "a quad a thread");
    const gpu_tensor *tensor;
    const float *weight, *bias; /* LayerNorm's, zeros past the channels */
    int64_t offset;             /* of the position's first channel */
    int channels;
    bool valid;
    float mean, rest, scale;
    float x[4], w[4], b[4];

    EVO_METHOD static bool has_thread() {
        return thread_x() < LANES * ROWS;
    }
    EVO_METHOD static int thread_row() {
        return has_thread() ? thread_x() / LANES : 0;
    }

    EVO_METHOD void fetch(int k) {
        if (!has_thread()) return;
        const int channel = k + thread_x() % LANES * 4;
        load_four(*tensor, offset + channel * tensor->strides[3], valid ? channels - channel : 0, x);
        unpack(*reinterpret_cast<const float4_t *>(weight + channel), w);
        unpack(*reinterpret_cast<const float4_t *>(bias + channel), b);
    }

    EVO_METHOD void put(float *stage) {
        if (!has_thread()) return;
        EVO_UNROLL
        for (int e = 0; e < 4; e++)
            stage[(thread_x() % LANES * 4 + e) * ROWS + thread_row()] =
                multiply_add((x[e] - mean - rest) * scale, w[e], b[e]);
    }
};

#endif
