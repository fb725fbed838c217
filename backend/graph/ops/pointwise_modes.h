/* SPDX-License-Identifier: Apache-2.0 */
/* The pointwise modes, one row each: MODE(enumerator, form, formula, method, arguments, doc).
   A formula is one expression over x, b, t (backward: dy, and x is the forward input), the parameters lower, upper,
   slope, alpha, beta, and literals C(...), which have the type of the arithmetic. C and CUDA share this syntax, so that
   each formula is written once; this is the only list macro in Weft. In addition to math.h, formulas may call:
     logistic(x)         1 / (1 + exp(-x)); logistic_approx(x) may be less accurate
     at_least(x, least)  the larger of two numbers; NaN if x is NaN
     gelu(x)             x times the standard normal distribution function; gelu_slope(x) is its derivative
   At infinite arguments a formula yields the limit of its function, although 0 times infinity is NaN: a factor that
   multiplies an underflowing one is clamped to finite numbers, and a slope of 0 is a case of its own. An infinite
   bound clips nothing; its reciprocal is 0.
   No include guard: define MODE and C, then include. */

MODE(ADD, FORM_BINARY, x + b, "add", "a:x b", "sum")
MODE(SUB, FORM_BINARY, x - b, "sub", "a:x b", "difference")
MODE(MUL, FORM_BINARY, x *b, "mul", "a:x b", "product")
MODE(DIV, FORM_BINARY, x / b, "div", "a:x b", "quotient")
MODE(ADD_SQUARE, FORM_BINARY, x + b * b, "add_square", "a:x b", "first operand plus the square of the second")
MODE(MAX, FORM_BINARY, (x > b || x != x) ? x : b, "max", "input0:x input1:b",
     "larger operand; NaN wins; either one of +0.0 and -0.0")
MODE(MIN, FORM_BINARY, (x < b || x != x) ? x : b, "min", "input0:x input1:b",
     "smaller operand; NaN wins; either one of +0.0 and -0.0")
MODE(MOD, FORM_BINARY, fmod(x, b), "mod", "input0:x input1:b", "remainder with the sign of the dividend")
MODE(FLOOR_MOD, FORM_BINARY, fmod(x, b) != C(0) && (fmod(x, b) < C(0)) != (b < C(0)) ? fmod(x, b) + b : fmod(x, b),
     "floor_mod", "input0:x input1:b", "remainder with the sign of the divisor")
MODE(POW, FORM_BINARY, pow(x, b), "pow", "input0:x input1:b", "power")
MODE(ATAN2, FORM_BINARY, atan2(x, b), "atan2", "input0:x input1:b", "angle of the point (b, x) in radians")
MODE(ABS, FORM_UNARY, fabs(x), "abs", "input:x", "absolute value")
MODE(CEIL, FORM_UNARY, ceil(x), "ceil", "input:x", "smallest integer that is not less")
MODE(FLOOR, FORM_UNARY, floor(x), "floor", "input:x", "largest integer that is not greater")
MODE(COS, FORM_UNARY, cos(x), "cos", "input:x", "cosine of an angle in radians")
MODE(SIN, FORM_UNARY, sin(x), "sin", "input:x", "sine of an angle in radians")
MODE(TAN, FORM_UNARY, tan(x), "tan", "input:x", "tangent of an angle in radians")
MODE(EXP, FORM_UNARY, exp(x), "exp", "input:x", "natural exponential")
MODE(LOG, FORM_UNARY, log(x), "log", "input:x", "natural logarithm")
MODE(NEG, FORM_UNARY, -x, "neg", "input:x", "negation")
MODE(SQRT, FORM_UNARY, sqrt(x), "sqrt", "input:x", "square root")
MODE(RSQRT, FORM_UNARY, C(1) / sqrt(x), "rsqrt", "input:x", "reciprocal of the square root")
MODE(RECIPROCAL, FORM_UNARY, C(1) / x, "reciprocal", "input:x", "reciprocal")
MODE(ERF, FORM_UNARY, erf(x), "erf", "input:x", "error function")
MODE(IDENTITY, FORM_UNARY, x, "identity", "input:x", "copy, with conversion to the output's data type")
MODE(
    RELU_FWD, FORM_UNARY,
    slope == C(0) && x <= lower ? lower
    : x < lower                 ? lower + slope * (x - lower)
    : x > upper                 ? upper
                                : x,
    "relu",
    "input:x negative_slope:relu_lower_clip_slope=None lower_clip:relu_lower_clip=None upper_clip:relu_upper_clip=None",
    "rectifier with clips and a slope below the lower one; without a slope, -0.0 gives the clip, +0.0")
MODE(TANH_FWD, FORM_UNARY, tanh(x), "tanh", "input:x", "hyperbolic tangent")
MODE(SIGMOID_FWD, FORM_UNARY, logistic(x), "sigmoid", "input:x", "logistic function, 1 / (1 + exp(-x))")
MODE(ELU_FWD, FORM_UNARY, x > C(0) ? x : alpha * expm1(x), "elu", "input:x * elu_alpha=None", "exponential linear unit")
MODE(GELU_FWD, FORM_UNARY, gelu(x), "gelu", "input:x", "Gaussian error linear unit, exact, by the normal distribution")
MODE(SOFTPLUS_FWD, FORM_UNARY, (beta * x > C(0) ? x : C(0)) + log1p(exp(-fabs(beta * x))) / beta, "softplus",
     "input:x * softplus_beta=None", "log(1 + exp(beta x)) / beta")
MODE(SWISH_FWD, FORM_UNARY,
     (beta < C(0) ? -at_least(-x, C(-3.4028234663852886e38)) : at_least(x, C(-3.4028234663852886e38))) *
         logistic(beta * x),
     "swish", "input:x swish_beta=None", "x times sigmoid(beta x)")
MODE(GELU_APPROX_TANH_FWD, FORM_UNARY,
     logistic_approx((C(1.5957691216057308) + C(0.07135481627260025) * x * x) * x) *
         at_least(x, C(-3.4028234663852886e38)),
     "gelu_approx_tanh", "input:x", "Gaussian error linear unit, tanh approximation")
MODE(RELU_BWD, FORM_BACKWARD,
     x <= lower && lower - lower == C(0)   ? (slope == C(0) ? C(0) : dy * slope)
     : x >= upper && upper - upper == C(0) ? C(0)
                                           : dy,
     "relu_backward",
     "loss:dy input:x negative_slope:relu_lower_clip_slope=None lower_clip:relu_lower_clip=None "
     "upper_clip:relu_upper_clip=None",
     "gradient of relu")
MODE(TANH_BWD, FORM_BACKWARD, dy *(C(1) - tanh(x) * tanh(x)), "tanh_backward", "loss:dy input:x", "gradient of tanh")
MODE(SIGMOID_BWD, FORM_BACKWARD, dy *logistic(x) * logistic(-x), "sigmoid_backward", "loss:dy input:x",
     "gradient of sigmoid")
MODE(ELU_BWD, FORM_BACKWARD, x > C(0) ? dy : dy * alpha * exp(x), "elu_backward", "loss:dy input:x * elu_alpha=None",
     "gradient of elu")
MODE(GELU_BWD, FORM_BACKWARD, gelu_slope(x) * dy, "gelu_backward", "loss:dy input:x", "gradient of gelu")
MODE(SOFTPLUS_BWD, FORM_BACKWARD, dy *logistic(beta *x), "softplus_backward", "loss:dy input:x * softplus_beta=None",
     "gradient of softplus")
MODE(SWISH_BWD, FORM_BACKWARD,
     dy *(logistic(beta *x) + (fabs(beta * x) < C(10000) ? beta * x : C(0)) * logistic(beta * x) * logistic(-beta * x)),
     "swish_backward", "loss:dy input:x compute_data_type swish_beta=None name", "gradient of swish")
MODE(GELU_APPROX_TANH_BWD, FORM_BACKWARD,
     logistic_approx((C(1.5957691216057308) + C(0.07135481627260025) * x * x) * x) *
         (C(1) + (fabs(x) > C(20) ? C(0) : (C(1.5957691216057308) + C(0.21406444881780076) * x * x) * x) *
                     logistic_approx((C(-1.5957691216057308) - C(0.07135481627260025) * x * x) * x)) *
         dy,
     "gelu_approx_tanh_backward", "loss:dy input:x", "gradient of gelu_approx_tanh")
MODE(CMP_EQ, FORM_BINARY, x == b, "cmp_eq", "input:x comparison:b", "1 where equal, else 0")
MODE(CMP_NEQ, FORM_BINARY, x != b, "cmp_neq", "input:x comparison:b", "1 where different, else 0")
MODE(CMP_GT, FORM_BINARY, x > b, "cmp_gt", "input:x comparison:b", "1 where greater, else 0")
MODE(CMP_GE, FORM_BINARY, x >= b, "cmp_ge", "input:x comparison:b", "1 where greater or equal, else 0")
MODE(CMP_LT, FORM_BINARY, x < b, "cmp_lt", "input:x comparison:b", "1 where less, else 0")
MODE(CMP_LE, FORM_BINARY, x <= b, "cmp_le", "input:x comparison:b", "1 where less or equal, else 0")
MODE(LOGICAL_AND, FORM_BINARY, x != C(0) && b != C(0), "logical_and", "a:x b", "1 where both are not 0, else 0")
MODE(LOGICAL_OR, FORM_BINARY, x != C(0) || b != C(0), "logical_or", "a:x b", "1 where either is not 0, else 0")
MODE(LOGICAL_NOT, FORM_UNARY, x == C(0), "logical_not", "input:x", "1 where 0, else 0")
MODE(BINARY_SELECT, FORM_SELECT, t != C(0) ? x : b, "binary_select", "input0:x input1:b mask:t",
     "first operand where the mask is not 0, else the second")
MODE(GEN_INDEX, FORM_INDEX, x, "gen_index", "input:x axis", "the position along an axis of the input's shape")
