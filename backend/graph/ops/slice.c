/* SPDX-License-Identifier: Apache-2.0 */
/* slice: y[i] = x[start + i * step] in each dimension, up to but excluding limit. A result of another data type is
   converted. Every slice is a view of x; if the planner stores it inside x, no kernel runs. Negative steps, which would
   reverse, are not supported. */
#include "graph/ops/slice.h"
#include "graph/ops/move.h"

/* One number per dimension of x, in its order; cuDNN calls the steps strides. */
static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct slice_op, x, WEFT_ATTR_OPERATION_SLICE_XDESC, "x", .required = true, .shape = "[d..]",
               .doc = "input"),
    TENSOR_ROW(ROLE_OUTPUT, struct slice_op, y, WEFT_ATTR_OPERATION_SLICE_YDESC, "y", .required = true,
               .shape = "[ceil((limit - start) / step)..]", .doc = "result"),
    VALUE_ROW(WEFT_TYPE_INT64, struct slice_op, start, WEFT_ATTR_OPERATION_SLICE_START_INDICES, "start",
              .storage = STORE_DIMS, .required = true, .doc = "first index in each dimension"),
    VALUE_ROW(WEFT_TYPE_INT64, struct slice_op, limit, WEFT_ATTR_OPERATION_SLICE_LIMIT_INDICES, "limit",
              .storage = STORE_DIMS, .required = true, .doc = "exclusive last index in each dimension"),
    VALUE_ROW(WEFT_TYPE_INT64, struct slice_op, steps, WEFT_ATTR_OPERATION_SLICE_STRIDES, "steps",
              .storage = STORE_DIMS, .least = 1, .most = INT64_MAX,
              .doc = "step in each dimension, 1 or more; unset: all 1"),
};

static const struct method methods[] = {
    {"strided_slice", "a box of a tensor, optionally with steps : y[i] = x[start + i * step]", NULL,
     "input:x start limit steps=None", "y"},
    {0},
};

/* A start and a limit for each dimension; steps for all or none. */
static weftStatus_t check_counts(const struct slice_op *op) {
    int64_t rank = op->x->dims.count;
    bool fits = op->start.count == rank && op->limit.count == rank && (op->steps.count == rank || op->steps.count == 0);
    if (!fits)
        FAIL(WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
             "%s: x has %lld dim%s %s; start is %s, limit %s, steps %s. Give one of each per dimension (steps may be "
             "unset).",
             descriptor_label(&op->base), (long long)rank, plural(rank), tensor_dims_text(op->x),
             numbers_text(op->start.at, op->start.count), numbers_text(op->limit.at, op->limit.count),
             numbers_text(op->steps.at, op->steps.count));
    return WEFT_STATUS_SUCCESS;
}

/* y: the number of steps between start and limit in each dimension. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct slice_op *op = (struct slice_op *)descriptor;
    struct dims dims = {.count = op->x->dims.count};
    TRY(check_counts(op));
    for (int64_t i = 0; i < dims.count; i++) {
        /* An empty slice, start = limit, is legal, even at the end of x. */
        int64_t start = op->start.at[i], limit = op->limit.at[i], extent = op->x->dims.at[i];
        if (start < 0 || limit < start || limit > extent)
            FAIL(WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND,
                 "%s: dimension %lld: start is %lld and limit %lld, x has %lld element%s there (dims %s). Keep 0 <= "
                 "start <= limit <= extent.",
                 descriptor_label(descriptor), (long long)i, (long long)start, (long long)limit, (long long)extent,
                 plural(extent), tensor_dims_text(op->x));
        /* Rounds up without adding the step, which may be as large as INT64_MAX. */
        dims.at[i] = limit == start ? 0 : (limit - start - 1) / slice_step(op, i) + 1;
    }
    tensor_infer_dims(op->y, dims.count, dims.at);
    /* Packed in the order of x; if y may be stored inside x, the planner calls `result_layout`. */
    tensor_infer_strides(op->y, op->x);
    tensor_infer_type(op->y, (weftDataType_t)op->x->type);
    return check_dims(descriptor, "y", op->y, dims.count, dims.at);
}

/* Every slice is a view: it begins at `start`, and its strides are multiples of those of x. */
static bool result_layout(const struct descriptor *descriptor, const struct placement *x, struct placement *y) {
    const struct slice_op *op = (const struct slice_op *)descriptor;
    *y = *x;
    for (int64_t i = 0; i < x->strides.count; i++) {
        y->offset += op->start.at[i] * x->strides.at[i];
        /* With a single element no stride is needed, and the step may be as large as INT64_MAX. */
        y->strides.at[i] *= op->y->dims.at[i] > 1 ? slice_step(op, i) : 1;
    }
    return true;
}

/* y keeps the gaps that the slice leaves in x, like a view. */
static bool cudnn_strides(const struct descriptor *descriptor, const struct tensor *out, struct dims *strides) {
    struct placement seen;
    (void)out;
    result_layout(descriptor, &(struct placement){.strides = ((const struct slice_op *)descriptor)->x->strides}, &seen);
    *strides = seen.strides;
    return ((const struct slice_op *)descriptor)->x->vector_count == 1;
}

/* Copies element by element, and converts the data type. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct slice_op *op = (const struct slice_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y);
    int64_t in_x[WEFT_DIM_MAX], in_y[WEFT_DIM_MAX];
    if (!y.data)
        return;
    for (bool more = index_begin(in_y, y.rank, y.dims); more; more = index_next(in_y, y.rank, y.dims)) {
        for (int i = 0; i < y.rank; i++)
            in_x[i] = op->start.at[i] + in_y[i] * slice_step(op, i);
        move_element(&y, view_offset(&y, in_y), &x, view_offset(&x, in_x));
    }
}

const struct op slice_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_SLICE_DESCRIPTOR,
            .name = "slice",
            .doc = "y[i] = x[start + i * step] in each dimension",
            .size = sizeof(struct slice_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &slice_op,
        },
    .methods = methods,
    .infer = infer,
    .cudnn_strides = cudnn_strides,
    .result_layout = result_layout,
    .reference = reference,
};
