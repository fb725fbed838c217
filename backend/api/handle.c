/* SPDX-License-Identifier: Apache-2.0 */
/* Version, errors, log and handles. A handle consists of a device, a stream and a memory pool; it is reference-counted,
   because plans and graphs retain it. Messages belong to a thread and callbacks to the process, not to a handle. */
#include "base/status.h"
#include "base/trace.h"
#include "runtime/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A handle's pool retains at most one in CACHED_SHARE bytes of the GPU's memory. */
enum { CACHED_SHARE = 16 };

/* Major, minor and patch as decimal digits: 1.2.3 is 10203. */
size_t weftGetVersion(void) { return WEFT_MAJOR * 10000 + WEFT_MINOR * 100 + WEFT_PATCHLEVEL; }

const char *weftGetErrorString(weftStatus_t status) { return status_name(status); }

/* The message of this thread's last failed call, truncated to max_size - 1 characters; it is not cleared. */
void weftGetLastErrorString(char *message, size_t max_size) {
    if (message && max_size)
        snprintf(message, max_size, "%s", status_text());
}

weftStatus_t weftSetCallback(uint32_t mask, void *udata, weftCallback_t fn) {
    status_clear();
    trace_set_callback(mask, udata, fn);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t weftGetCallback(uint32_t *mask, void **udata, weftCallback_t *fn) {
    status_clear();
    trace_get_callback(mask, udata, fn);
    return WEFT_STATUS_SUCCESS;
}

/* Runs when the last reference is released: plans and graphs retain their handle, so it may outlive weftDestroy. */
static void free_context(struct shared *shared) {
    struct weftContext *context = (struct weftContext *)shared;
    struct device_scope scope;
    /* If the device cannot be entered any more, its memory is lost anyway. */
    if (context->allocator.count && !device_enter(&scope, &context->device)) {
        stream_alloc_trim(&context->allocator, scope.driver);
        device_leave(&scope);
    }
    free(context);
}

weftStatus_t weftCreateForDevice(weftHandle_t *handle, weftDeviceKind_t kind, int32_t ordinal) {
    status_clear();
    if (!handle)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
             "weftCreateForDevice: handle is NULL. Give the address of a weftHandle_t.");
    /* Checked before the device lookup, because invalid kinds must not be used as an index. */
    if (kind != WEFT_DEVICE_CPU && kind != WEFT_DEVICE_CUDA)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "weftCreateForDevice: there is no device kind %d. Use WEFT_DEVICE_CPU (0) or WEFT_DEVICE_CUDA (1).",
             (int)kind);
    struct weftContext *context = calloc(1, sizeof *context);
    if (!context)
        return status_no_memory(sizeof *context);
    weftStatus_t status = device_find(&context->device, kind, ordinal);
    if (status) {
        free(context);
        return trace_failure(status);
    }
    shared_init(&context->shared, free_context);
    /* The CPU has no such memory, so its pool retains nothing. */
    stream_alloc_init(&context->allocator, (size_t)context->device.cuda.memory_bytes / CACHED_SHARE);
    context->magic = CONTEXT_MAGIC;
    *handle = context;
    return WEFT_STATUS_SUCCESS;
}

/* Opens the device that WEFT_DEVICE names; if it is unset, the first usable GPU, otherwise the CPU. */
weftStatus_t weftCreate(weftHandle_t *handle) {
    status_clear();
    if (!handle)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "weftCreate: handle is NULL. Give the address of a weftHandle_t.");
    struct device chosen;
    TRY(trace_failure(device_choose_default(&chosen)));
    return weftCreateForDevice(handle, chosen.kind, chosen.ordinal);
}

weftStatus_t weftDestroy(weftHandle_t handle) {
    status_clear();
    if (!handle)
        return WEFT_STATUS_SUCCESS;
    TRY(context_check(handle, "weftDestroy"));
    /* From now on calls with this handle fail, even while plans still retain it. */
    handle->magic = 0;
    shared_release(&handle->shared);
    return WEFT_STATUS_SUCCESS;
}

/* The stream is atomic: a thread may set it while another one starts a plan with this handle, which then uses either
   stream. */
weftStatus_t weftSetStream(weftHandle_t handle, weftStream_t stream) {
    status_clear();
    TRY(context_check(handle, "weftSetStream"));
    atomic_store(&handle->stream, stream);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t weftGetStream(weftHandle_t handle, weftStream_t *stream) {
    status_clear();
    TRY(context_check(handle, "weftGetStream"));
    if (!stream)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "weftGetStream: stream is NULL. Give the address of a weftStream_t.");
    *stream = atomic_load(&handle->stream);
    return WEFT_STATUS_SUCCESS;
}
