/* SPDX-License-Identifier: Apache-2.0 */
/* A row program: what the nodes of a region compute for each row of an index space, as terms. A row is the set of
   elements that share statistics. A term's value belongs to an element or to a whole row. A reduction combines all
   elements of a row and closes a pass over them. Terms know neither blocks, nor the instructions of passes, nor
   threads. */
#ifndef WEFT_ENGINES_CPU_ROWS_TERMS_H
#define WEFT_ENGINES_CPU_ROWS_TERMS_H

#include "engines/cpu/core/loops.h"
#include "engines/row_space.h"

enum { ROWWISE_OPERANDS = 40, ROWWISE_TERMS = 160 };

/* operand.value if the operand is not a value of the graph. */
enum { VALUE_INDEX = -1, VALUE_SCRATCH = -2 };

enum term_kind {
    TERM_CONSTANT,  /* a constant */
    TERM_LOAD,      /* an element of an operand */
    TERM_FORMULA,   /* an opcode applied to other terms */
    TERM_LOOP,      /* a pointwise mode's formula applied to other terms */
    TERM_SCALE,     /* a term times a constant */
    TERM_ROUND,     /* a term rounded to a storage type */
    TERM_CONVERT,   /* conversion between float and double */
    TERM_REDUCTION, /* all elements of a row of a term, combined by an opcode */
    /* sum over everything that shares an element of a tensor, such as a position in the row; closes no pass */
    TERM_COLUMN_SUM,
};

struct term {
    enum term_kind kind;
    int opcode;                                           /* for formulas (also enum row_opcode) and reductions */
    bool is_wide;                                         /* double instead of float */
    bool spans;                                           /* an element of the row rather than a row value */
    bool is_needed;                                       /* a store depends on it */
    int stage;                                            /* passes that must be closed before it can be evaluated */
    int argument_count, arguments[INSTRUCTION_ARGUMENTS]; /* terms */
    int operand;                                          /* for TERM_LOAD */
    double number;                                        /* for TERM_CONSTANT and TERM_SCALE */
    weftDataType_t type;                                  /* for TERM_ROUND */
    pointwise_loop *loop;                                 /* for TERM_LOOP, with its parameters */
    struct pointwise_parameters parameters;
    double nanoseconds; /* approximate cost per element */
};

/* A tensor that is read or written. */
struct row_operand {
    int value, term; /* value of the graph, or one of the above; the term that is loaded or stored */
    bool is_store;
    weftDataType_t type;
    bool is_sample; /* mean of a few elements of each row of operand `sampled` */
    int sampled;
    int64_t offset;                /* in elements, for scratch memory */
    int64_t strides[WEFT_DIM_MAX]; /* in elements, along the axes; 0 where the tensor broadcasts */
};

/* A value of the graph and its term. */
struct row_value {
    int value, term;
};

/* Working memory for a program; need not be cleared. A step copies the part that was used. */
struct rowwise_storage {
    struct row_operand operands[ROWWISE_OPERANDS];
    struct row_value values[ROWWISE_TERMS];
    struct term terms[ROWWISE_TERMS];
};

/* Terms are stored in the order of evaluation: arguments precede their readers. */
struct rowwise {
    const struct region *region;
    const struct graph *graph;
    enum statistics_method method; /* for norms; all other statistics are computed one after the other */
    bool sums_apart;               /* no column sums: gradients of scale and bias are computed by a separate pass */
    bool is_wide;                  /* everything is computed in double, even if operations request less */
    struct row_space space;
    int operand_count, value_count, term_count;
    struct row_operand *operands;
    struct row_value *values;
    struct term *terms;
    struct follow follow;
    int64_t scratch_bytes; /* for the second program */
    weftStatus_t trouble;  /* the first failure of the functions that return terms */
};

/* ---- terms.c: each returns the new term's index, or -1 after a failure, which is recorded in `trouble` ---- */

int rowwise_constant(struct rowwise *rows, double number, bool is_wide);
int rowwise_input(struct rowwise *rows, const struct tensor *tensor, bool is_wide);
/* An approximate mean of each row's elements; -1 if the tensor is not in memory or has no elements. */
int rowwise_sample(struct rowwise *rows, const struct tensor *tensor, bool is_wide);
int rowwise_formula(struct rowwise *rows, int opcode, const int *arguments, int count, bool is_wide);
int rowwise_reduce(struct rowwise *rows, enum term_kind kind, enum opcode opcode, int of, bool is_wide);
/* Adds a pointwise node's result. */
void rowwise_pointwise(struct rowwise *rows, const struct node *node);
/* Makes a term the value of a tensor (NULL: none), rounded as the tensor's type requires, and stores it if it is read
   outside the region. */
void rowwise_result(struct rowwise *rows, const struct tensor *tensor, int term);
/* Stores a row value in scratch memory and returns its location; rowwise_load_saved loads such a location as a term. */
int64_t rowwise_save(struct rowwise *rows, int term);
int rowwise_load_saved(struct rowwise *rows, int64_t at, const int64_t *strides, bool is_wide);
/* Marks everything that stores depend on, and refuses stores that are not possible. */
weftStatus_t rowwise_finish(struct rowwise *rows);

/* ---- lower.c ---- */

/* Lowers a region to a program, or fails with a message. Pure. */
weftStatus_t rowwise_analyse(struct rowwise *rows, struct rowwise_storage *storage, const struct region *region,
                             enum statistics_method method, bool sums_apart, bool is_wide);
/* Generates the program that completes what the first one left over. */
weftStatus_t rowwise_follow(struct rowwise *rows, struct rowwise_storage *storage, const struct rowwise *first);

#endif
