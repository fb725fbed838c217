/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the types of intermediate tensors whose type the user left unset. Within a kernel they are exact; if they are
   stored in memory they are as wide as the operands that they are computed from, so that products and copies do not get
   wider operands. */
#ifndef WEFT_GRAPH_INTERMEDIATE_TYPES_H
#define WEFT_GRAPH_INTERMEDIATE_TYPES_H

#include "graph/graph.h"

/* The graph in which such tensors have types and are marked as free; the graph itself if it has none. Allocates in the
   arena. */
weftStatus_t infer_intermediate_types(const struct graph **result, const struct graph *graph, struct arena *arena);

#endif
