/* tensor_mask.cu: how large masks are, for numbers of products that have a range: see evo_tensor_mask_rows in params.h. */
#include "backends/gpu/kernels/scales.h"

/* A block's threads stand as 8 rows x 32 elements, neighbours where the mask has neighbours: in one row, or in one element of all rows. */
static constexpr int ACROSS = GPU_PACK_THREADS / GPU_MASK_ROWS, TOGETHER = 8;
static_assert(ACROSS == 32, "what a wave exchanges");

/* Of this thread's elements of a row that begins at `first`; loads are under way TOGETHER at a time. */
template <class NUMBER> EVO_DEVICE float largest_of(const gpu_mask_rows_params &p, int64_t first, int own) {
    const NUMBER *const row = static_cast<const NUMBER *>(p.mask.data) + first;
    float most = 0.0f;
    for (int begin = own; begin < p.count; begin += TOGETHER * ACROSS) {
        NUMBER x[TOGETHER];
        EVO_UNROLL
        for (int u = 0; u < TOGETHER; u++) {
            const int k = begin + u * ACROSS;
            x[u] = row[(k < p.count ? k : begin) * p.mask.strides[2]];
        }
        EVO_UNROLL
        for (int u = 0; u < TOGETHER; u++)
            most = larger(most, finite_magnitude(mask_value(x[u], p.mask.dtype == GPU_BF16)));
    }
    return most;
}

EVO_DEVICE float largest_mask(const gpu_mask_rows_params &p, int64_t first, int own) {
    switch (p.mask.dtype) {
    case GPU_FP64:
        return largest_of<double>(p, first, own);
    case GPU_FP32:
        return largest_of<float>(p, first, own);
    case GPU_UINT8:
        return largest_of<uint8_t>(p, first, own);
    default:
        return largest_of<uint16_t>(p, first, own);
    }
}

EVO_KERNEL(evo_tensor_mask_rows, gpu_mask_rows_params, GPU_PACK_THREADS, 1) {
    EVO_SHARED(float, parts, GPU_MASK_ROWS *GPU_MASK_ROWS);
    const int64_t *strides = p.mask.strides;
    const int64_t next_row = strides[1] < 0 ? -strides[1] : strides[1],
                  next = strides[2] < 0 ? -strides[2] : strides[2];
    const bool down = next_row < next; /* neighbours are of different rows */
    const int begin = static_cast<int>(block_x()) * GPU_MASK_ROWS, t = thread_x(),
              row = begin + (down ? t % GPU_MASK_ROWS : t / ACROSS);
    const int64_t first = (p.batch_begin + block_z()) * strides[0] + (row < p.rows ? row : p.rows - 1) * strides[1];
    float most = largest_mask(p, first, down ? t / GPU_MASK_ROWS : t % ACROSS);
    for (int lanes = ACROSS / 2; lanes >= (down ? GPU_MASK_ROWS : 1); lanes /= 2)
        most = larger(most, wave_shuffle_xor(most, lanes));
    if (down) {
        if (t % ACROSS < GPU_MASK_ROWS) parts[t / ACROSS * GPU_MASK_ROWS + t % ACROSS] = most;
        block_barrier();
        for (int i = 0; i < GPU_PACK_THREADS / ACROSS; i++)
            most = larger(most, parts[i * GPU_MASK_ROWS + t % GPU_MASK_ROWS]);
    }
    if (row < p.rows && (down ? t < GPU_MASK_ROWS : t % ACROSS == 0))
        p.exponents[block_z() * static_cast<int64_t>(p.rows) + row] = exponent_above(most, MASK_LIMIT);
}
