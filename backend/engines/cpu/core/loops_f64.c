/* SPDX-License-Identifier: Apache-2.0 */
/* The loops in double, on libm's functions: double is for who asks for precision, not for speed. */
#include "engines/cpu/core/loops.h"

#include <math.h>

#define logistic(x) (1 / (1 + exp(-(x))))
#define logistic_approx(x) logistic(x)

typedef double real;
#define FIND_LOOP loop_f64
#include "engines/cpu/core/loops_define.h"
