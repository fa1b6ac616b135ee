/*
 * tensor_finish.cu: LayerNorm of t, output projection, gate and residual on matrix units. A block takes one tile of t,
 * whose channels it norms into shared memory as rows of positions, beside the rows of z for the gate; then 128 output
 * channels at a time, 32 columns a wave. It has read all of t and z there before it writes, so that t or z may lie in the
 * output.
 *
 * Where a block has room for both matrices they stay there (`whole`), and each wave takes 16 positions, whose rows of t
 * and z are its operands in registers: waves wait for each other only between their reads and their writes of a tile of t.
 */
#include "backends/gpu/kernels/norm_rows.h"
#include "backends/gpu/kernels/trimul/params.h"

template <class T> static constexpr int STAGES = IS_SPLIT<T> ? GPU_SPLIT_STAGES : ASYNCHRONOUS ? GPU_TENSOR_STAGES : 2;
static constexpr int COLUMNS = GPU_TENSOR_COLUMNS;
static constexpr int WAVES = ASYNCHRONOUS ? int{ GPU_TRIMUL_WAVES } : int{ GPU_BLOCK_WAVES },
                     BLOCK_THREADS = WAVES * WAVE;
static constexpr int WAVES_ACROSS = 4, WAVES_DOWN = WAVES / WAVES_ACROSS;
static constexpr int WAVE_COLUMNS = COLUMNS / WAVES_ACROSS, ACROSS = WAVE_COLUMNS / TILE_SIDE;
static constexpr int OUT_PITCH = WAVE_COLUMNS * 4 + GPU_ROW_PAD, HIDDEN = GPU_TENSOR_HIDDEN;

/* Two positions of a channel of t, as they are stored: as T, or as floats where that has four bytes. */
template <class T> struct stored_pair {
    uint32_t r[T::BYTES / 2];

    /* Both, aligned for one load, if `there`. */
    EVO_METHOD void load_whole(const unsigned char *t, bool there) {
        if constexpr (T::BYTES == 4) {
            uint2_t v = { 0, 0 };
            if (there) v = *reinterpret_cast<const uint2_t *>(t);
            r[0] = v.x;
            r[1] = v.y;
        } else {
            r[0] = there ? *reinterpret_cast<const uint32_t *>(t) : 0u;
        }
    }

    /* `count` of them. */
    EVO_METHOD void load_some(const unsigned char *t, int count) {
        if constexpr (T::BYTES == 4) {
            r[0] = count > 0 ? reinterpret_cast<const uint32_t *>(t)[0] : 0u;
            r[1] = count > 1 ? reinterpret_cast<const uint32_t *>(t)[1] : 0u;
        } else {
            const uint32_t first = count > 0 ? reinterpret_cast<const uint16_t *>(t)[0] : 0u;
            const uint32_t second = count > 1 ? reinterpret_cast<const uint16_t *>(t)[1] : 0u;
            r[0] = first | second << 16;
        }
    }

    EVO_METHOD float value(int i) const {
        if constexpr (T::BYTES == 4)
            return bits_float(r[i]);
        else
            return T::load(r[0] >> (16 * i) & 0xffffu);
    }
};

/*
 * The sums of each position over the slices of channels: shares [SLICES][POSITIONS], one COUNT after the other; by shuffles
 * where they are a wave's.
 */
template <int POSITIONS, int SLICES, int COUNT>
EVO_DEVICE void sum_slices(float (&x)[COUNT][2], float *shares, int slice, int at) {
    if constexpr (SLICES * POSITIONS / 2 == WAVE) {
        EVO_UNROLL
        for (int k = 0; k < COUNT; k++) EVO_UNROLL
        for (int i = 0; i < 2; i++) EVO_UNROLL
        for (int mask = POSITIONS / 2; mask < WAVE; mask *= 2) x[k][i] += wave_shuffle_xor(x[k][i], mask);
    } else {
        EVO_UNROLL
        for (int k = 0; k < COUNT; k++)
            *reinterpret_cast<uint2_t *>(shares + (k * SLICES + slice) * POSITIONS + at) = { float_bits(x[k][0]),
                                                                                             float_bits(x[k][1]) };
        block_barrier();
        EVO_UNROLL
        for (int k = 0; k < COUNT; k++) {
            x[k][0] = x[k][1] = 0.0f;
            EVO_UNROLL
            for (int s = 0; s < SLICES; s++) {
                const uint2_t v = *reinterpret_cast<const uint2_t *>(shares + (k * SLICES + s) * POSITIONS + at);
                x[k][0] += bits_float(v.x);
                x[k][1] += bits_float(v.y);
            }
        }
    }
}

/*
 * LayerNorm's eps for t at (i, j) as it is stored, divided by the power of two of its rows' masks: so t is normed as it is, whatever
 * the masks, and its squares stay in range. Not 0, so that a row of equal numbers gives zeros.
 */
EVO_DEVICE float eps_of(const gpu_tensor_finish_params &p, int64_t i, int j) {
    if (!p.mask_exponents || j >= p.n) return p.eps;
    const int32_t *own = p.mask_exponents + static_cast<int64_t>(block_z()) * p.n;
    const int exponent = own[i] + own[j];
    const float unit = power_of_two(exponent > MASK_LIMIT    ? -MASK_LIMIT
                                    : exponent < -MASK_LIMIT ? MASK_LIMIT
                                                             : -exponent);
    return larger(p.eps * unit * unit, power_of_two(-126));
}

/* Positions of a tile of t [c][length]. */
struct tile_part {
    const unsigned char *t;    /* the first one's number of channel 0 */
    int64_t z;                 /* where its row of z is */
    int64_t i;                 /* its row and column */
    int column, length, count; /* count: positions that are there */
};

/*
 * POSITIONS of a tile as normed rows [position][c_depth], by SHARERS threads, a block's or a wave's, of channels to DEPTH.
 * A thread has two positions of a slice of the channels. A wave writes all channels to DEPTH, those that are not there as zeros.
 */
template <class T, int POSITIONS, int SHARERS, int DEPTH>
EVO_DEVICE void norm_tile(const gpu_tensor_finish_params &p, const tile_part &tile, unsigned char *rows, int pitch,
                          float *shares) {
    constexpr int PAIRS = POSITIONS / 2, SLICES = SHARERS / PAIRS, WIDTH = DEPTH / SLICES;
    const int thread = thread_x() % SHARERS, slice = thread / PAIRS, at = thread % PAIRS * 2, first = slice * WIDTH;
    const float4_t *norm = reinterpret_cast<const float4_t *>(p.norm_t);
    const float share = 1.0f / static_cast<float>(p.c);
    const int length = tile.length, count = tile.count - at; /* of this thread's */
    const unsigned char *own = tile.t + (static_cast<int64_t>(first) * length + at) * T::BYTES;
    stored_pair<T> stored[WIDTH];
    if (length % 2 == 0) { /* a pair of which one is there lies in memory that contract has written */
        EVO_UNROLL
        for (int h = 0; h < WIDTH; h++) stored[h].load_whole(own + h * length * T::BYTES, count > 0 && first + h < p.c);
    } else {
        EVO_UNROLL
        for (int h = 0; h < WIDTH; h++) stored[h].load_some(own + h * length * T::BYTES, first + h < p.c ? count : 0);
    }
    float x[WIDTH][2], sum[1][2] = { { 0.0f, 0.0f } }, over[2][2] = { { 0.0f, 0.0f }, { 0.0f, 0.0f } };
    EVO_UNROLL
    for (int h = 0; h < WIDTH; h++) {
        const float factor = IS_HALF<T> && first + h < p.c ? norm[first + h].z * p.t_scale : 1.0f;
        EVO_UNROLL
        for (int i = 0; i < 2; i++) {
            x[h][i] = stored[h].value(i);
            if (IS_HALF<T>) x[h][i] *= factor;
            sum[0][i] += x[h][i];
        }
    }
    sum_slices<POSITIONS, SLICES>(sum, shares, slice, at);
    EVO_UNROLL
    for (int h = 0; h < WIDTH; h++) EVO_UNROLL
    for (int i = 0; i < 2; i++) {
        x[h][i] -= first + h < p.c ? sum[0][i] * share : 0.0f;
        over[0][i] += x[h][i];
        over[1][i] = multiply_add(x[h][i], x[h][i], over[1][i]);
    }
    sum_slices<POSITIONS, SLICES>(over, shares + SLICES * POSITIONS, slice, at);
    float scale[2], shift[2];
    EVO_UNROLL
    for (int i = 0; i < 2; i++) {
        const float eps = IS_HALF<T> ? eps_of(p, tile.i, tile.column + at + i) : p.eps;
        scale[i] = spread_scale<T>(over[1][i] * share, over[0][i] * share, eps);
        shift[i] = -over[0][i] * share * scale[i];
    }
    EVO_UNROLL
    for (int h = 0; h < WIDTH; h += 8) {
        if (SHARERS != WAVE && first + h >= p.c_depth) continue;
        float y[2][8];
        EVO_UNROLL
        for (int e = 0; e < 8; e++) {
            const float4_t affine = norm[first + h + e];
            EVO_UNROLL
            for (int i = 0; i < 2; i++)
                y[i][e] = multiply_add(multiply_add(x[h + e][i], scale[i], shift[i]), affine.x, affine.y);
        }
        EVO_UNROLL
        for (int i = 0; i < 2; i++) store_octet<T>(y[i], rows + (at + i) * pitch, first + h);
        schedule_barrier();
    }
}

/* For 128 output channels at a time: W_o's rows over the channels of t, then the gate's over those of z. */
template <class T> struct output_weights {
    static constexpr int BYTES = rows_panel<COLUMNS, WAVES>::BYTES;
    const gpu_tensor_finish_params *p;
    rows_panel<COLUMNS, WAVES> panel;
    int first, steps_t, steps, step; /* first: output channel; steps of t, of both; the next one */

    EVO_METHOD void fetch(unsigned char *stage) {
        if (step == 0 || step == steps_t) {
            const int depth = step == 0 ? p->c_depth : p->depth;
            const void *matrix = step == 0 ? p->weight : p->gate_weight;
            const int64_t bytes = static_cast<int64_t>(depth) * T::BYTES;
            panel.start(static_cast<const unsigned char *>(matrix) + first * bytes, bytes, COLUMNS, depth * T::BYTES);
        }
        panel.fetch(stage);
        if (++step == steps) {
            step = 0;
            first += COLUMNS;
        }
    }
    EVO_METHOD void put(unsigned char *stage) {
        panel.put(stage);
    }
};

/* Eight output channels of a position: the residual is added, then they are stored. `room`: channels from there on. */
EVO_DEVICE void write_octet(const gpu_tensor_finish_params &p, const float *value, int64_t out, int64_t residual,
                            int room) {
    float y[8];
    EVO_UNROLL
    for (int q = 0; q < 8; q += 4) {
        float four[4], added[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
        unpack(*reinterpret_cast<const float4_t *>(value + q), four);
        if (p.residual.dtype != GPU_NONE) load_four(p.residual, residual + q * p.residual.strides[3], room - q, added);
        EVO_UNROLL
        for (int e = 0; e < 4; e++) y[q + e] = four[e] + added[e];
    }
    store_eight(p.out, out, room, y);
}

template <class T, int DOWN> struct output_sums {
    sums y[DOWN][ACROSS], gate[DOWN][ACROSS];

    /*
     * The wave's positions of row i from `tile` on, `count` of them there, and its columns from output channel `first` on:
     * 16 positions at a time through its own shared memory.
     */
    EVO_METHOD void write(const gpu_tensor_finish_params &p, int first, int64_t i, int tile, int count,
                          const float *inverse, unsigned char *staging) {
        const float4_t *table = reinterpret_cast<const float4_t *>(p.table);
        const int64_t batch = p.batch_begin + block_z();
        EVO_UNROLL
        for (int c = 0; c < ACROSS; c++) EVO_UNROLL
        for (int column = 0; column < OWN_COLUMNS; column++) {
            const float4_t own = table[first + c * TILE_SIDE + tile_column(column_element(column))];
            EVO_UNROLL
            for (int r = 0; r < DOWN; r++) EVO_UNROLL
            for (int row = 0; row < OWN_ROWS; row++) {
                const int e = column_element(column) + row_element(row);
                float raw = gate[r][c].v[e];
                if (IS_HALF<T> && p.scaled) raw *= inverse[r * TILE_SIDE + tile_row(e)];
                y[r][c].v[e] =
                    multiply_add(y[r][c].v[e], own.x, own.y) * sigmoid_for<T>(multiply_add(raw, own.z, own.w));
            }
            schedule_barrier();
        }
        EVO_UNROLL
        for (int r = 0; r < DOWN; r++) {
            EVO_UNROLL
            for (int c = 0; c < ACROSS; c++)
                store_tile(y[r][c], reinterpret_cast<float *>(staging) + c * TILE_SIDE, OUT_PITCH);
            wave_barrier();
            constexpr int OCTETS = WAVE_COLUMNS / 8;
            EVO_UNROLL
            for (int row = 0; row < TILE_SIDE; row += WAVE / OCTETS) {
                const int own = row + lane_number() / OCTETS, channel = lane_number() % OCTETS * 8;
                const int position = r * TILE_SIDE + own;
                if (position >= count) continue;
                const int64_t j = static_cast<int64_t>(tile) + position, q = first + channel;
                const int64_t *to = p.out.strides, *from = p.residual.strides;
                write_octet(p, reinterpret_cast<const float *>(staging + own * OUT_PITCH) + channel,
                            batch * to[0] + i * to[1] + j * to[2] + q * to[3],
                            batch * from[0] + i * from[1] + j * from[2] + q * from[3], p.c_out - static_cast<int>(q));
            }
            wave_barrier();
        }
    }
};

template <class T, int POSITIONS, int OCTETS>
EVO_DEVICE void finish(const gpu_tensor_finish_params &p, unsigned char *shared) {
    constexpr int WAVE_POSITIONS = POSITIONS / WAVES_DOWN, DOWN = WAVE_POSITIONS / TILE_SIDE;
    const int wave = thread_x() / WAVE, first_column = static_cast<int>(block_x()) * POSITIONS;
    const int count = p.n - first_column < POSITIONS ? p.n - first_column : POSITIONS;
    const int t_pitch = p.c_depth * T::BYTES + GPU_ROW_PAD, z_pitch = p.depth * T::BYTES + GPU_ROW_PAD;
    unsigned char *t_rows = shared, *z_rows = t_rows + POSITIONS * t_pitch, *ring = z_rows + POSITIONS * z_pitch;
    unsigned char *staging = ring + STAGES<T> * rows_panel<COLUMNS, WAVES>::BYTES;
    float *inverse = reinterpret_cast<float *>(staging + WAVES * TILE_SIDE * OUT_PITCH);

    output_weights<T> weights;
    weights.p = &p;
    weights.first = weights.step = 0;
    weights.steps_t = p.c_depth * T::BYTES / CHUNK;
    weights.steps = weights.steps_t + p.depth * T::BYTES / CHUNK;
    const int chunks = (p.c_out + COLUMNS - 1) / COLUMNS;
    const stage_walk<STAGES<T>, output_weights<T>> walk = { ring, chunks * weights.steps };
    walk.begin(weights);

    const gpu_t_layout &layout = p.layout;
    const int length = static_cast<int>(block_x()) + 1 == layout.tiles ? layout.last_length : layout.length;
    const unsigned char *t = static_cast<const unsigned char *>(p.t) +
                             (block_z() * layout.batch + block_y() * layout.row + block_x() * layout.tile) * T::BYTES;
    const int64_t *strides = p.z.strides, i = p.row_begin + block_y();
    const int64_t z = (p.batch_begin + block_z()) * strides[0] + i * strides[1] + first_column * strides[2];
    const tile_part tile = { t, z, i, first_column, length, count };
    norm_tile<T, POSITIONS, BLOCK_THREADS, HIDDEN>(p, tile, t_rows, t_pitch, reinterpret_cast<float *>(staging));
    const norm_task task = { &p.z, p.norm_z, p.c_z, p.depth, p.raw_gate != 0, p.eps };
    const auto locate = [&](int row, int64_t *offset) {
        *offset = z + row * strides[2];
        return row < count;
    };
    norm_rows<T, POSITIONS, OCTETS, WAVES>(task, locate, z_rows, z_pitch, p.scaled ? inverse : nullptr);

    output_sums<T, DOWN> own;
    clear(own.y);
    clear(own.gate);
    const int across = WAVES_DOWN > 1 ? wave % WAVES_ACROSS : wave;
    const int down = WAVES_DOWN > 1 ? wave / WAVES_ACROSS * WAVE_POSITIONS : 0;
    const unsigned char *x_t = t_rows + down * t_pitch + lane_offset(t_pitch),
                        *x_z = z_rows + down * z_pitch + lane_offset(z_pitch);
    int step = 0, first = across * WAVE_COLUMNS;
    walk.run(weights, [&](const unsigned char *stage) {
        const unsigned char *rows = stage + across * WAVE_COLUMNS * STAGE_PITCH + right_lane_offset(STAGE_PITCH);
        if (step < weights.steps_t)
            multiply_stage<T>(x_t + step * CHUNK, t_pitch, rows, STAGE_PITCH, own.y);
        else
            multiply_stage<T>(x_z + (step - weights.steps_t) * CHUNK, z_pitch, rows, STAGE_PITCH, own.gate);
        if (++step < weights.steps) return;
        own.write(p, first, tile.i, first_column + down, count - down, inverse + down,
                  staging + wave * TILE_SIDE * OUT_PITCH);
        clear(own.y);
        clear(own.gate);
        step = 0;
        first += COLUMNS;
    });
}

/* --- Both matrices in shared memory --- */

static constexpr int WHOLE_WAVES = GPU_FINISH_WHOLE_WAVES, WHOLE_TILES = GPU_FINISH_WHOLE_TILES,
                     WHOLE_LENGTH = GPU_FINISH_WHOLE_LENGTH;

/* Positions from `at` on of tile `number` of the launch, of so many; a count of 0 or less where there are none. */
template <class T>
EVO_DEVICE tile_part part_of(const gpu_tensor_finish_params &p, int64_t number, int64_t tiles, int at) {
    const gpu_t_layout &layout = p.layout;
    const uint32_t count = static_cast<uint32_t>(layout.tiles), row = static_cast<uint32_t>(number) / count;
    const int across = static_cast<int>(static_cast<uint32_t>(number) - row * count),
              column = across * WHOLE_LENGTH + at;
    const int64_t t = block_z() * layout.batch + row * layout.row + across * layout.tile + at, i = p.row_begin + row;
    return { static_cast<const unsigned char *>(p.t) + t * T::BYTES,
             (p.batch_begin + block_z()) * p.z.strides[0] + i * p.z.strides[1] + column * p.z.strides[2],
             i,
             column,
             across + 1 == layout.tiles ? layout.last_length : WHOLE_LENGTH,
             number < tiles ? p.n - column : 0 };
}

/* The wave's rows as number `part` of its operands. */
template <class T, int DOWN, int STEPS>
EVO_DEVICE void load_rows(operand<T> (&to)[DOWN][STEPS], int part, const unsigned char *rows, int pitch) {
    wave_barrier();
    EVO_UNROLL
    for (int r = 0; r < DOWN; r++) {
        if (r != part) continue;
        EVO_UNROLL
        for (int k = 0; k < STEPS; k++) to[r][k] = load_from<T>(rows + lane_offset(pitch) + k * K_BYTES);
    }
    wave_barrier();
}

template <class T, int DEPTH> EVO_DEVICE void finish_whole(const gpu_tensor_finish_params &p, unsigned char *shared) {
    constexpr int PITCH = DEPTH * T::BYTES + GPU_ROW_PAD, STEPS = DEPTH / TILE_K, MATRIX = COLUMNS * PITCH;
    constexpr int OWN = TILE_SIDE * (PITCH > OUT_PITCH ? PITCH : OUT_PITCH), TILE_WAVES = WHOLE_WAVES / WHOLE_TILES,
                  DOWN = WHOLE_LENGTH / TILE_WAVES / TILE_SIDE;
    const int wave = thread_x() / WAVE, at = wave % TILE_WAVES * (DOWN * TILE_SIDE);
    unsigned char *rows = shared + 2 * MATRIX + wave * (OWN + DOWN * TILE_SIDE * 4);
    float *inverse = reinterpret_cast<float *>(rows + OWN);
    const auto in_order = [](int row) { return row; };
    copy_matrix<T, DEPTH, WHOLE_WAVES>(p.weight, COLUMNS, p.c_depth, in_order, shared);
    copy_matrix<T, DEPTH, WHOLE_WAVES>(p.gate_weight, COLUMNS, p.depth, in_order, shared + MATRIX);
    async_wait<0>();
    block_barrier();

    const norm_task task = { &p.z, p.norm_z, p.c_z, DEPTH, p.raw_gate != 0, p.eps };
    const int64_t tiles = static_cast<int64_t>(p.rows) * p.layout.tiles,
                  step = static_cast<int64_t>(p.blocks) * WHOLE_TILES;
    for (int64_t first = static_cast<int64_t>(block_x()) * WHOLE_TILES; first < tiles; first += step) {
        const tile_part own = part_of<T>(p, first + wave / TILE_WAVES, tiles, at);
        operand<T> t[DOWN][STEPS], z[DOWN][STEPS];
        EVO_NO_UNROLL
        for (int part = 0; part < DOWN && part * TILE_SIDE < own.count; part++) {
            const int before = part * TILE_SIDE, count = own.count - before;
            const tile_part some = { own.t + before * T::BYTES,
                                     own.z + before * p.z.strides[2],
                                     own.i,
                                     own.column + before,
                                     own.length,
                                     count };
            norm_tile<T, TILE_SIDE, WAVE, DEPTH>(p, some, rows, PITCH, nullptr);
            load_rows<T>(t, part, rows, PITCH);
            const auto locate = [&](int position, int64_t *offset) {
                *offset = some.z + position * p.z.strides[2];
                return position < count;
            };
            norm_rows<T, TILE_SIDE, (DEPTH + 63) / 64, 1>(task, locate, rows, PITCH,
                                                          p.scaled ? inverse + before : nullptr);
            load_rows<T>(z, part, rows, PITCH);
        }
        block_barrier(); /* all of the tile is read */
        if (own.count <= 0) continue;
        EVO_NO_UNROLL
        for (int out = 0; out < p.c_out; out += WAVE_COLUMNS) {
            const unsigned char *weights = shared + out * PITCH + right_lane_offset(PITCH);
            output_sums<T, DOWN> sum;
            clear(sum.y);
            clear(sum.gate);
            EVO_UNROLL
            for (int k = 0; k < STEPS; k++) EVO_UNROLL
            for (int c = 0; c < ACROSS; c++) {
                const unsigned char *from = weights + c * TILE_SIDE * PITCH + k * K_BYTES;
                const right_operand<T> right = load_right_from<T>(from), right_gate = load_right_from<T>(from + MATRIX);
                EVO_UNROLL
                for (int r = 0; r < DOWN; r++) {
                    multiply(sum.y[r][c], t[r][k], right);
                    multiply(sum.gate[r][c], z[r][k], right_gate);
                }
            }
            sum.write(p, out, own.i, own.column, own.count, inverse, rows);
        }
    }
}

#if defined(EVO_LARGE_SHARED)
#define EVO_FINISH_WHOLE(name, type, depth)                                                                           \
    EVO_KERNEL(evo_trimul_finish_whole_##name##_##depth, gpu_tensor_finish_params, WHOLE_WAVES *WAVE,                 \
               GPU_FINISH_WHOLE_BLOCKS) {                                                                             \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        finish_whole<type, depth>(p, shared);                                                                         \
    }
EVO_FINISH_WHOLE(bf16, bfloat_t, 128)
EVO_FINISH_WHOLE(bf16, bfloat_t, 64)
EVO_FINISH_WHOLE(fp16, half_t, 128)
EVO_FINISH_WHOLE(fp16, half_t, 64)
#endif

#define EVO_FINISH(name, type, positions, octets)                                                                     \
    EVO_KERNEL(evo_trimul_finish_##name##_##positions, gpu_tensor_finish_params, BLOCK_THREADS, 2) {                  \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        finish<type, positions, octets>(p, shared);                                                                   \
    }
EVO_FINISH(bf16, bfloat_t, 64, 2)
EVO_FINISH(bf16, bfloat_t, 32, 6)
EVO_FINISH(fp16, half_t, 64, 2)
EVO_FINISH(fp16, half_t, 32, 6)
EVO_FINISH(split, split_t, 64, 2)
EVO_FINISH(split, split_t, 32, 6)
