/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions in float without branches or tables, so that compilers vectorize loops over them. The comment of
   each function states its maximal error in ulps over all arguments, subnormal results included
   (tests/c/test_fastmath.c). NaN stays NaN, and zeros keep their sign if the function does so. Polynomials are minimax
   fits (Remez) of the expression in the comment next to them. The code relies on float arithmetic as written: no
   reassociation. */
#ifndef WEFT_ENGINES_CPU_FASTMATH_H
#define WEFT_ENGINES_CPU_FASTMATH_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define FASTMATH static inline __attribute__((always_inline))

FASTMATH float fast_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

FASTMATH uint32_t fast_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Returns `yes` if the condition holds, otherwise `no`, and evaluates both. Compilers may turn a conditional expression
   into a branch around one of them, which prevents vectorization. */
FASTMATH float fast_pick(int condition, float yes, float no) {
    uint32_t mask = 0u - (uint32_t)condition;
    return fast_of_bits((fast_bits(yes) & mask) | (fast_bits(no) & ~mask));
}

FASTMATH float fast_abs(float x) { return fast_of_bits(fast_bits(x) & 0x7fffffff); }

FASTMATH float fast_copysign(float magnitude, float sign) {
    return fast_of_bits((fast_bits(magnitude) & 0x7fffffff) | (fast_bits(sign) & 0x80000000));
}

/* The constant to which x / ln 2 is added, so that the low bits of the sum are the nearest integer plus `bias`. */
FASTMATH float fast_shift(int bias) { return 0x1.8p23f + (float)bias; }

/* 2^(n - 127), where n, 0 < n < 255, is in the low bits; the shift discards higher bits. */
FASTMATH float fast_power_of_two(uint32_t low_bits) { return fast_of_bits(low_bits << 23); }

/* Returns e^r - 1, where x = n ln 2 + r with |r| <= 0.35. shifted: n + fast_shift(bias), as rounded by x *
   1.44269504f. */
FASTMATH float fast_reduced_expm1(float x, float shifted, int bias) {
    float exponent = shifted - fast_shift(bias);
    /* ln 2 in two parts; multiplication by the first is exact. */
    float r = (x - exponent * 0x1.62ep-1f) - exponent * 0x1.0bfbe8p-15f;
    float p = 0.00139465975f; /* (e^r - 1 - r) / r^2 */
    p = p * r + 0.00836669933f;
    p = p * r + 0.0416662842f;
    p = p * r + 0.166665435f;
    p = p * r + 0.5f;
    return r + r * r * p;
}

/* e^x if n is at most the limit that the bias of `shifted` implies. Returns 0 below -105, where the polynomial is not
   valid. */
FASTMATH float fast_exp_of(float x, float shifted) {
    uint32_t bits = fast_bits(shifted), half = bits >> 1;
    float q = fast_reduced_expm1(x, shifted, 254);
    /* Scales in two steps, each with half of the exponent: 2^n itself may be outside the range of float although the
       result is not. */
    float y = (1.0f + q) * fast_power_of_two(half) * fast_power_of_two(bits - half);
    return fast_pick(x < -105.0f, 0.0f, y);
}

/* 1.1 ulps. Infinite for n >= 129. r is the remainder of x, so infinity and NaN propagate. */
FASTMATH float fast_exp(float x) {
    int32_t shifted = (int32_t)fast_bits(x * 1.44269504f + fast_shift(254));
    int32_t most = (int32_t)fast_bits(fast_shift(254 + 129));
    return fast_exp_of(x, fast_of_bits((uint32_t)(shifted < most ? shifted : most)));
}

/* Same bits as fast_exp for x <= 0, in fewer steps: an even bias rounds as fast_exp's does, and a final multiplication
   by a constant produces subnormal results. */
FASTMATH float fast_exp_nonpositive(float x) {
    float shifted = x * 1.44269504f + fast_shift(127 + 65);
    float q = fast_reduced_expm1(x, shifted, 127 + 65);
    return fast_pick(x < -105.0f, 0.0f, (1.0f + q) * fast_power_of_two(fast_bits(shifted)) * 0x1p-65f);
}

/* 1.1 ulps. e^x for x <= 0, in fewer steps: flushes to 0 below -87, where the result would be subnormal. */
FASTMATH float fast_exp_negative(float x) {
    float shifted = x * 1.44269504f + fast_shift(127);
    float q = fast_reduced_expm1(x, shifted, 127);
    return fast_pick(x < -87.0f, 0.0f, (1.0f + q) * fast_power_of_two(fast_bits(shifted)));
}

/* Like fast_exp_negative, but 1 for NaN, which infinity minus itself produces in a softmax. The order of the bit
   patterns is that of the numbers, so the minimum takes one instruction. */
FASTMATH float fast_weight(float x) {
    uint32_t bits = fast_bits(fast_exp_negative(x)), one = fast_bits(1.0f);
    return fast_of_bits(bits < one ? bits : one);
}

/* 1.2 ulps. 2^x for x <= 127, in fewer steps: flushes to 0 below -126, where the result would be subnormal. */
FASTMATH float fast_exp2(float x) {
    const float shift = 0x1.8p23f + 127; /* adding it leaves the integer part plus the exponent bias in the low bits */
    float limited = x < -126.0f ? -126.0f : x;
    float shifted = limited + shift;
    float r = limited - (shifted - shift);
    float p = 0.00015353362f; /* (2^r - 1) / r */
    p = p * r + 0.0013398874f;
    p = p * r + 0.009618437f;
    p = p * r + 0.055503324f;
    p = p * r + 0.24022648f;
    p = p * r + 0.6931472f;
    return fast_pick(x < -126.0f, 0.0f, (1.0f + r * p) * fast_of_bits(fast_bits(shifted) << 23));
}

/* 2.5 ulps. Computed as e^x / (1 + e^x), which equals 1 for x >= 17, so nothing overflows; 1 / (1 + e^-x) would
   overflow below -88. */
FASTMATH float fast_logistic(float x) {
    float limited = x > 30.0f ? 30.0f : x;
    float e = fast_exp_of(limited, limited * 1.44269504f + fast_shift(254));
    return e / (1.0f + e);
}

/* 1.8 ulps. Uses half of 2^n, which is a float even for n = 128; e^89 is infinite. */
FASTMATH float fast_expm1(float x) {
    float limited = x < -20.0f ? -20.0f : x;
    limited = fast_pick(x > 89.0f, 89.0f, limited);
    float shifted = limited * 1.44269504f + fast_shift(126);
    float q = fast_reduced_expm1(limited, shifted, 126);
    float half = fast_power_of_two(fast_bits(shifted));
    return fast_pick(x == 0.0f, x, 2.0f * (half * q + (half - 0.5f)));
}

/* 1.4 ulps. */
FASTMATH float fast_tanh(float x) {
    float a = fast_abs(x), z = x * x;
    float p = -0.00575263798f; /* (tanh x - x) / x^3 over z = x^2 */
    p = p * z + 0.0206957534f;
    p = p * z + -0.0537627414f;
    p = p * z + 0.133318141f;
    p = p * z + -0.333333015f;
    float small = x + x * z * p;
    float large = 1.0f - 2.0f / (fast_exp(a + a) + 1.0f);
    return fast_copysign(fast_pick(a < 0.625f, small, large), x); /* also for -0, where the sum above is +0 */
}

/* 2.1 ulps. */
FASTMATH float fast_erf(float x) {
    float a = fast_abs(x), z = x * x;
    float p = 7.889072e-05f; /* erf(x) / x - 1 over z = x^2, x < 1 */
    p = p * z + -0.00080208265f;
    p = p * z + 0.00518953335f;
    p = p * z + -0.0268544443f;
    p = p * z + 0.112836003f;
    p = p * z + -0.37612626f;
    p = p * z + 0.128379107f;
    float small = x + x * p;
    float t = a > 3.95f ? 3.95f : a;
    float q = -0.000186775447f; /* -log(1 - erf x) for 1 < x < 3.95 */
    q = q * t + 0.00295186206f;
    q = q * t + -0.0218562558f;
    q = q * t + 0.103147857f;
    q = q * t + 0.63809371f;
    q = q * t + 1.1271224f;
    q = q * t + 0.000332706695f;
    float large = 1.0f - fast_exp(-q);
    large = a > 3.95f ? 1.0f : large;
    return fast_pick(a < 1.0f, small, fast_copysign(large, x));
}

/* x times the standard normal CDF. x is clamped at -infinity, so that the product is 0. */
FASTMATH float fast_normal_cdf(float x) { return 0.5f * (1.0f + fast_erf(x * 0.7071067812f)); }
FASTMATH float fast_gelu(float x) { return (x <= -FLT_MAX ? -FLT_MAX : x) * fast_normal_cdf(x); }

/* The derivative of fast_gelu. The density is 0 for |x| >= 100. */
FASTMATH float fast_gelu_slope(float x) {
    float bounded = fast_pick(fast_abs(x) < 100.0f, x, 0.0f);
    return fast_normal_cdf(x) + bounded * (0.3989422804f * fast_exp(-0.5f * bounded * bounded));
}

/* 1 ulps. */
FASTMATH float fast_log(float x) {
    /* Scales subnormals to normal numbers first. */
    int is_small = x < 0x1p-126f;
    float scaled = fast_pick(is_small, x * 0x1p24f, x);
    /* scaled = 2^n m with sqrt(1/2) <= m < sqrt(2) */
    uint32_t bits = fast_bits(scaled) - 0x3f3504f3;
    int32_t n = (int32_t)bits >> 23;
    float f = fast_of_bits((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    float exponent = (float)(n - 24 * is_small);
    float p = -0.0790811926f; /* (log(1 + f) - f + f^2 / 2) / f^3 */
    p = p * f + 0.12856704f;
    p = p * f + -0.130985081f;
    p = p * f + 0.141839355f;
    p = p * f + -0.166282073f;
    p = p * f + 0.200021982f;
    p = p * f + -0.250006884f;
    p = p * f + 0.333333194f;
    float tail = f * f * (f * p - 0.5f) + exponent * 0x1.0bfbe8p-15f;
    float result = exponent * 0x1.62ep-1f + (f + tail);
    result = fast_pick(x == INFINITY, x, result);
    result = fast_pick(x == 0.0f, -INFINITY, result);
    return fast_pick(!(x >= 0.0f), fast_pick(x != x, x, NAN), result);
}

/* 1.5 ulps. */
FASTMATH float fast_log1p(float x) {
    /* the logarithm of the rounded sum, plus a correction for the rounding error */
    float sum = 1.0f + x, lost = x - (sum - 1.0f);
    int is_large = x > 0x1p24f;
    float result = fast_log(is_large ? x : sum) + (is_large ? 0.0f : lost / sum);
    return fast_pick(fast_abs(x) < 0x1p-24f || x == -1.0f, fast_pick(x == -1.0f, -INFINITY, x), result);
}

#endif
