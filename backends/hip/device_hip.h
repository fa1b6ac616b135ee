/* device_hip.h: the names of device.h for clang's HIP, by compiler builtins alone: no header or library of ROCm. */
#ifndef EVO_BACKENDS_HIP_DEVICE_HIP_H
#define EVO_BACKENDS_HIP_DEVICE_HIP_H

#include <stdint.h>

#define EVO_KERNEL(name, params, threads, blocks)                                                                     \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads))) void name(const params p)
#define EVO_DEVICE static __attribute__((device, always_inline)) inline
#define EVO_METHOD __attribute__((device, always_inline)) inline
#define EVO_UNROLL _Pragma("unroll")
#define EVO_SHARED(type, name, count) static __attribute__((shared, aligned(16))) type name[count]
#define EVO_DYNAMIC_SHARED(name) extern __attribute__((shared, aligned(16))) unsigned char name[]

struct __attribute__((aligned(16))) float4_t {
    float x, y, z, w;
};
struct __attribute__((aligned(8))) uint2_t {
    uint32_t x, y;
};

/* The host's pass over the source knows no wave; it makes no code. */
#if defined(__AMDGCN_WAVEFRONT_SIZE__)
static constexpr int WAVE = __AMDGCN_WAVEFRONT_SIZE__;
#else
static constexpr int WAVE = 64;
#endif
static constexpr int SUMS = 32;

/* Opaque: what is computed from it would be hoisted out of all loops, and take more registers than there are. */
EVO_DEVICE int thread_x() {
    unsigned x = __builtin_amdgcn_workitem_id_x();
    asm volatile("" : "+v"(x));
    return static_cast<int>(x & 1023);
}
EVO_DEVICE unsigned block_x() {
    return __builtin_amdgcn_workgroup_id_x();
}
EVO_DEVICE unsigned block_y() {
    return __builtin_amdgcn_workgroup_id_y();
}
EVO_DEVICE unsigned block_z() {
    return __builtin_amdgcn_workgroup_id_z();
}

EVO_DEVICE void block_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
template <class T> EVO_DEVICE T wave_shuffle_xor(T value, int mask) {
    static_assert(sizeof(T) == 4, "a lane's register has 4 bytes");
    const unsigned lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
    const int source = static_cast<int>(lane ^ static_cast<unsigned>(mask)) * 4;
    return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(source, __builtin_bit_cast(int, value)));
}

/* A vector of the compiler stays in registers where a struct that is written in one branch alone may go to memory. */
EVO_DEVICE void async_copy16(void *shared, const void *global, bool valid) {
    typedef float vector __attribute__((ext_vector_type(4)));
    vector value = { 0.0f, 0.0f, 0.0f, 0.0f };
    if (valid) value = *static_cast<const vector *>(global);
    *static_cast<vector *>(shared) = value;
}
EVO_DEVICE void async_commit() {
}
template <int N> EVO_DEVICE void async_wait() {
}

EVO_DEVICE float multiply_add(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
EVO_DEVICE float hardware_reciprocal(float x) {
    return __builtin_amdgcn_rcpf(x);
}
EVO_DEVICE float square_root(float x) {
    return __builtin_sqrtf(x);
}
EVO_DEVICE float half_to_float(uint16_t bits) {
    return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}
EVO_DEVICE uint16_t float_to_half(float value) {
    return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
}
EVO_DEVICE uint32_t float_bits(float value) {
    return __builtin_bit_cast(uint32_t, value);
}
EVO_DEVICE float bits_float(uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

#endif
