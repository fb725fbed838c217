/* SPDX-License-Identifier: Apache-2.0 */
/* The reduction operation as engines read it. */
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
    struct dims dims; /* as set; y's extents say the same */
    /* Refused when set. */
    struct tensor *group_offset;
    struct list init_values, accumulator_uids, current_uids, output_uids, compute_types;
    struct descriptor *subgraph;
};

/* The type that elements are combined in: as it was set; else INT64 for integers and booleans, but FLOAT for the mean
   and the Euclidean norm, and for all others. */
weftDataType_t reduction_math(const struct reduction_op *op);

extern const struct op reduction_op;
extern const struct schema reduction_schema;

/* How many neighbours along dimension i reduce to one element of y. */
static inline int64_t reduction_group(const struct reduction_op *op, int64_t i) {
    return op->y->dims.at[i] ? op->x->dims.at[i] / op->y->dims.at[i] : 0;
}

#endif
