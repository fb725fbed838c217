/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling and interpolation, and their gradients. One description covers all modes: an output position reads some
   adjacent elements ("taps") of x with weights, or selects one of them; the gradient distributes dy over the same taps.
   The header defines which elements these are. */
#include "graph/ops/resample.h"

#include "base/number.h"

#include <math.h>

/* Sums of four lengths and positions are computed in 64 bits. */
static const int64_t LENGTH_LIMIT = INT64_C(1) << 60;

/* The row holds PADDING_BY_MODE until finalize replaces it by the mode's default. */
enum { SPATIAL_MAX = 3, PADDING_BY_MODE = -1 };

/* Windows are whole elements; the other two modes interpolate between adjacent elements and support fractions. */
static bool is_pool(int mode) { return mode != WEFT_RESAMPLE_NEAREST && mode != WEFT_RESAMPLE_BILINEAR; }

/* The mode's name in the API, for messages. */
static const char *mode_name(int mode) {
    static const char *const names[] = {[WEFT_RESAMPLE_NEAREST] = "NEAREST",
                                        [WEFT_RESAMPLE_BILINEAR] = "BILINEAR",
                                        [WEFT_RESAMPLE_MAXPOOL] = "MAXPOOL",
                                        [WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING] = "AVGPOOL_INCLUDE_PADDING",
                                        [WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING] = "AVGPOOL_EXCLUDE_PADDING"};
    return names[mode];
}

/* ---- The parameter descriptor ------------------------------------------------------------------------------------ */

/* Lengths are fractions, as in cuDNN: an image enlarged by 3/2 has a stride of 2/3. */
static const struct row parameter_rows[] = {
    VALUE_ROW(WEFT_TYPE_RESAMPLE_MODE, struct resample, mode, WEFT_ATTR_RESAMPLE_MODE, "mode",
              .initial = WEFT_RESAMPLE_NEAREST, .least = WEFT_RESAMPLE_NEAREST,
              .most = WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING, .doc = "reduction of a window: weftResampleMode_t"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct resample, math, WEFT_ATTR_RESAMPLE_COMP_TYPE, "compute_data_type",
              .doc = "compute type"),
    VALUE_ROW(WEFT_TYPE_INT64, struct resample, spatial, WEFT_ATTR_RESAMPLE_SPATIAL_DIMS, "spatial_dims", .least = 1,
              .most = SPATIAL_MAX, .doc = "number of spatial dimensions; unset: that of the lists or tensors"),
    VALUE_ROW(WEFT_TYPE_FRACTION, struct resample, post_padding, WEFT_ATTR_RESAMPLE_POST_PADDINGS, "post_padding",
              .storage = STORE_LIST,
              .doc = "elements after the end of each spatial dimension that windows may reach; unset: pre_padding"),
    VALUE_ROW(WEFT_TYPE_FRACTION, struct resample, pre_padding, WEFT_ATTR_RESAMPLE_PRE_PADDINGS, "pre_padding",
              .storage = STORE_LIST,
              .doc = "elements before the start of each spatial dimension where the first window begins; unset: 0"),
    VALUE_ROW(WEFT_TYPE_FRACTION, struct resample, stride, WEFT_ATTR_RESAMPLE_STRIDES, "stride", .storage = STORE_LIST,
              .doc = "step of the window in elements, a fraction below 1 enlarges; unset: x extent / y extent, for "
                     "interpolation only"),
    VALUE_ROW(
        WEFT_TYPE_FRACTION, struct resample, window, WEFT_ATTR_RESAMPLE_WINDOW_DIMS, "window", .storage = STORE_LIST,
        .doc = "extents of the window in elements; interpolation uses it only to infer the extents of y, unset: 1"),
    VALUE_ROW(WEFT_TYPE_NAN_PROPOGATION, struct resample, nan_propagation, WEFT_ATTR_RESAMPLE_NAN_PROPAGATION,
              "nan_propagation", .initial = WEFT_PROPAGATE_NAN,
              .doc = "whether the maximum of a window with a NaN is NaN"),
    VALUE_ROW(WEFT_TYPE_PADDING_MODE, struct resample, padding_mode, WEFT_ATTR_RESAMPLE_PADDING_MODE, "padding_mode",
              .initial = PADDING_BY_MODE, .least = WEFT_ZERO_PAD, .most = WEFT_EDGE_VAL_PAD,
              .doc = "values outside x; unset: NEG_INF_PAD for MAXPOOL, ZERO_PAD for AVGPOOL, EDGE_VAL_PAD for NEAREST "
                     "and BILINEAR"),
    VALUE_ROW(WEFT_TYPE_INT64, struct resample, dilation, WEFT_ATTR_RESAMPLE_DILATIONS_EXT, "dilation",
              .storage = STORE_DIMS, .least = 1, .most = INT32_MAX,
              .doc = "distance between the elements of a pooling window, per spatial dimension; unset: 1"),
};

/* The first list that is set determines the number of spatial dimensions. */
static weftStatus_t check_count(struct resample *p, const char *key, int64_t count) {
    if (p->spatial == 0 && count <= SPATIAL_MAX)
        p->spatial = count;
    if (count && count != p->spatial)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "%s: %s has %lld number%s, expected %lld. Give one per spatial dimension (1 to 3), or none.",
             descriptor_label(&p->base), key, (long long)count, plural(count),
             (long long)(p->spatial ? p->spatial : SPATIAL_MAX));
    return WEFT_STATUS_SUCCESS;
}

/* `least` is the lower bound of numerators. */
static weftStatus_t check_list(struct resample *p, const char *key, const struct list *list, int64_t least) {
    TRY(check_count(p, key, list->count));
    for (int64_t i = 0; i < list->count; i++) {
        weftFraction_t f = list->fractions[i];
        /* Numerator and denominator fit into 31 bits, so that products of two fit into 64. */
        bool small = f.numerator <= INT32_MAX && f.numerator >= -INT32_MAX && f.denominator <= INT32_MAX;
        if (!small || f.numerator < least)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: %s[%lld] is %lld/%lld, expected a number %s. Change it.",
                 descriptor_label(&p->base), key, (long long)i, (long long)f.numerator, (long long)f.denominator,
                 small ? "above 0" : "of which both parts are below 2^31");
        if (is_pool(p->mode) && f.numerator % f.denominator)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: %s[%lld] is %lld/%lld; mode %s requires integers. Use one, or mode NEAREST or BILINEAR.",
                 descriptor_label(&p->base), key, (long long)i, (long long)f.numerator, (long long)f.denominator,
                 mode_name(p->mode));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Interpolation reads adjacent elements, at distance 1. */
static weftStatus_t check_dilation(struct resample *p) {
    TRY(check_count(p, "dilation", p->dilation.count));
    for (int64_t i = 0; i < p->dilation.count; i++)
        if (p->dilation.at[i] != 1 && !is_pool(p->mode))
            FAIL(WEFT_STATUS_BAD_PARAM,
                 "%s: dilation[%lld] is %lld, expected 1: mode %s interpolates between adjacent elements. Leave "
                 "dilation unset, or use a mode that pools.",
                 descriptor_label(&p->base), (long long)i, (long long)p->dilation.at[i], mode_name(p->mode));
    return WEFT_STATUS_SUCCESS;
}

/* All lists must have the same length, pooling requires a window and a stride, and the padding mode must be legal for
   the mode. */
static weftStatus_t finalize_parameters(struct descriptor *descriptor) {
    struct resample *p = (struct resample *)descriptor;
    TRY(check_list(p, "window", &p->window, 1));
    TRY(check_list(p, "stride", &p->stride, 1));
    TRY(check_list(p, "pre_padding", &p->pre_padding, -INT32_MAX));
    TRY(check_list(p, "post_padding", &p->post_padding, -INT32_MAX));
    TRY(check_dilation(p));
    /* For interpolation, the stride follows from the extents, and no window is needed. */
    if (is_pool(p->mode) && (p->window.count == 0 || p->stride.count == 0))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode %s has no %s. Set it: one integer per spatial dimension, in elements.",
             descriptor_label(descriptor), mode_name(p->mode), p->window.count ? "stride" : "window");
    if (p->padding_mode == PADDING_BY_MODE)
        p->padding_mode = p->mode == WEFT_RESAMPLE_MAXPOOL ? WEFT_NEG_INF_PAD
                          : is_pool(p->mode)               ? WEFT_ZERO_PAD
                                                           : WEFT_EDGE_VAL_PAD;
    /* Modes whose weighted sums include elements outside of x. */
    bool weighs = p->mode == WEFT_RESAMPLE_BILINEAR || p->mode == WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING;
    if (weighs && p->padding_mode == WEFT_NEG_INF_PAD)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: mode %s with padding_mode NEG_INF_PAD would average infinities. Use ZERO_PAD or EDGE_VAL_PAD.",
             descriptor_label(descriptor), mode_name(p->mode));
    return WEFT_STATUS_SUCCESS;
}

const struct schema resample_schema = {
    .kind = WEFT_BACKEND_RESAMPLE_DESCRIPTOR,
    .name = "resample parameters",
    .doc = "mode and geometry of pooling or interpolation and of its gradient",
    .size = sizeof(struct resample),
    ROWS(parameter_rows),
    .finalize = finalize_parameters,
};

/* ---- Rows and methods -------------------------------------------------------------------------------------------- */

/* Forward and backward share struct resample_op; each has the operands that its rows name. */
static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct resample_op, parameters, WEFT_ATTR_OPERATION_RESAMPLE_FWD_DESC,
              "parameters", .required = true, .target = WEFT_BACKEND_RESAMPLE_DESCRIPTOR, .doc = "mode and geometry"),
    TENSOR_ROW(ROLE_INPUT, struct resample_op, x, WEFT_ATTR_OPERATION_RESAMPLE_FWD_XDESC, "x", .required = true,
               .shape = "[N, C, x..]", .doc = "input"),
    TENSOR_ROW(ROLE_OUTPUT, struct resample_op, y, WEFT_ATTR_OPERATION_RESAMPLE_FWD_YDESC, "y", .required = true,
               .shape = "[N, C, 1 + (x + pre + post - dilation * (window - 1) - 1) / stride..]", .doc = "result"),
    TENSOR_ROW(ROLE_OUTPUT, struct resample_op, index, WEFT_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC, "index",
               .shape = "[N, C, y..]",
               .doc = "MAXPOOL: position of the first maximum, or of the last NaN, inside its window, row-major; an "
                      "integer type, unset: INT8 if it fits, otherwise INT32"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct resample_op, alpha, WEFT_ATTR_OPERATION_RESAMPLE_FWD_ALPHA, "alpha",
              .initial = 1, .doc = "factor of the result"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct resample_op, beta, WEFT_ATTR_OPERATION_RESAMPLE_FWD_BETA, "beta",
              .doc = "factor of the previous value of y; 0: it is not read"),
};

/* The gradient finds the maximum by index or x; y exists only for compatibility with cuDNN. */
static const struct row backward_rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct resample_op, parameters, WEFT_ATTR_OPERATION_RESAMPLE_BWD_DESC,
              "parameters", .required = true, .target = WEFT_BACKEND_RESAMPLE_DESCRIPTOR, .doc = "mode and geometry"),
    TENSOR_ROW(ROLE_INPUT, struct resample_op, dy, WEFT_ATTR_OPERATION_RESAMPLE_BWD_DYDESC, "dy", .required = true,
               .shape = "[N, C, y..]", .doc = "gradient of the result"),
    TENSOR_ROW(ROLE_INPUT, struct resample_op, index, WEFT_ATTR_OPERATION_RESAMPLE_BWD_IDXDESC, "index",
               .shape = "[N, C, y..]", .doc = "MAXPOOL: the positions that the forward operation wrote"),
    TENSOR_ROW(ROLE_INPUT, struct resample_op, x, WEFT_ATTR_OPERATION_RESAMPLE_BWD_XDESC, "x", .shape = "[N, C, x..]",
               .doc =
                   "MAXPOOL without index: the forward input, whose first maximum, or last NaN, receives the gradient"),
    TENSOR_ROW(ROLE_INPUT, struct resample_op, y, WEFT_ATTR_OPERATION_RESAMPLE_BWD_YDESC, "y", .shape = "[N, C, y..]",
               .doc = "the forward result; accepted, not needed"),
    TENSOR_ROW(ROLE_OUTPUT, struct resample_op, dx, WEFT_ATTR_OPERATION_RESAMPLE_BWD_DXDESC, "dx", .required = true,
               .shape = "[N, C, x..]; unset: those of x, or the smallest that yield y..",
               .doc = "gradient of the input"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct resample_op, alpha, WEFT_ATTR_OPERATION_RESAMPLE_BWD_ALPHA, "alpha",
              .initial = 1, .doc = "factor of the result"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct resample_op, beta, WEFT_ATTR_OPERATION_RESAMPLE_BWD_BETA, "beta",
              .doc = "factor of the previous value of dx; 0: it is not read"),
};

/* These follow the tensors of both operations. `padding` sets the same padding before and after. */
#define GEOMETRY_ARGUMENTS                                                                                             \
    " window=[] stride=[] pre_padding=[] post_padding=[] mode=MAXPOOL padding_mode=None "                              \
    "padding:pre_padding+post_padding=None * dilation=[]"

static const struct method methods[] = {
    {"resample",
     "pooling or interpolation : y[n,c,o] = max, mean or weighted sum over r of x[n, c, o * stride + r * dilation - "
     "pre_padding]",
     NULL, "input:x" GEOMETRY_ARGUMENTS, "y index"},
    {0},
};

static const struct method backward_methods[] = {
    {"resample_backward",
     "gradient of pooling or interpolation : dx[n,c,i] = sum of dy[n,c,o] by the weight that x[n,c,i] has in y[n,c,o]",
     NULL, "loss:dy index=None input:x=None output:y=None" GEOMETRY_ARGUMENTS, "dx"},
    {0},
};

/* ---- The geometry along one dimension ---------------------------------------------------------------------------- */

static bool is_backward(const struct resample_op *op) { return op_of(&op->base) == &resample_backward_op; }

/* The tensor with the extents of x, and the one with those of y. */
static struct tensor *wide_of(const struct resample_op *op) { return is_backward(op) ? op->dx : op->x; }
static struct tensor *narrow_of(const struct resample_op *op) { return is_backward(op) ? op->dy : op->y; }

/* If the parameters do not set it: all dimensions except batch and channels. */
static int spatial_of(const struct resample_op *op) {
    int64_t spatial = op->parameters->spatial;
    return (int)(spatial ? spatial : (is_backward(op) ? op->dy : op->x)->dims.count - 2);
}

/* Lengths in units of 1/denominator of an element. */
struct axis {
    int64_t denominator, stride, pre, post, window;
    int64_t dilation; /* in elements; 1 if the window is 1, where it has no meaning */
};

/* In lowest terms, so that common denominators stay small. */
static weftFraction_t fraction_at(const struct list *list, int i, weftFraction_t otherwise) {
    weftFraction_t f = list->count ? list->fractions[i] : otherwise;
    int64_t divisor = gcd64(f.numerator, f.denominator);
    return (weftFraction_t){f.numerator / divisor, f.denominator / divisor};
}

/* x, y: the extents, whose ratio determines an unset stride. Lengths become integers in units of 1/denominator of an
   element, so that nothing is rounded. Returns false if 64 bits are not enough. */
static bool make_axis(const struct resample *p, int i, int64_t x, int64_t y, struct axis *axis) {
    weftFraction_t ratio = {.numerator = x > 0 && y > 0 ? x : 1, .denominator = x > 0 && y > 0 ? y : 1};
    weftFraction_t pre = fraction_at(&p->pre_padding, i, (weftFraction_t){0, 1});
    weftFraction_t all[] = {fraction_at(&p->stride, i, ratio), pre, fraction_at(&p->post_padding, i, pre),
                            fraction_at(&p->window, i, (weftFraction_t){1, 1})};
    /* In the order of `all`. */
    int64_t *lengths[] = {&axis->stride, &axis->pre, &axis->post, &axis->window};
    /* The least common multiple of all denominators makes every length an integer. */
    axis->denominator = 1;
    for (int k = 0; k < 4; k++) {
        if (all[k].denominator > INT32_MAX || all[k].numerator > INT32_MAX)
            return false;
        axis->denominator *= all[k].denominator / gcd64(axis->denominator, all[k].denominator);
        if (axis->denominator > INT32_MAX)
            return false;
    }
    for (int k = 0; k < 4; k++) {
        *lengths[k] = all[k].numerator * (axis->denominator / all[k].denominator);
        if (*lengths[k] > LENGTH_LIMIT || *lengths[k] < -LENGTH_LIMIT)
            return false;
    }
    axis->dilation = p->dilation.count && axis->window > 1 ? p->dilation.at[i] : 1;
    return x <= LENGTH_LIMIT / axis->denominator && y <= LENGTH_LIMIT / axis->stride;
}

/* Distance from the first to the last element of a window, capped at a limit that no image reaches. Both factors are
   below 2^31 if dilation is not 1. */
static int64_t span_of(const struct axis *axis) {
    return axis->dilation == 1 ? axis->window : min64((axis->window - 1) * axis->dilation + 1, LENGTH_LIMIT);
}

/* 1 + floor((x + pre + post - span) / stride), and 0 for an empty x or if the window does not fit. */
static int64_t output_extent(const struct axis *axis, int64_t x) {
    int64_t room = x * axis->denominator + axis->pre + axis->post - span_of(axis);
    /* Without elements the output is empty, even if padding alone would fill a window. */
    return room < 0 || x == 0 ? 0 : 1 + room / axis->stride;
}

/* ---- Inference --------------------------------------------------------------------------------------------------- */

/* The input that dims are inferred from, x or (backward) dy, and the other operands that the mode requires. */
static weftStatus_t check_given(const struct resample_op *op) {
    const struct tensor *given = is_backward(op) ? op->dy : op->x;
    int spatial = spatial_of(op);
    if (spatial < 1 || spatial > SPATIAL_MAX || given->dims.count != spatial + 2)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: %s is %s, expected [N, C, ..] with %s spatial dimensions. Reshape it.", descriptor_label(&op->base),
             is_backward(op) ? "dy" : "x", tensor_dims_text(given),
             op->parameters->spatial ? numbers_text(&op->parameters->spatial, 1) : "1 to 3");
    bool maximum = op->parameters->mode == WEFT_RESAMPLE_MAXPOOL;
    /* Means and interpolation do not select an element, so they have no index. */
    if (op->index && !maximum)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode %s has no index. Leave index unset, or use mode MAXPOOL.",
             descriptor_label(&op->base), mode_name(op->parameters->mode));
    if (is_backward(op) && maximum && !op->index && !op->x)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: the gradient of mode MAXPOOL needs the index that the forward operation wrote, or its input x. Set "
             "one.",
             descriptor_label(&op->base));
    return WEFT_STATUS_SUCCESS;
}

/* An unset extent cannot be inferred without strides, or for the gradient of interpolation. */
static weftStatus_t check_inferable(const struct resample_op *op) {
    const struct tensor *out = is_backward(op) ? op->dx : op->y;
    const char *mode = mode_name(op->parameters->mode);
    if (out->dims.count)
        return WEFT_STATUS_SUCCESS;
    if (op->parameters->stride.count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: mode %s has no stride and %s no dims: either follows from the other. Set the stride or the dims.",
             descriptor_label(&op->base), mode, is_backward(op) ? "dx" : "y");
    /* Because of rounding, the extent of x is ambiguous; pools infer the smallest one, interpolation cannot. */
    if (is_backward(op) && !op->x && !is_pool(op->parameters->mode))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: dx has no dims, and mode %s yields dy %s for inputs of several sizes. Set the dims of dx, or x.",
             descriptor_label(&op->base), mode, tensor_dims_text(op->dy));
    return WEFT_STATUS_SUCCESS;
}

/* The geometry is exact in 64-bit integers; make_axis limits its operands to 2^31 and 2^60. */
static weftStatus_t refuse_fractions(const struct resample_op *op, int i, int64_t x, int64_t y) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
         "%s: spatial dimension %d from %lld to %lld elements: stride, paddings and window need a common denominator "
         "below "
         "2^31 and lengths times it below 2^60. Use simpler fractions.",
         descriptor_label(&op->base), i, (long long)x, (long long)y);
}

/* Infers the extents of y from x, or those of dx: from x if it is given, otherwise the smallest ones that yield dy. */
static weftStatus_t infer_dims(struct resample_op *op) {
    struct tensor *out = is_backward(op) ? op->dx : op->y;
    if (is_backward(op) && op->x)
        tensor_infer_dims(out, op->x->dims.count, op->x->dims.at);
    TRY(check_inferable(op));
    if (out->dims.count)
        return WEFT_STATUS_SUCCESS;
    struct dims dims = is_backward(op) ? op->dy->dims : op->x->dims;
    for (int i = 0; i < dims.count - 2; i++) {
        struct axis axis;
        int64_t *extent = &dims.at[2 + i], given = *extent;
        /* Strides are set, so make_axis does not need the unknown extent, which is 0 here. */
        if (!make_axis(op->parameters, i, is_backward(op) ? 0 : given, is_backward(op) ? given : 0, &axis))
            return refuse_fractions(op, i, is_backward(op) ? 0 : given, is_backward(op) ? given : 0);
        if (is_backward(op))
            *extent = given == 0 ? 0 : (given - 1) * axis.stride + span_of(&axis) - axis.pre - axis.post;
        else
            *extent = output_extent(&axis, given);
        *extent = *extent < 0 ? 0 : *extent;
    }
    tensor_infer_dims(out, dims.count, dims.at);
    return WEFT_STATUS_SUCCESS;
}

/* Number of positions in a window, capped at 2^62. */
static int64_t window_positions(const struct resample_op *op) {
    int64_t positions = 1;
    for (int i = 0; i < spatial_of(op); i++) {
        weftFraction_t window = fraction_at(&op->parameters->window, i, (weftFraction_t){1, 1});
        if (__builtin_mul_overflow(positions, window.numerator, &positions))
            return INT64_C(1) << 62;
    }
    return positions;
}

/* Infers dims, order and type of the output, and for MAXPOOL forward those of the index. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct resample_op *op = (struct resample_op *)descriptor;
    /* Results have the layout of their inputs: channels-last input gives channels-last output. */
    const struct tensor *like = is_backward(op) ? op->dy : op->x;
    struct tensor *out = is_backward(op) ? op->dx : op->y;
    TRY(check_given(op));
    TRY(infer_dims(op));
    tensor_infer_strides(out, like);
    tensor_infer_type(out, tensor_result_type(out, (weftDataType_t)like->type, (weftDataType_t)op->parameters->math));
    if (op->index && !is_backward(op)) {
        tensor_infer_dims(op->index, op->y->dims.count, op->y->dims.at);
        tensor_infer_strides(op->index, like);
        /* Positions start at 0, so 128 of them fit into INT8. */
        tensor_infer_type(op->index, window_positions(op) <= INT8_MAX + 1 ? WEFT_DATA_INT8 : WEFT_DATA_INT32);
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

/* Interpolation supports any extents: its stride need not lead to the last element. */
static weftStatus_t check_extent(const struct resample_op *op, int i) {
    int64_t x = wide_of(op)->dims.at[2 + i], y = narrow_of(op)->dims.at[2 + i];
    struct axis axis;
    if (!make_axis(op->parameters, i, x, y, &axis))
        return refuse_fractions(op, i, x, y);
    if (!is_pool(op->parameters->mode))
        return WEFT_STATUS_SUCCESS;
    const char *wide = is_backward(op) ? "dx" : "x", *narrow = is_backward(op) ? "dy" : "y";
    /* For pools the denominator is 1: lengths are whole elements. */
    int64_t padded = x + axis.pre + axis.post;
    if (padded < span_of(&axis) && x > 0)
        FAIL(
            WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "%s: spatial dimension %d: the window spans dilation %lld * (window %lld - 1) + 1 = %lld element%s, but %s "
            "%lld + pre %lld + post %lld = %lld. Pad more, or use a smaller window or dilation.",
            descriptor_label(&op->base), i, (long long)axis.dilation, (long long)axis.window, (long long)span_of(&axis),
            plural(span_of(&axis)), wide, (long long)x, (long long)axis.pre, (long long)axis.post, (long long)padded);
    if (y != output_extent(&axis, x))
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: spatial dimension %d: %s has %lld, expected 1 + (%s %lld + pre %lld + post %lld - dilation %lld * "
             "(window %lld - 1) - 1) / stride %lld = %lld. Change the dims of %s, the paddings or the stride.",
             descriptor_label(&op->base), i, narrow, (long long)y, wide, (long long)x, (long long)axis.pre,
             (long long)axis.post, (long long)axis.dilation, (long long)axis.window, (long long)axis.stride,
             (long long)output_extent(&axis, x), is_backward(op) ? "dx" : "y");
    return WEFT_STATUS_SUCCESS;
}

/* An index counts the taps of a window from 0; its type must be able to represent the last one. */
static weftStatus_t check_index(const struct resample_op *op) {
    if (!op->index)
        return WEFT_STATUS_SUCCESS;
    const struct dtype *type = dtype_of((weftDataType_t)op->index->type);
    int64_t positions = window_positions(op);
    TRY(check_dims(&op->base, "index", op->index, narrow_of(op)->dims.count, narrow_of(op)->dims.at));
    if (!dtype_is_integer((weftDataType_t)op->index->type) || (double)(positions - 1) > type->max)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: index has data type %s, which cannot represent the window's positions 0..%lld. Use %s.",
             descriptor_label(&op->base), type->name, (long long)positions - 1,
             positions <= INT8_MAX + 1 ? "INT8 or INT32" : "INT32");
    return WEFT_STATUS_SUCCESS;
}

/* Checks the dims of the output, given or inferred, against the geometry, then operands that only some modes have. */
static weftStatus_t check(const struct descriptor *descriptor) {
    const struct resample_op *op = (const struct resample_op *)descriptor;
    const struct tensor *wide = wide_of(op), *narrow = narrow_of(op), *out = is_backward(op) ? op->dx : op->y;
    struct dims dims = out->dims, given = is_backward(op) ? op->dy->dims : op->x->dims;
    if (dims.count != given.count || dims.at[0] != given.at[0] || dims.at[1] != given.at[1])
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: %s is %s, %s is %s: batch and channels must be equal. Make rank, N and C equal.",
             descriptor_label(descriptor), is_backward(op) ? "dx" : "y", numbers_text(dims.at, dims.count),
             is_backward(op) ? "dy" : "x", numbers_text(given.at, given.count));
    for (int i = 0; i < spatial_of(op); i++)
        TRY(check_extent(op, i));
    TRY(check_index(op));
    /* Both may be given and neither may be needed, but wrong dims are a mistake in any case. */
    if (is_backward(op)) {
        TRY(check_dims(descriptor, "x", op->x, wide->dims.count, wide->dims.at));
        TRY(check_dims(descriptor, "y", op->y, narrow->dims.count, narrow->dims.at));
    }
    if (op->beta != 0 && out->is_virtual)
        FAIL(
            WEFT_STATUS_BAD_PARAM,
            "%s: beta is %g, so the output is read before it is written, but %s is virtual. Set beta to 0, or give the "
            "tensor memory.",
            descriptor_label(descriptor), op->beta, descriptor_label(&out->base));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Geometry ---------------------------------------------------------------------------------------------------- */

/* There are always three spatial dimensions, padded at the front with extents of 1. For NULL, returns strides of 0 and
   no tensor. */
static struct resample_operand operand_of(const struct tensor *tensor, int spatial) {
    struct resample_operand operand = {.tensor = tensor, .size = {1, 1, 1}};
    if (!tensor)
        return operand;
    operand.batch_stride = tensor->strides.at[0];
    operand.channel_stride = tensor->strides.at[1];
    for (int i = 0; i < spatial; i++) {
        operand.size[SPATIAL_MAX - spatial + i] = tensor->dims.at[2 + i];
        operand.size_stride[SPATIAL_MAX - spatial + i] = tensor->strides.at[2 + i];
    }
    return operand;
}

/* The geometry for engines and the reference: three spatial dimensions, lengths in units of 1/denominator. */
struct resample_geometry resample_geometry(const struct descriptor *descriptor) {
    const struct resample_op *op = (const struct resample_op *)descriptor;
    const struct resample *p = op->parameters;
    int spatial = spatial_of(op);
    /* In both directions x is the tensor on the input side of the forward operation, and y that on its output side;
       saved is the forward input, for a gradient without index. */
    struct resample_geometry g = {.backward = is_backward(op),
                                  .mode = (weftResampleMode_t)p->mode,
                                  .padding = (weftPaddingMode_t)p->padding_mode,
                                  .propagates_nan = p->nan_propagation == WEFT_PROPAGATE_NAN,
                                  .spatial = spatial,
                                  .n = wide_of(op)->dims.at[0],
                                  .c = wide_of(op)->dims.at[1],
                                  .x = operand_of(wide_of(op), spatial),
                                  .y = operand_of(narrow_of(op), spatial),
                                  .index = operand_of(op->index, spatial),
                                  .saved = operand_of(is_backward(op) ? op->x : NULL, spatial),
                                  .taps = {1, 1, 1},
                                  .dilation = {1, 1, 1},
                                  .step = {1, 1, 1},
                                  .denominator = {1, 1, 1},
                                  .alpha = op->alpha,
                                  .beta = op->beta};
    /* The operation has been checked, so make_axis succeeds. */
    for (int i = 0; i < spatial; i++) {
        struct axis axis;
        int at = SPATIAL_MAX - spatial + i;
        make_axis(p, i, g.x.size[at], g.y.size[at], &axis);
        g.step[at] = axis.stride;
        g.offset[at] = axis.pre;
        g.denominator[at] = axis.denominator;
        /* Elements of x that an element of y reads along this dimension. */
        g.taps[at] = is_pool(p->mode) ? axis.window : p->mode == WEFT_RESAMPLE_BILINEAR ? 2 : 1;
        g.dilation[at] = axis.dilation;
    }
    return g;
}

/* One operation for each tap of each output; interpolation has an additional multiplication by the weight. */
static double flops(const struct descriptor *descriptor) {
    struct resample_geometry g = resample_geometry(descriptor);
    double per_output = (double)g.taps[0] * (double)g.taps[1] * (double)g.taps[2];
    return (g.mode == WEFT_RESAMPLE_BILINEAR ? 2 : 1) * per_output * (double)tensor_elements(g.y.tensor);
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

/* One element that an output position reads. */
struct tap {
    int64_t at[SPATIAL_MAX]; /* in x */
    bool inside;             /* false for padding, which has no element */
    double weight;
};

/* Clamped taps count as inside: they read the element at the edge. */
static struct tap find_tap(const struct resample_geometry *g, const int64_t *position, const int64_t *number) {
    struct tap tap = {.inside = true, .weight = 1};
    /* Means that exclude the padding count the taps inside, so these must not be clamped. */
    bool clamps = g->padding == WEFT_EDGE_VAL_PAD && g->mode != WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING;
    for (int i = 0; i < SPATIAL_MAX; i++) {
        int64_t first = resample_first_tap(g, i, position[i]), last = g->x.size[i] - 1;
        int64_t at = first + number[i] * g->dilation[i];
        /* A padded leading dimension has one tap, with the whole weight. */
        if (g->mode == WEFT_RESAMPLE_BILINEAR && g->taps[i] == 2) {
            /* The distance between the first tap and the position, in units of 1/denominator of an element, is the
               second tap's weight. */
            int64_t rest = position[i] * g->step[i] - g->offset[i] - first * g->denominator[i];
            double fraction = (double)rest / (double)g->denominator[i];
            tap.weight *= number[i] ? fraction : 1 - fraction;
        }
        /* Outside of x, the element at the edge is read. */
        if (clamps)
            at = at < 0 ? 0 : at > last ? last : at;
        tap.inside = tap.inside && at >= 0 && at <= last;
        tap.at[i] = at;
    }
    if (g->mode == WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING && !tap.inside)
        tap.weight = 0;
    return tap;
}

/* The index of [n, c, size..] in a tensor of rank 2 + spatial. */
static void make_index(const struct resample_geometry *g, int64_t n, int64_t c, const int64_t *size, int64_t *index) {
    index[0] = n;
    index[1] = c;
    for (int i = 0; i < g->spatial; i++)
        index[2 + i] = size[SPATIAL_MAX - g->spatial + i];
}

/* One channel of one image: x[n, c, ..]. */
struct image {
    const struct view *view;
    int64_t n, c;
};

/* The integer that replaces -inf for NEG_INF_PAD: the lowest one. */
static double lowest_of(const struct image *image) {
    const struct dtype *type = dtype_of(image->view->type);
    return type->is_float ? -INFINITY : type->lowest;
}

/* Outside of x: -inf, or the lowest integer, for NEG_INF_PAD, otherwise 0. */
static double load_tap(const struct resample_geometry *g, const struct image *image, const struct tap *tap) {
    int64_t index[WEFT_DIM_MAX];
    if (!tap->inside)
        return g->padding == WEFT_NEG_INF_PAD ? lowest_of(image) : 0;
    make_index(g, image->n, image->c, tap->at, index);
    return view_load(image->view, index);
}

/* True if a value replaces the current maximum: the first one of equal values wins. With propagates_nan, a NaN replaces
   it, so the last NaN wins as in PyTorch; otherwise NaNs are ignored. */
static bool beats(const struct resample_geometry *g, double value, double best) {
    if (isnan(value))
        return g->propagates_nan;
    return isnan(best) ? !g->propagates_nan : value > best;
}

/* The maximum of a window. Its position is -1 if all taps are NEG_INF_PAD, which is never selected. */
static double find_maximum(const struct resample_geometry *g, const struct image *image, const int64_t *position,
                           int64_t *where) {
    double best = lowest_of(image);
    int64_t number[SPATIAL_MAX], count = 0;
    *where = -1;
    /* `count` numbers the taps row-major, as index stores them. */
    for (bool more = index_begin(number, SPATIAL_MAX, g->taps); more;
         more = index_next(number, SPATIAL_MAX, g->taps), count++) {
        struct tap tap = find_tap(g, position, number);
        if (!tap.inside && g->padding == WEFT_NEG_INF_PAD)
            continue;
        double value = load_tap(g, image, &tap);
        /* The first one counts even if it is -inf, so that where stays -1 only if all taps are padding. */
        if (*where < 0 || beats(g, value, best)) {
            best = value;
            *where = count;
        }
    }
    return best;
}

/* The sum of the weights of all taps: 1 for interpolation, the number of elements for a mean. */
static double sum_of_weights(const struct resample_geometry *g, const int64_t *position) {
    int64_t number[SPATIAL_MAX];
    double sum = 0;
    if (!is_pool(g->mode))
        return 1;
    for (bool more = index_begin(number, SPATIAL_MAX, g->taps); more; more = index_next(number, SPATIAL_MAX, g->taps))
        sum += find_tap(g, position, number).weight;
    return sum;
}

/* Every mode except MAXPOOL. Taps of weight 0 are not read, and the mean of no elements is 0. */
static double weigh(const struct resample_geometry *g, const struct image *image, const int64_t *position) {
    int64_t number[SPATIAL_MAX];
    double sum = 0;
    for (bool more = index_begin(number, SPATIAL_MAX, g->taps); more; more = index_next(number, SPATIAL_MAX, g->taps)) {
        struct tap tap = find_tap(g, position, number);
        if (tap.weight != 0)
            sum += tap.weight * load_tap(g, image, &tap);
    }
    /* A mean that excludes the padding divides by the number of taps inside. */
    double sum_of_all = sum_of_weights(g, position);
    return sum_of_all != 0 ? sum / sum_of_all : 0;
}

/* beta 0 does not read the output, which may be uninitialised. */
static void store(const struct resample_geometry *g, const struct view *view, const int64_t *index, double value) {
    view_store(view, index, g->alpha * value + (g->beta != 0 ? g->beta * view_load(view, index) : 0));
}

/* Iterates over the positions of y, of all images and channels. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct resample_op *op = (const struct resample_op *)descriptor;
    struct resample_geometry g = resample_geometry(descriptor);
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y), index = view_of(bindings, op->index);
    const int64_t extents[] = {g.n, g.c, g.y.size[0], g.y.size[1], g.y.size[2]};
    int64_t at[5], index_of_y[WEFT_DIM_MAX], where = 0;
    /* `at` is [n, c, output position]. */
    for (bool more = index_begin(at, 5, extents); more; more = index_next(at, 5, extents)) {
        struct image image = {.view = &x, .n = at[0], .c = at[1]};
        double value =
            g.mode == WEFT_RESAMPLE_MAXPOOL ? find_maximum(&g, &image, at + 2, &where) : weigh(&g, &image, at + 2);
        make_index(&g, at[0], at[1], at + 2, index_of_y);
        if (y.data)
            store(&g, &y, index_of_y, value);
        if (index.data)
            /* If all taps are padding no position exists; 0 is stored because it is a valid index. */
            view_store_int(&index, index_of_y, where < 0 ? 0 : where);
    }
}

/* ---- Reference of the gradient ----------------------------------------------------------------------------------- */

/* The gradient of one channel of one image, summed in double: [size..] of x. */
struct plane {
    const struct resample_geometry *g;
    double *sums;
};

static double *plane_at(const struct plane *plane, const int64_t *at) {
    const int64_t *size = plane->g->x.size;
    return &plane->sums[(at[0] * size[1] + at[1]) * size[2] + at[2]];
}

/* Adds dy to the tap that was the maximum. Indices come from memory: those outside of the window are ignored. */
static void return_maximum(const struct plane *plane, const int64_t *position, int64_t where, double dy) {
    const int64_t *taps = plane->g->taps;
    if (where < 0 || where >= taps[0] * taps[1] * taps[2])
        return;
    /* Row-major, as find_maximum counts them. */
    const int64_t number[] = {where / taps[2] / taps[1], where / taps[2] % taps[1], where % taps[2]};
    struct tap tap = find_tap(plane->g, position, number);
    /* If the maximum was a 0 of the padding, no element of x receives the gradient. */
    if (tap.inside)
        *plane_at(plane, tap.at) += dy;
}

/* Distributes dy over all taps by their weights. */
static void return_weighted(const struct plane *plane, const int64_t *position, double dy) {
    const struct resample_geometry *g = plane->g;
    double sum_of_all = sum_of_weights(g, position);
    int64_t number[SPATIAL_MAX];
    for (bool more = index_begin(number, SPATIAL_MAX, g->taps); more; more = index_next(number, SPATIAL_MAX, g->taps)) {
        struct tap tap = find_tap(g, position, number);
        /* Taps in the padding have no element, so their gradient is dropped. */
        if (tap.inside && tap.weight != 0)
            *plane_at(plane, tap.at) += tap.weight / sum_of_all * dy;
    }
}

struct backward_views {
    struct view dy, index, x, dx;
};

/* Clears the sums, distributes every dy over its taps, and stores the result. */
static void compute_plane(const struct plane *plane, const struct backward_views *views, int64_t n, int64_t c) {
    const struct resample_geometry *g = plane->g;
    struct image image = {.view = &views->x, .n = n, .c = c};
    int64_t at[SPATIAL_MAX], index[WEFT_DIM_MAX], where;
    /* Sums begin at 0; dx itself may be uninitialised, or contain the operand of beta. */
    for (bool more = index_begin(at, SPATIAL_MAX, g->x.size); more; more = index_next(at, SPATIAL_MAX, g->x.size))
        *plane_at(plane, at) = 0;
    for (bool more = index_begin(at, SPATIAL_MAX, g->y.size); more; more = index_next(at, SPATIAL_MAX, g->y.size)) {
        /* The positions of y in row-major order; each has one dy. */
        make_index(g, n, c, at, index);
        double dy = view_load(&views->dy, index);
        if (g->mode != WEFT_RESAMPLE_MAXPOOL) {
            return_weighted(plane, at, dy);
            continue;
        }
        /* Without the index of the forward pass, the maximum is searched in x again, by the same rule. */
        if (views->index.data)
            where = view_load_int(&views->index, index);
        else
            find_maximum(g, &image, at, &where);
        return_maximum(plane, at, where, dy);
    }
    for (bool more = index_begin(at, SPATIAL_MAX, g->x.size); more; more = index_next(at, SPATIAL_MAX, g->x.size)) {
        make_index(g, n, c, at, index);
        store(g, &views->dx, index, *plane_at(plane, at));
    }
}

/* One plane of doubles: sums of many taps must not be rounded to dx's type in between. */
static int64_t scratch_bytes(const struct descriptor *descriptor) {
    struct resample_geometry g = resample_geometry(descriptor);
    return g.x.size[0] * g.x.size[1] * g.x.size[2] * (int64_t)sizeof(double);
}

/* One plane at a time: channels are independent. */
static void backward_reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct resample_op *op = (const struct resample_op *)descriptor;
    struct resample_geometry g = resample_geometry(descriptor);
    struct backward_views views = {.dy = view_of(bindings, op->dy),
                                   .index = view_of(bindings, op->index),
                                   .x = view_of(bindings, op->x),
                                   .dx = view_of(bindings, op->dx)};
    struct plane plane = {.g = &g, .sums = bindings->scratch};
    for (int64_t n = 0; views.dx.data && n < g.n; n++)
        for (int64_t c = 0; c < g.c; c++)
            compute_plane(&plane, &views, n, c);
}

/* ---- The operations ---------------------------------------------------------------------------------------------- */

const struct op resample_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR,
            .name = "resample",
            .doc = "y[n,c,o] = alpha * (maximum, mean or weighted sum over r of x[n, c, o * stride + r * dilation - "
                   "pre]) + beta * y[n,c,o]",
            .size = sizeof(struct resample_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &resample_op,
        },
    .parameters = &resample_schema,
    .methods = methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .reference = reference,
    .flops = flops,
};

const struct op resample_backward_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR,
            .name = "resample_backward",
            .doc =
                "dx[n,c,i] = alpha * (sum over o of dy[n,c,o] * the weight of x[n,c,i] in y[n,c,o]) + beta * dx[n,c,i]",
            .size = sizeof(struct resample_op),
            ROWS(backward_rows),
            .finalize = op_finalize,
            .op = &resample_backward_op,
        },
    .parameters = &resample_schema,
    .methods = backward_methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .reference = backward_reference,
    .scratch_bytes = scratch_bytes,
    .flops = flops,
};
