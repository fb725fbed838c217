/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of convolution algorithms and their workspace. Each query has one answer: algorithm 1, whose number is that
   of a deterministic algorithm in all three directions. */
#include "src/convolution.h"

enum { REPORTED_ALGORITHM = 1, LARGEST_ALIGNMENT = 16 };

static cudnnMathType_t math_of(const struct shape *operand, cudnnConvolutionDescriptor_t convolution) {
    if (operand->type == CUDNN_DATA_HALF || operand->type == CUDNN_DATA_BFLOAT16)
        return CUDNN_TENSOR_OP_MATH;
    return convolution->math == CUDNN_FMA_MATH ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
}

/* The answer to a query, in the fields that the structs of all directions have. */
struct answer {
    size_t memory;
    cudnnMathType_t math;
};

static cudnnStatus_t query(cudnnHandle_t handle, enum direction direction, const struct convolution_operands *operands,
                           int requested, int *returned, const void *results, struct answer *answer) {
    struct cached_plan *plan;
    REQUIRE(returned && requested >= 0 && (results || requested == 0),
            "convolution algorithms: the address of the count or of the results is NULL.");
    *returned = 0;
    cudnnStatus_t status = convolution_plan(handle, direction, operands, 1, 0, LARGEST_ALIGNMENT, &plan);
    if (status)
        return status;
    const struct shape *operand = direction == BACKWARD_DATA ? &operands->y->shape : &operands->x->shape;
    *answer = (struct answer){(size_t)plan->workspace_bytes, math_of(operand, operands->convolution)};
    *returned = requested > 0;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t query_workspace(cudnnHandle_t handle, enum direction direction,
                                     const struct convolution_operands *operands, size_t *bytes) {
    struct cached_plan *plan;
    REQUIRE(bytes, "convolution workspace: the address of the size is NULL.");
    cudnnStatus_t status = convolution_plan(handle, direction, operands, 1, 0, LARGEST_ALIGNMENT, &plan);
    if (!status)
        *bytes = (size_t)plan->workspace_bytes;
    return status;
}

static cudnnStatus_t count_algorithms(cudnnHandle_t handle, int *count) {
    REQUIRE_HANDLE(handle);
    REQUIRE(count, "convolution algorithms: the address of the count is NULL.");
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
}

/* One query per direction: the structs differ only in the type of the algorithm. */
#define DEFINE_QUERY(name, direction, Perf, Algo)                                                                      \
    static cudnnStatus_t name(cudnnHandle_t handle, const struct convolution_operands *operands, int requested,        \
                              int *returned, Perf *results) {                                                          \
        struct answer answer = {0};                                                                                    \
        cudnnStatus_t status = query(handle, direction, operands, requested, returned, results, &answer);              \
        if (!status && *returned)                                                                                      \
            *results = (Perf){.algo = (Algo)REPORTED_ALGORITHM,                                                        \
                              .time = -1,                                                                              \
                              .memory = answer.memory,                                                                 \
                              .determinism = CUDNN_DETERMINISTIC,                                                      \
                              .mathType = answer.math};                                                                \
        return status;                                                                                                 \
    }
DEFINE_QUERY(query_forward, FORWARD, cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t)
DEFINE_QUERY(query_data, BACKWARD_DATA, cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t)
DEFINE_QUERY(query_filter, BACKWARD_FILTER, cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t)

#define OPERANDS(x, w, convolution, y) (&(struct convolution_operands){x, w, convolution, y})

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t handle, int *count) {
    return count_algorithms(handle, count);
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w,
                                                     cudnnConvolutionDescriptor_t convolution,
                                                     cudnnTensorDescriptor_t y, int requested, int *returned,
                                                     cudnnConvolutionFwdAlgoPerf_t *results) {
    RETURN_COUNTED(query_forward(handle, OPERANDS(x, w, convolution, y), requested, returned, results));
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithm(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                   cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t convolution,
                                                   cudnnTensorDescriptor_t y, int requested, int *returned,
                                                   cudnnConvolutionFwdAlgoPerf_t *results) {
    RETURN_COUNTED(query_forward(handle, OPERANDS(x, w, convolution, y), requested, returned, results));
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc,
                                                     const void *x, cudnnFilterDescriptor_t w_desc, const void *w,
                                                     cudnnConvolutionDescriptor_t convolution,
                                                     cudnnTensorDescriptor_t y_desc, void *y, int requested,
                                                     int *returned, cudnnConvolutionFwdAlgoPerf_t *results,
                                                     void *workspace, size_t workspace_bytes) {
    (void)x, (void)w, (void)y, (void)workspace, (void)workspace_bytes;
    RETURN_COUNTED(query_forward(handle, OPERANDS(x_desc, w_desc, convolution, y_desc), requested, returned, results));
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                      cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t convolution,
                                                      cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algorithm,
                                                      size_t *bytes) {
    (void)algorithm;
    return query_workspace(handle, FORWARD, OPERANDS(x, w, convolution, y), bytes);
}

/* ---- Gradient of the data ---------------------------------------------------------------------------------------- */

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t handle, int *count) {
    return count_algorithms(handle, count);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t convolution,
                                                          cudnnTensorDescriptor_t dx, int requested, int *returned,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *results) {
    RETURN_COUNTED(query_data(handle, OPERANDS(dx, w, convolution, dy), requested, returned, results));
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithm(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                        cudnnTensorDescriptor_t dy,
                                                        cudnnConvolutionDescriptor_t convolution,
                                                        cudnnTensorDescriptor_t dx, int requested, int *returned,
                                                        cudnnConvolutionBwdDataAlgoPerf_t *results) {
    RETURN_COUNTED(query_data(handle, OPERANDS(dx, w, convolution, dy), requested, returned, results));
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(cudnnHandle_t handle, cudnnFilterDescriptor_t w_desc,
                                                          const void *w, cudnnTensorDescriptor_t dy_desc,
                                                          const void *dy, cudnnConvolutionDescriptor_t convolution,
                                                          cudnnTensorDescriptor_t dx_desc, void *dx, int requested,
                                                          int *returned, cudnnConvolutionBwdDataAlgoPerf_t *results,
                                                          void *workspace, size_t workspace_bytes) {
    (void)w, (void)dy, (void)dx, (void)workspace, (void)workspace_bytes;
    RETURN_COUNTED(query_data(handle, OPERANDS(dx_desc, w_desc, convolution, dy_desc), requested, returned, results));
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                           cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t convolution,
                                                           cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t *bytes) {
    (void)algorithm;
    return query_workspace(handle, BACKWARD_DATA, OPERANDS(dx, w, convolution, dy), bytes);
}

/* ---- Gradient of the filter -------------------------------------------------------------------------------------- */

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t handle, int *count) {
    return count_algorithms(handle, count);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t convolution,
                                                            cudnnFilterDescriptor_t dw, int requested, int *returned,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t *results) {
    RETURN_COUNTED(query_filter(handle, OPERANDS(x, dw, convolution, dy), requested, returned, results));
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithm(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                          cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t convolution,
                                                          cudnnFilterDescriptor_t dw, int requested, int *returned,
                                                          cudnnConvolutionBwdFilterAlgoPerf_t *results) {
    RETURN_COUNTED(query_filter(handle, OPERANDS(x, dw, convolution, dy), requested, returned, results));
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc,
                                                            const void *x, cudnnTensorDescriptor_t dy_desc,
                                                            const void *dy, cudnnConvolutionDescriptor_t convolution,
                                                            cudnnFilterDescriptor_t dw_desc, void *dw, int requested,
                                                            int *returned, cudnnConvolutionBwdFilterAlgoPerf_t *results,
                                                            void *workspace, size_t workspace_bytes) {
    (void)x, (void)dy, (void)dw, (void)workspace, (void)workspace_bytes;
    RETURN_COUNTED(query_filter(handle, OPERANDS(x_desc, dw_desc, convolution, dy_desc), requested, returned, results));
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                             cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t convolution,
                                                             cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *bytes) {
    (void)algorithm;
    return query_workspace(handle, BACKWARD_FILTER, OPERANDS(x, dw, convolution, dy), bytes);
}
