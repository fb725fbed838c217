/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions in float without branches and tables, so that a loop over them becomes vector code. How far each
   may be from the true value stands above it, in ulps, for every argument, subnormal results included
   (tests/c/test_fastmath.c). NaN stays NaN, and zeros keep their sign where the function does so. Polynomials are
   minimax fits (Remez) of the function named beside them. They rely on float arithmetic as written: no
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

/* yes where the condition holds, no elsewhere; both are computed. A conditional expression may be turned into a branch
   around one of them, which keeps a loop from becoming vector code. */
FASTMATH float fast_pick(int condition, float yes, float no) {
    uint32_t mask = 0u - (uint32_t)condition;
    return fast_of_bits((fast_bits(yes) & mask) | (fast_bits(no) & ~mask));
}

FASTMATH float fast_abs(float x) { return fast_of_bits(fast_bits(x) & 0x7fffffff); }

FASTMATH float fast_copysign(float magnitude, float sign) {
    return fast_of_bits((fast_bits(magnitude) & 0x7fffffff) | (fast_bits(sign) & 0x80000000));
}

/* What x / ln 2 is added to, so that the sum's low bits are the nearest integer, and bias more. */
FASTMATH float fast_shift(int bias) { return 0x1.8p23f + (float)bias; }

/* 2^(n - 127), where the low bits are 0 < n < 255 and more above. */
FASTMATH float fast_power_of_two(uint32_t low_bits) { return fast_of_bits(low_bits << 23); }

/* x = n ln 2 + r with |r| <= 0.35; gives e^r - 1. shifted: n + fast_shift(bias), as x * 1.44269504f rounds it. */
FASTMATH float fast_reduced_expm1(float x, float shifted, int bias) {
    float whole = shifted - fast_shift(bias);
    /* ln 2 in two parts; the product with the first is exact. */
    float r = (x - whole * 0x1.62ep-1f) - whole * 0x1.0bfbe8p-15f;
    float p = 0.00139465975f; /* (e^r - 1 - r) / r^2 */
    p = p * r + 0.00836669933f;
    p = p * r + 0.0416662842f;
    p = p * r + 0.166665435f;
    p = p * r + 0.5f;
    return r + r * r * p;
}

/* e^x for x whose n is at most `most`; 0 below -105, whatever is calculated there. */
FASTMATH float fast_exp_of(float x, float shifted) {
    uint32_t bits = fast_bits(shifted), half = bits >> 1;
    float q = fast_reduced_expm1(x, shifted, 254);
    /* In two steps, each with half of the bias: 2^n alone may be too large or too small for a float where the result is
       none. */
    float y = (1.0f + q) * fast_power_of_two(half) * fast_power_of_two(bits - half);
    return fast_pick(x < -105.0f, 0.0f, y);
}

/* 1.1 ulps. From n = 129 on infinite: r is what is left of x, of which infinity and NaN stay as they are. */
FASTMATH float fast_exp(float x) {
    int32_t shifted = (int32_t)fast_bits(x * 1.44269504f + fast_shift(254));
    int32_t most = (int32_t)fast_bits(fast_shift(254 + 129));
    return fast_exp_of(x, fast_of_bits((uint32_t)(shifted < most ? shifted : most)));
}

/* The same bits for x <= 0, of fewer steps: an even bias rounds as fast_exp's does, and one more step of a number that
   all share makes subnormal results. */
FASTMATH float fast_exp_nonpositive(float x) {
    float shifted = x * 1.44269504f + fast_shift(127 + 65);
    float q = fast_reduced_expm1(x, shifted, 127 + 65);
    return fast_pick(x < -105.0f, 0.0f, (1.0f + q) * fast_power_of_two(fast_bits(shifted)) * 0x1p-65f);
}

/* 1.1 ulps. e^x for x <= 0, of fewer steps: 0 below -87, where the result would be no normal number. */
FASTMATH float fast_exp_negative(float x) {
    float shifted = x * 1.44269504f + fast_shift(127);
    float q = fast_reduced_expm1(x, shifted, 127);
    return fast_pick(x < -87.0f, 0.0f, (1.0f + q) * fast_power_of_two(fast_bits(shifted)));
}

/* The same, and 1 for NaN, as infinity minus itself is in a softmax. The order of bits is that of numbers, and their
   lesser one instruction. */
FASTMATH float fast_weight(float x) {
    uint32_t bits = fast_bits(fast_exp_negative(x)), one = fast_bits(1.0f);
    return fast_of_bits(bits < one ? bits : one);
}

/* 1.2 ulps. 2^x for x <= 127, of fewer steps: 0 below -126, where the result would be no normal number. */
FASTMATH float fast_exp2(float x) {
    const float shift = 0x1.8p23f + 127; /* adding it leaves an integer and the exponent's bias in the low bits */
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

/* 2.5 ulps. As e^x / (1 + e^x), which is 1 from 17 on, so that nothing overflows; 1 / (1 + e^-x) does below -88. */
FASTMATH float fast_logistic(float x) {
    float limited = x > 30.0f ? 30.0f : x;
    float e = fast_exp_of(limited, limited * 1.44269504f + fast_shift(254));
    return e / (1.0f + e);
}

/* 1.8 ulps. From half of 2^n, which is a float for n = 128, too: infinity is e^89. */
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
    return fast_copysign(fast_pick(a < 0.625f, small, large), x); /* of -0, too, where the sum above is +0 */
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
    float q = -0.000186775447f; /* -log(1 - erf x), 1 < x < 3.95 */
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

/* x times the standard normal distribution function. At -infinity the factor is limited, so that the product is 0. */
FASTMATH float fast_normal_cdf(float x) { return 0.5f * (1.0f + fast_erf(x * 0.7071067812f)); }
FASTMATH float fast_gelu(float x) { return (x <= -FLT_MAX ? -FLT_MAX : x) * fast_normal_cdf(x); }

/* The derivative of fast_gelu. The density is 0 where x is not below 100. */
FASTMATH float fast_gelu_slope(float x) {
    float bounded = fast_pick(fast_abs(x) < 100.0f, x, 0.0f);
    return fast_normal_cdf(x) + bounded * (0.3989422804f * fast_exp(-0.5f * bounded * bounded));
}

/* 1 ulps. */
FASTMATH float fast_log(float x) {
    /* Subnormals are scaled to normal numbers first. */
    int is_small = x < 0x1p-126f;
    float scaled = fast_pick(is_small, x * 0x1p24f, x);
    /* scaled = 2^n m with sqrt(1/2) <= m < sqrt(2) */
    uint32_t bits = fast_bits(scaled) - 0x3f3504f3;
    int32_t n = (int32_t)bits >> 23;
    float f = fast_of_bits((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    float whole = (float)(n - 24 * is_small);
    float p = -0.0790811926f; /* (log(1 + f) - f + f^2 / 2) / f^3 */
    p = p * f + 0.12856704f;
    p = p * f + -0.130985081f;
    p = p * f + 0.141839355f;
    p = p * f + -0.166282073f;
    p = p * f + 0.200021982f;
    p = p * f + -0.250006884f;
    p = p * f + 0.333333194f;
    float tail = f * f * (f * p - 0.5f) + whole * 0x1.0bfbe8p-15f;
    float result = whole * 0x1.62ep-1f + (f + tail);
    result = fast_pick(x == INFINITY, x, result);
    result = fast_pick(x == 0.0f, -INFINITY, result);
    return fast_pick(!(x >= 0.0f), fast_pick(x != x, x, NAN), result);
}

/* 1.5 ulps. */
FASTMATH float fast_log1p(float x) {
    /* the logarithm of the rounded sum, and what the rounding lost */
    float sum = 1.0f + x, lost = x - (sum - 1.0f);
    int is_large = x > 0x1p24f;
    float result = fast_log(is_large ? x : sum) + (is_large ? 0.0f : lost / sum);
    return fast_pick(fast_abs(x) < 0x1p-24f || x == -1.0f, fast_pick(x == -1.0f, -INFINITY, x), result);
}

#endif
