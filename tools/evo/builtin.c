/*
 * builtin.c: the cases that `evo check` has of its own: each op and variant, each type, sizes around those of tiles,
 * masks, inputs that are hard, layouts, weights as every project stores them. Texts are those of case_parse.
 */
#include "builtin.h"

#include <stdio.h>
#include <string.h>

/* For every op and type, and both directions where an op has them. */
static const char *const common[] = {
    /* sizes */
    "n=1", "n=2", "n=7", "n=31", "n=33", "n=100,c=4,c_z=4", "n=101,c=4,c_z=4", "n=127,c=4,c_z=4", "n=129,c=4,c_z=4",
    "n=0", "b=0", "b=0,n=0", "b=2,n=9", "n=5,c=8", "n=5,c=16", "n=5,c=24", "n=5,c=32", "n=5,c=40", "n=5,c=64",
    "n=5,c=96", "n=5,c=128,c_z=8",
    /* masks */
    "n=9,mask=none", "n=9,mask=fractional", "n=9,mask=large", "n=9,mask=large,mask_max=400", "n=9,b=2,mask=row",
    "n=9,b=2,mask=column", "n=9,b=2,mask=batch", "n=9,mask=all", "n=9,mask=all,residual=1", "n=9,mask_dtype=uint8",
    "n=9,mask=large,mask_dtype=uint8", "n=9,mask=fractional,mask_dtype=fp64", "n=9,mask=fractional,mask_dtype=fp32",
    "n=9,mask=fractional,mask_dtype=bf16", "n=9,mask=fractional,mask_dtype=fp16",
    /* types of their own */
    "n=9,residual=1,residual_dtype=fp32", "n=9,out_dtype=fp32", "n=9,residual=1,residual_dtype=bf16,out_dtype=fp16",
    /* inputs */
    "n=9,input=constant", "n=9,input=shifted", "n=9,input=cauchy", "n=9,b=2,mask=none,input=nan",
    "n=9,b=2,mask=fractional,input=nan", "n=9,b=2,mask=none,input=inf", "n=9,residual=1,mask=fractional,input=inf",
    "n=9,ln_eps=0.1", "n=9,residual=1", "n=9,biases=none",
    /* layouts */
    "b=2,residual=1,layout=padded", "b=2,residual=1,layout=offset", "b=2,residual=1,layout=transposed",
    "b=2,residual=1,layout=broadcast", "b=2,residual=1,layout=negative", "b=2,residual=1,layout=slice",
    "n=33,layout=offset", "n=33,layout=transposed,mask_dtype=uint8", "n=1,layout=slice", "n=2,layout=negative",
    /* weights */
    "weight_layout=transposed", "weight_layout=halves", "weight_layout=halves_transposed", "weight_layout=interleaved",
    "weight_layout=padded", "weights=fp64", "weights=fp32", "weights=bf16", "weights=fp16", "weights=mixed",
    "weights=mixed,weight_layout=interleaved,layout=padded",
    /* the same bits again, and batch entries alone */
    "n=33,runs=3", "b=3,n=9,split=1", "b=3,n=9,split=1,mask=row,residual=1", "b=3,n=17,split=1,layout=padded,runs=2",
    NULL
};

/* For every variant besides. */
static const char *const per_variant[] = { "",
                                           "mask=none",
                                           "mask=fractional",
                                           "mask=row,b=2",
                                           "mask=column,b=2",
                                           "mask=batch,b=2",
                                           "mask=all",
                                           "residual=1",
                                           "n=33",
                                           NULL };

/* Arithmetic other than the type's own: both the faster ones and the more exact. */
static const char *const computes[] = { "fp32_strict", "tf32", "bf16", "fp16", "fp32", NULL };
static const char *const per_compute[] = {
    "n=9", "n=33,residual=1", "n=9,mask=large", "n=9,input=shifted", "n=9,c_z=64,c=32,input=shifted", NULL
};

struct maker {
    const struct builtin_choice *choice;
    bool (*take)(void *user, const char *text);
    void *user;
    const struct case_op *op;
    const char *dtype;
    bool stopped;
};

/* Puts a text together; every part but the op may be empty. */
static void make(struct maker *m, const char *variant, const char *direction, const char *compute, const char *rest) {
    char text[CASE_NAME_SIZE];
    if (m->stopped) {
        return;
    }
    (void)snprintf(text, sizeof text, "%s(variant=%s,dtype=%s%s%s%s%s%s%s)", m->op->name, variant, m->dtype,
                   compute != NULL ? ",compute=" : "", compute != NULL ? compute : "",
                   direction != NULL ? ",direction=" : "", direction != NULL ? direction : "",
                   rest[0] != '\0' ? "," : "", rest);
    m->stopped = !m->take(m->user, text);
}

/* One text for each direction. */
static void make_directions(struct maker *m, const char *variant, const char *compute, const char *rest) {
    const struct case_param *direction = case_find_param(m->op, "direction");
    if (direction == NULL) {
        make(m, variant, NULL, compute, rest);
        return;
    }
    for (const char *const *name = direction->choices; *name != NULL; name++) {
        make(m, variant, *name, compute, rest);
    }
}

/* Whether the op has all sizes and parameters that a text sets; keys of every case are none of the op's. */
static bool applies(const struct case_op *op, const char *text) {
    static const char *const of_some_ops[] = { "c", "c_z", "ln_eps", "mask_max", NULL };
    for (const char *at = text; *at != '\0'; at += at[0] == ',') {
        size_t length = strcspn(at, "=");
        bool needed = false, there = false;
        for (const char *const *key = of_some_ops; *key != NULL; key++) {
            needed = needed || (strlen(*key) == length && strncmp(*key, at, length) == 0);
        }
        for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++) {
            there = there || (strlen(dim->name) == length && strncmp(dim->name, at, length) == 0);
        }
        for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
            there = there ||
                    (param->name != NULL && strlen(param->name) == length && strncmp(param->name, at, length) == 0);
        }
        if (needed && !there) {
            return false;
        }
        at += strcspn(at, ",");
    }
    return true;
}

static void make_list(struct maker *m, const char *variant, const char *compute, const char *const *list) {
    for (const char *const *rest = list; *rest != NULL; rest++) {
        if (applies(m->op, *rest)) {
            make_directions(m, variant, compute, *rest);
        }
    }
}

/* fp64 is a world of its own; fp32 is what 32 bits compute in anyway, 16 bits can be told to. */
static bool mode_fits(evo_dtype dtype, const char *compute) {
    evo_compute mode;
    return case_compute_from_name(compute, &mode) && (mode == EVO_COMPUTE_FP64) == (dtype == EVO_FP64);
}

static void make_type(struct maker *m, evo_dtype dtype) {
    const char *compute = m->choice->compute;
    m->dtype = evo_dtype_name(dtype);
    if (compute != NULL && !mode_fits(dtype, compute)) {
        return;
    }
    const char *first = m->op->variant(0);
    for (int i = 0; m->op->variant(i) != NULL; i++) {
        make_list(m, m->op->variant(i), compute, per_variant);
    }
    make_list(m, first, compute, common);
    make_list(m, first, compute, m->op->checks);
    for (const char *const *other = computes; *other != NULL && compute == NULL; other++) {
        if (mode_fits(dtype, *other) && strcmp(*other, evo_compute_name(case_default_compute(dtype))) != 0) {
            make_list(m, first, *other, per_compute);
        }
    }
}

void builtin_cases(const struct builtin_choice *choice, bool (*take)(void *user, const char *text), void *user) {
    static const evo_dtype dtypes[] = { EVO_FP64, EVO_FP32, EVO_BF16, EVO_FP16 };
    struct maker m = { .choice = choice, .take = take, .user = user };
    for (int i = 0; (m.op = case_op_get(i)) != NULL; i++) {
        for (size_t k = 0; k < sizeof dtypes / sizeof dtypes[0]; k++) {
            bool wanted = (choice->op == NULL || strcmp(choice->op, m.op->name) == 0) &&
                          (choice->dtype == EVO_NONE || choice->dtype == dtypes[k]);
            if (wanted) {
                make_type(&m, dtypes[k]);
            }
        }
    }
}
