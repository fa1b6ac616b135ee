/*
 * fake_blas.c: a stand-in for cuBLASLt, hipBLASLt and a CBLAS, for `evo bench`: it checks what it is given, as far as the
 * real ones rely on it, and computes nothing. Like an old library it has no product of bf16 numbers on the CPU.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(int good, const char *what) {
    if (!good) {
        (void)fprintf(stderr, "fake_blas: %s\n", what);
        abort();
    }
}

/* ---- CBLAS ---- */

#define CBLAS(name, number)                                                                                       \
    void name(int order, int a_form, int b_form, int m, int n, int k, number alpha, const number *a, int lda,      \
              const number *b, int ldb, number beta, number *c, int ldc);                                          \
    void name(int order, int a_form, int b_form, int m, int n, int k, number alpha, const number *a, int lda,      \
              const number *b, int ldb, number beta, number *c, int ldc) {                                         \
        expect(order == 101 && a_form == 111 && b_form == 111, "row-major, not transposed");                       \
        expect(m == n && n == k && n == lda && n == ldb && n == ldc, "square matrices");                           \
        expect(alpha == (number)1 && beta == (number)0, "factors");                                                \
        expect(a[0] != 0 && a[(size_t)n * (size_t)n - 1] != 0 && b[0] != 0, "numbers that are not zero");          \
        c[(size_t)n * (size_t)n - 1] = 1;                                                                          \
    }
CBLAS(cblas_sgemm, float)
CBLAS(cblas_dgemm, double)

/* ---- cuBLASLt and hipBLASLt ---- */

struct desc {
    int compute, scale;
};

struct layout {
    int type;
    uint64_t rows;
};

static int none;
static struct desc the_desc;
static struct layout the_layout;
static size_t the_workspace;

static int create(void **object, void *made) {
    *object = made;
    return 0;
}

static int heuristic(void *const *arguments, int wanted, void *results, int *found) {
    expect(arguments[0] == &none && arguments[1] == &the_desc && arguments[6] == &none, "handles");
    for (int i = 2; i < 6; i++) {
        expect(arguments[i] == &the_layout, "layouts");
    }
    expect(wanted == 1 && the_workspace > 0, "one algorithm with a workspace");
    memset(results, 0x5a, 96);
    *found = 1;
    return 0;
}

static int matmul(const void *alpha, const void *beta, const unsigned char *algorithm, const void *c, const void *d) {
    double wide;
    float narrow;
    memcpy(&wide, alpha, sizeof wide);
    memcpy(&narrow, alpha, sizeof narrow);
    expect(the_desc.scale == 1 ? wide == 1.0 : narrow == 1.0f, "factor of one in the scale's type");
    memcpy(&wide, beta, sizeof wide);
    expect(wide == 0.0, "factor of zero");
    expect(algorithm[0] == 0x5a && algorithm[63] == 0x5a, "the heuristic's algorithm");
    expect(c == d && d != NULL, "the result in place");
    return 0;
}

#define LT(prefix, fp64_compute)                                                                                      \
    int prefix##Create(void **handle);                                                                                \
    int prefix##Create(void **handle) {                                                                               \
        return create(handle, &none);                                                                                 \
    }                                                                                                                 \
    int prefix##Destroy(void *handle);                                                                                \
    int prefix##Destroy(void *handle) {                                                                               \
        expect(handle == &none, "the handle");                                                                        \
        return 0;                                                                                                     \
    }                                                                                                                 \
    int prefix##MatmulDescCreate(void **desc, int compute, int scale);                                                \
    int prefix##MatmulDescCreate(void **desc, int compute, int scale) {                                               \
        expect(scale == (compute == (fp64_compute)), "a scale that fits the arithmetic");                             \
        the_desc = (struct desc){ compute, scale };                                                                   \
        return create(desc, &the_desc);                                                                               \
    }                                                                                                                 \
    int prefix##MatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading);        \
    int prefix##MatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {       \
        expect(rows > 0 && rows == columns && (int64_t)rows == leading, "a square matrix");                           \
        the_layout = (struct layout){ type, rows };                                                                   \
        return create(layout, &the_layout);                                                                           \
    }                                                                                                                 \
    int prefix##MatmulPreferenceCreate(void **preference);                                                            \
    int prefix##MatmulPreferenceCreate(void **preference) {                                                           \
        return create(preference, &none);                                                                             \
    }                                                                                                                 \
    int prefix##MatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t size);        \
    int prefix##MatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t size) {       \
        expect(preference == &none && attribute == 1 && size == sizeof the_workspace, "the workspace's size");        \
        memcpy(&the_workspace, value, size);                                                                          \
        return 0;                                                                                                     \
    }                                                                                                                 \
    int prefix##MatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,                  \
                                       void *preference, int wanted, void *results, int *found);                      \
    int prefix##MatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,                  \
                                       void *preference, int wanted, void *results, int *found) {                     \
        void *arguments[] = { handle, desc, a, b, c, d, preference };                                                 \
        return heuristic(arguments, wanted, results, found);                                                          \
    }                                                                                                                 \
    int prefix##Matmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,     \
                       void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,      \
                       const void *algorithm, void *workspace, size_t size, void *stream);                            \
    int prefix##Matmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,     \
                       void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,      \
                       const void *algorithm, void *workspace, size_t size, void *stream) {                           \
        expect(handle == &none && desc == &the_desc && stream != NULL, "handle, descriptor, stream");                 \
        expect(a_layout == &the_layout && b_layout == &the_layout && c_layout == &the_layout &&                       \
                   d_layout == &the_layout && a != NULL && b != NULL && a != b && b != d,                             \
               "operands");                                                                                           \
        expect(workspace != NULL && size == the_workspace, "the workspace");                                          \
        return matmul(alpha, beta, algorithm, c, d);                                                                  \
    }
LT(cublasLt, 70)
LT(hipblasLt, 7)
