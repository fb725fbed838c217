/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between memories of different order or type, as kernels of a step: what the move family is made of, and what
   others bring their operands into shape with. */
#ifndef WEFT_ENGINES_CUDA_MOVE_H
#define WEFT_ENGINES_CUDA_MOVE_H

#include "engines/cuda/core/kernel.h"

/* One mode more than tensors have dims: that of the lanes of vectors. */
enum { SIDE_MODES = WEFT_DIM_MAX + 1, MOVE_PARTS_PER_KERNEL = 8, MOVE_PARTS_MAX = MOVE_PARTS_PER_KERNEL * KERNELS_MAX };

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

/* One copy. Both sides count the same positions. Where runs fill no bytes of what is written, threads take bytes of it
   instead and find the positions whose elements these hold: such a part must write all of its tensor. */
struct part {
    struct side from, to;
    int64_t elements;
    int run;
    bool is_by_byte;
};

/* Puts the modes in the order of memory of the side that is written; both sides must have the same ones. */
void part_order(struct part *part);

/* Counts the elements and finds how many go in one access, once both sides stand. */
void part_complete(struct part *part);

/* Adds the kernels of copies to a step. */
weftStatus_t move_add_kernels(struct cuda_step *state, const struct region *region, const struct part *parts, int count,
                              const struct device *device, struct arena *arena);

#endif
