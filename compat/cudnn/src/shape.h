/* SPDX-License-Identifier: Apache-2.0 */
/* Data type, extents and strides of a tensor, as descriptors and keys of plans store them. */
#ifndef WEFT_CUDNN_SHAPE_H
#define WEFT_CUDNN_SHAPE_H

#include "src/library.h"

/* Strides count elements. Unused entries are 0, so that equal shapes are equal bytes. */
struct shape {
    int32_t type, rank;
    int64_t dims[CUDNN_DIM_MAX], strides[CUDNN_DIM_MAX];
};

/* Checks and sets all fields. strides: NULL for packed ones of a format. */
cudnnStatus_t shape_set(struct shape *shape, cudnnDataType_t type, int rank, const int *dims, const int *strides,
                        cudnnTensorFormat_t format);

/* Replaces the strides by packed ones. */
void shape_pack(struct shape *shape, cudnnTensorFormat_t format);

int64_t shape_elements(const struct shape *shape);
size_t shape_element_bytes(const struct shape *shape);

/* Bytes from the first to the last element. */
size_t shape_bytes(const struct shape *shape);

/* True if dimensions from `first` on are stored without gaps, the last one fastest. */
bool shape_is_packed_from(const struct shape *shape, int first);

/* A shape of one element. */
struct shape shape_of_scalar(int32_t type, int rank);

/* The type in which functions compute, and in which their factors alpha and beta are passed. */
static inline int32_t shape_math(const struct shape *shape) {
    return shape->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

/* alpha and beta are double if the tensor is, otherwise float. */
double read_factor(const void *address, const struct shape *shape, double otherwise);

#endif
