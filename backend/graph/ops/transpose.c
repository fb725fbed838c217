/* SPDX-License-Identifier: Apache-2.0 */
/* transpose: dimension i of y is dimension permutation[i] of x. If y is an output of the graph and has no strides of
   its own, it is packed in row-major order, as are outputs computed from it: the elements move, unless the planner
   stores x in y's memory (`operand_layout`). An intermediate y is a view with the layout of x (`result_layout`). A
   result of another data type is converted. */
#include "graph/ops/transpose.h"
#include "graph/ops/move.h"

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct transpose_op, x, WEFT_ATTR_OPERATION_TRANSPOSE_XDESC, "x", .required = true,
               .shape = "[d..]", .doc = "input"),
    TENSOR_ROW(ROLE_OUTPUT, struct transpose_op, y, WEFT_ATTR_OPERATION_TRANSPOSE_YDESC, "y", .required = true,
               .shape = "[d.. permuted]", .doc = "result"),
    VALUE_ROW(WEFT_TYPE_INT64, struct transpose_op, permutation, WEFT_ATTR_OPERATION_TRANSPOSE_PERMUTATION,
              "permutation", .storage = STORE_DIMS, .required = true, .least = 0, .most = WEFT_DIM_MAX - 1,
              .doc = "each dimension of x once, in the order of y"),
};

/* The formula in terms of p, the permutation. */
static const struct method methods[] = {
    {"transpose", "permutation of the dimensions : y[i[p[0]], i[p[1]], ..] = x[i[0], i[1], ..]", NULL,
     "input:x permutation", "y"},
    {0},
};

/* Dimension i of y has the stride of x's dimension permutation[i]: a transpose is always a view. */
static bool result_layout(const struct descriptor *descriptor, const struct placement *x, struct placement *y) {
    const struct transpose_op *op = (const struct transpose_op *)descriptor;
    *y = *x;
    for (int64_t i = 0; i < x->strides.count; i++)
        y->strides.at[i] = x->strides.at[op->permutation.at[i]];
    return true;
}

/* In the order of x's memory, if it has one, so that results computed from y have the layout of x. */
static void infer_strides(struct transpose_op *op) {
    struct placement seen;
    result_layout(&op->base, &(struct placement){.strides = op->x->strides}, &seen);
    const struct tensor like = {.dims = op->y->dims, .strides = seen.strides, .is_turned = true};
    op->y->has_no_order = op->x->has_no_order && op->y->strides.count == 0;
    tensor_infer_strides(op->y, op->x->has_no_order ? NULL : &like);
}

/* y: the extents of x in the order of the permutation, which must name each dimension once. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct transpose_op *op = (struct transpose_op *)descriptor;
    int64_t rank = op->x->dims.count;
    bool used[WEFT_DIM_MAX] = {false};
    /* A permutation: as many numbers as dims, each below the rank and none repeated. */
    bool fits = op->permutation.count == rank;
    struct dims dims = {.count = rank};
    for (int64_t i = 0; fits && i < rank; i++) {
        int64_t from = op->permutation.at[i];
        /* Stops at the first invalid number, because later ones must not be used as indices. */
        fits = from < rank && !used[from];
        if (!fits)
            break;
        used[from] = true;
        dims.at[i] = op->x->dims.at[from];
    }
    if (!fits)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: permutation is %s, x has %lld dim%s %s. List each of 0..%lld once.",
             descriptor_label(descriptor), numbers_text(op->permutation.at, op->permutation.count), (long long)rank,
             plural(rank), tensor_dims_text(op->x), (long long)rank - 1);
    tensor_infer_dims(op->y, dims.count, dims.at);
    /* Unset strides of graph outputs are set to row-major by the check of outputs. */
    if (op->y->is_virtual && op->x->vector_count == 1)
        infer_strides(op);
    tensor_infer_type(op->y, (weftDataType_t)op->x->type);
    return check_dims(descriptor, "y", op->y, dims.count, dims.at);
}

/* The strides of x in the order of the permutation. */
static bool cudnn_strides(const struct descriptor *descriptor, const struct tensor *out, struct dims *strides) {
    struct placement seen;
    (void)out;
    result_layout(descriptor, &(struct placement){.strides = ((const struct transpose_op *)descriptor)->x->strides},
                  &seen);
    *strides = seen.strides;
    return ((const struct transpose_op *)descriptor)->x->vector_count == 1;
}

/* The inverse: the layout that x must have for y to have a given one. */
static bool operand_layout(const struct descriptor *descriptor, int k, const struct placement *y, struct placement *x) {
    const struct transpose_op *op = (const struct transpose_op *)descriptor;
    (void)k;
    *x = *y;
    for (int64_t i = 0; i < y->strides.count; i++)
        x->strides.at[op->permutation.at[i]] = y->strides.at[i];
    return true;
}

/* Iterates over the index of y; the index of x has the same numbers in the order of the permutation. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct transpose_op *op = (const struct transpose_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y);
    int64_t in_x[WEFT_DIM_MAX], in_y[WEFT_DIM_MAX];
    if (!y.data)
        return;
    for (bool more = index_begin(in_y, y.rank, y.dims); more; more = index_next(in_y, y.rank, y.dims)) {
        /* Every element of x is moved once, because the permutation is bijective. */
        for (int i = 0; i < y.rank; i++)
            in_x[op->permutation.at[i]] = in_y[i];
        move_element(&y, view_offset(&y, in_y), &x, view_offset(&x, in_x));
    }
}

const struct op transpose_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR,
            .name = "transpose",
            .doc = "dimension i of y is dimension permutation[i] of x",
            .size = sizeof(struct transpose_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &transpose_op,
        },
    .methods = methods,
    .infer = infer,
    .cudnn_strides = cudnn_strides,
    .result_layout = result_layout,
    .operand_layout = operand_layout,
    .reference = reference,
};
