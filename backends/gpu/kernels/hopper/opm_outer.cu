/*
 * opm_outer.cu: outer first on tier `hopper`. A tile is 64 x 4 pairs (i, j) and COLUMNS channels of z, whose sums stay in
 * registers while the block walks over c_a:
 *
 *     o[i, (j, c_b)]  = sum over s of a[c_a][i, s] * b[(j, c_b), s]      64 x 64 a warpgroup, both operands in shared memory
 *     z[(i, j), q]   += o[i, (j, c_b)] * W_o[q, c_a, c_b]                64 x COLUMNS for each j, o from registers
 *
 * A warpgroup's sums of the first product, rounded, are its operand of the second: o is never in memory. Two warpgroups
 * multiply, two j each, and hide each other's gaps. In the third one thread copies: b's tile of up to 512 s stays for all c_a,
 * a and W_o pass through rings; three waves count the pairs of the next tile meanwhile. What is linear in o goes part by part:
 * blocks of 32 c_b, chunks of S. Persistent; neighbours in time share i, so that a comes from the cache. Whatever a counting
 * wave issues, the products of its quarter of the multiprocessor wait for: so it is little, and spread over three quarters.
 */
#include "backends/gpu/device_hopper.h"
#include "backends/gpu/kernels/hopper/params.h"
#include "backends/gpu/kernels/opm/output.h"
#include "backends/gpu/kernels/scales.h"

static constexpr int ROWS = GPU_OPM_HOPPER_ROWS, COLS = GPU_OPM_HOPPER_COLS, HIDDEN = GPU_OPM_HOPPER_HIDDEN;
static constexpr int PAIRS = ROWS * COLS;
static constexpr int A_PART = ROWS * 128, B_PART = COLS * HIDDEN * 128; /* bytes of 64 numbers of S */
static constexpr int MULTIPLIERS = 2 * WARPGROUP, COUNTERS = 3;         /* threads; waves */
static_assert(COLS * HIDDEN * 64 == 2 * 64 * 64, "a warpgroup's 64 rows of b are two j");

/*
 * How much of everything a block holds, and the types of the output (OUT) and of a, b and W_o (TYPE). A slab is what passes of S
 * at once: PARTS * 64. With one part all of S is one slab, and so a c_a needs little of a, but as much of W_o as ever.
 */
template <int OUT_, int COLUMNS_, int PARTS_> struct outer_form {
    static constexpr int OUT = OUT_, TYPE = OUT == GPU_FP32 ? GPU_FP16 : OUT;
    static constexpr bool SCALED = TYPE == GPU_FP16;
    static constexpr int COLUMNS = COLUMNS_, PARTS = PARTS_, SLAB = PARTS * 64;
    static constexpr int CHUNK = PARTS == 1 ? 1 : 4;                          /* slabs of b's tile */
    static constexpr int A_STAGES = 8 / PARTS, W_STAGES = PARTS == 1 ? 4 : 2; /* of W_o: two c_a each */
    static constexpr int W_BYTES = COLUMNS * 128;
};

template <class FORM> struct outer_shared {
    unsigned char a[FORM::A_STAGES][FORM::PARTS][A_PART];
    unsigned char weight[FORM::W_STAGES][FORM::W_BYTES];
    unsigned char b[FORM::CHUNK][FORM::PARTS][B_PART];
    alignas(16) float by[PAIRS];          /* [j][i]: what z is multiplied by at last */
    alignas(8) float bias[FORM::COLUMNS]; /* from global memory each would wait behind the stores before it */
    alignas(8) float z_scale[FORM::SCALED ? FORM::COLUMNS : 1];
    /* fp16, of this tile and the next: exponents above the sums of squares of residues' masks, see scale_exponent(). */
    int row_squares[2][FORM::SCALED ? ROWS : 1], col_squares[2][COLS];
    uint64_t full_a[FORM::A_STAGES], empty_a[FORM::A_STAGES], full_w[FORM::W_STAGES], empty_w[FORM::W_STAGES];
    uint64_t full_b[FORM::CHUNK], empty_b[FORM::CHUNK];
    uint64_t scaled[2]; /* of either place of the squares: a tile's may come before those of the one before are read */
    uint64_t handed[COUNTERS - 1], counted, read;
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

/*
 * A half of a wave has the whole tile of one number of S: a lane 4 rows with all 4 columns. So a number of S costs a lane one
 * load of rows, one of columns and 16 multiply-adds; the other half has the next one.
 */
static constexpr int QUAD = 4;
static_assert(COLS == QUAD && ROWS == 16 * QUAD, "a half of a wave has a tile's pairs");

/* Loads of a wave's that go out before any is used: fewer where four numbers are four loads. */
template <bool WIDE> static constexpr int TOGETHER = WIDE ? 4 : 2;

struct count_sums {
    float v[QUAD][COLS]; /* rows, columns */
};

/* A lane's four rows or the four columns: where they stand at its s, and how many of them there are. */
struct count_quad {
    const unsigned char *at;
    int stride; /* bytes from one to the next */
    int left;

    template <int MASK, bool WIDE> EVO_METHOD void load(int step, float (&x)[QUAD]) const {
        const unsigned char *const first = at + static_cast<int64_t>(step);
        if constexpr (WIDE) {
            load_four({ const_cast<unsigned char *>(first), {}, MASK, 1 }, 0, QUAD, x);
        } else {
            EVO_UNROLL
            for (int e = 0; e < QUAD; e++)
                x[e] = e < left ? load_number(first + static_cast<int64_t>(stride) * e, MASK, 0) : 0.0f;
        }
    }
};

/* COUNT numbers of S of this lane's, `step` bytes apart. */
template <int MASK, bool WIDE, int COUNT>
EVO_DEVICE void count_step(const count_quad &rows, const count_quad &cols, int step, count_sums &sum) {
    float x[COUNT][QUAD], y[COUNT][QUAD];
    EVO_UNROLL
    for (int u = 0; u < COUNT; u++) {
        rows.load<MASK, WIDE>(u * step, x[u]);
        cols.load<MASK, WIDE>(u * step, y[u]);
    }
    EVO_UNROLL
    for (int u = 0; u < COUNT; u++) EVO_UNROLL
    for (int r = 0; r < QUAD; r++) EVO_UNROLL
    for (int c = 0; c < COLS; c++) sum.v[r][c] = multiply_add(x[u][r], y[u][c], sum.v[r][c]);
}

/* This wave's share of S. */
template <int MASK, bool WIDE>
EVO_DEVICE void count_share(const gpu_opm_hopper_params &p, const outer_tile &at, int wave, int lane, count_sums &sum) {
    constexpr int STEP = 2 * TOGETHER<WIDE>, BYTES = MASK == GPU_FP64    ? 8
                                                     : MASK == GPU_FP32  ? 4
                                                     : MASK == GPU_UINT8 ? 1
                                                                         : 2;
    const gpu_tensor &mask = p.output.mask;
    const int64_t *strides = mask.strides;
    int s = wave * STEP;
    const int i = at.i + lane % 16 * QUAD, own = s + lane / 16, step = static_cast<int>(strides[1]) * BYTES,
              stride = static_cast<int>(strides[2]) * BYTES;
    const unsigned char *const first = static_cast<const unsigned char *>(mask.data) +
                                       ((p.output.batch_begin + at.batch) * strides[0] + own * strides[1]) * BYTES;
    count_quad rows = { first + (p.row_begin + i) * strides[2] * BYTES, stride, p.row_count - i },
               cols = { first + (p.col_begin + at.j) * strides[2] * BYTES, stride, p.col_count - at.j };
    auto advance_by = [&](int count) {
        s += count;
        rows.at += static_cast<int64_t>(step) * count;
        cols.at += static_cast<int64_t>(step) * count;
    };
    EVO_NO_UNROLL
    for (; s + STEP <= p.output.s; advance_by(COUNTERS * STEP))
        count_step<MASK, WIDE, TOGETHER<WIDE>>(rows, cols, 2 * step, sum);
    EVO_NO_UNROLL
    for (; s + lane / 16 < p.output.s; advance_by(2)) count_step<MASK, WIDE, 1>(rows, cols, 0, sum);
}

EVO_DEVICE void count_masks(const gpu_opm_hopper_params &p, const outer_tile &at, int wave, int lane, count_sums &sum) {
    const bool wide = p.wide_mask && p.row_count - at.i >= ROWS && p.col_count - at.j >= COLS;
    switch (p.output.mask.dtype) {
    case GPU_FP64:
        return count_share<GPU_FP64, false>(p, at, wave, lane, sum);
    case GPU_UINT8:
        return count_share<GPU_UINT8, false>(p, at, wave, lane, sum);
    case GPU_FP32:
        return wide ? count_share<GPU_FP32, true>(p, at, wave, lane, sum)
                    : count_share<GPU_FP32, false>(p, at, wave, lane, sum);
    case GPU_FP16:
        return wide ? count_share<GPU_FP16, true>(p, at, wave, lane, sum)
                    : count_share<GPU_FP16, false>(p, at, wave, lane, sum);
    default:
        return wide ? count_share<GPU_BF16, true>(p, at, wave, lane, sum)
                    : count_share<GPU_BF16, false>(p, at, wave, lane, sum);
    }
}

/* fp16: exponents above the sums of squares of the masks of a tile's 64 rows and 4 columns. */
template <class FORM>
EVO_DEVICE void add_squares(const gpu_opm_hopper_params &p, outer_shared<FORM> &s, const outer_tile &at, int buffer,
                            int lane) {
    auto last = [](int index, int count) { return index < count ? index : count - 1; };
    const float *const first = p.squares + static_cast<int64_t>(at.batch) * p.square_parts * p.residues,
                       *const low = first + p.row_begin + last(at.i + lane, p.row_count),
                       *const high = first + p.row_begin + last(at.i + lane + 32, p.row_count),
                       *const col = first + p.col_begin + last(at.j + lane % COLS, p.col_count);
    const float all = static_cast<float>(p.output.s);
    float sum[3] = { 0.0f, 0.0f, 0.0f };
    for (int part = 0; p.squares && part < p.square_parts; part++) {
        const int64_t at_part = static_cast<int64_t>(part) * p.residues;
        sum[0] += low[at_part];
        sum[1] += high[at_part];
        sum[2] += col[at_part];
    }
    s.row_squares[buffer][lane] = exponent_above(p.squares ? sum[0] : all);
    s.row_squares[buffer][lane + 32] = exponent_above(p.squares ? sum[1] : all);
    if (lane < COLS) s.col_squares[buffer][lane] = exponent_above(p.squares && p.mask_b ? sum[2] : all);
}

/* The tile's channels' numbers, past c_z zeros. */
template <class FORM>
EVO_DEVICE void copy_channels(const gpu_opm_hopper_params &p, outer_shared<FORM> &s, int first, int lane) {
    EVO_UNROLL
    for (int q = lane; q < FORM::COLUMNS; q += 32) {
        const bool there = first + q < p.output.c_z;
        s.bias[q] = there ? p.output.bias[first + q] : 0.0f;
        if (FORM::SCALED) s.z_scale[q] = there ? p.z_scale[first + q] : 0.0f;
    }
}

/* Each wave adds its sums to those of the wave before, in that order, and hands them on; the last one makes the pairs' numbers. */
template <class FORM>
EVO_DEVICE void count_tiles(const gpu_opm_hopper_params &p, outer_shared<FORM> &s, int wave, int lane) {
    const int tiles = outer_tile::count(p);
    const bool masked = p.output.mask.dtype != GPU_NONE, last = wave == COUNTERS - 1;
    const uint32_t ahead = shared_address(wave ? &s.handed[wave - 1] : &s.read), /* of the tile before */
        done = shared_address(last ? &s.counted : &s.handed[wave]);
    const int half = lane / 16;
    int parity = 0;
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x()), parity ^= 1) {
        const outer_tile at = outer_tile::of<FORM::COLUMNS>(p, tile);
        count_sums sum = {};
        if (FORM::SCALED && last) {
            add_squares(p, s, at, parity, lane);
            barrier_arrive(shared_address(&s.scaled[parity]));
        }
        if (masked) count_masks(p, at, wave, lane, sum);
        wave_barrier(); /* lanes may have parted */
        barrier_wait(ahead, wave ? parity : parity ^ 1);
        EVO_UNROLL
        for (int c = 0; c < COLS / 2; c++) { /* each half finishes two columns */
            float4_t *const place = reinterpret_cast<float4_t *>(&s.by[(2 * half + c) * ROWS + lane % 16 * QUAD]);
            float y[QUAD] = { 0.0f, 0.0f, 0.0f, 0.0f };
            if (wave) unpack(*place, y);
            EVO_UNROLL
            for (int r = 0; r < QUAD; r++) {
                const float own = half ? sum.v[r][2 + c] : sum.v[r][c], other = half ? sum.v[r][c] : sum.v[r][2 + c];
                y[r] += own + wave_shuffle_xor(other, 16);
                if (last) y[r] = 1.0f / normaliser(p.output, masked ? y[r] : static_cast<float>(p.output.s));
            }
            *place = { y[0], y[1], y[2], y[3] };
        }
        if (last) copy_channels(p, s, at.z, lane);
        barrier_arrive(done);
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
    bool is_scaled;         /* false: all scales of the wave are 1 */

    EVO_METHOD void round() {
        EVO_UNROLL
        for (int e = 0; e < 16; e++) {
            const float by = scale[e / 8][e % 2];
            if (FORM::SCALED && is_scaled)
                rounded[e / 4][e % 4] = pack<FORM::TYPE>(o[2 * e] * by, o[2 * e + 1] * by);
            else
                rounded[e / 4][e % 4] = pack<FORM::TYPE>(o[2 * e], o[2 * e + 1]);
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

/* Where channel 0 of a pair lies; NULL: nowhere. */
template <int BYTES>
EVO_DEVICE unsigned char *place_of(const gpu_tensor &t, bool valid, int64_t batch, int64_t i, int64_t j) {
    if (t.dtype == GPU_NONE || !valid) return nullptr;
    return static_cast<unsigned char *>(t.data) + (batch * t.strides[0] + i * t.strides[1] + j * t.strides[2]) * BYTES;
}

/* The output of one pair: row l / 4 + 8 h of this wave's sums: 16 bytes a lane at a time, in fp32 8, from channel `first` on. */
template <class FORM>
EVO_DEVICE void write_z(const gpu_opm_hopper_params &p, const outer_shared<FORM> &s,
                        const float (&z)[FORM::COLUMNS / 2], int first, int h, float by, float unscale,
                        unsigned char *out, const unsigned char *residual) {
    constexpr int BYTES = FORM::OUT == GPU_FP32 ? 4 : 2;
    const gpu_opm_output &o = p.output;
    const int lane = thread_x() % 4;
    EVO_UNROLL
    for (int block = 0; block < FORM::COLUMNS / 8; block += 4) {
        uint32_t v[4];
        if (first + 8 * block >= o.c_z) break;
        EVO_UNROLL
        for (int t = 0; t < 4; t++) {
            const int q = 8 * (block + t) + 2 * lane;
            const bool there = first + q < o.c_z;
            float y[2] = { z[4 * (block + t) + 2 * h], z[4 * (block + t) + 2 * h + 1] };
            uint2_t pair = { 0, 0 };
            if (residual && there && BYTES == 4)
                pair = *reinterpret_cast<const uint2_t *>(residual + (first + q) * BYTES);
            if (residual && there && BYTES == 2)
                pair.x = *reinterpret_cast<const uint32_t *>(residual + (first + q) * BYTES);
            const uint2_t biases = *reinterpret_cast<const uint2_t *>(s.bias + q);
            const float bias[2] = { bits_float(biases.x), bits_float(biases.y) };
            if (FORM::SCALED) {
                const uint2_t scales = *reinterpret_cast<const uint2_t *>(s.z_scale + q);
                y[0] *= bits_float(scales.x) * unscale;
                y[1] *= bits_float(scales.y) * unscale;
            }
            EVO_UNROLL
            for (int e = 0; e < 2; e++) y[e] = o.divide_after ? (y[e] + bias[e]) * by : multiply_add(y[e], by, bias[e]);
            if (residual) {
                y[0] += BYTES == 4 ? bits_float(pair.x) : low_of<FORM::TYPE>(pair.x);
                y[1] += BYTES == 4 ? bits_float(pair.y) : high_of<FORM::TYPE>(pair.x);
            }
            if (BYTES == 2)
                v[t] = pack<FORM::TYPE>(y[0], y[1]);
            else if (out && there)
                *reinterpret_cast<uint2_t *>(out + (first + q) * BYTES) = { float_bits(y[0]), float_bits(y[1]) };
        }
        if (BYTES == 4) continue;
        gather_blocks(v, lane);
        const int own = first + 8 * (block + lane);
        if (out && own < o.c_z)
            *reinterpret_cast<float4_t *>(out + own * BYTES) = { bits_float(v[0]), bits_float(v[1]), bits_float(v[2]),
                                                                 bits_float(v[3]) };
    }
}

template <class FORM>
EVO_DEVICE void write_tile(const gpu_opm_hopper_params &p, const outer_tile &at, outer_shared<FORM> &s, int group,
                           int parity, const outer_sums<FORM> &sum) {
    constexpr int BYTES = FORM::OUT == GPU_FP32 ? 4 : 2;
    const gpu_opm_output &o = p.output;
    const int64_t batch = o.batch_begin + at.batch;
    const int row = own_row();
    barrier_wait(shared_address(&s.counted), parity);
    EVO_UNROLL
    for (int w = 0; w < 2; w++) EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int i = at.i + row + 8 * h, j = at.j + 2 * group + w;
        const bool valid = i < p.row_count && j < p.col_count;
        write_z<FORM>(p, s, sum.z[w], at.z, h, s.by[(2 * group + w) * ROWS + row + 8 * h],
                      FORM::SCALED ? power_of_two(2 * p.mask_exponent) / sum.scale[w][h] : 1.0f,
                      place_of<BYTES>(o.out, valid, batch, p.row_begin + i, p.col_begin + j),
                      place_of<BYTES>(o.residual, valid, batch, p.row_begin + i, p.col_begin + j));
    }
    barrier_arrive(shared_address(&s.read));
}

/*
 * fp16: the exponent of what o is multiplied by before it is rounded, which keeps it to 2^15: by Cauchy and Schwarz no sum over s of
 * |mask_i mask_j| is above the root of both sums of squares. a and b: see GPU_OPM_TENSOR_HALF.
 */
EVO_DEVICE int scale_exponent(const gpu_opm_hopper_params &p, int row_squares, int col_squares) {
    const int exponent = 15 - 2 * (GPU_OPM_TENSOR_HALF - p.mask_exponent) - ((row_squares + col_squares + 1) >> 1);
    return exponent < 120 ? exponent : 120;
}

/*
 * fp16: the scales of this lane's pairs; `done`: tiles before this one. Where none of the wave's is below 1 or above 2^8 they are
 * 1, which costs the products nothing; usual o are far above the least normal number.
 */
template <class FORM>
EVO_DEVICE void read_scales(const gpu_opm_hopper_params &p, outer_shared<FORM> &s, int group, int done,
                            outer_sums<FORM> &sum) {
    int exponents[2][2], outside = 0;
    const int place = done % 2;
    barrier_wait(shared_address(&s.scaled[place]), done / 2 % 2);
    EVO_UNROLL
    for (int w = 0; w < 2; w++) EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        exponents[w][h] =
            scale_exponent(p, s.row_squares[place][own_row() + 8 * h], s.col_squares[place][2 * group + w]);
        if (exponents[w][h] < 0 || exponents[w][h] > 8) outside = 1;
    }
    for (int lanes = 1; lanes < 32; lanes *= 2) outside |= wave_shuffle_xor(outside, lanes);
    sum.is_scaled = outside != 0;
    EVO_UNROLL
    for (int w = 0; w < 2; w++) EVO_UNROLL
    for (int h = 0; h < 2; h++) sum.scale[w][h] = sum.is_scaled ? power_of_two(exponents[w][h]) : 1.0f;
}

template <class FORM> EVO_DEVICE void multiply_tiles(const gpu_opm_hopper_params &p, outer_shared<FORM> &s, int group) {
    const int tiles = outer_tile::count(p), slabs = slabs_of<FORM>(p);
    ring_place<FORM::A_STAGES> a = { 0 };
    ring_place<FORM::W_STAGES> w = { 0 };
    uint32_t b_parities = 0;
    int tiles_done = 0;
    finished_stages done = { -1, -1, -1, thread_x() % 32 == 0 }; /* a wave's wait says nothing about the other three */
    outer_sums<FORM> sum;
    for (int tile = static_cast<int>(block_x()); tile < tiles; tile += static_cast<int>(block_count_x())) {
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
                        const uint64_t x = shared_operand(shared_address(s.a[a.stage()])),
                                       y = shared_operand(shared_address(s.b[k]) + group * BLOCK_BYTES);
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
                    if (FORM::SCALED && (c_a | first | c_b) == 0) read_scales(p, s, group, tiles_done, sum);
                    sum.round();
                    if (c_a % 2 == 0) barrier_wait(shared_address(&s.full_w[w.stage()]), w.parity());
                    sum.project(shared_operand(shared_address(s.weight[w.stage()]) + c_a % 2 * 64), c_a | first | c_b);
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
        write_tile(p, outer_tile::of<FORM::COLUMNS>(p, tile), s, group, tiles_done % 2, sum);
        tiles_done++;
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
        for (int place = 0; place < 2; place++) barrier_init(shared_address(&s.scaled[place]), 32);
        for (int w = 0; w < COUNTERS - 1; w++) barrier_init(shared_address(&s.handed[w]), 32);
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
        if (wave > 0) {
            count_tiles(p, s, wave - 1, thread_x() % 32);
        } else if (elect()) {
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
