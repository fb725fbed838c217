/* SPDX-License-Identifier: Apache-2.0 */
/* Copies into other layouts with padding. */
#include "src/tensor_arithmetic.h"

#include <stdlib.h>
#include <string.h>

struct cudnnTensorTransformStruct {
    uint32_t rank;
    cudnnTensorFormat_t format;
    cudnnFoldingDirection_t direction;
    int32_t before[CUDNN_DIM_MAX], after[CUDNN_DIM_MAX]; /* padding of each dimension */
    uint32_t fold[CUDNN_DIM_MAX];                        /* 0 or 1: the dimension is not folded */
};

DEFINE_LIFETIME(TensorTransform)

cudnnStatus_t cudnnSetTensorTransformDescriptor(cudnnTensorTransformDescriptor_t transform, uint32_t rank,
                                                cudnnTensorFormat_t format, const int32_t *before, const int32_t *after,
                                                const uint32_t *fold, cudnnFoldingDirection_t direction) {
    REQUIRE(transform, "cudnnSetTensorTransformDescriptor: the descriptor is NULL.");
    REQUIRE(rank > 0 && rank <= CUDNN_DIM_MAX, "cudnnSetTensorTransformDescriptor: rank %u: expected 1 to %d.", rank,
            CUDNN_DIM_MAX);
    *transform = (struct cudnnTensorTransformStruct){.rank = rank, .format = format, .direction = direction};
    for (uint32_t i = 0; i < rank; i++) {
        transform->before[i] = before ? before[i] : 0;
        transform->after[i] = after ? after[i] : 0;
        transform->fold[i] = i >= 2 && fold ? fold[i - 2] : 0; /* only spatial dimensions are folded */
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorTransformDescriptor(cudnnTensorTransformDescriptor_t transform, uint32_t requested,
                                                cudnnTensorFormat_t *format, int32_t *before, int32_t *after,
                                                uint32_t *fold, cudnnFoldingDirection_t *direction) {
    REQUIRE(transform, "cudnnGetTensorTransformDescriptor: the descriptor is NULL.");
    STORE(format, transform->format);
    STORE(direction, transform->direction);
    for (uint32_t i = 0; i < requested && i < transform->rank; i++) {
        if (before)
            before[i] = transform->before[i];
        if (after)
            after[i] = transform->after[i];
        if (fold && i >= 2)
            fold[i - 2] = transform->fold[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check(cudnnTensorTransformDescriptor_t transform, int rank) {
    REQUIRE(transform && (int)transform->rank == rank,
            "tensor transform: the descriptor and the tensor differ in rank. Set both for the same tensor.");
    for (uint32_t i = 0; i < transform->rank; i++) {
        if (transform->fold[i] > 1)
            return fail_with(CUDNN_STATUS_NOT_SUPPORTED,
                             "tensor transform: dimension %u is folded by %u, which is not supported. Set 1.", i,
                             transform->fold[i]);
        if (transform->before[i] < 0 || transform->after[i] < 0)
            return fail_with(CUDNN_STATUS_NOT_SUPPORTED_PADDING,
                             "tensor transform: dimension %u has negative padding, which is not supported.", i);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnInitTransformDest(cudnnTensorTransformDescriptor_t transform, cudnnTensorDescriptor_t source,
                                     cudnnTensorDescriptor_t destination, size_t *bytes) {
    int dims[CUDNN_DIM_MAX];
    REQUIRE(source && destination && bytes, "cudnnInitTransformDest: an argument is NULL.");
    cudnnStatus_t status = check(transform, source->shape.rank);
    if (status)
        return status;
    for (int i = 0; i < source->shape.rank; i++)
        dims[i] = (int)source->shape.dims[i] + transform->before[i] + transform->after[i];
    status = shape_set(&destination->shape, (cudnnDataType_t)source->shape.type, source->shape.rank, dims, NULL,
                       transform->format);
    if (!status)
        *bytes = shape_bytes(&destination->shape);
    return status;
}

/* If beta is 0, the padding becomes zero; otherwise it keeps its values. The source is added to the part inside. */
static cudnnStatus_t run(cudnnHandle_t handle, cudnnTensorTransformDescriptor_t transform, const void *alpha,
                         const struct shape *from_shape, const void *from, const void *beta,
                         const struct shape *to_shape, void *to) {
    static const double zero = 0; /* also a zero of every other type */
    int64_t offset = 0;
    REQUIRE_HANDLE(handle);
    cudnnStatus_t status = check(transform, from_shape->rank);
    struct shape inside = *to_shape;
    REQUIRE(from_shape->rank == to_shape->rank, "tensor transform: source and destination differ in rank.");
    for (int i = 0; i < from_shape->rank && !status; i++) {
        REQUIRE(from_shape->dims[i] + transform->before[i] + transform->after[i] == to_shape->dims[i],
                "tensor transform: dimension %d of the destination has extent %lld: expected %lld. Use "
                "cudnnInitTransformDest.",
                i, (long long)to_shape->dims[i],
                (long long)from_shape->dims[i] + transform->before[i] + transform->after[i]);
        inside.dims[i] = from_shape->dims[i];
        offset += transform->before[i] * to_shape->strides[i];
    }
    if (!status && read_factor(beta, to_shape, 0) == 0 && memcmp(inside.dims, to_shape->dims, sizeof inside.dims) != 0)
        status = fill(handle, to_shape, to, &zero);
    char *address = (char *)to + (size_t)offset * shape_element_bytes(to_shape);
    return status ? status : add_scaled(handle, alpha, from_shape, from, beta, &inside, address);
}

static cudnnStatus_t transform_tensor(cudnnHandle_t handle, cudnnTensorTransformDescriptor_t transform,
                                      const void *alpha, cudnnTensorDescriptor_t from_desc, const void *from,
                                      const void *beta, cudnnTensorDescriptor_t to_desc, void *to) {
    REQUIRE(from_desc && to_desc, "cudnnTransformTensorEx: a descriptor is NULL.");
    return run(handle, transform, alpha, &from_desc->shape, from, beta, &to_desc->shape, to);
}

cudnnStatus_t cudnnTransformTensorEx(cudnnHandle_t handle, cudnnTensorTransformDescriptor_t transform,
                                     const void *alpha, cudnnTensorDescriptor_t from_desc, const void *from,
                                     const void *beta, cudnnTensorDescriptor_t to_desc, void *to) {
    RETURN_COUNTED(transform_tensor(handle, transform, alpha, from_desc, from, beta, to_desc, to));
}

static cudnnStatus_t transform_filter(cudnnHandle_t handle, cudnnTensorTransformDescriptor_t transform,
                                      const void *alpha, cudnnFilterDescriptor_t from_desc, const void *from,
                                      const void *beta, cudnnFilterDescriptor_t to_desc, void *to) {
    REQUIRE(from_desc && to_desc, "cudnnTransformFilter: a descriptor is NULL.");
    return run(handle, transform, alpha, &from_desc->shape, from, beta, &to_desc->shape, to);
}

cudnnStatus_t cudnnTransformFilter(cudnnHandle_t handle, cudnnTensorTransformDescriptor_t transform, const void *alpha,
                                   cudnnFilterDescriptor_t from_desc, const void *from, const void *beta,
                                   cudnnFilterDescriptor_t to_desc, void *to) {
    RETURN_COUNTED(transform_filter(handle, transform, alpha, from_desc, from, beta, to_desc, to));
}
