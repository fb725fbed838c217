/* SPDX-License-Identifier: Apache-2.0 */
/* From a caller's descriptor to ours, checked. */
#ifndef WEFT_API_ENTRY_H
#define WEFT_API_ENTRY_H

#include "graph/descriptor.h"

/* The descriptor behind a caller's; refuses NULL and what is no live descriptor. where: the function's name. */
weftStatus_t entry_descriptor(struct descriptor **out, weftBackendDescriptor_t given, const char *where);

/* The same, and it must be finalized and of this kind. */
weftStatus_t entry_finalized(struct descriptor **out, weftBackendDescriptor_t given, const struct schema *schema,
                             const char *where);

#endif
