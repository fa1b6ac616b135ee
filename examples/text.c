/* text.c: messages; reads a whole file into memory and hands out its lines, whatever bytes and line ends they have. */
#include "coevolution.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No alignment that can be computed is near this; a device that never ends is stopped by it. */
static const size_t largest_file = (size_t)1 << 30;

bool size_product(size_t a, size_t b, size_t *product) {
    if (a != 0 && b > SIZE_MAX / 2 / a) return false;
    *product = a * b;
    return true;
}

const char *program_name = "coevolution";

void complain(const char *format, ...) {
    va_list arguments;

    fprintf(stderr, "%s: ", program_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void text_error(const struct text *text, size_t line, const char *format, ...) {
    va_list arguments;

    fprintf(stderr, "%s: %s:%zu: ", program_name, text->name, line);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

static bool read_stream(struct text *text, FILE *file) {
    size_t capacity = 0;

    do {
        if (text->length == capacity) {
            size_t larger = capacity ? 2 * capacity : 65536;
            char *data = larger <= largest_file ? realloc(text->data, larger) : NULL;
            if (!data) {
                complain("%s: %s: more than %zu bytes", text->name,
                         larger <= largest_file ? "out of memory" : "too large", capacity);
                return false;
            }
            text->data = data;
            capacity = larger;
        }
        text->length += fread(text->data + text->length, 1, capacity - text->length, file);
    } while (!feof(file) && !ferror(file));
    if (ferror(file)) {
        complain("%s: %s", text->name, strerror(errno));
        return false;
    }
    return true;
}

bool text_read(struct text *text, const char *path) {
    FILE *file = fopen(path, "rb");
    bool good;

    *text = (struct text){ .name = path };
    if (!file) {
        complain("%s: %s", path, strerror(errno));
        return false;
    }
    good = read_stream(text, file);
    fclose(file);
    if (!good) {
        text_free(text);
        return false;
    }
    if (text->length >= 3 && memcmp(text->data, "\xEF\xBB\xBF", 3) == 0)
        text->position = 3; /* some editors begin UTF-8 files with a mark */
    return true;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

bool text_next(struct text *text, struct span *line) {
    const char *start, *end;

    if (text->position >= text->length) return false;
    start = text->data + text->position;
    end = memchr(start, '\n', text->length - text->position);
    if (!end) end = text->data + text->length;
    text->position = (size_t)(end - text->data) + 1;
    text->line++;
    while (start < end && is_space(end[-1])) end--;
    while (start < end && is_space(*start)) start++;
    *line = (struct span){ start, (size_t)(end - start) };
    return true;
}

void text_free(struct text *text) {
    free(text->data);
    *text = (struct text){ 0 };
}
