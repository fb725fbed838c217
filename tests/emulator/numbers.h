/* SPDX-License-Identifier: Apache-2.0 */
/* The short float types of the GPU and their conversions, bit for bit as PTX defines them (cvt). No intermediate value
   is subnormal, because a program may have configured the CPU to flush subnormals. It must not depend on instructions,
   registers or memory. */
#ifndef EMULATOR_NUMBERS_H
#define EMULATOR_NUMBERS_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define CANONICAL_NAN float_of_bits(0x7fffffff)

static inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* NaN becomes 0x7fffffff, as for both 8-bit types; bf16 preserves its bits. */
static inline float from_f16(uint16_t code) {
    uint32_t magnitude = code & 0x7fffu, sign = (uint32_t)(code & 0x8000u) << 16;
    uint32_t normal = (magnitude << 13) + (112u << 23), small = bits_of_float((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t finite = magnitude < 0x400 ? small : normal;
    uint32_t bits = sign | (magnitude < 0x7c00 ? finite : 0x7f800000u);
    return float_of_bits(magnitude > 0x7c00 ? 0x7fffffffu : bits);
}

static inline float from_bf16(uint16_t code) { return float_of_bits((uint32_t)code << 16); }

static inline float from_e5m2(uint8_t code) { return from_f16((uint16_t)(code << 8)); }

static inline float from_e4m3(uint8_t code) {
    uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t normal = (magnitude << 20) + (120u << 23), small = bits_of_float((float)(int32_t)magnitude * 0x1p-9f);
    uint32_t finite = magnitude < 8 ? small : normal;
    return float_of_bits(magnitude == 0x7f ? 0x7fffffffu : sign | finite);
}

/* cvt.rn: to nearest even; NaN becomes 0x7fff, values out of range become infinity. */
uint16_t to_bf16(float value);
uint16_t to_f16(float value);

/* cvt.rn.satfinite: values out of range, including infinity, become the largest finite value; NaN becomes 0x7f. */
uint8_t to_e4m3(float value);
uint8_t to_e5m2(float value);

/* cvt.rna.tf32: to nearest, ties away from zero; the low 13 bits are 0, except in NaN, which becomes 0x7fffffff. */
uint32_t to_tf32(float value);

#endif
