/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise: y[i] = f(alpha1 x[i], alpha2 b[i], t[i]), where extents of 1 broadcast. Evaluated in the math type, then
   converted to the output's type by rounding to nearest even and saturating integers. The modes are the rows of
   pointwise_modes.h, which is included here twice, as functions and as a table; engines emit the same formulas into
   their kernels. To add a mode, add a row there and its enumerator. */
#include "graph/ops/pointwise.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ---- The modes --------------------------------------------------------------------------------------------------- */

/* Functions that the formulas of the table call; engines define their own versions, and a faster approximate one. */
static double logistic(double x) { return 1 / (1 + exp(-x)); }
static double logistic_approx(double x) { return logistic(x); }
static double at_least(double x, double least) { return x <= least ? least : x; }
static double normal_cdf(double x) { return 0.5 * erfc(x * -0.7071067811865476); }
static double gelu(double x) { return at_least(x, -DBL_MAX) * normal_cdf(x); }
static double gelu_slope(double x) {
    double bounded = fabs(x) < 100 ? x : 0; /* the density is 0 beyond this range */
    return normal_cdf(x) + bounded * 0.3989422804014327 * exp(-0.5 * bounded * bounded);
}

/* A literal of the table, in the type of the calculation. */
#define C(literal) ((double)(literal))
#define MODE(name, form, formula, method, arguments, doc)                                                              \
    static double evaluate_##name(double x, double b, double t, const struct pointwise_parameters *p) {                \
        const double dy = b, lower = p->lower, upper = p->upper, slope = p->slope, alpha = p->alpha, beta = p->beta;   \
        (void)x, (void)t, (void)dy, (void)lower, (void)upper, (void)slope, (void)alpha, (void)beta;                    \
        return formula;                                                                                                \
    }
#include "graph/ops/pointwise_modes.h"
#undef MODE
#undef C

/* The smallest integer divided by -1 overflows, which is undefined in C: here it wraps around. */
static int64_t quotient_of(int64_t x, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)x) : x / b; }
static int64_t remainder_of(int64_t x, int64_t b) { return b == 0 || b == -1 ? 0 : x % b; }

/* Negative exponents give truncated quotients: 0, except for bases of 1 and -1. Overflow wraps around. */
static int64_t integer_power(int64_t x, int64_t b) {
    uint64_t power = 1;
    if (b < 0)
        return x == 1 ? 1 : x == -1 ? (b % 2 ? -1 : 1) : 0;
    for (uint64_t base = (uint64_t)x; b; b >>= 1, base *= base)
        power *= b & 1 ? base : 1;
    return (int64_t)power;
}

/* The modes that also exist for integers: exact, wrapping around on overflow; division by 0 gives 0. */
#define INTEGER_MODES(MODE)                                                                                            \
    MODE(ADD, (int64_t)((uint64_t)x + (uint64_t)b))                                                                    \
    MODE(SUB, (int64_t)((uint64_t)x - (uint64_t)b))                                                                    \
    MODE(MUL, (int64_t)((uint64_t)x * (uint64_t)b))                                                                    \
    MODE(ADD_SQUARE, (int64_t)((uint64_t)x + (uint64_t)b * (uint64_t)b))                                               \
    MODE(DIV, quotient_of(x, b))                                                                                       \
    MODE(MOD, remainder_of(x, b))                                                                                      \
    MODE(FLOOR_MOD, remainder_of(x, b) && (x < 0) != (b < 0) ? remainder_of(x, b) + b : remainder_of(x, b))            \
    MODE(POW, integer_power(x, b))                                                                                     \
    MODE(MAX, x > b ? x : b)                                                                                           \
    MODE(MIN, x < b ? x : b)                                                                                           \
    MODE(ABS, x < 0 ? (int64_t)(0 - (uint64_t)x) : x)                                                                  \
    MODE(NEG, (int64_t)(0 - (uint64_t)x))                                                                              \
    MODE(CEIL, x)                                                                                                      \
    MODE(FLOOR, x)                                                                                                     \
    MODE(IDENTITY, x)                                                                                                  \
    MODE(CMP_EQ, x == b)                                                                                               \
    MODE(CMP_NEQ, x != b)                                                                                              \
    MODE(CMP_GT, x > b)                                                                                                \
    MODE(CMP_GE, x >= b)                                                                                               \
    MODE(CMP_LT, x < b)                                                                                                \
    MODE(CMP_LE, x <= b)                                                                                               \
    MODE(LOGICAL_AND, x &&b)                                                                                           \
    MODE(LOGICAL_OR, x || b)                                                                                           \
    MODE(LOGICAL_NOT, !x)                                                                                              \
    MODE(BINARY_SELECT, t ? x : b)                                                                                     \
    MODE(GEN_INDEX, x)
/* One function per integer mode. x, b and the mask t are 64-bit integers. */
#define MODE(name, formula)                                                                                            \
    static int64_t integer_##name(int64_t x, int64_t b, int64_t t) {                                                   \
        (void)x, (void)b, (void)t;                                                                                     \
        return formula;                                                                                                \
    }
INTEGER_MODES(MODE)
#undef MODE

/* One row per mode. The formula is also stored as text, which engines emit into their kernels. */
#define MODE(name_, form_, formula_, method_, arguments_, doc_)                                                        \
    {.mode = WEFT_POINTWISE_##name_,                                                                                   \
     .name = #name_,                                                                                                   \
     .form = form_,                                                                                                    \
     .formula = #formula_,                                                                                             \
     .evaluate = evaluate_##name_,                                                                                     \
     .is_logical =                                                                                                     \
         WEFT_POINTWISE_##name_ >= WEFT_POINTWISE_CMP_EQ && WEFT_POINTWISE_##name_ <= WEFT_POINTWISE_LOGICAL_NOT,      \
     .method = method_,                                                                                                \
     .arguments = arguments_,                                                                                          \
     .doc = doc_},
static const struct pointwise_mode modes[] = {
#include "graph/ops/pointwise_modes.h"
};
#undef MODE

enum { MODE_COUNT = sizeof modes / sizeof *modes };

int pointwise_mode_count(void) { return MODE_COUNT; }

const struct pointwise_mode *pointwise_mode_at(int i) { return &modes[i]; }

/* A linear search; NULL if no mode has this number. */
const struct pointwise_mode *pointwise_find_mode(int mode) {
    for (int i = 0; i < MODE_COUNT; i++)
        if ((int)modes[i].mode == mode)
            return &modes[i];
    return NULL;
}

/* NULL for modes without an integer version, such as roots and exponentials. */
int64_t (*pointwise_integer_evaluator(int mode))(int64_t x, int64_t b, int64_t t) {
    switch (mode) {
#define MODE(name, formula)                                                                                            \
    case WEFT_POINTWISE_##name:                                                                                        \
        return integer_##name;
        INTEGER_MODES(MODE)
#undef MODE
    }
    return NULL;
}

/* The same as text, which engines emit. */
const char *pointwise_integer_formula(int mode) {
    switch (mode) {
#define MODE(name, formula)                                                                                            \
    case WEFT_POINTWISE_##name:                                                                                        \
        return #formula;
        INTEGER_MODES(MODE)
#undef MODE
    }
    return NULL;
}

/* ---- The parameter descriptor ------------------------------------------------------------------------------------ */

/* As in cuDNN, each constant that only one mode uses has its own row. Other modes ignore it. */
static const struct row parameter_rows[] = {
    VALUE_ROW(WEFT_TYPE_POINTWISE_MODE, struct pointwise, mode, WEFT_ATTR_POINTWISE_MODE, "mode", .required = true,
              .doc = "the function: weftPointwiseMode_t"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct pointwise, math, WEFT_ATTR_POINTWISE_MATH_PREC, "compute_data_type",
              .doc = "compute type; integer types are exact. Unset: INT64 for integers, except FLOAT if the mode "
                     "divides or is not exact for them, FLOAT for all others"),
    VALUE_ROW(WEFT_TYPE_NAN_PROPOGATION, struct pointwise, nan_propagation, WEFT_ATTR_POINTWISE_NAN_PROPAGATION,
              "nan_propagation", .doc = "accepted for compatibility; NaN always propagates"),
    /* RELU: slope * (x - lower) + lower below the lower clip, at most the upper one. The defaults give max(x, 0). */
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct pointwise, lower, WEFT_ATTR_POINTWISE_RELU_LOWER_CLIP, "relu_lower_clip",
              .doc = "RELU: below it the slope applies"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct pointwise, upper, WEFT_ATTR_POINTWISE_RELU_UPPER_CLIP, "relu_upper_clip",
              .initial = INFINITY, .doc = "RELU: the largest value"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct pointwise, slope, WEFT_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE,
              "relu_lower_clip_slope", .doc = "RELU: slope below the lower clip"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct pointwise, elu_alpha, WEFT_ATTR_POINTWISE_ELU_ALPHA, "elu_alpha", .initial = 1,
              .doc = "ELU: limit of -y for large negative x"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct pointwise, softplus_beta, WEFT_ATTR_POINTWISE_SOFTPLUS_BETA, "softplus_beta",
              .initial = 1, .doc = "SOFTPLUS: sharpness"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct pointwise, swish_beta, WEFT_ATTR_POINTWISE_SWISH_BETA, "swish_beta",
              .initial = 1, .doc = "SWISH: sharpness"),
    VALUE_ROW(WEFT_TYPE_INT64, struct pointwise, axis, WEFT_ATTR_POINTWISE_AXIS, "axis", .initial = -1, .least = -1,
              .most = WEFT_DIM_MAX - 1, .doc = "GEN_INDEX: the dimension whose index is generated"),
};

/* Enumerators have gaps, which the row's bounds do not detect. */
static weftStatus_t finalize_parameters(struct descriptor *descriptor) {
    const struct pointwise *pw = (const struct pointwise *)descriptor;
    if (!pointwise_find_mode(pw->mode))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: mode is %d, which is not a weftPointwiseMode_t. Use one of its values.", descriptor_label(descriptor),
             pw->mode);
    if (pw->softplus_beta == 0)
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: softplus_beta is 0, which divides by zero. Use another value.",
             descriptor_label(descriptor));
    return WEFT_STATUS_SUCCESS;
}

const struct schema pointwise_schema = {
    .kind = WEFT_BACKEND_POINTWISE_DESCRIPTOR,
    .name = "pointwise parameters",
    .doc = "mode and constants of a pointwise operation",
    .size = sizeof(struct pointwise),
    ROWS(parameter_rows),
    .finalize = finalize_parameters,
};

/* ---- The operation ----------------------------------------------------------------------------------------------- */

/* check_operands defines which of b, t, dy, y and dx a mode has, so that no row is required. */
static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct pointwise_op, pw, WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, "pw",
              .required = true, .target = WEFT_BACKEND_POINTWISE_DESCRIPTOR, .doc = "mode and constants"),
    TENSOR_ROW(ROLE_INPUT, struct pointwise_op, x, WEFT_ATTR_OPERATION_POINTWISE_XDESC, "x", .required = true,
               .shape = "[d..] or 1s", .doc = "first operand; for a backward mode the forward input"),
    TENSOR_ROW(ROLE_INPUT, struct pointwise_op, b, WEFT_ATTR_OPERATION_POINTWISE_BDESC, "b", .shape = "[d..] or 1s",
               .doc = "second operand of binary modes and of BINARY_SELECT"),
    TENSOR_ROW(ROLE_INPUT, struct pointwise_op, t, WEFT_ATTR_OPERATION_POINTWISE_TDESC, "t", .shape = "[d..] or 1s",
               .doc = "mask of BINARY_SELECT"),
    TENSOR_ROW(ROLE_INPUT, struct pointwise_op, dy, WEFT_ATTR_OPERATION_POINTWISE_DYDESC, "dy", .shape = "[d..] or 1s",
               .doc = "gradient of the output, for backward modes"),
    TENSOR_ROW(ROLE_OUTPUT, struct pointwise_op, y, WEFT_ATTR_OPERATION_POINTWISE_YDESC, "y", .in_place = "x b t",
               .shape = "[d..], the broadcast extents of the operands", .doc = "result of forward modes"),
    TENSOR_ROW(ROLE_OUTPUT, struct pointwise_op, dx, WEFT_ATTR_OPERATION_POINTWISE_DXDESC, "dx", .in_place = "x dy",
               .shape = "[d..], the broadcast extents of the operands",
               .doc = "gradient of the input, for backward modes"),
    VALUE_ROW(WEFT_TYPE_FLOAT, struct pointwise_op, alpha1, WEFT_ATTR_OPERATION_POINTWISE_ALPHA1, "alpha1",
              .initial = 1, .doc = "factor on x; 0: a sum does not read x"),
    VALUE_ROW(WEFT_TYPE_FLOAT, struct pointwise_op, alpha2, WEFT_ATTR_OPERATION_POINTWISE_ALPHA2, "alpha2",
              .initial = 1, .doc = "factor on b; 0: a sum does not read b"),
};

/* Other names that frontends use for a mode. */
static const struct method methods[] = {
    {"bias", "sum of input and bias : x + b", "mode=ADD", "input:x bias:b", "y"},
    {"scale", "product of input and scale : x * b", "mode=MUL", "input:x scale:b", "y"},
    {"leaky_relu", "rectifier with a slope for negative inputs : x < 0 ? slope * x : x", "mode=RELU_FWD",
     "input:x negative_slope:relu_lower_clip_slope", "y"},
    {"leaky_relu_backward", "gradient of leaky_relu : x <= 0 ? dy * slope : dy", "mode=RELU_BWD",
     "loss:dy input:x negative_slope:relu_lower_clip_slope", "dx"},
    {0},
};

/* Backward modes have dy where binary modes have b, so that formulas and kernels have three inputs and one output. */
struct pointwise_operands pointwise_operands(const struct pointwise_op *op) {
    bool backward = pointwise_find_mode(op->pw->mode)->form == FORM_BACKWARD;
    return (struct pointwise_operands){
        .x = op->x, .b = backward ? op->dy : op->b, .t = op->t, .out = backward ? op->dx : op->y};
}

/* `beta` is that of swish or of softplus, depending on the mode. */
struct pointwise_parameters pointwise_parameters(const struct pointwise_op *op) {
    const struct pointwise *pw = op->pw;
    bool swish = pw->mode == WEFT_POINTWISE_SWISH_FWD || pw->mode == WEFT_POINTWISE_SWISH_BWD;
    return (struct pointwise_parameters){.lower = pw->lower,
                                         .upper = pw->upper,
                                         .slope = pw->slope,
                                         .alpha = pw->elu_alpha,
                                         .beta = swish ? pw->swish_beta : pw->softplus_beta};
}

/* True if a mode maps integers to integers: it is exact for them and neither a quotient nor a power. */
static bool is_integral_mode(int mode) {
    return pointwise_integer_evaluator(mode) && mode != WEFT_POINTWISE_DIV && mode != WEFT_POINTWISE_POW;
}

/* True if the formula's operands are integers, some of which may be booleans; the mask of a selection does not
   count. */
static bool has_integers(const struct pointwise_op *op, const struct pointwise_operands *operands) {
    /* An index is an integer regardless of the type of x: only the output's type matters. */
    if (pointwise_find_mode(op->pw->mode)->form == FORM_INDEX)
        return dtype_is_integer((weftDataType_t)operands->out->type);
    weftDataType_t x = (weftDataType_t)operands->x->type, b = operands->b ? (weftDataType_t)operands->b->type : x;
    return !dtype_is_float(x) && !dtype_is_float(b) && (dtype_is_integer(x) || dtype_is_integer(b));
}

/* The type that the user set; otherwise INT64 if inputs, mode and factors are exact in it; otherwise FLOAT. */
weftDataType_t pointwise_math(const struct pointwise_op *op) {
    struct pointwise_operands operands = pointwise_operands(op);
    bool is_set = descriptor_row_is_set(&op->pw->base, WEFT_ATTR_POINTWISE_MATH_PREC);
    bool is_exact = is_integral_mode(op->pw->mode) && has_integers(op, &operands) && op->alpha1 == 1 && op->alpha2 == 1;
    return is_set ? (weftDataType_t)op->pw->math : is_exact ? WEFT_DATA_INT64 : WEFT_DATA_FLOAT;
}

/* Checks for exactly the operands that the mode's form requires. */
static weftStatus_t check_operands(const struct pointwise_op *op) {
    static const struct {
        const char *wants;
        bool b, t, dy;
    } forms[] = {
        [FORM_UNARY] = {"x -> y", false, false, false},      [FORM_BINARY] = {"x, b -> y", true, false, false},
        [FORM_SELECT] = {"x, b, t -> y", true, true, false}, [FORM_BACKWARD] = {"dy, x -> dx", false, false, true},
        [FORM_INDEX] = {"x -> y", false, false, false},
    };
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    int form = mode->form;
    /* y and dx are one output under two names: exactly one of them is set; dx if dy is. */
    bool fits = forms[form].b == (op->b != NULL) && forms[form].t == (op->t != NULL) &&
                forms[form].dy == (op->dy != NULL) && forms[form].dy == (op->dx != NULL) &&
                forms[form].dy == (op->y == NULL);
    if (!fits)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode %s takes %s; set are x%s%s%s -> %s%s. Set exactly the operands it takes.",
             descriptor_label(&op->base), mode->name, forms[form].wants, op->b ? ", b" : "", op->t ? ", t" : "",
             op->dy ? ", dy" : "", op->y ? "y" : "", op->dx ? "dx" : "");
    return WEFT_STATUS_SUCCESS;
}

/* Computes the extents of the broadcast operands. Scalars may have any rank and do not influence the result, unless all
   operands are scalars: then the result has the dims of the first one. */
static weftStatus_t broadcast(const struct pointwise_op *op, struct dims *dims) {
    struct pointwise_operands operands = pointwise_operands(op);
    const struct tensor *inputs[] = {operands.x, operands.b, operands.t};
    *dims = (struct dims){0};
    for (int k = 0; k < 3; k++)
        /* Start with the first operand of the largest rank. */
        if (inputs[k] && (dims->count == 0 || (tensor_elements(inputs[k]) != 1 && inputs[k]->dims.count > dims->count)))
            *dims = inputs[k]->dims;
    /* Extents of 1 are replaced by those of the others. */
    for (int k = 0; k < 3; k++) {
        if (!inputs[k] || tensor_elements(inputs[k]) == 1)
            continue;
        bool fits = inputs[k]->dims.count == dims->count;
        for (int64_t i = 0; fits && i < dims->count; i++) {
            int64_t extent = inputs[k]->dims.at[i];
            if (dims->at[i] == 1)
                dims->at[i] = extent;
            fits = extent == 1 || extent == dims->at[i];
        }
        if (!fits)
            FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                 "%s: operands do not broadcast: %s with %s. Make ranks equal and each extent equal or 1.",
                 descriptor_label(&op->base), numbers_text(dims->at, dims->count), tensor_dims_text(inputs[k]));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The operand whose memory order the output gets: the first one of its size, preferably one that has an order. NULL if
   no operand has its size. */
static const struct tensor *order_of(const struct pointwise_operands *operands, const struct tensor *out) {
    const struct tensor *inputs[] = {operands->x, operands->b, operands->t}, *ordered = NULL;
    for (int k = 0; k < 3; k++) {
        bool is_first = inputs[k] && (!ordered || (ordered->has_no_order && !inputs[k]->has_no_order));
        if (is_first && tensor_same_dims(inputs[k], out))
            ordered = inputs[k];
    }
    return ordered;
}

static void infer_strides(struct tensor *out, const struct pointwise_operands *operands) {
    const struct tensor *like = order_of(operands, out);
    if (out->strides.count == 0)
        out->has_no_order = !like || like->has_no_order;
    tensor_infer_strides(out, like ? like : operands->x);
}

/* The strides of the last operand that has the output's dims, including gaps. If no operand has these dims, the output
   is packed in the order of the first one. cuDNN's gradients read dy before x. */
static bool cudnn_strides(const struct descriptor *descriptor, const struct tensor *out, struct dims *strides) {
    const struct pointwise_op *op = (const struct pointwise_op *)descriptor;
    struct pointwise_operands operands = pointwise_operands(op);
    const struct tensor *first = op->dy ? operands.b : operands.x, *second = op->dy ? operands.x : operands.b;
    const struct tensor *last_to_first[] = {operands.t, second, first};
    for (int k = 0; k < 3; k++)
        if (last_to_first[k] && last_to_first[k]->vector_count == 1 && tensor_same_dims(last_to_first[k], out)) {
            *strides = last_to_first[k]->strides;
            return true;
        }
    if (first->vector_count != 1 || first->dims.count != out->dims.count)
        return false;
    *strides = dims_packed(&out->dims, &first->strides);
    return true;
}

/* Promotes the operands' types. A scalar contributes only its kind: a float32 factor on a bfloat16 tensor gives
   bfloat16. Integers stay integers if the mode is exact for them and neither a quotient nor a power. */
static weftDataType_t result_type(const struct pointwise_op *op, const struct pointwise_operands *operands,
                                  const struct tensor *out) {
    weftDataType_t math = pointwise_math(op), natural = (weftDataType_t)operands->x->type;
    /* The mask of a selection does not influence the type. */
    if (operands->b) {
        weftDataType_t other = (weftDataType_t)operands->b->type;
        /* Kinds are floats, integers and booleans. If the kinds differ, a scalar counts like any other operand. */
        bool x_is_scalar = tensor_elements(operands->x) == 1, b_is_scalar = tensor_elements(operands->b) == 1;
        bool same_sort =
            dtype_is_float(natural) == dtype_is_float(other) && dtype_is_boolean(natural) == dtype_is_boolean(other);
        if (!same_sort || x_is_scalar == b_is_scalar)
            natural = dtype_promote(natural, other);
        /* For a scalar and a tensor of the same kind, the result has the type of the tensor. */
        else if (x_is_scalar)
            natural = other;
    }
    /* A quotient of integers is not an integer. */
    if (!dtype_is_float(natural) && dtype_is_float(math) && !is_integral_mode(op->pw->mode))
        return math;
    return tensor_result_type(out, natural, math);
}

/* Makes the operation an identity. */
static weftStatus_t become_identity(struct pointwise_op *op) {
    const weftPointwiseMode_t mode = WEFT_POINTWISE_IDENTITY;
    const weftDataType_t math = pointwise_math(op);
    const struct setting settings[] = {{WEFT_ATTR_POINTWISE_MODE, WEFT_TYPE_POINTWISE_MODE, 1, &mode},
                                       {WEFT_ATTR_POINTWISE_MATH_PREC, WEFT_TYPE_DATA_TYPE, 1, &math}};
    struct descriptor *parameters;
    TRY(descriptor_build(&parameters, &pointwise_schema, settings, 2));
    weftStatus_t status = descriptor_set(&op->base, WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                                         WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &parameters);
    descriptor_release(parameters);
    return status;
}

/* A factor of 0 means that the operand of a sum is not read, as in cuDNN: programs bind it to memory that was never
   written, and 0 * NaN is NaN. The operation becomes the identity of the other operand. */
static weftStatus_t drop_unread_operand(struct pointwise_op *op) {
    bool is_sum = op->pw->mode == WEFT_POINTWISE_ADD || op->pw->mode == WEFT_POINTWISE_SUB;
    if (!is_sum || (op->alpha1 != 0 && op->alpha2 != 0) || !dtype_is_float(pointwise_math(op)))
        return WEFT_STATUS_SUCCESS;
    if (op->alpha2 != 0) { /* x is not read */
        op->alpha1 = op->pw->mode == WEFT_POINTWISE_SUB ? -op->alpha2 : op->alpha2;
        TRY(descriptor_set(&op->base, WEFT_ATTR_OPERATION_POINTWISE_XDESC, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &op->b));
    }
    TRY(become_identity(op));
    descriptor_unset(&op->base, WEFT_ATTR_OPERATION_POINTWISE_BDESC);
    op->alpha2 = 1;
    return WEFT_STATUS_SUCCESS;
}

/* The output has the broadcast extents of its inputs, in the order of the first one of full size. Its type depends on
   mode and inputs. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct pointwise_op *op = (struct pointwise_op *)descriptor;
    TRY(check_operands(op));
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    struct pointwise_operands operands = pointwise_operands(op);
    struct tensor *out = op->dx ? op->dx : op->y;
    struct dims dims;
    TRY(broadcast(op, &dims));
    tensor_infer_dims(out, dims.count, dims.at);
    infer_strides(out, &operands);
    /* Comparisons and logic return booleans for operands of any type. */
    bool boolean_math = dtype_is_boolean(pointwise_math(op));
    if (mode->is_logical || boolean_math)
        tensor_infer_type(out, WEFT_DATA_BYTE_BOOLEAN);
    else if (mode->form == FORM_INDEX)
        tensor_infer_type(out, WEFT_DATA_INT32);
    else
        tensor_infer_type(out, result_type(op, &operands, out));
    return drop_unread_operand(op);
}

/* For complete operands: checks broadcasting, the axis of an index, and operations that integers do not support. */
static weftStatus_t check(const struct descriptor *descriptor) {
    const struct pointwise_op *op = (const struct pointwise_op *)descriptor;
    struct pointwise_operands operands = pointwise_operands(op);
    const struct tensor *inputs[] = {operands.x, operands.b, operands.t};
    static const char *const keys[] = {"x", "b", "t"};
    for (int k = 0; k < 3; k++)
        /* Scalars of any rank are accepted. */
        if (inputs[k] && tensor_elements(inputs[k]) != 1)
            TRY(check_broadcasts(descriptor, k == 1 && op->dy ? "dy" : keys[k], inputs[k], operands.out));
    bool indexes = pointwise_find_mode(op->pw->mode)->form == FORM_INDEX;
    if (indexes && (op->pw->axis < 0 || op->pw->axis >= op->y->dims.count))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: axis is %lld, y has %lld dim%s. Use a value in 0..%lld.",
             descriptor_label(descriptor), (long long)op->pw->axis, (long long)op->y->dims.count,
             plural(op->y->dims.count), (long long)op->y->dims.count - 1);
    /* The user may have set an integer type, which not every mode supports. */
    weftDataType_t math = pointwise_math(op);
    if (!dtype_is_float(math) && !pointwise_integer_evaluator(op->pw->mode))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode %s has no meaning in %s arithmetic. Set compute_data_type to FLOAT.",
             descriptor_label(descriptor), pointwise_find_mode(op->pw->mode)->name, dtype_of(math)->name);
    if (!dtype_is_float(math) && (op->alpha1 != 1 || op->alpha2 != 1))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: alpha1 is %g and alpha2 %g, but factors have no meaning in %s arithmetic. Set both to 1, or "
             "compute_data_type to FLOAT.",
             descriptor_label(descriptor), op->alpha1, op->alpha2, dtype_of(math)->name);
    return WEFT_STATUS_SUCCESS;
}

/* One element at a time; views broadcast extents of 1. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct pointwise_op *op = (const struct pointwise_op *)descriptor;
    const struct pointwise_mode *mode = pointwise_find_mode(op->pw->mode);
    struct pointwise_operands operands = pointwise_operands(op);
    struct pointwise_parameters p = pointwise_parameters(op);
    struct view x = view_of(bindings, operands.x), b = view_of(bindings, operands.b), t = view_of(bindings, operands.t);
    struct view y = view_of(bindings, operands.out);
    bool exact = !dtype_is_float(pointwise_math(op));
    int64_t (*evaluate_int)(int64_t, int64_t, int64_t) = pointwise_integer_evaluator(op->pw->mode);
    int64_t index[WEFT_DIM_MAX];
    if (!y.data)
        return;
    for (bool more = index_begin(index, y.rank, y.dims); more; more = index_next(index, y.rank, y.dims)) {
        /* Three cases: the index itself, exact integers, or the formula in double. */
        if (mode->form == FORM_INDEX) {
            view_store_int(&y, index, index[op->pw->axis]);
        } else if (exact) {
            view_store_int(&y, index,
                           evaluate_int(view_load_int(&x, index), b.data ? view_load_int(&b, index) : 0,
                                        t.data && view_load(&t, index) != 0));
        } else {
            /* The second operand, under either of its names. */
            double dy = b.data ? op->alpha2 * view_load(&b, index) : 0;
            view_store(&y, index,
                       mode->evaluate(op->alpha1 * view_load(&x, index), dy, t.data ? view_load(&t, index) : 0, &p));
        }
    }
}

const struct op pointwise_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
            .name = "pointwise",
            .doc = "y[i] = f(alpha1 x[i], alpha2 b[i], t[i]) with broadcasting",
            .size = sizeof(struct pointwise_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &pointwise_op,
        },
    .parameters = &pointwise_schema,
    .methods = methods,
    .infer = infer,
    .cudnn_strides = cudnn_strides,
    .check = check,
    .reference = reference,
};
