/*
 * matrix.cpp: what a wave's matrix instructions do with the registers of its lanes, see simulated_matrix.h. Not checked by
 * sanitizers: it touches nothing but registers, at places that the compiler works out, and took most of a test's time.
 */
#include "simulated_device.h"

namespace simulated {

half_table::half_table() {
    for (unsigned i = 0; i < 65536; i++) of[i] = half_to_float(static_cast<uint16_t>(i));
}
const half_table halves;

template <number_type TYPE> static float operand_number(const uint32_t *registers, unsigned number) {
    const uint16_t bits = static_cast<uint16_t>(registers[number / 2] >> number % 2 * 16);
#ifdef EVO_SIMULATED_FLUSH
    const uint16_t exponent = TYPE == number_type::bf16 ? 0x7f80 : 0x7c00;
    if (!(bits & exponent)) return bits & 0x8000 ? -0.0f : 0.0f;
#endif
    return TYPE == number_type::bf16 ? bits_float(static_cast<uint32_t>(bits) << 16) : halves.of[bits];
}

/* Where every element of a shape's operands stands. */
template <class SHAPE> struct places {
    position a[SHAPE::ROWS][SHAPE::DEPTH], b[SHAPE::DEPTH][SHAPE::COLUMNS], d[SHAPE::ROWS][SHAPE::COLUMNS];
    constexpr places() : a(), b(), d() {
        for (unsigned row = 0; row < SHAPE::ROWS; row++) {
            for (unsigned k = 0; k < SHAPE::DEPTH; k++) a[row][k] = SHAPE::a(row, k);
            for (unsigned column = 0; column < SHAPE::COLUMNS; column++) d[row][column] = SHAPE::d(row, column);
        }
        for (unsigned k = 0; k < SHAPE::DEPTH; k++)
            for (unsigned column = 0; column < SHAPE::COLUMNS; column++) b[k][column] = SHAPE::b(k, column);
    }
};

template <class SHAPE, number_type TYPE> void multiply_wave(void *const *lanes) {
    static constexpr places<SHAPE> at;
    constexpr unsigned ROWS = SHAPE::ROWS, COLUMNS = SHAPE::COLUMNS, DEPTH = SHAPE::DEPTH;
    const matrix_registers *const *registers = reinterpret_cast<const matrix_registers *const *>(lanes);
    double a[ROWS][DEPTH], b[DEPTH][COLUMNS];
    bool finite = true;
    for (unsigned row = 0; row < ROWS; row++)
        for (unsigned k = 0; k < DEPTH; k++)
            a[row][k] = static_cast<double>(operand_number<TYPE>(registers[at.a[row][k].lane]->a, at.a[row][k].number));
    for (unsigned k = 0; k < DEPTH; k++)
        for (unsigned n = 0; n < COLUMNS; n++)
            b[k][n] = static_cast<double>(operand_number<TYPE>(registers[at.b[k][n].lane]->b, at.b[k][n].number));
    for (unsigned k = 0; k < DEPTH; k++)
        for (unsigned n = 0; n < COLUMNS; n++) finite = finite && std::isfinite(b[k][n]);
    for (unsigned row = 0; row < ROWS; row++) {
        const position *const to = at.d[row];
        bool zero = finite; /* small cases have more rows of zeros than others */
        for (unsigned k = 0; k < DEPTH; k++) zero = zero && a[row][k] == 0.0;
        if (zero) continue;
        double exact[COLUMNS];
        for (unsigned n = 0; n < COLUMNS; n++)
            exact[n] = static_cast<double>(registers[to[n].lane]->sums[to[n].number]);
        for (unsigned k = 0; k < DEPTH; k++)
            for (unsigned n = 0; n < COLUMNS; n++) exact[n] += a[row][k] * b[k][n];
        for (unsigned n = 0; n < COLUMNS; n++) registers[to[n].lane]->sums[to[n].number] = cut_off(exact[n]);
    }
}

#if defined(EVO_MATRIX_MMA)
template void multiply_wave<mma_m16n8k16, number_type::bf16>(void *const *);
template void multiply_wave<mma_m16n8k16, number_type::f16>(void *const *);

/* Lane l gets elements 2 * (l % 4), + 1 of row l / 4 of each matrix; rows of matrix m are those of lanes 8 m to 8 m + 7. */
void distribute(const uint16_t (&rows)[32][8], void *const *lanes) {
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned m = 0; m < 4; m++) {
            uint32_t pair[2];
            for (unsigned e = 0; e < 2; e++) pair[e] = rows[m * 8 + lane / 4][lane % 4 * 2 + e];
            static_cast<const matrix_rows *>(lanes[lane])->to[m] = pair[0] | pair[1] << 16;
        }
}
#elif defined(EVO_MATRIX_MFMA)
template void multiply_wave<mfma_16x16x16, number_type::bf16>(void *const *);
template void multiply_wave<mfma_16x16x16, number_type::f16>(void *const *);
#else
template void multiply_wave<wmma_16x16x16, number_type::bf16>(void *const *);
template void multiply_wave<wmma_16x16x16, number_type::f16>(void *const *);
#endif

} // namespace simulated
