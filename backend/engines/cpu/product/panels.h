/* SPDX-License-Identifier: Apache-2.0 */
/* What direct.c packs: panels of a filter, and of an image seen by taps. A panel is [segments, depth, width] floats;
   columns beyond `count` are zeros. It must not know operations. */
#ifndef WEFT_ENGINES_CPU_PANELS_H
#define WEFT_ENGINES_CPU_PANELS_H

#include "engines/cpu/product/patches.h"

/* A part of the depth: some segments, and of each the same depths. */
struct depths {
    int64_t segment, segments, first, count;
};

/* Segments are taps and depths channels; columns are the filter's rows. */
void panels_of_filter(const struct filter *filter, float *panel, int width, int64_t group, int64_t column, int count,
                      const struct depths *depths);

/* One row of a filter of one channel per group, for each segment: columns are groups. */
void panels_of_channels(const struct filter *filter, float *panel, int64_t column, int64_t count,
                        const struct depths *depths);

/* Segments are images and depths positions; columns are taps and, fastest, `channels` channels from `channel` on. Of an
   image in floats whose channels are neighbours. */
void panels_of_image(const struct patches *image, float *panel, int width, int64_t group, int64_t channel,
                     int64_t channels, int64_t column, int count, const struct depths *depths);

#endif
