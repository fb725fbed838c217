/* SPDX-License-Identifier: Apache-2.0 */
/* Covering a graph with regions, each served by one kernel family of an engine. */
#ifndef WEFT_PLAN_PARTITION_PARTITION_H
#define WEFT_PLAN_PARTITION_PARTITION_H

#include "engines/engine.h"
#include "graph/views.h"

/* Number of families that knob WITHOUT_FAMILIES_EXT can name, counted from the engine's first. */
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
    int used;        /* relaxations */
    int rival_count; /* families that accept the region but would be slower */
    struct refusal *rivals;
    int refusal_count; /* families that do not serve it */
    struct refusal *refusals;
};

/* The parts of a graph with views, in execution order. Views and dead nodes belong to no part. */
struct cover {
    struct views views;
    int count;
    struct part *parts;
    int *part_of_node; /* -1 if the node executes nothing */
};

/* Covers a graph with parts that respect the scratch limit, built with these knobs, by families that knob
   WITHOUT_FAMILIES_EXT does not exclude. Fails with NOT_SUPPORTED and the families' reasons if no family serves a node,
   and if the device is not of the engine's kind. */
weftStatus_t partition(struct cover *cover, const struct graph *graph, const struct engine *engine,
                       const struct device *device, const struct knob_choices *knobs, int64_t scratch_limit,
                       struct arena *arena);

#endif
