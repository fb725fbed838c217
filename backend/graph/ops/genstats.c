/* SPDX-License-Identifier: Apache-2.0 */
/* genstats: sum[c] = sum over n and space of x[n,c,..], sq_sum[c] = the same of x^2. The first half of batch norm's
   statistics; bn_finalize is the second. Between the two, sums of several devices may be added up. Plain sums, as cuDNN
   has them: a large common mean costs bits of the variance, which norm itself avoids. */
#include "graph/ops/genstats.h"
#include "graph/expansion.h"

/* There is only one mode; the row exists for graphs that set it. */
static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_GENSTATS_MODE, struct genstats_op, mode, WEFT_ATTR_OPERATION_GENSTATS_MODE, "mode",
              .doc = "statistics to compute: SUM_SQSUM"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct genstats_op, math, WEFT_ATTR_OPERATION_GENSTATS_MATH_PREC,
              "compute_data_type", .doc = "accumulation type"),
    TENSOR_ROW(ROLE_INPUT, struct genstats_op, x, WEFT_ATTR_OPERATION_GENSTATS_XDESC, "x", .required = true,
               .shape = "[N, C, spatial..]", .doc = "input"),
    TENSOR_ROW(ROLE_OUTPUT, struct genstats_op, sum, WEFT_ATTR_OPERATION_GENSTATS_SUMDESC, "sum", .required = true,
               .shape = "[1, C, 1..]", .doc = "sum of each channel"),
    TENSOR_ROW(ROLE_OUTPUT, struct genstats_op, sq_sum, WEFT_ATTR_OPERATION_GENSTATS_SQSUMDESC, "sq_sum",
               .required = true, .shape = "[1, C, 1..]", .doc = "sum of squares of each channel"),
};

static const struct method methods[] = {
    {"genstats", "sum and sum of squares of each channel : sum = sum(x), sq_sum = sum(x^2)", "mode=SUM_SQSUM",
     "input:x", "sum sq_sum"},
    {0},
};

/* Both sums are per channel, in FLOAT, or in DOUBLE if x is DOUBLE. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct genstats_op *op = (struct genstats_op *)descriptor;
    TRY(check_rank(descriptor, "x", op->x, 2, WEFT_DIM_MAX));
    struct dims dims = channel_dims(op->x);
    struct tensor *sums[] = {op->sum, op->sq_sum};
    for (int i = 0; i < 2; i++) {
        tensor_infer_dims(sums[i], dims.count, dims.at);
        /* Sums of many elements need more precision than x may have. */
        tensor_infer_type(sums[i], op->x->type == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct genstats_op *op = (const struct genstats_op *)descriptor;
    struct dims dims = channel_dims(op->x);
    TRY(check_dims(descriptor, "sum", op->sum, dims.count, dims.at));
    return check_dims(descriptor, "sq_sum", op->sq_sum, dims.count, dims.at);
}

/* One channel at a time, both sums in one pass. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct genstats_op *op = (const struct genstats_op *)descriptor;
    struct view x = view_of(bindings, op->x), sum = view_of(bindings, op->sum), sq_sum = view_of(bindings, op->sq_sum);
    struct dims channel = op->x->dims;
    /* Elements of one channel: all dims of x, with extent 1 along dimension 1. */
    channel.at[1] = 1;
    int64_t index[WEFT_DIM_MAX], in_channel[WEFT_DIM_MAX] = {0};
    for (int64_t c = 0; c < x.dims[1]; c++) {
        double total = 0, squares = 0;
        /* The sums of an empty channel are 0. */
        for (bool more = index_begin(index, x.rank, channel.at); more; more = index_next(index, x.rank, channel.at)) {
            index[1] = c; /* index_next resets it to 0 */
            double value = view_load(&x, index);
            total += value;
            squares += value * value;
        }
        /* [0, c, 0..]: the position of the channel in both sums. */
        in_channel[1] = c;
        view_store_if(&sum, in_channel, total);
        view_store_if(&sq_sum, in_channel, squares);
    }
}

/* Two sums over rows, where a row is a channel; both are computed in one pass over x. DOUBLE sums are accumulated in
   DOUBLE. */
static weftStatus_t expand_genstats(const struct descriptor *descriptor, struct expansion *e) {
    const struct genstats_op *op = (const struct genstats_op *)descriptor;
    bool is_double = op->sum->type == WEFT_DATA_DOUBLE || op->sq_sum->type == WEFT_DATA_DOUBLE;
    expand_over_channels(e, op->x);
    expansion_begin(e, is_double ? WEFT_DATA_DOUBLE : op->math, op->x);
    TRY(expansion_needs_float(e, descriptor, "statistics"));
    int x = expand_input(e, op->x);
    expand_result(e, op->sum, expand_sum(e, x));
    expand_result(e, op->sq_sum, expand_sum(e, expand_multiply(e, x, x)));
    return WEFT_STATUS_SUCCESS;
}

const struct op genstats_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR,
            .name = "genstats",
            .doc = "sum and sum of squares of each channel",
            .size = sizeof(struct genstats_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &genstats_op,
        },
    .methods = methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .expand = expand_genstats,
    .reference = reference,
};
