/* SPDX-License-Identifier: Apache-2.0 */
/* Covers a graph with regions. At each unassigned node, every family that accepts it grows a candidate region over
   adjacent nodes, as long as the family accepts the larger region, the region costs no more than its parts, and no
   cycle arises. The cheapest candidate becomes a part; its cost includes the nodes that other candidates would serve
   and it does not. Each step only looks at regions and the nodes around them, so the time for a cover is linear in the
   number of operations. Several covers are computed and the cheapest is used: with views and with copies instead of
   views, and, if the graph is not large, without the views of one memory and without one family. */
#include "plan/partition.h"
#include "base/number.h"
#include "base/text.h"
#include "graph/batch_norms.h"
#include "graph/intermediate_types.h"

#include <math.h>
#include <string.h>

/* Values of `owner` for nodes without a part: not assigned yet; no consumer of its results; its result is a view of
   other memory. */
enum { UNASSIGNED = -1, NOT_NEEDED = -2, VIEW = -3 };
enum {
    JOINED_MAX = 8,      /* operations added at once */
    SHARED_MAX = 8,      /* consumers of a value up to which they count as adjacent to each other */
    DROPPED_MAX = 8,     /* operations dropped at once */
    READERS_MAX = 8,     /* outside consumers of dropped operations */
    CANDIDATES_MAX = 64, /* two per family */
};

/* A region that a family would serve. */
struct candidate {
    struct part part;
    double seconds; /* including the nodes of other candidates that this one leaves out */
};

/* State of one cover of one graph. All lists have one entry per node and are allocated once; each function that sets
   flags and marks clears them again. */
struct partitioning {
    const struct graph *graph;
    const struct engine *engine;
    const struct device *device;
    const struct knob_choices *knobs;
    int64_t scratch_limit;         /* per part; INT64_MAX: none */
    const struct family *excluded; /* a family that is not asked; NULL: all are */
    struct arena *arena;
    int *owner; /* per node: its part, or one of the values above */
    struct part *parts;
    int part_count;

    /* The consumers of a value: readers[reader_start[value]] to readers[reader_start[value + 1] - 1], in order. */
    int *reader_start, *readers;

    /* The candidates at a node. The last one is growing. */
    struct candidate candidates[CANDIDATES_MAX];
    int candidate_count;
    int *nodes, *grown; /* nodes of the growing region, and its nodes before the current attempt */
    int *adjacent;      /* adjacent nodes of the growing region, in order */
    int adjacent_count;
    bool shares_reads;             /* the growing region's family fuses operations that share only inputs */
    bool *is_adjacent, *is_inside; /* per node */
    int *all, *rest_nodes;  /* union of the candidates' nodes, and the nodes that one candidate leaves out, in order */
    double *single_seconds; /* per node: time as a region of one node; 0: unknown, INFINITY: not accepted */
    struct refusal *rejected; /* per node: the combining family that was rejected as slower than separate steps */

    /* An order in which groups (parts and single nodes) can run. The name of a group is one of its nodes. */
    int *group;       /* per node: its group */
    int *position;    /* per group: its position in the order */
    int *at_position; /* per position: its group, or -1 if that group was merged into another */
    int *reached;     /* scratch of join_groups */
    char *mark;       /* scratch of join_groups, per group: see enum mark */
};

/* ---- Querying a family ------------------------------------------------------------------------------------------- */

/* Asks a family for its time on a region. If the workspace or the device is limited, also checks that the step respects
   the limits; only then, because building is much more expensive than accepting. */
static weftStatus_t query_family(const struct partitioning *p, const struct family *family, const struct region *region,
                                 double *seconds) {
    TRY(family_check_gathered(family, region));
    TRY(family->accepts(region, p->device, seconds));
    bool is_limited = p->engine->keeps && p->device->cuda.is_limited;
    if (p->scratch_limit == INT64_MAX && !is_limited)
        return WEFT_STATUS_SUCCESS;
    struct step step = {.family = family, .region = *region, .seconds = *seconds};
    TRY(family->build(&step, p->device, p->knobs, p->arena));
    weftStatus_t status = is_limited ? p->engine->keeps(&step, p->device) : WEFT_STATUS_SUCCESS;
    /* The step was only built to learn its requirements. */
    if (family->release)
        family->release(&step);
    TRY(status);
    if (step.workspace_bytes > p->scratch_limit)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: needs %lld bytes of workspace, the limit is %lld.",
             descriptor_label(region_node(region, 0)->op), (long long)step.workspace_bytes,
             (long long)p->scratch_limit);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Dead nodes -------------------------------------------------------------------------------------------------- */

/* Dead nodes are in no part, and regions never grow into them. */
static void mark_dead_nodes(struct partitioning *p) {
    for (int n = 0; n < p->graph->node_count; n++)
        p->owner[n] = graph_needs(p->graph, &p->graph->nodes[n]) ? UNASSIGNED : NOT_NEEDED;
}

/* ---- Views ------------------------------------------------------------------------------------------------------- */

/* Views execute nothing. */
static void mark_views(struct partitioning *p, const struct views *views) {
    for (int n = 0; n < p->graph->node_count; n++)
        if (views->is_view[n] && p->owner[n] == UNASSIGNED)
            p->owner[n] = VIEW;
}

/* ---- Cycles ------------------------------------------------------------------------------------------------------ */

/* The nodes that run together with a node: its part, or only itself. */
static struct region region_of_group(const struct partitioning *p, const int *node) {
    if (p->owner[*node] >= 0)
        return p->parts[p->owner[*node]].region;
    return (struct region){.graph = p->graph, .count = 1, .nodes = node};
}

/* PLAIN: neither of the others; MEMBER: a group of the region in question; REACHED: depends on a member, directly or
   not. */
enum mark { PLAIN, MEMBER, REACHED };

/* True if a group reads a result of a member or of a reached group. */
static bool is_reached(const struct partitioning *p, const struct region *group) {
    for (int k = 0; k < group->count; k++) {
        const struct node *node = region_node(group, k);
        for (int i = 0; i < node->operand_count; i++) {
            int producer = p->graph->values[node->operands[i]].producer;
            if (!node->is_output[i] && producer >= 0 && p->group[producer] != p->group[group->nodes[k]] &&
                p->mark[p->group[producer]] != PLAIN)
                return true;
        }
    }
    return false;
}

/* True if a member reads a result of a reached group, which closes a cycle. */
static bool closes_cycle(const struct partitioning *p, const struct region *group) {
    for (int k = 0; k < group->count; k++) {
        const struct node *node = region_node(group, k);
        for (int i = 0; i < node->operand_count; i++) {
            int producer = p->graph->values[node->operands[i]].producer;
            if (!node->is_output[i] && producer >= 0 && p->mark[p->group[producer]] == REACHED)
                return true;
        }
    }
    return false;
}

/* Marks the groups between positions `first` and `last` that depend on a member; false if a member depends on one of
   them. One pass is enough, because at_position is a topological order. */
static bool mark_reached(struct partitioning *p, int first, int last) {
    for (int at = first; at <= last; at++) {
        int name = p->at_position[at];
        if (name < 0)
            continue;
        struct region group = region_of_group(p, &name);
        if (p->mark[name] == MEMBER && closes_cycle(p, &group))
            return false;
        if (p->mark[name] == PLAIN && is_reached(p, &group))
            p->mark[name] = REACHED;
    }
    return true;
}

/* Reorders the groups between the first and the last member: groups that depend on no member, then the merged members,
   then the groups that depend on them. Positions that become free are set to -1 at the end. */
static void reorder(struct partitioning *p, int first, int last, int name) {
    int at = first, reached = 0;
    /* Writing never overtakes reading, because positions are filled from the front. */
    for (int from = first; from <= last; from++) {
        int group = p->at_position[from];
        if (group < 0 || p->mark[group] == MEMBER)
            continue;
        if (p->mark[group] == REACHED)
            p->reached[reached++] = group;
        else
            p->at_position[p->position[group] = at++] = group;
    }
    /* The merged group has the name of the region's first node; the other members' names no longer occur in the order.
       */
    p->at_position[p->position[name] = at++] = name;
    for (int i = 0; i < reached; i++)
        p->at_position[p->position[p->reached[i]] = at++] = p->reached[i];
    while (at <= last)
        p->at_position[at++] = -1;
}

/* Marks the groups of a region and all groups between them that depend on them. False if the region would close a
   cycle. */
static bool mark_region(struct partitioning *p, const struct region *region, int *first, int *last) {
    *first = p->graph->node_count;
    *last = -1;
    for (int i = 0; i < region->count; i++) {
        /* Nodes of the region can belong to the same group; marking it twice is harmless. */
        int group = p->group[region->nodes[i]], at = p->position[group];
        p->mark[group] = MEMBER;
        *first = at < *first ? at : *first;
        *last = at > *last ? at : *last;
    }
    return mark_reached(p, *first, *last);
}

/* After reorder() the members are no longer in at_position, so they are unmarked by name and the others by position. */
static void unmark(struct partitioning *p, const struct region *region, int first, int last) {
    for (int i = 0; i < region->count; i++)
        p->mark[p->group[region->nodes[i]]] = PLAIN;
    for (int at = first; at <= last; at++)
        if (p->at_position[at] >= 0)
            p->mark[p->at_position[at]] = PLAIN;
}

/* True if the nodes of a region can run as one step without a dependency cycle. */
static bool is_acyclic(struct partitioning *p, const struct region *region) {
    int first, last;
    bool acyclic = mark_region(p, region, &first, &last);
    unmark(p, region, first, last);
    return acyclic;
}

/* Merges the groups of an acyclic region into one. */
static void join_groups(struct partitioning *p, const struct region *region) {
    int first, last, name = p->group[region->nodes[0]];
    mark_region(p, region, &first, &last);
    reorder(p, first, last, name);
    unmark(p, region, first, last);
    for (int i = 0; i < region->count; i++)
        p->group[region->nodes[i]] = name;
}

/* Lists the parts in execution order: order[i] is the part that runs i-th. Groups without a part are dead nodes or
   views. */
static void list_order(const struct partitioning *p, int *order) {
    int count = 0;
    for (int at = 0; at < p->graph->node_count; at++) {
        int group = p->at_position[at];
        if (group >= 0 && p->owner[group] >= 0)
            order[count++] = p->owner[group];
    }
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

/* Regions list their nodes in graph order, in which producers come first. Lists have room for all nodes of the graph.
   */
static void insert_sorted(int *nodes, int count, int node) {
    int at = count;
    for (; at > 0 && nodes[at - 1] > node; at--)
        nodes[at] = nodes[at - 1];
    nodes[at] = node;
}

/* Adds an unassigned node to the adjacent ones, once, in graph order. */
static void add_adjacent(struct partitioning *p, int node) {
    if (p->owner[node] != UNASSIGNED || p->is_inside[node] || p->is_adjacent[node])
        return;
    p->is_adjacent[node] = true;
    insert_sorted(p->adjacent, p->adjacent_count++, node);
}

/* Adds the producers of a node's operands and the consumers of its results; for a family that can share loads, also the
   other consumers of its operands. */
static void add_adjacent_to(struct partitioning *p, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++) {
        int value = node->operands[i], producer = p->graph->values[value].producer;
        /* A value that is read everywhere, such as a scale shared by all layers, would make the whole graph adjacent.
           */
        int first = p->reader_start[value], last = p->reader_start[value + 1];
        bool shares = p->shares_reads && last - first <= SHARED_MAX;
        if (producer >= 0)
            add_adjacent(p, producer);
        for (int r = first; (shares || node->is_output[i]) && r < last; r++)
            add_adjacent(p, p->readers[r]);
    }
}

/* Adds the nodes adjacent to the region's new nodes, which are those not in `before` (a sorted subset), and removes the
   ones that are now in the region. */
static void update_adjacent(struct partitioning *p, const struct region *region, const int *before, int count) {
    for (int i = 0, k = 0; i < region->count; i++)
        if (k < count && before[k] == region->nodes[i])
            k++;
        else
            add_adjacent_to(p, region_node(region, i));
    int remaining = 0;
    for (int i = 0; i < p->adjacent_count; i++)
        if (!p->is_inside[p->adjacent[i]])
            p->adjacent[remaining++] = p->adjacent[i];
        else
            p->is_adjacent[p->adjacent[i]] = false;
    p->adjacent_count = remaining;
}

/* The next candidate starts with an empty list. */
static void clear_adjacent(struct partitioning *p) {
    for (int i = 0; i < p->adjacent_count; i++)
        p->is_adjacent[p->adjacent[i]] = false;
    p->adjacent_count = 0;
}

/* The first consumer of a value that is outside the region and not dead, or -1. */
static int outside_reader(const struct partitioning *p, const struct region *region, int value) {
    for (int r = p->reader_start[value]; r < p->reader_start[value + 1]; r++)
        if (p->owner[p->readers[r]] != NOT_NEEDED && !region_has(region, p->readers[r]))
            return p->readers[r];
    return -1;
}

/* Counts the open results of a region: produced inside, consumed outside, not stored in the user's memory. A region
   with more than one would store intermediates. *reader is the first consumer of an open result, or -1. */
static int open_results(const struct partitioning *p, const struct region *region, int *reader) {
    int count = 0;
    *reader = -1;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            /* A value in the user's memory is stored in any case, so its consumers are no reason to grow. */
            bool is_hidden = node->is_output[k] && !value_is_slot(&p->graph->values[node->operands[k]]);
            int m = is_hidden ? outside_reader(p, region, node->operands[k]) : -1;
            count += m >= 0;
            *reader = m >= 0 && (*reader < 0 || m < *reader) ? m : *reader;
        }
    }
    return count;
}

/* Adds consumers of the open results until only one result is open, such as both operations of x sigmoid(x). */
static bool add_readers(const struct partitioning *p, struct part *part, int *nodes) {
    /* Only the first consumer is needed here, not the number of open results. */
    int reader;
    open_results(p, &part->region, &reader);
    for (int added = 0; reader >= 0 && p->owner[reader] == UNASSIGNED && added < JOINED_MAX; added++) {
        insert_sorted(nodes, part->region.count++, reader);
        if (open_results(p, &part->region, &reader) <= 1)
            return true;
    }
    return false;
}

/* Adds the producer of an operand that is not stored in the user's memory, one at a time, starting from the last node;
   the family is asked again after each. */
static bool add_producer(const struct partitioning *p, struct part *part, int *nodes) {
    struct region *region = &part->region;
    for (int i = region->count; i-- > 0 && region->count > 1;) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            const struct value *value = &p->graph->values[node->operands[k]];
            int producer = node->is_output[k] || value_is_slot(value) ? -1 : value->producer;
            if (producer >= 0 && p->owner[producer] == UNASSIGNED && !region_has(region, producer)) {
                insert_sorted(nodes, region->count++, producer);
                return true;
            }
        }
    }
    return false;
}

/* A family may decline the result of an operation but accept the result of the operations that consume it. Only
   refusals of a layout or data type can be resolved by adding operations; shapes and devices stay the same. */
static bool accepts_with_readers(struct partitioning *p, struct part *part, int *nodes) {
    double seconds;
    /* Terminates, because each iteration adds an operation. */
    do {
        weftStatus_t status = query_family(p, part->family, &part->region, &seconds);
        if (status == WEFT_STATUS_SUCCESS) {
            part->seconds = seconds;
            return true;
        }
        if (status != WEFT_STATUS_NOT_SUPPORTED_LAYOUT && status != WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE)
            return false;
    } while (add_readers(p, part, nodes) || add_producer(p, part, nodes));
    return false;
}

/* Time of a node as a region of its own; INFINITY if no family accepts it, so that every region with the node is
   cheaper. */
static double single_node_seconds(struct partitioning *p, int node) {
    const struct region region = {.graph = p->graph, .count = 1, .nodes = &node, .engine = p->engine};
    struct offer offer;
    /* Cached, because many comparisons need it. Views are free. */
    if (p->single_seconds[node] == 0 && p->owner[node] != VIEW) {
        weftStatus_t status = engine_offer(&offer, p->engine, &region, p->device, NULL);
        p->single_seconds[node] = status ? INFINITY : offer.seconds;
    }
    return p->single_seconds[node];
}

/* Time of nodes (in graph order) outside the region in question: the smaller of one region with all of them and one
   region per node. Only the former is not cached. */
static double separate_seconds(struct partitioning *p, const int *nodes, int count) {
    const struct region region = {.graph = p->graph, .count = count, .nodes = nodes, .engine = p->engine};
    struct offer offer;
    double each = 0;
    for (int i = 0; i < count; i++)
        each += single_node_seconds(p, nodes[i]);
    /* If a node is not accepted on its own, the sum is INFINITY, but the region may still be accepted. */
    if (count > 1 && each > 0 && engine_offer(&offer, p->engine, &region, p->device, NULL) == WEFT_STATUS_SUCCESS)
        each = offer.seconds < each ? offer.seconds : each;
    return each;
}

/* Lists the nodes of `nodes` that are not in a region; both are sorted. */
static int subtract_region(int *rest_nodes, const int *nodes, int count, const struct region *region) {
    int remaining = 0;
    for (int i = 0, k = 0; i < count; i++)
        if (k < region->count && region->nodes[k] == nodes[i])
            k++;
        else
            rest_nodes[remaining++] = nodes[i];
    return remaining;
}

/* True if serving the grown region costs no more than serving the added nodes separately. Ties grow, because that saves
   a step. */
static bool is_worthwhile(struct partitioning *p, const struct part *part, const struct part *before) {
    /* The region before it grew. */
    struct region old = {.count = before->region.count, .nodes = p->grown};
    int count = subtract_region(p->rest_nodes, part->region.nodes, part->region.count, &old);
    return part->seconds <= before->seconds + separate_seconds(p, p->rest_nodes, count);
}

static void set_inside(struct partitioning *p, const struct region *region, bool is_inside) {
    for (int i = 0; i < region->count; i++)
        p->is_inside[region->nodes[i]] = is_inside;
}

/* Grows a candidate by one adjacent node, or by several if the family requires it. On success part->seconds and
   p->nodes describe the grown region. */
static bool grow_once(struct partitioning *p, struct part *part) {
    /* A rejected attempt is undone: nodes and part are restored. */
    const struct part before = *part;
    int count = before.region.count;
    memcpy(p->grown, p->nodes, (size_t)count * sizeof *p->nodes);
    for (int i = 0; i < p->adjacent_count; i++) {
        insert_sorted(p->nodes, part->region.count++, p->adjacent[i]);
        /* The tests are ordered by cost; most attempts fail the first one. */
        if (accepts_with_readers(p, part, p->nodes) && is_worthwhile(p, part, &before) &&
            is_acyclic(p, &part->region)) {
            set_inside(p, &part->region, true);
            update_adjacent(p, &part->region, p->grown, count);
            return true;
        }
        memcpy(p->nodes, p->grown, (size_t)count * sizeof *p->nodes);
        *part = before;
    }
    return false;
}

/* ---- Shrinking --------------------------------------------------------------------------------------------------- */

/* Appends the consumers of the nodes that are outside the region to the list, in order. Returns the new length, or 0 if
   a consumer already has a part or there are more than READERS_MAX. */
static int add_outside_readers(const struct partitioning *p, const struct region *region, int *nodes, int count) {
    int all = count;
    for (int i = 0; i < count; i++) {
        const struct node *node = &p->graph->nodes[nodes[i]];
        for (int k = 0; k < node->operand_count; k++)
            for (int r = p->reader_start[node->operands[k]];
                 node->is_output[k] && r < p->reader_start[node->operands[k] + 1]; r++) {
                const struct region found = {.count = all - count, .nodes = nodes + count};
                int reader = p->readers[r];
                if (p->owner[reader] == NOT_NEEDED || region_has(region, reader) || region_has(&found, reader))
                    continue;
                if (p->owner[reader] != UNASSIGNED || all - count == READERS_MAX)
                    return 0;
                insert_sorted(nodes + count, all++ - count, reader);
            }
    }
    return all;
}

/* Additional time if the consumers of `count` nodes compute these nodes too. Negative if that is cheaper, because the
   consumers would otherwise load more than the nodes read. INFINITY if no family accepts them together. The list must
   have room for the consumers. */
static double extra_seconds_in_readers(struct partitioning *p, const struct region *region, int *nodes, int count) {
    int both[DROPPED_MAX + READERS_MAX];
    struct region together = {.graph = p->graph, .nodes = both, .engine = p->engine};
    struct offer offer;
    int all = add_outside_readers(p, region, nodes, count);
    for (int i = 0; i < all; i++)
        insert_sorted(both, together.count++, nodes[i]);
    if (all <= count || engine_offer(&offer, p->engine, &together, p->device, NULL))
        return INFINITY;
    return offer.seconds - separate_seconds(p, nodes + count, all - count);
}

/* True if the results of a node are used, all of their consumers are nodes of a list (or, with `outside`, nodes outside
   the region), and none is stored in the user's memory. */
static bool feeds_only(const struct partitioning *p, const struct region *region, int n, const struct region *list,
                       bool outside) {
    const struct node *node = &p->graph->nodes[n];
    bool only = true, is_used = false;
    for (int k = 0; k < node->operand_count && only; k++) {
        if (!node->is_output[k])
            continue;
        only = !value_is_slot(&p->graph->values[node->operands[k]]);
        for (int r = p->reader_start[node->operands[k]]; r < p->reader_start[node->operands[k] + 1] && only; r++) {
            if (p->owner[p->readers[r]] == NOT_NEEDED)
                continue;
            is_used = true;
            only = outside ? !region_has(region, p->readers[r]) : region_has(list, p->readers[r]);
        }
    }
    return only && is_used;
}

/* Lists, in order, a node whose consumers are all outside the region, and the nodes that only lead to it. Returns their
   number; 0 if there are more than DROPPED_MAX or the seed is among them. */
static int gather_dropped(const struct partitioning *p, const struct region *region, int node, int seed, int *dropped) {
    int count = 0;
    insert_sorted(dropped, count++, node);
    for (int i = region->count; i-- > 0;) { /* consumers come before their producers */
        const struct region list = {.graph = p->graph, .count = count, .nodes = dropped};
        if (region_has(&list, region->nodes[i]) || !feeds_only(p, region, region->nodes[i], &list, false))
            continue;
        if (count == DROPPED_MAX)
            return 0;
        insert_sorted(dropped, count++, region->nodes[i]);
    }
    const struct region list = {.graph = p->graph, .count = count, .nodes = dropped};
    return region_has(&list, seed) ? 0 : count;
}

/* Removes one of several results that a region would store if it is cheaper to recompute it in its consumers, such as a
   mask whose inputs they can read just as well. */
static bool shrink_once(struct partitioning *p, struct part *part, int seed) {
    int dropped[DROPPED_MAX + READERS_MAX], reader;
    for (int i = part->region.count; i-- > 0 && open_results(p, &part->region, &reader) > 1;) {
        if (!feeds_only(p, &part->region, p->nodes[i], NULL, true))
            continue;
        int count = gather_dropped(p, &part->region, p->nodes[i], seed, dropped);
        const struct region list = {.graph = p->graph, .count = count, .nodes = dropped};
        struct region rest = {.graph = p->graph, .nodes = p->grown, .engine = p->engine};
        double seconds;
        rest.count = subtract_region(p->grown, p->nodes, part->region.count, &list);
        if (count == 0 || query_family(p, part->family, &rest, &seconds) || !is_acyclic(p, &rest) ||
            seconds + extra_seconds_in_readers(p, &part->region, dropped, count) >= part->seconds)
            continue;
        memcpy(p->nodes, p->grown, (size_t)rest.count * sizeof *p->nodes);
        part->region.count = rest.count;
        part->seconds = seconds;
        return true;
    }
    return false;
}

/* Starts a region with a node and its companions (see struct family). Views among the companions have no other
   consumer. `nodes` receives all of them in order; part->region.count is 0 if the family declines. */
static bool accepts_with_companions(struct partitioning *p, struct part *part, int *nodes, int seed) {
    const struct family *family = part->family;
    int count = family->companions ? family->companions(p->graph, seed, nodes) : 0;
    bool are_free = count > 0;
    for (int i = 0; i < count; i++)
        are_free = are_free && (p->owner[nodes[i]] == UNASSIGNED || p->owner[nodes[i]] == VIEW);
    /* The family lists companions in any order; regions are sorted. */
    for (int i = 1; i < count; i++)
        insert_sorted(nodes, i, nodes[i]);
    insert_sorted(nodes, count, seed);
    part->region.count = are_free ? count + 1 : 0;
    if (are_free && accepts_with_readers(p, part, nodes))
        return true;
    part->region.count = 0;
    return false;
}

/* Starts a region with the node itself, or with the consumers that the family needs to accept it. */
static bool accepts_seed(struct partitioning *p, struct part *part, int *nodes, int seed) {
    nodes[0] = seed;
    part->region.count = 1;
    return accepts_with_readers(p, part, nodes);
}

/* Grows a region from a seed and adds it to the candidates, unless the family declines it. */
static weftStatus_t add_candidate(struct partitioning *p, const struct family *family, int seed, bool has_companions) {
    /* More candidates could only reduce the cost; the families with the highest priority come first. */
    if (p->candidate_count == CANDIDATES_MAX)
        return WEFT_STATUS_SUCCESS;
    struct part *part = &p->candidates[p->candidate_count].part;
    *part = (struct part){.family = family, .region = {.graph = p->graph, .nodes = p->nodes, .engine = p->engine}};
    /* A family with companions is tried both ways, so that both regions become candidates. */
    bool is_accepted =
        has_companions ? accepts_with_companions(p, part, p->nodes, seed) : accepts_seed(p, part, p->nodes, seed);
    if (!is_accepted || !is_acyclic(p, &part->region))
        return WEFT_STATUS_SUCCESS;
    set_inside(p, &part->region, true);
    p->shares_reads = family->shares_reads;
    update_adjacent(p, &part->region, NULL, 0);
    /* Stops when no adjacent node can join. */
    while (grow_once(p, part)) {
    }
    clear_adjacent(p);
    set_inside(p, &part->region, false);
    while (shrink_once(p, part, seed)) {
    }
    p->candidate_count++;
    int *nodes;
    TRY(arena_alloc(p->arena, &nodes, (size_t)part->region.count * sizeof *nodes));
    memcpy(nodes, p->nodes, (size_t)part->region.count * sizeof *nodes);
    /* p->nodes is reused for the next candidate. */
    part->region.nodes = nodes;
    return WEFT_STATUS_SUCCESS;
}

/* True if a family is not to be asked: the excluded one, or one that matches the same pattern and differs only in a
   relaxation. */
static bool is_excluded(const struct partitioning *p, const struct family *family) {
    const struct family *excluded = p->excluded;
    return excluded && (family == excluded || (excluded->companions && family->companions == excluded->companions));
}

/* Lists the candidates of family f and all later ones at a node, provided that f itself yields one. Earlier families
   have already declined this node. */
static weftStatus_t find_candidates(struct partitioning *p, int f, int seed) {
    p->candidate_count = 0;
    for (int g = f; p->engine->families[g] && (g == f || p->candidate_count > 0); g++) {
        const struct family *family = p->engine->families[g];
        /* The cost of a last resort is not meaningful, so it is only asked if no other family starts a region here. */
        if (!engine_uses(p->engine, family) || is_excluded(p, family) || (g > f && family->is_last_resort))
            continue;
        if (family->companions)
            TRY(add_candidate(p, family, seed, true));
        TRY(add_candidate(p, family, seed, false));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Computes the union of the candidates' nodes, in order. Uses is_inside as scratch, which is all false before and
   after. */
static int gather_candidate_nodes(struct partitioning *p) {
    int count = 0;
    for (int c = 0; c < p->candidate_count; c++) {
        const struct region *region = &p->candidates[c].part.region;
        for (int i = 0; i < region->count; i++)
            if (!p->is_inside[region->nodes[i]])
                insert_sorted(p->all, count++, region->nodes[i]);
        set_inside(p, region, true);
    }
    for (int i = 0; i < count; i++)
        p->is_inside[p->all[i]] = false;
    return count;
}

/* The candidate with the smallest total time for the union of all candidates' nodes; the first one in case of a tie. */
static struct candidate *cheapest(struct partitioning *p) {
    /* Other families must serve the nodes that a candidate leaves out, so only totals over the same nodes are
       comparable. */
    struct candidate *best = p->candidates;
    int all = gather_candidate_nodes(p);
    for (int c = 0; c < p->candidate_count; c++) {
        struct candidate *candidate = &p->candidates[c];
        int count = subtract_region(p->rest_nodes, p->all, all, &candidate->part.region);
        candidate->seconds = candidate->part.seconds + separate_seconds(p, p->rest_nodes, count);
        /* Strictly less, so that the order of the families decides ties. */
        best = candidate->seconds < best->seconds ? candidate : best;
    }
    return best;
}

/* Records the times of the families whose candidates lost, once per family: its two candidates are adjacent in the
   list. */
static weftStatus_t list_rivals(struct partitioning *p, const struct candidate *best) {
    struct part *part = &p->parts[p->part_count];
    TRY(arena_alloc(p->arena, &part->rivals, (size_t)p->candidate_count * sizeof *part->rivals));
    for (int c = 0; c < p->candidate_count; c++) {
        const struct candidate *rival = &p->candidates[c];
        struct refusal *last = part->rival_count ? &part->rivals[part->rival_count - 1] : NULL;
        if (rival->part.family == best->part.family || (last && last->family == rival->part.family->name))
            continue;
        struct refusal *refusal = &part->rivals[part->rival_count++];
        refusal->family = rival->part.family->name;
        TRY(arena_print(p->arena, &refusal->reason, "%s: predicted time %.3g us, %s takes %.3g us",
                        descriptor_label(region_node(&rival->part.region, 0)->op), rival->seconds * 1e6,
                        best->part.family->name, best->seconds * 1e6));
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t cover_nodes(struct partitioning *p);
static weftStatus_t allocate_lists(struct partitioning *p);

/* Computes the time of a region when it is covered with all families except the one that would serve it as a whole. The
   result is in the arena of `separate`, which the caller frees. Nodes after whole.count represent outside consumers
   (region_extract) and are not served. */
static weftStatus_t cover_separately(struct partitioning *separate, const struct partitioning *p,
                                     const struct part *part, double *seconds) {
    struct region whole;
    const int *outer;
    TRY(region_extract(&whole, &outer, &part->region, separate->arena));
    separate->graph = whole.graph;
    TRY(allocate_lists(separate));
    for (int n = 0; n < whole.graph->node_count; n++)
        separate->owner[n] = n < whole.count ? p->owner[part->region.nodes[n]] : NOT_NEEDED;
    TRY(cover_nodes(separate));
    *seconds = 0;
    for (int n = 0; n < whole.count; n++)
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

/* Adds a part that starts at an unassigned node with the f-th family, if it accepts the node. p->parts has room for one
   part per node. */
static weftStatus_t start_part(struct partitioning *p, int f, int seed) {
    bool is_cheaper;
    TRY(find_candidates(p, f, seed));
    /* The f-th family declines; a later one starts here. */
    if (p->candidate_count == 0)
        return WEFT_STATUS_SUCCESS;
    const struct candidate *best = cheapest(p);
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

/* ---- Reasons ----------------------------------------------------------------------------------------------------- */

/* True if the time of a family is among the reasons already. */
static bool is_rival(const struct part *part, const struct family *family) {
    for (int i = 0; i < part->rival_count; i++)
        if (part->rivals[i].family == family->name)
            return true;
    return false;
}

/* Collects the reasons why other families do not serve a part: the times of its rivals, and the refusals of the
   families before `until` (NULL: all) for a single node. */
static weftStatus_t collect_refusals(struct partitioning *p, struct part *part, int node, const struct family *until) {
    struct region single = {.graph = p->graph, .count = 1, .nodes = &node, .engine = p->engine};
    int families = 0;
    while (p->engine->families[families])
        families++;
    TRY(arena_alloc(p->arena, &part->refusals, (size_t)(families + part->rival_count) * sizeof *part->refusals));
    /* Times come first, because they are the most informative. */
    for (int i = 0; i < part->rival_count; i++)
        part->refusals[part->refusal_count++] = part->rivals[i];
    if (p->rejected[node].family)
        part->refusals[part->refusal_count++] = p->rejected[node];
    for (int f = 0; p->engine->families[f] && p->engine->families[f] != until; f++) {
        double seconds;
        struct refusal *refusal = &part->refusals[part->refusal_count];
        /* A family that accepts the single node has no objection to report. */
        if (!engine_uses(p->engine, p->engine->families[f]) || is_rival(part, p->engine->families[f]) ||
            p->engine->families[f]->name == p->rejected[node].family ||
            query_family(p, p->engine->families[f], &single, &seconds) == WEFT_STATUS_SUCCESS)
            continue;
        refusal->family = p->engine->families[f]->name;
        TRY(arena_print(p->arena, &refusal->reason, "%s", status_text()));
        part->refusal_count++;
    }
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

/* Fails with the refusals of all families for a node, so that the user learns what each would need. */
static weftStatus_t fail_for_node(struct partitioning *p, int node) {
    struct part unserved = {0};
    struct text reasons;
    text_init(&reasons);
    TRY(collect_refusals(p, &unserved, node, NULL));
    for (int i = 0; i < unserved.refusal_count; i++)
        text_add(&reasons, " %s: %s.", unserved.refusals[i].family, unserved.refusals[i].reason);
    weftStatus_t status =
        status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "engine %s: no kernel family serves %s.%s",
                    p->engine->name, descriptor_label(p->graph->nodes[node].op), text_string(&reasons));
    text_free(&reasons);
    return status;
}

/* ---- Relaxations ------------------------------------------------------------------------------------------------- */

/* Engines that differ from another engine only in a relaxation (narrower types, nondeterministic order of sums): the
   function that reports whether a family might use it at a node. NULL for other engines. */
typedef bool relaxation(const struct graph *graph, int node);
static relaxation *relaxation_of(const struct engine *engine, const struct family *family) {
    return engine->narrows ? family->narrows : engine->reorders ? family->reorders : NULL;
}
static bool is_relaxed(const struct engine *engine) { return engine->narrows || engine->reorders; }

/* A quick test before planning; it only looks at single nodes. */
static bool may_use_relaxation(const struct partitioning *p) {
    for (int f = 0; p->engine->families[f]; f++)
        for (int n = 0; n < p->graph->node_count && relaxation_of(p->engine, p->engine->families[f]); n++)
            if (p->owner[n] == UNASSIGNED && relaxation_of(p->engine, p->engine->families[f])(p->graph, n))
                return true;
    return false;
}

static weftStatus_t fail_without_relaxation(const struct partitioning *p) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "engine %s: no operation of %s would be %s.", p->engine->name,
         descriptor_label(&p->graph->base),
         p->engine->narrows ? "rounded to fewer bits" : "summed nondeterministically");
}

/* Declines a cover that does not use the engine's relaxation, because another engine would produce the same. If there
   is a single part, the refusal of the family with the relaxation is more informative than the general message. */
static weftStatus_t check_relaxation(struct partitioning *p) {
    bool is_used = !is_relaxed(p->engine);
    for (int i = 0; i < p->part_count; i++)
        is_used = is_used || relaxation_of(p->engine, p->parts[i].family);
    if (is_used)
        return WEFT_STATUS_SUCCESS;
    double seconds;
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    for (int f = 0; p->part_count == 1 && p->engine->families[f];
         f++) /* the reason of the last family, which is the most general one, is reported */
        if (relaxation_of(p->engine, p->engine->families[f]))
            status = p->engine->families[f]->accepts(&p->parts[0].region, p->device, &seconds);
    return status ? status : fail_without_relaxation(p);
}

/* Family by family, then node by node: a family starts regions at all nodes before the next one is asked. Nodes that
   remain unassigned are served by no family of the engine. */
static weftStatus_t cover_nodes(struct partitioning *p) {
    for (int f = 0; p->engine->families[f]; f++)
        for (int n = 0; n < p->graph->node_count; n++)
            if (p->owner[n] == UNASSIGNED && engine_uses(p->engine, p->engine->families[f]))
                TRY(start_part(p, f, n));
    return WEFT_STATUS_SUCCESS;
}

/* Assigns all live nodes, or fails with the refusals for the first unassigned one. */
static weftStatus_t assign_nodes(struct partitioning *p) {
    if (is_relaxed(p->engine) && !may_use_relaxation(p)) /* fail before planning what another engine would do as well */
        return fail_without_relaxation(p);
    TRY(cover_nodes(p));
    for (int n = 0; n < p->graph->node_count; n++)
        if (p->owner[n] == UNASSIGNED)
            return fail_for_node(p, n);
    if (p->part_count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s computes nothing: every tensor that it writes is virtual. Mark an output.",
             descriptor_label(&p->graph->base));
    return check_relaxation(p);
}

static void count_reader(struct partitioning *p, int value, int node) {
    (void)node;
    p->reader_start[value + 1]++;
}

static void put_reader(struct partitioning *p, int value, int node) { p->readers[p->reader_start[value]++] = node; }

/* In node order, so that the consumers of each value are sorted. */
static void visit_reads(struct partitioning *p, void (*visit)(struct partitioning *p, int value, int node)) {
    for (int n = 0; n < p->graph->node_count; n++)
        for (int i = 0; i < p->graph->nodes[n].operand_count; i++)
            if (!p->graph->nodes[n].is_output[i])
                visit(p, p->graph->nodes[n].operands[i], n);
}

/* Builds the consumer lists in two passes (counting sort), linear in the number of operands. A node that reads a value
   twice is listed twice. */
static weftStatus_t list_readers(struct partitioning *p) {
    int values = p->graph->value_count;
    /* Counts are shifted by one, so that their prefix sums are the starts of the lists. */
    TRY(arena_alloc(p->arena, &p->reader_start, ((size_t)values + 1) * sizeof *p->reader_start));
    visit_reads(p, count_reader);
    for (int v = 0; v < values; v++)
        p->reader_start[v + 1] += p->reader_start[v];
    TRY(arena_alloc(p->arena, &p->readers, (size_t)p->reader_start[values] * sizeof *p->readers));
    visit_reads(p, put_reader); /* advances each start to the start of the next value, which the next lines undo */
    memmove(p->reader_start + 1, p->reader_start, (size_t)values * sizeof *p->reader_start);
    p->reader_start[0] = 0;
    return WEFT_STATUS_SUCCESS;
}

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
    return list_readers(p);
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

/* ---- Search for the cheapest cover ------------------------------------------------------------------------------- */

enum { SEARCH_NODES = 512 }; /* budget for all covers after the first two, in nodes */

/* One of the covers that are compared. Attempts are on the stack; their lists are in the plan's arena. */
struct attempt {
    struct partitioning p;
    struct views views;
    double seconds;
};

/* Covers the graph of `views` with the engine, device and limits of `like`. */
static weftStatus_t attempt_cover(struct attempt *out, const struct partitioning *like, const struct views *views) {
    *out = (struct attempt){.p = *like, .views = *views};
    out->p.graph = views->graph;
    TRY(allocate_lists(&out->p));
    mark_dead_nodes(&out->p);
    mark_views(&out->p, views);
    TRY(assign_nodes(&out->p));
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
        int whole = best->views.memory[v];
        double before = best->seconds;
        struct attempt other;
        struct views views;
        if ((whole == v && !best->views.graph->values[v].tensor->is_gathered) || is_tried[whole])
            continue;
        is_tried[whole] = is_apart[whole] = true;
        *budget -= nodes;
        TRY(views_find(&views, graph, &choices, like->arena));
        update_best(best, attempt_cover(&other, like, &views), &other);
        is_apart[whole] = best->seconds < before;
    }
    return WEFT_STATUS_SUCCESS;
}

/* True if a family of the engine might read a value as parts at separate addresses when it serves this node. */
static bool may_read_parts(const struct engine *engine, const struct graph *graph, int node, int value) {
    for (int f = 0; engine->families[f]; f++)
        if (engine_uses(engine, engine->families[f]) && engine->families[f]->gathers &&
            engine->families[f]->gathers(graph, node, value))
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

/* Finds the cheapest of several covers. Each takes time linear in the number of operations; SEARCH_NODES limits how
   many are tried after the first two. */
static weftStatus_t search_cover(struct attempt *best, const struct partitioning *like, const struct graph *graph) {
    int budget = SEARCH_NODES;
    TRY(attempt_views(best, like, graph, &budget));
    if (best->p.part_count > 1)
        attempt_without(best, like, &budget);
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

/* Tries a cover in which some batch norms are split into statistics and normalization. */
static weftStatus_t attempt_split(struct attempt *out, weftStatus_t *status, const struct partitioning *like,
                                  const struct graph *graph, const bool *is_apart) {
    int budget = 0;
    const struct graph *split;
    TRY(batch_norms_part(&split, graph, is_apart, like->arena));
    *status = attempt_views(out, like, split, &budget);
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

/* Splits all batch norms that can be split, if that is cheaper; then toggles them one by one, within SEARCH_NODES. */
static weftStatus_t search_split_batch_norms(struct attempt *best, const struct partitioning *like,
                                             const struct graph *graph) {
    bool *is_apart;
    int count = 0, budget = SEARCH_NODES;
    TRY(arena_alloc(like->arena, &is_apart, (size_t)graph->node_count * sizeof *is_apart));
    for (int n = 0; n < graph->node_count; n++)
        count += is_apart[n] = batch_norm_has_parts(graph, n) && graph_needs(graph, &graph->nodes[n]);
    for (int n = -1; n < graph->node_count && count > 0 && (n < 0 || budget >= graph->node_count); n++) {
        struct attempt other;
        weftStatus_t status;
        double before = best->seconds;
        if (n >= 0 && !batch_norm_has_parts(graph, n))
            continue;
        if (n >= 0)
            is_apart[n] = !is_apart[n];
        TRY(attempt_split(&other, &status, like, graph, is_apart));
        update_best(best, status, &other);
        if (n >= 0 && best->seconds >= before)
            is_apart[n] = !is_apart[n];
        if (n < 0 && best->seconds >= before)
            memset(is_apart, 0, (size_t)graph->node_count * sizeof *is_apart);
        budget -= n >= 0 ? graph->node_count : 0;
    }
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
    if (engine->stores_narrow)
        TRY(infer_intermediate_types(&graph, graph, arena));
    if (engine->parts_batch_norms)
        TRY(batch_norms_find(&graph, graph, arena));
    TRY(search_cover(&best, &p, graph));
    if (engine->parts_batch_norms)
        TRY(search_split_batch_norms(&best, &p, graph));
    return finish_cover(cover, &best);
}
