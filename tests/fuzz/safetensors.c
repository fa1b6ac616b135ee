/*
 * safetensors.c: the safetensors reader, and the case reader above it, on any bytes. A file is refused with a message, or its
 * arrays lie within it and are the same after they were written and read again. A case file may be refused at every level.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "case/case.h"
#include "json.h"

static const char *input, *copy;

void fuzz_set_up(void) {
    input = strdup(fuzz_path("input.safetensors"));
    copy = strdup(fuzz_path("copy.safetensors"));
}

static void check_message(const struct io_error *error) {
    FUZZ_CHECK(error->text[0] != '\0' && strlen(error->text) < sizeof error->text);
    for (const char *p = error->text; *p != '\0'; p++) FUZZ_CHECK((unsigned char)*p >= 0x20);
}

static void check_arrays(const struct safetensors *file, const uint8_t *data, size_t size) {
    for (size_t i = 0; i < file->count; i++) {
        const struct io_array *array = &file->arrays[i];
        int64_t count = 0;
        double values[16];
        FUZZ_CHECK(array->rank >= 0 && array->rank <= IO_MAX_RANK && io_count(array->shape, array->rank, &count));
        FUZZ_CHECK(count == array->count && evo_dtype_size(array->dtype) > 0);
        FUZZ_CHECK(array->data >= data &&
                   (uint64_t)count * evo_dtype_size(array->dtype) <= (uint64_t)(data + size - array->data));
        io_array_values(array, count > 16 ? count - 16 : 0, count > 16 ? 16 : count, values);
        FUZZ_CHECK(safetensors_find(file, array->name) == array);
    }
}

/* What was read is written, read again, and the same. */
static void check_copy(const struct safetensors *file) {
    struct safetensors again;
    struct io_error error;
    const struct safetensors_string metadata[] = { { "op", "opm" } };
    if (!safetensors_write(copy, file->arrays, file->count, metadata, 1, &error)) {
        check_message(&error);
        return;
    }
    if (!safetensors_read(copy, &again, &error)) fuzz_fail("its copy is not read: %s", error.text);
    FUZZ_CHECK(again.count == file->count && strcmp(safetensors_metadata(&again, "op"), "opm") == 0);
    for (size_t i = 0; i < file->count; i++) {
        const struct io_array *a = &file->arrays[i], *b = &again.arrays[i];
        FUZZ_CHECK(strcmp(a->name, b->name) == 0 && a->rank == b->rank && a->dtype == b->dtype);
        FUZZ_CHECK(memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0);
        FUZZ_CHECK(a->count == 0 || memcmp(a->data, b->data, (size_t)a->count * evo_dtype_size(a->dtype)) == 0);
    }
    safetensors_free(&again);
}

static void check_case(enum case_source source) {
    struct evo_case c;
    struct io_error error = { .text = "" };
    union case_desc desc;
    bool has_views;
    if (!case_load(input, source, &c, &has_views, &error)) {
        check_message(&error);
        return;
    }
    case_descriptor(&c, &desc);
    FUZZ_CHECK(case_result_of(&c)->present && c.buffer_count > 0);
    if (!case_save(copy, &c, &error)) check_message(&error);
    case_destroy(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct safetensors file;
    struct io_error error = { .text = "" };
    if (!safetensors_parse("input", data, size, &file, &error)) {
        check_message(&error);
        FUZZ_CHECK(file.count == 0 && file.arrays == NULL && file.header == NULL);
        return 0;
    }
    check_arrays(&file, data, size);
    check_copy(&file);
    safetensors_free(&file);
    fuzz_write(input, data, size);
    check_case(CASE_CANONICAL);
    check_case(CASE_VIEWS);
    return 0;
}

/* ---- mutation: libFuzzer's own, with the header's length kept true, since it guesses that too seldom ---- */

#if defined(EVO_FUZZ)
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

/* Where the last of all spans ends, as the header says it; at most `most`. */
static size_t claimed_size(const char *header, size_t length, size_t most) {
    static const char key[] = "\"data_offsets\"";
    size_t claimed = 0;
    for (size_t i = 0; i + sizeof key < length; i++) {
        if (memcmp(header + i, key, sizeof key - 1) != 0) continue;
        size_t at = i + sizeof key - 1, end = 0;
        while (at < length && header[at] != ',' && header[at] != '}') at++;
        for (at++; at < length && header[at] == ' '; at++) continue;
        for (; at < length && header[at] >= '0' && header[at] <= '9' && end <= most; at++)
            end = 10 * end + (size_t)(header[at] - '0');
        claimed = end > claimed && end <= most ? end : claimed;
    }
    return claimed;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
    static uint8_t header[1 << 20], rest[1 << 20];
    uint64_t length = 0;
    if (size > 8) memcpy(&length, data, 8);
    if (seed % 8 == 0 || length == 0 || length > size - 8 || most > sizeof rest || most < 64)
        return LLVMFuzzerMutate(data, size, most);
    size_t data_size = size - 8 - (size_t)length;
    memcpy(header, data + 8, (size_t)length);
    memcpy(rest, data + 8 + length, data_size);
    memset(rest + data_size, 0, most - data_size);
    if (seed % 8 < 4)
        length = LLVMFuzzerMutate(header, (size_t)length, most - 8);
    else if (seed % 8 < 7)
        length = json_mutate(header, (size_t)length, most - 8, seed / 16);
    else
        data_size = LLVMFuzzerMutate(rest, data_size, most - 8 - (size_t)length);
    if (length == 0) return LLVMFuzzerMutate(data, size, most);
    if (seed / 8 % 2 == 0) data_size = claimed_size((const char *)header, (size_t)length, most);
    if (data_size > most - 8 - length) data_size = most - 8 - (size_t)length;
    memcpy(data, &length, 8);
    memcpy(data + 8, header, (size_t)length);
    memcpy(data + 8 + length, rest, data_size);
    return 8 + (size_t)length + data_size;
}
#endif
