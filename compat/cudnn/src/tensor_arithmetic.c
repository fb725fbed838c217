/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and products of tensors, fills, and copies into other layouts. */
#include "src/tensor_arithmetic.h"

#include <stdlib.h>
#include <string.h>

struct arithmetic_key {
    struct key_head head;
    int32_t op;
    struct shape x, other, result;
    double alpha, alpha2, beta;
};

/* ---- y = alpha x + beta y ---------------------------------------------------------------------------------------- */

static void build_add(struct builder *b, const void *key) {
    const struct arithmetic_key *k = key;
    struct result y = {.shape = &k->result, .alpha = k->alpha, .beta = k->beta, .uid = UID_Y, .old_uid = UID_OLD};
    const node value = result_begin(b, &y), x = stored_tensor(b, UID_X, &k->x);
    build_unary(b, WEFT_POINTWISE_IDENTITY, shape_math(&k->result), x, value);
    result_end(b, &y);
}

cudnnStatus_t add_scaled(cudnnHandle_t handle, const void *alpha, const struct shape *from_shape, const void *from,
                         const void *beta, const struct shape *to_shape, void *to) {
    struct arithmetic_key key;
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_ADD, ALIGNMENT(from, to)};
    key.x = *from_shape, key.result = *to_shape;
    key.alpha = read_factor(alpha, to_shape, 1), key.beta = read_factor(beta, to_shape, 0);
    return PLAN_RUN(handle, key, build_add, {UID_X, from}, {UID_Y, to}, {UID_OLD, to});
}

static cudnnStatus_t add(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x,
                         const void *beta, cudnnTensorDescriptor_t y_desc, void *y) {
    REQUIRE_HANDLE(handle);
    REQUIRE(x_desc && y_desc, "adding tensors: a descriptor is NULL.");
    return add_scaled(handle, alpha, &x_desc->shape, x, beta, &y_desc->shape, y);
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x,
                             const void *beta, cudnnTensorDescriptor_t y_desc, void *y) {
    RETURN_COUNTED(add(handle, alpha, x_desc, x, beta, y_desc, y));
}

cudnnStatus_t cudnnTransformTensor(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc,
                                   const void *x, const void *beta, cudnnTensorDescriptor_t y_desc, void *y) {
    RETURN_COUNTED(add(handle, alpha, x_desc, x, beta, y_desc, y));
}

/* ---- y = alpha y, y = value -------------------------------------------------------------------------------------- */

static void build_scale(struct builder *b, const void *key) {
    const struct arithmetic_key *k = key;
    const node old = stored_tensor(b, UID_OLD, &k->result), y = stored_tensor(b, UID_Y, &k->result);
    build_scaled(b, &k->result, k->alpha, old, y);
}

static cudnnStatus_t scale(cudnnHandle_t handle, cudnnTensorDescriptor_t y_desc, void *y, const void *alpha) {
    struct arithmetic_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(y_desc && alpha, "cudnnScaleTensor: an argument is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_SCALE, ALIGNMENT(y)};
    key.result = y_desc->shape, key.alpha = read_factor(alpha, &key.result, 1);
    return PLAN_RUN(handle, key, build_scale, {UID_OLD, y}, {UID_Y, y});
}

cudnnStatus_t cudnnScaleTensor(cudnnHandle_t handle, cudnnTensorDescriptor_t y_desc, void *y, const void *alpha) {
    RETURN_COUNTED(scale(handle, y_desc, y, alpha));
}

static void build_fill(struct builder *b, const void *key) {
    const struct arithmetic_key *k = key;
    build_unary(b, WEFT_POINTWISE_IDENTITY, shape_math(&k->result), by_value(b, UID_X, k->result.type, k->result.rank),
                stored_tensor(b, UID_Y, &k->result));
}

cudnnStatus_t fill(cudnnHandle_t handle, const struct shape *shape, void *to, const void *value) {
    struct arithmetic_key key;
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_FILL, ALIGNMENT(to)};
    key.result = *shape;
    return PLAN_RUN(handle, key, build_fill, {UID_X, value}, {UID_Y, to});
}

static cudnnStatus_t set(cudnnHandle_t handle, cudnnTensorDescriptor_t y_desc, void *y, const void *value) {
    REQUIRE_HANDLE(handle);
    REQUIRE(y_desc && value, "cudnnSetTensor: an argument is NULL.");
    return fill(handle, &y_desc->shape, y, value);
}

cudnnStatus_t cudnnSetTensor(cudnnHandle_t handle, cudnnTensorDescriptor_t y_desc, void *y, const void *value) {
    RETURN_COUNTED(set(handle, y_desc, y, value));
}

/* ---- c = op(alpha a, alpha2 b) + beta c -------------------------------------------------------------------------- */

struct cudnnOpTensorStruct {
    cudnnOpTensorOp_t op;
    cudnnDataType_t compute;
    cudnnNanPropagation_t nan;
};

DEFINE_LIFETIME(OpTensor)

cudnnStatus_t cudnnSetOpTensorDescriptor(cudnnOpTensorDescriptor_t descriptor, cudnnOpTensorOp_t op,
                                         cudnnDataType_t compute, cudnnNanPropagation_t nan) {
    REQUIRE(descriptor, "cudnnSetOpTensorDescriptor: the descriptor is NULL.");
    REQUIRE((int)op >= CUDNN_OP_TENSOR_ADD && (int)op <= CUDNN_OP_TENSOR_NOT,
            "cudnnSetOpTensorDescriptor: operation %d does not exist: expected a cudnnOpTensorOp_t.", (int)op);
    *descriptor = (struct cudnnOpTensorStruct){op, compute, nan};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetOpTensorDescriptor(cudnnOpTensorDescriptor_t descriptor, cudnnOpTensorOp_t *op,
                                         cudnnDataType_t *compute, cudnnNanPropagation_t *nan) {
    REQUIRE(descriptor, "cudnnGetOpTensorDescriptor: the descriptor is NULL.");
    STORE(op, descriptor->op);
    STORE(compute, descriptor->compute);
    STORE(nan, descriptor->nan);
    return CUDNN_STATUS_SUCCESS;
}

static bool is_binary(int32_t op) { return op != CUDNN_OP_TENSOR_SQRT && op != CUDNN_OP_TENSOR_NOT; }

/* An operand times its factor. */
static node build_operand(struct builder *b, int64_t uid, const struct shape *shape, int32_t math, double factor) {
    const node operand = stored_tensor(b, uid, shape);
    if (factor == 1)
        return operand;
    const node scaled = virtual_tensor(b, shape, math);
    struct shape in_math = *shape;
    in_math.type = math;
    build_scaled(b, &in_math, factor, operand, scaled);
    return scaled;
}

static void build_op_tensor(struct builder *b, const void *key) {
    static const weftPointwiseMode_t modes[] = {[CUDNN_OP_TENSOR_ADD] = WEFT_POINTWISE_ADD,
                                                [CUDNN_OP_TENSOR_MUL] = WEFT_POINTWISE_MUL,
                                                [CUDNN_OP_TENSOR_MIN] = WEFT_POINTWISE_MIN,
                                                [CUDNN_OP_TENSOR_MAX] = WEFT_POINTWISE_MAX,
                                                [CUDNN_OP_TENSOR_SQRT] = WEFT_POINTWISE_SQRT};
    const struct arithmetic_key *k = key;
    const int32_t math = shape_math(&k->result);
    struct result c = {.shape = &k->result, .alpha = 1, .beta = k->beta, .uid = UID_Y, .old_uid = UID_OLD};
    const node value = result_begin(b, &c), x = build_operand(b, UID_X, &k->x, math, k->alpha);
    if (is_binary(k->op))
        build_binary(b, modes[k->op], math, x, build_operand(b, UID_W, &k->other, math, k->alpha2), value);
    else if (k->op == CUDNN_OP_TENSOR_NOT) /* 1 - x */
        build_binary(b, WEFT_POINTWISE_SUB, math, constant(b, 1, math, k->result.rank), x, value);
    else
        build_unary(b, modes[k->op], math, x, value);
    result_end(b, &c);
}

static cudnnStatus_t op_tensor(cudnnHandle_t handle, cudnnOpTensorDescriptor_t op, const void *alpha1,
                               cudnnTensorDescriptor_t a_desc, const void *a, const void *alpha2,
                               cudnnTensorDescriptor_t b_desc, const void *b, const void *beta,
                               cudnnTensorDescriptor_t c_desc, void *c) {
    struct arithmetic_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(op && a_desc && c_desc, "cudnnOpTensor: a descriptor is NULL.");
    REQUIRE(!is_binary((int32_t)op->op) || (b_desc && b), "cudnnOpTensor: operation %d needs the operand B.",
            (int)op->op);
    memset(&key, 0, sizeof key);
    key.op = (int32_t)op->op;
    key.head = (struct key_head){GRAPH_OP_TENSOR, ALIGNMENT(a, is_binary(key.op) ? b : NULL, c)};
    key.x = a_desc->shape, key.result = c_desc->shape;
    if (is_binary(key.op))
        key.other = b_desc->shape, key.alpha2 = read_factor(alpha2, &key.result, 1);
    key.alpha = read_factor(alpha1, &key.result, 1), key.beta = read_factor(beta, &key.result, 0);
    return PLAN_RUN(handle, key, build_op_tensor, {UID_X, a}, {UID_W, b}, {UID_Y, c}, {UID_OLD, c});
}

cudnnStatus_t cudnnOpTensor(cudnnHandle_t handle, cudnnOpTensorDescriptor_t op, const void *alpha1,
                            cudnnTensorDescriptor_t a_desc, const void *a, const void *alpha2,
                            cudnnTensorDescriptor_t b_desc, const void *b, const void *beta,
                            cudnnTensorDescriptor_t c_desc, void *c) {
    RETURN_COUNTED(op_tensor(handle, op, alpha1, a_desc, a, alpha2, b_desc, b, beta, c_desc, c));
}
