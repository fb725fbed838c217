/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the steps of a cover and lays out the workspace: intermediates first, reusing the room of those that are no
   longer read, then one scratch area that the steps use in turn. */
#include "plan/draft.h"
#include "base/number.h"

/* Steps in which a value must keep its memory. */
struct life {
    int value;
    int first, last;
    int64_t bytes;
};

static int64_t align_up(int64_t bytes) { return round_up(bytes, WORKSPACE_ALIGNMENT); }

/* Whether a node reads a value's memory, under whatever name. */
static bool node_reads(const struct draft *draft, int n, int value) {
    const struct node *node = &draft->graph->nodes[n];
    for (int i = 0; i < node->operand_count; i++)
        if (draft->cover.memory[node->operands[i]] == value && !node->is_output[i])
            return true;
    return false;
}

/* The last step that reads a value, or -1. */
static int last_reading_step(const struct draft *draft, int value) {
    int last = -1;
    for (int n = 0; n < draft->graph->node_count; n++)
        if (draft->cover.part_of_node[n] > last && node_reads(draft, n, value))
            last = draft->cover.part_of_node[n];
    return last;
}

/* Whether a node outside the part that makes a value, and whose result is needed, reads it. */
static bool value_crosses(const struct draft *draft, int value) {
    int producer = draft->graph->values[value].producer;
    int home = producer < 0 ? -1 : draft->cover.part_of_node[producer];
    for (int n = 0; n < draft->graph->node_count; n++)
        if (draft->cover.part_of_node[n] >= 0 && draft->cover.part_of_node[n] != home && node_reads(draft, n, value))
            return true;
    return false;
}

/* Puts a value at the lowest offset where it meets no other of overlapping life. */
static int64_t place(const struct draft *draft, const struct life *lives, int placed, const struct life *life) {
    int64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < placed; i++) {
            int64_t other = draft->value_offset[lives[i].value];
            bool together = lives[i].first <= life->last && life->first <= lives[i].last;
            if (together && offset < other + lives[i].bytes && other < offset + life->bytes) {
                offset = other + lives[i].bytes;
                moved = true;
            }
        }
    }
    return offset;
}

static weftStatus_t lay_out_workspace(struct draft *draft, struct arena *arena) {
    const struct graph *graph = draft->graph;
    struct life *lives;
    int count = 0;
    TRY(arena_alloc(arena, &draft->value_offset, (size_t)graph->value_count * sizeof *draft->value_offset));
    TRY(arena_alloc(arena, &lives, (size_t)graph->value_count * sizeof *lives));
    for (int v = 0; v < graph->value_count; v++) {
        draft->value_offset[v] = -1;
        if (!graph->values[v].tensor->is_virtual || draft->cover.memory[v] != v || !value_crosses(draft, v))
            continue;
        lives[count] = (struct life){.value = v,
                                     .first = draft->cover.part_of_node[graph->values[v].producer],
                                     .last = last_reading_step(draft, v),
                                     .bytes = align_up(tensor_bytes(graph->values[v].tensor))};
        int64_t offset = place(draft, lives, count, &lives[count]);
        draft->value_offset[v] = offset;
        if (offset + lives[count].bytes > draft->scratch_offset)
            draft->scratch_offset = offset + lives[count].bytes;
        count++;
    }
    int64_t scratch = 0;
    for (int s = 0; s < draft->cover.count; s++)
        if (draft->steps[s].workspace_bytes > scratch)
            scratch = draft->steps[s].workspace_bytes;
    draft->workspace_bytes = draft->scratch_offset + align_up(scratch);
    return WEFT_STATUS_SUCCESS;
}

/* Whether operand i of a region's node k stands for memory that an earlier operand stood for already. */
static bool is_counted(const struct draft *draft, const struct region *region, int k, int i) {
    const int *memory = draft->cover.memory;
    int value = memory[region_node(region, k)->operands[i]];
    for (int n = 0; n <= k; n++) {
        const struct node *node = region_node(region, n);
        for (int o = 0; o < (n == k ? i : node->operand_count); o++)
            if (memory[node->operands[o]] == value)
                return true;
    }
    return false;
}

int64_t draft_step_bytes(const struct draft *draft, int step) {
    const struct region *region = &draft->steps[step].region;
    int64_t bytes = 0;
    for (int k = 0; k < region->count; k++)
        for (int i = 0; i < region_node(region, k)->operand_count; i++) {
            int value = draft->cover.memory[region_node(region, k)->operands[i]];
            const struct tensor *tensor = draft->graph->values[value].tensor;
            bool in_memory = !tensor->is_virtual || draft->value_offset[value] >= 0;
            if (in_memory && !is_counted(draft, region, k, i))
                bytes += tensor_bytes(tensor);
        }
    return bytes;
}

/* The steps of a cover. */
static weftStatus_t draft_steps(struct draft *draft, const struct knob_choices *knobs, struct arena *arena) {
    TRY(arena_alloc(arena, &draft->steps, (size_t)draft->cover.count * sizeof *draft->steps));
    for (int s = 0; s < draft->cover.count; s++) {
        const struct part *part = &draft->cover.parts[s];
        struct step *step = &draft->steps[s];
        *step = (struct step){.family = part->family, .region = part->region, .seconds = part->seconds};
        TRY(part->family->build(step, &draft->device, knobs, arena));
        draft->seconds += step->seconds;
    }
    status_clear(); /* of those that a family asked before the one that serves it */
    TRY(lay_out_workspace(draft, arena));
    for (int s = 0; s < draft->cover.count; s++)
        draft->moved_bytes += draft_step_bytes(draft, s);
    return WEFT_STATUS_SUCCESS;
}

/* A draft whose steps each take no more scratch than the limit. */
static weftStatus_t draft_within(struct draft *draft, const struct knob_choices *knobs, int64_t scratch_limit,
                                 struct arena *arena) {
    const struct graph *graph = draft->graph;
    *draft = (struct draft){.graph = graph, .engine = draft->engine, .device = draft->device};
    TRY(partition(&draft->cover, graph, draft->engine, &draft->device, knobs, scratch_limit, arena));
    return draft_steps(draft, knobs, arena);
}

/* Drafts again, within a limit of the whole workspace that the best draft is beyond: without steps that take more, then with
   sums in one piece, then with what intermediate tensors leave of it. */
static weftStatus_t draft_small(struct draft *draft, const struct knob_choices *knobs, int64_t limit,
                                struct arena *arena) {
    const struct engine *engine = draft->engine;
    int64_t wanted = draft->workspace_bytes, scratch = limit;
    struct knob_choices whole = {.count = knobs->count + 1};
    struct knob_choice *items;
    TRY(arena_alloc(arena, &items, (size_t)whole.count * sizeof *items));
    for (int i = 0; i < knobs->count; i++)
        items[i] = knobs->items[i];
    items[knobs->count] = (struct knob_choice){.type = WEFT_KNOB_TYPE_SPLIT_K, .value = 1};
    whole.items = items; /* what comes first of a kind counts */
    for (int attempt = 0; attempt < 3; attempt++) {
        weftStatus_t status = draft_within(draft, attempt ? &whole : knobs, scratch, arena);
        if (status == WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED)
            return status;
        if (!status && draft->workspace_bytes <= limit)
            return WEFT_STATUS_SUCCESS;
        if (attempt)
            scratch = draft->scratch_offset < limit ? limit - draft->scratch_offset : 0;
    }
    FAIL(WEFT_STATUS_NOT_SUPPORTED,
         "engine %s: the graph takes %lld bytes of workspace at best, and more than %lld at least. Allow more, or take "
         "another engine.",
         engine->name, (long long)wanted, (long long)limit);
}

weftStatus_t draft_make(struct draft *draft, const struct graph *graph, const struct engine *engine,
                        const struct device *device, const struct knob_choices *knobs, const struct cover *cover,
                        struct arena *arena) {
    const struct knob_choice *limit = knob_find(knobs, WEFT_KNOB_TYPE_WORKSPACE);
    *draft = (struct draft){.graph = graph, .engine = engine, .device = *device};
    if (cover)
        draft->cover = *cover;
    else
        TRY(partition(&draft->cover, graph, engine, device, knobs, INT64_MAX, arena));
    TRY(draft_steps(draft, knobs, arena));
    if (!limit || draft->workspace_bytes <= limit->value)
        return WEFT_STATUS_SUCCESS;
    return draft_small(draft, knobs, limit->value, arena);
}
