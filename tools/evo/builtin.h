/* builtin.h: the cases that `evo check` has of its own. */
#ifndef EVO_TOOLS_EVO_BUILTIN_H
#define EVO_TOOLS_EVO_BUILTIN_H

#include "case/case.h"

/* Which of them. */
struct builtin_choice {
    const char *op;      /* NULL: all */
    evo_dtype dtype;     /* EVO_NONE: all */
    const char *compute; /* NULL: what fits the type, and a few others */
};

/* Calls `take` with the text of each case, in a fixed order, until it returns false. */
void builtin_cases(const struct builtin_choice *choice, bool (*take)(void *user, const char *text), void *user);

#endif
