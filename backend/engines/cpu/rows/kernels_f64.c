/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of row programs in double, with libm's functions, and those of totals, which are always double. */
#include "engines/cpu/rows/kernels.h"

#include <math.h>
#include <string.h>

/* A conditional expression: baseline x86-64 has no 64-bit vector compare, so masks would not pay off. */
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

/* The empty sum is 0 and the empty product 1; extremes start beyond every number. */
double row_identity(enum opcode opcode) {
    return opcode == OPCODE_PRODUCT ? 1 : opcode == OPCODE_LEAST ? INFINITY : opcode == OPCODE_LARGEST ? -INFINITY : 0;
}

/* Reduces one row of `count` columns into the totals, in the same order for all callers. */
void row_join(enum opcode opcode, int64_t count, double *totals, const double *others) {
    find_of_columns(opcode)(1, count, totals, others, count, NULL, 0);
}
