/*
 * mean.c: the frequencies of all pairs of symbols in all pairs of an alignment's columns, as one outer product mean.
 *
 * No trained weights are needed, since these do it:
 *   m      the symbol of sequence s in column i as a one-hot row of 32 channels, of which 21 are used
 *   W_a    (= W_b) such that a LayerNorm's effect on such a row is undone: a and b are the one-hot rows of 21
 *   mask   the square root of the weight w_s of sequence s, so that each product of two has the factor w_s
 *   W_o    the identity: output channel 21 * a + b of pair i, j is f_ij(a,b) = sum_s w_s [a at i, b at j] / sum_s w_s
 */
#include "coevolution.h"

#include <evoformer/evoformer.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CHANNELS = 32
}; /* of the one-hot rows */

static const double layer_norm_eps = 1e-5;

/* Memory of the device, for the tensors of one outer product mean. */
struct buffers {
    void *m, *mask, *out, *weights, *pack, *workspace;
};

/* One outer product mean and what it needs; all zero before, and after `close_mean`. */
struct mean {
    evo_context *context; /* the caller's */
    evo_device_info device;
    evo_opm_desc desc;
    evo_plan *plan;
    evo_plan_info info;
    evo_pack *pack;
    struct buffers buffers;
    size_t m_size, mask_size, out_size; /* bytes */
    double seconds;
};

static bool succeeded(evo_status status, const char *what) {
    if (status == EVO_OK) return true;
    complain("cannot %s: %s (%s)", what, evo_last_error(), evo_status_name(status));
    return false;
}

static void *allocate(size_t count, size_t size) {
    size_t bytes;
    void *memory = size_product(count, size, &bytes) ? calloc(count ? count : 1, size) : NULL;

    if (!memory) complain("out of memory: no room for %zu values of %zu bytes", count, size);
    return memory;
}

/* Bytes of the three tensors, in fp32; false if they cannot be held. */
static bool tensor_sizes(struct mean *mean, const struct alignment *alignment) {
    size_t positions, pairs, columns = alignment->columns;

    return size_product(alignment->sequences, columns, &positions) && size_product(columns, columns, &pairs) &&
           size_product(positions, sizeof(float), &mean->mask_size) &&
           size_product(positions, CHANNELS * sizeof(float), &mean->m_size) &&
           size_product(pairs, FREQUENCIES * sizeof(float), &mean->out_size);
}

struct evo_context *device_open(const char *name, bool *misnamed) {
    evo_context *device = NULL;
    const evo_status status = evo_context_create(name, NULL, &device);

    /* A wrong variable of the environment is the same status. */
    *misnamed = status == EVO_ERROR_INVALID_ARGUMENT && !strstr(evo_last_error(), "environment");
    return succeeded(status, "open the device") ? device : NULL;
}

void device_close(struct evo_context *device) {
    evo_context_destroy(device);
}

static bool plan_mean(struct mean *mean, const struct alignment *alignment, evo_context *device) {
    mean->context = device;
    mean->device = (evo_device_info)EVO_DEVICE_INFO_INIT;
    mean->info = (evo_plan_info)EVO_PLAN_INFO_INIT;
    mean->desc = (evo_opm_desc)EVO_OPM_DESC_INIT;
    if (!tensor_sizes(mean, alignment)) {
        complain("the alignment is too large: %zu columns have too many pairs", alignment->columns);
        return false;
    }
    mean->desc.s = (int64_t)alignment->sequences;
    mean->desc.n = (int64_t)alignment->columns;
    mean->desc.c_m = CHANNELS;
    mean->desc.c = SYMBOLS;
    mean->desc.c_z = FREQUENCIES;
    mean->desc.mask = (evo_tensor)EVO_TENSOR_INIT(EVO_FP32);
    mean->desc.biases = EVO_OPM_BIAS_A | EVO_OPM_BIAS_B;
    mean->desc.divide = EVO_DIVIDE_BEFORE;
    mean->desc.count_eps = 0;
    mean->desc.count_min = 0;
    mean->desc.layer_norm_eps = layer_norm_eps;
    return succeeded(evo_context_device(mean->context, &mean->device), "ask for the device") &&
           succeeded(evo_opm_plan_create(mean->context, &mean->desc, &mean->plan), "plan the outer product mean") &&
           succeeded(evo_plan_get_info(mean->plan, &mean->info), "ask for the plan");
}

enum { /* where the weights stand in their buffer, in floats; W_b is W_a */
    NORM_WEIGHT = 0,
    A_WEIGHT = NORM_WEIGHT + CHANNELS,
    A_BIAS = A_WEIGHT + SYMBOLS * CHANNELS,
    OUT_WEIGHT = A_BIAS + SYMBOLS,
    WEIGHTS = OUT_WEIGHT + FREQUENCIES * FREQUENCIES
};

static bool allocate_buffers(struct mean *mean) {
    struct buffers *buffers = &mean->buffers;
    struct {
        size_t size;
        void **memory;
    } wanted[] = {
        { mean->m_size, &buffers->m },
        { mean->mask_size, &buffers->mask },
        { mean->out_size, &buffers->out },
        { WEIGHTS * sizeof(float), &buffers->weights },
        { mean->info.pack_size, &buffers->pack },
        { mean->info.workspace_size, &buffers->workspace },
    };
    double all = 0;

    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) all += (double)wanted[k].size;
    /* Asked first: a system that gives memory freely kills the program later, when it is used. */
    if (mean->device.memory_size && all > (double)mean->device.memory_size) {
        complain("the alignment is too large: it takes %.1f GB of memory, %s has %.1f GB", all / 1e9, mean->device.name,
                 (double)mean->device.memory_size / 1e9);
        return false;
    }
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
        if (!succeeded(evo_memory_alloc(mean->context, wanted[k].size, wanted[k].memory), "allocate device memory"))
            return false;
    return true;
}

/* Copies host memory to the device and waits, so that the host's can be freed. */
static bool upload(struct mean *mean, void *target, const void *source, size_t bytes) {
    return succeeded(evo_memory_copy(mean->context, target, source, bytes, NULL), "copy to the device") &&
           succeeded(evo_stream_synchronize(mean->context, NULL), "copy to the device");
}

/*
 * A one-hot row of 32 channels has mean 1/32 and variance 1/32 * 31/32, so LayerNorm makes it (row - 1/32) /
 * sqrt(variance + eps); times that root, and with the bias 1/32, it is the row again.
 */
static void set_weights(float *weights) {
    double mean = 1.0 / (int)CHANNELS, root = sqrt(mean * (1 - mean) + layer_norm_eps);

    for (size_t k = 0; k < CHANNELS; k++) weights[NORM_WEIGHT + k] = 1;
    for (size_t k = 0; k < SYMBOLS; k++) {
        weights[A_WEIGHT + k * CHANNELS + k] = (float)root;
        weights[A_BIAS + k] = (float)mean;
    }
    for (size_t k = 0; k < FREQUENCIES; k++) weights[OUT_WEIGHT + k * FREQUENCIES + k] = 1;
}

static evo_weight view(const float *data) {
    return (evo_weight){ data, EVO_FP32, { 0, 0 } }; /* contiguous, as all of them are */
}

static bool pack_weights(struct mean *mean) {
    evo_opm_weights weights = EVO_OPM_WEIGHTS_INIT;
    const float *device = mean->buffers.weights;
    float *host = allocate(WEIGHTS, sizeof *host);
    bool good;

    if (!host) return false;
    set_weights(host);
    weights.norm_weight = view(device + NORM_WEIGHT);
    weights.a_weight = weights.b_weight = view(device + A_WEIGHT);
    weights.a_bias = weights.b_bias = view(device + A_BIAS);
    weights.out_weight = view(device + OUT_WEIGHT);
    good = upload(mean, mean->buffers.weights, host, WEIGHTS * sizeof *host) &&
           succeeded(
               evo_opm_pack_weights(mean->plan, &weights, mean->buffers.pack, mean->info.pack_size, NULL, &mean->pack),
               "pack the weights");
    free(host);
    return good;
}

static bool upload_alignment(struct mean *mean, const struct alignment *alignment, const double *weights) {
    size_t columns = alignment->columns, positions = alignment->sequences * columns;
    float *m = allocate(positions, CHANNELS * sizeof *m), *mask = m ? allocate(positions, sizeof *mask) : NULL;
    bool good = m && mask;

    if (good) {
        for (size_t k = 0; k < positions; k++) {
            m[k * CHANNELS + alignment->symbols[k]] = 1;
            mask[k] = (float)sqrt(weights[k / columns]);
        }
        good =
            upload(mean, mean->buffers.m, m, mean->m_size) && upload(mean, mean->buffers.mask, mask, mean->mask_size);
    }
    free(m);
    free(mask);
    return good;
}

/* The op itself, timed, and its result copied to `frequencies`. */
static bool execute_mean(struct mean *mean, float *frequencies) {
    evo_opm_args args = EVO_OPM_ARGS_INIT;
    struct timespec start, stop;

    args.m = mean->buffers.m;
    args.mask = mean->buffers.mask;
    args.out = mean->buffers.out;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (!succeeded(
            evo_opm_execute(mean->plan, mean->pack, &args, mean->buffers.workspace, mean->info.workspace_size, NULL),
            "compute the outer product mean") ||
        !succeeded(evo_stream_synchronize(mean->context, NULL), "compute the outer product mean"))
        return false;
    clock_gettime(CLOCK_MONOTONIC, &stop);
    mean->seconds = (double)(stop.tv_sec - start.tv_sec) + 1e-9 * (double)(stop.tv_nsec - start.tv_nsec);
    return succeeded(evo_memory_copy(mean->context, frequencies, mean->buffers.out, mean->out_size, NULL),
                     "copy from the device") &&
           succeeded(evo_stream_synchronize(mean->context, NULL), "copy from the device");
}

static void close_mean(struct mean *mean) {
    const struct buffers *buffers = &mean->buffers;
    void *const all[] = {
        buffers->m, buffers->mask, buffers->out, buffers->weights, buffers->pack, buffers->workspace
    };

    evo_pack_destroy(mean->pack);
    evo_plan_destroy(mean->plan);
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) evo_memory_free(mean->context, all[k]);
    *mean = (struct mean){ 0 };
}

float *pair_frequencies(const struct alignment *alignment, const double *weights, struct evo_context *device,
                        struct mean_report *report) {
    struct mean mean = { 0 };
    float *frequencies = NULL;

    if (plan_mean(&mean, alignment, device) && allocate_buffers(&mean) && pack_weights(&mean) &&
        upload_alignment(&mean, alignment, weights))
        frequencies = allocate(alignment->columns * alignment->columns, FREQUENCIES * sizeof *frequencies);
    if (frequencies && !execute_mean(&mean, frequencies)) {
        free(frequencies);
        frequencies = NULL;
    }
    if (frequencies) {
        snprintf(report->device, sizeof report->device, "%s", mean.device.name);
        snprintf(report->description, sizeof report->description, "%s", mean.device.description);
        snprintf(report->kernel, sizeof report->kernel, "%s", mean.info.kernel);
        report->seconds = mean.seconds;
    }
    close_mean(&mean);
    return frequencies;
}
