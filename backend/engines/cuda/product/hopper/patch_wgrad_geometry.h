/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of patch_wgrad_sm90. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_HOPPER_PATCH_WGRAD_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_HOPPER_PATCH_WGRAD_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

enum {
    CONSUMER_GROUPS = 3, /* warpgroups, each with a third of a slice's taps */
    ROWS = 64,           /* rows of the product: filters */
};

/* The constants of the kernel that determine its memory, in lower case. */
struct patch_wgrad_shape {
    int channels, tile_h, tile_w, patch_h, pitch, stages;
};

struct patch_wgrad_memory {
    unsigned pixel_bytes, patch_bytes, loss_bytes; /* a pixel and a patch of X, a tile of dY */
    unsigned patch_slot, stage_bytes;
    unsigned barriers, bytes; /* offset of two barriers per stage; of a block */
};

/* The 128-byte swizzle requires a multiple of 1024 bytes. */
GEOMETRY struct patch_wgrad_memory patch_wgrad_memory_of(struct patch_wgrad_shape s) {
    struct patch_wgrad_memory m = {0};
    m.pixel_bytes = s.channels * 2;
    m.patch_bytes = s.patch_h * s.pitch * m.pixel_bytes;
    m.loss_bytes = s.tile_h * s.tile_w * ROWS * 2;
    m.patch_slot = geometry_round_up(m.patch_bytes, 1024);
    m.stage_bytes = m.patch_slot + m.loss_bytes;
    m.barriers = s.stages * m.stage_bytes;
    m.bytes = m.barriers + 2 * s.stages * BARRIER_BYTES;
    return m;
}

#endif
