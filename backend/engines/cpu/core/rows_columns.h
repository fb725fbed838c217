/* SPDX-License-Identifier: Apache-2.0 */
/* 2-D view of a program's index space: the row number covers all loops except the innermost, the column number covers
   the innermost loop, and others outside of all rows if there are any. This file must not know what the program
   computes. */
#ifndef WEFT_ENGINES_CPU_ROWS_COLUMNS_H
#define WEFT_ENGINES_CPU_ROWS_COLUMNS_H

#include "engines/cpu/core/program.h"

/* One loop over a part of a dimension of the space: index = first + i * step, 0 <= i < extent. */
struct axis {
    int dim;
    int64_t extent, first, step;
};

enum { ROWS_COLUMNS_AXES = WEFT_DIM_MAX + 4, OUTER_COLUMNS = 4 };

struct rows_columns {
    int rank;                           /* at least 2; the last loop is the columns, the one before it the inner rows */
    int64_t rows;                       /* product of all extents except the last */
    int64_t extents[ROWS_COLUMNS_AXES]; /* the last one is the number of columns */
    int64_t bases[PROGRAM_ACCESSES];
    int64_t strides[PROGRAM_ACCESSES][ROWS_COLUMNS_AXES]; /* in elements */
    int block_columns;                                    /* maximum columns of a block */
    /* Loops of columns outside of the innermost one, which each block stays within. */
    int outer_count;
    int64_t outer_extents[OUTER_COLUMNS], outer_strides[PROGRAM_ACCESSES][OUTER_COLUMNS];
};

/* Plans a program's traversal of loops, given outermost first, at most ROWS_COLUMNS_AXES - 2. Loops that are contiguous
   in all tensors are merged; columns are merged with rows only if may_merge_columns. */
void rows_columns_plan(struct rows_columns *walk, const struct program *program, const struct axis *axes, int count,
                       bool may_merge_columns);

/* The same for a caller's block whose columns count several loops, at most OUTER_COLUMNS + 1: the last `columns` axes,
   innermost last. */
void rows_columns_plan_split(struct rows_columns *walk, const struct program *program, const struct axis *axes,
                             int count, int columns);

/* True if these loops are equivalent to the last of them with the product of their extents, in all tensors. */
bool axes_merge(const struct program *program, const struct axis *axes, int count);

/* The caller's block; its first element is (row, column). */
struct block {
    void *data;
    int64_t ld; /* row pitch in elements */
};

/* Runs the program on [row, row + rows) x [column, column + columns). `values` are pointers, indexed by the graph's
   values. */
void program_run(const struct program *program, const struct rows_columns *walk, void *const *values,
                 struct block block, int64_t row, int64_t rows, int64_t column, int64_t columns);

/* Memory in which the rows of a block are stored, for the first tensor that the program stores. at: NULL unless the
   rows have a constant stride and contiguous elements. */
struct stored {
    char *at;
    int64_t row_bytes, column_bytes;
    bool is_given; /* the caller's block is stored without changes */
};
struct stored rows_columns_stored(const struct program *program, const struct rows_columns *walk, void *const *values,
                                  int64_t row, int64_t rows, int64_t column);

#endif
