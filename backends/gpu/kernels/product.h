/*
 * product.h: what blocks of four or more waves share on matrix units: a ring of stages in shared memory through which 64 bytes
 * of K of every row pass at a time, the products of a stage, and the way of sums back to shared memory.
 *
 * Where copies are asynchronous a stage is asked for STAGES - 1 steps ahead; elsewhere it passes through registers: asked for
 * before a stage is multiplied, put into the other one of two after it.
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_PRODUCT_H
#define EVO_BACKENDS_GPU_KERNELS_PRODUCT_H

#include "backends/gpu/kernels/matrix.h"

static constexpr int CHUNK = GPU_CHUNK_BYTES, STAGE_PITCH = GPU_STAGE_PITCH;
static constexpr int THREADS = GPU_BLOCK_WAVES * WAVE;
#if defined(EVO_MATRIX_MMA)
static constexpr bool ASYNCHRONOUS = true;
#else
static constexpr bool ASYNCHRONOUS = false;
#endif

/* ROWS rows in global memory, of which a stage takes the next CHUNK bytes; each thread copies 16 bytes of some rows. */
template <int ROWS, int WAVES = GPU_BLOCK_WAVES> struct rows_panel {
    static constexpr int AT_ONCE = WAVES * WAVE / (CHUNK / 16), PIECES = ROWS / AT_ONCE, BYTES = ROWS * STAGE_PITCH;
    static_assert(ROWS % AT_ONCE == 0, "whole rounds");
    const unsigned char *next; /* this thread's 16 bytes of its first row */
    int64_t step;              /* bytes from one of its rows to the next */
    uint32_t valid;            /* bit i: row i of this thread's is there; others read as zeros */
    int left;                  /* bytes of K from there on */
    float4_t held[ASYNCHRONOUS ? 1 : PIECES];

    EVO_METHOD void start(const void *first, int64_t pitch, int rows, int depth) {
        const int row = thread_x() / (CHUNK / 16), column = thread_x() % (CHUNK / 16) * 16;
        next = static_cast<const unsigned char *>(first) + row * pitch + column;
        step = AT_ONCE * pitch;
        left = depth - column;
        valid = 0;
        EVO_UNROLL
        for (int i = 0; i < PIECES; i++) valid |= (row + i * AT_ONCE < rows ? 1u : 0u) << i;
    }

    EVO_METHOD static unsigned char *place(unsigned char *stage, int i) {
        return stage + (thread_x() / (CHUNK / 16) + i * AT_ONCE) * STAGE_PITCH + thread_x() % (CHUNK / 16) * 16;
    }

    EVO_METHOD void fetch(unsigned char *stage) {
        EVO_UNROLL
        for (int i = 0; i < PIECES; i++) {
            const bool there = left > 0 && (valid >> i & 1u);
            if constexpr (ASYNCHRONOUS) {
                async_copy16(place(stage, i), next + i * step, there);
            } else {
                held[i] = { 0.0f, 0.0f, 0.0f, 0.0f };
                if (there) held[i] = *reinterpret_cast<const float4_t *>(next + i * step);
            }
        }
        next += CHUNK;
        left -= CHUNK;
    }

    EVO_METHOD void put(unsigned char *stage) {
        if constexpr (!ASYNCHRONOUS) {
            EVO_UNROLL
            for (int i = 0; i < PIECES; i++) *reinterpret_cast<float4_t *>(place(stage, i)) = held[i];
        }
    }
};

/*
 * A walk over `steps` stages of a ring in shared memory. OPERANDS has BYTES of a stage, fetch(stage) and put(stage), called for
 * each step in order. `begin` asks for the first stages, so that other work may follow before `run`, whose `work(stage)`
 * multiplies; what was written to shared memory between the two is seen by all threads then.
 */
template <int STAGES, class OPERANDS> struct stage_walk {
    static_assert(ASYNCHRONOUS || STAGES == 2, "registers are a stage");
    static constexpr int AHEAD = STAGES - 1, BYTES = OPERANDS::BYTES;
    unsigned char *ring;
    int steps;

    EVO_METHOD void begin(OPERANDS &operands) const {
        EVO_UNROLL
        for (int s = 0; s < AHEAD; s++) {
            if (s < steps) {
                operands.fetch(ring + s * BYTES);
                operands.put(ring + s * BYTES);
            }
            async_commit();
        }
    }

    template <class WORK> EVO_METHOD void run(OPERANDS &operands, const WORK &work) const {
        int read = 0, write = AHEAD;
        for (int s = 0; s < steps; s++) {
            async_wait<AHEAD - 1>();
            block_barrier();
            const bool more = s + AHEAD < steps;
            if (more) operands.fetch(ring + write * BYTES);
            async_commit();
            work(ring + read * BYTES);
            if (more) operands.put(ring + write * BYTES);
            read = read + 1 == STAGES ? 0 : read + 1;
            write = write + 1 == STAGES ? 0 : write + 1;
        }
    }

    /*
     * Likewise where copies are asynchronous, with the operands of two products in registers: load(held, stage, k) for the 32 bytes
     * of K from k on, then multiply(held). Each is loaded while the one before multiplies, across stages too, so that a wave meets
     * the block's barrier with products under way; a stage's place is free once its last operands are in registers.
     */
    template <class HELD, class LOAD, class MULTIPLY>
    EVO_METHOD void run_ahead(OPERANDS &operands, const LOAD &load, const MULTIPLY &multiply) const {
        static_assert(CHUNK % (2 * K_BYTES) == 0, "two by two");
        HELD held[2];
        int read = 0;
        if (AHEAD < steps) operands.fetch(ring + AHEAD * BYTES);
        async_commit();
        async_wait<AHEAD>();
        block_barrier();
        load(held[0], ring, 0);
        for (int s = 0; s < steps; s++) {
            const int next = s + 1 == steps       ? read
                             : read + 1 == STAGES ? 0
                                                  : read + 1; /* at the end any that is there */
            EVO_UNROLL
            for (int k = 0; k < CHUNK; k += K_BYTES) {
                const bool last = k + K_BYTES == CHUNK;
                if (last) { /* the next stage is there, this one's place is free */
                    async_wait<AHEAD - 1>();
                    block_barrier();
                }
                load(held[(k / K_BYTES + 1) % 2], ring + (last ? next : read) * BYTES, last ? 0 : k + K_BYTES);
                if (last) {
                    if (s + STAGES < steps) operands.fetch(ring + read * BYTES);
                    async_commit();
                }
                multiply(held[k / K_BYTES % 2]);
            }
            read = next;
        }
    }
};

/* What a wave multiplies over 32 bytes of K. x and y: its first rows, x from lane_offset on, y from right_lane_offset on. */
template <class T, int DOWN, int ACROSS> struct wave_operands {
    operand<T> left[DOWN];
    right_operand<T> right[ACROSS];

    EVO_METHOD void load(const unsigned char *x, int x_pitch, const unsigned char *y, int y_pitch) {
        EVO_UNROLL
        for (int c = 0; c < ACROSS; c++) right[c] = load_right_from<T>(y + c * TILE_SIDE * y_pitch);
        EVO_UNROLL
        for (int r = 0; r < DOWN; r++) left[r] = load_from<T>(x + r * TILE_SIDE * x_pitch);
    }
    EVO_METHOD void multiply_into(sums (&sum)[DOWN][ACROSS]) const {
        EVO_UNROLL
        for (int r = 0; r < DOWN; r++) EVO_UNROLL
        for (int c = 0; c < ACROSS; c++) multiply(sum[r][c], left[r], right[c]);
    }
};

/*
 * A matrix that stays in shared memory: `rows` of its rows, row r from place(r), each `depth` numbers with zeros up to DEPTH, a pad
 * behind it. The block of WAVES asks for all of it.
 */
template <class T, int DEPTH, int WAVES, class PLACE>
EVO_DEVICE void copy_matrix(const void *matrix, int rows, int depth, const PLACE &place, unsigned char *shared) {
    constexpr int PITCH = DEPTH * T::BYTES + GPU_ROW_PAD, PIECES = DEPTH * T::BYTES / 16;
    const int pieces = depth * T::BYTES / 16;
    for (int index = thread_x(); index < rows * PIECES; index += WAVES * WAVE) {
        const int row = index / PIECES, piece = index % PIECES;
        const bool there = piece < pieces;
        async_copy16(shared + row * PITCH + piece * 16,
                     static_cast<const unsigned char *>(matrix) + (place(row) * pieces + (there ? piece : 0)) * 16,
                     there);
    }
    async_commit();
}

/*
 * sum[DOWN][ACROSS] += X Y^T over the CHUNK bytes of a stage. x is the wave's first row from lane_offset on, y that from
 * right_lane_offset on.
 */
template <class T, int DOWN, int ACROSS>
EVO_DEVICE void multiply_stage(const unsigned char *x, int x_pitch, const unsigned char *y, int y_pitch,
                               sums (&sum)[DOWN][ACROSS]) {
    constexpr bool SHORT = OPERAND_REGISTERS == 8; /* gfx11: registers are short, the next left operand would spill */
    constexpr int COLUMNS = SHORT && IS_SPLIT<T> ? 1 : ACROSS;
    EVO_UNROLL
    for (int k = 0; k < CHUNK; k += OPERAND_BYTES<T>) EVO_UNROLL
    for (int first = 0; first < ACROSS; first += COLUMNS) {
        right_operand<T> right[COLUMNS];
        EVO_UNROLL
        for (int c = 0; c < COLUMNS; c++) right[c] = load_right_from<T>(y + (first + c) * TILE_SIDE * y_pitch + k);
        EVO_UNROLL
        for (int r = 0; r < DOWN; r++) {
            const operand<T> left = load_from<T>(x + r * TILE_SIDE * x_pitch + k);
            EVO_UNROLL
            for (int c = 0; c < COLUMNS; c++) multiply(sum[r][first + c], left, right[c]);
            if constexpr (SHORT) schedule_barrier();
        }
        schedule_barrier();
    }
}

template <int DOWN, int ACROSS> EVO_DEVICE void clear(sums (&sum)[DOWN][ACROSS]) {
    EVO_UNROLL
    for (int r = 0; r < DOWN; r++) EVO_UNROLL
    for (int c = 0; c < ACROSS; c++) clear(sum[r][c]);
}

/* A tile to shared memory as floats, or as T: `shared` is its element (0, 0), rows `pitch` bytes apart. */
EVO_DEVICE void store_tile(const sums &s, float *shared, int pitch) {
    unsigned char *bytes = reinterpret_cast<unsigned char *>(shared);
    EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e += 2) {
        unsigned char *target = bytes + tile_row(e) * pitch + tile_column(e) * 4;
#if defined(EVO_MATRIX_WMMA11)
        *reinterpret_cast<float *>(target) = s.v[e];
        *reinterpret_cast<float *>(target + 8) = s.v[e + 1]; /* two columns further */
#else
        *reinterpret_cast<uint2_t *>(target) = { float_bits(s.v[e]), float_bits(s.v[e + 1]) };
#endif
    }
}

/* Elements e and e + 1 of a lane's sums, in 16 bits each. */
EVO_DEVICE void store_pair(unsigned char *target, uint32_t pair) {
#if defined(EVO_MATRIX_WMMA11)
    *reinterpret_cast<uint16_t *>(target) = static_cast<uint16_t>(pair);
    *reinterpret_cast<uint16_t *>(target + 4) = static_cast<uint16_t>(pair >> 16); /* two columns further */
#else
    *reinterpret_cast<uint32_t *>(target) = pair;
#endif
}

template <class T> EVO_DEVICE void store_tile_as(const sums &s, unsigned char *shared, int pitch) {
    EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e += 2) {
        unsigned char *target = shared + tile_row(e) * pitch + byte_of<T>(tile_column(e));
        if constexpr (IS_SPLIT<T>) {
            uint32_t high, low;
            split_pair(s.v[e], s.v[e + 1], &high, &low);
            store_pair(target, high);
            store_pair(target + K_BYTES, low);
        } else {
            store_pair(target, T::pack(s.v[e], s.v[e + 1]));
        }
    }
}

/* A sigmoid within a few units in the last place; the exponential of a large argument is infinite, which gives 0. */
EVO_DEVICE float fast_sigmoid(float x) {
    return hardware_reciprocal(1.0f + hardware_exp2(-1.44269504f * x));
}

/* The sigmoid that products of T deserve. */
template <class T> EVO_DEVICE float sigmoid_for(float x) {
    return IS_SPLIT<T> ? sigmoid(x) : fast_sigmoid(x);
}

#endif
