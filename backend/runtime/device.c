/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the devices of this machine. */
#include "runtime/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *device_kind_name(weftDeviceKind_t kind) { return kind == WEFT_DEVICE_CPU ? "cpu" : "cuda"; }

/* The processor's own name, as Linux tells it; "CPU" where it does not. */
static void read_cpu_name(char *name, size_t bytes) {
    snprintf(name, bytes, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, bytes, "%s", colon + 2);
        break;
    }
    if (file)
        fclose(file);
}

/* Online processors, capped by WEFT_THREADS. */
static int count_threads(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    const char *cap = getenv("WEFT_THREADS");
    long wanted = cap ? strtol(cap, NULL, 10) : 0;
    if (wanted > 0 && wanted < online)
        online = wanted;
    return online > 0 ? (int)online : 1;
}

weftStatus_t device_find(struct device *device, weftDeviceKind_t kind, int32_t ordinal) {
    memset(device, 0, sizeof *device);
    if (kind != WEFT_DEVICE_CPU || ordinal != 0)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "no device %s:%d on this machine: Weft sees 1 cpu and 0 cuda devices. Ask for cpu:0.",
             device_kind_name(kind), (int)ordinal);
    device->kind = kind;
    device->ordinal = ordinal;
    device->threads = count_threads();
    read_cpu_name(device->name, sizeof device->name);
    return WEFT_STATUS_SUCCESS;
}
