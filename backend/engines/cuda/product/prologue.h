/* SPDX-License-Identifier: Apache-2.0 */
/* Pointwise operations before a product: its first operand is changed on its way from memory to the tensor core, some
   neighbours at a time. What else they read is one number, or one for each place along an axis of the operand. */
#ifndef WEFT_ENGINES_CUDA_PROLOGUE_H
#define WEFT_ENGINES_CUDA_PROLOGUE_H

#include "engines/cuda/product/contraction.h"

/* A dimension of the operand's tensor that operands may know: the one that neighbours run along or one across it. */
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

/* neighbours: how many elements prepare() changes at once, as the kernel's registers hold them. Set by the family with
   c and the axes; prologue_find fills in the operands. */
struct prologue {
    const struct contraction *c;
    int neighbours; /* an even number of them */
    int axis_count;
    struct prologue_axis axes[2];
    int operand_count;
    struct prologue_operand operands[BEFORE_MAX];
};

/* The pointwise operations that lead to one operand of a product, the first that has any: a family's companions. */
int prologue_companions(const struct graph *graph, int node, int *nodes);
/* Finds the operands, once contraction and axes are known; NOT_SUPPORTED and a sentence for what is not read in place.
   */
weftStatus_t prologue_find(struct prologue *prologue);
/* read_along(p, x, exist), read_across(p, y): operands of the neighbours from x on along their axis, at y of the other;
   prepare(p, words, along, across) of as many, two to a word. Nothing where nothing is before the product. */
void prologue_emit(struct kernel_source *source, const struct prologue *prologue);

#endif
