/* SPDX-License-Identifier: Apache-2.0 */
/* Emits the pointwise nodes of a region as CUDA statements. Values are named v<index in the graph>. */
#ifndef WEFT_ENGINES_CUDA_FORMULA_H
#define WEFT_ENGINES_CUDA_FORMULA_H

#include "engines/cuda/core/kernel.h"
#include "graph/ops/pointwise.h"

/* The compute type of a node: "float", "double" or "i64". Float arithmetic becomes double if an operand is DOUBLE. */
const char *formula_type(const struct pointwise_op *op);

/* Succeeds if kernels can evaluate the node; otherwise NOT_SUPPORTED with a message. */
weftStatus_t formula_accepts(const struct descriptor *op);

/* Approximate number of instructions per element. */
double formula_instructions(const struct pointwise_op *op);

/* Emits "const float v7 = ...;" for a node whose inputs are in scope under their names, converted. If other nodes read
   the output and its type is narrower, it is rounded to that type, so that they see the stored value. GEN_INDEX is not
   supported here, because only its family knows the coordinates. */
void formula_emit(struct text *code, const struct graph *graph, const struct node *node);
/* The same, but the result is always rounded. */
void formula_emit_rounded(struct text *code, const struct graph *graph, const struct node *node);
/* The same, but the result is never rounded. */
void formula_emit_exact(struct text *code, const struct graph *graph, const struct node *node);

/* Emits "g3 += ...;" for the operands that `takes` marks. g<out> is the gradient of the node, whose operands and result
   are in scope. Its mode must have a derivative. */
void formula_emit_gradient(struct text *code, const struct graph *graph, const struct node *node, const bool *takes);

#endif
