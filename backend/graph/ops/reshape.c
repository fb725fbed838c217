/* SPDX-License-Identifier: Apache-2.0 */
/* reshape: the elements of x under the extents of y
   VIEW_ONLY keeps the storage: the element at storage offset i of y is the one at offset i of x, so that other strides
   transpose. LOGICAL keeps the order of the elements, last dimension fastest. A result of another data type is
   converted. */
#include "graph/ops/reshape.h"
#include "base/number.h"
#include "graph/ops/move.h"

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct reshape_op, x, WEFT_ATTR_OPERATION_RESHAPE_XDESC, "x", .required = true,
               .shape = "[d..]", .doc = "input"),
    TENSOR_ROW(ROLE_OUTPUT, struct reshape_op, y, WEFT_ATTR_OPERATION_RESHAPE_YDESC, "y", .required = true,
               .in_place = "x", .shape = "[e..], dims must be set", .doc = "result"),
    VALUE_ROW(WEFT_TYPE_RESHAPE_MODE, struct reshape_op, mode, WEFT_ATTR_OPERATION_RESHAPE_MODE, "mode",
              .initial = WEFT_RESHAPE_VIEW_ONLY, .doc = "what is kept: the storage or the order of the elements"),
};

static const struct method methods[] = {
    {"reshape", "other extents for the same elements; set the result's dims : y = x", NULL,
     "input:x name reshape_mode:mode=VIEW_ONLY", "y"},
    {0},
};

static weftStatus_t infer(struct descriptor *descriptor) {
    struct reshape_op *op = (struct reshape_op *)descriptor;
    if (op->y->dims.count == 0)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: y has no dims; x %s can take many shapes. Set y's dims.",
             descriptor_label(descriptor), tensor_dims_text(op->x));
    tensor_infer_strides(op->y, NULL);
    tensor_infer_type(op->y, (weftDataType_t)op->x->type);
    if (op->y->is_virtual) /* it may be x's memory */
        op->y->alignment = min64(op->y->alignment, op->x->alignment);
    return WEFT_STATUS_SUCCESS;
}

/* How many elements the storage spans, gaps included. */
static int64_t span(const struct tensor *tensor) {
    int64_t last = 0;
    for (int64_t i = 0; i < tensor->dims.count; i++) {
        int64_t extent = tensor->dims.at[i];
        if (extent == 0)
            return 0;
        if (i == tensor->vector_dim && tensor->vector_count > 1)
            extent /= tensor->vector_count;
        last += (extent - 1) * tensor->strides.at[i];
    }
    return (last + 1) * tensor->vector_count;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct reshape_op *op = (const struct reshape_op *)descriptor;
    int64_t from = tensor_elements(op->x), to = tensor_elements(op->y);
    if (op->mode == WEFT_RESHAPE_LOGICAL && from != to)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: x %s has %lld elements, y %s has %lld. Give y dims with the same product.",
             descriptor_label(descriptor), tensor_dims_text(op->x), (long long)from, tensor_dims_text(op->y),
             (long long)to);
    if (op->mode == WEFT_RESHAPE_VIEW_ONLY && span(op->y) > span(op->x))
        FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
             "%s: a view of x's storage of %lld elements (dims %s, strides %s) cannot reach element %lld, as y with "
             "dims %s and strides %s does. Give y smaller dims or strides, or use mode LOGICAL.",
             descriptor_label(descriptor), (long long)span(op->x), tensor_dims_text(op->x),
             numbers_text(op->x->strides.at, op->x->strides.count), (long long)span(op->y) - 1, tensor_dims_text(op->y),
             numbers_text(op->y->strides.at, op->y->strides.count));
    return WEFT_STATUS_SUCCESS;
}

/* The same bytes under other extents. A result that promises more alignment than x has, as an operation that was
   finalized before the one that makes x may, is a copy. */
static struct tensor *memory_of(const struct descriptor *descriptor) {
    const struct reshape_op *op = (const struct reshape_op *)descriptor;
    bool packed = tensor_is_packed(op->x) && tensor_is_packed(op->y);
    bool same = op->x->type == op->y->type && op->y->vector_count == 1 && op->x->vector_count == 1 &&
                op->y->alignment <= op->x->alignment;
    return same && (op->mode == WEFT_RESHAPE_VIEW_ONLY || packed) ? op->x : NULL;
}

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct reshape_op *op = (const struct reshape_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y);
    bool keeps_storage = op->mode == WEFT_RESHAPE_VIEW_ONLY;
    int64_t in_x[WEFT_DIM_MAX], in_y[WEFT_DIM_MAX];
    if (!y.data)
        return;
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
            .doc = "the elements of x under the extents of y",
            .size = sizeof(struct reshape_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &reshape_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .memory_of = memory_of,
    .reference = reference,
};
