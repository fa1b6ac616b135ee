/* trimul_pack.cu: matrices with the LayerNorm ahead of them folded in, rounded to 16 bits, and their biases. */
#include "backends/gpu/kernels/hopper/params.h"
#include "backends/gpu/kernels/pack.h"
#include "backends/gpu/kernels/scales.h"

EVO_DEVICE double load_weight(const gpu_weight &w, int64_t out, int64_t in, double absent) {
    return w.data ? load_double(w.data, w.dtype, out * w.strides[0] + in * w.strides[1]) : absent;
}

template <int TYPE> EVO_DEVICE uint16_t round_to(float value) {
    return TYPE == GPU_BF16 ? float_to_bfloat(value) : float_to_half(value);
}
template <int TYPE> EVO_DEVICE float value_of(uint16_t bits) {
    return TYPE == GPU_BF16 ? bfloat_to_float(bits) : half_to_float(bits);
}

/* Half of a bias as two numbers of 16 bits; what is not finite as one. */
template <int TYPE> EVO_DEVICE uint64_t split_bias(float bias) {
    const uint16_t high = round_to<TYPE>(0.5f * bias);
    const float rest = 0.5f * bias - value_of<TYPE>(high);
    return high | static_cast<uint64_t>(rest - rest == 0.0f ? round_to<TYPE>(rest) : 0) << 16;
}

/* The sum over the block, in every thread. */
EVO_DEVICE double block_sum(double value, double *sums) {
    block_barrier();
    sums[thread_x()] = value;
    for (int width = GPU_PACK_THREADS / 2; width > 0; width /= 2) {
        block_barrier();
        if (thread_x() < width) sums[thread_x()] += sums[thread_x() + width];
    }
    block_barrier();
    return sums[0];
}

template <int TYPE> EVO_DEVICE void pack_row(const gpu_hopper_pack_item &p, double *sums) {
    const int out = pack_block(p), at = out + p.first;
    const int row = at / 8 * p.row_step + at % 8 + p.row_offset;
    double bias = 0, squares = 0;
    for (int in = thread_x(); in < p.ins; in += GPU_PACK_THREADS) {
        const double weight = load_weight(p.source, out, in, 0), folded = weight * load_weight(p.norm, in, 0, 1);
        if (p.norm_bias.data) bias += weight * load_weight(p.norm_bias, in, 0, 0);
        squares += folded * folded;
    }
    bias = block_sum(bias, sums) + load_weight(p.bias, out, 0, 0);
    double factor = p.factor;
    if (p.scale) factor *= static_cast<double>(p.scale[out]);
    if (p.inverse_scale) { /* Cauchy and Schwarz */
        const double most =
            square_root(static_cast<float>(block_sum(squares, sums) * p.ins)) + (bias < 0 ? -bias : bias);
        const float inverse = power_of_two(exponent_above(static_cast<float>(most * p.bound)));
        factor *= 1.0 / inverse;
        if (thread_x() == 0) p.inverse_scale[at] = inverse;
    }
    for (int in = thread_x(); in < p.ins; in += GPU_PACK_THREADS)
        static_cast<uint16_t *>(p.target)[static_cast<int64_t>(row) * p.ins + in] = round_to<TYPE>(
            static_cast<float>(factor * load_weight(p.source, out, in, 0) * load_weight(p.norm, in, 0, 1)));
    if (thread_x() > 0) return;
    p.bias_target[2 * row] = split_bias<TYPE>(static_cast<float>(factor * bias));
    p.bias_target[2 * row + 1] = 0;
}

EVO_KERNEL(evo_hopper_pack_BF16, gpu_hopper_pack_params, GPU_PACK_THREADS, 1) {
    EVO_SHARED(double, sums, GPU_PACK_THREADS);
    pack_row<GPU_BF16>(p.items[pack_item(p)], sums);
}
EVO_KERNEL(evo_hopper_pack_FP16, gpu_hopper_pack_params, GPU_PACK_THREADS, 1) {
    EVO_SHARED(double, sums, GPU_PACK_THREADS);
    pack_row<GPU_FP16>(p.items[pack_item(p)], sums);
}

/* Launched last for bf16 too, with no channels: what starts early after it reads a pack that is complete. */
EVO_KERNEL(evo_hopper_pack_sides, gpu_hopper_sides_params, GPU_PACK_THREADS, 1) {
    float largest = 0.0f;
    for (int c = 0; c < p.channels; c++) {
        const float product = p.inverse_scale[c] * p.inverse_scale[p.channels + c];
        if (product > largest) largest = product;
    }
    for (int c = thread_x(); c < p.channels; c += GPU_PACK_THREADS)
        p.scale[c] = p.inverse_scale[c] * p.inverse_scale[p.channels + c] / largest;
    if (thread_x() == 0 && p.channels > 0) p.scale[p.channels] = largest;
}
