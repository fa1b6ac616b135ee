/*
 * opm_project.cu: a and b of the outer product mean. A persistent block keeps the weights in shared memory; each of its
 * warpgroups takes tiles of 64 sequences of one residue on its own. LayerNorm happens in registers, so x is the product's
 * operand at once and m's buffer free for a tile to come. The biases are one more product, of ones. Results are masked and
 * transposed into [channels][64 sequences], which bulk stores take away. Neighbours in time are neighbours in m.
 */
#include "backends/gpu/kernels/hopper/mask.h"
#include "backends/gpu/kernels/hopper/trimul.h"
#include "backends/gpu/kernels/opm/params.h"

static constexpr int POSITIONS = GPU_HOPPER_POSITIONS, COLUMNS = 64, HALF = 32; /* channels of a product, of a store */
static constexpr int CHUNKS = 2, HALF_BYTES = HALF * 128;

template <int STEPS, int GROUPS, int STAGES, int BUFFERS> struct project_shared {
    unsigned char weight[CHUNKS][blocks_of(STEPS)][BLOCK_BYTES];
    unsigned char m[GROUPS][STAGES][blocks_of(STEPS)][BLOCK_BYTES];
    unsigned char out[GROUPS][BUFFERS][BLOCK_BYTES];
    uint64_t bias[CHUNKS * COLUMNS][2];
    uint64_t weight_full, m_full[GROUPS][STAGES];
};

struct sequence_tile {
    int batch, i, s;

    EVO_METHOD static int count(const gpu_opm_hopper_project_params &p) {
        return (p.s + POSITIONS - 1) / POSITIONS * p.rows * p.batch_count;
    }
    EVO_METHOD static sequence_tile of(const gpu_opm_hopper_project_params &p, int tile) {
        const int blocks = (p.s + POSITIONS - 1) / POSITIONS, across = tile / p.rows, batch = across / blocks;
        return { batch, tile - across * p.rows, (across - batch * blocks) * POSITIONS };
    }
};

/* Masks of this lane's two sequences of a tile; past the end the last one's. */
EVO_DEVICE void load_masks(const gpu_opm_hopper_project_params &p, const sequence_tile &at, int position,
                           uint32_t (&bits)[2]) {
    const int64_t column = (p.batch_begin + at.batch) * p.mask.strides[0] + (p.row_begin + at.i) * p.mask.strides[2];
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int s = at.s + position + 8 * h;
        bits[h] = load_mask_bits(p.mask, column + (s < p.s ? s : p.s - 1) * p.mask.strides[1]);
    }
}

/* fp16: the squares of a wave's 16 masks, summed. Where a mask is not finite, nor are the pairs that it would scale. */
EVO_DEVICE void write_squares(const gpu_opm_hopper_project_params &p, const sequence_tile &at, int wave, int lane,
                              const uint32_t (&bits)[2]) {
    static_assert(GPU_OPM_HOPPER_SQUARED * 4 == POSITIONS, "a wave's");
    const int part = at.s / GPU_OPM_HOPPER_SQUARED + wave;
    float sum = 0.0f;
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const float mask = mask_value(p.mask.dtype, bits[h]);
        if (part * GPU_OPM_HOPPER_SQUARED + lane / 4 + 8 * h < p.s) sum = multiply_add(mask, mask, sum);
    }
    EVO_UNROLL
    for (int lanes = 4; lanes < 32; lanes *= 2) sum += wave_shuffle_xor(sum, lanes);
    if (lane == 0 && part < p.square_parts)
        p.squares[(static_cast<int64_t>(at.batch) * p.square_parts + part) * p.residues + p.row_begin + at.i] = sum;
}

/* 64 channels times the factors of their half and of this lane's two sequences, into [channels][64 sequences]. */
template <int TYPE>
EVO_DEVICE void write_channels(const float (&d)[COLUMNS / 2], uint32_t buffer, const float (&factor)[2][2], int wave,
                               int lane) {
    EVO_UNROLL
    for (int m = 0; m < COLUMNS / 8; m += 2) { /* 16 channels */
        uint32_t r[4];
        EVO_UNROLL
        for (int e = 0; e < 4; e++) {
            const float *value = &d[(m + e / 2) * 4 + e % 2 * 2], by = factor[m * 8 / HALF][e % 2];
            r[e] = pack<TYPE>(value[0] * by, value[1] * by);
        }
        store_fragments_transposed(buffer + swizzled((m + lane / 16) * 8 + lane % 8, wave * 2 + lane / 8 % 2), r);
    }
}

template <int TYPE, int STEPS, int GROUPS, int STAGES, int BUFFERS>
EVO_DEVICE void project(const gpu_opm_hopper_project_params &p, unsigned char *raw) {
    using shared_t = project_shared<STEPS, GROUPS, STAGES, BUFFERS>;
    static_assert(sizeof(shared_t) <= GPU_HOPPER_SHARED, "shared memory");
    constexpr int M_BLOCKS = blocks_of(STEPS), FREE_BARRIER = 1, WRITTEN_BARRIER = 1 + GROUPS;
    shared_t &s = *reinterpret_cast<shared_t *>(raw);
    const int group = warpgroup_number(), thread = thread_x() % WARPGROUP, wave = thread / 32, lane = thread % 32;
    const int tiles = sequence_tile::count(p), blocks = static_cast<int>(block_count_x()), stride = blocks * GROUPS;
    const uint32_t m = shared_address(s.m[group]), out = shared_address(s.out[group]);
    const uint32_t weight_full = shared_address(&s.weight_full), m_full = shared_address(s.m_full[group]);
    int tile = static_cast<int>(block_x()) + blocks * group; /* few tiles go to as many blocks */

    if (thread_x() == 0) {
        barrier_init(weight_full, 1);
        for (int n = 0; n < GROUPS * STAGES; n++) barrier_init(shared_address(s.m_full[0] + n), 1);
        barrier_init_done();
    }
    block_barrier();
    let_next_kernel_start();
    if (thread_x() == 0) load_matrix<COLUMNS, M_BLOCKS>(p.weight, shared_address(s.weight), weight_full, p.chunks, 0);
    load_biases<GROUPS * WARPGROUP>(p.bias, s.bias, p.chunks * COLUMNS);
    wait_for_kernel_ahead();

    auto fetch = [&](int next, int stage) {
        if (next >= tiles) return;
        const sequence_tile at = sequence_tile::of(p, next);
        barrier_expect(m_full + stage * 8, M_BLOCKS * BLOCK_BYTES);
        EVO_UNROLL
        for (int k = 0; k < M_BLOCKS; k++)
            bulk_load(m + (stage * M_BLOCKS + k) * BLOCK_BYTES, p.m, m_full + stage * 8, k * 64, at.s, at.i, at.batch);
    };
    if (thread == 0)
        for (int n = 0; n < STAGES; n++) fetch(tile + n * stride, n);
    sequence_tile at = sequence_tile::of(p, tile);
    uint32_t mask_bits[2] = { 0, 0 }, buffer = out;
    const int position = wave * 16 + lane / 4;
    if (tile < tiles) load_masks(p, at, position, mask_bits);
    fence_async();
    block_barrier();
    barrier_wait(weight_full, 0);

    const uint64_t weights = shared_operand(shared_address(s.weight)), biases = short_operand(shared_address(s.bias));
    const uint32_t one = bias_ones<TYPE>(lane), ones[4] = { one, one, one, one };
    int stage = 0, parity = 0;
    for (; tile < tiles; tile += stride) {
        const bool last = tile + stride >= tiles;
        const sequence_tile next = last ? at : sequence_tile::of(p, tile + stride);
        const float mask[2] = { p.store * mask_value(p.mask.dtype, mask_bits[0]),
                                p.store * mask_value(p.mask.dtype, mask_bits[1]) };
        uint32_t x[STEPS][4];
        if (TYPE == GPU_FP16 && p.squares) write_squares(p, at, wave, lane, mask_bits);
        barrier_wait(m_full + stage * 8, parity);
        load_rows<STEPS>(x, m + stage * M_BLOCKS * BLOCK_BYTES, wave, lane);
        load_masks(p, next, position, mask_bits);
        layer_norm<TYPE, STEPS>(x, p.eps);
        fence_async();
        for (int q = 0; q < p.chunks; q++) {
            float sums[COLUMNS / 2], factor[2][2];
            /* All have m in registers, which the norm has waited for, and the buffer's last store has read it. */
            if (thread == 0) bulk_store_wait_read<BUFFERS - 1>();
            named_barrier(FREE_BARRIER + group, WARPGROUP);
            if (thread == 0 && q == 0) fetch(tile + STAGES * stride, stage);
            products_begin();
            multiply<TYPE>(sums, ones, advance(biases, q * COLUMNS * 16), 0);
            EVO_UNROLL
            for (int k = 0; k < STEPS; k++)
                multiply<TYPE>(sums, x[k], advance(weights, (q * M_BLOCKS + k / 4) * BLOCK_BYTES + k % 4 * 32), 1);
            products_commit();
            products_wait<0>();
            settle(sums);
            EVO_UNROLL
            for (int half = 0; half < 2; half++) EVO_UNROLL
            for (int h = 0; h < 2; h++) factor[half][h] = (2 * q + half) / p.halves && !p.mask_b ? p.store : mask[h];
            write_channels<TYPE>(sums, buffer, factor, wave, lane);
            fence_async();
            named_barrier(WRITTEN_BARRIER + group, WARPGROUP);
            if (thread == 0) {
                EVO_UNROLL
                for (int half = 0; half < 2; half++) {
                    const int from = 2 * q + half, side = from / p.halves, channel = (from - side * p.halves) * HALF;
                    bulk_store(side ? p.b : p.a, buffer + half * HALF_BYTES, at.s, at.i, channel, at.batch);
                }
                bulk_store_commit();
            }
            if (BUFFERS > 1) buffer = buffer == out ? out + BLOCK_BYTES : out;
        }
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
        at = next;
    }
    if (thread == 0) bulk_store_wait<0>();
}

#define PROJECT(type, c_m, groups, stages, buffers)                                                                   \
    EVO_KERNEL(evo_hopper_opm_project_##type##_##c_m, gpu_opm_hopper_project_params, groups *WARPGROUP, 1) {          \
        EVO_BULK_SHARED(raw);                                                                                         \
        project<GPU_##type, c_m / 16, groups, stages, buffers>(p, raw);                                               \
    }
GPU_HOPPER_OPM_PROJECT(PROJECT)

EVO_KERNEL(evo_hopper_opm_squares, gpu_opm_hopper_squares_params, GPU_PACK_THREADS, 1) {
    const int64_t at = static_cast<int64_t>(block_x()) * GPU_PACK_THREADS + thread_x(), across = at / p.residues;
    const int batch = static_cast<int>(across / p.square_parts),
              first = static_cast<int>(across - static_cast<int64_t>(batch) * p.square_parts) * GPU_OPM_HOPPER_SQUARED;
    const int64_t *strides = p.mask.strides,
                  place = (p.batch_begin + batch) * strides[0] + (at - across * p.residues) * strides[2];
    float sum = 0.0f;
    if (batch >= p.batch_count) return;
    for (int s = first; s < first + GPU_OPM_HOPPER_SQUARED && s < p.s; s++) {
        const float mask = load_mask(p.mask, place + s * strides[1]);
        sum = multiply_add(mask, mask, sum);
    }
    p.squares[at] = sum;
}
