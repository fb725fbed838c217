/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the memory of an execution: an output must not overlap memory that other steps still read or write. */
#ifndef WEFT_PLAN_ALIAS_CHECK_H
#define WEFT_PLAN_ALIAS_CHECK_H

#include "plan/plan.h"

/* The memory of a slot. */
struct span {
    uintptr_t begin, end;
    int slot;
};

/* Asks the families where outputs may overlap inputs, and lists the answers in the plan. */
weftStatus_t alias_check_list(struct plan *plan);

/* values: the addresses of all slots. spans: room for one span per slot, to sort them; NULL: compare each output with
   every slot, which is faster for a few slots. */
weftStatus_t alias_check_run(const struct plan *plan, void *const *values, struct span *spans);

#endif
