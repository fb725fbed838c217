/* SPDX-License-Identifier: Apache-2.0 */
/* A row program: what the nodes of a region compute for each row of an index space, as terms. A row is the set of
   elements that share their statistics; a term's value belongs to an element or to the whole row; a reduction takes a
   term of all elements of the row in and closes a pass over them. Terms know no blocks, no passes' code and no
   threads. */
#ifndef WEFT_ENGINES_CPU_ROWS_TERMS_H
#define WEFT_ENGINES_CPU_ROWS_TERMS_H

#include "engines/cpu/core/loops.h"
#include "engines/row_space.h"

enum { ROWWISE_OPERANDS = 40, ROWWISE_TERMS = 160 };

/* operand.value of what is no value of the graph. */
enum { VALUE_INDEX = -1, VALUE_SCRATCH = -2 };

enum term_kind {
    TERM_CONSTANT,   /* a number */
    TERM_LOAD,       /* an operand's element */
    TERM_FORMULA,    /* an opcode over other terms */
    TERM_LOOP,       /* a pointwise mode's formula over other terms */
    TERM_SCALE,      /* a term times a number */
    TERM_ROUND,      /* a term as memory of a type would hold it */
    TERM_CONVERT,    /* between float and double */
    TERM_REDUCTION,  /* a term of all elements of the row, combined by an opcode */
    TERM_COLUMN_SUM, /* over all that shares an element of a tensor, as a position in the row: closes no pass */
};

struct term {
    enum term_kind kind;
    int opcode;                                           /* of formulas, also of enum row_opcode, and of reductions */
    bool is_wide;                                         /* double, else float */
    bool spans;                                           /* differs from element to element of the row */
    bool is_needed;                                       /* a store depends on it */
    int stage;                                            /* passes that must be closed before it can be evaluated */
    int argument_count, arguments[INSTRUCTION_ARGUMENTS]; /* terms */
    int operand;                                          /* of TERM_LOAD */
    double number;                                        /* of TERM_CONSTANT and TERM_SCALE */
    weftDataType_t type;                                  /* of TERM_ROUND */
    pointwise_loop *loop;                                 /* of TERM_LOOP, with its parameters */
    struct pointwise_parameters parameters;
    double nanoseconds; /* an element takes, roughly */
};

/* A tensor as it is read or written. */
struct row_operand {
    int value, term; /* of the graph, or as above; the term that it becomes or stores */
    bool is_store;
    weftDataType_t type;
    bool is_sample; /* a mean of a few elements of each row: those of operand sampled */
    int sampled;
    int64_t offset;                /* elements, in scratch memory */
    int64_t strides[WEFT_DIM_MAX]; /* elements, along the axes; 0 where the tensor broadcasts */
};

/* A value of the graph that has become a term. */
struct row_value {
    int value, term;
};

/* What a program is written in, and need not be cleared. A step keeps as much of it as was used. */
struct rowwise_room {
    struct row_operand operands[ROWWISE_OPERANDS];
    struct row_value made[ROWWISE_TERMS];
    struct term terms[ROWWISE_TERMS];
};

/* Terms lie in the order of evaluation: arguments come before those that use them. */
struct rowwise {
    const struct region *region;
    const struct graph *graph;
    enum statistics_method method; /* of norms; all else takes its statistics in turn */
    bool sums_apart;               /* no column sums: gradients of scale and bias in a sweep of their own */
    bool is_wide;                  /* everything is calculated in double, whatever the operations ask for */
    struct row_space space;
    int operand_count, made_count, term_count;
    struct row_operand *operands;
    struct row_value *made;
    struct term *terms;
    struct follow follow;
    int64_t scratch_bytes; /* of what follow needs */
    weftStatus_t trouble;  /* the first failure of the calls that return terms */
};

/* ---- terms.c: each gives the new term's number, -1 after a failure, which `trouble` keeps ---- */

int rowwise_constant(struct rowwise *rows, double number, bool is_wide);
int rowwise_input(struct rowwise *rows, const struct tensor *tensor, bool is_wide);
/* What each row's elements are about; -1: not in memory, or there is none. */
int rowwise_sample(struct rowwise *rows, const struct tensor *tensor, bool is_wide);
int rowwise_formula(struct rowwise *rows, int opcode, const int *arguments, int count, bool is_wide);
int rowwise_reduce(struct rowwise *rows, enum term_kind kind, enum opcode opcode, int of, bool is_wide);
/* A pointwise node's result. */
void rowwise_pointwise(struct rowwise *rows, const struct node *node);
/* Makes a term the value of a tensor (NULL: nothing), rounded as the tensor's type asks, and stores it where somebody
   outside the region needs it. */
void rowwise_result(struct rowwise *rows, const struct tensor *tensor, int term);
/* Stores a term that differs from row to row in scratch memory; gives its place there. And such a place as a term. */
int64_t rowwise_keep(struct rowwise *rows, int term);
int rowwise_kept(struct rowwise *rows, int64_t at, const int64_t *strides, bool is_wide);
/* Marks what stores depend on, and refuses what they cannot hold. */
weftStatus_t rowwise_finish(struct rowwise *rows);

/* ---- lower.c ---- */

/* Writes the program of a region, or says why the family does not serve it. Pure. */
weftStatus_t rowwise_analyse(struct rowwise *rows, struct rowwise_room *room, const struct region *region,
                             enum statistics_method method, bool sums_apart, bool is_wide);
/* The program that does what the first one left over. */
weftStatus_t rowwise_follow(struct rowwise *rows, struct rowwise_room *room, const struct rowwise *first);

#endif
