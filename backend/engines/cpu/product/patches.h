/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution's operands as gemm packs them, so that a convolution is a product of matrices that exist only panel by
   panel. A "tap index" runs over filter taps and, fastest, channels; a "position" over places of the filter.
   It must not know operations. */
#ifndef WEFT_ENGINES_CPU_PATCHES_H
#define WEFT_ENGINES_CPU_PATCHES_H

#include "engines/cpu/product/gemm.h"

/* How rectangles of a panel are packed, whose depths are whole groups. */
struct packing {
    gemm_pack *pack;
    int group, bytes; /* bytes: of a group of one lane */
};

/* An image seen through a filter: the element at a position and a tap index lies, along dimension i, at
   position_i * step[i] + offset[i] + tap_i * tap_step[i], and is 0 where that is outside of the image. */
struct patches {
    const void *base;
    weftDataType_t type;
    struct packing packing;
    bool positions_are_depth; /* positions run along k and tap indices along rows or columns, else the reverse */
    bool batch_has_images;    /* the batch runs over images and, fastest, groups; else over groups, and positions over
                                   images first */
    int64_t groups, channels; /* channels of one group */
    int64_t image_stride, group_stride, channel_stride;
    int64_t size[3], stride[3]; /* of the image; strides in elements */
    int64_t positions[3], step[3];
    int64_t taps[3], offset[3], tap_step[3];
};
gemm_pack patches_pack;

/* Positions that follow each other along the last dimension. */
struct run {
    int64_t count, place[3];
    int64_t origin; /* element of the image and group */
};

/* The run at a position, of at most `most` of them. A run ends with the last dimension's positions at the latest. */
struct run patches_run(const struct patches *patches, int64_t batch, int64_t position, int64_t most);

/* Of `count` positions along the last dimension those that see the image: from *before on, up to *end. first: what the
   first of them sees. None where another dimension is outside. */
void patches_inside(const struct patches *patches, const int64_t *first, int64_t count, int64_t *before, int64_t *end);

/* Extents of three dimensions. */
static inline int64_t patches_count(const int64_t *extents) { return extents[0] * extents[1] * extents[2]; }

/* Row-major over three extents. The first place is what is left: an index beyond the end runs on there. */
static inline void patches_unravel(int64_t index, const int64_t *extents, int64_t *place) {
    place[2] = index % extents[2];
    place[1] = index / extents[2] % extents[1];
    place[0] = index / extents[2] / extents[1];
}

/* Turns dimensions that are walked as one into one, for longer runs. */
void patches_simplify(struct patches *patches);

/* A filter: depth is the tap index, rows (or columns) are its other channels. */
struct filter {
    const void *base;
    weftDataType_t type;
    struct packing packing;
    int64_t groups, channels; /* channels that the depth runs over */
    int64_t first;            /* element of the first tap */
    int64_t group_stride, row_stride, channel_stride;
    int64_t taps[3], tap_stride[3];
};
gemm_pack filter_pack;

/* Turns taps whose channels follow each other in memory into channels of one tap. */
void filter_simplify(struct filter *filter);

#endif
