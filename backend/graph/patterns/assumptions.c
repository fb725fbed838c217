/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/patterns/assumptions.h"
#include "graph/ops/attention.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/reduction.h"
#include "graph/ops/rng.h"
#include "graph/patterns/attention.h"

#include <math.h>

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static bool is_unknown_number(const struct tensor *tensor) {
    return tensor && tensor->is_by_value && !tensor->is_constant && tensor_elements(tensor) == 1 &&
           dtype_is_float((weftDataType_t)tensor->type);
}

static const struct pointwise_op *pointwise_at(const struct graph *graph, int node, int mode) {
    const struct descriptor *op = node < 0 ? NULL : graph->nodes[node].op;
    const struct pointwise_op *pointwise = (const struct pointwise_op *)op;
    return op && op_of(op) == &pointwise_op && pointwise->pw->mode == mode ? pointwise : NULL;
}

static int producer_of(const struct graph *graph, const struct tensor *tensor) {
    int value = graph_find_value(graph, tensor);
    return value < 0 ? -1 : graph->values[value].producer;
}

static bool is_result_of(const struct graph *graph, const struct tensor *tensor, const struct op *op) {
    int node = producer_of(graph, tensor);
    return node >= 0 && op_of(graph->nodes[node].op) == op;
}

/* The probability that the graph's dropout keeps a weight; 1 without dropout. */
static double keep_probability(const struct graph *graph) {
    for (int n = 0; n < graph->node_count; n++) {
        const struct rng_op *rng = (const struct rng_op *)graph->nodes[n].op;
        if (op_of(&rng->base) == &rng_op && rng->parameters->distribution == WEFT_RNG_DISTRIBUTION_BERNOULLI)
            return rng->parameters->probability;
    }
    return 1;
}

/* Sub-graphs have descriptors of their own for the tensors of the whole graph. */
static bool is_same(const struct tensor *a, const struct tensor *b) { return a->uid == b->uid; }

/* The number that a scalar usually is where a node reads it. Selects hide scores by -inf. The row sums of the softmax
   gradient are multiplied by the probability with which dropout keeps a weight, and weights that a mask keeps by its
   reciprocal. */
static bool find_usual(double *number, const struct graph *graph, int node, const struct tensor *scalar) {
    const struct pointwise_op *select = pointwise_at(graph, node, WEFT_POINTWISE_BINARY_SELECT);
    const struct pointwise_op *product = pointwise_at(graph, node, WEFT_POINTWISE_MUL);
    if (select && (is_same(select->x, scalar) || is_same(select->b, scalar))) {
        *number = -INFINITY;
        return true;
    }
    if (!product)
        return false;
    const struct tensor *other = is_same(product->x, scalar) ? product->b : product->x;
    const struct pointwise_op *masked = pointwise_at(graph, producer_of(graph, other), WEFT_POINTWISE_MUL);
    double keep = keep_probability(graph);
    if (is_result_of(graph, other, &reduction_op)) {
        *number = keep;
        return true;
    }
    *number = 1 / keep;
    return masked && (is_result_of(graph, masked->x, &rng_op) || is_result_of(graph, masked->b, &rng_op));
}

/* The same for the scalars that a score modifier reads. No value of its graph has readers on record, because nothing
   reads its result. */
static bool find_usual_in_modifier(double *number, const struct descriptor *op, const struct tensor *scalar) {
    const struct attention *a = attention_of(op);
    const struct graph *modifier = a ? a->modifier.graph : NULL;
    int value = modifier ? graph_find_uid(modifier, scalar->uid) : -1;
    for (int n = 0; value >= 0 && n < modifier->node_count; n++)
        if (node_reads(&modifier->nodes[n], value) && find_usual(number, modifier, n, modifier->values[value].tensor))
            return true;
    return false;
}

/* A copy of a scalar with the number of its first reader that has a usual one, or NULL. */
static weftStatus_t assume_scalar(struct tensor **result, const struct graph *graph, const struct value *value,
                                  struct arena *arena) {
    double number;
    bool is_found = false;
    *result = NULL;
    for (int i = 0; i < value->readers && !is_found; i++)
        is_found = find_usual(&number, graph, value->read_by[i], value->tensor) ||
                   find_usual_in_modifier(&number, graph->nodes[value->read_by[i]].op, value->tensor);
    if (!is_found)
        return WEFT_STATUS_SUCCESS;
    TRY(descriptor_mirror(arena, result, &value->tensor->base));
    (*result)->is_assumed = true;
    dtype_store((weftDataType_t)(*result)->type, (*result)->constant, 0, number);
    return WEFT_STATUS_SUCCESS;
}

bool assumption_holds(const struct tensor *tensor, const void *scalar) {
    static const double CLOSE = 1e-6; /* programs round 1 / (1 - p) in one way or another */
    weftDataType_t type = (weftDataType_t)tensor->type;
    double actual = dtype_load(type, (void *)(uintptr_t)scalar, 0);
    double assumed = dtype_load(type, (void *)(uintptr_t)tensor->constant, 0);
    return actual == assumed || (isfinite(assumed) && fabs(actual - assumed) <= CLOSE * fabs(assumed));
}

/* ---- Masks of attention's sub-graphs ----------------------------------------------------------------------------- */

/* Lists the readers of each value of a modifier's graph. */
static weftStatus_t list_readers(struct graph *modifier, struct arena *arena) {
    for (int v = 0; v < modifier->value_count; v++) {
        int *readers;
        TRY(arena_alloc(arena, &readers, (size_t)modifier->node_count * sizeof *readers));
        modifier->values[v].readers = 0;
        modifier->values[v].read_by = readers;
        for (int n = 0; n < modifier->node_count; n++)
            if (node_reads(&modifier->nodes[n], v))
                readers[modifier->values[v].readers++] = n;
    }
    return WEFT_STATUS_SUCCESS;
}

struct listing {
    const struct graph *graph;
    struct node *node;
};

static weftStatus_t list_operand(void *context, const struct row *row, struct tensor *tensor) {
    const struct listing *listing = context;
    struct node *node = listing->node;
    node->is_output[node->operand_count] = op_role(node->op, row) == ROLE_OUTPUT;
    node->operands[node->operand_count++] = graph_find_value(listing->graph, tensor);
    return WEFT_STATUS_SUCCESS;
}

/* Lists the operands of a node again, after its operation has lost some. */
static weftStatus_t list_operands(struct node *node, const struct graph *graph, struct arena *arena) {
    size_t count = (size_t)node->operand_count;
    struct listing listing = {graph, node};
    TRY(arena_alloc(arena, &node->operands, count * sizeof *node->operands));
    TRY(arena_alloc(arena, &node->is_output, count * sizeof *node->is_output));
    node->operand_count = 0;
    return op_each_operand(node->op, list_operand, &listing);
}

/* Replaces the sub-graph of an attention by bounds, if it expresses nothing else. The assumed scalars that it reads are
   relied on then. */
static weftStatus_t replace_modifier(struct node *node, struct graph *graph, struct arena *arena) {
    const struct attention *a = attention_of(node->op);
    struct tensor **tensors;
    struct graph *modifier;
    struct descriptor *op;
    int64_t left, right;
    if (!a || op_of(node->op) != &sdpa_fwd_op || !a->modifier.graph || a->left_bound != ATTENTION_UNBOUNDED ||
        a->right_bound != ATTENTION_UNBOUNDED)
        return WEFT_STATUS_SUCCESS;
    const struct graph *whole = a->modifier.graph;
    TRY(arena_alloc(arena, &tensors, (size_t)whole->value_count * sizeof *tensors));
    for (int v = 0; v < whole->value_count; v++) {
        int value = graph_find_uid(graph, whole->values[v].tensor->uid);
        tensors[v] = value >= 0 && graph->values[value].tensor->is_assumed ? graph->values[value].tensor : NULL;
    }
    TRY(graph_exchange(&modifier, whole, tensors, arena));
    TRY(list_readers(modifier, arena));
    if (!attention_pattern_match_bounds(&left, &right, modifier, a->modifier.input, a->modifier.output))
        return WEFT_STATUS_SUCCESS;
    for (int v = 0; v < whole->value_count; v++)
        if (tensors[v])
            tensors[v]->is_relied_on = true;
    TRY(descriptor_mirror(arena, &op, node->op));
    struct attention *bounded = &((struct sdpa_fwd_op *)op)->a;
    bounded->modifier = (struct score_modifier){.input = -1, .output = -1, .gradient_input = -1, .gradient_output = -1};
    bounded->left_bound = left;
    bounded->right_bound = right;
    bounded->alignment = WEFT_DIAGONAL_TOP_LEFT;
    node->op = op;
    return list_operands(node, graph, arena);
}

weftStatus_t graph_assume(const struct graph **result, const struct graph *graph, struct arena *arena) {
    struct tensor **tensors;
    struct graph *copy;
    bool has_modifier = false, has_number = false;
    *result = graph;
    TRY(arena_alloc(arena, &tensors, (size_t)graph->value_count * sizeof *tensors));
    for (int v = 0; v < graph->value_count && !graph->assumes_nothing; v++) {
        if (is_unknown_number(graph->values[v].tensor))
            TRY(assume_scalar(&tensors[v], graph, &graph->values[v], arena));
        has_number = has_number || tensors[v];
    }
    for (int n = 0; n < graph->node_count; n++)
        has_modifier = has_modifier ||
                       (op_of(graph->nodes[n].op) == &sdpa_fwd_op && attention_of(graph->nodes[n].op)->modifier.graph);
    if (!has_modifier && !has_number)
        return WEFT_STATUS_SUCCESS;
    TRY(graph_exchange(&copy, graph, tensors, arena));
    for (int n = 0; n < copy->node_count && has_modifier; n++)
        TRY(replace_modifier(&copy->nodes[n], copy, arena));
    *result = copy;
    return WEFT_STATUS_SUCCESS;
}
