/* library.h: loads a vendor's driver library at run time and finds its entry points. */
#ifndef EVO_BACKENDS_GPU_LIBRARY_H
#define EVO_BACKENDS_GPU_LIBRARY_H

#include "src/status.h"

/** An entry point, and the function pointer that its address goes into. */
typedef struct gpu_symbol {
    const char *name;
    void *function;
} gpu_symbol;

/**
 * Loads the library that the environment's `variable` names, else the first of `names` (ends with NULL) that is there,
 * for the life of the process. NULL with the loader's words in `why` if there is none.
 */
void *gpu_library_open(const char *variable, const char *const *names, evo_text *why);

/** Finds `count` entry points. @returns the name of the first that is missing, NULL if all are there */
const char *gpu_library_bind(void *library, const gpu_symbol *symbols, size_t count);

#endif
