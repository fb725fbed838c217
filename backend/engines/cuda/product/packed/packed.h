/* SPDX-License-Identifier: Apache-2.0 */
/* What the packed family may copy of a product, and how: the operands, the result, and what the result meets. */
#ifndef WEFT_ENGINES_CUDA_PACKED_H
#define WEFT_ENGINES_CUDA_PACKED_H

#include "engines/engine.h"

enum { PACKED_A, PACKED_B, PACKED_OPERAND, PACKED_RESULT, REPACK_CANDIDATES };

/* How the product is written, that there is something for the tensor cores to do:
     as it is    only layouts and types change
     merged      narrow groups of a convolution are one; a filter has zeros for the channels of its neighbours
     patches     taps that never overlap are channels: the convolution has one tap
     lines       those of an image that no tap sees are left out */
enum writing { AS_IT_IS, MERGED, PATCHES, LINES, WRITINGS };

/* A tensor that may be exchanged for a packed one, and both as the copy between them sees them: of the same dims. */
struct repack_candidate {
    int value;
    const struct tensor *tensor;
    struct tensor packed, tensor_view, packed_view;
    bool is_needed;   /* exchanged in any case */
    bool is_diagonal; /* of merged filters only a group's own channels are copied, among zeros */
};

struct repack_candidates {
    const struct node *node;
    enum writing writing;
    struct repack_candidate at[REPACK_CANDIDATES]; /* without a tensor: none */
};

/* NOT_SUPPORTED and a sentence where the product of a region cannot be written so. */
weftStatus_t repack_find(struct repack_candidates *candidates, const struct region *region, enum writing writing);

/* The node in a graph whose tensors are exchanged: what else of its operation changes. */
weftStatus_t repack_rewrite(const struct repack_candidates *candidates, const struct descriptor *op,
                            struct arena *arena);

#endif
