/*
 * tile.h: one block's product of two tiles in fp32: sum[rows][cols] += a[k][rows] * b[k][cols], both operands k-major, so
 * that what a thread reads for one k is contiguous.
 *
 * Groups of 32 threads stand in a grid over the tile, the threads of a group 4 down and 8 across. A thread owns THREAD_ROWS x
 * THREAD_COLS sums in quads of 4 x 4: rows row + 16 * q + (0 ... 3), columns col + 32 * q + (0 ... 3). Lanes that differ in
 * bit 0 share a column and lanes that differ in bit 1 share a row: so 16 lanes read 16 bytes each in one pass of the banks.
 *
 * k advances DEPTH at a time through a ring of stages in shared memory, filled by asynchronous copies. A thread reads the
 * operands of the next k while it multiplies those of this one, across the edge of a stage too. Sums run over some stages
 * and are then added to a total: the rounding of a sum grows with the square root of its length (docs/numerics.md).
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_TILE_H
#define EVO_BACKENDS_GPU_KERNELS_TILE_H

#include "backends/gpu/kernels/numbers.h"

template <int ROWS_, int COLS_, int THREAD_ROWS_, int THREAD_COLS_, int DEPTH_, int STAGES_> struct tile {
    static constexpr int ROWS = ROWS_, COLS = COLS_, THREAD_ROWS = THREAD_ROWS_, THREAD_COLS = THREAD_COLS_;
    static constexpr int DEPTH = DEPTH_, STAGES = STAGES_;
    static constexpr int THREADS = ROWS / THREAD_ROWS * (COLS / THREAD_COLS);
    static constexpr int ACROSS = COLS / (8 * THREAD_COLS); /* groups of threads */
};

/* Where a thread's first quad stands in a tile. */
struct place {
    int row, col;
};

template <class TILE> EVO_DEVICE place thread_place() {
    const int group = thread_x() / 32, lane = thread_x() % 32;
    const int down = lane / 16 * 2 + lane % 2, across = lane / 2 % 8;
    return { group / TILE::ACROSS * (4 * TILE::THREAD_ROWS) + down * 4,
             group % TILE::ACROSS * (8 * TILE::THREAD_COLS) + across * 4 };
}

template <int ROWS, int COLS> EVO_REGISTERS void clear(float (&sum)[ROWS][COLS]) {
    EVO_UNROLL
    for (int r = 0; r < ROWS; r++) EVO_UNROLL
    for (int c = 0; c < COLS; c++) sum[r][c] = 0.0f;
}

template <int ROWS, int COLS> EVO_REGISTERS void add(const float (&sum)[ROWS][COLS], float (&total)[ROWS][COLS]) {
    EVO_UNROLL
    for (int r = 0; r < ROWS; r++) EVO_UNROLL
    for (int c = 0; c < COLS; c++) total[r][c] += sum[r][c];
}

/* The quads of one k that stand `step` apart. */
template <int COUNT> EVO_DEVICE void load_quads(const float *shared, int step, float (&x)[COUNT]) {
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
template <class TILE> struct fragments {
    float x[TILE::THREAD_ROWS], y[TILE::THREAD_COLS];

    /* Row k of a stage, a [DEPTH][ROWS], b [DEPTH][COLS], both from the thread's place on. */
    EVO_METHOD void load(const float *a, const float *b, int k) {
        load_quads(a + k * TILE::ROWS, 16, x);
        load_quads(b + k * TILE::COLS, 32, y);
    }
};

template <class TILE>
EVO_REGISTERS void multiply(const fragments<TILE> &f, float (&sum)[TILE::THREAD_ROWS][TILE::THREAD_COLS]) {
    EVO_UNROLL
    for (int r = 0; r < TILE::THREAD_ROWS; r++) EVO_UNROLL
    for (int c = 0; c < TILE::THREAD_COLS; c++) sum[r][c] = multiply_add(f.x[r], f.y[c], sum[r][c]);
}

/*
 * Which rows of a panel this thread copies, WIDTH floats wide: four floats of every ROWS_AT_ONCE-th k. The place in the
 * stages is carried along: computed anew in the loop, it costs as much as the copy.
 */
template <class TILE, int WIDTH> struct panel_rows {
    static constexpr int QUADS = WIDTH / 4, WITH_ALL_THREADS = TILE::THREADS / QUADS, FLOATS = TILE::DEPTH * WIDTH;
    static constexpr int ROWS_AT_ONCE = WITH_ALL_THREADS < TILE::DEPTH ? WITH_ALL_THREADS : TILE::DEPTH;
    int k, target; /* the first row of the next copy, and where in the stages it goes */

    EVO_METHOD void start() {
        k = thread_x() / QUADS;
        target = thread_x() * 4;
    }
    EVO_METHOD void step(int slot) {
        k += TILE::DEPTH;
        target += slot + 1 == TILE::STAGES ? (1 - TILE::STAGES) * FLOATS : FLOATS;
    }
};

/* An operand in global memory, k-major. Rows past the depth, and columns that are not valid, read as zeros. */
template <class TILE, int WIDTH> struct panel {
    using rows_t = panel_rows<TILE, WIDTH>;
    static constexpr int QUADS = rows_t::QUADS, FLOATS = rows_t::FLOATS;
    const float *next; /* this thread's four columns at its row */
    int64_t pitch;
    int depth; /* 0 if the columns are not valid */

    /* `columns` points at this thread's columns in row 0: see thread_column. */
    EVO_METHOD static int thread_column() {
        return thread_x() % QUADS * 4;
    }

    EVO_METHOD void start(const float *columns, int64_t row_pitch, int row_count, bool column_valid) {
        pitch = row_pitch;
        depth = column_valid ? row_count : 0;
        next = columns + thread_x() / QUADS * pitch;
    }

    EVO_METHOD void copy(float *stages, const rows_t &rows) {
        constexpr int STEP = rows_t::ROWS_AT_ONCE;
        EVO_UNROLL
        for (int row = 0; row < TILE::DEPTH; row += STEP)
            if (STEP * QUADS == TILE::THREADS || thread_x() < STEP * QUADS)
                async_copy16(stages + rows.target + row * WIDTH, next + row * pitch, rows.k + row < depth);
        next += TILE::DEPTH * pitch;
    }
};

template <class TILE> using panel_a = panel<TILE, TILE::ROWS>;
template <class TILE> using panel_b = panel<TILE, TILE::COLS>;

/* A ring of stages: which one is read, and which one the next copies go to. */
template <int STAGES> struct ring {
    int read, write;

    EVO_METHOD static int after(int slot) {
        return slot + 1 == STAGES ? 0 : slot + 1;
    }
    EVO_METHOD void step() {
        read = after(read);
        write = after(write);
    }
};

/* Both operands by asynchronous copies, of panels of one width. */
template <class TILE> struct copied_operands {
    static_assert(TILE::ROWS == TILE::COLS, "they share the rows to copy");
    static constexpr int STAGES = TILE::STAGES, FLOATS = STAGES * (panel_a<TILE>::FLOATS + panel_b<TILE>::FLOATS);
    panel_a<TILE> a;
    panel_b<TILE> b;
    typename panel_a<TILE>::rows_t rows;
    float *stages; /* FLOATS of shared memory */
    ring<STAGES> at;

    EVO_METHOD void copy(int slot) {
        a.copy(stages, rows);
        b.copy(stages + STAGES * panel_a<TILE>::FLOATS, rows);
        rows.step(slot);
        async_commit();
    }
    EVO_METHOD void start() {
        at = { 0, STAGES - 1 };
        rows.start();
        EVO_UNROLL
        for (int slot = 0; slot < STAGES - 1; slot++) copy(slot);
    }
    EVO_METHOD void fetch(int, int) {
        copy(at.write);
    }
    EVO_METHOD void put(int, int) {
    }
    EVO_METHOD const float *a_stage() const {
        return stages + at.read * panel_a<TILE>::FLOATS;
    }
    EVO_METHOD const float *b_stage() const {
        return stages + STAGES * panel_a<TILE>::FLOATS + at.read * panel_b<TILE>::FLOATS;
    }
};

/*
 * a comes through registers, because it is changed on the way: `source.fetch(k)` reads from row k on, `source.put(stage)`
 * writes it as [DEPTH][ROWS]. Two stages of a, STAGES of b.
 */
template <class TILE, class SOURCE> struct staged_operands {
    static constexpr int STAGES = TILE::STAGES;
    static constexpr int A_FLOATS = 2 * panel_a<TILE>::FLOATS, B_FLOATS = STAGES * panel_b<TILE>::FLOATS;
    SOURCE *source;
    panel_b<TILE> b;
    typename panel_b<TILE>::rows_t rows;
    float *a_stages, *b_stages;
    ring<STAGES> at;
    int a_read;

    EVO_METHOD void copy(int slot) {
        b.copy(b_stages, rows);
        rows.step(slot);
        async_commit();
    }
    EVO_METHOD void start() {
        at = { 0, STAGES - 1 };
        a_read = 0;
        rows.start();
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
        if (k < depth) source->put(a_stages + a_read * panel_a<TILE>::FLOATS);
    }
    EVO_METHOD const float *a_stage() const {
        return a_stages + a_read * panel_a<TILE>::FLOATS;
    }
    EVO_METHOD const float *b_stage() const {
        return b_stages + at.read * panel_b<TILE>::FLOATS;
    }
};

/*
 * The DEPTH rows of the stage that is read, the first of which lies in `now`; leaves the first row of the next stage there.
 * Before its last row it waits for that stage; all threads have then read this one, so that it may be overwritten.
 */
template <class TILE, class OPERANDS>
EVO_DEVICE void multiply_stage(OPERANDS &operands, const place &at, int k, int depth, fragments<TILE> (&now)[2],
                               float (&sum)[TILE::THREAD_ROWS][TILE::THREAD_COLS]) {
    const float *a = operands.a_stage() + at.row, *b = operands.b_stage() + at.col;
    operands.fetch(k + TILE::DEPTH, depth);
    EVO_UNROLL
    for (int row = 0; row < TILE::DEPTH; row++) {
        if (row == TILE::DEPTH - 1) {
            operands.put(k + TILE::DEPTH, depth);
            operands.at.step();
            async_wait<TILE::STAGES - 2>();
            block_barrier();
            a = operands.a_stage() + at.row;
            b = operands.b_stage() + at.col;
        }
        now[(row + 1) % 2].load(a, b, (row + 1) % TILE::DEPTH);
        multiply(now[row % 2], sum);
    }
}

template <class TILE, class OPERANDS>
EVO_DEVICE void start_operands(OPERANDS &operands, const place &at, fragments<TILE> &first) {
    operands.start();
    async_wait<TILE::STAGES - 2>();
    block_barrier();
    first.load(operands.a_stage() + at.row, operands.b_stage() + at.col, 0);
}

/* total += a * b over `depth` rows. The operands' shared memory must be free; it is free again after a barrier. */
template <class TILE, class OPERANDS>
EVO_DEVICE void multiply_operands(OPERANDS &operands, int depth, float (&total)[TILE::THREAD_ROWS][TILE::THREAD_COLS]) {
    const place at = thread_place<TILE>();
    fragments<TILE> now[2];
    float sum[TILE::THREAD_ROWS][TILE::THREAD_COLS];
    start_operands(operands, at, now[0]);
    for (int k = 0; k < depth; k += 2 * TILE::DEPTH) {
        clear(sum);
        multiply_stage(operands, at, k, depth, now, sum);
        if (k + TILE::DEPTH < depth) multiply_stage(operands, at, k + TILE::DEPTH, depth, now, sum);
        add(sum, total);
    }
    async_wait<0>();
}

/* Adds a run to the slots of multiply_into. */
template <class TILE, class TOTAL>
EVO_DEVICE void add_to_slots(const float (&sum)[TILE::THREAD_ROWS][TILE::THREAD_COLS], const TOTAL &total) {
    EVO_UNROLL
    for (int r = 0; r < TILE::THREAD_ROWS / 4; r++) EVO_UNROLL
    for (int c = 0; c < TILE::THREAD_COLS / 4; c++) EVO_UNROLL
    for (int q = 0; q < 4; q++) {
        float4_t *slot = total.slot(r, q, c);
        const float4_t x = *slot;
        *slot = { x.x + sum[4 * r + q][4 * c], x.y + sum[4 * r + q][4 * c + 1], x.z + sum[4 * r + q][4 * c + 2],
                  x.w + sum[4 * r + q][4 * c + 3] };
    }
}

template <class TILE, class TOTAL> EVO_DEVICE void clear_slots(const TOTAL &total) {
    EVO_UNROLL
    for (int r = 0; r < TILE::THREAD_ROWS / 4; r++) EVO_UNROLL
    for (int c = 0; c < TILE::THREAD_COLS / 4; c++) EVO_UNROLL
    for (int q = 0; q < 4; q++) *total.slot(r, q, c) = { 0.0f, 0.0f, 0.0f, 0.0f };
}

/*
 * The same with the total in shared memory, where registers are short: total[row quad][4][column quad] of float4_t, this
 * thread's own, of which `slot(r, q, c)` gives the place. Whatever it held is lost.
 */
template <class TILE, int RUN, class OPERANDS, class TOTAL>
EVO_DEVICE void multiply_into(OPERANDS &operands, int depth, const TOTAL &total) {
    const place at = thread_place<TILE>();
    fragments<TILE> now[2];
    float sum[TILE::THREAD_ROWS][TILE::THREAD_COLS];
    clear_slots<TILE>(total);
    start_operands(operands, at, now[0]);
    for (int k = 0; k < depth;) {
        const int end = k + RUN;
        clear(sum);
        for (; k < end && k < depth; k += TILE::DEPTH) multiply_stage(operands, at, k, depth, now, sum);
        add_to_slots<TILE>(sum, total);
    }
    async_wait<0>();
}

#endif
