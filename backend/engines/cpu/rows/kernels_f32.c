/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of row programs in float. exp and log are our own (core/fastmath.h), which compilers vectorize. Also
   contains the conversions between float and double. */
#include "engines/cpu/rows/kernels.h"

#include "engines/cpu/core/fastmath.h"

/* Maps the functions that the body names to branch-free float versions. */
#define PICK(condition, yes, no) fast_pick(condition, yes, no)
#define ABS(x) fast_abs(x)
#define EXP(x) fast_exp(x)
#define EXP_NONPOSITIVE(x) fast_exp_nonpositive(x)
#define WEIGHT(x) fast_weight(x)
/* a / b for many a: multiplying by the reciprocal in double gives the correctly rounded float, because no quotient of
   floats is close enough to the midpoint of two floats; exact midpoints occur only among subnormals. */
#define QUOTIENT(a, b) (float)((double)(a) * (1 / (double)(b)))
#define LOG(x) fast_log(x)
#define SQRT(x) sqrtf(x)

/* For the NaN test in reductions: bit patterns above that of infinity are NaN. */
#define BITS(x) (int32_t)fast_bits(x)
#define NUMBER_BITS 0x7fffffff
#define INFINITY_BITS 0x7f800000

typedef float real;
typedef int32_t integer;
#define KERNELS row_kernels_f32
#include "engines/cpu/rows/kernels_define.h"

/* Conversion is exact. */
WIDE void row_widen(int64_t count, double *y, const float *x) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        y[i] = (double)x[i];
}

/* Rounds to nearest even, like a cast. */
WIDE void row_narrow(int64_t count, float *y, const double *x) {
    INDEPENDENT
    for (int64_t i = 0; i < count; i++)
        y[i] = (float)x[i];
}
