/*
 * backend.h: the contract between the front end (src/) and a backend (backends/<name>/).
 *
 * The front end checks descriptors, chooses a kernel, and walks an op's stages over ranges of the batch, rows, columns
 * and channels; a backend opens devices, offers kernels per op and runs one stage over one tile. Backends see the front
 * end through this file and the leaf headers status.h, platform.h and number.h of src/, nothing else.
 */
#ifndef EVO_BACKENDS_BACKEND_H
#define EVO_BACKENDS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evoformer/evoformer.h"
#include "src/status.h"

typedef struct evo_backend evo_backend;

/** An open device; backends embed it as the first member of their own. */
typedef struct evo_device {
    const evo_backend *backend;
    int index;
} evo_device;

/** A checked descriptor: every default resolved (c_out, strides, alignments), all products of sizes known to fit. */
typedef struct evo_problem {
    evo_op op;
    bool named; /**< the caller asks for this kernel by name: one that is never the best choice may then take it */
    int order;  /**< 0: the kernel chooses; k: the caller asks for its orders[k - 1], which it takes or refuses */
    union {
        evo_opm_desc opm;
        evo_trimul_desc trimul;
    } desc;
} evo_problem;

typedef struct evo_range {
    int64_t begin, end;
} evo_range;

/** The part of an op that one stage call covers. Rows and columns are i and j of the output pair (i, j). */
typedef struct evo_tile {
    evo_range batch, rows, cols, channels;
} evo_tile;

/**
 * How large the tiles are that a kernel wants: the whole extent, or less to fit a workspace limit. A triangle
 * multiplication with fewer rows and fewer channels at once projects z again for each block of rows: not possible if the
 * output may alias z.
 */
typedef struct evo_schedule {
    int64_t batch, rows, cols, channels;
} evo_schedule;

/** The form in which a kernel will run one problem: what its `plan` decides. */
typedef struct evo_form {
    evo_compute compute; /**< what it computes in */
    evo_schedule schedule;
    size_t workspace_size;
    size_t pack_size;
    int order;            /**< index of the one of the kernel's `orders` that it takes; 0 if it has none */
    uint32_t pack_layout; /**< names the packed layout and its number types; packs of another id are refused */
    int64_t tuning[8];    /**< the kernel's own numbers */
    void *state;          /**< the kernel's own objects, freed by `release` */
    const char *detail;   /**< a word more for the log, such as the instruction set, that outlives the plan; or NULL */
} evo_form;

/** The arguments of one call, by op; weights with their strides resolved. */
typedef union evo_call_args {
    evo_opm_args opm;
    evo_trimul_args trimul;
    evo_opm_weights opm_weights;
    evo_trimul_weights trimul_weights;
} evo_call_args;

/** Everything that a stage needs. Problem and form belong to the plan. */
typedef struct evo_call {
    evo_device *device;
    const struct evo_kernel *kernel;
    const evo_problem *problem;
    const evo_form *form;
    void *pack; /**< packed weights: written by EVO_STAGE_PACK, read by the others */
    void *workspace;
    evo_stream stream;
    evo_call_args args;
} evo_call;

/**
 * Stages. The walk over tiles is the front end's (src/ops/<op>.c says in which order and over which ranges); a NULL stage
 * means that the kernel does that work in an earlier one.
 */
enum {
    EVO_STAGE_PACK = 0,
    EVO_STAGE_OPM_PROJECT = 1,     /**< LayerNorm, a of the tile's rows, b of its columns, into the workspace */
    EVO_STAGE_OPM_OUTER = 2,       /**< products, normaliser and output projection of the tile's pairs */
    EVO_STAGE_TRIMUL_PROJECT = 1,  /**< LayerNorm, a and b of the tile's channels at every position */
    EVO_STAGE_TRIMUL_CONTRACT = 2, /**< t of the tile's channels and rows */
    EVO_STAGE_TRIMUL_FINISH = 3,   /**< LayerNorm, output projection, gate and residual of the tile's rows */
    EVO_STAGE_COUNT = 4
};

typedef evo_status (*evo_stage_function)(const evo_call *call, const evo_tile *tile);

/** One way to compute one op. Rows stand best first in a backend's table. */
typedef struct evo_kernel {
    const char *name;
    /** Orders of contraction to choose from, as full names ("portable/weight-first"), ending with NULL; or NULL: it has one. */
    const char *const *orders;
    /** Whether it takes the problem on this device; if not, adds the reason to `why`. Loads nothing. */
    bool (*supports)(const evo_device *device, const evo_problem *problem, evo_text *why);
    /** Decides the form and loads what it needs; EVO_ERROR_WORKSPACE_LIMIT, with the least size, if no form fits. */
    evo_status (*plan)(evo_device *device, const evo_problem *problem, evo_form *form);
    /** Frees form->state; NULL if there is none. */
    void (*release)(evo_form *form);
    evo_stage_function stage[EVO_STAGE_COUNT];
} evo_kernel;

/** A kind of device. Every function is thread-safe; none prints. */
struct evo_backend {
    const char *name;
    const char *images; /**< architectures that kernels were compiled for; "" if none are needed */
    /** Counts usable devices; 0 with the reason in `why` if the driver is missing or finds none. */
    int (*device_count)(evo_text *why);
    evo_status (*device_info)(int index, evo_device_info *info);
    evo_status (*open)(int index, evo_device **device);
    void (*close)(evo_device *device);
    /** The kernels of an op, best first. */
    const evo_kernel *const *(*kernels)(evo_op op, int *count);
    /** Brackets the stages of one call: makes the device current, then restores the caller's own. Either may be NULL. */
    evo_status (*enter)(evo_device *device, void **saved);
    void (*leave)(evo_device *device, void *saved);
    /** Runs, or in a recording stream records, one stage. */
    evo_status (*run)(const evo_call *call, int stage, const evo_tile *tile);

    evo_status (*memory_alloc)(evo_device *device, size_t bytes, void **memory);
    evo_status (*memory_free)(evo_device *device, void *memory);
    evo_status (*memory_copy)(evo_device *device, void *target, const void *source, size_t bytes, evo_stream stream);
    evo_status (*memory_fill)(evo_device *device, void *target, int value, size_t bytes, evo_stream stream);
    evo_status (*stream_create)(evo_device *device, evo_stream *stream);
    evo_status (*stream_destroy)(evo_device *device, evo_stream stream);
    evo_status (*stream_synchronize)(evo_device *device, evo_stream stream);
    evo_status (*stream_wait_event)(evo_device *device, evo_stream stream, evo_event event);
    evo_status (*stream_is_capturing)(evo_device *device, evo_stream stream, bool *capturing);
    evo_status (*event_create)(evo_device *device, evo_event *event);
    evo_status (*event_destroy)(evo_device *device, evo_event event);
    evo_status (*event_record)(evo_device *device, evo_event event, evo_stream stream);
    evo_status (*event_synchronize)(evo_device *device, evo_event event);
    evo_status (*event_elapsed)(evo_device *device, evo_event start, evo_event stop, double *milliseconds);
    evo_status (*graph_begin)(evo_device *device, evo_stream stream);
    evo_status (*graph_end)(evo_device *device, evo_stream stream, evo_graph *graph);
    evo_status (*graph_launch)(evo_device *device, evo_graph graph, evo_stream stream);
    evo_status (*graph_destroy)(evo_device *device, evo_graph graph);
};

extern const evo_backend evo_backend_cpu;
extern const evo_backend evo_backend_cuda;
extern const evo_backend evo_backend_hip;

#endif
