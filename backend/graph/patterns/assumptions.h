/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that programs pass by value are unknown until a plan runs, but some of them decide which kernels serve a
   graph: the -inf of a mask makes tiles of attention unnecessary. A plan assumes the usual numbers, lists those that it
   relies on, and compares them with the actual ones at each execution. */
#ifndef WEFT_GRAPH_PATTERNS_ASSUMPTIONS_H
#define WEFT_GRAPH_PATTERNS_ASSUMPTIONS_H

#include "graph/graph.h"

/* A copy of the graph in which by-value scalars with a usual number are assumed to have it (tensor.h: is_assumed); the
   graph itself if there are none. Values keep their indices. Attention whose sub-graph is, with these numbers, only a
   mask along the diagonal gets bounds instead. */
weftStatus_t graph_assume(const struct graph **result, const struct graph *graph, struct arena *arena);

/* True if a by-value scalar in host memory has the number that is assumed, up to the rounding to its type. */
bool assumption_holds(const struct tensor *tensor, const void *scalar);

#endif
