/* SPDX-License-Identifier: Apache-2.0 */
/* dbn_weight: gradients of batch norm's scale and bias, and that of x as a sum of three terms per channel.
   With xhat = (x - mean) * inv and m elements in a channel: dscale = sum of dy * xhat, dbias = sum of dy, and dx =
   scale * inv * (dy - dbias / m - xhat * dscale / m) = eq_scale_dy * dy + eq_scale_x * x + eq_bias, where
   eq_scale_dy = scale * inv, eq_scale_x = -eq_scale_dy * inv * dscale / m,
   eq_bias = -eq_scale_dy * dbias / m - eq_scale_x * mean. */
#include "graph/ops/bn_bwd_weights.h"
#include "graph/expansion.h"
#include "graph/ops/genstats.h"

#define ROW(role, field, name, key, ...)                                                                               \
    TENSOR_ROW(role, struct bn_bwd_weights_op, field, WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_##name, key, __VA_ARGS__)
#define CHANNELS .shape = "[1, C, 1..]"
/* dscale and dbias are the parameters' gradients. eq_* are coefficients per channel, from which a subsequent pointwise
   pass or the prologue of a product can compute dx. */
static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct bn_bwd_weights_op, math, WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC,
              "compute_data_type", .doc = "accumulation type"),
    ROW(ROLE_INPUT, dy, DY_DESC, "dy", .required = true, .shape = "[N, C, spatial..]",
        .doc = "gradient of the norm's result"),
    ROW(ROLE_INPUT, x, X_DESC, "x", .required = true, .shape = "[N, C, spatial..]", .doc = "the norm's input"),
    ROW(ROLE_INPUT, mean, MEAN_DESC, "mean", CHANNELS, .required = true, .doc = "mean that the norm used"),
    ROW(ROLE_INPUT, inv_variance, INVSTD_DESC, "inv_variance", CHANNELS, .required = true,
        .doc = "1 / sqrt(variance + epsilon) that the norm used"),
    ROW(ROLE_INPUT, scale, BN_SCALE_DESC, "scale", CHANNELS, .doc = "gamma, 1 if absent"),
    ROW(ROLE_OUTPUT, dscale, DBN_SCALE_DESC, "dscale", CHANNELS, .doc = "gradient of gamma"),
    ROW(ROLE_OUTPUT, dbias, DBN_BIAS_DESC, "dbias", CHANNELS, .doc = "gradient of beta"),
    ROW(ROLE_OUTPUT, eq_scale_dy, EQ_DY_SCALE_DESC, "eq_scale_dy", CHANNELS, .doc = "factor of dy in dx"),
    ROW(ROLE_OUTPUT, eq_scale_x, EQ_X_SCALE_DESC, "eq_scale_x", CHANNELS, .doc = "factor of x in dx"),
    ROW(ROLE_OUTPUT, eq_bias, EQ_BIAS, "eq_bias", CHANNELS, .doc = "addend in dx"),
};
#undef ROW
#undef CHANNELS

static const struct method methods[] = {
    {"dbn_weight",
     "gradients of batch norm's parameters, and of x in three terms : dx = eq_scale_dy * dy + eq_scale_x * x + eq_bias",
     NULL, "dy x mean inv_variance scale", "dscale dbias eq_scale_dy eq_scale_x eq_bias"},
    {0},
};

/* Every output is per channel and has the precision of the calculation, because eq_* are used in further arithmetic on
   dy and x. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct bn_bwd_weights_op *op = (struct bn_bwd_weights_op *)descriptor;
    TRY(check_rank(descriptor, "x", op->x, 2, WEFT_DIM_MAX));
    struct dims dims = channel_dims(op->x);
    struct tensor *outputs[] = {op->dscale, op->dbias, op->eq_scale_dy, op->eq_scale_x, op->eq_bias};
    /* Unset strides become packed: [1, C, 1..] has only one order. */
    for (int i = 0; i < 5; i++) {
        tensor_infer_dims(outputs[i], dims.count, dims.at);
        tensor_infer_type(outputs[i], op->x->type == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
    }
    return WEFT_STATUS_SUCCESS;
}

/* dy has the dims of x; all other operands are per channel. */
static weftStatus_t check(const struct descriptor *descriptor) {
    const struct bn_bwd_weights_op *op = (const struct bn_bwd_weights_op *)descriptor;
    struct dims dims = channel_dims(op->x);
    /* Keys for messages. */
    const struct {
        const char *key;
        const struct tensor *tensor;
    } channels[] = {
        {"mean", op->mean},
        {"inv_variance", op->inv_variance},
        {"scale", op->scale},
        {"dscale", op->dscale},
        {"dbias", op->dbias},
        {"eq_scale_dy", op->eq_scale_dy},
        {"eq_scale_x", op->eq_scale_x},
        {"eq_bias", op->eq_bias},
    };
    /* Absent operands are accepted. */
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
        TRY(check_dims(descriptor, channels[i].key, channels[i].tensor, dims.count, dims.at));
    return check_dims(descriptor, "dy", op->dy, op->x->dims.count, op->x->dims.at);
}

/* One channel at a time: one pass for both sums, then the values that depend on them. Absent outputs are skipped. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct bn_bwd_weights_op *op = (const struct bn_bwd_weights_op *)descriptor;
    struct view x = view_of(bindings, op->x), dy = view_of(bindings, op->dy), scale = view_of(bindings, op->scale);
    struct view mean = view_of(bindings, op->mean), inv_variance = view_of(bindings, op->inv_variance);
    struct view dscale = view_of(bindings, op->dscale), dbias = view_of(bindings, op->dbias);
    struct view eq_scale_dy = view_of(bindings, op->eq_scale_dy), eq_scale_x = view_of(bindings, op->eq_scale_x);
    struct view eq_bias = view_of(bindings, op->eq_bias);
    struct dims channel = op->x->dims;
    /* Elements of one channel: all dims of x, with extent 1 along dimension 1. */
    channel.at[1] = 1;
    int64_t index[WEFT_DIM_MAX], at[WEFT_DIM_MAX] = {0}, *c = &at[1];
    for (; *c < x.dims[1]; ++*c) {
        double mu = view_load(&mean, at), inv = view_load(&inv_variance, at),
               factor = view_load_or(&scale, at, 1) * inv;
        double m = 0, sum = 0, weighted = 0; /* of dy, and of dy * xhat */
        for (bool more = index_begin(index, x.rank, channel.at); more; more = index_next(index, x.rank, channel.at)) {
            index[1] = *c; /* index_next resets it to 0 */
            double gradient = view_load(&dy, index);
            m += 1;
            sum += gradient;
            weighted += gradient * (view_load(&x, index) - mu) * inv;
        }
        /* An empty channel has no mean: its coefficients are 0. */
        double of_x = m > 0 ? -factor * inv * weighted / m : 0;
        view_store_if(&dscale, at, weighted);
        view_store_if(&dbias, at, sum);
        view_store_if(&eq_scale_dy, at, factor);
        view_store_if(&eq_scale_x, at, of_x);
        view_store_if(&eq_bias, at, m > 0 ? -factor * sum / m - of_x * mu : 0);
    }
}

/* a / length, or 0 for empty channels. */
static int mean_of(struct expansion *e, int a) {
    int length = expand(e, OPCODE_LENGTH, -1, -1), zero = expand_number(e, 0);
    return expand_choice(e, OPCODE_IF_GREATER, length, zero, expand_divide(e, a, length), zero);
}

/* The same formulas as values per row, where a row is a channel. */
static weftStatus_t expand_bn_bwd_weights(const struct descriptor *descriptor, struct expansion *e) {
    const struct bn_bwd_weights_op *op = (const struct bn_bwd_weights_op *)descriptor;
    expand_over_channels(e, op->x);
    expansion_begin(e, op->math, op->x);
    TRY(expansion_needs_float(e, descriptor, "statistics"));
    int x = expand_input(e, op->x), dy = expand_input(e, op->dy), mean = expand_input(e, op->mean);
    int inv = expand_input(e, op->inv_variance), scale = expand_input(e, op->scale), sum = expand_sum(e, dy);
    /* xhat is per element; the sum of its product with dy is per row. */
    int xhat = expand_multiply(e, expand_subtract(e, x, mean), inv);
    int weighted = expand_sum(e, expand_multiply(e, dy, xhat));
    int factor = scale < 0 ? inv : expand_multiply(e, scale, inv), minus = expand_negate(e, factor);
    /* -scale inv^2 dscale / m. */
    int of_x = mean_of(e, expand_multiply(e, expand_multiply(e, minus, inv), weighted));
    expand_result(e, op->dscale, weighted);
    expand_result(e, op->dbias, sum);
    expand_result(e, op->eq_scale_dy, factor);
    expand_result(e, op->eq_scale_x, of_x);
    if (op->eq_bias)
        expand_result(e, op->eq_bias,
                      expand_subtract(e, mean_of(e, expand_multiply(e, minus, sum)), expand_multiply(e, of_x, mean)));
    return WEFT_STATUS_SUCCESS;
}

const struct op bn_bwd_weights_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR,
            .name = "dbn_weight",
            .doc = "gradients of batch norm's scale and bias, and the coefficients of the gradient of x",
            .size = sizeof(struct bn_bwd_weights_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &bn_bwd_weights_op,
        },
    .methods = methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .expand = expand_bn_bwd_weights,
    .reference = reference,
};
