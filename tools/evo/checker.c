/* checker.c: cases judged on one device, counted and printed. */
#include "checker.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool checker_open(struct checker *checker, const struct command *command, int *status) {
    checker->command = command;
    if (!open_device(command, checker->device, &checker->context, status)) {
        return false;
    }
    if (!open_device(command, "cpu", &checker->cpu, status)) {
        checker_close(checker);
        return false;
    }
    checker->info = (evo_device_info)EVO_DEVICE_INFO_INIT;
    if (evo_context_device(checker->context, &checker->info) == EVO_OK) {
        checker->device = checker->info.name;
    }
    checker->terminal = isatty(STDERR_FILENO) != 0;
    *status = STATUS_GOOD;
    return true;
}

void checker_close(struct checker *checker) {
    evo_context_destroy(checker->cpu);
    evo_context_destroy(checker->context);
    checker->context = checker->cpu = NULL;
}

/* ---- progress ---- */

void checker_progress(const struct checker *checker, const char *name) {
    if (checker->terminal) {
        (void)fprintf(stderr, "\r\033[K[%d/%d] %.100s", checker->done, checker->total, name);
        (void)fflush(stderr);
    }
}

void checker_clear_progress(const struct checker *checker) {
    if (checker->terminal) {
        (void)fprintf(stderr, "\r\033[K");
    }
}

/* ---- results ---- */

/* Infinity and NaN are no JSON numbers; they become null. */
static void add_number(cJSON *object, const char *key, double value) {
    if (isfinite(value)) {
        (void)cJSON_AddNumberToObject(object, key, value);
    } else {
        (void)cJSON_AddNullToObject(object, key);
    }
}

static bool print_json(const struct command *command, const char *name, const struct case_verdict *verdict,
                       enum result result, const char *repeat) {
    static const char *const words[] = { "ok", "fail", "skip" };
    cJSON *object = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(object, "case", name);
    (void)cJSON_AddStringToObject(object, "result", words[result]);
    (void)cJSON_AddStringToObject(object, "kernel", verdict->outcome.kernel);
    add_number(object, "error", verdict->comparison.total);
    add_number(object, "worst_pair", verdict->comparison.pair);
    add_number(object, "bound", verdict->bound.total);
    add_number(object, "pair_bound", verdict->bound.pair);
    add_number(object, "milliseconds", verdict->outcome.milliseconds);
    if (result != RESULT_OK) {
        (void)cJSON_AddStringToObject(object, "message", verdict->outcome.message);
    }
    if (result == RESULT_FAILED) {
        (void)cJSON_AddStringToObject(object, "repeat", repeat);
    }
    return print_object(command, object);
}

static void print_line(const char *name, const struct case_verdict *verdict, enum result result, const char *repeat) {
    if (result == RESULT_SKIPPED) {
        printf("%s  skipped: %s\n", name, verdict->outcome.message);
        return;
    }
    if (result == RESULT_FAILED && verdict->bound.total == 0.0) { /* it did not come to a comparison */
        printf("%s  -  error -, worst pair -  FAIL\n    %s\n    repeat: %s\n", name, verdict->outcome.message, repeat);
        return;
    }
    printf("%s  %s  error %.1e of %.1e, worst pair %.1e of %.1e  %s\n", name,
           verdict->outcome.kernel[0] != '\0' ? verdict->outcome.kernel : "-", verdict->comparison.total,
           verdict->bound.total, verdict->comparison.pair, verdict->bound.pair, result == RESULT_OK ? "ok" : "FAIL");
    if (result == RESULT_FAILED) {
        printf("    %s\n    repeat: %s\n", verdict->outcome.message, repeat);
    }
}

void checker_report(struct checker *checker, const char *name, const struct case_verdict *verdict, enum result result,
                    const char *repeat) {
    checker->passed += result == RESULT_OK;
    checker->failed += result == RESULT_FAILED;
    checker->skipped += result == RESULT_SKIPPED;
    if (result != RESULT_FAILED && checker->failures_only) {
        return;
    }
    checker_clear_progress(checker);
    if (!checker->json) {
        print_line(name, verdict, result, repeat);
    } else if (!print_json(checker->command, name, verdict, result, repeat)) {
        checker->unprinted++;
    }
}

void checker_report_error(struct checker *checker, const char *name, const char *message, const char *repeat) {
    struct case_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    (void)snprintf(verdict.outcome.message, sizeof verdict.outcome.message, "%s", message);
    checker_report(checker, name, &verdict, RESULT_FAILED, repeat);
}

int checker_count(const struct checker *checker) {
    return checker->passed + checker->failed + checker->skipped;
}

int checker_status(const struct checker *checker) {
    bool good = checker->passed > 0 && checker->failed == 0 && checker->unprinted == 0;
    return good ? STATUS_GOOD : STATUS_FAILED;
}

int checker_finish(struct checker *checker) {
    checker_clear_progress(checker);
    if (checker->json) {
        cJSON *object = cJSON_CreateObject();
        (void)cJSON_AddNumberToObject(object, "passed", checker->passed);
        (void)cJSON_AddNumberToObject(object, "failed", checker->failed);
        (void)cJSON_AddNumberToObject(object, "skipped", checker->skipped);
        checker->unprinted += !print_object(checker->command, object);
    } else {
        printf("%d passed, %d failed, %d skipped\n", checker->passed, checker->failed, checker->skipped);
    }
    return checker_status(checker);
}

/* ---- judging ---- */

/* A refusal is no failure where a kernel was forced, or where only the CPU computes in fp64. */
static enum result result_of(const struct checker *checker, const struct evo_case *c,
                             const struct case_verdict *verdict) {
    union case_desc desc = c->desc;
    bool forced = checker->kernel != NULL || getenv("EVO_KERNEL") != NULL;
    bool reference_only = *c->op->common(&desc).compute == EVO_COMPUTE_FP64 && strcmp(checker->device, "cpu") != 0;
    if (verdict->outcome.result == CASE_DONE) {
        return RESULT_OK;
    }
    return verdict->outcome.result == CASE_REFUSED && (forced || reference_only) ? RESULT_SKIPPED : RESULT_FAILED;
}

bool checker_has_kernel(const struct checker *checker, const struct case_op *op) {
    const char *kernel;
    for (int i = 0; (kernel = evo_context_kernel(checker->context, op->id, i)) != NULL; i++) {
        if (strcmp(kernel, checker->kernel) == 0) {
            return true;
        }
    }
    return false;
}

enum result checker_judge(const struct checker *checker, struct evo_case *c, struct case_verdict *verdict) {
    struct case_common common = c->op->common(&c->desc);
    if (checker->kernel != NULL) {
        *common.kernel = checker->kernel;
        if (!checker_has_kernel(checker, c->op)) {
            memset(verdict, 0, sizeof *verdict);
            (void)snprintf(verdict->outcome.message, sizeof verdict->outcome.message, "%s has no kernel \"%s\" on %s",
                           c->op->name, checker->kernel, checker->device);
            return RESULT_SKIPPED;
        }
    }
    (void)case_check(checker->context, checker->cpu, c, verdict);
    return result_of(checker, c, verdict);
}
