/* contacts.c: from pair frequencies to scores, from scores to the best pairs, and lists of pairs in files. */
#include "coevolution.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Below this the covariance of fp32 frequencies is rounding, not biology. */
static const double covariance_noise = 1e-5;

/* ||f_ij(a,b) - f_i(a) f_j(b)|| over the 20 amino acids; f_i(a) stands at f_ii(a,a). */
static double covariance_norm(const float *frequencies, size_t columns, size_t i, size_t j) {
    const float *pair = frequencies + (i * columns + j) * FREQUENCIES;
    const float *own_i = frequencies + (i * columns + i) * FREQUENCIES;
    const float *own_j = frequencies + (j * columns + j) * FREQUENCIES;
    double sum = 0;

    for (size_t a = 0; a < GAP; a++) {
        for (size_t b = 0; b < GAP; b++) {
            double expected = (double)own_i[a * SYMBOLS + a] * (double)own_j[b * SYMBOLS + b];
            double covariance = (double)pair[a * SYMBOLS + b] - expected;
            sum += covariance * covariance;
        }
    }
    return sqrt(sum);
}

/*
 * Columns that vary much, or follow the family tree, covary a little with all others. The product of the two columns'
 * means over the mean of all is what that makes one expect, and is taken off. `means` has room for one a column.
 */
static void correct(double *scores, size_t columns, double *means) {
    double others = (double)columns - 1, total = 0;

    for (size_t i = 0; i < columns; i++) {
        means[i] = 0;
        for (size_t j = 0; j < columns; j++) means[i] += scores[i * columns + j];
        means[i] /= others;
        total += means[i];
    }
    total /= (double)columns;
    for (size_t i = 0; i < columns; i++)
        for (size_t j = 0; j < columns; j++)
            if (i != j) scores[i * columns + j] -= means[i] * means[j] / total;
}

double *contact_scores(const float *frequencies, size_t columns, bool *varies) {
    double *scores = NULL, *means = malloc(columns * sizeof *means);
    size_t count;

    if (means && size_product(columns, columns, &count)) scores = calloc(count, sizeof *scores);
    *varies = false;
    if (scores) {
        for (size_t i = 0; i < columns; i++) {
            for (size_t j = i + 1; j < columns; j++) {
                double norm = covariance_norm(frequencies, columns, i, j);
                scores[i * columns + j] = scores[j * columns + i] = norm;
                *varies = *varies || norm > covariance_noise;
            }
        }
        if (*varies)
            correct(scores, columns, means);
        else
            memset(scores, 0, columns * columns * sizeof *scores);
    }
    free(means);
    return scores;
}

/* Puts the pair in its place if it is among the best; of equal scores the one that came first stands first. */
static void insert(struct pair_list *best, struct pair pair) {
    size_t place = best->count;

    if (place == BEST) {
        if (!(pair.score > best->pairs[BEST - 1].score)) return;
        place--;
    } else {
        best->count++;
    }
    for (; place > 0 && pair.score > best->pairs[place - 1].score; place--) best->pairs[place] = best->pairs[place - 1];
    best->pairs[place] = pair;
}

void contact_best(const double *scores, size_t columns, struct pair_list *best) {
    best->count = 0;
    for (size_t i = 0; i < columns; i++)
        for (size_t j = i + SEPARATION; j < columns; j++) insert(best, (struct pair){ i, j, scores[i * columns + j] });
}

bool contact_write(const struct pair_list *best, const char *path) {
    FILE *file = fopen(path, "w");
    bool good;

    if (!file) {
        complain("%s: %s", path, strerror(errno));
        return false;
    }
    fprintf(file, "i\tj\tscore\n");
    for (size_t k = 0; k < best->count; k++)
        fprintf(file, "%zu\t%zu\t%.6f\n", best->pairs[k].i + 1, best->pairs[k].j + 1, best->pairs[k].score);
    good = !ferror(file);
    if (fclose(file) != 0 || !good) {
        complain("%s: %s", path, strerror(errno));
        return false;
    }
    return true;
}

/* Takes a column number off the line; 0 if there is none between 1 and `columns`. */
static size_t take_column(struct span *line, size_t columns) {
    size_t number = 0;

    while (line->length && (*line->start == ' ' || *line->start == '\t')) {
        line->start++;
        line->length--;
    }
    while (line->length && *line->start >= '0' && *line->start <= '9') {
        number = number > columns ? number : 10 * number + (size_t)(*line->start - '0');
        line->start++;
        line->length--;
    }
    if (line->length && *line->start != ' ' && *line->start != '\t') return 0;
    return number > columns ? 0 : number;
}

/* Reads "i j" or "i j score"; more columns may follow. Without a score a line ranks below those before it. */
static bool parse_pair(const struct text *text, struct span line, size_t columns, struct pair *pair) {
    size_t i = take_column(&line, columns), j = take_column(&line, columns);
    char number[512] = "", *end = number; /* contact_write's largest has 317 characters */

    if (i == 0 || j == 0 || i == j) {
        text_error(text, text->line, "expected two different columns from 1 to %zu, and a score", columns);
        return false;
    }
    *pair = (struct pair){ i < j ? i - 1 : j - 1, i < j ? j - 1 : i - 1, -(double)text->line };
    if (line.length == 0) return true;
    memcpy(number, line.start, line.length < sizeof number - 1 ? line.length : sizeof number - 1);
    pair->score = strtod(number, &end);
    /* What fills the buffer was cut. */
    if (end == number || end == number + sizeof number - 1 || (*end && *end != ' ' && *end != '\t') ||
        !isfinite(pair->score)) {
        text_error(text, text->line, "the score is no number");
        return false;
    }
    return true;
}

static bool read_pairs(struct pair_list *list, struct text *text, size_t columns) {
    bool first = true;
    struct span line;

    while (text_next(text, &line)) {
        struct pair pair;
        if (line.length == 0 || line.start[0] == '#') continue;
        if (first && ((line.start[0] | 32) >= 'a' && (line.start[0] | 32) <= 'z')) {
            first = false; /* the names of the columns */
            continue;
        }
        first = false;
        if (!parse_pair(text, line, columns, &pair)) return false;
        if (pair.j - pair.i >= SEPARATION && !contact_listed(list, &pair)) insert(list, pair);
    }
    if (list->count == 0) {
        text_error(text, text->line ? text->line : 1, "no pair with j - i of at least %d in this list", SEPARATION);
        return false;
    }
    return true;
}

bool contact_read(struct pair_list *list, const char *path, size_t columns) {
    struct text text;
    bool good;

    list->count = 0;
    if (!text_read(&text, path)) return false;
    good = read_pairs(list, &text, columns);
    text_free(&text);
    return good;
}

bool contact_listed(const struct pair_list *list, const struct pair *pair) {
    for (size_t k = 0; k < list->count; k++)
        if (list->pairs[k].i == pair->i && list->pairs[k].j == pair->j) return true;
    return false;
}

size_t contact_common(const struct pair_list *a, const struct pair_list *b) {
    size_t count = 0;

    for (size_t k = 0; k < a->count; k++) count += contact_listed(b, &a->pairs[k]);
    return count;
}
