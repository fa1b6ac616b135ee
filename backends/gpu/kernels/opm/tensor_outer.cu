/*
 * tensor_outer.cu: outer first on matrix units. A block takes a tile of pairs (i, j), 64 x 4 as a rule, and 128 channels of z, whose
 * sums stay in registers while the block walks over c_a:
 *
 *     o[i, (j, c_b)]  = sum over s of a[c_a][i, s] * b[(j, c_b), s]
 *     z[(i, j), q]   += o[i, (j, c_b)] * W_o[q, c_a, c_b]
 *
 * A wave's sums of the first product, rounded, are its operand of the second: o is never in memory. b's tile, j x 32 c_b x
 * as many s as there is room for, stays in shared memory for all c_a; a passes through a ring of stages, W_o's slice of the
 * next c_a is fetched while this one's o is summed. What is linear in o goes part by part: blocks of 32 c_b, chunks of S.
 * Where registers allow, operands of the next products are loaded while these multiply, from stage to stage too, so that a wave
 * meets the block's barrier with products under way.
 * The last blocks may have half a tile each, half the rows and twice the c_a at a time, so that no part of the chip waits long for them.
 */
#include "backends/gpu/kernels/opm/tensor_output.h"
#include "backends/gpu/kernels/scales.h"

static constexpr int HIDDEN = GPU_OPM_TENSOR_HIDDEN, COLUMNS = GPU_OPM_TENSOR_COLUMNS;
static constexpr int THREADS = GPU_OPM_TENSOR_THREADS, WAVES = THREADS / WAVE;
static constexpr int STEP = GPU_OPM_TENSOR_STEP, PAD = GPU_OPM_TENSOR_PAD, STEP_PITCH = STEP + PAD, PIECES = STEP / 16;

/* A wave has, for 32 channels c_b each, WAVE_J j. */
static constexpr int WAVE_J = WAVE / 32, HALVES = HIDDEN / TILE_SIDE, Z_TILES = COLUMNS / TILE_SIDE;

/*
 * How many units of operands (step_units) and tiles of W_o are loaded ahead of their products: two waves a scheduler do not hide a load
 * otherwise. Elsewhere registers have no room; for split numbers neither.
 */
#if defined(EVO_MATRIX_MMA)
template <class T> static constexpr int UNITS_AHEAD = IS_SPLIT<T> ? 0 : 3;
static constexpr int TILES_AHEAD = 3;
/* Of split numbers all of a wave's rows of a c_a are multiplied together, as each product waits for another; so many tiles of W_o likewise. */
static constexpr bool ROWS_TOGETHER = true;
static constexpr int TILE_SPAN = 2;
#else
template <class T> static constexpr int UNITS_AHEAD = 0;
static constexpr int TILES_AHEAD = 0;
static constexpr bool ROWS_TOGETHER = false;
static constexpr int TILE_SPAN = 1;
#endif

/* Masks of so many sequences are read at a time; those of the columns pass through one of two places in shared memory. */
static constexpr int MASK_DEPTH = 128;

/*
 * What a block has: ROWS i and COLS j, SIDES channels c_a at a time, STAGES of a, SLICES of W_o.
 * Shared memory: `pair_numbers`, slices of W_o, stages of a, b's tile; the first three are FIXED bytes.
 */
template <class T_, int ROWS_, int COLS_, int SIDES_, int STAGES_, int SLICES_> struct form {
    using T = T_;
    static constexpr int ROWS = ROWS_, COLS = COLS_, SIDES = SIDES_, STAGES = STAGES_, SLICES = SLICES_;
    static constexpr int PAIR_PITCH = ROWS; /* of pair_numbers */
    static constexpr int WAVES_DOWN = WAVES / (COLS / WAVE_J),
                         DOWN = ROWS / WAVES_DOWN / TILE_SIDE; /* tiles of 16 i a wave has */
    static constexpr int STAGE = SIDES * ROWS * STEP_PITCH;
    static constexpr int W_PITCH = HIDDEN * T::BYTES + PAD, W_TILE = COLUMNS * W_PITCH, SLICE = SIDES * W_TILE;
    static constexpr int PAIR_BYTES = GPU_OPM_PAIR_BYTES;
    static constexpr int FIXED = PAIR_BYTES + SLICES * SLICE + STAGES * STAGE;
    static_assert(ROWS * COLS <= GPU_OPM_TENSOR_PAIRS && GPU_OPM_TENSOR_PAIRS == THREADS, "a thread numbers a pair");
    static_assert(FIXED - PAIR_BYTES >= 2 * COLS * (2 * MASK_DEPTH > THREADS ? 2 * MASK_DEPTH : THREADS) * 4,
                  "masks and counts fit");

    /*
     * Waves with the same rows i are a part of the block: they copy those rows of a themselves, so that stages pass without the
     * other part, whose products fill the matrix units meanwhile.
     */
    static constexpr int PART_THREADS = THREADS / WAVES_DOWN, PART_ROWS = ROWS / WAVES_DOWN;

    /* The wave's first pair in the tile. */
    EVO_METHOD static int own_i() {
        return thread_x() / PART_THREADS * PART_ROWS;
    }
    EVO_METHOD static int own_j() {
        return thread_x() / WAVE % (WAVES / WAVES_DOWN) * WAVE_J;
    }
};

/* Half the rows, in the same memory: with twice the c_a at a time a wave's operands meet as many others as before. */
template <class WHOLE>
struct half_form
    : form<typename WHOLE::T, WHOLE::ROWS / 2, WHOLE::COLS, WHOLE::SIDES * WHOLE::SLICES, WHOLE::STAGES, 1> {
    static constexpr int PAIR_PITCH = WHOLE::ROWS, FIXED = WHOLE::FIXED;
};

struct place {
    int row, col, z, batch; /* first i and j, relative to the launch's; first channel; batch entry of the schedule */
    int part;               /* which half of the tile */
};

/*
 * Of the tile's pairs, [j][i]: the normaliser, and what o is multiplied by before it is rounded. And the place, which takes divisions to
 * find and registers that z needs to keep.
 */
struct pair_numbers {
    float n[GPU_OPM_TENSOR_PAIRS], scale[GPU_OPM_TENSOR_PAIRS];
    place at;
};
static_assert(sizeof(pair_numbers) <= GPU_OPM_PAIR_BYTES, "as launched");

/* The block's tile: those of one batch entry and one group of channels of z after the other; the last ones may be of two blocks. */
template <class WHOLE> EVO_DEVICE place block_place(const gpu_opm_tensor_outer_params &p) {
    const uint32_t rows = static_cast<uint32_t>(p.row_count + WHOLE::ROWS - 1) / WHOLE::ROWS,
                   cols = static_cast<uint32_t>(p.col_count + WHOLE::COLS - 1) / WHOLE::COLS,
                   groups = static_cast<uint32_t>(p.output.c_z + COLUMNS - 1) / COLUMNS;
    const uint32_t rest = block_x() < p.whole ? 0 : block_x() - p.whole, tile = block_x() - rest + rest / 2,
                   slice = tile / (rows * cols), block = tile % (rows * cols);
    const uint32_t band = block / (GPU_OPM_TENSOR_BAND * cols) * GPU_OPM_TENSOR_BAND,
                   high = rows - band < GPU_OPM_TENSOR_BAND ? rows - band : uint32_t{ GPU_OPM_TENSOR_BAND },
                   within = block - band * cols;
    return { static_cast<int>((band + within % high) * WHOLE::ROWS), static_cast<int>(within / high * WHOLE::COLS),
             static_cast<int>(slice % groups * COLUMNS), static_cast<int>(slice / groups), static_cast<int>(rest % 2) };
}

/* --- Counts --- */

/* Masks of one type, MASK_DEPTH sequences at a time: of row thread % ROWS every SHARES-th, of column thread % COLS every STEP_J-th. */
template <class FORM, class NUMBER> struct masks {
    static constexpr int SHARES = THREADS / FORM::ROWS, OWN = MASK_DEPTH / SHARES, STEP_J = THREADS / FORM::COLS,
                         OTHERS = MASK_DEPTH / STEP_J;
    const NUMBER *i, *j; /* of the row and of the column whose masks this thread loads, at s = 0 */
    int64_t stride;
    NUMBER x[OWN], y[OTHERS]; /* as stored: a conversion here would make each load wait for the one before */

    /* Pairs beyond the tile count as its last ones. */
    EVO_METHOD void start(const gpu_opm_tensor_outer_params &p, const place &at) {
        const gpu_tensor &mask = p.output.mask;
        const NUMBER *batch =
            static_cast<const NUMBER *>(mask.data) + (p.output.batch_begin + at.batch) * mask.strides[0];
        const int row = at.row + thread_x() % FORM::ROWS, col = at.col + thread_x() % FORM::COLS;
        stride = mask.strides[1];
        i = batch + (p.row_begin + (row < p.row_count ? row : p.row_count - 1)) * mask.strides[2];
        j = batch + (p.col_begin + (col < p.col_count ? col : p.col_count - 1)) * mask.strides[2];
    }

    /* Sequences from s on; those past the last are the last. */
    EVO_METHOD void load(int s, int last) {
        EVO_UNROLL
        for (int n = 0; n < OWN; n++) {
            const int own = s + thread_x() / FORM::ROWS + n * SHARES;
            x[n] = i[(own < last ? own : last) * stride];
        }
        EVO_UNROLL
        for (int n = 0; n < OTHERS; n++) {
            const int own = s + thread_x() / FORM::COLS + n * STEP_J;
            y[n] = j[(own < last ? own : last) * stride];
        }
    }
};

/* Of residue begin + own of the tile's rows or columns: the exponent of the power of two that its masks are divided by. */
EVO_DEVICE int mask_exponent(const gpu_opm_tensor_outer_params &p, int batch, int64_t begin, int own, int count) {
    return p.mask_exponents ? p.mask_exponents[batch * p.n + begin + (own < count ? own : count - 1)] : 0;
}

/* The COLS numbers of one s. */
template <int COLS> EVO_DEVICE void load_columns(const float *from, float (&y)[COLS]) {
    if constexpr (COLS == 4) {
        unpack(*reinterpret_cast<const float4_t *>(from), y);
    } else {
        EVO_UNROLL
        for (int c = 0; c < COLS; c++) y[c] = from[c];
    }
}

/*
 * Of row i = thread % ROWS with all columns, over its share of s: counts, and of halves the most that o may be, in units of the bounds of
 * a and b. Uses `memory`; `beside` is called when the first masks have been asked for.
 */
template <class FORM, class NUMBER, class BESIDE>
EVO_DEVICE void count_masks(const gpu_opm_tensor_outer_params &p, const place &at, float *memory,
                            float (&sum)[FORM::COLS], float (&most)[FORM::COLS], const BESIDE &beside) {
    using loaded = masks<FORM, NUMBER>;
    constexpr int COLS = FORM::COLS, SHARES = loaded::SHARES, PLACES = MASK_DEPTH * COLS;
    constexpr bool SIZES = IS_HALF<typename FORM::T>;
    const bool is_bfloat = p.output.mask.dtype == GPU_BF16;
    loaded m;
    m.start(p, at);
    const int last = p.output.s - 1, share = thread_x() / FORM::ROWS;
    if (last < 0) return beside();
    m.load(0, last);
    beside();
    float row_unit = 1.0f, col_unit = 1.0f;
    if (SIZES) {
        row_unit =
            power_of_two(-mask_exponent(p, at.batch, p.row_begin, at.row + thread_x() % FORM::ROWS, p.row_count));
        col_unit = power_of_two(-mask_exponent(p, at.batch, p.col_begin, at.col + thread_x() % COLS, p.col_count));
    }
    for (int first = 0, buffer = 0; first < p.output.s; first += MASK_DEPTH, buffer ^= 1) {
        float *const values = memory + buffer * 2 * PLACES, *const sizes = values + PLACES;
        const int left = p.output.s - first;
        EVO_UNROLL
        for (int n = 0; n < loaded::OTHERS; n++) {
            const float y = thread_x() / COLS + n * loaded::STEP_J < left ? mask_value(m.y[n], is_bfloat) : 0.0f;
            values[n * THREADS + thread_x()] = y;
            if (SIZES) sizes[n * THREADS + thread_x()] = p.mask_b ? finite_magnitude(y) * col_unit : 1.0f;
        }
        float own[loaded::OWN];
        EVO_UNROLL
        for (int n = 0; n < loaded::OWN; n++) own[n] = share + n * SHARES < left ? mask_value(m.x[n], is_bfloat) : 0.0f;
        block_barrier(); /* the other buffer's readers are done, too */
        if (first + MASK_DEPTH <= last) m.load(first + MASK_DEPTH, last);
        EVO_UNROLL
        for (int n = 0; n < loaded::OWN; n++) {
            float y[COLS];
            load_columns<COLS>(values + (share + n * SHARES) * COLS, y);
            EVO_UNROLL
            for (int c = 0; c < COLS; c++) sum[c] = multiply_add(own[n], y[c], sum[c]);
            if (SIZES) {
                const float size = finite_magnitude(own[n]) * row_unit;
                load_columns<COLS>(sizes + (share + n * SHARES) * COLS, y);
                EVO_UNROLL
                for (int c = 0; c < COLS; c++) most[c] = multiply_add(size, y[c], most[c]);
            }
        }
    }
    block_barrier();
}

template <class FORM, class BESIDE>
EVO_DEVICE void count_pairs(const gpu_opm_tensor_outer_params &p, const place &at, float *memory,
                            float (&count)[FORM::COLS], float (&most)[FORM::COLS], const BESIDE &beside) {
    EVO_UNROLL
    for (int j = 0; j < FORM::COLS; j++) count[j] = most[j] = 0.0f;
    switch (p.output.mask.dtype) {
    case GPU_FP64:
        return count_masks<FORM, double>(p, at, memory, count, most, beside);
    case GPU_FP32:
        return count_masks<FORM, float>(p, at, memory, count, most, beside);
    case GPU_UINT8:
        return count_masks<FORM, uint8_t>(p, at, memory, count, most, beside);
    default:
        return count_masks<FORM, uint16_t>(p, at, memory, count, most, beside);
    }
}

/*
 * The tile's pairs' normalisers and scales, a thread a pair. A normaliser of 0 that divides before divides o itself. Uses `memory`; `beside` is
 * what else a block asks for meanwhile.
 */
template <class FORM, class BESIDE>
EVO_DEVICE void number_pairs(const gpu_opm_tensor_outer_params &p, const place &at, pair_numbers *pairs, float *memory,
                             const BESIDE &beside) {
    using T = typename FORM::T;
    constexpr int COLS = FORM::COLS, ROWS = FORM::ROWS, SHARES = THREADS / ROWS;
    constexpr int BOUND =
        IS_SPLIT<T> ? int{ STORE_EXPONENT } : int{ GPU_OPM_TENSOR_HALF }; /* of |a| and |b| where the mask is 1 */
    float count[COLS], most[COLS], sum = 0.0f, size = 0.0f;
    const int i = thread_x() % ROWS, own = thread_x() / ROWS;
    if (p.output.mask.dtype == GPU_NONE) {
        sum = size = static_cast<float>(p.output.s);
        beside();
    } else {
        count_pairs<FORM>(p, at, memory, count, most, beside);
        EVO_UNROLL
        for (int j = 0; j < COLS; j++) {
            memory[(own * COLS + j) * ROWS + i] = count[j];
            memory[((own + SHARES) * COLS + j) * ROWS + i] = most[j];
        }
        block_barrier();
        EVO_UNROLL
        for (int share = 0; own < COLS && share < SHARES; share++) {
            sum += memory[(share * COLS + own) * ROWS + i];
            size += memory[((share + SHARES) * COLS + own) * ROWS + i];
        }
        block_barrier();
    }
    const float n = normaliser(p.output, sum);
    const bool divides = n == 0.0f && !p.output.divide_after;
    float scale = 1.0f;
    if (IS_HALF<T> && size > 0.0f) scale = power_of_two(14 - exponent_above(size) - 2 * (BOUND - p.mask_exponent));
    if (thread_x() == 0) pairs->at = at;
    if (own < COLS) {
        pairs->n[thread_x()] = divides ? 1.0f : n;
        pairs->scale[thread_x()] = divides ? scale / n : scale;
    }
    block_barrier();
}

/* --- Copies --- */

/* b's tile: rows (j, c_b), `chunk` numbers of S from s on. */
template <class FORM>
EVO_DEVICE void copy_b(const gpu_opm_tensor_outer_params &p, const place &at, int c_b, int s, unsigned char *tile,
                       int pitch) {
    using T = typename FORM::T;
    const int pieces = p.chunk * T::BYTES / 16, each = 16 / T::BYTES;
    const unsigned char *from = static_cast<const unsigned char *>(p.b) + at.batch * p.b_batch * T::BYTES;
    for (int piece = thread_x(); piece < FORM::COLS * HIDDEN * pieces; piece += THREADS) {
        const int row = piece / pieces, within = piece - row * pieces, j = at.col + row / HIDDEN,
                  channel = c_b + row % HIDDEN, first = s + within * each;
        const bool valid = j < p.col_count && channel < p.c && first < p.s_pad;
        const int64_t offset = channel * p.b_channel + static_cast<int64_t>(j) * p.s_pad + first;
        async_copy16(tile + row * pitch + within * 16, valid ? from + offset * T::BYTES : from, valid);
    }
}

/*
 * Stages of a, one after the other: rows (c_a, i), 128 bytes of S; then the next channels c_a. A thread copies 16 bytes of some of
 * its part's rows, AT_ONCE rows apart.
 */
template <class FORM> struct a_stages {
    using T = typename FORM::T;
    static constexpr int EACH = STEP / T::BYTES, AT_ONCE = FORM::PART_THREADS / PIECES,
                         ROUNDS = FORM::PART_ROWS / AT_ONCE;
    const unsigned char *next;      /* this thread's 16 bytes of its first row */
    int64_t row_step, channel_step; /* bytes from one of its rows to the next; from one c_a to the next */
    uint32_t valid;                 /* bit n: this thread's row i number n is there */
    int c_a, step, slot, left;      /* left: numbers of S from there on */

    EVO_METHOD static int own_row() {
        return thread_x() / FORM::PART_THREADS * FORM::PART_ROWS + thread_x() % FORM::PART_THREADS / PIECES;
    }

    EVO_METHOD void start(const gpu_opm_tensor_outer_params &p, const place &at, int s) {
        const int row = own_row(), first = s + thread_x() % PIECES * (16 / T::BYTES);
        next = static_cast<const unsigned char *>(p.a) +
               (at.batch * p.a_batch + static_cast<int64_t>(at.row + row) * p.s_pad + first) * T::BYTES;
        row_step = static_cast<int64_t>(AT_ONCE) * p.s_pad * T::BYTES;
        channel_step = p.a_channel * T::BYTES;
        valid = 0;
        EVO_UNROLL
        for (int n = 0; n < ROUNDS; n++) valid |= (at.row + row + n * AT_ONCE < p.row_count ? 1u : 0u) << n;
        c_a = step = slot = 0;
        left = p.s_pad - first;
    }

    /* Asks for the next stage. */
    EVO_METHOD void copy(const gpu_opm_tensor_outer_params &p, int steps, unsigned char *stages) {
        unsigned char *to = stages + slot * FORM::STAGE + own_row() * STEP_PITCH + thread_x() % PIECES * 16;
        EVO_UNROLL
        for (int side = 0; side < FORM::SIDES; side++) EVO_UNROLL
        for (int row = 0; row < ROUNDS; row++)
            async_copy16(to + (side * FORM::ROWS + row * AT_ONCE) * STEP_PITCH,
                         next + side * channel_step + row * row_step,
                         (valid >> row & 1u) && left > 0 && c_a + side < p.c);
        async_commit();
        advance(steps);
    }

    EVO_METHOD void advance(int steps) {
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
    sums o[FORM::SIDES][WAVE_J][FORM::DOWN][HALVES];
    sums z[FORM::DOWN][WAVE_J][Z_TILES];
};

/*
 * What passes through registers for a step's products: a unit is 16 rows of a over an operand's S, which meets all of the wave's rows
 * of b there.
 */
template <class FORM> struct step_units {
    using T = typename FORM::T;
    static constexpr int DOWN = FORM::DOWN, LEFTS = FORM::SIDES * DOWN, BYTES = OPERAND_BYTES<T>,
                         TOGETHER = IS_SPLIT<T> && ROWS_TOGETHER ? DOWN : 1, COUNT = STEP / BYTES * LEFTS / TOGETHER;
    static constexpr int RING = COUNT < 4 ? COUNT : 4;
    static_assert(UNITS_AHEAD<T> < RING && COUNT % RING == 0 && STEP / BYTES % 2 == 0,
                  "a step ends where the next begins");
    operand<T> left[RING][TOGETHER];
    right_operand<T> right[2][WAVE_J][HALVES];

    /* x: the wave's first row of the stage, y: that of b, both where the step begins, from this lane's offset on. */
    EVO_METHOD void load(int unit, const unsigned char *x, const unsigned char *y, int y_pitch) {
        const int first = unit * TOGETHER, k = first / LEFTS;
        EVO_UNROLL
        for (int j = 0; first % LEFTS == 0 && j < WAVE_J; j++) EVO_UNROLL
        for (int half = 0; half < HALVES; half++)
            right[k % 2][j][half] = load_right_from<T>(y + (j * HIDDEN + half * TILE_SIDE) * y_pitch + k * BYTES);
        EVO_UNROLL
        for (int l = 0; l < TOGETHER; l++) {
            const int row = (first + l) % LEFTS / DOWN * FORM::ROWS + (first + l) % DOWN * TILE_SIDE;
            left[unit % RING][l] = load_from<T>(x + row * STEP_PITCH + k * BYTES);
        }
    }

    EVO_METHOD void multiply_into(int unit, accumulators<FORM> &sum) const {
        const int first = unit * TOGETHER, k = first / LEFTS, side = first % LEFTS / DOWN, d = first % DOWN;
        if constexpr (IS_SPLIT<T> && ROWS_TOGETHER) {
            EVO_UNROLL
            for (int j = 0; j < WAVE_J; j++) multiply_tiles(sum.o[side][j], left[unit % RING], right[k % 2][j]);
        } else {
            EVO_UNROLL
            for (int j = 0; j < WAVE_J; j++) EVO_UNROLL
            for (int half = 0; half < HALVES; half++)
                multiply(sum.o[side][j][d][half], left[unit % RING][0], right[k % 2][j][half]);
        }
        if (UNITS_AHEAD<T> == 0) schedule_barrier();
    }
};

/* o times its pairs' scales, which in bf16 are 1 but for normalisers of 0. */
template <class FORM> EVO_DEVICE void scale_o(const pair_numbers *pairs, int i, int j, accumulators<FORM> &sum) {
    float scale[FORM::DOWN][WAVE_J][OWN_ROWS];
    bool scales = IS_HALF<typename FORM::T>;
    EVO_UNROLL
    for (int d = 0; d < FORM::DOWN; d++) EVO_UNROLL
    for (int w = 0; w < WAVE_J; w++) EVO_UNROLL
    for (int r = 0; r < OWN_ROWS; r++) {
        scale[d][w][r] = pairs->scale[(j + w) * FORM::PAIR_PITCH + i + d * TILE_SIDE + tile_row(row_element(r))];
        scales = scales || scale[d][w][r] != 1.0f;
    }
    if (!scales) return;
    EVO_UNROLL
    for (int side = 0; side < FORM::SIDES; side++) EVO_UNROLL
    for (int w = 0; w < WAVE_J; w++) EVO_UNROLL
    for (int d = 0; d < FORM::DOWN; d++) EVO_UNROLL
    for (int half = 0; half < HALVES; half++) EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e++) sum.o[side][w][d][half].v[e] *= scale[d][w][own_row(e)];
}

/* o of one c_a and 16 c_b, as operands. */
template <class FORM> using o_operands = operand<typename FORM::T>[FORM::DOWN][WAVE_J];

template <class FORM> EVO_DEVICE void take_o(int side, int half, const accumulators<FORM> &sum, o_operands<FORM> &o) {
    EVO_UNROLL
    for (int d = 0; d < FORM::DOWN; d++) EVO_UNROLL
    for (int w = 0; w < WAVE_J; w++) o[d][w] = as_operand<typename FORM::T>(sum.o[side][w][d][half]);
}

template <class FORM>
EVO_DEVICE void add_projection(const o_operands<FORM> &o, const right_operand<typename FORM::T> &w, int tile,
                               accumulators<FORM> &sum) {
    EVO_UNROLL
    for (int d = 0; d < FORM::DOWN; d++) EVO_UNROLL
    for (int j = 0; j < WAVE_J; j++) multiply(sum.z[d][j][tile], o[d][j], w);
}

/* Half of the block's channels of z, from tile `first` on; a tile of W_o is loaded TILES_AHEAD tiles before its products. */
template <class FORM>
EVO_DEVICE void project_half(const unsigned char *slice, const o_operands<FORM> (&o)[FORM::SIDES][HALVES], int first,
                             accumulators<FORM> &sum) {
    using T = typename FORM::T;
    constexpr int TILES = Z_TILES / 2, COUNT = FORM::SIDES * HALVES * TILES;
    right_operand<T> w[TILES_AHEAD + 1];
    EVO_UNROLL
    for (int n = 0; n < COUNT + TILES_AHEAD; n++) {
        if (n < COUNT)
            w[n % (TILES_AHEAD + 1)] =
                load_right_from<T>(slice + n / (TILES * HALVES) * FORM::W_TILE + n / TILES % HALVES * OPERAND_BYTES<T> +
                                   (first + n % TILES) * TILE_SIDE * FORM::W_PITCH);
        if (n < TILES_AHEAD) continue;
        const int m = n - TILES_AHEAD, run = m / TILES;
        add_projection<FORM>(o[run / HALVES][run % HALVES], w[m % (TILES_AHEAD + 1)], first + m % TILES, sum);
    }
}

/*
 * Likewise a tile of split numbers: the 32 c_b make one sum on the matrix unit, so that z, which runs over all (c_a, c_b), is added
 * to half as often; products with a low half, which are small, come first.
 */
template <class FORM>
EVO_DEVICE void add_split_tile(const unsigned char *weights, const o_operands<FORM> (&o)[HALVES], int tile,
                               accumulators<FORM> &sum) {
    using T = typename FORM::T;
    right_operand<T> w[HALVES];
    EVO_UNROLL
    for (int half = 0; half < HALVES; half++)
        w[half] = load_right_from<T>(weights + tile * TILE_SIDE * FORM::W_PITCH + half * OPERAND_BYTES<T>);
    EVO_UNROLL
    for (int j = 0; j < WAVE_J; j++) {
        sums part[FORM::DOWN];
        EVO_UNROLL
        for (int n = 0; n < 3 * HALVES; n++) {
            const int half = n < 4 ? n / 2 : n - 4, product = n < 4 ? n % 2 : 2;
            EVO_UNROLL
            for (int d = 0; d < FORM::DOWN; d++) {
                const operand<T> &x = o[half][d][j];
                if (n == 0) clear(part[d]);
                multiply(part[d], product == 0 ? x.low : x.high, product == 1 ? w[half].low : w[half].high);
            }
        }
        EVO_UNROLL
        for (int d = 0; d < FORM::DOWN; d++) EVO_UNROLL
        for (int e = 0; e < TILE_SUMS; e++) sum.z[d][j][tile].v[e] += part[d].v[e];
    }
}

template <class FORM> EVO_DEVICE void project_split(const unsigned char *slice, int columns, accumulators<FORM> &sum) {
    EVO_UNROLL
    for (int side = 0; side < FORM::SIDES; side++) {
        o_operands<FORM> o[HALVES];
        EVO_UNROLL
        for (int half = 0; half < HALVES; half++) take_o<FORM>(side, half, sum, o[half]);
        EVO_UNROLL
        for (int first = 0; first < Z_TILES; first += TILE_SPAN) {
            if (first * TILE_SIDE >= columns) continue;
            EVO_UNROLL
            for (int tile = first; tile < first + TILE_SPAN; tile++)
                add_split_tile<FORM>(slice + side * FORM::W_TILE, o, tile, sum);
            schedule_barrier();
        }
    }
}

/*
 * z += o W_o^T for the c_a of a slice, which is read from this lane's offset on; `columns` channels are there. With loads ahead
 * all of o becomes operands first, else 16 c_b at a time.
 */
template <class FORM>
EVO_DEVICE void project_products(const unsigned char *slice, int columns, accumulators<FORM> &sum) {
    using T = typename FORM::T;
    o_operands<FORM> o[TILES_AHEAD > 0 ? FORM::SIDES : 1][TILES_AHEAD > 0 ? HALVES : 1];
    EVO_UNROLL
    for (int side = 0; side < FORM::SIDES; side++) EVO_UNROLL
    for (int half = 0; half < HALVES; half++) {
        take_o<FORM>(side, half, sum, o[TILES_AHEAD > 0 ? side : 0][TILES_AHEAD > 0 ? half : 0]);
        if constexpr (TILES_AHEAD == 0) {
            EVO_UNROLL
            for (int tile = 0; tile < Z_TILES; tile++) {
                if (tile * TILE_SIDE >= columns) continue;
                add_projection<FORM>(o[0][0],
                                     load_right_from<T>(slice + side * FORM::W_TILE + tile * TILE_SIDE * FORM::W_PITCH +
                                                        half * OPERAND_BYTES<T>),
                                     tile, sum);
                schedule_barrier();
            }
        }
    }
    if constexpr (TILES_AHEAD > 0) {
        project_half<FORM>(slice, o, 0, sum);
        if (columns > COLUMNS / 2) project_half<FORM>(slice, o, Z_TILES / 2, sum);
    }
}

template <class FORM> EVO_DEVICE void clear_products(accumulators<FORM> &sum) {
    EVO_UNROLL
    for (int side = 0; side < FORM::SIDES; side++) EVO_UNROLL
    for (int d = 0; d < FORM::DOWN; d++) EVO_UNROLL
    for (int j = 0; j < WAVE_J; j++) EVO_UNROLL
    for (int half = 0; half < HALVES; half++) clear(sum.o[side][j][d][half]);
}

/* --- The walk --- */

/* The numbers from the part's first row on. */
template <class FORM> EVO_DEVICE const pair_numbers *pairs_of(const place &at, const unsigned char *memory) {
    return reinterpret_cast<const pair_numbers *>(memory + at.part * FORM::ROWS * 4);
}

/*
 * z of the c_b from c_b on and `length` numbers of S from s on; b's tile has been asked for. Stages are fetched STAGES steps ahead,
 * slices of W_o SLICES - 1 channels c_a ahead: as soon as all waves of a part have this step's last operands in registers, its
 * place is free. Slices are all waves': the first step of a c_a ends with a barrier of the block, by when a slice asked for a c_a
 * ago has come, and the readers of the one before are done. Shared memory is free after a barrier.
 */
template <class FORM>
EVO_DEVICE void walk_channels(const gpu_opm_tensor_outer_params &p, const place &at, int c_b, int s, int length,
                              unsigned char *memory, accumulators<FORM> &sum) {
    using T = typename FORM::T;
    using units = step_units<FORM>;
    constexpr int EACH = STEP / T::BYTES;
    unsigned char *const slices = memory + FORM::PAIR_BYTES, *const stages = slices + FORM::SLICES * FORM::SLICE,
                         *const tile = memory + FORM::FIXED;
    const int pitch = p.chunk * T::BYTES + PAD, steps = (length + EACH - 1) / EACH;
    const int i = FORM::own_i(), j = FORM::own_j(), part = thread_x() / FORM::PART_THREADS;
    const unsigned char *const x = stages + i * STEP_PITCH + lane_offset(STEP_PITCH);
    const unsigned char *const y = tile + j * HIDDEN * pitch + right_lane_offset(pitch);
    a_stages<FORM> a;
    a.start(p, at, s);
    if (FORM::SLICES > 1) copy_weight<FORM>(p, at, 0, c_b, slices);
    EVO_UNROLL
    for (int n = 0; n < FORM::STAGES - 1; n++) a.copy(p, steps, stages);
    async_wait<FORM::STAGES - 2>();
    block_barrier();
    units ring;
    EVO_UNROLL
    for (int u = 0; u < UNITS_AHEAD<T>; u++) ring.load(u, x, y, pitch);
    int slot = 0, slice = 0;
    for (int c_a = 0; c_a < p.c; c_a += FORM::SIDES) {
        const int ahead = c_a + (FORM::SLICES - 1) * FORM::SIDES;
        unsigned char *const next_slice = slices + (FORM::SLICES == 1 || slice ? 0 : FORM::SLICE);
        clear_products<FORM>(sum);
        for (int step = 0; step < steps; step++) {
            const int next = slot + 1 == FORM::STAGES ? 0 : slot + 1, after = step + 1 == steps ? 0 : step + 1;
            if (step == 1 && ahead < p.c)
                copy_weight<FORM>(p, at, ahead, c_b, next_slice); /* its last readers are done */
            EVO_UNROLL
            for (int u = 0; u <= units::COUNT; u++) {
                if (u == units::COUNT - UNITS_AHEAD<T>) {
                    async_wait<FORM::STAGES - 2>();
                    named_barrier((step == 0 ? FORM::WAVES_DOWN : part) + 1, step == 0 ? THREADS : FORM::PART_THREADS);
                }
                if (u + UNITS_AHEAD<T> < units::COUNT)
                    ring.load(u + UNITS_AHEAD<T>, x + slot * FORM::STAGE, y + step * STEP, pitch);
                else if (u < units::COUNT)
                    ring.load(u + UNITS_AHEAD<T> - units::COUNT, x + next * FORM::STAGE, y + after * STEP, pitch);
                if (u == 0) a.copy(p, steps, stages);
                if (u < units::COUNT) ring.multiply_into(u, sum);
            }
            slot = next;
        }
        if (FORM::SLICES == 1 || steps == 1) { /* a slice is younger than the stages */
            if (steps == 1 && ahead < p.c) copy_weight<FORM>(p, at, ahead, c_b, next_slice);
            async_commit();
            async_wait<0>();
            block_barrier();
        }
        const unsigned char *const weights = slices + slice * FORM::SLICE + right_lane_offset(FORM::W_PITCH);
        scale_o<FORM>(pairs_of<FORM>(at, memory), i, j, sum);
        if constexpr (IS_SPLIT<T>)
            project_split<FORM>(weights, p.z_rows - at.z, sum);
        else
            project_products<FORM>(weights, p.z_rows - at.z, sum);
        if (FORM::SLICES > 1) slice ^= 1;
    }
    async_wait<0>();
    block_barrier();
}

/* What a pair's sums are multiplied by beside the channels' scales: it undoes the masks' powers of two and `by`, o's own. */
template <class T> EVO_DEVICE float pair_unit(const gpu_opm_tensor_outer_params &p, int batch, int i, int j, float by) {
    if (!IS_HALF<T>) return 1.0f;
    int exponent = 2 * p.mask_exponent + mask_exponent(p, batch, p.row_begin, i, p.row_count) -
                   (is_finite(by) ? exponent_above(by) : 0);
    if (p.mask_b) exponent += mask_exponent(p, batch, p.col_begin, j, p.col_count);
    return power_of_two(exponent > 127 ? 127 : exponent < -126 ? -126 : exponent);
}

template <class FORM>
EVO_DEVICE void write_block(const gpu_opm_tensor_outer_params &p, const place &at, unsigned char *memory,
                            accumulators<FORM> &sum) {
    const pair_numbers *pairs = pairs_of<FORM>(at, memory);
    const int first_i = FORM::own_i(), first_j = FORM::own_j();
    float *own = reinterpret_cast<float *>(memory + FORM::PAIR_BYTES) + thread_x() / WAVE * OUT_FLOATS;
    static_assert(WAVES * OUT_FLOATS * 4 <= FORM::FIXED - FORM::PAIR_BYTES, "the waves' tiles fit");
    EVO_UNROLL
    for (int h = 0; h < COLUMNS / OUT_COLUMNS; h++) {
        if (at.z + h * OUT_COLUMNS >= p.output.c_z) continue;
        channel_quad quad;
        quad.start(p.output, p.z_scale, at.z + h * OUT_COLUMNS);
        EVO_UNROLL
        for (int d = 0; d < FORM::DOWN; d++) EVO_UNROLL
        for (int w = 0; w < WAVE_J; w++) {
            constexpr int TILES = OUT_COLUMNS / TILE_SIDE;
            sums tiles[TILES];
            EVO_UNROLL
            for (int t = 0; t < TILES; t++) tiles[t] = sum.z[d][w][h * TILES + t];
            const int i = first_i + d * TILE_SIDE, j = first_j + w;
            write_tiles(p.output, p.output.batch_begin + at.batch, tiles, quad, own,
                        [&](int row, int64_t *pair_i, int64_t *pair_j, float *n, float *scale) {
                            const int pair = j * FORM::PAIR_PITCH + i + row;
                            *pair_i = p.row_begin + at.row + i + row;
                            *pair_j = p.col_begin + at.col + j;
                            *n = pairs->n[pair];
                            *scale = pair_unit<typename FORM::T>(p, at.batch, at.row + i + row, at.col + j,
                                                                 pairs->scale[pair]);
                            return at.row + i + row < p.row_count && at.col + j < p.col_count;
                        });
        }
    }
}

/* The block's part of a tile, whose pairs have their numbers and whose first part of b has been asked for. */
template <class FORM> EVO_DEVICE void make_pairs(const gpu_opm_tensor_outer_params &p, unsigned char *memory) {
    const auto own_place = [&] {
        place at = reinterpret_cast<const pair_numbers *>(memory)->at;
        at.row += at.part * FORM::ROWS;
        return at;
    };
    const place at = own_place();
    const int pitch = p.chunk * FORM::T::BYTES + PAD;
    accumulators<FORM> sum;
    EVO_UNROLL
    for (int d = 0; d < FORM::DOWN; d++) EVO_UNROLL
    for (int j = 0; j < WAVE_J; j++) EVO_UNROLL
    for (int t = 0; t < Z_TILES; t++) clear(sum.z[d][j][t]);
    for (int c_b = 0; c_b < p.c; c_b += HIDDEN)
        for (int s = 0; s < p.s_pad; s += p.chunk) {
            if (c_b + s > 0) copy_b<FORM>(p, at, c_b, s, memory + FORM::FIXED, pitch);
            walk_channels<FORM>(p, at, c_b, s, p.s_pad - s < p.chunk ? p.s_pad - s : p.chunk, memory, sum);
        }
    write_block<FORM>(p, own_place(), memory, sum); /* its place again: z has all the registers in between */
}

template <class WHOLE> EVO_DEVICE void make_tile(const gpu_opm_tensor_outer_params &p, unsigned char *memory) {
    const place at = block_place<WHOLE>(p);
    number_pairs<WHOLE>(p, at, reinterpret_cast<pair_numbers *>(memory),
                        reinterpret_cast<float *>(memory + WHOLE::PAIR_BYTES), [&] {
                            if (p.s_pad > 0) /* comes while the block counts */
                                copy_b<WHOLE>(p, at, 0, 0, memory + WHOLE::FIXED, p.chunk * WHOLE::T::BYTES + PAD);
                        });
    if (block_x() < p.whole)
        make_pairs<WHOLE>(p, memory);
    else
        make_pairs<half_form<WHOLE>>(p, memory);
}

#define EVO_OUTER(name, ...)                                                                                          \
    EVO_KERNEL(name, gpu_opm_tensor_outer_params, GPU_OPM_TENSOR_THREADS, 1) {                                        \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        make_tile<form<__VA_ARGS__>>(p, shared);                                                                      \
    }
#if defined(EVO_LARGE_SHARED)
EVO_OUTER(evo_opm_tensor_outer_bf16, bfloat_t, GPU_OPM_LARGE)
EVO_OUTER(evo_opm_tensor_outer_fp16, half_t, GPU_OPM_LARGE)
EVO_OUTER(evo_opm_tensor_outer_split, split_t, GPU_OPM_LARGE_SPLIT)
EVO_OUTER(evo_opm_tensor_outer_tall_split, split_t, GPU_OPM_TALL_SPLIT)
#endif
EVO_OUTER(evo_opm_tensor_outer_small_bf16, bfloat_t, GPU_OPM_SMALL)
EVO_OUTER(evo_opm_tensor_outer_small_fp16, half_t, GPU_OPM_SMALL)
EVO_OUTER(evo_opm_tensor_outer_small_split, split_t, GPU_OPM_SMALL_SPLIT)
