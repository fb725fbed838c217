/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of row programs in float. exp and log are our own (core/fastmath.h), which become vector code. Also the
   conversions between the two widths, which belong to neither. */
#include "engines/cpu/rows/kernels.h"

#include "engines/cpu/core/fastmath.h"

/* Each function that the body names, in float and without branches. */
#define PICK(condition, yes, no) fast_pick(condition, yes, no)
#define ABS(x) fast_abs(x)
#define EXP(x) fast_exp(x)
#define EXP_NONPOSITIVE(x) fast_exp_nonpositive(x)
#define WEIGHT(x) fast_weight(x)
/* a / b of many a: b's inverse in double leaves an error that is too small to matter, as no quotient of floats is so
   near to the middle between two floats; the middle itself is met among subnormal ones alone. */
#define QUOTIENT(a, b) (float)((double)(a) * (1 / (double)(b)))
#define LOG(x) fast_log(x)
#define SQRT(x) sqrtf(x)

/* For the test of finite numbers in reductions: bits above those of infinity are NaN. */
#define BITS(x) (int32_t)fast_bits(x)
#define NUMBER_BITS 0x7fffffff
#define INFINITY_BITS 0x7f800000

typedef float real;
typedef int32_t integer;
#define KERNELS row_kernels_f32
#include "engines/cpu/rows/kernels_define.h"

/* Exact. */
WIDE void row_widen(int64_t count, double *y, const float *x) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        y[i] = (double)x[i];
}

/* Rounds to nearest even, as a cast does. */
WIDE void row_narrow(int64_t count, float *y, const double *x) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        y[i] = (float)x[i];
}
