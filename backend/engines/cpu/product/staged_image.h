/* SPDX-License-Identifier: Apache-2.0 */
/* Staged images: an image is copied as floats in the order in which a product reads it, so that
   patches (patches.h) can be read from the copy without a matrix of them. The copy is either channels-last with a
   border, or channels-first with the positions of all images adjacent. This file must not know operations. */
#ifndef WEFT_ENGINES_CPU_STAGED_IMAGE_H
#define WEFT_ENGINES_CPU_STAGED_IMAGE_H

#include "engines/cpu/product/patches.h"

struct staged_image {
    bool is_on; /* otherwise the image is read in place */
    /* [groups, channels, images, positions] instead of [images, positions, groups, channels] */
    bool is_planes;
    bool is_bordered;          /* zeros are stored where taps are outside; planes have no border */
    int64_t images, before[3]; /* before: zero positions in front, along each dimension */
    struct patches from, to;   /* the original image and its copy; only the image fields of `from` are used */
};

/* Plans a copy of the image that `patches` sees. is_bordered: with zeros where taps are outside. */
void staged_image_plan(struct staged_image *stage, const struct patches *patches, int64_t images, bool is_planes,
                       bool is_bordered);

/* Floats of the copy, or 0 without a copy. */
int64_t staged_image_floats(const struct staged_image *stage);

/* Copies on up to all threads of the pool; sets to.base. */
void staged_image_run(struct staged_image *stage, const void *base, float *copy);

#endif
