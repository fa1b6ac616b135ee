/*
 * driver.h: the simulated driver, under whichever vendor's names: devices, memory, streams, events and graphs.
 * simcuda.cpp and simhip.cpp are the entry points over it.
 *
 * Nothing runs when it is submitted. Work is a graph of items, each after the last of its stream, the events that the
 * stream waits for, and what the default stream orders; an item runs when somebody waits for it, and now and then one
 * that nobody waits for yet, drawn from the seed. So a dependency that is missing shows as data that are not there.
 * Device memory starts as NaNs, and AddressSanitizer forbids it to the host while nothing runs.
 *
 * Read from the environment (once unless said otherwise):
 *   EVO_SIMULATED_ARCH     chips, separated by commas, one device each; a driver takes those of its vendor
 *   EVO_SIMULATED_SEED     of every order that is not fixed, a number; "random": from the clock, and printed
 *   EVO_SIMULATED_MEMORY   bytes that each device has
 *   EVO_SIMULATED_VERSION  what the driver says its version is, in its own counting
 *   EVO_SIMULATED_SUFFIX   which simulated_<chip><suffix>.so beside this library have the kernels
 *   EVO_SIMULATED_FAIL     (at any time) "cuMemAlloc:3,cuLaunchKernel:1:719": the third call from now on of an entry point
 *                          fails, with this code or else 2 (out of memory) or 719 (launch failed); "*:7": the seventh
 *                          call of any; "*:7:719:lost": so do all after it, until the text is another
 */
#ifndef EVO_TESTS_SIMULATED_DRIVER_H
#define EVO_TESTS_SIMULATED_DRIVER_H

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "chip.h"

namespace simulated {

/** Both vendors number their errors alike. */
enum status : int {
    success = 0,
    invalid_value = 1,
    out_of_memory = 2,
    not_initialized = 3,
    no_device = 100,
    invalid_device = 101,
    invalid_image = 200,
    invalid_context = 201,
    no_binary_for_gpu = 209,
    invalid_handle = 400,
    illegal_state = 401,
    not_found = 500,
    not_ready = 600,
    launch_out_of_resources = 701,
    launch_failed = 719,
    capture_unsupported = 900,
    capture_invalidated = 901,
    capture_merge = 902,
    capture_unmatched = 903,
    capture_unjoined = 904,
    capture_isolation = 905,
    capture_implicit = 906,
    captured_event = 907
};

/** The vendor's name of an error and its words for it; nullptr if it has none. */
struct error_text {
    status code;
    const char *cuda_name, *hip_name, *words;
};
const error_text *find_error(int code);

/** What a device of an architecture is like. */
struct facts {
    const char *arch;
    const char *full_name; /* as the driver tells it: "gfx942:sramecc+:xnack-" */
    const char *chip;      /* whose kernels it runs: the <chip> of simulated_<chip>.so */
    int major, minor, compute_units, wave_size;
    size_t shared_default, shared_optin; /* bytes a block may use, without and with being asked */
    unsigned max_threads, max_grid_x, max_grid_yz;
};

/**
 * What a stream's kernels that may start early cannot rely on: all that was written since `before`, the memory ahead of the
 * last kernel that was launched without this. Other work ends such a chain, and so does a host that waits.
 */
struct early_chain {
    bool open = false;
    std::map<uintptr_t, std::vector<unsigned char>> before;
    std::vector<std::pair<unsigned char *, std::vector<unsigned char>>>
        hidden; /* where, and what is there when not shown */
};

/** A piece of work in stream order. */
struct item {
    std::function<void()> work;
    std::vector<std::shared_ptr<item>> after;
    bool done = false;
};
typedef std::shared_ptr<item> item_ptr;

struct device;
struct stream;

/** What a stream, and those that join it, record. */
struct capture {
    struct node {
        std::function<void()> work;
        std::vector<size_t> after;
    };
    std::vector<node> nodes;
    std::set<stream *> members;
    stream *origin;
    bool invalid = false, ended = false;
};

struct stream {
    device *owner;
    bool blocking; /* whether it and the default stream wait for each other */
    item_ptr last;
    std::vector<item_ptr> waits;
    std::shared_ptr<capture> recording;
    std::vector<size_t> frontier; /* its last nodes in the recording */
    std::shared_ptr<early_chain> chain{ new early_chain() };
};

struct event {
    device *owner;
    item_ptr recorded;
    std::shared_ptr<double> time; /* milliseconds */
    std::shared_ptr<capture> recording;
    std::vector<size_t> frontier;
};

struct graph {
    std::vector<capture::node> nodes;
};

struct graph_exec {
    device *owner;
    std::vector<capture::node> nodes;
    item_ptr last; /* launches of one graph never overlap */
};

struct function {
    device *owner;
    const kernel *code;
    size_t shared_allowed;
};

struct module {
    device *owner;
    std::map<std::string, std::unique_ptr<function>> functions;
};

struct device {
    const facts *about;
    const simulated::chip *chip;
    size_t memory_size, memory_used;
    int retained;
    stream default_stream;
    std::vector<item_ptr> pending;
    status broken; /* what a kernel that failed left behind; every later call gives it */
};

struct allocation {
    size_t size;
    device *owner;
};

/** What there is in a driver now, for tests that look for what was left behind (simulated_live). */
struct counts {
    size_t objects; /* pieces of memory, streams, events, graphs, launchable graphs */
    size_t modules;
    size_t contexts; /* how often devices are retained */
};

struct vendor {
    const char *name;         /* "cuda" */
    const char *default_arch; /* the device if the environment names none */
    const char *prefix;       /* of its architectures: "sm_" */
};

class driver {
  public:
    explicit driver(const vendor &brand);
    ~driver();

    std::mutex lock; /* held by every entry point, and while work runs */
    std::vector<std::unique_ptr<device>> devices;

    /** Whether the environment wants this call to fail, and how. */
    status injected(const char *entry_point);
    /** The entry point that failed so since the text is what it is, without the suffix of its version; "" if none has. */
    std::string injected_last;
    bool injected_ever = false;
    counts live() const;
    /** The value of EVO_SIMULATED_VERSION, or the one given. */
    static int version(int otherwise);

    status retain(device &d);
    status release(device &d);

    status module_load(device &d, const void *image, module **made);
    status module_unload(module *unloaded);
    status function_get(module *loaded, const char *name, function **found);
    status function_allow_shared(function *f, int bytes);
    status launch(device &d, const function *f, const unsigned grid[3], const unsigned block[3], size_t shared,
                  stream *in, const void *params, size_t params_size, bool early = false);

    status memory_alloc(device &d, size_t bytes, void **memory);
    status memory_free(void *memory);
    status memory_copy(device &d, void *target, const void *source, size_t bytes, stream *in);
    status memory_fill(device &d, void *target, int value, size_t bytes, stream *in);

    status stream_create(device &d, bool blocking, stream **made);
    status stream_destroy(stream *destroyed);
    status stream_synchronize(device &d, stream *waited);
    status stream_wait_event(device &d, stream *in, event *waited);
    status stream_capturing(device &d, stream *asked, int *state);

    status event_create(device &d, event **made);
    status event_destroy(event *destroyed);
    status event_record(device &d, event *recorded, stream *in);
    status event_synchronize(event *waited);
    status event_elapsed(event *start, event *stop, float *milliseconds);

    status capture_begin(device &d, stream *recorded);
    status capture_end(device &d, stream *recorded, graph **made);
    status graph_instantiate(device &d, graph *described, graph_exec **made);
    status graph_launch(device &d, graph_exec *launched, stream *in);
    status graph_destroy(graph *destroyed);
    status graph_exec_destroy(graph_exec *destroyed);

  private:
    enum class place {
        host,
        device,
        invalid
    };

    const vendor brand;
    /** What an event gives whose last record is in a capture: CUDA's driver 580 forgets why once that has ended; AMD's is not known. */
    status unrecorded(const event &recorded) const;
    uint64_t seed, random_state;
    std::map<uintptr_t, allocation> allocations;
    std::map<uintptr_t, size_t> freed; /* ranges that were device memory and are nobody's now */
    std::deque<uintptr_t> withheld;    /* their addresses, the oldest first */
    size_t withheld_size = 0;
    std::set<module *> modules;
    std::set<const function *> functions;
    std::set<stream *> streams;
    std::set<event *> events;
    std::set<graph *> graphs;
    std::set<graph_exec *> graph_execs;
    std::string
        failures; /* the last seen text of EVO_SIMULATED_FAIL, and how often each entry point was called since */
    std::map<std::string, int> calls;
    int all_calls = 0;
    status lost = success; /* what every call gives since one failed for good */

    uint64_t random();
    void read_seed();
    void add_device(const std::string &arch);
    place find(const void *memory, size_t bytes) const;
    void forget(uintptr_t address);
    void open_chain(device &d, early_chain &chain) const;
    void find_hidden(early_chain &chain) const;
    void end_chains(device &d) const;
    static std::function<void()> end_chain(stream *in, std::function<void()> work);

    status resolve(device &d, stream *&in);
    status submit(device &d, stream *in, std::function<void()> work);
    status order(stream *in, std::vector<item_ptr> &after);
    item_ptr enqueue(device &d, std::vector<item_ptr> after, std::function<void()> work);
    void run(device &d, const item_ptr &wanted);
    void run_all(device &d);
    void run_other(device &d);
    static void execute(item &i);
    void open_memory(bool open);
    static void invalidate(stream &s);
    void leave_capture(stream &s);
};

/** The drivers' table of chips; nullptr if there is none of this name. */
const facts *find_facts(const std::string &arch);
/** Loads the kernels of a chip. Ends the program, with the reason, if they are not there. */
const chip *load_chip(const std::string &name);

} // namespace simulated

#endif
