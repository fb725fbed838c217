/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding to short float types. It must not depend on instructions, registers or memory. */
#include "numbers.h"

enum { MANTISSA = 23, BIAS = 127, INFINITE = 0x7f800000 };

/* Drops `bits` low bits and rounds to nearest even. */
static uint32_t round_off(uint32_t value, int bits) {
    return (value + (1u << (bits - 1)) - 1 + (value >> bits & 1)) >> bits;
}

/* The code of a magnitude that is not NaN, in a type with `mantissa` bits. Values beyond the type's range produce a
   code beyond the largest one, which the caller detects. */
static uint32_t narrow(uint32_t magnitude, int mantissa, int bias) {
    int exponent = (int)(magnitude >> MANTISSA) - BIAS + bias, dropped = MANTISSA - mantissa;
    if (exponent > 0)
        return round_off(magnitude - ((uint32_t)(BIAS - bias) << MANTISSA), dropped);
    /* Subnormal: the leading one is stored explicitly. */
    dropped += 1 - exponent;
    return dropped > MANTISSA + 1 ? 0 : round_off((magnitude & 0x7fffff) | 1u << MANTISSA, dropped);
}

uint16_t to_bf16(float value) {
    uint32_t bits = bits_of_float(value);
    return (bits & 0x7fffffff) > INFINITE ? 0x7fff : (uint16_t)round_off(bits, 16);
}

uint16_t to_f16(float value) {
    uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffff;
    if (magnitude > INFINITE)
        return 0x7fff;
    uint32_t code = narrow(magnitude, 10, 15);
    return (uint16_t)((bits >> 16 & 0x8000) | (code < 0x7c00 ? code : 0x7c00));
}

static uint8_t to_8_bits(float value, int mantissa, int bias, uint32_t largest) {
    uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffff;
    if (magnitude > INFINITE)
        return 0x7f;
    uint32_t code = narrow(magnitude, mantissa, bias);
    return (uint8_t)((bits >> 24 & 0x80) | (code < largest ? code : largest));
}

uint8_t to_e4m3(float value) { return to_8_bits(value, 3, 7, 0x7e); }

uint8_t to_e5m2(float value) { return to_8_bits(value, 2, 15, 0x7b); }

uint32_t to_tf32(float value) {
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > INFINITE)
        return 0x7fffffff;
    return (bits + 0x1000) & ~0x1fffu;
}
