/*
 * tensor_contract.cu: the product per channel on matrix units. A block takes ROWS x 128 of t, a wave 64 x 64: four waves, or eight
 * of 256 rows, which need three quarters of the bytes. Both operands are rows of k, whatever the direction.
 */
#include "backends/gpu/kernels/product.h"
#include "backends/gpu/kernels/trimul/params.h"

static constexpr int STAGES = ASYNCHRONOUS ? GPU_CONTRACT_STAGES : 2, SIDE = GPU_TENSOR_TILE, HALF = SIDE / 2;
static constexpr int TILES = HALF / TILE_SIDE;

template <int ROWS> struct both_sides {
    static constexpr int WAVES = ROWS / HALF * 2, A_BYTES = rows_panel<ROWS, WAVES>::BYTES,
                         BYTES = A_BYTES + rows_panel<SIDE, WAVES>::BYTES;
    rows_panel<ROWS, WAVES> a;
    rows_panel<SIDE, WAVES> b;

    EVO_METHOD void fetch(unsigned char *stage) {
        a.fetch(stage);
        b.fetch(stage + A_BYTES);
    }
    EVO_METHOD void put(unsigned char *stage) {
        a.put(stage);
        b.put(stage + A_BYTES);
    }
};

/* Where a lane's 16 bytes of a row of t go, `count` numbers of them. */
template <class T> struct row_segment {
    static constexpr int SEGMENT = 16 / T::BYTES;
    int64_t offset; /* bytes from the row's begin */
    int count;
    bool whole; /* 16 bytes, aligned */

    EVO_METHOD void start(const gpu_tensor_contract_params &p, int channel, int j) {
        const gpu_t_layout &t = p.layout;
        const int tile = j / t.length, at = j - tile * t.length,
                  length = tile + 1 == t.tiles ? t.last_length : t.length;
        offset = (tile * t.tile + static_cast<int64_t>(channel) * length + at) * T::BYTES;
        whole = length % SEGMENT == 0;
        count = j < p.n ? length - at : 0;
    }

    EVO_METHOD void store(unsigned char *row, const float4_t &v) const {
        if (whole) {
            *reinterpret_cast<float4_t *>(row + offset) = v;
            return;
        }
        float words[4];
        unpack(v, words);
        EVO_UNROLL
        for (int e = 0; e < SEGMENT; e++) {
            const uint32_t bits = float_bits(words[e * T::BYTES / 4]);
            unsigned char *target = row + offset + e * T::BYTES;
            if (e >= count) continue;
            if constexpr (T::BYTES == 4)
                *reinterpret_cast<uint32_t *>(target) = bits;
            else
                *reinterpret_cast<uint16_t *>(target) = static_cast<uint16_t>(bits >> (e % 2 * 16));
        }
    }
};

template <class T, int ROWS> EVO_DEVICE void contract(const gpu_tensor_contract_params &p, unsigned char *shared) {
    constexpr int SEGMENT = 16 / T::BYTES, SEGMENTS = HALF / SEGMENT, PITCH = HALF * T::BYTES + GPU_ROW_PAD;
    const int wave = thread_x() / WAVE, down = wave / 2, across = wave % 2;
    const int columns = (p.n + SIDE - 1) / SIDE, block = static_cast<int>(block_x());
    const int first_row = block / columns * ROWS, first_column = block % columns * SIDE;
    const int64_t side = (block_z() * p.side_batch + block_y() * p.side_channel) * T::BYTES,
                  row_bytes = static_cast<int64_t>(p.pitch) * T::BYTES;
    both_sides<ROWS> operands;
    operands.a.start(static_cast<const unsigned char *>(p.a) + side + first_row * row_bytes, row_bytes,
                     p.rows - first_row, static_cast<int>(row_bytes));
    operands.b.start(static_cast<const unsigned char *>(p.b) + side + first_column * row_bytes, row_bytes,
                     p.n - first_column, static_cast<int>(row_bytes));
    sums sum[TILES][TILES];
    clear(sum);
    const int x = down * HALF * STAGE_PITCH + lane_offset(STAGE_PITCH);
    const int y = both_sides<ROWS>::A_BYTES + across * HALF * STAGE_PITCH + right_lane_offset(STAGE_PITCH);
    const stage_walk<STAGES, both_sides<ROWS>> walk = { shared, (static_cast<int>(row_bytes) + CHUNK - 1) / CHUNK };
    walk.begin(operands);
    if constexpr (ASYNCHRONOUS && !IS_SPLIT<T>) { /* of those two products' operands leave no registers for sums */
        using held = wave_operands<T, TILES, TILES>;
        walk.template run_ahead<held>(
            operands,
            [&](held &to, const unsigned char *stage, int k) {
                to.load(stage + x + k, STAGE_PITCH, stage + y + k, STAGE_PITCH);
            },
            [&](const held &from) { from.multiply_into(sum); });
    } else {
        walk.run(operands, [&](const unsigned char *stage) {
            multiply_stage<T>(stage + x, STAGE_PITCH, stage + y, STAGE_PITCH, sum);
        });
    }
    async_wait<0>();
    block_barrier();

    /* 16 rows at a time through the wave's own part of the ring. */
    unsigned char *staging = shared + wave * TILE_SIDE * PITCH;
    const int own = lane_number() / SEGMENTS, place = lane_number() % SEGMENTS;
    row_segment<T> segment;
    segment.start(p, p.channel + static_cast<int>(block_y()), first_column + across * HALF + place * SEGMENT);
    int i = first_row + down * HALF + own;
    unsigned char *row = static_cast<unsigned char *>(p.t) + (block_z() * p.layout.batch + i * p.layout.row) * T::BYTES;
    const int64_t step = WAVE / SEGMENTS * p.layout.row * T::BYTES;
    EVO_UNROLL
    for (int r = 0; r < TILES; r++) {
        EVO_UNROLL
        for (int c = 0; c < TILES; c++) {
            EVO_UNROLL
            for (int e = 0; e < TILE_SUMS; e++) sum[r][c].v[e] *= p.scale;
            if constexpr (IS_SPLIT<T>) /* t is in fp32 */
                store_tile(sum[r][c], reinterpret_cast<float *>(staging) + c * TILE_SIDE, PITCH);
            else
                store_tile_as<T>(sum[r][c], staging + c * TILE_SIDE * T::BYTES, PITCH);
        }
        wave_barrier();
        EVO_UNROLL
        for (int first = 0; first < TILE_SIDE; first += WAVE / SEGMENTS) {
            if (i < p.rows && segment.count > 0)
                segment.store(row, *reinterpret_cast<const float4_t *>(staging + (first + own) * PITCH + place * 16));
            i += WAVE / SEGMENTS;
            row += step;
        }
        wave_barrier();
    }
}

#define EVO_CONTRACT(name, type, rows, blocks)                                                                        \
    EVO_KERNEL(evo_trimul_contract_##name, gpu_tensor_contract_params, both_sides<rows>::WAVES *WAVE, blocks) {       \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        contract<type, rows>(p, shared);                                                                              \
    }
EVO_CONTRACT(bf16, bfloat_t, GPU_TENSOR_TILE, 2)
EVO_CONTRACT(fp16, half_t, GPU_TENSOR_TILE, 2)
EVO_CONTRACT(split, split_t, GPU_TENSOR_TILE, 2)
#if defined(EVO_LARGE_SHARED)
EVO_CONTRACT(tall_bf16, bfloat_t, GPU_TENSOR_TALL, 1)
EVO_CONTRACT(tall_fp16, half_t, GPU_TENSOR_TALL, 1)
EVO_CONTRACT(tall_split, split_t, GPU_TENSOR_TALL, 1)
#endif
