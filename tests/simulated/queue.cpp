/* queue.cpp: streams, events and graphs of the simulated driver; see driver.h. */
#include "driver.h"

#include <algorithm>
#include <cstring>
#include <ctime>

namespace simulated {

/* ---- work ---- */

/* How much work a device holds back before a submission has to wait for some of it, as real queues have an end too. */
constexpr size_t queue_length = 1000;

void driver::execute(item &i) {
    i.work();
    i.work = nullptr;
    i.after.clear();
    i.done = true;
}

item_ptr driver::enqueue(device &d, std::vector<item_ptr> after, std::function<void()> work) {
    after.erase(std::remove_if(after.begin(), after.end(), [](const item_ptr &i) { return !i || i->done; }),
                after.end());
    item_ptr made(new item{ std::move(work), std::move(after), false });
    d.pending.push_back(made);
    if (d.pending.size() > queue_length) run(d, d.pending.front());
    return made;
}

/* Something that nobody waits for, if it can run. */
void driver::run_other(device &d) {
    const item_ptr other = d.pending[random() % d.pending.size()];
    if (other->done) return;
    for (const item_ptr &i : other->after)
        if (!i->done) return;
    execute(*other);
}

/* Runs an item and all that it is after. What several are after comes in an order drawn. */
void driver::run(device &d, const item_ptr &wanted) {
    if (!wanted || wanted->done) return;
    std::vector<item_ptr> path = { wanted };
    open_memory(true);
    while (!path.empty()) {
        const item_ptr top = path.back();
        std::vector<item_ptr> &after = top->after;
        after.erase(std::remove_if(after.begin(), after.end(), [](const item_ptr &i) { return i->done; }), after.end());
        if (!top->done && !after.empty()) {
            path.push_back(after[random() % after.size()]);
            continue;
        }
        path.pop_back();
        if (!top->done) execute(*top);
        if (random() % 4 == 0) run_other(d);
    }
    open_memory(false);
    auto &pending = d.pending;
    pending.erase(std::remove_if(pending.begin(), pending.end(), [](const item_ptr &i) { return i->done; }),
                  pending.end());
}

void driver::run_all(device &d) {
    while (!d.pending.empty()) run(d, d.pending[random() % d.pending.size()]);
}

/* ---- streams ---- */

/* The stream that a handle names: NULL is the default stream of the device. */
status driver::resolve(device &d, stream *&in) {
    if (!in) in = &d.default_stream;
    if (in == &d.default_stream) return d.broken;
    return !streams.count(in) || in->owner != &d ? invalid_handle : d.broken;
}

/* What work in a stream must come after, or why the stream cannot take it. */
status driver::order(stream *in, std::vector<item_ptr> &after) {
    device &d = *in->owner;
    after = in->waits;
    after.push_back(in->last);
    if (in != &d.default_stream) {
        if (in->blocking) after.push_back(d.default_stream.last);
        return success;
    }
    for (stream *other : streams) {
        if (other->owner != &d || !other->blocking) continue;
        if (other->recording) {
            other->recording->invalid = true;
            return capture_implicit;
        }
        after.push_back(other->last);
    }
    return success;
}

status driver::submit(device &d, stream *in, std::function<void()> work) {
    const status known = resolve(d, in);
    if (known != success) return known;
    if (in->recording) {
        if (in->recording->invalid) return capture_invalidated;
        in->recording->nodes.push_back({ std::move(work), in->frontier });
        in->frontier = { in->recording->nodes.size() - 1 };
        return success;
    }
    std::vector<item_ptr> after;
    const status ordered = order(in, after);
    if (ordered != success) return ordered;
    in->last = enqueue(d, std::move(after), std::move(work));
    in->waits.clear();
    return success;
}

status driver::stream_create(device &d, bool blocking, stream **made) {
    if (!made) return invalid_value;
    *made = new stream();
    (*made)->owner = &d;
    (*made)->blocking = blocking;
    streams.insert(*made);
    return d.broken;
}

void driver::leave_capture(stream &s) {
    if (s.recording) s.recording->members.erase(&s);
    s.recording.reset();
    s.frontier.clear();
}

/* Its work is still done, at some time. */
status driver::stream_destroy(stream *destroyed) {
    if (!streams.erase(destroyed)) return invalid_handle;
    if (destroyed->recording) destroyed->recording->invalid = true;
    leave_capture(*destroyed);
    delete destroyed;
    return success;
}

void driver::invalidate(stream &s) {
    s.recording->invalid = true;
}

status driver::stream_synchronize(device &d, stream *waited) {
    std::vector<item_ptr> after;
    const status known = resolve(d, waited);
    if (known != success) return known;
    if (waited->recording) {
        invalidate(*waited);
        return capture_unsupported;
    }
    const status ordered = order(waited, after);
    if (ordered != success) return ordered;
    for (const item_ptr &i : after) run(d, i);
    end_chains(d);
    return d.broken;
}

/* The stream's next work comes after the event; a stream that waits for one in a recording joins the recording. */
status driver::stream_wait_event(device &d, stream *in, event *waited) {
    const status known = resolve(d, in);
    if (known != success) return known;
    if (!events.count(waited)) return invalid_handle;
    if (!waited->recording) {
        if (in->recording && waited->recorded) {
            invalidate(*in);
            return capture_isolation;
        }
        in->waits.push_back(waited->recorded);
        return success;
    }
    if (waited->recording->ended) return unrecorded(*waited);
    if (in == &d.default_stream) return capture_implicit;
    if (in->recording && in->recording != waited->recording) {
        invalidate(*in);
        waited->recording->invalid = true;
        return capture_merge;
    }
    in->recording = waited->recording;
    in->recording->members.insert(in);
    in->frontier.insert(in->frontier.end(), waited->frontier.begin(), waited->frontier.end());
    return success;
}

status driver::stream_capturing(device &d, stream *asked, int *state) {
    const status known = resolve(d, asked);
    if (known != success) return known;
    if (!state) return invalid_value;
    *state = !asked->recording ? 0 : asked->recording->invalid ? 2 : 1;
    return success;
}

/* ---- events ---- */

static double now() {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

status driver::event_create(device &d, event **made) {
    if (!made) return invalid_value;
    *made = new event();
    (*made)->owner = &d;
    events.insert(*made);
    return d.broken;
}

status driver::event_destroy(event *destroyed) {
    if (!events.erase(destroyed)) return invalid_handle;
    delete destroyed;
    return success;
}

status driver::event_record(device &d, event *recorded, stream *in) {
    const status known = resolve(d, in);
    if (known != success) return known;
    if (!events.count(recorded) || recorded->owner != in->owner) return invalid_handle;
    recorded->recording = in->recording;
    recorded->frontier = in->frontier;
    if (in->recording) return in->recording->invalid ? capture_invalidated : success;
    std::shared_ptr<double> time(new double(0));
    const status submitted = submit(d, in, [time]() { *time = now(); });
    if (submitted != success) return submitted;
    recorded->time = time;
    recorded->recorded = in->last;
    return success;
}

status driver::unrecorded(const event &recorded) const {
    return recorded.recording->ended && strcmp(brand.name, "cuda") == 0 ? invalid_value : captured_event;
}

status driver::event_synchronize(event *waited) {
    if (!events.count(waited)) return invalid_handle;
    if (waited->recording) return unrecorded(*waited);
    run(*waited->owner, waited->recorded);
    end_chains(*waited->owner);
    return waited->owner->broken;
}

status driver::event_elapsed(event *start, event *stop, float *milliseconds) {
    if (!events.count(start) || !events.count(stop)) return invalid_handle;
    for (const event *e : { start, stop })
        if (e->recording) return unrecorded(*e);
    if (!start->recorded || !stop->recorded) return invalid_handle;
    if (!milliseconds) return invalid_value;
    if (!start->recorded->done || !stop->recorded->done) return not_ready;
    *milliseconds = (float)(*stop->time - *start->time);
    return success;
}

/* ---- graphs ---- */

status driver::capture_begin(device &d, stream *recorded) {
    const status known = resolve(d, recorded);
    if (known != success) return known;
    if (recorded == &d.default_stream) return capture_unsupported;
    if (recorded->recording) return illegal_state;
    recorded->recording.reset(new capture());
    recorded->recording->origin = recorded;
    recorded->recording->members.insert(recorded);
    return success;
}

/* Whether every node comes before one of the frontier: no stream that joined is left with work of its own. */
static bool joined(const std::vector<capture::node> &nodes, const std::vector<size_t> &frontier) {
    std::vector<bool> reached(nodes.size(), false);
    for (size_t last : frontier) reached[last] = true;
    for (size_t i = nodes.size(); i-- > 0;)
        for (size_t before : nodes[i].after)
            if (reached[i]) reached[before] = true;
    return std::find(reached.begin(), reached.end(), false) == reached.end();
}

status driver::capture_end(device &d, stream *recorded, graph **made) {
    const status known = resolve(d, recorded);
    if (known != success) return known;
    if (!made) return invalid_value;
    const std::shared_ptr<capture> recording = recorded->recording;
    if (!recording) return illegal_state;
    *made = nullptr;
    if (recording->origin != recorded) {
        recording->invalid = true;
        return capture_unmatched;
    }
    const bool whole = joined(recording->nodes, recorded->frontier);
    recording->ended = true;
    while (!recording->members.empty()) leave_capture(**recording->members.begin());
    if (recording->invalid) return capture_invalidated;
    if (!whole) return capture_unjoined;
    *made = new graph{ recording->nodes };
    graphs.insert(*made);
    return success;
}

status driver::graph_instantiate(device &d, graph *described, graph_exec **made) {
    if (!graphs.count(described) || !made) return invalid_value;
    *made = new graph_exec{ &d, described->nodes, nullptr };
    graph_execs.insert(*made);
    return d.broken;
}

/* The nodes come after what their stream has, and after the graph's last launch; the stream goes on after all of them. */
status driver::graph_launch(device &d, graph_exec *launched, stream *in) {
    const status known = resolve(d, in);
    if (known != success) return known;
    if (!graph_execs.count(launched) || launched->owner != &d) return invalid_value;
    if (in->recording) {
        invalidate(*in);
        return capture_unsupported;
    }
    std::vector<item_ptr> before, made;
    const status ordered = order(in, before);
    if (ordered != success) return ordered;
    before.push_back(launched->last);
    for (const capture::node &node : launched->nodes) {
        std::vector<item_ptr> after = before;
        for (size_t i : node.after) after.push_back(made[i]);
        made.push_back(enqueue(d, std::move(after), node.work));
    }
    made.insert(made.end(), before.begin(), before.end());
    in->last = launched->last = enqueue(d, std::move(made), []() {});
    in->waits.clear();
    return success;
}

status driver::graph_destroy(graph *destroyed) {
    if (!graphs.erase(destroyed)) return invalid_value;
    delete destroyed;
    return success;
}

status driver::graph_exec_destroy(graph_exec *destroyed) {
    if (!graph_execs.erase(destroyed)) return invalid_value;
    delete destroyed;
    return success;
}

} // namespace simulated
