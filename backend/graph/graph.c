/* SPDX-License-Identifier: Apache-2.0 */
/* Finalizes a graph: collects its tensors as values, each with one uid and one producer; turns its operations, or the
   parts of composite ones, into nodes in topological order; lists the readers of each value. It does not plan, and does
   not know engines. Every step is O(n log n) in the number of operands, so that graphs of thousands of operations are
   fast. */
#include "graph/graph.h"
#include "graph/op_writer.h"

#include <stdlib.h>
#include <string.h>

static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct graph, ops, WEFT_ATTR_OPERATIONGRAPH_OPS, "ops",
              .storage = STORE_LIST, .required = true, .target = TARGET_ANY_OPERATION,
              .doc = "the operations, in any order"),
    VALUE_ROW(WEFT_TYPE_HANDLE, struct graph, handle, WEFT_ATTR_OPERATIONGRAPH_HANDLE, "handle",
              .doc = "device of the graph; optional"),
    VALUE_ROW(WEFT_TYPE_INT64, struct graph, engine_count, WEFT_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
              "engine_global_count", .role = ROLE_RESULT, .doc = "number of engines"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct graph, is_dynamic_shape_enabled,
              WEFT_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, "is_dynamic_shape_enabled",
              .doc = "graphs that differ in shape may share kernels through a kernel cache"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct graph, is_override_shape_enabled,
              WEFT_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, "is_override_shape_enabled",
              .doc = "variant packs may override dims and strides"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct graph, is_same_topology, WEFT_ATTR_OPERATIONGRAPH_IS_SAME_TOPOLOGY,
              "is_same_topology", .role = ROLE_RESULT, .doc = "true: the graph's kernels do not depend on its shapes"),
    VALUE_ROW(WEFT_TYPE_OPERATIONGRAPH_MODE, struct graph, mode, WEFT_ATTR_OPERATIONGRAPH_MODE, "mode", .initial = -1,
              .doc = "hint about the graph's pattern, which Weft determines itself"),
};

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Context of op_each_operand while a node is bound to its values. */
struct collection {
    struct graph *graph;
    struct node *node;
    int capacity;
};

/* Counts operands with the same traversal that later visits them, so that arrays have the right length. `context` is
   the int that counts. */
static weftStatus_t count_operand(void *context, const struct row *row, struct tensor *tensor) {
    (void)row, (void)tensor;
    ++*(int *)context;
    return WEFT_STATUS_SUCCESS;
}

/* `context` is the graph, whose array of values is long enough for all operands. */
static weftStatus_t collect_value(void *context, const struct row *row, struct tensor *tensor) {
    (void)row;
    struct graph *graph = context;
    graph->values[graph->value_count++] = (struct value){.tensor = tensor, .producer = -1};
    return WEFT_STATUS_SUCCESS;
}

/* The address breaks ties between equal uids, so that duplicates of one tensor are adjacent, and so is another tensor
   with the same uid. */
static int by_uid_then_address(const void *a, const void *b) {
    const struct tensor *left = ((const struct value *)a)->tensor, *right = ((const struct value *)b)->tensor;
    if (left->uid != right->uid)
        return left->uid < right->uid ? -1 : 1;
    return (left > right) - (left < right);
}

/* A binary search, because values are sorted by uid. Returns -1 if no tensor of the graph has this uid. */
int graph_find_uid(const struct graph *graph, int64_t uid) {
    int low = 0, high = graph->value_count - 1;
    while (low <= high) {
        /* Cannot overflow, and rounds down. */
        int middle = low + (high - low) / 2;
        int64_t middle_uid = graph->values[middle].tensor->uid;
        if (middle_uid == uid)
            return middle;
        if (middle_uid < uid)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return -1;
}

/* Comparing uids is not enough: another graph may use the number for another tensor. */
int graph_find_value(const struct graph *graph, const struct tensor *tensor) {
    int value = graph_find_uid(graph, tensor->uid);
    return value >= 0 && graph->values[value].tensor == tensor ? value : -1;
}

/* The operations that become nodes, and what each completes (struct node). */
struct node_ops {
    int count;
    struct descriptor **ops;
    struct descriptor **completes;
};

/* Collects every tensor once, sorted by uid; rejects two tensors with the same uid. */
static weftStatus_t collect_values(struct graph *graph, const struct node_ops *of) {
    int operands = 0;
    for (int i = 0; i < of->count; i++)
        TRY(op_each_operand(of->ops[i], count_operand, &operands));
    graph->value_count = 0;
    /* As long as the number of operands: a tensor that several operations use is collected several times, and
       duplicates are removed below. */
    TRY(arena_alloc(&graph->base.arena, &graph->values, (size_t)operands * sizeof *graph->values));
    for (int i = 0; i < of->count; i++)
        TRY(op_each_operand(of->ops[i], collect_value, graph));
    /* Uses of one tensor are adjacent, so it is enough to compare with the last value. */
    qsort(graph->values, (size_t)operands, sizeof *graph->values, by_uid_then_address);
    int count = 0;
    for (int i = 0; i < operands; i++) {
        if (count && graph->values[count - 1].tensor == graph->values[i].tensor)
            continue;
        if (count && graph->values[count - 1].tensor->uid == graph->values[i].tensor->uid)
            FAIL(WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                 "%s: %s and %s are two descriptors with the same uid. Use one descriptor per tensor, or give each its "
                 "own uid.",
                 descriptor_label(&graph->base), descriptor_label(&graph->values[count - 1].tensor->base),
                 descriptor_label(&graph->values[i].tensor->base));
        graph->values[count++] = graph->values[i];
    }
    graph->value_count = count;
    return WEFT_STATUS_SUCCESS;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

/* Appends an operand to its node, as the index of its value, and records the producer. Producers are indices in the
   user's order until sort_nodes renumbers them. */
static weftStatus_t bind_operand(void *context, const struct row *row, struct tensor *tensor) {
    struct collection *collection = context;
    struct graph *graph = collection->graph;
    struct node *node = collection->node;
    /* Always found, because collect_values has collected every operand. */
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

/* Only to find duplicates: addresses differ between runs, so nothing visible to the user may depend on this order. */
static int by_address(const void *a, const void *b) {
    const struct descriptor *left = *(struct descriptor *const *)a, *right = *(struct descriptor *const *)b;
    return (left > right) - (left < right);
}

/* A duplicate node would be a second producer of its outputs; this check reports the cause instead. */
static weftStatus_t check_listed_once(const struct graph *graph, struct arena *scratch) {
    const struct descriptor **sorted;
    size_t count = (size_t)graph->ops.count;
    /* Sorted by address, so that finding duplicates among thousands of operations is not quadratic. */
    TRY(arena_copy(scratch, &sorted, graph->ops.descriptors, count * sizeof *sorted));
    qsort(sorted, count, sizeof *sorted, by_address);
    for (size_t i = 1; i < count; i++)
        if (sorted[i] == sorted[i - 1])
            FAIL(WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "%s: %s is listed twice. List each operation once.",
                 descriptor_label(&graph->base), descriptor_label(sorted[i]));
    return WEFT_STATUS_SUCCESS;
}

/* Replaces composite operations by their parts, whose tensors get uids after those of the graph. Values have been
   collected from the graph's list, and are collected again if it has composite operations. */
static weftStatus_t decompose(struct node_ops *of, struct graph *graph) {
    struct op_writer w = {.arena = &graph->base.arena};
    int composite = 0;
    for (int i = 0; i < of->count; i++)
        composite += op_of(of->ops[i])->decompose != NULL;
    if (composite == 0)
        return WEFT_STATUS_SUCCESS;
    size_t most = (size_t)(of->count - composite) + (size_t)composite * DECOMPOSITION_MAX;
    int64_t last = graph->values[graph->value_count - 1].tensor->uid;
    if (last >= INT64_MAX - (int64_t)most)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: uid %lld leaves no numbers for the tensors within composite operations. Use smaller uids.",
             descriptor_label(&graph->base), (long long)last);
    w.uid = last < 0 ? 1 : last + 1;
    struct descriptor **completes;
    TRY(arena_alloc(&graph->base.arena, &w.ops, most * sizeof(void *)));
    TRY(arena_alloc(&graph->base.arena, &completes, most * sizeof(void *)));
    for (int i = 0; i < of->count; i++) {
        if (op_of(of->ops[i])->decompose)
            TRY(op_of(of->ops[i])->decompose(of->ops[i], &w));
        else
            w.ops[w.count++] = of->ops[i];
        completes[w.count - 1] = of->ops[i];
    }
    *of = (struct node_ops){w.count, w.ops, completes};
    return collect_values(graph, of);
}

/* Creates one node per operation, in the user's order, and binds it to the values. */
static weftStatus_t make_nodes(struct graph *graph, const struct node_ops *of) {
    graph->node_count = of->count;
    TRY(arena_alloc(&graph->base.arena, &graph->nodes, (size_t)graph->node_count * sizeof *graph->nodes));
    for (int i = 0; i < graph->node_count; i++) {
        struct node *node = &graph->nodes[i];
        node->op = of->ops[i];
        node->completes = of->completes[i];
        /* Two parallel arrays with one entry per operand, in the order of rows. */
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

enum { NOT_SORTED = -1, WAITS = -2 /* for its producers, which are being sorted */ };

/* State of the topological sort. All arrays have one entry per node, in the user's order except for `sorted`. */
struct sorting {
    const struct graph *graph;
    int *position; /* per node: index in the new order, NOT_SORTED or WAITS */
    int *waiting;  /* stack of nodes, each of which waits for its successor on the stack */
    int *looked;   /* per waiting node: number of its operands that have been visited */
    struct node *sorted;
    int sorted_count;
};

/* The next producer of a waiting node that is not sorted yet; -1 if the node is ready. */
static int next_missing(struct sorting *sorting, int n) {
    const struct node *node = &sorting->graph->nodes[n];
    for (int i; (i = sorting->looked[n]) < node->operand_count; sorting->looked[n]++) {
        /* Only inputs are waited for: the producer of outputs is this node. */
        int producer = sorting->graph->values[node->operands[i]].producer;
        if (!node->is_output[i] && producer >= 0 && sorting->position[producer] < 0)
            return producer;
    }
    return -1;
}

/* Sorts a node after everything that it depends on. */
static weftStatus_t sort_node(struct sorting *sorting, int node) {
    int depth = 0;
    /* A depth-first search with an explicit stack: chains of operations may be longer than the call stack allows.
       `looked` resumes a node where it stopped, so that the search is linear in the number of operands. */
    for (sorting->waiting[0] = node; depth >= 0;) {
        int n = sorting->waiting[depth], missing = next_missing(sorting, n);
        if (missing < 0) {
            sorting->position[n] = sorting->sorted_count;
            sorting->sorted[sorting->sorted_count++] = sorting->graph->nodes[n];
            depth--;
            continue;
        }
        /* A waiting node is reached again only in a cycle. */
        sorting->position[n] = WAITS;
        if (missing == n || sorting->position[missing] == WAITS)
            FAIL(WEFT_STATUS_BAD_PARAM_CYCLE_EXT,
                 "%s has a cycle through %s: its inputs depend on its outputs. Break it by writing to another tensor.",
                 descriptor_label(&sorting->graph->base), descriptor_label(sorting->graph->nodes[missing].op));
        sorting->waiting[++depth] = missing;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Keeps the user's order as far as producers come before their readers. */
static weftStatus_t sort_nodes(struct graph *graph, struct arena *scratch) {
    struct sorting sorting = {.graph = graph};
    size_t count = (size_t)graph->node_count;
    TRY(arena_alloc(scratch, &sorting.position, count * sizeof *sorting.position));
    TRY(arena_alloc(scratch, &sorting.waiting, count * sizeof *sorting.waiting));
    TRY(arena_alloc(scratch, &sorting.looked, count * sizeof *sorting.looked));
    TRY(arena_alloc(&graph->base.arena, &sorting.sorted, count * sizeof *sorting.sorted));
    for (int n = 0; n < graph->node_count; n++)
        sorting.position[n] = NOT_SORTED;
    for (int n = 0; n < graph->node_count; n++)
        /* Starts with nodes in the user's order, so that an order that is valid already does not change. */
        if (sorting.position[n] < 0)
            TRY(sort_node(&sorting, n));
    /* Producers still have indices in the user's order. */
    graph->nodes = sorting.sorted;
    for (int i = 0; i < graph->value_count; i++)
        if (graph->values[i].producer >= 0)
            graph->values[i].producer = sorting.position[graph->values[i].producer];
    return WEFT_STATUS_SUCCESS;
}

/* ---- Readers ----------------------------------------------------------------------------------------------------- */

/* True if a node must run: an output is the user's, or a node that runs reads it. Readers of its outputs must have been
   counted. */
bool graph_needs(const struct graph *graph, const struct node *node) {
    for (int i = 0; i < node->operand_count; i++) {
        const struct value *value = &graph->values[node->operands[i]];
        if (node->is_output[i] && (value_is_slot(value) || value->readers > 0))
            return true;
    }
    return false;
}

/* Nodes whose results are not needed do not run, and so do not count as readers. Backwards, so that all readers of a
   node's outputs are known before it is visited. */
static int count_readers(struct graph *graph) {
    int count = 0;
    for (int n = graph->node_count; n-- > 0;) {
        const struct node *node = &graph->nodes[n];
        /* All readers come after the node, so they have been counted. */
        bool runs = graph_needs(graph, node);
        for (int i = 0; i < node->operand_count; i++)
            if (runs && !node->is_output[i]) {
                graph->values[node->operands[i]].readers++;
                count++;
            }
    }
    return count;
}

/* Fills read_by of every value with the nodes that read it, in ascending order; a node that reads it twice is listed
   twice. */
static weftStatus_t note_readers(struct graph *graph, struct arena *scratch) {
    /* A single array for the readers of all values, divided by the number of readers of each. */
    int *all, **ends;
    TRY(arena_alloc(&graph->base.arena, &all, (size_t)count_readers(graph) * sizeof *all));
    TRY(arena_alloc(scratch, &ends, (size_t)graph->value_count * sizeof *ends));
    for (int v = 0; v < graph->value_count; v++) {
        graph->values[v].read_by = ends[v] = all;
        all += graph->values[v].readers;
    }
    /* `ends` is the position of the next reader of each value; after the loop it is the beginning of the next value's
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

/* For whole graphs, which can be executed: a virtual tensor that no operation writes would have no memory. */
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

/* Each step relies on the previous ones: values are found by uid, producers by values, the order by producers, readers
   by the order. */
static weftStatus_t make_graph(struct graph *graph, struct arena *scratch) {
    struct node_ops of = {(int)graph->ops.count, graph->ops.descriptors, graph->ops.descriptors};
    TRY(check_listed_once(graph, scratch));
    TRY(collect_values(graph, &of));
    TRY(decompose(&of, graph));
    TRY(make_nodes(graph, &of));
    TRY(sort_nodes(graph, scratch));
    TRY(note_readers(graph, scratch));
    return graph->handle ? graph_check_closed(graph) : WEFT_STATUS_SUCCESS; /* a graph without a handle may be part of
                                                                               an operation */
}

/* The scratch arena is freed here; the graph itself is allocated in its own. */
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

/* Rows have been copied; values and nodes are derived from them again, and belong to the copy. */
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

/* Replacement tensors by value of the graph; NULL keeps the tensor. */
struct exchange {
    const struct graph *graph;
    struct tensor *const *tensors;
};

/* Tensors that are not values of the graph are kept, too. */
static struct tensor *exchange_tensor(const void *context, struct tensor *tensor) {
    const struct exchange *exchange = context;
    int value = graph_find_value(exchange->graph, tensor);
    return value >= 0 && exchange->tensors[value] ? exchange->tensors[value] : tensor;
}

/* True if an operand of an operation is replaced; all other operations are shared with the original graph. */
static bool names_any(const struct node *node, struct tensor *const *tensors) {
    for (int k = 0; k < node->operand_count; k++)
        if (tensors[node->operands[k]])
            return true;
    return false;
}

/* The copy is allocated in `arena`, owns no references, and must not outlive the graph. Order, producers and readers do
   not change, because values keep their indices. */
weftStatus_t graph_exchange(struct graph **result, const struct graph *graph, struct tensor *const *tensors,
                            struct arena *arena) {
    const struct exchange exchange = {graph, tensors};
    struct graph *copy;
    TRY(descriptor_mirror(arena, &copy, &graph->base));
    /* Copies the arrays in which tensors and operations change; their elements are shared. */
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
    *result = copy;
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t graph_rewrite(const struct graph **result, const struct graph *graph, struct descriptor **ops, int count,
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
    *result = copy;
    return status;
}

/* An estimate for reports and rates; includes nodes that are not needed. */
double graph_flops(const struct graph *graph) {
    double flops = 0;
    for (int i = 0; i < graph->node_count; i++)
        flops += op_flops(graph->nodes[i].op);
    return flops;
}
