/*
 * replay.c: runs a fuzz target on files, in builds without libFuzzer.
 * usage: TARGET FILE|FOLDER...
 */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int runs, out = STDOUT_FILENO;

static void run_file(const char *path) {
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t size = 0, room = 4096;
    if (file == NULL) fuzz_fail("%s: cannot be read", path);
    do {
        room *= 2;
        data = realloc(data, room);
        if (data == NULL) fuzz_fail("%s: too large", path);
        size += fread(data + size, 1, room - size, file);
    } while (size == room);
    (void)fclose(file);
    (void)dprintf(out, "%s\n", path); /* the last one printed is the one that failed */
    /* A block of exactly its size, so that a sanitizer sees a read past it. */
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (exact == NULL) fuzz_fail("%s: too large", path);
    memcpy(exact, data, size);
    free(data);
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    runs++;
}

static int visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static void run_argument(const char *path) {
    struct stat what;
    struct dirent **entries;
    if (stat(path, &what) != 0) fuzz_fail("%s: no such file or folder", path);
    if (!S_ISDIR(what.st_mode)) {
        run_file(path);
        return;
    }
    const int count = scandir(path, &entries, visible, alphasort);
    for (int i = 0; i < count; i++) {
        char name[4096];
        (void)snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        run_file(name);
        free(entries[i]);
    }
    if (count > 0) free(entries);
}

/* What a target prints itself is of no interest. */
static void discard(int file) {
    const int nothing = open("/dev/null", O_WRONLY);
    if (nothing < 0 || dup2(nothing, file) < 0 || close(nothing) != 0) fuzz_fail("/dev/null: cannot be opened");
}

int main(int argc, char **argv) {
    (void)LLVMFuzzerInitialize(&argc, &argv);
    out = dup(STDOUT_FILENO);
    discard(STDOUT_FILENO);
    discard(STDERR_FILENO);
    for (int i = 1; i < argc; i++) run_argument(argv[i]);
    (void)dprintf(out, "%d inputs\n", runs);
    return runs > 0 ? EXIT_SUCCESS : EXIT_FAILURE; /* a run of nothing is no pass */
}
