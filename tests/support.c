/* support.c: see support.h. */
#include "support.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MARK = 0xa5
};

const char *const sample_texts[SAMPLE_COUNT] = {
    "opm(b=2,s=3,n=5,c_m=8,c=4,c_z=6,mask=random,residual=1)",
    "trimul(b=2,n=5,c_z=6,c=4,mask=random,residual=1)",
};

const char *test_device(void) {
    const char *name = getenv("EVO_TEST_DEVICE");
    return name != NULL && name[0] != '\0' ? name : "cpu";
}

int test_device_missing(void) {
    evo_context *context = NULL;
    evo_status status = evo_context_create(test_device(), NULL, &context);
    evo_context_destroy(context);
    if (status != EVO_ERROR_NOT_COMPILED && status != EVO_ERROR_NO_DEVICE) return 0;
    fprintf(stderr, "skipped: %s\n", evo_last_error());
    return 1;
}

evo_context *test_context(const evo_context_options *options) {
    evo_context *context = NULL;
    OK(evo_context_create(test_device(), options, &context));
    assert_non_null(context);
    return context;
}

uint64_t test_seed(uint64_t fallback) {
    const char *text = getenv("EVO_TEST_SEED");
    uint64_t seed = text != NULL && text[0] != '\0' ? strtoull(text, NULL, 0) : fallback;
    printf("EVO_TEST_SEED=%" PRIu64 "\n", seed);
    return seed;
}

static int number_in(const char *variable) {
    const char *text = getenv(variable);
    return text != NULL ? atoi(text) : 0;
}

int test_scaled(int count) {
    int scale = number_in("EVO_TEST_SCALE");
    int scaled = count / (scale > 1 ? scale : 1);
    return scaled > 1 ? scaled : 1;
}

int test_takes(int index) {
    return test_takes_share(index, number_in("EVO_TEST_SCALE") / 2);
}

int test_takes_share(int index, int runs) {
    if (getenv("EVO_TEST_TURN") == NULL || runs <= 1) return 1;
    return (index + number_in("EVO_TEST_TURN")) % runs == 0;
}

static int plan_fp64(evo_context *context, const struct case_op *op) {
    char text[CASE_NAME_SIZE];
    struct evo_case c;
    struct io_error error;
    union case_desc desc;
    evo_plan *plan = NULL;
    snprintf(text, sizeof text, "%s(dtype=fp64)", op->name);
    if (!case_parse(text, 1, &c, &error)) fail_msg("%s: %s", text, error.text);
    case_descriptor(&c, &desc);
    evo_status status = op->plan_create(context, &desc, &plan);
    evo_plan_destroy(plan);
    case_destroy(&c);
    if (status != EVO_OK) {
        REFUSED(status, EVO_ERROR_UNSUPPORTED, "fp64");
        print_message("%s of %s takes no fp64: its fp64 cases run in fp32\n", op->name, test_device());
    }
    return status == EVO_OK;
}

int test_takes_fp64(evo_context *context, const struct case_op *op) {
    static struct {
        int asked, takes;
    } answers[16];
    int index = 0;
    while (case_op_get(index) != op) index++;
    assert_true(index < (int)(sizeof answers / sizeof *answers));
    if (!answers[index].asked) {
        answers[index].takes = plan_fp64(context, op);
        answers[index].asked = 1;
    }
    return answers[index].takes;
}

static void append(char *text, size_t size, const char *more, size_t length) {
    size_t used = strlen(text);
    assert_true(used + length < size);
    memcpy(text + used, more, length);
    text[used + length] = '\0';
}

void test_fit(evo_context *context, const char *text, char *fitted, size_t size) {
    static const char *const keys[] = { "dtype=fp64", "compute=fp64", "residual_dtype=fp64", "out_dtype=fp64" };
    const char *const weights = strstr(text, "weights=") != NULL ? "" : ",weights=fp64";
    char name[32] = "";
    fitted[0] = '\0';
    append(name, sizeof name, text, strcspn(text, "("));
    const struct case_op *op = case_op_find(name);
    int takes = op == NULL || test_takes_fp64(context, op);
    while (*text != '\0') {
        size_t length = strcspn(text, "(,)");
        int replaced = 0;
        for (size_t k = 0; k < sizeof keys / sizeof *keys && !takes && !replaced; k++) {
            size_t kept = strlen(keys[k]) - strlen("fp64");
            replaced = length == strlen(keys[k]) && strncmp(text, keys[k], length) == 0;
            if (!replaced) continue;
            append(fitted, size, keys[k], kept);
            append(fitted, size, "fp32", strlen("fp32"));
            if (k == 0) append(fitted, size, weights, strlen(weights));
        }
        if (!replaced) append(fitted, size, text, length);
        text += length;
        if (*text != '\0') append(fitted, size, text++, 1);
    }
}

void test_needs_cpu(evo_context *context, const char *reason) {
    evo_device_info info = EVO_DEVICE_INFO_INIT;
    OK(evo_context_device(context, &info));
    if (strcmp(info.name, "cpu") == 0) return;
    print_message("skipped on %s: %s\n", info.name, reason);
    skip();
}

int test_has_hopper(evo_context *context) {
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    evo_backend_info backend = EVO_BACKEND_INFO_INIT;
    OK(evo_context_device(context, &device));
    for (int k = 0; evo_backend_get(k, &backend) == EVO_OK; k++)
        if (strncmp(device.name, backend.name, strlen(backend.name)) == 0)
            return strcmp(device.arch, "sm_90") == 0 && strstr(backend.images, "sm_90a") != NULL;
    fail_msg("device %s is of no backend", device.name);
    return 0;
}

void *device_alloc(evo_context *context, size_t bytes) {
    void *memory = NULL;
    OK(evo_memory_alloc(context, bytes, &memory));
    return memory;
}

void device_free(evo_context *context, void *memory) {
    OK(evo_memory_free(context, memory));
}

void device_copy(evo_context *context, void *target, const void *source, size_t bytes) {
    OK(evo_memory_copy(context, target, source, bytes, NULL));
    OK(evo_stream_synchronize(context, NULL));
}

void check_ok(evo_status got, const char *call, const char *file, int line) {
    if (got == EVO_OK) return;
    print_error("%s\n    gives %s: %s\n", call, evo_status_name(got), evo_last_error());
    _fail(file, line);
}

void check_refused(evo_status got, evo_status want, const char *const *parts, const char *call, const char *file,
                   int line) {
    const char *text = evo_last_error();
    if (got != want) {
        print_error("%s\n    gives %s, expected %s: %s\n", call, evo_status_name(got), evo_status_name(want), text);
        _fail(file, line);
    }
    for (; *parts != NULL; parts++)
        if (strstr(text, *parts) == NULL) {
            print_error("%s\n    gives %s as it should, but its text lacks \"%s\": %s\n", call, evo_status_name(got),
                        *parts, text);
            _fail(file, line);
        }
}

const char *sample_kernel(const sample *s) {
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    OK(evo_plan_get_info(s->plan, &info));
    return info.kernel;
}

int sample_spec(const sample *s, enum case_role role) {
    for (int i = 0; i < s->op->spec_count; i++)
        if (s->op->specs[i].role == role) return i;
    fail_msg("op %s has no tensor of role %d", s->op->name, (int)role);
    return -1;
}

evo_tensor *sample_tensor(sample *s, enum case_role role) {
    return AT(evo_tensor, &s->desc, s->op->specs[sample_spec(s, role)].layout);
}

void **sample_pointer(sample *s, enum case_role role) {
    return AT(void *, &s->args, s->op->specs[sample_spec(s, role)].slot);
}

/*
 * Device memory with a tensor's values, or with none for the output. There is room behind an output: a test lets inputs begin at
 * its end, which should meet nothing else.
 */
static void *tensor_memory(evo_context *context, const struct case_tensor *tensor, size_t *bytes) {
    const size_t room = tensor->spec->role == CASE_OUTPUT ? 1 << 16 : 0;
    *bytes = (size_t)tensor->count * evo_dtype_size(tensor->dtype);
    void *memory = device_alloc(context, *bytes + room);
    unsigned char *stored = calloc(1, *bytes + 1);
    assert_non_null(stored);
    if (tensor->values != NULL) OK(evo_convert(tensor->values, EVO_FP64, stored, tensor->dtype, (size_t)tensor->count));
    if (*bytes > 0) device_copy(context, memory, stored, *bytes);
    free(stored);
    return memory;
}

static void sample_fill(sample *s, const struct evo_case *source) {
    for (int i = 0; i < s->op->spec_count; i++) {
        const struct case_tensor *tensor = &source->tensors[i];
        const struct case_spec *spec = &s->op->specs[i];
        size_t bytes;
        if (!tensor->present) continue;
        s->memory[i] = tensor_memory(s->context, tensor, &bytes);
        if (spec->role == CASE_WEIGHT)
            *AT(evo_weight, &s->weights, spec->slot) = (evo_weight){ s->memory[i], tensor->dtype, { 0, 0 } };
        else
            *AT(void *, &s->args, spec->slot) = s->memory[i];
        if (spec->role == CASE_OUTPUT) s->out_bytes = bytes;
    }
}

static void make_plan(sample *s) {
    OK(s->op->plan_create(s->context, &s->desc, &s->plan));
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    OK(evo_plan_get_info(s->plan, &info));
    s->pack_size = info.pack_size;
    s->workspace_size = info.workspace_size;
    /* More than the pack: a test lets workspaces and outputs begin there, which should meet nothing else. */
    s->pack_memory = device_alloc(s->context, s->pack_size + s->workspace_size + s->out_bytes);
    s->workspace = device_alloc(s->context, s->workspace_size);
    OK(s->op->pack(s->plan, &s->weights, s->pack_memory, s->pack_size, NULL, &s->pack));
}

static void drop_plan(sample *s) {
    evo_pack_destroy(s->pack);
    evo_plan_destroy(s->plan);
    device_free(s->context, s->pack_memory);
    device_free(s->context, s->workspace);
}

sample *sample_create(const char *text, evo_context *context) {
    struct evo_case source = { .op = NULL };
    struct io_error error;
    char fitted[CASE_NAME_SIZE];
    test_fit(context, text, fitted, sizeof fitted);
    if (!case_parse(fitted, 1, &source, &error)) fail_msg("%s: %s", fitted, error.text);
    sample *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->context = context;
    s->op = source.op;
    s->op->init_weights(&s->weights);
    s->op->init_args(&s->args);
    case_descriptor(&source, &s->desc);
    sample_fill(s, &source);
    case_destroy(&source);
    make_plan(s);
    return s;
}

void sample_destroy(sample *s) {
    drop_plan(s);
    for (int i = 0; i < CASE_MAX_TENSORS; i++) device_free(s->context, s->memory[i]);
    free(s);
}

void sample_force_kernel(sample *s, const char *kernel) {
    drop_plan(s);
    *s->op->common(&s->desc).kernel = kernel;
    make_plan(s);
}

evo_status sample_run(const sample *s) {
    return s->op->execute(s->plan, s->pack, &s->args, s->workspace, s->workspace_size, NULL);
}

unsigned char *sample_output(const sample *s) {
    unsigned char *host = malloc(s->out_bytes + 1);
    assert_non_null(host);
    device_copy(s->context, host, s->memory[sample_spec(s, CASE_OUTPUT)], s->out_bytes);
    return host;
}

void sample_mark_output(const sample *s) {
    OK(evo_memory_fill(s->context, s->memory[sample_spec(s, CASE_OUTPUT)], MARK, s->out_bytes, NULL));
    OK(evo_stream_synchronize(s->context, NULL));
}

int sample_output_marked(const sample *s) {
    unsigned char *host = sample_output(s);
    int marked = 1;
    for (size_t i = 0; i < s->out_bytes; i++) marked = marked && host[i] == MARK;
    free(host);
    return marked;
}
