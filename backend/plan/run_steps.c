/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of an execution, which run directly or are captured as a CUDA graph. */
#include "plan/index_check.h"

/* Steps receive the addresses of values and one scratch area that they share. */
weftStatus_t plan_run_steps(const struct plan *plan, void *const *values, void *workspace, weftStream_t stream,
                            const struct step_watch *watch) {
    const struct draft *draft = &plan->draft;
    void *scratch = (char *)workspace + draft->scratch_offset;
    for (int s = 0; s < draft->cover.count; s++) {
        TRY(index_check_run(plan, values, s, stream));
        TRY(step_run(draft->engine, &draft->steps[s], values, scratch, stream));
        if (watch)
            TRY(watch->passed(watch->context, s));
    }
    return WEFT_STATUS_SUCCESS;
}
