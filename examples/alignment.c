/*
 * alignment.c: reads an alignment in one of three formats, told apart by the first line that is not blank, and weighs
 * its sequences.
 *
 *   "# STOCKHOLM 1.0"  Stockholm, in one block or interleaved
 *   ">name"            FASTA, each sequence on one line or wrapped
 *   anything else      one sequence a line
 */
#include "coevolution.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One sequence while the file is read. */
struct record {
    struct span name;
    size_t line; /* where it begins */
    unsigned char *symbols;
    size_t length, capacity;
};

struct reader {
    struct text text;
    struct record *records;
    size_t count, capacity;
    size_t *table; /* Stockholm: record number + 1 by hash of its name, 0 where free */
    size_t table_size;
};

/* The number of a symbol, or -1 for a character that has no place in an alignment. */
static int symbol_number(unsigned char c) {
    static const char amino_acids[] = "ACDEFGHIKLMNPQRSTVWY";
    const char *found;

    if (c == '-' || c == '.' || c == '*') return GAP;
    if (c >= 'a' && c <= 'z') c = (unsigned char)(c - 'a' + 'A');
    if (c < 'A' || c > 'Z') return -1;
    found = strchr(amino_acids, c);
    return found ? (int)(found - amino_acids) : GAP; /* X, B, Z, U and their like say nothing certain */
}

static bool out_of_memory(const struct reader *reader) {
    text_error(&reader->text, reader->text.line, "out of memory");
    return false;
}

static struct record *add_record(struct reader *reader, struct span name) {
    if (reader->count == reader->capacity) {
        size_t larger = reader->capacity ? 2 * reader->capacity : 256, bytes;
        struct record *records = NULL;
        if (size_product(larger, sizeof *records, &bytes)) records = realloc(reader->records, bytes);
        if (!records) {
            out_of_memory(reader);
            return NULL;
        }
        reader->records = records;
        reader->capacity = larger;
    }
    reader->records[reader->count] = (struct record){ .name = name, .line = reader->text.line };
    return &reader->records[reader->count++];
}

static bool add_symbols(struct reader *reader, struct record *record, struct span line) {
    /* The file is below 1 GiB, so these sums cannot overflow. */
    if (record->capacity - record->length < line.length) {
        size_t larger = record->length ? 2 * (record->length + line.length) : line.length;
        unsigned char *symbols = realloc(record->symbols, larger);
        if (!symbols) return out_of_memory(reader);
        record->symbols = symbols;
        record->capacity = larger;
    }
    for (size_t k = 0; k < line.length; k++) {
        unsigned char c = (unsigned char)line.start[k];
        int number = symbol_number(c);
        if (number < 0) {
            const char *expected = "is no letter, '-', '.' or '*'";
            if (c >= ' ' && c <= '~')
                text_error(&reader->text, reader->text.line, "'%c' %s", c, expected);
            else
                text_error(&reader->text, reader->text.line, "byte 0x%02x %s", c, expected);
            return false;
        }
        record->symbols[record->length++] = (unsigned char)number;
    }
    return true;
}

static bool read_lines(struct reader *reader, struct span line) {
    do {
        struct record *record;
        if (line.length == 0) continue;
        record = add_record(reader, (struct span){ "", 0 });
        if (!record || !add_symbols(reader, record, line)) return false;
    } while (text_next(&reader->text, &line));
    return true;
}

static bool read_fasta(struct reader *reader, struct span line) {
    struct record *record = NULL;

    do {
        if (line.length == 0) continue;
        if (line.start[0] == '>') {
            record = add_record(reader, (struct span){ line.start + 1, line.length - 1 });
            if (!record) return false;
        } else if (!add_symbols(reader, record, line)) {
            return false;
        }
    } while (text_next(&reader->text, &line));
    return true;
}

static size_t *find_slot(const struct reader *reader, struct span name) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    size_t slot;

    for (size_t k = 0; k < name.length; k++) hash = (hash ^ (unsigned char)name.start[k]) * 1099511628211u;
    slot = (size_t)(hash ^ hash >> 32) & (reader->table_size - 1);
    for (; reader->table[slot]; slot = (slot + 1) & (reader->table_size - 1)) {
        struct span other = reader->records[reader->table[slot] - 1].name;
        if (other.length == name.length && memcmp(other.start, name.start, name.length) == 0) break;
    }
    return &reader->table[slot];
}

static bool grow_table(struct reader *reader) {
    size_t size = reader->table_size ? 2 * reader->table_size : 1024;
    size_t *table = calloc(size, sizeof *table);

    if (!table) return out_of_memory(reader);
    free(reader->table);
    reader->table = table;
    reader->table_size = size;
    for (size_t k = 0; k < reader->count; k++) *find_slot(reader, reader->records[k].name) = k + 1;
    return true;
}

/* The record of a name, which an interleaved file brings up once a block. */
static struct record *named_record(struct reader *reader, struct span name) {
    size_t *slot;

    if (2 * reader->count >= reader->table_size && !grow_table(reader)) return NULL;
    slot = find_slot(reader, name);
    if (!*slot) {
        if (!add_record(reader, name)) return NULL;
        *slot = reader->count;
    }
    return &reader->records[*slot - 1];
}

static bool read_stockholm(struct reader *reader, struct span line) {
    bool ended = false;

    while (text_next(&reader->text, &line)) {
        struct span name = line;
        struct record *record;
        if (line.length == 0 || (line.start[0] == '#' && !ended)) continue;
        if (ended) {
            text_error(&reader->text, reader->text.line,
                       "text after the end of the alignment: only one a file is read");
            return false;
        }
        if (line.length == 2 && memcmp(line.start, "//", 2) == 0) {
            ended = true;
            continue;
        }
        for (name.length = 0; name.length < line.length; name.length++)
            if (line.start[name.length] == ' ' || line.start[name.length] == '\t') break;
        line.start += name.length;
        line.length -= name.length;
        while (line.length && (line.start[0] == ' ' || line.start[0] == '\t')) {
            line.start++;
            line.length--;
        }
        if (line.length == 0) {
            text_error(&reader->text, reader->text.line, "a name without a sequence");
            return false;
        }
        record = named_record(reader, name);
        if (!record || !add_symbols(reader, record, line)) return false;
    }
    return true;
}

static bool read_records(struct reader *reader) {
    static const char stockholm[] = "# STOCKHOLM";
    struct span line;

    while (text_next(&reader->text, &line)) {
        if (line.length == 0) continue;
        if (line.length >= sizeof stockholm - 1 && memcmp(line.start, stockholm, sizeof stockholm - 1) == 0)
            return read_stockholm(reader, line);
        return line.start[0] == '>' ? read_fasta(reader, line) : read_lines(reader, line);
    }
    return true;
}

/* All sequences must have the length of the first one, and at least one column. */
static bool check_lengths(const struct reader *reader) {
    if (reader->count == 0) {
        text_error(&reader->text, reader->text.line ? reader->text.line : 1, "no sequence in this file");
        return false;
    }
    for (size_t k = 0; k < reader->count; k++) {
        const struct record *record = &reader->records[k];
        if (record->length == 0) {
            text_error(&reader->text, record->line, "sequence %zu is empty", k + 1);
            return false;
        }
        if (record->length != reader->records[0].length) {
            text_error(&reader->text, record->line, "sequence %zu has %zu columns, the first has %zu", k + 1,
                       record->length, reader->records[0].length);
            return false;
        }
    }
    return true;
}

static bool gather(const struct reader *reader, struct alignment *alignment) {
    size_t bytes;

    alignment->sequences = reader->count;
    alignment->columns = reader->records[0].length;
    if (size_product(alignment->sequences, alignment->columns, &bytes)) alignment->symbols = malloc(bytes);
    if (!alignment->symbols) return out_of_memory(reader);
    for (size_t k = 0; k < alignment->sequences; k++)
        memcpy(alignment->symbols + k * alignment->columns, reader->records[k].symbols, alignment->columns);
    return true;
}

bool alignment_read(struct alignment *alignment, const char *path) {
    struct reader reader = { 0 };
    bool good;

    *alignment = (struct alignment){ 0 };
    if (!text_read(&reader.text, path)) return false;
    good = read_records(&reader) && check_lengths(&reader) && gather(&reader, alignment);
    for (size_t k = 0; k < reader.count; k++) free(reader.records[k].symbols);
    free(reader.records);
    free(reader.table);
    text_free(&reader.text);
    return good;
}

void alignment_free(struct alignment *alignment) {
    free(alignment->symbols);
    *alignment = (struct alignment){ 0 };
}

enum {
    PLANES = 5,
    WORD = 64
}; /* a symbol has 5 bits; a word holds one of them for 64 columns */

/* The symbols turned into bit planes, [sequences][words][PLANES], so that one operation compares 64 columns. */
static uint64_t *bit_planes(const struct alignment *alignment, size_t words) {
    uint64_t *planes = NULL;
    size_t count;

    if (size_product(alignment->sequences, words * PLANES, &count)) planes = calloc(count, sizeof *planes);
    if (!planes) return NULL;
    for (size_t s = 0; s < alignment->sequences; s++) {
        const unsigned char *symbols = alignment->symbols + s * alignment->columns;
        for (size_t i = 0; i < alignment->columns; i++) {
            uint64_t *word = planes + (s * words + i / WORD) * PLANES;
            for (int p = 0; p < PLANES; p++) word[p] |= (uint64_t)(symbols[i] >> p & 1) << i % WORD;
        }
    }
    return planes;
}

static size_t count_bits(uint64_t x) {
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (size_t)(x * 0x0101010101010101u >> 56);
}

static size_t count_differences(const uint64_t *a, const uint64_t *b, size_t words) {
    size_t differences = 0;

    for (size_t w = 0; w < words; w++, a += PLANES, b += PLANES)
        differences += count_bits((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) | (a[4] ^ b[4]));
    return differences;
}

double *alignment_weights(const struct alignment *alignment, void (*progress)(size_t done, size_t all)) {
    size_t words = (alignment->columns + WORD - 1) / WORD;
    uint64_t *planes = bit_planes(alignment, words);
    double *weights = planes ? malloc(alignment->sequences * sizeof *weights) : NULL;

    if (!weights) {
        free(planes);
        return NULL;
    }
    for (size_t s = 0; s < alignment->sequences; s++) weights[s] = 1; /* each agrees with itself */
    for (size_t s = 0; s < alignment->sequences; s++) {
        const uint64_t *own = planes + s * words * PLANES;
        if (progress) progress(s, alignment->sequences);
        for (size_t t = s + 1; t < alignment->sequences; t++) {
            /* More than 80 % agree where fewer than 20 % differ. */
            if (5 * count_differences(own, planes + t * words * PLANES, words) < alignment->columns) {
                weights[s]++;
                weights[t]++;
            }
        }
    }
    for (size_t s = 0; s < alignment->sequences; s++) weights[s] = 1 / weights[s];
    free(planes);
    return weights;
}
