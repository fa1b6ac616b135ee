/*
 * weight_first.cu: the other order, cheaper while S is small: u = W_o a for a block of rows, then one product over (c_b, s)
 * for each row i.
 */
#include "backends/gpu/kernels/opm/output.h"
#include "backends/gpu/kernels/tile.h"

static constexpr int TILE = 128;
using tile_t = tile<TILE, TILE, 8, 8, 16, 3>;
using operands_t = copied_operands<tile_t>;

/* Rows of the product are (s, i of u's rows, rounded up to 4), columns (c_b, q). */
EVO_KERNEL(evo_opm_weigh, gpu_opm_weigh_params, GPU_THREADS, 1) {
    EVO_SHARED(float, stages, operands_t::FLOATS);
    const int u4 = (p.u_count + 3) / 4 * 4, rows = p.s * u4, columns = p.c * p.z_pitch;
    const int first_row = static_cast<int>(block_x()) * TILE, first_column = static_cast<int>(block_y()) * TILE;
    const int copied = first_row + panel_a<tile_t>::thread_column(), s = copied / u4;
    const int column = first_column + panel_a<tile_t>::thread_column();
    operands_t operands;
    operands.stages = stages;
    operands.a.start(p.a + block_z() * p.a_batch + static_cast<int64_t>(s) * p.rows4 + p.u_begin + copied - s * u4,
                     p.a_pitch, p.c, copied < rows);
    operands.b.start(p.weight + column, columns, p.c, column < columns);
    float sum[8][8];
    clear(sum);
    multiply_operands<tile_t>(operands, p.c, sum);

    const place at = thread_place<tile_t>();
    EVO_UNROLL
    for (int r = 0; r < 8; r++) {
        const int row = first_row + at.row + r / 4 * 16 + r % 4, own_s = row / u4, i = row - own_s * u4;
        if (row >= rows || i >= p.u_count) continue;
        EVO_UNROLL
        for (int c = 0; c < 2; c++) {
            const int own = first_column + at.col + 32 * c, c_b = own / p.z_pitch, q = own - c_b * p.z_pitch;
            if (own >= columns) continue;
            const int64_t k = (static_cast<int64_t>(i) * p.c + c_b) * p.s + own_s;
            *reinterpret_cast<float4_t *>(p.u + k * p.z_pitch + q) = { sum[r][4 * c], sum[r][4 * c + 1],
                                                                       sum[r][4 * c + 2], sum[r][4 * c + 3] };
        }
    }
}

/* Counts of row i with the tile's 128 columns, by two threads each. */
EVO_DEVICE void count_columns(const gpu_opm_combine_params &p, int64_t i, int first, float *shares) {
    const int column = thread_x() % TILE, j = first + column;
    shares[thread_x()] = j < p.col_count ? count_share(p.output, i, p.col_begin + j, thread_x() / TILE, 2) : 0.0f;
    block_barrier();
}

/*
 * Where infinities or NaNs meet, the order of the sums decides which comes out: such a pair's channels q ... q + 3 are summed
 * again as the formula has it.
 */
EVO_DEVICE void sum_outer_first(const gpu_opm_combine_params &p, int j, int q, float (&z)[4]) {
    const int s_count = p.output.s, c = p.depth / s_count;
    float total[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (int pair = 0; pair < c * c; pair++) {
        const float *a = p.a + pair / c * p.a_pitch + block_y();
        const float *b = p.b + static_cast<int64_t>(pair % c) * s_count * p.cols4 + j;
        float o = 0.0f, w[4];
        for (int s = 0; s < s_count; s++)
            o = multiply_add(a[static_cast<int64_t>(s) * p.rows4], b[static_cast<int64_t>(s) * p.cols4], o);
        unpack(*reinterpret_cast<const float4_t *>(p.weight + static_cast<int64_t>(pair) * p.z_pitch + q), w);
        EVO_UNROLL
        for (int e = 0; e < 4; e++) total[e] = multiply_add(o, w[e], total[e]);
    }
    EVO_UNROLL
    for (int e = 0; e < 4; e++) z[e] = total[e];
}

EVO_DEVICE bool is_finite(const float (&x)[4]) {
    const float zero = (x[0] - x[0]) + (x[1] - x[1]) + ((x[2] - x[2]) + (x[3] - x[3]));
    return zero == 0.0f;
}

/* Rows of the product are j, columns q; grid x the blocks of j and q, grid y the row i. */
EVO_KERNEL(evo_opm_combine, gpu_opm_combine_params, GPU_THREADS, 1) {
    EVO_SHARED(float, stages, operands_t::FLOATS);
    const int across = (p.z_pitch + TILE - 1) / TILE;
    const int first_row = static_cast<int>(block_x()) / across * TILE;
    const int first_column = static_cast<int>(block_x()) % across * TILE;
    const int row = first_row + panel_a<tile_t>::thread_column(),
              column = first_column + panel_a<tile_t>::thread_column();
    const int64_t i = p.row_begin + block_y();
    operands_t operands;
    operands.stages = stages;
    operands.a.start(p.b + row, p.cols4, p.depth, row < p.cols4);
    operands.b.start(p.u + static_cast<int64_t>(block_y()) * p.depth * p.z_pitch + column, p.z_pitch, p.depth,
                     column < p.z_pitch);
    float sum[8][8];
    clear(sum);
    multiply_operands<tile_t>(operands, p.depth, sum);
    block_barrier();
    count_columns(p, i, first_row, stages);

    const place at = thread_place<tile_t>();
    EVO_UNROLL
    for (int r = 0; r < 8; r++) {
        const int local = at.row + r / 4 * 16 + r % 4, j = first_row + local;
        if (j >= p.col_count) continue;
        const float n = normaliser(p.output, stages[local] + stages[local + TILE]);
        EVO_UNROLL
        for (int c = 0; c < 2; c++) {
            const int q = first_column + at.col + 32 * c;
            float four[4] = { sum[r][4 * c], sum[r][4 * c + 1], sum[r][4 * c + 2], sum[r][4 * c + 3] };
            if (q >= p.output.c_z) continue;
            if (!is_finite(four)) sum_outer_first(p, j, q, four);
            write_pair(p.output, i, p.col_begin + j, q, n, four);
        }
    }
}
