/* op.c: the table of ops, and what follows from an op's tables: sizes, products of sizes, parameters by name. */
#include "case/ops.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct case_op *const ops[] = { &case_op_opm, &case_op_trimul };

const struct case_op *case_op_get(int index) {
    return index >= 0 && (size_t)index < sizeof ops / sizeof ops[0] ? ops[index] : NULL;
}

const struct case_op *case_op_find(const char *name) {
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (strcmp(ops[i]->name, name) == 0) {
            return ops[i];
        }
    }
    return NULL;
}

/* The size behind a letter; -1 if the op has none such. */
static int64_t dim_value(const struct case_op *op, const union case_desc *desc, char letter) {
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++) {
        if (dim->letter == letter) {
            int64_t value = *(const int64_t *)case_at_const(desc, dim->offset);
            return value == 0 && dim->fallback != 0 ? dim_value(op, desc, dim->fallback) : value;
        }
    }
    return -1;
}

/* The product up to the next comma; moves *text there. */
static bool product(const struct case_op *op, const union case_desc *desc, const char **text, int64_t *value) {
    *value = 1;
    for (; **text != '\0' && **text != ','; ++*text) {
        char letter = **text;
        int64_t factor = letter >= '0' && letter <= '9' ? letter - '0' : dim_value(op, desc, letter);
        if (!io_multiply(*value, factor, value)) {
            return false;
        }
    }
    return true;
}

bool case_product(const struct case_op *op, const union case_desc *desc, const char *text, int64_t *value) {
    return product(op, desc, &text, value);
}

bool case_products(const struct case_op *op, const union case_desc *desc, const char *text, int64_t *values,
                   int *rank) {
    for (*rank = 0; *rank < CASE_MAX_RANK; text++) {
        if (!product(op, desc, &text, &values[(*rank)++])) {
            return false;
        }
        if (*text == '\0') {
            return true;
        }
    }
    return false;
}

int case_find_spec(const struct case_op *op, const char *name) {
    for (int i = 0; i < op->spec_count; i++) {
        if (strcmp(op->specs[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

int case_partner(const struct case_op *op, int spec) {
    const char *name = op->specs[spec].name;
    if ((name[0] != 'a' && name[0] != 'b') || (name[1] != '.' && name[1] != '_')) {
        return -1;
    }
    for (int i = 0; i < op->spec_count; i++) {
        if (i != spec && op->specs[i].name[0] == (name[0] == 'a' ? 'b' : 'a') &&
            strcmp(op->specs[i].name + 1, name + 1) == 0) {
            return i;
        }
    }
    return -1;
}

const struct case_param *case_find_param(const struct case_op *op, const char *name) {
    for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
        if (param->name != NULL && strcmp(param->name, name) == 0) {
            return param;
        }
    }
    return NULL;
}

static bool set_number(void *at, const char *name, const char *text, struct io_error *error) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value)) {
        return io_fail(error, "%s: \"%s\" is not a number", name, text);
    }
    memcpy(at, &value, sizeof value);
    return true;
}

bool case_choose(const char *name, const char *const *choices, const char *text, int *choice, struct io_error *error) {
    char all[256] = "";
    for (int i = 0; choices[i] != NULL; i++) {
        if (strcmp(choices[i], text) == 0) {
            *choice = i;
            return true;
        }
        strncat(all, i > 0 ? ", " : "", sizeof all - strlen(all) - 1);
        strncat(all, choices[i], sizeof all - strlen(all) - 1);
    }
    return io_fail(error, "%s: \"%s\" is none of %s", name, text, all);
}

unsigned case_bias_bit(const struct case_op *op, const char *name, size_t length) {
    for (int i = 0; i < op->spec_count; i++) {
        const struct case_spec *spec = &op->specs[i];
        if (spec->bias != 0 && strncmp(spec->name, name, length) == 0 && strcmp(spec->name + length, ".bias") == 0) {
            return spec->bias;
        }
    }
    return 0;
}

static bool no_bias(const struct case_op *op, const char *text, size_t length, struct io_error *error) {
    char all[256] = "";
    for (int i = 0; i < op->spec_count; i++) {
        if (op->specs[i].bias != 0) {
            size_t used = strlen(all);
            (void)snprintf(all + used, sizeof all - used, "%.*s, ", (int)strcspn(op->specs[i].name, "."),
                           op->specs[i].name);
        }
    }
    return io_fail(error, "biases: \"%.*s\" is no bias of %s; there are %snone and all",
                   (int)(length < 64 ? length : 64), text, op->name, all);
}

static bool set_bits(const struct case_op *op, unsigned *bits, const char *text, struct io_error *error) {
    *bits = 0;
    for (int i = 0; i < op->spec_count && strcmp(text, "all") == 0; i++) {
        *bits |= op->specs[i].bias;
    }
    if (strcmp(text, "none") == 0 || strcmp(text, "all") == 0) {
        return true;
    }
    for (;;) {
        size_t length = strcspn(text, "+,");
        unsigned bit = case_bias_bit(op, text, length);
        if (bit == 0) {
            return no_bias(op, text, length, error);
        }
        *bits |= bit;
        if (text[length] == '\0') {
            return true;
        }
        text += length + 1;
    }
}

bool case_set_param(const struct case_op *op, union case_desc *desc, const struct case_param *param, const char *text,
                    struct io_error *error) {
    const char *name = param->name != NULL ? param->name : param->json;
    void *at = case_at(desc, param->offset);
    switch (param->kind) {
    case CASE_PARAM_NUMBER:
        return set_number(at, name, text, error);
    case CASE_PARAM_CHOICE:
        return case_choose(name, param->choices, text, at, error); /* the API's enums are ints */
    case CASE_PARAM_BITS:
        return set_bits(op, at, text, error);
    case CASE_PARAM_BIT:
    case CASE_PARAM_FIXED:
        break;
    }
    return io_fail(error, "%s cannot be set from text", name);
}

bool case_dtype_from_name(const char *name, evo_dtype *dtype) {
    static const evo_dtype all[] = { EVO_FP64, EVO_FP32, EVO_BF16, EVO_FP16, EVO_UINT8 };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(evo_dtype_name(all[i]), name) == 0) {
            *dtype = all[i];
            return true;
        }
    }
    return false;
}

bool case_compute_from_name(const char *name, evo_compute *compute) {
    static const evo_compute all[] = { EVO_COMPUTE_FP32, EVO_COMPUTE_FP32_STRICT, EVO_COMPUTE_TF32,
                                       EVO_COMPUTE_BF16, EVO_COMPUTE_FP16,        EVO_COMPUTE_FP64 };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(evo_compute_name(all[i]), name) == 0) {
            *compute = all[i];
            return true;
        }
    }
    return false;
}

evo_compute case_default_compute(evo_dtype dtype) {
    switch (dtype) {
    case EVO_FP64:
        return EVO_COMPUTE_FP64;
    case EVO_BF16:
        return EVO_COMPUTE_BF16;
    case EVO_FP16:
        return EVO_COMPUTE_FP16;
    case EVO_FP32:
    case EVO_UINT8:
    case EVO_NONE:
        break;
    }
    return EVO_COMPUTE_FP32;
}
