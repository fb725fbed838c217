/* SPDX-License-Identifier: Apache-2.0 */
/* The normalisations as engines read them: operands, and the shape of a norm, which says which elements of x share
   their statistics. */
#ifndef WEFT_GRAPH_OPS_NORM_H
#define WEFT_GRAPH_OPS_NORM_H

#include "graph/op.h"

struct norm_forward {
    struct descriptor base;
    int32_t mode, phase, math;
    int64_t groups; /* GROUP_NORM */
    struct tensor *x, *scale, *bias, *epsilon, *y;
    struct tensor *mean, *inv_variance; /* outputs; inputs of batch norm's inference */
    struct tensor *momentum, *in_running_mean, *in_running_var, *out_mean, *out_var;
    struct list peer_stats;
};

struct norm_backward {
    struct descriptor base;
    int32_t mode, math;
    int64_t groups;
    struct tensor *dy, *x, *scale, *epsilon, *dx, *dscale, *dbias;
    struct tensor *mean, *inv_variance; /* absent: calculated anew from x */
    struct list peer_stats;
};

extern const struct op norm_forward_op;
extern const struct op norm_backward_op;

struct norm_shape {
    bool over[WEFT_DIM_MAX]; /* dimensions of x that statistics are taken over as a whole */
    int64_t group_channels;  /* neighbours along dimension 1 that share their statistics; 1 but for GROUP_NORM */
    int64_t row;             /* elements that share their statistics */
    struct dims statistics;  /* of mean and inv_variance */
    struct dims affine;      /* of scale and bias */
};

/* Of finalized operations. */
struct norm_shape norm_forward_shape(const struct norm_forward *op);
struct norm_shape norm_backward_shape(const struct norm_backward *op);

/* norm_expansion.c: the formulas as instructions over rows. */
weftStatus_t norm_forward_expand(const struct descriptor *op, struct expansion *e);
weftStatus_t norm_backward_expand(const struct descriptor *op, struct expansion *e);
/* The sums alone, over rows of another space. mean and inv: given by these numbers, -1: what the op has for each
   element, if anything. dscale, dbias NULL: not wanted. */
void norm_expand_sums(struct expansion *e, const struct norm_backward *op, const struct tensor *dscale,
                      const struct tensor *dbias, int mean, int inv);

static inline bool norm_has_mean(int32_t mode) { return mode != WEFT_RMS_NORM; }

/* Batch norm with statistics that are given instead of taken from x. */
static inline bool norm_is_inference_of_batch(const struct norm_forward *op) {
    return op->mode == WEFT_BATCH_NORM && op->phase == WEFT_NORM_FWD_INFERENCE;
}

#endif
