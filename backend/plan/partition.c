/* SPDX-License-Identifier: Apache-2.0 */
/* At each node the families of the engine that accept it grow a region each over neighbours, for as long as a family
   accepts the larger region, that is no dearer than what is added would be apart, and regions stay free of cycles. The
   cheapest candidate becomes a part: its own price, and that of what the others would serve and it leaves out. What a
   step of this looks at is regions and what lies around them, never the whole graph: a cover is linear in the number
   of operations. Some covers are made and the cheapest is taken: with views and with copies in their places, and, of
   graphs that are not large, without the views of one memory and without one family. */
#include "plan/partition.h"
#include "base/number.h"
#include "base/text.h"
#include "graph/batch_norms.h"
#include "graph/intermediate_types.h"

#include <math.h>
#include <string.h>

/* What `owner` says of a node that is in no part: not yet, its results are read by nobody, it is the memory of another
   value. */
enum { UNASSIGNED = -1, NOT_NEEDED = -2, VIEW = -3 };
enum {
    JOINED_MAX = 8,      /* operations added at once */
    SHARED_MAX = 8,      /* readers of a value, where each looks at all others */
    DROPPED_MAX = 8,     /* operations dropped at once, and */
    READERS_MAX = 8,     /* others that read what they make */
    CANDIDATES_MAX = 64, /* two of each family */
};

/* A region that a family would serve. */
struct candidate {
    struct part part;
    double seconds; /* with what it leaves of the others' regions */
};

/* Covering one graph in one way. All lists are as long as the graph has nodes, allocated once; flags and marks are
   cleared again by whoever sets them. */
struct partitioning {
    const struct graph *graph;
    const struct engine *engine;
    const struct device *device;
    const struct knob_choices *knobs;
    int64_t scratch_limit;        /* of a part; INT64_MAX: none */
    const struct family *without; /* which is not asked; NULL: all are */
    struct arena *arena;
    int *owner; /* of each node: a part, or one of the above */
    struct part *parts;
    int part_count;

    /* Who reads a value: readers[reader_start[value]] up to reader_start[value + 1], in order. */
    int *reader_start, *readers;

    /* The candidates at a node, and the one that grows. */
    struct candidate candidates[CANDIDATES_MAX];
    int candidate_count;
    int *nodes, *grown; /* its region, as it grows, and as it was before */
    int *neighbours;    /* nodes beside it, in order */
    int neighbour_count;
    bool shares_reads;              /* the family that grows it takes what reads the same */
    bool *is_neighbour, *is_inside; /* per node */
    int *all, *left;                /* nodes of any candidate, and those that one leaves out, in order */
    double *alone;                  /* per node: what serving it alone takes; 0: not asked yet, INFINITY: nobody does */
    struct refusal *dearer; /* per node: the family that would have written it as another operation, and why not */

    /* An order in which groups, which are parts and single nodes, may run. A group is named by one of its nodes. */
    int *group;       /* per node: its group */
    int *position;    /* per group: its place in the order */
    int *at_position; /* group per place; -1: the group that was here has joined another */
    int *behind;      /* scratch of join_groups */
    char *mark;       /* scratch of join_groups, per group: see enum mark */
};

/* ---- Asking a family --------------------------------------------------------------------------------------------- */

/* What the family says of a region; and where there is a limit, of the workspace or of the device, whether the step
   would keep to it. Building is dear against accepting, so it is asked for only under a limit. */
static weftStatus_t ask(const struct partitioning *p, const struct family *family, const struct region *region,
                        double *seconds) {
    TRY(family_check_gathered(family, region));
    TRY(family->accepts(region, p->device, seconds));
    bool is_limited = p->engine->keeps && p->device->cuda.is_limited;
    if (p->scratch_limit == INT64_MAX && !is_limited)
        return WEFT_STATUS_SUCCESS;
    struct step step = {.family = family, .region = *region, .seconds = *seconds};
    TRY(family->build(&step, p->device, p->knobs, p->arena));
    weftStatus_t status = is_limited ? p->engine->keeps(&step, p->device) : WEFT_STATUS_SUCCESS;
    /* It was built for what it takes alone. */
    if (family->release)
        family->release(&step);
    TRY(status);
    if (step.workspace_bytes > p->scratch_limit)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: it takes %lld bytes of workspace, the limit is %lld.",
             descriptor_label(region_node(region, 0)->op), (long long)step.workspace_bytes,
             (long long)p->scratch_limit);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Which nodes matter ------------------------------------------------------------------------------------------ */

/* Dead nodes get no part, and are no neighbours: regions never grow into them. */
static void drop_needless_nodes(struct partitioning *p) {
    for (int n = 0; n < p->graph->node_count; n++)
        p->owner[n] = graph_needs(p->graph, &p->graph->nodes[n]) ? UNASSIGNED : NOT_NEEDED;
}

/* ---- Views ------------------------------------------------------------------------------------------------------- */

/* Nodes that run nothing. */
static void leave_views_out(struct partitioning *p, const struct views *views) {
    for (int n = 0; n < p->graph->node_count; n++)
        if (views->is_view[n] && p->owner[n] == UNASSIGNED)
            p->owner[n] = VIEW;
}

/* ---- Cycles ------------------------------------------------------------------------------------------------------ */

/* The nodes that run together with a node: those of its part, or itself alone. */
static struct region companions(const struct partitioning *p, const int *node) {
    if (p->owner[*node] >= 0)
        return p->parts[p->owner[*node]].region;
    return (struct region){.graph = p->graph, .count = 1, .nodes = node};
}

/* PLAIN: neither; MEMBER: a group of the region in question; REACHED: it waits for a member, directly or not. */
enum mark { PLAIN, MEMBER, REACHED };

/* Whether a group reads what a member, or a group that a member reaches, makes. */
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

/* Whether a member reads what a group that a member reaches makes: together they would wait for each other. */
static bool closes_circle(const struct partitioning *p, const struct region *group) {
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

/* Marks the groups from `first` to `last` in the order that a member reaches; false where one reaches a member. One
   pass suffices: at_position is an order in which groups may run, so whatever reaches a group stands before it. */
static bool mark_reached(struct partitioning *p, int first, int last) {
    for (int at = first; at <= last; at++) {
        int name = p->at_position[at];
        if (name < 0)
            continue;
        struct region group = companions(p, &name);
        if (p->mark[name] == MEMBER && closes_circle(p, &group))
            return false;
        if (p->mark[name] == PLAIN && is_reached(p, &group))
            p->mark[name] = REACHED;
    }
    return true;
}

/* Orders the groups between the first member and the last anew: what no member reaches, the members as one, the rest.
   What no member reaches may run before them all, and what one reaches must run behind. Places that members leave
   become -1 at the end. */
static void reorder(struct partitioning *p, int first, int last, int name) {
    int at = first, behind = 0;
    /* Places are filled from the front: every place that is written has been read. */
    for (int from = first; from <= last; from++) {
        int group = p->at_position[from];
        if (group < 0 || p->mark[group] == MEMBER)
            continue;
        if (p->mark[group] == REACHED)
            p->behind[behind++] = group;
        else
            p->at_position[p->position[group] = at++] = group;
    }
    /* The group keeps the name of the region's first node; the others' names are in no place from here on. */
    p->at_position[p->position[name] = at++] = name;
    for (int i = 0; i < behind; i++)
        p->at_position[p->position[p->behind[i]] = at++] = p->behind[i];
    while (at <= last)
        p->at_position[at++] = -1;
}

/* Marks the groups of a region, and all that they reach among those between them in the order; false where these would
   have to run both before and behind another. */
static bool mark_region(struct partitioning *p, const struct region *region, int *first, int *last) {
    *first = p->graph->node_count;
    *last = -1;
    for (int i = 0; i < region->count; i++) {
        /* Several nodes of the region may be of one group: marking it again does no harm. */
        int group = p->group[region->nodes[i]], at = p->position[group];
        p->mark[group] = MEMBER;
        *first = at < *first ? at : *first;
        *last = at > *last ? at : *last;
    }
    return mark_reached(p, *first, *last);
}

/* After reorder() members are no longer in at_position: they are unmarked by name, all others by place. */
static void unmark(struct partitioning *p, const struct region *region, int first, int last) {
    for (int i = 0; i < region->count; i++)
        p->mark[p->group[region->nodes[i]]] = PLAIN;
    for (int at = first; at <= last; at++)
        if (p->at_position[at] >= 0)
            p->mark[p->at_position[at]] = PLAIN;
}

/* Whether a region's nodes can run as one. */
static bool is_free(struct partitioning *p, const struct region *region) {
    int first, last;
    bool is = mark_region(p, region, &first, &last);
    unmark(p, region, first, last);
    return is;
}

/* Makes one group of the nodes of a region that is free. */
static void join_groups(struct partitioning *p, const struct region *region) {
    int first, last, name = p->group[region->nodes[0]];
    mark_region(p, region, &first, &last);
    reorder(p, first, last, name);
    unmark(p, region, first, last);
    for (int i = 0; i < region->count; i++)
        p->group[region->nodes[i]] = name;
}

/* The parts in the order of their groups. order[i]: the part that runs i-th. Groups that are no part are single nodes
   that nobody needs, or views. */
static void put_order(const struct partitioning *p, int *order) {
    int placed = 0;
    for (int at = 0; at < p->graph->node_count; at++) {
        int group = p->at_position[at];
        if (group >= 0 && p->owner[group] >= 0)
            order[placed++] = p->owner[group];
    }
}

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

/* Regions list their nodes in the graph's order, in which producers come first. The caller has room: lists are as long
   as the graph has nodes. */
static void insert_sorted(int *nodes, int count, int node) {
    int at = count;
    for (; at > 0 && nodes[at - 1] > node; at--)
        nodes[at] = nodes[at - 1];
    nodes[at] = node;
}

/* Only what no part has; each node once, in the order of nodes. */
static void add_neighbour(struct partitioning *p, int node) {
    if (p->owner[node] != UNASSIGNED || p->is_inside[node] || p->is_neighbour[node])
        return;
    p->is_neighbour[node] = true;
    insert_sorted(p->neighbours, p->neighbour_count++, node);
}

/* Adds the nodes that make what a node reads, or read what it makes; and those beside it that read the same, of a
   family that could share the reading. */
static void add_neighbours_of(struct partitioning *p, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++) {
        int value = node->operands[i], producer = p->graph->values[value].producer;
        /* A value that everything reads, as a norm's scale in each layer, would make neighbours of the whole graph. */
        int first = p->reader_start[value], last = p->reader_start[value + 1];
        bool shares = p->shares_reads && last - first <= SHARED_MAX;
        if (producer >= 0)
            add_neighbour(p, producer);
        for (int r = first; (shares || node->is_output[i]) && r < last; r++)
            add_neighbour(p, p->readers[r]);
    }
}

/* What lies beside the nodes that a region has and `before` has not; both are sorted. The region's own are none.
   `before` is a subset of the region, which only grows. */
static void update_neighbours(struct partitioning *p, const struct region *region, const int *before, int count) {
    for (int i = 0, k = 0; i < region->count; i++)
        if (k < count && before[k] == region->nodes[i])
            k++;
        else
            add_neighbours_of(p, region_node(region, i));
    int kept = 0;
    for (int i = 0; i < p->neighbour_count; i++)
        if (!p->is_inside[p->neighbours[i]])
            p->neighbours[kept++] = p->neighbours[i];
        else
            p->is_neighbour[p->neighbours[i]] = false;
    p->neighbour_count = kept;
}

/* For the next candidate, which begins at no neighbour. */
static void forget_neighbours(struct partitioning *p) {
    for (int i = 0; i < p->neighbour_count; i++)
        p->is_neighbour[p->neighbours[i]] = false;
    p->neighbour_count = 0;
}

/* The first node outside of a region that reads a value and is needed; -1: none. */
static int outside_reader(const struct partitioning *p, const struct region *region, int value) {
    for (int r = p->reader_start[value]; r < p->reader_start[value + 1]; r++)
        if (p->owner[p->readers[r]] != NOT_NEEDED && !region_has(region, p->readers[r]))
            return p->readers[r];
    return -1;
}

/* How many results of a region others read, those left out that have memory of their own; and the first that reads one
   of them, -1: nobody. Open: made here, read outside, and without memory of its own. A region of more than one such
   result would store intermediates. */
static int open_results(const struct partitioning *p, const struct region *region, int *reader) {
    int count = 0;
    *reader = -1;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            /* A value with memory of the user's is written whoever reads it, so its readers are no reason to grow. */
            bool is_hidden = node->is_output[k] && !value_is_slot(&p->graph->values[node->operands[k]]);
            int m = is_hidden ? outside_reader(p, region, node->operands[k]) : -1;
            count += m >= 0;
            *reader = m >= 0 && (*reader < 0 || m < *reader) ? m : *reader;
        }
    }
    return count;
}

/* Adds what reads the results, until they have come together in one: of x sigmoid(x) both operations. */
static bool add_readers(const struct partitioning *p, struct part *part, int *nodes) {
    /* Only the first reader is wanted here, not how many results are open. */
    int reader;
    open_results(p, &part->region, &reader);
    for (int added = 0; reader >= 0 && p->owner[reader] == UNASSIGNED && added < JOINED_MAX; added++) {
        insert_sorted(nodes, part->region.count++, reader);
        if (open_results(p, &part->region, &reader) <= 1)
            return true;
    }
    return false;
}

/* Adds what makes an operand of operations that were added, which has no memory of its own. One at a time, from the
   last node backwards; the family is asked again after each. */
static bool add_maker(const struct partitioning *p, struct part *part, int *nodes) {
    struct region *region = &part->region;
    for (int i = region->count; i-- > 0 && region->count > 1;) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            const struct value *value = &p->graph->values[node->operands[k]];
            int maker = node->is_output[k] || value_is_slot(value) ? -1 : value->producer;
            if (maker >= 0 && p->owner[maker] == UNASSIGNED && !region_has(region, maker)) {
                insert_sorted(nodes, region->count++, maker);
                return true;
            }
        }
    }
    return false;
}

/* A family may decline what an operation makes, and take what the operations behind it make of that, and of what others
   do. Only refusals of layout or data type can be mended by more operations: shapes and devices stay what they are. */
static bool accepts_with_readers(struct partitioning *p, struct part *part, int *nodes) {
    double seconds;
    /* Ends: each round adds an operation, and a graph has so many. */
    do {
        weftStatus_t status = ask(p, part->family, &part->region, &seconds);
        if (status == WEFT_STATUS_SUCCESS) {
            part->seconds = seconds;
            return true;
        }
        if (status != WEFT_STATUS_NOT_SUPPORTED_LAYOUT && status != WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE)
            return false;
    } while (add_readers(p, part, nodes) || add_maker(p, part, nodes));
    return false;
}

/* INFINITY where no family takes a node: then nothing is cheaper than a region that has it. */
static double seconds_alone(struct partitioning *p, int node) {
    const struct region region = {.graph = p->graph, .count = 1, .nodes = &node, .engine = p->engine};
    struct offer offer;
    /* Asked once for each node: every price here is made of many such answers. A view is free. */
    if (p->alone[node] == 0 && p->owner[node] != VIEW) {
        weftStatus_t status = engine_offer(&offer, p->engine, &region, p->device, NULL);
        p->alone[node] = status ? INFINITY : offer.seconds;
    }
    return p->alone[node];
}

/* What nodes take apart, in the order in which they stand: the least for all as one region, or for each alone. Answers
   for single nodes are kept, so that only the region's is asked for anew. */
static double seconds_apart(struct partitioning *p, const int *nodes, int count) {
    const struct region region = {.graph = p->graph, .count = count, .nodes = nodes, .engine = p->engine};
    struct offer offer;
    double each = 0;
    for (int i = 0; i < count; i++)
        each += seconds_alone(p, nodes[i]);
    /* Where a node alone is served by nobody, the sum is INFINITY and the region together may still be served. */
    if (count > 1 && each > 0 && engine_offer(&offer, p->engine, &region, p->device, NULL) == WEFT_STATUS_SUCCESS)
        each = offer.seconds < each ? offer.seconds : each;
    return each;
}

/* Nodes of `nodes` that a region has not; both are sorted. */
static int leave_out(int *left, const int *nodes, int count, const struct region *region) {
    int kept = 0;
    for (int i = 0, k = 0; i < count; i++)
        if (k < region->count && region->nodes[k] == nodes[i])
            k++;
        else
            left[kept++] = nodes[i];
    return kept;
}

/* Whether serving a region together is no dearer than serving apart what was added to it. Equal prices grow: one step
   fewer. */
static bool pays(struct partitioning *p, const struct part *part, const struct part *before) {
    /* The region as it was before it grew, whose nodes are in p->grown. */
    struct region old = {.count = before->region.count, .nodes = p->grown};
    int count = leave_out(p->left, part->region.nodes, part->region.count, &old);
    return part->seconds <= before->seconds + seconds_apart(p, p->left, count);
}

static void set_inside(struct partitioning *p, const struct region *region, bool is_inside) {
    for (int i = 0; i < region->count; i++)
        p->is_inside[region->nodes[i]] = is_inside;
}

/* Adds one more neighbour to a candidate, or several, if family, price and order allow it. part->seconds is that of the
   grown region afterwards; p->nodes holds its nodes. */
static bool grow_once(struct partitioning *p, struct part *part) {
    /* What is tried and refused is undone: nodes and part are put back as they were. */
    const struct part before = *part;
    int count = before.region.count;
    memcpy(p->grown, p->nodes, (size_t)count * sizeof *p->nodes);
    for (int i = 0; i < p->neighbour_count; i++) {
        insert_sorted(p->nodes, part->region.count++, p->neighbours[i]);
        /* From the cheapest question to the dearest: most neighbours fail at the first. */
        if (accepts_with_readers(p, part, p->nodes) && pays(p, part, &before) && is_free(p, &part->region)) {
            set_inside(p, &part->region, true);
            update_neighbours(p, &part->region, p->grown, count);
            return true;
        }
        memcpy(p->nodes, p->grown, (size_t)count * sizeof *p->nodes);
        *part = before;
    }
    return false;
}

/* ---- Shrinking --------------------------------------------------------------------------------------------------- */

/* The nodes outside of a region that read what some of its nodes make, behind these, in order; gives the count of both,
   0 where a reader is in a part already or there are more than READERS_MAX. */
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

/* What nodes, `count` of a list that has room, take beside those that read them, more than these take without: below 0
   where they would read more than what the nodes are made of. INFINITY: nobody serves them together. */
static double seconds_beside_readers(struct partitioning *p, const struct region *region, int *nodes, int count) {
    int both[DROPPED_MAX + READERS_MAX];
    struct region together = {.graph = p->graph, .nodes = both, .engine = p->engine};
    struct offer offer;
    int all = add_outside_readers(p, region, nodes, count);
    for (int i = 0; i < all; i++)
        insert_sorted(both, together.count++, nodes[i]);
    if (all <= count || engine_offer(&offer, p->engine, &together, p->device, NULL))
        return INFINITY;
    return offer.seconds - seconds_apart(p, nodes + count, all - count);
}

/* Whether all that a node makes is read by nodes of a list, or, where `outside`, all of it outside of the region alone:
   and somewhere. Nothing of it is the user's. */
static bool serves_only(const struct partitioning *p, const struct region *region, int n, const struct region *list,
                        bool outside) {
    const struct node *node = &p->graph->nodes[n];
    bool is = true, any = false;
    for (int k = 0; k < node->operand_count && is; k++) {
        if (!node->is_output[k])
            continue;
        is = !value_is_slot(&p->graph->values[node->operands[k]]);
        for (int r = p->reader_start[node->operands[k]]; r < p->reader_start[node->operands[k] + 1] && is; r++) {
            if (p->owner[p->readers[r]] == NOT_NEEDED)
                continue;
            any = true;
            is = outside ? !region_has(region, p->readers[r]) : region_has(list, p->readers[r]);
        }
    }
    return is && any;
}

/* A node that is read outside alone, and all that leads to nothing else, in order; gives their count, 0: there are
   more than DROPPED_MAX or the seed is among them. */
static int gather_dropped(const struct partitioning *p, const struct region *region, int node, int seed, int *dropped) {
    int count = 0;
    insert_sorted(dropped, count++, node);
    for (int i = region->count; i-- > 0;) { /* readers come before what makes what they read */
        const struct region list = {.graph = p->graph, .count = count, .nodes = dropped};
        if (region_has(&list, region->nodes[i]) || !serves_only(p, region, region->nodes[i], &list, false))
            continue;
        if (count == DROPPED_MAX)
            return 0;
        insert_sorted(dropped, count++, region->nodes[i]);
    }
    const struct region list = {.graph = p->graph, .count = count, .nodes = dropped};
    return region_has(&list, seed) ? 0 : count;
}

/* Drops one of several results that a region would leave in memory, where those that read it would sooner make it: a
   mask, of which the region knows no more than they do. */
static bool shrink_once(struct partitioning *p, struct part *part, int seed) {
    int dropped[DROPPED_MAX + READERS_MAX], reader;
    for (int i = part->region.count; i-- > 0 && open_results(p, &part->region, &reader) > 1;) {
        if (!serves_only(p, &part->region, p->nodes[i], NULL, true))
            continue;
        int count = gather_dropped(p, &part->region, p->nodes[i], seed, dropped);
        const struct region list = {.graph = p->graph, .count = count, .nodes = dropped};
        struct region rest = {.graph = p->graph, .nodes = p->grown, .engine = p->engine};
        double seconds;
        rest.count = leave_out(p->grown, p->nodes, part->region.count, &list);
        if (count == 0 || ask(p, part->family, &rest, &seconds) || !is_free(p, &rest) ||
            seconds + seconds_beside_readers(p, &part->region, dropped, count) >= part->seconds)
            continue;
        memcpy(p->nodes, p->grown, (size_t)rest.count * sizeof *p->nodes);
        part->region.count = rest.count;
        part->seconds = seconds;
        return true;
    }
    return false;
}

/* A family may take an operation only together with those that prepare what it alone reads; views among them then show
   nothing to others. `nodes` gets all of them in order; part->region.count is 0 where the family declines. */
static bool accepts_with_companions(struct partitioning *p, struct part *part, int *nodes, int seed) {
    const struct family *family = part->family;
    int count = family->companions ? family->companions(p->graph, seed, nodes) : 0;
    bool are_free = count > 0;
    for (int i = 0; i < count; i++)
        are_free = are_free && (p->owner[nodes[i]] == UNASSIGNED || p->owner[nodes[i]] == VIEW);
    /* The family lists its companions in any order; regions are sorted. */
    for (int i = 1; i < count; i++)
        insert_sorted(nodes, i, nodes[i]);
    insert_sorted(nodes, count, seed);
    part->region.count = are_free ? count + 1 : 0;
    if (are_free && accepts_with_readers(p, part, nodes))
        return true;
    part->region.count = 0;
    return false;
}

/* The usual beginning: the seed by itself, or with what reads it. */
static bool accepts_alone(struct partitioning *p, struct part *part, int *nodes, int seed) {
    nodes[0] = seed;
    part->region.count = 1;
    return accepts_with_readers(p, part, nodes);
}

/* Grows a region from a seed; no candidate where the family does not accept that. */
static weftStatus_t add_candidate(struct partitioning *p, const struct family *family, int seed, bool has_companions) {
    /* Families beyond that only lose the chance to be cheaper; the first ones are tuned. */
    if (p->candidate_count == CANDIDATES_MAX)
        return WEFT_STATUS_SUCCESS;
    struct part *part = &p->candidates[p->candidate_count].part;
    *part = (struct part){.family = family, .region = {.graph = p->graph, .nodes = p->nodes, .engine = p->engine}};
    /* Families with companions are tried both ways, so that both may become candidates. */
    bool is_accepted =
        has_companions ? accepts_with_companions(p, part, p->nodes, seed) : accepts_alone(p, part, p->nodes, seed);
    if (!is_accepted || !is_free(p, &part->region))
        return WEFT_STATUS_SUCCESS;
    set_inside(p, &part->region, true);
    p->shares_reads = family->shares_reads;
    update_neighbours(p, &part->region, NULL, 0);
    /* Ends with the first round in which no neighbour may join; all of the work is in grow_once. */
    while (grow_once(p, part)) {
    }
    forget_neighbours(p);
    set_inside(p, &part->region, false);
    while (shrink_once(p, part, seed)) {
    }
    p->candidate_count++;
    int *nodes;
    TRY(arena_alloc(p->arena, &nodes, (size_t)part->region.count * sizeof *nodes));
    memcpy(nodes, p->nodes, (size_t)part->region.count * sizeof *nodes);
    /* p->nodes is scratch of the next candidate. */
    part->region.nodes = nodes;
    return WEFT_STATUS_SUCCESS;
}

/* Whether a family is not to be asked; nor one that finds the same, and takes another liberty with it. */
static bool is_without(const struct partitioning *p, const struct family *family) {
    const struct family *without = p->without;
    return without && (family == without || (without->companions && family->companions == without->companions));
}

/* All regions that families from the f-th on would serve, if that one does. Families before the f-th have been asked at
   this node already, and have declined. */
static weftStatus_t find_candidates(struct partitioning *p, int f, int seed) {
    p->candidate_count = 0;
    for (int g = f; p->engine->families[g] && (g == f || p->candidate_count > 0); g++) {
        const struct family *family = p->engine->families[g];
        /* The last resort takes everything, at a price that says nothing: it is asked where nobody else begins. */
        if (!engine_uses(p->engine, family) || is_without(p, family) || (g > f && family->is_last_resort))
            continue;
        if (family->companions)
            TRY(add_candidate(p, family, seed, true));
        TRY(add_candidate(p, family, seed, false));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The nodes of all candidates, in order. is_inside is scratch here, all false before and after. */
static int gather_all(struct partitioning *p) {
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

/* The least for all that any of the candidates serves; of equal ones the first. */
static struct candidate *cheapest(struct partitioning *p) {
    /* What one candidate leaves out, somebody else must serve: only sums over the same nodes compare. */
    struct candidate *best = p->candidates;
    int all = gather_all(p);
    for (int c = 0; c < p->candidate_count; c++) {
        struct candidate *candidate = &p->candidates[c];
        int left = leave_out(p->left, p->all, all, &candidate->part.region);
        candidate->seconds = candidate->part.seconds + seconds_apart(p, p->left, left);
        /* Of equal sums the first candidate, so that the list's order decides. */
        best = candidate->seconds < best->seconds ? candidate : best;
    }
    return best;
}

/* What the families say whose candidates were dearer. Each family once: its two candidates stand beside each other. */
static weftStatus_t note_rivals(struct partitioning *p, const struct candidate *best) {
    struct part *part = &p->parts[p->part_count];
    TRY(arena_alloc(p->arena, &part->rivals, (size_t)p->candidate_count * sizeof *part->rivals));
    for (int c = 0; c < p->candidate_count; c++) {
        const struct candidate *rival = &p->candidates[c];
        struct refusal *last = part->rival_count ? &part->rivals[part->rival_count - 1] : NULL;
        if (rival->part.family == best->part.family || (last && last->family == rival->part.family->name))
            continue;
        struct refusal *refusal = &part->rivals[part->rival_count++];
        refusal->family = rival->part.family->name;
        TRY(arena_print(p->arena, &refusal->reason, "%s: predicted to take %.3g us here, %s %.3g us",
                        descriptor_label(region_node(&rival->part.region, 0)->op), rival->seconds * 1e6,
                        best->part.family->name, best->seconds * 1e6));
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t cover_nodes(struct partitioning *p);
static weftStatus_t alloc_all(struct partitioning *p);

/* Covers a region with the families other than the one that would serve it whole. Everything in the other
   partitioning's own arena: the caller frees it at once. Nodes behind whole.count stand for readers outside
   (region_extract) and are not to be served. */
static weftStatus_t cover_apart(struct partitioning *apart, const struct partitioning *p, const struct part *part,
                                double *seconds) {
    struct region whole;
    const int *outer;
    TRY(region_extract(&whole, &outer, &part->region, apart->arena));
    apart->graph = whole.graph;
    TRY(alloc_all(apart));
    for (int n = 0; n < whole.graph->node_count; n++)
        apart->owner[n] = n < whole.count ? p->owner[part->region.nodes[n]] : NOT_NEEDED;
    TRY(cover_nodes(apart));
    *seconds = 0;
    for (int n = 0; n < whole.count; n++)
        *seconds = apart->owner[n] == UNASSIGNED ? INFINITY : *seconds;
    for (int i = 0; i < apart->part_count; i++)
        *seconds += apart->parts[i].seconds;
    return WEFT_STATUS_SUCCESS;
}

/* Whether many operations, written as another one, take longer than the plan of them. Their prices alone, by which
   others compare, know of no fusion. Only for combinations that write many operations as one; a failure to plan apart
   is no answer, and is passed on. */
static weftStatus_t is_dearer(bool *is, struct partitioning *p, const struct part *part, int seed) {
    double seconds;
    struct arena arena = {0};
    struct partitioning apart = {.engine = p->engine,
                                 .device = p->device,
                                 .knobs = p->knobs,
                                 .scratch_limit = p->scratch_limit,
                                 .without = part->family,
                                 .arena = &arena};
    *is = false;
    if (!part->family->combines || !part->family->companions)
        return WEFT_STATUS_SUCCESS;
    weftStatus_t status = cover_apart(&apart, p, part, &seconds);
    arena_free(&arena);
    *is = !status && seconds < part->seconds;
    if (!*is)
        return status;
    p->dearer[seed].family = part->family->name;
    return arena_print(p->arena, &p->dearer[seed].reason, "%s: predicted to take %.3g us here, %.3g us in steps",
                       descriptor_label(p->graph->nodes[seed].op), part->seconds * 1e6, seconds * 1e6);
}

/* One part of the cover: at a node that no part has yet, begun by the f-th family. p->parts has a place for each node,
   so it never overflows. */
static weftStatus_t start_part(struct partitioning *p, int f, int seed) {
    bool is;
    TRY(find_candidates(p, f, seed));
    /* Declined by the f-th family: a later one begins here. */
    if (p->candidate_count == 0)
        return WEFT_STATUS_SUCCESS;
    const struct candidate *best = cheapest(p);
    TRY(is_dearer(&is, p, &best->part, seed));
    /* The node stays unassigned: the families behind this one may begin at it. */
    if (is)
        return WEFT_STATUS_SUCCESS;
    p->parts[p->part_count] = best->part;
    TRY(note_rivals(p, best));
    /* From here on other regions must order themselves around this one as a whole. */
    join_groups(p, &best->part.region);
    for (int i = 0; i < best->part.region.count; i++)
        p->owner[best->part.region.nodes[i]] = p->part_count;
    p->part_count++;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Reasons ----------------------------------------------------------------------------------------------------- */

/* Whether a family's price is among the reasons already. */
static bool is_rival(const struct part *part, const struct family *family) {
    for (int i = 0; i < part->rival_count; i++)
        if (part->rivals[i].family == family->name)
            return true;
    return false;
}

/* Why others do not serve a part: its rivals' prices, and what the families before `until` (all when NULL) say of a
   node on its own. */
static weftStatus_t collect_refusals(struct partitioning *p, struct part *part, int node, const struct family *until) {
    struct region alone = {.graph = p->graph, .count = 1, .nodes = &node, .engine = p->engine};
    int families = 0;
    while (p->engine->families[families])
        families++;
    TRY(arena_alloc(p->arena, &part->refusals, (size_t)(families + part->rival_count) * sizeof *part->refusals));
    /* Rivals' prices first, as they say more than refusals. */
    for (int i = 0; i < part->rival_count; i++)
        part->refusals[part->refusal_count++] = part->rivals[i];
    if (p->dearer[node].family)
        part->refusals[part->refusal_count++] = p->dearer[node];
    for (int f = 0; p->engine->families[f] && p->engine->families[f] != until; f++) {
        double seconds;
        struct refusal *refusal = &part->refusals[part->refusal_count];
        /* A family that accepts the node alone has nothing to say against it. */
        if (!engine_uses(p->engine, p->engine->families[f]) || is_rival(part, p->engine->families[f]) ||
            p->engine->families[f]->name == p->dearer[node].family ||
            ask(p, p->engine->families[f], &alone, &seconds) == WEFT_STATUS_SUCCESS)
            continue;
        refusal->family = p->engine->families[f]->name;
        TRY(arena_print(p->arena, &refusal->reason, "%s", status_text()));
        part->refusal_count++;
    }
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

/* Every family's sentence: an engine that cannot run a graph says what each of them would need. */
static weftStatus_t fail_for_node(struct partitioning *p, int node) {
    struct part nobody = {0};
    struct text reasons;
    text_init(&reasons);
    TRY(collect_refusals(p, &nobody, node, NULL));
    for (int i = 0; i < nobody.refusal_count; i++)
        text_add(&reasons, " %s: %s.", nobody.refusals[i].family, nobody.refusals[i].reason);
    weftStatus_t status =
        status_fail(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "engine %s: no kernel family serves %s.%s",
                    p->engine->name, descriptor_label(p->graph->nodes[node].op), text_string(&reasons));
    text_free(&reasons);
    return status;
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* What an engine is for that does as another one but for one liberty: whether a family takes it at a node. NULL: no
   such engine. */
typedef bool liberty(const struct graph *graph, int node);
static liberty *liberty_of(const struct engine *engine, const struct family *family) {
    return engine->narrows ? family->narrows : engine->reorders ? family->reorders : NULL;
}
static bool is_liberal(const struct engine *engine) { return engine->narrows || engine->reorders; }

/* Cheap, before anything is planned: both questions are about single nodes. */
static bool may_take_liberty(const struct partitioning *p) {
    for (int f = 0; p->engine->families[f]; f++)
        for (int n = 0; n < p->graph->node_count && liberty_of(p->engine, p->engine->families[f]); n++)
            if (p->owner[n] == UNASSIGNED && liberty_of(p->engine, p->engine->families[f])(p->graph, n))
                return true;
    return false;
}

static weftStatus_t fail_without_liberty(const struct partitioning *p) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "engine %s: nothing in %s is %s.", p->engine->name,
         descriptor_label(&p->graph->base), p->engine->narrows ? "narrowed" : "summed in an order that differs");
}

/* An engine that would do as another does is no choice. A single part: then the reason of the family that would have
   taken the liberty says more than the fact. */
static weftStatus_t check_liberty(struct partitioning *p) {
    bool is_taken = !is_liberal(p->engine);
    for (int i = 0; i < p->part_count; i++)
        is_taken = is_taken || liberty_of(p->engine, p->parts[i].family);
    if (is_taken)
        return WEFT_STATUS_SUCCESS;
    double seconds;
    weftStatus_t status = WEFT_STATUS_SUCCESS;
    for (int f = 0; p->part_count == 1 && p->engine->families[f]; f++) /* the most general one's reason counts */
        if (liberty_of(p->engine, p->engine->families[f]))
            status = p->engine->families[f]->accepts(&p->parts[0].region, p->device, &seconds);
    return status ? status : fail_without_liberty(p);
}

/* Family by family, then node by node: a family begins everywhere it can before the next one is heard. What it leaves
   unassigned no family of the engine takes. */
static weftStatus_t cover_nodes(struct partitioning *p) {
    for (int f = 0; p->engine->families[f]; f++)
        for (int n = 0; n < p->graph->node_count; n++)
            if (p->owner[n] == UNASSIGNED && engine_uses(p->engine, p->engine->families[f]))
                TRY(start_part(p, f, n));
    return WEFT_STATUS_SUCCESS;
}

/* Assigns every node that matters, or fails with the reasons for the first that nobody takes. */
static weftStatus_t assign_all(struct partitioning *p) {
    if (is_liberal(p->engine) && !may_take_liberty(p)) /* known before all else is planned as another engine would */
        return fail_without_liberty(p);
    TRY(cover_nodes(p));
    for (int n = 0; n < p->graph->node_count; n++)
        if (p->owner[n] == UNASSIGNED)
            return fail_for_node(p, n);
    if (p->part_count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s computes nothing: every tensor that it writes is virtual. Mark an output.",
             descriptor_label(&p->graph->base));
    return check_liberty(p);
}

static void count_reader(struct partitioning *p, int value, int node) {
    (void)node;
    p->reader_start[value + 1]++;
}

static void put_reader(struct partitioning *p, int value, int node) { p->readers[p->reader_start[value]++] = node; }

/* Node by node, so that each value's readers come in order. */
static void each_reader(struct partitioning *p, void (*visit)(struct partitioning *p, int value, int node)) {
    for (int n = 0; n < p->graph->node_count; n++)
        for (int i = 0; i < p->graph->nodes[n].operand_count; i++)
            if (!p->graph->nodes[n].is_output[i])
                visit(p, p->graph->nodes[n].operands[i], n);
}

/* A node is listed as often as it reads a value. By counting, in two passes: linear in the operands. */
static weftStatus_t list_readers(struct partitioning *p) {
    int values = p->graph->value_count;
    /* Counted one place further on: sums of all before are then where each value's readers begin. */
    TRY(arena_alloc(p->arena, &p->reader_start, ((size_t)values + 1) * sizeof *p->reader_start));
    each_reader(p, count_reader);
    for (int v = 0; v < values; v++)
        p->reader_start[v + 1] += p->reader_start[v];
    TRY(arena_alloc(p->arena, &p->readers, (size_t)p->reader_start[values] * sizeof *p->readers));
    each_reader(p, put_reader); /* which leaves each start where the next one's was */
    memmove(p->reader_start + 1, p->reader_start, (size_t)values * sizeof *p->reader_start);
    p->reader_start[0] = 0;
    return WEFT_STATUS_SUCCESS;
}

/* Arena memory is zeroed: owners, marks and flags begin at 0 or are set right after. */
static weftStatus_t alloc_all(struct partitioning *p) {
    size_t nodes = (size_t)p->graph->node_count;
    TRY(arena_alloc(p->arena, &p->owner, nodes * sizeof *p->owner));
    TRY(arena_alloc(p->arena, &p->parts, (nodes + 1) * sizeof *p->parts));
    TRY(arena_alloc(p->arena, &p->dearer, nodes * sizeof *p->dearer));
    int **lists[] = {&p->nodes, &p->grown,    &p->neighbours,  &p->all,   &p->left,
                     &p->group, &p->position, &p->at_position, &p->behind};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        TRY(arena_alloc(p->arena, lists[i], nodes * sizeof **lists[i]));
    TRY(arena_alloc(p->arena, &p->is_neighbour, nodes * sizeof *p->is_neighbour));
    TRY(arena_alloc(p->arena, &p->is_inside, nodes * sizeof *p->is_inside));
    TRY(arena_alloc(p->arena, &p->alone, nodes * sizeof *p->alone));
    TRY(arena_alloc(p->arena, &p->mark, nodes * sizeof *p->mark));
    /* At first each node is a group of its own, and the graph's order is one in which they may run. */
    for (int n = 0; n < p->graph->node_count; n++)
        p->group[n] = p->position[n] = p->at_position[n] = n;
    return list_readers(p);
}

/* An engine with those families of its list whose bits are not set. */
static weftStatus_t leave_families_out(const struct engine **engine, int64_t bits, struct arena *arena) {
    const struct family *const *const all = (*engine)->families, **kept;
    struct engine *smaller;
    int count = 0, kept_count = 0;
    while (all[count])
        count++;
    TRY(arena_alloc(arena, &kept, ((size_t)count + 1) * sizeof *kept));
    /* Families beyond the knob's bits cannot be named, and stay. */
    for (int f = 0; f < count; f++)
        if (f >= WITHOUT_FAMILIES_BITS || !(bits >> f & 1))
            kept[kept_count++] = all[f];
    TRY(arena_copy(arena, &smaller, *engine, sizeof *smaller));
    smaller->families = kept;
    *engine = smaller;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Covers that are compared ------------------------------------------------------------------------------------ */

enum { SEARCH_NODES = 512 }; /* that covers other than the first two may have together */

/* A graph covered in one of several ways. Attempts are structs on the stack; what they point to is the plan's
   arena's. */
struct attempt {
    struct partitioning p;
    struct views views;
    double seconds;
};

/* `like` gives engine, device and limits; views, the graph in whose layouts families are asked. */
static weftStatus_t attempt_cover(struct attempt *made, const struct partitioning *like, const struct views *views) {
    *made = (struct attempt){.p = *like, .views = *views};
    made->p.graph = views->graph;
    TRY(alloc_all(&made->p));
    drop_needless_nodes(&made->p);
    leave_views_out(&made->p, views);
    TRY(assign_all(&made->p));
    for (int i = 0; i < made->p.part_count; i++)
        made->seconds += made->p.parts[i].seconds;
    return WEFT_STATUS_SUCCESS;
}

/* Parts that are left to a last resort. Prices of a last resort say nothing: who leaves more to one is not cheaper. */
static int last_resorts(const struct attempt *attempt) {
    int count = 0;
    for (int i = 0; i < attempt->p.part_count; i++)
        count += attempt->p.parts[i].family->is_last_resort;
    return count;
}

/* Takes an attempt that is cheaper than the best one. */
static void take_cheaper(struct attempt *best, weftStatus_t status, const struct attempt *other) {
    if (!status && last_resorts(other) <= last_resorts(best) && other->seconds < best->seconds)
        *best = *other;
}

/* Without views in one value's memory, and without gathering one, for each that has some or is. */
static weftStatus_t attempt_apart(struct attempt *best, const struct partitioning *like, const struct graph *graph,
                                  const bool *may_gather, int *budget) {
    const int nodes = graph->node_count;
    bool *is_apart, *was_tried;
    TRY(arena_alloc(like->arena, &is_apart, (size_t)graph->value_count * sizeof *is_apart));
    TRY(arena_alloc(like->arena, &was_tried, (size_t)graph->value_count * sizeof *was_tried));
    const struct view_choices choices = {.is_apart = is_apart, .may_gather = may_gather};
    /* Budgets count nodes: an attempt takes time in proportion to them. */
    for (int v = 0; v < graph->value_count && *budget >= nodes; v++) {
        int whole = best->views.memory[v];
        double before = best->seconds;
        struct attempt other;
        struct views views;
        if ((whole == v && !best->views.graph->values[v].tensor->is_gathered) || was_tried[whole])
            continue;
        was_tried[whole] = is_apart[whole] = true;
        *budget -= nodes;
        TRY(views_find(&views, graph, &choices, like->arena));
        take_cheaper(best, attempt_cover(&other, like, &views), &other);
        is_apart[whole] = best->seconds < before;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Whether a family of the engine may read the parts of a value that a node reads. */
static bool may_read_parts(const struct engine *engine, const struct graph *graph, int node, int value) {
    for (int f = 0; engine->families[f]; f++)
        if (engine_uses(engine, engine->families[f]) && engine->families[f]->gathers &&
            engine->families[f]->gathers(graph, node, value))
            return true;
    return false;
}

/* Of each value, whether all that read it may read the parts that it is joined of; NULL: of none. */
static weftStatus_t find_gatherable(const bool **found, const struct partitioning *like, const struct graph *graph) {
    bool *may = NULL;
    for (int v = 0; v < graph->value_count; v++) {
        const struct value *value = &graph->values[v];
        bool is = value->producer >= 0 && op_of(graph->nodes[value->producer].op) == &concat_op && value->readers > 0;
        for (int r = 0; r < value->readers && is; r++)
            is = may_read_parts(like->engine, graph, value->read_by[r], v);
        if (is && !may)
            TRY(arena_alloc(like->arena, &may, (size_t)graph->value_count * sizeof *may));
        if (is)
            may[v] = true;
    }
    *found = may;
    return WEFT_STATUS_SUCCESS;
}

/* The same without gathering: parts are made in their places or copied there. */
static weftStatus_t attempt_in_place(struct attempt *best, weftStatus_t status, const struct partitioning *like,
                                     const struct graph *graph) {
    struct views views;
    struct attempt other;
    TRY(views_find(&views, graph, &(struct view_choices){0}, like->arena));
    weftStatus_t placed = attempt_cover(&other, like, &views);
    if (status)
        *best = other;
    else
        take_cheaper(best, placed, &other);
    return status ? placed : WEFT_STATUS_SUCCESS;
}

/* With views where there are any and where they pay, or with copies in the places of all, which a family may take
   in. */
static weftStatus_t attempt_views(struct attempt *best, const struct partitioning *like, const struct graph *graph,
                                  int *budget) {
    struct views views;
    struct attempt copies;
    const bool *may_gather;
    TRY(find_gatherable(&may_gather, like, graph));
    TRY(views_find(&views, graph, &(struct view_choices){.may_gather = may_gather}, like->arena));
    weftStatus_t status = attempt_cover(best, like, &views);
    if (views.gathered) { /* what a family may read in parts it may still decline, for all that it is fused with */
        may_gather = status ? NULL : may_gather;
        status = attempt_in_place(best, status, like, graph);
    }
    /* No views: copies would be the same graph. */
    if (views.graph == graph)
        return status;
    if (!status)
        TRY(attempt_apart(best, like, graph, may_gather, budget));
    TRY(views_none(&views, graph, like->arena));
    weftStatus_t other = attempt_cover(&copies, like, &views);
    /* Declined with views, the graph may still be served with copies. */
    if (status)
        *best = copies;
    else
        take_cheaper(best, other, &copies);
    return status ? other : WEFT_STATUS_SUCCESS;
}

/* Without one of its families: what it took was cheapest where it began, and may have left others worse off. */
static void attempt_without(struct attempt *best, const struct partitioning *like, int *budget) {
    for (int i = 0; i < best->p.part_count && *budget >= best->p.graph->node_count; i++) {
        struct partitioning p = *like;
        struct attempt other;
        /* A last resort has nobody behind it. */
        bool was_tried = best->p.parts[i].family->is_last_resort;
        for (int k = 0; k < i; k++)
            was_tried = was_tried || best->p.parts[k].family == best->p.parts[i].family;
        if (was_tried)
            continue;
        *budget -= best->p.graph->node_count;
        p.without = best->p.parts[i].family;
        take_cheaper(best, attempt_cover(&other, &p, &best->views), &other);
    }
}

/* The cheapest of some covers of the whole graph: each takes time linear in its operations, and beyond the first two
   there are as many as SEARCH_NODES has room for. */
static weftStatus_t search_cover(struct attempt *best, const struct partitioning *like, const struct graph *graph) {
    int budget = SEARCH_NODES;
    TRY(attempt_views(best, like, graph, &budget));
    if (best->p.part_count > 1)
        attempt_without(best, like, &budget);
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

/* With some batch norms in parts. */
static weftStatus_t attempt_parts(struct attempt *made, weftStatus_t *status, const struct partitioning *like,
                                  const struct graph *graph, const bool *is_apart) {
    int budget = 0;
    const struct graph *parted;
    TRY(batch_norms_part(&parted, graph, is_apart, like->arena));
    *status = attempt_views(made, like, parted, &budget);
    status_clear();
    return WEFT_STATUS_SUCCESS;
}

/* All batch norms in parts that may be, if that is cheaper; then each the other way, within SEARCH_NODES. */
static weftStatus_t search_parts(struct attempt *best, const struct partitioning *like, const struct graph *graph) {
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
        TRY(attempt_parts(&other, &status, like, graph, is_apart));
        take_cheaper(best, status, &other);
        if (n >= 0 && best->seconds >= before)
            is_apart[n] = !is_apart[n];
        if (n < 0 && best->seconds >= before)
            memset(is_apart, 0, (size_t)graph->node_count * sizeof *is_apart);
        budget -= n >= 0 ? graph->node_count : 0;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Parts are numbered in the order in which they run; views and what nobody needs are in none. */
static weftStatus_t finish(struct cover *cover, struct attempt *attempt) {
    struct partitioning *p = &attempt->p;
    int *order, *place;
    /* order: part by place; place: the way back. */
    TRY(arena_alloc(p->arena, &order, (size_t)p->graph->node_count * sizeof *order));
    TRY(arena_alloc(p->arena, &place, (size_t)p->graph->node_count * sizeof *place));
    put_order(p, order);
    *cover = (struct cover){.views = attempt->views, .count = p->part_count, .part_of_node = p->owner};
    TRY(arena_alloc(p->arena, &cover->parts, (size_t)p->part_count * sizeof *cover->parts));
    for (int i = 0; i < p->part_count; i++) {
        place[order[i]] = i;
        cover->parts[i] = p->parts[order[i]];
        /* Reasons are found for the cover that was chosen alone: asking families again is dear. */
        TRY(collect_refusals(p, &cover->parts[i], cover->parts[i].region.nodes[0], cover->parts[i].family));
    }
    for (int n = 0; n < p->graph->node_count; n++)
        p->owner[n] = p->owner[n] >= 0 ? place[p->owner[n]] : -1;
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
    /* The bits count families of the engine's whole list, so leaving some out comes before all else. */
    int64_t without = knob_value(knobs, WEFT_KNOB_TYPE_WITHOUT_FAMILIES_EXT);
    if (without)
        TRY(leave_families_out(&p.engine, without, arena));
    struct attempt best;
    TRY(graph_check_closed(graph));
    if (engine->stores_narrow)
        TRY(infer_intermediate_types(&graph, graph, arena));
    if (engine->parts_batch_norms)
        TRY(batch_norms_find(&graph, graph, arena));
    TRY(search_cover(&best, &p, graph));
    if (engine->parts_batch_norms)
        TRY(search_parts(&best, &p, graph));
    return finish(cover, &best);
}
