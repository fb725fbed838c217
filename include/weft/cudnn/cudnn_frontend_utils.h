/* SPDX-License-Identifier: Apache-2.0 */
/* The namespace of cuDNN's C++ frontend, and the part of its utilities that programs use. */
#ifndef WEFT_CUDNN_CUDNN_FRONTEND_UTILS_H
#define WEFT_CUDNN_CUDNN_FRONTEND_UTILS_H

#if __has_include(<cuda_fp16.h>) && __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "cudnn.h"

namespace cudnn_frontend = weft::frontend;

#define CUDNN_FRONTEND_UNUSED(X) ((void)X)

#endif
