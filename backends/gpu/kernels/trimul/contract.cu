/*
 * contract.cu: a product of two matrices per channel, a tile of 128 x 128 a block. In the form for chips with much shared
 * memory a thread owns 16 x 8 sums, and totals of 64 products each lie in shared memory; in the small form it owns 8 x 8, and
 * both sums and totals are in registers.
 */
#include "backends/gpu/kernels/tile.h"
#include "backends/gpu/kernels/trimul/params.h"

static constexpr int TILE = GPU_CONTRACT_TILE;
using tile_t = tile<TILE, TILE, 16, 8, 8, 4>;
using small_tile_t = tile<TILE, TILE, 8, 8, 8, 4>;
static_assert(tile_t::THREADS == GPU_CONTRACT_THREADS && small_tile_t::THREADS == GPU_CONTRACT_SMALL_THREADS,
              "as launched");
static_assert(copied_operands<tile_t>::FLOATS * 4 + TILE * TILE * 4 == GPU_CONTRACT_SHARED, "as launched");
static_assert(copied_operands<small_tile_t>::FLOATS * 4 == GPU_CONTRACT_SMALL_SHARED, "as launched");

/* The block's place in t, and its operands. */
template <class SHAPE> struct contraction {
    int first_row, first_column;
    copied_operands<SHAPE> operands;

    EVO_METHOD void start(const gpu_contract_params &p, float *stages) {
        const int across = (p.pitch + TILE - 1) / TILE, block = static_cast<int>(block_x());
        const int copied = panel_a<SHAPE>::thread_column();
        const int64_t side = block_z() * p.side_batch + block_y() * p.side_channel;
        first_row = block / across * TILE;
        first_column = block % across * TILE;
        operands.stages = stages;
        operands.a.start(p.a + side + first_row + copied, p.pitch, p.n, first_row + copied < (p.rows + 3) / 4 * 4);
        operands.b.start(p.b + side + first_column + copied, p.pitch, p.n, first_column + copied < p.pitch);
    }

    /* Where the four sums of row quad r, row q of it, column quad c go; NULL: outside t. */
    EVO_METHOD float4_t *target(const gpu_contract_params &p, int r, int q, int c) const {
        const place at = thread_place<SHAPE>();
        const int row = first_row + at.row + 16 * r + q, column = first_column + at.col + 32 * c;
        float *t = p.t + block_z() * p.t_batch + block_y() * p.t_channel + static_cast<int64_t>(row) * p.pitch + column;
        return row < p.rows && column < p.pitch ? reinterpret_cast<float4_t *>(t) : nullptr;
    }
};

#if defined(EVO_LARGE_SHARED)
static constexpr int RUN = 64;

/* This thread's totals in shared memory. */
struct own_slots {
    float4_t *first;
    EVO_METHOD float4_t *slot(int r, int q, int c) const {
        return first + ((r * 4 + q) * (tile_t::THREAD_COLS / 4) + c) * tile_t::THREADS;
    }
};

EVO_KERNEL(evo_trimul_contract, gpu_contract_params, GPU_CONTRACT_THREADS, 2) {
    EVO_DYNAMIC_SHARED(shared);
    float *stages = reinterpret_cast<float *>(shared);
    const own_slots slots = { reinterpret_cast<float4_t *>(stages + copied_operands<tile_t>::FLOATS) + thread_x() };
    contraction<tile_t> block;
    block.start(p, stages);
    multiply_into<tile_t, RUN>(block.operands, p.n, slots);
    EVO_UNROLL
    for (int r = 0; r < tile_t::THREAD_ROWS; r++) EVO_UNROLL
    for (int c = 0; c < tile_t::THREAD_COLS / 4; c++) {
        float4_t *target = block.target(p, r / 4, r % 4, c);
        if (target) *target = *slots.slot(r / 4, r % 4, c);
    }
}
#endif

EVO_KERNEL(evo_trimul_contract_small, gpu_contract_params, GPU_CONTRACT_SMALL_THREADS, 1) {
    EVO_DYNAMIC_SHARED(shared);
    contraction<small_tile_t> block;
    float sum[small_tile_t::THREAD_ROWS][small_tile_t::THREAD_COLS];
    block.start(p, reinterpret_cast<float *>(shared));
    clear(sum);
    multiply_operands<small_tile_t>(block.operands, p.n, sum);
    EVO_UNROLL
    for (int r = 0; r < small_tile_t::THREAD_ROWS; r++) EVO_UNROLL
    for (int c = 0; c < small_tile_t::THREAD_COLS / 4; c++) {
        float4_t *target = block.target(p, r / 4, r % 4, c);
        if (target) *target = { sum[r][4 * c], sum[r][4 * c + 1], sum[r][4 * c + 2], sum[r][4 * c + 3] };
    }
}
