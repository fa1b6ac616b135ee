/*
 * picture.c: the contact map. Column i runs down, column j to the right, and the colour of a cell is the score of the
 * pair. Above the diagonal the best pairs are ringed; below it those of the list that they are compared with.
 */
#include "coevolution.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t white = 0xffffff, ink = 0x222222, soft_ink = 0x5a5a5a, near_diagonal = 0xececec;
static const uint32_t both_colour = 0xc8102e, own_colour = 0xff9500, other_colour = 0x7a3db8;

static const int margin_left = 120, margin_top = 132, margin_right = 190, margin_bottom = 122;
static const int legend_line = 34;
static const size_t map_size = 900; /* the least pixels of a side; it has less than twice as many */

static const double title_size = 26, text_size = 17;

/* Where and how large things are. */
struct layout {
    size_t columns;
    size_t pool;      /* columns to one pixel, if there are very many */
    int cell;         /* pixels to one column, otherwise */
    int side;         /* pixels of the map */
    double top_score; /* the darkest colour */
};

/* The pixel, of the map, of the middle of a column. */
static double column_middle(const struct layout *layout, size_t column) {
    if (layout->pool > 1) return (double)(column / layout->pool) + 0.5;
    return ((double)column + 0.5) * layout->cell;
}

/* White to dark blue, in steps that look even. */
static uint32_t score_colour(double share) {
    static const unsigned char anchors[][3] = {
        { 255, 255, 255 }, { 214, 230, 244 }, { 150, 196, 223 }, { 74, 151, 201 }, { 24, 100, 170 }, { 8, 48, 107 },
    };
    double place = fmin(fmax(share, 0), 1) * 5;
    int k = place >= 5 ? 4 : (int)place;
    uint32_t colour = 0;

    for (int channel = 0; channel < 3; channel++) {
        double from = anchors[k][channel], to = anchors[k + 1][channel];
        colour = colour << 8 | (uint32_t)lround(from + (place - k) * (to - from));
    }
    return colour;
}

/* 1, 2 or 5 times a power of ten: the least one that cuts `range` into no more than `parts`. */
static double nice_step(double range, double parts) {
    double least = range / parts, power = pow(10, floor(log10(least)));

    for (int k = 0; k < 3; k++) {
        static const double factors[] = { 1, 2, 5 };
        if (factors[k] * power >= least * (1 - 1e-9)) return factors[k] * power;
    }
    return 10 * power;
}

/* The scale ends at the tenth best pair, so that one or two outliers do not pale all others. */
static double scale_end(const struct pair_list *best) {
    double score = best->count ? best->pairs[best->count < 10 ? 0 : 9].score : 0, step;

    if (!(score > 0)) return 1;
    step = nice_step(score, 5);
    return step * ceil(score / step - 1e-9);
}

static struct layout make_layout(const struct picture *picture) {
    struct layout layout = { .columns = picture->columns, .pool = 1 };
    size_t columns = picture->columns;

    if (columns >= 2 * map_size) {
        layout.pool = columns / map_size;
        layout.side = (int)((columns + layout.pool - 1) / layout.pool);
    } else {
        layout.cell = (int)((map_size + columns - 1) / columns);
        layout.side = layout.cell * (int)columns;
    }
    layout.top_score = scale_end(picture->best);
    return layout;
}

/* The largest score under one pixel; NAN where no column pair is far enough apart to be ranked. */
static double pooled_score(const struct picture *picture, size_t pool, size_t row, size_t column) {
    double score = NAN;

    for (size_t i = row * pool; i < (row + 1) * pool && i < picture->columns; i++)
        for (size_t j = column * pool; j < (column + 1) * pool && j < picture->columns; j++)
            if ((i < j ? j - i : i - j) >= SEPARATION) score = fmax(score, picture->scores[i * picture->columns + j]);
    return score;
}

static void draw_cells(struct canvas *canvas, const struct picture *picture, const struct layout *layout) {
    size_t cells = layout->pool > 1 ? (size_t)layout->side : layout->columns;
    int size = layout->pool > 1 ? 1 : layout->cell;

    for (size_t row = 0; row < cells; row++) {
        for (size_t column = 0; column < cells; column++) {
            double score = pooled_score(picture, layout->pool, row, column);
            uint32_t colour = isnan(score) ? near_diagonal : score_colour(score / layout->top_score);
            canvas_fill(canvas, margin_left + (int)column * size, margin_top + (int)row * size, size, size, colour);
        }
    }
}

static void draw_frame(struct canvas *canvas, int x, int y, int width, int height) {
    canvas_fill(canvas, x - 2, y - 2, width + 4, 2, ink);
    canvas_fill(canvas, x - 2, y + height, width + 4, 2, ink);
    canvas_fill(canvas, x - 2, y, 2, height, ink);
    canvas_fill(canvas, x + width, y, 2, height, ink);
}

static void draw_tick(struct canvas *canvas, const struct layout *layout, size_t column) {
    int at = (int)column_middle(layout, column - 1), bottom = margin_top + layout->side;
    char label[32];

    snprintf(label, sizeof label, "%zu", column);
    canvas_fill(canvas, margin_left + at - 1, bottom + 2, 2, 8, ink);
    canvas_text(canvas, margin_left + at, bottom + 34, text_size, ANCHOR_MIDDLE, false, ink, label);
    canvas_fill(canvas, margin_left - 10, margin_top + at - 1, 8, 2, ink);
    canvas_text(canvas, margin_left - 17, margin_top + at + text_size / 2, text_size, ANCHOR_RIGHT, false, ink, label);
}

static void draw_axes(struct canvas *canvas, const struct layout *layout) {
    double middle = layout->side / 2.0;
    size_t step = (size_t)fmax(1, nice_step((double)layout->columns, 9));

    draw_frame(canvas, margin_left, margin_top, layout->side, layout->side);
    draw_tick(canvas, layout, 1);
    for (size_t column = step; column <= layout->columns; column += step)
        if (column > 1) draw_tick(canvas, layout, column);
    canvas_text(canvas, margin_left + middle, margin_top + layout->side + 72, text_size, ANCHOR_MIDDLE, false, ink,
                "column j of the alignment");
    canvas_text(canvas, 40, margin_top + middle, text_size, ANCHOR_MIDDLE, true, ink, "column i of the alignment");
}

static void draw_scale(struct canvas *canvas, const struct layout *layout) {
    int x = margin_left + layout->side + 44, width = 26, height = layout->side;
    double step = nice_step(layout->top_score, 5);
    int decimals = (int)fmax(0, -floor(log10(step) + 1e-9));

    for (int y = 0; y < height; y++)
        canvas_fill(canvas, x, margin_top + y, width, 1, score_colour(1 - (y + 0.5) / height));
    draw_frame(canvas, x, margin_top, width, height);
    for (int k = 0; k * step < layout->top_score * (1 + 1e-9); k++) {
        double y = margin_top + height * (1 - k * step / layout->top_score);
        bool last = (k + 1) * step > layout->top_score * (1 + 1e-9);
        char label[32];
        snprintf(label, sizeof label, "%s%.*f", k == 0 ? "<= " : last ? ">= " : "", decimals, k * step);
        canvas_fill(canvas, x + width + 2, (int)lround(y) - 1, 8, 2, ink);
        canvas_text(canvas, x + width + 18, y + text_size / 2, text_size, ANCHOR_LEFT, false, ink, label);
    }
    canvas_text(canvas, x + width + 108, margin_top + height / 2.0, text_size, ANCHOR_MIDDLE, true, ink,
                "score: corrected covariance");
}

/* A ring that is seen on white and on dark blue alike. */
static void draw_mark(struct canvas *canvas, double x, double y, uint32_t colour) {
    double width = colour == both_colour ? 3.6 : 2.4; /* told apart without colour too */

    canvas_ring(canvas, x, y, 7, width + 2.5, white);
    canvas_ring(canvas, x, y, 7, width, colour);
}

static void draw_pair(struct canvas *canvas, const struct layout *layout, const struct pair *pair, bool above,
                      uint32_t colour) {
    double i = column_middle(layout, pair->i), j = column_middle(layout, pair->j);

    draw_mark(canvas, margin_left + (above ? j : i), margin_top + (above ? i : j), colour);
}

static void draw_pairs(struct canvas *canvas, const struct picture *picture, const struct layout *layout) {
    const struct pair_list *best = picture->best, *other = picture->other;

    /* From the last one up, so that better ones lie on top. */
    for (size_t k = best->count; k-- > 0;) {
        const struct pair *pair = &best->pairs[k];
        draw_pair(canvas, layout, pair, true, other && contact_listed(other, pair) ? both_colour : own_colour);
    }
    for (size_t k = other ? other->count : 0; k-- > 0;) {
        const struct pair *pair = &other->pairs[k];
        draw_pair(canvas, layout, pair, false, contact_listed(best, pair) ? both_colour : other_colour);
    }
}

/* Copies a name, its end replaced by "..." if it does not fit the width. */
static void shorten(char *target, size_t size, const char *name, double text_height, double width) {
    size_t length = strlen(name) < size - 4 ? strlen(name) : size - 4;

    memcpy(target, name, length);
    strcpy(target + length, name[length] ? "..." : "");
    while (length > 0 && canvas_text_width(text_height, target) > width) strcpy(target + --length, "...");
}

static void draw_title(struct canvas *canvas, const struct picture *picture, const struct layout *layout) {
    static const char start[] = "Contacts predicted from ";
    double width = layout->side + margin_right - 20;
    char name[200], line[300], subtitle[300];

    shorten(name, sizeof name, picture->name, title_size, width - canvas_text_width(title_size, start));
    snprintf(line, sizeof line, "%s%s", start, name);
    canvas_text(canvas, margin_left, 62, title_size, ANCHOR_LEFT, false, ink, line);
    snprintf(line, sizeof line, "%zu sequence%s (%.1f effective), %zu column%s; outer product mean on %s",
             picture->sequences, picture->sequences == 1 ? "" : "s", picture->effective, picture->columns,
             picture->columns == 1 ? "" : "s", picture->device);
    shorten(subtitle, sizeof subtitle, line, text_size, width);
    canvas_text(canvas, margin_left, 102, text_size, ANCHOR_LEFT, false, soft_ink, subtitle);
}

static double legend_baseline(const struct layout *layout, int line) {
    return margin_top + layout->side + margin_bottom + line * legend_line;
}

static void draw_legend_line(struct canvas *canvas, const struct layout *layout, int line, uint32_t colour,
                             const char *text) {
    double y = legend_baseline(layout, line);

    draw_mark(canvas, margin_left + 8, y - text_size / 2, colour);
    canvas_text(canvas, margin_left + 30, y, text_size, ANCHOR_LEFT, false, ink, text);
}

/* How many lines `draw_legend` draws. */
static int legend_lines(const struct picture *picture) {
    return picture->other ? 4 : 2;
}

static void draw_legend(struct canvas *canvas, const struct picture *picture, const struct layout *layout) {
    int last = legend_lines(picture) - 1;
    size_t own = picture->best->count;
    char name[100], text[300];

    if (picture->other) {
        size_t both = contact_common(picture->best, picture->other), other = picture->other->count;
        shorten(name, sizeof name, picture->other_name, text_size, layout->side / 2.0);
        snprintf(text, sizeof text, "%zu of the best %zu pairs, also among the best %zu of %s", both, own, other, name);
        draw_legend_line(canvas, layout, 0, both_colour, text);
        snprintf(text, sizeof text, "the other %zu of the best %zu, above the diagonal", own - both, own);
        draw_legend_line(canvas, layout, 1, own_colour, text);
        snprintf(text, sizeof text, "the other %zu of that list, below the diagonal", other - both);
        draw_legend_line(canvas, layout, 2, other_colour, text);
    } else {
        snprintf(text, sizeof text, "the best %zu pairs, above the diagonal", own);
        draw_legend_line(canvas, layout, 0, own_colour, text);
    }
    snprintf(text, sizeof text, "less than %d columns apart: not ranked", SEPARATION);
    canvas_fill(canvas, margin_left, (int)legend_baseline(layout, last) - 16, 17, 17, near_diagonal);
    canvas_text(canvas, margin_left + 30, legend_baseline(layout, last), text_size, ANCHOR_LEFT, false, ink, text);
}

bool picture_write(const struct picture *picture, const char *path) {
    struct layout layout = make_layout(picture);
    struct canvas canvas;
    bool good;

    if (!canvas_create(&canvas, margin_left + layout.side + margin_right,
                       (int)legend_baseline(&layout, legend_lines(picture)) + 10, white)) {
        complain("%s: out of memory", path);
        return false;
    }
    draw_title(&canvas, picture, &layout);
    draw_cells(&canvas, picture, &layout);
    draw_axes(&canvas, &layout);
    draw_scale(&canvas, &layout);
    draw_pairs(&canvas, picture, &layout);
    draw_legend(&canvas, picture, &layout);
    good = canvas_write(&canvas, path);
    canvas_free(&canvas);
    return good;
}
