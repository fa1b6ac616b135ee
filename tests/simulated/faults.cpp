/* faults.cpp: see faults.h. What each kernel lacks when it is broken stands above it. */
#include "backends/gpu/device.h"

#include "faults.h"

EVO_DEVICE int position() {
    return static_cast<int>(block_x()) * FAULT_THREADS + thread_x();
}

/* Nothing: out = in, for what needs no mistake in a kernel. */
EVO_KERNEL(fault_copy, fault_params, FAULT_THREADS, 1) {
    if (position() < p.count) p.out[position()] = p.in[position()];
}

/* The barrier between writing and reading shared memory. */
EVO_KERNEL(fault_barrier, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    part[thread_x()] = p.in[position()];
    if (!p.broken) block_barrier();
    p.out[position()] = part[FAULT_THREADS - 1 - thread_x()];
}

/* The barrier between reading shared memory and writing it again. */
EVO_KERNEL(fault_reuse, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    part[thread_x()] = p.in[position()];
    block_barrier();
    const float reversed = part[FAULT_THREADS - 1 - thread_x()];
    if (!p.broken) block_barrier();
    part[thread_x()] = reversed;
    block_barrier();
    p.out[position()] = part[thread_x()];
}

/* Lanes of a wave in step: another wave's values are there only after a barrier. */
EVO_KERNEL(fault_wave, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    part[thread_x()] = wave_shuffle_xor(p.in[position()], 1);
    if (!p.broken) block_barrier();
    p.out[position()] = part[thread_x() ^ 1];
}

/* The predicate of the write. */
EVO_KERNEL(fault_write, fault_params, FAULT_THREADS, 1) {
    const float value = position() < p.count ? p.in[position()] : 0.0f;
    if (p.broken || position() < p.count) p.out[position()] = value;
}

/* The predicate of the read. */
EVO_KERNEL(fault_read, fault_params, FAULT_THREADS, 1) {
    const float value = p.broken || position() < p.count ? p.in[position()] : 0.0f;
    if (position() < p.count) p.out[position()] = value;
}

/* The right bound of a loop over a declared shared array. */
EVO_KERNEL(fault_bound, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    if (thread_x() == 0)
        for (int i = 0; i < FAULT_THREADS + p.broken; i++) part[i] = 1.0f;
    block_barrier();
    p.out[position()] = p.in[position()] * part[thread_x()];
}

/* Enough dynamic shared memory: the host asks for one number less. */
EVO_KERNEL(fault_dynamic, fault_params, FAULT_THREADS, 1) {
    EVO_DYNAMIC_SHARED(bytes);
    float *const part = reinterpret_cast<float *>(bytes);
    part[thread_x()] = p.in[position()];
    block_barrier();
    p.out[position()] = part[FAULT_THREADS - 1 - thread_x()];
}

/* The wait for asynchronous copies. */
EVO_KERNEL(fault_async_wait, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    if (thread_x() < FAULT_THREADS / 4)
        async_copy16(&part[4 * thread_x()], &p.in[position() / FAULT_THREADS * FAULT_THREADS + 4 * thread_x()], true);
    async_commit();
    if (!p.broken) async_wait<0>();
    block_barrier();
    p.out[position()] = part[thread_x()];
}

/* The right number of groups in a wait: the last one is still on its way. */
EVO_KERNEL(fault_async_group, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    const float *const from = p.in + static_cast<int>(block_x()) * FAULT_THREADS;
    for (int half = 0; half < 2; half++) {
        const int at = half * FAULT_THREADS / 2 + 4 * thread_x();
        if (thread_x() < FAULT_THREADS / 8) async_copy16(&part[at], &from[at], true);
        async_commit();
    }
    if (p.broken)
        async_wait<1>();
    else
        async_wait<0>();
    block_barrier();
    p.out[position()] = part[thread_x()];
}

/* The barrier after the wait: other threads' copies have not arrived. */
EVO_KERNEL(fault_async_barrier, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    if (thread_x() < FAULT_THREADS / 4)
        async_copy16(&part[4 * thread_x()], &p.in[position() / FAULT_THREADS * FAULT_THREADS + 4 * thread_x()], true);
    async_commit();
    async_wait<0>();
    if (!p.broken) block_barrier();
    p.out[position()] = part[thread_x()];
}

/* An aligned address for an asynchronous copy. */
EVO_KERNEL(fault_async_address, fault_params, FAULT_THREADS, 1) {
    EVO_SHARED(float, part, FAULT_THREADS);
    if (thread_x() == 0) async_copy16(part, p.in + p.broken, true);
    async_commit();
    async_wait<0>();
    if (position() < p.count) p.out[position()] = p.in[position()];
}

/* One barrier that all threads reach, not one for each side of a branch. */
EVO_KERNEL(fault_divergence, fault_params, FAULT_THREADS, 1) {
    const bool split = p.broken && thread_x() % 2;
    if (split) block_barrier();
    if (!split) block_barrier();
    p.out[position()] = p.in[position()];
}

/* Threads that stay until the last barrier. */
EVO_KERNEL(fault_return, fault_params, FAULT_THREADS, 1) {
    if (p.broken && thread_x() == 5) return;
    block_barrier();
    p.out[position()] = p.in[position()];
}

/* A shuffle that all lanes reach. */
EVO_KERNEL(fault_shuffle, fault_params, FAULT_THREADS, 1) {
    float value = p.in[position()];
    if (!p.broken || thread_x() % WAVE < 16) value = wave_shuffle_xor(wave_shuffle_xor(value, 4), 4);
    block_barrier();
    p.out[position()] = value;
}
