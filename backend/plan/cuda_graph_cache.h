/* SPDX-License-Identifier: Apache-2.0 */
/* Execution of a plan as one CUDA graph. */
#ifndef WEFT_PLAN_CUDA_GRAPH_CACHE_H
#define WEFT_PLAN_CUDA_GRAPH_CACHE_H

#include "plan/plan.h"

/* Runs the steps of a plan as a CUDA graph, which is cached for the next run. Leaves *is_done false and runs nothing if
   the stream is being captured, or if CACHED_GRAPHS_MAX threads are running the plan. */
weftStatus_t cuda_graph_cache_run(bool *is_done, struct plan *plan, void *const *values, void *workspace,
                                  weftStream_t stream);
/* Writes the plan's kernels into a graph of the caller: as its only node, which replaces that of an earlier call if
   is_update. */
weftStatus_t cuda_graph_write(const struct plan *plan, void *const *values, void *workspace, void *target,
                              bool is_update);

void cuda_graph_cache_free(struct plan *plan);

#endif
