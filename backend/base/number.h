/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of sizes, extents and strides, which are int64_t everywhere. */
#ifndef WEFT_BASE_NUMBER_H
#define WEFT_BASE_NUMBER_H

#include <stdint.h>

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Quotients for a positive divisor, rounded towards minus and plus infinity. */
static inline int64_t divide_down(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b > 0); }

/* The smallest multiple of a positive unit that is not less than the number. */
static inline int64_t round_up(int64_t number, int64_t unit) { return divide_up(number, unit) * unit; }

/* Returns the sum of two sizes, at most INT64_MAX. */
static inline int64_t add_sizes(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

/* The greatest common divisor, never negative; that of 0 and n is n. */
static inline int64_t gcd64(int64_t a, int64_t b) { return b ? gcd64(b, a % b) : a < 0 ? -a : a; }

#endif
