/* SPDX-License-Identifier: Apache-2.0 */
/* A graph planned on an engine: its steps, and the layout of the workspace. Nothing is compiled yet; a plan is a draft
   with its kernels loaded. */
#ifndef WEFT_PLAN_STEPS_H
#define WEFT_PLAN_STEPS_H

#include "plan/partition/partition.h"

/* A CPU cache line, in bytes; vector loads and tensor maps need 16. */
enum { WORKSPACE_ALIGNMENT = 64 };

struct draft {
    const struct graph *graph; /* uses the layouts that the cover's views assign to tensors */
    const struct engine *engine;
    struct device device;
    struct cover cover;
    struct step *steps;
    int *first_writing;     /* per value: first step that writes its memory, also through a view, or -1 */
    int *last_reading;      /* per value: last step that reads its memory, or -1 */
    bool *is_viewed;        /* per value: a step uses its memory through a view */
    int64_t *value_offset;  /* per value: offset in the workspace, or -1 */
    int64_t scratch_offset; /* start of the scratch area that all steps share */
    int64_t workspace_bytes, least_workspace_bytes; /* the lower bound for these steps in this order */
    double seconds;                                 /* predicted */
    int64_t *step_bytes;                            /* memory traffic per step */
    int64_t moved_bytes;                            /* sum over the steps */
};

/* Respects the limit of knob WORKSPACE, with slower families if necessary. cover: result of partition() without a
   limit, which must outlive the draft; NULL: computed here. */
weftStatus_t draft_make(struct draft *draft, const struct graph *graph, const struct engine *engine,
                        const struct device *device, const struct knob_choices *knobs, const struct cover *cover,
                        struct arena *arena);

#endif
