/*
 * device_hopper.h: what kernels of tier `hopper` (sm_90a) use beyond device.h: barriers in shared memory, bulk tensor copies,
 * matrix products of a warpgroup (four waves, 128 threads), launches that start early. `shared` addresses are those of
 * shared_address().
 *
 * Tiles in shared memory start at multiples of 1024 bytes and have rows of 128 bytes, 64 numbers, swizzled: 16-byte chunk k
 * of row r lies at chunk k ^ (r & 7). Bulk copies, both kinds of matrix operands, load_fragments and store_fragments all
 * take that one layout without bank conflicts.
 */
#ifndef EVO_BACKENDS_CUDA_DEVICE_HOPPER_H
#define EVO_BACKENDS_CUDA_DEVICE_HOPPER_H

#include "backends/gpu/kernels/numbers.h"

static constexpr int WARPGROUP = 128;        /* threads */
static constexpr int BLOCK_BYTES = 64 * 128; /* a tile of 64 rows */

EVO_DEVICE uint32_t swizzled(int row, int chunk) {
    return static_cast<uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

#if defined(EVO_SIMULATED)
#include "simulated_hopper.h"
#else

#define EVO_BULK_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

EVO_DEVICE uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/* Writes shared memory that copies or matrix units will read; fence_async() as below. */
template <class T> EVO_DEVICE void write_shared(T *place, T value) {
    *place = value;
}
/* The warpgroup of this thread, in a register that the compiler knows to be the same in all lanes. */
EVO_DEVICE int warpgroup_number() {
    return __shfl_sync(0xffffffffu, thread_x() / WARPGROUP, 0);
}
EVO_DEVICE unsigned block_count_x() {
    return gridDim.x;
}
template <class T> EVO_DEVICE T wave_shuffle(T value, int lane) {
    return __shfl_sync(0xffffffffu, value, lane);
}
/* True in one lane of a converged wave: the compiler then issues bulk copies without a loop over lanes. */
EVO_DEVICE bool elect() {
    uint32_t elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected != 0;
}

/* --- Barriers in shared memory --- */

EVO_DEVICE void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/* After the inits, before the block's barrier. */
EVO_DEVICE void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Arrives, and lets the phase wait for that many bytes of bulk loads. */
EVO_DEVICE void barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
EVO_DEVICE void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
EVO_DEVICE void barrier_wait(uint32_t barrier, int parity) {
    asm volatile("{ .reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done: }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* Arrives at a named_barrier and does not wait. */
EVO_DEVICE void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* --- Bulk tensor copies --- */

/*
 * Loads fill what lies outside the tensor with zeros and count the whole box; stores skip what lies outside. The innermost
 * coordinate is a multiple of 16 bytes; stores take no negative coordinate.
 */
EVO_DEVICE void bulk_load(uint32_t target, const gpu_tensor_map &map, uint32_t barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
            "r"(target),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}
EVO_DEVICE void bulk_load(uint32_t target, const gpu_tensor_map &map, uint32_t barrier, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(target),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
EVO_DEVICE void bulk_load(uint32_t target, const gpu_tensor_map &map, uint32_t barrier, int x, int y, int z, int w,
                          int v) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(target),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
                 : "memory");
}
EVO_DEVICE void bulk_store(const gpu_tensor_map &map, uint32_t source, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
                 "r"(source), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
EVO_DEVICE void bulk_store(const gpu_tensor_map &map, uint32_t source, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(source), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
EVO_DEVICE void bulk_store(const gpu_tensor_map &map, uint32_t source, int x, int y, int z, int w, int v) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
                 "r"(source), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
                 : "memory");
}
/* The thread that stores closes a group, and waits until at most N of its groups still read shared memory or are unfinished. */
EVO_DEVICE void bulk_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int N> EVO_DEVICE void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
template <int N> EVO_DEVICE void bulk_store_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
/* In each thread that has written shared memory, before the barrier after which bulk copies or matrix units read it. */
EVO_DEVICE void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- Launches that start before the kernel ahead has ended --- */

/* Returns when the kernel ahead has ended: before anything of global memory that it may have touched. */
EVO_DEVICE void wait_for_kernel_ahead() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
EVO_DEVICE void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Moves registers between warpgroups: once, in the branch of one role. */
template <int N> EVO_DEVICE void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> EVO_DEVICE void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

EVO_DEVICE float hardware_reciprocal_root(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* --- Fragments: 8 x 8 matrices, two numbers a lane. Volatile keeps them between barriers. --- */

EVO_DEVICE void load_fragments(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}
EVO_DEVICE void load_fragments_transposed(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}
EVO_DEVICE void store_fragments(uint32_t shared, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3]));
}
EVO_DEVICE void store_fragments_transposed(uint32_t shared, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3]));
}

/* --- Products of a warpgroup: operands are made at the end of this file --- */

EVO_DEVICE void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;");
}
EVO_DEVICE void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;");
}
/* Waits until at most N committed groups are unfinished; settle() what is read then. */
template <int N> EVO_DEVICE void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N));
}
template <int N> EVO_DEVICE void settle(float (&sums)[N]) {
    EVO_UNROLL
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(sums[i]));
}

#define EVO_SUMS_8(i)                                                                                                 \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),       \
        "+f"(d[i + 7])
#define EVO_SUMS_32(i) EVO_SUMS_8(i), EVO_SUMS_8(i + 8), EVO_SUMS_8(i + 16), EVO_SUMS_8(i + 24)
#define EVO_NAMES_0 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define EVO_NAMES_32 \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define EVO_NAMES_64 \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define EVO_NAMES_96 \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/*
 * d += a b^T: 64 rows of a by 2 COUNT rows of b by 16 k. Lane l of wave w holds in d[4 j ...] row 16 w + l / 4, columns
 * 8 j + l % 4 * 2 and the next, then the same of row + 8. `accumulate` 0 starts the sums.
 */
#define EVO_PRODUCT(type, columns, names, a, b, accumulate, layout, inputs, ...)                                      \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " accumulate ", 0; wgmma.mma_async.sync.aligned.m64n" columns        \
                 "k16.f32." type "." type " {" names "}, " a ", " b ", p, 1, 1, " layout "; }"                        \
                 : __VA_ARGS__                                                                                        \
                 : inputs)
#define EVO_LIST(...) __VA_ARGS__

/* Both operands in shared memory; A and B TRANSPOSED: row-major. */
#define EVO_MULTIPLY_SHARED(columns, count, names, a_, b_, p_, t_, ...)                                               \
    template <int TYPE, int A_TRANSPOSED, int B_TRANSPOSED = A_TRANSPOSED>                                            \
    EVO_DEVICE void multiply(float (&d)[count], uint64_t a, uint64_t b, int accumulate) {                             \
        if (TYPE == GPU_BF16)                                                                                         \
            EVO_PRODUCT("bf16", columns, names, a_, b_, p_, t_,                                                       \
                        EVO_LIST("l"(a), "l"(b), "r"(accumulate), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED)), __VA_ARGS__);                     \
        else                                                                                                          \
            EVO_PRODUCT("f16", columns, names, a_, b_, p_, t_,                                                        \
                        EVO_LIST("l"(a), "l"(b), "r"(accumulate), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED)), __VA_ARGS__);                     \
    }
EVO_MULTIPLY_SHARED("64", 32, EVO_NAMES_0, "%32", "%33", "%34", "%35, %36", EVO_SUMS_32(0))
EVO_MULTIPLY_SHARED("128", 64, EVO_NAMES_0 ", " EVO_NAMES_32, "%64", "%65", "%66", "%67, %68", EVO_SUMS_32(0),
                    EVO_SUMS_32(32))
EVO_MULTIPLY_SHARED("256", 128, EVO_NAMES_0 ", " EVO_NAMES_32 ", " EVO_NAMES_64 ", " EVO_NAMES_96, "%128", "%129",
                    "%130", "%131, %132", EVO_SUMS_32(0), EVO_SUMS_32(32), EVO_SUMS_32(64), EVO_SUMS_32(96))

/* a in registers, as load_fragments brings 16 rows a wave; b K-major. */
#define EVO_MULTIPLY_REGISTERS(columns, count, names, a_, b_, p_, ...)                                                \
    template <int TYPE>                                                                                               \
    EVO_DEVICE void multiply(float (&d)[count], const uint32_t (&a)[4], uint64_t b, int accumulate) {                 \
        if (TYPE == GPU_BF16)                                                                                         \
            EVO_PRODUCT("bf16", columns, names, a_, b_, p_, "0",                                                      \
                        EVO_LIST("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)), __VA_ARGS__);  \
        else                                                                                                          \
            EVO_PRODUCT("f16", columns, names, a_, b_, p_, "0",                                                       \
                        EVO_LIST("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)), __VA_ARGS__);  \
    }
EVO_MULTIPLY_REGISTERS("64", 32, EVO_NAMES_0, "{%32, %33, %34, %35}", "%36", "%37", EVO_SUMS_32(0))
EVO_MULTIPLY_REGISTERS("128", 64, EVO_NAMES_0 ", " EVO_NAMES_32, "{%64, %65, %66, %67}", "%68", "%69", EVO_SUMS_32(0),
                       EVO_SUMS_32(32))

#endif

/* --- Numbers of 16 bits, TYPE being GPU_BF16 or GPU_FP16 --- */

template <int TYPE> EVO_DEVICE uint32_t pack(float low, float high) {
    return TYPE == GPU_BF16 ? pack_bfloats(low, high) : pack_halves(low, high);
}
template <int TYPE> EVO_DEVICE float low_of(uint32_t pair) {
    return TYPE == GPU_BF16 ? bits_float(pair << 16) : half_to_float(static_cast<uint16_t>(pair));
}
template <int TYPE> EVO_DEVICE float high_of(uint32_t pair) {
    return TYPE == GPU_BF16 ? bits_float(pair & 0xffff0000u) : half_to_float(static_cast<uint16_t>(pair >> 16));
}

/* --- Operands of products in shared memory --- */

/*
 * An operand in shared memory. K-major ([row][64 k]): the next 16 k are 32 bytes on. Row-major ([k][64 rows]): the next 16 k
 * are 2048 bytes on, the next 64 rows `leading` bytes.
 */
EVO_DEVICE uint64_t shared_operand(uint32_t shared, uint32_t leading = 16) {
    return static_cast<uint64_t>((shared & 0x3ffffu) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | 1ull << 62;
}
/* Rows of 8 k, 16 bytes apart, not swizzled; the second 8 k of a product are the same ones again. */
EVO_DEVICE uint64_t short_operand(uint32_t shared) {
    return static_cast<uint64_t>((shared & 0x3ffffu) >> 4) | static_cast<uint64_t>(128 >> 4) << 32;
}
/* One addition, where an operand made anew is five instructions a product. */
EVO_DEVICE uint64_t advance(uint64_t operand, int bytes) {
    return operand + static_cast<uint64_t>(bytes >> 4);
}

#endif
