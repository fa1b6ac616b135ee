/* opm.c: the outer product mean as a case's op. */
#include "case/ops.h"

#include <stddef.h>

#define SIZE(member) offsetof(evo_opm_desc, member)
#define WEIGHT(name, member, extents, bias) \
    { name, CASE_WEIGHT, extents, bias, 0, offsetof(evo_opm_weights, member) }
#define ACTIVATION(name, role, member, extents) \
    { name, role, extents, 0, SIZE(member), offsetof(evo_opm_args, member) }

static const struct case_dim dims[] = { { 'B', "b", SIZE(batch), 0, 1 },
                                        { 'S', "s", SIZE(s), 0, 5 },
                                        { 'N', "n", SIZE(n), 0, 7 },
                                        { 'm', "c_m", SIZE(c_m), 0, 16 },
                                        { 'c', "c", SIZE(c), 0, 8 },
                                        { 'z', "c_z", SIZE(c_z), 0, 12 },
                                        { 0, NULL, 0, 0, 0 } };

static const struct case_spec specs[] = {
    ACTIVATION("m", CASE_INPUT, m, "B,S,N,m"),
    ACTIVATION("mask", CASE_MASK, mask, "B,S,N"),
    ACTIVATION("residual", CASE_RESIDUAL, residual, "B,N,N,z"),
    WEIGHT("norm.weight", norm_weight, "m", 0),
    WEIGHT("norm.bias", norm_bias, "m", EVO_OPM_BIAS_NORM),
    WEIGHT("a.weight", a_weight, "c,m", 0),
    WEIGHT("a.bias", a_bias, "c", EVO_OPM_BIAS_A),
    WEIGHT("b.weight", b_weight, "c,m", 0),
    WEIGHT("b.bias", b_bias, "c", EVO_OPM_BIAS_B),
    WEIGHT("out.weight", out_weight, "z,cc", 0),
    WEIGHT("out.bias", out_bias, "z", EVO_OPM_BIAS_OUT),
    ACTIVATION("out", CASE_OUTPUT, out, "B,N,N,z"),
};

static const char *const divides[] = { "before", "after", NULL };
static const char *const sides[] = { "both", "a", NULL };
static const char *const counts[] = { "pair", NULL };

static const struct case_param params[] = {
    { NULL, "bias_a", false, CASE_PARAM_BIT, SIZE(biases), EVO_OPM_BIAS_A, NULL, NULL },
    { NULL, "bias_b", false, CASE_PARAM_BIT, SIZE(biases), EVO_OPM_BIAS_B, NULL, NULL },
    { NULL, "bias_out", false, CASE_PARAM_BIT, SIZE(biases), EVO_OPM_BIAS_OUT, NULL, NULL },
    { NULL, "count", false, CASE_PARAM_FIXED, 0, 0, counts, NULL },
    { "count_eps", "eps", false, CASE_PARAM_NUMBER, SIZE(count_eps), 0, NULL, "what is added to the count" },
    { "count_min", "min", false, CASE_PARAM_NUMBER, SIZE(count_min), 0, NULL, "the least normaliser" },
    { "divide", "divide", false, CASE_PARAM_CHOICE, SIZE(divide), 0, divides,
      "whether to divide by the normaliser before W_o or after it" },
    { "mask_sides", "mask_sides", false, CASE_PARAM_CHOICE, SIZE(mask_sides), 0, sides,
      "which sides the mask multiplies" },
    { "biases", NULL, false, CASE_PARAM_BITS, SIZE(biases), 0, NULL, "none, all, or some of norm,a,b,out" },
    { NULL, "norm_biases", true, CASE_PARAM_BITS, SIZE(biases), EVO_OPM_BIAS_NORM, NULL, NULL },
    { "ln_eps", "ln_eps", false, CASE_PARAM_NUMBER, SIZE(layer_norm_eps), 0, NULL, "eps of LayerNorm" },
    { "mask_max", NULL, false, CASE_PARAM_NUMBER, SIZE(mask_max), 0, NULL, "largest mask value to expect" },
    { NULL, NULL, false, CASE_PARAM_FIXED, 0, 0, NULL, NULL }
};

static const char *const checks[] = {
    /* depths of the MSA; deep ones take the other order of contraction */
    "s=0,n=5", "s=0,n=5,mask=none,residual=1", "s=1,n=9", "s=1,n=9,mask=none", "s=2", "s=17", "s=65,n=9",
    "s=130,n=5,c_z=4",
    /* sizes that fit no tile, and the mission's module */
    "c_m=13,c=5,c_z=7", "c_m=1,c=1,c_z=1,mask=none,s=3", "b=2,s=8,n=32,c_m=64,c=8,c_z=64",
    "s=12,n=9,c_m=256,c=32,c_z=32",
    /* every way to divide, and to mask */
    "divide=before,mask_sides=both,count_eps=0.001,count_min=0,mask=row",
    "divide=after,mask_sides=both,count_eps=0,count_min=1", "divide=before,mask_sides=a,count_eps=0.5,count_min=2",
    "divide=after,mask_sides=a,count_eps=0,count_min=0.25,mask=column",
    "divide=after,mask_sides=a,count_eps=0.001,count_min=1,mask=fractional,residual=1",
    "divide=before,count_eps=0,count_min=1,mask=all", "divide=after,count_eps=0.001,count_min=0,mask=all",
    /* every bias alone */
    "biases=norm", "biases=a", "biases=b", "biases=out", "biases=a+out", "biases=norm+b",
    /* the output over the residual */
    "residual=1,alias=residual", "residual=1,alias=residual,layout=padded",
    "residual=1,alias=residual,layout=transposed", "residual=1,alias=residual,layout=negative,b=2",
    "residual=1,alias=residual,layout=slice,runs=2", "residual=1,alias=residual,layout=broadcast", NULL
};

static void init(union case_desc *desc) {
    desc->opm = (evo_opm_desc)EVO_OPM_DESC_INIT;
}

static void init_weights(union case_weights *weights) {
    weights->opm = (evo_opm_weights)EVO_OPM_WEIGHTS_INIT;
}

static void init_args(union case_args *args) {
    args->opm = (evo_opm_args)EVO_OPM_ARGS_INIT;
}

static evo_status set_variant(union case_desc *desc, const char *name) {
    return evo_opm_set_variant(&desc->opm, name);
}

static struct case_common common(union case_desc *desc) {
    evo_opm_desc *d = &desc->opm;
    return (
        struct case_common){ &d->compute, &d->kernel, &d->workspace_limit, &d->alias, &d->biases, EVO_ALIAS_RESIDUAL };
}

/* Row (b, s, n) is a side of every pair that n stands in. */
static bool reaches(const union case_desc *desc, const int64_t *row, const int64_t *pair) {
    (void)desc;
    return row[0] == pair[0] && (row[2] == pair[1] || row[2] == pair[2]);
}

static evo_status plan_create(evo_context *context, const union case_desc *desc, evo_plan **plan) {
    return evo_opm_plan_create(context, &desc->opm, plan);
}

static evo_status pack(const evo_plan *plan, const union case_weights *weights, void *memory, size_t size,
                       evo_stream stream, evo_pack **result) {
    return evo_opm_pack_weights(plan, &weights->opm, memory, size, stream, result);
}

static evo_status execute(const evo_plan *plan, const evo_pack *packed, const union case_args *args, void *workspace,
                          size_t workspace_size, evo_stream stream) {
    return evo_opm_execute(plan, packed, &args->opm, workspace, workspace_size, stream);
}

const struct case_op case_op_opm = {
    .id = EVO_OP_OPM,
    .name = "opm",
    .dims = dims,
    .specs = specs,
    .spec_count = (int)(sizeof specs / sizeof specs[0]),
    .params = params,
    .shape_help = "B,S,N,c_m,c,c_z",
    .checks = checks,
    .init = init,
    .init_weights = init_weights,
    .init_args = init_args,
    .set_variant = set_variant,
    .variant = evo_opm_variant,
    .common = common,
    .reaches = reaches,
    .plan_create = plan_create,
    .pack = pack,
    .execute = execute,
};
