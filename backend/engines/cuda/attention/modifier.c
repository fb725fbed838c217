/* SPDX-License-Identifier: Apache-2.0 */
/* Emits score modifiers: a function that applies the sub-graph to a score, and functions that propagate its gradient
   back, either derived by reverse differentiation or given in the sub-graph. */
#include "engines/cuda/attention/attention.h"
#include "engines/cuda/core/formula.h"

#include <stdio.h>
#include <string.h>

/* True if the rounding of the operands exceeds the error of the faster functions. */
static bool is_narrow(const struct cuda_attention *c) { return dtype_bytes((weftDataType_t)c->a->q->type, 1) <= 2; }

/* Emits a function's signature. For operands of 16 bits or fewer, name lookup finds the faster functions of
   score_functions.cuh before those of math.cuh. */
static void emit_head(struct text *code, const struct cuda_attention *c, const char *name, const char *more) {
    text_add(code,
             "template <class P, class T>\nDEVICE T %s(const P &a, i64 batch, i64 head, i32 query, i32 key, T score%s) "
             "{\n%s",
             name, more, is_narrow(c) ? "    using score_functions::tanh;\n" : "");
}

/* Such operands are read element by element, and may have types narrower than a byte. */
bool attention_modifies_with(const struct cuda_attention *c, const struct tensor *tensor) {
    for (int64_t i = 0; i < c->a->modifier.operands.count; i++)
        if (c->a->modifier.operands.tensors[i] == tensor)
            return true;
    return false;
}

/* No modifier is not an error. */
weftStatus_t attention_check_modifier(const struct cuda_attention *c) {
    const struct graph *graph = c->a->modifier.graph;
    for (int n = 0; graph && n < graph->node_count; n++)
        TRY(formula_accepts(graph->nodes[n].op));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Operands ---- */

/* The value of operand i in the sub-graph. Found by uid, because the sub-graph has its own tensors for the operands. */
static int value_of_operand(const struct cuda_attention *c, int64_t i) {
    return graph_find_uid(c->a->modifier.graph, c->a->modifier.operands.tensors[i]->uid);
}

/* An operand varies along the dimensions that it does not broadcast. */
static bool moves_along(const struct cuda_attention *c, const struct tensor *operand, int dim) {
    const int64_t scores[] = {c->batches, c->heads, c->queries, c->keys};
    return operand->dims.count == 4 && (operand->dims.at[dim] != 1 || scores[dim] == 1);
}

/* Index names in the signature, by dimension of an operand. */
static const char *const axes[] = {"batch", "head", "query", "key"};

/* Type, address and strides along the varying dimensions, named by the sub-graph's value. */
static void emit_operand(struct kernel_source *source, const struct cuda_attention *c, int64_t i) {
    const struct tensor *operand = c->a->modifier.operands.tensors[i];
    char name[48];
    snprintf(name, sizeof name, "modifier%d_t", value_of_operand(c, i));
    emit_type(source, name, (weftDataType_t)operand->type);
    snprintf(name, sizeof name, "modifier%d", value_of_operand(c, i));
    emit_pointer(source, (weftDataType_t)operand->type, graph_find_value(c->graph, operand), 0, name);
    for (int dim = 0; dim < 4; dim++) {
        snprintf(name, sizeof name, "modifier%d_%s", value_of_operand(c, i), axes[dim]);
        if (moves_along(c, operand, dim))
            emit_number(source, operand->dims.at[dim] == 1 ? 0 : operand->strides.at[dim], name);
    }
}

/* "const f16 v3 = load_run<..>(..);" */
static void emit_load(struct text *code, const struct cuda_attention *c, int64_t i) {
    int value = value_of_operand(c, i);
    text_add(code, "    const modifier%d_t v%d = load_run<modifier%d_t, 1>(a.modifier%d + (0", value, value, value,
             value);
    for (int dim = 0; dim < 4; dim++)
        if (moves_along(c, c->a->modifier.operands.tensors[i], dim))
            text_add(code, " + a.modifier%d_%s * %s", value, axes[dim], axes[dim]);
    text_add(code, ")).at[0];\n");
}

/* ---- Formulas ---- */

/* v<value> = ..; a coordinate is that of the score, or 0 along a broadcast dimension. */
static void emit_node(struct text *code, const struct graph *graph, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    const struct tensor *out = pointwise_operands(op).out;
    if (pointwise_find_mode(op->pw->mode)->form != FORM_INDEX)
        formula_emit_rounded(code, graph, node);
    else
        text_add(code, "    const i32 v%d = %s%s;\n", graph_find_value(graph, out),
                 out->dims.at[op->pw->axis] == 1 ? "0 * " : "(i32)", axes[op->pw->axis]);
}

/* The value that a node computes. */
static int output_of(const struct graph *graph, const struct node *node) {
    return graph_find_value(graph, pointwise_operands((const struct pointwise_op *)node->op).out);
}

/* Emits the nodes that `wanted` depends on, in order, with the score as `from`. Only those: operands that a derivative
   does not need are not loaded. */
static void emit_values_from(struct text *code, const struct cuda_attention *c, int from, int wanted) {
    const struct score_modifier *m = &c->a->modifier;
    bool needed[SCORE_MODIFIER_VALUES_MAX];
    score_modifier_mark_needed(m, wanted, needed);
    if (needed[from])
        text_add(code, "    const T v%d = score;\n", from);
    /* a gradient given in the sub-graph has the score's gradient as an input */
    if (m->gradient_input >= 0 && needed[m->gradient_input])
        text_add(code, "    const T v%d = gradient;\n", m->gradient_input);
    for (int64_t i = 0; i < m->operands.count; i++)
        if (needed[value_of_operand(c, i)])
            emit_load(code, c, i);
    for (int n = 0; n < m->graph->node_count; n++) {
        int output = output_of(m->graph, &m->graph->nodes[n]);
        if (needed[output] && output != from)
            emit_node(code, m->graph, &m->graph->nodes[n]);
    }
}
static void emit_values(struct text *code, const struct cuda_attention *c, int wanted) {
    emit_values_from(code, c, c->a->modifier.input, wanted);
}

/* Without a modifier, emits only HAS_MODIFIER, and kernels call nothing. */
void attention_emit_modifier(struct kernel_source *source, const struct cuda_attention *c, bool is_rounded) {
    const struct score_modifier *m = &c->a->modifier;
    emit_constant(source, "HAS_MODIFIER", m->graph != NULL);
    if (!m->graph)
        return;
    emit_constant(source, "IS_ROUNDED", is_rounded);
    if (is_narrow(c))
        text_add(&source->constants, "#include \"attention/score_functions.cuh\"\n");
    for (int64_t i = 0; i < m->operands.count; i++)
        emit_operand(source, c, i);
    text_add(&source->code, "/* The score modifier. */\n");
    emit_head(&source->code, c, "modified", "");
    emit_values(&source->code, c, m->output);
    text_add(&source->code, "    return as<T>::of(v%d);\n}\n\n", m->output);
}

/* ---- Constant factors of the score before, and of the result after, everything else ---- */

struct factors {
    int input, output; /* the values between which the rest of the modifier is */
    int before, after; /* operand values that are factors; -1: none */
};

/* True if a node computes in float and its result is a float. */
static bool is_of_floats(const struct pointwise_op *op) {
    return strcmp(formula_type(op), "float") == 0 && tensor_type_inside(pointwise_operands(op).out) == WEFT_DATA_FLOAT;
}

/* If the node multiplies `other` by a one-element operand in float, returns the operand's value; otherwise -1. */
static int factor_of(const struct cuda_attention *c, const struct node *node, int *other) {
    const struct graph *graph = c->a->modifier.graph;
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    struct pointwise_operands operands = pointwise_operands(op);
    bool is_product = op->pw->mode == WEFT_POINTWISE_MUL && op->alpha1 == 1 && op->alpha2 == 1 && is_of_floats(op);
    for (int64_t i = 0; is_product && i < c->a->modifier.operands.count; i++) {
        int value = value_of_operand(c, i);
        int x = graph_find_value(graph, operands.x), b = graph_find_value(graph, operands.b);
        if (tensor_elements(c->a->modifier.operands.tensors[i]) != 1 || x == b || (value != x && value != b))
            continue;
        *other = value == x ? b : x;
        return value;
    }
    return -1;
}

/* Number of times that nodes read a value. */
static int readers_of(const struct graph *graph, int value) {
    int readers = 0;
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < graph->nodes[n].operand_count; i++)
            readers += graph->nodes[n].operands[i] == value;
    return readers;
}

static struct factors find_factors(const struct cuda_attention *c) {
    const struct score_modifier *m = &c->a->modifier;
    struct factors f = {m->input, m->output, -1, -1};
    for (int n = m->graph->node_count; n-- > 0;) {
        const struct node *node = &m->graph->nodes[n];
        int other = -1, factor = factor_of(c, node, &other), output = output_of(m->graph, node);
        if (factor < 0)
            continue;
        if (output == m->output)
            f.after = factor, f.output = other;
        else if (other == m->input && readers_of(m->graph, m->input) == 1)
            f.before = factor, f.input = output;
    }
    return f;
}

bool attention_is_soft_cap(const struct cuda_attention *c) {
    const struct graph *graph = c->a->modifier.graph;
    if (!graph)
        return false;
    struct factors f = find_factors(c);
    for (int n = 0; n < graph->node_count; n++) {
        const struct pointwise_op *op = (const struct pointwise_op *)graph->nodes[n].op;
        if (output_of(graph, &graph->nodes[n]) == f.output)
            return op->pw->mode == WEFT_POINTWISE_TANH_FWD && is_of_floats(op) &&
                   graph_find_value(graph, pointwise_operands(op).x) == f.input;
    }
    return false;
}

static void emit_factor(struct text *code, const char *name, int value) {
    text_add(code, "template <class P> DEVICE float %s(const P &a) {\n", name);
    if (value < 0)
        text_add(code, "    return 1.0f;\n}\n");
    else
        text_add(code, "    return as<float>::of(load_run<modifier%d_t, 1>(a.modifier%d).at[0]);\n}\n", value, value);
}

/* SOFT_CAP_TERMS: number of polynomial terms that approximate the tanh between the factors well enough; 0: the modifier
   is not a soft cap. */
void attention_emit_soft_cap(struct kernel_source *source, const struct cuda_attention *c, bool is_rounded) {
    emit_constant(source, "SOFT_CAP_TERMS", !attention_is_soft_cap(c) ? 0 : is_rounded ? 3 : 5);
}

/* modified(score) is factor_after * modified_between(factor_before * score): kernels fold both factors into their
   own. */
void attention_emit_modifier_factors(struct kernel_source *source, const struct cuda_attention *c) {
    if (!c->a->modifier.graph)
        return;
    struct factors f = find_factors(c);
    text_add(&source->code, "/* The modifier without its constant factors, and these factors. */\n");
    emit_head(&source->code, c, "modified_between", "");
    emit_values_from(&source->code, c, f.input, f.output);
    text_add(&source->code, "    return as<T>::of(v%d);\n}\n", f.output);
    emit_factor(&source->code, "factor_before", f.before);
    emit_factor(&source->code, "factor_after", f.after);
}

/* ---- Gradients ---- */

/* Emits the gradient of `source` from that of `output`, with the score as `from`. Reverse mode: a forward sweep
   computes the values, then a backward sweep adds to the gradients of the operands that depend on the source. The
   gradient is 0 if the output does not depend on the source. */
static void emit_derived_from(struct text *code, const struct cuda_attention *c, int from, int output, int source) {
    const struct score_modifier *m = &c->a->modifier;
    bool needed[SCORE_MODIFIER_VALUES_MAX], dependent[SCORE_MODIFIER_VALUES_MAX];
    score_modifier_mark_needed(m, output, needed);
    score_modifier_mark_dependent(m, source, dependent);
    if (!needed[source] || !dependent[output]) {
        text_add(code, "    return T{};\n}\n\n");
        return;
    }
    emit_values_from(code, c, from, output);
    /* gradients start at 0, since several nodes may add to one */
    for (int v = 0; v < m->graph->value_count; v++)
        if (needed[v] && dependent[v])
            text_add(code, "    T g%d = %s;\n", v, v == output ? "gradient" : "T{}");
    for (int n = m->graph->node_count; n-- > 0;) {
        int out = output_of(m->graph, &m->graph->nodes[n]);
        if (needed[out] && dependent[out] && out != from)
            formula_emit_gradient(code, m->graph, &m->graph->nodes[n], dependent);
    }
    text_add(code, "    return g%d;\n}\n\n", source);
}
static void emit_derived(struct text *code, const struct cuda_attention *c, int source) {
    emit_derived_from(code, c, c->a->modifier.input, c->a->modifier.output, source);
}

/* The gradient of modified_between; the total derivative also has both factors. */
void attention_emit_between_gradient(struct kernel_source *source, const struct cuda_attention *c) {
    struct factors f = find_factors(c);
    emit_head(&source->code, c, "between_gradient", ", T gradient");
    emit_derived_from(&source->code, c, f.input, f.output, f.input);
}

/* Emits the gradient that the sub-graph gives, or the derived one. */
void attention_emit_modifier_gradient(struct kernel_source *source, const struct cuda_attention *c) {
    const struct score_modifier *m = &c->a->modifier;
    if (!m->graph)
        return;
    text_add(&source->code, "/* The score modifier's gradient. */\n");
    emit_head(&source->code, c, "modified_gradient", ", T gradient");
    if (m->gradient_output < 0) {
        emit_derived(&source->code, c, m->input);
        return;
    }
    emit_values(&source->code, c, m->gradient_output);
    text_add(&source->code, "    return as<T>::of(v%d);\n}\n\n", m->gradient_output);
}

/* Emits the gradient of an operand. i: index into the operation's gradients, not its operands. */
void attention_emit_operand_gradient(struct kernel_source *source, const struct cuda_attention *c, int64_t i) {
    text_add(&source->code, "/* The gradient of an operand of the score modifier. */\n");
    emit_head(&source->code, c, "operand_gradient", ", T gradient");
    emit_derived(&source->code, c, score_modifier_source(&c->a->modifier, i));
}
