/*
 * tensor_outer.cu: outer first on matrix units. A block takes 64 x 4 pairs (i, j) and 128 channels of z, whose sums stay in
 * registers while the block walks over c_a:
 *
 *     o[i, (j, c_b)]  = sum over s of a[c_a][i, s] * b[(j, c_b), s]
 *     z[(i, j), q]   += o[i, (j, c_b)] * W_o[q, c_a, c_b]
 *
 * A wave's sums of the first product, rounded, are its operand of the second: o is never in memory. b's tile, 4 j x 32 c_b x
 * as many s as there is room for, stays in shared memory for all c_a; a passes through a ring of stages, W_o's slice of the
 * next c_a is fetched while this one's o is summed. What is linear in o goes part by part: blocks of 32 c_b, chunks of S.
 */
#include "backends/gpu/kernels/opm/tensor_output.h"
#include "backends/gpu/kernels/scales.h"

static constexpr int ROWS = GPU_OPM_TENSOR_ROWS, COLS = GPU_OPM_TENSOR_COLS, HIDDEN = GPU_OPM_TENSOR_HIDDEN;
static constexpr int COLUMNS = GPU_OPM_TENSOR_COLUMNS, THREADS = GPU_OPM_TENSOR_THREADS, WAVES = THREADS / WAVE;
static constexpr int STEP = GPU_OPM_TENSOR_STEP, PAD = GPU_OPM_TENSOR_PAD, STEP_PITCH = STEP + PAD;
static constexpr int PAIRS = ROWS * COLS, B_ROWS = COLS * HIDDEN, PIECES = STEP / 16;
static_assert(PAIRS == THREADS, "a thread counts a pair");

/* A wave has 32 i and, for 32 channels c_b each, WAVE_J j. */
static constexpr int DOWN = 2, WAVE_J = WAVE / 32, HALVES = HIDDEN / TILE_SIDE, Z_TILES = COLUMNS / TILE_SIDE;

/* A second path without conditions between the tiles of z: mma.sync gains from it; gfx11 and tf32 have no registers for both. */
#if defined(EVO_MATRIX_MMA)
template <class T> static constexpr bool WHOLE_PATH = T::BYTES == 2;
#else
template <class T> static constexpr bool WHOLE_PATH = false;
#endif

/*
 * How much of everything a block holds: SIDES channels c_a at a time, a's stages, slices of W_o.
 * Shared memory: `pair_numbers`, slices of W_o, stages of a, b's tile; the first three are FIXED bytes.
 */
template <class T_, int SIDES_, int STAGES_, int SLICES_> struct form {
    using T = T_;
    static constexpr int SIDES = SIDES_, STAGES = STAGES_, SLICES = SLICES_;
    static constexpr int STAGE = SIDES * ROWS * STEP_PITCH;
    static constexpr int W_PITCH = HIDDEN * T::BYTES + PAD, W_TILE = COLUMNS * W_PITCH, SLICE = SIDES * W_TILE;
    static constexpr int PAIR_BYTES = 2 * PAIRS * 4;
    static constexpr int FIXED = PAIR_BYTES + SLICES * SLICE + STAGES * STAGE;
    static_assert(FIXED == GPU_OPM_TENSOR_FIXED(SIDES, STAGES, SLICES, T::BYTES), "as launched");
};

/* Of the block's pairs, [j][i]: the normaliser, and what o is multiplied by before it is rounded. */
struct pair_numbers {
    float n[PAIRS], scale[PAIRS];
};

struct place {
    int row, col, z; /* first i and j, relative to the tile; first channel */
};

EVO_DEVICE place block_place(const gpu_opm_tensor_outer_params &p) {
    const int rows = (p.row_count + ROWS - 1) / ROWS, cols = (p.col_count + COLS - 1) / COLS;
    const int block = static_cast<int>(block_x()), band = block / (GPU_OPM_TENSOR_BAND * cols) * GPU_OPM_TENSOR_BAND;
    const int high = rows - band < GPU_OPM_TENSOR_BAND ? rows - band : GPU_OPM_TENSOR_BAND,
              within = block - band * cols;
    return { (band + within % high) * ROWS, within / high * COLS, static_cast<int>(block_y()) * COLUMNS };
}

/* --- Counts --- */

/* Masks of one type and the sequences of one batch entry, of which 8 are read at once. */
template <class NUMBER> struct masks {
    static constexpr int TOGETHER = 8, STEP_S = THREADS / ROWS;
    const NUMBER *i, *j[COLS]; /* of this thread's row, and of the four columns, at s = 0 */
    int64_t stride;

    EVO_METHOD static float read(const NUMBER *at, int dtype) {
        if constexpr (sizeof(NUMBER) == 2) {
            return dtype == GPU_BF16 ? bfloat_to_float(*at) : half_to_float(*at);
        } else {
            (void)dtype;
            return static_cast<float>(*at);
        }
    }

    EVO_METHOD void start(const gpu_opm_tensor_outer_params &p, const place &at) {
        const gpu_tensor &mask = p.output.mask;
        const NUMBER *batch =
            static_cast<const NUMBER *>(mask.data) + (p.output.batch_begin + block_z()) * mask.strides[0];
        const int row = at.row + thread_x() % ROWS, last = p.row_count - 1;
        stride = mask.strides[1];
        i = batch + (p.row_begin + (row < last ? row : last)) * mask.strides[2];
        EVO_UNROLL
        for (int c = 0; c < COLS; c++) {
            const int col = at.col + c < p.col_count ? at.col + c : p.col_count - 1;
            j[c] = batch + (p.col_begin + col) * mask.strides[2];
        }
    }

    /* Pairs beyond the tile count as its last ones. */
    EVO_METHOD void count(const gpu_opm_tensor_outer_params &p, int first, int last, bool sizes, float (&sum)[COLS],
                          float (&most)[COLS]) const {
        float x[TOGETHER], y[TOGETHER][COLS];
        EVO_UNROLL
        for (int u = 0; u < TOGETHER; u++) {
            const int s = first + u * STEP_S;
            const int64_t offset = (s < last ? s : 0) * stride;
            x[u] = s < last ? read(i + offset, p.output.mask.dtype) : 0.0f;
            EVO_UNROLL
            for (int c = 0; c < COLS; c++) y[u][c] = s < last ? read(j[c] + offset, p.output.mask.dtype) : 0.0f;
        }
        EVO_UNROLL
        for (int u = 0; u < TOGETHER; u++) EVO_UNROLL
        for (int c = 0; c < COLS; c++) {
            sum[c] = multiply_add(x[u], y[u][c], sum[c]);
            if (sizes) most[c] += finite_magnitude(x[u]) * (p.mask_b ? finite_magnitude(y[u][c]) : 1.0f);
        }
    }
};

template <class NUMBER>
EVO_DEVICE void count_masks(const gpu_opm_tensor_outer_params &p, const place &at, bool sizes, float (&count)[COLS],
                            float (&most)[COLS]) {
    masks<NUMBER> m;
    m.start(p, at);
    for (int s = thread_x() / ROWS; s < p.output.s; s += masks<NUMBER>::TOGETHER * masks<NUMBER>::STEP_S)
        m.count(p, s, p.output.s, sizes, count, most);
}

/* Of row i = thread % 64 with four j, over every fourth s: counts, and (fp16) the most that o may be. */
EVO_DEVICE void count_quarter(const gpu_opm_tensor_outer_params &p, const place &at, bool sizes, float (&count)[COLS],
                              float (&most)[COLS]) {
    EVO_UNROLL
    for (int j = 0; j < COLS; j++) count[j] = most[j] = 0.0f;
    switch (p.output.mask.dtype) {
    case GPU_FP64:
        return count_masks<double>(p, at, sizes, count, most);
    case GPU_FP32:
        return count_masks<float>(p, at, sizes, count, most);
    case GPU_UINT8:
        return count_masks<uint8_t>(p, at, sizes, count, most);
    default:
        return count_masks<uint16_t>(p, at, sizes, count, most);
    }
}

/* This thread's pair: normaliser and scale. A normaliser of 0 that divides before divides o itself. True if o is scaled. */
EVO_DEVICE bool number_pair(const gpu_opm_tensor_outer_params &p, bool sizes, float count, float most,
                            pair_numbers *pairs) {
    const float n = normaliser(p.output, count);
    const bool divides = n == 0.0f && !p.output.divide_after;
    float scale = 1.0f;
    if (sizes && most > 0.0f)
        scale = power_of_two(14 - exponent_above(most) - 2 * (GPU_OPM_TENSOR_HALF - p.mask_exponent));
    pairs->n[thread_x()] = divides ? 1.0f : n;
    pairs->scale[thread_x()] = divides ? scale / n : scale;
    return divides || sizes;
}

/* True if o of any pair is scaled. Uses `memory`; everything is there after the next barrier. */
EVO_DEVICE bool number_pairs(const gpu_opm_tensor_outer_params &p, const place &at, bool sizes, pair_numbers *pairs,
                             float *memory) {
    float count[COLS], most[COLS], sum = 0.0f, size = 0.0f;
    const int i = thread_x() % ROWS, own = thread_x() / ROWS;
    if (p.output.mask.dtype == GPU_NONE) {
        sum = size = static_cast<float>(p.output.s);
    } else {
        count_quarter(p, at, sizes, count, most);
        EVO_UNROLL
        for (int j = 0; j < COLS; j++) {
            memory[(own * COLS + j) * ROWS + i] = count[j];
            memory[((own + COLS) * COLS + j) * ROWS + i] = most[j];
        }
        block_barrier();
        EVO_UNROLL
        for (int quarter = 0; quarter < THREADS / ROWS; quarter++) {
            sum += memory[(quarter * COLS + own) * ROWS + i];
            size += memory[((quarter + COLS) * COLS + own) * ROWS + i];
        }
    }
    float scaled = number_pair(p, sizes, sum, size, pairs) ? 1.0f : 0.0f;
    EVO_UNROLL
    for (int lane = 16; lane > 0; lane /= 2) scaled = larger(scaled, wave_shuffle_xor(scaled, lane));
    block_barrier();
    if (thread_x() % 32 == 0) memory[thread_x() / 32] = scaled;
    block_barrier();
    EVO_UNROLL
    for (int w = 0; w < THREADS / 32; w++) scaled = larger(scaled, memory[w]);
    block_barrier();
    return scaled != 0.0f;
}

/* --- Copies --- */

/* b's tile: rows (j, c_b), `chunk` numbers of S from s on. */
template <class T>
EVO_DEVICE void copy_b(const gpu_opm_tensor_outer_params &p, const place &at, int c_b, int s, unsigned char *tile,
                       int pitch) {
    const int pieces = p.chunk * T::BYTES / 16, each = 16 / T::BYTES;
    const unsigned char *from = static_cast<const unsigned char *>(p.b) + block_z() * p.b_batch * T::BYTES;
    for (int piece = thread_x(); piece < B_ROWS * pieces; piece += THREADS) {
        const int row = piece / pieces, within = piece - row * pieces, j = at.col + row / HIDDEN,
                  channel = c_b + row % HIDDEN, first = s + within * each;
        const bool valid = j < p.col_count && channel < p.c && first < p.s_pad;
        const int64_t offset = channel * p.b_channel + static_cast<int64_t>(j) * p.s_pad + first;
        async_copy16(tile + row * pitch + within * 16, valid ? from + offset * T::BYTES : from, valid);
    }
}

/*
 * Stages of a, one after the other: rows (c_a, i), 128 bytes of S; then the next channels c_a. A thread copies 16 bytes of each
 * 32nd row.
 */
template <class FORM> struct a_stages {
    using T = typename FORM::T;
    static constexpr int EACH = STEP / T::BYTES, AT_ONCE = THREADS / PIECES, COPIES = FORM::SIDES * ROWS / AT_ONCE;
    const unsigned char *next;      /* this thread's 16 bytes of its first row */
    int64_t row_step, channel_step; /* bytes from one of its rows to the next; from one c_a to the next */
    uint32_t valid;                 /* bit n: this thread's row i number n is there */
    int c_a, step, slot, left;      /* left: numbers of S from there on */

    EVO_METHOD void start(const gpu_opm_tensor_outer_params &p, const place &at, int s) {
        const int row = thread_x() / PIECES, first = s + thread_x() % PIECES * (16 / T::BYTES);
        next = static_cast<const unsigned char *>(p.a) +
               (block_z() * p.a_batch + static_cast<int64_t>(at.row + row) * p.s_pad + first) * T::BYTES;
        row_step = static_cast<int64_t>(AT_ONCE) * p.s_pad * T::BYTES;
        channel_step = p.a_channel * T::BYTES;
        valid = 0;
        EVO_UNROLL
        for (int n = 0; n < ROWS / AT_ONCE; n++) valid |= (at.row + row + n * AT_ONCE < p.row_count ? 1u : 0u) << n;
        c_a = step = slot = 0;
        left = p.s_pad - first;
    }

    EVO_METHOD void fetch(const gpu_opm_tensor_outer_params &p, int steps, unsigned char *stages) {
        unsigned char *to = stages + slot * FORM::STAGE + thread_x() / PIECES * STEP_PITCH + thread_x() % PIECES * 16;
        EVO_UNROLL
        for (int n = 0; n < COPIES; n++) {
            const int side = n / (ROWS / AT_ONCE), row = n % (ROWS / AT_ONCE);
            async_copy16(to + n * AT_ONCE * STEP_PITCH, next + side * channel_step + row * row_step,
                         (valid >> row & 1u) && left > 0 && c_a + side < p.c);
        }
        slot = slot + 1 == FORM::STAGES ? 0 : slot + 1;
        next += STEP;
        left -= EACH;
        if (++step < steps) return;
        step = 0;
        c_a += FORM::SIDES;
        next += FORM::SIDES * channel_step - static_cast<int64_t>(steps) * STEP;
        left += steps * EACH;
    }
};

/* Slice of W_o: rows (c_a, q), 32 c_b. */
template <class FORM>
EVO_DEVICE void copy_weight(const gpu_opm_tensor_outer_params &p, const place &at, int c_a, int c_b,
                            unsigned char *slice) {
    using T = typename FORM::T;
    constexpr int BYTES = HIDDEN * T::BYTES, EACH = BYTES / 16;
    const unsigned char *from = static_cast<const unsigned char *>(p.weight);
    const int column = thread_x() % EACH * 16;
    EVO_NO_UNROLL /* or else its offsets take registers that z needs */
        for (int n = 0; n < FORM::SIDES * COLUMNS * EACH / THREADS; n++) {
        const int row = thread_x() / EACH + n * (THREADS / EACH), q = at.z + row % COLUMNS,
                  channel = c_a + row / COLUMNS;
        const bool valid = q < p.z_rows && channel < p.c;
        const int64_t offset = (static_cast<int64_t>(c_b / HIDDEN * p.c + channel) * p.z_rows + q) * BYTES + column;
        async_copy16(slice + row * FORM::W_PITCH + column, valid ? from + offset : from, valid);
    }
}

/* --- Products --- */

template <class FORM> struct accumulators {
    sums o[FORM::SIDES][DOWN][WAVE_J][HALVES];
    sums z[DOWN][WAVE_J][Z_TILES];
};

/* o += a b^T over 32 bytes of a stage; x and y from this lane's offsets on. */
template <class FORM>
EVO_DEVICE void add_products(const unsigned char *x, const unsigned char *y, int y_pitch, accumulators<FORM> &sum) {
    using T = typename FORM::T;
    right_operand<T> right[WAVE_J][HALVES];
    EVO_UNROLL
    for (int j = 0; j < WAVE_J; j++) EVO_UNROLL
    for (int half = 0; half < HALVES; half++)
        right[j][half] = load_right_from<T>(y + (j * HIDDEN + half * TILE_SIDE) * y_pitch);
    EVO_UNROLL
    for (int side = 0; side < FORM::SIDES; side++) EVO_UNROLL
    for (int d = 0; d < DOWN; d++) {
        const operand<T> left = load_from<T>(x + (side * ROWS + d * TILE_SIDE) * STEP_PITCH);
        EVO_UNROLL
        for (int j = 0; j < WAVE_J; j++) EVO_UNROLL
        for (int half = 0; half < HALVES; half++) multiply(sum.o[side][d][j][half], left, right[j][half]);
    }
    schedule_barrier();
}

template <class FORM>
EVO_DEVICE void multiply_step(const unsigned char *x, const unsigned char *y, int y_pitch, int bytes,
                              accumulators<FORM> &sum) {
    if (bytes >= STEP) {
        EVO_UNROLL
        for (int k = 0; k < STEP; k += K_BYTES) add_products<FORM>(x + k, y + k, y_pitch, sum);
    } else {
        for (int k = 0; k < bytes; k += K_BYTES) add_products<FORM>(x + k, y + k, y_pitch, sum);
    }
}

/* o of the wave's pairs times their scales. */
template <class FORM> EVO_DEVICE void scale_products(const pair_numbers *pairs, int i, int j, accumulators<FORM> &sum) {
    EVO_UNROLL
    for (int d = 0; d < DOWN; d++) EVO_UNROLL
    for (int w = 0; w < WAVE_J; w++) EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e++) {
        const float scale = pairs->scale[(j + w) * ROWS + i + d * TILE_SIDE + tile_row(e)];
        EVO_UNROLL
        for (int side = 0; side < FORM::SIDES; side++) EVO_UNROLL
        for (int half = 0; half < HALVES; half++) sum.o[side][d][w][half].v[e] *= scale;
    }
}

/* z += o W_o^T for one block of 16 c_b; WHOLE: all channels of z are there, else `columns`. */
template <class FORM, bool WHOLE, class OPERANDS>
EVO_DEVICE void project_tiles(const unsigned char *slice, int columns, const OPERANDS &o, accumulators<FORM> &sum) {
    using T = typename FORM::T;
    EVO_UNROLL
    for (int tile = 0; tile < Z_TILES; tile++) {
        if (!WHOLE && tile * TILE_SIDE >= columns) continue;
        EVO_UNROLL
        for (int part = 0; part < TILE_PARTS<T>; part++) {
            const right_operand<T> w = load_right_from<T>(slice + tile * TILE_SIDE * FORM::W_PITCH + part * K_BYTES);
            EVO_UNROLL
            for (int d = 0; d < DOWN; d++) EVO_UNROLL
            for (int j = 0; j < WAVE_J; j++) multiply(sum.z[d][j][tile], o[d][j][part], w);
        }
        schedule_barrier();
    }
}

/* z += o W_o^T for the c_a of a slice, which is read from this lane's offset on; `hidden` c_b and `columns` q are there. */
template <class FORM, bool WHOLE>
EVO_DEVICE void project_products(const unsigned char *slice, int hidden, int columns, accumulators<FORM> &sum) {
    using T = typename FORM::T;
    EVO_UNROLL
    for (int side = 0; side < FORM::SIDES; side++) EVO_UNROLL
    for (int half = 0; half < HALVES; half++) {
        if (!WHOLE && half * TILE_SIDE >= hidden) continue;
        operand<T> o[DOWN][WAVE_J][TILE_PARTS<T>];
        EVO_UNROLL
        for (int d = 0; d < DOWN; d++) EVO_UNROLL
        for (int j = 0; j < WAVE_J; j++) as_operands(sum.o[side][d][j][half], o[d][j]);
        project_tiles<FORM, WHOLE>(slice + side * FORM::W_TILE + half * TILE_PARTS<T> * K_BYTES, columns, o, sum);
    }
}

template <class FORM> EVO_DEVICE void clear_products(accumulators<FORM> &sum) {
    EVO_UNROLL
    for (int side = 0; side < FORM::SIDES; side++) EVO_UNROLL
    for (int d = 0; d < DOWN; d++) EVO_UNROLL
    for (int j = 0; j < WAVE_J; j++) EVO_UNROLL
    for (int half = 0; half < HALVES; half++) clear(sum.o[side][d][j][half]);
}

/* --- The walk --- */

/*
 * z of the c_b from c_b on and `length` numbers of S from s on. Stages are fetched STAGES - 1 steps ahead, slices of W_o
 * SLICES - 1 channels c_a ahead. Shared memory is free before, and after a barrier.
 */
template <class FORM>
EVO_DEVICE void walk_channels(const gpu_opm_tensor_outer_params &p, const place &at, int c_b, int s, int length,
                              bool scaled, unsigned char *memory, accumulators<FORM> &sum) {
    using T = typename FORM::T;
    constexpr int EACH = STEP / T::BYTES;
    unsigned char *const slices = memory + FORM::PAIR_BYTES, *const stages = slices + FORM::SLICES * FORM::SLICE,
                         *const tile = memory + FORM::FIXED;
    const int pitch = p.chunk * T::BYTES + PAD, steps = (length + EACH - 1) / EACH;
    const int wave = thread_x() / WAVE, i = wave % 2 * 32, j = wave / 2 * WAVE_J;
    const unsigned char *const x = stages + i * STEP_PITCH + lane_offset(STEP_PITCH);
    const unsigned char *const y = tile + j * HIDDEN * pitch + right_lane_offset(pitch);
    a_stages<FORM> a;
    a.start(p, at, s);
    copy_b<T>(p, at, c_b, s, tile, pitch);
    if (FORM::SLICES > 1) copy_weight<FORM>(p, at, 0, c_b, slices);
    EVO_UNROLL
    for (int n = 0; n < FORM::STAGES - 1; n++) {
        a.fetch(p, steps, stages);
        async_commit();
    }
    int slot = 0, slice = 0;
    for (int c_a = 0; c_a < p.c; c_a += FORM::SIDES) {
        clear_products<FORM>(sum);
        for (int step = 0; step < steps; step++) {
            if (steps < FORM::STAGES - 1) /* this c_a's slice came with the youngest stage */
                async_wait<0>();
            else
                async_wait<FORM::STAGES - 2>();
            block_barrier();
            a.fetch(p, steps, stages);
            if (step == 0) {
                const int ahead = c_a + (FORM::SLICES - 1) * FORM::SIDES;
                unsigned char *const to = slices + (FORM::SLICES == 1 || slice ? 0 : FORM::SLICE);
                if (ahead < p.c) copy_weight<FORM>(p, at, ahead, c_b, to);
            }
            async_commit();
            multiply_step<FORM>(x + slot * FORM::STAGE, y + step * STEP, pitch, (length - step * EACH) * T::BYTES, sum);
            slot = slot + 1 == FORM::STAGES ? 0 : slot + 1;
        }
        if (FORM::SLICES == 1) { /* the slice is younger than the stages */
            async_wait<0>();
            block_barrier();
        }
        if (scaled) scale_products<FORM>(reinterpret_cast<const pair_numbers *>(memory), i, j, sum);
        const unsigned char *const w = slices + slice * FORM::SLICE + right_lane_offset(FORM::W_PITCH);
        if (WHOLE_PATH<T> && p.c - c_b >= HIDDEN && p.z_rows - at.z >= COLUMNS)
            project_products<FORM, true>(w, HIDDEN, COLUMNS, sum);
        else
            project_products<FORM, false>(w, p.c - c_b, p.z_rows - at.z, sum);
        if (FORM::SLICES > 1) slice ^= 1;
    }
    async_wait<0>();
    block_barrier();
}

template <class FORM>
EVO_DEVICE void write_block(const gpu_opm_tensor_outer_params &p, const place &at, unsigned char *memory,
                            accumulators<FORM> &sum) {
    const pair_numbers *pairs = reinterpret_cast<const pair_numbers *>(memory);
    const int wave = thread_x() / WAVE, first_i = wave % 2 * 32, first_j = wave / 2 * WAVE_J;
    float *own = reinterpret_cast<float *>(memory + FORM::PAIR_BYTES) + wave * OUT_FLOATS;
    static_assert(WAVES * OUT_FLOATS * 4 <= FORM::FIXED - FORM::PAIR_BYTES, "the waves' tiles fit");
    EVO_UNROLL
    for (int h = 0; h < COLUMNS / OUT_COLUMNS; h++) {
        if (at.z + h * OUT_COLUMNS >= p.output.c_z) continue;
        channel_quad quad;
        quad.start(p.output, p.z_scale, at.z + h * OUT_COLUMNS);
        EVO_UNROLL
        for (int d = 0; d < DOWN; d++) EVO_UNROLL
        for (int w = 0; w < WAVE_J; w++) {
            constexpr int TILES = OUT_COLUMNS / TILE_SIDE;
            sums tiles[TILES];
            EVO_UNROLL
            for (int t = 0; t < TILES; t++) tiles[t] = sum.z[d][w][h * TILES + t];
            const int i = first_i + d * TILE_SIDE, j = first_j + w;
            write_tiles(p.output, tiles, quad, own,
                        [&](int row, int64_t *pair_i, int64_t *pair_j, float *n, float *scale) {
                            const int pair = j * ROWS + i + row;
                            *pair_i = p.row_begin + at.row + i + row;
                            *pair_j = p.col_begin + at.col + j;
                            *n = pairs->n[pair];
                            *scale = 1.0f;
                            if (IS_HALF<typename FORM::T>) {
                                const float by = pairs->scale[pair], whole = power_of_two(2 * p.mask_exponent);
                                *scale = is_finite(by) ? whole / by : whole;
                            }
                            return at.row + i + row < p.row_count && at.col + j < p.col_count;
                        });
        }
    }
}

template <class FORM> EVO_DEVICE void make_pairs(const gpu_opm_tensor_outer_params &p, unsigned char *memory) {
    accumulators<FORM> sum;
    const place at = block_place(p);
    const bool scaled = number_pairs(p, at, IS_HALF<typename FORM::T>, reinterpret_cast<pair_numbers *>(memory),
                                     reinterpret_cast<float *>(memory + FORM::PAIR_BYTES));
    EVO_UNROLL
    for (int d = 0; d < DOWN; d++) EVO_UNROLL
    for (int j = 0; j < WAVE_J; j++) EVO_UNROLL
    for (int t = 0; t < Z_TILES; t++) clear(sum.z[d][j][t]);
    for (int c_b = 0; c_b < p.c; c_b += HIDDEN)
        for (int s = 0; s < p.s_pad; s += p.chunk)
            walk_channels<FORM>(p, at, c_b, s, p.s_pad - s < p.chunk ? p.s_pad - s : p.chunk, scaled, memory, sum);
    write_block<FORM>(p, block_place(p), memory, sum); /* its place again: z has all the registers in between */
}

#define EVO_OUTER(name, T, SIDES, STAGES, SLICES)                                                                     \
    EVO_KERNEL(name, gpu_opm_tensor_outer_params, GPU_OPM_TENSOR_THREADS, 1) {                                        \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        make_pairs<form<T, SIDES, STAGES, SLICES>>(p, shared);                                                        \
    }
#if defined(EVO_LARGE_SHARED)
EVO_OUTER(evo_opm_tensor_outer_bf16, bfloat_t, GPU_OPM_LARGE_SIDES, GPU_OPM_LARGE_STAGES, 2)
EVO_OUTER(evo_opm_tensor_outer_fp16, half_t, GPU_OPM_LARGE_SIDES, GPU_OPM_LARGE_STAGES, 2)
EVO_OUTER(evo_opm_tensor_outer_tf32, tf32_t, GPU_OPM_LARGE_SIDES, GPU_OPM_LARGE_STAGES, 2)
#endif
EVO_OUTER(evo_opm_tensor_outer_small_bf16, bfloat_t, 1, GPU_OPM_SMALL_STAGES, 2)
EVO_OUTER(evo_opm_tensor_outer_small_fp16, half_t, 1, GPU_OPM_SMALL_STAGES, 2)
#if defined(EVO_MATRIX_TF32)
EVO_OUTER(evo_opm_tensor_outer_small_tf32, tf32_t, 1, GPU_OPM_SMALL_STAGES, 1)
#endif
