/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's elementary functions in float, compared with the C library's in double: arguments of all magnitudes and
   both signs, including subnormal ones, those around every threshold of a formula, zeros of both signs, infinities and
   NaN. The error bounds are those that engines/cpu/core/fastmath.h documents. */
#include "engines/cpu/core/fastmath.h"
#include "engines/cpu/core/loops.h"
#include "harness.h"

#include <math.h>

enum { BATCH = 4096, STEP = 10007 /* a prime: tests one of STEP floats */ };

/* y[i] = function(x[i]); modes run the same loop as plans do, with this CPU's vectors. */
typedef void evaluation(int64_t count, float *y, const float *x);
#define EACH(name)                                                                                                     \
    static void name##s(int64_t count, float *y, const float *x) {                                                     \
        for (int64_t i = 0; i < count; i++)                                                                            \
            y[i] = name(x[i]);                                                                                         \
    }
#define EACH_BY_MODE(name, mode)                                                                                       \
    static void name##s(int64_t count, float *y, const float *x) {                                                     \
        loop_f32(WEFT_POINTWISE_##mode)(count, y, x, x, x, &(struct pointwise_parameters){0});                         \
    }
EACH_BY_MODE(exp, EXP)
EACH_BY_MODE(log, LOG)
EACH_BY_MODE(erf, ERF)
EACH_BY_MODE(tanh, TANH_FWD)
EACH_BY_MODE(logistic, SIGMOID_FWD)
EACH(fast_exp_nonpositive)
EACH(fast_exp_negative)
EACH(fast_weight)
EACH(fast_exp2)
EACH(fast_expm1)
EACH(fast_log1p)

static double logistic(double x) { return 1 / (1 + exp(-x)); }

/* Only defined for x <= 127. */
static double exp2_of_normal(double x) { return x > 127 ? NAN : x < -126 ? 0 : exp2(x); }

/* Only defined for x <= 0. The same holds for the next function. */
static double exp_nonpositive(double x) { return x > 0 ? NAN : exp(x); }

static double exp_negative(double x) { return x > 0 ? NAN : x < -87 ? 0 : exp(x); }

/* Same as exp_negative, but 1 for NaN. */
static double weight(double x) { return isnan(x) ? 1 : exp_negative(x); }

static const struct function {
    const char *name;
    evaluation *evaluate;
    double (*oracle)(double x);
    double ulps;
} functions[] = {
    {"exp", exps, exp, 1.1},
    {"exp_nonpositive", fast_exp_nonpositives, exp_nonpositive, 1.1},
    {"exp_negative", fast_exp_negatives, exp_negative, 1.1},
    {"weight", fast_weights, weight, 1.1},
    {"exp2", fast_exp2s, exp2_of_normal, 1.2},
    {"expm1", fast_expm1s, expm1, 1.8},
    {"tanh", tanhs, tanh, 1.4},
    {"erf", erfs, erf, 2.1},
    {"logistic", logistics, logistic, 2.5},
    {"log", logs, log, 1},
    {"log1p", fast_log1ps, log1p, 1.5},
};

/* Error in units in the last place of a float of the true value's magnitude; below the normal floats the unit is
   constant. */
static double ulps_off(float found, double expected) {
    int exponent;
    if (isnan(expected))
        return 0; /* another check tests for NaN */
    if ((float)expected == found)
        return 0;
    frexp(expected, &exponent);
    return fabs(found - expected) / ldexp(1, exponent < -125 ? -149 : exponent - 24);
}

static void check_batch(const struct function *f, int64_t count, const float *x) {
    float y[BATCH];
    f->evaluate(count, y, x);
    for (int64_t i = 0; i < count; i++) {
        double off = ulps_off(y[i], f->oracle((double)x[i]));
        CHECK(off <= f->ulps, "%s(%.9g) is %.9g, %.2f ulps off", f->name, x[i], y[i], off);
    }
}

static void check_all_magnitudes(const struct function *f) {
    float x[BATCH];
    for (uint64_t bits = 0; bits <= UINT32_MAX;) {
        int64_t count = 0;
        for (; count < BATCH && bits <= UINT32_MAX; bits += STEP)
            x[count++] = fast_of_bits((uint32_t)bits);
        check_batch(f, count, x);
    }
}

static void check_around(const struct function *f, float place) {
    float x[BATCH];
    for (int i = 0; i < BATCH; i++)
        x[i] = fast_of_bits(fast_bits(place) + (uint32_t)(i - BATCH / 2));
    check_batch(f, BATCH, x);
}

/* Arguments at which formulas change, at which results leave the normal floats, and at which the reduced argument of
   e^x reaches its limits. */
static void check_seams(const struct function *f) {
    static const float SEAMS[] = {0x1p-126f,   0x1p-24f,  0.34657359f, 0.625f, 0.70710677f, 1,    1.03972077f,
                                  1.41421354f, 3.95f,     8.66433976f, 20,     87,          88,   88.7228f,
                                  89,          103.9721f, 105,         126,    0.5f,        1.5f, 0x1p24f};
    for (size_t i = 0; i < sizeof SEAMS / sizeof *SEAMS; i++) {
        check_around(f, SEAMS[i]);
        check_around(f, -SEAMS[i]);
    }
}

/* Zeros have the same sign as the C library's result. */
static void check_special_values(const struct function *f) {
    const float x[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 0x1p-149f, -0x1p-149f, 0x1p-127f, -0x1p-127f};
    enum { COUNT = sizeof x / sizeof *x };
    float y[COUNT];
    f->evaluate(COUNT, y, x);
    for (int i = 0; i < COUNT; i++) {
        float want = (float)f->oracle((double)x[i]);
        if (isnan(want))
            CHECK(isnan(y[i]) || x[i] > 0, "%s(%g) is %g, not NaN", f->name, x[i], y[i]);
        else if (isinf(want) || want == 0)
            CHECK(y[i] == want && signbit(y[i]) == signbit(want), "%s(%g) is %g, not %g", f->name, x[i], y[i], want);
    }
}

int main(void) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        check_all_magnitudes(&functions[i]);
        check_seams(&functions[i]);
        check_special_values(&functions[i]);
    }
    return harness_end();
}
