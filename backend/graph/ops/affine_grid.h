/* SPDX-License-Identifier: Apache-2.0 */
/* Grids of positions under affine transformations, and their gradients: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_AFFINE_GRID_H
#define WEFT_GRAPH_OPS_AFFINE_GRID_H

#include "graph/op.h"

/* Shared by both directions: theta and grid belong to forward, dgrid and dtheta to backward. */
struct affine_grid_op {
    struct descriptor base;
    int32_t math;
    bool align_corners;
    struct dims size;
    struct tensor *theta, *grid;
    struct tensor *dgrid, *dtheta;
};

extern const struct op affine_grid_op;
extern const struct op affine_grid_bwd_op;

#endif
