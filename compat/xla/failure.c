/* SPDX-License-Identifier: Apache-2.0 */
#include "xla/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[512]; /* the longest one has 300 characters */

weftStatus_t failure_set(weftStatus_t status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

weftStatus_t failure_no_memory(size_t bytes) {
    FAIL(WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
         "weft call: out of memory: the host could not allocate %zu bytes. Free memory.", bytes);
}

void failure_clear(void) { *message = 0; }

void failure_copy_text(char text[FAILURE_TEXT_BYTES]) {
    if (*message)
        memcpy(text, message, sizeof message);
    else
        weftGetLastErrorString(text, FAILURE_TEXT_BYTES);
}
