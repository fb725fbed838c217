/* SPDX-License-Identifier: Apache-2.0 */
/* A row program: the terms that the nodes of a region compute for each row of an index space. A row is the set of
   elements that share their statistics. A term's value belongs to an element or to the whole row; a reduction combines
   a term over all elements of the row and closes a pass. Terms are independent of threads and kernels. */
#ifndef WEFT_ENGINES_CUDA_ROWS_PLAN_H
#define WEFT_ENGINES_CUDA_ROWS_PLAN_H

#include "engines/cuda/core/formula.h"
#include "engines/cuda/core/operand.h"
#include "engines/row_space.h"

/* limits of a row program, and of the terms that one term reads */
enum { ROWS_OPERANDS_MAX = 32, TERMS_MAX = 160, TERM_USES = 8 };

/* operand.memory of operands that are not stored in a value of the graph. */
enum { MEMORY_INDEX = -1, MEMORY_SCRATCH = -2 };

enum term_kind {
    TERM_LOAD,      /* loads an operand's element */
    TERM_NODE,      /* evaluates a pointwise node */
    TERM_FORMULA,   /* applies an opcode to other terms */
    TERM_REDUCTION, /* combines a term over all elements of the row, by an opcode */
};

/* Opcodes that only row programs have, after those of expansions. */
enum {
    ROWS_CONVERT = OPCODE_END, /* converts a load to the compute type */
    ROWS_ROUND,                /* rounds to the type of memory */
    ROWS_COLUMN_SUM,           /* sums over all rows, for each position in the row; closes no pass */
};

/* Argument of a formula: a term or a literal. */
struct term_argument {
    int name;            /* name of the term; -1: a literal */
    enum opcode literal; /* OPCODE_NUMBER, OPCODE_LENGTH or OPCODE_COUNT */
    double number;
};

/* Terms are stored in the order of evaluation: a term reads only earlier ones. */
struct term {
    enum term_kind kind;
    int opcode;         /* opcode of a formula or a reduction */
    int name;           /* v<name> in the generated code: a value of the graph or, beyond those, a temporary */
    int names;          /* number of consecutive names that it defines: 1; moments and weights 2 */
    bool spans;         /* differs from element to element of the row */
    bool is_needed;     /* a store depends on it */
    int stage;          /* number of passes that must be closed before it can be evaluated */
    const char *type;   /* CUDA type: the storage type of a load, else the compute type */
    const char *stored; /* ROWS_ROUND: the type of memory */
    int operand;        /* operand of a load */
    const struct node *node;
    int argument_count;
    struct term_argument arguments[INSTRUCTION_ARGUMENTS]; /* arguments of a formula */
    int use_count, uses[TERM_USES];                        /* indices of terms */
};

static inline bool term_is_column_sum(const struct term *term) {
    return term->kind == TERM_REDUCTION && term->opcode == ROWS_COLUMN_SUM;
}
static inline bool term_closes_pass(const struct term *term) {
    return term->kind == TERM_REDUCTION && term->opcode != ROWS_COLUMN_SUM;
}

/* A softmax that is written as a maximum, a difference, an exponential, a sum and a quotient. */
struct softmax_nodes {
    const struct node *most, *sum, *quotient; /* NULL: not found */
    int score;                                /* a value of the graph */
    int peak, weight, total;                  /* names, -1: not created yet */
};

/* Tens of KiB, on the stack of accepts and build, two at a time. */
struct rows {
    const struct region *region;
    const struct graph *graph;
    enum statistics_method method;
    bool sums_apart; /* no column sums: gradients of scale and bias use a sweep of their own */
    bool is_brief;   /* every stored element has at most 16 bits */
    struct row_space space;
    int operand_count;
    struct operand operands[ROWS_OPERANDS_MAX]; /* strides over the axes */
    int term_count;
    struct term terms[TERMS_MAX];
    int next_name;
    int64_t scratch_bytes;
    struct follow follow;
    struct softmax_nodes softmax;
    /* for statistics in one pass: the operand that supplies the samples around which sums are computed; -1: none */
    int sampled;
    weftStatus_t failure; /* the first failure of the functions that return names */
};

/* Finds the region's row space and creates its terms, or reports why the family does not support it. sums_apart: no
   column sums. */
weftStatus_t rows_analyse(struct rows *rows, const struct region *region, enum statistics_method method,
                          bool sums_apart);

/* Creates the program that computes what the first one left to it. */
weftStatus_t rows_follow(struct rows *rows, const struct rows *first);

/* Implements the family's may_alias. */
bool rows_may_alias(const struct step *step, int in, int out);

/* ---- terms.c: creating terms ---- */

/* These return names of new terms; -1 after a failure, which `failure` holds. */
int rows_input(struct rows *rows, const struct tensor *tensor, const char *type); /* -1 also for NULL */
/* The first element of the row; -1: not in memory. */
int rows_first(struct rows *rows, const struct tensor *tensor, const char *type);
int rows_formula(struct rows *rows, const char *type, int opcode, const struct term_argument *arguments, int count);
int rows_reduce(struct rows *rows, int opcode, const char *type, int of);
/* Makes a term the value of a tensor (NULL: no effect), rounded to the tensor's type, and stores it if it is read
   outside the region. */
void rows_result(struct rows *rows, const struct tensor *tensor, const char *type, int name);
/* Stores a term that varies by row, or by position in the row, in the workspace; returns its offset. */
int64_t rows_save(struct rows *rows, const char *type, int name, bool by_place);
int rows_load_saved(struct rows *rows, const char *type, int64_t at, const int64_t *strides);

const struct term *rows_find(const struct rows *rows, int name);
/* Creates the term of a pointwise node. */
void rows_pointwise(struct rows *rows, const struct node *node);
/* Marks a name and its dependencies as needed; unmarked terms are not computed. */
void rows_need(struct rows *rows, int name);

/* True if a term is a number of the row that elements, stores or later passes read: a field of struct row. */
bool rows_is_field(const struct rows *rows, const struct term *term);

/* The compute type as CUDA text. */
static inline const char *math_name(weftDataType_t math) {
    return math == WEFT_DATA_INT64 ? "i64" : math == WEFT_DATA_DOUBLE ? "double" : "float";
}

/* ---- lower.c: operations that are not pointwise, from their expansions to terms ---- */

/* Finds a softmax among the operations of the region. */
void rows_find_softmax(struct rows *rows);
/* Creates the terms of an operation that is not pointwise, or of a part of softmax. */
bool rows_expands(const struct rows *rows, const struct node *node);
weftStatus_t rows_expand(struct rows *rows, const struct node *node);
/* dscale and dbias as sums over the dims that they lack; mean and inv are names, -1: load them, or absent. */
weftStatus_t rows_expand_separately(struct rows *rows, const struct follow *follow, int mean, int inv);

#endif
