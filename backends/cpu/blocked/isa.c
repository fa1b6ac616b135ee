/* isa.c: the instruction sets of this build, and which of them this machine runs. */
#include "backends/cpu/blocked/isa.h"

#include <stddef.h>

#if defined(__x86_64__)
extern const cpu_isa evo_cpu_isa_avx512, evo_cpu_isa_avx2, evo_cpu_isa_baseline;

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
extern const cpu_isa evo_cpu_isa_baseline;
#endif

static bool always(void) {
    return true;
}

static const struct {
    const cpu_isa *isa;
    bool (*usable)(void);
} sets[] = {
#if defined(__x86_64__)
    { &evo_cpu_isa_avx512, has_avx512 },
    { &evo_cpu_isa_avx2, has_avx2 },
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
