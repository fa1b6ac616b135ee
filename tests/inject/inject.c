/* inject.c: see inject.h. */
#include "inject.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_long seen, live, wanted;
static const char *failed;
static char place[256];
static bool optional;

static long asked, missing_at;
static const char *missing;

/* Of AddressSanitizer, if the program has it. */
__attribute__((weak)) void __sanitizer_symbolize_pc(void *address, const char *format, char *text, size_t size);

void inject_after(long n) {
    failed = NULL;
    place[0] = '\0';
    optional = false;
    wanted = n;
    seen = 0;
}

long inject_seen(void) {
    return seen;
}

long inject_live(void) {
    return live;
}

const char *inject_failed(void) {
    return failed;
}

const char *inject_place(void) {
    return place;
}

int inject_was_optional(void) {
    return optional;
}

void inject_missing_after(long n) {
    asked = 0;
    missing_at = n;
    missing = NULL;
}

const char *inject_missing(void) {
    return missing;
}

/* Whether this call is the one that fails. */
static bool fails(const char *function, void *caller) {
    if (atomic_fetch_add(&seen, 1) + 1 != wanted) return false;
    failed = function;
    if (__sanitizer_symbolize_pc) __sanitizer_symbolize_pc((char *)caller - 1, "%f %S", place, sizeof place);
    errno = ENOMEM;
    return true;
}

#define FAILS(function) fails(function, __builtin_return_address(0))

static void *counted(void *made) {
    if (made) atomic_fetch_add(&live, 1);
    return made;
}

/* What the linker calls instead (__wrap_malloc for malloc), and what was meant (__real_malloc). */
#define WRAP(type, name, parameters)     \
    type __real_##name parameters;       \
    type __wrap_##name parameters;       \
    type __wrap_##name parameters

WRAP(void *, malloc, (size_t size)) {
    return FAILS("malloc") ? NULL : counted(__real_malloc(size));
}

WRAP(void *, calloc, (size_t count, size_t size)) {
    return FAILS("calloc") ? NULL : counted(__real_calloc(count, size));
}

WRAP(void *, realloc, (void *old, size_t size)) {
    if (FAILS("realloc")) return NULL;
    void *made = __real_realloc(old, size);
    return old ? made : counted(made);
}

WRAP(int, posix_memalign, (void **memory, size_t alignment, size_t size)) {
    if (FAILS("posix_memalign")) return ENOMEM;
    const int error = __real_posix_memalign(memory, alignment, size);
    if (!error) counted(*memory);
    return error;
}

WRAP(void *, aligned_alloc, (size_t alignment, size_t size)) {
    return FAILS("aligned_alloc") ? NULL : counted(__real_aligned_alloc(alignment, size));
}

WRAP(char *, strdup, (const char *text)) {
    return FAILS("strdup") ? NULL : counted(__real_strdup(text));
}

WRAP(void, free, (void *memory)) {
    if (memory) atomic_fetch_sub(&live, 1);
    __real_free(memory);
}

static bool fails_to_open(const char *path, void *caller) {
    if (!fails("fopen", caller)) return false;
    optional = strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0;
    return true;
}

WRAP(FILE *, fopen, (const char *path, const char *mode)) {
    return fails_to_open(path, __builtin_return_address(0)) ? NULL : counted(__real_fopen(path, mode));
}

/* What glibc calls it where file offsets have 64 bits. */
WRAP(FILE *, fopen64, (const char *path, const char *mode)) {
    return fails_to_open(path, __builtin_return_address(0)) ? NULL : counted(__real_fopen64(path, mode));
}

WRAP(int, fclose, (FILE * file)) {
    atomic_fetch_sub(&live, 1);
    return __real_fclose(file);
}

WRAP(DIR *, opendir, (const char *path)) {
    return FAILS("opendir") ? NULL : counted(__real_opendir(path));
}

WRAP(int, closedir, (DIR * folder)) {
    atomic_fetch_sub(&live, 1);
    return __real_closedir(folder);
}

WRAP(int, pthread_mutex_init, (pthread_mutex_t * mutex, const pthread_mutexattr_t *how)) {
    if (FAILS("pthread_mutex_init")) return ENOMEM;
    atomic_fetch_add(&live, 1);
    return __real_pthread_mutex_init(mutex, how);
}

WRAP(int, pthread_mutex_destroy, (pthread_mutex_t * mutex)) {
    atomic_fetch_sub(&live, 1);
    return __real_pthread_mutex_destroy(mutex);
}

WRAP(void *, dlsym, (void *library, const char *name)) {
    if (++asked != missing_at) return __real_dlsym(library, name);
    missing = name;
    return NULL;
}
