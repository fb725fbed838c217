/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of convolutions in the form that gemm packs, so that a convolution is a product of matrices that exist only
   panel by panel (implicit im2col). A "tap index" runs over filter taps and, fastest, channels; a "position" is one of
   the filter's positions on the image. This file must not know operations. */
#ifndef WEFT_ENGINES_CPU_PATCHES_H
#define WEFT_ENGINES_CPU_PATCHES_H

#include "engines/cpu/product/gemm.h"

/* How rectangles of a panel are packed; along the depth they have whole groups. */
struct packing {
    gemm_pack *pack;
    int group, bytes; /* bytes: size of a group of one lane */
};

/* An image seen through a filter: the element of a position and a tap index has coordinate position_i * step[i] +
   offset[i] + tap_i * tap_step[i] along dimension i, and is 0 if that is outside the image. */
struct patches {
    const void *base;
    weftDataType_t type;
    struct packing packing;
    bool positions_are_depth; /* positions are along k and tap indices along rows or columns, instead of the reverse */
    /* the batch covers images and, fastest, groups; otherwise only groups, and positions cover the images first */
    bool batch_has_images;
    int64_t groups, channels; /* channels per group */
    int64_t image_stride, group_stride, channel_stride;
    int64_t size[3], stride[3]; /* extents of the image; strides in elements */
    int64_t positions[3], step[3];
    int64_t taps[3], offset[3], tap_step[3];
};
gemm_pack patches_pack;

/* Consecutive positions along the last dimension. */
struct run {
    int64_t count, place[3];
    int64_t origin; /* first element of the image and group */
};

/* The run that starts at a position, with at most `most` positions. It ends at the latest with the last dimension. */
struct run patches_run(const struct patches *patches, int64_t batch, int64_t position, int64_t most);

/* Of `count` positions along the last dimension, those that see the image: [*before, *end). first: coordinates that the
   first of them sees. Empty if another dimension is outside. */
void patches_inside(const struct patches *patches, const int64_t *first, int64_t count, int64_t *before, int64_t *end);

/* Product of three extents. */
static inline int64_t patches_count(const int64_t *extents) { return extents[0] * extents[1] * extents[2]; }

/* Row-major over three extents. The first coordinate is not reduced: an index past the end increases it further. */
static inline void patches_unravel(int64_t index, const int64_t *extents, int64_t *position) {
    position[2] = index % extents[2];
    position[1] = index / extents[2] % extents[1];
    position[0] = index / extents[2] / extents[1];
}

/* Merges dimensions that are contiguous, for longer runs. */
void patches_simplify(struct patches *patches);

/* A filter: the depth is the tap index; rows (or columns) are its other channels. */
struct filter {
    const void *base;
    weftDataType_t type;
    struct packing packing;
    int64_t groups, channels; /* channels along the depth */
    int64_t first;            /* element of the first tap */
    int64_t group_stride, row_stride, channel_stride;
    int64_t taps[3], tap_stride[3];
};
gemm_pack filter_pack;

/* Merges taps whose channels are contiguous in memory into channels of one tap. */
void filter_simplify(struct filter *filter);

#endif
