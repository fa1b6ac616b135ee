/*
 * npy.c: the .npy reader on any bytes: a file is refused with a message, or its array lies within it and is the same after it
 * was written and read again.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "io/npy.h"

static const char *copy;

void fuzz_set_up(void) {
    copy = strdup(fuzz_path("copy.npy"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct io_array array, again;
    struct io_error error = { .text = "" };
    unsigned char *bytes = NULL;
    int64_t count = 0;
    double values[16];
    if (!npy_parse("input", data, size, &array, &error)) {
        FUZZ_CHECK(strncmp(error.text, "input: ", 7) == 0 && error.text[7] != '\0');
        return 0;
    }
    FUZZ_CHECK(array.rank >= 0 && array.rank <= IO_MAX_RANK && io_count(array.shape, array.rank, &count));
    const size_t width = evo_dtype_size(array.dtype);
    FUZZ_CHECK(count == array.count && width > 0 && array.data >= data);
    FUZZ_CHECK((uint64_t)count * width == (uint64_t)(data + size - array.data));
    io_array_values(&array, count > 16 ? count - 16 : 0, count > 16 ? 16 : count, values);

    if (!npy_write(copy, &array, &error)) fuzz_fail("its copy is not written: %s", error.text);
    if (!npy_read(copy, &again, &bytes, &error)) fuzz_fail("its copy is not read: %s", error.text);
    FUZZ_CHECK(again.rank == array.rank && again.dtype == array.dtype && again.count == count);
    FUZZ_CHECK(memcmp(again.shape, array.shape, (size_t)array.rank * sizeof *array.shape) == 0);
    FUZZ_CHECK(count == 0 || memcmp(again.data, array.data, (size_t)count * width) == 0);
    free(bytes);
    return 0;
}
