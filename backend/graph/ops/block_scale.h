/* SPDX-License-Identifier: Apache-2.0 */
/* The block scale operations: fields that engines read, and the layout of scales. Elements of a narrow type share one
   scale per block. */
#ifndef WEFT_GRAPH_OPS_BLOCK_SCALE_H
#define WEFT_GRAPH_OPS_BLOCK_SCALE_H

#include "graph/op.h"

struct block_scale_quantize_op {
    struct descriptor base;
    struct tensor *x, *y, *scale;
    int64_t axis; /* as set by the user: negative values count from the last dimension */
    int32_t block_size, math;
    bool is_transposed;
};

struct block_scale_dequantize_op {
    struct descriptor base;
    struct tensor *x, *scale, *y;
    struct list block_size; /* extents along the last dimensions, INT32 */
    int32_t math;
    bool is_negative;
};

extern const struct op block_scale_quantize_op, block_scale_dequantize_op;

static inline int block_scale_axis(const struct block_scale_quantize_op *op) {
    return (int)(op->axis < 0 ? op->axis + op->x->dims.count : op->axis);
}

/* Extents of a block in all dimensions of x. */
struct dims block_scale_extents(const struct descriptor *op);

/* The scale that is stored for a block whose largest magnitude is `magnitude`. */
double block_scale_stored(const struct block_scale_quantize_op *op, double magnitude);

/* Scales are stored in tiles of 128 rows and 4 columns, 512 elements each, in row-major order of tiles. Within a tile,
   rows r, r + 32, r + 64 and r + 96 are adjacent. */
enum { SCALE_TILE_ROWS = 128, SCALE_TILE_COLUMNS = 4 };

static inline bool scale_is_tiled(const struct tensor *scale) {
    return scale->reordering == WEFT_TENSOR_REORDERING_F8_128x4;
}

/* The dimension of a tiled tensor that its columns run along: the last one, unless only the second-to-last has stride
   1. */
static inline int scale_column(const struct tensor *scale) {
    int last = (int)scale->dims.count - 1;
    return scale->strides.at[last] != 1 && scale->strides.at[last - 1] == 1 ? last - 1 : last;
}

/* Offset of a row and a column in a matrix with `tiles` tiles per row. */
static inline int64_t scale_tile_offset(int64_t row, int64_t column, int64_t tiles) {
    int64_t tile = row / SCALE_TILE_ROWS * tiles + column / SCALE_TILE_COLUMNS;
    return tile * SCALE_TILE_ROWS * SCALE_TILE_COLUMNS + row % 32 * 16 + row / 32 % 4 * 4 + column % 4;
}

/* The largest finite number of a type, as double. */
static inline double block_scale_most(const struct tensor *tensor) {
    return dtype_of((weftDataType_t)tensor->type)->max;
}

#endif
