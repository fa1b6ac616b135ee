/*
 * case.h: one call of an op as data: sizes, parameters, tensors with their values and layouts, the expected output.
 *
 * `evo run`, `evo check`, the tests and the benchmark all make, run and compare ops through it, on any device and
 * with nothing but the public API. Three ways lead to a case:
 *
 *   case_parse("opm(variant=boltz,dtype=bf16,s=8,n=33,layout=padded)", seed, ...)    random, and named by its text
 *   case_load("opm_01.safetensors", CASE_CANONICAL, ...)                              a file with expected values
 *   case_from_arrays(...)                                                             arrays of any origin
 *
 * Then case_run computes it (with sentinels around and inside every buffer, poisoned outputs and workspace),
 * case_reference makes its fp64 twin, and case_compare and case_bounds judge the difference. Functions that can fail
 * return false and leave a line in *error. Nothing here keeps static state: cases may be run from many threads.
 */
#ifndef EVO_TOOLS_CASE_H
#define EVO_TOOLS_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evoformer/evoformer.h>

#include "io/safetensors.h"

enum {
    CASE_MAX_TENSORS = 24,
    CASE_MAX_RANK = 4,
    CASE_NAME_SIZE = 320
};

/** What a tensor is for. Inputs, masks, residuals and outputs are activations: the descriptor has their layout. */
enum case_role {
    CASE_INPUT,
    CASE_MASK,
    CASE_RESIDUAL,
    CASE_OUTPUT,
    CASE_WEIGHT
};

/** How activations lie in memory. */
enum case_layout {
    CASE_CONTIGUOUS,
    CASE_PADDED,     /**< rows with gaps after each; last stride 1, rows 16-byte aligned where the type allows */
    CASE_OFFSET,     /**< contiguous, but one element off any alignment; only the element's own is promised */
    CASE_TRANSPOSED, /**< strides in the opposite order: the first index fastest, the last slowest */
    CASE_BROADCAST,  /**< inputs, masks and residuals repeat along their second index (stride 0); output contiguous */
    CASE_NEGATIVE,   /**< every index runs backwards */
    CASE_SLICE       /**< a range of channels of a wider array, starting at an odd channel */
};

/** How weights lie in memory. */
enum case_weight_layout {
    CASE_WEIGHT_CONTIGUOUS,
    CASE_WEIGHT_TRANSPOSED,        /**< matrices stored (in, out), as JAX and Paddle do */
    CASE_WEIGHT_HALVES,            /**< a and b are the halves of one (2c, in) array */
    CASE_WEIGHT_HALVES_TRANSPOSED, /**< a and b are the halves of one (in, 2c) array */
    CASE_WEIGHT_INTERLEAVED,       /**< a and b alternate along the output of one (in, 2c) array */
    CASE_WEIGHT_PADDED             /**< rows with gaps, vectors with stride 3 */
};

/** A descriptor of any op. `size` is the first member of each. */
union case_desc {
    size_t size;
    evo_opm_desc opm;
    evo_trimul_desc trimul;
};

/** A weights struct, an args struct of any op. */
union case_weights {
    size_t size;
    evo_opm_weights opm;
    evo_trimul_weights trimul;
};
union case_args {
    size_t size;
    evo_opm_args opm;
    evo_trimul_args trimul;
};

/** One size of an op: the letter that stands for it in extents, its key in a case's text, its place. */
struct case_dim {
    char letter;
    const char *name;
    size_t offset;    /**< of the int64_t in the descriptor */
    char fallback;    /**< the size that 0 stands for; 0 if 0 means zero */
    int64_t standard; /**< what case_parse starts from */
};

/** One tensor that an op knows. */
struct case_spec {
    const char *name; /**< as in the golden files */
    enum case_role role;
    const char *extents; /**< products of sizes, separated by commas: "z,cc" */
    unsigned bias;       /**< its bit in the descriptor's `biases`; 0 if it is no bias */
    size_t layout;       /**< activations: offset of the evo_tensor in the descriptor */
    size_t slot;         /**< offset of the pointer in the args struct, of the evo_weight in the weights struct */
};

enum case_param_kind {
    CASE_PARAM_NUMBER, /**< a double */
    CASE_PARAM_CHOICE, /**< an enum whose values 0, 1, ... are named by `choices` */
    CASE_PARAM_BIT,    /**< true or false: the bit `bits` of `biases` */
    CASE_PARAM_BITS,   /**< a list of tensors without their ".bias": their bits of `biases`, of those in `bits` */
    CASE_PARAM_FIXED   /**< a string that has one value only, choices[0] */
};

/** One parameter of an op's variants. */
struct case_param {
    const char *name; /**< in a case's text; with - for _, the option of `evo run`; NULL: only in files */
    const char *json; /**< in a file's `variant`; NULL: only in text */
    bool optional;    /**< a file's `variant` may leave it out */
    enum case_param_kind kind;
    size_t offset;
    unsigned bits;
    const char *const *choices;
    const char *help;
};

/** What every descriptor has, wherever it has it. */
struct case_common {
    evo_compute *compute;
    const char **kernel;
    size_t *workspace_limit;
    unsigned *alias;
    unsigned *biases;
    unsigned allowed_aliases;
};

/** An op, as far as this library must know it. A new op is one of these in a file of its own and a line in op.c. */
struct case_op {
    evo_op id;
    const char *name;
    const struct case_dim *dims; /**< the last has letter 0 */
    const struct case_spec *specs;
    int spec_count;
    const struct case_param *params; /**< the last has name and json NULL */
    const char *shape_help;          /**< "B,S,N,c_m,c,c_z": sizes in the order of dims */
    const char *const *checks;       /**< what `evo check` adds for this op: texts of keys and values; ends with NULL */
    void (*init)(union case_desc *desc);
    void (*init_weights)(union case_weights *weights);
    void (*init_args)(union case_args *args);
    evo_status (*set_variant)(union case_desc *desc, const char *name);
    const char *(*variant)(int index);
    struct case_common (*common)(union case_desc *desc);
    /** Whether the input's row (b, p, q) reaches the output pair (b, i, j). */
    bool (*reaches)(const union case_desc *desc, const int64_t *row, const int64_t *pair);
    evo_status (*plan_create)(evo_context *context, const union case_desc *desc, evo_plan **plan);
    evo_status (*pack)(const evo_plan *plan, const union case_weights *weights, void *memory, size_t size,
                       evo_stream stream, evo_pack **pack);
    evo_status (*execute)(const evo_plan *plan, const evo_pack *pack, const union case_args *args, void *workspace,
                          size_t workspace_size, evo_stream stream);
};

/** One tensor of one case. Element [i0, i1, ...] is element offset + i0 * strides[0] + ... of its buffer. */
struct case_tensor {
    const struct case_spec *spec;
    bool present;
    int rank;
    int64_t extents[CASE_MAX_RANK];
    int64_t count;
    evo_dtype dtype; /**< in which the library gets it */
    int buffer;
    int64_t offset;
    int64_t strides[CASE_MAX_RANK];
    size_t alignment; /**< what the descriptor promises; 0: 16 bytes */
    double *values;   /**< row-major, each exact in dtype; NULL for the output, and for views of a given buffer */
};

/** One piece of device memory; tensors may share it (halves of a fused weight, an output over its residual). */
struct case_buffer {
    evo_dtype dtype;
    int64_t count;
    double *values; /**< all of it, as a peer stores it; NULL: what the tensors do not cover is poison */
};

struct evo_case {
    char name[CASE_NAME_SIZE]; /**< the text or the file it was made from */
    const struct case_op *op;
    union case_desc desc; /**< sizes, parameters, compute, kernel, limit, alias; the layouts are in `tensors` */
    uint64_t seed;
    bool hard;     /**< inputs for which the bound of hard inputs holds */
    int runs;      /**< executions; all must agree bit for bit */
    bool split;    /**< to be compared with single runs of its batch entries (case_split) */
    bool poisoned; /**< one row of the input holds a NaN or Inf: */
    int64_t poison_row[3];
    enum case_layout layout; /**< as case_lay_out had them last */
    enum case_weight_layout weight_layout;
    struct case_tensor tensors[CASE_MAX_TENSORS]; /**< one a spec, in the same order */
    struct case_buffer buffers[CASE_MAX_TENSORS];
    int buffer_count;
    double *expected; /**< row-major, as the output; NULL if unknown */
};

/* ---- ops (op.c, opm.c, trimul.c) ---- */

/** Op number `index`; NULL past the last one. */
const struct case_op *case_op_get(int index);
/** The names of all, for messages. */
#define CASE_OP_NAMES "opm, trimul"
#define CASE_COMPUTE_NAMES "fp32, fp32_strict, tf32, bf16, fp16, fp64"
/** The op of that name, NULL if there is none. */
const struct case_op *case_op_find(const char *name);
/** The value of a product of sizes such as "2c", "cz" or "" (= 1), for given sizes; false on overflow. */
bool case_product(const struct case_op *op, const union case_desc *desc, const char *text, int64_t *value);
/** The same for a comma-separated list; `rank` gets the number of its items, at most CASE_MAX_RANK. */
bool case_products(const struct case_op *op, const union case_desc *desc, const char *text, int64_t *values, int *rank);
/** Sets one parameter from text ("after", "1e-3", "a+b", "none", "all"). */
bool case_set_param(const struct case_op *op, union case_desc *desc, const struct case_param *param, const char *text,
                    struct io_error *error);
/** The parameter with this name in a case's text, NULL if the op has none. */
const struct case_param *case_find_param(const struct case_op *op, const char *name);
/** The index of the spec with this name, -1 if the op has none. */
int case_find_spec(const struct case_op *op, const char *name);
/** The spec that is fused with this one (a with b, b with a): its index, -1 if there is none. */
int case_partner(const struct case_op *op, int spec);

/** "fp32", "bf16", ... to a dtype, "tf32", ... to a compute mode; false if unknown. */
bool case_dtype_from_name(const char *name, evo_dtype *dtype);
bool case_compute_from_name(const char *name, evo_compute *compute);
/** The mode that fits tensors of this type best: fp64, fp32, bf16 or fp16. */
evo_compute case_default_compute(evo_dtype dtype);

/* ---- making cases (generate.c, layout.c) ---- */

/**
 * A random case from a text OP(KEY=VALUE,...), which becomes its name. The same text and seed give the same values,
 * and the values of a tensor depend on its sizes and the seed only, not on layouts. Keys, all optional:
 *
 *   the op's sizes         b s n c_m c c_z, b n c_z c c_out
 *   variant                one of the op's; then its parameters override it: direction, divide, biases=a+out, ...
 *   dtype                  of all tensors that have none of their own: fp64 fp32 bf16 fp16
 *   weights                dtype of the weights, or "mixed"
 *   mask                   none random fractional large row column batch all ("row" blanks an index 1, that is a
 *                          sequence or an i; "column" an index 2, a residue or a j; "large" goes far above 1)
 *   mask_dtype             any dtype, uint8 too
 *   residual_dtype out_dtype
 *   residual               0 1
 *   input                  normal shifted (mean 1e3, spread 1e-2) cauchy constant nan inf (one row of it)
 *   layout                 contiguous padded offset transposed broadcast negative slice
 *   weight_layout          contiguous transposed halves halves_transposed interleaved padded
 *   alias                  none input residual both
 *   compute                the mode asked for; that of dtype unless told
 *   workspace_limit        bytes
 *   runs                   how many executions must agree bit for bit
 *   split                  1: to be compared with single runs of its batch entries
 */
bool case_parse(const char *text, uint64_t seed, struct evo_case *result, struct io_error *error);

/** Frees what the case owns; safe on a zeroed case. */
void case_destroy(struct evo_case *c);
bool case_copy(const struct evo_case *c, struct evo_case *result, struct io_error *error);

/** Rounds all values to these types (EVO_NONE: leave as they are); a uint8 mask stays, and so do the layouts. */
bool case_retype(struct evo_case *c, evo_dtype activations, evo_dtype weights, struct io_error *error);
/** Lays all tensors out anew. Broadcast changes values (they repeat). Aliases need the descriptor's `alias`. */
bool case_lay_out(struct evo_case *c, enum case_layout layout, enum case_weight_layout weights, struct io_error *error);
/** The same numbers as fp64 tensors, contiguous, not aliased, for compute fp64 on kernel "reference". */
bool case_reference(const struct evo_case *c, struct evo_case *result, struct io_error *error);
/** Batch entry `index` alone, laid out by the same pattern. */
bool case_split(const struct evo_case *c, int64_t index, struct evo_case *result, struct io_error *error);

/** The output, without the right to change it. */
const struct case_tensor *case_result_of(const struct evo_case *c);
/** The output, the input, or a tensor by name (NULL if the op has none). */
struct case_tensor *case_output(struct evo_case *c);
struct case_tensor *case_input(struct evo_case *c);
struct case_tensor *case_find(struct evo_case *c, const char *name);

/** Standard generator: uniform bits from a seed and a stream name, uniform in (0, 1), normal. */
struct case_random {
    uint64_t state[4];
};
void case_random_seed(struct case_random *random, uint64_t seed, const char *stream);
uint64_t case_random_bits(struct case_random *random);
double case_random_uniform(struct case_random *random);
double case_random_normal(struct case_random *random);

/* ---- files (file.c, peers.c) ---- */

/** Where one tensor of a case comes from: an array as it is, or a view of one. */
struct case_given {
    const struct io_array *array; /**< NULL: the tensor is absent */
    const char *file;             /**< where the array is from, for messages */
    bool view; /**< a weight whose element [o, i] is element offset + o * strides[0] + i * strides[1] */
    int64_t offset;
    int64_t strides[2];
};

/** Makes all sizes unknown (-1), so that case_bind can find them. */
void case_unbind(const struct case_op *op, union case_desc *desc);
/**
 * Learns sizes from an array's shape, given what its extents should be, such as "z,2c". Extents that are still
 * unknown products pass. @returns false if rank or a known extent differs
 */
bool case_bind(const struct case_op *op, union case_desc *desc, const char *extents, const int64_t *shape, int rank);

/**
 * A case from arrays, one `given` a spec (the output's is ignored). `desc` has parameters, bias bits and whatever sizes
 * case_bind could not learn from `given`; tensors keep their types, the output gets the input's, expected may be NULL.
 */
bool case_from_arrays(const struct case_op *op, const union case_desc *desc, const struct case_given *given,
                      const struct case_given *expected, struct evo_case *result, struct io_error *error);

/** Finds an array by name, or NULL. */
typedef const struct io_array *(*case_finder)(void *user, const char *name);

/** Where the weights lie in the arrays of another project, under its own names and in its own layouts. */
struct case_peer {
    const char *name;
    const char *op;
    const char *variant; /**< the variant that is this peer's */
    bool swaps;          /**< its a and b are the other way round for incoming edges */
    const struct case_peer_view *views;
};

/** Peer number `index` (each op of a peer counts); NULL past the last one. */
const struct case_peer *case_peer_get(int index);
const struct case_peer *case_peer_find(const char *name, const struct case_op *op);
/**
 * Fills in the weights of `given` from a peer's arrays; learns sizes from their shapes. Each array is looked up as
 * "peer.NAME", then "NAME"; a weight whose array is missing is looked up by its canonical name.
 */
bool case_peer_weights(const struct case_peer *peer, const struct case_op *op, union case_desc *desc, case_finder find,
                       void *user, const char *file, struct case_given *given, struct io_error *error);

enum case_source {
    CASE_CANONICAL, /**< weights by their own names */
    CASE_VIEWS      /**< weights through the file's `views` where it has them */
};

/** A case file, opened: what case_from_arrays takes, to be changed before it is taken. */
struct case_file {
    const char *path;
    struct safetensors arrays;
    struct cJSON *views;
    const struct case_op *op;
    union case_desc desc; /**< the variant's parameters; sizes as the canonical tensors tell */
    bool residual;        /**< as the variant says */
    bool has_views;
    struct case_given given[CASE_MAX_TENSORS];
    struct case_given expected;
};

/** Opens a case file: op and variant from its metadata, tensors as they stand or through its `views`. */
bool case_file_open(const char *path, enum case_source source, struct case_file *file, struct io_error *error);
void case_file_close(struct case_file *file);

/**
 * Reads a case file (tests/golden/README.md describes the format). `has_views` (may be NULL) says whether CASE_VIEWS
 * would differ.
 */
bool case_load(const char *path, enum case_source source, struct evo_case *result, bool *has_views,
               struct io_error *error);
/** The same for a file that lies in memory, with its canonical weights; `name` stands for its path. */
bool case_load_bytes(const char *name, const unsigned char *bytes, size_t size, struct evo_case *result,
                     struct io_error *error);
/** Applies a file's `variant`: a JSON object of the op's parameters, or a variant's name. */
bool case_variant_from_json(const struct case_op *op, union case_desc *desc, const char *text, bool *residual,
                            struct io_error *error);
/** Makes such an object; to be freed. */
char *case_variant_to_json(const struct case_op *op, const union case_desc *desc, bool residual);
/** Writes a case file: all tensors (in their own types where safetensors has them) and `expected` if known. */
bool case_save(const char *path, const struct evo_case *c, struct io_error *error);

/* ---- running and judging (run.c, compare.c) ---- */

/** The descriptor with the tensors' layouts filled in. Tests that plan by themselves start from it. */
void case_descriptor(const struct evo_case *c, union case_desc *desc);

enum case_result {
    CASE_DONE,
    CASE_REFUSED, /**< no kernel takes it (EVO_ERROR_UNSUPPORTED, EVO_ERROR_WORKSPACE_LIMIT) */
    CASE_FAILED   /**< any other error, a damaged sentinel, a changed input, results that differ from run to run */
};

struct case_outcome {
    enum case_result result;
    evo_status status;  /**< of the call that failed; EVO_OK if the failure is not the library's status */
    char message[1024]; /**< why not CASE_DONE */
    char kernel[64];
    evo_compute compute; /**< what the plan computes in */
    size_t workspace_size;
    double milliseconds; /**< of the last execution */
};

/**
 * Computes the case on the context's device: memory, stream, plan, pack, `runs` executions, copy back, sentinels.
 * `out` (may be NULL) gets case_output(c)->count values, row-major.
 * @returns outcome->result == CASE_DONE
 */
bool case_run(evo_context *context, const struct evo_case *c, double *out, struct case_outcome *outcome);

/** Relative errors |got - want| / |want| in the Frobenius norm. */
struct case_comparison {
    double total;          /**< over the whole tensor; infinite if NaN or Inf stand elsewhere than expected */
    double pair;           /**< of the worst pair: all but the last index fixed */
    int64_t worst_pair[3]; /**< which one */
    char message[256];     /**< what is wrong with NaN or Inf, if anything; else "" */
};

/** Compares outputs of the case's shape. A value that overflows the output's type must become that infinity. */
void case_compare(const struct evo_case *c, const double *got, const double *want, struct case_comparison *result);

struct case_bound {
    double total;
    double pair;
};

/** The errors allowed against the fp64 reference on the same stored inputs (docs/numerics.md has the reasons). */
struct case_bound case_bounds(evo_compute compute, const struct case_tensor *out, bool hard);
/** The errors allowed against expected values of unrounded inputs, as tests/golden/README.md has them. */
struct case_bound case_golden_bounds(evo_compute compute, evo_dtype output);

/**
 * Runs the case on `context` and judges it: against `expected` if it has that, else against its fp64 reference on
 * `cpu` (a context of device "cpu"); NaN reach, split batches and repeated runs are checked as the case asks.
 */
struct case_verdict {
    struct case_outcome outcome; /**< result CASE_FAILED also where a comparison failed; its message says what */
    struct case_comparison comparison;
    struct case_bound bound;
};
bool case_check(evo_context *context, evo_context *cpu, const struct evo_case *c, struct case_verdict *verdict);

#endif
