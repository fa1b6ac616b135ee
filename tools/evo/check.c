/* check.c: `evo check`: results of a device against the fp64 reference, or against golden files. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "builtin.h"
#include "checker.h"

enum {
    KEY_GOLDEN = KEY_FIRST,
    KEY_CASE,
    KEY_DEVICE,
    KEY_KERNEL,
    KEY_OP,
    KEY_DTYPE,
    KEY_COMPUTE,
    KEY_SEED,
    KEY_FILTER,
    KEY_JSON,
    KEY_LIST
};

static const struct option_spec options[] = {
    { "golden", KEY_GOLDEN, "DIR|FILE...", "check these case files, or all in these folders" },
    { "case", KEY_CASE, "TEXT", "check this case, such as 'opm(variant=boltz,n=33)'; may be repeated" },
    { "device", KEY_DEVICE, "NAME", "the device to check, as evo info names it (default: cpu)" },
    { "kernel", KEY_KERNEL, "NAME", "force this kernel; cases that it refuses are skipped" },
    { "op", KEY_OP, "NAME", "only cases of this op: " CASE_OP_NAMES },
    { "dtype", KEY_DTYPE, "TYPE",
      "only cases of this type: fp64, fp32, bf16, fp16; golden files are rounded to it, and with 16 bits judged by "
      "the reference on the rounded numbers" },
    { "compute", KEY_COMPUTE, "MODE", "compute in fp32, fp32_strict, tf32, bf16, fp16 or fp64 throughout" },
    { "seed", KEY_SEED, "N", "the random numbers' seed (default: 1)" },
    { "filter", KEY_FILTER, "PATTERN", "only cases whose name contains this, or matches it as a glob (* ? [])" },
    { "list", KEY_LIST, NULL, "print the names of the cases instead of checking them" },
    { "json", KEY_JSON, NULL, "one JSON object a line" },
    { "help", KEY_HELP, NULL, "print this help" },
    { NULL, 0, NULL, NULL }
};

static const struct command self = {
    "evo check", "evo check [OPTION]...\n       evo check --golden DIR|FILE... [OPTION]...",
    "Checks that a device computes what it should. Without --golden the built-in cases: all variants, types, layouts "
    "and\n"
    "edge cases, against the fp64 kernel \"reference\" on the same stored inputs. With --golden, files with expected\n"
    "outputs; where a file has a peer's arrays too, its weights are also read through their views.\n"
    "\n"
    "One line a case: name, kernel, relative Frobenius error over all and of the worst pair, each with its bound, ok "
    "or\n"
    "FAIL; the last line is \"N passed, N failed, N skipped\". Each failure prints a command that repeats it.\n"
    "\n"
    "Exit status: 0 if at least one case ran and all passed, 1 if not, 2 if the command line is wrong.",
    options
};

struct check {
    struct checker checker;
    const char *filter;
    struct builtin_choice choice;
    evo_compute compute; /* if choice.compute is set */
    bool list;
    const char **texts; /* of --case */
    int text_count;
    const char **paths; /* of --golden */
    int path_count;
};

/* The command that repeats one case: what chose the device and the numbers, and the case. `path` is that of a golden file. */
static void repeat_command(const struct check *check, const char *name, const char *path, char *text, size_t size) {
    const struct checker *checker = &check->checker;
    char start[512];
    (void)snprintf(start, sizeof start, "evo check --device %s%s%s", checker->device,
                   checker->kernel != NULL ? " --kernel " : "", checker->kernel != NULL ? checker->kernel : "");
    if (path == NULL) {
        (void)snprintf(text, size, "%s --seed %llu --case '%s'", start, (unsigned long long)checker->seed, name);
    } else {
        const char *compute = check->choice.compute;
        bool typed = check->choice.dtype != EVO_NONE;
        (void)snprintf(text, size, "%s%s%s%s%s --golden '%s'", start, typed ? " --dtype " : "",
                       typed ? evo_dtype_name(check->choice.dtype) : "", compute != NULL ? " --compute " : "",
                       compute != NULL ? compute : "", path);
    }
}

static void report(struct check *check, const char *name, const char *path, const struct case_verdict *verdict,
                   enum result result) {
    char repeat[4096];
    repeat_command(check, name, path, repeat, sizeof repeat);
    checker_report(&check->checker, name, verdict, result, repeat);
}

static void report_error(struct check *check, const char *name, const char *path, const char *message) {
    char repeat[4096];
    repeat_command(check, name, path, repeat, sizeof repeat);
    checker_report_error(&check->checker, name, message, repeat);
}

static bool matches(const struct check *check, const char *name) {
    return check->filter == NULL || strstr(name, check->filter) != NULL || fnmatch(check->filter, name, 0) == 0;
}

/* ---- built-in cases ---- */

static void check_text(struct check *check, const char *text) {
    struct evo_case c;
    struct io_error error;
    struct case_verdict verdict;
    checker_progress(&check->checker, text);
    if (!case_parse(text, check->checker.seed, &c, &error)) {
        report_error(check, text, NULL, error.text);
    } else {
        enum result result = checker_judge(&check->checker, &c, &verdict);
        report(check, text, NULL, &verdict, result);
        case_destroy(&c);
    }
    check->checker.done++;
}

static bool count_text(void *user, const char *text) {
    struct check *check = user;
    check->checker.total += matches(check, text);
    return true;
}

static bool take_text(void *user, const char *text) {
    struct check *check = user;
    if (matches(check, text) && check->list) {
        printf("%s\n", text);
    } else if (matches(check, text)) {
        check_text(check, text);
    }
    return ferror(stdout) == 0;
}

static void check_builtin(struct check *check) {
    if (check->text_count == 0) {
        builtin_cases(&check->choice, count_text, check);
        builtin_cases(&check->choice, take_text, check);
        return;
    }
    for (int i = 0; i < check->text_count; i++) {
        check->checker.total += matches(check, check->texts[i]);
    }
    for (int i = 0; i < check->text_count; i++) {
        (void)take_text(check, check->texts[i]);
    }
}

/* ---- golden files ---- */

struct paths {
    char **items;
    size_t count;
};

static bool add_path(struct paths *paths, const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char **items = realloc(paths->items, (paths->count + 1) * sizeof *items);
    char *path = malloc(size);
    if (items != NULL) {
        paths->items = items;
    }
    if (items == NULL || path == NULL) {
        free(path);
        return false;
    }
    (void)snprintf(path, size, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", name);
    paths->items[paths->count++] = path;
    return true;
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds all *.safetensors of a folder, sorted. */
static bool add_folder(struct paths *paths, const char *folder, struct io_error *error) {
    size_t before = paths->count;
    DIR *directory = opendir(folder);
    if (directory == NULL) {
        return io_fail(error, "%s: %s", folder, strerror(errno));
    }
    bool good = true;
    for (struct dirent *entry; good && (entry = readdir(directory)) != NULL;) {
        size_t length = strlen(entry->d_name);
        size_t ending = strlen(".safetensors");
        if (length > ending && strcmp(entry->d_name + length - ending, ".safetensors") == 0) {
            good = add_path(paths, folder, entry->d_name);
        }
    }
    (void)closedir(directory);
    if (!good) {
        return io_fail(error, "out of memory");
    }
    if (paths->count == before) {
        return io_fail(error, "%s: no .safetensors file in this folder", folder);
    }
    qsort(paths->items + before, paths->count - before, sizeof *paths->items, compare_paths);
    return true;
}

static bool add_argument(struct paths *paths, const char *argument, struct io_error *error) {
    struct stat what;
    if (stat(argument, &what) != 0) {
        return io_fail(error, "%s: %s", argument, strerror(errno));
    }
    if (S_ISDIR(what.st_mode)) {
        return add_folder(paths, argument, error);
    }
    return add_path(paths, "", argument) || io_fail(error, "out of memory");
}

/*
 * Applies --dtype and --compute to a file's case. What 16 bits do to its inputs is no error of the arithmetic: then the
 * reference on the rounded inputs takes the place of the expected values.
 */
static bool adjust(const struct check *check, struct evo_case *c, struct io_error *error) {
    evo_dtype dtype = check->choice.dtype;
    struct case_common common = c->op->common(&c->desc);
    if (dtype != EVO_NONE) {
        *common.compute = case_default_compute(dtype);
    }
    if (check->choice.compute != NULL) {
        *common.compute = check->compute;
    }
    if (dtype == EVO_BF16 || dtype == EVO_FP16) {
        free(c->expected);
        c->expected = NULL;
    }
    return case_retype(c, dtype, dtype, error);
}

/* The file's weights in one of the two forms. A message in *error if it cannot be read. */
static bool check_form(struct check *check, const char *path, enum case_source source, struct case_verdict *verdict,
                       enum result *result, bool *has_views, struct io_error *error) {
    struct evo_case c;
    if (!case_load(path, source, &c, has_views, error)) {
        return false;
    }
    bool good =
        (c.expected != NULL || io_fail(error, "%s: tensor \"expected\" is missing", path)) && adjust(check, &c, error);
    if (good) {
        *result = checker_judge(&check->checker, &c, verdict);
    }
    case_destroy(&c);
    return good;
}

/* Of two verdicts on one file the worse counts. */
static void keep_worse(struct case_verdict *verdict, enum result *result, const struct case_verdict *other,
                       enum result other_result) {
    bool worse =
        *result == RESULT_OK && (other_result != RESULT_OK || !(other->comparison.total <= verdict->comparison.total));
    if (worse) {
        *verdict = *other;
        *result = other_result;
        if (other_result == RESULT_FAILED) {
            (void)snprintf(verdict->outcome.message, sizeof verdict->outcome.message, "through its views: %.900s",
                           other->outcome.message);
        }
    }
}

/* One file, one line: the canonical weights, and the peer's arrays where it has them. */
static void check_file(struct check *check, const char *path) {
    struct case_verdict verdict;
    struct case_verdict viewed;
    struct io_error error;
    enum result result = RESULT_OK;
    enum result viewed_result = RESULT_OK;
    bool has_views = false;
    const char *slash = strrchr(path, '/');
    char name[CASE_NAME_SIZE];
    (void)snprintf(name, sizeof name, "%s", slash == NULL ? path : slash + 1);
    char *dot = strrchr(name, '.');
    if (dot != NULL && dot != name) {
        *dot = '\0';
    }
    if (!matches(check, name)) {
        return;
    }
    checker_progress(&check->checker, name);
    bool good = check_form(check, path, CASE_CANONICAL, &verdict, &result, &has_views, &error) &&
                (!has_views || check_form(check, path, CASE_VIEWS, &viewed, &viewed_result, NULL, &error));
    if (!good) {
        (void)failure(&self, "%s", error.text);
        report_error(check, name, path, error.text);
        return;
    }
    if (has_views) {
        keep_worse(&verdict, &result, &viewed, viewed_result);
    }
    if (result == RESULT_FAILED && verdict.outcome.status != EVO_OK) {
        /* Not a wrong result, but a file that the library would not take. */
        (void)failure(&self, "%s: %s", path, verdict.outcome.message);
    }
    report(check, name, path, &verdict, result);
}

/* Whether --op wants the file; one that cannot be read is wanted, so that it is reported. */
static bool wanted_op(const struct check *check, const char *path) {
    struct case_file file;
    struct io_error error;
    if (check->choice.op == NULL || !case_file_open(path, CASE_CANONICAL, &file, &error)) {
        return true;
    }
    bool wanted = strcmp(file.op->name, check->choice.op) == 0;
    case_file_close(&file);
    return wanted;
}

static int check_golden(struct check *check) {
    struct paths paths = { NULL, 0 };
    struct io_error error;
    int status = STATUS_GOOD;
    for (int i = 0; i < check->path_count && status == STATUS_GOOD; i++) {
        if (!add_argument(&paths, check->paths[i], &error)) {
            status = failure(&self, "%s", error.text);
        }
    }
    check->checker.total = (int)paths.count;
    for (size_t i = 0; i < paths.count && status == STATUS_GOOD; i++) {
        check->checker.done = (int)i;
        if (wanted_op(check, paths.items[i])) {
            check_file(check, paths.items[i]);
        }
    }
    for (size_t i = 0; i < paths.count; i++) {
        free(paths.items[i]);
    }
    free(paths.items);
    return status;
}

/* ---- the command ---- */

/* A kernel that no chosen op has is a mistyped name. */
static bool kernel_is_known(const struct check *check) {
    char names[512] = "";
    const struct case_op *op;
    for (int i = 0; (op = case_op_get(i)) != NULL; i++) {
        if (check->choice.op != NULL && strcmp(check->choice.op, op->name) != 0) {
            continue;
        }
        if (checker_has_kernel(&check->checker, op)) {
            return true;
        }
        const char *kernel;
        for (int k = 0; (kernel = evo_context_kernel(check->checker.context, op->id, k)) != NULL; k++) {
            size_t used = strlen(names);
            (void)snprintf(names + used, sizeof names - used, " %s:%s", op->name, kernel);
        }
    }
    (void)usage_error(&self, "--kernel: \"%s\" is none of%s", check->checker.kernel, names);
    return false;
}

static int finish(struct check *check) {
    if (checker_count(&check->checker) == 0) {
        (void)failure(&self, "no case is left: --op, --dtype and --filter name none (see --list)");
    }
    return checker_finish(&check->checker);
}

static int run_checks(struct check *check) {
    int status = STATUS_FAILED;
    if (check->list) {
        check_builtin(check);
        return STATUS_GOOD;
    }
    if (!checker_open(&check->checker, &self, &status)) {
        return status;
    }
    if (check->checker.kernel != NULL && !kernel_is_known(check)) {
        status = STATUS_USAGE;
    } else if (check->path_count > 0) {
        status = check_golden(check);
    } else {
        check_builtin(check);
    }
    status = status == STATUS_GOOD ? finish(check) : status;
    checker_close(&check->checker);
    return status;
}

/* Takes one option; false if its value has no meaning. */
static bool take_option(struct check *check, int key, const char *value) {
    switch (key) {
    case KEY_GOLDEN:
        check->paths[check->path_count++] = value;
        return true;
    case KEY_CASE:
        check->texts[check->text_count++] = value;
        return true;
    case KEY_DEVICE:
        check->checker.device = value;
        return true;
    case KEY_KERNEL:
        check->checker.kernel = value;
        return true;
    case KEY_OP:
        check->choice.op = value;
        return case_op_find(value) != NULL ||
               usage_error(&self, "--op: \"%s\" is no op; there are " CASE_OP_NAMES, value) == STATUS_GOOD;
    case KEY_DTYPE:
        return parse_float_dtype(&self, value, &check->choice.dtype);
    case KEY_COMPUTE:
        check->choice.compute = value;
        return parse_compute(&self, value, &check->compute);
    case KEY_SEED:
        return parse_seed(&self, value, &check->checker.seed);
    case KEY_FILTER:
        check->filter = value;
        return true;
    case KEY_LIST:
        check->list = true;
        return true;
    case KEY_JSON:
        check->checker.json = true;
        return true;
    default:
        return false;
    }
}

/* What the options exclude of each other. */
static int check_usage(const struct check *check) {
    bool chosen = check->choice.op != NULL || check->choice.dtype != EVO_NONE || check->choice.compute != NULL;
    if (check->path_count > 0 && (check->text_count > 0 || check->list)) {
        return usage_error(&self, "--golden goes with neither --case nor --list");
    }
    if (check->text_count > 0 && chosen) {
        return usage_error(&self, "--case says all of the case: leave --op, --dtype and --compute out");
    }
    for (int i = 0; i < check->text_count; i++) {
        struct evo_case c;
        struct io_error error;
        if (!case_parse(check->texts[i], check->checker.seed, &c, &error)) {
            char option[CASE_NAME_SIZE + 16];
            (void)snprintf(option, sizeof option, "--case %s: ", check->texts[i]);
            return wrong_argument(&self, option, &error);
        }
        case_destroy(&c);
    }
    return STATUS_GOOD;
}

/* What follows the options: more golden files. */
static int take_rest(struct check *check, int argc, char **argv) {
    for (int i = optind; i < argc; i++) {
        if (check->path_count == 0) {
            return usage_error(&self, "unexpected argument \"%s\" (files need --golden)", argv[i]);
        }
        check->paths[check->path_count++] = argv[i];
    }
    return check_usage(check);
}

int command_check(int argc, char **argv) {
    struct arguments arguments = { &self, argc, argv, NULL };
    struct check check = { .checker = { .device = "cpu", .seed = 1 } };
    int status = STATUS_GOOD;
    int key = 0;
    check.texts = calloc((size_t)argc + 1, sizeof *check.texts);
    check.paths = calloc((size_t)argc + 1, sizeof *check.paths);
    if (check.texts == NULL || check.paths == NULL) {
        status = failure(&self, "out of memory");
    }
    while (status == STATUS_GOOD && (key = next_option(&arguments)) != 0) {
        if (key == KEY_HELP) {
            print_help(&self);
            break;
        }
        if (!take_option(&check, key, arguments.value)) {
            status = STATUS_USAGE;
        }
    }
    if (status == STATUS_GOOD && key == 0) {
        status = take_rest(&check, argc, argv);
        status = status == STATUS_GOOD ? run_checks(&check) : status;
    }
    free(check.texts);
    free(check.paths);
    return status == STATUS_USAGE ? status : close_output(&self, status);
}
