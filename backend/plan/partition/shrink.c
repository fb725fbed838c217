/* SPDX-License-Identifier: Apache-2.0 */
/* Removes one of several results that a region would store if it is cheaper to recompute it in its consumers, such as a
   mask whose inputs they can read just as well. */
#include "plan/partition/cover.h"

#include <math.h>
#include <string.h>

enum {
    DROPPED_MAX = 8, /* operations dropped at once */
    READERS_MAX = 8, /* outside consumers of dropped operations */
};

/* Appends the consumers of the nodes that are outside the region to the list, in order. Returns the new length, or 0 if
   a consumer already has a part or there are more than READERS_MAX. */
static int add_outside_readers(const struct partitioning *p, const struct region *region, int *nodes, int count) {
    int all = count;
    for (int i = 0; i < count; i++) {
        const struct node *node = &p->graph->nodes[nodes[i]];
        for (int k = 0; k < node->operand_count; k++) {
            const struct value *value = &p->graph->values[node->operands[k]];
            for (int r = 0; node->is_output[k] && r < value->readers; r++) {
                const struct region listed = {.count = all - count, .nodes = nodes + count};
                int reader = value->read_by[r];
                if (p->owner[reader] == NOT_NEEDED || region_has(region, reader) || region_has(&listed, reader))
                    continue;
                if (p->owner[reader] != UNASSIGNED || all - count == READERS_MAX)
                    return 0;
                insert_sorted(nodes + count, all++ - count, reader);
            }
        }
    }
    return all;
}

/* Additional time if the consumers of `count` nodes compute these nodes too. Negative if that is cheaper, because the
   consumers would otherwise load more than the nodes read. INFINITY if no family accepts them together. The list must
   have room for the consumers. */
static double extra_seconds_in_readers(struct partitioning *p, const struct region *region, int *nodes, int count) {
    int both[DROPPED_MAX + READERS_MAX];
    struct region together = make_region(p, both, 0);
    struct offer offer;
    int all = add_outside_readers(p, region, nodes, count);
    for (int i = 0; i < all; i++)
        insert_sorted(both, together.count++, nodes[i]);
    if (all <= count || engine_offer(&offer, p->engine, &together, p->device, NULL))
        return INFINITY;
    return offer.seconds - separate_seconds(p, nodes + count, all - count);
}

/* True if the results of a node are used, none is stored in the user's memory, and their consumers are all in a set of
   nodes, or with in_set == false all outside of it. */
static bool feeds_only(const struct partitioning *p, int n, const struct region *set, bool in_set) {
    const struct node *node = &p->graph->nodes[n];
    bool is_used = false;
    for (int k = 0; k < node->operand_count; k++) {
        const struct value *value = &p->graph->values[node->operands[k]];
        if (node->is_output[k] && value_is_slot(value))
            return false;
        for (int r = 0; node->is_output[k] && r < value->readers; r++) {
            if (p->owner[value->read_by[r]] == NOT_NEEDED)
                continue;
            if (region_has(set, value->read_by[r]) != in_set)
                return false;
            is_used = true;
        }
    }
    return is_used;
}

/* Lists, in order, a node whose consumers are all outside the region, and the nodes that only lead to it. Returns their
   number; 0 if there are more than DROPPED_MAX or the seed is among them. */
static int gather_dropped(const struct partitioning *p, const struct region *region, int node, int seed, int *dropped) {
    int count = 0;
    insert_sorted(dropped, count++, node);
    for (int i = region->count; i-- > 0;) { /* consumers come before their producers */
        const struct region list = {.graph = p->graph, .count = count, .nodes = dropped};
        if (region_has(&list, region->nodes[i]) || !feeds_only(p, region->nodes[i], &list, true))
            continue;
        if (count == DROPPED_MAX)
            return 0;
        insert_sorted(dropped, count++, region->nodes[i]);
    }
    const struct region list = {.graph = p->graph, .count = count, .nodes = dropped};
    return region_has(&list, seed) ? 0 : count;
}

static bool shrink_once(struct partitioning *p, struct part *part, int seed) {
    int dropped[DROPPED_MAX + READERS_MAX], reader;
    for (int i = part->region.count; i-- > 0 && open_results(p, &part->region, &reader) > 1;) {
        if (!feeds_only(p, p->nodes[i], &part->region, false))
            continue;
        int count = gather_dropped(p, &part->region, p->nodes[i], seed, dropped);
        const struct region list = {.graph = p->graph, .count = count, .nodes = dropped};
        const struct region rest =
            make_region(p, p->grown, subtract_region(p->grown, p->nodes, part->region.count, &list));
        struct offer offer;
        if (count == 0 || query_family(p, part->family, &rest, &offer) || !is_acyclic(p, &rest) ||
            offer.seconds + extra_seconds_in_readers(p, &part->region, dropped, count) >= part->seconds)
            continue;
        memcpy(p->nodes, p->grown, (size_t)rest.count * sizeof *p->nodes);
        part->region.count = rest.count;
        part->seconds = offer.seconds;
        part->used = offer.used;
        return true;
    }
    return false;
}

void shrink_region(struct partitioning *p, struct part *part, int seed) {
    while (shrink_once(p, part, seed)) {
    }
}
