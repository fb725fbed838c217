/* SPDX-License-Identifier: Apache-2.0 */
/* The causal convolution of sequences and its gradients: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_CAUSAL_CONV_H
#define WEFT_GRAPH_OPS_CAUSAL_CONV_H

#include "graph/op.h"

/* Shared by both directions: y is the result of forward, dy to dbias belong to backward. Absent tensors are NULL. */
struct causal_conv_op {
    struct descriptor base;
    int32_t activation, math;
    struct tensor *x, *weight, *bias, *y;
    struct tensor *dy, *dx, *dweight, *dbias;
};

extern const struct op causal_conv_op;
extern const struct op causal_conv_bwd_op;

/* Dimensions of x and dy, and of the filters. */
enum { CAUSAL_BATCH, CAUSAL_CHANNEL, CAUSAL_TIME };

static inline int64_t causal_conv_taps(const struct causal_conv_op *op) { return op->weight->dims.at[1]; }
static inline bool causal_conv_is_silu(const struct causal_conv_op *op) {
    return op->activation == WEFT_POINTWISE_SWISH_FWD;
}

#endif
