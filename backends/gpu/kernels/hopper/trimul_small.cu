/*
 * trimul_small.cu: the whole triangle multiplication of a small module, N to 32, in one launch. At this size time is launches,
 * latency and barriers, arithmetic is nearly free. So a block, which has 4 x 4 pairs (i, j), repeats what would need a barrier of the
 * grid: it norms and projects its 4 rows of a and its 4 of b over all k, a row a wave.
 *
 *     a, b            [4 i], [4 j] of [c][k], in shared memory; rows of z, or columns where it is incoming
 *     t[pair, c]    = sum over k of a[i, c, k] * b[j, c, k], in fp32
 *     out[pair]     = LayerNorm(t) W_o^T, gated and added
 *
 * A sum has no order: a lane reads 8 neighbours of K at once, which two products of 16 take as what the unit wants of this lane (2 q,
 * 2 q + 1, 2 q + 8, 2 q + 9 of q = l % 4), alike in both operands. So z comes from global memory as an operand.
 */
#include "backends/gpu/kernels/hopper/mask.h"
#include "backends/gpu/kernels/hopper/trimul.h"

static constexpr int OWN = GPU_HOPPER_TRIMUL_SMALL_SIDE, K = GPU_HOPPER_TRIMUL_SMALL_N, K_PITCH = K * 2 + 16;
static constexpr int WAVES = 2 * OWN, THREADS = WAVES * 32, PAIRS = OWN * OWN;
static_assert(OWN == 4 && K == 32, "rows of products: 16 pairs, 4 channels of 4 i; a lane a mask; two products of k");

/* Rows of an operand, `bytes` long, so far apart that loads of 16 bytes have no bank conflicts: lanes take 64 bytes of two rows. */
EVO_DEVICE constexpr int row_pitch(int bytes) {
    return bytes % 128 == 64 ? bytes : bytes + 64;
}

template <int C_Z, int C> struct small_shared {
    static constexpr int Z_PITCH = row_pitch(C_Z * 2), C_PITCH = row_pitch(C * 2);
    alignas(16) unsigned char weight[4 * C * Z_PITCH], gate_weight[C_Z * Z_PITCH], out_weight[C_Z * C_PITCH];
    alignas(16) unsigned char side[WAVES][C * K_PITCH + 64]; /* rows of a, then of b */
    union {
        float inverse_mask[WAVES][K];
        float t[PAIRS][C + 4];
    };
    float bias[4 * C], out_bias[2][C_Z];
    /* fp16: of t's channels and the largest; of what undoes the scale of the rows of W_o */
    float scale[C + 1], inverse[C_Z];
};

struct small_place {
    int batch, i, j;
};

/* --- Operands: x[s] of 16 K; x[s][0] and x[s][2] are of row l / 4, x[s][1] and x[s][3] of that + 8, as in trimul.h --- */

EVO_DEVICE void load_piece(uint32_t (&piece)[4], const void *from) {
    const float4_t v = *static_cast<const float4_t *>(from);
    piece[0] = float_bits(v.x);
    piece[1] = float_bits(v.y);
    piece[2] = float_bits(v.z);
    piece[3] = float_bits(v.w);
}

/* From row l / 4 and that + 8, 16 bits a number; both from the lane's place on. */
template <int STEPS> EVO_DEVICE void load_operand(uint32_t (&x)[STEPS][4], const uint16_t *const (&row)[2]) {
    EVO_UNROLL
    for (int s = 0; s < STEPS; s += 2) EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        uint32_t piece[4];
        load_piece(piece, row[h] + s * 16);
        x[s][h] = piece[0];
        x[s][h + 2] = piece[1];
        x[s + 1][h] = piece[2];
        x[s + 1][h + 2] = piece[3];
    }
}

/* The same from fp32, normed, without weight and bias, and rounded. */
template <int TYPE, int STEPS>
EVO_DEVICE void load_normed(uint32_t (&x)[STEPS][4], const float *const (&row)[2], float eps) {
    const float count = 16.0f * STEPS;
    float v[2][STEPS * 4], mean[2] = { 0.0f, 0.0f };
    EVO_UNROLL
    for (int s = 0; s < STEPS; s += 2) EVO_UNROLL
    for (int h = 0; h < 2; h++) EVO_UNROLL
    for (int e = 0; e < 8; e += 4) {
        const float4_t u = *reinterpret_cast<const float4_t *>(row[h] + s * 16 + e);
        v[h][s * 4 + e] = u.x;
        v[h][s * 4 + e + 1] = u.y;
        v[h][s * 4 + e + 2] = u.z;
        v[h][s * 4 + e + 3] = u.w;
    }
    EVO_UNROLL
    for (int h = 0; h < 2; h++) EVO_UNROLL
    for (int i = 0; i < STEPS * 4; i++) mean[h] += v[h][i];
    quad_sum(mean);
    float rest[2] = { 0.0f, 0.0f }, squares[2] = { 0.0f, 0.0f }; /* rest: what the rounding of the mean left */
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        mean[h] = mean[h] / count;
        EVO_UNROLL
        for (int i = 0; i < STEPS * 4; i++) {
            v[h][i] -= mean[h];
            rest[h] += v[h][i];
            squares[h] = multiply_add(v[h][i], v[h][i], squares[h]);
        }
    }
    quad_sum(rest);
    quad_sum(squares);
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        rest[h] /= count;
        const float scale = inverse_spread(squares[h] / count, rest[h], eps), shift = -rest[h] * scale;
        EVO_UNROLL
        for (int i = 0; i < STEPS * 4; i += 2)
            x[i / 4][h + i % 4] =
                pack<TYPE>(multiply_add(v[h][i], scale, shift), multiply_add(v[h][i + 1], scale, shift));
    }
}

/* += of 16 rows x and 8 rows y, 32 K. */
template <int TYPE>
EVO_DEVICE void multiply_piece(float (&d)[4], const uint32_t (&first)[4], const uint32_t (&second)[4],
                               const uint32_t (&y)[4]) {
    if (TYPE == GPU_FP16) {
        mma_16x8x16_f16(d, first, { y[0], y[1] });
        mma_16x8x16_f16(d, second, { y[2], y[3] });
    } else {
        mma_16x8x16_bf16(d, first, { y[0], y[1] });
        mma_16x8x16_bf16(d, second, { y[2], y[3] });
    }
}

/* The same of 16 STEPS K; `rows` in shared memory, from the lane's place on. */
template <int TYPE, int STEPS>
EVO_DEVICE void multiply_rows(float (&d)[4], const uint32_t (&x)[STEPS][4], const unsigned char *rows) {
    EVO_UNROLL
    for (int s = 0; s < STEPS; s += 2) {
        uint32_t y[4];
        load_piece(y, rows + s * 32);
        multiply_piece<TYPE>(d, x[s], x[s + 1], y);
    }
}

/* --- What a block has before the kernel ahead has ended: the pack is older, but for what its last kernel writes --- */

template <int ROWS, int ROW_BYTES> EVO_DEVICE void load_weight_rows(unsigned char *target, const void *from) {
    constexpr int PIECES = ROW_BYTES / 16;
    for (int i = thread_x(); i < ROWS * PIECES; i += THREADS)
        async_copy16(target + i / PIECES * row_pitch(ROW_BYTES) + i % PIECES * 16,
                     static_cast<const unsigned char *>(from) + i * 16, true);
}

/* See gpu_hopper_pack_params. */
template <int TYPE> EVO_DEVICE float bias_of(const uint64_t *packed, int row) {
    const uint32_t halves = static_cast<uint32_t>(packed[2 * row]);
    return 2.0f * (low_of<TYPE>(halves) + high_of<TYPE>(halves));
}

template <int TYPE, int C_Z, int C>
EVO_DEVICE void load_weights(const gpu_hopper_trimul_small_params &p, small_shared<C_Z, C> &s) {
    load_weight_rows<4 * C, C_Z * 2>(s.weight, p.weight);
    load_weight_rows<C_Z, C_Z * 2>(s.gate_weight, p.gate_weight);
    load_weight_rows<C_Z, C * 2>(s.out_weight, p.out_weight);
    async_commit();
    for (int i = thread_x(); i < 4 * C; i += THREADS) s.bias[i] = bias_of<TYPE>(p.bias, i);
    for (int i = thread_x(); i < 2 * C_Z; i += THREADS) s.out_bias[i / C_Z][i % C_Z] = bias_of<TYPE>(p.out_bias, i);
    for (int i = thread_x(); TYPE == GPU_FP16 && i < C_Z; i += THREADS) s.inverse[i] = 1.0f / p.out_scale[i];
}

/* --- a and b --- */

EVO_DEVICE int least(int a, int b) {
    return a < b ? a : b;
}

/* Two positions of z, both from the lane's channels on; of fp32 they are normed here. */
template <int IN, int STEPS>
EVO_DEVICE void load_positions(uint32_t (&x)[STEPS][4], const gpu_tensor &z, const int64_t (&place)[2], float eps) {
    if constexpr (IN == GPU_FP32) {
        const float *const from = static_cast<const float *>(z.data);
        load_normed<GPU_FP16, STEPS>(x, { from + place[0], from + place[1] }, eps);
    } else {
        const uint16_t *const from = static_cast<const uint16_t *>(z.data);
        load_operand<STEPS>(x, { from + place[0], from + place[1] });
    }
}

/*
 * A wave's row of a or b: 32 k, normed, a lane their masks; then all channels, 16 of them and their gates at once. Beyond N stand
 * zeros.
 */
template <int IN, int C_Z, int C>
EVO_DEVICE void project(const gpu_hopper_trimul_small_params &p, const small_place &at, small_shared<C_Z, C> &s) {
    using shared_t = small_shared<C_Z, C>;
    constexpr int TYPE = PRODUCTS<IN>, STEPS = C_Z / 16;
    const int wave = thread_x() / 32, lane = thread_x() % 32, side = wave / OWN, across = p.incoming ? 2 : 1;
    const int row = least((side ? at.j : at.i) + wave % OWN, p.n - 1);
    const int64_t z_row = at.batch * p.z.strides[0] + row * p.z.strides[across] + lane % 4 * 8,
                  mask_row = at.batch * p.mask.strides[0] + row * p.mask.strides[across];
    uint32_t x[2][STEPS][4];
    EVO_UNROLL
    for (int m = 0; m < 2; m++) {
        int64_t place[2];
        EVO_UNROLL
        for (int h = 0; h < 2; h++)
            place[h] = z_row + least(m * 16 + h * 8 + lane / 4, p.n - 1) * p.z.strides[3 - across];
        load_positions<IN, STEPS>(x[m], p.z, place, p.eps);
    }
    const uint32_t mask = load_mask_bits(p.mask, mask_row + least(lane, p.n - 1) * p.mask.strides[3 - across]);
    if (TYPE == GPU_FP16 && thread_x() <= C) s.scale[thread_x()] = p.scale[thread_x()];
    s.inverse_mask[wave][lane] =
        inverse_mask((TYPE == GPU_FP16 ? 1.0f / p.mask_unit : 1.0f) * mask_value(p.mask.dtype, mask));
    EVO_UNROLL
    for (int m = 0; IN != GPU_FP32 && m < 2; m++) layer_norm<TYPE, STEPS>(x[m], p.eps);
    async_wait<0>();
    block_barrier(); /* the weights are there */
    /* Earlier its weights would delay this one's z; later they would not be there when this one ends. */
    let_next_kernel_start();

    const unsigned char *const weight = s.weight + (side * 2 * C + lane / 4) * shared_t::Z_PITCH + lane % 4 * 16;
    const float *const bias = s.bias + side * 2 * C + lane % 4 * 2;
    const uint32_t target = shared_address(s.side[wave]) + (lane / 16 * 8 + lane % 8) * K_PITCH + lane / 8 % 2 * 16;
    EVO_NO_UNROLL
    for (int q = 0; q < C / 16; q++) {
        float d[2][16];
        EVO_UNROLL
        for (int e = 0; e < 16; e++) d[0][e] = d[1][e] = bias[q * 32 + e / 4 * 8 + e % 2];
        EVO_UNROLL
        for (int tile = 0; tile < 4; tile++) EVO_UNROLL
        for (int step = 0; step < STEPS; step += 2) {
            uint32_t y[4];
            load_piece(y, weight + (q * 32 + tile * 8) * shared_t::Z_PITCH + step * 32);
            EVO_UNROLL
            for (int m = 0; m < 2; m++)
                multiply_piece<TYPE>(reinterpret_cast<float(&)[4]>(d[m][tile * 4]), x[m][step], x[m][step + 1], y);
        }
        EVO_UNROLL
        for (int m = 0; m < 2; m++) {
            const int k = m * 16 + lane / 4;
            uint32_t r[1][4];
            gate_chunk<TYPE>(d[m], { s.inverse_mask[wave][k], s.inverse_mask[wave][k + 8] }, r);
            EVO_UNROLL
            for (int e = 0; e < 4; e++)
                if (k + e % 2 * 8 >= p.n) r[0][e] = 0;
            store_fragments_transposed(target + q * 16 * K_PITCH + m * 32, r[0]);
        }
    }
}

/* --- t: 4 channels a wave at once. Rows of its products are (channel, i), columns (channel, j): those of one channel count. --- */

template <int TYPE, int C_Z, int C> EVO_DEVICE void contract(small_shared<C_Z, C> &s) {
    const int lane = thread_x() % 32, own = lane / 4 % OWN;
    for (int first = thread_x() / 32 * 4; first < C; first += WAVES * 4) {
        const int place = (first + lane / 16) * K_PITCH + lane % 4 * 16;
        uint32_t a[2][4], b[2][4];
        float d[2][4] = {}; /* columns of channels first and the next, and of the two after */
        EVO_UNROLL
        for (int h = 0; h < 2; h++) {
            load_piece(a[h], s.side[own] + place + h * 2 * K_PITCH);
            load_piece(b[h], s.side[OWN + own] + place + h * 2 * K_PITCH);
        }
        EVO_UNROLL
        for (int h = 0; h < 2; h++)
            multiply_piece<TYPE>(d[h], { a[0][0], a[1][0], a[0][1], a[1][1] }, { a[0][2], a[1][2], a[0][3], a[1][3] },
                                 b[h]);
        if (lane / 16 != lane % 4 / 2) continue;
        EVO_UNROLL
        for (int h = 0; h < 2; h++) EVO_UNROLL
        for (int e = 0; e < 2; e++) {
            const int channel = first + 2 * h + lane / 16;
            s.t[own * OWN + lane % 2 * 2 + e][channel] =
                TYPE == GPU_FP16 ? d[h][2 * h + e] * s.scale[channel] : d[h][2 * h + e];
        }
    }
}

/* --- The output: a wave has each eighth 8 channels of all pairs, a lane those of rows l / 4 and that + 8 --- */

template <int C_Z> struct small_outputs {
    static constexpr int TILES = (C_Z / 8 + WAVES - 1) / WAVES;
    float gates[TILES][4], added[TILES][4]; /* 0 and 1 of row l / 4, 2 and 3 of that + 8 */
};

EVO_DEVICE int tile_channel(int tile) {
    return (thread_x() / 32 + tile * WAVES) * 8;
}

struct own_pair {
    int i, j;
    bool there;

    EVO_METHOD static own_pair of(const small_place &at, int n, int h) {
        const int pair = thread_x() % 32 / 4 + 8 * h, i = at.i + pair / OWN, j = at.j + pair % OWN;
        return { least(i, n - 1), least(j, n - 1), i < n && j < n };
    }
    EVO_METHOD int64_t place(const gpu_tensor &t, int batch) const {
        return batch * t.strides[0] + i * t.strides[1] + j * t.strides[2];
    }
};

/* Gates and residual, while others still project: this z was read just now. */
template <int IN, int C_Z, int C>
EVO_DEVICE void start_outputs(const gpu_hopper_trimul_small_params &p, const small_place &at,
                              const small_shared<C_Z, C> &s, small_outputs<C_Z> &o) {
    constexpr int TYPE = PRODUCTS<IN>, STEPS = C_Z / 16;
    const int lane = thread_x() % 32;
    own_pair pair[2];
    int64_t place[2];
    uint32_t x[STEPS][4];
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        pair[h] = own_pair::of(at, p.n, h);
        place[h] = pair[h].place(p.z, at.batch) + lane % 4 * 8;
    }
    load_positions<IN, STEPS>(x, p.z, place, p.eps);
    EVO_UNROLL
    for (int t = 0; t < o.TILES; t++) EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int q = tile_channel(t) + lane % 4 * 2;
        o.added[t][2 * h] = o.added[t][2 * h + 1] = 0.0f;
        if (p.residual.dtype == GPU_NONE || q >= C_Z || !pair[h].there) continue;
        const int64_t from = pair[h].place(p.residual, at.batch) + q;
        if (IN == GPU_FP32) {
            const uint2_t two = *reinterpret_cast<const uint2_t *>(static_cast<const float *>(p.residual.data) + from);
            o.added[t][2 * h] = bits_float(two.x);
            o.added[t][2 * h + 1] = bits_float(two.y);
        } else {
            const uint32_t two =
                *reinterpret_cast<const uint32_t *>(static_cast<const uint16_t *>(p.residual.data) + from);
            o.added[t][2 * h] = low_of<TYPE>(two);
            o.added[t][2 * h + 1] = high_of<TYPE>(two);
        }
    }
    if (IN != GPU_FP32 && !p.raw_gate) layer_norm<TYPE, STEPS>(x, p.eps);
    EVO_UNROLL
    for (int t = 0; t < o.TILES; t++) {
        const int first = tile_channel(t);
        if (first >= C_Z) break;
        EVO_UNROLL
        for (int e = 0; e < 4; e++) o.gates[t][e] = s.out_bias[1][first + lane % 4 * 2 + e % 2];
        multiply_rows<TYPE, STEPS>(o.gates[t], x, s.gate_weight + (first + lane / 4) * s.Z_PITCH + lane % 4 * 16);
    }
}

/* fp16: t is its sums over the largest product of scales and what masks were divided by, see params.h. */
template <int IN, int C_Z, int C>
EVO_DEVICE void write_outputs(const gpu_hopper_trimul_small_params &p, const small_place &at,
                              const small_shared<C_Z, C> &s, const small_outputs<C_Z> &o) {
    constexpr int TYPE = PRODUCTS<IN>, STEPS = C / 16;
    const int lane = thread_x() % 32;
    const float scale = TYPE == GPU_FP16 ? 1.0f / (s.scale[C] * p.mask_unit * p.mask_unit) : 1.0f;
    uint32_t x[STEPS][4];
    load_normed<TYPE, STEPS>(x, { &s.t[lane / 4][lane % 4 * 8], &s.t[lane / 4 + 8][lane % 4 * 8] },
                             p.eps * scale * scale);
    EVO_UNROLL
    for (int t = 0; t < o.TILES; t++) {
        const int first = tile_channel(t), q = first + lane % 4 * 2;
        float y[4];
        if (first >= C_Z) break;
        EVO_UNROLL
        for (int e = 0; e < 4; e++) y[e] = s.out_bias[0][q + e % 2];
        multiply_rows<TYPE, STEPS>(y, x, s.out_weight + (first + lane / 4) * s.C_PITCH + lane % 4 * 16);
        EVO_UNROLL
        for (int e = 0; e < 4; e++)
            y[e] = (TYPE == GPU_FP16 ? gated(y[e], o.gates[t][e], s.inverse[q + e % 2]) : gated(y[e], o.gates[t][e])) +
                   o.added[t][e];
        EVO_UNROLL
        for (int h = 0; h < 2; h++) {
            const own_pair pair = own_pair::of(at, p.n, h);
            const int64_t to = pair.place(p.out, at.batch) + q;
            if (!pair.there) continue;
            if (IN == GPU_FP32)
                *reinterpret_cast<uint2_t *>(static_cast<float *>(p.out.data) + to) = { float_bits(y[2 * h]),
                                                                                        float_bits(y[2 * h + 1]) };
            else
                *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(p.out.data) + to) =
                    pack<TYPE>(y[2 * h], y[2 * h + 1]);
        }
    }
}

template <int IN, int C_Z, int C>
EVO_DEVICE void run(const gpu_hopper_trimul_small_params &p, small_shared<C_Z, C> &s) {
    constexpr int TYPE = PRODUCTS<IN>;
    const int across = (p.n + OWN - 1) / OWN, block = static_cast<int>(block_x()), row = block / across,
              batch = row / across;
    const small_place at = { batch, (row - batch * across) * OWN, (block - row * across) * OWN };
    small_outputs<C_Z> outputs;
    load_weights<TYPE>(p, s);
    wait_for_kernel_ahead();
    project<IN>(p, at, s);
    start_outputs<IN>(p, at, s, outputs);
    block_barrier();
    contract<TYPE>(s);
    block_barrier();
    write_outputs<IN>(p, at, s, outputs);
}

#define SMALL(type, c_z, c, kilobytes)                                                                                \
    EVO_KERNEL(evo_hopper_trimul_small_##type##_##c_z##_##c, gpu_hopper_trimul_small_params, THREADS, 2) {            \
        static_assert(sizeof(small_shared<c_z, c>) <= kilobytes * 1024, "shared memory");                             \
        EVO_BULK_SHARED(raw);                                                                                         \
        run<GPU_##type>(p, *reinterpret_cast<small_shared<c_z, c> *>(raw));                                           \
    }
GPU_HOPPER_TRIMUL_SMALL(SMALL)
