/* runtime.c: the public memory, stream, event and graph functions: argument checks, then the backend's own. */
#include "src/context.h"

#define REQUIRE(argument)                                             \
    do {                                                              \
        if (!(argument)) return evo_fail_null(__func__, #argument);   \
    } while (0)

evo_status evo_memory_alloc(evo_context *context, size_t bytes, void **memory) {
    REQUIRE(context);
    REQUIRE(memory);
    *memory = NULL;
    return bytes ? context->device->backend->memory_alloc(context->device, bytes, memory) : EVO_OK;
}

evo_status evo_memory_free(evo_context *context, void *memory) {
    REQUIRE(context);
    return memory ? context->device->backend->memory_free(context->device, memory) : EVO_OK;
}

evo_status evo_memory_copy(evo_context *context, void *target, const void *source, size_t bytes, evo_stream stream) {
    REQUIRE(context);
    if (!bytes) return EVO_OK;
    REQUIRE(target);
    REQUIRE(source);
    return context->device->backend->memory_copy(context->device, target, source, bytes, stream);
}

evo_status evo_memory_fill(evo_context *context, void *target, int value, size_t bytes, evo_stream stream) {
    REQUIRE(context);
    if (value < 0 || value > 255)
        return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "evo_memory_fill: value is %d, expected 0 to 255", value);
    if (!bytes) return EVO_OK;
    REQUIRE(target);
    return context->device->backend->memory_fill(context->device, target, value, bytes, stream);
}

evo_status evo_stream_create(evo_context *context, evo_stream *stream) {
    REQUIRE(context);
    REQUIRE(stream);
    return context->device->backend->stream_create(context->device, stream);
}

evo_status evo_stream_destroy(evo_context *context, evo_stream stream) {
    REQUIRE(context);
    return stream ? context->device->backend->stream_destroy(context->device, stream) : EVO_OK;
}

evo_status evo_stream_synchronize(evo_context *context, evo_stream stream) {
    REQUIRE(context);
    return context->device->backend->stream_synchronize(context->device, stream);
}

evo_status evo_stream_wait_event(evo_context *context, evo_stream stream, evo_event event) {
    REQUIRE(context);
    REQUIRE(event);
    return context->device->backend->stream_wait_event(context->device, stream, event);
}

evo_status evo_event_create(evo_context *context, evo_event *event) {
    REQUIRE(context);
    REQUIRE(event);
    return context->device->backend->event_create(context->device, event);
}

evo_status evo_event_destroy(evo_context *context, evo_event event) {
    REQUIRE(context);
    return event ? context->device->backend->event_destroy(context->device, event) : EVO_OK;
}

evo_status evo_event_record(evo_context *context, evo_event event, evo_stream stream) {
    REQUIRE(context);
    REQUIRE(event);
    return context->device->backend->event_record(context->device, event, stream);
}

evo_status evo_event_synchronize(evo_context *context, evo_event event) {
    REQUIRE(context);
    REQUIRE(event);
    return context->device->backend->event_synchronize(context->device, event);
}

evo_status evo_event_elapsed(evo_context *context, evo_event start, evo_event stop, double *milliseconds) {
    REQUIRE(context);
    REQUIRE(start);
    REQUIRE(stop);
    REQUIRE(milliseconds);
    return context->device->backend->event_elapsed(context->device, start, stop, milliseconds);
}

evo_status evo_graph_begin(evo_context *context, evo_stream stream) {
    REQUIRE(context);
    REQUIRE(stream);
    return context->device->backend->graph_begin(context->device, stream);
}

evo_status evo_graph_end(evo_context *context, evo_stream stream, evo_graph *graph) {
    REQUIRE(context);
    REQUIRE(stream);
    REQUIRE(graph);
    *graph = NULL;
    return context->device->backend->graph_end(context->device, stream, graph);
}

evo_status evo_graph_launch(evo_context *context, evo_graph graph, evo_stream stream) {
    REQUIRE(context);
    REQUIRE(graph);
    return context->device->backend->graph_launch(context->device, graph, stream);
}

evo_status evo_graph_destroy(evo_context *context, evo_graph graph) {
    REQUIRE(context);
    return graph ? context->device->backend->graph_destroy(context->device, graph) : EVO_OK;
}
