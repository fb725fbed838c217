/* SPDX-License-Identifier: Apache-2.0 */
/* Batch normalization, which two families of functions expose: cudnnBatchNormalization* and cudnnNormalization*. */
#ifndef WEFT_CUDNN_NORM_H
#define WEFT_CUDNN_NORM_H

#include "src/descriptors.h"

enum norm_phase { NORM_TRAINING, NORM_INFERENCE };

/* A descriptor with an address. */
struct operand {
    cudnnTensorDescriptor_t desc;
    const void *at;
};

/* What follows the normalization: nothing, an activation, or an addition and an activation. The numbers are those of
   cudnnBatchNormOps_t and cudnnNormOps_t. */
enum norm_ops { NORM_ONLY, NORM_ACTIVATION, NORM_ADD_ACTIVATION };

struct norm_forward {
    enum norm_phase phase;
    bool is_per_activation; /* statistics for each element of a batch entry, otherwise for each channel */
    enum norm_ops ops;
    const void *alpha, *beta;
    struct operand x, y, z;
    cudnnTensorDescriptor_t parameters_desc; /* of scale, bias and statistics */
    const void *scale, *bias;
    double factor, epsilon;
    void *mean, *variance; /* running statistics; NULL: none */
    void *saved_mean, *saved_inverse;
    cudnnActivationDescriptor_t activation;
    void *workspace;
    size_t workspace_bytes;
};
cudnnStatus_t norm_forward(cudnnHandle_t handle, const struct norm_forward *call);

struct norm_backward {
    bool is_per_activation;
    enum norm_ops ops;
    const void *alpha, *beta, *alpha_parameters, *beta_parameters;
    struct operand x, y, dy, dz, dx;
    cudnnTensorDescriptor_t parameters_desc;
    const void *scale;
    void *dscale, *dbias;
    double epsilon;
    const void *saved_mean, *saved_inverse; /* NULL: computed again */
    cudnnActivationDescriptor_t activation;
    void *workspace;
    size_t workspace_bytes;
};
cudnnStatus_t norm_backward(cudnnHandle_t handle, const struct norm_backward *call);

/* Sets the descriptor of scale, bias and statistics for an input. */
cudnnStatus_t norm_derive(cudnnTensorDescriptor_t derived, cudnnTensorDescriptor_t x, bool is_per_activation);

/* Workspace and reserve of all functions: the handle has scratch memory, and the gradient reads y instead of a mask. */
cudnnStatus_t norm_no_bytes(size_t *bytes);

#endif
