/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax and its logarithm, over channels or over all elements of a batch entry, and their gradients. */
#include "src/descriptors.h"

#include <string.h>

struct softmax_key {
    struct key_head head;
    int32_t is_log;
    struct shape x, y, dy; /* x: of the input, or of its gradient */
    double alpha, beta;
};

/* Rows are along dimension 1. In mode INSTANCE, all elements of a batch entry are one row; `first` is the shape of
   another operand, whose elements must have the same order. */
static cudnnStatus_t use_rows(struct shape *shape, const struct shape *first, cudnnSoftmaxMode_t mode) {
    if (mode == CUDNN_SOFTMAX_MODE_CHANNEL)
        return CUDNN_STATUS_SUCCESS;
    for (int i = 1; i < shape->rank; i++)
        if (shape->rank != first->rank || (shape->dims[i] > 1 && shape->strides[i] != first->strides[i]))
            return fail_with(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                             "softmax: the tensors have different layouts, which mode INSTANCE does not support. Use "
                             "one layout.");
    const int64_t count = shape_elements(shape) / shape->dims[0];
    /* Channels last is a permutation of the same row, which no sum depends on. */
    bool is_channels_last = shape->rank > 2 && shape->strides[1] == 1 && shape->strides[0] == count;
    if (!shape_is_packed_from(shape, 1) && !is_channels_last)
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                         "softmax: a batch entry has gaps, which mode INSTANCE does not support. Use packed tensors.");
    *shape = (struct shape){
        .type = shape->type, .rank = 2, .dims = {shape->dims[0], count}, .strides = {shape->strides[0], 1}};
    return CUDNN_STATUS_SUCCESS;
}

/* One element per row. */
static struct shape statistics_of(const struct shape *shape) {
    struct shape result = *shape;
    result.dims[1] = 1;
    shape_pack(&result, CUDNN_TENSOR_NCHW);
    return result;
}

/* log softmax(x) = x - log sum exp x */
static void build_forward(struct builder *b, const void *key) {
    const struct softmax_key *k = key;
    const int64_t axis = 1;
    const int32_t math = shape_math(&k->x);
    const struct shape row = statistics_of(&k->x);
    struct result result = {.shape = &k->y, .alpha = k->alpha, .beta = k->beta, .uid = UID_Y, .old_uid = UID_OLD};
    const node value = result_begin(b, &result), x = stored_tensor(b, UID_X, &k->x);
    const node weights = k->is_log ? virtual_tensor(b, &k->y, math) : value;
    const node stats = k->is_log ? virtual_tensor(b, &row, math) : NULL;
    build_op(b, WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR, k->is_log ? 4 : 3,
             (weftAttribute_t[]){NODE(OPERATION_SOFTMAX_XDESC, x), NODE(OPERATION_SOFTMAX_YDESC, weights),
                                 VALUE(OPERATION_SOFTMAX_AXIS_EXT, INT64, axis),
                                 NODE(OPERATION_SOFTMAX_STATS_DESC, stats)});
    if (k->is_log)
        build_binary(b, WEFT_POINTWISE_SUB, math, x, stats, value);
    result_end(b, &result);
}

/* dx = y (dy - sum(dy y)); for the logarithm dx = dy - exp(y) sum(dy) */
static void build_backward(struct builder *b, const void *key) {
    const struct softmax_key *k = key;
    const int32_t math = shape_math(&k->x);
    const struct shape row = statistics_of(&k->x);
    struct result result = {.shape = &k->x, .alpha = k->alpha, .beta = k->beta, .uid = UID_DX, .old_uid = UID_OLD};
    const node dx = result_begin(b, &result), y = stored_tensor(b, UID_Y, &k->y), dy = stored_tensor(b, UID_DY, &k->dy);
    const node sum = virtual_tensor(b, &row, math), product = virtual_tensor(b, &k->x, math),
               difference = virtual_tensor(b, &k->x, math);
    if (k->is_log) {
        build_reduction(b, WEFT_REDUCE_TENSOR_ADD, math, dy, sum);
        build_unary(b, WEFT_POINTWISE_EXP, math, y, product);
        build_binary(b, WEFT_POINTWISE_MUL, math, product, sum, difference);
        build_binary(b, WEFT_POINTWISE_SUB, math, dy, difference, dx);
    } else {
        build_binary(b, WEFT_POINTWISE_MUL, math, dy, y, product);
        build_reduction(b, WEFT_REDUCE_TENSOR_ADD, math, product, sum);
        build_binary(b, WEFT_POINTWISE_SUB, math, dy, sum, difference);
        build_binary(b, WEFT_POINTWISE_MUL, math, difference, y, dx);
    }
    result_end(b, &result);
}

static cudnnStatus_t forward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                             const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                             cudnnTensorDescriptor_t y_desc, void *y) {
    struct softmax_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(x_desc && y_desc, "cudnnSoftmaxForward: a descriptor is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_SOFTMAX, ALIGNMENT(x, y)};
    key.is_log = algorithm == CUDNN_SOFTMAX_LOG, key.x = x_desc->shape, key.y = y_desc->shape;
    key.alpha = read_factor(alpha, &key.y, 1), key.beta = read_factor(beta, &key.y, 0);
    cudnnStatus_t status = use_rows(&key.x, &x_desc->shape, mode);
    if (!status)
        status = use_rows(&key.y, &x_desc->shape, mode);
    return status ? status : PLAN_RUN(handle, key, build_forward, {UID_X, x}, {UID_Y, y}, {UID_OLD, y});
}

cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                                  const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                                  cudnnTensorDescriptor_t y_desc, void *y) {
    RETURN_COUNTED(forward(handle, algorithm, mode, alpha, x_desc, x, beta, y_desc, y));
}

static cudnnStatus_t backward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                              const void *alpha, cudnnTensorDescriptor_t y_desc, const void *y,
                              cudnnTensorDescriptor_t dy_desc, const void *dy, const void *beta,
                              cudnnTensorDescriptor_t dx_desc, void *dx) {
    struct softmax_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(y_desc && dy_desc && dx_desc, "cudnnSoftmaxBackward: a descriptor is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_SOFTMAX_BACKWARD, ALIGNMENT(y, dy, dx)};
    key.is_log = algorithm == CUDNN_SOFTMAX_LOG;
    key.x = dx_desc->shape, key.y = y_desc->shape, key.dy = dy_desc->shape;
    key.alpha = read_factor(alpha, &key.x, 1), key.beta = read_factor(beta, &key.x, 0);
    cudnnStatus_t status = use_rows(&key.x, &dx_desc->shape, mode);
    if (!status)
        status = use_rows(&key.y, &dx_desc->shape, mode);
    if (!status)
        status = use_rows(&key.dy, &dx_desc->shape, mode);
    return status ? status
                  : PLAN_RUN(handle, key, build_backward, {UID_Y, y}, {UID_DY, dy}, {UID_DX, dx}, {UID_OLD, dx});
}

cudnnStatus_t cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                                   const void *alpha, cudnnTensorDescriptor_t y_desc, const void *y,
                                   cudnnTensorDescriptor_t dy_desc, const void *dy, const void *beta,
                                   cudnnTensorDescriptor_t dx_desc, void *dx) {
    RETURN_COUNTED(backward(handle, algorithm, mode, alpha, y_desc, y, dy_desc, dy, beta, dx_desc, dx));
}
