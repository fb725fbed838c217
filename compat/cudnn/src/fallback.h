/* SPDX-License-Identifier: Apache-2.0 */
/* The second library, WEFT_CUDNN_FALLBACK: it serves whole families of functions that Weft lacks. Their own descriptors
   are its own; handles, tensor descriptors and dropout descriptors are translated for each call. */
#ifndef WEFT_CUDNN_FALLBACK_H
#define WEFT_CUDNN_FALLBACK_H

#include "src/descriptors.h"

enum { FALLBACK_TENSORS_MAX = 8 };

/* Where the states of the second library's generator begin in the states of a dropout descriptor. */
enum { FALLBACK_STATES_OFFSET = 256 };

/* A call of the second library. */
struct fallback_call {
    const char *name;
    cudnnStatus_t status; /* of the translation */
    int tensor_count;
    struct {
        cudnnTensorDescriptor_t of_weft, translated;
    } tensors[FALLBACK_TENSORS_MAX];
    cudnnDropoutDescriptor_t *dropout_results[2];
    int dropout_result_count;
};

/* The function of the second library, or NULL if there is no library or it lacks the function. */
void *fallback_begin(struct fallback_call *call);

/* Arguments for the second library. */
cudnnHandle_t fallback_handle(struct fallback_call *call, cudnnHandle_t handle);
cudnnTensorDescriptor_t fallback_tensor(struct fallback_call *call, cudnnTensorDescriptor_t tensor);
cudnnDropoutDescriptor_t fallback_dropout(struct fallback_call *call, cudnnDropoutDescriptor_t dropout);
cudnnDropoutDescriptor_t *fallback_dropout_result(struct fallback_call *call, cudnnDropoutDescriptor_t *dropout);

/* Translates results back, and stores the second library's message if it failed. status: that of the call, or of the
   translation, if that failed. Returns the status. */
cudnnStatus_t fallback_end(struct fallback_call *call, cudnnStatus_t status);

/* For functions of Weft's whose descriptors the second library shares; they do nothing without one. */
void fallback_destroy_handle(cudnnHandle_t handle);
size_t fallback_states_bytes(cudnnHandle_t handle);
cudnnStatus_t fallback_set_dropout(cudnnHandle_t handle, cudnnDropoutDescriptor_t dropout, bool is_new);
void fallback_destroy_dropout(cudnnDropoutDescriptor_t dropout);

#endif
