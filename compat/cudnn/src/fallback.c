/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "src/fallback.h"
#include "base/trace.h"

#include <dlfcn.h>
#include <stdlib.h>

/* ---- The library ------------------------------------------------------------------------------------------------- */

/* The functions that translations need; all exist in every cuDNN 9. */
static struct {
    void *library;
    cudnnStatus_t (*create)(cudnnHandle_t *);
    cudnnStatus_t (*destroy)(cudnnHandle_t);
    cudnnStatus_t (*set_stream)(cudnnHandle_t, cudaStream_t);
    void (*last_error)(char *, size_t);
    cudnnStatus_t (*create_tensor)(cudnnTensorDescriptor_t *);
    cudnnStatus_t (*destroy_tensor)(cudnnTensorDescriptor_t);
    cudnnStatus_t (*set_tensor)(cudnnTensorDescriptor_t, cudnnDataType_t, int, const int *, const int *);
    cudnnStatus_t (*get_tensor)(cudnnTensorDescriptor_t, int, cudnnDataType_t *, int *, int *, int *);
    cudnnStatus_t (*create_dropout)(cudnnDropoutDescriptor_t *);
    cudnnStatus_t (*destroy_dropout)(cudnnDropoutDescriptor_t);
    cudnnStatus_t (*set_dropout)(cudnnDropoutDescriptor_t, cudnnHandle_t, float, void *, size_t, unsigned long long);
    cudnnStatus_t (*restore_dropout)(cudnnDropoutDescriptor_t, cudnnHandle_t, float, void *, size_t,
                                     unsigned long long);
    cudnnStatus_t (*states_size)(cudnnHandle_t, size_t *);
} second;

static bool load_function(const char *name, void *target) {
    *(void **)target = dlsym(second.library, name);
    if (!*(void **)target)
        trace(WEFT_SEV_ERROR, "WEFT_CUDNN_FALLBACK: the library lacks %s, so it is not used", name);
    return *(void **)target;
}

/* Opened by its path, so that it does not replace this library, which has the same soname. */
static void open_library(void) {
    const char *path = getenv("WEFT_CUDNN_FALLBACK");
    if (!path || !*path)
        return;
    second.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!second.library) {
        trace(WEFT_SEV_ERROR, "WEFT_CUDNN_FALLBACK=%s: %s", path, dlerror());
        return;
    }
    bool is_complete = load_function("cudnnCreate", &second.create) && load_function("cudnnDestroy", &second.destroy) &&
                       load_function("cudnnSetStream", &second.set_stream) &&
                       load_function("cudnnGetLastErrorString", &second.last_error) &&
                       load_function("cudnnCreateTensorDescriptor", &second.create_tensor) &&
                       load_function("cudnnDestroyTensorDescriptor", &second.destroy_tensor) &&
                       load_function("cudnnSetTensorNdDescriptor", &second.set_tensor) &&
                       load_function("cudnnGetTensorNdDescriptor", &second.get_tensor) &&
                       load_function("cudnnCreateDropoutDescriptor", &second.create_dropout) &&
                       load_function("cudnnDestroyDropoutDescriptor", &second.destroy_dropout) &&
                       load_function("cudnnSetDropoutDescriptor", &second.set_dropout) &&
                       load_function("cudnnRestoreDropoutDescriptor", &second.restore_dropout) &&
                       load_function("cudnnDropoutGetStatesSize", &second.states_size);
    /* A library that resolves its own soname to this one would call back into this file without end. */
    if (is_complete && second.create == cudnnCreate) {
        trace(WEFT_SEV_ERROR, "WEFT_CUDNN_FALLBACK=%s: this is Weft's own library. Give the path of another", path);
        is_complete = false;
    }
    if (!is_complete) {
        dlclose(second.library);
        second.library = NULL;
    }
}

static bool has_library(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return second.library;
}

/* Copies the second library's message. */
static cudnnStatus_t failure(const char *name, cudnnStatus_t status) {
    char message[1024] = "";
    second.last_error(message, sizeof message);
    return fail_with(status, "%s, by the library of WEFT_CUDNN_FALLBACK: %s", name, message);
}

/* ---- Handles ----------------------------------------------------------------------------------------------------- */

/* The second library's handle for this one, created at first use, on the same stream. */
static cudnnStatus_t translate_handle(cudnnHandle_t handle, cudnnHandle_t *translated) {
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    REQUIRE_HANDLE(handle);
    pthread_mutex_lock(&handle->lock);
    if (!handle->fallback)
        status = second.create(&handle->fallback);
    *translated = handle->fallback;
    pthread_mutex_unlock(&handle->lock);
    if (!status)
        status = second.set_stream(*translated, handle->stream);
    return status ? failure("cudnnCreate", status) : status;
}

void fallback_destroy_handle(cudnnHandle_t handle) {
    if (handle->fallback)
        second.destroy(handle->fallback);
    handle->fallback = NULL;
}

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

void *fallback_begin(struct fallback_call *call) { return has_library() ? dlsym(second.library, call->name) : NULL; }

static void keep_failure(struct fallback_call *call, cudnnStatus_t status) {
    if (status && !call->status)
        call->status = status;
}

cudnnHandle_t fallback_handle(struct fallback_call *call, cudnnHandle_t handle) {
    cudnnHandle_t translated = NULL;
    keep_failure(call, translate_handle(handle, &translated));
    return translated;
}

/* Any tensor descriptor may be an operand or a result, so it is set before the call and read after it. */
cudnnTensorDescriptor_t fallback_tensor(struct fallback_call *call, cudnnTensorDescriptor_t tensor) {
    cudnnTensorDescriptor_t translated = NULL;
    int dims[CUDNN_DIM_MAX], strides[CUDNN_DIM_MAX];
    if (!tensor || call->tensor_count == FALLBACK_TENSORS_MAX)
        return NULL;
    cudnnStatus_t status = second.create_tensor(&translated);
    if (status) {
        keep_failure(call, failure("cudnnCreateTensorDescriptor", status));
        return NULL;
    }
    call->tensors[call->tensor_count].of_weft = tensor;
    call->tensors[call->tensor_count++].translated = translated;
    for (int i = 0; i < tensor->shape.rank; i++)
        dims[i] = (int)tensor->shape.dims[i], strides[i] = (int)tensor->shape.strides[i];
    if (tensor->shape.rank)
        status = second.set_tensor(translated, (cudnnDataType_t)tensor->shape.type, tensor->shape.rank, dims, strides);
    if (status)
        keep_failure(call, failure("cudnnSetTensorNdDescriptor", status));
    return translated;
}

static void read_tensor(cudnnTensorDescriptor_t tensor, cudnnTensorDescriptor_t translated) {
    int rank = 0, dims[CUDNN_DIM_MAX], strides[CUDNN_DIM_MAX];
    cudnnDataType_t type;
    if (!second.get_tensor(translated, CUDNN_DIM_MAX, &type, &rank, dims, strides) && rank)
        shape_set(&tensor->shape, type, rank, dims, strides, CUDNN_TENSOR_NCHW);
}

/* ---- Dropout descriptors ----------------------------------------------------------------------------------------- */

/* Pairs of descriptors, to find Weft's again when the second library returns its own. */
static struct {
    pthread_mutex_t lock;
    struct pair {
        cudnnDropoutDescriptor_t of_weft, translated;
        struct pair *next;
    } *pairs;
} dropouts = {.lock = PTHREAD_MUTEX_INITIALIZER};

static cudnnStatus_t translate_dropout(cudnnDropoutDescriptor_t dropout) {
    struct pair *pair = malloc(sizeof *pair);
    if (!pair)
        return fail_with(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "dropout: out of memory.");
    cudnnStatus_t status = second.create_dropout(&dropout->fallback);
    if (status) {
        free(pair);
        return failure("cudnnCreateDropoutDescriptor", status);
    }
    pthread_mutex_lock(&dropouts.lock);
    *pair = (struct pair){dropout, dropout->fallback, dropouts.pairs};
    dropouts.pairs = pair;
    pthread_mutex_unlock(&dropouts.lock);
    return CUDNN_STATUS_SUCCESS;
}

cudnnDropoutDescriptor_t fallback_dropout(struct fallback_call *call, cudnnDropoutDescriptor_t dropout) {
    if (dropout && !dropout->fallback)
        keep_failure(call, translate_dropout(dropout));
    return dropout ? dropout->fallback : NULL;
}

cudnnDropoutDescriptor_t *fallback_dropout_result(struct fallback_call *call, cudnnDropoutDescriptor_t *dropout) {
    if (dropout && call->dropout_result_count < 2)
        call->dropout_results[call->dropout_result_count++] = dropout;
    return dropout;
}

static void read_dropout(cudnnDropoutDescriptor_t *dropout) {
    pthread_mutex_lock(&dropouts.lock);
    const struct pair *pair = dropouts.pairs;
    while (pair && pair->translated != *dropout)
        pair = pair->next;
    if (pair)
        *dropout = pair->of_weft;
    pthread_mutex_unlock(&dropouts.lock);
}

void fallback_destroy_dropout(cudnnDropoutDescriptor_t dropout) {
    if (!dropout->fallback)
        return;
    second.destroy_dropout(dropout->fallback);
    pthread_mutex_lock(&dropouts.lock);
    for (struct pair **at = &dropouts.pairs; *at; at = &(*at)->next)
        if ((*at)->of_weft == dropout) {
            struct pair *removed = *at;
            *at = removed->next;
            free(removed);
            break;
        }
    pthread_mutex_unlock(&dropouts.lock);
}

size_t fallback_states_bytes(cudnnHandle_t handle) {
    cudnnHandle_t translated;
    size_t bytes = 0;
    if (!has_library() || translate_handle(handle, &translated) || second.states_size(translated, &bytes))
        return 0;
    return bytes;
}

cudnnStatus_t fallback_set_dropout(cudnnHandle_t handle, cudnnDropoutDescriptor_t dropout, bool is_new) {
    cudnnHandle_t translated;
    char *states = dropout->states ? (char *)dropout->states + FALLBACK_STATES_OFFSET : NULL;
    size_t bytes = dropout->states_bytes > FALLBACK_STATES_OFFSET ? dropout->states_bytes - FALLBACK_STATES_OFFSET : 0;
    if (!has_library())
        return CUDNN_STATUS_SUCCESS;
    cudnnStatus_t status = translate_handle(handle, &translated);
    if (!status && !dropout->fallback)
        status = translate_dropout(dropout);
    if (status)
        return status;
    status = (is_new ? second.set_dropout : second.restore_dropout)(dropout->fallback, translated, dropout->probability,
                                                                    states, bytes, dropout->seed);
    return status ? failure("cudnnSetDropoutDescriptor", status) : status;
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

cudnnStatus_t fallback_end(struct fallback_call *call, cudnnStatus_t status) {
    if (status && !call->status)
        status = failure(call->name, status);
    for (int i = 0; i < call->tensor_count; i++) {
        if (!status)
            read_tensor(call->tensors[i].of_weft, call->tensors[i].translated);
        second.destroy_tensor(call->tensors[i].translated);
    }
    for (int i = 0; i < call->dropout_result_count && !status; i++)
        read_dropout(call->dropout_results[i]);
    return status;
}
