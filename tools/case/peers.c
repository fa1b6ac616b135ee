/*
 * peers.c: where other projects keep the weights of the ops: array names, shapes, and the view of each weight in them.
 * Names are those of the projects' own modules and functions; the golden files' `views` say the same of the layouts.
 */
#include <stdio.h>
#include <string.h>

#include "case/ops.h"

/* One weight. Shape, offset and strides are products of sizes (nothing is 1); one stride a dimension of the weight. */
struct case_peer_view {
    const char *weight;
    const char *array;
    const char *shape;
    const char *offset;
    const char *strides;
    bool plain; /* stored as the canonical weight is: a file may have it under that name */
};

/* A matrix stored (out, in) or (in, out), and a vector. */
#define PLAIN(weight, array, out, in) { weight, array, out "," in, "0", in ",", true }
#define TURNED(weight, array, out, in) { weight, array, in "," out, "0", "," out, false }
#define VECTOR(weight, array, out) { weight, array, out, "0", "", true }

#define PLAIN_BIASED(stem, array, out, in) PLAIN(stem ".weight", array ".weight", out, in), VECTOR(stem ".bias", array ".bias", out)
#define TURNED_BIASED(stem, array, end, out, in) \
    TURNED(stem ".weight", array end, out, in), VECTOR(stem ".bias", array ".bias", out)
#define NORM(stem, array, gain, shift, size) VECTOR(stem ".weight", array gain, size), VECTOR(stem ".bias", array shift, size)

/* The halves of one (2c, z) array, of one (z, 2c) array, and rows that alternate in the latter. */
#define HALVES(stem, array, dot) \
    { "a_" stem ".weight", array dot "weight", "2c,z", "0", "z,", false }, { "a_" stem ".bias", array dot "bias", "2c", "0", "", false }, \
    { "b_" stem ".weight", array dot "weight", "2c,z", "cz", "z,", false }, { "b_" stem ".bias", array dot "bias", "2c", "c", "", false }
#define HALVES_TURNED(stem, array) \
    { "a_" stem ".weight", array ".weights", "z,2c", "0", ",2c", false }, { "a_" stem ".bias", array ".bias", "2c", "0", "", false }, \
    { "b_" stem ".weight", array ".weights", "z,2c", "c", ",2c", false }, { "b_" stem ".bias", array ".bias", "2c", "c", "", false }
#define INTERLEAVED(stem, array) \
    { "a_" stem ".weight", array ".weights", "z,2c", "0", "2,2c", false }, { "b_" stem ".weight", array ".weights", "z,2c", "1", "2,2c", false }

#define END { NULL, NULL, NULL, NULL, NULL, false }

/* ---- outer product mean ---- */

static const struct case_peer_view opm_openfold[] = { NORM("norm", "layer_norm", ".weight", ".bias", "m"),
                                                      PLAIN_BIASED("a", "linear_1", "c", "m"),
                                                      PLAIN_BIASED("b", "linear_2", "c", "m"),
                                                      PLAIN_BIASED("out", "linear_out", "z", "cc"), END };
static const struct case_peer_view opm_fastfold[] = { NORM("norm", "layernormM", ".weight", ".bias", "m"),
                                                      PLAIN_BIASED("a", "linear_a", "c", "m"),
                                                      PLAIN_BIASED("b", "linear_b", "c", "m"),
                                                      PLAIN_BIASED("out", "o_linear", "z", "cc"), END };
static const struct case_peer_view opm_boltz[] = { NORM("norm", "norm", ".weight", ".bias", "m"),
                                                   PLAIN_BIASED("a", "proj_a", "c", "m"),
                                                   PLAIN_BIASED("b", "proj_b", "c", "m"),
                                                   PLAIN_BIASED("out", "proj_o", "z", "cc"), END };
static const struct case_peer_view opm_alphafold[] = { NORM("norm", "layer_norm_input", ".scale", ".offset", "m"),
                                                       TURNED_BIASED("a", "left_projection", ".weights", "c", "m"),
                                                       TURNED_BIASED("b", "right_projection", ".weights", "c", "m"),
                                                       { "out.weight", "output_w", "c,c,z", "0", ",z", false },
                                                       VECTOR("out.bias", "output_b", "z"),
                                                       END };
static const struct case_peer_view opm_helixfold[] = { NORM("norm", "layer_norm_input", ".weight", ".bias", "m"),
                                                       TURNED_BIASED("a", "left_projection", ".weight", "c", "m"),
                                                       TURNED_BIASED("b", "right_projection", ".weight", "c", "m"),
                                                       { "out.weight", "output_w", "c,c,z", "0", ",z", false },
                                                       VECTOR("out.bias", "output_b", "z"),
                                                       END };

/* ---- triangle multiplication ---- */

static const struct case_peer_view trimul_openfold[] = { NORM("norm_in", "layer_norm_in", ".weight", ".bias", "z"),
                                                         PLAIN_BIASED("a_proj", "linear_a_p", "c", "z"),
                                                         PLAIN_BIASED("a_gate", "linear_a_g", "c", "z"),
                                                         PLAIN_BIASED("b_proj", "linear_b_p", "c", "z"),
                                                         PLAIN_BIASED("b_gate", "linear_b_g", "c", "z"),
                                                         NORM("norm_out", "layer_norm_out", ".weight", ".bias", "c"),
                                                         PLAIN_BIASED("out", "linear_z", "o", "c"),
                                                         PLAIN_BIASED("out_gate", "linear_g", "o", "z"),
                                                         END };
static const struct case_peer_view trimul_openfold_fused[] = {
    NORM("norm_in", "layer_norm_in", ".weight", ".bias", "z"),
    HALVES("proj", "linear_ab_p", "."),
    HALVES("gate", "linear_ab_g", "."),
    NORM("norm_out", "layer_norm_out", ".weight", ".bias", "c"),
    PLAIN_BIASED("out", "linear_z", "o", "c"),
    PLAIN_BIASED("out_gate", "linear_g", "o", "z"),
    END
};
static const struct case_peer_view trimul_boltz[] = { NORM("norm_in", "norm_in", ".weight", ".bias", "z"),
                                                      HALVES("proj", "p_in", "."),
                                                      HALVES("gate", "g_in", "."),
                                                      NORM("norm_out", "norm_out", ".weight", ".bias", "c"),
                                                      PLAIN_BIASED("out", "p_out", "o", "c"),
                                                      PLAIN_BIASED("out_gate", "g_out", "o", "z"),
                                                      END };
static const struct case_peer_view trimul_cuequivariance[] = { NORM("norm_in", "norm_in", "_weight", "_bias", "z"),
                                                               HALVES("proj", "p_in", "_"),
                                                               HALVES("gate", "g_in", "_"),
                                                               NORM("norm_out", "norm_out", "_weight", "_bias", "c"),
                                                               PLAIN("out.weight", "p_out_weight", "o", "c"),
                                                               VECTOR("out.bias", "p_out_bias", "o"),
                                                               PLAIN("out_gate.weight", "g_out_weight", "o", "z"),
                                                               VECTOR("out_gate.bias", "g_out_bias", "o"),
                                                               END };
#define FOUR_MATRICES(gain, shift, end) \
    NORM("norm_in", "layer_norm_input", gain, shift, "z"), TURNED_BIASED("a_proj", "left_projection", end, "c", "z"), \
    TURNED_BIASED("a_gate", "left_gate", end, "c", "z"), TURNED_BIASED("b_proj", "right_projection", end, "c", "z"), \
    TURNED_BIASED("b_gate", "right_gate", end, "c", "z"), NORM("norm_out", "center_layer_norm", gain, shift, "c"), \
    TURNED_BIASED("out", "output_projection", end, "o", "c"), TURNED_BIASED("out_gate", "gating_linear", end, "o", "z"), END
static const struct case_peer_view trimul_alphafold2[] = { FOUR_MATRICES(".scale", ".offset", ".weights") };
static const struct case_peer_view trimul_helixfold[] = { FOUR_MATRICES(".weight", ".bias", ".weight") };
static const struct case_peer_view trimul_alphafold2_fused[] = {
    NORM("norm_in", "left_norm_input", ".scale", ".offset", "z"),
    HALVES_TURNED("proj", "projection"),
    HALVES_TURNED("gate", "gate"),
    NORM("norm_out", "center_norm", ".scale", ".offset", "c"),
    TURNED_BIASED("out", "output_projection", ".weights", "o", "c"),
    TURNED_BIASED("out_gate", "gating_linear", ".weights", "o", "z"),
    END
};
static const struct case_peer_view trimul_alphafold3[] = { NORM("norm_in", "left_norm_input", ".scale", ".offset", "z"),
                                                           INTERLEAVED("proj", "projection"),
                                                           INTERLEAVED("gate", "gate"),
                                                           NORM("norm_out", "center_norm", ".scale", ".offset", "c"),
                                                           TURNED("out.weight", "output_projection.weights", "o", "c"),
                                                           TURNED("out_gate.weight", "gating_linear.weights", "o", "z"),
                                                           END };
static const struct case_peer_view trimul_tokamax[] = {
    NORM("norm_in", "layernorm_in", "_scale", "_offset", "z"),
    { "a_proj.weight", "projection_in_weights", "z,2,c", "0", ",2c", false },
    { "b_proj.weight", "projection_in_weights", "z,2,c", "c", ",2c", false },
    { "a_gate.weight", "gate_in_weights", "z,2,c", "0", ",2c", false },
    { "b_gate.weight", "gate_in_weights", "z,2,c", "c", ",2c", false },
    NORM("norm_out", "layernorm_out", "_scale", "_offset", "c"),
    TURNED("out.weight", "projection_out_weights", "o", "c"),
    TURNED("out_gate.weight", "gate_out_weights", "o", "z"),
    END
};

static const struct case_peer peers[] = {
    { "alphafold2", "opm", "alphafold2", false, opm_alphafold },
    { "alphafold2", "trimul", "alphafold2", true, trimul_alphafold2 },
    { "alphafold2-fused", "opm", "alphafold2", false, opm_alphafold },
    { "alphafold2-fused", "trimul", "alphafold2", true, trimul_alphafold2_fused },
    { "alphafold3", "opm", "alphafold3", false, opm_alphafold },
    { "alphafold3", "trimul", "alphafold3", true, trimul_alphafold3 },
    { "boltz", "opm", "boltz", false, opm_boltz },
    { "boltz", "trimul", "boltz", false, trimul_boltz },
    { "cuequivariance", "trimul", "alphafold2", false, trimul_cuequivariance },
    { "fastfold", "opm", "alphafold2", false, opm_fastfold },
    { "helixfold", "opm", "helixfold", false, opm_helixfold },
    { "helixfold", "trimul", "helixfold", true, trimul_helixfold },
    { "openfold", "opm", "alphafold2", false, opm_openfold },
    { "openfold", "trimul", "alphafold2", false, trimul_openfold },
    { "openfold-fused", "opm", "alphafold2", false, opm_openfold },
    { "openfold-fused", "trimul", "alphafold2", false, trimul_openfold_fused },
    { "openfold3", "opm", "alphafold3", false, opm_openfold },
    { "openfold3", "trimul", "alphafold3", false, trimul_openfold },
    { "protenix", "opm", "alphafold3", false, opm_openfold },
    { "protenix", "trimul", "alphafold3", false, trimul_openfold },
    { "tokamax", "trimul", "alphafold3", true, trimul_tokamax },
};

const struct case_peer *case_peer_get(int index) {
    return index >= 0 && (size_t)index < sizeof peers / sizeof peers[0] ? &peers[index] : NULL;
}

const struct case_peer *case_peer_find(const char *name, const struct case_op *op) {
    for (size_t i = 0; i < sizeof peers / sizeof peers[0]; i++) {
        if (strcmp(peers[i].name, name) == 0 && strcmp(peers[i].op, op->name) == 0) {
            return &peers[i];
        }
    }
    return NULL;
}

static const struct io_array *find_array(case_finder find, void *user, const char *name) {
    char prefixed[128];
    (void)snprintf(prefixed, sizeof prefixed, "peer.%s", name);
    const struct io_array *array = find(user, prefixed);
    return array != NULL ? array : find(user, name);
}

static bool incoming(const struct case_op *op, const union case_desc *desc) {
    const struct case_param *direction = case_find_param(op, "direction");
    return direction != NULL && *(const unsigned *)case_at_const(desc, direction->offset) != 0;
}

/* Which weight a view is of, after the swap of sides. */
static int viewed_spec(const struct case_peer *peer, const struct case_op *op, const union case_desc *desc,
                       const struct case_peer_view *view) {
    int spec = case_find_spec(op, view->weight);
    int partner = peer->swaps && incoming(op, desc) ? case_partner(op, spec) : -1;
    return partner >= 0 ? partner : spec;
}

static bool is_bias(const char *weight) {
    const size_t length = strlen(weight);
    return length > 5 && strcmp(weight + length - 5, ".bias") == 0;
}

/* Looks all arrays up and learns the sizes. Where a layout differs from the canonical one, only the peer's array will do. */
static bool find_all(const struct case_peer *peer, const struct case_op *op, union case_desc *desc, case_finder find,
                     void *user, struct case_given *given, struct io_error *error) {
    const char *file = given[viewed_spec(peer, op, desc, peer->views)].file;
    bool any = false;
    for (const struct case_peer_view *view = peer->views; view->weight != NULL; view++) {
        struct case_given *target = &given[viewed_spec(peer, op, desc, view)];
        target->array = find_array(find, user, view->array);
        target->view = target->array != NULL;
        any |= target->view && strcmp(view->array, view->weight) != 0;
        if (!target->view && !view->plain && !is_bias(view->weight)) {
            return io_fail(error, "%s: no tensor \"%s\": not the weights of %s", target->file, view->array, peer->name);
        }
        if (!target->view) {
            target->array = find(user, op->specs[target - given].name);
        } else if (!case_bind(op, desc, view->shape, target->array->shape, target->array->rank)) {
            char shape[128];
            io_shape_text(target->array->shape, target->array->rank, shape, sizeof shape);
            return io_fail(error, "%s: tensor \"%s\" has shape %s, expected [%s]", target->file, target->array->name,
                           shape, view->shape);
        }
    }
    return any ||
           io_fail(error, "%s: no tensor has a name of %s, such as \"%s\"", file, peer->name, peer->views[2].array);
}

bool case_peer_weights(const struct case_peer *peer, const struct case_op *op, union case_desc *desc, case_finder find,
                       void *user, const char *file, struct case_given *given, struct io_error *error) {
    for (int i = 0; i < op->spec_count; i++) {
        if (op->specs[i].role == CASE_WEIGHT) {
            given[i] = (struct case_given){ .file = file };
        }
    }
    if (!find_all(peer, op, desc, find, user, given, error)) {
        return false;
    }
    for (const struct case_peer_view *view = peer->views; view->weight != NULL; view++) {
        struct case_given *target = &given[viewed_spec(peer, op, desc, view)];
        int64_t strides[CASE_MAX_RANK];
        int rank;
        if (!target->view) {
            continue;
        }
        /* The second look checks shapes that the first could not, since it did not know all sizes yet. */
        if (!case_bind(op, desc, view->shape, target->array->shape, target->array->rank) ||
            !case_product(op, desc, view->offset, &target->offset) ||
            !case_products(op, desc, view->strides, strides, &rank) || rank > 2) {
            return io_fail(error, "%s: tensor \"%s\" does not fit the others", file, target->array->name);
        }
        memcpy(target->strides, strides, (size_t)rank * sizeof *strides);
    }
    return true;
}
