/*
 * outer.cu: outer first. A block takes 4 x 4 pairs: for 32 x 32 hidden channels at a time it sums the outer products over S
 * as one 128 x 128 tile in registers, puts them into shared memory, and multiplies them by their part of W_o, which one
 * block reads once for all 16 pairs. The tensor of N^2 * c^2 never exists.
 *
 * The rows of the tile are (c_a, i) and its columns (c_b, j), i and j fastest, so that a quad of 4 x 4 sums of a thread is
 * one (c_a, c_b) of all 16 pairs. Shared memory holds o[k][16 pairs], k = c_a * 32 + c_b, in quads of one i: quad q of k
 * stands at q ^ (k / 2 % 4), which spreads the threads of a store over all banks.
 */
#include "backends/gpu/kernels/opm/output.h"
#include "backends/gpu/kernels/tile.h"

static constexpr int TILE = GPU_OPM_SIDE * GPU_OPM_HIDDEN;
static constexpr int GROUPS = GPU_THREADS / 32;
using operands_t = copied_operands<TILE, TILE>;
static_assert(operands_t::FLOATS * 4 <= GPU_OPM_OUTER_SHARED, "the stages lie where o will");

/* The first pair of this block, relative to the tile; bands of blocks share operands. */
struct pair_place {
    int row, col;
};

EVO_DEVICE pair_place block_pairs(const gpu_opm_outer_params &p) {
    const int rows = (p.row_count + GPU_OPM_SIDE - 1) / GPU_OPM_SIDE, cols = (p.col_count + GPU_OPM_SIDE - 1) / GPU_OPM_SIDE;
    const int block = static_cast<int>(block_x()), band = block / (GPU_OPM_BAND * cols) * GPU_OPM_BAND;
    const int high = rows - band < GPU_OPM_BAND ? rows - band : GPU_OPM_BAND, within = block - band * cols;
    return { (band + within % high) * GPU_OPM_SIDE, within / high * GPU_OPM_SIDE };
}

/* Counts of the block's 16 pairs, by 16 threads each, into shared memory. */
EVO_DEVICE void count_pairs(const gpu_opm_outer_params &p, const pair_place &at, float *counts) {
    const int pair = thread_x() / 16, i = at.row + pair / GPU_OPM_SIDE, j = at.col + pair % GPU_OPM_SIDE;
    float count = 0.0f;
    if (i < p.row_count && j < p.col_count)
        count = count_share(p.output, p.row_begin + i, p.col_begin + j, thread_x() % 16, 16);
    EVO_UNROLL
    for (int mask = 8; mask > 0; mask /= 2) count += wave_shuffle_xor(count, mask);
    if (thread_x() % 16 == 0) counts[pair] = count;
    block_barrier();
}

/* o of 32 x 32 hidden channels from (c_a, c_b) on, summed over S. */
EVO_DEVICE void outer_products(const gpu_opm_outer_params &p, const pair_place &at, int c_a, int c_b, float *stages,
                               float (&sum)[8][8]) {
    const int column = panel<TILE>::thread_column(), channel = column / GPU_OPM_SIDE;
    const int64_t rows4 = (p.row_count + 3) / 4 * 4, cols4 = (p.col_count + 3) / 4 * 4;
    operands_t operands;
    operands.stages = stages;
    operands.a.start(p.a + block_z() * p.a_batch + static_cast<int64_t>(at.row) * p.c4 + c_a * GPU_OPM_SIDE + column,
            rows4 * p.c4, p.output.s, c_a + channel < p.c);
    operands.b.start(p.b + block_z() * p.b_batch + static_cast<int64_t>(at.col) * p.c4 + c_b * GPU_OPM_SIDE + column,
            cols4 * p.c4, p.output.s, c_b + channel < p.c);
    clear(sum);
    multiply_operands<TILE, TILE>(operands, p.output.s, sum);
    block_barrier();
}

EVO_DEVICE void keep_products(const float (&sum)[8][8], float *o) {
    const place at = thread_place<TILE, TILE>();
    const int first = at.row / 4 * GPU_OPM_HIDDEN + at.col / 4, swizzle = first / 2 % 4;
    EVO_UNROLL
    for (int q = 0; q < GPU_OPM_SIDE; q++) {
        float *quad = o + first * GPU_OPM_PAIRS + (q ^ swizzle) * 4;
        EVO_UNROLL
        for (int r = 0; r < 2; r++)
            EVO_UNROLL
        for (int c = 0; c < 2; c++)
            *reinterpret_cast<float4_t *>(quad + (4 * r * GPU_OPM_HIDDEN + 8 * c) * GPU_OPM_PAIRS) = {
                sum[4 * r + q][4 * c], sum[4 * r + q][4 * c + 1], sum[4 * r + q][4 * c + 2], sum[4 * r + q][4 * c + 3]
            };
    }
    block_barrier();
}

/* Eight columns of one row of W_o: four, and four 64 further on. */
struct weight_row {
    float x[8];
};

EVO_DEVICE void load_row(const float *row, bool low, bool high, weight_row &w) {
    const float4_t zero = { 0.0f, 0.0f, 0.0f, 0.0f };
    const float4_t v[2] = { low ? *reinterpret_cast<const float4_t *>(row) : zero,
                            high ? *reinterpret_cast<const float4_t *>(row + 64) : zero };
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        w.x[4 * h] = v[h].x;
        w.x[4 * h + 1] = v[h].y;
        w.x[4 * h + 2] = v[h].z;
        w.x[4 * h + 3] = v[h].w;
    }
}

/* z[pair][column] += o[k][pair] * w[column] for this thread's half of the pairs; `o` is row k. */
EVO_DEVICE void add_row(const float *o, int swizzle, int half, const weight_row &w, float (&z)[8][8]) {
    EVO_UNROLL
    for (int q = 0; q < 2; q++) {
        float x[4];
        unpack(*reinterpret_cast<const float4_t *>(o + ((2 * half + q) ^ swizzle) * 4), x);
        EVO_UNROLL
        for (int e = 0; e < 4; e++)
            EVO_UNROLL
        for (int c = 0; c < 8; c++) z[4 * q + e][c] = multiply_add(x[e], w.x[c], z[4 * q + e][c]);
    }
}

/*
 * This group's share of the products with W_o: some c_a, every c_b, all 16 pairs, 128 columns from `column` on. Rows of W_o
 * are asked for two ahead of their use. Sums run over the c_b of one c_a and are then added to z.
 */
EVO_DEVICE void project_share(const gpu_opm_outer_params &p, int c_a, int c_b, int column, const float *o,
                              float (&z)[8][8]) {
    const int half = thread_x() % 32 / 16, own = column + thread_x() % 16 * 4;
    const bool low = own < p.z_pitch, high = own + 64 < p.z_pitch;
    const int a_count = p.c - c_a < GPU_OPM_HIDDEN ? p.c - c_a : GPU_OPM_HIDDEN;
    const int b_count = p.c - c_b < GPU_OPM_HIDDEN ? p.c - c_b : GPU_OPM_HIDDEN;
    const int each = (a_count + GROUPS - 1) / GROUPS, first = thread_x() / 32 * each;
    const int last = first + each < a_count ? first + each : a_count;
    const float *row = p.weight + (static_cast<int64_t>(c_a + first) * p.c + c_b) * p.z_pitch + own;
    if (first >= last) return;
    weight_row ahead[2], now[2];
    float sum[8][8];
    load_row(row, low, high, ahead[0]);
    load_row(row + p.z_pitch, low && b_count > 1, high && b_count > 1, ahead[1]);
    for (int a = first; a < last; a++) {
        clear(sum);
        const float *after = a + 1 < last ? row + static_cast<int64_t>(p.c) * p.z_pitch : row;
        for (int b = 0; b < b_count; b += 2) {
            const bool stays = b + 2 < b_count;
            const float *source = stays ? row + (b + 2) * p.z_pitch : after;
            const bool second = (stays ? b + 3 : 1) < b_count;
            now[0] = ahead[0];
            now[1] = ahead[1];
            load_row(source, low, high, ahead[0]);
            load_row(source + p.z_pitch, low && second, high && second, ahead[1]);
            const float *products = o + (a * GPU_OPM_HIDDEN + b) * GPU_OPM_PAIRS;
            add_row(products, b / 2 % 4, half, now[0], sum);
            if (b + 1 < b_count) add_row(products + GPU_OPM_PAIRS, b / 2 % 4, half, now[1], sum);
        }
        add(sum, z);
        row = after;
    }
}

/* Adds the groups' shares in a fixed order: this thread has four columns of pairs thread / 32 and 8 more. */
EVO_DEVICE void add_shares(const float (&z)[8][8], float *shares, float (&total)[2][4]) {
    const int group = thread_x() / 32, half = thread_x() % 32 / 16, column = thread_x() % 16 * 4;
    EVO_UNROLL
    for (int r = 0; r < 8; r++)
        EVO_UNROLL
    for (int h = 0; h < 2; h++)
        *reinterpret_cast<float4_t *>(shares + (group * GPU_OPM_PAIRS + half * 8 + r) * GPU_OPM_COLUMNS + column +
                                      64 * h) = { z[r][4 * h], z[r][4 * h + 1], z[r][4 * h + 2], z[r][4 * h + 3] };
    block_barrier();
    EVO_UNROLL
    for (int h = 0; h < 2; h++)
        EVO_UNROLL
    for (int g = 0; g < GROUPS; g++) {
        float x[4];
        unpack(*reinterpret_cast<const float4_t *>(
                   shares + (g * GPU_OPM_PAIRS + group + 8 * h) * GPU_OPM_COLUMNS + thread_x() % 32 * 4),
               x);
        EVO_UNROLL
        for (int e = 0; e < 4; e++) total[h][e] += x[e];
    }
    block_barrier();
}

/* One 32 x 32 part of the hidden channels: their sums over S, then their share of z added to `total`. */
EVO_DEVICE void add_part(const gpu_opm_outer_params &p, const pair_place &at, int c_a, int c_b, int column,
                         float *memory, float (&total)[2][4]) {
    float sum[8][8];
    outer_products(p, at, c_a, c_b, memory, sum);
    keep_products(sum, memory);
    clear(sum);
    project_share(p, c_a, c_b, column, memory, sum);
    block_barrier();
    add_shares(sum, memory, total);
}

EVO_DEVICE void finish_pairs(const gpu_opm_outer_params &p, const pair_place &at, int column, float *memory,
                             const float (&total)[2][4]) {
    const int q = column + thread_x() % 32 * 4;
    count_pairs(p, at, memory);
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int pair = thread_x() / 32 + 8 * h, i = at.row + pair / GPU_OPM_SIDE, j = at.col + pair % GPU_OPM_SIDE;
        if (i < p.row_count && j < p.col_count && q < p.output.c_z)
            write_pair(p.output, p.row_begin + i, p.col_begin + j, q, normaliser(p.output, memory[pair]), total[h]);
    }
}

/* c at most 32. */
EVO_KERNEL(evo_opm_outer, gpu_opm_outer_params, GPU_THREADS, 1) {
    EVO_DYNAMIC_SHARED(shared);
    float *memory = reinterpret_cast<float *>(shared), total[2][4];
    const pair_place at = block_pairs(p);
    const int column = static_cast<int>(block_y()) * GPU_OPM_COLUMNS;
    clear(total);
    add_part(p, at, 0, 0, column, memory, total);
    finish_pairs(p, at, column, memory, total);
}

/* Any c, in parts. */
EVO_KERNEL(evo_opm_outer_wide, gpu_opm_outer_params, GPU_THREADS, 1) {
    EVO_DYNAMIC_SHARED(shared);
    float *memory = reinterpret_cast<float *>(shared), total[2][4];
    const pair_place at = block_pairs(p);
    const int column = static_cast<int>(block_y()) * GPU_OPM_COLUMNS;
    clear(total);
    for (int c_a = 0; c_a < p.c; c_a += GPU_OPM_HIDDEN)
        for (int c_b = 0; c_b < p.c; c_b += GPU_OPM_HIDDEN) add_part(p, at, c_a, c_b, column, memory, total);
    finish_pairs(p, at, column, memory, total);
}
