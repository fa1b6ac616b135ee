/*
 * simulated_device.h: the names of backends/gpu/device.h for a simulated chip: kernels are plain C++17 functions, each
 * GPU thread calls one on a fiber (engine.h). Where a chip may differ from the CPU it does its worst: approximations are
 * off by what device.h allows, subnormals vanish, asynchronous copies arrive at the wait.
 */
#ifndef EVO_TESTS_SIMULATED_DEVICE_H
#define EVO_TESTS_SIMULATED_DEVICE_H

#include <cmath>
#include <cstdint>
#include <cstring>

#include "engine.h"

#define EVO_KERNEL(name, params, threads, blocks)                                                                     \
    static void name(const params &p);                                                                                \
    static void name##_entry(const void *bytes) {                                                                     \
        name(*static_cast<const params *>(bytes));                                                                    \
    }                                                                                                                 \
    static const ::simulated::registered name##_registered(#name, name##_entry, sizeof(params), threads);             \
    static_assert((threads) > 0 && (blocks) > 0, "launch bounds of " #name);                                          \
    static void name(const params &p)
#define EVO_DEVICE static inline
#if defined(__clang__)
#define EVO_REGISTERS __attribute__((no_sanitize("address", "undefined"))) static inline
#else
#define EVO_REGISTERS __attribute__((no_sanitize("address", "undefined"), optimize("O3"))) static inline
#endif
#define EVO_METHOD inline
#define EVO_UNROLL
#define EVO_NO_UNROLL
#define EVO_SHARED(type, name, count)                                                                                 \
    static char name##_identity;                                                                                      \
    type(&name)[count] =                                                                                              \
        *static_cast<type(*)[count]>(::simulated::active->shared_array(&name##_identity, sizeof(type) * (count)))
#define EVO_DYNAMIC_SHARED(name)                                                                                      \
    unsigned char *const name = static_cast<unsigned char *>(::simulated::active->shared_array(nullptr, 0))

struct alignas(16) float4_t {
    float x, y, z, w;
};
struct alignas(8) uint2_t {
    uint32_t x, y;
};

namespace simulated {

/** Kernels of this chip, linked by their constructors. */
extern kernel *first_kernel __attribute__((visibility("hidden")));

struct registered : kernel {
    registered(const char *name_, void (*entry_)(const void *), size_t size, unsigned threads)
        : kernel{ name_, entry_, size, threads, first_kernel } {
        first_kernel = this;
    }
};

} // namespace simulated

static constexpr int WAVE = EVO_SIMULATED_WAVE;
#if defined(EVO_SIMULATED_AMD)
static constexpr int SUMS = 32;
#else
static constexpr int SUMS = 64;
#define EVO_LARGE_SHARED
#endif

EVO_DEVICE int thread_x() {
    return static_cast<int>(simulated::active->running->index[0]);
}
EVO_DEVICE unsigned block_x() {
    return simulated::active->block_index[0];
}
EVO_DEVICE unsigned block_y() {
    return simulated::active->block_index[1];
}
EVO_DEVICE unsigned block_z() {
    return simulated::active->block_index[2];
}

EVO_DEVICE void block_barrier(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    simulated::active->meet_block({ "block barrier", file, line });
}
EVO_DEVICE void named_barrier(int id, int threads, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
#if defined(EVO_SIMULATED_AMD)
    (void)id, (void)threads;
    block_barrier(file, line);
#else
    simulated::active->meet_named(id, threads, true, { "named barrier", file, line });
#endif
}
namespace simulated {

/* The value of lane `source`. */
template <class T> T shuffle(T value, unsigned source, const char *file, int line) {
    static_assert(sizeof(T) == 4, "a lane's register has 4 bytes");
    slot mine;
    memcpy(mine.bytes, &value, sizeof value);
    memcpy(&value, active->meet_wave(mine, { "wave shuffle", file, line })[source].bytes, sizeof value);
    return value;
}

} // namespace simulated

template <class T>
EVO_DEVICE T wave_shuffle_xor(T value, int mask, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    simulated::engine &engine = *simulated::active;
    if (mask < 1 || mask > 16) engine.fail("wave_shuffle_xor with mask %d, expected 1 to 16", mask);
    return simulated::shuffle(value, engine.running->lane ^ static_cast<unsigned>(mask), file, line);
}

EVO_DEVICE void async_copy16(void *shared, const void *global, bool valid) {
    simulated::active->copy_issue(shared, global, 16, valid ? 16 : 0);
}
EVO_DEVICE void async_commit() {
    simulated::active->copy_commit();
}
template <int N> EVO_DEVICE void async_wait() {
    simulated::active->copy_wait(N);
}

EVO_DEVICE uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
EVO_DEVICE float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

namespace simulated {

/** A subnormal as zero of its sign. */
inline float flushed(float value) {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

/** A finite result moved by -1, 0 or 1 units in the last place, which depends on the argument only. */
inline float inexact(float result, float argument) {
    const uint32_t drawn = float_bits(argument) * 2654435761u >> 30;
    if (!std::isfinite(result) || result == 0.0f || drawn > 1) return flushed(result);
    return flushed(std::nextafter(result, drawn ? INFINITY : -INFINITY));
}

} // namespace simulated

EVO_REGISTERS float multiply_add(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
EVO_DEVICE float hardware_exp2(float x) {
    const float exact = std::exp2(simulated::flushed(x));
    return exact == 1.0f ? exact : simulated::inexact(exact, x);
}
EVO_DEVICE float hardware_reciprocal(float x) {
    const float exact = 1.0f / simulated::flushed(x);
    return exact == 1.0f ? exact : simulated::inexact(exact, x);
}
EVO_DEVICE float hardware_rsqrt(float x) {
    const float exact = 1.0f / std::sqrt(simulated::flushed(x));
    return exact == 1.0f ? exact : simulated::inexact(exact, x);
}
EVO_DEVICE float square_root(float x) {
    return std::sqrt(x);
}
EVO_DEVICE float half_to_float(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u,
                   fraction = bits & 1023u;
    if (exponent == 31) return bits_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return std::copysign(static_cast<float>(fraction) * 0x1p-24f, bits_float(sign));
    return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
}
EVO_DEVICE uint16_t float_to_half(float value) {
    const uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u)
        half = 0x7e00u;
    else if (magnitude >= 0x477ff000u) /* 65520, from where on it rounds to infinity */
        half = 0x7c00u;
    else if (magnitude < 0x38800000u) /* 2^-14: a subnormal half is a number of 2^-24, which nearbyint rounds to even */
        half = static_cast<uint32_t>(std::nearbyint(bits_float(magnitude) * 0x1p24f));
    else
        half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    return static_cast<uint16_t>(sign | half);
}

EVO_DEVICE uint32_t pack_halves(float low, float high) {
    return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}
EVO_DEVICE uint32_t pack_bfloats(float low, float high) {
    const float pair[2] = { low, high };
    uint32_t packed = 0;
    for (int i = 0; i < 2; i++) {
        const uint32_t bits = float_bits(pair[i]);
        const uint32_t rounded = std::isnan(pair[i]) ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
        packed |= rounded >> 16 << i * 16;
    }
    return packed;
}

EVO_DEVICE void schedule_barrier() {
}
EVO_DEVICE void wave_barrier(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    simulated::active->meet_wave_to(nullptr, { "wave barrier", file, line }, [](void *const *) {});
}

#include "simulated_matrix.h"

#endif
