/* pack.cu: weights from the caller's views into the kernels' layout, rounded to fp32. */
#include "backends/gpu/kernels/pack.h"

EVO_DEVICE void pack_element(const gpu_pack_item &p, int64_t element) {
    const int64_t in = element / p.width, out = element % p.width;
    if (in >= p.ins) return;
    double value = out < p.outs ? static_cast<double>(p.fill) : 0.0;
    if (out < p.outs && p.source.data)
        value = load_double(p.source.data, p.source.dtype, out * p.source.strides[0] + in * p.source.strides[1]);
    p.target[in * p.pitch + out] = static_cast<float>(value);
}

EVO_KERNEL(evo_pack, gpu_pack_params, GPU_PACK_THREADS, 1) {
    const gpu_pack_item &item = p.items[pack_item(p)];
    pack_element(item, static_cast<int64_t>(pack_block(item)) * GPU_PACK_THREADS + thread_x());
}
