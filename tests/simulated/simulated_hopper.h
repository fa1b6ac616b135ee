/* simulated_hopper.h: the instructions of device_hopper.h on a simulated sm_90a, see hopper.h. */
#ifndef EVO_TESTS_SIMULATED_HOPPER_NAMES_H
#define EVO_TESTS_SIMULATED_HOPPER_NAMES_H

#include "hopper.h"

#define EVO_BULK_SHARED(name) EVO_DYNAMIC_SHARED(name)

/* The place in the kernel, for reports; last parameters of what waits. */
#define EVO_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EVO_HOPPER ::simulated::hopper::active_one()

EVO_DEVICE uint32_t shared_address(const void *p) {
    return EVO_HOPPER.address_of(p);
}
template <class T> EVO_DEVICE void write_shared(T *place, T value) {
    *place = value;
    EVO_HOPPER.written(shared_address(place), sizeof value);
}
EVO_DEVICE int warpgroup_number() {
    return thread_x() / WARPGROUP;
}
EVO_DEVICE unsigned block_count_x() {
    return ::simulated::active->work->grid[0];
}
template <class T> EVO_DEVICE T wave_shuffle(T value, int lane, EVO_SITE) {
    return ::simulated::shuffle(value, static_cast<unsigned>(lane), file, line);
}
EVO_DEVICE bool elect(EVO_SITE) {
    return EVO_HOPPER.is_elected({ "elect", file, line });
}

EVO_DEVICE void barrier_init(uint32_t barrier, int arrivals) {
    EVO_HOPPER.barrier_init(barrier, arrivals);
}
EVO_DEVICE void barrier_init_done() {
    EVO_HOPPER.barrier_init_done();
}
EVO_DEVICE void barrier_expect(uint32_t barrier, int bytes) {
    EVO_HOPPER.barrier_arrive(barrier, bytes);
}
EVO_DEVICE void barrier_arrive(uint32_t barrier) {
    EVO_HOPPER.barrier_arrive(barrier, 0);
}
EVO_DEVICE void barrier_wait(uint32_t barrier, int parity, EVO_SITE) {
    EVO_HOPPER.barrier_wait(barrier, parity, { "barrier in shared memory", file, line });
}
EVO_DEVICE void named_barrier_arrive(int id, int threads, EVO_SITE) {
    ::simulated::active->meet_named(id, threads, false, { "named barrier", file, line });
}

EVO_DEVICE void bulk_load(uint32_t target, const gpu_tensor_map &map, uint32_t barrier, int x, int y, int z, EVO_SITE) {
    const int at[] = { x, y, z };
    EVO_HOPPER.load(target, &map, barrier, 3, at, { "bulk load", file, line });
}
EVO_DEVICE void bulk_load(uint32_t target, const gpu_tensor_map &map, uint32_t barrier, int x, int y, int z, int w,
                          EVO_SITE) {
    const int at[] = { x, y, z, w };
    EVO_HOPPER.load(target, &map, barrier, 4, at, { "bulk load", file, line });
}
EVO_DEVICE void bulk_load(uint32_t target, const gpu_tensor_map &map, uint32_t barrier, int x, int y, int z, int w,
                          int v, EVO_SITE) {
    const int at[] = { x, y, z, w, v };
    EVO_HOPPER.load(target, &map, barrier, 5, at, { "bulk load", file, line });
}
EVO_DEVICE void bulk_store(const gpu_tensor_map &map, uint32_t source, int x, int y, int z, EVO_SITE) {
    const int at[] = { x, y, z };
    EVO_HOPPER.store(&map, source, 3, at, { "bulk store", file, line });
}
EVO_DEVICE void bulk_store(const gpu_tensor_map &map, uint32_t source, int x, int y, int z, int w, EVO_SITE) {
    const int at[] = { x, y, z, w };
    EVO_HOPPER.store(&map, source, 4, at, { "bulk store", file, line });
}
EVO_DEVICE void bulk_store(const gpu_tensor_map &map, uint32_t source, int x, int y, int z, int w, int v, EVO_SITE) {
    const int at[] = { x, y, z, w, v };
    EVO_HOPPER.store(&map, source, 5, at, { "bulk store", file, line });
}
EVO_DEVICE void bulk_store_commit() {
    EVO_HOPPER.store_commit();
}
template <int N> EVO_DEVICE void bulk_store_wait_read() {
    EVO_HOPPER.store_wait(N, false);
}
template <int N> EVO_DEVICE void bulk_store_wait() {
    EVO_HOPPER.store_wait(N, true);
}
EVO_DEVICE void fence_async() {
    EVO_HOPPER.fence();
}

EVO_DEVICE void wait_for_kernel_ahead() {
    ::simulated::active->see_ahead();
}
EVO_DEVICE void let_next_kernel_start() {
}

template <int N> EVO_DEVICE void registers_up(EVO_SITE) {
    EVO_HOPPER.set_registers(N, true, { "setmaxnreg", file, line });
}
template <int N> EVO_DEVICE void registers_down(EVO_SITE) {
    EVO_HOPPER.set_registers(N, false, { "setmaxnreg", file, line });
}

EVO_DEVICE float hardware_reciprocal_root(float x) {
    const float exact = 1.0f / std::sqrt(x);
    return exact == 1.0f ? exact : simulated::inexact(exact, x);
}

namespace simulated {

/** What one lane brings to ldmatrix and stmatrix: four registers, and the row of eight numbers that it names. */
struct shared_row {
    uint32_t *registers;
    uint32_t address;
    uint16_t *numbers;
};

/* Matrix m: row r is named by lane 8 m + r; lane l has numbers l % 4 * 2 + e of row l / 4, or transposed. */
template <bool TRANSPOSED, bool STORES> void move_fragments(void *const *lanes) {
    for (unsigned m = 0; m < 4; m++)
        for (unsigned lane = 0; lane < 32; lane++)
            for (unsigned e = 0; e < 2; e++) {
                const unsigned own = lane % 4 * 2 + e, other = lane / 4;
                uint16_t &number = static_cast<const shared_row *>(lanes[m * 8 + (TRANSPOSED ? own : other)])
                                       ->numbers[TRANSPOSED ? other : own];
                uint32_t &pair = static_cast<const shared_row *>(lanes[lane])->registers[m];
                if (STORES)
                    number = static_cast<uint16_t>(pair >> e * 16);
                else
                    pair = (pair & 0xffffu << (1 - e) * 16) | static_cast<uint32_t>(number) << e * 16;
            }
}

template <bool TRANSPOSED, bool STORES>
void move_rows(uint32_t *registers, uint32_t shared, const char *what, const char *file, int line) {
    hopper &h = hopper::active_one();
    shared_row mine = { registers, shared, reinterpret_cast<uint16_t *>(h.at(shared, 16, 16, what)) };
    if (STORES) {
        h.written(shared, 16);
        h.has_read(); /* the registers that it stores */
    } else {
        h.reads(shared);
    }
    active->meet_wave_to(&mine, { what, file, line }, move_fragments<TRANSPOSED, STORES>);
}

} // namespace simulated

EVO_DEVICE void load_fragments(uint32_t (&r)[4], uint32_t shared, EVO_SITE) {
    simulated::move_rows<false, false>(r, shared, "ldmatrix", file, line);
}
EVO_DEVICE void load_fragments_transposed(uint32_t (&r)[4], uint32_t shared, EVO_SITE) {
    simulated::move_rows<true, false>(r, shared, "ldmatrix", file, line);
}
EVO_DEVICE void store_fragments(uint32_t shared, const uint32_t (&r)[4], EVO_SITE) {
    uint32_t copy[4] = { r[0], r[1], r[2], r[3] };
    simulated::move_rows<false, true>(copy, shared, "stmatrix", file, line);
}
EVO_DEVICE void store_fragments_transposed(uint32_t shared, const uint32_t (&r)[4], EVO_SITE) {
    uint32_t copy[4] = { r[0], r[1], r[2], r[3] };
    simulated::move_rows<true, true>(copy, shared, "stmatrix", file, line);
}

EVO_DEVICE void products_begin(EVO_SITE) {
    EVO_HOPPER.products_begin({ "wgmma.fence", file, line });
}
EVO_DEVICE void products_commit(EVO_SITE) {
    EVO_HOPPER.products_commit({ "wgmma.commit_group", file, line });
}
template <int N> EVO_DEVICE void products_wait(EVO_SITE) {
    EVO_HOPPER.products_wait(N, { "wgmma.wait_group", file, line });
}
template <int N> EVO_DEVICE void settle(float (&)[N]) {
}
template <int TYPE, int A_TRANSPOSED, int B_TRANSPOSED = A_TRANSPOSED, int COUNT>
EVO_DEVICE void multiply(float (&d)[COUNT], uint64_t a, uint64_t b, int accumulate, EVO_SITE) {
    static_assert(COUNT == 32 || COUNT == 64 || COUNT == 128, "columns of a product");
    EVO_HOPPER.multiply(
        { d, nullptr, a, b, COUNT, TYPE == GPU_FP16, A_TRANSPOSED != 0, B_TRANSPOSED != 0, accumulate != 0 },
        { "wgmma", file, line });
}
template <int TYPE, int COUNT>
EVO_DEVICE void multiply(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b, int accumulate, EVO_SITE) {
    static_assert(COUNT == 32 || COUNT == 64, "columns of a product");
    EVO_HOPPER.multiply({ d, a, 0, b, COUNT, TYPE == GPU_FP16, false, false, accumulate != 0 },
                        { "wgmma", file, line });
}

#endif
