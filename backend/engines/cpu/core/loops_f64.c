/* SPDX-License-Identifier: Apache-2.0 */
/* The loops in double, on libm's functions: double is for who asks for precision, not for speed. */
#include "engines/cpu/core/loops.h"

#include <math.h>

#define logistic(x) (1 / (1 + exp(-(x))))
#define logistic_approx(x) logistic(x)
#define normal_density(x) (0.3989422804014327 * exp(-0.5 * (x) * (x)))
#define normal_cdf(x) (0.5 * (1 + erf((x) * 0.7071067811865476)))

typedef double real;
#define FIND_LOOP loop_f64
#include "engines/cpu/core/loops_define.h"
