/* test_opm.c: the outer product mean, every parameter and edge of docs/ops.md, judged by naive.c. */
#include "judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Sizes that break kernels: N and S around tiles and warps, odd channels, the published ones. */
static void test_sizes(void **state) {
    static const char *const texts[] = {
        "opm(n=1,s=1)",
        "opm(n=2,s=1)",
        "opm(n=7,s=3)",
        "opm(n=31,s=2,c_m=8,c=4,c_z=5)",
        "opm(n=33,s=5)",
        "opm(n=100,s=2,c_m=8,c=4,c_z=6)",
        "opm(n=101,s=1,c_m=4,c=3,c_z=2)",
        "opm(n=127,s=1,c_m=4,c=2,c_z=3)",
        "opm(n=129,s=3,c_m=4,c=2,c_z=2)",
        "opm(b=3,n=5,s=4)",
        "opm(n=4,s=200,c_m=8,c=4,c_z=4)",
        "opm(n=3,s=3,c_m=256,c=32,c_z=128)",
        "opm(b=2,s=8,n=9,c_m=64,c=32,c_z=64)",
        "opm(n=4,s=2,c=16)",
        "opm(n=4,s=2,c=24,c_z=7)",
        "opm(n=3,s=2,c=40)",
        "opm(n=2,s=2,c=64,c_z=3)",
        "opm(n=2,s=2,c=96,c_z=1)",
        "opm(n=2,s=2,c=128,c_z=2)",
        "opm(n=4,s=2,c_m=1)",
        "opm(n=4,s=2,c_m=3,c=1,c_z=1)",
        "opm(b=0,n=4,s=2,residual=1)",
        "opm(n=0,s=2,b=2)",
        "opm(s=0,n=5,b=2)",
        "opm(s=0,n=5,variant=alphafold2,residual=1)",
    };
    (void)state;
    judge_texts(judge_context, texts, COUNT(texts), test_seed(11));
}

/*
 * What matrix units divide otherwise: blocks of 64 x 4 pairs, 128 channels of z and 32 of c_b, steps of 64 and chunks of 64 to
 * 512 sequences, both orders, blocks of 64 channels c_m. Each in the modes of matrix units.
 */
static void test_units(void **state) {
    static const char *const sizes[] = {
        "n=65,s=9,c_m=8,c=4,c_z=6",
        "n=5,s=65,c_m=16,c=8,c_z=16,mask=fractional",
        "n=3,s=300,c_m=8,c=8,c_z=8",
        "n=2,s=520,c_m=8,c=4,c_z=4,mask=row",
        "n=3,s=40,c_m=64,c=32,c_z=128",
        "n=3,s=70,c_m=24,c=40,c_z=136,mask=none",
        "n=2,s=33,c_m=8,c=128,c_z=16",
        "n=2,s=3,c_m=384,c=16,c_z=24",
        "n=2,s=9,c_m=321,c=8,c_z=384",
        "b=3,n=7,s=6,c_m=64,c=32,c_z=64,residual=1",
        "b=2,n=66,s=2,c_m=8,c=5,c_z=7",
        "n=9,s=12,c_m=65,c=16,c_z=20,mask=large",
        "n=6,s=40,c=7,divide=before,count_min=0,count_eps=0,mask=column",
    };
    static const char *const modes[] = { "dtype=bf16",
                                         "dtype=fp16",
                                         "dtype=fp32",
                                         "dtype=fp32,compute=tf32",
                                         "dtype=fp32,compute=bf16",
                                         "dtype=fp32,compute=fp16" };
    uint64_t seed = test_seed(18);
    int number = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (size_t m = 0; m < (i % 3 ? 4 : COUNT(modes)); m++) {
            char text[CASE_NAME_SIZE];
            if (!test_takes(number++)) continue;
            snprintf(text, sizeof text, "opm(%s,%s)", sizes[i], modes[m]);
            judge_text(judge_context, text, seed + i);
        }
}

/* A count of 16-bit numbers would stop at 256; sums of 16-bit numbers would stop sooner. */
static void test_long_counts(void **state) {
    (void)state;
    judge_text(judge_context, "opm(n=2,s=700,c_m=8,c=2,c_z=3,mask=random,dtype=bf16)", test_seed(19));
    judge_text(judge_context, "opm(n=2,s=700,c_m=8,c=2,c_z=3,mask=fractional,dtype=fp16)", 20);
}

static void test_variants(void **state) {
    uint64_t seed = test_seed(12);
    (void)state;
    for (int i = 0; evo_opm_variant(i) != NULL; i++) {
        static const char *const rests[] = {
            "mask=random,n=9,s=6",
            "mask=none,n=9,s=6",
            "mask=row,residual=1,n=8",
            "mask=column,n=8",
            "mask=batch,b=2,residual=1",
            "mask=all,dtype=fp64",
            "mask=fractional,n=9,dtype=bf16",
            "mask=large,n=9,dtype=fp16",
            "mask=random,mask_dtype=uint8,n=9",
        };
        for (size_t k = 0; k < COUNT(rests); k++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, "opm(variant=%s,%s)", evo_opm_variant(i), rests[k]);
            judge_text(judge_context, text, seed);
        }
    }
}

/* Every subset of the biases; every mix of the parameters that variants set. */
static void test_parameters(void **state) {
    static const char *const names[] = { "norm", "a", "b", "out" };
    uint64_t seed = test_seed(13);
    (void)state;
    for (unsigned subset = 0; subset < 16; subset++) {
        char text[CASE_NAME_SIZE] = "opm(n=5,divide=after,biases=";
        if (subset == 0) strcat(text, "none");
        for (int i = 0, some = 0; i < 4; i++)
            if ((subset >> i & 1) != 0) {
                strcat(text, some++ > 0 ? "+" : "");
                strcat(text, names[i]);
            }
        strcat(text, ")");
        judge_text(judge_context, text, seed);
    }
    static const char *const texts[] = {
        "opm(n=6,divide=before,mask_sides=a,count_eps=0.5,count_min=0)",
        "opm(n=6,mask=none,mask_max=1e9,dtype=fp16)",
        "opm(n=6,divide=after,mask_sides=a,count_eps=0,count_min=2)",
        "opm(n=6,divide=after,mask_sides=both,count_eps=0.25,count_min=3)",
        "opm(n=6,divide=before,mask_sides=both,count_eps=1e-3,count_min=1e-5,mask=row)",
        "opm(n=6,divide=after,count_eps=0,count_min=0,mask=column,residual=1)", /* by 0 */
        "opm(n=6,divide=after,count_eps=0,count_min=0,mask=column,mask_sides=a)",
        "opm(n=6,ln_eps=0.1)",
        "opm(n=6,ln_eps=0)",
        "opm(n=6,divide=before,mask=none,mask_sides=a)",
        "opm(n=6,divide=after,mask=none,count_eps=1)",
    };
    judge_texts(judge_context, texts, COUNT(texts), seed);
}

static void test_inputs(void **state) {
    static const char *const texts[] = {
        "opm(input=shifted,n=8)",
        "opm(input=shifted,n=8,dtype=fp64)",
        "opm(input=cauchy,n=8)",
        "opm(input=cauchy,n=8,dtype=fp64,variant=alphafold2)",
        "opm(input=constant,n=8)",
        "opm(input=constant,n=8,dtype=bf16)",
        "opm(input=nan,n=8,b=2,mask=none)",
        "opm(input=nan,n=8,b=2,residual=1)",
        "opm(input=inf,n=8,b=2)",
        "opm(input=inf,n=8,dtype=fp16,variant=helixfold)",
    };
    (void)state;
    judge_texts(judge_context, texts, COUNT(texts), test_seed(14));
}

/* One NaN or infinity in each tensor in turn. */
static void test_special_values(void **state) {
    static const char *const tensors[] = { "m",      "mask",     "residual", "norm.weight", "norm.bias", "a.weight",
                                           "a.bias", "b.weight", "b.bias",   "out.weight",  "out.bias" };
    static const char *const variants[] = { "mean", "alphafold2", "helixfold" };
    (void)state;
    for (size_t i = 0; i < COUNT(tensors); i++)
        for (size_t v = 0; v < COUNT(variants); v++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, "opm(variant=%s,b=2,n=5,residual=1)", variants[v]);
            judge_special(judge_context, text, tensors[i], (double)NAN);
            judge_special(judge_context, text, tensors[i], (double)-INFINITY);
        }
}

static double tiny_mask(int64_t s, int64_t i) {
    (void)s, (void)i;
    return 0x1p-56; /* products of two are normal numbers of fp32, so kernels that do not scale have their digits */
}

/* Masks of any size, alike or not, in fp32: whoever multiplies halves has to scale them. */
static void test_masks(void **state) {
    static double (*const factors[])(int64_t s,
                                     int64_t i) = { tiny_mask,           judge_huge_mask, judge_mask_by_column,
                                                    judge_one_huge_mask, judge_nan_mask,  judge_infinite_mask };
    static const char *const variants[] = { "mean", "mean,divide=before,count_min=0,count_eps=0", "helixfold",
                                            "megafold" };
    enum {
        BATCH = 2,
        S = 12,
        N = 9
    };
    uint64_t seed = test_seed(22);
    (void)state;
    for (size_t f = 0; f < COUNT(factors); f++)
        for (size_t v = 0; v < COUNT(variants); v++) {
            char text[CASE_NAME_SIZE];
            struct case_outcome outcome;
            if (!test_takes_share((int)(f + v), 3)) continue;
            snprintf(text, sizeof text,
                     "opm(variant=%s,b=%d,s=%d,n=%d,c_m=24,c=24,c_z=20,dtype=fp32,mask_dtype=fp32,mask=fractional,"
                     "biases=norm+a+b)",
                     variants[v], BATCH, S, N);
            struct evo_case c = judge_parse(judge_context, text, seed);
            judge_scale_mask(&c, BATCH, S, N, factors[f]);
            c.hard = true;
            if (judge_takes(judge_context, &c)) {
                double *got = judge_run(judge_context, &c, &outcome);
                judge_output(&c, outcome.compute, got);
                free(got);
            }
            case_destroy(&c);
        }
}

/*
 * Masks whose residues want different powers of two, under limits that make tiles: what a tile's residues are divided by and
 * multiplied by again is their own. The CPU's kernel fits such a limit too.
 */
static void test_masks_of_tiles(void **state) {
    static const char *const texts[] = {
        "opm(b=2,s=12,n=60,c_m=24,c=24,c_z=20,dtype=fp32,mask_dtype=fp32,mask=fractional,workspace_limit=130000)",
        "opm(b=2,s=12,n=60,c_m=24,c=24,c_z=20,dtype=fp32,mask_dtype=fp32,mask=fractional,workspace_limit=130000,"
        "variant=helixfold)",
    };
    uint64_t seed = test_seed(23);
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct evo_case c = judge_parse(judge_context, texts[i], seed);
        judge_scale_mask(&c, 2, 12, 60, judge_mask_by_column);
        c.hard = true;
        if (judge_takes(judge_context, &c)) judge_case(judge_context, &c);
        case_destroy(&c);
    }
}

static void test_layouts(void **state) {
    static const char *const layouts[] = { "contiguous", "padded",   "offset", "transposed",
                                           "broadcast",  "negative", "slice" };
    static const char *const weights[] = { "contiguous",        "transposed",  "halves",
                                           "halves_transposed", "interleaved", "padded" };
    static const char *const dtypes[] = { "fp64", "fp32", "bf16", "fp16" };
    uint64_t seed = test_seed(15);
    (void)state;
    for (size_t l = 0; l < COUNT(layouts); l++)
        for (size_t w = 0; w < COUNT(weights); w++) {
            char text[CASE_NAME_SIZE];
            const char *dtype = dtypes[(l + w) % 4];
            snprintf(text, sizeof text,
                     "opm(b=2,n=5,s=3,c_m=7,c=3,c_z=5,residual=1,layout=%s,weight_layout=%s,dtype=%s)", layouts[l],
                     weights[w], dtype);
            judge_text(judge_context, text, seed);
        }
    for (size_t l = 0; l < COUNT(layouts); l++) {
        char text[CASE_NAME_SIZE];
        if (strcmp(layouts[l], "broadcast") == 0)
            continue; /* an output cannot repeat, so it cannot be such a residual */
        snprintf(text, sizeof text, "opm(b=2,n=5,residual=1,alias=residual,layout=%s)", layouts[l]);
        judge_text(judge_context, text, seed);
    }
}

static void test_types(void **state) {
    static const char *const dtypes[] = { "fp64", "fp32", "bf16", "fp16" };
    uint64_t seed = test_seed(16);
    (void)state;
    for (size_t t = 0; t < COUNT(dtypes); t++)
        for (size_t w = 0; w < COUNT(dtypes); w++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, "opm(n=6,dtype=%s,weights=%s,mask_dtype=%s,residual=1)", dtypes[t], dtypes[w],
                     dtypes[(t + w) % 4]);
            judge_text(judge_context, text, seed);
        }
    static const char *const texts[] = {
        "opm(n=6,dtype=fp32,weights=mixed,mask_dtype=uint8)",
        "opm(n=6,dtype=bf16,weights=mixed,mask_dtype=uint8)",
        "opm(n=6,dtype=fp16,weights=fp64,compute=fp32)",
        "opm(n=6,dtype=fp32,compute=fp64)",
        "opm(n=6,dtype=fp32,compute=fp32_strict)",
        "opm(n=6,dtype=fp32,compute=tf32)",
        "opm(n=6,dtype=fp32,compute=bf16)",
        "opm(n=6,dtype=fp32,compute=fp16)",
    };
    judge_texts(judge_context, texts, COUNT(texts), seed);
}

/* Everything at once, at random. */
static void random_text(struct case_random *random, char *text, size_t size) {
    judge_start(text, size, "opm");
    judge_key(text, size, "variant",
              PICK(random, "alphafold2", "alphafold3", "boltz", "helixfold", "megafold", "mean"));
    judge_key(text, size, "b", PICK(random, "1", "1", "2", "3"));
    judge_key(text, size, "n", PICK(random, "1", "2", "3", "7", "12", "17"));
    judge_key(text, size, "s", PICK(random, "1", "2", "3", "8", "20"));
    judge_key(text, size, "c_m", PICK(random, "1", "5", "8", "16", "33"));
    judge_key(text, size, "c", PICK(random, "1", "4", "5", "8"));
    judge_key(text, size, "c_z", PICK(random, "1", "6", "8", "11"));
    judge_common(random, text, size);
    if (strstr(text, "layout=broadcast") != NULL)
        judge_key(text, size, "residual", "1"); /* an output cannot repeat, so it cannot be such a residual */
    else
        judge_key(text, size, "residual", PICK(random, "0", "1", "1,alias=residual"));
    judge_types(random, text, size);
    judge_end(text, size);
}

static void test_random(void **state) {
    (void)state;
    judge_random(judge_context, random_text, "opm texts", test_seed(17), test_scaled(1500));
}

static void test_random_limits(void **state) {
    (void)state;
    judge_random_limits(judge_context, random_text, "opm limits", test_seed(24), test_scaled(200));
}

/* Equality is asked of fp64 outputs, where the device has them: they show the last bit of every sum. */
static void test_batches(void **state) {
    (void)state;
    judge_split(judge_context, "opm(b=3,n=9,s=6,residual=1,dtype=fp64)");
    judge_split(judge_context, "opm(b=3,n=9,s=6,dtype=bf16,mask=batch,layout=padded)");
    judge_split(judge_context, "opm(b=3,n=7,s=2,dtype=fp64,variant=helixfold,layout=transposed)");
    judge_split(judge_context, "opm(b=3,n=7,s=33,dtype=fp32,mask=large,layout=padded)");
}

static void test_repeats(void **state) {
    (void)state;
    judge_text(judge_context, "opm(b=2,n=17,s=9,runs=4,residual=1,dtype=fp64)", 1);
    judge_text(judge_context, "opm(b=2,n=17,s=9,runs=4,dtype=fp16,variant=alphafold3)", 1);
    judge_text(judge_context, "opm(b=2,n=67,s=40,runs=4,dtype=fp32,variant=alphafold2)", 1);
}

static void test_threads(void **state) {
    (void)state;
    judge_threads(judge_context, "opm(b=2,n=19,s=7,residual=1,dtype=fp64)");
    judge_threads(judge_context, "opm(b=1,n=5,s=7,dtype=bf16,variant=alphafold2)");
    judge_threads(judge_context, "opm(b=1,n=1,s=1,dtype=fp64)");
}

static void test_limits(void **state) {
    static const char *const texts[] = {
        "opm(b=2,n=19,s=7,residual=1,dtype=fp64)",
        "opm(b=1,n=8,s=3,dtype=bf16,variant=helixfold,layout=slice)",
        "opm(b=2,n=9,s=5,dtype=fp32,variant=helixfold)",
        "opm(b=2,n=9,s=5,residual=1,alias=residual,dtype=fp64)",
        "opm(n=1,s=1,dtype=fp64)",
        "opm(b=2,n=9,s=20,c=9,dtype=bf16)",
        "opm(b=2,n=9,s=3,c=9,c_z=40,dtype=fp16,variant=alphafold2)",
    };
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        if (test_takes((int)i)) judge_limits(judge_context, texts[i]);
}

static void test_graphs(void **state) {
    (void)state;
    judge_graph(judge_context, "opm(b=2,n=9,s=5,residual=1,dtype=fp64)");
    judge_graph(judge_context, "opm(n=5,s=3,dtype=bf16,variant=alphafold2)");
    judge_graph(judge_context, "opm(n=5,s=40,dtype=fp16)");
}

/* A case with a kernel by name, in a mode that it has. */
static struct evo_case order_case(const char *text, const char *kernel) {
    struct evo_case c = judge_parse(judge_context, text, test_seed(21));
    struct case_common common = c.op->common(&c.desc);
    *common.kernel = kernel;
    if (strncmp(kernel, "tensor", strlen("tensor")) == 0) *common.compute = EVO_COMPUTE_BF16;
    return c;
}

/* The case by this kernel is right, and it was this kernel; or it is refused, where `refused`. */
static void judge_order(const char *text, const char *kernel, size_t limit, bool refused) {
    struct evo_case c = order_case(text, kernel);
    struct case_outcome outcome;
    *c.op->common(&c.desc).workspace_limit = limit;
    if (refused) {
        assert_false(case_run(judge_context, &c, NULL, &outcome));
        assert_int_equal(outcome.result, CASE_REFUSED);
        assert_non_null(strstr(outcome.message, "expected at least") != NULL ? outcome.message
                                                                             : strstr(outcome.message, "weight first"));
    } else {
        free(judge_run(judge_context, &c, &outcome));
        assert_string_equal(outcome.kernel, kernel);
        judge_case(judge_context, &c);
    }
    case_destroy(&c);
}

static size_t workspace_of(const char *text, const char *kernel) {
    struct evo_case c = order_case(text, kernel);
    struct case_outcome outcome;
    free(judge_run(judge_context, &c, &outcome));
    case_destroy(&c);
    return outcome.workspace_size;
}

/* Tier hopper's orders have names on every NVIDIA GPU, but run on compute capability 9.0 alone: elsewhere the case is refused. */
static bool runs_here(const char *text, const char *kernel) {
    struct evo_case c = order_case(text, kernel);
    struct case_outcome outcome;
    const bool runs = case_run(judge_context, &c, NULL, &outcome);
    if (!runs) {
        assert_int_equal(outcome.result, CASE_REFUSED);
        assert_non_null(strstr(outcome.message, "sm_90a"));
    }
    case_destroy(&c);
    return runs;
}

/* Each order that can be asked for by name is taken where the planner would take the other, and under a limit too. */
static void test_orders(void **state) {
    static const char *const texts[] = { "opm(b=1,n=5,s=1,c_m=8,c=8,c_z=6)", "opm(b=2,n=9,s=70,c_z=4)",
                                         "opm(b=2,n=33,s=3,residual=1,variant=alphafold3)",
                                         "opm(n=13,s=5,mask=none,layout=padded)",
                                         "opm(n=17,s=33,c_m=20,c=5,c_z=9,variant=helixfold)" };
    /* Tier hopper takes 16 bits and c_z of multiples of 8; one launch, two, and tiles of a pass that tier tensor has. */
    static const char *const hopper_texts[] = { "opm(dtype=bf16,b=1,n=5,s=1,c_m=8,c=8,c_z=8)",
                                                "opm(dtype=bf16,b=2,n=9,s=70,c_m=64,c_z=8)",
                                                "opm(dtype=bf16,b=2,n=33,s=3,residual=1,variant=alphafold3,c_z=16)",
                                                "opm(dtype=bf16,n=13,s=5,mask=none,layout=padded,c_m=64,c=32,c_z=24)",
                                                "opm(dtype=bf16,n=17,s=33,c_m=20,c=5,c_z=8,variant=helixfold)" };
    _Static_assert(COUNT(hopper_texts) == COUNT(texts), "as many");
    const char *name;
    int orders = 0;
    (void)state;
    for (int i = 0; (name = evo_context_kernel(judge_context, EVO_OP_OPM, i)) != NULL; i++) {
        const bool hopper = strncmp(name, "hopper", strlen("hopper")) == 0;
        if (strchr(name, '/') == NULL || (hopper && !runs_here(hopper_texts[0], name))) continue;
        if (!test_takes(orders++)) continue;
        for (size_t t = 0; t < COUNT(texts); t++) judge_order(hopper ? hopper_texts[t] : texts[t], name, 0, false);
        /*
         * A limit shrinks tiles, never changes the order. The tiles of tier tensor are of 64 pairs at least, those of the portable
         * orders of any number, and blocks for the smallest ones take longest: where runs are slow, these get fewer.
         */
        const bool slow = test_scaled(16) == 1, portable = strncmp(name, "portable", strlen("portable")) == 0;
        const char *large = hopper             ? "opm(dtype=bf16,b=1,n=70,s=20,c=8,c_z=8)"
                            : slow && portable ? "opm(b=1,n=35,s=20,c=8,c_z=8)"
                                               : "opm(b=1,n=70,s=20,c=8,c_z=8)";
        const size_t quarters = slow ? 2 : 3; /* of the limit that the next one has */
        bool done = true;
        for (size_t bytes = workspace_of(large, name); bytes > 0 && done; bytes = bytes / 4 * quarters) {
            struct evo_case c = order_case(large, name);
            struct case_outcome outcome;
            *c.op->common(&c.desc).workspace_limit = bytes;
            done = case_run(judge_context, &c, NULL, &outcome);
            if (done) {
                assert_string_equal(outcome.kernel, name);
                judge_case(judge_context, &c);
            } else {
                judge_order(large, name, bytes, true);
            }
            case_destroy(&c);
        }
        /* An empty sum has no first order; tier hopper takes none. */
        if (!hopper) judge_order("opm(n=5,s=0)", name, 0, strstr(name, "weight-first") != NULL);
    }
    assert_true(orders == 0 || orders >= 2);
    if (strncmp(test_device(), "cpu", 3) == 0) assert_true(orders >= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_variants),
        cmocka_unit_test(test_parameters),     cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_special_values), cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_types),          cmocka_unit_test(test_random),
        cmocka_unit_test(test_random_limits),  cmocka_unit_test(test_batches),
        cmocka_unit_test(test_repeats),        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_limits),         cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_units),          cmocka_unit_test(test_long_counts),
        cmocka_unit_test(test_orders),         cmocka_unit_test(test_masks),
        cmocka_unit_test(test_masks_of_tiles),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("opm", tests, judge_setup, judge_teardown);
}
