/* faults.h: kernels with one mistake each, which `broken` switches on; host side and kernels share these parameters. */
#ifndef EVO_TESTS_SIMULATED_FAULTS_H
#define EVO_TESTS_SIMULATED_FAULTS_H

#include "backends/gpu/kernels/params.h"

enum {
    FAULT_THREADS = 128,
    FAULT_DEPTH = 1024,  /* of the product in halves */
    FAULT_HALVINGS = 12, /* of its sums, which are operands then */
    FAULT_TILES = 12,    /* of 64 x 64 numbers, of kernels for sm_90a */
    FAULT_ROWS = 60      /* of these that are no zeros */
};

/* All kernels write a permutation or a copy of `in` to `out`, in blocks of FAULT_THREADS numbers. */
typedef struct fault_params {
    const float *in;
    float *out;
    int count;
    int broken;
} fault_params;

/* Mistakes of products in halves. */
enum {
    FAULT_SWAPPED_HALVES = 1,
    FAULT_LOW_HIGH, /* lacks, as does the next */
    FAULT_HIGH_LOW,
    FAULT_LONG_SUM /* on the matrix unit */
};

/* Numbers of the product in halves, up to 1024 in size, all 24 bits of which count. */
static inline float fault_number(uint32_t i) {
    uint32_t x = i * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u;
    x ^= x >> 13;
    return (float)(int32_t)x * 0x1p-21f;
}

/* Mistakes of kernels for sm_90a, which take this instead. */
enum {
    FAULT_FEW_ARRIVALS = 1, /* that a barrier counts */
    FAULT_MANY_ARRIVALS,
    FAULT_ONE_ARRIVAL, /* for four waves, each of which falls behind on its own */
    FAULT_PARITY,
    FAULT_STAGE_REUSED, /* before its readers have arrived */
    FAULT_READ_FENCE,   /* lacks: readers arrive before their registers are loaded */
    FAULT_FEW_BYTES,    /* that a barrier expects */
    FAULT_MANY_BYTES,
    FAULT_BUFFER_REUSED, /* before the store has read it */
    FAULT_STORE_FENCE,   /* lacks, as do the next */
    FAULT_STORE_BARRIER,
    FAULT_STORE_UNREAD, /* when its thread returns */
    FAULT_INIT_FENCE,
    FAULT_INIT_BARRIER,
    FAULT_NAMED_COUNT,
    FAULT_REGISTERS, /* that nobody gave up */
    FAULT_OPERAND_FENCE,
    FAULT_OFFSETS, /* of an operand, swapped */
    FAULT_STEP,    /* from 16 k to the next */
    FAULT_PRODUCT_FENCE,
    FAULT_PRODUCT_WAIT,
    FAULT_OPERAND_REGISTERS, /* written while a product reads them */
    FAULT_ACCUMULATE,        /* onto what was there */
    FAULT_WARPGROUP          /* one wave multiplies less */
};

typedef struct hopper_fault_params {
    gpu_tensor_map in, out; /* [FAULT_TILES][64][64], where `in` ends at row FAULT_ROWS */
    int32_t broken, unused;
} hopper_fault_params;

#endif
