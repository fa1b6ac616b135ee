/* array.c: typed arrays as double, whole files in and out. */
#include "io/array.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The formats are little-endian; so is every host that this library runs on. */
#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file readers need a little-endian host"
#endif

void io_array_values(const struct io_array *array, int64_t first, int64_t count, double *values) {
    /* Through a small buffer, because the data may lie at any address. */
    union {
        double align;
        unsigned char bytes[4096];
    } chunk;
    size_t width = evo_dtype_size(array->dtype);
    size_t most = sizeof chunk / width;
    size_t left = (size_t)count;
    const unsigned char *from = array->data + (size_t)first * width;
    while (left > 0) {
        size_t now = left < most ? left : most;
        memcpy(chunk.bytes, from, now * width);
        (void)evo_convert(chunk.bytes, array->dtype, values, EVO_FP64, now);
        from += now * width;
        values += now;
        left -= now;
    }
}

void io_shape_text(const int64_t *shape, int rank, char *text, size_t size) {
    size_t used = 0;
    int wrote = snprintf(text, size, "[");
    for (int i = 0; i < rank && wrote >= 0 && used + (size_t)wrote < size; i++) {
        used += (size_t)wrote;
        wrote = snprintf(text + used, size - used, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
    }
    if (wrote >= 0 && used + (size_t)wrote < size) {
        used += (size_t)wrote;
        (void)snprintf(text + used, size - used, "]");
    }
}

/*
 * Reads on until the end; `*bytes` holds `*used` already. Grows as needed: the size that a file claims is no promise, and
 * pipes claim none.
 */
static bool read_rest(FILE *file, unsigned char **bytes, size_t room, size_t *used) {
    while (*used == room) {
        unsigned char *larger = room > SIZE_MAX / 2 ? NULL : realloc(*bytes, room * 2);
        if (larger == NULL) {
            errno = ENOMEM;
            return false;
        }
        *bytes = larger;
        room *= 2;
        *used += fread(*bytes + *used, 1, room - *used, file);
    }
    return ferror(file) == 0;
}

static bool read_stream(const char *path, FILE *file, io_probe probe, unsigned char **bytes, size_t *size,
                        struct io_error *error) {
    const size_t first = 1 << 16;
    errno = 0;
    *bytes = malloc(first);
    if (*bytes != NULL) {
        *size = fread(*bytes, 1, first, file);
        if (ferror(file) == 0) {
            if (!probe(path, *bytes, *size, error)) {
                return false;
            }
            if (read_rest(file, bytes, first, size)) {
                return true;
            }
        }
    }
    return io_fail(error, "%s: %s", path, strerror(errno != 0 ? errno : EIO));
}

bool io_read_file(const char *path, io_probe probe, unsigned char **bytes, size_t *size, struct io_error *error) {
    *size = 0;
    *bytes = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return io_fail(error, "%s: %s", path, strerror(errno));
    }
    const bool good = read_stream(path, file, probe, bytes, size, error);
    if (!good) {
        free(*bytes);
        *bytes = NULL;
    }
    (void)fclose(file);
    return good;
}

bool io_write_file(const char *path, const struct io_piece *pieces, size_t count, struct io_error *error) {
    errno = 0;
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return io_fail(error, "%s: cannot write: %s", path, strerror(errno));
    }
    bool good = true;
    for (size_t i = 0; i < count && good; i++) {
        good = pieces[i].size == 0 || fwrite(pieces[i].data, 1, pieces[i].size, file) == pieces[i].size;
    }
    int reason = errno;
    if (fclose(file) != 0 && good) {
        good = false;
        reason = errno;
    }
    if (!good) {
        struct stat what;
        if (stat(path, &what) == 0 && S_ISREG(what.st_mode)) {
            (void)unlink(path);
        }
        return io_fail(error, "%s: cannot write: %s", path, strerror(reason != 0 ? reason : EIO));
    }
    return true;
}
