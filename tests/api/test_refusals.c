/*
 * test_refusals.c: every wrong call gives its own status and a text that names the argument, its value and what was
 * expected; and leaves the output as it was. Each test runs on both ops.
 */
#include "../support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static evo_context *context;

static sample *samples[SAMPLE_COUNT];

/* The plan of a descriptor that must be refused. */
static evo_status plan_of(const sample *s, const union case_desc *desc) {
    evo_plan *plan = NULL;
    evo_status status = s->op->plan_create(context, desc, &plan);
    if (status != EVO_OK) assert_null(plan);
    evo_plan_destroy(plan);
    return status;
}

#define RUN_REFUSED(s, want, ...)                                                                             \
    do {                                                                                                      \
        sample_mark_output(s);                                                                                \
        REFUSED(sample_run(s), want, __VA_ARGS__);                                                            \
        assert_true(sample_output_marked(s));                                                                 \
    } while (0)

/* "%p" of a pointer, as messages have it. */
static const char *pointer_text(const void *pointer) {
    static char text[32];
    snprintf(text, sizeof text, "%p", pointer);
    return text;
}

static const char *number_text(long long number) {
    static char text[32];
    snprintf(text, sizeof text, "%lld", number);
    return text;
}

/* ---- plan_create ---- */

static void test_plan_null(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        const sample *s = samples[k];
        evo_plan *plan = NULL;
        REFUSED(s->op->plan_create(NULL, &s->desc, &plan), EVO_ERROR_NULL_POINTER, "context");
        REFUSED(s->op->plan_create(context, &s->desc, NULL), EVO_ERROR_NULL_POINTER, "plan");
        assert_null(plan);
    }
    evo_plan *plan = NULL;
    REFUSED(evo_opm_plan_create(context, NULL, &plan), EVO_ERROR_NULL_POINTER, "evo_opm_plan_create", "desc");
    REFUSED(evo_trimul_plan_create(context, NULL, &plan), EVO_ERROR_NULL_POINTER, "evo_trimul_plan_create", "desc");
    assert_null(plan);
}

static void check_extent(const sample *s, const struct case_dim *dim) {
    char wrong[64];
    union case_desc desc = s->desc;
    const char *name = dim->letter == 'B' ? "batch" : dim->name;
    *AT(int64_t, &desc, dim->offset) = -1;
    snprintf(wrong, sizeof wrong, "desc->%s is -1", name);
    REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_SHAPE, wrong, "expected");
    *AT(int64_t, &desc, dim->offset) = INT64_MIN;
    snprintf(wrong, sizeof wrong, "desc->%s is -9223372036854775808", name);
    REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_SHAPE, wrong, "expected");
    *AT(int64_t, &desc, dim->offset) = 0;
    snprintf(wrong, sizeof wrong, "desc->%s is 0", name);
    if (dim->name[0] == 'c' && dim->fallback == 0)
        REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_SHAPE, wrong, "expected");
    else
        OK(plan_of(s, &desc));
}

static void test_extents(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++)
        for (const struct case_dim *dim = samples[k]->op->dims; dim->letter != 0; dim++) check_extent(samples[k], dim);
}

/* A member of a descriptor: of which op, where. */
typedef struct member {
    int op;
    const char *name;
    size_t at;
} member;

#define OPM(field) { EVO_OP_OPM, #field, offsetof(evo_opm_desc, field) }
#define TRIMUL(field) { EVO_OP_TRIMUL, #field, offsetof(evo_trimul_desc, field) }

static void test_choices(void **state) {
    static const member choices[] = {
        OPM(divide),       OPM(mask_sides),    OPM(compute),    OPM(propagation),
        TRIMUL(direction), TRIMUL(gate_input), TRIMUL(compute), TRIMUL(propagation),
    };
    static const int last[] = {
        EVO_DIVIDE_AFTER, EVO_MASK_A_ONLY, EVO_COMPUTE_FP64, EVO_INFERENCE,
        EVO_INCOMING,     EVO_GATE_RAW,    EVO_COMPUTE_FP64, EVO_INFERENCE,
    };
    (void)state;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const int wrong[] = { -1, last[i] + 1, 77 };
        for (int w = 0; w < 3; w++) {
            union case_desc desc = samples[choices[i].op]->desc;
            *AT(int, &desc, choices[i].at) = wrong[w];
            REFUSED(plan_of(samples[choices[i].op], &desc), EVO_ERROR_INVALID_ARGUMENT, choices[i].name,
                    number_text(wrong[w]), "expected");
        }
    }
}

static void test_bits(void **state) {
    static const member bits[] = { OPM(biases), OPM(alias), TRIMUL(biases), TRIMUL(alias) };
    (void)state;
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        union case_desc desc = samples[bits[i].op]->desc;
        *AT(unsigned, &desc, bits[i].at) = 0x4000;
        REFUSED(plan_of(samples[bits[i].op], &desc), EVO_ERROR_INVALID_ARGUMENT, bits[i].name, "0x4000", "expected");
    }
    /* An outer product's output has other extents than its input. */
    union case_desc desc = samples[EVO_OP_OPM]->desc;
    desc.opm.alias = EVO_ALIAS_INPUT;
    REFUSED(plan_of(samples[EVO_OP_OPM], &desc), EVO_ERROR_INVALID_ARGUMENT, "alias", "0x1", "expected");
}

static void test_numbers(void **state) {
    static const member numbers[] = { OPM(count_eps), OPM(count_min),         OPM(layer_norm_eps),
                                      OPM(mask_max),  TRIMUL(layer_norm_eps), TRIMUL(mask_max) };
    static const double wrong[] = { (double)NAN, -1e-5, (double)INFINITY, (double)-INFINITY };
    static const char *const texts[] = { "nan", "-1e-05", "inf", "-inf" };
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int w = 0; w < 4; w++) {
            union case_desc desc = samples[numbers[i].op]->desc;
            *AT(double, &desc, numbers[i].at) = wrong[w];
            REFUSED(plan_of(samples[numbers[i].op], &desc), EVO_ERROR_INVALID_ARGUMENT, numbers[i].name, texts[w],
                    "expected");
        }
}

static void test_dtypes(void **state) {
    static const enum case_role roles[] = { CASE_INPUT, CASE_MASK, CASE_RESIDUAL, CASE_OUTPUT };
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++)
        for (int r = 0; r < 4; r++) {
            sample *s = samples[k];
            const struct case_spec *spec = &s->op->specs[sample_spec(s, roles[r])];
            union case_desc desc = s->desc;
            evo_tensor *tensor = AT(evo_tensor, &desc, spec->layout);
            tensor->dtype = (evo_dtype)42;
            REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_DTYPE, spec->name, "dtype", "42", "expected");
            tensor->dtype = EVO_UINT8;
            if (roles[r] != CASE_MASK)
                REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_DTYPE, spec->name, "dtype", "uint8", "expected");
            else
                OK(plan_of(s, &desc));
            *tensor = (evo_tensor)EVO_TENSOR_INIT(EVO_NONE);
            if (roles[r] == CASE_INPUT || roles[r] == CASE_OUTPUT)
                REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_DTYPE, spec->name, "dtype", "none", "expected");
            else
                OK(plan_of(s, &desc));
        }
}

static void test_promised_alignment(void **state) {
    static const enum case_role roles[] = { CASE_INPUT, CASE_MASK, CASE_RESIDUAL, CASE_OUTPUT };
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++)
        for (int r = 0; r < 4; r++) {
            sample *s = samples[k];
            const struct case_spec *spec = &s->op->specs[sample_spec(s, roles[r])];
            union case_desc desc = s->desc;
            evo_tensor *tensor = AT(evo_tensor, &desc, spec->layout);
            tensor->alignment = 24;
            REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_ARGUMENT, spec->name, "alignment", "24", "power of two");
            tensor->alignment = 2; /* less than a float */
            REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_ARGUMENT, spec->name, "alignment", "2", "power of two");
        }
}

static void test_strides(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = samples[k];
        const struct case_spec *out = &s->op->specs[sample_spec(s, CASE_OUTPUT)];
        const struct case_spec *mask = &s->op->specs[sample_spec(s, CASE_MASK)];
        /* B 2, N 5, 6 channels: overlapping through a zero, through too small a step, and none. */
        static const int64_t wrong[3][4] = { { 150, 0, 6, 1 }, { 150, 29, 6, 1 }, { 150, 30, 5, 1 } };
        static const int64_t right[3][4] = { { 150, 30, 6, 1 }, { 1, 2, 10, 50 }, { -150, 30, -6, 1 } };
        for (int i = 0; i < 3; i++) {
            union case_desc desc = s->desc;
            evo_tensor *tensor = AT(evo_tensor, &desc, out->layout);
            memcpy(tensor->strides, wrong[i], sizeof wrong[i]);
            REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_LAYOUT, out->name, "strides", "expected");
            memcpy(tensor->strides, right[i], sizeof right[i]);
            OK(plan_of(s, &desc));
        }
        union case_desc desc = s->desc;
        evo_tensor *tensor = AT(evo_tensor, &desc, mask->layout);
        memcpy(tensor->strides, (const int64_t[4]){ 25, 5, 1, 7 }, sizeof tensor->strides);
        REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_LAYOUT, mask->name, "strides[3]", "7", "expected");
        memcpy(tensor->strides, (const int64_t[4]){ 0, 0, INT64_MAX / 2, 0 }, sizeof tensor->strides);
        REFUSED(plan_of(s, &desc), EVO_ERROR_SIZE_OVERFLOW, mask->name);
        memcpy(tensor->strides, (const int64_t[4]){ INT64_MIN, 0, 1, 0 }, sizeof tensor->strides);
        REFUSED(plan_of(s, &desc), EVO_ERROR_SIZE_OVERFLOW, mask->name);
    }
}

static void test_alias_promises(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = samples[k];
        const struct case_spec *residual = &s->op->specs[sample_spec(s, CASE_RESIDUAL)];
        union case_desc desc = s->desc;
        *s->op->common(&desc).alias = EVO_ALIAS_RESIDUAL;
        OK(plan_of(s, &desc));
        AT(evo_tensor, &desc, residual->layout)->dtype = EVO_FP64;
        REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_LAYOUT, "alias", "residual", "fp64", "expected");
        AT(evo_tensor, &desc, residual->layout)->dtype = EVO_FP32;
        memcpy(AT(evo_tensor, &desc, residual->layout)->strides, (const int64_t[4]){ 150, 6, 30, 1 },
               4 * sizeof(int64_t));
        REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_LAYOUT, "alias", "residual", "strides");
        *AT(evo_tensor, &desc, residual->layout) = (evo_tensor)EVO_TENSOR_INIT(EVO_NONE);
        REFUSED(plan_of(s, &desc), EVO_ERROR_INVALID_LAYOUT, "alias", "residual", "none");
    }
    /* c_out above c_z: the output cannot be the input. */
    union case_desc desc = samples[EVO_OP_TRIMUL]->desc;
    desc.trimul.c_out = desc.trimul.c_z + 2;
    desc.trimul.alias = EVO_ALIAS_INPUT;
    memset(desc.trimul.out.strides, 0, sizeof desc.trimul.out.strides);
    memset(desc.trimul.residual.strides, 0, sizeof desc.trimul.residual.strides);
    REFUSED(plan_of(samples[EVO_OP_TRIMUL], &desc), EVO_ERROR_INVALID_LAYOUT, "alias", "z", "expected");
}

/* Each product of sizes in turn. The others fit, as far as one can grow without the other. */
static void test_products_that_overflow(void **state) {
    static const struct {
        int64_t batch, s, n, c_m, c, c_z;
        const char *part;
    } opm[] = {
        { 1 << 20, 1 << 20, 4, 1 << 20, 1, 1, "m" }, /* B S N c_m */
        { INT64_MAX, 2, 1, 1, 1, 1, "m" },           /* B S */
        { 1, INT64_MAX / 4, 1, 1, 1, 1, "m" },       /* 4 S bytes */
        { 1, 1, 1LL << 31, 1, 1, 4, "out" },         /* N N c_z */
        { 1, 1, 1LL << 30, 1, 1, 2, "out" },         /* 4 N N c_z bytes */
        { 1LL << 31, 1, 1LL << 16, 1, 1, 1, "out" }, /* B N N */
        { 1, 1, 1, 1, 1LL << 31, 2, "" },            /* c c c_z: the pack */
        { 1, 1, 1, 1LL << 42, 1 << 20, 1, "" },      /* c c_m: the pack */
        { 1, 1, 1, 1, INT64_MAX, 1, "" },            /* c c */
    };
    static const struct {
        int64_t batch, n, c_z, c, c_out;
        const char *part;
    } trimul[] = {
        { 1, 1LL << 31, 4, 1, 1, "z" },         /* N N c_z */
        { 1, INT64_MAX, 1, 1, 1, "z" },         /* N N */
        { 1LL << 31, 1LL << 16, 1, 1, 1, "z" }, /* B N N */
        { 1, 1 << 15, 1, 1, 1LL << 32, "out" }, /* N N c_out */
        { 1, 1, 1LL << 31, 1LL << 31, 1, "" },  /* c c_z */
        { 1, 1, 1, 1LL << 31, 1LL << 31, "" },  /* c_out c */
        { 1, 1, 1LL << 31, 1, 1LL << 31, "" },  /* c_out c_z */
    };
    (void)state;
    for (size_t i = 0; i < sizeof opm / sizeof *opm; i++) {
        union case_desc desc = { .opm = EVO_OPM_DESC_INIT };
        desc.opm.batch = opm[i].batch;
        desc.opm.s = opm[i].s;
        desc.opm.n = opm[i].n;
        desc.opm.c_m = opm[i].c_m;
        desc.opm.c = opm[i].c;
        desc.opm.c_z = opm[i].c_z;
        REFUSED(plan_of(samples[EVO_OP_OPM], &desc), EVO_ERROR_SIZE_OVERFLOW, opm[i].part);
    }
    for (size_t i = 0; i < sizeof trimul / sizeof *trimul; i++) {
        union case_desc desc = { .trimul = EVO_TRIMUL_DESC_INIT };
        desc.trimul.batch = trimul[i].batch;
        desc.trimul.n = trimul[i].n;
        desc.trimul.c_z = trimul[i].c_z;
        desc.trimul.c = trimul[i].c;
        desc.trimul.c_out = trimul[i].c_out;
        REFUSED(plan_of(samples[EVO_OP_TRIMUL], &desc), EVO_ERROR_SIZE_OVERFLOW, trimul[i].part);
    }
}

/*
 * A broadcast input spans little, but what lies beside it may not fit: the mask, and what a kernel keeps of a and b. A
 * kernel that counts in fewer bits does not take such sizes at all.
 */
static void test_broadcasts_do_not_hide_overflow(void **state) {
    union case_desc desc = { .opm = EVO_OPM_DESC_INIT };
    (void)state;
    desc.opm.batch = 1;
    desc.opm.s = INT64_MAX / 2;
    desc.opm.n = 3;
    desc.opm.c_m = desc.opm.c = desc.opm.c_z = 4;
    memcpy(desc.opm.m.strides, (const int64_t[4]){ 0, 0, 0, 1 }, sizeof desc.opm.m.strides);
    desc.opm.mask.dtype = EVO_UINT8;
    REFUSED(plan_of(samples[EVO_OP_OPM], &desc), EVO_ERROR_SIZE_OVERFLOW, "mask");
    desc.opm.mask.dtype = EVO_NONE;
    evo_status status = plan_of(samples[EVO_OP_OPM], &desc);
    assert_true(status == EVO_ERROR_SIZE_OVERFLOW || status == EVO_ERROR_UNSUPPORTED || status == EVO_OK);
}

static void test_struct_sizes(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        const sample *s = samples[k];
        struct {
            union case_desc desc;
            char tail[64];
        } longer = { s->desc, { 0 } };
        const size_t size = s->desc.size;
        char expected[32];
        snprintf(expected, sizeof expected, "expected %zu", size);
        const size_t wrong[] = { 0, 1, 8, size - 1, SIZE_MAX };
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            char given[32];
            snprintf(given, sizeof given, "size is %zu", wrong[i]);
            longer.desc.size = wrong[i];
            REFUSED(plan_of(s, &longer.desc), EVO_ERROR_INVALID_ARGUMENT, "desc", given, expected);
        }
        /* A caller of a later version: fields that this library does not know must be zero. */
        longer.desc.size = size + 16;
        memset((char *)&longer + size, 0, 16);
        OK(plan_of(s, &longer.desc));
        ((char *)&longer)[size + 9] = 1;
        REFUSED(plan_of(s, &longer.desc), EVO_ERROR_INVALID_ARGUMENT, "desc", "size", expected);
    }
}

static void test_other_struct_sizes(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = samples[k];
        evo_pack *pack = NULL;
        union case_weights weights = s->weights;
        weights.size = 12;
        REFUSED(s->op->pack(s->plan, &weights, s->pack_memory, s->pack_size, NULL, &pack), EVO_ERROR_INVALID_ARGUMENT,
                "weights", "size is 12", "expected");
        assert_null(pack);
        const size_t size = s->args.size;
        s->args.size = 24;
        RUN_REFUSED(s, EVO_ERROR_INVALID_ARGUMENT, "args", "size is 24", "expected");
        s->args.size = size;
        evo_plan_info info = EVO_PLAN_INFO_INIT;
        info.size = 3;
        REFUSED(evo_plan_get_info(s->plan, &info), EVO_ERROR_INVALID_ARGUMENT, "size", "3", "expected");
    }
    evo_context_options options = EVO_CONTEXT_OPTIONS_INIT;
    options.size = 5;
    evo_context *none = NULL;
    REFUSED(evo_context_create(test_device(), &options, &none), EVO_ERROR_INVALID_ARGUMENT, "options", "size is 5",
            "expected");
    assert_null(none);
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    device.size = 0;
    REFUSED(evo_context_device(context, &device), EVO_ERROR_INVALID_ARGUMENT, "size", "0", "expected");
}

/* ---- kernels by name, variants ---- */

static void test_unknown_kernel(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        const sample *s = samples[k];
        union case_desc desc = s->desc;
        *s->op->common(&desc).kernel = "warp-drive";
        REFUSED(plan_of(s, &desc), EVO_ERROR_UNSUPPORTED, "kernel", "warp-drive", "expected", sample_kernel(s));
        *s->op->common(&desc).kernel = sample_kernel(s);
        OK(plan_of(s, &desc));
        char order[64];
        snprintf(order, sizeof order, "%s/no-order", evo_context_kernel(context, (evo_op)k, 0));
        *s->op->common(&desc).kernel = order;
        REFUSED(plan_of(s, &desc), EVO_ERROR_UNSUPPORTED, "kernel", order, "expected");
        *s->op->common(&desc).kernel = "";
        assert_int_not_equal(plan_of(s, &desc), EVO_OK);
    }
}

static void test_kernel_environment(void **state) {
    static const char *const malformed[] = { "reference",
                                             "opm",
                                             "opm:",
                                             ":reference",
                                             "nosuch:reference",
                                             "opm:reference,trimul",
                                             "opm:reference,,trimul:reference",
                                             "," };
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        const sample *s = samples[k];
        for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
            setenv("EVO_KERNEL", malformed[i], 1);
            REFUSED(plan_of(s, &s->desc), EVO_ERROR_INVALID_ARGUMENT, "EVO_KERNEL", malformed[i], "expected");
        }
        setenv("EVO_KERNEL", "opm:warp-drive,trimul:warp-drive", 1);
        REFUSED(plan_of(s, &s->desc), EVO_ERROR_UNSUPPORTED, "EVO_KERNEL", "warp-drive", "expected");
        /* The descriptor's own word counts for more. */
        union case_desc desc = s->desc;
        *s->op->common(&desc).kernel = sample_kernel(s);
        OK(plan_of(s, &desc));
        setenv("EVO_KERNEL", k == 0 ? "trimul:warp-drive" : "opm:warp-drive", 1);
        OK(plan_of(s, &s->desc));
        char good[128];
        snprintf(good, sizeof good, "%s:%s", s->op->name, sample_kernel(s));
        setenv("EVO_KERNEL", good, 1);
        OK(plan_of(s, &s->desc));
        setenv("EVO_KERNEL", "", 1);
        OK(plan_of(s, &s->desc));
        unsetenv("EVO_KERNEL");
    }
}

static void test_variants(void **state) {
    (void)state;
    REFUSED(evo_opm_set_variant(NULL, "mean"), EVO_ERROR_NULL_POINTER, "evo_opm_set_variant", "desc");
    REFUSED(evo_trimul_set_variant(NULL, "mean"), EVO_ERROR_NULL_POINTER, "evo_trimul_set_variant", "desc");
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        const sample *s = samples[k];
        union case_desc desc = s->desc;
        REFUSED(s->op->set_variant(&desc, NULL), EVO_ERROR_NULL_POINTER, "variant");
        REFUSED(s->op->set_variant(&desc, "alphafold9"), EVO_ERROR_INVALID_ARGUMENT, "alphafold9", "alphafold2",
                "alphafold3", "boltz", "helixfold", "megafold", "mean");
        assert_memory_equal(&desc, &s->desc, s->desc.size);
        int count = 0;
        for (; s->op->variant(count) != NULL; count++) {
            OK(s->op->set_variant(&desc, s->op->variant(count)));
            OK(plan_of(s, &desc));
        }
        assert_int_equal(count, 6);
        assert_null(s->op->variant(-1));
    }
}

static void test_variant_numbers(void **state) {
    static const struct {
        const char *name;
        unsigned biases;
        evo_divide divide;
        evo_mask_sides sides;
        double eps, least;
    } opm[] = {
        { "alphafold2", EVO_OPM_BIAS_ALL, EVO_DIVIDE_AFTER, EVO_MASK_BOTH, 1e-3, 0 },
        { "alphafold3", EVO_OPM_BIAS_NORM | EVO_OPM_BIAS_OUT, EVO_DIVIDE_AFTER, EVO_MASK_BOTH, 1e-3, 0 },
        { "boltz", EVO_OPM_BIAS_NORM | EVO_OPM_BIAS_OUT, EVO_DIVIDE_BEFORE, EVO_MASK_BOTH, 0, 1 },
        { "helixfold", EVO_OPM_BIAS_ALL, EVO_DIVIDE_AFTER, EVO_MASK_A_ONLY, 1e-3, 0 },
        { "megafold", EVO_OPM_BIAS_NORM | EVO_OPM_BIAS_OUT, EVO_DIVIDE_BEFORE, EVO_MASK_BOTH, 0, 1e-5 },
        { "mean", EVO_OPM_BIAS_ALL, EVO_DIVIDE_BEFORE, EVO_MASK_BOTH, 0, 1 },
    };
    static const struct {
        const char *name;
        unsigned biases;
        evo_gate_input gate;
    } trimul[] = {
        { "alphafold2", EVO_TRIMUL_BIAS_ALL, EVO_GATE_NORMED },
        { "helixfold", EVO_TRIMUL_BIAS_ALL, EVO_GATE_NORMED },
        { "alphafold3", EVO_TRIMUL_BIAS_NORM_IN | EVO_TRIMUL_BIAS_NORM_OUT, EVO_GATE_NORMED },
        { "boltz", EVO_TRIMUL_BIAS_NORM_IN | EVO_TRIMUL_BIAS_NORM_OUT, EVO_GATE_NORMED },
        { "megafold", EVO_TRIMUL_BIAS_ALL & ~(unsigned)EVO_TRIMUL_BIAS_OUT, EVO_GATE_NORMED },
        { "mean", EVO_TRIMUL_BIAS_ALL, EVO_GATE_RAW },
    };
    (void)state;
    for (int i = 0; i < 6; i++) {
        evo_opm_desc d = EVO_OPM_DESC_INIT;
        d.biases = 0;
        d.count_min = d.count_eps = 99;
        OK(evo_opm_set_variant(&d, opm[i].name));
        assert_true(d.biases == opm[i].biases && d.divide == opm[i].divide && d.mask_sides == opm[i].sides);
        assert_true(d.count_eps == opm[i].eps && d.count_min == opm[i].least);
    }
    for (int i = 0; i < 6; i++) {
        evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
        d.direction = EVO_INCOMING;
        OK(evo_trimul_set_variant(&d, trimul[i].name));
        assert_true(d.biases == trimul[i].biases && d.gate_input == trimul[i].gate);
        assert_int_equal(d.direction, EVO_INCOMING);
    }
}

/* ---- pack_weights ---- */

static evo_status pack_of(const sample *s, const union case_weights *weights) {
    evo_pack *pack = NULL;
    evo_status status = s->op->pack(s->plan, weights, s->pack_memory, s->pack_size, NULL, &pack);
    if (status != EVO_OK) assert_null(pack);
    evo_pack_destroy(pack);
    return status;
}

static void test_pack_null(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        const sample *s = samples[k];
        evo_pack *pack = NULL;
        REFUSED(s->op->pack(NULL, &s->weights, s->pack_memory, s->pack_size, NULL, &pack), EVO_ERROR_NULL_POINTER,
                "plan");
        REFUSED(s->op->pack(s->plan, &s->weights, NULL, s->pack_size, NULL, &pack), EVO_ERROR_NULL_POINTER, "memory",
                number_text((long long)s->pack_size));
        REFUSED(s->op->pack(s->plan, &s->weights, s->pack_memory, s->pack_size, NULL, NULL), EVO_ERROR_NULL_POINTER,
                "pack");
        assert_null(pack);
    }
    const sample *a = samples[EVO_OP_OPM], *b = samples[EVO_OP_TRIMUL];
    evo_pack *pack = NULL;
    REFUSED(evo_opm_pack_weights(a->plan, NULL, a->pack_memory, a->pack_size, NULL, &pack), EVO_ERROR_NULL_POINTER,
            "evo_opm_pack_weights", "weights");
    REFUSED(evo_trimul_pack_weights(b->plan, NULL, b->pack_memory, b->pack_size, NULL, &pack), EVO_ERROR_NULL_POINTER,
            "evo_trimul_pack_weights", "weights");
    assert_null(pack);
}

static void test_pack_memory(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        const sample *s = samples[k];
        evo_pack *pack = NULL;
        REFUSED(s->op->pack(s->plan, &s->weights, s->pack_memory, s->pack_size - 1, NULL, &pack),
                EVO_ERROR_BUFFER_TOO_SMALL, "memory_size", number_text((long long)s->pack_size - 1), "expected");
        void *larger = device_alloc(context, s->pack_size + EVO_BUFFER_ALIGNMENT), *shifted = (char *)larger + 16;
        REFUSED(s->op->pack(s->plan, &s->weights, shifted, s->pack_size, NULL, &pack), EVO_ERROR_MISALIGNED, "memory",
                pointer_text(shifted), "expected");
        device_free(context, larger);
        /* Each weight over the beginning and over the end of the memory. */
        for (int i = 0; i < s->op->spec_count; i++) {
            const struct case_spec *spec = &s->op->specs[i];
            if (spec->role != CASE_WEIGHT || s->memory[i] == NULL) continue;
            char name[64];
            snprintf(name, sizeof name, "%s", spec->name);
            *strchr(name, '.') = '_';
            union case_weights weights = s->weights;
            evo_weight *weight = AT(evo_weight, &weights, spec->slot);
            weight->data = s->pack_memory;
            REFUSED(pack_of(s, &weights), EVO_ERROR_ALIASED, "memory", name, pointer_text(weight->data), "expected");
            weight->data = (const char *)s->pack_memory + s->pack_size - 8;
            REFUSED(pack_of(s, &weights), EVO_ERROR_ALIASED, "memory", name, pointer_text(weight->data), "expected");
        }
        assert_null(pack);
    }
}

/* Each weight: missing, of a type that weights cannot have, at half an element, too far apart, a vector with two strides. */
static void test_weights(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = samples[k];
        for (int i = 0; i < s->op->spec_count; i++) {
            const struct case_spec *spec = &s->op->specs[i];
            char name[64];
            if (spec->role != CASE_WEIGHT) continue;
            snprintf(name, sizeof name, "%s", spec->name);
            if (strchr(name, '.') != NULL) *strchr(name, '.') = '_';
            union case_weights weights = s->weights;
            evo_weight *weight = AT(evo_weight, &weights, spec->slot);
            evo_weight given = *weight;
            weight->data = NULL;
            REFUSED(pack_of(s, &weights), EVO_ERROR_NULL_POINTER, name, "NULL", "expected");
            static const evo_dtype wrong[] = { EVO_UINT8, EVO_NONE, (evo_dtype)42 };
            static const char *const texts[] = { "uint8", "none", "42" };
            for (int w = 0; w < 3; w++) {
                *weight = given;
                weight->dtype = wrong[w];
                REFUSED(pack_of(s, &weights), EVO_ERROR_INVALID_DTYPE, name, "dtype", texts[w], "expected");
            }
            *weight = given;
            weight->data = (const char *)given.data + 1;
            REFUSED(pack_of(s, &weights), EVO_ERROR_MISALIGNED, name, pointer_text(weight->data), "expected");
            *weight = given;
            weight->strides[0] = INT64_MAX / 2;
            REFUSED(pack_of(s, &weights), EVO_ERROR_SIZE_OVERFLOW, name, number_text(INT64_MAX / 2));
            if (strchr(spec->extents, ',') != NULL) continue;
            weight->strides[0] = weight->strides[1] = 1;
            REFUSED(pack_of(s, &weights), EVO_ERROR_INVALID_LAYOUT, name, "strides[1]", "1", "expected");
        }
    }
}

static void test_unwanted_bias(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = samples[k];
        for (int i = 0; i < s->op->spec_count; i++) {
            const struct case_spec *spec = &s->op->specs[i];
            if (spec->role != CASE_WEIGHT || spec->bias == 0) continue;
            union case_desc desc = s->desc;
            *s->op->common(&desc).biases &= ~spec->bias;
            evo_plan *plan = NULL;
            evo_pack *pack = NULL;
            OK(s->op->plan_create(context, &desc, &plan));
            void *memory = device_alloc(context, s->pack_size);
            REFUSED(s->op->pack(plan, &s->weights, memory, s->pack_size, NULL, &pack), EVO_ERROR_INVALID_ARGUMENT,
                    "_bias", "expected", "biases");
            device_free(context, memory);
            evo_plan_destroy(plan);
        }
    }
}

/* ---- execute ---- */

static void test_execute_null(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = samples[k];
        const sample good = *s;
        sample_mark_output(s);
        REFUSED(s->op->execute(NULL, s->pack, &s->args, s->workspace, s->workspace_size, NULL), EVO_ERROR_NULL_POINTER,
                "plan");
        REFUSED(s->op->execute(s->plan, NULL, &s->args, s->workspace, s->workspace_size, NULL), EVO_ERROR_NULL_POINTER,
                "pack");
        REFUSED(s->op->execute(s->plan, s->pack, &s->args, NULL, s->workspace_size, NULL), EVO_ERROR_NULL_POINTER,
                "workspace", "NULL", "expected");
        static const enum case_role roles[] = { CASE_INPUT, CASE_MASK, CASE_RESIDUAL, CASE_OUTPUT };
        for (int r = 0; r < 4; r++) {
            *sample_pointer(s, roles[r]) = NULL;
            REFUSED(sample_run(s), EVO_ERROR_NULL_POINTER, s->op->specs[sample_spec(s, roles[r])].name, "NULL",
                    "expected");
            *s = good;
        }
        assert_true(sample_output_marked(s));
        OK(sample_run(s));
    }
    const sample *a = samples[EVO_OP_OPM], *b = samples[EVO_OP_TRIMUL];
    REFUSED(evo_opm_execute(a->plan, a->pack, NULL, a->workspace, a->workspace_size, NULL), EVO_ERROR_NULL_POINTER,
            "evo_opm_execute", "args");
    REFUSED(evo_trimul_execute(b->plan, b->pack, NULL, b->workspace, b->workspace_size, NULL), EVO_ERROR_NULL_POINTER,
            "evo_trimul_execute", "args");
}

static void test_misaligned_pointers(void **state) {
    static const enum case_role roles[] = { CASE_INPUT, CASE_MASK, CASE_RESIDUAL, CASE_OUTPUT };
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = samples[k];
        const sample good = *s;
        for (int r = 0; r < 4; r++) {
            void **pointer = sample_pointer(s, roles[r]);
            *pointer = (char *)*pointer + 4;
            RUN_REFUSED(s, EVO_ERROR_MISALIGNED, s->op->specs[sample_spec(s, roles[r])].name, pointer_text(*pointer),
                        "16 bytes", "expected");
            *s = good;
        }
        s->workspace = (char *)s->workspace + 128;
        RUN_REFUSED(s, EVO_ERROR_MISALIGNED, "workspace", pointer_text(s->workspace), "256", "expected");
        *s = good;
    }
}

static void test_unwanted_tensors(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        static const enum case_role roles[] = { CASE_MASK, CASE_RESIDUAL };
        for (int r = 0; r < 2; r++) {
            sample *s = sample_create(sample_texts[k], context), good = *s;
            *sample_tensor(s, roles[r]) = (evo_tensor)EVO_TENSOR_INIT(EVO_NONE);
            OK(s->op->plan_create(context, &s->desc, &s->plan));
            RUN_REFUSED(s, EVO_ERROR_INVALID_ARGUMENT, s->op->specs[sample_spec(s, roles[r])].name,
                        pointer_text(*sample_pointer(s, roles[r])), "expected NULL");
            evo_plan_destroy(s->plan);
            *s = good;
            sample_destroy(s);
        }
    }
}

static void test_workspace(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = samples[k];
        const sample good = *s;
        assert_true(s->workspace_size > 0);
        s->workspace_size--;
        RUN_REFUSED(s, EVO_ERROR_BUFFER_TOO_SMALL, "workspace_size", number_text((long long)s->workspace_size),
                    number_text((long long)good.workspace_size), "expected");
        s->workspace_size = 0;
        RUN_REFUSED(s, EVO_ERROR_BUFFER_TOO_SMALL, "workspace_size", "0", "expected");
        *s = good;
    }
}

static void test_overlaps(void **state) {
    static const enum case_role roles[] = { CASE_INPUT, CASE_MASK, CASE_RESIDUAL };
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = samples[k];
        const sample good = *s;
        /* The same pointer, and the output's end reaching into the tensor, and the tensor's into the output. */
        for (int r = 0; r < 3; r++) {
            const char *name = s->op->specs[sample_spec(s, roles[r])].name;
            char *out = *sample_pointer(s, CASE_OUTPUT);
            void **pointer = sample_pointer(s, roles[r]);
            *pointer = out;
            RUN_REFUSED(s, EVO_ERROR_ALIASED, name, pointer_text(out), "out", "expected");
            *pointer = out + (s->out_bytes - 16) / 16 * 16;
            RUN_REFUSED(s, EVO_ERROR_ALIASED, name, pointer_text(*pointer), "out", "expected");
            *pointer = out - 16;
            RUN_REFUSED(s, EVO_ERROR_ALIASED, name, pointer_text(*pointer), "out", "expected");
            *s = good;
        }
        s->workspace = *sample_pointer(s, CASE_INPUT);
        RUN_REFUSED(s, EVO_ERROR_ALIASED, "workspace", pointer_text(s->workspace), "expected");
        *s = good;
        s->workspace = *sample_pointer(s, CASE_OUTPUT);
        RUN_REFUSED(s, EVO_ERROR_ALIASED, "workspace", pointer_text(s->workspace), "expected");
        *s = good;
        s->workspace = s->pack_memory; /* which may be smaller, so that a tensor behind it is named as well */
        RUN_REFUSED(s, EVO_ERROR_ALIASED, "workspace", pointer_text(s->pack_memory), "expected");
        *s = good;
        *sample_pointer(s, CASE_OUTPUT) = s->pack_memory;
        REFUSED(s->op->execute(s->plan, s->pack, &s->args, s->workspace, s->workspace_size, NULL), EVO_ERROR_ALIASED,
                "out", pointer_text(s->pack_memory), "expected");
        *s = good;
    }
}

/* With the residual allowed, the same pointer is taken and a shifted one is not. */
static void test_allowed_alias(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = sample_create(sample_texts[k], context), good = *s;
        *s->op->common(&s->desc).alias = EVO_ALIAS_RESIDUAL;
        OK(s->op->plan_create(context, &s->desc, &s->plan));
        OK(sample_run(s)); /* apart: allowed, not required */
        unsigned char *apart = sample_output(s);
        *sample_pointer(s, CASE_RESIDUAL) = (char *)*sample_pointer(s, CASE_OUTPUT) + 16;
        RUN_REFUSED(s, EVO_ERROR_ALIASED, "residual", "same pointer");
        device_copy(context, *sample_pointer(&good, CASE_OUTPUT), *sample_pointer(&good, CASE_RESIDUAL), s->out_bytes);
        *sample_pointer(s, CASE_RESIDUAL) = *sample_pointer(s, CASE_OUTPUT);
        OK(sample_run(s));
        unsigned char *together = sample_output(s);
        assert_memory_equal(apart, together, s->out_bytes);
        free(apart);
        free(together);
        evo_plan_destroy(s->plan);
        *s = good;
        sample_destroy(s);
    }
}

/* The output and the residual as halves of the channels of one array: interleaved, yet no element is shared. */
static void test_interleaved_slices(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *s = sample_create(sample_texts[k], context), good = *s;
        OK(sample_run(s));
        unsigned char *want = sample_output(s);
        const size_t rows = s->out_bytes / 24, wide = 64; /* 6 floats of 16 */
        unsigned char *host = calloc(rows, wide), *residual = malloc(s->out_bytes);
        assert_true(host != NULL && residual != NULL);
        device_copy(context, residual, *sample_pointer(s, CASE_RESIDUAL), s->out_bytes);
        for (size_t row = 0; row < rows; row++) memcpy(host + row * wide + 32, residual + row * 24, 24);
        char *both = device_alloc(context, rows * wide);
        device_copy(context, both, host, rows * wide);
        const int64_t strides[4] = { 16 * 25, 16 * 5, 16, 1 };
        memcpy(sample_tensor(s, CASE_OUTPUT)->strides, strides, sizeof strides);
        memcpy(sample_tensor(s, CASE_RESIDUAL)->strides, strides, sizeof strides);
        OK(s->op->plan_create(context, &s->desc, &s->plan));
        *sample_pointer(s, CASE_OUTPUT) = both;
        *sample_pointer(s, CASE_RESIDUAL) = both + 32;
        OK(sample_run(s));
        device_copy(context, host, both, rows * wide);
        for (size_t row = 0; row < rows; row++) {
            assert_memory_equal(host + row * wide, want + row * 24, 24);
            assert_memory_equal(host + row * wide + 32, residual + row * 24, 24);
        }
        *sample_pointer(s, CASE_RESIDUAL) = both + 16; /* now two of six channels are shared */
        REFUSED(sample_run(s), EVO_ERROR_ALIASED, "residual", "out");
        evo_plan_destroy(s->plan);
        device_free(context, both);
        free(host);
        free(want);
        free(residual);
        *s = good;
        sample_destroy(s);
    }
}

/* ---- packs and plans of something else ---- */

static void refused_pack(sample *s, const char *text, const char *part) {
    sample *other = sample_create(text, context);
    evo_pack *own = s->pack;
    s->pack = other->pack;
    RUN_REFUSED(s, EVO_ERROR_PACK_MISMATCH, "pack", part, "expected");
    s->pack = own;
    sample_destroy(other);
}

static void test_other_packs(void **state) {
    (void)state;
    refused_pack(samples[EVO_OP_OPM], sample_texts[EVO_OP_TRIMUL], "trimul");
    refused_pack(samples[EVO_OP_TRIMUL], sample_texts[EVO_OP_OPM], "opm");
    refused_pack(samples[EVO_OP_OPM], "opm(b=2,s=3,n=5,c_m=9,c=4,c_z=6)", "channels");
    refused_pack(samples[EVO_OP_OPM], "opm(b=2,s=3,n=5,c_m=8,c=5,c_z=6)", "channels");
    refused_pack(samples[EVO_OP_OPM], "opm(b=2,s=3,n=5,c_m=8,c=4,c_z=7)", "channels");
    refused_pack(samples[EVO_OP_OPM], "opm(b=2,s=3,n=5,c_m=8,c=4,c_z=6,variant=boltz)", "biases");
    refused_pack(samples[EVO_OP_TRIMUL], "trimul(b=2,n=5,c_z=7,c=4)", "channels");
    refused_pack(samples[EVO_OP_TRIMUL], "trimul(b=2,n=5,c_z=6,c=5)", "channels");
    refused_pack(samples[EVO_OP_TRIMUL], "trimul(b=2,n=5,c_z=6,c=4,c_out=7)", "channels");
    refused_pack(samples[EVO_OP_TRIMUL], "trimul(b=2,n=5,c_z=6,c=4,variant=boltz)", "biases");
}

/* Kernels have layouts of their own. Products are of bf16 numbers here, which these have on every device. */
static void test_pack_of_another_kernel(void **state) {
    static const char text[] = "opm(b=2,s=3,n=5,c_m=8,c=4,c_z=6,compute=bf16)";
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    (void)state;
    OK(evo_context_device(context, &device));
    const bool cpu = strcmp(device.name, "cpu") == 0;
    const char *better = cpu ? "blocked" : "tensor";
    sample *s = sample_create(text, context), *other = sample_create(text, context);
    sample_force_kernel(s, better);
    sample_force_kernel(other, cpu ? "reference" : "portable");
    evo_pack *own = s->pack;
    s->pack = other->pack;
    RUN_REFUSED(s, EVO_ERROR_PACK_MISMATCH, "pack", better, "pack the weights with this plan");
    s->pack = own;
    sample_destroy(s);
    sample_destroy(other);
}

/* One pack serves other sizes, activations of other types, and both directions. */
static void test_shared_pack(void **state) {
    static const char *const texts[][2] = {
        { "opm(b=2,s=3,n=5,c_m=8,c=4,c_z=6)", "opm(b=1,s=9,n=3,c_m=8,c=4,c_z=6,mask=random)" },
        { "trimul(b=2,n=5,c_z=6,c=4)", "trimul(b=1,n=8,c_z=6,c=4,direction=incoming,residual=1)" },
    };
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        sample *first = sample_create(texts[k][0], context), *second = sample_create(texts[k][1], context);
        OK(sample_run(second));
        unsigned char *want = sample_output(second);
        evo_pack *own = second->pack;
        /* The same weights in the first one's pack. */
        evo_pack_destroy(first->pack);
        OK(first->op->pack(first->plan, &second->weights, first->pack_memory, first->pack_size, NULL, &first->pack));
        second->pack = first->pack;
        sample_mark_output(second);
        OK(sample_run(second));
        unsigned char *got = sample_output(second);
        assert_memory_equal(got, want, second->out_bytes);
        second->pack = own;
        free(want);
        free(got);
        sample_destroy(first);
        sample_destroy(second);
    }
}

static void test_other_plans(void **state) {
    sample *a = samples[EVO_OP_OPM], *b = samples[EVO_OP_TRIMUL];
    evo_pack *pack = NULL;
    (void)state;
    sample_mark_output(a);
    REFUSED(a->op->execute(b->plan, b->pack, &a->args, a->workspace, a->workspace_size, NULL),
            EVO_ERROR_INVALID_ARGUMENT, "plan", "trimul", "expected", "opm");
    REFUSED(a->op->pack(b->plan, &a->weights, b->pack_memory, b->pack_size, NULL, &pack), EVO_ERROR_INVALID_ARGUMENT,
            "plan", "trimul", "expected", "opm");
    assert_null(pack);
    assert_true(sample_output_marked(a));
}

/* A pack of another context on the same device is as good; only another device's is refused. */
static void test_pack_of_another_context(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) {
        evo_context *other = test_context(NULL);
        sample *s = samples[k], *twin = sample_create(sample_texts[k], other);
        evo_pack *own = s->pack;
        OK(sample_run(s));
        unsigned char *want = sample_output(s);
        s->pack = twin->pack;
        sample_mark_output(s);
        OK(sample_run(s));
        unsigned char *got = sample_output(s);
        assert_memory_equal(got, want, s->out_bytes);
        s->pack = own;
        free(want);
        free(got);
        sample_destroy(twin);
        evo_context_destroy(other);
    }
}

/* Two devices of one kind, if there are: a pack of one is refused by the other. */
static void test_pack_of_another_device(void **state) {
    evo_device_info here = EVO_DEVICE_INFO_INIT, there = EVO_DEVICE_INFO_INIT;
    int index = 0;
    (void)state;
    OK(evo_context_device(context, &here));
    while (evo_device_get(index, &there) == EVO_OK && strcmp(here.name, there.name) == 0) index++;
    if (evo_device_get(index, &there) != EVO_OK) return; /* one device only */
    evo_context *other = NULL;
    OK(evo_context_create(there.name, NULL, &other));
    sample *twin = sample_create(sample_texts[0], other), *s = samples[0];
    evo_pack *own = s->pack;
    s->pack = twin->pack;
    RUN_REFUSED(s, EVO_ERROR_PACK_MISMATCH, "pack", there.name, here.name);
    s->pack = own;
    sample_destroy(twin);
    evo_context_destroy(other);
}

static int setup(void **state) {
    (void)state;
    unsetenv("EVO_KERNEL");
    context = test_context(NULL);
    for (int k = 0; k < SAMPLE_COUNT; k++) samples[k] = sample_create(sample_texts[k], context);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int k = 0; k < SAMPLE_COUNT; k++) sample_destroy(samples[k]);
    evo_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_null),
        cmocka_unit_test(test_extents),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_promised_alignment),
        cmocka_unit_test(test_strides),
        cmocka_unit_test(test_alias_promises),
        cmocka_unit_test(test_products_that_overflow),
        cmocka_unit_test(test_broadcasts_do_not_hide_overflow),
        cmocka_unit_test(test_struct_sizes),
        cmocka_unit_test(test_other_struct_sizes),
        cmocka_unit_test(test_unknown_kernel),
        cmocka_unit_test(test_kernel_environment),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_variant_numbers),
        cmocka_unit_test(test_pack_null),
        cmocka_unit_test(test_pack_memory),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_unwanted_bias),
        cmocka_unit_test(test_execute_null),
        cmocka_unit_test(test_misaligned_pointers),
        cmocka_unit_test(test_unwanted_tensors),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_allowed_alias),
        cmocka_unit_test(test_interleaved_slices),
        cmocka_unit_test(test_other_packs),
        cmocka_unit_test(test_pack_of_another_kernel),
        cmocka_unit_test(test_shared_pack),
        cmocka_unit_test(test_other_plans),
        cmocka_unit_test(test_pack_of_another_context),
        cmocka_unit_test(test_pack_of_another_device),
    };
    if (test_device_missing()) return TEST_SKIPPED;
    return cmocka_run_group_tests_name("refusals", tests, setup, teardown);
}
