/* SPDX-License-Identifier: Apache-2.0 */
/* Activations and their gradients. */
#include "src/descriptors.h"

#include <stdlib.h>
#include <string.h>

DEFINE_LIFETIME(Activation)

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t nan, double coef) {
    REQUIRE(activation, "cudnnSetActivationDescriptor: the descriptor is NULL.");
    REQUIRE((int)mode >= CUDNN_ACTIVATION_SIGMOID && (int)mode <= CUDNN_ACTIVATION_SWISH,
            "cudnnSetActivationDescriptor: mode %d does not exist: expected a cudnnActivationMode_t.", (int)mode);
    *activation = (struct cudnnActivationStruct){(int32_t)mode, (int32_t)nan, coef, 1};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetActivationDescriptor(cudnnActivationDescriptor_t activation, cudnnActivationMode_t *mode,
                                           cudnnNanPropagation_t *nan, double *coef) {
    REQUIRE(activation, "cudnnGetActivationDescriptor: the descriptor is NULL.");
    STORE(mode, (cudnnActivationMode_t)activation->mode);
    STORE(nan, (cudnnNanPropagation_t)activation->nan);
    STORE(coef, activation->coef);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetActivationDescriptorSwishBeta(cudnnActivationDescriptor_t activation, double beta) {
    REQUIRE(activation, "cudnnSetActivationDescriptorSwishBeta: the descriptor is NULL.");
    activation->swish_beta = beta;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetActivationDescriptorSwishBeta(cudnnActivationDescriptor_t activation, double *beta) {
    REQUIRE(activation && beta, "cudnnGetActivationDescriptorSwishBeta: an argument is NULL.");
    *beta = activation->swish_beta;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static struct pointwise pointwise_of(const struct cudnnActivationStruct *a, int32_t math, bool is_backward) {
    static const weftPointwiseMode_t modes[][2] = {
        [CUDNN_ACTIVATION_SIGMOID] = {WEFT_POINTWISE_SIGMOID_FWD, WEFT_POINTWISE_SIGMOID_BWD},
        [CUDNN_ACTIVATION_RELU] = {WEFT_POINTWISE_RELU_FWD, WEFT_POINTWISE_RELU_BWD},
        [CUDNN_ACTIVATION_TANH] = {WEFT_POINTWISE_TANH_FWD, WEFT_POINTWISE_TANH_BWD},
        [CUDNN_ACTIVATION_CLIPPED_RELU] = {WEFT_POINTWISE_RELU_FWD, WEFT_POINTWISE_RELU_BWD},
        [CUDNN_ACTIVATION_ELU] = {WEFT_POINTWISE_ELU_FWD, WEFT_POINTWISE_ELU_BWD},
        [CUDNN_ACTIVATION_IDENTITY] = {WEFT_POINTWISE_IDENTITY, WEFT_POINTWISE_IDENTITY},
        [CUDNN_ACTIVATION_SWISH] = {WEFT_POINTWISE_SWISH_FWD, WEFT_POINTWISE_SWISH_BWD}};
    return (struct pointwise){.mode = modes[a->mode][is_backward],
                              .math = math,
                              .clip = a->mode == CUDNN_ACTIVATION_CLIPPED_RELU ? &a->coef : NULL,
                              .elu_alpha = a->mode == CUDNN_ACTIVATION_ELU ? &a->coef : NULL,
                              .swish_beta = a->mode == CUDNN_ACTIVATION_SWISH ? &a->swish_beta : NULL};
}

void build_activation(struct builder *b, const struct cudnnActivationStruct *activation, int32_t math, node x, node y) {
    struct pointwise p = pointwise_of(activation, math, false);
    p.x = x, p.y = y;
    build_pointwise(b, &p);
}

void build_activation_backward(struct builder *b, const struct cudnnActivationStruct *activation, int32_t math, node x,
                               node dy, node dx) {
    struct pointwise p = pointwise_of(activation, math, true);
    if (activation->mode == CUDNN_ACTIVATION_IDENTITY)
        p.x = dy, p.y = dx;
    else
        p.x = x, p.dy = dy, p.dx = dx;
    build_pointwise(b, &p);
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

struct activation_key {
    struct key_head head;
    struct shape x, dy, result;
    struct cudnnActivationStruct activation;
    double alpha, beta;
};

static void build_forward(struct builder *b, const void *key) {
    const struct activation_key *k = key;
    struct result y = {.shape = &k->result, .alpha = k->alpha, .beta = k->beta, .uid = UID_Y, .old_uid = UID_OLD};
    const node value = result_begin(b, &y);
    build_activation(b, &k->activation, shape_math(&k->result), stored_tensor(b, UID_X, &k->x), value);
    result_end(b, &y);
}

static cudnnStatus_t forward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation, const void *alpha,
                             cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                             cudnnTensorDescriptor_t y_desc, void *y) {
    struct activation_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(activation && x_desc && y_desc, "cudnnActivationForward: a descriptor is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_ACTIVATION, ALIGNMENT(x, y)};
    key.x = x_desc->shape, key.result = y_desc->shape, key.activation = *activation;
    key.alpha = read_factor(alpha, &key.result, 1), key.beta = read_factor(beta, &key.result, 0);
    return PLAN_RUN(handle, key, build_forward, {UID_X, x}, {UID_Y, y}, {UID_OLD, y});
}

cudnnStatus_t cudnnActivationForward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation, const void *alpha,
                                     cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                                     cudnnTensorDescriptor_t y_desc, void *y) {
    RETURN_COUNTED(forward(handle, activation, alpha, x_desc, x, beta, y_desc, y));
}

static void build_backward(struct builder *b, const void *key) {
    const struct activation_key *k = key;
    struct result dx = {.shape = &k->result, .alpha = k->alpha, .beta = k->beta, .uid = UID_DX, .old_uid = UID_OLD};
    const node value = result_begin(b, &dx), x = stored_tensor(b, UID_X, &k->x), dy = stored_tensor(b, UID_DY, &k->dy);
    build_activation_backward(b, &k->activation, shape_math(&k->result), x, dy, value);
    result_end(b, &dx);
}

/* The gradient is computed from the input x. The mask of a ReLU is the same for its output, so a program may pass only
   y. */
static cudnnStatus_t backward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation, const void *alpha,
                              cudnnTensorDescriptor_t y_desc, const void *y, cudnnTensorDescriptor_t dy_desc,
                              const void *dy, cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                              cudnnTensorDescriptor_t dx_desc, void *dx) {
    struct activation_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(activation && dy_desc && dx_desc, "cudnnActivationBackward: a descriptor is NULL.");
    bool is_relu = activation->mode == CUDNN_ACTIVATION_RELU || activation->mode == CUDNN_ACTIVATION_CLIPPED_RELU;
    bool has_x = x_desc && x, has_y = y_desc && y;
    REQUIRE(has_x || (is_relu && has_y), "cudnnActivationBackward: the input x is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_ACTIVATION_BACKWARD, ALIGNMENT(has_x ? x : y, dy, dx)};
    key.x = has_x ? x_desc->shape : y_desc->shape, key.dy = dy_desc->shape, key.result = dx_desc->shape;
    key.activation = *activation;
    key.alpha = read_factor(alpha, &key.result, 1), key.beta = read_factor(beta, &key.result, 0);
    return PLAN_RUN(handle, key, build_backward, {UID_X, has_x ? x : y}, {UID_DY, dy}, {UID_DX, dx}, {UID_OLD, dx});
}

cudnnStatus_t cudnnActivationBackward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation, const void *alpha,
                                      cudnnTensorDescriptor_t y_desc, const void *y, cudnnTensorDescriptor_t dy_desc,
                                      const void *dy, cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                                      cudnnTensorDescriptor_t dx_desc, void *dx) {
    RETURN_COUNTED(backward(handle, activation, alpha, y_desc, y, dy_desc, dy, x_desc, x, beta, dx_desc, dx));
}
