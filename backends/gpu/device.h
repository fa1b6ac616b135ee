/*
 * device.h: the language that kernels are written in: CUDA C++17 without a CUDA or HIP name, by one of three layers.
 *   nvcc                     the CUDA one
 *   clang++ -x hip           the HIP one, with compiler builtins only (-nogpuinc -nogpulib): gfx90a, gfx942, gfx11, gfx12
 *   EVO_SIMULATED defined    plain C++ on the CPU: "simulated_device.h" of the simulator must define every name below
 *
 * Entries. A kernel is EVO_KERNEL(name, params, threads, blocks) { ... }: an extern "C" entry `name` that takes one struct
 * `const params p` by value and is launched with `threads` threads a block in x; registers are limited so that `blocks` of
 * them fit a multiprocessor (a hint). EVO_DEVICE stands before every other function, EVO_METHOD before member functions,
 * EVO_REGISTERS instead of EVO_DEVICE before a long loop over nothing but registers, at places that depend on no data: the
 * simulator compiles it for speed and does not check it. EVO_UNROLL stands before a loop that must be unrolled, EVO_NO_UNROLL
 * before one that must not. The simulator registers an entry under its name, with sizeof(params) and threads.
 *
 * Indices: int thread_x(), unsigned block_x(), block_y(), block_z().
 *
 * What a kernel is shaped after: SUMS, how many fp32 sums a thread may hold beside as many totals (64, or 32 where the compiler
 * spills more); EVO_LARGE_SHARED, defined where some chip gives a block more than 64 KB of shared memory: kernels that take
 * more stand behind it, and are never launched elsewhere.
 *
 * Shared memory: EVO_SHARED(type, name, count); declares a static array of the block, aligned to 16 bytes, in function
 * scope; EVO_DYNAMIC_SHARED(name); declares `unsigned char *`-like `name`, the launch's dynamic shared memory, likewise.
 *
 * Order: void block_barrier() for all threads of a block; void named_barrier(int id, int threads) for whole waves of it,
 * `threads` threads together, that give the same id, 1 to 15: where there is no such thing it is a block_barrier, so kernels for
 * all chips call it as often in all threads of the block, at one place. T wave_shuffle_xor(T value, int mask), T a 4-byte type,
 * mask 1 to 16: the value of the lane whose number differs by `mask`; all lanes of a wave take part. WAVE is the number of
 * lanes (32 or 64); lanes of a wave are consecutive threads.
 *
 * Asynchronous copies from global to shared memory, where the hardware has them, else plain ones:
 *   void async_copy16(void *shared, const void *global, bool valid)   16 bytes, both aligned to 16; zeros if not valid
 *                                                                     (`global` is not read then)
 *   void async_commit()                closes this thread's group of copies
 *   template <int N> void async_wait() returns when at most the N youngest groups of this thread are unfinished; other
 *                                      threads see the data after a block_barrier() that follows
 *
 * Arithmetic:
 *   float multiply_add(float a, float b, float c)     a * b + c, rounded once
 *   float hardware_reciprocal(float x)                1 / x within 1 unit in the last place
 *   float square_root(float x)                        correctly rounded, as are + - * / of float and double
 *   float half_to_float(uint16_t bits), uint16_t float_to_half(float value)     IEEE half, to nearest even, NaN stays NaN
 *   uint32_t float_bits(float value), float bits_float(uint32_t bits)
 * struct float4_t { float x, y, z, w; } is aligned to 16 bytes: one load or store of it is one instruction. uint2_t has two
 * uint32_t x, y, aligned to 8.
 *   float hardware_rsqrt(float x)      1 / sqrt(x) within 2 units in the last place; subnormals count as 0
 *   float hardware_exp2(float x)       2^x within 2 units in the last place; subnormals count as 0
 *   uint32_t pack_bfloats(float low, float high), pack_halves(float low, float high)
 *                                      two numbers rounded to nearest even to 16 bits, NaN stays NaN; `low` in bits 0 to 15
 *
 * void schedule_barrier(): the compiler moves no instruction across it, where it would run out of registers otherwise.
 *
 * Waves: void wave_barrier(): lanes of a wave see what the others wrote to shared memory before it.
 *
 * Matrix units. One of EVO_MATRIX_MMA, EVO_MATRIX_MFMA, EVO_MATRIX_WMMA11, EVO_MATRIX_WMMA12 is defined and says which
 * instructions there are. All lanes of a wave call one together; d += a * b with sums in fp32. Numbers of 16 bits lie two a
 * register, the one of lower k in bits 0 to 15; l is the lane, g = l / 4, q = l % 4.
 *   EVO_MATRIX_MMA, 32 lanes, a 16 x K, b K x 8, d 16 x 8
 *     mma_16x8x16_bf16, mma_16x8x16_f16 (float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
 *       a[0] (row g, k 2q and 2q + 1), a[1] (g + 8, the same), a[2] (g, k 2q + 8 and 2q + 9), a[3] (g + 8, the same)
 *       b[0] (k 2q and 2q + 1, column g), b[1] (k 2q + 8 and 2q + 9, column g)
 *       d[0], d[1] (row g, columns 2q, 2q + 1), d[2], d[3] (row g + 8, the same)
 *     ldmatrix_x4(uint32_t (&r)[4], const void *row): lane l gives the address of row l % 8 of matrix l / 8, 8 numbers of
 *       16 bits, aligned to 16 bytes, in shared memory; r[i] = numbers 2q and 2q + 1 of row g of matrix i
 *   EVO_MATRIX_MFMA, 64 lanes, a 16 x K, b K x 16, d 16 x 16; i = l / 16
 *     mfma_16x16x16_bf16, mfma_16x16x16_f16 (float (&d)[4], const uint32_t (&a)[2], const uint32_t (&b)[2])
 *       a (row l % 16, k 4i to 4i + 3), b (the same k, column l % 16), d[e] (row 4i + e, column l % 16)
 *   EVO_MATRIX_WMMA11, 32 lanes, a 16 x 16, b 16 x 16, d 16 x 16; i = l / 16
 *     wmma_16x16x16_bf16, wmma_16x16x16_f16 (float (&d)[8], const uint32_t (&a)[8], const uint32_t (&b)[8])
 *       a (row l % 16, all k; lanes 16 to 31 repeat lanes 0 to 15), b (all k, column l % 16), d[e] (row 2e + i, column l % 16)
 *   EVO_MATRIX_WMMA12, as WMMA11 without the repetition
 *     wmma_16x16x16_bf16, wmma_16x16x16_f16 (float (&d)[8], const uint32_t (&a)[4], const uint32_t (&b)[4])
 *       a (row l % 16, k 4i to 4i + 3 in a[0], a[1], 8 + 4i to 8 + 4i + 3 in a[2], a[3]), b (the same k, column l % 16),
 *       d[e] (row 8i + e, column l % 16)
 */
#ifndef EVO_BACKENDS_GPU_DEVICE_H
#define EVO_BACKENDS_GPU_DEVICE_H

#if defined(EVO_SIMULATED)
#include "simulated_device.h"
#elif defined(__HIP__)
#include "backends/hip/device_hip.h"
#elif defined(__CUDACC__)
#include "backends/cuda/device_cuda.h"
#else
#error "kernels are compiled by nvcc, by clang++ -x hip, or with EVO_SIMULATED"
#endif

#endif
