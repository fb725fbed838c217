/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all functions of the library: statuses, messages, and the count of calls. */
#ifndef WEFT_CUDNN_LIBRARY_H
#define WEFT_CUDNN_LIBRARY_H

#include "cudnn.h"
#include "weft/weft.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Converts a status of Weft, and stores Weft's message as the thread's under cuDNN's names. */
cudnnStatus_t from_weft(weftStatus_t status);

/* Sets the thread's message and returns the status. */
cudnnStatus_t fail_with(cudnnStatus_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How often a function was called; the object is static in that function. */
struct call_counter {
    const char *name;
    atomic_long calls, failures;
    atomic_bool is_listed;
    struct call_counter *next;
};

/* Counts the call, and logs it if it failed. Returns the status. */
cudnnStatus_t call_end(struct call_counter *counter, cudnnStatus_t status);

/* Ends an exported function that does work: the expression is its status. */
#define RETURN_COUNTED(expression)                                                                                     \
    do {                                                                                                               \
        static struct call_counter counter = {.name = __func__};                                                       \
        return call_end(&counter, expression);                                                                         \
    } while (0)

/* Returns BAD_PARAM with a message unless the condition holds. */
#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return fail_with(CUDNN_STATUS_BAD_PARAM, __VA_ARGS__);                                                     \
    } while (0)

/* The number of calls of a function so far, for tests: it shows that a program uses this library. */
long weftCudnnCallCount(const char *name);

/* The version that the library reports: CUDNN_VERSION, unless WEFT_CUDNN_VERSION selects another. */
int reported_version(void);

#endif
