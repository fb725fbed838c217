/* SPDX-License-Identifier: Apache-2.0 */
/* Cumulative sums, products and extremes: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_SCAN_H
#define WEFT_GRAPH_OPS_SCAN_H

#include "graph/op.h"

struct scan_op {
    struct descriptor base;
    int32_t mode; /* weftReduceTensorOp_t: ADD, MUL, MIN or MAX */
    int32_t math;
    int64_t axis; /* as set by the user: negative values count from the last dimension */
    bool is_exclusive, is_reversed;
    struct tensor *x, *y, *index; /* y or index may be NULL */
};

extern const struct op scan_op;

/* The type in which elements are combined: as set by the user; otherwise INT64 for integers and booleans. */
weftDataType_t scan_math(const struct scan_op *op);

#endif
