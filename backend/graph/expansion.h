/* SPDX-License-Identifier: Apache-2.0 */
/* The formula of an operation that combines elements to rows, as a list of instructions: written once beside the
   operation, read by every engine that has code for such rows. A row is the set of elements that share their
   statistics. A value is one instruction's; it belongs to an element or to a whole row, and which one follows from what
   it is made of. Instructions know no threads, no memory and no order but that each comes behind those that it names.
   */
#ifndef WEFT_GRAPH_EXPANSION_H
#define WEFT_GRAPH_EXPANSION_H

#include "graph/op.h"

enum { INSTRUCTIONS_MAX = 96, INSTRUCTION_ARGUMENTS = 4 };

/* a, b, c and d are the values of the arguments. */
enum opcode {
    /* Values without arguments. */
    OPCODE_INPUT,  /* of a tensor, for the element or the row */
    OPCODE_SAMPLE, /* an element of the tensor's row, or a mean of some: near to the others where these are alike */
    OPCODE_NUMBER,
    OPCODE_GIVEN,  /* what the reader of the expansion has by this number */
    OPCODE_LENGTH, /* elements of the row */
    OPCODE_COUNT,  /* the same, at least 1 */

    /* Of elements or rows. */
    OPCODE_COPY,
    OPCODE_ADD,
    OPCODE_SUBTRACT,
    OPCODE_MULTIPLY,
    OPCODE_DIVIDE,
    OPCODE_SHARE, /* a / b, the last bit of which does not count */
    OPCODE_NEGATE,
    OPCODE_ABSOLUTE, /* of the smallest integer, the largest */
    OPCODE_ROOT,     /* of integers the largest whose square is at most a */
    OPCODE_INVERSE_ROOT,
    OPCODE_LOGARITHM,
    OPCODE_LARGER,     /* NaN wins */
    OPCODE_IF_GREATER, /* a > b ? c : d */
    OPCODE_IF_EQUAL,   /* a == b ? c : d */
    OPCODE_SHIFT,      /* a, but 0 for -inf: what scores may be compared with */
    OPCODE_WEIGHT,     /* e^(a - b) for a <= b, 1 for infinity minus itself */
    OPCODE_ROW_WEIGHT, /* the same, never less exact than the type: where few of them make up a row's sum */

    /* Of all elements of a row. */
    OPCODE_SUM,
    OPCODE_PRODUCT,
    OPCODE_LEAST,
    OPCODE_LARGEST,
    OPCODE_MOMENTS, /* the mean; SECOND of it: the sum of squared deviations from the mean */
    OPCODE_WEIGHTS, /* the largest; SECOND of it: the sum of e^(element - largest) */
    OPCODE_SECOND,

    /* What has no value. */
    OPCODE_RESULT, /* tensor = a */
    /* tensor = the sum of a over all elements that share one of the tensor's, whatever their rows. b: the sum of a over
       the row, where a sum of rows will do; -1: none. */
    OPCODE_SUM_TO,
    OPCODE_END,
};

struct instruction {
    enum opcode opcode;
    int arguments[INSTRUCTION_ARGUMENTS]; /* earlier instructions; -1: none */
    const struct tensor *tensor;
    double number;
    bool is_per_element;
};

/* How statistics are taken, as suits who takes them. */
enum statistics_method {
    STATISTICS_IN_TURN, /* a reduction for each that the next one needs: rows are read several times */
    STATISTICS_SHIFTED, /* plain sums in one pass, around a sample of the row */
    STATISTICS_JOINED,  /* moments and weights in one pass, which join */
};

struct expansion {
    /* Given. */
    enum statistics_method method;
    /* Whether the values of a tensor were not rounded to its type (by a product, or by other operations of the region):
       then few bits of it do not say that its values are few bits apart, and it has no element to sample. NULL: none.
       */
    bool (*is_made_inside)(const void *context, const struct tensor *tensor);
    const void *context;

    /* Filled in. The rows: as many along each dimension as parts says; 1 where rows span it, its extent where each
       element has its own row, between them where rows take groups of neighbours. */
    struct dims dims;
    int64_t parts[WEFT_DIM_MAX];
    weftDataType_t math; /* FLOAT, DOUBLE or INT64 */
    int count;
    struct instruction at[INSTRUCTIONS_MAX];
    /* Of the gradients of a norm: its statistics, by which SUM_TO may be done behind all rows. -1: none. */
    int mean, inv;
};

/* Expands an operation; the op must have an expansion. */
weftStatus_t expansion_of(struct expansion *e, const struct descriptor *op);
static inline bool op_expands(const struct descriptor *op) { return op_of(op)->expand != NULL; }

/* ---- Writing one ------------------------------------------------------------------------------------------------- */

/* The type that an operation calculates in; that of a double x is double whatever was asked for. */
void expansion_begin(struct expansion *e, int32_t math, const struct tensor *x);
/* Refuses integers; where says what cannot be calculated in them. */
weftStatus_t expansion_needs_float(const struct expansion *e, const struct descriptor *op, const char *what);

int expand_input(struct expansion *e, const struct tensor *tensor); /* -1 for NULL */
int expand_number(struct expansion *e, double number);
int expand_given(struct expansion *e, int name);
int expand(struct expansion *e, enum opcode opcode, int a, int b);
int expand_choice(struct expansion *e, enum opcode opcode, int a, int b, int c, int d);
void expand_result(struct expansion *e, const struct tensor *tensor, int value); /* nothing for NULL */

static inline int expand_add(struct expansion *e, int a, int b) { return expand(e, OPCODE_ADD, a, b); }
static inline int expand_subtract(struct expansion *e, int a, int b) { return expand(e, OPCODE_SUBTRACT, a, b); }
static inline int expand_multiply(struct expansion *e, int a, int b) { return expand(e, OPCODE_MULTIPLY, a, b); }
static inline int expand_divide(struct expansion *e, int a, int b) { return expand(e, OPCODE_DIVIDE, a, b); }
static inline int expand_share(struct expansion *e, int a, int b) { return expand(e, OPCODE_SHARE, a, b); }
static inline int expand_negate(struct expansion *e, int a) { return expand(e, OPCODE_NEGATE, a, -1); }
static inline int expand_sum(struct expansion *e, int a) { return expand(e, OPCODE_SUM, a, -1); }
/* 1 / sqrt(variance + epsilon). */
int expand_inverse_deviation(struct expansion *e, int variance, int epsilon);

/* ---- Parts of norms that several operations have (ops/norm_expansion.c) ------------------------------------------ */

/* The row space of channels: everything but dimension 1 is reduced. */
void expand_over_channels(struct expansion *e, const struct tensor *x);

#endif
