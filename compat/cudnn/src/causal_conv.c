/* SPDX-License-Identifier: Apache-2.0 */
/* Causal convolutions of sequences, separately for each channel. These functions have no handle: one per device is
   created at first use. */
#include "src/descriptors.h"

#include <string.h>

/* Sizes and layout: [B, D, L] and [D, K] in this order, or with the channels last in memory. */
struct sequences {
    int32_t is_channels_last, batch, channels, steps, taps, type, gradient_type, activation;
};

struct causal_key {
    struct key_head head;
    struct sequences sizes;
};

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

enum { DEVICES_MAX = 16 };

static struct {
    pthread_mutex_t lock; /* also held during a call, because the handle's stream is that of the call */
    cudnnHandle_t handles[DEVICES_MAX];
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The handle of the thread's device. */
static cudnnStatus_t find_handle(cudnnHandle_t *handle) {
    const int device = handle_current_device();
    REQUIRE(device >= 0 && device < DEVICES_MAX, "causal convolution: device %d: expected 0 to %d.", device,
            DEVICES_MAX - 1);
    cudnnStatus_t status = shared.handles[device] ? CUDNN_STATUS_SUCCESS : cudnnCreate(&shared.handles[device]);
    *handle = shared.handles[device];
    return status;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

static struct shape sequence_shape(const struct sequences *s) {
    const int64_t d = s->channels, l = s->steps;
    struct shape shape = {.type = s->type, .rank = 3, .dims = {s->batch, d, l}, .strides = {d * l, l, 1}};
    if (s->is_channels_last)
        shape.strides[1] = 1, shape.strides[2] = d;
    return shape;
}

static struct shape filter_shape(const struct sequences *s, int32_t type) {
    const int64_t d = s->channels, k = s->taps;
    struct shape shape = {.type = type, .rank = 2, .dims = {d, k}, .strides = {k, 1}};
    if (s->is_channels_last)
        shape.strides[0] = 1, shape.strides[1] = d;
    return shape;
}

static struct shape bias_shape(const struct sequences *s, int32_t type) {
    return (struct shape){.type = type, .rank = 1, .dims = {s->channels}, .strides = {1}};
}

static weftPointwiseMode_t activation_of(const struct sequences *s) {
    return s->activation == CUDNN_CAUSAL_CONV1D_ACTIVATION_SILU ? WEFT_POINTWISE_SWISH_FWD : WEFT_POINTWISE_IDENTITY;
}

static void build_forward(struct builder *b, const void *key) {
    const struct causal_key *k = key;
    const struct shape sequence = sequence_shape(&k->sizes), filter = filter_shape(&k->sizes, k->sizes.type),
                       row = bias_shape(&k->sizes, k->sizes.type);
    const weftPointwiseMode_t activation = activation_of(&k->sizes);
    const weftDataType_t math = (weftDataType_t)shape_math(&sequence);
    const node x = stored_tensor(b, UID_X, &sequence), w = stored_tensor(b, UID_W, &filter),
               bias = stored_tensor(b, UID_BIAS, &row), y = stored_tensor(b, UID_Y, &sequence);
    build_op(b, WEFT_BACKEND_OPERATION_CAUSAL_CONV1D_FWD_DESCRIPTOR_EXT, 6,
             (weftAttribute_t[]){
                 NODE(OPERATION_CAUSAL_CONV1D_FWD_XDESC_EXT, x), NODE(OPERATION_CAUSAL_CONV1D_FWD_WEIGHT_DESC_EXT, w),
                 NODE(OPERATION_CAUSAL_CONV1D_FWD_BIAS_DESC_EXT, bias), NODE(OPERATION_CAUSAL_CONV1D_FWD_YDESC_EXT, y),
                 VALUE(OPERATION_CAUSAL_CONV1D_FWD_ACTIVATION_EXT, POINTWISE_MODE, activation),
                 VALUE(OPERATION_CAUSAL_CONV1D_FWD_COMP_TYPE_EXT, DATA_TYPE, math)});
}

/* The gradients of filters and bias are added to what is stored, as cuDNN's are. */
static void build_backward(struct builder *b, const void *key) {
    const struct causal_key *k = key;
    const struct sequences *s = &k->sizes;
    const struct shape sequence = sequence_shape(s), filter = filter_shape(s, s->type), row = bias_shape(s, s->type);
    const struct shape of_filter = filter_shape(s, s->gradient_type), of_row = bias_shape(s, s->gradient_type);
    const weftPointwiseMode_t activation = activation_of(s);
    const weftDataType_t math = (weftDataType_t)shape_math(&sequence);
    struct result dw = {.shape = &of_filter, .alpha = 1, .beta = 1, .uid = UID_DSCALE, .old_uid = UID_OLD_SCALE};
    struct result db = {.shape = &of_row, .alpha = 1, .beta = 1, .uid = UID_DBIAS, .old_uid = UID_OLD_BIAS};
    const node x = stored_tensor(b, UID_X, &sequence), w = stored_tensor(b, UID_W, &filter),
               bias = stored_tensor(b, UID_BIAS, &row), dy = stored_tensor(b, UID_DY, &sequence),
               dx = stored_tensor(b, UID_DX, &sequence), dweight = result_begin(b, &dw), dbias = result_begin(b, &db);
    build_op(b, WEFT_BACKEND_OPERATION_CAUSAL_CONV1D_BWD_DESCRIPTOR_EXT, 9,
             (weftAttribute_t[]){NODE(OPERATION_CAUSAL_CONV1D_BWD_DYDESC_EXT, dy),
                                 NODE(OPERATION_CAUSAL_CONV1D_BWD_XDESC_EXT, x),
                                 NODE(OPERATION_CAUSAL_CONV1D_BWD_WEIGHT_DESC_EXT, w),
                                 NODE(OPERATION_CAUSAL_CONV1D_BWD_BIAS_DESC_EXT, bias),
                                 NODE(OPERATION_CAUSAL_CONV1D_BWD_DXDESC_EXT, dx),
                                 NODE(OPERATION_CAUSAL_CONV1D_BWD_DWEIGHT_DESC_EXT, dweight),
                                 NODE(OPERATION_CAUSAL_CONV1D_BWD_DBIAS_DESC_EXT, dbias),
                                 VALUE(OPERATION_CAUSAL_CONV1D_BWD_ACTIVATION_EXT, POINTWISE_MODE, activation),
                                 VALUE(OPERATION_CAUSAL_CONV1D_BWD_COMP_TYPE_EXT, DATA_TYPE, math)});
    result_end(b, &dw);
    result_end(b, &db);
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

struct addresses {
    const void *x, *w, *bias, *dy;
    void *y, *dx, *dw, *db;
};

static cudnnStatus_t run_locked(cudaStream_t stream, const struct sequences *sizes, const struct addresses *at) {
    struct causal_key key;
    cudnnHandle_t handle = NULL;
    cudnnStatus_t status = find_handle(&handle);
    if (!status)
        status = cudnnSetStream(handle, stream);
    if (status)
        return status;
    memset(&key, 0, sizeof key);
    key.head.alignment = ALIGNMENT(at->x, at->w, at->bias, at->dy, at->y, at->dx, at->dw, at->db);
    key.head.graph = at->dy ? GRAPH_CAUSAL_CONV_BACKWARD : GRAPH_CAUSAL_CONV;
    key.sizes = *sizes;
    if (!at->dy)
        return PLAN_RUN(handle, key, build_forward, {UID_X, at->x}, {UID_W, at->w}, {UID_BIAS, at->bias},
                        {UID_Y, at->y});
    return PLAN_RUN(handle, key, build_backward, {UID_X, at->x}, {UID_W, at->w}, {UID_BIAS, at->bias}, {UID_DY, at->dy},
                    {UID_DX, at->dx}, {UID_DSCALE, at->dw}, {UID_OLD_SCALE, at->dw}, {UID_DBIAS, at->db},
                    {UID_OLD_BIAS, at->db});
}

static cudnnStatus_t run(cudaStream_t stream, const struct sequences *s, const struct addresses *at) {
    REQUIRE(s->batch > 0 && s->channels > 0 && s->steps > 0 && s->taps > 0,
            "causal convolution: batch %d, %d channels, %d steps, %d taps: expected at least 1 of each.", s->batch,
            s->channels, s->steps, s->taps);
    REQUIRE(at->x && at->w && at->bias, "causal convolution: x, the filters or the bias is NULL.");
    pthread_mutex_lock(&shared.lock);
    cudnnStatus_t status = run_locked(stream, s, at);
    pthread_mutex_unlock(&shared.lock);
    return status;
}

/* The functions of a layout. */
#define DEFINE_LAYOUT(name, is_channels_last)                                                                          \
    cudnnStatus_t cudnn##name##Forward(cudaStream_t stream, const void *x, const void *w, const void *bias, void *y,   \
                                       int batch, int channels, int steps, int taps, cudnnDataType_t type,             \
                                       cudnnCausalConv1dActivation_t activation) {                                     \
        const struct sequences sizes = {is_channels_last, batch, channels,           steps, taps,                      \
                                        (int32_t)type,    0,     (int32_t)activation};                                 \
        RETURN_COUNTED(run(stream, &sizes, &(struct addresses){.x = x, .w = w, .bias = bias, .y = y}));                \
    }                                                                                                                  \
    cudnnStatus_t cudnn##name##Backward(cudaStream_t stream, const void *x, const void *w, const void *bias,           \
                                        const void *dy, void *dx, void *dw, void *db, int batch, int channels,         \
                                        int steps, int taps, cudnnDataType_t type, cudnnDataType_t gradient_type,      \
                                        cudnnCausalConv1dActivation_t activation) {                                    \
        const struct sequences sizes =                                                                                 \
            {is_channels_last,   batch, channels, steps, taps, (int32_t)type, (int32_t)gradient_type,                  \
             (int32_t)activation};                                                                                     \
        RETURN_COUNTED(                                                                                                \
            run(stream, &sizes,                                                                                        \
                &(struct addresses){.x = x, .w = w, .bias = bias, .dy = dy, .dx = dx, .dw = dw, .db = db}));           \
    }
DEFINE_LAYOUT(CausalConv1d, false)
DEFINE_LAYOUT(CausalConv1dNwh, true)
