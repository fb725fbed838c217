/* SPDX-License-Identifier: Apache-2.0 */
/* The row space of a region: the elements of its operations, and which of them share their statistics as a row. It is
   what the row families of all engines agree on: axes, how tensors lie along them, and sums that cross rows. It knows
   no terms, no types of arithmetic and no threads. */
#ifndef WEFT_ENGINES_ROW_SPACE_H
#define WEFT_ENGINES_ROW_SPACE_H

#include "engines/engine.h"
#include "graph/expansion.h"

/* row_axis.dim of an axis over the partial sums that the first program left, which is no dimension of a tensor. */
enum { DIM_OF_PARTIAL_SUMS = -1 };

/* One dimension of the space; part of a dimension where rows take groups of neighbours along it. */
struct row_axis {
    int dim;
    int64_t extent, inner; /* inner: elements of the dimension that one step passes over */
    bool is_reduced;       /* lies within the row */
    bool counts_groups;    /* the groups of a dimension, not its elements */
};

struct row_space {
    struct dims dims;            /* of the elements */
    int64_t parts[WEFT_DIM_MAX]; /* along each dimension, as in struct expansion */
    int axis_count;
    struct row_axis axes[WEFT_DIM_MAX]; /* none of one element */
};

/* The space that all operations of the region share, but for sums of columns beside others; the first that combines
   elements sets it. Or why there is none. */
weftStatus_t row_space_find(struct row_space *space, const struct region *region);
/* Whether a node of the region is a sum over all rows, for each position in the row, as the gradient of a bias is. */
bool row_space_sums_columns(const struct row_space *space, const struct node *node);
/* Has an expansion write for elements of the space. */
void row_space_expand_in(const struct row_space *space, struct expansion *e);

int64_t row_space_length(const struct row_space *space); /* elements of a row */
int64_t row_space_rows(const struct row_space *space);
/* Row-major strides over the axes of the row, or of the rows; 0 along the others. */
void row_space_pack(const struct row_space *space, int64_t *strides, bool is_reduced);

/* ---- Tensors in the space ---------------------------------------------------------------------------------------- */

/* Refuses an operation's tensor that does not lie in the space. */
weftStatus_t row_space_check(const struct row_space *space, const struct descriptor *op, const struct tensor *tensor,
                             bool is_output);
/* Refuses a result that is neither one number for each row nor, where it spans rows, one for each element. */
weftStatus_t row_space_check_result(const struct row_space *space, const struct tensor *tensor, bool spans);
/* Whether a tensor has more than one element along an axis, and how far these are apart. */
bool row_space_has_axis(const struct row_space *space, const struct tensor *tensor, int axis);
int64_t row_space_stride(const struct row_space *space, const struct tensor *tensor, int axis);

/* ---- Sums that cross rows: gradients of a norm's scale and bias, and of other biases ----------------------------- */

/* How a sum over all elements that share one of a tensor's is finished, by a second program behind the rows'. */
enum follow_kind {
    FOLLOW_NOTHING, /* it is the row's own */
    FOLLOW_COLUMNS, /* add the partial sums of each of its elements */
    FOLLOW_FOLD,    /* add the totals of rows that share a scale */
    FOLLOW_APART,   /* a sweep of its own over x and dy */
};

enum { COLUMN_SUMS_MAX = 4 }; /* scale's, bias', and two more */

/* A sum over rows for each position, or for each part of them: what it becomes, the engine's name of the term that is
   summed, and where partial sums lie once the first program is scheduled. */
struct column_sum {
    const struct tensor *tensor;
    int term;
    int64_t at;
};

/* Places are where the first program leaves what the second one reads, in the engine's unit; -1: nowhere. */
struct follow {
    enum follow_kind kind;
    weftDataType_t math; /* of the sums */
    /* The norm's gradient, NULL: there are only sums of columns. */
    const struct node *node;
    const struct tensor *scale, *bias; /* gradients; NULL: not wanted */
    int64_t at_scale, at_bias;         /* FOLLOW_FOLD */
    int64_t at_mean, at_inv;           /* FOLLOW_APART */
    /* FOLLOW_COLUMNS; of each position there are as many partial sums. */
    int column_count;
    struct column_sum columns[COLUMN_SUMS_MAX];
    int64_t partial_sums;
};

/* Whether a gradient that a node of the region sums is read, inside or outside of it. */
bool row_space_wants_sum(const struct region *region, const struct tensor *tensor);
/* How to take the sum that belongs to a tensor. sums_apart: never by columns. */
enum follow_kind row_space_sum_kind(const struct row_space *space, const struct tensor *tensor, bool sums_apart);
/* Adds a gradient, of the node's scale or else of its bias, to what is left to do; gives whether it is the first. Or
   says why the gradient cannot be taken so: all are of one node, none is read within the region, and a sweep of its
   own reads x and dy from memory. */
weftStatus_t follow_add(struct follow *follow, const struct region *region, const struct node *node,
                        const struct tensor *gradient, enum follow_kind kind, bool *is_first);
/* Adds a sum of columns, of the type of arithmetic: a gradient that follow_add took, or any other. */
weftStatus_t follow_add_column(struct follow *follow, const struct tensor *tensor, int term, weftDataType_t math);
/* The second program's space, from the first one's, and the strides over it of what the first one left. */
weftStatus_t follow_space(const struct follow *follow, const struct row_space *first, struct row_space *space,
                          int64_t *strides);

#endif
