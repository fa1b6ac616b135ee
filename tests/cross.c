/*
 * cross.c: kernel "blocked" against "reference" on small shapes, for each instruction set that this processor runs, with
 * nothing but the public API and no framework, so that it also runs where the other tests' libraries are missing:
 * cross-compiled, under an emulator. With the argument "list" it prints the sets' names, best first.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evoformer/evoformer.h>

enum {
    MOST = 1 << 17
};

static uint32_t seed = 1;
static _Alignas(64) float weights[1 << 14];
static _Alignas(64) unsigned char inputs[MOST * 4], outputs[2][MOST * 4];

static int failed(const char *what) {
    fprintf(stderr, "cross: %s: %s\n", what, evo_last_error());
    return 1;
}

static uint32_t next_random(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed;
}

/* A number of magnitude 1/2 to 1 (16-bit formats) or 0 to 1, as the bits of its type. */
static uint32_t random_bits(evo_dtype dtype) {
    const uint32_t bits = next_random() >> 16;
    const float number = (float)(int32_t)next_random() * 0x1p-31f;
    uint32_t code;
    if (dtype == EVO_BF16) return (bits & 0x807f) | 126 << 7;
    if (dtype == EVO_FP16) return (bits & 0x83ff) | 14 << 10;
    memcpy(&code, &number, sizeof code);
    return code;
}

static double number_at(const unsigned char *data, evo_dtype dtype, int64_t k) {
    uint32_t code = 0;
    float number;
    memcpy(&code, data + k * (dtype == EVO_FP32 ? 4 : 2), dtype == EVO_FP32 ? 4 : 2);
    if (dtype == EVO_FP16) {
        const int exponent = code >> 10 & 31;
        const double size = ldexp((double)(code & 1023) + (exponent ? 1024.0 : 0.0), (exponent ? exponent : 1) - 25);
        return code & 0x8000 ? -size : size;
    }
    if (dtype == EVO_BF16) code <<= 16;
    memcpy(&number, &code, sizeof number);
    return (double)number;
}

static void *aligned(size_t bytes) {
    void *memory = aligned_alloc(EVO_BUFFER_ALIGNMENT, (bytes / EVO_BUFFER_ALIGNMENT + 1) * EVO_BUFFER_ALIGNMENT);
    if (!memory) abort();
    return memory;
}

/* Weights, numbers from a different place each. */
static void fill(evo_weight *first, evo_weight *last) {
    for (evo_weight *w = first; w <= last; w++) *w = (evo_weight){ weights + 64 * (w - first) + 1, EVO_FP32, { 0, 0 } };
}

typedef struct shape {
    int64_t batch, s, n, in, c, out; /* s 0: a triangle multiplication */
    evo_dtype dtype;
    evo_compute compute;
} shape;

typedef struct prepared {
    evo_plan *plan;
    evo_pack *pack;
    void *packed, *workspace;
    evo_plan_info info;
} prepared;

static int allocate(prepared *p) {
    p->info = (evo_plan_info)EVO_PLAN_INFO_INIT;
    if (evo_plan_get_info(p->plan, &p->info) != EVO_OK) return failed("plan info");
    p->packed = aligned(p->info.pack_size);
    p->workspace = aligned(p->info.workspace_size);
    return 0;
}

static void release(prepared *p) {
    evo_pack_destroy(p->pack);
    evo_plan_destroy(p->plan);
    free(p->packed);
    free(p->workspace);
}

static int run_trimul(evo_context *context, const shape *s, const char *kernel, void *out) {
    evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
    evo_trimul_weights w = EVO_TRIMUL_WEIGHTS_INIT;
    prepared p = { 0 };
    d.batch = s->batch;
    d.n = s->n;
    d.c_z = s->in;
    d.c = s->c;
    d.direction = s->n % 2 ? EVO_OUTGOING : EVO_INCOMING;
    d.mask.dtype = d.z.dtype = d.out.dtype = s->dtype;
    d.compute = s->compute;
    d.kernel = kernel;
    fill(&w.norm_in_weight, &w.out_gate_bias);
    if (evo_trimul_plan_create(context, &d, &p.plan) != EVO_OK || allocate(&p) != 0) return failed("trimul plan");
    const evo_trimul_args args = { sizeof args, inputs, inputs + 128, NULL, out };
    if (evo_trimul_pack_weights(p.plan, &w, p.packed, p.info.pack_size, NULL, &p.pack) != EVO_OK ||
        evo_trimul_execute(p.plan, p.pack, &args, p.workspace, p.info.workspace_size, NULL) != EVO_OK)
        return failed("trimul");
    release(&p);
    return 0;
}

static int run_opm(evo_context *context, const shape *s, const char *kernel, void *out) {
    evo_opm_desc d = EVO_OPM_DESC_INIT;
    evo_opm_weights w = EVO_OPM_WEIGHTS_INIT;
    prepared p = { 0 };
    d.batch = s->batch;
    d.s = s->s;
    d.n = s->n;
    d.c_m = s->in;
    d.c = s->c;
    d.c_z = s->out;
    d.mask.dtype = d.m.dtype = d.out.dtype = s->dtype;
    d.compute = s->compute;
    d.kernel = kernel;
    fill(&w.norm_weight, &w.out_bias);
    if (evo_opm_plan_create(context, &d, &p.plan) != EVO_OK || allocate(&p) != 0) return failed("opm plan");
    const evo_opm_args args = { sizeof args, inputs, inputs + 128, NULL, out };
    if (evo_opm_pack_weights(p.plan, &w, p.packed, p.info.pack_size, NULL, &p.pack) != EVO_OK ||
        evo_opm_execute(p.plan, p.pack, &args, p.workspace, p.info.workspace_size, NULL) != EVO_OK)
        return failed("opm");
    release(&p);
    return 0;
}

/*
 * The relative difference that is allowed: of fp32 sums; of an output rounded to 16 bits by both, where a last place more or
 * less in each number is 2^-8 or 2^-11; and of bf16 operands, whose rounding, 2^-9 each, meets in four products in turn.
 */
static double allowed(const shape *s) {
    const double storage = s->dtype == EVO_BF16 ? 0x1p-8 : s->dtype == EVO_FP16 ? 0x1p-11 : 1e-6;
    return s->compute == EVO_COMPUTE_BF16 ? storage + 4.0 * 0x1p-9 : storage;
}

static int try_shape(evo_context *context, const shape *s, const char *set) {
    int (*const run)(evo_context *, const shape *, const char *, void *) = s->s ? run_opm : run_trimul;
    const int64_t count = s->batch * s->n * s->n * (s->s ? s->out : s->in);
    double difference = 0.0, norm = 0.0;
    for (int64_t k = 0; k < MOST; k++) {
        const uint32_t bits = random_bits(s->dtype);
        const size_t size = s->dtype == EVO_FP32 ? 4 : 2;
        memcpy(inputs + (size_t)k * size, &bits, size);
    }
    memset(outputs, 0xff, sizeof outputs); /* NaNs */
    if (run(context, s, "blocked", outputs[0]) != 0) return 1;
    shape exact = *s;
    exact.compute = EVO_COMPUTE_FP32;
    if (run(context, &exact, "reference", outputs[1]) != 0) return 1;
    for (int64_t k = 0; k < count; k++) {
        const double want = number_at(outputs[1], s->dtype, k), error = number_at(outputs[0], s->dtype, k) - want;
        difference += error * error;
        norm += want * want;
    }
    const double relative = sqrt(difference / norm);
    const int wrong = !(relative <= allowed(s));
    printf("%s %s B %d S %d N %d c %d dtype %d compute %d: %.2g of %.2g%s\n", set, s->s ? "opm" : "trimul",
           (int)s->batch, (int)s->s, (int)s->n, (int)s->c, (int)s->dtype, (int)s->compute, relative, allowed(s),
           wrong ? " WRONG" : "");
    return wrong;
}

static const shape shapes[] = {
    { 1, 0, 1, 24, 20, 0, EVO_FP32, EVO_COMPUTE_FP32 },   { 2, 0, 7, 24, 20, 0, EVO_FP32, EVO_COMPUTE_FP32 },
    { 1, 0, 13, 8, 5, 0, EVO_FP32, EVO_COMPUTE_FP32 },    { 2, 0, 32, 32, 32, 0, EVO_FP32, EVO_COMPUTE_FP32 },
    { 1, 0, 41, 24, 20, 0, EVO_FP32, EVO_COMPUTE_FP32 },  { 1, 0, 31, 16, 16, 0, EVO_FP32, EVO_COMPUTE_BF16 },
    { 1, 0, 33, 16, 17, 0, EVO_BF16, EVO_COMPUTE_BF16 },  { 1, 0, 12, 16, 16, 0, EVO_FP16, EVO_COMPUTE_FP32 },
    { 1, 3, 1, 24, 12, 20, EVO_FP32, EVO_COMPUTE_FP32 },  { 1, 40, 7, 24, 12, 20, EVO_FP32, EVO_COMPUTE_FP32 },
    { 2, 8, 32, 24, 16, 40, EVO_FP32, EVO_COMPUTE_FP32 }, { 1, 70, 13, 24, 12, 20, EVO_FP32, EVO_COMPUTE_FP32 },
    { 1, 65, 41, 24, 8, 20, EVO_FP32, EVO_COMPUTE_BF16 }, { 1, 3, 33, 24, 8, 20, EVO_BF16, EVO_COMPUTE_BF16 },
    { 2, 33, 9, 24, 8, 20, EVO_BF16, EVO_COMPUTE_BF16 },  { 1, 9, 17, 24, 8, 20, EVO_FP16, EVO_COMPUTE_FP32 },
};

static int try_set(const char *set) {
    evo_context *context;
    int wrong = 0;
    setenv("EVO_CPU_ISA", set, 1);
    if (evo_context_create("cpu", NULL, &context) != EVO_OK) return failed("context");
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) wrong |= try_shape(context, &shapes[k], set);
    evo_context_destroy(context);
    return wrong;
}

int main(int argc, char **argv) {
    const int list = argc > 1 && strcmp(argv[1], "list") == 0;
    char names[256] = "";
    evo_context *none;
    int wrong = 0, sets = 0;
    const char *text = getenv("EVO_TEST_SEED");
    if (text) seed = (uint32_t)strtoul(text, NULL, 0);
    if (!list) printf("EVO_TEST_SEED=%u\n", (unsigned)seed);
    for (size_t k = 0; k < sizeof weights / sizeof *weights; k++) weights[k] = (float)(int32_t)next_random() * 0x1p-31f;
    /* The refusal of an unknown set names those that this machine runs. */
    setenv("EVO_CPU_ISA", "?", 1);
    if (evo_context_create("cpu", NULL, &none) == EVO_OK) return failed("an unknown instruction set was taken");
    const char *from = strstr(evo_last_error(), "machine runs: ");
    if (from) snprintf(names, sizeof names, "%s", from + strlen("machine runs: "));
    for (char *name = strtok(names, "\", "); name; name = strtok(NULL, "\", "), sets++)
        if (list)
            puts(name);
        else
            wrong |= try_set(name);
    return wrong || sets == 0;
}
