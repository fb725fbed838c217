/* SPDX-License-Identifier: Apache-2.0 */
/* The object that a handle points to: an opened device, and the stream that weftBackendExecute uses. */
#ifndef WEFT_RUNTIME_CONTEXT_H
#define WEFT_RUNTIME_CONTEXT_H

#include "base/shared.h"
#include "runtime/device.h"
#include "runtime/stream_alloc.h"
#include <stdatomic.h>

enum { CONTEXT_MAGIC = 0x57454643 };

struct weftContext {
    struct shared shared; /* referenced by the caller until weftDestroy, and by descriptors that use the handle */
    uint32_t magic;       /* CONTEXT_MAGIC until weftDestroy */
    struct device device;
    _Atomic(weftStream_t) stream;
    struct stream_allocator allocator; /* for weftFreeOnStream; unused on the CPU */
};

/* Adds a reference; NULL is allowed. */
static inline struct weftContext *context_retain(struct weftContext *context) {
    if (context)
        shared_retain(&context->shared);
    return context;
}

/* Refuses anything that is not a live handle. */
weftStatus_t context_check(const struct weftContext *context, const char *where);

#endif
