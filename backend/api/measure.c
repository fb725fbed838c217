/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the time of a plan on its device, to choose between plans by experiment. The measurement covers the whole
   call that users make, without warm-up: the first run counts like the others. Also measures the time of each step, for
   profiling. */
#define _POSIX_C_SOURCE 199309L
#include "api/entry.h"
#include "base/trace.h"
#include "plan/plan.h"
#include "runtime/launch.h"

#include <time.h>

/* Seconds since an arbitrary start; not affected by changes of the system clock. */
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The repeated call: arguments of weftExecute. */
struct call {
    weftBackendDescriptor_t plan;
    struct plan *ours; /* the same, validated */
    int64_t count;
    const uint64_t *pointers;
    void *workspace;
    weftStream_t stream;
};

/* The complete path of a user's call, including checks, so that the measurement matches it. */
static weftStatus_t run(const struct call *call, int64_t repeats) {
    for (int64_t i = 0; i < repeats; i++)
        TRY(weftExecute(call->plan, call->count, call->pointers, call->workspace, call->stream));
    return WEFT_STATUS_SUCCESS;
}

/* Plans of the CPU are complete when their call returns. */
static weftStatus_t measure_on_host(double *seconds, const struct call *call, int64_t repeats) {
    double start = now();
    TRY(run(call, repeats));
    *seconds = now() - start;
    return WEFT_STATUS_SUCCESS;
}

/* Measures between two events of the stream; the device must be current. */
static weftStatus_t measure_on_stream(double *seconds, const struct driver *driver, const struct call *call,
                                      int64_t repeats) {
    /* Events are enqueued in the stream, so that launch overhead and waiting on the host do not count, as long as
       enough work is queued. */
    struct stopwatch watch;
    TRY(stopwatch_make(&watch, driver, 2));
    weftStatus_t status = stopwatch_mark(&watch, call->stream);
    if (!status)
        status = run(call, repeats);
    if (!status)
        status = stopwatch_mark(&watch, call->stream);
    if (!status)
        status = stopwatch_wait(&watch);
    if (!status)
        status = stopwatch_read(seconds, &watch, 0, 1);
    stopwatch_free(&watch);
    return status;
}

static weftStatus_t check(const char *where, int64_t repeats, const double *seconds) {
    if (!seconds)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: seconds is NULL. Give the address of a double.", where);
    if (repeats < 1)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: repeats is %lld; it must be 1 or more. Pass the number of executions.", where, (long long)repeats);
    return WEFT_STATUS_SUCCESS;
}

/* *seconds is the mean of `repeats` runs. Waits for the stream. */
weftStatus_t weftMeasure(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                         weftStream_t stream, int64_t repeats, double *seconds) {
    status_clear();
    struct descriptor *descriptor;
    TRY(entry_finalized(&descriptor, plan, &plan_schema, "weftMeasure"));
    TRY(check("weftMeasure", repeats, seconds));
    struct plan *ours = (struct plan *)descriptor;
    const struct device *device = &ours->draft.device;
    const struct call call = {plan, ours, count, pointers, workspace, stream};
    /* Events require the device to be current on this thread. */
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

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

enum { MARKS_MAX = 65536 }; /* number of events; a driver uses a few hundred bytes for each */

/* Sums over all runs, by step. */
struct clocked {
    double last, *seconds;
};

static weftStatus_t clock_step(void *context, int step) {
    struct clocked *clocked = context;
    double time = now();
    clocked->seconds[step] += time - clocked->last;
    clocked->last = time;
    return WEFT_STATUS_SUCCESS;
}

struct marked {
    struct stopwatch *watch;
    weftStream_t stream;
};

static weftStatus_t mark_step(void *context, int step) {
    (void)step; /* marks are recorded in the order of steps */
    struct marked *marked = context;
    return stopwatch_mark(marked->watch, marked->stream);
}

static weftStatus_t run_watched(const struct call *call, const struct step_watch *watch) {
    return plan_run_watched(call->ours, call->pointers, call->workspace, call->stream, watch);
}

static weftStatus_t clock_steps(double *seconds, const struct call *call, int64_t repeats) {
    struct clocked clocked = {now(), seconds};
    for (int64_t i = 0; i < repeats; i++)
        TRY(run_watched(call, &(struct step_watch){clock_step, &clocked}));
    return WEFT_STATUS_SUCCESS;
}

/* Alternates runs with a mark after each step and runs with a single mark at the end, so that both see the same clock
   frequency. */
static weftStatus_t mark_runs(struct stopwatch *watch, const struct call *call, int64_t repeats) {
    struct marked marked = {watch, call->stream};
    TRY(stopwatch_mark(watch, call->stream));
    for (int64_t i = 0; i < repeats; i++) {
        TRY(run_watched(call, &(struct step_watch){mark_step, &marked}));
        TRY(run(call, 1));
        TRY(stopwatch_mark(watch, call->stream));
    }
    return stopwatch_wait(watch);
}

/* With marks, a step begins when the previous one has ended, a few microseconds later than without. The total overhead
   is subtracted from the steps in equal shares, at most half of each step. */
static void take_marks_off(double *seconds, int64_t steps, double unmarked_seconds) {
    double sum = 0;
    for (int64_t s = 0; s < steps; s++)
        sum += seconds[s];
    double share = (sum - unmarked_seconds) / (double)steps;
    for (int64_t s = 0; s < steps; s++)
        seconds[s] -= share < seconds[s] / 2 ? share : seconds[s] / 2;
}

static weftStatus_t mark_steps(double *seconds, const struct driver *driver, const struct call *call, int64_t repeats,
                               int64_t steps) {
    struct stopwatch watch;
    double unmarked_seconds = 0;
    TRY(stopwatch_make(&watch, driver, repeats * (steps + 1) + 1));
    weftStatus_t status = mark_runs(&watch, call, repeats);
    for (int64_t i = 0; i < repeats * (steps + 1) && !status; i++) {
        double each = 0;
        status = stopwatch_read(&each, &watch, i, i + 1);
        *(i % (steps + 1) < steps ? &seconds[i % (steps + 1)] : &unmarked_seconds) += each;
    }
    stopwatch_free(&watch);
    take_marks_off(seconds, steps, unmarked_seconds);
    return status;
}

static weftStatus_t check_steps(const struct plan *plan, int64_t repeats, int64_t steps) {
    if (steps != plan->draft.cover.count)
        FAIL(
            WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
            "weftMeasureSteps: capacity is %lld step%s, but the plan has %d. Pass one number per step, in the order of "
            "attribute report.",
            (long long)steps, plural(steps), plan->draft.cover.count);
    if (repeats > (MARKS_MAX - 1) / (steps + 1))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "weftMeasureSteps: %lld run%s of %lld step%s need more than %d marks. Use fewer repeats.",
             (long long)repeats, plural(repeats), (long long)steps, plural(steps), MARKS_MAX);
    return WEFT_STATUS_SUCCESS;
}

/* The warm-up run also checks the arguments, and keeps a GPU busy while the first marks are enqueued. */
static weftStatus_t measure_steps(double *seconds, const struct call *call, int64_t repeats, int64_t steps) {
    const struct device *device = &call->ours->draft.device;
    if (device->kind == WEFT_DEVICE_CPU) {
        TRY(run(call, 1));
        return clock_steps(seconds, call, repeats);
    }
    struct device_scope scope;
    TRY(device_enter(&scope, device));
    weftStatus_t status = run(call, 1);
    if (!status)
        status = mark_steps(seconds, scope.driver, call, repeats, steps);
    device_leave(&scope);
    return status;
}

weftStatus_t weftMeasureSteps(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                              weftStream_t stream, int64_t repeats, int64_t stepCount, double *seconds) {
    status_clear();
    struct descriptor *descriptor;
    TRY(entry_finalized(&descriptor, plan, &plan_schema, "weftMeasureSteps"));
    struct plan *ours = (struct plan *)descriptor;
    const struct call call = {plan, ours, count, pointers, workspace, stream};
    TRY(check("weftMeasureSteps", repeats, seconds));
    TRY(check_steps(ours, repeats, stepCount));
    for (int64_t s = 0; s < stepCount; s++)
        seconds[s] = 0;
    TRY(trace_failure(measure_steps(seconds, &call, repeats, stepCount)));
    for (int64_t s = 0; s < stepCount; s++)
        seconds[s] /= (double)repeats;
    return WEFT_STATUS_SUCCESS;
}
