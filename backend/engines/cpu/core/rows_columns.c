/* SPDX-License-Identifier: Apache-2.0 */
/* Making a walk: offsets of every tensor along the loops, merged where they can be. Fewer loops mean longer runs, and
   longer runs larger blocks. It must not know what the program computes; running the walk is program_run.c. */
#include "engines/cpu/core/rows_columns.h"

/* Whether every tensor steps from the end of loop `inner` to its next row as one step of loop `outer`. */
static bool steps_as_one(const struct rows_columns *walk, int accesses, int outer, int inner) {
    for (int a = 0; a < accesses; a++)
        if (walk->strides[a][outer] != walk->strides[a][inner] * walk->extents[inner])
            return false;
    return true;
}

/* A part of a dimension (first != 0) is never merged. reach: how far apart the merged loop's steps would be at this
   axis, from the innermost one outwards. */
bool axes_merge(const struct program *program, const struct axis *axes, int count) {
    for (int a = 0; a < program->access_count; a++) {
        int64_t reach = program->accesses[a].strides[axes[count - 1].dim] * axes[count - 1].step;
        for (int i = count - 1; i >= 0; i--) {
            int64_t stride = program->accesses[a].strides[axes[i].dim] * axes[i].step;
            /* A loop of one step merges with anything. */
            if (axes[i].first != 0 || (axes[i].extent != 1 && stride != reach))
                return false;
            reach *= axes[i].extent;
        }
    }
    return true;
}

/* All that a walk has for each loop moves together. */
static void copy_loop(struct rows_columns *walk, int accesses, int to, int from) {
    walk->extents[to] = walk->extents[from];
    for (int a = 0; a < accesses; a++)
        walk->strides[a][to] = walk->strides[a][from];
}

/* Drops loops of one step and merges neighbours; loop `fixed`, the last if any, is left as it is. In place: loop i is
   read before one at or before it is written. */
static void merge_loops(struct rows_columns *walk, int accesses, int fixed) {
    int kept = 0;
    for (int i = 0; i < walk->rank; i++) {
        /* Offsets of loops of one step are in `bases` already. */
        if (walk->extents[i] == 1 && i != fixed)
            continue;
        /* The merged loop steps as the inner one, through the extents of both. */
        if (kept > 0 && i != fixed && steps_as_one(walk, accesses, kept - 1, i)) {
            int64_t outer = walk->extents[kept - 1];
            copy_loop(walk, accesses, kept - 1, i);
            walk->extents[kept - 1] *= outer;
            continue;
        }
        copy_loop(walk, accesses, kept++, i);
    }
    walk->rank = kept;
}

/* Puts loops of one step in front until there are rows and columns. */
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

/* Wide blocks suit rows that lie in memory as they are; a tensor that lies column by column wants a square one, which
   uses whole cache lines of it. Strides in elements; INDEX accesses read no memory and want nothing. */
static int block_columns_of(const struct rows_columns *walk, const struct program *program) {
    int column = walk->rank - 1;
    /* 32 columns: of such a block 32 rows, in floats two cache lines of each column. */
    for (int a = 0; a < program->access_count; a++)
        if (program->accesses[a].value >= 0 && walk->strides[a][column] > 1 && walk->strides[a][column - 1] > 0 &&
            walk->strides[a][column - 1] < walk->strides[a][column])
            return 32;
    return program->block;
}

void rows_columns_plan(struct rows_columns *walk, const struct program *program, const struct axis *axes, int count,
                       bool may_merge_columns) {
    int accesses = program->access_count;
    walk->rank = count;
    for (int i = 0; i < count; i++)
        walk->extents[i] = axes[i].extent;
    for (int a = 0; a < accesses; a++) {
        /* Where the first element of the space lies in each tensor: a part of a dimension begins at `first`. */
        walk->bases[a] = 0;
        for (int i = 0; i < count; i++) {
            int64_t stride = program->accesses[a].strides[axes[i].dim];
            walk->bases[a] += stride * axes[i].first;
            walk->strides[a][i] = stride * axes[i].step;
        }
    }
    /* With a caller's block the columns are its columns, and stay a loop of their own. */
    merge_loops(walk, accesses, may_merge_columns ? -1 : count - 1);
    pad_loops(walk, accesses);
    walk->rows = 1;
    for (int i = 0; i < walk->rank - 1; i++)
        walk->rows *= walk->extents[i];
    walk->block_columns = block_columns_of(walk, program);
}
