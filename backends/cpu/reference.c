/* reference.c: what the reference kernels share. */
#include "backends/cpu/reference.h"

#include <omp.h>

double *evo_reference_take(double **next, int64_t count) {
    double *taken = *next;
    *next += count;
    return taken;
}

void evo_reference_pack(const evo_weight *weight, int64_t out, int64_t in, double *packed) {
    for (int64_t i = 0; i < in; i++)
        for (int64_t o = 0; o < out; o++)
            packed[i * out + o] =
                weight->data ? evo_load(weight->data, weight->dtype, o * weight->strides[0] + i * weight->strides[1])
                             : 0.0;
}

void evo_reference_read(const evo_tensor *layout, const void *data, int64_t offset, int64_t stride, int64_t count,
                        double *row) {
    for (int64_t k = 0; k < count; k++) row[k] = evo_load(data, layout->dtype, offset + k * stride);
}

void evo_reference_layer_norm(const double *x, int64_t count, double eps, const double *weight, const double *bias,
                              double *y) {
    /* The mean of the differences takes out what the rounding of the first mean left (docs/numerics.md). */
    double mean = 0.0, rest = 0.0, variance = 0.0;
    for (int64_t k = 0; k < count; k++) mean += x[k];
    mean /= (double)count;
    for (int64_t k = 0; k < count; k++) rest += x[k] - mean;
    rest /= (double)count;
    for (int64_t k = 0; k < count; k++) {
        y[k] = x[k] - mean - rest;
        variance += y[k] * y[k];
    }
    const double scale = 1.0 / sqrt(variance / (double)count + eps);
    for (int64_t k = 0; k < count; k++) y[k] = y[k] * scale * weight[k] + bias[k];
}

void evo_reference_linear(const double *restrict x, int64_t in, const double *restrict packed, int64_t width,
                          int64_t first, int64_t count, const double *restrict bias, double *restrict y) {
    for (int64_t o = 0; o < count; o++) y[o] = bias[first + o];
    for (int64_t i = 0; i < in; i++)
        for (int64_t o = 0; o < count; o++) y[o] += x[i] * packed[i * width + first + o];
}

double evo_reference_sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

double evo_reference_mask(const evo_tensor *layout, const void *data, int64_t offset) {
    return layout->dtype == EVO_NONE ? 1.0 : evo_load(data, layout->dtype, offset);
}

int evo_reference_threads(const evo_call *call, int64_t a, int64_t b, int64_t c, int64_t d) {
    const double worth_a_thread = 5e4, work = (double)a * (double)b * (double)c * (double)d;
    const int allowed = evo_cpu_threads(call->device), planned = (int)call->form->tuning[EVO_REFERENCE_THREADS];
    const int threads = allowed < planned ? allowed : planned;
    return work < worth_a_thread * threads ? 1 + (int)(work / worth_a_thread) : threads;
}

double *evo_reference_scratch(const evo_call *call) {
    return (double *)call->workspace + omp_get_thread_num() * call->form->tuning[EVO_REFERENCE_SCRATCH];
}

double *evo_reference_buffers(const evo_call *call) {
    const int64_t *tuning = call->form->tuning;
    return (double *)call->workspace + tuning[EVO_REFERENCE_THREADS] * tuning[EVO_REFERENCE_SCRATCH];
}

int64_t evo_reference_bytes(int64_t doubles, int64_t threads, int64_t scratch) {
    int64_t total = evo_product(threads, scratch, 1, 1);
    const bool fits =
        doubles >= 0 && scratch >= 0 && total >= 0 && evo_add(total, doubles, &total) && evo_mul(total, 8, &total);
    return fits ? total : INT64_MAX;
}

evo_status evo_reference_settle(evo_form *form, int64_t bytes, int64_t threads, int64_t scratch, size_t limit) {
    if (bytes == INT64_MAX) return evo_fail(EVO_ERROR_SIZE_OVERFLOW, "the workspace would span more than 2^63 bytes");
    if (limit && (size_t)bytes > limit)
        return evo_fail(EVO_ERROR_WORKSPACE_LIMIT, "desc->workspace_limit is %zu, expected at least %lld bytes", limit,
                        (long long)bytes);
    form->compute = EVO_COMPUTE_FP64;
    form->pack_layout = EVO_REFERENCE_LAYOUT;
    form->workspace_size = (size_t)bytes;
    form->tuning[EVO_REFERENCE_THREADS] = threads;
    form->tuning[EVO_REFERENCE_SCRATCH] = scratch;
    return EVO_OK;
}
