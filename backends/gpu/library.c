/* library.c: see library.h. */
#include "backends/gpu/library.h"

#include <dlfcn.h>
#include <string.h>

void *gpu_library_open(const char *variable, const char *const *names, evo_text *why) {
    const char *named = evo_environment(variable);
    const char *const own[] = { named, NULL };
    for (const char *const *name = named ? own : names; *name; name++) {
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
        evo_text_add(why, "%s%s", why->length ? "; " : "", dlerror());
    }
    evo_text_add(why, named ? " (%s names it)" : " (is the driver installed? %s can name another library)", variable);
    return NULL;
}

const char *gpu_library_bind(void *library, const gpu_symbol *symbols, size_t count) {
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found) return symbols[i].name;
        memcpy(symbols[i].function, &found, sizeof found); /* C has no cast between object and function pointers */
    }
    return NULL;
}
