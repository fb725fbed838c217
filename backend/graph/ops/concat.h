/* SPDX-License-Identifier: Apache-2.0 */
/* The concat operation: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_CONCAT_H
#define WEFT_GRAPH_OPS_CONCAT_H

#include "graph/op.h"

struct concat_op {
    struct descriptor base;
    struct list inputs; /* list of tensors */
    struct tensor *y;
    int64_t axis;          /* negative values count from the last dimension */
    int64_t inplace_index; /* index of the input that may already be stored inside y, or -1 */
    uint64_t placed;       /* bit mask of inputs that the planner stores inside y, so that they are not copied */
};

extern const struct op concat_op;

static inline int concat_axis(const struct concat_op *op) {
    return (int)(op->axis < 0 ? op->axis + op->inputs.tensors[0]->dims.count : op->axis);
}

static inline bool concat_is_placed(const struct concat_op *op, int64_t k) { return k < 64 && op->placed >> k & 1; }

#endif
