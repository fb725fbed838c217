/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the steps of a cover and lays out the workspace: intermediates first, reusing the room of those that are no
   longer read, and in place where the step that reads one last may write there; then one scratch area that the steps
   use in turn. */
#include "plan/draft.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

/* ---- The workspace ----------------------------------------------------------------------------------------------- */

/* Steps in which an intermediate must keep its memory: from the one that makes it to the last that reads it. */
struct life {
    int value;
    /* Steps are numbered in the order in which they run. */
    int first, last;
    int64_t bytes;
    bool is_in_place; /* its memory is that of a value which the step that makes it is the last to read */
};

/* Memory that no value has. */
struct hole {
    int64_t offset, bytes;
};

/* What the layout works with; freed when it is done, but for `draft`. */
struct space {
    struct draft *draft;
    bool *crosses;      /* of each value: a step other than the one that makes it reads it */
    bool *is_handed_on; /* of each value: its memory is another's when its life ends */
    /* Unordered at first, then by `first`. */
    struct life *lives;
    int count;
    struct hole *holes; /* by offset; the last one has no end */
    int hole_count;
};

/* Bytes of a result, from which on it is worth asking whether it can be made in place. */
enum { IN_PLACE_LEAST = 1 << 16 };

/* Far from INT64_MAX, so that an offset and a size never overflow together. */
#define LAST_HOLE_BYTES (INT64_C(1) << 62)

/* Each size is rounded up, so that every offset is a multiple of WORKSPACE_ALIGNMENT. */
static int64_t align_up(int64_t bytes) { return round_up(bytes, WORKSPACE_ALIGNMENT); }

/* -1 for inputs, and for what a view makes. */
static int making_step(const struct draft *draft, int value) {
    int producer = draft->graph->values[value].producer;
    return producer < 0 ? -1 : draft->cover.part_of_node[producer];
}

/* A value without memory has all its parts read. */
static void note_reading(struct space *space, int step, int operand) {
    struct draft *draft = space->draft;
    int value = draft->cover.views.memory[operand];
    const struct concat_op *parts = views_gathered(draft->graph, operand);
    for (int64_t k = 0; parts && k < parts->inputs.count; k++) {
        int part = graph_find_value(draft->graph, parts->inputs.tensors[k]);
        draft->is_viewed[draft->cover.views.memory[part]] = true;
        note_reading(space, step, part);
    }
    if (parts)
        return;
    if (step > draft->last_reading[value])
        draft->last_reading[value] = step;
    /* Within one step a value may stay in registers; whether it does is the family's business. */
    if (step != making_step(draft, operand))
        space->crosses[value] = true;
}

static void note_writing(const struct draft *draft, int step, int operand) {
    int value = draft->cover.views.memory[operand];
    if (draft->first_writing[value] < 0 || step < draft->first_writing[value])
        draft->first_writing[value] = step;
}

/* Fills in first_writing, last_reading and is_viewed of the draft, and crosses. Linear in the operands. */
static void note_accesses(struct space *space) {
    const struct draft *draft = space->draft;
    for (int v = 0; v < draft->graph->value_count; v++)
        draft->first_writing[v] = draft->last_reading[v] = -1;
    for (int n = 0; n < draft->graph->node_count; n++) {
        const struct node *node = &draft->graph->nodes[n];
        /* Negative: nothing runs at this node. */
        int step = draft->cover.part_of_node[n];
        for (int i = 0; i < node->operand_count && step >= 0; i++) {
            int value = node->operands[i];
            draft->is_viewed[draft->cover.views.memory[value]] |= draft->cover.views.memory[value] != value;
            if (node->is_output[i])
                note_writing(draft, step, value);
            else
                note_reading(space, step, value);
        }
    }
}

static void list_lives(struct space *space) {
    const struct draft *draft = space->draft;
    for (int v = 0; v < draft->graph->value_count; v++) {
        const struct tensor *tensor = draft->graph->values[v].tensor;
        /* What is not virtual has memory of the user's; a view has that of what it views. */
        if (tensor->is_virtual && draft->cover.views.memory[v] == v && space->crosses[v])
            space->lives[space->count++] = (struct life){.value = v,
                                                         .first = draft->first_writing[v],
                                                         .last = draft->last_reading[v],
                                                         .bytes = align_up(tensor_bytes(tensor))};
    }
}

/* The lowest offset at which there is room; -1: nowhere. Holes lie in the order of offsets; the last one reaches to
   LAST_HOLE_BYTES. */
static int64_t take_room(struct space *space, int64_t bytes) {
    int at = 0;
    while (at < space->hole_count && space->holes[at].bytes < bytes)
        at++;
    if (at == space->hole_count)
        return -1;
    struct hole *hole = &space->holes[at];
    int64_t offset = hole->offset;
    hole->offset += bytes;
    /* What is left of the hole stays where it is in the order. */
    hole->bytes -= bytes;
    if (hole->bytes == 0)
        memmove(hole, hole + 1, (size_t)(--space->hole_count - at) * sizeof *hole);
    return offset;
}

/* Holes stay sorted and never touch, so that their number is at most one more than that of lives. */
static void give_room(struct space *space, int64_t offset, int64_t bytes) {
    int low = 0, high = space->hole_count - 1; /* the first hole behind is one of these */
    /* A value without elements took no room. */
    if (bytes == 0)
        return;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (space->holes[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    struct hole *behind = &space->holes[low], *before = behind - 1;
    bool meets_behind = offset + bytes == behind->offset,
         meets_before = low && before->offset + before->bytes == offset;
    if (meets_behind && meets_before) {
        before->bytes += bytes + behind->bytes;
        memmove(behind, behind + 1, (size_t)(--space->hole_count - low) * sizeof *behind);
    } else if (meets_behind) {
        *behind = (struct hole){offset, bytes + behind->bytes};
    } else if (meets_before) {
        before->bytes += bytes;
    } else {
        memmove(behind + 1, behind, (size_t)(space->hole_count++ - low) * sizeof *behind);
        *behind = (struct hole){offset, bytes};
    }
}

/* By number where they begin together, so that the layout is the same on each machine: qsort keeps no order. */
static int by_first(const void *a, const void *b) {
    const struct life *left = a, *right = b;
    return left->first != right->first ? left->first - right->first : left->value - right->value;
}

static int by_last(const void *a, const void *b) {
    const struct life *left = a, *right = b;
    return left->last != right->last ? left->last - right->last : left->value - right->value;
}

/* Whether the step that is the last to read an intermediate may write a result exactly there. Its family knows in which
   order its kernel reads and writes. */
static bool may_take_memory(const struct space *space, const struct life *life, int in) {
    const struct draft *draft = space->draft;
    const struct value *values = draft->graph->values;
    const struct step *step = &draft->steps[life->first];
    return values[in].tensor->is_virtual && draft->value_offset[in] >= 0 && !space->is_handed_on[in] &&
           draft->last_reading[in] == life->first && draft->first_writing[in] < life->first && !draft->is_viewed[in] &&
           !draft->is_viewed[life->value] && tensor_same_layout(values[in].tensor, values[life->value].tensor) &&
           step->family->may_alias && step->family->may_alias(step, in, life->value);
}

/* Has a large result made in the place of what its step reads last; false: nothing there can give way. */
static bool take_memory(struct space *space, struct life *life) {
    struct draft *draft = space->draft;
    const struct region *region = &draft->steps[life->first].region;
    for (int i = 0; i < region->count && life->bytes >= IN_PLACE_LEAST; i++)
        for (int k = 0; k < region_node(region, i)->operand_count; k++) {
            int in = region_node(region, i)->operands[k];
            if (region_node(region, i)->is_output[k] || !may_take_memory(space, life, in))
                continue;
            draft->value_offset[life->value] = draft->value_offset[in];
            space->is_handed_on[in] = life->is_in_place = true;
            return true;
        }
    return false;
}

/* Step by step: room for what a step makes, while that of all it reads is taken; then what it was the last to read
   goes. `ended` stays within the list: the life that is being placed has not ended yet, so one entry stops the loop. */
static weftStatus_t place_lives(struct space *space, struct arena *scratch) {
    struct draft *draft = space->draft;
    struct life *ending;
    int ended = 0;
    qsort(space->lives, (size_t)space->count, sizeof *space->lives, by_first);
    TRY(arena_copy(scratch, &ending, space->lives, (size_t)space->count * sizeof *ending));
    qsort(ending, (size_t)space->count, sizeof *ending, by_last);
    TRY(arena_alloc(scratch, &space->holes, (size_t)(space->count + 1) * sizeof *space->holes));
    space->holes[0].bytes = LAST_HOLE_BYTES;
    space->hole_count = 1;
    for (int i = 0; i < space->count; i++) {
        struct life *life = &space->lives[i];
        /* Strictly before: a step may not write over what it still reads. */
        for (; ending[ended].last < life->first; ended++)
            if (!space->is_handed_on[ending[ended].value])
                give_room(space, draft->value_offset[ending[ended].value], ending[ended].bytes);
        if (take_memory(space, life))
            continue;
        int64_t offset = take_room(space, life->bytes);
        if (offset < 0)
            FAIL(
                WEFT_STATUS_NOT_SUPPORTED,
                "engine %s: the graph's intermediate tensors take more than 2^62 bytes of workspace. Use smaller ones.",
                draft->engine->name);
        draft->value_offset[life->value] = offset;
        /* The scratch begins behind the highest intermediate. */
        if (offset + life->bytes > draft->scratch_offset)
            draft->scratch_offset = offset + life->bytes;
    }
    return WEFT_STATUS_SUCCESS;
}

/* What the worst step needs: all that lives then and its own scratch. No workspace of these steps in this order is
   smaller. A sweep over the steps with the change of each: linear in both, instead of all lives for each step. */
static weftStatus_t count_least(struct space *space, struct arena *scratch) {
    struct draft *draft = space->draft;
    int64_t *change, live = 0; /* of each step: bytes that begin to live, less those that ended before */
    TRY(arena_alloc(scratch, &change, ((size_t)draft->cover.count + 1) * sizeof *change));
    for (int i = 0; i < space->count; i++) {
        /* In the step that makes it in place, its memory is still counted as the other's. */
        change[space->lives[i].first + space->lives[i].is_in_place] += space->lives[i].bytes;
        change[space->lives[i].last + 1] -= space->lives[i].bytes;
    }
    for (int s = 0; s < draft->cover.count; s++) {
        live += change[s];
        draft->least_workspace_bytes =
            max64(draft->least_workspace_bytes, add_sizes(live, align_up(draft->steps[s].workspace_bytes)));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Scratch that this takes goes with its caller's arena. */
static weftStatus_t lay_out_values(struct draft *draft, struct arena *scratch) {
    struct space space = {.draft = draft};
    size_t values = (size_t)draft->graph->value_count;
    TRY(arena_alloc(scratch, &space.crosses, values * sizeof *space.crosses));
    TRY(arena_alloc(scratch, &space.is_handed_on, values * sizeof *space.is_handed_on));
    TRY(arena_alloc(scratch, &space.lives, values * sizeof *space.lives));
    note_accesses(&space);
    list_lives(&space);
    TRY(place_lives(&space, scratch));
    status_clear(); /* of families that may not write in place */
    return count_least(&space, scratch);
}

/* Offsets are multiples of WORKSPACE_ALIGNMENT, as sizes are rounded up to it. */
static weftStatus_t lay_out_workspace(struct draft *draft, struct arena *arena) {
    struct arena scratch = {0};
    int64_t most = 0;
    size_t values = (size_t)draft->graph->value_count;
    TRY(arena_alloc(arena, &draft->first_writing, values * sizeof *draft->first_writing));
    TRY(arena_alloc(arena, &draft->last_reading, values * sizeof *draft->last_reading));
    TRY(arena_alloc(arena, &draft->is_viewed, values * sizeof *draft->is_viewed));
    TRY(arena_alloc(arena, &draft->value_offset, values * sizeof *draft->value_offset));
    for (size_t v = 0; v < values; v++)
        draft->value_offset[v] = -1;
    weftStatus_t status = lay_out_values(draft, &scratch);
    arena_free(&scratch);
    for (int s = 0; s < draft->cover.count; s++)
        most = draft->steps[s].workspace_bytes > most ? draft->steps[s].workspace_bytes : most;
    /* Steps run one after another and share one scratch area, as large as the largest. */
    draft->workspace_bytes = add_sizes(draft->scratch_offset, align_up(most));
    return status;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* Counts the memory that a step reads and writes; counted: of each value, the step that counted it last. step + 1,
   since 0 is what the list begins with. */
static int64_t count_bytes(const struct draft *draft, int step, int *counted) {
    const struct region *region = &draft->steps[step].region;
    int64_t bytes = 0;
    for (int k = 0; k < region->count; k++)
        for (int i = 0; i < region_node(region, k)->operand_count; i++) {
            int value = region_node(region, k)->operands[i], whole = draft->cover.views.memory[value];
            /* Each once per step, however many of its operations read it. */
            bool in_memory = !draft->graph->values[whole].tensor->is_virtual || draft->value_offset[whole] >= 0 ||
                             draft->graph->values[value].tensor->is_gathered;
            if (in_memory && counted[value] != step + 1)
                bytes = add_sizes(bytes, tensor_own_bytes(draft->graph->values[value].tensor));
            counted[value] = step + 1;
        }
    return bytes;
}

/* step_bytes and moved_bytes are for reports alone. */
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

/* The steps of a cover: each is built by its family, then all get their places in the workspace. Time is the sum of the
   steps', as they run one after another. */
static weftStatus_t draft_steps(struct draft *draft, const struct knob_choices *knobs, struct arena *arena) {
    draft->graph = draft->cover.views.graph;
    TRY(arena_alloc(arena, &draft->steps, (size_t)draft->cover.count * sizeof *draft->steps));
    for (int s = 0; s < draft->cover.count; s++) {
        const struct part *part = &draft->cover.parts[s];
        struct step *step = &draft->steps[s];
        *step = (struct step){.family = part->family,
                              .region = part->region,
                              .before = s > 0 ? step - 1 : NULL,
                              .seconds = part->seconds};
        TRY(part->family->build(step, &draft->device, knobs, arena));
        draft->seconds += step->seconds;
    }
    status_clear(); /* of those that a family asked before the one that serves it */
    TRY(lay_out_workspace(draft, arena));
    return count_moved(draft, arena);
}

/* A draft whose steps each take no more scratch than the limit. */
static weftStatus_t draft_within(struct draft *draft, const struct graph *graph, const struct knob_choices *knobs,
                                 int64_t scratch_limit, struct arena *arena) {
    /* Afresh: the draft before was of another cover. */
    *draft = (struct draft){.engine = draft->engine, .device = draft->device};
    TRY(partition(&draft->cover, graph, draft->engine, &draft->device, knobs, scratch_limit, arena));
    return draft_steps(draft, knobs, arena);
}

/* Drafts again, within a limit of the whole workspace that the best draft is beyond: without steps that take more, then
   with sums in one piece, then with what intermediate tensors leave of it. */
static weftStatus_t draft_small(struct draft *draft, const struct graph *graph, const struct knob_choices *knobs,
                                int64_t limit, struct arena *arena) {
    const struct engine *engine = draft->engine;
    int64_t wanted = draft->workspace_bytes, scratch = limit;
    struct knob_choices whole = {.count = knobs->count + 1};
    struct knob_choice *items;
    /* A split-K of 1 costs time and saves the workspace of partial sums. */
    TRY(arena_alloc(arena, &items, (size_t)whole.count * sizeof *items));
    for (int i = 0; i < knobs->count; i++)
        items[i] = knobs->items[i];
    items[knobs->count] = (struct knob_choice){.type = WEFT_KNOB_TYPE_SPLIT_K, .value = 1};
    whole.items = items; /* what comes first of a kind counts */
    for (int attempt = 0; attempt < 3; attempt++) {
        /* First with the knobs as they are, then twice with whole sums. */
        weftStatus_t status = draft_within(draft, graph, attempt ? &whole : knobs, scratch, arena);
        /* Any other failure is no answer yet: the next attempt asks for something else. */
        if (status == WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED)
            return status;
        if (!status && draft->workspace_bytes <= limit)
            return WEFT_STATUS_SUCCESS;
        if (attempt)
            /* Intermediate tensors come first: what they leave of the limit is what steps may take. */
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
