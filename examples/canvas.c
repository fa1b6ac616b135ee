/*
 * canvas.c: a picture in memory with smooth lines, rings and text, and its PNG file.
 *
 * Everything but filled rectangles is drawn from a distance: a pixel is as dark as the pen covers it, which for a round
 * pen is (half the pen's width + 1/2 - distance to the line), held between 0 and 1.
 */
#include "coevolution.h"

#include <errno.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool canvas_create(struct canvas *canvas, int width, int height, uint32_t colour) {
    size_t bytes;

    *canvas = (struct canvas){ .width = width, .height = height };
    if (width <= 0 || height <= 0 || !size_product((size_t)width * 3, (size_t)height, &bytes)) return false;
    canvas->pixels = malloc(bytes);
    if (!canvas->pixels) return false;
    canvas_fill(canvas, 0, 0, width, height, colour);
    return true;
}

void canvas_free(struct canvas *canvas) {
    free(canvas->pixels);
    *canvas = (struct canvas){ 0 };
}

bool canvas_write(const struct canvas *canvas, const char *path) {
    png_image image = { .version = PNG_IMAGE_VERSION };
    FILE *file = fopen(path, "wb");
    bool good;

    if (!file) {
        complain("%s: %s", path, strerror(errno));
        return false;
    }
    image.width = (png_uint_32)canvas->width;
    image.height = (png_uint_32)canvas->height;
    image.format = PNG_FORMAT_RGB;
    good = png_image_write_to_stdio(&image, file, 0, canvas->pixels, 0, NULL) != 0;
    if (!good) complain("%s: %s", path, image.message);
    if (fclose(file) != 0 && good) {
        complain("%s: %s", path, strerror(errno));
        good = false;
    }
    return good;
}

void canvas_fill(struct canvas *canvas, int x, int y, int width, int height, uint32_t colour) {
    for (int row = y < 0 ? 0 : y; row < y + height && row < canvas->height; row++) {
        for (int column = x < 0 ? 0 : x; column < x + width && column < canvas->width; column++) {
            unsigned char *pixel = canvas->pixels + ((size_t)row * (size_t)canvas->width + (size_t)column) * 3;
            pixel[0] = (unsigned char)(colour >> 16 & 255);
            pixel[1] = (unsigned char)(colour >> 8 & 255);
            pixel[2] = (unsigned char)(colour & 255);
        }
    }
}

/* Mixes the colour into one pixel; `distance` is from the middle of a pen of that width. */
static void touch(struct canvas *canvas, int x, int y, double distance, double width, uint32_t colour) {
    double cover = fmin(fmax(width / 2 + 0.5 - distance, 0), 1);
    unsigned char *pixel = canvas->pixels + ((size_t)y * (size_t)canvas->width + (size_t)x) * 3;

    for (int k = 0; k < 3; k++) {
        double target = (double)(colour >> (16 - 8 * k) & 255);
        pixel[k] = (unsigned char)lround(pixel[k] + cover * (target - pixel[k]));
    }
}

struct point {
    double x, y;
};

struct box {
    int x0, y0, x1, y1; /* pixels, the last ones included */
};

/* The pixels that a pen of that width may touch between two corners. */
static struct box pen_box(const struct canvas *canvas, struct point low, struct point high, double width) {
    double reach = width / 2 + 1;

    return (struct box){
        (int)fmin(fmax(floor(low.x - reach), 0), canvas->width),
        (int)fmin(fmax(floor(low.y - reach), 0), canvas->height),
        (int)fmin(fmax(ceil(high.x + reach), -1), canvas->width - 1),
        (int)fmin(fmax(ceil(high.y + reach), -1), canvas->height - 1),
    };
}

static double segment_distance(double x, double y, struct point a, struct point b) {
    double dx = b.x - a.x, dy = b.y - a.y, square = dx * dx + dy * dy;
    double t = square > 0 ? ((x - a.x) * dx + (y - a.y) * dy) / square : 0;

    t = fmin(fmax(t, 0), 1);
    return hypot(x - a.x - t * dx, y - a.y - t * dy);
}

/* Draws segments, each between two of `points`, as one figure, so that joints are no darker than the rest. */
static void draw_segments(struct canvas *canvas, const struct point *points, size_t segments, double width,
                          uint32_t colour) {
    struct point low = { HUGE_VAL, HUGE_VAL }, high = { -HUGE_VAL, -HUGE_VAL };
    struct box box;

    for (size_t k = 0; k < 2 * segments; k++) {
        low = (struct point){ fmin(low.x, points[k].x), fmin(low.y, points[k].y) };
        high = (struct point){ fmax(high.x, points[k].x), fmax(high.y, points[k].y) };
    }
    box = pen_box(canvas, low, high, width);
    for (int y = box.y0; y <= box.y1; y++) {
        for (int x = box.x0; x <= box.x1; x++) {
            double distance = HUGE_VAL;
            for (size_t k = 0; k < segments; k++)
                distance = fmin(distance, segment_distance(x + 0.5, y + 0.5, points[2 * k], points[2 * k + 1]));
            touch(canvas, x, y, distance, width, colour);
        }
    }
}

void canvas_line(struct canvas *canvas, double x0, double y0, double x1, double y1, double width, uint32_t colour) {
    const struct point ends[2] = { { x0, y0 }, { x1, y1 } };

    draw_segments(canvas, ends, 1, width, colour);
}

void canvas_ring(struct canvas *canvas, double x, double y, double radius, double width, uint32_t colour) {
    struct point low = { x - radius, y - radius }, high = { x + radius, y + radius };
    struct box box = pen_box(canvas, low, high, width);

    for (int row = box.y0; row <= box.y1; row++)
        for (int column = box.x0; column <= box.x1; column++)
            touch(canvas, column, row, fabs(hypot(column + 0.5 - x, row + 0.5 - y) - radius), width, colour);
}

/*
 * The letters, drawn for this program. Each is a list of pen strokes; each stroke a list of points, two hexadecimal
 * digits x y, on a grid whose y is 0 at the top of capitals, 3 at that of small letters, 9 at the baseline and c at
 * the lowest. A stroke runs straight from point to point; after a '~' it runs smoothly, bent by its points: from
 * midpoint to midpoint of them, through the first and the last alone, or round if these are the same.
 */
static const char *const strokes[128] = {
    ['!'] = "00 06/09 09",
    ['"'] = "00 02/20 22",
    ['#'] = "10 09/40 39/03 53/06 46",
    ['%'] = "~00 30 33 03 00/~46 76 79 49 46/60 19",
    ['&'] = "~69 15 11 00 50 53 15 07 09 49 66",
    ['\''] = "00 02",
    ['('] = "~20 03 08 2b",
    [')'] = "~00 23 28 0b",
    ['*'] = "20 24/01 43/41 03",
    ['+'] = "05 45/23 27",
    [','] = "18 0b",
    ['-'] = "05 35",
    ['.'] = "19 19",
    ['/'] = "0a 40",
    ['0'] = "~00 50 59 09 00",
    ['1'] = "12 30 39",
    ['2'] = "~02 00 50 54 09/09 59",
    ['3'] = "~01 00 50 54 24/~24 54 59 09 08",
    ['4'] = "49 40 06 56",
    ['5'] = "50 10 04/~04 54 59 09 08",
    ['6'] = "~04 54 59 09 04/~51 50 00 07",
    ['7'] = "00 50 19",
    ['8'] = "~00 50 54 04 00/~04 54 59 09 04",
    ['9'] = "~00 50 55 05 00/~52 59 09 08",
    [':'] = "04 04/09 09",
    [';'] = "14 14/18 0b",
    ['<'] = "52 05 58",
    ['='] = "04 54/07 57",
    ['>'] = "02 55 08",
    ['?'] = "~02 00 40 43 25 26/29 29",
    ['@'] = "~76 76 74 33 37 76/~76 99 90 00 09 79",
    ['A'] = "09 30 69/16 56",
    ['B'] = "00 09/~00 00 50 54 04 04/~04 04 64 69 09 09",
    ['C'] = "~62 60 00 09 69 67",
    ['D'] = "00 09/~00 00 70 79 09 09",
    ['E'] = "50 00 09 59/04 44",
    ['F'] = "50 00 09/04 44",
    ['G'] = "~62 60 00 09 69 65/65 45",
    ['H'] = "00 09/60 69/04 64",
    ['I'] = "00 09",
    ['J'] = "~40 46 49 09 07",
    ['K'] = "00 09/60 05/23 69",
    ['L'] = "00 09 59",
    ['M'] = "09 00 46 80 89",
    ['N'] = "09 00 69 60",
    ['O'] = "~00 70 79 09 00",
    ['P'] = "00 09/~00 00 60 65 05 05",
    ['Q'] = "~00 70 79 09 00/56 8a",
    ['R'] = "00 09/~00 00 60 65 05 05/35 69",
    ['S'] = "~62 60 00 04 64 69 09 07",
    ['T'] = "00 60/30 39",
    ['U'] = "~00 05 09 69 65 60",
    ['V'] = "00 39 60",
    ['W'] = "00 29 42 69 80",
    ['X'] = "00 69/60 09",
    ['Y'] = "00 34 60/34 39",
    ['Z'] = "00 60 09 69",
    ['['] = "20 00 0b 2b",
    ['\\'] = "00 4a",
    [']'] = "00 20 2b 0b",
    ['^'] = "03 20 43",
    ['_'] = "0a 5a",
    ['`'] = "00 12",
    ['a'] = "53 59/~03 53 59 09 03",
    ['b'] = "00 09/~03 53 59 09 03",
    ['c'] = "~54 53 03 09 59 58",
    ['d'] = "50 59/~03 53 59 09 03",
    ['e'] = "06 56/~56 53 03 09 49 58",
    ['f'] = "~40 20 10 13 19/03 33",
    ['g'] = "~53 5a 5c 0c 0b/~03 53 59 09 03",
    ['h'] = "00 09/~06 03 53 59",
    ['i'] = "03 09/00 00",
    ['j'] = "~23 2a 2c 0c/20 20",
    ['k'] = "00 09/43 06/15 49",
    ['l'] = "00 09",
    ['m'] = "03 09/~06 03 43 49/~46 43 83 89",
    ['n'] = "03 09/~06 03 53 59",
    ['o'] = "~03 53 59 09 03",
    ['p'] = "03 0c/~03 53 59 09 03",
    ['q'] = "53 5c/~03 53 59 09 03",
    ['r'] = "03 09/~06 03 33",
    ['s'] = "~44 43 03 06 46 49 09 08",
    ['t'] = "~11 16 19 39/03 33",
    ['u'] = "~03 09 59 53/53 59",
    ['v'] = "03 39 63",
    ['w'] = "03 29 44 69 83",
    ['x'] = "03 59/53 09",
    ['y'] = "03 39/63 2c",
    ['z'] = "03 53 09 59",
    ['{'] = "~30 10 15 05/~05 15 1b 3b",
    ['|'] = "00 0b",
    ['}'] = "~00 20 25 35/~35 25 2b 0b",
    ['~'] = "~06 14 47 55",
};

static const char unknown_letter[] = "00 50 59 09 00";

enum {
    LETTER_POINTS = 16,   /* of one stroke */
    LETTER_SEGMENTS = 160 /* of one letter */
};

static const int bend_steps = 6; /* segments that stand for one bend */
static const double letter_height = 9, letter_gap = 2.6, space_width = 4.6, pen_width = 1.05; /* on the grid */

static int hex(char c) {
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* The strokes of the next character of a UTF-8 text, which is moved on; NULL for a space. */
static const char *next_letter(const char **text) {
    unsigned char c = (unsigned char)*(*text)++;

    while (((unsigned char)**text & 0xC0) == 0x80) (*text)++; /* what follows of a character beyond ASCII */
    if (c == ' ') return NULL;
    return c < 128 && strokes[c] ? strokes[c] : unknown_letter;
}

static double letter_width(const char *letter) {
    int width = 0;

    if (!letter) return space_width;
    for (; *letter; letter++) {
        if (*letter == ' ' || *letter == '/' || *letter == '~') continue;
        if (hex(*letter) > width) width = hex(*letter);
        letter++; /* past y */
    }
    return width + letter_gap;
}

static struct point middle(struct point a, struct point b) {
    return (struct point){ (a.x + b.x) / 2, (a.y + b.y) / 2 };
}

static size_t add_segment(struct point *segments, size_t count, struct point a, struct point b) {
    if (count < LETTER_SEGMENTS) {
        segments[2 * count] = a;
        segments[2 * count + 1] = b;
        count++;
    }
    return count;
}

/* A parabola from `a` to `b` that starts and ends in the direction of `corner`. */
static size_t add_bend(struct point *segments, size_t count, struct point a, struct point corner, struct point b) {
    struct point last = a;

    for (int k = 1; k <= bend_steps; k++) {
        double t = (double)k / bend_steps, u = 1 - t;
        struct point next = {
            u * u * a.x + 2 * u * t * corner.x + t * t * b.x,
            u * u * a.y + 2 * u * t * corner.y + t * t * b.y,
        };
        count = add_segment(segments, count, last, next);
        last = next;
    }
    return count;
}

static size_t add_stroke(struct point *segments, size_t count, const struct point *points, int length, bool smooth) {
    struct point first = points[0], last = points[length - 1];
    bool closed = length > 2 && first.x == last.x && first.y == last.y;

    if (!smooth || length < 3) {
        for (int k = 0; k + 1 < length; k++) count = add_segment(segments, count, points[k], points[k + 1]);
        return count;
    }
    if (!closed) count = add_segment(segments, count, first, middle(first, points[1]));
    for (int k = 1; k + 1 < length; k++)
        count =
            add_bend(segments, count, middle(points[k - 1], points[k]), points[k], middle(points[k], points[k + 1]));
    if (closed) return add_bend(segments, count, middle(points[length - 2], last), last, middle(last, points[1]));
    return add_segment(segments, count, middle(points[length - 2], last), last);
}

/* All strokes of a letter as segments on the grid; their number. */
static size_t letter_segments(const char *letter, struct point *segments) {
    size_t count = 0;

    while (*letter) {
        struct point points[LETTER_POINTS];
        bool smooth = *letter == '~';
        int length = 0;
        for (letter += smooth; *letter && *letter != '/'; letter += *letter == ' ') {
            if (length < LETTER_POINTS) points[length++] = (struct point){ hex(letter[0]), hex(letter[1]) };
            letter += 2;
        }
        count = add_stroke(segments, count, points, length, smooth);
        letter += *letter == '/';
    }
    return count;
}

double canvas_text_width(double size, const char *text) {
    double width = 0;

    while (*text) width += letter_width(next_letter(&text));
    return (width > 0 ? width - letter_gap : 0) * size / letter_height;
}

void canvas_text(struct canvas *canvas, double x, double y, double size, enum anchor anchor, bool vertical,
                 uint32_t colour, const char *text) {
    double scale = size / letter_height, along = -canvas_text_width(size, text);

    along *= anchor == ANCHOR_LEFT ? 0 : anchor == ANCHOR_MIDDLE ? 0.5 : 1;
    while (*text) {
        struct point segments[2 * LETTER_SEGMENTS];
        const char *letter = next_letter(&text);
        size_t count = letter ? letter_segments(letter, segments) : 0;
        for (size_t k = 0; k < 2 * count; k++) {
            double right = along + segments[k].x * scale, down = (segments[k].y - letter_height) * scale;
            segments[k] = vertical ? (struct point){ x + down, y - right } : (struct point){ x + right, y + down };
        }
        if (count) draw_segments(canvas, segments, count, pen_width * scale, colour);
        along += letter_width(letter) * scale;
    }
}
