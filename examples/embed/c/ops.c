/*
 * ops.c: one outer product mean and one triangle multiplication with libevoformer, in C.
 * usage: ops                on numbers that are made up
 *        ops CASE RESULT    on the sizes and arrays of a file; the two outputs go to another
 */
#include <evoformer/evoformer.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *input, *output; /* NULL without arguments */
static evo_context *context; /* the device */
static void *owned[32];      /* memory of one op */
static int owned_count;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "ops: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

#define TRY(call) ((call) == EVO_OK ? (void)0 : fail(#call, evo_last_error()))

static void *device_memory(size_t bytes) {
    void *memory;
    TRY(evo_memory_alloc(context, bytes, &memory));
    return owned[owned_count++] = memory;
}

static void release(void) {
    while (owned_count > 0) TRY(evo_memory_free(context, owned[--owned_count]));
}

/* The next numbers of the file, or numbers that are made up, in memory of the device. */
static void *array(int64_t count) {
    static int made_up;
    size_t bytes = (size_t)count * sizeof(float);
    float *host = malloc(bytes);
    void *memory = device_memory(bytes);

    if (!host) fail("array", "out of memory");
    for (int64_t i = 0; i < count && !input; i++) host[i] = 0.5f + 0.5f * sinf((float)made_up++);
    if (input && fread(host, sizeof(float), (size_t)count, input) != (size_t)count) fail("array", "the file ends");
    TRY(evo_memory_copy(context, memory, host, bytes, NULL));
    TRY(evo_stream_synchronize(context, NULL)); /* the copy is done: the host's memory may go */
    free(host);
    return memory;
}

/* Contiguous weights; a view with other strides would take weights as another program stores them. */
static evo_weight weight(int64_t count) {
    return (evo_weight){ array(count), EVO_FP32, { 0, 0 } };
}

/* Replaces the sizes by those of the file, if there is one. */
static void sizes(int64_t *values, size_t count) {
    if (input && fread(values, sizeof *values, count, input) != count) fail("sizes", "the file ends");
}

/* Waits for the result, shows its first number, and writes all to the output. */
static void download(const evo_plan_info *info, const void *memory, int64_t count) {
    float *host = calloc((size_t)count + 1, sizeof(float));

    if (!host) fail("download", "out of memory");
    TRY(evo_memory_copy(context, host, memory, (size_t)count * sizeof(float), NULL));
    TRY(evo_stream_synchronize(context, NULL));
    printf("%s with kernel %s: %" PRId64 " numbers, the first is %g\n", evo_op_name(info->op), info->kernel, count,
           (double)host[0]);
    if (output && fwrite(host, sizeof(float), (size_t)count, output) != (size_t)count) fail("download", "cannot write");
    free(host);
}

static void outer_product_mean(void) {
    int64_t size[] = { 1, 64, 32, 32, 16, 24 }; /* B, S, N, c_m, c, c_z */
    sizes(size, 6);
    int64_t b = size[0], s = size[1], n = size[2], c_m = size[3], c = size[4], c_z = size[5];

    evo_opm_desc desc = EVO_OPM_DESC_INIT;
    desc.batch = b, desc.s = s, desc.n = n, desc.c_m = c_m, desc.c = c, desc.c_z = c_z;
    desc.mask.dtype = EVO_FP32; /* m and out are EVO_FP32 unless told otherwise */
    TRY(evo_opm_set_variant(&desc, "alphafold2"));
    evo_plan *plan;
    TRY(evo_opm_plan_create(context, &desc, &plan));
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    TRY(evo_plan_get_info(plan, &info));

    evo_opm_args args = EVO_OPM_ARGS_INIT;
    args.m = array(b * s * n * c_m); /* [B, S, N, c_m] */
    args.mask = array(b * s * n);    /* [B, S, N] */
    args.out = device_memory((size_t)(b * n * n * c_z) * sizeof(float));
    evo_opm_weights weights = EVO_OPM_WEIGHTS_INIT;
    weights.norm_weight = weight(c_m), weights.norm_bias = weight(c_m);
    weights.a_weight = weight(c * c_m), weights.a_bias = weight(c);
    weights.b_weight = weight(c * c_m), weights.b_bias = weight(c);
    weights.out_weight = weight(c_z * c * c), weights.out_bias = weight(c_z);

    evo_pack *pack; /* serves every plan with these channels and this kernel, whatever its N and S */
    void *pack_memory = device_memory(info.pack_size), *workspace = device_memory(info.workspace_size);
    TRY(evo_opm_pack_weights(plan, &weights, pack_memory, info.pack_size, NULL, &pack));
    TRY(evo_opm_execute(plan, pack, &args, workspace, info.workspace_size, NULL));
    download(&info, args.out, b * n * n * c_z);
    evo_pack_destroy(pack);
    evo_plan_destroy(plan);
    release();
}

static void triangle_multiplication(void) {
    int64_t size[] = { 1, 32, 24, 16, EVO_OUTGOING }; /* B, N, c_z, c, direction */
    sizes(size, 5);
    int64_t b = size[0], n = size[1], c_z = size[2], c = size[3];

    evo_trimul_desc desc = EVO_TRIMUL_DESC_INIT; /* variant "alphafold2" */
    desc.batch = b, desc.n = n, desc.c_z = c_z, desc.c = c;
    desc.direction = (evo_direction)size[4];
    desc.mask.dtype = EVO_FP32;
    evo_plan *plan;
    TRY(evo_trimul_plan_create(context, &desc, &plan));
    evo_plan_info info = EVO_PLAN_INFO_INIT;
    TRY(evo_plan_get_info(plan, &info));

    evo_trimul_args args = EVO_TRIMUL_ARGS_INIT;
    args.z = array(b * n * n * c_z); /* [B, N, N, c_z] */
    args.mask = array(b * n * n);    /* [B, N, N] */
    args.out = device_memory((size_t)(b * n * n * c_z) * sizeof(float));
    evo_trimul_weights weights = EVO_TRIMUL_WEIGHTS_INIT;
    weights.norm_in_weight = weight(c_z), weights.norm_in_bias = weight(c_z);
    weights.a_proj_weight = weight(c * c_z), weights.a_proj_bias = weight(c);
    weights.a_gate_weight = weight(c * c_z), weights.a_gate_bias = weight(c);
    weights.b_proj_weight = weight(c * c_z), weights.b_proj_bias = weight(c);
    weights.b_gate_weight = weight(c * c_z), weights.b_gate_bias = weight(c);
    weights.norm_out_weight = weight(c), weights.norm_out_bias = weight(c);
    weights.out_weight = weight(c_z * c), weights.out_bias = weight(c_z);
    weights.out_gate_weight = weight(c_z * c_z), weights.out_gate_bias = weight(c_z);

    evo_pack *pack;
    void *pack_memory = device_memory(info.pack_size), *workspace = device_memory(info.workspace_size);
    TRY(evo_trimul_pack_weights(plan, &weights, pack_memory, info.pack_size, NULL, &pack));
    TRY(evo_trimul_execute(plan, pack, &args, workspace, info.workspace_size, NULL));
    download(&info, args.out, b * n * n * c_z);
    evo_pack_destroy(pack);
    evo_plan_destroy(plan);
    release();
}

int main(int argc, char **argv) {
    if (argc == 3) {
        input = fopen(argv[1], "rb");
        output = fopen(argv[2], "wb");
        if (!input || !output) fail(argv[input ? 2 : 1], "cannot open it");
    }
    TRY(evo_context_create("auto", NULL, &context)); /* a GPU that the library has kernels for, else the CPU */
    outer_product_mean();
    triangle_multiplication();
    evo_context_destroy(context);
    return output && fclose(output) != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
