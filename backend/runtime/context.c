/* SPDX-License-Identifier: Apache-2.0 */
/* The check at the start of every function that receives a handle. */
#include "runtime/context.h"

/* `where` is the name of the exported function. Detects the usual mistakes: NULL, another kind of object, a handle
   after weftDestroy whose memory has not been reused yet. */
weftStatus_t context_check(const struct weftContext *context, const char *where) {
    if (!context)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: the handle is NULL. Create one with weftCreate.", where);
    if (context->magic != CONTEXT_MAGIC)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: the handle is invalid. Use a handle from weftCreate that has not been destroyed.", where);
    return WEFT_STATUS_SUCCESS;
}
