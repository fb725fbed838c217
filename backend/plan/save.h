/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as bytes. A saved plan holds choices (graph, engine, knobs), never pointers, and machine code only where the
   user asks for it, then and when it is loaded; loading one makes the same descriptors again, through the same checks
   as a user's. */
#ifndef WEFT_PLAN_SAVE_H
#define WEFT_PLAN_SAVE_H

#include "base/bytes.h"
#include "plan/plan.h"

/* The plan's bytes, which its json row is read as. */
void plan_write_blob(const struct descriptor *plan, struct text *bytes);

/* Makes the engine configuration from the json row, for a plan whose handle and device properties are set, and lists
   the code that it carries. */
weftStatus_t plan_load(struct plan *plan);

/* What a graph is to have otherwise when it is made again. */
struct changes {
    const struct variant_pack
        *overrides;       /* names tensors that get its dims and strides, and virtual ones are left to be
                                             inferred anew; NULL: none */
    bool element_aligned; /* addresses of tensors are multiples of their elements alone */
};

/* The graph as bytes, with changes. */
weftStatus_t graph_save(struct byte_writer *writer, const struct graph *graph, const struct changes *changes);

/* A finalized graph, owned by the caller. */
weftStatus_t graph_load(struct graph **graph, struct byte_reader *reader);

/* The graph made again with changes, for the same handle; owned by the caller. */
weftStatus_t graph_change(struct graph **changed, const struct graph *graph, const struct changes *changes);

#endif
