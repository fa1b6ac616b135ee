/*
 * tensor_map.h: what the simulated driver writes into a tensor map and the simulated bulk copies read: 128 opaque bytes of a
 * tensor of 16-bit numbers, in boxes whose rows are swizzled by 128 bytes.
 */
#ifndef EVO_TESTS_SIMULATED_TENSOR_MAP_H
#define EVO_TESTS_SIMULATED_TENSOR_MAP_H

#include <cstdint>

namespace simulated {

struct tensor_map {
    static constexpr uint64_t MAGIC = 0x45564f4d41503136;
    uint64_t magic;
    unsigned char *address;
    uint64_t strides[4]; /* bytes, of all indices but the first */
    uint64_t extents[5];
    uint16_t box[5];
    uint16_t rank;
};
static_assert(sizeof(tensor_map) <= 128, "a tensor map has 128 bytes");

} // namespace simulated

#endif
