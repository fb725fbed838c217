/* SPDX-License-Identifier: Apache-2.0 */
/* Covers a graph with regions. At each unassigned node, every family that accepts it grows a candidate region, and the
   cheapest candidate becomes a part; its cost includes the nodes that other candidates would serve and it does not.
   Each step only looks at regions and the nodes around them, so the time for a cover is linear in the number of
   operations. */
#include "plan/partition/cover.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- State ------------------------------------------------------------------------------------------------------- */

/* Arena memory is zeroed. */
static weftStatus_t allocate_lists(struct partitioning *p) {
    size_t nodes = (size_t)p->graph->node_count;
    TRY(arena_alloc(p->arena, &p->owner, nodes * sizeof *p->owner));
    TRY(arena_alloc(p->arena, &p->parts, (nodes + 1) * sizeof *p->parts));
    TRY(arena_alloc(p->arena, &p->rejected, nodes * sizeof *p->rejected));
    int **lists[] = {&p->nodes, &p->grown,    &p->adjacent,    &p->all,    &p->rest_nodes,
                     &p->group, &p->position, &p->at_position, &p->reached};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        TRY(arena_alloc(p->arena, lists[i], nodes * sizeof **lists[i]));
    TRY(arena_alloc(p->arena, &p->is_adjacent, nodes * sizeof *p->is_adjacent));
    TRY(arena_alloc(p->arena, &p->is_inside, nodes * sizeof *p->is_inside));
    TRY(arena_alloc(p->arena, &p->single_seconds, nodes * sizeof *p->single_seconds));
    TRY(arena_alloc(p->arena, &p->mark, nodes * sizeof *p->mark));
    /* Initially each node is its own group, in graph order. */
    for (int n = 0; n < p->graph->node_count; n++)
        p->group[n] = p->position[n] = p->at_position[n] = n;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

static weftStatus_t cover_nodes(struct partitioning *p);

/* Computes the time of a region when it is covered with all families except the one that would serve it as a whole. The
   result is in the arena of `separate`, which the caller frees. Nodes after whole.count represent outside consumers
   (region_extract) and are not served. */
static weftStatus_t cover_separately(struct partitioning *separate, const struct partitioning *p,
                                     const struct part *part, double *seconds) {
    struct region subgraph;
    const int *outer;
    TRY(region_extract(&subgraph, &outer, &part->region, separate->arena));
    separate->graph = subgraph.graph;
    TRY(allocate_lists(separate));
    for (int n = 0; n < subgraph.graph->node_count; n++)
        separate->owner[n] = n < subgraph.count ? p->owner[part->region.nodes[n]] : NOT_NEEDED;
    TRY(cover_nodes(separate));
    *seconds = 0;
    for (int n = 0; n < subgraph.count; n++)
        *seconds = separate->owner[n] == UNASSIGNED ? INFINITY : *seconds;
    for (int i = 0; i < separate->part_count; i++)
        *seconds += separate->parts[i].seconds;
    return WEFT_STATUS_SUCCESS;
}

/* Decides whether a region that a family would rewrite as one operation is cheaper in several steps. The comparison of
   candidates cannot see that, because it does not account for fusion among the steps. Only for families that combine
   operations. If planning the steps fails, *is_cheaper is false and the failure is returned. */
static weftStatus_t check_separate(bool *is_cheaper, struct partitioning *p, const struct part *part, int seed) {
    double seconds;
    struct arena arena = {0};
    struct partitioning separate = {.engine = p->engine,
                                    .device = p->device,
                                    .knobs = p->knobs,
                                    .scratch_limit = p->scratch_limit,
                                    .excluded = part->family,
                                    .arena = &arena};
    *is_cheaper = false;
    if (!part->family->combines || !part->family->companions)
        return WEFT_STATUS_SUCCESS;
    weftStatus_t status = cover_separately(&separate, p, part, &seconds);
    arena_free(&arena);
    *is_cheaper = !status && seconds < part->seconds;
    if (!*is_cheaper)
        return status;
    p->rejected[seed].family = part->family->name;
    return arena_print(p->arena, &p->rejected[seed].reason, "%s: predicted time %.3g us, %.3g us in separate steps",
                       descriptor_label(p->graph->nodes[seed].op), part->seconds * 1e6, seconds * 1e6);
}

/* The cheapest region that starts at a node; NULL if the f-th family declines, so that a later one starts here. Most of
   the regions that are tried are declined, and no reason is read: reasons are collected when the cover is chosen. */
static weftStatus_t choose_candidate(const struct candidate **best, struct partitioning *p, int f, int seed) {
    bool before = status_quiet(true);
    weftStatus_t status = find_candidates(p, f, seed);
    *best = !status && p->candidate_count > 0 ? cheapest_candidate(p) : NULL;
    status_quiet(before);
    return status;
}

/* Adds a part that starts at an unassigned node with the f-th family, if it accepts the node. p->parts has room for one
   part per node. */
static weftStatus_t start_part(struct partitioning *p, int f, int seed) {
    const struct candidate *best;
    bool is_cheaper;
    TRY(choose_candidate(&best, p, f, seed));
    if (!best)
        return WEFT_STATUS_SUCCESS;
    TRY(check_separate(&is_cheaper, p, &best->part, seed));
    /* The node stays unassigned, for later families. */
    if (is_cheaper)
        return WEFT_STATUS_SUCCESS;
    p->parts[p->part_count] = best->part;
    TRY(list_rivals(p, best));
    /* From here on, the part is one group in the execution order. */
    join_groups(p, &best->part.region);
    for (int i = 0; i < best->part.region.count; i++)
        p->owner[best->part.region.nodes[i]] = p->part_count;
    p->part_count++;
    return WEFT_STATUS_SUCCESS;
}

/* Family by family, then node by node: a family starts regions at all nodes before the next one is considered. Nodes
   that remain unassigned are served by no family of the engine. */
static weftStatus_t cover_nodes(struct partitioning *p) {
    for (int f = 0; p->engine->families[f]; f++)
        for (int n = 0; n < p->graph->node_count; n++)
            if (p->owner[n] == UNASSIGNED)
                TRY(start_part(p, f, n));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Relaxations ------------------------------------------------------------------------------------------------- */

/* A quick test that only looks at single nodes: true if the family might use an allowed relaxation for one that is in a
   part, or in none yet. */
static bool may_relax(const struct partitioning *p, const struct family *family) {
    for (int n = 0; n < p->graph->node_count && family->relaxes; n++)
        if ((p->owner[n] == UNASSIGNED || p->owner[n] >= 0) && family->relaxes(p->graph, n) & p->engine->allow)
            return true;
    return false;
}

static weftStatus_t fail_without_relaxation(const struct partitioning *p) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "engine %s: no operation of %s would be %s.", p->engine->name,
         descriptor_label(&p->graph->base),
         p->engine->allow & RELAX_TF32 ? "rounded to fewer bits" : "summed nondeterministically");
}

/* Fails before planning what an engine without relaxations would do as well. */
static weftStatus_t check_request(const struct partitioning *p) {
    bool may = !p->engine->allow;
    for (int f = 0; p->engine->families[f] && !may; f++)
        may = may_relax(p, p->engine->families[f]);
    if (!may)
        return fail_without_relaxation(p);
    /* cuDNN and cuBLAS read this variable, too: if tf32 is forbidden there, that applies to all libraries. */
    const char *override = getenv("NVIDIA_TF32_OVERRIDE");
    if (p->engine->allow & RELAX_TF32 && override && strcmp(override, "0") == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "NVIDIA_TF32_OVERRIDE=0 forbids narrowing floats to tf32. Unset it.");
    return WEFT_STATUS_SUCCESS;
}

/* Declines a cover that uses no relaxation, because an engine without them would produce the same. If there is a single
   part, the reason of the last family that has the relaxation, which is the most general one, is more informative than
   the general message. */
static weftStatus_t check_relaxation(struct partitioning *p) {
    bool is_used = !p->engine->allow;
    for (int i = 0; i < p->part_count; i++)
        is_used = is_used || p->parts[i].used;
    if (is_used)
        return WEFT_STATUS_SUCCESS;
    weftStatus_t declined = WEFT_STATUS_SUCCESS;
    for (int f = 0; p->part_count == 1 && p->engine->families[f]; f++) {
        struct offer offer = {0};
        if (!may_relax(p, p->engine->families[f]))
            continue;
        weftStatus_t status = p->engine->families[f]->accepts(&p->parts[0].region, p->device, &offer);
        declined = status ? status : offer.declined;
    }
    return declined ? declined : fail_without_relaxation(p);
}

/* ---- Covers ------------------------------------------------------------------------------------------------------ */

/* Assigns all live nodes. */
static weftStatus_t assign_nodes(struct partitioning *p) {
    TRY(check_request(p));
    TRY(cover_nodes(p));
    for (int n = 0; n < p->graph->node_count; n++)
        if (p->owner[n] == UNASSIGNED)
            return fail_for_node(p, n);
    if (p->part_count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s computes nothing: every tensor that it writes is virtual. Mark an output.",
             descriptor_label(&p->graph->base));
    return check_relaxation(p);
}

/* Dead nodes are in no part, and regions never grow into them. Views execute nothing. */
weftStatus_t cover_graph(struct partitioning *p, const struct partitioning *like, const struct views *views) {
    *p = *like;
    p->graph = views->graph;
    TRY(allocate_lists(p));
    for (int n = 0; n < p->graph->node_count; n++)
        p->owner[n] = !graph_needs(p->graph, &p->graph->nodes[n]) ? NOT_NEEDED : views->is_view[n] ? VIEW : UNASSIGNED;
    return assign_nodes(p);
}
