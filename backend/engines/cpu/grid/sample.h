/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of images at the positions of a grid: the geometry, and the loops over blocks of positions, in float and in
   double. grid.c chooses the geometry and the type, and splits the work into tasks. */
#ifndef WEFT_ENGINES_CPU_GRID_SAMPLE_H
#define WEFT_ENGINES_CPU_GRID_SAMPLE_H

#include "graph/ops/grid_sample.h"

enum {
    BLOCK = 64,            /* positions that a loop processes at a time */
    SAMPLE_TAPS_MAX = 16,  /* elements that a position reads */
    SAMPLE_CHANNELS = 256, /* adjacent channels that a loop processes at a time */
};

/* An operand, or a packed copy of it in the compute type in the workspace. Strides are in elements. */
struct image {
    int value; /* of the graph; -1 for a copy */
    weftDataType_t type;
    int64_t offset; /* of a copy: bytes from the start of the workspace */
    int64_t n, c, spatial[GRID_SPATIAL_MAX];
};

/* A grid or its gradient: strides of n, of the positions and of the coordinates. */
struct grid {
    int value;
    weftDataType_t type;
    int64_t n, spatial[GRID_SPATIAL_MAX], coordinate;
};

struct sampling {
    const struct grid_sample_op *op;
    bool is_backward, is_double;
    bool is_last;      /* channels are adjacent in all images */
    int spatial, taps; /* taps: of all dimensions together */
    int64_t batch, channels, extents[GRID_SPATIAL_MAX], out[GRID_SPATIAL_MAX];
    int64_t line, lines, blocks; /* positions with one stride in y; lines per image; blocks per line */
    int64_t chunk, chunks;       /* channels of a task that computes dx, and number of these tasks per image */
    struct grid grid, dgrid;
    struct image x, y, dx;      /* operands; y is dy in backward */
    struct image read, written; /* what loops read and add to: x and dx, or their copies */
};

struct sample_job {
    const struct sampling *s;
    void *const *values;
    char *workspace;
};

/* Tasks. load and dx: chunks of channels of an image; forward and dgrid: blocks of positions, all channels. */
struct sample_loops {
    void (*load)(void *job, int64_t task); /* copies x */
    void (*forward)(void *job, int64_t task);
    void (*dgrid)(void *job, int64_t task);
    void (*dx)(void *job, int64_t task);
};

extern const struct sample_loops sample_loops_f32, sample_loops_f64;

#endif
