/* SPDX-License-Identifier: Apache-2.0 */
/* An image copied as floats in the order in which a product reads it: channels last, with room around it, or channels
   first of all, each with the positions of all images behind each other. It must not know operations. */
#ifndef WEFT_ENGINES_CPU_IM2COL_H
#define WEFT_ENGINES_CPU_IM2COL_H

#include "engines/cpu/product/patches.h"

struct im2col {
    bool is_on;                /* else the image is read where it lies */
    bool is_planes;            /* [groups, channels, images, positions], else [images, positions, groups, channels] */
    bool is_bordered;          /* there are zeros wherever taps look outside; planes have none */
    int64_t images, before[3]; /* before: places of zeros in front, along each dimension */
    struct patches from, to;   /* the image as it lies, and as it is copied; of `from` only the image is read */
};

/* Plans a copy of the image that `patches` sees. is_bordered: with zeros wherever taps look outside. */
void im2col_plan(struct im2col *stage, const struct patches *patches, int64_t images, bool is_planes, bool is_bordered);

/* Floats of the copy; 0 where there is none. */
int64_t im2col_floats(const struct im2col *stage);

/* Copies, on up to all threads of the pool; to.base is set. */
void im2col_run(struct im2col *stage, const void *base, float *copy);

#endif
