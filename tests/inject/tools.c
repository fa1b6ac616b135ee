/*
 * tools.c: a program of the project, as it is, in which each allocation fails once. The objects of the program are linked
 * with this and with inject.c; the linker's --wrap=main lets this main come first.
 *
 * usage: evo-inject STRIDE STATUS... -- ARGUMENT...
 *
 * runs `evo ARGUMENT...` once, which must end well, and then once for each of its allocations (one in STRIDE, from a place
 * that EVO_TEST_SEED gives), in a process of its own. Each must end with one of the STATUS and a line that says what went
 * wrong. Where only a file of /proc or /sys was not to be had it ends as the first did; as also if it came to fewer
 * allocations than that one, by the time that something took, and none failed. AddressSanitizer and LeakSanitizer, if the
 * build has them, end a process with a status of their own.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inject.h"

/* What a process says of itself when it ends. */
typedef struct report {
    long seen, live;
    int optional;
    char failed[32], place[256];
} report;

typedef struct ended {
    int status; /* or 128 and the number of the signal */
    report last;
    char text[65536]; /* that it printed */
} ended;

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);

static int report_to;

/* Registered first, so that it runs after what the program registers. */
static void write_report(void) {
    report r = { inject_seen(), inject_live(), inject_was_optional(), "", "" };
    if (inject_failed()) snprintf(r.failed, sizeof r.failed, "%s", inject_failed());
    snprintf(r.place, sizeof r.place, "%s", inject_place());
    if (write(report_to, &r, sizeof r) != (ssize_t)sizeof r) _exit(99);
    close(report_to);
}

static void must(bool holds, const char *what) {
    if (holds) return;
    perror(what);
    exit(98);
}

static size_t read_all(int from, void *to, size_t size) {
    size_t length = 0;
    char rest[512];
    for (ssize_t got = 1; got > 0;) {
        const size_t room = size - length;
        got = read(from, room ? (char *)to + length : rest, room ? room : sizeof rest);
        if (got > 0 && room) length += (size_t)got;
    }
    close(from);
    return length;
}

static ended run(int argc, char **argv, long n) {
    ended e = { 0, { 0, 0, 0, "", "" }, "" };
    int reports[2], output[2], status = 0;
    must(pipe(reports) == 0 && pipe(output) == 0, "pipe");
    fflush(NULL);
    const pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(reports[0]);
        close(output[0]);
        report_to = reports[1];
        must(dup2(output[1], 1) == 1 && dup2(output[1], 2) == 2, "redirection");
        close(output[1]);
        atexit(write_report);
        inject_after(n);
        exit(__real_main(argc, argv));
    }
    close(reports[1]);
    close(output[1]);
    e.text[read_all(output[0], e.text, sizeof e.text - 1)] = '\0';
    if (read_all(reports[0], &e.last, sizeof e.last) != sizeof e.last) snprintf(e.last.place, 256, "no report");
    must(waitpid(child, &status, 0) == child, "waitpid");
    e.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return e;
}

/* Whether a run in which an allocation failed ended as it should; else says why not. */
static bool is_good(const ended *e, const ended *healthy, long n, int count, char **statuses) {
    const char *wrong = NULL;
    bool listed = false;
    for (int i = 0; i < count; i++) listed |= atoi(statuses[i]) == e->status;
    if (e->last.optional || !e->last.failed[0]) listed = e->status == healthy->status;
    if (!listed) wrong = "another status than expected";
    if (!wrong && !e->last.optional && e->last.failed[0] && !strstr(e->text, "memory")) wrong = "no word of memory";
    if (!wrong && e->last.live != 0) wrong = "blocks are left";
    if (!wrong) return true;
    fprintf(stderr, "allocation %ld, %s of %s: %s: status %d, %ld blocks left:\n%s\n", n, e->last.failed, e->last.place,
            wrong, e->status, e->last.live, e->text);
    return false;
}

int __wrap_main(int argc, char **argv) {
    const char *seed_text = getenv("EVO_TEST_SEED");
    const long seed = seed_text ? labs(atol(seed_text)) : 1, stride = argc > 1 ? atol(argv[1]) : 0;
    int last = 2;
    while (last < argc && strcmp(argv[last], "--") != 0) last++;
    if (last >= argc || last == 2 || stride < 1) {
        fprintf(stderr, "usage: %s STRIDE STATUS... -- ARGUMENT...\n", argv[0]);
        return 2;
    }
    argv[last] = argv[0];
    argc -= last;
    char **own = argv + last;
    const ended healthy = run(argc, own, 0);
    if (healthy.status != 0 || healthy.last.live != 0) {
        fprintf(stderr, "it ends with %d, %ld blocks left: %s\n", healthy.status, healthy.last.live, healthy.text);
        return 1;
    }
    long runs = 0, bad = 0, optional = 0;
    for (long n = 1 + seed % stride; n <= healthy.last.seen; n += stride, runs++) {
        const ended e = run(argc, own, n);
        optional += e.last.optional;
        bad += !is_good(&e, &healthy, n, last - 2, argv + 2);
    }
    printf("%ld allocations, %ld of them failed (stride %ld, EVO_TEST_SEED=%ld), %ld optional, %ld not as expected\n",
           healthy.last.seen, runs, stride, seed, optional, bad);
    return bad || runs == 0;
}
