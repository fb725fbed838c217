/* SPDX-License-Identifier: Apache-2.0 */
/* Gathering by indices, and its gradient, adding at indices: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_GATHER_H
#define WEFT_GRAPH_OPS_GATHER_H

#include "graph/op.h"

/* Shared by both directions. gather: y from x; scatter_add: y from src and, unless NULL, x. */
struct gather_op {
    struct descriptor base;
    int32_t math;
    int64_t axis; /* as set by the user: negative values count from the last dimension */
    bool is_sorted;
    struct tensor *x, *index, *src, *y;
};

extern const struct op gather_op;
extern const struct op scatter_add_op;

/* The tensor with an element or slice for each index: the result of gather, the summands of scatter_add. */
static inline const struct tensor *gather_selected(const struct gather_op *op) { return op->src ? op->src : op->y; }
/* The tensor in which indices are positions. */
static inline const struct tensor *gather_whole(const struct gather_op *op) { return op->src ? op->y : op->x; }

/* True if the index has one number per slice, false if it has one per element. For rank 1, both are the same. */
static inline bool gather_has_slices(const struct gather_op *op) { return op->index->dims.count == 1; }

/* The type in which scatter_add sums: as set by the user; otherwise INT64 for integers and booleans. */
weftDataType_t scatter_math(const struct gather_op *op);

#endif
