/* SPDX-License-Identifier: Apache-2.0 */
/* Finalizing a graph: its tensors are collected as values, each with one uid and one producer; its operations become
   nodes in an order in which all inputs are made before they are read; readers are noted. It plans nothing and knows no
   engine. Nothing takes more than n log n steps for n operands, so that graphs of thousands of operations are quick. */
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

/* What op_each_operand hands on while a node is bound to its values. */
struct collection {
    struct graph *graph;
    struct node *node;
    int capacity;
};

/* Operands are counted by the walk that later visits them, so that arrays are as long as they must be. `context` is the
   int that counts. */
static weftStatus_t count_operand(void *context, const struct row *row, struct tensor *tensor) {
    (void)row, (void)tensor;
    ++*(int *)context;
    return WEFT_STATUS_SUCCESS;
}

/* `context` is the graph, whose array of values has room for every operand. */
static weftStatus_t collect_value(void *context, const struct row *row, struct tensor *tensor) {
    (void)row;
    struct graph *graph = context;
    graph->values[graph->value_count++] = (struct value){.tensor = tensor, .producer = -1};
    return WEFT_STATUS_SUCCESS;
}

/* Of equal uids the address decides, so that one tensor's many uses lie side by side and another with its uid next to
   them. */
static int by_uid_then_address(const void *a, const void *b) {
    const struct tensor *left = ((const struct value *)a)->tensor, *right = ((const struct value *)b)->tensor;
    if (left->uid != right->uid)
        return left->uid < right->uid ? -1 : 1;
    return (left > right) - (left < right);
}

/* A binary search: values are sorted by uid. -1: no tensor of the graph has it. */
int graph_find_uid(const struct graph *graph, int64_t uid) {
    int low = 0, high = graph->value_count - 1;
    while (low <= high) {
        /* Written so that it cannot overflow, and rounds down. */
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

/* The same uid is not enough: another graph may use the number for another tensor. */
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
    /* As long as all operands together: a tensor that several operations use comes once for each, and is dropped
       below. */
    TRY(arena_alloc(&graph->base.arena, &graph->values, (size_t)operands * sizeof *graph->values));
    for (int64_t i = 0; i < graph->ops.count; i++)
        TRY(op_each_operand(graph->ops.descriptors[i], collect_value, graph));
    /* Uses of one tensor are neighbours now, so that a duplicate can only be of the value kept last. */
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

/* Makes an operand the next one of its node, as the index of its value, and notes who writes it. Producers are places
   in the user's order until sort_nodes numbers them anew. */
static weftStatus_t bind_operand(void *context, const struct row *row, struct tensor *tensor) {
    struct collection *collection = context;
    struct graph *graph = collection->graph;
    struct node *node = collection->node;
    /* Found always: collect_values has seen every operand. */
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

/* For duplicates alone: addresses differ from run to run, so nothing that the user sees may depend on this order. */
static int by_address(const void *a, const void *b) {
    const struct descriptor *left = *(struct descriptor *const *)a, *right = *(struct descriptor *const *)b;
    return (left > right) - (left < right);
}

/* A node that came twice would be its own second producer; this names the cause rather than that. */
static weftStatus_t check_listed_once(const struct graph *graph, struct arena *scratch) {
    const struct descriptor **sorted;
    size_t count = (size_t)graph->ops.count;
    /* Sorted by address, so that finding duplicates stays below quadratic for graphs of thousands of operations. */
    TRY(arena_copy(scratch, &sorted, graph->ops.descriptors, count * sizeof *sorted));
    qsort(sorted, count, sizeof *sorted, by_address);
    for (size_t i = 1; i < count; i++)
        if (sorted[i] == sorted[i - 1])
            FAIL(WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "%s: %s is listed twice. List each operation once.",
                 descriptor_label(&graph->base), descriptor_label(sorted[i]));
    return WEFT_STATUS_SUCCESS;
}

/* One node an operation, in the user's order, bound to the values that collect_values found. */
static weftStatus_t make_nodes(struct graph *graph) {
    graph->node_count = (int)graph->ops.count;
    TRY(arena_alloc(&graph->base.arena, &graph->nodes, (size_t)graph->node_count * sizeof *graph->nodes));
    for (int i = 0; i < graph->node_count; i++) {
        struct node *node = &graph->nodes[i];
        node->op = graph->ops.descriptors[i];
        /* Two arrays side by side, an entry for each operand in the order of rows. */
        int operands = 0;
        TRY(op_each_operand(node->op, count_operand, &operands));
        TRY(arena_alloc(&graph->base.arena, &node->operands, (size_t)operands * sizeof *node->operands));
        TRY(arena_alloc(&graph->base.arena, &node->is_output, (size_t)operands * sizeof *node->is_output));
        struct collection collection = {.graph = graph, .node = node};
        TRY(op_each_operand(node->op, bind_operand, &collection));
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Order ------------------------------------------------------------------------------------------------------- */

enum { NOT_PLACED = -1, WAITS = -2 /* for its producers, which are being placed */ };

/* What placing nodes keeps; all arrays have an entry per node, in the user's numbering but for `sorted`. */
struct sorting {
    const struct graph *graph;
    int *place;   /* of each node in the new order, or one of the above */
    int *waiting; /* nodes that wait, each for one that the next one makes */
    int *looked;  /* of each node that waits, how many of its operands are made */
    struct node *sorted;
    int placed;
};

/* The next producer that a waiting node needs and that is not placed; -1: none, it is ready. */
static int next_missing(struct sorting *sorting, int n) {
    const struct node *node = &sorting->graph->nodes[n];
    for (int i; (i = sorting->looked[n]) < node->operand_count; sorting->looked[n]++) {
        /* Inputs alone wait: outputs have this node as their producer. */
        int producer = sorting->graph->values[node->operands[i]].producer;
        if (!node->is_output[i] && producer >= 0 && sorting->place[producer] < 0)
            return producer;
    }
    return -1;
}

/* Places a node behind all that it needs. */
static weftStatus_t place_node(struct sorting *sorting, int node) {
    int depth = 0;
    /* A depth-first search with a stack of its own: chains of operations may be longer than the machine's stack is
       deep. `looked` lets a node go on where it stopped, which keeps it linear in operands. */
    for (sorting->waiting[0] = node; depth >= 0;) {
        int n = sorting->waiting[depth], missing = next_missing(sorting, n);
        if (missing < 0) {
            sorting->place[n] = sorting->placed;
            sorting->sorted[sorting->placed++] = sorting->graph->nodes[n];
            depth--;
            continue;
        }
        /* A node that waits is met again only where its own output leads back to it. */
        sorting->place[n] = WAITS;
        if (missing == n || sorting->place[missing] == WAITS)
            FAIL(WEFT_STATUS_BAD_PARAM_CYCLE_EXT,
                 "%s has a cycle through %s: its inputs depend on its outputs. Break it by writing to another tensor.",
                 descriptor_label(&sorting->graph->base), descriptor_label(sorting->graph->nodes[missing].op));
        sorting->waiting[++depth] = missing;
    }
    return WEFT_STATUS_SUCCESS;
}

/* The user's order, but with producers before their readers. */
static weftStatus_t sort_nodes(struct graph *graph, struct arena *scratch) {
    struct sorting sorting = {.graph = graph};
    size_t count = (size_t)graph->node_count;
    TRY(arena_alloc(scratch, &sorting.place, count * sizeof *sorting.place));
    TRY(arena_alloc(scratch, &sorting.waiting, count * sizeof *sorting.waiting));
    TRY(arena_alloc(scratch, &sorting.looked, count * sizeof *sorting.looked));
    TRY(arena_alloc(&graph->base.arena, &sorting.sorted, count * sizeof *sorting.sorted));
    for (int n = 0; n < graph->node_count; n++)
        sorting.place[n] = NOT_PLACED;
    for (int n = 0; n < graph->node_count; n++)
        /* Nodes are begun in the user's order, so that an order which is legal already stays as it is. */
        if (sorting.place[n] < 0)
            TRY(place_node(&sorting, n));
    /* Producers were numbered in the user's order. */
    graph->nodes = sorting.sorted;
    for (int i = 0; i < graph->value_count; i++)
        if (graph->values[i].producer >= 0)
            graph->values[i].producer = sorting.place[graph->values[i].producer];
    return WEFT_STATUS_SUCCESS;
}

/* ---- Readers ----------------------------------------------------------------------------------------------------- */

/* Whether a node must run: some output is the user's, or a node that runs reads it. Readers of what it writes must have
   been counted. */
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
static int count_readers(struct graph *graph) {
    int count = 0;
    for (int n = graph->node_count; n-- > 0;) {
        const struct node *node = &graph->nodes[n];
        /* Its own readers are counted by now, as all of them stand behind it. */
        bool runs = graph_needs(graph, node);
        for (int i = 0; i < node->operand_count; i++)
            if (runs && !node->is_output[i]) {
                graph->values[node->operands[i]].readers++;
                count++;
            }
    }
    return count;
}

/* Fills read_by of every value with the nodes that read it, ascending; one that reads it twice stands there twice. */
static weftStatus_t note_readers(struct graph *graph, struct arena *scratch) {
    /* One array for the readers of all values, each value's part as long as it has readers. */
    int *all, **ends;
    TRY(arena_alloc(&graph->base.arena, &all, (size_t)count_readers(graph) * sizeof *all));
    TRY(arena_alloc(scratch, &ends, (size_t)graph->value_count * sizeof *ends));
    for (int v = 0; v < graph->value_count; v++) {
        graph->values[v].read_by = ends[v] = all;
        all += graph->values[v].readers;
    }
    /* `ends` is where the next reader of each value goes; after the loop it is the beginning of the next value's
       part. */
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->nodes[n];
        bool runs = graph_needs(graph, node);
        for (int i = 0; i < node->operand_count; i++)
            if (runs && !node->is_output[i])
                *ends[node->operands[i]]++ = n;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Of a whole graph, which can be run: nobody could give memory to a virtual tensor that no operation writes. */
weftStatus_t graph_check_closed(const struct graph *graph) {
    for (int i = 0; i < graph->value_count; i++) {
        const struct value *value = &graph->values[i];
        if (value->tensor->is_virtual && value->producer < 0)
            FAIL(WEFT_STATUS_BAD_PARAM,
                 "%s: %s is virtual and no operation writes it. Add its producer, or make it non-virtual.",
                 descriptor_label(&graph->base), descriptor_label(&value->tensor->base));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Each step relies on those before: values are found by uid, producers by values, the order by producers, readers by
   the order. */
static weftStatus_t make_graph(struct graph *graph, struct arena *scratch) {
    TRY(check_listed_once(graph, scratch));
    TRY(collect_values(graph));
    TRY(make_nodes(graph));
    TRY(sort_nodes(graph, scratch));
    TRY(note_readers(graph, scratch));
    return graph->handle ? graph_check_closed(graph) : WEFT_STATUS_SUCCESS; /* else it may be a part of an operation */
}

/* The scratch arena dies here; what the graph keeps is in its own. */
static weftStatus_t finalize_graph(struct descriptor *descriptor) {
    struct graph *graph = (struct graph *)descriptor;
    struct arena scratch = {0};
    if (graph->ops.count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s has no operations. Set at least one in attribute ops.",
             descriptor_label(descriptor));
    weftStatus_t status = make_graph(graph, &scratch);
    arena_free(&scratch);
    return status;
}

/* Rows are copied already; values and nodes follow from them, and are the copy's own. */
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

/* Tensors by value of the graph; NULL: the value keeps its own. */
struct exchange {
    const struct graph *graph;
    struct tensor *const *tensors;
};

/* Also of tensors that the graph does not have as values: they stay. */
static struct tensor *exchange_tensor(const void *context, struct tensor *tensor) {
    const struct exchange *exchange = context;
    int value = graph_find_value(exchange->graph, tensor);
    return value >= 0 && exchange->tensors[value] ? exchange->tensors[value] : tensor;
}

/* Whether an operation has an operand that is exchanged; all others are shared with the original graph. */
static bool names_any(const struct node *node, struct tensor *const *tensors) {
    for (int k = 0; k < node->operand_count; k++)
        if (tensors[node->operands[k]])
            return true;
    return false;
}

/* The copy lives in `arena`, holds nothing and must not outlive the graph. Order, producers and readers stay, since
   places of values do. */
weftStatus_t graph_exchange(struct graph **made, const struct graph *graph, struct tensor *const *tensors,
                            struct arena *arena) {
    const struct exchange exchange = {graph, tensors};
    struct graph *copy;
    TRY(descriptor_mirror(arena, &copy, &graph->base));
    /* Arrays of its own, as tensors and operations change in them; what entries point to is shared. */
    TRY(arena_copy(arena, &copy->values, graph->values, (size_t)graph->value_count * sizeof *copy->values));
    TRY(arena_copy(arena, &copy->nodes, graph->nodes, (size_t)graph->node_count * sizeof *copy->nodes));
    for (int v = 0; v < graph->value_count; v++)
        if (tensors[v])
            copy->values[v].tensor = tensors[v];
    for (int n = 0; n < graph->node_count; n++)
        if (names_any(&graph->nodes[n], tensors)) {
            struct descriptor *op;
            TRY(op_exchange(&op, graph->nodes[n].op, exchange_tensor, &exchange, arena));
            copy->nodes[n].op = op;
        }
    *made = copy;
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t graph_rewrite(const struct graph **made, const struct graph *graph, struct descriptor **ops, int count,
                           struct arena *arena) {
    struct arena scratch = {0};
    struct graph *copy;
    TRY(descriptor_mirror(arena, &copy, &graph->base));
    copy->base.arena = (struct arena){0};
    copy->ops.descriptors = ops;
    copy->ops.count = count;
    weftStatus_t status = make_graph(copy, &scratch);
    arena_join(arena, &copy->base.arena);
    arena_free(&scratch);
    *made = copy;
    return status;
}

/* An estimate for reports and rates; nodes that nobody needs count, too. */
double graph_flops(const struct graph *graph) {
    double flops = 0;
    for (int i = 0; i < graph->node_count; i++)
        flops += op_flops(graph->nodes[i].op);
    return flops;
}
