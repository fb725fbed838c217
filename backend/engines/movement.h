/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that only move elements (transpose, slice, reshape, concat), as lists of copies between two memories: what
   the families of all engines that serve them agree on. It knows no kernels and no threads. */
#ifndef WEFT_ENGINES_MOVEMENT_H
#define WEFT_ENGINES_MOVEMENT_H

#include "engines/engine.h"

enum { SIDE_MODES = WEFT_DIM_MAX + 1 }; /* one more than tensors have dims: that of the lanes of vectors */

/* Where positions lie in one memory: position p in mixed radix, the slowest mode first. */
struct side {
    const struct tensor *tensor; /* of the graph; its memory, unless that is scratch */
    weftDataType_t type;
    bool is_scratch;
    int64_t scratch; /* where, in bytes from the start of the step's workspace */
    int64_t offset;  /* in elements */
    int rank;
    int64_t extents[SIDE_MODES], strides[SIDE_MODES];
};

/* One copy. Both sides count the same positions. */
struct part {
    struct side from, to;
};

/* The copies of a node's operation, `most` at most: one for each input that has elements; none where there are none.
   NOT_SUPPORTED for an operation that does more, or has more. */
weftStatus_t movement_list(struct part *parts, int most, int *count, const struct descriptor *op);

/* Puts the modes in the order of memory of the side that is written; both sides must have the same ones. */
void part_order(struct part *part);

int64_t part_elements(const struct part *part);

/* Makes one mode of neighbours that lie at one distance; positions stay the same. */
void side_merge(struct side *side);

#endif
