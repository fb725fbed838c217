/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors that functions of more than one file read. */
#ifndef WEFT_CUDNN_DESCRIPTORS_H
#define WEFT_CUDNN_DESCRIPTORS_H

#include "src/plan_cache.h"

struct cudnnTensorStruct {
    struct shape shape;
};

struct cudnnFilterStruct {
    struct shape shape; /* K, C / groups, spatial dimensions, in every format */
    cudnnTensorFormat_t format;
};

enum { SPATIAL_MAX = 3 };

struct cudnnConvolutionStruct {
    int32_t spatial, mode, compute, groups, math, reorder;
    int64_t padding[SPATIAL_MAX], stride[SPATIAL_MAX], dilation[SPATIAL_MAX];
};

struct cudnnActivationStruct {
    int32_t mode, nan;
    double coef, swish_beta;
};

struct cudnnDropoutStruct {
    float probability;
    void *states;
    size_t states_bytes;
    unsigned long long seed;
    cudnnDropoutDescriptor_t fallback; /* the descriptor of the second library for this one, or NULL */
};

/* The functions that create and destroy a descriptor without resources of its own. */
#define DEFINE_LIFETIME(Name)                                                                                          \
    cudnnStatus_t cudnnCreate##Name##Descriptor(cudnn##Name##Descriptor_t *descriptor) {                               \
        REQUIRE(descriptor, "%s: the address of the descriptor is NULL.", __func__);                                   \
        *descriptor = calloc(1, sizeof **descriptor);                                                                  \
        return *descriptor                                                                                             \
                   ? CUDNN_STATUS_SUCCESS                                                                              \
                   : fail_with(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "%s: out of memory.", __func__);    \
    }                                                                                                                  \
    cudnnStatus_t cudnnDestroy##Name##Descriptor(cudnn##Name##Descriptor_t descriptor) {                               \
        free(descriptor);                                                                                              \
        return CUDNN_STATUS_SUCCESS;                                                                                   \
    }

/* Stores a number at an address of the caller's, which may be NULL. */
#define STORE(address, value)                                                                                          \
    do {                                                                                                               \
        if (address)                                                                                                   \
            *(address) = (value);                                                                                      \
    } while (0)

/* y = f(x) and dx = f'(x) dy for the function of an activation descriptor. */
void build_activation(struct builder *b, const struct cudnnActivationStruct *activation, int32_t math, node x, node y);
void build_activation_backward(struct builder *b, const struct cudnnActivationStruct *activation, int32_t math, node x,
                               node dy, node dx);

#endif
