/* bench.c: `evo bench`: times ops on shapes, beside the least time that the device's measured limits allow. */
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

enum {
    KEY_SHAPE = KEY_FIRST,
    KEY_SHAPES,
    KEY_DEVICE,
    KEY_DTYPE,
    KEY_COMPUTE,
    KEY_KERNEL,
    KEY_ALL_KERNELS,
    KEY_DIRECTION,
    KEY_VARIANT,
    KEY_BIASES,
    KEY_NO_MASK,
    KEY_RESIDUAL,
    KEY_WORKSPACE_LIMIT,
    KEY_COLD,
    KEY_BURST,
    KEY_CACHE,
    KEY_MIN_TIME,
    KEY_CEILINGS,
    KEY_JSON
};

static const struct option_spec options[] = {
    { "shape", KEY_SHAPE, "SIZES", "a shape of the one op named; may be repeated" },
    { "shapes", KEY_SHAPES, "FILE", "the shapes of a file, a line each: OP SIZES; may be repeated" },
    { "device", KEY_DEVICE, "NAME", "the device, as evo info names it (default: auto)" },
    { "dtype", KEY_DTYPE, "TYPE", "of all tensors: fp64, fp32, bf16 or fp16 (default: fp32)" },
    { "compute", KEY_COMPUTE, "MODE", "fp32, fp32_strict, tf32, bf16, fp16 or fp64 (default: that of the type)" },
    { "kernel", KEY_KERNEL, "NAME", "force this kernel" },
    { "all-kernels", KEY_ALL_KERNELS, NULL, "every kernel and order but the reference, beside the planner's choice" },
    { "direction", KEY_DIRECTION, "NAME", "of trimul: outgoing, incoming or both (default: outgoing)" },
    { "variant", KEY_VARIANT, "NAME", "a published variant of the op; evo run --help names them" },
    { "biases", KEY_BIASES, "LIST", "none, all, or names of biases" },
    { "no-mask", KEY_NO_MASK, NULL, "without a mask" },
    { "residual", KEY_RESIDUAL, NULL, "with a residual" },
    { "workspace-limit", KEY_WORKSPACE_LIMIT, "BYTES", "the most memory for intermediate results (K, M, G, T)" },
    { "cold", KEY_COLD, NULL, "empty the caches before each execution" },
    { "burst", KEY_BURST, NULL, "rest 10 ms before each replay (default: sustained load)" },
    { "cache", KEY_CACHE, "BYTES", "more than any cache holds (default: 256M)" },
    { "min-time", KEY_MIN_TIME, "MS", "milliseconds to measure each kernel (default: 300)" },
    { "ceilings", KEY_CEILINGS, "LIST", "\"none\", or limits to use: copy=GB/s,bf16=TFLOP/s,..." },
    { "json", KEY_JSON, NULL, "a JSON object a line instead of the table" },
    { "help", KEY_HELP, NULL, "print this help" },
    { NULL, 0, NULL, NULL }
};

static const struct command self = {
    "evo bench", "evo bench [OP]... [--shapes FILE | --shape SIZES]... [OPTION]...",
    "Times ops on random inputs. SIZES are B,S,N,c_m,c,c_z for opm and B,N,c_z,c[,c_out] for trimul; without any, two\n"
    "shapes an op are taken.\n"
    "\n"
    "A time is the median over replays; a replay is a graph of as many executions as fit a millisecond, at most 100 "
    "(on\n"
    "a CPU a loop of them), each on other copies of the tensors, which together exceed every cache (--cache). A row "
    "has\n"
    "the least, the quartiles and the greatest time too, milliseconds each.\n"
    "floor is the least possible time: the larger of the op's flops over the rate of a library's matrix product and "
    "of\n"
    "its bytes over the rate of a copy, both measured in the same run and state. The library is cuBLASLt, hipBLASLt "
    "or,\n"
    "on a CPU, a CBLAS (MKL, OpenBLAS, BLIS), as EVO_CUBLASLT_LIBRARY, EVO_HIPBLASLT_LIBRARY and EVO_CBLAS_LIBRARY "
    "name\n"
    "it or the system has it; without one, and without --ceilings, there is no floor.\n"
    "--all-kernels times candidates in turn and says whether the planner chose the fastest.\n"
    "The exit status is 1 if a shape could not be timed.",
    options
};

static const char *const default_shapes[][2] = { { "opm", "2,8,32,64,32,64" },
                                                 { "opm", "1,128,256,256,32,128" },
                                                 { "trimul", "2,32,64,32" },
                                                 { "trimul", "1,256,128,128" } };

enum {
    MOST_TEXTS = 256,
    MOST_CANDIDATES = 64
};

struct request {
    const char *ops[MOST_TEXTS];
    int op_count;
    const char *shapes[MOST_TEXTS];
    int shape_count;
    const char *files[MOST_TEXTS];
    int file_count;
    const char *device, *kernel, *ceilings;
    bool all_kernels, both_directions, direction_given, compute_given, json;
    struct bench_settings settings;
};

/* What rows are printed from. */
struct bench {
    const struct request *request;
    struct bench_settings settings;
    struct bench_device device;
    struct bench_ceilings ceilings;
    bool progress; /* shown, on a terminal */
    bool header;   /* printed */
    int failures;
};

/* ---- the command line ---- */

static bool add_text(const char **texts, int *count, const char *option, const char *value) {
    if (*count == MOST_TEXTS) {
        (void)usage_error(&self, "%s: more than %d", option, MOST_TEXTS);
        return false;
    }
    texts[(*count)++] = value;
    return true;
}

static bool parse_time(const char *text, double *milliseconds) {
    char *end;
    *milliseconds = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*milliseconds) || *milliseconds <= 0.0) {
        (void)usage_error(&self, "--min-time: \"%s\" is not a number of milliseconds above 0", text);
        return false;
    }
    return true;
}

static bool parse_direction(struct request *r, const char *text) {
    r->direction_given = true;
    r->both_directions = strcmp(text, "both") == 0;
    r->settings.direction = strcmp(text, "incoming") == 0 ? EVO_INCOMING : EVO_OUTGOING;
    if (!r->both_directions && r->settings.direction == EVO_OUTGOING && strcmp(text, "outgoing") != 0) {
        (void)usage_error(&self, "--direction: \"%s\" is none of outgoing, incoming, both", text);
        return false;
    }
    return true;
}

static bool parse_cache(const char *text, int64_t *cache) {
    size_t bytes = 0;
    if (!parse_bytes(&self, "cache", text, &bytes)) {
        return false;
    }
    if (bytes < 4096 || bytes > (size_t)1 << 40) {
        (void)usage_error(&self, "--cache: \"%s\" is not between 4K and 1T", text);
        return false;
    }
    *cache = (int64_t)bytes / 4096 * 4096;
    return true;
}

static bool take_option(struct request *r, int key, const char *value) {
    struct bench_settings *s = &r->settings;
    switch (key) {
    case KEY_SHAPE:
        return add_text(r->shapes, &r->shape_count, "--shape", value);
    case KEY_SHAPES:
        return add_text(r->files, &r->file_count, "--shapes", value);
    case KEY_DTYPE:
        return parse_float_dtype(&self, value, &s->dtype);
    case KEY_COMPUTE:
        r->compute_given = true;
        return parse_compute(&self, value, &s->compute);
    case KEY_DIRECTION:
        return parse_direction(r, value);
    case KEY_WORKSPACE_LIMIT:
        return parse_bytes(&self, "workspace-limit", value, &s->workspace_limit);
    case KEY_CACHE:
        return parse_cache(value, &s->cache);
    case KEY_MIN_TIME:
        return parse_time(value, &s->min_time);
    default:
        break;
    }
    /* Options that hold a text, and flags. */
    const char **text = key == KEY_DEVICE     ? &r->device
                        : key == KEY_KERNEL   ? &r->kernel
                        : key == KEY_VARIANT  ? &s->variant
                        : key == KEY_BIASES   ? &s->biases
                        : key == KEY_CEILINGS ? &r->ceilings
                                              : NULL;
    bool *flag = key == KEY_ALL_KERNELS ? &r->all_kernels
                 : key == KEY_NO_MASK   ? &s->no_mask
                 : key == KEY_RESIDUAL  ? &s->residual
                 : key == KEY_COLD      ? &s->cold
                 : key == KEY_BURST     ? &s->burst
                 : key == KEY_JSON      ? &r->json
                                        : NULL;
    if (text != NULL) {
        *text = value;
    } else if (flag != NULL) {
        *flag = true;
    }
    return text != NULL || flag != NULL;
}

static bool is_wanted(const struct request *r, const struct case_op *op) {
    bool wanted = r->op_count == 0;
    for (int i = 0; i < r->op_count; i++) {
        wanted = wanted || strcmp(r->ops[i], op->name) == 0;
    }
    return wanted;
}

/* The only op that the command line names, NULL if there are none or several. */
static const struct case_op *only_op(const struct request *r) {
    const struct case_op *found = NULL;
    int count = 0;
    for (int i = 0; case_op_get(i) != NULL; i++) {
        if (r->op_count > 0 && is_wanted(r, case_op_get(i))) {
            found = case_op_get(i);
            count++;
        }
    }
    return count == 1 ? found : NULL;
}

static int collect_shapes(const struct request *r, struct bench_shapes *shapes) {
    struct io_error error;
    const struct case_op *only = only_op(r);
    if (r->shape_count > 0 && only == NULL) {
        return usage_error(&self, "--shape: of which op? Name one: evo bench opm --shape ..., or trimul");
    }
    for (int i = 0; i < r->shape_count; i++) {
        if (!bench_add_shape(shapes, only, r->shapes[i], &error)) {
            return wrong_argument(&self, "--shape: ", &error);
        }
    }
    for (int i = 0; i < r->file_count; i++) {
        if (!bench_read_shapes(shapes, only, r->files[i], &error)) {
            return failure(&self, "%s", error.text);
        }
    }
    bool none = r->shape_count + r->file_count == 0;
    for (size_t i = 0; none && i < sizeof default_shapes / sizeof default_shapes[0]; i++) {
        const struct case_op *op = case_op_find(default_shapes[i][0]);
        if (is_wanted(r, op) && !bench_add_shape(shapes, op, default_shapes[i][1], &error)) {
            return failure(&self, "%s", error.text);
        }
    }
    return STATUS_GOOD;
}

/* The variant and the biases must be those of every op that is timed. */
static int check_variant(const struct request *r, const struct bench_shapes *shapes) {
    struct io_error error;
    for (int i = 0; i < shapes->count; i++) {
        const struct case_op *op = shapes->items[i].op;
        union case_desc desc;
        op->init(&desc);
        if (r->settings.variant != NULL && op->set_variant(&desc, r->settings.variant) != EVO_OK) {
            return usage_error(&self, "--variant: %s", evo_last_error());
        }
        if (r->settings.biases != NULL &&
            !case_set_param(op, &desc, case_find_param(op, "biases"), r->settings.biases, &error)) {
            return usage_error(&self, "--%s", error.text);
        }
    }
    return STATUS_GOOD;
}

static int check_request(struct request *r, struct bench_shapes *shapes) {
    for (int i = 0; i < r->op_count; i++) {
        if (case_op_find(r->ops[i]) == NULL) {
            return usage_error(&self, "\"%s\" is no op; there are " CASE_OP_NAMES, r->ops[i]);
        }
    }
    if (r->kernel != NULL && r->all_kernels) {
        return usage_error(&self, "--kernel and --all-kernels exclude each other");
    }
    if (r->settings.burst && r->settings.cold) {
        return usage_error(&self, "--burst and --cold exclude each other");
    }
    const struct case_op *only = only_op(r);
    if (r->direction_given && only != NULL && only->id != EVO_OP_TRIMUL) {
        return usage_error(&self, "--direction: %s has none", only->name);
    }
    if (!r->compute_given) {
        r->settings.compute = case_default_compute(r->settings.dtype);
    }
    int status = collect_shapes(r, shapes);
    return status != STATUS_GOOD ? status : check_variant(r, shapes);
}

/* ---- rows ---- */

static double floor_ms(const struct bench *b, const struct bench_candidate *c) {
    double rate = b->ceilings.rate[b->settings.compute];
    if (rate <= 0.0 || b->ceilings.copy <= 0.0) {
        return 0.0;
    }
    return fmax(c->flops / rate / 1e9, c->bytes / b->ceilings.copy / 1e6);
}

static const char *state_name(const struct bench_settings *s) {
    return s->cold ? "cold" : s->burst ? "burst" : "sustained";
}

/* Six digits; 0 and below stand for what is not known. */
static void add_number(cJSON *row, const char *name, double value) {
    char text[32];
    (void)snprintf(text, sizeof text, value > 0.0 && isfinite(value) ? "%.6g" : "null", value);
    (void)cJSON_AddRawToObject(row, name, text);
}

static void add_times(cJSON *row, const struct bench *b, const struct bench_candidate *c) {
    double floor = floor_ms(b, c), ms = c->times.median;
    add_number(row, "ms", ms);
    add_number(row, "ms_min", c->times.min);
    add_number(row, "ms_q1", c->times.q1);
    add_number(row, "ms_q3", c->times.q3);
    add_number(row, "ms_max", c->times.max);
    (void)cJSON_AddNumberToObject(row, "runs", c->times.runs);
    (void)cJSON_AddNumberToObject(row, "executions", c->times.executions);
    add_number(row, "tflops", ms > 0.0 ? c->flops / ms / 1e9 : 0.0);
    add_number(row, "gbps", ms > 0.0 ? c->bytes / ms / 1e6 : 0.0);
    add_number(row, "floor_ms", floor);
    add_number(row, "times_floor", floor > 0.0 ? ms / floor : 0.0);
    add_number(row, "ceiling_gbps", b->ceilings.copy);
    add_number(row, "ceiling_tflops", b->ceilings.rate[b->settings.compute]);
}

static bool print_json(const struct bench *b, const struct bench_shape *shape, const struct bench_candidate *c,
                       bool chosen, bool fastest) {
    const struct bench_settings *s = &b->settings;
    cJSON *row = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(row, "op", shape->op->name);
    (void)cJSON_AddStringToObject(row, "shape", shape->text);
    if (shape->op->id == EVO_OP_TRIMUL) {
        (void)cJSON_AddStringToObject(row, "direction", s->direction == EVO_OUTGOING ? "outgoing" : "incoming");
    }
    (void)cJSON_AddStringToObject(row, "dtype", evo_dtype_name(s->dtype));
    (void)cJSON_AddStringToObject(row, "compute", evo_compute_name(s->compute));
    (void)cJSON_AddStringToObject(row, "device", b->device.info.name);
    (void)cJSON_AddStringToObject(row, "kernel", c->refused ? c->forced : c->kernel);
    (void)cJSON_AddStringToObject(row, "state", state_name(s));
    add_times(row, b, c);
    if (c->refused) {
        (void)cJSON_AddStringToObject(row, "refused", c->error.text);
    } else {
        (void)cJSON_AddStringToObject(row, "computes", evo_compute_name(c->computes));
        (void)cJSON_AddNumberToObject(row, "workspace", (double)c->workspace_size);
        (void)cJSON_AddBoolToObject(row, "chosen", chosen);
        (void)cJSON_AddBoolToObject(row, "fastest", fastest);
    }
    (void)cJSON_AddStringToObject(row, "description", b->device.info.description);
    (void)cJSON_AddStringToObject(row, "arch", b->device.info.arch);
    (void)cJSON_AddStringToObject(row, "build", evo_build_info());
    return print_object(&self, row);
}

static void print_header(const struct bench *b) {
    const struct bench_ceilings *c = &b->ceilings;
    const char *mode = evo_compute_name(b->settings.compute);
    double rate = c->rate[b->settings.compute];
    printf("%s: %s, %s; libevoformer %s; %s, compute %s, %s\n", b->device.info.name, b->device.info.description,
           b->device.info.arch, evo_version(), evo_dtype_name(b->settings.dtype), mode, state_name(&b->settings));
    if (c->copy > 0.0) {
        printf("copy %.4g GB/s\n", c->copy);
    }
    if (rate > 0.0) {
        printf("%s product %.4g TFLOP/s%s%s\n", mode, rate, c->source[0] != '\0' ? ", by " : "", c->source);
    }
    if (c->missing[0] != '\0') {
        printf("no floor: %s\n", c->missing);
    }
    printf("%-6s %-25s %-9s %-23s %9s %9s %9s %9s %9s %9s %7s %9s %6s\n", "op", "shape", "direction", "kernel", "ms",
           "min", "q1", "q3", "max", "TFLOP/s", "GB/s", "floor ms", "x");
}

static void print_text(const struct bench *b, const struct bench_shape *shape, const struct bench_candidate *c) {
    const char *direction = shape->op->id != EVO_OP_TRIMUL          ? "-"
                            : b->settings.direction == EVO_OUTGOING ? "outgoing"
                                                                    : "incoming";
    double floor = floor_ms(b, c), ms = c->times.median;
    printf("%-6s %-25s %-9s %-23s", shape->op->name, shape->text, direction, c->refused ? c->forced : c->kernel);
    if (c->refused) {
        printf(" refused: %s\n", c->error.text);
        return;
    }
    printf(" %9.4g %9.4g %9.4g %9.4g %9.4g %9.4g %7.4g", ms, c->times.min, c->times.q1, c->times.q3, c->times.max,
           c->flops / ms / 1e9, c->bytes / ms / 1e6);
    if (floor > 0.0) {
        printf(" %9.4g %6.3g\n", floor, ms / floor);
    } else {
        printf(" %9s %6s\n", "-", "-");
    }
}

/* Candidate 0 is the planner's choice. */
static void print_verdict(const struct bench_candidate *candidates, const struct bench_candidate *best) {
    const struct bench_candidate *chosen = &candidates[0];
    if (best == chosen) {
        printf("        the planner's choice, %s, is the fastest\n", chosen->kernel);
    } else if (chosen->times.q1 <= best->times.q3) {
        printf("        the planner's choice, %s, is as fast as %s within the quartiles\n", chosen->kernel,
               best->kernel);
    } else {
        printf("        the planner chose %s, but %s takes %.3g of its time\n", chosen->kernel, best->kernel,
               best->times.median / chosen->times.median);
    }
}

static bool print_rows(struct bench *b, const struct bench_shape *shape, const struct bench_candidate *candidates,
                       int count) {
    const struct bench_candidate *best = NULL;
    for (int i = 0; i < count; i++) {
        bool timed = !candidates[i].refused && !candidates[i].repeated;
        if (timed && (best == NULL || candidates[i].times.median < best->times.median)) {
            best = &candidates[i];
        }
    }
    if (!b->request->json && !b->header) {
        print_header(b);
        b->header = true;
    }
    bool good = true;
    for (int i = 0; i < count; i++) {
        const struct bench_candidate *c = &candidates[i];
        if (c->repeated) {
            continue;
        }
        if (b->request->json) {
            good = print_json(b, shape, c, i == 0 && b->request->kernel == NULL, c == best) && good;
        } else {
            print_text(b, shape, c);
        }
    }
    if (b->request->all_kernels && !b->request->json && best != NULL) {
        print_verdict(candidates, best);
    }
    return fflush(stdout) == 0 && good;
}

/* ---- timing ---- */

static void show_progress(const struct bench *b, const char *what, const char *text) {
    if (b->progress) {
        (void)fprintf(stderr, "\r\033[K%s %s", what, text);
        (void)fflush(stderr);
    }
}

/* The planner's choice or the forced kernel; with --all-kernels every other name that can be forced. */
static int make_candidates(const struct bench *b, const struct case_op *op, struct bench_candidate *candidates) {
    const char *name;
    int count = 1;
    memset(candidates, 0, MOST_CANDIDATES * sizeof *candidates);
    candidates[0].forced = b->request->kernel;
    for (int i = 0; b->request->all_kernels && (name = evo_context_kernel(b->device.context, op->id, i)) != NULL; i++) {
        /* The reference is there to be right: it would take minutes. */
        if (strcmp(name, "reference") != 0 && count < MOST_CANDIDATES) {
            candidates[count++].forced = name;
        }
    }
    return count;
}

/* Whether the library could be asked and output written; a shape that cannot be timed is counted. */
static void time_shape(struct bench *b, const struct bench_shape *shape) {
    struct bench_data data;
    struct bench_candidate candidates[MOST_CANDIDATES];
    struct io_error error;
    int count = make_candidates(b, shape->op, candidates);
    show_progress(b, shape->op->name, shape->text);
    bool good = bench_make_data(&b->device, &b->settings, shape, &data, &error);
    if (good) {
        good = bench_time(&data, &b->settings, candidates, count, &error);
        bench_free_data(&data);
    }
    show_progress(b, "", "");
    if (good && candidates[0].refused && candidates[0].forced == NULL) {
        good = io_fail(&error, "%s", candidates[0].error.text);
    }
    if (!good) {
        (void)failure(&self, "%s %s: %s", shape->op->name, shape->text, error.text);
    } else {
        good = print_rows(b, shape, candidates, count);
    }
    b->failures += !good || candidates[0].refused;
}

static int find_ceilings(struct bench *b) {
    struct io_error error;
    if (b->request->ceilings != NULL) {
        return bench_given_ceilings(b->request->ceilings, &b->ceilings, &error)
                   ? STATUS_GOOD
                   : usage_error(&self, "--ceilings: %s", error.text);
    }
    show_progress(b, "ceilings", "");
    bool good = bench_measure_ceilings(&b->device, &b->settings, &b->ceilings, &error);
    show_progress(b, "", "");
    return good ? STATUS_GOOD : failure(&self, "the ceilings: %s", error.text);
}

static int time_all(struct bench *b, const struct bench_shapes *shapes) {
    int status = find_ceilings(b);
    for (int i = 0; i < shapes->count && status == STATUS_GOOD; i++) {
        bool trimul = shapes->items[i].op->id == EVO_OP_TRIMUL;
        for (int d = 0; d < (trimul && b->request->both_directions ? 2 : 1); d++) {
            b->settings.direction = b->request->both_directions ? (evo_direction)d : b->request->settings.direction;
            time_shape(b, &shapes->items[i]);
        }
    }
    return status == STATUS_GOOD && b->failures > 0 ? STATUS_FAILED : status;
}

static int run(struct request *r) {
    struct bench b = { .request = r, .progress = isatty(STDERR_FILENO) == 1 };
    struct bench_shapes shapes = { NULL, 0 };
    struct io_error error;
    int status = check_request(r, &shapes);
    b.settings = r->settings;
    b.device.info = (evo_device_info)EVO_DEVICE_INFO_INIT;
    if (status == STATUS_GOOD && open_device(&self, r->device, &b.device.context, &status)) {
        evo_context *context = b.device.context;
        if (!bench_good(evo_context_device(context, &b.device.info), &error) ||
            !bench_good(evo_stream_create(context, &b.device.stream), &error)) {
            status = failure(&self, "--device %s: %s", r->device, error.text);
        } else {
            b.device.cpu = strcmp(b.device.info.name, "cpu") == 0;
            status = time_all(&b, &shapes);
        }
        (void)evo_stream_destroy(context, b.device.stream);
    }
    evo_context_destroy(b.device.context);
    free(shapes.items);
    return status;
}

int command_bench(int argc, char **argv) {
    struct arguments arguments = { &self, argc, argv, NULL };
    struct request request = { .device = "auto",
                               .settings = { .dtype = EVO_FP32, .cache = 256 << 20, .min_time = 300.0 } };
    int key;
    while ((key = next_option(&arguments)) != 0) {
        if (key == KEY_HELP) {
            print_help(&self);
            return close_output(&self, STATUS_GOOD);
        }
        if (!take_option(&request, key, arguments.value)) {
            return STATUS_USAGE;
        }
    }
    while (optind < argc) {
        if (!add_text(request.ops, &request.op_count, "ops", argv[optind++])) {
            return STATUS_USAGE;
        }
    }
    return close_output(&self, run(&request));
}
