/* tensor_pack.cu: W_o of the outer product mean as operands of matrix units, for both orders. A block packs one row. */
#include "backends/gpu/kernels/matrix.h"
#include "backends/gpu/kernels/opm/params.h"
#include "backends/gpu/kernels/pack.h"
#include "backends/gpu/kernels/scales.h"

static constexpr int THREADS = GPU_PACK_THREADS, HIDDEN = GPU_OPM_TENSOR_HIDDEN;

/* Element (q, c_a, c_b) without the scales that a and b are stored with. */
EVO_DEVICE float weight_at(const gpu_opm_tensor_pack_params &p, int q, int c_a, int c_b) {
    if (q >= p.c_z || c_a >= p.c || c_b >= p.c) return 0.0f;
    const int64_t column = static_cast<int64_t>(c_a) * p.c + c_b;
    double value = load_double(p.source.data, p.source.dtype, q * p.source.strides[0] + column * p.source.strides[1]);
    if (is_scaled(p.dtype))
        value = value / static_cast<double>(p.scales[c_a]) / static_cast<double>(p.scales[p.c + c_b]);
    return static_cast<float>(value);
}

EVO_KERNEL(evo_opm_tensor_pack_out, gpu_opm_tensor_pack_params, THREADS, 1) {
    EVO_SHARED(float, largest, THREADS);
    const int q = static_cast<int>(block_x());
    float most = 0.0f, scale = 1.0f;
    if (is_scaled(p.dtype)) {
        for (int k = thread_x(); k < p.c * p.c; k += THREADS)
            most = larger(most, finite_magnitude(weight_at(p, q, k / p.c, k % p.c)));
        largest[thread_x()] = most;
        block_barrier();
        for (int i = 0; i < THREADS; i++) most = larger(most, largest[i]);
        scale = power_of_two((p.dtype == GPU_SPLIT ? int{ STORE_EXPONENT } : 0) -
                             exponent_above(most)); /* low halves need it */
    }
    const int blocks = (p.c + HIDDEN - 1) / HIDDEN, c = (p.c + p.together - 1) / p.together * p.together;
    for (int k = thread_x(); k < blocks * c * HIDDEN; k += THREADS) {
        const int c_a = k / HIDDEN % c, block = k / HIDDEN / c, c_b = block * HIDDEN + k % HIDDEN;
        const int64_t row = static_cast<int64_t>((block * c + c_a) / p.together) * p.z_rows + q;
        const int64_t index = (row * p.together + c_a % p.together) * HIDDEN + k % HIDDEN;
        store_operand(p.outer, p.dtype, index, weight_at(p, q, c_a, c_b) * scale);
    }
    for (int k = thread_x(); p.weigh && k < p.c * p.c_pad; k += THREADS)
        store_operand(p.weigh, p.dtype, static_cast<int64_t>(q) * p.c * p.c_pad + k,
                      weight_at(p, q, k % p.c_pad, k / p.c_pad) * scale);
    if (thread_x() != 0) return;
    /* What is left of the scales of a and b: see GPU_OPM_TENSOR_HALF. */
    p.z_scale[q] = is_scaled(p.dtype) ? p.rest / scale : 1.0f;
    const bool has_bias = p.bias.data && q < p.c_z;
    p.bias_target[q] =
        has_bias ? static_cast<float>(load_double(p.bias.data, p.bias.dtype, q * p.bias.strides[0])) : 0.0f;
}
