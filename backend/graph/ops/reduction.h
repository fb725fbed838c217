/* SPDX-License-Identifier: Apache-2.0 */
/* The reduction operation: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_REDUCTION_H
#define WEFT_GRAPH_OPS_REDUCTION_H

#include "graph/op.h"

struct reduction {
    struct descriptor base;
    int32_t mode; /* weftReduceTensorOp_t */
    int32_t math;
    bool is_deterministic;
};

struct reduction_op {
    struct descriptor base;
    struct reduction *parameters;
    struct tensor *x, *y;
    struct dims dims; /* as set by the user; the extents of y carry the same information */
    /* Not supported: setting it is an error. */
    struct tensor *group_offset;
    struct list init_values, accumulator_uids, current_uids, output_uids, compute_types;
    struct descriptor *subgraph;
};

/* The type in which elements are combined: as set by the user; otherwise INT64 for integers and booleans, except that
   the mean and the Euclidean norm use FLOAT; otherwise FLOAT. */
weftDataType_t reduction_math(const struct reduction_op *op);

/* Marks the dimensions that an attribute dims names; negative numbers count from the last one. */
weftStatus_t reduction_named_dims(const struct descriptor *op, const struct tensor *x, const struct dims *dims,
                                  bool named[WEFT_DIM_MAX]);

extern const struct op reduction_op;
extern const struct schema reduction_schema;

/* Number of adjacent elements along dimension i that are reduced to one element of y. */
static inline int64_t reduction_group(const struct reduction_op *op, int64_t i) {
    return op->y->dims.at[i] ? op->x->dims.at[i] / op->y->dims.at[i] : 0;
}

#endif
