/* device_cuda.h: the names of device.h for nvcc. */
#ifndef EVO_BACKENDS_CUDA_DEVICE_CUDA_H
#define EVO_BACKENDS_CUDA_DEVICE_CUDA_H

#include <stdint.h>

#define EVO_KERNEL(name, params, threads, blocks)                                                                     \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ params p)
#define EVO_DEVICE static __device__ __forceinline__
#define EVO_REGISTERS EVO_DEVICE
#define EVO_METHOD __device__ __forceinline__
#define EVO_UNROLL _Pragma("unroll")
#define EVO_NO_UNROLL _Pragma("unroll 1")
#define EVO_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define EVO_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

struct __align__(16) float4_t {
    float x, y, z, w;
};
struct __align__(8) uint2_t {
    uint32_t x, y;
};

static constexpr int WAVE = 32, SUMS = 64;
#define EVO_LARGE_SHARED

EVO_DEVICE int thread_x() {
    return static_cast<int>(threadIdx.x);
}
EVO_DEVICE unsigned block_x() {
    return blockIdx.x;
}
EVO_DEVICE unsigned block_y() {
    return blockIdx.y;
}
EVO_DEVICE unsigned block_z() {
    return blockIdx.z;
}

EVO_DEVICE void block_barrier() {
    __syncthreads();
}
EVO_DEVICE void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
template <class T> EVO_DEVICE T wave_shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

EVO_DEVICE void async_copy16(void *shared, const void *global, bool valid) {
    const uint32_t target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(global), "r"(bytes)
                 : "memory");
}
EVO_DEVICE void async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> EVO_DEVICE void async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

EVO_DEVICE float multiply_add(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
EVO_DEVICE float hardware_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
EVO_DEVICE float square_root(float x) {
    return __fsqrt_rn(x);
}
EVO_DEVICE float half_to_float(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
EVO_DEVICE uint16_t float_to_half(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
EVO_DEVICE uint32_t float_bits(float value) {
    return __float_as_uint(value);
}
EVO_DEVICE float bits_float(uint32_t bits) {
    return __uint_as_float(bits);
}

EVO_DEVICE float hardware_rsqrt(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
EVO_DEVICE float hardware_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
EVO_DEVICE uint32_t pack_bfloats(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
EVO_DEVICE uint32_t pack_halves(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

EVO_DEVICE void wave_barrier() {
    __syncwarp();
}
EVO_DEVICE void schedule_barrier() {
}

/* --- Matrix units --- */

#define EVO_MATRIX_MMA

#define EVO_MMA(name, shape)                                                                                          \
    EVO_DEVICE void name(float(&d)[4], const uint32_t(&a)[4], const uint32_t(&b)[2]) {                                \
        asm("mma.sync.aligned." shape " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"              \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                          \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                      \
    }
EVO_MMA(mma_16x8x16_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
EVO_MMA(mma_16x8x16_f16, "m16n8k16.row.col.f32.f16.f16.f32")
#undef EVO_MMA

/* Volatile keeps them between the barriers they stand between; a memory clobber would hold unrelated loads too. */
EVO_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

#endif
