/*
 * chip.h: what a simulated driver and a simulated chip know of each other. A chip is a shared object of its own
 * (simulated_<chip>.so): all kernels compiled for it as plain C++, and the engine that runs a grid of their threads.
 * The driver side (driver.h) holds memory, streams and graphs and knows nothing of threads.
 */
#ifndef EVO_TESTS_SIMULATED_CHIP_H
#define EVO_TESTS_SIMULATED_CHIP_H

#include <cstddef>
#include <cstdint>

namespace simulated {

/** One kernel, as EVO_KERNEL of simulated_device.h registers it. */
struct kernel {
    const char *name;
    void (*entry)(const void *params);
    size_t params_size;
    unsigned max_threads; /* of its launch bounds */
    const kernel *next;
};

struct launch {
    const kernel *function;
    unsigned grid[3], block[3];
    size_t shared_size, shared_limit; /* bytes: of the launch; that a block may have with its kernel's own arrays */
    const void *params;
    uint64_t seed; /* of the order in which blocks, waves and lanes run */
    /** Of a kernel that starts before the ones ahead have ended: puts back, and takes away, what memory held before those. */
    void (*show_ahead)(void *ahead, bool shown);
    void *ahead; /* nullptr: they have ended */
};

/** What the driver finds in a chip by the name "evo_simulated_chip". */
struct chip {
    int wave_size;
    const kernel *kernels;
    /** Runs one grid to its end. False, with what went wrong in `report`, if its threads wait for each other forever. */
    bool (*run)(const launch &work, char *report, size_t report_size);
};

typedef const chip *(*chip_entry)();

} // namespace simulated

#endif
