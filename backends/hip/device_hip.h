/* device_hip.h: the names of device.h for clang's HIP, by compiler builtins alone: no header or library of ROCm. */
#ifndef EVO_BACKENDS_HIP_DEVICE_HIP_H
#define EVO_BACKENDS_HIP_DEVICE_HIP_H

#include <stdint.h>

#define EVO_KERNEL(name, params, threads, blocks)                                                                     \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads))) void name(const params p)
#define EVO_DEVICE static __attribute__((device, always_inline)) inline
#define EVO_REGISTERS EVO_DEVICE
#define EVO_METHOD __attribute__((device, always_inline)) inline
#define EVO_UNROLL _Pragma("unroll")
#define EVO_NO_UNROLL _Pragma("nounroll")
#define EVO_SHARED(type, name, count) static __attribute__((shared, aligned(16))) type name[count]
#define EVO_DYNAMIC_SHARED(name) extern __attribute__((shared, aligned(16))) unsigned char name[]

struct __attribute__((aligned(16))) float4_t {
    float x, y, z, w;
};
struct __attribute__((aligned(8))) uint2_t {
    uint32_t x, y;
};

/* What compilers make of a chip unless they are told otherwise; newer ones may have no macro that says so. */
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
static constexpr int WAVE = 32;
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
EVO_DEVICE void named_barrier(int, int) {
    block_barrier();
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

EVO_DEVICE float hardware_rsqrt(float x) {
    return __builtin_amdgcn_rsqf(x);
}
EVO_DEVICE float hardware_exp2(float x) {
    return __builtin_amdgcn_exp2f(x);
}
EVO_DEVICE uint32_t pack_bfloats(float low, float high) {
    const uint32_t x[2] = { float_bits(low), float_bits(high) };
    uint32_t rounded[2];
    EVO_UNROLL
    for (int i = 0; i < 2; i++) {
        const bool nan = (x[i] & 0x7fffffffu) > 0x7f800000u;
        rounded[i] = nan ? x[i] | 0x400000u : x[i] + 0x7fffu + (x[i] >> 16 & 1u);
    }
    return rounded[0] >> 16 | (rounded[1] & 0xffff0000u);
}
EVO_DEVICE uint32_t pack_halves(float low, float high) {
    return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}

EVO_DEVICE void wave_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
EVO_DEVICE void schedule_barrier() {
    __builtin_amdgcn_sched_barrier(0);
}

/* --- Matrix units --- */

/* The registers of an operand or of sums, as the builtins' vectors. */
#define EVO_MATRIX(name, builtin, in, registers, sums, ...)                                                           \
    EVO_DEVICE void name(float(&d)[sums], const uint32_t(&a)[registers], const uint32_t(&b)[registers]) {             \
        typedef in operand_vector __attribute__((ext_vector_type(registers * 4 / sizeof(in))));                       \
        typedef float sum_vector __attribute__((ext_vector_type(sums)));                                              \
        operand_vector x, y;                                                                                          \
        sum_vector z;                                                                                                 \
        __builtin_memcpy(&x, a, sizeof x);                                                                            \
        __builtin_memcpy(&y, b, sizeof y);                                                                            \
        __builtin_memcpy(&z, d, sizeof z);                                                                            \
        z = builtin(x, y, z __VA_ARGS__);                                                                             \
        __builtin_memcpy(d, &z, sizeof z);                                                                            \
    }
#if defined(__gfx90a__) || defined(__gfx942__)
#define EVO_MATRIX_MFMA
EVO_MATRIX(mfma_16x16x16_bf16, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k, short, 2, 4, , 0, 0, 0)
EVO_MATRIX(mfma_16x16x16_f16, __builtin_amdgcn_mfma_f32_16x16x16f16, _Float16, 2, 4, , 0, 0, 0)
#elif defined(__GFX12__)
#define EVO_MATRIX_WMMA12
EVO_MATRIX(wmma_16x16x16_bf16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12, short, 4, 8)
EVO_MATRIX(wmma_16x16x16_f16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12, _Float16, 4, 8)
#elif defined(__GFX11__)
#define EVO_MATRIX_WMMA11
EVO_MATRIX(wmma_16x16x16_bf16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32, short, 8, 8)
EVO_MATRIX(wmma_16x16x16_f16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32, _Float16, 8, 8)
#endif
#undef EVO_MATRIX

#endif
