/* isa.c: the instruction sets of this build, and which of them this machine runs. */
#if defined(__linux__) && defined(__x86_64__)
#define _GNU_SOURCE /* syscall */
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif
#include "backends/cpu/blocked/isa.h"

#include <stddef.h>

static bool always(void) {
    return true;
}

extern const cpu_isa evo_cpu_isa_baseline;

#if defined(__x86_64__)
extern const cpu_isa evo_cpu_isa_amx, evo_cpu_isa_avx512_bf16, evo_cpu_isa_avx512, evo_cpu_isa_avx2;

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

#if defined(__x86_64__) && !defined(EVO_EMULATED)
#include <cpuid.h>

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx512_bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

/* Linux gives the tiles' registers only to a process that asks for them. */
static bool may_use_tiles(void) {
#ifdef __linux__
    enum {
        REQUEST_PERMISSION = 0x1023,
        TILE_DATA = 18
    };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

static bool has_amx(void) {
    unsigned a, b, c, d;
    if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const unsigned needed = 1u << 22 | 1u << 24; /* bf16 products, tiles */
    return (d & needed) == needed && may_use_tiles();
}
#elif defined(__x86_64__)
#define has_avx512 always
#define has_avx512_bf16 always
#define has_amx always
#endif

#ifdef EVO_AARCH64_BF16
extern const cpu_isa evo_cpu_isa_sve_bf16, evo_cpu_isa_neon_bf16;

static bool has_neon_bf16(void) {
#ifdef __linux__
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
    return false;
#endif
}

/* That set is compiled for vectors of 256 bits. */
static bool has_sve_bf16(void) {
#ifdef __linux__
    return (getauxval(AT_HWCAP) & HWCAP_SVE) && (getauxval(AT_HWCAP2) & HWCAP2_SVEBF16) &&
           (prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) == 32;
#else
    return false;
#endif
}
#endif

static const struct {
    const cpu_isa *isa;
    bool (*usable)(void);
} sets[] = {
#if defined(__x86_64__)
    { &evo_cpu_isa_amx, has_amx },       { &evo_cpu_isa_avx512_bf16, has_avx512_bf16 },
    { &evo_cpu_isa_avx512, has_avx512 }, { &evo_cpu_isa_avx2, has_avx2 },
#elif defined(EVO_AARCH64_BF16)
    { &evo_cpu_isa_sve_bf16, has_sve_bf16 },
    { &evo_cpu_isa_neon_bf16, has_neon_bf16 },
#endif
    { &evo_cpu_isa_baseline, always },
};

const cpu_isa *evo_cpu_isa(int index) {
    return index >= 0 && index < (int)(sizeof sets / sizeof *sets) ? sets[index].isa : NULL;
}

bool evo_cpu_isa_usable(const cpu_isa *isa) {
    for (int k = 0; evo_cpu_isa(k); k++)
        if (evo_cpu_isa(k) == isa) return sets[k].usable();
    return false;
}
