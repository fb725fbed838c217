/* SPDX-License-Identifier: Apache-2.0 */
/* Times weftExecute on a saved plan of one tiny operation with two tensors, on the default device: what remains is the
   cost of the call on the host. host_cost.py writes the plan and runs this. Prints nanoseconds per call, the best of
   several rounds; a round is short enough that a GPU's queue never fills. */
#define _POSIX_C_SOURCE 199309L
#include "weft/weft.h"
#include <stdio.h>
#include <time.h>

enum { ROUNDS = 200, CALLS = 500, BYTES = 64 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static weftStatus_t load_plan(weftBackendDescriptor_t *plan, weftHandle_t handle, const char *path) {
    static char saved[1 << 20];
    FILE *file = fopen(path, "rb");
    size_t size = file ? fread(saved, 1, sizeof saved, file) : 0;
    if (file)
        fclose(file);
    const weftAttribute_t attributes[] = {
        {WEFT_ATTR_EXECUTION_PLAN_HANDLE, WEFT_TYPE_HANDLE, 1, &handle},
        {WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR, (int64_t)size, saved},
    };
    return weftBackendBuildDescriptor(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 2, attributes, plan);
}

int main(int count, char **arguments) {
    weftHandle_t handle = NULL;
    weftBackendDescriptor_t plan = NULL;
    void *x = NULL, *y = NULL;
    weftStatus_t status = weftCreate(&handle);
    if (!status)
        status = load_plan(&plan, handle, count > 1 ? arguments[1] : "");
    if (!status)
        status = weftAllocate(handle, BYTES, &x);
    if (!status)
        status = weftAllocate(handle, BYTES, &y);
    uint64_t slots[] = {(uint64_t)(uintptr_t)x, (uint64_t)(uintptr_t)y};
    double best = 1e300;
    for (int round = 0; round < ROUNDS && !status; round++) {
        double start = now();
        for (int call = 0; call < CALLS && !status; call++)
            status = weftExecute(plan, 2, slots, NULL, NULL);
        double each = (now() - start) / CALLS;
        best = each < best ? each : best;
        if (!status)
            status = weftSynchronize(handle, NULL);
    }
    char why[1000];
    weftGetLastErrorString(why, sizeof why);
    if (status)
        return fprintf(stderr, "%s\n", why), 1;
    printf("%.0f\n", best);
    return 0;
}
