/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor and filter descriptors. */
#include "src/descriptors.h"

#include <stdlib.h>

DEFINE_LIFETIME(Tensor)
DEFINE_LIFETIME(Filter)

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static struct shape *tensor_shape(cudnnTensorDescriptor_t tensor) { return tensor ? &tensor->shape : NULL; }

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rank,
                                         const int *dims, const int *strides) {
    return shape_set(tensor_shape(tensor), type, rank, dims, strides, CUDNN_TENSOR_NCHW);
}

cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int rank, const int *dims) {
    return shape_set(tensor_shape(tensor), type, rank, dims, NULL, format);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
    return shape_set(tensor_shape(tensor), type, 4, (int[]){n, c, h, w}, NULL, format);
}

cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n, int c, int h,
                                           int w, int n_stride, int c_stride, int h_stride, int w_stride) {
    return shape_set(tensor_shape(tensor), type, 4, (int[]){n, c, h, w},
                     (int[]){n_stride, c_stride, h_stride, w_stride}, CUDNN_TENSOR_NCHW);
}

/* Writes at most `requested` dimensions, but reports the true rank. */
cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, int requested, cudnnDataType_t *type,
                                         int *rank, int *dims, int *strides) {
    REQUIRE(tensor, "cudnnGetTensorNdDescriptor: the descriptor is NULL.");
    STORE(type, (cudnnDataType_t)tensor->shape.type);
    STORE(rank, tensor->shape.rank);
    for (int i = 0; i < requested && i < tensor->shape.rank; i++) {
        if (dims)
            dims[i] = (int)tensor->shape.dims[i];
        if (strides)
            strides[i] = (int)tensor->shape.strides[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t *type, int *n, int *c, int *h,
                                         int *w, int *n_stride, int *c_stride, int *h_stride, int *w_stride) {
    int *const dims[] = {n, c, h, w}, *const strides[] = {n_stride, c_stride, h_stride, w_stride};
    REQUIRE(tensor && tensor->shape.rank == 4, "cudnnGetTensor4dDescriptor: the tensor does not have 4 dimensions.");
    STORE(type, (cudnnDataType_t)tensor->shape.type);
    for (int i = 0; i < 4; i++) {
        STORE(dims[i], (int)tensor->shape.dims[i]);
        STORE(strides[i], (int)tensor->shape.strides[i]);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorSizeInBytes(cudnnTensorDescriptor_t tensor, size_t *size) {
    REQUIRE(tensor && size, "cudnnGetTensorSizeInBytes: the descriptor or the address of the size is NULL.");
    *size = shape_bytes(&tensor->shape);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Filters ----------------------------------------------------------------------------------------------------- */

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int rank, const int *dims) {
    cudnnStatus_t status = shape_set(filter ? &filter->shape : NULL, type, rank, dims, NULL, format);
    if (!status)
        filter->format = format;
    return status;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
    return cudnnSetFilterNdDescriptor(filter, type, format, 4, (int[]){k, c, h, w});
}

cudnnStatus_t cudnnGetFilterNdDescriptor(cudnnFilterDescriptor_t filter, int requested, cudnnDataType_t *type,
                                         cudnnTensorFormat_t *format, int *rank, int *dims) {
    REQUIRE(filter, "cudnnGetFilterNdDescriptor: the descriptor is NULL.");
    STORE(type, (cudnnDataType_t)filter->shape.type);
    STORE(format, filter->format);
    STORE(rank, filter->shape.rank);
    for (int i = 0; dims && i < requested && i < filter->shape.rank; i++)
        dims[i] = (int)filter->shape.dims[i];
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t *type,
                                         cudnnTensorFormat_t *format, int *k, int *c, int *h, int *w) {
    int *const dims[] = {k, c, h, w};
    REQUIRE(filter && filter->shape.rank == 4, "cudnnGetFilter4dDescriptor: the filter does not have 4 dimensions.");
    STORE(type, (cudnnDataType_t)filter->shape.type);
    STORE(format, filter->format);
    for (int i = 0; i < 4; i++)
        STORE(dims[i], (int)filter->shape.dims[i]);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetFilterSizeInBytes(cudnnFilterDescriptor_t filter, size_t *size) {
    REQUIRE(filter && size, "cudnnGetFilterSizeInBytes: the descriptor or the address of the size is NULL.");
    *size = shape_bytes(&filter->shape);
    return CUDNN_STATUS_SUCCESS;
}
