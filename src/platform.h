/*
 * platform.h: what goes beyond C11 and POSIX 2008, or differs between systems, in one place: compiler extensions, the
 * environment, the clock, facts about the machine.
 */
#ifndef EVO_SRC_PLATFORM_H
#define EVO_SRC_PLATFORM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EVO_THREAD_LOCAL _Thread_local
#define EVO_PRINTF(text, first) __attribute__((format(printf, text, first)))

/** Products and sums of sizes: true if the result fits. */
static inline bool evo_mul(int64_t a, int64_t b, int64_t *result) {
    return !__builtin_mul_overflow(a, b, result);
}
static inline bool evo_add(int64_t a, int64_t b, int64_t *result) {
    return !__builtin_add_overflow(a, b, result);
}

/** a * b * c * d of sizes, or -1 if it does not fit in 63 bits. */
static inline int64_t evo_product(int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t ab, cd, product;
    return evo_mul(a, b, &ab) && evo_mul(c, d, &cd) && evo_mul(ab, cd, &product) ? product : -1;
}

/** An environment variable of this library; NULL if unset, empty, or the program runs with raised privileges. */
const char *evo_environment(const char *name);

/** Milliseconds of a clock that only goes forward. */
double evo_clock_ms(void);

/** The machine's name for its processor, its architecture ("x86_64") and main memory in bytes (0 if unknown). */
void evo_machine(char *description, size_t description_size, char *arch, size_t arch_size, size_t *memory);

/** The process that marked it first, if any; static, so that it starts as none. */
typedef atomic_long evo_process;

void evo_process_mark(evo_process *process);

/** True in a fork, or a fork of a fork, of the process that marked it. */
bool evo_process_forked(evo_process *process);

/** Processors that this thread may run on. */
int evo_processors(void);

/** Processors' worth of time that the container (a Linux control group) grants, rounded up; INT_MAX without a limit. */
int evo_processor_quota(void);

/** The same from a list of groups like /proc/self/cgroup, of either version, mounted below `root`. */
int evo_quota_of_groups(const char *groups, const char *root);

#endif
