/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that run as one CUDA graph. */
#ifndef WEFT_PLAN_REPLAY_H
#define WEFT_PLAN_REPLAY_H

#include "plan/plan.h"

/* Runs a plan's steps on the memory of its values as a graph that is kept for the next run. Where it cannot, *is_done
   is false and nothing ran: the stream is being captured, or as many threads as there is room for graphs run the plan
   now. */
weftStatus_t replay_run(bool *is_done, struct plan *plan, void *const *values, void *workspace, weftStream_t stream);
void replay_free(struct plan *plan);

#endif
