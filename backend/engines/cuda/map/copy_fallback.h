/* SPDX-License-Identifier: Apache-2.0 */
/* A region computed on copies: some of its tensors are exchanged for others of the same dims that lie in the step's
   workspace, in a layout or of a type that another family asks for. That family sees a graph of the region alone, with
   these tensors under the same uids. copy_fallback.c copies what kernels cannot address, product/repack what
   products read. */
#ifndef WEFT_ENGINES_CUDA_COPY_FALLBACK_H
#define WEFT_ENGINES_CUDA_COPY_FALLBACK_H

#include "engines/cuda/core/delegate.h"

enum { STAGED_MAX = 32 }; /* tensors of a region that are exchanged for others */

struct staged_value {
    int value;
    bool is_read, is_written;
    const struct tensor *tensor, *plain;
    int64_t scratch; /* of the plain tensor, in bytes */
};

struct staged {
    struct region region; /* of a graph of its own, with plain tensors */
    const int *outer;     /* of each of its values: that of the whole graph */
    const struct family *inner;
    double seconds; /* that it predicts, beside the copies */
    int count;
    struct staged_value at[STAGED_MAX];
    int64_t scratch_bytes;
};

/* Gives a value its plain tensor, and that its place. There must be room. */
struct staged_value *staged_add(struct staged *staged, int value, const struct tensor *tensor,
                                const struct tensor *plain);
/* Makes that graph, once all values are there. */
weftStatus_t staged_exchange(struct staged *staged, const struct region *region, struct arena *arena);

/* Builds the step of the inner family and takes its kernels over: its workspace lies behind the plain tensors. */
weftStatus_t staged_build_inner(struct cuda_step *state, const struct staged *staged, const struct device *device,
                                const struct knob_choices *knobs, struct step *inner, struct arena *arena);

#endif
