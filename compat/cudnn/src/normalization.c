/* SPDX-License-Identifier: Apache-2.0 */
/* The functions cudnnNormalization*: batch normalization with other names, and scale and statistics in two descriptors,
   which must be equal here. Groups of channels are not supported. */
#include "src/norm.h"

static bool is_per_activation(cudnnNormMode_t mode) { return mode == CUDNN_NORM_PER_ACTIVATION; }

static cudnnStatus_t check(cudnnTensorDescriptor_t scale, cudnnTensorDescriptor_t statistics, int groups) {
    REQUIRE(scale && statistics, "normalization: a descriptor is NULL.");
    if (groups != 1)
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED, "normalization: groupCnt is %d: expected 1.", groups);
    if (scale->shape.type != statistics->shape.type)
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
                         "normalization: scale and statistics have data types %d and %d. Make them equal.",
                         scale->shape.type, statistics->shape.type);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDeriveNormTensorDescriptor(cudnnTensorDescriptor_t scale, cudnnTensorDescriptor_t statistics,
                                              cudnnTensorDescriptor_t x, cudnnNormMode_t mode, int groups) {
    if (groups != 1)
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED, "normalization: groupCnt is %d: expected 1.", groups);
    cudnnStatus_t status = norm_derive(scale, x, is_per_activation(mode));
    return status ? status : norm_derive(statistics, x, is_per_activation(mode));
}

static cudnnStatus_t checked_forward(cudnnHandle_t handle, const struct norm_forward *call,
                                     cudnnTensorDescriptor_t statistics, int groups) {
    cudnnStatus_t status = check(call->parameters_desc, statistics, groups);
    return status ? status : norm_forward(handle, call);
}

cudnnStatus_t cudnnNormalizationForwardInference(cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops,
                                                 cudnnNormAlgo_t algorithm, const void *alpha, const void *beta,
                                                 cudnnTensorDescriptor_t x_desc, const void *x,
                                                 cudnnTensorDescriptor_t scale_desc, const void *scale,
                                                 const void *bias, cudnnTensorDescriptor_t statistics_desc,
                                                 const void *mean, const void *variance, cudnnTensorDescriptor_t z_desc,
                                                 const void *z, cudnnActivationDescriptor_t activation,
                                                 cudnnTensorDescriptor_t y_desc, void *y, double epsilon, int groups) {
    (void)algorithm;
    const struct norm_forward call = {.phase = NORM_INFERENCE,
                                      .is_per_activation = is_per_activation(mode),
                                      .ops = (enum norm_ops)ops,
                                      .alpha = alpha,
                                      .beta = beta,
                                      .x = {x_desc, x},
                                      .y = {y_desc, y},
                                      .z = {z_desc, z},
                                      .parameters_desc = scale_desc,
                                      .scale = scale,
                                      .bias = bias,
                                      .epsilon = epsilon,
                                      .mean = (void *)mean,
                                      .variance = (void *)variance,
                                      .activation = activation};
    RETURN_COUNTED(checked_forward(handle, &call, statistics_desc, groups));
}

cudnnStatus_t cudnnNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm, const void *alpha,
    const void *beta, cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t scale_desc,
    const void *scale, const void *bias, double factor, cudnnTensorDescriptor_t statistics_desc, void *mean,
    void *variance, double epsilon, void *saved_mean, void *saved_inverse, cudnnActivationDescriptor_t activation,
    cudnnTensorDescriptor_t z_desc, const void *z, cudnnTensorDescriptor_t y_desc, void *y, void *workspace,
    size_t workspace_bytes, void *reserve, size_t reserve_bytes, int groups) {
    (void)algorithm, (void)reserve, (void)reserve_bytes;
    const struct norm_forward call = {.phase = NORM_TRAINING,
                                      .is_per_activation = is_per_activation(mode),
                                      .ops = (enum norm_ops)ops,
                                      .alpha = alpha,
                                      .beta = beta,
                                      .x = {x_desc, x},
                                      .y = {y_desc, y},
                                      .z = {z_desc, z},
                                      .parameters_desc = scale_desc,
                                      .scale = scale,
                                      .bias = bias,
                                      .factor = factor,
                                      .epsilon = epsilon,
                                      .mean = mean,
                                      .variance = variance,
                                      .saved_mean = saved_mean,
                                      .saved_inverse = saved_inverse,
                                      .activation = activation,
                                      .workspace = workspace,
                                      .workspace_bytes = workspace_bytes};
    RETURN_COUNTED(checked_forward(handle, &call, statistics_desc, groups));
}

static cudnnStatus_t checked_backward(cudnnHandle_t handle, const struct norm_backward *call,
                                      cudnnTensorDescriptor_t statistics, int groups) {
    cudnnStatus_t status = check(call->parameters_desc, statistics, groups);
    return status ? status : norm_backward(handle, call);
}

cudnnStatus_t
cudnnNormalizationBackward(cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
                           const void *alpha, const void *beta, const void *alpha_parameters,
                           const void *beta_parameters, cudnnTensorDescriptor_t x_desc, const void *x,
                           cudnnTensorDescriptor_t y_desc, const void *y, cudnnTensorDescriptor_t dy_desc,
                           const void *dy, cudnnTensorDescriptor_t dz_desc, void *dz, cudnnTensorDescriptor_t dx_desc,
                           void *dx, cudnnTensorDescriptor_t scale_desc, const void *scale, const void *bias,
                           void *dscale, void *dbias, double epsilon, cudnnTensorDescriptor_t statistics_desc,
                           const void *saved_mean, const void *saved_inverse, cudnnActivationDescriptor_t activation,
                           void *workspace, size_t workspace_bytes, void *reserve, size_t reserve_bytes, int groups) {
    (void)algorithm, (void)bias, (void)reserve, (void)reserve_bytes;
    const struct norm_backward call = {.is_per_activation = is_per_activation(mode),
                                       .ops = (enum norm_ops)ops,
                                       .alpha = alpha,
                                       .beta = beta,
                                       .alpha_parameters = alpha_parameters,
                                       .beta_parameters = beta_parameters,
                                       .x = {x_desc, x},
                                       .y = {y_desc, y},
                                       .dy = {dy_desc, dy},
                                       .dz = {dz_desc, dz},
                                       .dx = {dx_desc, dx},
                                       .parameters_desc = scale_desc,
                                       .scale = scale,
                                       .dscale = dscale,
                                       .dbias = dbias,
                                       .epsilon = epsilon,
                                       .saved_mean = saved_mean,
                                       .saved_inverse = saved_inverse,
                                       .activation = activation,
                                       .workspace = workspace,
                                       .workspace_bytes = workspace_bytes};
    RETURN_COUNTED(checked_backward(handle, &call, statistics_desc, groups));
}

cudnnStatus_t cudnnGetNormalizationForwardTrainingWorkspaceSize(
    cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
    cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t z, cudnnTensorDescriptor_t y, cudnnTensorDescriptor_t scale,
    cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t statistics, size_t *bytes, int groups) {
    (void)handle, (void)mode, (void)ops, (void)algorithm, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    (void)statistics, (void)groups;
    return norm_no_bytes(bytes);
}

cudnnStatus_t cudnnGetNormalizationBackwardWorkspaceSize(
    cudnnHandle_t handle, cudnnNormMode_t mode, cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
    cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y, cudnnTensorDescriptor_t dy, cudnnTensorDescriptor_t dz,
    cudnnTensorDescriptor_t dx, cudnnTensorDescriptor_t scale, cudnnActivationDescriptor_t activation,
    cudnnTensorDescriptor_t statistics, size_t *bytes, int groups) {
    (void)handle, (void)mode, (void)ops, (void)algorithm, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale;
    (void)activation, (void)statistics, (void)groups;
    return norm_no_bytes(bytes);
}

cudnnStatus_t cudnnGetNormalizationTrainingReserveSpaceSize(cudnnHandle_t handle, cudnnNormMode_t mode,
                                                            cudnnNormOps_t ops, cudnnNormAlgo_t algorithm,
                                                            cudnnActivationDescriptor_t activation,
                                                            cudnnTensorDescriptor_t x, size_t *bytes, int groups) {
    (void)handle, (void)mode, (void)ops, (void)algorithm, (void)activation, (void)x, (void)groups;
    return norm_no_bytes(bytes);
}
