/* SPDX-License-Identifier: Apache-2.0 */
/* causal_conv1d: filters each channel of a sequence separately; outputs depend on current and previous steps only.
     s[b,d,l] = bias[d] + sum over k of weight[d,k] * x[b, d, l - K + 1 + k]     y = s, or s / (1 + e^-s) with SiLU
   x is 0 before the sequence, and ds is 0 after it. Gradients, where ds is dy, or dy times the derivative of SiLU at s:
     dx[b,d,l] = sum over k of weight[d,k] * ds[b, d, l + K - 1 - k]
     dweight[d,k] = sum over b and l of ds[b,d,l] * x[b, d, l - K + 1 + k]       dbias[d] = sum over b and l of ds
   The backward pass recomputes s, so that forward stores only y. Strides determine the layout: a tensor stored
   as [B, L, D] is x with a stride of 1 between channels. */
#include "graph/ops/causal_conv.h"
#include "graph/ops/pointwise.h"

/* ---- Rows and methods -------------------------------------------------------------------------------------------- */

/* B sequences of L steps and D channels; filters of K taps. */
static const struct row rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct causal_conv_op, x, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_XDESC_EXT, "x",
               .required = true, .shape = "[B, D, L]", .doc = "sequences"),
    TENSOR_ROW(ROLE_INPUT, struct causal_conv_op, weight, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_WEIGHT_DESC_EXT,
               "weight", .required = true, .shape = "[D, K]",
               .doc = "a filter per channel; its last tap multiplies x[l]"),
    TENSOR_ROW(ROLE_INPUT, struct causal_conv_op, bias, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_BIAS_DESC_EXT, "bias",
               .shape = "[D]", .doc = "added to each channel before the activation; unset: 0"),
    TENSOR_ROW(ROLE_OUTPUT, struct causal_conv_op, y, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_YDESC_EXT, "y",
               .required = true, .shape = "[B, D, L]", .doc = "result"),
    VALUE_ROW(WEFT_TYPE_POINTWISE_MODE, struct causal_conv_op, activation,
              WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_ACTIVATION_EXT, "activation", .initial = WEFT_POINTWISE_IDENTITY,
              .doc = "activation: IDENTITY, or SWISH_FWD, which is SiLU"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct causal_conv_op, math, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "accumulation type; DOUBLE for DOUBLE operands"),
};

static const struct row bwd_rows[] = {
    TENSOR_ROW(ROLE_INPUT, struct causal_conv_op, dy, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DYDESC_EXT, "dy",
               .required = true, .shape = "[B, D, L]", .doc = "gradient of the result"),
    TENSOR_ROW(ROLE_INPUT, struct causal_conv_op, x, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_XDESC_EXT, "x",
               .required = true, .shape = "[B, D, L]", .doc = "sequences"),
    TENSOR_ROW(ROLE_INPUT, struct causal_conv_op, weight, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_WEIGHT_DESC_EXT,
               "weight", .required = true, .shape = "[D, K]", .doc = "a filter per channel"),
    TENSOR_ROW(ROLE_INPUT, struct causal_conv_op, bias, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_BIAS_DESC_EXT, "bias",
               .shape = "[D]", .doc = "added to each channel before the activation; unset: 0"),
    TENSOR_ROW(ROLE_OUTPUT, struct causal_conv_op, dx, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DXDESC_EXT, "dx",
               .shape = "[B, D, L]", .doc = "gradient of x"),
    TENSOR_ROW(ROLE_OUTPUT, struct causal_conv_op, dweight, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DWEIGHT_DESC_EXT,
               "dweight", .shape = "[D, K]", .doc = "gradient of the filters"),
    TENSOR_ROW(ROLE_OUTPUT, struct causal_conv_op, dbias, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DBIAS_DESC_EXT, "dbias",
               .shape = "[D]", .doc = "gradient of the bias"),
    VALUE_ROW(WEFT_TYPE_POINTWISE_MODE, struct causal_conv_op, activation,
              WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_ACTIVATION_EXT, "activation", .initial = WEFT_POINTWISE_IDENTITY,
              .doc = "activation of the forward pass: IDENTITY, or SWISH_FWD, which is SiLU"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct causal_conv_op, math, WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "accumulation type; DOUBLE for DOUBLE operands"),
};

static const struct method methods[] = {
    {"causal_conv1d",
     "causal convolution of sequences, separately for each channel : y[b,d,l] = activation(bias[d] + sum_k weight[d,k] "
     "* x[b, d, l - K + 1 + k])",
     NULL, "input:x weight bias=None activation=IDENTITY", "y"},
    {0},
};

static const struct method bwd_methods[] = {
    {"causal_conv1d_backward",
     "gradients of causal_conv1d; ds = dy times the activation's derivative : dx[b,d,l] = sum_k weight[d,k] * "
     "ds[b, d, l + K - 1 - k], dweight[d,k] = sum_{b,l} ds[b,d,l] * x[b, d, l - K + 1 + k], dbias[d] = sum_{b,l} "
     "ds[b,d,l]",
     NULL, "loss:dy input:x weight bias=None activation=IDENTITY", "dx dweight dbias"},
    {0},
};

/* ---- Shapes and types -------------------------------------------------------------------------------------------- */

/* Runs before inference, which assumes correct ranks. */
static weftStatus_t check_inputs(const struct causal_conv_op *op) {
    const struct descriptor *descriptor = &op->base;
    TRY(check_rank(descriptor, "x", op->x, 3, 3));
    TRY(check_rank(descriptor, "weight", op->weight, 2, 2));
    if (op->weight->dims.at[0] != op->x->dims.at[CAUSAL_CHANNEL])
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: x is %s, of %lld channel%s, weight is %s. Give it one filter [D, K] per channel; [K, D] in memory is "
             "[D, K] with strides [1, D].",
             descriptor_label(descriptor), tensor_dims_text(op->x), (long long)op->x->dims.at[CAUSAL_CHANNEL],
             plural(op->x->dims.at[CAUSAL_CHANNEL]), tensor_dims_text(op->weight));
    if (causal_conv_taps(op) == 0)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH, "%s: weight is %s, without taps. Give filters at least one tap.",
             descriptor_label(descriptor), tensor_dims_text(op->weight));
    TRY(check_dims(descriptor, "bias", op->bias, 1, op->x->dims.at + CAUSAL_CHANNEL));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t infer(struct descriptor *descriptor) {
    struct causal_conv_op *op = (struct causal_conv_op *)descriptor;
    TRY(check_inputs(op));
    tensor_infer_type(op->y, tensor_result_type(op->y, (weftDataType_t)op->x->type, (weftDataType_t)op->math));
    tensor_infer_like(op->y, op->x);
    return WEFT_STATUS_SUCCESS;
}

static void infer_type(struct tensor *tensor, weftDataType_t natural, weftDataType_t math) {
    if (tensor)
        tensor_infer_type(tensor, tensor_result_type(tensor, natural, math));
}

/* Gradients have the types of the corresponding operands; the bias is optional. */
static weftStatus_t infer_bwd(struct descriptor *descriptor) {
    struct causal_conv_op *op = (struct causal_conv_op *)descriptor;
    TRY(check_inputs(op));
    weftDataType_t type = (weftDataType_t)op->weight->type, math = (weftDataType_t)op->math;
    infer_type(op->dx, (weftDataType_t)op->x->type, math);
    infer_type(op->dweight, type, math);
    infer_type(op->dbias, type, math);
    tensor_infer_like(op->dx, op->x);
    tensor_infer_like(op->dweight, op->weight);
    tensor_infer_dims(op->dbias, 1, op->x->dims.at + CAUSAL_CHANNEL);
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t check(const struct descriptor *descriptor) {
    const struct causal_conv_op *op = (const struct causal_conv_op *)descriptor;
    const struct tensor *tensors[] = {op->x, op->weight, op->bias, op->y, op->dy, op->dx, op->dweight, op->dbias};
    static const char *const keys[] = {"x", "weight", "bias", "y", "dy", "dx", "dweight", "dbias"};
    for (int i = 0; i < 8; i++)
        TRY(check_float(descriptor, keys[i], tensors[i]));
    if (op->activation != WEFT_POINTWISE_IDENTITY && op->activation != WEFT_POINTWISE_SWISH_FWD)
        FAIL(WEFT_STATUS_BAD_PARAM, "%s: activation is %s. Use IDENTITY or SWISH_FWD (SiLU).",
             descriptor_label(descriptor), pointwise_find_mode(op->activation)->method);
    TRY(check_dims(descriptor, "y", op->y, 3, op->x->dims.at));
    TRY(check_dims(descriptor, "dy", op->dy, 3, op->x->dims.at));
    TRY(check_dims(descriptor, "dx", op->dx, 3, op->x->dims.at));
    TRY(check_dims(descriptor, "dweight", op->dweight, 2, op->weight->dims.at));
    return check_dims(descriptor, "dbias", op->dbias, 1, op->x->dims.at + CAUSAL_CHANNEL);
}

/* ---- Reference --------------------------------------------------------------------------------------------------- */

struct views {
    struct view x, weight, bias, dy;
};

static double tap(const struct views *v, int64_t d, int64_t k) { return view_load(&v->weight, (int64_t[]){d, k}); }

/* x[b,d,l], or 0 before the sequence. */
static double step_of(const struct views *v, int64_t b, int64_t d, int64_t l) {
    return l < 0 ? 0 : view_load(&v->x, (int64_t[]){b, d, l});
}

static double sum_of(const struct views *v, int64_t b, int64_t d, int64_t l) {
    int64_t taps = v->weight.dims[1];
    double sum = view_load_or(&v->bias, &d, 0);
    for (int64_t k = 0; k < taps; k++)
        sum += tap(v, d, k) * step_of(v, b, d, l - taps + 1 + k);
    return sum;
}

static struct views views_of(const struct causal_conv_op *op, const struct bindings *bindings) {
    return (struct views){view_of(bindings, op->x), view_of(bindings, op->weight), view_of(bindings, op->bias),
                          view_of(bindings, op->dy)};
}

static const struct pointwise_parameters silu = {.beta = 1};

static void reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct causal_conv_op *op = (const struct causal_conv_op *)descriptor;
    struct views v = views_of(op, bindings);
    struct view y = view_of(bindings, op->y);
    int64_t at[3];
    for (bool more = index_begin(at, 3, v.x.dims); more; more = index_next(at, 3, v.x.dims)) {
        double s = sum_of(&v, at[CAUSAL_BATCH], at[CAUSAL_CHANNEL], at[CAUSAL_TIME]);
        if (causal_conv_is_silu(op))
            s = pointwise_find_mode(WEFT_POINTWISE_SWISH_FWD)->evaluate(s, 0, 0, &silu);
        view_store_if(&y, at, s);
    }
}

/* Computes ds of each step of one channel of a sequence. */
static void gradients_of_sums(const struct causal_conv_op *op, const struct views *v, int64_t b, int64_t d,
                              double *ds) {
    for (int64_t l = 0; l < v->x.dims[CAUSAL_TIME]; l++) {
        ds[l] = view_load(&v->dy, (int64_t[]){b, d, l});
        if (causal_conv_is_silu(op))
            ds[l] = pointwise_find_mode(WEFT_POINTWISE_SWISH_BWD)->evaluate(sum_of(v, b, d, l), ds[l], 0, &silu);
    }
}

static void reference_bwd(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct causal_conv_op *op = (const struct causal_conv_op *)descriptor;
    struct views v = views_of(op, bindings);
    struct view dx = view_of(bindings, op->dx), dweight = view_of(bindings, op->dweight),
                dbias = view_of(bindings, op->dbias);
    const int64_t batch = v.x.dims[CAUSAL_BATCH], steps = v.x.dims[CAUSAL_TIME], taps = v.weight.dims[1];
    /* For one channel: ds, then the sums over all sequences. */
    double *ds = bindings->scratch, *sums = ds + steps;
    for (int64_t d = 0; d < v.x.dims[CAUSAL_CHANNEL]; d++) {
        for (int64_t k = 0; k <= taps; k++)
            sums[k] = 0;
        for (int64_t b = 0; b < batch; b++) {
            gradients_of_sums(op, &v, b, d, ds);
            for (int64_t l = 0; l < steps; l++) {
                double sum = 0;
                for (int64_t k = 0; k < taps; k++) {
                    int64_t later = l + taps - 1 - k;
                    sum += tap(&v, d, k) * (later < steps ? ds[later] : 0);
                    sums[k] += ds[l] * step_of(&v, b, d, l - taps + 1 + k);
                }
                sums[taps] += ds[l];
                view_store_if(&dx, (int64_t[]){b, d, l}, sum);
            }
        }
        for (int64_t k = 0; k < taps; k++)
            view_store_if(&dweight, (int64_t[]){d, k}, sums[k]);
        view_store_if(&dbias, &d, sums[taps]);
    }
}

static int64_t bwd_scratch_bytes(const struct descriptor *descriptor) {
    const struct causal_conv_op *op = (const struct causal_conv_op *)descriptor;
    return (op->x->dims.at[CAUSAL_TIME] + causal_conv_taps(op) + 1) * (int64_t)sizeof(double);
}

/* One multiplication and one addition per tap. */
static double flops(const struct descriptor *descriptor) {
    const struct causal_conv_op *op = (const struct causal_conv_op *)descriptor;
    return 2.0 * (double)tensor_elements(op->x) * (double)causal_conv_taps(op);
}

/* The forward sums again, dx, and dweight. */
static double bwd_flops(const struct descriptor *descriptor) { return 3 * flops(descriptor); }

const struct op causal_conv_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_CAUSAL_CONV1D_FWD_DESCRIPTOR_EXT,
            .name = "causal_conv1d",
            .doc = "causal convolution of sequences, separately for each channel, with bias and SiLU",
            .size = sizeof(struct causal_conv_op),
            ROWS(rows),
            .finalize = op_finalize,
            .op = &causal_conv_op,
        },
    .methods = methods,
    .infer = infer,
    .check = check,
    .reference = reference,
    .flops = flops,
};

const struct op causal_conv_bwd_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_CAUSAL_CONV1D_BWD_DESCRIPTOR_EXT,
            .name = "causal_conv1d_backward",
            .doc = "gradients of a causal convolution's sequences, filters and bias",
            .size = sizeof(struct causal_conv_op),
            ROWS(bwd_rows),
            .finalize = op_finalize,
            .op = &causal_conv_bwd_op,
        },
    .methods = bwd_methods,
    .infer = infer_bwd,
    .check = check,
    .reference = reference_bwd,
    .scratch_bytes = bwd_scratch_bytes,
    .flops = bwd_flops,
};
