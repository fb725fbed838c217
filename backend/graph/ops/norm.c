/* SPDX-License-Identifier: Apache-2.0 */
/* norm: xhat = (x - mean) * inv, inv = 1 / sqrt(variance + epsilon), y = scale * xhat + bias; and its gradients.
   The mode determines which elements share statistics (struct norm_shape). Everything else is common to all modes,
   except that RMS norm has the mean 0, and that batch norm maintains running statistics and uses them, or given ones,
   for inference.
   Backward, with g = scale * dy and means over the elements that share statistics:
   dx = inv * (g - mean(g) - xhat * mean(g * xhat)), dscale = sum of dy * xhat, dbias = sum of dy. */
#include "graph/ops/norm.h"

#include <math.h>

static const char *const mode_names[] = {
    [WEFT_LAYER_NORM] = "LAYER_NORM", [WEFT_INSTANCE_NORM] = "INSTANCE_NORM", [WEFT_BATCH_NORM] = "BATCH_NORM",
    [WEFT_GROUP_NORM] = "GROUP_NORM", [WEFT_RMS_NORM] = "RMS_NORM",           [WEFT_ADA_LAYER_NORM] = "ADA_LAYER_NORM",
};

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Texts for the documentation: dims of statistics, and of scale and bias. */
#define STATISTICS_SHAPE "x's extents, 1 on the normalised dimensions; GROUP_NORM: [N,groups,1..]"
#define AFFINE_SHAPE "[1,C,1..]; layer norms: x's extents on the normalised dimensions"

#define ROW(role, field, name, key, ...)                                                                               \
    TENSOR_ROW(role, struct norm_forward, field, WEFT_ATTR_OPERATION_NORM_FWD_##name, key, __VA_ARGS__)
/* The rows declare mean and inv_variance as outputs; forward_role turns them into inputs for batch norm's inference. */
static const struct row forward_rows[] = {
    VALUE_ROW(WEFT_TYPE_NORM_MODE, struct norm_forward, mode, WEFT_ATTR_OPERATION_NORM_FWD_MODE, "mode",
              .required = true, .doc = "which elements share statistics"),
    VALUE_ROW(WEFT_TYPE_NORM_FWD_PHASE, struct norm_forward, phase, WEFT_ATTR_OPERATION_NORM_FWD_PHASE, "phase",
              .required = true, .doc = "INFERENCE: batch norm uses statistics from its operands"),
    ROW(ROLE_INPUT, x, XDESC, "x", .required = true, .shape = "[N, C, spatial..] or [batch.., normalised..]",
        .doc = "input"),
    ROW(ROLE_INPUT, scale, SCALE_DESC, "scale", .shape = AFFINE_SHAPE,
        .doc = "gamma, 1 if absent; layer norms normalise the dimensions in which its extent is not 1; if it is "
               "absent, all except the first"),
    ROW(ROLE_INPUT, bias, BIAS_DESC, "bias", .shape = AFFINE_SHAPE, .doc = "beta, 0 if absent"),
    ROW(ROLE_INPUT, epsilon, EPSILON_DESC, "epsilon", .shape = "[1..]",
        .doc = "scalar added to the variance; not used if inv_variance is given"),
    ROW(ROLE_INPUT, momentum, EXP_AVG_FACTOR_DESC, "momentum", .shape = "[1..]",
        .doc = "scalar f of batch norm: running = (1 - f) * running + f * batch"),
    ROW(ROLE_INPUT, in_running_mean, INPUT_RUNNING_MEAN_DESC, "in_running_mean", .shape = "[1,C,1..]",
        .doc = "batch norm: running mean before this step"),
    ROW(ROLE_INPUT, in_running_var, INPUT_RUNNING_VAR_DESC, "in_running_var", .shape = "[1,C,1..]",
        .doc = "batch norm: running variance before this step"),
    ROW(ROLE_OUTPUT, y, YDESC, "y", .required = true, .shape = "like x", .in_place = "x", .doc = "result"),
    ROW(ROLE_OUTPUT, mean, MEAN_DESC, "mean", .shape = STATISTICS_SHAPE,
        .doc = "mean; an input of batch norm's inference; RMS_NORM has none"),
    ROW(ROLE_OUTPUT, inv_variance, INV_VARIANCE_DESC, "inv_variance", .shape = STATISTICS_SHAPE,
        .doc = "1 / sqrt(variance + epsilon), RMS_NORM: 1 / sqrt(mean of x^2 + epsilon); an input of batch norm's "
               "inference"),
    ROW(ROLE_OUTPUT, out_mean, OUTPUT_RUNNING_MEAN_DESC, "out_mean", .shape = "[1,C,1..]",
        .in_place = "in_running_mean",
        .doc = "batch norm's training: running mean after this step; that of the batch if there was none before"),
    ROW(ROLE_OUTPUT, out_var, OUTPUT_RUNNING_VAR_DESC, "out_var", .shape = "[1,C,1..]", .in_place = "in_running_var",
        .doc = "batch norm's training: running variance after this step, updated with the unbiased variance"),
    ROW(ROLE_INPUT, peer_stats, PEER_STAT_DESCS, "peer_stats", .storage = STORE_LIST,
        .doc = "buffers to share sums with other devices; must be empty"),
    /* Weft's own attributes come last. */
    VALUE_ROW(WEFT_TYPE_INT64, struct norm_forward, groups, WEFT_ATTR_OPERATION_NORM_FWD_GROUPS_EXT, "groups",
              .least = 1, .most = INT64_MAX, .doc = "GROUP_NORM: number of groups into which the channels are split"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct norm_forward, math, WEFT_ATTR_OPERATION_NORM_FWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "compute type of statistics and results"),
};
#undef ROW

#define ROW(role, field, name, key, ...)                                                                               \
    TENSOR_ROW(role, struct norm_backward, field, WEFT_ATTR_OPERATION_NORM_BWD_##name, key, __VA_ARGS__)
/* Either the statistics that forward has stored, or epsilon, to recompute them from x. */
static const struct row backward_rows[] = {
    VALUE_ROW(WEFT_TYPE_NORM_MODE, struct norm_backward, mode, WEFT_ATTR_OPERATION_NORM_BWD_MODE, "mode",
              .required = true, .doc = "mode of the forward operation"),
    ROW(ROLE_INPUT, dy, DYDESC, "dy", .required = true, .shape = "like x", .doc = "gradient of the result"),
    ROW(ROLE_INPUT, x, XDESC, "x", .required = true, .shape = "[N, C, spatial..] or [batch.., normalised..]",
        .doc = "forward input"),
    ROW(ROLE_INPUT, scale, SCALE_DESC, "scale", .shape = AFFINE_SHAPE,
        .doc = "gamma, 1 if absent; layer norms normalise the dimensions in which its extent is not 1; if it is "
               "absent, those in which inv_variance has extent 1"),
    ROW(ROLE_INPUT, mean, MEAN_DESC, "mean", .shape = STATISTICS_SHAPE,
        .doc = "mean of the forward pass; RMS_NORM has none"),
    ROW(ROLE_INPUT, inv_variance, INV_VARIANCE_DESC, "inv_variance", .shape = STATISTICS_SHAPE,
        .doc = "1 / sqrt(variance + epsilon) of the forward pass; absent: recomputed from x and epsilon"),
    ROW(ROLE_INPUT, epsilon, EPSILON_DESC, "epsilon", .shape = "[1..]",
        .doc = "scalar added to the variance if statistics are recomputed"),
    ROW(ROLE_OUTPUT, dx, DXDESC, "dx", .required = true, .shape = "like x", .in_place = "dy x", .doc = "gradient of x"),
    ROW(ROLE_OUTPUT, dscale, DSCALE_DESC, "dscale", .shape = AFFINE_SHAPE, .doc = "gradient of the scale"),
    ROW(ROLE_OUTPUT, dbias, DBIAS_DESC, "dbias", .shape = AFFINE_SHAPE, .doc = "gradient of the bias"),
    ROW(ROLE_INPUT, peer_stats, PEER_STAT_DESCS, "peer_stats", .storage = STORE_LIST,
        .doc = "buffers to share sums with other devices; must be empty"),
    VALUE_ROW(WEFT_TYPE_INT64, struct norm_backward, groups, WEFT_ATTR_OPERATION_NORM_BWD_GROUPS_EXT, "groups",
              .least = 1, .most = INT64_MAX, .doc = "GROUP_NORM: number of groups into which the channels are split"),
    VALUE_ROW(WEFT_TYPE_DATA_TYPE, struct norm_backward, math, WEFT_ATTR_OPERATION_NORM_BWD_COMP_TYPE_EXT,
              "compute_data_type", .doc = "compute type of gradients"),
};
#undef ROW

/* Arguments that the methods of all modes share, and the formula after their own description. */
#define FORWARD "norm_forward_phase:phase input:x scale=None bias=None epsilon"
#define FORMULA " : y = scale * (x - mean) * inv_variance + bias"
/* One method per mode; only rmsnorm has no mean. The methods of batch norm fix the phase, the others have it as an
   argument. */
static const struct method forward_methods[] = {
    {"layernorm", "norm over the dimensions that the scale covers" FORMULA, "mode=LAYER_NORM", FORWARD,
     "y mean inv_variance"},
    {"adalayernorm", "layer norm with a separate scale and bias for each batch entry" FORMULA, "mode=ADA_LAYER_NORM",
     FORWARD, "y mean inv_variance"},
    {"instancenorm", "norm of each channel of each batch entry" FORMULA, "mode=INSTANCE_NORM", FORWARD,
     "y mean inv_variance"},
    {"groupnorm", "norm of each group of channels of each batch entry" FORMULA, "mode=GROUP_NORM", FORWARD " groups",
     "y mean inv_variance"},
    {"rmsnorm", "division by the root mean square : y = scale * x * inv_variance + bias", "mode=RMS_NORM", FORWARD,
     "y inv_variance"},
    {"batchnorm", "norm of each channel with the batch's statistics" FORMULA, "mode=BATCH_NORM phase=TRAINING",
     "input:x scale=None bias=None in_running_mean=None in_running_var=None epsilon momentum=None peer_stats=[]",
     "y mean inv_variance out_mean out_var"},
    {"batchnorm_inference", "norm of each channel with given statistics" FORMULA, "mode=BATCH_NORM phase=INFERENCE",
     "input:x mean=None inv_variance=None scale=None bias=None * in_running_mean=None in_running_var=None epsilon=None",
     "y"},
    {0},
};
#undef FORWARD
#undef FORMULA

#define BACKWARD "grad:dy input:x scale=None mean=None inv_variance=None * epsilon=None"
#define FORMULA " : dx = inv_variance * (g - mean(g) - xhat * mean(g * xhat)), g = scale * dy"
/* Like the forward methods; epsilon is used if the statistics are recomputed. */
static const struct method backward_methods[] = {
    {"layernorm_backward", "gradients of layernorm" FORMULA, "mode=LAYER_NORM", BACKWARD, "dx dscale dbias"},
    {"adalayernorm_backward", "gradients of adalayernorm" FORMULA, "mode=ADA_LAYER_NORM", BACKWARD, "dx dscale dbias"},
    {"instancenorm_backward", "gradients of instancenorm" FORMULA, "mode=INSTANCE_NORM", BACKWARD, "dx dscale dbias"},
    {"groupnorm_backward", "gradients of groupnorm" FORMULA, "mode=GROUP_NORM", BACKWARD " groups", "dx dscale dbias"},
    {"rmsnorm_backward", "gradients of rmsnorm : dx = inv_variance * (g - xhat * mean(g * xhat)), g = scale * dy",
     "mode=RMS_NORM", "grad:dy input:x scale=None inv_variance=None * epsilon=None", "dx dscale dbias"},
    {"batchnorm_backward", "gradients of batchnorm" FORMULA, "mode=BATCH_NORM",
     "grad:dy input:x scale=None mean=None inv_variance=None peer_stats=[] * epsilon=None", "dx dscale dbias"},
    {0},
};
#undef BACKWARD
#undef FORMULA

/* ---- Shape ------------------------------------------------------------------------------------------------------- */

/* Modes that normalise the last dimensions or those that the scale defines. The other modes normalise spatial
   dimensions and treat channels separately. */
static bool is_layer_norm(int32_t mode) {
    return mode == WEFT_LAYER_NORM || mode == WEFT_RMS_NORM || mode == WEFT_ADA_LAYER_NORM;
}

struct operand {
    const char *key;
    const struct tensor *tensor;
    const struct dims *dims; /* expected; NULL for a scalar */
};

/* The tensors that determine a norm's shape. affine: the scale or bias, or the gradient of one; statistic: a mean or
   inverse deviation. Their tensors may be NULL. */
struct evidence {
    int32_t mode;
    int64_t groups;
    const struct tensor *x;
    struct operand affine, statistic;
};

/* True if statistics are taken over a dimension. It makes no difference if x has extent 1 there. For layer norms, the
   extents of the scale define the normalised dimensions, or else those of the statistics. */
static bool spans(const struct evidence *of, int64_t dim) {
    if (of->mode == WEFT_BATCH_NORM)
        return dim != 1;
    if (!is_layer_norm(of->mode))
        return dim >= 2;
    /* The scale of ADA_LAYER_NORM extends along the batch, but the batch is not normalised. */
    if (of->mode == WEFT_ADA_LAYER_NORM && dim == 0)
        return false;
    if (of->affine.tensor)
        return of->affine.tensor->dims.at[dim] != 1;
    if (of->statistic.tensor)
        return of->statistic.tensor->dims.at[dim] == 1;
    return dim > 0 || of->x->dims.count == 1;
}

/* Computes the dims of statistics and affine operands, and the number of elements that share statistics. check_evidence
   must have passed. */
static struct norm_shape shape_of(const struct evidence *of) {
    const struct dims *x = &of->x->dims;
    struct norm_shape shape = {.group_channels = 1, .row = 1, .statistics = *x, .affine = *x};
    for (int64_t i = 0; i < x->count; i++) {
        shape.over[i] = spans(of, i);
        /* `row` counts the elements that share statistics. */
        if (shape.over[i]) {
            shape.statistics.at[i] = 1;
            shape.row *= x->at[i];
        }
        /* The scale of a layer norm has one element per position in the row, that of ADA_LAYER_NORM also per batch
           entry; all other modes have one per channel. */
        bool affine = is_layer_norm(of->mode) ? shape.over[i] || (of->mode == WEFT_ADA_LAYER_NORM && i == 0) : i == 1;
        if (!affine)
            shape.affine.at[i] = 1;
    }
    /* Use the dims of the given operand, because the scale of ADA_LAYER_NORM may be shared by the whole batch. */
    if (is_layer_norm(of->mode) && of->affine.tensor)
        shape.affine = of->affine.tensor->dims;
    /* In GROUP_NORM, dimension 1 of the statistics counts groups, and a row includes all channels of its group. */
    if (of->mode == WEFT_GROUP_NORM) {
        shape.statistics.at[1] = of->groups;
        shape.group_channels = x->at[1] / of->groups;
        shape.row *= shape.group_channels;
    }
    return shape;
}

/* The first operand of a list that has dims. */
static struct operand first_shaped(const struct operand *operands, int count) {
    for (int i = 0; i < count; i++)
        if (operands[i].tensor && operands[i].tensor->dims.count)
            return operands[i];
    return (struct operand){0};
}

/* Order of precedence: the scale before the bias, and inputs before operands that may be inferred. */
static struct evidence forward_evidence(const struct norm_forward *op) {
    const struct operand affine[] = {{.key = "scale", .tensor = op->scale}, {.key = "bias", .tensor = op->bias}};
    const struct operand statistic[] = {{.key = "inv_variance", .tensor = op->inv_variance},
                                        {.key = "mean", .tensor = op->mean}};
    return (struct evidence){op->mode, op->groups, op->x, first_shaped(affine, 2), first_shaped(statistic, 2)};
}

/* The scale determines the shape if it exists, otherwise a gradient whose dims the user set. */
static struct evidence backward_evidence(const struct norm_backward *op) {
    const struct operand affine[] = {{.key = "scale", .tensor = op->scale},
                                     {.key = "dscale", .tensor = op->dscale},
                                     {.key = "dbias", .tensor = op->dbias}};
    const struct operand statistic[] = {{.key = "inv_variance", .tensor = op->inv_variance}};
    return (struct evidence){op->mode, op->groups, op->x, first_shaped(affine, 3), first_shaped(statistic, 1)};
}

/* After finalize all these operands have dims, so the result is that of inference. */
static struct norm_shape forward_shape(const struct norm_forward *op) {
    struct evidence evidence = forward_evidence(op);
    return shape_of(&evidence);
}

static struct norm_shape backward_shape(const struct norm_backward *op) {
    struct evidence evidence = backward_evidence(op);
    return shape_of(&evidence);
}

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

/* A rule about the combination of operands. */
struct rule {
    bool broken;
    const char *text;
};

/* Fails with the first rule that is violated; each text says what to change. */
static weftStatus_t check_rules(const struct descriptor *op, int32_t mode, const struct rule *rules, int count) {
    for (int i = 0; i < count; i++)
        if (rules[i].broken)
            FAIL(WEFT_STATUS_BAD_PARAM, "%s: mode %s: %s", descriptor_label(op), mode_names[mode], rules[i].text);
    return WEFT_STATUS_SUCCESS;
}

/* Rules that must hold before the shape can be determined. */
static weftStatus_t check_evidence(const struct descriptor *op, const struct evidence *of,
                                   const struct list *peer_stats) {
    const char *mode = mode_names[of->mode];
    const struct tensor *x = of->x;
    bool layer = is_layer_norm(of->mode);
    /* cuDNN exchanges statistics between devices through buffers that all devices read; Weft leaves this to the
       user. */
    if (peer_stats->count)
        FAIL(WEFT_STATUS_NOT_SUPPORTED,
             "%s: peer_stats lists %lld buffers, but a norm computes its statistics on one device. Leave the list "
             "empty; to combine devices, add up the results of genstats and continue with bn_finalize.",
             descriptor_label(op), (long long)peer_stats->count);
    /* Layer norms support a single row of one dimension; instance norm requires spatial dimensions after N and C. */
    bool any_rank = of->mode == WEFT_LAYER_NORM || of->mode == WEFT_RMS_NORM;
    TRY(check_rank(op, "x", x, any_rank ? 1 : of->mode == WEFT_INSTANCE_NORM ? 3 : 2, WEFT_DIM_MAX));
    int64_t channels = x->dims.count > 1 ? x->dims.at[1] : 0;
    if (of->mode == WEFT_GROUP_NORM && (of->groups < 1 || channels % of->groups))
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: mode %s: groups is %lld and x is %s with %lld channel%s. Set groups to a divisor of the channels.",
             descriptor_label(op), mode, (long long)of->groups, tensor_dims_text(x), (long long)channels,
             plural(channels));
    if (!layer)
        return WEFT_STATUS_SUCCESS;
    TRY(check_broadcasts(op, of->affine.key, of->affine.tensor, x));
    TRY(check_broadcasts(op, of->statistic.key, of->statistic.tensor, x));
    /* If the last dimension has one element, it is ambiguous which dimensions are normalised; rows of one element are
       legal. */
    bool any = x->dims.at[x->dims.count - 1] == 1;
    for (int64_t i = 0; i < x->dims.count; i++)
        any = any || (x->dims.at[i] != 1 && spans(of, i));
    const struct operand *judge = of->affine.tensor ? &of->affine : &of->statistic;
    if (!any)
        FAIL(WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH,
             "%s: mode %s: %s with dims %s normalises no dimension of x %s. Give the scale x's extents on the "
             "dimensions "
             "to normalise.",
             descriptor_label(op), mode, judge->key, tensor_dims_text(judge->tensor), tensor_dims_text(x));
    return WEFT_STATUS_SUCCESS;
}

/* Checks the dims of `count` operands; absent ones are accepted. */
static weftStatus_t check_operands(const struct descriptor *op, const struct operand *operands, int count) {
    for (int i = 0; i < count; i++)
        TRY(operands[i].dims
                ? check_dims(op, operands[i].key, operands[i].tensor, operands[i].dims->count, operands[i].dims->at)
                : check_scalar(op, operands[i].key, operands[i].tensor));
    return WEFT_STATUS_SUCCESS;
}

#define COUNT(array) ((int)(sizeof array / sizeof *array))

/* Rules on combinations of operands, by mode and phase. Shapes are checked later. */
static weftStatus_t check_forward_rules(const struct norm_forward *op) {
    bool inference = norm_is_inference_of_batch(op), batch = op->mode == WEFT_BATCH_NORM;
    bool given = op->mean && op->inv_variance, running = op->in_running_mean && op->in_running_var;
    bool touches_running = op->in_running_mean || op->in_running_var || op->out_mean || op->out_var;
    /* The rules are independent: the user gets the message of the first one that is violated. */
    const struct rule rules[] = {
        {op->mean && !norm_has_mean(op->mode), "the mode has no mean, but mean is set. Leave mean unset."},
        {touches_running && !batch, "running statistics are set, which only BATCH_NORM has. Leave in_running_mean, "
                                    "in_running_var, out_mean and out_var unset."},
        {inference && !given && !running, "inference needs statistics, but they are incomplete. Set mean and "
                                          "inv_variance, or in_running_mean, in_running_var and epsilon."},
        {inference && (op->mean || op->inv_variance) && (op->in_running_mean || op->in_running_var),
         "inference got two sources of statistics. Set mean and inv_variance, or in_running_mean and in_running_var."},
        {inference && (op->out_mean || op->out_var), "inference does not update running statistics, but out_mean or "
                                                     "out_var is set. Leave them unset, or set phase TRAINING."},
        {!op->epsilon && !(inference && given), "epsilon is required and was not set. Set it to a scalar tensor."},
        {!inference && !op->momentum && ((op->in_running_mean && op->out_mean) || (op->in_running_var && op->out_var)),
         "momentum is required to update running statistics, and was not set. Set it to a scalar tensor."},
    };
    return check_rules(&op->base, op->mode, rules, COUNT(rules));
}

/* mean and inv_variance are outputs, except that batch norm's inference reads them. */
static enum role forward_role(const struct descriptor *descriptor, const struct row *row) {
    bool statistic = row->name == WEFT_ATTR_OPERATION_NORM_FWD_MEAN_DESC ||
                     row->name == WEFT_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC;
    return statistic && norm_is_inference_of_batch((const struct norm_forward *)descriptor) ? ROLE_INPUT : row->role;
}

/* Results have the type of x if they are stored, otherwise that of the calculation; the same holds for gradients of
   parameters. */
static void infer_result(struct tensor *result, const struct tensor *like, int32_t math) {
    if (!result)
        return;
    tensor_infer_type(result, like ? tensor_result_type(result, (weftDataType_t)like->type, (weftDataType_t)math)
                                   : (weftDataType_t)math);
    if (like)
        tensor_infer_like(result, like);
}

/* Statistics have the precision of the calculation, not that of x. */
static void infer_statistic(struct tensor *statistic, const struct dims *dims, const struct tensor *x) {
    if (!statistic)
        return;
    tensor_infer_dims(statistic, dims->count, dims->at);
    tensor_infer_type(statistic, x->type == WEFT_DATA_DOUBLE ? WEFT_DATA_DOUBLE : WEFT_DATA_FLOAT);
}

/* Operands are checked first, because shapes depend on them. */
static weftStatus_t infer_forward(struct descriptor *descriptor) {
    struct norm_forward *op = (struct norm_forward *)descriptor;
    struct evidence evidence = forward_evidence(op);
    TRY(check_evidence(descriptor, &evidence, &op->peer_stats));
    TRY(check_forward_rules(op));
    struct norm_shape shape = shape_of(&evidence);
    /* In inference, mean and inv_variance are inputs with dims: nothing is inferred. */
    struct tensor *statistics[] = {op->mean, op->inv_variance, op->out_mean, op->out_var};
    for (int i = 0; i < COUNT(statistics); i++)
        infer_statistic(statistics[i], &shape.statistics, op->x);
    infer_result(op->y, op->x, op->math);
    return WEFT_STATUS_SUCCESS;
}

/* Norms of rows: their statistics are packed in the order of x. Those of batch and instance norm are channels last. */
static bool is_row_norm(weftBackendNormMode_t mode) {
    return mode == WEFT_LAYER_NORM || mode == WEFT_ADA_LAYER_NORM || mode == WEFT_RMS_NORM;
}

/* y has the strides of x, including gaps. */
static bool forward_strides(const struct descriptor *descriptor, const struct tensor *out, struct dims *strides) {
    const struct norm_forward *op = (const struct norm_forward *)descriptor;
    if (out == op->y)
        *strides = op->x->strides;
    else if (is_row_norm((weftBackendNormMode_t)op->mode))
        *strides = dims_packed(&out->dims, &op->x->strides);
    else
        *strides = dims_channels_last(&out->dims);
    return op->mode != WEFT_GROUP_NORM && op->x->vector_count == 1 && (out != op->y || tensor_same_dims(out, op->x));
}

/* Checks the dims of all operands against the norm's shape; NULL dims stand for a scalar. */
static weftStatus_t check_forward(const struct descriptor *descriptor) {
    const struct norm_forward *op = (const struct norm_forward *)descriptor;
    struct norm_shape shape = forward_shape(op);
    /* Checks the dims, whether they were given or inferred. */
    const struct operand operands[] = {
        {"scale", op->scale, &shape.affine},
        {"bias", op->bias, &shape.affine},
        {"mean", op->mean, &shape.statistics},
        {"inv_variance", op->inv_variance, &shape.statistics},
        {"in_running_mean", op->in_running_mean, &shape.statistics},
        {"in_running_var", op->in_running_var, &shape.statistics},
        {"out_mean", op->out_mean, &shape.statistics},
        {"out_var", op->out_var, &shape.statistics},
        {"y", op->y, &op->x->dims},
        {"epsilon", op->epsilon, NULL},
        {"momentum", op->momentum, NULL},
    };
    return check_operands(descriptor, operands, COUNT(operands));
}

/* dx has the dims of x; dscale and dbias those of the scale, or those that the shape implies if there is no scale. */
static weftStatus_t infer_backward(struct descriptor *descriptor) {
    struct norm_backward *op = (struct norm_backward *)descriptor;
    struct evidence evidence = backward_evidence(op);
    TRY(check_evidence(descriptor, &evidence, &op->peer_stats));
    const struct rule rules[] = {
        {op->mean && !norm_has_mean(op->mode), "the mode has no mean, but mean is set. Leave mean unset."},
        /* Both statistics must be given: a recomputed mean would not match a stored deviation exactly, because of its
           rounding. */
        {norm_has_mean(op->mode) && !op->mean != !op->inv_variance,
         "mean and inv_variance go together, but one of them is missing. Set both, or neither and epsilon."},
        {!op->inv_variance && !op->epsilon,
         "statistics are neither given nor computable. Set epsilon, or the statistics of the forward operation."},
    };
    TRY(check_rules(descriptor, op->mode, rules, COUNT(rules)));
    struct norm_shape shape = shape_of(&evidence);
    infer_result(op->dx, op->x, op->math);
    /* Dims come from the shape, because the gradient may be requested although the scale is absent. */
    struct tensor *gradients[] = {op->dscale, op->dbias};
    for (int i = 0; i < COUNT(gradients); i++) {
        if (gradients[i])
            tensor_infer_dims(gradients[i], shape.affine.count, shape.affine.at);
        /* Gradients have the type of the parameter; without a scale, that of the calculation. */
        infer_result(gradients[i], op->scale, op->math);
    }
    return WEFT_STATUS_SUCCESS;
}

/* dx has the strides of x, and gradients of parameters those of the scale, including gaps; batch and instance norm
   write all of them channels last, adaptive layer norm row-major. */
static bool backward_strides(const struct descriptor *descriptor, const struct tensor *out, struct dims *strides) {
    const struct norm_backward *op = (const struct norm_backward *)descriptor;
    const struct tensor *like = out == op->dx ? op->x : op->scale;
    if (op->mode == WEFT_ADA_LAYER_NORM)
        *strides = dims_row_major(&out->dims);
    else if (!is_row_norm((weftBackendNormMode_t)op->mode))
        *strides = dims_channels_last(&out->dims);
    else if (like && like->vector_count == 1 && tensor_same_dims(out, like))
        *strides = like->strides;
    else
        return false;
    return op->mode != WEFT_GROUP_NORM;
}

static weftStatus_t check_backward(const struct descriptor *descriptor) {
    const struct norm_backward *op = (const struct norm_backward *)descriptor;
    struct norm_shape shape = backward_shape(op);
    const struct operand operands[] = {
        {"dy", op->dy, &op->x->dims},          {"scale", op->scale, &shape.affine},
        {"mean", op->mean, &shape.statistics}, {"inv_variance", op->inv_variance, &shape.statistics},
        {"dx", op->dx, &op->x->dims},          {"dscale", op->dscale, &shape.affine},
        {"dbias", op->dbias, &shape.affine},   {"epsilon", op->epsilon, NULL},
    };
    return check_operands(descriptor, operands, COUNT(operands));
}

/* ---- References -------------------------------------------------------------------------------------------------- */

static int64_t elements_of(const struct dims *dims) {
    int64_t elements = 1;
    for (int64_t i = 0; i < dims->count; i++)
        elements *= dims->at[i];
    return elements;
}

/* Row-major index of the statistics that x's element `index` belongs to. */
static int64_t statistic_index(const struct norm_shape *shape, const int64_t *index) {
    int64_t of_group[WEFT_DIM_MAX];
    /* In group norm, dimension 1 counts groups of adjacent channels. group_channels is 1 in other modes. */
    for (int64_t i = 0; i < shape->statistics.count; i++)
        of_group[i] = i == 1 ? index[i] / shape->group_channels : index[i];
    return dims_index(&shape->statistics, of_group);
}

/* Computes mean and variance in two passes over x, because mean(x^2) - mean^2 would suffer from cancellation. The mean
   stays 0 in modes without one. Rows without elements have mean and variance 0. */
static void take_statistics(const struct norm_shape *shape, bool has_mean, const struct view *x, double *mean,
                            double *variance) {
    /* Arrays of statistics are row-major over shape->statistics. */
    int64_t index[WEFT_DIM_MAX], count = elements_of(&shape->statistics);
    /* Avoids a division by 0 for rows without elements. */
    double row = shape->row ? (double)shape->row : 1;
    for (int64_t i = 0; i < count; i++)
        mean[i] = variance[i] = 0;
    /* First pass: the mean, if the mode has one. */
    for (bool more = has_mean && index_begin(index, x->rank, x->dims); more; more = index_next(index, x->rank, x->dims))
        mean[statistic_index(shape, index)] += view_load(x, index);
    for (int64_t i = 0; i < count; i++)
        mean[i] /= row;
    for (bool more = index_begin(index, x->rank, x->dims); more; more = index_next(index, x->rank, x->dims)) {
        int64_t at = statistic_index(shape, index);
        /* Second pass: squares of deviations. */
        double deviation = view_load(x, index) - mean[at];
        variance[at] += deviation * deviation;
    }
    for (int64_t i = 0; i < count; i++)
        variance[i] /= row;
}

/* out = (1 - momentum) * in + momentum * batch * unbias. An empty batch changes nothing. */
static void update_running(const struct view *out, const struct view *in, const double *batch, double unbias,
                           double momentum, bool empty) {
    int64_t index[WEFT_DIM_MAX], channel = 0;
    for (bool more = out->data && index_begin(index, out->rank, out->dims); more;
         more = index_next(index, out->rank, out->dims), channel++) {
        double fresh = unbias * batch[channel], before = view_load_or(in, index, fresh);
        view_store(out, index, empty || !in->data ? before : (1 - momentum) * before + momentum * fresh);
    }
}

/* Bytes: mean and variance of each row, as doubles. */
static int64_t forward_scratch(const struct descriptor *descriptor) {
    struct norm_shape shape = forward_shape((const struct norm_forward *)descriptor);
    return 2 * elements_of(&shape.statistics) * (int64_t)sizeof(double);
}

/* Three steps: computes the statistics in scratch, stores those that are requested, computes y. */
static void forward_reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct norm_forward *op = (const struct norm_forward *)descriptor;
    struct norm_shape shape = forward_shape(op);
    int64_t index[WEFT_DIM_MAX], count = elements_of(&shape.statistics);
    double *mean = bindings->scratch, *inv = mean + count; /* inv contains the variance first */
    struct view x = view_of(bindings, op->x), y = view_of(bindings, op->y);
    struct view scale = view_of(bindings, op->scale), bias = view_of(bindings, op->bias);
    struct view mean_view = view_of(bindings, op->mean), inv_view = view_of(bindings, op->inv_variance);
    struct view in_mean = view_of(bindings, op->in_running_mean), in_var = view_of(bindings, op->in_running_var);
    bool inference = norm_is_inference_of_batch(op), given = inference && op->inv_variance;

    /* Three sources: given statistics, running values, or the batch itself. */
    if (given) {
        view_load_all(&mean_view, mean);
        view_load_all(&inv_view, inv);
    } else if (inference) {
        view_load_all(&in_mean, mean);
        view_load_all(&in_var, inv);
    } else {
        take_statistics(&shape, norm_has_mean(op->mode), &x, mean, inv);
        struct view out_mean = view_of(bindings, op->out_mean), out_var = view_of(bindings, op->out_var);
        /* Without a momentum, the statistics of the batch become the running ones. */
        double momentum = view_scalar(bindings, op->momentum, 1), row = (double)shape.row;
        update_running(&out_mean, &in_mean, mean, 1, momentum, shape.row == 0);
        /* n / (n - 1): the running variance estimates that of the population. */
        update_running(&out_var, &in_var, inv, row > 1 ? row / (row - 1) : 1, momentum, shape.row == 0);
    }
    /* Given inverse deviations include epsilon. */
    double epsilon = view_scalar(bindings, op->epsilon, 0);
    for (int64_t i = 0; !given && i < count; i++)
        inv[i] = 1 / sqrt(inv[i] + epsilon);
    /* Statistics for the backward pass; absent tensors are skipped. */
    if (!inference) {
        view_store_all(&mean_view, mean);
        view_store_all(&inv_view, inv);
    }
    /* The same formula for every mode; modes without a mean have the mean 0. */
    for (bool more = y.data && index_begin(index, y.rank, y.dims); more; more = index_next(index, y.rank, y.dims)) {
        int64_t at = statistic_index(&shape, index);
        double xhat = (view_load(&x, index) - mean[at]) * inv[at];
        view_store(&y, index, view_load_or(&scale, index, 1) * xhat + view_load_or(&bias, index, 0));
    }
}

/* Bytes, divided up by backward_reference. */
static int64_t backward_scratch(const struct descriptor *descriptor) {
    struct norm_shape shape = backward_shape((const struct norm_backward *)descriptor);
    return (4 * elements_of(&shape.statistics) + 2 * elements_of(&shape.affine)) * (int64_t)sizeof(double);
}

/* Scratch: mean, inverse deviation, and the means of g and of g * xhat for each row; then dscale and dbias. */
static void backward_reference(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct norm_backward *op = (const struct norm_backward *)descriptor;
    struct norm_shape shape = backward_shape(op);
    int64_t index[WEFT_DIM_MAX], count = elements_of(&shape.statistics), affine = elements_of(&shape.affine);
    double *mean = bindings->scratch, *inv = mean + count, *mean_g = inv + count, *mean_g_xhat = mean_g + count;
    /* The layout of scratch must match backward_scratch. */
    double *dscale = mean_g_xhat + count, *dbias = dscale + affine;
    struct view x = view_of(bindings, op->x), dy = view_of(bindings, op->dy), dx = view_of(bindings, op->dx);
    struct view scale = view_of(bindings, op->scale);

    /* All six arrays are contiguous, starting at `mean`. */
    for (int64_t i = 0; i < 4 * count + 2 * affine; i++)
        mean[i] = 0;
    /* Loads the statistics of forward, or recomputes them; a norm without mean has the means 0. */
    if (op->inv_variance) {
        struct view mean_view = view_of(bindings, op->mean), inv_view = view_of(bindings, op->inv_variance);
        view_load_all(&mean_view, mean);
        view_load_all(&inv_view, inv);
    } else {
        take_statistics(&shape, norm_has_mean(op->mode), &x, mean, inv);
        double epsilon = view_scalar(bindings, op->epsilon, 0);
        for (int64_t i = 0; i < count; i++)
            inv[i] = 1 / sqrt(inv[i] + epsilon);
    }
    for (bool more = index_begin(index, x.rank, x.dims); more; more = index_next(index, x.rank, x.dims)) {
        int64_t at = statistic_index(&shape, index), parameter = dims_index(&shape.affine, index);
        double xhat = (view_load(&x, index) - mean[at]) * inv[at], gradient = view_load(&dy, index);
        /* Dividing each term by the row's length turns the sums into means. */
        double g = view_load_or(&scale, index, 1) * gradient / (double)shape.row;
        /* If the forward formula has no mean, the mean of g is not subtracted. */
        mean_g[at] += norm_has_mean(op->mode) ? g : 0;
        mean_g_xhat[at] += g * xhat;
        dscale[parameter] += gradient * xhat;
        dbias[parameter] += gradient;
    }
    /* A second pass over x, because every element of dx needs the means of its row. */
    for (bool more = dx.data && index_begin(index, x.rank, x.dims); more; more = index_next(index, x.rank, x.dims)) {
        int64_t at = statistic_index(&shape, index);
        double xhat = (view_load(&x, index) - mean[at]) * inv[at];
        double g = view_load_or(&scale, index, 1) * view_load(&dy, index);
        view_store(&dx, index, inv[at] * (g - mean_g[at] - xhat * mean_g_xhat[at]));
    }
    /* dscale and dbias have been summed over all rows. */
    struct view dscale_view = view_of(bindings, op->dscale), dbias_view = view_of(bindings, op->dbias);
    view_store_all(&dscale_view, dscale);
    view_store_all(&dbias_view, dbias);
}

/* ---- The operations ---------------------------------------------------------------------------------------------- */

static weftStatus_t expand_forward(const struct descriptor *op, struct expansion *e) {
    struct norm_shape shape = forward_shape((const struct norm_forward *)op);
    return norm_forward_expand((const struct norm_forward *)op, &shape, e);
}

static weftStatus_t expand_backward(const struct descriptor *op, struct expansion *e) {
    struct norm_shape shape = backward_shape((const struct norm_backward *)op);
    return norm_backward_expand((const struct norm_backward *)op, &shape, e);
}

const struct op norm_forward_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR,
            .name = "norm",
            .doc =
                "y = scale * (x - mean) / sqrt(variance + epsilon) + bias; layer, RMS, ada, batch, instance and group",
            .size = sizeof(struct norm_forward),
            ROWS(forward_rows),
            .finalize = op_finalize,
            .op = &norm_forward_op,
        },
    .methods = forward_methods,
    .role_of = forward_role,
    .infer = infer_forward,
    .cudnn_strides = forward_strides,
    .check = check_forward,
    .expand = expand_forward,
    .reference = forward_reference,
    .scratch_bytes = forward_scratch,
};

const struct op norm_backward_op = {
    .schema =
        {
            .kind = WEFT_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR,
            .name = "norm_backward",
            .doc = "gradients of a norm's input, scale and bias",
            .size = sizeof(struct norm_backward),
            ROWS(backward_rows),
            .finalize = op_finalize,
            .op = &norm_backward_op,
        },
    .methods = backward_methods,
    .infer = infer_backward,
    .cudnn_strides = backward_strides,
    .check = check_backward,
    .expand = expand_backward,
    .reference = backward_reference,
    .scratch_bytes = backward_scratch,
};
