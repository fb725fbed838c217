/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the steps of a cover and lays out the workspace: intermediates first, reusing the room of those that are no
   longer read, then one scratch area that the steps use in turn. */
#include "plan/draft.h"
#include "base/number.h"

#include <stdlib.h>

/* Steps in which a value must keep its memory: from the one that makes it to the last one that reads it. */
struct life {
    int value;
    int first, last;
    bool crosses; /* another step than the first reads it */
    int64_t bytes;
};

static int64_t align_up(int64_t bytes) { return round_up(bytes, WORKSPACE_ALIGNMENT); }

/* The lives of all virtual values that are read in another step than the one that makes them. Reads of a view are reads of
   the memory that it looks at. */
static int find_lives(const struct draft *draft, struct life *lives) {
    const struct graph *graph = draft->graph;
    const int *memory = draft->cover.memory, *step = draft->cover.part_of_node;
    int count = 0;
    for (int v = 0; v < graph->value_count; v++) {
        int producer = graph->values[v].producer;
        lives[v] = (struct life){.value = v, .first = producer < 0 ? -1 : step[producer], .last = -1};
    }
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < graph->nodes[n].operand_count; i++) {
            struct life *life = &lives[memory[graph->nodes[n].operands[i]]];
            if (graph->nodes[n].is_output[i] || step[n] < 0)
                continue;
            life->crosses = life->crosses || step[n] != life->first;
            life->last = step[n] > life->last ? step[n] : life->last;
        }
    for (int v = 0; v < graph->value_count; v++)
        if (graph->values[v].tensor->is_virtual && memory[v] == v && lives[v].crosses)
            lives[count++] = lives[v];
    return count;
}

static int compare_lives(const void *a, const void *b) {
    const struct life *one = a, *other = b;
    return one->first != other->first ? one->first - other->first : one->value - other->value;
}

/* The lowest offset where a value meets none of those that are alive. */
static int64_t place(const struct draft *draft, const struct life *alive, int count, const struct life *life) {
    int64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < count; i++) {
            int64_t other = draft->value_offset[alive[i].value];
            if (offset < other + alive[i].bytes && other < offset + life->bytes) {
                offset = other + alive[i].bytes;
                moved = true;
            }
        }
    }
    return offset;
}

/* Leaves those that a step, or one behind it, still reads. */
static int keep_alive(struct life *alive, int count, int step) {
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (alive[i].last >= step)
            alive[kept++] = alive[i];
    return kept;
}

static weftStatus_t lay_out_workspace(struct draft *draft, struct arena *arena) {
    size_t values = (size_t)draft->graph->value_count;
    struct life *lives, *alive;
    int alive_count = 0;
    TRY(arena_alloc(arena, &draft->value_offset, values * sizeof *draft->value_offset));
    TRY(arena_alloc(arena, &lives, values * sizeof *lives));
    TRY(arena_alloc(arena, &alive, values * sizeof *alive));
    for (size_t v = 0; v < values; v++)
        draft->value_offset[v] = -1;
    int count = find_lives(draft, lives);
    qsort(lives, (size_t)count, sizeof *lives, compare_lives);
    for (int i = 0; i < count; i++) {
        struct life *life = &lives[i];
        life->bytes = align_up(tensor_bytes(draft->graph->values[life->value].tensor));
        alive_count = keep_alive(alive, alive_count, life->first);
        int64_t offset = draft->value_offset[life->value] = place(draft, alive, alive_count, life);
        draft->scratch_offset = max64(draft->scratch_offset, offset + life->bytes);
        alive[alive_count++] = *life;
    }
    int64_t scratch = 0;
    for (int s = 0; s < draft->cover.count; s++)
        if (draft->steps[s].workspace_bytes > scratch)
            scratch = draft->steps[s].workspace_bytes;
    draft->workspace_bytes = draft->scratch_offset + align_up(scratch);
    return WEFT_STATUS_SUCCESS;
}

/* Bytes that a step moves: each memory that it reads or writes once. counted: per value, the last step + 1 that was asked. */
static int64_t bytes_of(const struct draft *draft, int step, int *counted) {
    const struct region *region = &draft->steps[step].region;
    int64_t bytes = 0;
    for (int k = 0; k < region->count; k++)
        for (int i = 0; i < region_node(region, k)->operand_count; i++) {
            int value = draft->cover.memory[region_node(region, k)->operands[i]];
            const struct tensor *tensor = draft->graph->values[value].tensor;
            bool in_memory = !tensor->is_virtual || draft->value_offset[value] >= 0;
            bytes += in_memory && counted[value] != step + 1 ? tensor_bytes(tensor) : 0;
            counted[value] = step + 1;
        }
    return bytes;
}

static weftStatus_t count_bytes(struct draft *draft, struct arena *arena) {
    int *counted;
    TRY(arena_alloc(arena, &draft->step_bytes, (size_t)draft->cover.count * sizeof *draft->step_bytes));
    TRY(arena_alloc(arena, &counted, (size_t)draft->graph->value_count * sizeof *counted));
    for (int s = 0; s < draft->cover.count; s++)
        draft->moved_bytes += draft->step_bytes[s] = bytes_of(draft, s, counted);
    return WEFT_STATUS_SUCCESS;
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
    return count_bytes(draft, arena);
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
