/* engine.cpp: see engine.h. */
#include "engine.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace simulated {

__thread engine *active = nullptr;

/* AddressSanitizer's frames are large. */
constexpr size_t stack_size = 320 << 10;

bool site::operator==(const site &other) const {
    return line == other.line && (file == other.file || (file && other.file && strcmp(file, other.file) == 0));
}

/* splitmix64 */
uint64_t engine::random() {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Fibers stay from block to block and from launch to launch; all are made anew when more are needed or one is stuck. */
void engine::grow(unsigned threads_per_block) {
    if (!failed && threads_per_block <= threads.size()) return;
    const size_t size = threads_per_block > threads.size() ? threads_per_block : threads.size();
    stacks.reset();
    stacks.reset(new fiber_stacks(size, stack_size));
    threads = std::vector<thread>(size);
    for (size_t i = 0; i < size; i++) fiber_prepare(threads[i].stack, *stacks, i, thread_main);
    failed = false;
}

void engine::thread_main() {
    fiber_entered(active->running->stack);
    for (;;) {
        active->work->function->entry(active->work->params);
        active->finish();
    }
}

void engine::begin_block() {
    const unsigned *size = work->block;
    finished = arrived = 0;
    where = site();
    waves.resize((count + wave_lanes - 1) / wave_lanes);
    for (size_t i = 0; i < waves.size(); i++) {
        waves[i] = wave();
        memset(waves[i].slots, unwritten, sizeof waves[i].slots);
        waves[i].lanes = count - i * wave_lanes < wave_lanes ? count - (unsigned)i * wave_lanes : wave_lanes;
    }
    for (unsigned i = 0; i < count; i++) {
        thread &t = threads[i];
        t.index[0] = i % size[0];
        t.index[1] = i / size[0] % size[1];
        t.index[2] = i / size[0] / size[1];
        t.wave = i / wave_lanes;
        t.lane = i % wave_lanes;
        t.finished = false;
        t.where = site();
        t.copies.clear();
        t.groups.clear();
    }
    runnable.clear();
    woken.clear();
    named.clear();
    for (shared_memory &array : shared) memset(array.memory.get(), unwritten, array.size);
    static const unsigned eager[] = { 0, 40, 4 };
    if (other) {
        other_every = eager[random() % 3];
        other->begin_block();
    }
    release_block();
}

/* Every lane of the wave may go on, in a new order. */
void engine::release(wave &w) {
    const uint64_t drawn = random();
    w.arrived = 0;
    w.where = site();
    w.next = 0;
    w.start = (unsigned)drawn;
    w.stride = (unsigned)(drawn >> 32) | 1; /* odd, so that it reaches every lane */
    w.phase ^= 1;
    if (!w.runnable) runnable.push_back((unsigned)(&w - waves.data()));
    w.runnable = true;
    current = -1;
}

void engine::release_block() {
    arrived = 0;
    where = site();
    for (wave &w : waves) release(w);
}

/* The thread that goes on next; nullptr if none can. */
thread *engine::pick() {
    for (;;) {
        if (current < 0) {
            const size_t choices = runnable.size() + woken.size();
            const bool others_turn = choices == 0 || (other_every && random() % other_every == 0);
            if (other && others_turn && other->step()) continue;
            if (choices == 0) return nullptr;
            const size_t drawn = random() % choices;
            if (drawn >= runnable.size()) {
                unsigned &chosen = woken[drawn - runnable.size()];
                thread *const next = &threads[chosen];
                chosen = woken.back();
                woken.pop_back();
                return next;
            }
            current = (int)drawn;
        }
        const unsigned index = runnable[(size_t)current];
        wave &w = waves[index];
        while (w.next < wave_lanes) {
            const unsigned lane = (w.start + w.next++ * w.stride) % wave_lanes;
            if (lane < w.lanes) return &threads[index * wave_lanes + lane];
        }
        w.runnable = false;
        runnable[(size_t)current] = runnable.back();
        runnable.pop_back();
        current = -1;
    }
}

/* Leaves the running thread for the next one, or for the root when the block is done or stuck. */
void engine::go_on() {
    thread *self = running, *next = pick();
    if (!next && finished < count) report_stuck();
    if (next == self) return;
    running = next;
    fiber_switch(self ? self->stack : root, next ? next->stack : root);
}

void engine::finish() {
    if (other) other->thread_returns();
    running->finished = true;
    finished++;
    if (finished == count && !sees_ahead) fail("the block has not waited for the kernels ahead, as later ones rely on");
    if (other && finished == count) other->block_ends();
    go_on();
}

void engine::see_ahead() {
    if (!sees_ahead) work->show_ahead(work->ahead, true);
    sees_ahead = true;
}

void engine::suspend(const site &here) {
    thread *self = running;
    self->where = here;
    go_on();
    self->where = site();
}

void engine::wake(thread &suspended) {
    woken.push_back(number_of(suspended));
}

void engine::yield() {
    wake(*running);
    go_on();
}

unsigned engine::number_of(const thread &t) const {
    return (unsigned)(&t - threads.data());
}

unsigned engine::thread_count() const {
    return count;
}

void engine::meet_block(const site &here) {
    if (arrived && !(where == here))
        fail("barrier divergence: a thread is at the barrier of %s:%d while others are at %s:%d", here.file, here.line,
             where.file, where.line);
    where = running->where = here;
    if (++arrived == count) release_block();
    thread *self = running;
    go_on();
    self->where = site();
}

void engine::meet_named(int id, int wanted, bool waits, const site &here) {
    if (id < 1 || id > 15 || wanted % static_cast<int>(wave_lanes))
        fail("named barrier %d of %d threads, expected 1 to 15 and whole waves", id, wanted);
    named_barrier &b = named[id];
    if (b.arrived && b.expected != wanted)
        fail("named barrier %d of %d threads, others arrived for %d", id, wanted, b.expected);
    b.expected = wanted;
    if (++b.arrived == wanted) {
        for (thread *t : b.waiting) wake(*t);
        b = named_barrier();
    } else if (waits) {
        b.waiting.push_back(running);
        suspend(here);
    }
}

/* The running lane is at a place where its wave meets. */
wave &engine::arrive(const site &here) {
    wave &w = waves[running->wave];
    if (w.arrived && !(w.where == here))
        fail("wave divergence: a lane is at %s:%d while others are at %s:%d", here.file, here.line, w.where.file,
             w.where.line);
    w.where = running->where = here;
    w.arrived++;
    return w;
}

const slot *engine::meet_wave(const slot &mine, const site &here) {
    thread *self = running;
    if (other) other->thread_exchanges();
    wave &w = arrive(here);
    const slot *offered = w.slots[w.phase];
    w.slots[w.phase][self->lane] = mine;
    if (w.arrived == w.lanes) release(w);
    go_on();
    self->where = site();
    return offered;
}

void engine::meet_wave_to(void *mine, const site &here, void (*perform)(void *const *lanes)) {
    thread *self = running;
    wave &w = arrive(here);
    if (w.lanes != wave_lanes) fail("%s in a wave of %u lanes, expected %u", here.what, w.lanes, wave_lanes);
    w.offered[self->lane] = mine;
    if (w.arrived == w.lanes) {
        perform(w.offered);
        release(w);
    }
    go_on();
    self->where = site();
}

/* Each is an allocation of its own, so that AddressSanitizer sees an access past its end. */
void *engine::shared_array(const void *identity, size_t size) {
    size_t total = size;
    for (const shared_memory &array : shared) {
        if (array.identity == identity) return array.memory.get();
        total += array.size;
    }
    if (total > work->shared_limit)
        fail("its shared arrays have %zu bytes, this chip allows %zu", total, work->shared_limit);
    void *memory = nullptr;
    if (posix_memalign(&memory, identity ? 16 : 1024, size ? size : 1)) abort();
    memset(memory, unwritten, size);
    shared.push_back({ identity, size, { (unsigned char *)memory, free } });
    return memory;
}

/* Copies become visible as late as the standard allows: at the wait. Until then their target holds no data. */
void engine::copy_issue(void *to, const void *from, unsigned size, unsigned given) {
    unsigned char read[16];
    if ((size != 4 && size != 8 && size != 16) || given > size)
        fail("asynchronous copy of %u bytes of %u, expected 4, 8 or 16", given, size);
    if ((uintptr_t)to % size || (given && (uintptr_t)from % size))
        fail("asynchronous copy of %u bytes from %p to %p: misaligned", size, from, to);
    memcpy(read, from, given); /* the address must be right now */
    memset(to, unwritten, size);
    running->copies.push_back({ to, from, size, given });
}

void engine::copy_commit() {
    running->groups.push_back(running->copies.size());
}

void engine::copy_wait(unsigned newest_groups_to_leave) {
    std::vector<size_t> &groups = running->groups;
    if (groups.size() <= newest_groups_to_leave) return;
    const size_t done = groups.size() - newest_groups_to_leave, copies = groups[done - 1];
    for (size_t i = 0; i < copies; i++) {
        const pending_copy &c = running->copies[i];
        memset(c.to, 0, c.size);
        memcpy(c.to, c.from, c.given);
    }
    running->copies.erase(running->copies.begin(), running->copies.begin() + (long)copies);
    groups.erase(groups.begin(), groups.begin() + (long)done);
    for (size_t &end : groups) end -= copies;
}

static size_t append(char *text, size_t size, size_t length, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int wanted = length < size ? vsnprintf(text + length, size - length, format, arguments) : 0;
    va_end(arguments);
    return length + (wanted > 0 ? (size_t)wanted : 0);
}

/* One line for every place at which threads wait, with the first of them. */
void engine::report_stuck() {
    size_t length = append(report, report_size, 0, "kernel %s, block (%u, %u, %u): threads wait for each other forever",
                           work->function->name, block_index[0], block_index[1], block_index[2]);
    for (unsigned i = 0; i < count; i++) {
        const site &here = threads[i].where;
        unsigned same = 0;
        bool seen = false;
        for (unsigned j = 0; j < count; j++) {
            const bool matches = threads[j].where == here && threads[j].finished == threads[i].finished;
            seen = seen || (matches && j < i);
            same += matches;
        }
        if (seen) continue;
        length = append(report, report_size, length, "; %u threads from (%u, %u, %u) on ", same, threads[i].index[0],
                        threads[i].index[1], threads[i].index[2]);
        length = here.file
                     ? append(report, report_size, length, "wait at the %s of %s:%d", here.what, here.file, here.line)
                     : append(report, report_size, length, "have returned");
    }
    failed = true;
}

void engine::fail(const char *format, ...) {
    thread *self = running;
    size_t length =
        append(report, report_size, 0, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): ", work->function->name,
               block_index[0], block_index[1], block_index[2], self->index[0], self->index[1], self->index[2]);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report + length, length < report_size ? report_size - length : 0, format, arguments);
    va_end(arguments);
    failed = true;
    running = nullptr;
    fiber_switch(self->stack, root);
    abort(); /* nobody continues a failed thread */
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    return b ? greatest_common_divisor(b, a % b) : a;
}

/* Blocks run one after the other, in an order of start and stride drawn from the seed. */
bool engine::run(const launch &launched, char *text, size_t text_size) {
    report = text;
    report_size = text_size;
    work = &launched;
    random_state = launched.seed;
    count = launched.block[0] * launched.block[1] * launched.block[2];
    grow(count);
    shared_array(nullptr, launched.shared_size);

    const uint64_t blocks = (uint64_t)launched.grid[0] * launched.grid[1] * launched.grid[2];
    uint64_t next = random() % blocks, stride = random() % blocks + 1;
    while (greatest_common_divisor(stride, blocks) != 1) stride++;
    for (uint64_t i = 0; i < blocks && !failed; i++) {
        block_index[0] = (unsigned)(next % launched.grid[0]);
        block_index[1] = (unsigned)(next / launched.grid[0] % launched.grid[1]);
        block_index[2] = (unsigned)(next / launched.grid[0] / launched.grid[1]);
        next = (next + stride % blocks) % blocks;
        sees_ahead = !work->ahead;
        if (!sees_ahead) work->show_ahead(work->ahead, false);
        begin_block();
        running = nullptr;
        go_on();
        see_ahead();
    }
    shared.clear();
    return !failed;
}

} // namespace simulated
