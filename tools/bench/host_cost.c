/* SPDX-License-Identifier: Apache-2.0 */
/* Times weftExecute on a saved plan of one tiny operation with two tensors: what remains is the cost of the call.
   host_cost.py writes the plan and runs this. Prints nanoseconds per call, the best of several rounds. */
#define _POSIX_C_SOURCE 199309L
#include "weft/weft.h"
#include <stdio.h>
#include <time.h>

enum { ROUNDS = 20, CALLS = 20000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int count, char **arguments) {
    static char saved[1 << 20];
    FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
    size_t size = file ? fread(saved, 1, sizeof saved, file) : 0;
    weftBackendDescriptor_t plan;
    weftStatus_t status = weftBackendCreateDescriptor(WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);
    if (!status)
        status = weftBackendSetAttribute(plan, WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, WEFT_TYPE_CHAR,
                                         (int64_t)size, saved);
    if (!status)
        status = weftBackendFinalize(plan);
    static union {
        float values[16];
        long double aligned;
    } x, y;
    uint64_t slots[] = {(uint64_t)(uintptr_t)x.values, (uint64_t)(uintptr_t)y.values};
    double best = 1e300;
    for (int round = 0; round < ROUNDS && !status; round++) {
        double start = now();
        for (int call = 0; call < CALLS && !status; call++)
            status = weftExecute(plan, 2, slots, NULL, NULL);
        double each = (now() - start) / CALLS;
        best = each < best ? each : best;
    }
    char why[1000];
    weftGetLastErrorString(why, sizeof why);
    if (status)
        return fprintf(stderr, "%s\n", why), 1;
    printf("%.0f\n", best);
    return 0;
}
