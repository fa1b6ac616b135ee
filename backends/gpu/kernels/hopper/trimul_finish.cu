/*
 * trimul_finish.cu: the triangle multiplication's output. As in project each warpgroup works alone on tiles of 64 positions of
 * one row, and both LayerNorms are in registers; t is turned from channel-first to rows by the load that transposes. Both
 * matrices stay in shared memory. A tile of t may lie where the output of its positions goes: it is loaded whole before
 * anything is stored.
 */
#include "backends/gpu/kernels/hopper/trimul.h"

template <bool WIDE, int T_STEPS, int Z_STEPS, int CHUNKS, int COLUMNS, int GROUPS> struct finish_shared {
    static constexpr int OUTS = GROUPS > 2 ? 1 : 2; /* output tiles: two save a barrier; in fp32 there are none */
    static constexpr int PANEL_BYTES = COLUMNS * 128, OUT_BLOCKS = CHUNKS * COLUMNS / 64;
    unsigned char weight[CHUNKS][blocks_of(T_STEPS)][PANEL_BYTES];
    unsigned char gate_weight[CHUNKS][blocks_of(Z_STEPS)][PANEL_BYTES];
    unsigned char t[GROUPS][T_STEPS * 16 * 128];
    unsigned char z[GROUPS][blocks_of(Z_STEPS)][BLOCK_BYTES];
    unsigned char out[WIDE ? 1 : GROUPS][OUTS][OUT_BLOCKS][WIDE ? 16 : BLOCK_BYTES];
    uint64_t bias[2][CHUNKS * COLUMNS][2];
    uint64_t weight_full, full[GROUPS], residual_full[GROUPS];
    float inverse[CHUNKS * COLUMNS]; /* fp16: of what undoes the scale of the rows of W_o */
};

template <int OUT, int T_STEPS, int Z_STEPS, int CHUNKS, int COLUMNS, int GROUPS>
EVO_DEVICE void finish(const gpu_hopper_finish_params &p, unsigned char *raw) {
    constexpr int TYPE = PRODUCTS<OUT>;
    constexpr bool WIDE = OUT == GPU_FP32;
    using shared_t = finish_shared<WIDE, T_STEPS, Z_STEPS, CHUNKS, COLUMNS, GROUPS>;
    constexpr int T_BLOCKS = blocks_of(T_STEPS), Z_BLOCKS = blocks_of(Z_STEPS), OUTS = shared_t::OUTS;
    constexpr int T_BYTES = T_STEPS * 16 * 128, TILE_BYTES = shared_t::OUT_BLOCKS * BLOCK_BYTES;
    constexpr int WRITTEN_BARRIER = 1, READ_BARRIER = 1 + GROUPS;
    shared_t &s = *reinterpret_cast<shared_t *>(raw);
    const int group = warpgroup_number(), thread = thread_x() % WARPGROUP, wave = thread / 32, lane = thread % 32;
    const int tiles = (p.n + GPU_HOPPER_POSITIONS - 1) / GPU_HOPPER_POSITIONS * p.rows;
    const int block = static_cast<int>(block_x()), blocks = static_cast<int>(block_count_x()), stride = blocks * GROUPS;
    const uint32_t t = shared_address(s.t[group]), z = shared_address(s.z[group]),
                   outs = shared_address(s.out[WIDE ? 0 : group]);
    const uint32_t full = shared_address(&s.full[group]), residual_full = shared_address(&s.residual_full[group]);
    const uint32_t weight_full = shared_address(&s.weight_full);
    int tile = block + blocks * group, parity = 0;

    if (thread_x() == 0) {
        barrier_init(weight_full, 2);
        for (int g = 0; g < GROUPS; g++) {
            barrier_init(shared_address(&s.full[g]), 1);
            barrier_init(shared_address(&s.residual_full[g]), 1);
        }
        barrier_init_done();
    }
    /* The pack is older than the kernel ahead. */
    for (int i = thread_x(); i < 2 * CHUNKS * COLUMNS * 2; i += GROUPS * WARPGROUP) {
        const int which = i / (CHUNKS * COLUMNS * 2), row = i / 2 % (CHUNKS * COLUMNS);
        write_shared(&s.bias[which][row][i % 2],
                     row < p.c_out ? p.bias[(which * p.c_out + row) * 2 + i % 2] : uint64_t(0));
    }
    for (int i = thread_x(); TYPE == GPU_FP16 && i < CHUNKS * COLUMNS; i += GROUPS * WARPGROUP)
        s.inverse[i] = i < p.c_out ? 1.0f / p.out_scale[i] : 1.0f;
    fence_async();
    block_barrier();
    let_next_kernel_start();
    if (thread_x() == 0) {
        load_matrix<COLUMNS, T_BLOCKS>(p.weight, shared_address(s.weight), weight_full, CHUNKS, 0);
        load_matrix<COLUMNS, Z_BLOCKS>(p.gate_weight, shared_address(s.gate_weight), weight_full, CHUNKS, 0);
    }
    wait_for_kernel_ahead();
    const float norm_eps = t_eps<TYPE>(p);

    auto fetch = [&](const position_tile &next) {
        barrier_expect(full, T_BYTES + Z_BLOCKS * BLOCK_BYTES);
        if (next.block < p.whole_blocks)
            bulk_load(t, p.t_main, full, 0, 0, next.block, next.i, next.batch);
        else
            bulk_load(t, p.t_tail, full, 0, 0, 0, next.i, next.batch);
        EVO_UNROLL
        for (int k = 0; k < Z_BLOCKS; k++)
            bulk_load(z + k * BLOCK_BYTES, p.z, full, k * 64, next.j(), next.i, next.batch);
    };
    auto fetch_residual = [&](const position_tile &next, uint32_t target) {
        barrier_expect(residual_full, TILE_BYTES);
        EVO_UNROLL
        for (int q = 0; q < shared_t::OUT_BLOCKS; q++)
            bulk_load(target + q * BLOCK_BYTES, p.residual, residual_full, q * 64, next.j(), next.i, next.batch);
    };
    position_tile at = find_tile(tile, p.n);
    if (thread == 0 && tile < tiles) {
        fetch(at);
        if (!WIDE && p.has_residual) fetch_residual(at, outs);
    }
    barrier_wait(weight_full, 0);
    const uint64_t weights = shared_operand(shared_address(s.weight)),
                   gate_weights = shared_operand(shared_address(s.gate_weight));
    const uint64_t biases = short_operand(shared_address(s.bias));
    const uint32_t one = bias_ones<TYPE>(lane), ones[4] = { one, one, one, one };
    for (; tile < tiles; tile += stride, parity ^= 1) {
        const uint32_t out = outs + (OUTS > 1 ? parity * TILE_BYTES : 0);
        const bool last = tile + stride >= tiles;
        const position_tile next = last ? at : find_tile(tile + stride, p.n);
        uint32_t x[Z_STEPS][4], y[T_STEPS][4];
        barrier_wait(full, parity);
        load_rows<Z_STEPS>(x, z, wave, lane);
        load_columns<T_STEPS>(y, t, wave, lane);
        layer_norm<TYPE, T_STEPS>(y, norm_eps);
        /* All have z and t, which came last, in registers: the norm has waited. Zeros past the end of a row land at once. */
        fence_async();
        if (wave > 0)
            named_barrier_arrive(READ_BARRIER + group, WARPGROUP);
        else
            named_barrier(READ_BARRIER + group, WARPGROUP);
        if (thread == 0 && !last) fetch(next);

        float sums[COLUMNS / 2], gates[COLUMNS / 2];
        EVO_UNROLL
        for (int q = 0; q < CHUNKS; q++) {
            products_begin();
            multiply<TYPE>(sums, ones, advance(biases, q * COLUMNS * 16), 0);
            EVO_UNROLL
            for (int k = 0; k < T_STEPS; k++)
                multiply<TYPE>(sums, y[k],
                               advance(weights, (q * T_BLOCKS + k / 4) * shared_t::PANEL_BYTES + k % 4 * 32), 1);
            products_commit();
            if (q == 0 && !p.raw_gate) layer_norm<TYPE, Z_STEPS>(x, p.eps); /* while the other product runs */
            products_begin();
            multiply<TYPE>(gates, ones, advance(biases, (CHUNKS + q) * COLUMNS * 16), 0);
            EVO_UNROLL
            for (int k = 0; k < Z_STEPS; k++)
                multiply<TYPE>(gates, x[k],
                               advance(gate_weights, (q * Z_BLOCKS + k / 4) * shared_t::PANEL_BYTES + k % 4 * 32), 1);
            products_commit();
            products_wait<0>();
            settle(sums);
            settle(gates);
            if (WIDE) {
                write_wide(p, sums, gates, s.inverse, at, q * COLUMNS, wave, lane);
                continue;
            }
            if (q == 0 && p.has_residual) {
                barrier_wait(residual_full, parity);
            } else if (q == 0 && OUTS == 1) {
                if (thread == 0) bulk_store_wait_read<0>();
                named_barrier(WRITTEN_BARRIER + group, WARPGROUP);
            }
            write_outputs<TYPE>(sums, gates, s.inverse, p.has_residual, q * COLUMNS, out, wave, lane);
        }
        if (WIDE) {
            at = next;
            continue;
        }
        fence_async();
        if (OUTS > 1 && thread == 0) bulk_store_wait_read<0>(); /* the other output tile is free */
        named_barrier(WRITTEN_BARRIER + group, WARPGROUP);
        if (thread == 0) {
            EVO_UNROLL
            for (int q = 0; q < shared_t::OUT_BLOCKS; q++)
                bulk_store(p.out, out + q * BLOCK_BYTES, q * 64, at.j(), at.i, at.batch);
            bulk_store_commit();
            if (p.has_residual && !last) {
                if (OUTS == 1) bulk_store_wait_read<0>();
                fetch_residual(next, OUTS > 1 ? outs + (parity ^ 1) * TILE_BYTES : outs);
            }
        }
        at = next;
    }
    if (thread == 0) bulk_store_wait<0>();
}

#define FINISH(name, type, c_z, c, columns, groups)                                                                   \
    EVO_KERNEL(name, gpu_hopper_finish_params, groups *WARPGROUP, 1) {                                                \
        static_assert(sizeof(finish_shared<GPU_##type == GPU_FP32, c / 16, c_z / 16, (c_z + columns - 1) / columns,   \
                                           columns, groups>) <= GPU_HOPPER_SHARED,                                    \
                      "shared memory");                                                                               \
        EVO_BULK_SHARED(raw);                                                                                         \
        finish<GPU_##type, c / 16, c_z / 16, (c_z + columns - 1) / columns, columns, groups>(p, raw);                 \
    }
#define FINISH_MANY(type, c_z, c) FINISH(evo_hopper_finish_##type##_##c_z##_##c, type, c_z, c, GPU_HOPPER_FINISH_COLUMNS, GPU_HOPPER_FINISH_GROUPS)
#define FINISH_FEW(type, c_z, c) FINISH(evo_hopper_finish_few_##type##_##c_z##_##c, type, c_z, c, GPU_HOPPER_FEW_COLUMNS, GPU_HOPPER_FEW_GROUPS)
GPU_HOPPER_FINISH(FINISH_MANY)
GPU_HOPPER_FEW(FINISH_FEW)
