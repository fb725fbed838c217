/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax operation: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_SOFTMAX_H
#define WEFT_GRAPH_OPS_SOFTMAX_H

#include "graph/op.h"

struct softmax_op {
    struct descriptor base;
    int32_t math;
    int64_t axis; /* as set by the user: negative values count from the last dimension */
    bool is_stats_log2, is_infinite_nan;
    struct tensor *x, *sink, *y, *stats, *max, *sum_exp;
};

extern const struct op softmax_op;

/* Parts of the expansion, for kernels that contain a softmax: the largest score (together with the sum of weights if
   one pass computes both), the weight of a score, and the sum of weights. */
int softmax_expand_peak(struct expansion *e, int x);
int softmax_expand_weight(struct expansion *e, int x, int peak);
int softmax_expand_sum(struct expansion *e, int weight, int peak);

/* The dimension along which rows run. */
static inline int softmax_axis(const struct softmax_op *op) { return axis_dimension(op->axis, op->x); }

#endif
