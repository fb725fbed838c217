/* SPDX-License-Identifier: Apache-2.0 */
/* Delegation: a family that builds a graph for another family adopts the kernels of the resulting step. */
#ifndef WEFT_ENGINES_CUDA_DELEGATE_H
#define WEFT_ENGINES_CUDA_DELEGATE_H

#include "engines/cuda/core/kernel.h"

/* Replacement for a value of the other graph: a value of this graph, an offset in the step's workspace, or a
   constant. */
struct kernel_place {
    int of, value; /* value: -1 if it is not a value of this graph */
    int64_t scratch;
    const struct tensor *constant; /* or NULL */
};

/* Appends the kernels of another step, whose workspace begins at `scratch` in this one's, and redirects their values to
   `targets`. */
weftStatus_t kernels_take(struct cuda_step *state, const struct cuda_step *from, const struct kernel_place *targets,
                          int count, int64_t scratch, struct arena *arena);

#endif
