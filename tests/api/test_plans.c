/*
 * test_plans.c: what a plan says of itself; workspace limits; lifetimes in any order; the log; the last error of each
 * thread; planning and executing from many threads at once.
 */
#include "../support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static evo_context *context;

/* ---- queries ---- */

static void check_info(const sample *s) {
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    OK(evo_plan_get_info(s->plan, &info));
    assert_int_equal(info.size, sizeof info);
    assert_string_equal(evo_op_name(info.op), s->op->name);
    assert_true(info.kernel != NULL && info.kernel[0] != '\0');
    assert_non_null(info.refusals);
    assert_true(info.workspace_size == s->workspace_size && info.pack_size == s->pack_size && info.pack_size > 0);
    int known = 0;
    for (int i = 0; evo_context_kernel(context, info.op, i) != NULL; i++)
        known = known || strcmp(evo_context_kernel(context, info.op, i), info.kernel) == 0;
    assert_true(known);
    assert_string_not_equal(evo_compute_name(info.compute), "invalid");
    REFUSED(evo_plan_get_info(NULL, &info), EVO_ERROR_NULL_POINTER, "plan");
    REFUSED(evo_plan_get_info(s->plan, NULL), EVO_ERROR_NULL_POINTER, "info");
}

/*
 * Every name that the context lists can be forced, by the descriptor and by the environment, and is what then runs, or refuses
 * by its name; the one that runs unasked does not.
 */
static void check_names(const sample *s) {
    const char *name, *usual = sample_kernel(s);
    for (int i = 0; (name = evo_context_kernel(context, s->op->id, i)) != NULL; i++) {
        union case_desc desc = s->desc;
        evo_plan *plan = NULL;
        char environment[128];
        *s->op->common(&desc).kernel = name;
        snprintf(environment, sizeof environment, "%s:%s", s->op->name, name);
        for (int forced = 0; forced < 2; forced++) {
            evo_plan_info info = EVO_PLAN_INFO_INIT;
            if (forced == 1) setenv("EVO_KERNEL", environment, 1);
            const evo_status status = s->op->plan_create(context, forced == 1 ? &s->desc : &desc, &plan);
            unsetenv("EVO_KERNEL");
            if (status != EVO_OK) {
                char tier[64]; /* the name without an order of contraction */
                snprintf(tier, sizeof tier, "%.*s: ", (int)strcspn(name, "/"), name);
                REFUSED(status, EVO_ERROR_UNSUPPORTED, tier);
                assert_int_not_equal(strncmp(usual, name, strlen(name)), 0);
                continue;
            }
            OK(evo_plan_get_info(plan, &info));
            assert_int_equal(strncmp(info.kernel, name, strlen(name)), 0);
            assert_true(info.kernel[strlen(name)] == '\0' || info.kernel[strlen(name)] == '/');
            evo_plan_destroy(plan);
        }
    }
}

static void test_info(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = sample_create(sample_texts[k], context);
        check_info(s);
        check_names(s);
        sample_destroy(s);
    }
}

static double flops_of(const char *text, double *bytes) {
    sample *s = sample_create(text, context);
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    OK(evo_plan_get_info(s->plan, &info));
    sample_destroy(s);
    if (bytes != NULL) *bytes = info.bytes;
    return info.flops;
}

/* The formulas of docs/ops.md, by hand; and twice the batch is twice of both. */
static void test_flops_and_bytes(void **state) {
    double bytes, twice;
    (void)state;
    const double outer = flops_of("opm(b=1,s=64,n=5,c_m=8,c=4,c_z=6,mask=none)", &bytes);
    assert_true(outer == 4.0 * 64 * 5 * 8 * 4 + 2.0 * 25 * 16 * (64 + 6));
    assert_true(bytes == 64.0 * 5 * (8 * 4 + 4 * 4 * 4) + 25.0 * 6 * 4);
    const double weight_first = flops_of("opm(b=1,s=2,n=5,c_m=8,c=4,c_z=6,mask=random,mask_dtype=uint8)", &bytes);
    assert_true(weight_first == 4.0 * 2 * 5 * 8 * 4 + 2.0 * 2 * 5 * 16 * 6 + 2.0 * 25 * 2 * 4 * 6);
    assert_true(bytes == 2.0 * 5 * (8 * 4 + 1 + 4 * 4 * 4) + 25.0 * 6 * 4);
    const double without = bytes;
    flops_of("opm(b=1,s=2,n=5,c_m=8,c=4,c_z=6,mask=random,mask_dtype=uint8,residual=1)", &bytes);
    assert_true(bytes == without + 25.0 * 6 * 4);
    const double tri = flops_of("trimul(b=1,n=9,c_z=6,c=4,c_out=5,mask=none,residual=1,biases=none)", &bytes);
    assert_true(tri == 2.0 * 81 * (4 * 6 * 4 + 9 * 4 + 4 * 5 + 6 * 5));
    assert_true(bytes == 81.0 * (2 * 6 * 4 + 6 * 4 * 4 + 2 * 5 * 4));
    assert_true(flops_of("trimul(b=2,n=9,c_z=6,c=4,c_out=5,mask=none,residual=1,biases=none)", &twice) == 2.0 * tri);
    assert_true(twice == 2.0 * bytes);
    flops_of("trimul(b=1,n=9,c_z=6,c=4,c_out=5,mask=fractional,dtype=bf16)", &bytes);
    assert_true(bytes == 81.0 * (2 * 6 * 2 + 6 * 4 * 2 + 2 + 5 * 2));
}

/* The stride of an extent of 1 may be anything: callers' libraries differ in what they leave there. */
static void test_stride_of_one(void **state) {
    static const struct {
        const char *text;
        int64_t input, mask, out; /* strides of dimension 1 */
    } cases[] = {
        { "trimul(b=1,n=64,c_z=32,c=32,dtype=bf16,mask=random,residual=1)", 64 * 32, 64, 64 * 32 },
        { "opm(b=1,s=16,n=64,c_m=32,c=16,c_z=48,dtype=bf16,mask=random,residual=1)", 64 * 32, 64, 64 * 48 },
    };
    static const int64_t values[] = { 1, 7, -5, 1 << 20 };
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        sample *s = sample_create(cases[k].text, context);
        evo_plan_info usual = EVO_PLAN_INFO_INIT;
        OK(evo_plan_get_info(s->plan, &usual));
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            const enum case_role roles[] = { CASE_INPUT, CASE_MASK, CASE_RESIDUAL, CASE_OUTPUT };
            evo_plan_info info = EVO_PLAN_INFO_INIT;
            evo_plan *plan;
            for (int r = 0; r < 4; r++) {
                const int64_t row = roles[r] == CASE_INPUT ? cases[k].input : cases[k].out;
                const int64_t strides[4] = { values[i], row, row / 64, 1 },
                              of_mask[4] = { values[i], cases[k].mask, 1, 0 };
                memcpy(sample_tensor(s, roles[r])->strides, roles[r] == CASE_MASK ? of_mask : strides, sizeof strides);
            }
            OK(s->op->plan_create(context, &s->desc, &plan));
            OK(evo_plan_get_info(plan, &info));
            assert_string_equal(info.kernel, usual.kernel);
            assert_string_equal(info.refusals, usual.refusals);
            assert_true(info.workspace_size == usual.workspace_size);
            evo_plan_destroy(plan);
        }
        sample_destroy(s);
    }
}

/* Strides of zero say that a weight is contiguous. */
static void test_contiguous_weights(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = sample_create(sample_texts[k], context);
        OK(sample_run(s));
        unsigned char *want = sample_output(s);
        for (int i = 0; i < s->op->spec_count; i++) {
            const struct case_spec *spec = &s->op->specs[i];
            int64_t extents[CASE_MAX_RANK];
            int rank;
            if (spec->role != CASE_WEIGHT || s->memory[i] == NULL) continue;
            assert_true(case_products(s->op, &s->desc, spec->extents, extents, &rank));
            evo_weight *weight = AT(evo_weight, &s->weights, spec->slot);
            assert_true(weight->strides[0] == 0 && weight->strides[1] == 0);
            weight->strides[0] = rank == 2 ? extents[1] : 1;
            weight->strides[1] = rank == 2;
        }
        evo_pack_destroy(s->pack);
        OK(s->op->pack(s->plan, &s->weights, s->pack_memory, s->pack_size, NULL, &s->pack));
        sample_mark_output(s);
        OK(sample_run(s));
        unsigned char *got = sample_output(s);
        assert_memory_equal(got, want, s->out_bytes);
        free(got);
        free(want);
        sample_destroy(s);
    }
}

static void test_empty_work(void **state) {
    static const char *const texts[] = {
        "opm(b=0,s=3,n=5,c_m=8,c=4,c_z=6,mask=random,residual=1)",
        "opm(b=2,s=3,n=0,c_m=8,c=4,c_z=6,mask=random)",
        "trimul(b=0,n=5,c_z=6,c=4,mask=random,residual=1)",
        "trimul(b=2,n=0,c_z=6,c=4)",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sample *s = sample_create(texts[i], context);
        OK(sample_run(s));
        OK(s->op->execute(s->plan, s->pack, &s->args, NULL, 0, NULL)); /* nothing is done: nothing is needed */
        sample_destroy(s);
    }
}

/* ---- lifetimes ---- */

static void test_context_goes_first(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = sample_create(sample_texts[k], context), *same = sample_create(sample_texts[k], context);
        OK(sample_run(same));
        unsigned char *want = sample_output(same);
        evo_context *own = test_context(NULL);
        evo_plan_destroy(s->plan);
        evo_pack_destroy(s->pack);
        OK(s->op->plan_create(own, &s->desc, &s->plan));
        OK(s->op->pack(s->plan, &s->weights, s->pack_memory, s->pack_size, NULL, &s->pack));
        evo_context_destroy(own);
        check_info(s);
        OK(sample_run(s));
        unsigned char *got = sample_output(s);
        assert_memory_equal(got, want, s->out_bytes);
        /* The plan goes before the pack: another plan takes it. */
        evo_plan_destroy(s->plan);
        OK(s->op->plan_create(context, &s->desc, &s->plan));
        OK(sample_run(s));
        free(got);
        free(want);
        sample_destroy(s);
        sample_destroy(same);
    }
    evo_plan_destroy(NULL);
    evo_pack_destroy(NULL);
}

/* The descriptor, its kernel name, the weights and the structs are the caller's again after each call. */
static void test_nothing_of_the_caller_is_kept(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = sample_create(sample_texts[k], context), *same = sample_create(sample_texts[k], context);
        OK(sample_run(same));
        unsigned char *want = sample_output(same);
        char *kernel = strdup(sample_kernel(s));
        evo_plan_destroy(s->plan);
        *s->op->common(&s->desc).kernel = kernel;
        OK(s->op->plan_create(context, &s->desc, &s->plan));
        memset(kernel, '?', strlen(kernel));
        free(kernel);
        memset(&s->desc, 0xee, sizeof s->desc);
        OK(evo_stream_synchronize(context, NULL));
        for (int i = 0; i < s->op->spec_count; i++)
            if (s->op->specs[i].role == CASE_WEIGHT && s->memory[i] != NULL) {
                device_free(context, s->memory[i]);
                s->memory[i] = NULL;
            }
        memset(&s->weights, 0xee, sizeof s->weights);
        OK(sample_run(s));
        unsigned char *got = sample_output(s);
        assert_memory_equal(got, want, s->out_bytes);
        free(got);
        free(want);
        sample_destroy(s);
        sample_destroy(same);
    }
}

/* ---- the log ---- */

typedef struct lines {
    char text[8192];
    int count;
} lines;

static void take_line(void *user, const char *line) {
    lines *log = user;
    size_t used = strlen(log->text);
    snprintf(log->text + used, sizeof log->text - used, "%s\n", line);
    log->count++;
}

static void test_log_callback(void **state) {
    (void)state;
    for (int verbose = -1; verbose <= 2; verbose++) {
        lines log = { "", 0 };
        evo_context_options options = EVO_CONTEXT_OPTIONS_INIT;
        options.verbose = verbose;
        options.log = take_line;
        options.log_user = &log;
        evo_context *own = test_context(&options);
        char parts[SAMPLE_COUNT][64];
        for (int k = 0; k < SAMPLE_COUNT; k++) {
            sample *s = sample_create(sample_texts[k], own);
            OK(sample_run(s));
            snprintf(parts[k], sizeof parts[k], "%s:%s", s->op->name, sample_kernel(s));
            sample_destroy(s);
        }
        evo_context_destroy(own);
        assert_null(strstr(log.text, "\n\n"));
        if (verbose <= 0) {
            assert_int_equal(log.count, 0);
            continue;
        }
        assert_true(log.count >= 4); /* a plan and an execute of each op */
        assert_non_null(strstr(log.text, ",plan,"));
        assert_non_null(strstr(log.text, ",execute,"));
        for (int k = 0; k < SAMPLE_COUNT; k++) assert_non_null(strstr(log.text, parts[k]));
        assert_non_null(strstr(log.text, ",outgoing,"));
        assert_null(strstr(log.text, ",incoming,"));
        const char *execute = strstr(log.text, ",execute,");
        assert_int_equal(memchr(execute, '=', strcspn(execute, "\n")) != NULL, 1);
        char *end = strchr(execute, '\n');
        *end = '\0';
        assert_int_equal(strstr(execute, "ms=") != NULL, verbose == 2);
    }
}

/* EVO_VERBOSE and stderr: what one run of both ops prints. */
static void stderr_of_run(const char *verbose, char *text, size_t size) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    setenv("EVO_VERBOSE", verbose, 1);
    evo_context *own = NULL;
    evo_status status = evo_context_create(test_device(), NULL, &own);
    for (int k = 0; k < SAMPLE_COUNT && status == EVO_OK; k++) {
        sample *s = sample_create(sample_texts[k], own);
        status = sample_run(s);
        sample_destroy(s);
    }
    evo_context_destroy(own);
    unsetenv("EVO_VERBOSE");
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    OK(status);
    rewind(file);
    size_t length = fread(text, 1, size - 1, file);
    text[length] = '\0';
    fclose(file);
}

static void test_verbose_environment(void **state) {
    char text[8192];
    (void)state;
    stderr_of_run("0", text, sizeof text);
    assert_string_equal(text, "");
    stderr_of_run("1", text, sizeof text);
    assert_non_null(strstr(text, "evoformer,plan,"));
    assert_non_null(strstr(text, "evoformer,execute,"));
    stderr_of_run("2", text, sizeof text);
    const char *execute = strstr(text, "evoformer,execute,"), *plan = strstr(text, "evoformer,plan,");
    assert_non_null(execute);
    assert_non_null(plan);
    assert_non_null(strstr(execute, "ms="));
    /* Both name the device, and the kernel with its order. */
    plan += strlen("evoformer,plan,");
    assert_memory_equal(execute + strlen("evoformer,execute,"), plan, strcspn(plan, "="));

    if (strcmp(test_device(), "cpu") == 0) { /* names the instruction set */
        assert_non_null(strstr(text, ",detail="));
        const char *set = getenv("EVO_CPU_ISA");
        char *before = set != NULL ? strdup(set) : NULL;
        setenv("EVO_CPU_ISA", "baseline", 1);
        stderr_of_run("1", text, sizeof text);
        assert_non_null(strstr(text, ",detail=baseline\n"));
        if (before != NULL)
            setenv("EVO_CPU_ISA", before, 1);
        else
            unsetenv("EVO_CPU_ISA");
        free(before);
    }

    setenv("EVO_VERBOSE", "loud", 1);
    evo_context *none = NULL;
    REFUSED(evo_context_create(test_device(), NULL, &none), EVO_ERROR_INVALID_ARGUMENT, "EVO_VERBOSE", "loud",
            "expected");
    assert_null(none);
    unsetenv("EVO_VERBOSE");
    evo_context_options options = EVO_CONTEXT_OPTIONS_INIT;
    options.verbose = 3;
    REFUSED(evo_context_create(test_device(), &options, &none), EVO_ERROR_INVALID_ARGUMENT, "verbose", "3", "expected");
}

/* "auto" takes a device and says which. */
static void test_auto_is_logged(void **state) {
    lines log = { "", 0 };
    evo_context_options options = EVO_CONTEXT_OPTIONS_INIT;
    evo_context *own = NULL;
    (void)state;
    options.verbose = 1;
    options.log = take_line;
    options.log_user = &log;
    OK(evo_context_create("auto", &options, &own));
    evo_device_info info = EVO_DEVICE_INFO_INIT;
    OK(evo_context_device(own, &info));
    assert_non_null(strstr(log.text, "auto"));
    assert_non_null(strstr(log.text, info.name));
    evo_context_destroy(own);
}

/* Times need the stream to be waited for, which a recording cannot do. */
static void test_times_are_refused_under_capture(void **state) {
    lines log = { "", 0 };
    evo_context_options options = EVO_CONTEXT_OPTIONS_INIT;
    (void)state;
    options.verbose = 2;
    options.log = take_line;
    options.log_user = &log;
    evo_context *own = test_context(&options);
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = sample_create(sample_texts[k], own);
        evo_stream stream = NULL;
        evo_graph graph = NULL;
        OK(evo_stream_create(own, &stream));
        OK(evo_graph_begin(own, stream));
        REFUSED(s->op->execute(s->plan, s->pack, &s->args, s->workspace, s->workspace_size, stream), EVO_ERROR_CAPTURE,
                "EVO_VERBOSE", "expected");
        OK(evo_graph_end(own, stream, &graph));
        OK(evo_graph_destroy(own, graph));
        OK(evo_stream_destroy(own, stream));
        sample_destroy(s);
    }
    evo_context_destroy(own);
}

/* ---- graphs of whole executions ---- */

static void test_captured_execute(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = sample_create(sample_texts[k], context);
        evo_stream stream = NULL;
        evo_graph graph = NULL;
        const size_t row = 32;
        OK(evo_stream_create(context, &stream));
        sample_mark_output(s);
        OK(evo_graph_begin(context, stream));
        OK(s->op->execute(s->plan, s->pack, &s->args, s->workspace, s->workspace_size, stream));
        OK(evo_graph_end(context, stream, &graph));
        assert_true(sample_output_marked(s));
        for (int round = 0; round < 3; round++) {
            /* Another first input row each time; once by the graph, once by a plain call. */
            float values[8] = { 1, -2, 3, (float)round, 5, -6, 0.5f, 0 };
            device_copy(context, *sample_pointer(s, CASE_INPUT), values, row);
            sample_mark_output(s);
            OK(evo_graph_launch(context, graph, stream));
            OK(evo_stream_synchronize(context, stream));
            unsigned char *replayed = sample_output(s);
            sample_mark_output(s);
            OK(sample_run(s));
            unsigned char *plain = sample_output(s);
            assert_memory_equal(replayed, plain, s->out_bytes);
            free(replayed);
            free(plain);
        }
        OK(evo_graph_destroy(context, graph));
        OK(evo_stream_destroy(context, stream));
        sample_destroy(s);
    }
}

/* ---- many threads ---- */

enum {
    THREADS = 16
};

/* What one thread finds; cmocka's own checks belong to the main thread. */
typedef struct worker {
    const sample *shared;
    const unsigned char *want;
    int index;
    int rounds;
    char failure[512];
} worker;

static int worker_failed(worker *w, evo_status status, const char *what) {
    if (status == EVO_OK) return 0;
    snprintf(w->failure, sizeof w->failure, "%s: %s: %.400s", what, evo_status_name(status), evo_last_error());
    return 1;
}

/* Executes the shared plan and pack with a workspace, output and stream of its own. */
static void execute_shared(worker *w, void *out, void *workspace, unsigned char *host, evo_stream stream) {
    const sample *s = w->shared;
    union case_args args = s->args;
    *AT(void *, &args, s->op->specs[sample_spec(s, CASE_OUTPUT)].slot) = out;
    for (int round = 0; round < w->rounds; round++) {
        memset(host, 0, s->out_bytes);
        if (worker_failed(w, s->op->execute(s->plan, s->pack, &args, workspace, s->workspace_size, stream),
                          "execute") ||
            worker_failed(w, evo_memory_copy(context, host, out, s->out_bytes, stream), "copy") ||
            worker_failed(w, evo_stream_synchronize(context, stream), "synchronize"))
            return;
        if (memcmp(host, w->want, s->out_bytes) != 0) {
            snprintf(w->failure, sizeof w->failure, "round %d differs", round);
            return;
        }
    }
}

static void *executing_thread(void *argument) {
    worker *w = argument;
    const sample *s = w->shared;
    void *out = NULL, *workspace = NULL;
    evo_stream stream = NULL;
    unsigned char *host = malloc(s->out_bytes);
    if (host != NULL && !worker_failed(w, evo_memory_alloc(context, s->out_bytes, &out), "alloc") &&
        !worker_failed(w, evo_memory_alloc(context, s->workspace_size, &workspace), "alloc") &&
        !worker_failed(w, evo_stream_create(context, &stream), "stream"))
        execute_shared(w, out, workspace, host, stream);
    evo_stream_destroy(context, stream);
    evo_memory_free(context, out);
    evo_memory_free(context, workspace);
    free(host);
    return NULL;
}

/* Plans, packs, asks and destroys, and now and then asks for nonsense, whose text must be its own. */
static void *planning_thread(void *argument) {
    worker *w = argument;
    const sample *s = w->shared;
    void *memory = NULL;
    if (worker_failed(w, evo_memory_alloc(context, s->pack_size, &memory), "alloc")) return NULL;
    for (int round = 0; round < w->rounds && w->failure[0] == '\0'; round++) {
        evo_plan *plan = NULL;
        evo_pack *pack = NULL;
        evo_plan_info info = EVO_PLAN_INFO_INIT;
        char wrong[32];
        union case_desc desc = s->desc;
        if (worker_failed(w, s->op->plan_create(context, &s->desc, &plan), "plan") ||
            worker_failed(w, s->op->pack(plan, &s->weights, memory, s->pack_size, NULL, &pack), "pack") ||
            worker_failed(w, evo_plan_get_info(plan, &info), "info"))
            break;
        snprintf(wrong, sizeof wrong, "-%d", 1000 * w->index + round + 1);
        *AT(int64_t, &desc, s->op->dims[0].offset) = strtoll(wrong, NULL, 10);
        evo_plan *none = NULL;
        if (s->op->plan_create(context, &desc, &none) != EVO_ERROR_INVALID_SHAPE ||
            strstr(evo_last_error(), wrong) == NULL)
            snprintf(w->failure, sizeof w->failure, "expected %s in: %.400s", wrong, evo_last_error());
        evo_plan_destroy(plan);
        evo_pack_destroy(pack);
    }
    evo_memory_free(context, memory);
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = sample_create(sample_texts[k], context);
        OK(sample_run(s));
        unsigned char *want = sample_output(s);
        static worker workers[THREADS + 4];
        pthread_t threads[THREADS + 4];
        for (int i = 0; i < THREADS + 4; i++) {
            workers[i] = (worker){ s, want, i, test_scaled(i < THREADS ? 20 : 50), "" };
            assert_int_equal(
                pthread_create(&threads[i], NULL, i < THREADS ? executing_thread : planning_thread, &workers[i]), 0);
        }
        for (int i = 0; i < THREADS + 4; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS + 4; i++)
            if (workers[i].failure[0] != '\0') fail_msg("thread %d: %s", i, workers[i].failure);
        free(want);
        sample_destroy(s);
    }
}

static void *error_thread(void *argument) {
    char *failure = argument;
    if (strcmp(evo_last_error(), "") != 0)
        snprintf(failure, 256, "a new thread starts with \"%.200s\"", evo_last_error());
    evo_memory_alloc(NULL, 1, NULL);
    return NULL;
}

/* A thread's last error is its own, and a success leaves it. */
static void test_last_error_is_the_threads_own(void **state) {
    char failure[256] = "";
    pthread_t thread;
    evo_context *opened = NULL;
    (void)state;
    REFUSED(evo_context_create("nonsense", NULL, &opened), EVO_ERROR_INVALID_ARGUMENT, "nonsense");
    assert_int_equal(pthread_create(&thread, NULL, error_thread, failure), 0);
    pthread_join(thread, NULL);
    assert_string_equal(failure, "");
    OK(evo_context_create(test_device(), NULL, &opened));
    evo_context_destroy(opened);
    assert_non_null(strstr(evo_last_error(), "nonsense"));
}

/* Nor does a plan that took another kernel than the best: why that one refused is in the plan's refusals. */
static void test_success_with_refusals_leaves_the_last_error(void **state) {
    evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_plan *plan = NULL;
    bool fits = true;
    (void)state;
    d.n = 64;
    d.c_z = d.c = 32;
    OK(evo_trimul_plan_create(context, &d, &plan));
    OK(evo_plan_get_info(plan, &info));
    for (size_t limit = info.workspace_size; fits && limit > 0; limit = limit / 10 * 9) {
        REFUSED(evo_memory_alloc(NULL, 1, NULL), EVO_ERROR_NULL_POINTER, "evo_memory_alloc");
        evo_plan_destroy(plan);
        plan = NULL;
        d.workspace_limit = limit;
        fits = evo_trimul_plan_create(context, &d, &plan) == EVO_OK;
        if (fits) assert_non_null(strstr(evo_last_error(), "evo_memory_alloc"));
    }
    evo_plan_destroy(plan);
}

static int setup(void **state) {
    (void)state;
    unsetenv("EVO_VERBOSE");
    unsetenv("EVO_KERNEL");
    context = test_context(NULL);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    evo_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_flops_and_bytes),
        cmocka_unit_test(test_stride_of_one),
        cmocka_unit_test(test_contiguous_weights),
        cmocka_unit_test(test_empty_work),
        cmocka_unit_test(test_context_goes_first),
        cmocka_unit_test(test_nothing_of_the_caller_is_kept),
        cmocka_unit_test(test_log_callback),
        cmocka_unit_test(test_verbose_environment),
        cmocka_unit_test(test_auto_is_logged),
        cmocka_unit_test(test_times_are_refused_under_capture),
        cmocka_unit_test(test_captured_execute),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_last_error_is_the_threads_own),
        cmocka_unit_test(test_success_with_refusals_leaves_the_last_error),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("plans", tests, setup, teardown);
}
