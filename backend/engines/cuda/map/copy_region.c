/* SPDX-License-Identifier: Apache-2.0 */
/* Builds graphs of copies. Operations are created directly, without descriptors, because all their properties are
   known. */
#include "engines/cuda/map/copy_region.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/transpose.h"

enum { NODES_MAX = 5, VALUES_MAX = 6, OPERANDS_MAX = 4 }; /* limits of the graphs that are built here */

/* A single allocation with pointers into itself: it must not be moved. */
struct small_graph {
    struct graph graph;
    struct value values[VALUES_MAX];
    struct tensor tensors[VALUES_MAX];
    struct node nodes[NODES_MAX];
    int numbers[NODES_MAX], operands[NODES_MAX][OPERANDS_MAX];
    bool is_output[NODES_MAX][OPERANDS_MAX];
    int readers[VALUES_MAX][NODES_MAX * OPERANDS_MAX];
    struct transpose_op move;
    struct pointwise_op ops[NODES_MAX];
    struct pointwise modes[NODES_MAX];
};

/* Adds a value like `tensor` and returns its number. Values are identified and sorted by uids. */
static int add_value(struct small_graph *small, const struct tensor *tensor) {
    int value = small->graph.value_count++;
    small->tensors[value] = tensor_mirror(tensor);
    small->tensors[value].uid = value + 1;
    /* add_node adds its readers. */
    small->values[value] =
        (struct value){.tensor = &small->tensors[value], .producer = -1, .read_by = small->readers[value]};
    return value;
}

/* Adds a float that stays in registers. */
static int add_between(struct small_graph *small, const struct tensor *like) {
    int value = add_value(small, like);
    struct tensor *tensor = &small->tensors[value];
    tensor->type = WEFT_DATA_FLOAT;
    tensor->is_virtual = true;
    return value;
}

/* The last operand is the output. Nodes are added in execution order. */
static void add_node(struct small_graph *small, const struct descriptor *op, int count, const int operands[]) {
    int n = small->graph.node_count++;
    small->numbers[n] = n;
    small->nodes[n] = (struct node){op, op, count, small->operands[n], small->is_output[n]};
    for (int k = 0; k < count; k++) {
        struct value *value = &small->values[operands[k]];
        small->operands[n][k] = operands[k];
        small->is_output[n][k] = k == count - 1;
        if (k == count - 1)
            value->producer = n;
        else
            small->readers[operands[k]][value->readers++] = n;
    }
}

/* Operands are x and y; x, b and y; or x, b, t and y: the inputs and then the output. axis: for GEN_INDEX. */
static void add_pointwise(struct small_graph *small, weftPointwiseMode_t mode, int64_t axis, int count,
                          const int operands[]) {
    int n = small->graph.node_count;
    struct tensor *tensors[OPERANDS_MAX] = {NULL};
    for (int k = 0; k < count - 1; k++)
        tensors[k] = &small->tensors[operands[k]];
    small->modes[n] = (struct pointwise){.base = {.schema = &pointwise_schema, .set_rows = ~UINT64_C(0)},
                                         .mode = (int32_t)mode,
                                         .math = WEFT_DATA_FLOAT,
                                         .axis = axis};
    small->ops[n] = (struct pointwise_op){.base.schema = &pointwise_op.schema,
                                          .pw = &small->modes[n],
                                          .x = tensors[0],
                                          .b = tensors[1],
                                          .t = tensors[2],
                                          .y = &small->tensors[operands[count - 1]],
                                          .alpha1 = 1,
                                          .alpha2 = 1};
    add_node(small, &small->ops[n].base, count, operands);
}

/* Creates a graph of the two tensors that kernels see, without nodes, in `arena`. */
static weftStatus_t make_graph(struct small_graph **out, const struct tensor *from, const struct tensor *to,
                               struct arena *arena) {
    TRY(arena_alloc(arena, out, sizeof **out));
    struct small_graph *small = *out;
    small->graph.nodes = small->nodes;
    small->graph.values = small->values;
    add_value(small, from);
    add_value(small, to);
    small->tensors[COPY_FROM].is_virtual = small->tensors[COPY_TO].is_virtual = false;
    return WEFT_STATUS_SUCCESS;
}

/* Finishes the graph and its region, which has all nodes. */
static void finish_graph(struct region *region, struct small_graph *small) {
    *region = (struct region){.graph = &small->graph, .count = small->graph.node_count, .nodes = small->numbers};
}

/* A transpose without permutation copies bits; identity would convert numbers through the compute type, and quiet
   NaNs. */
weftStatus_t copy_region(struct region *region, const struct tensor *from, const struct tensor *to,
                         struct arena *arena) {
    static const int both[] = {COPY_FROM, COPY_TO};
    struct small_graph *small;
    TRY(make_graph(&small, from, to, arena));
    /* Converts like pointwise operations. */
    if (from->type != to->type) {
        add_pointwise(small, WEFT_POINTWISE_IDENTITY, 0, 2, both);
    } else { /* copies bits unchanged */
        /* Dimension i of the result is dimension i of the source. */
        small->move = (struct transpose_op){
            .base.schema = &transpose_op.schema, .x = &small->tensors[COPY_FROM], .y = &small->tensors[COPY_TO]};
        small->move.permutation.count = from->dims.count;
        for (int64_t i = 0; i < from->dims.count; i++)
            small->move.permutation.at[i] = i;
        add_node(small, &small->move.base, 2, both);
    }
    finish_graph(region, small);
    return WEFT_STATUS_SUCCESS;
}

/* y = row == column ? x : 0, by coordinates along dims 1 and 3; zero is computed as row - row. */
weftStatus_t copy_diagonal_region(struct region *region, const struct tensor *from, const struct tensor *to,
                                  struct arena *arena) {
    struct small_graph *small;
    TRY(make_graph(&small, from, to, arena));
    /* Coordinates are floats, which represent the numbers of merged groups exactly. */
    int row = add_between(small, to), column = add_between(small, to), equal = add_between(small, to),
        zero = add_between(small, to);
    add_pointwise(small, WEFT_POINTWISE_GEN_INDEX, 1, 2, (const int[]){COPY_FROM, row});
    add_pointwise(small, WEFT_POINTWISE_GEN_INDEX, 3, 2, (const int[]){COPY_FROM, column});
    add_pointwise(small, WEFT_POINTWISE_CMP_EQ, 0, 3, (const int[]){row, column, equal});
    add_pointwise(small, WEFT_POINTWISE_SUB, 0, 3, (const int[]){row, row, zero});
    add_pointwise(small, WEFT_POINTWISE_BINARY_SELECT, 0, 4, (const int[]){COPY_FROM, zero, equal, COPY_TO});
    finish_graph(region, small);
    return WEFT_STATUS_SUCCESS;
}
