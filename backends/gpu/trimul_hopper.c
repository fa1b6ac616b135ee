/*
 * trimul_hopper.c: tier `hopper` of the triangle multiplication: what it takes, its buffers, and the launches of each stage.
 * Tensor maps are made at execute, on the stack: they are parameters of the kernels.
 */
#include <math.h>

#include "backends/gpu/kernels/hopper/params.h"

#include "backends/gpu/launch.h"

enum {
    ELEMENT = 2, /* bytes of bf16 and fp16 */
    BLOCK = GPU_HOPPER_POSITIONS,
    BATCH_BYTES = 64 << 20, /* batch entries go together while their buffers take no more than this */
    MOST_BATCH = 1024,
    PROJECT_KERNEL = 0, /* places in evo_form's tuning */
    PROJECT_GROUPS = 1,
    FINISH_KERNEL = 2,
    FINISH_COLUMNS = 3,
    FINISH_STAGES = 4,  /* of streamed weights; 0: the kernel keeps them */
    SMALL_KERNEL = 0,   /* of one launch */
    THREE_LAUNCHES = 0, /* orders */
    ONE_LAUNCH = 1
};

/* fp16 with its scales has as many bits as tf32, so it does that too. */
static bool is_fp16(const evo_trimul_desc *d) {
    return d->compute == EVO_COMPUTE_FP16 || d->compute == EVO_COMPUTE_TF32;
}

static evo_dtype product_type(const evo_trimul_desc *d) {
    return is_fp16(d) ? EVO_FP16 : EVO_BF16;
}

/* Tensors in fp32: a kernel ahead norms z into fp16, and finish writes fp32. */
static bool is_wide(const evo_trimul_desc *d) {
    return d->z.dtype == EVO_FP32;
}

/*
 * Kernels of project and finish by type and widths, and the warpgroups of a block, each with a tile; `many`: those of project for
 * many tiles a multiprocessor, `few`: those of finish for few.
 */
typedef struct instance {
    int dtype;
    int64_t c_z, c;
    gpu_function function;
    int64_t groups;
} instance;

static const instance of_project[] = {
#define INSTANCE(type, c_z, c, groups) { EVO_##type, c_z, c, GPU_HOPPER_PROJECT_##type##_##c_z##_##c, groups },
    GPU_HOPPER_PROJECT(INSTANCE)
#undef INSTANCE
};
static const instance many[] = {
#define INSTANCE(type, c_z, c) \
    { EVO_##type, c_z, c, GPU_HOPPER_PROJECT_MANY_##type##_##c_z##_##c, GPU_HOPPER_MANY_GROUPS },
    GPU_HOPPER_MANY(INSTANCE)
#undef INSTANCE
};
static const instance of_finish[] = {
#define INSTANCE(type, c_z, c) { EVO_##type, c_z, c, GPU_HOPPER_FINISH_##type##_##c_z##_##c, GPU_HOPPER_FINISH_GROUPS },
    GPU_HOPPER_FINISH(INSTANCE)
#undef INSTANCE
};
static const instance few[] = {
#define INSTANCE(type, c_z, c) { EVO_##type, c_z, c, GPU_HOPPER_FINISH_FEW_##type##_##c_z##_##c, GPU_HOPPER_FEW_GROUPS },
    GPU_HOPPER_FEW(INSTANCE)
#undef INSTANCE
};

#define FIND(table, dtype, c_z, c) find(table, sizeof table / sizeof *table, dtype, c_z, c)
static const instance *find(const instance *table, size_t count, evo_dtype dtype, int64_t c_z, int64_t c) {
    for (size_t i = 0; i < count; i++)
        if (table[i].dtype == (int)dtype && table[i].c_z == c_z && table[i].c == c) return &table[i];
    return NULL;
}

/* Kernels that do all at once, by the type of the tensors; their blocks have no tiles of their own. */
static const instance of_small[] = {
#define INSTANCE(type, c_z, c, kilobytes) { EVO_##type, c_z, c, GPU_HOPPER_TRIMUL_SMALL_##type##_##c_z##_##c, 0 },
    GPU_HOPPER_TRIMUL_SMALL(INSTANCE)
#undef INSTANCE
};

/* NULL: none does. A block reads z where others have their outputs, so these are not written in its place. */
static const instance *find_small(const evo_trimul_desc *d) {
    if (d->n > GPU_HOPPER_TRIMUL_SMALL_N || d->c_out != d->c_z || (d->alias & EVO_ALIAS_INPUT)) return NULL;
    return FIND(of_small, d->z.dtype, d->c_z, d->c);
}

static int64_t small_blocks(const evo_trimul_desc *d, int64_t batch) {
    const int64_t across = gpu_blocks(d->n, GPU_HOPPER_TRIMUL_SMALL_SIDE);
    return batch * across * across;
}

static int64_t count_tiles(const evo_trimul_desc *d, int64_t batch) {
    return gpu_blocks(d->n, GPU_HOPPER_POSITIONS) * d->n * batch;
}

/*
 * Blocks that share a tile of project's, each with the kernel of its part of the channels: as few as there are kernels for, more
 * where every warpgroup of the chip then still has at most one tile, and a block at most three. 0: no kernel has these widths.
 */
static int64_t column_groups(const evo_device *device, const evo_trimul_desc *d, int64_t batch) {
    int64_t best = 0;
    for (int64_t shares = 1; shares <= GPU_HOPPER_MOST_WIDTH / 32; shares++) {
        const instance *part = d->c % shares == 0 ? FIND(of_project, product_type(d), d->c_z, d->c / shares) : NULL;
        const int64_t most = part && part->groups < 3 ? part->groups : 3;
        if (part && (!best || shares * count_tiles(d, batch) <= most * gpu_device_properties(device)->compute_units))
            best = shares;
    }
    return best;
}

static gpu_function choose_project(const evo_device *device, const evo_trimul_desc *d, int64_t batch, int64_t shares) {
    const evo_dtype type = product_type(d);
    const instance *in_many = FIND(many, type, d->c_z, d->c / shares);
    const bool are_many = count_tiles(d, batch) > GPU_HOPPER_MANY_TILES * gpu_device_properties(device)->compute_units;
    return (in_many && are_many ? in_many : FIND(of_project, type, d->c_z, d->c / shares))->function;
}

/* --- The pack --- */

typedef struct weights {
    void *project, *out, *gate;                    /* [4 c][c_z], [c_out][c], [c_out][c_z] */
    void *project_bias, *out_bias;                 /* [4 c][2], [2 c_out][2] of 8 bytes */
    float *inverse_scale, *side_scale, *out_scale; /* fp16: [2 c], [c + 1], [c_out] */
} weights;

static void *take(uintptr_t *next, int64_t bytes) {
    void *taken = (void *)*next;
    *next += (uintptr_t)gpu_round(bytes, GPU_ALIGN);
    return taken;
}

static int64_t map_weights(const evo_trimul_desc *d, void *pack, weights *w) {
    uintptr_t next = (uintptr_t)pack;
    w->project = take(&next, 4 * d->c * d->c_z * ELEMENT);
    w->out = take(&next, d->c_out * d->c * ELEMENT);
    w->gate = take(&next, d->c_out * d->c_z * ELEMENT);
    w->project_bias = take(&next, 4 * d->c * 16);
    w->out_bias = take(&next, 2 * d->c_out * 16);
    w->inverse_scale = take(&next, 2 * d->c * (int64_t)sizeof(float));
    w->side_scale = take(&next, (d->c + 1) * (int64_t)sizeof(float));
    w->out_scale = take(&next, d->c_out * (int64_t)sizeof(float));
    return (int64_t)(next - (uintptr_t)pack);
}

static evo_status pack(const evo_call *call, const evo_tile *tile) {
    (void)tile;
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_trimul_weights *from = &call->args.trimul_weights;
    const bool normed = d->gate_input == EVO_GATE_NORMED;
    const float gate = -1.44269504f; /* gates are exponents of 2, see gated() */
    const int32_t c = (int32_t)d->c, c_z = (int32_t)d->c_z, c_out = (int32_t)d->c_out;
    weights to;
    map_weights(d, call->pack, &to);
    uint64_t *const project_bias = to.project_bias, *const out_bias = to.out_bias;
    const gpu_weight none = gpu_weight_of(NULL), in = gpu_weight_of(&from->norm_in_weight),
                     in_bias = gpu_weight_of(&from->norm_in_bias), out = gpu_weight_of(&from->norm_out_weight),
                     out_norm_bias = gpu_weight_of(&from->norm_out_bias);
    float *const side_scale = is_fp16(d) ? to.inverse_scale : NULL, *const out_scale = is_fp16(d) ? to.out_scale : NULL;
    const float bound = 1.0f / (1 << GPU_HOPPER_SIDE_BITS);
    gpu_hopper_pack_params params = {
        .items = {
            { gpu_weight_of(&from->a_proj_weight), in, in_bias, gpu_weight_of(&from->a_proj_bias), to.project,
              project_bias, side_scale, c, c_z, 0, 16, 0, 0, 1.0f, bound, NULL },
            { gpu_weight_of(&from->a_gate_weight), in, in_bias, gpu_weight_of(&from->a_gate_bias), to.project,
              project_bias, NULL, c, c_z, 0, 16, 8, 0, gate, 0, NULL },
            { gpu_weight_of(&from->b_proj_weight), in, in_bias, gpu_weight_of(&from->b_proj_bias), to.project,
              project_bias, side_scale, c, c_z, c, 16, 0, 0, 1.0f, bound, NULL },
            { gpu_weight_of(&from->b_gate_weight), in, in_bias, gpu_weight_of(&from->b_gate_bias), to.project,
              project_bias, NULL, c, c_z, c, 16, 8, 0, gate, 0, NULL },
            { gpu_weight_of(&from->out_weight), out, out_norm_bias, gpu_weight_of(&from->out_bias), to.out, out_bias,
              out_scale, c_out, c, 0, 8, 0, 0, 1.0f, bound, NULL },
            { gpu_weight_of(&from->out_gate_weight), normed ? in : none, normed ? in_bias : none,
              gpu_weight_of(&from->out_gate_bias), to.gate, out_bias + 2 * c_out, NULL, c_out, c_z, 0, 8, 0, 0, gate, 0, NULL },
        },
        .count = GPU_PACK_MATRICES,
    };
    const evo_status status = gpu_pack_folded(call, is_fp16(d), &params);
    if (status != EVO_OK) return status;
    const gpu_hopper_sides_params sides = { to.inverse_scale, to.side_scale, is_fp16(d) ? c : 0, 0 };
    return gpu_launch(call, GPU_HOPPER_PACK_SIDES, 1, 1, 1, &sides, sizeof sides);
}

/* --- Buffers: see kernels/hopper/params.h for their layouts --- */

typedef struct buffers {
    unsigned char *ab, *t, *tail;
    unsigned char *normed;       /* tensors in fp32: LayerNorm(z), [batch][n][n][c_z] */
    float *largest, *mask_scale; /* fp16: of the masks of project's blocks; what a and b are divided by */
    bool t_in_out, tail_in_out;
    int64_t pitch, whole, tail_count, tail_pitch; /* whole blocks of a row of t, positions after them */
    int64_t t_block, t_row, t_batch;              /* elements from one block, row, batch entry of t to the next */
    int64_t tail_channel, tail_row, tail_batch;   /* likewise of the rest */
} buffers;

/* Numbers of t for which a position of the output has room. */
static int64_t out_room(const evo_trimul_desc *d) {
    return is_wide(d) ? 2 * d->c_out : d->c_out;
}

/* True where t may lie in the output: alone there, contiguous, and every tile's t within the tile's outputs. */
static bool t_fits_out(const evo_trimul_desc *d) {
    const int64_t *s = d->out.strides, row = d->n * d->c_out;
    return d->alias == EVO_ALIAS_NONE && d->c <= out_room(d) && s[3] == 1 && s[2] == d->c_out && s[1] == row &&
           (s[0] == d->n * row || d->batch <= 1);
}

/*
 * Rows of a and b start at lines of 128 bytes, or else at 64, 32 or 16: at as many as leave both, with what of t lies beside the
 * output (`tail`, of a row), 2.25 N^2 numbers a channel. Small N has lines.
 */
static int64_t row_pitch(int64_t n, int64_t tail) {
    int64_t unit = 64;
    while (unit > 8 && n > 128 && 4 * (2 * gpu_round(n, unit) + tail) > 9 * n) unit /= 2;
    return gpu_round(n, unit);
}

/* Maps the workspace for `batch` entries; returns its bytes. */
static int64_t map_buffers(const evo_trimul_desc *d, int64_t batch, void *workspace, buffers *to) {
    uintptr_t next = (uintptr_t)workspace;
    to->whole = d->n / BLOCK;
    to->tail_count = d->n % BLOCK;
    to->tail_pitch = gpu_round(to->tail_count, 8);
    to->t_in_out = t_fits_out(d);
    to->tail_in_out = to->t_in_out && d->c * to->tail_pitch <= out_room(d) * to->tail_count;
    to->pitch = row_pitch(d->n, to->tail_in_out ? 0 : to->tail_pitch);
    to->t_block = BLOCK * (to->t_in_out ? out_room(d) : d->c);
    to->t_row = to->t_in_out ? d->n * out_room(d) : to->whole * to->t_block;
    to->t_batch = d->n * to->t_row;
    to->tail_channel = to->tail_in_out ? to->tail_pitch : d->n * to->tail_pitch;
    to->tail_row = to->tail_in_out ? to->t_row : to->tail_pitch;
    to->tail_batch = to->tail_in_out ? to->t_batch : d->c * d->n * to->tail_pitch;
    to->ab = take(&next, batch * 2 * d->c * d->n * to->pitch * ELEMENT);
    to->t = take(&next, to->t_in_out ? 0 : batch * to->t_batch * ELEMENT);
    to->tail = take(&next, to->tail_in_out ? 0 : batch * to->tail_batch * ELEMENT);
    to->normed = take(&next, is_wide(d) ? batch * d->n * d->n * d->c_z * ELEMENT : 0);
    to->largest = take(&next, is_fp16(d) ? GPU_HOPPER_MOST_BLOCKS * (int64_t)sizeof(float) : 0);
    to->mask_scale = take(&next, is_fp16(d) ? (int64_t)sizeof(float) : 0);
    return (int64_t)(next - (uintptr_t)workspace);
}

/* --- Tensor maps --- */

static const void *advance(const evo_tensor *tensor, const void *data, int64_t batch) {
    return (const unsigned char *)data + batch * tensor->strides[0] * (int64_t)evo_dtype_size(tensor->dtype);
}

/* A caller's tensor of the tile's batch entries, for kernels that read it themselves. */
static gpu_tensor tensor_from(const evo_tensor *tensor, const void *data, int64_t batch) {
    gpu_tensor view = gpu_tensor_of(tensor, data);
    if (tensor->dtype != EVO_NONE) view.data = (void *)(uintptr_t)advance(tensor, data, batch);
    return view;
}

/* A caller's [batch, N, N, channels] by 64 positions x 64 channels. */
static evo_status map_positions(const evo_call *call, const evo_tensor *tensor, const void *data,
                                const evo_range *batch, int64_t channels, gpu_tensor_map *map) {
    const int64_t n = call->problem->desc.trimul.n;
    int64_t s[3]; /* what an index that is always 0 is multiplied by does not matter, but must be positive */
    for (int i = 0; i < 3; i++) s[i] = tensor->strides[i] > 0 ? tensor->strides[i] : 8;
    const gpu_bulk_tensor bulk = {
        advance(tensor, data, batch->begin),           (int)tensor->dtype,      4,
        { channels, n, n, batch->end - batch->begin }, { 1, s[2], s[1], s[0] }, { 64, BLOCK, 1, 1 }
    };
    return gpu_tensor_map_of(call, &bulk, map);
}

/* z as project and finish read it: the caller's, or what is normed already. */
static evo_status map_z(const evo_call *call, const buffers *w, const evo_range *batch, gpu_tensor_map *map) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_tensor normed = { .dtype = EVO_FP16, .strides = { d->n * d->n * d->c_z, d->n * d->c_z, d->c_z, 1 } };
    const evo_range all = { 0, batch->end - batch->begin };
    return is_wide(d) ? map_positions(call, &normed, w->normed, &all, d->c_z, map)
                      : map_positions(call, &d->z, call->args.trimul.z, batch, d->c_z, map);
}

static evo_status map_matrix(const evo_call *call, const void *data, int64_t rows, int64_t columns, int box,
                             gpu_tensor_map *map) {
    const gpu_bulk_tensor bulk = { data,
                                   (int)product_type(&call->problem->desc.trimul),
                                   3,
                                   { columns, rows, 1 },
                                   { 1, columns, rows * columns },
                                   { 64, box, 1 } };
    return gpu_tensor_map_of(call, &bulk, map);
}

static evo_status map_ab(const evo_call *call, const buffers *w, int64_t batch, int rows, int channels,
                         gpu_tensor_map *map) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const gpu_bulk_tensor bulk = { w->ab,
                                   (int)product_type(d),
                                   3,
                                   { d->n, d->n, batch * 2 * d->c },
                                   { 1, w->pitch, d->n * w->pitch },
                                   { 64, rows, channels } };
    return gpu_tensor_map_of(call, &bulk, map);
}

/* Both parts of t; a part that is not there is never touched. */
static evo_status map_t(const evo_call *call, const buffers *w, const evo_range *batch, int channels, int rows,
                        gpu_tensor_map *whole, gpu_tensor_map *tail) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const int64_t n = d->n, count = batch->end - batch->begin;
    const void *t = w->t_in_out ? advance(&d->out, call->args.trimul.out, batch->begin) : w->t;
    const void *rest = w->tail_in_out ? (const unsigned char *)t + w->whole * w->t_block * ELEMENT : w->tail;
    const gpu_bulk_tensor in_blocks = { t,
                                        (int)product_type(d),
                                        5,
                                        { BLOCK, d->c, w->whole, n, count },
                                        { 1, BLOCK, w->t_block, w->t_row, w->t_batch },
                                        { BLOCK, channels, 1, rows, 1 } };
    const gpu_bulk_tensor behind = { rest,
                                     (int)product_type(d),
                                     5,
                                     { w->tail_count, d->c, 1, n, count },
                                     { 1, w->tail_channel, w->tail_channel, w->tail_row, w->tail_batch },
                                     { BLOCK, channels, 1, rows, 1 } };
    evo_status status = w->whole > 0 ? gpu_tensor_map_of(call, &in_blocks, whole) : EVO_OK;
    if (status == EVO_OK && w->tail_count > 0) status = gpu_tensor_map_of(call, &behind, tail);
    return status;
}

/* --- Stages --- */

static int contract_columns(const evo_trimul_desc *d) {
    return d->n <= 128 ? 128 : 256;
}

#define IN_ORDER(type)                                                                                               \
    _Static_assert(GPU_HOPPER_CONTRACT_##type##_128_IN == GPU_HOPPER_CONTRACT_##type##_128_OUT + 1 &&                \
                       GPU_HOPPER_CONTRACT_##type##_256_OUT == GPU_HOPPER_CONTRACT_##type##_128_OUT + 2 &&           \
                       GPU_HOPPER_CONTRACT_##type##_256_IN == GPU_HOPPER_CONTRACT_##type##_128_OUT + 3 &&            \
                       GPU_HOPPER_FINISH_STREAM_##type##_2 == GPU_HOPPER_FINISH_STREAM_##type##_1 + 1,               \
                   "directions, then widths; then tiles")
IN_ORDER(BF16);
IN_ORDER(FP16);
#undef IN_ORDER

static gpu_function contract_kernel(const evo_trimul_desc *d) {
    const int first = is_fp16(d) ? GPU_HOPPER_CONTRACT_FP16_128_OUT : GPU_HOPPER_CONTRACT_BF16_128_OUT;
    return (gpu_function)(first + (contract_columns(d) == 256 ? 2 : 0) + (d->direction == EVO_INCOMING ? 1 : 0));
}

/* fp16: what t is multiplied by, see the scales in params.h. */
static float t_scale(const evo_trimul_desc *d) {
    float scale = 1 << (15 - 2 * GPU_HOPPER_SIDE_BITS);
    for (int64_t n = 1; n < d->n; n *= 2) scale *= 0.5f;
    return scale;
}

/* fp16: what masks are divided by at once. */
static float mask_unit(const evo_trimul_desc *d) {
    return ldexpf(1.0f, gpu_mask_exponent(d->mask_max, 60));
}

/* Blocks of project for a number of batch entries. */
static int64_t project_blocks(const evo_call *call, int64_t batch) {
    const int64_t shares = call->form->tuning[PROJECT_GROUPS],
                  blocks = gpu_persistent(call, count_tiles(&call->problem->desc.trimul, batch) * shares),
                  teams = (blocks < GPU_HOPPER_MOST_BLOCKS ? blocks : GPU_HOPPER_MOST_BLOCKS) / shares;
    return (teams ? teams : 1) * shares;
}

/* What a block of finish with streamed weights has shared memory for beside `tiles` tiles: stages of the ring. */
static int64_t ring_stages(const evo_trimul_desc *d, int64_t tiles) {
    const int64_t block = 64 * 64 * ELEMENT, stage = GPU_HOPPER_STREAM_COLUMNS * 64 * ELEMENT,
                  channels = gpu_round(d->c_out, GPU_HOPPER_STREAM_COLUMNS);
    const int64_t fixed = tiles * (gpu_blocks(d->c, 64) + gpu_blocks(d->c_z, 64)) * block /* t, z */
                          + 2 * (GPU_HOPPER_STREAM_COLUMNS / 64) * block                  /* outputs */
                          + channels * (2 * 16 + (int64_t)sizeof(float)) + 4 * 8;         /* biases, scales, barriers */
    return (GPU_HOPPER_SHARED - fixed) / (stage + 2 * 8);
}

/* Fills in the kernel of finish: one that keeps its weights, for few tiles or usual ones, else one that streams them. */
static void choose_finish(const evo_device *device, const evo_trimul_desc *d, int64_t batch, evo_form *form) {
    const int64_t tiles = count_tiles(d, batch), units = gpu_device_properties(device)->compute_units;
    const evo_dtype type = d->out.dtype;
    const instance *fewer = tiles > GPU_HOPPER_FEW_TILES * units ? NULL : FIND(few, type, d->c_z, d->c),
                   *usual = FIND(of_finish, type, d->c_z, d->c);
    if (d->c_out == d->c_z && (fewer || usual)) {
        form->tuning[FINISH_KERNEL] = (fewer ? fewer : usual)->function;
        form->tuning[FINISH_COLUMNS] = fewer ? GPU_HOPPER_FEW_COLUMNS : GPU_HOPPER_FINISH_COLUMNS;
        form->tuning[FINISH_STAGES] = 0;
        return;
    }
    const int64_t two = ring_stages(d, 2) >= GPU_HOPPER_STREAM_STAGES && tiles > units;
    const gpu_function stream = is_wide(d)   ? GPU_HOPPER_FINISH_STREAM_FP32_1
                                : is_fp16(d) ? GPU_HOPPER_FINISH_STREAM_FP16_1
                                             : GPU_HOPPER_FINISH_STREAM_BF16_1;
    form->tuning[FINISH_KERNEL] = (int64_t)stream + two;
    form->tuning[FINISH_COLUMNS] = GPU_HOPPER_STREAM_COLUMNS;
    form->tuning[FINISH_STAGES] = ring_stages(d, 1 + two);
}

/*
 * One launch while its blocks, each of which repeats the projection of its rows, all run at once, as an H200 has it: two on a
 * multiprocessor, of c_z 128 one.
 */
static int choose_order(const evo_device *device, const evo_problem *problem) {
    const evo_trimul_desc *d = &problem->desc.trimul;
    const int64_t most = (d->c_z > 64 ? 1 : 2) * gpu_device_properties(device)->compute_units;
    if (problem->order) return problem->order - 1;
    return find_small(d) && small_blocks(d, d->batch) <= most ? ONE_LAUNCH : THREE_LAUNCHES;
}

/* What the pack is, and the kernels that fill it. */
static evo_status plan_pack(evo_device *device, const evo_trimul_desc *d, evo_form *form) {
    static const gpu_function functions[] = { GPU_HOPPER_PACK_BF16, GPU_HOPPER_PACK_FP16, GPU_HOPPER_PACK_SIDES };
    weights unused;
    form->compute = is_fp16(d) ? EVO_COMPUTE_FP16 : EVO_COMPUTE_BF16;
    form->pack_layout = GPU_LAYOUT_HOPPER + (d->gate_input == EVO_GATE_RAW ? 1u : 0u) + (is_fp16(d) ? 2u : 0u);
    form->pack_size = (size_t)map_weights(d, NULL, &unused);
    return gpu_load(device, functions, (int)(sizeof functions / sizeof *functions));
}

static evo_status plan_one_launch(evo_device *device, const evo_trimul_desc *d, evo_form *form) {
    const int64_t n = d->n > 0 ? d->n : 1;
    form->order = ONE_LAUNCH;
    form->schedule = (evo_schedule){ d->batch > MOST_BATCH ? MOST_BATCH : d->batch > 0 ? d->batch : 1, n, n, d->c };
    const gpu_function function = find_small(d)->function;
    form->tuning[SMALL_KERNEL] = function;
    const evo_status status = plan_pack(device, d, form);
    return status == EVO_OK ? gpu_load(device, &function, 1) : status;
}

static evo_status plan(evo_device *device, const evo_problem *problem, evo_form *form) {
    const evo_trimul_desc *d = &problem->desc.trimul;
    const int64_t n = d->n > 0 ? d->n : 1, all = d->batch > 0 ? d->batch : 1;
    buffers none;
    if (choose_order(device, problem) == ONE_LAUNCH) return plan_one_launch(device, d, form);
    const int64_t one = map_buffers(d, 1, NULL, &none);
    const int64_t most =
        d->workspace_limit && d->workspace_limit < BATCH_BYTES ? (int64_t)d->workspace_limit : BATCH_BYTES;
    int64_t batch = one > 0 ? most / one : all;
    if (batch > all) batch = all;
    if (batch > MOST_BATCH) batch = MOST_BATCH;
    if (batch < 1) batch = 1;
    form->schedule = (evo_schedule){ batch, n, n, d->c };
    evo_status status = gpu_settle(form, map_buffers(d, batch, NULL, &none), d->workspace_limit);
    if (status == EVO_OK) status = plan_pack(device, d, form);
    if (status != EVO_OK) return status;
    const int64_t shares = column_groups(device, d, batch);
    const gpu_function project_kernel = choose_project(device, d, batch, shares);
    form->tuning[PROJECT_KERNEL] = project_kernel;
    form->tuning[PROJECT_GROUPS] = shares;
    choose_finish(device, d, batch, form);
    const gpu_function functions[] = { project_kernel, contract_kernel(d), (gpu_function)form->tuning[FINISH_KERNEL],
                                       GPU_HOPPER_NORM };
    return gpu_load(device, functions, (int)(sizeof functions / sizeof *functions));
}

/* Tensors in fp32: LayerNorm(z) in fp16. */
static evo_status norm(const evo_call *call, const evo_tile *tile, const buffers *to) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const gpu_hopper_norm_params params = {
        .z = tensor_from(&d->z, call->args.trimul.z, tile->batch.begin),
        .target = to->normed,
        .positions = (tile->batch.end - tile->batch.begin) * d->n * d->n,
        .n = (int32_t)d->n,
        .c_z = (int32_t)d->c_z,
        .eps = (float)d->layer_norm_eps,
    };
    const int64_t together = d->c_z < 128 ? 128 / d->c_z : 1; /* positions of a wave at once */
    return gpu_launch_early(call, GPU_HOPPER_NORM,
                            gpu_blocks(params.positions, GPU_HOPPER_NORM_WAVES * GPU_HOPPER_NORM_ROUNDS * together),
                            &params, sizeof params);
}

static evo_status project(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const int64_t batch = tile->batch.end - tile->batch.begin;
    if (call->form->order == ONE_LAUNCH) return EVO_OK; /* the last stage does all */
    buffers to;
    weights w;
    map_buffers(d, call->form->schedule.batch, call->workspace, &to);
    map_weights(d, call->pack, &w);
    gpu_hopper_project_params params = {
        .mask = tensor_from(&d->mask, call->args.trimul.mask, tile->batch.begin),
        .bias = w.project_bias,
        .n = (int32_t)d->n,
        .rows = (int32_t)(batch * d->n),
        .channels = (int32_t)(2 * d->c),
        .column_groups = (int32_t)call->form->tuning[PROJECT_GROUPS],
        .is_normed = is_wide(d),
        .largest = is_fp16(d) && d->mask.dtype != EVO_NONE ? to.largest : NULL,
        .eps = (float)d->layer_norm_eps,
        .mask_unit = mask_unit(d),
    };
    evo_status status = is_wide(d) ? norm(call, tile, &to) : EVO_OK;
    if (status == EVO_OK) status = map_z(call, &to, &tile->batch, &params.z);
    if (status == EVO_OK) status = map_matrix(call, w.project, 4 * d->c, d->c_z, 64, &params.weight);
    if (status == EVO_OK) status = map_ab(call, &to, batch, 1, 32, &params.ab);
    if (status != EVO_OK) return status;
    return gpu_launch_early(call, (gpu_function)call->form->tuning[PROJECT_KERNEL], project_blocks(call, batch),
                            &params, sizeof params);
}

static evo_status contract(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const int64_t batch = tile->batch.end - tile->batch.begin;
    const int columns = contract_columns(d);
    if (call->form->order == ONE_LAUNCH) return EVO_OK;
    buffers w;
    weights packed;
    map_buffers(d, call->form->schedule.batch, call->workspace, &w);
    map_weights(d, call->pack, &packed);
    gpu_hopper_contract_params params = {
        .n = (int32_t)d->n,
        .channels = (int32_t)d->c,
        .planes = (int32_t)(batch * d->c),
        .whole_blocks = (int32_t)w.whole,
        .scale = packed.side_scale,
        .mask_largest = w.largest,
        .mask_scale = w.mask_scale,
        .t_scale = t_scale(d),
        .mask_unit = mask_unit(d),
        .mask_parts = d->mask.dtype == EVO_NONE ? 0 : (int32_t)project_blocks(call, batch),
    };
    evo_status status = map_ab(call, &w, batch, 64, 1, &params.ab);
    if (status == EVO_OK) status = map_t(call, &w, &tile->batch, 1, 64, &params.t_main, &params.t_tail);
    if (status != EVO_OK) return status;
    const int64_t tiles = gpu_blocks(d->n, GPU_HOPPER_ROWS) * gpu_blocks(d->n, columns) * batch * d->c;
    return gpu_launch_early(call, contract_kernel(d), gpu_persistent(call, tiles), &params, sizeof params);
}

static evo_status all_at_once(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_trimul_args *args = &call->args.trimul;
    const int64_t begin = tile->batch.begin;
    weights w;
    map_weights(d, call->pack, &w);
    const gpu_hopper_trimul_small_params params = {
        .z = tensor_from(&d->z, args->z, begin),
        .mask = tensor_from(&d->mask, args->mask, begin),
        .residual = tensor_from(&d->residual, args->residual, begin),
        .out = tensor_from(&d->out, args->out, begin),
        .weight = w.project,
        .gate_weight = w.gate,
        .out_weight = w.out,
        .bias = w.project_bias,
        .out_bias = w.out_bias,
        .scale = w.side_scale,
        .out_scale = w.out_scale,
        .n = (int32_t)d->n,
        .incoming = d->direction == EVO_INCOMING,
        .raw_gate = d->gate_input == EVO_GATE_RAW,
        .eps = (float)d->layer_norm_eps,
        .mask_unit = mask_unit(d),
    };
    return gpu_launch_early(call, (gpu_function)call->form->tuning[SMALL_KERNEL],
                            small_blocks(d, tile->batch.end - begin), &params, sizeof params);
}

static evo_status finish(const evo_call *call, const evo_tile *tile) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_trimul_args *args = &call->args.trimul;
    const int64_t batch = tile->batch.end - tile->batch.begin;
    if (call->form->order == ONE_LAUNCH) return all_at_once(call, tile);
    buffers from;
    weights w;
    map_buffers(d, call->form->schedule.batch, call->workspace, &from);
    map_weights(d, call->pack, &w);
    gpu_hopper_finish_params params = {
        .bias = w.out_bias,
        .n = (int32_t)d->n,
        .rows = (int32_t)(batch * d->n),
        .c = (int32_t)d->c,
        .c_z = (int32_t)d->c_z,
        .c_out = (int32_t)d->c_out,
        .whole_blocks = (int32_t)from.whole,
        .stages = (int32_t)call->form->tuning[FINISH_STAGES],
        .raw_gate = is_wide(d) || d->gate_input == EVO_GATE_RAW,
        .has_residual = d->residual.dtype != EVO_NONE,
        .eps = (float)d->layer_norm_eps,
        .t_scale = t_scale(d),
        .largest = w.side_scale + d->c,
        .mask_scale = from.mask_scale,
        .out_scale = w.out_scale,
    };
    const int columns = (int)call->form->tuning[FINISH_COLUMNS];
    evo_status status =
        map_t(call, &from, &tile->batch, params.stages ? 64 : (int)d->c, 1, &params.t_main, &params.t_tail);
    if (status == EVO_OK) status = map_z(call, &from, &tile->batch, &params.z);
    if (status == EVO_OK) status = map_matrix(call, w.out, d->c_out, d->c, columns, &params.weight);
    if (status == EVO_OK) status = map_matrix(call, w.gate, d->c_out, d->c_z, columns, &params.gate_weight);
    if (is_wide(d)) {
        params.wide_residual = tensor_from(&d->residual, args->residual, tile->batch.begin);
        params.wide_out = tensor_from(&d->out, args->out, tile->batch.begin);
    }
    if (status == EVO_OK && params.has_residual && !is_wide(d))
        status = map_positions(call, &d->residual, args->residual, &tile->batch, d->c_out, &params.residual);
    if (status == EVO_OK && !is_wide(d))
        status = map_positions(call, &d->out, args->out, &tile->batch, d->c_out, &params.out);
    if (status != EVO_OK) return status;
    return gpu_launch_early(call, (gpu_function)call->form->tuning[FINISH_KERNEL],
                            gpu_persistent(call, count_tiles(d, batch)), &params, sizeof params);
}

/* --- What it takes --- */

/* True if bulk copies can address the tensor: rows of channels whole, everything at multiples of 16 bytes. */
static bool copies_take(const evo_trimul_desc *d, const evo_tensor *tensor, const char *name, evo_text *why) {
    const int64_t extents[3] = { d->batch, d->n, d->n };
    bool fits = tensor->strides[3] == 1 && tensor->alignment >= 16;
    for (int i = 0; i < 3; i++) {
        const int64_t stride = tensor->strides[i];
        if (stride % 8 || stride >= (int64_t)1 << 38 || (extents[i] > 1 && stride <= 0)) fits = false;
    }
    if (!fits)
        evo_text_add(why,
                     "takes tensors whose last stride is 1 and whose others are positive multiples of 8, aligned to 16 "
                     "bytes; %s is not",
                     name);
    return fits;
}

static bool supports(const evo_device *device, const evo_problem *problem, evo_text *why) {
    const evo_trimul_desc *d = &problem->desc.trimul;
    const evo_tensor *tensors[] = { &d->z, &d->out, &d->residual };
    const char *const names[] = { "z", "out", "residual" };
    if (!gpu_has_image(device, GPU_HOPPER_PACK_BF16) || !gpu_device_properties(device)->tensor_maps) {
        evo_text_add(why, "needs images for sm_90a, a device of compute capability 9.0, and its driver's tensor maps");
        return false;
    }
    const bool half = is_fp16(d);
    const evo_dtype type = half && is_wide(d) ? EVO_FP32 : product_type(d);
    if (d->compute != EVO_COMPUTE_BF16 && !half) {
        evo_text_add(why, "computes bf16, fp16 and tf32, the descriptor asks for %s", evo_compute_name(d->compute));
        return false;
    }
    for (int t = 0; t < 3; t++)
        if (tensors[t]->dtype != type && tensors[t]->dtype != EVO_NONE) {
            evo_text_add(why, "takes tensors all in %s, %s is %s", half ? "fp16, or all in fp32" : "bf16", names[t],
                         evo_dtype_name(tensors[t]->dtype));
            return false;
        }
    if (is_wide(d) && d->gate_input == EVO_GATE_RAW) {
        evo_text_add(why, "takes tensors in fp32 only with gates of the normed z");
        return false;
    }
    if (!column_groups(device, d, 1) || d->c > GPU_HOPPER_MOST_WIDTH || d->c_out % 8 ||
        d->c_out > GPU_HOPPER_MOST_WIDTH) {
        evo_text_add(
            why, "takes c_z of 32, 64, 128, 256 and 384, c of multiples of 32 and c_out of multiples of 8, both to %d",
            GPU_HOPPER_MOST_WIDTH);
        return false;
    }
    if (d->n > 1 << 15) {
        evo_text_add(why, "takes n up to 32768");
        return false;
    }
    for (int t = 0; t < 3; t++)
        if (tensors[t]->dtype != EVO_NONE && !copies_take(d, tensors[t], names[t], why)) return false;
    if (problem->order == 1 + ONE_LAUNCH && !find_small(d)) {
        evo_text_add(why, "takes one launch for c of 32, c_z = c_out of 32, 64 and 128, n to %d, not in z's place",
                     GPU_HOPPER_TRIMUL_SMALL_N);
        return false;
    }
    return true;
}

static const char *const orders[] = { "hopper/three-launches", "hopper/one-launch", NULL };

const evo_kernel gpu_trimul_hopper = {
    .name = "hopper",
    .orders = orders,
    .supports = supports,
    .plan = plan,
    .stage = { [EVO_STAGE_PACK] = pack,
               [EVO_STAGE_TRIMUL_PROJECT] = project,
               [EVO_STAGE_TRIMUL_CONTRACT] = contract,
               [EVO_STAGE_TRIMUL_FINISH] = finish },
};
