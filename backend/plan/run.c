/* SPDX-License-Identifier: Apache-2.0 */
/* The hot path: puts every value's address in a table, checks the pointers, runs the steps. It allocates nothing, takes
   no lock and formats nothing unless it fails. The exceptions are the frames of large plans and overridden shapes. */
#include "base/trace.h"
#include "graph/descriptor.h"
#include "plan/alias_check.h"
#include "plan/cuda_graph_cache.h"
#include "plan/general_plan.h"
#include "plan/index_check.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

/* Reports which rule of check_slots a pointer violates. */
static weftStatus_t fail_slot(const struct plan *plan, const struct slot *slot, const void *pointer) {
    const char *label = descriptor_label(&plan->draft.graph->values[slot->value].tensor->base);
    if (!pointer)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: its pointer is NULL. Pass the address of %lld bytes.", label,
             (long long)slot->bytes);
    if (slot->alignment <= tensor_element_bytes(plan->draft.graph->values[slot->value].tensor))
        FAIL(WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER,
             "%s: pointer %p is not aligned to an element, %lld bytes. Copy the elements to an aligned address.", label,
             pointer, (long long)slot->alignment);
    FAIL(WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER,
         "%s: pointer %p is not aligned to %lld bytes. Align the memory, set a smaller alignment on the "
         "tensor, or build the plan with element_aligned.",
         label, pointer, (long long)slot->alignment);
}

/* Alignments are powers of two. */
static bool is_aligned(const struct slot *slot, const void *pointer) {
    return !((uintptr_t)pointer & (uintptr_t)(slot->alignment - 1));
}

/* One test per slot on the hot path; which rule was violated is only determined after a failure. */
static weftStatus_t check_slots(const struct plan *plan, void *const *values) {
    for (int i = 0; i < plan->slot_count; i++) {
        const struct slot *slot = &plan->slots[i];
        const void *pointer = values[slot->value];
        /* By-value scalars are copied bytewise, so their alignment does not matter; empty tensors are not read. */
        if (slot->bytes &&
            (!pointer || (!is_aligned(slot, pointer) && !plan->draft.graph->values[slot->value].tensor->is_by_value)))
            return fail_slot(plan, slot, pointer);
    }
    return WEFT_STATUS_SUCCESS;
}

/* workspace_bytes: the size of the workspace, or -1 if the caller did not specify it. */
static weftStatus_t check_workspace(const struct plan *plan, const void *workspace, int64_t workspace_bytes) {
    if (plan->workspace_bytes && !workspace)
        FAIL(WEFT_STATUS_BAD_PARAM_NULL_POINTER, "%s: the workspace is NULL. Pass %lld bytes, aligned to %d.",
             descriptor_label(&plan->base), (long long)plan->workspace_bytes, WORKSPACE_ALIGNMENT);
    if (plan->workspace_bytes && (uintptr_t)workspace % WORKSPACE_ALIGNMENT)
        FAIL(WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER, "%s: the workspace at %p is not aligned to %d bytes. Align it.",
             descriptor_label(&plan->base), workspace, WORKSPACE_ALIGNMENT);
    if (workspace_bytes >= 0 && workspace_bytes < plan->workspace_bytes)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "%s: the workspace has %lld bytes, the plan needs %lld. Pass a larger one.", descriptor_label(&plan->base),
             (long long)workspace_bytes, (long long)plan->workspace_bytes);
    return WEFT_STATUS_SUCCESS;
}

/* A plan for a described GPU: its code is compiled, but nothing is loaded. */
static weftStatus_t fail_described_device(const struct plan *plan) {
    char label[DEVICE_LABEL_BYTES];
    FAIL(WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
         "%s: it was built for a described GPU, %s, which this machine does not have. Save it (attribute json) and "
         "load it with a handle of the machine that has the GPU.",
         descriptor_label(&plan->base), device_label(label, &plan->draft.device));
}

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

/* 256 pointers are 2 KiB. Up to SLOTS_BY_PAIRS slots, comparing all pairs is faster than sorting. */
enum { VALUES_ON_STACK = 256, SLOTS_BY_PAIRS = 64 };

/* Scratch memory of an execution. Plans of usual size have it on the stack. Larger plans keep one frame for the next
   execution; if another thread holds it, a new one is allocated. Values are in graph order; spans in any order, because
   the alias check sorts them. */
struct frame {
    void **values;      /* the address of each value */
    struct span *spans; /* room for one per slot; NULL if there are few slots */
};

/* The frame fits on the stack, and slots are compared in pairs. */
static bool has_small_frame(const struct plan *plan) {
    return plan->draft.graph->value_count <= VALUES_ON_STACK && plan->slot_count <= SLOTS_BY_PAIRS;
}

/* A single allocation: frame, values, spans; all have the alignment of pointers. */
static weftStatus_t allocate_frame(struct frame **out, const struct plan *plan) {
    size_t values = (size_t)plan->draft.graph->value_count, spans = (size_t)plan->slot_count;
    size_t bytes = sizeof **out + values * sizeof *(*out)->values + spans * sizeof *(*out)->spans;
    struct frame *frame = malloc(bytes);
    if (!frame)
        return status_no_memory(bytes);
    frame->values = (void **)(frame + 1);
    frame->spans = (struct span *)(frame->values + values);
    *out = frame;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t acquire_frame(struct frame **frame, struct plan *plan) {
    /* No lock is needed: the spare frame is taken by exchanging it for NULL. */
    *frame = atomic_exchange(&plan->spare_frame, NULL);
    return *frame ? WEFT_STATUS_SUCCESS : allocate_frame(frame, plan);
}

/* Keeps the frame as the spare one and frees the frame that another thread returned in the meantime. */
static void release_frame(struct plan *plan, struct frame *frame) { free(atomic_exchange(&plan->spare_frame, frame)); }

/* Called by finalize, so that the first execution of a large plan allocates nothing either. */
weftStatus_t plan_make_frame(struct plan *plan) {
    struct frame *frame;
    if (has_small_frame(plan))
        return WEFT_STATUS_SUCCESS;
    TRY(acquire_frame(&frame, plan));
    release_frame(plan, frame);
    return WEFT_STATUS_SUCCESS;
}

void plan_free_frame(struct plan *plan) { free(atomic_exchange(&plan->spare_frame, NULL)); }

/* ---- Executions -------------------------------------------------------------------------------------------------- */

/* The arguments of an execution: the addresses of the slots in the plan's order, or a variant pack. */
struct execution {
    struct plan *plan;
    const uint64_t *addresses; /* one per slot; NULL if `pack` is used */
    const struct variant_pack *pack;
    void *workspace;
    int64_t workspace_bytes;
    weftStream_t stream;
    const struct step_watch *watch; /* NULL if there is no callback */
    void *cuda_graph;               /* the kernels are written into this graph instead; NULL: they run */
    bool is_update;                 /* the graph was written earlier */
};

/* Looks up one pointer per slot by merging two lists sorted by uid. Surplus uids of the pack are ignored. */
static weftStatus_t find_pointers(const struct plan *plan, const struct variant_pack *pack, void **values) {
    int64_t at = 0;
    for (int i = 0; i < plan->slot_count; i++) {
        while (at < pack->uids.count && pack->sorted[at].uid < plan->slots[i].uid)
            at++;
        if (at == pack->uids.count || pack->sorted[at].uid != plan->slots[i].uid)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s has no pointer for %s. Add its uid and address.",
                 descriptor_label(&pack->base),
                 descriptor_label(&plan->draft.graph->values[plan->slots[i].value].tensor->base));
        values[plan->slots[i].value] = pack->sorted[at].pointer;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Sets the addresses of slots; set_memory does the others. */
static weftStatus_t set_pointers(const struct execution *execution, void **values) {
    const struct plan *plan = execution->plan;
    if (execution->pack)
        return find_pointers(plan, execution->pack, values);
    for (int i = 0; i < plan->slot_count; i++)
        values[plan->slots[i].value] = (void *)(uintptr_t)execution->addresses[i];
    return WEFT_STATUS_SUCCESS;
}

/* Sets the addresses of views. `memory` names the value that stores the elements, also for views of views. */
static void set_views(const struct draft *draft, void **values) {
    for (int v = 0; v < draft->graph->value_count; v++) {
        char *source = values[draft->cover.views.memory[v]];
        values[v] = source ? source + draft->cover.views.offset[v] : NULL;
    }
}

/* Sets the addresses of values that are no slots. NULL: dead, or internal to a step. */
static void set_memory(const struct draft *draft, void **values, void *workspace) {
    const struct graph *graph = draft->graph;
    for (int v = 0; v < graph->value_count; v++) {
        struct tensor *tensor = graph->values[v].tensor;
        if (draft->value_offset[v] >= 0)
            values[v] = (char *)workspace + draft->value_offset[v];
        else if (!value_is_slot(&graph->values[v]))
            values[v] = tensor->is_constant ? tensor->constant : NULL;
    }
    set_views(draft, values);
}

/* True if all inputs in memory and at least one output have one address. NVIDIA's frontend executes a plan that it has
   loaded like this, within a stream capture that it discards, to compile the kernels early. Outputs that the frontend
   adds itself have other addresses. It always uses variant packs. */
static bool is_warm_up(const struct execution *execution, void *const *values) {
    enum { TENSORS_MIN = 3 }; /* two tensors with one address are an operation in place */
    const struct plan *plan = execution->plan;
    const void *address = NULL;
    int inputs = 0, outputs = 0;
    for (int i = 0; i < plan->slot_count && execution->pack; i++) {
        const struct slot *slot = &plan->slots[i];
        if (slot->is_written || plan->draft.graph->values[slot->value].tensor->is_by_value)
            continue;
        if (inputs && values[slot->value] != address)
            return false;
        address = values[slot->value];
        inputs++;
    }
    for (int i = 0; i < plan->slot_count && inputs; i++)
        outputs += plan->slots[i].is_written && values[plan->slots[i].value] == address;
    return inputs && outputs && inputs + outputs >= TENSORS_MIN;
}

/* *is_unusual: nothing was executed, because by-value scalars have other numbers than the plan assumes. */
static weftStatus_t execute_with_frame(bool *is_unusual, const struct execution *execution, struct frame *frame) {
    const struct draft *draft = &execution->plan->draft;
    void **values = frame->values;
    /* All checks come before the first step, so that a plan runs completely or not at all. */
    TRY(set_pointers(execution, values));
    TRY(check_slots(execution->plan, values));
    weftStatus_t alias_status = alias_check_run(execution->plan, values, frame->spans);
    if (alias_status && is_warm_up(execution, values)) {
        status_clear(); /* nothing has to be computed, and the code of plans is loaded already */
        trace(WEFT_SEV_WARNING,
              "%s: all inputs and an output have one address, so nothing is computed: this is taken for the warm-up of "
              "NVIDIA's frontend. Give each tensor memory of its own to compute.",
              descriptor_label(&draft->graph->base));
        return WEFT_STATUS_SUCCESS;
    }
    TRY(alias_status);
    *is_unusual = general_plan_is_needed(execution->plan, values);
    if (*is_unusual)
        return WEFT_STATUS_SUCCESS;
    TRY(check_workspace(execution->plan, execution->workspace, execution->workspace_bytes));
    set_memory(draft, values, execution->workspace);
    if (execution->cuda_graph)
        return cuda_graph_write(execution->plan, values, execution->workspace, execution->cuda_graph,
                                execution->is_update);
    TRY(index_check_run(execution->plan, values, INDEX_CHECK_START, execution->stream));
    if (trace_exec_on())
        trace(WEFT_SEV_INFO, "execute %s on %s: %d step%s", descriptor_label(&draft->graph->base), draft->engine->name,
              draft->cover.count, plural(draft->cover.count));
    bool is_done = false;
    bool has_graph = execution->plan->cuda_graph && draft->device.kind == WEFT_DEVICE_CUDA;
    /* An index check waits for numbers from the device, which a capture cannot. */
    if (has_graph && !execution->watch && !execution->plan->index_check_count)
        TRY(cuda_graph_cache_run(&is_done, execution->plan, values, execution->workspace, execution->stream));
    return is_done ? WEFT_STATUS_SUCCESS
                   : plan_run_steps(execution->plan, values, execution->workspace, execution->stream, execution->watch);
}

/* The frame is returned even if a step fails. */
static weftStatus_t execute_once(bool *is_unusual, const struct execution *execution) {
    struct plan *plan = execution->plan;
    /* Not initialized: every entry that is read is set first. */
    void *stack_values[VALUES_ON_STACK];
    struct frame stack_frame = {.values = stack_values}, *frame = &stack_frame;
    if (plan->draft.device.is_described)
        return fail_described_device(plan);
    if (!has_small_frame(plan))
        TRY(acquire_frame(&frame, plan));
    weftStatus_t status = execute_with_frame(is_unusual, execution, frame);
    if (frame != &stack_frame)
        release_frame(plan, frame);
    return status;
}

/* Executes the plan that assumes no numbers, in memory of its own. */
static weftStatus_t execute_general(const struct execution *execution) {
    struct execution general = *execution;
    bool is_unusual = false;
    TRY(general_plan_get(&general.plan, execution->plan));
    general.workspace_bytes = -1;
    weftStatus_t status = general_plan_allocate(&general.workspace, general.plan, execution->stream);
    if (!status)
        status = execute_once(&is_unusual, &general);
    general_plan_deallocate(general.workspace, general.plan, execution->stream);
    descriptor_release(&general.plan->base);
    return status;
}

static weftStatus_t execute(const struct execution *execution) {
    bool is_unusual = false;
    weftStatus_t status = execute_once(&is_unusual, execution);
    return is_unusual ? execute_general(execution) : status;
}

/* The caller is responsible for the size of the workspace: -1 leaves it unchecked. */
weftStatus_t plan_run(struct plan *plan, const uint64_t *addresses, void *workspace, weftStream_t stream) {
    return execute(&(struct execution){
        .plan = plan, .addresses = addresses, .workspace = workspace, .workspace_bytes = -1, .stream = stream});
}

/* Sets the addresses of frozen inputs. By-value scalars are read at each execution as before. */
static weftStatus_t set_frozen(const struct plan *plan, const uint64_t *addresses, void **values) {
    for (int v = 0; v < plan->draft.graph->value_count; v++)
        values[v] = NULL;
    for (int i = 0; i < plan->slot_count; i++) {
        const struct slot *slot = &plan->slots[i];
        const struct tensor *tensor = plan->draft.graph->values[slot->value].tensor;
        void *pointer = tensor->is_by_value ? NULL : (void *)(uintptr_t)addresses[i];
        if (pointer && slot->is_written)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: it cannot be frozen, because the plan writes it. Pass NULL for it.",
                 descriptor_label(&tensor->base));
        if (!is_aligned(slot, pointer))
            return fail_slot(plan, slot, pointer);
        values[slot->value] = pointer;
    }
    set_views(&plan->draft, values);
    return WEFT_STATUS_SUCCESS;
}

/* All steps or none: if memory is insufficient for one step, nothing stays frozen. */
static weftStatus_t freeze_steps(const struct draft *draft, void **values) {
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    for (int s = 0; s < draft->cover.count && !status; s++)
        if (draft->steps[s].family->freeze)
            status = draft->steps[s].family->freeze(&draft->steps[s], values);
    for (int v = 0; v < draft->graph->value_count && status; v++)
        values[v] = NULL;
    /* With NULL addresses it only frees, and cannot fail. */
    for (int s = 0; s < draft->cover.count && status; s++)
        if (draft->steps[s].family->freeze)
            (void)draft->steps[s].family->freeze(&draft->steps[s], values);
    return status;
}

weftStatus_t plan_freeze(struct plan *plan, const uint64_t *addresses) {
    struct frame *frame;
    TRY(acquire_frame(&frame, plan));
    weftStatus_t status = set_frozen(plan, addresses, frame->values);
    if (!status)
        status = freeze_steps(&plan->draft, frame->values);
    release_frame(plan, frame);
    return status;
}

weftStatus_t plan_run_watched(struct plan *plan, const uint64_t *addresses, void *workspace, weftStream_t stream,
                              const struct step_watch *watch) {
    return execute(&(struct execution){.plan = plan,
                                       .addresses = addresses,
                                       .workspace = workspace,
                                       .workspace_bytes = -1,
                                       .stream = stream,
                                       .watch = watch});
}

/* A graph needs kernels that exist as long as the plan does, and no numbers of the device on the host. */
static weftStatus_t check_native(const struct plan *plan, const struct variant_pack *pack) {
    const char *label = descriptor_label(&plan->base);
    if (plan->draft.device.kind != WEFT_DEVICE_CUDA)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API,
             "%s: its device is %s, and CUDA graphs contain kernels. Build the plan for a GPU.", label,
             device_kind_name(plan->draft.device.kind));
    if (plan->index_check_count)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API,
             "%s: WEFT_CHECK=1 copies indices to the host, which a CUDA graph cannot. Unset it.", label);
    if (pack->override_uids.count)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API,
             "%s: the variant pack overrides shapes. Build a plan for these shapes.", label);
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t plan_write_cuda_graph(struct plan *plan, const struct variant_pack *pack, void *cuda_graph,
                                   bool is_update) {
    struct execution execution = {.plan = plan,
                                  .pack = pack,
                                  .workspace = pack->workspace,
                                  .workspace_bytes = pack->workspace_bytes,
                                  .cuda_graph = cuda_graph,
                                  .is_update = is_update};
    bool is_unusual = false;
    TRY(check_native(plan, pack));
    TRY(execute_once(&is_unusual, &execution));
    if (is_unusual)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API,
             "%s: by-value scalars have unusual numbers, for which another plan runs. Capture the stream instead.",
             descriptor_label(&plan->base));
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t plan_run_pack(struct plan *plan, const struct variant_pack *pack, weftStream_t stream) {
    /* If the pack overrides shapes, this may plan and compile, at the first execution with these shapes. */
    struct plan *chosen;
    TRY(plan_for_pack(&chosen, plan, pack));
    weftStatus_t status = execute(&(struct execution){.plan = chosen,
                                                      .pack = pack,
                                                      .workspace = pack->workspace,
                                                      .workspace_bytes = pack->workspace_bytes,
                                                      .stream = stream});
    descriptor_release(&chosen->base);
    return status;
}
