/*
 * test_calls.c: each call of a driver fails once in the whole life of the library (../inject/life.h): a status comes back with
 * the entry point's name and the driver's words, nothing is left behind, neither in the driver nor on the host, and the same
 * context works again; unless the device is lost: then every later call says so, and what the host holds can be freed. And
 * each entry point is missing once. Each test is a child process or many. EVO_TEST_SCALE thins out the calls, from a place
 * that EVO_TEST_SEED gives; 1 is all of them.
 */
#include "child.h"

#include <dlfcn.h>

#include "inject.h"
#include "life.h"

enum {
    OUT_OF_MEMORY = 2,
    BAD_IMAGE = 200,
    LAUNCH_FAILED = 719,
    UNKNOWN = 998,      /* which the driver has no words for */
    KERNELS = 4,        /* of both ops, on each of the simulated chips */
    NOTHING_FAILED = 42 /* the status of a child in which it did not come to that */
};

typedef struct counts {
    size_t objects, modules, contexts;
} counts;

/* What the driver says of itself, and the entry point that failed on demand; "" if it has not come to that. */
static counts live_now(const char **failed) {
    const char *path = getenv(tested_driver() == &evo_cuda_driver ? "EVO_CUDA_LIBRARY" : "EVO_HIP_LIBRARY");
    void *library = dlopen(path ? path : "", RTLD_NOW);
    REQUIRE(library);
    void (*ask)(counts *live, const char **failed);
    *(void **)&ask = dlsym(library, "simulated_live");
    REQUIRE(ask);
    counts now;
    ask(&now, failed);
    dlclose(library);
    return now;
}

/* What a life looked like when its context was about to go. */
typedef struct watch {
    counts before_closing;
    bool failed_before_closing;
} watch;

static void look(life *l, life_phase phase) {
    const char *failed;
    watch *w = l->user;
    if (phase != LIFE_CLOSING) return;
    w->before_closing = live_now(&failed);
    w->failed_before_closing = failed[0] != '\0';
}

static life live(watch *w, int only) {
    life l = { .device = getenv("EVO_TEST_DEVICE"), .only = only, .enters = look, .user = w };
    life_live(&l);
    return l;
}

/*
 * Entry points whose failure nobody can be told of: they undo something after the work was done, or for a function that
 * returns nothing. What they should have undone may be left.
 */
static bool is_quiet(const char *name) {
    static const char *const names[] = { "cuCtxPopCurrent", "cuModuleUnload",  "cuDevicePrimaryCtxRelease",
                                         "cuGraphDestroy",  "hipModuleUnload", "hipGraphDestroy" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static void fail_on_demand(long call, int code, const char *how) {
    char text[64] = "";
    if (call) snprintf(text, sizeof text, "*:%ld:%d%s", call, code, how);
    setenv("EVO_SIMULATED_FAIL", text, 1);
}

static evo_status expected_status(int code) {
    return code == OUT_OF_MEMORY ? EVO_ERROR_OUT_OF_MEMORY : EVO_ERROR_DEVICE;
}

/* Whether the text has the entry point, as messages name it, and the driver's number. */
static bool has_words(const char *text, const char *name, int code) {
    char number[16], shown[64];
    snprintf(number, sizeof number, ", %d)", code);
    snprintf(shown, sizeof shown, "%s", name);
    if (strncmp(name, "hipGetDeviceProperties", 22) == 0) shown[22] = '\0';
    return strstr(text, shown) && strstr(text, number);
}

static void complain(long call, const char *name, int code, const life *l, const char *what) {
    fprintf(stderr, "call %ld, %s gives %d: %s; the first that failed is %s: %s: %s\n", call, name, code, what, l->call,
            evo_status_name(l->status), l->words);
    exit(1);
}

static bool same(counts a, counts b) {
    return a.objects == b.objects && a.modules == b.modules && a.contexts == b.contexts;
}

/* A life in which one call failed; what is left behind is taken over into *base where that cannot be helped. */
static void judge(long call, const char *name, int code, const life *l, const watch *w, const life *healthy,
                  counts *base) {
    const char *failed;
    const counts after = live_now(&failed);
    const bool opened = strncmp(l->call, "evo_context_create", 18) != 0;
    const bool quiet = is_quiet(name) || (opened && !w->failed_before_closing);
    const bool restored =
        strcmp(name, "hipSetDevice") == 0; /* or the caller's device was not: then all has gone well */
    if (l->status == EVO_OK && !quiet && !restored) complain(call, name, code, l, "no status");
    if (l->status != EVO_OK && quiet) complain(call, name, code, l, "quiet no more: remove it from the list");
    if (l->status != EVO_OK && (l->status != expected_status(code) || !has_words(l->words, name, code)))
        complain(call, name, code, l, "another status, or none of the driver's words");
    if (l->status != EVO_OK && opened && !l->recovered) complain(call, name, code, l, "the context works no more");
    if (opened && l->digest != healthy->digest) complain(call, name, code, l, "other numbers afterwards");
    if (opened && !quiet && w->before_closing.objects != base->objects)
        complain(call, name, code, l, "objects are left in the driver");
    if (!quiet && !same(after, *base)) complain(call, name, code, l, "something is left after the context");
    *base = after;
}

typedef struct sweep {
    int code, only, stride;
} sweep;

static long first_call(int stride) {
    const char *seed = getenv("EVO_TEST_SEED");
    return 1 + (seed ? atol(seed) : 1) % stride;
}

/* Many lives in one process, in each of which another call fails. */
static int sweep_body(const void *argument) {
    const sweep *s = argument;
    const char *failed;
    watch w;
    fail_on_demand(0, 0, "");
    const life healthy = live(&w, s->only);
    if (healthy.status != EVO_OK) complain(0, "nothing", 0, &healthy, "the library does not work");
    counts base = live_now(&failed);
    REQUIRE(base.objects + base.modules + base.contexts == 0 && w.before_closing.objects == 0);
    REQUIRE(w.before_closing.modules > 2 && healthy.kernels == KERNELS);
    const long blocks = inject_live();
    long calls = 0, call = first_call(s->stride);
    for (;; call += s->stride, calls++) {
        fail_on_demand(call, s->code, "");
        const life l = live(&w, s->only);
        live_now(&failed);
        if (!failed[0]) break;
        char name[64];
        snprintf(name, sizeof name, "%s", failed);
        judge(call, name, s->code, &l, &w, &healthy, &base);
        if (inject_live() != blocks) complain(call, name, s->code, &l, "blocks are left on the host");
    }
    printf("code %d, kernel %d: %ld of %ld calls failed\n", s->code, s->only, calls, call);
    return calls > 5 ? 0 : 1;
}

static int scale(int otherwise) {
    const char *text = getenv("EVO_TEST_SCALE");
    return text && atoi(text) == 1 ? 1 : otherwise;
}

static void sweep_with(int code, int only, int stride) {
    const sweep s = { code, only, stride };
    const outcome result = run_child(sweep_body, &s, NULL);
    if (result.status != 0) fail_msg("the child ended with %d: %s", result.status, result.text);
    print_message("%s", result.text);
}

static void test_each_call(void **state) {
    (void)state;
    static const int codes[] = { OUT_OF_MEMORY, LAUNCH_FAILED, BAD_IMAGE, UNKNOWN };
    const int stride = scale(17);
    for (int c = 0; c < 4; c++)
        for (int only = 1; only <= KERNELS; only++)
            if (stride == 1 || only == c + 1) sweep_with(codes[c], only, c == 0 ? scale(5) : stride);
}

/* A child for each number from `first` on, in steps of `stride`, until one says that nothing failed: that one's. */
static long first_quiet(int (*body)(const void *), long first, long stride) {
    for (long n = first;; n += stride) {
        const outcome result = run_child(body, &n, NULL);
        if (result.status == NOTHING_FAILED) return n;
        if (result.status != 0) fail_msg("at number %ld the child ended with %d: %s", n, result.status, result.text);
    }
}

/* From its first call on the process meets a driver that fails; `argument` is the number of the call. */
static int start_body(const void *argument) {
    const char *failed;
    watch w;
    fail_on_demand(*(const long *)argument, LAUNCH_FAILED, "");
    const life l = live(&w, 1);
    live_now(&failed);
    if (l.status == EVO_ERROR_DEVICE) return NOTHING_FAILED; /* the driver had started */
    REQUIRE(l.status == EVO_ERROR_NO_DEVICE && has_words(l.words, failed, LAUNCH_FAILED));
    fail_on_demand(0, 0, "");
    const life again = live(&w, 1);
    REQUIRE(again.status == EVO_ERROR_NO_DEVICE && has_words(again.words, "", LAUNCH_FAILED));
    return 0;
}

static void test_each_call_of_the_start(void **state) {
    (void)state;
    assert_true(first_quiet(start_body, 1, 1) >= 3);
}

/* A call that fails while "auto" looks for a device costs that device, and is no failure of the caller's. */
static int auto_body(const void *argument) {
    const char *failed;
    evo_context_options silent = EVO_CONTEXT_OPTIONS_INIT;
    evo_context *context = NULL;
    silent.verbose = -1;
    fail_on_demand(*(const long *)argument, LAUNCH_FAILED, "");
    FAILS(evo_memory_alloc(NULL, 1, NULL), EVO_ERROR_NULL_POINTER, "evo_memory_alloc");
    OK(evo_context_create("auto", &silent, &context));
    REQUIRE(strstr(evo_last_error(), "evo_memory_alloc"));
    live_now(&failed);
    evo_context_destroy(context);
    return failed[0] ? 0 : NOTHING_FAILED;
}

static void test_each_call_of_auto(void **state) {
    (void)state;
    assert_true(first_quiet(auto_body, 1, 1) >= 3);
}

/* The device is lost at one call, and stays so. */
static int lost_body(const void *argument) {
    const long call = *(const long *)argument;
    const char *failed;
    watch w = { { 0, 0, 0 }, false };
    const long blocks = inject_live();
    fail_on_demand(call, LAUNCH_FAILED, ":lost");
    const life l = live(&w, 1);
    live_now(&failed);
    if (!failed[0]) return NOTHING_FAILED;
    const bool opened = strncmp(l.call, "evo_context_create", 18) != 0;
    const bool at_closing = opened && !w.failed_before_closing;
    /* A call has its result when it puts the caller's context back; lost there, the device fails the next, if there is one. */
    const bool after_all = l.status == EVO_OK && is_quiet(failed);
    if (at_closing ? l.status != EVO_OK : !after_all && l.status != EVO_ERROR_DEVICE && l.status != EVO_ERROR_NO_DEVICE)
        complain(call, failed, LAUNCH_FAILED, &l, "no status");
    if (!at_closing && !after_all && !has_words(l.words, "", LAUNCH_FAILED))
        complain(call, failed, LAUNCH_FAILED, &l, "none of the driver's words");
    if (l.recovered) complain(call, failed, LAUNCH_FAILED, &l, "work on a lost device goes well");
    if (inject_live() != blocks) complain(call, failed, LAUNCH_FAILED, &l, "blocks are left on the host");
    const life again = live(&w, 1);
    if ((again.status != EVO_ERROR_DEVICE && again.status != EVO_ERROR_NO_DEVICE) ||
        !has_words(again.words, "", LAUNCH_FAILED))
        complain(call, failed, LAUNCH_FAILED, &again, "a lost device can be opened");
    return 0;
}

static void test_lost(void **state) {
    (void)state;
    const int stride = scale(13);
    const long first = first_call(stride), lost = (first_quiet(lost_body, first, stride) - first) / stride;
    print_message("lost at each of %ld calls\n", lost);
    assert_true(lost > 5);
}

/* One entry point is missing; those of newer drivers are not needed. */
static int missing_body(const void *argument) {
    static const char *const newer[] = { "cuFuncLoad", "cuLaunchKernelEx", "cuTensorMapEncodeTiled",
                                         "hipGetDevicePropertiesR0600" };
    watch w;
    const gpu_driver *driver = tested_driver();
    evo_text why = { { 0 }, 0 };
    bool needed = true;
    inject_missing_after(*(const long *)argument);
    const int count = driver->device_count(&why);
    if (!inject_missing()) return NOTHING_FAILED;
    const char *name = inject_missing();
    for (size_t i = 0; i < sizeof newer / sizeof *newer; i++) needed &= strcmp(name, newer[i]) != 0;
    if (needed) {
        const life l = live(&w, 1);
        const bool good = count == 0 && l.status == EVO_ERROR_NO_DEVICE && strstr(l.words, name) &&
                          strstr(l.words, "or later is needed");
        if (!good) complain(0, name, 0, &l, "missing, and nobody says so");
    } else if (count == 0) {
        fprintf(stderr, "%s is missing: %s\n", name, why.data);
        return strstr(why.data, "hipGetDeviceProperties") ? 0 : 1; /* the simulated runtime is not an old one either */
    }
    return 0;
}

static void test_each_entry_point_missing(void **state) {
    (void)state;
    const long n = first_quiet(missing_body, 1, 1);
    print_message("each of %ld entry points was missing once\n", n - 1);
    assert_true(n > 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_call),
        cmocka_unit_test(test_each_call_of_the_start),
        cmocka_unit_test(test_each_call_of_auto),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_each_entry_point_missing),
    };
    return cmocka_run_group_tests_name("calls", tests, NULL, NULL);
}
