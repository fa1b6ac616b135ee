/*
 * device.h: the language that kernels are written in: CUDA C++17 without a CUDA or HIP name, by one of three layers.
 *   nvcc                     the CUDA one
 *   clang++ -x hip           the HIP one, with compiler builtins only (-nogpuinc -nogpulib): gfx90a, gfx942, gfx11, gfx12
 *   EVO_SIMULATED defined    plain C++ on the CPU: "simulated_device.h" of the simulator must define every name below
 *
 * Entries. A kernel is EVO_KERNEL(name, params, threads, blocks) { ... }: an extern "C" entry `name` that takes one struct
 * `const params p` by value and is launched with `threads` threads a block in x; registers are limited so that `blocks` of
 * them fit a multiprocessor (a hint). EVO_DEVICE stands before every other function, EVO_METHOD before member functions, and
 * EVO_UNROLL before a loop that must be unrolled. The simulator registers an entry under its name, with sizeof(params) and threads.
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
 * Order: void block_barrier() for all threads of a block. T wave_shuffle_xor(T value, int mask), T a 4-byte type, mask
 * 1 to 16: the value of the lane whose number differs by `mask`; all lanes of a wave take part. WAVE is the number of lanes
 * (32 or 64); lanes of a wave are consecutive threads.
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
