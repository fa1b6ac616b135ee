/*
 * arguments.c: the command `evo` in this process, with the lines of the input as its arguments. Whatever they are, it comes
 * back with status 0, 1 or 2, says something where that is not 0, and leaks nothing.
 *
 * It runs in the temporary folder, which has a few good files and is put back in order after each run; an argument that
 * could name a file elsewhere is not taken. Nor are sizes that are neither small nor too large for memory: they are legal,
 * and take minutes.
 */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "evo/command.h"

enum {
    MOST_ARGUMENTS = 24,
    MOST_LENGTH = 400,
    SMALL = 12,             /* a size that is computed in no time */
    LARGE = 100000000,      /* one that there is no memory for, under the limits below */
    DATA_BYTES = 256 << 20, /* of memory, in builds without a sanitizer */
    PAGE = 4096,
    USUAL_ROOM = 4 * PAGE, /* for what it prints */
    CHECK_ROOM = 1024,     /* of `evo check`, which stops where it can print no more, */
    ALL_ROOM = 300,        /* and without cases or files of its own would run for minutes */
};

/* The good files, as they are put back. */
static struct {
    const char *name;
    unsigned char *bytes;
    size_t size;
} files[] = {
    { "opm.safetensors", NULL, 0 }, { "trimul.safetensors", NULL, 0 }, { "z.npy", NULL, 0 }, { "shapes.txt", NULL, 0 }
};
enum {
    FILE_COUNT = sizeof files / sizeof files[0]
};

static int messages = -1;          /* a temporary file that stands for standard error */
static int out = -1, out_end = -1; /* a pipe that stands for standard output, and where it is read */
static size_t filler;              /* bytes in the pipe that are not the command's */

static int nameless_file(void) {
    FILE *file = tmpfile();
    const int descriptor = file != NULL ? dup(fileno(file)) : -1;
    if (descriptor < 0) fuzz_fail("no temporary file");
    (void)fclose(file);
    return descriptor;
}

static void make_pipe(void) {
    int ends[2];
    FUZZ_CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    out_end = ends[0];
    out = ends[1];
}

/* Takes everything out of the pipe: how much of it the command has printed. */
static size_t take_output(void) {
    char bytes[PAGE];
    size_t all = 0;
    for (ssize_t got; (got = read(out_end, bytes, sizeof bytes)) > 0;) all += (size_t)got;
    const size_t printed = all - filler;
    filler = 0;
    return printed;
}

/* Fills the pipe so that only so much has room; a write beyond that fails. (RLIMIT_FSIZE would cut a sanitizer's report too.) */
static void leave_room(size_t room) {
    static const char bytes[PAGE];
    char taken[PAGE];
    (void)take_output();
    while (write(out, bytes, sizeof bytes) == (ssize_t)sizeof bytes) filler += sizeof bytes;
    for (size_t left = room; left > 0; left -= left < PAGE ? left : PAGE) {
        const ssize_t got = read(out_end, taken, sizeof taken);
        filler -= got > 0 ? (size_t)got : 0;
    }
    if (room % PAGE != 0 && write(out, bytes, PAGE - room % PAGE) > 0) filler += PAGE - room % PAGE;
}

/* Runs the command, with its output and messages in these. */
static int call(int argc, char **argv) {
    const int before = dup(STDERR_FILENO), stdout_before = dup(STDOUT_FILENO);
    FUZZ_CHECK(before >= 0 && stdout_before >= 0);
    (void)fflush(stdout);
    FUZZ_CHECK(dup2(out, STDOUT_FILENO) >= 0 && dup2(messages, STDERR_FILENO) >= 0);
    optind = 0;
    const int status = evo_command(argc, argv);
    __fpurge(stdout);
    clearerr(stdout);
    FUZZ_CHECK(dup2(stdout_before, STDOUT_FILENO) >= 0 && dup2(before, STDERR_FILENO) >= 0);
    (void)close(before);
    (void)close(stdout_before);
    return status;
}

/* How much was said on standard error; the file is then empty. */
static size_t take_messages(void) {
    const off_t size = lseek(messages, 0, SEEK_END);
    FUZZ_CHECK(size >= 0 && ftruncate(messages, 0) == 0 && lseek(messages, 0, SEEK_SET) == 0);
    return (size_t)size;
}

static size_t read_whole(const char *name, unsigned char *bytes, size_t room) {
    const int file = open(name, O_RDONLY);
    if (file < 0) return SIZE_MAX;
    const ssize_t size = read(file, bytes, room);
    (void)close(file);
    return size < 0 ? SIZE_MAX : (size_t)size;
}

static void make_file(const char *option, const char *name, const char *text) {
    char *arguments[] = { strdup("evo"), strdup("run"),  strdup("--case"), strdup(text), strdup("--device"),
                          strdup("cpu"), strdup(option), strdup(name),     NULL };
    if (call(8, arguments) != STATUS_GOOD) fuzz_fail("%s was not made", name);
    for (int i = 0; arguments[i] != NULL; i++) free(arguments[i]);
}

static void make_files(void) {
    static unsigned char bytes[1 << 16];
    const char shapes[] = "# small ones\nopm 1,2,3,4,2,5\ntrimul 2,3,4,2 # B,N,c_z,c\n";
    make_file("--save-case", "opm.safetensors", "opm(n=3,s=2,c_m=4,c=2,c_z=5,residual=1)");
    make_file("--save-case", "trimul.safetensors", "trimul(n=3,c_z=4,c=2,mask=fractional)");
    make_file("-o", "z.npy", "trimul(n=3,c_z=4,c=2)");
    fuzz_write("shapes.txt", shapes, sizeof shapes - 1);
    for (int i = 0; i < FILE_COUNT; i++) {
        const size_t size = read_whole(files[i].name, bytes, sizeof bytes);
        FUZZ_CHECK(size > 0 && size < sizeof bytes);
        files[i].size = size;
        files[i].bytes = malloc(size);
        FUZZ_CHECK(files[i].bytes != NULL);
        memcpy(files[i].bytes, bytes, size);
    }
}

void fuzz_set_up(void) {
    messages = nameless_file();
    make_pipe();
}

static bool is_good_file(const char *name) {
    for (int i = 0; i < FILE_COUNT; i++)
        if (strcmp(files[i].name, name) == 0) return true;
    return false;
}

/* The folder as it was: nothing but the good files, and these as they were. */
static void restore_folder(void) {
    static unsigned char bytes[1 << 16];
    DIR *directory = opendir(".");
    FUZZ_CHECK(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (!is_good_file(entry->d_name) && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            FUZZ_CHECK(unlink(entry->d_name) == 0);
    (void)closedir(directory);
    for (int i = 0; i < FILE_COUNT; i++) {
        const size_t size = read_whole(files[i].name, bytes, sizeof bytes);
        if (size != files[i].size || memcmp(bytes, files[i].bytes, size) != 0)
            fuzz_write(files[i].name, files[i].bytes, files[i].size);
    }
}

/* ---- which arguments are taken ---- */

/* Each '/' follows a '.', and no two dots stand together: no path leads out of the folder. */
static bool stays_inside(const char *argument) {
    if (strstr(argument, "..") != NULL) return false;
    for (const char *slash = strchr(argument, '/'); slash != NULL; slash = strchr(slash + 1, '/'))
        if (slash == argument || slash[-1] != '.') return false;
    return true;
}

/* No number that is the middle between small and large; digits behind a letter are of a name, as in fp16. */
static bool is_quick(const char *argument) {
    for (const char *p = argument; *p != '\0';) {
        const size_t digits = strspn(p, "0123456789");
        const bool named =
            p > argument && (((p[-1] | 32) >= 'a' && (p[-1] | 32) <= 'z') || p[-1] == '_' || p[-1] == '.');
        if (digits > 0 && !named) {
            const unsigned long long value = strtoull(p, NULL, 10);
            if (value > SMALL && value < LARGE) return false;
        }
        p += digits > 0 ? digits : 1;
    }
    return true;
}

/* Without shapes of its own `evo bench` takes large ones. */
static bool has_shape(char **argv) {
    static const char *const flags[] = { "bench",     "opm",        "trimul", "--json",
                                         "--no-mask", "--residual", "--cold", "--all-kernels" };
    for (int i = 2; argv[i] != NULL; i++) {
        bool ended = strchr(argv[i - 1], '=') != NULL;
        for (size_t k = 0; k < sizeof flags / sizeof flags[0]; k++) ended = ended || strcmp(argv[i - 1], flags[k]) == 0;
        if (ended && (strncmp(argv[i], "--shape=", 8) == 0 || strncmp(argv[i], "--shapes=", 9) == 0)) return true;
        if (strcmp(argv[i], "--") == 0) return false;
    }
    return false;
}

static size_t room_for(char **argv) {
    size_t room = strcmp(argv[1], "check") == 0 ? ALL_ROOM : USUAL_ROOM;
    for (int i = 2; argv[i] != NULL && room == ALL_ROOM; i++)
        if (strncmp(argv[i], "--ca", 4) == 0 || strncmp(argv[i], "--g", 3) == 0) room = CHECK_ROOM;
    return room;
}

/* Turns lines into arguments; their number, or 0 if they are not taken. */
static int split(char *text, char **argv) {
    static char short_time[] = "--min-time=0.01", small_cache[] = "--cache=16K", superfluous[] = "x";
    int argc = 0;
    argv[argc++] = text; /* the name of the program does not matter */
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        if (end != NULL) *end = '\0';
        if (argc == MOST_ARGUMENTS || strlen(line) > MOST_LENGTH || !stays_inside(line) || !is_quick(line)) return 0;
        argv[argc++] = line;
        line = end != NULL ? end + 1 : NULL;
    }
    argv[argc] = NULL;
    if (strcmp(argv[1], "bench") == 0) {
        if (!has_shape(argv)) return 0;
        /* Twice, as the first may become the value of an option that has none. */
        for (int i = 0; i < 2; i++) {
            argv[argc++] = short_time;
            argv[argc++] = small_cache;
        }
        argv[argc] = NULL;
    }
    /* It would run for seconds: its options are read, and then there is one argument too many. Two, for the same reason. */
    if (strcmp(argv[1], "selftest") == 0) {
        argv[argc++] = superfluous;
        argv[argc++] = superfluous;
        argv[argc] = NULL;
    }
    return argc;
}

static void limit(int resource, rlim_t most, struct rlimit *before) {
    struct rlimit changed;
    FUZZ_CHECK(getrlimit(resource, before) == 0);
    changed = *before;
    changed.rlim_cur = most < before->rlim_max ? most : before->rlim_max;
    FUZZ_CHECK(setrlimit(resource, &changed) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int home = -1, folder = -1;
    char *argv[MOST_ARGUMENTS + 8], *text = malloc(size + 1);
    struct rlimit memory;
    FUZZ_CHECK(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    const int argc = split(text, argv);
    if (argc == 0) {
        free(text);
        return -1;
    }
    if (home < 0) {
        (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
        home = open(".", O_RDONLY);
        folder = open(fuzz_folder(), O_RDONLY);
    }
    FUZZ_CHECK(home >= 0 && folder >= 0 && fchdir(folder) == 0);
    if (files[0].bytes == NULL) make_files();
    (void)take_messages();
    leave_room(room_for(argv));
    if (!FUZZ_SANITIZED) limit(RLIMIT_DATA, DATA_BYTES, &memory);
    const int status = call(argc, argv);
    if (!FUZZ_SANITIZED) FUZZ_CHECK(setrlimit(RLIMIT_DATA, &memory) == 0);
    const size_t said = take_output(), complained = take_messages();
    if (status < STATUS_GOOD || status > STATUS_USAGE) fuzz_fail("the status is %d", status);
    FUZZ_CHECK(status == STATUS_GOOD || said + complained > 0);
    FUZZ_CHECK(status != STATUS_USAGE || complained > 0);
    restore_folder();
    FUZZ_CHECK(fchdir(home) == 0);
    free(text);
    return 0;
}
