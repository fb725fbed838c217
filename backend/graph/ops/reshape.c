/* SPDX-License-Identifier: Apache-2.0 */
/* reshape: the elements of x with the extents of y. VIEW_ONLY keeps the storage: the element at storage offset i of y
   is the one at offset i of x, so that other strides transpose. LOGICAL keeps the order of the elements, with the last
   dimension fastest. A result of another data type is converted. */
#include "graph/ops/reshape.h"
#include "graph/ops/move.h"

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct reshape_op, x, WEFT_ATTR_OPERATION_RESHAPE_XDESC, "x", .required = true,
               .shape = "[d..]", .doc = "input"),
    TENSOR_ROW(ROLE_OUTPUT, struct reshape_op, y, WEFT_ATTR_OPERATION_RESHAPE_YDESC, "y", .required = true,
               .in_place = "x", .shape = "[e..], dims must be set", .doc = "result"),
    VALUE_ROW(WEFT_TYPE_RESHAPE_MODE, struct reshape_op, mode, WEFT_ATTR_OPERATION_RESHAPE_MODE, "mode",
              .initial = WEFT_RESHAPE_VIEW_ONLY, .doc = "what is preserved: the storage or the order of the elements"),
};

static const struct method methods[] = {
    {"reshape", "the same elements with other extents; set the result's dims : y = x", NULL,
     "input:x name reshape_mode:mode=VIEW_ONLY", "y"},
    {0},
};

/* Number of elements that the storage spans, gaps included. */
static int64_t span(const struct tensor *tensor) {
    int64_t last = 0;
    /* The offset of the last element is the sum of the last indices times strides. */
    for (int64_t i = 0; i < tensor->dims.count; i++) {
        int64_t extent = tensor->dims.at[i];
        if (extent == 0)
            return 0;
        /* Strides count vectors; the storage ends with the last element of a vector. */
        if (i == tensor->vector_dim && tensor->vector_count > 1)
            extent /= tensor->vector_count;
        last += (extent - 1) * tensor->strides.at[i];
    }
    return (last + 1) * tensor->vector_count;
}

/* LOGICAL requires the same number of elements; VIEW_ONLY must stay within the storage, and may show a part of it. */
static weftStatus_t check(const struct descriptor *descriptor) {
    const struct reshape_op *op = (const struct reshape_op *)descriptor;
    int64_t from = tensor_elements(op->x), to = tensor_elements(op->y);
    if (op->mode == WEFT_RESHAPE_LOGICAL && from != to)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: x %s has %lld element%s, y %s has %lld. Give y dims with the same product.",
             descriptor_label(descriptor), tensor_dims_text(op->x), (long long)from, plural(from),
             tensor_dims_text(op->y), (long long)to);
    /* Elements after the end of the storage would belong to another tensor. */
    if (op->mode == WEFT_RESHAPE_VIEW_ONLY && span(op->y) > span(op->x))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: a view of x's storage of %lld element%s (dims %s, strides %s) cannot reach element %lld, as y with "
             "dims %s and strides %s does. Give y smaller dims or strides, or use mode LOGICAL.",
             descriptor_label(descriptor), (long long)span(op->x), plural(span(op->x)), tensor_dims_text(op->x),
             numbers_text(op->x->strides.at, op->x->strides.count), (long long)span(op->y) - 1, tensor_dims_text(op->y),
             numbers_text(op->y->strides.at, op->y->strides.count));
    return WEFT_STATUS_SUCCESS;
}

/* If both are packed, the modes are equivalent: the storage contains the elements in order. */
bool reshape_keeps_order(const struct reshape_op *op) {
    return op->mode == WEFT_RESHAPE_LOGICAL ||
           (tensor_is_packed(op->x) && tensor_is_packed(op->y) && tensor_elements(op->x) == tensor_elements(op->y));
}

/* Adjacent dimensions that a single stride covers, in logical order. */
struct walk {
    int64_t count, step; /* number of elements, and logical distance between two of them */
    int64_t stride;
};

/* Lists the walks of a layout, starting with the last dimension, and returns their number. */
static int list_walks(struct walk *walks, const struct dims *dims, const struct dims *strides) {
    int64_t step = 1;
    int count = 0;
    for (int64_t i = dims->count; i-- > 0; step *= dims->at[i]) {
        if (dims->at[i] == 1)
            continue;
        /* The dimension continues where the faster one ends: the same walk with more elements. */
        if (count && strides->at[i] == walks[count - 1].stride * walks[count - 1].count)
            walks[count - 1].count *= dims->at[i];
        else
            walks[count++] = (struct walk){dims->at[i], step, strides->at[i]};
    }
    return count;
}

/* The layout of the same elements, in the same order, with other extents. */
static bool reshape_layout(const struct dims *from, const struct placement *known, const struct dims *to,
                           struct placement *layout) {
    struct walk walks[WEFT_DIM_MAX];
    int count = list_walks(walks, from, &known->strides), at = 0;
    int64_t step = 1;
    *layout = (struct placement){.strides.count = to->count, .offset = known->offset};
    for (int64_t i = to->count; i-- > 0; step *= to->at[i]) {
        /* Finds the walk in which a logical distance of `step` moves to an adjacent element. */
        while (at < count - 1 && step >= walks[at].step * walks[at].count)
            at++;
        const struct walk *walk = &walks[at];
        bool fits = !count || step % walk->step == 0;
        int64_t first = fits && count ? step / walk->step : 1; /* element of the walk */
        /* A dimension that begins within a step of the walk, or extends past its end, has no single stride. */
        if (to->at[i] > 1 && (!fits || first * to->at[i] > walk->count))
            return false;
        layout->strides.at[i] = count ? first * walk->stride : 1;
    }
    return true;
}

/* In the order of x's memory if strides can express it, so that results computed from y have the layout of x. Outputs
   of the graph are row-major, in which packed tensors keep the order of their elements in either mode. */
static void infer_strides(struct reshape_op *op) {
    struct tensor like = {.dims = op->y->dims, .is_turned = op->x->is_turned};
    struct placement layout;
    bool follows = op->y->is_virtual && op->mode == WEFT_RESHAPE_LOGICAL && op->x->vector_count == 1 &&
                   !op->x->has_no_order && tensor_elements(op->x) == tensor_elements(op->y) &&
                   reshape_layout(&op->x->dims, &(struct placement){.strides = op->x->strides}, &op->y->dims, &layout);
    if (follows)
        like.strides = layout.strides;
    op->y->has_no_order = op->x->has_no_order && op->y->strides.count == 0;
    tensor_infer_strides(op->y, follows ? &like : NULL);
}

/* Dims must be set; everything else is inferred from x. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct reshape_op *op = (struct reshape_op *)descriptor;
    if (op->y->dims.count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: y has no dims; x %s can be reshaped in many ways. Set y's dims.",
             descriptor_label(descriptor), tensor_dims_text(op->x));
    infer_strides(op);
    tensor_infer_type(op->y, (weftDataType_t)op->x->type);
    return WEFT_STATUS_SUCCESS;
}

static bool result_layout(const struct descriptor *descriptor, const struct placement *x, struct placement *y) {
    const struct reshape_op *op = (const struct reshape_op *)descriptor;
    if (reshape_keeps_order(op))
        return reshape_layout(&op->x->dims, x, &op->y->dims, y);
    /* A view of the storage: y has its own strides and starts at the offset of x. */
    *y = (struct placement){.strides = op->y->strides, .offset = x->offset};
    return true;
}

/* Never possible for a view of the storage in another order: the layout of x does not follow from y. */
static bool operand_layout(const struct descriptor *descriptor, int k, const struct placement *y, struct placement *x) {
    const struct reshape_op *op = (const struct reshape_op *)descriptor;
    (void)k;
    return reshape_keeps_order(op) && reshape_layout(&op->y->dims, y, &op->x->dims, x);
}

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct reshape_op *op = (const struct reshape_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y);
    bool keeps_storage = op->mode == WEFT_RESHAPE_VIEW_ONLY;
    int64_t in_x[WEFT_DIM_MAX], in_y[WEFT_DIM_MAX];
    if (!y.data)
        return;
    /* Both indices iterate in row-major order, each over its own dims. */
    index_begin(in_x, x.rank, x.dims);
    for (bool more = index_begin(in_y, y.rank, y.dims); more; more = index_next(in_y, y.rank, y.dims)) {
        int64_t to = view_offset(&y, in_y);
        move_element(&y, to, &x, keeps_storage ? to : view_offset(&x, in_x));
        index_next(in_x, x.rank, x.dims);
    }
}

const struct op reshape_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
            .name = "reshape",
            .doc = "the elements of x with the extents of y",
            .size = sizeof(struct reshape_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &reshape_op,
        },
    .methods = methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .result_layout = result_layout,
    .operand_layout = operand_layout,
    .reference = reference,
};
