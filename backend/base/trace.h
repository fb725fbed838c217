/* SPDX-License-Identifier: Apache-2.0 */
/* The log: one line per event, to stderr or to the user's callback. trace_on is a single load, so a disabled log costs
   nothing. */
#ifndef WEFT_BASE_TRACE_H
#define WEFT_BASE_TRACE_H

#include "weft/weft.h"
#include <stdbool.h>

/* Reads WEFT_LOG on first use: error, warn, info or plan (adds plans), exec (adds every execution). */
bool trace_on(weftSeverity_t severity);
bool trace_exec_on(void);

void trace(weftSeverity_t severity, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Logs the thread's last error if status is a failure; returns status. */
weftStatus_t trace_failure(weftStatus_t status);

void trace_set_callback(uint32_t mask, void *udata, weftCallback_t callback);
void trace_get_callback(uint32_t *mask, void **udata, weftCallback_t *callback);

#endif
