/* SPDX-License-Identifier: Apache-2.0 */
/* The normalisations: operands, and the shape of a norm, which determines the elements of x that share statistics. */
#ifndef WEFT_GRAPH_OPS_NORM_H
#define WEFT_GRAPH_OPS_NORM_H

#include "graph/op.h"

struct norm_forward {
    struct descriptor base;
    int32_t mode, phase, math;
    int64_t groups; /* GROUP_NORM */
    struct tensor *x, *scale, *bias, *epsilon, *y;
    struct tensor *mean, *inv_variance; /* outputs, but inputs in batch norm's inference */
    struct tensor *momentum, *in_running_mean, *in_running_var, *out_mean, *out_var;
    struct list peer_stats;
};

struct norm_backward {
    struct descriptor base;
    int32_t mode, math;
    int64_t groups;
    struct tensor *dy, *x, *scale, *epsilon, *dx, *dscale, *dbias;
    struct tensor *mean, *inv_variance; /* recomputed from x if absent */
    struct list peer_stats;
};

extern const struct op norm_forward_op;
extern const struct op norm_backward_op;

struct norm_shape {
    bool over[WEFT_DIM_MAX]; /* dimensions of x that are normalised completely */
    int64_t group_channels;  /* adjacent channels (dimension 1) that share statistics; 1 except for GROUP_NORM */
    int64_t row;             /* number of elements that share statistics */
    struct dims statistics;  /* dims of mean and inv_variance */
    struct dims affine;      /* dims of scale and bias */
};

/* norm_expansion.c: the formulas as instructions over rows. */
weftStatus_t norm_forward_expand(const struct norm_forward *op, const struct norm_shape *shape, struct expansion *e);
weftStatus_t norm_backward_expand(const struct norm_backward *op, const struct norm_shape *shape, struct expansion *e);
/* Expands only the sums, over rows of another iteration space. mean and inv: values of the expansion, or -1 to read the
   operation's own inputs, if it has any. dscale and dbias are NULL if not wanted. */
void norm_expand_sums(struct expansion *e, const struct norm_backward *op, const struct tensor *dscale,
                      const struct tensor *dbias, int mean, int inv);

static inline bool norm_has_mean(int32_t mode) { return mode != WEFT_RMS_NORM; }

/* True for batch norm with given statistics, as opposed to those of x. */
static inline bool norm_is_inference_of_batch(const struct norm_forward *op) {
    return op->mode == WEFT_BATCH_NORM && op->phase == WEFT_NORM_FWD_INFERENCE;
}

#endif
