/*
 * test_copies.c: two copies of the library in one process: this program is linked with the static one and loads the shared one.
 * Each has its own state, none reaches the other's functions, and both compute the same. With ONE_COPY the program has the
 * shared one, as the plugin does, and an OpenMP of its own: runtimes.py builds it so.
 * usage: test_copies PLUGIN, of plugin.c with the shared library
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "life.h"

typedef int (*plugin_function)(uint64_t *digest, char *words, size_t size);

static int fail(const char *what, const char *words) {
    fprintf(stderr, "test_copies: %s: %s\n", what, words);
    return 1;
}

static long sum_of_threads(void) {
    long sum = 0;
#ifdef _OPENMP
#pragma omp parallel for reduction(+ : sum) num_threads(4)
#endif
    for (long i = 0; i < 100000; i++) sum += i;
    return sum;
}

int main(int argc, char **argv) {
    char words[512];
    uint64_t digest = 0;
    plugin_function run;
    if (argc < 2) return fail("usage", "test_copies PLUGIN");
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) return fail(argv[1], dlerror());
    *(void **)&run = dlsym(plugin, "plugin_run");
    const char *(*other_error)(void);
    *(void **)&other_error = dlsym(plugin, "evo_last_error");
    if (!run || !other_error) return fail("plugin", "lacks a function");
#ifdef ONE_COPY
    const bool one = true;
#else
    const bool one = false;
#endif
    if ((other_error == evo_last_error) != one) return fail("plugin", one ? "is a second copy" : "is no second copy");

    for (int round = 0; round < 3; round++) {
        life l = { .device = "cpu" };
        life_live(&l);
        if (l.status != EVO_OK) return fail(l.call, l.words);
        if (sum_of_threads() != 4999950000) return fail("OpenMP", "another sum");
        if (!run(&digest, words, sizeof words)) return fail("plugin", words);
        if (digest != l.digest) return fail("plugin", "other numbers");
    }
    if (evo_context_create("no such device", NULL, NULL) == EVO_OK || !evo_last_error()[0])
        return fail("error", "none");
    if (!one && other_error()[0]) return fail("the other copy has this one's error", other_error());
    printf("the same numbers\n");
    return 0;
}
