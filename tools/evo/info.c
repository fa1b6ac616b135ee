/* info.c: `evo info`: version, build options, backends, devices, kernels. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "report.h"

enum {
    KEY_JSON = KEY_FIRST,
    KEY_REPORT
};

static const struct option_spec options[] = { { "json", KEY_JSON, NULL, "one JSON object on one line" },
                                              { "report", KEY_REPORT, NULL, "all that a bug report needs" },
                                              { "help", KEY_HELP, NULL, "print this help" },
                                              { NULL, 0, NULL, NULL } };

static const struct command self = {
    "evo info", "evo info [--json | --report]",
    "Says what this build holds and what it finds on this machine: version, build options, backends (and why one is\n"
    "absent), devices with their properties, and each op's kernels on each device, best first.\n"
    "--report adds the system, the driver, the OpenMP runtime, settings in the environment and a few plans; it holds "
    "no\n"
    "names of hosts, users or folders.",
    options
};

/* ---- as text ---- */

static void print_backend(const evo_backend_info *backend, bool report) {
    if (backend->device_count > 0) {
        printf("backend %s: %d device%s", backend->name, backend->device_count, backend->device_count == 1 ? "" : "s");
    } else {
        printf("backend %s: %s", backend->name, backend->compiled ? "compiled in, no device" : "not in this binary");
        printf("%s", backend->missing[0] != '\0' ? ": " : "");
        report ? print_without_folders(backend->missing) : (void)printf("%s", backend->missing);
    }
    printf("%s%s\n", backend->images[0] != '\0' ? "; kernels for " : "", backend->images);
}

static void print_device(const evo_device_info *device, evo_context *context) {
    printf("device %s: %s, %s, %d compute units", device->name, device->description, device->arch,
           device->compute_units);
    if (device->wave_size > 1) {
        printf(", waves of %d", device->wave_size);
    }
    if (device->memory_size > 0) {
        printf(", %.1f GiB", (double)device->memory_size / 0x1p30);
    }
    if (device->shared_memory_size > 0) {
        printf(", %zu KiB of shared memory", device->shared_memory_size / 1024);
    }
    printf("\n");
    for (int op = 0; context != NULL && evo_op_name((evo_op)op) != NULL; op++) {
        printf("    %s:", evo_op_name((evo_op)op));
        const char *kernel;
        for (int i = 0; (kernel = evo_context_kernel(context, (evo_op)op, i)) != NULL; i++) {
            printf(" %s", kernel);
        }
        printf("\n");
    }
}

static void print_text(bool report) {
    evo_backend_info backend = EVO_BACKEND_INFO_INIT;
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    printf("libevoformer %s\nbuild: %s\n", evo_version(), evo_build_info());
    for (int i = 0; evo_backend_get(i, &backend) == EVO_OK; i++) {
        print_backend(&backend, report);
    }
    for (int i = 0; evo_device_get(i, &device) == EVO_OK; i++) {
        evo_context *context = NULL;
        evo_status status = evo_context_create(device.name, NULL, &context);
        print_device(&device, context);
        if (status != EVO_OK) {
            printf("    cannot be opened: %s\n", evo_last_error());
        }
        evo_context_destroy(context);
    }
    if (report) {
        print_report();
    }
}

/* ---- as JSON ---- */

static void add_backend(cJSON *list, const evo_backend_info *backend) {
    cJSON *item = json_append(list, cJSON_CreateObject());
    (void)cJSON_AddStringToObject(item, "name", backend->name);
    (void)cJSON_AddBoolToObject(item, "compiled", backend->compiled != 0);
    (void)cJSON_AddNumberToObject(item, "devices", backend->device_count);
    (void)cJSON_AddStringToObject(item, "missing", backend->missing);
    (void)cJSON_AddStringToObject(item, "images", backend->images);
}

static void add_device(cJSON *list, const evo_device_info *device, evo_context *context) {
    cJSON *item = json_append(list, cJSON_CreateObject());
    (void)cJSON_AddStringToObject(item, "name", device->name);
    (void)cJSON_AddStringToObject(item, "description", device->description);
    (void)cJSON_AddStringToObject(item, "arch", device->arch);
    (void)cJSON_AddNumberToObject(item, "compute_units", device->compute_units);
    (void)cJSON_AddNumberToObject(item, "wave_size", device->wave_size);
    (void)cJSON_AddNumberToObject(item, "memory_size", (double)device->memory_size);
    (void)cJSON_AddNumberToObject(item, "shared_memory_size", (double)device->shared_memory_size);
    if (context == NULL) {
        (void)cJSON_AddStringToObject(item, "error", evo_last_error());
    }
    cJSON *kernels = cJSON_AddObjectToObject(item, "kernels");
    for (int op = 0; context != NULL && evo_op_name((evo_op)op) != NULL; op++) {
        cJSON *names = cJSON_AddArrayToObject(kernels, evo_op_name((evo_op)op));
        const char *kernel;
        for (int i = 0; (kernel = evo_context_kernel(context, (evo_op)op, i)) != NULL; i++) {
            (void)json_append(names, cJSON_CreateString(kernel));
        }
    }
}

static int print_json(void) {
    evo_backend_info backend = EVO_BACKEND_INFO_INIT;
    evo_device_info device = EVO_DEVICE_INFO_INIT;
    cJSON *info = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(info, "version", evo_version());
    (void)cJSON_AddStringToObject(info, "build", evo_build_info());
    cJSON *backends = cJSON_AddArrayToObject(info, "backends");
    for (int i = 0; evo_backend_get(i, &backend) == EVO_OK; i++) {
        add_backend(backends, &backend);
    }
    cJSON *devices = cJSON_AddArrayToObject(info, "devices");
    for (int i = 0; evo_device_get(i, &device) == EVO_OK; i++) {
        evo_context *context = NULL;
        (void)evo_context_create(device.name, NULL, &context);
        add_device(devices, &device, context);
        evo_context_destroy(context);
    }
    return print_object(&self, info) ? STATUS_GOOD : STATUS_FAILED;
}

int command_info(int argc, char **argv) {
    struct arguments arguments = { &self, argc, argv, NULL };
    bool json = false, report = false;
    int key;
    while ((key = next_option(&arguments)) != 0) {
        switch (key) {
        case KEY_JSON:
            json = true;
            break;
        case KEY_REPORT:
            report = true;
            break;
        case KEY_HELP:
            print_help(&self);
            return close_output(&self, STATUS_GOOD);
        default:
            return STATUS_USAGE;
        }
    }
    if (optind < argc) {
        return usage_error(&self, "unexpected argument \"%s\"", argv[optind]);
    }
    if (json && report) {
        return usage_error(&self, "--report is text: leave --json out");
    }
    if (json) {
        return close_output(&self, print_json());
    }
    print_text(report);
    return close_output(&self, STATUS_GOOD);
}
