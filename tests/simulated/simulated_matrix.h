/*
 * simulated_matrix.h: the matrix instructions of device.h. All lanes of a wave meet; the last one to come gathers the
 * operands from everybody's registers, multiplies, and adds to everybody's sums. Where an element lies is taken from the
 * vendors' documents: NVIDIA's PTX ISA ("Matrix Fragments for mma.m16n8k16", "ldmatrix"), AMD's matrix instruction calculator.
 * The products themselves are in matrix.cpp, which is compiled for speed and not checked.
 *
 * Sums are worse than rounded: the accumulator and one instruction's products are added exactly, then cut off to fp32. With
 * EVO_SIMULATED_FLUSH (MI200) subnormal operands are zeros.
 */
#ifndef EVO_TESTS_SIMULATED_MATRIX_H
#define EVO_TESTS_SIMULATED_MATRIX_H

namespace simulated {

/** What one lane brings to an instruction. */
struct matrix_registers {
    float *sums;
    const uint32_t *a, *b;
};

/** Where element (row or column, k) of an operand stands: its lane, and which number of its registers. */
struct position {
    unsigned lane, number;
};

enum class number_type {
    bf16,
    f16
};

/** What 16 bits are in fp16. */
extern const struct half_table {
    float of[65536];
    half_table();
} halves __attribute__((visibility("hidden")));

EVO_DEVICE float cut_off(double exact) {
    const float rounded = static_cast<float>(exact);
    if (!std::isfinite(rounded) || std::fabs(static_cast<double>(rounded)) <= std::fabs(exact)) return rounded;
    return bits_float(float_bits(rounded) - 1); /* the next one nearer to 0, which it is not */
}

/** D[ROWS][COLUMNS] += A[ROWS][DEPTH] B[DEPTH][COLUMNS], each laid out as SHAPE says, of what all lanes of a wave bring. */
template <class SHAPE, number_type TYPE> void multiply_wave(void *const *lanes);

template <class SHAPE, number_type TYPE>
void multiply(float *sums, const uint32_t *a, const uint32_t *b, const char *file, int line) {
    matrix_registers mine = { sums, a, b };
    active->meet_wave_to(&mine, { "matrix instruction", file, line }, multiply_wave<SHAPE, TYPE>);
}

#define EVO_SIMULATED_MULTIPLY(name, shape, type, d_count, a_count, b_count)                                          \
    EVO_DEVICE void name(float (&d)[d_count], const uint32_t(&a)[a_count], const uint32_t(&b)[b_count],               \
                         const char *file = __builtin_FILE(), int line = __builtin_LINE()) {                          \
        simulated::multiply<simulated::shape, simulated::number_type::type>(d, a, b, file, line);                     \
    }

#if defined(EVO_MATRIX_MMA)

/* PTX: groupID = lane >> 2, threadID_in_group = lane & 3. */
struct mma_m16n8k16 {
    static constexpr unsigned ROWS = 16, COLUMNS = 8, DEPTH = 16;
    /* a0, a1 row < 8; a2, a3 row >= 8; a4 ... a7 the same for k >= 8 */
    static constexpr position a(unsigned row, unsigned k) {
        return { row % 8 * 4 + k % 8 / 2, k / 8 * 4 + row / 8 * 2 + k % 2 };
    }
    static constexpr position b(unsigned k, unsigned column) { /* b0, b1 k < 8; b2, b3 k >= 8 */
        return { column * 4 + k % 8 / 2, k / 8 * 2 + k % 2 };
    }
    static constexpr position d(unsigned row, unsigned column) { /* c0, c1 row < 8; c2, c3 row >= 8 */
        return { row % 8 * 4 + column / 2, row / 8 * 2 + column % 2 };
    }
};

/** What one lane brings to ldmatrix. */
struct matrix_rows {
    uint32_t *to;
    const void *row;
};

/** Rows of four matrices of 8 x 8 16-bit elements, as lanes name them, to all lanes' registers. */
void distribute(const uint16_t (&rows)[32][8], void *const *lanes);

inline void load_wave(void *const *lanes) {
    uint16_t rows[32][8];
    for (unsigned lane = 0; lane < 32; lane++)
        memcpy(rows[lane], static_cast<const matrix_rows *>(lanes[lane])->row, sizeof rows[lane]);
    distribute(rows, lanes);
}

inline void load(uint32_t *to, const void *row, const char *file, int line) {
    if (reinterpret_cast<uintptr_t>(row) % 16) active->fail("ldmatrix of a row at %p: misaligned", row);
    matrix_rows mine = { to, row };
    active->meet_wave_to(&mine, { "ldmatrix", file, line }, load_wave);
}

#elif defined(EVO_MATRIX_MFMA)

/* Four k a lane. */
struct mfma_16x16x16 {
    static constexpr unsigned ROWS = 16, COLUMNS = 16, DEPTH = 16;
    static constexpr position a(unsigned row, unsigned k) {
        return { k / 4 * 16 + row, k % 4 };
    }
    static constexpr position b(unsigned k, unsigned column) {
        return { k / 4 * 16 + column, k % 4 };
    }
    static constexpr position d(unsigned row, unsigned column) {
        return { row / 4 * 16 + column, row % 4 };
    }
};

#elif defined(EVO_MATRIX_WMMA11)

/* Every k in a lane, twice: the unit reads lanes 0 to 15, or 16 to 31; which one must not matter. */
struct wmma_16x16x16 {
    static constexpr unsigned ROWS = 16, COLUMNS = 16, DEPTH = 16;
    static constexpr position a(unsigned row, unsigned k) {
        return { k / 2 % 2 * 16 + row, k };
    }
    static constexpr position b(unsigned k, unsigned column) {
        return { (k / 2 + 1) % 2 * 16 + column, k };
    }
    static constexpr position d(unsigned row, unsigned column) {
        return { row % 2 * 16 + column, row / 2 };
    }
};

#elif defined(EVO_MATRIX_WMMA12)

/* Eight k a lane: 0 ... 3 and 8 ... 11 in lanes 0 to 15, the others in lanes 16 to 31. */
struct wmma_16x16x16 {
    static constexpr unsigned ROWS = 16, COLUMNS = 16, DEPTH = 16;
    static constexpr position a(unsigned row, unsigned k) {
        return { k / 4 % 2 * 16 + row, k / 8 * 4 + k % 4 };
    }
    static constexpr position b(unsigned k, unsigned column) {
        return { k / 4 % 2 * 16 + column, k / 8 * 4 + k % 4 };
    }
    static constexpr position d(unsigned row, unsigned column) {
        return { row / 8 * 16 + column, row % 8 };
    }
};

#else
#error "a simulated chip has one of EVO_MATRIX_MMA, _MFMA, _WMMA11 and _WMMA12"
#endif

} // namespace simulated

#if defined(EVO_MATRIX_MMA)
EVO_SIMULATED_MULTIPLY(mma_16x8x16_bf16, mma_m16n8k16, bf16, 4, 4, 2)
EVO_SIMULATED_MULTIPLY(mma_16x8x16_f16, mma_m16n8k16, f16, 4, 4, 2)
EVO_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void *shared_row, const char *file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
    simulated::load(r, shared_row, file, line);
}
#elif defined(EVO_MATRIX_MFMA)
EVO_SIMULATED_MULTIPLY(mfma_16x16x16_bf16, mfma_16x16x16, bf16, 4, 2, 2)
EVO_SIMULATED_MULTIPLY(mfma_16x16x16_f16, mfma_16x16x16, f16, 4, 2, 2)
#elif defined(EVO_MATRIX_WMMA11)
EVO_SIMULATED_MULTIPLY(wmma_16x16x16_bf16, wmma_16x16x16, bf16, 8, 8, 8)
EVO_SIMULATED_MULTIPLY(wmma_16x16x16_f16, wmma_16x16x16, f16, 8, 8, 8)
#else
EVO_SIMULATED_MULTIPLY(wmma_16x16x16_bf16, wmma_16x16x16, bf16, 8, 4, 4)
EVO_SIMULATED_MULTIPLY(wmma_16x16x16_f16, wmma_16x16x16, f16, 8, 4, 4)
#endif

#endif
