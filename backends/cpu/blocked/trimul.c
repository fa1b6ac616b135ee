/*
 * trimul.c: the triangle multiplication in three passes over cache-sized tiles. `project` makes a and b channel-first, in
 * panels of lanes: [channel][panel of i or j][k][lane], so that `contract` reads both as they lie. A lane is the index
 * that stays (i of a, j of b), one pass over z serving both sides. t is [channel][i][j].
 */
#include "backends/cpu/blocked/blocked.h"

enum {
    PROJECT_CHANNELS = 16, /* of a and b at a time: their sums stay in the first cache */
    FINISH_CHANNELS = 32,  /* of the output */
    CONTRACT_COLUMNS = 384 /* of t that a thread goes through for one panel of rows after the other */
};

/* The packed weights; `sides` has a's projection and gate, b's projection and gate in turn, as gate_sides wants them. */
typedef struct weights {
    float *norm_in_weight, *norm_in_bias;
    float *sides, *sides_bias; /* left operand of 4 c rows, c_z deep */
    float *norm_out_weight, *norm_out_bias;
    float *out, *out_bias;           /* c_out rows, c deep */
    float *out_gate, *out_gate_bias; /* c_out rows, c_z deep */
} weights;

static weights map_weights(const evo_trimul_desc *d, cpu_numbers n, cpu_parts *parts) {
    weights w;
    w.norm_in_weight = evo_blocked_take(parts, d->c_z);
    w.norm_in_bias = evo_blocked_take(parts, d->c_z);
    w.sides = evo_blocked_take(parts, evo_blocked_matrix(n, 4 * d->c, d->c_z));
    w.sides_bias = evo_blocked_take(parts, 4 * d->c);
    w.norm_out_weight = evo_blocked_take(parts, d->c);
    w.norm_out_bias = evo_blocked_take(parts, d->c);
    w.out = evo_blocked_take(parts, evo_blocked_matrix(n, d->c_out, d->c));
    w.out_bias = evo_blocked_take(parts, d->c_out);
    w.out_gate = evo_blocked_take(parts, evo_blocked_matrix(n, d->c_out, d->c_z));
    w.out_gate_bias = evo_blocked_take(parts, d->c_out);
    return w;
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_trimul_weights *from = &call->args.trimul_weights;
    const cpu_numbers n = evo_blocked_numbers(call);
    cpu_parts parts = { call->pack, 0 };
    const weights to = map_weights(d, n, &parts);
    const evo_weight *const sides[] = { &from->a_proj_weight, &from->a_gate_weight, &from->b_proj_weight,
                                        &from->b_gate_weight };
    const evo_weight *const biases[] = { &from->a_proj_bias, &from->a_gate_bias, &from->b_proj_bias,
                                         &from->b_gate_bias };
    memset(call->pack, 0, call->form->pack_size);
    for (int s = 0; s < 4; s++) {
        evo_blocked_pack_matrix(n, sides[s], d->c, d->c_z, s, 4, to.sides);
        evo_blocked_pack_vector(biases[s], d->c, s, 4, to.sides_bias);
    }
    evo_blocked_pack_vector(&from->norm_in_weight, d->c_z, 0, 1, to.norm_in_weight);
    evo_blocked_pack_vector(&from->norm_in_bias, d->c_z, 0, 1, to.norm_in_bias);
    evo_blocked_pack_vector(&from->norm_out_weight, d->c, 0, 1, to.norm_out_weight);
    evo_blocked_pack_vector(&from->norm_out_bias, d->c, 0, 1, to.norm_out_bias);
    evo_blocked_pack_matrix(n, &from->out_weight, d->c_out, d->c, 0, 1, to.out);
    evo_blocked_pack_vector(&from->out_bias, d->c_out, 0, 1, to.out_bias);
    evo_blocked_pack_matrix(n, &from->out_gate_weight, d->c_out, d->c_z, 0, 1, to.out_gate);
    evo_blocked_pack_vector(&from->out_gate_bias, d->c_out, 0, 1, to.out_gate_bias);
    return EVO_OK;
}

/* How the workspace's buffers lie: strides in floats. A line more a channel keeps channels out of each other's cache sets. */
typedef struct shape {
    int64_t step; /* positions along N of a panel */
    int64_t panels;
    int64_t depth;              /* words of the sum's N terms */
    int64_t panel, side;        /* from a panel of a or b to the next, from a channel to the next */
    int64_t t_pitch, t_channel; /* from a row of t to the next, from a channel to the next */
    int64_t element;            /* from one of the batch to the next: a, b, t */
} shape;

static shape find_shape(const evo_trimul_desc *d, cpu_numbers n, int64_t rows, int64_t channels) {
    shape s;
    s.step = evo_blocked_step(n.isa, d->n);
    s.panels = (d->n + s.step - 1) / s.step;
    s.depth = evo_blocked_words(n, d->n);
    s.panel = evo_blocked_round(s.depth * n.isa->lanes, EVO_BLOCKED_LINE);
    s.side = s.panels * s.panel + EVO_BLOCKED_LINE;
    s.t_pitch = evo_blocked_round(d->n, EVO_BLOCKED_LINE); /* whole vectors, and lines, of any set */
    s.t_channel = rows * s.t_pitch + EVO_BLOCKED_LINE;
    s.element = 2 * channels * s.side + d->c * s.t_channel;
    return s;
}

/* All that the stages' inner functions need. */
typedef struct work {
    const evo_call *call;
    const evo_trimul_desc *d;
    const cpu_isa *isa;
    cpu_numbers numbers;
    const evo_tile *tile;
    weights w;
    shape shape;
    int64_t element; /* of the batch: these are its buffers */
    float *a, *b, *t;
} work;

static work begin(const evo_call *call, const evo_tile *tile) {
    work k = { .call = call, .d = &call->problem->desc.trimul, .isa = evo_blocked_isa(call), .tile = tile };
    cpu_parts parts = { call->pack, 0 };
    const evo_schedule *schedule = &call->form->schedule;
    k.numbers = evo_blocked_numbers(call);
    k.w = map_weights(k.d, k.numbers, &parts);
    k.shape = find_shape(k.d, k.numbers, schedule->rows, schedule->channels);
    k.element = tile->batch.begin;
    k.a = evo_blocked_buffers(call);
    k.b = k.a + schedule->channels * k.shape.side;
    k.t = k.b + schedule->channels * k.shape.side;
    return k;
}

/* `k`, which is of the tile's first element, for another. */
static work of_element(const work *k, int64_t element) {
    work other = *k;
    const int64_t distance = (element - k->element) * k->shape.element;
    other.element = element;
    other.a += distance;
    other.b += distance;
    other.t += distance;
    return other;
}

static int64_t position(const evo_tensor *layout, int64_t b, int64_t i, int64_t j) {
    return b * layout->strides[0] + i * layout->strides[1] + j * layout->strides[2];
}

static int lanes_from(const work *k, int64_t first) {
    return (int)evo_blocked_least(k->shape.step, k->d->n - first);
}

/* --- project ----------------------------------------------------------------------------------- */

/* Where lane 0 of a panel of positions lies: (i, k) of a tensor for outgoing edges, (k, i) for incoming ones. */
static int64_t first_lane(const work *k, const evo_tensor *layout, int64_t lane, int64_t sum_index) {
    return k->d->direction == EVO_OUTGOING ? position(layout, k->element, lane, sum_index)
                                           : position(layout, k->element, sum_index, lane);
}

/* LayerNorm_in(z) of a panel of positions as an operand, and their mask. */
static void project_input(const work *k, int64_t first, int64_t sum_index, float *buffer, float *x, float *mask) {
    const evo_trimul_desc *d = k->d;
    const int lanes = k->isa->lanes, along = d->direction == EVO_OUTGOING ? 1 : 2;
    const cpu_rows rows = { k->call->args.trimul.z, d->z.dtype,      first_lane(k, &d->z, first, sum_index),
                            d->z.strides[along],    d->z.strides[3], lanes_from(k, first) };
    evo_blocked_mask(&d->mask, k->call->args.trimul.mask, first_lane(k, &d->mask, first, sum_index),
                     d->mask.strides[along], rows.count, lanes, mask);
    k->isa->read(&rows, d->c_z, buffer, x);
    k->isa->normalise(x, lanes, rows.count, d->c_z, (float)d->layer_norm_eps, k->w.norm_in_weight, k->w.norm_in_bias,
                      x);
    evo_blocked_convert(k->numbers, x, d->c_z);
}

/* a and b of `channels` channels from `h` on, for one panel of inputs. */
static void project_channels(const work *k, int64_t h, int64_t channels, int count, const float *x, const float *mask,
                             float *sums, float *a, float *b, int64_t stride) {
    const int64_t c_z = k->d->c_z;
    const cpu_product product = { 4 * channels,
                                  evo_blocked_words(k->numbers, c_z),
                                  count,
                                  false,
                                  evo_blocked_operand(k->numbers, k->w.sides, c_z, 4 * h, 0),
                                  x,
                                  sums,
                                  k->isa->lanes };
    evo_blocked_multiply(k->numbers, &product);
    k->isa->gate_sides(sums, count, channels, k->w.sides_bias + 4 * h, mask, a, b, stride);
}

/* a and b of the tile's channels at one panel of positions and one word of the sum: one k, or two that become pairs. */
static void project_panel(const work *k, int64_t panel, int64_t word) {
    const int64_t lanes = k->isa->lanes, c_z = k->d->c_z, first = panel * k->shape.step, side = k->shape.side;
    const int64_t begin_at = k->tile->channels.begin, end_at = k->tile->channels.end;
    const int64_t index = k->numbers.pairs ? 2 * word : word;
    const int64_t terms = k->numbers.pairs ? evo_blocked_least(2, k->d->n - index) : 1;
    const int count = lanes_from(k, first);
    cpu_parts parts = evo_blocked_scratch(k->call);
    float *buffer = evo_blocked_take(&parts, c_z * lanes),
          *sums = evo_blocked_take(&parts, 4 * PROJECT_CHANNELS * lanes);
    float *both[2], *x[2], *mask[2]; /* both: [channel][two k][lane] of a and of b */
    for (int t = 0; t < 2; t++) {
        both[t] = evo_blocked_take(&parts, 2 * PROJECT_CHANNELS * lanes);
        x[t] = evo_blocked_take(&parts, c_z * lanes);
        mask[t] = evo_blocked_take(&parts, lanes);
    }
    for (int64_t t = 0; t < terms; t++) project_input(k, first, index + t, buffer, x[t], mask[t]);
    for (int64_t h = begin_at; h < end_at; h += PROJECT_CHANNELS) {
        const int64_t channels = evo_blocked_least(PROJECT_CHANNELS, end_at - h);
        const int64_t at = (h - begin_at) * side + panel * k->shape.panel + word * lanes;
        if (!k->numbers.pairs) {
            project_channels(k, h, channels, count, x[0], mask[0], sums, k->a + at, k->b + at, side);
            continue;
        }
        if (terms == 1)
            for (int t = 0; t < 2; t++) memset(both[t], 0, (size_t)(2 * channels * lanes) * sizeof(float));
        for (int64_t t = 0; t < terms; t++)
            project_channels(k, h, channels, count, x[t], mask[t], sums, both[0] + t * lanes, both[1] + t * lanes,
                             2 * lanes);
        k->isa->pair(both[0], 2 * channels, k->a + at, side);
        k->isa->pair(both[1], 2 * channels, k->b + at, side);
    }
}

/* A task is a panel at several k: whole cache lines of a and b, whatever the number of lanes. */
static evo_status project(const evo_call *call, const evo_tile *tile) {
    const work k = begin(call, tile);
    const int threads = evo_blocked_threads(call);
    const int64_t depth = k.shape.depth, elements = tile->batch.end - tile->batch.begin;
    const int64_t step = evo_blocked_lines(k.isa->lanes, elements * k.shape.panels * depth, threads);
    const int64_t steps = (depth + step - 1) / step;
#pragma omp parallel for collapse(3) schedule(static) num_threads(threads)
    for (int64_t e = tile->batch.begin; e < tile->batch.end; e++)
        for (int64_t panel = 0; panel < k.shape.panels; panel++)
            for (int64_t s = 0; s < steps; s++) {
                const work of = of_element(&k, e);
                for (int64_t w = s * step; w < evo_blocked_least((s + 1) * step, depth); w++)
                    project_panel(&of, panel, w);
            }
    return EVO_OK;
}

/* --- contract ---------------------------------------------------------------------------------- */

/*
 * a's rows from a panel's first on as a left operand: as the panel lies, or turned into rows of contiguous depth, once for
 * all the columns of a block.
 */
static cpu_operand left_operand(const work *k, const float *panel, float *turned) {
    const int64_t lanes = k->isa->lanes, depth = k->shape.depth;
    if (!evo_blocked_whole(k->numbers)) return (cpu_operand){ panel, lanes, lanes, 0 };
    k->isa->transpose(panel, lanes, depth, lanes, turned, depth);
    return (cpu_operand){ turned, 1, 1, depth };
}

/* A panel of rows and a block of columns of one channel of t. */
static void contract_block(const work *k, int64_t channel, int64_t row, evo_range cols) {
    const int64_t step = k->shape.step, panel = k->shape.panel;
    const float *a = k->a + (channel - k->tile->channels.begin) * k->shape.side;
    const float *b = k->b + (channel - k->tile->channels.begin) * k->shape.side;
    float *t = k->t + channel * k->shape.t_channel + (row - k->tile->rows.begin) * k->shape.t_pitch;
    cpu_product product = { .rows = evo_blocked_least(step, k->tile->rows.end - row),
                            .depth = k->shape.depth,
                            .a = left_operand(k, a + row / step * panel, evo_blocked_scratch(k->call).memory),
                            .c_stride = k->shape.t_pitch };
    for (int64_t j = cols.begin; j < cols.end; j += step) {
        product.count = lanes_from(k, j);
        product.b = b + j / step * panel;
        product.c = t + j;
        evo_blocked_multiply(k->numbers, &product);
    }
}

static evo_status contract(const evo_call *call, const evo_tile *tile) {
    const work k = begin(call, tile);
    const int64_t width = evo_blocked_round(CONTRACT_COLUMNS, k.shape.step);
#pragma omp parallel for collapse(4) schedule(static) num_threads(evo_blocked_threads(call))
    for (int64_t e = tile->batch.begin; e < tile->batch.end; e++)
        for (int64_t h = tile->channels.begin; h < tile->channels.end; h++)
            for (int64_t j = 0; j < k.d->n; j += width)
                for (int64_t i = tile->rows.begin; i < tile->rows.end; i += k.shape.step) {
                    const work of = of_element(&k, e);
                    contract_block(&of, h, i, (evo_range){ j, evo_blocked_least(j + width, k.d->n) });
                }
    return EVO_OK;
}

/* --- finish ------------------------------------------------------------------------------------ */

static cpu_rows panel_rows(const work *k, const evo_tensor *layout, const void *data, int64_t i, int64_t j) {
    return (cpu_rows){ data,
                       layout->dtype,
                       position(layout, k->element, i, j),
                       layout->strides[2],
                       layout->strides[3],
                       lanes_from(k, j) };
}

static void finish_product(const work *k, const float *matrix, int64_t terms, int64_t q, int64_t channels, int count,
                           const float *panel, float *sums) {
    const cpu_product product = { channels,
                                  evo_blocked_words(k->numbers, terms),
                                  count,
                                  false,
                                  evo_blocked_operand(k->numbers, matrix, terms, q, 0),
                                  panel,
                                  sums,
                                  k->isa->lanes };
    evo_blocked_multiply(k->numbers, &product);
}

static void finish_panel(const work *k, int64_t i, int64_t j) {
    const evo_trimul_desc *d = k->d;
    const evo_trimul_args *args = &k->call->args.trimul;
    const int lanes = k->isa->lanes;
    cpu_parts parts = evo_blocked_scratch(k->call);
    float *x = evo_blocked_take(&parts, d->c_z * lanes), *normed = evo_blocked_take(&parts, d->c * lanes);
    float *gate = evo_blocked_take(&parts, FINISH_CHANNELS * lanes),
          *y = evo_blocked_take(&parts, FINISH_CHANNELS * lanes);
    float *buffer = evo_blocked_take(&parts, 0);
    const cpu_rows z = panel_rows(k, &d->z, args->z, i, j);
    k->isa->read(&z, d->c_z, buffer, x);
    if (d->gate_input == EVO_GATE_NORMED)
        k->isa->normalise(x, lanes, z.count, d->c_z, (float)d->layer_norm_eps, k->w.norm_in_weight, k->w.norm_in_bias,
                          x);
    k->isa->normalise(k->t + (i - k->tile->rows.begin) * k->shape.t_pitch + j, k->shape.t_channel, z.count, d->c,
                      (float)d->layer_norm_eps, k->w.norm_out_weight, k->w.norm_out_bias, normed);
    evo_blocked_convert(k->numbers, x, d->c_z);
    evo_blocked_convert(k->numbers, normed, d->c);
    cpu_rows residual = panel_rows(k, &d->residual, args->residual, i, j),
             out = panel_rows(k, &d->out, args->out, i, j);
    for (int64_t q = 0; q < d->c_out; q += FINISH_CHANNELS) {
        const int64_t channels = evo_blocked_least(FINISH_CHANNELS, d->c_out - q);
        finish_product(k, k->w.out_gate, d->c_z, q, channels, z.count, x, gate);
        finish_product(k, k->w.out, d->c, q, channels, z.count, normed, y);
        k->isa->gate_output(gate, z.count, channels, k->w.out_gate_bias + q, k->w.out_bias + q, y);
        k->isa->write(y, channels, &residual, &out, buffer);
        residual.offset += channels * residual.channel;
        out.offset += channels * out.channel;
    }
}

static evo_status finish(const evo_call *call, const evo_tile *tile) {
    const work k = begin(call, tile);
#pragma omp parallel for collapse(3) schedule(static) num_threads(evo_blocked_threads(call))
    for (int64_t e = tile->batch.begin; e < tile->batch.end; e++)
        for (int64_t i = tile->rows.begin; i < tile->rows.end; i++)
            for (int64_t panel = 0; panel < k.shape.panels; panel++) {
                const work of = of_element(&k, e);
                finish_panel(&of, i, panel * k.shape.step);
            }
    return EVO_OK;
}

/* --- plan -------------------------------------------------------------------------------------- */

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    (void)device;
    const evo_trimul_desc *d = &problem->desc.trimul;
    const evo_tensor *const tensors[] = { &d->z, &d->residual, &d->out };
    return evo_blocked_supports(d->compute, tensors, 3, why);
}

static int64_t scratch_floats(const evo_trimul_desc *d, cpu_numbers n) {
    const int64_t lanes = n.isa->lanes, widest = d->c_z > FINISH_CHANNELS ? d->c_z : FINISH_CHANNELS;
    const int64_t project = 3 * d->c_z + 8 * PROJECT_CHANNELS + 2;
    const int64_t turned = evo_blocked_whole(n) ? evo_blocked_words(n, d->n) : 0;
    const int64_t finish = d->c_z + d->c + 2 * FINISH_CHANNELS + widest + 1;
    const int64_t most = project > finish ? project : finish;
    return evo_blocked_round((most > turned ? most : turned) * lanes + 10 * EVO_BLOCKED_LINE + widest, 1024);
}

static int64_t workspace_bytes(const evo_trimul_desc *d, cpu_numbers n, int64_t rows, int64_t channels, int64_t threads,
                               int64_t elements) {
    const int64_t pitch = d->n + 2 * n.isa->lanes;
    if (evo_product(pitch, pitch, d->c + channels + 1, 64) < 0) return INT64_MAX; /* more than any buffer below */
    return evo_blocked_bytes(elements * find_shape(d, n, rows, channels).element, threads, scratch_floats(d, n));
}

/* Halves a number of rows or channels, kept to whole panels of `multiple`. */
static int64_t halve(int64_t count, int64_t multiple) {
    return evo_blocked_least(evo_blocked_round((count + 1) / 2, multiple), count);
}

/*
 * Under a limit: t for fewer rows (no work is done twice); else with all rows fewer channels of a and b (LayerNorm is
 * repeated a group); else both, which projects each group again for each block of rows, and so must not be where the
 * output overwrites z; last, one thread.
 */
static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_trimul_desc *d = &problem->desc.trimul;
    const cpu_numbers n = evo_blocked_choose(device, d->compute);
    const int64_t limit =
        d->workspace_limit && d->workspace_limit < INT64_MAX ? (int64_t)d->workspace_limit : INT64_MAX - 1;
    const int64_t step = evo_blocked_step(n.isa, d->n), group = evo_blocked_rows(n) > 4 ? evo_blocked_rows(n) / 4 : 1;
    int64_t rows = d->n, channels = d->c, threads = evo_cpu_threads(device);
#define TOO_LARGE (workspace_bytes(d, n, rows, channels, threads, 1) > limit)
    while (TOO_LARGE && halve(rows, step) < rows) rows = halve(rows, step);
    if (TOO_LARGE) rows = d->n;
    while (TOO_LARGE && halve(channels, group) < channels) channels = halve(channels, group);
    while (TOO_LARGE && !(d->alias & EVO_ALIAS_INPUT) && halve(rows, step) < rows) rows = halve(rows, step);
    if (TOO_LARGE) threads = 1;
#undef TOO_LARGE
    int64_t elements = 1, bytes = workspace_bytes(d, n, rows, channels, threads, 1);
    if (bytes < limit) elements = evo_blocked_elements(d->batch, find_shape(d, n, rows, channels).element);
    if (workspace_bytes(d, n, rows, channels, threads, elements) > limit) elements = 1;
    bytes = workspace_bytes(d, n, rows, channels, threads, elements);
    const evo_status status =
        evo_blocked_settle(n, form, d->compute, bytes, threads, scratch_floats(d, n), d->workspace_limit);
    if (status != EVO_OK) return status;
    cpu_parts parts = { NULL, 0 };
    map_weights(d, n, &parts);
    form->pack_size = (size_t)parts.taken * sizeof(float);
    form->pack_layout = evo_blocked_layout(n);
    form->schedule = (evo_schedule){ elements, rows > 0 ? rows : 1, d->n, channels };
    return EVO_OK;
}

const evo_kernel evo_cpu_trimul_blocked = {
    .name = "blocked",
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack,
               [EVO_STAGE_TRIMUL_PROJECT] = project,
               [EVO_STAGE_TRIMUL_CONTRACT] = contract,
               [EVO_STAGE_TRIMUL_FINISH] = finish },
};
