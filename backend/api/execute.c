/* SPDX-License-Identifier: Apache-2.0 */
/* Runs plans, and queries which engines support a graph. A plan is run with a variant pack and a handle, as in cuDNN,
   or with an array of addresses, which costs less per call. The arguments are checked here; plan/run.c does the
   work. */
#include "api/entry.h"
#include "api/reply.h"
#include "base/trace.h"
#include "plan/plan.h"

/* `where` is the exported function, with which messages begin. */
static weftStatus_t entry_plan(struct plan **plan, weftBackendDescriptor_t given, const char *where) {
    struct descriptor *descriptor;
    TRY(entry_finalized(&descriptor, given, &plan_schema, where));
    *plan = (struct plan *)descriptor;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t entry_pack(struct variant_pack **pack, weftBackendDescriptor_t given, const char *where) {
    struct descriptor *descriptor;
    TRY(entry_finalized(&descriptor, given, &variant_pack_schema, where));
    *pack = (struct variant_pack *)descriptor;
    return WEFT_STATUS_SUCCESS;
}

/* Checks must be few and cheap, because they run at every execution. */
static weftStatus_t entry_execution(struct plan **plan, struct variant_pack **pack, weftHandle_t handle,
                                    weftBackendDescriptor_t given_plan, weftBackendDescriptor_t given_pack,
                                    const char *where) {
    TRY(context_check(handle, where));
    TRY(entry_plan(plan, given_plan, where));
    TRY(entry_pack(pack, given_pack, where));
    const struct device *wanted = &(*plan)->draft.device, *given = &handle->device;
    if (wanted->kind != given->kind || wanted->ordinal != given->ordinal)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: the plan is for %s:%d, the handle for %s:%d. Use a handle of the plan's device.", where,
             device_kind_name(wanted->kind), (int)wanted->ordinal, device_kind_name(given->kind), (int)given->ordinal);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t weftBackendExecute(weftHandle_t handle, weftBackendDescriptor_t plan,
                                weftBackendDescriptor_t variantPack) {
    status_clear();
    struct plan *ours;
    struct variant_pack *pack;
    TRY(entry_execution(&ours, &pack, handle, plan, variantPack, "weftBackendExecute"));
    /* Relaxed: the stream orders the work itself, and no other data depends on this load. */
    return trace_failure(plan_run_pack(ours, pack, atomic_load_explicit(&handle->stream, memory_order_relaxed)));
}

static weftStatus_t write_cuda_graph(weftHandle_t handle, weftBackendDescriptor_t plan,
                                     weftBackendDescriptor_t variantPack, weftCudaGraph_t graph, bool is_update,
                                     const char *where) {
    struct plan *ours;
    struct variant_pack *pack;
    TRY(entry_execution(&ours, &pack, handle, plan, variantPack, where));
    if (!graph)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: the CUDA graph is NULL. Create one with cudaGraphCreate.", where);
    return plan_write_cuda_graph(ours, pack, graph, is_update);
}

weftStatus_t weftBackendPopulateCudaGraph(weftHandle_t handle, weftBackendDescriptor_t plan,
                                          weftBackendDescriptor_t variantPack, weftCudaGraph_t graph) {
    status_clear();
    return trace_failure(write_cuda_graph(handle, plan, variantPack, graph, false, "weftBackendPopulateCudaGraph"));
}

weftStatus_t weftBackendUpdateCudaGraph(weftHandle_t handle, weftBackendDescriptor_t plan,
                                        weftBackendDescriptor_t variantPack, weftCudaGraph_t graph) {
    status_clear();
    return trace_failure(write_cuda_graph(handle, plan, variantPack, graph, true, "weftBackendUpdateCudaGraph"));
}

/* The addresses themselves are checked in run.c, which rejects NULL and misaligned ones. */
static weftStatus_t check_pointers(const struct plan *plan, int64_t count, const uint64_t *pointers,
                                   const char *where) {
    if (count != plan->slot_count)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "%s: %lld pointer%s for %d slot%s. Give one per slot, in the order of attribute slot_unique_ids.", where,
             (long long)count, plural(count), plan->slot_count, plural(plan->slot_count));
    if (count && !pointers)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: pointers is NULL. Give an array of %lld addresses.", where,
             (long long)count);
    return WEFT_STATUS_SUCCESS;
}

/* One address per slot, in the order of slot_unique_ids; the stream is an argument, and no handle is needed. */
weftStatus_t weftExecute(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers, void *workspace,
                         weftStream_t stream) {
    status_clear();
    struct plan *ours;
    TRY(entry_plan(&ours, plan, "weftExecute"));
    TRY(check_pointers(ours, count, pointers, "weftExecute"));
    return trace_failure(plan_run(ours, pointers, workspace, stream));
}

weftStatus_t weftFreeze(weftBackendDescriptor_t plan, int64_t count, const uint64_t *pointers) {
    status_clear();
    struct plan *ours;
    TRY(entry_plan(&ours, plan, "weftFreeze"));
    TRY(check_pointers(ours, count, pointers, "weftFreeze"));
    return plan_freeze(ours, pointers);
}

/* Bytes that this pack needs: if it overrides shapes, it may have a plan of its own. */
weftStatus_t weftGetExecutionPlanWorkspaceSize(weftHandle_t handle, weftBackendDescriptor_t plan,
                                               weftBackendDescriptor_t variantPack, size_t *workspaceSize) {
    status_clear();
    static const char where[] = "weftGetExecutionPlanWorkspaceSize";
    struct plan *ours, *chosen;
    struct variant_pack *pack;
    /* The same checks as for an execution, which usually follows. */
    TRY(context_check(handle, where));
    TRY(entry_plan(&ours, plan, where));
    TRY(entry_pack(&pack, variantPack, where));
    if (!workspaceSize)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: workspaceSize is NULL. Give the address of a size_t.", where);
    TRY(plan_for_pack(&chosen, ours, pack));
    *workspaceSize = (size_t)chosen->workspace_bytes;
    /* plan_for_pack returns a new reference, even to the plan itself. */
    descriptor_release(&chosen->base);
    return WEFT_STATUS_SUCCESS;
}

/* One engine's answer as a JSON object. */
static weftStatus_t add_answer(struct text *text, const struct graph *graph, const struct device *device, int index) {
    /* Device memory and code are not needed for a draft, which has only costs and steps, so chips that are not present
       are supported, too. */
    struct draft draft;
    struct arena arena = {0};
    struct knob_choices none = {0};
    weftStatus_t status = draft_make(&draft, graph, engines[index], device, &none, NULL, &arena);
    text_add(text, "%s{\"index\":%d,\"engine\":", index ? "," : "", index);
    text_json_string(text, engines[index]->name);
    /* `seconds` is the predicted time, `families` are those of the steps in order. */
    if (status == WEFT_STATUS_SUCCESS) {
        text_add(text, ",\"supported\":true,\"seconds\":");
        text_json_number(text, draft.seconds);
        text_add(text, ",\"workspace_bytes\":%lld,\"families\":[", (long long)draft.workspace_bytes);
        for (int s = 0; s < draft.cover.count; s++) {
            text_add(text, s ? "," : "");
            text_json_string(text, draft.steps[s].family->name);
        }
        text_add(text, "]}");
    } else {
        text_add(text, ",\"supported\":false,\"status\":");
        text_json_string(text, status_name(status));
        text_add(text, ",\"reason\":");
        text_json_string(text, status_text());
        text_add(text, "}");
    }
    arena_free(&arena);
    /* A refusal is a valid answer; the only failure is a lack of memory. */
    return status == WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ? status : WEFT_STATUS_SUCCESS;
}

/* A JSON array with an object per engine. Without device properties, the engines of the CPU are queried. */
weftStatus_t weftQuerySupport(weftBackendDescriptor_t graph, weftBackendDescriptor_t deviceProperties, char *text,
                              size_t capacity, size_t *size) {
    status_clear();
    struct descriptor *ours, *properties;
    struct device device;
    /* Accepts any finalized graph. No GPU is needed, not even the one that the properties describe. */
    TRY(entry_finalized(&ours, graph, &graph_schema, "weftQuerySupport"));
    if (deviceProperties) {
        TRY(entry_finalized(&properties, deviceProperties, &device_properties_schema, "weftQuerySupport"));
        device = ((struct device_properties *)properties)->device;
    } else {
        TRY(device_find(&device, WEFT_DEVICE_CPU, 0));
    }
    struct text answer;
    text_init(&answer);
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    text_add(&answer, "[");
    for (int i = 0; i < engine_count && !status; i++)
        status = add_answer(&answer, (const struct graph *)ours, &device, i);
    text_add(&answer, "]");
    if (status) {
        text_free(&answer);
        return status;
    }
    /* A refusal is an answer here, and must not remain the thread's message. */
    status_clear();
    return reply_text("weftQuerySupport", &answer, text, capacity, size);
}
