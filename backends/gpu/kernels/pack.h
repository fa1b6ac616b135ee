/* pack.h: what the packing kernels share: which of a launch's items a block works for. */
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

#endif
