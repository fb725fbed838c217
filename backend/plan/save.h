/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading plans. A saved plan contains choices (graph, engine, knobs) and no pointers; it contains machine
   code only on request, which must be repeated when it is loaded. Loading creates the same descriptors with the same
   checks as a user's calls. */
#ifndef WEFT_PLAN_SAVE_H
#define WEFT_PLAN_SAVE_H

#include "plan/plan.h"

/* Writes the saved plan, the value of attribute json. */
void plan_write_blob(const struct descriptor *plan, struct text *bytes);

/* Creates the engine configuration from attribute json, for a plan whose handle and device properties are set, and
   lists the code in it. */
weftStatus_t plan_load(struct plan *plan);

/* Changes to a graph when it is rebuilt. */
struct changes {
    /* Tensors that get other dims and strides; the shapes of virtual tensors are inferred again. NULL: none. */
    const struct variant_pack *overrides;
    bool element_aligned; /* addresses of tensors are only aligned to their elements */
    bool assumes_nothing; /* by-value scalars may have any number */
};

/* Rebuilds a graph with changes, for the same handle; the caller owns it. */
weftStatus_t graph_change(struct graph **changed, const struct graph *graph, const struct changes *changes);

#endif
