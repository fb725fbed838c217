/* SPDX-License-Identifier: Apache-2.0 */
/* Handles and streams. */
#define _GNU_SOURCE
#include "src/handle.h"
#include "src/fallback.h"
#include "src/plan_cache.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int (*device_query)(int *device);

/* A function of a library that the process has loaded already, or NULL. */
static void *find_loaded(const char *library, const char *name) {
    void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD), *function = loaded ? dlsym(loaded, name) : NULL;
    if (loaded)
        dlclose(loaded); /* the process keeps it */
    return function;
}

static bool query_device(const char *library, const char *name, int *device) {
    device_query query;
    *(void **)&query = find_loaded(library, name);
    return query && !query(device);
}

/* The device of the thread's context. Threads without a context, such as those of PyTorch's autograd, get the device
   that the CUDA run-time would use, and its context, as with cuDNN. 0 if neither is known. */
int handle_current_device(void) {
    static const char *const runtimes[] = {"libcudart.so.13", "libcudart.so.12"};
    int device = 0;
    if (query_device("libcuda.so.1", "cuCtxGetDevice", &device))
        return device;
    for (int i = 0; i < 2; i++) {
        int (*make_context)(void *);
        if (!query_device(runtimes[i], "cudaGetDevice", &device))
            continue;
        *(void **)&make_context = find_loaded(runtimes[i], "cudaFree");
        if (make_context)
            make_context(NULL);
        return device;
    }
    return 0;
}

/* Programs pass addresses of a GPU's memory, so the CPU is used only if WEFT_DEVICE selects it. */
static cudnnStatus_t create(cudnnHandle_t *handle) {
    const char *chosen = getenv("WEFT_DEVICE");
    bool is_cpu = chosen && !strcmp(chosen, "cpu");
    if (!handle)
        return fail_with(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                         "cudnnCreate: handle is NULL. Give the address of a handle.");
    struct cudnnContext *created = calloc(1, sizeof *created);
    if (!created)
        return fail_with(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnCreate: out of memory.");
    cudnnStatus_t status = from_weft(weftCreateForDevice(&created->weft, is_cpu ? WEFT_DEVICE_CPU : WEFT_DEVICE_CUDA,
                                                         is_cpu ? 0 : handle_current_device()));
    if (status) {
        free(created);
        return CUDNN_STATUS_NOT_INITIALIZED;
    }
    pthread_mutex_init(&created->lock, NULL);
    created->magic = HANDLE_MAGIC;
    *handle = created;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { RETURN_COUNTED(create(handle)); }

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    if (!handle)
        return CUDNN_STATUS_SUCCESS;
    REQUIRE_HANDLE(handle);
    handle->magic = 0;
    plans_free(handle);
    fallback_destroy_handle(handle);
    for (int i = 0; i < handle->scratch_count; i++) {
        weftSynchronize(handle->weft, handle->scratch[i].stream);
        weftFree(handle->weft, handle->scratch[i].memory);
    }
    cudnnStatus_t status = from_weft(weftDestroy(handle->weft));
    pthread_mutex_destroy(&handle->lock);
    free(handle);
    return status;
}

/* PyTorch calls it before every operation, also during stream capture, so it only stores the stream. */
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    REQUIRE_HANDLE(handle);
    handle->stream = stream;
    return from_weft(weftSetStream(handle->weft, stream));
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
    REQUIRE_HANDLE(handle);
    REQUIRE(stream, "cudnnGetStream: the address of the stream is NULL.");
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* Weft reports errors when they occur, so no error is pending. */
cudnnStatus_t cudnnQueryRuntimeError(cudnnHandle_t handle, cudnnStatus_t *result, cudnnErrQueryMode_t mode,
                                     cudnnRuntimeTag_t *tag) {
    (void)mode, (void)tag;
    REQUIRE_HANDLE(handle);
    REQUIRE(result, "cudnnQueryRuntimeError: the address of the status is NULL.");
    *result = CUDNN_STATUS_SUCCESS;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Scratch memory ---------------------------------------------------------------------------------------------- */

/* Replaces the memory by a larger one. Pending work of the stream may still use the old one. */
static cudnnStatus_t grow(cudnnHandle_t handle, struct scratch *scratch, size_t bytes) {
    cudnnStatus_t status = from_weft(weftSynchronize(handle->weft, scratch->stream));
    if (status)
        return status;
    weftFree(handle->weft, scratch->memory);
    scratch->memory = NULL, scratch->bytes = 0;
    status = from_weft(weftAllocate(handle->weft, bytes, &scratch->memory));
    if (!status)
        scratch->bytes = bytes;
    return status;
}

cudnnStatus_t handle_scratch(cudnnHandle_t handle, size_t bytes, void **memory) {
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    struct scratch *scratch = NULL;
    *memory = NULL;
    if (!bytes)
        return CUDNN_STATUS_SUCCESS;
    pthread_mutex_lock(&handle->lock);
    for (int i = 0; i < handle->scratch_count; i++)
        if (handle->scratch[i].stream == handle->stream)
            scratch = &handle->scratch[i];
    if (!scratch && handle->scratch_count < SCRATCH_MAX) {
        scratch = &handle->scratch[handle->scratch_count++];
        *scratch = (struct scratch){.stream = handle->stream};
    }
    if (!scratch)
        status = fail_with(CUDNN_STATUS_NOT_SUPPORTED,
                           "the handle has scratch memory for %d streams already. Use another handle for this stream, "
                           "or pass a workspace.",
                           SCRATCH_MAX);
    else if (scratch->bytes < bytes)
        status = grow(handle, scratch, bytes);
    if (!status)
        *memory = scratch->memory;
    pthread_mutex_unlock(&handle->lock);
    return status;
}
