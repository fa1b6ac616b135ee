/*
 * tile.h: one block's product of two tiles in fp32: sum[rows][cols] += a[k][rows] * b[k][cols], both operands k-major, so
 * that what a thread reads for one k is contiguous.
 *
 * 256 threads; 8 groups of 32 stand 4 down and 2 across, the threads of a group 4 down and 8 across. A thread owns
 * ROWS / 16 x COLS / 16 sums in quads of 4 x 4: rows row + 16 * q + (0 ... 3), columns col + 32 * q + (0 ... 3). So the 32
 * threads of a group read 64 contiguous bytes of a and 128 of b at once, without a bank conflict.
 *
 * k advances DEPTH at a time through a ring of stages in shared memory, filled by asynchronous copies. A thread reads the
 * operands of the next k while it multiplies those of this one, across the edge of a stage too. Sums run over two stages
 * and are then added to the total: the rounding of a sum grows with the square root of its length (docs/numerics.md).
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_TILE_H
#define EVO_BACKENDS_GPU_KERNELS_TILE_H

#include "backends/gpu/kernels/numbers.h"

static constexpr int DEPTH = 16;
static constexpr int STAGES = 3;

/* Where a thread's first quad stands in a tile. */
struct place {
    int row, col;
};

template <int ROWS, int COLS>
EVO_DEVICE place thread_place() {
    const int group = thread_x() / 32, lane = thread_x() % 32;
    return { group / 2 * (ROWS / 4) + lane / 8 * 4, group % 2 * (COLS / 2) + lane % 8 * 4 };
}

template <int ROWS, int COLS>
EVO_DEVICE void clear(float (&sum)[ROWS][COLS]) {
    EVO_UNROLL
    for (int r = 0; r < ROWS; r++)
        EVO_UNROLL
    for (int c = 0; c < COLS; c++) sum[r][c] = 0.0f;
}

/* The quads of one k that stand `step` apart. */
template <int COUNT>
EVO_DEVICE void load_quads(const float *shared, int step, float (&x)[COUNT]) {
    EVO_UNROLL
    for (int q = 0; q < COUNT / 4; q++) {
        const float4_t v = *reinterpret_cast<const float4_t *>(shared + q * step);
        x[4 * q] = v.x;
        x[4 * q + 1] = v.y;
        x[4 * q + 2] = v.z;
        x[4 * q + 3] = v.w;
    }
}

/* What a thread multiplies for one k. */
template <int ROWS, int COLS>
struct fragments {
    float x[ROWS / 16], y[COLS / 16];

    /* Row k of a stage, a [DEPTH][ROWS], b [DEPTH][COLS], both from the thread's place on. */
    EVO_METHOD void load(const float *a, const float *b, int k) {
        load_quads(a + k * ROWS, 16, x);
        load_quads(b + k * COLS, 32, y);
    }
};

template <int ROWS, int COLS>
EVO_DEVICE void multiply(const fragments<ROWS, COLS> &f, bool first, float (&sum)[ROWS / 16][COLS / 16]) {
    EVO_UNROLL
    for (int r = 0; r < ROWS / 16; r++)
        EVO_UNROLL
    for (int c = 0; c < COLS / 16; c++) sum[r][c] = first ? f.x[r] * f.y[c] : multiply_add(f.x[r], f.y[c], sum[r][c]);
}

template <int ROWS, int COLS>
EVO_DEVICE void add(const float (&sum)[ROWS][COLS], float (&total)[ROWS][COLS]) {
    EVO_UNROLL
    for (int r = 0; r < ROWS; r++)
        EVO_UNROLL
    for (int c = 0; c < COLS; c++) total[r][c] += sum[r][c];
}

/*
 * An operand in global memory, k-major: WIDTH floats of each k, of which this thread copies four of every
 * ROWS_AT_ONCE-th k. Rows past the depth and columns that are not `valid` read as zeros.
 */
template <int WIDTH>
struct panel {
    static constexpr int QUADS = WIDTH / 4, ROWS_AT_ONCE = GPU_THREADS / QUADS, FLOATS = DEPTH * WIDTH;
    const float *next; /* this thread's four columns at row k */
    int64_t pitch;
    int k, depth;
    bool valid;

    /* `columns` points at this thread's columns in row 0: see thread_column. */
    EVO_METHOD static int thread_column() {
        return thread_x() % QUADS * 4;
    }

    EVO_METHOD void start(const float *columns, int64_t row_pitch, int row_count, bool column_valid) {
        k = thread_x() / QUADS;
        pitch = row_pitch;
        depth = row_count;
        valid = column_valid;
        next = columns + k * pitch;
    }

    EVO_METHOD void copy(float *stage) {
        float *target = stage + thread_x() * 4;
        EVO_UNROLL
        for (int row = 0; row < DEPTH; row += ROWS_AT_ONCE) {
            async_copy16(target + row * WIDTH, next, valid && k < depth);
            next += ROWS_AT_ONCE * pitch;
            k += ROWS_AT_ONCE;
        }
    }
};

/* A ring of stages: which one is read, and which one the next copies go to. */
struct ring {
    int read, write;

    EVO_METHOD static int after(int slot) {
        return slot + 1 == STAGES ? 0 : slot + 1;
    }
    EVO_METHOD void step() {
        read = after(read);
        write = after(write);
    }
};

/* Both operands by asynchronous copies: STAGES x DEPTH x (ROWS + COLS) floats of shared memory. */
template <int ROWS, int COLS>
struct copied_operands {
    static constexpr int FLOATS = STAGES * DEPTH * (ROWS + COLS);
    panel<ROWS> a;
    panel<COLS> b;
    float *stages;
    ring at;

    EVO_METHOD void copy(int slot) {
        a.copy(stages + slot * DEPTH * ROWS);
        b.copy(stages + STAGES * DEPTH * ROWS + slot * DEPTH * COLS);
        async_commit();
    }
    EVO_METHOD void start() {
        at = { 0, STAGES - 1 };
        EVO_UNROLL
        for (int slot = 0; slot < STAGES - 1; slot++) copy(slot);
    }
    EVO_METHOD void fetch(int, int) {
        copy(at.write);
    }
    EVO_METHOD void put(int, int) {
    }
    EVO_METHOD const float *a_stage() const {
        return stages + at.read * DEPTH * ROWS;
    }
    EVO_METHOD const float *b_stage() const {
        return stages + STAGES * DEPTH * ROWS + at.read * DEPTH * COLS;
    }
};

/*
 * a comes through registers, because it is changed on the way: `source.fetch(k)` reads from row k on, `source.put(stage)`
 * writes it as [DEPTH][ROWS]. Two stages of a, STAGES of b.
 */
template <int ROWS, int COLS, class SOURCE>
struct staged_operands {
    static constexpr int A_FLOATS = 2 * DEPTH * ROWS, B_FLOATS = STAGES * DEPTH * COLS;
    SOURCE *source;
    panel<COLS> b;
    float *a_stages, *b_stages;
    ring at;
    int a_read;

    EVO_METHOD void copy(int slot) {
        b.copy(b_stages + slot * DEPTH * COLS);
        async_commit();
    }
    EVO_METHOD void start() {
        at = { 0, STAGES - 1 };
        a_read = 0;
        EVO_UNROLL
        for (int slot = 0; slot < STAGES - 1; slot++) copy(slot);
        source->fetch(0);
        source->put(a_stages);
    }
    EVO_METHOD void fetch(int k, int depth) {
        copy(at.write);
        if (k < depth) source->fetch(k);
    }
    EVO_METHOD void put(int k, int depth) {
        a_read ^= 1;
        if (k < depth) source->put(a_stages + a_read * DEPTH * ROWS);
    }
    EVO_METHOD const float *a_stage() const {
        return a_stages + a_read * DEPTH * ROWS;
    }
    EVO_METHOD const float *b_stage() const {
        return b_stages + at.read * DEPTH * COLS;
    }
};

/*
 * The DEPTH rows of the stage that is read, the first of which lies in `now`; leaves the first row of the next stage there.
 * Before its last row it waits for that stage; all threads have then read this one, so that it may be overwritten.
 */
template <int ROWS, int COLS, class OPERANDS>
EVO_DEVICE void multiply_stage(OPERANDS &operands, const place &at, int k, int depth, bool first,
                               fragments<ROWS, COLS> (&now)[2], float (&sum)[ROWS / 16][COLS / 16]) {
    const float *a = operands.a_stage() + at.row, *b = operands.b_stage() + at.col;
    operands.fetch(k + DEPTH, depth);
    EVO_UNROLL
    for (int row = 0; row < DEPTH; row++) {
        if (row == DEPTH - 1) {
            operands.put(k + DEPTH, depth);
            operands.at.step();
            async_wait<STAGES - 2>();
            block_barrier();
            a = operands.a_stage() + at.row;
            b = operands.b_stage() + at.col;
        }
        now[(row + 1) % 2].load(a, b, (row + 1) % DEPTH);
        multiply<ROWS, COLS>(now[row % 2], first && row == 0, sum);
    }
}

/* total += a * b over `depth` rows. The operands' shared memory must be free; it is free again after a barrier. */
template <int ROWS, int COLS, class OPERANDS>
EVO_DEVICE void multiply_operands(OPERANDS &operands, int depth, float (&total)[ROWS / 16][COLS / 16]) {
    const place at = thread_place<ROWS, COLS>();
    fragments<ROWS, COLS> now[2];
    float sum[ROWS / 16][COLS / 16];
    operands.start();
    async_wait<STAGES - 2>();
    block_barrier();
    now[0].load(operands.a_stage() + at.row, operands.b_stage() + at.col, 0);
    for (int k = 0; k < depth; k += 2 * DEPTH) {
        multiply_stage<ROWS, COLS>(operands, at, k, depth, true, now, sum);
        if (k + DEPTH < depth) multiply_stage<ROWS, COLS>(operands, at, k + DEPTH, depth, false, now, sum);
        add(sum, total);
    }
    async_wait<0>();
}

#endif
