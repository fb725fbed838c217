/* SPDX-License-Identifier: Apache-2.0 */
/* The table of data types and the conversions that use it. Floats of at most 16 bits share one `widen`, and one
   `narrow` each from float and from double. Called with a constant type, the table row is folded into the code; all
   paths are computed and one is selected, so that loops can be vectorised. No intermediate value is subnormal, because
   the program may have set the processor to flush subnormals. This file does not know tensors, strides or
   operations. */
#include "base/dtype.h"

#include "base/vectors.h"

#include <float.h>
#if defined __x86_64__
#include <immintrin.h>
#endif
#include <math.h>
#include <stddef.h>
#include <string.h>

#define BF16_MAX 0x1.fep127

/* clang-format off */
static const struct dtype DTYPES[] = {
    /*                      name     bits float  sign   bool   exp man lowest     max         max, overflow, NaN code */
    [WEFT_DATA_FLOAT]    = {"f32",   32,  true,  true,  false, 8,  23, -FLT_MAX,  FLT_MAX,    0,      0,      0},
    [WEFT_DATA_DOUBLE]   = {"f64",   64,  true,  true,  false, 11, 52, -DBL_MAX,  DBL_MAX,    0,      0,      0},
    [WEFT_DATA_HALF]     = {"f16",   16,  true,  true,  false, 5,  10, -65504,    65504,      0x7bff, 0x7c00, 0x7e00},
    [WEFT_DATA_BFLOAT16] = {"bf16",  16,  true,  true,  false, 8,  7,  -BF16_MAX, BF16_MAX,   0x7f7f, 0x7f80, 0x7fc0},
    [WEFT_DATA_FP8_E4M3] = {"e4m3",  8,   true,  true,  false, 4,  3,  -448,      448,        0x7e,   0x7e,   0x7f},
    [WEFT_DATA_FP8_E5M2] = {"e5m2",  8,   true,  true,  false, 5,  2,  -57344,    57344,      0x7b,   0x7b,   0x7e},
    [WEFT_DATA_FP8_E8M0] = {"e8m0",  8,   true,  false, false, 8,  0,  0x1p-127,  0x1p127,    0xfe,   0xfe,   0xff},
    [WEFT_DATA_FP4_E2M1] = {"e2m1",  4,   true,  true,  false, 2,  1,  -6,        6,          0x7,    0x7,    0x7},
    [WEFT_DATA_INT4]     = {"i4",    4,   false, true,  false, 0,  0,  -8,        7,          0,      0,      0},
    [WEFT_DATA_UINT4]    = {"u4",    4,   false, false, false, 0,  0,  0,         15,         0,      0,      0},
    [WEFT_DATA_INT8]     = {"i8",    8,   false, true,  false, 0,  0,  -128,      127,        0,      0,      0},
    [WEFT_DATA_UINT8]    = {"u8",    8,   false, false, false, 0,  0,  0,         255,        0,      0,      0},
    [WEFT_DATA_INT32]    = {"i32",   32,  false, true,  false, 0,  0,  INT32_MIN, INT32_MAX,  0,      0,      0},
    [WEFT_DATA_UINT32]   = {"u32",   32,  false, false, false, 0,  0,  0,         UINT32_MAX, 0,      0,      0},
    /* 2^63 - 1 is not a double; it is loaded as 2^63, the nearest one. */
    [WEFT_DATA_INT64]    = {"i64",   64,  false, true,  false, 0,  0,  -0x1p63,   0x1p63,     0,      0,      0},
    [WEFT_DATA_BOOLEAN]  = {"bool1", 1,   false, false, true,  0,  0,  0,         1,          0,      0,      0},
    [WEFT_DATA_BYTE_BOOLEAN] = {"bool8", 8,   false, false, true,  0,  0,  0,         1,          0,      0,      0},
};
/* clang-format on */

const struct dtype *dtype_of(weftDataType_t type) {
    size_t row = (size_t)type;
    return row < sizeof DTYPES / sizeof DTYPES[0] && DTYPES[row].name ? &DTYPES[row] : NULL;
}

bool dtype_is_float(weftDataType_t type) {
    const struct dtype *row = dtype_of(type);
    return row && row->is_float;
}

bool dtype_is_integer(weftDataType_t type) {
    const struct dtype *row = dtype_of(type);
    return row && !row->is_float && !row->is_boolean;
}

bool dtype_is_boolean(weftDataType_t type) {
    const struct dtype *row = dtype_of(type);
    return row && row->is_boolean;
}

bool dtype_is_half(weftDataType_t type) { return type == WEFT_DATA_HALF || type == WEFT_DATA_BFLOAT16; }

bool dtype_is_fp8(weftDataType_t type) { return type == WEFT_DATA_FP8_E4M3 || type == WEFT_DATA_FP8_E5M2; }

/* In two terms, so that counts near 2^63 do not overflow: groups of 8 elements, which are whole bytes for each width,
   and the rest rounded up to bytes. */
int64_t dtype_bytes(weftDataType_t type, int64_t elems) {
    const struct dtype *row = dtype_of(type);
    return row ? elems / 8 * row->bits + (elems % 8 * row->bits + 7) / 8 : 0;
}

/* Conversions must be inlined where the type is a constant, otherwise they cost a switch per element. */
#define INLINE static inline __attribute__((always_inline))

/* The following functions read and write the bits of one element. They use memcpy, because user memory may be
   misaligned. */

/* Elements narrower than a byte are stored lowest bits first, as in NVIDIA's types and DLPack. */
INLINE uint32_t get_code(const void *base, int64_t index, int bits) {
    const uint8_t *bytes = base;
    uint16_t two;
    uint32_t four;
    switch (bits) {
    case 32:
        memcpy(&four, bytes + 4 * index, sizeof four);
        return four;
    case 16:
        memcpy(&two, bytes + 2 * index, sizeof two);
        return two;
    case 8:
        return bytes[index];
    case 4:
        return bytes[index >> 1] >> (index & 1) * 4 & 15u;
    default: /* 1 */
        return bytes[index >> 3] >> (index & 7) & 1u;
    }
}

/* Writes 4- and 1-bit elements by a read-modify-write of the byte, which is why two threads must not share one. */
INLINE void put_code(void *base, int64_t index, int bits, uint32_t code) {
    uint8_t *bytes = base;
    uint16_t two = (uint16_t)code;
    int shift;
    switch (bits) {
    case 32:
        memcpy(bytes + 4 * index, &code, sizeof code);
        break;
    case 16:
        memcpy(bytes + 2 * index, &two, sizeof two);
        break;
    case 8:
        bytes[index] = (uint8_t)code;
        break;
    case 4:
        shift = (int)(index & 1) * 4;
        bytes[index >> 1] = (uint8_t)((bytes[index >> 1] & ~(15 << shift)) | (int)code << shift);
        break;
    default: /* 1 */
        shift = (int)(index & 7);
        bytes[index >> 3] = (uint8_t)((bytes[index >> 3] & ~(1 << shift)) | (int)code << shift);
    }
}

INLINE uint64_t get_u64(const void *base, int64_t index) {
    uint64_t value;
    memcpy(&value, (const uint8_t *)base + 8 * index, sizeof value);
    return value;
}

INLINE void put_u64(void *base, int64_t index, uint64_t value) {
    memcpy((uint8_t *)base + 8 * index, &value, sizeof value);
}

INLINE float f32_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The inverse, bit for bit: no conversion, so a signalling NaN is preserved. */
INLINE uint32_t bits_of_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A conditional expression without a branch: the compiler cannot move the work of one side after a jump, which would
   prevent vectorisation. (This does not pay for 64 bits: the x86-64 baseline has no 64-bit vector comparison.) */
INLINE uint32_t pick32(bool condition, uint32_t yes, uint32_t no) { return no ^ ((no ^ yes) & (0u - condition)); }

INLINE double f64_of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint64_t bits_of_f64(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Small signed floats: f16, bf16, e4m3, e5m2 and e2m1. */

/* The exponent bias of the code: 15 for f16 and e5m2, 127 for bf16, 7 for e4m3, 1 for e2m1. */
INLINE uint32_t bias_of(const struct dtype *row) { return (1u << (row->exponent_bits - 1)) - 1; }

/* Converts a code to float, exactly: each of these types is a subset of float. Codes above max_code are infinities and
   NaNs; a NaN keeps its payload and becomes quiet. */
INLINE float widen(weftDataType_t type, uint32_t code) {
    const struct dtype *row = &DTYPES[type];
    uint32_t sign = code >> (row->bits - 1) << 31;
    uint32_t magnitude = code & ((1u << (row->bits - 1)) - 1);
    uint32_t rebias = (127 - bias_of(row)) << 23; /* 0 for bf16, whose subnormals are those of float */
    /* Exponent and mantissa of the code at float's position, before the bias is changed. */
    uint32_t moved = magnitude << (23 - row->mantissa_bits);

    uint32_t normal = moved + rebias;
    /* 1.m * 2^e - 1.0 * 2^e = 0.m * 2^e, where e is the smallest exponent of the type. */
    uint32_t first_normal = rebias + (1u << 23);
    uint32_t subnormal = bits_of_f32(f32_of_bits(moved | first_normal) - f32_of_bits(first_normal));
    uint32_t is_nan = (moved & 0x7fffff) != 0; /* else infinity */
    uint32_t special = moved | 0x7f800000 | is_nan << 22;

    bool is_subnormal = magnitude < (rebias != 0 ? 1u << row->mantissa_bits : 0);
    uint32_t result = pick32(is_subnormal, subnormal, normal);
    return f32_of_bits(sign | pick32(magnitude > row->max_code, special, result));
}

/* Rounds to nearest even by integer addition: half a unit minus one, plus the lowest remaining bit; a carry out of the
   mantissa correctly increments the exponent. Subnormal results are rounded by adding a power of two whose last bit is
   the smallest subnormal. */
INLINE uint32_t narrow_f32(weftDataType_t type, float value) {
    /* `dropped` is the number of mantissa bits that the narrower type lacks; all shifts below are constants per
       type. */
    const struct dtype *row = &DTYPES[type];
    const int dropped = 23 - row->mantissa_bits;
    uint32_t bits = bits_of_f32(value);
    uint32_t sign = bits >> 31 << (row->bits - 1);
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t rebias = (127 - bias_of(row)) << 23;

    /* Wraps around for values below the type's normal range, for which `subnormal` is used instead. */
    uint32_t normal = magnitude - rebias;
    normal = (normal + (1u << (dropped - 1)) - 1 + (normal >> dropped & 1)) >> dropped;
    /* 1.0 * 2^e, whose last bit is the smallest subnormal of the type: the low bits of the sum are the code. */
    uint32_t grid = rebias + ((uint32_t)(24 - row->mantissa_bits) << 23);
    uint32_t subnormal = bits_of_f32(f32_of_bits(magnitude) + f32_of_bits(grid)) - grid;
    uint32_t nan = row->nan_code | (magnitude >> dropped & ((1u << row->mantissa_bits) - 1));

    /* bf16 has float's exponents, so its subnormals need no special rounding. */
    bool is_subnormal = magnitude < (rebias != 0 ? rebias + (1u << 23) : 0);
    uint32_t result = pick32(is_subnormal, subnormal, normal);
    result = pick32(result > row->max_code, row->overflow_code, result);
    return sign | pick32(magnitude > 0x7f800000, nan, result);
}

/* The same from double in a single rounding; through float there would be two. */
INLINE uint32_t narrow_f64(weftDataType_t type, double value) {
    const struct dtype *row = &DTYPES[type];
    /* As above, for double: 52 mantissa bits, a bias of 1023. */
    const int dropped = 52 - row->mantissa_bits;
    uint64_t bits = bits_of_f64(value);
    uint32_t sign = (uint32_t)(bits >> 63) << (row->bits - 1);
    uint64_t magnitude = bits & 0x7fffffffffffffff;
    uint64_t rebias = (uint64_t)(1023 - bias_of(row)) << 52;

    uint64_t normal = magnitude - rebias;
    normal = (normal + (1ull << (dropped - 1)) - 1 + (normal >> dropped & 1)) >> dropped;
    uint64_t grid = rebias + ((uint64_t)(53 - row->mantissa_bits) << 52);
    uint64_t subnormal = bits_of_f64(f64_of_bits(magnitude) + f64_of_bits(grid)) - grid;
    uint64_t nan = row->nan_code | (magnitude >> dropped & ((1u << row->mantissa_bits) - 1));

    uint64_t result = magnitude < rebias + (1ull << 52) ? subnormal : normal;
    result = result > row->max_code ? row->overflow_code : result;
    return sign | (uint32_t)(magnitude > 0x7ff0000000000000 ? nan : result);
}

/* e8m0: only an exponent; code c is 2^(c - 127). */

INLINE float widen_e8m0(uint32_t code) {
    if (code == 0)
        return f32_of_bits(1u << 22); /* 2^-127, a subnormal float */
    return f32_of_bits(code < 255 ? code << 23 : 0x7fc00000);
}

INLINE uint32_t narrow_e8m0(double value) {
    if (isnan(value))
        return 255;
    if (value <= 0x1p-127)
        return 0;
    /* 2^127 and above: infinity saturates, because the type has none. */
    if (value >= 0x1p127)
        return 254;
    /* Halfway, 1.5 * 2^e, is rounded up: 2^e consists of the leading one only and is odd in that sense, so the next
       power is the even one. */
    uint64_t rebased = bits_of_f64(value) - ((uint64_t)(1023 - 127) << 52);
    return (uint32_t)((rebased + (1ull << 51)) >> 52);
}

/* Integers. */

INLINE int64_t largest_integer(const struct dtype *row) { return INT64_MAX >> (64 - row->bits - !row->is_signed); }

INLINE int64_t smallest_integer(const struct dtype *row) { return row->is_signed ? -largest_integer(row) - 1 : 0; }

/* To nearest even, saturated; 2^63 itself is the first double that is too large, and NaN becomes 0. */
INLINE int64_t round_i64(double value) {
    if (isnan(value))
        return 0;
    if (value >= 0x1p63)
        return INT64_MAX;
    return value > -0x1p63 ? (int64_t)rint(value) : INT64_MIN;
}

/* Converts to at most 32 bits. The value is clamped, then rounded by an addition that leaves the integer in the low
   bits of the double, in two's complement; unlike rint this is fast without SSE4.1. NaN compares false with everything,
   so it is replaced before clamping. */
INLINE uint32_t round_integer(weftDataType_t type, double value) {
    double lowest = DTYPES[type].lowest, max = DTYPES[type].max;
    value = isnan(value) ? 0 : value;
    value = value < lowest ? lowest : value;
    value = value > max ? max : value;
    /* 1.5 * 2^52: from 2^52 up to 2^53 doubles are integers, and the half allows for negative values. */
    return (uint32_t)bits_of_f64(value + 0x1.8p52);
}

/* The same for 8 bits from float, with lanes half as wide: 1.5 * 2^23 has the role of 1.5 * 2^52 in double. */
INLINE uint32_t round_byte(weftDataType_t type, float value) {
    float lowest = (float)DTYPES[type].lowest, max = (float)DTYPES[type].max;
    value = isnan(value) ? 0 : value;
    value = value < lowest ? lowest : value;
    value = value > max ? max : value;
    return bits_of_f32(value + 0x1.8p23f) & 0xff;
}

/* Loads any integer type exactly; narrow types are sign-extended. */
INLINE int64_t load_integer(weftDataType_t type, const void *base, int64_t index) {
    const struct dtype *row = &DTYPES[type];
    if (row->bits == 64)
        return (int64_t)get_u64(base, index);
    uint32_t code = get_code(base, index, row->bits);
    if (!row->is_signed)
        return code;
    /* Shifted up to bit 31 and arithmetically back, which extends the sign bit of a narrow type. */
    int unused = 32 - row->bits;
    return (int32_t)(code << unused) >> unused;
}

INLINE void store_integer(weftDataType_t type, void *base, int64_t index, int64_t value) {
    const struct dtype *row = &DTYPES[type];
    if (row->bits == 64) {
        put_u64(base, index, (uint64_t)value);
        return;
    }
    /* One comparison per side covers signed and unsigned types: int64 contains the ranges of all others. */
    int64_t smallest = smallest_integer(row), largest = largest_integer(row);
    value = value < smallest ? smallest : value > largest ? largest : value;
    /* The mask removes the high bits of a negative number: put_code expects none above the type's width. */
    put_code(base, index, row->bits, (uint32_t)value & (uint32_t)((1ull << row->bits) - 1));
}

/* The code is the upper half of a float; a signalling NaN becomes quiet, as in hardware conversions. */
INLINE float widen_bf16(uint32_t code) {
    uint32_t bits = code << 16;
    return f32_of_bits((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : bits);
}

/* Conversions of one element of any type. */

INLINE double load(weftDataType_t type, const void *base, int64_t index) {
    switch (type) {
    case WEFT_DATA_FLOAT:
        return f32_of_bits(get_code(base, index, 32));
    case WEFT_DATA_DOUBLE:
        return f64_of_bits(get_u64(base, index));
    case WEFT_DATA_BFLOAT16:
        return widen_bf16(get_code(base, index, 16));
    case WEFT_DATA_HALF:
    case WEFT_DATA_FP8_E4M3:
    case WEFT_DATA_FP8_E5M2:
    case WEFT_DATA_FP4_E2M1:
        return widen(type, get_code(base, index, DTYPES[type].bits));
    case WEFT_DATA_FP8_E8M0:
        return widen_e8m0(get_code(base, index, 8));
    case WEFT_DATA_BOOLEAN:
        return get_code(base, index, 1);
    case WEFT_DATA_BYTE_BOOLEAN:
        return get_code(base, index, 8) != 0;
    default:
        /* A type without storage loads as 0: finalize rejects such types. */
        return dtype_is_integer(type) ? (double)load_integer(type, base, index) : 0;
    }
}

INLINE void store(weftDataType_t type, void *base, int64_t index, double value) {
    switch (type) {
    case WEFT_DATA_FLOAT:
        put_code(base, index, 32, bits_of_f32((float)value));
        break;
    case WEFT_DATA_DOUBLE:
        put_u64(base, index, bits_of_f64(value));
        break;
    case WEFT_DATA_HALF:
    case WEFT_DATA_BFLOAT16:
    case WEFT_DATA_FP8_E4M3:
    case WEFT_DATA_FP8_E5M2:
        put_code(base, index, DTYPES[type].bits, narrow_f64(type, value));
        break;
    case WEFT_DATA_FP4_E2M1: /* has no NaN, whose sign could be preserved */
        put_code(base, index, 4, isnan(value) ? DTYPES[type].nan_code : narrow_f64(type, value));
        break;
    case WEFT_DATA_FP8_E8M0:
        put_code(base, index, 8, narrow_e8m0(value));
        break;
    case WEFT_DATA_BOOLEAN:
    case WEFT_DATA_BYTE_BOOLEAN:
        put_code(base, index, DTYPES[type].bits, value != 0);
        break;
    case WEFT_DATA_INT64:
        put_u64(base, index, (uint64_t)round_i64(value));
        break;
    default:
        /* The mask's shift is defined for 4 to 32 bits; 64 bits are a separate case above. */
        if (dtype_is_integer(type)) {
            uint32_t mask = 0xffffffff >> (32 - DTYPES[type].bits);
            put_code(base, index, DTYPES[type].bits, round_integer(type, value) & mask);
        }
    }
}

/* The upper half of a float, rounded to even; a carry out of the largest number yields infinity. NaN keeps its upper
   bits and becomes quiet. */
INLINE uint32_t narrow_bf16(float value) {
    uint32_t bits = bits_of_f32(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return pick32((bits & 0x7fffffff) > 0x7f800000, quiet, rounded);
}

/* Converts from float. Gives the same values as through double, with lanes half as wide if possible. */
INLINE void store_f32(weftDataType_t type, void *base, int64_t index, float value) {
    switch (type) {
    case WEFT_DATA_BFLOAT16:
        put_code(base, index, 16, narrow_bf16(value));
        break;
    case WEFT_DATA_HALF:
    case WEFT_DATA_FP8_E4M3:
    case WEFT_DATA_FP8_E5M2:
        put_code(base, index, DTYPES[type].bits, narrow_f32(type, value));
        break;
    case WEFT_DATA_INT8:
    case WEFT_DATA_UINT8:
        put_code(base, index, 8, round_byte(type, value));
        break;
    default:
        store(type, base, index, value);
    }
}

double dtype_load(weftDataType_t type, const void *base, int64_t index) { return load(type, base, index); }

void dtype_store(weftDataType_t type, void *base, int64_t index, double value) { store(type, base, index, value); }

int64_t dtype_load_i64(weftDataType_t type, const void *base, int64_t index) {
    if (dtype_is_integer(type))
        return load_integer(type, base, index);
    return round_i64(load(type, base, index));
}

/* A double that is rounded to narrower float types as the integer would be: if the integer has too many bits, the
   lowest remaining one is set if any dropped bit was (round to odd). 2^53 bounds the integers that double represents
   exactly; a 64-bit integer has up to 11 bits more. */
static double double_of_odd(int64_t value) {
    int64_t dropped = value & 0x7ff;
    bool fits = value > -INT64_C(0x20000000000000) && value < INT64_C(0x20000000000000);
    return fits || !dropped ? (double)value : (double)((value - dropped) | 0x800);
}

void dtype_store_i64(weftDataType_t type, void *base, int64_t index, int64_t value) {
    if (dtype_is_integer(type))
        store_integer(type, base, index, value);
    else
        store(type, base, index, type == WEFT_DATA_DOUBLE ? (double)value : double_of_odd(value));
}

/* Returns the same value as load, without a conversion to double. */
INLINE float load_f32(weftDataType_t type, const void *base, int64_t index) {
    switch (type) {
    case WEFT_DATA_FLOAT:
        return f32_of_bits(get_code(base, index, 32));
    case WEFT_DATA_BFLOAT16:
        return widen_bf16(get_code(base, index, 16));
    case WEFT_DATA_HALF:
    case WEFT_DATA_FP8_E4M3:
    case WEFT_DATA_FP8_E5M2:
        return widen(type, get_code(base, index, DTYPES[type].bits));
    case WEFT_DATA_INT8:
        return (float)(int8_t)get_code(base, index, 8);
    case WEFT_DATA_UINT8:
        return (float)get_code(base, index, 8);
    default:
        return (float)load(type, base, index);
    }
}

/* The four loops that the row functions consist of. `type` is a constant in most calls, so that the switch in load and
   store is folded. */
INLINE void row_to_f32(weftDataType_t type, float *restrict dst, const void *restrict base, int64_t index,
                       int64_t count) {
    for (int64_t i = 0; i < count; i++)
        dst[i] = load_f32(type, base, index + i);
}

INLINE void row_to_f64(weftDataType_t type, double *restrict dst, const void *restrict base, int64_t index,
                       int64_t count) {
    for (int64_t i = 0; i < count; i++)
        dst[i] = load(type, base, index + i);
}

INLINE void row_from_f32(weftDataType_t type, void *restrict base, int64_t index, const float *restrict src,
                         int64_t count) {
    for (int64_t i = 0; i < count; i++)
        store_f32(type, base, index + i, src[i]);
}

INLINE void row_from_f64(weftDataType_t type, void *restrict base, int64_t index, const double *restrict src,
                         int64_t count) {
    for (int64_t i = 0; i < count; i++)
        store(type, base, index + i, src[i]);
}

/* The row functions are compiled several times and the loader selects one: AVX2 doubles their speed, and AVX-512
   doubles that of the conversions to and from float. Not with the thread sanitizer, which is not initialised when the
   loader makes the selection. */
#if defined __x86_64__ && defined __GLIBC__ && !defined __SANITIZE_THREAD__
#define WIDE __attribute__((target_clones("avx2", "default")))
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#define WIDEST
#endif

/* Calls a row function with a constant type, which yields a specialised loop, for the types that are worth one. The
   others switch on the type at every element. */
/* clang-format off */
#define SPECIALISE(row, type, ...)                                                \
    switch (type) {                                                               \
    case WEFT_DATA_FLOAT: row(WEFT_DATA_FLOAT, __VA_ARGS__); break;               \
    case WEFT_DATA_DOUBLE: row(WEFT_DATA_DOUBLE, __VA_ARGS__); break;             \
    case WEFT_DATA_HALF: row(WEFT_DATA_HALF, __VA_ARGS__); break;                 \
    case WEFT_DATA_BFLOAT16: row(WEFT_DATA_BFLOAT16, __VA_ARGS__); break;         \
    case WEFT_DATA_FP8_E4M3: row(WEFT_DATA_FP8_E4M3, __VA_ARGS__); break;         \
    case WEFT_DATA_FP8_E5M2: row(WEFT_DATA_FP8_E5M2, __VA_ARGS__); break;         \
    case WEFT_DATA_INT8: row(WEFT_DATA_INT8, __VA_ARGS__); break;                 \
    case WEFT_DATA_UINT8: row(WEFT_DATA_UINT8, __VA_ARGS__); break;               \
    case WEFT_DATA_INT32: row(WEFT_DATA_INT32, __VA_ARGS__); break;               \
    case WEFT_DATA_BOOLEAN: row(WEFT_DATA_BOOLEAN, __VA_ARGS__); break;           \
    default: row(type, __VA_ARGS__); break;                                       \
    }
/* clang-format on */

/* f16 with the processor's conversion instructions, 8 at a time: the same codes and values, even for NaNs. */
#if defined __x86_64__
#define WITH_F16C __attribute__((target("avx,f16c")))

WITH_F16C static void f16_to_f32(float *restrict dst, const char *restrict codes, int64_t count) {
    uint16_t last[8] = {0};
    float values[8];
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(codes + 2 * i))));
    memcpy(last, codes + 2 * i, (size_t)(count - i) * sizeof *last);
    _mm256_storeu_ps(values, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)last)));
    memcpy(dst + i, values, (size_t)(count - i) * sizeof *values);
}

/* Converts whole vectors of e4m3 or e5m2 and returns the number of elements. A code of e5m2 is the upper half of an
   f16. That of e4m3, whose exponent bias is smaller by 8, yields values too small by 2^8 and has a NaN of its own. */
WITH_F16C static int64_t fp8_to_f32(float *restrict dst, weftDataType_t type, const char *restrict codes,
                                    int64_t count) {
    const __m128i most = _mm_set1_epi16(0x7f), sign = _mm_set1_epi16((short)0x8000), nan = _mm_set1_epi16(0x7c00);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(codes + i)));
        __m128i half = _mm_slli_epi16(code, 8);
        if (type == WEFT_DATA_FP8_E4M3) {
            __m128i magnitude = _mm_and_si128(code, most);
            __m128i special = _mm_and_si128(_mm_cmpeq_epi16(magnitude, most), nan);
            half = _mm_or_si128(_mm_and_si128(half, sign), _mm_or_si128(_mm_slli_epi16(magnitude, 7), special));
        }
        __m256 scale = _mm256_set1_ps(type == WEFT_DATA_FP8_E4M3 ? 256 : 1);
        _mm256_storeu_ps(dst + i, _mm256_mul_ps(_mm256_cvtph_ps(half), scale));
    }
    return i;
}

WITH_F16C static void f16_from_f32(char *restrict codes, const float *restrict src, int64_t count) {
    uint16_t last[8];
    float values[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(codes + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    memcpy(values, src + i, (size_t)(count - i) * sizeof *values);
    _mm_storeu_si128((__m128i *)(void *)last, _mm256_cvtps_ph(_mm256_loadu_ps(values), _MM_FROUND_TO_NEAREST_INT));
    memcpy(codes + 2 * i, last, (size_t)(count - i) * sizeof *last);
}

/* Compiler-generated conversions of bf16, and to int8, e4m3 and e5m2, take two to five times as long as memory
   accesses. These functions convert whole vectors and return the number of elements. */
#define WITH_AVX512 __attribute__((target("avx512f")))

/* Like widen_bf16. */
WITH_AVX512 static int64_t bf16_to_f32(float *restrict dst, const char *restrict codes, int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 2 * i));
        __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
        __m512 values = _mm512_castsi512_ps(bits);
        __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
        _mm512_storeu_si512(dst + i, _mm512_mask_or_epi32(bits, is_nan, bits, _mm512_set1_epi32(0x400000)));
    }
    return i;
}

/* Like narrow_bf16. */
WITH_AVX512 static __m256i narrow_lanes(__m512 values) {
    __m512i bits = _mm512_castps_si512(values), upper = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    __m512i narrowed = _mm512_mask_or_epi32(_mm512_srli_epi32(sum, 16), is_nan, upper, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(narrowed);
}

WITH_AVX512 static int64_t bf16_from_f32(char *restrict codes, const float *restrict src, int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((__m256i *)(void *)(codes + 2 * i), narrow_lanes(_mm512_loadu_ps(src + i)));
    return i;
}

#if HAS_AVX512_BF16
#define WITH_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512bf16")))

/* The conversion instruction flushes subnormal numbers to 0, so narrow_lanes converts vectors that contain one. */
WITH_BF16 static int64_t bf16_converted(char *restrict codes, const float *restrict src, int64_t count) {
    enum { SUBNORMAL = 0x20 }; /* a class of vfpclassps */
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m512 values = _mm512_loadu_ps(src + i);
        __m256i narrowed = (__m256i)_mm512_cvtneps_pbh(values);
        if (__builtin_expect(_mm512_fpclass_ps_mask(values, SUBNORMAL), 0))
            narrowed = narrow_lanes(values);
        _mm256_storeu_si256((__m256i *)(void *)(codes + 2 * i), narrowed);
    }
    return i;
}
#else
#define bf16_converted bf16_from_f32
#endif

/* Like round_byte: the last conversion saturates values below -128. */
WITH_AVX512 static int64_t int8_from_f32(char *restrict codes, const float *restrict src, int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m512 values = _mm512_loadu_ps(src + i);
        __mmask16 is_number = _mm512_cmp_ps_mask(values, values, _CMP_ORD_Q);
        __m512 clamped = _mm512_maskz_min_ps(is_number, values, _mm512_set1_ps(127));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(clamped)));
    }
    return i;
}

/* Yields the same codes as narrow_f32 for e4m3 and e5m2, for which larger magnitudes become the largest one. Adds a
   power of two whose last bit is that of the code's mantissa, 2^(e - mantissa_bits), where e is at least the smallest
   exponent: the addition rounds. The low byte of the sum plus the exponent at its position in the code yield the code,
   except for the contribution of the smallest exponent, which is even and included in the last bits of the power of
   two. */
WITH_AVX512 static int64_t fp8_from_f32(char *restrict codes, weftDataType_t type, const float *restrict src,
                                        int64_t count) {
    const struct dtype *row = &DTYPES[type];
    const unsigned dropped = (unsigned)(23 - row->mantissa_bits);
    const uint32_t smallest = (128 - bias_of(row)) << 23;
    const __m512i most = _mm512_set1_epi32((int32_t)bits_of_f32((float)row->max));
    const __m512i step = _mm512_set1_epi32((int32_t)((dropped << 23) + (256 - (smallest >> dropped & 255))));
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m512 values = _mm512_loadu_ps(src + i);
        __m512i bits = _mm512_castps_si512(values), magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
        magnitude = _mm512_min_epi32(magnitude, most);
        __m512i exponent = _mm512_and_si512(magnitude, _mm512_set1_epi32(0x7f800000));
        exponent = _mm512_max_epi32(exponent, _mm512_set1_epi32((int32_t)smallest));
        __m512 power = _mm512_castsi512_ps(_mm512_add_epi32(exponent, step));
        __m512i sum = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), power));
        __m512i code = _mm512_add_epi32(sum, _mm512_srli_epi32(exponent, dropped));
        __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign)));
        if (__builtin_expect(_mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q), 0))
            for (int lane = 0; lane < 16; lane++)
                codes[i + lane] = (char)narrow_f32(type, src[i + lane]);
    }
    return i;
}

/* Converts whole vectors of 4-bit integers, two per byte, and returns the number of elements. Bit 3 is the sign. */
WITH_AVX512 static int64_t nibble_vectors_to_f32(float *restrict dst, const uint8_t *restrict bytes, int64_t count,
                                                 bool is_signed) {
    const __m128i low = _mm_set1_epi8(15), sign = _mm_set1_epi8(is_signed ? 8 : 0);
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m128i both = _mm_loadl_epi64((const __m128i *)(const void *)(bytes + i / 2));
        __m128i codes = _mm_unpacklo_epi8(_mm_and_si128(both, low), _mm_and_si128(_mm_srli_epi16(both, 4), low));
        __m128i numbers = _mm_sub_epi8(_mm_xor_si128(codes, sign), sign);
        _mm512_storeu_ps(dst + i, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers)));
    }
    return i;
}

static bool has_nibble_vectors(weftDataType_t type) {
    return type != WEFT_DATA_FP4_E2M1 && __builtin_cpu_supports("avx512f");
}

/* Converts whole vectors for the types with such a loop; returns 0 for other types and on older processors. */
static int64_t vectors_to_f32(float *dst, weftDataType_t type, const void *base, int64_t index, int64_t count) {
    if (dtype_is_fp8(type) && cpu_has_f16c())
        return fp8_to_f32(dst, type, (const char *)base + index, count);
    if (type != WEFT_DATA_BFLOAT16 || !__builtin_cpu_supports("avx512f"))
        return 0;
    return bf16_to_f32(dst, (const char *)base + 2 * index, count);
}

static int64_t vectors_from_f32(weftDataType_t type, void *base, int64_t index, const float *src, int64_t count) {
    if (!__builtin_cpu_supports("avx512f"))
        return 0;
    if (type == WEFT_DATA_INT8)
        return int8_from_f32((char *)base + index, src, count);
    if (dtype_is_fp8(type))
        return fp8_from_f32((char *)base + index, type, src, count);
    if (type != WEFT_DATA_BFLOAT16)
        return 0;
    return (cpu_has_avx512_bf16() ? bf16_converted : bf16_from_f32)((char *)base + 2 * index, src, count);
}
#else
static int64_t vectors_to_f32(float *dst, weftDataType_t type, const void *base, int64_t index, int64_t count) {
    (void)dst, (void)type, (void)base, (void)index, (void)count;
    return 0;
}
static int64_t vectors_from_f32(weftDataType_t type, void *base, int64_t index, const float *src, int64_t count) {
    (void)type, (void)base, (void)index, (void)src, (void)count;
    return 0;
}
static bool has_nibble_vectors(weftDataType_t type) { return (void)type, false; }
static int64_t nibble_vectors_to_f32(float *dst, const uint8_t *bytes, int64_t count, bool is_signed) {
    (void)dst, (void)bytes, (void)count, (void)is_signed;
    return 0;
}
static void f16_to_f32(float *dst, const char *codes, int64_t count) { (void)dst, (void)codes, (void)count; }
static void f16_from_f32(char *codes, const float *src, int64_t count) { (void)codes, (void)src, (void)count; }
#endif

WIDEST static void rows_to_f32(float *restrict dst, weftDataType_t type, const void *restrict base, int64_t index,
                               int64_t count) {
    SPECIALISE(row_to_f32, type, dst, base, index, count);
}

INLINE float load_nibble(weftDataType_t type, uint32_t code) {
    if (type == WEFT_DATA_FP4_E2M1)
        return widen(type, code);
    return (float)(type == WEFT_DATA_INT4 ? (int32_t)(code ^ 8) - 8 : (int32_t)code);
}

/* Converts whole bytes, which hold two elements each. */
INLINE void bytes_to_f32(weftDataType_t type, float *restrict dst, const uint8_t *restrict bytes, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        dst[2 * i] = load_nibble(type, bytes[i] & 15);
        dst[2 * i + 1] = load_nibble(type, bytes[i] >> 4);
    }
}

/* 4-bit elements. The first one may be the upper half of a byte, the last one the lower half. */
static void nibbles_to_f32(float *restrict dst, weftDataType_t type, const void *restrict base, int64_t index,
                           int64_t count) {
    const uint8_t *bytes = (const uint8_t *)base + index / 2;
    if (index % 2 && count > 0)
        *dst++ = load_nibble(type, *bytes++ >> 4), count--;
    if (has_nibble_vectors(type)) {
        int64_t done = nibble_vectors_to_f32(dst, bytes, count, type == WEFT_DATA_INT4);
        dst += done, bytes += done / 2, count -= done;
    }
    if (type == WEFT_DATA_INT4)
        bytes_to_f32(WEFT_DATA_INT4, dst, bytes, count / 2);
    else if (type == WEFT_DATA_UINT4)
        bytes_to_f32(WEFT_DATA_UINT4, dst, bytes, count / 2);
    else
        bytes_to_f32(WEFT_DATA_FP4_E2M1, dst, bytes, count / 2);
    if (count % 2)
        dst[count - 1] = load_nibble(type, bytes[count / 2] & 15);
}

WIDE void dtype_to_f64(double *restrict dst, weftDataType_t type, const void *restrict base, int64_t index,
                       int64_t count) {
    SPECIALISE(row_to_f64, type, dst, base, index, count);
}

WIDEST static void rows_from_f32(weftDataType_t type, void *restrict base, int64_t index, const float *restrict src,
                                 int64_t count) {
    SPECIALISE(row_from_f32, type, base, index, src, count);
}

WIDE void dtype_from_f64(weftDataType_t type, void *restrict base, int64_t index, const double *restrict src,
                         int64_t count) {
    SPECIALISE(row_from_f64, type, base, index, src, count);
}

void dtype_to_f32(float *restrict dst, weftDataType_t type, const void *restrict base, int64_t index, int64_t count) {
    if (type == WEFT_DATA_HALF && cpu_has_f16c())
        f16_to_f32(dst, (const char *)base + 2 * index, count);
    else if (DTYPES[type].bits == 4)
        nibbles_to_f32(dst, type, base, index, count);
    else {
        int64_t done = vectors_to_f32(dst, type, base, index, count);
        rows_to_f32(dst + done, type, base, index + done, count - done);
    }
}

void dtype_from_f32(weftDataType_t type, void *restrict base, int64_t index, const float *restrict src, int64_t count) {
    if (type == WEFT_DATA_HALF && cpu_has_f16c())
        f16_from_f32((char *)base + 2 * index, src, count);
    else {
        int64_t done = vectors_from_f32(type, base, index, src, count);
        rows_from_f32(type, base, index + done, src + done, count - done);
    }
}

/* Floats rank above integers, and integers above booleans: promotion selects the higher kind. */
static int sort_of(weftDataType_t type) { return dtype_is_float(type) ? 2 : dtype_is_integer(type) ? 1 : 0; }

weftDataType_t dtype_promote(weftDataType_t a, weftDataType_t b) {
    if (a == b)
        return a;
    if (sort_of(a) != sort_of(b))
        return sort_of(a) > sort_of(b) ? a : b;
    int bits_a = dtype_of(a)->bits, bits_b = dtype_of(b)->bits;
    /* Two booleans of different width become bytes, because threads may write bytes independently. */
    if (sort_of(a) == 0)
        return WEFT_DATA_BYTE_BOOLEAN;
    /* A signed and an unsigned integer: a signed one that is wider than the unsigned one. */
    if (sort_of(a) == 1 && dtype_of(a)->is_signed != dtype_of(b)->is_signed)
        return (dtype_of(a)->is_signed ? bits_b : bits_a) < 32 && bits_a <= 32 && bits_b <= 32 ? WEFT_DATA_INT32
                                                                                               : WEFT_DATA_INT64;
    /* Two floats, or two integers of equal signedness: the wider one. */
    if (bits_a != bits_b)
        return bits_a > bits_b ? a : b;
    /* If two formats have the same width (bf16 and f16, e4m3 and e5m2), neither contains the other: they are promoted
       to the next wider float. */
    return bits_a < 16 ? WEFT_DATA_HALF : WEFT_DATA_FLOAT;
}

/* True if `type` represents every value of `other`. */
static bool holds(weftDataType_t type, weftDataType_t other) {
    const struct dtype *row = dtype_of(type), *held = dtype_of(other);
    /* Booleans are 0 and 1: every type whose range starts at or below 0 contains them, which excludes only e8m0. */
    if (row->is_boolean || held->is_boolean)
        return held->is_boolean && (row->is_boolean ? row->bits >= held->bits : row->lowest <= 0);
    if (row->lowest > held->lowest || row->max < held->max)
        return false;
    /* Between float and integer, the mantissa with its leading one is compared with the digits without the sign. */
    if (!row->is_float || !held->is_float)
        return !held->is_float && (!row->is_float || row->mantissa_bits + 1 >= held->bits - held->is_signed);
    return row->exponent_bits >= held->exponent_bits && row->mantissa_bits >= held->mantissa_bits;
}

/* Tries the two types themselves, then the others from narrow to wide; the rest becomes DOUBLE, to which INT64 is
   rounded. */
weftDataType_t dtype_common(weftDataType_t a, weftDataType_t b) {
    const weftDataType_t by_width[] = {
        a,
        b,
        WEFT_DATA_BYTE_BOOLEAN,
        WEFT_DATA_INT8,
        WEFT_DATA_UINT8,
        WEFT_DATA_INT32,
        WEFT_DATA_UINT32,
        WEFT_DATA_INT64,
        WEFT_DATA_HALF,
        WEFT_DATA_FLOAT,
    };
    for (size_t i = 0; i < sizeof by_width / sizeof *by_width; i++)
        if (holds(by_width[i], a) && holds(by_width[i], b))
            return by_width[i];
    return WEFT_DATA_DOUBLE;
}
