/* driver.cpp: devices, memory and kernels of the simulated driver; see driver.h. */
#include "driver.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "sanitizer.h"

namespace simulated {

constexpr int unwritten = 0xff; /* NaN in every floating-point type */
constexpr size_t max_params = 4096;
constexpr size_t withheld_most = (size_t)64 << 20; /* bytes that were freed and not yet given back */

driver::driver(const vendor &brand_) : brand(brand_) {
    read_seed();
    const char *named = getenv("EVO_SIMULATED_ARCH");
    std::string list = std::string(named ? named : brand.default_arch) + ",";
    for (size_t end; (end = list.find(',')) != std::string::npos; list.erase(0, end + 1)) {
        const std::string arch = list.substr(0, end);
        if (arch.compare(0, strlen(brand.prefix), brand.prefix) == 0) add_device(arch);
    }
}

/*
 * Device memory that is still there is the caller's leak, which the leak detector then sees; but not where calls were made
 * to fail, that of freeing it among them: such tests look at simulated_live.
 */
driver::~driver() {
    if (injected_ever) {
        for (const std::unique_ptr<device> &d : devices) {
            d->retained = 1;
            d->pending.clear(); /* nobody waits for it any more */
            release(*d);
        }
        while (!graphs.empty()) graph_destroy(*graphs.begin());
    }
    for (const uintptr_t address : withheld) {
        allow((void *)address, freed[address]);
        free((void *)address);
    }
}

void driver::read_seed() {
    const char *given = getenv("EVO_SIMULATED_SEED");
    seed = given ? strtoull(given, nullptr, 0) : 1;
    if (given && strcmp(given, "random") == 0) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        seed = (uint64_t)now.tv_nsec;
        fprintf(stderr, "simulated %s: EVO_SIMULATED_SEED=%llu\n", brand.name, (unsigned long long)seed);
    }
    random_state = seed;
}

void driver::add_device(const std::string &arch) {
    const facts *about = find_facts(arch);
    if (!about) {
        fprintf(stderr, "simulated %s: EVO_SIMULATED_ARCH names %s, which is not simulated\n", brand.name,
                arch.c_str());
        return;
    }
    const char *memory = getenv("EVO_SIMULATED_MEMORY");
    std::unique_ptr<device> made(new device());
    made->about = about;
    made->chip = load_chip(about->chip);
    made->memory_size = memory ? strtoull(memory, nullptr, 0) : (size_t)4 << 30;
    made->default_stream.owner = made.get();
    made->default_stream.blocking = true;
    devices.push_back(std::move(made));
}

/* xorshift64* */
uint64_t driver::random() {
    random_state += random_state == 0;
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u;
}

int driver::version(int otherwise) {
    const char *given = getenv("EVO_SIMULATED_VERSION");
    return given ? atoi(given) : otherwise;
}

/* Entry points are named without the suffix of their version: "cuMemAlloc" is cuMemAlloc_v2 too. */
status driver::injected(const char *entry_point) {
    const char *wanted = getenv("EVO_SIMULATED_FAIL");
    if (failures != (wanted ? wanted : "")) {
        failures = wanted ? wanted : "";
        calls.clear();
        all_calls = 0;
        lost = success;
        injected_last.clear();
    }
    if (failures.empty() || lost != success) return lost;
    std::string name = entry_point;
    if (name.size() > 3 && name.compare(name.size() - 3, 2, "_v") == 0) name.erase(name.size() - 3);
    const int call = ++calls[name];
    all_calls++;
    for (const char *at = failures.c_str(); at; at = strchr(at, ',') ? strchr(at, ',') + 1 : nullptr) {
        char *end;
        const bool any = strncmp(at, "*:", 2) == 0;
        const size_t length = any ? 1 : name.size();
        if (!any && (strncmp(at, name.c_str(), length) != 0 || at[length] != ':')) continue;
        if (strtol(at + length + 1, &end, 10) != (any ? all_calls : call)) continue;
        const bool memory = name.find("Alloc") != std::string::npos || name.find("Malloc") != std::string::npos;
        injected_last = name;
        injected_ever = true;
        status code = memory ? out_of_memory : launch_failed;
        if (*end == ':') code = (status)strtol(end + 1, &end, 10);
        if (strncmp(end, ":lost", 5) == 0) lost = code;
        return code;
    }
    return success;
}

counts driver::live() const {
    counts now = { allocations.size() + streams.size() + events.size() + graphs.size() + graph_execs.size(),
                   modules.size(), 0 };
    for (const std::unique_ptr<device> &d : devices) now.contexts += (size_t)d->retained;
    return now;
}

status driver::retain(device &d) {
    d.retained++;
    return success;
}

/* Deletes those of a set that belong to a device. */
template <class T> static void delete_owned(std::set<T *> &all, const device &owner) {
    for (auto at = all.begin(); at != all.end();) {
        T *const each = *at;
        ++at;
        if (each->owner != &owner) continue;
        all.erase(each);
        delete each;
    }
}

/* The last release takes everything with it that was made in the context. */
status driver::release(device &d) {
    if (d.retained == 0) return invalid_context;
    if (--d.retained > 0) return success;
    run_all(d);
    for (auto at = allocations.begin(); at != allocations.end();) {
        const uintptr_t address = at->first;
        const bool owned = at->second.owner == &d;
        ++at;
        if (owned) forget(address);
    }
    for (auto at = functions.begin(); at != functions.end();)
        at = (*at)->owner == &d ? functions.erase(at) : std::next(at);
    delete_owned(modules, d);
    delete_owned(streams, d);
    delete_owned(events, d);
    delete_owned(graph_execs, d);
    return success;
}

/* ---- kernels ---- */

status driver::module_load(device &d, const void *image, module **made) {
    if (!image || !made) return invalid_value;
    *made = new module{ &d, {} };
    modules.insert(*made);
    return d.broken;
}

status driver::module_unload(module *unloaded) {
    if (!modules.erase(unloaded)) return invalid_handle;
    for (auto &entry : unloaded->functions) functions.erase(entry.second.get());
    delete unloaded;
    return success;
}

/* Whatever image a module was made of, the chip has the kernels; they are found by name. */
status driver::function_get(module *loaded, const char *name, function **found) {
    if (!modules.count(loaded)) return invalid_handle;
    if (!name || !found) return invalid_value;
    for (const kernel *k = loaded->owner->chip->kernels; k; k = k->next) {
        if (strcmp(k->name, name) != 0) continue;
        std::unique_ptr<function> &f = loaded->functions[name];
        if (!f) f.reset(new function{ loaded->owner, k, loaded->owner->about->shared_default });
        functions.insert(f.get());
        *found = f.get();
        return success;
    }
    return not_found;
}

status driver::function_allow_shared(function *f, int bytes) {
    if (!functions.count(f)) return invalid_handle;
    if (bytes < 0 || (size_t)bytes > f->owner->about->shared_optin) return invalid_value;
    if ((size_t)bytes > f->shared_allowed) f->shared_allowed = (size_t)bytes;
    return success;
}

static status check_launch(const facts &chip, const function &f, const unsigned grid[3], const unsigned block[3],
                           size_t shared, size_t params_size) {
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    for (int i = 0; i < 3; i++)
        if (grid[i] == 0 || grid[i] > (i ? chip.max_grid_yz : chip.max_grid_x)) return invalid_value;
    if (threads == 0 || threads > chip.max_threads || shared > f.shared_allowed) return invalid_value;
    if (params_size != f.code->params_size || params_size > max_params) return invalid_value;
    return threads > f.code->max_threads ? launch_out_of_resources : success;
}

/* ---- kernels that start before the ones ahead have ended ---- */

void driver::open_chain(device &d, early_chain &chain) const {
    chain.open = true;
    chain.before.clear();
    for (const auto &entry : allocations)
        if (entry.second.owner == &d)
            chain.before[entry.first].assign((unsigned char *)entry.first,
                                             (unsigned char *)entry.first + entry.second.size);
}

constexpr size_t piece = 4096;

/* Where memory is not what it was before the chain, in pieces. */
void driver::find_hidden(early_chain &chain) const {
    chain.hidden.clear();
    for (const auto &entry : chain.before) {
        const auto still = allocations.find(entry.first);
        if (still == allocations.end() || still->second.size != entry.second.size()) continue;
        for (size_t at = 0; at < entry.second.size(); at += piece) {
            const size_t bytes = entry.second.size() - at < piece ? entry.second.size() - at : piece;
            const unsigned char *const old = entry.second.data() + at;
            unsigned char *const now = (unsigned char *)entry.first + at;
            if (memcmp(old, now, bytes) != 0)
                chain.hidden.emplace_back(now, std::vector<unsigned char>(old, old + bytes));
        }
    }
}

static void show_ahead(void *ahead, bool) {
    unsigned char kept[piece];
    for (auto &range : static_cast<early_chain *>(ahead)->hidden) {
        const size_t bytes = range.second.size();
        memcpy(kept, range.first, bytes);
        memcpy(range.first, range.second.data(), bytes);
        memcpy(range.second.data(), kept, bytes);
    }
}

/* The host has waited, and may have told other streams. */
void driver::end_chains(device &d) const {
    d.default_stream.chain->open = false;
    for (const stream *s : streams)
        if (s->owner == &d) s->chain->open = false;
}

std::function<void()> driver::end_chain(stream *in, std::function<void()> work) {
    const std::shared_ptr<early_chain> chain = in->chain;
    return [chain, work]() {
        chain->open = false;
        work();
    };
}

status driver::launch(device &d, const function *f, const unsigned grid[3], const unsigned block[3], size_t shared,
                      stream *in, const void *params, size_t params_size, bool early) {
    if (!functions.count(f) || f->owner != &d) return invalid_handle;
    if (!params_size) params_size = f->code->params_size; /* launched by pointers */
    const status refused = params ? check_launch(*d.about, *f, grid, block, shared, params_size) : invalid_value;
    if (refused != success) return refused;

    struct alignas(64) bytes { /* as tensor maps want */
        unsigned char data[max_params];
    };
    std::shared_ptr<bytes> copy(new bytes());
    memcpy(copy->data, params, params_size);
    simulated::launch work = { f->code,
                               { grid[0], grid[1], grid[2] },
                               { block[0], block[1], block[2] },
                               shared,
                               f->shared_allowed > d.about->shared_default ? f->shared_allowed
                                                                           : d.about->shared_default,
                               copy->data,
                               0,
                               show_ahead,
                               nullptr };
    const status known = resolve(d, in);
    if (known != success) return known;
    /* A recorded launch counts as one that waits, as does one after other streams' work. */
    const std::shared_ptr<early_chain> chain = in->recording || !in->waits.empty() ? nullptr : in->chain;
    if (!chain) in->chain.reset(new early_chain());
    return submit(d, in, [this, &d, work, copy, chain, early]() mutable {
        char report[1024] = "";
        if (d.broken != success) return;
        work.seed = random();
        if (chain && d.about->major >= 9) {
            if (!early) open_chain(d, *chain);
            if (early && chain->open) find_hidden(*chain);
            work.ahead = early && chain->open ? chain.get() : nullptr;
        }
        if (d.chip->run(work, report, sizeof report)) return;
        fprintf(stderr, "simulated %s: %s (EVO_SIMULATED_SEED=%llu)\n", d.about->arch, report,
                (unsigned long long)seed);
        d.broken = launch_failed;
    });
}

/* ---- memory ---- */

/* Whether a range is device memory, lies outside of all of it, or neither: partly in, or in what was freed. */
driver::place driver::find(const void *memory, size_t bytes) const {
    const uintptr_t begin = (uintptr_t)memory;
    auto next = allocations.upper_bound(begin);
    if (next != allocations.begin()) {
        const auto &previous = *std::prev(next);
        if (begin - previous.first < previous.second.size)
            return bytes <= previous.second.size - (begin - previous.first) ? place::device : place::invalid;
    }
    if (next != allocations.end() && next->first - begin < bytes) return place::invalid;
    auto gone = freed.upper_bound(begin);
    if (gone != freed.begin() && begin - std::prev(gone)->first < std::prev(gone)->second) return place::invalid;
    return memory ? place::host : place::invalid;
}

status driver::memory_alloc(device &d, size_t bytes, void **memory) {
    if (!memory || bytes == 0) return invalid_value;
    if (d.broken != success) return d.broken;
    void *made = nullptr;
    if (bytes > d.memory_size - d.memory_used || posix_memalign(&made, 256, bytes) != 0) return out_of_memory;
    memset(made, unwritten, bytes);
    forbid(made, bytes);
    allocations[(uintptr_t)made] = { bytes, &d };
    d.memory_used += bytes;
    *memory = made;
    return success;
}

/* Only later does the host's allocator get the memory, and may give its addresses to the host. */
void driver::forget(uintptr_t address) {
    const auto found = allocations.find(address);
    const size_t size = found->second.size;
    found->second.owner->memory_used -= size;
    allocations.erase(found);
    allow((void *)address, size);
    memset((void *)address, unwritten, size);
    forbid((void *)address, size);
    freed[address] = size;
    withheld.push_back(address);
    withheld_size += size;
    while (withheld_size > withheld_most) {
        const uintptr_t oldest = withheld.front();
        withheld.pop_front();
        withheld_size -= freed[oldest];
        allow((void *)oldest, freed[oldest]);
        freed.erase(oldest);
        free((void *)oldest);
    }
}

/* Waits for all work of the device, as the real ones do. */
status driver::memory_free(void *memory) {
    const auto found = allocations.find((uintptr_t)memory);
    if (found == allocations.end()) return invalid_value;
    device &owner = *found->second.owner;
    run_all(owner);
    forget((uintptr_t)memory);
    return owner.broken;
}

status driver::memory_copy(device &d, void *target, const void *source, size_t bytes, stream *in) {
    if (find(target, bytes) == place::invalid || find(source, bytes) == place::invalid) return invalid_value;
    const status known = resolve(d, in);
    if (known != success) return known;
    return submit(d, in, end_chain(in, [=]() { memmove(target, source, bytes); }));
}

status driver::memory_fill(device &d, void *target, int value, size_t bytes, stream *in) {
    if (find(target, bytes) != place::device) return invalid_value;
    const status known = resolve(d, in);
    if (known != success) return known;
    return submit(d, in, end_chain(in, [=]() { memset(target, value, bytes); }));
}

/* While no work runs, AddressSanitizer stops a host that reads or writes device memory. */
void driver::open_memory(bool open) {
    if (!sanitized()) return;
    for (const auto &entry : allocations)
        if (open)
            allow((void *)entry.first, entry.second.size);
        else
            forbid((void *)entry.first, entry.second.size);
}

} // namespace simulated
