/* SPDX-License-Identifier: Apache-2.0 */
/* The loops in double, on libm's functions. */
#include "engines/cpu/loops.h"

#include <math.h>

typedef double real;
#define FIND_LOOP loop_f64
#include "engines/cpu/loops_define.h"
