/* faults.cpp: see faults.h. What each kernel lacks when it is broken stands above it. */
#include "backends/gpu/kernels/product.h"

#include "faults.h"

EVO_DEVICE int position() {
    return static_cast<int>(block_x()) * FAULT_THREADS + thread_x();
}

/* Nothing: out = in, for what needs no mistake in a kernel. */
EVO_KERNEL(fault_copy, fault_params, FAULT_THREADS, 1) {
    if (position() < p.count) p.out[position()] = p.in[position()];
}

/* The barrier between writing and reading shared memory. */
EVO_KERNEL(fault_barrier, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    part[thread_x()] = p.in[position()];
    if (!p.broken) block_barrier();
    p.out[position()] = part[FAULT_THREADS - 1 - thread_x()];
}

/* The barrier between reading shared memory and writing it again. */
EVO_KERNEL(fault_reuse, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    part[thread_x()] = p.in[position()];
    block_barrier();
    const float reversed = part[FAULT_THREADS - 1 - thread_x()];
    if (!p.broken) block_barrier();
    part[thread_x()] = reversed;
    block_barrier();
    p.out[position()] = part[thread_x()];
}

/* The barrier of half a block between writing and reading its half of shared memory. */
EVO_KERNEL(fault_named_barrier, fault_params, FAULT_THREADS, 1) {
    constexpr int HALF = FAULT_THREADS / 2;
    EVO_SHARED(float, part, FAULT_THREADS);
    part[thread_x()] = p.in[position()];
    if (!p.broken) named_barrier(1 + thread_x() / HALF, HALF);
    p.out[position() ^ (HALF - 1)] = part[thread_x() ^ (HALF - 1)];
}

/* The barrier of the block: that of a half says nothing of the other. */
EVO_KERNEL(fault_other_part, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    part[thread_x()] = p.in[position()];
    if (!p.broken) block_barrier();
#if defined(EVO_MATRIX_MMA) /* elsewhere it is the block's */
    named_barrier(1 + thread_x() / (FAULT_THREADS / 2), FAULT_THREADS / 2);
#endif
    p.out[position()] = part[FAULT_THREADS - 1 - thread_x()];
}

/* Lanes of a wave in step: another wave's values are there only after a barrier. */
EVO_KERNEL(fault_wave, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    part[thread_x()] = wave_shuffle_xor(p.in[position()], 1);
    if (!p.broken) block_barrier();
    p.out[position()] = part[thread_x() ^ 1];
}

/* The predicate of the write. */
EVO_KERNEL(fault_write, fault_params, FAULT_THREADS, 1) {
    const float value = position() < p.count ? p.in[position()] : 0.0f;
    if (p.broken || position() < p.count) p.out[position()] = value;
}

/* The predicate of the read. */
EVO_KERNEL(fault_read, fault_params, FAULT_THREADS, 1) {
    const float value = p.broken || position() < p.count ? p.in[position()] : 0.0f;
    if (position() < p.count) p.out[position()] = value;
}

/* The right bound of a loop over a declared shared array. */
EVO_KERNEL(fault_bound, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    if (thread_x() == 0)
        for (int i = 0; i < FAULT_THREADS + p.broken; i++) part[i] = 1.0f;
    block_barrier();
    p.out[position()] = p.in[position()] * part[thread_x()];
}

/* Enough dynamic shared memory: the host asks for one number less. */
EVO_KERNEL(fault_dynamic, fault_params, FAULT_THREADS, 1) {
    EVO_DYNAMIC_SHARED(bytes);
    float *const part = reinterpret_cast<float *>(bytes);
    part[thread_x()] = p.in[position()];
    block_barrier();
    p.out[position()] = part[FAULT_THREADS - 1 - thread_x()];
}

/* The wait for asynchronous copies. */
EVO_KERNEL(fault_async_wait, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    if (thread_x() < FAULT_THREADS / 4)
        async_copy16(&part[4 * thread_x()], &p.in[position() / FAULT_THREADS * FAULT_THREADS + 4 * thread_x()], true);
    async_commit();
    if (!p.broken) async_wait<0>();
    block_barrier();
    p.out[position()] = part[thread_x()];
}

/* The right number of groups in a wait: the last one is still on its way. */
EVO_KERNEL(fault_async_group, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    const float *const from = p.in + static_cast<int>(block_x()) * FAULT_THREADS;
    for (int half = 0; half < 2; half++) {
        const int at = half * FAULT_THREADS / 2 + 4 * thread_x();
        if (thread_x() < FAULT_THREADS / 8) async_copy16(&part[at], &from[at], true);
        async_commit();
    }
    if (p.broken)
        async_wait<1>();
    else
        async_wait<0>();
    block_barrier();
    p.out[position()] = part[thread_x()];
}

/* The barrier after the wait: other threads' copies have not arrived. */
EVO_KERNEL(fault_async_barrier, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    if (thread_x() < FAULT_THREADS / 4)
        async_copy16(&part[4 * thread_x()], &p.in[position() / FAULT_THREADS * FAULT_THREADS + 4 * thread_x()], true);
    async_commit();
    async_wait<0>();
    if (!p.broken) block_barrier();
    p.out[position()] = part[thread_x()];
}

/* An aligned address for an asynchronous copy. */
EVO_KERNEL(fault_async_address, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    if (thread_x() == 0) async_copy16(part, p.in + p.broken, true);
    async_commit();
    async_wait<0>();
    if (position() < p.count) p.out[position()] = p.in[position()];
}

/* One barrier that all threads reach, not one for each side of a branch. */
EVO_KERNEL(fault_divergence, fault_params, FAULT_THREADS, 1) {
    const bool split = p.broken && thread_x() % 2;
    if (split) block_barrier();
    if (!split) block_barrier();
    p.out[position()] = p.in[position()];
}

/* Threads that stay until the last barrier. */
EVO_KERNEL(fault_return, fault_params, FAULT_THREADS, 1) {
    if (p.broken && thread_x() == 5) return;
    block_barrier();
    p.out[position()] = p.in[position()];
}

/* A shuffle that all lanes reach. */
EVO_KERNEL(fault_shuffle, fault_params, FAULT_THREADS, 1) {
    float value = p.in[position()];
    if (!p.broken || thread_x() % WAVE < 16) value = wave_shuffle_xor(wave_shuffle_xor(value, 4), 4);
    block_barrier();
    p.out[position()] = value;
}

/* ---- matrix instructions: a block's 128 numbers are X, 16 x 8, padded to 16 x 16; each product with the identity gives X ---- */

/* Where a lane's registers stand, from the vendors' documents once more: register r of an operand holds k, k + 1. */
#if defined(EVO_MATRIX_MMA)
enum {
    A_REGISTERS = 4,
    B_REGISTERS = 2,
    OWN_SUMS = 4
};
EVO_DEVICE int a_row(int lane, int r) {
    return lane / 4 + r % 2 * 8;
}
EVO_DEVICE int a_k(int lane, int r) {
    return lane % 4 * 2 + r / 2 * 8;
}
EVO_DEVICE int b_column(int lane) {
    return lane / 4;
}
EVO_DEVICE int b_k(int lane, int r) {
    return lane % 4 * 2 + r * 8;
}
EVO_DEVICE int sum_row(int lane, int e) {
    return lane / 4 + e / 2 * 8;
}
EVO_DEVICE int sum_column(int lane, int e) {
    return lane % 4 * 2 + e % 2;
}
EVO_DEVICE void product(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_16x8x16_f16(d, a, b);
}
#else
#if defined(EVO_MATRIX_MFMA)
enum {
    A_REGISTERS = 2,
    B_REGISTERS = 2,
    OWN_SUMS = 4
};
#elif defined(EVO_MATRIX_WMMA11)
enum {
    A_REGISTERS = 8,
    B_REGISTERS = 8,
    OWN_SUMS = 8
};
#else
enum {
    A_REGISTERS = 4,
    B_REGISTERS = 4,
    OWN_SUMS = 8
};
#endif
EVO_DEVICE int a_row(int lane, int) {
    return lane % 16;
}
EVO_DEVICE int b_column(int lane) {
    return lane % 16;
}
EVO_DEVICE int sum_column(int lane, int) {
    return lane % 16;
}
EVO_DEVICE void product(float (&d)[OWN_SUMS], const uint32_t (&a)[A_REGISTERS], const uint32_t (&b)[B_REGISTERS]) {
#if defined(EVO_MATRIX_MFMA)
    mfma_16x16x16_f16(d, a, b);
#else
    wmma_16x16x16_f16(d, a, b);
#endif
}
EVO_DEVICE int a_k(int lane, int r) {
#if defined(EVO_MATRIX_MFMA)
    return lane / 16 * 4 + r * 2;
#elif defined(EVO_MATRIX_WMMA11)
    (void)lane;
    return r * 2;
#else
    return r / 2 * 8 + lane / 16 * 4 + r % 2 * 2;
#endif
}
EVO_DEVICE int b_k(int lane, int r) {
    return a_k(lane, r);
}
EVO_DEVICE int sum_row(int lane, int e) {
#if defined(EVO_MATRIX_WMMA11)
    return e * 2 + lane / 16;
#else
    return lane / 16 * OWN_SUMS + e;
#endif
}
#endif

/* X and the identity times `scale` as halves, the latter's columns as rows. */
typedef uint16_t square[16][16];

EVO_DEVICE void fill_squares(const fault_params &p, square &x, square &y, float scale) {
    const int row = thread_x() / 8, column = thread_x() % 8;
    x[row][column] = float_to_half(p.in[position()]);
    x[row][column + 8] = 0;
    y[row][column] = float_to_half(row == column ? scale : 0.0f);
    y[row][column + 8] = float_to_half(row == column + 8 ? scale : 0.0f);
}

EVO_DEVICE uint32_t pair_of(const uint16_t *at) {
    return at[0] | static_cast<uint32_t>(at[1]) << 16;
}

EVO_DEVICE void read_squares(const square &x, const square &y, int a_swap, int b_swap, uint32_t (&a)[A_REGISTERS],
                             uint32_t (&b)[B_REGISTERS]) {
    const int lane = thread_x() % WAVE;
    for (int r = 0; r < A_REGISTERS; r++) a[r] = pair_of(&x[a_row(lane, r ^ a_swap)][a_k(lane, r ^ a_swap)]);
    for (int r = 0; r < B_REGISTERS; r++) b[r] = pair_of(&y[b_column(lane)][b_k(lane, r ^ b_swap)]);
}

/* Every wave has the whole product and writes its share of the rows. */
EVO_DEVICE void write_sums(const fault_params &p, const float (&d)[OWN_SUMS], bool transposed) {
    const int lane = thread_x() % WAVE, share = 16 / (FAULT_THREADS / WAVE);
    for (int e = 0; e < OWN_SUMS; e++) {
        const int row = transposed ? sum_column(lane, e) : sum_row(lane, e);
        const int column = transposed ? sum_row(lane, e) : sum_column(lane, e);
        if (row / share == thread_x() / WAVE && column < 8) p.out[position() - thread_x() + row * 8 + column] = d[e];
    }
}

EVO_DEVICE void multiply_squares(const fault_params &p, const square &x, const square &y, int a_swap, int b_swap,
                                 bool transposed) {
    uint32_t a[A_REGISTERS], b[B_REGISTERS];
    float d[OWN_SUMS] = {};
    read_squares(x, y, a_swap, b_swap, a, b);
    product(d, a, b);
    write_sums(p, d, transposed);
}

/* The order of the first operand's registers. */
EVO_KERNEL(fault_matrix_a, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(square, s, 2);
    fill_squares(p, s[0], s[1], 1.0f);
    block_barrier();
    multiply_squares(p, s[0], s[1], p.broken, 0, false);
}

/* The order of the second operand's registers. */
EVO_KERNEL(fault_matrix_b, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(square, s, 2);
    fill_squares(p, s[0], s[1], 1.0f);
    block_barrier();
    multiply_squares(p, s[0], s[1], 0, p.broken, false);
}

/* Which of a sum's coordinates is the row. */
EVO_KERNEL(fault_matrix_place, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(square, s, 2);
    fill_squares(p, s[0], s[1], 1.0f);
    block_barrier();
    multiply_squares(p, s[0], s[1], 0, 0, p.broken);
}

/* The barrier between writing an operand and loading it, by ldmatrix where there is one. */
EVO_KERNEL(fault_matrix_barrier, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(square, s, 2);
    fill_squares(p, s[0], s[1], 1.0f);
    if (!p.broken) block_barrier();
#if defined(EVO_MATRIX_MMA)
    const int lane = thread_x() % WAVE;
    uint32_t a[4], four[4];
    ldmatrix_x4(a, &s[0][lane % 16][lane / 16 * 8]);
    ldmatrix_x4(four, &s[1][lane % 16][lane / 16 * 8]); /* the identity is its own transpose */
    const uint32_t b[2] = { four[0], four[1] };
    float d[OWN_SUMS] = {};
    product(d, a, b);
    write_sums(p, d, false);
#else
    multiply_squares(p, s[0], s[1], 0, 0, false);
#endif
}

/* All lanes of the wave. */
EVO_KERNEL(fault_matrix_lanes, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(square, s, 2);
    fill_squares(p, s[0], s[1], 1.0f);
    block_barrier();
    if (!p.broken || thread_x() % WAVE < 16) multiply_squares(p, s[0], s[1], 0, 0, false);
    block_barrier();
}

EVO_DEVICE void put_split(unsigned char *row, int k, float value) {
    uint32_t high, low;
    split_pair(value, 0.0f, &high, &low);
    *reinterpret_cast<uint16_t *>(row + byte_of<split_t>(k)) = static_cast<uint16_t>(high);
    *reinterpret_cast<uint16_t *>(row + byte_of<split_t>(k) + K_BYTES) = static_cast<uint16_t>(low);
}

EVO_DEVICE void multiply_wrongly(sums &s, const operand<split_t> &x, const right_operand<split_t> &y, int mistake) {
    const operand<split_t> swapped = { x.low, x.high };
    switch (mistake) {
    case 0:
        multiply(s, x, y);
        break;
    case FAULT_SWAPPED_HALVES:
        multiply(s, swapped, y);
        break;
    default:
        if (mistake != FAULT_LOW_HIGH) multiply(s, x.low, y.high);
        if (mistake != FAULT_HIGH_LOW) multiply(s, x.high, y.low);
        multiply(s, x.high, y.high);
    }
}

/*
 * Products of fp32 in halves: Z = (X Y^T / 2^FAULT_HALVINGS) W^T, where X, Y [16][FAULT_DEPTH] and W [16][16] are fault_numbers; a block
 * writes eight columns of its own Z. The sums become an operand in registers or, in one block, through shared memory.
 */
EVO_KERNEL(fault_split, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(unsigned char, shared, 2 * TILE_SIDE * STAGE_PITCH);
    unsigned char *x = shared, *y = shared + TILE_SIDE * STAGE_PITCH;
    const int numbers = TILE_SIDE * (2 * FAULT_DEPTH + TILE_SIDE), first = static_cast<int>(block_x()) * numbers;
    const auto put = [&](unsigned char *to, int from, int pitch) {
        for (int i = thread_x(); i < TILE_SIDE * TILE_SIDE; i += FAULT_THREADS)
            put_split(to + i / 16 * STAGE_PITCH, i % 16,
                      fault_number(static_cast<uint32_t>(first + from + i / 16 * pitch + i % 16)));
    };
    sums s, z;
    clear(s);
    for (int k = 0; k < FAULT_DEPTH; k += TILE_K) {
        put(x, k, FAULT_DEPTH);
        put(y, TILE_SIDE * FAULT_DEPTH + k, FAULT_DEPTH);
        block_barrier();
        multiply_wrongly(s, load<split_t>(x, STAGE_PITCH), load_right_from<split_t>(y + right_lane_offset(STAGE_PITCH)),
                         p.broken);
        block_barrier();
    }
    for (int e = 0; e < TILE_SUMS; e++) s.v[e] /= 1 << FAULT_HALVINGS;
    put(y, 2 * TILE_SIDE * FAULT_DEPTH, TILE_SIDE);
    if (thread_x() < WAVE) store_tile_as<split_t>(s, x, STAGE_PITCH);
    block_barrier();
    clear(z);
    multiply(z, block_x() ? as_operand<split_t>(s) : load<split_t>(x, STAGE_PITCH), load<split_t>(y, STAGE_PITCH));
    for (int e = 0; e < TILE_SUMS; e++)
        if (thread_x() < WAVE && tile_column(e) < 8)
            p.out[position() - thread_x() + tile_row(e) * 8 + tile_column(e)] = z.v[e];
}

/* Sums are cut off, not rounded: three quarters of a unit in the last place vanish, three halves leave one. */
EVO_KERNEL(fault_matrix_cut_off, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(square, s, 2);
    const int lane = thread_x() % WAVE, first = position() - thread_x();
    fill_squares(p, s[0], s[1], (p.broken ? 1.5f : 0.75f) / 4096.0f);
    s[0][thread_x() / 8][thread_x() % 8] =
        float_to_half(bits_float(float_bits(p.in[position()]) & 0x7f800000u) / 2048.0f);
    block_barrier();
    uint32_t a[A_REGISTERS], b[B_REGISTERS];
    float d[OWN_SUMS];
    for (int e = 0; e < OWN_SUMS; e++) {
        const int column = sum_column(lane, e);
        d[e] = column < 8 ? p.in[first + sum_row(lane, e) * 8 + column] : 0.0f;
    }
    read_squares(s[0], s[1], 0, 0, a, b);
    product(d, a, b);
    write_sums(p, d, false);
}

/* Subnormal operands are zeros on MI200, and numbers elsewhere. */
EVO_KERNEL(fault_matrix_subnormal, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(square, s, 2);
    fill_squares(p, s[0], s[1], 32768.0f);
    s[0][thread_x() / 8][thread_x() % 8] = 1; /* 2^-24 */
    block_barrier();
#ifdef EVO_SIMULATED_FLUSH
    const float expected = p.broken ? 0x1p-9f : 0.0f;
#else
    const float expected = p.broken ? 0.0f : 0x1p-9f;
#endif
    const int lane = thread_x() % WAVE, first = position() - thread_x();
    uint32_t a[A_REGISTERS], b[B_REGISTERS];
    float d[OWN_SUMS] = {};
    read_squares(s[0], s[1], 0, 0, a, b);
    product(d, a, b);
    for (int e = 0; e < OWN_SUMS; e++)
        if (sum_column(lane, e) < 8) d[e] += p.in[first + sum_row(lane, e) * 8 + sum_column(lane, e)] - expected;
    write_sums(p, d, false);
}
