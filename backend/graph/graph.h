/* SPDX-License-Identifier: Apache-2.0 */
/* An operation graph: nodes in topological order, and the tensors (values) between them. */
#ifndef WEFT_GRAPH_GRAPH_H
#define WEFT_GRAPH_GRAPH_H

#include "graph/op.h"

/* A tensor as a value of the graph. */
struct value {
    struct tensor *tensor;
    int producer;       /* index of the node, or -1 for an input of the graph */
    int readers;        /* number of operands of needed nodes that read it */
    const int *read_by; /* these nodes in ascending order, one entry per operand */
};

struct node {
    const struct descriptor *op;
    /* The operation of the graph's list that the node completes: op itself, or the composite operation whose last part
       it is; NULL for its other parts. */
    const struct descriptor *completes;
    int operand_count; /* in row order, like the visits of op_each_operand */
    int *operands;     /* indices of values */
    bool *is_output;   /* per operand */
};

static inline bool node_reads(const struct node *node, int value) {
    for (int i = 0; i < node->operand_count; i++)
        if (node->operands[i] == value && !node->is_output[i])
            return true;
    return false;
}

/* The first result. */
static inline int node_result(const struct node *node) {
    int i = 0;
    while (!node->is_output[i])
        i++;
    return node->operands[i];
}

struct graph {
    struct descriptor base;
    void *handle;
    struct list ops;
    int64_t engine_count; /* set by a higher layer, which knows the engines */
    bool assumes_nothing; /* set by a higher layer: no by-value scalar is assumed to have its usual number */
    bool is_dynamic_shape_enabled, is_override_shape_enabled, is_same_topology;
    int32_t mode;

    int node_count;
    struct node *nodes; /* in topological order */
    int value_count;
    struct value *values; /* sorted by uid */
};

extern const struct schema graph_schema;

/* Returns the value of a tensor, or -1. */
int graph_find_value(const struct graph *graph, const struct tensor *tensor);

/* Returns the value of a uid, or -1. */
int graph_find_uid(const struct graph *graph, int64_t uid);

/* True for a value without readers and without memory of its own: it need not be computed. */
static inline bool value_is_dead(const struct value *value) { return value->tensor->is_virtual && value->readers == 0; }

/* True for a value whose memory comes from the variant pack. */
static inline bool value_is_slot(const struct value *value) {
    return !value->tensor->is_virtual && !value->tensor->is_constant;
}

/* True for such a value if no operation of the graph writes it. */
static inline bool value_is_input(const struct value *value) { return value->producer < 0 && value_is_slot(value); }

/* True if a result of a node is an output, or an operand of a needed node. */
bool graph_needs(const struct graph *graph, const struct node *node);

/* Checks that every virtual tensor has a producer, which sub-graphs of an operation need not satisfy. */
weftStatus_t graph_check_closed(const struct graph *graph);

/* A copy without a reference count in which some tensors are replaced: tensors[i] replaces that of value i, unless it
   is NULL. Shares operations whose tensors are unchanged with the graph. */
weftStatus_t graph_exchange(struct graph **result, const struct graph *graph, struct tensor *const *tensors,
                            struct arena *arena);

/* A graph of other operations, whose tensors have distinct uids. It is allocated in the arena and shares the
   operations. */
weftStatus_t graph_rewrite(const struct graph **result, const struct graph *graph, struct descriptor **ops, int count,
                           struct arena *arena);

double graph_flops(const struct graph *graph);

#endif
