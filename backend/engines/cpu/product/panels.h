/* SPDX-License-Identifier: Apache-2.0 */
/* Panels for direct.c, packed from a filter or from an image seen through taps. A panel is [segments, depth, width]
   floats; columns past `count` are zeros. This file must not know operations. */
#ifndef WEFT_ENGINES_CPU_PANELS_H
#define WEFT_ENGINES_CPU_PANELS_H

#include "engines/cpu/product/patches.h"

/* A part of the depth: some segments, and the same range of each. */
struct depths {
    int64_t segment, segments, first, count;
};

/* Segments are taps, the depth runs over channels, columns are the filter's rows. */
void panels_of_filter(const struct filter *filter, float *panel, int width, int64_t group, int64_t column, int count,
                      const struct depths *depths);

/* Packs a filter with one channel per group: one row per segment; columns are groups. */
void panels_of_channels(const struct filter *filter, float *panel, int64_t column, int64_t count,
                        const struct depths *depths);

/* Segments are images, the depth runs over positions, columns are taps and, fastest, `channels` channels, starting at
   `channel`. The image must be float with contiguous channels. */
void panels_of_image(const struct patches *image, float *panel, int width, int64_t group, int64_t channel,
                     int64_t channels, int64_t column, int count, const struct depths *depths);

#endif
