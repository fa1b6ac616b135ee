/* run.c: `evo run`: one op on files, or on random numbers. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "io/npy.h"
#include "io/safetensors.h"

enum {
    KEY_OP = KEY_FIRST,
    KEY_VARIANT,
    KEY_INPUT,
    KEY_MASK,
    KEY_RESIDUAL,
    KEY_WEIGHTS,
    KEY_WEIGHTS_FROM,
    KEY_WEIGHTS_PREFIX,
    KEY_VIEWS,
    KEY_SHAPE,
    KEY_CASE,
    KEY_SEED,
    KEY_DEVICE,
    KEY_DTYPE,
    KEY_COMPUTE,
    KEY_KERNEL,
    KEY_WORKSPACE_LIMIT,
    KEY_SAVE_CASE,
    KEY_PARAM /* and those after it: the ops' parameters */
};

static const struct option_spec own_options[] = {
    { "output", 'o', "FILE", "where the result goes: .npy or .safetensors" },
    { "op", KEY_OP, "NAME", "the op, if no case file tells it: " CASE_OP_NAMES },
    { "variant", KEY_VARIANT, "NAME", "a published variant of the op, as below" },
    { "input", KEY_INPUT, "FILE", "the input m or z: .npy or .safetensors" },
    { "mask", KEY_MASK, "FILE", "the mask, of any type; \"none\" takes a case file's away" },
    { "residual", KEY_RESIDUAL, "FILE", "what is added to the result; \"none\" takes a case file's away" },
    { "weights", KEY_WEIGHTS, "[NAME=]FILE", "a .safetensors of weights, or one weight; may be repeated" },
    { "weights-from", KEY_WEIGHTS_FROM, "PEER", "the weights have this project's names and layouts, as below" },
    { "weights-prefix", KEY_WEIGHTS_PREFIX, "TEXT", "what stands before each name in the files of weights" },
    { "views", KEY_VIEWS, NULL, "read a case file's weights through its views" },
    { "shape", KEY_SHAPE, "SIZES", "random numbers of these sizes instead of files" },
    { "case", KEY_CASE, "TEXT", "a random case as evo check names it" },
    { "seed", KEY_SEED, "N", "the random numbers' seed (default: 1)" },
    { "device", KEY_DEVICE, "NAME", "the device, as evo info names it (default: auto)" },
    { "dtype", KEY_DTYPE, "TYPE", "round all tensors to fp64, fp32, bf16 or fp16 (default: as they are)" },
    { "compute", KEY_COMPUTE, "MODE", "compute in fp32, fp32_strict, tf32, bf16, fp16 or fp64" },
    { "kernel", KEY_KERNEL, "NAME", "force this kernel" },
    { "workspace-limit", KEY_WORKSPACE_LIMIT, "BYTES", "the most memory for intermediate results (K, M, G, T)" },
    { "save-case", KEY_SAVE_CASE, "FILE", "write inputs, weights and result as a case file, .safetensors" },
    { "help", KEY_HELP, NULL, "print this help" },
    { NULL, 0, NULL, NULL }
};

/* The options above, and one for each parameter of each op. */
static struct option_spec options[COMMAND_MAX_OPTIONS];
static char option_names[COMMAND_MAX_OPTIONS][32];

static const struct command self = {
    "evo run",
    "evo run CASE.safetensors [-o OUT] [OPTION]...\n"
    "       evo run --op OP --input FILE --weights FILE [-o OUT] [OPTION]...\n"
    "       evo run --op OP --shape SIZES [-o OUT] [OPTION]...",
    "Computes one op and prints a line with kernel, time and the norm of the result; also its error, where the case "
    "file\n"
    "has expected values. Tensors and weights are named as in the case files; options replace what such a file says.\n"
    "SIZES are B,S,N,c_m,c,c_z for opm and B,N,c_z,c[,c_out] for trimul.",
    options
};

enum {
    MOST_PARAMS = 32,
    MOST_FILES = 64
};

/* What the command line says. */
struct request {
    const char *case_path;
    const char *op;
    const char *variant;
    const char *params[MOST_PARAMS]; /* values, by option */
    const char *input;
    const char *mask;
    const char *residual;
    const char *weights[MOST_FILES];
    int weight_count;
    const char *peer;
    const char *prefix;
    const char *shape;
    const char *text;
    const char *output;
    const char *save;
    const char *device;
    const char *kernel;
    evo_dtype dtype;
    evo_compute compute;
    bool compute_given;
    bool views;
    size_t workspace_limit;
    uint64_t seed;
};

/* ---- options ---- */

static void option_name(const struct case_param *param, char *name, size_t size) {
    (void)snprintf(name, size, "%s", param->name);
    for (char *p = name; *p != '\0'; p++) {
        *p = *p == '_' ? '-' : *p;
    }
}

static int own_count(void) {
    return (int)(sizeof own_options / sizeof own_options[0]) - 1;
}

/* Which of the parameters' options has this name; -1 if none. */
static int param_option(const char *name) {
    for (int i = own_count(); options[i].name != NULL; i++) {
        if (strcmp(options[i].name, name) == 0) {
            return i - own_count();
        }
    }
    return -1;
}

static const char *param_argument(const struct case_param *param) {
    return param->kind == CASE_PARAM_NUMBER ? "X" : param->kind == CASE_PARAM_BITS ? "LIST" : "NAME";
}

static void add_param_options(const struct case_op *op) {
    for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
        int at = own_count();
        while (options[at].name != NULL) {
            at++;
        }
        if (param->name == NULL || at - own_count() >= MOST_PARAMS || at + 1 >= COMMAND_MAX_OPTIONS) {
            continue;
        }
        option_name(param, option_names[at], sizeof option_names[at]);
        if (param_option(option_names[at]) < 0) {
            options[at] = (struct option_spec){ option_names[at], KEY_PARAM + at - own_count(), param_argument(param),
                                                param->help };
        }
    }
}

/* " NAME, NAME" at the end of the text, as far as there is room. */
static void add_name(char *text, size_t size, const char *name) {
    const size_t used = strlen(text);
    (void)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", name);
}

/* What the op's own options take: variants, peers, and its parameters with their choices. */
static void print_op_options(const struct case_op *op) {
    char variants[256] = "", peers[512] = "";
    for (int i = 0; op->variant(i) != NULL; i++) {
        add_name(variants, sizeof variants, op->variant(i));
    }
    for (int i = 0; case_peer_get(i) != NULL; i++) {
        if (strcmp(case_peer_get(i)->op, op->name) == 0) {
            add_name(peers, sizeof peers, case_peer_get(i)->name);
        }
    }
    printf("\noptions of %s:\n", op->name);
    print_option(&(struct option_spec){ "variant", KEY_VARIANT, "NAME", variants });
    print_option(&(struct option_spec){ "weights-from", KEY_WEIGHTS_FROM, "PEER", peers });
    for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
        char name[32], choices[128] = "", help[256];
        if (param->name == NULL) {
            continue;
        }
        for (int i = 0; param->kind == CASE_PARAM_CHOICE && param->choices[i] != NULL; i++) {
            add_name(choices, sizeof choices, param->choices[i]);
        }
        option_name(param, name, sizeof name);
        (void)snprintf(help, sizeof help, "%s%s%s", param->help, choices[0] != '\0' ? ": " : "", choices);
        print_option(&(struct option_spec){ name, KEY_PARAM, param_argument(param), help });
    }
}

static void make_options(void) {
    memcpy(options, own_options, sizeof own_options);
    for (int i = 0; case_op_get(i) != NULL; i++) {
        add_param_options(case_op_get(i));
    }
}

static bool take_weights(struct request *r, const char *value) {
    if (r->weight_count == MOST_FILES) {
        (void)usage_error(&self, "--weights: more than %d files", MOST_FILES);
        return false;
    }
    r->weights[r->weight_count++] = value;
    return true;
}

/* Options that hold a text. */
static const char **text_option(struct request *r, int key) {
    switch (key) {
    case 'o':
        return &r->output;
    case KEY_OP:
        return &r->op;
    case KEY_VARIANT:
        return &r->variant;
    case KEY_INPUT:
        return &r->input;
    case KEY_MASK:
        return &r->mask;
    case KEY_RESIDUAL:
        return &r->residual;
    case KEY_WEIGHTS_FROM:
        return &r->peer;
    case KEY_WEIGHTS_PREFIX:
        return &r->prefix;
    case KEY_SHAPE:
        return &r->shape;
    case KEY_CASE:
        return &r->text;
    case KEY_DEVICE:
        return &r->device;
    case KEY_KERNEL:
        return &r->kernel;
    case KEY_SAVE_CASE:
        return &r->save;
    default:
        return key >= KEY_PARAM ? &r->params[key - KEY_PARAM] : NULL;
    }
}

static bool take_option(struct request *r, int key, const char *value) {
    const char **text = text_option(r, key);
    if (text != NULL) {
        *text = value;
        return true;
    }
    switch (key) {
    case KEY_WEIGHTS:
        return take_weights(r, value);
    case KEY_VIEWS:
        r->views = true;
        return true;
    case KEY_SEED:
        return parse_seed(&self, value, &r->seed);
    case KEY_DTYPE:
        return parse_float_dtype(&self, value, &r->dtype);
    case KEY_COMPUTE:
        r->compute_given = true;
        return parse_compute(&self, value, &r->compute);
    case KEY_WORKSPACE_LIMIT:
        return parse_bytes(&self, "workspace-limit", value, &r->workspace_limit);
    default:
        return false;
    }
}

/* ---- files ---- */

/* The files that stay open until the case is built. */
struct opened {
    struct safetensors files[MOST_FILES + 4];
    int file_count;
    unsigned char *bytes[MOST_FILES + 4]; /* of .npy files */
    int bytes_count;
    struct io_array arrays[MOST_FILES + 4];
    int array_count;
    const struct safetensors *weights[MOST_FILES + 1]; /* those that weights are looked up in */
    int weight_count;
    bool single[CASE_MAX_TENSORS]; /* the weights that --weights NAME=FILE gave */
    const char *prefix;
};

static bool has_ending(const char *path, const char *ending) {
    size_t length = strlen(path);
    return length > strlen(ending) && strcmp(path + length - strlen(ending), ending) == 0;
}

static const struct safetensors *open_safetensors(struct opened *o, const char *path, struct io_error *error) {
    struct safetensors *file = &o->files[o->file_count];
    if (!safetensors_read(path, file, error)) {
        return NULL;
    }
    o->file_count++;
    return file;
}

/* One array: a .npy, or that of a .safetensors with this name, or its only one. */
static const struct io_array *open_array(struct opened *o, const char *path, const char *name, struct io_error *error) {
    if (has_ending(path, ".npy")) {
        struct io_array *array = &o->arrays[o->array_count];
        if (!npy_read(path, array, &o->bytes[o->bytes_count], error)) {
            return NULL;
        }
        o->bytes_count++;
        o->array_count++;
        array->name = name;
        return array;
    }
    const struct safetensors *file = open_safetensors(o, path, error);
    if (file == NULL) {
        return NULL;
    }
    const struct io_array *array = file->count == 1 ? &file->arrays[0] : safetensors_find(file, name);
    if (array == NULL) {
        (void)io_fail(error, "%s: tensor \"%s\" is missing", path, name);
    }
    return array;
}

static void close_all(struct opened *o) {
    for (int i = 0; i < o->file_count; i++) {
        safetensors_free(&o->files[i]);
    }
    for (int i = 0; i < o->bytes_count; i++) {
        free(o->bytes[i]);
    }
}

static const struct io_array *find_weight(void *user, const char *name) {
    const struct opened *o = user;
    char full[512];
    int length = snprintf(full, sizeof full, "%s%s", o->prefix != NULL ? o->prefix : "", name);
    if (length < 0 || (size_t)length >= sizeof full) {
        return NULL; /* a name that was cut must not be another array's */
    }
    for (int i = 0; i < o->weight_count; i++) {
        const struct io_array *array = safetensors_find(o->weights[i], full);
        if (array != NULL) {
            return array;
        }
    }
    return NULL;
}

/* ---- from the command line to a case ---- */

/* Sets the op's parameters that the command line has; a parameter of another op is a mistake. */
static int apply_params(const struct request *r, const struct case_op *op, union case_desc *desc) {
    struct io_error error;
    for (int i = 0; i < MOST_PARAMS; i++) {
        const char *name = options[own_count() + i].name;
        const struct case_param *found = NULL;
        char spelled[32];
        if (r->params[i] == NULL) {
            continue;
        }
        for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
            if (param->name != NULL) {
                option_name(param, spelled, sizeof spelled);
                found = strcmp(spelled, name) == 0 ? param : found;
            }
        }
        if (found == NULL) {
            return usage_error(&self, "--%s: %s has no such parameter", name, op->name);
        }
        if (!case_set_param(op, desc, found, r->params[i], &error)) {
            return usage_error(&self, "--%s%s", name, error.text + strcspn(error.text, ":"));
        }
    }
    return STATUS_GOOD;
}

static bool biases_given(const struct request *r) {
    int biases = param_option("biases");
    return biases >= 0 && r->params[biases] != NULL;
}

/* Whether the case file's expected values no longer hold. */
static bool changes_result(const struct request *r) {
    bool changed =
        r->variant != NULL || r->input != NULL || r->mask != NULL || r->residual != NULL || (r->weight_count > 0);
    for (int i = 0; i < MOST_PARAMS; i++) {
        changed = changed || r->params[i] != NULL;
    }
    return changed;
}

/* What a case is made of. */
struct parts {
    const struct case_op *op;
    union case_desc desc;
    struct case_given given[CASE_MAX_TENSORS];
    struct case_given expected;
};

/* Replaces one activation. */
static int replace(struct parts *p, struct opened *o, enum case_role role, const char *path) {
    struct io_error error;
    for (int i = 0; i < p->op->spec_count && path != NULL; i++) {
        if (p->op->specs[i].role != role) {
            continue;
        }
        p->given[i] = (struct case_given){ .file = path };
        if (role != CASE_INPUT && strcmp(path, "none") == 0) {
            continue;
        }
        p->given[i].array = open_array(o, path, p->op->specs[i].name, &error);
        if (p->given[i].array == NULL) {
            return failure(&self, "%s", error.text);
        }
    }
    return STATUS_GOOD;
}

static int no_weight(const struct case_op *op, const char *name) {
    char all[512] = "";
    for (int i = 0; i < op->spec_count; i++) {
        if (op->specs[i].role == CASE_WEIGHT) {
            size_t used = strlen(all);
            (void)snprintf(all + used, sizeof all - used, " %s", op->specs[i].name);
        }
    }
    return usage_error(&self, "--weights: \"%s\" is no weight of %s; there are%s", name, op->name, all);
}

/* Reads the files of --weights: whole ones to look names up in, and single weights. */
static int open_weights(const struct request *r, struct parts *p, struct opened *o) {
    struct io_error error;
    for (int i = 0; i < r->weight_count; i++) {
        const char *equals = strchr(r->weights[i], '=');
        char name[64] = "";
        if (equals == NULL) {
            o->weights[o->weight_count] = open_safetensors(o, r->weights[i], &error);
            if (o->weights[o->weight_count++] == NULL) {
                o->weight_count--;
                return failure(&self, "%s", error.text);
            }
            continue;
        }
        size_t length = (size_t)(equals - r->weights[i]);
        (void)snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1),
                       r->weights[i]);
        int spec = case_find_spec(p->op, name);
        if (spec < 0 || p->op->specs[spec].role != CASE_WEIGHT) {
            return no_weight(p->op, name);
        }
        o->single[spec] = true;
        p->given[spec] = (struct case_given){ .file = equals + 1 };
        p->given[spec].array = open_array(o, equals + 1, name, &error);
        if (p->given[spec].array == NULL) {
            return failure(&self, "%s", error.text);
        }
    }
    return STATUS_GOOD;
}

/* Looks all weights up by their canonical or a peer's names. Weights that --weights NAME=FILE gave stay. */
static int find_weights(const struct request *r, struct parts *p, struct opened *o, const char *file) {
    struct io_error error;
    struct case_given found[CASE_MAX_TENSORS];
    memcpy(found, p->given, sizeof found);
    if (r->peer != NULL) {
        const struct case_peer *peer = case_peer_find(r->peer, p->op);
        if (!case_peer_weights(peer, p->op, &p->desc, find_weight, o, file, found, &error)) {
            return failure(&self, "%s", error.text);
        }
    }
    for (int i = 0; i < p->op->spec_count; i++) {
        if (p->op->specs[i].role != CASE_WEIGHT || o->single[i]) {
            continue;
        }
        if (r->peer == NULL) {
            found[i] = (struct case_given){ .file = file, .array = find_weight(o, p->op->specs[i].name) };
        }
        if (found[i].array != NULL || p->given[i].array == NULL) {
            p->given[i] = found[i];
        }
    }
    return STATUS_GOOD;
}

/* Without a word about biases, those that the files have are there. */
static void biases_from_files(struct parts *p) {
    unsigned *biases = p->op->common(&p->desc).biases;
    for (int i = 0; i < p->op->spec_count; i++) {
        if (p->op->specs[i].bias != 0) {
            *biases = p->given[i].array != NULL ? *biases | p->op->specs[i].bias : *biases & ~p->op->specs[i].bias;
        }
    }
}

static int apply_overrides(const struct request *r, struct parts *p, struct opened *o) {
    const char *file = r->weight_count > 0 ? r->weights[0] : r->case_path != NULL ? r->case_path : "--weights";
    int status = STATUS_GOOD;
    if (r->variant != NULL && p->op->set_variant(&p->desc, r->variant) != EVO_OK) {
        return usage_error(&self, "--variant: %s", evo_last_error());
    }
    if ((status = apply_params(r, p->op, &p->desc)) != STATUS_GOOD ||
        (status = replace(p, o, CASE_INPUT, r->input)) != STATUS_GOOD ||
        (status = replace(p, o, CASE_MASK, r->mask)) != STATUS_GOOD ||
        (status = replace(p, o, CASE_RESIDUAL, r->residual)) != STATUS_GOOD) {
        return status;
    }
    if (r->case_path != NULL && changes_result(r)) {
        /* New tensors may have other sizes; all are learnt again. */
        p->expected.array = NULL;
        case_unbind(p->op, &p->desc);
    }
    o->prefix = r->prefix;
    if ((status = open_weights(r, p, o)) != STATUS_GOOD) {
        return status;
    }
    if (o->weight_count > 0 || r->peer != NULL) {
        status = find_weights(r, p, o, file);
    }
    if (r->case_path == NULL && !biases_given(r)) {
        biases_from_files(p);
    }
    return status;
}

static int check_peer(const struct request *r, const struct case_op *op) {
    char names[512] = "";
    if (r->peer == NULL || case_peer_find(r->peer, op) != NULL) {
        return STATUS_GOOD;
    }
    for (int i = 0; case_peer_get(i) != NULL; i++) {
        if (strcmp(case_peer_get(i)->op, op->name) == 0) {
            size_t used = strlen(names);
            (void)snprintf(names + used, sizeof names - used, " %s", case_peer_get(i)->name);
        }
    }
    return usage_error(&self, "--weights-from: \"%s\" is none of%s for %s", r->peer, names, op->name);
}

static int build_case(const struct parts *p, const struct request *r, struct evo_case *c) {
    struct io_error error;
    if (!case_from_arrays(p->op, &p->desc, p->given, &p->expected, c, &error)) {
        return failure(&self, "%s", error.text);
    }
    (void)snprintf(c->name, sizeof c->name, "%s", r->case_path != NULL ? r->case_path : p->op->name);
    return STATUS_GOOD;
}

/* From a case file, with whatever the command line changes. */
static int from_case_file(const struct request *r, struct opened *o, struct evo_case *c) {
    struct case_file file;
    struct parts p = { .op = NULL };
    struct io_error error;
    if (!case_file_open(r->case_path, r->views ? CASE_VIEWS : CASE_CANONICAL, &file, &error)) {
        return failure(&self, "%s", error.text);
    }
    int status = STATUS_GOOD;
    p.op = file.op;
    p.desc = file.desc;
    p.expected = file.expected;
    memcpy(p.given, file.given, sizeof p.given);
    if (r->op != NULL && strcmp(r->op, p.op->name) != 0) {
        status = usage_error(&self, "--op %s: %s holds %s", r->op, r->case_path, p.op->name);
    } else if (r->views && !file.has_views) {
        status = failure(&self, "%s: it has no views", r->case_path);
    } else if ((status = check_peer(r, p.op)) == STATUS_GOOD) {
        if (r->weight_count == 0) {
            o->weights[o->weight_count++] = &file.arrays;
            o->weight_count -= r->peer == NULL;
        }
        status = apply_overrides(r, &p, o);
        status = status == STATUS_GOOD ? build_case(&p, r, c) : status;
    }
    case_file_close(&file);
    return status;
}

/* From --op, --input and --weights. */
static int from_files(const struct request *r, const struct case_op *op, struct opened *o, struct evo_case *c) {
    struct parts p = { .op = op };
    const struct case_peer *peer = r->peer == NULL ? NULL : case_peer_find(r->peer, op);
    for (int i = 0; i < CASE_MAX_TENSORS; i++) {
        p.given[i].file = "evo run";
    }
    op->init(&p.desc);
    if (peer != NULL) {
        (void)op->set_variant(&p.desc, peer->variant);
    }
    case_unbind(op, &p.desc);
    int status = apply_overrides(r, &p, o);
    return status == STATUS_GOOD ? build_case(&p, r, c) : status;
}

/* Appends ",KEY=VALUE" to a case's text; a list keeps its parts together with '+'. */
static void append(char *text, size_t size, const char *key, const char *value) {
    size_t used = strlen(text);
    (void)snprintf(text + used, size - used, "%s%s=", text[used - 1] == '(' ? "" : ",", key);
    for (used = strlen(text); *value != '\0' && used + 1 < size; value++) {
        text[used++] = *value == ',' ? '+' : *value;
    }
    text[used < size ? used : size - 1] = '\0';
}

/* Turns --shape B,S,N,... into keys. */
static int append_shape(const struct case_op *op, const char *shape, char *text, size_t size) {
    const char *at = shape;
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++) {
        char value[32];
        size_t length = strcspn(at, ",");
        if (*at == '\0' && dim->fallback != 0) {
            return STATUS_GOOD;
        }
        if (length == 0 || length >= sizeof value || strspn(at, "0123456789") != length) {
            return usage_error(&self, "--shape: \"%s\" is not %s", shape, op->shape_help);
        }
        (void)snprintf(value, sizeof value, "%.*s", (int)length, at);
        append(text, size, dim->name, value);
        at += length + (at[length] == ',');
    }
    return *at == '\0' ? STATUS_GOOD : usage_error(&self, "--shape: \"%s\" is not %s", shape, op->shape_help);
}

/* Turns the parameters' options into keys, after a trial that words its complaints as options. */
static int append_params(const struct request *r, const struct case_op *op, char *text, size_t size) {
    union case_desc trial;
    op->init(&trial);
    int status = apply_params(r, op, &trial);
    for (int i = 0; i < MOST_PARAMS && status == STATUS_GOOD; i++) {
        char key[32];
        if (r->params[i] == NULL) {
            continue;
        }
        (void)snprintf(key, sizeof key, "%s", options[own_count() + i].name);
        for (char *p = key; *p != '\0'; p++) {
            *p = *p == '-' ? '_' : *p;
        }
        append(text, size, key, r->params[i]);
    }
    return status;
}

/* From --shape or --case: random numbers. */
static int from_nothing(const struct request *r, const struct case_op *op, struct evo_case *c) {
    char text[CASE_NAME_SIZE + 64] = "";
    struct io_error error;
    int status = STATUS_GOOD;
    if (r->text != NULL) {
        (void)snprintf(text, sizeof text, "%s", r->text);
    } else {
        (void)snprintf(text, sizeof text, "%s(", op->name);
        if (r->variant != NULL) {
            append(text, sizeof text, "variant", r->variant);
        }
        if (r->dtype != EVO_NONE) {
            append(text, sizeof text, "dtype", evo_dtype_name(r->dtype));
        }
        status = append_shape(op, r->shape, text, sizeof text);
        status = status == STATUS_GOOD ? append_params(r, op, text, sizeof text) : status;
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), ")");
    }
    if (status == STATUS_GOOD && !case_parse(text, r->seed, c, &error)) {
        status = wrong_argument(&self, "", &error);
    }
    return status;
}

/* ---- computing and printing ---- */

static bool write_result(const struct request *r, const struct evo_case *c, const double *values,
                         struct io_error *error) {
    const struct case_tensor *out = case_result_of(c);
    unsigned char *bytes = malloc((size_t)out->count * evo_dtype_size(out->dtype) + 1);
    if (bytes == NULL) {
        return io_fail(error, "%s: out of memory", r->output);
    }
    (void)evo_convert(values, EVO_FP64, bytes, out->dtype, (size_t)out->count);
    struct io_array array = {
        .name = "out", .dtype = out->dtype, .rank = out->rank, .count = out->count, .data = bytes
    };
    memcpy(array.shape, out->extents, sizeof out->extents);
    const struct safetensors_string metadata[] = { { "op", c->op->name }, { "case", c->name } };
    bool good = has_ending(r->output, ".npy") ? npy_write(r->output, &array, error)
                                              : safetensors_write(r->output, &array, 1, metadata, 2, error);
    free(bytes);
    return good;
}

static void print_result(const struct request *r, const struct evo_case *c, const double *values,
                         const struct case_outcome *outcome) {
    const struct case_tensor *out = case_result_of(c);
    double sum = 0.0;
    for (int64_t i = 0; i < out->count; i++) {
        sum += values[i] * values[i];
    }
    bool random = r->shape != NULL || r->text != NULL;
    printf("%s: kernel %s, computes in %s, %.3f ms, norm %.9g", c->name, outcome->kernel,
           evo_compute_name(outcome->compute), outcome->milliseconds, sqrt(sum));
    if (random) {
        printf(", seed %llu", (unsigned long long)r->seed);
    }
    if (c->expected != NULL) {
        struct case_comparison comparison;
        case_compare(c, values, c->expected, &comparison);
        printf(", error %.2e, worst pair %.2e", comparison.total, comparison.pair);
    }
    printf("\n");
}

static int compute(const struct request *r, struct evo_case *c, evo_context *context) {
    struct case_common common = c->op->common(&c->desc);
    const struct case_tensor *out = case_result_of(c);
    struct case_outcome outcome;
    struct io_error error;
    *common.kernel = r->kernel;
    *common.workspace_limit = r->workspace_limit > 0 ? r->workspace_limit : *common.workspace_limit;
    if (r->dtype != EVO_NONE && r->text == NULL) {
        (void)case_retype(c, r->dtype, r->dtype, &error);
        *common.compute = case_default_compute(r->dtype);
    }
    *common.compute = r->compute_given ? r->compute : *common.compute;
    if (r->output != NULL && has_ending(r->output, ".npy") && out->dtype == EVO_BF16) {
        return usage_error(&self, "-o %s: .npy has no type for bf16; write .safetensors", r->output);
    }
    double *values = malloc((size_t)out->count * sizeof *values + 1);
    int status = STATUS_GOOD;
    if (values == NULL) {
        return failure(&self, "out of memory");
    }
    if (!case_run(context, c, values, &outcome)) {
        status = failure(&self, "%s: %s", c->name, outcome.message);
    } else if (r->output != NULL && !write_result(r, c, values, &error)) {
        status = failure(&self, "%s", error.text);
    } else {
        print_result(r, c, values, &outcome);
    }
    if (status == STATUS_GOOD && r->save != NULL) {
        free(c->expected);
        c->expected = values;
        return case_save(r->save, c, &error) ? status : failure(&self, "%s", error.text);
    }
    free(values);
    return status;
}

/* ---- the command ---- */

static int check_outputs(const struct request *r) {
    if (r->output != NULL && !has_ending(r->output, ".npy") && !has_ending(r->output, ".safetensors")) {
        return usage_error(&self, "-o %s: the name must end in .npy or .safetensors", r->output);
    }
    if (r->save != NULL && !has_ending(r->save, ".safetensors")) {
        return usage_error(&self, "--save-case %s: the name must end in .safetensors", r->save);
    }
    return STATUS_GOOD;
}

/* Which of the three forms this is, and what does not go with it. */
static int check_form(const struct request *r) {
    bool random = r->shape != NULL || r->text != NULL;
    bool files = r->input != NULL || r->mask != NULL || r->residual != NULL || r->weight_count > 0 || r->peer != NULL;
    if (r->shape != NULL && r->text != NULL) {
        return usage_error(&self, "--shape and --case exclude each other");
    }
    if (r->case_path != NULL && random && case_op_find(r->case_path) != NULL) {
        return usage_error(&self, "%s would be a case file; an op is named by --op %s", r->case_path, r->case_path);
    }
    if (r->case_path != NULL && random) {
        return usage_error(&self, "%s: a case file goes with neither --shape nor --case", r->case_path);
    }
    if (random && files) {
        return usage_error(&self, "--shape and --case make random numbers: no files go with them");
    }
    if (r->text != NULL && (r->op != NULL || r->variant != NULL || r->dtype != EVO_NONE)) {
        return usage_error(&self, "--case says all of the case: leave --op, --variant and --dtype out");
    }
    for (int i = 0; i < MOST_PARAMS && r->text != NULL; i++) {
        if (r->params[i] != NULL) {
            return usage_error(&self, "--case says all of the case: leave --%s out", options[own_count() + i].name);
        }
    }
    if (r->prefix != NULL && r->weight_count == 0 && r->peer == NULL) {
        return usage_error(&self, "--weights-prefix needs --weights or --weights-from");
    }
    for (int i = 0; i < r->weight_count; i++) {
        if (strchr(r->weights[i], '=') == NULL && has_ending(r->weights[i], ".npy")) {
            return usage_error(&self, "--weights %s: a .npy holds one weight, expected NAME=%s", r->weights[i],
                               r->weights[i]);
        }
    }
    if (r->views && (r->case_path == NULL || r->peer != NULL)) {
        return usage_error(&self, "--views needs a case file, and excludes --weights-from");
    }
    if (r->case_path == NULL && r->text == NULL && r->op == NULL) {
        return usage_error(&self, "which op? Name a case file, or give --op");
    }
    if (r->case_path == NULL && !random && (r->input == NULL || r->weight_count == 0)) {
        return usage_error(&self, "--op needs --input and --weights, or --shape for random numbers");
    }
    return check_outputs(r);
}

static int make_case(const struct request *r, struct evo_case *c) {
    const struct case_op *op = r->op != NULL ? case_op_find(r->op) : NULL;
    struct opened opened = { .file_count = 0 };
    int status = check_form(r);
    if (status != STATUS_GOOD) {
        return status;
    }
    if (r->op != NULL && op == NULL) {
        return usage_error(&self, "--op: \"%s\" is no op; there are " CASE_OP_NAMES, r->op);
    }
    if (op != NULL && (status = check_peer(r, op)) != STATUS_GOOD) {
        return status;
    }
    if (r->case_path != NULL) {
        status = from_case_file(r, &opened, c);
    } else if (r->shape != NULL || r->text != NULL) {
        status = from_nothing(r, op, c);
    } else {
        status = from_files(r, op, &opened, c);
    }
    close_all(&opened);
    return status;
}

static int run(const struct request *r) {
    struct evo_case c;
    evo_context *context = NULL;
    memset(&c, 0, sizeof c);
    int status = make_case(r, &c);
    if (status == STATUS_GOOD && open_device(&self, r->device, &context, &status)) {
        status = compute(r, &c, context);
    }
    evo_context_destroy(context);
    case_destroy(&c);
    return status;
}

int command_run(int argc, char **argv) {
    struct arguments arguments = { &self, argc, argv, NULL };
    struct request request = { .device = "auto", .seed = 1 };
    int key;
    make_options();
    while ((key = next_option(&arguments)) != 0) {
        if (key == KEY_HELP) {
            print_help(&(struct command){ self.name, self.usage, self.about, own_options });
            for (int i = 0; case_op_get(i) != NULL; i++) {
                print_op_options(case_op_get(i));
            }
            return close_output(&self, STATUS_GOOD);
        }
        if (!take_option(&request, key, arguments.value)) {
            return STATUS_USAGE;
        }
    }
    if (optind < argc) {
        request.case_path = argv[optind++];
    }
    if (optind < argc) {
        return usage_error(&self, "unexpected argument \"%s\"", argv[optind]);
    }
    return close_output(&self, run(&request));
}
