/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of convolutions. */
#ifndef WEFT_CUDNN_CONVOLUTION_H
#define WEFT_CUDNN_CONVOLUTION_H

#include "src/descriptors.h"

enum direction { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };

/* The operands of the forward convolution y = conv(x, w); in each direction, one of them is the result. */
struct convolution_operands {
    cudnnTensorDescriptor_t x;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t convolution;
    cudnnTensorDescriptor_t y;
};

cudnnStatus_t convolution_plan(cudnnHandle_t handle, enum direction direction,
                               const struct convolution_operands *operands, double alpha, double beta,
                               int32_t alignment, struct cached_plan **plan);

#endif
