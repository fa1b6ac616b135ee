/*
 * plugin.c: the library as part of what a program loads and unloads: a life (../inject/life.h), or as little as opening and
 * closing a context, under other names. They return 1, or 0 and put into words why not.
 */
#include <stdio.h>

#include "life.h"

EVO_API int plugin_run(uint64_t *digest, char *words, size_t size);
EVO_API int plugin_touch(uint64_t *digest, char *words, size_t size);

int plugin_run(uint64_t *digest, char *words, size_t size) {
    life l = { .device = "cpu" };
    life_live(&l);
    *digest = l.digest;
    snprintf(words, size, "%s: %s", l.call, l.words);
    return l.status == EVO_OK && l.kernels > 0;
}

int plugin_touch(uint64_t *digest, char *words, size_t size) {
    evo_context *context = NULL;
    const evo_status status = evo_context_create("cpu", NULL, &context);
    *digest = 0;
    snprintf(words, size, "%s", evo_last_error());
    evo_context_destroy(context);
    return status == EVO_OK;
}
