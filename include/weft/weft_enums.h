/* SPDX-License-Identifier: Apache-2.0 */
/* Weft's enumerations: statuses, data types, descriptor kinds, attributes and modes, each name with
   one sentence that explains it. Names that also exist in cuDNN's backend API have cuDNN's public
   numbers, so that porting is a rename; a name of Weft's own ends in _EXT or belongs to an
   enumeration that cuDNN does not have. Tools parse this file: explicit decimal values, one
   enumerator per line, followed by its sentence, no macro except the guard. The formatter is off,
   because sentences aligned after the longest name would be a few words wide. */
/* clang-format off */
#ifndef WEFT_ENUMS_H
#define WEFT_ENUMS_H

/** Status that every function returns. 0 is success; the thousands digit is the category: 1xxx the
    library could not start or load something, 2xxx the caller passed an invalid argument, 3xxx the
    request is valid but not supported, 4xxx the library failed, 5xxx the device failed; 12xxx are
    Weft's own caller errors. The text of weftGetLastErrorString describes where and why. */
typedef enum {
    WEFT_STATUS_SUCCESS = 0, /**< The call succeeded. */
    WEFT_STATUS_NOT_INITIALIZED = 1001,
        /**< The library or the handle is not ready, for example because no driver could be
             loaded. */
    WEFT_STATUS_SUBLIBRARY_VERSION_MISMATCH = 1002,
        /**< A library loaded at run time has a version that Weft cannot use. */
    WEFT_STATUS_SERIALIZATION_VERSION_MISMATCH = 1003,
        /**< A saved plan or cache was written by another, incompatible version; build it again. */
    WEFT_STATUS_DEPRECATED = 1004,
        /**< The function or value is no longer offered; the message names its successor. */
    WEFT_STATUS_LICENSE_ERROR = 1005,
        /**< Reserved: Weft requires no licence and never returns it. */
    WEFT_STATUS_RUNTIME_IN_PROGRESS = 1006,
        /**< Work enqueued earlier has not finished, so its result is not known yet. */
    WEFT_STATUS_RUNTIME_FP_OVERFLOW = 1007, /**< A kernel reported a floating-point overflow. */
    WEFT_STATUS_SUBLIBRARY_LOADING_FAILED = 1008,
        /**< A library needed at run time, such as libcuda or libnvrtc, was not found or did not
             load. */
    WEFT_STATUS_BAD_PARAM = 2000,
        /**< An argument is invalid in a way that no more specific code describes. */
    WEFT_STATUS_BAD_PARAM_NULL_POINTER = 2002, /**< A pointer that must not be null is null. */
    WEFT_STATUS_BAD_PARAM_MISALIGNED_POINTER = 2003,
        /**< A data pointer is less aligned than its tensor's BYTE_ALIGNMENT requires. */
    WEFT_STATUS_BAD_PARAM_NOT_FINALIZED = 2004,
        /**< A descriptor was used before weftBackendFinalize succeeded on it. */
    WEFT_STATUS_BAD_PARAM_OUT_OF_BOUND = 2005,
        /**< A number or an index is outside of its legal range. */
    WEFT_STATUS_BAD_PARAM_SIZE_INSUFFICIENT = 2006,
        /**< A buffer, an array or the workspace is smaller than needed. */
    WEFT_STATUS_BAD_PARAM_STREAM_MISMATCH = 2007,
        /**< The stream belongs to another device or context than the handle. */
    WEFT_STATUS_BAD_PARAM_SHAPE_MISMATCH = 2008,
        /**< Extents of two tensors, or of a tensor and an attribute, do not match. */
    WEFT_STATUS_BAD_PARAM_DUPLICATED_ENTRIES = 2009,
        /**< Something that must be unique, such as a tensor's uid, occurs twice. */
    WEFT_STATUS_BAD_PARAM_ATTRIBUTE_TYPE = 2010,
        /**< The attribute does not accept elements of the given type. */
    WEFT_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH = 2011,
        /**< The CUDA graph to update was not populated from this plan. */
    WEFT_STATUS_BAD_PARAM_DESCRIPTOR_TYPE = 2012,
        /**< A descriptor of another kind was expected, or the descriptor has no such attribute. */
    WEFT_STATUS_NOT_SUPPORTED = 3000,
        /**< The request is not supported, for a reason that no more specific code describes. */
    WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN = 3001,
        /**< The engine does not support this combination of operations. */
    WEFT_STATUS_NOT_SUPPORTED_SHAPE = 3002, /**< The engine does not support these extents. */
    WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE = 3003,
        /**< The engine does not support this data type or this combination of types. */
    WEFT_STATUS_NOT_SUPPORTED_LAYOUT = 3004, /**< The engine does not support these strides. */
    WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER = 3005,
        /**< The installed CUDA driver is too old for the request. */
    WEFT_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART = 3006,
        /**< The CUDA run-time component in use is too old for the request. */
    WEFT_STATUS_NOT_SUPPORTED_ARCH_MISMATCH = 3007,
        /**< The device is of a generation that the engine or the saved plan does not support. */
    WEFT_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING = 3008,
        /**< A component needed at run time, such as the run-time compiler, is absent. */
    WEFT_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE = 3009,
        /**< The part of the library that the request needs is not installed. */
    WEFT_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT = 3010,
        /**< The kernel needs more shared memory than the device, or the set limit, allows. */
    WEFT_STATUS_NOT_SUPPORTED_PADDING = 3011, /**< The engine does not support this padding. */
    WEFT_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM = 3012,
        /**< The problem would need a launch grid or block that the device does not support. */
    WEFT_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API = 3013,
        /**< The plan cannot be written into a CUDA graph directly; capture its stream instead. */
    WEFT_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE = 3014,
        /**< The plan does not support a shape given at run time. */
    WEFT_STATUS_INTERNAL_ERROR = 4000,
        /**< A check inside the library failed: a bug; please report it with the message. */
    WEFT_STATUS_INTERNAL_ERROR_COMPILATION_FAILED = 4001,
        /**< The run-time compiler rejected a kernel; the message names the saved log and
             program. */
    WEFT_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE = 4002,
        /**< A value inside the library is invalid. */
    WEFT_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 4003, /**< Host memory ran out. */
    WEFT_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 4004, /**< Device memory ran out. */
    WEFT_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM = 4005,
        /**< The driver rejected the launch parameters of a kernel. */
    WEFT_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED = 4006,
        /**< A texture or tensor-map object could not be created. */
    WEFT_STATUS_EXECUTION_FAILED = 5000,
        /**< The work could not be started or did not finish, for a reason that no more specific
             code describes. */
    WEFT_STATUS_EXECUTION_FAILED_CUDA_DRIVER = 5001,
        /**< A call of the CUDA driver failed; the message contains the driver's own error. */
    WEFT_STATUS_EXECUTION_FAILED_CUBLAS = 5002,
        /**< Reserved: Weft does not call cuBLAS and never returns it. */
    WEFT_STATUS_EXECUTION_FAILED_CUDART = 5003,
        /**< Reserved: Weft does not call the CUDA run-time library and never returns it. */
    WEFT_STATUS_EXECUTION_FAILED_CURAND = 5004,
        /**< Reserved: Weft does not call cuRAND and never returns it. */
    WEFT_STATUS_BAD_PARAM_ALREADY_FINALIZED_EXT = 12001,
        /**< The descriptor is finalized and cannot change any more; create a new one. */
    WEFT_STATUS_BAD_PARAM_CYCLE_EXT = 12002,
        /**< The operations form a cycle, so they cannot be ordered. */
    WEFT_STATUS_BAD_PARAM_DAMAGED_BLOB_EXT = 12003
        /**< A saved plan or cache is truncated or modified; no part of it was used. */
} weftStatus_t;

/** How an element of a tensor is stored, or the type in which an operation calculates. */
typedef enum {
    WEFT_DATA_FLOAT = 0, /**< IEEE float, 32 bits; the usual type for calculations. */
    WEFT_DATA_DOUBLE = 1, /**< IEEE float, 64 bits. */
    WEFT_DATA_HALF = 2, /**< IEEE float, 16 bits: 5 exponent and 10 fraction bits. */
    WEFT_DATA_INT8 = 3, /**< Signed integer, 8 bits. */
    WEFT_DATA_INT32 = 4, /**< Signed integer, 32 bits. */
    WEFT_DATA_INT8x4 = 5,
        /**< Four INT8 in one element; reserved; tensors use INT8 with a vector count of 4. */
    WEFT_DATA_UINT8 = 6, /**< Unsigned integer, 8 bits. */
    WEFT_DATA_UINT8x4 = 7,
        /**< Four UINT8 in one element; reserved; tensors use UINT8 with a vector count of 4. */
    WEFT_DATA_INT8x32 = 8,
        /**< Thirty-two INT8 in one element; reserved; tensors use INT8 with a vector count of
             32. */
    WEFT_DATA_BFLOAT16 = 9,
        /**< The upper half of a FLOAT, 16 bits: 8 exponent and 7 fraction bits. */
    WEFT_DATA_INT64 = 10, /**< Signed integer, 64 bits. */
    WEFT_DATA_BOOLEAN = 11, /**< Truth value, one bit per element, packed eight to a byte, lowest bit first. */
    WEFT_DATA_FP8_E4M3 = 12,
        /**< Float of 8 bits: 4 exponent and 3 fraction bits, largest value 448, NaN but no
             infinity. */
    WEFT_DATA_FP8_E5M2 = 13,
        /**< Float of 8 bits: 5 exponent and 2 fraction bits, largest finite value 57344. */
    WEFT_DATA_FAST_FLOAT_FOR_FP8 = 14,
        /**< Only for calculations: sums of FP8 products are faster and less precise than in
             FLOAT. */
    WEFT_DATA_FP8_E8M0 = 15,
        /**< A power of two in 8 bits, 2^(bits - 127), no sign and no zero; the block scale of
             the MX formats. */
    WEFT_DATA_FP4_E2M1 = 16,
        /**< Float of 4 bits, largest value 6; two per byte, the even element in the low half. */
    WEFT_DATA_INT4 = 17,
        /**< Signed integer, 4 bits, -8 to 7; two per byte, the even element in the low half. */
    WEFT_DATA_UINT4 = 18,
        /**< Unsigned integer, 4 bits, 0 to 15; two per byte, the even element in the low half. */
    WEFT_DATA_UINT32 = 19, /**< Unsigned integer, 32 bits. */
    WEFT_DATA_COMPLEX_FP32 = 20,
        /**< Complex number, 64 bits: real part, then imaginary part, each a FLOAT. */
    WEFT_DATA_COMPLEX_FP64 = 21,
        /**< Complex number, 128 bits: real part, then imaginary part, each a DOUBLE. */
    WEFT_DATA_BYTE_BOOLEAN = 22,
        /**< Truth value, one byte per element: 0 is false, anything else true; written as 0 or 1. */
    WEFT_DATA_FP8_E5M3 = 23
        /**< Float of 8 bits without a sign: 5 exponent and 3 fraction bits; a block scale. */
} weftDataType_t;

/** Type of the elements passed to weftBackendSetAttribute and weftBackendGetAttribute. An
    enumeration is passed as its own C type, 4 bytes wide. */
typedef enum {
    WEFT_TYPE_HANDLE = 0, /**< weftHandle_t, a pointer. */
    WEFT_TYPE_DATA_TYPE = 1, /**< weftDataType_t. */
    WEFT_TYPE_BOOLEAN = 2, /**< One byte, 0 or 1: C's bool. */
    WEFT_TYPE_INT64 = 3, /**< int64_t. */
    WEFT_TYPE_FLOAT = 4, /**< float. */
    WEFT_TYPE_DOUBLE = 5, /**< double. */
    WEFT_TYPE_VOID_PTR = 6, /**< void *, an address on the host or on the device. */
    WEFT_TYPE_CONVOLUTION_MODE = 7, /**< weftConvolutionMode_t. */
    WEFT_TYPE_HEUR_MODE = 8, /**< weftBackendHeurMode_t. */
    WEFT_TYPE_KNOB_TYPE = 9, /**< weftBackendKnobType_t. */
    WEFT_TYPE_NAN_PROPOGATION = 10,
        /**< weftNanPropagation_t; the name is misspelt in the interface that Weft mirrors. */
    WEFT_TYPE_NUMERICAL_NOTE = 11, /**< weftBackendNumericalNote_t. */
    WEFT_TYPE_LAYOUT_TYPE = 12, /**< weftBackendLayoutType_t. */
    WEFT_TYPE_ATTRIB_NAME = 13, /**< weftBackendAttributeName_t. */
    WEFT_TYPE_POINTWISE_MODE = 14, /**< weftPointwiseMode_t. */
    WEFT_TYPE_BACKEND_DESCRIPTOR = 15,
        /**< weftBackendDescriptor_t, a pointer; the attribute determines the kind. */
    WEFT_TYPE_GENSTATS_MODE = 16, /**< weftGenStatsMode_t. */
    WEFT_TYPE_BN_FINALIZE_STATS_MODE = 17, /**< weftBnFinalizeStatsMode_t. */
    WEFT_TYPE_REDUCTION_OPERATOR_TYPE = 18, /**< weftReduceTensorOp_t. */
    WEFT_TYPE_BEHAVIOR_NOTE = 19, /**< weftBackendBehaviorNote_t. */
    WEFT_TYPE_TENSOR_REORDERING_MODE = 20, /**< weftBackendTensorReordering_t. */
    WEFT_TYPE_RESAMPLE_MODE = 21, /**< weftResampleMode_t. */
    WEFT_TYPE_PADDING_MODE = 22, /**< weftPaddingMode_t. */
    WEFT_TYPE_INT32 = 23, /**< int32_t. */
    WEFT_TYPE_CHAR = 24, /**< char: text or bytes, the count is the length in bytes. */
    WEFT_TYPE_SIGNAL_MODE = 25, /**< weftSignalMode_t. */
    WEFT_TYPE_FRACTION = 26, /**< weftFraction_t: numerator and denominator, two int64_t. */
    WEFT_TYPE_NORM_MODE = 27, /**< weftBackendNormMode_t. */
    WEFT_TYPE_NORM_FWD_PHASE = 28, /**< weftBackendNormFwdPhase_t. */
    WEFT_TYPE_RNG_DISTRIBUTION = 29, /**< weftRngDistribution_t. */
    WEFT_TYPE_MOE_GROUPED_MATMUL_MODE = 30, /**< weftMoeGroupedMatmulMode_t. */
    WEFT_TYPE_RESHAPE_MODE = 31, /**< weftBackendReshapeMode_t. */
    WEFT_TYPE_OPERATIONGRAPH_MODE = 32, /**< weftBackendOperationGraphMode_t. */
    WEFT_TYPE_CUDA_GRAPH_RETENTION = 33, /**< weftCudaGraphRetention_t. */
    WEFT_TYPE_RNN_MODE_EXT = 10001 /**< weftRnnMode_t. */
} weftBackendAttributeType_t;

/** Kind of a descriptor, chosen in weftBackendCreateDescriptor. A tensor is an operand; an
    operation computes tensors from tensors; an operation graph contains operations that share
    tensors; an engine, its configuration and a plan determine how the graph is executed; a variant
    pack determines the memory. Operations with many parameters have them in a parameter descriptor
    of the same name without OPERATION_. */
typedef enum {
    WEFT_BACKEND_TENSOR_DESCRIPTOR = 17,
        /**< An operand: data type, extents, strides and uid; holds no data. */
    WEFT_BACKEND_OPERATIONGRAPH_DESCRIPTOR = 15,
        /**< The computation: a set of operations that share tensors. */
    WEFT_BACKEND_POINTWISE_DESCRIPTOR = 0,
        /**< Parameters of a pointwise operation: mode, clips, slopes. */
    WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR = 13,
        /**< One function applied to each element of one, two or three tensors. */
    WEFT_BACKEND_MATMUL_DESCRIPTOR = 18,
        /**< Parameters of a matrix product: compute type and padding value. */
    WEFT_BACKEND_OPERATION_MATMUL_DESCRIPTOR = 19, /**< Batched matrix product, C = A B. */
    WEFT_BACKEND_CONVOLUTION_DESCRIPTOR = 1,
        /**< Parameters of a convolution: strides, dilations, paddings. */
    WEFT_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR = 10,
        /**< Convolution of an image with filters. */
    WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR = 12,
        /**< Gradient of a convolution with respect to its image. */
    WEFT_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR = 11,
        /**< Gradient of a convolution with respect to its filters. */
    WEFT_BACKEND_REDUCTION_DESCRIPTOR = 21,
        /**< Parameters of a reduction: operator and compute type. */
    WEFT_BACKEND_OPERATION_REDUCTION_DESCRIPTOR = 22,
        /**< Sum, maximum or another reduction over each dimension that the output shrinks. */
    WEFT_BACKEND_RESAMPLE_DESCRIPTOR = 24,
        /**< Parameters of pooling or interpolation: mode, window, strides, paddings. */
    WEFT_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR = 25, /**< Pooling or interpolation. */
    WEFT_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR = 26,
        /**< Gradient of pooling or interpolation. */
    WEFT_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR = 14,
        /**< Sum and sum of squares of each channel. */
    WEFT_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR = 20,
        /**< Computes batch-norm statistics and an equivalent scale and bias from the sums of each
             channel. */
    WEFT_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR = 23,
        /**< Gradients of batch norm's scale and bias, and the coefficients of the gradient of x. */
    WEFT_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR = 29,
        /**< A normalisation: layer, instance, batch, group, RMS or adaptive layer norm. */
    WEFT_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR = 30, /**< Gradients of a normalisation. */
    WEFT_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR = 45,
        /**< Softmax along one dimension, with optional row statistics. */
    WEFT_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR = 44,
        /**< Replaces the scores outside a diagonal band by a fill value. */
    WEFT_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR = 41, /**< Scaled dot-product attention. */
    WEFT_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR = 43,
        /**< Gradients of scaled dot-product attention. */
    WEFT_BACKEND_RNG_DESCRIPTOR = 32, /**< Parameters of a random distribution. */
    WEFT_BACKEND_OPERATION_RNG_DESCRIPTOR = 33,
        /**< Fills a tensor with random numbers that depend on only seed and offset. */
    WEFT_BACKEND_OPERATION_RESHAPE_DESCRIPTOR = 31, /**< The same elements with other extents. */
    WEFT_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR = 46, /**< Permutes dimensions. */
    WEFT_BACKEND_OPERATION_SLICE_DESCRIPTOR = 47, /**< Extracts a box, optionally with steps, from a
                                                       tensor. */
    WEFT_BACKEND_OPERATION_CONCAT_DESCRIPTOR = 27, /**< Concatenates tensors along one dimension. */
    WEFT_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR = 35,
        /**< Gathers the keys or values of each sequence from pages. */
    WEFT_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR = 36,
        /**< Quantises a tensor to a narrow type with one scale per block. */
    WEFT_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR = 37,
        /**< Dequantises a tensor with one scale per block. */
    WEFT_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR = 42,
        /**< Multiplies each expert's tokens by that expert's weight. */
    WEFT_BACKEND_OPERATION_MOE_GROUPED_MATMUL_BWD_DESCRIPTOR = 48,
        /**< Gradient of each expert's weight. */
    WEFT_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR = 49, /**< Rotary position embedding. */
    WEFT_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR = 50,
        /**< Gradient of the rotary position embedding. */
    WEFT_BACKEND_OPERATION_EXPAND_BAND_MATRIX_DESCRIPTOR = 39,
        /**< Expands a compactly stored band to a full matrix. */
    WEFT_BACKEND_OPERATION_CONTRACT_BAND_MATRIX_DESCRIPTOR = 40,
        /**< Gathers the band of a full matrix into compact storage. */
    WEFT_BACKEND_OPERATION_SIGNAL_DESCRIPTOR = 28,
        /**< Sets a flag, or waits for one, between graphs or devices. */
    WEFT_BACKEND_ENGINE_DESCRIPTOR = 2, /**< A kernel selection strategy for a graph. */
    WEFT_BACKEND_KNOB_INFO_DESCRIPTOR = 8,
        /**< The legal values of a knob of an engine; filled by the library. */
    WEFT_BACKEND_KNOB_CHOICE_DESCRIPTOR = 7, /**< The value chosen for one knob. */
    WEFT_BACKEND_LAYOUT_INFO_DESCRIPTOR = 9,
        /**< The layouts that an engine prefers for one tensor; filled by the library. */
    WEFT_BACKEND_ENGINECFG_DESCRIPTOR = 3, /**< An engine together with its knob choices. */
    WEFT_BACKEND_INTERMEDIATE_INFO_DESCRIPTOR = 6,
        /**< Reserved: information about an intermediate buffer; no engine has any. */
    WEFT_BACKEND_ENGINEHEUR_DESCRIPTOR = 4, /**< A query for engine configurations, best first. */
    WEFT_BACKEND_EXECUTION_PLAN_DESCRIPTOR = 5,
        /**< A graph prepared for execution: kernels compiled, workspace known, immutable. */
    WEFT_BACKEND_VARIANT_PACK_DESCRIPTOR = 16,
        /**< The memory for one execution: a pointer for each uid, and the workspace. */
    WEFT_BACKEND_KERNEL_CACHE_DESCRIPTOR = 34,
        /**< Compiled kernels that plans of the same topology share; can be saved. */
    WEFT_BACKEND_DEVICEPROP_DESCRIPTOR = 38, /**< The device to plan for; it need not be present. */
    WEFT_BACKEND_OPERATION_CAUSAL_CONV1D_FWD_DESCRIPTOR_EXT = 10001,
        /**< Causal convolution of sequences, separately for each channel. */
    WEFT_BACKEND_OPERATION_CAUSAL_CONV1D_BWD_DESCRIPTOR_EXT = 10002,
        /**< Gradients of a causal convolution. */
    WEFT_BACKEND_OPERATION_LOGSUMEXP_DESCRIPTOR_EXT = 10020,
        /**< Logarithm of the sum of exponentials. */
    WEFT_BACKEND_OPERATION_SCAN_DESCRIPTOR_EXT = 10021,
        /**< Cumulative sums, products and extremes along one dimension. */
    WEFT_BACKEND_OPERATION_CUMPROD_BWD_DESCRIPTOR_EXT = 10022,
        /**< Gradient of a cumulative product. */
    WEFT_BACKEND_OPERATION_TOP_K_DESCRIPTOR_EXT = 10023,
        /**< The largest or smallest elements along one dimension, and their indices. */
    WEFT_BACKEND_OPERATION_GATHER_DESCRIPTOR_EXT = 10024,
        /**< Elements or slices of a tensor, selected by indices along one dimension. */
    WEFT_BACKEND_OPERATION_SCATTER_ADD_DESCRIPTOR_EXT = 10025,
        /**< Adds elements or slices at indices along one dimension: the gradient of a gather. */
    WEFT_BACKEND_OPERATION_GRID_SAMPLE_FWD_DESCRIPTOR_EXT = 10040,
        /**< Images at the positions of a grid. */
    WEFT_BACKEND_OPERATION_GRID_SAMPLE_BWD_DESCRIPTOR_EXT = 10041,
        /**< Gradients of the images and of the grid. */
    WEFT_BACKEND_OPERATION_AFFINE_GRID_FWD_DESCRIPTOR_EXT = 10042,
        /**< Grids of positions under affine transformations. */
    WEFT_BACKEND_OPERATION_AFFINE_GRID_BWD_DESCRIPTOR_EXT = 10043,
        /**< Gradients of the transformations. */
    WEFT_BACKEND_OPERATION_CTC_LOSS_FWD_DESCRIPTOR_EXT = 10044,
        /**< Connectionist temporal classification: the loss of sequences without alignment. */
    WEFT_BACKEND_OPERATION_CTC_LOSS_BWD_DESCRIPTOR_EXT = 10045,
        /**< Gradient of the loss of sequences without alignment. */
    WEFT_BACKEND_OPERATION_RECURRENCE_FWD_DESCRIPTOR_EXT = 10061,
        /**< The steps of one layer and direction of a recurrent network. */
    WEFT_BACKEND_OPERATION_RECURRENCE_BWD_DESCRIPTOR_EXT = 10062
        /**< Gradients of such a layer. */
} weftBackendDescriptorType_t;

/** An attribute of a descriptor. Each sentence starts with the element type of the attribute (the
    names of weftBackendAttributeType_t) and the number of elements in brackets; without brackets it
    is 1. "TENSOR descriptor" and the like stand for type BACKEND_DESCRIPTOR with a descriptor of
    that kind. An attribute is required before finalize unless its sentence contains optional, a
    default or get only; the library fills those that are get only. spatial is the number of spatial
    dimensions, rank that of all dimensions. A host scalar is a TENSOR descriptor with IS_BY_VALUE
    set and all extents 1. Sizes are in elements unless another unit is given. */
typedef enum {
    /* Every descriptor. */
    WEFT_ATTR_NAME_EXT = 10000,
        /**< CHAR[n], optional: the user's name for the descriptor, shown in messages and
             drawings. */

    /* TENSOR: an operand of up to 8 dimensions, in the logical order batch, channels, spatial. */
    WEFT_ATTR_TENSOR_BYTE_ALIGNMENT = 900,
        /**< INT64: a power of two that divides every address bound to the tensor, in bytes; default
             16. GPU kernels rely on it; the CPU accepts addresses that are multiples of the element
             size. */
    WEFT_ATTR_TENSOR_DATA_TYPE = 901, /**< DATA_TYPE: how each element is stored. */
    WEFT_ATTR_TENSOR_DIMENSIONS = 902,
        /**< INT64[rank]: extent of each dimension, in elements; inferred for outputs of operations
             if unset. */
    WEFT_ATTR_TENSOR_STRIDES = 903,
        /**< INT64[rank]: distance between adjacent elements along each dimension, in elements;
             packed for outputs of operations if unset. */
    WEFT_ATTR_TENSOR_VECTOR_COUNT = 904,
        /**< INT64: number of adjacent elements stored as one vector along VECTORIZED_DIMENSION;
             default 1. */
    WEFT_ATTR_TENSOR_VECTORIZED_DIMENSION = 905,
        /**< INT64: index of the dimension that is split into vectors; default -1, none. */
    WEFT_ATTR_TENSOR_UNIQUE_ID = 906,
        /**< INT64: the number by which a variant pack binds memory to the tensor; unique in its
             graph. */
    WEFT_ATTR_TENSOR_IS_VIRTUAL = 907,
        /**< BOOLEAN: true if the tensor is an intermediate result without memory; default false. */
    WEFT_ATTR_TENSOR_IS_BY_VALUE = 908,
        /**< BOOLEAN: true if the tensor is a scalar in host memory that the variant pack points to;
             default false. */
    WEFT_ATTR_TENSOR_REORDERING_MODE = 909,
        /**< TENSOR_REORDERING_MODE: order of the storage that strides do not express; default
             NONE. */
    WEFT_ATTR_TENSOR_CONSTANT_VALUE = 910,
        /**< VOID_PTR, optional: address of one element on the host; makes the tensor a constant
             known when the plan is built. */
    WEFT_ATTR_TENSOR_RAGGED_OFFSET_DESC = 913,
        /**< TENSOR descriptor, optional: INT32 or INT64 [batch + 1, 1, 1, 1], element offset at
             which each sequence starts. */
    WEFT_ATTR_TENSOR_RAGGED_OFFSET_MULTIPLIER = 914,
        /**< INT64: factor applied to every ragged offset; default 1. */
    WEFT_ATTR_TENSOR_CUDNN_STRIDES_EXT = 10035,
        /**< BOOLEAN: true to give an operation's output with unset strides those of cuDNN's
             frontend; default false, which follows Weft's own rule. */

    /* OPERATIONGRAPH: the computation. */
    WEFT_ATTR_OPERATIONGRAPH_HANDLE = 800,
        /**< HANDLE, optional: the handle whose device the graph is built for; none in a
             sub-graph. */
    WEFT_ATTR_OPERATIONGRAPH_OPS = 801,
        /**< OPERATION descriptors[n]: the operations, finalized, in any order. */
    WEFT_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT = 802,
        /**< INT64, get only: number of engines; ENGINE_GLOBAL_INDEX runs from 0 to one less. */
    WEFT_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED = 803,
        /**< BOOLEAN: true to share kernels between graphs that differ only in extents; default
             false. */
    WEFT_ATTR_OPERATIONGRAPH_IS_SAME_TOPOLOGY = 804,
        /**< BOOLEAN, get only: true if the graph equals the given one, except for extents. */
    WEFT_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED = 805,
        /**< BOOLEAN: true if variant packs may override the graph's extents; default false. */
    WEFT_ATTR_OPERATIONGRAPH_MODE = 806,
        /**< OPERATIONGRAPH_MODE: the class of the graph, as a hint; default AUTO, which the library
             determines. */

    /* POINTWISE: parameters of a pointwise operation. Parameters that the mode does not use are
       ignored. */
    WEFT_ATTR_POINTWISE_MODE = 0, /**< POINTWISE_MODE: the function. */
    WEFT_ATTR_POINTWISE_MATH_PREC = 1,
        /**< DATA_TYPE: compute type; default FLOAT, or INT64 for integers if the mode is exact for
             them. */
    WEFT_ATTR_POINTWISE_NAN_PROPAGATION = 2,
        /**< NAN_PROPOGATION, optional: accepted for compatibility, and ignored. */
    WEFT_ATTR_POINTWISE_RELU_LOWER_CLIP = 3,
        /**< DOUBLE or FLOAT: input below which the slope applies; default 0. */
    WEFT_ATTR_POINTWISE_RELU_UPPER_CLIP = 4,
        /**< DOUBLE or FLOAT: largest value that ReLU returns; default the largest finite number. */
    WEFT_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE = 5,
        /**< DOUBLE or FLOAT: slope of ReLU below the lower clip (leaky ReLU); default 0. */
    WEFT_ATTR_POINTWISE_ELU_ALPHA = 6,
        /**< DOUBLE or FLOAT: factor a of ELU's negative branch, a (e^x - 1); default 1. */
    WEFT_ATTR_POINTWISE_SOFTPLUS_BETA = 7,
        /**< DOUBLE or FLOAT: b of softplus, ln(1 + e^(b x)) / b; default 1. */
    WEFT_ATTR_POINTWISE_SWISH_BETA = 8,
        /**< DOUBLE or FLOAT: b of swish, x sigmoid(b x); default 1. */
    WEFT_ATTR_POINTWISE_AXIS = 9,
        /**< INT64: the dimension whose index GEN_INDEX writes; default -1, which GEN_INDEX does
             not accept. */

    /* OPERATION_POINTWISE: forward y = f(x, b, t), backward dx = dy f'(x). */
    WEFT_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR = 750,
        /**< POINTWISE descriptor: mode and parameters. */
    WEFT_ATTR_OPERATION_POINTWISE_XDESC = 751,
        /**< TENSOR descriptor: first operand; for a backward mode, the input of the forward
             operation. */
    WEFT_ATTR_OPERATION_POINTWISE_BDESC = 752,
        /**< TENSOR descriptor: second operand of modes that take two or three, broadcast where
             its extent is 1. */
    WEFT_ATTR_OPERATION_POINTWISE_YDESC = 753, /**< TENSOR descriptor: result of a forward mode. */
    WEFT_ATTR_OPERATION_POINTWISE_ALPHA1 = 754,
        /**< FLOAT: factor applied to x before the function; default 1. */
    WEFT_ATTR_OPERATION_POINTWISE_ALPHA2 = 755,
        /**< FLOAT: factor applied to b before the function; default 1. */
    WEFT_ATTR_OPERATION_POINTWISE_DXDESC = 756,
        /**< TENSOR descriptor: result of a backward mode. */
    WEFT_ATTR_OPERATION_POINTWISE_DYDESC = 757,
        /**< TENSOR descriptor: incoming gradient of a backward mode. */
    WEFT_ATTR_OPERATION_POINTWISE_TDESC = 758,
        /**< TENSOR descriptor: third operand, the condition of BINARY_SELECT. */

    /* MATMUL: parameters of a matrix product. */
    WEFT_ATTR_MATMUL_COMP_TYPE = 1500,
        /**< DATA_TYPE: accumulation type; default FLOAT, for integers INT32 or INT64. */
    WEFT_ATTR_MATMUL_PADDING_VALUE = 1503,
        /**< DOUBLE: value read beyond the per-batch sizes of the override tensors; default 0. */

    /* OPERATION_MATMUL: C = A B over the last two dimensions. */
    WEFT_ATTR_OPERATION_MATMUL_ADESC = 1520,
        /**< TENSOR descriptor: left operand, [batch.., M, K]. */
    WEFT_ATTR_OPERATION_MATMUL_BDESC = 1521,
        /**< TENSOR descriptor: right operand, [batch.., K, N]. */
    WEFT_ATTR_OPERATION_MATMUL_CDESC = 1522,
        /**< TENSOR descriptor: product, [batch.., M, N]; a batch extent that divides the other
             is repeated. */
    WEFT_ATTR_OPERATION_MATMUL_DESC = 1523, /**< MATMUL descriptor: parameters. */
    WEFT_ATTR_OPERATION_MATMUL_IRREGULARLY_STRIDED_BATCH_COUNT = 1524,
        /**< INT64, optional: accepted for compatibility and ignored; batch strides are
             arbitrary. */
    WEFT_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC = 1525,
        /**< TENSOR descriptor, optional: INT32 or INT64 [batch, 1, 1..], rows of A and C in use
             per batch. */
    WEFT_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC = 1526,
        /**< TENSOR descriptor, optional: INT32 or INT64 [batch, 1, 1..], columns of B and C in
             use per batch. */
    WEFT_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC = 1527,
        /**< TENSOR descriptor, optional: INT32 or INT64 [batch, 1, 1..], summed length in use
             per batch. */

    /* CONVOLUTION: geometry shared by the three convolution operations. */
    WEFT_ATTR_CONVOLUTION_COMP_TYPE = 100,
        /**< DATA_TYPE: accumulation type; default FLOAT, for integers INT32 or INT64. */
    WEFT_ATTR_CONVOLUTION_CONV_MODE = 101,
        /**< CONVOLUTION_MODE: CONVOLUTION flips the filter; default CROSS_CORRELATION. */
    WEFT_ATTR_CONVOLUTION_DILATIONS = 102,
        /**< INT64[spatial]: distance between filter taps, in elements of the image. */
    WEFT_ATTR_CONVOLUTION_FILTER_STRIDES = 103,
        /**< INT64[spatial]: step of the filter over the image, in elements. */
    WEFT_ATTR_CONVOLUTION_POST_PADDINGS = 104,
        /**< INT64[spatial]: zeros assumed after the end of each spatial dimension. */
    WEFT_ATTR_CONVOLUTION_PRE_PADDINGS = 105,
        /**< INT64[spatial]: zeros assumed before the start of each spatial dimension. */
    WEFT_ATTR_CONVOLUTION_SPATIAL_DIMS = 106, /**< INT64: number of spatial dimensions, 1 to 3. */

    /* OPERATION_CONVOLUTION_FORWARD: y = alpha conv(x, w) + beta y. Groups follow from the
       channels of x and w. */
    WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA = 700,
        /**< FLOAT or DOUBLE: factor of the convolution. */
    WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA = 701,
        /**< FLOAT or DOUBLE: factor of the value of y before the operation. */
    WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC = 702,
        /**< CONVOLUTION descriptor: geometry. */
    WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_W = 703,
        /**< TENSOR descriptor: filters, [K, C / groups, spatial..]. */
    WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_X = 704,
        /**< TENSOR descriptor: image, [N, C, spatial..]. */
    WEFT_ATTR_OPERATION_CONVOLUTION_FORWARD_Y = 705,
        /**< TENSOR descriptor: result, [N, K, spatial..]. */

    /* OPERATION_CONVOLUTION_BACKWARD_DATA: dx = alpha conv'(dy, w) + beta dx. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA = 706,
        /**< FLOAT or DOUBLE: factor of the gradient. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA = 707,
        /**< FLOAT or DOUBLE: factor of the value of dx before the operation. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC = 708,
        /**< CONVOLUTION descriptor: geometry of the forward operation. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W = 709,
        /**< TENSOR descriptor: filters, [K, C / groups, spatial..]. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX = 710,
        /**< TENSOR descriptor: gradient of the image, [N, C, spatial..]; set its extents, because
             several are valid. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY = 711,
        /**< TENSOR descriptor: gradient of the result, [N, K, spatial..]. */

    /* OPERATION_CONVOLUTION_BACKWARD_FILTER: dw = alpha conv'(x, dy) + beta dw. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA = 712,
        /**< FLOAT or DOUBLE: factor of the gradient. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA = 713,
        /**< FLOAT or DOUBLE: factor of the value of dw before the operation. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC = 714,
        /**< CONVOLUTION descriptor: geometry of the forward operation. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW = 715,
        /**< TENSOR descriptor: gradient of the filters, [K, C / groups, spatial..]; set its
             extents, because several are valid. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X = 716,
        /**< TENSOR descriptor: image, [N, C, spatial..]. */
    WEFT_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY = 717,
        /**< TENSOR descriptor: gradient of the result, [N, K, spatial..]. */

    /* REDUCTION: parameters of a reduction. */
    WEFT_ATTR_REDUCTION_OPERATOR = 1600, /**< REDUCTION_OPERATOR_TYPE: the operator. */
    WEFT_ATTR_REDUCTION_COMP_TYPE = 1601,
        /**< DATA_TYPE: compute type; default FLOAT, or INT64 for integers except in AVG and
             NORM2. */
    WEFT_ATTR_REDUCTION_IS_DETERMINISTIC = 1602,
        /**< BOOLEAN: true to make results bitwise reproducible; default false. */

    /* OPERATION_REDUCTION: per dimension, y has the extent of x, 1, or a divisor of it, which
       reduces groups of adjacent elements. */
    WEFT_ATTR_OPERATION_REDUCTION_XDESC = 1610, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_REDUCTION_YDESC = 1611,
        /**< TENSOR descriptor: result; several (TENSOR descriptors[n]) with a user-defined
             reducer. */
    WEFT_ATTR_OPERATION_REDUCTION_DESC = 1612, /**< REDUCTION descriptor: parameters. */
    WEFT_ATTR_OPERATION_REDUCTION_GROUP_OFFSET_DESC = 1613,
        /**< TENSOR descriptor, optional: index at which each segment of a packed dimension
             starts; reduces per segment. */
    WEFT_ATTR_OPERATION_REDUCTION_DIMS = 1640,
        /**< INT64[n], optional: the dimensions to reduce, if y has no extents. */
    WEFT_ATTR_OPERATION_REDUCTION_INIT_VALUES = 1641,
        /**< VOID_PTR[n], optional: address on the host of each output's start value; set YDESC
             first. */
    WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH = 1642,
        /**< OPERATIONGRAPH descriptor, optional: a user-defined reducer from accumulator and
             current element to the new accumulator. */
    WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_ACCUMULATOR_UIDS = 1643,
        /**< INT64[n], optional: uids, in the sub-graph, of the accumulators. */
    WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_CURRENT_UIDS = 1644,
        /**< INT64[n], optional: uids, in the sub-graph, of the current elements. */
    WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS = 1645,
        /**< INT64[n], optional: uids, in the sub-graph, of the new accumulators. */
    WEFT_ATTR_OPERATION_REDUCTION_SUBGRAPH_COMPUTE_TYPES = 1646,
        /**< DATA_TYPE[n], optional: type of each accumulator. */

    /* RESAMPLE: geometry of pooling and interpolation. */
    WEFT_ATTR_RESAMPLE_MODE = 1700,
        /**< RESAMPLE_MODE: the reduction of a window; default NEAREST. */
    WEFT_ATTR_RESAMPLE_COMP_TYPE = 1701, /**< DATA_TYPE: compute type; default FLOAT. */
    WEFT_ATTR_RESAMPLE_SPATIAL_DIMS = 1702, /**< INT64: number of spatial dimensions. */
    WEFT_ATTR_RESAMPLE_POST_PADDINGS = 1703,
        /**< INT64 or FRACTION[spatial]: padding after the end of each spatial dimension, in
             elements. */
    WEFT_ATTR_RESAMPLE_PRE_PADDINGS = 1704,
        /**< INT64 or FRACTION[spatial]: padding before the start of each spatial dimension, in
             elements. */
    WEFT_ATTR_RESAMPLE_STRIDES = 1705,
        /**< INT64 or FRACTION[spatial]: step of the window, in elements; a fraction below 1
             enlarges. */
    WEFT_ATTR_RESAMPLE_WINDOW_DIMS = 1706,
        /**< INT64 or FRACTION[spatial]: extent of the window, in elements. */
    WEFT_ATTR_RESAMPLE_NAN_PROPAGATION = 1707,
        /**< NAN_PROPOGATION, optional: whether max pooling returns NaN for a window that contains
             one. */
    WEFT_ATTR_RESAMPLE_PADDING_MODE = 1708,
        /**< PADDING_MODE: value of the padding; default ZERO_PAD. */
    WEFT_ATTR_RESAMPLE_DILATIONS_EXT = 10130,
        /**< INT64[spatial]: distance between the elements of a window; pooling only, default 1. */

    /* OPERATION_RESAMPLE_FWD: y from x. */
    WEFT_ATTR_OPERATION_RESAMPLE_FWD_XDESC = 1710,
        /**< TENSOR descriptor: input, [N, C, spatial..]. */
    WEFT_ATTR_OPERATION_RESAMPLE_FWD_YDESC = 1711,
        /**< TENSOR descriptor: result, [N, C, spatial..]. */
    WEFT_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC = 1712,
        /**< TENSOR descriptor, optional: INT8 or INT32, position of each maximum inside its
             window. */
    WEFT_ATTR_OPERATION_RESAMPLE_FWD_ALPHA = 1713, /**< DOUBLE: factor of the result; default 1. */
    WEFT_ATTR_OPERATION_RESAMPLE_FWD_BETA = 1714,
        /**< DOUBLE: factor of the value of y before the operation; default 0. */
    WEFT_ATTR_OPERATION_RESAMPLE_FWD_DESC = 1716, /**< RESAMPLE descriptor: geometry. */

    /* OPERATION_RESAMPLE_BWD: dx from dy; max pooling also needs the index, or x and y. */
    WEFT_ATTR_OPERATION_RESAMPLE_BWD_DXDESC = 1720,
        /**< TENSOR descriptor: gradient of the input. */
    WEFT_ATTR_OPERATION_RESAMPLE_BWD_DYDESC = 1721,
        /**< TENSOR descriptor: gradient of the result. */
    WEFT_ATTR_OPERATION_RESAMPLE_BWD_IDXDESC = 1722,
        /**< TENSOR descriptor, optional: positions written by the forward max pooling. */
    WEFT_ATTR_OPERATION_RESAMPLE_BWD_ALPHA = 1723,
        /**< DOUBLE: factor of the gradient; default 1. */
    WEFT_ATTR_OPERATION_RESAMPLE_BWD_BETA = 1724,
        /**< DOUBLE: factor of the value of dx before the operation; default 0. */
    WEFT_ATTR_OPERATION_RESAMPLE_BWD_DESC = 1725,
        /**< RESAMPLE descriptor: geometry of the forward operation. */
    WEFT_ATTR_OPERATION_RESAMPLE_BWD_XDESC = 1726,
        /**< TENSOR descriptor, optional: forward input, to find maxima without the index. */
    WEFT_ATTR_OPERATION_RESAMPLE_BWD_YDESC = 1727,
        /**< TENSOR descriptor, optional: forward result, to find maxima without the index. */

    /* OPERATION_GEN_STATS: sums of each channel over batch and space. */
    WEFT_ATTR_OPERATION_GENSTATS_MODE = 770, /**< GENSTATS_MODE: the statistics to compute. */
    WEFT_ATTR_OPERATION_GENSTATS_MATH_PREC = 771, /**< DATA_TYPE: accumulation type; default
                                                       FLOAT. */
    WEFT_ATTR_OPERATION_GENSTATS_XDESC = 772, /**< TENSOR descriptor: input, [N, C, spatial..]. */
    WEFT_ATTR_OPERATION_GENSTATS_SUMDESC = 773, /**< TENSOR descriptor: sum of x, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_GENSTATS_SQSUMDESC = 774,
        /**< TENSOR descriptor: sum of x^2, [1, C, 1..]. */

    /* OPERATION_BN_FINALIZE_STATISTICS: computes batch norm's statistics from the sums. Tensors are
       [1, C, 1..]. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_STATS_MODE = 780,
        /**< BN_FINALIZE_STATS_MODE: computes statistics from the sums, or uses the running
             values. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_MATH_PREC = 781,
        /**< DATA_TYPE: compute type; default FLOAT. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_Y_SUM_DESC = 782,
        /**< TENSOR descriptor: sum of each channel. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_Y_SQ_SUM_DESC = 783,
        /**< TENSOR descriptor: sum of squares of each channel. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_SCALE_DESC = 784,
        /**< TENSOR descriptor: gamma, batch norm's scale. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_BIAS_DESC = 785,
        /**< TENSOR descriptor: beta, batch norm's bias. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_MEAN_DESC = 786,
        /**< TENSOR descriptor, optional: running mean before this step. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_PREV_RUNNING_VAR_DESC = 787,
        /**< TENSOR descriptor, optional: running variance before this step. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_MEAN_DESC = 788,
        /**< TENSOR descriptor, optional: output, running mean after this step. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_VAR_DESC = 789,
        /**< TENSOR descriptor, optional: output, running variance after this step; updated with the
             unbiased variance. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_SAVED_MEAN_DESC = 790,
        /**< TENSOR descriptor, optional: output, mean of this batch. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_SAVED_INV_STD_DESC = 791,
        /**< TENSOR descriptor, optional: output, 1 / sqrt(variance + epsilon) of this batch. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_EQ_SCALE_DESC = 792,
        /**< TENSOR descriptor, optional: output, the factor s of the norm written as s y + t. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_EQ_BIAS_DESC = 793,
        /**< TENSOR descriptor, optional: output, the addend t of the norm written as s y + t. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_ACCUM_COUNT_DESC = 794,
        /**< TENSOR descriptor: host scalar, INT64, number of elements in each sum. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_EPSILON_DESC = 795,
        /**< TENSOR descriptor: host scalar, added to the variance. */
    WEFT_ATTR_OPERATION_BN_FINALIZE_EXP_AVERATE_FACTOR_DESC = 796,
        /**< TENSOR descriptor, optional: host scalar f, running = (1 - f) running + f batch; the
             name is misspelt in cuDNN, too. */

    /* OPERATION_BN_BWD_WEIGHTS: gradients of batch norm, dx = EQ_DY_SCALE dy + EQ_X_SCALE x +
       EQ_BIAS. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC = 1620,
        /**< DATA_TYPE: compute type; default FLOAT. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC = 1621,
        /**< TENSOR descriptor: saved mean, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC = 1622,
        /**< TENSOR descriptor: saved 1 / sqrt(variance + epsilon), [1, C, 1..]. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC = 1623,
        /**< TENSOR descriptor: gamma, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC = 1624,
        /**< TENSOR descriptor: forward input, [N, C, spatial..]. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC = 1625,
        /**< TENSOR descriptor: gradient of the result, [N, C, spatial..]. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC = 1626,
        /**< TENSOR descriptor: output, gradient of gamma, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC = 1627,
        /**< TENSOR descriptor: output, gradient of beta, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC = 1628,
        /**< TENSOR descriptor: output, factor of dy in dx, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC = 1629,
        /**< TENSOR descriptor: output, factor of x in dx, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS = 1630,
        /**< TENSOR descriptor: output, addend in dx, [1, C, 1..]. */

    /* OPERATION_NORM_FORWARD: y = scale (x - mean) / sqrt(variance + epsilon) + bias. */
    WEFT_ATTR_OPERATION_NORM_FWD_MODE = 2000,
        /**< NORM_MODE: which elements share statistics. */
    WEFT_ATTR_OPERATION_NORM_FWD_PHASE = 2001,
        /**< NORM_FWD_PHASE: TRAINING writes statistics for the backward pass. */
    WEFT_ATTR_OPERATION_NORM_FWD_XDESC = 2002, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_NORM_FWD_MEAN_DESC = 2003,
        /**< TENSOR descriptor, optional: mean, written in training, read by batch norm's
             inference; none for RMS norm. */
    WEFT_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC = 2004,
        /**< TENSOR descriptor, optional: 1 / sqrt(variance + epsilon), written in training, read
             by batch norm's inference. */
    WEFT_ATTR_OPERATION_NORM_FWD_SCALE_DESC = 2005,
        /**< TENSOR descriptor, optional: gamma; in layer and RMS norm its extents above 1 define
             the normalised dimensions. */
    WEFT_ATTR_OPERATION_NORM_FWD_BIAS_DESC = 2006,
        /**< TENSOR descriptor, optional: beta, with the dims of the scale. */
    WEFT_ATTR_OPERATION_NORM_FWD_EPSILON_DESC = 2007,
        /**< TENSOR descriptor: host scalar, added to the variance; not needed in batch norm's
             inference. */
    WEFT_ATTR_OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC = 2008,
        /**< TENSOR descriptor, optional: host scalar f, running = (1 - f) running + f batch. */
    WEFT_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC = 2009,
        /**< TENSOR descriptor, optional: running mean before this step, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC = 2010,
        /**< TENSOR descriptor, optional: running variance before this step, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC = 2011,
        /**< TENSOR descriptor, optional: output, running mean after this step, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC = 2012,
        /**< TENSOR descriptor, optional: output, running variance after this step, [1, C, 1..]. */
    WEFT_ATTR_OPERATION_NORM_FWD_YDESC = 2013, /**< TENSOR descriptor: result, with the dims of
                                                    x. */
    WEFT_ATTR_OPERATION_NORM_FWD_PEER_STAT_DESCS = 2014,
        /**< TENSOR descriptors[n], optional: one buffer in each device's memory with which batch
             norm shares sums. */
    WEFT_ATTR_OPERATION_NORM_FWD_GROUPS_EXT = 10040,
        /**< INT64: number of channel groups of GROUP_NORM; other modes ignore it. */
    WEFT_ATTR_OPERATION_NORM_FWD_COMP_TYPE_EXT = 10042,
        /**< DATA_TYPE: compute type; default FLOAT. */

    /* OPERATION_NORM_BACKWARD: gradients of x, scale and bias. */
    WEFT_ATTR_OPERATION_NORM_BWD_MODE = 2100, /**< NORM_MODE: the mode of the forward operation. */
    WEFT_ATTR_OPERATION_NORM_BWD_XDESC = 2101, /**< TENSOR descriptor: forward input. */
    WEFT_ATTR_OPERATION_NORM_BWD_MEAN_DESC = 2102,
        /**< TENSOR descriptor, optional: mean of the forward pass; none for RMS norm. */
    WEFT_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC = 2103,
        /**< TENSOR descriptor, optional: 1 / sqrt(variance + epsilon) of the forward pass. */
    WEFT_ATTR_OPERATION_NORM_BWD_DYDESC = 2104, /**< TENSOR descriptor: gradient of the result. */
    WEFT_ATTR_OPERATION_NORM_BWD_SCALE_DESC = 2105,
        /**< TENSOR descriptor, optional: gamma of the forward operation. */
    WEFT_ATTR_OPERATION_NORM_BWD_EPSILON_DESC = 2106,
        /**< TENSOR descriptor, optional: host scalar, used if statistics are recomputed. */
    WEFT_ATTR_OPERATION_NORM_BWD_DSCALE_DESC = 2107,
        /**< TENSOR descriptor, optional: output, gradient of the scale. */
    WEFT_ATTR_OPERATION_NORM_BWD_DBIAS_DESC = 2108,
        /**< TENSOR descriptor, optional: output, gradient of the bias. */
    WEFT_ATTR_OPERATION_NORM_BWD_DXDESC = 2109, /**< TENSOR descriptor: output, gradient of x. */
    WEFT_ATTR_OPERATION_NORM_BWD_PEER_STAT_DESCS = 2110,
        /**< TENSOR descriptors[n], optional: one buffer in each device's memory with which batch
             norm shares sums. */
    WEFT_ATTR_OPERATION_NORM_BWD_GROUPS_EXT = 10041,
        /**< INT64: number of channel groups of GROUP_NORM; other modes ignore it. */
    WEFT_ATTR_OPERATION_NORM_BWD_COMP_TYPE_EXT = 10043,
        /**< DATA_TYPE: compute type; default FLOAT. */

    /* OPERATION_SOFTMAX: y = e^(x - max) / sum of e^(x - max). Row statistics have extent 1 on
       the axis. */
    WEFT_ATTR_OPERATION_SOFTMAX_XDESC = 3100, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_SOFTMAX_YDESC = 3101, /**< TENSOR descriptor: result, with the dims of x. */
    WEFT_ATTR_OPERATION_SOFTMAX_STATS_DESC = 3102,
        /**< TENSOR descriptor, optional: output, max + ln(sum) of each row. */
    WEFT_ATTR_OPERATION_SOFTMAX_MAX_DESC = 3103,
        /**< TENSOR descriptor, optional: output, largest element of each row. */
    WEFT_ATTR_OPERATION_SOFTMAX_SUM_EXP_DESC = 3104,
        /**< TENSOR descriptor, optional: output, sum of e^(x - max) of each row. */
    WEFT_ATTR_OPERATION_SOFTMAX_SINK_DESC = 3105,
        /**< TENSOR descriptor, optional: [1, H, 1, 1], a score per head that is included in the sum
             but has no column. */
    WEFT_ATTR_OPERATION_SOFTMAX_STATS_LOG2 = 3106,
        /**< BOOLEAN: true if STATS is a base-2 logarithm, times 1 / ln 2; default false. */
    WEFT_ATTR_OPERATION_SOFTMAX_COMP_TYPE_EXT = 10090,
        /**< DATA_TYPE: compute type; default FLOAT. */
    WEFT_ATTR_OPERATION_SOFTMAX_AXIS_EXT = 10091,
        /**< INT64: the dimension whose elements sum to 1; default the last. */
    WEFT_ATTR_OPERATION_SOFTMAX_INFINITE_IS_NAN_EXT = 10321,
        /**< BOOLEAN: true if y is NaN in rows whose largest element is infinite; default false. */

    /* OPERATION_DIAGONAL_BAND_MASK: y = x where the comparison holds, else the fill value. Set
       one bound: row + r with col, or col + l with row. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC = 3000,
        /**< TENSOR descriptor: scores, [B, H, Sq, Skv]. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_KVDESC = 3001,
        /**< TENSOR descriptor, optional: keys in use per batch, INT32 [B, 1, 1, 1]; aligns the
             band to the bottom right. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_QDESC = 3002,
        /**< TENSOR descriptor, optional: queries in use per batch, INT32 [B, 1, 1, 1]; aligns
             the band to the bottom right. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC = 3003,
        /**< TENSOR descriptor, optional: scalar l; compares col + l with row. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC = 3004,
        /**< TENSOR descriptor, optional: scalar r; compares row + r with col. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC = 3005,
        /**< TENSOR descriptor: scalar that fills masked positions. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC = 3006,
        /**< TENSOR descriptor: result, with the dims of x. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE = 3007,
        /**< POINTWISE_MODE: one of the CMP_ modes; x is kept where it is true. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_KVDESC = 3008,
        /**< TENSOR descriptor, optional: cumulative key counts, [B + 1, 1, 1, 1], instead of
             SEQ_LEN_KVDESC. */
    WEFT_ATTR_OPERATION_DIAGONAL_BAND_MASK_CU_SEQ_LEN_QDESC = 3009,
        /**< TENSOR descriptor, optional: cumulative query counts, [B + 1, 1, 1, 1], instead of
             SEQ_LEN_QDESC. */

    /* OPERATION_SDPA_FWD: o = dropout(softmax(mask(scale q k^T + bias))) v. Fully masked rows yield
       0. */
    WEFT_ATTR_OPERATION_SDPA_FWD_QDESC = 2800, /**< TENSOR descriptor: queries, [B, Hq, Sq, Dqk]. */
    WEFT_ATTR_OPERATION_SDPA_FWD_KDESC = 2801,
        /**< TENSOR descriptor: keys, [B, Hk, Skv, Dqk], not transposed; Hk divides Hq. */
    WEFT_ATTR_OPERATION_SDPA_FWD_VDESC = 2802,
        /**< TENSOR descriptor: values, [B, Hv, Skv, Dv]; Hv divides Hq. */
    WEFT_ATTR_OPERATION_SDPA_FWD_ODESC = 2803, /**< TENSOR descriptor: result, [B, Hq, Sq, Dv]. */
    WEFT_ATTR_OPERATION_SDPA_FWD_STATSDESC = 2804,
        /**< TENSOR descriptor, optional: output, FLOAT [B, Hq, Sq, 1], natural log of each row's
             sum of exponentials, for the backward pass. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SCALEDESC = 2805,
        /**< TENSOR descriptor, optional: FLOAT scalar, factor of q k^T; otherwise
             SCALE_VALUE_EXT. */
    WEFT_ATTR_OPERATION_SDPA_FWD_BLOCK_MASK_DESC = 2806,
        /**< TENSOR descriptor, optional: the tiles of 128 x 128 scores that are computed, [B, Hq,
             ceil(Sq / 128), ceil(Skv / 128)] of INT8 or BYTE_BOOLEAN (nonzero: computed), or of
             UINT8 with eight key tiles per byte, lowest bit first. The first two extents may be 1.
             Other tiles are skipped at no cost. */
    WEFT_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_KDESC = 2807,
        /**< TENSOR descriptor, optional: INT32 or INT64 [B, 1, pages, 1], page of each block of
             keys; k is then [container, Hk, page size, Dqk]. Needs SEQ_LEN_KVDESC. Indices outside
             of the container are clamped. */
    WEFT_ATTR_OPERATION_SDPA_FWD_PAGE_TABLE_VDESC = 2808,
        /**< TENSOR descriptor, optional: INT32 or INT64 [B, 1, pages, 1], page of each block of
             values; v is then [container, Hv, page size, Dv]. Otherwise like PAGE_TABLE_KDESC. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC = 2809,
        /**< TENSOR descriptor, optional: INT32 or INT64 [B, 1, 1, 1], queries in use per batch;
             0 is allowed. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC = 2810,
        /**< TENSOR descriptor, optional: INT32 or INT64 [B, 1, 1, 1], keys in use per batch; 0
             is allowed. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH = 2811,
        /**< OPERATIONGRAPH descriptor, optional: pointwise operations that are applied to the
             scaled scores before bias and masks, finalized without a handle. It may read tensors
             that broadcast to the scores; a score of -inf hides the key. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID = 2812,
        /**< INT64: uid of the sub-graph's virtual tensor, [B, Hq, Sq, Skv], that is the scaled
             scores. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID = 2813,
        /**< INT64: uid of the sub-graph's virtual tensor that is the modified scores. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SOFTMAX_DESC = 2814,
        /**< OPERATION_SOFTMAX descriptor, optional: the softmax's statistics and sink. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_SEED_DESC = 2815,
        /**< TENSOR descriptor, optional: INT64 or INT32 scalar, seed of dropout. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_OFFSET_DESC = 2816,
        /**< TENSOR descriptor, optional: INT64 or INT32 scalar, offset into dropout's random
             sequence. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_RNG_DUMP_DESC = 2817,
        /**< TENSOR descriptor, optional: output, [B, Hq, Sq, Skv], the dropout mask, for tests. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_PROBABILITY = 2818,
        /**< FLOAT: probability that a weight is dropped, 0 <= p < 1; default 0. */
    WEFT_ATTR_OPERATION_SDPA_FWD_UNFUSE_FMA = 2819,
        /**< BOOLEAN: true to scale, round and then shift scores, instead of a fused multiply-add;
             default false. */
    WEFT_ATTR_OPERATION_SDPA_FWD_CU_SEQ_LEN_QDESC = 2820,
        /**< TENSOR descriptor, optional: cumulative query counts, [B + 1, 1, 1, 1], instead of
             SEQ_LEN_QDESC. */
    WEFT_ATTR_OPERATION_SDPA_FWD_CU_SEQ_LEN_KVDESC = 2821,
        /**< TENSOR descriptor, optional: cumulative key counts, [B + 1, 1, 1, 1], instead of
             SEQ_LEN_KVDESC. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DESCALE_QDESC = 2822,
        /**< TENSOR descriptor, optional: factor that gives q, of a narrow type, its true value: [1,
             1, 1, 1], or one per batch entry or head, [B, Hq, 1, 1]. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DESCALE_KDESC = 2823,
        /**< TENSOR descriptor, optional: factor that gives k its true value: [1, 1, 1, 1], or one
             per batch entry, head or key, [B, Hk, Skv, 1] with any extent 1; with pages [container,
             Hk, page size, 1]. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DESCALE_VDESC = 2824,
        /**< TENSOR descriptor, optional: the same for v. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DESCALE_SDESC = 2825,
        /**< TENSOR descriptor, optional: scalar applied after the second product to undo
             SCALE_SDESC. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SCALE_SDESC = 2826,
        /**< TENSOR descriptor, optional: scalar applied to the softmax before it is rounded to FP8,
             if it is. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SCALE_ODESC = 2827,
        /**< TENSOR descriptor, optional: scalar applied to the result before it is stored as o. */
    WEFT_ATTR_OPERATION_SDPA_FWD_AMAX_SDESC = 2828,
        /**< TENSOR descriptor, optional: output, one FLOAT, largest softmax value before
             SCALE_SDESC. */
    WEFT_ATTR_OPERATION_SDPA_FWD_AMAX_ODESC = 2829,
        /**< TENSOR descriptor, optional: output, one FLOAT, largest magnitude of the result
             before SCALE_ODESC. */
    WEFT_ATTR_OPERATION_SDPA_FWD_BIAS_DESC_EXT = 10050,
        /**< TENSOR descriptor, optional: added to the scaled scores, [B, Hq, Sq, Skv] with any
             of the first three 1. */
    WEFT_ATTR_OPERATION_SDPA_FWD_LEFT_BOUND_EXT = 10051,
        /**< INT64, optional: keep keys with col > row + shift - bound; unset keeps all on the
             left. */
    WEFT_ATTR_OPERATION_SDPA_FWD_RIGHT_BOUND_EXT = 10052,
        /**< INT64, optional: keep keys with col <= row + shift + bound; 0 is causal, unset keeps
             all on the right. */
    WEFT_ATTR_OPERATION_SDPA_FWD_ALIGNMENT_EXT = 10053,
        /**< INT64, a weftDiagonalAlignment_t: the shift that both bounds count from; default
             TOP_LEFT. */
    WEFT_ATTR_OPERATION_SDPA_FWD_ALIBI_EXT = 10054,
        /**< BOOLEAN: true to add ALiBi, slope (col - row), to the scores, with the usual series of
             slopes over the heads; default false. */
    WEFT_ATTR_OPERATION_SDPA_FWD_MAX_DESC_EXT = 10055,
        /**< TENSOR descriptor, optional: output, FLOAT [B, Hq, Sq, 1], largest score of each
             row. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SUM_EXP_DESC_EXT = 10056,
        /**< TENSOR descriptor, optional: output, FLOAT [B, Hq, Sq, 1], sum of e^(score - max) of
             each row. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SINK_DESC_EXT = 10057,
        /**< TENSOR descriptor, optional: FLOAT [1, Hq, 1, 1], a score per head that is included in
             the softmax's sum but has no value row. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SCALE_VALUE_EXT = 10058,
        /**< DOUBLE: factor of q k^T if SCALEDESC is not set; default 1. */
    WEFT_ATTR_OPERATION_SDPA_FWD_COMP_TYPE_EXT = 10059,
        /**< DATA_TYPE: type in which products and softmax are calculated; default FLOAT. */
    WEFT_ATTR_OPERATION_SDPA_FWD_MAX_SEQ_LEN_KV_EXT = 10060,
        /**< INT64, optional: Skv, if page tables are used; unset: all keys that the tables
             reach. */
    WEFT_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OPERANDS_EXT = 10065,
        /**< TENSOR descriptors: operands of the sub-graph other than the scores. Determined by the
             library. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_MASK_DESC_EXT = 10066,
        /**< TENSOR descriptor, optional: factors of the weights, [B, Hq, Sq, Skv] with any extent
             1, instead of the random mask of DROPOUT_SEED_DESC: numbers, or booleans, which are 1
             and 0. */
    WEFT_ATTR_OPERATION_SDPA_FWD_DROPOUT_SCALE_DESC_EXT = 10067,
        /**< TENSOR descriptor, optional: non-negative scalar, the factor of weights that dropout
             keeps; otherwise 1 / (1 - DROPOUT_PROBABILITY). */

    /* OPERATION_SDPA_BWD: gradients of attention. */
    WEFT_ATTR_OPERATION_SDPA_BWD_QDESC = 2851, /**< TENSOR descriptor: queries, [B, Hq, Sq, Dqk]. */
    WEFT_ATTR_OPERATION_SDPA_BWD_KDESC = 2852, /**< TENSOR descriptor: keys, [B, Hk, Skv, Dqk]. */
    WEFT_ATTR_OPERATION_SDPA_BWD_VDESC = 2853, /**< TENSOR descriptor: values, [B, Hv, Skv, Dv]. */
    WEFT_ATTR_OPERATION_SDPA_BWD_ODESC = 2854,
        /**< TENSOR descriptor: forward result, [B, Hq, Sq, Dv]. */
    WEFT_ATTR_OPERATION_SDPA_BWD_STATSDESC = 2855,
        /**< TENSOR descriptor: statistics that the forward pass wrote, FLOAT [B, Hq, Sq, 1]. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SCALEDESC = 2856,
        /**< TENSOR descriptor, optional: FLOAT scalar, factor of q k^T; otherwise
             SCALE_VALUE_EXT. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC = 2857,
        /**< TENSOR descriptor, optional: INT32 or INT64 [B, 1, 1, 1], queries in use per batch. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC = 2858,
        /**< TENSOR descriptor, optional: INT32 or INT64 [B, 1, 1, 1], keys in use per batch. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DQDESC = 2859,
        /**< TENSOR descriptor: output, gradient of q; rows not in use are set to 0. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DKDESC = 2860,
        /**< TENSOR descriptor: output, gradient of k, summed over the query heads that share it. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DVDESC = 2861,
        /**< TENSOR descriptor: output, gradient of v, summed over the query heads that share it. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DODDESC = 2862,
        /**< TENSOR descriptor: gradient of the result, dO; the extra D is part of the mirrored
             name. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SINK_DESC = 2863,
        /**< TENSOR descriptor, optional: the sink of the forward pass, FLOAT [1, Hq, 1, 1]. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DSINK_DESC = 2864,
        /**< TENSOR descriptor, optional: output, gradient of the sink. */
    WEFT_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_Q = 2865,
        /**< INT64, optional: upper bound of the queries of all batches together, to size ragged
             workspace. */
    WEFT_ATTR_OPERATION_SDPA_BWD_MAX_TOTAL_SEQ_LEN_KV = 2866,
        /**< INT64, optional: upper bound of the keys of all batches together, to size ragged
             workspace. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH = 2867,
        /**< OPERATIONGRAPH descriptor, optional: the sub-graph of the forward pass, and, unless the
             gradient is to be derived, the operations that compute it; finalized without a
             handle. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID = 2868,
        /**< INT64: uid of the sub-graph's tensor that is the scaled scores. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID = 2869,
        /**< INT64: uid of the sub-graph's tensor that is the modified scores. */
    WEFT_ATTR_OPERATION_SDPA_BWD_CU_SEQ_LEN_QDESC = 2870,
        /**< TENSOR descriptor, optional: cumulative query counts, [B + 1, 1, 1, 1], instead of
             SEQ_LEN_QDESC. */
    WEFT_ATTR_OPERATION_SDPA_BWD_CU_SEQ_LEN_KVDESC = 2871,
        /**< TENSOR descriptor, optional: cumulative key counts, [B + 1, 1, 1, 1], instead of
             SEQ_LEN_KVDESC. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_SEED_DESC = 2872,
        /**< TENSOR descriptor, optional: seed that the forward pass used. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_OFFSET_DESC = 2873,
        /**< TENSOR descriptor, optional: offset that the forward pass used. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_PROBABILITY = 2874,
        /**< FLOAT: probability that a weight was dropped, 0 <= p < 1; default 0. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DBIAS_DESC = 2875,
        /**< TENSOR descriptor, optional: output, gradient of the bias, summed over its extents
             of 1. */
    WEFT_ATTR_OPERATION_SDPA_BWD_BIAS_DESC_EXT = 10070,
        /**< TENSOR descriptor, optional: the bias of the forward pass. */
    WEFT_ATTR_OPERATION_SDPA_BWD_LEFT_BOUND_EXT = 10071,
        /**< INT64, optional: the left bound of the forward pass. */
    WEFT_ATTR_OPERATION_SDPA_BWD_RIGHT_BOUND_EXT = 10072,
        /**< INT64, optional: the right bound of the forward pass. */
    WEFT_ATTR_OPERATION_SDPA_BWD_ALIGNMENT_EXT = 10073,
        /**< INT64, a weftDiagonalAlignment_t: the alignment of the forward pass; default
             TOP_LEFT. */
    WEFT_ATTR_OPERATION_SDPA_BWD_ALIBI_EXT = 10074,
        /**< BOOLEAN: true if the forward pass added ALiBi; default false. */
    WEFT_ATTR_OPERATION_SDPA_BWD_IS_DETERMINISTIC_EXT = 10077,
        /**< BOOLEAN, default false: results are bitwise reproducible. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_VALUE_EXT = 10078,
        /**< DOUBLE: factor of q k^T if SCALEDESC is not set; default 1. */
    WEFT_ATTR_OPERATION_SDPA_BWD_COMP_TYPE_EXT = 10079,
        /**< DATA_TYPE: type in which products and softmax are calculated; default FLOAT. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OPERANDS_EXT = 10080,
        /**< TENSOR descriptors: operands of the sub-graph other than the scores. Determined by the
             library. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_INPUT_UID_EXT = 10081,
        /**< INT64, optional: uid of the sub-graph's tensor that is the gradient of the modified
             scores. If unset, the gradient is derived. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_OUTPUT_UID_EXT = 10082,
        /**< INT64, optional: uid of the sub-graph's tensor that is the gradient of the scaled
             scores. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENT_UIDS_EXT = 10083,
        /**< INT64s, optional: uids of tensors that the sub-graph reads and whose gradients are
             requested. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_GRADIENTS_EXT = 10084,
        /**< TENSOR descriptors, optional: outputs, these gradients, each summed over its extents
             of 1. */
    WEFT_ATTR_OPERATION_SDPA_BWD_BLOCK_MASK_DESC_EXT = 10085,
        /**< TENSOR descriptor, optional: the block mask of the forward pass. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_MASK_DESC_EXT = 10086,
        /**< TENSOR descriptor, optional: the factors of the weights in the forward pass, instead of
             a seed. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DROPOUT_SCALE_DESC_EXT = 10087,
        /**< TENSOR descriptor, optional: the factor of kept weights in the forward pass. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_QDESC_EXT = 10200,
        /**< TENSOR descriptor, optional: factor that gives q its true value: as in the forward
             pass, or one for each block of 32 elements, [B, Hq, Sq, ceil(Dqk / 32)]. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_KDESC_EXT = 10201,
        /**< TENSOR descriptor, optional: the same for k. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_VDESC_EXT = 10202,
        /**< TENSOR descriptor, optional: the same for v, in blocks along Dv. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_ODESC_EXT = 10203,
        /**< TENSOR descriptor, optional: the same for o. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_DODESC_EXT = 10204,
        /**< TENSOR descriptor, optional: the same for dO, in blocks along Dv. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_SDESC_EXT = 10205,
        /**< TENSOR descriptor, optional: scalar applied after the product to undo SCALE_SDESC. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_DPDESC_EXT = 10206,
        /**< TENSOR descriptor, optional: scalar applied after the products to undo SCALE_DPDESC. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_SDESC_EXT = 10207,
        /**< TENSOR descriptor, optional: scalar applied to the softmax before it is rounded to q's
             type if that is FP8. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_DQDESC_EXT = 10208,
        /**< TENSOR descriptor, optional: scalar applied to dQ before it is stored. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_DKDESC_EXT = 10209,
        /**< TENSOR descriptor, optional: scalar applied to dK before it is stored. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_DVDESC_EXT = 10210,
        /**< TENSOR descriptor, optional: scalar applied to dV before it is stored. */
    WEFT_ATTR_OPERATION_SDPA_BWD_SCALE_DPDESC_EXT = 10211,
        /**< TENSOR descriptor, optional: scalar applied to the gradient of q k^T before it is
             rounded to dO's type if that is FP8. */
    WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DQDESC_EXT = 10212,
        /**< TENSOR descriptor, optional: output, one FLOAT, largest magnitude of dQ before SCALE_DQDESC. */
    WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DKDESC_EXT = 10213,
        /**< TENSOR descriptor, optional: output, the same for dK. */
    WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DVDESC_EXT = 10214,
        /**< TENSOR descriptor, optional: output, the same for dV. */
    WEFT_ATTR_OPERATION_SDPA_BWD_AMAX_DPDESC_EXT = 10215,
        /**< TENSOR descriptor, optional: output, one FLOAT, largest magnitude of the gradient of q k^T
             before SCALE_DPDESC. */
    WEFT_ATTR_OPERATION_SDPA_BWD_Q_TDESC_EXT = 10216,
        /**< TENSOR descriptor, optional: second copy of q, for dK, with block scales along Sq;
             unset: q. */
    WEFT_ATTR_OPERATION_SDPA_BWD_K_TDESC_EXT = 10217,
        /**< TENSOR descriptor, optional: second copy of k, for dQ, with block scales along Skv;
             unset: k. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DO_TDESC_EXT = 10218,
        /**< TENSOR descriptor, optional: second copy of dO, for dV, with block scales along Sq;
             unset: dO. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DO_F16DESC_EXT = 10219,
        /**< TENSOR descriptor, optional: copy of dO that is not quantised, for its products with o;
             unset: dO. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_Q_TDESC_EXT = 10220,
        /**< TENSOR descriptor, optional: block scales of Q_TDESC, [B, Hq, ceil(Sq / 32), Dqk]. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_K_TDESC_EXT = 10221,
        /**< TENSOR descriptor, optional: block scales of K_TDESC, [B, Hk, ceil(Skv / 32), Dqk]. */
    WEFT_ATTR_OPERATION_SDPA_BWD_DESCALE_DO_TDESC_EXT = 10222,
        /**< TENSOR descriptor, optional: block scales of DO_TDESC, [B, Hq, ceil(Sq / 32), Dv]. */

    /* RNG: the distribution. Parameters that it does not use are ignored. */
    WEFT_ATTR_RNG_DISTRIBUTION = 2300, /**< RNG_DISTRIBUTION: the distribution; default
                                            BERNOULLI. */
    WEFT_ATTR_RNG_NORMAL_DIST_MEAN = 2301, /**< DOUBLE, optional: mean of NORMAL. */
    WEFT_ATTR_RNG_NORMAL_DIST_STANDARD_DEVIATION = 2302,
        /**< DOUBLE, optional: standard deviation of NORMAL. */
    WEFT_ATTR_RNG_UNIFORM_DIST_MAXIMUM = 2303,
        /**< DOUBLE, optional: exclusive upper end of UNIFORM. */
    WEFT_ATTR_RNG_UNIFORM_DIST_MINIMUM = 2304, /**< DOUBLE, optional: lower end of UNIFORM. */
    WEFT_ATTR_RNG_BERNOULLI_DIST_PROBABILITY = 2305,
        /**< DOUBLE, optional: probability that BERNOULLI yields 1. */

    /* OPERATION_RNG: random numbers by the counter-based Philox generator. */
    WEFT_ATTR_OPERATION_RNG_YDESC = 2310, /**< TENSOR descriptor: result. */
    WEFT_ATTR_OPERATION_RNG_SEED = 2311,
        /**< INT64 or TENSOR descriptor: the seed, as a number or as a scalar tensor; default 0. */
    WEFT_ATTR_OPERATION_RNG_DESC = 2312, /**< RNG descriptor: the distribution. */
    WEFT_ATTR_OPERATION_RNG_OFFSET_DESC = 2313,
        /**< TENSOR descriptor: offset into the sequence of the seed, a scalar whose extents and
             strides are all 1. */

    /* OPERATION_RESHAPE: the elements of x with the extents of y. */
    WEFT_ATTR_OPERATION_RESHAPE_XDESC = 2200, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_RESHAPE_YDESC = 2201,
        /**< TENSOR descriptor: result, with the same number of elements. */
    WEFT_ATTR_OPERATION_RESHAPE_MODE = 2202,
        /**< RESHAPE_MODE: a view of the storage, or the elements in logical order; default
             VIEW_ONLY. */

    /* OPERATION_TRANSPOSE: dimension i of y is dimension PERMUTATION[i] of x. */
    WEFT_ATTR_OPERATION_TRANSPOSE_XDESC = 3200, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_TRANSPOSE_YDESC = 3201,
        /**< TENSOR descriptor: result, of the same data type. */
    WEFT_ATTR_OPERATION_TRANSPOSE_PERMUTATION = 3202,
        /**< INT64[rank]: each dimension of x once, in the order of y. */

    /* OPERATION_SLICE: y[i] = x[start + i step] in each dimension. */
    WEFT_ATTR_OPERATION_SLICE_XDESC = 3300, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_SLICE_YDESC = 3301,
        /**< TENSOR descriptor: result, of the same data type and rank. */
    WEFT_ATTR_OPERATION_SLICE_START_INDICES = 3302,
        /**< INT64[rank]: first index in each dimension. */
    WEFT_ATTR_OPERATION_SLICE_LIMIT_INDICES = 3303,
        /**< INT64[rank]: exclusive last index in each dimension. */
    WEFT_ATTR_OPERATION_SLICE_STRIDES = 3304,
        /**< INT64[rank]: step in each dimension, greater than 0; default all 1. */

    /* OPERATION_CONCAT: concatenation of the inputs. */
    WEFT_ATTR_OPERATION_CONCAT_AXIS = 1800,
        /**< INT64: the dimension along which the inputs are concatenated. */
    WEFT_ATTR_OPERATION_CONCAT_INPUT_DESCS = 1801,
        /**< TENSOR descriptors[n]: the inputs, equal in every other extent. */
    WEFT_ATTR_OPERATION_CONCAT_INPLACE_INDEX = 1802,
        /**< INT64, optional: index of the input that is already stored inside the output. */
    WEFT_ATTR_OPERATION_CONCAT_OUTPUT_DESC = 1803, /**< TENSOR descriptor: result. */

    /* OPERATION_PAGED_CACHE_LOAD: y[b, h, s] = container[table[b, s / page], h, s % page]. */
    WEFT_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC = 1950,
        /**< TENSOR descriptor: the pages, [pages, H, page size, D]. */
    WEFT_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC = 1951,
        /**< TENSOR descriptor: result, [B, H, S, D] or, with keys transposed, [B, H, D, S]. */
    WEFT_ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC = 1952,
        /**< TENSOR descriptor: tokens in use per batch, [B, 1, 1, 1]. */
    WEFT_ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC = 1953,
        /**< TENSOR descriptor: INT32 [B, 1, pages per sequence, 1], the page of each block of
             tokens. */

    /* OPERATION_BLOCK_SCALE_QUANTIZE: y = x / scale, with one scale per block. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_XDESC = 2500,
        /**< TENSOR descriptor: input, a float type. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_YDESC = 2501,
        /**< TENSOR descriptor: result, FP8 or FP4. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC = 2502,
        /**< TENSOR descriptor: output, one scale per block: largest magnitude / largest value of
             y's type. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC = 2503,
        /**< DATA_TYPE: compute type; default FLOAT. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE = 2504,
        /**< INT32: elements that share a scale, 32 in the MX formats, 16 in NVFP4. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_AXIS_EXT = 10120,
        /**< INT64: the dimension along which blocks run; default the last. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_TRANSPOSE_EXT = 10121,
        /**< BOOLEAN: true to swap the last two dimensions in unset strides of y and its scales;
             default false. */

    /* OPERATION_BLOCK_SCALE_DEQUANTIZE: y = x scale, with one scale per block. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC = 2600,
        /**< TENSOR descriptor: input, FP8, FP4 or integers of 4 or 8 bits. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC = 2601,
        /**< TENSOR descriptor: one scale per block. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC = 2602,
        /**< TENSOR descriptor: result, with the dims of x. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC = 2603,
        /**< DATA_TYPE: compute type; default FLOAT. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE = 2604,
        /**< INT32[n]: extent of a block in each of the last n dimensions, such as {1, 32}. */
    WEFT_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_NEG_SCALE = 2605,
        /**< BOOLEAN: true if scales are stored negated, so that y = -x scale; default false. */

    /* OPERATION_MOE_GROUPED_MATMUL: rows of expert e are FIRST_TOKEN_OFFSET[e] up to
       FIRST_TOKEN_OFFSET[e + 1]. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_MODE = 2900,
        /**< MOE_GROUPED_MATMUL_MODE: gathers rows before the product, or scatters them after it, or
             neither. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_MATH_PREC = 2901,
        /**< DATA_TYPE: accumulation type; default FLOAT, for integers INT32 or INT64. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC = 2902,
        /**< TENSOR descriptor: tokens, [1, M, K]. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC = 2903,
        /**< TENSOR descriptor: one matrix per expert, [E, K, N]. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC = 2904,
        /**< TENSOR descriptor: INT32 [E, 1, 1], first row of each expert; the last expert ends
             at the last row. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC = 2905,
        /**< TENSOR descriptor: result, [1, rows, N]. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC = 2906,
        /**< TENSOR descriptor, optional: INT32 [1, rows, 1], the token of each row; for GATHER
             and SCATTER. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOKEN_KS_DESC = 2907,
        /**< TENSOR descriptor, optional: INT32 [1, M, 1], the top-k slot of each row; for
             SCATTER. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_TOP_K = 2908,
        /**< INT32, optional: experts per token; for SCATTER. */

    /* OPERATION_MOE_GROUPED_MATMUL_BWD: gradient of expert e's weight is its tokens, transposed,
       times its doutput rows. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_MATH_PREC = 2951,
        /**< DATA_TYPE: accumulation type; default FLOAT, for integers INT32 or INT64. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_TOKEN_DESC = 2952,
        /**< TENSOR descriptor: tokens of the forward pass, [1, M, K]. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_DWEIGHT_DESC = 2953,
        /**< TENSOR descriptor: output, gradient of the weights, [E, K, N]. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_FIRST_TOKEN_OFFSET_DESC = 2954,
        /**< TENSOR descriptor: INT32 [E, 1, 1], first row of each expert. */
    WEFT_ATTR_OPERATION_MOE_GROUPED_MATMUL_BWD_DOUTPUT_DESC = 2955,
        /**< TENSOR descriptor: gradient of the result, [1, M, N]. */

    /* OPERATION_CAUSAL_CONV1D_FWD: y = activation(bias + x filtered along L), where step l reads
       x[l - K + 1] to x[l]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_XDESC_EXT = 10300,
        /**< TENSOR descriptor: sequences, [B, D, L]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_WEIGHT_DESC_EXT = 10301,
        /**< TENSOR descriptor: a filter per channel, [D, K]; its last tap multiplies x[l]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_BIAS_DESC_EXT = 10302,
        /**< TENSOR descriptor, optional: added to each channel before the activation, [D]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_YDESC_EXT = 10303,
        /**< TENSOR descriptor: result, [B, D, L]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_ACTIVATION_EXT = 10304,
        /**< POINTWISE_MODE: the activation, IDENTITY or SWISH_FWD; default IDENTITY. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_FWD_COMP_TYPE_EXT = 10305,
        /**< DATA_TYPE: accumulation type; default FLOAT. */

    /* OPERATION_CAUSAL_CONV1D_BWD: gradients; only those that are set are computed. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DYDESC_EXT = 10310,
        /**< TENSOR descriptor: gradient of the result, [B, D, L]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_XDESC_EXT = 10311,
        /**< TENSOR descriptor: sequences of the forward pass, [B, D, L]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_WEIGHT_DESC_EXT = 10312,
        /**< TENSOR descriptor: a filter per channel, [D, K]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_BIAS_DESC_EXT = 10313,
        /**< TENSOR descriptor, optional: added to each channel before the activation, [D]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DXDESC_EXT = 10314,
        /**< TENSOR descriptor, optional: output, gradient of x, [B, D, L]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DWEIGHT_DESC_EXT = 10315,
        /**< TENSOR descriptor, optional: output, gradient of the filters, [D, K]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_DBIAS_DESC_EXT = 10316,
        /**< TENSOR descriptor, optional: output, gradient of the bias, [D]. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_ACTIVATION_EXT = 10317,
        /**< POINTWISE_MODE: the activation of the forward pass, IDENTITY or SWISH_FWD; default
             IDENTITY. */
    WEFT_ATTR_OPERATION_CAUSAL_CONV1D_BWD_COMP_TYPE_EXT = 10318,
        /**< DATA_TYPE: accumulation type; default FLOAT. */

    /* OPERATION_RECURRENCE_FWD: T steps of B sequences, with H hidden units, or P after a
       projection, and G gates per unit. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_XDESC_EXT = 10600,
        /**< TENSOR descriptor: products of the inputs with the input weights, plus the input bias,
             [T, B, G H]. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_WEIGHT_DESC_EXT = 10601,
        /**< TENSOR descriptor: recurrent weights, [G H, P]. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_BIAS_DESC_EXT = 10602,
        /**< TENSOR descriptor, optional: recurrent bias, [G H]. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_HXDESC_EXT = 10603,
        /**< TENSOR descriptor, optional: initial hidden state, [B, P]; default 0. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_CXDESC_EXT = 10604,
        /**< TENSOR descriptor, optional: initial cell state of LSTM, [B, H]; default 0. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_SEQ_LEN_DESC_EXT = 10605,
        /**< TENSOR descriptor, optional: INT32 or INT64 [B], number of steps of each sequence;
             default T. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_PROJECTION_DESC_EXT = 10606,
        /**< TENSOR descriptor, optional: projection of the hidden state of LSTM, [P, H]. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_YDESC_EXT = 10607,
        /**< TENSOR descriptor: output, hidden state after each step, [T, B, P]. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_HYDESC_EXT = 10608,
        /**< TENSOR descriptor, optional: output, hidden state after the last step, [B, P]. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_CYDESC_EXT = 10609,
        /**< TENSOR descriptor, optional: output, cell state after the last step, [B, H]. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_GATES_DESC_EXT = 10610,
        /**< TENSOR descriptor, optional: output, gates for the backward operation, [T, B, S H]. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_MODE_EXT = 10611,
        /**< RNN_MODE_EXT: the formula of a step; default LSTM. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_IS_REVERSE_EXT = 10612,
        /**< BOOLEAN: whether steps run from the last to the first; default false. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_CELL_CLIP_MIN_EXT = 10613,
        /**< DOUBLE: least cell state of LSTM; default 0. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_CELL_CLIP_MAX_EXT = 10614,
        /**< DOUBLE: largest cell state of LSTM; default 0, which is not to clip. */
    WEFT_ATTR_OPERATION_RECURRENCE_FWD_COMP_TYPE_EXT = 10615,
        /**< DATA_TYPE: type of sums; default FLOAT. */

    /* OPERATION_RECURRENCE_BWD: gradients through the steps; those of weights and biases are
       products and sums of its results. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_DYDESC_EXT = 10620,
        /**< TENSOR descriptor, optional: gradient of the hidden states, [T, B, P]; default 0. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_DHYDESC_EXT = 10621,
        /**< TENSOR descriptor, optional: gradient of the last hidden state, [B, P]; default 0. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_DCYDESC_EXT = 10622,
        /**< TENSOR descriptor, optional: gradient of the last cell state, [B, H]; default 0. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_YDESC_EXT = 10623,
        /**< TENSOR descriptor: hidden states of the forward operation, [T, B, P]. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_GATES_DESC_EXT = 10624,
        /**< TENSOR descriptor, optional: gates of the forward operation, [T, B, S H]; LSTM and GRU
             need them. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_WEIGHT_DESC_EXT = 10625,
        /**< TENSOR descriptor: recurrent weights, [G H, P]. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_HXDESC_EXT = 10626,
        /**< TENSOR descriptor, optional: initial hidden state, [B, P]; default 0. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_CXDESC_EXT = 10627,
        /**< TENSOR descriptor, optional: initial cell state of LSTM, [B, H]; default 0. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_SEQ_LEN_DESC_EXT = 10628,
        /**< TENSOR descriptor, optional: INT32 or INT64 [B], number of steps of each sequence;
             default T. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_PROJECTION_DESC_EXT = 10629,
        /**< TENSOR descriptor, optional: projection of the hidden state of LSTM, [P, H]. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_DXDESC_EXT = 10630,
        /**< TENSOR descriptor: output, gradient of x, [T, B, G H]. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_DRECURRENT_DESC_EXT = 10631,
        /**< TENSOR descriptor, optional: output, gradient of the recurrent products, [T, B, G H];
             GRU only, otherwise it equals that of x. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_PREVIOUS_DESC_EXT = 10632,
        /**< TENSOR descriptor, optional: output, hidden state before each step, [T, B, P]. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_DHXDESC_EXT = 10633,
        /**< TENSOR descriptor, optional: output, gradient of the initial hidden state, [B, P]. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_DCXDESC_EXT = 10634,
        /**< TENSOR descriptor, optional: output, gradient of the initial cell state, [B, H]. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_DPROJECTED_DESC_EXT = 10635,
        /**< TENSOR descriptor, optional: output, gradient of each projected hidden state, [T, B,
             P]. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_UNPROJECTED_DESC_EXT = 10636,
        /**< TENSOR descriptor, optional: output, each hidden state before its projection, [T, B,
             H]. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_MODE_EXT = 10637,
        /**< RNN_MODE_EXT: the formula of a step; default LSTM. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_IS_REVERSE_EXT = 10638,
        /**< BOOLEAN: whether the steps of the forward operation ran from the last to the first;
             default false. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_CELL_CLIP_MIN_EXT = 10639,
        /**< DOUBLE: least cell state of LSTM; default 0. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_CELL_CLIP_MAX_EXT = 10640,
        /**< DOUBLE: largest cell state of LSTM; default 0, which is not to clip. */
    WEFT_ATTR_OPERATION_RECURRENCE_BWD_COMP_TYPE_EXT = 10641,
        /**< DATA_TYPE: type of sums; default FLOAT. */

    /* OPERATION_GRID_SAMPLE_FWD: y[n,c,o] is x[n,c] at the position grid[n,o]; S is the number of
       spatial dimensions, 2 or 3. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_XDESC_EXT = 10500,
        /**< TENSOR descriptor: images, [N, C, x..]. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_GRID_DESC_EXT = 10501,
        /**< TENSOR descriptor: positions, the last dimension first, [N, y.., S]. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_YDESC_EXT = 10502,
        /**< TENSOR descriptor: result, [N, C, y..]. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_MODE_EXT = 10503,
        /**< RESAMPLE_MODE: NEAREST, BILINEAR or BICUBIC_EXT; default BILINEAR. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_PADDING_MODE_EXT = 10504,
        /**< PADDING_MODE: elements outside of x, ZERO_PAD, EDGE_VAL_PAD or REFLECTION_PAD_EXT;
             default ZERO_PAD. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_ALIGN_CORNERS_EXT = 10505,
        /**< BOOLEAN: whether -1 and 1 are the centers of the first and last element; default false:
             their outer edges. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_FWD_COMP_TYPE_EXT = 10506,
        /**< DATA_TYPE: type of positions, weights and sums; default FLOAT. */

    /* OPERATION_GRID_SAMPLE_BWD: gradients; only those that are set are computed. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_DYDESC_EXT = 10510,
        /**< TENSOR descriptor: gradient of the result, [N, C, y..]. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_XDESC_EXT = 10511,
        /**< TENSOR descriptor: images of the forward pass, [N, C, x..]. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_GRID_DESC_EXT = 10512,
        /**< TENSOR descriptor: positions of the forward pass, [N, y.., S]. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_DXDESC_EXT = 10513,
        /**< TENSOR descriptor, optional: output, gradient of x, [N, C, x..]. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_DGRID_DESC_EXT = 10514,
        /**< TENSOR descriptor, optional: output, gradient of the grid, [N, y.., S]. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_MODE_EXT = 10515,
        /**< RESAMPLE_MODE: as in the forward pass; default BILINEAR. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_PADDING_MODE_EXT = 10516,
        /**< PADDING_MODE: as in the forward pass; default ZERO_PAD. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_ALIGN_CORNERS_EXT = 10517,
        /**< BOOLEAN: as in the forward pass; default false. */
    WEFT_ATTR_OPERATION_GRID_SAMPLE_BWD_COMP_TYPE_EXT = 10518,
        /**< DATA_TYPE: type of positions, weights and sums; default FLOAT. */

    /* OPERATION_AFFINE_GRID_FWD: grid[n,o] = theta[n] * (o, 1), for grid_sample. */
    WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_THETA_DESC_EXT = 10530,
        /**< TENSOR descriptor: transformations, [N, S, S + 1]. */
    WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_GRID_DESC_EXT = 10531,
        /**< TENSOR descriptor: result, [N, y.., S]. */
    WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_SIZE_EXT = 10532,
        /**< INT64[S], optional: extents y.. of the grid, unless the result's dims are set. */
    WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_ALIGN_CORNERS_EXT = 10533,
        /**< BOOLEAN: whether -1 and 1 are the centers of the first and last element; default false:
             their outer edges. */
    WEFT_ATTR_OPERATION_AFFINE_GRID_FWD_COMP_TYPE_EXT = 10534,
        /**< DATA_TYPE: type of positions and sums; default FLOAT. */

    /* OPERATION_AFFINE_GRID_BWD: dtheta[n] = the sum over o of dgrid[n,o] * (o, 1). */
    WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_DGRID_DESC_EXT = 10540,
        /**< TENSOR descriptor: gradient of the grid, [N, y.., S]. */
    WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_DTHETA_DESC_EXT = 10541,
        /**< TENSOR descriptor: output, gradient of the transformations, [N, S, S + 1]. */
    WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_ALIGN_CORNERS_EXT = 10542,
        /**< BOOLEAN: as in the forward pass; default false. */
    WEFT_ATTR_OPERATION_AFFINE_GRID_BWD_COMP_TYPE_EXT = 10543,
        /**< DATA_TYPE: type of positions and sums; default FLOAT. */

    /* OPERATION_LOGSUMEXP: y = ln(sum of e^x) over whole dimensions. */
    WEFT_ATTR_OPERATION_LOGSUMEXP_XDESC_EXT = 10400, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_LOGSUMEXP_YDESC_EXT = 10401,
        /**< TENSOR descriptor: output, with extent 1 in the reduced dimensions. */
    WEFT_ATTR_OPERATION_LOGSUMEXP_DIMS_EXT = 10402,
        /**< INT64[n], optional: dimensions to reduce; negative values count from the last; default the
             last one, or those in which y has extent 1. */
    WEFT_ATTR_OPERATION_LOGSUMEXP_COMP_TYPE_EXT = 10403, /**< DATA_TYPE: compute type; default FLOAT. */

    /* OPERATION_SCAN: y[i] combines the elements of x up to i along one dimension. */
    WEFT_ATTR_OPERATION_SCAN_XDESC_EXT = 10410, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_SCAN_YDESC_EXT = 10411, /**< TENSOR descriptor, optional: output, like x. */
    WEFT_ATTR_OPERATION_SCAN_INDEX_DESC_EXT = 10412,
        /**< TENSOR descriptor, optional: output, positions of the extremes, INT32 or INT64. */
    WEFT_ATTR_OPERATION_SCAN_MODE_EXT = 10413,
        /**< REDUCTION_OPERATOR_TYPE: ADD, MUL, MIN or MAX; default ADD. */
    WEFT_ATTR_OPERATION_SCAN_AXIS_EXT = 10414,
        /**< INT64: the dimension; negative values count from the last; default -1. */
    WEFT_ATTR_OPERATION_SCAN_IS_EXCLUSIVE_EXT = 10415,
        /**< BOOLEAN: true: y[i] excludes x[i]; default false. */
    WEFT_ATTR_OPERATION_SCAN_IS_REVERSED_EXT = 10416,
        /**< BOOLEAN: true: from the last element to the first; default false. */
    WEFT_ATTR_OPERATION_SCAN_COMP_TYPE_EXT = 10417,
        /**< DATA_TYPE: accumulation type; default INT64 for integers and booleans, otherwise FLOAT. */

    /* OPERATION_CUMPROD_BWD: gradient of a cumulative product, also for elements of 0. */
    WEFT_ATTR_OPERATION_CUMPROD_BWD_DYDESC_EXT = 10420,
        /**< TENSOR descriptor: gradient of the result. */
    WEFT_ATTR_OPERATION_CUMPROD_BWD_XDESC_EXT = 10421,
        /**< TENSOR descriptor: input of the forward pass. */
    WEFT_ATTR_OPERATION_CUMPROD_BWD_DXDESC_EXT = 10422,
        /**< TENSOR descriptor: output, gradient of the input. */
    WEFT_ATTR_OPERATION_CUMPROD_BWD_AXIS_EXT = 10423,
        /**< INT64: the dimension; negative values count from the last; default -1. */
    WEFT_ATTR_OPERATION_CUMPROD_BWD_IS_EXCLUSIVE_EXT = 10424,
        /**< BOOLEAN: as in the forward pass; default false. */
    WEFT_ATTR_OPERATION_CUMPROD_BWD_IS_REVERSED_EXT = 10425,
        /**< BOOLEAN: as in the forward pass; default false. */
    WEFT_ATTR_OPERATION_CUMPROD_BWD_COMP_TYPE_EXT = 10426,
        /**< DATA_TYPE: compute type; default FLOAT. */

    /* OPERATION_TOP_K: the k largest or smallest elements along one dimension, best first. */
    WEFT_ATTR_OPERATION_TOP_K_XDESC_EXT = 10430, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_TOP_K_VALUES_DESC_EXT = 10431,
        /**< TENSOR descriptor, optional: output, the elements, with extent k along the dimension. */
    WEFT_ATTR_OPERATION_TOP_K_INDICES_DESC_EXT = 10432,
        /**< TENSOR descriptor, optional: output, their positions, INT32 or INT64. */
    WEFT_ATTR_OPERATION_TOP_K_MODE_EXT = 10433,
        /**< REDUCTION_OPERATOR_TYPE: MAX selects the largest elements, MIN the smallest; default MAX. */
    WEFT_ATTR_OPERATION_TOP_K_AXIS_EXT = 10434,
        /**< INT64: the dimension; negative values count from the last; default -1. */
    WEFT_ATTR_OPERATION_TOP_K_COUNT_EXT = 10435, /**< INT64: k, the number of elements; default 1. */
    WEFT_ATTR_OPERATION_TOP_K_NAN_PROPAGATION_EXT = 10436,
        /**< NAN_PROPOGATION: PROPAGATE_NAN: NaN comes first; NOT_PROPAGATE_NAN, the default: it is the largest. */

    /* OPERATION_GATHER: y[.., m, ..] = x[.., index[m], ..], or with an index for each element. */
    WEFT_ATTR_OPERATION_GATHER_XDESC_EXT = 10440, /**< TENSOR descriptor: input. */
    WEFT_ATTR_OPERATION_GATHER_INDEX_DESC_EXT = 10441,
        /**< TENSOR descriptor: positions along the dimension, INT32 or INT64: [M], or with the rank of
             x for an index per element; -1 selects 0. */
    WEFT_ATTR_OPERATION_GATHER_YDESC_EXT = 10442, /**< TENSOR descriptor: output. */
    WEFT_ATTR_OPERATION_GATHER_AXIS_EXT = 10443,
        /**< INT64: the dimension; negative values count from the last; default 0. */

    /* OPERATION_SCATTER_ADD: y = x, or 0, plus src at the indices along one dimension. */
    WEFT_ATTR_OPERATION_SCATTER_ADD_SRC_DESC_EXT = 10450, /**< TENSOR descriptor: summands. */
    WEFT_ATTR_OPERATION_SCATTER_ADD_INDEX_DESC_EXT = 10451,
        /**< TENSOR descriptor: where src is added along the dimension, INT32 or INT64: [M], or with the
             dims of src for an index per element; -1 skips. */
    WEFT_ATTR_OPERATION_SCATTER_ADD_XDESC_EXT = 10452,
        /**< TENSOR descriptor, optional: initial values of y; default 0. */
    WEFT_ATTR_OPERATION_SCATTER_ADD_YDESC_EXT = 10453, /**< TENSOR descriptor: output. */
    WEFT_ATTR_OPERATION_SCATTER_ADD_AXIS_EXT = 10454,
        /**< INT64: the dimension; negative values count from the last; default 0. */
    WEFT_ATTR_OPERATION_SCATTER_ADD_IS_SORTED_EXT = 10455,
        /**< BOOLEAN: guarantees that an index [M] ascends; default false. */
    WEFT_ATTR_OPERATION_SCATTER_ADD_COMP_TYPE_EXT = 10456,
        /**< DATA_TYPE: accumulation type; default INT64 for integers, otherwise FLOAT. */

    /* OPERATION_CTC_LOSS_FWD: loss[n] = -log of the probability that sequence n reads as its labels,
       if its steps may repeat a label or be blank. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_LOG_PROBS_DESC_EXT = 10550,
        /**< TENSOR descriptor: logarithms of probabilities, [T, N, C]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_TARGETS_DESC_EXT = 10551,
        /**< TENSOR descriptor: INT32 or INT64, labels, [N, S] or, concatenated,
             [labels]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_INPUT_LENGTHS_DESC_EXT = 10552,
        /**< TENSOR descriptor: INT32 or INT64, steps of each sequence, [N]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_TARGET_LENGTHS_DESC_EXT = 10553,
        /**< TENSOR descriptor: INT32 or INT64, labels of each sequence, [N]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_LOSS_DESC_EXT = 10554,
        /**< TENSOR descriptor: result, loss of each sequence, [N]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_LOG_ALPHA_DESC_EXT = 10555,
        /**< TENSOR descriptor, optional: result for the gradient, [N, T, 2 S + 1]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_BLANK_EXT = 10556,
        /**< INT64: the class that is blank; default 0. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_ZERO_INFINITY_EXT = 10557,
        /**< BOOLEAN: whether infinite losses and their gradients are 0; default false. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_MAX_TARGET_LENGTH_EXT = 10558,
        /**< INT64: S for concatenated targets; default 0: the number of all labels. */
    WEFT_ATTR_OPERATION_CTC_LOSS_FWD_COMP_TYPE_EXT = 10559,
        /**< DATA_TYPE: type of sums; default FLOAT. */

    /* OPERATION_CTC_LOSS_BWD: the gradient by the logits of which log_probs is the log_softmax. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_DLOSS_DESC_EXT = 10570,
        /**< TENSOR descriptor: gradient of each loss, [N]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_LOG_PROBS_DESC_EXT = 10571,
        /**< TENSOR descriptor: logarithms of probabilities, [T, N, C]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_TARGETS_DESC_EXT = 10572,
        /**< TENSOR descriptor: INT32 or INT64, labels, [N, S] or, concatenated,
             [labels]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_INPUT_LENGTHS_DESC_EXT = 10573,
        /**< TENSOR descriptor: INT32 or INT64, steps of each sequence, [N]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_TARGET_LENGTHS_DESC_EXT = 10574,
        /**< TENSOR descriptor: INT32 or INT64, labels of each sequence, [N]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_LOG_ALPHA_DESC_EXT = 10575,
        /**< TENSOR descriptor: result of the forward operation, [N, T, 2 S + 1]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_DLOG_PROBS_DESC_EXT = 10576,
        /**< TENSOR descriptor: output, gradient of the logits or of log_probs,
             [T, N, C]. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_BLANK_EXT = 10577,
        /**< INT64: the class that is blank; default 0. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_ZERO_INFINITY_EXT = 10578,
        /**< BOOLEAN: whether infinite losses and their gradients are 0; default false. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_MAX_TARGET_LENGTH_EXT = 10579,
        /**< INT64: S for concatenated targets; default 0: the number of all labels. */
    WEFT_ATTR_OPERATION_CTC_LOSS_BWD_COMP_TYPE_EXT = 10580,
        /**< DATA_TYPE: type of sums; default FLOAT. */

    /* OPERATION_ROPE_FWD: rotates the last ROPE_DIM elements of each head; the others are only
       scaled. */
    WEFT_ATTR_OPERATION_ROPE_FWD_XDESC = 3400,
        /**< TENSOR descriptor: input; its last dimension has the elements of a head. */
    WEFT_ATTR_OPERATION_ROPE_FWD_YDESC = 3401, /**< TENSOR descriptor: result, with the dims of
                                                    x. */
    WEFT_ATTR_OPERATION_ROPE_FWD_FREQSDESC = 3402,
        /**< TENSOR descriptor: angle of each position and element, [S, 1, 1, D], in radians. */
    WEFT_ATTR_OPERATION_ROPE_FWD_OUTPUT_SCALE = 3403,
        /**< FLOAT: factor of the result; default 1. */
    WEFT_ATTR_OPERATION_ROPE_FWD_ROPE_DIM = 3404,
        /**< INT64: number of elements of each head that are rotated; default all. */
    WEFT_ATTR_OPERATION_ROPE_FWD_POSITIONS_DESC_EXT = 10460,
        /**< TENSOR descriptor, optional: position of each token, [B, 1, S, 1], or of the first token of
             each sequence, [B, 1, 1, 1], INT32 or INT64. */
    WEFT_ATTR_OPERATION_ROPE_FWD_IS_INTERLEAVED_EXT = 10461,
        /**< BOOLEAN: true: pairs are adjacent elements; default false. */
    WEFT_ATTR_OPERATION_ROPE_FWD_COMP_TYPE_EXT = 10462, /**< DATA_TYPE: compute type; default FLOAT. */

    /* OPERATION_ROPE_BWD: the rotation by the opposite angle. */
    WEFT_ATTR_OPERATION_ROPE_BWD_DYDESC = 3410, /**< TENSOR descriptor: gradient of the result. */
    WEFT_ATTR_OPERATION_ROPE_BWD_DXDESC = 3411,
        /**< TENSOR descriptor: output, gradient of the input. */
    WEFT_ATTR_OPERATION_ROPE_BWD_FREQSDESC = 3412,
        /**< TENSOR descriptor: angles of the forward operation, [S, 1, 1, D], in radians. */
    WEFT_ATTR_OPERATION_ROPE_BWD_OUTPUT_SCALE = 3413,
        /**< FLOAT: factor of the forward result; default 1. */
    WEFT_ATTR_OPERATION_ROPE_BWD_ROPE_DIM = 3414,
        /**< INT64: number of elements of each head that were rotated; default all. */
    WEFT_ATTR_OPERATION_ROPE_BWD_POSITIONS_DESC_EXT = 10463,
        /**< TENSOR descriptor, optional: as in the forward pass. */
    WEFT_ATTR_OPERATION_ROPE_BWD_IS_INTERLEAVED_EXT = 10464,
        /**< BOOLEAN: as in the forward pass; default false. */
    WEFT_ATTR_OPERATION_ROPE_BWD_COMP_TYPE_EXT = 10465, /**< DATA_TYPE: compute type; default FLOAT. */

    /* OPERATION_EXPAND_BAND_MATRIX: compact band to full matrix. */
    WEFT_ATTR_OPERATION_EXPAND_BAND_MATRIX_XDESC = 2250,
        /**< TENSOR descriptor: the band, its diagonals adjacent along the axis. */
    WEFT_ATTR_OPERATION_EXPAND_BAND_MATRIX_YDESC = 2251, /**< TENSOR descriptor: the full matrix. */
    WEFT_ATTR_OPERATION_EXPAND_BAND_MATRIX_LOWER_BANDWIDTH = 2252,
        /**< INT64: number of diagonals below the main one. */
    WEFT_ATTR_OPERATION_EXPAND_BAND_MATRIX_UPPER_BANDWIDTH = 2253,
        /**< INT64: number of diagonals above the main one. */
    WEFT_ATTR_OPERATION_EXPAND_BAND_MATRIX_AXIS = 2254,
        /**< INT64: the dimension that is expanded. */
    WEFT_ATTR_OPERATION_EXPAND_BAND_MATRIX_PAD_VALUE = 2255,
        /**< DOUBLE: value outside the band; default 0. */
    WEFT_ATTR_OPERATION_EXPAND_BAND_MATRIX_KV_TOKEN_OFFSET_DESC = 2256,
        /**< TENSOR descriptor, optional: column at which the band of each batch starts. */
    WEFT_ATTR_OPERATION_EXPAND_BAND_MATRIX_SPECULATIVE_MASK_DESC = 2257,
        /**< TENSOR descriptor, optional: mask among the draft tokens of speculative decoding. */

    /* OPERATION_CONTRACT_BAND_MATRIX: full matrix to compact band. */
    WEFT_ATTR_OPERATION_CONTRACT_BAND_MATRIX_XDESC = 2270,
        /**< TENSOR descriptor: the full matrix. */
    WEFT_ATTR_OPERATION_CONTRACT_BAND_MATRIX_YDESC = 2271,
        /**< TENSOR descriptor: the band, its diagonals adjacent along the axis. */
    WEFT_ATTR_OPERATION_CONTRACT_BAND_MATRIX_LOWER_BANDWIDTH = 2272,
        /**< INT64: number of diagonals below the main one. */
    WEFT_ATTR_OPERATION_CONTRACT_BAND_MATRIX_UPPER_BANDWIDTH = 2273,
        /**< INT64: number of diagonals above the main one. */
    WEFT_ATTR_OPERATION_CONTRACT_BAND_MATRIX_AXIS = 2274,
        /**< INT64: the dimension that is contracted. */
    WEFT_ATTR_OPERATION_CONTRACT_BAND_MATRIX_PAD_VALUE = 2275,
        /**< DOUBLE: value where the band exceeds the matrix; default 0. */
    WEFT_ATTR_OPERATION_CONTRACT_BAND_MAX_TOKEN_VALUE = 2276,
        /**< INT64, optional: largest token index in the band; the name lacks MATRIX in cuDNN,
             too. */

    /* OPERATION_SIGNAL: order between graphs or devices, with x passed through to y. */
    WEFT_ATTR_OPERATION_SIGNAL_MODE = 1900, /**< SIGNAL_MODE: sets the flag or waits for it. */
    WEFT_ATTR_OPERATION_SIGNAL_FLAGDESC = 1901,
        /**< TENSOR descriptor: the flag, an INT32 scalar that all participants can access. */
    WEFT_ATTR_OPERATION_SIGNAL_VALUE = 1902, /**< INT64: the value to set or to wait for. */
    WEFT_ATTR_OPERATION_SIGNAL_XDESC = 1903,
        /**< TENSOR descriptor: the tensor whose use is ordered by the signal. */
    WEFT_ATTR_OPERATION_SIGNAL_YDESC = 1904,
        /**< TENSOR descriptor, optional: x, as seen after the signal. */

    /* ENGINE: a kernel selection strategy for a graph. */
    WEFT_ATTR_ENGINE_OPERATION_GRAPH = 1300, /**< OPERATIONGRAPH descriptor: the graph to run. */
    WEFT_ATTR_ENGINE_GLOBAL_INDEX = 1301,
        /**< INT64: index of the engine, 0 to the graph's ENGINE_GLOBAL_COUNT - 1. */
    WEFT_ATTR_ENGINE_KNOB_INFO = 1302,
        /**< KNOB_INFO descriptors[n], get only: the knobs and their ranges. */
    WEFT_ATTR_ENGINE_NUMERICAL_NOTE = 1303,
        /**< NUMERICAL_NOTE[n], get only: how the arithmetic differs from the plain formula. */
    WEFT_ATTR_ENGINE_LAYOUT_INFO = 1304,
        /**< LAYOUT_INFO descriptors[n], get only: preferred layouts. */
    WEFT_ATTR_ENGINE_BEHAVIOR_NOTE = 1305,
        /**< BEHAVIOR_NOTE[n], get only: requirements and side effects of the engine. */
    WEFT_ATTR_ENGINE_SM_COUNT_TARGET = 1306,
        /**< INT32, optional: maximum number of multiprocessors; unset uses all. */
    WEFT_ATTR_ENGINE_DEVICEPROP = 1307,
        /**< DEVICEPROP descriptor, optional: the device to plan for, instead of the handle's. */
    WEFT_ATTR_ENGINE_DISABLE_CLUSTER_COOPERATIVE = 1308,
        /**< BOOLEAN: true to exclude kernels whose blocks cooperate in clusters; default false. */
    WEFT_ATTR_ENGINE_SHARED_MEMORY_LIMIT = 1309,
        /**< INT32, optional: maximum shared memory per block, in bytes. */
    WEFT_ATTR_ENGINE_NAME_EXT = 10010, /**< CHAR[n], get only: the engine's name. */
    WEFT_ATTR_ENGINE_FAMILIES_EXT = 10012,
        /**< CHAR[n], get only: the names of its kernel families, separated by spaces. */

    /* KNOB_INFO: the legal values of a knob. */
    WEFT_ATTR_KNOB_INFO_TYPE = 1200, /**< KNOB_TYPE, get only: the knob. */
    WEFT_ATTR_KNOB_INFO_MAXIMUM_VALUE = 1201, /**< INT64, get only: largest legal value. */
    WEFT_ATTR_KNOB_INFO_MINIMUM_VALUE = 1202, /**< INT64, get only: smallest legal value. */
    WEFT_ATTR_KNOB_INFO_STRIDE = 1203, /**< INT64, get only: distance between legal values. */

    /* KNOB_CHOICE: one knob and its value. */
    WEFT_ATTR_KNOB_CHOICE_KNOB_TYPE = 600, /**< KNOB_TYPE: the knob. */
    WEFT_ATTR_KNOB_CHOICE_KNOB_VALUE = 601,
        /**< INT64: the value, within the range of the engine's KNOB_INFO. */

    /* LAYOUT_INFO: the layouts that an engine prefers for a tensor. */
    WEFT_ATTR_LAYOUT_INFO_TENSOR_UID = 1100, /**< INT64, get only: uid of the tensor. */
    WEFT_ATTR_LAYOUT_INFO_TYPES = 1101,
        /**< LAYOUT_TYPE[n], get only: the preferred layouts, best first. */

    /* ENGINECFG: an engine and its knob values. */
    WEFT_ATTR_ENGINECFG_ENGINE = 300,
        /**< ENGINE descriptor: the engine; get copies it into a descriptor that the caller
             created. */
    WEFT_ATTR_ENGINECFG_INTERMEDIATE_INFO = 301,
        /**< INTERMEDIATE_INFO descriptors[n], get only: always empty. */
    WEFT_ATTR_ENGINECFG_KNOB_CHOICES = 302,
        /**< KNOB_CHOICE descriptors[n]: chosen values; by default, the engine chooses. */
    WEFT_ATTR_ENGINECFG_WORKSPACE_SIZE = 303,
        /**< INT64, get only: workspace that a plan of this configuration needs, in bytes. */
    WEFT_ATTR_ENGINECFG_SHARED_MEMORY_USED = 304,
        /**< INT32, get only: shared memory per block, in bytes. */
    WEFT_ATTR_ENGINECFG_PREDICTED_SECONDS_EXT = 10011,
        /**< DOUBLE, get only: time of one run as predicted from the device's limits, in seconds. */

    /* INTERMEDIATE_INFO: reserved; no engine has any. */
    WEFT_ATTR_INTERMEDIATE_INFO_UNIQUE_ID = 500,
        /**< INT64, get only: uid of an intermediate buffer. */
    WEFT_ATTR_INTERMEDIATE_INFO_SIZE = 501, /**< INT64, get only: its size, in bytes. */
    WEFT_ATTR_INTERMEDIATE_INFO_DEPENDENT_DATA_UIDS = 502,
        /**< INT64[n], get only: uids of the tensors that it depends on. */
    WEFT_ATTR_INTERMEDIATE_INFO_DEPENDENT_ATTRIBUTES = 503,
        /**< ATTRIB_NAME[n], get only: the attributes that it depends on. */

    /* ENGINEHEUR: a query for the best configurations. */
    WEFT_ATTR_ENGINEHEUR_MODE = 200, /**< HEUR_MODE: the ranking method. */
    WEFT_ATTR_ENGINEHEUR_OPERATION_GRAPH = 201, /**< OPERATIONGRAPH descriptor: the graph to run. */
    WEFT_ATTR_ENGINEHEUR_RESULTS = 202,
        /**< ENGINECFG descriptors[n], get only: finalized configurations, best first; get copies
             them into descriptors that the caller created. */
    WEFT_ATTR_ENGINEHEUR_SM_COUNT_TARGET = 203,
        /**< INT32, optional: multiprocessors to plan for; unset plans for all. */
    WEFT_ATTR_ENGINEHEUR_DEVICEPROP = 204,
        /**< DEVICEPROP descriptor, optional: the device to plan for, instead of the handle's. */
    WEFT_ATTR_ENGINEHEUR_SHARED_MEMORY_LIMIT = 205,
        /**< INT32, optional: maximum shared memory per block, in bytes. */

    /* EXECUTION_PLAN: a graph prepared for execution, from a configuration or from saved text. */
    WEFT_ATTR_EXECUTION_PLAN_HANDLE = 400,
        /**< HANDLE, optional: the handle to build for; needed to load a saved plan. */
    WEFT_ATTR_EXECUTION_PLAN_ENGINE_CONFIG = 401,
        /**< ENGINECFG descriptor: the configuration, unless JSON_REPRESENTATION is set instead. */
    WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE = 402,
        /**< INT64, get only: device memory that an execution needs in addition to its tensors, in
             bytes. */
    WEFT_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS = 403,
        /**< INT64[n], get only: uids of intermediate buffers that the plan fills; always empty. */
    WEFT_ATTR_EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS = 404,
        /**< INT64[n], optional: uids of the only intermediate buffers to fill. */
    WEFT_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION = 405,
        /**< CHAR[n]: get saves the plan, set before finalize loads one; set this or
             ENGINE_CONFIG. */
    WEFT_ATTR_EXECUTION_PLAN_KERNEL_CACHE = 406,
        /**< KERNEL_CACHE descriptor, optional: the cache that compiled kernels are read from and
             added to. */
    WEFT_ATTR_EXECUTION_PLAN_DEVICEPROP = 407,
        /**< DEVICEPROP descriptor, optional: the device to build for, instead of the handle's. */
    WEFT_ATTR_EXECUTION_PLAN_CUDA_GRAPH_RETENTION = 408,
        /**< CUDA_GRAPH_RETENTION: how long resources of populated CUDA graphs are retained; default
             PER_GRAPH. */
    WEFT_ATTR_EXECUTION_PLAN_SLOT_UNIQUE_IDS_EXT = 10020,
        /**< INT64[n], get only: uids in the order in which weftExecute expects pointers. */
    WEFT_ATTR_EXECUTION_PLAN_REPORT_EXT = 10021,
        /**< CHAR[n], get only: the steps of the plan and the reasons for them, as JSON. */
    WEFT_ATTR_EXECUTION_PLAN_WORKSPACE_LIMIT_EXT = 10022,
        /**< INT64: cap on WORKSPACE_SIZE, in bytes; default none. */
    WEFT_ATTR_EXECUTION_PLAN_OPERATION_GRAPH_EXT = 10024,
        /**< OPERATIONGRAPH descriptor, optional: plans it on the engine with the shortest predicted
             time, instead of that of ENGINE_CONFIG. */
    WEFT_ATTR_EXECUTION_PLAN_TAG_EXT = 10023,
        /**< CHAR[n], get only: short name of engine and knobs, such as eng0_k2=3. */
    WEFT_ATTR_EXECUTION_PLAN_WITH_CODE_EXT = 10026,
        /**< BOOLEAN: true to include machine code in JSON_REPRESENTATION, so that the plan can be
             loaded without a run-time compiler; default false. Set it when saving, and again when
             loading to use that code: do so only with plans from trusted sources. */
    WEFT_ATTR_EXECUTION_PLAN_KERNELS_EXT = 10027,
        /**< CHAR[n], get only: the kernels of the plan as compiled, as JSON: "kernels", a list with
             family, step, file, entry, grid, block, cluster, shared_bytes, log, text and headers of
             each, and "headers", the texts of the files that they include, by name. */
    WEFT_ATTR_EXECUTION_PLAN_ELEMENT_ALIGNED_EXT = 10028,
        /**< BOOLEAN: true to accept any address that is a multiple of the tensor's element size,
             regardless of the tensors' BYTE_ALIGNMENT; kernels may be slower. Default false. */
    WEFT_ATTR_EXECUTION_PLAN_SLOTS_EXT = 10029,
        /**< CHAR[n], get only: the part of REPORT_EXT about engine, device and the tensors of
             SLOT_UNIQUE_IDS_EXT, in their order, as JSON: all that a frontend needs for
             execution. */
    WEFT_ATTR_EXECUTION_PLAN_CUDA_GRAPH_EXT = 10033,
        /**< BOOLEAN: true to launch all kernels of an execution on a GPU as one CUDA graph, which
             costs the host about as much as one kernel. The first execution creates the graph, and
             executions with the same memory reuse it; others update its arguments. Kernels are
             launched one by one while the stream is captured, and if more than 8 threads execute
             the plan at once. Not saved with the plan. Default false. */

    /* VARIANT_PACK: the memory for one execution. */
    WEFT_ATTR_VARIANT_PACK_UNIQUE_IDS = 1000,
        /**< INT64[n]: uids of the tensors that have memory. */
    WEFT_ATTR_VARIANT_PACK_DATA_POINTERS = 1001,
        /**< VOID_PTR[n]: their addresses in the same order; those of by-value tensors are on the
             host. */
    WEFT_ATTR_VARIANT_PACK_INTERMEDIATES = 1002,
        /**< VOID_PTR, get only: reserved, always null. */
    WEFT_ATTR_VARIANT_PACK_WORKSPACE = 1003,
        /**< VOID_PTR: memory of the plan's WORKSPACE_SIZE bytes; null if that is 0. */
    WEFT_ATTR_VARIANT_PACK_OVERRIDE_UNIQUE_IDS = 1010,
        /**< INT64[n], optional: uids of the tensors whose extents are overridden. */
    WEFT_ATTR_VARIANT_PACK_OVERRIDE_SHAPES = 1011,
        /**< INT64[sum of ranks], optional: their extents, concatenated in the order of
             OVERRIDE_UNIQUE_IDS. */
    WEFT_ATTR_VARIANT_PACK_OVERRIDE_STRIDES = 1012,
        /**< INT64[sum of ranks], optional: their strides, in elements, in the same order as
             OVERRIDE_SHAPES. */
    WEFT_ATTR_VARIANT_PACK_WORKSPACE_SIZE_EXT = 10025,
        /**< INT64, optional: bytes at WORKSPACE; if set, execute checks that it is large enough. */

    /* KERNEL_CACHE: compiled kernels shared by plans. */
    WEFT_ATTR_KERNEL_CACHE_OPERATION_GRAPH = 2400,
        /**< OPERATIONGRAPH descriptor, optional: the topology whose kernels the cache contains. */
    WEFT_ATTR_KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED = 2401,
        /**< BOOLEAN, get only: true if the kernels of the ENGINECFG passed in the array are
             present; 0 or 1 is returned as the count. */
    WEFT_ATTR_KERNEL_CACHE_JSON_REPRESENTATION = 2402,
        /**< CHAR[n], optional: get saves the cache, set before finalize loads one. */
    WEFT_ATTR_KERNEL_CACHE_REVISION = 2403,
        /**< INT64, get only: increases with each change, so that unchanged caches need not be saved
             again. */
    WEFT_ATTR_KERNEL_CACHE_ENTRY_COUNT = 2404, /**< INT64, get only: number of kernels in the
                                                    cache. */

    /* DEVICEPROP: the device to plan for; set one of DEVICE_ID, HANDLE, JSON_REPRESENTATION or
       KIND_EXT. */
    WEFT_ATTR_DEVICEPROP_DEVICE_ID = 2700,
        /**< INT32, optional: ordinal of a CUDA device that is present. */
    WEFT_ATTR_DEVICEPROP_HANDLE = 2701, /**< HANDLE, optional: selects the device of this handle. */
    WEFT_ATTR_DEVICEPROP_JSON_REPRESENTATION = 2702,
        /**< CHAR[n], optional: get saves the properties, set defines a device that need not be
             present. */
    WEFT_ATTR_DEVICEPROP_KIND_EXT = 10030,
        /**< INT64, a weftDeviceKind_t, optional: the kind of device; CUDA if a CUDA device is
             named. */
    WEFT_ATTR_DEVICEPROP_NAME_EXT = 10031,
        /**< CHAR[n], get only: the device's name as reported by its manufacturer. */
    WEFT_ATTR_DEVICEPROP_THREADS_EXT = 10032
        /**< INT64, get only: number of CPU threads that Weft uses on a CPU device. */
} weftBackendAttributeName_t;

/** The function of a pointwise operation. x, b and t are the first, second and third operand; dy is
    the incoming gradient and x the forward input of a backward mode. */
typedef enum {
    WEFT_POINTWISE_ADD = 0, /**< x + b. */
    WEFT_POINTWISE_ADD_SQUARE = 5, /**< x + b^2. */
    WEFT_POINTWISE_DIV = 6, /**< x / b. */
    WEFT_POINTWISE_MAX = 3, /**< The larger of x and b. */
    WEFT_POINTWISE_MIN = 2, /**< The smaller of x and b. */
    WEFT_POINTWISE_MOD = 7, /**< Remainder of x / b with the sign of x, like C's fmod. */
    WEFT_POINTWISE_MUL = 1, /**< x times b. */
    WEFT_POINTWISE_POW = 8, /**< x to the power b. */
    WEFT_POINTWISE_SUB = 9, /**< x - b. */
    WEFT_POINTWISE_ABS = 10, /**< Magnitude of x. */
    WEFT_POINTWISE_CEIL = 11, /**< Smallest integer greater than or equal to x. */
    WEFT_POINTWISE_COS = 12, /**< Cosine of x, x in radians. */
    WEFT_POINTWISE_EXP = 13, /**< e^x. */
    WEFT_POINTWISE_FLOOR = 14, /**< Largest integer less than or equal to x. */
    WEFT_POINTWISE_LOG = 15, /**< Natural logarithm of x. */
    WEFT_POINTWISE_NEG = 16, /**< -x. */
    WEFT_POINTWISE_RSQRT = 17, /**< 1 / sqrt(x). */
    WEFT_POINTWISE_SIN = 18, /**< Sine of x, x in radians. */
    WEFT_POINTWISE_SQRT = 4, /**< Square root of x. */
    WEFT_POINTWISE_TAN = 19, /**< Tangent of x, x in radians. */
    WEFT_POINTWISE_ERF = 20, /**< Error function of x. */
    WEFT_POINTWISE_IDENTITY = 21, /**< x, converted to the type of the result. */
    WEFT_POINTWISE_RECIPROCAL = 22, /**< 1 / x. */
    WEFT_POINTWISE_ATAN2 = 23, /**< Angle of the point (b, x), in radians, from -pi to pi. */
    WEFT_POINTWISE_FLOOR_MOD = 24, /**< x - floor(x / b) b: the remainder with the sign of b. */
    WEFT_POINTWISE_RELU_FWD = 100,
        /**< x clipped to [lower clip, upper clip], with a slope below the lower clip; default
             max(x, 0). */
    WEFT_POINTWISE_TANH_FWD = 101, /**< Hyperbolic tangent of x. */
    WEFT_POINTWISE_SIGMOID_FWD = 102, /**< 1 / (1 + e^-x). */
    WEFT_POINTWISE_ELU_FWD = 103, /**< x where x > 0, else alpha (e^x - 1). */
    WEFT_POINTWISE_GELU_FWD = 104, /**< x Phi(x), Phi the normal distribution function, by erf. */
    WEFT_POINTWISE_SOFTPLUS_FWD = 105, /**< ln(1 + e^(beta x)) / beta. */
    WEFT_POINTWISE_SWISH_FWD = 106, /**< x sigmoid(beta x). */
    WEFT_POINTWISE_GELU_APPROX_TANH_FWD = 107,
        /**< x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. */
    WEFT_POINTWISE_RELU_BWD = 200,
        /**< dy inside the clips, slope dy at and below the lower clip, 0 at and above the upper. */
    WEFT_POINTWISE_TANH_BWD = 201, /**< dy (1 - tanh(x)^2). */
    WEFT_POINTWISE_SIGMOID_BWD = 202, /**< dy s (1 - s), s the sigmoid of x. */
    WEFT_POINTWISE_ELU_BWD = 203, /**< dy where x > 0, else dy alpha e^x. */
    WEFT_POINTWISE_GELU_BWD = 204, /**< dy times the derivative of GELU_FWD at x. */
    WEFT_POINTWISE_SOFTPLUS_BWD = 205, /**< dy sigmoid(beta x). */
    WEFT_POINTWISE_SWISH_BWD = 206, /**< dy times the derivative of SWISH_FWD at x. */
    WEFT_POINTWISE_GELU_APPROX_TANH_BWD = 207,
        /**< dy times the derivative of GELU_APPROX_TANH_FWD at x. */
    WEFT_POINTWISE_CMP_EQ = 300, /**< 1 where x = b, else 0. */
    WEFT_POINTWISE_CMP_NEQ = 301, /**< 1 where x differs from b, else 0. */
    WEFT_POINTWISE_CMP_GT = 302, /**< 1 where x > b, else 0. */
    WEFT_POINTWISE_CMP_GE = 303, /**< 1 where x >= b, else 0. */
    WEFT_POINTWISE_CMP_LT = 304, /**< 1 where x < b, else 0. */
    WEFT_POINTWISE_CMP_LE = 305, /**< 1 where x <= b, else 0. */
    WEFT_POINTWISE_LOGICAL_AND = 400, /**< 1 where x and b are both not 0, else 0. */
    WEFT_POINTWISE_LOGICAL_OR = 401, /**< 1 where x or b is not 0, else 0. */
    WEFT_POINTWISE_LOGICAL_NOT = 402, /**< 1 where x is 0, else 0. */
    WEFT_POINTWISE_GEN_INDEX = 501,
        /**< The index of the element along the axis; x only provides the shape. */
    WEFT_POINTWISE_BINARY_SELECT = 601 /**< x where t is not 0, else b. */
} weftPointwiseMode_t;

/** How a reduction combines elements. */
typedef enum {
    WEFT_REDUCE_TENSOR_ADD = 0, /**< Sum. */
    WEFT_REDUCE_TENSOR_MUL = 1, /**< Product. */
    WEFT_REDUCE_TENSOR_MIN = 2, /**< Smallest element. */
    WEFT_REDUCE_TENSOR_MAX = 3, /**< Largest element. */
    WEFT_REDUCE_TENSOR_AMAX = 4, /**< Largest magnitude. */
    WEFT_REDUCE_TENSOR_AVG = 5, /**< Mean. */
    WEFT_REDUCE_TENSOR_NORM1 = 6, /**< Sum of magnitudes. */
    WEFT_REDUCE_TENSOR_NORM2 = 7, /**< Square root of the sum of squares. */
    WEFT_REDUCE_TENSOR_MUL_NO_ZEROS = 8 /**< Product of the elements that are not 0. */
} weftReduceTensorOp_t;

/** How pooling or interpolation turns a window into one value. */
typedef enum {
    WEFT_RESAMPLE_NEAREST = 0, /**< The nearest element. */
    WEFT_RESAMPLE_BILINEAR = 1, /**< The adjacent elements on either side, weighted by their
                                     distance. */
    WEFT_RESAMPLE_AVGPOOL = 2, /**< Another name for AVGPOOL_INCLUDE_PADDING. */
    WEFT_RESAMPLE_AVGPOOL_INCLUDE_PADDING = 2,
        /**< Mean of the window; padding counts as elements. */
    WEFT_RESAMPLE_AVGPOOL_EXCLUDE_PADDING = 4,
        /**< Mean of the window without padding. */
    WEFT_RESAMPLE_MAXPOOL = 3, /**< Largest element of the window. */
    WEFT_RESAMPLE_BICUBIC_EXT = 10000
        /**< Cubic interpolation of four elements per dimension; only of grid samples. */
} weftResampleMode_t;

/** The values that pooling and interpolation read outside of the tensor. */
typedef enum {
    WEFT_ZERO_PAD = 0, /**< Zeros. */
    WEFT_NEG_INF_PAD = 1,
        /**< The lowest value of the data type, so that a maximum never selects padding. */
    WEFT_EDGE_VAL_PAD = 2, /**< The nearest element at the edge. */
    WEFT_REFLECTION_PAD_EXT = 10000
        /**< The elements mirrored at the edges; only of grid samples. */
} weftPaddingMode_t;

/** Whether NaN operands must yield NaN. */
typedef enum {
    WEFT_NOT_PROPAGATE_NAN = 0, /**< NaN may be ignored, like by C's fmax. */
    WEFT_PROPAGATE_NAN = 1 /**< NaN operands yield NaN. */
} weftNanPropagation_t;

/** Whether a convolution flips its filter. */
typedef enum {
    WEFT_CONVOLUTION = 0,
        /**< The mathematical convolution: the filter is flipped in every spatial dimension. */
    WEFT_CROSS_CORRELATION = 1
        /**< The filter is used as stored, as deep-learning frameworks do; the default. */
} weftConvolutionMode_t;

/** Which elements of a normalisation share mean and variance, for x of [N, C, spatial..]. */
typedef enum {
    WEFT_LAYER_NORM = 0,
        /**< The trailing dimensions that the scale covers, for each leading index. */
    WEFT_INSTANCE_NORM = 1, /**< The spatial dimensions, for each n and c. */
    WEFT_BATCH_NORM = 2, /**< Batch and spatial dimensions, for each channel. */
    WEFT_GROUP_NORM = 3,
        /**< The channels of a group and the spatial dimensions, for each n and group. */
    WEFT_RMS_NORM = 4, /**< Like LAYER_NORM, but without a mean: x is divided by its root mean
                            square. */
    WEFT_ADA_LAYER_NORM = 5 /**< Like LAYER_NORM, but with a separate scale and bias for each n. */
} weftBackendNormMode_t;

/** Purpose of a forward normalisation. */
typedef enum {
    WEFT_NORM_FWD_INFERENCE = 0, /**< Only y is written; batch norm uses given statistics. */
    WEFT_NORM_FWD_TRAINING = 1
        /**< Mean and inverse standard deviation are written for the backward pass; batch norm
             updates its running values. */
} weftBackendNormFwdPhase_t;

/** Statistics that OPERATION_GEN_STATS computes. */
typedef enum {
    WEFT_GENSTATS_SUM_SQSUM = 0 /**< Sum and sum of squares of each channel. */
} weftGenStatsMode_t;

/** Source of batch norm's statistics. */
typedef enum {
    WEFT_BN_FINALIZE_STATISTICS_TRAINING = 0,
        /**< From the sums of this batch; running values are updated. */
    WEFT_BN_FINALIZE_STATISTICS_INFERENCE = 1
        /**< From the running values; only the equivalent scale and bias are written. */
} weftBnFinalizeStatsMode_t;

/** Distribution of random numbers. */
typedef enum {
    WEFT_RNG_DISTRIBUTION_BERNOULLI = 0, /**< 1 with the given probability, else 0. */
    WEFT_RNG_DISTRIBUTION_UNIFORM = 1,
        /**< Uniform from minimum (inclusive) to maximum (exclusive). */
    WEFT_RNG_DISTRIBUTION_NORMAL = 2 /**< Gaussian with the given mean and standard deviation. */
} weftRngDistribution_t;

/** Action of OPERATION_SIGNAL on its flag. */
typedef enum {
    WEFT_SIGNAL_SET = 0, /**< Writes the value to the flag once x is ready. */
    WEFT_SIGNAL_WAIT = 1 /**< Delays y until the flag has the value. */
} weftSignalMode_t;

/** Assignment of tokens to experts in a grouped matrix product. */
typedef enum {
    WEFT_MOE_GROUPED_MATMUL_MODE_NONE = 0, /**< Tokens are already sorted by expert. */
    WEFT_MOE_GROUPED_MATMUL_MODE_GATHER = 1,
        /**< Row i is token TOKEN_INDEX[i], gathered before the product. */
    WEFT_MOE_GROUPED_MATMUL_MODE_SCATTER = 2
        /**< Each row of the product is written to the position of its token and top-k slot. */
} weftMoeGroupedMatmulMode_t;

/** Formula of a step of a recurrent network. x are the products of the input, r those of the
    previous hidden state h, each with its bias; logistic is 1 / (1 + e^-x). */
typedef enum {
    WEFT_RNN_MODE_RELU = 0, /**< h = max(0, x + r). */
    WEFT_RNN_MODE_TANH = 1, /**< h = tanh(x + r). */
    WEFT_RNN_MODE_LSTM = 2,
        /**< Gates i, f, g, o: c = logistic(f) c + logistic(i) tanh(g), h = logistic(o) tanh(c). */
    WEFT_RNN_MODE_GRU = 3
        /**< Gates r, z, n: n = tanh(x_n + logistic(r) r_n), h = (1 - z) n + z h with logistic(z). */
} weftRnnMode_t;

/** What OPERATION_RESHAPE preserves. */
typedef enum {
    WEFT_RESHAPE_VIEW_ONLY = 0,
        /**< The storage: y views the same memory with its own extents and strides. */
    WEFT_RESHAPE_LOGICAL = 1
        /**< The order of the elements, last dimension fastest; copies if the storage does not allow
             a view. */
} weftBackendReshapeMode_t;

/** An order of the storage that strides cannot express. */
typedef enum {
    WEFT_TENSOR_REORDERING_NONE = 0, /**< Storage follows the strides. */
    WEFT_TENSOR_REORDERING_INT8x32 = 1,
        /**< Filters and biases of INT8 convolution, reordered for tensor cores in units of 32
             channels. */
    WEFT_TENSOR_REORDERING_F16x16 = 2,
        /**< 16-bit elements, reordered for tensor cores in units of 16. */
    WEFT_TENSOR_REORDERING_F8_128x4 = 3
        /**< Block scales in tiles of 128 x 4, 512 bytes each; extents are padded to whole tiles. */
} weftBackendTensorReordering_t;

/** Ranking of engine configurations. */
typedef enum {
    WEFT_HEUR_MODE_INSTANT = 0, /**< Like A: ranked immediately, by predicted time. */
    WEFT_HEUR_MODE_B = 1, /**< Like A, but may search longer for a better ranking. */
    WEFT_HEUR_MODE_FALLBACK = 2,
        /**< The configurations that support any valid graph, for use if no faster one supports
             it. */
    WEFT_HEUR_MODE_A = 3 /**< Ranked by predicted time; the usual choice. */
} weftBackendHeurMode_t;

/** Difference between an engine's arithmetic and the plain formula. */
typedef enum {
    WEFT_NUMERICAL_NOTE_TENSOR_CORE = 0, /**< Uses tensor cores. */
    WEFT_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS = 1,
        /**< Narrows the inputs, for example FLOAT to TF32. */
    WEFT_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION = 2,
        /**< Accumulates in a narrower type than the compute type. */
    WEFT_NUMERICAL_NOTE_FFT = 3, /**< Multiplies in the frequency domain. */
    WEFT_NUMERICAL_NOTE_NONDETERMINISTIC = 4,
        /**< Two executions on the same data may differ in the last bits. */
    WEFT_NUMERICAL_NOTE_WINOGRAD = 5, /**< Uses a Winograd transform. */
    WEFT_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 = 6, /**< Uses Winograd tiles of 4 x 4. */
    WEFT_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 = 7, /**< Uses Winograd tiles of 6 x 6. */
    WEFT_NUMERICAL_NOTE_WINOGRAD_TILE_13x13 = 8, /**< Uses Winograd tiles of 13 x 13. */
    WEFT_NUMERICAL_NOTE_STRICT_NAN_PROP = 9
        /**< NaN operands always yield NaN, even in maxima and minima. */
} weftBackendNumericalNote_t;

/** Requirements and side effects of an engine. */
typedef enum {
    WEFT_BEHAVIOR_NOTE_RUNTIME_COMPILATION = 0, /**< Compiles kernels while the plan is built. */
    WEFT_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER = 1,
        /**< Requires filters in the INT8x32 order. */
    WEFT_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER = 2, /**< Requires biases in the INT8x32
                                                               order. */
    WEFT_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API = 3,
        /**< Can be added to a CUDA graph without stream capture. */
    WEFT_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY = 4
        /**< Calls cuBLASLt; reserved, no engine of Weft does. */
} weftBackendBehaviorNote_t;

/** A storage order that an engine prefers for a tensor. */
typedef enum {
    WEFT_LAYOUT_TYPE_PREFERRED_NCHW = 0,
        /**< Channels before space: the spatial dimensions are contiguous. */
    WEFT_LAYOUT_TYPE_PREFERRED_NHWC = 1, /**< Channels last: the channels are contiguous. */
    WEFT_LAYOUT_TYPE_PREFERRED_PAD4CK = 2, /**< Channels padded to a multiple of 4. */
    WEFT_LAYOUT_TYPE_PREFERRED_PAD8CK = 3 /**< Channels padded to a multiple of 8. */
} weftBackendLayoutType_t;

/** A tuning parameter of an engine. An engine has only some of these; KNOB_INFO lists them with
    their ranges. Many are reserved. */
typedef enum {
    WEFT_KNOB_TYPE_SPLIT_K = 0,
        /**< Number of parts into which the summed dimension is split, each summed separately. */
    WEFT_KNOB_TYPE_SWIZZLE = 1, /**< Order in which tiles are visited, for reuse in cache. */
    WEFT_KNOB_TYPE_TILE_SIZE = 2, /**< Index in the engine's tile table. */
    WEFT_KNOB_TYPE_USE_TEX = 3, /**< Whether operands are read through textures. */
    WEFT_KNOB_TYPE_EDGE = 4, /**< How tiles at the edge of the problem are handled. */
    WEFT_KNOB_TYPE_KBLOCK = 5, /**< Blocking of the summed dimension. */
    WEFT_KNOB_TYPE_LDGA = 6, /**< Width of the loads of operand A. */
    WEFT_KNOB_TYPE_LDGB = 7, /**< Width of the loads of operand B. */
    WEFT_KNOB_TYPE_CHUNK_K = 8, /**< Length of the summed dimension that is processed at once. */
    WEFT_KNOB_TYPE_SPLIT_H = 9, /**< Number of parts into which the height is split. */
    WEFT_KNOB_TYPE_WINO_TILE = 10, /**< Extent of the Winograd tile. */
    WEFT_KNOB_TYPE_MULTIPLY = 11, /**< The multiply instruction. */
    WEFT_KNOB_TYPE_SPLIT_K_BUF = 12,
        /**< Whether the parts of SPLIT_K are summed through a buffer in the workspace. */
    WEFT_KNOB_TYPE_TILEK = 13, /**< Extent of a tile along the summed dimension, in elements. */
    WEFT_KNOB_TYPE_STAGES = 14, /**< Depth of the load pipeline, in tiles. */
    WEFT_KNOB_TYPE_REDUCTION_MODE = 15, /**< How partial sums are combined. */
    WEFT_KNOB_TYPE_CTA_SPLIT_K_MODE = 16, /**< How the blocks of SPLIT_K share their work. */
    WEFT_KNOB_TYPE_SPLIT_K_SLC = 17,
        /**< Number of parts into which a block's share of the summed dimension is split. */
    WEFT_KNOB_TYPE_IDX_MODE = 18, /**< How addresses are calculated. */
    WEFT_KNOB_TYPE_SLICED = 19, /**< Whether the warps of a block split the summed dimension. */
    WEFT_KNOB_TYPE_SPLIT_RS = 20, /**< Whether the filter's extents are split between blocks. */
    WEFT_KNOB_TYPE_SINGLEBUFFER = 21,
        /**< Whether shared memory holds one tile instead of several. */
    WEFT_KNOB_TYPE_LDGC = 22, /**< Width of the loads of operand C. */
    WEFT_KNOB_TYPE_SPECFILT = 23, /**< Whether a kernel for a special filter extent is used. */
    WEFT_KNOB_TYPE_KERNEL_CFG = 24, /**< Variant of the kernel. */
    WEFT_KNOB_TYPE_WORKSPACE = 25, /**< Limit of the workspace in bytes; slower kernels are used if
                                        fast ones need more. */
    WEFT_KNOB_TYPE_TILE_CGA = 26, /**< Blocks per cluster. */
    WEFT_KNOB_TYPE_TILE_CGA_M = 27, /**< Blocks per cluster along M. */
    WEFT_KNOB_TYPE_TILE_CGA_N = 28, /**< Blocks per cluster along N. */
    WEFT_KNOB_TYPE_BLOCK_SIZE = 29, /**< Threads per block. */
    WEFT_KNOB_TYPE_OCCUPANCY = 30, /**< Resident blocks per multiprocessor. */
    WEFT_KNOB_TYPE_ARRAY_SIZE_PER_THREAD = 31, /**< Elements that a thread holds in registers. */
    WEFT_KNOB_TYPE_NUM_C_PER_BLOCK = 32, /**< Channels per block. */
    WEFT_KNOB_TYPE_SPLIT_COLS = 33, /**< Number of parts into which the columns are split. */
    WEFT_KNOB_TYPE_TILE_ROWS = 34, /**< Rows of a tile. */
    WEFT_KNOB_TYPE_TILE_COLS = 35, /**< Columns of a tile. */
    WEFT_KNOB_TYPE_LOAD_SIZE = 36, /**< Elements per load. */
    WEFT_KNOB_TYPE_CTA_COUNT = 37, /**< Blocks launched. */
    WEFT_KNOB_TYPE_STREAM_K = 38,
        /**< Whether blocks share the summed dimension evenly (stream-K) instead of in whole
             tiles. */
    WEFT_KNOB_TYPE_SPLIT_P_SLC = 39,
        /**< Number of parts into which a block's share of the output positions is split. */
    WEFT_KNOB_TYPE_TILE_M = 40, /**< Extent of a tile along M, in elements. */
    WEFT_KNOB_TYPE_TILE_N = 41, /**< Extent of a tile along N, in elements. */
    WEFT_KNOB_TYPE_WARP_SPEC_CFG = 42, /**< Which warps of a block load and which calculate. */
    WEFT_KNOB_TYPE_SWAP_AB = 43,
        /**< Whether A and B are swapped, so that N has the longer side of the tile. */
    WEFT_KNOB_TYPE_INPUT_TMA_ENABLE = 44,
        /**< Whether inputs are loaded by the tensor memory accelerator. */
    WEFT_KNOB_TYPE_OUTPUT_TMA_ENABLE = 45,
        /**< Whether outputs are stored by the tensor memory accelerator. */
    WEFT_KNOB_TYPE_WITHOUT_FAMILIES_EXT = 10001
        /**< Kernel families to exclude: bit i is the i-th of ENGINE_FAMILIES_EXT. */
} weftBackendKnobType_t;

/** Class of an operation graph, as a hint that saves the library the analysis. */
typedef enum {
    WEFT_OPERATIONGRAPH_MODE_AUTO = -1, /**< Determined by the library; the default. */
    WEFT_OPERATIONGRAPH_MODE_CONV_FORWARD = 0, /**< One forward convolution. */
    WEFT_OPERATIONGRAPH_MODE_CONV_BWD_DATA = 1, /**< One gradient with respect to the image. */
    WEFT_OPERATIONGRAPH_MODE_CONV_BWD_FILTER = 2, /**< One gradient with respect to the filters. */
    WEFT_OPERATIONGRAPH_MODE_NORM_FWD_INFER = 17, /**< One forward normalisation for inference. */
    WEFT_OPERATIONGRAPH_MODE_NORM_FWD_TRAIN = 18, /**< One forward normalisation for training. */
    WEFT_OPERATIONGRAPH_MODE_NORM_BWD = 19, /**< One backward normalisation. */
    WEFT_OPERATIONGRAPH_MODE_GENERIC_CONV_FUSION = 20,
        /**< A convolution with operations before and after it. */
    WEFT_OPERATIONGRAPH_MODE_RESAMPLE_FWD = 22, /**< One pooling or interpolation. */
    WEFT_OPERATIONGRAPH_MODE_RESAMPLE_BWD = 23, /**< One gradient of pooling or interpolation. */
    WEFT_OPERATIONGRAPH_MODE_BLAS_MATMUL = 25,
        /**< One matrix product, with at most a common epilogue. */
    WEFT_OPERATIONGRAPH_MODE_GENERIC_MATMUL_FUSION = 26,
        /**< A matrix product with operations before and after it. */
    WEFT_OPERATIONGRAPH_MODE_GENERIC_POINTWISE_FUSION = 27,
        /**< Only pointwise operations and reductions. */
    WEFT_OPERATIONGRAPH_MODE_SDPA_FWD = 28, /**< Attention composed of primitive operations. */
    WEFT_OPERATIONGRAPH_MODE_SDPA_BWD = 29,
        /**< Gradients of attention composed of primitive operations. */
    WEFT_OPERATIONGRAPH_MODE_UNIFIED_SDPA_FWD = 30, /**< Attention as one operation. */
    WEFT_OPERATIONGRAPH_MODE_UNIFIED_SDPA_BWD = 31 /**< Gradients of attention as one operation. */
} weftBackendOperationGraphMode_t;

/** Lifetime of a plan's resources for the CUDA graphs created from it. */
typedef enum {
    WEFT_CUDA_GRAPH_RETENTION_PER_GRAPH = 0,
        /**< As long as any such graph: the plan may be destroyed first. */
    WEFT_CUDA_GRAPH_RETENTION_NONE = 1 /**< As long as the plan: destroy the graphs first. */
} weftCudaGraphRetention_t;

/** Kind of the device that a handle or a plan uses. */
typedef enum {
    WEFT_DEVICE_CPU = 0, /**< The host's processor; data pointers are host addresses. */
    WEFT_DEVICE_CUDA = 1 /**< An NVIDIA GPU; data pointers are device addresses. */
} weftDeviceKind_t;

/** Alignment of the diagonal of an attention mask if the numbers of queries and keys differ. It
    determines the shift in the rules of the left and right bound. */
typedef enum {
    WEFT_DIAGONAL_TOP_LEFT = 0, /**< Query 0 is aligned with key 0: the shift is 0. */
    WEFT_DIAGONAL_BOTTOM_RIGHT = 1
        /**< The last query is aligned with the last key: the shift is keys - queries in use, per
             batch. */
} weftDiagonalAlignment_t;

/** Severity of a log message. */
typedef enum {
    WEFT_SEV_FATAL = 0, /**< The process cannot continue. */
    WEFT_SEV_ERROR = 1, /**< The call failed. */
    WEFT_SEV_WARNING = 2, /**< The call succeeded, but not in the best possible way. */
    WEFT_SEV_INFO = 3 /**< Activity of the library, for information. */
} weftSeverity_t;

#endif
