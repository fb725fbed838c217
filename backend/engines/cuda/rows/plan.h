/* SPDX-License-Identifier: Apache-2.0 */
/* A row program: what the nodes of a region compute for each row of an index space, as terms. A row is the set of
   elements that share their statistics; a term's value belongs to an element or to the whole row; a total takes a term
   of all elements of the row in and closes a pass. Terms know no threads and no kernels. */
#ifndef WEFT_ENGINES_CUDA_ROWS_PLAN_H
#define WEFT_ENGINES_CUDA_ROWS_PLAN_H

#include "engines/cuda/core/formula.h"
#include "engines/cuda/core/operand.h"
#include "engines/row_space.h"

enum { ROWS_OPERANDS_MAX = 32, TERMS_MAX = 160, TERM_USES = 8 }; /* of a row program; terms that one reads */

/* operand.memory of what has no memory of a value of the graph. */
enum { MEMORY_INDEX = -1, MEMORY_SCRATCH = -2 };

enum term_kind {
    TERM_LOAD,      /* an operand's element */
    TERM_NODE,      /* a pointwise node's formula */
    TERM_FORMULA,   /* an opcode over other terms */
    TERM_REDUCTION, /* a term of all elements of the row, combined by an opcode */
};

/* Opcodes that only row programs have, behind those of expansions. */
enum {
    ROWS_CONVERT = OPCODE_END, /* of a load to the type of arithmetic */
    ROWS_ROUND,                /* as memory of another type would hold it */
    ROWS_COLUMN_SUM,           /* over all rows, for each position in the row: closes no pass */
};

/* What a formula takes: a term, or what needs none. */
struct term_argument {
    int name;            /* of the term; -1: */
    enum opcode literal; /* OPCODE_NUMBER, OPCODE_LENGTH or OPCODE_COUNT */
    double number;
};

/* Terms lie in the order of evaluation: a term uses only those before it. */
struct term {
    enum term_kind kind;
    int opcode;         /* of a formula or a reduction */
    int name;           /* v<name> in printed code: a value of the graph, or past those a temporary */
    int names;          /* consecutive names that it defines: 1, moments and weights 2 */
    bool spans;         /* differs from element to element of the row */
    bool is_needed;     /* a store depends on it */
    int stage;          /* passes that must be closed before it can be evaluated */
    const char *type;   /* in CUDA text: of storage for a load, else of arithmetic */
    const char *stored; /* ROWS_ROUND: the type of memory */
    int operand;        /* of a load */
    const struct node *node;
    int argument_count;
    struct term_argument arguments[INSTRUCTION_ARGUMENTS]; /* of a formula */
    int use_count, uses[TERM_USES];                        /* terms */
};

static inline bool term_is_column_sum(const struct term *term) {
    return term->kind == TERM_REDUCTION && term->opcode == ROWS_COLUMN_SUM;
}
static inline bool term_closes_pass(const struct term *term) {
    return term->kind == TERM_REDUCTION && term->opcode != ROWS_COLUMN_SUM;
}

/* Softmax where it comes as a maximum, a difference, an exponential, a sum and a quotient. */
struct softmax_nodes {
    const struct node *most, *sum, *quotient; /* NULL: it does not */
    int score;                                /* a value of the graph */
    int peak, weight, total;                  /* names, -1: not made yet */
};

/* Tens of KiB, on the stack of accepts and build, two at a time. */
struct rows {
    const struct region *region;
    const struct graph *graph;
    enum statistics_method method;
    bool sums_apart; /* no sums of columns: gradients of scale and bias in a sweep of their own */
    bool is_brief;   /* every element that is stored has at most 16 bits */
    struct row_space space;
    int operand_count;
    struct operand operands[ROWS_OPERANDS_MAX]; /* strides over the axes */
    int term_count;
    struct term terms[TERMS_MAX];
    int next_name;
    int64_t scratch_bytes;
    struct follow follow;
    struct softmax_nodes softmax;
    int sampled;          /* at once: the operand of which elements give what sums are taken around; -1: none */
    weftStatus_t trouble; /* the first failure of the calls that return names */
};

/* Finds the region's row space and writes its terms, or says why the family does not serve it. sums_apart: no sums
   of columns. */
weftStatus_t rows_analyse(struct rows *rows, const struct region *region, enum statistics_method method,
                          bool sums_apart);

/* The program that does what the first one left over. */
weftStatus_t rows_follow(struct rows *rows, const struct rows *first);

/* The family's may_alias. */
bool rows_may_alias(const struct step *step, int in, int out);

/* ---- terms.c: writing terms ---- */

/* The names of new terms; -1 after a failure, which `trouble` keeps. */
int rows_input(struct rows *rows, const struct tensor *tensor, const char *type); /* -1 also for NULL */
int rows_first(struct rows *rows, const struct tensor *tensor, const char *type); /* of the row; -1: not in memory */
int rows_formula(struct rows *rows, const char *type, int opcode, const struct term_argument *arguments, int count);
int rows_reduce(struct rows *rows, int opcode, const char *type, int of);
/* Makes a term the value of a tensor (NULL: nothing), rounded as the tensor's type asks, and stores it when somebody
   outside the region needs it. */
void rows_result(struct rows *rows, const struct tensor *tensor, const char *type, int name);
/* Stores a term that differs from row to row, or from place to place in the row, in the workspace; gives its place. */
int64_t rows_keep(struct rows *rows, const char *type, int name, bool by_place);
int rows_kept(struct rows *rows, const char *type, int64_t at, const int64_t *strides);

const struct term *rows_find(const struct rows *rows, int name);
/* The term of a pointwise node. */
void rows_pointwise(struct rows *rows, const struct node *node);
/* Marks a name and what it depends on: the rest is not calculated. */
void rows_need(struct rows *rows, int name);

/* Whether a term is a number that code of elements, stores or later passes asks the row for: a field of struct row. */
bool rows_is_field(const struct rows *rows, const struct term *term);

/* The type of arithmetic, as CUDA spells it. */
static inline const char *math_name(weftDataType_t math) {
    return math == WEFT_DATA_INT64 ? "i64" : math == WEFT_DATA_DOUBLE ? "double" : "float";
}

/* ---- lower.c: operations that are not pointwise, from their expansions to terms ---- */

/* Finds softmax among the operations of the region, if it is there. */
void rows_find_softmax(struct rows *rows);
/* Writes the terms of an operation that is not pointwise, or a part of softmax. */
bool rows_expands(const struct rows *rows, const struct node *node);
weftStatus_t rows_expand(struct rows *rows, const struct node *node);
/* dscale and dbias as sums over what is outside of them; mean and inv are names, -1: to be loaded, or none. */
weftStatus_t rows_expand_apart(struct rows *rows, const struct follow *follow, int mean, int inv);

#endif
