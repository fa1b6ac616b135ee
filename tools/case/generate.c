/* generate.c: random cases from a text such as "opm(variant=boltz,n=33,mask=row)"; case.h lists the keys. */
#include "case/ops.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum input_kind {
    INPUT_NORMAL,
    INPUT_SHIFTED,
    INPUT_CAUCHY,
    INPUT_CONSTANT,
    INPUT_NAN,
    INPUT_INF
};
enum mask_kind {
    MASK_NONE,
    MASK_RANDOM,
    MASK_FRACTIONAL,
    MASK_LARGE,
    MASK_ROW,
    MASK_COLUMN,
    MASK_BATCH,
    MASK_ALL
};

static const char *const input_names[] = { "normal", "shifted", "cauchy", "constant", "nan", "inf", NULL };
static const char *const mask_names[] = {
    "none", "random", "fractional", "large", "row", "column", "batch", "all", NULL
};
static const char *const layout_names[] = { "contiguous", "padded",   "offset", "transposed",
                                            "broadcast",  "negative", "slice",  NULL };
static const char *const weight_layout_names[] = { "contiguous",  "transposed", "halves", "halves_transposed",
                                                   "interleaved", "padded",     NULL };
static const char *const alias_names[] = { "none", "input", "residual", "both", NULL };
static const char *const switch_names[] = { "0", "1", NULL };

/* What a text says beyond the descriptor. */
struct recipe {
    int input;
    int mask;
    int layout;
    int weight_layout;
    int alias;
    int residual;
    int split;
    evo_dtype dtype;
    evo_dtype weights;                               /* EVO_NONE: as dtype */
    evo_dtype mask_dtype, residual_dtype, out_dtype; /* the same */
    bool mixed;
    bool compute_given;
};

static bool whole(const char *key, const char *value, int64_t *number, struct io_error *error) {
    char *end;
    errno = 0;
    long long parsed = strtoll(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0 || parsed < 0) {
        return io_fail(error, "%s: \"%s\" is not a whole number from 0 to 2^63 - 1", key, value);
    }
    *number = parsed;
    return true;
}

static bool set_dtype(const char *key, const char *value, evo_dtype *dtype, struct io_error *error) {
    return case_dtype_from_name(value, dtype) ||
           io_fail(error, "%s: \"%s\" is none of fp64, fp32, bf16, fp16, uint8", key, value);
}

/* What became of a key. */
enum key_result {
    KEY_UNKNOWN,
    KEY_TAKEN,
    KEY_BAD
};

static enum key_result taken(bool good) {
    return good ? KEY_TAKEN : KEY_BAD;
}

/* Keys that choose among names. */
static enum key_result set_choice(struct recipe *recipe, const char *key, const char *value, struct io_error *error) {
    const struct {
        const char *key;
        const char *const *names;
        int *choice;
    } choices[] = {
        { "input", input_names, &recipe->input },    { "mask", mask_names, &recipe->mask },
        { "layout", layout_names, &recipe->layout }, { "weight_layout", weight_layout_names, &recipe->weight_layout },
        { "alias", alias_names, &recipe->alias },    { "residual", switch_names, &recipe->residual },
        { "split", switch_names, &recipe->split }
    };
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (strcmp(choices[i].key, key) == 0) {
            return taken(case_choose(key, choices[i].names, value, choices[i].choice, error));
        }
    }
    return KEY_UNKNOWN;
}

/* Sizes and the op's own parameters. */
static enum key_result set_descriptor(struct evo_case *c, const char *key, const char *value, struct io_error *error) {
    const struct case_param *param = case_find_param(c->op, key);
    if (param != NULL) {
        return taken(case_set_param(c->op, &c->desc, param, value, error));
    }
    for (const struct case_dim *dim = c->op->dims; dim->letter != 0; dim++) {
        if (strcmp(dim->name, key) == 0) {
            return taken(whole(key, value, case_at(&c->desc, dim->offset), error));
        }
    }
    return KEY_UNKNOWN;
}

static bool no_key(const struct case_op *op, const char *key, struct io_error *error) {
    char own[256] = "";
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++) {
        size_t used = strlen(own);
        (void)snprintf(own + used, sizeof own - used, "%s, ", dim->name);
    }
    for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
        size_t used = strlen(own);
        if (param->name != NULL) {
            (void)snprintf(own + used, sizeof own - used, "%s, ", param->name);
        }
    }
    return io_fail(error,
                   "%s has no \"%s\"; there are variant, %sinput, mask, residual, alias, layout, weight_layout, dtype, "
                   "mask_dtype, residual_dtype, out_dtype, weights, compute, workspace_limit, runs, split",
                   op->name, key, own);
}

/* Types, compute, and how often to run. */
static bool set_other(struct evo_case *c, struct recipe *recipe, const char *key, const char *value,
                      struct io_error *error) {
    struct case_common common = c->op->common(&c->desc);
    int64_t number = 0;
    const struct {
        const char *key;
        evo_dtype *dtype;
    } dtypes[] = { { "dtype", &recipe->dtype },
                   { "mask_dtype", &recipe->mask_dtype },
                   { "residual_dtype", &recipe->residual_dtype },
                   { "out_dtype", &recipe->out_dtype } };
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(key, dtypes[i].key) == 0) {
            return set_dtype(key, value, dtypes[i].dtype, error);
        }
    }
    if (strcmp(key, "weights") == 0) {
        recipe->mixed = strcmp(value, "mixed") == 0;
        return recipe->mixed || set_dtype(key, value, &recipe->weights, error);
    }
    if (strcmp(key, "compute") == 0) {
        recipe->compute_given = true;
        return case_compute_from_name(value, common.compute) ||
               io_fail(error, "compute: \"%s\" is none of " CASE_COMPUTE_NAMES, value);
    }
    if (strcmp(key, "workspace_limit") == 0) {
        bool good = whole(key, value, &number, error);
        *common.workspace_limit = (size_t)number;
        return good;
    }
    if (strcmp(key, "runs") == 0) {
        bool good = whole(key, value, &number, error) &&
                    (number <= 1000 || io_fail(error, "runs: \"%s\" is above 1000", value));
        c->runs = (int)number;
        return good;
    }
    return no_key(c->op, key, error);
}

static bool set_key(struct evo_case *c, struct recipe *recipe, const char *key, const char *value,
                    struct io_error *error) {
    enum key_result result = set_choice(recipe, key, value, error);
    if (result == KEY_UNKNOWN) {
        result = set_descriptor(c, key, value, error);
    }
    if (result != KEY_UNKNOWN) {
        return result == KEY_TAKEN;
    }
    return set_other(c, recipe, key, value, error);
}

/* Whether a later pair begins as this one does, by so many characters: KEY=. */
static bool stands_again(const char *pair, size_t length) {
    for (const char *comma = strchr(pair, ','); comma != NULL; comma = strchr(comma + 1, ',')) {
        if (strncmp(comma + 1, pair, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Applies the pairs KEY=VALUE; the variant first wherever it stands, because the others refine it. */
static bool set_keys(struct evo_case *c, struct recipe *recipe, char *pairs, struct io_error *error) {
    for (int pass = 0; pass < 2; pass++) {
        char *next = pairs;
        while (next != NULL && *next != '\0') {
            char pair[128];
            size_t length = strcspn(next, ",");
            char *equals = memchr(next, '=', length);
            if (equals == NULL || length >= sizeof pair) {
                return io_fail(error, "\"%.*s\" is not KEY=VALUE", (int)(length < 100 ? length : 100), next);
            }
            if (stands_again(next, (size_t)(equals - next) + 1)) {
                return io_fail(error, "%.*s is given twice, expected once", (int)(equals - next), next);
            }
            memcpy(pair, next, length);
            pair[length] = '\0';
            char *value = pair + (equals - next);
            *value++ = '\0';
            bool variant = strcmp(pair, "variant") == 0;
            if (variant && pass == 0 && c->op->set_variant(&c->desc, value) != EVO_OK) {
                return io_fail(error, "%s", evo_last_error());
            }
            if (!variant && pass == 1 && !set_key(c, recipe, pair, value, error)) {
                return false;
            }
            next = next[length] == ',' ? next + length + 1 : NULL;
        }
    }
    return true;
}

/* ---- values ---- */

static void fill_normal(struct case_random *random, double *values, int64_t count, double mean, double spread) {
    for (int64_t i = 0; i < count; i++) {
        values[i] = mean + spread * case_random_normal(random);
    }
}

static void fill_weight(struct case_tensor *tensor, struct case_random *random) {
    if (tensor->rank == 2) {
        double fan_in = (double)(tensor->extents[1] > 0 ? tensor->extents[1] : 1);
        fill_normal(random, tensor->values, tensor->count, 0.0, 1.0 / sqrt(fan_in));
    } else if (tensor->spec->bias != 0) {
        fill_normal(random, tensor->values, tensor->count, 0.0, 0.3);
    } else {
        fill_normal(random, tensor->values, tensor->count, 1.0, 0.25);
    }
}

static double input_value(struct case_random *random, int kind, int64_t row) {
    double normal = case_random_normal(random);
    switch (kind) {
    case INPUT_SHIFTED:
        return 1e3 + 1e-2 * normal;
    case INPUT_CAUCHY:
        /* The quotient of two normals; fp16 would hold no more than this. */
        return fmax(-6e4, fmin(6e4, normal / case_random_normal(random)));
    default:
        /* Every seventh row is so narrow that LayerNorm's eps is seen. */
        return row % 7 == 6 ? 0.02 * normal : normal;
    }
}

/* The row that special values go to: in the middle, and no two of its indices equal where that is possible. */
static void special_row(const struct case_tensor *tensor, int64_t *row) {
    row[0] = tensor->extents[0] - 1;
    row[1] = tensor->extents[1] / 2;
    row[2] = tensor->extents[2] / 3;
}

static void fill_input(struct evo_case *c, struct case_tensor *tensor, struct case_random *random, int kind) {
    int64_t channels = tensor->extents[3];
    for (int64_t i = 0; i < tensor->count; i++) {
        tensor->values[i] = input_value(random, kind, i / channels);
    }
    special_row(tensor, c->poison_row);
    if (kind < INPUT_CONSTANT || tensor->count == 0) {
        return;
    }
    int64_t first =
        ((c->poison_row[0] * tensor->extents[1] + c->poison_row[1]) * tensor->extents[2] + c->poison_row[2]) * channels;
    for (int64_t i = 0; i < channels && kind == INPUT_CONSTANT; i++) {
        tensor->values[first + i] = 1.5;
    }
    c->poisoned = kind == INPUT_NAN || kind == INPUT_INF;
    if (c->poisoned) {
        tensor->values[first + channels / 2] = kind == INPUT_NAN ? (double)NAN : (double)INFINITY;
    }
}

static double mask_value(struct case_random *random, int kind) {
    double uniform = case_random_uniform(random);
    switch (kind) {
    case MASK_FRACTIONAL:
        return 0.05 + 0.95 * uniform;
    case MASK_LARGE:
        return 200.0 * uniform;
    default:
        return uniform < 0.2 ? 0.0 : 1.0;
    }
}

static bool blanked(const struct case_tensor *tensor, int kind, int64_t index) {
    int64_t columns = tensor->extents[2];
    int64_t rows = tensor->extents[1];
    switch (kind) {
    case MASK_ROW:
        return index / columns % rows == rows / 2;
    case MASK_COLUMN:
        return index % columns == columns / 2;
    case MASK_BATCH:
        return index / columns / rows == tensor->extents[0] - 1;
    default:
        return kind == MASK_ALL;
    }
}

static bool fill_tensor(struct evo_case *c, struct case_tensor *tensor, const struct recipe *recipe,
                        struct io_error *error) {
    struct case_random random;
    case_random_seed(&random, c->seed, tensor->spec->name);
    tensor->values = case_alloc(tensor->count, error);
    if (tensor->values == NULL) {
        return false;
    }
    switch (tensor->spec->role) {
    case CASE_INPUT:
        fill_input(c, tensor, &random, recipe->input);
        break;
    case CASE_MASK:
        for (int64_t i = 0; i < tensor->count; i++) {
            double value = mask_value(&random, recipe->mask);
            tensor->values[i] = blanked(tensor, recipe->mask, i) ? 0.0 : value;
        }
        break;
    case CASE_RESIDUAL:
        fill_normal(&random, tensor->values, tensor->count, 0.0, 1.0);
        break;
    case CASE_WEIGHT:
        fill_weight(tensor, &random);
        break;
    case CASE_OUTPUT:
        break;
    }
    case_round(tensor->values, tensor->count, tensor->dtype);
    return true;
}

/* A fused pair has one type: b takes a's. */
static evo_dtype weight_dtype(const struct evo_case *c, const struct recipe *recipe, int spec) {
    static const evo_dtype mix[] = { EVO_FP32, EVO_BF16, EVO_FP16, EVO_FP64 };
    int partner = case_partner(c->op, spec);
    if (recipe->mixed) {
        return mix[(partner >= 0 && partner < spec ? partner : spec) % 4];
    }
    return recipe->weights != EVO_NONE ? recipe->weights : recipe->dtype;
}

/* The type that a text gives a tensor by a key of its own, or EVO_NONE. */
static evo_dtype own_dtype(const struct evo_case *c, const struct recipe *recipe, int spec) {
    switch (c->op->specs[spec].role) {
    case CASE_MASK:
        return recipe->mask_dtype;
    case CASE_RESIDUAL:
        return recipe->residual_dtype;
    case CASE_OUTPUT:
        return recipe->out_dtype;
    case CASE_WEIGHT:
        return weight_dtype(c, recipe, spec);
    case CASE_INPUT:
        break;
    }
    return EVO_NONE;
}

static bool fill(struct evo_case *c, const struct recipe *recipe, struct io_error *error) {
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        const enum case_role role = tensor->spec->role;
        const evo_dtype own = own_dtype(c, recipe, i);
        tensor->dtype = own != EVO_NONE ? own : recipe->dtype;
        if (role != CASE_WEIGHT) { /* which are there or not by the descriptor's biases */
            tensor->present = role == CASE_MASK       ? recipe->mask != MASK_NONE
                              : role == CASE_RESIDUAL ? recipe->residual != 0
                                                      : true;
        }
        if (tensor->present && role != CASE_OUTPUT && !fill_tensor(c, tensor, recipe, error)) {
            return false;
        }
    }
    return true;
}

static bool start(struct evo_case *c, const char *text, uint64_t seed, char **pairs, struct io_error *error) {
    size_t length = strcspn(text, "(");
    memset(c, 0, sizeof *c);
    if (strlen(text) >= sizeof c->name) {
        return io_fail(error, "\"%.40s...\" is too long for a case", text);
    }
    (void)snprintf(c->name, sizeof c->name, "%.*s", (int)length, text);
    c->op = case_op_find(c->name);
    if (c->op == NULL) {
        return io_fail(error, "\"%s\" is no op; there are " CASE_OP_NAMES, c->name);
    }
    size_t rest = strlen(text + length);
    if (rest == 1 || (rest > 1 && text[length + rest - 1] != ')')) {
        return io_fail(error, "\"%s\" ends without \")\", expected OP(KEY=VALUE,...)", text);
    }
    (void)snprintf(c->name, sizeof c->name, "%s", text);
    *pairs = rest > 2 ? malloc(rest) : calloc(1, 1);
    if (*pairs == NULL) {
        return io_fail_memory(error, "a case");
    }
    if (rest > 2) {
        memcpy(*pairs, text + length + 1, rest - 2);
        (*pairs)[rest - 2] = '\0';
    }
    c->seed = seed;
    c->runs = 1;
    c->op->init(&c->desc);
    for (const struct case_dim *dim = c->op->dims; dim->letter != 0; dim++) {
        (void)case_set_dim(c, dim->letter, dim->standard);
    }
    return true;
}

bool case_parse(const char *text, uint64_t seed, struct evo_case *result, struct io_error *error) {
    struct recipe recipe = { .mask = MASK_RANDOM, .dtype = EVO_FP32 };
    char *pairs = NULL;
    error->text[0] = '\0';
    bool good = start(result, text, seed, &pairs, error) && set_keys(result, &recipe, pairs, error);
    free(pairs);
    if (good) {
        struct case_common common = result->op->common(&result->desc);
        *common.alias = (unsigned)recipe.alias;
        if (!recipe.compute_given) {
            *common.compute = case_default_compute(recipe.dtype);
        }
        result->hard = recipe.input != INPUT_NORMAL || recipe.mask == MASK_LARGE;
        result->split = recipe.split != 0;
        good =
            case_prepare(result, error) && fill(result, &recipe, error) &&
            case_lay_out(result, (enum case_layout)recipe.layout, (enum case_weight_layout)recipe.weight_layout, error);
    }
    if (!good) {
        case_destroy(result);
    }
    return good;
}
