/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of row programs: loops over blocks in the L1 cache, in float and in double. A block has `rows` rows of
   `columns` elements without gaps. Sums have a fixed order that does not depend on the CPU's vector width: four groups
   of 64-byte lanes, accumulated in turn and combined pairwise, so results are identical on every CPU. This file must
   not know terms, tensors or threads. */
#ifndef WEFT_ENGINES_CPU_ROWS_KERNELS_H
#define WEFT_ENGINES_CPU_ROWS_KERNELS_H

#include "graph/expansion.h"

enum { ROW_CHUNK = 64 };    /* elements that a formula processes at a time */
enum { ROW_ARGUMENTS = 8 }; /* maximum number of arguments of a formula */

/* Merged formulas, built from terms without other readers. */
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
    ROW_LARGEST_EXPONENTIAL,            /* the same, where b is the maximum of a's row */
    ROW_FORMULAS_END,
};

/* Steps of a formula through an argument, in elements. chunk: ROW_CHUNK, or 0 to repeat one chunk for the whole row.
   row: from row to row. ahead: distance of the data that will be read some microseconds later, which a formula
   prefetches for its first argument; 0: no prefetch. */
struct row_steps {
    int64_t chunk, row, ahead;
};

/* y[i] = opcode(x[0][i], x[1][i], ...) over rows and columns. All ROW_ARGUMENTS pointers must be valid. y may be
   exactly one of them. ld: row pitch of y in elements; steps: the steps of each argument. */
typedef void row_formula(int64_t rows, int64_t columns, void *y, int64_t ld, const void *const *x,
                         const struct row_steps *steps);

/* Accumulates elements into totals, which are double, of each row or of each column. b: factor of x, or NULL. ld: row
   pitches of x and b in elements. */
typedef void row_reduction(int64_t rows, int64_t columns, double *totals, const void *x, int64_t ld_x, const void *b,
                           int64_t ld_b);

/* Computes two totals in one loop: those of p and p * (x - m) or, if p is NULL, those of x - m and its square. ld: row
   pitches. m has one number per column for sums of columns; for sums of rows, it has one per element or, if step is 0,
   one per row. */
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
    row_formula *const *formulas;                     /* indexed by opcode */
    row_reduction *(*of_rows)(enum opcode opcode);    /* OPCODE_SUM to OPCODE_LARGEST; only OPCODE_SUM uses b */
    row_reduction *(*of_columns)(enum opcode opcode); /* likewise */
    row_pair_reduction *pair_of_rows, *pair_of_columns;
    row_column_sum *column_sum;
    void (*scale)(int64_t count, void *y, const void *x, double factor);
    void (*fill)(int64_t count, void *y, double number);
    void (*fill_chunks)(int64_t count, void *y, const void *values); /* fills a chunk with each value */
    void (*of_totals)(int64_t count, void *y, const double *totals);
};

extern const struct row_kernels row_kernels_f32, row_kernels_f64;

void row_widen(int64_t count, double *y, const float *x);
void row_narrow(int64_t count, float *y, const double *x);

/* The identity of a reduction, and the combination of two sets of totals. */
double row_identity(enum opcode opcode);
void row_join(enum opcode opcode, int64_t count, double *totals, const double *others);

#endif
