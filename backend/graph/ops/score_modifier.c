/* SPDX-License-Identifier: Apache-2.0 */
/* Score modifiers: small graphs of pointwise operations that attention applies to each score. Defines which graphs are
   legal, which operands they read, and the reference, which evaluates the nodes for one score in order, and for
   gradients in reverse. Values are numbered as in the modifier's graph; arrays of marks or numbers have one entry per
   value. Engines emit kernels from the same graph, guided by these marks. */
#include "graph/ops/score_modifier.h"
#include "graph/ops/pointwise.h"

#include <math.h>
#include <string.h>

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* check_nodes has verified that all nodes are pointwise. */
static const struct pointwise_op *node_op(const struct score_modifier *m, int node) {
    return (const struct pointwise_op *)m->graph->nodes[node].op;
}

/* The index of a value in the modifier's graph, or -1 for an absent tensor. */
static int value_of(const struct score_modifier *m, const struct tensor *tensor) {
    return tensor ? graph_find_value(m->graph, tensor) : -1;
}

/* Marks the values that `value` depends on, including itself. Nodes are sorted, so one pass from the last to the first
   is enough. */
void score_modifier_mark_needed(const struct score_modifier *m, int value, bool *marks) {
    memset(marks, 0, SCORE_MODIFIER_VALUES_MAX * sizeof *marks);
    marks[value] = true;
    for (int n = m->graph->node_count; n-- > 0;) {
        const struct node *node = &m->graph->nodes[n];
        /* Readers of a value come after its producer, so they have been visited already. */
        if (!marks[value_of(m, pointwise_operands(node_op(m, n)).out)])
            continue;
        for (int i = 0; i < node->operand_count; i++)
            marks[node->operands[i]] = true;
    }
}

/* True if the result of a node is a differentiable function of real operands. */
static bool is_smooth(const struct pointwise_op *op) {
    return dtype_is_float((weftDataType_t)op->pw->math) && pointwise_find_gradient(op->pw->mode);
}

/* Marks the values that depend on `source` differentiably: gradients have to pass through them. */
void score_modifier_mark_dependent(const struct score_modifier *m, int source, bool *marks) {
    memset(marks, 0, SCORE_MODIFIER_VALUES_MAX * sizeof *marks);
    marks[source] = true;
    for (int n = 0; n < m->graph->node_count; n++) {
        const struct pointwise_operands operands = pointwise_operands(node_op(m, n));
        int x = value_of(m, operands.x), b = value_of(m, operands.b);
        /* The mask of a selection has no gradient. */
        if (is_smooth(node_op(m, n)) && (marks[x] || (b >= 0 && marks[b])))
            marks[value_of(m, operands.out)] = true;
    }
}

/* The value whose gradient is the i-th one requested. */
int score_modifier_source(const struct score_modifier *m, int64_t i) {
    return graph_find_uid(m->graph, m->gradient_uids.i64[i]);
}

/* A constant of -inf: selecting it removes the score from the softmax, regardless of any shift. */
static bool is_minus_infinity(const struct tensor *tensor) {
    return tensor->is_constant && dtype_load((weftDataType_t)tensor->type, tensor->constant, 0) == -INFINITY;
}

/* True if a node maps a shifted score, at x or b, to a shifted score. */
static bool keeps_shift(const struct pointwise_op *op, bool of_x, bool of_b) {
    switch (op->pw->mode) {
    case WEFT_POINTWISE_IDENTITY:
        return op->alpha1 == 1;
    case WEFT_POINTWISE_ADD:
        return of_x != of_b && (of_x ? op->alpha1 : op->alpha2) == 1;
    case WEFT_POINTWISE_SUB:
        return of_x && !of_b && op->alpha1 == 1;
    /* Either side may be -inf, which hides the score. */
    case WEFT_POINTWISE_BINARY_SELECT:
        return (of_x ? op->alpha1 == 1 : is_minus_infinity(op->x)) &&
               (of_b ? op->alpha2 == 1 : is_minus_infinity(op->b));
    default:
        return false;
    }
}

/* True if the result is the score plus a term that does not depend on it: then its gradient is that of the score. */
bool score_modifier_is_shift(const struct score_modifier *m) {
    bool dependent[SCORE_MODIFIER_VALUES_MAX], needed[SCORE_MODIFIER_VALUES_MAX];
    score_modifier_mark_dependent(m, m->input, dependent);
    score_modifier_mark_needed(m, m->output, needed);
    for (int n = 0; n < m->graph->node_count; n++) {
        const struct pointwise_operands operands = pointwise_operands(node_op(m, n));
        int x = value_of(m, operands.x), b = value_of(m, operands.b), out = value_of(m, operands.out);
        /* Nodes that do not depend on the score, or that the result does not depend on, may be anything. */
        if (dependent[out] && needed[out] && !keeps_shift(node_op(m, n), dependent[x], b >= 0 && dependent[b]))
            return false;
    }
    return dependent[m->output];
}

/* True if a node maps multiples of the gradient, at x, b or both, to a multiple. Backward modes are linear in dy, which
   is b. */
static bool keeps_multiple(const struct pointwise_op *op, bool of_x, bool of_b, bool of_t) {
    const struct tensor *other = of_x ? op->b : op->x;
    bool is_zero = other && other->is_constant && dtype_load((weftDataType_t)other->type, other->constant, 0) == 0;
    if (of_t || !dtype_is_float(pointwise_math(op)))
        return false;
    if (pointwise_find_mode(op->pw->mode)->form == FORM_BACKWARD)
        return of_b && !of_x;
    switch (op->pw->mode) {
    case WEFT_POINTWISE_IDENTITY:
    case WEFT_POINTWISE_NEG:
        return true;
    case WEFT_POINTWISE_MUL:
        return of_x != of_b;
    case WEFT_POINTWISE_DIV:
        return of_x && !of_b;
    case WEFT_POINTWISE_ADD:
    case WEFT_POINTWISE_SUB:
        return of_x && of_b;
    case WEFT_POINTWISE_BINARY_SELECT:
        return (of_x && of_b) || is_zero;
    default:
        return false;
    }
}

bool score_modifier_gradient_is_linear(const struct score_modifier *m) {
    bool multiple[SCORE_MODIFIER_VALUES_MAX] = {0}, needed[SCORE_MODIFIER_VALUES_MAX];
    score_modifier_mark_needed(m, m->gradient_output, needed);
    multiple[m->gradient_input] = true;
    for (int n = 0; n < m->graph->node_count; n++) {
        const struct pointwise_operands operands = pointwise_operands(node_op(m, n));
        int x = value_of(m, operands.x), b = value_of(m, operands.b), t = value_of(m, operands.t),
            out = value_of(m, operands.out);
        bool of_x = multiple[x], of_b = b >= 0 && multiple[b], of_t = t >= 0 && multiple[t];
        if (pointwise_find_mode(node_op(m, n)->pw->mode)->form == FORM_INDEX || !(of_x || of_b || of_t))
            continue;
        multiple[out] = keeps_multiple(node_op(m, n), of_x, of_b, of_t);
        if (needed[out] && !multiple[out])
            return false;
    }
    return multiple[m->gradient_output];
}

/* ---- Resolution -------------------------------------------------------------------------------------------------- */

/* `is_made`: the value must be the result of an operation, or the input itself; otherwise it must come from outside. */
static weftStatus_t find_value(int *value, const struct score_modifier *m, const struct descriptor *op,
                               weftBackendAttributeName_t name, int64_t uid, bool is_made) {
    const char *key = schema_find_row(op->schema, name)->key;
    if (!descriptor_row_is_set(op, name))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: subgraph is set, but %s is not. Give the uid of the tensor that %s.",
             descriptor_label(op), key, is_made ? "its operations return" : "its operations take");
    *value = graph_find_uid(m->graph, uid);
    if (*value < 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s is %lld, but no operation of the sub-graph has a tensor of that uid.",
             descriptor_label(op), key, (long long)uid);
    /* The result may be the input itself: the identity modifier. */
    bool has_producer = m->graph->values[*value].producer >= 0;
    if (is_made ? !has_producer && *value != m->input : has_producer)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s names %s, which %s operation of the sub-graph computes. Use another one.",
             descriptor_label(op), key, descriptor_label(&m->graph->values[*value].tensor->base),
             has_producer ? "an" : "no");
    return WEFT_STATUS_SUCCESS;
}

/* SCORE_MODIFIER_VALUES_MAX bounds the arrays of values on the stack. */
static weftStatus_t check_nodes(const struct score_modifier *m, const struct descriptor *op) {
    if (m->graph->value_count > SCORE_MODIFIER_VALUES_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: the sub-graph has %d tensors; a score modifier may have %d.",
             descriptor_label(op), m->graph->value_count, SCORE_MODIFIER_VALUES_MAX);
    for (int n = 0; n < m->graph->node_count; n++)
        /* Scores are never stored as a whole: each element must be computed separately. */
        if (op_of(m->graph->nodes[n].op) != &pointwise_op)
            FAIL(WEFT_STATUS_BAD_PARAM,
                 "%s: the sub-graph has %s; scores can be modified only by pointwise operations. Put it before the "
                 "attention.",
                 descriptor_label(op), descriptor_label(m->graph->nodes[n].op));
    for (int v = 0; v < m->graph->value_count; v++) {
        const struct value *value = &m->graph->values[v];
        if (value->producer >= 0 && !value->tensor->is_virtual)
            FAIL(WEFT_STATUS_BAD_PARAM,
                 "%s: the sub-graph stores %s, and scores are never stored. Make the tensor virtual.",
                 descriptor_label(op), descriptor_label(&value->tensor->base));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Backward modes have no derivatives; a user-defined gradient may contain them. */
static weftStatus_t check_derivatives(const struct score_modifier *m, const struct descriptor *op, int source) {
    bool needed[SCORE_MODIFIER_VALUES_MAX], dependent[SCORE_MODIFIER_VALUES_MAX];
    score_modifier_mark_needed(m, m->output, needed);
    score_modifier_mark_dependent(m, source, dependent);
    for (int n = 0; n < m->graph->node_count; n++) {
        const struct pointwise_op *node = node_op(m, n);
        const struct pointwise_operands operands = pointwise_operands(node);
        /* The gradient would pass through a backward mode on its way to the source. */
        bool reads = dependent[value_of(m, operands.x)] || (operands.b && dependent[value_of(m, operands.b)]);
        if (reads && needed[value_of(m, operands.out)] && pointwise_find_mode(node->pw->mode)->form == FORM_BACKWARD)
            FAIL(WEFT_STATUS_NOT_SUPPORTED,
                 "%s: the score modifier contains mode %s, whose own derivative is not known. Set the operations that "
                 "compute the gradient.",
                 descriptor_label(op), pointwise_find_mode(node->pw->mode)->name);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Releases the operands that an earlier, failed finalize may have listed. */
static void drop_operands(struct score_modifier *m) {
    for (int64_t i = 0; i < m->operands.count; i++)
        descriptor_release(m->operands.descriptors[i]);
    m->operands.count = 0;
}

/* Holds references to the values that the graph reads from memory: those without a producer that the output or its
   gradient depends on, except the scores. */
static weftStatus_t list_operands(struct score_modifier *m, struct descriptor *op) {
    bool output[SCORE_MODIFIER_VALUES_MAX], gradient[SCORE_MODIFIER_VALUES_MAX] = {0};
    drop_operands(m);
    score_modifier_mark_needed(m, m->output, output);
    if (m->gradient_output >= 0)
        score_modifier_mark_needed(m, m->gradient_output, gradient);
    /* At most every value of the graph. */
    TRY(arena_alloc(&op->arena, &m->operands.descriptors,
                    (size_t)m->graph->value_count * sizeof *m->operands.descriptors));
    for (int v = 0; v < m->graph->value_count; v++) {
        const struct value *value = &m->graph->values[v];
        if (value->producer < 0 && v != m->input && v != m->gradient_input && (output[v] || gradient[v]))
            m->operands.descriptors[m->operands.count++] = descriptor_retain(&value->tensor->base);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Checks the requested gradients of operands: each belongs to a different operand that is read, and all derivatives are
   known. */
static weftStatus_t check_gradients(const struct score_modifier *m, const struct descriptor *op) {
    if (m->gradients.count != m->gradient_uids.count || m->gradients.count > SCORE_MODIFIER_GRADIENTS_MAX)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: subgraph_gradients has %lld tensors, subgraph_gradient_uids names %lld. Give one each, at most %d.",
             descriptor_label(op), (long long)m->gradients.count, (long long)m->gradient_uids.count,
             SCORE_MODIFIER_GRADIENTS_MAX);
    for (int64_t i = 0; i < m->gradients.count; i++) {
        /* The gradient of an operand that is not read would be 0; most likely the uid is wrong. */
        bool is_read = false;
        for (int64_t k = 0; k < m->operands.count; k++)
            is_read = is_read || m->operands.tensors[k]->uid == m->gradient_uids.i64[i];
        if (!is_read)
            FAIL(WEFT_STATUS_BAD_PARAM,
                 "%s: subgraph_gradient_uids names uid %lld, which the score modifier does not read. Leave it out.",
                 descriptor_label(op), (long long)m->gradient_uids.i64[i]);
        TRY(check_derivatives(m, op, score_modifier_source(m, i)));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Forward operations have no such rows. Unless the user defines the gradient, it is derived from the forward nodes. */
static weftStatus_t resolve_gradient(struct score_modifier *m, const struct descriptor *op,
                                     weftBackendAttributeName_t input_name, weftBackendAttributeName_t output_name) {
    if (!schema_find_row(op->schema, input_name))
        return WEFT_STATUS_SUCCESS;
    if (!descriptor_row_is_set(op, input_name) && !descriptor_row_is_set(op, output_name))
        return check_derivatives(m, op, m->input);
    TRY(find_value(&m->gradient_input, m, op, input_name, m->gradient_input_uid, false));
    return find_value(&m->gradient_output, m, op, output_name, m->gradient_output_uid, true);
}

/* Runs before the generic finalize, which visits the operands that are found here. */
weftStatus_t score_modifier_resolve(struct score_modifier *m, struct descriptor *op,
                                    weftBackendAttributeName_t input_name, weftBackendAttributeName_t output_name,
                                    weftBackendAttributeName_t gradient_input_name,
                                    weftBackendAttributeName_t gradient_output_name) {
    /* Starts from scratch at every finalize, because a failed one may have set some of these. */
    m->input = m->output = m->gradient_input = m->gradient_output = -1;
    if (!m->graph) {
        if (m->gradients.count)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: subgraph_gradients is set, but there is no subgraph. Leave it unset.",
                 descriptor_label(op));
        return WEFT_STATUS_SUCCESS;
    }
    TRY(check_nodes(m, op));
    TRY(find_value(&m->input, m, op, input_name, m->input_uid, false));
    TRY(find_value(&m->output, m, op, output_name, m->output_uid, true));
    TRY(resolve_gradient(m, op, gradient_input_name, gradient_output_name));
    TRY(list_operands(m, op));
    return check_gradients(m, op);
}

/* Gradients have the dims and type of their operands. */
weftStatus_t score_modifier_infer(struct score_modifier *m, const struct descriptor *op) {
    for (int64_t i = 0; i < m->gradients.count; i++) {
        const struct tensor *source = m->graph->values[score_modifier_source(m, i)].tensor;
        if (!dtype_is_float((weftDataType_t)source->type))
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: %s has data type %s, which has no gradient. Leave it out.",
                 descriptor_label(op), descriptor_label(&source->base), dtype_of((weftDataType_t)source->type)->name);
        tensor_infer_like(m->gradients.tensors[i], source);
    }
    return WEFT_STATUS_SUCCESS;
}

/* `scores`: a tensor with the dims of attention's scores, [B, H, S_q, S_kv]; operands broadcast to them. */
weftStatus_t score_modifier_check(const struct score_modifier *m, const struct descriptor *op,
                                  const struct tensor *scores) {
    if (!m->graph)
        return WEFT_STATUS_SUCCESS;
    const struct tensor *input = m->graph->values[m->input].tensor;
    /* Broadcasting the scores would be ambiguous; only operands broadcast. */
    if (!tensor_same_dims(input, scores))
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: the sub-graph expects scores of dims %s, but those of this attention are %s. Give %s these dims.",
             descriptor_label(op), tensor_dims_text(input), tensor_dims_text(scores), descriptor_label(&input->base));
    for (int v = 0; v < m->graph->value_count; v++) {
        const struct tensor *tensor = m->graph->values[v].tensor;
        if (tensor_elements(tensor) != 1 || m->graph->values[v].producer >= 0)
            TRY(check_broadcasts(op, descriptor_label(&tensor->base), tensor, scores));
    }
    for (int64_t i = 0; i < m->gradients.count; i++) {
        const struct tensor *source = m->graph->values[score_modifier_source(m, i)].tensor;
        TRY(check_dims(op, descriptor_label(&m->gradients.tensors[i]->base), m->gradients.tensors[i],
                       source->dims.count, source->dims.at));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The attributes have been copied already. */
void score_modifier_copy(struct score_modifier *target, const struct score_modifier *source) {
    target->input = source->input;
    target->output = source->output;
    target->gradient_input = source->gradient_input;
    target->gradient_output = source->gradient_output;
}

/* ---- The reference ----------------------------------------------------------------------------------------------- */

/* Rounds a number to a tensor's type. FLOAT keeps all digits, because the tensor may never be stored. */
static double round_as_stored(const struct tensor *tensor, double number) {
    unsigned char element[16];
    if (tensor->type == WEFT_DATA_FLOAT)
        return number;
    dtype_store((weftDataType_t)tensor->type, element, 0, number);
    return dtype_load((weftDataType_t)tensor->type, element, 0);
}

/* Scalars may have any rank. */
static double load_operand(const struct bindings *bindings, const struct tensor *tensor, const int64_t *index) {
    struct view view = view_of(bindings, tensor);
    return tensor_elements(tensor) == 1 ? dtype_load(view.type, view.data, 0) : view_load(&view, index);
}

/* The result of a node for one score; `index` is the position of the score. */
static double evaluate(const struct score_modifier *m, const struct pointwise_op *op, const int64_t *index,
                       const double *values) {
    const struct pointwise_operands operands = pointwise_operands(op);
    const struct pointwise_parameters parameters = pointwise_parameters(op);
    double x = values[value_of(m, operands.x)];
    double b = operands.b ? values[value_of(m, operands.b)] : 0, t = operands.t ? values[value_of(m, operands.t)] : 0;
    if (pointwise_find_mode(op->pw->mode)->form == FORM_INDEX)
        return operands.out->dims.at[op->pw->axis] == 1 ? 0 : (double)index[op->pw->axis];
    /* Comparisons of indices for masks are exact in 64 bits. */
    if (!dtype_is_float((weftDataType_t)op->pw->math))
        return (double)pointwise_integer_evaluator(op->pw->mode)((int64_t)x, (int64_t)b, (int64_t)t);
    return pointwise_find_mode(op->pw->mode)->evaluate(op->alpha1 * x, op->alpha2 * b, t, &parameters);
}

/* Evaluates all values that `wanted` depends on; input and gradient_input must be set. */
static void evaluate_all(const struct score_modifier *m, const struct bindings *bindings, const int64_t *index,
                         int wanted, double *values) {
    bool needed[SCORE_MODIFIER_VALUES_MAX];
    score_modifier_mark_needed(m, wanted, needed);
    for (int v = 0; v < m->graph->value_count; v++)
        if (needed[v] && m->graph->values[v].producer < 0 && v != m->input && v != m->gradient_input)
            values[v] = load_operand(bindings, m->graph->values[v].tensor, index);
    /* In order, so that operands are computed before their readers. */
    for (int n = 0; n < m->graph->node_count; n++) {
        const struct tensor *out = pointwise_operands(node_op(m, n)).out;
        if (needed[value_of(m, out)])
            values[value_of(m, out)] = round_as_stored(out, evaluate(m, node_op(m, n), index, values));
    }
}

/* Adds the contribution of a node to the gradients of its operands. */
static void add_gradients(const struct score_modifier *m, const struct pointwise_op *op, const double *values,
                          double *gradients) {
    const struct pointwise_gradient *gradient = pointwise_find_gradient(op->pw->mode);
    const struct pointwise_operands operands = pointwise_operands(op);
    const struct pointwise_parameters parameters = pointwise_parameters(op);
    int at_x = value_of(m, operands.x), at_b = value_of(m, operands.b), out = value_of(m, operands.out);
    double x = op->alpha1 * values[at_x], b = at_b >= 0 ? op->alpha2 * values[at_b] : 0;
    double t = operands.t ? values[value_of(m, operands.t)] : 0, dy = gradients[out];
    /* The backward mode of this mode has dy as its second operand, and a single input. */
    if (gradient->backward_mode >= 0) {
        /* Alphas count twice: in the arguments of the formula, and by the chain rule. */
        gradients[at_x] += op->alpha1 * pointwise_find_mode(gradient->backward_mode)->evaluate(x, dy, 0, &parameters);
        return;
    }
    gradients[at_x] += op->alpha1 * gradient->evaluate_x(x, b, t, values[out], dy);
    if (at_b >= 0)
        gradients[at_b] += op->alpha2 * gradient->evaluate_b(x, b, t, values[out], dy);
}

/* The gradient of `source`, given that of the output. */
static double derive(const struct score_modifier *m, int source, const struct bindings *bindings, const int64_t *index,
                     double score, double gradient) {
    double values[SCORE_MODIFIER_VALUES_MAX] = {0}, gradients[SCORE_MODIFIER_VALUES_MAX] = {0};
    bool dependent[SCORE_MODIFIER_VALUES_MAX], needed[SCORE_MODIFIER_VALUES_MAX];
    values[m->input] = score;
    gradients[m->output] = gradient;
    evaluate_all(m, bindings, index, m->output, values);
    score_modifier_mark_dependent(m, source, dependent);
    score_modifier_mark_needed(m, m->output, needed);
    /* In reverse, so that all readers of a value have added their parts before its producer is visited. */
    for (int n = m->graph->node_count; n-- > 0;) {
        int out = value_of(m, pointwise_operands(node_op(m, n)).out);
        if (dependent[out] && needed[out] && gradients[out] != 0)
            add_gradients(m, node_op(m, n), values, gradients);
    }
    return gradients[source];
}

/* Evaluates the nodes for one score; operands broadcast to its index. */
double score_modifier_apply(const struct score_modifier *m, const struct bindings *bindings, const int64_t index[4],
                            double score) {
    double values[SCORE_MODIFIER_VALUES_MAX] = {0};
    values[m->input] = score;
    evaluate_all(m, bindings, index, m->output, values);
    return values[m->output];
}

/* The gradient by the user's own operations, or derived. */
double score_modifier_carry(const struct score_modifier *m, const struct bindings *bindings, const int64_t index[4],
                            double score, double gradient) {
    if (m->gradient_output < 0)
        return derive(m, m->input, bindings, index, score, gradient);
    double values[SCORE_MODIFIER_VALUES_MAX] = {0};
    values[m->input] = score;
    values[m->gradient_input] = gradient;
    evaluate_all(m, bindings, index, m->gradient_output, values);
    return values[m->gradient_output];
}

double score_modifier_carry_to(const struct score_modifier *m, int64_t i, const struct bindings *bindings,
                               const int64_t index[4], double score, double gradient) {
    return derive(m, score_modifier_source(m, i), bindings, index, score, gradient);
}
