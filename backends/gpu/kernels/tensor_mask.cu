/* tensor_mask.cu: how large masks are, for numbers of products that have a range: see evo_tensor_mask_rows in params.h. */
#include "backends/gpu/kernels/scales.h"

EVO_KERNEL(evo_tensor_mask_rows, gpu_mask_rows_params, GPU_PACK_THREADS, 1) {
    const int row = static_cast<int>(block_x()) * GPU_MASK_ROWS + thread_x() / 32;
    const int64_t *strides = p.mask.strides;
    const int64_t first = (p.batch_begin + block_z()) * strides[0] + row * strides[1];
    float most = 0.0f;
    for (int k = thread_x() % 32; k < p.count && row < p.rows; k += 32)
        most = larger(most, finite_magnitude(load_mask(p.mask, first + k * strides[2])));
    for (int lanes = 16; lanes > 0; lanes /= 2) most = larger(most, wave_shuffle_xor(most, lanes));
    if (thread_x() % 32 == 0 && row < p.rows)
        p.exponents[block_z() * static_cast<int64_t>(p.rows) + row] = exponent_above(most, MASK_LIMIT);
}
