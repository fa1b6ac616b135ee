/*
 * trimul_norm.cu: for tensors in fp32, LayerNorm(z) without weight and bias in fp16: at most sqrt(c_z), so that it needs no
 * scale. project and finish then read half the bytes. A wave takes as many positions at once as its lanes have room for, a lane
 * 4 channels of each 128; four rounds of loads are under way.
 */
#include "backends/gpu/kernels/hopper/trimul.h"

static constexpr int THREADS = GPU_HOPPER_NORM_WAVES * 32, QUADS = GPU_HOPPER_MOST_WIDTH / 128,
                     ROUNDS = GPU_HOPPER_NORM_ROUNDS;

/* The means over `lanes` lanes' numbers, `count` together. */
template <int SUMS> EVO_DEVICE void mean_of_lanes(float (&sum)[SUMS], int lanes, float count) {
    for (int mask = 1; mask < lanes; mask *= 2) EVO_UNROLL
    for (int i = 0; i < SUMS; i++) sum[i] += wave_shuffle_xor(sum[i], mask);
    EVO_UNROLL
    for (int i = 0; i < SUMS; i++) sum[i] /= count;
}

/* This lane's quads of a position: channels 4 (lane + 32 k). */
template <int COUNT> struct position_part {
    float v[COUNT][4];

    EVO_METHOD void load(const float *from) {
        EVO_UNROLL
        for (int k = 0; k < COUNT; k++) unpack(*reinterpret_cast<const float4_t *>(from + 128 * k), v[k]);
    }
    EVO_METHOD void norm(int lanes, float count, float eps) {
        float mean[1] = { 0.0f };
        EVO_UNROLL
        for (int k = 0; k < COUNT; k++) mean[0] += (v[k][0] + v[k][1]) + (v[k][2] + v[k][3]);
        mean_of_lanes(mean, lanes, count);
        /* Of the differences: their sum, which the rounding of the mean left, and that of their squares. */
        float moments[2] = { 0.0f, 0.0f };
        EVO_UNROLL
        for (int k = 0; k < COUNT; k++) EVO_UNROLL
        for (int e = 0; e < 4; e++) {
            v[k][e] -= mean[0];
            moments[0] += v[k][e];
            moments[1] = multiply_add(v[k][e], v[k][e], moments[1]);
        }
        mean_of_lanes(moments, lanes, count);
        const float by = inverse_spread(moments[1], moments[0], eps), shift = -moments[0] * by;
        EVO_UNROLL
        for (int k = 0; k < COUNT; k++) EVO_UNROLL
        for (int e = 0; e < 4; e++) v[k][e] = multiply_add(v[k][e], by, shift);
    }
    EVO_METHOD void store(uint16_t *to) const {
        EVO_UNROLL
        for (int k = 0; k < COUNT; k++)
            *reinterpret_cast<uint2_t *>(to + 128 * k) = { pack_halves(v[k][0], v[k][1]),
                                                           pack_halves(v[k][2], v[k][3]) };
    }
};

/* COUNT quads a lane: c_z is 128 COUNT, or below 128. */
template <int COUNT> EVO_DEVICE void norm_positions(const gpu_hopper_norm_params &p) {
    const int lanes = p.c_z < 128 ? p.c_z / 4 : 32, together = 32 / lanes, lane = thread_x() % 32;
    const int64_t wave = static_cast<int64_t>(block_x()) * GPU_HOPPER_NORM_WAVES + thread_x() / 32,
                  first = wave * ROUNDS * together + lane / lanes;
    const int channel = lane % lanes * 4;
    const bool takes_part = lane < together * lanes;
    position_part<COUNT> x[ROUNDS];
    wait_for_kernel_ahead();
    EVO_UNROLL
    for (int r = 0; r < ROUNDS; r++) {
        const int64_t position = first + r * together, row = position / p.n, batch = row / p.n;
        x[r] = {};
        if (takes_part && position < p.positions)
            x[r].load(static_cast<const float *>(p.z.data) + batch * p.z.strides[0] +
                      (row - batch * p.n) * p.z.strides[1] + (position - row * p.n) * p.z.strides[2] + channel);
    }
    EVO_UNROLL
    for (int r = 0; r < ROUNDS; r++) {
        const int64_t position = first + r * together;
        x[r].norm(lanes, static_cast<float>(p.c_z), p.eps);
        if (takes_part && position < p.positions)
            x[r].store(static_cast<uint16_t *>(p.target) + position * p.c_z + channel);
    }
}

EVO_KERNEL(evo_hopper_norm, gpu_hopper_norm_params, THREADS, 1) {
    let_next_kernel_start();
    if (p.c_z <= 128)
        norm_positions<1>(p);
    else if (p.c_z <= 256)
        norm_positions<2>(p);
    else
        norm_positions<QUADS>(p);
}
