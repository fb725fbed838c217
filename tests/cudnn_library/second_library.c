/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for the library of WEFT_CUDNN_FALLBACK in tests: its descriptors have a layout of their own, and its functions
   fail if they get one of another library. */
#include <cudnn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLE = 0x48414e44, TENSOR = 0x54454e53, DROPOUT = 0x44524f50, NETWORK = 0x4e455457 };

struct object {
    int kind;
    int type, rank, dims[8], strides[8]; /* of a tensor */
    cudaStream_t stream;                 /* of a handle */
    float probability;                   /* of dropout */
    void *states;
    size_t states_bytes;
    struct object *dropout; /* of a network */
};

static char message[200];

static int is(const void *object, int kind) {
    int same = object && ((const struct object *)object)->kind == kind;
    if (!same)
        snprintf(message, sizeof message, "an object of another library");
    return same;
}

static cudnnStatus_t create(void *address, int kind) {
    struct object *created = calloc(1, sizeof *created);
    created->kind = kind;
    memcpy(address, &created, sizeof created);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(void *object, int kind) {
    if (!is(object, kind))
        return CUDNN_STATUS_BAD_PARAM;
    free(object);
    return CUDNN_STATUS_SUCCESS;
}

void cudnnGetLastErrorString(char *text, size_t max_size) { snprintf(text, max_size, "%s", message); }
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { return create(handle, HANDLE); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy(handle, HANDLE); }

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    if (!is(handle, HANDLE))
        return CUDNN_STATUS_BAD_PARAM;
    ((struct object *)handle)->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensor) { return create(tensor, TENSOR); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) { return destroy(tensor, TENSOR); }

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rank,
                                         const int *dims, const int *strides) {
    struct object *object = (struct object *)tensor;
    if (!is(object, TENSOR))
        return CUDNN_STATUS_BAD_PARAM;
    object->type = (int)type, object->rank = rank;
    memcpy(object->dims, dims, (size_t)rank * sizeof *dims);
    memcpy(object->strides, strides, (size_t)rank * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, int requested, cudnnDataType_t *type,
                                         int *rank, int *dims, int *strides) {
    const struct object *object = (const struct object *)tensor;
    if (!is(object, TENSOR))
        return CUDNN_STATUS_BAD_PARAM;
    *type = (cudnnDataType_t)object->type, *rank = object->rank;
    for (int i = 0; i < requested && i < object->rank; i++)
        dims[i] = object->dims[i], strides[i] = object->strides[i];
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t *dropout) { return create(dropout, DROPOUT); }
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t dropout) { return destroy(dropout, DROPOUT); }

cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *bytes) {
    *bytes = 1000;
    return is(handle, HANDLE) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle, float probability,
                                        void *states, size_t bytes, unsigned long long seed) {
    struct object *object = (struct object *)dropout;
    if (!is(object, DROPOUT) || !is(handle, HANDLE))
        return CUDNN_STATUS_BAD_PARAM;
    if (states && bytes < 1000)
        return CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT;
    object->probability = probability, object->states = states, object->states_bytes = bytes;
    if (states)
        memset(states, (int)seed, bytes);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle, float probability,
                                            void *states, size_t bytes, unsigned long long seed) {
    (void)seed;
    ((struct object *)dropout)->probability = probability, ((struct object *)dropout)->states = states;
    ((struct object *)dropout)->states_bytes = bytes;
    return is(handle, HANDLE) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

/* ---- Recurrent networks ------------------------------------------------------------------------------------------ */

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *network) { return create(network, NETWORK); }
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t network) { return destroy(network, NETWORK); }

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t network, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t cell,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                       cudnnRNNInputMode_t input, cudnnDataType_t type, cudnnDataType_t math,
                                       cudnnMathType_t math_type, int32_t input_size, int32_t hidden, int32_t projected,
                                       int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t flags) {
    (void)algorithm, (void)cell, (void)bias, (void)direction, (void)input, (void)type, (void)math, (void)math_type;
    (void)input_size, (void)hidden, (void)projected, (void)layers, (void)flags;
    if (!is(network, NETWORK) || (dropout && !is(dropout, DROPOUT)))
        return CUDNN_STATUS_BAD_PARAM;
    ((struct object *)network)->dropout = (struct object *)dropout;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNDescriptor_v8(cudnnRNNDescriptor_t network, cudnnRNNAlgo_t *algorithm, cudnnRNNMode_t *cell,
                                       cudnnRNNBiasMode_t *bias, cudnnDirectionMode_t *direction,
                                       cudnnRNNInputMode_t *input, cudnnDataType_t *type, cudnnDataType_t *math,
                                       cudnnMathType_t *math_type, int32_t *input_size, int32_t *hidden,
                                       int32_t *projected, int32_t *layers, cudnnDropoutDescriptor_t *dropout,
                                       uint32_t *flags) {
    (void)algorithm, (void)cell, (void)bias, (void)direction, (void)input, (void)type, (void)math, (void)math_type;
    (void)input_size, (void)hidden, (void)projected, (void)layers, (void)flags;
    *dropout = (cudnnDropoutDescriptor_t)((struct object *)network)->dropout;
    return CUDNN_STATUS_SUCCESS;
}

/* The matrix has the extents of the given tensor in reverse order, and the bias is one row. */
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t network, int32_t layer, size_t bytes,
                                      const void *weights, int32_t index, cudnnTensorDescriptor_t matrix,
                                      void **matrix_address, cudnnTensorDescriptor_t bias, void **bias_address) {
    (void)layer, (void)bytes, (void)index;
    if (!is(handle, HANDLE) || !is(network, NETWORK) || !is(matrix, TENSOR) || !is(bias, TENSOR))
        return CUDNN_STATUS_BAD_PARAM;
    struct object *given = (struct object *)matrix;
    const int dims[] = {1, given->dims[2], given->dims[1]}, row[] = {1, 1, 7}, steps[] = {7, 7, 1};
    cudnnSetTensorNdDescriptor(matrix, CUDNN_DATA_FLOAT, 3, dims, steps);
    cudnnSetTensorNdDescriptor(bias, CUDNN_DATA_FLOAT, 3, row, steps);
    *matrix_address = (void *)((struct object *)handle)->stream, *bias_address = (void *)weights;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBuildRNNDynamic(cudnnHandle_t handle, cudnnRNNDescriptor_t network, int batch) {
    (void)handle, (void)network;
    snprintf(message, sizeof message, "a batch of %d is too large", batch);
    return CUDNN_STATUS_NOT_SUPPORTED;
}
