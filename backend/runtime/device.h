/* SPDX-License-Identifier: Apache-2.0 */
/* What Weft knows of a device: enough to choose engines and predict times, on a machine that has it or not. */
#ifndef WEFT_RUNTIME_DEVICE_H
#define WEFT_RUNTIME_DEVICE_H

#include "base/status.h"
#include "weft/weft.h"
#include <stdint.h>

struct device {
    weftDeviceKind_t kind;
    int32_t ordinal; /* among its kind; 0 for the CPU */
    char name[128];
    int threads; /* CPU: threads that work on one plan */
};

/* The device of a kind on this machine; BAD_PARAM_OUT_OF_BOUND when there is none of that ordinal. */
weftStatus_t device_find(struct device *device, weftDeviceKind_t kind, int32_t ordinal);

/* "cpu" or "cuda". */
const char *device_kind_name(weftDeviceKind_t kind);

#endif
