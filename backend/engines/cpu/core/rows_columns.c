/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the traversal: strides of every tensor along the loops, with loops merged where possible. Fewer loops mean
   longer runs and larger blocks. This file must not know what the program computes; program_run.c runs it. */
#include "engines/cpu/core/rows_columns.h"

/* True if every tensor steps from the end of loop `inner` to its next row by exactly one step of loop `outer`. */
static bool steps_as_one(const struct rows_columns *walk, int accesses, int outer, int inner) {
    for (int a = 0; a < accesses; a++)
        if (walk->strides[a][outer] != walk->strides[a][inner] * walk->extents[inner])
            return false;
    return true;
}

/* A part of a dimension (first != 0) is never merged. reach: the step that the merged loop would have at this axis,
   from the innermost axis outwards. */
bool axes_merge(const struct program *program, const struct axis *axes, int count) {
    for (int a = 0; a < program->access_count; a++) {
        int64_t reach = program->accesses[a].strides[axes[count - 1].dim] * axes[count - 1].step;
        for (int i = count - 1; i >= 0; i--) {
            int64_t stride = program->accesses[a].strides[axes[i].dim] * axes[i].step;
            /* A loop of one iteration merges with any other. */
            if (axes[i].first != 0 || (axes[i].extent != 1 && stride != reach))
                return false;
            reach *= axes[i].extent;
        }
    }
    return true;
}

/* Moves all fields of a loop together. */
static void copy_loop(struct rows_columns *walk, int accesses, int to, int from) {
    walk->extents[to] = walk->extents[from];
    for (int a = 0; a < accesses; a++)
        walk->strides[a][to] = walk->strides[a][from];
}

/* Drops loops of one iteration and merges adjacent loops, except loop `fixed` (-1: none). Works in place: loop i is
   read before a loop at or before it is written. */
static void merge_loops(struct rows_columns *walk, int accesses, int fixed) {
    int count = 0;
    for (int i = 0; i < walk->rank; i++) {
        /* `bases` already contains the offsets of loops of one iteration. */
        if (walk->extents[i] == 1 && i != fixed)
            continue;
        /* The merged loop has the step of the inner one and the extents of both. */
        if (count > 0 && i != fixed && steps_as_one(walk, accesses, count - 1, i)) {
            int64_t outer = walk->extents[count - 1];
            copy_loop(walk, accesses, count - 1, i);
            walk->extents[count - 1] *= outer;
            continue;
        }
        copy_loop(walk, accesses, count++, i);
    }
    walk->rank = count;
}

/* Prepends loops of one iteration until rows and columns exist. */
static void pad_loops(struct rows_columns *walk, int accesses) {
    while (walk->rank < 2) {
        if (walk->rank == 1)
            copy_loop(walk, accesses, 1, 0);
        walk->extents[0] = 1;
        for (int a = 0; a < accesses; a++)
            walk->strides[a][0] = 0;
        walk->rank++;
    }
}

/* Wide blocks suit row-major tensors. A column-major tensor needs a square block, which uses whole cache lines of its
   columns. Strides are in elements; INDEX accesses read no memory, so they do not matter. */
static int block_columns_of(const struct rows_columns *walk, const struct program *program) {
    int column = walk->rank - 1;
    /* 32 columns give a block of 32 rows: in float, two cache lines of each column. */
    for (int a = 0; a < program->access_count; a++)
        if (program->accesses[a].value >= 0 && walk->strides[a][column] > 1 && walk->strides[a][column - 1] > 0 &&
            walk->strides[a][column - 1] < walk->strides[a][column])
            return 32;
    return program->block;
}

void rows_columns_plan(struct rows_columns *walk, const struct program *program, const struct axis *axes, int count,
                       bool may_merge_columns) {
    int accesses = program->access_count;
    walk->outer_count = 0;
    walk->rank = count;
    for (int i = 0; i < count; i++)
        walk->extents[i] = axes[i].extent;
    for (int a = 0; a < accesses; a++) {
        /* Offset of the first element of the space in each tensor; a part of a dimension starts at its `first`. */
        walk->bases[a] = 0;
        for (int i = 0; i < count; i++) {
            int64_t stride = program->accesses[a].strides[axes[i].dim];
            walk->bases[a] += stride * axes[i].first;
            walk->strides[a][i] = stride * axes[i].step;
        }
    }
    /* With a caller's block, the columns correspond to its columns and remain a loop of their own. */
    merge_loops(walk, accesses, may_merge_columns ? -1 : count - 1);
    pad_loops(walk, accesses);
    walk->rows = 1;
    for (int i = 0; i < walk->rank - 1; i++)
        walk->rows *= walk->extents[i];
    walk->block_columns = block_columns_of(walk, program);
}

/* True if every tensor continues from the end of the innermost loop of columns to the next iteration of the one outside
   of it. */
static bool joins_columns(const struct rows_columns *walk, const struct program *program, const struct axis *outer) {
    int last = walk->rank - 1;
    for (int a = 0; a < program->access_count; a++)
        if (program->accesses[a].strides[outer->dim] != walk->strides[a][last] * walk->extents[last])
            return false;
    return true;
}

void rows_columns_plan_split(struct rows_columns *walk, const struct program *program, const struct axis *axes,
                             int count, int columns) {
    struct axis joined[ROWS_COLUMNS_AXES];
    int rows = count - columns, outer = columns - 1;
    for (int i = 0; i < rows; i++)
        joined[i] = axes[i];
    joined[rows] = axes[count - 1];
    rows_columns_plan(walk, program, joined, rows + 1, false);
    for (; outer > 0 && joins_columns(walk, program, &axes[rows + outer - 1]); outer--)
        walk->extents[walk->rank - 1] *= axes[rows + outer - 1].extent;
    walk->outer_count = outer;
    for (int i = 0; i < outer; i++) {
        walk->outer_extents[i] = axes[rows + i].extent;
        for (int a = 0; a < program->access_count; a++)
            walk->outer_strides[a][i] = program->accesses[a].strides[axes[rows + i].dim];
    }
}
