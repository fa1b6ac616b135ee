/*
 * variant.c: the JSON of an op's variant (tools/case/file.c). The first byte chooses the op, the rest is the text. A text is
 * refused with a message, or its descriptor gives a text that means the same, and a plan or a refusal that says why.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "case/case.h"
#include "json.h"

static evo_context *context;

void fuzz_set_up(void) {
    if (evo_context_create("cpu", NULL, &context) != EVO_OK) fuzz_fail("%s", evo_last_error());
}

/* Whether two descriptors have the same parameters; a number that is NaN in both is the same. */
static bool same_params(const struct case_op *op, const union case_desc *a, const union case_desc *b) {
    bool same = true;
    for (const struct case_param *param = op->params; param->name != NULL || param->json != NULL; param++) {
        const size_t size = param->kind == CASE_PARAM_NUMBER  ? sizeof(double)
                            : param->kind == CASE_PARAM_FIXED ? 0
                                                              : sizeof(unsigned);
        same = same && memcmp((const char *)a + param->offset, (const char *)b + param->offset, size) == 0;
    }
    return same;
}

/* Writes the descriptor as JSON and reads that. */
static void check_round_trip(const struct case_op *op, const union case_desc *desc, bool residual) {
    union case_desc again;
    bool again_residual = !residual;
    struct io_error error = { .text = "" };
    char *text = case_variant_to_json(op, desc, residual);
    FUZZ_CHECK(text != NULL);
    op->init(&again);
    if (!case_variant_from_json(op, &again, text, &again_residual, &error)) fuzz_fail("%s: %s", text, error.text);
    if (!same_params(op, desc, &again) || residual != again_residual) fuzz_fail("%s: another variant", text);
    cJSON_free(text);
}

static void check_plan(const struct case_op *op, union case_desc *desc) {
    evo_plan *plan = NULL;
    for (const struct case_dim *dim = op->dims; dim->letter != 0; dim++)
        *(int64_t *)(void *)((char *)desc + dim->offset) = 2;
    if (op->plan_create(context, desc, &plan) != EVO_OK) FUZZ_CHECK(plan == NULL && strstr(evo_last_error(), "desc"));
    evo_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    union case_desc desc;
    struct io_error error = { .text = "" };
    bool residual = false;
    if (size == 0) return -1;
    const struct case_op *op = case_op_get(data[0] % 2);
    char *text = malloc(size);
    FUZZ_CHECK(text != NULL && op != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    op->init(&desc);
    if (case_variant_from_json(op, &desc, text, &residual, &error)) {
        check_round_trip(op, &desc, residual);
        check_plan(op, &desc);
    } else {
        FUZZ_CHECK(error.text[0] != '\0');
    }
    free(text);
    return 0;
}

#if defined(EVO_FUZZ)
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
    const size_t mutated = seed % 2 == 0 && size > 1 ? json_mutate(data + 1, size - 1, most - 1, seed / 2) : 0;
    return mutated > 0 ? mutated + 1 : LLVMFuzzerMutate(data, size, most);
}
#endif
