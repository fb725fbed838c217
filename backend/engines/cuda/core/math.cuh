/* math: functions for formulas. In float they are faster than the built-in ones, and within 3 units in the last place
   of a float around 1; in double they are the built-in ones. Generated code is in their namespace, so that unqualified
   calls find them first. */

namespace weft {

DEVICE float exp2_approx(float x) { return ptx::ex2(x); }
DEVICE float reciprocal_approx(float x) { return ptx::rcp(x); }

using ::atan2;
using ::ceil;
using ::cos;
using ::erf;
using ::expm1;
using ::fabs;
using ::floor;
using ::fmod;
using ::log;
using ::log1p;
using ::pow;
using ::sin;
using ::sqrt;
using ::tan;

/* x * log2(e) in two parts, because the rounding error of the product would be multiplied by |x|. */
DEVICE float exp(float x) {
    float high = x * 1.44269504f;
    float low = fmaf(x, 1.44269504f, -high);
    low = fmaf(x, 1.92596299e-8f, low);
    float y = exp2_approx(high);
    return x < -87.3f || x > 88.7f ? ::expf(x) : fmaf(y, low * 0.693147181f, y);
}
DEVICE double exp(double x) { return ::exp(x); }

/* 1 / (1 + e^-x), with e^-x as above but without its range checks, which the sum with 1 and the reciprocal do not need.
   Measured (H200, 3x3 of 64 filters on 32x56x56, followed by x * logistic(x)): 13 us, 18 with that product; written
   with exp and /, which takes three times the instructions, 28. */
DEVICE float logistic(float x) {
    float high = x * -1.44269504f;
    float low = fmaf(x, -1.92596299e-8f, fmaf(x, -1.44269504f, -high));
    float y = exp2_approx(high);
    float more = fabsf(x) < 10000.0f ? fmaf(low, 0.693147181f, 1.0f) : 1.0f; /* infinity has no low part */
    return reciprocal_approx(fmaf(y, more, 1.0f));
}
DEVICE double logistic(double x) { return 1 / (1 + ::exp(-x)); }
/* The relative error of |x| 2^-24 is acceptable in an approximation, and saves half the instructions. */
DEVICE float logistic_approx(float x) { return reciprocal_approx(1.0f + exp2_approx(-1.44269504f * x)); }
DEVICE double logistic_approx(double x) { return logistic(x); }
/* Returns the larger number; NaN for NaN; +0 for two zeros of different sign. */
DEVICE float at_least(float x, float least) {
    if constexpr (CHIP < 800)
        return x <= least ? least : x;
    return ptx::max_nan(x, least);
}
DEVICE double at_least(double x, double least) { return x <= least ? least : x; }

/* The standard normal distribution: its density, and its upper tail as the density times a polynomial in 1 / (1 +
   0.2316419 size) (Abramowitz and Stegun, 26.2.17), absolute error 3e-7. With erf and exp, the epilogue of a short
   product waited for its gelu: 124 us compared with 90 without gelu (H200, ViT-B, 12608 x 3072 x 768). The size is
   clamped, so that infinity times a density of 0 does not become NaN. */
DEVICE float normal_density(float x) { return 0.398942280f * exp2_approx(-0.721347520f * x * x); }
DEVICE float finite_size(float x) { return fminf(fabsf(x), 3.40282347e38f); }
DEVICE float tail_over_density(float size) {
    float t = reciprocal_approx(fmaf(0.2316419f, size, 1.0f));
    float p = fmaf(fmaf(1.330274429f, t, -1.821255978f), t, 1.781477937f);
    return fmaf(fmaf(p, t, -0.356563782f), t, 0.319381530f) * t;
}
/* The larger one of a number and -0, so that zeros keep their sign; NaN for NaN. */
DEVICE float positive_part(float x) {
    if constexpr (CHIP < 800)
        return x < 0.0f ? -0.0f : x;
    return ptx::max_nan(x, -0.0f);
}
DEVICE float gelu(float x) {
    float size = finite_size(x);
    return fmaf(-size, tail_over_density(size) * normal_density(x), positive_part(x));
}
/* The slope at -x is 1 minus the slope at x. */
DEVICE float gelu_slope(float x) {
    float size = finite_size(x);
    float below = (tail_over_density(size) - size) * normal_density(x);
    return x > 0.0f ? 1.0f - below : below;
}
DEVICE double normal_cdf(double x) { return 0.5 * ::erfc(x * -0.7071067811865476); }
DEVICE double gelu(double x) { return at_least(x, -1.7976931348623157e308) * normal_cdf(x); }
DEVICE double gelu_slope(double x) {
    double bounded = ::fabs(x) < 100.0 ? x : 0.0; /* the density is 0 beyond */
    return normal_cdf(x) + bounded * 0.3989422804014327 * ::exp(-0.5 * bounded * bounded);
}

/* 1 - 2 / (1 + e^2x); near 0, where that cancels, a power series. */
DEVICE float tanh(float x) {
    float size = fabsf(x);
    float square = x * x;
    float series = fmaf(fmaf(fmaf(-0.0539682540f, square, 0.133333333f), square, -0.333333333f) * square, x, x);
    float tail = 1.0f - 2.0f * reciprocal_approx(1.0f + exp2_approx(2.88539008f * size));
    return copysignf(size < 0.15f ? series : tail, x); /* also for -0, where the series is +0 */
}
DEVICE double tanh(double x) { return ::tanh(x); }

/* Helpers of the integer formulas: dividing by 0 gives 0, and nothing overflows. */
DEVICE i64 quotient_of(i64 x, i64 b) { return b == 0 ? 0 : b == -1 ? (i64)(0 - (u64)x) : x / b; }
DEVICE i64 remainder_of(i64 x, i64 b) { return b == 0 || b == -1 ? 0 : x % b; }
DEVICE i64 integer_power(i64 x, i64 b) {
    u64 power = 1;
    if (b < 0)
        return x == 1 ? 1 : x == -1 ? (b % 2 ? -1 : 1) : 0;
    for (u64 base = (u64)x; b; b >>= 1, base *= base)
        power *= b & 1 ? base : 1;
    return (i64)power;
}
using int64_t = i64;
using uint64_t = u64;

} // namespace weft
