/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a caller's descriptor to an internal one, with checks. */
#ifndef WEFT_API_ENTRY_H
#define WEFT_API_ENTRY_H

#include "graph/descriptor.h"

/* The internal descriptor; fails for NULL and for invalid descriptors. where: the name of the function. */
weftStatus_t entry_descriptor(struct descriptor **out, weftBackendDescriptor_t given, const char *where);

/* The same for a descriptor that must be finalized and of this kind. */
weftStatus_t entry_finalized(struct descriptor **out, weftBackendDescriptor_t given, const struct schema *schema,
                             const char *where);

#endif
