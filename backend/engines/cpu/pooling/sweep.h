/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of taps whose channels lie side by side, at one position or at several with a step between them: their maxima,
   or weighted sums, a block of channels in registers at a time. It must not know windows. */
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
    const char *rows[SWEEP_TAPS];  /* each tap's channels, at the first position */
    const char *picks[SWEEP_TAPS]; /* of a sum, where has_picks: only channels whose pick is the tap's number count */
    int32_t numbers[SWEEP_TAPS];
    float weights[SWEEP_TAPS];         /* of a sum */
    int64_t row_step, pick_step;       /* bytes */
    int64_t result_step, where_step;   /* elements */
    float *results, factor;            /* multiplied with factor in the end */
    int32_t *where;                    /* of a maximum: the number of the first tap that is it; NULL: nobody asks */
    bool goes_on, has_picks, nan_wins; /* goes_on: from what results and where hold */
};

/* One compiled form of both; count is at least 1 unless it goes on, sums take 0. */
struct sweep_kernels {
    const char *name;
    void (*maximum)(const struct sweep *sweep);
    void (*sum)(const struct sweep *sweep);
};

/* Copies results to memory past the caches; other threads see them afterwards. */
void sweep_flush(float *to, const float *from, int64_t count);

/* Those that this CPU runs, best first; NULL when rank is past the last one. */
const struct sweep_kernels *sweep_kernels(int rank);

#endif
