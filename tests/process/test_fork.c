/*
 * test_fork.c: fork without exec. The child of a process that has used the library computes the same numbers on the CPU, in a
 * context of its parent's and in one of its own, and does not wait for threads that it does not have; a GPU that the parent
 * has used is refused in words, and everything can be destroyed. The parent goes on as before. Public API only.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "life.h"

enum {
    SECONDS = 100, /* after which a child that waits is ended; a sanitizer makes it slow */
    THREADS = 3
};

static const char *device(void) {
    const char *name = getenv("EVO_TEST_DEVICE");
    return name && name[0] ? name : "cpu";
}

static bool on_cpu(void) {
    return strcmp(device(), "cpu") == 0;
}

static life live(void) {
    life l = { .device = device() };
    life_live(&l);
    return l;
}

/* In a child. */
static void must(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "in the child: %s; %s\n", what, evo_last_error());
    _exit(1);
}

/* Runs `body` in a fork. */
static void check_fork(void (*body)(void *argument), void *argument) {
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(SECONDS);
        body(argument);
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) fail_msg("the child was ended by signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void is_refused(evo_status status, const char *what) {
    must(status == EVO_ERROR_DEVICE || status == EVO_ERROR_NO_DEVICE, what);
    must(strstr(evo_last_error(), "fork") && strstr(evo_last_error(), "exec"), what);
}

/* A child that opens the device for itself. */
static void own_context(void *argument) {
    const life *parent = argument;
    const life l = live();
    if (on_cpu()) {
        must(l.status == EVO_OK, "a life of its own");
        must(l.digest == parent->digest, "the parent's numbers");
    } else {
        must(l.status == EVO_ERROR_NO_DEVICE && strstr(l.words, "fork"), "a GPU after a fork is refused");
    }
}

static void *live_in_thread(void *argument) {
    *(life *)argument = live();
    return NULL;
}

/* Threads of the child's own. */
static void own_threads(void *argument) {
    const life *parent = argument;
    pthread_t threads[THREADS];
    life lives[THREADS];
    for (int i = 0; i < THREADS; i++)
        must(pthread_create(&threads[i], NULL, live_in_thread, &lives[i]) == 0, "a thread");
    for (int i = 0; i < THREADS; i++) {
        must(pthread_join(threads[i], NULL) == 0, "its end");
        must(on_cpu() ? lives[i].digest == parent->digest : lives[i].status == EVO_ERROR_NO_DEVICE, "what it computes");
    }
}

static void fork_again(void *argument) {
    int status = 0;
    const pid_t child = fork();
    must(child >= 0, "a second fork");
    if (child == 0) {
        alarm(SECONDS);
        own_context(argument);
        _exit(0);
    }
    must(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's child");
    own_context(argument);
}

static void test_child_with_a_context_of_its_own(void **state) {
    (void)state;
    life before = live();
    if (before.status != EVO_OK) fail_msg("%s: %s", before.call, before.words);
    check_fork(own_context, &before);
    check_fork(own_threads, &before);
    check_fork(fork_again, &before);
    const life after = live();
    assert_int_equal(after.status, EVO_OK);
    assert_true(after.digest == before.digest);
}

/* What the parent made before the fork. */
typedef struct made {
    evo_context *context;
    evo_plan *plan;
    evo_pack *pack;
    void *in, *out, *packed, *workspace;
    evo_plan_info info;
    evo_stream stream;
    evo_trimul_desc desc;
} made;

enum {
    N = 24,
    C = 16,
    COUNT = N * N * C
};

static evo_status execute(const made *m) {
    const evo_trimul_args args = { sizeof args, m->in, NULL, NULL, m->out };
    return evo_trimul_execute(m->plan, m->pack, &args, m->workspace, m->info.workspace_size, m->stream);
}

#define OK(call) assert_int_equal((call), EVO_OK)

static void make(made *m, const float *numbers) {
    evo_trimul_weights w = EVO_TRIMUL_WEIGHTS_INIT;
    m->desc = (evo_trimul_desc)EVO_TRIMUL_DESC_INIT;
    m->info = (evo_plan_info)EVO_PLAN_INFO_INIT;
    m->desc.n = N;
    m->desc.c_z = m->desc.c = C;
    OK(evo_context_create(device(), NULL, &m->context));
    OK(evo_trimul_plan_create(m->context, &m->desc, &m->plan));
    OK(evo_plan_get_info(m->plan, &m->info));
    OK(evo_memory_alloc(m->context, COUNT * sizeof(float), &m->in));
    OK(evo_memory_alloc(m->context, COUNT * sizeof(float), &m->out));
    OK(evo_memory_alloc(m->context, m->info.pack_size, &m->packed));
    OK(evo_memory_alloc(m->context, m->info.workspace_size, &m->workspace));
    OK(evo_stream_create(m->context, &m->stream));
    OK(evo_memory_copy(m->context, m->in, numbers, COUNT * sizeof(float), m->stream));
    for (evo_weight *each = &w.norm_in_weight; each <= &w.out_gate_bias; each++)
        *each = (evo_weight){ m->in, EVO_FP32, { 0, 0 } };
    OK(evo_trimul_pack_weights(m->plan, &w, m->packed, m->info.pack_size, m->stream, &m->pack));
    OK(execute(m));
    OK(evo_stream_synchronize(m->context, m->stream));
}

/* Handles go; on a GPU the driver is not asked. */
static void destroy_handles(const made *m) {
    evo_pack_destroy(m->pack);
    evo_plan_destroy(m->plan);
    evo_context_destroy(m->context);
}

static void inherited(void *argument) {
    const made *m = argument;
    evo_plan *plan = NULL;
    evo_stream stream = NULL;
    float *again = malloc(COUNT * sizeof *again);
    must(again != NULL, "memory");
    if (on_cpu()) {
        memcpy(again, m->out, COUNT * sizeof *again);
        memset(m->out, 0xff, COUNT * sizeof *again);
        must(execute(m) == EVO_OK, "the parent's plan");
        must(memcmp(again, m->out, COUNT * sizeof *again) == 0, "the parent's numbers");
        must(evo_trimul_plan_create(m->context, &m->desc, &plan) == EVO_OK, "a plan in the parent's context");
        evo_plan_destroy(plan);
    } else {
        is_refused(execute(m), "the parent's plan");
        is_refused(evo_trimul_plan_create(m->context, &m->desc, &plan), "a plan in the parent's context");
        is_refused(evo_stream_create(m->context, &stream), "a stream");
        is_refused(evo_stream_synchronize(m->context, m->stream), "synchronising");
        is_refused(evo_memory_copy(m->context, again, m->out, 4, NULL), "a copy");
        is_refused(evo_memory_free(m->context, m->out), "freeing");
    }
    free(again);
    destroy_handles(m);
}

static void test_what_the_parent_made(void **state) {
    (void)state;
    float *numbers = malloc(2 * COUNT * sizeof *numbers);
    made m;
    assert_non_null(numbers);
    for (int i = 0; i < COUNT; i++) numbers[i] = 0.0625f * (float)(i % 7 - 2);
    make(&m, numbers);
    check_fork(inherited, &m);
    OK(evo_memory_fill(m.context, m.out, 0xff, COUNT * sizeof *numbers, m.stream));
    OK(execute(&m));
    OK(evo_memory_copy(m.context, numbers + COUNT, m.out, COUNT * sizeof *numbers, m.stream));
    OK(evo_stream_synchronize(m.context, m.stream));
    for (int i = 0; i < COUNT; i++) assert_true(numbers[COUNT + i] - numbers[COUNT + i] == 0.0f); /* finite: written */
    OK(evo_memory_free(m.context, m.workspace));
    OK(evo_memory_free(m.context, m.packed));
    OK(evo_memory_free(m.context, m.out));
    OK(evo_memory_free(m.context, m.in));
    OK(evo_stream_destroy(m.context, m.stream));
    destroy_handles(&m);
    free(numbers);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_child_with_a_context_of_its_own),
                                        cmocka_unit_test(test_what_the_parent_made) };
    setenv("EVO_NUM_THREADS", "4", 1);
    return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
