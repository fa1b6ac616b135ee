/*
 * coevolution.c: finds residues of a protein that touch, from the natural sequences of its family, with one outer
 * product mean of libevoformer. Pairs of residues in contact change together in evolution; the mean over all sequences
 * of the outer product of two columns' symbols is how often each pair of symbols stands in them, and what that has
 * more than chance would give is the sign of contact.
 *
 * No trained weights are needed, since these do it:
 *   m      the symbol of sequence s in column i as a one-hot row of 32 channels, of which 21 are used
 *   W_a    (= W_b) such that a LayerNorm's effect on such a row is undone: a and b are the one-hot rows of 21
 *   mask   the square root of the weight w_s of sequence s, so that each product of two has the factor w_s
 *   W_o    the identity: output channel 21 * a + b of pair i, j is f_ij(a,b) = sum_s w_s [a at i, b at j] / sum_s w_s
 *
 * With the library installed, this is a whole program: cc *.c -levoformer -lpng -lm
 */
#include "coevolution.h"

#include <errno.h>
#include <evoformer/evoformer.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The build says where the shipped alignment is once installed, and where in the sources. */
#ifndef COEVOLUTION_INSTALLED_DATA
#define COEVOLUTION_INSTALLED_DATA ""
#endif
#ifndef COEVOLUTION_SOURCE_DATA
#define COEVOLUTION_SOURCE_DATA "data"
#endif

enum {
    CHANNELS = 32
}; /* of the one-hot rows */

static const double layer_norm_eps = 1e-5;
static const double tolerance = 1e-5; /* of the checks: fp32 sums of probabilities keep six digits */

struct options {
    const char *alignment, *compare, *device;
};

/* Memory of the device, for the tensors of one outer product mean. */
struct buffers {
    void *m, *mask, *out, *weights, *pack, *workspace;
};

/* One outer product mean and what it needs; all zero before, and after `close_mean`. */
struct mean {
    evo_context *context;
    evo_device_info device;
    evo_opm_desc desc;
    evo_plan *plan;
    evo_plan_info info;
    evo_pack *pack;
    struct buffers buffers;
    size_t m_size, mask_size, out_size; /* bytes */
    double seconds;
};

static bool succeeded(evo_status status, const char *what) {
    if (status == EVO_OK) return true;
    fprintf(stderr, "coevolution: cannot %s: %s (%s)\n", what, evo_last_error(), evo_status_name(status));
    return false;
}

static void *allocate(size_t count, size_t size) {
    size_t bytes;
    void *memory = size_product(count, size, &bytes) ? calloc(count ? count : 1, size) : NULL;

    if (!memory) fprintf(stderr, "coevolution: out of memory: no room for %zu values of %zu bytes\n", count, size);
    return memory;
}

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

/* Bytes of the three tensors, in fp32; false if they cannot be held. */
static bool tensor_sizes(struct mean *mean, const struct alignment *alignment) {
    size_t positions, pairs, columns = alignment->columns;

    return size_product(alignment->sequences, columns, &positions) && size_product(columns, columns, &pairs) &&
           size_product(positions, sizeof(float), &mean->mask_size) &&
           size_product(positions, CHANNELS * sizeof(float), &mean->m_size) &&
           size_product(pairs, FREQUENCIES * sizeof(float), &mean->out_size);
}

static bool plan_mean(struct mean *mean, const struct alignment *alignment, const char *device) {
    mean->device = (evo_device_info)EVO_DEVICE_INFO_INIT;
    mean->info = (evo_plan_info)EVO_PLAN_INFO_INIT;
    mean->desc = (evo_opm_desc)EVO_OPM_DESC_INIT;
    if (!tensor_sizes(mean, alignment)) {
        fprintf(stderr, "coevolution: the alignment is too large: %zu columns have too many pairs\n",
                alignment->columns);
        return false;
    }
    mean->desc.s = (int64_t)alignment->sequences;
    mean->desc.n = (int64_t)alignment->columns;
    mean->desc.c_m = CHANNELS;
    mean->desc.c = SYMBOLS;
    mean->desc.c_z = FREQUENCIES;
    mean->desc.mask = (evo_tensor)EVO_TENSOR_INIT(EVO_FP32);
    mean->desc.biases = EVO_OPM_BIAS_A | EVO_OPM_BIAS_B;
    mean->desc.divide = EVO_DIVIDE_BEFORE;
    mean->desc.count_eps = 0;
    mean->desc.count_min = 0;
    mean->desc.layer_norm_eps = layer_norm_eps;
    return succeeded(evo_context_create(device, NULL, &mean->context), "open the device") &&
           succeeded(evo_context_device(mean->context, &mean->device), "ask for the device") &&
           succeeded(evo_opm_plan_create(mean->context, &mean->desc, &mean->plan), "plan the outer product mean") &&
           succeeded(evo_plan_get_info(mean->plan, &mean->info), "ask for the plan");
}

enum { /* where the weights stand in their buffer, in floats; W_b is W_a */
    NORM_WEIGHT = 0,
    A_WEIGHT = NORM_WEIGHT + CHANNELS,
    A_BIAS = A_WEIGHT + SYMBOLS * CHANNELS,
    OUT_WEIGHT = A_BIAS + SYMBOLS,
    WEIGHTS = OUT_WEIGHT + FREQUENCIES * FREQUENCIES
};

static bool allocate_buffers(struct mean *mean) {
    struct buffers *buffers = &mean->buffers;
    struct {
        size_t size;
        void **memory;
    } wanted[] = {
        { mean->m_size, &buffers->m },
        { mean->mask_size, &buffers->mask },
        { mean->out_size, &buffers->out },
        { WEIGHTS * sizeof(float), &buffers->weights },
        { mean->info.pack_size, &buffers->pack },
        { mean->info.workspace_size, &buffers->workspace },
    };
    double all = 0;

    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) all += (double)wanted[k].size;
    /* Asked first: a system that gives memory freely kills the program later, when it is used. */
    if (mean->device.memory_size && all > (double)mean->device.memory_size) {
        fprintf(stderr, "coevolution: the alignment is too large: it takes %.1f GB of memory, %s has %.1f GB\n",
                all / 1e9, mean->device.name, (double)mean->device.memory_size / 1e9);
        return false;
    }
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
        if (!succeeded(evo_memory_alloc(mean->context, wanted[k].size, wanted[k].memory), "allocate device memory"))
            return false;
    return true;
}

/* Copies host memory to the device and waits, so that the host's can be freed. */
static bool upload(struct mean *mean, void *target, const void *source, size_t bytes) {
    return succeeded(evo_memory_copy(mean->context, target, source, bytes, NULL), "copy to the device") &&
           succeeded(evo_stream_synchronize(mean->context, NULL), "copy to the device");
}

/*
 * A one-hot row of 32 channels has mean 1/32 and variance 1/32 * 31/32, so LayerNorm makes it (row - 1/32) /
 * sqrt(variance + eps); times that root, and with the bias 1/32, it is the row again.
 */
static void set_weights(float *weights) {
    double mean = 1.0 / (int)CHANNELS, root = sqrt(mean * (1 - mean) + layer_norm_eps);

    for (size_t k = 0; k < CHANNELS; k++) weights[NORM_WEIGHT + k] = 1;
    for (size_t k = 0; k < SYMBOLS; k++) {
        weights[A_WEIGHT + k * CHANNELS + k] = (float)root;
        weights[A_BIAS + k] = (float)mean;
    }
    for (size_t k = 0; k < FREQUENCIES; k++) weights[OUT_WEIGHT + k * FREQUENCIES + k] = 1;
}

static evo_weight view(const float *data) {
    return (evo_weight){ data, EVO_FP32, { 0, 0 } }; /* contiguous, as all of them are */
}

static bool pack_weights(struct mean *mean) {
    evo_opm_weights weights = EVO_OPM_WEIGHTS_INIT;
    const float *device = mean->buffers.weights;
    float *host = allocate(WEIGHTS, sizeof *host);
    bool good;

    if (!host) return false;
    set_weights(host);
    weights.norm_weight = view(device + NORM_WEIGHT);
    weights.a_weight = weights.b_weight = view(device + A_WEIGHT);
    weights.a_bias = weights.b_bias = view(device + A_BIAS);
    weights.out_weight = view(device + OUT_WEIGHT);
    good = upload(mean, mean->buffers.weights, host, WEIGHTS * sizeof *host) &&
           succeeded(
               evo_opm_pack_weights(mean->plan, &weights, mean->buffers.pack, mean->info.pack_size, NULL, &mean->pack),
               "pack the weights");
    free(host);
    return good;
}

static bool upload_alignment(struct mean *mean, const struct alignment *alignment, const double *weights) {
    size_t columns = alignment->columns, positions = alignment->sequences * columns;
    float *m = allocate(positions, CHANNELS * sizeof *m), *mask = m ? allocate(positions, sizeof *mask) : NULL;
    bool good = m && mask;

    if (good) {
        for (size_t k = 0; k < positions; k++) {
            m[k * CHANNELS + alignment->symbols[k]] = 1;
            mask[k] = (float)sqrt(weights[k / columns]);
        }
        good =
            upload(mean, mean->buffers.m, m, mean->m_size) && upload(mean, mean->buffers.mask, mask, mean->mask_size);
    }
    free(m);
    free(mask);
    return good;
}

/* The op itself, timed, and its result copied to `frequencies`. */
static bool execute_mean(struct mean *mean, float *frequencies) {
    evo_opm_args args = EVO_OPM_ARGS_INIT;
    struct timespec start, stop;

    args.m = mean->buffers.m;
    args.mask = mean->buffers.mask;
    args.out = mean->buffers.out;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (!succeeded(
            evo_opm_execute(mean->plan, mean->pack, &args, mean->buffers.workspace, mean->info.workspace_size, NULL),
            "compute the outer product mean") ||
        !succeeded(evo_stream_synchronize(mean->context, NULL), "compute the outer product mean"))
        return false;
    clock_gettime(CLOCK_MONOTONIC, &stop);
    mean->seconds = (double)(stop.tv_sec - start.tv_sec) + 1e-9 * (double)(stop.tv_nsec - start.tv_nsec);
    return succeeded(evo_memory_copy(mean->context, frequencies, mean->buffers.out, mean->out_size, NULL),
                     "copy from the device") &&
           succeeded(evo_stream_synchronize(mean->context, NULL), "copy from the device");
}

static void close_mean(struct mean *mean) {
    const struct buffers *buffers = &mean->buffers;
    void *const all[] = {
        buffers->m, buffers->mask, buffers->out, buffers->weights, buffers->pack, buffers->workspace
    };

    evo_pack_destroy(mean->pack);
    evo_plan_destroy(mean->plan);
    for (size_t k = 0; mean->context && k < sizeof all / sizeof *all; k++) evo_memory_free(mean->context, all[k]);
    evo_context_destroy(mean->context);
    *mean = (struct mean){ 0 };
}

/* The frequencies of all pairs of symbols in all pairs of columns, [columns][columns][21][21]; NULL after an error. */
static float *pair_frequencies(struct mean *mean, const struct alignment *alignment, const double *weights,
                               const char *device) {
    float *frequencies = NULL;

    if (plan_mean(mean, alignment, device) && allocate_buffers(mean) && pack_weights(mean) &&
        upload_alignment(mean, alignment, weights))
        frequencies = allocate(alignment->columns * alignment->columns, FREQUENCIES * sizeof *frequencies);
    if (frequencies && !execute_mean(mean, frequencies)) {
        free(frequencies);
        frequencies = NULL;
    }
    return frequencies;
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
        fprintf(stderr, "coevolution: out of memory\n");
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
    struct mean mean = { 0 };
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
    frequencies = pair_frequencies(&mean, alignment, weights, options->device);
    tell("");
    good = frequencies != NULL;
    if (good) {
        printf("computed     on %s (%s), kernel %s, %.2f s\n", mean.device.name, mean.device.description,
               mean.info.kernel, mean.seconds);
        good = check_sums(frequencies, alignment->columns);
        good = check_symmetry(frequencies, alignment->columns) && good;
        good = check_columns(frequencies, alignment, weights, effective) && good;
        if (!good) fprintf(stderr, "coevolution: the frequencies are wrong; nothing was written\n");
    }
    good = good && score_and_report(alignment, options, other, frequencies, effective, mean.device.name);
    free(frequencies);
    close_mean(&mean);
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
        if (!weights) fprintf(stderr, "coevolution: out of memory\n");
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
    fprintf(stderr, "coevolution: the shipped alignment is not there: neither %s nor %s can be read; name a file\n",
            places[0], places[1]);
    return NULL;
}

/* An alignment's own list stands beside it: NAME.evfold.tsv for NAME.aln. NULL if there is none. */
static char *own_list(const char *alignment) {
    static const char ending[] = ".evfold.tsv";
    size_t length = strlen(alignment);
    const char *dot = strrchr(base_name(alignment), '.');
    char *path = malloc(length + sizeof ending);

    if (!path) return NULL;
    memcpy(path, alignment, length);
    strcpy(path + (dot ? (size_t)(dot - alignment) : length), ending);
    if (access(path, F_OK) == 0) return path;
    free(path);
    return NULL;
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
            options->device = optarg;
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
        fprintf(stderr, "coevolution: only one alignment is taken, not also '%s'\n", argv[optind + 1]);
        usage(stderr);
        return false;
    }
    options->alignment = optind < argc ? argv[optind] : NULL;
    return true;
}

int main(int argc, char **argv) {
    struct options options = { .device = "cpu" };
    char *found = NULL;
    int status;
    bool good;

    if (!parse(argc, argv, &options, &status)) return status;
    if (!options.alignment) options.alignment = default_alignment();
    if (!options.alignment) return EXIT_FAILURE;
    if (!options.compare) options.compare = found = own_list(options.alignment);
    good = run(&options);
    free(found);
    if (fflush(stdout) != 0) {
        fprintf(stderr, "coevolution: standard output: %s\n", strerror(errno));
        good = false;
    }
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
