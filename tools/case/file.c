/* file.c: cases from arrays and from case files, the JSON of variants, case files from cases. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case/ops.h"
#include "io/json.h"
#include "io/safetensors.h"

/* ---- sizes from shapes ---- */

void case_unbind(const struct case_op *op, union case_desc *desc) {
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++) {
        *(int64_t *)case_at(desc, dim->offset) = -1;
    }
}

/* Sets an unknown size that stands alone in its product ("c", "2c"); leaves others. */
static void learn(const struct case_op *op, union case_desc *desc, const char *text, int64_t extent) {
    int64_t factor = 1;
    if (*text >= '1' && *text <= '9') {
        factor = *text++ - '0';
    }
    bool alone = text[0] != '\0' && (text[1] == '\0' || text[1] == ',');
    for (const struct case_dim *dim = op->dims; dim->letter != 0 && alone; dim++) {
        int64_t *size = case_at(desc, dim->offset);
        if (dim->letter == *text && *size < 0 && extent % factor == 0) {
            *size = extent / factor;
        }
    }
}

bool case_bind(const struct case_op *op, union case_desc *desc, const char *extents, const int64_t *shape, int rank) {
    const char *text = extents;
    for (int i = 0; i < rank; i++) {
        char one[16];
        int64_t value;
        size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof one) {
            return false;
        }
        memcpy(one, text, length);
        one[length] = '\0';
        learn(op, desc, one, shape[i]);
        if (case_product(op, desc, one, &value) && value != shape[i]) {
            return false;
        }
        text += length + (text[length] == ',');
    }
    return *text == '\0';
}

/* ---- a case from arrays ---- */

static bool misshaped(const struct case_op *op, const union case_desc *desc, const struct case_given *given,
                      const char *extents, struct io_error *error) {
    char have[128];
    char want[128];
    int64_t values[CASE_MAX_RANK];
    int rank;
    io_shape_text(given->array->shape, given->array->rank, have, sizeof have);
    if (case_products(op, desc, extents, values, &rank)) {
        io_shape_text(values, rank, want, sizeof want);
    } else {
        (void)snprintf(want, sizeof want, "[%s]", extents);
    }
    return io_fail(error, "%s: tensor \"%s\" has shape %s, expected %s", given->file, given->array->name, have, want);
}

static bool bind_sizes(const struct case_op *op, union case_desc *desc, const struct case_given *given,
                       struct io_error *error) {
    for (int i = 0; i < op->spec_count; i++) {
        const struct io_array *array = given[i].array;
        if (op->specs[i].role != CASE_OUTPUT && array != NULL && !given[i].view &&
            !case_bind(op, desc, op->specs[i].extents, array->shape, array->rank)) {
            return misshaped(op, desc, &given[i], op->specs[i].extents, error);
        }
    }
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++) {
        int64_t *size = case_at(desc, dim->offset);
        if (*size < 0 && dim->fallback != 0) {
            *size = 0;
        } else if (*size < 0) {
            return io_fail(error, "the size %s is not known: no tensor tells it", dim->name);
        }
    }
    return true;
}

/* Each tensor that must be there is, none is there that must not be, and types and shapes are right. */
static bool check_given(const struct evo_case *c, int i, const struct case_given *given, struct io_error *error) {
    const struct case_spec *spec = &c->op->specs[i];
    const struct case_tensor *tensor = &c->tensors[i];
    bool needed = spec->role == CASE_INPUT || (spec->role == CASE_WEIGHT && tensor->present);
    if (given->array == NULL) {
        return !needed || io_fail(error, "%s: tensor \"%s\" is missing", given->file, spec->name);
    }
    if (spec->role == CASE_WEIGHT && !tensor->present) {
        return io_fail(error, "%s: tensor \"%s\" is there, but the variant has no such bias", given->file,
                       given->array->name);
    }
    if (given->array->dtype == EVO_UINT8 && spec->role != CASE_MASK) {
        return io_fail(error, "%s: tensor \"%s\" has integer type; only a mask may", given->file, given->array->name);
    }
    bool fits = given->array->rank == tensor->rank &&
                memcmp(given->array->shape, tensor->extents, (size_t)tensor->rank * sizeof *tensor->extents) == 0;
    return given->view || fits || misshaped(c->op, &c->desc, given, spec->extents, error);
}

/* The view must stay within its array. */
static bool check_view(const struct case_tensor *tensor, const struct case_given *given, struct io_error *error) {
    int64_t low = given->offset;
    int64_t high = given->offset;
    bool fits = low >= 0 && low <= given->array->count;
    for (int i = 0; i < tensor->rank && tensor->count > 0 && fits; i++) {
        int64_t stride = given->strides[i];
        int64_t reach;
        fits = stride > -INT64_MAX && io_multiply(tensor->extents[i] - 1, stride < 0 ? -stride : stride, &reach) &&
               reach <= given->array->count;
        if (fits) {
            low -= stride < 0 ? reach : 0;
            high += stride < 0 ? 0 : reach;
        }
    }
    if (!fits || (tensor->count > 0 && (low < 0 || high >= given->array->count))) {
        return io_fail(error, "%s: the view \"%s\" reaches outside \"%s\"", given->file, tensor->spec->name,
                       given->array->name);
    }
    return true;
}

static double *values_of(const struct io_array *array, struct io_error *error) {
    double *values = case_alloc(array->count, error);
    if (values != NULL) {
        io_array_values(array, 0, array->count, values);
    }
    return values;
}

/* Turns the tensors that are views into views: the first of an array brings it, in place of its own buffer. */
static bool make_views(struct evo_case *c, const struct case_given *given, struct io_error *error) {
    for (int i = 0; i < c->op->spec_count; i++) {
        struct case_tensor *tensor = &c->tensors[i];
        if (!tensor->present || !given[i].view) {
            continue;
        }
        int first = 0;
        while (first < i && !(given[first].view && given[first].array == given[i].array)) {
            first++;
        }
        struct case_buffer *buffer = &c->buffers[tensor->buffer];
        *buffer = (struct case_buffer){ tensor->dtype, 0, NULL };
        if (first < i) {
            tensor->buffer = c->tensors[first].buffer;
        } else {
            buffer->count = given[i].array->count;
            buffer->values = values_of(given[i].array, error);
            if (buffer->values == NULL) {
                return false;
            }
        }
        tensor->offset = given[i].offset;
        memcpy(tensor->strides, given[i].strides, sizeof given[i].strides);
    }
    return true;
}

static bool take_tensor(struct evo_case *c, int i, const struct case_given *given, struct io_error *error) {
    struct case_tensor *tensor = &c->tensors[i];
    if (!check_given(c, i, given, error)) {
        return false;
    }
    tensor->present = given->array != NULL;
    if (tensor->present) {
        tensor->dtype = given->array->dtype;
        if (given->view) {
            return check_view(tensor, given, error);
        }
        tensor->values = values_of(given->array, error);
    }
    return !tensor->present || tensor->values != NULL;
}

static bool take_expected(struct evo_case *c, const struct case_given *expected, struct io_error *error) {
    const struct case_tensor *out = case_result_of(c);
    if (expected == NULL || expected->array == NULL) {
        return true;
    }
    if (expected->array->rank != out->rank ||
        memcmp(expected->array->shape, out->extents, (size_t)out->rank * sizeof *out->extents) != 0) {
        return misshaped(c->op, &c->desc, expected, out->spec->extents, error);
    }
    c->expected = values_of(expected->array, error);
    return c->expected != NULL;
}

bool case_from_arrays(const struct case_op *op, const union case_desc *desc, const struct case_given *given,
                      const struct case_given *expected, struct evo_case *result, struct io_error *error) {
    memset(result, 0, sizeof *result);
    result->op = op;
    result->desc = *desc;
    result->runs = 1;
    bool good = bind_sizes(op, &result->desc, given, error) && case_prepare(result, error);
    for (int i = 0; i < op->spec_count && good; i++) {
        if (op->specs[i].role != CASE_OUTPUT) {
            good = take_tensor(result, i, &given[i], error);
        }
    }
    if (good) {
        struct case_tensor *out = case_output(result);
        out->present = true;
        out->dtype = case_input(result)->dtype;
        *op->common(&result->desc).compute = case_default_compute(out->dtype);
        good = take_expected(result, expected, error) &&
               case_lay_out(result, CASE_CONTIGUOUS, CASE_WEIGHT_CONTIGUOUS, error) && make_views(result, given, error);
    }
    if (!good) {
        case_destroy(result);
    }
    return good;
}

/* ---- variants as JSON ---- */

static bool bits_from_json(const struct case_op *op, unsigned mask, const cJSON *list, unsigned *biases,
                           struct io_error *error) {
    const cJSON *item;
    if (!cJSON_IsArray(list)) {
        return io_fail(error, "variant: \"%s\" is not a list", list->string);
    }
    *biases &= ~mask;
    cJSON_ArrayForEach(item, list) {
        unsigned bit = cJSON_IsString(item) ? case_bias_bit(op, item->valuestring, strlen(item->valuestring)) : 0;
        if ((bit & mask) == 0) {
            return io_fail(error, "variant: \"%s\" lists \"%s\", which is no such bias of %s", list->string,
                           cJSON_IsString(item) ? item->valuestring : "?", op->name);
        }
        *biases |= bit;
    }
    return true;
}

static bool param_from_json(const struct case_op *op, union case_desc *desc, const struct case_param *param,
                            const cJSON *item, struct io_error *error) {
    unsigned *biases = op->common(desc).biases;
    switch (param->kind) {
    case CASE_PARAM_NUMBER:
        /* 1e999 is read as infinity, which JSON could not write. */
        if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)) {
            return io_fail(error, "variant: \"%s\" is not a finite number", param->json);
        }
        *(double *)case_at(desc, param->offset) = item->valuedouble;
        return true;
    case CASE_PARAM_CHOICE:
        if (!cJSON_IsString(item)) {
            return io_fail(error, "variant: \"%s\" is not a string", param->json);
        }
        return case_set_param(op, desc, param, item->valuestring, error);
    case CASE_PARAM_BIT:
        if (!cJSON_IsBool(item)) {
            return io_fail(error, "variant: \"%s\" is neither true nor false", param->json);
        }
        *biases = cJSON_IsTrue(item) ? *biases | param->bits : *biases & ~param->bits;
        return true;
    case CASE_PARAM_BITS:
        return bits_from_json(op, param->bits, item, biases, error);
    case CASE_PARAM_FIXED:
        return (cJSON_IsString(item) && strcmp(item->valuestring, param->choices[0]) == 0) ||
               io_fail(error, "variant: \"%s\" is not \"%s\"", param->json, param->choices[0]);
    }
    return false;
}

static const struct case_param *param_with_json(const struct case_op *op, const char *key) {
    for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
        if (param->json != NULL && strcmp(param->json, key) == 0) {
            return param;
        }
    }
    return NULL;
}

static bool params_from_json(const struct case_op *op, union case_desc *desc, const cJSON *object, bool *residual,
                             struct io_error *error) {
    const cJSON *flag = cJSON_GetObjectItemCaseSensitive(object, "residual");
    if (!cJSON_IsBool(flag)) {
        return io_fail(error, "variant: \"residual\" is missing, or neither true nor false");
    }
    *residual = cJSON_IsTrue(flag);
    for (const cJSON *item = object->child; item != NULL; item = item->next) {
        if (item != flag && param_with_json(op, item->string) == NULL) {
            return io_fail(error, "variant: %s has no \"%s\"", op->name, item->string);
        }
    }
    for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
        const cJSON *item = param->json == NULL ? NULL : cJSON_GetObjectItemCaseSensitive(object, param->json);
        if (item == NULL && param->json != NULL && !param->optional) {
            return io_fail(error, "variant: \"%s\" is missing", param->json);
        }
        if (item != NULL && !param_from_json(op, desc, param, item, error)) {
            return false;
        }
    }
    return true;
}

bool case_variant_from_json(const struct case_op *op, union case_desc *desc, const char *text, bool *residual,
                            struct io_error *error) {
    if (text[strspn(text, " \t\r\n")] != '{') {
        *residual = false;
        return op->set_variant(desc, text) == EVO_OK || io_fail(error, "variant: %s", evo_last_error());
    }
    cJSON *object = cJSON_ParseWithOpts(text, NULL, 1);
    bool good = json_short()             ? io_fail(error, "variant: out of memory")
                : cJSON_IsObject(object) ? params_from_json(op, desc, object, residual, error)
                                         : io_fail(error, "variant: not valid JSON");
    cJSON_Delete(object);
    return good;
}

static cJSON *bits_to_json(const struct case_op *op, unsigned bits) {
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < op->spec_count && list != NULL; i++) {
        const char *name = op->specs[i].name;
        if ((op->specs[i].bias & bits) != 0) {
            char stem[64];
            (void)snprintf(stem, sizeof stem, "%.*s", (int)(strlen(name) - strlen(".bias")), name);
            (void)json_append(list, cJSON_CreateString(stem));
        }
    }
    return list;
}

/* cJSON itself writes 15 digits, of which another number may be read. */
static cJSON *number_to_json(double value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%.15g", value);
    if (strtod(text, NULL) != value) {
        (void)snprintf(text, sizeof text, "%.17g", value);
    }
    return cJSON_CreateRaw(text);
}

static cJSON *param_to_json(const struct case_op *op, const union case_desc *desc, const struct case_param *param) {
    const void *at = case_at_const(desc, param->offset);
    switch (param->kind) {
    case CASE_PARAM_NUMBER:
        return number_to_json(*(const double *)at);
    case CASE_PARAM_CHOICE:
        return cJSON_CreateString(param->choices[*(const unsigned *)at]);
    case CASE_PARAM_BIT:
        return cJSON_CreateBool((*(const unsigned *)at & param->bits) != 0);
    case CASE_PARAM_BITS:
        return bits_to_json(op, *(const unsigned *)at & param->bits);
    case CASE_PARAM_FIXED:
        return cJSON_CreateString(param->choices[0]);
    }
    return NULL;
}

char *case_variant_to_json(const struct case_op *op, const union case_desc *desc, bool residual) {
    cJSON *object = cJSON_CreateObject();
    for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
        if (param->json != NULL) {
            cJSON *item = param_to_json(op, desc, param);
            if (!cJSON_AddItemToObject(object, param->json, item)) {
                cJSON_Delete(item);
            }
        }
    }
    (void)cJSON_AddBoolToObject(object, "residual", residual);
    return json_line(object);
}

/* ---- case files ---- */

static bool read_metadata(struct case_file *l, struct io_error *error) {
    const char *op = safetensors_metadata(&l->arrays, "op");
    const char *variant = safetensors_metadata(&l->arrays, "variant");
    const char *views = safetensors_metadata(&l->arrays, "views");
    struct io_error inner;
    if (op == NULL || variant == NULL) {
        return io_fail(error, "%s: no case file: its metadata have no \"%s\"", l->path, op == NULL ? "op" : "variant");
    }
    l->op = case_op_find(op);
    if (l->op == NULL) {
        return io_fail(error, "%s: op \"%s\" is unknown", l->path, op);
    }
    l->op->init(&l->desc);
    if (!case_variant_from_json(l->op, &l->desc, variant, &l->residual, &inner)) {
        return io_fail(error, "%s: %s", l->path, inner.text);
    }
    l->views = views == NULL ? cJSON_CreateObject() : cJSON_ParseWithOpts(views, NULL, 1);
    if (json_short()) {
        return io_fail(error, "%s: out of memory", l->path);
    }
    return cJSON_IsObject(l->views) || io_fail(error, "%s: views is not a JSON object", l->path);
}

static bool take_arrays(struct case_file *l, struct io_error *error) {
    for (int i = 0; i < CASE_MAX_TENSORS; i++) {
        l->given[i].file = l->path;
    }
    l->expected.file = l->path;
    for (size_t i = 0; i < l->arrays.count; i++) {
        const struct io_array *array = &l->arrays.arrays[i];
        int spec = case_find_spec(l->op, array->name);
        if (spec >= 0 && l->op->specs[spec].role != CASE_OUTPUT) {
            bool unused = l->op->specs[spec].role == CASE_RESIDUAL && !l->residual;
            if (unused) {
                return io_fail(error, "%s: tensor \"residual\" is there, but the variant has none", l->path);
            }
            l->given[spec].array = array;
        } else if (strcmp(array->name, "expected") == 0) {
            l->expected.array = array;
        } else if (strncmp(array->name, "peer.", 5) != 0) {
            return io_fail(error, "%s: tensor \"%s\" is none of %s", l->path, array->name, l->op->name);
        }
    }
    if (l->residual && l->given[case_find_spec(l->op, "residual")].array == NULL) {
        return io_fail(error, "%s: tensor \"residual\" is missing", l->path);
    }
    return true;
}

static bool whole_number(const cJSON *item, int64_t *value) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= -9e15 && item->valuedouble <= 9e15)) {
        return false;
    }
    *value = (int64_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}

/* Takes one entry of `views`. */
static bool take_view(struct case_file *l, const cJSON *view, struct io_error *error) {
    int spec = case_find_spec(l->op, view->string);
    const cJSON *from = cJSON_GetObjectItemCaseSensitive(view, "from");
    const cJSON *offset = cJSON_GetObjectItemCaseSensitive(view, "offset");
    const cJSON *strides = cJSON_GetObjectItemCaseSensitive(view, "strides");
    if (spec < 0 || l->op->specs[spec].role != CASE_WEIGHT) {
        return io_fail(error, "%s: views: \"%s\" is no weight of %s", l->path, view->string, l->op->name);
    }
    struct case_given *given = &l->given[spec];
    int rank = strchr(l->op->specs[spec].extents, ',') == NULL ? 1 : 2;
    if (!cJSON_IsString(from) || !whole_number(offset, &given->offset) || !cJSON_IsArray(strides) ||
        cJSON_GetArraySize(strides) != rank || cJSON_GetArraySize(view) != 3) {
        return io_fail(error, "%s: views: \"%s\" is not {\"from\", \"offset\", \"strides\"} of a %s", l->path,
                       view->string, rank == 1 ? "vector" : "matrix");
    }
    for (int i = 0; i < rank; i++) {
        if (!whole_number(cJSON_GetArrayItem(strides, i), &given->strides[i])) {
            return io_fail(error, "%s: views: \"%s\": a stride is not a whole number", l->path, view->string);
        }
    }
    given->array = safetensors_find(&l->arrays, from->valuestring);
    if (given->array == NULL) {
        return io_fail(error, "%s: views: \"%s\" is from \"%s\", which is missing", l->path, view->string,
                       from->valuestring);
    }
    given->view = true;
    struct case_tensor tensor = { .spec = &l->op->specs[spec] };
    if (!case_products(l->op, &l->desc, tensor.spec->extents, tensor.extents, &tensor.rank) ||
        !io_count(tensor.extents, tensor.rank, &tensor.count)) {
        return io_fail(error, "%s: the size of %s overflows", l->path, view->string);
    }
    return check_view(&tensor, given, error);
}

static bool take_views(struct case_file *l, struct io_error *error) {
    /* The canonical tensors tell the sizes, and are then replaced. */
    case_unbind(l->op, &l->desc);
    if (!bind_sizes(l->op, &l->desc, l->given, error)) {
        return false;
    }
    for (const cJSON *view = l->views->child; view != NULL; view = view->next) {
        if (!take_view(l, view, error)) {
            return false;
        }
    }
    return true;
}

/* The file's name without folder and ending. */
static void name_case(struct evo_case *c, const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    const char *dot = strrchr(name, '.');
    size_t length = dot == NULL ? strlen(name) : (size_t)(dot - name);
    (void)snprintf(c->name, sizeof c->name, "%.*s", (int)(length < sizeof c->name ? length : sizeof c->name - 1), name);
}

/* The rest of opening, once the arrays are there. */
static bool take_file(struct case_file *file, enum case_source source, struct io_error *error) {
    bool good = read_metadata(file, error) && take_arrays(file, error);
    if (good) {
        struct case_file viewed = *file;
        file->has_views = file->views->child != NULL;
        /* Views are tried even where they are not wanted: a file that lies about them is a bad file. */
        good = take_views(&viewed, error);
        file->desc = viewed.desc;
        if (source == CASE_VIEWS) {
            memcpy(file->given, viewed.given, sizeof file->given);
        }
    }
    if (!good) {
        case_file_close(file);
    }
    return good;
}

bool case_file_open(const char *path, enum case_source source, struct case_file *file, struct io_error *error) {
    memset(file, 0, sizeof *file);
    file->path = path;
    return safetensors_read(path, &file->arrays, error) && take_file(file, source, error);
}

void case_file_close(struct case_file *file) {
    cJSON_Delete(file->views);
    safetensors_free(&file->arrays);
    file->views = NULL;
}

static bool build(const struct case_file *file, struct evo_case *result, struct io_error *error) {
    struct io_error inner;
    if (!case_from_arrays(file->op, &file->desc, file->given, &file->expected, result, &inner)) {
        bool told = strncmp(inner.text, file->path, strlen(file->path)) == 0;
        return io_fail(error, "%s%s%s", told ? "" : file->path, told ? "" : ": ", inner.text);
    }
    name_case(result, file->path);
    return true;
}

bool case_load(const char *path, enum case_source source, struct evo_case *result, bool *has_views,
               struct io_error *error) {
    struct case_file file;
    memset(result, 0, sizeof *result);
    if (!case_file_open(path, source, &file, error)) {
        return false;
    }
    bool good = build(&file, result, error);
    if (has_views != NULL) {
        *has_views = file.has_views;
    }
    case_file_close(&file);
    return good;
}

bool case_load_bytes(const char *name, const unsigned char *bytes, size_t size, struct evo_case *result,
                     struct io_error *error) {
    struct case_file file;
    memset(result, 0, sizeof *result);
    memset(&file, 0, sizeof file);
    file.path = name;
    if (!safetensors_parse(name, bytes, size, &file.arrays, error) || !take_file(&file, CASE_CANONICAL, error)) {
        return false;
    }
    bool good = build(&file, result, error);
    case_file_close(&file);
    return good;
}

/* ---- writing ---- */

/* Converts values into `bytes`, which the array then points to. */
static bool add_array(struct io_array *array, const struct case_tensor *tensor, const char *name, evo_dtype dtype,
                      const double *values) {
    unsigned char *bytes = malloc((size_t)tensor->count * evo_dtype_size(dtype) + 1);
    if (bytes == NULL) {
        return false;
    }
    (void)evo_convert(values, EVO_FP64, bytes, dtype, (size_t)tensor->count);
    *array =
        (struct io_array){ .name = name, .dtype = dtype, .rank = tensor->rank, .count = tensor->count, .data = bytes };
    memcpy(array->shape, tensor->extents, sizeof tensor->extents);
    return true;
}

static bool save(const char *path, const struct evo_case *c, struct io_error *error) {
    struct io_array arrays[CASE_MAX_TENSORS + 1];
    size_t count = 0;
    bool good = true;
    for (int i = 0; i < c->op->spec_count && good; i++) {
        const struct case_tensor *tensor = &c->tensors[i];
        if (tensor->present && tensor->values != NULL) {
            good = add_array(&arrays[count], tensor, tensor->spec->name, tensor->dtype, tensor->values);
            count += good;
        }
    }
    if (good && c->expected != NULL) {
        good = add_array(&arrays[count], case_result_of(c), "expected", EVO_FP64, c->expected);
        count += good;
    }
    char *variant = case_variant_to_json(c->op, &c->desc, c->tensors[case_find_spec(c->op, "residual")].present);
    const struct safetensors_string metadata[] = { { "op", c->op->name }, { "variant", variant }, { "peer", "evo" } };
    good = (good && variant != NULL) || io_fail(error, "%s: out of memory", path);
    good = good && safetensors_write(path, arrays, count, metadata, 3, error);
    cJSON_free(variant);
    for (size_t i = 0; i < count; i++) {
        free((void *)(uintptr_t)arrays[i].data);
    }
    return good;
}

bool case_save(const char *path, const struct evo_case *c, struct io_error *error) {
    struct evo_case copy;
    if (!case_copy(c, &copy, error)) {
        return false;
    }
    bool good = case_gather(&copy, error) && save(path, &copy, error);
    case_destroy(&copy);
    return good;
}
