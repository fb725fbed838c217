/* SPDX-License-Identifier: Apache-2.0 */
/* cumprod_backward: dx[i] = sum over j of dy[j] times the product of the elements that y[j] contains, without x[i]. Up
   to the first zero of a line, at z, dx[i] = (sum of dy[j] y[j]) / x[i]. At z, products leave out x[z]; with p, the
   cumulative product of x with x[z] replaced by 1, dx[z] is the sum of dy[j] p[j] over all j whose product contains
   x[z]. After z, dx is 0. It is composite: scans, comparisons and selections. */
#include "graph/ops/cumprod_backward.h"
#include "graph/op_writer.h"
#include "graph/ops/scan.h"

#include <string.h>

struct cumprod_backward_op {
    struct descriptor base;
    int32_t math;
    int64_t axis;
    bool is_exclusive, is_reversed;
    struct tensor *dy, *x, *dx;
};

#define ROW(role, field, name, key, ...)                                                                               \
    TENSOR_ROW(ROLE_##role, struct cumprod_backward_op, field, WEFT_ATTR_OPERATION_CUMPROD_BWD_##name##_EXT, key,      \
               .required = true, __VA_ARGS__)
static const struct row rows[] = {
    ROW(INPUT, dy, DYDESC, "dy", .shape = "[d..]", .doc = "gradient of the result"),
    ROW(INPUT, x, XDESC, "x", .shape = "[d..]", .doc = "input of the forward pass"),
    ROW(OUTPUT, dx, DXDESC, "dx", .shape = "[d..]", .doc = "gradient of x"),
    VALUE_ROW(WEFT_TYPE_INT64, struct cumprod_backward_op, axis, WEFT_ATTR_OPERATION_CUMPROD_BWD_AXIS_EXT, "axis",
              .initial = -1, .least = -WEFT_DIM_MAX, .most = WEFT_DIM_MAX - 1,
              .doc = "dimension of the products; negative values count from the last"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct cumprod_backward_op, is_exclusive,
              WEFT_ATTR_OPERATION_CUMPROD_BWD_IS_EXCLUSIVE_EXT, "exclusive", .doc = "as in the forward pass"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct cumprod_backward_op, is_reversed,
              WEFT_ATTR_OPERATION_CUMPROD_BWD_IS_REVERSED_EXT, "reverse", .doc = "as in the forward pass"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct cumprod_backward_op, math, WEFT_ATTR_OPERATION_CUMPROD_BWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "compute type; DOUBLE for DOUBLE x"),
};
#undef ROW

static const struct method methods[] = {
    {"cumprod_backward",
     "gradient of a cumulative product, also for elements of 0 : dx[i] = sum_j dy[j] * d y[j] / d x[i]", NULL,
     "loss:dy input:x axis=-1 exclusive=false reverse=false", "dx"},
    {0},
};

static weftStatus_t infer(struct descriptor *descriptor) {
    struct cumprod_backward_op *op = (struct cumprod_backward_op *)descriptor;
    TRY(check_axis(descriptor, op->axis, "x", op->x));
    tensor_infer_type(op->dx, tensor_result_type(op->dx, (weftDataType_t)op->x->type, (weftDataType_t)op->math));
    tensor_infer_like(op->dx, op->x);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct cumprod_backward_op *op = (const struct cumprod_backward_op *)descriptor;
    if (!dtype_is_float((weftDataType_t)op->x->type))
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: x has data type %s, which has no gradient. Use a floating-point type.",
             descriptor_label(descriptor), dtype_of((weftDataType_t)op->x->type)->name);
    TRY(check_dims(descriptor, "dy", op->dy, op->x->dims.count, op->x->dims.at));
    return check_dims(descriptor, "dx", op->dx, op->x->dims.count, op->x->dims.at);
}

/* ---- As primitive operations ------------------------------------------------------------------------------------- */

struct parts {
    struct op_writer *w;
    const struct cumprod_backward_op *op;
    weftDataType_t math;
};

/* A packed tensor with the dims of x. */
static weftStatus_t add_tensor(const struct parts *p, weftDataType_t type, struct tensor **y) {
    TRY(op_writer_add_tensor(p->w, y, p->op->x, type));
    (*y)->strides.count = 0;
    tensor_infer_strides(*y, p->op->x);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t add_number(const struct parts *p, double number, struct tensor **y) {
    float narrow = (float)number;
    TRY(op_writer_add_tensor(p->w, y, p->op->x, p->math));
    (*y)->is_virtual = false;
    (*y)->is_constant = (*y)->is_by_value = true;
    for (int64_t i = 0; i < (*y)->dims.count; i++)
        (*y)->dims.at[i] = (*y)->strides.at[i] = 1;
    if (p->math == WEFT_DATA_DOUBLE)
        memcpy((*y)->constant, &number, sizeof number);
    else
        memcpy((*y)->constant, &narrow, sizeof narrow);
    (*y)->constant_address = (*y)->constant;
    return WEFT_STATUS_SUCCESS;
}

/* y: NULL before, or a given result. */
static weftStatus_t add(const struct parts *p, weftPointwiseMode_t mode, struct pointwise_operands operands,
                        struct tensor **y) {
    bool is_truth = mode == WEFT_POINTWISE_CMP_EQ || mode == WEFT_POINTWISE_LOGICAL_AND;
    if (!*y)
        TRY(add_tensor(p, is_truth ? WEFT_DATA_BYTE_BOOLEAN : p->math, y));
    operands.out = *y;
    return op_writer_add_pointwise(p->w, &p->op->base, mode, p->math, -1, operands);
}

static weftStatus_t select(const struct parts *p, struct tensor *where, struct tensor *x, struct tensor *otherwise,
                           struct tensor **y) {
    return add(p, WEFT_POINTWISE_BINARY_SELECT, (struct pointwise_operands){.x = x, .b = otherwise, .t = where}, y);
}

static weftStatus_t binary(const struct parts *p, weftPointwiseMode_t mode, struct tensor *x, struct tensor *b,
                           struct tensor **y) {
    return add(p, mode, (struct pointwise_operands){.x = x, .b = b}, y);
}

static weftStatus_t scan(const struct parts *p, weftReduceTensorOp_t mode, struct tensor *x, bool is_exclusive,
                         bool is_reversed, struct tensor **y) {
    struct scan_op *made;
    TRY(arena_alloc(p->w->arena, &made, sizeof *made));
    TRY(add_tensor(p, p->math, y));
    *made = (struct scan_op){.mode = (int32_t)mode,
                             .math = (int32_t)p->math,
                             .axis = p->op->axis,
                             .is_exclusive = is_exclusive,
                             .is_reversed = is_reversed,
                             .x = x,
                             .y = *y};
    op_writer_add(p->w, &made->base, &scan_op, &p->op->base);
    descriptor_mark_set(&made->base, WEFT_ATTR_OPERATION_SCAN_COMP_TYPE_EXT);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t decompose(const struct descriptor *descriptor, struct op_writer *w) {
    const struct cumprod_backward_op *op = (const struct cumprod_backward_op *)descriptor;
    bool is_double = op->x->type == WEFT_DATA_DOUBLE || op->math == WEFT_DATA_DOUBLE;
    const struct parts p = {w, op, is_double ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT};
    struct tensor *zero, *one, *is_zero = NULL, *count, *contained, *is_one = NULL, *is_first = NULL, *factors = NULL;
    struct tensor *products, *terms = NULL, *is_before = NULL, *has_none = NULL, *sum, *sum_at_zero, *share = NULL;
    struct tensor *early = NULL, *late = NULL, *at_zero = NULL, *dx = op->dx;
    TRY(add_number(&p, 0, &zero));
    TRY(add_number(&p, 1, &one));
    TRY(binary(&p, WEFT_POINTWISE_CMP_EQ, op->x, zero, &is_zero));
    TRY(scan(&p, WEFT_REDUCE_TENSOR_ADD, is_zero, false, op->is_reversed, &count)); /* zeros up to an element */
    TRY(binary(&p, WEFT_POINTWISE_CMP_EQ, count, one, &is_one));
    TRY(binary(&p, WEFT_POINTWISE_LOGICAL_AND, is_zero, is_one, &is_first));
    TRY(select(&p, is_first, one, op->x, &factors));
    TRY(scan(&p, WEFT_REDUCE_TENSOR_MUL, factors, op->is_exclusive, op->is_reversed, &products));
    TRY(binary(&p, WEFT_POINTWISE_MUL, op->dy, products, &terms));
    TRY(binary(&p, WEFT_POINTWISE_CMP_EQ, count, zero, &is_before)); /* elements before the first zero */
    has_none = is_before; /* products without a zero; those of an exclusive scan contain one element less */
    if (op->is_exclusive) {
        has_none = contained = NULL;
        TRY(scan(&p, WEFT_REDUCE_TENSOR_ADD, is_zero, true, op->is_reversed, &contained));
        TRY(binary(&p, WEFT_POINTWISE_CMP_EQ, contained, zero, &has_none));
    }
    TRY(select(&p, has_none, terms, zero, &early));
    TRY(select(&p, has_none, zero, terms, &late));
    TRY(scan(&p, WEFT_REDUCE_TENSOR_ADD, early, op->is_exclusive, !op->is_reversed, &sum));
    TRY(scan(&p, WEFT_REDUCE_TENSOR_ADD, late, false, !op->is_reversed, &sum_at_zero));
    TRY(binary(&p, WEFT_POINTWISE_DIV, sum, op->x, &share));
    TRY(select(&p, is_first, sum_at_zero, zero, &at_zero));
    return select(&p, is_before, share, at_zero, &dx);
}

const struct op cumprod_backward_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_CUMPROD_BWD_DESCRIPTOR_EXT,
            .name = "cumprod_backward",
            .doc = "gradient of a cumulative product",
            .size = sizeof(struct cumprod_backward_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &cumprod_backward_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .decompose = decompose,
};
