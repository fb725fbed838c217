/* SPDX-License-Identifier: Apache-2.0 */
/* Scales of attention's operands, [B, H, S, D]: one for a head, one for each row of D elements, or one for each block
   of 32 along D or along S. Those of blocks may lie in tiles of 128 x 4, whose columns are then the blocks. */
#ifndef WEFT_GRAPH_OPS_ATTENTION_SCALES_H
#define WEFT_GRAPH_OPS_ATTENTION_SCALES_H

#include "graph/op.h"

enum { ATTENTION_SCALE_BLOCK = 32 };

/* How far two elements of an operand may be apart and share a scale: extents of a block along S and D. 1 along what
   the scales have an extent of 1. */
struct attention_blocks {
    int64_t rows, columns;
    bool are_blocks;
    bool are_tiled;
    int64_t tiles; /* side by side: along the blocks */
};
struct attention_blocks attention_blocks_of(const struct tensor *scales, const struct tensor *operand);

/* Where the scale of an element lies, in elements. */
int64_t attention_scale_offset(const struct view *scales, const struct attention_blocks *blocks,
                               const int64_t index[4]);

/* Scales for each along the operand's first `dims` dimensions at most, or, has_blocks, for each block; NULL passes. */
weftStatus_t attention_check_scales(const struct descriptor *op, const char *key, const struct tensor *scales,
                                    const struct tensor *operand, int dims, bool has_blocks);

#endif
