/* SPDX-License-Identifier: Apache-2.0 */
/* Products whose results are reshaped and transposed, such as a linear layer whose columns become heads:

       transpose(reshape(relu(x w + b), [B, T, H, D]), [0, 2, 1, 3])

   Strides cannot express the reshape in the memory of the output, because a row of the product has no single stride
   there. The rewritten graph has a batched product with a dimension for each part of a row or column:

       [B, H, T, D] = [B, 1, T, K] x [1, H, K, D]

   whose operands are views, and the operations after it have these dimensions, too. */
#ifndef WEFT_GRAPH_REGROUP_H
#define WEFT_GRAPH_REGROUP_H

#include "graph/graph.h"

/* The graph with each such product rewritten, unless the operations after it are in its step or in none: step_of is the
   step of each node, or negative. The graph itself if there is none. */
weftStatus_t regroup_products(const struct graph **result, const struct graph *graph, const int *step_of,
                              struct arena *arena);

#endif
