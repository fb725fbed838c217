/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions of the depthwise family, and the positions of outputs, taps and inputs. This file must not know blocks or
   text. */
#include "base/number.h"
#include "engines/cuda/product/depthwise/depthwise.h"

static const double REACH_MAX = 1 << 30; /* so that the sum of two positions fits in 32 bits */

/* A data gradient is a convolution of dy: steps and spreads are swapped, taps are reversed, and the padding in front is
   the extent of the filter beyond the original padding. Both gradients and the forward operation then have the same
   index map. */
static void find_axes(struct depthwise *d) {
    const struct conv_geometry *g = &d->g;
    bool is_data = g->direction == CONV_DATA;
    for (int i = 0; i < AXES; i++)
        d->axes[i] = (struct axis){
            .taps = g->w.size[i],
            .step = is_data ? 1 : g->stride[i],
            .spread = is_data ? g->stride[i] : 1,
            .dilation = g->dilation[i],
            .pre = is_data ? (g->w.size[i] - 1) * g->dilation[i] - g->pre[i] : g->pre[i],
            .in = is_data ? g->y.size[i] : g->x.size[i],
            .out = is_data ? g->x.size[i] : g->y.size[i],
        };
    d->image = is_data ? &g->y : &g->x;
}

/* Extents of 1 need no mode. */
static void add_mode(struct modes *modes, int64_t extent, int64_t dim) {
    if (extent != 1)
        modes->at[modes->count++] = (struct mode){.extent = extent, .dim = (int)dim, .dim_step = 1, .phase = NO_PHASE};
}

/* Rows of the result are images and positions, or taps; columns are channels. K and BATCH are empty, because the
   contraction is only used for the epilogue. */
static void find_modes(struct depthwise *d) {
    const struct conv_operand *result = is_filter(d) ? &d->g.w : d->g.direction == CONV_DATA ? &d->g.x : &d->g.y;
    struct modes *modes = d->c.modes;
    for (int index = 0; index < INDICES; index++)
        modes[index].count = 0;
    if (!is_filter(d))
        add_mode(&modes[ROW], d->g.n, 0);
    for (int i = 0; i < AXES; i++)
        add_mode(&modes[ROW], result->size[i], result->tensor->dims.count - AXES + i);
    add_mode(&modes[COLUMN], d->g.groups, is_filter(d) ? 0 : 1);
    d->c.phase_count = 0;
}

/* Adjacent channels per copy of at most 16 bytes, such that all other strides are multiples of it. */
static int run_of(const struct depthwise *d, const struct conv_operand *operand) {
    int64_t run = gcd64(16, operand->tensor->alignment) / bytes_of(operand->tensor);
    if (!d->is_channels_last || run < 1)
        return 1;
    run = gcd64(gcd64(run, d->g.groups), d->g.n > 1 ? operand->outer_stride : 0);
    for (int i = 0; i < AXES; i++)
        run = gcd64(run, operand->size[i] > 1 ? operand->size_stride[i] : 0);
    return (int)run;
}

/* True if elements are floats in memory. */
static bool is_supported(const struct tensor *tensor) {
    weftDataType_t type = (weftDataType_t)tensor->type;
    bool is_float = type == WEFT_DATA_FLOAT || dtype_is_half(type) || dtype_is_fp8(type);
    return is_float && !tensor->is_by_value && !tensor->is_constant;
}

/* Checks the operation itself; plan.c checks memory and registers. */
static weftStatus_t check_node(const struct depthwise *d, const struct device *device) {
    const struct conv_op *op = (const struct conv_op *)d->c.node->op;
    const char *label = descriptor_label(&op->base);
    weftDataType_t math = math_type(op->parameters->math);
    const struct tensor *image = d->image->tensor, *second = is_filter(d) ? d->g.y.tensor : d->g.w.tensor;
    if (device->cuda.major < 8)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "%s: asynchronous copies require sm_80", label);
    if (d->g.c != 1 || d->g.k != 1)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE,
             "%s: its groups have %lld input and %lld output channels; expected one of each.", label, (long long)d->g.c,
             (long long)d->g.k);
    if (!is_supported(image) || !is_supported(second))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: %s and %s must be floats of 8 to 32 bits in memory", label,
             descriptor_label(&image->base), descriptor_label(&second->base));
    if (math == WEFT_DATA_DOUBLE || !dtype_is_float(math))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: this engine sums in float. Set compute_data_type FLOAT.", label);
    return WEFT_STATUS_SUCCESS;
}

/* Positions and results have 32 bits. In double, so that products of extents cannot overflow. */
static weftStatus_t check_reach(const struct depthwise *d) {
    double rows = (double)d->g.n * (double)d->g.groups;
    for (int i = 0; i < AXES; i++) {
        const struct axis *axis = &d->axes[i];
        double outputs = (double)axis->out * (double)axis->step, inputs = (double)axis->in * (double)axis->spread;
        double reach = outputs + inputs + (double)axis_span(axis) + (double)max64(axis->pre, -axis->pre);
        rows *= (double)axis->out;
        if (reach > REACH_MAX || rows > INT32_MAX)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_SHAPE, "%s: more than 2^30 positions or 2^31 results",
                 descriptor_label(d->c.node->op));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Fills in g, axes, image and vector widths, in the order of dependences. */
weftStatus_t depthwise_shape(struct depthwise *d, const struct device *device) {
    if (!conv_is(d->c.node->op))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is not a convolution", descriptor_label(d->c.node->op));
    d->g = conv_geometry(d->c.node->op);
    find_axes(d);
    TRY(check_node(d, device));
    TRY(check_reach(d));
    find_modes(d);
    d->c.arithmetic = FMA_FLOAT;
    d->c.is_small = true;
    d->c.splits = 1;
    TRY(epilogue_analyse(&d->c));
    /* Determined by the inputs; the layout of the result is up to the epilogue. */
    d->is_channels_last = d->image->group_stride == 1 && (!is_filter(d) || d->g.y.group_stride == 1);
    d->image_run = run_of(d, d->image);
    d->loss_run = run_of(d, &d->g.y);
    return WEFT_STATUS_SUCCESS;
}
