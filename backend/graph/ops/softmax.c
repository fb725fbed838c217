/* SPDX-License-Identifier: Apache-2.0 */
/* softmax: m = max(x, sink), s = sum of e^(x - m) + e^(sink - m), y = e^(x - m) / s, along one dimension.
   A row without weight (empty, or all -inf and no sink) has y = 0, s = 0 and statistics of -inf. In a row with +inf,
   the infinite elements share the weight equally. NaN propagates to its whole row. With infinite_is_nan, y is NaN in
   both kinds of rows, because e^(inf - inf) is; frameworks have this rule. */
#include "graph/ops/softmax.h"
#include "graph/expansion.h"

#include <math.h>

static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct softmax_op, x, WEFT_ATTR_OPERATION_SOFTMAX_XDESC, "x", .required = true,
               .shape = "[d..]", .doc = "scores"),
    TENSOR_ROW(ROLE_INPUT, struct softmax_op, sink, WEFT_ATTR_OPERATION_SOFTMAX_SINK_DESC, "sink",
               .shape = "like stats, or 1s: [1,H,1,1]",
               .doc = "score that is included in each row's maximum and sum but has no element of y"),
    TENSOR_ROW(ROLE_OUTPUT, struct softmax_op, y, WEFT_ATTR_OPERATION_SOFTMAX_YDESC, "y", .required = true,
               .shape = "like x", .in_place = "x", .doc = "weights"),
    TENSOR_ROW(ROLE_OUTPUT, struct softmax_op, stats, WEFT_ATTR_OPERATION_SOFTMAX_STATS_DESC, "stats",
               .shape = "like x, 1 along the axis", .doc = "max + ln(sum_exp), the logarithm of the sum of e^x"),
    TENSOR_ROW(ROLE_OUTPUT, struct softmax_op, max, WEFT_ATTR_OPERATION_SOFTMAX_MAX_DESC, "max",
               .shape = "like x, 1 along the axis", .doc = "largest score of the row, the sink included"),
    TENSOR_ROW(ROLE_OUTPUT, struct softmax_op, sum_exp, WEFT_ATTR_OPERATION_SOFTMAX_SUM_EXP_DESC, "sum_exp",
               .shape = "like x, 1 along the axis", .doc = "sum of e^(x - max), the sink included"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct softmax_op, is_stats_log2, WEFT_ATTR_OPERATION_SOFTMAX_STATS_LOG2, "stats_log2",
              .doc = "true: stats is a base-2 logarithm"),
    VALUE_ROW(WEFT_TYPE_BOOLEAN, struct softmax_op, is_infinite_nan, WEFT_ATTR_OPERATION_SOFTMAX_INFINITE_IS_NAN_EXT,
              "infinite_is_nan",
              .doc = "true: y is NaN in rows whose largest element is infinite, of either sign; default: such rows "
                     "share their weight among elements of +inf, and rows of -inf are 0"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct softmax_op, math, WEFT_ATTR_OPERATION_SOFTMAX_COMP_TYPE_EXT,
              "compute_data_type", .doc = "compute type of weights and statistics"),
    VALUE_ROW(WEFT_TYPE_INT64, struct softmax_op, axis, WEFT_ATTR_OPERATION_SOFTMAX_AXIS_EXT, "axis", .initial = -1,
              .least = -WEFT_DIM_MAX, .most = WEFT_DIM_MAX - 1,
              .doc = "dimension whose elements sum to 1; negative values count from the last"),
};

static const struct method methods[] = {
    {"softmax", "weights that sum to 1 along one dimension : y = exp(x - max) / sum(exp(x - max))", NULL,
     "input:x axis=None sink=None stats_log2=false infinite_is_nan=false", "y stats max sum_exp"},
    {0},
};

/* [d.., 1, d..]: one element per row. */
static struct dims statistic_dims(const struct softmax_op *op) {
    struct dims dims = op->x->dims;
    dims.at[softmax_axis(op)] = 1;
    return dims;
}

/* y has the dims of x; statistics have one element per row, in the order of x. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct softmax_op *op = (struct softmax_op *)descriptor;
    /* Checked before softmax_axis, which assumes a legal axis. */
    TRY(check_axis(descriptor, op->axis, "x", op->x));
    struct dims dims = statistic_dims(op);
    struct tensor *statistics[] = {op->stats, op->max, op->sum_exp};
    for (int i = 0; i < 3; i++) {
        tensor_infer_dims(statistics[i], dims.count, dims.at);
        tensor_infer_strides(statistics[i], op->x);
        /* Statistics have the precision of the calculation, because gradients recompute the weights from them. */
        tensor_infer_type(statistics[i], op->x->type == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
    }
    tensor_infer_type(op->y, tensor_result_type(op->y, (weftDataType_t)op->x->type, (weftDataType_t)op->math));
    tensor_infer_like(op->y, op->x);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct softmax_op *op = (const struct softmax_op *)descriptor;
    struct tensor row = {.dims = statistic_dims(op)};
    /* A sink may be one number for all rows, per head, or per row. */
    TRY(check_broadcasts(descriptor, "sink", op->sink, &row));
    TRY(check_dims(descriptor, "y", op->y, op->x->dims.count, op->x->dims.at));
    TRY(check_dims(descriptor, "stats", op->stats, row.dims.count, row.dims.at));
    TRY(check_dims(descriptor, "max", op->max, row.dims.count, row.dims.at));
    return check_dims(descriptor, "sum_exp", op->sum_exp, row.dims.count, row.dims.at);
}

/* The larger number; NaN if either operand is NaN. */
static double larger(double a, double b) { return a >= b || isnan(a) ? a : b; }

/* exp(score - max), without NaN from infinities. */
static double weight(double score, double max) {
    if (score == max)
        return isinf(max) && max < 0 ? 0 : 1;
    return exp(score - max);
}

/* Computes row by row: the largest score, the sum of weights relative to it, then y and statistics. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct softmax_op *op = (const struct softmax_op *)descriptor;
    struct view x = view_of(bindings, op->x), sink = view_of(bindings, op->sink), y = view_of(bindings, op->y);
    struct view stats = view_of(bindings, op->stats), max = view_of(bindings, op->max),
                sum_exp = view_of(bindings, op->sum_exp);
    struct dims rows_of_x = statistic_dims(op);
    int axis = softmax_axis(op);
    int64_t index[WEFT_DIM_MAX], element[WEFT_DIM_MAX];
    for (bool more = index_begin(index, x.rank, rows_of_x.at); more; more = index_next(index, x.rank, rows_of_x.at)) {
        /* `index` is 0 along the axis; `element` iterates over the row. */
        for (int i = 0; i < x.rank; i++)
            element[i] = index[i];
        /* An absent sink has weight 0, like a score of -inf. */
        double extra = view_load_or(&sink, index, -INFINITY), m = extra;
        for (element[axis] = 0; element[axis] < x.dims[axis]; element[axis]++)
            m = larger(m, view_load(&x, element));
        double sum = weight(extra, m);
        for (element[axis] = 0; element[axis] < x.dims[axis]; element[axis]++)
            sum += weight(view_load(&x, element), m);
        bool is_nan = op->is_infinite_nan && isinf(m);
        /* Avoids 0 / 0 for a row without weight. */
        for (element[axis] = 0; y.data && element[axis] < x.dims[axis]; element[axis]++)
            view_store(&y, element, is_nan ? NAN : sum == 0 ? 0 : weight(view_load(&x, element), m) / sum);
        /* log2(e) is 1 / ln 2. */
        view_store_if(&stats, index, (m + log(sum)) * (op->is_stats_log2 ? 1 / log(2) : 1));
        view_store_if(&max, index, m);
        view_store_if(&sum_exp, index, sum);
    }
}

/* ---- As instructions --------------------------------------------------------------------------------------------- */

/* With joined statistics, WEIGHTS is the largest score and also carries the sum, which SECOND extracts. */
int softmax_expand_peak(struct expansion *e, int x) {
    return expand(e, e->method == STATISTICS_IN_TURN ? OPCODE_LARGEST : OPCODE_WEIGHTS, x, -1);
}

/* SHIFT replaces a peak of -inf by 0, so that scores of -inf have weight 0 instead of NaN. */
int softmax_expand_weight(struct expansion *e, int x, int peak) {
    return expand(e, OPCODE_WEIGHT, x, expand(e, OPCODE_SHIFT, peak, -1));
}

int softmax_expand_sum(struct expansion *e, int weight, int peak) {
    return e->method == STATISTICS_IN_TURN ? expand_sum(e, weight) : expand(e, OPCODE_SECOND, peak, -1);
}

/* Adds the sink's weight to the sum, relative to the larger one of peak and sink. */
static int add_sink(struct expansion *e, int sum, int plain, int sink, int shift) {
    /* A joined sum is relative to the peak of the elements only; if the sum is computed in a second pass, its weights
       include the sink's peak. */
    if (e->method != STATISTICS_IN_TURN)
        sum = expand_multiply(e, sum, expand(e, OPCODE_ROW_WEIGHT, plain, shift));
    return expand_add(e, sum, expand(e, OPCODE_ROW_WEIGHT, sink, shift));
}

/* max + ln(sum), or its base-2 counterpart, if requested. */
static void expand_stats(struct expansion *e, const struct softmax_op *op, int peak, int sum) {
    if (!op->stats)
        return;
    int stats = expand_add(e, peak, expand(e, OPCODE_LOGARITHM, sum, -1));
    if (op->is_stats_log2)
        stats = expand_multiply(e, stats, expand_number(e, 1 / log(2)));
    expand_result(e, op->stats, stats);
}

/* The steps of the reference for one row. Peak and sum are computed in one reduction or in two, depending on the
   engine's method. */
static weftStatus_t expand_softmax(const struct descriptor *descriptor, struct expansion *e) {
    const struct softmax_op *op = (const struct softmax_op *)descriptor;
    e->dims = op->x->dims;
    for (int64_t d = 0; d < e->dims.count; d++)
        e->parts[d] = d == softmax_axis(op) ? 1 : e->dims.at[d];
    expansion_begin(e, op->math, op->x);
    TRY(expansion_needs_float(e, descriptor, "weights"));
    int x = expand_input(e, op->x), sink = expand_input(e, op->sink), zero = expand_number(e, 0);
    /* `plain` is the peak of the elements, `peak` includes the sink. */
    int plain = softmax_expand_peak(e, x), peak = sink < 0 ? plain : expand(e, OPCODE_LARGER, plain, sink);
    int weight = softmax_expand_weight(e, x, peak), sum = softmax_expand_sum(e, weight, plain);
    if (sink >= 0)
        sum = add_sink(e, sum, plain, sink, e->at[weight].arguments[1]);
    sum = expand_choice(e, OPCODE_IF_EQUAL, peak, peak, sum, peak); /* NaN propagates to its row */
    /* peak - peak is 0, or NaN if the peak is infinite. */
    int total = op->is_infinite_nan ? expand_add(e, sum, expand_subtract(e, peak, peak)) : sum;
    int share = expand_divide(e, expand_number(e, 1), total);
    /* One quotient per row and one product per element; rows without weight are 0. */
    int scale = op->is_infinite_nan ? share : expand_choice(e, OPCODE_IF_EQUAL, sum, zero, zero, share);
    expand_result(e, op->sum_exp, sum);
    expand_result(e, op->max, peak);
    expand_stats(e, op, peak, sum);
    expand_result(e, op->y, expand_multiply(e, weight, scale));
    return WEFT_STATUS_SUCCESS;
}

const struct op softmax_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR,
            .name = "softmax",
            .doc = "y = e^(x - max) / sum of e^(x - max), with the row's statistics",
            .size = sizeof(struct softmax_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &softmax_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .expand = expand_softmax,
    .reference = reference,
};
