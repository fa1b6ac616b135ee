/*
 * report.c: `evo info --report`: what a bug report needs, and nothing that tells whose machine it is: no names of hosts,
 * users or folders, no serial numbers.
 */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "report.h"

#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <evoformer/evoformer.h>

#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

void print_without_folders(const char *text) {
    while (*text != '\0') {
        size_t blank = strspn(text, " \t\"'()=");
        size_t word = strcspn(text + blank, " \t\"'()=");
        const char *last = text + blank;
        for (const char *at = last; at < text + blank + word; at++) {
            last = *at == '/' && at + 1 < text + blank + word ? at + 1 : last;
        }
        printf("%.*s%.*s", (int)blank, text, (int)(text + blank + word - last), last);
        text += blank + word;
    }
}

static void print_item(const char *key, const char *text) {
    printf("%s: ", key);
    print_without_folders(text);
    printf("\n");
}

/* ---- the system ---- */

/* The first line of a file that begins with `key`, after that key; false if there is none. */
static bool find_line(const char *path, const char *key, char *line, int size) {
    FILE *file = fopen(path, "r");
    bool found = false;
    while (file != NULL && !found && fgets(line, size, file) != NULL) {
        found = strncmp(line, key, strlen(key)) == 0;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    if (found) {
        line[strcspn(line, "\n")] = '\0';
        memmove(line, line + strlen(key), strlen(line + strlen(key)) + 1);
    }
    return found;
}

static void print_system(void) {
    struct utsname system;
    char line[1024];
    if (uname(&system) == 0) {
        printf("system: %s %s %s\n", system.sysname, system.release, system.machine);
    }
    if (find_line("/etc/os-release", "PRETTY_NAME=", line, sizeof line)) {
        print_item("distribution", line);
    }
#ifdef __GLIBC__
    printf("libc: glibc %s\n", gnu_get_libc_version());
#endif
    if (find_line("/proc/driver/nvidia/version", "NVRM version:", line, sizeof line)) {
        print_item("NVIDIA driver", line + strspn(line, " "));
    }
    if (find_line("/sys/module/amdgpu/version", "", line, sizeof line)) {
        print_item("AMD driver", line);
    }
}

/* Of the processor's flags those by which kernels are chosen. */
static void print_processor(void) {
    static const char *const known[] = { "avx",      "avx2",     "fma",         "f16c",     "avx512f",
                                         "avx512bw", "avx512vl", "avx512_bf16", "amx_tile", "amx_bf16",
                                         "asimd",    "sve",      "bf16" };
    static char flags[16384];
    bool there = find_line("/proc/cpuinfo", "flags", flags, sizeof flags) ||
                 find_line("/proc/cpuinfo", "Features", flags, sizeof flags);
    printf("processors: %ld online\nprocessor flags:", sysconf(_SC_NPROCESSORS_ONLN));
    for (char *rest = flags, *flag; there && (flag = strtok_r(rest, " \t:", &rest)) != NULL;) {
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            if (strcmp(flag, known[i]) == 0) {
                printf(" %s", flag);
            }
        }
    }
    printf("\n");
}

/* ---- what the process has loaded, and is told ---- */

static int print_runtime(struct dl_phdr_info *library, size_t size, void *user) {
    (void)size;
    (void)user;
    static const char *const runtimes[] = { "omp", "libcuda", "libamdhip", "evoformer" };
    const char *slash = strrchr(library->dlpi_name, '/');
    const char *name = slash != NULL ? slash + 1 : library->dlpi_name;
    for (size_t i = 0; i < sizeof runtimes / sizeof runtimes[0]; i++) {
        if (strstr(name, runtimes[i]) != NULL) {
            printf(" %s", name);
            break;
        }
    }
    return 0;
}

static void print_environment(void) {
    static const char *const names[] = {
        "EVO_NUM_THREADS", "EVO_VERBOSE",     "EVO_KERNEL",        "EVO_CPU_ISA",          "EVO_CUDA_LIBRARY",
        "EVO_HIP_LIBRARY", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT",  "OMP_DYNAMIC",          "OMP_PROC_BIND",
        "OMP_PLACES",      "OMP_WAIT_POLICY", "OMP_STACKSIZE",     "GOMP_CPU_AFFINITY",    "GOMP_SPINCOUNT",
        "KMP_AFFINITY",    "KMP_BLOCKTIME",   "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "HSA_OVERRIDE_GFX_VERSION"
    };
    static const char *const devices[] = { "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL) {
            print_item(names[i], value);
        }
    }
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        const char *value = getenv(devices[i]);
        if (value != NULL) { /* may hold serial numbers */
            bool plain = strspn(value, "0123456789,-") == strlen(value);
            printf("%s: %s\n", devices[i], plain ? value : "(set, not shown)");
        }
    }
}

/* ---- kernels ---- */

static void print_log(void *user, const char *line) {
    (void)user;
    printf("    ");
    print_without_folders(line);
    printf("\n");
}

/* What a plan says of itself on this device: kernel, instruction set, tiles. */
static void print_plans(const char *device) {
    static const evo_dtype dtypes[] = { EVO_FP32, EVO_BF16, EVO_FP16 };
    static const evo_compute computes[] = { EVO_COMPUTE_FP32, EVO_COMPUTE_BF16, EVO_COMPUTE_FP16 };
    evo_context_options options = EVO_CONTEXT_OPTIONS_INIT;
    evo_context *context = NULL;
    options.verbose = 1;
    options.log = print_log;
    printf("plans on %s:\n", device);
    if (evo_context_create(device, &options, &context) != EVO_OK) {
        print_log(NULL, evo_last_error());
        return;
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        evo_trimul_desc desc = EVO_TRIMUL_DESC_INIT;
        evo_plan *plan = NULL;
        desc.n = 256;
        desc.c_z = desc.c = 128;
        desc.z.dtype = desc.out.dtype = dtypes[i];
        desc.compute = computes[i];
        if (evo_trimul_plan_create(context, &desc, &plan) != EVO_OK) {
            print_log(NULL, evo_last_error());
        }
        evo_plan_destroy(plan);
    }
    evo_context_destroy(context);
}

void print_report(void) {
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    print_system();
    print_processor();
    printf("loaded:");
    (void)dl_iterate_phdr(print_runtime, NULL);
    printf("\n");
    print_environment();
    for (int i = 0; evo_device_get(i, &device) == EVO_OK; i++) {
        print_plans(device.name);
    }
}
