/* coevolution.h: what the parts of the examples coevolution and contacts_mpi share. Only mean.c has the library's op. */
#ifndef COEVOLUTION_H
#define COEVOLUTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SYMBOLS = 21, /* 20 amino acids and the gap */
    GAP = 20,     /* the gap's number */
    FREQUENCIES = SYMBOLS * SYMBOLS,
    BEST = 50,      /* pairs that are listed, marked and compared */
    SEPARATION = 5, /* the least j - i of such a pair: nearer columns touch in every protein */
};

/* text.c: messages, and a file in memory, read line by line. Functions that return false have written why to standard error. */

/* Begins every message. */
extern const char *program_name;

#if defined(__GNUC__)
#define PRINTF_LIKE(text, first) __attribute__((format(printf, text, first)))
#else
#define PRINTF_LIKE(text, first)
#endif

/* Writes "program: message" to standard error. */
void complain(const char *format, ...) PRINTF_LIKE(1, 2);

struct text {
    const char *name; /* as given, for messages */
    char *data;
    size_t length, position;
    size_t line; /* number of the current line, from 1 */
};

/* A line without its end and without white space around it; not terminated, and it may hold any byte. */
struct span {
    const char *start;
    size_t length;
};

bool text_read(struct text *text, const char *path);
bool text_next(struct text *text, struct span *line);
void text_free(struct text *text);

/* Writes "program: file:line: message" to standard error. */
void text_error(const struct text *text, size_t line, const char *format, ...) PRINTF_LIKE(3, 4);

/* a * b, or false if that is more than memory can hold. */
bool size_product(size_t a, size_t b, size_t *product);

/* alignment.c */

struct alignment {
    size_t sequences, columns;
    unsigned char *symbols; /* [sequences][columns], 0 to 20 */
};

bool alignment_read(struct alignment *alignment, const char *path);
void alignment_free(struct alignment *alignment);

/*
 * The weight of each sequence, 1 / (sequences that agree with it in more than 80 % of the columns, itself among them):
 * a hundred near copies of one protein count as one. NULL if memory is exhausted. `progress` may be NULL.
 */
double *alignment_weights(const struct alignment *alignment, void (*progress)(size_t done, size_t all));

/* mean.c */

/* What computed the frequencies. */
struct mean_report {
    char device[32], description[128], kernel[32];
    double seconds;
};

struct evo_context;

/*
 * Opens the device of this name, for the caller to close. NULL after an error, which is written to standard error; *misnamed
 * is whether the name itself is wrong.
 */
struct evo_context *device_open(const char *name, bool *misnamed);
void device_close(struct evo_context *device);

/*
 * The frequencies of all pairs of symbols in all pairs of columns, [columns][columns][21][21], computed on this device; the
 * caller frees them. NULL after an error, which is written to standard error.
 */
float *pair_frequencies(const struct alignment *alignment, const double *weights, struct evo_context *device,
                        struct mean_report *report);

/* contacts.c */

struct pair {
    size_t i, j; /* columns from 0, i < j */
    double score;
};

struct pair_list {
    struct pair pairs[BEST]; /* best first */
    size_t count;
};

/*
 * The score of every pair of columns, [columns][columns], from the pair frequencies [columns][columns][21][21]: the
 * norm of their covariance less what the two columns have with all others (average product correction). All zero if no
 * two columns vary together, which *varies then says. NULL if memory is exhausted.
 */
double *contact_scores(const float *frequencies, size_t columns, bool *varies);

void contact_best(const double *scores, size_t columns, struct pair_list *best);
bool contact_write(const struct pair_list *best, const char *path);

/* The best pairs of a list in a file: "i j" or "i j score" a line, columns from 1. */
bool contact_read(struct pair_list *list, const char *path, size_t columns);

bool contact_listed(const struct pair_list *list, const struct pair *pair);
size_t contact_common(const struct pair_list *a, const struct pair_list *b);

/* canvas.c: pixels, lines, circles and text, and a PNG file of them. Colours are 0xRRGGBB, coordinates pixels. */

struct canvas {
    int width, height;
    unsigned char *pixels; /* [height][width][3] */
};

enum anchor {
    ANCHOR_LEFT,
    ANCHOR_MIDDLE,
    ANCHOR_RIGHT
};

bool canvas_create(struct canvas *canvas, int width, int height, uint32_t colour);
void canvas_free(struct canvas *canvas);
bool canvas_write(const struct canvas *canvas, const char *path);
void canvas_fill(struct canvas *canvas, int x, int y, int width, int height, uint32_t colour);
void canvas_line(struct canvas *canvas, double x0, double y0, double x1, double y1, double width, uint32_t colour);
void canvas_ring(struct canvas *canvas, double x, double y, double radius, double width, uint32_t colour);

/* Text on a baseline through (x, y); `size` is the height of a capital. Vertical text reads from bottom to top. */
void canvas_text(struct canvas *canvas, double x, double y, double size, enum anchor anchor, bool vertical,
                 uint32_t colour, const char *text);
double canvas_text_width(double size, const char *text);

/* picture.c */

struct picture {
    const char *name;   /* of the alignment */
    const char *device; /* that computed the frequencies */
    size_t sequences;
    double effective; /* sequences, by weight */
    size_t columns;
    const double *scores; /* [columns][columns] */
    const struct pair_list *best;
    const struct pair_list *other; /* to compare with; NULL if there is none */
    const char *other_name;
};

bool picture_write(const struct picture *picture, const char *path);

#endif
