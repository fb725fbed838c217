/* SPDX-License-Identifier: Apache-2.0 */
/* CTC loss of probabilities, or of logits, whose softmax is then part of the function; class 0 is blank. Gradients are
   by the logits in both cases, and 0 in steps that a sequence does not have. */
#include "src/descriptors.h"

#include <stdlib.h>
#include <string.h>

struct cudnnCTCLossStruct {
    int32_t type, normalization, nan, gradient_mode, max_label_length;
};

DEFINE_LIFETIME(CTCLoss)

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

static cudnnStatus_t set(cudnnCTCLossDescriptor_t ctc, const struct cudnnCTCLossStruct *fields) {
    REQUIRE(ctc, "cudnnSetCTCLossDescriptor: the descriptor is NULL.");
    REQUIRE(fields->type == CUDNN_DATA_FLOAT, "cudnnSetCTCLossDescriptor: data type %d: expected %d (FLOAT).",
            fields->type, (int)CUDNN_DATA_FLOAT);
    REQUIRE(fields->max_label_length >= 0,
            "cudnnSetCTCLossDescriptor: the maximum label length is %d: expected at least 0.",
            fields->max_label_length);
    *ctc = *fields;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetCTCLossDescriptor(cudnnCTCLossDescriptor_t ctc, cudnnDataType_t type) {
    return set(ctc, &(struct cudnnCTCLossStruct){.type = (int32_t)type});
}

cudnnStatus_t cudnnSetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t ctc, cudnnDataType_t type,
                                          cudnnLossNormalizationMode_t normalization, cudnnNanPropagation_t nan) {
    return set(ctc, &(struct cudnnCTCLossStruct){
                        .type = (int32_t)type, .normalization = (int32_t)normalization, .nan = (int32_t)nan});
}

cudnnStatus_t cudnnSetCTCLossDescriptor_v8(cudnnCTCLossDescriptor_t ctc, cudnnDataType_t type,
                                           cudnnLossNormalizationMode_t normalization, cudnnNanPropagation_t nan,
                                           int max_label_length) {
    return set(ctc, &(struct cudnnCTCLossStruct){.type = (int32_t)type,
                                                 .normalization = (int32_t)normalization,
                                                 .nan = (int32_t)nan,
                                                 .max_label_length = max_label_length});
}

cudnnStatus_t cudnnSetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t ctc, cudnnDataType_t type,
                                           cudnnLossNormalizationMode_t normalization, cudnnCTCGradMode_t gradient_mode,
                                           int max_label_length) {
    return set(ctc, &(struct cudnnCTCLossStruct){.type = (int32_t)type,
                                                 .normalization = (int32_t)normalization,
                                                 .gradient_mode = (int32_t)gradient_mode,
                                                 .max_label_length = max_label_length});
}

static cudnnStatus_t get(cudnnCTCLossDescriptor_t ctc, cudnnDataType_t *type,
                         cudnnLossNormalizationMode_t *normalization, int *max_label_length) {
    REQUIRE(ctc, "cudnnGetCTCLossDescriptor: the descriptor is NULL.");
    STORE(type, (cudnnDataType_t)ctc->type);
    STORE(normalization, (cudnnLossNormalizationMode_t)ctc->normalization);
    STORE(max_label_length, ctc->max_label_length);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetCTCLossDescriptor(cudnnCTCLossDescriptor_t ctc, cudnnDataType_t *type) {
    return get(ctc, type, NULL, NULL);
}

cudnnStatus_t cudnnGetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t ctc, cudnnDataType_t *type,
                                          cudnnLossNormalizationMode_t *normalization, cudnnNanPropagation_t *nan) {
    return cudnnGetCTCLossDescriptor_v8(ctc, type, normalization, nan, NULL);
}

cudnnStatus_t cudnnGetCTCLossDescriptor_v8(cudnnCTCLossDescriptor_t ctc, cudnnDataType_t *type,
                                           cudnnLossNormalizationMode_t *normalization, cudnnNanPropagation_t *nan,
                                           int *max_label_length) {
    cudnnStatus_t status = get(ctc, type, normalization, max_label_length);
    if (!status)
        STORE(nan, (cudnnNanPropagation_t)ctc->nan);
    return status;
}

cudnnStatus_t cudnnGetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t ctc, cudnnDataType_t *type,
                                           cudnnLossNormalizationMode_t *normalization,
                                           cudnnCTCGradMode_t *gradient_mode, int *max_label_length) {
    cudnnStatus_t status = get(ctc, type, normalization, max_label_length);
    if (!status)
        STORE(gradient_mode, (cudnnCTCGradMode_t)ctc->gradient_mode);
    return status;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

struct ctc_key {
    struct key_head head;
    int32_t is_softmax, has_gradients, max_label_length;
    struct shape probs, gradients; /* [T, N, C] */
};

static struct shape list_shape(int32_t type, int64_t count) {
    return (struct shape){.type = type, .rank = 1, .dims = {count}, .strides = {1}};
}

/* The logarithms of the probabilities, or of the softmax of logits. */
static node build_log_probs(struct builder *b, const struct ctc_key *k) {
    const int32_t math = shape_math(&k->probs);
    const node x = stored_tensor(b, UID_X, &k->probs), result = virtual_tensor(b, &k->probs, math);
    if (!k->is_softmax) {
        build_unary(b, WEFT_POINTWISE_LOG, math, x, result);
        return result;
    }
    struct shape row = k->probs;
    row.dims[2] = 1;
    shape_pack(&row, CUDNN_TENSOR_NCHW);
    const node largest = virtual_tensor(b, &row, math), sum = virtual_tensor(b, &row, math),
               log_sum = virtual_tensor(b, &row, math), difference = virtual_tensor(b, &k->probs, math),
               power = virtual_tensor(b, &k->probs, math);
    build_reduction(b, WEFT_REDUCE_TENSOR_MAX, math, x, largest);
    build_binary(b, WEFT_POINTWISE_SUB, math, x, largest, difference);
    build_unary(b, WEFT_POINTWISE_EXP, math, difference, power);
    build_reduction(b, WEFT_REDUCE_TENSOR_ADD, math, power, sum);
    build_unary(b, WEFT_POINTWISE_LOG, math, sum, log_sum);
    build_binary(b, WEFT_POINTWISE_SUB, math, difference, log_sum, result);
    return result;
}

static void build_loss(struct builder *b, const void *key) {
    const struct ctc_key *k = key;
    const int64_t steps = k->probs.dims[0], batch = k->probs.dims[1], most = k->max_label_length;
    const int32_t math = shape_math(&k->probs);
    const weftDataType_t type = (weftDataType_t)math;
    const struct shape lengths = list_shape(CUDNN_DATA_INT32, batch), costs = list_shape(math, batch),
                       labels_of = list_shape(CUDNN_DATA_INT32, batch * most);
    struct shape alpha = {.type = math, .rank = 3, .dims = {batch, steps, 2 * most + 1}};
    shape_pack(&alpha, CUDNN_TENSOR_NCHW);
    const node log_probs = build_log_probs(b, k), labels = stored_tensor(b, UID_W, &labels_of),
               label_lengths = stored_tensor(b, UID_BIAS, &lengths), input_lengths = stored_tensor(b, UID_Z, &lengths),
               loss = stored_tensor(b, UID_Y, &costs);
    const node log_alpha = virtual_tensor(b, &alpha, math);
    build_op(b, WEFT_BACKEND_OPERATION_CTC_LOSS_FWD_DESCRIPTOR_EXT, 8,
             (weftAttribute_t[]){NODE(OPERATION_CTC_LOSS_FWD_LOG_PROBS_DESC_EXT, log_probs),
                                 NODE(OPERATION_CTC_LOSS_FWD_TARGETS_DESC_EXT, labels),
                                 NODE(OPERATION_CTC_LOSS_FWD_INPUT_LENGTHS_DESC_EXT, input_lengths),
                                 NODE(OPERATION_CTC_LOSS_FWD_TARGET_LENGTHS_DESC_EXT, label_lengths),
                                 NODE(OPERATION_CTC_LOSS_FWD_LOSS_DESC_EXT, loss),
                                 NODE(OPERATION_CTC_LOSS_FWD_LOG_ALPHA_DESC_EXT, log_alpha),
                                 VALUE(OPERATION_CTC_LOSS_FWD_MAX_TARGET_LENGTH_EXT, INT64, most),
                                 VALUE(OPERATION_CTC_LOSS_FWD_COMP_TYPE_EXT, DATA_TYPE, type)});
    if (!k->has_gradients)
        return;
    /* A gradient of 1 per sequence: the costs do not count. */
    const node ones = virtual_tensor(b, &costs, math), gradients = stored_tensor(b, UID_DX, &k->gradients);
    build_pointwise(b, &(struct pointwise){.mode = WEFT_POINTWISE_ADD,
                                           .math = math,
                                           .x = loss,
                                           .b = constant(b, 1, math, 1),
                                           .y = ones,
                                           .alpha1 = 0,
                                           .alpha2 = 1,
                                           .has_factors = true});
    build_op(b, WEFT_BACKEND_OPERATION_CTC_LOSS_BWD_DESCRIPTOR_EXT, 9,
             (weftAttribute_t[]){NODE(OPERATION_CTC_LOSS_BWD_DLOSS_DESC_EXT, ones),
                                 NODE(OPERATION_CTC_LOSS_BWD_LOG_PROBS_DESC_EXT, log_probs),
                                 NODE(OPERATION_CTC_LOSS_BWD_TARGETS_DESC_EXT, labels),
                                 NODE(OPERATION_CTC_LOSS_BWD_INPUT_LENGTHS_DESC_EXT, input_lengths),
                                 NODE(OPERATION_CTC_LOSS_BWD_TARGET_LENGTHS_DESC_EXT, label_lengths),
                                 NODE(OPERATION_CTC_LOSS_BWD_LOG_ALPHA_DESC_EXT, log_alpha),
                                 NODE(OPERATION_CTC_LOSS_BWD_DLOG_PROBS_DESC_EXT, gradients),
                                 VALUE(OPERATION_CTC_LOSS_BWD_MAX_TARGET_LENGTH_EXT, INT64, most),
                                 VALUE(OPERATION_CTC_LOSS_BWD_COMP_TYPE_EXT, DATA_TYPE, type)});
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

/* Addresses of a call; labels and lengths are in memory of the device. */
struct operands {
    const void *probs;
    const int *labels, *label_lengths, *input_lengths;
    void *costs, *gradients;
};

static cudnnStatus_t check_probs(cudnnTensorDescriptor_t probs) {
    REQUIRE(probs && probs->shape.rank >= 3 && probs->shape.type == CUDNN_DATA_FLOAT,
            "cudnnCTCLoss: the probabilities are not a FLOAT tensor of steps, sequences and classes.");
    return CUDNN_STATUS_SUCCESS;
}

/* Tensors may have more dimensions, of one element. */
static struct shape three_dims(const struct shape *shape) {
    struct shape made = {.type = shape->type, .rank = 3};
    memcpy(made.dims, shape->dims, 3 * sizeof *made.dims);
    memcpy(made.strides, shape->strides, 3 * sizeof *made.strides);
    return made;
}

static cudnnStatus_t run(cudnnHandle_t handle, cudnnCTCLossDescriptor_t ctc, cudnnTensorDescriptor_t probs_desc,
                         cudnnTensorDescriptor_t gradients_desc, int max_label_length, const struct operands *at) {
    struct ctc_key key;
    cudnnStatus_t status = check_probs(probs_desc);
    if (status)
        return status;
    REQUIRE(ctc && at->probs && at->label_lengths && at->input_lengths && at->costs,
            "cudnnCTCLoss: a descriptor or an address is NULL.");
    memset(&key, 0, sizeof key);
    key.head = (struct key_head){GRAPH_CTC_LOSS, ALIGNMENT(at->probs, at->labels, at->label_lengths, at->input_lengths,
                                                           at->costs, at->gradients)};
    key.is_softmax = ctc->normalization == CUDNN_LOSS_NORMALIZATION_SOFTMAX;
    key.has_gradients = at->gradients && gradients_desc;
    key.max_label_length = max_label_length;
    key.probs = three_dims(&probs_desc->shape);
    if (key.has_gradients)
        key.gradients = three_dims(&gradients_desc->shape);
    return PLAN_RUN(handle, key, build_loss, {UID_X, at->probs}, {UID_W, at->labels}, {UID_BIAS, at->label_lengths},
                    {UID_Z, at->input_lengths}, {UID_Y, at->costs}, {UID_DX, at->gradients});
}

static cudnnStatus_t run_v8(cudnnHandle_t handle, cudnnCTCLossDescriptor_t ctc, cudnnTensorDescriptor_t probs_desc,
                            cudnnTensorDescriptor_t gradients_desc, const struct operands *at) {
    REQUIRE_HANDLE(handle);
    REQUIRE(ctc && ctc->max_label_length > 0,
            "cudnnCTCLoss_v8: the descriptor has no maximum label length. Set it with cudnnSetCTCLossDescriptor_v9.");
    return run(handle, ctc, probs_desc, gradients_desc, ctc->max_label_length, at);
}

cudnnStatus_t cudnnCTCLoss_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t algorithm, cudnnCTCLossDescriptor_t ctc,
                              cudnnTensorDescriptor_t probs_desc, const void *probs, const int *labels,
                              const int *label_lengths, const int *input_lengths, void *costs,
                              cudnnTensorDescriptor_t gradients_desc, void *gradients, size_t workspace_bytes,
                              void *workspace) {
    (void)algorithm, (void)workspace_bytes, (void)workspace; /* scratch memory of the handle is used */
    const struct operands at = {probs, labels, label_lengths, input_lengths, costs, gradients};
    RETURN_COUNTED(run_v8(handle, ctc, probs_desc, gradients_desc, &at));
}

cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t algorithm,
                                              cudnnCTCLossDescriptor_t ctc, cudnnTensorDescriptor_t probs_desc,
                                              cudnnTensorDescriptor_t gradients_desc, size_t *bytes) {
    (void)algorithm, (void)gradients_desc;
    REQUIRE_HANDLE(handle);
    REQUIRE(ctc && bytes, "cudnnGetCTCLossWorkspaceSize_v8: the descriptor or the address of the size is NULL.");
    *bytes = 0;
    return check_probs(probs_desc);
}

/* ---- Labels and lengths on the host ------------------------------------------------------------------------------ */

/* Sequences have at most this number of labels: a power of two, so that few plans serve all batches. */
static int64_t most_labels(const int *label_lengths, int64_t batch) {
    int64_t most = 1;
    for (int64_t n = 0; n < batch; n++)
        while (most < label_lengths[n])
            most *= 2;
    return most;
}

/* Numbers in the workspace: the lengths of labels and inputs, then the labels. */
static int64_t count_numbers(int64_t batch, int64_t most) { return batch * (2 + most); }

/* Copies labels and lengths to the workspace, then runs. */
static cudnnStatus_t run_on_host(cudnnHandle_t handle, cudnnCTCLossDescriptor_t ctc, cudnnTensorDescriptor_t probs_desc,
                                 cudnnTensorDescriptor_t gradients_desc, const struct operands *at, void *workspace,
                                 size_t workspace_bytes) {
    REQUIRE_HANDLE(handle);
    cudnnStatus_t status = check_probs(probs_desc);
    if (status)
        return status;
    REQUIRE(at->labels && at->label_lengths && at->input_lengths && workspace,
            "cudnnCTCLoss: labels, lengths or the workspace is NULL.");
    const int64_t batch = probs_desc->shape.dims[1], most = most_labels(at->label_lengths, batch);
    const size_t bytes = (size_t)count_numbers(batch, most) * sizeof(int);
    REQUIRE(workspace_bytes >= bytes, "cudnnCTCLoss: the workspace has %zu bytes: expected at least %zu.",
            workspace_bytes, bytes);
    int64_t labels = 0;
    for (int64_t n = 0; n < batch; n++)
        labels += at->label_lengths[n];
    int *numbers = workspace;
    status = from_weft(weftCopy(handle->weft, numbers, at->label_lengths, (size_t)batch * sizeof(int), handle->stream));
    if (!status)
        status = from_weft(
            weftCopy(handle->weft, numbers + batch, at->input_lengths, (size_t)batch * sizeof(int), handle->stream));
    if (!status && labels)
        status = from_weft(
            weftCopy(handle->weft, numbers + 2 * batch, at->labels, (size_t)labels * sizeof(int), handle->stream));
    if (status)
        return status;
    const struct operands copied = {at->probs, numbers + 2 * batch, numbers, numbers + batch, at->costs, at->gradients};
    return run(handle, ctc, probs_desc, gradients_desc, (int)most, &copied);
}

cudnnStatus_t cudnnCTCLoss(cudnnHandle_t handle, cudnnTensorDescriptor_t probs_desc, const void *probs,
                           const int *labels, const int *label_lengths, const int *input_lengths, void *costs,
                           cudnnTensorDescriptor_t gradients_desc, void *gradients, cudnnCTCLossAlgo_t algorithm,
                           cudnnCTCLossDescriptor_t ctc, void *workspace, size_t workspace_bytes) {
    (void)algorithm;
    const struct operands at = {probs, labels, label_lengths, input_lengths, costs, gradients};
    RETURN_COUNTED(run_on_host(handle, ctc, probs_desc, gradients_desc, &at, workspace, workspace_bytes));
}

cudnnStatus_t cudnnGetCTCLossWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t probs_desc,
                                           cudnnTensorDescriptor_t gradients_desc, const int *labels,
                                           const int *label_lengths, const int *input_lengths,
                                           cudnnCTCLossAlgo_t algorithm, cudnnCTCLossDescriptor_t ctc, size_t *bytes) {
    (void)gradients_desc, (void)labels, (void)input_lengths, (void)algorithm;
    REQUIRE_HANDLE(handle);
    REQUIRE(ctc && bytes && label_lengths, "cudnnGetCTCLossWorkspaceSize: an argument is NULL.");
    cudnnStatus_t status = check_probs(probs_desc);
    const int64_t batch = status ? 0 : probs_desc->shape.dims[1];
    *bytes = (size_t)count_numbers(batch, most_labels(label_lengths, batch)) * sizeof(int);
    return status;
}
