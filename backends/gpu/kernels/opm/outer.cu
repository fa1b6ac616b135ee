/*
 * outer.cu: outer first. A block takes 4 x 4 pairs: for 32 x 32 hidden channels at a time (16 x 16 where shared memory is
 * short) it sums the outer products over S as one 128 x 128 tile, puts them into shared memory, and multiplies them by their part of W_o, which one
 * block reads once for all 16 pairs. The tensor of N^2 * c^2 never exists.
 *
 * The rows of the tile are (c_a, i) and its columns (c_b, j), i and j fastest, so that a quad of 4 x 4 sums of a thread is
 * one (c_a, c_b) of all 16 pairs. Shared memory holds o[k][16 pairs], k = c_a * 32 + c_b (or 16), in quads of one i: quad q of k
 * stands at q ^ (k / 2 % 4), which spreads the threads of a store over all banks.
 */
#include "backends/gpu/kernels/opm/output.h"
#include "backends/gpu/kernels/tile.h"

static constexpr int RUN = 128, THREADS = GPU_OPM_THREADS, GROUPS = THREADS / 32;

/* A thread's sums over S, and how many hidden channels of a side a block takes at a time. */
template <int HIDDEN_, int THREAD_ROWS, int THREAD_COLS> struct outer_form {
    static constexpr int HIDDEN = HIDDEN_, SIDE = GPU_OPM_SIDE * HIDDEN;
    using tile_t = tile<SIDE, SIDE, THREAD_ROWS, THREAD_COLS, 8, 4>;
    using operands_t = copied_operands<tile_t>;
    static_assert(tile_t::THREADS == THREADS, "as launched");

    /* Shared memory, in floats: the operands' stages and o; the groups' shares of z over both; counts. */
    static constexpr int O = operands_t::FLOATS, COUNTS = O + HIDDEN * HIDDEN * GPU_OPM_PAIRS;
    static constexpr int BYTES = (COUNTS + (GROUPS + 2) * GPU_OPM_PAIRS) * 4;
    static_assert(GROUPS * GPU_OPM_PAIRS * GPU_OPM_COLUMNS <= COUNTS, "the shares fit");
};
using large_form = outer_form<GPU_OPM_HIDDEN, 16, 8>;
using small_form = outer_form<GPU_OPM_SMALL_HIDDEN, 8, 4>;
static_assert(large_form::BYTES <= GPU_OPM_SHARED && small_form::BYTES <= GPU_OPM_SMALL_SHARED, "as launched");

/* The first pair of this block, relative to the tile; bands of blocks share operands. */
struct pair_place {
    int row, col;
};

EVO_DEVICE pair_place block_pairs(const gpu_opm_outer_params &p) {
    const int rows = (p.row_count + GPU_OPM_SIDE - 1) / GPU_OPM_SIDE,
              cols = (p.col_count + GPU_OPM_SIDE - 1) / GPU_OPM_SIDE;
    const int block = static_cast<int>(block_x()), band = block / (GPU_OPM_BAND * cols) * GPU_OPM_BAND;
    const int high = rows - band < GPU_OPM_BAND ? rows - band : GPU_OPM_BAND, within = block - band * cols;
    return { (band + within % high) * GPU_OPM_SIDE, within / high * GPU_OPM_SIDE };
}

/*
 * Normalisers of the block's 16 pairs. Sums are divided by `last` after the product with W_o, whichever side of it the
 * division belongs on, except that a 0 there divides o itself (`first`), which gives the NaNs and infinities it should.
 */
struct normalisers {
    float first[GPU_OPM_PAIRS], last[GPU_OPM_PAIRS];
};

/*
 * This thread's share of the counts: of each fourth of a group's sequences in turn, one row and one column of the block, so
 * that a group reads whole rows of the mask; count[m] is of the pair (e, e ^ m), e = thread % 4.
 */
template <int DTYPE>
EVO_DEVICE void count_pairs(const gpu_opm_outer_params &p, const pair_place &at, float (&count)[GPU_OPM_SIDE]) {
    constexpr int STEP = THREADS / GPU_OPM_SIDE, AT_ONCE = 4;
    const gpu_tensor &mask = p.output.mask;
    const int e = thread_x() % GPU_OPM_SIDE;
    const bool row = at.row + e < p.row_count, col = at.col + e < p.col_count;
    const int64_t batch = (p.output.batch_begin + block_z()) * mask.strides[0];
    const int64_t i = batch + (p.row_begin + at.row + e) * mask.strides[2],
                  j = batch + (p.col_begin + at.col + e) * mask.strides[2];
    for (int begin = 0; begin < p.output.s; begin += AT_ONCE * STEP) {
        float x[AT_ONCE], y[AT_ONCE];
        EVO_UNROLL
        for (int a = 0; a < AT_ONCE; a++) {
            const int s = begin + a * STEP + thread_x() / GPU_OPM_SIDE;
            const bool inside = s < p.output.s;
            x[a] = inside && row ? load_number(mask.data, DTYPE, i + s * mask.strides[1]) : 0.0f;
            y[a] = inside && col ? load_number(mask.data, DTYPE, j + s * mask.strides[1]) : 0.0f;
        }
        EVO_UNROLL
        for (int a = 0; a < AT_ONCE; a++) {
            count[0] = multiply_add(x[a], y[a], count[0]);
            EVO_UNROLL
            for (int m = 1; m < GPU_OPM_SIDE; m++) count[m] = multiply_add(x[a], wave_shuffle_xor(y[a], m), count[m]);
        }
    }
}

EVO_DEVICE void count_any(const gpu_opm_outer_params &p, const pair_place &at, float (&count)[GPU_OPM_SIDE]) {
    switch (p.output.mask.dtype) {
    case GPU_FP64:
        return count_pairs<GPU_FP64>(p, at, count);
    case GPU_FP32:
        return count_pairs<GPU_FP32>(p, at, count);
    case GPU_BF16:
        return count_pairs<GPU_BF16>(p, at, count);
    case GPU_FP16:
        return count_pairs<GPU_FP16>(p, at, count);
    case GPU_UINT8:
        return count_pairs<GPU_UINT8>(p, at, count);
    default: /* no mask: every sequence counts, once in the block */
        if (thread_x() < GPU_OPM_SIDE)
            for (int m = 0; m < GPU_OPM_SIDE; m++) count[m] = static_cast<float>(p.output.s);
    }
}

/* The groups' counts stand behind `n`. */
EVO_DEVICE void normalise_pairs(const gpu_opm_outer_params &p, const pair_place &at, normalisers *n) {
    const int group = thread_x() / 32, e = thread_x() % GPU_OPM_SIDE;
    float count[GPU_OPM_SIDE] = { 0.0f, 0.0f, 0.0f, 0.0f }, *counts = reinterpret_cast<float *>(n + 1);
    count_any(p, at, count);
    EVO_UNROLL
    for (int m = 0; m < GPU_OPM_SIDE; m++) {
        EVO_UNROLL
        for (int lane = 16; lane >= GPU_OPM_SIDE; lane /= 2) count[m] += wave_shuffle_xor(count[m], lane);
        if (thread_x() % 32 < GPU_OPM_SIDE) counts[(e * GPU_OPM_SIDE + (e ^ m)) * GROUPS + group] = count[m];
    }
    block_barrier();
    if (thread_x() < GPU_OPM_PAIRS) {
        float sum = 0.0f;
        EVO_UNROLL
        for (int g = 0; g < GROUPS; g++) sum += counts[thread_x() * GROUPS + g];
        sum = normaliser(p.output, sum);
        const bool at_first = sum == 0.0f && !p.output.divide_after;
        n->first[thread_x()] = at_first ? sum : 1.0f;
        n->last[thread_x()] = at_first ? 1.0f : sum;
    }
    block_barrier();
}

/* Where the four pairs (q, 0 ... 3) of this thread's hidden channels lie. */
template <class FORM> struct product_slots {
    float *o;
    int first, swizzle;

    EVO_METHOD void start(float *products) {
        const place at = thread_place<typename FORM::tile_t>();
        first = at.row / 4 * FORM::HIDDEN + at.col / 4;
        swizzle = first / 2 % 4;
        o = products;
    }
    EVO_METHOD float4_t *slot(int r, int q, int c) const {
        const int k = first + 4 * r * FORM::HIDDEN + 8 * c;
        return reinterpret_cast<float4_t *>(o + k * GPU_OPM_PAIRS + (q ^ swizzle) * 4);
    }
};

/* Divides this thread's products by n->first, if one is not 1. */
template <class FORM> EVO_DEVICE void divide_products(const normalisers &n, const product_slots<FORM> &slots) {
    using tile_t = typename FORM::tile_t;
    bool any = false;
    EVO_UNROLL
    for (int pair = 0; pair < GPU_OPM_PAIRS; pair++) any = any || n.first[pair] != 1.0f;
    if (!any) return;
    for (int r = 0; r < tile_t::THREAD_ROWS / 4; r++)
        for (int q = 0; q < 4; q++)
            for (int c = 0; c < tile_t::THREAD_COLS / 4; c++) {
                float4_t *slot = slots.slot(r, q, c);
                const float *by = n.first + q * 4;
                *slot = { slot->x / by[0], slot->y / by[1], slot->z / by[2], slot->w / by[3] };
            }
}

/* o of the hidden channels from (c_a, c_b) on, summed over S. */
template <class FORM>
EVO_DEVICE void outer_products(const gpu_opm_outer_params &p, const pair_place &at, int c_a, int c_b, float *memory) {
    using tile_t = typename FORM::tile_t;
    const int column = panel_a<tile_t>::thread_column(), channel = column / GPU_OPM_SIDE;
    const int64_t rows4 = (p.row_count + 3) / 4 * 4, cols4 = (p.col_count + 3) / 4 * 4;
    typename FORM::operands_t operands;
    operands.stages = memory;
    operands.a.start(p.a + block_z() * p.a_batch + static_cast<int64_t>(at.row) * p.c4 + c_a * GPU_OPM_SIDE + column,
                     rows4 * p.c4, p.output.s, c_a + channel < p.c);
    operands.b.start(p.b + block_z() * p.b_batch + static_cast<int64_t>(at.col) * p.c4 + c_b * GPU_OPM_SIDE + column,
                     cols4 * p.c4, p.output.s, c_b + channel < p.c);
    product_slots<FORM> slots;
    slots.start(memory + FORM::O);
    multiply_into<tile_t, RUN>(operands, p.output.s, slots);
    divide_products(*reinterpret_cast<const normalisers *>(memory + FORM::COUNTS), slots);
    block_barrier();
}

/* Eight columns of one row of W_o: four, and four 64 further on. */
struct weight_row {
    float x[8];

    EVO_METHOD void load(const float *row, bool low, bool high) {
        EVO_UNROLL
        for (int h = 0; h < 2; h++) {
            if (!(h ? high : low)) continue;
            const float4_t v = *reinterpret_cast<const float4_t *>(row + 64 * h);
            x[4 * h] = v.x;
            x[4 * h + 1] = v.y;
            x[4 * h + 2] = v.z;
            x[4 * h + 3] = v.w;
        }
    }
};

/* z[pair][column] += o[pair] * w[column] for eight pairs: quads `first` and `first` ^ 1 of o. */
EVO_DEVICE void add_row(const float *o, int first, const weight_row &w, float (&z)[8][8]) {
    EVO_UNROLL
    for (int q = 0; q < 2; q++) {
        float x[4];
        unpack(*reinterpret_cast<const float4_t *>(o + (q ^ first) * 4), x);
        EVO_UNROLL
        for (int e = 0; e < 4; e++) EVO_UNROLL
        for (int c = 0; c < 8; c++) z[4 * q + e][c] = multiply_add(x[e], w.x[c], z[4 * q + e][c]);
    }
}

/*
 * This group's share of the products with W_o: some c_a, every c_b, 8 of 16 pairs, 128 columns from `column` on. Rows of W_o
 * are read AHEAD of their use, after the last one the first once more. Sums run over the c_b of one c_a and are then added
 * to z.
 */
template <class FORM, bool WHOLE>
EVO_DEVICE void project_share(const gpu_opm_outer_params &p, int c_a, int c_b, int column, const float *o,
                              float (&z)[8][8]) {
    constexpr int STEP = 8, AHEAD = WHOLE ? 8 : 4;
    const int half = thread_x() % 32 / 16, own = column + thread_x() % 16 * 4;
    const bool low = own < p.z_pitch, high = own + 64 < p.z_pitch;
    const int a_count = WHOLE || p.c - c_a > FORM::HIDDEN ? FORM::HIDDEN : p.c - c_a;
    const int b_count = WHOLE || p.c - c_b > FORM::HIDDEN ? FORM::HIDDEN : p.c - c_b;
    const int each = (a_count + GROUPS - 1) / GROUPS, first = thread_x() / 32 * each;
    const int last = first + each < a_count ? first + each : a_count;
    const float *const start = p.weight + (static_cast<int64_t>(c_a + first) * p.c + c_b) * p.z_pitch + own;
    const float *row = start, *next = start;
    const float *halves[2] = { o + half * 8, o + (half ^ 1) * 8 };
    weight_row ahead[AHEAD] = {};
    float sum[8][8];
    if (first >= last) return;
    EVO_UNROLL
    for (int r = 0; r < AHEAD; r++) {
        if (WHOLE || r < b_count) ahead[r].load(next, low, high);
        next += p.z_pitch;
    }
    for (int a = first; a < last; a++) {
        row = a + 1 < last ? row + static_cast<int64_t>(p.c) * p.z_pitch : start;
        clear(sum);
        for (int b = 0; b < b_count; b += STEP) {
            const int here = b_count - b, k = (a * FORM::HIDDEN + b) * GPU_OPM_PAIRS;
            const int after = here > STEP ? here - STEP : b_count; /* rows of the next STEP */
            EVO_UNROLL
            for (int r = 0; r < STEP; r++) {
                const int swizzle = r / 2, left = r + AHEAD < STEP ? here - r - AHEAD : after - r - AHEAD + STEP;
                if (WHOLE || r < here)
                    add_row(halves[swizzle / 2] + k + r * GPU_OPM_PAIRS, swizzle % 2, ahead[r % AHEAD], sum);
                if (r + AHEAD == STEP && here <= STEP) next = row;
                if (WHOLE || left > 0) ahead[r % AHEAD].load(next, low, high);
                next += p.z_pitch;
            }
        }
        add(sum, z);
    }
}

/* Adds the groups' shares in a fixed order: this thread has four columns of pairs thread / 32, + GROUPS, + 2 GROUPS ... */
static constexpr int OWN_PAIRS = GPU_OPM_PAIRS / GROUPS;

EVO_DEVICE void add_shares(const float (&z)[8][8], float *shares, float (&total)[OWN_PAIRS][4]) {
    const int group = thread_x() / 32, half = thread_x() % 32 / 16, column = thread_x() % 16 * 4;
    EVO_UNROLL
    for (int r = 0; r < 8; r++) EVO_UNROLL
    for (int h = 0; h < 2; h++)
        *reinterpret_cast<float4_t *>(shares + (group * GPU_OPM_PAIRS + half * 8 + r) * GPU_OPM_COLUMNS + column +
                                      64 * h) = { z[r][4 * h], z[r][4 * h + 1], z[r][4 * h + 2], z[r][4 * h + 3] };
    block_barrier();
    EVO_UNROLL
    for (int h = 0; h < OWN_PAIRS; h++) EVO_UNROLL
    for (int g = 0; g < GROUPS; g++) {
        float x[4];
        unpack(*reinterpret_cast<const float4_t *>(shares + (g * GPU_OPM_PAIRS + group + GROUPS * h) * GPU_OPM_COLUMNS +
                                                   thread_x() % 32 * 4),
               x);
        EVO_UNROLL
        for (int e = 0; e < 4; e++) total[h][e] += x[e];
    }
    block_barrier();
}

/* One part of the hidden channels: their sums over S, then their share of z added to `total`. */
template <class FORM, bool WHOLE>
EVO_DEVICE void add_part(const gpu_opm_outer_params &p, const pair_place &at, int c_a, int c_b, int column,
                         float *memory, float (&total)[OWN_PAIRS][4]) {
    float z[8][8];
    outer_products<FORM>(p, at, c_a, c_b, memory);
    clear(z);
    project_share<FORM, WHOLE>(p, c_a, c_b, column, memory + FORM::O, z);
    block_barrier();
    add_shares(z, memory, total);
}

/* WHOLE: c is what a block takes at a time. */
template <class FORM, bool WHOLE> EVO_DEVICE void make_pairs(const gpu_opm_outer_params &p, float *memory) {
    float total[OWN_PAIRS][4];
    normalisers *n = reinterpret_cast<normalisers *>(memory + FORM::COUNTS);
    const pair_place at = block_pairs(p);
    const int column = static_cast<int>(block_y()) * GPU_OPM_COLUMNS, q = column + thread_x() % 32 * 4;
    normalise_pairs(p, at, n);
    clear(total);
    if (WHOLE)
        add_part<FORM, true>(p, at, 0, 0, column, memory, total);
    else
        for (int c_a = 0; c_a < p.c; c_a += FORM::HIDDEN)
            for (int c_b = 0; c_b < p.c; c_b += FORM::HIDDEN)
                add_part<FORM, false>(p, at, c_a, c_b, column, memory, total);
    EVO_UNROLL
    for (int h = 0; h < OWN_PAIRS; h++) {
        const int pair = thread_x() / 32 + GROUPS * h, i = at.row + pair / GPU_OPM_SIDE,
                  j = at.col + pair % GPU_OPM_SIDE;
        if (i < p.row_count && j < p.col_count && q < p.output.c_z)
            write_pair(p.output, p.row_begin + i, p.col_begin + j, q, n->last[pair], total[h]);
    }
}

#if defined(EVO_LARGE_SHARED)
EVO_KERNEL(evo_opm_outer, gpu_opm_outer_params, GPU_OPM_THREADS, 2) {
    EVO_DYNAMIC_SHARED(shared);
    make_pairs<large_form, true>(p, reinterpret_cast<float *>(shared));
}

EVO_KERNEL(evo_opm_outer_wide, gpu_opm_outer_params, GPU_OPM_THREADS, 2) {
    EVO_DYNAMIC_SHARED(shared);
    make_pairs<large_form, false>(p, reinterpret_cast<float *>(shared));
}
#endif

EVO_KERNEL(evo_opm_outer_small, gpu_opm_outer_params, GPU_OPM_THREADS, 2) {
    EVO_DYNAMIC_SHARED(shared);
    make_pairs<small_form, false>(p, reinterpret_cast<float *>(shared));
}
