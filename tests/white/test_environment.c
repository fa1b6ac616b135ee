/*
 * test_environment.c: the library's variables are ignored in a program that runs with more rights than its user has.
 * The test copies itself, makes the copy's owner another user and sets its set-user-ID bit, which needs root.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/platform.h"

enum {
    SEEN = 10,
    IGNORED = 11,
    ANOTHER = 65534 /* nobody */
};

static char self[PATH_MAX], folder[] = "/tmp/evo-environment-XXXXXX", copy[PATH_MAX];

static int run(const char *program) {
    char command[2 * PATH_MAX];
    snprintf(command, sizeof command, "EVO_VERBOSE=2 '%s' child", program);
    int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void make_copy(void) {
    char command[3 * PATH_MAX];
    assert_non_null(mkdtemp(folder));
    snprintf(copy, sizeof copy, "%s/copy", folder);
    snprintf(command, sizeof command, "cp '%s' '%s'", self, copy);
    assert_int_equal(system(command), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(chmod(copy, 0755), 0);
}

static void test_own_rights(void **state) {
    (void)state;
    assert_int_equal(run(self), SEEN);
    assert_int_equal(run(copy), SEEN);
}

static void test_raised_rights(void **state) {
    (void)state;
    assert_int_equal(chown(copy, ANOTHER, (gid_t)-1), 0);
    assert_int_equal(chmod(copy, 04755), 0);
    assert_int_equal(run(copy), IGNORED);
}

static int remove_copy(void **state) {
    (void)state;
    return unlink(copy) | rmdir(folder);
}

int main(int argc, char **argv) {
    /* At once: a leak detector cannot look at a process with other rights than its own, and fails. */
    if (argc > 1) _exit(evo_environment("EVO_VERBOSE") ? SEEN : IGNORED);
    if (geteuid() != 0) {
        fprintf(stderr, "%s: only root can make a program of another user\n", argv[0]);
        return 77;
    }
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    make_copy();
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_own_rights), cmocka_unit_test(test_raised_rights) };
    return cmocka_run_group_tests(tests, NULL, remove_copy);
}
