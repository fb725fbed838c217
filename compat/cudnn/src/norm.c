/* SPDX-License-Identifier: Apache-2.0 */
#include "src/norm.h"

#include <string.h>

struct norm_key {
    struct key_head head;
    int32_t phase, ops, has_running, has_saved;
    struct shape x, y, z, dy, dx, dz, parameters;
    struct cudnnActivationStruct activation;
    double alpha, beta, alpha_parameters, beta_parameters;
};

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* With statistics per activation, each element of a batch entry is a channel. */
static cudnnStatus_t flatten(struct shape *shape, bool is_parameter) {
    if (!shape_is_packed_from(shape, 1))
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                         "normalization per activation: a batch entry is not packed in the order of its dimensions. "
                         "Use packed tensors in the format NCHW.");
    const int64_t channels = shape_elements(shape) / shape->dims[0];
    *shape = (struct shape){.type = shape->type,
                            .rank = 4,
                            .dims = {shape->dims[0], channels, 1, 1},
                            .strides = {is_parameter ? channels : shape->strides[0], 1, 1, 1}};
    return CUDNN_STATUS_SUCCESS;
}

struct named_shape {
    cudnnTensorDescriptor_t desc;
    struct shape *shape;
};

/* Absent tensors have no descriptor. */
static cudnnStatus_t set_shapes(struct norm_key *key, bool is_per_activation, cudnnTensorDescriptor_t parameters,
                                int count, const struct named_shape *tensors) {
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    REQUIRE(parameters, "normalization: the descriptor of scale and statistics is NULL.");
    key->parameters = parameters->shape;
    for (int i = 0; i < count; i++)
        if (tensors[i].desc)
            *tensors[i].shape = tensors[i].desc->shape;
    if (is_per_activation)
        status = flatten(&key->parameters, true);
    for (int i = 0; i < count && is_per_activation && !status; i++)
        if (tensors[i].desc)
            status = flatten(tensors[i].shape, false);
    return status;
}

cudnnStatus_t norm_derive(cudnnTensorDescriptor_t derived, cudnnTensorDescriptor_t x, bool is_per_activation) {
    REQUIRE(derived && x, "normalization: a descriptor is NULL.");
    struct shape shape = {.rank = x->shape.rank, .type = shape_math(&x->shape)};
    for (int i = 0; i < shape.rank; i++)
        shape.dims[i] = i == 1 || (i > 1 && is_per_activation) ? x->shape.dims[i] : 1;
    shape_pack(&shape, CUDNN_TENSOR_NCHW);
    derived->shape = shape;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t norm_no_bytes(size_t *bytes) {
    REQUIRE(bytes, "normalization: the address of the size is NULL.");
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

/* A list of attributes that grows. */
struct attributes {
    int count;
    weftAttribute_t items[16];
};

static void add_node(struct attributes *list, weftBackendAttributeName_t name, const node *tensor) {
    list->items[list->count++] = (weftAttribute_t){name, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, tensor};
}

static void build_norm_forward(struct builder *b, const struct norm_key *k, node x, node y) {
    const weftBackendNormMode_t mode = WEFT_BATCH_NORM;
    const weftBackendNormFwdPhase_t phase =
        k->phase == NORM_TRAINING ? WEFT_NORM_FWD_TRAINING : WEFT_NORM_FWD_INFERENCE;
    const int32_t math = shape_math(&k->x);
    const struct shape *s = &k->parameters;
    const node scale = stored_tensor(b, UID_SCALE, s), bias = stored_tensor(b, UID_BIAS, s),
               epsilon = by_value(b, UID_EPSILON, math, k->x.rank);
    node mean, variance, out_mean, out_variance, momentum, saved_mean, saved_inverse;
    struct attributes list = {
        2, {VALUE(OPERATION_NORM_FWD_MODE, NORM_MODE, mode), VALUE(OPERATION_NORM_FWD_PHASE, NORM_FWD_PHASE, phase)}};
    add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_XDESC, &x);
    add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_SCALE_DESC, &scale);
    add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_BIAS_DESC, &bias);
    add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, &epsilon);
    add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_YDESC, &y);
    if (k->phase == NORM_INFERENCE) { /* the estimated statistics */
        mean = stored_tensor(b, UID_MEAN, s), variance = stored_tensor(b, UID_VARIANCE, s);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC, &mean);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC, &variance);
    } else if (k->has_running) {
        mean = stored_tensor(b, UID_MEAN, s), variance = stored_tensor(b, UID_VARIANCE, s);
        out_mean = stored_tensor(b, UID_OUT_MEAN, s), out_variance = stored_tensor(b, UID_OUT_VARIANCE, s);
        momentum = by_value(b, UID_MOMENTUM, math, k->x.rank);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC, &mean);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC, &variance);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC, &out_mean);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC, &out_variance);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC, &momentum);
    }
    if (k->has_saved) {
        saved_mean = stored_tensor(b, UID_SAVED_MEAN, s), saved_inverse = stored_tensor(b, UID_SAVED_INVERSE, s);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_MEAN_DESC, &saved_mean);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, &saved_inverse);
    }
    build_op(b, WEFT_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, list.count, list.items);
}

static void build_forward(struct builder *b, const void *key) {
    const struct norm_key *k = key;
    const int32_t math = shape_math(&k->x);
    struct result y = {.shape = &k->y, .alpha = k->alpha, .beta = k->beta, .uid = UID_Y, .old_uid = UID_OLD};
    const node value = result_begin(b, &y), x = stored_tensor(b, UID_X, &k->x);
    node normalized = k->ops == NORM_ONLY ? value : virtual_tensor(b, &k->y, math);
    build_norm_forward(b, k, x, normalized);
    if (k->ops == NORM_ADD_ACTIVATION) {
        const node sum = virtual_tensor(b, &k->y, math);
        build_binary(b, WEFT_POINTWISE_ADD, math, normalized, stored_tensor(b, UID_Z, &k->z), sum);
        normalized = sum;
    }
    if (k->ops != NORM_ONLY)
        build_activation(b, &k->activation, math, normalized, value);
    result_end(b, &y);
}

cudnnStatus_t norm_forward(cudnnHandle_t handle, const struct norm_forward *c) {
    struct norm_key key;
    struct cached_plan *plan;
    REQUIRE_HANDLE(handle);
    REQUIRE(c->x.desc && c->y.desc, "normalization: a descriptor is NULL.");
    REQUIRE(c->ops == NORM_ONLY || c->activation, "normalization: the activation descriptor is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_NORM_FORWARD, ALIGNMENT(c->x.at, c->y.at, c->z.at, c->scale, c->bias, c->mean,
                                                               c->variance, c->saved_mean, c->saved_inverse)};
    key.phase = (int32_t)c->phase, key.ops = (int32_t)c->ops;
    cudnnStatus_t status = set_shapes(
        &key, c->is_per_activation, c->parameters_desc, 3,
        (const struct named_shape[]){
            {c->x.desc, &key.x}, {c->y.desc, &key.y}, {c->ops == NORM_ADD_ACTIVATION ? c->z.desc : NULL, &key.z}});
    if (status)
        return status;
    if (c->ops != NORM_ONLY)
        key.activation = *c->activation;
    key.has_running = c->mean && c->variance, key.has_saved = c->saved_mean && c->saved_inverse;
    key.alpha = read_factor(c->alpha, &c->y.desc->shape, 1), key.beta = read_factor(c->beta, &c->y.desc->shape, 0);
    status = plan_get(handle, &key, sizeof key, false, build_forward, &plan);
    if (status)
        return status;
    const float epsilon = (float)c->epsilon, factor = (float)c->factor;
    const bool is_double = shape_math(&key.x) == CUDNN_DATA_DOUBLE;
    const struct binding bindings[] = {{UID_X, c->x.at},
                                       {UID_Y, c->y.at},
                                       {UID_OLD, c->y.at},
                                       {UID_Z, c->z.at},
                                       {UID_SCALE, c->scale},
                                       {UID_BIAS, c->bias},
                                       {UID_MEAN, c->mean},
                                       {UID_VARIANCE, c->variance},
                                       {UID_OUT_MEAN, c->mean},
                                       {UID_OUT_VARIANCE, c->variance},
                                       {UID_SAVED_MEAN, c->saved_mean},
                                       {UID_SAVED_INVERSE, c->saved_inverse},
                                       {UID_EPSILON, is_double ? (const void *)&c->epsilon : &epsilon},
                                       {UID_MOMENTUM, is_double ? (const void *)&c->factor : &factor}};
    return plan_execute(handle, plan, sizeof bindings / sizeof *bindings, bindings, c->workspace, c->workspace_bytes);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

static void build_norm_backward(struct builder *b, const struct norm_key *k, node dy, node dx, node dscale,
                                node dbias) {
    const weftBackendNormMode_t mode = WEFT_BATCH_NORM;
    const struct shape *s = &k->parameters;
    const node x = stored_tensor(b, UID_X, &k->x), scale = stored_tensor(b, UID_SCALE, s);
    node mean, inverse, epsilon;
    struct attributes list = {1, {VALUE(OPERATION_NORM_BWD_MODE, NORM_MODE, mode)}};
    add_node(&list, WEFT_ATTR_OPERATION_NORM_BWD_XDESC, &x);
    add_node(&list, WEFT_ATTR_OPERATION_NORM_BWD_DYDESC, &dy);
    add_node(&list, WEFT_ATTR_OPERATION_NORM_BWD_SCALE_DESC, &scale);
    add_node(&list, WEFT_ATTR_OPERATION_NORM_BWD_DXDESC, &dx);
    add_node(&list, WEFT_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, &dscale);
    add_node(&list, WEFT_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, &dbias);
    if (k->has_saved) {
        mean = stored_tensor(b, UID_SAVED_MEAN, s), inverse = stored_tensor(b, UID_SAVED_INVERSE, s);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_BWD_MEAN_DESC, &mean);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, &inverse);
    } else {
        epsilon = by_value(b, UID_EPSILON, shape_math(&k->x), k->x.rank);
        add_node(&list, WEFT_ATTR_OPERATION_NORM_BWD_EPSILON_DESC, &epsilon);
    }
    build_op(b, WEFT_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, list.count, list.items);
}

static void build_backward(struct builder *b, const void *key) {
    const struct norm_key *k = key;
    const int32_t math = shape_math(&k->x);
    const double alpha = k->alpha_parameters, beta = k->beta_parameters;
    struct result dx = {.shape = &k->dx, .alpha = k->alpha, .beta = k->beta, .uid = UID_DX, .old_uid = UID_OLD};
    struct result dscale = {
        .shape = &k->parameters, .alpha = alpha, .beta = beta, .uid = UID_DSCALE, .old_uid = UID_OLD_SCALE};
    struct result dbias = {
        .shape = &k->parameters, .alpha = alpha, .beta = beta, .uid = UID_DBIAS, .old_uid = UID_OLD_BIAS};
    node dy = stored_tensor(b, UID_DY, &k->dy);
    if (k->ops != NORM_ONLY) {
        /* The gradient before the activation is also that of the addend. */
        const node masked =
            k->ops == NORM_ADD_ACTIVATION ? stored_tensor(b, UID_DZ, &k->dz) : virtual_tensor(b, &k->dy, math);
        build_activation_backward(b, &k->activation, math, stored_tensor(b, UID_Y, &k->y), dy, masked);
        dy = masked;
    }
    const node of_x = result_begin(b, &dx), of_scale = result_begin(b, &dscale), of_bias = result_begin(b, &dbias);
    build_norm_backward(b, k, dy, of_x, of_scale, of_bias);
    result_end(b, &dx);
    result_end(b, &dscale);
    result_end(b, &dbias);
}

static bool has_output_gradient(const struct cudnnActivationStruct *activation) {
    return activation->mode == CUDNN_ACTIVATION_RELU || activation->mode == CUDNN_ACTIVATION_CLIPPED_RELU ||
           activation->mode == CUDNN_ACTIVATION_IDENTITY;
}

cudnnStatus_t norm_backward(cudnnHandle_t handle, const struct norm_backward *c) {
    struct norm_key key;
    struct cached_plan *plan;
    REQUIRE_HANDLE(handle);
    REQUIRE(c->x.desc && c->dy.desc && c->dx.desc, "normalization: a descriptor is NULL.");
    REQUIRE(c->ops == NORM_ONLY || c->activation, "normalization: the activation descriptor is NULL.");
    if (c->ops != NORM_ONLY && !has_output_gradient(c->activation))
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED,
                         "normalization: the gradient of activation mode %d needs its input, which is not stored. Use "
                         "a ReLU.",
                         c->activation->mode);
    memset(&key, 0, sizeof key);
    key.head =
        (struct key_head){GRAPH_NORM_BACKWARD, ALIGNMENT(c->x.at, c->y.at, c->dy.at, c->dz.at, c->dx.at, c->scale,
                                                         c->dscale, c->dbias, c->saved_mean, c->saved_inverse)};
    key.ops = (int32_t)c->ops;
    cudnnStatus_t status =
        set_shapes(&key, c->is_per_activation, c->parameters_desc, 5,
                   (const struct named_shape[]){{c->x.desc, &key.x},
                                                {c->dy.desc, &key.dy},
                                                {c->dx.desc, &key.dx},
                                                {c->ops == NORM_ONLY ? NULL : c->y.desc, &key.y},
                                                {c->ops == NORM_ADD_ACTIVATION ? c->dz.desc : NULL, &key.dz}});
    if (status)
        return status;
    if (c->ops != NORM_ONLY)
        key.activation = *c->activation;
    key.has_saved = c->saved_mean && c->saved_inverse;
    key.alpha = read_factor(c->alpha, &c->x.desc->shape, 1), key.beta = read_factor(c->beta, &c->x.desc->shape, 0);
    key.alpha_parameters = read_factor(c->alpha_parameters, &c->x.desc->shape, 1);
    key.beta_parameters = read_factor(c->beta_parameters, &c->x.desc->shape, 0);
    status = plan_get(handle, &key, sizeof key, false, build_backward, &plan);
    if (status)
        return status;
    const float epsilon = (float)c->epsilon;
    const bool is_double = shape_math(&key.x) == CUDNN_DATA_DOUBLE;
    const struct binding bindings[] = {{UID_X, c->x.at},
                                       {UID_Y, c->y.at},
                                       {UID_DY, c->dy.at},
                                       {UID_DZ, c->dz.at},
                                       {UID_DX, c->dx.at},
                                       {UID_OLD, c->dx.at},
                                       {UID_SCALE, c->scale},
                                       {UID_DSCALE, c->dscale},
                                       {UID_DBIAS, c->dbias},
                                       {UID_OLD_SCALE, c->dscale},
                                       {UID_OLD_BIAS, c->dbias},
                                       {UID_SAVED_MEAN, c->saved_mean},
                                       {UID_SAVED_INVERSE, c->saved_inverse},
                                       {UID_EPSILON, is_double ? (const void *)&c->epsilon : &epsilon}};
    return plan_execute(handle, plan, sizeof bindings / sizeof *bindings, bindings, c->workspace, c->workspace_bytes);
}
