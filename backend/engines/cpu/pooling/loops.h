/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling kernels for one tap: vectorized loops over lanes. x advances by `stride` elements per lane. */
#ifndef WEFT_ENGINES_CPU_POOLING_LOOPS_H
#define WEFT_ENGINES_CPU_POOLING_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

enum { POOLING_RUN = 64 }; /* terms that are accumulated in float; longer sums continue in double */

/* The larger of two numbers: NaN wins or loses against everything. */
void tap_maximum(float *best, const float *x, int64_t stride, int64_t count, bool nan_wins);
/* Like tap_maximum, and also records the number of the tap that is the maximum so far (-1: none). The first of equal
   numbers wins. */
void tap_maximum_where(float *best, int32_t *where, const float *x, int64_t stride, int64_t count, int32_t number,
                       bool nan_wins);
/* sum += weight * x */
void tap_add(float *sum, const float *x, int64_t stride, int64_t count, float weight);
/* sum[i * sum_stride] += weight * x[i * stride] */
void tap_gather(float *sum, int64_t sum_stride, const float *x, int64_t stride, int64_t count, float weight);
/* y = before + weight * x; before: y itself, or NULL for 0. */
void tap_blend(float *y, const float *before, const float *x, int64_t count, float weight);
/* y[i] = row[sources[i * taps]] * weights[i * taps] + ..., with 1 or 2 taps, skipping those of weight 0. weights NULL:
   all 1. */
void tap_pick(float *y, const float *row, const int64_t *sources, const float *weights, int taps, int64_t count);
void tap_fill(float *x, int64_t count, float value);
double tap_total(const float *x, int64_t count); /* accurate and without overflow for any count */
bool tap_is_finite(const float *x, int64_t count);
void tap_scale(float *x, const float *factors, int64_t count);

#endif
