/* SPDX-License-Identifier: Apache-2.0 */
/* Sums per channel: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_GENSTATS_H
#define WEFT_GRAPH_OPS_GENSTATS_H

#include "graph/op.h"

struct genstats_op {
    struct descriptor base;
    int32_t mode, math;
    struct tensor *x, *sum, *sq_sum;
};

extern const struct op genstats_op;

/* [1, C, 1..] for x with dims [N, C, spatial..]: the dims of batch norm's operands per channel. */
static inline struct dims channel_dims(const struct tensor *x) {
    struct dims dims = x->dims;
    for (int64_t i = 0; i < dims.count; i++)
        if (i != 1)
            dims.at[i] = 1;
    return dims;
}

#endif
