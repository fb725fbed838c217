/* SPDX-License-Identifier: Apache-2.0 */
/* Workspace layout: intermediates first, which reuse the memory of dead ones, then one scratch area that all steps
   share. A large result is stored in place of an operand if its step is the operand's last reader and its family allows
   it. */
#include "plan/workspace.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

/* Lifetime of an intermediate: from the step that produces it to the last step that reads it. */
struct life {
    int value;
    /* Steps are numbered in execution order. */
    int first, last;
    int64_t bytes;
    bool is_in_place; /* stored in place of an operand that dies in its first step */
};

/* A free range of the workspace. */
struct hole {
    int64_t offset, bytes;
};

/* State of the layout. Everything except `draft` is released when the layout is done. */
struct space {
    struct draft *draft;
    bool *crosses_steps; /* per value: read by a step other than its producer */
    bool *is_reused;     /* per value: its memory passes to another value at the end of its life */
    /* Sorted by `first` after list_lives. */
    struct life *lives;
    int count;
    struct hole *holes; /* sorted by offset; the last one is unbounded */
    int hole_count;
};

/* Smallest result in bytes for which in-place storage is considered. */
enum { IN_PLACE_LEAST = 1 << 16 };

/* Small enough that adding an offset and a size cannot overflow. */
#define LAST_HOLE_BYTES (INT64_C(1) << 62)

/* Rounds a size up, so that every offset is a multiple of WORKSPACE_ALIGNMENT. */
static int64_t align_up(int64_t bytes) { return round_up(bytes, WORKSPACE_ALIGNMENT); }

/* The step that produces a value, or -1 for inputs and results of views. */
static int producing_step(const struct draft *draft, int value) {
    int producer = draft->graph->values[value].producer;
    return producer < 0 ? -1 : draft->cover.part_of_node[producer];
}

/* Reading a gathered value, which has no memory of its own, reads all its parts. */
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
    /* Within one step a value may stay in registers; that is up to the family. */
    if (step != producing_step(draft, operand))
        space->crosses_steps[value] = true;
}

static void note_writing(const struct draft *draft, int step, int operand) {
    int value = draft->cover.views.memory[operand];
    if (draft->first_writing[value] < 0 || step < draft->first_writing[value])
        draft->first_writing[value] = step;
}

/* Computes first_writing, last_reading and is_viewed of the draft, and crosses_steps. Linear in the number of operands.
   */
static void note_accesses(struct space *space) {
    const struct draft *draft = space->draft;
    for (int v = 0; v < draft->graph->value_count; v++)
        draft->first_writing[v] = draft->last_reading[v] = -1;
    for (int n = 0; n < draft->graph->node_count; n++) {
        const struct node *node = &draft->graph->nodes[n];
        /* Negative if no step executes this node. */
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
        /* Other tensors are stored in the user's memory, and a view in the memory of its source. */
        if (tensor->is_virtual && draft->cover.views.memory[v] == v && space->crosses_steps[v])
            space->lives[space->count++] = (struct life){.value = v,
                                                         .first = draft->first_writing[v],
                                                         .last = draft->last_reading[v],
                                                         .bytes = align_up(tensor_bytes(tensor))};
    }
}

/* Allocates at the lowest offset with enough space; -1 if no hole is large enough. */
static int64_t allocate_range(struct space *space, int64_t bytes) {
    int at = 0;
    while (at < space->hole_count && space->holes[at].bytes < bytes)
        at++;
    if (at == space->hole_count)
        return -1;
    struct hole *hole = &space->holes[at];
    int64_t offset = hole->offset;
    hole->offset += bytes;
    /* The rest of the hole keeps its position in the list. */
    hole->bytes -= bytes;
    if (hole->bytes == 0)
        memmove(hole, hole + 1, (size_t)(--space->hole_count - at) * sizeof *hole);
    return offset;
}

/* Holes stay sorted and are merged when adjacent, so there is at most one more hole than there are lives. */
static void free_range(struct space *space, int64_t offset, int64_t bytes) {
    int low = 0, high = space->hole_count - 1; /* binary search for the first hole after the range */
    /* Empty tensors allocated nothing. */
    if (bytes == 0)
        return;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (space->holes[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    struct hole *next = &space->holes[low], *previous = next - 1;
    bool meets_next = offset + bytes == next->offset,
         meets_previous = low && previous->offset + previous->bytes == offset;
    if (meets_next && meets_previous) {
        previous->bytes += bytes + next->bytes;
        memmove(next, next + 1, (size_t)(--space->hole_count - low) * sizeof *next);
    } else if (meets_next) {
        *next = (struct hole){offset, bytes + next->bytes};
    } else if (meets_previous) {
        previous->bytes += bytes;
    } else {
        memmove(next + 1, next, (size_t)(space->hole_count++ - low) * sizeof *next);
        *next = (struct hole){offset, bytes};
    }
}

/* Ties are broken by value number, because qsort is not stable and the layout must not depend on the C library. */
static int by_first(const void *a, const void *b) {
    const struct life *left = a, *right = b;
    return left->first != right->first ? left->first - right->first : left->value - right->value;
}

static int by_last(const void *a, const void *b) {
    const struct life *left = a, *right = b;
    return left->last != right->last ? left->last - right->last : left->value - right->value;
}

/* True if `life` may be stored exactly over operand `in`, whose last reader is the step that produces `life`. The
   family decides, because only it knows the order in which its kernel reads and writes. */
static bool may_reuse_operand(const struct space *space, const struct life *life, int in) {
    const struct draft *draft = space->draft;
    const struct value *values = draft->graph->values;
    const struct step *step = &draft->steps[life->first];
    return values[in].tensor->is_virtual && draft->value_offset[in] >= 0 && !space->is_reused[in] &&
           draft->last_reading[in] == life->first && draft->first_writing[in] < life->first && !draft->is_viewed[in] &&
           !draft->is_viewed[life->value] && tensor_same_layout(values[in].tensor, values[life->value].tensor) &&
           step->family->may_alias && step->family->may_alias(step, in, life->value);
}

/* Stores a large result in place of an operand that dies in its step. False if no operand qualifies. */
static bool reuse_operand(struct space *space, struct life *life) {
    struct draft *draft = space->draft;
    const struct region *region = &draft->steps[life->first].region;
    for (int i = 0; i < region->count && life->bytes >= IN_PLACE_LEAST; i++)
        for (int k = 0; k < region_node(region, i)->operand_count; k++) {
            int in = region_node(region, i)->operands[k];
            if (region_node(region, i)->is_output[k] || !may_reuse_operand(space, life, in))
                continue;
            draft->value_offset[life->value] = draft->value_offset[in];
            space->is_reused[in] = life->is_in_place = true;
            return true;
        }
    return false;
}

/* Assigns offsets in execution order. Results are allocated before the operands of their step are released. `ended`
   needs no bounds check: the life being placed has not ended, so it stops the loop. */
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
        /* Strictly less: a step must not overwrite memory that it still reads. */
        for (; ending[ended].last < life->first; ended++)
            if (!space->is_reused[ending[ended].value])
                free_range(space, draft->value_offset[ending[ended].value], ending[ended].bytes);
        if (reuse_operand(space, life))
            continue;
        int64_t offset = allocate_range(space, life->bytes);
        if (offset < 0)
            FAIL(WEFT_STATUS_NOT_SUPPORTED,
                 "engine %s: the graph's intermediate tensors need more than 2^62 bytes of workspace. Use smaller "
                 "tensors.",
                 draft->engine->name);
        draft->value_offset[life->value] = offset;
        /* Scratch starts after the highest intermediate. */
        if (offset + life->bytes > draft->scratch_offset)
            draft->scratch_offset = offset + life->bytes;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Computes the smallest workspace with which these steps can run in this order: the maximum over steps of the live
   bytes plus the step's scratch. One sweep over the changes per step, instead of visiting all lives for each step. */
static weftStatus_t count_least(struct space *space, struct arena *scratch) {
    struct draft *draft = space->draft;
    int64_t *change, live = 0; /* per step: bytes that become live minus bytes that died in the step before */
    TRY(arena_alloc(scratch, &change, ((size_t)draft->cover.count + 1) * sizeof *change));
    for (int i = 0; i < space->count; i++) {
        /* A value stored in place counts from the next step on; in this one its memory still counts as the operand's.
           */
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

/* Arrays that only the layout needs are allocated in `scratch`. */
static weftStatus_t lay_out_values(struct draft *draft, struct arena *scratch) {
    struct space space = {.draft = draft};
    size_t values = (size_t)draft->graph->value_count;
    TRY(arena_alloc(scratch, &space.crosses_steps, values * sizeof *space.crosses_steps));
    TRY(arena_alloc(scratch, &space.is_reused, values * sizeof *space.is_reused));
    TRY(arena_alloc(scratch, &space.lives, values * sizeof *space.lives));
    note_accesses(&space);
    list_lives(&space);
    TRY(place_lives(&space, scratch));
    status_clear(); /* discard the refusals of families that do not write in place */
    return count_least(&space, scratch);
}

weftStatus_t workspace_lay_out(struct draft *draft, struct arena *arena) {
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
    /* Steps run one after another and share one scratch area, which is as large as the largest request. */
    draft->workspace_bytes = add_sizes(draft->scratch_offset, align_up(most));
    return status;
}
