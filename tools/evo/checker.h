/* checker.h: cases judged on one device, counted and printed: what `evo check` and `evo selftest` share. */
#ifndef EVO_TOOLS_EVO_CHECKER_H
#define EVO_TOOLS_EVO_CHECKER_H

#include "command.h"

struct checker {
    const struct command *command;
    const char *device; /* as asked for, then as opened */
    const char *kernel; /* forced; NULL: the planner's choice */
    uint64_t seed;
    bool json;
    bool failures_only; /* the cases that pass, or are skipped, are counted and not printed */
    evo_context *context, *cpu;
    evo_device_info info;
    int passed, failed, skipped;
    int unprinted;   /* lines of JSON that there was no memory for */
    int done, total; /* for the progress line */
    bool terminal;
};

enum result {
    RESULT_OK,
    RESULT_FAILED,
    RESULT_SKIPPED
};

/* Opens `device`, and the CPU that judges it. False after a message; *status then is the command's. */
bool checker_open(struct checker *checker, const struct command *command, int *status);
void checker_close(struct checker *checker);

/* Whether the op has the kernel that is forced. */
bool checker_has_kernel(const struct checker *checker, const struct case_op *op);

/* Runs one case, with the forced kernel if there is one. */
enum result checker_judge(const struct checker *checker, struct evo_case *c, struct case_verdict *verdict);

/* Counts and prints one case; `repeat` is the command that repeats it. */
void checker_report(struct checker *checker, const char *name, const struct case_verdict *verdict, enum result result,
                    const char *repeat);

/* The same for a case that did not come to be. */
void checker_report_error(struct checker *checker, const char *name, const char *message, const char *repeat);

int checker_count(const struct checker *checker);

/* The status of a command that has checked all it wanted. */
int checker_status(const struct checker *checker);

/* Prints the counts; the status. */
int checker_finish(struct checker *checker);

/* On a terminal, which case is computed now. */
void checker_progress(const struct checker *checker, const char *name);
void checker_clear_progress(const struct checker *checker);

#endif
