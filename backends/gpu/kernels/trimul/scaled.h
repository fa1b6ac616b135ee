/* scaled.h: how the triangle multiplication's fp16 numbers follow masks: a and b are divided by a power of two above all. */
#ifndef EVO_BACKENDS_GPU_KERNELS_TRIMUL_SCALED_H
#define EVO_BACKENDS_GPU_KERNELS_TRIMUL_SCALED_H

#include "backends/gpu/kernels/scales.h"

/* The exponent of this batch entry's masks: of the promised largest, or of the largest if that is above. */
EVO_DEVICE int mask_exponent(const float *parts, float promised) {
    if (!parts) return 0;
    float most = promised;
    const float4_t *own = reinterpret_cast<const float4_t *>(parts + block_z() * GPU_MASK_PARTS);
    for (int i = 0; i < GPU_MASK_PARTS / 4; i++) {
        const float4_t v = own[i];
        most = larger(larger(larger(most, v.x), larger(v.y, v.z)), v.w);
    }
    return exponent_above(most);
}

#endif
