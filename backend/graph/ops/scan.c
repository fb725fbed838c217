/* SPDX-License-Identifier: Apache-2.0 */
/* scan: y[i] combines the elements of x up to i along one dimension: sum, product, largest or smallest element. An
   exclusive scan leaves out x[i] itself and begins with the identity: 0, 1, -inf or +inf, which integer types saturate.
   A reversed scan begins with the last element. NaN propagates to all later results. `index` is the position of an
   extreme; of equal elements it is the one that the scan reached last, and NaN counts as an extreme. An integer compute
   type calculates exactly in 64 bits, wrapping around. The gradient of a sum is the sum in the other direction, and
   that of an extreme adds dy at `index` (scatter_add); cumprod_backward.c has that of a product. */
#include "graph/ops/scan.h"

#include <math.h>

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct scan_op, x, WEFT_ATTR_OPERATION_SCAN_XDESC_EXT, "x", .required = true,
               .shape = "[d..]", .doc = "input"),
    TENSOR_ROW(ROLE_OUTPUT, struct scan_op, y, WEFT_ATTR_OPERATION_SCAN_YDESC_EXT, "y", .shape = "like x",
               .doc = "cumulative result"),
    TENSOR_ROW(ROLE_OUTPUT, struct scan_op, index, WEFT_ATTR_OPERATION_SCAN_INDEX_DESC_EXT, "index", .shape = "like x",
               .doc = "position of the extreme along the axis, INT32 or INT64; of equal elements the last in the "
                      "order of the scan"),
    VALUE_ROW(WEFT_TYPE_REDUCTION_OPERATOR_TYPE, struct scan_op, mode, WEFT_ATTR_OPERATION_SCAN_MODE_EXT, "mode",
              .initial = WEFT_REDUCE_TENSOR_ADD, .doc = "the operator: ADD, MUL, MIN or MAX"),
    VALUE_ROW(WEFT_TYPE_INT64, struct scan_op, axis, WEFT_ATTR_OPERATION_SCAN_AXIS_EXT, "axis", .initial = -1,
              .least = -WEFT_DIM_MAX, .most = WEFT_DIM_MAX - 1,
              .doc = "dimension of the scan; negative values count from the last"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct scan_op, is_exclusive, WEFT_ATTR_OPERATION_SCAN_IS_EXCLUSIVE_EXT, "exclusive",
              .doc = "true: y[i] does not contain x[i]"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct scan_op, is_reversed, WEFT_ATTR_OPERATION_SCAN_IS_REVERSED_EXT, "reverse",
              .doc = "true: from the last element to the first"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct scan_op, math, WEFT_ATTR_OPERATION_SCAN_COMP_TYPE_EXT, "compute_data_type",
              .doc = "accumulation type; integer types are exact. Unset: INT64 for integers and booleans, FLOAT for "
                     "all others"),
};

static const struct method methods[] = {
    {"cumsum", "cumulative sum along one dimension : y[i] = x[0] + ... + x[i]", "mode=ADD",
     "input:x axis=-1 exclusive=false reverse=false", "y"},
    {"cumprod", "cumulative product along one dimension : y[i] = x[0] * ... * x[i]", "mode=MUL",
     "input:x axis=-1 exclusive=false reverse=false", "y"},
    {"cummax", "cumulative maximum along one dimension, and its position : y[i] = max(x[0], ..., x[i])", "mode=MAX",
     "input:x axis=-1 reverse=false", "y index"},
    {"cummin", "cumulative minimum along one dimension, and its position : y[i] = min(x[0], ..., x[i])", "mode=MIN",
     "input:x axis=-1 reverse=false", "y index"},
    {0},
};

static bool is_extreme(const struct scan_op *op) {
    return op->mode == WEFT_REDUCE_TENSOR_MIN || op->mode == WEFT_REDUCE_TENSOR_MAX;
}

weftDataType_t scan_math(const struct scan_op *op) {
    if (descriptor_row_is_set(&op->base, WEFT_ATTR_OPERATION_SCAN_COMP_TYPE_EXT))
        return op->x->type == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE : (weftDataType_t)op->math;
    return op->x->type == WEFT_DATA_DOUBLE               ? WEFT_DATA_DOUBLE
           : dtype_is_float((weftDataType_t)op->x->type) ? WEFT_DATA_FLOAT
                                                         : WEFT_DATA_INT64;
}

/* Sums and products of integers keep the 64-bit type in which they are combined; an extreme has the type of x. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct scan_op *op = (struct scan_op *)descriptor;
    weftDataType_t natural = (weftDataType_t)op->x->type, math = scan_math(op);
    TRY(check_axis(descriptor, op->axis, "x", op->x));
    if (op->y) {
        bool is_exact = dtype_is_float(natural) || is_extreme(op);
        tensor_infer_type(op->y, is_exact ? tensor_result_type(op->y, natural, math) : math);
        tensor_infer_like(op->y, op->x);
    }
    if (op->index) {
        tensor_infer_type(op->index, WEFT_DATA_INT64);
        tensor_infer_like(op->index, op->x);
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct scan_op *op = (const struct scan_op *)descriptor;
    const char *label = descriptor_label(descriptor);
    if (!op->y && !op->index)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: it has no result: y and index are unset. Set one.", label);
    if (!is_extreme(op) && op->mode != WEFT_REDUCE_TENSOR_ADD && op->mode != WEFT_REDUCE_TENSOR_MUL)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode is not a cumulative operation. Use ADD, MUL, MIN or MAX.", label);
    if (op->index && !is_extreme(op))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: index is set, but a sum or product has no position. Use mode MIN or MAX.",
             label);
    if (op->index && op->is_exclusive)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: index is set, but the first result of an exclusive scan has no position. Set exclusive to false.",
             label);
    TRY(check_dims(descriptor, "y", op->y, op->x->dims.count, op->x->dims.at));
    TRY(check_dims(descriptor, "index", op->index, op->x->dims.count, op->x->dims.at));
    return check_index_type(descriptor, "index", op->index);
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

/* The result so far; `whole` is used by integer compute types, `real` by all others. */
struct running {
    double real;
    int64_t whole, position;
};

static struct running identity_of(int32_t mode) {
    switch (mode) {
    case WEFT_REDUCE_TENSOR_MUL:
        return (struct running){1, 1, 0};
    case WEFT_REDUCE_TENSOR_MIN:
        return (struct running){INFINITY, INT64_MAX, 0};
    case WEFT_REDUCE_TENSOR_MAX:
        return (struct running){-INFINITY, INT64_MIN, 0};
    default:
        return (struct running){0, 0, 0};
    }
}

/* Equal elements replace the result, so that its position is the last one; nothing but NaN replaces NaN. */
static void combine(struct running *r, int32_t mode, double x, int64_t whole, int64_t position) {
    bool is_max = mode == WEFT_REDUCE_TENSOR_MAX;
    if (mode == WEFT_REDUCE_TENSOR_ADD) {
        r->real += x;
        r->whole = (int64_t)((uint64_t)r->whole + (uint64_t)whole);
    } else if (mode == WEFT_REDUCE_TENSOR_MUL) {
        r->real *= x;
        r->whole = (int64_t)((uint64_t)r->whole * (uint64_t)whole);
    } else if (isnan(x) || (!isnan(r->real) && (is_max ? x >= r->real : x <= r->real) &&
                            (is_max ? whole >= r->whole : whole <= r->whole))) {
        *r = (struct running){x, whole, position};
    }
}

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct scan_op *op = (const struct scan_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y), index = view_of(bindings, op->index);
    const int axis = axis_dimension(op->axis, op->x);
    const bool is_exact = !dtype_is_float(scan_math(op));
    int64_t lines[WEFT_DIM_MAX], at[WEFT_DIM_MAX];
    for (int i = 0; i < x.rank; i++)
        lines[i] = i == axis && x.dims[i] ? 1 : x.dims[i];
    for (bool more = index_begin(at, x.rank, lines); more; more = index_next(at, x.rank, lines)) {
        struct running r = identity_of(op->mode);
        for (int64_t step = 0; step < x.dims[axis]; step++) {
            at[axis] = op->is_reversed ? x.dims[axis] - 1 - step : step;
            struct running before = r;
            /* Only one of the two numbers counts; the other one is 0, so that it never decides a comparison. */
            combine(&r, op->mode, is_exact ? 0 : view_load(&x, at), is_exact ? view_load_int(&x, at) : 0, at[axis]);
            struct running *result = op->is_exclusive ? &before : &r;
            if (y.data && is_exact)
                view_store_int(&y, at, result->whole);
            else if (y.data)
                view_store(&y, at, result->real);
            if (index.data)
                view_store_int(&index, at, result->position);
        }
        at[axis] = 0;
    }
}

static double flops(const struct descriptor *descriptor) {
    return (double)tensor_elements(((const struct scan_op *)descriptor)->x);
}

const struct op scan_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_SCAN_DESCRIPTOR_EXT,
            .name = "scan",
            .doc = "y[i] = op over x[0] to x[i] along one dimension",
            .size = sizeof(struct scan_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &scan_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .reference = reference,
    .flops = flops,
};
