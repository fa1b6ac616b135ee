/* selftest.c: `evo selftest`: whether an installed library computes rightly on each device of this machine. */
#include <cjson/cJSON.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "builtin.h"
#include "checker.h"
#include "known.h"

enum {
    KEY_DEVICE = KEY_FIRST,
    KEY_SECONDS,
    KEY_SEED,
    KEY_JSON
};

static const struct option_spec options[] = {
    { "device", KEY_DEVICE, "NAME", "only this device, as evo info names it (default: all)" },
    { "seconds", KEY_SECONDS, "S", "how long the random part may take, shared among the devices (default: 60)" },
    { "seed", KEY_SEED, "N", "the seed of the random numbers and of the cases' order (default: 1)" },
    { "json", KEY_JSON, NULL, "one JSON object a line: each failure, then each device" },
    { "help", KEY_HELP, NULL, "print this help" },
    { NULL, 0, NULL, NULL }
};

static const struct command self = {
    "evo selftest", "evo selftest [OPTION]...",
    "Checks on a user's machine that the library computes what it should, in about a minute. Per device: inputs whose\n"
    "outputs other projects' code computed, which are part of this program; a few shapes of real use; then the cases\n"
    "of `evo check` in a random order until the time is up. All but the known outputs are judged by the fp64 kernel\n"
    "\"reference\" of the CPU.\n"
    "\n"
    "Each failure prints a command that repeats it; a device is one line. If something fails, please report it with\n"
    "the output of `evo info --report`.\n"
    "\n"
    "Exit status: 0 if all devices passed, 1 if not, 2 if the command line is wrong.",
    options
};

/* Shapes of real use: many tiles, all threads, the default kernels of fp32 and of 16 bits. */
static const char *const shapes[] = { "opm(variant=alphafold2,s=96,n=65,c_m=64,c=32,c_z=128,mask=random",
                                      "trimul(variant=alphafold2,n=130,c_z=128,c=128,mask=random",
                                      "trimul(variant=alphafold3,direction=incoming,n=96,c_z=128,c=64,mask=random" };
static const char *const dtypes[] = { "fp32", "bf16", "fp16" };

enum {
    SHAPE_COUNT = sizeof shapes / sizeof shapes[0],
    DTYPE_COUNT = sizeof dtypes / sizeof dtypes[0]
};

struct selftest {
    const char *device; /* NULL: all */
    double seconds;
    uint64_t seed;
    bool json;
    char **texts; /* of the built-in cases, in the order in which they are taken */
    size_t text_count, text_space;
    int known_count;
};

static double clock_seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- the list of cases ---- */

static bool keep_text(void *user, const char *text) {
    struct selftest *test = user;
    if (test->text_count == test->text_space) {
        size_t space = 2 * test->text_space + 1024;
        char **texts = realloc(test->texts, space * sizeof *texts);
        if (texts == NULL) {
            return false;
        }
        test->texts = texts;
        test->text_space = space;
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        return false;
    }
    test->texts[test->text_count++] = copy;
    return true;
}

static bool count_text(void *user, const char *text) {
    (void)text;
    *(size_t *)user += 1;
    return true;
}

/* False if there is no memory for them. */
static bool list_texts(struct selftest *test) {
    static const struct builtin_choice all = { NULL, EVO_NONE, NULL };
    size_t expected = 0;
    builtin_cases(&all, keep_text, test);
    builtin_cases(&all, count_text, &expected);
    struct case_random random;
    case_random_seed(&random, test->seed, "selftest");
    for (size_t left = test->text_count; left > 1; left--) {
        size_t other = (size_t)(case_random_bits(&random) % left);
        char *text = test->texts[left - 1];
        test->texts[left - 1] = test->texts[other];
        test->texts[other] = text;
    }
    return test->text_count == expected;
}

static void free_texts(struct selftest *test) {
    for (size_t i = 0; i < test->text_count; i++) {
        free(test->texts[i]);
    }
    free(test->texts);
}

/* ---- one device ---- */

/* Judges a case that was made, or tells why it was not. */
static void take(struct checker *checker, const char *name, bool made, struct evo_case *c, const struct io_error *error,
                 const char *repeat) {
    struct case_verdict verdict;
    if (!made) {
        checker_report_error(checker, name, error->text, repeat);
    } else {
        enum result result = checker_judge(checker, c, &verdict);
        checker_report(checker, name, &verdict, result, repeat);
        case_destroy(c);
    }
    checker->done++;
}

static void check_known(struct checker *checker, const struct known_answer *known) {
    struct evo_case c;
    struct io_error error;
    char repeat[256];
    (void)snprintf(repeat, sizeof repeat, "evo selftest --device %s --seconds 0", checker->device);
    checker_progress(checker, known->name);
    bool made = case_load_bytes(known->name, known->begin, (size_t)(known->end - known->begin), &c, &error);
    take(checker, known->name, made, &c, &error, repeat);
}

static void check_text(struct checker *checker, const char *text) {
    struct evo_case c;
    struct io_error error;
    char repeat[CASE_NAME_SIZE + 256];
    (void)snprintf(repeat, sizeof repeat, "evo check --device %s --seed %llu --case '%s'", checker->device,
                   (unsigned long long)checker->seed, text);
    checker_progress(checker, text);
    bool made = case_parse(text, checker->seed, &c, &error);
    take(checker, text, made, &c, &error, repeat);
}

static void check_shapes(struct checker *checker) {
    for (int i = 0; i < SHAPE_COUNT; i++) {
        for (int k = 0; k < DTYPE_COUNT; k++) {
            char text[CASE_NAME_SIZE];
            (void)snprintf(text, sizeof text, "%s,dtype=%s)", shapes[i], dtypes[k]);
            check_text(checker, text);
        }
    }
}

static void print_device(const struct selftest *test, struct checker *checker, int random_count, double seconds) {
    bool good = checker_status(checker) == STATUS_GOOD;
    if (test->json) {
        cJSON *object = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(object, "device", checker->device);
        (void)cJSON_AddStringToObject(object, "arch", checker->info.arch);
        (void)cJSON_AddNumberToObject(object, "known", test->known_count);
        (void)cJSON_AddNumberToObject(object, "shapes", SHAPE_COUNT * DTYPE_COUNT);
        (void)cJSON_AddNumberToObject(object, "random", random_count);
        (void)cJSON_AddNumberToObject(object, "random_all", (double)test->text_count);
        (void)cJSON_AddNumberToObject(object, "passed", checker->passed);
        (void)cJSON_AddNumberToObject(object, "failed", checker->failed);
        (void)cJSON_AddNumberToObject(object, "skipped", checker->skipped);
        (void)cJSON_AddNumberToObject(object, "seconds", seconds);
        (void)cJSON_AddStringToObject(object, "result", good ? "ok" : "fail");
        checker->unprinted += !print_object(&self, object);
        return;
    }
    printf("%s (%s, %s): %d known answers, %d shapes of real use, %d of %zu built-in cases; %d passed, %d failed, "
           "%d skipped in %.0f s: %s\n",
           checker->device, checker->info.description, checker->info.arch, test->known_count, SHAPE_COUNT * DTYPE_COUNT,
           random_count, test->text_count, checker->passed, checker->failed, checker->skipped, seconds,
           good ? "ok" : "FAIL");
    (void)fflush(stdout);
}

/* The random part takes `seconds`; the rest has no limit. The command's status. */
static int check_device(const struct selftest *test, const char *device, double seconds) {
    struct checker checker = { .device = device, .seed = test->seed, .json = test->json, .failures_only = true };
    int status = STATUS_FAILED;
    double start = clock_seconds();
    size_t taken = 0;
    if (!checker_open(&checker, &self, &status)) {
        return status;
    }
    checker.total = test->known_count + SHAPE_COUNT * DTYPE_COUNT + (int)test->text_count;
    for (const struct known_answer *known = known_answers; known->name != NULL; known++) {
        check_known(&checker, known);
    }
    check_shapes(&checker);
    double end = clock_seconds() + seconds;
    for (; taken < test->text_count && clock_seconds() < end && ferror(stdout) == 0; taken++) {
        check_text(&checker, test->texts[taken]);
    }
    checker_clear_progress(&checker);
    print_device(test, &checker, (int)taken, clock_seconds() - start);
    checker_close(&checker);
    return checker_status(&checker);
}

/* ---- the command ---- */

static int check_all(const struct selftest *test) {
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    int count = 0, status = STATUS_GOOD;
    while (evo_device_get(count, &device) == EVO_OK) {
        count++;
    }
    for (int i = 0; i < count; i++) {
        if (evo_device_get(i, &device) != EVO_OK) {
            status = failure(&self, "%s", evo_last_error());
        } else if (check_device(test, device.name, test->seconds / count) != STATUS_GOOD) {
            status = STATUS_FAILED;
        }
    }
    return status;
}

static int run(struct selftest *test) {
    int status = STATUS_FAILED;
    for (const struct known_answer *known = known_answers; known->name != NULL; known++) {
        test->known_count++;
    }
    if (!list_texts(test)) {
        (void)failure(&self, "out of memory");
    } else if (test->device != NULL) {
        status = check_device(test, test->device, test->seconds);
    } else {
        status = check_all(test);
    }
    free_texts(test);
    if (!test->json && status == STATUS_FAILED) {
        printf("selftest FAILED; please report it with the output of `evo info --report`\n");
    }
    return status;
}

/* False, after a message, if the text is no number of seconds. */
static bool parse_seconds(const char *text, double *seconds) {
    char *end;
    *seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(*seconds >= 0.0) || !isfinite(*seconds)) {
        (void)usage_error(&self, "--seconds: \"%s\" is not a time; expected a number of at least 0", text);
        return false;
    }
    return true;
}

int command_selftest(int argc, char **argv) {
    struct arguments arguments = { &self, argc, argv, NULL };
    struct selftest test = { .seconds = 60.0, .seed = 1 };
    int key;
    while ((key = next_option(&arguments)) != 0) {
        bool good = true;
        switch (key) {
        case KEY_DEVICE:
            test.device = arguments.value;
            break;
        case KEY_SECONDS:
            good = parse_seconds(arguments.value, &test.seconds);
            break;
        case KEY_SEED:
            good = parse_seed(&self, arguments.value, &test.seed);
            break;
        case KEY_JSON:
            test.json = true;
            break;
        case KEY_HELP:
            print_help(&self);
            return close_output(&self, STATUS_GOOD);
        default:
            good = false;
        }
        if (!good) {
            return STATUS_USAGE;
        }
    }
    if (optind < argc) {
        return usage_error(&self, "unexpected argument \"%s\"", argv[optind]);
    }
    int status = run(&test);
    return status == STATUS_USAGE ? status : close_output(&self, status);
}
