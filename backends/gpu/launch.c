/* launch.c: what the plan code of every op shares. */
#include "backends/gpu/launch.h"

#include <math.h>

gpu_tensor gpu_tensor_of(const evo_tensor *tensor, const void *data) {
    gpu_tensor view = { (void *)(uintptr_t)data, { 0, 0, 0, 0 }, (int32_t)tensor->dtype, 0 };
    const size_t four = tensor->dtype == EVO_FP32 ? 16 : 8; /* bytes of a load of four elements */
    bool vector =
        tensor->dtype != EVO_UINT8 && tensor->dtype != EVO_NONE && tensor->strides[3] == 1 && tensor->alignment >= four;
    bool eight = tensor->alignment >= 16;
    for (int d = 0; d < 4; d++) {
        view.strides[d] = tensor->strides[d];
        if (d < 3 && tensor->strides[d] % 4) vector = false;
        if (d < 3 && tensor->strides[d] % 8) eight = false;
    }
    view.vector = vector && eight ? 2 : vector;
    return view;
}

gpu_weight gpu_weight_of(const evo_weight *weight) {
    const gpu_weight none = { NULL, { 0, 0 }, GPU_NONE, 0 };
    if (!weight || !weight->data) return none;
    return (gpu_weight){ weight->data, { weight->strides[0], weight->strides[1] }, (int32_t)weight->dtype, 0 };
}

static void add_item(gpu_packing *packing, const evo_weight *weight, float fill, int64_t outs, int64_t ins,
                     float *target, int64_t pitch, int64_t width) {
    packing->params.items[packing->params.count++] =
        (gpu_pack_item){ gpu_weight_of(weight),    target, pitch, ins, (int32_t)outs, (int32_t)width,
                         (int32_t)packing->blocks, fill };
    packing->blocks += gpu_blocks(ins * width, GPU_PACK_THREADS);
}

void gpu_pack_matrix(gpu_packing *packing, const evo_weight *weight, const evo_weight *bias, int64_t outs, int64_t ins,
                     float *target, int64_t pitch, int64_t width, float *bias_target) {
    add_item(packing, weight, 0.0f, outs, ins, target, pitch, width);
    add_item(packing, bias, 0.0f, outs, 1, bias_target, width, width);
}

void gpu_pack_norm(gpu_packing *packing, const evo_weight *weight, const evo_weight *bias, int64_t count,
                   float *weight_target, float *bias_target) {
    const int64_t width = gpu_round(count, GPU_STAGE_DEPTH);
    add_item(packing, weight, 1.0f, count, 1, weight_target, width, width);
    add_item(packing, bias, 0.0f, count, 1, bias_target, width, width);
}

evo_status gpu_pack(const evo_call *call, const gpu_packing *packing) {
    return gpu_launch(call, GPU_PACK, packing->blocks, 1, 1, &packing->params, sizeof packing->params);
}

evo_status gpu_pack_matrices(const evo_call *call, const gpu_pack_rows_item *items, int count) {
    gpu_pack_rows_params params = { .count = count };
    int64_t blocks = 0;
    for (int i = 0; i < count; i++) {
        params.items[i] = items[i];
        params.items[i].first_block = (int32_t)blocks;
        blocks += items[i].rows;
    }
    return gpu_launch(call, GPU_TENSOR_PACK_ROWS, blocks, 1, 1, &params, sizeof params);
}

evo_status gpu_pack_folded(const evo_call *call, bool fp16, gpu_hopper_pack_params *params) {
    int64_t blocks = 0;
    for (int i = 0; i < params->count; i++) {
        params->items[i].first_block = (int32_t)blocks;
        blocks += params->items[i].outs;
    }
    return gpu_launch(call, fp16 ? GPU_HOPPER_PACK_FP16 : GPU_HOPPER_PACK_BF16, blocks, 1, 1, params, sizeof *params);
}

evo_status gpu_find_mask_exponents(const evo_call *call, const gpu_tensor *mask, int64_t begin, int64_t end,
                                   int64_t rows, int64_t count, int32_t *exponents) {
    const gpu_mask_rows_params params = { *mask, exponents, begin, (int32_t)rows, (int32_t)count };
    return gpu_launch(call, GPU_TENSOR_MASK_ROWS, gpu_blocks(rows, GPU_MASK_ROWS), 1, end - begin, &params,
                      sizeof params);
}

int64_t gpu_persistent(const evo_call *call, int64_t wanted) {
    const int64_t most = gpu_device_properties(call->device)->compute_units;
    return wanted < most ? wanted : most;
}

int gpu_mask_exponent(double mask_max, int most) {
    int exponent = 0;
    if (mask_max > 1.0) frexp(mask_max, &exponent);
    return exponent < most ? exponent : most;
}

int32_t gpu_columns_per_block(const evo_device *device, int64_t blocks, int64_t columns) {
    const int64_t tiles = gpu_blocks(columns, GPU_PROJECT_COLUMNS);
    const int64_t wanted = 2 * (int64_t)gpu_device_properties(device)->compute_units;
    int64_t split = blocks > 0 ? gpu_blocks(wanted, blocks) : 1;
    if (split > tiles) split = tiles;
    return (int32_t)(gpu_blocks(tiles, split) * GPU_PROJECT_COLUMNS);
}

bool gpu_portable_takes(evo_compute compute, const evo_tensor *const *tensors, const char *const *names, int count,
                        evo_text *why) {
    if (compute == EVO_COMPUTE_FP64) {
        evo_text_add(why, "computes fp32 at most, the descriptor asks for fp64");
        return false;
    }
    for (int t = 0; t < count; t++)
        if (tensors[t]->dtype == EVO_FP64) {
            evo_text_add(why, "takes fp32, bf16 and fp16 tensors, %s is fp64", names[t]);
            return false;
        }
    return true;
}

evo_status gpu_settle(evo_form *form, int64_t bytes, size_t limit) {
    if (bytes < 0) return evo_fail(EVO_ERROR_SIZE_OVERFLOW, "the workspace would span more than 2^63 bytes");
    if (limit && (uint64_t)bytes > limit)
        return evo_fail(EVO_ERROR_WORKSPACE_LIMIT, "desc->workspace_limit is %zu, expected at least %lld bytes", limit,
                        (long long)bytes);
    form->workspace_size = (size_t)bytes;
    return EVO_OK;
}

int64_t gpu_bytes(int64_t a, int64_t b, int64_t c, int64_t d) {
    int64_t bytes = evo_product(a, b, c, d);
    if (bytes < 0 || !evo_mul(bytes, (int64_t)sizeof(float), &bytes) || !evo_add(bytes, GPU_ALIGN - 1, &bytes))
        return -1;
    return bytes / GPU_ALIGN * GPU_ALIGN;
}

int64_t gpu_sum(int64_t a, int64_t b) {
    int64_t sum;
    return a >= 0 && b >= 0 && evo_add(a, b, &sum) ? sum : -1;
}
