/* error.h: the one-line message that the tools' own functions leave behind, and products of sizes that cannot wrap. */
#ifndef EVO_TOOLS_IO_ERROR_H
#define EVO_TOOLS_IO_ERROR_H

#include <stdbool.h>
#include <stdint.h>

/** Why a function returned false. One line without control characters, whatever a hostile file put into it. */
struct io_error {
    char text[1024];
    bool memory; /**< there was not enough: nothing need be wrong with what the tool was given */
};

/** Formats the message and returns false, so that a caller can write `return io_fail(error, ...)`. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool io_fail(struct io_error *error, const char *format, ...);

/** The same where memory is exhausted; `what` it was for. */
bool io_fail_memory(struct io_error *error, const char *what);

/** a * b for sizes; false if either is negative or the product does not fit. */
bool io_multiply(int64_t a, int64_t b, int64_t *product);

/** The product of `rank` extents (1 if there is none) under the same rule. */
bool io_count(const int64_t *extents, int rank, int64_t *count);

#endif
