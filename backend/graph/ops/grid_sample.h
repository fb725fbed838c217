/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling of images at the positions of a grid, and its gradients: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_GRID_SAMPLE_H
#define WEFT_GRAPH_OPS_GRID_SAMPLE_H

#include "graph/op.h"

/* Shared by both directions: y is the result of forward, dy to dgrid belong to backward. Absent tensors are NULL. */
struct grid_sample_op {
    struct descriptor base;
    int32_t mode, padding_mode, math;
    bool align_corners;
    struct tensor *x, *grid, *y;
    struct tensor *dy, *dx, *dgrid;
};

extern const struct op grid_sample_op;
extern const struct op grid_sample_bwd_op;

enum { GRID_SPATIAL_MAX = 3 };

static inline int grid_sample_spatial(const struct grid_sample_op *op) { return (int)op->x->dims.count - 2; }
/* Elements that a position reads along each dimension. */
static inline int grid_sample_taps(const struct grid_sample_op *op) {
    return op->mode == WEFT_RESAMPLE_NEAREST ? 1 : op->mode == WEFT_RESAMPLE_BILINEAR ? 2 : 4;
}

#endif
