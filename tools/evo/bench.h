/*
 * bench.h: the parts of `evo bench`. bench.c reads the command line and prints rows, bench_shapes.c reads shapes,
 * bench_data.c makes inputs, bench_time.c times kernels on them, bench_ceilings.c and bench_blas.c measure what the device
 * can do at most.
 */
#ifndef EVO_TOOLS_EVO_BENCH_H
#define EVO_TOOLS_EVO_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "case/case.h"

/* ---- shapes ---- */

enum {
    BENCH_MAX_DIMS = 8,
    BENCH_MAX_SHAPES = 4096
};

/* One op and its sizes, in the order of its table; sizes that the text leaves out are 0. */
struct bench_shape {
    const struct case_op *op;
    int64_t sizes[BENCH_MAX_DIMS];
    char text[96];
};

struct bench_shapes {
    struct bench_shape *items;
    int count;
};

/* Adds the shape that "B,N,c_z,c" describes. */
bool bench_add_shape(struct bench_shapes *shapes, const struct case_op *op, const char *text, struct io_error *error);

/* Adds the shapes of a file, those of `op` alone unless it is NULL. A message begins with file and line. */
bool bench_read_shapes(struct bench_shapes *shapes, const struct case_op *op, const char *path, struct io_error *error);

/* ---- inputs ---- */

/* What is timed, but for shape and kernel. */
struct bench_settings {
    evo_dtype dtype;
    evo_compute compute;
    evo_direction direction;
    const char *variant; /* NULL: the descriptor's own */
    const char *biases;  /* NULL: the variant's */
    bool no_mask, residual;
    size_t workspace_limit;
    int64_t cache;   /* bytes that no cache of the device holds */
    double min_time; /* milliseconds of measurement a kernel */
    bool cold, burst;
};

/* An open device and the stream that all work goes to. */
struct bench_device {
    evo_context *context;
    evo_device_info info;
    evo_stream stream;
    bool cpu;
};

/* The tensors of one shape: sets of inputs and outputs to take in turn, and one set of weights, all in one allocation. */
struct bench_data {
    const struct bench_device *device;
    const struct case_op *op;
    union case_desc desc;
    union case_weights weights;
    union case_args *sets;
    int set_count;
    void *memory;
};

bool bench_make_data(const struct bench_device *device, const struct bench_settings *settings,
                     const struct bench_shape *shape, struct bench_data *data, struct io_error *error);
void bench_free_data(struct bench_data *data);

/* Fills device memory with normal numbers; `start` chooses where in one fixed block of them to begin. */
bool bench_fill(const struct bench_device *device, void *memory, int64_t count, evo_dtype dtype, double mean,
                double deviation, int64_t start, struct io_error *error);

/* Passes a status on: true if it is EVO_OK, else the library's message is the error. */
bool bench_good(evo_status status, struct io_error *error);

/* ---- time ---- */

struct bench_times {
    double median, min, max, q1, q3; /* milliseconds an execution */
    int runs;                        /* measurements */
    int executions;                  /* that each of them covers */
};

/* One kernel on one shape. */
struct bench_candidate {
    const char *forced; /* NULL: the planner chooses */
    bool refused;
    bool repeated;         /* planning gave the kernel of an earlier candidate: not timed again */
    struct io_error error; /* why it was refused */
    char kernel[64];
    evo_compute computes;
    size_t workspace_size;
    double flops, bytes;
    struct bench_times times;
};

/*
 * Times the candidates in turn on the same data. Those that no plan takes are marked and passed over; false if anything
 * else goes wrong.
 */
bool bench_time(const struct bench_data *data, const struct bench_settings *settings,
                struct bench_candidate *candidates, int count, struct io_error *error);

/* Work to be timed that is no op: the ceilings. */
typedef bool (*bench_work)(void *user, evo_stream stream, struct io_error *error);
bool bench_time_work(const struct bench_device *device, const struct bench_settings *settings, bench_work work,
                     void *user, struct bench_times *times, struct io_error *error);

/* ---- ceilings ---- */

enum {
    BENCH_COMPUTES = EVO_COMPUTE_FP64 + 1
};

/* 0 where unknown. */
struct bench_ceilings {
    double copy;                 /* GB/s, read and written */
    double rate[BENCH_COMPUTES]; /* TFLOP/s of matrix products */
    char source[64];             /* the library that told the rate; "" if given */
    char missing[512];           /* why the rate is unknown; "" if it is not, or was not asked for */
};

/* Reads "copy=GB/s,bf16=TFLOP/s,..."; "none" is none. */
bool bench_given_ceilings(const char *text, struct bench_ceilings *ceilings, struct io_error *error);

/* Measures the copy rate and the rate of the settings' compute mode. What no library tells stays 0. */
bool bench_measure_ceilings(const struct bench_device *device, const struct bench_settings *settings,
                            struct bench_ceilings *ceilings, struct io_error *error);

/*
 * A product of two n x n matrices by a library that is looked for while the program runs (bench_blas.c). `work` does one
 * product with `state`; `library` NULL: none was found, and `missing` says why.
 */
struct bench_product {
    bench_work work;
    void *state;
    void *library;
    const char *name;
    double flops;
    char missing[512];
};

/* Opens a library and makes its operands; false for failures other than a library or function that is not there. */
bool bench_open_product(const struct bench_device *device, evo_compute compute, struct bench_product *product,
                        struct io_error *error);
void bench_close_product(const struct bench_device *device, struct bench_product *product);

#endif
