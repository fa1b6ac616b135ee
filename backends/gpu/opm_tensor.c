/*
 * opm_tensor.c: tier `tensor` of the outer product mean, on matrix units: which order and tiles, the buffers, and the
 * launches of each stage.
 */
#include <math.h>

#include "backends/gpu/kernels/opm/params.h"
#include "backends/gpu/opm_tensor.h"

/* form->order */
enum {
    OUTER_FIRST,
    WEIGHT_FIRST /* u = W_o a first */
};

/* form->tuning */
enum {
    U_ROWS,  /* rows i whose u is held at a time */
    U_BATCH, /* and batch entries */
    SHAPE,   /* outer first: index of a tile_form */
    CHUNK,   /* and numbers of S that b's tile holds */
    BESIDE,  /* GPU_OPM_BESIDE */
    TUNING_COUNT
};
_Static_assert((int)BESIDE == (int)GPU_OPM_BESIDE, "tier hopper sets it");
_Static_assert((int)TUNING_COUNT == (int)GPU_OPM_TENSOR_TUNING, "tier hopper's own come behind");

enum {
    BATCH_BYTES = 64 << 20, /* batch entries go together while a and b take no more than this */
    U_BYTES = 32 << 20,
    LEAST_ROWS = 16, /* of a tile: fewer would save little, as a block takes 64 x 4 pairs */
    LEAST_COLS = 4,
    MOST_HIDDEN = 128,  /* c */
    MOST_SPLIT = 64,    /* likewise in fp32 */
    MOST_CHANNELS = 384 /* c_m */
};

/* --- Numbers of products --- */

/* What a block of an outer kernel has: see GPU_OPM_SMALL. */
typedef struct tile_form {
    gpu_function kernel;
    int rows, cols, sides, stages, slices;
} tile_form;

enum {
    SMALL,
    LARGE, /* for much shared memory */
    TALL,  /* likewise: as many pairs of half as many columns, so that b's tile holds more of S */
    SHAPES
};

typedef struct number_type {
    evo_compute compute;
    int32_t dtype; /* of operands; GPU_SPLIT for fp32 */
    int64_t bytes;
    int64_t each;            /* rows of a and b are rounded up to so many numbers */
    gpu_function project[3]; /* for 64, 256, 384 channels c_m */
    tile_form outer[SHAPES]; /* no rows: there is none */
    bool weighs;             /* has weight first: */
    gpu_function weigh, combine;
} number_type;

static const number_type number_types[] = {
    { EVO_COMPUTE_BF16,
      GPU_BF16,
      2,
      8,
      { GPU_OPM_PROJECT_BF16_64, GPU_OPM_PROJECT_BF16_256, GPU_OPM_PROJECT_BF16_384 },
      { { GPU_OPM_OUTER_SMALL_BF16, GPU_OPM_SMALL }, { GPU_OPM_OUTER_BF16, GPU_OPM_LARGE } },
      true,
      GPU_OPM_WEIGH_BF16,
      GPU_OPM_COMBINE_BF16 },
    { EVO_COMPUTE_FP16,
      GPU_FP16,
      2,
      8,
      { GPU_OPM_PROJECT_FP16_64, GPU_OPM_PROJECT_FP16_256, GPU_OPM_PROJECT_FP16_384 },
      { { GPU_OPM_OUTER_SMALL_FP16, GPU_OPM_SMALL }, { GPU_OPM_OUTER_FP16, GPU_OPM_LARGE } },
      true,
      GPU_OPM_WEIGH_FP16,
      GPU_OPM_COMBINE_FP16 },
    { EVO_COMPUTE_FP32,
      GPU_SPLIT,
      4,
      16,
      { GPU_OPM_PROJECT_SPLIT_64, GPU_OPM_PROJECT_SPLIT_256, GPU_OPM_PROJECT_SPLIT_384 },
      { { GPU_OPM_OUTER_SMALL_SPLIT, GPU_OPM_SMALL_SPLIT },
        { GPU_OPM_OUTER_SPLIT, GPU_OPM_LARGE_SPLIT },
        { GPU_OPM_OUTER_TALL_SPLIT, GPU_OPM_TALL_SPLIT } },
      .weighs = false },
};

/* NULL: not a mode of this tier. fp16 has tf32's bits, and scales for its range, at twice the rate. */
static const number_type *type_of(const evo_opm_desc *d) {
    const evo_compute compute = d->compute == EVO_COMPUTE_TF32 ? EVO_COMPUTE_FP16 : d->compute;
    for (size_t t = 0; t < sizeof number_types / sizeof *number_types; t++)
        if (number_types[t].compute == compute) return &number_types[t];
    return NULL;
}

static int64_t each(const evo_opm_desc *d) {
    return type_of(d)->each;
}

static int64_t s_pad(const evo_opm_desc *d) {
    return gpu_round(d->s, each(d));
}

static int64_t c_pad(const evo_opm_desc *d) {
    return gpu_round(d->c, each(d));
}

static int64_t z_rows(const evo_opm_desc *d) {
    return gpu_round(d->c_z, 16);
}

static int64_t depth(const evo_opm_desc *d) {
    return gpu_round(d->c_m, GPU_CHUNK_BYTES / type_of(d)->bytes);
}

static int64_t norm_depth(const evo_opm_desc *d) {
    return gpu_round(d->c_m, GPU_NORM_GROUP);
}

static int64_t hidden(const evo_opm_desc *d) {
    return gpu_round(d->c, GPU_OPM_TENSOR_HIDDEN);
}

static int64_t project_rows(const evo_opm_desc *d) {
    return gpu_round(2 * d->c, 64);
}

/* gpu_bytes counts floats; a size that cannot be counted is -1. */
static int64_t operand_bytes(const evo_opm_desc *d, int64_t a, int64_t b, int64_t c, int64_t e) {
    int64_t bytes = evo_product(a, b, c, e);
    if (bytes < 0 || !evo_mul(bytes, type_of(d)->bytes, &bytes) || !evo_add(bytes, GPU_ALIGN - 1, &bytes)) return -1;
    return bytes / GPU_ALIGN * GPU_ALIGN;
}

/* --- The pack --- */

typedef struct weights {
    float *norm;           /* [norm_depth][2] */
    float *table;          /* [project_rows][4] */
    float *scales;         /* [project_rows] */
    void *project;         /* [project_rows][depth] */
    void *outer;           /* [blocks of 32 c_b][c_a][z_rows][32]; tier hopper: c_a rounded up to 2, two side by side */
    void *weigh;           /* [z_rows * c][c_pad] */
    float *bias, *z_scale; /* [z_rows] */
} weights;

/* Maps the pack; returns its bytes. */
static int64_t map_weights(const evo_opm_desc *d, void *pack, weights *w) {
    uintptr_t next = (uintptr_t)pack;
    w->norm = gpu_take(&next, gpu_bytes(norm_depth(d), 2, 1, 1));
    w->table = gpu_take(&next, gpu_bytes(project_rows(d), 4, 1, 1));
    w->scales = gpu_take(&next, gpu_bytes(project_rows(d), 1, 1, 1));
    w->project = gpu_take(&next, operand_bytes(d, project_rows(d), depth(d), 1, 1));
    w->outer = gpu_take(&next, operand_bytes(d, hidden(d), gpu_round(d->c, 2), z_rows(d), 1));
    w->weigh = type_of(d)->weighs ? gpu_take(&next, operand_bytes(d, z_rows(d), d->c, c_pad(d), 1)) : NULL;
    w->bias = gpu_take(&next, gpu_bytes(z_rows(d), 1, 1, 1));
    w->z_scale = gpu_take(&next, gpu_bytes(z_rows(d), 1, 1, 1));
    return (int64_t)(next - (uintptr_t)pack);
}

/* Rows of one side from row `first` on, and zeros up to `last`. */
static gpu_pack_rows_item side_rows(const evo_call *call, const weights *to, const evo_weight *weight,
                                    const evo_weight *bias, int64_t first, int64_t last) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const number_type *type = type_of(d);
    return (gpu_pack_rows_item){
        .source = gpu_weight_of(weight),
        .bias = gpu_weight_of(bias),
        .norm_weight = gpu_weight_of(&call->args.opm_weights.norm_weight),
        .norm_bias = gpu_weight_of(&call->args.opm_weights.norm_bias),
        .target = (unsigned char *)to->project + first * depth(d) * type->bytes,
        .table = to->table + 4 * first,
        .store_scale = to->scales + first,
        .ins = d->c_m,
        .depth = depth(d),
        .outs = (int32_t)d->c,
        .rows = (int32_t)(last - first),
        .tile_rows = 16,
        .dtype = type->dtype,
        .normed = 1,
    };
}

/*
 * Split numbers: matrix units cut off each sum of 16 of k, which is 2^-24.5 of it on average and always towards 0. Here a sum of
 * such sums is a factor of the next one, four times in all (a, b, o, z), and no LayerNorm follows; so z gets most of it back.
 */
static const float cut_off = 1.0f + 0x1p-23f;

static evo_status pack_out(const evo_call *call, const weights *to) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_opm_weights *from = &call->args.opm_weights;
    const gpu_opm_tensor_pack_params params = {
        .source = gpu_weight_of(&from->out_weight),
        .bias = gpu_weight_of(&from->out_bias),
        .scales = to->scales,
        .outer = to->outer,
        .weigh = to->weigh,
        .z_scale = to->z_scale,
        .bias_target = to->bias,
        .c = (int32_t)d->c,
        .c_pad = (int32_t)c_pad(d),
        .c_z = (int32_t)d->c_z,
        .z_rows = (int32_t)z_rows(d),
        .dtype = type_of(d)->dtype,
        .rest = type_of(d)->dtype == GPU_FP16 ? ldexpf(1.0f, 2 * GPU_OPM_TENSOR_SHIFT) : cut_off,
        .together = call->form->pack_layout >= GPU_LAYOUT_HOPPER ? 2 : 1,
    };
    return gpu_launch(call, GPU_OPM_PACK_OUT, z_rows(d), 1, 1, &params, sizeof params);
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_opm_weights *from = &call->args.opm_weights;
    weights to;
    map_weights(d, call->pack, &to);
    const gpu_pack_norm_params norm = {
        .items = { {
            .weight = gpu_weight_of(&from->norm_weight),
            .bias = gpu_weight_of(&from->norm_bias),
            .target = to.norm,
            .channels = (int32_t)d->c_m,
            .width = (int32_t)norm_depth(d),
            .dtype = type_of(d)->dtype,
            .stride = 2,
        } },
        .count = 1,
    };
    const gpu_pack_rows_item sides[] = {
        side_rows(call, &to, &from->a_weight, &from->a_bias, 0, d->c),
        side_rows(call, &to, &from->b_weight, &from->b_bias, d->c, project_rows(d)),
    };
    evo_status status =
        gpu_launch(call, GPU_TENSOR_PACK_NORM, gpu_blocks(norm_depth(d), GPU_PACK_THREADS), 1, 1, &norm, sizeof norm);
    if (status == EVO_OK) status = gpu_pack_matrices(call, sides, 2);
    return status == EVO_OK ? pack_out(call, &to) : status;
}

/* --- The form --- */

/* Workspace: a and b of the schedule's batch entries, then the exponents of their masks, then u. */
typedef struct buffers {
    unsigned char *a, *b, *u;
    int32_t *mask_exponents;  /* [batch][n], of split numbers with a mask */
    int64_t a_batch, b_batch; /* numbers of one batch entry */
} buffers;

static int64_t a_width(const evo_opm_desc *d, const evo_form *form) {
    return form->order == WEIGHT_FIRST ? c_pad(d) : d->c;
}

/* Masks of any size are taken in fp32: each residue's are divided by a power of two, which is found first. */
static bool finds_masks(const evo_opm_desc *d) {
    return type_of(d)->dtype == GPU_SPLIT && d->mask.dtype != EVO_NONE;
}

static int64_t exponents_bytes(const evo_opm_desc *d, const evo_form *form) {
    return finds_masks(d) ? gpu_bytes(form->schedule.batch, d->n, 1, 1) : 0;
}

static int64_t form_bytes(const evo_opm_desc *d, const evo_form *form) {
    const evo_schedule *step = &form->schedule;
    int64_t sides = gpu_sum(operand_bytes(d, step->batch, s_pad(d), step->rows, a_width(d, form)),
                            operand_bytes(d, step->batch, s_pad(d), step->cols, d->c));
    sides = gpu_sum(sides, exponents_bytes(d, form));
    if (form->order == OUTER_FIRST) return gpu_sum(sides, evo_product(form->tuning[BESIDE], step->batch, 1, 1));
    const int64_t row = evo_product(z_rows(d), d->c, s_pad(d), 1);
    return gpu_sum(sides, operand_bytes(d, row, form->tuning[U_ROWS], form->tuning[U_BATCH], 1));
}

static buffers map_buffers(const evo_call *call) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_schedule *step = &call->form->schedule;
    uintptr_t next = (uintptr_t)call->workspace;
    buffers to;
    to.a_batch = s_pad(d) * step->rows * a_width(d, call->form);
    to.b_batch = s_pad(d) * step->cols * d->c;
    to.a = (unsigned char *)gpu_take(&next, operand_bytes(d, step->batch, to.a_batch, 1, 1));
    to.b = (unsigned char *)gpu_take(&next, operand_bytes(d, step->batch, to.b_batch, 1, 1));
    to.mask_exponents = finds_masks(d) ? (int32_t *)gpu_take(&next, exponents_bytes(d, call->form)) : NULL;
    to.u = (unsigned char *)next;
    return to;
}

static int64_t fixed_shared(const number_type *type, const tile_form *tile) {
    return GPU_OPM_TENSOR_FIXED(tile->rows, tile->sides, tile->stages, tile->slices, type->bytes);
}

/* Bytes of S that a row of b's tile may have, a multiple of a step; 0: not even one. */
static int64_t chunk_bytes(const evo_device *device, const number_type *type, const tile_form *tile) {
    if (tile->rows == 0) return 0;
    const int64_t room = (int64_t)gpu_device_properties(device)->shared_memory_size - fixed_shared(type, tile);
    const int64_t row = room / (tile->cols * GPU_OPM_TENSOR_HIDDEN) - GPU_OPM_TENSOR_PAD;
    return row < 0 ? 0 : row / GPU_OPM_TENSOR_STEP * GPU_OPM_TENSOR_STEP;
}

static int64_t count_tiles(const evo_opm_desc *d, const tile_form *tile, int64_t batch, int64_t rows, int64_t cols) {
    return batch * gpu_blocks(rows, tile->rows) * gpu_blocks(cols, tile->cols) *
           gpu_blocks(d->c_z, GPU_OPM_TENSOR_COLUMNS);
}

/*
 * How many of so many tiles a block does alone. A round of blocks that leaves half of the device idle becomes one of half tiles, which take
 * 0.6 of the time.
 */
static const double half_round = 0.6;

static int64_t count_whole(const evo_device *device, int64_t tiles) {
    const int64_t units = gpu_device_properties(device)->compute_units, rest = tiles % units;
    return 2 * rest <= units ? tiles - rest : tiles;
}

static double count_rounds(const evo_device *device, int64_t tiles) {
    const int64_t units = gpu_device_properties(device)->compute_units, whole = count_whole(device, tiles);
    return (double)gpu_blocks(whole, units) + (whole < tiles ? half_round : 0.0);
}

/*
 * The cost of both orders in multiply-adds of `outer` on the whole device, with the padding of their tiles and blocks that leave
 * units idle. u goes through memory and a launch has its own cost: on an H200 a number of u written and read takes about as long
 * as 400 multiply-adds, a launch as 3e8, a multiply-add of weight first as 1.5.
 */
static const double number_cost = 400.0, launch_cost = 3e8, weight_first_rate = 1.5;

static double outer_first_products(const evo_device *device, const evo_opm_desc *d, const evo_form *form) {
    const number_type *type = type_of(d);
    const tile_form *tile = &type->outer[form->tuning[SHAPE]];
    const double pairs = tile->rows * tile->cols, s = (double)gpu_round(s_pad(d), GPU_OPM_TENSOR_STEP / type->bytes);
    const double units = (double)gpu_device_properties(device)->compute_units,
                 rounds = count_rounds(device, count_tiles(d, tile, d->batch, d->n, d->n));
    const double chunks = (double)gpu_blocks(s_pad(d), form->tuning[CHUNK]);
    const double columns = d->c_z <= GPU_OPM_TENSOR_COLUMNS / 2 ? GPU_OPM_TENSOR_COLUMNS / 2 : GPU_OPM_TENSOR_COLUMNS;
    return rounds * units * pairs * (double)d->c * (double)hidden(d) * (s + columns * chunks);
}

/*
 * Forms for much shared memory where their chunks are long enough that projecting o once a chunk is cheap: half a kilobyte; of two
 * such forms that which multiplies less.
 */
static void choose_tile(const evo_device *device, const evo_opm_desc *d, evo_form *form) {
    const number_type *type = type_of(d);
    const int64_t wanted = gpu_round(s_pad(d) * type->bytes, GPU_OPM_TENSOR_STEP), least = 4 * GPU_OPM_TENSOR_STEP;
    const bool has_large = gpu_device_properties(device)->has_async_copies;
    for (int shape = SMALL; shape < SHAPES; shape++) {
        const tile_form *tile = &type->outer[shape];
        const int64_t most = chunk_bytes(device, type, tile), bytes = wanted < most ? wanted : most;
        if (shape != SMALL && (!has_large || most == 0 || most < (wanted < least ? wanted : least))) continue;
        evo_form own = *form;
        own.tuning[SHAPE] = shape;
        own.tuning[CHUNK] = (wanted == 0 ? GPU_OPM_TENSOR_STEP : bytes) / type->bytes;
        if (shape < TALL || outer_first_products(device, d, &own) < outer_first_products(device, d, form)) *form = own;
    }
}

static double outer_first_cost(const evo_device *device, const evo_opm_desc *d, const evo_form *form) {
    return outer_first_products(device, d, form) + 2 * launch_cost;
}

/*
 * Whether tier `portable` takes less time in fp32, which has one order here. In the same units a multiply-add of split numbers costs
 * 2.7, one of that tier 8: so the faster one is taken at 20 shapes with S of 4 to 64 and N of 16 to 128 on an H200.
 */
static const double split_rate = 2.7, portable_rate = 8.0;

static bool portable_is_faster(const evo_device *device, const evo_opm_desc *d) {
    evo_form form = { .order = OUTER_FIRST };
    choose_tile(device, d, &form);
    return portable_rate * gpu_opm_portable_cost(device, d) < split_rate * outer_first_products(device, d, &form);
}

static double weight_first_cost(const evo_opm_desc *d, const evo_form *form) {
    const double n = (double)d->n, s = (double)s_pad(d), c = (double)d->c, z = (double)z_rows(d);
    const double u = n * s * c * z, weigh = u * (double)gpu_round(d->c, 32);
    const double combine =
        n * (double)gpu_round(d->n, GPU_OPM_COMBINE_ROWS) * (double)gpu_round(d->c_z, GPU_OPM_COMBINE_COLS) * c * s;
    const double blocks =
        (double)(gpu_blocks(d->n, form->tuning[U_ROWS]) * gpu_blocks(d->batch, form->tuning[U_BATCH]));
    return (double)d->batch * (weight_first_rate * (weigh + combine) + u * number_cost) +
           (1.0 + 2.0 * blocks) * launch_cost;
}

static bool fits(const evo_opm_desc *d, const evo_form *form) {
    const int64_t bytes = form_bytes(d, form);
    return bytes >= 0 && (!d->workspace_limit || (uint64_t)bytes <= d->workspace_limit);
}

/* Batch entries first, then u's rows, then the other order, which has no u, if it may, then tiles of rows and columns. */
static void shrink(const evo_opm_desc *d, bool may_reorder, evo_form *form) {
    evo_schedule *step = &form->schedule;
    int64_t *u_rows = &form->tuning[U_ROWS];
    if (!fits(d, form)) step->batch = form->tuning[U_BATCH] = 1;
    while (form->order == WEIGHT_FIRST && *u_rows > 1 && !fits(d, form)) *u_rows = (*u_rows + 1) / 2;
    if (!fits(d, form) && may_reorder) form->order = OUTER_FIRST;
    while (!fits(d, form) && (step->rows > LEAST_ROWS || step->cols > LEAST_COLS)) {
        int64_t *larger = step->rows > LEAST_ROWS && step->rows > step->cols ? &step->rows : &step->cols;
        *larger = (*larger + 1) / 2;
    }
}

/* How many batch entries a schedule takes, and rows and entries of u. */
static void choose_blocks(const evo_opm_desc *d, evo_form *form) {
    const int64_t n = d->n > 0 ? d->n : 1, batch = d->batch > 0 ? d->batch : 1;
    form->schedule = (evo_schedule){ 1, n, n, d->c };
    const int64_t one = gpu_sum(operand_bytes(d, s_pad(d), n, d->c, 1), operand_bytes(d, s_pad(d), n, c_pad(d), 1));
    int64_t together = one > 0 ? BATCH_BYTES / one : one == 0 ? batch : 1;
    if (together < 1) together = 1;
    if (together > GPU_GRID_LIMIT) together = GPU_GRID_LIMIT;
    form->schedule.batch = together < batch ? together : batch;
    const int64_t row = operand_bytes(d, z_rows(d), d->c, s_pad(d), 1);
    const int64_t rows = row > 0 ? U_BYTES / row : 0, most = n < GPU_GRID_LIMIT ? n : GPU_GRID_LIMIT;
    form->tuning[U_ROWS] = rows < most ? rows : most;
    form->tuning[U_BATCH] = rows / n < 1 ? 1 : rows / n < form->schedule.batch ? rows / n : form->schedule.batch;
}

static gpu_function project_function(const evo_opm_desc *d) {
    return type_of(d)->project[d->c_m <= 64 ? 0 : d->c_m <= 256 ? 1 : 2];
}

static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_opm_desc *d = &problem->desc.opm;
    const number_type *type = type_of(d);
    choose_blocks(d, form);
    choose_tile(device, d, form);
    /* A normaliser of 0 must divide each o, which only the other order has. */
    const bool divides_by_zero = d->divide == EVO_DIVIDE_BEFORE && d->count_min <= 0.0;
    const bool can = type->weighs && d->s > 0 && form->tuning[U_ROWS] > 0 && !divides_by_zero;
    const int cheaper =
        can && weight_first_cost(d, form) < outer_first_cost(device, d, form) ? WEIGHT_FIRST : OUTER_FIRST;
    form->order = problem->order ? problem->order - 1 : cheaper;
    if (form->order == WEIGHT_FIRST && !can)
        return evo_fail(EVO_ERROR_UNSUPPORTED, "weight first %s",
                        !type->weighs     ? "is not for compute fp32"
                        : divides_by_zero ? "cannot divide by a count of 0: it needs count_min above 0"
                                          : "needs S of at least 1, and a row of u within 32 MiB");
    shrink(d, problem->order == 0, form);
    const evo_status status = gpu_settle(form, form_bytes(d, form), d->workspace_limit);
    if (status != EVO_OK) return status;
    weights none;
    form->compute = d->compute;
    form->pack_layout = (uint32_t)(GPU_LAYOUT_TENSOR + 2 * type->dtype);
    form->pack_size = (size_t)map_weights(d, NULL, &none);
    const gpu_function all[] = { GPU_TENSOR_PACK_ROWS,
                                 GPU_TENSOR_PACK_NORM,
                                 GPU_OPM_PACK_OUT,
                                 project_function(d),
                                 type->outer[form->tuning[SHAPE]].kernel,
                                 GPU_TENSOR_MASK_ROWS,
                                 type->weigh,
                                 type->combine };
    return gpu_load(device, all, (int)(sizeof all / sizeof *all) - (type->weighs ? 0 : 2));
}

/* --- Stages --- */

/* fp16: a and b are smaller by a power of two that holds the promised mask. */
static int mask_exponent(const evo_opm_desc *d) {
    return type_of(d)->dtype == GPU_FP16 ? gpu_mask_exponent(d->mask_max, 30) : 0;
}

float gpu_opm_store_of(const evo_call *call) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    return type_of(d)->dtype == GPU_FP16 ? ldexpf(1.0f, -GPU_OPM_TENSOR_SHIFT - mask_exponent(d)) : 1.0f;
}

const float *gpu_opm_scales_of(const evo_call *call) {
    weights w;
    map_weights(&call->problem->desc.opm, call->pack, &w);
    return w.scales;
}

const void *gpu_opm_weigh_of(const evo_call *call) {
    weights w;
    map_weights(&call->problem->desc.opm, call->pack, &w);
    return w.weigh;
}

/* Sides first ... last - 1 (a is 0, b is 1) of the residues of `range`. */
static evo_status project_sides(const evo_call *call, const evo_tile *tile, evo_range range, int first, int last) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const number_type *type = type_of(d);
    const int64_t rows = range.end - range.begin, positions = rows * s_pad(d);
    const bool weight_first = call->form->order == WEIGHT_FIRST;
    const int64_t together = type->bytes == 4 ? GPU_OPM_TENSOR_POSITIONS / 2 : GPU_OPM_TENSOR_POSITIONS;
    const buffers to = map_buffers(call);
    weights w;
    map_weights(d, call->pack, &w);
    const gpu_opm_tensor_project_params params = {
        .source = gpu_tensor_of(&d->m, call->args.opm.m),
        .mask = gpu_tensor_of(&d->mask, call->args.opm.mask),
        .norm = w.norm,
        .weight = w.project,
        .table = w.table,
        .target = { to.a, to.b },
        .target_batch = { to.a_batch, to.b_batch },
        .channel_stride = { weight_first ? 1 : positions, weight_first ? s_pad(d) : positions },
        .row_stride = { weight_first ? s_pad(d) * c_pad(d) : s_pad(d), weight_first ? s_pad(d) * d->c : s_pad(d) },
        .s_stride = { weight_first ? c_pad(d) : 1, 1 },
        .positions = positions,
        .batch_begin = tile->batch.begin,
        .inner_begin = range.begin,
        .s = (int32_t)d->s,
        .s_pad = (int32_t)s_pad(d),
        .c = (int32_t)d->c,
        .c_m = (int32_t)d->c_m,
        .depth = (int32_t)depth(d),
        .first_channel = (int32_t)(first * d->c),
        .last_channel = (int32_t)(last * d->c),
        .pad = (int32_t)(c_pad(d) - d->c),
        .mask_b = d->mask_sides == EVO_MASK_BOTH,
        .eps = (float)d->layer_norm_eps,
        .store = gpu_opm_store_of(call),
        .mask_exponents = to.mask_exponents ? to.mask_exponents + range.begin : NULL,
        .n = d->n,
    };
    const int64_t shared = GPU_OPM_TENSOR_PROJECT_SHARED(together, depth(d) * type->bytes, type->bytes);
    return gpu_launch_shared(call, project_function(d), gpu_blocks(positions, together), 1,
                             tile->batch.end - tile->batch.begin, (size_t)shared, &params, sizeof params);
}

static evo_status project(const evo_call *call, const evo_tile *tile) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    if (finds_masks(d)) {
        gpu_tensor mask = gpu_tensor_of(&d->mask, call->args.opm.mask); /* [batch, s, n] as [batch, n, s] */
        const int64_t along_s = mask.strides[1];
        mask.strides[1] = mask.strides[2];
        mask.strides[2] = along_s;
        const evo_status status = gpu_find_mask_exponents(call, &mask, tile->batch.begin, tile->batch.end, d->n, d->s,
                                                          map_buffers(call).mask_exponents);
        if (status != EVO_OK) return status;
    }
    return gpu_opm_project(call, tile, project_sides);
}

gpu_opm_tensor_outer_params gpu_opm_outer_of(const evo_call *call, const evo_tile *tile) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const int64_t rows = tile->rows.end - tile->rows.begin, cols = tile->cols.end - tile->cols.begin;
    const buffers from = map_buffers(call);
    weights w;
    map_weights(d, call->pack, &w);
    return (gpu_opm_tensor_outer_params){
        .output = gpu_opm_output_of(call, tile->batch.begin, w.bias),
        .a = from.a,
        .b = from.b,
        .weight = w.outer,
        .z_scale = w.z_scale,
        .a_batch = from.a_batch,
        .b_batch = from.b_batch,
        .a_channel = rows * s_pad(d),
        .b_channel = cols * s_pad(d),
        .row_begin = tile->rows.begin,
        .col_begin = tile->cols.begin,
        .row_count = (int32_t)rows,
        .col_count = (int32_t)cols,
        .c = (int32_t)d->c,
        .s_pad = (int32_t)s_pad(d),
        .chunk = (int32_t)call->form->tuning[CHUNK],
        .z_rows = (int32_t)z_rows(d),
        .mask_b = d->mask_sides == EVO_MASK_BOTH,
        .mask_exponent = mask_exponent(d),
        .mask_exponents = from.mask_exponents,
        .n = d->n,
    };
}

static evo_status outer_first(const evo_call *call, const evo_tile *tile) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const number_type *type = type_of(d);
    const tile_form *form = &type->outer[call->form->tuning[SHAPE]];
    gpu_opm_tensor_outer_params params = gpu_opm_outer_of(call, tile);
    const int64_t shared = fixed_shared(type, form) + GPU_OPM_TENSOR_TILE(form->cols, params.chunk * type->bytes),
                  tiles = count_tiles(d, form, tile->batch.end - tile->batch.begin, params.row_count, params.col_count),
                  whole = count_whole(call->device, tiles);
    params.whole = (uint32_t)whole;
    return gpu_launch_shared(call, form->kernel, whole + 2 * (tiles - whole), 1, 1, (size_t)shared, &params,
                             sizeof params);
}

/* u of some rows of some batch entries, then their outputs. */
static evo_status weigh_rows(const evo_call *call, const evo_tile *tile, const weights *w, evo_range batch,
                             int64_t first, int64_t count) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const number_type *type = type_of(d);
    const int64_t cols = tile->cols.end - tile->cols.begin, entries = batch.end - batch.begin,
                  before = batch.begin - tile->batch.begin, rows = z_rows(d) * d->c;
    const buffers from = map_buffers(call);
    const gpu_opm_tensor_weigh_params weigh = {
        .a = from.a + (before * from.a_batch + first * s_pad(d) * c_pad(d)) * type->bytes,
        .weight = w->weigh,
        .u = from.u,
        .a_batch = from.a_batch,
        .u_batch = count * rows * s_pad(d),
        .rows = (int32_t)rows,
        .positions = (int32_t)(count * s_pad(d)),
        .s_pad = (int32_t)s_pad(d),
        .c_pad = (int32_t)c_pad(d),
    };
    const evo_status status = gpu_launch_shared(call, type->weigh, gpu_blocks(rows, GPU_OPM_WEIGH_ROWS),
                                                gpu_blocks(weigh.positions, GPU_OPM_WEIGH_COLS), entries,
                                                GPU_OPM_WEIGH_SHARED, &weigh, sizeof weigh);
    if (status != EVO_OK) return status;
    const gpu_opm_tensor_combine_params combine = {
        .output = gpu_opm_output_of(call, batch.begin, w->bias),
        .b = from.b + before * from.b_batch * type->bytes,
        .u = from.u,
        .z_scale = w->z_scale,
        .b_batch = from.b_batch,
        .u_batch = weigh.u_batch,
        .row_begin = tile->rows.begin + first,
        .col_begin = tile->cols.begin,
        .row_count = (int32_t)count,
        .col_count = (int32_t)cols,
        .depth = (int32_t)(d->c * s_pad(d)),
        .z_rows = (int32_t)z_rows(d),
        .scale = ldexpf(1.0f, 2 * mask_exponent(d)),
    };
    return gpu_launch_shared(call, type->combine,
                             gpu_blocks(cols, GPU_OPM_COMBINE_ROWS) * gpu_blocks(z_rows(d), GPU_OPM_COMBINE_COLS),
                             count, entries, GPU_OPM_COMBINE_SHARED, &combine, sizeof combine);
}

static evo_status outer(const evo_call *call, const evo_tile *tile) {
    const int64_t rows = tile->rows.end - tile->rows.begin, step = call->form->tuning[U_ROWS],
                  entries = call->form->tuning[U_BATCH];
    evo_status status = EVO_OK;
    weights w;
    if (call->form->order == OUTER_FIRST) return outer_first(call, tile);
    map_weights(&call->problem->desc.opm, call->pack, &w);
    for (int64_t b = tile->batch.begin; b < tile->batch.end; b += entries) {
        const evo_range batch = { b, tile->batch.end - b < entries ? tile->batch.end : b + entries };
        for (int64_t i = 0; i < rows && status == EVO_OK; i += step)
            status = weigh_rows(call, tile, &w, batch, i, rows - i < step ? rows - i : step);
    }
    return status;
}

/* --- What it takes --- */

static bool takes_sizes(const evo_device *device, const evo_opm_desc *d, evo_text *why) {
    const number_type *type = type_of(d);
    if (d->c > MOST_HIDDEN || d->c_m > MOST_CHANNELS) {
        evo_text_add(why, "takes c to %d and c_m to %d, not %lld and %lld", MOST_HIDDEN, MOST_CHANNELS, (long long)d->c,
                     (long long)d->c_m);
        return false;
    }
    if (type->dtype == GPU_SPLIT && d->c > MOST_SPLIT) {
        evo_text_add(why, "takes c to %d in fp32, as sums over c * c lose digits, not %lld", MOST_SPLIT,
                     (long long)d->c);
        return false;
    }
    /* Kernels count bytes of a row of these in 32 bits. */
    const int64_t combined = evo_product(d->s < INT64_MAX - 8 ? s_pad(d) : d->s, d->c, 1, 1);
    if (d->n >= 1 << 30 || d->c_z >= 1 << 20 || combined < 0 || combined >= 1 << 28) {
        evo_text_add(why, "takes n below 2^30, c_z below 2^20 and s * c below 2^28");
        return false;
    }
    const size_t shared = gpu_device_properties(device)->shared_memory_size;
    const int64_t positions = type->bytes == 4 ? GPU_OPM_TENSOR_POSITIONS / 2 : GPU_OPM_TENSOR_POSITIONS;
    const int64_t wanted = GPU_OPM_TENSOR_PROJECT_SHARED(positions, depth(d) * type->bytes, type->bytes);
    if ((uint64_t)wanted > shared || chunk_bytes(device, type, &type->outer[SMALL]) <= 0) {
        evo_text_add(why, "needs %lld bytes of shared memory a block, the device has %zu", (long long)wanted, shared);
        return false;
    }
    return true;
}

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    const evo_opm_desc *d = &problem->desc.opm;
    const evo_tensor *tensors[] = { &d->m, &d->residual, &d->out };
    const char *names[] = { "m", "residual", "out" };
    if (!type_of(d)) {
        evo_text_add(why, "computes fp32, tf32, bf16 and fp16, the descriptor asks for %s",
                     evo_compute_name(d->compute));
        return false;
    }
    if (type_of(d)->dtype == GPU_SPLIT && gpu_device_properties(device)->flushes_halves) {
        evo_text_add(why, "has no fp32 on %s, whose matrix units take small halves of numbers as 0",
                     gpu_device_properties(device)->arch);
        return false;
    }
    if (!gpu_portable_takes(d->compute, tensors, names, 3, why) || !takes_sizes(device, d, why)) return false;
    if (d->compute != EVO_COMPUTE_FP32 || problem->named || !portable_is_faster(device, d)) return true;
    evo_text_add(why, "is slower than tier portable for so few sequences or residues");
    return false;
}

static const char *const orders[] = { "tensor/outer-first", "tensor/weight-first", NULL };

const evo_kernel gpu_opm_tensor = {
    .name = "tensor",
    .orders = orders,
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack, [EVO_STAGE_OPM_PROJECT] = project, [EVO_STAGE_OPM_OUTER] = outer },
};
