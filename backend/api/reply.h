/* SPDX-License-Identifier: Apache-2.0 */
/* Returns text to the caller: into an array with the caller's capacity; the total size is returned on request. */
#ifndef WEFT_API_REPLY_H
#define WEFT_API_REPLY_H

#include "base/status.h"
#include "base/text.h"

#include <string.h>

/* Copies the text, truncated to `capacity` bytes including the terminating zero, and frees it. NULL with capacity 0
   queries the size; `size` receives that of the whole text, terminator included, and may be NULL. */
static inline weftStatus_t reply_text(const char *call, struct text *text, char *target, size_t capacity,
                                      size_t *size) {
    size_t bytes = text->length + 1;
    bool failed = text->failed;
    if (!failed && size)
        *size = bytes;
    if (!failed && target && capacity > 0) {
        size_t length = bytes <= capacity ? bytes - 1 : capacity - 1;
        memcpy(target, text_string(text), length);
        target[length] = '\0';
    }
    text_free(text);
    if (failed)
        return status_no_memory(bytes);
    if (!target && capacity > 0)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: text is NULL, capacity is %zu. Give an array, or capacity 0.",
             call, capacity);
    return WEFT_STATUS_SUCCESS;
}

#endif
