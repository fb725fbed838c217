/* SPDX-License-Identifier: Apache-2.0 */
/* The slice operation: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_SLICE_H
#define WEFT_GRAPH_OPS_SLICE_H

#include "graph/op.h"

struct slice_op {
    struct descriptor base;
    struct tensor *x, *y;
    struct dims start, limit, steps; /* steps may have count 0: then all are 1 */
};

extern const struct op slice_op;

static inline int64_t slice_step(const struct slice_op *op, int64_t dim) {
    return op->steps.count ? op->steps.at[dim] : 1;
}

#endif
