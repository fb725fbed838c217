/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the memory that an execution is given lies so that nothing is written that others still read or also
   write. */
#ifndef WEFT_PLAN_OVERLAP_H
#define WEFT_PLAN_OVERLAP_H

#include "plan/plan.h"

/* A slot's memory. */
struct span {
    uintptr_t begin, end;
    int slot;
};

/* Asks the families where outputs may lie on inputs. */
weftStatus_t overlap_list(struct plan *plan);

/* values: with the pointers of all slots. spans: room for one per slot, so that the spans are sorted; NULL: each output
     is
   held against every slot, which is faster for a few. */
weftStatus_t overlap_check(const struct plan *plan, void *const *values, struct span *spans);

#endif
