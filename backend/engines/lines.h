/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of tensors along one dimension, the axis: one line for each index of the other dimensions, which are merged
   where every tensor allows it. Adjacent lines are adjacent in the first tensor if its layout permits it. */
#ifndef WEFT_ENGINES_LINES_H
#define WEFT_ENGINES_LINES_H

#include "graph/tensor.h"

enum { LINES_TENSORS = 4 };

struct lines {
    int rank;
    int64_t count;                                /* of lines */
    int64_t extents[WEFT_DIM_MAX];                /* slowest first */
    int64_t strides[LINES_TENSORS][WEFT_DIM_MAX]; /* in elements */
    int64_t steps[LINES_TENSORS];                 /* strides along the axis */
};

/* Tensors, NULL if absent, differ only in their extents along the axis. At most LINES_TENSORS. */
void lines_find(struct lines *lines, int axis, const struct tensor *const *tensors, int count);

/* Offset in elements of a line's first element. */
int64_t lines_offset(const struct lines *lines, int tensor, int64_t line);

#endif
