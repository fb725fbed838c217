/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of batch norm's parameters: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_BN_BWD_WEIGHTS_H
#define WEFT_GRAPH_OPS_BN_BWD_WEIGHTS_H

#include "graph/op.h"

struct bn_bwd_weights_op {
    struct descriptor base;
    int32_t math;
    struct tensor *dy, *x, *mean, *inv_variance, *scale;
    struct tensor *dscale, *dbias, *eq_scale_dy, *eq_scale_x, *eq_bias;
};

extern const struct op bn_bwd_weights_op;

#endif
