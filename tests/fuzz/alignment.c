/*
 * alignment.c: the reader of alignments (examples/alignment.c; lines, FASTA and Stockholm are told apart by the text) on any
 * bytes. What it takes is the same alignment when it is written in each of the formats and read again, and its weights are
 * those of a plain count.
 */
#include "fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coevolution.h"

static const char *input, *copy;

void fuzz_set_up(void) {
    input = strdup(fuzz_path("input"));
    copy = strdup(fuzz_path("copy"));
}

enum format {
    LINES,
    FASTA,     /* wrapped after 3 columns */
    STOCKHOLM, /* in blocks of 4 columns */
    FORMATS
};

static void write_columns(FILE *file, const struct alignment *a, size_t sequence, size_t from, size_t most) {
    const char letters[] = "ACDEFGHIKLMNPQRSTVWY-";
    for (size_t i = from; i < a->columns && i < from + most; i++)
        (void)fputc(letters[a->symbols[sequence * a->columns + i]], file);
    (void)fputc('\n', file);
}

static void write_as(const struct alignment *a, enum format format) {
    FILE *file = fopen(copy, "wb");
    if (file == NULL) fuzz_fail("%s: cannot write", copy);
    const size_t width = format == LINES ? a->columns : format == FASTA ? 3 : 4;
    if (format == STOCKHOLM) {
        (void)fputs("# STOCKHOLM 1.0\n#=GF ID test\n\n", file);
        for (size_t from = 0; from < a->columns; from += width) {
            for (size_t s = 0; s < a->sequences; s++) {
                (void)fprintf(file, "s%zu/1-9 \t", s);
                write_columns(file, a, s, from, width);
            }
            (void)fputs("\n", file);
        }
        (void)fputs("//\n", file);
    } else {
        for (size_t s = 0; s < a->sequences; s++) {
            if (format == FASTA) (void)fprintf(file, ">s%zu of many\r\n", s);
            for (size_t from = 0; from < a->columns; from += width) write_columns(file, a, s, from, width);
        }
    }
    if (fclose(file) != 0) fuzz_fail("%s: cannot write", copy);
}

static void check_copies(const struct alignment *a) {
    for (int format = LINES; format < FORMATS; format++) {
        struct alignment again;
        write_as(a, (enum format)format);
        if (!alignment_read(&again, copy)) fuzz_fail("written in format %d, it is not read", format);
        FUZZ_CHECK(again.sequences == a->sequences && again.columns == a->columns);
        FUZZ_CHECK(memcmp(again.symbols, a->symbols, a->sequences * a->columns) == 0);
        alignment_free(&again);
    }
}

static void check_weights(const struct alignment *a) {
    double *weights = alignment_weights(a, NULL);
    FUZZ_CHECK(weights != NULL);
    for (size_t s = 0; s < a->sequences; s++) {
        size_t like = 0;
        for (size_t t = 0; t < a->sequences; t++) {
            size_t differ = 0;
            for (size_t i = 0; i < a->columns; i++)
                differ += a->symbols[s * a->columns + i] != a->symbols[t * a->columns + i];
            like += t == s || 5 * differ < a->columns;
        }
        FUZZ_CHECK(fabs(weights[s] * (double)like - 1.0) < 1e-12);
    }
    free(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct alignment a;
    fuzz_write(input, data, size);
    if (!alignment_read(&a, input)) {
        FUZZ_CHECK(a.symbols == NULL);
        return 0;
    }
    FUZZ_CHECK(a.sequences > 0 && a.columns > 0 && a.symbols != NULL && a.columns <= size);
    for (size_t k = 0; k < a.sequences * a.columns; k++) FUZZ_CHECK(a.symbols[k] < SYMBOLS);
    check_copies(&a);
    if (a.sequences <= 64) check_weights(&a);
    alignment_free(&a);
    return 0;
}
