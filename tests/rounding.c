/* rounding.c: see rounding.h. */
#include "rounding.h"

#include <math.h>
#include <stddef.h>

const number_format *number_format_of(evo_dtype dtype) {
    static const number_format formats[] = {
        { EVO_FP64, 53, -1022, 1023 },
        { EVO_FP32, 24, -126, 127 },
        { EVO_BF16, 8, -126, 127 },
        { EVO_FP16, 11, -14, 15 },
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].dtype == dtype) return &formats[i];
    return NULL;
}

/* Scaled so that the last place is 1, rounded to an even integer, and scaled back. */
long double round_to(const number_format *format, long double x) {
    int exponent;
    if (!isfinite(x) || x == 0.0L) return x;
    frexpl(x, &exponent);
    exponent--;
    int last_place = (exponent > format->least ? exponent : format->least) - (format->digits - 1);
    long double scaled = ldexpl(x, -last_place), whole = floorl(scaled), rest = scaled - whole;
    if (rest > 0.5L || (rest == 0.5L && fmodl(whole, 2.0L) != 0.0L)) whole += 1.0L;
    long double result = ldexpl(whole, last_place);
    long double largest = ldexpl(2.0L - ldexpl(1.0L, 1 - format->digits), format->most);
    if (fabsl(result) > largest) result = (long double)INFINITY;
    return copysignl(fabsl(result), x);
}
