/** @file
 * context.h: what this library holds, the devices it finds, and the context that stands for one of them.
 */
#ifndef EVOFORMER_CONTEXT_H
#define EVOFORMER_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

#include "evoformer/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A device opened for use. Thread-safe; destroyed with evo_context_destroy. */
typedef struct evo_context evo_context;

/** The ops of this library. Values are stable and dense: evo_op_name gives NULL from the first unused one on. */
typedef enum evo_op {
    EVO_OP_OPM = 0,
    EVO_OP_TRIMUL = 1
} evo_op;

/** "opm", "trimul"; NULL for values that are no op. */
EVO_API const char *evo_op_name(evo_op op);

/** One line: version, commit (where it was built from a repository), compiler, options and backends of this binary. */
EVO_API const char *evo_build_info(void);

/** The version of the library that runs (the macros of version.h are those it was compiled against): "0.1.0". */
EVO_API const char *evo_version(void);

/** One backend that the project knows, whether or not it is in this binary. */
typedef struct evo_backend_info {
    size_t size;         /**< sizeof(evo_backend_info) */
    const char *name;    /**< "cpu", "cuda", "hip" */
    int compiled;        /**< 1 if it is in this binary */
    int device_count;    /**< devices that can be opened; 0 if not compiled or the driver is missing */
    const char *missing; /**< why there is no device, in words; "" if there is one */
    const char *images; /**< architectures that kernels were compiled for, separated by spaces; "" if none are needed */
} evo_backend_info;

/** An evo_backend_info to be filled. */
#define EVO_BACKEND_INFO_INIT { sizeof(evo_backend_info), NULL, 0, 0, NULL, NULL }

/**
 * Describes backend number `index` (0, 1, ...). Strings stay valid until the calling thread's next call. Thread-safe.
 * @returns EVO_ERROR_INVALID_ARGUMENT past the last one, without touching the last error's text; EVO_ERROR_NULL_POINTER
 */
EVO_API evo_status evo_backend_get(int index, evo_backend_info *info);

/** One device. */
typedef struct evo_device_info {
    size_t size;               /**< sizeof(evo_device_info) */
    char name[32];             /**< what evo_context_create takes: "cpu", "cuda:0" */
    char description[128];     /**< the vendor's words for it */
    char arch[32];             /**< "x86_64", "sm_90", "gfx942" */
    int compute_units;         /**< CPUs that this process may use, multiprocessors, compute units */
    int wave_size;             /**< lanes that run in step; 1 on a CPU */
    size_t memory_size;        /**< bytes of its main memory; 0 if unknown */
    size_t shared_memory_size; /**< bytes of on-chip memory that one block may use; 0 on a CPU */
} evo_device_info;

/** An evo_device_info to be filled. */
#define EVO_DEVICE_INFO_INIT { sizeof(evo_device_info), { 0 }, { 0 }, { 0 }, 0, 0, 0, 0 }

/**
 * Describes device number `index` over all backends in this binary, in the order that "auto" prefers. Thread-safe.
 * @returns EVO_ERROR_INVALID_ARGUMENT past the last one, without touching the last error's text; EVO_ERROR_NULL_POINTER,
 *          EVO_ERROR_DEVICE
 */
EVO_API evo_status evo_device_get(int index, evo_device_info *info);

/**
 * Takes one log line, without a newline; the line is gone when it returns. Called by the threads that create the context,
 * plan and execute, by several at once if they do so at once.
 */
typedef void (*evo_log_function)(void *user, const char *line);

/** How a context behaves; evo_context_create takes NULL for all defaults. */
typedef struct evo_context_options {
    size_t size;          /**< sizeof(evo_context_options) */
    int verbose;          /**< 0: the environment's EVO_VERBOSE, 1: a line per plan and execute, 2: with times
                               (each execute then waits for its result and is refused under capture), -1: silent */
    evo_log_function log; /**< takes the lines; NULL: standard error */
    void *log_user;       /**< handed to `log` */
} evo_context_options;

/** An evo_context_options of all defaults. */
#define EVO_CONTEXT_OPTIONS_INIT { sizeof(evo_context_options), 0, NULL, NULL }

/**
 * Opens a device: "cpu", "cuda:0", "hip:1" (without a number: 0), or "auto", the first GPU that this binary has
 * kernels for, else the CPU. What "auto" took is logged at verbosity 1, a GPU that it had to pass over at 0 too.
 * A device that is named is never replaced by another.
 * On the CPU the number of threads is EVO_NUM_THREADS, else what OpenMP would use; OpenMP's settings are never changed.
 * In a fork of a process that has had a context the CPU computes with one thread, and GPUs are refused (docs/embedding.md).
 * @returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (no such name), EVO_ERROR_NOT_COMPILED,
 *          EVO_ERROR_NO_DEVICE, EVO_ERROR_OUT_OF_MEMORY, EVO_ERROR_DEVICE
 */
EVO_API evo_status evo_context_create(const char *device, const evo_context_options *options, evo_context **context);

/** Lets go of the context; plans and packs made with it stay usable. NULL is allowed. */
EVO_API void evo_context_destroy(evo_context *context);

/** Describes the context's device. @returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT */
EVO_API evo_status evo_context_device(const evo_context *context, evo_device_info *info);

/**
 * The name of kernel number `index` of `op` on this context's device, best first; NULL past the last one. A kernel that can
 * contract in several orders is followed by a name for each ("portable", "portable/outer-first", "portable/weight-first").
 * These are the names that a descriptor's `kernel` field and EVO_KERNEL=op:kernel,... take: the first leaves the order
 * to the plan.
 */
EVO_API const char *evo_context_kernel(const evo_context *context, evo_op op, int index);

#ifdef __cplusplus
}
#endif
#endif
