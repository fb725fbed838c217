/* SPDX-License-Identifier: Apache-2.0 */
/* The stem family: the first convolutions of networks, whose images have too few channels to fill the k of a tensor
   core. Pixels are padded to 8 channels when they are loaded into shared memory, never in global memory, and a patch of
   them serves all taps. Filter, stride and dilation are constants of the generated code, the rest of the geometry are
   arguments. The epilogue is that of the contraction family. */
#ifndef WEFT_ENGINES_CUDA_STEM_H
#define WEFT_ENGINES_CUDA_STEM_H

#include "engines/cuda/product/contraction.h"
#include "engines/cuda/product/stem/stem_geometry.h"
#include "graph/ops/convolution.h"

enum { HEIGHT = 1, WIDTH = 2, CHANNELS_MAX = PIXEL };

/* A tile of outputs, of pixels of dy, or of positions of dx: rows of multiples of 16. */
struct stem_tile {
    int rows, columns;
};

struct stem {
    struct contraction c;
    struct conv_geometry g;
    const struct stem_tile *tile;
    int64_t warps, stages;
    int64_t filters, filter_tiles;       /* filters per block; number of blocks for all filters */
    int64_t first[3], tiles_p, tiles_q;  /* first position in each dimension; number of tiles down and across */
    int64_t tiles, shared_bytes, blocks; /* tiles in all images; bytes per block; resident blocks per multiprocessor */
};

/* ---- emit.c ------------------------------------------------------------------------------------------------- */

/* Generates the kernel; grid and block are set elsewhere. */
weftStatus_t stem_emit(struct cuda_kernel *kernel, const struct stem *s, struct arena *arena);

#endif
