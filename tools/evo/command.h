/* command.h: what the subcommands of `evo` share: options that describe themselves, exit statuses, small parsers. */
#ifndef EVO_TOOLS_EVO_COMMAND_H
#define EVO_TOOLS_EVO_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "case/case.h"
#include "io/json.h"

/* Exit statuses. */
enum {
    STATUS_GOOD = 0,
    STATUS_FAILED = 1,
    STATUS_USAGE = 2
};

/* One option; `name` NULL ends a list. With a short letter, `key` is that letter; else it is above 255. */
struct option_spec {
    const char *name;
    int key;
    const char *argument; /* what --help calls it; NULL: takes none */
    const char *help;
};

enum {
    KEY_HELP = 'h',
    KEY_FIRST = 256,
    COMMAND_MAX_OPTIONS = 64
};

struct command {
    const char *name;  /* "evo run" */
    const char *usage; /* lines after "usage: " */
    const char *about;
    const struct option_spec *options;
};

/* Where the reading of a command line stands. */
struct arguments {
    const struct command *command;
    int argc;
    char **argv;
    const char *value; /* of the option just read */
};

/*
 * Reads the next option: its key, 0 after the last (optind then is at the first argument that is none), or -1 after a
 * message about what is wrong with it.
 */
int next_option(struct arguments *arguments);

void print_help(const struct command *command);

/* One line of it. */
void print_option(const struct option_spec *spec);

/* Prints "evo run: MESSAGE" and a hint to --help on stderr; returns STATUS_USAGE. */
int usage_error(const struct command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints "evo run: MESSAGE" on stderr; returns STATUS_FAILED. */
int failure(const struct command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One of both for what a function of tools/ said of `argument` ("--shape: "): a failure if only memory was missing. */
int wrong_argument(const struct command *command, const char *argument, const struct io_error *error);

/* Parse an option's value; false, after a message, if it has no meaning. */
bool parse_seed(const struct command *command, const char *text, uint64_t *seed);
bool parse_bytes(const struct command *command, const char *option, const char *text, size_t *bytes);
bool parse_float_dtype(const struct command *command, const char *text, evo_dtype *dtype);
bool parse_compute(const struct command *command, const char *text, evo_compute *compute);

/*
 * Opens a device. *status is STATUS_USAGE for a name that is no device's, STATUS_FAILED for a device that is not there.
 */
bool open_device(const struct command *command, const char *device, evo_context **context, int *status);

/* Prints a JSON object on a line of its own and deletes it; false, with a message, if memory ran out for part of it. */
bool print_object(const struct command *command, cJSON *object);

/* Whether everything written to stdout got there; a message if not. */
int close_output(const struct command *command, int status);

/* The whole program; returns its exit status, and never exits by itself. getopt's `optind` must be 0 or 1. */
int evo_command(int argc, char **argv);

int command_info(int argc, char **argv);
int command_run(int argc, char **argv);
int command_check(int argc, char **argv);
int command_selftest(int argc, char **argv);
int command_bench(int argc, char **argv);

#endif
