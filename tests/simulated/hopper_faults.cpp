/* hopper_faults.cpp: see faults.h; what only an sm_90a can do wrong. Each kernel copies or transposes tiles of bf16. */
#include "backends/cuda/device_hopper.h"

#include "faults.h"

struct fault_ring_shared {
    unsigned char stages[2][BLOCK_BYTES], out[BLOCK_BYTES];
    uint64_t full[2], empty[2];
};

EVO_DEVICE void load_ring(const hopper_fault_params &p, fault_ring_shared &s) {
    for (int t = 0; t < FAULT_TILES; t++) {
        const uint32_t full = shared_address(&s.full[t % 2]);
        const int off = p.broken == FAULT_FEW_BYTES ? -BLOCK_BYTES : p.broken == FAULT_MANY_BYTES ? 16 : 0;
        if (p.broken != FAULT_STAGE_REUSED) barrier_wait(shared_address(&s.empty[t % 2]), (t / 2 & 1) ^ 1);
        barrier_expect(full, BLOCK_BYTES + off);
        bulk_load(shared_address(s.stages[t % 2]), p.in, full, 0, 0, t);
    }
}

/* 128 threads take tiles out of a ring, through registers, into a buffer that a bulk store empties. */
EVO_DEVICE void store_ring(const hopper_fault_params &p, fault_ring_shared &s) {
    const int thread = thread_x() % WARPGROUP, wave = thread / 32, lane = thread % 32;
    const uint32_t out = shared_address(s.out);
    for (int t = 0; t < FAULT_TILES; t++) {
        uint32_t x[4][4];
        barrier_wait(shared_address(&s.full[t % 2]), (t / 2 & 1) ^ (p.broken == FAULT_PARITY));
        for (int c = 0; c < 4; c++)
            load_fragments(x[c], shared_address(s.stages[t % 2]) + swizzled(wave * 16 + lane % 16, 2 * c + lane / 16));
        if (p.broken != FAULT_READ_FENCE) fence_async();
        if (p.broken == FAULT_ONE_ARRIVAL ? thread == 0 : lane == 0) barrier_arrive(shared_address(&s.empty[t % 2]));
        if (p.broken != FAULT_BUFFER_REUSED && thread == 0) bulk_store_wait_read<0>();
        named_barrier(1, WARPGROUP + 32 * (p.broken == FAULT_NAMED_COUNT));
        for (int c = 0; c < 4; c++) store_fragments(out + swizzled(wave * 16 + lane % 16, 2 * c + lane / 16), x[c]);
        if (p.broken != FAULT_STORE_FENCE) fence_async();
        if (p.broken != FAULT_STORE_BARRIER) named_barrier(2, WARPGROUP);
        if (thread > 0) continue;
        bulk_store(p.out, out, 0, 0, t);
        bulk_store_commit();
    }
    if (thread == 0 && p.broken != FAULT_STORE_UNREAD) bulk_store_wait<0>();
}

EVO_KERNEL(fault_ring, hopper_fault_params, 2 * WARPGROUP, 1) {
    EVO_BULK_SHARED(raw);
    fault_ring_shared &s = *reinterpret_cast<fault_ring_shared *>(raw);
    if (thread_x() == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(shared_address(&s.full[i]), 1);
            const int most = p.broken == FAULT_ONE_ARRIVAL ? 1 : 4;
            barrier_init(shared_address(&s.empty[i]),
                         most - (p.broken == FAULT_FEW_ARRIVALS) + (p.broken == FAULT_MANY_ARRIVALS));
        }
        if (p.broken != FAULT_INIT_FENCE) barrier_init_done();
    }
    if (p.broken != FAULT_INIT_BARRIER) block_barrier();
    if (thread_x() >= WARPGROUP) {
        if (p.broken != FAULT_REGISTERS) registers_down<40>();
        if (thread_x() < WARPGROUP + 32 && elect()) load_ring(p, s);
    } else {
        registers_up<256>();
        store_ring(p, s);
    }
}

struct fault_product_shared {
    unsigned char a[BLOCK_BYTES], b[2][BLOCK_BYTES], out[BLOCK_BYTES];
    uint64_t full;
};

/* b: the identity, 64 x 64, and zeros behind it, 64 more rows. */
EVO_DEVICE void write_identity(const hopper_fault_params &p, fault_product_shared &s) {
    for (int i = thread_x(); i < 2 * 64 * 64; i += WARPGROUP) {
        const int block = i / 4096, row = i / 64 % 64, k = i % 64;
        uint16_t *const place =
            reinterpret_cast<uint16_t *>(&s.b[block][swizzled(row, k / 8) + static_cast<uint32_t>(k % 8) * 2]);
        write_shared(place, static_cast<uint16_t>(block == 0 && row == k ? 0x3f80 : 0));
    }
    if (p.broken != FAULT_OPERAND_FENCE) fence_async();
}

/* a times the identity, whose 64 columns are the first of 128; a from shared memory row-major, else from registers. */
template <bool TRANSPOSED>
EVO_DEVICE void multiply_identity(const hopper_fault_params &p, fault_product_shared &s, float (&d)[64]) {
    const int wave = thread_x() / 32, lane = thread_x() % 32;
    const uint64_t a = shared_operand(shared_address(s.a), BLOCK_BYTES);
    uint64_t b = shared_operand(shared_address(s.b), BLOCK_BYTES);
    uint32_t x[4][4];
    if (p.broken == FAULT_OFFSETS)
        b = (b & 0xc000ffff0000ffffull) | (b >> 16 & 0xffff) << 32 | (b >> 32 & 0x3fff) << 16;
    for (int k = 0; k < 4; k++)
        load_fragments(x[k], shared_address(s.a) + swizzled(wave * 16 + lane % 16, 2 * k + lane / 16));
    if (p.broken != FAULT_PRODUCT_FENCE) products_begin();
    for (int k = 0; k < 4; k++) {
        const int step = (TRANSPOSED ? 2048 : 32) << (p.broken == FAULT_STEP);
        if (TRANSPOSED)
            multiply<GPU_BF16, 1>(d, advance(a, k * step), advance(b, k * step), k > 0);
        else
            multiply<GPU_BF16>(d, x[k], advance(b, k * step), k > 0 || p.broken == FAULT_ACCUMULATE);
        if (p.broken == FAULT_WARPGROUP && wave == 2) break;
    }
    products_commit();
    if (p.broken == FAULT_OPERAND_REGISTERS) x[0][0] = 0;
    if (p.broken != FAULT_PRODUCT_WAIT) products_wait<0>();
}

template <bool TRANSPOSED> EVO_DEVICE void multiply_tiles(const hopper_fault_params &p, fault_product_shared &s) {
    const int wave = thread_x() / 32, lane = thread_x() % 32;
    if (thread_x() == 0) {
        barrier_init(shared_address(&s.full), 1);
        barrier_init_done();
    }
    write_identity(p, s);
    block_barrier();
    for (int t = 0; t < FAULT_TILES; t++) {
        float d[64];
        for (float &sum : d) sum = 1.0f;
        if (thread_x() == 0) {
            barrier_expect(shared_address(&s.full), BLOCK_BYTES);
            bulk_load(shared_address(s.a), p.in, shared_address(&s.full), 0, 0, t);
        }
        barrier_wait(shared_address(&s.full), t & 1);
        multiply_identity<TRANSPOSED>(p, s, d);
        for (int m = 0; m < 8; m += 2) {
            uint32_t r[4];
            for (int e = 0; e < 4; e++) r[e] = pack<GPU_BF16>(d[m * 4 + 2 * e], d[m * 4 + 2 * e + 1]);
            store_fragments(shared_address(s.out) + swizzled(wave * 16 + lane % 16, m + lane / 16), r);
        }
        fence_async();
        block_barrier();
        if (thread_x() == 0) {
            bulk_store(p.out, shared_address(s.out), 0, 0, t);
            bulk_store_commit();
            bulk_store_wait<0>();
        }
        block_barrier();
        if (p.broken == FAULT_PRODUCT_WAIT) products_wait<0>();
    }
}

EVO_KERNEL(fault_product, hopper_fault_params, WARPGROUP, 1) {
    EVO_BULK_SHARED(raw);
    multiply_tiles<false>(p, *reinterpret_cast<fault_product_shared *>(raw));
}

EVO_KERNEL(fault_product_transposed, hopper_fault_params, WARPGROUP, 1) {
    EVO_BULK_SHARED(raw);
    multiply_tiles<true>(p, *reinterpret_cast<fault_product_shared *>(raw));
}

/* The wait for the kernel ahead, before anything that it writes is read. */
EVO_KERNEL(fault_ahead, fault_params, FAULT_THREADS, 1) {
    const int at = static_cast<int>(block_x()) * FAULT_THREADS + thread_x();
    if (!p.broken) wait_for_kernel_ahead();
    const float number = p.in[at];
    if (p.broken) wait_for_kernel_ahead();
    p.out[at] = number;
}

/* The wait in every block, on which the kernel behind relies for the kernels ahead of this one. */
EVO_KERNEL(fault_no_wait, fault_params, FAULT_THREADS, 1) {
    const int at = static_cast<int>(block_x()) * FAULT_THREADS + thread_x();
    if (!p.broken || block_x() > 0) wait_for_kernel_ahead();
    p.out[at] = p.in[at];
}
