/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses and the thread's last error message. A function that can fail returns weftStatus_t; TRY propagates a
   failure, FAIL sets the message. A message has four parts: where (the user's names), the rule, expected against actual
   value, the fix. Only exported functions clear the message. */
#ifndef WEFT_BASE_STATUS_H
#define WEFT_BASE_STATUS_H

#include "weft/weft_enums.h"
#include <stdbool.h>
#include <stddef.h>

/* Maximum length of a message, in bytes with its terminator; longer ones are truncated. */
enum { STATUS_TEXT_BYTES = 4096 };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        weftStatus_t try_status = (call);                                                                              \
        if (try_status != WEFT_STATUS_SUCCESS)                                                                         \
            return try_status;                                                                                         \
    } while (0)

#define FAIL(status, ...) return status_fail(status, __VA_ARGS__)

/* Sets the thread's last error and returns `status`. */
weftStatus_t status_fail(weftStatus_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Fails with "out of memory" for a request of `bytes`. */
weftStatus_t status_no_memory(size_t bytes);

/* Prepends text to the thread's last error: "graph 'mlp': ..."; returns `status`. */
weftStatus_t status_prefix(weftStatus_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether this thread's failures set no message, which saves the time to format messages that are not read; returns the
   previous setting. */
bool status_quiet(bool quiet);
bool status_is_quiet(void);

void status_clear(void);
const char *status_text(void);
const char *status_name(weftStatus_t status);

#endif
