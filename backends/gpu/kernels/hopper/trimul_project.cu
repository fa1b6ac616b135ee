/*
 * trimul_project.cu: a and b of the triangle multiplication. A persistent block keeps its columns of the weights in shared
 * memory; each of its warpgroups takes tiles of 64 positions of one row on its own. LayerNorm happens in registers, so x is
 * a product's operand at once and z's buffer free for the next tile. Columns come in chunks: each 8 channels beside their 8
 * gates, so that both land in one thread. While the next chunk multiplies, the epilogue of this one gates, masks and
 * transposes into [channels][64 positions], which a bulk store takes away. The biases are one more product, of ones, which
 * lie in shared memory: in registers there is no room for them beside two sets of sums of four warpgroups.
 */
#include "backends/gpu/kernels/hopper/mask.h"
#include "backends/gpu/kernels/hopper/trimul.h"
#include "backends/gpu/kernels/scales.h"

template <int STEPS, int GROUPS, int COLUMNS, int CHUNKS> struct project_shared {
    static constexpr int BUFFER_BYTES = COLUMNS / 2 * 128, PANEL_BYTES = COLUMNS * 128;
    static constexpr int Z_BYTES = blocks_of(STEPS) * BLOCK_BYTES, SMALL = 256; /* barriers, largest_mask */
    static constexpr int FIT =
        (GPU_HOPPER_SHARED - SMALL - CHUNKS * COLUMNS * (blocks_of(STEPS) * 128 + 16) - GROUPS * Z_BYTES - 64 * 16) /
        (GROUPS * BUFFER_BYTES);
    static constexpr int BUFFERS = FIT < 3 ? FIT : 3; /* chunks of a warpgroup on their way out */
    unsigned char weight[CHUNKS][blocks_of(STEPS)][PANEL_BYTES];
    unsigned char z[GROUPS][blocks_of(STEPS)][BLOCK_BYTES];
    unsigned char out[GROUPS][BUFFERS][BUFFER_BYTES];
    uint64_t bias[CHUNKS * COLUMNS][2], ones[64][2];
    uint64_t weight_full, z_full[GROUPS];
    float largest_mask[GROUPS * WARPGROUP / 32];
};

/* Masks of this lane's two positions of a tile; past the end of a row the last one's. */
EVO_DEVICE void load_masks(const gpu_hopper_project_params &p, const position_tile &at, int position,
                           uint32_t (&bits)[2]) {
    const gpu_tensor &mask = p.mask;
    const int64_t row = at.batch * mask.strides[0] + at.i * mask.strides[1];
    EVO_UNROLL
    for (int h = 0; h < 2; h++) {
        const int j = at.j() + position + 8 * h;
        bits[h] = load_mask_bits(mask, row + (j < p.n ? j : p.n - 1) * mask.strides[2]);
    }
}

/* What gate_chunk() gives into [channels][64 positions]. */
template <int COUNT> EVO_DEVICE void store_chunk(const uint32_t (&r)[COUNT][4], uint32_t buffer, int wave, int lane) {
    EVO_UNROLL
    for (int m = 0; m < COUNT; m++)
        store_fragments_transposed(buffer + swizzled((2 * m + lane / 16) * 8 + lane % 8, wave * 2 + lane / 8 % 2),
                                   r[m]);
}

/* fp16: the largest mask of the block, of each thread's. */
template <int WAVES> EVO_DEVICE void write_largest(float most, float (&largest)[WAVES], float *target) {
    for (int mask = 1; mask < 32; mask *= 2) most = larger(most, wave_shuffle_xor(most, mask));
    if (thread_x() % 32 == 0) largest[thread_x() / 32] = most;
    block_barrier();
    if (thread_x() > 0) return;
    for (int w = 0; w < WAVES; w++) most = larger(most, largest[w]);
    *target = most;
}

template <int TYPE, int STEPS, int GROUPS, int COLUMNS, int CHUNKS>
EVO_DEVICE void project(const gpu_hopper_project_params &p, unsigned char *raw) {
    using shared_t = project_shared<STEPS, GROUPS, COLUMNS, CHUNKS>;
    constexpr int Z_BLOCKS = blocks_of(STEPS), WRITTEN_BARRIER = 1, READ_BARRIER = 1 + GROUPS,
                  FREE_BARRIER = 1 + 2 * GROUPS, BUFFERS = shared_t::BUFFERS;
    shared_t &s = *reinterpret_cast<shared_t *>(raw);
    const int group = warpgroup_number(), thread = thread_x() % WARPGROUP, wave = thread / 32, lane = thread % 32;
    const int tiles = (p.n + GPU_HOPPER_POSITIONS - 1) / GPU_HOPPER_POSITIONS * p.rows;
    const int columns_from = static_cast<int>(block_x()) % p.column_groups * CHUNKS * COLUMNS;
    const uint32_t z = shared_address(s.z[group]), out = shared_address(s.out[group]);
    const uint32_t weight = shared_address(s.weight), weight_full = shared_address(&s.weight_full);
    const uint32_t z_full = shared_address(&s.z_full[group]);
    const int block = static_cast<int>(block_x()) / p.column_groups;
    const int blocks = static_cast<int>(block_count_x()) / p.column_groups, stride = blocks * GROUPS;
    int tile = block + blocks * group, parity = 0; /* few tiles go to as many blocks */

    if (thread_x() == 0) {
        barrier_init(weight_full, 1);
        for (int g = 0; g < GROUPS; g++) barrier_init(shared_address(&s.z_full[g]), 1);
        barrier_init_done();
    }
    block_barrier();
    let_next_kernel_start();
    if (thread_x() == 0) load_matrix<COLUMNS, Z_BLOCKS>(p.weight, weight, weight_full, CHUNKS, columns_from);
    load_biases<GROUPS * WARPGROUP>(p.bias + columns_from * 2, s.bias, CHUNKS * COLUMNS);
    for (int i = thread_x(); i < 64 * 2; i += GROUPS * WARPGROUP)
        write_shared(&s.ones[i / 2][i % 2], i % 2 ? uint64_t(0) : uint64_t(bias_ones<TYPE>(0)));
    wait_for_kernel_ahead();

    auto fetch = [&](const position_tile &next) {
        barrier_expect(z_full, Z_BLOCKS * BLOCK_BYTES);
        EVO_UNROLL
        for (int k = 0; k < Z_BLOCKS; k++)
            bulk_load(z + k * BLOCK_BYTES, p.z, z_full, k * 64, next.j(), next.i, next.batch);
    };
    position_tile at = find_tile(tile, p.n);
    if (thread == 0 && tile < tiles) fetch(at);
    uint32_t mask_bits[2] = { 0, 0 }, buffer = out;
    const int position = wave * 16 + lane / 4;
    if (tile < tiles) load_masks(p, at, position, mask_bits);
    fence_async();
    block_barrier();
    barrier_wait(weight_full, 0);

    const uint64_t weights = shared_operand(weight), biases = short_operand(shared_address(s.bias));
    const uint64_t ones = short_operand(shared_address(s.ones));
    const float mask_factor = TYPE == GPU_FP16 ? 1.0f / p.mask_unit : 1.0f;
    float largest = 0.0f;
    for (; tile < tiles; tile += stride, parity ^= 1) {
        const bool last = tile + stride >= tiles;
        const position_tile next = last ? at : find_tile(tile + stride, p.n);
        const float mask[2] = { mask_factor * mask_value(p.mask.dtype, mask_bits[0]),
                                mask_factor * mask_value(p.mask.dtype, mask_bits[1]) };
        const float inverse[2] = { inverse_mask(mask[0]), inverse_mask(mask[1]) };
        if (TYPE == GPU_FP16) largest = larger(largest, larger(finite_magnitude(mask[0]), finite_magnitude(mask[1])));
        uint32_t x[STEPS][4];
        barrier_wait(z_full, parity);
        load_rows<STEPS>(x, z, wave, lane);
        if (TYPE == GPU_FP16 && p.is_normed) {
            EVO_UNROLL
            for (int e = 0; e < 4; e++) x[STEPS - 1][e] |= p.no_bits; /* waits as the norm does: loads come in order */
        } else {
            layer_norm<TYPE, STEPS>(x, p.eps);
        }
        /* All have z in registers, which the norm has waited for: zeros past the end of a row land at once. */
        fence_async();
        if (wave > 0)
            named_barrier_arrive(READ_BARRIER + group, WARPGROUP);
        else
            named_barrier(READ_BARRIER + group, WARPGROUP);
        if (thread == 0 && !last) fetch(next);

        float sums[2][COLUMNS / 2];
        auto multiply_chunk = [&](int q) {
            products_begin();
            multiply<TYPE, 0>(sums[q & 1], ones, advance(biases, q * COLUMNS * 16), 0);
            EVO_UNROLL
            for (int k = 0; k < STEPS; k++)
                multiply<TYPE>(sums[q & 1], x[k],
                               advance(weights, (q * Z_BLOCKS + k / 4) * shared_t::PANEL_BYTES + k % 4 * 32), 1);
            products_commit();
        };
        multiply_chunk(0);
        EVO_UNROLL
        for (int q = 0; q < CHUNKS; q++) {
            if (q + 1 < CHUNKS) {
                multiply_chunk(q + 1);
                products_wait<1>();
            } else {
                products_wait<0>();
            }
            settle(sums[q & 1]);
            uint32_t r[COLUMNS / 32][4];
            gate_chunk<TYPE>(sums[q & 1], inverse, r);
            if (BUFFERS == 1) {
                if (thread == 0) bulk_store_wait_read<0>();
                named_barrier(FREE_BARRIER + group, WARPGROUP);
            }
            store_chunk(r, buffer, wave, lane);
            fence_async();
            /* Of several buffers that of the chunk after is free: said by the same barrier. */
            if (BUFFERS > 1 && thread == 0) bulk_store_wait_read<(BUFFERS > 1 ? BUFFERS - 2 : 0)>();
            named_barrier(WRITTEN_BARRIER + group, WARPGROUP);
            /* A fence waits for loads: these have until the next one. */
            if (q == 0) load_masks(p, next, position, mask_bits);
            if (thread == 0) {
                bulk_store(p.ab, buffer, at.j(), at.i, at.batch * p.channels + (columns_from + q * COLUMNS) / 2);
                bulk_store_commit();
            }
            buffer = buffer == out + (BUFFERS - 1) * shared_t::BUFFER_BYTES ? out : buffer + shared_t::BUFFER_BYTES;
        }
        at = next;
    }
    if (thread == 0) bulk_store_wait<0>();
    if (TYPE == GPU_FP16 && p.largest) write_largest(largest, s.largest_mask, p.largest + block_x());
}

#define PROJECT_AS(name, type, c_z, c, groups)                                                                        \
    EVO_KERNEL(name, gpu_hopper_project_params, groups *WARPGROUP, 1) {                                               \
        static_assert(sizeof(project_shared<c_z / 16, groups, 64, c / 16>) <= GPU_HOPPER_SHARED, "shared memory");    \
        EVO_BULK_SHARED(raw);                                                                                         \
        project<GPU_##type, c_z / 16, groups, 64, c / 16>(p, raw);                                                    \
    }
#define PROJECT(type, c_z, c, groups) PROJECT_AS(evo_hopper_project_##type##_##c_z##_##c, type, c_z, c, groups)
#define PROJECT_MANY(type, c_z, c) PROJECT_AS(evo_hopper_project_many_##type##_##c_z##_##c, type, c_z, c, GPU_HOPPER_MANY_GROUPS)
GPU_HOPPER_PROJECT(PROJECT)
GPU_HOPPER_MANY(PROJECT_MANY)
