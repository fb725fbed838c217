/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that only move elements (transpose, slice, reshape, concat), as lists of copies between two memories.
   Shared by the families of all engines that serve them. This file must not know kernels or threads. */
#ifndef WEFT_ENGINES_MOVEMENT_H
#define WEFT_ENGINES_MOVEMENT_H

#include "engines/engine.h"

enum { SIDE_MODES = WEFT_DIM_MAX + 1 }; /* tensor dims, plus one for vector lanes */

/* Describes where positions are stored in one memory: position p in mixed radix, slowest mode first. */
struct side {
    const struct tensor *tensor; /* tensor of the graph, and its memory unless is_scratch */
    weftDataType_t type;
    bool is_scratch;
    int64_t scratch; /* offset in bytes from the start of the step's workspace */
    int64_t offset;  /* in elements */
    int rank;
    int64_t extents[SIDE_MODES], strides[SIDE_MODES];
};

/* One copy. Both sides enumerate the same positions. */
struct part {
    struct side from, to;
};

/* Lists the copies of a node's operation, at most `most`: one for each input that has elements, so the list may be
   empty. Returns NOT_SUPPORTED if the operation does more than move elements or needs more copies. */
weftStatus_t movement_list(struct part *parts, int most, int *count, const struct descriptor *op);

/* Sorts the modes into the memory order of the written side. Both sides must have the same modes. */
void part_order(struct part *part);

int64_t part_elements(const struct part *part);

/* Merges adjacent modes that together have a constant stride. The positions stay the same. */
void side_merge(struct side *side);

#endif
