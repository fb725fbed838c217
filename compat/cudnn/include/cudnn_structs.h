/* SPDX-License-Identifier: Apache-2.0 */
/* The structs of cudnn.h whose members are enumerations. cudnn.h includes it after its enumerations. */
#ifndef WEFT_CUDNN_STRUCTS_H
#define WEFT_CUDNN_STRUCTS_H

/* Masks of cudnnSetCallback. */
#define CUDNN_SEV_ERROR_EN (1U << CUDNN_SEV_ERROR)
#define CUDNN_SEV_WARNING_EN (1U << CUDNN_SEV_WARNING)
#define CUDNN_SEV_INFO_EN (1U << CUDNN_SEV_INFO)

/* Context of a log message. */
typedef struct cudnnDebugStruct {
    unsigned cudnn_version;
    cudnnStatus_t cudnnStatus;
    unsigned time_sec, time_usec, time_delta;
    cudnnHandle_t handle;
    cudaStream_t stream;
    unsigned long long pid, tid;
    int cudaDeviceId;
    int reserved[15];
} cudnnDebug_t;

typedef void (*cudnnCallback_t)(cudnnSeverity_t severity, void *udata, const cudnnDebug_t *debug, const char *message);

/* Answers of the algorithm queries: time in milliseconds, -1 if it was not measured; memory in bytes. */
typedef struct cudnnConvolutionFwdAlgoPerfStruct {
    cudnnConvolutionFwdAlgo_t algo;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
} cudnnConvolutionFwdAlgoPerf_t;

typedef struct cudnnConvolutionBwdDataAlgoPerfStruct {
    cudnnConvolutionBwdDataAlgo_t algo;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
} cudnnConvolutionBwdDataAlgoPerf_t;

typedef struct cudnnConvolutionBwdFilterAlgoPerfStruct {
    cudnnConvolutionBwdFilterAlgo_t algo;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
} cudnnConvolutionBwdFilterAlgoPerf_t;

/* A graph in compressed sparse column form. */
typedef struct {
    const void *cscOffsets, *cscIndices, *mapCscToCoo, *mapRevToCoo;
    int64_t nSrcNodes, nDstNodes, nIndices;
    cudnnDataType_t idxType;
    const void *cscRevOffsets;
} cudnnGnnCscGraph_t;

typedef struct {
    cudnnGnnActivationOp_t activation;
    float activationAlpha;
    int numHeads, concatHeads;
} cudnnGnnMhaParams_t;

#endif
