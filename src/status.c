/* status.c: the names of statuses and this thread's error text. */
#include "src/status.h"

#include <stdarg.h>
#include <stdio.h>

static EVO_THREAD_LOCAL evo_error last_error;

const char *evo_status_name(evo_status status) {
    static const char *const names[] = {
        "EVO_OK",
        "EVO_ERROR_INVALID_ARGUMENT",
        "EVO_ERROR_NULL_POINTER",
        "EVO_ERROR_INVALID_SHAPE",
        "EVO_ERROR_INVALID_DTYPE",
        "EVO_ERROR_INVALID_LAYOUT",
        "EVO_ERROR_MISALIGNED",
        "EVO_ERROR_ALIASED",
        "EVO_ERROR_SIZE_OVERFLOW",
        "EVO_ERROR_BUFFER_TOO_SMALL",
        "EVO_ERROR_WORKSPACE_LIMIT",
        "EVO_ERROR_PACK_MISMATCH",
        "EVO_ERROR_UNSUPPORTED",
        "EVO_ERROR_NOT_COMPILED",
        "EVO_ERROR_NO_DEVICE",
        "EVO_ERROR_OUT_OF_MEMORY",
        "EVO_ERROR_DEVICE",
        "EVO_ERROR_CAPTURE",
        "EVO_ERROR_INTERNAL",
    };
    const int count = (int)(sizeof names / sizeof *names), index = (int)status;
    return index >= 0 && index < count ? names[index] : "EVO_ERROR_UNKNOWN";
}

const char *evo_last_error(void) {
    return last_error.text;
}

void evo_text_add(evo_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const size_t room = sizeof text->data - text->length;
    const int wanted = vsnprintf(text->data + text->length, room, format, arguments);
    va_end(arguments);
    if (wanted > 0) text->length += (size_t)wanted < room ? (size_t)wanted : room - 1;
}

evo_status evo_fail(evo_status status, const char *format, ...) {
    /* The arguments may quote the present text, so the new one is made beside it. */
    evo_error made;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(made.text, sizeof made.text, format, arguments);
    va_end(arguments);
    evo_error_restore(&made);
    return status;
}

evo_error evo_error_keep(void) {
    return last_error;
}

void evo_error_restore(const evo_error *kept) {
    snprintf(last_error.text, sizeof last_error.text, "%s", kept->text);
}

evo_status evo_fail_null(const char *function, const char *argument) {
    return evo_fail(EVO_ERROR_NULL_POINTER, "%s: %s is NULL, expected a pointer", function, argument);
}
