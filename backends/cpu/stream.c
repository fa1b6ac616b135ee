/*
 * stream.c: streams, events and graphs of the CPU. A stream runs its work at once in the calling thread, so only one that
 * records has any state: the list of work that will be the graph.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu.h"

typedef struct node {
    struct node *next;
    cpu_work run;
    size_t size;
    max_align_t payload[];
} node;

typedef struct graph {
    node *first;
    node **end;
    uint64_t id;     /* of no other graph of this process, and never 0 */
    bool incomplete; /* a call could not be recorded: half of an op must not run */
} graph;

typedef struct stream {
    graph *recording;
} stream;

typedef struct event {
    bool recorded;
    double time;        /* milliseconds, of the last record */
    uint64_t recording; /* id of the graph that the last record went into, until that is launched; else 0 */
} event;

static evo_status no_memory(const char *function) {
    return evo_fail(EVO_ERROR_OUT_OF_MEMORY, "%s: no host memory", function);
}

evo_status evo_cpu_submit(evo_stream handle, cpu_work run, const void *payload, size_t size) {
    graph *recording = handle ? ((stream *)handle)->recording : NULL;
    if (!recording) {
        run(payload);
        return EVO_OK;
    }
    node *made = malloc(sizeof *made + size);
    if (!made) {
        recording->incomplete = true;
        return evo_fail(EVO_ERROR_OUT_OF_MEMORY, "no host memory for a call in a stream that records a graph");
    }
    made->next = NULL;
    made->run = run;
    made->size = size;
    memcpy(made->payload, payload, size);
    *recording->end = made;
    recording->end = &made->next;
    return EVO_OK;
}

static void free_graph(graph *made) {
    while (made->first) {
        node *next = made->first->next;
        free(made->first);
        made->first = next;
    }
    free(made);
}

evo_status evo_cpu_stream_create(evo_device *device, evo_stream *handle) {
    (void)device;
    stream *made = calloc(1, sizeof *made);
    *handle = made;
    return made ? EVO_OK : no_memory("evo_stream_create");
}

evo_status evo_cpu_stream_destroy(evo_device *device, evo_stream handle) {
    (void)device;
    if (((stream *)handle)->recording) free_graph(((stream *)handle)->recording);
    free(handle);
    return EVO_OK;
}

evo_status evo_cpu_stream_synchronize(evo_device *device, evo_stream handle) {
    (void)device;
    if (handle && ((stream *)handle)->recording)
        return evo_fail(EVO_ERROR_CAPTURE,
                        "evo_stream_synchronize: the stream records a graph, expected evo_graph_end first");
    return EVO_OK;
}

/* The graph that a stream records, 0 if none. */
static uint64_t recording_id(evo_stream handle) {
    const graph *recording = handle ? ((const stream *)handle)->recording : NULL;
    return recording ? recording->id : 0;
}

/* Work is done when it is submitted, so there is nothing to wait for; but a record in a graph happens at its launch. */
evo_status evo_cpu_stream_wait_event(evo_device *device, evo_stream handle, evo_event waited) {
    (void)device;
    const uint64_t recording = ((const event *)waited)->recording;
    if (recording == 0 || recording == recording_id(handle)) return EVO_OK;
    return evo_fail(EVO_ERROR_CAPTURE, "evo_stream_wait_event: the event's last record is in a graph, expected the "
                                       "stream that records it, or evo_graph_launch first");
}

evo_status evo_cpu_stream_is_capturing(evo_device *device, evo_stream handle, bool *capturing) {
    (void)device;
    *capturing = handle && ((stream *)handle)->recording;
    return EVO_OK;
}

evo_status evo_cpu_event_create(evo_device *device, evo_event *handle) {
    (void)device;
    event *made = calloc(1, sizeof *made);
    *handle = made;
    return made ? EVO_OK : no_memory("evo_event_create");
}

evo_status evo_cpu_event_destroy(evo_device *device, evo_event handle) {
    (void)device;
    free(handle);
    return EVO_OK;
}

static void record_payload(const void *payload) {
    event *recorded = *(event *const *)payload;
    recorded->time = evo_clock_ms();
    recorded->recorded = true;
    recorded->recording = 0;
}

evo_status evo_cpu_event_record(evo_device *device, evo_event handle, evo_stream recorded_in) {
    (void)device;
    event *recorded = handle;
    recorded->recording = recording_id(recorded_in);
    return evo_cpu_submit(recorded_in, record_payload, &recorded, sizeof recorded);
}

/* Here, too, a record in a graph has not happened yet. */
static evo_status happened(const char *function, const event *recorded) {
    if (recorded->recording == 0) return EVO_OK;
    return evo_fail(EVO_ERROR_CAPTURE, "%s: the event's last record is in a graph, expected evo_graph_launch first",
                    function);
}

evo_status evo_cpu_event_synchronize(evo_device *device, evo_event handle) {
    (void)device;
    return happened("evo_event_synchronize", handle);
}

evo_status evo_cpu_event_elapsed(evo_device *device, evo_event start, evo_event stop, double *milliseconds) {
    (void)device;
    if (!((event *)start)->recorded || !((event *)stop)->recorded)
        return evo_fail(EVO_ERROR_INVALID_ARGUMENT,
                        "evo_event_elapsed: %s was never recorded, expected evo_event_record first",
                        ((event *)start)->recorded ? "stop" : "start");
    evo_status status = happened("evo_event_elapsed", start);
    if (status == EVO_OK) status = happened("evo_event_elapsed", stop);
    if (status != EVO_OK) return status;
    *milliseconds = ((event *)stop)->time - ((event *)start)->time;
    return EVO_OK;
}

evo_status evo_cpu_graph_begin(evo_device *device, evo_stream handle) {
    (void)device;
    static atomic_uint_least64_t last_id;
    stream *recorded = handle;
    if (recorded->recording)
        return evo_fail(EVO_ERROR_CAPTURE,
                        "evo_graph_begin: the stream already records a graph, expected evo_graph_end first");
    graph *made = malloc(sizeof *made);
    if (!made) return no_memory("evo_graph_begin");
    made->first = NULL;
    made->end = &made->first;
    made->id = atomic_fetch_add(&last_id, 1) + 1;
    made->incomplete = false;
    recorded->recording = made;
    return EVO_OK;
}

evo_status evo_cpu_graph_end(evo_device *device, evo_stream handle, evo_graph *result) {
    (void)device;
    stream *recorded = handle;
    if (!recorded->recording)
        return evo_fail(EVO_ERROR_CAPTURE,
                        "evo_graph_end: the stream records no graph, expected evo_graph_begin first");
    graph *made = recorded->recording;
    recorded->recording = NULL;
    if (!made->incomplete) {
        *result = made;
        return EVO_OK;
    }
    free_graph(made);
    return evo_fail(EVO_ERROR_OUT_OF_MEMORY,
                    "evo_graph_end: the recording is void, as there was no host memory for one of its calls");
}

/* Into a stream that records, its work becomes part of the new graph, which owes the launched one nothing after that. */
evo_status evo_cpu_graph_launch(evo_device *device, evo_graph handle, evo_stream launched_in) {
    (void)device;
    evo_status status = EVO_OK;
    for (const node *n = ((const graph *)handle)->first; n && status == EVO_OK; n = n->next)
        status = evo_cpu_submit(launched_in, n->run, n->payload, n->size);
    return status;
}

evo_status evo_cpu_graph_destroy(evo_device *device, evo_graph handle) {
    (void)device;
    free_graph(handle);
    return EVO_OK;
}
