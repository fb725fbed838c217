/* SPDX-License-Identifier: Apache-2.0 */
/* Searches for the cheapest cover of a graph. Several covers are computed and compared: with views and with copies
   instead of views, with regrouped products, and, if the graph is not large, without the views of one memory, without
   one family, and with batch norms in parts. */
#include "graph/batch_norms.h"
#include "graph/intermediate_types.h"
#include "graph/movement_types.h"
#include "graph/patterns/assumptions.h"
#include "graph/regroup.h"
#include "plan/partition/cover.h"

#include <string.h>

enum { SEARCH_NODES = 512 }; /* budget for all covers after the first two, in nodes */

/* One of the covers that are compared. Attempts are on the stack; their lists are in the plan's arena. */
struct attempt {
    struct partitioning p;
    struct views views;
    double seconds;
};

static weftStatus_t attempt_cover(struct attempt *out, const struct partitioning *like, const struct views *views) {
    out->views = *views;
    out->seconds = 0;
    TRY(cover_graph(&out->p, like, views));
    for (int i = 0; i < out->p.part_count; i++)
        out->seconds += out->p.parts[i].seconds;
    return WEFT_STATUS_SUCCESS;
}

/* Number of parts served by a last resort. The cost of a last resort is not meaningful, so a cover with more of them is
   never preferred. */
static int last_resorts(const struct attempt *attempt) {
    int count = 0;
    for (int i = 0; i < attempt->p.part_count; i++)
        count += attempt->p.parts[i].family->is_last_resort;
    return count;
}

/* Replaces the best attempt if the other one is cheaper. */
static void update_best(struct attempt *best, weftStatus_t status, const struct attempt *other) {
    if (!status && last_resorts(other) <= last_resorts(best) && other->seconds < best->seconds)
        *best = *other;
}

/* For each memory that has views or is gathered, tries a cover without these views. */
static weftStatus_t attempt_without_views(struct attempt *best, const struct partitioning *like,
                                          const struct graph *graph, const bool *may_gather, int *budget) {
    const int nodes = graph->node_count;
    bool *is_apart, *is_tried;
    TRY(arena_alloc(like->arena, &is_apart, (size_t)graph->value_count * sizeof *is_apart));
    TRY(arena_alloc(like->arena, &is_tried, (size_t)graph->value_count * sizeof *is_tried));
    const struct view_choices choices = {.is_apart = is_apart, .may_gather = may_gather};
    /* The budget counts nodes, because the time of an attempt is proportional to them. */
    for (int v = 0; v < graph->value_count && *budget >= nodes; v++) {
        int memory = best->views.memory[v];
        double before = best->seconds;
        struct attempt other;
        struct views views;
        if ((memory == v && !best->views.graph->values[v].tensor->is_gathered) || is_tried[memory])
            continue;
        is_tried[memory] = is_apart[memory] = true;
        *budget -= nodes;
        TRY(views_find(&views, graph, &choices, like->arena));
        update_best(best, attempt_cover(&other, like, &views), &other);
        is_apart[memory] = best->seconds < before;
    }
    return WEFT_STATUS_SUCCESS;
}

/* True if a family of the engine might read a value as parts at separate addresses when it serves this node. */
static bool may_read_parts(const struct engine *engine, const struct graph *graph, int node, int value) {
    for (int f = 0; engine->families[f]; f++)
        if (engine->families[f]->gathers && engine->families[f]->gathers(graph, node, value))
            return true;
    return false;
}

/* Per value: true if it is a concatenation and all its consumers might read its parts in place. NULL if no value is. */
static weftStatus_t find_gatherable(const bool **out, const struct partitioning *like, const struct graph *graph) {
    bool *flags = NULL;
    for (int v = 0; v < graph->value_count; v++) {
        const struct value *value = &graph->values[v];
        bool can_gather =
            value->producer >= 0 && op_of(graph->nodes[value->producer].op) == &concat_op && value->readers > 0;
        for (int r = 0; r < value->readers && can_gather; r++)
            can_gather = may_read_parts(like->engine, graph, value->read_by[r], v);
        if (can_gather && !flags)
            TRY(arena_alloc(like->arena, &flags, (size_t)graph->value_count * sizeof *flags));
        if (can_gather)
            flags[v] = true;
    }
    *out = flags;
    return WEFT_STATUS_SUCCESS;
}

/* Tries a cover without gathering: parts of a concatenation are produced in place or copied. */
static weftStatus_t attempt_without_gather(struct attempt *best, weftStatus_t status, const struct partitioning *like,
                                           const struct graph *graph) {
    struct views views;
    struct attempt other;
    TRY(views_find(&views, graph, &(struct view_choices){0}, like->arena));
    weftStatus_t count = attempt_cover(&other, like, &views);
    if (status)
        *best = other;
    else
        update_best(best, count, &other);
    return status ? count : WEFT_STATUS_SUCCESS;
}

/* Compares a cover with views, where they pay off, with a cover that copies instead, since a family may fuse the
   copies. */
static weftStatus_t attempt_views(struct attempt *best, const struct partitioning *like, const struct graph *graph,
                                  int *budget) {
    struct views views;
    struct attempt copies;
    const bool *may_gather;
    TRY(find_gatherable(&may_gather, like, graph));
    TRY(views_find(&views, graph, &(struct view_choices){.may_gather = may_gather}, like->arena));
    weftStatus_t status = attempt_cover(best, like, &views);
    if (views.gathered) { /* families only declare that they might gather; in a fused region they may still decline */
        may_gather = status ? NULL : may_gather;
        status = attempt_without_gather(best, status, like, graph);
    }
    /* Without views, a cover with copies would be the same. */
    if (views.graph == graph)
        return status;
    if (!status)
        TRY(attempt_without_views(best, like, graph, may_gather, budget));
    TRY(views_none(&views, graph, like->arena));
    weftStatus_t other = attempt_cover(&copies, like, &views);
    /* The graph may be served with copies even if it is declined with views. */
    if (status)
        *best = copies;
    else
        update_best(best, other, &copies);
    return status ? other : WEFT_STATUS_SUCCESS;
}

/* Tries covers without one of the families in use: a region that was the cheapest where it started may have made others
   more expensive. */
static void attempt_without(struct attempt *best, const struct partitioning *like, int *budget) {
    for (int i = 0; i < best->p.part_count && *budget >= best->p.graph->node_count; i++) {
        struct partitioning p = *like;
        struct attempt other;
        /* A last resort cannot be replaced. */
        bool is_tried = best->p.parts[i].family->is_last_resort;
        for (int k = 0; k < i; k++)
            is_tried = is_tried || best->p.parts[k].family == best->p.parts[i].family;
        if (is_tried)
            continue;
        *budget -= best->p.graph->node_count;
        p.excluded = best->p.parts[i].family;
        update_best(best, attempt_cover(&other, &p, &best->views), &other);
    }
}

/* Tries a cover of the graph in which products have the dimensions of the results that are reshaped from theirs. */
static weftStatus_t attempt_regrouped(struct attempt *best, const struct partitioning *like, const struct graph *graph,
                                      int *budget) {
    struct attempt other;
    const struct graph *regrouped;
    TRY(regroup_products(&regrouped, graph, best->p.owner, like->arena));
    if (regrouped != graph)
        update_best(best, attempt_views(&other, like, regrouped, budget), &other);
    return WEFT_STATUS_SUCCESS;
}

/* Finds the cheapest of several covers. Each takes time linear in the number of operations; SEARCH_NODES limits how
   many are tried after the first two. */
static weftStatus_t search_cover(struct attempt *best, const struct partitioning *like, const struct graph *graph) {
    int budget = SEARCH_NODES;
    TRY(attempt_views(best, like, graph, &budget));
    if (best->p.part_count > 1)
        TRY(attempt_regrouped(best, like, graph, &budget));
    if (best->p.part_count > 1)
        attempt_without(best, like, &budget);
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

/* Tries a cover in which some batch norms are split into statistics and normalization. */
static weftStatus_t attempt_split(bool *is_better, struct attempt *best, const struct partitioning *like,
                                  const struct graph *graph, const bool *is_apart) {
    int budget = 0;
    double before = best->seconds;
    struct attempt other;
    const struct graph *split;
    TRY(batch_norms_part(&split, graph, is_apart, like->arena));
    update_best(best, attempt_views(&other, like, split, &budget), &other);
    status_clear();
    *is_better = best->seconds < before;
    return WEFT_STATUS_SUCCESS;
}

/* Splits all batch norms that can be split, if that is cheaper; then toggles them one by one, within SEARCH_NODES. */
static weftStatus_t search_split_batch_norms(struct attempt *best, const struct partitioning *like,
                                             const struct graph *graph) {
    bool *is_apart, is_better;
    int count = 0, budget = SEARCH_NODES;
    TRY(arena_alloc(like->arena, &is_apart, (size_t)graph->node_count * sizeof *is_apart));
    for (int n = 0; n < graph->node_count; n++)
        count += is_apart[n] = batch_norm_has_parts(graph, n) && graph_needs(graph, &graph->nodes[n]);
    if (count == 0)
        return WEFT_STATUS_SUCCESS;
    TRY(attempt_split(&is_better, best, like, graph, is_apart));
    if (!is_better)
        memset(is_apart, 0, (size_t)graph->node_count * sizeof *is_apart);
    for (int n = 0; n < graph->node_count && budget >= graph->node_count; n++) {
        if (!batch_norm_has_parts(graph, n))
            continue;
        is_apart[n] = !is_apart[n];
        TRY(attempt_split(&is_better, best, like, graph, is_apart));
        if (!is_better)
            is_apart[n] = !is_apart[n];
        budget -= graph->node_count;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Copies an engine without the families whose bits are set. */
static weftStatus_t exclude_families(const struct engine **engine, int64_t bits, struct arena *arena) {
    const struct family *const *const all = (*engine)->families, **remaining;
    struct engine *smaller;
    int count = 0, remaining_count = 0;
    while (all[count])
        count++;
    TRY(arena_alloc(arena, &remaining, ((size_t)count + 1) * sizeof *remaining));
    /* Families beyond the knob's bits cannot be excluded. */
    for (int f = 0; f < count; f++)
        if (f >= WITHOUT_FAMILIES_BITS || !(bits >> f & 1))
            remaining[remaining_count++] = all[f];
    TRY(arena_copy(arena, &smaller, *engine, sizeof *smaller));
    smaller->families = remaining;
    *engine = smaller;
    return WEFT_STATUS_SUCCESS;
}

/* Numbers the parts in execution order. Views and dead nodes belong to no part. */
static weftStatus_t finish_cover(struct cover *cover, struct attempt *attempt) {
    struct partitioning *p = &attempt->p;
    int *order, *positions;
    /* order: part by position; position: its inverse. */
    TRY(arena_alloc(p->arena, &order, (size_t)p->graph->node_count * sizeof *order));
    TRY(arena_alloc(p->arena, &positions, (size_t)p->graph->node_count * sizeof *positions));
    list_order(p, order);
    *cover = (struct cover){.views = attempt->views, .count = p->part_count, .part_of_node = p->owner};
    TRY(arena_alloc(p->arena, &cover->parts, (size_t)p->part_count * sizeof *cover->parts));
    for (int i = 0; i < p->part_count; i++) {
        positions[order[i]] = i;
        cover->parts[i] = p->parts[order[i]];
        /* Reasons are only collected for the chosen cover, because asking all families again is expensive. */
        TRY(collect_refusals(p, &cover->parts[i], cover->parts[i].region.nodes[0], cover->parts[i].family));
    }
    for (int n = 0; n < p->graph->node_count; n++)
        p->owner[n] = p->owner[n] >= 0 ? positions[p->owner[n]] : -1;
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t partition(struct cover *cover, const struct graph *graph, const struct engine *engine,
                       const struct device *device, const struct knob_choices *knobs, int64_t scratch_limit,
                       struct arena *arena) {
    struct partitioning p = {
        .engine = engine, .device = device, .knobs = knobs, .scratch_limit = scratch_limit, .arena = arena};
    if (engine->device != device->kind)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
             "engine %s runs on %s devices, the device is %s:%d. Use another engine, or give a handle or device "
             "properties of such a device.",
             engine->name, device_kind_name(engine->device), device_kind_name(device->kind), (int)device->ordinal);
    /* The bits refer to the engine's full list, so families are excluded first. */
    int64_t excluded = knob_value(knobs, WEFT_KNOB_TYPE_WITHOUT_FAMILIES_EXT);
    if (excluded)
        TRY(exclude_families(&p.engine, excluded, arena));
    struct attempt best;
    TRY(graph_check_closed(graph));
    if (engine->assumes_numbers)
        TRY(graph_assume(&graph, graph, arena));
    if (engine->stores_narrow)
        TRY(infer_intermediate_types(&graph, graph, arena));
    TRY(infer_movement_types(&graph, graph, arena));
    if (engine->parts_batch_norms)
        TRY(batch_norms_find(&graph, graph, arena));
    TRY(search_cover(&best, &p, graph));
    if (engine->parts_batch_norms)
        TRY(search_split_batch_norms(&best, &p, graph));
    return finish_cover(cover, &best);
}
