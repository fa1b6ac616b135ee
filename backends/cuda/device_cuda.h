/* device_cuda.h: the names of device.h for nvcc. */
#ifndef EVO_BACKENDS_CUDA_DEVICE_CUDA_H
#define EVO_BACKENDS_CUDA_DEVICE_CUDA_H

#include <stdint.h>

#define EVO_KERNEL(name, params, threads, blocks)                                                                     \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ params p)
#define EVO_DEVICE static __device__ __forceinline__
#define EVO_METHOD __device__ __forceinline__
#define EVO_UNROLL _Pragma("unroll")
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
template <class T> EVO_DEVICE T wave_shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

EVO_DEVICE void async_copy16(void *shared, const void *global, bool valid) {
    const uint32_t target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(global), "r"(bytes) : "memory");
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

#endif
