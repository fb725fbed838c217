/* SPDX-License-Identifier: Apache-2.0 */
/* The concat operation as engines read it. */
#ifndef WEFT_GRAPH_OPS_CONCAT_H
#define WEFT_GRAPH_OPS_CONCAT_H

#include "graph/op.h"

struct concat_op {
    struct descriptor base;
    struct list inputs; /* of tensors */
    struct tensor *y;
    int64_t axis;          /* negative: counted from the last */
    int64_t inplace_index; /* input whose memory may be its place in y already; -1: none */
    uint64_t placed;       /* bits of inputs that are made in their places, so that nothing copies them: as planned */
};

extern const struct op concat_op;

static inline int concat_axis(const struct concat_op *op) {
    return (int)(op->axis < 0 ? op->axis + op->inputs.tensors[0]->dims.count : op->axis);
}

static inline bool concat_is_placed(const struct concat_op *op, int64_t k) { return k < 64 && op->placed >> k & 1; }

#endif
