/* evo.c: the `evo` command: chooses the subcommand. */
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "io/json.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} commands[] = {
    { "info", command_info, "what this build and this machine can do" },
    { "run", command_run, "compute one op on files, or on random numbers" },
    { "check", command_check, "check the results of a device against the fp64 reference or golden files" },
    { "selftest", command_selftest, "a minute's check of all devices of this machine" },
    { "bench", command_bench, "time ops, and say how far from the hardware's limits they are" },
};

enum {
    COMMAND_COUNT = sizeof commands / sizeof commands[0]
};

static const struct option_spec options[] = { { "help", KEY_HELP, NULL, "print this help" },
                                              { "version", 'V', NULL, "print the library's version" },
                                              { NULL, 0, NULL, NULL } };

static const struct command self = { "evo", "evo COMMAND [OPTION]...",
                                     "Runs, checks and times the fused Evoformer ops of libevoformer.", options };

static void help(void) {
    print_help(&self);
    printf("\ncommands (evo COMMAND --help tells more):\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        printf("  %-10s%s\n", commands[i].name, commands[i].about);
    }
}

/* An option in the place of a subcommand, and nothing after it. */
static int own_option(int argc, char **argv) {
    struct arguments arguments = { &self, argc, argv, NULL };
    const int option = next_option(&arguments);
    if (option >= 0 && argc > 2) {
        return usage_error(&self, "unexpected argument \"%s\"", argv[2]);
    }
    if (option >= 0 && argv[1][1] != '-' && argv[1][2] != '\0') {
        return usage_error(&self, "unexpected \"%s\" after -%c", argv[1] + 2, argv[1][1]);
    }
    switch (option) {
    case KEY_HELP:
        help();
        return close_output(&self, STATUS_GOOD);
    case 'V':
        printf("evo %s\n", evo_version());
        return close_output(&self, STATUS_GOOD);
    default:
        return STATUS_USAGE;
    }
}

int evo_command(int argc, char **argv) {
    json_watch();
    if (argc < 2 || strcmp(argv[1], "--") == 0) {
        return usage_error(&self, "which command? One of info, run, check, selftest, bench");
    }
    if (argv[1][0] == '-' && argv[1][1] != '\0') {
        return own_option(argc, argv);
    }
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    return usage_error(&self, "unknown command \"%s\"; there are info, run, check, selftest, bench", argv[1]);
}
