/* SPDX-License-Identifier: Apache-2.0 */
/* A node becomes a block that names its operands as its formula does (x, b, t, dy, lower, ...) and evaluates the mode
   table's formula unchanged. */
#include "engines/cuda/core/formula.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* Only for cost estimates: an operator including its conversion; a function such as exp or tanh, by polynomials or the
   special function unit, including its surroundings. Small errors do not change the choice of a family. */
enum { OPERATOR_INSTRUCTIONS = 2, FUNCTION_INSTRUCTIONS = 10 };

const char *formula_type(const struct pointwise_op *op) {
    weftDataType_t math = pointwise_math(op);
    const struct pointwise_operands operands = pointwise_operands(op);
    const struct tensor *all[] = {operands.x, operands.b, operands.t, operands.out};
    for (int i = 0; i < 4 && dtype_is_float(math); i++)
        if (all[i] && all[i]->type == WEFT_DATA_DOUBLE)
            return "double";
    return math == WEFT_DATA_DOUBLE ? "double" : dtype_is_float(math) ? "float" : "i64";
}

/* Every mode has a formula; only types can be unsupported. */
weftStatus_t formula_accepts(const struct descriptor *op) {
    const struct pointwise_operands operands = pointwise_operands((const struct pointwise_op *)op);
    const struct tensor *all[] = {operands.x, operands.b, operands.t, operands.out};
    for (int i = 0; i < 4; i++)
        if (all[i] && !cuda_element_name((weftDataType_t)all[i]->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
                 descriptor_label(op), descriptor_label(&all[i]->base), dtype_of((weftDataType_t)all[i]->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* Emits a double exactly. %a is hexadecimal and loses no bit; infinities and NaN have no literal, so their bit pattern
   is emitted. */
static void emit_real(struct text *code, double number) {
    unsigned long long bits;
    memcpy(&bits, &number, sizeof bits);
    if (isinf(number) || number != number)
        text_add(code, "__longlong_as_double(0x%llxll)", bits);
    else
        text_add(code, "%a", number);
}

/* Emits the mode parameters that the formula uses. */
static void emit_parameters(struct text *code, const char *type, const char *formula, struct pointwise_parameters p) {
    const struct {
        const char *name;
        double number;
    } all[] = {{"lower", p.lower}, {"upper", p.upper}, {"slope", p.slope}, {"alpha", p.alpha}, {"beta", p.beta}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        /* A name that is part of another one would add an unneeded constant, but never omit one. */
        if (strstr(formula, all[i].name)) {
            text_add(code, " const %s %s = (%s)", type, all[i].name, type);
            emit_real(code, all[i].number);
            text_add(code, ";");
        }
}

/* Declares an operand under its name in the formula, in the compute type; factor: alpha1 or alpha2. NULL: the mode has
   no such operand. */
static void emit_operand(struct text *code, const char *type, const char *name, const struct graph *graph,
                         const struct tensor *tensor, double factor) {
    if (!tensor)
        return;
    text_add(code, " const %s %s = as<%s>::of(v%d)", type, name, type, graph_find_value(graph, tensor));
    if (factor != 1) {
        text_add(code, " * (%s)", type);
        emit_real(code, factor);
    }
    text_add(code, ";");
}

/* Tests whether a mask is set. A fraction counts as set, which integer arithmetic would round to 0. */
static void emit_mask(struct text *code, const struct graph *graph, const struct tensor *mask) {
    weftDataType_t stored = (weftDataType_t)mask->type;
    const char *type = stored == WEFT_DATA_DOUBLE ? "double" : dtype_is_float(stored) ? "float" : "i64";
    text_add(code, " const i64 t = as<%s>::of(v%d) != 0;", type, graph_find_value(graph, mask));
}

/* The storage type that a value must be rounded to because it is narrower than the compute type, or NULL. Float to
   float needs no rounding, and double is never narrower; every other type that differs from the compute type is. */
static const char *narrower_type(const struct tensor *tensor, const char *type) {
    weftDataType_t stored = tensor_type_inside(tensor);
    const char *name = cuda_element_name(stored);
    return strcmp(name, type) == 0 || (stored == WEFT_DATA_FLOAT && strcmp(type, "double") != 0) ||
                   stored == WEFT_DATA_DOUBLE
               ? NULL
               : name;
}

/* A call is a lower-case name before a parenthesis; C(, the constant, is not one. */
double formula_instructions(const struct pointwise_op *op) {
    const char *formula = pointwise_find_mode(op->pw->mode)->formula;
    for (const char *call = strchr(formula, '('); call; call = strchr(call + 1, '('))
        if (call > formula && (islower(call[-1]) || isdigit(call[-1])))
            return FUNCTION_INSTRUCTIONS;
    return OPERATOR_INSTRUCTIONS;
}

/* The formula of a mode in a type. The usual relu is a single instruction; with a slope or an upper bound it keeps its
   formula. at_least propagates NaN as the formula does. */
static const char *formula_over(const struct pointwise_mode *mode, const char *type, struct pointwise_parameters p) {
    if (strcmp(type, "i64") == 0)
        return pointwise_integer_formula(mode->mode);
    bool is_plain = mode->mode == WEFT_POINTWISE_RELU_FWD && p.slope == 0 && p.upper == INFINITY;
    return is_plain && strcmp(type, "float") == 0 ? "at_least(x, lower)" : mode->formula;
}

/* Declares a node's operands, and the constants that formulas use by these letters. */
static void emit_scope(struct text *code, const struct graph *graph, const struct pointwise_op *op,
                       const char *formula) {
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    struct pointwise_operands operands = pointwise_operands(op);
    struct pointwise_parameters p = pointwise_parameters(op);
    const char *type = formula_type(op);
    emit_operand(code, type, "x", graph, operands.x, op->alpha1);
    emit_operand(code, type, mode->form == FORM_BACKWARD ? "dy" : "b", graph, operands.b, op->alpha2);
    if (operands.t && strcmp(type, "i64") == 0)
        emit_mask(code, graph, operands.t);
    else
        emit_operand(code, type, "t", graph, operands.t, 1);
    emit_parameters(code, type, formula, p);
    if (strstr(formula, "C("))
        text_add(code, " auto C = [](double c) { return (%s)c; };", type);
}

/* One block, so that the names of its operands do not conflict with others. */
void formula_emit_exact(struct text *code, const struct graph *graph, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    const char *type = formula_type(op);
    int out = graph_find_value(graph, pointwise_operands(op).out);
    const char *formula = formula_over(mode, type, pointwise_parameters(op));
    text_add(code, "    // ");
    emit_operation(code, node);
    text_add(code, "\n    %s v%d; {", type, out);
    emit_scope(code, graph, op, formula);
    text_add(code, " v%d = (%s)(%s); }\n", out, type, formula);
}

/* narrow: NULL if the tensor can hold every value of the compute type. */
void formula_emit_rounded(struct text *code, const struct graph *graph, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    struct pointwise_operands operands = pointwise_operands(op);
    int out = graph_find_value(graph, operands.out);
    const char *narrow = narrower_type(operands.out, formula_type(op));
    formula_emit_exact(code, graph, node);
    if (narrow)
        text_add(code, "    v%d = rounded<%s>(v%d);\n", out, narrow, out);
}

/* A value without readers is stored at once, which rounds it. */
void formula_emit(struct text *code, const struct graph *graph, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    bool is_read = graph->values[graph_find_value(graph, pointwise_operands(op).out)].readers > 0;
    (is_read ? formula_emit_rounded : formula_emit_exact)(code, graph, node);
}

/* Emits g<operand> += factor * formula for one operand. Formulas of derivatives also use y and dy. */
static void emit_derivative(struct text *code, const struct graph *graph, const struct node *node, bool of_b) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    const struct pointwise_operands operands = pointwise_operands(op);
    const char *formula = pointwise_gradient_formula(pointwise_find_gradient(op->pw->mode), of_b);
    const char *type = formula_type(op);
    double factor = of_b ? op->alpha2 : op->alpha1;
    int out = graph_find_value(graph, operands.out);
    text_add(code, "    {");
    emit_scope(code, graph, op, formula);
    text_add(code, " const %s y = as<%s>::of(v%d), dy = as<%s>::of(g%d);", type, type, out, type, out);
    text_add(code, " g%d += ", graph_find_value(graph, of_b ? operands.b : operands.x));
    if (factor != 1) {
        text_add(code, "(%s)", type);
        emit_real(code, factor);
        text_add(code, " * ");
    }
    text_add(code, "(%s)(%s); }\n", type, formula);
}

void formula_emit_gradient(struct text *code, const struct graph *graph, const struct node *node, const bool *takes) {
    const struct pointwise_operands operands = pointwise_operands((const struct pointwise_op *)node->op);
    if (takes[graph_find_value(graph, operands.x)])
        emit_derivative(code, graph, node, false);
    if (operands.b && takes[graph_find_value(graph, operands.b)])
        emit_derivative(code, graph, node, true);
}
