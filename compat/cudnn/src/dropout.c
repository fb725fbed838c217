/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout. The states are a seed and an offset in the memory of the device. Each forward call draws the numbers of its
   offset and increments the offset on the device, so that a captured call draws new numbers at each replay. The reserve
   space is the mask, one byte per element. */
#include "src/descriptors.h"
#include "src/fallback.h"

#include <stdlib.h>
#include <string.h>

enum { STATES_BYTES = 16, OFFSET_POSITION = 8 };

cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *descriptor) {
    REQUIRE(descriptor, "cudnnCreateDropoutDescriptor: the address of the descriptor is NULL.");
    *descriptor = calloc(1, sizeof **descriptor);
    return *descriptor ? CUDNN_STATUS_SUCCESS
                       : fail_with(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
                                   "cudnnCreateDropoutDescriptor: out of memory.");
}

cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t descriptor) {
    if (descriptor)
        fallback_destroy_dropout(descriptor);
    free(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

/* The states of the second library, if there is one, follow Weft's. */
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *bytes) {
    REQUIRE_HANDLE(handle);
    REQUIRE(bytes, "cudnnDropoutGetStatesSize: the address of the size is NULL.");
    size_t others = fallback_states_bytes(handle);
    *bytes = others ? FALLBACK_STATES_OFFSET + others : STATES_BYTES;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t attach(cudnnDropoutDescriptor_t descriptor, float probability, void *states, size_t bytes,
                            unsigned long long seed) {
    REQUIRE(descriptor, "dropout: the descriptor is NULL.");
    REQUIRE(probability >= 0 && probability <= 1, "dropout: the probability is %g: expected 0 to 1.",
            (double)probability);
    if (states && bytes < STATES_BYTES)
        return fail_with(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "dropout: the states have %zu bytes: expected %d.",
                         bytes, STATES_BYTES);
    descriptor->probability = probability, descriptor->seed = seed;
    descriptor->states = states, descriptor->states_bytes = bytes;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle,
                                            float probability, void *states, size_t bytes, unsigned long long seed) {
    REQUIRE_HANDLE(handle);
    cudnnStatus_t status = attach(descriptor, probability, states, bytes, seed);
    return status ? status : fallback_set_dropout(handle, descriptor, false);
}

cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle, float probability,
                                        void *states, size_t bytes, unsigned long long seed) {
    const unsigned long long start[] = {seed, 0};
    REQUIRE_HANDLE(handle);
    cudnnStatus_t status = attach(descriptor, probability, states, bytes, seed);
    if (!status && states)
        status = from_weft(weftCopy(handle->weft, states, start, sizeof start, handle->stream));
    return status ? status : fallback_set_dropout(handle, descriptor, true);
}

cudnnStatus_t cudnnGetDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle, float *probability,
                                        void **states, unsigned long long *seed) {
    (void)handle;
    REQUIRE(descriptor, "cudnnGetDropoutDescriptor: the descriptor is NULL.");
    STORE(probability, descriptor->probability);
    STORE(states, descriptor->states);
    STORE(seed, descriptor->seed);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDropoutGetReserveSpaceSize(cudnnTensorDescriptor_t x, size_t *bytes) {
    REQUIRE(x && bytes, "cudnnDropoutGetReserveSpaceSize: an argument is NULL.");
    *bytes = (size_t)shape_elements(&x->shape);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

struct dropout_key {
    struct key_head head;
    struct shape x, y;
    float probability;
};

static struct shape mask_of(const struct shape *x) {
    struct shape mask = *x;
    mask.type = CUDNN_DATA_INT8;
    shape_pack(&mask, CUDNN_TENSOR_NCHW);
    return mask;
}

/* y = x mask / (1 - p) */
static void build_masked(struct builder *b, const struct dropout_key *k, node mask) {
    const int32_t math = shape_math(&k->y);
    const double keep = 1 - (double)k->probability;
    const node x = stored_tensor(b, UID_X, &k->x), y = stored_tensor(b, UID_Y, &k->y);
    const node scaled = virtual_tensor(b, &k->y, math);
    build_binary(b, WEFT_POINTWISE_MUL, math, x, constant(b, keep > 0 ? 1 / keep : 0, math, k->x.rank), scaled);
    build_binary(b, WEFT_POINTWISE_MUL, math, scaled, mask, y);
}

static void build_forward(struct builder *b, const void *key) {
    const struct dropout_key *k = key;
    const weftRngDistribution_t distribution = WEFT_RNG_DISTRIBUTION_BERNOULLI;
    const double keep = 1 - (double)k->probability;
    const struct shape mask_shape = mask_of(&k->x), one = shape_of_scalar(CUDNN_DATA_INT64, k->x.rank);
    const node mask = stored_tensor(b, UID_MASK, &mask_shape), seed = stored_tensor(b, UID_SEED, &one),
               offset = stored_tensor(b, UID_OFFSET, &one);
    const node parameters = build(b, WEFT_BACKEND_RNG_DESCRIPTOR, 2,
                                  (weftAttribute_t[]){VALUE(RNG_DISTRIBUTION, RNG_DISTRIBUTION, distribution),
                                                      VALUE(RNG_BERNOULLI_DIST_PROBABILITY, DOUBLE, keep)});
    build_op(b, WEFT_BACKEND_OPERATION_RNG_DESCRIPTOR, 4,
             (weftAttribute_t[]){NODE(OPERATION_RNG_DESC, parameters), NODE(OPERATION_RNG_SEED, seed),
                                 NODE(OPERATION_RNG_OFFSET_DESC, offset), NODE(OPERATION_RNG_YDESC, mask)});
    build_masked(b, k, mask);
}

static void build_backward(struct builder *b, const void *key) {
    const struct dropout_key *k = key;
    const struct shape mask_shape = mask_of(&k->x);
    build_masked(b, k, stored_tensor(b, UID_MASK, &mask_shape));
}

/* offset = offset + 1 */
static void build_advance(struct builder *b, const void *key) {
    const struct shape one = shape_of_scalar(CUDNN_DATA_INT64, 1);
    (void)key;
    build_binary(b, WEFT_POINTWISE_ADD, CUDNN_DATA_INT64, stored_tensor(b, UID_OLD, &one),
                 constant(b, 1, CUDNN_DATA_INT64, 1), stored_tensor(b, UID_OFFSET, &one));
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static cudnnStatus_t set_key(struct dropout_key *key, cudnnDropoutDescriptor_t descriptor,
                             cudnnTensorDescriptor_t x_desc, cudnnTensorDescriptor_t y_desc, const void *reserve,
                             size_t reserve_bytes) {
    memset(key, 0, sizeof *key);
    REQUIRE(descriptor && x_desc && y_desc && reserve, "dropout: an argument is NULL.");
    if (reserve_bytes < (size_t)shape_elements(&x_desc->shape))
        return fail_with(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                         "dropout: the reserve space has %zu bytes: expected %zu.", reserve_bytes,
                         (size_t)shape_elements(&x_desc->shape));
    key->x = x_desc->shape, key->y = y_desc->shape, key->probability = descriptor->probability;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t forward(cudnnHandle_t handle, cudnnDropoutDescriptor_t descriptor, cudnnTensorDescriptor_t x_desc,
                             const void *x, cudnnTensorDescriptor_t y_desc, void *y, void *reserve,
                             size_t reserve_bytes) {
    const struct key_head advance = {GRAPH_DROPOUT_ADVANCE, OFFSET_POSITION};
    struct dropout_key key;
    REQUIRE_HANDLE(handle);
    cudnnStatus_t status = set_key(&key, descriptor, x_desc, y_desc, reserve, reserve_bytes);
    if (status)
        return status;
    REQUIRE(descriptor->states, "cudnnDropoutForward: the descriptor has no states. Call cudnnSetDropoutDescriptor.");
    char *seed = descriptor->states, *offset = seed + OFFSET_POSITION;
    key.head = (struct key_head){GRAPH_DROPOUT, ALIGNMENT(x, y, reserve, seed, offset)};
    status = PLAN_RUN(handle, key, build_forward, {UID_X, x}, {UID_Y, y}, {UID_MASK, reserve}, {UID_SEED, seed},
                      {UID_OFFSET, offset});
    return status ? status : PLAN_RUN(handle, advance, build_advance, {UID_OLD, offset}, {UID_OFFSET, offset});
}

cudnnStatus_t cudnnDropoutForward(cudnnHandle_t handle, cudnnDropoutDescriptor_t descriptor,
                                  cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t y_desc,
                                  void *y, void *reserve, size_t reserve_bytes) {
    RETURN_COUNTED(forward(handle, descriptor, x_desc, x, y_desc, y, reserve, reserve_bytes));
}

static cudnnStatus_t backward(cudnnHandle_t handle, cudnnDropoutDescriptor_t descriptor,
                              cudnnTensorDescriptor_t dy_desc, const void *dy, cudnnTensorDescriptor_t dx_desc,
                              void *dx, const void *reserve, size_t reserve_bytes) {
    struct dropout_key key;
    REQUIRE_HANDLE(handle);
    cudnnStatus_t status = set_key(&key, descriptor, dy_desc, dx_desc, reserve, reserve_bytes);
    key.head = (struct key_head){GRAPH_DROPOUT_BACKWARD, ALIGNMENT(dy, dx, reserve)};
    return status ? status : PLAN_RUN(handle, key, build_backward, {UID_X, dy}, {UID_Y, dx}, {UID_MASK, reserve});
}

cudnnStatus_t cudnnDropoutBackward(cudnnHandle_t handle, cudnnDropoutDescriptor_t descriptor,
                                   cudnnTensorDescriptor_t dy_desc, const void *dy, cudnnTensorDescriptor_t dx_desc,
                                   void *dx, void *reserve, size_t reserve_bytes) {
    RETURN_COUNTED(backward(handle, descriptor, dy_desc, dy, dx_desc, dx, reserve, reserve_bytes));
}
