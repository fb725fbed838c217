/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the index operands in memory: lengths, offsets, pages (op.h, check_indices). On the CPU every execution
   checks them. GPU kernels clamp their accesses to the tensors, so executions on a GPU only check with WEFT_CHECK=1,
   because the indices have to be copied to the host first. */
#ifndef WEFT_PLAN_INDEX_CHECK_H
#define WEFT_PLAN_INDEX_CHECK_H

#include "plan/plan.h"

/* Lists the nodes of a plan that have index operands to check. */
weftStatus_t index_check_list(struct plan *plan);

/* Runs the checks that precede a step, or the whole plan (INDEX_CHECK_START). values: addresses of all values. */
enum { INDEX_CHECK_START = -1 };
weftStatus_t index_check_run(const struct plan *plan, void *const *values, int step, weftStream_t stream);

#endif
