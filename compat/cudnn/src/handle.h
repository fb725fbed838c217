/* SPDX-License-Identifier: Apache-2.0 */
/* A handle: Weft's handle, the plans of the functions that are one graph each, and their scratch memory. */
#ifndef WEFT_CUDNN_HANDLE_H
#define WEFT_CUDNN_HANDLE_H

#include "src/library.h"

#include <pthread.h>

struct cached_plan;

/* Memory for work on one stream. */
struct scratch {
    void *stream, *memory;
    size_t bytes;
};

enum { HANDLE_MAGIC = 0x77656674, SCRATCH_MAX = 8, PLAN_BUCKETS = 256 };

struct cudnnContext {
    uint32_t magic;
    weftHandle_t weft;
    cudaStream_t stream;
    pthread_mutex_t lock;                    /* of the fields below */
    struct cached_plan *plans[PLAN_BUCKETS]; /* a hash table with chains */
    struct scratch scratch[SCRATCH_MAX];
    int scratch_count;
    cudnnHandle_t fallback; /* the handle of the second library for this one, or NULL */
};

static inline bool handle_is_live(cudnnHandle_t handle) { return handle && handle->magic == HANDLE_MAGIC; }

#define REQUIRE_HANDLE(handle)                                                                                         \
    REQUIRE(handle_is_live(handle), "%s: the handle is not live. Pass one that cudnnCreate returned.", __func__)

/* Memory of the handle's device for work on its current stream; owned by the handle. */
cudnnStatus_t handle_scratch(cudnnHandle_t handle, size_t bytes, void **memory);

/* The device on which cudnnCreate creates a handle now. */
int handle_current_device(void);

#endif
