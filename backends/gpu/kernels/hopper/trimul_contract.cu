/*
 * trimul_contract.cu: t[c] = a[c] b[c]^T (outgoing) or a[c]^T b[c] (incoming) for every channel. A block computes tiles of 128
 * rows x COLUMNS with two warpgroups, 64 rows each, while a third only loads: a ring of stages of 64 k. Persistent; the tiles
 * of a channel are neighbours in time, so that a and b come from memory once.
 */
#include "backends/gpu/device_hopper.h"
#include "backends/gpu/kernels/hopper/params.h"
#include "backends/gpu/kernels/scales.h"

template <int COLUMNS> struct contract_shared {
    static constexpr int A_BYTES = GPU_HOPPER_ROWS * 128, STAGE_BYTES = A_BYTES + COLUMNS * 128;
    static constexpr int BUFFERS = 2; /* blocks of 64 x 64 of t of each warpgroup on their way out */
    static constexpr int STAGES = (GPU_HOPPER_SHARED - 256 - 2 * BUFFERS * BLOCK_BYTES) / STAGE_BYTES;
    unsigned char stages[STAGES][STAGE_BYTES];
    unsigned char out[2][BUFFERS][BLOCK_BYTES];
    uint64_t full[STAGES], empty[STAGES];
};

/* Where a tile stands. */
struct contract_tile {
    int batch, channel, i, j;

    template <int COLUMNS> EVO_METHOD static contract_tile of(const gpu_hopper_contract_params &p, int tile) {
        const int rows = (p.n + GPU_HOPPER_ROWS - 1) / GPU_HOPPER_ROWS, columns = (p.n + COLUMNS - 1) / COLUMNS;
        const int plane = tile / (rows * columns), in = tile - plane * (rows * columns), across = in / rows;
        const int batch = plane / p.channels;
        return { batch, plane - batch * p.channels, (in - across * rows) * GPU_HOPPER_ROWS, across * COLUMNS };
    }
    template <int COLUMNS> EVO_METHOD static int count(const gpu_hopper_contract_params &p) {
        return (p.n + GPU_HOPPER_ROWS - 1) / GPU_HOPPER_ROWS * ((p.n + COLUMNS - 1) / COLUMNS) * p.planes;
    }
};

/*
 * The loading thread. Blocks of 64 rows that lie outside are not fetched: what their place holds meets only rows and columns of t
 * that are not stored.
 */
template <int COLUMNS, bool INCOMING>
EVO_DEVICE void load_stages(const gpu_hopper_contract_params &p, contract_shared<COLUMNS> &s) {
    using shared_t = contract_shared<COLUMNS>;
    const int tiles = contract_tile::count<COLUMNS>(p), steps = (p.n + 63) / 64;
    int stage = 0, parity = 1; /* the first pass over the ring waits for nothing */
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x())) {
        const contract_tile at = contract_tile::of<COLUMNS>(p, tile);
        const int a_plane = 2 * at.batch * p.channels + at.channel, b_plane = a_plane + p.channels;
        const int a_left = (p.n - at.i + 63) / 64, b_left = (p.n - at.j + 63) / 64;
        const int a_blocks = a_left < 2 ? a_left : 2, b_blocks = b_left < COLUMNS / 64 ? b_left : COLUMNS / 64;
        for (int k = 0; k < steps; k++) {
            const uint32_t a = shared_address(s.stages) + stage * shared_t::STAGE_BYTES, b = a + shared_t::A_BYTES;
            const uint32_t full = shared_address(s.full) + stage * 8;
            auto load = [&](uint32_t target, int row, int plane) {
                bulk_load(target, p.ab, full, INCOMING ? row : k * 64, INCOMING ? k * 64 : row, plane);
            };
            barrier_wait(shared_address(s.empty) + stage * 8, parity);
            barrier_expect(full, (a_blocks + b_blocks) * BLOCK_BYTES);
            if (a_blocks == 2 && b_blocks == COLUMNS / 64) { /* unrolled: one thread issues every load */
                load(a, at.i, a_plane);
                load(a + BLOCK_BYTES, at.i + 64, a_plane);
                EVO_UNROLL
                for (int r = 0; r < COLUMNS / 64; r++) load(b + r * BLOCK_BYTES, at.j + r * 64, b_plane);
            } else {
                for (int r = 0; r < a_blocks; r++) load(a + r * BLOCK_BYTES, at.i + r * 64, a_plane);
                for (int r = 0; r < b_blocks; r++) load(b + r * BLOCK_BYTES, at.j + r * 64, b_plane);
            }
            if (++stage == shared_t::STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
}

/* A multiplying warpgroup's place in the ring. */
struct contract_ring {
    uint32_t stages, full, empty;
    int stage, parity;
};

/* The whole sum over k of 64 rows, as wide as d. */
template <int TYPE, int COLUMNS, bool INCOMING, int COUNT>
EVO_DEVICE void multiply_stages(contract_ring &ring, int steps, int group, bool releases, float (&d)[COUNT]) {
    using shared_t = contract_shared<COLUMNS>;
    constexpr int STEP_BYTES = INCOMING ? 2048 : 32;
    int last = 0; /* the stage whose product is in flight */
    for (int k = 0; k < steps; k++) {
        const uint32_t a = ring.stages + ring.stage * shared_t::STAGE_BYTES + group * BLOCK_BYTES;
        const uint32_t b = ring.stages + ring.stage * shared_t::STAGE_BYTES + shared_t::A_BYTES;
        const uint64_t x = shared_operand(a, BLOCK_BYTES), y = shared_operand(b, BLOCK_BYTES);
        barrier_wait(ring.full + ring.stage * 8, ring.parity);
        products_begin();
        EVO_UNROLL
        for (int kk = 0; kk < 4; kk++)
            multiply<TYPE, INCOMING>(d, advance(x, kk * STEP_BYTES), advance(y, kk * STEP_BYTES), k + kk > 0);
        products_commit();
        products_wait<1>(); /* the product before this one is done: its stage goes back */
        if (k > 0 && releases) barrier_arrive(ring.empty + last * 8);
        last = ring.stage;
        if (++ring.stage == shared_t::STAGES) {
            ring.stage = 0;
            ring.parity ^= 1;
        }
    }
    products_wait<0>();
    settle(d);
    if (releases) barrier_arrive(ring.empty + last * 8);
}

/* Nothing of t stands here: only gives the stages back. */
template <int COLUMNS> EVO_DEVICE void skip_stages(contract_ring &ring, int steps, bool releases) {
    for (int k = 0; k < steps; k++) {
        barrier_wait(ring.full + ring.stage * 8, ring.parity);
        wave_barrier(); /* all lanes have seen it */
        if (releases) barrier_arrive(ring.empty + ring.stage * 8);
        if (++ring.stage == contract_shared<COLUMNS>::STAGES) {
            ring.stage = 0;
            ring.parity ^= 1;
        }
    }
}

/* fp16: the power of two by which the largest mask exceeds mask_unit, at least 1; in all lanes of a wave. */
EVO_DEVICE float mask_excess(const gpu_hopper_contract_params &p) {
    float most = 1.0f;
    for (int i = thread_x() % 32; i < p.mask_parts; i += 32) most = larger(most, p.mask_largest[i]);
    for (int mask = 1; mask < 32; mask *= 2) most = larger(most, wave_shuffle_xor(most, mask));
    return power_of_two(exponent_above(most));
}

/* 64 rows of t, two blocks of 64 columns at a time. */
template <int TYPE, int COLUMNS>
EVO_DEVICE void write_t(const gpu_hopper_contract_params &p, const contract_tile &at, int i, uint32_t buffers,
                        int barrier, float t_scale, const float (&d)[COLUMNS / 2]) {
    const float factor = TYPE == GPU_FP16 ? p.scale[at.channel] * t_scale : 1.0f;
    constexpr int BUFFERS = contract_shared<COLUMNS>::BUFFERS;
    const int thread = thread_x() % WARPGROUP, wave = thread / 32, lane = thread % 32;
    EVO_UNROLL
    for (int q0 = 0; q0 < COLUMNS / 64; q0 += BUFFERS) {
        if (thread == 0) bulk_store_wait_read<0>();
        named_barrier(barrier, WARPGROUP);
        EVO_UNROLL
        for (int q = q0; q < q0 + BUFFERS; q++) EVO_UNROLL
        for (int m = 0; m < 8; m += 2) {
            uint32_t r[4];
            EVO_UNROLL
            for (int e = 0; e < 4; e++) {
                const float *pair = &d[q * 32 + m * 4 + 2 * e];
                r[e] = TYPE == GPU_FP16 ? pack<TYPE>(pair[0] * factor, pair[1] * factor) : pack<TYPE>(pair[0], pair[1]);
            }
            store_fragments(buffers + (q - q0) * BLOCK_BYTES + swizzled(wave * 16 + lane % 16, m + lane / 16), r);
        }
        fence_async();
        named_barrier(barrier, WARPGROUP);
        if (thread == 0) {
            EVO_UNROLL
            for (int q = q0; q < q0 + BUFFERS; q++) {
                const int block = at.j / 64 + q;
                const uint32_t buffer = buffers + (q - q0) * BLOCK_BYTES;
                if (block < p.whole_blocks)
                    bulk_store(p.t_main, buffer, 0, at.channel, block, i, at.batch);
                else if (block * 64 < p.n)
                    bulk_store(p.t_tail, buffer, 0, at.channel, 0, i, at.batch);
            }
            bulk_store_commit();
        }
    }
}

template <int TYPE, int COLUMNS, bool INCOMING>
EVO_DEVICE void multiply_tiles(const gpu_hopper_contract_params &p, contract_shared<COLUMNS> &s, int group) {
    const int tiles = contract_tile::count<COLUMNS>(p), steps = (p.n + 63) / 64;
    const bool releases = thread_x() % 32 == 0; /* a wave's wait says nothing about the other three */
    contract_ring ring = { shared_address(s.stages), shared_address(s.full), shared_address(s.empty), 0, 0 };
    float t_scale = 1.0f;
    if (TYPE == GPU_FP16) {
        wait_for_kernel_ahead();
        const float excess = mask_excess(p);
        t_scale = p.t_scale / (excess * excess);
        if (block_x() == 0 && thread_x() == 0) *p.mask_scale = p.mask_unit * excess;
    }
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x())) {
        const contract_tile at = contract_tile::of<COLUMNS>(p, tile);
        const int i = at.i + group * 64;
        float d[COLUMNS / 2];
        if (i >= p.n) {
            skip_stages<COLUMNS>(ring, steps, releases);
            continue;
        }
        /* The last columns of a ragged N: as few as there is a product for. */
        if (COLUMNS == 256 && p.n - at.j <= 64)
            multiply_stages<TYPE, COLUMNS, INCOMING>(ring, steps, group, releases, reinterpret_cast<float(&)[32]>(d));
        else if (p.n - at.j <= COLUMNS / 2)
            multiply_stages<TYPE, COLUMNS, INCOMING>(ring, steps, group, releases,
                                                     reinterpret_cast<float(&)[COLUMNS / 4]>(d));
        else
            multiply_stages<TYPE, COLUMNS, INCOMING>(ring, steps, group, releases, d);
        write_t<TYPE, COLUMNS>(p, at, i, shared_address(s.out[group]), 1 + group, t_scale, d);
    }
    if (thread_x() % WARPGROUP == 0) bulk_store_wait<0>();
}

template <int TYPE, int COLUMNS, bool INCOMING>
EVO_DEVICE void contract(const gpu_hopper_contract_params &p, unsigned char *raw) {
    contract_shared<COLUMNS> &s = *reinterpret_cast<contract_shared<COLUMNS> *>(raw);
    if (thread_x() == 0) {
        for (int i = 0; i < contract_shared<COLUMNS>::STAGES; i++) {
            barrier_init(shared_address(&s.full[i]), 1);
            barrier_init(shared_address(&s.empty[i]), 2 * WARPGROUP / 32); /* one arrival a wave */
        }
        barrier_init_done();
    }
    block_barrier();
    let_next_kernel_start();
    const int group = warpgroup_number();
    if (group == 2) {
        registers_down<40>();
        if (thread_x() % WARPGROUP < 32 && elect()) {
            wait_for_kernel_ahead();
            load_stages<COLUMNS, INCOMING>(p, s);
        }
    } else {
        registers_up<232>();
        multiply_tiles<TYPE, COLUMNS, INCOMING>(p, s, group);
    }
}

#define CONTRACT(type, columns, direction, incoming)                                                                  \
    EVO_KERNEL(evo_hopper_contract_##type##_##columns##_##direction, gpu_hopper_contract_params, 3 * WARPGROUP, 1) {  \
        static_assert(sizeof(contract_shared<columns>) <= GPU_HOPPER_SHARED, "shared memory");                        \
        EVO_BULK_SHARED(raw);                                                                                         \
        contract<GPU_##type, columns, incoming>(p, raw);                                                              \
    }
CONTRACT(BF16, 128, OUT, false)
CONTRACT(BF16, 128, IN, true)
CONTRACT(BF16, 256, OUT, false)
CONTRACT(BF16, 256, IN, true)
CONTRACT(FP16, 128, OUT, false)
CONTRACT(FP16, 128, IN, true)
CONTRACT(FP16, 256, OUT, false)
CONTRACT(FP16, 256, IN, true)
