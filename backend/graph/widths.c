/* SPDX-License-Identifier: Apache-2.0 */
/* From the first node to the last: a result whose type was left unset, and is FLOAT as that is what is calculated in,
   is stored in the type of its operands where that has 16 bits. Statistics and other sums of rows stay as they are:
   they are small, and what is made of them is not. So does what outputs of FLOAT are made of. What is made of no
   floats, as a one-hot vector of comparisons, lends no type to what it is joined with. */
#include "graph/widths.h"
#include "base/number.h"
#include "graph/ops/attention.h"
#include "graph/ops/bn_finalize.h"
#include "graph/ops/genstats.h"
#include "graph/ops/norm.h"
#include "graph/ops/reduction.h"

struct search {
    const struct graph *graph;
    struct tensor **tensors; /* of each value: a narrower one, or NULL */
    bool *is_fixed;          /* of each value: it stays as it is */
    bool *is_made_of_none;   /* of each value: no tensor of floats is behind it, but comparisons and numbers */
    struct arena *arena;
};

static const struct tensor *tensor_at(const struct search *s, int value) {
    return s->tensors[value] ? s->tensors[value] : s->graph->values[value].tensor;
}

static bool is_statistic(const struct descriptor *op) {
    return op_of(op) == &reduction_op || op_of(op) == &genstats_op || op_of(op) == &bn_finalize_op;
}

/* A score modifier's graph names tensors of its own accord. */
static void fix_modified(struct search *s, const struct descriptor *op) {
    const struct attention *attention = attention_of(op);
    const struct graph *modifier = attention ? attention->modifier.graph : NULL;
    for (int v = 0; modifier && v < modifier->value_count; v++) {
        int value = graph_find_value(s->graph, modifier->values[v].tensor);
        if (value >= 0)
            s->is_fixed[value] = true;
    }
}

/* Whether a tensor holds numbers in two dimensions or more: a factor or a bias of features lends no type to what it is
   applied to. */
static bool is_wide(const struct tensor *tensor) {
    int extents = 0;
    for (int64_t i = 0; i < tensor->dims.count; i++)
        extents += tensor->dims.at[i] != 1;
    return extents >= 2;
}

/* Of norms and attention the first operand alone, x, dy or q, lends its type: beside it are statistics of FLOAT. */
static bool lends_type(const struct node *node, int k) {
    const struct op *op = op_of(node->op);
    bool has_statistics = op == &norm_forward_op || op == &norm_backward_op || attention_of(node->op);
    return !node->is_output[k] && (k == 0 || !has_statistics);
}

/* The type of what a node reads: of its tensors of several dimensions, if it has any. */
static weftDataType_t type_of_operands(const struct search *s, const struct node *node, bool are_wide) {
    weftDataType_t type = (weftDataType_t)TENSOR_NO_TYPE;
    for (int k = 0; k < node->operand_count; k++) {
        /* As narrowed by now, so that a chain of operations stays narrow. */
        const struct tensor *tensor = tensor_at(s, node->operands[k]);
        bool counts = lends_type(node, k) && dtype_is_float((weftDataType_t)tensor->type) && !tensor->is_by_value &&
                      !tensor->is_constant && !s->is_made_of_none[node->operands[k]] && (!are_wide || is_wide(tensor));
        if (counts)
            type = (int32_t)type == TENSOR_NO_TYPE ? (weftDataType_t)tensor->type
                                                   : dtype_promote(type, (weftDataType_t)tensor->type);
    }
    return type;
}

/* Elements of the node's largest output: smaller ones beside it are its statistics. */
static int64_t largest_result(const struct search *s, const struct node *node) {
    int64_t most = 0;
    for (int k = 0; k < node->operand_count; k++)
        if (node->is_output[k])
            most = max64(most, tensor_elements(tensor_at(s, node->operands[k])));
    return most;
}

/* Whether a result lies as an operand of this type does, as gradients do: those of keys that serve several heads of
   queries are smaller than that of the queries. */
static bool is_like_operand(const struct search *s, const struct node *node, int value, weftDataType_t type) {
    const struct tensor *result = tensor_at(s, value);
    for (int k = 0; k < node->operand_count && is_wide(result); k++) {
        const struct tensor *operand = tensor_at(s, node->operands[k]);
        if (!node->is_output[k] && operand->type == (int32_t)type && tensor_same_dims(operand, result))
            return true;
    }
    return false;
}

/* An intermediate that the user gave no type, and that was inferred to be FLOAT. */
static bool is_free(const struct search *s, int value) {
    const struct tensor *tensor = tensor_at(s, value);
    return tensor->is_virtual && tensor->type == WEFT_DATA_FLOAT && !s->is_fixed[value] &&
           !descriptor_row_is_set(&tensor->base, WEFT_ATTR_TENSOR_DATA_TYPE);
}

/* Whether a node makes floats that were asked for: an output of several dimensions, or what one is made of. */
static bool makes_floats(const struct search *s, const struct node *node) {
    int64_t most = largest_result(s, node);
    for (int k = 0; k < node->operand_count; k++) {
        const struct tensor *tensor = tensor_at(s, node->operands[k]);
        if (node->is_output[k] && tensor->type == WEFT_DATA_FLOAT && !is_free(s, node->operands[k]) &&
            is_wide(tensor) && tensor_elements(tensor) == most)
            return !is_statistic(node->op);
    }
    return false;
}

/* What they are made of is exact: results that are wider than 16 bits are as exact as their type. */
static void fix_operands(struct search *s, const struct node *node) {
    for (int k = 0; k < node->operand_count && makes_floats(s, node); k++)
        if (!node->is_output[k])
            s->is_fixed[node->operands[k]] = true;
}

/* The copy is marked free, so that readers within one kernel see FLOAT. */
static weftStatus_t narrow(struct search *s, int value, weftDataType_t type) {
    TRY(descriptor_mirror(s->arena, &s->tensors[value], &s->graph->values[value].tensor->base));
    s->tensors[value]->type = (int32_t)type;
    s->tensors[value]->is_free = true;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t narrow_results(struct search *s, const struct node *node, bool *is_any) {
    weftDataType_t type = type_of_operands(s, node, true);
    int64_t most = largest_result(s, node);
    /* Features alone, where nothing of several dimensions is read. */
    if ((int32_t)type == TENSOR_NO_TYPE)
        type = type_of_operands(s, node, false);
    for (int k = 0; k < node->operand_count && (int32_t)type == TENSOR_NO_TYPE; k++)
        s->is_made_of_none[node->operands[k]] = node->is_output[k] && is_free(s, node->operands[k]);
    if ((type != WEFT_DATA_HALF && type != WEFT_DATA_BFLOAT16) || is_statistic(node->op))
        return WEFT_STATUS_SUCCESS;
    for (int k = 0; k < node->operand_count; k++) {
        int value = node->operands[k];
        if (!node->is_output[k] || !is_free(s, value))
            continue;
        if (tensor_elements(tensor_at(s, value)) < most && !is_like_operand(s, node, value, type))
            continue;
        TRY(narrow(s, value, type));
        *is_any = true;
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t search(const struct graph **made, struct search *s, struct arena *scratch) {
    const struct graph *graph = s->graph;
    bool is_any = false;
    struct graph *copy;
    TRY(arena_alloc(scratch, &s->tensors, (size_t)graph->value_count * sizeof *s->tensors));
    TRY(arena_alloc(scratch, &s->is_fixed, (size_t)graph->value_count * sizeof *s->is_fixed));
    TRY(arena_alloc(scratch, &s->is_made_of_none, (size_t)graph->value_count * sizeof *s->is_made_of_none));
    for (int n = 0; n < graph->node_count; n++)
        fix_modified(s, graph->nodes[n].op);
    /* Backwards, so that what an output of FLOAT is made of is fixed through all of its makers. */
    for (int n = graph->node_count; n-- > 0;)
        fix_operands(s, &graph->nodes[n]);
    /* Forwards, so that each node sees the types that its inputs have by then. */
    for (int n = 0; n < graph->node_count; n++)
        TRY(narrow_results(s, &graph->nodes[n], &is_any));
    if (!is_any)
        return WEFT_STATUS_SUCCESS;
    TRY(graph_exchange(&copy, graph, s->tensors, s->arena));
    *made = copy;
    return WEFT_STATUS_SUCCESS;
}

/* Scratch holds what is needed for the search alone; the copy lives in the caller's arena. */
weftStatus_t widths_find(const struct graph **made, const struct graph *graph, struct arena *arena) {
    struct arena scratch = {0};
    struct search s = {.graph = graph, .arena = arena};
    *made = graph;
    weftStatus_t status = search(made, &s, &scratch);
    arena_free(&scratch);
    return status;
}
