/* SPDX-License-Identifier: Apache-2.0 */
/* The three convolution operations: one struct and one geometry for all of them, with explicit groups and always three
   spatial dimensions. */
#ifndef WEFT_GRAPH_OPS_CONVOLUTION_H
#define WEFT_GRAPH_OPS_CONVOLUTION_H

#include "graph/op.h"

/* The parameter descriptor. Lists with count 0 have the default 1; post_padding defaults to pre_padding. */
struct convolution {
    struct descriptor base;
    int32_t math, mode;
    int64_t spatial; /* 0: as many as the tensors have */
    struct dims stride, dilation, pre_padding, post_padding;
};

/* x, w, y of the forward operation, and the tensors that replace them: the data gradient writes dx at x and reads dy at
   y, the filter gradient writes dw at w and reads dy at y. */
struct conv_op {
    struct descriptor base;
    struct convolution *parameters;
    struct tensor *x, *w, *y;
    double alpha, beta;
};

/* The type in which products are accumulated. */
weftDataType_t conv_math(const struct conv_op *op);

extern const struct op conv_fprop_op, conv_dgrad_op, conv_wgrad_op;
extern const struct schema convolution_schema;

enum conv_direction { CONV_FORWARD, CONV_DATA, CONV_FILTER };

/* An operand viewed as [outer, group, channel, size..]: x is [n, groups, c, x..], w is [k, groups, c, w..], y is [n,
   groups, k, y..]. Strides are in elements and are valid only if vector_count is 1. */
struct conv_operand {
    const struct tensor *tensor;
    int64_t size[3]; /* spatial extents, preceded by 1s if there are fewer than three */
    int64_t outer_stride, group_stride, channel_stride, size_stride[3];
};

/* y[n,g,k,o] = alpha * sum over c, r of x[n, g, c, o * stride + r * dilation - pre] * w[k,g,c,r] + beta * y[n,g,k,o]
   where x is 0 outside, and r counts backwards in w when flip is set. The two gradients are the adjoints of the sum. */
struct conv_geometry {
    enum conv_direction direction;
    int spatial;       /* 1..3 */
    int64_t n, groups; /* images, groups */
    int64_t c, k;      /* channels of x and of y in one group */
    struct conv_operand x, w, y;
    int64_t stride[3], dilation[3], pre[3], post[3]; /* preceded by 1, 1, 0, 0 */
    bool flip;
    weftDataType_t math;
    double alpha, beta; /* if beta != 0 the output is also read */
};

/* The geometry of a finalized operation of any of the three kinds. */
struct conv_geometry conv_geometry(const struct descriptor *op);

/* True if `descriptor` is one of the three. */
bool conv_is(const struct descriptor *descriptor);

#endif
