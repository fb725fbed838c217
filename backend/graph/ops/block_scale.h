/* SPDX-License-Identifier: Apache-2.0 */
/* The block scale operations as engines read them, and where scales lie: tensors of numbers with few bits, of which the
   elements of a block share a scale. */
#ifndef WEFT_GRAPH_OPS_BLOCK_SCALE_H
#define WEFT_GRAPH_OPS_BLOCK_SCALE_H

#include "graph/op.h"

struct block_scale_quantize_op {
    struct descriptor base;
    struct tensor *x, *y, *scale;
    int64_t axis; /* as set: negative counts from the last */
    int32_t block_size, math;
    bool is_transposed;
};

struct block_scale_dequantize_op {
    struct descriptor base;
    struct tensor *x, *scale, *y;
    struct list block_size; /* of the last dims, INT32 */
    int32_t math;
    bool is_negative;
};

extern const struct op block_scale_quantize_op, block_scale_dequantize_op;

static inline int block_scale_axis(const struct block_scale_quantize_op *op) {
    return (int)(op->axis < 0 ? op->axis + op->x->dims.count : op->axis);
}

/* The extents of a block in all dimensions of x. */
struct dims block_scale_extents(const struct descriptor *op);

/* The scale that is stored for a block of this largest magnitude. */
double block_scale_stored(const struct block_scale_quantize_op *op, double magnitude);

/* Tiles of 128 rows and 4 columns, of 512 elements each, in the order of the rows of tiles. Within a tile the rows r,
   r + 32, r + 64 and r + 96 lie side by side. */
enum { SCALE_TILE_ROWS = 128, SCALE_TILE_COLUMNS = 4 };

static inline bool scale_is_tiled(const struct tensor *scale) {
    return scale->reordering == WEFT_TENSOR_REORDERING_F8_128x4;
}

/* Of a tiled tensor: the dimension that its columns are, the last but where only the one before has stride 1. */
static inline int scale_column(const struct tensor *scale) {
    int last = (int)scale->dims.count - 1;
    return scale->strides.at[last] != 1 && scale->strides.at[last - 1] == 1 ? last - 1 : last;
}

/* Of a row and a column of a matrix of so many tiles side by side. */
static inline int64_t scale_tile_offset(int64_t row, int64_t column, int64_t tiles) {
    int64_t tile = row / SCALE_TILE_ROWS * tiles + column / SCALE_TILE_COLUMNS;
    return tile * SCALE_TILE_ROWS * SCALE_TILE_COLUMNS + row % 32 * 16 + row / 32 % 4 * 4 + column % 4;
}

/* The largest finite number of a type, as double. */
static inline double block_scale_most(const struct tensor *tensor) {
    return dtype_of((weftDataType_t)tensor->type)->max;
}

#endif
