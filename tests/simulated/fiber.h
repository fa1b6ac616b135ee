/*
 * fiber.h: stacks that one OS thread switches between, one for each GPU thread of a block. By hand on x86-64 (a few
 * nanoseconds), by ucontext elsewhere or with -DEVO_SIMULATED_UCONTEXT. AddressSanitizer takes all stacks of one fiber_stacks for
 * one, so that it need be told only when the OS thread's own is left or taken up again.
 */
#ifndef EVO_TESTS_SIMULATED_FIBER_H
#define EVO_TESTS_SIMULATED_FIBER_H

#include <cstddef>

#if !defined(__x86_64__) || defined(EVO_SIMULATED_UCONTEXT)
#define EVO_SIMULATED_BY_UCONTEXT 1
#include <ucontext.h>
#endif

namespace simulated {

struct fiber {
#ifdef EVO_SIMULATED_BY_UCONTEXT
    ucontext_t context;
#else
    void *stack_pointer;
#endif
    const void *stack; /* lowest address and size of what AddressSanitizer takes for its stack */
    size_t stack_size;
    void *fake_stack;
    fiber *left; /* the one that was left for it */
};

class fiber_stacks;

/** Makes a fiber on a stack that will run `entry`, which must call fiber_entered first and never return. */
void fiber_prepare(fiber &made, fiber_stacks &stacks, size_t index, void (*entry)());

/** Leaves `from` (the running one), continues `to`, and returns when somebody switches back to `from`. */
void fiber_switch(fiber &from, fiber &to);

/** To be called first on a new fiber. */
void fiber_entered(fiber &self);

/** Stacks with an unmapped page below each, so that one that is too small stops the program. */
class fiber_stacks {
  public:
    fiber_stacks(size_t count, size_t size);
    ~fiber_stacks();
    fiber_stacks(const fiber_stacks &) = delete;
    void *at(size_t index) const;
    size_t usable(size_t index) const;
    const void *lowest() const;
    size_t bytes() const;

  private:
    size_t count, size, page;
    char *memory;
};

} // namespace simulated

#endif
