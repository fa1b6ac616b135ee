/* status.h: how the library reports what went wrong: this thread's error text, and short texts that are put together. */
#ifndef EVO_SRC_STATUS_H
#define EVO_SRC_STATUS_H

#include <stddef.h>

#include "evoformer/status.h"
#include "src/platform.h"

/** A text of bounded length; what does not fit is cut off. Start from { 0 }. */
typedef struct evo_text {
    char data[2048];
    size_t length;
} evo_text;

void evo_text_add(evo_text *text, const char *format, ...) EVO_PRINTF(2, 3);

/** Sets this thread's error text and returns `status`: `return evo_fail(EVO_ERROR_..., "...", ...)`. */
evo_status evo_fail(evo_status status, const char *format, ...) EVO_PRINTF(2, 3);

/** An error text kept aside: what fails within a call that succeeds is no failure that the caller is told of. */
typedef struct evo_error {
    char text[sizeof(evo_text)];
} evo_error;

/** This thread's error text as it is now, and that text again. */
evo_error evo_error_keep(void);
void evo_error_restore(const evo_error *kept);

/** Fails with EVO_ERROR_NULL_POINTER for an argument of a public function. */
evo_status evo_fail_null(const char *function, const char *argument);

#endif
