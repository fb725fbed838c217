/* SPDX-License-Identifier: Apache-2.0 */
/* The table of pointwise modes: enumerator, arity, formula, method. Each formula is written once, as plain C over x, b,
   t (backward: dy and the forward input x), and serves as the reference, as fused CPU code, as CUDA source and as
   documentation. */
#ifndef WEFT_GRAPH_OPS_POINTWISE_H
#define WEFT_GRAPH_OPS_POINTWISE_H

#include "graph/op.h"

/* Parameters of a mode. */
struct pointwise_parameters {
    double lower, upper, slope; /* RELU: clips and the slope below the lower clip */
    double alpha;               /* ELU */
    double beta;                /* SOFTPLUS, SWISH */
};

struct pointwise {
    struct descriptor base;
    int32_t mode;
    int32_t math;
    int32_t nan_propagation;
    double lower, upper, slope, elu_alpha, softplus_beta, swish_beta;
    int64_t axis;
};

struct pointwise_op {
    struct descriptor base;
    struct pointwise *pw;
    struct tensor *x, *b, *t, *y, *dx, *dy;
    double alpha1, alpha2;
};

/* The operands that a mode has. */
enum pointwise_form { FORM_UNARY, FORM_BINARY, FORM_SELECT, FORM_BACKWARD, FORM_INDEX };

struct pointwise_mode {
    weftPointwiseMode_t mode;
    const char *name; /* "RELU_FWD" */
    enum pointwise_form form;
    const char *formula; /* as text */
    double (*evaluate)(double x, double b, double t, const struct pointwise_parameters *p);
    bool is_logical; /* compares or combines truth values: the result is boolean unless a type is set */
    const char *method, *arguments, *doc;
};

extern const struct op pointwise_op;
extern const struct schema pointwise_schema;

/* The row of a mode, or NULL. */
const struct pointwise_mode *pointwise_find_mode(int mode);
/* Evaluates the mode's formula on integers; NULL if the mode has no exact integer meaning. */
int64_t (*pointwise_integer_evaluator(int mode))(int64_t x, int64_t b, int64_t t);
/* The source text of the integer formula, or NULL. */
const char *pointwise_integer_formula(int mode);
int pointwise_mode_count(void);
const struct pointwise_mode *pointwise_mode_at(int i);

/* The derivative of a mode, from the row of pointwise_gradients.h. */
struct pointwise_gradient {
    int mode;
    const char *of_x, *of_b; /* formulas over x, b, t, y and dy */
    double (*evaluate_x)(double x, double b, double t, double y, double dy);
    double (*evaluate_b)(double x, double b, double t, double y, double dy);
    int backward_mode; /* computes the derivative by x instead of a formula; -1 if no backward mode does */
};

/* NULL if the derivative is 0, or, for a backward mode, if it is unknown. */
const struct pointwise_gradient *pointwise_find_gradient(int mode);
/* The formula of the derivative by x, or by b. */
const char *pointwise_gradient_formula(const struct pointwise_gradient *gradient, bool of_b);

/* The operands in the order of the formula: x (backward: the forward input), b (backward: dy), t; and the output. */
struct pointwise_operands {
    const struct tensor *x, *b, *t, *out;
};
struct pointwise_operands pointwise_operands(const struct pointwise_op *op);
struct pointwise_parameters pointwise_parameters(const struct pointwise_op *op);

/* The type in which the formula is evaluated: as set by the user, otherwise INT64 for integers if the mode is exact for
   them and not a quotient or power, otherwise FLOAT. */
weftDataType_t pointwise_math(const struct pointwise_op *op);

#endif
