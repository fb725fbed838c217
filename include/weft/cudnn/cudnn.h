/* SPDX-License-Identifier: Apache-2.0 */
/* Programs for cuDNN's C++ frontend compile unchanged against Weft if the folder of this header is an include folder:
 * `#include <cudnn.h>` and `#include <cudnn_frontend.h>` then find Weft's headers. This one has the functions of the C
 * API that such programs use: handles, streams, versions and errors. docs/cpp.md lists the differences. */
#ifndef WEFT_CUDNN_CUDNN_H
#define WEFT_CUDNN_CUDNN_H

/* Like cuDNN's headers, for programs that rely on it. */
#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#endif

#include "weft/weft.hpp"

#define CUDNN_MAJOR (WEFT_CUDNN_VERSION / 10000)
#define CUDNN_MINOR (WEFT_CUDNN_VERSION / 100 % 100)
#define CUDNN_PATCHLEVEL (WEFT_CUDNN_VERSION % 100)
#define CUDNN_VERSION WEFT_CUDNN_VERSION

using cudnnHandle_t = weftHandle_t;
using cudnnStatus_t = weftStatus_t;
using cudnnFraction_t = weftFraction_t;

#define CUDNN_STATUS_SUCCESS WEFT_STATUS_SUCCESS
#define CUDNN_STATUS_NOT_INITIALIZED WEFT_STATUS_NOT_INITIALIZED
#define CUDNN_STATUS_BAD_PARAM WEFT_STATUS_BAD_PARAM
#define CUDNN_STATUS_NOT_SUPPORTED WEFT_STATUS_NOT_SUPPORTED
#define CUDNN_STATUS_INTERNAL_ERROR WEFT_STATUS_INTERNAL_ERROR
#define CUDNN_STATUS_ALLOC_FAILED WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
#define CUDNN_STATUS_EXECUTION_FAILED WEFT_STATUS_EXECUTION_FAILED

inline std::size_t cudnnGetVersion() { return weftGetCudnnVersion(); }
inline std::size_t cudnnGetCudartVersion() { return weftGetCudartVersion(); }
inline const char *cudnnGetErrorString(cudnnStatus_t status) { return weftGetErrorString(status); }
inline void cudnnGetLastErrorString(char *message, std::size_t size) { weftGetLastErrorString(message, size); }
inline cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { return weftCreate(handle); }
inline cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return weftDestroy(handle); }
inline cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, CUstream_st *stream) { return weftSetStream(handle, stream); }
inline cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, CUstream_st **stream) {
    return weftGetStream(handle, stream);
}

#endif
