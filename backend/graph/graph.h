/* SPDX-License-Identifier: Apache-2.0 */
/* An operation graph: nodes in an order in which they can run, and the tensors (values) between them. */
#ifndef WEFT_GRAPH_GRAPH_H
#define WEFT_GRAPH_GRAPH_H

#include "graph/op.h"

/* A tensor's place in a graph. */
struct value {
    struct tensor *tensor;
    int producer;       /* node, or -1 for an input of the graph */
    int readers;        /* how many operands of nodes that are needed read it */
    const int *read_by; /* these nodes in order, one per operand */
};

struct node {
    const struct descriptor *op;
    int operand_count; /* in row order, as op_each_operand visits */
    int *operands;     /* indices of values */
    bool *is_output;   /* per operand */
};

static inline bool node_touches(const struct node *node, int value, bool writes) {
    for (int i = 0; i < node->operand_count; i++)
        if (node->operands[i] == value && node->is_output[i] == writes)
            return true;
    return false;
}

static inline bool node_reads(const struct node *node, int value) { return node_touches(node, value, false); }
static inline bool node_writes(const struct node *node, int value) { return node_touches(node, value, true); }

struct graph {
    struct descriptor base;
    void *handle;
    struct list ops;
    int64_t engine_count; /* filled in by the floor that knows the engines */
    bool is_dynamic_shape_enabled, is_override_shape_enabled, is_same_topology;
    int32_t mode;

    int node_count;
    struct node *nodes; /* sorted: producers before consumers */
    int value_count;
    struct value *values; /* sorted by uid */
};

extern const struct schema graph_schema;

/* The value of a tensor, or -1. */
int graph_find_value(const struct graph *graph, const struct tensor *tensor);

/* The value of a uid, or -1. */
int graph_find_uid(const struct graph *graph, int64_t uid);

/* A value that nobody reads and that has no memory of its own: it need not be computed. */
static inline bool value_is_dead(const struct value *value) { return value->tensor->is_virtual && value->readers == 0; }

/* A value with memory from the variant pack. */
static inline bool value_is_slot(const struct value *value) {
    return !value->tensor->is_virtual && !value->tensor->is_constant;
}

/* Of these, one that no operation of the graph writes. */
static inline bool value_is_input(const struct value *value) { return value->producer < 0 && value_is_slot(value); }

/* Whether the user or a node that is needed reads something that a node makes. */
bool graph_needs(const struct graph *graph, const struct node *node);

/* Every virtual tensor has a producer: a graph that is no part of an operation. */
weftStatus_t graph_check_closed(const struct graph *graph);

/* A copy that nobody holds, with other tensors: of each value its own, or NULL where that stays. Of what it has in
   common with the graph, operations that name no other tensor are a part. */
weftStatus_t graph_exchange(struct graph **made, const struct graph *graph, struct tensor *const *tensors,
                            struct arena *arena);

/* The graph of other operations, whose tensors have each a uid of its own. It lives with the arena and shares them. */
weftStatus_t graph_rewrite(const struct graph **made, const struct graph *graph, struct descriptor **ops, int count,
                           struct arena *arena);

double graph_flops(const struct graph *graph);

#endif
