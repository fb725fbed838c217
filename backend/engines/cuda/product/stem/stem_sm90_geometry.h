/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of stem_sm90. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_STEM_STEM_SM90_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_STEM_STEM_SM90_GEOMETRY_H

#include "engines/cuda/product/hopper/epilogue_geometry.h"

enum {
    CONSUMER_GROUPS = 2,
    SLOTS = 3,          /* patches of the image */
    EPILOGUE_TILES = 2, /* per consumer warp */
    RESULT_BYTES = 2,
    PIXEL_BYTES = 16, /* a pixel of 8 channels: a row of ldmatrix */
};

/* The constants of the kernel that determine its memory, in lower case. */
struct stem_sm90_shape {
    int planes, patch_h, patch_w, taps, block_n;
};

struct stem_sm90_memory {
    unsigned patch_bytes, chunk_bytes;   /* a patch, and the filters of one tap: [filters][8 channels] */
    unsigned filters, staging, barriers; /* offsets; the patches are at 0 */
    unsigned bytes;                      /* bytes per block */
};

/* Patches, filters of an even number of taps, epilogue tiles of the consumer warps, two barriers per slot. */
GEOMETRY struct stem_sm90_memory stem_sm90_memory_of(struct stem_sm90_shape s) {
    struct stem_sm90_memory m = {0};
    m.patch_bytes = geometry_round_up(s.planes * s.patch_h * s.patch_w * PIXEL_BYTES, 128);
    m.chunk_bytes = s.block_n * PIXEL_BYTES;
    m.filters = SLOTS * m.patch_bytes;
    m.staging = geometry_round_up(m.filters + geometry_round_up(s.taps, 2) * m.chunk_bytes, 1024);
    m.barriers = m.staging + CONSUMER_GROUPS * 4 * EPILOGUE_TILES * epilogue_tile_bytes(RESULT_BYTES, s.block_n);
    m.bytes = m.barriers + 2 * SLOTS * BARRIER_BYTES;
    return m;
}

#endif
