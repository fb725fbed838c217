/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of patch_sm90. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_HOPPER_PATCH_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_HOPPER_PATCH_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

enum {
    CONSUMER_GROUPS = 2,   /* warpgroups, each with its own tile of pixels */
    ROWS = 64,             /* rows of the product: filters of one slice of the result or of several */
    SLOT_ALIGNMENT = 1024, /* alignment that the 128-byte swizzle requires */
};

/* The constants of the kernel that determine its memory, in lower case. */
struct patch_shape {
    int channels, stack, tile_h, tile_w, patch_h, pitch;
    int patch_slots, filter_slots, result_slots, aux_load;
};

struct patch_memory {
    int pixels;                         /* columns of the product */
    unsigned pixel_bytes, result_bytes; /* a pixel of the image, and of a slice of the result */
    unsigned patch_bytes, filter_bytes; /* what is copied: a patch, and the filters of one tap */
    unsigned result_slice, patch_slot, result_slot;
    unsigned filters, results, barriers; /* offsets; the patches are at 0 */
    unsigned bytes;                      /* bytes per block */
};

/* Lines of a tile have a pitch of `pitch` pixels in the patch. Products also cover the gaps, but those results are
   never stored: pixels in gaps are written to a dummy after the slice, which saves a branch. A patch's slot is large
   enough for the copied pixels, for what the last tap reads after them, and for a result that reuses the slot. */
GEOMETRY struct patch_memory patch_memory_of(struct patch_shape s) {
    struct patch_memory m = {0};
    int slots = CONSUMER_GROUPS * s.result_slots, barriers = 3 * s.patch_slots + 2 * s.filter_slots + 2 * slots + 1;
    m.pixels = ((s.tile_h - 1) * s.pitch + s.tile_w + 7) / 8 * 8;
    m.pixel_bytes = s.channels * 2;
    m.result_bytes = ROWS / s.stack * 2;
    m.patch_bytes = s.patch_h * s.pitch * m.pixel_bytes;
    m.filter_bytes = ROWS * s.channels * 2;
    unsigned read_bytes = ((s.patch_h - s.tile_h) * s.pitch + s.pitch - s.tile_w + m.pixels) * m.pixel_bytes;
    m.result_slice = geometry_round_up((s.tile_h * s.tile_w + 1) * m.result_bytes, SLOT_ALIGNMENT);
    m.patch_slot = geometry_max(geometry_round_up(geometry_max(m.patch_bytes, read_bytes), SLOT_ALIGNMENT),
                                s.stack * m.result_slice);
    m.result_slot = s.aux_load ? s.stack * m.result_slice : 0;
    m.filters = s.patch_slots * m.patch_slot;
    m.results = m.filters + s.filter_slots * m.filter_bytes;
    m.barriers = m.results + slots * m.result_slot;
    m.bytes = m.barriers + barriers * BARRIER_BYTES;
    return m;
}

#endif
