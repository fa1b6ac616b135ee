/* npy.c: reads and writes .npy files; see the header. */
#include "io/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *descr;
    evo_dtype dtype;
} types[] = { { "<f8", EVO_FP64 },  { "<f4", EVO_FP32 },  { "<f2", EVO_FP16 },
              { "|u1", EVO_UINT8 }, { "|b1", EVO_UINT8 }, { "<u1", EVO_UINT8 } };

enum {
    TYPE_COUNT = sizeof types / sizeof types[0]
};

/* The header, a Python dict literal, and how far it is read. */
struct text {
    const char *path;
    const char *at;
    const char *end;
    struct io_error *error;
};

static bool bad_header(const struct text *t) {
    return io_fail(t->error, "%s: the .npy header is not the dict {'descr', 'fortran_order', 'shape'}", t->path);
}

static void skip_spaces(struct text *t) {
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\n')) {
        t->at++;
    }
}

/* Takes `word` if it comes next. */
static bool take(struct text *t, const char *word) {
    size_t length = strlen(word);
    skip_spaces(t);
    if ((size_t)(t->end - t->at) < length || memcmp(t->at, word, length) != 0) {
        return false;
    }
    t->at += length;
    return true;
}

/* A quoted string without escapes, shorter than `size`. */
static bool take_string(struct text *t, char *string, size_t size) {
    skip_spaces(t);
    if (t->at == t->end || (*t->at != '\'' && *t->at != '"')) {
        return false;
    }
    char quote = *t->at++;
    size_t used = 0;
    while (t->at < t->end && *t->at != quote && *t->at != '\\' && used + 1 < size) {
        string[used++] = *t->at++;
    }
    string[used] = '\0';
    if (t->at == t->end || *t->at != quote) {
        return false;
    }
    t->at++;
    return true;
}

static bool take_descr(struct text *t, struct io_array *array) {
    char descr[32];
    if (!take_string(t, descr, sizeof descr)) {
        return io_fail(t->error, "%s: unsupported dtype (structured, or no string)", t->path);
    }
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (strcmp(descr, types[i].descr) == 0) {
            array->dtype = types[i].dtype;
            return true;
        }
    }
    if (descr[0] == '>') {
        return io_fail(t->error, "%s: dtype \"%s\" is big-endian; only little-endian files are read", t->path, descr);
    }
    return io_fail(t->error, "%s: unsupported dtype \"%s\" (f8, f4, f2, u1 and b1 are read)", t->path, descr);
}

static bool take_order(struct text *t) {
    if (take(t, "True")) {
        return io_fail(t->error, "%s: the array is in Fortran order; only C order is read", t->path);
    }
    return take(t, "False") || bad_header(t);
}

static bool take_extent(struct text *t, int64_t *extent) {
    *extent = 0;
    skip_spaces(t);
    const char *start = t->at;
    for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++) {
        if (!io_multiply(*extent, 10, extent) || *extent > INT64_MAX - 9) {
            return io_fail(t->error, "%s: an extent of its shape overflows", t->path);
        }
        *extent += *t->at - '0';
    }
    return t->at > start || bad_header(t);
}

static bool take_shape(struct text *t, struct io_array *array) {
    array->rank = 0;
    if (!take(t, "(")) {
        return bad_header(t);
    }
    while (!take(t, ")")) {
        if (array->rank == IO_MAX_RANK) {
            return io_fail(t->error, "%s: more than %d dimensions", t->path, IO_MAX_RANK);
        }
        if (!take_extent(t, &array->shape[array->rank++])) {
            return false;
        }
        /* A tuple of one needs its comma; (3) would be a number. */
        if (!take(t, ",") && (array->rank == 1 || t->at == t->end || *t->at != ')')) {
            return bad_header(t);
        }
    }
    if (!io_count(array->shape, array->rank, &array->count)) {
        return io_fail(t->error, "%s: the product of its shape overflows", t->path);
    }
    return true;
}

static bool parse_dict(struct text *t, struct io_array *array) {
    bool seen[3] = { false, false, false };
    if (!take(t, "{")) {
        return bad_header(t);
    }
    while (!take(t, "}")) {
        char key[16];
        if (!take_string(t, key, sizeof key) || !take(t, ":")) {
            return bad_header(t);
        }
        int which = strcmp(key, "descr") == 0 ? 0 : strcmp(key, "fortran_order") == 0 ? 1 : 2;
        if (seen[which] || (which == 2 && strcmp(key, "shape") != 0)) {
            return bad_header(t);
        }
        seen[which] = true;
        if (!(which == 0 ? take_descr(t, array) : which == 1 ? take_order(t) : take_shape(t, array))) {
            return false;
        }
        if (!take(t, ",") && (t->at == t->end || *t->at != '}')) {
            return bad_header(t);
        }
    }
    skip_spaces(t);
    return (t->at == t->end && seen[0] && seen[1] && seen[2]) || bad_header(t);
}

static bool check_magic(const char *path, const unsigned char *bytes, size_t size, struct io_error *error) {
    if (size < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0) {
        return io_fail(error, "%s: not a .npy file", path);
    }
    if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0) {
        return io_fail(error, "%s: unknown .npy version %d.%d", path, bytes[6], bytes[7]);
    }
    return true;
}

bool npy_parse(const char *path, const unsigned char *bytes, size_t size, struct io_array *array,
               struct io_error *error) {
    memset(array, 0, sizeof *array);
    array->name = "";
    if (!check_magic(path, bytes, size, error)) {
        return false;
    }
    size_t prefix = bytes[6] == 1 ? 10 : 12;
    if (size < prefix) {
        return io_fail(error, "%s: truncated within the .npy header", path);
    }
    size_t length = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    if (prefix == 12) {
        length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    }
    if (length > size - prefix) {
        return io_fail(error, "%s: header length %zu, but only %zu bytes follow: truncated", path, length,
                       size - prefix);
    }
    const char *start = (const char *)bytes + prefix;
    struct text text = { path, start, start + length, error };
    int64_t need;
    if (!parse_dict(&text, array)) {
        return false;
    }
    if (!io_multiply(array->count, (int64_t)evo_dtype_size(array->dtype), &need)) {
        return io_fail(error, "%s: its size in bytes overflows", path);
    }
    size_t have = size - prefix - length;
    if ((uint64_t)need != have) {
        return io_fail(error, "%s: its shape needs %lld bytes of data, the file has %zu: %s", path, (long long)need,
                       have, (uint64_t)need > have ? "truncated" : "trailing bytes");
    }
    array->data = bytes + prefix + length;
    return true;
}

bool npy_read(const char *path, struct io_array *array, unsigned char **bytes, struct io_error *error) {
    size_t size;
    if (!io_read_file(path, check_magic, bytes, &size, error)) {
        return false;
    }
    if (!npy_parse(path, *bytes, size, array, error)) {
        free(*bytes);
        *bytes = NULL;
        return false;
    }
    return true;
}

bool npy_write(const char *path, const struct io_array *array, struct io_error *error) {
    const char *descr = NULL;
    for (int i = 0; i < TYPE_COUNT && descr == NULL; i++) {
        descr = types[i].dtype == array->dtype ? types[i].descr : NULL;
    }
    if (descr == NULL) {
        return io_fail(error, "%s: .npy has no type for %s; write .safetensors", path, evo_dtype_name(array->dtype));
    }
    char header[512];
    int used = snprintf(header, sizeof header, "\x93NUMPY%c%c__{'descr': '%s', 'fortran_order': False, 'shape': (", 1,
                        0, descr);
    for (int i = 0; i < array->rank; i++) {
        used += snprintf(header + used, sizeof header - (size_t)used, "%lld,%s", (long long)array->shape[i],
                         i + 1 < array->rank ? " " : "");
    }
    used += snprintf(header + used, sizeof header - (size_t)used, "), }");
    /* The data start at a multiple of 64, after a newline. */
    int total = (used + 64) / 64 * 64;
    memset(header + used, ' ', (size_t)(total - used - 1));
    header[total - 1] = '\n';
    header[8] = (char)((total - 10) % 256);
    header[9] = (char)((total - 10) / 256);
    const struct io_piece pieces[] = { { header, (size_t)total },
                                       { array->data, (size_t)array->count * evo_dtype_size(array->dtype) } };
    return io_write_file(path, pieces, 2, error);
}
