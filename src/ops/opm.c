/* opm.c: the outer product mean's descriptor, variants, counts of work and walk over its stages. */
#include "src/plan.h"

#include <stdio.h>
#include <string.h>

enum {
    WITHOUT_HIDDEN_BIASES = EVO_OPM_BIAS_NORM | EVO_OPM_BIAS_OUT
};

static const struct {
    const char *name;
    unsigned biases;
    double count_eps, count_min;
    evo_divide divide;
    evo_mask_sides mask_sides;
} variants[] = {
    { "alphafold2", EVO_OPM_BIAS_ALL, 1e-3, 0.0, EVO_DIVIDE_AFTER, EVO_MASK_BOTH },
    { "alphafold3", WITHOUT_HIDDEN_BIASES, 1e-3, 0.0, EVO_DIVIDE_AFTER, EVO_MASK_BOTH },
    { "boltz", WITHOUT_HIDDEN_BIASES, 0.0, 1.0, EVO_DIVIDE_BEFORE, EVO_MASK_BOTH },
    { "helixfold", EVO_OPM_BIAS_ALL, 1e-3, 0.0, EVO_DIVIDE_AFTER, EVO_MASK_A_ONLY },
    { "megafold", WITHOUT_HIDDEN_BIASES, 0.0, 1e-5, EVO_DIVIDE_BEFORE, EVO_MASK_BOTH },
    { "mean", EVO_OPM_BIAS_ALL, 0.0, 1.0, EVO_DIVIDE_BEFORE, EVO_MASK_BOTH },
};

const char *evo_opm_variant(int index) {
    const int count = (int)(sizeof variants / sizeof *variants);
    return index >= 0 && index < count ? variants[index].name : NULL;
}

evo_status evo_opm_set_variant(evo_opm_desc *desc, const char *variant) {
    if (!desc) return evo_fail_null("evo_opm_set_variant", "desc");
    if (!variant) return evo_fail_null("evo_opm_set_variant", "variant");
    for (int v = 0; evo_opm_variant(v); v++) {
        if (strcmp(variants[v].name, variant) != 0) continue;
        desc->biases = variants[v].biases;
        desc->count_eps = variants[v].count_eps;
        desc->count_min = variants[v].count_min;
        desc->divide = variants[v].divide;
        desc->mask_sides = variants[v].mask_sides;
        return EVO_OK;
    }
    return evo_fail_variant("evo_opm_set_variant", variant, evo_opm_variant);
}

static evo_status check_numbers(const char *function, const evo_opm_desc *d) {
    evo_status status = evo_check_extent(function, "batch", d->batch, 0);
    if (status == EVO_OK) status = evo_check_extent(function, "s", d->s, 0);
    if (status == EVO_OK) status = evo_check_extent(function, "n", d->n, 0);
    if (status == EVO_OK) status = evo_check_extent(function, "c_m", d->c_m, 1);
    if (status == EVO_OK) status = evo_check_extent(function, "c", d->c, 1);
    if (status == EVO_OK) status = evo_check_extent(function, "c_z", d->c_z, 1);
    if (status == EVO_OK) status = evo_check_bits(function, "biases", d->biases, EVO_OPM_BIAS_ALL);
    if (status == EVO_OK) status = evo_check_choice(function, "divide", (int)d->divide, EVO_DIVIDE_AFTER + 1);
    if (status == EVO_OK) status = evo_check_choice(function, "mask_sides", (int)d->mask_sides, EVO_MASK_A_ONLY + 1);
    if (status == EVO_OK) status = evo_check_number(function, "count_eps", d->count_eps);
    if (status == EVO_OK) status = evo_check_number(function, "count_min", d->count_min);
    if (status == EVO_OK)
        status = evo_check_common(function, d->compute, d->propagation, d->layer_norm_eps, d->mask_max);
    return status;
}

/* Products of the projections and of the cheaper order of contraction, two operations a multiply-add. */
static double count_flops(const evo_opm_desc *d) {
    const double b = (double)d->batch, s = (double)d->s, n = (double)d->n, c = (double)d->c, c_z = (double)d->c_z;
    const double outer_first = 2.0 * n * n * c * c * (s + c_z);
    const double weight_first = 2.0 * s * n * c * c * c_z + 2.0 * n * n * s * c * c_z;
    return b * (4.0 * s * n * (double)d->c_m * c + (outer_first < weight_first ? outer_first : weight_first));
}

/* The input and mask once, a and b written and read, the output (and residual) once. */
static double count_bytes(const evo_opm_desc *d) {
    const double b = (double)d->batch, s = (double)d->s, n = (double)d->n;
    const double element = (double)evo_dtype_size(d->m.dtype);
    const double pairs = (double)(evo_dtype_size(d->out.dtype) + evo_dtype_size(d->residual.dtype));
    return b *
           (s * n * ((double)d->c_m * element + (double)evo_dtype_size(d->mask.dtype) + 4.0 * (double)d->c * element) +
            n * n * (double)d->c_z * pairs);
}

static evo_status describe_operands(const char *function, evo_opm_desc *d, evo_plan_request *request) {
    const int64_t b = d->batch, s = d->s, n = d->n;
    const evo_operand operands[] = {
        { .name = "m", .rank = 4, .extent = { b, s, n, d->c_m } },
        { .name = "mask", .rank = 3, .extent = { b, s, n, 1 } },
        { .name = "residual", .rank = 4, .extent = { b, n, n, d->c_z }, .alias = EVO_ALIAS_RESIDUAL },
        { .name = "out", .rank = 4, .extent = { b, n, n, d->c_z } },
    };
    evo_operand *o = request->operands;
    request->operand_count = 4;
    memcpy(o, operands, sizeof operands);
    evo_status status = evo_operand_resolve(function, &d->m, &o[0], EVO_NUMBER_FLOAT, false);
    if (status == EVO_OK) status = evo_operand_resolve(function, &d->mask, &o[1], EVO_NUMBER_ANY, true);
    if (status == EVO_OK) status = evo_operand_resolve(function, &d->residual, &o[2], EVO_NUMBER_FLOAT, true);
    if (status == EVO_OK) status = evo_operand_resolve(function, &d->out, &o[3], EVO_NUMBER_FLOAT, false);
    if (status == EVO_OK) status = evo_operand_check_output(function, &o[3]);
    if (status == EVO_OK) status = evo_check_alias(request);
    return status;
}

/*
 * Rows by columns of pairs. a belongs to a tile's rows and b to its columns, so with one tile both are projected at once;
 * with several, a once a row of tiles and b once a tile.
 */
static evo_status walk(const evo_call *call) {
    const evo_opm_desc *d = &call->problem->desc.opm;
    const evo_schedule *step = &call->form->schedule;
    const bool one_column = step->cols >= d->n;
    evo_status status = EVO_OK;
    evo_tile tile = { .channels = { 0, d->c } };
    for (int64_t b = 0; b < d->batch; b += step->batch) {
        tile.batch = evo_step(b, step->batch, d->batch);
        for (int64_t i = 0; i < d->n; i += step->rows) {
            tile.rows = evo_step(i, step->rows, d->n);
            evo_tile project = tile;
            project.cols = (evo_range){ 0, one_column && i == 0 ? d->n : 0 };
            status = evo_run_stage(call, EVO_STAGE_OPM_PROJECT, &project);
            for (int64_t j = 0; j < d->n && status == EVO_OK; j += step->cols) {
                tile.cols = evo_step(j, step->cols, d->n);
                project.rows = (evo_range){ 0, 0 };
                project.cols = tile.cols;
                if (!one_column) status = evo_run_stage(call, EVO_STAGE_OPM_PROJECT, &project);
                if (status == EVO_OK) status = evo_run_stage(call, EVO_STAGE_OPM_OUTER, &tile);
            }
            if (status != EVO_OK) return status;
        }
    }
    return status;
}

evo_status evo_opm_plan_create(evo_context *context, const evo_opm_desc *desc, evo_plan **plan) {
    static const char function[] = "evo_opm_plan_create";
    evo_plan_request request = { .function = function, .problem.op = EVO_OP_OPM, .walk = walk };
    evo_opm_desc *d = &request.problem.desc.opm;
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
    snprintf(request.sizes, sizeof request.sizes, "B=%lld,S=%lld,N=%lld,c_m=%lld,c=%lld,c_z=%lld,in=%s,out=%s",
             (long long)d->batch, (long long)d->s, (long long)d->n, (long long)d->c_m, (long long)d->c,
             (long long)d->c_z, evo_dtype_name(d->m.dtype), evo_dtype_name(d->out.dtype));
    status = evo_check_weights_fit(&request, d->c_m, d->c, evo_product(d->c, d->c, 1, 1), d->c_z);
    if (status != EVO_OK) return status;
    request.empty = d->batch == 0 || d->n == 0;
    request.key = (evo_pack_key){ .op = EVO_OP_OPM, .channels = { d->c_m, d->c, d->c_z }, .biases = d->biases };
    request.flops = count_flops(d);
    request.bytes = count_bytes(d);
    return evo_plan_build(context, &request, plan);
}

evo_status evo_opm_pack_weights(const evo_plan *plan, const evo_opm_weights *weights, void *memory, size_t memory_size,
                                evo_stream stream, evo_pack **pack) {
    static const char function[] = "evo_opm_pack_weights";
    evo_call_args args;
    evo_opm_weights *w = &args.opm_weights;
    evo_status status = evo_check_plan(function, plan, EVO_OP_OPM);
    if (status == EVO_OK) status = evo_struct_read(function, "weights", w, weights, sizeof *w);
    if (status != EVO_OK) return status;
    const evo_opm_desc *d = &plan->request.problem.desc.opm;
    const evo_weight_spec specs[] = {
        { "norm_weight", &w->norm_weight, 1, d->c_m, 1, 0 },
        { "norm_bias", &w->norm_bias, 1, d->c_m, 1, EVO_OPM_BIAS_NORM },
        { "a_weight", &w->a_weight, 2, d->c, d->c_m, 0 },
        { "a_bias", &w->a_bias, 1, d->c, 1, EVO_OPM_BIAS_A },
        { "b_weight", &w->b_weight, 2, d->c, d->c_m, 0 },
        { "b_bias", &w->b_bias, 1, d->c, 1, EVO_OPM_BIAS_B },
        { "out_weight", &w->out_weight, 2, d->c_z, d->c * d->c, 0 },
        { "out_bias", &w->out_bias, 1, d->c_z, 1, EVO_OPM_BIAS_OUT },
    };
    return evo_plan_pack(function, plan, specs, (int)(sizeof specs / sizeof *specs), &args, memory, memory_size, stream,
                         pack);
}

evo_status evo_opm_execute(const evo_plan *plan, const evo_pack *pack, const evo_opm_args *args, void *workspace,
                           size_t workspace_size, evo_stream stream) {
    static const char function[] = "evo_opm_execute";
    evo_call_args read;
    evo_status status = evo_check_plan(function, plan, EVO_OP_OPM);
    if (status == EVO_OK) status = evo_struct_read(function, "args", &read.opm, args, sizeof read.opm);
    if (status != EVO_OK) return status;
    const void *const pointers[] = { read.opm.m, read.opm.mask, read.opm.residual, read.opm.out };
    return evo_plan_execute(function, plan, pack, &read, pointers, workspace, workspace_size, stream);
}
