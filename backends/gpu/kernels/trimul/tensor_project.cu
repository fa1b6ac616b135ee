/*
 * tensor_project.cu: a and b on matrix units. A block norms its positions into shared memory and multiplies all rows of the
 * weights with them, 128 packed rows at a time: sums[packed row][position], so that a channel's positions are neighbours on
 * their way out. Waves stand in two columns; a tile of 16 channels and the tile of their gates belong to the same lanes.
 *
 * Where a block has room for all of the weights they stay there (`whole`), and each wave takes positions of its own,
 * whose rows are its operands in registers: no wave waits for another, and one's gates run under the other's products.
 */
#include "backends/gpu/kernels/norm_rows.h"
#include "backends/gpu/kernels/trimul/params.h"

static constexpr int STAGES = ASYNCHRONOUS ? GPU_TENSOR_STAGES : 2, ROWS = GPU_TENSOR_ROWS;
static constexpr int WAVES = ASYNCHRONOUS ? int{ GPU_TRIMUL_WAVES } : int{ GPU_BLOCK_WAVES },
                     BLOCK_THREADS = WAVES * WAVE;
static constexpr int WHOLE_WAVES = GPU_PROJECT_WHOLE_WAVES, WHOLE_POSITIONS = GPU_PROJECT_WHOLE_POSITIONS;
static constexpr int WAVE_ROWS = ROWS / (WAVES / 2), DOWN = WAVE_ROWS / TILE_SIDE;

/* The row of position m. N is below 2^16. */
EVO_DEVICE uint32_t row_of(const gpu_tensor_project_params &p, int64_t m) {
    return static_cast<uint32_t>(m) / static_cast<uint32_t>(p.pitch);
}

/* The offsets of position m in the source and the mask; false for padding. */
EVO_DEVICE bool locate_position(const gpu_tensor_project_params &p, int64_t m, int64_t *source, int64_t *mask) {
    const uint32_t i = row_of(p, m);
    const int64_t k = m - static_cast<int64_t>(i) * p.pitch, batch = p.batch_begin + block_z();
    *source = batch * p.source.strides[0] + i * p.source.strides[1] + k * p.source.strides[2];
    *mask = batch * p.mask.strides[0] + i * p.mask.strides[1] + k * p.mask.strides[2];
    return m < p.positions && k < p.n;
}

/* The mask of position m over its row's power of two, which `exponents` has from row `first_row` on; 0 for padding. */
EVO_DEVICE float mask_of(const gpu_tensor_project_params &p, int64_t m, const int32_t *exponents, uint32_t first_row) {
    int64_t source, at;
    if (!locate_position(p, m, &source, &at)) return 0.0f;
    const float mask = load_mask(p.mask, at);
    return exponents ? mask * power_of_two(-exponents[row_of(p, m) - first_row]) : mask;
}

/* The exponents of this batch entry's rows, found by a launch ahead, or NULL. */
EVO_DEVICE const int32_t *found_exponents(const gpu_tensor_project_params &p) {
    return p.mask_exponents ? p.mask_exponents + static_cast<int64_t>(block_z()) * p.n : nullptr;
}

/*
 * The exponents of the rows in which positions from `first` on stand, into shared memory, 32 lanes a row; of each row the
 * block where it begins puts its own into memory, for finish.
 */
EVO_DEVICE void find_exponents(const gpu_tensor_project_params &p, int64_t first, int count, int32_t *shared) {
    const int64_t end = first + count < p.positions ? first + count : p.positions;
    const int first_row = static_cast<int>(row_of(p, first)), last_row = static_cast<int>(row_of(p, end - 1));
    const int64_t batch = (p.batch_begin + block_z()) * p.mask.strides[0];
    for (int begin = first_row; begin <= last_row; begin += BLOCK_THREADS / 32) {
        const int row = begin + thread_x() / 32;
        const bool there = row <= last_row;
        const int exponent = mask_exponent(p.mask, batch + row * p.mask.strides[1], p.mask.strides[2], there ? p.n : 0);
        if (thread_x() % 32 != 0 || !there) continue;
        shared[row - first_row] = exponent;
        if (block_y() == 0 && static_cast<int64_t>(row) * p.pitch >= first)
            p.mask_exponents[static_cast<int64_t>(block_z()) * p.n + row] = exponent;
    }
}

/* The weights' chunks of 128 rows, one after the other, each over all of K. */
template <class T> struct weight_rows {
    static constexpr int BYTES = rows_panel<ROWS, WAVES>::BYTES;
    const gpu_tensor_project_params *p;
    rows_panel<ROWS, WAVES> panel;
    int chunk, steps, step; /* of the chunk that is fetched */

    EVO_METHOD const unsigned char *rows() const {
        const int side = chunk / p->chunks_per_side, own = chunk % p->chunks_per_side;
        const int64_t row = static_cast<int64_t>(side) * p->side_rows + p->group_begin * 2 + own * ROWS;
        return static_cast<const unsigned char *>(p->weight) + row * p->depth * T::BYTES;
    }
    EVO_METHOD void fetch(unsigned char *stage) {
        if (step == 0) panel.start(rows(), static_cast<int64_t>(p->depth) * T::BYTES, ROWS, p->depth * T::BYTES);
        panel.fetch(stage);
        if (++step == steps) {
            step = 0;
            chunk++;
        }
    }
    EVO_METHOD void put(unsigned char *stage) {
        panel.put(stage);
    }
};

/*
 * What becomes of a tile of 16 channels: this wave's positions of it, through shared memory, to its rows of a or b. A lane takes a
 * segment of 16 bytes of a row: of split numbers high or low halves.
 */
template <class T, int WIDTH> struct channel_rows {
    static constexpr int SEGMENT = 8;
    static constexpr int PITCH = WIDTH * T::BYTES + GPU_ROW_PAD, SEGMENTS = WIDTH * T::BYTES / 16;
    static constexpr int AT_ONCE = WAVE / SEGMENTS;
    unsigned char *shared; /* [16][PITCH], the wave's own */
    int64_t offset;        /* of this lane's segment, bytes from the channel's begin; not negative if it is one */
    int count;             /* numbers of the segment that are not padding */

    EVO_METHOD void start(const gpu_tensor_project_params &p, unsigned char *staging, int64_t first) {
        const int own = lane_number() % SEGMENTS;
        const int64_t position = first + (IS_SPLIT<T> ? own / 4 * 16 + own % 2 * 8 : own * SEGMENT);
        const int64_t k = static_cast<uint32_t>(position) % static_cast<uint32_t>(p.pitch);
        shared = staging;
        count = k + SEGMENT <= p.n ? SEGMENT : k < p.n ? static_cast<int>(p.n - k) : 0;
        offset = position < p.positions ? first * T::BYTES + own * 16 : -1;
    }

    /* `channels` of the 16 rows are channels. */
    EVO_METHOD void write(void *target, int64_t channel_stride, int channels) const {
        wave_barrier();
        EVO_UNROLL
        for (int first = 0; first < TILE_SIDE; first += AT_ONCE) {
            const int row = first + lane_number() / SEGMENTS;
            if (row >= TILE_SIDE || row >= channels || offset < 0)
                continue; /* a wave of 64 may have more lanes than segments */
            float4_t v = *reinterpret_cast<const float4_t *>(shared + row * PITCH + lane_number() % SEGMENTS * 16);
            if (count < SEGMENT) v = keep_first(v);
            *reinterpret_cast<float4_t *>(static_cast<unsigned char *>(target) + row * channel_stride * T::BYTES +
                                          offset) = v;
        }
        wave_barrier();
    }

    EVO_METHOD float4_t keep_first(const float4_t &v) const {
        float words[4];
        unpack(v, words);
        EVO_UNROLL
        for (int w = 0; w < 4; w++) {
            const int left = count - 2 * w; /* numbers of this word on that stay */
            const uint32_t bits = float_bits(words[w]);
            words[w] = bits_float(left <= 0 ? 0u : left == 1 ? bits & 0xffffu : bits);
        }
        return { words[0], words[1], words[2], words[3] };
    }
};

template <class T, int ROW_TILES, int ACROSS> struct projection {
    sums sum[ROW_TILES][ACROSS];
    channel_rows<T, ACROSS * TILE_SIDE> rows;
    const float *mask; /* of this wave's positions */

    /* Tiles `pair` and pair + 1 of the wave: bias, gate and mask, as T in shared memory. `table` is its first channel's. */
    EVO_METHOD void gate(int pair, const float4_t *table) {
        float4_t row[OWN_ROWS];
        EVO_UNROLL
        for (int r = 0; r < OWN_ROWS; r++) row[r] = table[tile_row(row_element(r))];
        EVO_UNROLL
        for (int c = 0; c < ACROSS; c++) {
            sums &value = sum[pair][c], &gates = sum[pair + 1][c];
            float masks[OWN_COLUMNS];
            EVO_UNROLL
            for (int i = 0; i < OWN_COLUMNS; i++) masks[i] = mask[c * TILE_SIDE + tile_column(column_element(i))];
            EVO_UNROLL
            for (int e = 0; e < TILE_SUMS; e++) {
                const float4_t &own = row[own_row(e)];
                value.v[e] = multiply_add(value.v[e], own.x, own.y) * masks[own_column(e)] *
                             sigmoid_for<T>(multiply_add(gates.v[e], own.z, own.w));
            }
            store_tile_as<T>(value, rows.shared + byte_of<T>(c * TILE_SIDE), rows.PITCH);
        }
    }
};

template <class T, int POSITIONS, int OCTETS>
EVO_DEVICE void project(const gpu_tensor_project_params &p, unsigned char *shared) {
    constexpr int ACROSS = POSITIONS / 2 / TILE_SIDE;
    const int wave = thread_x() / WAVE, down = wave / 2, across = wave % 2;
    const int pitch = p.depth * T::BYTES + GPU_ROW_PAD;
    const int64_t first = static_cast<int64_t>(block_x()) * POSITIONS;
    unsigned char *x = shared, *ring = x + POSITIONS * pitch;
    unsigned char *staging = ring + STAGES * rows_panel<ROWS, WAVES>::BYTES;
    float *mask = reinterpret_cast<float *>(staging + WAVES * TILE_SIDE * channel_rows<T, POSITIONS / 2>::PITCH);

    const int begin = static_cast<int>(block_y()) * p.chunks_per_block, all = 2 * p.chunks_per_side;
    const int end = begin + p.chunks_per_block < all ? begin + p.chunks_per_block : all;
    weight_rows<T> weights;
    weights.p = &p;
    weights.chunk = begin;
    weights.step = 0;
    weights.steps = p.depth * T::BYTES / CHUNK;
    stage_walk<STAGES, weight_rows<T>> walk = { ring, (end - begin) * weights.steps };
    walk.begin(weights);

    int32_t *exponents = reinterpret_cast<int32_t *>(mask + POSITIONS);
    if (p.finds_exponents) find_exponents(p, first, POSITIONS, exponents);
    const norm_task task = { &p.source, p.norm, p.channels, p.depth, false, p.eps };
    const auto locate = [&](int row, int64_t *offset) {
        int64_t at;
        return locate_position(p, first + row, offset, &at);
    };
    norm_rows<T, POSITIONS, OCTETS, WAVES>(task, locate, x, pitch, nullptr);
    if (p.finds_exponents) block_barrier();
    static_assert(POSITIONS <= BLOCK_THREADS, "a mask a thread");
    if (thread_x() < POSITIONS)
        mask[thread_x()] = p.finds_exponents ? mask_of(p, first + thread_x(), exponents, row_of(p, first))
                                             : mask_of(p, first + thread_x(), found_exponents(p), 0);

    projection<T, DOWN, ACROSS> own;
    own.mask = mask + across * (POSITIONS / 2);
    own.rows.start(p, staging + wave * TILE_SIDE * own.rows.PITCH, first + across * (POSITIONS / 2));
    clear(own.sum);
    const unsigned char *y = x + across * (POSITIONS / 2) * pitch + right_lane_offset(pitch);
    int chunk = begin, step = 0;
    walk.run(weights, [&](const unsigned char *stage) {
        multiply_stage<T>(stage + down * WAVE_ROWS * STAGE_PITCH + lane_offset(STAGE_PITCH), STAGE_PITCH,
                          y + step * CHUNK, pitch, own.sum);
        if (++step < weights.steps) return;
        const int side = chunk / p.chunks_per_side;
        const int channel = chunk % p.chunks_per_side * (ROWS / 2) + down * (WAVE_ROWS / 2); /* of the group */
        const float4_t *table = reinterpret_cast<const float4_t *>(p.table) + side * (p.side_rows / 2) + p.group_begin;
        unsigned char *target = static_cast<unsigned char *>(p.target[side]) + block_z() * p.target_batch * T::BYTES;
        EVO_UNROLL
        for (int pair = 0; pair < DOWN; pair += 2) {
            const int tile = channel + pair / 2 * TILE_SIDE;
            if (tile >= p.group) continue;
            own.gate(pair, table + tile);
            own.rows.write(target + tile * p.channel_stride * T::BYTES, p.channel_stride, p.group - tile);
        }
        clear(own.sum);
        step = 0;
        chunk++;
    });
}

/* --- All weights in shared memory --- */

template <class T, int DEPTH> EVO_DEVICE void project_whole(const gpu_tensor_project_params &p, unsigned char *shared) {
    constexpr int PITCH = DEPTH * T::BYTES + GPU_ROW_PAD, STEPS = DEPTH / TILE_K, ACROSS = WHOLE_POSITIONS / TILE_SIDE;
    const int wave = thread_x() / WAVE;
    unsigned char *rows = shared + 2 * p.whole_rows * PITCH + wave * (TILE_SIDE * PITCH + WHOLE_POSITIONS * 4);
    float *mask = reinterpret_cast<float *>(rows + TILE_SIDE * PITCH);
    /* Rows of the group, a's, then b's. */
    const auto of_group = [&](int row) {
        const int side = row / p.whole_rows;
        return static_cast<int64_t>(side) * p.side_rows + p.group_begin * 2 + row - side * p.whole_rows;
    };
    copy_matrix<T, DEPTH, WHOLE_WAVES>(p.weight, 2 * p.whole_rows, p.depth, of_group, shared);
    async_wait<0>();
    block_barrier();

    const norm_task task = { &p.source, p.norm, p.channels, DEPTH, false, p.eps };
    const int64_t tiles = (p.positions + WHOLE_POSITIONS - 1) / WHOLE_POSITIONS;
    /* Blocks take neighbouring tiles, so that the last ones are spread over all of them. */
    const int64_t step = static_cast<int64_t>(WHOLE_WAVES) * p.blocks;
    for (int64_t tile = static_cast<int64_t>(wave) * p.blocks + block_x(); tile < tiles; tile += step) {
        const int64_t begin = tile * WHOLE_POSITIONS;
        if (lane_number() < WHOLE_POSITIONS)
            mask[lane_number()] = mask_of(p, begin + lane_number(), found_exponents(p), 0);
        right_operand<T> held[ACROSS][STEPS];
        EVO_NO_UNROLL
        for (int part = 0; part < ACROSS; part++) {
            const auto locate = [&](int row, int64_t *offset) {
                int64_t at;
                return locate_position(p, begin + part * TILE_SIDE + row, offset, &at);
            };
            norm_rows<T, TILE_SIDE, (DEPTH + 63) / 64, 1>(task, locate, rows, PITCH, nullptr);
            wave_barrier();
            EVO_UNROLL
            for (int a = 0; a < ACROSS; a++) {
                if (a != part) continue;
                EVO_UNROLL
                for (int k = 0; k < STEPS; k++)
                    held[a][k] = load_right_from<T>(rows + right_lane_offset(PITCH) + k * K_BYTES);
            }
            wave_barrier();
        }
        projection<T, 2, ACROSS> own;
        own.mask = mask;
        own.rows.start(p, rows, begin);
        const unsigned char *weights = shared + lane_offset(PITCH);
        EVO_NO_UNROLL
        for (int row = 0; row < 2 * p.whole_rows; row += 2 * TILE_SIDE, weights += 2 * TILE_SIDE * PITCH) {
            clear(own.sum);
            EVO_UNROLL
            for (int k = 0; k < STEPS; k++) EVO_UNROLL
            for (int d = 0; d < 2; d++) {
                const operand<T> left = load_from<T>(weights + d * TILE_SIDE * PITCH + k * K_BYTES);
                EVO_UNROLL
                for (int a = 0; a < ACROSS; a++) multiply(own.sum[d][a], left, held[a][k]);
            }
            const int side = row >= p.whole_rows, channel = (row - side * p.whole_rows) / 2;
            own.gate(0,
                     reinterpret_cast<const float4_t *>(p.table) + side * (p.side_rows / 2) + p.group_begin + channel);
            own.rows.write(static_cast<unsigned char *>(p.target[side]) +
                               (block_z() * p.target_batch + channel * p.channel_stride) * T::BYTES,
                           p.channel_stride, p.group - channel);
        }
    }
}

#if defined(EVO_LARGE_SHARED)
#define EVO_PROJECT_WHOLE(name, type, depth)                                                                          \
    EVO_KERNEL(evo_trimul_project_whole_##name##_##depth, gpu_tensor_project_params, WHOLE_WAVES *WAVE, 1) {          \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        project_whole<type, depth>(p, shared);                                                                        \
    }
EVO_PROJECT_WHOLE(bf16, bfloat_t, 128)
EVO_PROJECT_WHOLE(bf16, bfloat_t, 64)
EVO_PROJECT_WHOLE(fp16, half_t, 128)
EVO_PROJECT_WHOLE(fp16, half_t, 64)
#endif

#define EVO_PROJECT(name, type, positions, octets)                                                                    \
    EVO_KERNEL(evo_trimul_project_##name##_##positions, gpu_tensor_project_params, BLOCK_THREADS, 2) {                \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        project<type, positions, octets>(p, shared);                                                                  \
    }
EVO_PROJECT(bf16, bfloat_t, 128, 2)
EVO_PROJECT(bf16, bfloat_t, 64, 4)
EVO_PROJECT(bf16, bfloat_t, 32, 6)
EVO_PROJECT(fp16, half_t, 128, 2)
EVO_PROJECT(fp16, half_t, 64, 4)
EVO_PROJECT(fp16, half_t, 32, 6)
EVO_PROJECT(split, split_t, 64, 2)
EVO_PROJECT(split, split_t, 32, 6)
