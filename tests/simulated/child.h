/*
 * child.h: runs a piece of a test in a process of its own, since a simulated device reads its environment once, and what
 * AddressSanitizer finds ends the process. Includes what every test of the simulated devices needs.
 */
#ifndef EVO_TESTS_SIMULATED_CHILD_H
#define EVO_TESTS_SIMULATED_CHILD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/gpu/driver.h"

/* How a child ended: its exit status, or 128 and the number of the signal that ended it, and what it printed. */
typedef struct outcome {
    int status;
    char text[16384];
} outcome;

/* Runs `body(argument)` with `settings` ("NAME=value", ends with NULL) in its environment; the body's result is the status. */
outcome run_child(int (*body)(const void *argument), const void *argument, const char *const *settings);

/* The adapter under test, "cuda" or "hip", by EVO_TEST_DEVICE. */
const gpu_driver *tested_driver(void);

/* In a child: leaves it with status 1 and a line on stderr unless a condition holds, or a call succeeds. */
#define REQUIRE(condition) require((condition) != 0, #condition, __FILE__, __LINE__)
#define OK(call) require_ok((call), #call, __FILE__, __LINE__)
/* Unless a call gives `status`, with `words` in the error text. */
#define FAILS(call, status, words) require_failure((call), (status), (words), #call, __FILE__, __LINE__)

void require(int holds, const char *what, const char *file, int line);
void require_ok(evo_status status, const char *what, const char *file, int line);
void require_failure(evo_status got, evo_status want, const char *words, const char *what, const char *file, int line);

/* In a test: a child must end well. */
void check_child(int (*body)(const void *argument), const void *argument, const char *const *settings);

#endif
