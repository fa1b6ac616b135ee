/* fiber.cpp: see fiber.h. */
#include "fiber.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

#include "sanitizer.h"

namespace simulated {

#ifdef EVO_SIMULATED_BY_UCONTEXT

static void exchange(fiber &from, fiber &to) {
    swapcontext(&from.context, &to.context);
}

static void lay_out(fiber &made, void *stack, size_t size, void (*entry)()) {
    getcontext(&made.context);
    made.context.uc_stack.ss_sp = stack;
    made.context.uc_stack.ss_size = size;
    made.context.uc_link = nullptr;
    makecontext(&made.context, entry, 0);
}

#else

/* System V: six registers survive a call; what else a switch must keep is the stack pointer. */
extern "C" void evo_simulated_exchange(void **from, void *to) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".hidden evo_simulated_exchange\n"
        ".globl evo_simulated_exchange\n"
        ".type evo_simulated_exchange, @function\n"
        "evo_simulated_exchange:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size evo_simulated_exchange, . - evo_simulated_exchange\n");

static void exchange(fiber &from, fiber &to) {
    evo_simulated_exchange(&from.stack_pointer, to.stack_pointer);
}

/* The first switch pops six zeros and returns into `entry`, with the stack aligned as after a call. */
static void lay_out(fiber &made, void *stack, size_t size, void (*entry)()) {
    uintptr_t *top = (uintptr_t *)((char *)stack + size) - 2;
    *top = (uintptr_t)entry;
    for (int i = 0; i < 6; i++) *--top = 0;
    made.stack_pointer = top;
}

#endif

void fiber_prepare(fiber &made, fiber_stacks &stacks, size_t index, void (*entry)()) {
    allow(stacks.at(index), stacks.usable(index)); /* an abandoned fiber leaves its frames marked */
    made = fiber();
    made.stack = stacks.lowest();
    made.stack_size = stacks.bytes();
    lay_out(made, stacks.at(index), stacks.usable(index), entry);
}

void fiber_switch(fiber &from, fiber &to) {
    to.left = &from;
#ifdef EVO_SIMULATED_ASAN
    if (from.stack != to.stack) __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_size);
#endif
    exchange(from, to);
#ifdef EVO_SIMULATED_ASAN
    if (from.left->stack != from.stack) __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void fiber_entered(fiber &self) {
#ifdef EVO_SIMULATED_ASAN
    fiber &from = *self.left;
    const void *stack;
    size_t size;
    if (from.stack == self.stack) return;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &size);
    if (!from.stack) { /* the OS thread's own stack, which only AddressSanitizer knows */
        from.stack = stack;
        from.stack_size = size;
    }
#else
    (void)self;
#endif
}

/* Unmapped page, stack, unmapped page, stack, ..., unmapped page. */
fiber_stacks::fiber_stacks(size_t count_, size_t size_)
    : count(count_), size(size_), page((size_t)sysconf(_SC_PAGESIZE)) {
    memory = (char *)mmap(nullptr, count * size + page, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool made = memory != MAP_FAILED;
    for (size_t i = 0; made && i <= count; i++) made = mprotect(memory + i * size, page, PROT_NONE) == 0;
    if (!made) {
        perror("simulated device: no memory for stacks");
        abort();
    }
}

fiber_stacks::~fiber_stacks() {
    for (size_t i = 0; i < count; i++) allow(at(i), usable(i));
    munmap(memory, count * size + page);
}

void *fiber_stacks::at(size_t index) const {
    return memory + index * size + page;
}

/* Tops at the same place of each stack would share a few lines of the processor's caches. */
size_t fiber_stacks::usable(size_t index) const {
    return size - page - index % 31 * (33 * 64);
}

const void *fiber_stacks::lowest() const {
    return memory;
}

size_t fiber_stacks::bytes() const {
    return count * size + page;
}

} // namespace simulated
