/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of a step of another graph, which a combination asked another family for, as kernels of its own. */
#ifndef WEFT_ENGINES_CUDA_DELEGATE_H
#define WEFT_ENGINES_CUDA_DELEGATE_H

#include "engines/cuda/core/kernel.h"

/* Where a value of the other graph lies: a value of this one, a place in the step's workspace, or, of a constant that
   this one has not, nowhere. */
struct kernel_place {
    int of, value; /* value: -1 where it is none of this graph */
    int64_t scratch;
    const struct tensor *constant; /* NULL: it is none */
};

/* Takes over the kernels of another step, whose workspace begins at `scratch` of this one's, and sends them to
   places. */
weftStatus_t kernels_take(struct cuda_step *state, const struct cuda_step *from, const struct kernel_place *places,
                          int count, int64_t scratch, struct arena *arena);

#endif
