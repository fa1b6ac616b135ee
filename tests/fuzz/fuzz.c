/* fuzz.c: see fuzz.h. */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[256];
static int messages = STDERR_FILENO; /* standard error as it was at the start: libFuzzer and replay.c close it */

void fuzz_fail(const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof text - 1, format, arguments);
    va_end(arguments);
    const size_t used = length < 0 ? 0 : strlen(text);
    text[used] = '\n';
    if (write(messages, text, used + 1) < 0) abort();
    abort();
}

#if FUZZ_SANITIZED
void __sanitizer_set_report_fd(void *);
const char *__asan_default_options(void);
const char *__tsan_default_options(void);

/* No input needs more memory at once; what asks for more is told that there is none. */
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=64";
}

const char *__tsan_default_options(void) {
    return __asan_default_options();
}
#endif

/* Removes the files of the temporary folder, and the folder. */
static void clean_up(void) {
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
        (void)unlinkat(dirfd(directory), entry->d_name, 0);
    if (directory != NULL) (void)closedir(directory);
    (void)rmdir(folder);
}

static void start(void) {
    /* In memory, if the system has such a folder: some file systems wait for the disk at every write. */
    const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : getenv("TMPDIR");
    messages = dup(STDERR_FILENO);
    (void)snprintf(folder, sizeof folder, "%s/evo-fuzz-XXXXXX", parent != NULL && parent[0] != '\0' ? parent : "/tmp");
    if (messages < 0 || mkdtemp(folder) == NULL) {
        perror("a temporary folder");
        abort();
    }
#if FUZZ_SANITIZED
    __sanitizer_set_report_fd((void *)(intptr_t)messages);
#endif
    (void)atexit(clean_up);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    start();
    fuzz_set_up();
    return 0;
}

const char *fuzz_folder(void) {
    return folder;
}

const char *fuzz_path(const char *name) {
    static char path[sizeof folder + 64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

void fuzz_write(const char *path, const void *data, size_t size) {
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, data, size) != (ssize_t)size || close(file) != 0) fuzz_fail("%s: cannot write", path);
}
