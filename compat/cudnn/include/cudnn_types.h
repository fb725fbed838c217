/* SPDX-License-Identifier: Apache-2.0 */
/* The hand-written part of cudnn.h: macros, handles, structs and callbacks. Names, numbers and layouts are those of
   cuDNN's binary interface, so that programs written for cuDNN compile with this header, and programs built with
   NVIDIA's header run with this library. cudnn.h includes it; programs include cudnn.h. */
#ifndef WEFT_CUDNN_TYPES_H
#define WEFT_CUDNN_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "cudnn_version.h"

/* Programs spell the calling convention and deprecations, which mean nothing here. */
#define CUDNNWINAPI
#define CUDNN_DEPRECATED
#define CUDNN_DEPRECATED_ENUM

/* ---- CUDA's types: those of its headers if they are installed, otherwise the same names ---- */

#ifdef __has_include
#if __has_include(<cuda_runtime_api.h>) && __has_include(<library_types.h>)
#define WEFT_CUDNN_FOUND_CUDA_HEADERS
#endif
#endif
#ifdef WEFT_CUDNN_FOUND_CUDA_HEADERS
#include <cuda_runtime_api.h>
#include <library_types.h>
#else
typedef struct CUstream_st *cudaStream_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef enum libraryPropertyType_t { MAJOR_VERSION = 0, MINOR_VERSION = 1, PATCH_LEVEL = 2 } libraryPropertyType;
#endif

/* ---- Limits and flags ---- */

#define CUDNN_DIM_MAX 8
#define CUDNN_LRN_MIN_N 1
#define CUDNN_LRN_MAX_N 16
#define CUDNN_LRN_MIN_K 1e-5
#define CUDNN_LRN_MIN_BETA 0.01
#define CUDNN_BN_MIN_EPSILON 0.0
#define CUDNN_RNN_PADDED_IO_DISABLED 0
#define CUDNN_RNN_PADDED_IO_ENABLED (1U << 0)
#define CUDNN_SEQDATA_DIM_COUNT 4
#define CUDNN_ATTN_QUERYMAP_ALL_TO_ONE 0
#define CUDNN_ATTN_QUERYMAP_ONE_TO_ONE (1U << 0)
#define CUDNN_ATTN_DISABLE_PROJ_BIASES 0
#define CUDNN_ATTN_ENABLE_PROJ_BIASES (1U << 1)
#define CUDNN_ATTN_WKIND_COUNT 8

#define CUDNN_STATUS_CATEGORY(status) ((status) / 1000 * 1000)
#define CUDNN_STATUS_SPECIFIC_ERROR(status) ((status) % 1000)
#define CUDNN_STATUS_FULL_ERROR_CODE(category, specific) ((cudnnStatus_t)((category) + (specific)))

/* ---- Handles and descriptors ---- */

typedef struct cudnnContext *cudnnHandle_t;
typedef void *cudnnBackendDescriptor_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;
typedef struct cudnnConvolutionStruct *cudnnConvolutionDescriptor_t;
typedef struct cudnnActivationStruct *cudnnActivationDescriptor_t;
typedef struct cudnnPoolingStruct *cudnnPoolingDescriptor_t;
typedef struct cudnnDropoutStruct *cudnnDropoutDescriptor_t;
typedef struct cudnnOpTensorStruct *cudnnOpTensorDescriptor_t;
typedef struct cudnnReduceTensorStruct *cudnnReduceTensorDescriptor_t;
typedef struct cudnnTensorTransformStruct *cudnnTensorTransformDescriptor_t;
typedef struct cudnnLRNStruct *cudnnLRNDescriptor_t;
typedef struct cudnnSpatialTransformerStruct *cudnnSpatialTransformerDescriptor_t;
typedef struct cudnnRNNStruct *cudnnRNNDescriptor_t;
typedef struct cudnnRNNDataStruct *cudnnRNNDataDescriptor_t;
typedef struct cudnnCTCLossStruct *cudnnCTCLossDescriptor_t;
typedef struct cudnnSeqDataStruct *cudnnSeqDataDescriptor_t;
typedef struct cudnnAttnStruct *cudnnAttnDescriptor_t;
typedef struct cudnnFusedOpsConstParamStruct *cudnnFusedOpsConstParamPack_t;
typedef struct cudnnFusedOpsVariantParamStruct *cudnnFusedOpsVariantParamPack_t;
typedef struct cudnnFusedOpsPlanStruct *cudnnFusedOpsPlan_t;
typedef struct cudnnRuntimeTag_t cudnnRuntimeTag_t;
typedef unsigned cudnnAttnQueryMap_t;

typedef struct cudnnFractionStruct {
    int64_t numerator;
    int64_t denominator;
} cudnnFraction_t;

#endif
