/* trimul.c: the triangle multiplicative update as a case's op. */
#include "case/ops.h"

#include <stddef.h>

#define SIZE(member) offsetof(evo_trimul_desc, member)
#define WEIGHT(name, member, extents, bias) \
    { name, CASE_WEIGHT, extents, bias, 0, offsetof(evo_trimul_weights, member) }
#define ACTIVATION(name, role, member, extents) \
    { name, role, extents, 0, SIZE(member), offsetof(evo_trimul_args, member) }

static const struct case_dim dims[] = { { 'B', "b", SIZE(batch), 0, 1 },       { 'N', "n", SIZE(n), 0, 7 },
                                        { 'z', "c_z", SIZE(c_z), 0, 16 },      { 'c', "c", SIZE(c), 0, 8 },
                                        { 'o', "c_out", SIZE(c_out), 'z', 0 }, { 0, NULL, 0, 0, 0 } };

static const struct case_spec specs[] = {
    ACTIVATION("z", CASE_INPUT, z, "B,N,N,z"),
    ACTIVATION("mask", CASE_MASK, mask, "B,N,N"),
    ACTIVATION("residual", CASE_RESIDUAL, residual, "B,N,N,o"),
    WEIGHT("norm_in.weight", norm_in_weight, "z", 0),
    WEIGHT("norm_in.bias", norm_in_bias, "z", EVO_TRIMUL_BIAS_NORM_IN),
    WEIGHT("a_proj.weight", a_proj_weight, "c,z", 0),
    WEIGHT("a_proj.bias", a_proj_bias, "c", EVO_TRIMUL_BIAS_A_PROJ),
    WEIGHT("a_gate.weight", a_gate_weight, "c,z", 0),
    WEIGHT("a_gate.bias", a_gate_bias, "c", EVO_TRIMUL_BIAS_A_GATE),
    WEIGHT("b_proj.weight", b_proj_weight, "c,z", 0),
    WEIGHT("b_proj.bias", b_proj_bias, "c", EVO_TRIMUL_BIAS_B_PROJ),
    WEIGHT("b_gate.weight", b_gate_weight, "c,z", 0),
    WEIGHT("b_gate.bias", b_gate_bias, "c", EVO_TRIMUL_BIAS_B_GATE),
    WEIGHT("norm_out.weight", norm_out_weight, "c", 0),
    WEIGHT("norm_out.bias", norm_out_bias, "c", EVO_TRIMUL_BIAS_NORM_OUT),
    WEIGHT("out.weight", out_weight, "o,c", 0),
    WEIGHT("out.bias", out_bias, "o", EVO_TRIMUL_BIAS_OUT),
    WEIGHT("out_gate.weight", out_gate_weight, "o,z", 0),
    WEIGHT("out_gate.bias", out_gate_bias, "o", EVO_TRIMUL_BIAS_OUT_GATE),
    ACTIVATION("out", CASE_OUTPUT, out, "B,N,N,o"),
};

static const char *const directions[] = { "outgoing", "incoming", NULL };
static const char *const gate_inputs[] = { "normed", "raw", NULL };

/* Files name these apart, since all published models have them. */
#define NORMS (unsigned)(EVO_TRIMUL_BIAS_NORM_IN | EVO_TRIMUL_BIAS_NORM_OUT)

static const struct case_param params[] = {
    { "direction", "direction", false, CASE_PARAM_CHOICE, SIZE(direction), 0, directions, "which index is summed" },
    { "gate_input", "gate_input", false, CASE_PARAM_CHOICE, SIZE(gate_input), 0, gate_inputs,
      "what the output gate reads" },
    { "biases", "biases", false, CASE_PARAM_BITS, SIZE(biases), EVO_TRIMUL_BIAS_ALL & ~NORMS, NULL,
      "none, all, or some of norm_in,a_proj,a_gate,b_proj,b_gate,norm_out,out,out_gate" },
    { NULL, "norm_biases", true, CASE_PARAM_BITS, SIZE(biases), NORMS, NULL, NULL },
    { "ln_eps", "ln_eps", false, CASE_PARAM_NUMBER, SIZE(layer_norm_eps), 0, NULL, "eps of both LayerNorms" },
    { "mask_max", NULL, false, CASE_PARAM_NUMBER, SIZE(mask_max), 0, NULL, "largest mask value to expect" },
    { NULL, NULL, false, CASE_PARAM_FIXED, 0, 0, NULL, NULL }
};

static const char *const checks[] = {
    /* another width of the output, sizes that fit no tile, the mission's module */
    "c_out=40", "c_out=4,residual=1", "c_out=20,c_z=8,layout=padded,residual=1", "c_z=13,c=5", "c_z=7,c=9,c_out=11",
    "b=2,n=32,c_z=64,c=16", "n=17,c_z=128,c=64",
    /* the gate from either input, with and without bias */
    "gate_input=raw", "gate_input=normed", "gate_input=raw,biases=none", "gate_input=raw,residual=1,mask=row",
    /* every bias alone */
    "biases=norm_in", "biases=a_proj", "biases=a_gate", "biases=b_proj", "biases=b_gate", "biases=norm_out",
    "biases=out", "biases=out_gate", "biases=a_gate+b_gate+out",
    /* the output over the input, the residual, or both at once */
    "alias=input", "alias=input,b=2,n=33,runs=2", "alias=input,layout=padded", "alias=input,layout=transposed",
    "alias=input,layout=negative", "alias=input,layout=slice", "alias=input,residual=1", "residual=1,alias=residual",
    "residual=1,alias=residual,layout=slice", "residual=1,alias=residual,layout=transposed", "residual=1,alias=both",
    "residual=1,alias=both,layout=padded,runs=2", "residual=1,alias=both,layout=transposed",
    "alias=input,layout=broadcast", "alias=input,gate_input=raw", NULL
};

static void init(union case_desc *desc) {
    desc->trimul = (evo_trimul_desc)EVO_TRIMUL_DESC_INIT;
}

static void init_weights(union case_weights *weights) {
    weights->trimul = (evo_trimul_weights)EVO_TRIMUL_WEIGHTS_INIT;
}

static void init_args(union case_args *args) {
    args->trimul = (evo_trimul_args)EVO_TRIMUL_ARGS_INIT;
}

static evo_status set_variant(union case_desc *desc, const char *name) {
    return evo_trimul_set_variant(&desc->trimul, name);
}

static struct case_common common(union case_desc *desc) {
    evo_trimul_desc *d = &desc->trimul;
    return (struct case_common){ &d->compute, &d->kernel, &d->workspace_limit,
                                 &d->alias,   &d->biases, EVO_ALIAS_INPUT | EVO_ALIAS_RESIDUAL };
}

/* Edge (b, p, q) is a_ik and b_jk of its row's pairs (outgoing: p), or a_ki and b_kj of its column's (incoming: q). */
static bool reaches(const union case_desc *desc, const int64_t *row, const int64_t *pair) {
    int64_t end = desc->trimul.direction == EVO_OUTGOING ? row[1] : row[2];
    return row[0] == pair[0] && (end == pair[1] || end == pair[2]);
}

static evo_status plan_create(evo_context *context, const union case_desc *desc, evo_plan **plan) {
    return evo_trimul_plan_create(context, &desc->trimul, plan);
}

static evo_status pack(const evo_plan *plan, const union case_weights *weights, void *memory, size_t size,
                       evo_stream stream, evo_pack **result) {
    return evo_trimul_pack_weights(plan, &weights->trimul, memory, size, stream, result);
}

static evo_status execute(const evo_plan *plan, const evo_pack *packed, const union case_args *args, void *workspace,
                          size_t workspace_size, evo_stream stream) {
    return evo_trimul_execute(plan, packed, &args->trimul, workspace, workspace_size, stream);
}

const struct case_op case_op_trimul = {
    .id = EVO_OP_TRIMUL,
    .name = "trimul",
    .dims = dims,
    .specs = specs,
    .spec_count = (int)(sizeof specs / sizeof specs[0]),
    .params = params,
    .shape_help = "B,N,c_z,c[,c_out]",
    .checks = checks,
    .init = init,
    .init_weights = init_weights,
    .init_args = init_args,
    .set_variant = set_variant,
    .variant = evo_trimul_variant,
    .common = common,
    .reaches = reaches,
    .plan_create = plan_create,
    .pack = pack,
    .execute = execute,
};
