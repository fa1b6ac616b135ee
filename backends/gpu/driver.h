/*
 * driver.h: what a vendor's driver must do for the GPU backend, as one table of functions. backends/cuda/ and
 * backends/hip/ fulfil it; everything else that the two backends do is written once, in backends/gpu/, in these terms.
 *
 * Every function is thread-safe, prints nothing and waits for nothing unless it says so. One that fails returns a status
 * and sets this thread's error text with evo_fail, with the driver's own words: "cuda: cuLaunchKernel: invalid argument
 * (CUDA_ERROR_INVALID_VALUE, 1)". Out of device memory is EVO_ERROR_OUT_OF_MEMORY, what a recording stream refuses
 * EVO_ERROR_CAPTURE, a driver that is missing or finds no device EVO_ERROR_NO_DEVICE, all else EVO_ERROR_DEVICE.
 *
 * Functions below the line in the table are called between `enter` and `leave`: the device's context is current. Streams,
 * events and graphs are the vendor's own handles; a NULL stream is its legacy default stream.
 */
#ifndef EVO_BACKENDS_GPU_DRIVER_H
#define EVO_BACKENDS_GPU_DRIVER_H

#include "backends/backend.h"
#include "backends/gpu/kernels/params.h"

typedef struct gpu_properties {
    char description[128]; /* the vendor's name of the device */
    char arch[32];         /* "sm_90"; "gfx942", without feature suffixes such as ":sramecc+" */
    int compute_units;     /* multiprocessors or compute units */
    int wave_size;
    size_t memory_size;
    size_t shared_memory_size; /* bytes that one block may use, with the opt-in where there is one */
    bool tensor_maps;          /* the driver can make what bulk tensor copies read */
    bool has_async_copies;     /* from global to shared memory */
    bool flushes_halves;       /* matrix units take halves below 2^-14 as 0 */
} gpu_properties;

/** A tensor of 16-bit numbers for bulk copies, fastest index first. A copy moves one box, to or from rows of 128 bytes. */
typedef struct gpu_bulk_tensor {
    const void *data; /* aligned to 16 bytes */
    int dtype, rank;
    int64_t extent[5];
    int64_t stride[5]; /* elements; the first is 1, the others multiples of 8 */
    int box[5];        /* numbers of the first index are at most 64, of the others at most 256 */
} gpu_bulk_tensor;

typedef struct gpu_grid {
    unsigned x, y, z; /* blocks */
} gpu_grid;

typedef struct gpu_driver {
    const char *name;      /* "cuda", "hip": the prefix of device names */
    uint64_t grid_threads; /* of a launch along x at the most */

    /** Devices; 0 with the reason in `why` if the driver is missing, too old (say what is needed) or finds none. */
    int (*device_count)(evo_text *why);
    evo_status (*properties)(int index, gpu_properties *properties);
    /** Retains the device's primary context, and lets go of it. */
    evo_status (*open)(int index, void **context);
    void (*close)(int index, void *context);
    /**
     * Makes the context current; `leave` makes current again what was before (nothing, as a rule another context). The work is
     * done by then: nobody is told if that fails.
     */
    evo_status (*enter)(int index, void *context, void **saved);
    void (*leave)(int index, void *context, void *saved);

    /* ---- in a current context ---- */

    /** `image` is a cubin, PTX with its closing 0, or a code object; it stays in memory for the life of the process. */
    evo_status (*module_load)(const void *image, size_t size, void **module);
    void (*module_unload)(void *module);
    evo_status (*function_get)(void *module, const char *name, void **function);
    /** Allows launches with this much dynamic shared memory; called once for a function that wants more than 48 KB. */
    evo_status (*function_allow_shared)(void *function, size_t bytes);
    /**
     * Launches blocks of `threads` x 1 x 1 threads. The kernel takes exactly one struct by value: `size` bytes at
     * `params`, which are copied before the call returns.
     */
    evo_status (*launch)(void *function, gpu_grid grid, unsigned threads, size_t shared, evo_stream stream,
                         const void *params, size_t size);
    /** The same for a kernel that may start before the one ahead of it has ended, since it waits for that itself. */
    evo_status (*launch_early)(void *function, gpu_grid grid, unsigned threads, size_t shared, evo_stream stream,
                               const void *params, size_t size);
    /** Describes a tensor, on the host; only where gpu_properties says so. */
    evo_status (*tensor_map)(const gpu_bulk_tensor *tensor, gpu_tensor_map *map);

    evo_status (*memory_alloc)(size_t bytes, void **memory); /* aligned to 256 bytes */
    evo_status (*memory_free)(void *memory);
    /** In stream order, between any two of host and device. */
    evo_status (*memory_copy)(void *target, const void *source, size_t bytes, evo_stream stream);
    evo_status (*memory_fill)(void *target, int value, size_t bytes, evo_stream stream);

    evo_status (*stream_create)(evo_stream *stream); /* does not wait for the default stream */
    evo_status (*stream_destroy)(evo_stream stream);
    evo_status (*stream_synchronize)(evo_stream stream); /* waits */
    evo_status (*stream_wait_event)(evo_stream stream, evo_event event);
    evo_status (*stream_is_capturing)(evo_stream stream, bool *capturing);

    evo_status (*event_create)(evo_event *event); /* with timing */
    evo_status (*event_destroy)(evo_event event);
    evo_status (*event_record)(evo_event event, evo_stream stream);
    evo_status (*event_synchronize)(evo_event event); /* waits */
    /** EVO_ERROR_INVALID_ARGUMENT if one of them is not recorded. */
    evo_status (*event_elapsed)(evo_event start, evo_event stop, double *milliseconds);

    /** EVO_ERROR_CAPTURE if the stream records already (begin) or does not record (end). */
    evo_status (*graph_begin)(evo_stream stream);
    evo_status (*graph_end)(evo_stream stream, evo_graph *graph); /* ready to launch */
    evo_status (*graph_launch)(evo_graph graph, evo_stream stream);
    evo_status (*graph_destroy)(evo_graph graph);
} gpu_driver;

extern const gpu_driver evo_cuda_driver; /* backends/cuda/cuda.c */
extern const gpu_driver evo_hip_driver;  /* backends/hip/hip.c */

#endif
