/* SPDX-License-Identifier: Apache-2.0 */
/* Which values of a graph are other ways of looking at memory: slices, transposes and reshapes of what is there, and
   parts of a concatenation that are made in their place. The graph as it is planned differs from the user's in the
   layouts of such tensors alone: operations read and write them as they do any strided tensor, and know nothing of
   it. But for concatenations that cannot be made in place, as the inputs of a graph cannot: of these who reads the
   result may read the parts, where the caller says that it can. */
#ifndef WEFT_GRAPH_VIEWS_H
#define WEFT_GRAPH_VIEWS_H

#include "graph/graph.h"
#include "graph/ops/concat.h"

struct views {
    const struct graph *graph; /* with the layouts that views give tensors; the user's where nothing is a view */
    int count;                 /* nodes that run nothing */
    int gathered;              /* of these, concatenations whose parts are read in the place of their result */
    bool *is_view;             /* of each node: its result lies where its input does, or is gathered */
    int *memory;               /* of each value: the value whose memory it lies in; itself: it has memory of its own */
    int64_t *offset;           /* of each value: bytes from there to its first element */
};

/* What is left open: both by value, NULL: none is so. */
struct view_choices {
    const bool *is_apart;   /* nothing else lies in its memory, and it is not gathered */
    const bool *may_gather; /* all that read it can read the parts of it */
};

/* Finds the views of a graph. What is made lives with the arena and names the graph's own tensors and operations. */
weftStatus_t views_find(struct views *views, const struct graph *graph, const struct view_choices *choices,
                        struct arena *arena);

/* The parts of a value that is gathered, as the one operation that makes it lists them; NULL: it is not, or the graph
   is a part of one that has them. */
const struct concat_op *views_gathered(const struct graph *graph, int value);

/* The same where nothing is a view. */
weftStatus_t views_none(struct views *views, const struct graph *graph, struct arena *arena);

#endif
