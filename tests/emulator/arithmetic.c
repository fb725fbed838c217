/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions that a lane runs by itself on its registers: integers, floats, bits, comparisons, moves. */
#include "machine.h"
#include "numbers.h"

#include <fenv.h>
#include <float.h>
#include <math.h>
#include <string.h>

/* Lanes of 16 bits or fewer are stored in the low bits of a 32-bit word; these macros read and write them as a type. */
#define READ(type, lanes, l) (*(const type *)(const void *)&(lanes)[l])

#define EACH(mask, ...)                                                                                                \
    if ((mask) == ~UINT32_C(0))                                                                                        \
        for (int l = 0; l < LANES; l++)                                                                                \
            __VA_ARGS__                                                                                                \
    else                                                                                                               \
        FOR_LANES(mask, l) __VA_ARGS__

/* Defines an operation with up to three operands of one type; a, b and c are the operands. */
#define OPERATION(name, storage, fetch, type, result)                                                                  \
    static enum outcome name(struct warp *w, const struct instruction *i, uint32_t mask) {                             \
        storage *d = fetch(w, &i->operands[0]);                                                                        \
        const storage *x = fetch(w, &i->operands[1]), *y = fetch(w, &i->operands[i->operand_count > 2 ? 2 : 1]);       \
        const storage *z = fetch(w, &i->operands[i->operand_count > 3 ? 3 : 1]);                                       \
        EACH(mask, {                                                                                                   \
            type a = READ(type, x, l), b = READ(type, y, l), c = READ(type, z, l);                                     \
            (void)b, (void)c;                                                                                          \
            type r = (type)(result);                                                                                   \
            storage whole = 0;                                                                                         \
            memcpy(&whole, &r, sizeof r);                                                                              \
            d[l] = whole;                                                                                              \
        })                                                                                                             \
        return NEXT;                                                                                                   \
    }
#define NARROW(name, type, result) OPERATION(name, uint32_t, narrow, type, result)
#define WIDE(name, type, result) OPERATION(name, uint64_t, wide, type, result)

/* Sums and products use unsigned arithmetic, because its overflow is defined; the bits equal those of signed
   arithmetic. */
NARROW(add_16, uint16_t, a + b)
NARROW(add_32, uint32_t, a + b)
WIDE(add_64, uint64_t, a + b)
NARROW(sub_16, uint16_t, a - b)
NARROW(sub_32, uint32_t, a - b)
WIDE(sub_64, uint64_t, a - b)
NARROW(mul_lo_16, uint16_t, ((uint32_t)a * b))
NARROW(mul_lo_32, uint32_t, (a * b))
WIDE(mul_lo_64, uint64_t, (a * b))
NARROW(mul_hi_s16, int16_t, ((int32_t)a * b) >> 16)
NARROW(mul_hi_u16, uint16_t, ((uint32_t)a * b) >> 16)
NARROW(mul_hi_s32, int32_t, ((int64_t)a * b) >> 32)
NARROW(mul_hi_u32, uint32_t, ((uint64_t)a * b) >> 32)
WIDE(mul_hi_s64, int64_t, ((__int128)a * b) >> 64)
WIDE(mul_hi_u64, uint64_t, ((unsigned __int128)a * b) >> 64)
NARROW(mad_lo_16, uint16_t, ((uint32_t)a * b) + c)
NARROW(mad_lo_32, uint32_t, (a * b) + c)
WIDE(mad_lo_64, uint64_t, (a * b) + c)
/* The quotient and the remainder of a division by zero are all ones, like in the code that the compiler emits for this
   chip. */
NARROW(div_s16, int16_t, b ? a / b : -1)
NARROW(div_u16, uint16_t, b ? a / b : UINT16_MAX)
NARROW(div_s32, int32_t, !b ? -1 : b == -1 ? (int32_t)(0 - (uint32_t)a) : a / b)
NARROW(div_u32, uint32_t, b ? a / b : UINT32_MAX)
WIDE(div_s64, int64_t, !b ? -1 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b)
WIDE(div_u64, uint64_t, b ? a / b : UINT64_MAX)
NARROW(rem_s16, int16_t, b ? a % b : -1)
NARROW(rem_u16, uint16_t, b ? a % b : UINT16_MAX)
NARROW(rem_s32, int32_t, !b ? -1 : b == -1 ? 0 : a % b)
NARROW(rem_u32, uint32_t, b ? a % b : UINT32_MAX)
WIDE(rem_s64, int64_t, !b ? -1 : b == -1 ? 0 : a % b)
WIDE(rem_u64, uint64_t, b ? a % b : UINT64_MAX)
NARROW(min_s16, int16_t, a < b ? a : b)
NARROW(min_u16, uint16_t, a < b ? a : b)
NARROW(min_s32, int32_t, a < b ? a : b)
NARROW(min_u32, uint32_t, a < b ? a : b)
WIDE(min_s64, int64_t, a < b ? a : b)
WIDE(min_u64, uint64_t, a < b ? a : b)
NARROW(max_s16, int16_t, a > b ? a : b)
NARROW(max_u16, uint16_t, a > b ? a : b)
NARROW(max_s32, int32_t, a > b ? a : b)
NARROW(max_u32, uint32_t, a > b ? a : b)
WIDE(max_s64, int64_t, a > b ? a : b)
WIDE(max_u64, uint64_t, a > b ? a : b)
NARROW(neg_16, uint16_t, 0 - a)
NARROW(neg_32, uint32_t, 0 - a)
WIDE(neg_64, uint64_t, 0 - a)
NARROW(abs_s16, int16_t, a < 0 ? -a : a)
NARROW(abs_s32, int32_t, a < 0 ? (int32_t)(0 - (uint32_t)a) : a)
WIDE(abs_s64, int64_t, a < 0 ? (int64_t)(0 - (uint64_t)a) : a)
NARROW(and_32, uint32_t, (a & b))
WIDE(and_64, uint64_t, (a & b))
NARROW(or_32, uint32_t, a | b)
WIDE(or_64, uint64_t, a | b)
NARROW(xor_32, uint32_t, a ^ b)
WIDE(xor_64, uint64_t, a ^ b)
NARROW(not_16, uint16_t, ~a)
NARROW(not_32, uint32_t, ~a)
WIDE(not_64, uint64_t, ~a)
NARROW(popc_32, uint32_t, __builtin_popcount(a))
NARROW(clz_32, uint32_t, a ? __builtin_clz(a) : 32)
NARROW(move_16, uint16_t, a)
NARROW(move_32, uint32_t, a)
WIDE(move_64, uint64_t, a)
NARROW(shf_l_wrap, uint32_t, ((uint64_t)b << 32 | a) << (c & 31) >> 32)
NARROW(shf_r_wrap, uint32_t, ((uint64_t)b << 32 | a) >> (c & 31))
NARROW(shf_l_clamp, uint32_t, ((uint64_t)b << 32 | a) << (c > 32 ? 32 : c) >> 32)
NARROW(shf_r_clamp, uint32_t, ((uint64_t)b << 32 | a) >> (c > 32 ? 32 : c))

static inline float flushed(float a) { return fabsf(a) < FLT_MIN ? copysignf(0, a) : a; }

/* Minimum and maximum are NaN if both operands are NaN, or if one is and NaN propagates; -0 is less than +0. */
static inline float least(float a, float b) {
    return isnan(a) ? isnan(b) ? CANONICAL_NAN : b : isnan(b) || a < b || (a == b && signbit(a)) ? a : b;
}
static inline float most(float a, float b) {
    return isnan(a) ? isnan(b) ? CANONICAL_NAN : b : isnan(b) || a > b || (a == b && !signbit(a)) ? a : b;
}
static inline float least_or_nan(float a, float b) { return isnan(a) || isnan(b) ? CANONICAL_NAN : least(a, b); }
static inline float most_or_nan(float a, float b) { return isnan(a) || isnan(b) ? CANONICAL_NAN : most(a, b); }

/* With and without .ftz: subnormal operands and results are zeros. */
#define FLOAT(name, result)                                                                                            \
    static inline float name##_of(float a, float b, float c) { return (void)b, (void)c, result; }                      \
    NARROW(name##_f32, float, name##_of(a, b, c))                                                                      \
    NARROW(name##_ftz_f32, float, flushed(name##_of(flushed(a), flushed(b), flushed(c))))
FLOAT(add, a + b)
FLOAT(sub, a - b)
FLOAT(mul, (a * b))
FLOAT(div, a / b)
FLOAT(fma, fmaf(a, b, c))
FLOAT(neg, -a)
FLOAT(abs, fabsf(a))
FLOAT(sqrt, sqrtf(a))
FLOAT(rcp, 1.0f / a)
FLOAT(rsqrt, (float)(1.0 / sqrt((double)a)))
FLOAT(ex2, exp2f(a))
FLOAT(lg2, log2f(a))
FLOAT(sin, sinf(a))
FLOAT(cos, cosf(a))
FLOAT(min, least(a, b))
FLOAT(max, most(a, b))
FLOAT(min_nan, least_or_nan(a, b))
FLOAT(max_nan, most_or_nan(a, b))
/* .approx: relative error of up to 2^-11, like on hardware. */
static inline float eleven_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x1000) & ~UINT32_C(0x1FFF);
    memcpy(&value, &bits, sizeof bits);
    return value;
}
NARROW(tanh_f32, float, isnan(a) ? a : eleven_bits(tanhf(a)))
NARROW(copysign_f32, float, copysignf(b, a))
WIDE(add_f64, double, a + b)
WIDE(sub_f64, double, a - b)
WIDE(mul_f64, double, (a * b))
WIDE(div_f64, double, a / b)
WIDE(fma_f64, double, fma(a, b, c))
WIDE(neg_f64, double, -a)
WIDE(abs_f64, double, fabs(a))
WIDE(sqrt_f64, double, sqrt(a))
WIDE(rcp_f64, double, 1.0 / a)
WIDE(rsqrt_f64, double, 1.0 / sqrt(a))
/* .approx.ftz: keeps the upper word of the result; subnormal numbers become zeros. */
static inline double coarse(double value) {
    uint64_t bits;
    value = fabs(value) < DBL_MIN ? copysign(0, value) : value;
    memcpy(&bits, &value, sizeof bits);
    bits &= ~UINT64_C(0xFFFFFFFF);
    memcpy(&value, &bits, sizeof bits);
    return value;
}
WIDE(rcp_ftz_f64, double, coarse(1.0 / (fabs(a) < DBL_MIN ? copysign(0, a) : a)))
WIDE(rsqrt_ftz_f64, double, coarse(1.0 / sqrt(fabs(a) < DBL_MIN ? copysign(0, a) : a)))
WIDE(copysign_f64, double, copysign(b, a))
WIDE(min_f64, double, isnan(a) ? b : isnan(b) ? a : a < b || (a == b && signbit(a)) ? a : b)
WIDE(max_f64, double, isnan(a) ? b : isnan(b) ? a : a > b || (a == b && !signbit(a)) ? a : b)

/* Float operations that do not round to nearest. The part of the opcode before the rounding mode names the
   operation. */
static enum outcome directed(struct warp *w, const struct instruction *i, uint32_t mask) {
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    bool is_wide = i->type == TYPE_F64;
    fesetround(modes[i->mode]);
    FOR_LANES(mask, l) {
        volatile double wide_of[3] = {0};
        volatile float of[3] = {0};
        for (int k = 0; k < 3 && k + 1 < i->operand_count; k++) {
            of[k] = READ(float, narrow(w, &i->operands[k + 1]), l);
            wide_of[k] = is_wide ? READ(double, wide(w, &i->operands[k + 1]), l) : 0;
        }
        double r_wide = i->opcode[0] == 'f'   ? fma(wide_of[0], wide_of[1], wide_of[2])
                        : i->opcode[0] == 'a' ? wide_of[0] + wide_of[1]
                        : i->opcode[0] == 's' ? wide_of[0] - wide_of[1]
                        : i->opcode[0] == 'm' ? wide_of[0] * wide_of[1]
                                              : wide_of[0] / wide_of[1];
        float r = i->opcode[0] == 'f'   ? fmaf(of[0], of[1], of[2])
                  : i->opcode[0] == 'a' ? of[0] + of[1]
                  : i->opcode[0] == 's' ? of[0] - of[1]
                  : i->opcode[0] == 'm' ? of[0] * of[1]
                                        : of[0] / of[1];
        if (is_wide)
            memcpy(&wide(w, &i->operands[0])[l], &r_wide, sizeof r_wide);
        else
            memcpy(&narrow(w, &i->operands[0])[l], &r, sizeof r);
    }
    fesetround(FE_TONEAREST);
    return NEXT;
}

/* add, sub and mad with carry: each reads and writes a carry bit (sub: a borrow bit) in addition to its 32-bit
   result. */
static enum outcome carrying(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_mad = i->opcode[0] == 'm', is_sub = i->opcode[0] == 's', is_high = ptx_has(i->opcode, "hi");
    bool takes = i->opcode[3] == 'c', leaves = ptx_has(i->opcode, "cc");
    const uint32_t *x = narrow(w, &i->operands[1]), *y = narrow(w, &i->operands[2]);
    const uint32_t *z = narrow(w, &i->operands[is_mad ? 3 : 2]);
    uint32_t *d = narrow(w, &i->operands[0]), carry = w->carry;
    FOR_LANES(mask, l) {
        uint64_t product =
            i->type == TYPE_S32 ? (uint64_t)((int64_t)(int32_t)x[l] * (int32_t)y[l]) : (uint64_t)x[l] * y[l];
        uint64_t first = !is_mad ? x[l] : is_high ? product >> 32 : (uint32_t)product, in = takes && carry >> l & 1;
        first = (uint32_t)first;
        uint64_t whole = is_sub ? first - z[l] - in : first + z[l] + in;
        d[l] = (uint32_t)whole;
        if (leaves)
            w->carry = (w->carry & ~(UINT32_C(1) << l)) | (uint32_t)(whole >> 32 & 1) << l;
    }
    return NEXT;
}

/* Pairs of halves; each result is rounded once. */
static uint32_t pair(float (*from)(uint16_t), uint16_t (*to)(float), float (*f)(float, float, float), uint32_t a,
                     uint32_t b, uint32_t c) {
    uint32_t low = to(f(from((uint16_t)a), from((uint16_t)b), from((uint16_t)c)));
    return low | (uint32_t)to(f(from((uint16_t)(a >> 16)), from((uint16_t)(b >> 16)), from((uint16_t)(c >> 16)))) << 16;
}
static float half_fma(float a, float b, float c) { return (float)((double)a * (double)b + (double)c); }
static float half_add(float a, float b, float c) { return (void)c, a + b; }
static float half_sub(float a, float b, float c) { return (void)c, a - b; }
static float half_mul(float a, float b, float c) { return (void)c, a * b; }
static float half_max(float a, float b, float c) { return (void)c, most(a, b); }
static float half_min(float a, float b, float c) { return (void)c, least(a, b); }
static float half_max_nan(float a, float b, float c) { return (void)c, most_or_nan(a, b); }
static float half_min_nan(float a, float b, float c) { return (void)c, least_or_nan(a, b); }
static float bf16_at(uint16_t bits) { return from_bf16(bits); }
static float f16_at(uint16_t bits) { return from_f16(bits); }
static uint16_t bf16_of(float value) { return to_bf16(value); }
static uint16_t f16_of(float value) { return to_f16(value); }
#define HALVES(name, function)                                                                                         \
    NARROW(name##_bf16x2, uint32_t, pair(bf16_at, bf16_of, function, a, b, c))                                         \
    NARROW(name##_f16x2, uint32_t, pair(f16_at, f16_of, function, a, b, c))                                            \
    NARROW(name##_bf16, uint16_t, pair(bf16_at, bf16_of, function, a, b, c))                                           \
    NARROW(name##_f16, uint16_t, pair(f16_at, f16_of, function, a, b, c))
HALVES(fma, half_fma)
HALVES(add, half_add)
HALVES(sub, half_sub)
HALVES(mul, half_mul)
HALVES(max, half_max)
HALVES(min, half_min)
HALVES(max_nan, half_max_nan)
HALVES(min_nan, half_min_nan)
NARROW(neg_x2, uint32_t, a ^ 0x80008000)
NARROW(abs_x2, uint32_t, a & 0x7FFF7FFF)
NARROW(neg_half, uint16_t, a ^ 0x8000)
NARROW(abs_half, uint16_t, a & 0x7FFF)

/* ---- Operations with operands of different types ----------------------------------------------------------------- */

/* Shifts by at least the width of the type produce zeros, or copies of the sign bit. */
#define SHIFT(name, storage, fetch, type, bits, expression)                                                            \
    static enum outcome name(struct warp *w, const struct instruction *i, uint32_t mask) {                             \
        storage *d = fetch(w, &i->operands[0]);                                                                        \
        const storage *x = fetch(w, &i->operands[1]);                                                                  \
        const uint32_t *y = narrow(w, &i->operands[2]);                                                                \
        EACH(mask, {                                                                                                   \
            type a = READ(type, x, l);                                                                                 \
            uint32_t n = y[l] < (bits) ? y[l] : (bits);                                                                \
            type r = (type)(expression);                                                                               \
            storage whole = 0;                                                                                         \
            memcpy(&whole, &r, sizeof r);                                                                              \
            d[l] = whole;                                                                                              \
        })                                                                                                             \
        return NEXT;                                                                                                   \
    }
SHIFT(shl_16, uint32_t, narrow, uint16_t, 16, (uint64_t)a << n)
SHIFT(shl_32, uint32_t, narrow, uint32_t, 32, (uint64_t)a << n)
SHIFT(shl_64, uint64_t, wide, uint64_t, 64, n < 64 ? a << n : 0)
SHIFT(shr_u16, uint32_t, narrow, uint16_t, 16, (uint64_t)a >> n)
SHIFT(shr_u32, uint32_t, narrow, uint32_t, 32, (uint64_t)a >> n)
SHIFT(shr_u64, uint64_t, wide, uint64_t, 64, n < 64 ? a >> n : 0)
SHIFT(shr_s16, uint32_t, narrow, int16_t, 16, (int64_t)a >> n)
SHIFT(shr_s32, uint32_t, narrow, int32_t, 32, (int64_t)a >> n)
SHIFT(shr_s64, uint64_t, wide, int64_t, 64, n < 64 ? a >> n : a < 0 ? -1 : 0)

/* Products with twice the width of their factors. */
#define WIDENING(name, storage, fetch, type, from, expression)                                                         \
    static enum outcome name(struct warp *w, const struct instruction *i, uint32_t mask) {                             \
        storage *d = fetch(w, &i->operands[0]);                                                                        \
        const uint32_t *x = narrow(w, &i->operands[1]), *y = narrow(w, &i->operands[2]);                               \
        const storage *z = i->operand_count > 3 ? fetch(w, &i->operands[3]) : d;                                       \
        EACH(mask, {                                                                                                   \
            type a = (type)READ(from, x, l), b = (type)READ(from, y, l);                                               \
            storage c = z[l];                                                                                          \
            (void)c;                                                                                                   \
            d[l] = (storage)(expression);                                                                              \
        })                                                                                                             \
        return NEXT;                                                                                                   \
    }
WIDENING(mul_wide_s32, uint64_t, wide, int64_t, int32_t, (a * b))
WIDENING(mul_wide_u32, uint64_t, wide, uint64_t, uint32_t, (a * b))
WIDENING(mul_wide_s16, uint32_t, narrow, int32_t, int16_t, (a * b))
WIDENING(mul_wide_u16, uint32_t, narrow, uint32_t, uint16_t, (a * b))
WIDENING(mad_wide_s32, uint64_t, wide, int64_t, int32_t, (uint64_t)(a * b) + c)
WIDENING(mad_wide_u32, uint64_t, wide, uint64_t, uint32_t, (a * b) + c)

static enum outcome popc_64(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) narrow(w, &i->operands[0])[l] = (uint32_t)__builtin_popcountll(wide(w, &i->operands[1])[l]);
    return NEXT;
}

static enum outcome clz_64(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        uint64_t a = wide(w, &i->operands[1])[l];
        narrow(w, &i->operands[0])[l] = a ? (uint32_t)__builtin_clzll(a) : 64;
    }
    return NEXT;
}

static enum outcome brev(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        uint32_t a = narrow(w, &i->operands[1])[l], r = 0;
        for (int bit = 0; bit < 32; bit++)
            r |= (a >> bit & 1) << (31 - bit);
        narrow(w, &i->operands[0])[l] = r;
    }
    return NEXT;
}

/* Position of the highest set bit or, for signed types, of the highest bit that differs from the sign. With .shiftamt:
   its distance from the top bit. */
static enum outcome bfind(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_shift = ptx_has(i->opcode, "shiftamt"), is_wide = ptx_type_bytes((enum ptx_type)i->type) == 8;
    bool is_signed = i->type == TYPE_S32 || i->type == TYPE_S64;
    FOR_LANES(mask, l) {
        uint64_t a = is_wide ? wide(w, &i->operands[1])[l] : narrow(w, &i->operands[1])[l];
        int bits = is_wide ? 64 : 32;
        if (is_signed && (a >> (bits - 1) & 1))
            a = is_wide ? ~a : (uint32_t)~a;
        uint32_t r = UINT32_MAX;
        if (a)
            r = 63 - (uint32_t)__builtin_clzll(a);
        narrow(w, &i->operands[0])[l] = a && is_shift ? (uint32_t)bits - 1 - r : r;
    }
    return NEXT;
}

static enum outcome bfe(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_wide = ptx_type_bytes((enum ptx_type)i->type) == 8, is_signed = i->type == TYPE_S32 || i->type == TYPE_S64;
    uint32_t bits = is_wide ? 64 : 32;
    FOR_LANES(mask, l) {
        uint64_t a = is_wide ? wide(w, &i->operands[1])[l] : narrow(w, &i->operands[1])[l];
        uint32_t at = narrow(w, &i->operands[2])[l] & 255, count = narrow(w, &i->operands[3])[l] & 255;
        uint64_t sign = 0, r = 0;
        uint32_t last = at + count - 1 < bits - 1 ? at + count - 1 : bits - 1;
        if (is_signed && count)
            sign = a >> last & 1;
        for (uint32_t bit = 0; bit < bits; bit++)
            r |= (bit < count && at + bit < bits ? a >> (at + bit) & 1 : sign) << bit;
        set_value(w, &i->operands[0], l, r);
    }
    return NEXT;
}

static enum outcome bfi(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_wide = ptx_type_bytes((enum ptx_type)i->type) == 8;
    uint32_t bits = is_wide ? 64 : 32;
    FOR_LANES(mask, l) {
        uint64_t a = is_wide ? wide(w, &i->operands[1])[l] : narrow(w, &i->operands[1])[l];
        uint64_t b = is_wide ? wide(w, &i->operands[2])[l] : narrow(w, &i->operands[2])[l];
        uint32_t at = narrow(w, &i->operands[3])[l] & 255, count = narrow(w, &i->operands[4])[l] & 255;
        for (uint32_t bit = 0; bit < count && at + bit < bits; bit++)
            b = (b & ~(UINT64_C(1) << (at + bit))) | (a >> bit & 1) << (at + bit);
        set_value(w, &i->operands[0], l, b);
    }
    return NEXT;
}

static enum outcome lop3(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t table = narrow(w, &i->operands[4])[0];
    FOR_LANES(mask, l) {
        uint32_t a = narrow(w, &i->operands[1])[l], b = narrow(w, &i->operands[2])[l],
                 c = narrow(w, &i->operands[3])[l], r = 0;
        for (uint32_t k = 0; k < 8; k++)
            if (table >> k & 1)
                r |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
        narrow(w, &i->operands[0])[l] = r;
    }
    return NEXT;
}

static enum outcome prmt(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) {
        uint64_t bytes = narrow(w, &i->operands[1])[l] | (uint64_t)narrow(w, &i->operands[2])[l] << 32;
        uint32_t choice = narrow(w, &i->operands[3])[l], r = 0;
        for (int k = 0; k < 4; k++) {
            uint32_t byte = (uint32_t)(bytes >> (8 * (choice >> (4 * k) & 7)) & 255);
            if (choice >> (4 * k) & 8)
                byte = byte & 128 ? 255 : 0;
            r |= byte << (8 * k);
        }
        narrow(w, &i->operands[0])[l] = r;
    }
    return NEXT;
}

/* dp4a: the sum of four products of bytes. */
static enum outcome dp4a(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool a_signed = i->from == TYPE_S32, b_signed = i->type == TYPE_S32;
    FOR_LANES(mask, l) {
        uint32_t a = narrow(w, &i->operands[1])[l], b = narrow(w, &i->operands[2])[l],
                 sum = narrow(w, &i->operands[3])[l];
        for (int k = 0; k < 32; k += 8) {
            int32_t x = a_signed ? (int8_t)(a >> k) : (uint8_t)(a >> k),
                    y = b_signed ? (int8_t)(b >> k) : (uint8_t)(b >> k);
            sum += (uint32_t)(x * y);
        }
        narrow(w, &i->operands[0])[l] = sum;
    }
    return NEXT;
}

/* dp2a: multiplies the two halves of a by the low or the high two bytes of b, and adds the products. */
static enum outcome dp2a(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool a_signed = i->from == TYPE_S32, b_signed = i->type == TYPE_S32;
    int first = ptx_has(i->opcode, "hi") ? 16 : 0;
    FOR_LANES(mask, l) {
        uint32_t a = narrow(w, &i->operands[1])[l], b = narrow(w, &i->operands[2])[l],
                 sum = narrow(w, &i->operands[3])[l];
        for (int k = 0; k < 2; k++) {
            int32_t x = a_signed ? (int16_t)(a >> 16 * k) : (uint16_t)(a >> 16 * k),
                    y = b_signed ? (int8_t)(b >> (first + 8 * k)) : (uint8_t)(b >> (first + 8 * k));
            sum += (uint32_t)x * (uint32_t)y;
        }
        narrow(w, &i->operands[0])[l] = sum;
    }
    return NEXT;
}

static enum outcome select_narrow(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint32_t *d = narrow(w, &i->operands[0]), chosen = predicate(w, &i->operands[3]);
    const uint32_t *a = narrow(w, &i->operands[1]), *b = narrow(w, &i->operands[2]);
    FOR_LANES(mask, l) d[l] = chosen >> l & 1 ? a[l] : b[l];
    return NEXT;
}

static enum outcome select_wide(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint64_t *d = wide(w, &i->operands[0]);
    uint32_t chosen = predicate(w, &i->operands[3]);
    const uint64_t *a = wide(w, &i->operands[1]), *b = wide(w, &i->operands[2]);
    FOR_LANES(mask, l) d[l] = chosen >> l & 1 ? a[l] : b[l];
    return NEXT;
}

/* ---- Predicates -------------------------------------------------------------------------------------------------- */

#define PREDICATES(name, expression)                                                                                   \
    static enum outcome name(struct warp *w, const struct instruction *i, uint32_t mask) {                             \
        uint32_t a = predicate(w, &i->operands[1]), b = i->operand_count > 2 ? predicate(w, &i->operands[2]) : 0;      \
        (void)b;                                                                                                       \
        set_predicate(w, result_number(&i->operands[0]), mask, expression);                                            \
        return NEXT;                                                                                                   \
    }
PREDICATES(and_pred, (a & b))
PREDICATES(or_pred, a | b)
PREDICATES(xor_pred, a ^ b)
PREDICATES(not_pred, ~a)
PREDICATES(move_pred, a)

enum { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, IS_NAN, COMPARISONS };
static const char *const comparisons[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                          "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
enum { COMBINE_NOT, COMBINE_AND, COMBINE_OR, COMBINE_XOR };

/* Unordered comparisons are true if an operand is NaN. */
static bool compares(double a, double b, int how) {
    bool has_nan = isnan(a) || isnan(b);
    switch (how) {
    case EQ:
        return a == b;
    case NE:
        return !has_nan && a != b;
    case LT:
        return a < b;
    case LE:
        return a <= b;
    case GT:
        return a > b;
    case GE:
        return a >= b;
    case EQU:
        return has_nan || a == b;
    case NEU:
        return has_nan || a != b;
    case LTU:
        return has_nan || a < b;
    case LEU:
        return has_nan || a <= b;
    case GTU:
        return has_nan || a > b;
    case GEU:
        return has_nan || a >= b;
    case NUM:
        return !has_nan;
    default:
        return has_nan;
    }
}

#define INTEGER_COMPARISON(name, storage, fetch, type)                                                                 \
    static uint32_t name(const struct warp *w, const struct instruction *i) {                                          \
        const storage *x = fetch(w, &i->operands[1]), *y = fetch(w, &i->operands[2]);                                  \
        uint32_t bits = 0;                                                                                             \
        switch (i->mode) {                                                                                             \
        case EQ:                                                                                                       \
            for (int l = 0; l < LANES; l++)                                                                            \
                bits |= (uint32_t)(READ(type, x, l) == READ(type, y, l)) << l;                                         \
            break;                                                                                                     \
        case NE:                                                                                                       \
            for (int l = 0; l < LANES; l++)                                                                            \
                bits |= (uint32_t)(READ(type, x, l) != READ(type, y, l)) << l;                                         \
            break;                                                                                                     \
        case LT:                                                                                                       \
            for (int l = 0; l < LANES; l++)                                                                            \
                bits |= (uint32_t)(READ(type, x, l) < READ(type, y, l)) << l;                                          \
            break;                                                                                                     \
        case LE:                                                                                                       \
            for (int l = 0; l < LANES; l++)                                                                            \
                bits |= (uint32_t)(READ(type, x, l) <= READ(type, y, l)) << l;                                         \
            break;                                                                                                     \
        case GT:                                                                                                       \
            for (int l = 0; l < LANES; l++)                                                                            \
                bits |= (uint32_t)(READ(type, x, l) > READ(type, y, l)) << l;                                          \
            break;                                                                                                     \
        default:                                                                                                       \
            for (int l = 0; l < LANES; l++)                                                                            \
                bits |= (uint32_t)(READ(type, x, l) >= READ(type, y, l)) << l;                                         \
        }                                                                                                              \
        return bits;                                                                                                   \
    }
INTEGER_COMPARISON(compare_s16, uint32_t, narrow, int16_t)
INTEGER_COMPARISON(compare_u16, uint32_t, narrow, uint16_t)
INTEGER_COMPARISON(compare_s32, uint32_t, narrow, int32_t)
INTEGER_COMPARISON(compare_u32, uint32_t, narrow, uint32_t)
INTEGER_COMPARISON(compare_s64, uint64_t, wide, int64_t)
INTEGER_COMPARISON(compare_u64, uint64_t, wide, uint64_t)

static uint32_t compare_f32(const struct warp *w, const struct instruction *i) {
    const uint32_t *x = narrow(w, &i->operands[1]), *y = narrow(w, &i->operands[2]);
    uint32_t bits = 0;
    for (int l = 0; l < LANES; l++)
        bits |= (uint32_t)compares((double)READ(float, x, l), (double)READ(float, y, l), i->mode) << l;
    return bits;
}

static uint32_t compare_f64(const struct warp *w, const struct instruction *i) {
    const uint64_t *x = wide(w, &i->operands[1]), *y = wide(w, &i->operands[2]);
    uint32_t bits = 0;
    for (int l = 0; l < LANES; l++)
        bits |= (uint32_t)compares(READ(double, x, l), READ(double, y, l), i->mode) << l;
    return bits;
}

/* Compares two halves: the low ones or the high ones. */
static uint32_t compare_halves(const struct warp *w, const struct instruction *i, int shift) {
    const uint32_t *x = narrow(w, &i->operands[1]), *y = narrow(w, &i->operands[2]);
    bool is_bf16 = i->type == TYPE_BF16 || i->type == TYPE_BF16X2;
    uint32_t bits = 0;
    for (int l = 0; l < LANES; l++) {
        uint16_t a = (uint16_t)(x[l] >> shift), b = (uint16_t)(y[l] >> shift);
        bits |= (uint32_t)compares(is_bf16 ? (double)from_bf16(a) : (double)from_f16(a),
                                   is_bf16 ? (double)from_bf16(b) : (double)from_f16(b), i->mode)
                << l;
    }
    return bits;
}

static uint32_t compare(const struct warp *w, const struct instruction *i) {
    switch (i->type) {
    case TYPE_S16:
        return compare_s16(w, i);
    case TYPE_U16:
    case TYPE_B16:
        return compare_u16(w, i);
    case TYPE_S32:
        return compare_s32(w, i);
    case TYPE_U32:
    case TYPE_B32:
        return compare_u32(w, i);
    case TYPE_S64:
        return compare_s64(w, i);
    case TYPE_U64:
    case TYPE_B64:
        return compare_u64(w, i);
    case TYPE_F32:
        return compare_f32(w, i);
    case TYPE_F64:
        return compare_f64(w, i);
    default:
        return compare_halves(w, i, 0);
    }
}

static uint32_t combine(const struct warp *w, const struct instruction *i, uint32_t bits) {
    if (i->combine == COMBINE_NOT)
        return bits;
    uint32_t other = predicate(w, &i->operands[3]);
    return i->combine == COMBINE_AND ? bits & other : i->combine == COMBINE_OR ? bits | other : bits ^ other;
}

static enum outcome setp(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_pair = i->type == TYPE_F16X2 || i->type == TYPE_BF16X2;
    uint32_t bits = compare(w, i), others = combine(w, i, is_pair ? compare_halves(w, i, 16) : ~bits);
    set_predicate(w, result_number(&i->operands[0]), mask, combine(w, i, bits));
    set_predicate(w, i->operands[0].other, mask, others);
    return NEXT;
}

/* set.eq.u32.f16x2: sets all bits of a half, or of the whole register, if the comparison is true; float results become
   1. */
static enum outcome set(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_pair = i->type == TYPE_F16X2 || i->type == TYPE_BF16X2;
    uint32_t low = combine(w, i, compare(w, i)), high = is_pair ? combine(w, i, compare_halves(w, i, 16)) : low;
    uint32_t one = i->from == TYPE_F32                              ? 0x3F800000
                   : i->from == TYPE_F16 || i->from == TYPE_F16X2   ? 0x3C003C00
                   : i->from == TYPE_BF16 || i->from == TYPE_BF16X2 ? 0x3F803F80
                                                                    : UINT32_MAX;
    FOR_LANES(mask, l)
    narrow(w, &i->operands[0])[l] = one & ((low >> l & 1 ? 0xFFFFu : 0) | (high >> l & 1 ? 0xFFFF0000u : 0));
    return NEXT;
}

/* ---- Moves ------------------------------------------------------------------------------------------------------- */

/* mov.b64 %rd, {%r1, %r2} and the reverse. */
static enum outcome pack(struct warp *w, const struct instruction *i, uint32_t mask) {
    const struct operand *d = &i->operands[0], *s = &i->operands[1];
    unsigned shift = ptx_type_bytes((enum ptx_type)i->type) * 8u / s->count;
    FOR_LANES(mask, l) {
        uint64_t whole = 0;
        for (unsigned k = 0; k < s->count; k++)
            whole |= (lane_value(w, &s->items[k], l) & ((UINT64_C(1) << shift) - 1)) << (k * shift);
        set_value(w, d, l, whole);
    }
    return NEXT;
}

static enum outcome unpack(struct warp *w, const struct instruction *i, uint32_t mask) {
    const struct operand *d = &i->operands[0], *s = &i->operands[1];
    unsigned shift = ptx_type_bytes((enum ptx_type)i->type) * 8u / d->count;
    FOR_LANES(mask, l) {
        uint64_t whole = lane_value(w, s, l);
        for (unsigned k = 0; k < d->count; k++)
            if (d->items[k].kind == OPERAND_VALUE)
                narrow(w, &d->items[k])[l] = (uint32_t)(whole >> (k * shift) & ((UINT64_C(1) << shift) - 1));
    }
    return NEXT;
}

/* Converts addresses of the shared and local windows to generic ones; global and parameter addresses are generic
   already. */
static enum outcome cvta(struct warp *w, const struct instruction *i, uint32_t mask) {
    bool is_shared = ptx_has(i->opcode, "shared"), is_local = ptx_has(i->opcode, "local");
    uint64_t window = is_shared ? SHARED_WINDOW : is_local ? LOCAL_WINDOW : 0;
    FOR_LANES(mask, l) {
        uint64_t address = lane_value(w, &i->operands[1], l);
        set_value(w, &i->operands[0], l, ptx_has(i->opcode, "to") ? address & ~window : address | window);
    }
    return NEXT;
}

/* The address of a block's shared memory as seen by every block of its cluster. */
static enum outcome mapa(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint64_t window = i->operands[0].file == FILE_WIDE && !ptx_has(i->opcode, "shared::cluster") ? SHARED_WINDOW : 0;
    FOR_LANES(mask, l) {
        uint32_t rank = narrow(w, &i->operands[2])[l];
        if (rank >= (uint32_t)w->block->cluster->block_count)
            machine_fail(w, "the address of block %u in a cluster of %d", rank, w->block->cluster->block_count);
        uint32_t address = ((uint32_t)lane_value(w, &i->operands[1], l) & OWN_ADDRESS) | (rank + 1)
                                                                                             << SHARED_ADDRESS_BITS;
        set_value(w, &i->operands[0], l, address | window);
    }
    return NEXT;
}

/* Cache policies have no effect in the emulator. */
static enum outcome createpolicy(struct warp *w, const struct instruction *i, uint32_t mask) {
    FOR_LANES(mask, l) wide(w, &i->operands[0])[l] = 1;
    return NEXT;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    operation run;
} operations[] = {
    {"add.s16", add_16},
    {"add.u16", add_16},
    {"add.s32", add_32},
    {"add.u32", add_32},
    {"add.s64", add_64},
    {"add.u64", add_64},
    {"sub.s16", sub_16},
    {"sub.u16", sub_16},
    {"sub.s32", sub_32},
    {"sub.u32", sub_32},
    {"sub.s64", sub_64},
    {"sub.u64", sub_64},
    {"mul.lo.s16", mul_lo_16},
    {"mul.lo.u16", mul_lo_16},
    {"mul.lo.s32", mul_lo_32},
    {"mul.lo.u32", mul_lo_32},
    {"mul.lo.s64", mul_lo_64},
    {"mul.lo.u64", mul_lo_64},
    {"mul.hi.s16", mul_hi_s16},
    {"mul.hi.u16", mul_hi_u16},
    {"mul.hi.s32", mul_hi_s32},
    {"mul.hi.u32", mul_hi_u32},
    {"mul.hi.s64", mul_hi_s64},
    {"mul.hi.u64", mul_hi_u64},
    {"mul.wide.s16", mul_wide_s16},
    {"mul.wide.u16", mul_wide_u16},
    {"mul.wide.s32", mul_wide_s32},
    {"mul.wide.u32", mul_wide_u32},
    {"mad.lo.s16", mad_lo_16},
    {"mad.lo.u16", mad_lo_16},
    {"mad.lo.s32", mad_lo_32},
    {"mad.lo.u32", mad_lo_32},
    {"mad.lo.s64", mad_lo_64},
    {"mad.lo.u64", mad_lo_64},
    {"mad.wide.s32", mad_wide_s32},
    {"mad.wide.u32", mad_wide_u32},
    {"div.s16", div_s16},
    {"div.u16", div_u16},
    {"div.s32", div_s32},
    {"div.u32", div_u32},
    {"div.s64", div_s64},
    {"div.u64", div_u64},
    {"rem.s16", rem_s16},
    {"rem.u16", rem_u16},
    {"rem.s32", rem_s32},
    {"rem.u32", rem_u32},
    {"rem.s64", rem_s64},
    {"rem.u64", rem_u64},
    {"min.s16", min_s16},
    {"min.u16", min_u16},
    {"min.s32", min_s32},
    {"min.u32", min_u32},
    {"min.s64", min_s64},
    {"min.u64", min_u64},
    {"max.s16", max_s16},
    {"max.u16", max_u16},
    {"max.s32", max_s32},
    {"max.u32", max_u32},
    {"max.s64", max_s64},
    {"max.u64", max_u64},
    {"neg.s16", neg_16},
    {"neg.s32", neg_32},
    {"neg.s64", neg_64},
    {"abs.s16", abs_s16},
    {"abs.s32", abs_s32},
    {"abs.s64", abs_s64},
    {"and.b16", and_32},
    {"and.b32", and_32},
    {"and.b64", and_64},
    {"and.pred", and_pred},
    {"or.b16", or_32},
    {"or.b32", or_32},
    {"or.b64", or_64},
    {"or.pred", or_pred},
    {"xor.b16", xor_32},
    {"xor.b32", xor_32},
    {"xor.b64", xor_64},
    {"xor.pred", xor_pred},
    {"not.b16", not_16},
    {"not.b32", not_32},
    {"not.b64", not_64},
    {"not.pred", not_pred},
    {"popc.b32", popc_32},
    {"popc.b64", popc_64},
    {"clz.b32", clz_32},
    {"clz.b64", clz_64},
    {"brev.b32", brev},
    {"shl.b16", shl_16},
    {"shl.b32", shl_32},
    {"shl.b64", shl_64},
    {"shr.b16", shr_u16},
    {"shr.b32", shr_u32},
    {"shr.b64", shr_u64},
    {"shr.u16", shr_u16},
    {"shr.u32", shr_u32},
    {"shr.u64", shr_u64},
    {"shr.s16", shr_s16},
    {"shr.s32", shr_s32},
    {"shr.s64", shr_s64},
    {"shf.l.wrap.b32", shf_l_wrap},
    {"shf.r.wrap.b32", shf_r_wrap},
    {"shf.l.clamp.b32", shf_l_clamp},
    {"shf.r.clamp.b32", shf_r_clamp},
    {"lop3.b32", lop3},
    {"prmt.b32", prmt},
    {"dp2a.lo.s32.s32", dp2a},
    {"dp2a.lo.s32.u32", dp2a},
    {"dp2a.lo.u32.s32", dp2a},
    {"dp2a.lo.u32.u32", dp2a},
    {"dp2a.hi.s32.s32", dp2a},
    {"dp2a.hi.s32.u32", dp2a},
    {"dp2a.hi.u32.s32", dp2a},
    {"dp2a.hi.u32.u32", dp2a},
    {"dp4a.s32.s32", dp4a},
    {"dp4a.u32.u32", dp4a},
    {"dp4a.s32.u32", dp4a},
    {"dp4a.u32.s32", dp4a},
    {"add.f32", add_f32},
    {"add.ftz.f32", add_ftz_f32},
    {"sub.f32", sub_f32},
    {"sub.ftz.f32", sub_ftz_f32},
    {"mul.f32", mul_f32},
    {"mul.ftz.f32", mul_ftz_f32},
    {"div.f32", div_f32},
    {"div.ftz.f32", div_ftz_f32},
    {"fma.f32", fma_f32},
    {"fma.ftz.f32", fma_ftz_f32},
    {"neg.f32", neg_f32},
    {"neg.ftz.f32", neg_ftz_f32},
    {"abs.f32", abs_f32},
    {"abs.ftz.f32", abs_ftz_f32},
    {"sqrt.f32", sqrt_f32},
    {"sqrt.ftz.f32", sqrt_ftz_f32},
    {"rcp.f32", rcp_f32},
    {"rcp.ftz.f32", rcp_ftz_f32},
    {"rsqrt.f32", rsqrt_f32},
    {"rsqrt.ftz.f32", rsqrt_ftz_f32},
    {"ex2.f32", ex2_f32},
    {"ex2.ftz.f32", ex2_ftz_f32},
    {"lg2.f32", lg2_f32},
    {"lg2.ftz.f32", lg2_ftz_f32},
    {"sin.f32", sin_f32},
    {"sin.ftz.f32", sin_ftz_f32},
    {"cos.f32", cos_f32},
    {"cos.ftz.f32", cos_ftz_f32},
    {"min.f32", min_f32},
    {"min.ftz.f32", min_ftz_f32},
    {"max.f32", max_f32},
    {"max.ftz.f32", max_ftz_f32},
    {"min.NaN.f32", min_nan_f32},
    {"max.NaN.f32", max_nan_f32},
    {"min.ftz.NaN.f32", min_nan_ftz_f32},
    {"max.ftz.NaN.f32", max_nan_ftz_f32},
    {"tanh.f32", tanh_f32},
    {"copysign.f32", copysign_f32},
    {"add.f64", add_f64},
    {"sub.f64", sub_f64},
    {"mul.f64", mul_f64},
    {"div.f64", div_f64},
    {"fma.f64", fma_f64},
    {"neg.f64", neg_f64},
    {"abs.f64", abs_f64},
    {"sqrt.f64", sqrt_f64},
    {"rcp.f64", rcp_f64},
    {"rsqrt.f64", rsqrt_f64},
    {"rcp.ftz.f64", rcp_ftz_f64},
    {"rsqrt.ftz.f64", rsqrt_ftz_f64},
    {"copysign.f64", copysign_f64},
    {"min.f64", min_f64},
    {"max.f64", max_f64},
#define HALF_NAMES(operation)                                                                                          \
    {#operation ".bf16x2", operation##_bf16x2}, {#operation ".f16x2", operation##_f16x2},                              \
        {#operation ".bf16", operation##_bf16}, {                                                                      \
        #operation ".f16", operation##_f16                                                                             \
    }
#define NAN_HALF_NAMES(operation)                                                                                      \
    {#operation ".NaN.bf16x2", operation##_nan_bf16x2}, {#operation ".NaN.f16x2", operation##_nan_f16x2},              \
        {#operation ".NaN.bf16", operation##_nan_bf16}, {                                                              \
        #operation ".NaN.f16", operation##_nan_f16                                                                     \
    }
    HALF_NAMES(fma),
    HALF_NAMES(add),
    HALF_NAMES(sub),
    HALF_NAMES(mul),
    HALF_NAMES(max),
    HALF_NAMES(min),
    NAN_HALF_NAMES(max),
    NAN_HALF_NAMES(min),
    {"neg.bf16x2", neg_x2},
    {"neg.f16x2", neg_x2},
    {"abs.bf16x2", abs_x2},
    {"abs.f16x2", abs_x2},
    {"neg.bf16", neg_half},
    {"neg.f16", neg_half},
    {"abs.bf16", abs_half},
    {"abs.f16", abs_half},
    {"mov.pred", move_pred},
};

/* Drops modifiers that have no effect here: rounding to nearest, and approximations, since the exact result is also
   valid. */
static void plain_name(char plain[64], const char *opcode) {
    static const char *const dropped[] = {"rn", "approx", "full"};
    size_t length = 0;
    for (const char *at = opcode; *at;) {
        size_t part = strcspn(at, ".");
        bool is_dropped = false;
        for (size_t k = 0; k < sizeof dropped / sizeof *dropped; k++)
            is_dropped |= strlen(dropped[k]) == part && strncmp(dropped[k], at, part) == 0;
        if (!is_dropped && length + part + 2 < 64) {
            if (length)
                plain[length++] = '.';
            memcpy(plain + length, at, part);
            length += part;
        }
        at += part + (at[part] == '.');
    }
    plain[length] = '\0';
}

#define INTEGERS "u16 u32 u64 s16 s32 s64 b16 b32 b64"
#define FLOATS "f16 bf16 f32 f64 f16x2 bf16x2"

/* The comparison that a name denotes, or COMPARISONS if none. */
static uint8_t find_comparison(const char *name, size_t length) {
    static const char *const unsigned_names[] = {"lo", "ls", "hi", "hs"};
    static const uint8_t unsigned_ways[] = {LT, LE, GT, GE};
    for (size_t k = 0; k < 4; k++)
        if (length == 2 && strncmp(unsigned_names[k], name, 2) == 0)
            return unsigned_ways[k];
    uint8_t way = 0;
    while (way < COMPARISONS && !(strlen(comparisons[way]) == length && strncmp(comparisons[way], name, length) == 0))
        way++;
    return way;
}

static operation decode_comparison(struct instruction *i) {
    const char *at = strchr(i->opcode, '.') + 1;
    bool is_integer = i->type >= TYPE_U8 && i->type <= TYPE_B64, is_setp = ptx_begins(i->opcode, "setp.");
    i->mode = find_comparison(at, strcspn(at, "."));
    i->combine = ptx_has(i->opcode, "and")   ? COMBINE_AND
                 : ptx_has(i->opcode, "or")  ? COMBINE_OR
                 : ptx_has(i->opcode, "xor") ? COMBINE_XOR
                                             : COMBINE_NOT;
    bool is_known = i->mode < (is_integer ? EQU : COMPARISONS) && ptx_only(at, "and or xor " INTEGERS " " FLOATS);
    return !is_known ? NULL : is_setp ? setp : i->operands[0].file == FILE_NARROW ? set : NULL;
}

/* Address of a variable in shared memory. In a cluster it contains the block's rank, like on hardware; the descriptor
   of a product has no bits for the rank. */
static enum outcome move_shared_address(struct warp *w, const struct instruction *i, uint32_t mask) {
    uint64_t rank = w->block->cluster->block_count > 1 ? (uint64_t)w->block->rank + 1 : 0;
    FOR_LANES(mask, l)
    set_value(w, &i->operands[0], l, lane_value(w, &i->operands[1], l) | rank << SHARED_ADDRESS_BITS);
    return NEXT;
}

static operation decode_move(struct instruction *i) {
    unsigned bytes = ptx_type_bytes((enum ptx_type)i->type);
    if (!ptx_only(i->opcode, INTEGERS " " FLOATS))
        return NULL;
    if (i->operands[0].kind == OPERAND_VECTOR)
        return unpack;
    if (i->operands[1].kind == OPERAND_VECTOR)
        return pack;
    if (i->operands[1].is_shared)
        return move_shared_address;
    return bytes == 8 ? move_64 : bytes == 2 ? move_16 : move_32;
}

operation decode_arithmetic(struct instruction *i) {
    static const struct {
        const char *start, *words;
        operation run, wide;
    } families[] = {
        {"selp.", INTEGERS " " FLOATS, select_narrow, select_wide},
        {"bfind.", "shiftamt u32 s32 u64 s64", bfind, bfind},
        {"bfe.", "u32 s32 u64 s64", bfe, bfe},
        {"bfi.", "b32 b64", bfi, bfi},
        {"cvta.", "to global shared shared::cta shared::cluster local const param u32 u64", cvta, cvta},
        {"mapa.", "shared::cluster u32 u64", mapa, mapa},
        {"createpolicy.", "fractional L2::* b64", createpolicy, createpolicy},
    };
    char plain[64];
    if (ptx_begins(i->opcode, "setp.") || ptx_begins(i->opcode, "set."))
        return decode_comparison(i);
    if (ptx_begins(i->opcode, "mov.") && i->type != TYPE_PRED)
        return decode_move(i);
    for (size_t k = 0; k < sizeof families / sizeof *families; k++)
        if (ptx_begins(i->opcode, families[k].start) && ptx_only(i->opcode, families[k].words))
            return ptx_type_bytes((enum ptx_type)i->type) == 8 ? families[k].wide : families[k].run;
    bool is_chained = ptx_begins(i->opcode, "addc.") || ptx_begins(i->opcode, "subc.") ||
                      ptx_begins(i->opcode, "madc.") || ptx_has(i->opcode, "cc");
    if (is_chained)
        return ptx_only(i->opcode, "lo hi cc u32 s32") ? carrying : NULL;
    i->mode = ptx_has(i->opcode, "rz") ? 1 : ptx_has(i->opcode, "rm") ? 2 : ptx_has(i->opcode, "rp") ? 3 : 0;
    if (i->mode && (ptx_begins(i->opcode, "fma.") || ptx_begins(i->opcode, "add.") || ptx_begins(i->opcode, "sub.") ||
                    ptx_begins(i->opcode, "mul.") || ptx_begins(i->opcode, "div.")))
        return ptx_only(i->opcode, "rz rm rp f32 f64") ? directed : NULL;
    plain_name(plain, i->opcode);
    for (size_t k = 0; k < sizeof operations / sizeof *operations; k++)
        if (strcmp(operations[k].name, plain) == 0)
            return operations[k].run;
    return NULL;
}
