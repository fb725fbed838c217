/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling and its gradient. */
#include "src/window.h"

#include <stdlib.h>
#include <string.h>

struct cudnnPoolingStruct {
    int32_t mode, nan, spatial, unused; /* keys are compared as bytes, so there must be no padding */
    int64_t window[SPATIAL_MAX], padding[SPATIAL_MAX], stride[SPATIAL_MAX];
};

DEFINE_LIFETIME(Pooling)

cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nan, int spatial, const int *window, const int *padding,
                                          const int *stride) {
    REQUIRE(pooling && window && padding && stride, "cudnnSetPoolingNdDescriptor: an argument is NULL.");
    REQUIRE((int)mode >= CUDNN_POOLING_MAX && (int)mode <= CUDNN_POOLING_MAX_DETERMINISTIC,
            "cudnnSetPoolingNdDescriptor: mode %d does not exist: expected a cudnnPoolingMode_t.", (int)mode);
    REQUIRE(spatial > 0 && spatial <= SPATIAL_MAX,
            "cudnnSetPoolingNdDescriptor: %d spatial dimensions: expected 1 to %d.", spatial, SPATIAL_MAX);
    *pooling = (struct cudnnPoolingStruct){.mode = (int32_t)mode, .nan = (int32_t)nan, .spatial = spatial};
    for (int i = 0; i < spatial; i++) {
        REQUIRE(window[i] > 0 && padding[i] >= 0 && stride[i] > 0,
                "cudnnSetPoolingNdDescriptor: window %d, padding %d and stride %d of dimension %d: expected at least "
                "1, 0 and 1.",
                window[i], padding[i], stride[i], i);
        pooling->window[i] = window[i], pooling->padding[i] = padding[i], pooling->stride[i] = stride[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nan, int window_h, int window_w, int pad_h, int pad_w,
                                          int stride_h, int stride_w) {
    return cudnnSetPoolingNdDescriptor(pooling, mode, nan, 2, (int[]){window_h, window_w}, (int[]){pad_h, pad_w},
                                       (int[]){stride_h, stride_w});
}

cudnnStatus_t cudnnGetPoolingNdDescriptor(cudnnPoolingDescriptor_t pooling, int requested, cudnnPoolingMode_t *mode,
                                          cudnnNanPropagation_t *nan, int *spatial, int *window, int *padding,
                                          int *stride) {
    REQUIRE(pooling, "cudnnGetPoolingNdDescriptor: the descriptor is NULL.");
    STORE(mode, (cudnnPoolingMode_t)pooling->mode);
    STORE(nan, (cudnnNanPropagation_t)pooling->nan);
    STORE(spatial, pooling->spatial);
    for (int i = 0; i < requested && i < pooling->spatial; i++) {
        window[i] = (int)pooling->window[i];
        padding[i] = (int)pooling->padding[i];
        stride[i] = (int)pooling->stride[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetPooling2dDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t *mode,
                                          cudnnNanPropagation_t *nan, int *window_h, int *window_w, int *pad_h,
                                          int *pad_w, int *stride_h, int *stride_w) {
    REQUIRE(pooling && pooling->spatial == 2,
            "cudnnGetPooling2dDescriptor: the descriptor does not have 2 spatial dimensions.");
    STORE(mode, (cudnnPoolingMode_t)pooling->mode);
    STORE(nan, (cudnnNanPropagation_t)pooling->nan);
    STORE(window_h, (int)pooling->window[0]);
    STORE(window_w, (int)pooling->window[1]);
    STORE(pad_h, (int)pooling->padding[0]);
    STORE(pad_w, (int)pooling->padding[1]);
    STORE(stride_h, (int)pooling->stride[0]);
    STORE(stride_w, (int)pooling->stride[1]);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetPoolingNdForwardOutputDim(cudnnPoolingDescriptor_t pooling, cudnnTensorDescriptor_t x, int rank,
                                                int *dims) {
    REQUIRE(pooling && x && dims, "cudnnGetPoolingNdForwardOutputDim: an argument is NULL.");
    REQUIRE(rank == x->shape.rank && rank == pooling->spatial + 2,
            "cudnnGetPoolingNdForwardOutputDim: the input has rank %d and the window %d dimensions: expected rank %d.",
            x->shape.rank, pooling->spatial, rank);
    dims[0] = (int)x->shape.dims[0], dims[1] = (int)x->shape.dims[1];
    for (int i = 0; i < pooling->spatial; i++) {
        int64_t padded = x->shape.dims[i + 2] + 2 * pooling->padding[i];
        dims[i + 2] = 1 + (int)((padded - pooling->window[i]) / pooling->stride[i]);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetPooling2dForwardOutputDim(cudnnPoolingDescriptor_t pooling, cudnnTensorDescriptor_t x, int *n,
                                                int *c, int *h, int *w) {
    int dims[4], *const results[] = {n, c, h, w};
    cudnnStatus_t status = cudnnGetPoolingNdForwardOutputDim(pooling, x, 4, dims);
    for (int i = 0; i < 4 && !status; i++)
        STORE(results[i], dims[i]);
    return status;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

node build_window_parameters(struct builder *b, const struct window *w) {
    const weftDataType_t math = (weftDataType_t)w->math;
    return build(b, WEFT_BACKEND_RESAMPLE_DESCRIPTOR, 7,
                 (weftAttribute_t[]){VALUE(RESAMPLE_MODE, RESAMPLE_MODE, w->mode),
                                     VALUE(RESAMPLE_COMP_TYPE, DATA_TYPE, math),
                                     VALUE(RESAMPLE_SPATIAL_DIMS, INT64, w->spatial),
                                     LIST(RESAMPLE_WINDOW_DIMS, INT64, w->spatial, w->extent),
                                     LIST(RESAMPLE_PRE_PADDINGS, INT64, w->spatial, w->before),
                                     LIST(RESAMPLE_POST_PADDINGS, INT64, w->spatial, w->after),
                                     LIST(RESAMPLE_STRIDES, INT64, w->spatial, w->stride)});
}

void build_window(struct builder *b, const struct window *window, node x, node y) {
    const node parameters = build_window_parameters(b, window);
    build_op(b, WEFT_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR, 3,
             (weftAttribute_t[]){NODE(OPERATION_RESAMPLE_FWD_DESC, parameters), NODE(OPERATION_RESAMPLE_FWD_XDESC, x),
                                 NODE(OPERATION_RESAMPLE_FWD_YDESC, y)});
}

struct pooling_key {
    struct key_head head;
    struct shape x, y, dy, dx;
    struct cudnnPoolingStruct pooling;
    double alpha, beta;
};

static struct window window_of(const struct pooling_key *k) {
    static const weftResampleMode_t modes[] = {
        [CUDNN_POOLING_MAX] = WEFT_RESAMPLE_MAXPOOL,
        [CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING] = WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING,
        [CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING] = WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING,
        [CUDNN_POOLING_MAX_DETERMINISTIC] = WEFT_RESAMPLE_MAXPOOL};
    const struct cudnnPoolingStruct *p = &k->pooling;
    struct window w = {.mode = modes[p->mode], .math = shape_math(&k->x), .spatial = p->spatial};
    for (int i = 0; i < p->spatial; i++) {
        w.extent[i] = p->window[i], w.stride[i] = p->stride[i];
        w.before[i] = w.after[i] = p->padding[i];
    }
    return w;
}

static void build_forward(struct builder *b, const void *key) {
    const struct pooling_key *k = key;
    const struct window window = window_of(k);
    struct result y = {.shape = &k->y, .alpha = k->alpha, .beta = k->beta, .uid = UID_Y, .old_uid = UID_OLD};
    const node value = result_begin(b, &y), x = stored_tensor(b, UID_X, &k->x);
    build_window(b, &window, x, value);
    result_end(b, &y);
}

static bool is_maximum(const struct cudnnPoolingStruct *pooling) {
    return pooling->mode == CUDNN_POOLING_MAX || pooling->mode == CUDNN_POOLING_MAX_DETERMINISTIC;
}

/* The position of a maximum is found again from x and y; averages need neither. */
static void build_backward(struct builder *b, const void *key) {
    const struct pooling_key *k = key;
    const struct window window = window_of(k);
    struct result result = {.shape = &k->dx, .alpha = k->alpha, .beta = k->beta, .uid = UID_DX, .old_uid = UID_OLD};
    const node dx = result_begin(b, &result), dy = stored_tensor(b, UID_DY, &k->dy);
    const node parameters = build_window_parameters(b, &window);
    const node x = is_maximum(&k->pooling) ? stored_tensor(b, UID_X, &k->x) : NULL;
    const node y = is_maximum(&k->pooling) ? stored_tensor(b, UID_Y, &k->y) : NULL;
    build_op(b, WEFT_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR, x ? 5 : 3,
             (weftAttribute_t[]){NODE(OPERATION_RESAMPLE_BWD_DESC, parameters), NODE(OPERATION_RESAMPLE_BWD_DXDESC, dx),
                                 NODE(OPERATION_RESAMPLE_BWD_DYDESC, dy), NODE(OPERATION_RESAMPLE_BWD_XDESC, x),
                                 NODE(OPERATION_RESAMPLE_BWD_YDESC, y)});
    result_end(b, &result);
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static cudnnStatus_t forward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void *alpha,
                             cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                             cudnnTensorDescriptor_t y_desc, void *y) {
    struct pooling_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(pooling && x_desc && y_desc, "cudnnPoolingForward: a descriptor is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_POOLING, ALIGNMENT(x, y)};
    key.pooling = *pooling, key.x = x_desc->shape, key.y = y_desc->shape;
    key.alpha = read_factor(alpha, &key.y, 1), key.beta = read_factor(beta, &key.y, 0);
    return PLAN_RUN(handle, key, build_forward, {UID_X, x}, {UID_Y, y}, {UID_OLD, y});
}

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void *alpha,
                                  cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                                  cudnnTensorDescriptor_t y_desc, void *y) {
    RETURN_COUNTED(forward(handle, pooling, alpha, x_desc, x, beta, y_desc, y));
}

static cudnnStatus_t backward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void *alpha,
                              cudnnTensorDescriptor_t y_desc, const void *y, cudnnTensorDescriptor_t dy_desc,
                              const void *dy, cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                              cudnnTensorDescriptor_t dx_desc, void *dx) {
    struct pooling_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(pooling && y_desc && dy_desc && x_desc && dx_desc, "cudnnPoolingBackward: a descriptor is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_POOLING_BACKWARD, ALIGNMENT(x, y, dy, dx)};
    key.pooling = *pooling;
    key.x = x_desc->shape, key.y = y_desc->shape, key.dy = dy_desc->shape, key.dx = dx_desc->shape;
    key.alpha = read_factor(alpha, &key.dx, 1), key.beta = read_factor(beta, &key.dx, 0);
    return PLAN_RUN(handle, key, build_backward, {UID_X, x}, {UID_Y, y}, {UID_DY, dy}, {UID_DX, dx}, {UID_OLD, dx});
}

cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void *alpha,
                                   cudnnTensorDescriptor_t y_desc, const void *y, cudnnTensorDescriptor_t dy_desc,
                                   const void *dy, cudnnTensorDescriptor_t x_desc, const void *x, const void *beta,
                                   cudnnTensorDescriptor_t dx_desc, void *dx) {
    RETURN_COUNTED(backward(handle, pooling, alpha, y_desc, y, dy_desc, dy, x_desc, x, beta, dx_desc, dx));
}
