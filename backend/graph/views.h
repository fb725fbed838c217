/* SPDX-License-Identifier: Apache-2.0 */
/* Determines which values of a graph are views of others' memory: slices, transposes and reshapes, and inputs of a
   concatenation that are computed in place. The graph that is planned differs from the user's only in the layouts of
   these tensors: operations read and write them like any strided tensor. The exception is a concatenation whose inputs
   cannot be computed in place, such as inputs of the graph: if the caller allows it, readers of the result read the
   inputs instead. */
#ifndef WEFT_GRAPH_VIEWS_H
#define WEFT_GRAPH_VIEWS_H

#include "graph/graph.h"
#include "graph/ops/concat.h"

struct views {
    const struct graph *graph; /* with the layouts of views; the user's graph if nothing is a view */
    int count;                 /* number of nodes that need no kernel */
    int gathered;              /* number of these that are concatenations whose inputs are read in place of the
                                  result */
    bool *is_view;             /* per node: the result is a view of the input, or is gathered */
    int *memory;               /* per value: the value whose memory it uses; itself if it has memory of its own */
    int64_t *offset;           /* per value: offset in bytes in that memory */
};

/* Choices of the caller, by value; NULL means false for all. */
struct view_choices {
    const bool *is_apart;   /* no other value uses its memory, and it is not gathered */
    const bool *may_gather; /* all of its readers can read the inputs of the concatenation instead */
};

/* Finds the views of a graph. Allocates in the arena, and refers to the graph's own tensors and operations. */
weftStatus_t views_find(struct views *views, const struct graph *graph, const struct view_choices *choices,
                        struct arena *arena);

/* The concatenation whose inputs are a gathered value. NULL if the value is not gathered, or if the graph is a part of
   one in which it is. */
const struct concat_op *views_gathered(const struct graph *graph, int value);

/* Like views_find, for a graph in which nothing is a view. */
weftStatus_t views_none(struct views *views, const struct graph *graph, struct arena *arena);

#endif
