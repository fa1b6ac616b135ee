/* trimul_tensor.c: tier `tensor` of the triangle multiplication: tiles, packed weights, buffers, launches of each stage. */
#include "backends/gpu/kernels/trimul/params.h"

#include "backends/gpu/launch.h"

enum {
    TILE = 16,              /* channels of a tile of matrix units */
    BATCH_BYTES = 64 << 20, /* batch entries go together while their buffers take no more than this */
    MOST_N = GPU_GRID_LIMIT
};

/* --- The tiles --- */

/* A block takes `positions` of at most c_z channels. Best first; one that does not fit the device's shared memory is left. */
typedef struct tiles {
    int positions, c_z;
    gpu_function function;
} tiles;

/* What the products are made of. */
typedef struct number {
    evo_compute compute;
    int32_t dtype; /* of operands; GPU_SPLIT for fp32 */
    int64_t size;  /* bytes */
    tiles project[3], finish[2];
    gpu_function contract[2];                /* blocks of GPU_TENSOR_TILE rows, of GPU_TENSOR_TALL */
    tiles whole_project[2], whole_finish[2]; /* blocks that keep all weights: rows of c_z numbers */
} number;

static const number numbers[] = {
    { EVO_COMPUTE_BF16,
      GPU_BF16,
      2,
      { { 128, 128, GPU_TRIMUL_PROJECT_BF16_128 },
        { 64, 256, GPU_TRIMUL_PROJECT_BF16_64 },
        { 32, 384, GPU_TRIMUL_PROJECT_BF16_32 } },
      { { 64, 128, GPU_TRIMUL_FINISH_BF16_64 }, { 32, 384, GPU_TRIMUL_FINISH_BF16_32 } },
      { GPU_TRIMUL_CONTRACT_BF16, GPU_TRIMUL_CONTRACT_TALL_BF16 },
      { { GPU_PROJECT_WHOLE_POSITIONS, 64, GPU_TRIMUL_PROJECT_WHOLE_BF16_64 },
        { GPU_PROJECT_WHOLE_POSITIONS, 128, GPU_TRIMUL_PROJECT_WHOLE_BF16_128 } },
      { { GPU_FINISH_WHOLE_LENGTH, 64, GPU_TRIMUL_FINISH_WHOLE_BF16_64 },
        { GPU_FINISH_WHOLE_LENGTH, 128, GPU_TRIMUL_FINISH_WHOLE_BF16_128 } } },
    { EVO_COMPUTE_FP16,
      GPU_FP16,
      2,
      { { 128, 128, GPU_TRIMUL_PROJECT_FP16_128 },
        { 64, 256, GPU_TRIMUL_PROJECT_FP16_64 },
        { 32, 384, GPU_TRIMUL_PROJECT_FP16_32 } },
      { { 64, 128, GPU_TRIMUL_FINISH_FP16_64 }, { 32, 384, GPU_TRIMUL_FINISH_FP16_32 } },
      { GPU_TRIMUL_CONTRACT_FP16, GPU_TRIMUL_CONTRACT_TALL_FP16 },
      { { GPU_PROJECT_WHOLE_POSITIONS, 64, GPU_TRIMUL_PROJECT_WHOLE_FP16_64 },
        { GPU_PROJECT_WHOLE_POSITIONS, 128, GPU_TRIMUL_PROJECT_WHOLE_FP16_128 } },
      { { GPU_FINISH_WHOLE_LENGTH, 64, GPU_TRIMUL_FINISH_WHOLE_FP16_64 },
        { GPU_FINISH_WHOLE_LENGTH, 128, GPU_TRIMUL_FINISH_WHOLE_FP16_128 } } },
    { EVO_COMPUTE_FP32,
      GPU_SPLIT,
      4,
      { { 64, 128, GPU_TRIMUL_PROJECT_SPLIT_64 }, { 32, 384, GPU_TRIMUL_PROJECT_SPLIT_32 } },
      { { 64, 128, GPU_TRIMUL_FINISH_SPLIT_64 }, { 32, 384, GPU_TRIMUL_FINISH_SPLIT_32 } },
      { GPU_TRIMUL_CONTRACT_SPLIT, GPU_TRIMUL_CONTRACT_TALL_SPLIT },
      { { 0, 0, GPU_FUNCTION_COUNT } },
      { { 0, 0, GPU_FUNCTION_COUNT } } },
};

/* tf32 is computed in fp16, which has its 11 bits, and by scales its range: at twice its rate, and half its bytes. */
static const number *number_of(const evo_trimul_desc *d) {
    const evo_compute compute = d->compute == EVO_COMPUTE_TF32 ? EVO_COMPUTE_FP16 : d->compute;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].compute == compute) return &numbers[i];
    return NULL;
}

/* Whether operands are halves, whose range needs scales. */
static bool is_scaled(const number *x) {
    return x->dtype == GPU_FP16 || x->dtype == GPU_SPLIT;
}

/* Numbers of a row of an operand over `channels`: whole chunks. */
static int64_t depth_of(const number *x, int64_t channels) {
    return gpu_round(channels, GPU_CHUNK_BYTES / x->size);
}

/* --- Shared memory, as the kernels lay it out --- */

static int64_t ring_bytes(const evo_device *device, int64_t stages, int64_t rows) {
    return (gpu_device_properties(device)->has_async_copies ? stages : 2) * rows * GPU_STAGE_PITCH;
}

static int64_t rows_bytes(const number *x, int64_t positions, int64_t channels) {
    return positions * (depth_of(x, channels) * x->size + GPU_ROW_PAD);
}

static int64_t project_shared(const evo_device *device, const number *x, const evo_trimul_desc *d, int64_t positions) {
    const int64_t staging = gpu_trimul_waves(device) * TILE * (positions / 2 * x->size + GPU_ROW_PAD);
    return rows_bytes(x, positions, d->c_z) + ring_bytes(device, GPU_TENSOR_STAGES, GPU_TENSOR_ROWS) + staging +
           2 * positions * (int64_t)sizeof(float); /* masks and exponents */
}

static int64_t finish_shared(const evo_device *device, const number *x, const evo_trimul_desc *d, int64_t positions) {
    const int64_t columns = GPU_TENSOR_COLUMNS / 4; /* of a wave */
    const int64_t staging = gpu_trimul_waves(device) * TILE * (columns * (int64_t)sizeof(float) + GPU_ROW_PAD);
    const int64_t stages = x->dtype == GPU_SPLIT ? GPU_SPLIT_STAGES : GPU_TENSOR_STAGES;
    return rows_bytes(x, positions, d->c) + rows_bytes(x, positions, d->c_z) +
           ring_bytes(device, stages, GPU_TENSOR_COLUMNS) + staging + positions * (int64_t)sizeof(float);
}

/* The tiles of project that a block has room for, best first; NULL after the last. */
static const tiles *next_project_tiles(const evo_device *device, const number *x, const evo_trimul_desc *d,
                                       const tiles *after) {
    for (const tiles *t = after ? after + 1 : x->project; t < x->project + 3 && t->positions; t++)
        if (d->c_z <= t->c_z &&
            (uint64_t)project_shared(device, x, d, t->positions) <= gpu_device_properties(device)->shared_memory_size)
            return t;
    return NULL;
}

/* The first of them whose blocks are more than half of the multiprocessors, `chunks` for the same positions; or else the last. */
static const tiles *project_tiles(const evo_device *device, const number *x, const evo_trimul_desc *d,
                                  int64_t positions, int64_t chunks) {
    const tiles *best = next_project_tiles(device, x, d, NULL);
    for (const tiles *t = best; t; t = next_project_tiles(device, x, d, t)) {
        best = t;
        if (gpu_blocks(positions, t->positions) * chunks >= (int64_t)gpu_device_properties(device)->compute_units)
            break;
    }
    return best;
}

/* For rows of which a tile would stand half empty, the next one. */
static const tiles *finish_tiles(const evo_device *device, const number *x, const evo_trimul_desc *d) {
    for (const tiles *t = d->n * 2 > x->finish->positions ? x->finish : x->finish + 1; t < x->finish + 2; t++)
        if (d->c_z <= t->c_z &&
            (uint64_t)finish_shared(device, x, d, t->positions) <= gpu_device_properties(device)->shared_memory_size)
            return t;
    return NULL;
}

static int64_t contract_shared(const evo_device *device, int64_t rows) {
    return ring_bytes(device, GPU_CONTRACT_STAGES, rows + GPU_TENSOR_TILE);
}

static bool has_tall(const evo_device *device) {
    const gpu_properties *chip = gpu_device_properties(device);
    return chip->has_async_copies && (uint64_t)contract_shared(device, GPU_TENSOR_TALL) <= chip->shared_memory_size;
}

/* Tall blocks of contract, unless rows past the last would cost more than a sixteenth. */
static bool is_tall(const evo_device *device, int64_t rows) {
    return has_tall(device) && gpu_round(rows, GPU_TENSOR_TALL) * 16 <= gpu_round(rows, GPU_TENSOR_TILE) * 17;
}

/* --- Blocks that keep all weights --- */

static int64_t whole_project_shared(const number *x, const tiles *t, int64_t group) {
    const int64_t row = t->c_z * x->size + GPU_ROW_PAD;
    return (4 * gpu_round(group, TILE) + GPU_PROJECT_WHOLE_WAVES * TILE) * row +
           GPU_PROJECT_WHOLE_WAVES * GPU_PROJECT_WHOLE_POSITIONS * (int64_t)sizeof(float);
}

static int64_t whole_finish_shared(const number *x, const tiles *t) {
    const int64_t row = t->c_z * x->size + GPU_ROW_PAD, out = GPU_TENSOR_COLUMNS + GPU_ROW_PAD;
    return 2 * GPU_TENSOR_COLUMNS * row + GPU_FINISH_WHOLE_WAVES * TILE * (row > out ? row : out) +
           GPU_FINISH_WHOLE_TILES * GPU_FINISH_WHOLE_LENGTH * (int64_t)sizeof(float);
}

/* The form of project that keeps the weights of `group` channels; NULL where a block has no room, or too few waves would work. */
static const tiles *whole_project(const evo_device *device, const number *x, const evo_trimul_desc *d, int64_t group,
                                  int64_t positions) {
    const gpu_properties *chip = gpu_device_properties(device);
    if (!chip->has_async_copies ||
        gpu_blocks(positions, GPU_PROJECT_WHOLE_POSITIONS) * 2 < (int64_t)chip->compute_units * GPU_PROJECT_WHOLE_WAVES)
        return NULL;
    for (const tiles *t = x->whole_project; t < x->whole_project + 2 && t->positions; t++)
        if (d->c_z <= t->c_z && (uint64_t)whole_project_shared(x, t, group) <= chip->shared_memory_size) return t;
    return NULL;
}

/* Likewise of finish, for `count` tiles of t of so many positions. */
static const tiles *whole_finish(const evo_device *device, const number *x, const evo_trimul_desc *d, int64_t count,
                                 int64_t positions) {
    const gpu_properties *chip = gpu_device_properties(device);
    if (!chip->has_async_copies || positions != GPU_FINISH_WHOLE_LENGTH || d->c_out > GPU_TENSOR_COLUMNS ||
        count < (int64_t)chip->compute_units * GPU_FINISH_WHOLE_TILES)
        return NULL;
    for (const tiles *t = x->whole_finish; t < x->whole_finish + 2 && t->positions; t++)
        if (d->c_z <= t->c_z && d->c <= t->c_z && (uint64_t)whole_finish_shared(x, t) <= chip->shared_memory_size)
            return t;
    return NULL;
}

/* --- Packed weights --- */

typedef struct weights {
    float *norm_in, *norm_out;     /* [norm_depth of c_z][2], of c [4] */
    unsigned char *proj;           /* [side][c16][2, a tile's channels and their gates][depth], and a block's rows */
    float *proj_table;             /* [side][c16][4] */
    float *store_scale;            /* [side][c16] */
    unsigned char *out, *out_gate; /* [out128][depth] each */
    float *out_table;              /* [out128][4] */
} weights;

static int64_t c16(const evo_trimul_desc *d) {
    return gpu_round(d->c, TILE);
}

static int64_t out128(const evo_trimul_desc *d) {
    return gpu_round(d->c_out, GPU_TENSOR_COLUMNS);
}

/* Of a LayerNorm's weight and bias: what any kernel reads, zeros from the channels on. */
static int64_t norm_depth(int64_t channels) {
    return gpu_round(channels, 128);
}

/* Maps the pack; returns its bytes. */
static int64_t map_weights(const number *x, const evo_trimul_desc *d, void *pack, weights *w) {
    const int64_t depth = depth_of(x, d->c_z), c_depth = depth_of(x, d->c), words = x->size == 2 ? 2 : 1;
    uintptr_t next = (uintptr_t)pack;
    w->norm_in = gpu_take(&next, gpu_bytes(norm_depth(d->c_z), 2, 1, 1));
    w->norm_out = gpu_take(&next, gpu_bytes(norm_depth(d->c), 4, 1, 1));
    w->proj = (unsigned char *)gpu_take(&next, gpu_bytes(4 * c16(d) + GPU_TENSOR_ROWS, depth / words, 1, 1));
    w->proj_table = gpu_take(&next, gpu_bytes(2 * c16(d), 4, 1, 1));
    w->store_scale = gpu_take(&next, gpu_bytes(2 * c16(d), 1, 1, 1));
    w->out = (unsigned char *)gpu_take(&next, gpu_bytes(out128(d), c_depth / words, 1, 1));
    w->out_gate = (unsigned char *)gpu_take(&next, gpu_bytes(out128(d), depth / words, 1, 1));
    w->out_table = gpu_take(&next, gpu_bytes(out128(d), 4, 1, 1));
    return (int64_t)(next - (uintptr_t)pack);
}

static gpu_pack_norm_item norm_item(const evo_call *call, const number *x, const evo_weight *weight,
                                    const evo_weight *bias, int64_t count, int32_t stride, float *target,
                                    const float *store_scale) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    return (gpu_pack_norm_item){
        .weight = gpu_weight_of(weight),
        .bias = gpu_weight_of(bias),
        .target = target,
        .store_scale = { store_scale, store_scale ? store_scale + c16(d) : NULL },
        .channels = (int32_t)count,
        .width = (int32_t)norm_depth(count),
        .dtype = x->dtype,
        .stride = stride,
    };
}

/* A matrix, its bias, and where they go. */
typedef struct matrix {
    const evo_weight *weight, *bias, *norm_weight, *norm_bias;
    int64_t outs, ins, rows; /* rows: packed ones, with those of zeros */
    void *target;
    float *table, *store_scale;
    int32_t tile_rows;
    bool normed;
} matrix;

static gpu_pack_rows_item rows_item(const number *x, const matrix *m) {
    return (gpu_pack_rows_item){
        .source = gpu_weight_of(m->weight),
        .bias = gpu_weight_of(m->bias),
        .norm_weight = gpu_weight_of(m->norm_weight),
        .norm_bias = gpu_weight_of(m->norm_bias),
        .target = m->target,
        .table = m->table,
        .store_scale = m->store_scale,
        .ins = m->ins,
        .depth = depth_of(x, m->ins),
        .outs = (int32_t)m->outs,
        .rows = (int32_t)m->rows,
        .tile_rows = m->tile_rows,
        .dtype = x->dtype,
        .normed = m->normed,
    };
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_trimul_weights *from = &call->args.trimul_weights;
    const number *x = number_of(d);
    weights to;
    map_weights(x, d, call->pack, &to);
    const int64_t c = d->c, k = d->c_z, rows = c16(d), row = depth_of(x, k) * x->size;
    unsigned char *b = to.proj + 2 * rows * row;
    float *b_table = to.proj_table + 4 * rows, *b_store = to.store_scale + rows;
    const evo_weight *gamma = &from->norm_in_weight, *beta = &from->norm_in_bias;
    const bool normed = d->gate_input == EVO_GATE_NORMED;
    const matrix all[GPU_PACK_MATRICES] = {
        { &from->a_proj_weight, &from->a_proj_bias, gamma, beta, c, k, rows, to.proj, to.proj_table, to.store_scale,
          2 * TILE, true },
        { &from->a_gate_weight, &from->a_gate_bias, gamma, beta, c, k, rows, to.proj + TILE * row, to.proj_table + 2,
          NULL, 2 * TILE, true },
        { &from->b_proj_weight, &from->b_proj_bias, gamma, beta, c, k, rows, b, b_table, b_store, 2 * TILE, true },
        { &from->b_gate_weight, &from->b_gate_bias, gamma, beta, c, k, rows, b + TILE * row, b_table + 2, NULL,
          2 * TILE, true },
        { &from->out_weight, &from->out_bias, &from->norm_out_weight, &from->norm_out_bias, d->c_out, c, out128(d),
          to.out, to.out_table, NULL, TILE, true },
        { &from->out_gate_weight, &from->out_gate_bias, gamma, beta, d->c_out, k, out128(d), to.out_gate,
          to.out_table + 2, NULL, TILE, normed },
    };
    gpu_pack_rows_item rows_of[GPU_PACK_MATRICES];
    for (int i = 0; i < GPU_PACK_MATRICES; i++) rows_of[i] = rows_item(x, &all[i]);
    const evo_status status = gpu_pack_matrices(call, rows_of, GPU_PACK_MATRICES);
    if (status != EVO_OK) return status;
    /* After the matrices, whose store scales the second item reads. */
    gpu_pack_norm_params norms = {
        .items = { norm_item(call, x, gamma, beta, k, 2, to.norm_in, NULL),
                   norm_item(call, x, &from->norm_out_weight, &from->norm_out_bias, c, 4, to.norm_out,
                             to.store_scale) },
        .count = 2,
    };
    norms.items[1].first_block = (int32_t)gpu_blocks(norms.items[0].width, GPU_PACK_THREADS);
    const int64_t blocks = norms.items[1].first_block + gpu_blocks(norms.items[1].width, GPU_PACK_THREADS);
    return gpu_launch(call, GPU_TENSOR_PACK_NORM, blocks, 1, 1, &norms, sizeof norms);
}

/* --- The form --- */

/*
 * Workspace: a and b [batch][channels of a group][N][pitch], t in tiles [c][positions] for each row and tile of columns, if it
 * does not lie in the output, and where halves meet a mask, its rows' exponents.
 */
typedef struct buffers {
    unsigned char *a, *b, *t;
    int32_t *mask_exponents;
} buffers;

/*
 * Numbers of a row of a and b: whole memory lines if that costs at most a sixteenth, or else whole 16 bytes, of split numbers whole
 * chunks.
 */
static int64_t row_pitch(const number *x, const evo_trimul_desc *d) {
    const int64_t least = x->dtype == GPU_SPLIT ? 16 : 8;
    for (int64_t whole = 64; whole > least; whole /= 2)
        if (gpu_round(d->n, whole) * 16 <= d->n * 17) return gpu_round(d->n, whole);
    return gpu_round(d->n, least);
}

static bool is_dense(const evo_trimul_desc *d, const evo_tensor *out) {
    const int64_t dense[] = { d->n * d->n * d->c_out, d->n * d->c_out, d->c_out, 1 };
    const int64_t extent[] = { d->batch, d->n, d->n, d->c_out };
    for (int i = 0; i < 4; i++)
        if (extent[i] > 1 && out->strides[i] != dense[i]) return false;
    return true;
}

/* t lies in the output where each of its tiles [c][positions] fits in what the same positions take there. */
static bool is_t_in_output(const number *x, const evo_trimul_desc *d) {
    const int64_t element = (int64_t)evo_dtype_size(d->out.dtype);
    return d->alias == EVO_ALIAS_NONE && is_dense(d, &d->out) && d->c * x->size <= d->c_out * element &&
           d->c_out * element % 16 == 0 && d->out.alignment >= 16;
}

static gpu_t_layout t_layout(const number *x, const evo_trimul_desc *d, int64_t positions, int64_t rows) {
    const int64_t n = d->n > 0 ? d->n : 1, count = gpu_blocks(n, positions), rest = n - (count - 1) * positions;
    gpu_t_layout t = { .length = (int32_t)positions, .tiles = (int32_t)count };
    int64_t last = gpu_round(rest, 8);
    if (is_t_in_output(x, d)) {
        const int64_t channels = d->c_out * (int64_t)evo_dtype_size(d->out.dtype) / x->size; /* of t's numbers */
        if (d->c * last > channels * rest) last = rest;
        t.tile = positions * channels;
        t.row = n * channels;
        t.batch = n * t.row;
    } else {
        t.tile = positions * d->c;
        t.row = (count - 1) * t.tile + d->c * last;
        t.batch = rows * t.row;
    }
    t.last_length = (int32_t)last;
    return t;
}

static int64_t bytes_of(int64_t a, int64_t b, int64_t c, int64_t size) {
    const int64_t numbers_ = evo_product(a, b, c, size);
    return numbers_ < 0 ? -1 : gpu_bytes(gpu_blocks(numbers_, (int64_t)sizeof(float)), 1, 1, 1);
}

static int64_t side_bytes(const number *x, const evo_trimul_desc *d, const evo_schedule *step) {
    return bytes_of(step->batch * step->channels, d->n, row_pitch(x, d), x->size);
}

static int64_t t_bytes(const number *x, const evo_trimul_desc *d, const evo_schedule *step, int64_t positions) {
    if (is_t_in_output(x, d)) return 0;
    return bytes_of(step->batch, step->rows, t_layout(x, d, positions, step->rows).row, x->size);
}

static bool has_mask_exponents(const number *x, const evo_trimul_desc *d) {
    return is_scaled(x) && d->mask.dtype != EVO_NONE;
}

static int64_t form_bytes(const number *x, const evo_trimul_desc *d, const evo_schedule *step, int64_t positions) {
    const int64_t sides = gpu_sum(side_bytes(x, d, step), side_bytes(x, d, step));
    const int64_t exponents = has_mask_exponents(x, d) ? gpu_bytes(step->batch, d->n, 1, 1) : 0;
    return gpu_sum(gpu_sum(sides, t_bytes(x, d, step, positions)), exponents);
}

static buffers map_buffers(const evo_call *call, const number *x) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_schedule *step = &call->form->schedule;
    uintptr_t next = (uintptr_t)call->workspace;
    buffers to;
    to.a = (unsigned char *)gpu_take(&next, side_bytes(x, d, step));
    to.b = (unsigned char *)gpu_take(&next, side_bytes(x, d, step));
    to.t = (unsigned char *)gpu_take(&next, t_bytes(x, d, step, finish_tiles(call->device, x, d)->positions));
    to.mask_exponents = has_mask_exponents(x, d) ? (int32_t *)gpu_take(&next, 0) : NULL;
    return to;
}

/* What decides how much memory a form takes. */
typedef struct sizes {
    const number *number;
    const evo_trimul_desc *desc;
    int64_t positions; /* of a tile of t */
} sizes;

static int64_t bytes_at(const sizes *s, const evo_schedule *step) {
    return form_bytes(s->number, s->desc, step, s->positions);
}

static bool fits(const sizes *s, const evo_schedule *step) {
    const int64_t bytes = bytes_at(s, step);
    return bytes >= 0 && (!s->desc->workspace_limit || (uint64_t)bytes <= s->desc->workspace_limit);
}

/*
 * Batch entries first, then t's rows where it takes workspace (no work is done twice), then with all rows the channels (the
 * LayerNorm is repeated a group), then rows too, which projects each group once a block: not where finished rows may lie over
 * z, which a later block's projection reads.
 */
static void shrink(const sizes *s, evo_schedule *step) {
    const evo_trimul_desc *d = s->desc;
    const bool rows_count = !is_t_in_output(s->number, d);
    const int64_t all_rows = step->rows, all_channels = step->channels;
    if (!fits(s, step)) step->batch = 1;
    while (rows_count && step->rows > 1 && !fits(s, step)) step->rows = (step->rows + 1) / 2;
    if (fits(s, step)) return;
    const int64_t least = bytes_at(s, step);
    step->rows = all_rows;
    while (step->channels > TILE && !fits(s, step)) step->channels = gpu_round((step->channels + 1) / 2, TILE);
    if (fits(s, step)) return;
    if (!(d->alias & EVO_ALIAS_INPUT)) {
        while (rows_count && step->rows > 1 && !fits(s, step)) step->rows = (step->rows + 1) / 2;
    } else if (bytes_at(s, step) > least) { /* the least that can be told */
        step->rows = 1;
        step->channels = all_channels;
    }
}

/* What some step of the plan may take, by how many positions it has. */
static evo_status load_others(evo_device *device, const number *x, const evo_trimul_desc *d) {
    const tiles *whole[] = { whole_project(device, x, d, TILE, INT64_MAX / 8),
                             whole_finish(device, x, d, INT64_MAX / 8, GPU_FINISH_WHOLE_LENGTH) };
    evo_status status = EVO_OK;
    for (int i = 0; i < 2 && status == EVO_OK; i++)
        if (whole[i]) status = gpu_load(device, &whole[i]->function, 1);
    for (const tiles *t = NULL; status == EVO_OK && (t = next_project_tiles(device, x, d, t));)
        status = gpu_load(device, &t->function, 1);
    return status;
}

static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_trimul_desc *d = &problem->desc.trimul;
    const number *x = number_of(d);
    const tiles *finish = finish_tiles(device, x, d);
    const sizes s = { x, d, finish->positions };
    evo_schedule *step = &form->schedule;
    const int64_t n = d->n > 0 ? d->n : 1;
    *step = (evo_schedule){ 1, n, n, d->c };
    const int64_t one = bytes_at(&s, step);
    if (one < 0) return gpu_settle(form, -1, 0);
    if (d->batch > 1) step->batch = one <= BATCH_BYTES / 2 && one > 0 ? BATCH_BYTES / one : 1;
    if (step->batch > d->batch) step->batch = d->batch > 0 ? d->batch : 1;
    if (step->batch > GPU_GRID_LIMIT) step->batch = GPU_GRID_LIMIT;
    shrink(&s, step);
    const evo_status status = gpu_settle(form, bytes_at(&s, step), d->workspace_limit);
    if (status != EVO_OK) return status;
    weights none;
    form->compute = d->compute;
    form->pack_layout = (uint32_t)(GPU_LAYOUT_TENSOR + 2 * x->dtype + (d->gate_input == EVO_GATE_RAW));
    form->pack_size = (size_t)map_weights(x, d, NULL, &none);
    const gpu_function all[] = { GPU_TENSOR_PACK_ROWS, GPU_TENSOR_PACK_NORM, GPU_TENSOR_MASK_ROWS,
                                 finish->function,     x->contract[0],       x->contract[has_tall(device)] };
    const evo_status loaded = gpu_load(device, all, (int)(sizeof all / sizeof *all));
    return loaded == EVO_OK ? load_others(device, x, d) : loaded;
}

/* --- Stages --- */

/* a_ik is read at (i, k) outgoing and at (k, i) incoming: matrices are [i][k] in both directions. */
static gpu_tensor by_i_and_k(const evo_trimul_desc *d, const evo_tensor *tensor, const void *data) {
    gpu_tensor view = gpu_tensor_of(tensor, data);
    if (d->direction == EVO_INCOMING) {
        view.strides[1] = tensor->strides[2];
        view.strides[2] = tensor->strides[1];
    }
    return view;
}

/* Blocks in x that stay for all tiles of a batch entry, of which one takes `together` at a time. */
static int64_t blocks_of(const evo_call *call, int64_t tiles_, int64_t together, int64_t per_unit, int64_t batch) {
    const int64_t most = gpu_blocks(per_unit * (int64_t)gpu_device_properties(call->device)->compute_units, batch);
    const int64_t wanted = gpu_blocks(tiles_, together);
    return wanted < most ? wanted : most;
}

static evo_status project(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const number *x = number_of(d);
    const int64_t group = tile->channels.end - tile->channels.begin, pitch = row_pitch(x, d);
    const int64_t per_side = gpu_blocks(2 * group, GPU_TENSOR_ROWS), chunks = 2 * per_side;
    const int64_t batch = tile->batch.end - tile->batch.begin;
    const tiles *shape = project_tiles(call->device, x, d, d->n * pitch * batch, chunks);
    const int64_t blocks = gpu_blocks(d->n * pitch, shape->positions);
    const int64_t wanted = gpu_blocks(2 * (int64_t)gpu_device_properties(call->device)->compute_units, blocks * batch);
    const int64_t per_block = gpu_blocks(chunks, wanted < chunks ? wanted : chunks);
    const tiles *whole = whole_project(call->device, x, d, group, d->n * pitch * batch);
    const int64_t whole_blocks =
        whole ? blocks_of(call, gpu_blocks(d->n * pitch, whole->positions), GPU_PROJECT_WHOLE_WAVES, 1, batch) : 0;
    const buffers to = map_buffers(call, x);
    weights w;
    map_weights(x, d, call->pack, &w);
    const gpu_tensor_project_params params = {
        .source = by_i_and_k(d, &d->z, call->args.trimul.z),
        .mask = by_i_and_k(d, &d->mask, call->args.trimul.mask),
        .norm = w.norm_in,
        .weight = w.proj,
        .table = w.proj_table,
        .mask_exponents = to.mask_exponents,
        .target = { to.a, to.b },
        .target_batch = call->form->schedule.channels * d->n * pitch,
        .channel_stride = d->n * pitch,
        .positions = d->n * pitch,
        .batch_begin = tile->batch.begin,
        .n = (int32_t)d->n,
        .pitch = (int32_t)pitch,
        .channels = (int32_t)d->c_z,
        .depth = (int32_t)depth_of(x, d->c_z),
        .side_rows = (int32_t)(2 * c16(d)),
        .group_begin = (int32_t)tile->channels.begin,
        .group = (int32_t)group,
        .chunks_per_side = (int32_t)per_side,
        .chunks_per_block = (int32_t)per_block,
        .whole_rows = (int32_t)(2 * gpu_round(group, TILE)),
        .blocks = (int32_t)whole_blocks,
        .eps = (float)d->layer_norm_eps,
        .finds_exponents = to.mask_exponents && !whole && d->n <= GPU_MASK_ROW,
    };
    if (to.mask_exponents && !params.finds_exponents) {
        const evo_status status = gpu_find_mask_exponents(call, &params.mask, tile->batch.begin, tile->batch.end, d->n,
                                                          d->n, to.mask_exponents);
        if (status != EVO_OK) return status;
    }
    if (whole)
        return gpu_launch_shared(call, whole->function, whole_blocks, 1, batch,
                                 (size_t)whole_project_shared(x, whole, group), &params, sizeof params);
    return gpu_launch_shared(call, shape->function, blocks, gpu_blocks(chunks, per_block), batch,
                             (size_t)project_shared(call->device, x, d, shape->positions), &params, sizeof params);
}

/* t's first number of a launch, in the output or in the workspace. */
static void *t_of(const evo_call *call, const number *x, const evo_tile *tile, const gpu_t_layout *layout,
                  const buffers *from) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    if (!is_t_in_output(x, d)) return from->t;
    return (unsigned char *)call->args.trimul.out +
           (tile->batch.begin * layout->batch + tile->rows.begin * layout->row) * x->size;
}

/* Sums of fp16 numbers below 2^15 are below n * 2^30, stored below 2^15. */
static float t_scale(const number *x, const evo_trimul_desc *d) {
    float scale = x->dtype == GPU_FP16 ? 0x1p-15f : 1.0f;
    for (int64_t most = 1; x->dtype == GPU_FP16 && most < d->n; most *= 2) scale /= 2;
    return scale;
}

static evo_status contract(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const number *x = number_of(d);
    const int64_t rows = tile->rows.end - tile->rows.begin, pitch = row_pitch(x, d);
    const buffers w = map_buffers(call, x);
    const gpu_t_layout layout = t_layout(x, d, finish_tiles(call->device, x, d)->positions, call->form->schedule.rows);
    const gpu_tensor_contract_params params = {
        .a = w.a + tile->rows.begin * pitch * x->size,
        .b = w.b,
        .t = t_of(call, x, tile, &layout, &w),
        .layout = layout,
        .side_batch = call->form->schedule.channels * d->n * pitch,
        .side_channel = d->n * pitch,
        .n = (int32_t)d->n,
        .pitch = (int32_t)pitch,
        .rows = (int32_t)rows,
        .channel = (int32_t)tile->channels.begin,
        .scale = t_scale(x, d),
    };
    const bool tall = is_tall(call->device, rows);
    const int64_t block_rows = tall ? GPU_TENSOR_TALL : GPU_TENSOR_TILE;
    return gpu_launch_shared(call, x->contract[tall], gpu_blocks(rows, block_rows) * gpu_blocks(d->n, GPU_TENSOR_TILE),
                             tile->channels.end - tile->channels.begin, tile->batch.end - tile->batch.begin,
                             (size_t)contract_shared(call->device, block_rows), &params, sizeof params);
}

static evo_status finish(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const number *x = number_of(d);
    const tiles *shape = finish_tiles(call->device, x, d);
    const gpu_t_layout layout = t_layout(x, d, shape->positions, call->form->schedule.rows);
    const int64_t rows = tile->rows.end - tile->rows.begin, batch = tile->batch.end - tile->batch.begin;
    const tiles *whole = whole_finish(call->device, x, d, rows * layout.tiles * batch, shape->positions);
    const int64_t whole_blocks =
        whole ? blocks_of(call, rows * layout.tiles, GPU_FINISH_WHOLE_TILES, GPU_FINISH_WHOLE_BLOCKS, batch) : 0;
    const buffers from = map_buffers(call, x);
    weights w;
    map_weights(x, d, call->pack, &w);
    const gpu_tensor_finish_params params = {
        .z = gpu_tensor_of(&d->z, call->args.trimul.z),
        .residual = gpu_tensor_of(&d->residual, call->args.trimul.residual),
        .out = gpu_tensor_of(&d->out, call->args.trimul.out),
        .t = t_of(call, x, tile, &layout, &from),
        .layout = layout,
        .norm_t = w.norm_out,
        .norm_z = w.norm_in,
        .weight = w.out,
        .gate_weight = w.out_gate,
        .table = w.out_table,
        .mask_exponents = from.mask_exponents,
        .row_begin = tile->rows.begin,
        .batch_begin = tile->batch.begin,
        .n = (int32_t)d->n,
        .c_z = (int32_t)d->c_z,
        .depth = (int32_t)depth_of(x, d->c_z),
        .c = (int32_t)d->c,
        .c_depth = (int32_t)depth_of(x, d->c),
        .c_out = (int32_t)d->c_out,
        .raw_gate = d->gate_input == EVO_GATE_RAW,
        .scaled = is_scaled(x) && d->gate_input == EVO_GATE_RAW,
        .rows = (int32_t)rows,
        .blocks = (int32_t)whole_blocks,
        .eps = (float)d->layer_norm_eps,
        .t_scale = 1.0f / t_scale(x, d),
    };
    if (whole)
        return gpu_launch_shared(call, whole->function, whole_blocks, 1, batch, (size_t)whole_finish_shared(x, whole),
                                 &params, sizeof params);
    return gpu_launch_shared(call, shape->function, layout.tiles, rows, batch,
                             (size_t)finish_shared(call->device, x, d, shape->positions), &params, sizeof params);
}

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    const evo_trimul_desc *d = &problem->desc.trimul;
    const evo_tensor *tensors[] = { &d->z, &d->residual, &d->out };
    const char *names[] = { "z", "residual", "out" };
    const gpu_properties *chip = gpu_device_properties(device);
    const number *x = number_of(d);
    if (!x) {
        evo_text_add(why, "computes fp32, tf32, bf16 and fp16, the descriptor asks for %s",
                     evo_compute_name(d->compute));
        return false;
    }
    if (!gpu_portable_takes(d->compute, tensors, names, 3, why)) return false;
    if (d->c < 8 || d->c_z < 8) {
        evo_text_add(why, "takes c and c_z from 8 on: a LayerNorm of fewer channels magnifies roundings");
        return false;
    }
    if (d->n > MOST_N || d->c > GPU_TENSOR_HIDDEN || d->c_z > 384 || d->c_out >= 1 << 28) {
        evo_text_add(why, "takes n up to %d, c up to %d, c_z up to 384, c_out below 2^28", MOST_N, GPU_TENSOR_HIDDEN);
        return false;
    }
    if (!next_project_tiles(device, x, d, NULL) || !finish_tiles(device, x, d)) {
        evo_text_add(why, "c_z %lld and c %lld want more shared memory than the %zu bytes of %s", (long long)d->c_z,
                     (long long)d->c, chip->shared_memory_size, chip->arch);
        return false;
    }
    return true;
}

const evo_kernel gpu_trimul_tensor = {
    .name = "tensor",
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack,
               [EVO_STAGE_TRIMUL_PROJECT] = project,
               [EVO_STAGE_TRIMUL_CONTRACT] = contract,
               [EVO_STAGE_TRIMUL_FINISH] = finish },
};
