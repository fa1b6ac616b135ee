/* error.c: formats the tools' one-line messages; multiplies sizes without wrapping. */
#include "io/error.h"

#include <stdarg.h>
#include <stdio.h>

bool io_fail(struct io_error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    error->memory = false;
    /* Names in a file may hold anything; a terminal must not see it. */
    for (char *p = error->text; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || (unsigned char)*p == 0x7f) {
            *p = '?';
        }
    }
    return false;
}

bool io_fail_memory(struct io_error *error, const char *what) {
    (void)io_fail(error, "out of memory for %s", what);
    error->memory = true;
    return false;
}

bool io_multiply(int64_t a, int64_t b, int64_t *product) {
    if (a < 0 || b < 0 || (b != 0 && a > INT64_MAX / b)) {
        return false;
    }
    *product = a * b;
    return true;
}

bool io_count(const int64_t *extents, int rank, int64_t *count) {
    int64_t product = 1;
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        /* A zero does not excuse the others: they would overflow again wherever strides are computed. */
        empty = empty || extents[i] == 0;
        if (!io_multiply(product, extents[i] == 0 ? 1 : extents[i], &product)) {
            return false;
        }
    }
    *count = empty ? 0 : product;
    return true;
}
