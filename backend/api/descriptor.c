/* SPDX-License-Identifier: Apache-2.0 */
/* Exported functions for descriptors: create, set, finalize, get, destroy. Each one clears the thread's message, checks
   its handle and calls graph/descriptor.c, which implements the rules of rows. */
#include "api/entry.h"
#include "base/trace.h"
#include "engines/engine.h"
#include "graph/ops.h"
#include "plan/schemas.h"

/* plan/ defines the kinds of plans, engines and the like, graph/ all others. */
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
        /* Log callbacks also get this failure, like those of existing descriptors. */
        return trace_failure(
            status_fail(WEFT_STATUS_NOT_SUPPORTED,
                        "weftBackendCreateDescriptor: this version has no descriptor kind %d. See weftDescribe "
                        "for those it has.",
                        (int)kind));
    struct descriptor *result;
    TRY(descriptor_make(schema, &result));
    *descriptor = (weftBackendDescriptor_t)result;
    return WEFT_STATUS_SUCCESS;
}

/* Releases the caller's reference: descriptors that others reference stay alive. NULL is allowed. */
weftStatus_t weftBackendDestroyDescriptor(weftBackendDescriptor_t descriptor) {
    status_clear();
    struct descriptor *ours;
    if (!descriptor)
        return WEFT_STATUS_SUCCESS;
    TRY(entry_descriptor(&ours, descriptor, "weftBackendDestroyDescriptor"));
    descriptor_release(ours);
    return WEFT_STATUS_SUCCESS;
}

/* Copies `count` elements; the caller may free its array afterwards. */
weftStatus_t weftBackendSetAttribute(weftBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                     weftBackendAttributeType_t type, int64_t count, const void *elements) {
    status_clear();
    struct descriptor *ours;
    TRY(entry_descriptor(&ours, descriptor, "weftBackendSetAttribute"));
    /* The failure is stored as the thread's message and logged. */
    return trace_failure(descriptor_set(ours, name, type, count, elements));
}

weftStatus_t weftBackendFinalize(weftBackendDescriptor_t descriptor) {
    status_clear();
    struct descriptor *ours;
    TRY(entry_descriptor(&ours, descriptor, "weftBackendFinalize"));
    /* A graph has an attribute with the number of engines, but its layer does not know the engines: it is set here. */
    if (ours->schema == &graph_schema && !ours->finalized)
        ((struct graph *)ours)->engine_count = engine_count;
    return trace_failure(descriptor_finalize(ours));
}

/* Creates, sets all attributes in order, and finalizes in one call; on failure everything is freed and *descriptor is
   unchanged. */
weftStatus_t weftBackendBuildDescriptor(weftBackendDescriptorType_t kind, int64_t count,
                                        const weftAttribute_t *attributes, weftBackendDescriptor_t *descriptor) {
    weftBackendDescriptor_t result = NULL;
    status_clear();
    if (!descriptor || count < 0 || (count && !attributes))
        return trace_failure(
            status_fail(WEFT_STATUS_BAD_PARAM_NULL_POINTER,
                        "weftBackendBuildDescriptor: descriptor or attributes is NULL, or count is %lld. "
                        "Give an address to receive the descriptor, and count attributes.",
                        (long long)count));
    /* Each call clears the last error, so the message is that of the first call that failed. */
    weftStatus_t status = weftBackendCreateDescriptor(kind, &result);
    for (int64_t i = 0; i < count && !status; i++)
        status = weftBackendSetAttribute(result, attributes[i].name, attributes[i].type, attributes[i].count,
                                         attributes[i].elements);
    if (!status)
        status = weftBackendFinalize(result);
    /* Released directly, because a call of the API would clear the message. NULL is allowed. */
    if (status) {
        descriptor_release((struct descriptor *)result);
        return status;
    }
    *descriptor = result;
    return WEFT_STATUS_SUCCESS;
}

/* Works only on finalized descriptors. Elements are copied; `count` receives the number that exist. */
weftStatus_t weftBackendGetAttribute(weftBackendDescriptor_t descriptor, weftBackendAttributeName_t name,
                                     weftBackendAttributeType_t type, int64_t requested, int64_t *count,
                                     void *elements) {
    status_clear();
    struct descriptor *ours;
    TRY(entry_descriptor(&ours, descriptor, "weftBackendGetAttribute"));
    return trace_failure(descriptor_get(ours, name, type, requested, count, elements));
}
