/*
 * rounding.h: the stored number formats by arithmetic alone (ldexp and a rounding of integers), independent of the
 * library's bit operations.
 */
#ifndef EVO_TESTS_ROUNDING_H
#define EVO_TESTS_ROUNDING_H

#include <evoformer/tensor.h>

/* A binary format: `digits` of significand, exponents of two from `least` (normal) to `most`. */
typedef struct number_format {
    evo_dtype dtype;
    int digits, least, most;
} number_format;

/* fp64, fp32, bf16 or fp16. */
const number_format *number_format_of(evo_dtype dtype);

/* x rounded to nearest even; past the largest number to infinity. */
long double round_to(const number_format *format, long double x);

#endif
