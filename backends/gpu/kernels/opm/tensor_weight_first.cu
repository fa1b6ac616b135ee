/*
 * tensor_weight_first.cu: the other order on matrix units, cheaper while S is small: u = W_o a for a block of rows, then
 * one product over (c_b, s) for each row i.
 */
#include "backends/gpu/kernels/opm/tensor_output.h"
#include "backends/gpu/kernels/product.h"

static_assert(GPU_BLOCK_WAVES == 4, "waves stand 2 x 2");

/* Stages of two operands, one behind the other. */
template <int X_ROWS, int Y_ROWS> struct two_panels {
    static constexpr int BYTES = rows_panel<X_ROWS>::BYTES + rows_panel<Y_ROWS>::BYTES;
    rows_panel<X_ROWS> x;
    rows_panel<Y_ROWS> y;

    EVO_METHOD void fetch(unsigned char *stage) {
        x.fetch(stage);
        y.fetch(stage + rows_panel<X_ROWS>::BYTES);
    }
    EVO_METHOD void put(unsigned char *stage) {
        x.put(stage);
        y.put(stage + rows_panel<X_ROWS>::BYTES);
    }
};

/* sum += X Y^T of `bytes` of K; the wave's rows begin at x_row and y_row. */
template <class T, int X_ROWS, int Y_ROWS, int DOWN, int ACROSS>
EVO_DEVICE void multiply_panels(two_panels<X_ROWS, Y_ROWS> &panels, int bytes, unsigned char *ring, int x_row,
                                int y_row, sums (&sum)[DOWN][ACROSS]) {
    const int x = x_row * STAGE_PITCH + lane_offset(STAGE_PITCH),
              y = rows_panel<X_ROWS>::BYTES + y_row * STAGE_PITCH + right_lane_offset(STAGE_PITCH);
    const stage_walk<2, two_panels<X_ROWS, Y_ROWS>> walk = { ring, (bytes + CHUNK - 1) / CHUNK };
    walk.begin(panels);
    walk.run(panels, [&](const unsigned char *stage) {
        multiply_stage<T>(stage + x, STAGE_PITCH, stage + y, STAGE_PITCH, sum);
    });
}

static constexpr int U_ROWS = GPU_OPM_WEIGH_ROWS, U_COLS = GPU_OPM_WEIGH_COLS;

template <class T> EVO_DEVICE void weigh(const gpu_opm_tensor_weigh_params &p, unsigned char *ring) {
    constexpr int DOWN = U_ROWS / 2 / TILE_SIDE, ACROSS = U_COLS / 2 / TILE_SIDE;
    const int first_row = static_cast<int>(block_x()) * U_ROWS, first = static_cast<int>(block_y()) * U_COLS;
    const int wave = thread_x() / WAVE, own_row = wave / 2 * (U_ROWS / 2), own_column = wave % 2 * (U_COLS / 2);
    const int64_t bytes = static_cast<int64_t>(p.c_pad) * T::BYTES;
    two_panels<U_ROWS, U_COLS> panels;
    sums sum[DOWN][ACROSS];
    clear(sum);
    panels.x.start(static_cast<const unsigned char *>(p.weight) + first_row * bytes, bytes, p.rows - first_row,
                   static_cast<int>(bytes));
    panels.y.start(static_cast<const unsigned char *>(p.a) + block_z() * p.a_batch * T::BYTES + first * bytes, bytes,
                   p.positions - first, static_cast<int>(bytes));
    multiply_panels<T>(panels, static_cast<int>(bytes), ring, own_row, own_column, sum);
    unsigned char *u = static_cast<unsigned char *>(p.u) + block_z() * p.u_batch * T::BYTES;
    EVO_UNROLL
    for (int r = 0; r < DOWN; r++) EVO_UNROLL
    for (int c = 0; c < ACROSS; c++) EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e++) {
        const int row = first_row + own_row + r * TILE_SIDE + tile_row(e);
        const int m = first + own_column + c * TILE_SIDE + tile_column(e), i = m / p.s_pad, s = m - i * p.s_pad;
        if (row >= p.rows || m >= p.positions) continue;
        const int64_t index = (static_cast<int64_t>(i) * p.rows + row) * p.s_pad + s;
        reinterpret_cast<uint16_t *>(u)[index] = static_cast<uint16_t>(T::pack(sum[r][c].v[e], 0.0f));
    }
}

static constexpr int ROWS = GPU_OPM_COMBINE_ROWS, COLUMNS = GPU_OPM_COMBINE_COLS;

template <class T> EVO_DEVICE void combine(const gpu_opm_tensor_combine_params &p, unsigned char *shared) {
    constexpr int DOWN = ROWS / 2 / TILE_SIDE, TILES = OUT_COLUMNS / TILE_SIDE;
    static_assert(COLUMNS == 2 * OUT_COLUMNS, "a wave writes its columns at once");
    const int across = (p.z_rows + COLUMNS - 1) / COLUMNS, block = static_cast<int>(block_x());
    const int first_j = block / across * ROWS, first_q = block % across * COLUMNS;
    const int wave = thread_x() / WAVE, own_j = wave / 2 * (ROWS / 2), own_q = wave % 2 * OUT_COLUMNS;
    const int64_t i = p.row_begin + block_y(), bytes = static_cast<int64_t>(p.depth) * T::BYTES;
    float *const n = reinterpret_cast<float *>(shared);
    unsigned char *const ring = shared + 1024;
    static_assert(THREADS * 4 <= 1024 && GPU_BLOCK_WAVES * OUT_FLOATS * 4 <= GPU_OPM_COMBINE_SHARED - 1024,
                  "as launched");
    two_panels<ROWS, COLUMNS> panels;
    sums sum[DOWN][TILES];
    clear(sum);
    panels.x.start(static_cast<const unsigned char *>(p.b) + block_z() * p.b_batch * T::BYTES + first_j * bytes, bytes,
                   p.col_count - first_j, static_cast<int>(bytes));
    panels.y.start(static_cast<const unsigned char *>(p.u) + block_z() * p.u_batch * T::BYTES +
                       (static_cast<int64_t>(block_y()) * p.z_rows + first_q) * bytes,
                   bytes, p.z_rows - first_q, static_cast<int>(bytes));
    const int own = thread_x() % ROWS, share = thread_x() / ROWS;
    n[thread_x()] = first_j + own < p.col_count
                        ? count_share(p.output, i, p.col_begin + first_j + own, share, THREADS / ROWS)
                        : 0.0f;
    multiply_panels<T>(panels, static_cast<int>(bytes), ring, own_j, own_q, sum);
    block_barrier();
    channel_quad quad;
    quad.start(p.output, p.z_scale, first_q + own_q);
    EVO_UNROLL
    for (int d = 0; d < DOWN; d++) {
        write_tiles(p.output, p.output.batch_begin + block_z(), sum[d], quad,
                    reinterpret_cast<float *>(ring) + wave * OUT_FLOATS,
                    [&](int row, int64_t *pair_i, int64_t *pair_j, float *normal, float *scale) {
                        const int j = own_j + d * TILE_SIDE + row;
                        float count = 0.0f;
                        for (int part = 0; part < THREADS / ROWS; part++) count += n[part * ROWS + j];
                        *pair_i = i;
                        *pair_j = p.col_begin + first_j + j;
                        *normal = normaliser(p.output, count);
                        *scale = p.scale;
                        return first_j + j < p.col_count;
                    });
    }
}

#define EVO_WEIGHT_FIRST(type, T)                                                                                     \
    EVO_KERNEL(evo_opm_tensor_weigh_##type, gpu_opm_tensor_weigh_params, GPU_BLOCK_WAVES *WAVE, 1) {                  \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        weigh<T>(p, shared);                                                                                          \
    }                                                                                                                 \
    EVO_KERNEL(evo_opm_tensor_combine_##type, gpu_opm_tensor_combine_params, GPU_BLOCK_WAVES *WAVE, 1) {              \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        combine<T>(p, shared);                                                                                        \
    }
EVO_WEIGHT_FIRST(bf16, bfloat_t)
EVO_WEIGHT_FIRST(fp16, half_t)
