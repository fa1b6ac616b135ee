/*
 * opm_small.cu: the whole outer product mean of a small module, S to 8, N to 32, c_m 64, c 32, in one launch, weight first.
 * At this size time is launches, latency and barriers, arithmetic is free. So each block repeats what would need a barrier of
 * the grid: it norms and projects all sequences and residues of its batch entry for 4 i and 8 channels of z.
 *
 *     a, b                                 rows (s, i): b of all of them, a of the block's i
 *     u[(s, i), q, c_b] = sum over c_a of a[(s, i), c_a] * W_o[q, c_a, c_b]
 *     z[i, j, q]        = sum over s, c_b of b[(s, j), c_b] * u[(s, i), q, c_b]
 */
#include "backends/gpu/device_hopper.h"
#include "backends/gpu/kernels/hopper/params.h"
#include "backends/gpu/kernels/matrix.h"
#include "backends/gpu/kernels/opm/output.h"

static constexpr int C_M = GPU_HOPPER_SMALL_CHANNELS, C = GPU_OPM_HOPPER_HIDDEN, MOST_S = GPU_HOPPER_SMALL_S;
static constexpr int ROWS = MOST_S * GPU_HOPPER_SMALL_N, THREADS = GPU_HOPPER_SMALL_THREADS, WAVES = THREADS / 32;
static constexpr int OWN_I = GPU_HOPPER_SMALL_I, OWN_Z = GPU_HOPPER_SMALL_Z, OWN = MOST_S * OWN_I; /* rows of a */
static constexpr int X_PITCH = C_M * 2 + 16, C_PITCH = C * 2 + 16, U_PITCH = OWN_Z * C_PITCH + 16; /* bytes */
static constexpr int LANES = C_M / 8, AT_ONCE = THREADS / LANES, ROUNDS = ROWS / AT_ONCE; /* of a row of m; rows */
static constexpr int TILE = TILE_SIDE;
static_assert(WAVES * TILE == ROWS && OWN == 2 * TILE && WAVES == 2 * OWN_Z, "what a wave takes");

struct small_shared {
    alignas(16) unsigned char x[ROWS * X_PITCH], weight[2 * C * X_PITCH], out_weight[OWN_Z * C * C_PITCH];
    alignas(16) unsigned char b[ROWS * C_PITCH], a[OWN * C_PITCH], u[OWN * U_PITCH];
    float mask[ROWS], bias[2 * C];
};
static_assert(sizeof(small_shared) <= GPU_HOPPER_SMALL_SHARED, "as launched");

struct small_place {
    int batch, i, z;
};

/* Weights, which are older than the kernel ahead: its last kernel has seen all of the pack. */
template <int TYPE>
EVO_DEVICE void load_weights(const gpu_opm_hopper_small_params &p, const small_place &at, small_shared &s) {
    const unsigned char *const weight = static_cast<const unsigned char *>(p.weight);
    const unsigned char *const out = static_cast<const unsigned char *>(p.out_weight) + at.z * C * C * 2;
    for (int piece = thread_x(); piece < 2 * C * C_M / 8; piece += THREADS)
        async_copy16(s.weight + piece / LANES * X_PITCH + piece % LANES * 16, weight + piece * 16, true);
    for (int piece = thread_x(); piece < OWN_Z * C * C / 8; piece += THREADS) {
        const bool there = at.z + piece / (C * C / 8) < p.output.c_z;
        async_copy16(s.out_weight + piece / (C / 8) * C_PITCH + piece % (C / 8) * 16, there ? out + piece * 16 : out,
                     there);
    }
    async_commit();
    if (thread_x() < 2 * C) { /* see gpu_hopper_pack_params */
        const uint32_t halves = static_cast<uint32_t>(p.bias[2 * thread_x()]);
        s.bias[thread_x()] = 2.0f * (low_of<TYPE>(halves) + high_of<TYPE>(halves));
    }
}

EVO_DEVICE float row_sum(float v) {
    EVO_UNROLL
    for (int lane = 1; lane < LANES; lane *= 2) v += wave_shuffle_xor(v, lane);
    return v;
}

/* Where row (s, i) of a batch entry stands. */
EVO_DEVICE int64_t row_offset(const gpu_opm_hopper_small_params &p, const gpu_tensor &t, int row, int batch) {
    const int s = row / p.n, i = row - s * p.n;
    return batch * t.strides[0] + s * t.strides[1] + i * t.strides[2];
}

/* LayerNorm of all rows; its weight and bias are folded into the matrices. All loads go out first, once m is there. */
template <int TYPE> EVO_DEVICE void norm(const gpu_opm_hopper_small_params &p, int batch, small_shared &s) {
    const int lane = thread_x() % LANES, rows = p.output.s * p.n;
    const uint16_t *places[ROUNDS];
    float4_t m[ROUNDS];
    EVO_UNROLL
    for (int k = 0; k < ROUNDS; k++)
        places[k] = static_cast<const uint16_t *>(p.m.data) +
                    row_offset(p, p.m, k * AT_ONCE + thread_x() / LANES, batch) + lane * 8;
    const int64_t mask_place = row_offset(p, p.output.mask, thread_x(), batch);
    wait_for_kernel_ahead();
    EVO_UNROLL
    for (int k = 0; k < ROUNDS; k++) {
        m[k] = { 0.0f, 0.0f, 0.0f, 0.0f };
        if (k * AT_ONCE + thread_x() / LANES < rows) m[k] = *reinterpret_cast<const float4_t *>(places[k]);
    }
    if (thread_x() < ROWS) s.mask[thread_x()] = thread_x() < rows ? load_mask(p.output.mask, mask_place) : 0.0f;
    EVO_UNROLL
    for (int k = 0; k < ROUNDS; k++) {
        const int row = k * AT_ONCE + thread_x() / LANES;
        const uint32_t bits[4] = { float_bits(m[k].x), float_bits(m[k].y), float_bits(m[k].z), float_bits(m[k].w) };
        float v[8], sum = 0.0f, squares = 0.0f, words[4];
        EVO_UNROLL
        for (int e = 0; e < 8; e++) {
            v[e] = e % 2 ? high_of<TYPE>(bits[e / 2]) : low_of<TYPE>(bits[e / 2]);
            sum += v[e];
        }
        const float mean = row_sum(sum) * (1.0f / C_M);
        EVO_UNROLL
        for (int e = 0; e < 8; e++) {
            v[e] -= mean;
            squares = multiply_add(v[e], v[e], squares);
        }
        const float by = hardware_reciprocal_root(multiply_add(row_sum(squares), 1.0f / C_M, p.eps));
        EVO_UNROLL
        for (int w = 0; w < 4; w++) words[w] = bits_float(pack<TYPE>(v[2 * w] * by, v[2 * w + 1] * by));
        *reinterpret_cast<float4_t *>(s.x + row * X_PITCH + lane * 16) = { words[0], words[1], words[2], words[3] };
    }
}

/* --- Tiles of 16 x 16 sums of a wave, see matrix.h --- */

template <int TYPE> struct number_of {
    using type = bfloat_t;
};
template <> struct number_of<GPU_FP16> {
    using type = half_t;
};

/* += x y^T of 8 rows y, which are half a right operand. */
template <class T> EVO_DEVICE void multiply_8(float (&d)[4], const operand<T> &x, const uint32_t (&y)[2]) {
    if constexpr (IS_HALF<T>)
        mma_16x8x16_f16(d, x.r, y);
    else
        mma_16x8x16_bf16(d, x.r, y);
}

/* += left right^T over K numbers, both from their lanes' offsets on. */
template <class T, int K>
EVO_DEVICE void multiply_rows(sums &sum, const unsigned char *left, const unsigned char *right) {
    EVO_UNROLL
    for (int k = 0; k < K * 2; k += K_BYTES) multiply(sum, load_from<T>(left + k), load_right_from<T>(right + k));
}

/* Rounded, into rows of shared memory. */
template <class T> EVO_DEVICE void store_tile(const sums &sum, unsigned char *shared, int pitch) {
    EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e += 2)
        *reinterpret_cast<uint32_t *>(shared + tile_row(e) * pitch + tile_column(e) * 2) =
            T::pack(sum.v[e], sum.v[e + 1]);
}

/* (sum + bias) times the rows' masks, where they count; `row_of` says which row of x a row of the tile is. */
template <class ROW>
EVO_DEVICE void mask_tile(const gpu_opm_hopper_small_params &p, const small_shared &s, const float *bias, bool masked,
                          const ROW &row_of, sums &sum) {
    float by[OWN_ROWS];
    EVO_UNROLL
    for (int i = 0; i < OWN_ROWS; i++) by[i] = masked ? p.store * s.mask[row_of(tile_row(row_element(i)))] : p.store;
    EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e++) sum.v[e] = (sum.v[e] + bias[tile_column(e)]) * by[own_row(e)];
}

/* b of a wave's 16 rows; four waves also have 16 rows of a by 16 channels. */
template <class T>
EVO_DEVICE void project(const gpu_opm_hopper_small_params &p, const small_place &at, small_shared &s, int wave) {
    const int own = wave / 2 * TILE, columns = wave % 2 * TILE; /* of a, of the first four waves */
    auto b_row = [&](int row) { return wave * TILE + row; };
    auto a_row = [&](int row) {
        const int r = own + row, own_s = r / OWN_I, i = at.i + r % OWN_I;
        return (own_s < p.output.s ? own_s : p.output.s - 1) * p.n + (i < p.n ? i : p.n - 1);
    };
    const unsigned char *const w = s.weight + right_lane_offset(X_PITCH);
    EVO_UNROLL
    for (int n = 0; n < C; n += TILE) {
        sums b = {};
        multiply_rows<T, C_M>(b, s.x + wave * TILE * X_PITCH + lane_offset(X_PITCH), w + (C + n) * X_PITCH);
        mask_tile(p, s, s.bias + C + n, p.mask_b != 0, b_row, b);
        store_tile<T>(b, s.b + wave * TILE * C_PITCH + n * 2, C_PITCH);
    }
    if (wave >= 4) return;
    sums a = {};
    /* lane_offset() of rows that do not lie one after the other */
    multiply_rows<T, C_M>(a, s.x + a_row(lane_number() % TILE) * X_PITCH + lane_number() / TILE * 16,
                          w + columns * X_PITCH);
    mask_tile(p, s, s.bias + columns, true, a_row, a);
    store_tile<T>(a, s.a + own * C_PITCH + columns * 2, C_PITCH);
}

/* u of one channel of z and 16 rows. */
template <class T> EVO_DEVICE void weigh(small_shared &s, int wave) {
    const int z = wave % OWN_Z, row = wave / OWN_Z * TILE;
    EVO_UNROLL
    for (int n = 0; n < C; n += TILE) {
        sums u = {};
        multiply_rows<T, C>(u, s.a + row * C_PITCH + lane_offset(C_PITCH),
                            s.out_weight + (z * C + n) * C_PITCH + right_lane_offset(C_PITCH));
        store_tile<T>(u, s.u + row * U_PITCH + z * C_PITCH + n * 2, U_PITCH);
    }
}

/* What the output of channels q and q + 1 takes, fetched before it is needed: from L2 it takes half a microsecond. */
struct channel_pair {
    float scale[2], bias[2];

    EVO_METHOD void start(const gpu_opm_hopper_small_params &p, int q) {
        EVO_UNROLL
        for (int e = 0; e < 2; e++) {
            scale[e] = q < p.output.c_z ? p.z_scale[q + e] * p.scale : 0.0f;
            bias[e] = q < p.output.c_z ? p.output.bias[q + e] : 0.0f;
        }
    }
};

/* z of one i, 16 j and the block's 8 channels: sums of rows l / 4 and that + 8, channels l % 4 * 2 and the next. */
template <int TYPE, class T>
EVO_DEVICE void combine(const gpu_opm_hopper_small_params &p, const small_place &at, small_shared &s, int wave,
                        const channel_pair &channels) {
    const int own = wave / 2, j = wave % 2 * TILE, i = at.i + own, lane = thread_x() % 32;
    const gpu_opm_output &o = p.output;
    if (i >= p.n || j >= p.n) return;
    float z[2][4] = {};
    EVO_UNROLL
    for (int own_s = 0; own_s < MOST_S; own_s++) {
        if (own_s >= o.s) break;
        uint32_t u[4];
        load_fragments(u, shared_address(s.u + (own_s * OWN_I + own) * U_PITCH + lane % 8 * C_PITCH + lane / 8 * 16));
        EVO_UNROLL
        for (int k = 0; k < 2; k++) {
            const unsigned char *const b = s.b + (own_s * p.n + j) * C_PITCH + k * K_BYTES;
            multiply_8(z[k], load<T>(b, C_PITCH), { u[2 * k], u[2 * k + 1] });
        }
    }
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int own_j = j + lane / 4 + 8 * h, q = at.z + lane % 4 * 2;
        if (own_j >= p.n || q >= o.c_z) continue;
        float count = 0.0f, y[2];
        EVO_UNROLL
        for (int own_s = 0; own_s < MOST_S; own_s++)
            if (own_s < o.s) count = multiply_add(s.mask[own_s * p.n + i], s.mask[own_s * p.n + own_j], count);
        const float by = 1.0f / normaliser(o, count);
        EVO_UNROLL
        for (int e = 0; e < 2; e++) {
            const float sum = (z[0][2 * h + e] + z[1][2 * h + e]) * channels.scale[e];
            y[e] = o.divide_after ? (sum + channels.bias[e]) * by : multiply_add(sum, by, channels.bias[e]);
        }
        const int64_t *to = o.out.strides, *from = o.residual.strides;
        if (o.residual.dtype != GPU_NONE) {
            const uint32_t pair =
                *reinterpret_cast<const uint32_t *>(static_cast<const uint16_t *>(o.residual.data) +
                                                    at.batch * from[0] + i * from[1] + own_j * from[2] + q);
            y[0] += low_of<TYPE>(pair);
            y[1] += high_of<TYPE>(pair);
        }
        *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(o.out.data) + at.batch * to[0] + i * to[1] +
                                      own_j * to[2] + q) = pack<TYPE>(y[0], y[1]);
    }
}

template <int TYPE> EVO_DEVICE void run(const gpu_opm_hopper_small_params &p, unsigned char *raw) {
    using T = typename number_of<TYPE>::type;
    small_shared &s = *reinterpret_cast<small_shared *>(raw);
    const int slices = (p.output.c_z + OWN_Z - 1) / OWN_Z, groups = (p.n + OWN_I - 1) / OWN_I;
    const int block = static_cast<int>(block_x()), across = block / slices, batch = across / groups,
              wave = thread_x() / 32;
    const small_place at = { static_cast<int>(p.output.batch_begin) + batch, (across - batch * groups) * OWN_I,
                             (block - across * slices) * OWN_Z };
    channel_pair channels;
    load_weights<TYPE>(p, at, s);
    channels.start(p, at.z + thread_x() % 4 * 2);
    norm<TYPE>(p, at.batch, s);
    async_wait<0>();
    block_barrier();
    project<T>(p, at, s, wave);
    block_barrier();
    let_next_kernel_start(); /* earlier it takes this one's place */
    weigh<T>(s, wave);
    block_barrier();
    if (wave < 2 * OWN_I) combine<TYPE, T>(p, at, s, wave, channels);
}

#define SMALL(type)                                                                                                   \
    EVO_KERNEL(evo_hopper_opm_small_##type, gpu_opm_hopper_small_params, THREADS, 1) {                                \
        EVO_BULK_SHARED(raw);                                                                                         \
        run<GPU_##type>(p, raw);                                                                                      \
    }
SMALL(BF16)
SMALL(FP16)
