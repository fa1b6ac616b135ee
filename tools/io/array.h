/* array.h: a typed array inside a file that lies in memory, or on its way into one; conversion from and to double. */
#ifndef EVO_TOOLS_IO_ARRAY_H
#define EVO_TOOLS_IO_ARRAY_H

#include <stddef.h>

#include <evoformer/evoformer.h>

#include "io/error.h"

enum {
    IO_MAX_RANK = 8
};

/** Little-endian, row-major, of any alignment. Name and data belong to whoever made the array. */
struct io_array {
    const char *name;
    evo_dtype dtype;
    int rank;
    int64_t shape[IO_MAX_RANK];
    int64_t count;
    const unsigned char *data;
};

/** Values `first` to `first + count - 1` as double. */
void io_array_values(const struct io_array *array, int64_t first, int64_t count, double *values);

/** "[2, 3, 5]", cut to fit. */
void io_shape_text(const int64_t *shape, int rank, char *text, size_t size);

/** Whether a file that begins so can be of the format; if not, fills the error. */
typedef bool (*io_probe)(const char *path, const unsigned char *bytes, size_t size, struct io_error *error);

/**
 * All bytes of a file. `*bytes` is to be freed; it is never NULL on success. What `probe` refuses by its first bytes is
 * not read on: the rest may be larger than the memory.
 */
bool io_read_file(const char *path, io_probe probe, unsigned char **bytes, size_t *size, struct io_error *error);

/** One piece of a file to be written. */
struct io_piece {
    const void *data;
    size_t size;
};

/** Writes the pieces one after another. A regular file that could not be written whole is removed. */
bool io_write_file(const char *path, const struct io_piece *pieces, size_t count, struct io_error *error);

#endif
