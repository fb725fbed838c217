/* SPDX-License-Identifier: Apache-2.0 */
/* The answer of functions that Weft lacks. */
#ifndef WEFT_CUDNN_MISSING_H
#define WEFT_CUDNN_MISSING_H

#include "cudnn.h"

/* Records the call for the log at exit. Returns NOT_SUPPORTED with a message that names the function. */
cudnnStatus_t report_missing(const char *name);

#endif
