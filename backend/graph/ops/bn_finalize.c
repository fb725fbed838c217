/* SPDX-License-Identifier: Apache-2.0 */
/* bn_finalize: computes batch norm's statistics from per-channel sums (training) or running values (inference), and
   expresses the norm as one multiplication and one addition: y = eq_scale * x + eq_bias.
   mean = sum / n, variance = max(0, sq_sum / n - mean^2), inv = 1 / sqrt(variance + epsilon),
   eq_scale = scale * inv, eq_bias = bias - mean * eq_scale, running = (1 - f) * running + f * batch, where the running
   variance uses the unbiased one, variance * n / (n - 1). */
#include "graph/ops/bn_finalize.h"
#include "graph/expansion.h"

#include <math.h>

#define ROW(role, field, name, key, ...)                                                                               \
    TENSOR_ROW(role, struct bn_finalize_op, field, WEFT_ATTR_OPERATION_BN_FINALIZE_##name, key, __VA_ARGS__)
/* Per-channel operands have the rank of x, and extent 1 in every dimension except C. */
#define CHANNELS .shape = "[1, C, 1..]"
/* Training reads sums and writes the statistics of the batch; inference reads running values. eq_scale and eq_bias
   express the norm as one multiplication and one addition, which the prologue of a product can do. */
static const struct row rows[] = {
    VALUE_ROW(WEFT_TYPE_BN_FINALIZE_STATS_MODE, struct bn_finalize_op, mode, WEFT_ATTR_OPERATION_BN_FINALIZE_STATS_MODE,
              "mode", .doc = "TRAINING: statistics come from the sums; INFERENCE: from the running values"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct bn_finalize_op, math, WEFT_ATTR_OPERATION_BN_FINALIZE_MATH_PREC,
              "compute_data_type", .doc = "compute type of statistics"),
    ROW(ROLE_INPUT, sum, Y_SUM_DESC, "sum", CHANNELS, .doc = "sum of each channel; required in training"),
    ROW(ROLE_INPUT, sq_sum, Y_SQ_SUM_DESC, "sq_sum", CHANNELS,
        .doc = "sum of squares of each channel; required in training"),
    ROW(ROLE_INPUT, scale, SCALE_DESC, "scale", CHANNELS, .doc = "gamma, 1 if absent"),
    ROW(ROLE_INPUT, bias, BIAS_DESC, "bias", CHANNELS, .doc = "beta, 0 if absent"),
    ROW(ROLE_INPUT, epsilon, EPSILON_DESC, "epsilon", .required = true, .shape = "[1..]",
        .doc = "scalar added to the variance"),
    ROW(ROLE_INPUT, accum_count, ACCUM_COUNT_DESC, "accum_count", .shape = "[1..]",
        .doc = "scalar n, the number of elements in each sum; required in training"),
    ROW(ROLE_INPUT, momentum, EXP_AVERATE_FACTOR_DESC, "momentum", .shape = "[1..]",
        .doc = "scalar f: running = (1 - f) * running + f * batch"),
    ROW(ROLE_INPUT, in_running_mean, PREV_RUNNING_MEAN_DESC, "in_running_mean", CHANNELS,
        .doc = "running mean before this step"),
    ROW(ROLE_INPUT, in_running_var, PREV_RUNNING_VAR_DESC, "in_running_var", CHANNELS,
        .doc = "running variance before this step"),
    ROW(ROLE_OUTPUT, eq_scale, EQ_SCALE_DESC, "eq_scale", CHANNELS, .doc = "s of the norm written as s * x + t"),
    ROW(ROLE_OUTPUT, eq_bias, EQ_BIAS_DESC, "eq_bias", CHANNELS, .doc = "t of the norm written as s * x + t"),
    ROW(ROLE_OUTPUT, saved_mean, SAVED_MEAN_DESC, "saved_mean", CHANNELS, .doc = "mean that the norm uses"),
    ROW(ROLE_OUTPUT, saved_inv_variance, SAVED_INV_STD_DESC, "saved_inv_variance", CHANNELS,
        .doc = "1 / sqrt(variance + epsilon) that the norm uses"),
    ROW(ROLE_OUTPUT, out_mean, UPDATED_RUNNING_MEAN_DESC, "out_mean", CHANNELS, .in_place = "in_running_mean",
        .doc = "running mean after this step; that of the batch if there was none before; unchanged in inference"),
    ROW(ROLE_OUTPUT, out_var, UPDATED_RUNNING_VAR_DESC, "out_var", CHANNELS, .in_place = "in_running_var",
        .doc = "running variance after this step; that of the batch if there was none before; unchanged in inference"),
};
#undef ROW
#undef CHANNELS

static const struct method methods[] = {
    {"bn_finalize",
     "batch norm's statistics from per-channel sums : eq_scale = scale * inv_variance, eq_bias = bias - mean * "
     "eq_scale",
     NULL,
     "sum sq_sum scale bias epsilon accum_count in_running_mean=None in_running_var=None momentum=None "
     "stats_mode:mode=TRAINING",
     "eq_scale eq_bias saved_mean saved_inv_variance out_mean out_var"},
    {0},
};

static bool is_training(const struct bn_finalize_op *op) { return op->mode == WEFT_BN_FINALIZE_STATISTICS_TRAINING; }

/* Training requires the sums, inference the running values; updating the running values requires the factor. */
static weftStatus_t check_sources(const struct bn_finalize_op *op) {
    const char *label = descriptor_label(&op->base);
    if (is_training(op) && !(op->sum && op->sq_sum && op->accum_count))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: mode TRAINING computes statistics from sum, sq_sum and accum_count; %s is not set. Set all three.",
             label,
             !op->sum      ? "sum"
             : !op->sq_sum ? "sq_sum"
                           : "accum_count");
    if (!is_training(op) && !(op->in_running_mean && op->in_running_var))
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: mode INFERENCE uses statistics from in_running_mean and in_running_var; %s is not set. Set both.",
             label, op->in_running_mean ? "in_running_var" : "in_running_mean");
    /* Without previous values, the statistics of the batch become the running ones; no factor is needed. */
    bool updates = (op->in_running_mean && op->out_mean) || (op->in_running_var && op->out_var);
    if (is_training(op) && updates && !op->momentum)
        FAIL(WEFT_STATUS_BAD_PARAM,
             "%s: momentum is required to update running statistics, and was not set. Set it to a scalar tensor.",
             label);
    return WEFT_STATUS_SUCCESS;
}

/* The tensor whose shape all others must have. */
static const struct tensor *source(const struct bn_finalize_op *op) {
    return is_training(op) ? op->sum : op->in_running_mean;
}

/* All outputs are per channel, with the dims of the source. */
static weftStatus_t infer(struct descriptor *descriptor) {
    struct bn_finalize_op *op = (struct bn_finalize_op *)descriptor;
    TRY(check_sources(op));
    const struct tensor *like = source(op);
    TRY(check_rank(descriptor, is_training(op) ? "sum" : "in_running_mean", like, 2, WEFT_DIM_MAX));
    struct tensor *outputs[] = {op->eq_scale,           op->eq_bias,  op->saved_mean,
                                op->saved_inv_variance, op->out_mean, op->out_var};
    for (int i = 0; i < 6; i++) {
        tensor_infer_dims(outputs[i], like->dims.count, like->dims.at);
        /* Statistics are FLOAT or better even if x is narrow, because they are computed from differences of large
           sums. */
        tensor_infer_type(outputs[i], like->type == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
    }
    return WEFT_STATUS_SUCCESS;
}

/* All per-channel operands have the dims of the source, of which only C may differ from 1. */
static weftStatus_t check(const struct descriptor *descriptor) {
    const struct bn_finalize_op *op = (const struct bn_finalize_op *)descriptor;
    struct dims dims = source(op)->dims;
    /* The source itself must be [1, C, 1..], too. */
    for (int64_t i = 0; i < dims.count; i++)
        if (i != 1)
            dims.at[i] = 1;
    const struct {
        const char *key;
        const struct tensor *tensor;
    } channels[] = {
        {"sum", op->sum},
        {"sq_sum", op->sq_sum},
        {"scale", op->scale},
        {"bias", op->bias},
        {"in_running_mean", op->in_running_mean},
        {"in_running_var", op->in_running_var},
        {"eq_scale", op->eq_scale},
        {"eq_bias", op->eq_bias},
        {"saved_mean", op->saved_mean},
        {"saved_inv_variance", op->saved_inv_variance},
        {"out_mean", op->out_mean},
        {"out_var", op->out_var},
    };
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
        TRY(check_dims(descriptor, channels[i].key, channels[i].tensor, dims.count, dims.at));
    TRY(check_scalar(descriptor, "epsilon", op->epsilon));
    TRY(check_scalar(descriptor, "accum_count", op->accum_count));
    return check_scalar(descriptor, "momentum", op->momentum);
}

/* One channel at a time: statistics, running values, then the norm as one multiplication and one addition. */
static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct bn_finalize_op *op = (const struct bn_finalize_op *)descriptor;
    struct view sum = view_of(bindings, op->sum), sq_sum = view_of(bindings, op->sq_sum);
    struct view scale = view_of(bindings, op->scale), bias = view_of(bindings, op->bias);
    struct view in_mean = view_of(bindings, op->in_running_mean), in_var = view_of(bindings, op->in_running_var);
    struct view eq_scale = view_of(bindings, op->eq_scale), eq_bias = view_of(bindings, op->eq_bias);
    struct view saved_mean = view_of(bindings, op->saved_mean), saved_inv = view_of(bindings, op->saved_inv_variance);
    struct view out_mean = view_of(bindings, op->out_mean), out_var = view_of(bindings, op->out_var);
    bool training = is_training(op);
    double n = view_scalar(bindings, op->accum_count, 0), epsilon = view_scalar(bindings, op->epsilon, 0);
    /* Without a previous running value, it becomes that of the batch. An empty batch changes nothing. */
    double f = training && n > 0 ? view_scalar(bindings, op->momentum, 1) : 0;
    int64_t index[WEFT_DIM_MAX] = {0}, *c = &index[1];
    /* `index` is [0, c, 0..]: the position of channel c in every operand. */
    for (; *c < source(op)->dims.at[1]; ++*c) {
        double mean, variance, unbiased = 0;
        if (training) {
            mean = n > 0 ? view_load(&sum, index) / n : 0;
            /* Rounding can make a variance of nearly 0 negative. */
            variance = n > 0 ? fmax(0, view_load(&sq_sum, index) / n - mean * mean) : 0;
            unbiased = n > 1 ? variance * n / (n - 1) : variance;
        } else {
            mean = view_load(&in_mean, index);
            variance = view_load(&in_var, index);
        }
        double inv = 1 / sqrt(variance + epsilon), factor = view_load_or(&scale, index, 1) * inv;
        double addend = view_load_or(&bias, index, 0) - mean * factor;
        /* f is 0 for inference and for empty batches, so that the previous value is unchanged. */
        view_store_if(&out_mean, index, (1 - f) * view_load_or(&in_mean, index, mean) + f * mean);
        view_store_if(&out_var, index, (1 - f) * view_load_or(&in_var, index, unbiased) + f * unbiased);
        view_store_if(&eq_scale, index, factor);
        view_store_if(&eq_bias, index, addend);
        view_store_if(&saved_mean, index, mean);
        view_store_if(&saved_inv, index, inv);
    }
}

/* ---- As instructions: every channel is a row of one element ------------------------------------------------------ */

/* a > b ? c : 0. */
static int if_greater(struct expansion *e, int a, int b, int c) {
    return expand_choice(e, OPCODE_IF_GREATER, a, b, c, expand_number(e, 0));
}

/* Values of the expansion, one per channel. */
struct batch {
    int mean, variance, unbiased, factor; /* factor -1: running values do not change */
};

/* Training: computes mean, variance and the factor of running values from the sums and their count. */
static struct batch batch_from_sums(struct expansion *e, const struct bn_finalize_op *op) {
    int n = expand_input(e, op->accum_count), sum = expand_input(e, op->sum), squares = expand_input(e, op->sq_sum);
    int momentum = expand_input(e, op->momentum), zero = expand_number(e, 0), one = expand_number(e, 1);
    /* The quotients by n = 0 are computed, but not selected: instructions have no branches. */
    struct batch b = {.mean = if_greater(e, n, zero, expand_divide(e, sum, n))};
    int raw = expand_subtract(e, expand_divide(e, squares, n), expand_multiply(e, b.mean, b.mean));
    b.variance = if_greater(e, n, zero, if_greater(e, raw, zero, raw));
    /* The unbiased variance is variance * n / (n - 1); for a single element it is the variance itself. */
    int corrected = expand_divide(e, expand_multiply(e, b.variance, n), expand_subtract(e, n, one));
    b.unbiased = expand_choice(e, OPCODE_IF_GREATER, n, one, corrected, b.variance);
    b.factor = if_greater(e, n, zero, momentum < 0 ? one : momentum);
    return b;
}

/* out = (1 - factor) in + factor batch; nothing if the output is absent. Without `in`, the batch's own value. */
static void expand_running(struct expansion *e, const struct tensor *out, const struct tensor *in, int batch,
                           int factor) {
    int before = out ? expand_input(e, in) : -1, old = before < 0 ? batch : before;
    if (!out)
        return;
    /* Inference: running values do not change. */
    if (factor < 0) {
        expand_result(e, out, old);
        return;
    }
    int rest = expand_multiply(e, expand_subtract(e, expand_number(e, 1), factor), old);
    expand_result(e, out, expand_add(e, rest, expand_multiply(e, factor, batch)));
}

/* The formulas of the reference, value by value. */
static weftStatus_t expand_bn_finalize(const struct descriptor *descriptor, struct expansion *e) {
    const struct bn_finalize_op *op = (const struct bn_finalize_op *)descriptor;
    expand_over_channels(e, source(op));
    expansion_begin(e, op->math, source(op));
    TRY(expansion_needs_float(e, descriptor, "statistics"));
    /* Inference: the running values are the statistics, and they are not updated. */
    struct batch b = {.factor = -1};
    int epsilon = expand_input(e, op->epsilon);
    if (is_training(op))
        b = batch_from_sums(e, op);
    else
        b = (struct batch){expand_input(e, op->in_running_mean), expand_input(e, op->in_running_var),
                           expand_number(e, 0), -1};
    /* Both modes continue in the same way from mean and variance. */
    int inv = expand_inverse_deviation(e, b.variance, epsilon);
    int scale = expand_input(e, op->scale), bias = expand_input(e, op->bias);
    int eq_scale = scale < 0 ? inv : expand_multiply(e, scale, inv), shift = expand_multiply(e, b.mean, eq_scale);
    /* The running variance uses the unbiased one, like the reference. */
    expand_running(e, op->out_mean, op->in_running_mean, b.mean, b.factor);
    expand_running(e, op->out_var, op->in_running_var, b.unbiased, b.factor);
    expand_result(e, op->eq_scale, eq_scale);
    expand_result(e, op->eq_bias, bias < 0 ? expand_negate(e, shift) : expand_subtract(e, bias, shift));
    expand_result(e, op->saved_mean, b.mean);
    expand_result(e, op->saved_inv_variance, inv);
    return WEFT_STATUS_SUCCESS;
}

const struct op bn_finalize_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR,
            .name = "bn_finalize",
            .doc = "batch norm's statistics, and the norm as one scale and bias, from per-channel sums",
            .size = sizeof(struct bn_finalize_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &bn_finalize_op,
        },
    .methods = methods,
    .infer = infer,
    .cudnn_strides = op_channels_last,
    .check = check,
    .expand = expand_bn_finalize,
    .reference = reference,
};
