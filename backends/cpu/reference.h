/*
 * reference.h: what the reference kernels share. They are the truth that every other kernel is checked against: plain
 * loops that read like docs/ops.md, every sum in double and in one fixed order, so that results do not depend on the
 * number of threads. Packed weights are doubles, matrices transposed to [in, out] so that loops over `out` vectorise.
 */
#ifndef EVO_BACKENDS_CPU_REFERENCE_H
#define EVO_BACKENDS_CPU_REFERENCE_H

#include "backends/cpu/cpu.h"

/** The only packed layout of the reference kernels. */
enum {
    EVO_REFERENCE_LAYOUT = 1
};

/** Slots of evo_form.tuning. */
enum {
    EVO_REFERENCE_THREADS = 0,
    EVO_REFERENCE_SCRATCH = 1
};

/** Takes fp64, which no other kernel computes, and all else if asked for by name: it is ten to twenty times slower. */
bool evo_reference_supports(const evo_problem *problem, evo_compute compute, const evo_tensor *const *tensors,
                            int count, evo_text *why);

/** Takes `count` doubles from a packed buffer, or from nothing to measure it. */
double *evo_reference_take(double **next, int64_t count);

/** Packs a matrix [out, in] or a vector [out] (in = 1) as doubles [in, out]; an absent bias becomes zeros. */
void evo_reference_pack(const evo_weight *weight, int64_t out, int64_t in, double *packed);

/** Reads `count` elements from element `offset` on. */
void evo_reference_read(const evo_tensor *layout, const void *data, int64_t offset, int64_t stride, int64_t count,
                        double *row);

/** y = weight * (x - mean) / sqrt(variance + eps) + bias over `count` channels; x and y may be the same. */
void evo_reference_layer_norm(const double *x, int64_t count, double eps, const double *weight, const double *bias,
                              double *y);

/** y[o] = bias[o] + sum over i of x[i] * packed[i, first + o], for `count` columns of a matrix with `width`. */
void evo_reference_linear(const double *restrict x, int64_t in, const double *restrict packed, int64_t width,
                          int64_t first, int64_t count, const double *restrict bias, double *restrict y);

double evo_reference_sigmoid(double x);

/** The mask's value at an element; 1 without a mask. */
double evo_reference_mask(const evo_tensor *layout, const void *data, int64_t offset);

/**
 * Threads for a stage of so many multiply-adds: as planned, or fewer if OpenMP now allows fewer, or if there is so little
 * to do that waking them would take longer.
 */
int evo_reference_threads(const evo_call *call, int64_t a, int64_t b, int64_t c, int64_t d);

/** This thread's scratch: the workspace begins with one slice a planned thread. */
double *evo_reference_scratch(const evo_call *call);

/** The doubles of the workspace after the scratch. */
double *evo_reference_buffers(const evo_call *call);

/** Bytes of `doubles` plus the threads' scratch; INT64_MAX if `doubles` is negative or the sum does not fit. */
int64_t evo_reference_bytes(int64_t doubles, int64_t threads, int64_t scratch);

/** Fills the form for the chosen threads and size, or fails as the size or the limit demands. */
evo_status evo_reference_settle(evo_form *form, int64_t bytes, int64_t threads, int64_t scratch, size_t limit);

#endif
