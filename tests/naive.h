/*
 * naive.h: both ops evaluated once more, in long double, straight from docs/ops.md. It shares no code with the
 * library, so that it can judge the kernel that judges all others.
 */
#ifndef EVO_TESTS_NAIVE_H
#define EVO_TESTS_NAIVE_H

#include <stdint.h>

/* Arrays are dense and row-major; a double holds every storable number exactly. NULL: absent. */
typedef struct naive_opm {
    int64_t batch, s, n, c_m, c, c_z;
    const double *m;        /* [B, S, N, c_m] */
    const double *mask;     /* [B, S, N] or NULL */
    const double *residual; /* [B, N, N, c_z] or NULL */
    const double *norm_weight, *norm_bias;
    const double *a_weight, *a_bias, *b_weight, *b_bias;
    const double *out_weight, *out_bias;
    int divide_after;
    int mask_a_only;
    double count_eps, count_min, layer_norm_eps;
} naive_opm;

typedef struct naive_trimul {
    int64_t batch, n, c_z, c, c_out;
    const double *z;        /* [B, N, N, c_z] */
    const double *mask;     /* [B, N, N] or NULL */
    const double *residual; /* [B, N, N, c_out] or NULL */
    const double *norm_in_weight, *norm_in_bias;
    const double *a_proj_weight, *a_proj_bias, *a_gate_weight, *a_gate_bias;
    const double *b_proj_weight, *b_proj_bias, *b_gate_weight, *b_gate_bias;
    const double *norm_out_weight, *norm_out_bias;
    const double *out_weight, *out_bias, *out_gate_weight, *out_gate_bias;
    int incoming;
    int gate_raw;
    double layer_norm_eps;
} naive_trimul;

/*
 * want: the result. bound: how far, to first order, a computation whose every operation rounds by the relative
 * amount `unit`, in any order of summation, may be from it.
 */
void naive_opm_eval(const naive_opm *p, long double unit, long double *want, long double *bound);
void naive_trimul_eval(const naive_trimul *p, long double unit, long double *want, long double *bound);

#endif
