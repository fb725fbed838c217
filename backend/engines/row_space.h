/* SPDX-License-Identifier: Apache-2.0 */
/* The row space of a region: the elements of its operations, and which of them form a row that shares statistics.
   Shared by the row families of all engines: axes, layouts of tensors along them, and sums across rows. This file must
   not know terms, arithmetic types or threads. */
#ifndef WEFT_ENGINES_ROW_SPACE_H
#define WEFT_ENGINES_ROW_SPACE_H

#include "engines/engine.h"
#include "graph/expansion.h"

/* row_axis.dim of the axis over the first program's partial sums, which is not a tensor dimension. */
enum { DIM_OF_PARTIAL_SUMS = -1 };

/* One dimension of the space, or part of a dimension if rows consist of groups along it. */
struct row_axis {
    int dim;
    int64_t extent, inner; /* inner: elements of the dimension per step of this axis */
    bool is_reduced;       /* the axis is within the row */
    bool counts_groups;    /* counts the groups of a dimension, not its elements */
};

struct row_space {
    struct dims dims;            /* dims of the elements */
    int64_t parts[WEFT_DIM_MAX]; /* number of parts along each dimension (see struct expansion) */
    int axis_count;
    struct row_axis axes[WEFT_DIM_MAX]; /* axes of one element are left out */
};

/* Finds the space that all operations of the region share, except column sums. The first operation that combines
   elements defines it. Fails with a message if there is no common space. */
weftStatus_t row_space_find(struct row_space *space, const struct region *region);
/* True if a node of the region sums over all rows for each position in the row: the gradient of a bias is an
   example. */
bool row_space_sums_columns(const struct row_space *space, const struct node *node);
/* Makes an expansion use the elements of the space. */
void row_space_expand_in(const struct row_space *space, struct expansion *e);

int64_t row_space_length(const struct row_space *space); /* elements of a row */
int64_t row_space_rows(const struct row_space *space);
/* Computes row-major strides over the axes of the row, or over those of the rows; 0 along the others. */
void row_space_pack(const struct row_space *space, int64_t *strides, bool is_reduced);

/* ---- Tensors in the space ---------------------------------------------------------------------------------------- */

/* Refuses a tensor of an operation that does not fit the space. */
weftStatus_t row_space_check(const struct row_space *space, const struct descriptor *op, const struct tensor *tensor,
                             bool is_output);
/* Refuses a result that does not have one element per row or, if it spans rows, one per element. */
weftStatus_t row_space_check_result(const struct row_space *space, const struct tensor *tensor, bool spans);
/* True if a tensor has more than one element along an axis; row_space_stride returns its stride there. */
bool row_space_has_axis(const struct row_space *space, const struct tensor *tensor, int axis);
int64_t row_space_stride(const struct row_space *space, const struct tensor *tensor, int axis);

/* ---- Sums that cross rows: gradients of a norm's scale and bias, and of other biases ----------------------------- */

/* How a sum over all elements that share one element of a tensor is completed by a second program after the rows. */
enum follow_kind {
    FOLLOW_NOTHING, /* the row computes the sum itself */
    FOLLOW_COLUMNS, /* add the partial sums of each element */
    FOLLOW_FOLD,    /* add the totals of rows that share a scale */
    FOLLOW_APART,   /* a separate pass over x and dy */
};

enum { COLUMN_SUMS_MAX = 4 }; /* one for the scale, one for the bias, and two more */

/* A sum over rows for each position, or for each group of positions: its result, the engine's index of the summed term,
   and where the partial sums are stored once the first program is scheduled. */
struct column_sum {
    const struct tensor *tensor;
    int term;
    int64_t at;
};

/* The at_* fields locate what the first program stores and the second one reads, in the engine's unit; -1: not
   stored. */
struct follow {
    enum follow_kind kind;
    weftDataType_t math; /* arithmetic type of the sums */
    /* The norm's gradient, or NULL if only column sums exist. */
    const struct node *node;
    const struct tensor *scale, *bias; /* gradients, NULL if not needed */
    int64_t at_scale, at_bias;         /* for FOLLOW_FOLD */
    int64_t at_mean, at_inv;           /* for FOLLOW_APART */
    /* For FOLLOW_COLUMNS; each position has the same number of partial sums. */
    int column_count;
    struct column_sum columns[COLUMN_SUMS_MAX];
    int64_t partial_sums;
};

/* True if a gradient that a node of the region sums has a reader inside or outside the region. */
bool row_space_wants_sum(const struct region *region, const struct tensor *tensor);
/* Chooses how to compute a tensor's sum. sums_apart: never by columns. */
enum follow_kind row_space_sum_kind(const struct row_space *space, const struct tensor *tensor, bool sums_apart);
/* Adds a gradient, of the node's scale or else of its bias, to the second program. *is_first: it is the first one.
   Fails with a message unless all gradients belong to one node, none is read within the region, and a separate pass
   finds x and dy in memory. */
weftStatus_t follow_add(struct follow *follow, const struct region *region, const struct node *node,
                        const struct tensor *gradient, enum follow_kind kind, bool *is_first);
/* Adds a column sum of the given arithmetic type, either of a gradient that follow_add accepted or any other. */
weftStatus_t follow_add_column(struct follow *follow, const struct tensor *tensor, int term, weftDataType_t math);
/* Derives the second program's space from the first one's, with the strides of what the first one stored. */
weftStatus_t follow_space(const struct follow *follow, const struct row_space *first, struct row_space *space,
                          int64_t *strides);

#endif
