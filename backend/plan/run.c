/* SPDX-License-Identifier: Apache-2.0 */
/* The hot path: check the pointers, put every value's address in a table on the stack, run the steps. Allocates nothing,
   takes no lock, formats nothing unless it fails. */
#include "base/trace.h"
#include "graph/descriptor.h"
#include "plan/plan.h"

#include <stdint.h>

static weftStatus_t fail_slot(const struct plan *plan, const struct slot *slot, const void *pointer) {
    const char *label = descriptor_label(&plan->draft.graph->values[slot->value].tensor->base);
    if (!pointer)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: its pointer is NULL. Give the address of %lld bytes.", label,
             (long long)slot->bytes);
    FAIL(WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER,
         "%s: pointer %p is no multiple of its alignment, %lld bytes. Align the memory, or set a smaller alignment on "
         "the tensor.",
         label, pointer, (long long)slot->alignment);
}

static weftStatus_t fail_conflict(const struct plan *plan, const struct conflict *conflict) {
    const struct value *values = plan->draft.graph->values;
    FAIL(WEFT_STATUS_BAD_PARAM, "output %s and %s overlap in memory. Give the output memory of its own%s.",
         descriptor_label(&values[plan->slots[conflict->a].value].tensor->base),
         descriptor_label(&values[plan->slots[conflict->b].value].tensor->base),
         conflict->allowed == 0 ? ", or exactly the same memory" : "");
}

static weftStatus_t check_pointers(const struct plan *plan, void *const *pointers, const void *workspace,
                                   int64_t workspace_bytes) {
    for (int i = 0; i < plan->slot_count; i++) {
        const struct slot *slot = &plan->slots[i];
        if (slot->bytes && (!pointers[i] || (uintptr_t)pointers[i] & (uintptr_t)(slot->alignment - 1)))
            if (!pointers[i] || !plan->draft.graph->values[slot->value].tensor->is_by_value)
                return fail_slot(plan, slot, pointers[i]);
    }
    for (int i = 0; i < plan->conflict_count; i++) {
        const struct conflict *conflict = &plan->conflicts[i];
        uintptr_t a = (uintptr_t)pointers[conflict->a], b = (uintptr_t)pointers[conflict->b];
        bool apart =
            a + (uintptr_t)plan->slots[conflict->a].bytes <= b || b + (uintptr_t)plan->slots[conflict->b].bytes <= a;
        if (!apart && !(conflict->allowed >= 0 && b == a + (uintptr_t)conflict->allowed))
            return fail_conflict(plan, conflict);
    }
    if (plan->workspace_bytes && !workspace)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: the workspace is NULL. Give %lld bytes, aligned to %d.",
             descriptor_label(&plan->base), (long long)plan->workspace_bytes, WORKSPACE_ALIGNMENT);
    if (plan->workspace_bytes && (uintptr_t)workspace % WORKSPACE_ALIGNMENT)
        FAIL(WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER, "%s: the workspace at %p is not aligned to %d bytes. Align it.",
             descriptor_label(&plan->base), workspace, WORKSPACE_ALIGNMENT);
    if (workspace_bytes >= 0 && workspace_bytes < plan->workspace_bytes)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "%s: the workspace has %lld bytes, %lld are needed. Give more.",
             descriptor_label(&plan->base), (long long)workspace_bytes, (long long)plan->workspace_bytes);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t fail_elsewhere(const struct plan *plan) {
    char label[DEVICE_LABEL_BYTES];
    FAIL(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
         "%s: it was made for a GPU that was described, %s, and runs on one that is here. Save it (attribute json) and "
         "load it with a handle of the machine that has the GPU.",
         descriptor_label(&plan->base), device_label(label, &plan->draft.device));
}

weftStatus_t plan_run(const struct plan *plan, void *const *pointers, void *workspace, int64_t workspace_bytes,
                      weftStream_t stream) {
    const struct draft *draft = &plan->draft;
    const struct graph *graph = draft->graph;
    if (draft->device.is_described)
        return fail_elsewhere(plan);
    TRY(check_pointers(plan, pointers, workspace, workspace_bytes));
    void *values[graph->value_count];
    for (int v = 0; v < graph->value_count; v++) {
        struct tensor *tensor = graph->values[v].tensor;
        values[v] = tensor->is_constant ? tensor->constant : NULL;
        if (draft->value_offset[v] >= 0)
            values[v] = (char *)workspace + draft->value_offset[v];
    }
    for (int i = 0; i < plan->slot_count; i++)
        values[plan->slots[i].value] = pointers[i];
    for (int v = 0; v < graph->value_count; v++)
        values[v] = values[draft->cover.memory[v]];
    if (trace_exec_on())
        trace(WEFT_SEV_INFO, "execute %s on %s: %d steps", descriptor_label(&graph->base), draft->engine->name,
              draft->cover.count);
    for (int s = 0; s < draft->cover.count; s++)
        TRY(draft->steps[s].family->run(&draft->steps[s], values, (char *)workspace + draft->scratch_offset, stream));
    return WEFT_STATUS_SUCCESS;
}

/* One pointer per slot, looked up in the pack by walking both sorted lists. */
static weftStatus_t find_pointers(const struct plan *plan, const struct variant_pack *pack, void **pointers) {
    int64_t at = 0;
    for (int i = 0; i < plan->slot_count; i++) {
        while (at < pack->uids.count && pack->sorted[at].uid < plan->slots[i].uid)
            at++;
        if (at == pack->uids.count || pack->sorted[at].uid != plan->slots[i].uid)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s has no pointer for %s. Add its uid and address.",
                 descriptor_label(&pack->base),
                 descriptor_label(&plan->draft.graph->values[plan->slots[i].value].tensor->base));
        pointers[i] = pack->sorted[at].pointer;
    }
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t plan_run_pack(struct plan *plan, const struct variant_pack *pack, weftStream_t stream) {
    struct plan *found;
    TRY(plan_for_pack(&found, plan, pack));
    void *pointers[found->slot_count + 1];
    weftStatus_t status = find_pointers(found, pack, pointers);
    if (!status)
        status = plan_run(found, pointers, pack->workspace, pack->workspace_bytes, stream);
    descriptor_release(&found->base);
    return status;
}
