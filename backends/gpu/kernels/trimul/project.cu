/* project.cu: a and b of the triangle multiplication, each channel a matrix [k][i], whatever the direction. */
#include "backends/gpu/kernels/project.h"

EVO_KERNEL(evo_trimul_project, gpu_project_params, GPU_THREADS, 1) {
    EVO_SHARED(float, a_stages, project_operands<true>::A_FLOATS);
    EVO_SHARED(float, b_stages, project_operands<true>::B_FLOATS);
    EVO_SHARED(statistics<GPU_PROJECT_ROWS>, normed, 1);
    EVO_SHARED(float, mask, GPU_PROJECT_ROWS);
    project<true>(p, { a_stages, b_stages, normed, mask });
}
