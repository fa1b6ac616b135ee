/* test_platform.c: processors that the system grants: affinity masks, and quotas of control groups of both versions. */
#ifdef __linux__
#define _GNU_SOURCE /* sched_setaffinity */
#include <sched.h>
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/platform.h"

static char root[] = "/tmp/evo-groups-XXXXXX"; /* of the test's own tree, which is removed */

/* Writes a file of the tree, making its directories. */
static void put(const char *name, const char *text) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0700);
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int quota(const char *groups) {
    char path[PATH_MAX];
    put("groups", groups);
    snprintf(path, sizeof path, "%s/groups", root);
    return evo_quota_of_groups(path, root);
}

static void test_quotas(void **state) {
    (void)state;
    assert_non_null(mkdtemp(root));
    put("a/b/cpu.max", "max 100000\n");
    assert_int_equal(quota("0::/a/b\n"), INT_MAX);
    put("a/b/cpu.max", "250000 100000\n");
    assert_int_equal(quota("0::/a/b\n"), 3); /* two and a half */
    assert_int_equal(quota("0::/a/b/c\n"), 3);
    put("a/cpu.max", "100000 100000\n");
    assert_int_equal(quota("0::/a/b\n"), 1); /* the group above has less */
    put("cpu.max", "50000 100000\n");
    assert_int_equal(quota("0::/\n"), 1); /* half of one */
    assert_int_equal(quota("0::/elsewhere\n"), 1);
    put("cpu.max", "max 100000\n");
    assert_int_equal(quota("0::/elsewhere\n"), INT_MAX);
    put("unified/u/cpu.max", "400000 100000\n");
    assert_int_equal(quota("0::/u\n"), 4);
    put("cpu/v/cpu.cfs_quota_us", "-1\n");
    put("cpu/v/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota("4:cpu,cpuacct:/v\n"), INT_MAX);
    put("cpu/v/cpu.cfs_quota_us", "200000\n");
    assert_int_equal(quota("4:cpu,cpuacct:/v\n0::/\n"), 2);
    assert_int_equal(quota("4:cpu:/v\n"), 2);
    assert_int_equal(quota("3:cpuset:/v\n2:cpuacct:/v\nnonsense\n"), INT_MAX);
    put("cpu/v/cpu.cfs_period_us", "0\n");
    assert_int_equal(quota("4:cpu:/v\n"), INT_MAX);
    put("a/cpu.max", "99999999999999999 1\n");
    put("a/b/cpu.max", "nonsense\n");
    assert_int_equal(quota("0::/a/b\n"), INT_MAX);
    assert_int_equal(evo_quota_of_groups("/nonexistent", root), INT_MAX);
    char command[PATH_MAX];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
}

static void test_affinity(void **state) {
    (void)state;
    assert_true(evo_processors() >= 1);
#ifdef __linux__
    cpu_set_t all, one;
    CPU_ZERO(&one);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(evo_processors(), CPU_COUNT(&all));
    for (size_t k = 0; k < CPU_SETSIZE && CPU_COUNT(&one) == 0; k++)
        if (CPU_ISSET(k, &all)) CPU_SET(k, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(evo_processors(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_quotas), cmocka_unit_test(test_affinity) };
    return cmocka_run_group_tests_name("platform", tests, NULL, NULL);
}
