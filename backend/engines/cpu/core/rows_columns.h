/* SPDX-License-Identifier: Apache-2.0 */
/* How an index space is walked by a program: as rows and columns, where a row's number runs over all loops but the
   innermost, and a column's number over that one. It must not know what the program computes. */
#ifndef WEFT_ENGINES_CPU_ROWS_COLUMNS_H
#define WEFT_ENGINES_CPU_ROWS_COLUMNS_H

#include "engines/cpu/core/program.h"

/* One loop over a part of a dimension of the space: index = first + i * step, 0 <= i < extent. */
struct axis {
    int dim;
    int64_t extent, first, step;
};

enum { ROWS_COLUMNS_AXES = WEFT_DIM_MAX + 4 };

struct rows_columns {
    int rank;                           /* at least 2; the last loop is the columns, the one before the inner rows */
    int64_t rows;                       /* product of all extents but the last */
    int64_t extents[ROWS_COLUMNS_AXES]; /* the last: how many columns */
    int64_t bases[PROGRAM_ACCESSES];
    int64_t strides[PROGRAM_ACCESSES][ROWS_COLUMNS_AXES]; /* elements */
    int block_columns;                                    /* columns of a block at most */
};

/* Prepares the walk of a program over loops, outermost first, at most ROWS_COLUMNS_AXES - 2 of them. Loops that all
   tensors step through as through one are merged; columns are merged with rows only where may_merge_columns. */
void rows_columns_plan(struct rows_columns *walk, const struct program *program, const struct axis *axes, int count,
                       bool may_merge_columns);

/* Whether all tensors step through these loops as through the last of them, with the product of their extents. */
bool axes_merge(const struct program *program, const struct axis *axes, int count);

/* The caller's block: its corner is (row, column). */
struct block {
    void *data;
    int64_t ld; /* elements from row to row */
};

/* Runs the program on [row, row + rows) x [column, column + columns); values are pointers by the graph's value
   index. */
void program_run(const struct program *program, const struct rows_columns *walk, void *const *values,
                 struct block block, int64_t row, int64_t rows, int64_t column, int64_t columns);

/* Where the rows of a block are stored, of the first tensor that the program stores. at: NULL where they are not evenly
   apart, or their elements no neighbours. */
struct stored {
    char *at;
    int64_t row_bytes, column_bytes;
    bool is_given; /* what is stored is the caller's block, as it is */
};
struct stored rows_columns_stored(const struct program *program, const struct rows_columns *walk, void *const *values,
                                  int64_t row, int64_t rows, int64_t column);

#endif
