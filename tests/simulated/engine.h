/*
 * engine.h: runs the threads of a grid, block by block, each thread on a fiber of its own until it waits for others.
 * Which waiting wave and which of its lanes goes on is drawn from a seed; nothing else orders them, so that a barrier
 * that is missing shows as a value that is not there yet. Shared memory begins each block as NaNs.
 *
 * Included by simulated_device.h, so compiled for each chip with -DEVO_SIMULATED_WAVE=32 or 64.
 */
#ifndef EVO_TESTS_SIMULATED_ENGINE_H
#define EVO_TESTS_SIMULATED_ENGINE_H

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "chip.h"
#include "fiber.h"

namespace simulated {

constexpr unsigned wave_lanes = EVO_SIMULATED_WAVE;

/** Every byte of memory that nothing has been written to: a NaN in every floating-point type, -1 in the others. */
constexpr int unwritten = 0xff;

/** Where in the sources a thread waits; no file: it does not. */
struct site {
    const char *what; /* "block barrier", ... */
    const char *file;
    int line;
    bool operator==(const site &other) const;
};

/** An asynchronous copy that was issued and has not been waited for. */
struct pending_copy {
    void *to;
    const void *from;
    unsigned size, given; /* bytes to write; bytes to read, the rest becomes zero */
};

struct thread {
    fiber stack;
    unsigned index[3];
    unsigned wave, lane;
    bool finished;
    site where;
    std::vector<pending_copy> copies;
    std::vector<size_t> groups; /* where each committed group of copies ends */
};

/** A shared array that a kernel declares; the launch's dynamic one has no identity. */
struct shared_memory {
    const void *identity;
    size_t size;
    std::unique_ptr<unsigned char, void (*)(void *)> memory;
};

/** A barrier of some of a block's threads, of which some may arrive and not wait. */
struct named_barrier {
    int arrived = 0, expected = 0;
    std::vector<thread *> waiting;
};

/** The largest value that lanes exchange at once. */
struct slot {
    unsigned char bytes[16];
};

struct wave {
    unsigned lanes, arrived;
    site where;                   /* of the lanes that arrived */
    unsigned next, start, stride; /* the order in which lanes go on: (start + next * stride) modulo the wave size */
    bool runnable;                /* whether it stands in the engine's list */
    unsigned phase;               /* exchanges use two sets of slots in turn, so one meeting each is enough */
    slot slots[2][wave_lanes];
    void *offered[wave_lanes]; /* by lanes that wait while the last one works for all: one set is enough */
};

/** What works beside the threads of a block, on a chip that has such a thing (hopper.h). */
class beside {
  public:
    virtual ~beside() {
    }
    virtual void begin_block() = 0;
    /** Takes one step of what is under way; false if nothing is. */
    virtual bool step() = 0;
    /** The running thread gives its wave a number. */
    virtual void thread_exchanges() = 0;
    /** The running thread returns; the last of the block. */
    virtual void thread_returns() = 0;
    virtual void block_ends() = 0;
};

class engine {
  public:
    bool run(const launch &work, char *report, size_t report_size);

    std::unique_ptr<beside> other; /* made by the first kernel that needs it, for good */

    /* What a kernel asks for; `running` is the thread that asks. */
    thread *running = nullptr;
    const launch *work = nullptr;
    unsigned block_index[3] = {};

    void meet_block(const site &where);
    /** The running thread arrives at barrier number `id`, 1 to 15, of `threads` threads, and waits for the others. */
    void meet_named(int id, int threads, bool waits, const site &where);
    /** The running thread has waited for the kernels ahead: what they wrote is there. */
    void see_ahead();
    /** The block's array that `identity` stands for, made of unwritten bytes when the first of its threads asks. */
    void *shared_array(const void *identity, size_t size);
    /** Offers `mine` to the wave and returns what every lane offered. */
    const slot *meet_wave(const slot &mine, const site &where);
    /** Offers `mine` to the wave; the last lane to come calls `perform` with what every lane offered, then all go on. */
    void meet_wave_to(void *mine, const site &where, void (*perform)(void *const *lanes));

    void copy_issue(void *to, const void *from, unsigned size, unsigned given);
    void copy_commit();
    void copy_wait(unsigned newest_groups_to_leave);

    /** The running thread waits until somebody wakes it, or lets others go first. */
    void suspend(const site &where);
    void wake(thread &suspended);
    void yield();
    unsigned number_of(const thread &t) const;
    unsigned thread_count() const;
    uint64_t random();

    /** Ends the launch with a report; for what a real device would trap or hang on. Does not return. */
    [[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 2, 3)));

  private:
    fiber root = fiber();
    std::unique_ptr<fiber_stacks> stacks;
    std::vector<thread> threads; /* at least as many as a block has */
    std::vector<wave> waves;
    std::vector<shared_memory> shared;
    std::vector<unsigned> runnable; /* waves with lanes that can go on */
    std::vector<unsigned> woken;    /* threads that can go on alone */
    std::map<int, named_barrier> named;
    unsigned other_every = 0; /* of how many choices one is a step of `other`; 0: it works when nobody else can */
    unsigned count = 0, finished = 0, arrived = 0;
    int current = -1; /* the wave that runs, -1: to be drawn */
    site where = {};  /* of the threads that arrived at the block's barrier */
    bool failed = false, sees_ahead = true;
    uint64_t random_state = 0;
    char *report = nullptr;
    size_t report_size = 0;

    void grow(unsigned threads_per_block);
    void begin_block();
    void release(wave &w);
    wave &arrive(const site &where);
    void release_block();
    thread *pick();
    void go_on();
    void finish();
    void report_stuck();
    static void thread_main();
};

/** The engine that runs in this OS thread. */
extern __thread engine *active __attribute__((tls_model("initial-exec"), visibility("hidden")));

} // namespace simulated

#endif
