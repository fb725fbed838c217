/* SPDX-License-Identifier: Apache-2.0 */
/* The errors of a call: a status of Weft, and for errors that the integration itself finds a message in the style of
   Weft's. For other errors, Weft has the thread's message. */
#ifndef WEFT_XLA_FAILURE_H
#define WEFT_XLA_FAILURE_H

#include "weft/weft.h"

#include <stddef.h>

/* Size of a message in bytes; a longer one is truncated. As large as Weft's own. */
enum { FAILURE_TEXT_BYTES = 4096 };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        weftStatus_t try_status = (call);                                                                              \
        if (try_status != WEFT_STATUS_SUCCESS)                                                                         \
            return try_status;                                                                                         \
    } while (0)

#define FAIL(status, ...) return failure_set(status, __VA_ARGS__)

/* Sets the thread's message and returns `status`. */
weftStatus_t failure_set(weftStatus_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Fails with "out of memory" for a request of `bytes`. */
weftStatus_t failure_no_memory(size_t bytes);

/* Must be called at the start of a call. */
void failure_clear(void);

/* Copies the message of failure_set, or Weft's if there is none. */
void failure_copy_text(char text[FAILURE_TEXT_BYTES]);

#endif
