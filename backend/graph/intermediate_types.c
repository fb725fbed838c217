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
    struct tensor **tensors; /* per value: a narrower copy, or NULL */
    bool *is_fixed;          /* per value: its type must not change */
    bool *is_made_of_none;   /* per value: it does not depend on floating-point tensors, only on comparisons and
                                numbers */
    struct arena *arena;
};

static const struct tensor *tensor_at(const struct search *s, int value) {
    return s->tensors[value] ? s->tensors[value] : s->graph->values[value].tensor;
}

/* Number of outputs, counted from the first one, that are of the kind of the operands: a result, or gradients of
   operands. The others are sums and statistics. */
static int count_results(const struct descriptor *op) {
    const struct op *kind = op_of(op);
    if (kind == &reduction_op || kind == &genstats_op || kind == &bn_finalize_op || kind == &bn_bwd_weights_op)
        return 0;
    if (kind == &causal_conv_bwd_op)
        return ((const struct causal_conv_op *)op)->dx ? 1 : 0;
    return kind == &sdpa_bwd_op ? 3 : 1; /* dQ, dK, dV */
}

/* True if the k-th operand of a node is such an output. */
static bool is_result(const struct node *node, int k) {
    int before = 0;
    for (int i = 0; i < k; i++)
        before += node->is_output[i];
    return node->is_output[k] && before < count_results(node->op);
}

/* The graph of a score modifier refers to tensors directly, so their types must not change. */
static void fix_modified(struct search *s, const struct descriptor *op) {
    const struct attention *attention = attention_of(op);
    const struct graph *modifier = attention ? attention->modifier.graph : NULL;
    for (int v = 0; modifier && v < modifier->value_count; v++) {
        int value = graph_find_value(s->graph, modifier->values[v].tensor);
        if (value >= 0)
            s->is_fixed[value] = true;
    }
}

/* True for a number, or for an operand with only one dimension that is broadcast: a factor or a bias of features, whose
   type does not influence the result. */
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

/* For norms and attention, only the first operand, x, dy or q, determines the type: the others include FLOAT
   statistics. */
static bool lends_type(const struct search *s, const struct node *node, int k) {
    const struct op *op = op_of(node->op);
    const struct tensor *tensor = tensor_at(s, node->operands[k]);
    bool has_statistics = op == &norm_forward_op || op == &norm_backward_op || attention_of(node->op);
    return !node->is_output[k] && (k == 0 || !has_statistics) && dtype_is_float((weftDataType_t)tensor->type) &&
           !tensor->is_by_value && !tensor->is_constant && !s->is_made_of_none[node->operands[k]];
}

/* The type of a node's results according to its operands: f16 or bf16 if one of them has it and no other is wider,
   otherwise FLOAT; TENSOR_NO_TYPE if no operand determines it. Operands have been narrowed already, so that a chain of
   operations stays narrow. */
static weftDataType_t type_of_operands(const struct search *s, const struct node *node, bool with_factors) {
    weftDataType_t type = (weftDataType_t)TENSOR_NO_TYPE;
    bool is_any = false;
    for (int k = 0; k < node->operand_count; k++) {
        if (!lends_type(s, node, k) || (!with_factors && is_factor(s, node, k)))
            continue;
        weftDataType_t lent = (weftDataType_t)tensor_at(s, node->operands[k])->type;
        is_any = true;
        if (dtype_of(lent)->bits >= 16) /* narrower ones can be converted to any other exactly */
            type = (int32_t)type == TENSOR_NO_TYPE ? lent : dtype_promote(type, lent);
    }
    return is_any && (int32_t)type == TENSOR_NO_TYPE ? WEFT_DATA_FLOAT : type;
}

/* True for an intermediate whose type the user did not set and that was inferred to be FLOAT. */
static bool is_free(const struct search *s, int value) {
    const struct tensor *tensor = tensor_at(s, value);
    return tensor->is_virtual && tensor->type == WEFT_DATA_FLOAT && !s->is_fixed[value] &&
           !descriptor_row_is_set(&tensor->base, WEFT_ATTR_TENSOR_DATA_TYPE);
}

/* True if the user requested a result of a node as FLOAT or DOUBLE: an output, an intermediate with a set type, or an
   operand of one of these. */
static bool makes_floats(const struct search *s, const struct node *node) {
    for (int k = 0; k < node->operand_count; k++) {
        int32_t type = tensor_at(s, node->operands[k])->type;
        bool is_wide = type == WEFT_DATA_FLOAT || type == WEFT_DATA_DOUBLE;
        if (is_wide && is_result(node, k) && !is_free(s, node->operands[k]))
            return true;
    }
    return false;
}

/* Results that are wider than 16 bits must be accurate, and so must the operands that they are computed from. */
static void fix_operands(struct search *s, const struct node *node) {
    bool is_fixed = makes_floats(s, node);
    for (int k = 0; k < node->operand_count && is_fixed; k++)
        if (!node->is_output[k])
            s->is_fixed[node->operands[k]] = true;
}

/* The copy is marked as free, so that readers within one kernel see FLOAT. */
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

static weftStatus_t search(const struct graph **result, struct search *s, struct arena *scratch) {
    const struct graph *graph = s->graph;
    bool is_any = false;
    struct graph *copy;
    TRY(arena_alloc(scratch, &s->tensors, (size_t)graph->value_count * sizeof *s->tensors));
    TRY(arena_alloc(scratch, &s->is_fixed, (size_t)graph->value_count * sizeof *s->is_fixed));
    TRY(arena_alloc(scratch, &s->is_made_of_none, (size_t)graph->value_count * sizeof *s->is_made_of_none));
    for (int n = 0; n < graph->node_count; n++)
        fix_modified(s, graph->nodes[n].op);
    /* Goes backwards, so that everything that a FLOAT output depends on is fixed, through all nodes in between. */
    for (int n = graph->node_count; n-- > 0;)
        fix_operands(s, &graph->nodes[n]);
    /* Goes forwards, so that each node sees the final types of its inputs. */
    for (int n = 0; n < graph->node_count; n++)
        TRY(narrow_results(s, &graph->nodes[n], &is_any));
    if (!is_any)
        return WEFT_STATUS_SUCCESS;
    TRY(graph_exchange(&copy, graph, s->tensors, s->arena));
    *result = copy;
    return WEFT_STATUS_SUCCESS;
}

/* The scratch arena is for the search only; the copy is allocated in the caller's arena. */
weftStatus_t infer_intermediate_types(const struct graph **result, const struct graph *graph, struct arena *arena) {
    struct arena scratch = {0};
    struct search s = {.graph = graph, .arena = arena};
    *result = graph;
    weftStatus_t status = search(result, &s, &scratch);
    arena_free(&scratch);
    return status;
}
