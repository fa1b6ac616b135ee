/* trimul.h: what project and finish of tier `hopper` share: LayerNorm in registers, fragments, the gate. */
#ifndef EVO_BACKENDS_GPU_KERNELS_HOPPER_TRIMUL_H
#define EVO_BACKENDS_GPU_KERNELS_HOPPER_TRIMUL_H

#include "backends/gpu/device_hopper.h"
#include "backends/gpu/kernels/hopper/params.h"

/* Blocks of 64 in a number of steps of 16. */
EVO_DEVICE constexpr int blocks_of(int steps) {
    return (steps + 3) / 4;
}

/*
 * Loads rows of a packed matrix from `from` on, in chunks of COLUMNS with panels of 64 k, and lets `full` wait for them. The pack is
 * older than the kernel ahead: its last kernel has seen all of it.
 */
template <int COLUMNS, int BLOCKS>
EVO_DEVICE void load_matrix(const gpu_tensor_map &map, uint32_t target, uint32_t full, int chunks, int from) {
    constexpr int PANEL_BYTES = COLUMNS * 128;
    barrier_expect(full, chunks * BLOCKS * PANEL_BYTES);
    for (int q = 0; q < chunks; q++)
        for (int k = 0; k < BLOCKS; k++)
            bulk_load(target + (q * BLOCKS + k) * PANEL_BYTES, map, full, k * 64, from + q * COLUMNS, 0);
}
/* Likewise the biases of `rows` of them, by all threads of the block. */
template <int THREADS> EVO_DEVICE void load_biases(const uint64_t *from, uint64_t (*target)[2], int rows) {
    for (int i = thread_x(); i < rows * 2; i += THREADS) write_shared(&target[i / 2][i % 2], from[i]);
}

/* Where a tile of 64 positions stands. */
struct position_tile {
    int batch, i, block;

    EVO_METHOD int j() const {
        return block * GPU_HOPPER_POSITIONS;
    }
};
EVO_DEVICE position_tile find_tile(int tile, int n) {
    const int per_row = (n + GPU_HOPPER_POSITIONS - 1) / GPU_HOPPER_POSITIONS, row = tile / per_row, batch = row / n;
    return { batch, row - batch * n, tile - row * per_row };
}

/* Sums over the four lanes that share a position, two positions at once. */
EVO_DEVICE void quad_sum(float (&v)[2]) {
    EVO_UNROLL
    for (int mask = 1; mask < 4; mask *= 2) {
        const float u = wave_shuffle_xor(v[0], mask), w = wave_shuffle_xor(v[1], mask);
        v[0] += u;
        v[1] += w;
    }
}

/* 1 / sqrt(variance + eps) of numbers whose squares' mean is `square` and whose own is `rest`, small beside their spread. */
EVO_DEVICE float inverse_spread(float square, float rest, float eps) {
    const float variance = multiply_add(-rest, rest, square);
    return hardware_reciprocal_root((variance < 0.0f ? 0.0f : variance) + eps);
}

/*
 * LayerNorm without weight and bias, which are folded into the matrices. A wave holds 16 positions x 16 STEPS channels as
 * a product's operand: x[s][0] and x[s][2] belong to position l / 4 of lane l, x[s][1] and x[s][3] to that + 8. The numbers
 * have 16 bits, so that their sum is nearly exact and the mean, rounded once, needs no correction.
 */
template <int TYPE, int STEPS> EVO_DEVICE void layer_norm(uint32_t (&x)[STEPS][4], float eps) {
    const float count = 16.0f * STEPS;
    float sum[2] = { 0.0f, 0.0f }, squares[2];
    EVO_UNROLL
    for (int s = 0; s < STEPS; s++) EVO_UNROLL
    for (int e = 0; e < 4; e++) sum[e % 2] += low_of<TYPE>(x[s][e]) + high_of<TYPE>(x[s][e]);
    quad_sum(sum);
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        float part[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
        sum[h] = sum[h] / count;
        EVO_UNROLL
        for (int s = 0; s < STEPS; s++) EVO_UNROLL
        for (int e = h; e < 4; e += 2) {
            const float low = low_of<TYPE>(x[s][e]) - sum[h], high = high_of<TYPE>(x[s][e]) - sum[h];
            part[e / 2] = multiply_add(low, low, part[e / 2]);
            part[2 + e / 2] = multiply_add(high, high, part[2 + e / 2]);
        }
        squares[h] = (part[0] + part[1]) + (part[2] + part[3]);
    }
    quad_sum(squares);
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const float scale = hardware_reciprocal_root(multiply_add(squares[h], 1.0f / count, eps));
        EVO_UNROLL
        for (int s = 0; s < STEPS; s++) EVO_UNROLL
        for (int e = h; e < 4; e += 2)
            x[s][e] = pack<TYPE>((low_of<TYPE>(x[s][e]) - sum[h]) * scale, (high_of<TYPE>(x[s][e]) - sum[h]) * scale);
    }
}

/* A wave's 16 positions of a tile [blocks of 64 channels][64 positions][64 channels]. */
template <int STEPS> EVO_DEVICE void load_rows(uint32_t (&x)[STEPS][4], uint32_t tile, int wave, int lane) {
    EVO_UNROLL
    for (int s = 0; s < STEPS; s++)
        load_fragments(x[s], tile + s / 4 * BLOCK_BYTES + swizzled(wave * 16 + lane % 16, s % 4 * 2 + lane / 16));
}
/* The same from a tile [channels][64 positions]. */
template <int STEPS> EVO_DEVICE void load_columns(uint32_t (&x)[STEPS][4], uint32_t tile, int wave, int lane) {
    EVO_UNROLL
    for (int s = 0; s < STEPS; s++)
        load_fragments_transposed(x[s], tile + swizzled(s * 16 + lane % 8 + lane / 16 * 8, wave * 2 + lane / 8 % 2));
}

/*
 * value * sigmoid / inverse: the gate's matrix and bias are packed times -log2(e), so that `exponent` is the logarithm of what
 * stands beside 1 in the denominator. Relative error 2^-21, closed gates too. A factor of the value costs nothing as its
 * inverse in the denominator.
 */
EVO_DEVICE float gated(float value, float exponent, float inverse = 1.0f) {
    return value * hardware_reciprocal(multiply_add(hardware_exp2(exponent), inverse, inverse));
}

/* Of 0 the largest number, in place of infinity: beside a gate that is open to the last bit infinity would meet a 0. */
EVO_DEVICE float inverse_mask(float mask) {
    const float inverse = hardware_reciprocal(mask);
    return bits_float((float_bits(inverse) & 0x7fffffffu) == 0x7f800000u ? float_bits(inverse) - 1
                                                                         : float_bits(inverse));
}

/* Channels of a chunk, gated and masked, 16 a row of r, as store_fragments_transposed() takes them. */
template <int TYPE, int COUNT>
EVO_DEVICE void gate_chunk(const float (&d)[COUNT], const float (&inverse)[2], uint32_t (&r)[COUNT / 16][4]) {
    EVO_UNROLL
    for (int m = 0; m < COUNT / 16; m++) EVO_UNROLL
    for (int e = 0; e < 4; e++) {
        const float *value = &d[(2 * m + e / 2) * 8 + e % 2 * 2], *gate = value + 4;
        r[m][e] = pack<TYPE>(gated(value[0], gate[0], inverse[e % 2]), gated(value[1], gate[1], inverse[e % 2]));
    }
}

/* The eps of t's LayerNorm at the scale that t has. */
template <int TYPE> EVO_DEVICE float t_eps(const gpu_hopper_finish_params &p) {
    if (TYPE != GPU_FP16) return p.eps;
    const float scale = p.t_scale / (*p.largest * *p.mask_scale * *p.mask_scale);
    return p.eps * scale * scale;
}

/* The type of products whose output has this one. */
template <int OUT> static constexpr int PRODUCTS = OUT == GPU_FP32 ? GPU_FP16 : OUT;

/* fp32: channel 0 of position j of a tile's row; NULL: nowhere. */
EVO_DEVICE float *wide_place(const gpu_hopper_finish_params &p, const gpu_tensor &t, const position_tile &at, int j) {
    if (t.dtype == GPU_NONE || j >= p.n) return nullptr;
    return static_cast<float *>(t.data) + at.batch * t.strides[0] + at.i * t.strides[1] + j * t.strides[2];
}

/* write_outputs() of fp32, straight to the output: four lanes write 32 bytes of a position. `inverse` as there. */
template <int COUNT>
EVO_DEVICE void write_wide(const gpu_hopper_finish_params &p, const float (&y)[COUNT], const float (&gate)[COUNT],
                           const float *inverse, const position_tile &at, int channel, int wave, int lane) {
    float *out[2];
    const float *residual[2];
    EVO_UNROLL
    for (int h = 0; h < 2; h++) { /* positions l / 4 and that + 8 of the wave's */
        const int j = at.j() + wave * 16 + lane / 4 + 8 * h;
        out[h] = wide_place(p, p.wide_out, at, j);
        residual[h] = wide_place(p, p.wide_residual, at, j);
    }
    EVO_UNROLL
    for (int m = 0; m < COUNT / 4; m += 2) { /* 16 channels */
        const int first = channel + m * 8 + lane % 4 * 2;
        uint2_t added[4] = {};
        EVO_UNROLL
        for (int e = 0; e < 4; e++)
            if (residual[e % 2] && first + e / 2 * 8 < p.c_out)
                added[e] = *reinterpret_cast<const uint2_t *>(residual[e % 2] + first + e / 2 * 8);
        EVO_UNROLL
        for (int e = 0; e < 4; e++) {
            const int i = m * 4 + e * 2, q = first + e / 2 * 8;
            const float low = gated(y[i], gate[i], inverse[q]) + bits_float(added[e].x),
                        high = gated(y[i + 1], gate[i + 1], inverse[q + 1]) + bits_float(added[e].y);
            if (out[e % 2] && q < p.c_out)
                *reinterpret_cast<uint2_t *>(out[e % 2] + q) = { float_bits(low), float_bits(high) };
        }
    }
}

/*
 * Channels from `channel` on of a wave's 16 positions into the output tile, on top of the residual that lies there. `inverse`:
 * of what undoes the scale of the rows of W_o, in fp16.
 */
template <int TYPE, int COUNT>
EVO_DEVICE void write_outputs(const float (&y)[COUNT], const float (&gate)[COUNT], const float *inverse,
                              bool has_residual, int channel, uint32_t tile, int wave, int lane) {
    EVO_UNROLL
    for (int m = 0; m < COUNT / 4; m += 2) { /* 16 channels */
        const int at = channel + m * 8;
        const uint32_t place = tile + at / 64 * BLOCK_BYTES + swizzled(wave * 16 + lane % 16, at % 64 / 8 + lane / 16);
        uint32_t r[4], added[4];
        if (has_residual) load_fragments(added, place);
        EVO_UNROLL
        for (int e = 0; e < 4; e++) {
            const int i = m * 4 + e * 2;
            const float *own = inverse + at + e / 2 * 8 + lane % 4 * 2;
            float low = TYPE == GPU_FP16 ? gated(y[i], gate[i], own[0]) : gated(y[i], gate[i]);
            float high = TYPE == GPU_FP16 ? gated(y[i + 1], gate[i + 1], own[1]) : gated(y[i + 1], gate[i + 1]);
            if (has_residual) {
                low += low_of<TYPE>(added[e]);
                high += high_of<TYPE>(added[e]);
            }
            r[e] = pack<TYPE>(low, high);
        }
        store_fragments(place, r);
    }
}

/* A's side of the product that adds the biases: ones at k = 0, 1 of both halves, see gpu_hopper_pack_params. */
template <int TYPE> EVO_DEVICE uint32_t bias_ones(int lane) {
    return lane % 4 ? 0u : TYPE == GPU_BF16 ? 0x3f803f80u : 0x3c003c00u;
}

#endif
