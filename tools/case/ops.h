/* ops.h: the ops that the case library knows; inside tools/case only. */
#ifndef EVO_TOOLS_CASE_OPS_H
#define EVO_TOOLS_CASE_OPS_H

#include "case/case.h"

extern const struct case_op case_op_opm;
extern const struct case_op case_op_trimul;

/* Points into a struct by the offset that a table gives. */
static inline void *case_at(void *base, size_t offset) {
    return (char *)base + offset;
}

static inline const void *case_at_const(const void *base, size_t offset) {
    return (const char *)base + offset;
}

/* Fills in every tensor's spec, extents and count from the sizes; weights are present if their bias bit is set. */
bool case_prepare(struct evo_case *c, struct io_error *error);

/* Gives the views of peers' buffers values of their own, and forgets those buffers; the case must be laid out anew. */
bool case_gather(struct evo_case *c, struct io_error *error);

/* The place of a text among names that end with NULL; the message lists them. */
bool case_choose(const char *name, const char *const *choices, const char *text, int *choice, struct io_error *error);

/* The bit of the bias whose name without ".bias" is these `length` characters; 0 if there is none. */
unsigned case_bias_bit(const struct case_op *op, const char *name, size_t length);

/* Sets a size by its letter; false if the op has none such. */
bool case_set_dim(struct evo_case *c, char letter, int64_t value);

/* Room for `count` doubles, never NULL for 0; NULL with a message if there is none. */
double *case_alloc(int64_t count, struct io_error *error);

/* Rounds to what the type can hold. */
void case_round(double *values, int64_t count, evo_dtype dtype);

/* Where element number `index` (row-major) of a tensor lies in its buffer. */
int64_t case_element(const struct case_tensor *tensor, int64_t index);

/* Row-major strides of these extents. */
void case_contiguous(const int64_t *extents, int rank, int64_t *strides);

#endif
