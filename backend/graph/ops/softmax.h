/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax operation as engines read it. */
#ifndef WEFT_GRAPH_OPS_SOFTMAX_H
#define WEFT_GRAPH_OPS_SOFTMAX_H

#include "graph/op.h"

struct softmax_op {
    struct descriptor base;
    int32_t math;
    int64_t axis; /* as set: negative counts from the last dimension */
    bool is_stats_log2, is_infinite_nan;
    struct tensor *x, *sink, *y, *stats, *max, *sum_exp;
};

extern const struct op softmax_op;

/* Parts of its expansion, for softmax that is spelt out: the largest score, with the sum of weights where one pass
   takes both; a score's weight, and their sum. */
int softmax_expand_peak(struct expansion *e, int x);
int softmax_expand_weight(struct expansion *e, int x, int peak);
int softmax_expand_sum(struct expansion *e, int weight, int peak);

/* The dimension that rows lie along. */
static inline int softmax_axis(const struct softmax_op *op) {
    return (int)(op->axis < 0 ? op->axis + op->x->dims.count : op->axis);
}

#endif
