/* mask.h: masks of any number type, loaded apart from being turned into floats. */
#ifndef EVO_BACKENDS_GPU_KERNELS_HOPPER_MASK_H
#define EVO_BACKENDS_GPU_KERNELS_HOPPER_MASK_H

#include "backends/gpu/kernels/numbers.h"

/* A mask's number as it is stored; fp64 as fp32. */
EVO_DEVICE uint32_t load_mask_bits(const gpu_tensor &mask, int64_t index) {
    switch (mask.dtype) {
    case GPU_FP64:
        return float_bits(static_cast<float>(static_cast<const double *>(mask.data)[index]));
    case GPU_FP32:
        return static_cast<const uint32_t *>(mask.data)[index];
    case GPU_UINT8:
        return static_cast<const uint8_t *>(mask.data)[index];
    case GPU_NONE:
        return 1;
    default:
        return static_cast<const uint16_t *>(mask.data)[index];
    }
}
EVO_DEVICE float mask_value(int dtype, uint32_t bits) {
    switch (dtype) {
    case GPU_FP64:
    case GPU_FP32:
        return bits_float(bits);
    case GPU_BF16:
        return bfloat_to_float(bits);
    case GPU_FP16:
        return half_to_float(static_cast<uint16_t>(bits));
    default:
        return static_cast<float>(bits);
    }
}

#endif
