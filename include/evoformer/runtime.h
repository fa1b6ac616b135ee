/** @file
 * runtime.h: memory, streams, events and graphs that work alike on every device, for programs with no GPU runtime of
 * their own. Programs that use CUDA, HIP or PyTorch need none of it: their pointers, streams, events and graphs are
 * the same objects and may be handed to every function here and to execute.
 *
 * Memory, streams, events and graphs belong to the device: any of its contexts will do, as long as one is left, or a plan or
 * pack of one. Every function gives EVO_ERROR_NULL_POINTER for a NULL that it does not allow and EVO_ERROR_DEVICE where the
 * driver fails, beside what is said below.
 *
 * On the CPU a stream runs each call at once, in the calling thread; between evo_graph_begin and evo_graph_end it
 * records the calls instead, and evo_graph_launch repeats them.
 */
#ifndef EVOFORMER_RUNTIME_H
#define EVOFORMER_RUNTIME_H

#include <stddef.h>

#include "evoformer/context.h"
#include "evoformer/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A queue of work in order: CUstream or cudaStream_t, hipStream_t, or the CPU's own. NULL: the device's default. */
typedef void *evo_stream;
/** A point in a stream: CUevent or cudaEvent_t, hipEvent_t, or the CPU's own. */
typedef void *evo_event;
/** A recorded sequence of work, ready to launch: CUgraphExec or cudaGraphExec_t, hipGraphExec_t, or the CPU's own. */
typedef void *evo_graph;

/** Allocates device memory, aligned to 256 bytes. 0 bytes give NULL. @returns EVO_ERROR_OUT_OF_MEMORY */
EVO_API evo_status evo_memory_alloc(evo_context *context, size_t bytes, void **memory);
/** Frees what evo_memory_alloc gave, once no work uses it any more; NULL is allowed. */
EVO_API evo_status evo_memory_free(evo_context *context, void *memory);
/**
 * Copies bytes in stream order between any two of host and device; both must live, and hold what they should, until that is
 * done. @returns EVO_ERROR_OUT_OF_MEMORY (recording on the CPU)
 */
EVO_API evo_status evo_memory_copy(evo_context *context, void *target, const void *source, size_t bytes,
                                   evo_stream stream);
/** Sets every byte of device memory to `value` (0 to 255), in stream order. @returns EVO_ERROR_INVALID_ARGUMENT, as a copy's */
EVO_API evo_status evo_memory_fill(evo_context *context, void *target, int value, size_t bytes, evo_stream stream);

/** Makes a stream of the context's device. @returns EVO_ERROR_OUT_OF_MEMORY */
EVO_API evo_status evo_stream_create(evo_context *context, evo_stream *stream);
/** Destroys a stream of evo_stream_create after its work is done; NULL is allowed. */
EVO_API evo_status evo_stream_destroy(evo_context *context, evo_stream stream);
/** Returns when all work of the stream is done, with the error of any of it. @returns EVO_ERROR_CAPTURE if it records */
EVO_API evo_status evo_stream_synchronize(evo_context *context, evo_stream stream);
/**
 * Work given to the stream from now on starts after the event's last record.
 * @returns EVO_ERROR_CAPTURE if that record is in a graph, unless this stream records it
 */
EVO_API evo_status evo_stream_wait_event(evo_context *context, evo_stream stream, evo_event event);

/** Makes an event, recorded nowhere yet. @returns EVO_ERROR_OUT_OF_MEMORY */
EVO_API evo_status evo_event_create(evo_context *context, evo_event *event);
/** Destroys an event of evo_event_create that no recorded graph uses; NULL is allowed. */
EVO_API evo_status evo_event_destroy(evo_context *context, evo_event event);
/** The event stands for all work given to the stream so far, and keeps the time when that is done. */
EVO_API evo_status evo_event_record(evo_context *context, evo_event event, evo_stream stream);
/**
 * Returns when the work before the event's last record is done; at once if it was never recorded.
 * @returns EVO_ERROR_CAPTURE if that record is in a graph (on the CPU: that was not launched since)
 */
EVO_API evo_status evo_event_synchronize(evo_context *context, evo_event event);
/**
 * Milliseconds between two recorded and completed events.
 * @returns EVO_ERROR_INVALID_ARGUMENT if one is not recorded, EVO_ERROR_CAPTURE if its last record is in a graph, as above
 */
EVO_API evo_status evo_event_elapsed(evo_context *context, evo_event start, evo_event stop, double *milliseconds);

/** From now on the stream (not the default one) records its work. @returns EVO_ERROR_CAPTURE if it already does */
EVO_API evo_status evo_graph_begin(evo_context *context, evo_stream stream);
/**
 * Ends the recording and makes it launchable. After a call that could not be recorded there is no graph, on the CPU always.
 * @returns EVO_ERROR_CAPTURE if the stream does not record, EVO_ERROR_OUT_OF_MEMORY
 */
EVO_API evo_status evo_graph_end(evo_context *context, evo_stream stream, evo_graph *graph);
/**
 * Runs the recorded work once, in stream order. All that it uses must still be alive: tensors, workspace, pack memory,
 * events, and the plans (not the pack handles).
 */
EVO_API evo_status evo_graph_launch(evo_context *context, evo_graph graph, evo_stream stream);
/** Destroys a graph that no stream is running; NULL is allowed. */
EVO_API evo_status evo_graph_destroy(evo_context *context, evo_graph graph);

#ifdef __cplusplus
}
#endif
#endif
