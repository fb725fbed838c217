/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm in training written as its parts: sums of each channel, what they make, and y = s x + t. So the product
   that makes x may take the sums as it stores it, and the one that reads y may make it on the way, as nothing can of
   one operation that reads all of x before it writes. Its gradient likewise: the sums of dy and of dy xhat, what they
   make, and dx = a dy + b x + c. In use, where statistics are given, it is pointwise operations behind the product. */
#ifndef WEFT_GRAPH_BATCH_NORMS_H
#define WEFT_GRAPH_BATCH_NORMS_H

#include "graph/graph.h"

/* Whether a node is such a norm, of what a product makes, or its gradient, or a norm in use, of what a product and
   pointwise operations make. In training x must be stored in 16 bits: the variance is a difference of squares, which
   tiles sum in floats and which are combined in doubles; that takes less from it than rounding x has. */
bool batch_norm_has_parts(const struct graph *graph, int node);

/* The graph with the parts in the place of each node that is_apart names. What it names of the old one is shared;
   values keep their numbers, and new ones come behind them. */
weftStatus_t batch_norms_part(const struct graph **made, const struct graph *graph, const bool *is_apart,
                              struct arena *arena);

/* The graph with one operation in the place of parts that make up a norm or its gradient; itself where there are none.
   Values keep their tensors. (batch_norms_find.c) */
weftStatus_t batch_norms_find(const struct graph **made, const struct graph *graph, struct arena *arena);

#endif
