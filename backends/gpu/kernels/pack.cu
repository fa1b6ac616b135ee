/* pack.cu: weights from the caller's views into the kernels' layout, rounded to fp32. */
#include "backends/gpu/kernels/numbers.h"

EVO_DEVICE double load_weight(const gpu_weight &w, int64_t out, int64_t in) {
    return load_double(w.data, w.dtype, out * w.strides[0] + in * w.strides[1]);
}

EVO_KERNEL(evo_pack_matrix, gpu_pack_matrix_params, GPU_PACK_THREADS, 1) {
    const int64_t element = static_cast<int64_t>(block_x()) * GPU_PACK_THREADS + thread_x();
    const int64_t in = element / p.width, out = element % p.width;
    if (in >= p.ins) return;
    const double value = out < p.outs ? load_weight(p.source, out, in) : 0.0;
    p.target[in * p.pitch + out] = static_cast<float>(value);
}

EVO_KERNEL(evo_pack_vector, gpu_pack_vector_params, GPU_PACK_THREADS, 1) {
    const int64_t i = static_cast<int64_t>(block_x()) * GPU_PACK_THREADS + thread_x();
    if (i >= p.width) return;
    float value = i < p.count ? p.fill : 0.0f;
    if (i < p.count && p.source.data) value = static_cast<float>(load_weight(p.source, i, 0));
    p.target[i] = value;
}
