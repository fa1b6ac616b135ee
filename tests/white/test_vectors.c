/*
 * test_vectors.c: what the CPU's instruction sets compute on vectors, against libm in double: exp (of numbers up to 0, as the
 * kernels need) and sigmoid, 16-bit rounding, products. With the argument "every" both are tried on every fp32 number (minutes).
 * It needs no framework, so that it also runs where the other tests' libraries are missing: cross-compiled, in an emulator.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/blocked/isa.h"
#include "src/number.h"

enum {
    CHUNK = 4096
};

/* Says what is not so, and ends the program. */
#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

static float number_of(uint32_t code) {
    float value;
    memcpy(&value, &code, sizeof value);
    return value;
}

/* The distance in units of the last place that `want`, rounded to fp32, has. */
static double ulps(float got, double want) {
    if (isnan(want)) return isnan(got) ? 0.0 : INFINITY;
    if (fabs(want) >= 0x1.ffffffp127) return isinf(got) ? 0.0 : fabs((double)got) > 0x1.fffffcp127 ? 1.0 : INFINITY;
    const int exponent = (int)(evo_double_bits(want) >> 52 & 0x7ff) - 1022; /* as frexp says it */
    const int last = exponent < -125 ? -149 : exponent - 24;
    return fabs((double)got - want) * evo_bits_double((uint64_t)(1023 - last) << 52);
}

typedef struct worst {
    double exponential, sigmoid;
    float at_exponential, at_sigmoid;
} worst;

/* The worst errors of CHUNK codes from `code` on, `step` apart. */
static worst try_chunk(const cpu_isa *isa, uint64_t code, uint64_t step) {
    float x[CHUNK], e[CHUNK], s[CHUNK];
    worst found = { 0.0, 0.0, 0.0f, 0.0f };
    for (int k = 0; k < CHUNK; k++, code += step) x[k] = number_of((uint32_t)code);
    isa->exponentials(x, CHUNK, e, s);
    for (int k = 0; k < CHUNK; k++) {
        const double inverse = exp(-(double)x[k]);
        const double error_e = x[k] > 0.0f ? 0.0 : ulps(e[k], exp((double)x[k]));
        const double error_s = ulps(s[k], 1.0 / (1.0 + inverse));
        if (!(error_e <= found.exponential)) found.exponential = error_e, found.at_exponential = x[k];
        if (!(error_s <= found.sigmoid)) found.sigmoid = error_s, found.at_sigmoid = x[k];
    }
    return found;
}

/* Every step'th fp32 number. */
static void try_codes(const cpu_isa *isa, uint64_t step) {
    const int64_t chunks = (int64_t)((UINT64_C(1) << 32) / step / CHUNK + 1); /* the last one begins anew */
    worst all = { 0.0, 0.0, 0.0f, 0.0f };
#pragma omp parallel for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const worst found = try_chunk(isa, (uint64_t)chunk * CHUNK * step, step);
#pragma omp critical
        {
            if (!(found.exponential <= all.exponential))
                all.exponential = found.exponential, all.at_exponential = found.at_exponential;
            if (!(found.sigmoid <= all.sigmoid)) all.sigmoid = found.sigmoid, all.at_sigmoid = found.at_sigmoid;
        }
    }
    printf("%s: exp %.3f ulp at %.9g, sigmoid %.3f ulp at %.9g\n", isa->name, all.exponential,
           (double)all.at_exponential, all.sigmoid, (double)all.at_sigmoid);
    fflush(stdout);
    CHECK(all.exponential <= 2.0 && all.sigmoid <= 2.0);
}

static uint64_t step_of_codes = 997;

static void test_exponentials(void) {
    for (int k = 0; evo_cpu_isa(k); k++)
        if (evo_cpu_isa_usable(evo_cpu_isa(k))) try_codes(evo_cpu_isa(k), step_of_codes);
}

/* Rows of 16-bit numbers become floats exactly, and floats round as src/number.h does. */
static void test_conversions(void) {
    static const evo_dtype dtypes[] = { EVO_BF16, EVO_FP16 };
    static uint16_t codes[65536], back[65536];
    static float panel[48 * 65536 / 8], buffer[49 * 65536 / 8];
    for (int c = 0; c < 65536; c++) codes[c] = (uint16_t)c;
    for (int k = 0; evo_cpu_isa(k); k++) {
        const cpu_isa *isa = evo_cpu_isa(k);
        if (!evo_cpu_isa_usable(isa)) continue;
        for (int t = 0; t < 2; t++) {
            const int channels = 65536 / 8, count = 8;
            const cpu_rows from = { codes, dtypes[t], 0, channels, 1, count };
            const cpu_rows to = { back, dtypes[t], 0, channels, 1, count }, none = { NULL, EVO_NONE, 0, 0, 0, 0 };
            isa->read(&from, channels, buffer, panel);
            isa->write(panel, channels, &none, &to, buffer);
            for (int c = 0; c < 65536; c++) {
                const double want = evo_load(codes, dtypes[t], c);
                const double got = (double)panel[c % channels * isa->lanes + c / channels];
                CHECK(isnan(want) ? isnan(got) : got == want);
                CHECK(isnan(want) ? isnan(evo_load(back, dtypes[t], c)) : back[c] == codes[c]);
            }
        }
    }
}

/* Floats around every 16-bit number and every tie. */
static void test_rounding(void) {
    static const evo_dtype dtypes[] = { EVO_BF16, EVO_FP16 };
    static uint16_t got[CHUNK], want[CHUNK];
    static float panel[48 * CHUNK], buffer[49 * CHUNK];
    for (int k = 0; evo_cpu_isa(k); k++) {
        const cpu_isa *isa = evo_cpu_isa(k);
        for (uint64_t code = 0; evo_cpu_isa_usable(isa) && code < UINT64_C(1) << 32;) {
            for (int c = 0; c < CHUNK; c++, code += 509) panel[c * isa->lanes] = number_of((uint32_t)code);
            for (int t = 0; t < 2; t++) {
                const cpu_rows to = { got, dtypes[t], 0, CHUNK, 1, 1 }, none = { NULL, EVO_NONE, 0, 0, 0, 0 };
                isa->write(panel, CHUNK, &none, &to, buffer);
                for (int c = 0; c < CHUNK; c++) {
                    evo_store(want, dtypes[t], c, (double)panel[c * isa->lanes]);
                    CHECK(isnan(panel[c * isa->lanes]) ? isnan(evo_load(got, dtypes[t], c)) : got[c] == want[c]);
                }
            }
        }
    }
}

/* All shapes around the register tiles: rows, depth, lanes, with and without adding. Small integers, so sums are exact. */
static void try_product(const cpu_isa *isa, bool pairs, int rows, int depth, int count, bool add) {
    static float a[64 * 300], b[300 * 48], c[64 * 48];
    const int granularity = pairs ? isa->pair_rows : isa->rows, terms = pairs ? 2 : 1;
    const bool whole = pairs && isa->pair_rows_whole;
    for (int i = 0; i < 64 * 300; i++) {
        const uint32_t both = 0x3f804000; /* 2 in the lower half, 1 in the upper */
        a[i] = pairs ? number_of(i % 3 ? both : 0) : (float)(i % 5 - 2);
    }
    for (int i = 0; i < 300 * 48; i++) b[i] = pairs ? number_of(i % 7 ? 0xbf803f80 : 0x40400000) : (float)(i % 7 - 3);
    for (int i = 0; i < 64 * 48; i++) c[i] = 5.0f;
    const cpu_product p = { rows,
                            depth,
                            count,
                            add,
                            whole ? (cpu_operand){ a, 1, 1, depth }
                                  : (cpu_operand){ a, granularity, granularity, (int64_t)granularity * depth },
                            b,
                            c,
                            isa->lanes };
    (pairs ? isa->multiply_pairs : isa->multiply)(&p);
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < count; l++) {
            double sum = add ? 5.0 : 0.0;
            for (int k = 0; k < depth; k++) {
                const float *x =
                    a +
                    (whole ? r * depth + k : r / granularity * granularity * depth + r % granularity + k * granularity);
                const float *y = b + k * isa->lanes + l;
                for (int t = 0; t < terms; t++)
                    sum += pairs ? evo_load(x, EVO_BF16, t) * evo_load(y, EVO_BF16, t) : (double)(*x * *y);
            }
            CHECK((double)c[r * isa->lanes + l] == sum);
        }
    for (int i = rows * isa->lanes; i < 64 * isa->lanes; i++) CHECK(c[i] == 5.0f);
}

static void test_products(void) {
    static const int rows[] = { 1, 3, 4, 8, 9, 31, 32, 33 }, depths[] = { 0, 1, 2, 15, 16, 17, 64, 65, 200 };
    for (int k = 0; evo_cpu_isa(k); k++) {
        const cpu_isa *isa = evo_cpu_isa(k);
        for (int r = 0; evo_cpu_isa_usable(isa) && r < 8; r++)
            for (int d = 0; d < 9; d++)
                for (int count = 1; count <= isa->lanes; count++)
                    for (int pairs = 0; pairs <= (isa->multiply_pairs != NULL); pairs++)
                        try_product(isa, pairs, rows[r], depths[d], count, count % 2);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "every") == 0) {
        step_of_codes = 1;
        test_exponentials();
        return 0;
    }
    test_exponentials();
    test_conversions();
    test_rounding();
    test_products();
    return 0;
}
