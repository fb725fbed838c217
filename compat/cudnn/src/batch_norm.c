/* SPDX-License-Identifier: Apache-2.0 */
/* The functions cudnnBatchNormalization*. */
#include "src/norm.h"

static bool is_per_activation(cudnnBatchNormMode_t mode) { return mode == CUDNN_BATCHNORM_PER_ACTIVATION; }

cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived, cudnnTensorDescriptor_t x,
                                            cudnnBatchNormMode_t mode) {
    return norm_derive(derived, x, is_per_activation(mode));
}

cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const void *alpha, const void *beta,
    cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t z_desc, const void *z,
    cudnnTensorDescriptor_t y_desc, void *y, cudnnTensorDescriptor_t parameters_desc, const void *scale,
    const void *bias, double factor, void *mean, void *variance, double epsilon, void *saved_mean, void *saved_inverse,
    cudnnActivationDescriptor_t activation, void *workspace, size_t workspace_bytes, void *reserve,
    size_t reserve_bytes) {
    (void)reserve, (void)reserve_bytes;
    RETURN_COUNTED(norm_forward(handle, &(struct norm_forward){.phase = NORM_TRAINING,
                                                               .is_per_activation = is_per_activation(mode),
                                                               .ops = (enum norm_ops)ops,
                                                               .alpha = alpha,
                                                               .beta = beta,
                                                               .x = {x_desc, x},
                                                               .y = {y_desc, y},
                                                               .z = {z_desc, z},
                                                               .parameters_desc = parameters_desc,
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
                                                               .workspace_bytes = workspace_bytes}));
}

cudnnStatus_t cudnnBatchNormalizationForwardTraining(cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha,
                                                     const void *beta, cudnnTensorDescriptor_t x_desc, const void *x,
                                                     cudnnTensorDescriptor_t y_desc, void *y,
                                                     cudnnTensorDescriptor_t parameters_desc, const void *scale,
                                                     const void *bias, double factor, void *mean, void *variance,
                                                     double epsilon, void *saved_mean, void *saved_inverse) {
    RETURN_COUNTED(norm_forward(handle, &(struct norm_forward){.phase = NORM_TRAINING,
                                                               .is_per_activation = is_per_activation(mode),
                                                               .alpha = alpha,
                                                               .beta = beta,
                                                               .x = {x_desc, x},
                                                               .y = {y_desc, y},
                                                               .parameters_desc = parameters_desc,
                                                               .scale = scale,
                                                               .bias = bias,
                                                               .factor = factor,
                                                               .epsilon = epsilon,
                                                               .mean = mean,
                                                               .variance = variance,
                                                               .saved_mean = saved_mean,
                                                               .saved_inverse = saved_inverse}));
}

cudnnStatus_t cudnnBatchNormalizationForwardInference(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                      const void *alpha, const void *beta,
                                                      cudnnTensorDescriptor_t x_desc, const void *x,
                                                      cudnnTensorDescriptor_t y_desc, void *y,
                                                      cudnnTensorDescriptor_t parameters_desc, const void *scale,
                                                      const void *bias, const void *mean, const void *variance,
                                                      double epsilon) {
    RETURN_COUNTED(norm_forward(handle, &(struct norm_forward){.phase = NORM_INFERENCE,
                                                               .is_per_activation = is_per_activation(mode),
                                                               .alpha = alpha,
                                                               .beta = beta,
                                                               .x = {x_desc, x},
                                                               .y = {y_desc, y},
                                                               .parameters_desc = parameters_desc,
                                                               .scale = scale,
                                                               .bias = bias,
                                                               .epsilon = epsilon,
                                                               .mean = (void *)mean,
                                                               .variance = (void *)variance}));
}

cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const void *alpha, const void *beta,
    const void *alpha_parameters, const void *beta_parameters, cudnnTensorDescriptor_t x_desc, const void *x,
    cudnnTensorDescriptor_t y_desc, const void *y, cudnnTensorDescriptor_t dy_desc, const void *dy,
    cudnnTensorDescriptor_t dz_desc, void *dz, cudnnTensorDescriptor_t dx_desc, void *dx,
    cudnnTensorDescriptor_t parameters_desc, const void *scale, const void *bias, void *dscale, void *dbias,
    double epsilon, const void *saved_mean, const void *saved_inverse, cudnnActivationDescriptor_t activation,
    void *workspace, size_t workspace_bytes, void *reserve, size_t reserve_bytes) {
    (void)bias, (void)reserve, (void)reserve_bytes;
    RETURN_COUNTED(norm_backward(handle, &(struct norm_backward){.is_per_activation = is_per_activation(mode),
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
                                                                 .parameters_desc = parameters_desc,
                                                                 .scale = scale,
                                                                 .dscale = dscale,
                                                                 .dbias = dbias,
                                                                 .epsilon = epsilon,
                                                                 .saved_mean = saved_mean,
                                                                 .saved_inverse = saved_inverse,
                                                                 .activation = activation,
                                                                 .workspace = workspace,
                                                                 .workspace_bytes = workspace_bytes}));
}

cudnnStatus_t cudnnBatchNormalizationBackward(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha, const void *beta, const void *alpha_parameters,
    const void *beta_parameters, cudnnTensorDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t dy_desc,
    const void *dy, cudnnTensorDescriptor_t dx_desc, void *dx, cudnnTensorDescriptor_t parameters_desc,
    const void *scale, void *dscale, void *dbias, double epsilon, const void *saved_mean, const void *saved_inverse) {
    RETURN_COUNTED(norm_backward(handle, &(struct norm_backward){.is_per_activation = is_per_activation(mode),
                                                                 .alpha = alpha,
                                                                 .beta = beta,
                                                                 .alpha_parameters = alpha_parameters,
                                                                 .beta_parameters = beta_parameters,
                                                                 .x = {x_desc, x},
                                                                 .dy = {dy_desc, dy},
                                                                 .dx = {dx_desc, dx},
                                                                 .parameters_desc = parameters_desc,
                                                                 .scale = scale,
                                                                 .dscale = dscale,
                                                                 .dbias = dbias,
                                                                 .epsilon = epsilon,
                                                                 .saved_mean = saved_mean,
                                                                 .saved_inverse = saved_inverse}));
}

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, cudnnTensorDescriptor_t x,
    cudnnTensorDescriptor_t z, cudnnTensorDescriptor_t y, cudnnTensorDescriptor_t parameters,
    cudnnActivationDescriptor_t activation, size_t *bytes) {
    (void)handle, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)parameters, (void)activation;
    return norm_no_bytes(bytes);
}

cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                                cudnnBatchNormOps_t ops, cudnnTensorDescriptor_t x,
                                                                cudnnTensorDescriptor_t y, cudnnTensorDescriptor_t dy,
                                                                cudnnTensorDescriptor_t dz, cudnnTensorDescriptor_t dx,
                                                                cudnnTensorDescriptor_t parameters,
                                                                cudnnActivationDescriptor_t activation, size_t *bytes) {
    (void)handle, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)parameters;
    (void)activation;
    return norm_no_bytes(bytes);
}

cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                                   cudnnBatchNormOps_t ops,
                                                                   cudnnActivationDescriptor_t activation,
                                                                   cudnnTensorDescriptor_t x, size_t *bytes) {
    (void)handle, (void)mode, (void)ops, (void)activation, (void)x;
    return norm_no_bytes(bytes);
}
