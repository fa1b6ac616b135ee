/* pack.cu: weights from the caller's views into the kernels' layout; sums in double, rounded once. */
#include "backends/gpu/kernels/numbers.h"

EVO_DEVICE double load_weight(const gpu_weight &w, int64_t out, int64_t in) {
    return load_double(w.data, w.dtype, out * w.strides[0] + in * w.strides[1]);
}

EVO_KERNEL(evo_pack_matrix, gpu_pack_matrix_params, GPU_PACK_THREADS, 1) {
    const int64_t element = static_cast<int64_t>(block_x()) * GPU_PACK_THREADS + thread_x();
    const int64_t in = element / p.width, out = element % p.width;
    if (in >= p.ins) return;
    double value = 0.0;
    if (out < p.outs) {
        value = load_weight(p.source, out, in);
        if (p.scale.data) value *= load_weight(p.scale, in, 0);
    }
    p.target[in * p.pitch + out] = static_cast<float>(value);
}

EVO_KERNEL(evo_pack_bias, gpu_pack_bias_params, GPU_PACK_THREADS, 1) {
    const int64_t out = static_cast<int64_t>(block_x()) * GPU_PACK_THREADS + thread_x();
    if (out >= p.width) return;
    double value = 0.0;
    if (out < p.outs) {
        if (p.bias.data) value = load_weight(p.bias, out, 0);
        if (p.shift.data)
            for (int64_t in = 0; in < p.ins; in++)
                value += load_weight(p.source, out, in) * load_weight(p.shift, in, 0);
    }
    p.target[out] = static_cast<float>(value);
}
