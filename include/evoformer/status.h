/** @file
 * status.h: what every function returns, the text behind an error, and how public functions are marked.
 */
#ifndef EVOFORMER_STATUS_H
#define EVOFORMER_STATUS_H

#if defined(__GNUC__)
#define EVO_API __attribute__((visibility("default")))
#else
#define EVO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** The result of a call. Values are stable: new ones are added at the end. */
typedef enum evo_status {
    EVO_OK = 0,
    EVO_ERROR_INVALID_ARGUMENT = 1, /**< an enumerator, number, name or struct size that has no meaning */
    EVO_ERROR_NULL_POINTER = 2,     /**< a pointer that the call or the descriptor requires is NULL */
    EVO_ERROR_INVALID_SHAPE = 3,    /**< a negative or inconsistent extent */
    EVO_ERROR_INVALID_DTYPE = 4,    /**< a number type that this tensor cannot have */
    EVO_ERROR_INVALID_LAYOUT = 5,   /**< strides that make an output overlap itself, or break an alias promise */
    EVO_ERROR_MISALIGNED = 6,       /**< a pointer below the alignment that the descriptor promised */
    EVO_ERROR_ALIASED = 7,          /**< memory overlaps where the descriptor does not allow it */
    EVO_ERROR_SIZE_OVERFLOW = 8,    /**< a product of sizes does not fit in 64 bits */
    EVO_ERROR_BUFFER_TOO_SMALL = 9, /**< the workspace or pack memory is smaller than the plan's figure */
    EVO_ERROR_WORKSPACE_LIMIT = 10, /**< no kernel fits the descriptor's workspace_limit; the text says the least */
    EVO_ERROR_PACK_MISMATCH = 11,   /**< the packed weights are of other channels, types, kernel or device */
    EVO_ERROR_UNSUPPORTED = 12,     /**< no kernel of this device takes the descriptor; the text says each reason */
    EVO_ERROR_NOT_COMPILED = 13,    /**< the backend is known but not in this build */
    EVO_ERROR_NO_DEVICE = 14,       /**< no such device, or its driver is missing */
    EVO_ERROR_OUT_OF_MEMORY = 15,   /**< host or device memory is exhausted */
    EVO_ERROR_DEVICE = 16,          /**< the driver reported an error; the text has the driver's words */
    EVO_ERROR_CAPTURE = 17,         /**< not allowed while, or only allowed while, a stream records a graph */
    EVO_ERROR_INTERNAL = 18         /**< a defect of the library: please report it */
} evo_status;

/** The enumerator's name, such as "EVO_ERROR_MISALIGNED". Never NULL; unknown values give "EVO_ERROR_UNKNOWN". */
EVO_API const char *evo_status_name(evo_status status);

/**
 * What went wrong in this thread's most recent failed call: the argument, its value and what was expected.
 * Never NULL; "" before the first failure. Valid until the next failing call of the same thread.
 */
EVO_API const char *evo_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
