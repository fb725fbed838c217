/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution and its gradients. The number of an algorithm is only a hint: each runs the plan that Weft selects, so
   every number works. */
#include "src/convolution.h"

#include <string.h>

struct convolution_key {
    struct key_head head;
    int32_t direction, is_exact;
    struct shape x, w, y, z, bias;
    struct cudnnConvolutionStruct convolution;
    struct cudnnActivationStruct activation;
    double alpha, beta, alpha2;
    int32_t has_z;
};

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

static node build_parameters(struct builder *b, const struct cudnnConvolutionStruct *c) {
    const weftConvolutionMode_t mode = (weftConvolutionMode_t)c->mode;
    const int64_t spatial = c->spatial;
    weftDataType_t compute = (weftDataType_t)c->compute;
    /* Weft accumulates in float at least, which is more exact than a program that asks for half requires. */
    if (compute == WEFT_DATA_HALF || compute == WEFT_DATA_BFLOAT16)
        compute = WEFT_DATA_FLOAT;
    return build(b, WEFT_BACKEND_CONVOLUTION_DESCRIPTOR, 7,
                 (weftAttribute_t[]){VALUE(CONVOLUTION_COMP_TYPE, DATA_TYPE, compute),
                                     VALUE(CONVOLUTION_CONV_MODE, CONVOLUTION_MODE, mode),
                                     VALUE(CONVOLUTION_SPATIAL_DIMS, INT64, spatial),
                                     LIST(CONVOLUTION_PRE_PADDINGS, INT64, spatial, c->padding),
                                     LIST(CONVOLUTION_POST_PADDINGS, INT64, spatial, c->padding),
                                     LIST(CONVOLUTION_FILTER_STRIDES, INT64, spatial, c->stride),
                                     LIST(CONVOLUTION_DILATIONS, INT64, spatial, c->dilation)});
}

static void build_convolution(struct builder *b, const struct convolution_key *k, node x, node w, node y) {
    static const struct {
        weftBackendDescriptorType_t kind;
        weftBackendAttributeName_t convolution, x, w, y;
    } names[] = {
        [FORWARD] = {WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                     WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                     WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W, WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
        [BACKWARD_DATA] = {WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                           WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                           WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                           WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
        [BACKWARD_FILTER] = {WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                             WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                             WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                             WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                             WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
    };
    const node parameters = build_parameters(b, &k->convolution);
    build_op(b, names[k->direction].kind, 4,
             (weftAttribute_t[]){{names[k->direction].convolution, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &parameters},
                                 {names[k->direction].x, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &x},
                                 {names[k->direction].w, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &w},
                                 {names[k->direction].y, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &y}});
}

static void build_direction(struct builder *b, const void *key) {
    const struct convolution_key *k = key;
    const struct shape *const shapes[] = {[FORWARD] = &k->y, [BACKWARD_DATA] = &k->x, [BACKWARD_FILTER] = &k->w};
    static const int64_t uids[] = {[FORWARD] = UID_Y, [BACKWARD_DATA] = UID_X, [BACKWARD_FILTER] = UID_W};
    struct result result = {.shape = shapes[k->direction],
                            .alpha = k->alpha,
                            .beta = k->beta,
                            .uid = uids[k->direction],
                            .old_uid = UID_OLD};
    const node value = result_begin(b, &result);
    const node x = k->direction == BACKWARD_DATA ? value : stored_tensor(b, UID_X, &k->x);
    const node w = k->direction == BACKWARD_FILTER ? value : stored_tensor(b, UID_W, &k->w);
    const node y = k->direction == FORWARD ? value : stored_tensor(b, UID_Y, &k->y);
    build_convolution(b, k, x, w, y);
    result_end(b, &result);
}

/* y = activation(alpha1 conv(x, w) + alpha2 z + bias) */
static void build_fused(struct builder *b, const void *key) {
    const struct convolution_key *k = key;
    const int32_t math = shape_math(&k->y);
    const bool has_activation = k->activation.mode != CUDNN_ACTIVATION_IDENTITY;
    const node x = stored_tensor(b, UID_X, &k->x), w = stored_tensor(b, UID_W, &k->w);
    const node y = stored_tensor(b, UID_Y, &k->y), bias = stored_tensor(b, UID_BIAS, &k->bias);
    node sum = virtual_tensor(b, &k->y, math);
    build_convolution(b, k, x, w, sum);
    if (k->alpha != 1) {
        const node scaled = virtual_tensor(b, &k->y, math);
        build_scaled(b, &k->y, k->alpha, sum, scaled);
        sum = scaled;
    }
    if (k->has_z) {
        const node scaled = virtual_tensor(b, &k->y, math), with_z = virtual_tensor(b, &k->y, math);
        node z = stored_tensor(b, UID_Z, &k->z);
        if (k->alpha2 != 1)
            build_scaled(b, &k->y, k->alpha2, z, scaled), z = scaled;
        build_binary(b, WEFT_POINTWISE_ADD, math, sum, z, with_z);
        sum = with_z;
    }
    const node biased = has_activation ? virtual_tensor(b, &k->y, math) : y;
    build_binary(b, WEFT_POINTWISE_ADD, math, sum, bias, biased);
    if (has_activation)
        build_activation(b, &k->activation, math, biased, y);
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

/* Sets the fields that all directions have. */
static cudnnStatus_t set_key(struct convolution_key *key, const struct convolution_operands *operands) {
    memset(key, 0, sizeof *key);
    REQUIRE(operands->x && operands->w && operands->convolution && operands->y,
            "convolution: a descriptor is NULL. Create and set all of them.");
    key->x = operands->x->shape, key->w = operands->w->shape, key->y = operands->y->shape;
    key->convolution = *operands->convolution;
    key->is_exact = key->convolution.math == CUDNN_FMA_MATH;
    /* The plan does not depend on these, so they must not make keys differ. Groups follow from the channels. */
    key->convolution.math = key->convolution.reorder = 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t convolution_plan(cudnnHandle_t handle, enum direction direction,
                               const struct convolution_operands *operands, double alpha, double beta,
                               int32_t alignment, struct cached_plan **plan) {
    struct convolution_key key;
    REQUIRE_HANDLE(handle);
    cudnnStatus_t status = set_key(&key, operands);
    if (status)
        return status;
    key.head = (struct key_head){GRAPH_CONVOLUTION, alignment};
    key.direction = (int32_t)direction, key.alpha = alpha, key.beta = beta;
    return plan_get(handle, &key, sizeof key, key.is_exact, build_direction, plan);
}

/* The addresses of a call. */
struct addresses {
    const void *alpha, *beta, *x, *w, *y;
    void *workspace;
    size_t workspace_bytes;
};

static cudnnStatus_t run(cudnnHandle_t handle, enum direction direction, const struct convolution_operands *operands,
                         const struct addresses *at) {
    struct cached_plan *plan;
    REQUIRE(operands->x && operands->w && operands->y, "convolution: a descriptor is NULL.");
    REQUIRE(at->alpha && at->beta, "convolution: alpha or beta is NULL.");
    const struct shape *const shapes[] = {[FORWARD] = &operands->y->shape,
                                          [BACKWARD_DATA] = &operands->x->shape,
                                          [BACKWARD_FILTER] = &operands->w->shape};
    const void *const results[] = {[FORWARD] = at->y, [BACKWARD_DATA] = at->x, [BACKWARD_FILTER] = at->w};
    cudnnStatus_t status =
        convolution_plan(handle, direction, operands, read_factor(at->alpha, shapes[direction], 1),
                         read_factor(at->beta, shapes[direction], 0), ALIGNMENT(at->x, at->w, at->y), &plan);
    const struct binding bindings[] = {{UID_X, at->x}, {UID_W, at->w}, {UID_Y, at->y}, {UID_OLD, results[direction]}};
    return status ? status : plan_execute(handle, plan, 4, bindings, at->workspace, at->workspace_bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc,
                                      const void *x, cudnnFilterDescriptor_t w_desc, const void *w,
                                      cudnnConvolutionDescriptor_t convolution, cudnnConvolutionFwdAlgo_t algorithm,
                                      void *workspace, size_t workspace_bytes, const void *beta,
                                      cudnnTensorDescriptor_t y_desc, void *y) {
    (void)algorithm;
    RETURN_COUNTED(run(handle, FORWARD, &(struct convolution_operands){x_desc, w_desc, convolution, y_desc},
                       &(struct addresses){alpha, beta, x, w, y, workspace, workspace_bytes}));
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w_desc,
                                           const void *w, cudnnTensorDescriptor_t dy_desc, const void *dy,
                                           cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace,
                                           size_t workspace_bytes, const void *beta, cudnnTensorDescriptor_t dx_desc,
                                           void *dx) {
    (void)algorithm;
    RETURN_COUNTED(run(handle, BACKWARD_DATA, &(struct convolution_operands){dx_desc, w_desc, convolution, dy_desc},
                       &(struct addresses){alpha, beta, dx, w, dy, workspace, workspace_bytes}));
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_desc,
                                             const void *x, cudnnTensorDescriptor_t dy_desc, const void *dy,
                                             cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace,
                                             size_t workspace_bytes, const void *beta, cudnnFilterDescriptor_t dw_desc,
                                             void *dw) {
    (void)algorithm;
    RETURN_COUNTED(run(handle, BACKWARD_FILTER, &(struct convolution_operands){x_desc, dw_desc, convolution, dy_desc},
                       &(struct addresses){alpha, beta, x, dw, dy, workspace, workspace_bytes}));
}

/* The operands that only the fused function has. */
struct fusion {
    const void *alpha2, *z, *bias;
    cudnnTensorDescriptor_t z_desc, bias_desc;
    cudnnActivationDescriptor_t activation;
};

static cudnnStatus_t run_fused(cudnnHandle_t handle, const struct convolution_operands *operands,
                               const struct addresses *at, const struct fusion *fusion) {
    struct convolution_key key;
    struct cached_plan *plan;
    REQUIRE_HANDLE(handle);
    REQUIRE(fusion->bias_desc && fusion->activation && at->alpha && fusion->alpha2,
            "cudnnConvolutionBiasActivationForward: an argument is NULL.");
    cudnnStatus_t status = set_key(&key, operands);
    if (status)
        return status;
    key.head = (struct key_head){GRAPH_CONVOLUTION_FUSED, ALIGNMENT(at->x, at->w, at->y, fusion->z, fusion->bias)};
    key.bias = fusion->bias_desc->shape, key.activation = *fusion->activation;
    key.alpha = read_factor(at->alpha, &key.y, 1), key.alpha2 = read_factor(fusion->alpha2, &key.y, 0);
    key.has_z = key.alpha2 != 0 && fusion->z_desc && fusion->z;
    if (key.has_z)
        key.z = fusion->z_desc->shape;
    status = plan_get(handle, &key, sizeof key, key.is_exact, build_fused, &plan);
    const struct binding bindings[] = {
        {UID_X, at->x}, {UID_W, at->w}, {UID_Y, at->y}, {UID_Z, fusion->z}, {UID_BIAS, fusion->bias}};
    return status ? status : plan_execute(handle, plan, 5, bindings, at->workspace, at->workspace_bytes);
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnFilterDescriptor_t w_desc, const void *w, cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t algorithm, void *workspace, size_t workspace_bytes, const void *alpha2,
    cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t bias_desc, const void *bias,
    cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_desc, void *y) {
    (void)algorithm;
    RETURN_COUNTED(run_fused(handle, &(struct convolution_operands){x_desc, w_desc, convolution, y_desc},
                             &(struct addresses){alpha1, NULL, x, w, y, workspace, workspace_bytes},
                             &(struct fusion){alpha2, z, bias, z_desc, bias_desc, activation}));
}

/* ---- Gradient of the bias ---------------------------------------------------------------------------------------- */

struct bias_key {
    struct key_head head;
    struct shape dy, db;
    double alpha, beta;
};

static void build_bias(struct builder *b, const void *key) {
    const struct bias_key *k = key;
    struct result db = {.shape = &k->db, .alpha = k->alpha, .beta = k->beta, .uid = UID_DBIAS, .old_uid = UID_OLD};
    const node value = result_begin(b, &db);
    build_reduction(b, WEFT_REDUCE_TENSOR_ADD, shape_math(&k->dy), stored_tensor(b, UID_DY, &k->dy), value);
    result_end(b, &db);
}

static cudnnStatus_t run_bias(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t dy_desc, const void *dy,
                              const void *beta, cudnnTensorDescriptor_t db_desc, void *db) {
    struct bias_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(dy_desc && db_desc && alpha && beta, "cudnnConvolutionBackwardBias: an argument is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_CONVOLUTION_BIAS, ALIGNMENT(dy, db)};
    key.dy = dy_desc->shape, key.db = db_desc->shape;
    key.alpha = read_factor(alpha, &key.db, 1), key.beta = read_factor(beta, &key.db, 0);
    return PLAN_RUN(handle, key, build_bias, {UID_DY, dy}, {UID_DBIAS, db}, {UID_OLD, db});
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t dy_desc,
                                           const void *dy, const void *beta, cudnnTensorDescriptor_t db_desc,
                                           void *db) {
    RETURN_COUNTED(run_bias(handle, alpha, dy_desc, dy, beta, db_desc, db));
}
