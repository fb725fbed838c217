/* SPDX-License-Identifier: Apache-2.0 */
/* A plan relies on the usual numbers of some by-value scalars (graph/patterns/assumptions.h). An execution with other
   numbers runs a second plan, which assumes nothing. It is built at the first such execution. */
#ifndef WEFT_PLAN_GENERAL_PLAN_H
#define WEFT_PLAN_GENERAL_PLAN_H

#include "plan/plan.h"

/* Lists the scalars that the plan's steps rely on. */
weftStatus_t general_plan_list(struct plan *plan);

/* True if a scalar has another number than the plan assumes. */
bool general_plan_is_needed(const struct plan *plan, void *const *values);

/* The plan without assumptions; the caller releases it. */
weftStatus_t general_plan_get(struct plan **general, struct plan *plan);

/* Memory for an execution of the general plan, whose size the user's plan does not report. Fails while the stream is
   captured. */
weftStatus_t general_plan_allocate(void **workspace, const struct plan *general, weftStream_t stream);
void general_plan_deallocate(void *workspace, const struct plan *general, weftStream_t stream);

void general_plan_free(struct plan *plan);

#endif
