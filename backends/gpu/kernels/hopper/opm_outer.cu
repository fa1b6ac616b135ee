/*
 * opm_outer.cu: outer first on tier `hopper`. A tile is 64 x 4 pairs (i, j) and COLUMNS channels of z, whose sums stay in
 * registers while the block walks over c_a:
 *
 *     o[i, (j, c_b)]  = sum over s of a[c_a][i, s] * b[(j, c_b), s]      64 x 64 a warpgroup, both operands in shared memory
 *     z[(i, j), q]   += o[i, (j, c_b)] * W_o[q, c_a, c_b]                64 x COLUMNS for each j, o from registers
 *
 * A warpgroup's sums of the first product, rounded, are its operand of the second: o is never in memory. Two warpgroups
 * multiply, two j each, and hide each other's gaps. In the third one thread copies: b's tile of up to 512 s stays for all c_a,
 * a and W_o pass through rings; two waves count the pairs of the next tile meanwhile. What is linear in o goes part by part:
 * blocks of 32 c_b, chunks of S. Persistent; neighbours in time share i, so that a comes from the cache.
 */
#include "backends/cuda/device_hopper.h"
#include "backends/gpu/kernels/hopper/params.h"
#include "backends/gpu/kernels/opm/output.h"
#include "backends/gpu/kernels/scales.h"

static constexpr int ROWS = GPU_OPM_HOPPER_ROWS, COLS = GPU_OPM_HOPPER_COLS, HIDDEN = GPU_OPM_HOPPER_HIDDEN;
static constexpr int PAIRS = ROWS * COLS;
static constexpr int A_PART = ROWS * 128, B_PART = COLS * HIDDEN * 128; /* bytes of 64 numbers of S */
static constexpr int MULTIPLIERS = 2 * WARPGROUP, COUNTERS = 2;         /* threads; waves */
static_assert(COLS * HIDDEN * 64 == 2 * 64 * 64, "a warpgroup's 64 rows of b are two j");

/*
 * How much of everything a block holds. A slab is what passes of S at once: PARTS * 64. With one part all of S is one slab, and
 * so a c_a needs little of a, but as much of W_o as ever.
 */
template <int TYPE_, int COLUMNS_, int PARTS_> struct outer_form {
    static constexpr int TYPE = TYPE_, COLUMNS = COLUMNS_, PARTS = PARTS_, SLAB = PARTS * 64;
    static constexpr int CHUNK = PARTS == 1 ? 1 : 4;                          /* slabs of b's tile */
    static constexpr int A_STAGES = 8 / PARTS, W_STAGES = PARTS == 1 ? 4 : 2; /* of W_o: two c_a each */
    static constexpr int W_BYTES = COLUMNS * 128;
};

/* Of a tile's pairs, [j][i]: what z is multiplied by at last, and (fp16) o before it is rounded. */
struct pair_numbers {
    float by[PAIRS], scale[PAIRS];
};

template <class FORM> struct outer_shared {
    unsigned char a[FORM::A_STAGES][FORM::PARTS][A_PART];
    unsigned char weight[FORM::W_STAGES][FORM::W_BYTES];
    unsigned char b[FORM::CHUNK][FORM::PARTS][B_PART];
    pair_numbers pairs;
    float bias[FORM::COLUMNS]; /* from global memory each would wait behind the stores before it */
    uint64_t full_a[FORM::A_STAGES], empty_a[FORM::A_STAGES], full_w[FORM::W_STAGES], empty_w[FORM::W_STAGES];
    uint64_t full_b[FORM::CHUNK], empty_b[FORM::CHUNK];
    uint64_t counted, read;
};

/* A place in a ring of STAGES, a power of two: the number of stages that have passed. */
template <int STAGES> struct ring_place {
    uint32_t passed;

    EVO_METHOD int stage() const {
        return static_cast<int>(passed % STAGES);
    }
    EVO_METHOD int parity() const {
        return static_cast<int>(passed / STAGES % 2);
    }
};

struct outer_tile {
    int batch, z, i, j;

    EVO_METHOD static int count(const gpu_opm_hopper_params &p) {
        return (p.row_count + ROWS - 1) / ROWS * ((p.col_count + COLS - 1) / COLS) * p.z_groups * p.batch_count;
    }
    template <int COLUMNS> EVO_METHOD static outer_tile of(const gpu_opm_hopper_params &p, int tile) {
        const int rows = (p.row_count + ROWS - 1) / ROWS, cols = (p.col_count + COLS - 1) / COLS;
        const int across = tile / cols, row = across / p.z_groups, batch = row / rows;
        return { batch, (across - row * p.z_groups) * COLUMNS, (row - batch * rows) * ROWS,
                 (tile - across * cols) * COLS };
    }
};

template <class FORM> EVO_DEVICE int slabs_of(const gpu_opm_hopper_params &p) {
    return (p.output.s + FORM::SLAB - 1) / FORM::SLAB;
}
template <class FORM> EVO_DEVICE int chunk_of(int slabs, int first) {
    return slabs - first < FORM::CHUNK ? slabs - first : FORM::CHUNK;
}

/* --- The copying thread --- */

template <class FORM> EVO_DEVICE void load_tiles(const gpu_opm_hopper_params &p, outer_shared<FORM> &s) {
    const int tiles = outer_tile::count(p), slabs = slabs_of<FORM>(p);
    ring_place<FORM::A_STAGES> a = { 0 };
    ring_place<FORM::W_STAGES> w = { 0 };
    uint32_t b_parities = ~0u; /* a bit a slab: the last chunk may be shorter */
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x())) {
        const outer_tile at = outer_tile::of<FORM::COLUMNS>(p, tile);
        for (int c_b = 0; c_b < p.c; c_b += HIDDEN)
            for (int first = 0; first < slabs; first += FORM::CHUNK) {
                const int count = chunk_of<FORM>(slabs, first);
                for (int c_a = 0; c_a < p.c_a; c_a++) {
                    if (c_a % 2 == 0) {
                        const uint32_t full = shared_address(&s.full_w[w.stage()]);
                        barrier_wait(shared_address(&s.empty_w[w.stage()]), w.parity() ^ 1);
                        barrier_expect(full, FORM::W_BYTES);
                        bulk_load(shared_address(s.weight[w.stage()]), p.weight, full, 0, at.z,
                                  (c_b / HIDDEN * p.c_a + c_a) / 2);
                        w.passed++;
                    }
                    for (int k = 0; k < count; k++) {
                        const int from = (first + k) * FORM::SLAB;
                        if (c_a == 0) { /* as the last c_a of the part before lets go of its slabs */
                            const uint32_t full = shared_address(&s.full_b[k]);
                            barrier_wait(shared_address(&s.empty_b[k]), static_cast<int>(b_parities >> k & 1u));
                            b_parities ^= 1u << k;
                            barrier_expect(full, FORM::PARTS * B_PART);
                            EVO_UNROLL
                            for (int n = 0; n < FORM::PARTS; n++)
                                bulk_load(shared_address(s.b[k][n]), p.b, full, from + n * 64, c_b, at.j, at.batch);
                        }
                        const uint32_t full = shared_address(&s.full_a[a.stage()]);
                        barrier_wait(shared_address(&s.empty_a[a.stage()]), a.parity() ^ 1);
                        barrier_expect(full, FORM::PARTS * A_PART);
                        EVO_UNROLL
                        for (int n = 0; n < FORM::PARTS; n++)
                            bulk_load(shared_address(s.a[a.stage()][n]), p.a, full, from + n * 64, at.i, c_a, at.batch);
                        a.passed++;
                    }
                }
            }
    }
}

/* --- The counting waves --- */

/* Numbers of S that a wave reads at once, as there are registers for; a lane reads one of a column. */
template <bool SIZES> static constexpr int TOGETHER = SIZES ? 4 : 8;

/* Masks of one batch entry: where a lane's two rows and column lane % 4 stand at s = 0. */
struct count_places {
    int64_t batch;
    int row[2], col; /* 32 bits, as the host has made sure: there are few registers */

    EVO_METHOD void start(const gpu_opm_hopper_params &p, const outer_tile &at, int lane) {
        const int step = static_cast<int>(p.output.mask.strides[2]);
        batch = (p.output.batch_begin + at.batch) * p.output.mask.strides[0];
        EVO_UNROLL
        for (int r = 0; r < 2; r++) { /* pairs beyond the tile count as its last ones */
            const int i = at.i + lane + 32 * r;
            row[r] = (static_cast<int>(p.row_begin) + (i < p.row_count ? i : p.row_count - 1)) * step;
        }
        const int j = at.j + lane % COLS;
        col = (static_cast<int>(p.col_begin) + (j < p.col_count ? j : p.col_count - 1)) * step;
    }
};

/* Of a lane's two rows with four columns: counts, and (fp16) the most that o may be over what the weights allow. */
struct count_sums {
    float count[2][COLS], most[2][COLS];
};

/* TOGETHER numbers of S from s on, or those that there are; all are read before any is used. */
template <int MASK, bool WHOLE, bool SIZES>
EVO_DEVICE void count_step(const gpu_opm_hopper_params &p, const count_places &at, int s, int lane, count_sums &sum) {
    const gpu_tensor &mask = p.output.mask;
    const int step = static_cast<int>(mask.strides[1]), own = s + lane / COLS % TOGETHER<SIZES>, last = p.output.s;
    float x[TOGETHER<SIZES>][2], y = 0.0f;
    if (WHOLE || own < last) y = load_number(mask.data, MASK, at.batch + (at.col + own * step));
    EVO_UNROLL
    for (int u = 0; u < TOGETHER<SIZES>; u++) EVO_UNROLL
    for (int r = 0; r < 2; r++)
        x[u][r] = WHOLE || s + u < last ? load_number(mask.data, MASK, at.batch + (at.row[r] + (s + u) * step)) : 0.0f;
    EVO_UNROLL
    for (int u = 0; u < TOGETHER<SIZES>; u++) EVO_UNROLL
    for (int c = 0; c < COLS; c++) {
        const float v = wave_shuffle(y, u * COLS + c), size = p.mask_b ? finite_magnitude(v) : 1.0f;
        EVO_UNROLL
        for (int r = 0; r < 2; r++) {
            sum.count[r][c] = multiply_add(x[u][r], v, sum.count[r][c]);
            if (SIZES) sum.most[r][c] = multiply_add(finite_magnitude(x[u][r]), size, sum.most[r][c]);
        }
    }
}

/* Every second TOGETHER. */
template <int MASK, bool SIZES>
EVO_DEVICE void count_half(const gpu_opm_hopper_params &p, const count_places &at, int wave, int lane,
                           count_sums &sum) {
    constexpr int STEP = TOGETHER<SIZES>;
    int s = wave * STEP;
    EVO_NO_UNROLL
    for (; s + STEP <= p.output.s; s += COUNTERS * STEP) count_step<MASK, true, SIZES>(p, at, s, lane, sum);
    if (s < p.output.s) count_step<MASK, false, SIZES>(p, at, s, lane, sum);
}

template <bool SIZES>
EVO_DEVICE void count_masks(const gpu_opm_hopper_params &p, const outer_tile &tile, int wave, int lane,
                            count_sums &sum) {
    count_places at;
    at.start(p, tile, lane);
    switch (p.output.mask.dtype) {
    case GPU_FP64:
        return count_half<GPU_FP64, SIZES>(p, at, wave, lane, sum);
    case GPU_FP32:
        return count_half<GPU_FP32, SIZES>(p, at, wave, lane, sum);
    case GPU_UINT8:
        return count_half<GPU_UINT8, SIZES>(p, at, wave, lane, sum);
    case GPU_FP16:
        return count_half<GPU_FP16, SIZES>(p, at, wave, lane, sum);
    default:
        return count_half<GPU_BF16, SIZES>(p, at, wave, lane, sum);
    }
}

/* fp16: what keeps o below 2^14, see GPU_OPM_TENSOR_HALF. */
EVO_DEVICE float pair_scale(const gpu_opm_hopper_params &p, float most) {
    if (most <= 0.0f) return 1.0f;
    return power_of_two(14 - exponent_above(most) - 2 * (GPU_OPM_TENSOR_HALF - p.mask_exponent));
}

/* Wave 0 hands its sums to wave 1, which makes the pairs' numbers of both; a number of both waves' is added in one order. */
template <class FORM>
EVO_DEVICE void count_tiles(const gpu_opm_hopper_params &p, outer_shared<FORM> &s, int wave, int lane) {
    constexpr int HANDED_BARRIER = 1;
    constexpr bool SIZES = FORM::TYPE == GPU_FP16;
    const int tiles = outer_tile::count(p);
    const bool masked = p.output.mask.dtype != GPU_NONE;
    int parity = 1;
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x())) {
        count_sums sum = {};
        if (masked) count_masks<SIZES>(p, outer_tile::of<FORM::COLUMNS>(p, tile), wave, lane, sum);
        wave_barrier(); /* lanes may have parted, which the waves' barrier does not take */
        if (wave == 0) {
            barrier_wait(shared_address(&s.read), parity); /* those of the tile before */
            parity ^= 1;
        } else {
            named_barrier(HANDED_BARRIER, COUNTERS * 32);
        }
        EVO_UNROLL
        for (int r = 0; r < 2; r++) EVO_UNROLL
        for (int c = 0; c < COLS; c++) {
            float *const by = &s.pairs.by[c * ROWS + r * 32 + lane], *const scale =
                                                                         &s.pairs.scale[c * ROWS + r * 32 + lane];
            if (wave == 0) {
                *by = sum.count[r][c];
                if (SIZES) *scale = sum.most[r][c];
                continue;
            }
            const float all = static_cast<float>(p.output.s);
            *by = 1.0f / normaliser(p.output, masked ? *by + sum.count[r][c] : all);
            if (SIZES) *scale = pair_scale(p, masked ? *scale + sum.most[r][c] : all);
        }
        if (wave == 1) {
            const int first = outer_tile::of<FORM::COLUMNS>(p, tile).z;
            EVO_UNROLL
            for (int q = lane; q < FORM::COLUMNS; q += 32)
                s.bias[q] = first + q < p.output.c_z ? p.output.bias[first + q] : 0.0f;
        }
        wave_barrier();
        if (wave == 0)
            named_barrier(HANDED_BARRIER, COUNTERS * 32);
        else
            barrier_arrive(shared_address(&s.counted));
    }
}

/* --- The multiplying warpgroups --- */

/* Stages whose products the next wait finds finished: they go back. */
struct finished_stages {
    int a, b, w; /* -1: none */
    bool releases;

    template <class FORM> EVO_METHOD void release(outer_shared<FORM> &s) {
        if (releases) {
            if (a >= 0) barrier_arrive(shared_address(&s.empty_a[a]));
            if (b >= 0) barrier_arrive(shared_address(&s.empty_b[b]));
            if (w >= 0) barrier_arrive(shared_address(&s.empty_w[w]));
        }
        a = b = w = -1;
    }
};

/* What a warpgroup holds: z of its two j, o of both. */
template <class FORM> struct outer_sums {
    float z[2][FORM::COLUMNS / 2], o[32];
    uint32_t rounded[4][4]; /* o as operands of 16 c_b each */
    float scale[2][2];      /* fp16: of o, of rows l / 4 and that + 8 of this wave, for both j */

    EVO_METHOD void round() {
        EVO_UNROLL
        for (int e = 0; e < 16; e++) {
            const float by = FORM::TYPE == GPU_FP16 ? scale[e / 8][e % 2] : 1.0f;
            rounded[e / 4][e % 4] = pack<FORM::TYPE>(o[2 * e] * by, o[2 * e + 1] * by);
        }
    }
    EVO_METHOD void project(uint64_t weight, int accumulate) {
        products_begin();
        multiply<FORM::TYPE>(z[0], rounded[0], weight, accumulate);
        multiply<FORM::TYPE>(z[1], rounded[2], weight, accumulate);
        multiply<FORM::TYPE>(z[0], rounded[1], advance(weight, 32), 1);
        multiply<FORM::TYPE>(z[1], rounded[3], advance(weight, 32), 1);
        products_commit();
    }
};

/* This lane's row of its warpgroup's 64; the other one is that + 8. */
EVO_DEVICE int own_row() {
    return thread_x() % WARPGROUP / 32 * 16 + thread_x() % 32 / 4;
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

/* The output of one pair: row l / 4 + 8 h of this wave's sums, 16 bytes a lane at a time, from channel `first` on. */
template <class FORM>
EVO_DEVICE void write_z(const gpu_opm_hopper_params &p, const float (&z)[FORM::COLUMNS / 2], int first, int h, float by,
                        float unscale, const float *biases, uint16_t *out, const uint16_t *residual) {
    const gpu_opm_output &o = p.output;
    const int lane = thread_x() % 4;
    EVO_UNROLL
    for (int block = 0; block < FORM::COLUMNS / 8; block += 4) {
        uint32_t v[4];
        if (first + 8 * block >= o.c_z) break;
        EVO_UNROLL
        for (int t = 0; t < 4; t++) {
            const int column = first + 8 * (block + t) + 2 * lane;
            const uint2_t bias = *reinterpret_cast<const uint2_t *>(biases + column - first);
            const float *sum = &z[4 * (block + t) + 2 * h], bias_low = bits_float(bias.x),
                        bias_high = bits_float(bias.y);
            float low = sum[0], high = sum[1];
            if (FORM::TYPE == GPU_FP16) {
                const uint2_t scale = *reinterpret_cast<const uint2_t *>(p.z_scale + column);
                low *= bits_float(scale.x) * unscale;
                high *= bits_float(scale.y) * unscale;
            }
            low = o.divide_after ? (low + bias_low) * by : multiply_add(low, by, bias_low);
            high = o.divide_after ? (high + bias_high) * by : multiply_add(high, by, bias_high);
            if (residual && column < o.c_z) {
                const uint32_t pair = *reinterpret_cast<const uint32_t *>(residual + column);
                low += low_of<FORM::TYPE>(pair);
                high += high_of<FORM::TYPE>(pair);
            }
            v[t] = pack<FORM::TYPE>(low, high);
        }
        gather_blocks(v, lane);
        const int own = first + 8 * (block + lane);
        if (out && own < o.c_z)
            *reinterpret_cast<float4_t *>(out + own) = { bits_float(v[0]), bits_float(v[1]), bits_float(v[2]),
                                                         bits_float(v[3]) };
    }
}

/* Where channel 0 of a pair lies; NULL: nowhere. */
EVO_DEVICE uint16_t *place_of(const gpu_tensor &t, bool valid, int64_t batch, int64_t i, int64_t j) {
    if (t.dtype == GPU_NONE || !valid) return nullptr;
    return static_cast<uint16_t *>(t.data) + batch * t.strides[0] + i * t.strides[1] + j * t.strides[2];
}

template <class FORM>
EVO_DEVICE void write_tile(const gpu_opm_hopper_params &p, const outer_tile &at, outer_shared<FORM> &s, int group,
                           int parity, const outer_sums<FORM> &sum) {
    const gpu_opm_output &o = p.output;
    const int64_t batch = o.batch_begin + at.batch;
    const int row = own_row();
    float by[2][2], unscale[2][2] = { { 1.0f, 1.0f }, { 1.0f, 1.0f } };
    barrier_wait(shared_address(&s.counted), parity);
    EVO_UNROLL
    for (int w = 0; w < 2; w++) EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int pair = (2 * group + w) * ROWS + row + 8 * h;
        by[w][h] = s.pairs.by[pair];
        if (FORM::TYPE == GPU_FP16) unscale[w][h] = power_of_two(2 * p.mask_exponent) / s.pairs.scale[pair];
    }
    EVO_UNROLL
    for (int w = 0; w < 2; w++) EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int i = at.i + row + 8 * h, j = at.j + 2 * group + w;
        const bool valid = i < p.row_count && j < p.col_count;
        write_z<FORM>(p, sum.z[w], at.z, h, by[w][h], unscale[w][h], s.bias,
                      place_of(o.out, valid, batch, p.row_begin + i, p.col_begin + j),
                      place_of(o.residual, valid, batch, p.row_begin + i, p.col_begin + j));
    }
    barrier_arrive(shared_address(&s.read));
}

/* fp16: the scales of this lane's pairs. */
template <class FORM> EVO_DEVICE void read_scales(outer_shared<FORM> &s, int group, int parity, float (&scale)[2][2]) {
    barrier_wait(shared_address(&s.counted), parity);
    EVO_UNROLL
    for (int w = 0; w < 2; w++) EVO_UNROLL
    for (int h = 0; h < 2; h++) scale[w][h] = s.pairs.scale[(2 * group + w) * ROWS + own_row() + 8 * h];
}

template <class FORM> EVO_DEVICE void multiply_tiles(const gpu_opm_hopper_params &p, outer_shared<FORM> &s, int group) {
    const int tiles = outer_tile::count(p), slabs = slabs_of<FORM>(p);
    ring_place<FORM::A_STAGES> a = { 0 };
    ring_place<FORM::W_STAGES> w = { 0 };
    uint32_t b_parities = 0;
    int counted = 0;
    finished_stages done = { -1, -1, -1, thread_x() % 32 == 0 }; /* a wave's wait says nothing about the other three */
    outer_sums<FORM> sum;
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x())) {
        if (FORM::TYPE == GPU_FP16) read_scales(s, group, counted, sum.scale);
        for (int c_b = 0; c_b < p.c; c_b += HIDDEN)
            for (int first = 0; first < slabs; first += FORM::CHUNK) {
                const int count = chunk_of<FORM>(slabs, first);
                for (int c_a = 0; c_a < p.c_a; c_a++) {
                    for (int k = 0; k < count; k++) {
                        if (c_a == 0) {
                            barrier_wait(shared_address(&s.full_b[k]), static_cast<int>(b_parities >> k & 1u));
                            b_parities ^= 1u << k;
                        }
                        barrier_wait(shared_address(&s.full_a[a.stage()]), a.parity());
                        const uint64_t x = operand(shared_address(s.a[a.stage()])),
                                       y = operand(shared_address(s.b[k]) + group * BLOCK_BYTES);
                        products_begin();
                        EVO_UNROLL
                        for (int n = 0; n < FORM::PARTS; n++) EVO_UNROLL
                        for (int kk = 0; kk < 4; kk++)
                            multiply<FORM::TYPE, 0>(sum.o, advance(x, n * A_PART + kk * 32),
                                                    advance(y, n * B_PART + kk * 32), k | n | kk);
                        products_commit();
                        products_wait<1>(); /* the slab before is done, or the projection of the channel before */
                        done.release(s);
                        done.a = a.stage();
                        if (c_a == p.c_a - 1) done.b = k;
                        a.passed++;
                    }
                    products_wait<0>(); /* the other warpgroup has the matrix units meanwhile */
                    settle(sum.o);
                    done.release(s);
                    sum.round();
                    if (c_a % 2 == 0) barrier_wait(shared_address(&s.full_w[w.stage()]), w.parity());
                    sum.project(operand(shared_address(s.weight[w.stage()]) + c_a % 2 * 64), c_a | first | c_b);
                    if (c_a % 2) { /* left running under the next channel's products */
                        done.w = w.stage();
                        w.passed++;
                    }
                }
            }
        products_wait<0>();
        settle(sum.z[0]);
        settle(sum.z[1]);
        done.release(s);
        write_tile(p, outer_tile::of<FORM::COLUMNS>(p, tile), s, group, counted, sum);
        counted ^= 1;
    }
}

template <class FORM> EVO_DEVICE void make_pairs(const gpu_opm_hopper_params &p, unsigned char *raw) {
    static_assert(sizeof(outer_shared<FORM>) <= GPU_HOPPER_SHARED, "shared memory");
    outer_shared<FORM> &s = *reinterpret_cast<outer_shared<FORM> *>(raw);
    if (thread_x() == 0) {
        constexpr int WAVES = MULTIPLIERS / 32; /* one arrival a wave */
        auto init = [](uint64_t *full, uint64_t *empty, int stages) {
            for (int i = 0; i < stages; i++) {
                barrier_init(shared_address(full + i), 1);
                barrier_init(shared_address(empty + i), WAVES);
            }
        };
        init(s.full_a, s.empty_a, FORM::A_STAGES);
        init(s.full_w, s.empty_w, FORM::W_STAGES);
        init(s.full_b, s.empty_b, FORM::CHUNK);
        barrier_init(shared_address(&s.counted), 32);
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
            count_tiles(p, s, wave - COUNTERS, thread_x() % 32);
        } else if (wave == 0 && elect()) {
            load_tiles(p, s);
        }
    } else {
        registers_up<224>();
        multiply_tiles(p, s, group);
    }
}

#define OUTER(type, columns, parts)                                                                                   \
    EVO_KERNEL(evo_hopper_outer_##type##_##columns##_##parts, gpu_opm_hopper_params, 3 * WARPGROUP, 1) {              \
        EVO_BULK_SHARED(raw);                                                                                         \
        make_pairs<outer_form<GPU_##type, columns, parts>>(p, raw);                                                   \
    }
GPU_HOPPER_OUTER(OUTER)
