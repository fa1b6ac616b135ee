/*
 * coevolution.c: finds residues of a protein that touch, from the natural sequences of its family, with one outer
 * product mean of libevoformer. Pairs of residues in contact change together in evolution; the mean over all sequences
 * of the outer product of two columns' symbols is how often each pair of symbols stands in them, and what that has
 * more than chance would give is the sign of contact.
 *
 * With the library installed, this is a whole program (mean.c has the library's part):
 *     cc alignment.c canvas.c coevolution.c contacts.c mean.c picture.c text.c -levoformer -lpng -lm
 */
#include "coevolution.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The build says where the shipped alignment is once installed, and where in the sources. */
#ifndef COEVOLUTION_INSTALLED_DATA
#define COEVOLUTION_INSTALLED_DATA ""
#endif
#ifndef COEVOLUTION_SOURCE_DATA
#define COEVOLUTION_SOURCE_DATA "data"
#endif

static const double tolerance = 1e-5; /* of the checks: fp32 sums of probabilities keep six digits */

struct options {
    const char *alignment, *compare, *device_name;
    struct evo_context *device;
};

/* What goes on is told only to a person, on a terminal. */
static void tell(const char *what) {
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K%s", what);
}

static void tell_weights(size_t done, size_t all) {
    static size_t last = SIZE_MAX;
    char line[64];

    if (10 * done / all == last) return;
    last = 10 * done / all;
    snprintf(line, sizeof line, "weighing sequences: %zu %%", 10 * last);
    tell(line);
}

static bool report_check(const char *what, double worst) {
    bool good = worst <= tolerance; /* false for NaN as well */

    printf("%s %s: off by %.1e at most\n", good ? "check ok    " : "check FAILED", what, worst);
    return good;
}

/* fmax would pass over a NaN. */
static double larger(double a, double b) {
    return a > b || isnan(a) ? a : b;
}

static bool check_sums(const float *frequencies, size_t columns) {
    double worst = 0;

    for (size_t pair = 0; pair < columns * columns; pair++) {
        double sum = 0;
        for (size_t k = 0; k < FREQUENCIES; k++) sum += (double)frequencies[pair * FREQUENCIES + k];
        worst = larger(worst, fabs(sum - 1));
    }
    return report_check("the frequencies of every pair of columns sum to 1", worst);
}

static bool check_symmetry(const float *frequencies, size_t columns) {
    double worst = 0;

    for (size_t i = 0; i < columns; i++) {
        for (size_t j = i; j < columns; j++) {
            const float *ij = frequencies + (i * columns + j) * FREQUENCIES;
            const float *ji = frequencies + (j * columns + i) * FREQUENCIES;
            for (size_t k = 0; k < FREQUENCIES; k++) {
                float mirrored = ji[k % SYMBOLS * SYMBOLS + k / SYMBOLS];
                worst = larger(worst, fabs((double)ij[k] - (double)mirrored));
            }
        }
    }
    return report_check("f_ij(a,b) = f_ji(b,a)", worst);
}

/* f_ii(a,a) is the frequency of a in column i, which can be counted without the library. */
static bool check_columns(const float *frequencies, const struct alignment *alignment, const double *weights,
                          double effective) {
    size_t columns = alignment->columns;
    double worst = 0;

    for (size_t i = 0; i < columns; i++) {
        const float *own = frequencies + (i * columns + i) * FREQUENCIES;
        double counted[SYMBOLS] = { 0 };
        for (size_t s = 0; s < alignment->sequences; s++) counted[alignment->symbols[s * columns + i]] += weights[s];
        for (size_t a = 0; a < SYMBOLS; a++)
            worst = larger(worst, fabs((double)own[a * SYMBOLS + a] - counted[a] / effective));
    }
    return report_check("f_ii(a,a) is the share of a counted in column i", worst);
}

static const char *plural(size_t count) {
    return count == 1 ? "" : "s";
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

/* Writes the table and the picture, and says how far the best pairs agree with the other list, if there is one. */
static bool report_contacts(const struct picture *picture) {
    const struct pair_list *best = picture->best, *other = picture->other;

    if (!contact_write(best, "contacts.tsv") || !picture_write(picture, "contacts.png")) return false;
    tell("");
    printf("written      contacts.tsv (the best %zu pair%s), contacts.png\n", best->count, plural(best->count));
    if (other && best->count)
        printf("%zu of its best %zu pairs are among the best %zu of %s\n", contact_common(best, other), best->count,
               other->count, picture->other_name);
    return true;
}

static bool score_and_report(const struct alignment *alignment, const struct options *options,
                             const struct pair_list *other, const float *frequencies, double effective,
                             const char *device) {
    struct pair_list best = { .count = 0 };
    bool varies, good;
    double *scores;

    tell("scoring pairs");
    scores = contact_scores(frequencies, alignment->columns, &varies);
    tell("");
    if (!scores) {
        complain("out of memory");
        return false;
    }
    if (varies)
        contact_best(scores, alignment->columns, &best);
    else
        printf("note         no two columns vary together: there is nothing to predict from\n");
    tell("drawing");
    good = report_contacts(&(struct picture){
        .name = base_name(options->alignment),
        .device = device,
        .sequences = alignment->sequences,
        .effective = effective,
        .columns = alignment->columns,
        .scores = scores,
        .best = &best,
        .other = other,
        .other_name = other ? base_name(options->compare) : NULL,
    });
    tell("");
    free(scores);
    return good;
}

static bool analyse(const struct alignment *alignment, const double *weights, const struct options *options,
                    const struct pair_list *other) {
    struct mean_report report;
    float *frequencies;
    double effective = 0;
    bool good;

    for (size_t s = 0; s < alignment->sequences; s++) effective += weights[s];
    tell("");
    printf("alignment    %s: %zu sequence%s, %zu column%s\n", options->alignment, alignment->sequences,
           plural(alignment->sequences), alignment->columns, plural(alignment->columns));
    printf("effective    %.2f sequences, near copies counted once\n", effective);
    fflush(stdout);
    tell("computing the frequencies of all pairs");
    frequencies = pair_frequencies(alignment, weights, options->device, &report);
    tell("");
    good = frequencies != NULL;
    if (good) {
        printf("computed     on %s (%s), kernel %s, %.2f s\n", report.device, report.description, report.kernel,
               report.seconds);
        good = check_sums(frequencies, alignment->columns);
        good = check_symmetry(frequencies, alignment->columns) && good;
        good = check_columns(frequencies, alignment, weights, effective) && good;
        if (!good) complain("the frequencies are wrong; nothing was written");
    }
    good = good && score_and_report(alignment, options, other, frequencies, effective, report.device);
    free(frequencies);
    return good;
}

static bool run(const struct options *options) {
    struct alignment alignment;
    struct pair_list other;
    double *weights = NULL;
    bool good = alignment_read(&alignment, options->alignment);

    if (good && options->compare) good = contact_read(&other, options->compare, alignment.columns);
    if (good) {
        weights = alignment_weights(&alignment, tell_weights);
        if (!weights) complain("out of memory");
    }
    good = good && weights && analyse(&alignment, weights, options, options->compare ? &other : NULL);
    free(weights);
    alignment_free(&alignment);
    return good;
}

/* The first readable of the places where the shipped alignment may be; NULL, and a message, if it is in none. */
static const char *default_alignment(void) {
    static const char *const places[] = { COEVOLUTION_INSTALLED_DATA "/PF00071.aln",
                                          COEVOLUTION_SOURCE_DATA "/PF00071.aln" };

    for (size_t k = 0; k < sizeof places / sizeof *places; k++)
        if (access(places[k], R_OK) == 0) return places[k];
    complain("the shipped alignment is not there: neither %s nor %s can be read; name a file", places[0], places[1]);
    return NULL;
}

/* An alignment's own list stands beside it: NAME.evfold.tsv for NAME.aln; NULL if there is none. False if memory ran out. */
static bool own_list(const char *alignment, char **list) {
    static const char ending[] = ".evfold.tsv";
    size_t length = strlen(alignment);
    const char *dot = strrchr(base_name(alignment), '.');
    char *path = malloc(length + sizeof ending);

    *list = NULL;
    if (!path) {
        complain("out of memory");
        return false;
    }
    memcpy(path, alignment, length);
    strcpy(path + (dot ? (size_t)(dot - alignment) : length), ending);
    if (access(path, F_OK) == 0)
        *list = path;
    else
        free(path);
    return true;
}

static void usage(FILE *file) {
    fputs("usage: coevolution [ALIGNMENT] [--compare LIST.tsv] [--device DEVICE]\n", file);
}

static void help(void) {
    usage(stdout);
    fputs(
        "\n"
        "Finds pairs of residues that touch in a protein from an alignment of its family: the frequencies of all\n"
        "pairs of symbols, by an outer product mean; their covariance; its average product correction. Writes\n"
        "contacts.png (a contact map) and contacts.tsv (the best 50 pairs at least 5 columns apart: i, j, score;\n"
        "columns from 1) into the current folder.\n"
        "\n"
        "  ALIGNMENT           one sequence a line, aligned FASTA or Stockholm; '-', '.', '*' and letters that are\n"
        "                      no amino acid are gaps; the Ras family (PF00071.aln) if left out\n"
        "  -c, --compare LIST  count how many of the best pairs are among the best 50 of LIST: \"i j score\" a line;\n"
        "                      NAME.evfold.tsv if that lies beside ALIGNMENT, NAME.aln\n"
        "  -d, --device NAME   cpu (if left out), auto, cuda:0, ...\n"
        "  -h, --help          this text\n"
        "\n"
        "Exit status: 0, or 1 if something failed, 2 if the command line is wrong.\n",
        stdout);
}

/* False if the program is to end with *status. */
static bool parse(int argc, char **argv, struct options *options, int *status) {
    static const struct option long_options[] = {
        { "compare", required_argument, NULL, 'c' },
        { "device", required_argument, NULL, 'd' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    int letter;

    *status = 2;
    while ((letter = getopt_long(argc, argv, "c:d:h", long_options, NULL)) != -1) {
        if (letter == 'c') {
            options->compare = optarg;
        } else if (letter == 'd') {
            options->device_name = optarg;
        } else if (letter == 'h') {
            help();
            *status = 0;
            return false;
        } else {
            usage(stderr);
            return false;
        }
    }
    if (argc - optind > 1) {
        complain("only one alignment is taken, not also '%s'", argv[optind + 1]);
        usage(stderr);
        return false;
    }
    options->alignment = optind < argc ? argv[optind] : NULL;
    return true;
}

int main(int argc, char **argv) {
    struct options options = { .device_name = "cpu" };
    char *found = NULL;
    int status;
    bool good, misnamed;

    if (!parse(argc, argv, &options, &status)) return status;
    if (!options.alignment) options.alignment = default_alignment();
    if (!options.alignment) return EXIT_FAILURE;
    options.device = device_open(options.device_name, &misnamed);
    if (!options.device) {
        if (misnamed) usage(stderr);
        return misnamed ? 2 : EXIT_FAILURE;
    }
    good = options.compare || own_list(options.alignment, &found);
    if (found) options.compare = found;
    good = good && run(&options);
    free(found);
    device_close(options.device);
    if (fflush(stdout) != 0) {
        complain("standard output: %s", strerror(errno));
        good = false;
    }
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
