/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the numbers in memory by which operations find their operands: lengths, offsets, pages (op.h,
   check_indices). On the CPU every execution checks them. Kernels of a GPU keep their accesses inside the tensors by
   themselves; there executions check only with WEFT_CHECK=1, because the numbers must be copied to the host first. */
#ifndef WEFT_PLAN_INDEX_CHECK_H
#define WEFT_PLAN_INDEX_CHECK_H

#include "plan/plan.h"

/* Lists the nodes of a plan that have something to check. */
weftStatus_t index_check_list(struct plan *plan);

/* Runs the checks that come before a step; INDEX_CHECK_START: before all steps. values: memory of all values. */
enum { INDEX_CHECK_START = -1 };
weftStatus_t index_check_run(const struct plan *plan, void *const *values, int step, weftStream_t stream);

#endif
