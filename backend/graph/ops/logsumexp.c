/* SPDX-License-Identifier: Apache-2.0 */
/* logsumexp: y = m + ln(sum of e^(x - m)) with m = max(x), over whole dimensions. Rows that are empty or all -inf give
   -inf, rows with +inf give +inf, and NaN propagates. The gradient of x is dy e^(x - y). */
#include "graph/ops/logsumexp.h"
#include "graph/expansion.h"
#include "graph/ops/reduction.h"
#include "graph/ops/softmax.h"

#include <math.h>

struct logsumexp_op {
    struct descriptor base;
    int32_t math;
    struct dims dims; /* as set by the user; the extents of y carry the same information */
    struct tensor *x, *y;
};

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct logsumexp_op, x, WEFT_ATTR_OPERATION_LOGSUMEXP_XDESC_EXT, "x", .required = true,
               .shape = "[d..]", .doc = "exponents"),
    TENSOR_ROW(ROLE_OUTPUT, struct logsumexp_op, y, WEFT_ATTR_OPERATION_LOGSUMEXP_YDESC_EXT, "y", .required = true,
               .shape = "[d.. with reduced extents 1]", .doc = "logarithm of the sum of e^x"),
    VALUE_ROW(WEFT_TYPE_INT64, struct logsumexp_op, dims, WEFT_ATTR_OPERATION_LOGSUMEXP_DIMS_EXT, "dims",
              .storage = STORE_DIMS, .least = -WEFT_DIM_MAX, .most = WEFT_DIM_MAX - 1,
              .doc = "dimensions to reduce if y's dims are unset; negative ones count from the last; unset: the last"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct logsumexp_op, math, WEFT_ATTR_OPERATION_LOGSUMEXP_COMP_TYPE_EXT,
              "compute_data_type", .doc = "compute type; DOUBLE for DOUBLE x"),
};

static const struct method methods[] = {
    {"logsumexp", "logarithm of the sum of exponentials over whole dimensions : y = log(sum(exp(x)))", NULL,
     "input:x dims=None", "y"},
    {0},
};

static weftStatus_t infer(struct descriptor *descriptor) {
    struct logsumexp_op *op = (struct logsumexp_op *)descriptor;
    bool named[WEFT_DIM_MAX] = {false};
    TRY(reduction_named_dims(descriptor, op->x, &op->dims, named));
    struct dims dims = op->x->dims;
    if (op->dims.count == 0)
        named[dims.count - 1] = true;
    for (int64_t i = 0; i < dims.count; i++)
        dims.at[i] = named[i] ? 1 : dims.at[i];
    tensor_infer_dims(op->y, dims.count, dims.at);
    tensor_infer_strides(op->y, op->x);
    tensor_infer_type(op->y, tensor_result_type(op->y, (weftDataType_t)op->x->type, (weftDataType_t)op->math));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct logsumexp_op *op = (const struct logsumexp_op *)descriptor;
    bool named[WEFT_DIM_MAX] = {false};
    TRY(reduction_named_dims(descriptor, op->x, &op->dims, named));
    TRY(check_rank(descriptor, "y", op->y, op->x->dims.count, op->x->dims.count));
    for (int64_t i = 0; i < op->x->dims.count; i++) {
        int64_t from = op->x->dims.at[i], to = op->y->dims.at[i];
        if (to != 1 && (to != from || named[i]))
            FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                 "%s: dimension %lld is %lld in x %s and %lld in y %s. In y make it %s.", descriptor_label(descriptor),
                 (long long)i, (long long)from, tensor_dims_text(op->x), (long long)to, tensor_dims_text(op->y),
                 named[i] ? "1, because attribute dims names it" : "equal or 1");
    }
    return WEFT_STATUS_SUCCESS;
}

/* The largest element of the row at `index`, to which NaN propagates, and the sum of e^(x - shift). */
static double largest_of(const struct view *x, const int64_t *index, const int64_t *row) {
    int64_t member[WEFT_DIM_MAX], at[WEFT_DIM_MAX];
    double most = -INFINITY;
    for (bool more = index_begin(member, x->rank, row); more; more = index_next(member, x->rank, row)) {
        for (int i = 0; i < x->rank; i++)
            at[i] = index[i] + member[i];
        double value = view_load(x, at);
        most = value > most || isnan(value) ? value : most;
    }
    return most;
}

static double sum_of(const struct view *x, const int64_t *index, const int64_t *row, double shift) {
    int64_t member[WEFT_DIM_MAX], at[WEFT_DIM_MAX];
    double sum = 0;
    for (bool more = index_begin(member, x->rank, row); more; more = index_next(member, x->rank, row)) {
        for (int i = 0; i < x->rank; i++)
            at[i] = index[i] + member[i];
        sum += exp(view_load(x, at) - shift);
    }
    return sum;
}

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct logsumexp_op *op = (const struct logsumexp_op *)descriptor;
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y);
    int64_t index[WEFT_DIM_MAX], row[WEFT_DIM_MAX];
    if (!y.data)
        return;
    for (int i = 0; i < x.rank; i++)
        row[i] = y.dims[i] == x.dims[i] ? 1 : x.dims[i];
    for (bool more = index_begin(index, y.rank, y.dims); more; more = index_next(index, y.rank, y.dims)) {
        double most = largest_of(&x, index, row);
        /* An infinite or NaN maximum is the result; inf - inf would be NaN. */
        view_store(&y, index, isfinite(most) ? most + log(sum_of(&x, index, row, most)) : most);
    }
}

static double flops(const struct descriptor *descriptor) {
    return 2 * (double)tensor_elements(((const struct logsumexp_op *)descriptor)->x);
}

static weftStatus_t expand_logsumexp(const struct descriptor *descriptor, struct expansion *e) {
    const struct logsumexp_op *op = (const struct logsumexp_op *)descriptor;
    e->dims = op->x->dims;
    for (int64_t d = 0; d < e->dims.count; d++)
        e->parts[d] = op->y->dims.at[d];
    expansion_begin(e, op->math, op->x);
    TRY(expansion_needs_float(e, descriptor, "a logarithm"));
    int x = expand_input(e, op->x), peak = softmax_expand_peak(e, x);
    int weight = softmax_expand_weight(e, x, peak), sum = softmax_expand_sum(e, weight, peak);
    sum = expand_choice(e, OPCODE_IF_EQUAL, peak, peak, sum, peak); /* NaN propagates to its row */
    expand_result(e, op->y, expand_add(e, peak, expand(e, OPCODE_LOGARITHM, sum, -1)));
    return WEFT_STATUS_SUCCESS;
}

const struct op logsumexp_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_LOGSUMEXP_DESCRIPTOR_EXT,
            .name = "logsumexp",
            .doc = "y = ln(sum of e^x) over whole dimensions",
            .size = sizeof(struct logsumexp_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &logsumexp_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .expand = expand_logsumexp,
    .reference = reference,
    .flops = flops,
};
