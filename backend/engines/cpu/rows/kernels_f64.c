/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of row programs in double, on libm's functions, and totals, which are double whatever the width of
   elements. */
#include "engines/cpu/rows/kernels.h"

#include <math.h>
#include <string.h>

/* A conditional expression: the x86-64 baseline has no 64-bit compare in vectors, so that masks would not pay. */
#define PICK(condition, yes, no) ((condition) ? (yes) : (no))
#define ABS(x) fabs(x)
#define EXP(x) exp(x)
#define EXP_NONPOSITIVE(x) exp(x)
#define WEIGHT(x) PICK((x) < 0, exp(x), 1)
#define QUOTIENT(a, b) ((a) / (b))
#define LOG(x) log(x)
#define SQRT(x) sqrt(x)

#define NUMBER_BITS INT64_MAX
#define INFINITY_BITS INT64_C(0x7ff0000000000000)

static inline int64_t BITS(double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

typedef double real;
typedef int64_t integer;
#define KERNELS row_kernels_f64
#include "engines/cpu/rows/kernels_define.h"

/* The sum of nothing is 0, its product 1; extremes begin beyond every number. */
double row_identity(enum opcode opcode) {
    return opcode == OPCODE_PRODUCT ? 1 : opcode == OPCODE_LEAST ? INFINITY : opcode == OPCODE_LARGEST ? -INFINITY : 0;
}

/* One row of `count` columns taken into the totals: the same order whoever joins. */
void row_join(enum opcode opcode, int64_t count, double *totals, const double *others) {
    find_of_columns(opcode)(1, count, totals, others, count, NULL, 0);
}
