/* safetensors.c: reads and writes safetensors files; see the header. */
#include "io/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

/* What the format's own implementation takes at most. */
#define HEADER_MOST 100000000u
/* The largest integer below which every one is exact in the double that cJSON keeps. */
#define EXACT_MOST 9007199254740992.0

#define METADATA "__metadata__"

static const struct {
    const char *name;
    evo_dtype dtype;
} types[] = { { "F64", EVO_FP64 },  { "F32", EVO_FP32 }, { "F16", EVO_FP16 },
              { "BF16", EVO_BF16 }, { "U8", EVO_UINT8 }, { "BOOL", EVO_UINT8 } };

enum {
    TYPE_COUNT = sizeof types / sizeof types[0]
};

/* Where an array's data lie, for the check that the spans tile the file. */
struct span {
    int64_t begin;
    int64_t end;
    const char *name;
};

static bool exact_integer(const cJSON *item, int64_t *value) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0) || item->valuedouble > EXACT_MOST) {
        return false;
    }
    *value = (int64_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}

static bool read_type(const char *path, const cJSON *item, struct io_array *array, struct io_error *error) {
    if (!cJSON_IsString(item)) {
        return io_fail(error, "%s: tensor \"%s\": dtype is not a string", path, array->name);
    }
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (strcmp(item->valuestring, types[i].name) == 0) {
            array->dtype = types[i].dtype;
            return true;
        }
    }
    return io_fail(error, "%s: tensor \"%s\": unsupported dtype \"%s\" (F64, F32, F16, BF16, U8 and BOOL are read)",
                   path, array->name, item->valuestring);
}

static bool read_shape(const char *path, const cJSON *item, struct io_array *array, struct io_error *error) {
    if (!cJSON_IsArray(item)) {
        return io_fail(error, "%s: tensor \"%s\": shape is not an array", path, array->name);
    }
    array->rank = 0;
    const cJSON *extent;
    cJSON_ArrayForEach(extent, item) {
        if (array->rank == IO_MAX_RANK) {
            return io_fail(error, "%s: tensor \"%s\": more than %d dimensions", path, array->name, IO_MAX_RANK);
        }
        if (!exact_integer(extent, &array->shape[array->rank++])) {
            return io_fail(error, "%s: tensor \"%s\": shape is not a list of integers", path, array->name);
        }
    }
    if (!io_count(array->shape, array->rank, &array->count)) {
        return io_fail(error, "%s: tensor \"%s\": the product of its shape overflows", path, array->name);
    }
    return true;
}

static bool read_span(const char *path, const cJSON *item, int64_t data_size, struct io_array *array, struct span *span,
                      struct io_error *error) {
    int64_t bytes;
    span->name = array->name;
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 ||
        !exact_integer(cJSON_GetArrayItem(item, 0), &span->begin) ||
        !exact_integer(cJSON_GetArrayItem(item, 1), &span->end)) {
        return io_fail(error, "%s: tensor \"%s\": data_offsets is not a pair of integers", path, array->name);
    }
    if (span->begin > span->end) {
        return io_fail(error, "%s: tensor \"%s\": data_offsets end before they begin", path, array->name);
    }
    if (span->end > data_size) {
        return io_fail(error, "%s: tensor \"%s\": its data end at byte %lld of %lld: truncated, or a wrong offset",
                       path, array->name, (long long)span->end, (long long)data_size);
    }
    if (!io_multiply(array->count, (int64_t)evo_dtype_size(array->dtype), &bytes)) {
        return io_fail(error, "%s: tensor \"%s\": its size in bytes overflows", path, array->name);
    }
    if (bytes != span->end - span->begin) {
        return io_fail(error, "%s: tensor \"%s\": its shape needs %lld bytes, data_offsets give %lld", path,
                       array->name, (long long)bytes, (long long)(span->end - span->begin));
    }
    return true;
}

static bool read_entry(const char *path, const cJSON *entry, const unsigned char *data, int64_t data_size,
                       struct io_array *array, struct span *span, struct io_error *error) {
    array->name = entry->string;
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    if (!cJSON_IsObject(entry) || dtype == NULL || shape == NULL || offsets == NULL || cJSON_GetArraySize(entry) != 3) {
        return io_fail(error, "%s: tensor \"%s\" is not an object of dtype, shape and data_offsets", path,
                       entry->string);
    }
    if (!read_type(path, dtype, array, error) || !read_shape(path, shape, array, error) ||
        !read_span(path, offsets, data_size, array, span, error)) {
        return false;
    }
    array->data = data + span->begin;
    return true;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int compare_spans(const void *a, const void *b) {
    const struct span *x = a;
    const struct span *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end < y->end ? -1 : x->end > y->end;
}

/* No key of an object twice: which of the two is meant would depend on the reader. */
static bool check_names(const char *path, const cJSON *object, const char *what, struct io_error *error) {
    size_t count = (size_t)cJSON_GetArraySize(object);
    const char **names = malloc((count + 1) * sizeof *names);
    if (names == NULL) {
        return io_fail(error, "%s: out of memory", path);
    }
    size_t used = 0;
    const cJSON *entry;
    cJSON_ArrayForEach(entry, object) {
        names[used++] = entry->string;
    }
    qsort(names, used, sizeof *names, compare_names);
    bool good = true;
    for (size_t i = 1; i < used && good; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            good = io_fail(error, "%s: two %s are named \"%s\"", path, what, names[i]);
        }
    }
    free(names);
    return good;
}

/* The spans must tile the data: no overlap, no gap, nothing after the last. */
static bool check_spans(const char *path, struct span *spans, size_t count, int64_t data_size, struct io_error *error) {
    int64_t reached = 0;
    if (count > 0) {
        qsort(spans, count, sizeof *spans, compare_spans);
    }
    for (size_t i = 0; i < count; i++) {
        if (spans[i].begin < reached) {
            return io_fail(error, "%s: the data of tensors \"%s\" and \"%s\" overlap", path, spans[i - 1].name,
                           spans[i].name);
        }
        if (spans[i].begin > reached) {
            return io_fail(error, "%s: %lld bytes before the data of tensor \"%s\" belong to none", path,
                           (long long)(spans[i].begin - reached), spans[i].name);
        }
        reached = spans[i].end;
    }
    if (reached != data_size) {
        return io_fail(error, "%s: %lld bytes after the last tensor's data", path, (long long)(data_size - reached));
    }
    return true;
}

static bool check_metadata(const char *path, const cJSON *metadata, struct io_error *error) {
    const cJSON *entry;
    if (!cJSON_IsObject(metadata)) {
        return io_fail(error, "%s: " METADATA " is not an object", path);
    }
    cJSON_ArrayForEach(entry, metadata) {
        if (!cJSON_IsString(entry)) {
            return io_fail(error, "%s: " METADATA " \"%s\" is not a string", path, entry->string);
        }
    }
    return check_names(path, metadata, "entries of " METADATA, error);
}

/* The header's length and its first byte, which even the beginning of a file has. */
static bool check_start(const char *path, const unsigned char *bytes, size_t size, struct io_error *error) {
    uint64_t claimed = 0;
    if (size < 10) {
        return io_fail(error, "%s: %zu bytes are too few for a safetensors file", path, size);
    }
    for (int i = 7; i >= 0; i--) {
        claimed = claimed << 8 | bytes[i];
    }
    if (claimed < 2 || claimed > HEADER_MOST) {
        return io_fail(error, "%s: header length %llu: no safetensors file, or damaged", path,
                       (unsigned long long)claimed);
    }
    return bytes[8] == '{' || io_fail(error, "%s: the header is not a JSON object", path);
}

/* Bytes of the UTF-8 sequence at `text`; 0 if it is none (overlong, a surrogate, cut off, past U+10FFFF). */
static size_t utf8_length(const unsigned char *text, size_t room) {
    const unsigned char lead = text[0];
    const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length > room) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    const bool wrong = (lead == 0xe0 && text[1] < 0xa0) || (lead == 0xed && text[1] > 0x9f) ||
                       (lead == 0xf0 && text[1] < 0x90) || (lead == 0xf4 && text[1] > 0x8f);
    return wrong ? 0 : length;
}

/* What cJSON lets pass: bytes that are no UTF-8, and control characters within strings. */
static bool check_text(const char *path, const unsigned char *text, size_t length, struct io_error *error) {
    bool in_string = false;
    for (size_t i = 0, step; i < length; i += step) {
        step = utf8_length(text + i, length - i);
        if (step == 0) {
            return io_fail(error, "%s: the header is not UTF-8 (at its byte %zu)", path, i);
        }
        if (text[i] < 0x20 && (in_string || text[i] == '\0')) {
            return io_fail(error, "%s: the header has a control character in a string (at its byte %zu)", path, i);
        }
        if (in_string && text[i] == '\\' && i + 1 < length && text[i + 1] < 0x80 && text[i + 1] >= 0x20) {
            step = 2;
        } else if (text[i] == '"') {
            in_string = !in_string;
        }
    }
    return true;
}

static bool parse_header(const char *path, const unsigned char *bytes, size_t size, size_t *length,
                         struct safetensors *result, struct io_error *error) {
    if (!check_start(path, bytes, size, error)) {
        return false;
    }
    *length = (size_t)bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 | (size_t)bytes[3] << 24;
    if (*length > size - 8) {
        return io_fail(error, "%s: header length %zu, but only %zu bytes follow: truncated, or no safetensors file",
                       path, *length, size - 8);
    }
    if (!check_text(path, bytes + 8, *length, error)) {
        return false;
    }
    const char *text = (const char *)bytes + 8;
    const char *end = NULL;
    result->header = cJSON_ParseWithLengthOpts(text, *length, &end, 0);
    if (json_short()) {
        return io_fail(error, "%s: out of memory", path);
    }
    if (result->header == NULL || !cJSON_IsObject(result->header)) {
        return io_fail(error, "%s: the header is not valid JSON (near byte %lld)", path,
                       end == NULL ? 0ll : (long long)(end - text));
    }
    for (const char *p = end; p < text + *length; p++) {
        if (strchr(" \t\r\n", *p) == NULL) {
            return io_fail(error, "%s: the header goes on after its JSON object", path);
        }
    }
    return check_names(path, result->header, "tensors", error);
}

static bool parse_entries(const char *path, const unsigned char *data, int64_t data_size, struct safetensors *result,
                          struct io_error *error) {
    size_t most = (size_t)cJSON_GetArraySize(result->header) + 1;
    struct span *spans = calloc(most, sizeof *spans);
    result->arrays = calloc(most, sizeof *result->arrays);
    bool good = spans != NULL && result->arrays != NULL;
    if (!good) {
        (void)io_fail(error, "%s: out of memory", path);
    }
    for (const cJSON *entry = result->header->child; entry != NULL && good; entry = entry->next) {
        if (strcmp(entry->string, METADATA) == 0) {
            good = check_metadata(path, entry, error);
            continue;
        }
        good = read_entry(path, entry, data, data_size, &result->arrays[result->count], &spans[result->count], error);
        result->count += good;
    }
    good = good && check_spans(path, spans, result->count, data_size, error);
    free(spans);
    return good;
}

bool safetensors_parse(const char *path, const unsigned char *bytes, size_t size, struct safetensors *result,
                       struct io_error *error) {
    size_t length = 0;
    memset(result, 0, sizeof *result);
    if (!parse_header(path, bytes, size, &length, result, error) ||
        !parse_entries(path, bytes + 8 + length, (int64_t)(size - 8 - length), result, error)) {
        safetensors_free(result);
        return false;
    }
    return true;
}

bool safetensors_read(const char *path, struct safetensors *result, struct io_error *error) {
    unsigned char *bytes;
    size_t size;
    memset(result, 0, sizeof *result);
    if (!io_read_file(path, check_start, &bytes, &size, error)) {
        return false;
    }
    if (!safetensors_parse(path, bytes, size, result, error)) {
        free(bytes);
        return false;
    }
    result->bytes = bytes;
    return true;
}

void safetensors_free(struct safetensors *file) {
    cJSON_Delete(file->header);
    free(file->arrays);
    free(file->bytes);
    memset(file, 0, sizeof *file);
}

const struct io_array *safetensors_find(const struct safetensors *file, const char *name) {
    for (size_t i = 0; i < file->count; i++) {
        if (strcmp(file->arrays[i].name, name) == 0) {
            return &file->arrays[i];
        }
    }
    return NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key) {
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, METADATA);
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, key));
}

/* ---- writing ---- */

/* All digits: cJSON itself writes 15 of them. */
static cJSON *whole_number(int64_t value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    return cJSON_CreateRaw(text);
}

static bool add_entry(cJSON *header, const struct io_array *array, int64_t *offset) {
    const char *type = NULL;
    for (int i = 0; i < TYPE_COUNT && type == NULL; i++) {
        type = types[i].dtype == array->dtype ? types[i].name : NULL;
    }
    cJSON *entry = cJSON_AddObjectToObject(header, array->name);
    cJSON *shape = NULL;
    if (type == NULL || cJSON_AddStringToObject(entry, "dtype", type) == NULL ||
        (shape = cJSON_AddArrayToObject(entry, "shape")) == NULL) {
        return false;
    }
    for (int i = 0; i < array->rank; i++) {
        (void)json_append(shape, whole_number(array->shape[i]));
    }
    cJSON *span = cJSON_AddArrayToObject(entry, "data_offsets");
    (void)json_append(span, whole_number(*offset));
    *offset += array->count * (int64_t)evo_dtype_size(array->dtype);
    (void)json_append(span, whole_number(*offset));
    return cJSON_GetArraySize(shape) == array->rank && cJSON_GetArraySize(span) == 2;
}

static char *make_header(const struct io_array *arrays, size_t count, const struct safetensors_string *metadata,
                         size_t metadata_count) {
    cJSON *header = cJSON_CreateObject();
    cJSON *strings = cJSON_AddObjectToObject(header, METADATA);
    bool good = strings != NULL;
    int64_t offset = 0;
    for (size_t i = 0; i < metadata_count; i++) {
        good = good && cJSON_AddStringToObject(strings, metadata[i].key, metadata[i].value) != NULL;
    }
    for (size_t i = 0; i < count; i++) {
        good = good && add_entry(header, &arrays[i], &offset);
    }
    if (!good) {
        cJSON_Delete(header);
        return NULL;
    }
    return json_line(header);
}

bool safetensors_write(const char *path, const struct io_array *arrays, size_t count,
                       const struct safetensors_string *metadata, size_t metadata_count, struct io_error *error) {
    char *text = make_header(arrays, count, metadata, metadata_count);
    struct io_piece *pieces = calloc(count + 3, sizeof *pieces);
    bool good = text != NULL && pieces != NULL;
    if (!good) {
        (void)io_fail(error, "%s: out of memory", path);
    } else {
        /* Spaces after the JSON start the data at a multiple of 8. */
        unsigned char prefix[8];
        size_t length = strlen(text);
        size_t padding = (8 - length % 8) % 8;
        for (int i = 0; i < 8; i++) {
            prefix[i] = (unsigned char)((uint64_t)(length + padding) >> 8 * i & 255u);
        }
        pieces[0] = (struct io_piece){ prefix, sizeof prefix };
        pieces[1] = (struct io_piece){ text, length };
        pieces[2] = (struct io_piece){ "        ", padding };
        for (size_t i = 0; i < count; i++) {
            pieces[3 + i].data = arrays[i].data;
            pieces[3 + i].size = (size_t)arrays[i].count * evo_dtype_size(arrays[i].dtype);
        }
        good = io_write_file(path, pieces, count + 3, error);
    }
    cJSON_free(text);
    free(pieces);
    return good;
}
