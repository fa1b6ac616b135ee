/* test_trimul.c: the triangle multiplication, every parameter and edge of docs/ops.md, judged by naive.c. */
#include "judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const directions[] = { "outgoing", "incoming" };

/* Sizes that break kernels, in both directions. */
static void test_sizes(void **state) {
    static const char *const sizes[] = {
        "n=1",
        "n=2",
        "n=7",
        "n=31",
        "n=33,c_z=9,c=5",
        "n=100,c_z=4,c=3",
        "n=101,c_z=3,c=2",
        "n=127,c_z=2,c=2",
        "n=129,c_z=2,c=1",
        "b=3,n=5",
        "n=3,c_z=128,c=128",
        "b=2,n=9,c_z=64,c=32",
        "n=4,c=16",
        "n=4,c=24",
        "n=4,c=40",
        "n=4,c=64",
        "n=4,c=96",
        "n=5,c_z=24,c=24,c_out=40",
        "n=5,c_z=12,c=7,c_out=3",
        "n=4,c_z=1,c=1",
        "b=0,n=4,residual=1",
        "b=2,n=0",
    };
    uint64_t seed = test_seed(21);
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int d = 0; d < 2; d++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, "trimul(direction=%s,%s)", directions[d], sizes[i]);
            judge_text(judge_context, text, seed);
        }
}

static void test_variants(void **state) {
    static const char *const rests[] = {
        "mask=random,n=9",
        "mask=none,n=9",
        "mask=row,residual=1,n=8",
        "mask=column,n=8",
        "mask=batch,b=2,residual=1",
        "mask=all,dtype=fp64",
        "mask=fractional,n=9,dtype=bf16",
        "mask=large,n=9,dtype=fp16",
        "mask=random,mask_dtype=uint8,n=9",
    };
    uint64_t seed = test_seed(22);
    (void)state;
    for (int i = 0; evo_trimul_variant(i) != NULL; i++)
        for (size_t k = 0; k < COUNT(rests); k++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, "trimul(variant=%s,direction=%s,%s)", evo_trimul_variant(i), directions[k % 2],
                     rests[k]);
            judge_text(judge_context, text, seed);
        }
}

/* No bias, each alone, all but each. */
static void test_biases(void **state) {
    static const char *const names[] = { "norm_in", "a_proj",   "a_gate", "b_proj",
                                         "b_gate",  "norm_out", "out",    "out_gate" };
    uint64_t seed = test_seed(23);
    (void)state;
    judge_text(judge_context, "trimul(n=5,biases=none)", seed);
    for (int one = 0; one < 8; one++)
        for (int inverted = 0; inverted < 2; inverted++) {
            char text[CASE_NAME_SIZE] = "trimul(n=5,biases=";
            for (int i = 0, some = 0; i < 8; i++)
                if ((i == one) != inverted) {
                    strcat(text, some++ > 0 ? "+" : "");
                    strcat(text, names[i]);
                }
            strcat(text, ")");
            judge_text(judge_context, text, seed);
        }
    static const char *const texts[] = {
        "trimul(n=6,gate_input=raw,biases=none,direction=incoming)",
        "trimul(n=6,ln_eps=0.1)",
        "trimul(n=6,ln_eps=1e-12)",
        "trimul(n=6,gate_input=raw,residual=1,input=cauchy)",
    };
    judge_texts(judge_context, texts, COUNT(texts), seed);
}

static void test_inputs(void **state) {
    static const char *const inputs[] = {
        "input=shifted,n=8",
        "input=shifted,n=8,dtype=fp64",
        "input=cauchy,n=8",
        "input=cauchy,n=8,dtype=fp64,variant=mean",
        "input=constant,n=8",
        "input=constant,n=8,dtype=bf16",
        "input=nan,n=8,b=2,mask=none",
        "input=nan,n=8,b=2,residual=1",
        "input=inf,n=8,b=2",
        "input=inf,n=8,dtype=fp16,variant=mean",
    };
    uint64_t seed = test_seed(24);
    (void)state;
    for (size_t i = 0; i < COUNT(inputs); i++)
        for (int d = 0; d < 2; d++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, "trimul(direction=%s,%s)", directions[d], inputs[i]);
            judge_text(judge_context, text, seed);
        }
}

/* One NaN or infinity in each tensor in turn. */
static void test_special_values(void **state) {
    static const char *const tensors[] = {
        "z",
        "mask",
        "residual",
        "norm_in.weight",
        "norm_in.bias",
        "a_proj.weight",
        "a_proj.bias",
        "a_gate.weight",
        "a_gate.bias",
        "b_proj.weight",
        "b_proj.bias",
        "b_gate.weight",
        "b_gate.bias",
        "norm_out.weight",
        "norm_out.bias",
        "out.weight",
        "out.bias",
        "out_gate.weight",
        "out_gate.bias",
    };
    (void)state;
    for (size_t i = 0; i < COUNT(tensors); i++)
        for (int d = 0; d < 2; d++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, "trimul(direction=%s,b=2,n=5,residual=1)", directions[d]);
            judge_special(judge_context, text, tensors[i], (double)NAN);
            judge_special(judge_context, text, tensors[i], (double)INFINITY);
        }
}

static void test_layouts(void **state) {
    static const char *const layouts[] = { "contiguous", "padded",   "offset", "transposed",
                                           "broadcast",  "negative", "slice" };
    static const char *const weights[] = { "contiguous",        "transposed",  "halves",
                                           "halves_transposed", "interleaved", "padded" };
    static const char *const dtypes[] = { "fp64", "fp32", "bf16", "fp16" };
    static const char *const aliases[] = { "alias=input", "residual=1,alias=residual", "residual=1,alias=both",
                                           "residual=1,alias=input" };
    uint64_t seed = test_seed(25);
    (void)state;
    for (size_t l = 0; l < COUNT(layouts); l++)
        for (size_t w = 0; w < COUNT(weights); w++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text,
                     "trimul(b=2,n=5,c_z=7,c=3,residual=1,direction=%s,layout=%s,weight_layout=%s,dtype=%s)",
                     directions[(l + w) % 2], layouts[l], weights[w], dtypes[(l + w) % 4]);
            judge_text(judge_context, text, seed);
        }
    for (size_t l = 0; l < COUNT(layouts); l++)
        for (size_t a = 0; a < COUNT(aliases); a++) {
            char text[CASE_NAME_SIZE];
            if (strcmp(layouts[l], "broadcast") == 0)
                continue; /* an output cannot repeat, so it cannot be such an input */
            snprintf(text, sizeof text, "trimul(b=2,n=5,%s,direction=%s,layout=%s)", aliases[a], directions[a % 2],
                     layouts[l]);
            judge_text(judge_context, text, seed);
        }
}

static void test_types(void **state) {
    static const char *const dtypes[] = { "fp64", "fp32", "bf16", "fp16" };
    uint64_t seed = test_seed(26);
    (void)state;
    for (size_t t = 0; t < COUNT(dtypes); t++)
        for (size_t w = 0; w < COUNT(dtypes); w++) {
            char text[CASE_NAME_SIZE];
            snprintf(text, sizeof text, "trimul(n=6,dtype=%s,weights=%s,mask_dtype=%s,residual=1,direction=%s)",
                     dtypes[t], dtypes[w], dtypes[(t + w) % 4], directions[w % 2]);
            judge_text(judge_context, text, seed);
        }
    static const char *const texts[] = {
        "trimul(n=6,dtype=fp32,weights=mixed,mask_dtype=uint8)",
        "trimul(n=6,dtype=bf16,weights=mixed,mask_dtype=uint8)",
        "trimul(n=6,dtype=fp16,weights=fp64,compute=fp32)",
        "trimul(n=6,dtype=fp32,compute=fp64)",
        "trimul(n=6,dtype=fp32,compute=fp32_strict)",
        "trimul(n=6,dtype=fp32,compute=tf32)",
        "trimul(n=6,dtype=fp32,compute=bf16)",
        "trimul(n=6,dtype=fp32,compute=fp16)",
    };
    judge_texts(judge_context, texts, COUNT(texts), seed);
}

/* All modes on sizes that end within the tiles of matrix units, and on what fp16's range must survive. */
static void test_matrix_units(void **state) {
    static const char *const modes[] = { "dtype=bf16,compute=bf16", "dtype=fp32,compute=bf16",
                                         "dtype=fp16,compute=fp16", "dtype=fp32,compute=fp16",
                                         "dtype=fp32,compute=tf32", "dtype=fp32,compute=fp32" };
    static const char *const sizes[] = {
        "n=1",
        "n=8",
        "n=33,c_z=24,c=40",
        "n=65,c_z=16,c=8,residual=1",
        "b=3,n=9,c_z=64,c=32,mask=batch",
        "n=5,c_z=384,c=128",
        "n=7,c_z=200,c=96,c_out=33",
        "n=9,c_z=130,c=72,c_out=256",
        "n=10,c_z=64,c=128,mask=large",
        "n=12,c_z=64,c=64,mask=fractional,layout=transposed,variant=mean",
        "n=12,c_z=128,c=64,input=shifted,variant=boltz",
        "n=12,c_z=32,c=32,input=cauchy,variant=mean",
        "n=9,c_z=32,c=32,b=2,input=nan,residual=1",
        "n=9,c_z=32,c=32,b=2,input=inf,variant=mean",
    };
    uint64_t seed = test_seed(28);
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (size_t m = 0; m < COUNT(modes); m++) {
            char text[CASE_NAME_SIZE];
            if (!test_takes((int)(i * COUNT(modes) + m))) continue;
            snprintf(text, sizeof text, "trimul(%s,%s,direction=%s)", modes[m], sizes[i], directions[(i + m) % 2]);
            judge_text(judge_context, text, seed);
        }
    static const char *const large[] = {
        "trimul(n=147,c_z=8,c=8,dtype=bf16)", /* from here on an sm_80 has blocks keep all weights */
        "trimul(n=147,c_z=8,c=8,dtype=fp32,compute=tf32,direction=incoming)",
        "trimul(n=131,c_z=8,c=16,dtype=fp32,residual=1)",
        "trimul(n=70,c_z=40,c=16,alias=input,dtype=fp16)",
    };
    for (size_t i = 0; i < COUNT(large); i++)
        if (test_takes((int)i)) judge_text(judge_context, large[i], seed);
    static const char *const limited[] = {
        "trimul(b=2,n=19,c_z=16,c=40,residual=1,dtype=bf16)",
        "trimul(b=2,n=9,c_z=16,c=40,alias=input,dtype=fp16,direction=incoming)",
        "trimul(n=9,c_z=16,c=40,dtype=fp32,compute=tf32)",
        "trimul(b=2,n=19,c_z=16,c=40,alias=input,dtype=fp32,direction=incoming)",
    };
    for (size_t i = 0; i < COUNT(limited); i++)
        if (test_takes((int)i)) judge_limits(judge_context, limited[i]);
    judge_split(judge_context, "trimul(b=3,n=9,c_z=16,c=16,dtype=fp16,mask=large)");
    judge_split(judge_context, "trimul(b=3,n=9,c_z=16,c=16,dtype=fp32,mask=large,layout=padded)");
    judge_text(judge_context, "trimul(b=2,n=17,c_z=32,c=32,runs=4,residual=1,dtype=bf16)", seed);
    judge_text(judge_context, "trimul(b=2,n=17,c_z=32,c=32,runs=4,residual=1,dtype=fp32)", seed);
}

static double tiny_mask(int64_t i, int64_t j) {
    (void)i, (void)j;
    return 0x1p-66; /* about 1e-20 */
}

/* Whether a case's plan has room for t's squares under wide masks: fp32 itself has none, which only tier tensor avoids. */
static bool has_room(struct evo_case *c) {
    union case_desc desc;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    evo_plan *plan = NULL;
    case_descriptor(c, &desc);
    OK(c->op->plan_create(judge_context, &desc, &plan));
    OK(evo_plan_get_info(plan, &info));
    const bool room = info.compute == EVO_COMPUTE_FP64 || strcmp(info.kernel, "tensor") == 0;
    evo_plan_destroy(plan);
    return room;
}

/* Masks of any size, alike or not: whoever multiplies halves has to scale them. */
static void test_masks(void **state) {
    static const struct {
        double (*factor)(int64_t i, int64_t j);
        bool wide;
    } masks[] = { { tiny_mask, false },           { judge_huge_mask, true },     { judge_mask_by_row, true },
                  { judge_mask_by_column, true }, { judge_one_huge_mask, true }, { judge_nan_mask, false },
                  { judge_infinite_mask, false } };
    static const char *const modes[] = { "compute=fp32", "compute=fp32,residual=1,variant=mean", "compute=fp16" };
    uint64_t seed = test_seed(30);
    int left_out = 0;
    (void)state;
    for (size_t m = 0; m < COUNT(masks); m++)
        for (size_t k = 0; k < COUNT(modes); k++)
            for (int d = 0; d < 2; d++) {
                char text[CASE_NAME_SIZE];
                if (!test_takes_share((int)(m + k) + d, 3)) continue;
                snprintf(text, sizeof text,
                         "trimul(b=2,n=9,c_z=32,c=24,dtype=fp32,mask_dtype=fp32,mask=fractional,%s,direction=%s)",
                         modes[k], directions[d]);
                struct evo_case c = judge_parse(judge_context, text, seed);
                judge_scale_mask(&c, 2, 9, 9, masks[m].factor);
                c.hard = true;
                if (judge_takes(judge_context, &c)) {
                    if (!masks[m].wide || has_room(&c))
                        judge_case(judge_context, &c);
                    else
                        left_out++;
                }
                case_destroy(&c);
            }
    if (left_out > 0) print_message("%d cases of wide masks left out: fp32 has no room for them\n", left_out);
}

/* Which tier a chip with matrix units takes: the best that it has, but for IEEE products, which are the portable one's. */
static void test_tiers(void **state) {
    const char *const best = test_has_hopper(judge_context) ? "hopper/three-launches" : "tensor";
    const struct {
        evo_dtype dtype;
        evo_compute compute;
        const char *kernel;
    } wanted[] = { { EVO_FP32, EVO_COMPUTE_FP32, "tensor" },
                   { EVO_FP32, EVO_COMPUTE_FP32_STRICT, "portable" },
                   { EVO_BF16, EVO_COMPUTE_BF16, best },
                   { EVO_FP16, EVO_COMPUTE_FP16, best } };
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    (void)state;
    OK(evo_context_device(judge_context, &device));
    for (size_t i = 0; i < COUNT(wanted) && strncmp(device.name, "cpu", 3) != 0; i++) {
        evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
        evo_plan_info info = EVO_PLAN_INFO_INIT;
        evo_plan *plan = NULL;
        d.n = 256;
        d.c_z = d.c = 128;
        d.z.dtype = d.out.dtype = wanted[i].dtype;
        d.compute = wanted[i].compute;
        d.kernel = getenv("EVO_KERNEL") != NULL ? wanted[i].kernel : NULL;
        OK(evo_trimul_plan_create(judge_context, &d, &plan));
        OK(evo_plan_get_info(plan, &info));
        assert_string_equal(info.kernel, wanted[i].kernel);
        assert_int_equal(info.compute, wanted[i].compute);
        evo_plan_destroy(plan);
    }
}

/* Products in halves of numbers that fp16 does not hold: tensors times powers of two, so that they stay what their types hold. */
static void test_range(void **state) {
    static const char *const tensors[] = { "norm_in.weight", "a_proj.weight", "b_proj.bias",     "a_gate.weight",
                                           "out.weight",     "out_gate.bias", "norm_out.weight", "z" };
    static const char *const modes[] = { "fp16,variant=alphafold2", "fp16,variant=mean", "fp32,variant=alphafold2",
                                         "fp32,variant=mean" };
    uint64_t seed = test_seed(29);
    (void)state;
    for (size_t i = 0; i < COUNT(tensors); i++)
        for (int large = 0; large < 2; large++)
            for (size_t m = 0; m < COUNT(modes); m++) {
                char text[CASE_NAME_SIZE];
                if (!test_takes_share((int)(i + m) + large, 2)) continue;
                snprintf(text, sizeof text, "trimul(n=7,c_z=32,c=24,weights=fp32,dtype=fp32,compute=%s)", modes[m]);
                struct evo_case c = judge_parse(judge_context, text, seed);
                struct case_tensor *tensor = case_find(&c, tensors[i]);
                assert_true(tensor != NULL && tensor->values != NULL);
                for (int64_t e = 0; e < tensor->count; e++) tensor->values[e] *= large ? 0x1p20 : 0x1p-20;
                c.hard = true;
                if (judge_takes(judge_context, &c)) judge_case(judge_context, &c);
                case_destroy(&c);
            }
}

/*
 * a and b, and t unless it lies in the output, in numbers of 16 bits: what kernels.md says of both tiers with matrix units; none of
 * these sizes is among the 47 that it excepts.
 */
static void test_workspace(void **state) {
    static const int64_t sizes[] = { 64, 129, 256, 384, 777, 1000, 1024, 2048 };
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            const double numbers = (double)sizes[i] * (double)sizes[i] * 128.0;
            evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
            evo_plan_info info = EVO_PLAN_INFO_INIT;
            evo_plan *plan = NULL;
            d.n = sizes[i];
            d.c_z = d.c = 128;
            d.z.dtype = d.out.dtype = EVO_BF16;
            d.compute = EVO_COMPUTE_BF16;
            d.alias = in_place ? EVO_ALIAS_INPUT : EVO_ALIAS_NONE;
            OK(evo_trimul_plan_create(judge_context, &d, &plan));
            OK(evo_plan_get_info(plan, &info));
            if (strcmp(info.kernel, "tensor") == 0 || strncmp(info.kernel, "hopper", 6) == 0)
                assert_true((double)info.workspace_size <= (in_place ? 3.25 : 2.25) * 2.0 * numbers);
            evo_plan_destroy(plan);
        }
}

/* Everything at once, at random. */
static void random_text(struct case_random *random, char *text, size_t size) {
    judge_start(text, size, "trimul");
    judge_key(text, size, "variant",
              PICK(random, "alphafold2", "alphafold3", "boltz", "helixfold", "megafold", "mean"));
    judge_key(text, size, "direction", PICK(random, "outgoing", "incoming"));
    judge_key(text, size, "b", PICK(random, "1", "1", "2", "3"));
    judge_key(text, size, "n", PICK(random, "1", "2", "3", "7", "12", "17"));
    judge_key(text, size, "c_z", PICK(random, "1", "5", "8", "16", "33"));
    judge_key(text, size, "c", PICK(random, "1", "4", "5", "8", "24"));
    judge_common(random, text, size);
    const char *residual = PICK(random, "0", "1", "1,alias=residual", "0,alias=input", "1,alias=both");
    if (strstr(text, "layout=broadcast") != NULL) residual = "1"; /* an output cannot repeat */
    judge_key(text, size, "residual", residual);
    if (strstr(residual, "alias=input") == NULL && strstr(residual, "alias=both") == NULL)
        judge_key(text, size, "c_out", PICK(random, "0", "0", "1", "9", "24"));
    judge_types(random, text, size);
    judge_end(text, size);
}

static void test_random(void **state) {
    (void)state;
    judge_random(judge_context, random_text, "trimul texts", test_seed(27), test_scaled(1500));
}

static void test_random_limits(void **state) {
    (void)state;
    judge_random_limits(judge_context, random_text, "trimul limits", test_seed(35), test_scaled(200));
}

/* Equality is asked of fp64 outputs, where the device has them: they show the last bit of every sum. */
static void test_batches(void **state) {
    (void)state;
    judge_split(judge_context, "trimul(b=3,n=9,residual=1,dtype=fp64)");
    judge_split(judge_context, "trimul(b=3,n=9,dtype=bf16,mask=batch,layout=padded,direction=incoming)");
    judge_split(judge_context, "trimul(b=3,n=7,dtype=fp64,variant=mean,layout=transposed)");
}

static void test_repeats(void **state) {
    (void)state;
    judge_text(judge_context, "trimul(b=2,n=17,runs=4,residual=1,dtype=fp64)", 1);
    judge_text(judge_context, "trimul(b=2,n=17,runs=4,dtype=fp16,variant=mean,direction=incoming)", 1);
    judge_text(judge_context, "trimul(b=2,n=9,runs=4,residual=1,alias=both,dtype=fp64)", 1);
}

static void test_threads(void **state) {
    (void)state;
    judge_threads(judge_context, "trimul(b=2,n=19,residual=1,dtype=fp64)");
    judge_threads(judge_context, "trimul(b=1,n=5,dtype=bf16,direction=incoming)");
    judge_threads(judge_context, "trimul(b=1,n=1,dtype=fp64)");
}

/* In place too: a form that projects again must not read what it has overwritten. */
static void test_limits(void **state) {
    (void)state;
    judge_limits(judge_context, "trimul(b=2,n=19,residual=1,dtype=fp64)");
    judge_limits(judge_context, "trimul(b=1,n=8,dtype=bf16,direction=incoming,layout=slice)");
    judge_limits(judge_context, "trimul(b=2,n=9,c=24,alias=input,dtype=fp64)");
    judge_limits(judge_context, "trimul(b=2,n=9,c=24,residual=1,alias=both,direction=incoming,dtype=fp64)");
    judge_limits(judge_context, "trimul(b=2,n=9,c=24,residual=1,alias=residual,dtype=fp64)");
    judge_limits(judge_context, "trimul(n=1,dtype=fp64)");
}

static void test_graphs(void **state) {
    (void)state;
    judge_graph(judge_context, "trimul(b=2,n=9,residual=1,dtype=fp64)");
    judge_graph(judge_context, "trimul(n=5,dtype=bf16,direction=incoming)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),   cmocka_unit_test(test_variants),       cmocka_unit_test(test_biases),
        cmocka_unit_test(test_inputs),  cmocka_unit_test(test_special_values), cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_types),   cmocka_unit_test(test_random),         cmocka_unit_test(test_random_limits),
        cmocka_unit_test(test_batches), cmocka_unit_test(test_matrix_units),   cmocka_unit_test(test_masks),
        cmocka_unit_test(test_tiers),   cmocka_unit_test(test_range),          cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_repeats), cmocka_unit_test(test_threads),        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_graphs),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("trimul", tests, judge_setup, judge_teardown);
}
