/* SPDX-License-Identifier: Apache-2.0 */
/* Which values of a graph are other ways of looking at memory: slices, transposes and reshapes of what is there, and
   parts of a concatenation that are made in their place. The graph as it is planned differs from the user's in the
   layouts of such tensors alone: operations read and write them as they do any strided tensor, and know nothing of
   it. */
#ifndef WEFT_GRAPH_VIEWS_H
#define WEFT_GRAPH_VIEWS_H

#include "graph/graph.h"

struct views {
    const struct graph *graph; /* with the layouts that views give tensors; the user's where nothing is a view */
    int count;                 /* nodes that run nothing */
    bool *is_view;             /* of each node: its result lies where its input does */
    int *memory;               /* of each value: the value whose memory it lies in; itself: it has memory of its own */
    int64_t *offset;           /* of each value: bytes from there to its first element */
};

/* Finds the views of a graph, but none in the memory of a value that is_apart names (NULL: none is). What is made lives
   with the arena and names the graph's own tensors and operations. */
weftStatus_t views_find(struct views *views, const struct graph *graph, const bool *is_apart, struct arena *arena);

/* The same where nothing is a view. */
weftStatus_t views_none(struct views *views, const struct graph *graph, struct arena *arena);

#endif
