/* SPDX-License-Identifier: Apache-2.0 */
/* Forwards, the result of a movement gets the narrower type of its input, which represents all of its elements.
   Backwards, the result of a product or a pointwise operation that is only moved gets the narrower type to which the
   movement would round it. */
#include "graph/movement_types.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"
#include "graph/ops/pointwise.h"

struct search {
    const struct graph *graph;
    struct tensor **tensors; /* per value: a narrower copy, or NULL */
    struct arena *arena;
    bool is_any;
};

static const struct tensor *tensor_at(const struct search *s, int value) {
    return s->tensors[value] ? s->tensors[value] : s->graph->values[value].tensor;
}

static int32_t original_type(const struct search *s, int value) { return s->graph->values[value].tensor->type; }

static bool moves(const struct node *node) { return op_of(node->op)->result_layout || op_of(node->op)->operand_layout; }

/* True if every number of type `narrow` is one of type `wide`, which has more bits. */
static bool is_narrower(int32_t narrow, int32_t wide) {
    bool is_half = narrow == WEFT_DATA_HALF || narrow == WEFT_DATA_BFLOAT16;
    return (is_half && (wide == WEFT_DATA_FLOAT || wide == WEFT_DATA_DOUBLE)) ||
           (narrow == WEFT_DATA_FLOAT && wide == WEFT_DATA_DOUBLE);
}

static weftStatus_t narrow(struct search *s, int value, int32_t type, bool is_free) {
    TRY(descriptor_mirror(s->arena, &s->tensors[value], &s->graph->values[value].tensor->base));
    s->tensors[value]->type = type;
    s->tensors[value]->is_free = is_free;
    s->is_any = true;
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t narrow_result(struct search *s, const struct node *node) {
    int last = node->operand_count - 1; /* outputs come last */
    const struct tensor *x = tensor_at(s, node->operands[0]), *y = tensor_at(s, node->operands[last]);
    bool is_free = x->is_free;
    for (int k = 1; k < last; k++) {
        if (tensor_at(s, node->operands[k])->type != x->type)
            return WEFT_STATUS_SUCCESS;
        is_free = is_free && tensor_at(s, node->operands[k])->is_free;
    }
    if (!y->is_virtual || !is_narrower(x->type, y->type))
        return WEFT_STATUS_SUCCESS;
    return narrow(s, node->operands[last], x->type, is_free);
}

/* Operations such as products and attention may require operands of one type, or be faster with it: restores the types
   of inputs that had the same type and would have different ones. */
static void restore_mixed(struct search *s, const struct node *node) {
    for (int k = 1; k < node->operand_count; k++)
        for (int i = 0; i < k; i++) {
            int a = node->operands[i], b = node->operands[k];
            if (node->is_output[i] || node->is_output[k] || original_type(s, a) != original_type(s, b) ||
                tensor_at(s, a)->type == tensor_at(s, b)->type)
                continue;
            s->tensors[a] = s->tensors[b] = NULL;
        }
}

/* True if a value is rounded once, when its producer stores it, and if only one operation reads it. */
static bool may_round_earlier(const struct search *s, int value) {
    const struct value *at = &s->graph->values[value];
    if (at->producer < 0 || at->readers != 1 || !at->tensor->is_virtual)
        return false;
    const struct node *producer = &s->graph->nodes[at->producer];
    return op_of(producer->op) == &matmul_op || op_of(producer->op) == &pointwise_op || conv_is(producer->op) ||
           moves(producer);
}

static weftStatus_t narrow_inputs(struct search *s, const struct node *node) {
    int last = node->operand_count - 1;
    int32_t type = tensor_at(s, node->operands[last])->type;
    for (int k = 0; k < last; k++) {
        int x = node->operands[k];
        if (may_round_earlier(s, x) && is_narrower(type, tensor_at(s, x)->type))
            TRY(narrow(s, x, type, false));
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t search(const struct graph **result, struct search *s, struct arena *scratch) {
    const struct graph *graph = s->graph;
    struct graph *copy;
    TRY(arena_alloc(scratch, &s->tensors, (size_t)graph->value_count * sizeof *s->tensors));
    for (int n = 0; n < graph->node_count; n++)
        if (moves(&graph->nodes[n]))
            TRY(narrow_result(s, &graph->nodes[n]));
    for (int n = 0; n < graph->node_count && s->is_any; n++)
        if (!moves(&graph->nodes[n]) && op_of(graph->nodes[n].op) != &pointwise_op)
            restore_mixed(s, &graph->nodes[n]);
    for (int n = graph->node_count; n-- > 0;)
        if (moves(&graph->nodes[n]))
            TRY(narrow_inputs(s, &graph->nodes[n]));
    if (!s->is_any)
        return WEFT_STATUS_SUCCESS;
    TRY(graph_exchange(&copy, graph, s->tensors, s->arena));
    *result = copy;
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t infer_movement_types(const struct graph **result, const struct graph *graph, struct arena *arena) {
    struct arena scratch = {0};
    struct search s = {.graph = graph, .arena = arena};
    *result = graph;
    weftStatus_t status = search(result, &s, &scratch);
    arena_free(&scratch);
    return status;
}
