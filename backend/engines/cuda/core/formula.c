/* SPDX-License-Identifier: Apache-2.0 */
/* A node becomes a block that names its operands as its formula does (x, b, t, dy, lower, ...) and evaluates the formula
   of the mode table as it stands there. */
#include "engines/cuda/core/formula.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

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

weftStatus_t formula_accepts(const struct descriptor *op) {
    const struct pointwise_operands operands = pointwise_operands((const struct pointwise_op *)op);
    const struct tensor *all[] = {operands.x, operands.b, operands.t, operands.out};
    for (int i = 0; i < 4; i++)
        if (all[i] && !cuda_element_name((weftDataType_t)all[i]->type))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s has data type %s, which kernels cannot store",
                 descriptor_label(op), descriptor_label(&all[i]->base), dtype_of((weftDataType_t)all[i]->type)->name);
    return WEFT_STATUS_SUCCESS;
}

/* A double in CUDA text, exactly. */
static void print_real(struct text *code, double number) {
    unsigned long long bits;
    memcpy(&bits, &number, sizeof bits);
    if (isinf(number) || number != number)
        text_add(code, "__longlong_as_double(0x%llxll)", bits);
    else
        text_add(code, "%a", number);
}

static void print_parameter(struct text *code, const char *type, const char *name, double number) {
    text_add(code, " const %s %s = (%s)", type, name, type);
    print_real(code, number);
    text_add(code, ";");
}

static void print_operand(struct text *code, const char *type, const char *name, const struct graph *graph,
                          const struct tensor *tensor, double factor) {
    if (!tensor)
        return;
    text_add(code, " const %s %s = as<%s>::of(v%d)", type, name, type, graph_find_value(graph, tensor));
    if (factor != 1) {
        text_add(code, " * (%s)", type);
        print_real(code, factor);
    }
    text_add(code, ";");
}

/* Whether a mask is set: a fraction is, too, which integer arithmetic would round to 0. */
static void print_mask(struct text *code, const struct graph *graph, const struct tensor *mask) {
    weftDataType_t stored = (weftDataType_t)mask->type;
    const char *type = stored == WEFT_DATA_DOUBLE ? "double" : dtype_is_float(stored) ? "float" : "i64";
    text_add(code, " const i64 t = as<%s>::of(v%d) != 0;", type, graph_find_value(graph, mask));
}

/* The storage type that a value must be rounded to because it is narrower than its arithmetic; NULL: none. */
static const char *narrower_type(const struct tensor *tensor, const char *type) {
    weftDataType_t stored = (weftDataType_t)tensor->type;
    const char *name = cuda_element_name(stored);
    return strcmp(name, type) == 0 || (stored == WEFT_DATA_FLOAT && strcmp(type, "double") != 0) ||
                   stored == WEFT_DATA_DOUBLE
               ? NULL
               : name;
}

double formula_instructions(const struct pointwise_op *op) {
    const char *formula = pointwise_find_mode(op->pw->mode)->formula;
    for (const char *call = strchr(formula, '('); call; call = strchr(call + 1, '('))
        if (call > formula && (islower(call[-1]) || isdigit(call[-1])))
            return FUNCTION_INSTRUCTIONS;
    return OPERATOR_INSTRUCTIONS;
}

/* relu as it mostly is: one instruction. */
static bool is_plain_relu(const struct pointwise_mode *mode, struct pointwise_parameters p, const char *type) {
    return mode->mode == WEFT_POINTWISE_RELU_FWD && p.slope == 0 && p.upper == INFINITY && strcmp(type, "float") == 0;
}

void formula_print_exact(struct text *code, const struct graph *graph, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    struct pointwise_operands operands = pointwise_operands(op);
    struct pointwise_parameters p = pointwise_parameters(op);
    const char *type = formula_type(op);
    int out = graph_find_value(graph, operands.out);
    bool relu = mode->mode == WEFT_POINTWISE_RELU_FWD || mode->mode == WEFT_POINTWISE_RELU_BWD;
    bool backward = mode->form == FORM_BACKWARD;

    text_add(code, "    %s v%d; {", type, out);
    print_operand(code, type, "x", graph, operands.x, op->alpha1);
    print_operand(code, type, backward ? "dy" : "b", graph, operands.b, op->alpha2);
    if (operands.t && strcmp(type, "i64") == 0)
        print_mask(code, graph, operands.t);
    else
        print_operand(code, type, "t", graph, operands.t, 1);
    if (relu) {
        print_parameter(code, type, "lower", p.lower);
        print_parameter(code, type, "upper", p.upper);
        print_parameter(code, type, "slope", p.slope);
    }
    if (strstr(mode->formula, "alpha"))
        print_parameter(code, type, "alpha", p.alpha);
    if (strstr(mode->formula, "beta"))
        print_parameter(code, type, "beta", p.beta);
    bool exact = strcmp(type, "i64") == 0;
    const char *formula = exact                          ? pointwise_integer_formula(op->pw->mode)
                          : is_plain_relu(mode, p, type) ? "at_least(x, lower)"
                                                         : mode->formula;
    if (strstr(formula, "C("))
        text_add(code, " auto C = [](double c) { return (%s)c; };", type);
    text_add(code, " v%d = (%s)(%s); }\n", out, type, formula);
}

void formula_print(struct text *code, const struct graph *graph, const struct node *node) {
    const struct pointwise_op *op = (const struct pointwise_op *)node->op;
    struct pointwise_operands operands = pointwise_operands(op);
    const char *type = formula_type(op);
    int out = graph_find_value(graph, operands.out);
    formula_print_exact(code, graph, node);
    const char *narrow = graph->values[out].readers ? narrower_type(operands.out, type) : NULL;
    if (narrow)
        text_add(code, "    v%d = rounded<%s>(v%d);\n", out, narrow, out);
}
