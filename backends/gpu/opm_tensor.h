/* opm_tensor.h: what the tiers of the outer product mean take from each other: `hopper` from `tensor`, beside its stages, and that from `portable`. */
#ifndef EVO_BACKENDS_GPU_OPM_TENSOR_H
#define EVO_BACKENDS_GPU_OPM_TENSOR_H

#include "backends/gpu/kernels/opm/params.h"
#include "backends/gpu/launch.h"

enum {
    GPU_OPM_TENSOR_TUNING = 5, /* of form->tuning it takes so many */
    GPU_OPM_BESIDE =
        4 /* one of them, set before its plan: bytes of workspace a batch entry behind a and b, outer first */
};

/** What the scales of a's and b's channels are, in fp16: [2 c], in the pack. */
const float *gpu_opm_scales_of(const evo_call *call);

/** What a and b are multiplied by beside those, a power of two. */
float gpu_opm_store_of(const evo_call *call);

/** W_o for weight first, [z_rows][c_b][c_a], c_a rounded up to 8. */
const void *gpu_opm_weigh_of(const evo_call *call);

/** Outer first: where a and b of a tile, W_o and the output lie. */
gpu_opm_tensor_outer_params gpu_opm_outer_of(const evo_call *call, const evo_tile *tile);

/** Where a tile's batch entries of mask, residual and output lie, and how counts divide. `bias`: the output's, [c_z]. */
gpu_opm_output gpu_opm_output_of(const evo_call *call, int64_t batch, const float *bias);

/** Projects sides first ... last - 1 (a is 0, b is 1) of the residues of `range`. */
typedef evo_status gpu_opm_project_sides(const evo_call *call, const evo_tile *tile, evo_range range, int first,
                                         int last);

/** Projects what a tile needs: both sides at once where its rows are its columns. */
evo_status gpu_opm_project(const evo_call *call, const evo_tile *tile, gpu_opm_project_sides *sides);

/** What tier `portable` takes in the order that it would choose, in its multiply-adds of the whole device. */
double gpu_opm_portable_cost(const evo_device *device, const evo_opm_desc *d);

#endif
