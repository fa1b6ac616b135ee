/* platform.c: the environment, the clock and the machine. */
#include "src/platform.h"

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
