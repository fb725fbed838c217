/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling and interpolation: fields that engines read, and an integer geometry that both directions share.

   Each output position o reads, along each of one to three spatial dimensions, `taps` elements of x, `dilation` apart,
   starting at floor(c(o)), where
     c(o) = o * stride - pre_padding
   is exact: stride and paddings may be fractions, and with their common denominator
     c(o) = (o * step - offset) / denominator       floor(c(o)) and the remainder in integers
   pools      taps is the window; denominator is 1
   NEAREST    taps is 1: the element at floor(c(o)); dilation is 1 here and below
   BILINEAR   taps is 2: the weights are 1 - f and f, where f = c(o) - floor(c(o)); linear along each dimension
   Interpolation from x to y elements with half-pixel centres (align_corners=False) has the stride x/y and the
   pre_padding (1 - x/y) / 2; with aligned corners it has the stride (x-1)/(y-1) and the pre_padding 0. */
#ifndef WEFT_GRAPH_OPS_RESAMPLE_H
#define WEFT_GRAPH_OPS_RESAMPLE_H

#include "graph/op.h"

/* The parameter descriptor. Lists with count 0 are unset. */
struct resample {
    struct descriptor base;
    int32_t mode, math, nan_propagation, padding_mode;
    int64_t spatial;                                       /* 0: as many as the tensors have */
    struct list window, stride, pre_padding, post_padding; /* fractions */
    struct dims dilation;
};

/* Either operation. Forward has x, y and optionally index; backward has dy, dx, and optionally index, x and y. */
struct resample_op {
    struct descriptor base;
    struct resample *parameters;
    struct tensor *x, *y, *index, *dx, *dy;
    double alpha, beta;
};

extern const struct op resample_op, resample_backward_op;
extern const struct schema resample_schema;

/* A tensor viewed as [n, c, size..]. Strides are in elements and are valid only if vector_count is 1. */
struct resample_operand {
    const struct tensor *tensor; /* NULL: absent */
    int64_t size[3];             /* spatial extents, preceded by 1s if there are fewer than three */
    int64_t batch_stride, channel_stride, size_stride[3];
};

struct resample_geometry {
    bool backward;
    weftResampleMode_t mode;
    weftPaddingMode_t padding; /* the value of taps outside of x; AVGPOOL_EXCLUDE_PADDING ignores them */
    bool propagates_nan;       /* the maximum of a window with a NaN is NaN; if false, only if all its elements are
                                  NaN */
    int spatial;               /* 1..3 */
    int64_t n, c;
    struct resample_operand x, y;  /* for backward: dx and dy */
    struct resample_operand index; /* position of the maximum among the taps, row-major */
    struct resample_operand saved; /* backward: the forward x, in which maxima are searched again if there is no
                                      index */
    int64_t taps[3], dilation[3];  /* dilation is 1 if there is only one tap */
    int64_t step[3], offset[3], denominator[3]; /* preceded by 1, 0, 1 */
    double alpha, beta;                         /* if beta != 0 the output is also read */
};

/* The geometry of a finalized operation, forward or backward. */
struct resample_geometry resample_geometry(const struct descriptor *op);

/* floor(c(o)) along dimension i (0..2): the position of the first tap in x, which may be negative. */
static inline int64_t resample_first_tap(const struct resample_geometry *g, int i, int64_t o) {
    int64_t scaled = o * g->step[i] - g->offset[i];
    return scaled / g->denominator[i] - (scaled < 0 && scaled % g->denominator[i] != 0);
}

/* Distance in x from the first to the last tap along dimension i, both included. */
static inline int64_t resample_span(const struct resample_geometry *g, int i) {
    return (g->taps[i] - 1) * g->dilation[i] + 1;
}

#endif
