/* chip.cpp: what a chip's shared object exports: its kernels, and a way to run one. */
#include "chip.h"
#include "engine.h"

namespace simulated {

/* Filled by the constructors of the kernels, in whichever order; it is ready before them, being constant. */
kernel *first_kernel __attribute__((visibility("hidden"))) = nullptr;

/* Each OS thread that launches has an engine, with the fibers it has made so far. */
static bool run(const launch &work, char *report, size_t report_size) {
    static thread_local engine own;
    active = &own;
    return own.run(work, report, report_size);
}

} // namespace simulated

extern "C" __attribute__((visibility("default"))) const simulated::chip *evo_simulated_chip() {
    static const simulated::chip chip = { EVO_SIMULATED_WAVE, simulated::first_kernel, simulated::run };
    return &chip;
}
