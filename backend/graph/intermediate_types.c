/* SPDX-License-Identifier: Apache-2.0 */
/* From the first node to the last: a result whose type was left unset, and which was inferred to be FLOAT, is stored in
   the type of its operands if that is f16 or bf16. Three kinds of values stay FLOAT: sums and statistics of rows, which
   are small while what they are computed from is not; what any output of FLOAT or DOUBLE is computed from; and what is
   computed from wider floats, or from floats of 8 bits and fewer, whose products f16 could not hold. No rule looks at
   extents, except that an operand of one dimension which is broadcast counts as a factor or a bias. */
#include "graph/intermediate_types.h"
#include "base/number.h"
#include "graph/ops/attention.h"
#include "graph/ops/bn_bwd_weights.h"
#include "graph/ops/bn_finalize.h"
#include "graph/ops/causal_conv.h"
#include "graph/ops/genstats.h"
#include "graph/ops/norm.h"
#include "graph/ops/pointwise.h"
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

/* How many of an operation's outputs, counted from its first one, are of the kind of its operands: a result, or
   gradients of operands. The others are sums and statistics. */
static int count_results(const struct descriptor *op) {
    const struct op *kind = op_of(op);
    if (kind == &reduction_op || kind == &genstats_op || kind == &bn_finalize_op || kind == &bn_bwd_weights_op)
        return 0;
    if (kind == &causal_conv_bwd_op)
        return ((const struct causal_conv_op *)op)->dx ? 1 : 0;
    return kind == &sdpa_bwd_op ? 3 : 1; /* dQ, dK, dV */
}

/* Whether the node's k-th operand is such an output. */
static bool is_result(const struct node *node, int k) {
    int before = 0;
    for (int i = 0; i < k; i++)
        before += node->is_output[i];
    return node->is_output[k] && before < count_results(node->op);
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

/* Whether an operand is a number, or has one dimension only and is broadcast: a factor or a bias of features, which
   lends no type to what it is applied to. */
static bool is_factor(const struct search *s, const struct node *node, int k) {
    const struct op *op = op_of(node->op);
    const struct tensor *tensor = tensor_at(s, node->operands[k]);
    int64_t extents = 0, most = 0;
    if (op != &pointwise_op && op != &causal_conv_op && op != &causal_conv_bwd_op)
        return false;
    for (int64_t i = 0; i < tensor->dims.count; i++)
        extents += tensor->dims.at[i] != 1;
    for (int i = 0; i < node->operand_count; i++)
        most = max64(most, tensor_elements(tensor_at(s, node->operands[i])));
    return extents < 2 && tensor_elements(tensor) < most;
}

/* Of norms and attention only the first operand, x, dy or q, lends its type: the others include statistics of FLOAT. */
static bool lends_type(const struct search *s, const struct node *node, int k) {
    const struct op *op = op_of(node->op);
    const struct tensor *tensor = tensor_at(s, node->operands[k]);
    bool has_statistics = op == &norm_forward_op || op == &norm_backward_op || attention_of(node->op);
    return !node->is_output[k] && (k == 0 || !has_statistics) && dtype_is_float((weftDataType_t)tensor->type) &&
           !tensor->is_by_value && !tensor->is_constant && !s->is_made_of_none[node->operands[k]];
}

/* The type that a node's operands lend to its results: f16 or bf16 if one of them has it and no other is wider, else
   FLOAT; TENSOR_NO_TYPE without any operand that lends one. Types are as narrowed by now, so that a chain of operations
   stays narrow. */
static weftDataType_t type_of_operands(const struct search *s, const struct node *node, bool with_factors) {
    weftDataType_t type = (weftDataType_t)TENSOR_NO_TYPE;
    bool is_any = false;
    for (int k = 0; k < node->operand_count; k++) {
        if (!lends_type(s, node, k) || (!with_factors && is_factor(s, node, k)))
            continue;
        weftDataType_t lent = (weftDataType_t)tensor_at(s, node->operands[k])->type;
        is_any = true;
        if (dtype_of(lent)->bits >= 16) /* narrower ones are exact in any other */
            type = (int32_t)type == TENSOR_NO_TYPE ? lent : dtype_promote(type, lent);
    }
    return is_any && (int32_t)type == TENSOR_NO_TYPE ? WEFT_DATA_FLOAT : type;
}

/* An intermediate that the user gave no type, and that was inferred to be FLOAT. */
static bool is_free(const struct search *s, int value) {
    const struct tensor *tensor = tensor_at(s, value);
    return tensor->is_virtual && tensor->type == WEFT_DATA_FLOAT && !s->is_fixed[value] &&
           !descriptor_row_is_set(&tensor->base, WEFT_ATTR_TENSOR_DATA_TYPE);
}

/* Whether a result of a node was asked for as FLOAT or DOUBLE: an output, an intermediate of a type that is set, or
   what one of these is computed from. */
static bool makes_floats(const struct search *s, const struct node *node) {
    for (int k = 0; k < node->operand_count; k++) {
        int32_t type = tensor_at(s, node->operands[k])->type;
        bool is_wide = type == WEFT_DATA_FLOAT || type == WEFT_DATA_DOUBLE;
        if (is_wide && is_result(node, k) && !is_free(s, node->operands[k]))
            return true;
    }
    return false;
}

/* Results that are wider than 16 bits are as exact as their type: so is what they are computed from. */
static void fix_operands(struct search *s, const struct node *node) {
    bool is_fixed = makes_floats(s, node);
    for (int k = 0; k < node->operand_count && is_fixed; k++)
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
    weftDataType_t type = type_of_operands(s, node, false);
    if ((int32_t)type == TENSOR_NO_TYPE) /* all operands are factors */
        type = type_of_operands(s, node, true);
    for (int k = 0; k < node->operand_count && (int32_t)type == TENSOR_NO_TYPE; k++)
        s->is_made_of_none[node->operands[k]] = node->is_output[k] && is_free(s, node->operands[k]);
    for (int k = 0; k < node->operand_count && (type == WEFT_DATA_HALF || type == WEFT_DATA_BFLOAT16); k++) {
        if (!is_result(node, k) || !is_free(s, node->operands[k]))
            continue;
        TRY(narrow(s, node->operands[k], type));
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
    /* Backwards, so that whatever an output of FLOAT is computed from is fixed, through all nodes between. */
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
weftStatus_t infer_intermediate_types(const struct graph **made, const struct graph *graph, struct arena *arena) {
    struct arena scratch = {0};
    struct search s = {.graph = graph, .arena = arena};
    *made = graph;
    weftStatus_t status = search(made, &s, &scratch);
    arena_free(&scratch);
    return status;
}
