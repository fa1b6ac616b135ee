/* faults.h: kernels with one mistake each, which `broken` switches on; host side and kernels share these parameters. */
#ifndef EVO_TESTS_SIMULATED_FAULTS_H
#define EVO_TESTS_SIMULATED_FAULTS_H

enum {
    FAULT_THREADS = 128
};

/* All kernels write a permutation or a copy of `in` to `out`, in blocks of FAULT_THREADS numbers. */
typedef struct fault_params {
    const float *in;
    float *out;
    int count;
    int broken;
} fault_params;

#endif
