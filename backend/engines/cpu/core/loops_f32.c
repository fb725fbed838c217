/* SPDX-License-Identifier: Apache-2.0 */
/* The loops in float. The mode table names functions as C names them for double; the macros below map them to float.
   exp, tanh, erf, log and related functions are our own, which compilers vectorize; the rest is from libm. */
#include "engines/cpu/core/loops.h"

#include "engines/cpu/core/fastmath.h"

#define exp(x) fast_exp(x)
#define expm1(x) fast_expm1(x)
#define log(x) fast_log(x)
#define log1p(x) fast_log1p(x)
#define tanh(x) fast_tanh(x)
#define erf(x) fast_erf(x)
#define logistic(x) fast_logistic(x)
#define logistic_approx(x) logistic(x)
#define at_least(x, least) ((x) <= (least) ? (least) : (x))
#define gelu(x) fast_gelu(x)
#define gelu_slope(x) fast_gelu_slope(x)
#define fabs(x) fabsf(x)
#define sqrt(x) sqrtf(x)
#define ceil(x) ceilf(x)
#define floor(x) floorf(x)
#define sin(x) sinf(x)
#define cos(x) cosf(x)
#define tan(x) tanf(x)
#define fmod(x, y) fmodf(x, y)
#define pow(x, y) powf(x, y)
#define atan2(y, x) atan2f(y, x)

typedef float real;
#define FIND_LOOP loop_f32
#include "engines/cpu/core/loops_define.h"

/* Nanoseconds per element on one core, by class: libm functions, our vectorized functions, activations (which contain
   some of these), and arithmetic. */
double loop_cost(int mode, bool is_wide) {
    switch (mode) {
    case WEFT_POINTWISE_SIN:
    case WEFT_POINTWISE_COS:
    case WEFT_POINTWISE_TAN:
    case WEFT_POINTWISE_POW:
    case WEFT_POINTWISE_ATAN2:
    case WEFT_POINTWISE_MOD:
        return is_wide ? 6 : 3;
    case WEFT_POINTWISE_EXP:
    case WEFT_POINTWISE_LOG:
    case WEFT_POINTWISE_ERF:
        return is_wide ? 3 : 0.6;
    }
    /* The range from the first to the last activation in the header's order. A ReLU's derivative is plain
       arithmetic. */
    bool is_activation = mode >= WEFT_POINTWISE_TANH_FWD && mode <= WEFT_POINTWISE_GELU_APPROX_TANH_BWD &&
                         mode != WEFT_POINTWISE_RELU_BWD;
    return is_activation ? (is_wide ? 6 : 1) : is_wide ? 0.2 : 0.1;
}
