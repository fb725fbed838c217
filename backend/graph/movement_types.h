/* SPDX-License-Identifier: Apache-2.0 */
/* Storage types of intermediates next to operations that only move elements: such a result needs no wider type than its
   input, and what is only moved to an output needs no wider type than the output. With equal types, strides can express
   the movement, so that no kernel converts. */
#ifndef WEFT_GRAPH_MOVEMENT_TYPES_H
#define WEFT_GRAPH_MOVEMENT_TYPES_H

#include "graph/graph.h"

/* The graph with these types; the graph itself if none changes. All numbers stay the same. */
weftStatus_t infer_movement_types(const struct graph **result, const struct graph *graph, struct arena *arena);

#endif
