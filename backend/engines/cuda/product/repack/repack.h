/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a product that the repack family may copy, and their layouts: the operands, the result, and an operand
   of the epilogue. */
#ifndef WEFT_ENGINES_CUDA_REPACK_H
#define WEFT_ENGINES_CUDA_REPACK_H

#include "engines/engine.h"

enum { PACKED_A, PACKED_B, PACKED_OPERAND, PACKED_RESULT, REPACK_CANDIDATES };

/* Rewrites of the product that suit tensor cores:
     unchanged   only layouts and types change
     merged      narrow groups of a convolution become one; filters have zeros for the channels of other groups
     patches     taps that never overlap become channels: the convolution has one tap
     lines       lines of an image that no tap reads are omitted */
enum rewrite { UNCHANGED, MERGED, PATCHES, LINES, REWRITES };

/* A tensor that may be replaced by a packed one, and the views of both for the copy, which have the same dims. */
struct repack_candidate {
    int value;
    const struct tensor *tensor;
    struct tensor packed, tensor_view, packed_view;
    bool must_replace; /* must be replaced */
    bool is_diagonal;  /* for merged filters: only a group's own channels are copied, and the others are zeros */
};

struct repack_candidates {
    const struct node *node;
    enum rewrite rewrite;
    struct repack_candidate at[REPACK_CANDIDATES]; /* those without a tensor are unused */
};

/* NOT_SUPPORTED, with a reason, if the product of a region cannot be rewritten in this way. */
weftStatus_t repack_find(struct repack_candidates *candidates, const struct region *region, enum rewrite rewrite);

/* Applies the rewrite to the parameters of the product's node in a graph whose tensors have been replaced. */
weftStatus_t repack_rewrite(const struct repack_candidates *candidates, const struct descriptor *op,
                            struct arena *arena);

#endif
