/* platform.c: the environment, the clock and the machine. */
#ifdef __linux__
#define _GNU_SOURCE /* sched_getaffinity, secure_getenv */
#endif
#include "src/platform.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

const char *evo_environment(const char *name) {
#ifdef __linux__
    const char *value = secure_getenv(name); /* set-user-ID, set-group-ID, capabilities of a file */
#else
    const char *value = getuid() != geteuid() || getgid() != getegid() ? NULL : getenv(name);
#endif
    return value && value[0] ? value : NULL;
}

double evo_clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Linux tells the processor's name in /proc/cpuinfo; elsewhere, and where it has none, the architecture must do. */
static void processor_name(char *name, size_t size) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0) continue;
        colon += strspn(colon, ": \t");
        snprintf(name, size, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    fclose(file);
}

void evo_machine(char *description, size_t description_size, char *arch, size_t arch_size, size_t *memory) {
    struct utsname system;
    snprintf(arch, arch_size, "%.31s", uname(&system) < 0 ? "unknown" : system.machine);
    snprintf(description, description_size, "%.31s", arch);
    processor_name(description, description_size);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    *memory = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
}

void evo_process_mark(evo_process *process) {
    long none = 0;
    atomic_compare_exchange_strong(process, &none, (long)getpid());
}

bool evo_process_forked(evo_process *process) {
    const long first = atomic_load(process);
    return first && first != (long)getpid();
}

int evo_processors(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN); /* as well where the machine has more than a cpu_set_t holds */
    return online > 0 ? (int)online : 1;
}

/* Processors of a quota, rounded up; INT_MAX for none. */
static int processors_of(long long quota, long long period) {
    if (quota <= 0 || period <= 0 || quota / period >= INT_MAX - 1) return INT_MAX;
    return (int)(quota / period + (quota % period > 0));
}

/* The first two numbers of a file, or one of it and one of another; false if there are none ("max 100000"). */
static bool read_numbers(const char *path, const char *name, int count, long long *numbers) {
    char file_name[2 * PATH_MAX];
    if (snprintf(file_name, sizeof file_name, "%s/%s", path, name) >= (int)sizeof file_name) return false;
    FILE *file = fopen(file_name, "r");
    if (!file) return false;
    int read = 0;
    while (read < count && fscanf(file, "%lld", &numbers[read]) == 1) read++;
    fclose(file);
    return read == count;
}

/* A group's own quota: version 2 has "quota period" in one file, version 1 in two. */
static int quota_of_group(const char *path) {
    long long both[2];
    if (read_numbers(path, "cpu.max", 2, both)) return processors_of(both[0], both[1]);
    if (!read_numbers(path, "cpu.cfs_quota_us", 1, both) || !read_numbers(path, "cpu.cfs_period_us", 1, both + 1))
        return INT_MAX;
    return processors_of(both[0], both[1]);
}

/* The least of a group and the groups above it, below the mount `root`. */
static int quota_below(const char *root, const char *group) {
    char path[PATH_MAX];
    int least = INT_MAX;
    const size_t length = strlen(root);
    if (snprintf(path, sizeof path, "%s%s", root, strcmp(group, "/") == 0 ? "" : group) >= (int)sizeof path)
        return least;
    for (;;) {
        const int quota = quota_of_group(path);
        if (quota < least) least = quota;
        char *slash = strrchr(path, '/');
        if (!slash || (size_t)(slash - path) < length) return least;
        *slash = 0;
    }
}

static bool names_cpu(const char *controllers) {
    for (size_t n;; controllers += n + 1) {
        n = strcspn(controllers, ",");
        if (n == 3 && strncmp(controllers, "cpu", n) == 0) return true;
        if (!controllers[n]) return false;
    }
}

/*
 * What a line of the list of groups leaves: "0::/group" is of version 2, mounted at the root, or beside version 1 in
 * "unified"; "4:cpu,cpuacct:/group" is of version 1, mounted in a directory "cpu".
 */
static int quota_of_line(char *line, const char *root) {
    static const char *const mounts[] = { "", "/unified", "/cpu" };
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL, mount[PATH_MAX];
    int least = INT_MAX;
    if (!group) return least;
    *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    controllers++;
    const int begin = *controllers ? 2 : 0, end = !*controllers ? 2 : names_cpu(controllers) ? 3 : 2;
    for (int k = begin; k < end; k++) {
        if (snprintf(mount, sizeof mount, "%s%s", root, mounts[k]) >= (int)sizeof mount) continue;
        const int quota = quota_below(mount, group);
        if (quota < least) least = quota;
    }
    return least;
}

int evo_quota_of_groups(const char *groups, const char *root) {
    char line[PATH_MAX + 64];
    int least = INT_MAX;
    FILE *file = fopen(groups, "r");
    if (!file) return least;
    while (fgets(line, sizeof line, file)) {
        const int quota = quota_of_line(line, root);
        if (quota < least) least = quota;
    }
    fclose(file);
    return least;
}

int evo_processor_quota(void) {
    return evo_quota_of_groups("/proc/self/cgroup", "/sys/fs/cgroup");
}
