/* command.c: what the subcommands share; see the header. */
#include "command.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct option_spec *find_key(const struct command *command, int key) {
    const struct option_spec *spec = command->options;
    while (spec->name != NULL && spec->key != key) {
        spec++;
    }
    return spec;
}

/* getopt_long's tables from ours. The leading ':' keeps it quiet. */
static void make_tables(const struct command *command, struct option *longs, char *shorts) {
    int count = 0;
    *shorts++ = ':';
    for (const struct option_spec *spec = command->options; spec->name != NULL; spec++, count++) {
        longs[count] = (struct option){ spec->name, spec->argument != NULL, NULL, spec->key };
        if (spec->key < KEY_FIRST) {
            *shorts++ = (char)spec->key;
            if (spec->argument != NULL) {
                *shorts++ = ':';
            }
        }
    }
    longs[count] = (struct option){ NULL, 0, NULL, 0 };
    *shorts = '\0';
}

/* How many long options begin as the text, "--abc=..." or "--abc". */
static int count_matches(const struct command *command, const char *text) {
    int count = 0;
    const size_t dashes = strspn(text, "-"), length = strcspn(text + dashes, "=");
    for (const struct option_spec *spec = command->options; spec->name != NULL; spec++) {
        count += strncmp(spec->name, text + dashes, length) == 0;
    }
    return count;
}

/* Says what is wrong with the argument that getopt_long just stumbled over. */
static int bad_option(const struct arguments *a, int found) {
    const struct option_spec *known = find_key(a->command, optopt);
    const char *text = optind > 0 && optind <= a->argc ? a->argv[optind - 1] : "";
    if (found == ':') {
        (void)usage_error(a->command, "--%s needs a value (%s)", known->name, known->argument);
    } else if (optopt == 0) {
        (void)usage_error(a->command, "%s option %.*s", count_matches(a->command, text) > 1 ? "ambiguous" : "unknown",
                          (int)strcspn(text, "="), text);
    } else if (known->name != NULL) {
        (void)usage_error(a->command, "--%s takes no value", known->name);
    } else {
        (void)usage_error(a->command, "unknown option -%c", optopt);
    }
    return -1;
}

int next_option(struct arguments *a) {
    struct option longs[COMMAND_MAX_OPTIONS];
    char shorts[2 * COMMAND_MAX_OPTIONS];
    make_tables(a->command, longs, shorts);
    int found = getopt_long(a->argc, a->argv, shorts, longs, NULL);
    if (found == '?' || found == ':') {
        return bad_option(a, found);
    }
    a->value = optarg;
    return found == -1 ? 0 : found;
}

void print_option(const struct option_spec *spec) {
    char left[64];
    char letter[8] = "";
    if (spec->key < KEY_FIRST) {
        (void)snprintf(letter, sizeof letter, "-%c, ", spec->key);
    }
    (void)snprintf(left, sizeof left, "%s--%s%s%s", letter, spec->name, spec->argument != NULL ? " " : "",
                   spec->argument != NULL ? spec->argument : "");
    printf("  %-30s%s%s\n", left, strlen(left) > 29 ? "\n                                " : "", spec->help);
}

void print_help(const struct command *command) {
    printf("usage: %s\n\n%s\n\noptions:\n", command->usage, command->about);
    for (const struct option_spec *spec = command->options; spec->name != NULL; spec++) {
        print_option(spec);
    }
}

/* One line on stderr, whatever a file's or argument's name holds. */
static void complain(const struct command *command, const char *format, va_list arguments) {
    char text[2048];
    (void)vsnprintf(text, sizeof text, format, arguments);
    for (char *p = text; *p != '\0'; p++) {
        if (*p == '\n' || *p == '\r') {
            *p = ' ';
        }
    }
    (void)fprintf(stderr, "%s: %s\n", command->name, text);
}

int usage_error(const struct command *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    complain(command, format, arguments);
    va_end(arguments);
    (void)fprintf(stderr, "Try '%s --help'.\n", command->name);
    return STATUS_USAGE;
}

int failure(const struct command *command, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    complain(command, format, arguments);
    va_end(arguments);
    return STATUS_FAILED;
}

int wrong_argument(const struct command *command, const char *argument, const struct io_error *error) {
    return (error->memory ? failure : usage_error)(command, "%s%s", argument, error->text);
}

bool parse_seed(const struct command *command, const char *text, uint64_t *seed) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (end == text || *end != '\0' || errno != 0 || strchr(text, '-') != NULL) {
        (void)usage_error(command, "--seed: \"%s\" is not a number of at most 64 bits", text);
        return false;
    }
    *seed = value;
    return true;
}

bool parse_bytes(const struct command *command, const char *option, const char *text, size_t *bytes) {
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    int64_t scaled = value <= INT64_MAX ? (int64_t)value : -1;
    bool good = end != text && errno == 0 && strchr(text, '-') == NULL && scaled >= 0;
    const char *unit = good && *end != '\0' ? strchr(units, *end) : NULL;
    for (const char *p = units; unit != NULL && p <= unit && good; p++) {
        good = io_multiply(scaled, 1024, &scaled);
    }
    if (!good || end[unit != NULL] != '\0') {
        (void)usage_error(command, "--%s: \"%s\" is not a number of bytes (K, M, G, T may follow)", option, text);
        return false;
    }
    *bytes = (size_t)scaled;
    return true;
}

bool parse_float_dtype(const struct command *command, const char *text, evo_dtype *dtype) {
    if (!case_dtype_from_name(text, dtype) || *dtype == EVO_UINT8) {
        (void)usage_error(command, "--dtype: \"%s\" is none of fp64, fp32, bf16, fp16", text);
        return false;
    }
    return true;
}

bool parse_compute(const struct command *command, const char *text, evo_compute *compute) {
    if (!case_compute_from_name(text, compute)) {
        (void)usage_error(command, "--compute: \"%s\" is none of " CASE_COMPUTE_NAMES, text);
        return false;
    }
    return true;
}

bool open_device(const struct command *command, const char *device, evo_context **context, int *status) {
    evo_status found = evo_context_create(device, NULL, context);
    if (found == EVO_OK) {
        return true;
    }
    /* A bad EVO_NUM_THREADS or EVO_VERBOSE is an invalid argument too, but none of the command line. */
    bool usage = found == EVO_ERROR_INVALID_ARGUMENT && strstr(evo_last_error(), "environment") == NULL;
    *status = usage ? usage_error(command, "--device: %s", evo_last_error())
                    : failure(command, "--device %s: %s", device, evo_last_error());
    return false;
}

bool print_object(const struct command *command, cJSON *object) {
    char *text = json_line(object);
    if (text == NULL) {
        (void)failure(command, "out of memory for a line of JSON");
        return false;
    }
    printf("%s\n", text);
    cJSON_free(text);
    return true;
}

int close_output(const struct command *command, int status) {
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout) != 0) { /* if an earlier line failed, its reason is gone */
        return failure(command, "cannot write to standard output%s%s", errno != 0 ? ": " : "",
                       errno != 0 ? strerror(errno) : "");
    }
    return status;
}
