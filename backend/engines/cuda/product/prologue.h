/* SPDX-License-Identifier: Apache-2.0 */
/* Prologue: pointwise operations before a product. They transform elements of the first operand between memory and the
   tensor core, several contiguous elements at a time. Their other operands are scalars or vectors along one axis of the
   operand. */
#ifndef WEFT_ENGINES_CUDA_PROLOGUE_H
#define WEFT_ENGINES_CUDA_PROLOGUE_H

#include "engines/cuda/product/contraction.h"

/* A dimension of the operand's tensor that prologue operands may vary along: the contiguous one or one other. */
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

/* vector_length: number of contiguous elements that prepare() transforms at once, according to the kernel's register
   layout. The family sets it together with c and the axes; prologue_find fills in the operands. */
struct prologue {
    const struct contraction *c;
    int vector_length; /* even */
    int axis_count;
    struct prologue_axis axes[2];
    int operand_count;
    struct prologue_operand operands[PROLOGUE_MAX];
};

/* Companion nodes of a family: the pointwise operations that lead to one operand of a product, the first operand that
   has any. */
int prologue_companions(const struct graph *graph, int node, int *nodes);
/* Finds the operands; contraction and axes must be set. NOT_SUPPORTED, with a reason, for tensors that cannot be read
   in place. */
weftStatus_t prologue_find(struct prologue *prologue);
/* Emits read_along(p, x, exist) and read_across(p, y), which load the operands of the elements along their axis,
   starting at x, and at y along the other one, and prepare(p, words, along, across), which transforms that many
   elements, two per word. Emits nothing if there is no prologue. */
void prologue_emit(struct kernel_source *source, const struct prologue *prologue);

#endif
