/*
 * safetensors.h: a strict reader and a writer of the safetensors format: 8 bytes of little-endian header length, a
 * JSON header {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {string: string}}, then the data.
 * The reader takes F64, F32, F16, BF16, U8 and BOOL, and no file with a gap, an overlap or anything unexplained.
 */
#ifndef EVO_TOOLS_IO_SAFETENSORS_H
#define EVO_TOOLS_IO_SAFETENSORS_H

#include "io/array.h"

struct cJSON;

struct safetensors {
    unsigned char *bytes;    /**< the file, if safetensors_read read it */
    struct cJSON *header;    /**< owns all names */
    struct io_array *arrays; /**< in the order of the header */
    size_t count;
};

/**
 * Parses a file that lies in memory, which must live as long as the result. `path` is for messages only.
 * On failure the result is empty. Never crashes, whatever the bytes.
 */
bool safetensors_parse(const char *path, const unsigned char *bytes, size_t size, struct safetensors *result,
                       struct io_error *error);
bool safetensors_read(const char *path, struct safetensors *result, struct io_error *error);
void safetensors_free(struct safetensors *file);

/** NULL if there is no array (no metadata string) of that name. */
const struct io_array *safetensors_find(const struct safetensors *file, const char *name);
const char *safetensors_metadata(const struct safetensors *file, const char *key);

struct safetensors_string {
    const char *key;
    const char *value;
};

bool safetensors_write(const char *path, const struct io_array *arrays, size_t count,
                       const struct safetensors_string *metadata, size_t metadata_count, struct io_error *error);

#endif
