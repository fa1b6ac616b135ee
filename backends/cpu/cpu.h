/* cpu.h: the CPU backend's own device, streams and helpers of its kernels. */
#ifndef EVO_BACKENDS_CPU_CPU_H
#define EVO_BACKENDS_CPU_CPU_H

#include "backends/backend.h"
#include "backends/cpu/blocked/isa.h"
#include "src/number.h"

typedef struct cpu_device {
    evo_device base;
    int threads;        /* EVO_NUM_THREADS; 0: what OpenMP would use, within what the system grants */
    int quota;          /* of the container, as it was when the device was opened */
    const cpu_isa *isa; /* of the blocked kernels: EVO_CPU_ISA, else the best that runs */
} cpu_device;

/** Threads that a parallel region of this device may use now. */
int evo_cpu_threads(const evo_device *device);

/** Work that a stream runs at once or records: `run(payload)`. */
typedef void (*cpu_work)(const void *payload);

/** Runs the work, or keeps a copy of the payload if the stream records a graph. */
evo_status evo_cpu_submit(evo_stream stream, cpu_work run, const void *payload, size_t size);

evo_status evo_cpu_stream_create(evo_device *device, evo_stream *stream);
evo_status evo_cpu_stream_destroy(evo_device *device, evo_stream stream);
evo_status evo_cpu_stream_synchronize(evo_device *device, evo_stream stream);
evo_status evo_cpu_stream_wait_event(evo_device *device, evo_stream stream, evo_event event);
evo_status evo_cpu_stream_is_capturing(evo_device *device, evo_stream stream, bool *capturing);
evo_status evo_cpu_event_create(evo_device *device, evo_event *event);
evo_status evo_cpu_event_destroy(evo_device *device, evo_event event);
evo_status evo_cpu_event_record(evo_device *device, evo_event event, evo_stream stream);
evo_status evo_cpu_event_synchronize(evo_device *device, evo_event event);
evo_status evo_cpu_event_elapsed(evo_device *device, evo_event start, evo_event stop, double *milliseconds);
evo_status evo_cpu_graph_begin(evo_device *device, evo_stream stream);
evo_status evo_cpu_graph_end(evo_device *device, evo_stream stream, evo_graph *graph);
evo_status evo_cpu_graph_launch(evo_device *device, evo_graph graph, evo_stream stream);
evo_status evo_cpu_graph_destroy(evo_device *device, evo_graph graph);

extern const evo_kernel evo_cpu_opm_blocked;
extern const evo_kernel evo_cpu_trimul_blocked;
extern const evo_kernel evo_cpu_opm_reference;
extern const evo_kernel evo_cpu_trimul_reference;

#endif
