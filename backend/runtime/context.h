/* SPDX-License-Identifier: Apache-2.0 */
/* What a handle points at: a device opened for use, and the stream that weftBackendExecute enqueues on. */
#ifndef WEFT_RUNTIME_CONTEXT_H
#define WEFT_RUNTIME_CONTEXT_H

#include "runtime/device.h"
#include <stdatomic.h>

enum { CONTEXT_MAGIC = 0x57454643 };

struct weftContext {
    uint32_t magic;
    struct device device;
    _Atomic(weftStream_t) stream;
};

/* Refuses what is no live handle. */
weftStatus_t context_check(const struct weftContext *context, const char *where);

#endif
