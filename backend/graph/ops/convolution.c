/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution:
     y[n,k,o] = alpha * sum over c, r of x[n, c, o * stride + r * dilation - pre] * w[k,c,r] + beta * y[n,k,o]
   and its gradients with respect to x (conv_dgrad) and w (conv_wgrad), with one to three spatial dimensions. x is 0
   outside of the image. Groups follow from the channels of x and w, or have a dimension of their own:
     x [N, C, x..]     w [K, C / groups, w..]   y [N, K, y..]       rank spatial + 2
     x [N, G, C, x..]  w [G, K, C, w..]         y [N, G, K, y..]    rank spatial + 3, if the spatial rank is set
   Negative paddings crop. */
#include "graph/ops/convolution.h"

enum { SPATIAL_MAX = 3 };

/* ---- The parameter descriptor ------------------------------------------------------------------------------------ */

static const struct row parameter_rows[] = {
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct convolution, math, WEFT_ATTR_CONVOLUTION_COMP_TYPE, "compute_data_type",
              .keeps_fast = true,
              .doc = "accumulation type; FAST_FLOAT_FOR_FP8 permits 13-bit sums of FP8. Unset: INT32 for 8-bit "
                     "integers, INT64 for wider ones, FLOAT for all others"),
    VALUE_ROW(WEFT_TYPE_CONVOLUTION_MODE, struct convolution, mode, WEFT_ATTR_CONVOLUTION_CONV_MODE, "convolution_mode",
              .initial = WEFT_CROSS_CORRELATION,
              .doc = "whether the filter is flipped; CROSS_CORRELATION does not flip it"),
    VALUE_ROW(WEFT_TYPE_INT64, struct convolution, dilation, WEFT_ATTR_CONVOLUTION_DILATIONS, "dilation",
              .storage = STORE_DIMS, .least = 1, .most = INT32_MAX,
              .doc = "distance in elements between adjacent filter taps, per spatial dimension; unset: 1"),
    VALUE_ROW(WEFT_TYPE_INT64, struct convolution, stride, WEFT_ATTR_CONVOLUTION_FILTER_STRIDES, "stride",
              .storage = STORE_DIMS, .least = 1, .most = INT32_MAX,
              .doc = "step of the filter in elements, per spatial dimension; unset: 1"),
    VALUE_ROW(WEFT_TYPE_INT64, struct convolution, post_padding, WEFT_ATTR_CONVOLUTION_POST_PADDINGS, "post_padding",
              .storage = STORE_DIMS, .least = -INT32_MAX, .most = INT32_MAX,
              .doc = "zeros after the end of each spatial dimension; unset: pre_padding"),
    VALUE_ROW(WEFT_TYPE_INT64, struct convolution, pre_padding, WEFT_ATTR_CONVOLUTION_PRE_PADDINGS, "pre_padding",
              .storage = STORE_DIMS, .least = -INT32_MAX, .most = INT32_MAX,
              .doc = "zeros before the start of each spatial dimension; unset: 0"),
    VALUE_ROW(WEFT_TYPE_INT64, struct convolution, spatial, WEFT_ATTR_CONVOLUTION_SPATIAL_DIMS, "spatial_dims",
              .least = 1, .most = SPATIAL_MAX,
              .doc = "number of spatial dimensions; unset: that of the lists or tensors"),
};

/* Lists determine the number of spatial dimensions if the user did not set it; without lists, the tensors do. */
static weftStatus_t finalize_parameters(struct descriptor *descriptor) {
    struct convolution *conv = (struct convolution *)descriptor;
    static const char *const keys[] = {"stride", "dilation", "pre_padding", "post_padding"};
    const struct dims *lists[] = {&conv->stride, &conv->dilation, &conv->pre_padding, &conv->post_padding};
    /* The first list that is set determines the number of spatial dimensions; all others must agree. */
    for (int i = 0; i < 4; i++) {
        if (conv->spatial == 0 && lists[i]->count <= SPATIAL_MAX)
            conv->spatial = lists[i]->count;
        if (lists[i]->count && lists[i]->count != conv->spatial)
            FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                 "%s: %s is %s, expected %lld numbers. Give one per spatial dimension (1 to 3), or none.",
                 descriptor_label(descriptor), keys[i], numbers_text(lists[i]->at, lists[i]->count),
                 (long long)(conv->spatial ? conv->spatial : SPATIAL_MAX));
    }
    return WEFT_STATUS_SUCCESS;
}

const struct schema convolution_schema = {
    .kind = WEFT_BACKEND_CONVOLUTION_DESCRIPTOR,
    .name = "convolution parameters",
    .doc = "geometry and compute type of a convolution and of its gradients",
    .size = sizeof(struct convolution),
    ROWS(parameter_rows),
    .finalize = finalize_parameters,
};

/* ---- Rows and methods -------------------------------------------------------------------------------------------- */

/* The three directions share struct conv_op: x, w and y stand for dx, dw and dy if these are the results, so that
   geometry and reference are written once. */
static const struct row fprop_rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct conv_op, parameters,
              WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, "parameters", .required = true,
              .target = WEFT_BACKEND_CONVOLUTION_DESCRIPTOR, .doc = "geometry and compute type"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct conv_op, alpha, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, "alpha",
              .initial = 1, .doc = "factor of the result"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct conv_op, beta, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, "beta",
              .doc = "factor of the previous value of the output; 0: it is not read"),
    TENSOR_ROW(ROLE_INPUT, struct conv_op, x, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X, "x", .required = true,
               .shape = "[N, C, x..]", .doc = "image"),
    TENSOR_ROW(ROLE_INPUT, struct conv_op, w, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W, "w", .required = true,
               .shape = "[K, C / groups, w..]", .doc = "filters"),
    TENSOR_ROW(ROLE_OUTPUT, struct conv_op, y, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, "y", .required = true,
               .shape = "[N, K, 1 + (x + pre + post - dilation * (w - 1) - 1) / stride..]", .doc = "result"),
};

/* As in a transposed convolution, dy is the image that is enlarged. In all directions, fields have the names of the
   forward operation. */
static const struct row dgrad_rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct conv_op, parameters,
              WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, "parameters", .required = true,
              .target = WEFT_BACKEND_CONVOLUTION_DESCRIPTOR, .doc = "geometry and compute type"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct conv_op, alpha, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, "alpha",
              .initial = 1, .doc = "factor of the result"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct conv_op, beta, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, "beta",
              .doc = "factor of the previous value of the output; 0: it is not read"),
    TENSOR_ROW(ROLE_INPUT, struct conv_op, y, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, "dy", .required = true,
               .shape = "[N, K, y..]", .doc = "gradient of the result"),
    TENSOR_ROW(ROLE_INPUT, struct conv_op, w, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, "w", .required = true,
               .shape = "[K, C / groups, w..]", .doc = "filters"),
    TENSOR_ROW(ROLE_OUTPUT, struct conv_op, x, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, "dx", .required = true,
               .shape = "[N, C, x..]; unset: one group, and the smallest x.. that yields y..",
               .doc = "gradient of the image"),
};

static const struct row wgrad_rows[] = {
    VALUE_ROW(WEFT_TYPE_BACKEND_DESCRIPTOR, struct conv_op, parameters,
              WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, "parameters", .required = true,
              .target = WEFT_BACKEND_CONVOLUTION_DESCRIPTOR, .doc = "geometry and compute type"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct conv_op, alpha, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, "alpha",
              .initial = 1, .doc = "factor of the result"),
    VALUE_ROW(WEFT_TYPE_DOUBLE, struct conv_op, beta, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, "beta",
              .doc = "factor of the previous value of the output; 0: it is not read"),
    TENSOR_ROW(ROLE_INPUT, struct conv_op, x, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, "x", .required = true,
               .shape = "[N, C, x..]", .doc = "image"),
    TENSOR_ROW(ROLE_INPUT, struct conv_op, y, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, "dy", .required = true,
               .shape = "[N, K, y..]", .doc = "gradient of the result"),
    TENSOR_ROW(ROLE_OUTPUT, struct conv_op, w, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, "dw", .required = true,
               .shape = "[K, C / groups, w..]; its dims must be set", .doc = "gradient of the filters"),
};

/* These follow the tensors of every direction. `padding` sets the same padding before and after. */
#define GEOMETRY_ARGUMENTS                                                                                             \
    " pre_padding=[] post_padding=[] stride=[] dilation=[] convolution_mode=CROSS_CORRELATION "                        \
    "* padding:pre_padding+post_padding=None"

/* One method per direction, with cuDNN's names. */
static const struct method fprop_methods[] = {
    {"conv_fprop", "convolution : y[n,k,o] = sum_{c,r} x[n, c, o * stride + r * dilation - pre_padding] * w[k,c,r]",
     NULL, "image:x weight:w" GEOMETRY_ARGUMENTS, "y"},
    {0},
};

static const struct method dgrad_methods[] = {
    {"conv_dgrad",
     "gradient of a convolution's image; transposed convolution : dx[n,c,i] = sum_{k,r,o} dy[n,k,o] * w[k,c,r] where "
     "i = o * stride + r * dilation - pre_padding",
     NULL, "loss:dy filter:w" GEOMETRY_ARGUMENTS, "dx"},
    {0},
};

static const struct method wgrad_methods[] = {
    {"conv_wgrad",
     "gradient of a convolution's filters : dw[k,c,r] = sum_{n,o} x[n, c, o * stride + r * dilation - pre_padding] * "
     "dy[n,k,o]",
     NULL, "image:x loss:dy" GEOMETRY_ARGUMENTS, "dw"},
    {0},
};

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

static enum conv_direction direction_of(const struct descriptor *op) {
    return op_of(op) == &conv_fprop_op ? CONV_FORWARD : op_of(op) == &conv_dgrad_op ? CONV_DATA : CONV_FILTER;
}

bool conv_is(const struct descriptor *descriptor) {
    const struct op *op = op_of(descriptor);
    return op == &conv_fprop_op || op == &conv_dgrad_op || op == &conv_wgrad_op;
}

/* The user's names of the tensors at x, w and y. */
struct names {
    const char *x, *w, *y;
};

static struct names names_of(const struct conv_op *op) {
    static const struct names names[] = {
        [CONV_FORWARD] = {"x", "w", "y"}, [CONV_DATA] = {"dx", "w", "dy"}, [CONV_FILTER] = {"x", "dw", "dy"}};
    return names[direction_of(&op->base)];
}

static struct tensor *output_of(const struct conv_op *op) {
    struct tensor *outputs[] = {[CONV_FORWARD] = op->y, [CONV_DATA] = op->x, [CONV_FILTER] = op->w};
    return outputs[direction_of(&op->base)];
}

/* An input; its dims are known. */
static const struct tensor *input_of(const struct conv_op *op) {
    return direction_of(&op->base) == CONV_DATA ? op->y : op->x;
}

/* If nothing is set, the rank less 2, for tensors without a dimension of groups. */
static int spatial_of(const struct conv_op *op) {
    int64_t spatial = op->parameters->spatial;
    return (int)(spatial ? spatial : input_of(op)->dims.count - 2);
}

/* Index of the first spatial dimension: 2, or 3 with a dimension of groups. */
static int first_of(const struct conv_op *op) { return (int)input_of(op)->dims.count - spatial_of(op); }

/* The geometry along one spatial dimension. */
struct axis {
    int64_t stride, dilation, pre, post;
};

/* Lists have one entry per spatial dimension, or none at all. */
static struct axis axis_of(const struct convolution *conv, int i) {
    struct axis axis = {.stride = conv->stride.count ? conv->stride.at[i] : 1,
                        .dilation = conv->dilation.count ? conv->dilation.at[i] : 1,
                        .pre = conv->pre_padding.count ? conv->pre_padding.at[i] : 0};
    axis.post = conv->post_padding.count ? conv->post_padding.at[i] : axis.pre;
    return axis;
}

/* The product of two non-negative numbers, capped at 2^60, so that sums of a few products do not overflow. */
static int64_t capped_product(int64_t a, int64_t b) {
    const int64_t cap = INT64_C(1) << 60;
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > cap ? cap : product;
}

/* Distance in the image from the first to the last tap of a filter, both included. */
static int64_t span_of(struct axis axis, int64_t w) { return capped_product(axis.dilation, w - 1) + 1; }

/* May be negative, because negative paddings crop. Parameters are below 2^31 and images below 2^60, so sums do not
   overflow. */
static int64_t padded_image(struct axis axis, int64_t x) { return capped_product(x, 1) + axis.pre + axis.post; }

/* 1 + floor((x + pre + post - span) / stride), and 0 for an empty image or if the filter does not fit. */
static int64_t output_extent(struct axis axis, int64_t x, int64_t w) {
    int64_t room = padded_image(axis, x) - span_of(axis, w);
    return room < 0 || x == 0 ? 0 : 1 + room / axis.stride;
}

/* The smallest x that yields y. The next stride - 1 extents yield the same y, and the gradient cannot distinguish
   them. */
static int64_t least_image(struct axis axis, int64_t w, int64_t y) {
    int64_t x = capped_product(axis.stride, y - 1) + span_of(axis, w) - axis.pre - axis.post;
    return y == 0 || x < 0 ? 0 : x;
}

/* ---- Inference --------------------------------------------------------------------------------------------------- */

/* All tensors with dims must have the same rank, and it must fit the number of spatial dimensions. */
static weftStatus_t check_ranks(const struct conv_op *op) {
    struct names names = names_of(op);
    const char *keys[] = {names.x, names.w, names.y};
    const struct tensor *tensors[] = {op->x, op->w, op->y}, *known = input_of(op);
    /* The rank is spatial + 2, or spatial + 3 with a dimension of groups. */
    int spatial = spatial_of(op);
    int64_t rank = known->dims.count;
    if (spatial < 1 || spatial > SPATIAL_MAX || rank < spatial + 2 || rank > spatial + 3)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: %s is %s, expected [N, C, ..] with %s spatial dimensions, or [N, G, C, ..] and as many strides or "
             "paddings as dimensions are spatial. Reshape it.",
             descriptor_label(&op->base), known == op->x ? names.x : names.y, tensor_dims_text(known),
             op->parameters->spatial ? numbers_text(&op->parameters->spatial, 1) : "1 to 3");
    for (int i = 0; i < 3; i++)
        if (tensors[i]->dims.count && tensors[i]->dims.count != rank)
            FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                 "%s: %s has %lld dim%s %s, %s has %lld dim%s %s. Give all tensors the same rank.",
                 descriptor_label(&op->base), keys[i], (long long)tensors[i]->dims.count,
                 plural(tensors[i]->dims.count), tensor_dims_text(tensors[i]), known == op->x ? names.x : names.y,
                 (long long)rank, plural(rank), tensor_dims_text(known));
    /* A filter without taps has no span, and its output would be larger than the image. */
    for (int i = first_of(op); op->w->dims.count && i < rank; i++)
        if (op->w->dims.at[i] < 1)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND, "%s: %s is %s: a filter has at least 1 tap. Give it larger dims.",
                 descriptor_label(&op->base), names.w, tensor_dims_text(op->w));
    return WEFT_STATUS_SUCCESS;
}

/* The batch size is kept, channels come from w, and spatial extents from each axis. For forward and data gradients,
   whose w is an input with dims. */
static void infer_dims(struct conv_op *op) {
    bool forward = direction_of(&op->base) == CONV_FORWARD;
    const struct tensor *w = op->w;
    int first = first_of(op);
    struct dims dims = input_of(op)->dims;
    /* In that case w is [G, K, C, ..], otherwise [K, C / groups, ..]; without a dimension of groups, a data gradient
       has one group. */
    if (first == 3)
        dims.at[2] = w->dims.at[forward ? 1 : 2];
    else
        dims.at[1] = w->dims.at[forward ? 0 : 1];
    for (int i = first; i < dims.count; i++) {
        struct axis axis = axis_of(op->parameters, i - first);
        dims.at[i] = forward ? output_extent(axis, op->x->dims.at[i], w->dims.at[i])
                             : least_image(axis, w->dims.at[i], op->y->dims.at[i]);
    }
    tensor_infer_dims(output_of(op), dims.count, dims.at);
}

/* The two factors depend on the direction: x w, dy w or x dy. */
weftDataType_t conv_math(const struct conv_op *op) {
    enum conv_direction direction = direction_of(&op->base);
    return product_math(&op->parameters->base, WEFT_ATTR_CONVOLUTION_COMP_TYPE, op->parameters->math,
                        direction == CONV_DATA ? op->y : op->x, direction == CONV_FILTER ? op->y : op->w);
}

/* A data gradient without dims gets the smallest image; the dims of a filter gradient must be set. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct conv_op *op = (struct conv_op *)descriptor;
    struct tensor *out = output_of(op);
    TRY(check_ranks(op));
    if (out->dims.count == 0 && direction_of(descriptor) == CONV_FILTER)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: dw has no dims, and filters of several sizes are consistent with x %s and dy %s. Set its dims: [K, C "
             "/ groups, w..].",
             descriptor_label(descriptor), tensor_dims_text(op->x), tensor_dims_text(op->y));
    if (out->dims.count == 0)
        infer_dims(op);
    const struct tensor *like = input_of(op);
    /* The output has the dimension order of its input: channels-last input gives channels-last output. */
    tensor_infer_strides(out, like);
    weftDataType_t natural = (weftDataType_t)like->type, math = math_type((int32_t)conv_math(op));
    tensor_infer_type(out, dtype_is_integer(natural) ? math : tensor_result_type(out, natural, math));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

/* Number of groups that x and w imply; 0 if their channels do not match. */
static int64_t groups_of(const struct conv_op *op) {
    const int64_t *x = op->x->dims.at, *w = op->w->dims.at;
    if (first_of(op) == 3)
        return x[1] == w[0] && x[2] == w[2] ? x[1] : 0;
    /* Without channels the sum is empty and the quotient undefined: one group. */
    if (w[1] == 0)
        return x[1] == 0 ? 1 : 0;
    int64_t groups = x[1] % w[1] ? 0 : x[1] / w[1];
    return groups && w[0] % groups == 0 ? groups : 0;
}

/* Checks batch size, channels and groups of all three tensors. Messages state how the shapes were interpreted: with
   groups in a dimension of their own, or within the channels. */
static weftStatus_t check_channels(const struct conv_op *op) {
    struct names names = names_of(op);
    const int64_t *x = op->x->dims.at, *w = op->w->dims.at, *y = op->y->dims.at;
    bool grouped = first_of(op) == 3;
    if (!groups_of(op) && grouped)
        FAIL(
            WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "%s: channels of %s %s and %s %s do not fit: with %lld spatial dimensions x is [N,G,C,..], w is "
            "[G,K,C,..]. "
            "Change one of them, or give stride, dilation and paddings %lld numbers if no dimension stands for groups.",
            descriptor_label(&op->base), names.x, tensor_dims_text(op->x), names.w, tensor_dims_text(op->w),
            (long long)op->parameters->spatial, (long long)op->x->dims.count - 2);
    if (!groups_of(op))
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: channels of %s %s and %s %s do not fit: x is [N,C,..], w is [K,C/groups,..], and K is a multiple of "
             "groups. Change one of them.",
             descriptor_label(&op->base), names.x, tensor_dims_text(op->x), names.w, tensor_dims_text(op->w));
    /* The third tensor must match the two that the groups were derived from. */
    bool fits = y[0] == x[0] && (grouped ? y[1] == w[0] && y[2] == w[1] : y[1] == w[0]);
    if (!fits)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: %s is %s, but %s %s and %s %s make %s. Make batch and channels agree.", descriptor_label(&op->base),
             names.y, tensor_dims_text(op->y), names.x, tensor_dims_text(op->x), names.w, tensor_dims_text(op->w),
             grouped ? numbers_text((const int64_t[]){x[0], w[0], w[1]}, 3)
                     : numbers_text((const int64_t[]){x[0], w[0]}, 2));
    return WEFT_STATUS_SUCCESS;
}

/* The message states the expected y, and how to get it; for a data gradient, whose dx the user chooses, the valid range
   of dx. */
static weftStatus_t refuse_extent(const struct conv_op *op, int i, struct axis axis, int64_t x, int64_t w, int64_t y) {
    static const char *const fixes[] = {[CONV_FORWARD] = "Give y that extent, or no dims",
                                        [CONV_DATA] = "Give dx no dims, or an extent between these: ",
                                        [CONV_FILTER] = "Change dw, the paddings or the stride"};
    struct names names = names_of(op);
    enum conv_direction direction = direction_of(&op->base);
    /* `stride` consecutive image extents yield the same y. */
    int64_t least = least_image(axis, w, y), most = y == 0 ? 0 : least + axis.stride - 1;
    FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
         "%s: spatial dimension %d: %s has %lld, expected 1 + (%s %lld + pre %lld + post %lld - dilation %lld * (%s "
         "%lld "
         "- 1) - 1) / stride %lld = %lld. %s%s.",
         descriptor_label(&op->base), i, names.y, (long long)y, names.x, (long long)x, (long long)axis.pre,
         (long long)axis.post, (long long)axis.dilation, names.w, (long long)w, (long long)axis.stride,
         (long long)output_extent(axis, x, w), fixes[direction],
         direction == CONV_DATA ? numbers_text((const int64_t[]){least, most}, 2) : "");
}

/* `dim` is the dimension of the tensors; messages count spatial dimensions from 0. */
static weftStatus_t check_extent(const struct conv_op *op, int dim) {
    struct names names = names_of(op);
    int i = dim - first_of(op);
    struct axis axis = axis_of(op->parameters, i);
    int64_t x = op->x->dims.at[dim], w = op->w->dims.at[dim], y = op->y->dims.at[dim];
    int64_t padded = padded_image(axis, x), span = span_of(axis, w);
    /* An output extent of 0 would match the formula, but a filter that is larger than the image is a mistake. */
    if (padded < span && x > 0)
        FAIL(
            WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            "%s: spatial dimension %d: the filter does not fit: it spans dilation %lld * (%s %lld - 1) + 1 = %lld, the "
            "padded image has %s %lld + pre %lld + post %lld = %lld element%s. Pad more, or use a smaller filter.",
            descriptor_label(&op->base), i, (long long)axis.dilation, names.w, (long long)w, (long long)span, names.x,
            (long long)x, (long long)axis.pre, (long long)axis.post, (long long)padded, plural(padded));
    if (y != output_extent(axis, x, w))
        return refuse_extent(op, i, axis, x, w, y);
    return WEFT_STATUS_SUCCESS;
}

/* Checks channels, then each spatial dimension, then the requirements of beta. */
static weftStatus_t check(const struct descriptor *descriptor) {
    const struct conv_op *op = (const struct conv_op *)descriptor;
    TRY(check_channels(op));
    for (int dim = first_of(op); dim < op->x->dims.count; dim++)
        TRY(check_extent(op, dim));
    if (op->beta != 0 && output_of(op)->is_virtual)
        FAIL(
            WEFT_STATUS_BAD_PARAM,
            "%s: beta is %g, so the output is read before it is written, but %s is virtual. Set beta to 0, or give the "
            "tensor memory.",
            descriptor_label(descriptor), op->beta, descriptor_label(&output_of(op)->base));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Geometry ---------------------------------------------------------------------------------------------------- */

/* outer, group, channel: dimensions of the tensor. Without a dimension of groups, `group` is the dimension that
   contains the groups as blocks of `block`. */
static struct conv_operand operand_of(const struct tensor *tensor, int spatial, int outer, int group, int channel,
                                      int64_t block) {
    struct conv_operand operand = {.tensor = tensor,
                                   .outer_stride = tensor->strides.at[outer],
                                   .group_stride = tensor->strides.at[group] * block,
                                   .channel_stride = tensor->strides.at[channel],
                                   .size = {1, 1, 1}};
    /* Spatial dimensions are always the last ones. */
    int first = (int)tensor->dims.count - spatial;
    for (int i = 0; i < spatial; i++) {
        /* The last of the three is the last of the tensor, so that index 2 is always the row. */
        operand.size[SPATIAL_MAX - spatial + i] = tensor->dims.at[first + i];
        operand.size_stride[SPATIAL_MAX - spatial + i] = tensor->strides.at[first + i];
    }
    return operand;
}

/* There are always three spatial dimensions, padded at the front with extents of 1, so that engines need only one loop
   nest. */
struct conv_geometry conv_geometry(const struct descriptor *descriptor) {
    const struct conv_op *op = (const struct conv_op *)descriptor;
    /* Dimension 1 contains the channels, or the groups if channels are in dimension 2. */
    int spatial = spatial_of(op), channel = first_of(op) - 1;
    /* Without a dimension of groups, they are in the channels of x and y, and in the filters of w. */
    bool grouped = channel == 2;
    struct conv_geometry g = {.direction = direction_of(descriptor),
                              .spatial = spatial,
                              .n = op->x->dims.at[0],
                              .groups = groups_of(op),
                              .c = op->w->dims.at[channel],
                              .stride = {1, 1, 1},
                              .dilation = {1, 1, 1},
                              .flip = op->parameters->mode == WEFT_CONVOLUTION,
                              .math = conv_math(op),
                              .alpha = op->alpha,
                              .beta = op->beta};
    /* k and c count channels within a group. */
    g.k = grouped ? op->w->dims.at[1] : op->w->dims.at[0] / g.groups;
    g.x = operand_of(op->x, spatial, 0, 1, channel, grouped ? 1 : g.c);
    g.w = operand_of(op->w, spatial, grouped ? 1 : 0, 0, channel, grouped ? 1 : g.k);
    g.y = operand_of(op->y, spatial, 0, 1, channel, grouped ? 1 : g.k);
    for (int i = 0; i < spatial; i++) {
        struct axis axis = axis_of(op->parameters, i);
        int at = SPATIAL_MAX - spatial + i;
        g.stride[at] = axis.stride;
        g.dilation[at] = axis.dilation;
        g.pre[at] = axis.pre;
        g.post[at] = axis.post;
    }
    return g;
}

/* One multiplication and one addition for each tap of each output, padding included; the same number for all
   directions. */
static double flops(const struct descriptor *descriptor) {
    struct conv_geometry g = conv_geometry(descriptor);
    double flops = 2.0 * (double)g.n * (double)g.groups * (double)g.c * (double)g.k;
    for (int i = 0; i < SPATIAL_MAX; i++)
        flops *= (double)g.w.size[i] * (double)g.y.size[i];
    return flops;
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

/* Positions in an operand as the formula has them: OUTER is the image n, or the output channel k of a filter; CHANNEL
   is the channel within the group. */
enum { OUTER, GROUP, CHANNEL, SIZE, PLACE = SIZE + SPATIAL_MAX };

/* Converts a position [outer, group, channel, size..] of an operand to an index of its tensor. */
static void index_of(const struct conv_geometry *g, const struct conv_operand *operand, const int64_t position[PLACE],
                     int64_t *index) {
    bool is_filter = operand == &g->w;
    int first = (int)operand->tensor->dims.count - g->spatial;
    if (first == 3) {
        index[0] = position[is_filter ? GROUP : OUTER];
        index[1] = position[is_filter ? OUTER : GROUP];
        index[2] = position[CHANNEL];
    } else if (is_filter) {
        /* Without a dimension of groups, the channels of groups follow each other. */
        index[0] = position[GROUP] * g->k + position[OUTER];
        index[1] = position[CHANNEL];
    } else {
        index[0] = position[OUTER];
        index[1] = position[GROUP] * (operand == &g->x ? g->c : g->k) + position[CHANNEL];
    }
    for (int i = 0; i < g->spatial; i++)
        index[first + i] = position[SIZE + SPATIAL_MAX - g->spatial + i];
}

/* One term of the sum: tap r of the filter that computes channel k of group g from channel c, at output position o. */
struct product {
    int64_t n, group, c, k, r[SPATIAL_MAX], o[SPATIAL_MAX];
};

/* The positions of its three elements; returns false if x is outside of the image. */
static bool places_of(const struct conv_geometry *g, const struct product *p, int64_t *x, int64_t *w, int64_t *y) {
    x[OUTER] = y[OUTER] = p->n;
    x[GROUP] = w[GROUP] = y[GROUP] = p->group;
    x[CHANNEL] = w[CHANNEL] = p->c;
    w[OUTER] = y[CHANNEL] = p->k;
    bool inside = true;
    for (int i = 0; i < SPATIAL_MAX; i++) {
        x[SIZE + i] = p->o[i] * g->stride[i] + p->r[i] * g->dilation[i] - g->pre[i];
        /* A mathematical convolution (flip) traverses the filter backwards. */
        w[SIZE + i] = g->flip ? g->w.size[i] - 1 - p->r[i] : p->r[i];
        y[SIZE + i] = p->o[i];
        inside = inside && x[SIZE + i] >= 0 && x[SIZE + i] < g->x.size[i];
    }
    return inside;
}

struct views {
    struct view x, w, y;
};

/* Integer accumulation is exact only if the result is the plain sum, because the factors are doubles. */
static struct sum new_sum(const struct conv_geometry *g, const struct views *views) {
    struct sum sum = sum_of_products(g->math, g->direction == CONV_DATA ? &views->y : &views->x,
                                     g->direction == CONV_FILTER ? &views->y : &views->w);
    sum.is_exact = sum.is_exact && g->alpha == 1 && g->beta == 0;
    return sum;
}

/* Adds x * w, dy * w or x * dy, depending on the direction. */
static void add_product(struct sum *sum, const struct conv_geometry *g, const struct views *views,
                        const struct product *p) {
    int64_t x[PLACE], w[PLACE], y[PLACE], in_x[WEFT_DIM_MAX], in_w[WEFT_DIM_MAX], in_y[WEFT_DIM_MAX];
    /* Elements outside of the image are 0 and add nothing. */
    if (!places_of(g, p, x, w, y))
        return;
    index_of(g, &g->x, x, in_x), index_of(g, &g->w, w, in_w), index_of(g, &g->y, y, in_y);
    if (g->direction == CONV_FORWARD)
        sum_add(sum, &views->x, in_x, &views->w, in_w);
    else if (g->direction == CONV_DATA)
        sum_add(sum, &views->y, in_y, &views->w, in_w);
    else
        sum_add(sum, &views->x, in_x, &views->y, in_y);
}

/* beta 0 does not read the output, which may be uninitialised. */
static void store(const struct conv_geometry *g, const struct conv_operand *operand, const struct view *view,
                  const int64_t position[PLACE], struct sum *sum) {
    int64_t index[WEFT_DIM_MAX];
    index_of(g, operand, position, index);
    /* Integer sums have alpha 1 and beta 0, and are not affected. */
    sum->real = g->alpha * sum->real + (g->beta != 0 ? g->beta * view_load(view, index) : 0);
    sum_store(sum, view, index);
}

/* y: sums over c and r. */
static void compute_y(const struct conv_geometry *g, const struct views *views) {
    /* `extents` has the extents of the outputs, in the order of a position; `inner` those of the sums. */
    const int64_t extents[] = {g->n, g->groups, g->k, g->y.size[0], g->y.size[1], g->y.size[2]};
    const int64_t inner[] = {g->c, g->w.size[0], g->w.size[1], g->w.size[2]};
    int64_t at[PLACE], tap[4];
    for (bool more = index_begin(at, PLACE, extents); more; more = index_next(at, PLACE, extents)) {
        /* Each output is one sum over all of its products. */
        struct sum sum = new_sum(g, views);
        for (bool taps = index_begin(tap, 4, inner); taps; taps = index_next(tap, 4, inner)) {
            struct product p = {.n = at[OUTER],
                                .group = at[GROUP],
                                .k = at[CHANNEL],
                                .c = tap[0],
                                .o = {at[3], at[4], at[5]},
                                .r = {tap[1], tap[2], tap[3]}};
            add_product(&sum, g, views, &p);
        }
        store(g, &g->y, &views->y, at, &sum);
    }
}

/* The output position whose tap r reads x; false if none exists. Checks for negative numbers before it divides, because
   division rounds towards 0. */
static bool find_position(const struct conv_geometry *g, const int64_t *x, struct product *p) {
    for (int i = 0; i < SPATIAL_MAX; i++) {
        int64_t scaled = x[i] + g->pre[i] - p->r[i] * g->dilation[i];
        p->o[i] = scaled / g->stride[i];
        if (scaled < 0 || scaled % g->stride[i] != 0 || p->o[i] >= g->y.size[i])
            return false;
    }
    return true;
}

/* dx: sum over k and over the r that read this element. */
static void compute_dx(const struct conv_geometry *g, const struct views *views) {
    const int64_t extents[] = {g->n, g->groups, g->c, g->x.size[0], g->x.size[1], g->x.size[2]};
    const int64_t inner[] = {g->k, g->w.size[0], g->w.size[1], g->w.size[2]};
    int64_t at[PLACE], tap[4];
    for (bool more = index_begin(at, PLACE, extents); more; more = index_next(at, PLACE, extents)) {
        struct sum sum = new_sum(g, views);
        for (bool taps = index_begin(tap, 4, inner); taps; taps = index_next(tap, 4, inner)) {
            struct product p = {
                .n = at[OUTER], .group = at[GROUP], .c = at[CHANNEL], .k = tap[0], .r = {tap[1], tap[2], tap[3]}};
            /* With strides, most taps do not read a given element. */
            if (find_position(g, at + SIZE, &p))
                add_product(&sum, g, views, &p);
        }
        store(g, &g->x, &views->x, at, &sum);
    }
}

/* dw: sum over n and o. */
static void compute_dw(const struct conv_geometry *g, const struct views *views) {
    /* OUTER of a filter is its output channel. */
    const int64_t extents[] = {g->k, g->groups, g->c, g->w.size[0], g->w.size[1], g->w.size[2]};
    const int64_t inner[] = {g->n, g->y.size[0], g->y.size[1], g->y.size[2]};
    int64_t at[PLACE], in[4];
    for (bool more = index_begin(at, PLACE, extents); more; more = index_next(at, PLACE, extents)) {
        struct sum sum = new_sum(g, views);
        for (bool images = index_begin(in, 4, inner); images; images = index_next(in, 4, inner)) {
            struct product p = {
                .k = at[OUTER], .group = at[GROUP], .c = at[CHANNEL], .n = in[0], .o = {in[1], in[2], in[3]}};
            for (int i = 0; i < SPATIAL_MAX; i++)
                /* places_of reverses flipped taps, so this computes the tap from its position in w. */
                p.r[i] = g->flip ? g->w.size[i] - 1 - at[SIZE + i] : at[SIZE + i];
            add_product(&sum, g, views, &p);
        }
        store(g, &g->w, &views->w, at, &sum);
    }
}

/* Only the output is written, and only if it has memory. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct conv_op *op = (const struct conv_op *)descriptor;
    struct conv_geometry g = conv_geometry(descriptor);
    struct views views = {view_of(bindings, op->x), view_of(bindings, op->w), view_of(bindings, op->y)};
    if (g.direction == CONV_FORWARD && views.y.data)
        compute_y(&g, &views);
    else if (g.direction == CONV_DATA && views.x.data)
        compute_dx(&g, &views);
    else if (g.direction == CONV_FILTER && views.w.data)
        compute_dw(&g, &views);
}

/* ---- The operations ---------------------------------------------------------------------------------------------- */

const struct op conv_fprop_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            .name = "conv_fprop",
            .doc = "y[n,k,o] = alpha * sum over c, r of x[n, c, o * stride + r * dilation - pre] * w[k,c,r] + beta * "
                   "y[n,k,o]",
            .size = sizeof(struct conv_op),
            ROWS(fprop_rows),
            .finalize = op_finalize,
            .op = &conv_fprop_op,
        },
    .parameters = &convolution_schema,
    .methods = fprop_methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .reference = reference,
    .flops = flops,
};

const struct op conv_dgrad_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            .name = "conv_dgrad",
            .doc = "dx[n,c,i] = alpha * sum over k, r, o with i = o * stride + r * dilation - pre of dy[n,k,o] * "
                   "w[k,c,r] + "
                   "beta * dx[n,c,i]",
            .size = sizeof(struct conv_op),
            ROWS(dgrad_rows),
            .finalize = op_finalize,
            .op = &conv_dgrad_op,
        },
    .parameters = &convolution_schema,
    .methods = dgrad_methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .reference = reference,
    .flops = flops,
};

const struct op conv_wgrad_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            .name = "conv_wgrad",
            .doc = "dw[k,c,r] = alpha * sum over n, o of x[n, c, o * stride + r * dilation - pre] * dy[n,k,o] + "
                   "beta * dw[k,c,r]",
            .size = sizeof(struct conv_op),
            ROWS(wgrad_rows),
            .finalize = op_finalize,
            .op = &conv_wgrad_op,
        },
    .parameters = &convolution_schema,
    .methods = wgrad_methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .reference = reference,
    .flops = flops,
};
