/* trimul.c: the triangle multiplication's descriptor, variants, counts of work and walk over its stages. */
#include "src/plan.h"

#include <stdio.h>
#include <string.h>

enum {
    NORM_BIASES = EVO_TRIMUL_BIAS_NORM_IN | EVO_TRIMUL_BIAS_NORM_OUT,
    WITHOUT_OUTPUT_BIAS = EVO_TRIMUL_BIAS_ALL & ~EVO_TRIMUL_BIAS_OUT
};

static const struct {
    const char *name;
    unsigned biases;
    evo_gate_input gate_input;
} variants[] = {
    { "alphafold2", EVO_TRIMUL_BIAS_ALL, EVO_GATE_NORMED },
    { "alphafold3", NORM_BIASES, EVO_GATE_NORMED },
    { "boltz", NORM_BIASES, EVO_GATE_NORMED },
    { "helixfold", EVO_TRIMUL_BIAS_ALL, EVO_GATE_NORMED },
    { "megafold", WITHOUT_OUTPUT_BIAS, EVO_GATE_NORMED },
    { "mean", EVO_TRIMUL_BIAS_ALL, EVO_GATE_RAW },
};

const char *evo_trimul_variant(int index) {
    const int count = (int)(sizeof variants / sizeof *variants);
    return index >= 0 && index < count ? variants[index].name : NULL;
}

evo_status evo_trimul_set_variant(evo_trimul_desc *desc, const char *variant) {
    if (!desc) return evo_fail_null("evo_trimul_set_variant", "desc");
    if (!variant) return evo_fail_null("evo_trimul_set_variant", "variant");
    for (int v = 0; evo_trimul_variant(v); v++) {
        if (strcmp(variants[v].name, variant) != 0) continue;
        desc->biases = variants[v].biases;
        desc->gate_input = variants[v].gate_input;
        return EVO_OK;
    }
    return evo_fail_variant("evo_trimul_set_variant", variant, evo_trimul_variant);
}

static evo_status check_numbers(const char *function, evo_trimul_desc *d) {
    if (d->c_out == 0) d->c_out = d->c_z;
    evo_status status = evo_check_extent(function, "batch", d->batch, 0);
    if (status == EVO_OK) status = evo_check_extent(function, "n", d->n, 0);
    if (status == EVO_OK) status = evo_check_extent(function, "c_z", d->c_z, 1);
    if (status == EVO_OK) status = evo_check_extent(function, "c", d->c, 1);
    if (status == EVO_OK) status = evo_check_extent(function, "c_out", d->c_out, 1);
    if (status == EVO_OK) status = evo_check_bits(function, "biases", d->biases, EVO_TRIMUL_BIAS_ALL);
    if (status == EVO_OK) status = evo_check_choice(function, "direction", (int)d->direction, EVO_INCOMING + 1);
    if (status == EVO_OK) status = evo_check_choice(function, "gate_input", (int)d->gate_input, EVO_GATE_RAW + 1);
    if (status == EVO_OK)
        status = evo_check_common(function, d->compute, d->propagation, d->layer_norm_eps, d->mask_max);
    return status;
}

/* Four projections, the sum over k, output projection and gate, two operations a multiply-add. */
static double count_flops(const evo_trimul_desc *d) {
    const double b = (double)d->batch, n = (double)d->n, c_z = (double)d->c_z, c = (double)d->c,
                 c_out = (double)d->c_out;
    return 2.0 * b * n * n * (4.0 * c_z * c + n * c + c * c_out + c_z * c_out);
}

/* z twice (the projections and the gate), a, b and t written and read, mask, residual and output once. */
static double count_bytes(const evo_trimul_desc *d) {
    const double element = (double)evo_dtype_size(d->z.dtype);
    const double outputs = (double)(evo_dtype_size(d->out.dtype) + evo_dtype_size(d->residual.dtype));
    return (double)d->batch * (double)d->n * (double)d->n *
           (2.0 * (double)d->c_z * element + 6.0 * (double)d->c * element + (double)evo_dtype_size(d->mask.dtype) +
            (double)d->c_out * outputs);
}

static evo_status describe_operands(const char *function, evo_trimul_desc *d, evo_plan_request *request) {
    const int64_t b = d->batch, n = d->n;
    const evo_operand operands[] = {
        { .name = "z", .rank = 4, .extent = { b, n, n, d->c_z }, .alias = EVO_ALIAS_INPUT },
        { .name = "mask", .rank = 3, .extent = { b, n, n, 1 } },
        { .name = "residual", .rank = 4, .extent = { b, n, n, d->c_out }, .alias = EVO_ALIAS_RESIDUAL },
        { .name = "out", .rank = 4, .extent = { b, n, n, d->c_out } },
    };
    evo_operand *o = request->operands;
    request->operand_count = 4;
    memcpy(o, operands, sizeof operands);
    evo_status status = evo_operand_resolve(function, &d->z, &o[0], EVO_NUMBER_FLOAT, false);
    if (status == EVO_OK) status = evo_operand_resolve(function, &d->mask, &o[1], EVO_NUMBER_ANY, true);
    if (status == EVO_OK) status = evo_operand_resolve(function, &d->residual, &o[2], EVO_NUMBER_FLOAT, true);
    if (status == EVO_OK) status = evo_operand_resolve(function, &d->out, &o[3], EVO_NUMBER_FLOAT, false);
    if (status == EVO_OK) status = evo_operand_check_output(function, &o[3]);
    if (status == EVO_OK) status = evo_check_alias(request);
    return status;
}

/*
 * The whole of t by default. A workspace limit keeps t for a block of rows only, or a and b for a group of channels only,
 * or both, which projects the groups again for each block of rows.
 */
static evo_status walk(const evo_call *call) {
    const evo_trimul_desc *d = &call->problem->desc.trimul;
    const evo_schedule *step = &call->form->schedule;
    evo_tile tile = { .cols = { 0, d->n } };
    for (int64_t b = 0; b < d->batch; b += step->batch) {
        tile.batch = evo_step(b, step->batch, d->batch);
        for (int64_t i = 0; i < d->n; i += step->rows) {
            tile.rows = evo_step(i, step->rows, d->n);
            for (int64_t k = 0; k < d->c; k += step->channels) {
                tile.channels = evo_step(k, step->channels, d->c);
                evo_tile everywhere = tile;
                everywhere.rows = (evo_range){ 0, d->n };
                evo_status status = EVO_OK;
                if (i == 0 || step->channels < d->c)
                    status = evo_run_stage(call, EVO_STAGE_TRIMUL_PROJECT, &everywhere);
                if (status == EVO_OK) status = evo_run_stage(call, EVO_STAGE_TRIMUL_CONTRACT, &tile);
                if (status != EVO_OK) return status;
            }
            tile.channels = (evo_range){ 0, d->c };
            const evo_status status = evo_run_stage(call, EVO_STAGE_TRIMUL_FINISH, &tile);
            if (status != EVO_OK) return status;
        }
    }
    return EVO_OK;
}

evo_status evo_trimul_plan_create(evo_context *context, const evo_trimul_desc *desc, evo_plan **plan) {
    static const char function[] = "evo_trimul_plan_create";
    evo_plan_request request = { .function = function, .problem.op = EVO_OP_TRIMUL, .walk = walk };
    evo_trimul_desc *d = &request.problem.desc.trimul;
    evo_status status = evo_struct_read(function, "desc", d, desc, sizeof *d);
    if (status == EVO_OK) status = check_numbers(function, d);
    if (status != EVO_OK) return status;
    request.compute = d->compute;
    request.alias = d->alias;
    request.kernel = d->kernel;
    d->kernel = NULL; /* the caller's string need not outlive the call */
    /* Without a mask there is no largest one: scales that leave room for it would lose digits. */
    if (d->mask.dtype == EVO_NONE) d->mask_max = 1.0;
    status = describe_operands(function, d, &request);
    if (status != EVO_OK) return status;
    snprintf(request.sizes, sizeof request.sizes, "B=%lld,N=%lld,c_z=%lld,c=%lld,c_out=%lld,%s,in=%s,out=%s",
             (long long)d->batch, (long long)d->n, (long long)d->c_z, (long long)d->c, (long long)d->c_out,
             d->direction == EVO_OUTGOING ? "outgoing" : "incoming", evo_dtype_name(d->z.dtype),
             evo_dtype_name(d->out.dtype));
    status = evo_check_weights_fit(&request, d->c_z, d->c, d->c, d->c_out);
    if (status == EVO_OK) status = evo_check_weights_fit(&request, d->c_z, d->c_out, 1, 1);
    if (status != EVO_OK) return status;
    request.empty = d->batch == 0 || d->n == 0;
    request.key = (evo_pack_key){ .op = EVO_OP_TRIMUL, .channels = { d->c_z, d->c, d->c_out }, .biases = d->biases };
    request.flops = count_flops(d);
    request.bytes = count_bytes(d);
    return evo_plan_build(context, &request, plan);
}

evo_status evo_trimul_pack_weights(const evo_plan *plan, const evo_trimul_weights *weights, void *memory,
                                   size_t memory_size, evo_stream stream, evo_pack **pack) {
    static const char function[] = "evo_trimul_pack_weights";
    evo_call_args args;
    evo_trimul_weights *w = &args.trimul_weights;
    evo_status status = evo_check_plan(function, plan, EVO_OP_TRIMUL);
    if (status == EVO_OK) status = evo_struct_read(function, "weights", w, weights, sizeof *w);
    if (status != EVO_OK) return status;
    const evo_trimul_desc *d = &plan->request.problem.desc.trimul;
    const evo_weight_spec specs[] = {
        { "norm_in_weight", &w->norm_in_weight, 1, d->c_z, 1, 0 },
        { "norm_in_bias", &w->norm_in_bias, 1, d->c_z, 1, EVO_TRIMUL_BIAS_NORM_IN },
        { "a_proj_weight", &w->a_proj_weight, 2, d->c, d->c_z, 0 },
        { "a_proj_bias", &w->a_proj_bias, 1, d->c, 1, EVO_TRIMUL_BIAS_A_PROJ },
        { "a_gate_weight", &w->a_gate_weight, 2, d->c, d->c_z, 0 },
        { "a_gate_bias", &w->a_gate_bias, 1, d->c, 1, EVO_TRIMUL_BIAS_A_GATE },
        { "b_proj_weight", &w->b_proj_weight, 2, d->c, d->c_z, 0 },
        { "b_proj_bias", &w->b_proj_bias, 1, d->c, 1, EVO_TRIMUL_BIAS_B_PROJ },
        { "b_gate_weight", &w->b_gate_weight, 2, d->c, d->c_z, 0 },
        { "b_gate_bias", &w->b_gate_bias, 1, d->c, 1, EVO_TRIMUL_BIAS_B_GATE },
        { "norm_out_weight", &w->norm_out_weight, 1, d->c, 1, 0 },
        { "norm_out_bias", &w->norm_out_bias, 1, d->c, 1, EVO_TRIMUL_BIAS_NORM_OUT },
        { "out_weight", &w->out_weight, 2, d->c_out, d->c, 0 },
        { "out_bias", &w->out_bias, 1, d->c_out, 1, EVO_TRIMUL_BIAS_OUT },
        { "out_gate_weight", &w->out_gate_weight, 2, d->c_out, d->c_z, 0 },
        { "out_gate_bias", &w->out_gate_bias, 1, d->c_out, 1, EVO_TRIMUL_BIAS_OUT_GATE },
    };
    return evo_plan_pack(function, plan, specs, (int)(sizeof specs / sizeof *specs), &args, memory, memory_size, stream,
                         pack);
}

evo_status evo_trimul_execute(const evo_plan *plan, const evo_pack *pack, const evo_trimul_args *args, void *workspace,
                              size_t workspace_size, evo_stream stream) {
    static const char function[] = "evo_trimul_execute";
    evo_call_args read;
    evo_status status = evo_check_plan(function, plan, EVO_OP_TRIMUL);
    if (status == EVO_OK) status = evo_struct_read(function, "args", &read.trimul, args, sizeof read.trimul);
    if (status != EVO_OK) return status;
    const void *const pointers[] = { read.trimul.z, read.trimul.mask, read.trimul.residual, read.trimul.out };
    return evo_plan_execute(function, plan, pack, &read, pointers, workspace, workspace_size, stream);
}
