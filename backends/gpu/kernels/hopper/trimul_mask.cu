/* trimul_mask.cu: how large a mask is, where fp16 must know: see the scales in params.h. */
#include "backends/gpu/kernels/hopper/mask.h"
#include "backends/cuda/device_hopper.h"
#include "backends/gpu/kernels/hopper/params.h"

EVO_KERNEL(evo_hopper_mask, gpu_hopper_mask_params, GPU_PACK_THREADS, 1) {
    EVO_SHARED(float, waves, GPU_PACK_THREADS / 32);
    let_next_kernel_start();
    wait_for_kernel_ahead();
    float largest = 0.0f;
    for (int row = static_cast<int>(block_x()); row < p.rows; row += GPU_HOPPER_MASK_BLOCKS) {
        const int batch = row / p.n, i = row - batch * p.n;
        const int64_t first = batch * p.mask.strides[0] + i * p.mask.strides[1];
        for (int j = thread_x(); j < p.n; j += GPU_PACK_THREADS) {
            const float value = mask_value(p.mask.dtype, load_mask_bits(p.mask, first + j * p.mask.strides[2]));
            const float size = value < 0.0f ? -value : value;
            if (size > largest && size - size == 0.0f) largest = size;
        }
    }
    for (int mask = 1; mask < 32; mask *= 2) {
        const float other = wave_shuffle_xor(largest, mask);
        largest = other > largest ? other : largest;
    }
    if (thread_x() % 32 == 0) waves[thread_x() / 32] = largest;
    block_barrier();
    if (thread_x() > 0) return;
    for (int w = 0; w < GPU_PACK_THREADS / 32; w++) largest = waves[w] > largest ? waves[w] : largest;
    p.largest[block_x()] = largest;
}
