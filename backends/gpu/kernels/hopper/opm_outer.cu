/*
 * opm_outer.cu: outer first on tier `hopper`. A tile is 64 x 4 pairs (i, j) and all 128 channels of z, whose sums stay in
 * registers while the block walks over c_a:
 *
 *     o[i, (j, c_b)]  = sum over s of a[c_a][i, s] * b[(j, c_b), s]      64 x 64 a warpgroup, both operands in shared memory
 *     z[(i, j), q]   += o[i, (j, c_b)] * W_o[q, c_a, c_b]                64 x 128 for each j, o from registers
 *
 * A warpgroup's sums of the first product, rounded, are its operand of the second: o is never in memory. Two warpgroups
 * multiply, two j each, and hide each other's gaps. In the third one thread copies: b's tile of up to 512 s stays for all c_a,
 * a and W_o pass through rings; two waves count the pairs of the same tile meanwhile. A longer S goes chunk by chunk, each
 * projected by itself. Persistent; neighbours in time share i, so that a comes from the cache.
 */
#include "backends/cuda/device_hopper.h"
#include "backends/gpu/kernels/hopper/params.h"
#include "backends/gpu/kernels/opm/output.h"

static constexpr int ROWS = GPU_OPM_HOPPER_ROWS, COLS = GPU_OPM_HOPPER_COLS, C = GPU_OPM_HOPPER_HIDDEN;
static constexpr int COLUMNS = GPU_OPM_HOPPER_COLUMNS, PAIRS = ROWS * COLS;
static constexpr int PARTS = 2, SLAB = PARTS * 64; /* numbers of S that pass at once */
static constexpr int CHUNK = 4;                    /* slabs of b's tile */
static constexpr int A_STAGES = 4, W_STAGES = 2;   /* of W_o: two c_a each */
static constexpr int A_PART = ROWS * 128, B_PART = COLS * C * 128, W_BYTES = COLUMNS * 128;
static constexpr int MULTIPLIERS = 2 * WARPGROUP, COUNTERS = 2; /* threads; waves */
static_assert(COLS * C * 64 == 2 * 64 * 64, "a warpgroup's 64 rows of b are two j");

struct outer_shared {
    unsigned char a[A_STAGES][PARTS][A_PART];
    unsigned char weight[W_STAGES][W_BYTES];
    unsigned char b[CHUNK][PARTS][B_PART];
    float counts[COUNTERS][PAIRS]; /* [j][i]: of every second s */
    uint64_t full_a[A_STAGES], empty_a[A_STAGES], full_w[W_STAGES], empty_w[W_STAGES], full_b[CHUNK], empty_b[CHUNK];
    uint64_t counted, read;
};
static_assert(sizeof(outer_shared) <= GPU_HOPPER_SHARED, "shared memory");

/* A place in a's ring. */
struct ring_place {
    int stage, parity;

    EVO_METHOD void next() {
        if (++stage < A_STAGES) return;
        stage = 0;
        parity ^= 1;
    }
};

/* W_o's ring, whose rounds a walk over c_a is an even number of: it needs no memory. */
static_assert(C / 2 % (2 * W_STAGES) == 0, "an even number of rounds");
EVO_DEVICE int weight_stage(int c_a) {
    return c_a / 2 % W_STAGES;
}
EVO_DEVICE int weight_parity(int c_a) {
    return c_a / 2 / W_STAGES % 2;
}

struct outer_tile {
    int batch, i, j;

    EVO_METHOD static int count(const gpu_opm_hopper_params &p) {
        return (p.row_count + ROWS - 1) / ROWS * ((p.col_count + COLS - 1) / COLS) * p.batch_count;
    }
    EVO_METHOD static outer_tile of(const gpu_opm_hopper_params &p, int tile) {
        const int rows = (p.row_count + ROWS - 1) / ROWS, cols = (p.col_count + COLS - 1) / COLS;
        const int row = tile / cols, batch = row / rows;
        return { batch, (row - batch * rows) * ROWS, (tile - row * cols) * COLS };
    }
};

EVO_DEVICE int slabs_of(const gpu_opm_hopper_params &p) {
    return (p.output.s + SLAB - 1) / SLAB;
}
EVO_DEVICE int chunk_of(int slabs, int first) {
    return slabs - first < CHUNK ? slabs - first : CHUNK;
}

/* --- The copying thread --- */

EVO_DEVICE void load_tiles(const gpu_opm_hopper_params &p, outer_shared &s) {
    const int tiles = outer_tile::count(p), slabs = slabs_of(p);
    ring_place a = { 0, 1 };   /* the first pass over a ring waits for nothing */
    uint32_t b_parities = ~0u; /* a bit a slab: the last chunk may be shorter */
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x())) {
        const outer_tile at = outer_tile::of(p, tile);
        for (int first = 0; first < slabs; first += CHUNK) {
            const int count = chunk_of(slabs, first);
            for (int c_a = 0; c_a < C; c_a++) {
                if (c_a % 2 == 0) {
                    const int stage = weight_stage(c_a);
                    const uint32_t full = shared_address(&s.full_w[stage]);
                    barrier_wait(shared_address(&s.empty_w[stage]), weight_parity(c_a) ^ 1);
                    barrier_expect(full, W_BYTES);
                    bulk_load(shared_address(s.weight[stage]), p.weight, full, 0, 0, c_a / 2);
                }
                for (int k = 0; k < count; k++) {
                    const int from = (first + k) * SLAB;
                    if (c_a == 0) { /* as the last c_a of the tile before lets go of its slabs */
                        const uint32_t full = shared_address(&s.full_b[k]);
                        barrier_wait(shared_address(&s.empty_b[k]), static_cast<int>(b_parities >> k & 1u));
                        b_parities ^= 1u << k;
                        barrier_expect(full, PARTS * B_PART);
                        EVO_UNROLL
                        for (int n = 0; n < PARTS; n++)
                            bulk_load(shared_address(s.b[k][n]), p.b, full, from + n * 64, 0, at.j, at.batch);
                    }
                    const uint32_t full = shared_address(&s.full_a[a.stage]);
                    barrier_wait(shared_address(&s.empty_a[a.stage]), a.parity);
                    barrier_expect(full, PARTS * A_PART);
                    EVO_UNROLL
                    for (int n = 0; n < PARTS; n++)
                        bulk_load(shared_address(s.a[a.stage][n]), p.a, full, from + n * 64, at.i, c_a, at.batch);
                    a.next();
                }
            }
        }
    }
}

/* --- The counting waves --- */

/* Masks of one batch entry: where a lane's two rows and the four columns stand at s = 0. */
struct count_places {
    int64_t batch;
    int row[2], col[COLS]; /* 32 bits, as the host has made sure: there are few registers */

    EVO_METHOD void start(const gpu_opm_hopper_params &p, const outer_tile &at, int lane) {
        const int step = static_cast<int>(p.output.mask.strides[2]);
        batch = (p.output.batch_begin + at.batch) * p.output.mask.strides[0];
        EVO_UNROLL
        for (int r = 0; r < 2; r++) { /* pairs beyond the tile count as its last ones */
            const int i = at.i + lane + 32 * r;
            row[r] = (static_cast<int>(p.row_begin) + (i < p.row_count ? i : p.row_count - 1)) * step;
        }
        EVO_UNROLL
        for (int c = 0; c < COLS; c++) {
            const int j = at.j + c < p.col_count ? at.j + c : p.col_count - 1;
            col[c] = (static_cast<int>(p.col_begin) + j) * step;
        }
    }
};

/* TOGETHER of every second s from s on, all read before any is used. */
template <int TYPE, int TOGETHER>
EVO_DEVICE void count_step(const gpu_tensor &mask, const count_places &at, int s, float (&sum)[2][COLS]) {
    float x[TOGETHER][2], y[TOGETHER][COLS];
    EVO_UNROLL
    for (int u = 0; u < TOGETHER; u++) {
        const int offset = (s + COUNTERS * u) * static_cast<int>(mask.strides[1]);
        EVO_UNROLL
        for (int r = 0; r < 2; r++) x[u][r] = load_number(mask.data, TYPE, at.batch + (at.row[r] + offset));
        EVO_UNROLL
        for (int c = 0; c < COLS; c++) y[u][c] = load_number(mask.data, TYPE, at.batch + (at.col[c] + offset));
    }
    EVO_UNROLL
    for (int u = 0; u < TOGETHER; u++) EVO_UNROLL
    for (int r = 0; r < 2; r++) EVO_UNROLL
    for (int c = 0; c < COLS; c++) sum[r][c] = multiply_add(x[u][r], y[u][c], sum[r][c]);
}

template <int TYPE>
EVO_DEVICE void count_pairs(const gpu_opm_output &o, const count_places &at, int s, float (&sum)[2][COLS]) {
    constexpr int TOGETHER = TYPE == GPU_FP64 ? 1 : 4; /* as there are registers for */
    EVO_NO_UNROLL
    for (; s + COUNTERS * (TOGETHER - 1) < o.s; s += COUNTERS * TOGETHER)
        count_step<TYPE, TOGETHER>(o.mask, at, s, sum);
    EVO_NO_UNROLL
    for (; s < o.s; s += COUNTERS) count_step<TYPE, 1>(o.mask, at, s, sum);
}

template <int TYPE> EVO_DEVICE void count_tiles(const gpu_opm_hopper_params &p, outer_shared &s, int wave, int lane) {
    const int tiles = outer_tile::count(p);
    int parity = 1;
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x())) {
        float sum[2][COLS] = {};
        count_places at;
        at.start(p, outer_tile::of(p, tile), lane);
        count_pairs<TYPE>(p.output, at, wave, sum);
        barrier_wait(shared_address(&s.read), parity); /* those of the tile before */
        parity ^= 1;
        EVO_UNROLL
        for (int r = 0; r < 2; r++) EVO_UNROLL
        for (int c = 0; c < COLS; c++) s.counts[wave][c * ROWS + r * 32 + lane] = sum[r][c];
        barrier_arrive(shared_address(&s.counted));
    }
}

EVO_DEVICE void count_masks(const gpu_opm_hopper_params &p, outer_shared &s, int wave, int lane) {
    switch (p.output.mask.dtype) {
    case GPU_FP64:
        return count_tiles<GPU_FP64>(p, s, wave, lane);
    case GPU_FP32:
        return count_tiles<GPU_FP32>(p, s, wave, lane);
    case GPU_UINT8:
        return count_tiles<GPU_UINT8>(p, s, wave, lane);
    case GPU_FP16:
        return count_tiles<GPU_FP16>(p, s, wave, lane);
    case GPU_BF16:
        return count_tiles<GPU_BF16>(p, s, wave, lane);
    default: /* no mask: nothing to count */
        return;
    }
}

/* --- The multiplying warpgroups --- */

/* Stages whose products the next wait finds finished: they go back. */
struct finished_stages {
    int a, b, w; /* -1: none */
    bool releases;

    EVO_METHOD void release(outer_shared &s) {
        if (releases) {
            if (a >= 0) barrier_arrive(shared_address(&s.empty_a[a]));
            if (b >= 0) barrier_arrive(shared_address(&s.empty_b[b]));
            if (w >= 0) barrier_arrive(shared_address(&s.empty_w[w]));
        }
        a = b = w = -1;
    }
};

/* What a warpgroup holds: z of its two j, o of both. */
struct outer_sums {
    float z[2][64], o[32];
    uint32_t rounded[4][4]; /* o as operands of 16 c_b each */
};

/* Reciprocals of the normalisers of rows l / 4 and that + 8 of this wave, for both j. */
EVO_DEVICE void invert_counts(const gpu_opm_hopper_params &p, outer_shared &s, int row, int col, int parity,
                              float (&by)[2][2]) {
    const bool masked = p.output.mask.dtype != GPU_NONE;
    if (masked) barrier_wait(shared_address(&s.counted), parity);
    EVO_UNROLL
    for (int w = 0; w < 2; w++) EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int pair = (col + w) * ROWS + row + 8 * h;
        const float count = masked ? s.counts[0][pair] + s.counts[1][pair] : static_cast<float>(p.output.s);
        by[w][h] = 1.0f / normaliser(p.output, count);
    }
    if (masked) barrier_arrive(shared_address(&s.read));
}

/* Four lanes hold pairs of columns 2 l of four blocks of 8: afterwards lane l has all 8 of block l. */
EVO_DEVICE void gather_blocks(uint32_t (&v)[4], int lane) {
    const bool odd = lane & 1, upper = lane & 2;
    const uint32_t a = wave_shuffle_xor(odd ? v[0] : v[1], 1), b = wave_shuffle_xor(odd ? v[2] : v[3], 1);
    v[0] = odd ? a : v[0]; /* indices that the compiler knows: v stays in registers */
    v[1] = odd ? v[1] : a;
    v[2] = odd ? b : v[2];
    v[3] = odd ? v[3] : b;
    const uint32_t c = wave_shuffle_xor(upper ? v[0] : v[2], 2), d = wave_shuffle_xor(upper ? v[1] : v[3], 2);
    v[0] = upper ? c : v[0];
    v[2] = upper ? v[2] : c;
    v[1] = upper ? d : v[1];
    v[3] = upper ? v[3] : d;
}

/* The output of one pair: row l / 4 + 8 h of this wave's sums, 16 bytes a lane at a time. */
EVO_DEVICE void write_z(const gpu_opm_output &o, const float (&z)[64], int h, float by, uint16_t *out,
                        const uint16_t *residual) {
    const int lane = thread_x() % 4;
    EVO_UNROLL
    for (int block = 0; block < COLUMNS / 8; block += 4) {
        uint32_t v[4];
        EVO_UNROLL
        for (int t = 0; t < 4; t++) {
            const int column = 8 * (block + t) + 2 * lane;
            const uint2_t bias = *reinterpret_cast<const uint2_t *>(o.bias + column);
            const float *sum = &z[4 * (block + t) + 2 * h], bias_low = bits_float(bias.x),
                        bias_high = bits_float(bias.y);
            float low = o.divide_after ? (sum[0] + bias_low) * by : multiply_add(sum[0], by, bias_low);
            float high = o.divide_after ? (sum[1] + bias_high) * by : multiply_add(sum[1], by, bias_high);
            if (residual) {
                const uint32_t pair = *reinterpret_cast<const uint32_t *>(residual + column);
                low += low_of<GPU_BF16>(pair);
                high += high_of<GPU_BF16>(pair);
            }
            v[t] = pack<GPU_BF16>(low, high);
        }
        gather_blocks(v, lane);
        if (out)
            *reinterpret_cast<float4_t *>(out + 8 * (block + lane)) = { bits_float(v[0]), bits_float(v[1]),
                                                                        bits_float(v[2]), bits_float(v[3]) };
    }
}

/* Where channel 0 of a pair lies; NULL: nowhere. */
EVO_DEVICE uint16_t *place_of(const gpu_tensor &t, bool valid, int64_t batch, int64_t i, int64_t j) {
    if (t.dtype == GPU_NONE || !valid) return nullptr;
    return static_cast<uint16_t *>(t.data) + batch * t.strides[0] + i * t.strides[1] + j * t.strides[2];
}

EVO_DEVICE void write_tile(const gpu_opm_hopper_params &p, const outer_tile &at, outer_shared &s, int group, int parity,
                           const float (&z)[2][64]) {
    const gpu_opm_output &o = p.output;
    const int row = thread_x() % WARPGROUP / 32 * 16 + thread_x() % 32 / 4;
    const int64_t batch = o.batch_begin + at.batch;
    float by[2][2];
    invert_counts(p, s, row, 2 * group, parity, by);
    EVO_UNROLL
    for (int w = 0; w < 2; w++) EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int i = at.i + row + 8 * h, j = at.j + 2 * group + w;
        const bool valid = i < p.row_count && j < p.col_count;
        write_z(o, z[w], h, by[w][h], place_of(o.out, valid, batch, p.row_begin + i, p.col_begin + j),
                place_of(o.residual, valid, batch, p.row_begin + i, p.col_begin + j));
    }
}

EVO_DEVICE void multiply_tiles(const gpu_opm_hopper_params &p, outer_shared &s, int group) {
    const int tiles = outer_tile::count(p), slabs = slabs_of(p);
    ring_place a = { 0, 0 };
    uint32_t b_parities = 0;
    int counted = 0;
    finished_stages done = { -1, -1, -1, thread_x() % 32 == 0 }; /* a wave's wait says nothing about the other three */
    outer_sums sum;
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x())) {
        for (int first = 0; first < slabs; first += CHUNK) {
            const int count = chunk_of(slabs, first);
            for (int c_a = 0; c_a < C; c_a++) {
                for (int k = 0; k < count; k++) {
                    if (c_a == 0) {
                        barrier_wait(shared_address(&s.full_b[k]), static_cast<int>(b_parities >> k & 1u));
                        b_parities ^= 1u << k;
                    }
                    barrier_wait(shared_address(&s.full_a[a.stage]), a.parity);
                    const uint64_t x = operand(shared_address(s.a[a.stage])),
                                   y = operand(shared_address(s.b[k]) + group * BLOCK_BYTES);
                    products_begin();
                    EVO_UNROLL
                    for (int n = 0; n < PARTS; n++) EVO_UNROLL
                    for (int kk = 0; kk < 4; kk++)
                        multiply<GPU_BF16, 0>(sum.o, advance(x, n * A_PART + kk * 32), advance(y, n * B_PART + kk * 32),
                                              k | n | kk);
                    products_commit();
                    products_wait<1>(); /* the slab before is done, or the projection of the channel before */
                    done.release(s);
                    done.a = a.stage;
                    if (c_a == C - 1) done.b = k;
                    a.next();
                }
                products_wait<0>(); /* the other warpgroup has the matrix units meanwhile */
                settle(sum.o);
                done.release(s);
                EVO_UNROLL
                for (int e = 0; e < 16; e++) sum.rounded[e / 4][e % 4] = pack<GPU_BF16>(sum.o[2 * e], sum.o[2 * e + 1]);
                const int stage = weight_stage(c_a);
                if (c_a % 2 == 0) barrier_wait(shared_address(&s.full_w[stage]), weight_parity(c_a));
                const uint64_t weight = operand(shared_address(s.weight[stage]) + c_a % 2 * 64);
                products_begin();
                multiply<GPU_BF16>(sum.z[0], sum.rounded[0], weight, c_a | first);
                multiply<GPU_BF16>(sum.z[1], sum.rounded[2], weight, c_a | first);
                multiply<GPU_BF16>(sum.z[0], sum.rounded[1], advance(weight, 32), 1);
                multiply<GPU_BF16>(sum.z[1], sum.rounded[3], advance(weight, 32), 1);
                products_commit(); /* left running under the next channel's products */
                if (c_a % 2) done.w = stage;
            }
        }
        products_wait<0>();
        settle(sum.z[0]);
        settle(sum.z[1]);
        done.release(s);
        write_tile(p, outer_tile::of(p, tile), s, group, counted, sum.z);
        counted ^= 1;
    }
}

EVO_KERNEL(evo_hopper_outer_BF16, gpu_opm_hopper_params, 3 * WARPGROUP, 1) {
    EVO_BULK_SHARED(raw);
    outer_shared &s = *reinterpret_cast<outer_shared *>(raw);
    if (thread_x() == 0) {
        constexpr int WAVES = MULTIPLIERS / 32; /* one arrival a wave */
        auto init = [](uint64_t *full, uint64_t *empty, int stages) {
            for (int i = 0; i < stages; i++) {
                barrier_init(shared_address(full + i), 1);
                barrier_init(shared_address(empty + i), WAVES);
            }
        };
        init(s.full_a, s.empty_a, A_STAGES);
        init(s.full_w, s.empty_w, W_STAGES);
        init(s.full_b, s.empty_b, CHUNK);
        barrier_init(shared_address(&s.counted), COUNTERS * 32);
        barrier_init(shared_address(&s.read), MULTIPLIERS);
        barrier_init_done();
    }
    block_barrier();
    let_next_kernel_start();
    wait_for_kernel_ahead();
    const int group = warpgroup_number();
    if (group == 2) {
        registers_down<56>();
        const int wave = thread_x() % WARPGROUP / 32;
        if (wave >= COUNTERS) {
            count_masks(p, s, wave - COUNTERS, thread_x() % 32);
        } else if (wave == 0 && elect()) {
            load_tiles(p, s);
        }
    } else {
        registers_up<224>();
        multiply_tiles(p, s, group);
    }
}
