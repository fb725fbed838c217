/* SPDX-License-Identifier: Apache-2.0 */
/* The data types that Weft stores: one table, and the only code that knows their bits. Elements are addressed by their
   index; elements narrower than 8 bits share a byte, lowest bits first, so two threads must not store to the same byte.
   Tensors, strides and operations are unknown here. */
#ifndef WEFT_BASE_DTYPE_H
#define WEFT_BASE_DTYPE_H

#include "weft/weft_enums.h"

#include <stdbool.h>
#include <stdint.h>

struct dtype {
    const char *name; /* "bf16" */
    int bits;         /* storage of one element */
    bool is_float, is_signed, is_boolean;
    int exponent_bits, mantissa_bits; /* for floats; the leading one is not counted */
    double lowest, max;               /* finite range */
    /* Codes without their sign bit, only for floats of at most 16 bits. */
    uint32_t max_code;      /* the largest finite magnitude */
    uint32_t overflow_code; /* the code of larger magnitudes, including infinity */
    uint32_t nan_code;      /* a quiet NaN, or the code that replaces NaN in formats without one */
};

/* The row of a type, or NULL if Weft has no storage for it. */
const struct dtype *dtype_of(weftDataType_t type);

bool dtype_is_float(weftDataType_t type);
bool dtype_is_integer(weftDataType_t type);
bool dtype_is_boolean(weftDataType_t type);
bool dtype_is_half(weftDataType_t type); /* 16 bits: HALF or BFLOAT16 */
bool dtype_is_fp8(weftDataType_t type);  /* a sign, an exponent and a fraction in 8 bits: E4M3 or E5M2 */

/* The type of the result of two operands: floats take precedence over integers, and integers over booleans; of one
   kind, the wider type, or the next wider one that contains two types of equal width. */
weftDataType_t dtype_promote(weftDataType_t a, weftDataType_t b);

/* The narrowest type that represents every value of both, like NumPy's result_type; DOUBLE for int64 and a float,
   although it is exact only up to 2^53. */
weftDataType_t dtype_common(weftDataType_t a, weftDataType_t b);

/* Bytes that `elems` elements occupy; 0 for a type without storage. */
int64_t dtype_bytes(weftDataType_t type, int64_t elems);

/* Below, the type must have storage; otherwise loads give 0 and stores do nothing.

   Loads are exact, except int64 beyond 2^53. Stores round once, to nearest even, and then
     float          beyond the range: infinity for f32, f16 and bf16, the largest finite value for
                    the 8- and 4-bit types. NaN stays NaN, +6 in e2m1. e8m0 has no zero and no
                    sign: values below its range become its smallest value, 2^-127
     integer        saturates; NaN becomes 0
     boolean        is value != 0 (so NaN is true); loads give 0 or 1 */
double dtype_load(weftDataType_t type, const void *base, int64_t index);
void dtype_store(weftDataType_t type, void *base, int64_t index, double value);

/* The same for int64: exact in integer and boolean types, loaded through double from float types, and rounded once when
   stored. */
int64_t dtype_load_i64(weftDataType_t type, const void *base, int64_t index);
void dtype_store_i64(weftDataType_t type, void *base, int64_t index, int64_t value);

/* Convert rows of `count` elements, starting at `index`: the same values as above, bit for bit (except that a
   signalling NaN may become quiet), with vector code. The two sides may not overlap. */
void dtype_to_f32(float *restrict dst, weftDataType_t type, const void *restrict base, int64_t index, int64_t count);
void dtype_to_f64(double *restrict dst, weftDataType_t type, const void *restrict base, int64_t index, int64_t count);
void dtype_from_f32(weftDataType_t type, void *restrict base, int64_t index, const float *restrict src, int64_t count);
void dtype_from_f64(weftDataType_t type, void *restrict base, int64_t index, const double *restrict src, int64_t count);

#endif
