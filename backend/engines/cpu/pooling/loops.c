/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/pooling/loops.h"

#include "base/number.h"
#include "engines/cpu/core/vector.h"

#include <math.h>

/* GCC would process two taps in one loop and then fail to vectorize it (2.1 ns instead of 0.1 per tap and lane). */
#if defined __GNUC__ && !defined __clang__
#pragma GCC optimize("no-loop-unroll-and-jam")
#endif

/* True if a value replaces the current maximum. In the first form, NaN wins against everything; in the second, it
   loses. */
#define BEATS_OR_NAN(value, best) (((value) > (best)) | ((value) != (value)))
#define BEATS_OR_NO_NAN(value, best) (!((value) <= (best)) & ((value) == (value)))

/* Makes strides of 1 and 2, which nearly all windows have, constants. */
#define BY_STRIDE(BODY)                                                                                                \
    if (stride == 1) {                                                                                                 \
        BODY(1);                                                                                                       \
    } else if (stride == 2) {                                                                                          \
        BODY(2);                                                                                                       \
    } else {                                                                                                           \
        BODY(stride);                                                                                                  \
    }

#define LOOP_OR_NAN(step)                                                                                              \
    for (int64_t i = 0; i < count; i++)                                                                                \
    best[i] = BEATS_OR_NAN(x[i * step], best[i]) ? x[i * step] : best[i]
#define LOOP_OR_NO_NAN(step)                                                                                           \
    for (int64_t i = 0; i < count; i++)                                                                                \
    best[i] = BEATS_OR_NO_NAN(x[i * step], best[i]) ? x[i * step] : best[i]

WIDE void tap_maximum(float *restrict best, const float *restrict x, int64_t stride, int64_t count, bool nan_wins) {
    if (nan_wins) {
        BY_STRIDE(LOOP_OR_NAN)
    } else {
        BY_STRIDE(LOOP_OR_NO_NAN)
    }
}

#define LOOP_WHERE(step)                                                                                               \
    for (int64_t i = 0; i < count; i++) {                                                                              \
        float value = x[i * step], old = best[i];                                                                      \
        int wins = nan_wins ? BEATS_OR_NAN(value, old) : BEATS_OR_NO_NAN(value, old);                                  \
        wins |= where[i] < 0;                                                                                          \
        best[i] = wins ? value : old;                                                                                  \
        where[i] = wins ? number : where[i];                                                                           \
    }

WIDE void tap_maximum_where(float *restrict best, int32_t *restrict where, const float *restrict x, int64_t stride,
                            int64_t count, int32_t number, bool nan_wins){BY_STRIDE(LOOP_WHERE)}

#define LOOP_ADD(step)                                                                                                 \
    for (int64_t i = 0; i < count; i++)                                                                                \
    sum[i] += weight * x[i * step]

WIDE void tap_add(float *restrict sum, const float *restrict x, int64_t stride, int64_t count,
                  float weight){BY_STRIDE(LOOP_ADD)}

WIDE void tap_gather(float *restrict sum, int64_t sum_stride, const float *restrict x, int64_t stride, int64_t count,
                     float weight) {
    if (sum_stride == 1) {
        BY_STRIDE(LOOP_ADD)
    } else {
        for (int64_t i = 0; i < count; i++)
            sum[i * sum_stride] += weight * x[i * stride];
    }
}

WIDE void tap_scale(float *restrict x, const float *restrict factors, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        x[i] *= factors[i];
}

WIDE void tap_blend(float *restrict y, const float *before, const float *restrict x, int64_t count, float weight) {
    for (int64_t i = 0; i < count && before; i++)
        y[i] += weight * x[i];
    for (int64_t i = 0; i < count && !before; i++)
        y[i] = weight * x[i];
}

WIDE void tap_pick(float *restrict y, const float *restrict row, const int64_t *restrict sources,
                   const float *restrict weights, int taps, int64_t count) {
    for (int64_t i = 0; i < count && !weights; i++)
        y[i] = row[sources[i]];
    for (int64_t i = 0; i < count && weights && taps == 2; i++) {
        float one = weights[2 * i] != 0 ? row[sources[2 * i]] * weights[2 * i] : 0;
        float two = weights[2 * i + 1] != 0 ? row[sources[2 * i + 1]] * weights[2 * i + 1] : 0;
        y[i] = one + two;
    }
}

WIDE bool tap_is_finite(const float *restrict x, int64_t count) {
    int other = 0;
    for (int64_t i = 0; i < count; i++)
        other |= !(x[i] - x[i] == 0);
    return !other;
}

WIDE void tap_fill(float *restrict x, int64_t count, float value) {
    for (int64_t i = 0; i < count; i++)
        x[i] = value;
}

typedef float floats_16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float floats_8 __attribute__((vector_size(32)));
typedef float floats_4 __attribute__((vector_size(16)));

static inline float total_of_block(const float *restrict x, int64_t count) {
    floats_16 sums = {0};
    float rest = 0;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        sums += *(const floats_16 *)(x + i);
    for (; i < count; i++)
        rest += x[i];
    const floats_8 *eights = (const floats_8 *)&sums, eight = eights[0] + eights[1];
    const floats_4 *fours = (const floats_4 *)&eight, four = fours[0] + fours[1];
    return (four[0] + four[1]) + (four[2] + four[3]) + rest;
}

/* Adds at most 64 elements in one float. A block that overflows is added again in double. */
WIDE double tap_total(const float *restrict x, int64_t count) {
    enum { BLOCK = 16 * POOLING_RUN };
    double total = 0;
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t some = min64(count - first, BLOCK);
        double block = (double)total_of_block(x + first, some);
        if (!isfinite(block)) {
            block = 0;
            for (int64_t i = 0; i < some; i++)
                block += (double)x[first + i];
        }
        total += block;
    }
    return total;
}
