/* child.c: see child.h. */
#include "child.h"

#include <sys/wait.h>
#include <unistd.h>

const gpu_driver *tested_driver(void) {
    const char *device = getenv("EVO_TEST_DEVICE");
    return device && strncmp(device, "hip", 3) == 0 ? &evo_hip_driver : &evo_cuda_driver;
}

static void set_environment(const char *const *settings) {
    for (; settings && *settings; settings++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*settings, "="), *settings);
        setenv(name, *settings + strlen(name) + 1, 1);
    }
}

outcome run_child(int (*body)(const void *argument), const void *argument, const char *const *settings) {
    outcome result = { -1, "" };
    int ends[2], status = 0;
    fflush(NULL);
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        set_environment(settings);
        exit(body(argument));
    }
    close(ends[1]);
    size_t length = 0;
    char rest[512];
    for (ssize_t got = 1; got > 0;) { /* what does not fit is read and forgotten */
        const size_t room = sizeof result.text - 1 - length;
        got = read(ends[0], room ? result.text + length : rest, room ? room : sizeof rest);
        if (got > 0 && room) length += (size_t)got;
    }
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    result.text[length] = '\0';
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

void require(int holds, const char *what, const char *file, int line) {
    if (holds) return;
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    exit(1);
}

void require_ok(evo_status status, const char *what, const char *file, int line) {
    if (status == EVO_OK) return;
    fprintf(stderr, "%s:%d: %s gives %s: %s\n", file, line, what, evo_status_name(status), evo_last_error());
    exit(1);
}

void require_failure(evo_status got, evo_status want, const char *words, const char *what, const char *file, int line) {
    if (got == want && strstr(evo_last_error(), words)) return;
    fprintf(stderr, "%s:%d: %s gives %s, expected %s with \"%s\": %s\n", file, line, what, evo_status_name(got),
            evo_status_name(want), words, evo_last_error());
    exit(1);
}

void check_child(int (*body)(const void *argument), const void *argument, const char *const *settings) {
    const outcome result = run_child(body, argument, settings);
    if (result.status != 0) fail_msg("the child ended with %d: %s", result.status, result.text);
}
