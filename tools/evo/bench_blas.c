/*
 * bench_blas.c: matrix products of cuBLASLt, hipBLASLt or a CBLAS, opened while the program runs. Their functions are
 * declared here, as far as one product needs them, so that no header of theirs is needed to build. EVO_CUBLASLT_LIBRARY,
 * EVO_HIPBLASLT_LIBRARY and EVO_CBLAS_LIBRARY name the library; without them the usual names are tried.
 */
#include "bench.h"

#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Puts a function of the library into *function; false if there is none. */
static bool find_function(void *library, const char *prefix, const char *name, void *function) {
    char full[64];
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    void *found = dlsym(library, full);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

/* Opens what the variable names, else the first of `names` that is there. */
static void open_library(const char *variable, const char *const *names, struct bench_product *product) {
    const char *given = getenv(variable);
    bool named = given != NULL && *given != '\0';
    const char *const one[] = { given, NULL };
    for (const char *const *name = named ? one : names; *name != NULL && product->library == NULL; name++) {
        product->library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        product->name = strrchr(*name, '/') != NULL ? strrchr(*name, '/') + 1 : *name;
    }
    if (product->library == NULL && named) {
        (void)snprintf(product->missing, sizeof product->missing, "%s is \"%s\": %s", variable, given, dlerror());
    } else if (product->library == NULL) {
        (void)snprintf(product->missing, sizeof product->missing, "no %s (%s names one)", names[0], variable);
    }
}

/* Does without the library, as it lacks something. It stays loaded: one with threads of its own survives no less. */
static bool give_up(struct bench_product *product, const char *why) {
    (void)snprintf(product->missing, sizeof product->missing, "%s: %s", product->name, why);
    product->library = NULL;
    return true;
}

/* Operands: two n x n matrices of normal numbers, and room for the third and for a workspace. */
struct operands {
    void *memory, *a, *b, *c, *workspace;
    int64_t n;
};

static const size_t workspace_size = 64u << 20;

static bool make_operands(const struct bench_device *device, int64_t n, evo_dtype dtype, size_t result_width,
                          struct operands *o, struct io_error *error) {
    size_t elements = (size_t)(n * n), bytes = elements * evo_dtype_size(dtype);
    o->n = n;
    if (!bench_good(evo_memory_alloc(device->context, 2 * bytes + elements * result_width + workspace_size, &o->memory),
                    error)) {
        return false;
    }
    o->a = o->memory;
    o->b = (char *)o->a + bytes;
    o->c = (char *)o->b + bytes;
    o->workspace = (char *)o->c + elements * result_width;
    /* Numbers of the product are near one too. */
    return bench_fill(device, o->a, n * n, dtype, 0.0, 1.0, 1, error) &&
           bench_fill(device, o->b, n * n, dtype, 0.0, 1.0 / sqrt((double)n), 2, error);
}

/* ---- cuBLASLt and hipBLASLt: the same functions under two prefixes ---- */

enum {
    LT_WORKSPACE_BYTES = 1, /* the preference, in both */
    LT_TYPES = 3
};

/* A compute mode in the vendor's numbers: its type of data (alike in both), of arithmetic and of scale factors. */
struct lt_mode {
    evo_compute compute;
    evo_dtype dtype;
    int data, cuda, hip, scale;
};

static const struct lt_mode lt_modes[] = {
    { EVO_COMPUTE_FP32, EVO_FP32, 0, 68, 2, 0 }, { EVO_COMPUTE_FP32_STRICT, EVO_FP32, 0, 68, 2, 0 },
    { EVO_COMPUTE_TF32, EVO_FP32, 0, 77, 6, 0 }, { EVO_COMPUTE_BF16, EVO_BF16, 14, 68, 2, 0 },
    { EVO_COMPUTE_FP16, EVO_FP16, 2, 68, 2, 0 }, { EVO_COMPUTE_FP64, EVO_FP64, 1, 70, 7, 1 },
};

struct lt {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading);
    int (*preference_create)(void **preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t size);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int wanted,
                     void *results, int *found);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                  void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                  const void *algorithm, void *workspace, size_t workspace_size, evo_stream stream);
    void *handle, *desc, *layout, *preference;
    /* The heuristic's result begins with the algorithm in both; neither is as large as this. */
    _Alignas(16) unsigned char result[512];
    double one[1], zero[1];
    struct operands operands;
};

static bool lt_product(void *user, evo_stream stream, struct io_error *error) {
    struct lt *l = user;
    const struct operands *o = &l->operands;
    int status = l->matmul(l->handle, l->desc, l->one, o->a, l->layout, o->b, l->layout, l->zero, o->c, l->layout, o->c,
                           l->layout, l->result, o->workspace, workspace_size, stream);
    return status == 0 || io_fail(error, "the matrix product of the ceiling failed with status %d", status);
}

static bool lt_find(void *library, const char *prefix, struct lt *l) {
    return find_function(library, prefix, "Create", &l->create) &&
           find_function(library, prefix, "Destroy", &l->destroy) &&
           find_function(library, prefix, "MatmulDescCreate", &l->desc_create) &&
           find_function(library, prefix, "MatrixLayoutCreate", &l->layout_create) &&
           find_function(library, prefix, "MatmulPreferenceCreate", &l->preference_create) &&
           find_function(library, prefix, "MatmulPreferenceSetAttribute", &l->preference_set) &&
           find_function(library, prefix, "MatmulAlgoGetHeuristic", &l->heuristic) &&
           find_function(library, prefix, "Matmul", &l->matmul);
}

/* The status of the first call that fails, 0 if none does. */
static int lt_set_up(struct lt *l, const struct lt_mode *mode, int compute, uint64_t n) {
    int found = 0;
    int status = l->create(&l->handle);
    status = status != 0 ? status : l->desc_create(&l->desc, compute, mode->scale);
    status = status != 0 ? status : l->layout_create(&l->layout, mode->data, n, n, (int64_t)n);
    status = status != 0 ? status : l->preference_create(&l->preference);
    status = status != 0 ? status
                         : l->preference_set(l->preference, LT_WORKSPACE_BYTES, &workspace_size, sizeof workspace_size);
    status = status != 0 ? status
                         : l->heuristic(l->handle, l->desc, l->layout, l->layout, l->layout, l->layout, l->preference,
                                        1, l->result, &found);
    return status != 0 ? status : found == 1 ? 0 : -1;
}

/* Makes the device current in this thread, which the libraries rely on and libevoformer leaves to the caller. */
static bool make_current(const struct bench_device *device, void *library, bool cuda) {
    int index = atoi(device->info.name + strcspn(device->info.name, ":") + 1);
    if (!cuda) {
        int (*set_device)(int index);
        return find_function(library, "hip", "SetDevice", &set_device) && set_device(index) == 0;
    }
    int (*init)(unsigned flags);
    int (*retain)(void **context, int device);
    int (*set_current)(void *context);
    void *context = NULL, *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver != NULL && find_function(driver, "cu", "Init", &init) &&
           find_function(driver, "cu", "DevicePrimaryCtxRetain", &retain) &&
           find_function(driver, "cu", "CtxSetCurrent", &set_current) && init(0) == 0 && retain(&context, index) == 0 &&
           set_current(context) == 0;
}

static bool open_lt(const struct bench_device *device, evo_compute compute, struct bench_product *product,
                    struct io_error *error) {
    static const char *const names[2][4] = { { "libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so", NULL },
                                             { "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", NULL } };
    bool cuda = strncmp(device->info.name, "cuda", 4) == 0;
    const char *variable = cuda ? "EVO_CUBLASLT_LIBRARY" : "EVO_HIPBLASLT_LIBRARY";
    const char *driver = getenv(cuda ? "EVO_CUDA_LIBRARY" : "EVO_HIP_LIBRARY");
    bool replaced = driver != NULL && *driver != '\0';
    if (replaced && getenv(variable) == NULL) {
        (void)snprintf(product->missing, sizeof product->missing, "the driver is %s, for which %s names no library",
                       driver, variable);
        return true;
    }
    open_library(variable, names[cuda], product);
    if (product->library == NULL) {
        return true;
    }
    struct lt *l = calloc(1, sizeof *l);
    const struct lt_mode *mode = lt_modes;
    while (mode->compute != compute) {
        mode++;
    }
    uint64_t n = compute == EVO_COMPUTE_FP64 ? 4096 : 8192;
    n = replaced ? 64 : n; /* a simulated device counts, it does not compute fast */
    product->state = l;
    product->work = lt_product;
    product->flops = 2.0 * (double)n * (double)n * (double)n;
    if (l == NULL) {
        return io_fail(error, "out of memory");
    }
    if (!lt_find(product->library, cuda ? "cublasLt" : "hipblasLt", l)) {
        return give_up(product, "it lacks a function");
    }
    if (!replaced && !make_current(device, product->library, cuda)) {
        return give_up(product, "the device cannot be made current");
    }
    int status = lt_set_up(l, mode, cuda ? mode->cuda : mode->hip, n);
    if (status != 0) {
        char why[64];
        (void)snprintf(why, sizeof why, "no product in this mode, status %d", status);
        return give_up(product, why);
    }
    const float one = 1.0f;
    memcpy(l->one, &one, sizeof one);
    if (mode->scale == 1) {
        l->one[0] = 1.0;
    }
    return make_operands(device, (int64_t)n, mode->dtype, evo_dtype_size(mode->dtype), &l->operands, error);
}

/* ---- CBLAS ---- */

enum {
    ROW_MAJOR = 101,
    NO_TRANSPOSE = 111,
    CPU_N = 2048
};

struct cblas {
    /* sgemm, and the products of bf16 numbers, which give fp32 */
    void (*single)(int order, int a_form, int b_form, int m, int n, int k, float alpha, const void *a, int lda,
                   const void *b, int ldb, float beta, void *c, int ldc);
    void (*twofold)(int order, int a_form, int b_form, int m, int n, int k, double alpha, const double *a, int lda,
                    const double *b, int ldb, double beta, double *c, int ldc);
    struct operands operands;
};

static bool cblas_product(void *user, evo_stream stream, struct io_error *error) {
    const struct cblas *p = user;
    const struct operands *o = &p->operands;
    const int n = (int)o->n;
    (void)stream;
    (void)error;
    if (p->twofold != NULL) {
        p->twofold(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, n, n, n, 1.0, o->a, n, o->b, n, 0.0, o->c, n);
    } else {
        p->single(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, n, n, n, 1.0f, o->a, n, o->b, n, 0.0f, o->c, n);
    }
    return true;
}

/* The library's threads are to be as many as libevoformer's. */
static void set_threads(void *library) {
    const char *text = getenv("EVO_NUM_THREADS");
    int threads = text != NULL ? atoi(text) : 0;
    void (*set)(int threads);
    if (threads > 0 && (find_function(library, "", "openblas_set_num_threads", &set) ||
                        find_function(library, "", "MKL_Set_Num_Threads", &set) ||
                        find_function(library, "", "bli_thread_set_num_threads", &set))) {
        set(threads);
    }
}

static bool open_cblas(const struct bench_device *device, evo_compute compute, struct bench_product *product,
                       struct io_error *error) {
    static const char *const names[] = { "libopenblas.so.0", "libmkl_rt.so.2", "libblis.so.4", NULL };
    open_library("EVO_CBLAS_LIBRARY", names, product);
    if (product->library == NULL) {
        return true;
    }
    struct cblas *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return io_fail(error, "out of memory");
    }
    product->state = p;
    product->work = cblas_product;
    product->flops = 2.0 * (double)CPU_N * (double)CPU_N * (double)CPU_N;
    evo_dtype dtype = compute == EVO_COMPUTE_BF16 ? EVO_BF16 : compute == EVO_COMPUTE_FP64 ? EVO_FP64 : EVO_FP32;
    bool found = dtype == EVO_FP64   ? find_function(product->library, "", "cblas_dgemm", &p->twofold)
                 : dtype == EVO_BF16 ? find_function(product->library, "", "cblas_gemm_bf16bf16f32", &p->single) ||
                                           find_function(product->library, "", "cblas_sbgemm", &p->single)
                                     : find_function(product->library, "", "cblas_sgemm", &p->single);
    if (!found) {
        return give_up(product, "it has no product in this mode");
    }
    set_threads(product->library);
    return make_operands(device, CPU_N, dtype, dtype == EVO_FP64 ? sizeof(double) : sizeof(float), &p->operands, error);
}

/* ---- either ---- */

bool bench_open_product(const struct bench_device *device, evo_compute compute, struct bench_product *product,
                        struct io_error *error) {
    *product = (struct bench_product){ .name = "" };
    bool good = device->cpu ? open_cblas(device, compute, product, error) : open_lt(device, compute, product, error);
    if (!good) {
        bench_close_product(device, product);
    }
    return good;
}

void bench_close_product(const struct bench_device *device, struct bench_product *product) {
    if (product->state != NULL) {
        struct lt *l = device->cpu ? NULL : product->state;
        struct operands *o = l != NULL ? &l->operands : &((struct cblas *)product->state)->operands;
        (void)evo_memory_free(device->context, o->memory);
        if (l != NULL && l->handle != NULL) {
            (void)l->destroy(l->handle);
        }
    }
    free(product->state);
    product->state = NULL;
}
