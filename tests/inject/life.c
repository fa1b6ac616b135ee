/* life.c: see life.h. */
#include "life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small, and yet enough channels for every tier. */
enum {
    B = 1,
    S = 3,
    N = 5,
    C = 16,
    NUMBERS = 16 * 16 * 16 /* more than any tensor of these sizes has */
};

static const float pattern_at = 0.0625f;

/* Keeps what the first failure was; later ones follow from it. */
static evo_status keep(life *l, evo_status status, const char *call) {
    if (status == EVO_OK || l->status != EVO_OK) return status;
    l->status = status;
    snprintf(l->call, sizeof l->call, "%s", call);
    snprintf(l->words, sizeof l->words, "%s", evo_last_error());
    return status;
}

#define KEEP(call) keep(l, (call), #call)
#define TRY(call)                           \
    do {                                    \
        if (KEEP(call) != EVO_OK) goto end; \
    } while (0)

static void enter(life *l, life_phase phase) {
    if (l->enters) l->enters(l, phase);
}

static void digest(life *l, const float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        l->digest = (l->digest ^ bits) * 0x100000001b3u;
    }
}

/* Either op, with all its tensors in one buffer each: what the life of a plan takes. */
typedef struct work {
    evo_context *context;
    bool is_opm;
    union {
        evo_opm_desc opm;
        evo_trimul_desc trimul;
    } desc;
    size_t out_count;
    evo_plan *plan;
    evo_pack *pack;
    evo_plan_info info;
    void *in, *out, *packed, *workspace;
    evo_stream stream;
    evo_event start, stop;
    evo_graph graph;
} work;

static evo_status describe(work *w, evo_op op, const char *kernel, int variant) {
    w->is_opm = op == EVO_OP_OPM;
    if (w->is_opm) {
        evo_opm_desc d = EVO_OPM_DESC_INIT;
        const evo_status status = evo_opm_set_variant(&d, evo_opm_variant(variant));
        d.batch = B, d.s = S, d.n = N, d.c_m = d.c = d.c_z = C;
        d.mask = d.residual = (evo_tensor)EVO_TENSOR_INIT(EVO_FP32);
        d.compute = EVO_COMPUTE_BF16;
        d.kernel = kernel;
        w->desc.opm = d;
        return status;
    }
    evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
    const evo_status status = evo_trimul_set_variant(&d, evo_trimul_variant(variant));
    d.batch = B, d.n = N, d.c_z = d.c = C;
    d.mask = d.residual = (evo_tensor)EVO_TENSOR_INIT(EVO_FP32);
    d.compute = EVO_COMPUTE_BF16;
    d.kernel = kernel;
    w->desc.trimul = d;
    return status;
}

static evo_status plan(work *w) {
    return w->is_opm ? evo_opm_plan_create(w->context, &w->desc.opm, &w->plan)
                     : evo_trimul_plan_create(w->context, &w->desc.trimul, &w->plan);
}

/* All weights are views of the same numbers; those of biases that the variant lacks stay away. */
static evo_status pack(work *w) {
    static const unsigned opm_bits[] = {
        0, EVO_OPM_BIAS_NORM, 0, EVO_OPM_BIAS_A, 0, EVO_OPM_BIAS_B, 0, EVO_OPM_BIAS_OUT
    };
    evo_opm_weights opm = EVO_OPM_WEIGHTS_INIT;
    evo_trimul_weights trimul = EVO_TRIMUL_WEIGHTS_INIT;
    evo_weight *first = w->is_opm ? &opm.norm_weight : &trimul.norm_in_weight;
    const int count = w->is_opm ? 8 : 16;
    for (int k = 0; k < count; k++) {
        const unsigned bit = w->is_opm ? opm_bits[k] : k % 2 ? 1u << k / 2 : 0;
        if (bit && !((w->is_opm ? w->desc.opm.biases : w->desc.trimul.biases) & bit)) continue;
        first[k] = (evo_weight){ w->in, EVO_FP32, { 0, 0 } };
    }
    return w->is_opm ? evo_opm_pack_weights(w->plan, &opm, w->packed, w->info.pack_size, w->stream, &w->pack)
                     : evo_trimul_pack_weights(w->plan, &trimul, w->packed, w->info.pack_size, w->stream, &w->pack);
}

static evo_status execute(const work *w) {
    const evo_opm_args opm = { sizeof opm, w->in, w->in, w->in, w->out };
    const evo_trimul_args trimul = { sizeof trimul, w->in, w->in, w->in, w->out };
    return w->is_opm ? evo_opm_execute(w->plan, w->pack, &opm, w->workspace, w->info.workspace_size, w->stream)
                     : evo_trimul_execute(w->plan, w->pack, &trimul, w->workspace, w->info.workspace_size, w->stream);
}

/* What could not be destroyed is still there: it is tried once more. */
#define DESTROY(call)                      \
    do {                                   \
        if (KEEP(call) != EVO_OK) (call);  \
    } while (0)

/* Everything that exists goes; a failure here is one like any other. */
static void undo(life *l, work *w) {
    DESTROY(evo_graph_destroy(w->context, w->graph));
    evo_pack_destroy(w->pack);
    evo_plan_destroy(w->plan);
    DESTROY(evo_event_destroy(w->context, w->start));
    DESTROY(evo_event_destroy(w->context, w->stop));
    DESTROY(evo_stream_destroy(w->context, w->stream));
    DESTROY(evo_memory_free(w->context, w->workspace));
    DESTROY(evo_memory_free(w->context, w->packed));
    DESTROY(evo_memory_free(w->context, w->out));
    DESTROY(evo_memory_free(w->context, w->in));
}

/* One op by one kernel: at once, and as a graph. A kernel that refuses such a small problem is left out. */
static void one(life *l, evo_context *context, evo_op op, const char *kernel, int variant) {
    float numbers[NUMBERS], got[2][B * N * N * C];
    work w = { .context = context, .info = EVO_PLAN_INFO_INIT };
    double milliseconds = -1;
    for (int i = 0; i < NUMBERS; i++) numbers[i] = pattern_at * (float)(i % 7 - 2);
    TRY(describe(&w, op, kernel, variant));
    const evo_status planned = plan(&w);
    if (planned == EVO_ERROR_UNSUPPORTED) return;
    if (planned == EVO_OK && ++l->kernels != l->only && l->only) goto end;
    TRY(planned);
    TRY(evo_plan_get_info(w.plan, &w.info));
    TRY(evo_memory_alloc(context, sizeof numbers, &w.in));
    TRY(evo_memory_alloc(context, sizeof got[0], &w.out));
    TRY(evo_memory_alloc(context, w.info.pack_size, &w.packed));
    TRY(evo_memory_alloc(context, w.info.workspace_size, &w.workspace));
    TRY(evo_stream_create(context, &w.stream));
    TRY(evo_event_create(context, &w.start));
    TRY(evo_event_create(context, &w.stop));
    TRY(evo_memory_copy(context, w.in, numbers, sizeof numbers, w.stream));
    TRY(pack(&w));
    TRY(execute(&w));
    TRY(evo_memory_copy(context, got[0], w.out, sizeof got[0], w.stream));
    TRY(evo_stream_synchronize(context, w.stream));
    TRY(evo_graph_begin(context, w.stream));
    TRY(evo_memory_fill(context, w.out, 0xff, sizeof got[0], w.stream));
    TRY(execute(&w));
    TRY(evo_graph_end(context, w.stream, &w.graph));
    TRY(evo_event_record(context, w.start, w.stream));
    TRY(evo_graph_launch(context, w.graph, w.stream));
    TRY(evo_event_record(context, w.stop, w.stream));
    TRY(evo_stream_wait_event(context, w.stream, w.start));
    TRY(evo_memory_copy(context, got[1], w.out, sizeof got[1], w.stream));
    TRY(evo_event_synchronize(context, w.stop));
    TRY(evo_event_elapsed(context, w.start, w.stop, &milliseconds));
    TRY(evo_stream_synchronize(context, w.stream));
    digest(l, got[0], sizeof got[0] / sizeof *got[0]);
    digest(l, got[1], sizeof got[1] / sizeof *got[1]);
end:
    undo(l, &w);
}

/* The library's own list has the device of the context. */
static void find_device(life *l, const evo_context *context) {
    evo_device_info own = EVO_DEVICE_INFO_INIT, listed = EVO_DEVICE_INFO_INIT;
    evo_backend_info backend = EVO_BACKEND_INFO_INIT;
    evo_status status;
    for (int i = 0; evo_backend_get(i, &backend) == EVO_OK;) i++;
    TRY(evo_context_device(context, &own));
    for (int i = 0; (status = evo_device_get(i, &listed)) == EVO_OK && strcmp(listed.name, own.name) != 0;) i++;
    TRY(status);
end:;
}

static int variants_of(evo_op op) {
    int count = 0;
    while (op == EVO_OP_OPM ? evo_opm_variant(count) : evo_trimul_variant(count)) count++;
    return count;
}

static void every(life *l, evo_context *context) {
    l->digest = 0xcbf29ce484222325u;
    l->kernels = 0;
    find_device(l, context);
    for (int op = 0; evo_op_name((evo_op)op); op++) {
        const char *kernel;
        for (int k = 0; (kernel = evo_context_kernel(context, (evo_op)op, k)) != NULL; k++)
            if (l->status == EVO_OK && !strchr(kernel, '/'))
                one(l, context, (evo_op)op, kernel, (l->variant + k) % variants_of((evo_op)op));
    }
}

void life_live(life *l) {
    const evo_context_options silent = { sizeof silent, -1, NULL, NULL };
    evo_context *context = NULL;
    enter(l, LIFE_OPENING);
    TRY(evo_context_create(l->device, &silent, &context));
    enter(l, LIFE_WORKING);
    every(l, context);
    if (l->status != EVO_OK) {
        life again = { .device = l->device, .only = l->only, .variant = l->variant };
        enter(l, LIFE_RECOVERING);
        every(&again, context);
        l->recovered = again.status == EVO_OK;
        l->digest = again.digest;
        l->kernels = again.kernels;
        if (!l->recovered) fprintf(stderr, "after a failure: %s: %s\n", again.call, again.words);
    }
    enter(l, LIFE_CLOSING);
end:
    evo_context_destroy(context);
}
