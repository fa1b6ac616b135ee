/*
 * test_allocations.c: each allocation of the library fails once, in its whole life on the device under test (life.h): a
 * status says so, nothing is left behind, and the same context then works and gives the same numbers. Public API only.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inject.h"
#include "life.h"

static const char *device(void) {
    const char *name = getenv("EVO_TEST_DEVICE");
    return name && name[0] ? name : "cpu";
}

static life live(int variant, long n) {
    life l = { .device = device(), .variant = variant };
    inject_after(n);
    life_live(&l);
    return l;
}

/* One life for each n, until one in which nothing failed. */
static void fail_each(int variant) {
    const life before = live(variant, 0);
    const long blocks = inject_live(), count = inject_seen();
    if (before.status != EVO_OK) fail_msg("%s: %s", before.call, before.words);
    assert_true(before.kernels >= 2);
    int optional = 0;
    long n = 1;
    for (;; n++) {
        const life l = live(variant, n);
        if (!inject_failed()) break;
        char where[512];
        snprintf(where, sizeof where, "allocation %ld, %s of %s", n, inject_failed(), inject_place());
        const bool is_optional = inject_was_optional();
        optional += is_optional;
        if (is_optional ? l.status != EVO_OK : l.status != EVO_ERROR_OUT_OF_MEMORY)
            fail_msg("%s: %s gives %s: %s", where, l.call, evo_status_name(l.status), l.words);
        if (!is_optional && !strstr(l.words, "memory") && !strstr(l.words, "mutex"))
            fail_msg("%s: no word of it: %s", where, l.words);
        if (inject_live() != blocks) fail_msg("%s: %ld blocks are left", where, inject_live() - blocks);
        const bool opened = strncmp(l.call, "evo_context_create", 18) != 0;
        if (opened && l.digest != before.digest) fail_msg("%s: other numbers afterwards", where);
        if (opened && !is_optional && !l.recovered) fail_msg("%s: the context works no more", where);
    }
    print_message("%s, variant %d: %d kernels, %ld allocations, %d of them optional\n", device(), variant,
                  before.kernels, count, optional);
    assert_true(n > count);
    /* A plan and a pack; the CPU's stream, events and graph are the library's own too. */
    assert_true(count > optional + (strcmp(device(), "cpu") == 0 ? 7 : 2) * before.kernels);
}

static void test_usual(void **state) {
    (void)state;
    fail_each(0);
}

/* Every published variant by some kernel, and each kernel by some of them; on simulated devices it takes long. */
static void test_every_variant(void **state) {
    (void)state;
    if (getenv("EVO_TEST_SCALE") && strcmp(device(), "cpu") != 0) return;
    for (int variant = 1; evo_opm_variant(variant) || evo_trimul_variant(variant); variant++) fail_each(variant);
}

/* A recording in which a call found no memory gives no graph: half of an op would run. */
static void test_half_a_recording(void **state) {
    (void)state;
    evo_context *context;
    evo_stream stream;
    evo_graph graph;
    char memory[8] = "";
    inject_after(0);
    assert_int_equal(evo_context_create(device(), NULL, &context), EVO_OK);
    if (strcmp(device(), "cpu") != 0) { /* elsewhere recording allocates nothing of ours */
        evo_context_destroy(context);
        return;
    }
    assert_int_equal(evo_stream_create(context, &stream), EVO_OK);
    const long blocks = inject_live();
    assert_int_equal(evo_graph_begin(context, stream), EVO_OK);
    assert_int_equal(evo_memory_fill(context, memory, 1, sizeof memory, stream), EVO_OK);
    inject_after(1);
    assert_int_equal(evo_memory_fill(context, memory, 2, sizeof memory, stream), EVO_ERROR_OUT_OF_MEMORY);
    assert_int_equal(evo_memory_fill(context, memory, 3, sizeof memory, stream), EVO_OK);
    assert_int_equal(evo_graph_end(context, stream, &graph), EVO_ERROR_OUT_OF_MEMORY);
    assert_non_null(strstr(evo_last_error(), "void"));
    assert_null(graph);
    assert_int_equal(inject_live(), blocks);
    assert_int_equal(evo_graph_begin(context, stream), EVO_OK);
    assert_int_equal(evo_graph_end(context, stream, &graph), EVO_OK);
    assert_int_equal(evo_graph_destroy(context, graph), EVO_OK);
    assert_int_equal(evo_stream_destroy(context, stream), EVO_OK);
    evo_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_usual), cmocka_unit_test(test_every_variant),
                                        cmocka_unit_test(test_half_a_recording) };
    evo_context *context = NULL;
    if (evo_context_create(device(), NULL, &context) != EVO_OK) {
        fprintf(stderr, "skipped: %s\n", evo_last_error());
        return 77;
    }
    evo_context_destroy(context);
    return cmocka_run_group_tests_name("allocations", tests, NULL, NULL);
}
