/*
 * opm.c: the outer product mean over cache-sized tiles. `project` makes b in panels of lanes (a lane is a residue j),
 * [panel][c_b][s][lane], and a as the left operand of the contraction that the plan chose:
 *
 *   outer first:   for an i, a panel of j and a few c_b, o[c_b, c_a][j] = sum over s of a * b, a panel that the output
 *                  projection's rows of the same (c_b, c_a) turn into a part of z at once: o never leaves the cache;
 *   weight first:  u[c_b, s][q] = sum over c_a of W_o * a for an i, then z[q][j] = sum over (c_b, s) of u * b.
 *
 * One packed W_o serves both: [panel of q][c_b][c_a][lane q] is a left operand of the former, panels of the latter.
 */
#include "backends/cpu/blocked/blocked.h"

/* form->order */
enum {
    OUTER_FIRST = 0,
    WEIGHT_FIRST = 1
};

enum {
    OUTER_DEPTH = 128, /* (c_b, c_a) at a time: o, its part of W_o and a few b stay in the second cache */
    OUTER_ROWS = 8,    /* of i that share them */
    WRITE_CHANNELS = 32
};

typedef struct weights {
    float *norm_weight, *norm_bias;
    float *a, *a_bias; /* left operands of c rows, c_m deep */
    float *b, *b_bias;
    float *out, *out_bias;
} weights;

static weights map_weights(const evo_opm_desc *d, cpu_numbers n, cpu_parts *parts) {
    const int64_t outs = evo_blocked_round(d->c_z, n.isa->lanes);
    weights w;
    w.norm_weight = evo_blocked_take(parts, d->c_m);
    w.norm_bias = evo_blocked_take(parts, d->c_m);
    w.a = evo_blocked_take(parts, evo_blocked_matrix(n, d->c, d->c_m));
    w.a_bias = evo_blocked_take(parts, d->c);
    w.b = evo_blocked_take(parts, evo_blocked_matrix(n, d->c, d->c_m));
    w.b_bias = evo_blocked_take(parts, d->c);
    w.out = evo_blocked_take(parts, n.pairs ? evo_blocked_matrix(n, d->c_z, d->c * d->c) : d->c * d->c * outs);
    w.out_bias = evo_blocked_take(parts, d->c_z);
    return w;
}

/* W_o's columns are c_a * c + c_b, the packed ones c_b * c + c_a. */
static void pack_output(const evo_weight *from, const evo_opm_desc *d, cpu_numbers n, float *packed) {
    const int64_t lanes = n.isa->lanes, terms = d->c * d->c;
    for (int64_t q = 0; q < d->c_z; q++)
        for (int64_t term = 0; term < terms; term++) {
            const int64_t column = term % d->c * d->c + term / d->c;
            const double value = evo_load(from->data, from->dtype, q * from->strides[0] + column * from->strides[1]);
            if (n.pairs)
                evo_blocked_put(n, packed, terms, q, term, value);
            else
                packed[q / lanes * lanes * terms + q % lanes + term * lanes] = (float)value;
        }
}

static void pack_numbers(const evo_opm_weights *from, const evo_opm_desc *d, cpu_numbers n, cpu_parts *parts) {
    const weights to = map_weights(d, n, parts);
    evo_blocked_pack_vector(&from->norm_weight, d->c_m, 0, 1, to.norm_weight);
    evo_blocked_pack_vector(&from->norm_bias, d->c_m, 0, 1, to.norm_bias);
    evo_blocked_pack_matrix(n, &from->a_weight, d->c, d->c_m, 0, 1, to.a);
    evo_blocked_pack_vector(&from->a_bias, d->c, 0, 1, to.a_bias);
    evo_blocked_pack_matrix(n, &from->b_weight, d->c, d->c_m, 0, 1, to.b);
    evo_blocked_pack_vector(&from->b_bias, d->c, 0, 1, to.b_bias);
    pack_output(&from->out_weight, d, n, to.out);
    evo_blocked_pack_vector(&from->out_bias, d->c_z, 0, 1, to.out_bias);
}

/* The weights as floats, then, where products may be of bf16 numbers, as pairs: a pack serves plans of either order. */
static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_opm_desc *d = &call->problem->desc.opm;
    const cpu_numbers n = evo_blocked_choose(call->device, d->compute);
    cpu_parts parts = { call->pack, 0 };
    memset(call->pack, 0, call->form->pack_size);
    pack_numbers(&call->args.opm_weights, d, (cpu_numbers){ n.isa, false }, &parts);
    if (n.pairs) pack_numbers(&call->args.opm_weights, d, n, &parts);
    return EVO_OK;
}

/*
 * How the workspace's buffers lie, in floats. a is [row][s][c_a], or turned, [row][c_a][s], where left operands want their
 * depth contiguous; its inner index is padded. With pairs, s counts words.
 */
typedef struct shape {
    int64_t depth; /* words of the S sequences */
    bool a_turned;
    int64_t a_inner, a_row;
    int64_t b_panel;
    int64_t mask_panel;
    int64_t step; /* residues of a panel */
    int64_t row_panels, col_panels;
    int64_t element; /* from one of the batch to the next: all of the above */
} shape;

static shape find_shape(const evo_opm_desc *d, cpu_numbers n, int64_t rows, int64_t cols) {
    const int64_t granularity = evo_blocked_rows(n);
    shape s;
    s.depth = evo_blocked_words(n, d->s);
    s.a_turned = evo_blocked_whole(n);
    s.a_inner = evo_blocked_round(s.a_turned ? s.depth : d->c, granularity);
    s.a_row = (s.a_turned ? evo_blocked_round(d->c, granularity) : s.depth) * s.a_inner;
    s.a_row = evo_blocked_round(s.a_row, EVO_BLOCKED_LINE);
    s.b_panel = evo_blocked_round(d->c * s.depth * n.isa->lanes, EVO_BLOCKED_LINE) + EVO_BLOCKED_LINE;
    s.mask_panel = d->mask.dtype == EVO_NONE ? 0 : evo_blocked_round(d->s * n.isa->lanes, EVO_BLOCKED_LINE);
    s.step = evo_blocked_step(n.isa, d->n);
    s.row_panels = (rows + s.step - 1) / s.step;
    s.col_panels = (cols + s.step - 1) / s.step;
    s.element = evo_blocked_round(rows * s.a_row, EVO_BLOCKED_LINE) + s.col_panels * (s.b_panel + s.mask_panel) +
                s.row_panels * s.mask_panel;
    return s;
}

/* All that the stages' inner functions need. */
typedef struct work {
    const evo_call *call;
    const evo_opm_desc *d;
    const cpu_isa *isa;
    cpu_numbers numbers;
    const evo_tile *tile;
    int64_t order;
    weights w;
    shape shape;
    int64_t element; /* of the batch: these are its buffers */
    float *a, *b, *row_masks, *col_masks;
} work;

static work begin(const evo_call *call, const evo_tile *tile) {
    work k = { .call = call, .d = &call->problem->desc.opm, .isa = evo_blocked_isa(call), .tile = tile };
    cpu_parts pack = { call->pack, 0 }, buffers = { evo_blocked_buffers(call), 0 };
    const evo_schedule *schedule = &call->form->schedule;
    k.order = call->form->order;
    k.numbers = evo_blocked_numbers(call);
    k.w = map_weights(k.d, (cpu_numbers){ k.isa, false }, &pack);
    if (k.numbers.pairs) k.w = map_weights(k.d, k.numbers, &pack);
    k.shape = find_shape(k.d, k.numbers, schedule->rows, schedule->cols);
    k.element = tile->batch.begin;
    k.a = evo_blocked_take(&buffers, schedule->rows * k.shape.a_row);
    k.b = evo_blocked_take(&buffers, k.shape.col_panels * k.shape.b_panel);
    k.row_masks = evo_blocked_take(&buffers, k.shape.row_panels * k.shape.mask_panel);
    k.col_masks = evo_blocked_take(&buffers, k.shape.col_panels * k.shape.mask_panel);
    return k;
}

/* `k`, which is of the tile's first element, for another. */
static work of_element(const work *k, int64_t element) {
    work other = *k;
    const int64_t distance = (element - k->element) * k->shape.element;
    other.element = element;
    other.a += distance;
    other.b += distance;
    other.row_masks += distance;
    other.col_masks += distance;
    return other;
}

static int lanes_from(const work *k, int64_t first) {
    return (int)evo_blocked_least(k->shape.step, k->d->n - first);
}

/* --- project ----------------------------------------------------------------------------------- */

/* side[h * stride + l] = mask * (W x + bias) of one side, for one panel of inputs. */
static void project_side(const work *k, const float *matrix, const float *bias, int count, const float *x,
                         const float *mask, float *sums, float *side, int64_t stride) {
    const cpu_product product = { k->d->c,
                                  evo_blocked_words(k->numbers, k->d->c_m),
                                  count,
                                  false,
                                  evo_blocked_operand(k->numbers, matrix, k->d->c_m, 0, 0),
                                  x,
                                  sums,
                                  k->isa->lanes };
    evo_blocked_multiply(k->numbers, &product);
    k->isa->mask_side(sums, count, k->d->c, bias, mask, side, stride);
}

/* Puts a's panel of words [c_a][lane] where the contraction reads it. */
static void place_a(const work *k, int64_t first, int64_t word, const float *panel) {
    const int lanes = k->isa->lanes, count = lanes_from(k, first);
    const int64_t row = k->shape.a_row, inner = k->shape.a_inner;
    float *a = k->a + (first - k->tile->rows.begin) * row;
    if (!k->shape.a_turned)
        k->isa->transpose(panel, lanes, k->d->c, count, a + word * inner, row);
    else
        for (int64_t h = 0; h < k->d->c; h++)
            for (int l = 0; l < count; l++) a[l * row + h * inner + word] = panel[h * lanes + l];
}

/* What a task needs of a panel of residues: inputs and masks of one sequence, or of two whose sides become pairs. */
typedef struct inputs {
    int64_t first, word, terms;
    float *x[2], *mask[2], *ones, *sums, *both; /* both: [channel][two s][lane] */
} inputs;

static void project_a(const work *k, const inputs *in) {
    const int lanes = k->isa->lanes, count = lanes_from(k, in->first);
    const int64_t stride = k->numbers.pairs ? 2 * lanes : lanes;
    for (int64_t t = 0; t < in->terms; t++)
        project_side(k, k->w.a, k->w.a_bias, count, in->x[t], in->mask[t], in->sums, in->both + t * lanes, stride);
    evo_blocked_convert(k->numbers, in->both, 2 * k->d->c);
    place_a(k, in->first, in->word, in->both);
}

static void project_b(const work *k, const inputs *in) {
    const int64_t lanes = k->isa->lanes, panel = (in->first - k->tile->cols.begin) / k->shape.step;
    const int64_t between = k->shape.depth * lanes, stride = k->numbers.pairs ? 2 * lanes : between;
    float *b = k->b + panel * k->shape.b_panel + in->word * lanes;
    for (int64_t t = 0; t < in->terms; t++)
        project_side(k, k->w.b, k->w.b_bias, lanes_from(k, in->first), in->x[t],
                     k->d->mask_sides == EVO_MASK_BOTH ? in->mask[t] : in->ones, in->sums,
                     k->numbers.pairs ? in->both + t * lanes : b, stride);
    if (k->numbers.pairs) k->isa->pair(in->both, 2 * k->d->c, b, between);
}

static bool within(evo_range range, int64_t index) {
    return index >= range.begin && index < range.end;
}

/* Keeps the mask for the counts. */
static void keep_mask(const work *k, const float *mask, int64_t panel, int64_t s, float *masks) {
    const size_t lanes = (size_t)k->isa->lanes;
    if (k->shape.mask_panel)
        memcpy(masks + panel * k->shape.mask_panel + s * k->isa->lanes, mask, lanes * sizeof *mask);
}

/* LayerNorm of a panel of residues of sequence s as an operand, and their mask. */
static void read_input(const work *k, int64_t first, int64_t s, float *buffer, float *x, float *mask) {
    const evo_opm_desc *d = k->d;
    const int64_t *strides = d->m.strides, *masks = d->mask.strides, b = k->element;
    const int lanes = k->isa->lanes;
    const cpu_rows from = { k->call->args.opm.m, d->m.dtype, b * strides[0] + s * strides[1] + first * strides[2],
                            strides[2],          strides[3], lanes_from(k, first) };
    evo_blocked_mask(&d->mask, k->call->args.opm.mask, b * masks[0] + s * masks[1] + first * masks[2], masks[2],
                     from.count, lanes, mask);
    k->isa->read(&from, d->c_m, buffer, x);
    k->isa->normalise(x, lanes, from.count, d->c_m, (float)d->layer_norm_eps, k->w.norm_weight, k->w.norm_bias, x);
    evo_blocked_convert(k->numbers, x, d->c_m);
}

/* a and b of the tile's residues of one panel, at one word of the sum. */
static void project_panel(const work *k, int64_t first, int64_t word) {
    const evo_opm_desc *d = k->d;
    const int64_t lanes = k->isa->lanes;
    const evo_range rows = k->tile->rows, cols = k->tile->cols;
    cpu_parts parts = evo_blocked_scratch(k->call);
    const int64_t s = k->numbers.pairs ? 2 * word : word;
    inputs in = { .first = first, .word = word, .terms = k->numbers.pairs ? evo_blocked_least(2, d->s - s) : 1 };
    float *buffer = evo_blocked_take(&parts, d->c_m * lanes);
    in.ones = evo_blocked_take(&parts, lanes);
    in.sums = evo_blocked_take(&parts, d->c * lanes);
    in.both = evo_blocked_take(&parts, 2 * d->c * lanes);
    for (int t = 0; t < 2; t++) {
        in.x[t] = evo_blocked_take(&parts, d->c_m * lanes);
        in.mask[t] = evo_blocked_take(&parts, lanes);
    }
    for (int64_t l = 0; l < lanes; l++) in.ones[l] = 1.0f;
    if (k->numbers.pairs && in.terms == 1) memset(in.both, 0, (size_t)(2 * d->c * lanes) * sizeof(float));
    for (int64_t t = 0; t < in.terms; t++) {
        read_input(k, first, s + t, buffer, in.x[t], in.mask[t]);
        if (within(rows, first)) keep_mask(k, in.mask[t], (first - rows.begin) / k->shape.step, s + t, k->row_masks);
        if (within(cols, first)) keep_mask(k, in.mask[t], (first - cols.begin) / k->shape.step, s + t, k->col_masks);
    }
    if (within(rows, first)) project_a(k, &in);
    if (within(cols, first)) project_b(k, &in);
}

/* A task is a panel of residues at several s: whole cache lines of a and b. One pass over m serves both sides. */
static evo_status project(const evo_call *call, const evo_tile *tile) {
    const work k = begin(call, tile);
    const evo_range rows = tile->rows, cols = tile->cols;
    const bool no_rows = rows.begin >= rows.end, no_cols = cols.begin >= cols.end;
    const int64_t begin_at = no_rows || (!no_cols && cols.begin < rows.begin) ? cols.begin : rows.begin;
    const int64_t end_at = no_rows || (!no_cols && cols.end > rows.end) ? cols.end : rows.end;
    const int threads = evo_blocked_threads(call);
    const int64_t panel = k.shape.step, panels = (end_at - begin_at + panel - 1) / panel;
    const int64_t all = (tile->batch.end - tile->batch.begin) * panels * k.shape.depth;
    const int64_t rows_of_both =
        k.isa->lanes | k.shape.a_inner; /* of b and of a: as many factors of 2 as the one with fewer */
    const int64_t step = k.shape.a_turned ? EVO_BLOCKED_LINE : evo_blocked_lines(rows_of_both, all, threads);
    const int64_t steps = (k.shape.depth + step - 1) / step;
#pragma omp parallel for collapse(3) schedule(static) num_threads(threads)
    for (int64_t e = tile->batch.begin; e < tile->batch.end; e++)
        for (int64_t i = begin_at; i < end_at; i += panel)
            for (int64_t block = 0; block < steps; block++) {
                const work of = of_element(&k, e);
                for (int64_t s = block * step; s < evo_blocked_least((block + 1) * step, k.shape.depth); s++)
                    if (within(rows, i) || within(cols, i)) project_panel(&of, i, s);
            }
    return EVO_OK;
}

/* --- outer ------------------------------------------------------------------------------------- */

/* n[row][lane] = max(count + eps, min) of `rows` residues from row `i` of the tile on, with the panel's; a NaN stays one. */
static void normalisers(const work *k, int64_t i, int64_t rows, int64_t panel, float *n) {
    const evo_opm_desc *d = k->d;
    const int64_t lanes = k->isa->lanes, row_panel = i / k->shape.step, within_panel = i % k->shape.step;
    if (k->shape.mask_panel) {
        const cpu_product counts = { rows,
                                     d->s,
                                     (int)lanes,
                                     false,
                                     { k->row_masks + row_panel * k->shape.mask_panel + within_panel, lanes, lanes, 0 },
                                     k->col_masks + panel * k->shape.mask_panel,
                                     n,
                                     lanes };
        k->isa->multiply(&counts);
    }
    for (int64_t p = 0; p < rows * lanes; p++) {
        const float count = (k->shape.mask_panel ? n[p] : (float)d->s) + (float)d->count_eps;
        n[p] = count < (float)d->count_min ? (float)d->count_min : count;
    }
}

/* Divides, adds bias and residual, and writes channels q ... of the pairs (i, j ...): z is a panel of them. */
static void write_pairs(const work *k, int64_t i, int64_t j, int64_t q, int64_t channels, const float *n, float *z,
                        float *buffer) {
    const evo_opm_desc *d = k->d;
    const evo_tensor *layouts[] = { &d->residual, &d->out };
    const void *data[] = { k->call->args.opm.residual, k->call->args.opm.out };
    cpu_rows rows[2];
    for (int t = 0; t < 2; t++) {
        const int64_t *strides = layouts[t]->strides;
        rows[t] = (cpu_rows){
            data[t],    layouts[t]->dtype, k->element * strides[0] + i * strides[1] + j * strides[2] + q * strides[3],
            strides[2], strides[3],        lanes_from(k, j)
        };
    }
    k->isa->divide(z, rows[1].count, channels, k->w.out_bias + q, n, d->divide == EVO_DIVIDE_AFTER);
    k->isa->write(z, channels, &rows[0], &rows[1], buffer);
}

/* c_b at a time: about OUTER_DEPTH (c_b, c_a) deep, and an even number of them, so that pairs never cross. */
static int64_t outer_width(const evo_opm_desc *d) {
    return evo_blocked_least(evo_blocked_round((OUTER_DEPTH + d->c - 1) / d->c, 2), d->c);
}

static cpu_operand outer_a(const work *k, int64_t i) {
    const float *a = k->a + i * k->shape.a_row;
    return k->shape.a_turned ? (cpu_operand){ a, 1, 1, k->shape.a_inner }
                             : (cpu_operand){ a, k->shape.a_inner, k->shape.a_inner, 0 };
}

static cpu_operand outer_weights(const work *k, int64_t cb) {
    const int64_t lanes = k->isa->lanes, c = k->d->c;
    if (k->numbers.pairs) return evo_blocked_operand(k->numbers, k->w.out, c * c, 0, cb * c / 2);
    return (cpu_operand){ k->w.out + cb * c * lanes, lanes, lanes, c * c * lanes };
}

/* z of `rows` residues from row `i` of the tile on and the panel's: the part of some c_b. */
static void outer_part(const work *k, int64_t i, int64_t rows, int64_t panel, evo_range cb, float *o, float *z) {
    const int64_t lanes = k->isa->lanes, c = k->d->c, terms = (cb.end - cb.begin) * c;
    const int count = lanes_from(k, k->tile->cols.begin + panel * k->shape.step);
    cpu_product outer = { .rows = c, .depth = k->shape.depth, .count = count, .c_stride = lanes };
    cpu_product out = { .rows = k->d->c_z,
                        .depth = evo_blocked_words(k->numbers, terms),
                        .count = count,
                        .add = cb.begin > 0,
                        .a = outer_weights(k, cb.begin),
                        .b = o,
                        .c_stride = lanes };
    for (int64_t r = 0; r < rows; r++) {
        outer.a = outer_a(k, i + r);
        for (int64_t h = cb.begin; h < cb.end; h++) {
            outer.b = k->b + panel * k->shape.b_panel + h * k->shape.depth * lanes;
            outer.c = o + (h - cb.begin) * c * lanes;
            evo_blocked_multiply(k->numbers, &outer);
        }
        evo_blocked_convert(k->numbers, o, terms);
        out.c = z + r * k->d->c_z * lanes;
        evo_blocked_multiply(k->numbers, &out);
    }
}

static void outer_tile(const work *k, int64_t i, int64_t rows, int64_t panel) {
    const evo_opm_desc *d = k->d;
    const int64_t lanes = k->isa->lanes, width = outer_width(d);
    cpu_parts parts = evo_blocked_scratch(k->call);
    float *n = evo_blocked_take(&parts, OUTER_ROWS * lanes);
    float *z = evo_blocked_take(&parts, OUTER_ROWS * d->c_z * lanes);
    float *o = evo_blocked_take(&parts, width * d->c * lanes), *buffer = evo_blocked_take(&parts, 0);
    normalisers(k, i, rows, panel, n);
    for (int64_t cb = 0; cb < d->c; cb += width)
        outer_part(k, i, rows, panel, (evo_range){ cb, evo_blocked_least(cb + width, d->c) }, o, z);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t q = 0; q < d->c_z; q += WRITE_CHANNELS)
            write_pairs(k, k->tile->rows.begin + i + r, k->tile->cols.begin + panel * k->shape.step, q,
                        evo_blocked_least(WRITE_CHANNELS, d->c_z - q), n + r * lanes, z + (r * d->c_z + q) * lanes,
                        buffer);
}

/* A residue i against the tile's columns, by way of u. */
static void weight_first_row(const work *k, int64_t i, int64_t q) {
    const evo_opm_desc *d = k->d;
    const int64_t lanes = k->isa->lanes, channels = evo_blocked_least(lanes, d->c_z - q);
    cpu_parts parts = evo_blocked_scratch(k->call);
    float *n = evo_blocked_take(&parts, k->isa->rows * lanes), *z = evo_blocked_take(&parts, lanes * lanes);
    const int64_t turned = evo_blocked_round(d->s, k->isa->rows);
    float *a = evo_blocked_take(&parts, d->c * turned); /* [c_a][s]: here the depth is c_a */
    float *u = evo_blocked_take(&parts, d->c * d->s * lanes), *buffer = evo_blocked_take(&parts, 0);
    k->isa->transpose(k->a + i * k->shape.a_row, k->shape.a_inner, d->s, d->c, a, turned);
    for (int64_t cb = 0; cb < d->c; cb++) {
        const cpu_product first = { d->s,
                                    d->c,
                                    (int)channels,
                                    false,
                                    { a, turned, turned, 0 },
                                    k->w.out + (q * d->c + cb * lanes) * d->c,
                                    u + cb * d->s * lanes,
                                    lanes };
        k->isa->multiply(&first);
    }
    for (int64_t j = k->tile->cols.begin; j < k->tile->cols.end; j += k->shape.step) {
        const int64_t panel = (j - k->tile->cols.begin) / k->shape.step;
        const cpu_product second = {
            channels, d->c * d->s, lanes_from(k, j), false, { u, lanes, lanes, 0 }, k->b + panel * k->shape.b_panel,
            z,        lanes
        };
        const int64_t aligned = i / k->isa->rows * k->isa->rows;
        normalisers(k, aligned, k->isa->rows, panel, n);
        k->isa->multiply(&second);
        write_pairs(k, k->tile->rows.begin + i, j, q, channels, n + (i - aligned) * lanes, z, buffer);
    }
}

static evo_status outer(const evo_call *call, const evo_tile *tile) {
    const work k = begin(call, tile);
    const int64_t lanes = k.isa->lanes, rows = tile->rows.end - tile->rows.begin;
    const evo_range elements = tile->batch;
    const int threads = evo_blocked_threads(call);
    if (k.order == WEIGHT_FIRST) {
#pragma omp parallel for collapse(3) schedule(static) num_threads(threads)
        for (int64_t e = elements.begin; e < elements.end; e++)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t q = 0; q < k.d->c_z; q += lanes) {
                    const work of = of_element(&k, e);
                    weight_first_row(&of, i, q);
                }
        return EVO_OK;
    }
    const int64_t panels = (tile->cols.end - tile->cols.begin + k.shape.step - 1) / k.shape.step;
    const bool many = (elements.end - elements.begin) * rows * panels >= 2 * OUTER_ROWS * threads;
    const int64_t step = k.shape.step % OUTER_ROWS == 0 && many ? OUTER_ROWS : k.isa->rows;
#pragma omp parallel for collapse(3) schedule(static) num_threads(threads)
    for (int64_t e = elements.begin; e < elements.end; e++)
        for (int64_t i = 0; i < rows; i += step)
            for (int64_t panel = 0; panel < panels; panel++) {
                const work of = of_element(&k, e);
                outer_tile(&of, i, evo_blocked_least(step, rows - i), panel);
            }
    return EVO_OK;
}

/* --- plan -------------------------------------------------------------------------------------- */

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    (void)device;
    const evo_opm_desc *d = &problem->desc.opm;
    const evo_tensor *const tensors[] = { &d->m, &d->residual, &d->out };
    return evo_blocked_supports(d->compute, tensors, 3, why);
}

/*
 * By the products' flops alone, so that the order does not depend on threads or limits. Weight first is always in fp32, whose
 * flops count twice where those of outer first are of pairs.
 */
static int64_t choose_order(const evo_opm_desc *d, cpu_numbers numbers) {
    const double s = (double)d->s, n = (double)d->n, c = (double)d->c, c_z = (double)d->c_z;
    const double weight_first = s * c_z * (c + n), outer_first = n * c * (s + c_z);
    return d->s > 0 && (numbers.pairs ? 2.0 : 1.0) * weight_first < outer_first ? WEIGHT_FIRST : OUTER_FIRST;
}

static int64_t scratch_floats(const evo_opm_desc *d, cpu_numbers n, int64_t order) {
    const int64_t lanes = n.isa->lanes, project = (3 * d->c_m + 3 * d->c + 3) * lanes;
    const int64_t outer = (OUTER_ROWS + OUTER_ROWS * d->c_z + outer_width(d) * d->c + WRITE_CHANNELS) * lanes;
    const int64_t weight = (n.isa->rows + 2 * lanes + d->c * d->s) * lanes + d->c * (d->s + n.isa->rows);
    const int64_t contraction = order == OUTER_FIRST ? outer : weight;
    return evo_blocked_round((project > contraction ? project : contraction) + 10 * EVO_BLOCKED_LINE, 1024);
}

static int64_t workspace_bytes(const evo_opm_desc *d, cpu_numbers n, int64_t order, int64_t rows, int64_t cols,
                               int64_t threads, int64_t elements) {
    const int64_t lanes = n.isa->lanes;
    /* More than any part below; a and b are padded to panels. */
    if (evo_product(rows + cols + 2 * lanes, d->s + lanes, d->c + lanes + 1, 64) < 0) return INT64_MAX;
    return evo_blocked_bytes(elements * find_shape(d, n, rows, cols).element, threads, scratch_floats(d, n, order));
}

/* Tiles of rows and columns shrink by halves, in whole panels, then the threads, until all fits the limit. */
static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_opm_desc *d = &problem->desc.opm;
    const cpu_numbers allowed = evo_blocked_choose(device, d->compute);
    const int64_t order = problem->order ? problem->order - 1 : choose_order(d, allowed);
    const int64_t step = evo_blocked_step(allowed.isa, d->n);
    const cpu_numbers n = { allowed.isa, allowed.pairs && order == OUTER_FIRST };
    const int64_t limit =
        d->workspace_limit && d->workspace_limit < INT64_MAX ? (int64_t)d->workspace_limit : INT64_MAX - 1;
    int64_t rows = d->n, cols = d->n, threads = evo_cpu_threads(device), elements = 1;
    if (order == WEIGHT_FIRST && d->s == 0)
        return evo_fail(EVO_ERROR_UNSUPPORTED, "weight first takes S of at least 1");
    /* m may be repeated along S, so that no tensor bounds it; below, c * S stands in products with a few lanes. */
    if (evo_product(d->c, d->s, 1024, 1) < 0)
        return evo_fail(EVO_ERROR_SIZE_OVERFLOW, "the workspace would span more than 2^63 bytes");
    while (workspace_bytes(d, n, order, rows, cols, threads, 1) > limit) {
        if (rows <= step && cols <= step) {
            threads = 1;
            break;
        }
        int64_t *larger = rows > cols ? &rows : &cols;
        *larger = evo_blocked_round((*larger + 1) / 2, step);
    }
    int64_t bytes = workspace_bytes(d, n, order, rows, cols, threads, 1);
    if (bytes < limit) elements = evo_blocked_elements(d->batch, find_shape(d, n, rows, cols).element);
    if (workspace_bytes(d, n, order, rows, cols, threads, elements) > limit) elements = 1;
    bytes = workspace_bytes(d, n, order, rows, cols, threads, elements);
    const evo_status status =
        evo_blocked_settle(n, form, d->compute, bytes, threads, scratch_floats(d, n, order), d->workspace_limit);
    if (status != EVO_OK) return status;
    cpu_parts parts = { NULL, 0 };
    map_weights(d, (cpu_numbers){ allowed.isa, false }, &parts);
    if (allowed.pairs) map_weights(d, allowed, &parts);
    form->pack_size = (size_t)parts.taken * sizeof(float);
    form->pack_layout = evo_blocked_layout(allowed);
    form->schedule = (evo_schedule){ elements, rows > 0 ? rows : 1, cols > 0 ? cols : 1, d->c };
    form->order = (int)order;
    return EVO_OK;
}

static const char *const orders[] = { "blocked/outer-first", "blocked/weight-first", NULL };

const evo_kernel evo_cpu_opm_blocked = {
    .name = "blocked",
    .orders = orders,
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack, [EVO_STAGE_OPM_PROJECT] = project, [EVO_STAGE_OPM_OUTER] = outer },
};
