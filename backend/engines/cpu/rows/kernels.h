/* SPDX-License-Identifier: Apache-2.0 */
/* What row programs calculate, as loops over blocks in the L1 cache, in float and in double. A block has `rows` rows of
   `columns` elements without gaps. Sums have an order of their own, whatever the width of the CPU's vectors: lanes of
   64 bytes, four of them in turn, joined pairwise; so the numbers are the same on every CPU. It must not know terms,
   tensors or threads. */
#ifndef WEFT_ENGINES_CPU_ROWS_KERNELS_H
#define WEFT_ENGINES_CPU_ROWS_KERNELS_H

#include "graph/expansion.h"

enum { ROW_CHUNK = 64 };    /* elements that a formula takes at a time */
enum { ROW_ARGUMENTS = 8 }; /* of a formula, at most */

/* Formulas of several instructions, which are made of terms that nobody else needs. */
enum row_opcode {
    ROW_SUBTRACT_MULTIPLY = OPCODE_END, /* (a - b) * c */
    ROW_MULTIPLY_ADD,                   /* a * b + c */
    ROW_MULTIPLY_SUBTRACT,              /* a * b - c */
    ROW_SUBTRACT_MULTIPLY_ADD,          /* (a - b) * c + d */
    ROW_MULTIPLY_MULTIPLY,              /* a * b * c */
    ROW_MULTIPLY_MULTIPLY_SUBTRACT,     /* a * b * c - d */
    ROW_DEVIATION_MULTIPLY,             /* (a - b) * c * d */
    ROW_DEVIATION_MULTIPLY_ADD,         /* (a - b) * c * d + e */
    ROW_NORMALISE,                      /* ((a - b) * c - d) * e + f */
    ROW_GRADIENT,                       /* f * g * h - ((a - b) * c * d + e) */
    ROW_EXPONENTIAL,                    /* e^a */
    ROW_SUBTRACT_EXPONENTIAL,           /* e^(a - b) */
    ROW_LARGEST_EXPONENTIAL,            /* the same, where b is the largest of a's row */
    ROW_FORMULAS_END,
};

/* How formulas step through an argument, in elements: from chunk to chunk ROW_CHUNK, or 0 where one chunk stands for
   all; and from row to row. ahead: to what will be read some microseconds later, of which a formula fetches that of its
   first argument; 0: nothing. */
struct row_steps {
    int64_t chunk, row, ahead;
};

/* y[i] = opcode(x[0][i], x[1][i], ...) of rows and columns; all of the ROW_ARGUMENTS x are valid. y may be exactly one
   of them. ld: elements from row to row of y; steps: of each of x. */
typedef void row_formula(int64_t rows, int64_t columns, void *y, int64_t ld, const void *const *x,
                         const struct row_steps *steps);

/* Takes elements into totals, which are double, of each row or of each column. b: what x is multiplied by before, NULL:
   nothing. ld: elements from row to row of x and of b. */
typedef void row_reduction(int64_t rows, int64_t columns, double *totals, const void *x, int64_t ld_x, const void *b,
                           int64_t ld_b);

/* Two totals in one reading: of p and of p * (x - m); where p is NULL, of x - m and of its square. ld: as above. m of
   rows: one number for each element, or where step is 0, for each row; of columns: one for each. */
struct row_pair {
    const void *x, *m, *p;
    int64_t ld_x, ld_m, ld_p, step;
};
typedef void row_pair_reduction(int64_t rows, int64_t columns, double *sums, double *products,
                                const struct row_pair *pair);

/* sums[column] += the sum of its elements, row after row. */
typedef void row_column_sum(int64_t rows, int64_t columns, void *sums, const void *x, int64_t ld_x, const void *b,
                            int64_t ld_b);

struct row_kernels {
    row_formula *const *formulas;                  /* by opcode */
    row_reduction *(*of_rows)(enum opcode opcode); /* OPCODE_SUM to OPCODE_LARGEST; multiplies for OPCODE_SUM alone */
    row_reduction *(*of_columns)(enum opcode opcode); /* the same */
    row_pair_reduction *pair_of_rows, *pair_of_columns;
    row_column_sum *column_sum;
    void (*scale)(int64_t count, void *y, const void *x, double factor);
    void (*fill)(int64_t count, void *y, double number);
    void (*fill_chunks)(int64_t count, void *y, const void *values); /* a chunk of each value */
    void (*of_totals)(int64_t count, void *y, const double *totals);
};

extern const struct row_kernels row_kernels_f32, row_kernels_f64;

void row_widen(int64_t count, double *y, const float *x);
void row_narrow(int64_t count, float *y, const double *x);

/* What no element at all is combined to; and two totals. */
double row_identity(enum opcode opcode);
void row_join(enum opcode opcode, int64_t count, double *totals, const double *others);

#endif
