/* SPDX-License-Identifier: Apache-2.0 */
/* The formula of an operation that combines the elements of rows, as a list of instructions. It is written once, in the
   file of the operation, and lowered by every engine that generates code for rows. A row is the set of elements that
   share statistics. The value of an instruction is per element or per row, depending on its arguments. Instructions do
   not know threads or memory; their only order is that arguments come first. */
#ifndef WEFT_GRAPH_EXPANSION_H
#define WEFT_GRAPH_EXPANSION_H

#include "graph/op.h"

enum { INSTRUCTIONS_MAX = 96, INSTRUCTION_ARGUMENTS = 4 };

/* a, b, c and d are the values of the arguments. */
enum opcode {
    /* Without arguments. */
    OPCODE_INPUT,  /* the tensor's value for the element or the row */
    OPCODE_SAMPLE, /* an element of the tensor's row, or a mean of several: close to the others if these are similar */
    OPCODE_NUMBER,
    OPCODE_GIVEN,  /* a value with this number that the caller of the expansion provides */
    OPCODE_LENGTH, /* number of elements of the row */
    OPCODE_COUNT,  /* the same, but at least 1 */

    /* Per element or per row. */
    OPCODE_COPY,
    OPCODE_ADD,
    OPCODE_SUBTRACT,
    OPCODE_MULTIPLY,
    OPCODE_DIVIDE,
    OPCODE_SHARE, /* a / b, not necessarily correctly rounded */
    OPCODE_NEGATE,
    OPCODE_ABSOLUTE, /* for the smallest integer, the largest */
    OPCODE_ROOT,     /* for integers, the largest integer whose square is at most a */
    OPCODE_INVERSE_ROOT,
    OPCODE_LOGARITHM,
    OPCODE_LARGER,     /* NaN wins */
    OPCODE_IF_GREATER, /* a > b ? c : d */
    OPCODE_IF_EQUAL,   /* a == b ? c : d */
    OPCODE_SHIFT,      /* a, but 0 for -inf: a value that can be subtracted from scores */
    OPCODE_WEIGHT,     /* e^(a - b) for a <= b; 1 for infinity minus itself */
    OPCODE_ROW_WEIGHT, /* like the previous one, with the accuracy of the type, for sums of only a few of them */

    /* Reductions over all elements of a row. */
    OPCODE_SUM,
    OPCODE_PRODUCT,
    OPCODE_LEAST,
    OPCODE_LARGEST,
    OPCODE_MOMENTS, /* the mean; its SECOND is the sum of squared deviations from the mean */
    OPCODE_WEIGHTS, /* the maximum; its SECOND is the sum of e^(element - maximum) */
    OPCODE_SECOND,

    /* Without a value. */
    OPCODE_RESULT, /* tensor = a */
    /* tensor = the sum of a over all elements, of any row, that share an element of the tensor. b: the sum of a over
       the row, to sum rows instead; -1 if unknown. */
    OPCODE_SUM_TO,
    OPCODE_END,
};

struct instruction {
    enum opcode opcode;
    int arguments[INSTRUCTION_ARGUMENTS]; /* earlier instructions, or -1 */
    const struct tensor *tensor;
    double number;
    bool is_per_element;
};

/* Method of computing statistics, chosen by the engine. */
enum statistics_method {
    STATISTICS_IN_TURN, /* one reduction for each statistic that the next one needs: reads rows several times */
    STATISTICS_SHIFTED, /* plain sums in one pass, relative to a sample of the row */
    STATISTICS_JOINED,  /* moments and weights in one pass, which can be merged */
};

struct expansion {
    /* Given. */
    enum statistics_method method;
    /* True if the values of a tensor were not rounded to its type, because a product or other operations of the region
       compute them: then a narrow type does not bound their spacing, and no element can be sampled. NULL: none are. */
    bool (*is_computed_inside)(const void *context, const struct tensor *tensor);
    const void *context;

    /* Filled in: number of rows along each dimension. It is 1 if a row spans the dimension, the extent if each index
       belongs to a different row, and in between if rows consist of groups of adjacent indices. */
    struct dims dims;
    int64_t parts[WEFT_DIM_MAX];
    weftDataType_t math; /* FLOAT, DOUBLE or INT64 */
    int count;
    struct instruction at[INSTRUCTIONS_MAX];
    /* For gradients of a norm: its statistics, with which SUM_TO can be computed after all rows; otherwise -1. */
    int mean, inv;
};

/* Expands an operation, which must have an expansion. */
weftStatus_t expansion_of(struct expansion *e, const struct descriptor *op);
static inline bool op_expands(const struct descriptor *op) { return op_of(op)->expand != NULL; }

/* ---- Building an expansion --------------------------------------------------------------------------------------- */

/* Selects the type of the calculation; for DOUBLE x it is always DOUBLE. */
void expansion_begin(struct expansion *e, int32_t math, const struct tensor *x);
/* Rejects integers; `subject` names the operation that they do not support. */
weftStatus_t expansion_needs_float(const struct expansion *e, const struct descriptor *op, const char *subject);

int expand_input(struct expansion *e, const struct tensor *tensor); /* -1 for NULL */
int expand_number(struct expansion *e, double number);
int expand_given(struct expansion *e, int name);
int expand(struct expansion *e, enum opcode opcode, int a, int b);
int expand_choice(struct expansion *e, enum opcode opcode, int a, int b, int c, int d);
void expand_result(struct expansion *e, const struct tensor *tensor, int value); /* does nothing for NULL */

static inline int expand_add(struct expansion *e, int a, int b) { return expand(e, OPCODE_ADD, a, b); }
static inline int expand_subtract(struct expansion *e, int a, int b) { return expand(e, OPCODE_SUBTRACT, a, b); }
static inline int expand_multiply(struct expansion *e, int a, int b) { return expand(e, OPCODE_MULTIPLY, a, b); }
static inline int expand_divide(struct expansion *e, int a, int b) { return expand(e, OPCODE_DIVIDE, a, b); }
static inline int expand_share(struct expansion *e, int a, int b) { return expand(e, OPCODE_SHARE, a, b); }
static inline int expand_negate(struct expansion *e, int a) { return expand(e, OPCODE_NEGATE, a, -1); }
static inline int expand_sum(struct expansion *e, int a) { return expand(e, OPCODE_SUM, a, -1); }
/* 1 / sqrt(variance + epsilon). */
int expand_inverse_deviation(struct expansion *e, int variance, int epsilon);

/* ---- Parts of norms that several operations share (ops/norm_expansion.c) ----------------------------------------- */

/* Rows are channels: all dimensions except dimension 1 are reduced. */
void expand_over_channels(struct expansion *e, const struct tensor *x);

#endif
