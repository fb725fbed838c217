/* SPDX-License-Identifier: Apache-2.0 */
/* Checks at the beginning of every exported function: validates the caller's descriptors before it reads from them, and
   logs errors. */
#include "api/entry.h"
#include "base/trace.h"

static weftStatus_t check_descriptor(struct descriptor **out, weftBackendDescriptor_t given, const char *where) {
    struct descriptor *descriptor = (struct descriptor *)given;
    if (!descriptor)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
             "%s: the descriptor is NULL. Create one with weftBackendCreateDescriptor.", where);
    /* A destroyed descriptor has no magic number, as long as its memory is not reused: this helps to find bugs, but is
       no protection. */
    if (descriptor->magic != DESCRIPTOR_MAGIC)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: this is not a valid descriptor. Use one that weftBackendCreateDescriptor created and that is not "
             "destroyed.",
             where);
    *out = descriptor;
    return WEFT_STATUS_SUCCESS;
}

/* Checks the kind, and that the descriptor is finalized: then it is immutable and may be used by many threads. */
static weftStatus_t check_finalized(struct descriptor **out, weftBackendDescriptor_t given, const struct schema *schema,
                                    const char *where) {
    TRY(check_descriptor(out, given, where));
    if ((*out)->schema != schema)
        FAIL(WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
             "%s: expected a descriptor of kind %s, got %s. Pass one of that kind.", where, schema->name,
             descriptor_label(*out));
    if (!(*out)->finalized)
        FAIL(WEFT_STATUS_BAD_PARAM_NOT_FINALIZED, "%s: %s is not finalized. Call weftBackendFinalize on it first.",
             where, descriptor_label(*out));
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t entry_descriptor(struct descriptor **out, weftBackendDescriptor_t given, const char *where) {
    return trace_failure(check_descriptor(out, given, where));
}

weftStatus_t entry_finalized(struct descriptor **out, weftBackendDescriptor_t given, const struct schema *schema,
                             const char *where) {
    return trace_failure(check_finalized(out, given, schema, where));
}
