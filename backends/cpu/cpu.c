/* cpu.c: the CPU as a device: its properties, its memory, its kernels, and how a stage reaches its stream. */
#include "backends/cpu/cpu.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int device_count(evo_text *why) {
    (void)why;
    return 1;
}

static evo_status device_info(int index, evo_device_info *info) {
    (void)index;
    snprintf(info->name, sizeof info->name, "cpu");
    evo_machine(info->description, sizeof info->description, info->arch, sizeof info->arch, &info->memory_size);
    info->compute_units = omp_get_num_procs();
    info->wave_size = 1;
    info->shared_memory_size = 0;
    return EVO_OK;
}

static evo_status choose_threads(int *threads) {
    const char *text = evo_environment("EVO_NUM_THREADS");
    *threads = 0;
    if (!text) return EVO_OK;
    char *end;
    const long number = strtol(text, &end, 10);
    if (*end || number < 1 || number > 65536)
        return evo_fail(
            EVO_ERROR_INVALID_ARGUMENT,
            "evo_context_create: the environment's EVO_NUM_THREADS is \"%s\", expected a number from 1 to 65536", text);
    *threads = (int)number;
    return EVO_OK;
}

/* EVO_CPU_ISA, else the best instruction set that this machine runs. */
static evo_status choose_isa(const cpu_isa **isa) {
    const char *text = evo_environment("EVO_CPU_ISA");
    evo_text names = { { 0 }, 0 };
    *isa = NULL;
    for (int k = 0; !*isa && evo_cpu_isa(k); k++) {
        if (!evo_cpu_isa_usable(evo_cpu_isa(k))) continue;
        evo_text_add(&names, "%s\"%s\"", names.length ? ", " : "", evo_cpu_isa(k)->name);
        if (!text || strcmp(text, evo_cpu_isa(k)->name) == 0) *isa = evo_cpu_isa(k);
    }
    if (*isa) return EVO_OK;
    return evo_fail(
        EVO_ERROR_INVALID_ARGUMENT,
        "evo_context_create: the environment's EVO_CPU_ISA is \"%s\", expected one that this machine runs: %s", text,
        names.data);
}

/* In a fork of it OpenMP may not have its threads any more, and wait for them forever: gcc's libgomp does. */
static evo_process opened_by;

static evo_status open_device(int index, evo_device **device) {
    int threads;
    const cpu_isa *isa;
    evo_status status = choose_threads(&threads);
    if (status == EVO_OK) status = choose_isa(&isa);
    if (status != EVO_OK) return status;
    cpu_device *opened = malloc(sizeof *opened);
    if (!opened) return evo_fail(EVO_ERROR_OUT_OF_MEMORY, "evo_context_create: no host memory");
    evo_process_mark(&opened_by);
    *opened = (cpu_device){ { &evo_backend_cpu, index }, threads, evo_processor_quota(), isa };
    *device = &opened->base;
    return EVO_OK;
}

static void close_device(evo_device *device) {
    free(device);
}

int evo_cpu_threads(const evo_device *device) {
    const cpu_device *cpu = (const cpu_device *)device;
    if (evo_process_forked(&opened_by)) return 1;
    if (cpu->threads) return cpu->threads;
    /* More threads than processors would only wait for each other at every barrier. */
    int threads = omp_get_max_threads();
    const int processors = evo_processors();
    if (processors < threads) threads = processors;
    return cpu->quota < threads ? cpu->quota : threads;
}

/* Every kernel by op, best first. */
static const evo_kernel *const opm_kernels[] = { &evo_cpu_opm_blocked, &evo_cpu_opm_reference };
static const evo_kernel *const trimul_kernels[] = { &evo_cpu_trimul_blocked, &evo_cpu_trimul_reference };

#define ROW(kernels) { kernels, (int)(sizeof kernels / sizeof *kernels) }
static const struct {
    const evo_kernel *const *kernels;
    int count;
} kernels_of[] = { [EVO_OP_OPM] = ROW(opm_kernels), [EVO_OP_TRIMUL] = ROW(trimul_kernels) };

static const evo_kernel *const *kernels(evo_op op, int *count) {
    *count = kernels_of[op].count;
    return kernels_of[op].kernels;
}

/* One stage as work of a stream. The call is copied: the plan that it points to must outlive a recorded graph. */
typedef struct stage_payload {
    evo_call call;
    evo_tile tile;
    int stage;
} stage_payload;

static void run_payload(const void *payload) {
    const stage_payload *p = payload;
    p->call.kernel->stage[p->stage](&p->call, &p->tile);
}

static evo_status run(const evo_call *call, int stage, const evo_tile *tile) {
    const stage_payload payload = { *call, *tile, stage };
    return evo_cpu_submit(call->stream, run_payload, &payload, sizeof payload);
}

static evo_status memory_alloc(evo_device *device, size_t bytes, void **memory) {
    (void)device;
    if (posix_memalign(memory, EVO_BUFFER_ALIGNMENT, bytes) == 0) return EVO_OK;
    *memory = NULL;
    return evo_fail(EVO_ERROR_OUT_OF_MEMORY, "evo_memory_alloc: bytes is %zu, more than the system gives", bytes);
}

static evo_status memory_free(evo_device *device, void *memory) {
    (void)device;
    free(memory);
    return EVO_OK;
}

typedef struct memory_payload {
    void *target;
    const void *source;
    size_t bytes;
    int value;
} memory_payload;

static void copy_payload(const void *payload) {
    const memory_payload *p = payload;
    memmove(p->target, p->source, p->bytes);
}

static void fill_payload(const void *payload) {
    const memory_payload *p = payload;
    memset(p->target, p->value, p->bytes);
}

static evo_status memory_copy(evo_device *device, void *target, const void *source, size_t bytes, evo_stream stream) {
    (void)device;
    const memory_payload payload = { target, source, bytes, 0 };
    return evo_cpu_submit(stream, copy_payload, &payload, sizeof payload);
}

static evo_status memory_fill(evo_device *device, void *target, int value, size_t bytes, evo_stream stream) {
    (void)device;
    const memory_payload payload = { target, NULL, bytes, value };
    return evo_cpu_submit(stream, fill_payload, &payload, sizeof payload);
}

const evo_backend evo_backend_cpu = {
    .name = "cpu",
    .images = "",
    .device_count = device_count,
    .device_info = device_info,
    .open = open_device,
    .close = close_device,
    .kernels = kernels,
    .run = run,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .memory_copy = memory_copy,
    .memory_fill = memory_fill,
    .stream_create = evo_cpu_stream_create,
    .stream_destroy = evo_cpu_stream_destroy,
    .stream_synchronize = evo_cpu_stream_synchronize,
    .stream_wait_event = evo_cpu_stream_wait_event,
    .stream_is_capturing = evo_cpu_stream_is_capturing,
    .event_create = evo_cpu_event_create,
    .event_destroy = evo_cpu_event_destroy,
    .event_record = evo_cpu_event_record,
    .event_synchronize = evo_cpu_event_synchronize,
    .event_elapsed = evo_cpu_event_elapsed,
    .graph_begin = evo_cpu_graph_begin,
    .graph_end = evo_cpu_graph_end,
    .graph_launch = evo_cpu_graph_launch,
    .graph_destroy = evo_cpu_graph_destroy,
};
