/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of stem, stem_dgrad and stem_wgrad. */
#ifndef WEFT_ENGINES_CUDA_PRODUCT_STEM_STEM_GEOMETRY_H
#define WEFT_ENGINES_CUDA_PRODUCT_STEM_STEM_GEOMETRY_H

#include "engines/cuda/core/geometry.h"

/* Pixels of X are padded to 8 channels of 16 bits: a row of ldmatrix. PITCH_PAD: elements after the filters of a pixel
   of dY, which put adjacent pixels into different banks. */
enum { PIXEL = 8, PIXEL_BYTES = 16, PITCH_PAD = 8 };

/* The constants of the kernels that determine their memory, in lower case. */
struct stem_shape {
    long long taps_h, taps_w, stride_h, stride_w, dilation_h, dilation_w, tile_p, tile_q, filters, warps, stages;
    int lead_is_row;
};

struct stem_memory {
    long long patch_h, patch_w;               /* pixels that a tile reads: of X, or of dY for stem_dgrad */
    long long epilogue_lines, epilogue_pitch; /* stem: a warp's sums of a fragment, as floats */
    long long bytes;                          /* bytes per block */
};

/* Pixels of a patch of X. Columns are sorted by the remainder modulo the stride, so their number is rounded up to whole
   strides. */
GEOMETRY long long stem_pixels(long long rows, long long columns, long long stride) {
    return rows * geometry_round_up(columns, stride);
}

/* 16-bit elements of a patch of dY, with all filters of the block. */
GEOMETRY long long stem_loss_elements(long long rows, long long columns, long long filters) {
    return rows * columns * (filters + PITCH_PAD);
}

GEOMETRY long long stem_loss_bytes(long long rows, long long columns, long long filters) {
    return geometry_round_up(stem_loss_elements(rows, columns, filters) * 2, PIXEL_BYTES);
}

/* Sets the patch of X. */
GEOMETRY struct stem_memory stem_patch_of(struct stem_shape s) {
    struct stem_memory m = {0};
    m.patch_h = (s.tile_p - 1) * s.stride_h + (s.taps_h - 1) * s.dilation_h + 1;
    m.patch_w = (s.tile_q - 1) * s.stride_w + (s.taps_w - 1) * s.dilation_w + 1;
    return m;
}

/* Filters and offsets of all taps, in pairs because a product covers two, then the patch or, after it, the sums.
   Consecutive lines of sums are offset by 8 banks. */
GEOMETRY struct stem_memory stem_memory_of(struct stem_shape s) {
    struct stem_memory m = stem_patch_of(s);
    long long taps = geometry_round_up(s.taps_h * s.taps_w, 2);
    m.epilogue_lines = s.lead_is_row ? s.filters : 16;
    m.epilogue_pitch = (s.lead_is_row ? 16 : s.filters) + 8;
    m.bytes = taps * s.filters * PIXEL_BYTES + geometry_round_up(taps * 4, PIXEL_BYTES) +
              geometry_max(stem_pixels(m.patch_h, m.patch_w, s.stride_w) * PIXEL_BYTES,
                           s.warps * m.epilogue_lines * m.epilogue_pitch * 4);
    return m;
}

/* Weights of all taps, then the pixels of dY that a tile of positions sees through all taps or, after them, the sums.
   */
GEOMETRY struct stem_memory stem_dgrad_memory_of(struct stem_shape s) {
    struct stem_memory m = {0};
    m.patch_h = s.tile_p + (s.taps_h - 1) * s.dilation_h / s.stride_h;
    m.patch_w = s.tile_q + (s.taps_w - 1) * s.dilation_w / s.stride_w;
    m.bytes = s.taps_h * s.taps_w * s.filters * PIXEL_BYTES +
              geometry_max(stem_loss_bytes(m.patch_h, m.patch_w, s.filters), s.warps * 16 * s.stride_w * PIXEL * 4);
    return m;
}

/* Stages of X and dY. */
GEOMETRY struct stem_memory stem_wgrad_memory_of(struct stem_shape s) {
    struct stem_memory m = stem_patch_of(s);
    m.bytes = s.stages * (stem_pixels(m.patch_h, m.patch_w, s.stride_w) * PIXEL_BYTES +
                          stem_loss_bytes(s.tile_p, s.tile_q, s.filters));
    return m;
}

#endif
