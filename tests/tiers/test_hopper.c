/*
 * test_hopper.c: tier `hopper` of both ops, forced: every instance, shape and form of it judged by naive.c, and the lists of
 * what it refuses. Elsewhere it must refuse by name.
 */
#include "../ops/judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* tf32 is fp16's products with tensors in fp32. */
static const char *const types[] = { "dtype=bf16", "dtype=fp16", "dtype=fp32,compute=tf32" }, *const directions[] = {
    "outgoing", "incoming"
};
static const char usual_kernels[] = "opm:hopper/outer-first,trimul:hopper/three-launches";
static int has_tier;

static evo_trimul_desc usual(void) {
    evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
    d.n = 70;
    d.c_z = d.c = 128;
    d.z.dtype = d.out.dtype = EVO_BF16;
    d.compute = EVO_COMPUTE_BF16;
    d.kernel = "hopper";
    return d;
}

static evo_status try_plan(const evo_trimul_desc *d) {
    evo_plan *plan = NULL;
    const evo_status status = evo_trimul_plan_create(judge_context, d, &plan);
    evo_plan_destroy(plan);
    return status;
}

static void test_elsewhere(void **state) {
    evo_trimul_desc d = usual();
    (void)state;
    if (has_tier) skip();
    REFUSED(try_plan(&d), EVO_ERROR_UNSUPPORTED, "hopper", "sm_90a");
}

/* What differs from the usual, and a word of the reason. */
static void refuse(evo_trimul_desc d, const char *word) {
    REFUSED(try_plan(&d), EVO_ERROR_UNSUPPORTED, "hopper", word);
}

static void test_refused_types(void **state) {
    evo_trimul_desc d = usual();
    (void)state;
    if (!has_tier) skip();
    OK(try_plan(&d));
    d.compute = EVO_COMPUTE_FP32;
    refuse(d, "fp32");
    d.compute = EVO_COMPUTE_TF32;
    refuse(d, "bf16");
    d.compute = EVO_COMPUTE_FP16;
    refuse(d, "bf16");
    d.z.dtype = d.out.dtype = EVO_FP32;
    OK(try_plan(&d));
    d.compute = EVO_COMPUTE_TF32;
    OK(try_plan(&d));
    d.gate_input = EVO_GATE_RAW;
    refuse(d, "normed");
    d = usual();
    d.compute = EVO_COMPUTE_TF32;
    d.z.dtype = EVO_FP32;
    d.out.dtype = EVO_FP16;
    refuse(d, "out is fp16");
    d.z.dtype = d.out.dtype = EVO_FP16;
    OK(try_plan(&d));
    d = usual();
    d.out.dtype = EVO_FP32;
    refuse(d, "out is fp32");
    d = usual();
    d.z.dtype = EVO_FP32;
    refuse(d, "z is fp32");
    d = usual();
    d.residual.dtype = EVO_FP32;
    refuse(d, "residual is fp32");
}

static void test_refused_sizes(void **state) {
    evo_trimul_desc d = usual();
    (void)state;
    if (!has_tier) skip();
    d.c_z = 96;
    refuse(d, "c_z");
    d = usual();
    d.c_z = d.c_out = 512;
    refuse(d, "c_z");
    d = usual();
    d.c = 40;
    refuse(d, "multiples of 32");
    d = usual();
    d.c = 416;
    refuse(d, "384");
    d = usual();
    d.c_out = 60;
    refuse(d, "c_out");
    d = usual();
    d.c_out = 392;
    refuse(d, "384");
    d = usual();
    d.n = 40000;
    refuse(d, "32768");
    d = usual();
    d.workspace_limit = 1;
    REFUSED(try_plan(&d), EVO_ERROR_WORKSPACE_LIMIT, "hopper", "at least");
}

static void test_refused_layouts(void **state) {
    static const int64_t narrow[4] = { 70 * 70 * 132, 70 * 132, 132, 1 },
                         apart[4] = { 70 * 70 * 256, 70 * 256, 256, 2 };
    evo_trimul_desc d = usual();
    (void)state;
    if (!has_tier) skip();
    d.z.alignment = 8;
    refuse(d, "z is not");
    d = usual();
    d.out.alignment = 2;
    refuse(d, "out is not");
    d = usual();
    memcpy(d.z.strides, narrow, sizeof narrow);
    refuse(d, "z is not");
    d = usual();
    d.residual.dtype = EVO_BF16;
    memcpy(d.residual.strides, apart, sizeof apart);
    refuse(d, "residual is not");
}

/* The module that one launch does, and the form of it that the tier takes. */
static evo_trimul_desc small_module(void) {
    evo_trimul_desc d = usual();
    d.n = 32;
    d.c_z = 64;
    d.c = 32;
    return d;
}

static void test_small_refusals(void **state) {
    evo_trimul_desc d = small_module();
    (void)state;
    if (!has_tier) skip();
    d.kernel = "hopper/one-launch";
    OK(try_plan(&d));
    d.alias = EVO_ALIAS_INPUT;
    refuse(d, "one launch");
    d.alias = EVO_ALIAS_NONE;
    d.n = 33;
    refuse(d, "one launch");
    d.n = 32;
    d.c = 64;
    refuse(d, "one launch");
    d.c = 32;
    d.c_z = 256;
    refuse(d, "one launch");
    d.c_z = 64;
    d.c_out = 32;
    refuse(d, "one launch");
}

/* The order that the tier takes if nobody asks for one: one launch while its blocks are no more than two a multiprocessor, of c_z 128 one. */
static void test_orders(void **state) {
    static const struct {
        int64_t batch, n, c_z;
        unsigned alias;
        const char *order;
    } cases[] = {
        { 1, 1, 64, EVO_ALIAS_NONE, "hopper/one-launch" },       { 2, 8, 64, EVO_ALIAS_NONE, "hopper/one-launch" },
        { 3, 4, 32, EVO_ALIAS_RESIDUAL, "hopper/one-launch" },   { 5, 32, 64, EVO_ALIAS_NONE, "hopper/three-launches" },
        { 2, 8, 64, EVO_ALIAS_INPUT, "hopper/three-launches" },  { 1, 33, 64, EVO_ALIAS_NONE, "hopper/three-launches" },
        { 1, 4, 256, EVO_ALIAS_NONE, "hopper/three-launches" },  { 1, 8, 128, EVO_ALIAS_NONE, "hopper/one-launch" },
        { 3, 32, 128, EVO_ALIAS_NONE, "hopper/three-launches" },
    };
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(cases); i++) {
        evo_trimul_desc d = small_module();
        evo_plan *plan = NULL;
        evo_plan_info info = EVO_PLAN_INFO_INIT;
        d.batch = cases[i].batch;
        d.n = cases[i].n;
        d.c_z = cases[i].c_z;
        d.alias = cases[i].alias;
        if (d.alias == EVO_ALIAS_RESIDUAL) d.residual.dtype = EVO_BF16;
        OK(evo_trimul_plan_create(judge_context, &d, &plan));
        OK(evo_plan_get_info(plan, &info));
        assert_string_equal(info.kernel, cases[i].order);
        if (strcmp(info.kernel, "hopper/one-launch") == 0) assert_int_equal(info.workspace_size, 0);
        evo_plan_destroy(plan);
    }
}

/* Simulated devices, and others with sanitizers. */
static int is_slow(void) {
    return test_scaled(2) < 2;
}

/* Cases "trimul(TYPE,direction=..,WIDTHS,REST)" of types and directions: every `share`th of the six, in turn. */
static void judge_every(size_t share, const char *widths, const char *rest, uint64_t seed) {
    static size_t turn = 0;
    turn++;
    for (size_t k = 0; k < 6; k++) {
        char text[CASE_NAME_SIZE];
        if ((k + turn) % share) continue;
        snprintf(text, sizeof text, "trimul(%s,direction=%s,%s,%s)", types[k / 2], directions[k % 2], widths, rest);
        judge_text(judge_context, text, seed);
    }
}

/* All of them; on slow devices every `share`th: 3 gives two types. */
static void judge_all(const char *widths, const char *rest, uint64_t seed, size_t share) {
    judge_every(is_slow() ? share : 1, widths, rest, seed);
}

static void test_widths(void **state) {
    static const char *const widths[] = { "c_z=32,c=32",  "c_z=32,c=64",  "c_z=32,c=128", "c_z=64,c=32",  "c_z=64,c=64",
                                          "c_z=64,c=128", "c_z=128,c=32", "c_z=128,c=64", "c_z=128,c=128" };
    const uint64_t seed = test_seed(41);
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(widths); i++) judge_all(widths[i], "n=9", seed, 3);
    judge_all("c_z=64,c=32", "n=32,b=2", seed, 3);
    judge_all("c_z=128,c=128", "n=33", seed, 3);
    /* More tiles a multiprocessor than are few, where there are six; and less tiles than those, shared by columns. */
    for (size_t i = 6; i < COUNT(widths); i++) judge_all(widths[i], "n=9,b=11", seed, 6);
    judge_all("c_z=64,c=128", "n=1", seed, 3);
    judge_all("c_z=64,c=128", "n=2", seed, 3);
}

/*
 * Widths whose finish streams its weights: with tiles of a block of its own (fewer than six), or one a warpgroup, where three
 * stages fit beside two, an odd number of them too, so that a warpgroup has none; one to three chunks of output channels, whole
 * and not; one to six blocks of k, whole and half; project by one to twelve blocks a tile.
 */
static void test_streamed(void **state) {
    static const struct {
        const char *widths, *rest;
    } cases[] = {
        { "c_z=256,c=256", "n=3" },
        { "c_z=256,c=256", "n=7,residual=1" },
        { "c_z=384,c=384", "n=3" },
        { "c_z=384,c=384", "n=7,residual=1" },
        { "c_z=256,c=384", "n=7" },
        { "c_z=384,c=256", "n=7,alias=input" },
        { "c_z=32,c=256", "n=9" },
        { "c_z=32,c=384", "n=9" },
        { "c_z=64,c=256", "n=9" },
        { "c_z=64,c=384", "n=9" },
        { "c_z=128,c=256", "n=9" },
        { "c_z=128,c=384", "n=9" },
        { "c_z=256,c=32", "n=9,variant=mean" },
        { "c_z=256,c=64", "n=9" },
        { "c_z=256,c=128", "n=9,residual=1,alias=both" },
        { "c_z=384,c=32", "n=9" },
        { "c_z=384,c=64", "n=9" },
        { "c_z=384,c=128", "n=9,mask=large,mask_dtype=fp32" },
        { "c_z=128,c=96", "n=9" },
        { "c_z=64,c=160", "n=9,residual=1" },
        { "c_z=384,c=32,c_out=8", "n=6" },
        { "c_z=128,c=128,c_out=384", "n=9,residual=1" },
        { "c_z=32,c=64,c_out=200", "n=65,residual=1" },
        { "c_z=384,c=384,c_out=128", "n=3" },
        { "c_z=64,c=32,c_out=64", "n=7,layout=padded,b=2" },
    };
    const uint64_t seed = test_seed(44);
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(cases); i++) judge_all(cases[i].widths, cases[i].rest, seed + i, 6);
    /* The formula takes ten seconds for each. */
    for (size_t i = 0; i < 4 && !is_slow(); i++) judge_every(6, cases[i].widths, "n=70,runs=3", seed);
}

/* Each size of contract's tiles, whole and ragged; rows of t with and without a rest; pitches of 8, 16, 32, 64. */
static void test_sizes(void **state) {
    static const char *const rests[] = { "n=1",  "n=2",   "n=7",   "n=8",   "n=31",  "n=33",  "n=63", "n=64",
                                         "n=65", "n=101", "n=129", "n=127", "n=128", "n=136", "n=151" };
    const uint64_t seed = test_seed(42);
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(rests) - (is_slow() ? 4 : 0); i++) judge_all("c_z=32,c=32", rests[i], seed, 6);
}

static void test_forms(void **state) {
    static const char *const rests[] = {
        "b=3,residual=1",
        "alias=input",
        "residual=1,alias=residual",
        "residual=1,alias=both,b=2",
        "layout=padded,residual=1",
        "layout=padded,b=2",
        "variant=mean",
        "variant=mean,residual=1,b=2",
        "variant=boltz",
        "variant=megafold",
        "biases=none",
        "mask=none",
        "mask=fractional,mask_dtype=fp64",
        "mask=random,mask_dtype=uint8,b=2",
        "mask=large,mask_dtype=fp32",
        "mask=row,mask_dtype=bf16",
        "mask=all,mask_dtype=fp16",
        "input=constant",
        "input=nan,b=2",
        "input=inf,b=2,residual=1",
        "weights=fp32,weight_layout=transposed",
        "weights=mixed,weight_layout=interleaved",
        "ln_eps=0.1,runs=3",
    };
    const uint64_t seed = test_seed(43);
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(rests); i++)
        judge_all(i % (is_slow() ? 4 : 2) ? "c_z=64,c=32,n=20" : "c_z=64,c=32,n=70", rests[i], seed + i, 6);
}

/*
 * One NaN or infinity in each tensor in turn: it reaches exactly what depends on it. Infinite weights give NaN there, whatever the
 * formula gives, since LayerNorm's bias is folded into the matrices (kernels.md).
 */
static void test_special_values(void **state) {
    static const char *const tensors[] = {
        "z",           "mask",        "residual",        "norm_in.weight", "norm_in.bias",    "a_proj.weight",
        "a_proj.bias", "a_gate.bias", "a_gate.weight",   "b_gate.bias",    "norm_out.weight", "norm_out.bias",
        "out.weight",  "out.bias",    "out_gate.weight", "out_gate.bias",
    };
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(tensors); i++)
        for (size_t t = 0; t < COUNT(types); t++) {
            char text[CASE_NAME_SIZE];
            if (is_slow() && (i / 2 + t) % COUNT(types)) continue;
            snprintf(text, sizeof text, "trimul(%s,direction=%s,b=2,n=9,c_z=32,c=32,residual=1)", types[t],
                     directions[i % 2]);
            judge_special(judge_context, text, tensors[i], (double)NAN);
            if (!strstr(tensors[i], "weight")) judge_special(judge_context, text, tensors[i], (double)INFINITY);
            setenv("EVO_KERNEL", "trimul:hopper/one-launch", 1);
            judge_special(judge_context, text, tensors[i], (double)(strstr(tensors[i], "weight") ? NAN : INFINITY));
            setenv("EVO_KERNEL", usual_kernels, 1);
        }
}

/*
 * Gates as closed as 2^-14 keep the relative accuracy of their type: the bounds of outputs and of a and b are relative to them. A
 * sigmoid that is only absolutely accurate fails here.
 */
static void test_closed_gates(void **state) {
    static const char *const gates[] = { "a_gate", "b_gate", "out_gate" };
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(gates); i++)
        for (size_t t = 0; t < COUNT(types); t++) {
            char text[CASE_NAME_SIZE], name[32];
            snprintf(text, sizeof text, "trimul(%s,direction=%s,n=9,c_z=32,c=32,ln_eps=1e-12)", types[t],
                     directions[i % 2]);
            struct evo_case c = judge_parse(judge_context, text, 45 + i);
            snprintf(name, sizeof name, "%s.weight", gates[i]);
            struct case_tensor *const weight = case_find(&c, name);
            snprintf(name, sizeof name, "%s.bias", gates[i]);
            struct case_tensor *const bias = case_find(&c, name);
            assert_true(weight != NULL && bias != NULL);
            for (int64_t e = 0; e < weight->count; e++) weight->values[e] = 0.0;
            /* exp(-9.7) is 2^-14; steps that bf16 holds */
            for (int64_t e = 0; e < bias->count; e++) bias->values[e] = -8.0 - 0.0625 * (double)(e % 28);
            judge_case(judge_context, &c);
            setenv("EVO_KERNEL", "trimul:hopper/one-launch", 1);
            judge_case(judge_context, &c);
            setenv("EVO_KERNEL", usual_kernels, 1);
            case_destroy(&c);
        }
}

/*
 * Masks 2^10 times what the descriptor expects, which the header says fp16 and tf32 hold, in both ops; of the outer product mean
 * with S that its scales take into account, and by both kernels that sum squares of masks.
 */
static void test_masks_beyond(void **state) {
    static const char *const texts[] = {
        "trimul(dtype=fp16,n=9,c_z=32,c=32,mask=fractional,mask_dtype=fp32)",
        "trimul(dtype=fp16,n=9,c_z=256,c=64,mask=fractional,mask_dtype=fp32,direction=incoming)",
        "trimul(dtype=fp32,compute=tf32,n=9,c_z=64,c=32,mask=fractional,mask_dtype=fp32)",
        "trimul(dtype=fp32,compute=tf32,n=9,c_z=128,c=256,mask=fractional,mask_dtype=fp32,residual=1)",
        "opm(dtype=fp16,s=20,n=9,c_m=64,c=32,c_z=64,mask=fractional,mask_dtype=fp32)",
        "opm(dtype=fp16,s=600,n=4,c_m=64,c=8,c_z=64,mask=fractional,mask_dtype=fp32)",
        "opm(dtype=fp32,compute=tf32,s=20,n=9,c_m=64,c=32,c_z=64,mask=fractional,mask_dtype=fp32)",
        "opm(dtype=fp32,compute=tf32,s=600,n=4,c_m=48,c=8,c_z=64,mask=fractional,mask_dtype=fp64)"
    };
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct evo_case c = judge_parse(judge_context, texts[i], 49 + i);
        struct case_tensor *const mask = case_find(&c, "mask");
        double most = 0.0;
        assert_non_null(mask);
        for (int64_t e = 0; e < mask->count; e++) most = fmax(most, mask->values[e]);
        assert_true(most > 0.0);
        for (int64_t e = 0; e < mask->count; e++) mask->values[e] *= 1024.0 / most;
        judge_case(judge_context, &c);
        if (strstr(texts[i], "c_z=32,c=32") || strstr(texts[i], "c_z=64,c=32,mask")) {
            setenv("EVO_KERNEL", "trimul:hopper/one-launch", 1);
            judge_case(judge_context, &c);
            setenv("EVO_KERNEL", usual_kernels, 1);
        }
        case_destroy(&c);
    }
}

/*
 * 2.25 N^2 c numbers where t lies in the output, 3.25 in place, in fp32 too, where LayerNorm(z) takes half a one. To N 255 what of
 * t's rows comes after whole blocks of 64 positions may take more than that at the least pitch, unless it lies in the output too:
 * in fp32, and where N is a multiple of 8.
 */
static void test_workspace(void **state) {
    static const int64_t widths[] = { 32, 64, 128, 256, 384 };
    (void)state;
    if (!has_tier) skip();
    static const evo_dtype dtypes[] = { EVO_BF16, EVO_FP16, EVO_FP32 };
    static const evo_compute computes[] = { EVO_COMPUTE_BF16, EVO_COMPUTE_FP16, EVO_COMPUTE_TF32 };
    for (size_t t = 0; t < COUNT(dtypes); t++)
        for (size_t w = 0; w < COUNT(widths); w++)
            for (int64_t n = 128; n < 1100; n += n < 300 ? 1 : 37)
                for (int in_place = 0; in_place < 2; in_place++) {
                    evo_trimul_desc d = usual();
                    evo_plan *plan = NULL;
                    evo_plan_info info = EVO_PLAN_INFO_INIT;
                    d.n = n;
                    d.c_z = d.c = widths[w];
                    d.z.dtype = d.out.dtype = dtypes[t];
                    d.compute = computes[t];
                    d.alias = in_place ? EVO_ALIAS_INPUT : EVO_ALIAS_NONE;
                    OK(evo_trimul_plan_create(judge_context, &d, &plan));
                    OK(evo_plan_get_info(plan, &info));
                    evo_plan_destroy(plan);
                    const int is_wide = dtypes[t] == EVO_FP32, rest_in_out = !in_place && n % 8 == 0;
                    const double numbers =
                        (double)info.workspace_size / (is_wide ? 4 : 2) / (double)(n * n * widths[w]);
                    const double least = (double)(2 * ((n + 7) / 8 * 8) + (n % 64 + 7) / 8 * 8) / (double)n;
                    const double most = (n < 256 && !is_wide && !rest_in_out && least > 2.25 ? least : 2.25) + in_place;
                    if (numbers > most + 0.002) /* and a few bytes for fp16 */
                        fail_msg("n %lld, c %lld: %f n^2 c numbers, expected %f", (long long)n, (long long)widths[w],
                                 numbers, most);
                }
}

/* Small modules in one launch: all widths; rows, columns and k that a block has in part. */
static void test_small(void **state) {
    static const struct {
        const char *widths, *rest;
    } cases[] = {
        { "c_z=64,c=32", "n=32,b=2" },
        { "c_z=32,c=32", "n=31,b=3,mask=random,mask_dtype=uint8" },
        { "c_z=64,c=32", "n=4,b=3,residual=1" },
        { "c_z=32,c=32", "n=3,b=2,mask=fractional,mask_dtype=fp64" },
        { "c_z=64,c=32", "n=1" },
        { "c_z=128,c=32", "n=30" },
        { "c_z=128,c=32", "n=7,residual=1,b=2" },
        { "c_z=64,c=32", "n=2,variant=boltz" },
        { "c_z=64,c=32", "n=17,residual=1,alias=residual" },
        { "c_z=32,c=32", "n=16,layout=padded,residual=1,b=2" },
        { "c_z=64,c=32", "n=9,biases=none" },
        { "c_z=64,c=32", "n=9,mask=none,variant=megafold" },
        { "c_z=64,c=32", "n=13,mask=large,mask_dtype=fp32" },
        { "c_z=32,c=32", "n=9,mask=row,mask_dtype=bf16" },
        { "c_z=64,c=32", "n=9,mask=all,mask_dtype=fp16" },
        { "c_z=64,c=32", "n=9,input=constant" },
        { "c_z=64,c=32", "n=9,input=nan,b=2" },
        { "c_z=64,c=32", "n=9,input=inf,b=2,residual=1" },
        { "c_z=64,c=32", "n=9,weights=mixed,weight_layout=interleaved,runs=3" },
    };
    const uint64_t seed = test_seed(46);
    (void)state;
    if (!has_tier) skip();
    setenv("EVO_KERNEL", "trimul:hopper/one-launch", 1);
    for (size_t i = 0; i < COUNT(cases); i++) judge_all(cases[i].widths, cases[i].rest, seed + i, 6);
    judge_text(judge_context, "trimul(dtype=bf16,n=9,c_z=64,c=32,variant=mean)", seed);
    judge_text(judge_context, "trimul(dtype=fp16,n=9,c_z=32,c=32,variant=mean,residual=1)", seed);
    /* t's eps at the scale that t has */
    judge_text(judge_context,
               "trimul(dtype=fp16,n=9,c_z=64,c=32,mask=fractional,mask_dtype=fp32,mask_max=1000,ln_eps=1,biases=none)",
               seed);
    for (size_t t = 0; t < COUNT(types); t++) {
        char text[CASE_NAME_SIZE];
        snprintf(text, sizeof text, "trimul(%s,b=3,n=9,c_z=64,c=32,residual=1)", types[t]);
        judge_split(judge_context, text);
        judge_graph(judge_context, text);
    }
    setenv("EVO_KERNEL", usual_kernels, 1);
}

/* Scales leave room for masks as promised: none without a mask, or what is stored in 16 bits would be subnormal. */
static void test_mask_max_without_a_mask(void **state) {
    static const char *const texts[] = { "opm(%s,n=9,s=9,c_m=64,c=32,c_z=16,mask=none,mask_max=1e9)",
                                         "trimul(%s,n=9,c_z=64,c=64,mask=none,mask_max=1e9)" };
    const uint64_t seed = test_seed(47);
    (void)state;
    if (!has_tier) skip();
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t i = 0; i < COUNT(texts); i++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, texts[i], types[t]);
            judge_text(judge_context, text, seed);
        }
    setenv("EVO_KERNEL", "trimul:hopper/one-launch", 1);
    judge_text(judge_context, "trimul(dtype=fp16,n=9,c_z=64,c=32,mask=none,mask_max=1e9)", seed);
    setenv("EVO_KERNEL", usual_kernels, 1);
}

static void test_batches_and_graphs(void **state) {
    (void)state;
    if (!has_tier) skip();
    for (size_t t = 0; t < COUNT(types); t++) {
        char text[CASE_NAME_SIZE];
        snprintf(text, sizeof text, "trimul(%s,b=3,n=9,c_z=64,c=64,residual=1)", types[t]);
        judge_split(judge_context, text);
        judge_graph(judge_context, text);
    }
}

/* --- The outer product mean --- */

static evo_opm_desc usual_opm(void) {
    evo_opm_desc d = EVO_OPM_DESC_INIT;
    d.s = 40;
    d.n = 70;
    d.c_m = 64;
    d.c = 32;
    d.c_z = 128;
    d.m.dtype = d.out.dtype = EVO_BF16;
    d.mask.dtype = EVO_FP32;
    d.compute = EVO_COMPUTE_BF16;
    d.kernel = "hopper";
    return d;
}

static evo_status try_opm(const evo_opm_desc *d) {
    evo_plan *plan = NULL;
    const evo_status status = evo_opm_plan_create(judge_context, d, &plan);
    evo_plan_destroy(plan);
    return status;
}

static void refuse_opm(evo_opm_desc d, const char *word) {
    REFUSED(try_opm(&d), EVO_ERROR_UNSUPPORTED, "hopper", word);
}

static void test_opm_elsewhere(void **state) {
    evo_opm_desc d = usual_opm();
    (void)state;
    if (has_tier) skip();
    refuse_opm(d, "sm_90a");
}

static void test_opm_refused_types(void **state) {
    evo_opm_desc d = usual_opm();
    (void)state;
    if (!has_tier) skip();
    OK(try_opm(&d));
    d.compute = EVO_COMPUTE_FP32;
    refuse_opm(d, "fp32");
    d.compute = EVO_COMPUTE_TF32;
    refuse_opm(d, "out is bf16");
    d.compute = EVO_COMPUTE_FP16;
    refuse_opm(d, "out is bf16");
    d.out.dtype = EVO_FP32;
    OK(try_opm(&d));
    d.compute = EVO_COMPUTE_TF32;
    OK(try_opm(&d));
    d.residual.dtype = EVO_FP16;
    refuse_opm(d, "residual is fp16");
    d = usual_opm();
    d.out.dtype = EVO_FP32;
    refuse_opm(d, "out is fp32");
    d = usual_opm();
    d.residual.dtype = EVO_FP32;
    refuse_opm(d, "residual is fp32");
}

static void test_opm_refused_sizes(void **state) {
    evo_opm_desc d = usual_opm();
    (void)state;
    if (!has_tier) skip();
    d.c = 65;
    refuse_opm(d, "c to 64");
    d = usual_opm();
    d.c_z = 100;
    refuse_opm(d, "multiples of 8");
    d = usual_opm();
    d.c_z = 392;
    refuse_opm(d, "to 384");
    d = usual_opm();
    d.c_m = 400;
    refuse_opm(d, "c_m to 384");
    d = usual_opm();
    d.s = 0;
    refuse_opm(d, "s from 1");
    d = usual_opm();
    d.n = (1 << 20) + 1;
    refuse_opm(d, "2^20");
    d = usual_opm();
    d.divide = EVO_DIVIDE_BEFORE;
    d.count_min = 0.0;
    refuse_opm(d, "count_min");
    d = usual_opm();
    d.workspace_limit = 1;
    REFUSED(try_opm(&d), EVO_ERROR_WORKSPACE_LIMIT, "hopper", "at least");
}

static void test_opm_refused_layouts(void **state) {
    static const int64_t narrow[4] = { 70 * 70 * 132, 70 * 132, 132, 1 },
                         apart[4] = { 70 * 70 * 256, 70 * 256, 256, 2 }, far[3] = { 1, (int64_t)1 << 31, 1 },
                         long_way[3] = { 1, (int64_t)1 << 26, 1 };
    evo_opm_desc d = usual_opm();
    (void)state;
    if (!has_tier) skip();
    memcpy(d.mask.strides, far, sizeof far);
    refuse_opm(d, "2^31");
    memcpy(d.mask.strides, long_way, sizeof long_way);
    refuse_opm(d, "2^31");
    d = usual_opm();
    d.out.alignment = 8;
    refuse_opm(d, "out is not");
    d = usual_opm();
    memcpy(d.out.strides, narrow, sizeof narrow);
    refuse_opm(d, "out is not");
    d = usual_opm();
    d.residual.dtype = EVO_BF16;
    memcpy(d.residual.strides, apart, sizeof apart);
    refuse_opm(d, "residual is not");
}

/* a and b, two bytes each, and no more than a hundredth beside. */
static void test_opm_workspace(void **state) {
    static const evo_compute computes[] = { EVO_COMPUTE_BF16, EVO_COMPUTE_FP16, EVO_COMPUTE_TF32 };
    static const evo_dtype dtypes[] = { EVO_BF16, EVO_FP16, EVO_FP32 };
    (void)state;
    if (!has_tier) skip();
    for (size_t t = 0; t < COUNT(computes); t++) {
        evo_opm_desc d = usual_opm();
        evo_plan *plan = NULL;
        evo_plan_info info = EVO_PLAN_INFO_INIT;
        d.s = 128;
        d.n = 256;
        d.compute = computes[t];
        d.m.dtype = d.out.dtype = dtypes[t];
        OK(evo_opm_plan_create(judge_context, &d, &plan));
        OK(evo_plan_get_info(plan, &info));
        evo_plan_destroy(plan);
        assert_true(info.workspace_size <= (size_t)(4 * d.s * d.n * d.c) * 101 / 100);
    }
}

/* A case of all types; on slow devices one of them, in turn. */
static void judge_opm(const char *widths, const char *rest, uint64_t seed) {
    static size_t turn = 0;
    turn++;
    for (size_t k = 0; k < COUNT(types); k++) {
        char text[CASE_NAME_SIZE];
        if (is_slow() && (k + turn) % COUNT(types)) continue;
        snprintf(text, sizeof text, "opm(%s,%s,%s)", types[k], widths, rest);
        judge_text(judge_context, text, seed);
    }
}

/* Slabs of 64 and 128 s and chunks of four, whole and ragged; tiles of 64 x 4 pairs likewise; and every form. */
static void test_opm_cases(void **state) {
    static const char *const rests[] = {
        "s=1,n=2",
        "s=16,n=1",
        "s=17,n=4",
        "s=64,n=5",
        "s=65,n=5",
        "s=128,n=5",
        "s=129,n=3",
        "s=512,n=2",
        "s=513,n=6,b=2",
        "s=1100,n=3",
        "s=24,n=64",
        "s=24,n=65,residual=1",
        "s=20,n=9,b=3,residual=1",
        "s=20,n=9,layout=padded,residual=1",
        "s=20,n=9,variant=boltz",
        "s=20,n=9,variant=helixfold",
        "s=20,n=9,biases=none",
        "s=20,n=9,mask=none,b=2",
        "s=20,n=9,mask=fractional,mask_dtype=fp64",
        "s=21,n=9,mask=random,mask_dtype=uint8,b=2",
        "s=31,n=9,mask=large,mask_dtype=fp32",
        "s=70,n=9,mask=large,mask_dtype=fp32",
        "s=33,n=9,mask=random,mask_dtype=bf16",
        "s=20,n=9,mask=all,mask_dtype=fp16",
        "s=20,n=9,input=nan,b=2",
        "s=20,n=9,weights=mixed,weight_layout=interleaved",
        "s=20,n=9,ln_eps=0.1,runs=3",
    };
    const uint64_t seed = test_seed(44);
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(rests); i++) judge_opm("c_m=64,c=32,c_z=128", rests[i], seed + i);
}

/*
 * Widths: each instance of project and one that tier tensor projects; one side of project in one half and in two, odd c; one and
 * two blocks of c_b; both tiles of z, whole and ragged, one to three groups of them.
 */
static void test_opm_widths(void **state) {
    static const struct {
        const char *widths, *rest;
    } cases[] = {
        { "c_m=128,c=32,c_z=128", "s=70,n=5" },
        { "c_m=256,c=32,c_z=128", "s=70,n=5,b=2" },
        { "c_m=384,c=32,c_z=128", "s=70,n=5" },
        { "c_m=32,c=32,c_z=128", "s=70,n=5" },
        { "c_m=384,c=64,c_z=384", "s=130,n=3,residual=1" },
        { "c_m=256,c=64,c_z=64", "s=40,n=5,mask=random" },
        { "c_m=128,c=40,c_z=40", "s=70,n=5,residual=1" },
        { "c_m=64,c=13,c_z=136", "s=20,n=5,variant=helixfold" },
        { "c_m=64,c=33,c_z=8", "s=20,n=5" },
        { "c_m=64,c=1,c_z=72", "s=70,n=5" },
        { "c_m=64,c=8,c_z=256", "s=20,n=65" },
    };
    const uint64_t seed = test_seed(45);
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(cases); i++) judge_opm(cases[i].widths, cases[i].rest, seed + i);
}

/* Small modules in one launch: the largest, and rows, i, j and channels of z that a block has in part. */
static void test_opm_small(void **state) {
    static const char *const rests[] = {
        "s=8,n=32,c_z=64,b=2",
        "s=8,n=32,c_z=8,mask=all",
        "s=1,n=1,c_z=8,mask=large,mask_dtype=fp32",
        "s=5,n=19,c_z=40,residual=1,variant=helixfold",
        "s=7,n=31,c_z=72,layout=padded,residual=1,mask=large,mask_dtype=fp32",
        "s=3,n=17,c_z=16,mask=none,variant=boltz,b=3",
        "s=8,n=16,c_z=16,mask=fractional,mask_dtype=fp64,biases=none",
        "s=8,n=5,c_z=16,input=nan,b=2",
        "s=4,n=9,c_z=24,weights=mixed,weight_layout=interleaved,runs=3",
        "s=4,n=9,c_z=24,mask=random,mask_dtype=uint8",
    };
    const uint64_t seed = test_seed(48);
    (void)state;
    if (!has_tier) skip();
    setenv("EVO_KERNEL", "opm:hopper/weight-first", 1);
    for (size_t i = 0; i < COUNT(rests); i++) judge_opm("c_m=64,c=32", rests[i], seed + i);
    judge_split(judge_context, "opm(dtype=bf16,b=3,s=5,n=9,c_m=64,c=32,c_z=16,residual=1)");
    judge_graph(judge_context, "opm(dtype=fp16,b=3,s=5,n=9,c_m=64,c=32,c_z=16,residual=1)");
    setenv("EVO_KERNEL", usual_kernels, 1);
}

/* m in fp16, residual and output in fp32: the kernel of one launch writes no such output, all others do. */
static void test_opm_wide_output(void **state) {
    static const char *const rests[] = { "s=4,n=16", "s=8,n=32,b=2,residual=1", "s=9,n=17,residual=1", "s=70,n=5" };
    const uint64_t seed = test_seed(49);
    (void)state;
    if (!has_tier) skip();
    setenv("EVO_KERNEL", "opm:hopper", 1);
    for (size_t i = 0; i < COUNT(rests); i++)
        for (int tf32 = 0; tf32 <= 1; tf32++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text,
                     "opm(dtype=fp16,residual_dtype=fp32,out_dtype=fp32,compute=%s,c_m=64,c=32,c_z=16,%s)",
                     tf32 ? "tf32" : "fp16", rests[i]);
            judge_text(judge_context, text, seed + i);
        }
    setenv("EVO_KERNEL", usual_kernels, 1);
}

/* The order that the tier takes if nobody asks for one. */
static void test_opm_orders(void **state) {
    static const struct {
        int64_t batch, s, n, c;
        const char *order;
    } cases[] = {
        { 1, 8, 9, 32, "hopper/weight-first" },   /* one launch */
        { 100, 8, 32, 32, "hopper/outer-first" }, /* too many blocks of it */
        { 1, 8, 64, 32, "hopper/weight-first" },  /* few pairs */
        { 1, 9, 64, 32, "hopper/outer-first" },   { 1, 8, 65, 32, "hopper/outer-first" },
        { 1, 8, 256, 40, "hopper/weight-first" }, /* two blocks of c_b */
        { 1, 9, 256, 40, "hopper/outer-first" },
    };
    (void)state;
    if (!has_tier) skip();
    for (size_t i = 0; i < COUNT(cases); i++) {
        evo_opm_desc d = usual_opm();
        evo_plan *plan = NULL;
        evo_plan_info info = EVO_PLAN_INFO_INIT;
        d.batch = cases[i].batch;
        d.s = cases[i].s;
        d.n = cases[i].n;
        d.c = cases[i].c;
        OK(evo_opm_plan_create(judge_context, &d, &plan));
        OK(evo_plan_get_info(plan, &info));
        assert_string_equal(info.kernel, cases[i].order);
        evo_plan_destroy(plan);
    }
}

/* Tiles whose rows are not their columns: tier tensor projects them, and fp16's squares of masks have a kernel of their own. */
static void test_opm_limits(void **state) {
    (void)state;
    if (!has_tier) skip();
    judge_limits(judge_context, "opm(dtype=bf16,s=20,n=20,c_m=64,c=32,c_z=64,mask=random)");
    judge_limits(judge_context, "opm(dtype=fp16,s=20,n=20,c_m=64,c=32,c_z=64,mask=random,b=2)");
}

static void test_opm_batches_and_graphs(void **state) {
    (void)state;
    if (!has_tier) skip();
    for (size_t t = 0; t < COUNT(types); t++) {
        char text[CASE_NAME_SIZE];
        snprintf(text, sizeof text, "opm(%s,b=3,s=20,n=9,c_m=64,c=32,c_z=128,residual=1)", types[t]);
        judge_split(judge_context, text);
        judge_graph(judge_context, text);
    }
}

static int setup(void **state) {
    setenv("EVO_KERNEL", usual_kernels, 1);
    judge_setup(state);
    has_tier = test_has_hopper(judge_context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_refused_types),
        cmocka_unit_test(test_refused_sizes),
        cmocka_unit_test(test_refused_layouts),
        cmocka_unit_test(test_small_refusals),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_streamed),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_closed_gates),
        cmocka_unit_test(test_masks_beyond),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_mask_max_without_a_mask),
        cmocka_unit_test(test_batches_and_graphs),
        cmocka_unit_test(test_opm_elsewhere),
        cmocka_unit_test(test_opm_refused_types),
        cmocka_unit_test(test_opm_refused_sizes),
        cmocka_unit_test(test_opm_refused_layouts),
        cmocka_unit_test(test_opm_workspace),
        cmocka_unit_test(test_opm_cases),
        cmocka_unit_test(test_opm_widths),
        cmocka_unit_test(test_opm_small),
        cmocka_unit_test(test_opm_wide_output),
        cmocka_unit_test(test_opm_orders),
        cmocka_unit_test(test_opm_limits),
        cmocka_unit_test(test_opm_batches_and_graphs),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    if (strcmp(test_device(), "cpu") == 0) {
        fprintf(stderr, "skipped: tier hopper is one of GPUs\n");
        return TEST_SKIPPED;
    }
    return cmocka_run_group_tests_name("hopper", tests, setup, judge_teardown);
}
