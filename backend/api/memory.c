/* SPDX-License-Identifier: Apache-2.0 */
/* Allocates memory on a handle's device, for programs without an allocator of their own. Plans never use these
   functions. Memory that is freed on a stream goes to the handle's pool, from which the same stream may reuse it
   without waiting. */
#include "base/trace.h"
#include "runtime/context.h"
#include "runtime/cuda_graph.h"
#include "runtime/launch.h"

#include <stdlib.h>
#include <string.h>

/* In bytes: a cache line, and the widest vector of AVX-512. */
enum { HOST_ALIGNMENT = 64 };

/* Makes the handle's GPU current; for the CPU nothing is needed, and driver stays NULL. */
static weftStatus_t enter(struct device_scope *scope, weftHandle_t handle, const char *where) {
    *scope = (struct device_scope){0};
    TRY(context_check(handle, where));
    return handle->device.kind == WEFT_DEVICE_CUDA ? device_enter(scope, &handle->device) : WEFT_STATUS_SUCCESS;
}

static weftStatus_t allocate_on_host(void **address, size_t bytes) {
    /* aligned_alloc requires a multiple of the alignment; the comparison detects wrap-around. */
    size_t aligned_bytes = (bytes + HOST_ALIGNMENT - 1) / HOST_ALIGNMENT * HOST_ALIGNMENT;
    *address = aligned_bytes >= bytes ? aligned_alloc(HOST_ALIGNMENT, aligned_bytes) : NULL;
    return *address ? WEFT_STATUS_SUCCESS : status_no_memory(bytes);
}

/* `stream`: the stream whose pooled memory may be reused, or NULL. */
static weftStatus_t allocate_on_device(void **address, weftHandle_t handle, const struct driver *driver, size_t bytes,
                                       const weftStream_t *stream) {
    uint64_t result = 0;
    weftStatus_t status;
    do {
        status_clear();
        status = stream ? stream_alloc_get(&result, &handle->allocator, driver, bytes, *stream)
                        : memory_make(&result, driver, bytes);
        /* If the device is out of memory, frees the pool's memory and tries once more. */
    } while (status == WEFT_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED &&
             stream_alloc_trim(&handle->allocator, driver));
    *address = (void *)(uintptr_t)result;
    return status;
}

/* *address is NULL for 0 bytes and on failure. `stream`: see allocate_on_device. */
static weftStatus_t allocate(void **address, weftHandle_t handle, size_t bytes, const weftStream_t *stream,
                             const char *where) {
    struct device_scope scope;
    if (!address)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: address is NULL. Give the address of a pointer.", where);
    TRY(enter(&scope, handle, where));
    *address = NULL;
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    if (bytes && scope.driver)
        status = allocate_on_device(address, handle, scope.driver, bytes, stream);
    else if (bytes)
        status = allocate_on_host(address, bytes);
    device_leave(&scope);
    return trace_failure(status);
}

/* Memory that any stream may use immediately; freed by weftFree. */
weftStatus_t weftAllocate(weftHandle_t handle, size_t bytes, void **address) {
    status_clear();
    return allocate(address, handle, bytes, NULL, "weftAllocate");
}

/* The same for work of one stream, from the pool if it has a suitable block. */
weftStatus_t weftAllocateOnStream(weftHandle_t handle, size_t bytes, weftStream_t stream, void **address) {
    status_clear();
    return allocate(address, handle, bytes, &stream, "weftAllocateOnStream");
}

/* Frees memory to the driver immediately, which waits for the device. NULL is allowed. */
weftStatus_t weftFree(weftHandle_t handle, void *address) {
    status_clear();
    struct device_scope scope;
    TRY(enter(&scope, handle, "weftFree"));
    if (scope.driver)
        memory_free(scope.driver, (uint64_t)(uintptr_t)address);
    else
        free(address);
    device_leave(&scope);
    return WEFT_STATUS_SUCCESS;
}

/* `bytes` must be those of the allocation: the pool manages memory by size, for work that follows the present queue of
   `stream`. */
weftStatus_t weftFreeOnStream(weftHandle_t handle, size_t bytes, weftStream_t stream, void *address) {
    status_clear();
    struct device_scope scope;
    TRY(enter(&scope, handle, "weftFreeOnStream"));
    if (!scope.driver)
        free(address);
    else if (address)
        stream_alloc_free(&handle->allocator, scope.driver, (uint64_t)(uintptr_t)address, bytes, stream);
    device_leave(&scope);
    return WEFT_STATUS_SUCCESS;
}

/* Copies between any two of host and device memory, in the order of `stream`; returns when the copy is complete. */
weftStatus_t weftCopy(weftHandle_t handle, void *destination, const void *source, size_t bytes, weftStream_t stream) {
    status_clear();
    struct device_scope scope;
    if (bytes && (!destination || !source))
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "weftCopy: the %s is NULL. Give the address of %zu bytes.",
             destination ? "source" : "destination", bytes);
    TRY(enter(&scope, handle, "weftCopy"));
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    if (bytes && scope.driver) {
        /* The driver derives the direction of a copy from the addresses (unified addressing). */
        status =
            launch_copy(scope.driver, (uint64_t)(uintptr_t)destination, (uint64_t)(uintptr_t)source, bytes, stream);
        if (!status)
            status = stream_wait(scope.driver, stream);
    } else if (bytes) {
        /* Ranges of the host may overlap. */
        memmove(destination, source, bytes);
    }
    device_leave(&scope);
    return trace_failure(status);
}

/* Waits for all work in the stream, including that of other libraries. Does nothing for the CPU. */
weftStatus_t weftSynchronize(weftHandle_t handle, weftStream_t stream) {
    status_clear();
    struct device_scope scope;
    TRY(enter(&scope, handle, "weftSynchronize"));
    weftStatus_t status = scope.driver ? stream_wait(scope.driver, stream) : WEFT_STATUS_SUCCESS;
    device_leave(&scope);
    return trace_failure(status);
}

weftStatus_t weftIsCapturing(weftHandle_t handle, weftStream_t stream, int32_t *isCapturing) {
    status_clear();
    struct device_scope scope;
    bool is_capturing = false;
    if (!isCapturing)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
             "weftIsCapturing: isCapturing is NULL. Give the address of an integer.");
    TRY(enter(&scope, handle, "weftIsCapturing"));
    weftStatus_t status = scope.driver ? stream_find_capture(&is_capturing, scope.driver, stream) : WEFT_STATUS_SUCCESS;
    device_leave(&scope);
    *isCapturing = is_capturing;
    return trace_failure(status);
}
