/* SPDX-License-Identifier: Apache-2.0 */
/* Local response normalization, across channels, and divisive normalization, across positions:

       s = k + alpha / n * (sum of x^2 over a window of n elements),  y = x * s^-beta

   A sum over a window divided by n is an average pooling whose padding counts as zeros. */
#include "src/window.h"

#include <stdlib.h>
#include <string.h>

struct cudnnLRNStruct {
    unsigned n;
    double alpha, beta, k;
};

/* cuDNN's initial values. */
static const struct cudnnLRNStruct initial = {5, 1e-4, 0.75, 2};

cudnnStatus_t cudnnCreateLRNDescriptor(cudnnLRNDescriptor_t *descriptor) {
    REQUIRE(descriptor, "cudnnCreateLRNDescriptor: the address of the descriptor is NULL.");
    *descriptor = malloc(sizeof **descriptor);
    if (!*descriptor)
        return fail_with(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
                         "cudnnCreateLRNDescriptor: out of memory.");
    **descriptor = initial;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyLRNDescriptor(cudnnLRNDescriptor_t descriptor) {
    free(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetLRNDescriptor(cudnnLRNDescriptor_t descriptor, unsigned n, double alpha, double beta, double k) {
    REQUIRE(descriptor, "cudnnSetLRNDescriptor: the descriptor is NULL.");
    REQUIRE(n >= CUDNN_LRN_MIN_N && n <= CUDNN_LRN_MAX_N, "cudnnSetLRNDescriptor: the window is %u: expected %d to %d.",
            n, CUDNN_LRN_MIN_N, CUDNN_LRN_MAX_N);
    REQUIRE(beta >= CUDNN_LRN_MIN_BETA && k >= CUDNN_LRN_MIN_K,
            "cudnnSetLRNDescriptor: beta is %g and k %g: expected at least %g and %g.", beta, k, CUDNN_LRN_MIN_BETA,
            CUDNN_LRN_MIN_K);
    *descriptor = (struct cudnnLRNStruct){n, alpha, beta, k};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetLRNDescriptor(cudnnLRNDescriptor_t descriptor, unsigned *n, double *alpha, double *beta,
                                    double *k) {
    REQUIRE(descriptor, "cudnnGetLRNDescriptor: the descriptor is NULL.");
    STORE(n, descriptor->n);
    STORE(alpha, descriptor->alpha);
    STORE(beta, descriptor->beta);
    STORE(k, descriptor->k);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

struct lrn_key {
    struct key_head head;
    int32_t is_across_channels;
    struct shape x, dy, result; /* with channels as a spatial dimension if the window is across channels */
    struct cudnnLRNStruct lrn;
    double alpha, beta;
};

/* The window around an element: it is longer after the element if n is even. Gradients use the reflected window. */
static struct window window_of(const struct lrn_key *k, bool is_reflected) {
    const int64_t n = k->lrn.n, before = (n - 1) / 2, after = n - 1 - before;
    struct window w = {
        .mode = WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING, .math = shape_math(&k->result), .spatial = k->result.rank - 2};
    for (int i = 0; i < w.spatial; i++) {
        bool has_window = !k->is_across_channels || i == 0;
        w.stride[i] = 1, w.extent[i] = has_window ? n : 1;
        w.before[i] = !has_window ? 0 : is_reflected ? after : before;
        w.after[i] = !has_window ? 0 : is_reflected ? before : after;
    }
    return w;
}

/* Virtual tensors of one function: all have the shape of the result, in the type of its arithmetic. */
static node temporary(struct builder *b, const struct lrn_key *k) {
    return virtual_tensor(b, &k->result, shape_math(&k->result));
}

static node number(struct builder *b, const struct lrn_key *k, double value) {
    return constant(b, value, shape_math(&k->result), k->result.rank);
}

static node binary(struct builder *b, const struct lrn_key *k, weftPointwiseMode_t mode, node x, node other) {
    const node y = temporary(b, k);
    build_binary(b, mode, shape_math(&k->result), x, other, y);
    return y;
}

/* s = k + alpha avg(x^2) */
static node build_norm(struct builder *b, const struct lrn_key *k, node x) {
    const struct window window = window_of(k, false);
    const node square = binary(b, k, WEFT_POINTWISE_MUL, x, x), average = temporary(b, k);
    build_window(b, &window, square, average);
    const node scaled = binary(b, k, WEFT_POINTWISE_MUL, average, number(b, k, k->lrn.alpha));
    return binary(b, k, WEFT_POINTWISE_ADD, scaled, number(b, k, k->lrn.k));
}

static void build_forward(struct builder *b, const void *key) {
    const struct lrn_key *k = key;
    struct result y = {.shape = &k->result, .alpha = k->alpha, .beta = k->beta, .uid = UID_Y, .old_uid = UID_OLD};
    const node value = result_begin(b, &y), x = stored_tensor(b, UID_X, &k->x), s = build_norm(b, k, x);
    const node factor = binary(b, k, WEFT_POINTWISE_POW, s, number(b, k, -k->lrn.beta));
    build_binary(b, WEFT_POINTWISE_MUL, shape_math(&k->result), x, factor, value);
    result_end(b, &y);
}

/* dx = dy s^-beta - 2 alpha beta x avg'(dy x s^(-beta - 1)), where avg' is over the reflected window */
static void build_backward(struct builder *b, const void *key) {
    const struct lrn_key *k = key;
    const struct window reflected = window_of(k, true);
    struct result dx = {.shape = &k->result, .alpha = k->alpha, .beta = k->beta, .uid = UID_DX, .old_uid = UID_OLD};
    const node value = result_begin(b, &dx), x = stored_tensor(b, UID_X, &k->x), dy = stored_tensor(b, UID_DY, &k->dy);
    const node s = build_norm(b, k, x), average = temporary(b, k);
    const node power = binary(b, k, WEFT_POINTWISE_POW, s, number(b, k, -k->lrn.beta));
    const node direct = binary(b, k, WEFT_POINTWISE_MUL, dy, power);
    const node quotient = binary(b, k, WEFT_POINTWISE_DIV, binary(b, k, WEFT_POINTWISE_MUL, direct, x), s);
    build_window(b, &reflected, quotient, average);
    const node scaled = binary(b, k, WEFT_POINTWISE_MUL, average, number(b, k, 2 * k->lrn.alpha * k->lrn.beta));
    const node indirect = binary(b, k, WEFT_POINTWISE_MUL, scaled, x);
    build_binary(b, WEFT_POINTWISE_SUB, shape_math(&k->result), direct, indirect, value);
    result_end(b, &dx);
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

/* [N, C, ...] becomes [N, 1, C, the rest as one dimension], so that a window can move along the channels. */
static cudnnStatus_t use_channels_as_positions(struct shape *shape) {
    struct shape result = {.type = shape->type,
                           .rank = 4,
                           .dims = {shape->dims[0], 1, shape->dims[1], 1},
                           .strides = {shape->strides[0], shape->strides[0], shape->strides[1], 1}};
    REQUIRE(shape->rank >= 2, "normalization across channels: the tensor has rank %d: expected at least 2.",
            shape->rank);
    int64_t step = shape->rank > 2 ? shape->strides[shape->rank - 1] : 1;
    result.strides[3] = step;
    for (int i = shape->rank - 1; i >= 2; i--) {
        if (shape->dims[i] > 1 && shape->strides[i] != step)
            return fail_with(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                             "normalization across channels: positions have gaps. Use the format NCHW or NHWC.");
        step *= shape->dims[i], result.dims[3] *= shape->dims[i];
    }
    *shape = result;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_shapes(struct lrn_key *key) {
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    struct shape *const shapes[] = {&key->x, &key->dy, &key->result};
    REQUIRE(key->result.rank <= SPATIAL_MAX + 2, "normalization: the tensor has rank %d: expected at most %d.",
            key->result.rank, SPATIAL_MAX + 2);
    for (int i = 0; i < 3 && key->is_across_channels && !status; i++)
        if (shapes[i]->rank)
            status = use_channels_as_positions(shapes[i]);
    return status;
}

static cudnnStatus_t forward(cudnnHandle_t handle, bool is_across_channels, cudnnLRNDescriptor_t lrn, const void *alpha,
                             cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                             cudnnTensorDescriptor_t y_desc, void *y) {
    struct lrn_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(lrn && x_desc && y_desc, "normalization: a descriptor is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_LRN, ALIGNMENT(x, y)};
    key.is_across_channels = is_across_channels, key.lrn.n = lrn->n;
    key.lrn.alpha = lrn->alpha, key.lrn.beta = lrn->beta, key.lrn.k = lrn->k;
    key.x = x_desc->shape, key.result = y_desc->shape;
    key.alpha = read_factor(alpha, &key.result, 1), key.beta = read_factor(beta, &key.result, 0);
    cudnnStatus_t status = set_shapes(&key);
    return status ? status : PLAN_RUN(handle, key, build_forward, {UID_X, x}, {UID_Y, y}, {UID_OLD, y});
}

static cudnnStatus_t backward(cudnnHandle_t handle, bool is_across_channels, cudnnLRNDescriptor_t lrn,
                              const void *alpha, cudnnTensorDescriptor_t dy_desc, const void *dy,
                              cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                              cudnnTensorDescriptor_t dx_desc, void *dx) {
    struct lrn_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(lrn && x_desc && dy_desc && dx_desc, "normalization: a descriptor is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_LRN_BACKWARD, ALIGNMENT(x, dy, dx)};
    key.is_across_channels = is_across_channels, key.lrn.n = lrn->n;
    key.lrn.alpha = lrn->alpha, key.lrn.beta = lrn->beta, key.lrn.k = lrn->k;
    key.x = x_desc->shape, key.dy = dy_desc->shape, key.result = dx_desc->shape;
    key.alpha = read_factor(alpha, &key.result, 1), key.beta = read_factor(beta, &key.result, 0);
    cudnnStatus_t status = set_shapes(&key);
    return status ? status
                  : PLAN_RUN(handle, key, build_backward, {UID_X, x}, {UID_DY, dy}, {UID_DX, dx}, {UID_OLD, dx});
}

cudnnStatus_t cudnnLRNCrossChannelForward(cudnnHandle_t handle, cudnnLRNDescriptor_t lrn, cudnnLRNMode_t mode,
                                          const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x,
                                          const void *beta, cudnnTensorDescriptor_t y_desc, void *y) {
    (void)mode;
    RETURN_COUNTED(forward(handle, true, lrn, alpha, x_desc, x, beta, y_desc, y));
}

cudnnStatus_t cudnnLRNCrossChannelBackward(cudnnHandle_t handle, cudnnLRNDescriptor_t lrn, cudnnLRNMode_t mode,
                                           const void *alpha, cudnnTensorDescriptor_t y_desc, const void *y,
                                           cudnnTensorDescriptor_t dy_desc, const void *dy,
                                           cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                                           cudnnTensorDescriptor_t dx_desc, void *dx) {
    (void)mode, (void)y_desc, (void)y;
    RETURN_COUNTED(backward(handle, true, lrn, alpha, dy_desc, dy, x_desc, x, beta, dx_desc, dx));
}

static cudnnStatus_t refuse_means(const void *means, const void *gradient) {
    if (means || gradient)
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED,
                         "divisive normalization: means are not supported. Pass NULL, which stands for zeros.");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t divide(cudnnHandle_t handle, cudnnLRNDescriptor_t lrn, const void *alpha,
                            cudnnTensorDescriptor_t x_desc, const void *x, const void *means, const void *beta,
                            cudnnTensorDescriptor_t y_desc, void *y) {
    cudnnStatus_t status = refuse_means(means, NULL);
    return status ? status : forward(handle, false, lrn, alpha, x_desc, x, beta, y_desc, y);
}

cudnnStatus_t cudnnDivisiveNormalizationForward(cudnnHandle_t handle, cudnnLRNDescriptor_t lrn, cudnnDivNormMode_t mode,
                                                const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x,
                                                const void *means, void *temp, void *temp2, const void *beta,
                                                cudnnTensorDescriptor_t y_desc, void *y) {
    (void)mode, (void)temp, (void)temp2;
    RETURN_COUNTED(divide(handle, lrn, alpha, x_desc, x, means, beta, y_desc, y));
}

static cudnnStatus_t divide_backward(cudnnHandle_t handle, cudnnLRNDescriptor_t lrn, const void *alpha,
                                     cudnnTensorDescriptor_t x_desc, const void *x, const void *means, const void *dy,
                                     const void *beta, cudnnTensorDescriptor_t dx_desc, void *dx, void *dmeans) {
    cudnnStatus_t status = refuse_means(means, dmeans);
    return status ? status : backward(handle, false, lrn, alpha, x_desc, dy, x_desc, x, beta, dx_desc, dx);
}

cudnnStatus_t cudnnDivisiveNormalizationBackward(cudnnHandle_t handle, cudnnLRNDescriptor_t lrn,
                                                 cudnnDivNormMode_t mode, const void *alpha,
                                                 cudnnTensorDescriptor_t x_desc, const void *x, const void *means,
                                                 const void *dy, void *temp, void *temp2, const void *beta,
                                                 cudnnTensorDescriptor_t dx_desc, void *dx, void *dmeans) {
    (void)mode, (void)temp, (void)temp2;
    RETURN_COUNTED(divide_backward(handle, lrn, alpha, x_desc, x, means, dy, beta, dx_desc, dx, dmeans));
}
