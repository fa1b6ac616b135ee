/*
 * bench_data.c: the tensors that `evo bench` runs on. Values are normal numbers from one block that is repeated: what a
 * kernel's time depends on is that they are no zeros, not that they are all different. A large tensor is made on the
 * device by copies that double.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 1000003, /* a prime: rows of a repeated block differ */
    MOST_SETS = 100,
    ALIGNMENT = 256
};

bool bench_good(evo_status status, struct io_error *error) {
    return status == EVO_OK || io_fail(error, "%s: %s", evo_status_name(status), evo_last_error());
}

/* The first `count` elements of the block from `start` on, to be freed. */
static void *host_block(int64_t count, evo_dtype dtype, double mean, double deviation, int64_t start) {
    double *values = malloc((size_t)count * sizeof *values);
    void *converted = malloc((size_t)count * evo_dtype_size(dtype));
    struct case_random random;
    case_random_seed(&random, (uint64_t)start, "evo bench");
    for (int64_t i = 0; values != NULL && i < count; i++) {
        /* A sum of four uniform numbers: near enough to normal, and fast. */
        uint64_t bits = case_random_bits(&random);
        double sum = (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) + (double)(bits >> 32 & 0xffff) +
                     (double)(bits >> 48);
        values[i] = mean + deviation * (sum - 131070.0) / 37837.0;
        /* Masks are asked for by a deviation of zero: nine in ten are one. */
        values[i] = deviation == 0.0 ? ((bits & 0xffff) < 58982) : values[i];
    }
    if (values == NULL || converted == NULL) {
        free(values);
        free(converted);
        return NULL;
    }
    (void)evo_convert(values, EVO_FP64, converted, dtype, (size_t)count);
    free(values);
    return converted;
}

bool bench_fill(const struct bench_device *device, void *memory, int64_t count, evo_dtype dtype, double mean,
                double deviation, int64_t start, struct io_error *error) {
    int64_t width = (int64_t)evo_dtype_size(dtype), done = count < BLOCK ? count : BLOCK;
    if (count == 0) {
        return true;
    }
    void *block = host_block(done, dtype, mean, deviation, start);
    if (block == NULL) {
        return io_fail(error, "out of host memory");
    }
    bool good =
        bench_good(evo_memory_copy(device->context, memory, block, (size_t)(done * width), device->stream), error);
    for (; good && done < count; done *= 2) {
        int64_t more = done < count - done ? done : count - done;
        good = bench_good(evo_memory_copy(device->context, (char *)memory + done * width, memory,
                                          (size_t)(more * width), device->stream),
                          error);
    }
    good = bench_good(evo_stream_synchronize(device->context, device->stream), error) && good;
    free(block);
    return good;
}

/* ---- the descriptor ---- */

static void *member(void *base, size_t offset) {
    return (char *)base + offset;
}

static bool is_present(const struct bench_settings *s, const struct case_spec *spec, unsigned biases) {
    switch (spec->role) {
    case CASE_MASK:
        return !s->no_mask;
    case CASE_RESIDUAL:
        return s->residual;
    case CASE_WEIGHT:
        return spec->bias == 0 || (spec->bias & biases) != 0;
    case CASE_INPUT:
    case CASE_OUTPUT:
        break;
    }
    return true;
}

static bool describe(const struct bench_settings *s, const struct bench_shape *shape, struct bench_data *data,
                     struct io_error *error) {
    const struct case_op *op = shape->op;
    int i = 0;
    op->init(&data->desc);
    if (s->variant != NULL && op->set_variant(&data->desc, s->variant) != EVO_OK) {
        return io_fail(error, "--variant: %s", evo_last_error());
    }
    if (s->biases != NULL && !case_set_param(op, &data->desc, case_find_param(op, "biases"), s->biases, error)) {
        return false;
    }
    if (op->id == EVO_OP_TRIMUL) {
        data->desc.trimul.direction = s->direction;
    }
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++) {
        *(int64_t *)member(&data->desc, dim->offset) = shape->sizes[i++];
    }
    struct case_common common = op->common(&data->desc);
    *common.compute = s->compute;
    *common.workspace_limit = s->workspace_limit;
    for (i = 0; i < op->spec_count; i++) {
        if (op->specs[i].role != CASE_WEIGHT) {
            evo_tensor *layout = member(&data->desc, op->specs[i].layout);
            *layout = (evo_tensor)EVO_TENSOR_INIT(s->dtype);
            layout->dtype = is_present(s, &op->specs[i], 0) ? s->dtype : EVO_NONE;
        }
    }
    return true;
}

/* ---- memory ---- */

/* A tensor's elements, and the bytes it takes with padding. */
static bool measure(const struct bench_data *data, const struct case_spec *spec, evo_dtype dtype, int64_t *extents,
                    int *rank, int64_t *count, int64_t *bytes) {
    return case_products(data->op, &data->desc, spec->extents, extents, rank) && io_count(extents, *rank, count) &&
           io_multiply(*count, (int64_t)evo_dtype_size(dtype), bytes) && *bytes < INT64_MAX / 1024 &&
           (*bytes = (*bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, true);
}

/* The bytes of one set of activations and of all weights. */
static bool measure_all(const struct bench_settings *s, const struct bench_data *data, unsigned biases, int64_t *set,
                        int64_t *weights, struct io_error *error) {
    *set = *weights = 0;
    for (int i = 0; i < data->op->spec_count; i++) {
        const struct case_spec *spec = &data->op->specs[i];
        int64_t extents[CASE_MAX_RANK], count, bytes;
        int rank;
        if (!measure(data, spec, s->dtype, extents, &rank, &count, &bytes)) {
            return io_fail(error, "%s: its size overflows", spec->name);
        }
        if (is_present(s, spec, biases)) {
            *(spec->role == CASE_WEIGHT ? weights : set) += bytes;
        }
    }
    return true;
}

static bool fill_tensor(const struct bench_settings *s, struct bench_data *data, const struct case_spec *spec, int set,
                        char *memory, int64_t count, const int64_t *extents, int rank, struct io_error *error) {
    int64_t start = set * 64 + (spec - data->op->specs) + 1;
    double mean = 0.0, deviation = 1.0;
    if (spec->role == CASE_OUTPUT) {
        return bench_good(evo_memory_fill(data->device->context, memory, 0xff, (size_t)count * evo_dtype_size(s->dtype),
                                          data->device->stream),
                          error);
    }
    if (spec->role == CASE_MASK) {
        deviation = 0.0;
    } else if (spec->role == CASE_WEIGHT && rank == 2) {
        deviation = 1.0 / sqrt((double)extents[1]);
    } else if (spec->role == CASE_WEIGHT) {
        mean = spec->bias != 0 ? 0.0 : 1.0;
        deviation = 0.1;
    }
    return bench_fill(data->device, memory, count, s->dtype, mean, deviation, start, error);
}

/* Gives places to one set's activations, or to the weights (set -1), and fills them. */
static bool place(const struct bench_settings *s, struct bench_data *data, unsigned biases, int set, char **next,
                  struct io_error *error) {
    for (int i = 0; i < data->op->spec_count; i++) {
        const struct case_spec *spec = &data->op->specs[i];
        int64_t extents[CASE_MAX_RANK], count, bytes;
        int rank;
        if ((spec->role == CASE_WEIGHT) != (set < 0) || !is_present(s, spec, biases) ||
            !measure(data, spec, s->dtype, extents, &rank, &count, &bytes)) {
            continue;
        }
        if (!fill_tensor(s, data, spec, set, *next, count, extents, rank, error)) {
            return false;
        }
        if (set < 0) {
            *(evo_weight *)member(&data->weights, spec->slot) = (evo_weight){ *next, s->dtype, { 0, 0 } };
        } else {
            memcpy(member(&data->sets[set], spec->slot), next, sizeof *next);
        }
        *next += bytes;
    }
    return true;
}

bool bench_make_data(const struct bench_device *device, const struct bench_settings *s, const struct bench_shape *shape,
                     struct bench_data *data, struct io_error *error) {
    int64_t set, weights;
    *data = (struct bench_data){ .device = device, .op = shape->op };
    if (!describe(s, shape, data, error)) {
        return false;
    }
    unsigned biases = *shape->op->common(&data->desc).biases;
    if (!measure_all(s, data, biases, &set, &weights, error)) {
        return false;
    }
    data->set_count = set > 0 && (s->cache + set - 1) / set < MOST_SETS ? (int)((s->cache + set - 1) / set) : MOST_SETS;
    data->sets = calloc((size_t)data->set_count, sizeof *data->sets);
    bool good =
        (data->sets != NULL || io_fail(error, "out of host memory")) &&
        bench_good(evo_memory_alloc(device->context, (size_t)(set * data->set_count + weights), &data->memory), error);
    char *next = data->memory;
    shape->op->init_weights(&data->weights);
    for (int i = -1; i < data->set_count && good; i++) {
        if (i >= 0) {
            shape->op->init_args(&data->sets[i]);
        }
        good = place(s, data, biases, i, &next, error);
    }
    if (!good) {
        bench_free_data(data);
    }
    return good;
}

void bench_free_data(struct bench_data *data) {
    (void)evo_memory_free(data->device->context, data->memory);
    free(data->sets);
    data->memory = NULL;
    data->sets = NULL;
}
