/* SPDX-License-Identifier: Apache-2.0 */
/* Sweeps over lists of taps with contiguous channels, at one position or at several with a constant step: computes
   their maxima or weighted sums, for a block of channels in registers at a time. This file must not know pooling
   windows. */
#ifndef WEFT_ENGINES_CPU_POOLING_SWEEP_H
#define WEFT_ENGINES_CPU_POOLING_SWEEP_H

#include "weft/weft_enums.h"

#include <stdbool.h>
#include <stdint.h>

enum { SWEEP_TAPS = 64 };

/* Steps lead from one position to the next. */
struct sweep {
    weftDataType_t type, pick_type; /* FLOAT, BFLOAT16 or HALF; INT8 or INT32 */
    int64_t channels, positions;
    int count;
    const char *rows[SWEEP_TAPS]; /* channels of each tap, at the first position */
    /* for a sum with has_picks: only channels whose pick equals the tap's number contribute */
    const char *picks[SWEEP_TAPS];
    int32_t numbers[SWEEP_TAPS];
    float weights[SWEEP_TAPS];           /* for a sum */
    int64_t row_step, pick_step;         /* in bytes */
    int64_t result_step, where_step;     /* in elements */
    float *results, factor;              /* results are multiplied by factor at the end */
    int32_t *where;                      /* for a maximum: the number of the first tap that attains it, or NULL */
    bool continues, has_picks, nan_wins; /* continues: starts from the contents of results and where */
};

/* One compiled version of both. count is at least 1 unless continues; sums accept 0. */
struct sweep_kernels {
    const char *name;
    void (*maximum)(const struct sweep *sweep);
    void (*sum)(const struct sweep *sweep);
};

/* Copies results to memory past the caches; other threads see them afterwards. */
void sweep_flush(float *to, const float *from, int64_t count);

/* The versions that this CPU supports, best first; NULL if rank is past the last one. */
const struct sweep_kernels *sweep_kernels(int rank);

#endif
