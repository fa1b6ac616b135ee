/* project.cu: a and b of the outer product mean. */
#include "backends/gpu/kernels/project.h"

EVO_KERNEL(evo_opm_project, gpu_project_params, GPU_THREADS, 1) {
    EVO_SHARED(float, a_stages, project_operands<false>::A_FLOATS);
    EVO_SHARED(float, b_stages, project_operands<false>::B_FLOATS);
    EVO_SHARED(statistics<GPU_PROJECT_ROWS>, normed, 1);
    EVO_SHARED(float, mask, GPU_PROJECT_ROWS);
    project<false>(p, { a_stages, b_stages, normed, mask });
}
