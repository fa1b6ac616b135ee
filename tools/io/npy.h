/*
 * npy.h: a strict reader and a writer of NumPy's .npy files, versions 1.0, 2.0 and 3.0, little-endian and C order:
 * f8, f4, f2, u1, b1 (as uint8).
 */
#ifndef EVO_TOOLS_IO_NPY_H
#define EVO_TOOLS_IO_NPY_H

#include "io/array.h"

/** Parses a file that lies in memory; the array's data point into it. Never crashes, whatever the bytes. */
bool npy_parse(const char *path, const unsigned char *bytes, size_t size, struct io_array *array,
               struct io_error *error);

/** Reads a file; `*bytes`, which holds the data, is to be freed. */
bool npy_read(const char *path, struct io_array *array, unsigned char **bytes, struct io_error *error);

/** bf16, which .npy does not know, is an error. */
bool npy_write(const char *path, const struct io_array *array, struct io_error *error);

#endif
