/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/general_plan.h"
#include "graph/descriptor.h"
#include "graph/patterns/assumptions.h"
#include "plan/save.h"

/* True if the graph was changed according to the number of a value, or if a step relies on it. */
static bool is_relied_on(const struct draft *draft, int v) {
    bool is_assumed = draft->graph->values[v].tensor->is_relied_on;
    for (int s = 0; s < draft->cover.count; s++)
        for (int i = 0; i < draft->steps[s].assumption_count; i++)
            is_assumed = is_assumed || draft->steps[s].assumptions[i] == v;
    return is_assumed;
}

weftStatus_t general_plan_list(struct plan *plan) {
    const struct graph *graph = plan->draft.graph;
    plan->assumption_count = 0;
    TRY(arena_alloc(&plan->base.arena, &plan->assumptions, (size_t)graph->value_count * sizeof *plan->assumptions));
    for (int v = 0; v < graph->value_count; v++)
        if (graph->values[v].tensor->is_assumed && is_relied_on(&plan->draft, v))
            plan->assumptions[plan->assumption_count++] = v;
    return WEFT_STATUS_SUCCESS;
}

bool general_plan_is_needed(const struct plan *plan, void *const *values) {
    for (int i = 0; i < plan->assumption_count; i++) {
        int v = plan->assumptions[i];
        if (!assumption_holds(plan->draft.graph->values[v].tensor, values[v]))
            return true;
    }
    return false;
}

/* The lock is held while planning, so that two threads compile once. */
weftStatus_t general_plan_get(struct plan **general, struct plan *plan) {
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    pthread_mutex_lock(&plan->override_lock);
    if (!plan->general)
        status = plan_change(&plan->general, plan, &(struct changes){.assumes_nothing = true});
    if (!status)
        *general = (struct plan *)descriptor_retain(&plan->general->base);
    pthread_mutex_unlock(&plan->override_lock);
    return status_prefix(status, "by-value scalars with unusual numbers: ");
}

weftStatus_t general_plan_allocate(void **workspace, const struct plan *general, weftStream_t stream) {
    struct device_scope scope;
    uint64_t address = 0;
    *workspace = NULL;
    if (!general->workspace_bytes)
        return WEFT_STATUS_SUCCESS;
    if (!general->handle)
        FAIL(WEFT_STATUS_NOT_SUPPORTED,
             "%s: by-value scalars have unusual numbers, and the plan that computes with them needs %lld bytes of "
             "workspace, but it has no handle to allocate them. Set the plan's handle.",
             descriptor_label(&general->base), (long long)general->workspace_bytes);
    TRY(device_enter(&scope, &general->draft.device));
    weftStatus_t status =
        stream_alloc_get(&address, &general->handle->allocator, scope.driver, (size_t)general->workspace_bytes, stream);
    device_leave(&scope);
    *workspace = (void *)(uintptr_t)address;
    return status;
}

void general_plan_deallocate(void *workspace, const struct plan *general, weftStream_t stream) {
    struct device_scope scope;
    if (!workspace || device_enter(&scope, &general->draft.device))
        return;
    stream_alloc_free(&general->handle->allocator, scope.driver, (uint64_t)(uintptr_t)workspace,
                      (size_t)general->workspace_bytes, stream);
    device_leave(&scope);
}

void general_plan_free(struct plan *plan) {
    descriptor_release(plan->general ? &plan->general->base : NULL);
    plan->general = NULL;
}
