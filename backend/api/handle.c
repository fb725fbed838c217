/* SPDX-License-Identifier: Apache-2.0 */
/* Version, errors, log and handles. A handle is a device, a stream and a pool of memory; its holders are counted, as
   plans and graphs hold theirs. Messages and callbacks belong to the thread or the process, not to a handle. */
#include "base/status.h"
#include "base/trace.h"
#include "runtime/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOL_SHARE = 16 }; /* of a GPU's memory a handle keeps one in so many bytes, at most */

/* Major, minor and patch as decimal digits: 1.2.3 is 10203. */
size_t weftGetVersion(void) { return WEFT_MAJOR * 10000 + WEFT_MINOR * 100 + WEFT_PATCHLEVEL; }

const char *weftGetErrorString(weftStatus_t status) { return status_name(status); }

/* The message of this thread's last failed call, cut to max_size - 1 characters; it clears nothing. */
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

/* Runs when the last holder is gone: plans and graphs hold their handle, so it may outlive weftDestroy. */
static void free_context(struct shared *shared) {
    struct weftContext *context = (struct weftContext *)shared;
    struct device_scope scope;
    /* A device that cannot be entered any more has lost its memory anyway. */
    if (context->pool.count && !device_enter(&scope, &context->device)) {
        pool_empty(&context->pool, scope.driver);
        device_leave(&scope);
    }
    free(context);
}

weftStatus_t weftCreateForDevice(weftHandle_t *handle, weftDeviceKind_t kind, int32_t ordinal) {
    status_clear();
    if (!handle)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
             "weftCreateForDevice: handle is NULL. Give the address of a weftHandle_t.");
    /* Before the device is looked for: no device kind is searched by a number that is none. */
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
    /* Of the CPU, whose device has no such memory, the pool keeps nothing. */
    pool_init(&context->pool, (size_t)context->device.cuda.memory_bytes / POOL_SHARE);
    context->magic = CONTEXT_MAGIC;
    *handle = context;
    return WEFT_STATUS_SUCCESS;
}

/* On the device that WEFT_DEVICE names; unset, on the first GPU that can be used, else on the CPU. */
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
    /* From now on every call with this handle is refused, also while plans still hold it. */
    handle->magic = 0;
    shared_release(&handle->shared);
    return WEFT_STATUS_SUCCESS;
}

/* Atomic: a thread may set the stream while another starts a plan by this handle, which then takes one or the other. */
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
