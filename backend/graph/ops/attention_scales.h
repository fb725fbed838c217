/* SPDX-License-Identifier: Apache-2.0 */
/* Scales of attention's operands, [B, H, S, D]: one per head, one per row of D elements, or one per block of 32
   elements along D or S. Block scales may be stored in tiles of 128 x 4, whose columns are blocks. */
#ifndef WEFT_GRAPH_OPS_ATTENTION_SCALES_H
#define WEFT_GRAPH_OPS_ATTENTION_SCALES_H

#include "graph/op.h"

enum { ATTENTION_SCALE_BLOCK = 32 };

/* Extents of a block of elements with a common scale, along S and D. They are 1 along dimensions in which the scales
   have extent 1. */
struct attention_blocks {
    int64_t rows, columns;
    bool are_blocks;
    bool are_tiled;
    int64_t tiles; /* number of tiles along the blocks */
};
struct attention_blocks attention_blocks_of(const struct tensor *scales, const struct tensor *operand);

/* Offset of an element's scale, in elements. */
int64_t attention_scale_offset(const struct view *scales, const struct attention_blocks *blocks,
                               const int64_t index[4]);

/* Checks that scales vary at most along the operand's first `dims` dimensions, or (has_blocks) per block. Accepts
   NULL. */
weftStatus_t attention_check_scales(const struct descriptor *op, const char *key, const struct tensor *scales,
                                    const struct tensor *operand, int dims, bool has_blocks);

#endif
