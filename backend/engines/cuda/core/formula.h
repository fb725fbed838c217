/* SPDX-License-Identifier: Apache-2.0 */
/* Printing the pointwise nodes of a region as CUDA statements. Values are named v<index in the graph>. */
#ifndef WEFT_ENGINES_CUDA_FORMULA_H
#define WEFT_ENGINES_CUDA_FORMULA_H

#include "engines/cuda/core/kernel.h"
#include "graph/ops/pointwise.h"

/* The arithmetic type of a node: "float", "double" or "i64". Where an operand is DOUBLE, float arithmetic is double. */
const char *formula_type(const struct pointwise_op *op);

/* Whether kernels can evaluate the node; NOT_SUPPORTED and a sentence if not. */
weftStatus_t formula_accepts(const struct descriptor *op);

/* Instructions of a chip that a node takes, roughly. */
double formula_instructions(const struct pointwise_op *op);

/* "const float v7 = ...;" for a node whose inputs are in scope under their names, converted and, when nodes read the
   output and it is narrower, rounded to its type: they see what memory would hold. GEN_INDEX is not printed here: it is
   its family's to know coordinates. */
void formula_emit(struct text *code, const struct graph *graph, const struct node *node);
/* The same, rounded whoever reads it. */
void formula_emit_rounded(struct text *code, const struct graph *graph, const struct node *node);
/* The same, never rounded. */
void formula_emit_exact(struct text *code, const struct graph *graph, const struct node *node);

/* "g3 += ...;" for the operands that `takes` marks, of a node of which g<out> is the gradient and whose operands and
   result are in scope. Its mode has a derivative. */
void formula_emit_gradient(struct text *code, const struct graph *graph, const struct node *node, const bool *takes);

#endif
