/* SPDX-License-Identifier: Apache-2.0 */
/* The life of descriptors, as callers see it: create, set, finalize, get, destroy. Each function clears the thread's
   message, checks its handle and hands on to graph/descriptor.c, which knows the rules of rows. */
#include "api/entry.h"
#include "base/trace.h"
#include "engines/engine.h"
#include "graph/ops.h"
#include "plan/schemas.h"

/* Descriptors of plans, engines and their like are known to plan/, all others to graph/. */
static const struct schema *find_schema(weftBackendDescriptorType_t kind) {
    for (int i = 0; plan_schemas[i]; i++)
        if (plan_schemas[i]->kind == kind)
            return plan_schemas[i];
    return ops_find_schema(kind);
}

weftStatus_t weftBackendCreateDescriptor(weftBackendDescriptorType_t kind, weftBackendDescriptor_t *descriptor) {
    status_clear();
    const struct schema *schema = find_schema(kind);
    if (!descriptor)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
             "weftBackendCreateDescriptor: descriptor is NULL. Give the address of a weftBackendDescriptor_t.");
    if (!schema)
        /* A caller's log gets the failure as it gets those of descriptors. */
        return trace_failure(
            status_fail(WEFT_STATUS_NOT_SUPPORTED,
                        "weftBackendCreateDescriptor: this version has no descriptor kind %d. See weftDescribe "
                        "for those it has.",
                        (int)kind));
    struct descriptor *made;
    TRY(descriptor_make(schema, &made));
    *descriptor = (weftBackendDescriptor_t)made;
    return WEFT_STATUS_SUCCESS;
}

/* Gives up the caller's hold: what other descriptors hold lives on with them. NULL is allowed. */
weftStatus_t weftBackendDestroyDescriptor(weftBackendDescriptor_t descriptor) {
    status_clear();
    struct descriptor *ours;
    if (!descriptor)
        return WEFT_STATUS_SUCCESS;
    TRY(entry_descriptor(&ours, descriptor, "weftBackendDestroyDescriptor"));
    descriptor_release(ours);
    return WEFT_STATUS_SUCCESS;
}

/* Copies `count` elements; the caller's array may go at once. */
weftStatus_t weftBackendSetAttribute(weftBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                     weftBackendAttributeType_t type, int64_t count, const void *elements) {
    status_clear();
    struct descriptor *ours;
    TRY(entry_descriptor(&ours, descriptor, "weftBackendSetAttribute"));
    /* The message is the thread's, the log the caller's: both get it. */
    return trace_failure(descriptor_set(ours, name, type, count, elements));
}

weftStatus_t weftBackendFinalize(weftBackendDescriptor_t descriptor) {
    status_clear();
    struct descriptor *ours;
    TRY(entry_descriptor(&ours, descriptor, "weftBackendFinalize"));
    /* A graph tells how many engines there are and must not know them: who sees both floors fills the number in. */
    if (ours->schema == &graph_schema && !ours->finalized)
        ((struct graph *)ours)->engine_count = engine_count;
    return trace_failure(descriptor_finalize(ours));
}

/* Create, all attributes in their order, and finalize in one call; on failure nothing is left and *descriptor is
   untouched. */
weftStatus_t weftBackendBuildDescriptor(weftBackendDescriptorType_t kind, int64_t count,
                                        const weftAttribute_t *attributes, weftBackendDescriptor_t *descriptor) {
    weftBackendDescriptor_t made = NULL;
    status_clear();
    if (!descriptor || count < 0 || (count && !attributes))
        return trace_failure(
            status_fail(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
                        "weftBackendBuildDescriptor: descriptor or attributes is NULL, or count is %lld. "
                        "Give an address to receive the descriptor, and count attributes.",
                        (long long)count));
    /* Each call clears the last error, so what remains is the message of the first that failed. */
    weftStatus_t status = weftBackendCreateDescriptor(kind, &made);
    for (int64_t i = 0; i < count && !status; i++)
        status = weftBackendSetAttribute(made, attributes[i].name, attributes[i].type, attributes[i].count,
                                         attributes[i].elements);
    if (!status)
        status = weftBackendFinalize(made);
    /* Released directly, as a call of the API would clear the message. NULL is allowed. */
    if (status) {
        descriptor_release((struct descriptor *)made);
        return status;
    }
    *descriptor = made;
    return WEFT_STATUS_SUCCESS;
}

/* Of finalized descriptors alone. Elements are copied out; `count` says how many there are. */
weftStatus_t weftBackendGetAttribute(weftBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                     weftBackendAttributeType_t type, int64_t requested, int64_t *count,
                                     void *elements) {
    status_clear();
    struct descriptor *ours;
    TRY(entry_descriptor(&ours, descriptor, "weftBackendGetAttribute"));
    return trace_failure(descriptor_get(ours, name, type, requested, count, elements));
}
