/* bench_ceilings.c: what the device can do at most: the rate of a large copy, and of a library's matrix product. */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- given ---- */

static bool given_rate(struct bench_ceilings *ceilings, const char *name, double value) {
    evo_compute compute;
    if (strcmp(name, "copy") == 0) {
        ceilings->copy = value;
        return true;
    }
    if (!case_compute_from_name(name, &compute)) {
        return false;
    }
    ceilings->rate[compute] = value;
    if (compute == EVO_COMPUTE_FP32) {
        ceilings->rate[EVO_COMPUTE_FP32_STRICT] = value;
    }
    return true;
}

bool bench_given_ceilings(const char *text, struct bench_ceilings *ceilings, struct io_error *error) {
    const char *at = text;
    memset(ceilings, 0, sizeof *ceilings);
    while (strcmp(text, "none") != 0) {
        char name[16], *end = NULL;
        size_t length = strcspn(at, "=,");
        (void)snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : 0), at);
        double value = at[length] == '=' ? strtod(at + length + 1, &end) : 0.0;
        if (end == NULL || end == at + length + 1 || (*end != ',' && *end != '\0') || !isfinite(value) ||
            value <= 0.0 || !given_rate(ceilings, name, value)) {
            return io_fail(
                error, "\"%.100s\" is not none, or some of copy=GB/s, fp32=, tf32=, bf16=, fp16=, fp64=TFLOP/s", text);
        }
        if (*end == '\0') {
            break;
        }
        at = end + 1;
    }
    return true;
}

/* ---- the copy ---- */

struct copy {
    const struct bench_device *device;
    char *target, *source;
    int64_t bytes;
    int threads; /* of a copy on the CPU */
};

/* evo_memory_copy of the CPU is one thread, the machine is all that the kernels use. */
static void copy_by_threads(const struct copy *c) {
    int64_t part = (c->bytes / c->threads + 63) / 64 * 64;
#pragma omp parallel for schedule(static) num_threads(c->threads)
    for (int i = 0; i < c->threads; i++) {
        int64_t begin = i * part, end = begin + part < c->bytes ? begin + part : c->bytes;
        if (begin < end) {
            memcpy(c->target + begin, c->source + begin, (size_t)(end - begin));
        }
    }
}

static bool copy(void *user, evo_stream stream, struct io_error *error) {
    const struct copy *c = user;
    if (c->device->cpu) {
        copy_by_threads(c);
        return true;
    }
    return bench_good(evo_memory_copy(c->device->context, c->target, c->source, (size_t)c->bytes, stream), error);
}

/* As many as the library would use. */
static int count_threads(const struct bench_device *device) {
    const char *text = getenv("EVO_NUM_THREADS");
    int threads = text != NULL && *text != '\0' ? atoi(text) : omp_get_max_threads();
    bool few = text == NULL && threads > device->info.compute_units;
    return few ? device->info.compute_units : threads < 1 ? 1 : threads;
}

static bool measure_copy(const struct bench_device *device, const struct bench_settings *settings, double *rate,
                         struct io_error *error) {
    struct bench_times times;
    void *memory = NULL;
    /* On a GPU four times what no cache holds: its copies reach their rate late. */
    struct copy c = { .device = device, .bytes = settings->cache * (device->cpu ? 1 : 4) };
    c.threads = count_threads(device);
    if (device->info.memory_size > 0 && c.bytes > (int64_t)(device->info.memory_size / 8)) {
        c.bytes = (int64_t)(device->info.memory_size / 8);
    }
    if (!bench_good(evo_memory_alloc(device->context, (size_t)(2 * c.bytes), &memory), error)) {
        return false;
    }
    c.source = memory;
    c.target = c.source + c.bytes;
    bool good = bench_fill(device, memory, c.bytes / 4, EVO_FP32, 0.0, 1.0, 0, error) &&
                bench_time_work(device, settings, copy, &c, &times, error);
    (void)evo_memory_free(device->context, memory);
    *rate = good ? 2.0 * (double)c.bytes / times.median / 1e6 : 0.0;
    return good;
}

/* ---- the product ---- */

static bool measure_product(const struct bench_device *device, const struct bench_settings *settings,
                            struct bench_ceilings *ceilings, struct io_error *error) {
    struct bench_product product;
    struct bench_times times;
    if (!bench_open_product(device, settings->compute, &product, error)) {
        return false;
    }
    bool good = true;
    if (product.library != NULL) {
        good = bench_time_work(device, settings, product.work, product.state, &times, error);
        ceilings->rate[settings->compute] = good ? product.flops / times.median / 1e9 : 0.0;
        (void)snprintf(ceilings->source, sizeof ceilings->source, "%s", product.name);
    } else {
        (void)snprintf(ceilings->missing, sizeof ceilings->missing, "%s", product.missing);
    }
    bench_close_product(device, &product);
    return good;
}

bool bench_measure_ceilings(const struct bench_device *device, const struct bench_settings *settings,
                            struct bench_ceilings *ceilings, struct io_error *error) {
    memset(ceilings, 0, sizeof *ceilings);
    return measure_copy(device, settings, &ceilings->copy, error) && measure_product(device, settings, ceilings, error);
}
