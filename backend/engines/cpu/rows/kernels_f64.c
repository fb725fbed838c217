/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of row programs in double, on libm's functions, and totals. */
#include "engines/cpu/rows/kernels.h"

#include <math.h>

#define PICK(condition, yes, no) ((condition) ? (yes) : (no))
#define ABS(x) fabs(x)
#define EXP(x) exp(x)
#define LOG(x) log(x)
#define SQRT(x) sqrt(x)

typedef double real;
#define KERNELS row_kernels_f64
#include "engines/cpu/rows/kernels_define.h"

double row_identity(enum opcode opcode) {
    return opcode == OPCODE_PRODUCT ? 1 : opcode == OPCODE_LEAST ? INFINITY : opcode == OPCODE_LARGEST ? -INFINITY : 0;
}

void row_join(enum opcode opcode, int64_t count, double *totals, const double *others) {
    find_of_columns(opcode)(1, count, totals, others, NULL);
}
