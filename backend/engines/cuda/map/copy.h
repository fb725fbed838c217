/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between memories of different order or type, as kernels of a step: what the move family is made of, and what
   others bring their operands into shape with. */
#ifndef WEFT_ENGINES_CUDA_COPY_H
#define WEFT_ENGINES_CUDA_COPY_H

#include "engines/cuda/core/kernel.h"
#include "engines/movement.h"

enum { COPY_PARTS_PER_KERNEL = 8, COPY_PARTS_MAX = COPY_PARTS_PER_KERNEL * KERNELS_MAX };

/* Each side's modes by themselves: positions stay the same. */
static inline void part_merge(struct part *part) {
    side_merge(&part->from);
    side_merge(&part->to);
}

/* Adds the kernels of copies, whose sides are merged, to a step. */
weftStatus_t copy_add_kernels(struct cuda_step *state, const struct region *region, const struct part *parts, int count,
                              const struct device *device, struct arena *arena);

#endif
