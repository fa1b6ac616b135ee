/*
 * bench_time.c: how `evo bench` times. An execution is part of a replay: one launch of a graph that holds as many
 * executions as fit a millisecond, at most a hundred, each on the next set of inputs (on the CPU the calls themselves,
 * in a loop). Replays are timed by events. What is compared takes turns: a few milliseconds each, until every one has
 * been measured for --min-time.
 *
 *   sustained   the replays of a turn follow each other without a gap, events between them
 *   --burst     ten milliseconds of rest before each replay
 *   --cold      one execution a replay, after a buffer larger than the caches was written
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MOST_EXECUTIONS = 100, /* of a graph */
    MOST_REPLAYS = 32,     /* of a turn */
    MOST_GRAPHS = 100,
    TRIAL_EXECUTIONS = 20,
    LEAST_RUNS = 5,
    MOST_RUNS = 4096
};

static const double replay_ms = 1.0, turn_ms = 10.0, rest_ms = 10.0;

/* Something to time: what one execution does, and what has been measured of it. */
struct subject {
    bench_work work;
    void *user;
    evo_graph graphs[MOST_GRAPHS];
    int graph_count, next_graph;
    int executions;  /* of a replay */
    double estimate; /* milliseconds of one execution */
    double *runs;
    int run_count;
    double measured; /* milliseconds in all */
};

/* What all subjects share. */
struct clock {
    const struct bench_device *device;
    const struct bench_settings *settings;
    evo_event events[MOST_REPLAYS + 1];
    void *scratch; /* what is written before a replay of --cold, and of --burst to bridge its launch */
    size_t scratch_size;
};

static bool make_clock(struct clock *c, struct io_error *error) {
    bool good = true;
    for (int i = 0; i <= MOST_REPLAYS && good; i++) {
        good = bench_good(evo_event_create(c->device->context, &c->events[i]), error);
    }
    c->scratch_size = c->settings->cold || c->settings->burst ? (size_t)c->settings->cache : 0;
    return good && bench_good(evo_memory_alloc(c->device->context, c->scratch_size, &c->scratch), error);
}

static void free_clock(struct clock *c) {
    for (int i = 0; i <= MOST_REPLAYS; i++) {
        if (c->events[i] != NULL) {
            (void)evo_event_destroy(c->device->context, c->events[i]);
        }
    }
    (void)evo_memory_free(c->device->context, c->scratch);
}

static bool record(struct clock *c, int event, struct io_error *error) {
    return bench_good(evo_event_record(c->device->context, c->events[event], c->device->stream), error);
}

static bool wait_for_all(struct clock *c, struct io_error *error) {
    return bench_good(evo_stream_synchronize(c->device->context, c->device->stream), error);
}

static bool elapsed(struct clock *c, int event, double *milliseconds, struct io_error *error) {
    return bench_good(evo_event_elapsed(c->device->context, c->events[event], c->events[event + 1], milliseconds),
                      error);
}

/* What comes before a timed replay. */
static bool prepare_state(struct clock *c, struct io_error *error) {
    if (c->settings->burst) {
        const struct timespec rest = { 0, (long)(rest_ms * 1e6) };
        (void)nanosleep(&rest, NULL);
    }
    /* After the rest the device is kept busy while the host still launches, so that the gap is not timed. */
    if (!c->settings->cold && (!c->settings->burst || c->device->cpu)) {
        return true;
    }
    return bench_good(evo_memory_fill(c->device->context, c->scratch, 1, c->scratch_size, c->device->stream), error);
}

static bool execute(struct clock *c, struct subject *s, int count, struct io_error *error) {
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        good = s->work(s->user, c->device->stream, error);
    }
    return good;
}

static bool replay(struct clock *c, struct subject *s, struct io_error *error) {
    if (s->graph_count == 0) {
        return execute(c, s, s->executions, error);
    }
    evo_graph graph = s->graphs[s->next_graph];
    s->next_graph = (s->next_graph + 1) % s->graph_count;
    return bench_good(evo_graph_launch(c->device->context, graph, c->device->stream), error);
}

/* Milliseconds of the second call: the first loads what there is to load. */
static bool time_second(struct clock *c, struct subject *s, evo_graph graph, double *milliseconds,
                        struct io_error *error) {
    bool good = true;
    for (int i = 0; i < 2 && good; i++) {
        good = record(c, 0, error) &&
               (graph == NULL ? execute(c, s, 1, error)
                              : bench_good(evo_graph_launch(c->device->context, graph, c->device->stream), error)) &&
               record(c, 1, error) && wait_for_all(c, error) && elapsed(c, 0, milliseconds, error);
    }
    return good;
}

/* A graph of some executions, each on the next set. */
static bool make_graph(struct clock *c, struct subject *s, int executions, evo_graph *graph, struct io_error *error) {
    if (!bench_good(evo_graph_begin(c->device->context, c->device->stream), error)) {
        return false;
    }
    bool good = execute(c, s, executions, error);
    return bench_good(evo_graph_end(c->device->context, c->device->stream, graph), error) && good;
}

/* How long an execution takes, and so how many a replay holds. What is launched one by one may be slower than a graph. */
static bool estimate(struct clock *c, struct subject *s, bool graphs, struct io_error *error) {
    evo_graph trial = NULL;
    bool good = time_second(c, s, NULL, &s->estimate, error);
    if (good && graphs && !c->settings->cold && s->estimate < replay_ms) {
        good = make_graph(c, s, TRIAL_EXECUTIONS, &trial, error) && time_second(c, s, trial, &s->estimate, error);
        s->estimate /= (double)TRIAL_EXECUTIONS;
        (void)evo_graph_destroy(c->device->context, trial);
    }
    s->estimate = fmax(s->estimate, 1e-4);
    double fit = replay_ms / s->estimate;
    s->executions = c->settings->cold || fit < 1.0 ? 1 : fit < (double)MOST_EXECUTIONS ? (int)fit : MOST_EXECUTIONS;
    return good;
}

/* Graphs that together take every one of `sets` sets. */
static bool make_graphs(struct clock *c, struct subject *s, int sets, struct io_error *error) {
    int count = (sets + s->executions - 1) / s->executions;
    bool good = true;
    for (int i = 0; i < count && i < MOST_GRAPHS && good; i++) {
        evo_graph graph = NULL;
        good = make_graph(c, s, s->executions, &graph, error);
        s->graphs[s->graph_count] = graph;
        s->graph_count += graph != NULL;
    }
    return good;
}

static bool start_subject(struct clock *c, struct subject *s, int sets, struct io_error *error) {
    s->runs = malloc(MOST_RUNS * sizeof *s->runs);
    if (s->runs == NULL) {
        return io_fail(error, "out of memory");
    }
    bool graphs = sets > 0 && !c->device->cpu;
    return estimate(c, s, graphs, error) && (!graphs || make_graphs(c, s, sets, error));
}

static void free_subject(struct clock *c, struct subject *s) {
    for (int i = 0; i < s->graph_count; i++) {
        (void)evo_graph_destroy(c->device->context, s->graphs[i]);
    }
    free(s->runs);
}

static bool is_done(const struct clock *c, const struct subject *s) {
    return s->run_count == MOST_RUNS || (s->run_count >= LEAST_RUNS && s->measured >= c->settings->min_time);
}

/* A few replays; their times are kept if `keep`. */
static bool turn(struct clock *c, struct subject *s, bool keep, double *spent, struct io_error *error) {
    double wanted = turn_ms / (s->estimate * s->executions);
    bool apart = c->settings->cold || c->settings->burst;
    int count = apart || wanted < 1.0 ? 1 : wanted < (double)MOST_REPLAYS ? (int)wanted : MOST_REPLAYS;
    bool good = prepare_state(c, error) && record(c, 0, error);
    for (int i = 0; i < count && good; i++) {
        good = replay(c, s, error) && record(c, i + 1, error);
    }
    good = wait_for_all(c, error) && good;
    for (int i = 0; i < count && good; i++) {
        double milliseconds;
        good = elapsed(c, i, &milliseconds, error);
        *spent += milliseconds;
        if (good && keep && s->run_count < MOST_RUNS) {
            s->runs[s->run_count++] = milliseconds / s->executions;
            s->measured += milliseconds;
        }
    }
    return good;
}

/* Turns of all: a fifth of the time to warm up, then until each has been measured enough. */
static bool race(struct clock *c, struct subject *subjects, int count, struct io_error *error) {
    double warm_up = c->settings->burst ? 0.0 : c->settings->min_time / 5.0, spent = 0.0;
    bool again = true;
    for (bool keep = false; again;) {
        again = false;
        for (int i = 0; i < count; i++) {
            if (keep && is_done(c, &subjects[i])) {
                continue;
            }
            if (!turn(c, &subjects[i], keep, &spent, error)) {
                return false;
            }
            again = true;
        }
        keep = keep || spent >= warm_up * count;
    }
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value at this part of the sorted runs, between two if it falls there. */
static double quantile(const double *runs, int count, double part) {
    double at = part * (count - 1);
    int below = (int)at;
    double above = below + 1 < count ? runs[below + 1] : runs[below];
    return runs[below] + (at - below) * (above - runs[below]);
}

static struct bench_times summary(struct subject *s) {
    qsort(s->runs, (size_t)s->run_count, sizeof *s->runs, by_value);
    return (struct bench_times){
        .median = quantile(s->runs, s->run_count, 0.5),
        .min = s->runs[0],
        .max = s->runs[s->run_count - 1],
        .q1 = quantile(s->runs, s->run_count, 0.25),
        .q3 = quantile(s->runs, s->run_count, 0.75),
        .runs = s->run_count,
        .executions = s->executions,
    };
}

bool bench_time_work(const struct bench_device *device, const struct bench_settings *settings, bench_work work,
                     void *user, struct bench_times *times, struct io_error *error) {
    struct clock c = { .device = device, .settings = settings };
    struct subject s = { .work = work, .user = user };
    bool good = make_clock(&c, error) && start_subject(&c, &s, 0, error);
    s.executions = 1; /* what is no op is called, not recorded */
    good = good && race(&c, &s, 1, error);
    if (good) {
        *times = summary(&s);
    }
    free_subject(&c, &s);
    free_clock(&c);
    return good;
}

/* ---- candidates ---- */

/* A planned kernel with its memory. */
struct planned {
    const struct bench_data *data;
    evo_plan *plan;
    evo_pack *pack;
    void *pack_memory, *workspace;
    size_t workspace_size;
    int next_set;
};

static bool run_planned(void *user, evo_stream stream, struct io_error *error) {
    struct planned *p = user;
    const union case_args *args = &p->data->sets[p->next_set];
    p->next_set = (p->next_set + 1) % p->data->set_count;
    return bench_good(p->data->op->execute(p->plan, p->pack, args, p->workspace, p->workspace_size, stream), error);
}

static bool is_refusal(evo_status status) {
    return status == EVO_ERROR_UNSUPPORTED || status == EVO_ERROR_WORKSPACE_LIMIT || status == EVO_ERROR_SIZE_OVERFLOW;
}

/* Plans, allocates and packs; false only if the benchmark cannot go on. */
static bool prepare(const struct bench_data *data, struct planned *p, struct bench_candidate *candidate,
                    struct io_error *error) {
    evo_context *context = data->device->context;
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    union case_desc desc = data->desc;
    p->data = data;
    *data->op->common(&desc).kernel = candidate->forced;
    evo_status status = data->op->plan_create(context, &desc, &p->plan);
    if (is_refusal(status)) {
        candidate->refused = true;
        (void)bench_good(status, &candidate->error);
        return true;
    }
    if (!bench_good(status, error) || !bench_good(evo_plan_get_info(p->plan, &info), error)) {
        return false;
    }
    (void)strncpy(candidate->kernel, info.kernel, sizeof candidate->kernel - 1);
    candidate->computes = info.compute;
    candidate->workspace_size = p->workspace_size = info.workspace_size;
    candidate->flops = info.flops;
    candidate->bytes = info.bytes;
    return bench_good(evo_memory_alloc(context, info.workspace_size, &p->workspace), error) &&
           bench_good(evo_memory_alloc(context, info.pack_size, &p->pack_memory), error) &&
           bench_good(
               data->op->pack(p->plan, &data->weights, p->pack_memory, info.pack_size, data->device->stream, &p->pack),
               error);
}

static void release(struct planned *p) {
    evo_pack_destroy(p->pack);
    evo_plan_destroy(p->plan);
    (void)evo_memory_free(p->data->device->context, p->workspace);
    (void)evo_memory_free(p->data->device->context, p->pack_memory);
}

/* Prepares every candidate; `subjects` gets those that can run. */
static bool prepare_all(struct clock *c, const struct bench_data *data, struct bench_candidate *candidates, int count,
                        struct planned *planned, struct subject *subjects, struct io_error *error) {
    int runnable = 0;
    for (int i = 0; i < count; i++) {
        if (!prepare(data, &planned[i], &candidates[i], error)) {
            return false;
        }
        for (int k = 0; k < i; k++) {
            candidates[i].repeated |= !candidates[k].refused && strcmp(candidates[k].kernel, candidates[i].kernel) == 0;
        }
        if (candidates[i].refused || candidates[i].repeated) {
            continue;
        }
        struct subject *s = &subjects[runnable++];
        s->work = run_planned;
        s->user = &planned[i];
        if (!start_subject(c, s, data->set_count, error)) {
            return false;
        }
    }
    return race(c, subjects, runnable, error);
}

bool bench_time(const struct bench_data *data, const struct bench_settings *settings,
                struct bench_candidate *candidates, int count, struct io_error *error) {
    struct clock c = { .device = data->device, .settings = settings };
    struct planned *planned = calloc((size_t)count, sizeof *planned);
    struct subject *subjects = calloc((size_t)count, sizeof *subjects);
    bool good = (planned != NULL && subjects != NULL) || io_fail(error, "out of memory");
    good = good && make_clock(&c, error) && prepare_all(&c, data, candidates, count, planned, subjects, error);
    (void)evo_stream_synchronize(data->device->context, data->device->stream);
    for (int i = 0, next = 0; i < count && good; i++) {
        if (!candidates[i].refused && !candidates[i].repeated) {
            candidates[i].times = summary(&subjects[next++]);
        }
    }
    for (int i = 0; i < count && planned != NULL && subjects != NULL; i++) {
        free_subject(&c, &subjects[i]);
        if (planned[i].data != NULL) {
            release(&planned[i]);
        }
    }
    free_clock(&c);
    free(planned);
    free(subjects);
    return good;
}
