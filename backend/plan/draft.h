/* SPDX-License-Identifier: Apache-2.0 */
/* A graph on an engine, worked out: its steps, and where in the workspace its intermediate tensors lie. Drafting
   compiles nothing; a plan is a draft whose steps are loaded. */
#ifndef WEFT_PLAN_DRAFT_H
#define WEFT_PLAN_DRAFT_H

#include "plan/partition.h"

/* Bytes: a cache line of CPUs; vectors and tensor maps want 16. */
enum { WORKSPACE_ALIGNMENT = 64 };

struct draft {
    const struct graph *graph; /* with the layouts that the cover's views give tensors */
    const struct engine *engine;
    struct device device;
    struct cover cover;
    struct step *steps;     /* one per part */
    int *first_writing;     /* of each value: the first step that writes its memory, under whatever name; -1: none */
    int *last_reading;      /* and the last that reads it */
    bool *is_viewed;        /* of each value: steps use its memory under another name */
    int64_t *value_offset;  /* in the workspace, of each value; -1: not there */
    int64_t scratch_offset; /* of the steps' scratch, which they use in turn */
    int64_t workspace_bytes, least_workspace_bytes; /* and what no workspace for these steps could be below */
    double seconds;                                 /* predicted */
    int64_t *step_bytes;                            /* that each step reads and writes in memory */
    int64_t moved_bytes;                            /* all of these */
};

/* Keeps to the workspace that knob WORKSPACE allows, by slower families where it must. cover: what partition makes of
   the same without a limit, which must outlive the draft; NULL: it is made here. */
weftStatus_t draft_make(struct draft *draft, const struct graph *graph, const struct engine *engine,
                        const struct device *device, const struct knob_choices *knobs, const struct cover *cover,
                        struct arena *arena);

#endif
