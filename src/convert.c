/* convert.c: host elements from one number type to another. */
#include "src/number.h"
#include "src/status.h"

evo_status evo_convert(const void *source, evo_dtype source_dtype, void *target, evo_dtype target_dtype, size_t count) {
    if (!evo_dtype_size(source_dtype) || !evo_dtype_size(target_dtype))
        return evo_fail(EVO_ERROR_INVALID_DTYPE, "evo_convert: %s is %s (%d), expected fp64, fp32, bf16, fp16 or uint8",
                        evo_dtype_size(source_dtype) ? "target_dtype" : "source_dtype",
                        evo_dtype_name(evo_dtype_size(source_dtype) ? target_dtype : source_dtype),
                        (int)(evo_dtype_size(source_dtype) ? target_dtype : source_dtype));
    if (count == 0) return EVO_OK;
    if (!source) return evo_fail_null("evo_convert", "source");
    if (!target) return evo_fail_null("evo_convert", "target");
    for (size_t i = 0; i < count; i++)
        evo_store(target, target_dtype, (int64_t)i, evo_load(source, source_dtype, (int64_t)i));
    return EVO_OK;
}
