/* SPDX-License-Identifier: Apache-2.0 */
/* cvt: conversions between types. */
#include "machine.h"
#include "numbers.h"

#include <math.h>
#include <string.h>

enum { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP };

static bool is_integer(enum ptx_type type) { return type >= TYPE_U8 && type <= TYPE_B64; }
static bool is_signed(enum ptx_type type) { return type >= TYPE_S8 && type <= TYPE_S64; }

/* ---- Integers ---------------------------------------------------------------------------------------------------- */

static int64_t read_integer(const struct warp *w, const struct operand *o, int lane, enum ptx_type type) {
    uint64_t bits = lane_value(w, o, lane);
    switch (type) {
    case TYPE_U8:
    case TYPE_B8:
        return (uint8_t)bits;
    case TYPE_U16:
    case TYPE_B16:
        return (uint16_t)bits;
    case TYPE_U32:
    case TYPE_B32:
        return (uint32_t)bits;
    case TYPE_S8:
        return (int8_t)bits;
    case TYPE_S16:
        return (int16_t)bits;
    case TYPE_S32:
        return (int32_t)bits;
    default:
        return (int64_t)bits;
    }
}

/* Writes as many bits as the register has; a small signed result is sign-extended within the register. */
static void write_integer(struct warp *w, const struct operand *o, int lane, enum ptx_type type, int64_t value) {
    unsigned bits = ptx_type_bytes(type) * 8;
    uint64_t kept = (uint64_t)value;
    if (bits < 64) {
        kept &= (UINT64_C(1) << bits) - 1;
        if (is_signed(type) && kept >> (bits - 1))
            kept |= ~((UINT64_C(1) << bits) - 1);
    }
    set_value(w, o, lane, kept);
}

static int64_t saturated(int64_t value, enum ptx_type type, bool from_u64) {
    unsigned bits = ptx_type_bytes(type) * 8;
    if (is_signed(type)) {
        int64_t most = bits == 64 ? INT64_MAX : (INT64_C(1) << (bits - 1)) - 1;
        if (from_u64 && value < 0)
            return most;
        return value > most ? most : value < -most - 1 ? -most - 1 : value;
    }
    if (value < 0 && !from_u64)
        return 0;
    uint64_t most = bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    return (uint64_t)value > most ? (int64_t)most : value;
}

/* ---- Floats ------------------------------------------------------------------------------------------------------ */

static double read_float(const struct warp *w, const struct operand *o, int lane, enum ptx_type type) {
    uint64_t bits = lane_value(w, o, lane);
    float single;
    double whole;
    switch (type) {
    case TYPE_F16:
        return (double)from_f16((uint16_t)bits);
    case TYPE_BF16:
        return (double)from_bf16((uint16_t)bits);
    case TYPE_F64:
        memcpy(&whole, &bits, sizeof whole);
        return whole;
    default:
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    }
}

static double rounded(double value, int how) {
    return how == ROUND_ZERO   ? trunc(value)
           : how == ROUND_DOWN ? floor(value)
           : how == ROUND_UP   ? ceil(value)
                               : nearbyint(value);
}

/* True if a value between two representable numbers is rounded away from zero, for rounding modes other than to
   nearest. */
static bool grows(bool is_positive, int how) { return how != ROUND_ZERO && (how == ROUND_UP) == is_positive; }

/* Values are passed as long double, which represents every 64-bit integer exactly, so that they are rounded only
   once. */
static float to_single(long double value, int how) {
    float nearest = (float)value;
    if (how == ROUND_NEAREST || (long double)nearest == value || isnan(value))
        return nearest;
    bool has_grown = fabsl((long double)nearest) > fabsl(value);
    if (has_grown == grows(value > 0, how))
        return nearest;
    return nextafterf(nearest, has_grown ? 0 : copysignf(INFINITY, (float)value));
}

static double to_double(long double value, int how) {
    double nearest = (double)value;
    if (how == ROUND_NEAREST || (long double)nearest == value || isnan(value))
        return nearest;
    bool has_grown = fabsl((long double)nearest) > fabsl(value);
    if (has_grown == grows(value > 0, how))
        return nearest;
    return nextafter(nearest, has_grown ? 0 : copysign(INFINITY, (double)value));
}

static uint16_t to_half(float value, bool is_bf16, int how) {
    uint16_t nearest = is_bf16 ? to_bf16(value) : to_f16(value);
    float back = is_bf16 ? from_bf16(nearest) : from_f16(nearest);
    if (how == ROUND_NEAREST || isnan(value) || back == value)
        return nearest;
    bool has_grown = fabsf(back) > fabsf(value), wanted = grows(value > 0, how);
    return (uint16_t)(has_grown == wanted ? nearest : has_grown ? nearest - 1 : nearest + 1);
}

/* A float that rounds to the same half as the value: if it is inexact, its last bit is set (round to odd). */
static float to_odd(long double value) {
    float cut = to_single(value, ROUND_ZERO);
    return isnan(value) || (long double)cut == value ? cut : float_of_bits(bits_of_float(cut) | 1);
}

static void write_float(struct warp *w, const struct instruction *i, int lane, long double value) {
    const struct operand *o = &i->operands[0];
    double whole;
    if (i->is_saturating)
        value = isnan(value) || value < 0 ? 0 : value > 1 ? 1 : value;
    if (i->has_relu && value < 0)
        value = 0;
    float single = to_single(value, i->mode);
    switch (i->from) { /* the destination type comes first in the opcode */
    case TYPE_F16:
    case TYPE_BF16:
        narrow(w, o)[lane] = to_half(to_odd(value), i->from == TYPE_BF16, i->mode);
        return;
    case TYPE_F64:
        whole = to_double(value, i->mode);
        memcpy(&wide(w, o)[lane], &whole, sizeof whole);
        return;
    case TYPE_TF32:
        narrow(w, o)[lane] = to_tf32(single);
        return;
    default:
        memcpy(&narrow(w, o)[lane], &single, sizeof single);
    }
}

/* Values out of range saturate to the largest integer. NaN becomes zero; for 64-bit types, it becomes the top bit. */
static int64_t float_to_integer(double value, enum ptx_type from, enum ptx_type type, int how) {
    unsigned bits = ptx_type_bytes(type) * 8;
    double whole = rounded(value, how), top = ldexp(1.0, (int)bits - is_signed(type));
    if (isnan(value))
        return from == TYPE_F64 || bits == 64 ? (int64_t)(UINT64_C(1) << (bits - 1)) : 0;
    if (whole >= top)
        return is_signed(type) ? (int64_t)((UINT64_C(1) << (bits - 1)) - 1)
                               : (int64_t)(bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1);
    if (whole <= (is_signed(type) ? -top : 0))
        return is_signed(type) ? (int64_t)(~UINT64_C(0) << (bits - 1)) : 0;
    return is_signed(type) ? (int64_t)whole : (int64_t)(uint64_t)whole;
}

/* ---- The instruction --------------------------------------------------------------------------------------------- */

static enum outcome convert(struct warp *w, const struct instruction *i, uint32_t mask) {
    enum ptx_type to = (enum ptx_type)i->from, from = (enum ptx_type)i->type;
    const struct operand *d = &i->operands[0], *s = &i->operands[1];
    bool to_whole = ptx_has(i->opcode, "rni") || ptx_has(i->opcode, "rzi") || ptx_has(i->opcode, "rmi") ||
                    ptx_has(i->opcode, "rpi");
    FOR_LANES(mask, l) {
        if (is_integer(from) && is_integer(to)) {
            int64_t value = read_integer(w, s, l, from);
            write_integer(w, d, l, to, i->is_saturating ? saturated(value, to, from == TYPE_U64) : value);
        } else if (is_integer(from)) {
            int64_t value = read_integer(w, s, l, from);
            write_float(w, i, l, from == TYPE_U64 ? (long double)(uint64_t)value : (long double)value);
        } else if (is_integer(to)) {
            write_integer(w, d, l, to, float_to_integer(read_float(w, s, l, from), from, to, i->mode));
        } else {
            double value = read_float(w, s, l, from);
            write_float(w, i, l, to_whole ? rounded(value, i->mode) : value);
        }
    }
    return NEXT;
}

static float relu(const struct instruction *i, float value) { return i->has_relu && value < 0 ? 0 : value; }

/* Converts two floats into one register: the first operand becomes the upper half. */
static enum outcome convert_pair(struct warp *w, const struct instruction *i, uint32_t mask) {
    const uint32_t *high = narrow(w, &i->operands[1]), *low = narrow(w, &i->operands[2]);
    FOR_LANES(mask, l) {
        float a, b;
        memcpy(&a, &high[l], sizeof a);
        memcpy(&b, &low[l], sizeof b);
        a = relu(i, a);
        b = relu(i, b);
        uint32_t r = 0;
        switch (i->from) {
        case TYPE_BF16X2:
            r = (uint32_t)to_half(a, true, i->mode) << 16 | to_half(b, true, i->mode);
            break;
        case TYPE_F16X2:
            r = (uint32_t)to_half(a, false, i->mode) << 16 | to_half(b, false, i->mode);
            break;
        case TYPE_E4M3X2:
            r = (uint32_t)to_e4m3(a) << 8 | to_e4m3(b);
            break;
        default:
            r = (uint32_t)to_e5m2(a) << 8 | to_e5m2(b);
        }
        narrow(w, &i->operands[0])[l] = r;
    }
    return NEXT;
}

/* Converts between pairs of halves and pairs of bytes. */
static enum outcome convert_packed(struct warp *w, const struct instruction *i, uint32_t mask) {
    const uint32_t *s = narrow(w, &i->operands[1]);
    FOR_LANES(mask, l) {
        uint32_t r;
        if (i->from == TYPE_F16X2) {
            bool is_e4m3 = i->type == TYPE_E4M3X2;
            uint8_t low = (uint8_t)s[l], high = (uint8_t)(s[l] >> 8);
            r = (uint32_t)to_f16(is_e4m3 ? from_e4m3(high) : from_e5m2(high)) << 16 |
                to_f16(is_e4m3 ? from_e4m3(low) : from_e5m2(low));
        } else {
            float low = relu(i, from_f16((uint16_t)s[l])), high = relu(i, from_f16((uint16_t)(s[l] >> 16)));
            bool is_e4m3 = i->from == TYPE_E4M3X2;
            r = (uint32_t)(is_e4m3 ? to_e4m3(high) : to_e5m2(high)) << 8 | (is_e4m3 ? to_e4m3(low) : to_e5m2(low));
        }
        narrow(w, &i->operands[0])[l] = r;
    }
    return NEXT;
}

#define INTEGERS "u8 u16 u32 u64 s8 s16 s32 s64"

/* The short types convert to and from few other types, with few rounding modes. */
static operation decode_short(const struct instruction *i) {
    bool to_bytes = i->from == TYPE_E4M3X2 || i->from == TYPE_E5M2X2;
    if (i->from == TYPE_TF32)
        return ptx_only(i->opcode, "rna relu tf32 f32") ? convert : NULL;
    if (to_bytes && !ptx_has(i->opcode, "satfinite"))
        return NULL;
    if (i->type == TYPE_F32)
        return ptx_only(i->opcode, to_bytes ? "rn satfinite relu e4m3x2 e5m2x2 f32" : "rn rz relu f16x2 bf16x2 f32")
                   ? convert_pair
                   : NULL;
    if (to_bytes)
        return ptx_only(i->opcode, "rn satfinite relu e4m3x2 e5m2x2 f16x2") ? convert_packed : NULL;
    return ptx_only(i->opcode, "rn relu f16x2 e4m3x2 e5m2x2") ? convert_packed : NULL;
}

operation decode_conversion(struct instruction *i) {
    if (!ptx_begins(i->opcode, "cvt."))
        return NULL;
    i->is_saturating = ptx_has(i->opcode, "sat");
    i->has_relu = ptx_has(i->opcode, "relu");
    i->mode = ptx_has(i->opcode, "rz") || ptx_has(i->opcode, "rzi")   ? ROUND_ZERO
              : ptx_has(i->opcode, "rm") || ptx_has(i->opcode, "rmi") ? ROUND_DOWN
              : ptx_has(i->opcode, "rp") || ptx_has(i->opcode, "rpi") ? ROUND_UP
                                                                      : ROUND_NEAREST;
    if (ptx_only(i->opcode, "rn rz rm rp rni rzi rmi rpi sat relu f16 bf16 f32 f64 " INTEGERS))
        return convert;
    return decode_short(i);
}
