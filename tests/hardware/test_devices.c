/*
 * test_devices.c: two devices of one vendor in one process: contexts, plans, packs and executions in turn and at once, from one
 * thread and from two; what the calling thread had current is current again after every call.
 *
 * EVO_TEST_DEVICE names the vendor by a device of it ("cuda:0", "hip:0"); its devices 0 and 1 are used, and must be alike. The
 * suite `simulated` runs it; on hardware it is run by hand.
 */
#include "../support.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEVICES = 2,
    ROUNDS = 6
};

static const char *const texts[] = {
    "opm(b=2,s=3,n=9,c_m=8,c=4,c_z=8,mask=random,residual=1)",
    "opm(s=70,n=5,c_m=8,c=4,c_z=6,mask=random)",
    "trimul(b=2,n=9,c_z=8,c=4,mask=random,residual=1)",
    "trimul(n=17,c_z=12,c=8,mask=random,direction=incoming,dtype=bf16)",
};
enum {
    TEXTS = sizeof texts / sizeof *texts
};

static evo_context *contexts[DEVICES];
static unsigned char *wanted[TEXTS];

/* ---- what the thread has current, by the driver's own functions ---- */

static int (*get_context)(void **), (*push_context)(void *), (*pop_context)(void **), (*retain_context)(void **, int);
static int (*get_device)(int *), (*set_device)(int);

static void bind(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    if (!found) fail_msg("the driver has no %s", name);
    memcpy(function, &found, sizeof found);
}

/* The library that the backend has loaded already. */
static void bind_driver(void) {
    const int cuda = strncmp(test_device(), "cuda", 4) == 0;
    const char *named = getenv(cuda ? "EVO_CUDA_LIBRARY" : "EVO_HIP_LIBRARY");
    static const char *const hip[] = { "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5" };
    void *library = dlopen(named ? named : cuda ? "libcuda.so.1" : hip[0], RTLD_NOW);
    for (int i = 1; i < 3 && !library && !named && !cuda; i++) library = dlopen(hip[i], RTLD_NOW);
    if (!library) fail_msg("%s", dlerror());
    if (cuda) {
        bind(library, "cuCtxGetCurrent", &get_context);
        bind(library, "cuCtxPushCurrent_v2", &push_context);
        bind(library, "cuCtxPopCurrent_v2", &pop_context);
        bind(library, "cuDevicePrimaryCtxRetain", &retain_context);
    } else {
        bind(library, "hipGetDevice", &get_device);
        bind(library, "hipSetDevice", &set_device);
    }
}

/* A device is current, or with CUDA no context at all (-1). */
static void make_current(int device) {
    void *context = NULL;
    if (get_device && device >= 0) assert_int_equal(set_device(device), 0);
    if (get_device) return;
    while (get_context(&context) == 0 && context) assert_int_equal(pop_context(&context), 0);
    if (device < 0) return;
    assert_int_equal(retain_context(&context, device), 0);
    assert_int_equal(push_context(context), 0);
}

/* What is current, to be compared. */
static void *current(void) {
    void *context = NULL;
    int device = -1;
    if (get_device)
        get_device(&device);
    else
        get_context(&context);
    return get_device ? (void *)(intptr_t)device : context;
}

/* ---- one call on one device ---- */

static void check_output(const sample *s, int text) {
    unsigned char *got = sample_output(s);
    assert_memory_equal(got, wanted[text], s->out_bytes);
    free(got);
}

/* Everything from the context to the result, checking after each step what is current. */
static void whole_call(int device, int text) {
    char name[16];
    evo_context *own = NULL;
    void *const before = current();
    snprintf(name, sizeof name, "%.*s:%d", (int)strcspn(test_device(), ":"), test_device(), device);
    OK(evo_context_create(name, NULL, &own));
    assert_ptr_equal(current(), before);
    sample *s = sample_create(texts[text], own);
    assert_ptr_equal(current(), before);
    sample_mark_output(s);
    OK(sample_run(s));
    assert_ptr_equal(current(), before);
    OK(evo_stream_synchronize(own, NULL));
    check_output(s, text);
    sample_destroy(s);
    evo_context_destroy(own);
    assert_ptr_equal(current(), before);
}

/* ---- tests ---- */

/* Whatever is current: nothing, this device, the other one. */
static void test_current(void **state) {
    (void)state;
    for (int was = -1; was < DEVICES; was++) {
        make_current(was);
        for (int text = 0; text < TEXTS; text++)
            for (int device = 0; device < DEVICES; device++) whole_call(device, text);
    }
    make_current(0);
}

/* Both devices' calls are prepared in turn, then executed in turn without waiting, again and again. */
static void test_in_turn(void **state) {
    sample *s[DEVICES][TEXTS];
    (void)state;
    for (int text = 0; text < TEXTS; text++)
        for (int device = 0; device < DEVICES; device++) s[device][text] = sample_create(texts[text], contexts[device]);
    for (int round = 0; round < ROUNDS; round++) {
        make_current(round % DEVICES);
        for (int text = 0; text < TEXTS; text++)
            for (int device = 0; device < DEVICES; device++) sample_mark_output(s[device][text]);
        for (int text = 0; text < TEXTS; text++)
            for (int device = 0; device < DEVICES; device++) OK(sample_run(s[device][text]));
        for (int text = 0; text < TEXTS; text++)
            for (int device = DEVICES - 1; device >= 0; device--) {
                OK(evo_stream_synchronize(contexts[device], NULL));
                check_output(s[device][text], text);
            }
    }
    for (int text = 0; text < TEXTS; text++)
        for (int device = 0; device < DEVICES; device++) sample_destroy(s[device][text]);
}

/* A pack of the other device is refused by name, and nothing is written. */
static void test_packs_are_apart(void **state) {
    sample *s[DEVICES];
    (void)state;
    for (int device = 0; device < DEVICES; device++) s[device] = sample_create(texts[0], contexts[device]);
    sample_mark_output(s[0]);
    REFUSED(s[0]->op->execute(s[0]->plan, s[1]->pack, &s[0]->args, s[0]->workspace, s[0]->workspace_size, NULL),
            EVO_ERROR_PACK_MISMATCH, "pack was made on", ":1", "expected", ":0");
    assert_true(sample_output_marked(s[0]));
    for (int device = 0; device < DEVICES; device++) sample_destroy(s[device]);
}

/* Graphs of both devices, recorded at the same time by one thread. */
static void test_graphs(void **state) {
    sample *s[DEVICES];
    evo_stream streams[DEVICES];
    evo_graph graphs[DEVICES];
    (void)state;
    for (int device = 0; device < DEVICES; device++) {
        s[device] = sample_create(texts[2], contexts[device]);
        OK(evo_stream_create(contexts[device], &streams[device]));
        OK(evo_graph_begin(contexts[device], streams[device]));
    }
    for (int device = DEVICES - 1; device >= 0; device--)
        OK(s[device]->op->execute(s[device]->plan, s[device]->pack, &s[device]->args, s[device]->workspace,
                                  s[device]->workspace_size, streams[device]));
    for (int device = 0; device < DEVICES; device++)
        OK(evo_graph_end(contexts[device], streams[device], &graphs[device]));
    for (int round = 0; round < ROUNDS; round++) {
        for (int device = 0; device < DEVICES; device++) sample_mark_output(s[device]);
        for (int device = 0; device < DEVICES; device++)
            OK(evo_graph_launch(contexts[device], graphs[device], streams[device]));
        for (int device = 0; device < DEVICES; device++) {
            OK(evo_stream_synchronize(contexts[device], streams[device]));
            check_output(s[device], 2);
        }
    }
    for (int device = 0; device < DEVICES; device++) {
        OK(evo_graph_destroy(contexts[device], graphs[device]));
        OK(evo_stream_destroy(contexts[device], streams[device]));
        sample_destroy(s[device]);
    }
}

/* ---- two threads; cmocka's checks are for one, so what they find is counted ---- */

typedef struct worker {
    int first, crossing; /* the device; 1: the other one too, in turn */
    int failed;
    char text[256];
    sample *own[DEVICES][TEXTS];
    unsigned char *got;
} worker;

static int try_call(worker *w, int device, int text, evo_stream stream) {
    sample *s = w->own[device][text];
    evo_plan *plan = NULL;
    evo_status status = s->op->plan_create(contexts[device], &s->desc, &plan);
    void *out = s->memory[sample_spec(s, CASE_OUTPUT)];
    if (status == EVO_OK) status = evo_memory_fill(contexts[device], out, 0xa5, s->out_bytes, stream);
    if (status == EVO_OK) status = s->op->execute(plan, s->pack, &s->args, s->workspace, s->workspace_size, stream);
    if (status == EVO_OK) status = evo_memory_copy(contexts[device], w->got, out, s->out_bytes, stream);
    if (status == EVO_OK) status = evo_stream_synchronize(contexts[device], stream);
    if (status != EVO_OK) snprintf(w->text, sizeof w->text, "%s", evo_last_error());
    evo_plan_destroy(plan);
    return status == EVO_OK && memcmp(w->got, wanted[text], s->out_bytes) == 0;
}

static void *work(void *argument) {
    worker *w = argument;
    evo_stream streams[DEVICES] = { NULL, NULL };
    for (int device = 0; device < DEVICES; device++)
        w->failed += evo_stream_create(contexts[device], &streams[device]) != EVO_OK;
    for (int round = 0; round < ROUNDS; round++)
        for (int text = 0; text < TEXTS; text++) {
            const int device = w->crossing ? (w->first + round + text) % DEVICES : w->first;
            void *const before = current();
            w->failed += !try_call(w, device, text, streams[device]);
            w->failed += current() != before;
        }
    for (int device = 0; device < DEVICES; device++)
        w->failed += evo_stream_destroy(contexts[device], streams[device]) != EVO_OK;
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    for (int crossing = 0; crossing < 2; crossing++) {
        worker workers[DEVICES];
        pthread_t threads[DEVICES];
        memset(workers, 0, sizeof workers);
        for (int i = 0; i < DEVICES; i++) {
            size_t most = 0;
            workers[i].first = i;
            workers[i].crossing = crossing;
            for (int text = 0; text < TEXTS; text++)
                for (int device = 0; device < DEVICES; device++) {
                    sample *made = sample_create(texts[text], contexts[device]);
                    workers[i].own[device][text] = made;
                    if (made->out_bytes > most) most = made->out_bytes;
                    OK(evo_stream_synchronize(contexts[device],
                                              NULL)); /* the threads' streams do not wait for the pack */
                }
            workers[i].got = malloc(most);
            assert_non_null(workers[i].got);
        }
        for (int i = 0; i < DEVICES; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
        for (int i = 0; i < DEVICES; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < DEVICES; i++) {
            if (workers[i].failed) fail_msg("thread %d: %d calls failed; %s", i, workers[i].failed, workers[i].text);
            for (int text = 0; text < TEXTS; text++)
                for (int device = 0; device < DEVICES; device++) sample_destroy(workers[i].own[device][text]);
            free(workers[i].got);
        }
    }
}

/* ---- setup ---- */

static int open_devices(void **state) {
    (void)state;
    for (int device = 0; device < DEVICES; device++) {
        char name[16];
        snprintf(name, sizeof name, "%.*s:%d", (int)strcspn(test_device(), ":"), test_device(), device);
        OK(evo_context_create(name, NULL, &contexts[device]));
    }
    bind_driver();
    for (int text = 0; text < TEXTS; text++) {
        sample *s = sample_create(texts[text], contexts[0]);
        OK(sample_run(s));
        OK(evo_stream_synchronize(contexts[0], NULL));
        wanted[text] = sample_output(s);
        sample_destroy(s);
    }
    return 0;
}

static int close_devices(void **state) {
    (void)state;
    for (int text = 0; text < TEXTS; text++) free(wanted[text]);
    for (int device = 0; device < DEVICES; device++) evo_context_destroy(contexts[device]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_current), cmocka_unit_test(test_in_turn), cmocka_unit_test(test_packs_are_apart),
        cmocka_unit_test(test_graphs),  cmocka_unit_test(test_threads),
    };
    char second[16];
    evo_context *found = NULL;
    snprintf(second, sizeof second, "%.*s:1", (int)strcspn(test_device(), ":"), test_device());
    if (test_device_missing()) return TEST_SKIPPED;
    if (evo_context_create(second, NULL, &found) != EVO_OK) {
        fprintf(stderr, "skipped: %s\n", evo_last_error());
        return TEST_SKIPPED;
    }
    evo_context_destroy(found);
    return cmocka_run_group_tests_name("devices", tests, open_devices, close_devices);
}
