/* SPDX-License-Identifier: Apache-2.0 */
/* Finalizing a graph: collect the tensors, see that each has one producer and one uid, and sort the operations. */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct graph, ops, WEFT_ATTR_OPERATIONGRAPH_OPS, "ops",
              .storage = STORE_LIST, .required = true, .target = TARGET_ANY_OPERATION,
              .doc = "the operations, in any order"),
    VALUE_ROW(WEFT_TYPE_HANDLE, struct graph, handle, WEFT_ATTR_OPERATIONGRAPH_HANDLE, "handle",
              .doc = "device the graph is meant for; may be left unset"),
    VALUE_ROW(WEFT_TYPE_INT64, struct graph, engine_count, WEFT_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
              "engine_global_count", .role = ROLE_RESULT, .doc = "how many engines there are to ask"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct graph, is_dynamic_shape_enabled,
              WEFT_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, "is_dynamic_shape_enabled",
              .doc = "kernels may be shared through a kernel cache by graphs that differ in shape"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct graph, is_override_shape_enabled,
              WEFT_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, "is_override_shape_enabled",
              .doc = "variant packs may give other dims and strides"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct graph, is_same_topology, WEFT_ATTR_OPERATIONGRAPH_IS_SAME_TOPOLOGY,
              "is_same_topology", .role = ROLE_RESULT, .doc = "true: the graph's kernels do not depend on its shapes"),
    VALUE_ROW(WEFT_TYPE_OPERATIONGRAPH_MODE, struct graph, mode, WEFT_ATTR_OPERATIONGRAPH_MODE, "mode", .initial = -1,
              .doc = "hint about the graph's pattern; Weft finds the pattern itself"),
};

/* ---- Values ------------------------------------------------------------------------------------------------------ */

struct collection {
    struct graph *graph;
    struct node *node;
    int capacity;
};

static weftStatus_t count_operand(void *context, const struct row *row, struct tensor *tensor) {
    (void)row, (void)tensor;
    ++*(int *)context;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t collect_value(void *context, const struct row *row, struct tensor *tensor) {
    (void)row;
    struct graph *graph = context;
    graph->values[graph->value_count++] =
        (struct value){.tensor = tensor, .producer = -1, .first_reader = -1, .last_reader = -1};
    return WEFT_STATUS_SUCCESS;
}

static int by_uid_then_address(const void *a, const void *b) {
    const struct tensor *left = ((const struct value *)a)->tensor, *right = ((const struct value *)b)->tensor;
    if (left->uid != right->uid)
        return left->uid < right->uid ? -1 : 1;
    return (left > right) - (left < right);
}

int graph_find_uid(const struct graph *graph, int64_t uid) {
    int low = 0, high = graph->value_count - 1;
    while (low <= high) {
        int middle = low + (high - low) / 2;
        int64_t found = graph->values[middle].tensor->uid;
        if (found == uid)
            return middle;
        if (found < uid)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return -1;
}

int graph_find_value(const struct graph *graph, const struct tensor *tensor) {
    int value = graph_find_uid(graph, tensor->uid);
    return value >= 0 && graph->values[value].tensor == tensor ? value : -1;
}

/* Gathers every operand once, sorted by uid; two tensors of one uid are refused. */
static weftStatus_t collect_values(struct graph *graph) {
    int operands = 0;
    for (int64_t i = 0; i < graph->ops.count; i++)
        TRY(op_each_operand(graph->ops.descriptors[i], count_operand, &operands));
    graph->value_count = 0;
    TRY(arena_alloc(&graph->base.arena, &graph->values, (size_t)operands * sizeof *graph->values));
    for (int64_t i = 0; i < graph->ops.count; i++)
        TRY(op_each_operand(graph->ops.descriptors[i], collect_value, graph));
    qsort(graph->values, (size_t)operands, sizeof *graph->values, by_uid_then_address);
    int kept = 0;
    for (int i = 0; i < operands; i++) {
        if (kept && graph->values[kept - 1].tensor == graph->values[i].tensor)
            continue;
        if (kept && graph->values[kept - 1].tensor->uid == graph->values[i].tensor->uid)
            FAIL(WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                 "%s: %s and %s are two descriptors with one uid. Use one descriptor per tensor, or give each its own "
                 "uid.",
                 descriptor_label(&graph->base), descriptor_label(&graph->values[kept - 1].tensor->base),
                 descriptor_label(&graph->values[i].tensor->base));
        graph->values[kept++] = graph->values[i];
    }
    graph->value_count = kept;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static weftStatus_t bind_operand(void *context, const struct row *row, struct tensor *tensor) {
    struct collection *collection = context;
    struct graph *graph = collection->graph;
    struct node *node = collection->node;
    int index = graph_find_value(graph, tensor);
    struct value *value = &graph->values[index];
    node->is_output[node->operand_count] = row->role == ROLE_OUTPUT;
    node->operands[node->operand_count++] = index;
    if (row->role != ROLE_OUTPUT)
        return WEFT_STATUS_SUCCESS;
    if (value->producer >= 0)
        FAIL(WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
             "%s: %s is written by %s and by %s. A tensor has one producer: give one of them another output.",
             descriptor_label(&graph->base), descriptor_label(&tensor->base),
             descriptor_label(graph->nodes[value->producer].op), descriptor_label(node->op));
    value->producer = (int)(node - graph->nodes);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t make_nodes(struct graph *graph) {
    graph->node_count = (int)graph->ops.count;
    TRY(arena_alloc(&graph->base.arena, &graph->nodes, (size_t)graph->node_count * sizeof *graph->nodes));
    for (int i = 0; i < graph->node_count; i++) {
        struct node *node = &graph->nodes[i];
        node->op = graph->ops.descriptors[i];
        for (int k = 0; k < i; k++)
            if (graph->nodes[k].op == node->op)
                FAIL(WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "%s: %s is listed twice. List each operation once.",
                     descriptor_label(&graph->base), descriptor_label(node->op));
        int operands = 0;
        TRY(op_each_operand(node->op, count_operand, &operands));
        TRY(arena_alloc(&graph->base.arena, &node->operands, (size_t)operands * sizeof *node->operands));
        TRY(arena_alloc(&graph->base.arena, &node->is_output, (size_t)operands * sizeof *node->is_output));
        struct collection collection = {.graph = graph, .node = node};
        TRY(op_each_operand(node->op, bind_operand, &collection));
    }
    return WEFT_STATUS_SUCCESS;
}

static bool node_is_ready(const struct graph *graph, const struct node *node, const bool *done) {
    for (int i = 0; i < node->operand_count; i++) {
        int producer = graph->values[node->operands[i]].producer;
        if (!node->is_output[i] && producer >= 0 && !done[producer])
            return false;
    }
    return true;
}

/* Kahn's sort, keeping the user's order among nodes that are ready. */
static weftStatus_t sort_nodes(struct graph *graph) {
    bool *done;
    int *place; /* of each node in the new order */
    struct node *sorted;
    size_t count = (size_t)graph->node_count;
    TRY(arena_alloc(&graph->base.arena, &done, count * sizeof *done));
    TRY(arena_alloc(&graph->base.arena, &place, count * sizeof *place));
    TRY(arena_alloc(&graph->base.arena, &sorted, count * sizeof *sorted));
    int placed = 0;
    while (placed < graph->node_count) {
        int next = 0;
        while (next < graph->node_count && (done[next] || !node_is_ready(graph, &graph->nodes[next], done)))
            next++;
        if (next == graph->node_count) {
            for (next = 0; done[next];)
                next++;
            FAIL(WEFT_STATUS_BAD_PARAM_CYCLE_EXT,
                 "%s has a cycle through %s: its inputs depend on its outputs. Break it by writing to another tensor.",
                 descriptor_label(&graph->base), descriptor_label(graph->nodes[next].op));
        }
        done[next] = true;
        place[next] = placed;
        sorted[placed++] = graph->nodes[next];
    }
    graph->nodes = sorted;
    for (int i = 0; i < graph->value_count; i++)
        if (graph->values[i].producer >= 0)
            graph->values[i].producer = place[graph->values[i].producer];
    return WEFT_STATUS_SUCCESS;
}

bool graph_needs(const struct graph *graph, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++) {
        const struct value *value = &graph->values[node->operands[i]];
        if (node->is_output[i] && (value_is_slot(value) || value->readers > 0))
            return true;
    }
    return false;
}

/* A node that nobody needs does not run, and so reads nothing. From the last node on, all readers of what a node makes
   are known before it. */
static void note_readers(struct graph *graph) {
    for (int n = graph->node_count; n-- > 0;) {
        const struct node *node = &graph->nodes[n];
        bool runs = graph_needs(graph, node);
        for (int i = 0; i < node->operand_count && runs; i++) {
            struct value *value = &graph->values[node->operands[i]];
            if (node->is_output[i])
                continue;
            value->readers++;
            value->first_reader = n;
            if (value->last_reader < 0)
                value->last_reader = n;
        }
    }
}

static weftStatus_t check_values(const struct graph *graph) {
    for (int i = 0; i < graph->value_count; i++) {
        const struct value *value = &graph->values[i];
        if (value->tensor->is_virtual && value->producer < 0)
            FAIL(WEFT_STATUS_BAD_PARAM,
                 "%s: %s is virtual and no operation writes it. Add its producer, or make it non-virtual.",
                 descriptor_label(&graph->base), descriptor_label(&value->tensor->base));
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t finalize_graph(struct descriptor *descriptor) {
    struct graph *graph = (struct graph *)descriptor;
    if (graph->ops.count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s has no operations. Set at least one in attribute ops.",
             descriptor_label(descriptor));
    TRY(collect_values(graph));
    TRY(make_nodes(graph));
    TRY(sort_nodes(graph));
    note_readers(graph);
    return check_values(graph);
}

static weftStatus_t copy_graph(struct descriptor *target, const struct descriptor *source) {
    (void)source;
    return finalize_graph(target);
}

const struct schema graph_schema = {
    .kind = WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
    .name = "graph",
    .doc = "operations on tensors that are planned and run together",
    .size = sizeof(struct graph),
    ROWS(rows),
    .finalize = finalize_graph,
    .copy = copy_graph,
};

double graph_flops(const struct graph *graph) {
    double flops = 0;
    for (int i = 0; i < graph->node_count; i++)
        flops += op_flops(graph->nodes[i].op);
    return flops;
}
