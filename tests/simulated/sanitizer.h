/* sanitizer.h: AddressSanitizer's interface, or nothing where the code is built without it. */
#ifndef EVO_TESTS_SIMULATED_SANITIZER_H
#define EVO_TESTS_SIMULATED_SANITIZER_H

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define EVO_SIMULATED_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EVO_SIMULATED_ASAN 1
#endif
#endif

#ifdef EVO_SIMULATED_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace simulated {

/** Forbids, or allows again, every access to a range of memory. */
inline void forbid(const void *memory, size_t size) {
#ifdef EVO_SIMULATED_ASAN
    __asan_poison_memory_region(memory, size);
#else
    (void)memory, (void)size;
#endif
}

inline void allow(const void *memory, size_t size) {
#ifdef EVO_SIMULATED_ASAN
    __asan_unpoison_memory_region(memory, size);
#else
    (void)memory, (void)size;
#endif
}

/** Whether forbidden accesses stop the program. */
constexpr bool sanitized() {
#ifdef EVO_SIMULATED_ASAN
    return true;
#else
    return false;
#endif
}

} // namespace simulated

#endif
