/*
 * trimul_stream.cu: the triangle multiplication's output, of any widths: finish for those whose matrices do not fit beside the
 * tiles. A third warpgroup brings them through a ring of stages, 64 k of 128 output channels each, for two that multiply. t and
 * z are normed where they lie in shared memory, which makes them operands: t's is row-major. With TILES 2 each warpgroup has 64
 * positions of its own; with 1 two share them, norm one of the two each, and take chunks of output channels in turn: while one
 * multiplies, the other gates.
 */
#include "backends/gpu/kernels/hopper/trimul.h"

static constexpr int COLUMNS = GPU_HOPPER_STREAM_COLUMNS, STAGE_BYTES = COLUMNS * 128, OUT_BLOCKS = COLUMNS / 64;

/* Where things lie in shared memory, which depends on the widths. */
struct stream_places {
    uint32_t stages, t, z, out;  /* [stages], [tiles][blocks of t], [tiles][blocks of z], [2][OUT_BLOCKS] */
    uint64_t *bias;              /* [2][channels][2] */
    float *inverse;              /* [channels], fp16: of what undoes the scale of the rows of W_o */
    uint64_t *full, *empty;      /* [stages] */
    uint64_t *tile_full, *added; /* [2]; added: the residual has come */
};

/* How much there is of it: blocks of 64 channels of t and z, chunks of output channels. */
struct stream_counts {
    int t_blocks, z_blocks, chunks;
};

EVO_DEVICE stream_counts count_blocks(const gpu_hopper_finish_params &p) {
    return { (p.c + 63) / 64, (p.c_z + 63) / 64, (p.c_out + COLUMNS - 1) / COLUMNS };
}

template <int TILES>
EVO_DEVICE stream_places find_places(const gpu_hopper_finish_params &p, const stream_counts &count,
                                     unsigned char *raw) {
    const int channels = count.chunks * COLUMNS;
    unsigned char *const t = raw + p.stages * STAGE_BYTES, *const z = t + TILES * count.t_blocks * BLOCK_BYTES;
    unsigned char *const out = z + TILES * count.z_blocks * BLOCK_BYTES;
    uint64_t *const bias = reinterpret_cast<uint64_t *>(out + 2 * OUT_BLOCKS * BLOCK_BYTES);
    uint64_t *const full = bias + 4 * channels, *const tile_full = full + 2 * p.stages;
    return { shared_address(raw),
             shared_address(t),
             shared_address(z),
             shared_address(out),
             bias,
             reinterpret_cast<float *>(tile_full + 4),
             full,
             full + p.stages,
             tile_full,
             tile_full + 2 };
}

/* A place in the ring; `held`: the stage whose product is in flight, or -1. */
struct stream_ring {
    int stages, stage, parity, held;

    EVO_METHOD void step() {
        if (++stage < stages) return;
        stage = 0;
        parity ^= 1;
    }
};

/* The loading thread. The pack is older than the kernel ahead: it waits for nothing else. */
template <int TILES>
EVO_DEVICE void load_weights(const gpu_hopper_finish_params &p, const stream_places &s, const stream_counts &count,
                             int tiles) {
    stream_ring ring = { p.stages, 0, 1, -1 }; /* the first pass over the ring waits for nothing */
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x()) * TILES)
        for (int q = 0; q < count.chunks; q++)
            for (int k = 0; k < count.t_blocks + count.z_blocks; k++) {
                const uint32_t full = shared_address(s.full + ring.stage), target = s.stages + ring.stage * STAGE_BYTES;
                barrier_wait(shared_address(s.empty + ring.stage), ring.parity);
                barrier_expect(full, STAGE_BYTES);
                if (k < count.t_blocks)
                    bulk_load(target, p.weight, full, k * 64, q * COLUMNS, 0);
                else
                    bulk_load(target, p.gate_weight, full, (k - count.t_blocks) * 64, q * COLUMNS, 0);
                ring.step();
            }
}

/*
 * layer_norm() of a wave's 16 positions x 16 `steps` channels in shared memory, `place` being where this lane finds its row of
 * a step's fragments. An even number of steps.
 */
template <int TYPE, bool TRANSPOSED, class PLACE> EVO_DEVICE void norm_in_place(int steps, float eps, PLACE place) {
    const float count = 16.0f * static_cast<float>(steps);
    float mean[2] = { 0.0f, 0.0f }, squares[2] = { 0.0f, 0.0f };
    auto load = [&](int s, uint32_t(&x)[2][4]) {
        EVO_UNROLL
        for (int u = 0; u < 2; u++) {
            if (TRANSPOSED)
                load_fragments_transposed(x[u], place(s + u));
            else
                load_fragments(x[u], place(s + u));
        }
    };
    for (int s = 0; s < steps; s += 2) {
        uint32_t x[2][4];
        load(s, x);
        EVO_UNROLL
        for (int e = 0; e < 8; e++) mean[e % 2] += low_of<TYPE>(x[e / 4][e % 4]) + high_of<TYPE>(x[e / 4][e % 4]);
    }
    quad_sum(mean);
    mean[0] /= count;
    mean[1] /= count;
    for (int s = 0; s < steps; s += 2) {
        uint32_t x[2][4];
        load(s, x);
        EVO_UNROLL
        for (int e = 0; e < 8; e++) {
            const float low = low_of<TYPE>(x[e / 4][e % 4]) - mean[e % 2],
                        high = high_of<TYPE>(x[e / 4][e % 4]) - mean[e % 2];
            squares[e % 2] = multiply_add(low, low, multiply_add(high, high, squares[e % 2]));
        }
    }
    quad_sum(squares);
    const float scale[2] = { hardware_reciprocal_root(multiply_add(squares[0], 1.0f / count, eps)),
                             hardware_reciprocal_root(multiply_add(squares[1], 1.0f / count, eps)) };
    for (int s = 0; s < steps; s += 2) {
        uint32_t x[2][4];
        load(s, x);
        EVO_UNROLL
        for (int e = 0; e < 8; e++) {
            uint32_t &pair = x[e / 4][e % 4];
            pair = pack<TYPE>((low_of<TYPE>(pair) - mean[e % 2]) * scale[e % 2],
                              (high_of<TYPE>(pair) - mean[e % 2]) * scale[e % 2]);
        }
        EVO_UNROLL
        for (int u = 0; u < 2; u++) {
            if (TRANSPOSED)
                store_fragments_transposed(place(s + u), x[u]);
            else
                store_fragments(place(s + u), x[u]);
        }
    }
}

template <int TYPE> EVO_DEVICE void norm_t(uint32_t t, int c, float eps, int wave, int lane) {
    norm_in_place<TYPE, true>(
        c / 16, eps, [&](int s) { return t + swizzled(s * 16 + lane % 8 + lane / 16 * 8, wave * 2 + lane / 8 % 2); });
}
template <int TYPE> EVO_DEVICE void norm_z(uint32_t z, int c_z, float eps, int wave, int lane) {
    norm_in_place<TYPE, false>(c_z / 16, eps, [&](int s) {
        return z + s / 4 * BLOCK_BYTES + swizzled(wave * 16 + lane % 16, s % 4 * 2 + lane / 16);
    });
}

/* Adds the product of `blocks` blocks of 64 k, from `a` on, and the ring's next stages. The last product is left in flight. */
template <int TYPE, int TRANSPOSED>
EVO_DEVICE void multiply_blocks(const stream_places &s, stream_ring &ring, uint32_t a, int blocks, bool releases,
                                float (&d)[COLUMNS / 2]) {
    for (int k = 0; k < blocks; k++) {
        const uint64_t x = shared_operand(a + k * BLOCK_BYTES, TRANSPOSED ? BLOCK_BYTES : 16),
                       y = shared_operand(s.stages + ring.stage * STAGE_BYTES);
        barrier_wait(shared_address(s.full + ring.stage), ring.parity);
        products_begin();
        EVO_UNROLL
        for (int kk = 0; kk < 4; kk++)
            multiply<TYPE, TRANSPOSED, 0>(d, advance(x, kk * (TRANSPOSED ? 2048 : 32)), advance(y, kk * 32), 1);
        products_commit();
        products_wait<1>(); /* the product before this one is done: its stage goes back */
        if (ring.held >= 0 && releases) barrier_arrive(shared_address(s.empty + ring.held));
        ring.held = ring.stage;
        ring.step();
    }
}

/* Stages that the other warpgroup multiplies go back at once. */
EVO_DEVICE void pass_stages(const stream_places &s, stream_ring &ring, int count, bool releases) {
    for (int k = 0; k < count; k++) {
        barrier_wait(shared_address(s.full + ring.stage), ring.parity);
        wave_barrier(); /* all lanes have seen it */
        if (releases) barrier_arrive(shared_address(s.empty + ring.stage));
        ring.step();
    }
}

template <int OUT, int TILES>
EVO_DEVICE void finish_tiles(const gpu_hopper_finish_params &p, const stream_places &s, const stream_counts &count,
                             int tiles, int group) {
    constexpr int TYPE = PRODUCTS<OUT>;
    constexpr bool WIDE = OUT == GPU_FP32;
    constexpr int TEAM = TILES == 2 ? WARPGROUP : 2 * WARPGROUP; /* threads that share a tile */
    const int team_barrier = TILES == 2 ? 1 + group : 1, out_barrier = 3 + group;
    const int thread = thread_x() % WARPGROUP, wave = thread / 32, lane = thread % 32;
    const int mine = TILES == 2 ? group : 0;                     /* tile of the block */
    const int first = TILES == 2 ? 0 : group, step = 3 - TILES;  /* chunks */
    const bool is_last = (count.chunks - 1 - first) % step == 0; /* of the team to multiply: fetches */
    const bool releases = lane == 0;
    const int blocks = static_cast<int>(block_count_x());
    const uint32_t t = s.t + mine * count.t_blocks * BLOCK_BYTES, z = s.z + mine * count.z_blocks * BLOCK_BYTES;
    const uint32_t out = s.out + group * OUT_BLOCKS * BLOCK_BYTES;
    const uint32_t full = shared_address(s.tile_full + mine), added = shared_address(s.added + group);
    const uint64_t biases = short_operand(shared_address(s.bias));
    const uint32_t one = bias_ones<TYPE>(lane), ones[4] = { one, one, one, one };
    int parity = 0, added_parity = 0;
    stream_ring ring = { p.stages, 0, 0, -1 };

    wait_for_kernel_ahead();
    const float norm_eps = t_eps<TYPE>(p);
    auto fetch = [&](const position_tile &next) {
        barrier_expect(full, (count.t_blocks + count.z_blocks) * BLOCK_BYTES);
        for (int k = 0; k < count.t_blocks; k++) {
            if (next.block < p.whole_blocks)
                bulk_load(t + k * BLOCK_BYTES, p.t_main, full, 0, k * 64, next.block, next.i, next.batch);
            else
                bulk_load(t + k * BLOCK_BYTES, p.t_tail, full, 0, k * 64, 0, next.i, next.batch);
        }
        for (int k = 0; k < count.z_blocks; k++)
            bulk_load(z + k * BLOCK_BYTES, p.z, full, k * 64, next.j(), next.i, next.batch);
    };
    auto fetch_residual = [&](const position_tile &at, int q) {
        const int left = (p.c_out - q * COLUMNS + 63) / 64, wanted = left < OUT_BLOCKS ? left : OUT_BLOCKS;
        barrier_expect(added, wanted * BLOCK_BYTES);
        for (int b = 0; b < wanted; b++)
            bulk_load(out + b * BLOCK_BYTES, p.residual, added, q * COLUMNS + b * 64, at.j(), at.i, at.batch);
    };

    int tile = static_cast<int>(block_x()) + blocks * mine;
    if (is_last && thread == 0 && tile < tiles) fetch(find_tile(tile, p.n));
    for (; tile < tiles; tile += blocks * TILES, parity ^= 1) {
        const position_tile at = find_tile(tile, p.n);
        /* This warpgroup's products are done. */
        auto leave_tile = [&] {
            if (!is_last) {
                named_barrier_arrive(team_barrier, TEAM);
                return;
            }
            named_barrier(team_barrier, TEAM);
            if (thread == 0 && tile + blocks * TILES < tiles) fetch(find_tile(tile + blocks * TILES, p.n));
        };
        barrier_wait(full, parity);
        if (TILES == 2 || group == 0) norm_t<TYPE>(t, p.c, norm_eps, wave, lane);
        if (!p.raw_gate && (TILES == 2 || group == 1)) norm_z<TYPE>(z, p.c_z, p.eps, wave, lane);
        fence_async();
        named_barrier(team_barrier, TEAM);
        if (first >= count.chunks) leave_tile();
        for (int q = 0; q < count.chunks; q++) {
            if (TILES == 1 && q % 2 != group) {
                pass_stages(s, ring, count.t_blocks + count.z_blocks, releases);
                continue;
            }
            float sums[COLUMNS / 2], gates[COLUMNS / 2];
            if (!WIDE && thread == 0) { /* the chunk before has left */
                bulk_store_wait_read<0>();
                if (p.has_residual) fetch_residual(at, q);
            }
            products_begin();
            multiply<TYPE>(sums, ones, advance(biases, q * COLUMNS * 16), 0);
            multiply<TYPE>(gates, ones, advance(biases, (count.chunks + q) * COLUMNS * 16), 0);
            products_commit();
            multiply_blocks<TYPE, 1>(s, ring, t, count.t_blocks, releases, sums);
            multiply_blocks<TYPE, 0>(s, ring, z, count.z_blocks, releases, gates);
            products_wait<0>();
            settle(sums);
            settle(gates);
            if (releases) barrier_arrive(shared_address(s.empty + ring.held));
            ring.held = -1;
            if (q + step >= count.chunks) leave_tile();
            if (WIDE) {
                write_wide(p, sums, gates, s.inverse, at, q * COLUMNS, wave, lane);
                continue;
            }
            if (p.has_residual) {
                barrier_wait(added, added_parity);
                added_parity ^= 1;
            } else {
                named_barrier(out_barrier, WARPGROUP);
            }
            write_outputs<TYPE>(sums, gates, s.inverse + q * COLUMNS, p.has_residual, 0, out, wave, lane);
            fence_async();
            named_barrier(out_barrier, WARPGROUP);
            if (thread == 0) {
                for (int b = 0; b < OUT_BLOCKS; b++)
                    if (q * COLUMNS + b * 64 < p.c_out)
                        bulk_store(p.out, out + b * BLOCK_BYTES, q * COLUMNS + b * 64, at.j(), at.i, at.batch);
                bulk_store_commit();
            }
        }
    }
    /* The other warpgroup's last tile may have none beside it: its stages go back. */
    if (TILES == 2 && tile - blocks * mine < tiles)
        pass_stages(s, ring, count.chunks * (count.t_blocks + count.z_blocks), releases);
    if (thread == 0) bulk_store_wait<0>();
}

template <int OUT, int TILES> EVO_DEVICE void finish(const gpu_hopper_finish_params &p, unsigned char *raw) {
    const stream_counts count = count_blocks(p);
    const stream_places s = find_places<TILES>(p, count, raw);
    const int tiles = (p.n + GPU_HOPPER_POSITIONS - 1) / GPU_HOPPER_POSITIONS * p.rows;
    const int channels = count.chunks * COLUMNS, group = warpgroup_number();
    if (thread_x() == 0) {
        for (int i = 0; i < p.stages; i++) {
            barrier_init(shared_address(s.full + i), 1);
            barrier_init(shared_address(s.empty + i), 2 * WARPGROUP / 32); /* one arrival a wave */
        }
        for (int g = 0; g < 2; g++) {
            barrier_init(shared_address(s.tile_full + g), 1);
            barrier_init(shared_address(s.added + g), 1);
        }
        barrier_init_done();
    }
    /* The pack is older than the kernel ahead. */
    for (int i = thread_x(); i < 4 * channels; i += 3 * WARPGROUP) {
        const int which = i / (2 * channels), row = i / 2 % channels;
        write_shared(s.bias + i, row < p.c_out ? p.bias[(which * p.c_out + row) * 2 + i % 2] : uint64_t(0));
    }
    for (int i = thread_x(); PRODUCTS<OUT> == GPU_FP16 && i < channels; i += 3 * WARPGROUP)
        s.inverse[i] = i < p.c_out ? 1.0f / p.out_scale[i] : 1.0f;
    fence_async();
    block_barrier();
    let_next_kernel_start();
    if (group == 2) {
        registers_down<40>();
        if (thread_x() % WARPGROUP < 32 && elect()) load_weights<TILES>(p, s, count, tiles);
    } else {
        registers_up<232>();
        finish_tiles<OUT, TILES>(p, s, count, tiles, group);
    }
}

#define STREAM(type, tiles)                                                                                           \
    EVO_KERNEL(evo_hopper_stream_##type##_##tiles, gpu_hopper_finish_params, 3 * WARPGROUP, 1) {                      \
        EVO_BULK_SHARED(raw);                                                                                         \
        finish<GPU_##type, tiles>(p, raw);                                                                            \
    }
STREAM(BF16, 1)
STREAM(BF16, 2)
STREAM(FP16, 1)
STREAM(FP16, 2)
STREAM(FP32, 1)
STREAM(FP32, 2)
