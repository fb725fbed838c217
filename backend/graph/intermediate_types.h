/* SPDX-License-Identifier: Apache-2.0 */
/* How wide intermediate tensors are whose type the user left unset. They are exact within a kernel; where they go
   through memory they are as wide as what they are made of, so that no product and no copy is widened by them. */
#ifndef WEFT_GRAPH_INTERMEDIATE_TYPES_H
#define WEFT_GRAPH_INTERMEDIATE_TYPES_H

#include "graph/graph.h"

/* The graph with such tensors, marked as free; itself where there are none. What is made lives with the arena. */
weftStatus_t infer_intermediate_types(const struct graph **made, const struct graph *graph, struct arena *arena);

#endif
