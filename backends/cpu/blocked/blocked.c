/* blocked.c: what the blocked kernels share. */
#include "backends/cpu/blocked/blocked.h"

#include <omp.h>

float *evo_blocked_take(cpu_parts *parts, int64_t count) {
    float *part = parts->memory ? parts->memory + parts->taken : NULL;
    parts->taken += evo_blocked_round(count, EVO_BLOCKED_LINE);
    return part;
}

void evo_blocked_pack_vector(const evo_weight *weight, int64_t count, int64_t first, int64_t step, float *packed) {
    for (int64_t k = 0; k < count; k++)
        packed[first + k * step] =
            weight->data ? (float)evo_load(weight->data, weight->dtype, k * weight->strides[0]) : 0.0f;
}

int64_t evo_blocked_matrix(cpu_numbers n, int64_t rows, int64_t terms) {
    return evo_blocked_round(rows, evo_blocked_rows(n)) * evo_blocked_words(n, terms);
}

float *evo_blocked_word(cpu_numbers n, float *packed, int64_t terms, int64_t row, int64_t word) {
    const int64_t rows = evo_blocked_rows(n), depth = evo_blocked_words(n, terms);
    return evo_blocked_whole(n) ? packed + row * depth + word
                                : packed + row / rows * rows * depth + row % rows + word * rows;
}

cpu_operand evo_blocked_operand(cpu_numbers n, const float *packed, int64_t terms, int64_t first, int64_t word) {
    const int64_t rows = evo_blocked_rows(n), depth = evo_blocked_words(n, terms);
    return evo_blocked_whole(n) ? (cpu_operand){ packed + first * depth + word, 1, 1, depth }
                                : (cpu_operand){ packed + first * depth + word * rows, rows, rows, rows * depth };
}

void evo_blocked_put(cpu_numbers n, float *packed, int64_t terms, int64_t row, int64_t term, double value) {
    float *word = evo_blocked_word(n, packed, terms, row, n.pairs ? term / 2 : term);
    uint32_t both;
    if (!n.pairs) {
        *word = (float)value;
        return;
    }
    memcpy(&both, word, sizeof both);
    both |= (uint32_t)evo_narrow16(value, 7, 127) << 16 * (term % 2);
    memcpy(word, &both, sizeof both);
}

void evo_blocked_pack_matrix(cpu_numbers n, const evo_weight *weight, int64_t out, int64_t in, int64_t first,
                             int64_t step, float *packed) {
    for (int64_t o = 0; o < out; o++)
        for (int64_t k = 0; k < in; k++)
            evo_blocked_put(n, packed, in, first + o * step, k,
                            evo_load(weight->data, weight->dtype, o * weight->strides[0] + k * weight->strides[1]));
}

void evo_blocked_mask(const evo_tensor *layout, const void *data, int64_t first, int64_t lane, int count, int lanes,
                      float *mask) {
    for (int l = 0; l < lanes; l++)
        mask[l] = l >= count                  ? 0.0f
                  : layout->dtype == EVO_NONE ? 1.0f
                                              : (float)evo_load(data, layout->dtype, first + l * lane);
}

int evo_blocked_threads(const evo_call *call) {
    const int allowed = evo_cpu_threads(call->device), planned = (int)call->form->tuning[EVO_BLOCKED_THREADS];
    return allowed < planned ? allowed : planned;
}

cpu_parts evo_blocked_scratch(const evo_call *call) {
    return (cpu_parts){ (float *)call->workspace + omp_get_thread_num() * call->form->tuning[EVO_BLOCKED_SCRATCH], 0 };
}

float *evo_blocked_buffers(const evo_call *call) {
    const int64_t *tuning = call->form->tuning;
    return (float *)call->workspace + tuning[EVO_BLOCKED_THREADS] * tuning[EVO_BLOCKED_SCRATCH];
}

bool evo_blocked_supports(evo_compute compute, const evo_tensor *const *tensors, int count, evo_text *why) {
    bool wide = compute == EVO_COMPUTE_FP64;
    for (int t = 0; t < count; t++) wide |= tensors[t]->dtype == EVO_FP64;
    if (wide) evo_text_add(why, "computes in fp32, and takes neither compute fp64 nor fp64 tensors other than masks");
    return !wide;
}

int64_t evo_blocked_bytes(int64_t floats, int64_t threads, int64_t scratch) {
    int64_t total = evo_product(threads, scratch, 1, 1);
    const bool fits =
        floats >= 0 && scratch >= 0 && total >= 0 && evo_add(total, floats, &total) && evo_mul(total, 4, &total);
    return fits ? total : INT64_MAX;
}

uint32_t evo_blocked_layout(cpu_numbers n) {
    return (uint32_t)(0x1000 + 0x4000 * n.pairs + 0x8000 * evo_blocked_whole(n) + n.isa->lanes * 16 + n.isa->rows);
}

evo_status evo_blocked_settle(cpu_numbers n, evo_form *form, evo_compute compute, int64_t bytes, int64_t threads,
                              int64_t scratch, size_t limit) {
    if (bytes == INT64_MAX) return evo_fail(EVO_ERROR_SIZE_OVERFLOW, "the workspace would span more than 2^63 bytes");
    if (limit && (size_t)bytes > limit)
        return evo_fail(EVO_ERROR_WORKSPACE_LIMIT, "desc->workspace_limit is %zu, expected at least %lld bytes", limit,
                        (long long)bytes);
    form->compute = n.pairs                              ? EVO_COMPUTE_BF16
                    : compute == EVO_COMPUTE_FP32_STRICT ? EVO_COMPUTE_FP32_STRICT
                                                         : EVO_COMPUTE_FP32;
    form->workspace_size = (size_t)bytes;
    form->tuning[EVO_BLOCKED_THREADS] = threads;
    form->tuning[EVO_BLOCKED_SCRATCH] = scratch;
    form->tuning[EVO_BLOCKED_PAIRS] = n.pairs;
    form->detail = n.isa->name;
    return EVO_OK;
}
