/*
 * bench_shapes.c: the shapes that `evo bench` times, from texts and files. A file has a shape a line, "OP SIZES", and
 * comments from # to the end of a line:
 *
 *     trimul 1,256,128,128        # B,N,c_z,c
 *     opm    1,128,256,256,32,128 # B,S,N,c_m,c,c_z
 */
#include "bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE_SIZE = 512
};

/* The next size of the list: 1 to 2^31 - 1, in decimal. */
static bool next_size(const char **at, int64_t *size) {
    size_t length = strcspn(*at, ",");
    char digits[16];
    if (length == 0 || length >= 11 || strspn(*at, "0123456789") != length) {
        return false;
    }
    (void)snprintf(digits, sizeof digits, "%.*s", (int)length, *at);
    *size = strtoll(digits, NULL, 10);
    *at += length;
    return *size >= 1 && *size <= INT32_MAX;
}

static bool read_sizes(struct bench_shape *shape, const char *text) {
    int i = 0;
    for (const struct case_dim *dim = shape->op->dims; dim->letter != 0; dim++, i++) {
        if (i > 0 && *text == '\0' && dim->fallback != 0) {
            return true;
        }
        if (i > 0 && *text++ != ',') {
            return false;
        }
        if (i == BENCH_MAX_DIMS || !next_size(&text, &shape->sizes[i])) {
            return false;
        }
    }
    return *text == '\0';
}

bool bench_add_shape(struct bench_shapes *shapes, const struct case_op *op, const char *text, struct io_error *error) {
    struct bench_shape shape = { .op = op };
    if (shapes->count == BENCH_MAX_SHAPES) {
        return io_fail(error, "more than %d shapes", BENCH_MAX_SHAPES);
    }
    if (strlen(text) >= sizeof shape.text || !read_sizes(&shape, text)) {
        return io_fail(error, "\"%.100s\" is not %s (sizes from 1 to 2147483647)", text, op->shape_help);
    }
    (void)snprintf(shape.text, sizeof shape.text, "%s", text);
    struct bench_shape *items = realloc(shapes->items, ((size_t)shapes->count + 1) * sizeof *items);
    if (items == NULL) {
        return io_fail_memory(error, "shapes");
    }
    shapes->items = items;
    items[shapes->count++] = shape;
    return true;
}

static const char blanks[] = " \t\r";

/* One line without its newline and comment; changes it. */
static bool take_line(struct bench_shapes *shapes, const struct case_op *wanted, char *line, struct io_error *error) {
    char *name = line + strspn(line, blanks);
    char *end = name + strcspn(name, blanks);
    if (*name == '\0') {
        return true;
    }
    char *sizes = end + strspn(end, blanks);
    *end = '\0';
    char *rest = sizes + strcspn(sizes, blanks);
    if (rest[strspn(rest, blanks)] != '\0') {
        return io_fail(error, "\"%.60s\" after the sizes, expected OP SIZES", rest + strspn(rest, blanks));
    }
    *rest = '\0';
    const struct case_op *op = case_op_find(name);
    if (op == NULL) {
        return io_fail(error, "\"%.60s\" is no op, expected opm or trimul, then sizes", name);
    }
    return (wanted != NULL && wanted != op) || bench_add_shape(shapes, op, sizes, error);
}

/* Reads a line into `line`; 1: read, 0: end of file, -1: no line of text. */
static int read_line(FILE *file, char *line, struct io_error *error) {
    int length = 0, c;
    while ((c = getc(file)) != EOF && c != '\n') {
        if (length == LINE_SIZE - 1) {
            (void)io_fail(error, "a line of more than %d characters", LINE_SIZE - 1);
            return -1;
        }
        if (c == '\0') {
            (void)io_fail(error, "a zero byte: no text file");
            return -1;
        }
        line[length++] = (char)c;
    }
    line[length] = '\0';
    return c != EOF || length > 0;
}

bool bench_read_shapes(struct bench_shapes *shapes, const struct case_op *op, const char *path,
                       struct io_error *error) {
    FILE *file = fopen(path, "rb");
    struct io_error why;
    char line[LINE_SIZE];
    int number = 0, before = shapes->count, found = 1;
    if (file == NULL) {
        return io_fail(error, "%s: %s", path, strerror(errno));
    }
    while (found == 1 && (found = read_line(file, line, &why)) == 1) {
        number++;
        line[strcspn(line, "#")] = '\0';
        found = take_line(shapes, op, line, &why) ? 1 : -2;
    }
    bool unread = ferror(file) != 0;
    int reason = errno;
    (void)fclose(file);
    if (unread) {
        return io_fail(error, "%s: %s", path, strerror(reason));
    }
    if (found < 0) {
        return io_fail(error, "%s:%d: %s", path, found == -1 ? number + 1 : number, why.text);
    }
    return shapes->count > before ||
           io_fail(error, "%s: no shape%s%s", path, op != NULL ? " of " : "", op != NULL ? op->name : "");
}
