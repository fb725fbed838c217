/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution descriptors and output extents. */
#include "src/descriptors.h"

#include <stdlib.h>

DEFINE_LIFETIME(Convolution)

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int spatial, const int *padding,
                                              const int *stride, const int *dilation, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
    REQUIRE(convolution, "cudnnSetConvolutionNdDescriptor: the descriptor is NULL.");
    REQUIRE(spatial > 0 && spatial <= SPATIAL_MAX && padding && stride && dilation,
            "cudnnSetConvolutionNdDescriptor: a convolution has 1 to %d spatial dimensions, got %d.", SPATIAL_MAX,
            spatial);
    *convolution = (struct cudnnConvolutionStruct){.spatial = spatial,
                                                   .mode = (int32_t)mode,
                                                   .compute = (int32_t)compute,
                                                   .groups = 1,
                                                   .math = CUDNN_DEFAULT_MATH};
    for (int i = 0; i < spatial; i++) {
        REQUIRE(padding[i] >= 0 && stride[i] > 0 && dilation[i] > 0,
                "cudnnSetConvolutionNdDescriptor: padding %d, stride %d and dilation %d of dimension %d: expected at "
                "least 0, 1 and 1.",
                padding[i], stride[i], dilation[i], i);
        convolution->padding[i] = padding[i];
        convolution->stride[i] = stride[i];
        convolution->dilation[i] = dilation[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
    return cudnnSetConvolutionNdDescriptor(convolution, 2, (int[]){pad_h, pad_w}, (int[]){stride_h, stride_w},
                                           (int[]){dilation_h, dilation_w}, mode, compute);
}

cudnnStatus_t cudnnGetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int requested, int *spatial,
                                              int *padding, int *stride, int *dilation, cudnnConvolutionMode_t *mode,
                                              cudnnDataType_t *compute) {
    REQUIRE(convolution, "cudnnGetConvolutionNdDescriptor: the descriptor is NULL.");
    STORE(spatial, convolution->spatial);
    STORE(mode, (cudnnConvolutionMode_t)convolution->mode);
    STORE(compute, (cudnnDataType_t)convolution->compute);
    for (int i = 0; i < requested && i < convolution->spatial; i++) {
        padding[i] = (int)convolution->padding[i];
        stride[i] = (int)convolution->stride[i];
        dilation[i] = (int)convolution->dilation[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int *pad_h, int *pad_w,
                                              int *stride_h, int *stride_w, int *dilation_h, int *dilation_w,
                                              cudnnConvolutionMode_t *mode, cudnnDataType_t *compute) {
    REQUIRE(convolution && convolution->spatial == 2,
            "cudnnGetConvolution2dDescriptor: the convolution does not have 2 spatial dimensions.");
    STORE(pad_h, (int)convolution->padding[0]);
    STORE(pad_w, (int)convolution->padding[1]);
    STORE(stride_h, (int)convolution->stride[0]);
    STORE(stride_w, (int)convolution->stride[1]);
    STORE(dilation_h, (int)convolution->dilation[0]);
    STORE(dilation_w, (int)convolution->dilation[1]);
    STORE(mode, (cudnnConvolutionMode_t)convolution->mode);
    STORE(compute, (cudnnDataType_t)convolution->compute);
    return CUDNN_STATUS_SUCCESS;
}

/* A field with a function that sets it and one that reads it. */
#define DEFINE_FIELD(Name, type, field)                                                                                \
    cudnnStatus_t cudnnSetConvolution##Name(cudnnConvolutionDescriptor_t convolution, type value) {                    \
        REQUIRE(convolution, "%s: the descriptor is NULL.", __func__);                                                 \
        convolution->field = (int32_t)value;                                                                           \
        return CUDNN_STATUS_SUCCESS;                                                                                   \
    }                                                                                                                  \
    cudnnStatus_t cudnnGetConvolution##Name(cudnnConvolutionDescriptor_t convolution, type *value) {                   \
        REQUIRE(convolution && value, "%s: the descriptor or the address of the value is NULL.", __func__);            \
        *value = (type)convolution->field;                                                                             \
        return CUDNN_STATUS_SUCCESS;                                                                                   \
    }
DEFINE_FIELD(GroupCount, int, groups)
DEFINE_FIELD(MathType, cudnnMathType_t, math)
DEFINE_FIELD(ReorderType, cudnnReorderType_t, reorder)

cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t x,
                                                    cudnnFilterDescriptor_t w, int rank, int *dims) {
    REQUIRE(convolution && x && w && dims, "cudnnGetConvolutionNdForwardOutputDim: an argument is NULL.");
    REQUIRE(rank == x->shape.rank && rank == w->shape.rank && rank == convolution->spatial + 2,
            "cudnnGetConvolutionNdForwardOutputDim: the input has rank %d, the filter %d, and the convolution %d "
            "spatial dimensions: expected rank %d.",
            x->shape.rank, w->shape.rank, convolution->spatial, rank);
    dims[0] = (int)x->shape.dims[0];
    dims[1] = (int)w->shape.dims[0];
    for (int i = 0; i < convolution->spatial; i++) {
        int64_t reach = convolution->dilation[i] * (w->shape.dims[i + 2] - 1) + 1;
        int64_t padded = x->shape.dims[i + 2] + 2 * convolution->padding[i];
        dims[i + 2] = 1 + (int)((padded - reach) / convolution->stride[i]);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t x,
                                                    cudnnFilterDescriptor_t filter, int *n, int *c, int *h, int *w) {
    int dims[4], *const results[] = {n, c, h, w};
    cudnnStatus_t status = cudnnGetConvolutionNdForwardOutputDim(convolution, x, filter, 4, dims);
    for (int i = 0; i < 4 && !status; i++)
        STORE(results[i], dims[i]);
    return status;
}
