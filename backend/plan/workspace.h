/* SPDX-License-Identifier: Apache-2.0 */
/* Workspace layout of a draft. */
#ifndef WEFT_PLAN_WORKSPACE_H
#define WEFT_PLAN_WORKSPACE_H

#include "plan/steps.h"

/* Assigns workspace offsets to the intermediates of built steps, in `arena`, and computes the workspace sizes. */
weftStatus_t workspace_lay_out(struct draft *draft, struct arena *arena);

#endif
