/* SPDX-License-Identifier: Apache-2.0 */
/* Splits batch norm in training into its parts: per-channel sums, the values computed from them, and y = s x + t. Then
   the product that computes x can accumulate the sums in its epilogue, and the product that reads y can compute it in
   its prologue. A single operation cannot be fused like that, because it reads all of x before it writes. The gradient
   is split likewise: the sums of dy and of dy xhat, the values computed from them, and dx = a dy + b x + c. For
   inference, where statistics are given, the parts are pointwise operations after the product. */
#ifndef WEFT_GRAPH_BATCH_NORMS_H
#define WEFT_GRAPH_BATCH_NORMS_H

#include "graph/graph.h"

/* True if a node is a batch norm in training, or its gradient, whose x a product computes, or one in inference whose x
   is computed by a product and pointwise operations. In training, x must be stored in 16 bits: the variance is a
   difference of squares, which tiles sum as floats and which are combined as doubles; this loses less precision than
   the rounding of x. */
bool batch_norm_has_parts(const struct graph *graph, int node);

/* The graph with each node that is_apart marks replaced by its parts. The new graph shares descriptors with the old
   one. Values keep their indices, and new ones follow them. */
weftStatus_t batch_norms_part(const struct graph **result, const struct graph *graph, const bool *is_apart,
                              struct arena *arena);

/* The graph with parts of a norm or its gradient replaced by one operation; the graph itself if it has none. Values
   keep their tensors. (batch_norms_find.c) */
weftStatus_t batch_norms_find(const struct graph **result, const struct graph *graph, struct arena *arena);

#endif
