/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which groups (parts and single nodes) run. A region may only become a part if merging its groups closes
   no dependency cycle. */
#include "plan/partition/cover.h"

/* The nodes that run together with a node: its part, or only itself. */
static struct region region_of_group(const struct partitioning *p, const int *node) {
    if (p->owner[*node] >= 0)
        return p->parts[p->owner[*node]].region;
    return (struct region){.graph = p->graph, .count = 1, .nodes = node};
}

/* PLAIN: neither of the others; MEMBER: a group of the region in question; REACHED: depends on a member, directly or
   not. */
enum mark { PLAIN, MEMBER, REACHED };

/* The highest mark among the groups whose results a group reads. */
static enum mark highest_mark_read(const struct partitioning *p, int name) {
    const struct region group = region_of_group(p, &name);
    enum mark highest = PLAIN;
    for (int k = 0; k < group.count; k++) {
        const struct node *node = region_node(&group, k);
        for (int i = 0; i < node->operand_count; i++) {
            int producer = p->graph->values[node->operands[i]].producer;
            if (!node->is_output[i] && producer >= 0 && p->mark[p->group[producer]] > (char)highest)
                highest = (enum mark)p->mark[p->group[producer]];
        }
    }
    return highest;
}

/* Marks the groups between positions `first` and `last` that depend on a member; false if a member depends on one of
   them, which closes a cycle. One pass is enough, because at_position is a topological order. */
static bool mark_reached(struct partitioning *p, int first, int last) {
    for (int at = first; at <= last; at++) {
        int name = p->at_position[at];
        enum mark read = name >= 0 ? highest_mark_read(p, name) : PLAIN;
        if (read == REACHED && p->mark[name] == MEMBER)
            return false;
        if (read != PLAIN && p->mark[name] == PLAIN)
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

bool is_acyclic(struct partitioning *p, const struct region *region) {
    int first, last;
    bool acyclic = mark_region(p, region, &first, &last);
    unmark(p, region, first, last);
    return acyclic;
}

void join_groups(struct partitioning *p, const struct region *region) {
    int first, last, name = p->group[region->nodes[0]];
    mark_region(p, region, &first, &last);
    reorder(p, first, last, name);
    unmark(p, region, first, last);
    for (int i = 0; i < region->count; i++)
        p->group[region->nodes[i]] = name;
}

/* Groups without a part are dead nodes or views. */
void list_order(const struct partitioning *p, int *order) {
    int count = 0;
    for (int at = 0; at < p->graph->node_count; at++) {
        int group = p->at_position[at];
        if (group >= 0 && p->owner[group] >= 0)
            order[count++] = p->owner[group];
    }
}
