/* SPDX-License-Identifier: Apache-2.0 */
/* A region that is computed on copies: some of its tensors are replaced by others of the same dims, stored in the
   step's workspace in a layout or type that another family requires. That family sees a graph of only the region, with
   these tensors under the same uids. copy_fallback.c copies what kernels cannot address, and the cuda_packed family
   what products read. */
#ifndef WEFT_ENGINES_CUDA_COPY_FALLBACK_H
#define WEFT_ENGINES_CUDA_COPY_FALLBACK_H

#include "engines/cuda/core/delegate.h"

enum { STAGED_MAX = 32 }; /* maximum number of replaced tensors per region */

struct staged_value {
    int value;
    bool is_read, is_written;
    const struct tensor *tensor, *plain;
    int64_t scratch; /* offset of the plain tensor, in bytes */
};

struct staged {
    struct region region; /* part of a separate graph with plain tensors */
    const int *outer;     /* maps each of its values to the whole graph */
    struct offer inner;   /* of the family that computes the region, without the copies */
    int count;
    struct staged_value at[STAGED_MAX];
    int64_t scratch_bytes;
};

/* Assigns a plain tensor and its scratch to a value. The list must not be full. */
struct staged_value *staged_add(struct staged *staged, int value, const struct tensor *tensor,
                                const struct tensor *plain);
/* Creates the separate graph, once all values are added. */
weftStatus_t staged_exchange(struct staged *staged, const struct region *region, struct arena *arena);

/* Builds the step of the inner family and adopts its kernels: its workspace follows the plain tensors. */
weftStatus_t staged_build_inner(struct cuda_step *state, const struct staged *staged, const struct device *device,
                                const struct knob_choices *knobs, struct step *inner, struct arena *arena);

#endif
