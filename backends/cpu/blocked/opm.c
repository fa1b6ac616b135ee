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

/* What tuning[EVO_BLOCKED_FORM] says. */
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

static weights map_weights(const evo_opm_desc *d, const cpu_isa *isa, cpu_parts *parts) {
    const int64_t rows = evo_blocked_round(d->c, isa->rows), outs = evo_blocked_round(d->c_z, isa->lanes);
    weights w;
    w.norm_weight = evo_blocked_take(parts, d->c_m);
    w.norm_bias = evo_blocked_take(parts, d->c_m);
    w.a = evo_blocked_take(parts, rows * d->c_m);
    w.a_bias = evo_blocked_take(parts, d->c);
    w.b = evo_blocked_take(parts, rows * d->c_m);
    w.b_bias = evo_blocked_take(parts, d->c);
    w.out = evo_blocked_take(parts, d->c * d->c * outs);
    w.out_bias = evo_blocked_take(parts, d->c_z);
    return w;
}

/* W_o's columns are c_a * c + c_b; the packed ones c_b * c + c_a: c views of c columns each. */
static void pack_output(const evo_weight *from, const evo_opm_desc *d, int64_t lanes, float *packed) {
    for (int64_t q = 0; q < d->c_z; q++) {
        float *to = packed + q / lanes * lanes * d->c * d->c + q % lanes;
        for (int64_t cb = 0; cb < d->c; cb++)
            for (int64_t ca = 0; ca < d->c; ca++)
                to[(cb * d->c + ca) * lanes] = (float)evo_load(
                    from->data, from->dtype, q * from->strides[0] + (ca * d->c + cb) * from->strides[1]);
    }
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_opm_weights *from = &call->args.opm_weights;
    const cpu_isa *isa = evo_blocked_isa(call);
    cpu_parts parts = { call->pack, 0 };
    const weights to = map_weights(d, isa, &parts);
    memset(call->pack, 0, call->form->pack_size);
    evo_blocked_pack_vector(&from->norm_weight, d->c_m, 0, 1, to.norm_weight);
    evo_blocked_pack_vector(&from->norm_bias, d->c_m, 0, 1, to.norm_bias);
    evo_blocked_pack_matrix(&from->a_weight, d->c, d->c_m, isa->rows, 0, 1, to.a);
    evo_blocked_pack_vector(&from->a_bias, d->c, 0, 1, to.a_bias);
    evo_blocked_pack_matrix(&from->b_weight, d->c, d->c_m, isa->rows, 0, 1, to.b);
    evo_blocked_pack_vector(&from->b_bias, d->c, 0, 1, to.b_bias);
    pack_output(&from->out_weight, d, isa->lanes, to.out);
    evo_blocked_pack_vector(&from->out_bias, d->c_z, 0, 1, to.out_bias);
    return EVO_OK;
}

/* How the workspace's buffers lie, in floats: a is [row][s][c_a] (outer first) or [row][c_a][s], its inner index padded. */
typedef struct shape {
    int64_t a_inner, a_row;
    int64_t b_panel;
    int64_t mask_panel;
    int64_t step; /* residues of a panel */
    int64_t row_panels, col_panels;
} shape;

static shape find_shape(const evo_opm_desc *d, const cpu_isa *isa, int64_t order, int64_t rows, int64_t cols) {
    shape s;
    s.a_inner = evo_blocked_round(order == OUTER_FIRST ? d->c : d->s, isa->rows);
    s.a_row = evo_blocked_round((order == OUTER_FIRST ? d->s : d->c) * s.a_inner, EVO_BLOCKED_LINE);
    s.b_panel = evo_blocked_round(d->c * d->s * isa->lanes, EVO_BLOCKED_LINE) + EVO_BLOCKED_LINE;
    s.mask_panel = d->mask.dtype == EVO_NONE ? 0 : evo_blocked_round(d->s * isa->lanes, EVO_BLOCKED_LINE);
    s.step = evo_blocked_step(isa, d->n);
    s.row_panels = (rows + s.step - 1) / s.step;
    s.col_panels = (cols + s.step - 1) / s.step;
    return s;
}

/* All that the stages' inner functions need. */
typedef struct work {
    const evo_call *call;
    const evo_opm_desc *d;
    const cpu_isa *isa;
    const evo_tile *tile;
    int64_t order;
    weights w;
    shape shape;
    float *a, *b, *row_masks, *col_masks;
} work;

static work begin(const evo_call *call, const evo_tile *tile) {
    work k = { .call = call, .d = &call->problem->desc.opm, .isa = evo_blocked_isa(call), .tile = tile };
    cpu_parts pack = { call->pack, 0 }, buffers = { evo_blocked_buffers(call), 0 };
    const evo_schedule *schedule = &call->form->schedule;
    k.order = call->form->tuning[EVO_BLOCKED_FORM];
    k.w = map_weights(k.d, k.isa, &pack);
    k.shape = find_shape(k.d, k.isa, k.order, schedule->rows, schedule->cols);
    k.a = evo_blocked_take(&buffers, schedule->rows * k.shape.a_row);
    k.b = evo_blocked_take(&buffers, k.shape.col_panels * k.shape.b_panel);
    k.row_masks = evo_blocked_take(&buffers, k.shape.row_panels * k.shape.mask_panel);
    k.col_masks = evo_blocked_take(&buffers, k.shape.col_panels * k.shape.mask_panel);
    return k;
}

static int lanes_from(const work *k, int64_t first) {
    return (int)evo_blocked_least(k->shape.step, k->d->n - first);
}

/* --- project ----------------------------------------------------------------------------------- */

/* The sums W x of one side. */
static void project_sums(const work *k, const float *matrix, const float *x, int count, float *sums) {
    const int64_t rows = k->isa->rows, depth = k->d->c_m;
    const cpu_product product = { k->d->c, depth, count,        false, { matrix, rows, rows, rows * depth },
                                  x,       sums,  k->isa->lanes };
    k->isa->multiply(&product);
}

/* a of the residues from `first` on at sequence s, turned to where the contraction reads it. */
static void project_a(const work *k, int64_t first, int64_t s, const float *x, const float *mask, float *sums) {
    const int lanes = k->isa->lanes, count = lanes_from(k, first);
    float *a = k->a + (first - k->tile->rows.begin) * k->shape.a_row;
    project_sums(k, k->w.a, x, count, sums);
    k->isa->mask_side(sums, count, k->d->c, k->w.a_bias, mask, sums, lanes);
    if (k->order == OUTER_FIRST)
        k->isa->transpose(sums, lanes, k->d->c, count, a + s * k->shape.a_inner, k->shape.a_row);
    else
        for (int64_t h = 0; h < k->d->c; h++)
            for (int l = 0; l < count; l++) a[l * k->shape.a_row + h * k->shape.a_inner + s] = sums[h * lanes + l];
}

static void project_b(const work *k, int64_t first, int64_t s, const float *x, const float *mask, const float *ones,
                      float *sums) {
    const int64_t lanes = k->isa->lanes, panel = (first - k->tile->cols.begin) / k->shape.step;
    const int count = lanes_from(k, first);
    project_sums(k, k->w.b, x, count, sums);
    k->isa->mask_side(sums, count, k->d->c, k->w.b_bias, k->d->mask_sides == EVO_MASK_BOTH ? mask : ones,
                      k->b + panel * k->shape.b_panel + s * lanes, k->d->s * lanes);
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

static void project_panel(const work *k, int64_t first, int64_t s) {
    const evo_opm_desc *d = k->d;
    const int lanes = k->isa->lanes;
    const int64_t *strides = d->m.strides, *masks = d->mask.strides, b = k->tile->batch.begin;
    const evo_range rows = k->tile->rows, cols = k->tile->cols;
    cpu_parts parts = evo_blocked_scratch(k->call);
    float *x = evo_blocked_take(&parts, d->c_m * lanes), *buffer = evo_blocked_take(&parts, d->c_m * lanes);
    float *sums = evo_blocked_take(&parts, d->c * lanes), *mask = evo_blocked_take(&parts, lanes);
    float *ones = evo_blocked_take(&parts, lanes);
    const cpu_rows from = { k->call->args.opm.m, d->m.dtype, b * strides[0] + s * strides[1] + first * strides[2],
                            strides[2],          strides[3], lanes_from(k, first) };
    for (int l = 0; l < lanes; l++) ones[l] = 1.0f;
    evo_blocked_mask(&d->mask, k->call->args.opm.mask, b * masks[0] + s * masks[1] + first * masks[2], masks[2],
                     from.count, lanes, mask);
    k->isa->read(&from, d->c_m, buffer, x);
    k->isa->normalise(x, lanes, from.count, d->c_m, (float)d->layer_norm_eps, k->w.norm_weight, k->w.norm_bias, x);
    if (within(rows, first)) {
        project_a(k, first, s, x, mask, sums);
        keep_mask(k, mask, (first - rows.begin) / k->shape.step, s, k->row_masks);
    }
    if (within(cols, first)) {
        project_b(k, first, s, x, mask, ones, sums);
        keep_mask(k, mask, (first - cols.begin) / k->shape.step, s, k->col_masks);
    }
}

/* A task is a panel of residues at several s: whole cache lines of a and b. One pass over m serves both sides. */
static evo_status project(const evo_call *call, const evo_tile *tile) {
    const work k = begin(call, tile);
    const evo_range rows = tile->rows, cols = tile->cols;
    const bool no_rows = rows.begin >= rows.end, no_cols = cols.begin >= cols.end;
    const int64_t begin_at = no_rows || (!no_cols && cols.begin < rows.begin) ? cols.begin : rows.begin;
    const int64_t end_at = no_rows || (!no_cols && cols.end > rows.end) ? cols.end : rows.end;
    const int threads = evo_blocked_threads(call);
    const int64_t panel = k.shape.step, tasks = (end_at - begin_at + panel - 1) / panel * k.d->s;
    const int64_t step = tasks >= 32 * threads ? 8 : 2, steps = (k.d->s + step - 1) / step;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t i = begin_at; i < end_at; i += panel)
        for (int64_t block = 0; block < steps; block++)
            for (int64_t s = block * step; s < evo_blocked_least((block + 1) * step, k.d->s); s++)
                if (within(rows, i) || within(cols, i)) project_panel(&k, i, s);
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
        rows[t] = (cpu_rows){ data[t],
                              layouts[t]->dtype,
                              k->tile->batch.begin * strides[0] + i * strides[1] + j * strides[2] + q * strides[3],
                              strides[2],
                              strides[3],
                              lanes_from(k, j) };
    }
    k->isa->divide(z, rows[1].count, channels, k->w.out_bias + q, n, d->divide == EVO_DIVIDE_AFTER);
    k->isa->write(z, channels, &rows[0], &rows[1], buffer);
}

/* c_b at a time: an even number of them about OUTER_DEPTH (c_b, c_a) deep. */
static int64_t outer_width(const evo_opm_desc *d) {
    return evo_blocked_least(evo_blocked_round(OUTER_DEPTH, d->c) / d->c, d->c);
}

/* z of `rows` residues from row `i` of the tile on and the panel's: the part of c_b ... */
static void outer_part(const work *k, int64_t i, int64_t rows, int64_t panel, evo_range cb, float *o, float *z) {
    const evo_opm_desc *d = k->d;
    const int64_t lanes = k->isa->lanes, c = d->c, out_panel = c * c * lanes;
    const int count = lanes_from(k, k->tile->cols.begin + panel * k->shape.step);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t h = cb.begin; h < cb.end; h++) {
            const cpu_product outer = { c,
                                        d->s,
                                        count,
                                        false,
                                        { k->a + (i + r) * k->shape.a_row, k->shape.a_inner, c + lanes, 0 },
                                        k->b + panel * k->shape.b_panel + h * d->s * lanes,
                                        o + (h - cb.begin) * c * lanes,
                                        lanes };
            k->isa->multiply(&outer);
        }
        const cpu_product out = { d->c_z,
                                  (cb.end - cb.begin) * c,
                                  count,
                                  cb.begin > 0,
                                  { k->w.out + cb.begin * c * lanes, lanes, lanes, out_panel },
                                  o,
                                  z + r * d->c_z * lanes,
                                  lanes };
        k->isa->multiply(&out);
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
    float *u = evo_blocked_take(&parts, d->c * d->s * lanes), *buffer = evo_blocked_take(&parts, 0);
    for (int64_t cb = 0; cb < d->c; cb++) {
        const cpu_product first = { d->s,
                                    d->c,
                                    (int)channels,
                                    false,
                                    { k->a + i * k->shape.a_row, k->shape.a_inner, d->s + lanes, 0 },
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
    const int threads = evo_blocked_threads(call);
    if (k.order == WEIGHT_FIRST) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t q = 0; q < k.d->c_z; q += lanes) weight_first_row(&k, i, q);
        return EVO_OK;
    }
    const int64_t panels = (tile->cols.end - tile->cols.begin + k.shape.step - 1) / k.shape.step;
    const int64_t step =
        k.shape.step % OUTER_ROWS == 0 && rows * panels >= 2 * OUTER_ROWS * threads ? OUTER_ROWS : k.isa->rows;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (int64_t i = 0; i < rows; i += step)
        for (int64_t panel = 0; panel < panels; panel++) outer_tile(&k, i, evo_blocked_least(step, rows - i), panel);
    return EVO_OK;
}

/* --- plan -------------------------------------------------------------------------------------- */

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    (void)device;
    const evo_opm_desc *d = &problem->desc.opm;
    const evo_tensor *const tensors[] = { &d->m, &d->residual, &d->out };
    return evo_blocked_supports(d->compute, tensors, 3, why);
}

/* By the products' flops alone, so that the order does not depend on threads or limits. */
static int64_t choose_order(const evo_opm_desc *d) {
    const double s = (double)d->s, n = (double)d->n, c = (double)d->c, c_z = (double)d->c_z;
    return s * c_z * (c + n) < n * c * (s + c_z) && d->s > 0 ? WEIGHT_FIRST : OUTER_FIRST;
}

static int64_t scratch_floats(const evo_opm_desc *d, const cpu_isa *isa, int64_t order) {
    const int64_t lanes = isa->lanes, project = (2 * d->c_m + d->c + 2) * lanes;
    const int64_t outer = (OUTER_ROWS + OUTER_ROWS * d->c_z + outer_width(d) * d->c + WRITE_CHANNELS) * lanes;
    const int64_t weight = (isa->rows + 2 * lanes + d->c * d->s) * lanes;
    const int64_t contraction = order == OUTER_FIRST ? outer : weight;
    return evo_blocked_round((project > contraction ? project : contraction) + 8 * EVO_BLOCKED_LINE, 1024);
}

static int64_t workspace_bytes(const evo_opm_desc *d, const cpu_isa *isa, int64_t order, int64_t rows, int64_t cols,
                               int64_t threads) {
    const int64_t lanes = isa->lanes;
    /* More than any part below; a and b are padded to panels. */
    if (evo_product(rows + cols + 2 * lanes, d->s + lanes, d->c + lanes + 1, 64) < 0) return INT64_MAX;
    const shape s = find_shape(d, isa, order, rows, cols);
    return evo_blocked_bytes(rows * s.a_row + s.col_panels * (s.b_panel + s.mask_panel) + s.row_panels * s.mask_panel +
                                 2 * EVO_BLOCKED_LINE,
                             threads, scratch_floats(d, isa, order));
}

/* Tiles of rows and columns shrink by halves, in whole panels, then the threads, until all fits the limit. */
static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_opm_desc *d = &problem->desc.opm;
    const cpu_isa *isa = ((const cpu_device *)device)->isa;
    const int64_t limit =
        d->workspace_limit && d->workspace_limit < INT64_MAX ? (int64_t)d->workspace_limit : INT64_MAX - 1;
    const int64_t order = choose_order(d), step = evo_blocked_step(isa, d->n);
    int64_t rows = d->n, cols = d->n, threads = evo_cpu_threads(device);
    while (workspace_bytes(d, isa, order, rows, cols, threads) > limit) {
        if (rows <= step && cols <= step) {
            threads = 1;
            break;
        }
        int64_t *larger = rows > cols ? &rows : &cols;
        *larger = evo_blocked_round((*larger + 1) / 2, step);
    }
    const int64_t bytes = workspace_bytes(d, isa, order, rows, cols, threads);
    const evo_status status =
        evo_blocked_settle(device, form, d->compute, bytes, threads, scratch_floats(d, isa, order), d->workspace_limit);
    if (status != EVO_OK) return status;
    cpu_parts parts = { NULL, 0 };
    map_weights(d, isa, &parts);
    form->pack_size = (size_t)parts.taken * sizeof(float);
    form->schedule = (evo_schedule){ 1, rows > 0 ? rows : 1, cols > 0 ? cols : 1, d->c };
    form->tuning[EVO_BLOCKED_FORM] = order;
    return EVO_OK;
}

const evo_kernel evo_cpu_opm_blocked = {
    .name = "blocked",
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack, [EVO_STAGE_OPM_PROJECT] = project, [EVO_STAGE_OPM_OUTER] = outer },
};
