/* platform.c: the environment, the clock and the machine. */
#ifdef __linux__
#define _GNU_SOURCE /* sched_getaffinity */
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
    if (getuid() != geteuid() || getgid() != getegid()) return NULL;
    const char *value = getenv(name);
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

int evo_processors(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN); /* as well where the machine has more than a cpu_set_t holds */
    return online > 0 ? (int)online : 1;
}

/* The quota in a group's own cpu.max ("max 100000", "150000 100000"). */
static int quota_of_group(const char *path) {
    char name[PATH_MAX + 32];
    long long quota, period;
    snprintf(name, sizeof name, "/sys/fs/cgroup%s/cpu.max", path);
    FILE *file = fopen(name, "r");
    if (!file) return INT_MAX;
    const bool limited = fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0;
    fclose(file);
    return limited && (quota + period - 1) / period < INT_MAX ? (int)((quota + period - 1) / period) : INT_MAX;
}

/* The least of this process's group (the line "0::/path" of /proc/self/cgroup, version 2) and the groups above it. */
int evo_processor_quota(void) {
    char line[PATH_MAX + 8] = "";
    int least = INT_MAX;
    FILE *file = fopen("/proc/self/cgroup", "r");
    if (!file) return least;
    while (fgets(line, sizeof line, file) && strncmp(line, "0::/", 4) != 0) line[0] = 0;
    fclose(file);
    if (strncmp(line, "0::/", 4) != 0) return least;
    char *path = line + 3;
    path[strcspn(path, "\n")] = 0;
    for (;;) {
        const int quota = quota_of_group(strcmp(path, "/") == 0 ? "" : path);
        if (quota < least) least = quota;
        char *slash = strrchr(path, '/');
        if (!slash) return least;
        *slash = 0;
    }
}
