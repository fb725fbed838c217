/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of a graph: operations that one family serves together, the values that they produce, and their readers. A
   region borrows its graph and its list of nodes; an extract is a graph of its own. */
#include "engines/engine.h"
#include "graph/ops/pointwise.h"

#include <string.h>

enum { OUTSIDE_MOST = 2 /* outside readers of a value that an extract represents: none, one, or several */ };

bool node_is_pointwise(const struct node *node) { return op_of(node->op) == &pointwise_op; }

/* Linear search: a region has few nodes. */
bool region_has(const struct region *region, int node) {
    for (int i = 0; i < region->count; i++)
        if (region->nodes[i] == node)
            return true;
    return false;
}

/* Values without a producer are graph inputs, so no region produces them. */
bool region_makes(const struct region *region, int value) {
    int producer = region->graph->values[value].producer;
    return producer >= 0 && region_has(region, producer);
}

/* Also NULL if another region produces the tensor or if it is a graph input. */
const struct node *region_producer(const struct region *region, const struct tensor *tensor) {
    int value = graph_find_value(region->graph, tensor);
    return region_makes(region, value) ? &region->graph->nodes[region->graph->values[value].producer] : NULL;
}

/* A slot is a value for which the user provides memory. */
bool region_exports(const struct region *region, int value) {
    const struct value *read = &region->graph->values[value];
    if (value_is_slot(read))
        return true;
    for (int i = 0; i < read->readers; i++)
        if (!region_has(region, read->read_by[i]))
            return true;
    return false;
}

/* ---- Extracts ---------------------------------------------------------------------------------------------------- */

/* An upper bound on the number of the region's values; lists are allocated with it. */
static int operands_of(const struct region *region) {
    int count = 0;
    for (int i = 0; i < region->count; i++)
        count += region_node(region, i)->operand_count;
    return count;
}

/* Lists the values of a region, each once, in ascending order, and returns their number. Inserts into a sorted list. */
static int list_values(int *outer, const struct region *region) {
    int count = 0;
    for (int i = 0; i < region->count; i++)
        for (int k = 0; k < region_node(region, i)->operand_count; k++) {
            int value = region_node(region, i)->operands[k], at = count;
            while (at > 0 && outer[at - 1] >= value)
                at--;
            if (at < count && outer[at] == value)
                continue;
            memmove(outer + at + 1, outer + at, (size_t)(count++ - at) * sizeof *outer);
            outer[at] = value;
        }
    return count;
}

/* Index of a number in a list, or -1. Linear search: regions have few values. */
static int index_of(const int *sorted, int count, int number) {
    int low = 0;
    while (low < count && sorted[low] != number)
        low++;
    return low < count ? low : -1;
}

static weftStatus_t extract_node(struct node *copy, const struct node *node, const int *outer, int values,
                                 struct arena *arena) {
    /* The operation itself is shared; only the indices of its operands are new. */
    *copy = *node;
    /* Translates operands to the extract's indices. `outer` contains all of them, because list_values visited the same
       nodes. */
    TRY(arena_copy(arena, &copy->operands, node->operands, (size_t)node->operand_count * sizeof *node->operands));
    for (int k = 0; k < node->operand_count; k++)
        copy->operands[k] = index_of(outer, values, node->operands[k]);
    return WEFT_STATUS_SUCCESS;
}

/* Lists the readers of value v: nodes of the region, and placeholders for outside readers. */
static weftStatus_t extract_value(struct graph *graph, int v, const struct value *value, const struct region *region,
                                  struct arena *arena) {
    struct value *copy = &graph->values[v];
    int *readers, inside = 0, outside = 0;
    /* The producer is the node's index in the region, or -1 if it is outside: the value is an input of the extract. */
    *copy =
        (struct value){.tensor = value->tensor, .producer = index_of(region->nodes, region->count, value->producer)};
    TRY(arena_alloc(arena, &readers, (size_t)(operands_of(region) + OUTSIDE_MOST) * sizeof *readers));
    /* Once for each time that a node reads the value, like in the whole graph. */
    for (int i = 0; i < region->count; i++)
        for (int k = 0; k < graph->nodes[i].operand_count; k++)
            if (graph->nodes[i].operands[k] == v && !graph->nodes[i].is_output[k])
                readers[inside++] = i;
    /* Placeholders for outside readers have no operands. They follow the region's own nodes and are never served. */
    for (int r = 0; r < value->readers && outside < OUTSIDE_MOST && inside + outside < value->readers; r++)
        /* Families only ask if a value has outside readers and if it has more than one, so two placeholders suffice. */
        if (!region_has(region, value->read_by[r])) {
            readers[inside + outside++] = graph->node_count;
            graph->nodes[graph->node_count++] = (struct node){.op = region->graph->nodes[value->read_by[r]].op};
        }
    copy->readers = inside + outside;
    copy->read_by = readers;
    return WEFT_STATUS_SUCCESS;
}

/* Runs in time quadratic in the region's operands, independent of the size of the whole graph. All memory is from the
   arena. */
weftStatus_t region_extract(struct region *extract, const int **outer, const struct region *region,
                            struct arena *arena) {
    struct graph *graph;
    int *values, *nodes, operands = operands_of(region);
    /* The extract has the label and handle of the whole graph, for messages. */
    TRY(descriptor_mirror(arena, &graph, &region->graph->base));
    TRY(arena_alloc(arena, &values, (size_t)operands * sizeof *values));
    TRY(arena_alloc(arena, &nodes, (size_t)region->count * sizeof *nodes));
    graph->value_count = list_values(values, region);
    /* Counts the region's nodes for now; extract_value adds the placeholders for outside readers. */
    graph->node_count = region->count;
    TRY(arena_alloc(arena, &graph->values, (size_t)graph->value_count * sizeof *graph->values));
    TRY(arena_alloc(arena, &graph->nodes,
                    (size_t)(region->count + OUTSIDE_MOST * graph->value_count) * sizeof *graph->nodes));
    for (int i = 0; i < region->count; i++) {
        nodes[i] = i;
        TRY(extract_node(&graph->nodes[i], region_node(region, i), values, graph->value_count, arena));
    }
    for (int v = 0; v < graph->value_count; v++)
        TRY(extract_value(graph, v, &region->graph->values[values[v]], region, arena));
    *extract = (struct region){
        .graph = graph, .count = region->count, .nodes = nodes, .engine = region->engine, .allow = region->allow};
    *outer = values;
    return WEFT_STATUS_SUCCESS;
}
