/* context.h: what the front end keeps of a context, its log, and the table of backends. */
#ifndef EVO_SRC_CONTEXT_H
#define EVO_SRC_CONTEXT_H

#include <stdatomic.h>

#include "backends/backend.h"

struct evo_context {
    atomic_int references; /* the caller's handle, and one for each plan and pack made with it */
    evo_device *device;
    char device_name[32];
    int verbose; /* 0 silent, 1 a line per plan and execute, 2 with times */
    evo_log_function log;
    void *log_user;
};

void evo_context_keep(evo_context *context);
void evo_context_release(evo_context *context);

/** Writes one line if the context's verbosity is at least `level`. */
void evo_log(const evo_context *context, int level, const char *format, ...) EVO_PRINTF(3, 4);

/** The backend number `index` that the project knows, and its implementation, NULL if it is not in this binary. */
const char *evo_backend_name(int index);
const evo_backend *evo_backend_compiled(int index);

/** The names of the backends in this binary, such as "cuda, cpu". */
void evo_backends_text(evo_text *text);

/** Copies a public struct that begins with `size` out to the caller: as much of it as the caller knows. */
evo_status evo_struct_write(const char *function, void *target, const void *source, size_t size);

/** Copies one in: a newer caller's unknown fields must be zero, which asks for nothing that this library lacks. */
evo_status evo_struct_read(const char *function, const char *argument, void *target, const void *source, size_t size);

#endif
