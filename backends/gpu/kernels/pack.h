/* pack.h: what the packing kernels share: which of a launch's items a block works for, and how operands are stored. */
#ifndef EVO_BACKENDS_GPU_KERNELS_PACK_H
#define EVO_BACKENDS_GPU_KERNELS_PACK_H

#include "backends/gpu/kernels/numbers.h"

/* The item of this block. */
template <typename PARAMS> EVO_DEVICE int pack_item(const PARAMS &p) {
    int item = 0;
    while (item + 1 < p.count && static_cast<int>(block_x()) >= p.items[item + 1].first_block) item++;
    return item;
}

/* This block's number within its item. */
template <typename ITEM> EVO_DEVICE int pack_block(const ITEM &item) {
    return static_cast<int>(block_x()) - item.first_block;
}

/* Whether numbers are halves, which need scales. */
EVO_DEVICE bool is_scaled(int dtype) {
    return dtype == GPU_FP16 || dtype == GPU_SPLIT;
}

/* Number `index` of an operand's rows, of which each is a multiple of 16 numbers if they are split. */
EVO_DEVICE void store_operand(void *target, int dtype, int64_t index, float value) {
    if (dtype == GPU_SPLIT) { /* see split_t in matrix.h */
        uint16_t *high = static_cast<uint16_t *>(target) + index / 16 * 32 + index % 16;
        high[0] = float_to_half(value);
        high[16] = float_to_half(value - half_to_float(high[0]));
    } else {
        store_number(target, dtype, index, value);
    }
}

#endif
