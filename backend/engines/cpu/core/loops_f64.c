/* SPDX-License-Identifier: Apache-2.0 */
/* The loops in double, with libm's functions: users choose double for precision, not for speed. */
#include "engines/cpu/core/loops.h"

#include <float.h>
#include <math.h>

#define logistic(x) (1 / (1 + exp(-(x))))
#define logistic_approx(x) logistic(x)
#define at_least(x, least) ((x) <= (least) ? (least) : (x))

static double normal_cdf(double x) { return 0.5 * erfc(x * -0.7071067811865476); }
static double gelu(double x) { return at_least(x, -DBL_MAX) * normal_cdf(x); }
static double gelu_slope(double x) {
    double bounded = fabs(x) < 100 ? x : 0; /* the density is 0 outside */
    return normal_cdf(x) + bounded * 0.3989422804014327 * exp(-0.5 * bounded * bounded);
}

typedef double real;
#define FIND_LOOP loop_f64
#include "engines/cpu/core/loops_define.h"
