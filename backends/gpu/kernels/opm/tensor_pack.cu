/* tensor_pack.cu: W_o of the outer product mean as operands of matrix units, for both orders. A block packs one row. */
#include "backends/gpu/kernels/matrix.h"
#include "backends/gpu/kernels/opm/params.h"
#include "backends/gpu/kernels/pack.h"
#include "backends/gpu/kernels/scales.h"

static constexpr int THREADS = GPU_PACK_THREADS, HIDDEN = GPU_OPM_TENSOR_HIDDEN;
static constexpr int MOST_EXPONENT = 126; /* of a scale, so that its inverse is a float */

/* Element (q, c_a, c_b) without the scales that a and b are stored with, which may leave less than a float holds. */
EVO_DEVICE double weight_at(const gpu_opm_tensor_pack_params &p, int q, int c_a, int c_b) {
    if (q >= p.c_z || c_a >= p.c || c_b >= p.c) return 0.0;
    const int64_t column = static_cast<int64_t>(c_a) * p.c + c_b;
    const double value =
        load_double(p.source.data, p.source.dtype, q * p.source.strides[0] + column * p.source.strides[1]);
    if (!is_scaled(p.dtype)) return value;
    return value / static_cast<double>(p.scales[c_a]) / static_cast<double>(p.scales[p.c + c_b]);
}

/* |x|, or 0 if it is not finite. */
EVO_DEVICE double finite_size(double x) {
    const double size = x < 0.0 ? -x : x;
    return size - size == 0.0 ? size : 0.0;
}

/* As exponent_above. */
EVO_DEVICE int row_exponent(double most) {
    const double raised = most * static_cast<double>(power_of_two(SCALE_LIMIT));
    if (most > 0.0 && raised < 1.0) return exponent_above(static_cast<float>(raised)) - SCALE_LIMIT;
    return exponent_above(static_cast<float>(most));
}

EVO_KERNEL(evo_opm_tensor_pack_out, gpu_opm_tensor_pack_params, THREADS, 1) {
    EVO_SHARED(double, largest, THREADS);
    const int q = static_cast<int>(block_x());
    double most = 0.0;
    float scale = 1.0f;
    if (is_scaled(p.dtype)) {
        for (int k = thread_x(); k < p.c * p.c; k += THREADS) {
            const double size = finite_size(weight_at(p, q, k / p.c, k % p.c));
            most = size > most ? size : most;
        }
        largest[thread_x()] = most;
        block_barrier();
        for (int i = 0; i < THREADS; i++) most = largest[i] > most ? largest[i] : most;
        const int exponent =
            (p.dtype == GPU_SPLIT ? int{ STORE_EXPONENT } : 0) - row_exponent(most); /* low halves need it */
        scale = power_of_two(exponent < MOST_EXPONENT ? exponent : MOST_EXPONENT);
    }
    const auto scaled = [scale](double value) { return static_cast<float>(value * static_cast<double>(scale)); };
    const int blocks = (p.c + HIDDEN - 1) / HIDDEN, c = (p.c + p.together - 1) / p.together * p.together;
    for (int k = thread_x(); k < blocks * c * HIDDEN; k += THREADS) {
        const int c_a = k / HIDDEN % c, block = k / HIDDEN / c, c_b = block * HIDDEN + k % HIDDEN;
        const int64_t row = static_cast<int64_t>((block * c + c_a) / p.together) * p.z_rows + q;
        const int64_t index = (row * p.together + c_a % p.together) * HIDDEN + k % HIDDEN;
        store_operand(p.outer, p.dtype, index, scaled(weight_at(p, q, c_a, c_b)));
    }
    for (int k = thread_x(); p.weigh && k < p.c * p.c_pad; k += THREADS)
        store_operand(p.weigh, p.dtype, static_cast<int64_t>(q) * p.c * p.c_pad + k,
                      scaled(weight_at(p, q, k % p.c_pad, k / p.c_pad)));
    if (thread_x() != 0) return;
    /* What is left of the scales of a and b: see GPU_OPM_TENSOR_HALF. */
    p.z_scale[q] = is_scaled(p.dtype) ? p.rest / scale : 1.0f;
    const bool has_bias = p.bias.data && q < p.c_z;
    p.bias_target[q] =
        has_bias ? static_cast<float>(load_double(p.bias.data, p.bias.dtype, q * p.bias.strides[0])) : 0.0f;
}
