/* SPDX-License-Identifier: Apache-2.0 */
/* Covering a graph with regions, each served by one kernel family of an engine. */
#ifndef WEFT_PLAN_PARTITION_H
#define WEFT_PLAN_PARTITION_H

#include "engines/engine.h"
#include "graph/views.h"

/* Families, from the engine's first one on, that the knob of that name has bits for. */
enum { WITHOUT_FAMILIES_BITS = 48 };

/* Why a family does not serve a region. */
struct refusal {
    const char *family;
    const char *reason;
};

struct part {
    const struct family *family;
    struct region region;
    double seconds;
    int rival_count; /* families that would take longer, */
    struct refusal *rivals;
    int refusal_count; /* and all that do not serve it */
    struct refusal *refusals;
};

/* Parts of the graph that views make, in an order in which they can run. Views, and nodes whose results nobody needs,
   belong to no part. */
struct cover {
    struct views views;
    int count;
    struct part *parts;
    int *part_of_node; /* -1: nothing runs: not needed, or a view */
};

/* Parts that each take no more scratch than the limit, built with these knobs, by families that knob
   WITHOUT_FAMILIES_EXT does not name. Fails with NOT_SUPPORTED and the
   families' reasons when a node is served by none, and where the device is not of the engine's kind. */
weftStatus_t partition(struct cover *cover, const struct graph *graph, const struct engine *engine,
                       const struct device *device, const struct knob_choices *knobs, int64_t scratch_limit,
                       struct arena *arena);

#endif
