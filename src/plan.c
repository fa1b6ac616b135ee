/* plan.c: choosing a kernel, packing weights, and checking and running an execution, for every op. */
#include "src/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Checks that descriptors of all ops share --- */

evo_status evo_check_extent(const char *function, const char *name, int64_t value, int64_t least) {
    if (value >= least) return EVO_OK;
    return evo_fail(EVO_ERROR_INVALID_SHAPE, "%s: desc->%s is %lld, expected at least %lld", function, name,
                    (long long)value, (long long)least);
}

evo_status evo_check_number(const char *function, const char *name, double value) {
    if (isfinite(value) && value >= 0.0) return EVO_OK;
    return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "%s: desc->%s is %g, expected a finite number of at least 0", function,
                    name, value);
}

evo_status evo_check_choice(const char *function, const char *name, int value, int count) {
    if (value >= 0 && value < count) return EVO_OK;
    return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "%s: desc->%s is %d, expected 0 to %d", function, name, value,
                    count - 1);
}

evo_status evo_check_bits(const char *function, const char *name, unsigned value, unsigned all) {
    if ((value & ~all) == 0) return EVO_OK;
    return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "%s: desc->%s is 0x%x, expected no bits outside 0x%x", function, name,
                    value, all);
}

evo_status evo_check_common(const char *function, evo_compute compute, evo_propagation propagation,
                            double layer_norm_eps, double mask_max) {
    evo_status status = evo_check_choice(function, "compute", (int)compute, EVO_COMPUTE_FP64 + 1);
    if (status == EVO_OK) status = evo_check_choice(function, "propagation", (int)propagation, EVO_INFERENCE + 1);
    if (status == EVO_OK) status = evo_check_number(function, "layer_norm_eps", layer_norm_eps);
    if (status == EVO_OK) status = evo_check_number(function, "mask_max", mask_max);
    return status;
}

evo_status evo_check_weights_fit(const evo_plan_request *request, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t matrices = 64 * 8; /* more than any op's weights, in the widest type */
    if (c >= 0 && evo_product(a, b, matrices, 1) >= 0 && evo_product(c, d, matrices, 1) >= 0) return EVO_OK;
    return evo_fail(EVO_ERROR_SIZE_OVERFLOW, "%s: the weights of desc's channels (%s) span more than 2^54 elements",
                    request->function, request->sizes);
}

evo_status evo_fail_variant(const char *function, const char *variant, const char *(*names)(int index)) {
    evo_text list = { { 0 }, 0 };
    for (int v = 0; names(v); v++) evo_text_add(&list, "%s\"%s\"", v ? ", " : "", names(v));
    return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "%s: variant is \"%s\", expected one of %s", function, variant,
                    list.data);
}

static bool same_layout(const evo_operand *a, const evo_operand *b) {
    bool same = a->layout.dtype == b->layout.dtype && a->rank == b->rank;
    for (int d = 0; same && d < a->rank; d++)
        same = a->extent[d] == b->extent[d] && (a->extent[d] <= 1 || a->layout.strides[d] == b->layout.strides[d]);
    return same;
}

evo_status evo_check_alias(const evo_plan_request *request) {
    const unsigned alias = request->alias;
    const evo_operand *out = &request->operands[request->operand_count - 1];
    unsigned known = 0;
    for (const evo_operand *operand = request->operands; operand < out; operand++) known |= operand->alias;
    const evo_status status = evo_check_bits(request->function, "alias", alias, known);
    if (status != EVO_OK) return status;
    for (const evo_operand *operand = request->operands; operand < out; operand++)
        if (operand->alias & alias && !same_layout(operand, out))
            return evo_fail(
                EVO_ERROR_INVALID_LAYOUT,
                "%s: desc->alias lets out share the memory of %s, expected both to have the same dtype, extents "
                "and strides (%s is %s, out is %s)",
                request->function, operand->name, operand->name, evo_dtype_name(operand->layout.dtype),
                evo_dtype_name(out->layout.dtype));
    return EVO_OK;
}

/* --- Planning --- */

/* EVO_KERNEL=op:kernel,op:kernel: the kernel of this op, NULL if it names none. */
static evo_status kernel_from_environment(const char *function, evo_op op, char *name, size_t size) {
    const char *text = evo_environment("EVO_KERNEL");
    name[0] = 0;
    for (const char *entry = text; entry && *entry;) {
        const size_t length = strcspn(entry, ","), colon = strcspn(entry, ":");
        bool known = false;
        for (int o = 0; evo_op_name((evo_op)o); o++)
            if (strlen(evo_op_name((evo_op)o)) == colon && strncmp(evo_op_name((evo_op)o), entry, colon) == 0) {
                known = colon + 1 < length && length - colon <= size;
                if (known && o == (int)op) {
                    memcpy(name, entry + colon + 1, length - colon - 1);
                    name[length - colon - 1] = 0;
                }
            }
        if (!known)
            return evo_fail(
                EVO_ERROR_INVALID_ARGUMENT,
                "%s: the environment's EVO_KERNEL is \"%s\", expected op:kernel entries separated by commas, as in "
                "\"opm:reference,trimul:reference\"",
                function, text);
        entry += length + (entry[length] == ',');
    }
    return EVO_OK;
}

/* Offers the problem to one kernel; a refusal is added to the plan's text and is no failure of the plan yet. */
static evo_status try_kernel(evo_plan *plan, const evo_kernel *kernel) {
    evo_device *device = plan->context->device;
    evo_text why = { { 0 }, 0 };
    if (!kernel->supports(device, &plan->request.problem, &why)) {
        evo_text_add(&plan->refusals, "%s: %s\n", kernel->name, why.data);
        return EVO_ERROR_UNSUPPORTED;
    }
    plan->form = (evo_form){ .compute = EVO_COMPUTE_FP32 };
    const evo_status status = kernel->plan(device, &plan->request.problem, &plan->form);
    if (status != EVO_OK) evo_text_add(&plan->refusals, "%s: %s\n", kernel->name, evo_last_error());
    if (status == EVO_OK) plan->kernel = kernel;
    return status;
}

/* Whether `forced` is this kernel, or one of its orders, which *order then gets counted from 1. */
static bool is_named(const evo_kernel *kernel, const char *forced, int *order) {
    *order = 0;
    if (strcmp(forced, kernel->name) == 0) return true;
    for (int k = 0; kernel->orders && kernel->orders[k]; k++)
        if (strcmp(forced, kernel->orders[k]) == 0) *order = k + 1;
    return *order > 0;
}

static evo_status choose_kernel(evo_plan *plan) {
    const evo_plan_request *request = &plan->request;
    const evo_op op = request->problem.op;
    char wanted[64];
    evo_status status = kernel_from_environment(request->function, op, wanted, sizeof wanted);
    if (status != EVO_OK) return status;
    const char *source = wanted[0] ? "the environment's EVO_KERNEL" : "desc->kernel";
    const char *forced = request->kernel ? request->kernel : wanted[0] ? wanted : NULL;
    if (request->kernel) source = "desc->kernel";

    plan->request.problem.named = forced != NULL;
    int count = 0;
    evo_status last = EVO_ERROR_UNSUPPORTED;
    evo_text names = { { 0 }, 0 };
    const evo_kernel *const *kernels = plan->context->device->backend->kernels(op, &count);
    bool tried = false;
    for (int k = 0; k < count; k++) {
        evo_text_add(&names, "%s%s", k ? ", " : "", kernels[k]->name);
        for (int o = 0; kernels[k]->orders && kernels[k]->orders[o]; o++)
            evo_text_add(&names, ", %s", kernels[k]->orders[o]);
        if (forced && !is_named(kernels[k], forced, &plan->request.problem.order)) continue;
        tried = true;
        status = try_kernel(plan, kernels[k]);
        if (status == EVO_OK) return EVO_OK;
        /* Memory and driver failures end the search; refusals go on to the next kernel. */
        if (status != EVO_ERROR_UNSUPPORTED && status != EVO_ERROR_WORKSPACE_LIMIT && status != EVO_ERROR_SIZE_OVERFLOW)
            return status;
        if (status != EVO_ERROR_UNSUPPORTED) last = status;
    }
    if (!tried && forced)
        return evo_fail(EVO_ERROR_UNSUPPORTED, "%s: %s is \"%s\", expected one of the kernels of %s on %s: %s",
                        request->function, source, forced, evo_op_name(op), plan->context->device_name, names.data);
    if (plan->refusals.length) plan->refusals.data[plan->refusals.length - 1] = 0;
    return evo_fail(last, "%s: no kernel of %s on %s takes this descriptor (%s, compute %s): %s", request->function,
                    evo_op_name(op), plan->context->device_name, request->sizes, evo_compute_name(request->compute),
                    plan->refusals.data);
}

/* The kernel's name, with the order that it takes if it has several. */
static const char *kernel_name(const evo_plan *plan) {
    return plan->kernel->orders ? plan->kernel->orders[plan->form.order] : plan->kernel->name;
}

evo_status evo_plan_build(evo_context *context, const evo_plan_request *request, evo_plan **plan) {
    if (!context) return evo_fail_null(request->function, "context");
    if (!plan) return evo_fail_null(request->function, "plan");
    const double start = evo_clock_ms();
    evo_plan *made = calloc(1, sizeof *made);
    if (!made) return evo_fail(EVO_ERROR_OUT_OF_MEMORY, "%s: no host memory", request->function);
    made->context = context;
    made->request = *request;
    const evo_error before = evo_error_keep();
    const evo_status status = choose_kernel(made);
    if (status != EVO_OK) {
        free(made);
        return status;
    }
    evo_error_restore(&before); /* better kernels may have refused */
    made->request.kernel = NULL;
    if (request->empty) made->form.workspace_size = 0;
    made->request.key.layout = made->form.pack_layout;
    evo_context_keep(context);
    *plan = made;
    const char *detail = made->form.detail;
    evo_log(context, 1, "evoformer,plan,%s,%s:%s,%s,compute=%s,workspace=%zu,pack=%zu,ms=%.3f%s%s",
            context->device_name, evo_op_name(request->problem.op), kernel_name(made), request->sizes,
            evo_compute_name(made->form.compute), made->form.workspace_size, made->form.pack_size,
            evo_clock_ms() - start, detail ? ",detail=" : "", detail ? detail : "");
    return EVO_OK;
}

evo_status evo_plan_get_info(const evo_plan *plan, evo_plan_info *info) {
    if (!plan) return evo_fail_null("evo_plan_get_info", "plan");
    const evo_plan_info found = { sizeof found,        plan->request.problem.op,  plan->form.compute,
                                  kernel_name(plan),   plan->form.workspace_size, plan->form.pack_size,
                                  plan->request.flops, plan->request.bytes,       plan->refusals.data };
    return evo_struct_write("evo_plan_get_info", info, &found, sizeof found);
}

void evo_plan_destroy(evo_plan *plan) {
    if (!plan) return;
    if (plan->kernel->release) plan->kernel->release(&plan->form);
    evo_context_release(plan->context);
    free(plan);
}

/* --- Packs --- */

static evo_status check_buffer(const char *function, const char *name, const void *memory, size_t size, size_t needed) {
    if (needed == 0) return EVO_OK;
    if (!memory) return evo_fail(EVO_ERROR_NULL_POINTER, "%s: %s is NULL, expected %zu bytes", function, name, needed);
    if (size < needed)
        return evo_fail(EVO_ERROR_BUFFER_TOO_SMALL, "%s: %s_size is %zu, expected at least %zu bytes", function, name,
                        size, needed);
    if ((uintptr_t)memory % EVO_BUFFER_ALIGNMENT)
        return evo_fail(EVO_ERROR_MISALIGNED, "%s: %s is %p, expected a multiple of %d bytes", function, name, memory,
                        EVO_BUFFER_ALIGNMENT);
    return EVO_OK;
}

/* A run of bytes as an operand. */
static evo_operand bytes_operand(const char *name, size_t size) {
    return (evo_operand){ name, 1, { (int64_t)size, 1, 1, 1 }, { EVO_UINT8, { 1, 0, 0, 0 }, 1 }, 0, (int64_t)size, 0 };
}

evo_status evo_check_plan(const char *function, const evo_plan *plan, evo_op op) {
    if (!plan) return evo_fail_null(function, "plan");
    if (plan->request.problem.op == op) return EVO_OK;
    return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "%s: plan is one of op %s, expected op %s", function,
                    evo_op_name(plan->request.problem.op), evo_op_name(op));
}

static evo_call make_call(const evo_plan *plan, void *pack, void *workspace, evo_stream stream,
                          const evo_call_args *args) {
    return (evo_call){
        plan->context->device, plan->kernel, &plan->request.problem, &plan->form, pack, workspace, stream, *args
    };
}

/* Runs `walk` with the device made current, and the caller's own state restored after it. */
static evo_status run_bracketed(const evo_call *call, evo_walk walk) {
    const evo_backend *backend = call->device->backend;
    void *saved = NULL;
    evo_status status = backend->enter ? backend->enter(call->device, &saved) : EVO_OK;
    if (status != EVO_OK) return status;
    status = walk(call);
    if (backend->leave) backend->leave(call->device, saved);
    return status;
}

evo_status evo_run_stage(const evo_call *call, int stage, const evo_tile *tile) {
    return call->kernel->stage[stage] ? call->device->backend->run(call, stage, tile) : EVO_OK;
}

static evo_status walk_pack(const evo_call *call) {
    const evo_tile none = { { 0, 0 }, { 0, 0 }, { 0, 0 }, { 0, 0 } };
    return evo_run_stage(call, EVO_STAGE_PACK, &none);
}

evo_status evo_plan_pack(const char *function, const evo_plan *plan, const evo_weight_spec *specs, int count,
                         const evo_call_args *weights, void *memory, size_t memory_size, evo_stream stream,
                         evo_pack **pack) {
    const evo_operand packed = bytes_operand("memory", plan->form.pack_size);
    evo_status status = evo_weights_resolve(function, specs, count, plan->request.key.biases);
    if (status == EVO_OK && !pack) status = evo_fail_null(function, "pack");
    if (status == EVO_OK) status = check_buffer(function, "memory", memory, memory_size, plan->form.pack_size);
    if (status == EVO_OK) status = evo_weights_check_apart(function, specs, count, &packed, memory);
    if (status != EVO_OK) return status;
    evo_pack *made = malloc(sizeof *made);
    if (!made) return evo_fail(EVO_ERROR_OUT_OF_MEMORY, "%s: no host memory", function);
    *made = (evo_pack){ plan->context, plan->request.key, memory };
    const evo_call call = make_call(plan, memory, NULL, stream, weights);
    status = run_bracketed(&call, walk_pack);
    if (status != EVO_OK) {
        free(made);
        return status;
    }
    evo_context_keep(plan->context);
    *pack = made;
    return EVO_OK;
}

void evo_pack_destroy(evo_pack *pack) {
    if (!pack) return;
    evo_context_release(pack->context);
    free(pack);
}

static evo_status check_pack(const char *function, const evo_plan *plan, const evo_pack *pack) {
    if (!pack) return evo_fail_null(function, "pack");
    const evo_pack_key *have = &pack->key, *want = &plan->request.key;
    const evo_device *its = pack->context->device, *ours = plan->context->device;
    if (its->backend != ours->backend || its->index != ours->index)
        return evo_fail(EVO_ERROR_PACK_MISMATCH, "%s: pack was made on %s, expected %s", function,
                        pack->context->device_name, plan->context->device_name);
    if (have->op != want->op)
        return evo_fail(EVO_ERROR_PACK_MISMATCH, "%s: pack holds weights of op %s, expected %s", function,
                        evo_op_name(have->op), evo_op_name(want->op));
    if (memcmp(have->channels, want->channels, sizeof have->channels) != 0)
        return evo_fail(EVO_ERROR_PACK_MISMATCH,
                        "%s: pack holds weights of channels (%lld, %lld, %lld), expected the plan's (%lld, %lld, %lld)",
                        function, (long long)have->channels[0], (long long)have->channels[1],
                        (long long)have->channels[2], (long long)want->channels[0], (long long)want->channels[1],
                        (long long)want->channels[2]);
    if (have->biases != want->biases)
        return evo_fail(EVO_ERROR_PACK_MISMATCH, "%s: pack holds biases 0x%x, expected the plan's 0x%x", function,
                        have->biases, want->biases);
    if (have->layout != want->layout)
        return evo_fail(EVO_ERROR_PACK_MISMATCH,
                        "%s: pack has layout %u of another kernel or descriptor, expected the layout %u of the plan's "
                        "kernel %s: pack the weights with this plan",
                        function, have->layout, want->layout, plan->kernel->name);
    return EVO_OK;
}

/* --- Execution --- */

static evo_status check_pointers(const char *function, const evo_plan *plan, const void *const *pointers) {
    for (int o = 0; o < plan->request.operand_count; o++) {
        const evo_operand *operand = &plan->request.operands[o];
        const evo_tensor *layout = &operand->layout;
        if (layout->dtype == EVO_NONE && pointers[o])
            return evo_fail(EVO_ERROR_INVALID_ARGUMENT, "%s: args->%s is %p, expected NULL as the descriptor has no %s",
                            function, operand->name, pointers[o], operand->name);
        if (!evo_operand_used(operand)) continue;
        if (!pointers[o])
            return evo_fail(EVO_ERROR_NULL_POINTER,
                            "%s: args->%s is NULL, expected a tensor of %s as the descriptor says", function,
                            operand->name, evo_dtype_name(layout->dtype));
        if ((uintptr_t)pointers[o] % layout->alignment)
            return evo_fail(EVO_ERROR_MISALIGNED, "%s: args->%s is %p, expected a multiple of the promised %zu bytes",
                            function, operand->name, pointers[o], layout->alignment);
    }
    return EVO_OK;
}

/* The packed weights are only read: what is written must leave them alone. */
static evo_status check_pack_overlaps(const char *function, const evo_plan *plan, const void *pack, const void *out,
                                      const void *workspace) {
    const evo_operand packed = bytes_operand("pack", plan->form.pack_size);
    const evo_operand scratch = bytes_operand("workspace", plan->form.workspace_size);
    const evo_operand *result = &plan->request.operands[plan->request.operand_count - 1];
    const bool by_out = evo_operands_overlap(&packed, pack, result, out);
    if (!by_out && !evo_operands_overlap(&packed, pack, &scratch, workspace)) return EVO_OK;
    return evo_fail(EVO_ERROR_ALIASED,
                    "%s: %s (%p) shares memory with the packed weights (%p), expected memory of its own", function,
                    by_out ? "args->out" : "workspace", by_out ? out : workspace, pack);
}

static evo_status check_overlaps(const char *function, const evo_plan *plan, const void *const *pointers,
                                 const void *workspace) {
    const evo_plan_request *request = &plan->request;
    const int last = request->operand_count - 1;
    const evo_operand *out = &request->operands[last];
    const evo_operand scratch = bytes_operand("workspace", plan->form.workspace_size);
    for (int o = 0; o <= last; o++) {
        const evo_operand *operand = &request->operands[o];
        if (evo_operands_overlap(operand, pointers[o], &scratch, workspace))
            return evo_fail(EVO_ERROR_ALIASED,
                            "%s: workspace (%p) shares memory with args->%s (%p), expected memory of its own", function,
                            workspace, operand->name, pointers[o]);
        if (o == last || !evo_operands_overlap(operand, pointers[o], out, pointers[last])) continue;
        if (operand->alias & request->alias && pointers[o] == pointers[last]) continue;
        return evo_fail(EVO_ERROR_ALIASED, "%s: args->out (%p) shares memory with args->%s (%p), expected %s", function,
                        pointers[last], operand->name, pointers[o],
                        operand->alias & request->alias ? "the same pointer or memory of its own"
                                                        : "memory of its own, as desc->alias does not allow it");
    }
    return EVO_OK;
}

/* With EVO_VERBOSE=2 an execute is timed, which waits for the stream; without it nothing here waits. */
static evo_status execute_verbosely(const char *function, const evo_plan *plan, const evo_call *call) {
    evo_context *context = plan->context;
    const evo_backend *backend = context->device->backend;
    const bool timed = context->verbose >= 2;
    bool capturing = false;
    evo_status status = EVO_OK;
    if (timed) status = backend->stream_is_capturing(context->device, call->stream, &capturing);
    if (capturing)
        return evo_fail(EVO_ERROR_CAPTURE,
                        "%s: the stream records a graph, which cannot be timed: expected EVO_VERBOSE below 2",
                        function);
    if (timed && status == EVO_OK) status = backend->stream_synchronize(context->device, call->stream);
    const double start = timed ? evo_clock_ms() : 0.0;
    if (status == EVO_OK) status = run_bracketed(call, plan->request.walk);
    if (timed && status == EVO_OK) status = backend->stream_synchronize(context->device, call->stream);
    if (status != EVO_OK) return status;
    char time[32] = "";
    if (timed) snprintf(time, sizeof time, ",ms=%.3f", evo_clock_ms() - start);
    evo_log(context, 1, "evoformer,execute,%s,%s:%s,%s,compute=%s%s", context->device_name,
            evo_op_name(plan->request.problem.op), kernel_name(plan), plan->request.sizes,
            evo_compute_name(plan->form.compute), time);
    return EVO_OK;
}

evo_status evo_plan_execute(const char *function, const evo_plan *plan, const evo_pack *pack, const evo_call_args *args,
                            const void *const *pointers, void *workspace, size_t workspace_size, evo_stream stream) {
    evo_status status = check_pack(function, plan, pack);
    if (status != EVO_OK || plan->request.empty) return status;
    status = check_pointers(function, plan, pointers);
    if (status == EVO_OK)
        status = check_buffer(function, "workspace", workspace, workspace_size, plan->form.workspace_size);
    if (status == EVO_OK) status = check_overlaps(function, plan, pointers, workspace);
    if (status == EVO_OK)
        status =
            check_pack_overlaps(function, plan, pack->memory, pointers[plan->request.operand_count - 1], workspace);
    if (status != EVO_OK) return status;
    const evo_call call = make_call(plan, pack->memory, workspace, stream, args);
    return plan->context->verbose > 0 ? execute_verbosely(function, plan, &call)
                                      : run_bracketed(&call, plan->request.walk);
}
