/* SPDX-License-Identifier: Apache-2.0 */
/* How long a plan takes where it runs: what choosing between plans by trial needs. It measures what callers will see,
   the whole call and not single kernels, and warms nothing up: the first run counts as the others do. */
#define _POSIX_C_SOURCE 199309L
#include "api/entry.h"
#include "base/trace.h"
#include "plan/plan.h"
#include "runtime/launch.h"

#include <time.h>

/* Seconds from an arbitrary beginning, which no change of the clock moves. */
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* What is run again and again: the arguments of weftExecute. */
struct call {
    weftBackendDescriptor_t plan;
    int64_t count;
    const uint64_t *pointers;
    void *workspace;
    weftStream_t stream;
};

/* The whole path of a user's call, checks included: what is measured is what will be seen. */
static weftStatus_t run(const struct call *call, int64_t repeats) {
    for (int64_t i = 0; i < repeats; i++)
        TRY(weftExecute(call->plan, call->count, call->pointers, call->workspace, call->stream));
    return WEFT_STATUS_SUCCESS;
}

/* The CPU's plans are done when their call returns. */
static weftStatus_t measure_on_host(double *seconds, const struct call *call, int64_t repeats) {
    double start = now();
    TRY(run(call, repeats));
    *seconds = now() - start;
    return WEFT_STATUS_SUCCESS;
}

/* Between two events of the stream; the device must be entered. */
static weftStatus_t measure_on_stream(double *seconds, const struct driver *driver, const struct call *call,
                                      int64_t repeats) {
    /* Events are put into the stream, so that neither launching nor waiting on the host counts, as long as the device
       has work enough queued. */
    struct stopwatch watch;
    TRY(stopwatch_make(&watch, driver));
    weftStatus_t status = stopwatch_start(&watch, call->stream);
    if (!status)
        status = run(call, repeats);
    if (!status)
        status = stopwatch_stop(&watch, call->stream);
    if (!status)
        status = stopwatch_read(seconds, &watch);
    stopwatch_free(&watch);
    return status;
}

/* *seconds is the mean of `repeats` runs. It waits for the stream. */
weftStatus_t weftMeasure(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                         weftStream_t stream, int64_t repeats, double *seconds) {
    status_clear();
    struct descriptor *descriptor;
    TRY(entry_finalized(&descriptor, plan, &plan_schema, "weftMeasure"));
    if (!seconds)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "weftMeasure: seconds is NULL. Give the address of a double.");
    if (repeats < 1)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "weftMeasure: repeats is %lld; it must be 1 or more. Give how often to run the plan.", (long long)repeats);
    const struct device *device = &((struct plan *)descriptor)->draft.device;
    const struct call call = {plan, count, pointers, workspace, stream};
    /* Events need the device to be current on this thread. */
    if (device->kind == WEFT_DEVICE_CPU) {
        TRY(measure_on_host(seconds, &call, repeats));
    } else {
        struct device_scope scope;
        TRY(trace_failure(device_enter(&scope, device)));
        weftStatus_t status = measure_on_stream(seconds, scope.driver, &call, repeats);
        device_leave(&scope);
        TRY(trace_failure(status));
    }
    *seconds /= (double)repeats;
    return WEFT_STATUS_SUCCESS;
}
