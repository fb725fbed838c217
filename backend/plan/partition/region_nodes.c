/* SPDX-License-Identifier: Apache-2.0 */
/* Sorted lists of nodes: regions while they grow and shrink. */
#include "plan/partition/cover.h"

struct region make_region(const struct partitioning *p, const int *nodes, int count) {
    return (struct region){
        .graph = p->graph, .count = count, .nodes = nodes, .engine = p->engine, .allow = p->engine->allow};
}

void insert_sorted(int *nodes, int count, int node) {
    int at = count;
    for (; at > 0 && nodes[at - 1] > node; at--)
        nodes[at] = nodes[at - 1];
    nodes[at] = node;
}

int subtract_region(int *rest_nodes, const int *nodes, int count, const struct region *region) {
    int remaining = 0;
    for (int i = 0, k = 0; i < count; i++)
        if (k < region->count && region->nodes[k] == nodes[i])
            k++;
        else
            rest_nodes[remaining++] = nodes[i];
    return remaining;
}

void set_inside(struct partitioning *p, const struct region *region, bool is_inside) {
    for (int i = 0; i < region->count; i++)
        p->is_inside[region->nodes[i]] = is_inside;
}

/* The first consumer of a value that is outside the region and not dead, or -1. */
static int outside_reader(const struct partitioning *p, const struct region *region, const struct value *value) {
    for (int r = 0; r < value->readers; r++)
        if (p->owner[value->read_by[r]] != NOT_NEEDED && !region_has(region, value->read_by[r]))
            return value->read_by[r];
    return -1;
}

int open_results(const struct partitioning *p, const struct region *region, int *reader) {
    int count = 0;
    *reader = -1;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        for (int k = 0; k < node->operand_count; k++) {
            const struct value *value = &p->graph->values[node->operands[k]];
            /* A value in the user's memory is stored in any case, so its consumers are no reason to grow. */
            int m = node->is_output[k] && !value_is_slot(value) ? outside_reader(p, region, value) : -1;
            count += m >= 0;
            *reader = m >= 0 && (*reader < 0 || m < *reader) ? m : *reader;
        }
    }
    return count;
}
