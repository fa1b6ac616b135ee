/*
 * naive.c: see naive.h. Every number carries a bound on the error that a computation of it in working arithmetic
 * may have (a running error analysis): a result u-rounded adds u |result|, a sum of k terms (k - 1) u sum |term|
 * whatever its order, and errors of operands pass on by the first derivative.
 */
#include "naive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct number {
    long double v; /* the value */
    long double e; /* bound on its error; of an infinity: finite if rounding cannot have decided its sign */
} number;

typedef struct sum {
    long double v, e, magnitude;
    int64_t count;
} sum;

static void *allocate(int64_t count, size_t size) {
    void *p = calloc(count > 0 ? (size_t)count : 1, size);
    if (p == NULL) {
        fputs("naive: out of memory\n", stderr);
        abort();
    }
    return p;
}

static number *numbers(int64_t count) {
    return allocate(count, sizeof(number));
}

static number exact(long double v) {
    return (number){ v, 0.0L };
}

/* Whether a number has the sign that it has, however it was rounded. */
static int is_sure(number a) {
    return isinf(a.v) ? isfinite(a.e) : fabsl(a.v) > a.e;
}

static number add(long double u, number a, number b) {
    long double v = a.v + b.v;
    if (isinf(v)) return (number){ v, a.e + b.e };
    return (number){ v, a.e + b.e + u * fabsl(v) };
}

static number multiply(long double u, number a, number b) {
    long double v = a.v * b.v;
    if (isinf(v)) return (number){ v, is_sure(a) && is_sure(b) ? 0.0L : INFINITY };
    return (number){ v, fabsl(a.v) * b.e + fabsl(b.v) * a.e + u * fabsl(v) };
}

/* By infinity: 0, as exact as can be. By 0: no rounding makes a sum of zeros another number. */
static number divide(long double u, number a, number b) {
    long double v = a.v / b.v;
    if (isinf(v)) return (number){ v, is_sure(a) && (b.v == 0.0L ? b.e == 0.0L : is_sure(b)) ? 0.0L : INFINITY };
    if (isinf(b.v) && isfinite(a.v)) return exact(v);
    return (number){ v, (a.e + fabsl(v) * b.e) / fabsl(b.v) + u * fabsl(v) };
}

/* exp, an addition and a division: libm's exp is within 2 u. At infinity it is flat. */
static number sigmoid(long double u, number x) {
    long double v = 1.0L / (1.0L + expl(-x.v));
    return (number){ v, (isinf(x.v) ? 0.0L : v * (1.0L - v) * x.e) + 4.0L * u * v };
}

static void sum_add(sum *s, number term) {
    s->v += term.v;
    s->e += term.e;
    s->magnitude += fabsl(term.v);
    s->count++;
}

/*
 * A term that is a product of two numbers. Most of a test's time is spent here: sum_round_products adds the roundings of all
 * products after the last.
 */
static inline void sum_add_product(sum *s, const number *a, const number *b) {
    long double v = a->v * b->v;
    s->v += v;
    s->e += fabsl(a->v) * b->e + fabsl(b->v) * a->e;
    s->magnitude += fabsl(v);
    s->count++;
}

static void sum_round_products(long double u, sum *s) {
    s->e += u * s->magnitude;
}

static number sum_value(long double u, const sum *s) {
    long double roundings = s->count > 1 ? (long double)(s->count - 1) : 0.0L;
    return (number){ s->v, s->e + roundings * u * s->magnitude };
}

/*
 * LayerNorm of one row. m = mean(x); d = x - m; d -= mean(d): the second mean takes away the first one's error
 * delta, up to its own rounding, so that the error of d is relative to d and not to x. That is the bound here.
 */
static void layer_norm(long double u, const number *x, int64_t n, const double *weight, const double *bias, double eps,
                       number *out) {
    long double k = (long double)n, mean = 0, magnitude = 0, carried = 0;
    for (int64_t i = 0; i < n; i++) {
        mean += x[i].v / k;
        magnitude += fabsl(x[i].v) / k;
        carried += x[i].e / k;
    }
    /* Here too: rounded to 64 bits, a mean of 1e3 alone would hide the last bits of differences of 1e-2. */
    long double rest = 0, spread = 0, var = 0, var_error = 0, delta = k * u * magnitude;
    for (int64_t i = 0; i < n; i++) rest += (x[i].v - mean) / k;
    for (int64_t i = 0; i < n; i++) spread += fabsl(x[i].v - mean - rest) / k;
    for (int64_t i = 0; i < n; i++) {
        long double d = x[i].v - mean - rest;
        out[i].v = d;
        out[i].e = x[i].e + carried + u * (2 * fabsl(d) + delta + (k + 1) * (spread + delta));
        var += d * d / k;
        var_error += 2 * fabsl(d) * out[i].e / k;
    }
    number inverse = { 1 / sqrtl(var + eps), 0 };
    var_error += (k + 3) * u * (var + eps);
    inverse.e = inverse.v * (var_error / (2 * (var + eps)) + 2 * u);
    for (int64_t i = 0; i < n; i++) {
        out[i] = multiply(u, multiply(u, out[i], inverse), exact(weight[i]));
        if (bias != NULL) out[i] = add(u, out[i], exact(bias[i]));
    }
}

/* Row `row` of a dense (out, in) matrix times x, plus the bias. */
static number linear(long double u, const double *weight, const double *bias, int64_t row, const number *x,
                     int64_t in) {
    const double *const w = weight + row * in;
    sum s = { 0, 0, 0, in };
    for (int64_t k = 0; k < in; k++) { /* as sum_add_product: a weight is exact */
        long double v = w[k] * x[k].v;
        s.v += v;
        s.e += fabs(w[k]) * x[k].e;
        s.magnitude += fabsl(v);
    }
    sum_round_products(u, &s);
    if (bias != NULL) sum_add(&s, exact(bias[row]));
    return sum_value(u, &s);
}

static void load(const double *from, int64_t count, number *to) {
    for (int64_t i = 0; i < count; i++) to[i] = exact(from[i]);
}

static void store(long double u, number value, const double *residual, int64_t at, long double *want,
                  long double *bound) {
    if (residual != NULL) value = add(u, exact(residual[at]), value);
    want[at] = value.v;
    bound[at] = value.e;
}

/* a and b of one batch entry, [S, N, c] each. */
static void opm_project(const naive_opm *p, long double u, int64_t batch, number *a, number *b) {
    number *row = numbers(p->c_m), *x = numbers(p->c_m);
    for (int64_t si = 0; si < p->s * p->n; si++) {
        int64_t at = batch * p->s * p->n + si;
        load(p->m + at * p->c_m, p->c_m, row);
        layer_norm(u, row, p->c_m, p->norm_weight, p->norm_bias, p->layer_norm_eps, x);
        number mask = exact(p->mask != NULL ? p->mask[at] : 1.0);
        for (int64_t k = 0; k < p->c; k++) {
            number ak = linear(u, p->a_weight, p->a_bias, k, x, p->c_m);
            number bk = linear(u, p->b_weight, p->b_bias, k, x, p->c_m);
            a[si * p->c + k] = multiply(u, mask, ak);
            b[si * p->c + k] = p->mask_a_only ? bk : multiply(u, mask, bk);
        }
    }
    free(row);
    free(x);
}

/* n_ij = max(count + eps, min). */
static number opm_normaliser(const naive_opm *p, long double u, int64_t batch, int64_t i, int64_t j) {
    sum count = { 0, 0, 0, 0 };
    for (int64_t s = 0; s < p->s; s++) {
        number one = exact(1.0), mask_i = one, mask_j = one;
        if (p->mask != NULL) {
            mask_i = exact(p->mask[(batch * p->s + s) * p->n + i]);
            mask_j = exact(p->mask[(batch * p->s + s) * p->n + j]);
        }
        sum_add(&count, multiply(u, mask_i, mask_j));
    }
    number n = add(u, sum_value(u, &count), exact(p->count_eps));
    return n.v < p->count_min ? exact(p->count_min) : n;
}

/* o_ij = sum over s of a_si (x) b_sj, [c * c], c_b fastest. */
static void opm_outer(const naive_opm *p, long double u, const number *a, const number *b, int64_t i, int64_t j,
                      number *o) {
    for (int64_t ca = 0; ca < p->c; ca++)
        for (int64_t cb = 0; cb < p->c; cb++) {
            sum total = { 0, 0, 0, 0 };
            for (int64_t s = 0; s < p->s; s++)
                sum_add_product(&total, &a[(s * p->n + i) * p->c + ca], &b[(s * p->n + j) * p->c + cb]);
            sum_round_products(u, &total);
            o[ca * p->c + cb] = sum_value(u, &total);
        }
}

static void opm_pair(const naive_opm *p, long double u, int64_t batch, int64_t i, int64_t j, number *o,
                     long double *want, long double *bound) {
    int64_t cc = p->c * p->c;
    number n = opm_normaliser(p, u, batch, i, j);
    if (!p->divide_after)
        for (int64_t k = 0; k < cc; k++) o[k] = divide(u, o[k], n);
    for (int64_t k = 0; k < p->c_z; k++) {
        number z = linear(u, p->out_weight, p->out_bias, k, o, cc);
        if (p->divide_after) z = divide(u, z, n);
        store(u, z, p->residual, ((batch * p->n + i) * p->n + j) * p->c_z + k, want, bound);
    }
}

void naive_opm_eval(const naive_opm *p, long double unit, long double *want, long double *bound) {
    number *a = numbers(p->s * p->n * p->c), *b = numbers(p->s * p->n * p->c), *o = numbers(p->c * p->c);
    for (int64_t batch = 0; batch < p->batch; batch++) {
        opm_project(p, unit, batch, a, b);
        for (int64_t i = 0; i < p->n; i++)
            for (int64_t j = 0; j < p->n; j++) {
                opm_outer(p, unit, a, b, i, j, o);
                opm_pair(p, unit, batch, i, j, o, want, bound);
            }
    }
    free(a);
    free(b);
    free(o);
}

/* One side of the triangle at one pair: mask (W_p x + b_p) sigma(W_g x + b_g). */
static number gated(const naive_trimul *p, long double u, const double *proj, const double *proj_bias,
                    const double *gate, const double *gate_bias, int64_t row, const number *x, number mask) {
    number value = multiply(u, mask, linear(u, proj, proj_bias, row, x, p->c_z));
    return multiply(u, value, sigmoid(u, linear(u, gate, gate_bias, row, x, p->c_z)));
}

/* x [N, N, c_z], a and b [N, N, c] of one batch entry. */
static void trimul_project(const naive_trimul *p, long double u, int64_t batch, number *x, number *a, number *b) {
    number *row = numbers(p->c_z);
    for (int64_t ij = 0; ij < p->n * p->n; ij++) {
        int64_t at = batch * p->n * p->n + ij;
        number *xi = x + ij * p->c_z, mask = exact(p->mask != NULL ? p->mask[at] : 1.0);
        load(p->z + at * p->c_z, p->c_z, row);
        layer_norm(u, row, p->c_z, p->norm_in_weight, p->norm_in_bias, p->layer_norm_eps, xi);
        for (int64_t k = 0; k < p->c; k++) {
            a[ij * p->c + k] =
                gated(p, u, p->a_proj_weight, p->a_proj_bias, p->a_gate_weight, p->a_gate_bias, k, xi, mask);
            b[ij * p->c + k] =
                gated(p, u, p->b_proj_weight, p->b_proj_bias, p->b_gate_weight, p->b_gate_bias, k, xi, mask);
        }
    }
    free(row);
}

/* t_ij of every channel: sum over k of a_ik b_jk (outgoing) or a_ki b_kj (incoming). */
static void trimul_contract(const naive_trimul *p, long double u, const number *a, const number *b, int64_t i,
                            int64_t j, number *t) {
    for (int64_t channel = 0; channel < p->c; channel++) {
        sum total = { 0, 0, 0, 0 };
        for (int64_t k = 0; k < p->n; k++) {
            int64_t at_a = p->incoming ? k * p->n + i : i * p->n + k;
            int64_t at_b = p->incoming ? k * p->n + j : j * p->n + k;
            sum_add_product(&total, &a[at_a * p->c + channel], &b[at_b * p->c + channel]);
        }
        sum_round_products(u, &total);
        t[channel] = sum_value(u, &total);
    }
}

/* out_ij = g y (+ residual); `raw` and `normed` are scratch for a row each. */
static void trimul_finish(const naive_trimul *p, long double u, int64_t at, const number *x, const number *t,
                          number *raw, number *normed, long double *want, long double *bound) {
    layer_norm(u, t, p->c, p->norm_out_weight, p->norm_out_bias, p->layer_norm_eps, normed);
    load(p->z + at * p->c_z, p->c_z, raw);
    for (int64_t k = 0; k < p->c_out; k++) {
        number y = linear(u, p->out_weight, p->out_bias, k, normed, p->c);
        number g = sigmoid(u, linear(u, p->out_gate_weight, p->out_gate_bias, k, p->gate_raw ? raw : x, p->c_z));
        store(u, multiply(u, g, y), p->residual, at * p->c_out + k, want, bound);
    }
}

void naive_trimul_eval(const naive_trimul *p, long double unit, long double *want, long double *bound) {
    int64_t pairs = p->n * p->n;
    number *x = numbers(pairs * p->c_z), *a = numbers(pairs * p->c), *b = numbers(pairs * p->c);
    number *t = numbers(p->c), *raw = numbers(p->c_z), *normed = numbers(p->c);
    for (int64_t batch = 0; batch < p->batch; batch++) {
        trimul_project(p, unit, batch, x, a, b);
        for (int64_t ij = 0; ij < pairs; ij++) {
            trimul_contract(p, unit, a, b, ij / p->n, ij % p->n, t);
            trimul_finish(p, unit, batch * pairs + ij, x + ij * p->c_z, t, raw, normed, want, bound);
        }
    }
    free(x);
    free(a);
    free(b);
    free(t);
    free(raw);
    free(normed);
}
