/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the steps of a cover and predicts their cost. If the workspace exceeds the limit of knob WORKSPACE, slower
   covers and knobs that need less memory are tried. */
#include "plan/steps.h"
#include "base/number.h"
#include "plan/workspace.h"

/* Counts the bytes that a step reads and writes. counted[value] is 1 + the step that counted it last, because the array
   starts as zeros. */
static int64_t count_bytes(const struct draft *draft, int step, int *counted) {
    const struct region *region = &draft->steps[step].region;
    int64_t bytes = 0;
    for (int k = 0; k < region->count; k++)
        for (int i = 0; i < region_node(region, k)->operand_count; i++) {
            int value = region_node(region, k)->operands[i], memory = draft->cover.views.memory[value];
            /* Count each value once per step, even if several of its operations read it. */
            bool in_memory = !draft->graph->values[memory].tensor->is_virtual || draft->value_offset[memory] >= 0 ||
                             draft->graph->values[value].tensor->is_gathered;
            if (in_memory && counted[value] != step + 1)
                bytes = add_sizes(bytes, tensor_own_bytes(draft->graph->values[value].tensor));
            counted[value] = step + 1;
        }
    return bytes;
}

/* step_bytes and moved_bytes only appear in reports. */
static weftStatus_t count_moved(struct draft *draft, struct arena *arena) {
    struct arena scratch = {0};
    int *counted;
    TRY(arena_alloc(arena, &draft->step_bytes, (size_t)draft->cover.count * sizeof *draft->step_bytes));
    TRY(arena_alloc(&scratch, &counted, (size_t)draft->graph->value_count * sizeof *counted));
    for (int s = 0; s < draft->cover.count; s++) {
        draft->step_bytes[s] = count_bytes(draft, s, counted);
        draft->moved_bytes = add_sizes(draft->moved_bytes, draft->step_bytes[s]);
    }
    arena_free(&scratch);
    return WEFT_STATUS_SUCCESS;
}

/* Has each part built by its family, then lays out the workspace. Steps run one after another, so the predicted time is
   the sum of theirs. */
static weftStatus_t draft_steps(struct draft *draft, const struct knob_choices *knobs, struct arena *arena) {
    draft->graph = draft->cover.views.graph;
    TRY(arena_alloc(arena, &draft->steps, (size_t)draft->cover.count * sizeof *draft->steps));
    for (int s = 0; s < draft->cover.count; s++) {
        const struct part *part = &draft->cover.parts[s];
        struct step *step = &draft->steps[s];
        *step = (struct step){.family = part->family,
                              .region = part->region,
                              .before = s > 0 ? step - 1 : NULL,
                              .seconds = part->seconds,
                              .used = part->used};
        TRY(part->family->build(step, &draft->device, knobs, arena));
        draft->seconds += step->seconds;
    }
    status_clear(); /* discard the refusals of families that delegated */
    TRY(workspace_lay_out(draft, arena));
    return count_moved(draft, arena);
}

/* Drafts the graph again, with at most scratch_limit bytes of scratch per step. */
static weftStatus_t draft_within(struct draft *draft, const struct graph *graph, const struct knob_choices *knobs,
                                 int64_t scratch_limit, struct arena *arena) {
    /* Start over: the previous draft belongs to another cover. */
    *draft = (struct draft){.engine = draft->engine, .device = draft->device};
    TRY(partition(&draft->cover, graph, draft->engine, &draft->device, knobs, scratch_limit, arena));
    return draft_steps(draft, knobs, arena);
}

/* Drafts the graph again because the fastest draft exceeds the workspace limit. Attempts, in order: no step above the
   limit; no split-K; scratch limited to what the intermediates leave. */
static weftStatus_t draft_small(struct draft *draft, const struct graph *graph, const struct knob_choices *knobs,
                                int64_t limit, struct arena *arena) {
    const struct engine *engine = draft->engine;
    int64_t wanted = draft->workspace_bytes, scratch = limit;
    struct knob_choices unsplit = {.count = knobs->count + 1};
    struct knob_choice *items;
    /* Split-K of 1 is slower but needs no workspace for partial sums. */
    TRY(arena_alloc(arena, &items, (size_t)unsplit.count * sizeof *items));
    for (int i = 0; i < knobs->count; i++)
        items[i] = knobs->items[i];
    items[knobs->count] = (struct knob_choice){.type = WEFT_KNOB_TYPE_SPLIT_K, .value = 1};
    unsplit.items = items; /* knob_find returns the first choice of a type, so the user's comes before this one */
    for (int attempt = 0; attempt < 3; attempt++) {
        /* The first attempt keeps the knobs, the other two disable split-K. */
        weftStatus_t status = draft_within(draft, graph, attempt ? &unsplit : knobs, scratch, arena);
        /* After any other failure, continue with the next attempt. */
        if (status == WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED)
            return status;
        if (!status && draft->workspace_bytes <= limit)
            return WEFT_STATUS_SUCCESS;
        if (attempt)
            /* Reserve the memory of the intermediates; the steps get the rest. */
            scratch = draft->scratch_offset < limit ? limit - draft->scratch_offset : 0;
    }
    FAIL(WEFT_STATUS_NOT_SUPPORTED,
         "engine %s: the fastest plan needs %lld bytes of workspace, and no plan fits into %lld. Raise the limit, or "
         "choose another engine.",
         engine->name, (long long)wanted, (long long)limit);
}

weftStatus_t draft_make(struct draft *draft, const struct graph *graph, const struct engine *engine,
                        const struct device *device, const struct knob_choices *knobs, const struct cover *cover,
                        struct arena *arena) {
    const struct knob_choice *limit = knob_find(knobs, WEFT_KNOB_TYPE_WORKSPACE);
    *draft = (struct draft){.engine = engine, .device = *device};
    if (cover)
        draft->cover = *cover;
    else
        TRY(partition(&draft->cover, graph, engine, device, knobs, INT64_MAX, arena));
    TRY(draft_steps(draft, knobs, arena));
    if (!limit || draft->workspace_bytes <= limit->value)
        return WEFT_STATUS_SUCCESS;
    return draft_small(draft, graph, knobs, limit->value, arena);
}
