/* context.c: build information, discovery of devices, contexts and their log. */
#include "src/context.h"

#include "src/commit.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define VERSION TEXT(EVO_VERSION_MAJOR) "." TEXT(EVO_VERSION_MINOR) "." TEXT(EVO_VERSION_PATCH)

const char *evo_version(void) {
    return VERSION;
}

const char *evo_build_info(void) {
    /* EVO_BUILD_OPTIONS is the build system's one line: compiler, build type, backends. */
    return sizeof EVO_COMMIT > 1 ? "libevoformer " VERSION " (" EVO_COMMIT "), " EVO_BUILD_OPTIONS
                                 : "libevoformer " VERSION ", " EVO_BUILD_OPTIONS;
}

evo_status evo_struct_write(const char *function, void *target, const void *source, size_t size) {
    size_t known;
    if (!target) return evo_fail_null(function, "info");
    memcpy(&known, target, sizeof known);
    if (known < sizeof known)
        return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "%s: info->size is %zu, expected the size of the struct", function,
                        known);
    if (known > size) known = size;
    memcpy((char *)target + sizeof known, (const char *)source + sizeof known, known - sizeof known);
    return EVO_OK;
}

evo_status evo_struct_read(const char *function, const char *argument, void *target, const void *source, size_t size) {
    size_t given;
    if (!source) return evo_fail_null(function, argument);
    memcpy(&given, source, sizeof given);
    bool readable = given >= size && given <= size + 4096;
    for (size_t i = size; readable && i < given; i++) readable = ((const char *)source)[i] == 0;
    if (!readable)
        return evo_fail(EVO_ERROR_INVALID_ARGUMENT,
                        "%s: %s->size is %zu, expected %zu: start from the initialiser macro", function, argument,
                        given, size);
    memcpy(target, source, size);
    return EVO_OK;
}

evo_status evo_backend_get(int index, evo_backend_info *info) {
    static EVO_THREAD_LOCAL evo_text missing;
    const char *name = evo_backend_name(index);
    const evo_backend *backend = evo_backend_compiled(index);
    if (!name) return EVO_ERROR_INVALID_ARGUMENT;

    evo_backend_info found = { sizeof found, name, backend != NULL, 0, missing.data, backend ? backend->images : "" };
    missing = (evo_text){ { 0 }, 0 };
    if (backend)
        found.device_count = backend->device_count(&missing);
    else
        evo_text_add(&missing, "not compiled in: build with -Dbackends=cpu,%s", name);
    return evo_struct_write("evo_backend_get", info, &found, sizeof found);
}

evo_status evo_device_get(int index, evo_device_info *info) {
    int first = 0;
    for (int b = 0; index >= 0 && evo_backend_name(b); b++) {
        evo_text why = { { 0 }, 0 };
        const evo_backend *backend = evo_backend_compiled(b);
        const int count = backend ? backend->device_count(&why) : 0;
        if (index - first < count) {
            evo_device_info found = EVO_DEVICE_INFO_INIT;
            const evo_status status = backend->device_info(index - first, &found);
            return status != EVO_OK ? status : evo_struct_write("evo_device_get", info, &found, sizeof found);
        }
        first += count;
    }
    return EVO_ERROR_INVALID_ARGUMENT;
}

static void log_to_stderr(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "%s\n", line);
}

void evo_log(const evo_context *context, int level, const char *format, ...) {
    if (context->verbose < level) return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    context->log(context->log_user, line);
}

/* EVO_VERBOSE is 0, 1 or 2; -1 in the options is silence whatever the environment says. */
static evo_status read_options(const evo_context_options *options, evo_context *context) {
    evo_context_options read = EVO_CONTEXT_OPTIONS_INIT;
    if (options) {
        const evo_status status = evo_struct_read("evo_context_create", "options", &read, options, sizeof read);
        if (status != EVO_OK) return status;
    }
    if (read.verbose < -1 || read.verbose > 2)
        return evo_fail(EVO_ERROR_INVALID_ARGUMENT,
                        "evo_context_create: options->verbose is %d, expected -1, 0, 1 or 2", read.verbose);
    const char *verbose = read.verbose == 0 ? evo_environment("EVO_VERBOSE") : NULL;
    if (verbose && (verbose[0] < '0' || verbose[0] > '2' || verbose[1]))
        return evo_fail(EVO_ERROR_INVALID_ARGUMENT,
                        "evo_context_create: the environment's EVO_VERBOSE is \"%s\", expected 0, 1 or 2", verbose);
    context->verbose = verbose ? verbose[0] - '0' : read.verbose;
    context->log = read.log ? read.log : log_to_stderr;
    context->log_user = read.log_user;
    return EVO_OK;
}

/* "cuda:1" -> backend 0, device 1; the number may be left out. */
static evo_status parse_device(const char *text, int *backend, int *device) {
    const size_t length = strcspn(text, ":");
    for (int b = 0; evo_backend_name(b); b++) {
        const char *name = evo_backend_name(b);
        if (strlen(name) != length || strncmp(name, text, length) != 0) continue;
        const char *digits = text + length + (text[length] == ':');
        char *end = NULL;
        const long number = text[length] ? strtol(digits, &end, 10) : 0;
        if (text[length] && (*digits < '0' || *digits > '9' || *end || number > INT_MAX)) break;
        *backend = b;
        *device = (int)number;
        return EVO_OK;
    }
    evo_text names = { { 0 }, 0 };
    for (int b = 0; evo_backend_name(b); b++) evo_text_add(&names, "\"%s\", ", evo_backend_name(b));
    return evo_fail(
        EVO_ERROR_INVALID_ARGUMENT,
        "evo_context_create: device is \"%s\", expected %sall with an optional number as in \"cuda:0\", or \"auto\"",
        text, names.data);
}

static evo_status open_device(evo_context *context, int backend_index, int device_index) {
    const char *name = evo_backend_name(backend_index);
    const evo_backend *backend = evo_backend_compiled(backend_index);
    evo_text text = { { 0 }, 0 };
    if (!backend) {
        evo_backends_text(&text);
        return evo_fail(
            EVO_ERROR_NOT_COMPILED,
            "evo_context_create: backend \"%s\" is not compiled in, this build has: %s (build with -Dbackends=cpu,%s)",
            name, text.data, name);
    }
    const int count = backend->device_count(&text);
    if (device_index >= count) {
        if (count == 0) return evo_fail(EVO_ERROR_NO_DEVICE, "evo_context_create: no %s device: %s", name, text.data);
        return evo_fail(EVO_ERROR_NO_DEVICE, "evo_context_create: device is \"%s:%d\", expected a number below %d",
                        name, device_index, count);
    }
    evo_device_info info = EVO_DEVICE_INFO_INIT;
    evo_status status = backend->device_info(device_index, &info);
    if (status == EVO_OK) status = backend->open(device_index, &context->device);
    if (status == EVO_OK) memcpy(context->device_name, info.name, sizeof context->device_name);
    return status;
}

/* The first device of the first backend that opens; the reasons why others did not are logged. */
static evo_status open_any(evo_context *context) {
    const evo_error before = evo_error_keep();
    evo_status status = EVO_ERROR_NO_DEVICE;
    for (int b = 0; evo_backend_name(b); b++) {
        const evo_backend *backend = evo_backend_compiled(b);
        evo_text why = { { 0 }, 0 };
        const int count = backend ? backend->device_count(&why) : 0;
        for (int d = 0; d < count; d++) {
            status = open_device(context, b, d);
            if (status == EVO_OK) {
                evo_error_restore(&before);
                evo_log(context, 1, "evoformer,context,auto,%s", context->device_name);
                return EVO_OK;
            }
            /* The reason of the last one is the call's own error. */
            const int level = d + 1 < count || evo_backend_name(b + 1) ? 0 : 1;
            evo_log(context, level, "evoformer,context,auto,%s:%d refused: %s", evo_backend_name(b), d,
                    evo_last_error());
        }
        if (backend && count == 0)
            evo_log(context, 1, "evoformer,context,auto,no %s device: %s", evo_backend_name(b), why.data);
    }
    return status;
}

evo_status evo_context_create(const char *device, const evo_context_options *options, evo_context **context) {
    int backend_index = -1, device_index = 0;
    if (!device) return evo_fail_null("evo_context_create", "device");
    if (!context) return evo_fail_null("evo_context_create", "context");
    const bool automatic = strcmp(device, "auto") == 0;
    evo_status status = automatic ? EVO_OK : parse_device(device, &backend_index, &device_index);
    if (status != EVO_OK) return status;

    evo_context *made = calloc(1, sizeof *made);
    if (!made) return evo_fail(EVO_ERROR_OUT_OF_MEMORY, "evo_context_create: no host memory");
    atomic_init(&made->references, 1);
    status = read_options(options, made);
    if (status == EVO_OK) status = automatic ? open_any(made) : open_device(made, backend_index, device_index);
    if (status != EVO_OK) {
        free(made);
        return status;
    }
    *context = made;
    return EVO_OK;
}

void evo_context_keep(evo_context *context) {
    atomic_fetch_add(&context->references, 1);
}

void evo_context_release(evo_context *context) {
    if (atomic_fetch_sub(&context->references, 1) != 1) return;
    context->device->backend->close(context->device);
    free(context);
}

void evo_context_destroy(evo_context *context) {
    if (context) evo_context_release(context);
}

evo_status evo_context_device(const evo_context *context, evo_device_info *info) {
    evo_device_info found = EVO_DEVICE_INFO_INIT;
    if (!context) return evo_fail_null("evo_context_device", "context");
    const evo_status status = context->device->backend->device_info(context->device->index, &found);
    return status != EVO_OK ? status : evo_struct_write("evo_context_device", info, &found, sizeof found);
}

const char *evo_context_kernel(const evo_context *context, evo_op op, int index) {
    int count = 0;
    if (!context || !evo_op_name(op) || index < 0) return NULL;
    const evo_kernel *const *kernels = context->device->backend->kernels(op, &count);
    for (int k = 0; k < count; k++) {
        if (index-- == 0) return kernels[k]->name;
        for (int o = 0; kernels[k]->orders && kernels[k]->orders[o]; o++)
            if (index-- == 0) return kernels[k]->orders[o];
    }
    return NULL;
}
