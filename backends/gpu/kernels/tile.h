/*
 * tile.h: one block's product of two tiles in fp32: sum[rows][cols] += a[k][rows] * b[k][cols], both operands k-major, so
 * that what a thread reads for one k is contiguous.
 *
 * 256 threads; 8 groups of 32 stand 4 down and 2 across, the threads of a group 4 down and 8 across. A thread owns
 * ROWS / 16 x COLS / 16 sums in quads of 4 x 4: rows row + 16 * q + (0 ... 3), columns col + 32 * q + (0 ... 3). So the 32
 * threads of a group read 64 contiguous bytes of a and 128 of b at once, without a bank conflict.
 * k advances DEPTH at a time through a ring of stages in shared memory, filled by asynchronous copies.
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

/* One stage: a [DEPTH][ROWS], b [DEPTH][COLS], both from this thread's place on. */
template <int ROWS, int COLS>
EVO_DEVICE void multiply_stage(const float *a, const float *b, float (&sum)[ROWS / 16][COLS / 16]) {
    EVO_UNROLL
    for (int k = 0; k < DEPTH; k++) {
        float x[ROWS / 16], y[COLS / 16];
        load_quads(a + k * ROWS, 16, x);
        load_quads(b + k * COLS, 32, y);
        EVO_UNROLL
        for (int r = 0; r < ROWS / 16; r++)
            EVO_UNROLL
        for (int c = 0; c < COLS / 16; c++) sum[r][c] = multiply_add(x[r], y[c], sum[r][c]);
    }
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

EVO_DEVICE int next_slot(int slot, int slots) {
    return slot + 1 == slots ? 0 : slot + 1;
}

/*
 * sum += a * b over `depth` rows of two panels. `stages` holds STAGES x DEPTH x (ROWS + COLS) floats, free before and after
 * a barrier.
 */
template <int ROWS, int COLS>
EVO_DEVICE void multiply_panels(panel<ROWS> &a, panel<COLS> &b, int depth, float *stages,
                                float (&sum)[ROWS / 16][COLS / 16]) {
    constexpr int STAGE = DEPTH * (ROWS + COLS);
    const place at = thread_place<ROWS, COLS>();
    EVO_UNROLL
    for (int s = 0; s < STAGES - 1; s++) {
        a.copy(stages + s * STAGE);
        b.copy(stages + s * STAGE + DEPTH * ROWS);
        async_commit();
    }
    int read = 0, write = STAGES - 1;
    for (int k = 0; k < depth; k += DEPTH) {
        async_wait<STAGES - 2>();
        block_barrier();
        a.copy(stages + write * STAGE);
        b.copy(stages + write * STAGE + DEPTH * ROWS);
        async_commit();
        const float *stage = stages + read * STAGE;
        multiply_stage<ROWS, COLS>(stage + at.row, stage + DEPTH * ROWS + at.col, sum);
        read = next_slot(read, STAGES);
        write = next_slot(write, STAGES);
    }
    async_wait<0>();
}

/*
 * The same where a comes through registers, because it is changed on the way: `a.fetch(k)` reads from row k on,
 * `a.put(stage)` writes it as [DEPTH][ROWS]. Two stages of a, STAGES of b.
 */
template <int ROWS, int COLS, class SOURCE>
EVO_DEVICE void multiply_staged(SOURCE &a, panel<COLS> &b, int depth, float *a_stages, float *b_stages,
                                float (&sum)[ROWS / 16][COLS / 16]) {
    const place at = thread_place<ROWS, COLS>();
    EVO_UNROLL
    for (int s = 0; s < STAGES - 1; s++) {
        b.copy(b_stages + s * DEPTH * COLS);
        async_commit();
    }
    a.fetch(0);
    a.put(a_stages);
    int read = 0, write = STAGES - 1, a_read = 0;
    for (int k = 0; k < depth; k += DEPTH) {
        async_wait<STAGES - 2>();
        block_barrier();
        b.copy(b_stages + write * DEPTH * COLS);
        async_commit();
        if (k + DEPTH < depth) a.fetch(k + DEPTH);
        multiply_stage<ROWS, COLS>(a_stages + a_read * DEPTH * ROWS + at.row, b_stages + read * DEPTH * COLS + at.col,
                                   sum);
        a_read ^= 1;
        if (k + DEPTH < depth) a.put(a_stages + a_read * DEPTH * ROWS);
        read = next_slot(read, STAGES);
        write = next_slot(write, STAGES);
    }
    async_wait<0>();
}

#endif
