/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between layouts or types, as kernels of a step: the implementation of the copy family, which other families
   use to convert their operands. */
#ifndef WEFT_ENGINES_CUDA_COPY_H
#define WEFT_ENGINES_CUDA_COPY_H

#include "engines/cuda/core/kernel.h"
#include "engines/movement.h"

enum { COPY_PARTS_PER_KERNEL = 8, COPY_PARTS_MAX = COPY_PARTS_PER_KERNEL * KERNELS_MAX };

/* Merges the modes of each side separately; positions stay the same. */
static inline void part_merge(struct part *part) {
    side_merge(&part->from);
    side_merge(&part->to);
}

/* Adds copy kernels to a step; the sides must be merged. */
weftStatus_t copy_add_kernels(struct cuda_step *state, const struct region *region, const struct part *parts, int count,
                              const struct device *device, struct arena *arena);

#endif
