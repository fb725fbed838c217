/* SPDX-License-Identifier: Apache-2.0 */
/* The stem family: the first convolutions of networks, whose images have too few channels to fill a tensor core's
   k. Pixels are padded to 8 channels on their way into shared memory, never in memory, and a patch of them serves
   all taps. Filter, stride and dilation are text here, the rest of the geometry are arguments. What follows the sum is
   the contraction's. */
#ifndef WEFT_ENGINES_CUDA_STEM_H
#define WEFT_ENGINES_CUDA_STEM_H

#include "engines/cuda/product/contraction.h"
#include "graph/ops/convolution.h"

enum { HEIGHT = 1, WIDTH = 2, CHANNELS_MAX = 8, PIXEL_BYTES = 16 };

/* Of outputs, of pixels of dy, or of positions of dx: rows of 16 neighbours each. */
struct stem_tile {
    int rows, columns;
};

struct stem {
    struct contraction c;
    struct conv_geometry g;
    const struct stem_tile *tile;
    int64_t warps, stages;
    int64_t filters, filter_tiles;       /* of a block; blocks side by side */
    int64_t first[3], tiles_p, tiles_q;  /* the walk: where it begins, tiles down and across */
    int64_t tiles, shared_bytes, blocks; /* in all images; of a block; resident ones of a multiprocessor */
};

/* ---- emit.c ------------------------------------------------------------------------------------------------ */

/* The kernel, without grid and block. */
weftStatus_t stem_emit(struct cuda_kernel *kernel, const struct stem *s, struct arena *arena);

#endif
