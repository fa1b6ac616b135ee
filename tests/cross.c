/*
 * cross.c: kernel "blocked" against "reference" on a few shapes, with nothing but the public API and no framework, so that
 * it also runs where the other tests' libraries are missing: cross-compiled, under an emulator.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evoformer/evoformer.h>

enum {
    MOST = 1 << 17
};

static _Alignas(64) float numbers[MOST], outputs[2][MOST];

static int failed(const char *what) {
    fprintf(stderr, "cross: %s: %s\n", what, evo_last_error());
    return 1;
}

static void *aligned(size_t bytes) {
    void *memory = aligned_alloc(EVO_BUFFER_ALIGNMENT, (bytes / EVO_BUFFER_ALIGNMENT + 1) * EVO_BUFFER_ALIGNMENT);
    if (!memory) abort();
    return memory;
}

/* Weights, numbers from a different place each. */
static void fill(evo_weight *first, evo_weight *last) {
    for (evo_weight *w = first; w <= last; w++) *w = (evo_weight){ numbers + 64 * (w - first) + 1, EVO_FP32, { 0, 0 } };
}

static int run_trimul(evo_context *context, int64_t n, int64_t c_z, int64_t c, int which) {
    evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
    evo_trimul_weights w = EVO_TRIMUL_WEIGHTS_INIT;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_plan *plan;
    evo_pack *pack;
    d.n = n;
    d.c_z = c_z;
    d.c = c;
    d.direction = n % 2 ? EVO_OUTGOING : EVO_INCOMING;
    d.mask.dtype = EVO_FP32;
    d.kernel = which ? "reference" : "blocked";
    fill(&w.norm_in_weight, &w.out_gate_bias);
    if (evo_trimul_plan_create(context, &d, &plan) != EVO_OK || evo_plan_get_info(plan, &info) != EVO_OK)
        return failed("trimul plan");
    void *packed = aligned(info.pack_size), *workspace = aligned(info.workspace_size);
    if (evo_trimul_pack_weights(plan, &w, packed, info.pack_size, NULL, &pack) != EVO_OK) return failed("trimul pack");
    const evo_trimul_args args = { sizeof args, numbers + 1024, numbers + 2048, NULL, outputs[which] };
    if (evo_trimul_execute(plan, pack, &args, workspace, info.workspace_size, NULL) != EVO_OK) return failed("trimul");
    evo_pack_destroy(pack);
    evo_plan_destroy(plan);
    free(packed);
    free(workspace);
    return 0;
}

static int run_opm(evo_context *context, int64_t s, int64_t n, int64_t c, int which) {
    evo_opm_desc d = EVO_OPM_DESC_INIT;
    evo_opm_weights w = EVO_OPM_WEIGHTS_INIT;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_plan *plan;
    evo_pack *pack;
    d.s = s;
    d.n = n;
    d.c_m = 24;
    d.c = c;
    d.c_z = 20;
    d.mask.dtype = EVO_FP32;
    d.kernel = which ? "reference" : "blocked";
    fill(&w.norm_weight, &w.out_bias);
    if (evo_opm_plan_create(context, &d, &plan) != EVO_OK || evo_plan_get_info(plan, &info) != EVO_OK)
        return failed("opm plan");
    void *packed = aligned(info.pack_size), *workspace = aligned(info.workspace_size);
    if (evo_opm_pack_weights(plan, &w, packed, info.pack_size, NULL, &pack) != EVO_OK) return failed("opm pack");
    const evo_opm_args args = { sizeof args, numbers + 1024, numbers + 2048, NULL, outputs[which] };
    if (evo_opm_execute(plan, pack, &args, workspace, info.workspace_size, NULL) != EVO_OK) return failed("opm");
    evo_pack_destroy(pack);
    evo_plan_destroy(plan);
    free(packed);
    free(workspace);
    return 0;
}

static int differ(const char *what, int64_t n, int64_t count) {
    double difference = 0.0, norm = 0.0;
    for (int64_t k = 0; k < count; k++) {
        const double want = (double)outputs[1][k], error = (double)outputs[0][k] - want;
        difference += error * error;
        norm += want * want;
    }
    const double relative = sqrt(difference / norm);
    printf("%s N %d: %.2g\n", what, (int)n, relative);
    return !(relative < 1e-6);
}

int main(void) {
    static const int64_t sizes[] = { 1, 7, 13, 32, 41 };
    evo_context *context;
    int wrong = 0;
    uint32_t state = 1;
    for (int k = 0; k < MOST; k++) {
        state = state * 1664525u + 1013904223u;
        numbers[k] = (float)(int32_t)state * 0x1p-31f;
    }
    if (evo_context_create("cpu", NULL, &context) != EVO_OK) return failed("context");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int64_t n = sizes[k];
        for (int which = 0; which < 2; which++) wrong |= run_trimul(context, n, 24, 20, which);
        wrong |= differ("trimul", n, n * n * 24);
        for (int which = 0; which < 2; which++) wrong |= run_opm(context, n == 7 ? 40 : 3, n, 12, which);
        wrong |= differ("opm", n, n * n * 20);
    }
    evo_context_destroy(context);
    return wrong;
}
