/* SPDX-License-Identifier: Apache-2.0 */
/* Pointwise operations before a product: its first factor is changed where the copy engine has put it, in shared memory,
   8 neighbours at a time. What else they read is one number, or one for each place along an axis of the factor. */
#ifndef WEFT_ENGINES_CUDA_PROLOGUE_H
#define WEFT_ENGINES_CUDA_PROLOGUE_H

#include "engines/cuda/contraction.h"

/* A dimension of the factor's tensor that operands may know: the contiguous one or the one across it. */
struct prologue_axis {
    int64_t extent, stride;
    bool runs_along;
};

struct prologue_operand {
    int value;
    weftDataType_t type;
    bool runs_along;
    int64_t extent, stride;
};

struct prologue {
    const struct contraction *c;
    int axis_count;
    struct prologue_axis axes[2];
    int operand_count;
    struct prologue_operand operands[BEFORE_MAX];
};

/* The pointwise operations that lead to one factor of a product, the first that has any: a family's companions. */
int prologue_companions(const struct graph *graph, int node, int *nodes);
/* Finds the operands, once contraction and axes are known; NOT_SUPPORTED and a sentence for what is not read in place. */
weftStatus_t prologue_find(struct prologue *prologue);
/* read_along(p, x), read_across(p, y): operands of 8 neighbours from x on along the contiguous axis, at y of the other;
   prepare(p, words, along, across). Nothing where nothing is before the product. */
void prologue_print(struct kernel_print *print, const struct prologue *prologue);

#endif
