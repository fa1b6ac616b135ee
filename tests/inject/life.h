/*
 * life.h: the whole life of the library on one device in one call, so that a test can let any single step of it fail: open
 * a context, describe devices, plan, pack and execute both ops by every kernel of the device, record and launch a graph,
 * time it, destroy everything. Public API only. What was made before a step failed is destroyed, and the same work is
 * then done once more in the same context.
 */
#ifndef EVO_TESTS_INJECT_LIFE_H
#define EVO_TESTS_INJECT_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include <evoformer/evoformer.h>

/* How far a life is; the last is for whoever wants to look before the context goes. */
typedef enum life_phase {
    LIFE_OPENING,
    LIFE_WORKING,
    LIFE_RECOVERING,
    LIFE_CLOSING
} life_phase;

typedef struct life {
    evo_status status; /* of the first step that failed */
    char call[96];     /* that step */
    char words[1024];  /* its error text */
    bool recovered;    /* whether all went well after it, in the same context */
    uint64_t digest;   /* of all outputs, of the last time that all went well */
    int kernels;       /* that would take part: those that do not refuse */
    /* Given by the caller: */
    const char *device;
    int only;    /* 0: every kernel; else one, counted from 1 over those that take part */
    int variant; /* counted over the kernels: which variant each computes */
    void (*enters)(struct life *l, life_phase phase); /* called at the beginning of each phase, with `user`; or NULL */
    void *user;
} life;

/* Lives once. `l` is { 0 } but for what the caller gives. */
void life_live(life *l);

#endif
