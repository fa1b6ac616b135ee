/* case.c: what a case owns: its tensors' shapes and values, copies, other number types, the fp64 twin, batch entries. */
#include "case/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double *case_alloc(int64_t count, struct io_error *error) {
    int64_t bytes;
    double *values = io_multiply(count > 0 ? count : 1, (int64_t)sizeof *values, &bytes) ? malloc((size_t)bytes) : NULL;
    if (values == NULL) {
        char what[64];
        (void)snprintf(what, sizeof what, "%lld values", (long long)count);
        (void)io_fail_memory(error, what);
    }
    return values;
}

void case_round(double *values, int64_t count, evo_dtype dtype) {
    unsigned char rounded[1024 * sizeof(double)];
    for (int64_t first = 0; first < count && dtype != EVO_FP64; first += 1024) {
        size_t now = (size_t)(count - first < 1024 ? count - first : 1024);
        (void)evo_convert(values + first, EVO_FP64, rounded, dtype, now);
        (void)evo_convert(rounded, dtype, values + first, EVO_FP64, now);
    }
}

int64_t case_element(const struct case_tensor *tensor, int64_t index) {
    int64_t at = tensor->offset;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        at += index % tensor->extents[i] * tensor->strides[i];
        index /= tensor->extents[i];
    }
    return at;
}

void case_contiguous(const int64_t *extents, int rank, int64_t *strides) {
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= extents[i] > 1 ? extents[i] : 1;
    }
}

bool case_set_dim(struct evo_case *c, char letter, int64_t value) {
    for (const struct case_dim *dim = c->op->dims; dim->letter != 0; dim++) {
        if (dim->letter == letter) {
            *(int64_t *)case_at(&c->desc, dim->offset) = value;
            return true;
        }
    }
    return false;
}

bool case_prepare(struct evo_case *c, struct io_error *error) {
    unsigned biases = *c->op->common(&c->desc).biases;
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        tensor->spec = &c->op->specs[i];
        if (!case_products(c->op, &c->desc, tensor->spec->extents, tensor->extents, &tensor->rank) ||
            !io_count(tensor->extents, tensor->rank, &tensor->count) || tensor->count > INT64_MAX / 64) {
            return io_fail(error, "the size of %s overflows", tensor->spec->name);
        }
        if (tensor->spec->role == CASE_WEIGHT) {
            tensor->present = tensor->spec->bias == 0 || (biases & tensor->spec->bias) != 0;
        }
    }
    return true;
}

void case_destroy(struct evo_case *c) {
    for (int i = 0; i < CASE_MAX_TENSORS; i++) {
        free(c->tensors[i].values);
        free(c->buffers[i].values);
        c->tensors[i].values = NULL;
        c->buffers[i].values = NULL;
    }
    free(c->expected);
    c->expected = NULL;
}

/* Replaces a pointer that a struct copy shares with a copy of its own. */
static bool own(double **values, int64_t count, struct io_error *error) {
    if (*values != NULL) {
        double *mine = case_alloc(count, error);
        if (mine != NULL) {
            memcpy(mine, *values, (size_t)count * sizeof *mine);
        }
        *values = mine;
        return mine != NULL;
    }
    return true;
}

bool case_copy(const struct evo_case *c, struct evo_case *result, struct io_error *error) {
    bool good = true;
    *result = *c;
    for (int i = 0; i < CASE_MAX_TENSORS; i++) {
        good = own(&result->tensors[i].values, c->tensors[i].count, error) && good;
        good = own(&result->buffers[i].values, c->buffers[i].count, error) && good;
    }
    good = own(&result->expected, case_output(result)->count, error) && good;
    if (!good) {
        case_destroy(result);
    }
    return good;
}

static void retype_tensor(struct evo_case *c, struct case_tensor *tensor, evo_dtype dtype) {
    struct case_buffer *buffer = &c->buffers[tensor->buffer];
    if (tensor->values != NULL) {
        case_round(tensor->values, tensor->count, dtype);
    }
    if (buffer->values != NULL) {
        case_round(buffer->values, buffer->count, dtype);
    }
    tensor->dtype = dtype;
    buffer->dtype = dtype;
    if (tensor->alignment != 0) {
        tensor->alignment = evo_dtype_size(dtype);
    }
}

bool case_retype(struct evo_case *c, evo_dtype activations, evo_dtype weights, struct io_error *error) {
    (void)error;
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        evo_dtype dtype = tensor->spec->role == CASE_WEIGHT ? weights : activations;
        bool counts = tensor->spec->role == CASE_MASK && tensor->dtype == EVO_UINT8;
        if (tensor->present && dtype != EVO_NONE && !counts) {
            retype_tensor(c, tensor, dtype);
        }
    }
    return true;
}

bool case_gather(struct evo_case *c, struct io_error *error) {
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        if (!tensor->present || tensor->values != NULL || tensor->spec->role == CASE_OUTPUT) {
            continue;
        }
        tensor->values = case_alloc(tensor->count, error);
        if (tensor->values == NULL) {
            return false;
        }
        for (int64_t k = 0; k < tensor->count; k++) {
            tensor->values[k] = c->buffers[tensor->buffer].values[case_element(tensor, k)];
        }
    }
    for (int i = 0; i < CASE_MAX_TENSORS; i++) {
        free(c->buffers[i].values);
        c->buffers[i].values = NULL;
    }
    return true;
}

bool case_reference(const struct evo_case *c, struct evo_case *result, struct io_error *error) {
    if (!case_copy(c, result, error)) {
        return false;
    }
    struct case_common common = result->op->common(&result->desc);
    *common.alias = EVO_ALIAS_NONE;
    *common.compute = EVO_COMPUTE_FP64;
    *common.workspace_limit = 0;
    *common.kernel = "reference";
    result->runs = 1;
    result->split = false;
    bool good = case_gather(result, error);
    for (int i = 0; i < result->op->spec_count; i++) {
        result->tensors[i].dtype = EVO_FP64;
    }
    if (!good || !case_lay_out(result, CASE_CONTIGUOUS, CASE_WEIGHT_CONTIGUOUS, error)) {
        case_destroy(result);
        return false;
    }
    return true;
}

bool case_split(const struct evo_case *c, int64_t index, struct evo_case *result, struct io_error *error) {
    if (!case_copy(c, result, error)) {
        return false;
    }
    int64_t batch = case_output(result)->extents[0];
    bool good = case_gather(result, error) && case_set_dim(result, 'B', 1) && case_prepare(result, error);
    for (int i = 0; i < result->op->spec_count && good; i++) {
        struct case_tensor *tensor = &result->tensors[i];
        if (tensor->values != NULL && tensor->spec->extents[0] == 'B') {
            memmove(tensor->values, tensor->values + index * tensor->count,
                    (size_t)tensor->count * sizeof *tensor->values);
        }
    }
    if (good && result->expected != NULL && batch > 0) {
        int64_t count = case_output(result)->count;
        memmove(result->expected, result->expected + index * count, (size_t)count * sizeof *result->expected);
    }
    result->split = false;
    if (!good || !case_lay_out(result, c->layout, c->weight_layout, error)) {
        case_destroy(result);
        return false;
    }
    return true;
}

const struct case_tensor *case_result_of(const struct evo_case *c) {
    int spec = 0;
    while (c->op->specs[spec].role != CASE_OUTPUT) {
        spec++;
    }
    return &c->tensors[spec];
}

static struct case_tensor *find_role(struct evo_case *c, enum case_role role) {
    for (int i = 0; i < c->op->spec_count; i++) {
        if (c->op->specs[i].role == role) {
            return &c->tensors[i];
        }
    }
    return NULL;
}

struct case_tensor *case_output(struct evo_case *c) {
    return find_role(c, CASE_OUTPUT);
}

struct case_tensor *case_input(struct evo_case *c) {
    return find_role(c, CASE_INPUT);
}

struct case_tensor *case_find(struct evo_case *c, const char *name) {
    int spec = case_find_spec(c->op, name);
    return spec < 0 ? NULL : &c->tensors[spec];
}
