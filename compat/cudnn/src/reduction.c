/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions; extrema also with the indices of the elements. */
#include "src/descriptors.h"

#include <stdlib.h>
#include <string.h>

struct cudnnReduceTensorStruct {
    cudnnReduceTensorOp_t op;
    cudnnDataType_t compute;
    cudnnNanPropagation_t nan;
    cudnnReduceTensorIndices_t indices;
    cudnnIndicesType_t indices_type;
};

DEFINE_LIFETIME(ReduceTensor)

cudnnStatus_t cudnnSetReduceTensorDescriptor(cudnnReduceTensorDescriptor_t descriptor, cudnnReduceTensorOp_t op,
                                             cudnnDataType_t compute, cudnnNanPropagation_t nan,
                                             cudnnReduceTensorIndices_t indices, cudnnIndicesType_t indices_type) {
    REQUIRE(descriptor, "cudnnSetReduceTensorDescriptor: the descriptor is NULL.");
    REQUIRE((int)op >= CUDNN_REDUCE_TENSOR_ADD && (int)op <= CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS,
            "cudnnSetReduceTensorDescriptor: operation %d does not exist: expected a cudnnReduceTensorOp_t.", (int)op);
    *descriptor = (struct cudnnReduceTensorStruct){op, compute, nan, indices, indices_type};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetReduceTensorDescriptor(cudnnReduceTensorDescriptor_t descriptor, cudnnReduceTensorOp_t *op,
                                             cudnnDataType_t *compute, cudnnNanPropagation_t *nan,
                                             cudnnReduceTensorIndices_t *indices, cudnnIndicesType_t *indices_type) {
    REQUIRE(descriptor, "cudnnGetReduceTensorDescriptor: the descriptor is NULL.");
    STORE(op, descriptor->op);
    STORE(compute, descriptor->compute);
    STORE(nan, descriptor->nan);
    STORE(indices, descriptor->indices);
    STORE(indices_type, descriptor->indices_type);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* Only extrema have indices; other operations ignore the request. */
static bool has_indices(cudnnReduceTensorDescriptor_t descriptor) {
    return descriptor->indices == CUDNN_REDUCE_TENSOR_FLATTENED_INDICES &&
           (descriptor->op == CUDNN_REDUCE_TENSOR_MIN || descriptor->op == CUDNN_REDUCE_TENSOR_MAX ||
            descriptor->op == CUDNN_REDUCE_TENSOR_AMAX);
}

static size_t index_bytes(cudnnReduceTensorDescriptor_t descriptor) {
    return descriptor->indices_type == CUDNN_64BIT_INDICES ? 8 : 4;
}

cudnnStatus_t cudnnGetReductionIndicesSize(cudnnHandle_t handle, cudnnReduceTensorDescriptor_t descriptor,
                                           cudnnTensorDescriptor_t a, cudnnTensorDescriptor_t c, size_t *bytes) {
    REQUIRE_HANDLE(handle);
    REQUIRE(descriptor && a && c && bytes, "cudnnGetReductionIndicesSize: an argument is NULL.");
    *bytes = has_indices(descriptor) ? (size_t)shape_elements(&c->shape) * index_bytes(descriptor) : 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetReductionWorkspaceSize(cudnnHandle_t handle, cudnnReduceTensorDescriptor_t descriptor,
                                             cudnnTensorDescriptor_t a, cudnnTensorDescriptor_t c, size_t *bytes) {
    REQUIRE_HANDLE(handle);
    REQUIRE(descriptor && a && c && bytes, "cudnnGetReductionWorkspaceSize: an argument is NULL.");
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- Graph ------------------------------------------------------------------------------------------------------- */

struct reduction_key {
    struct key_head head;
    int32_t op, index_type; /* index_type: 0 if no indices are wanted */
    struct shape a, c;
    double alpha, beta;
};

static node integer(struct builder *b, int64_t value, const struct reduction_key *k) {
    return constant(b, (double)value, k->index_type, k->a.rank);
}

/* The index of each element among those that are reduced to one, in the order of the dimensions. */
static node build_flat_index(struct builder *b, const struct reduction_key *k, node a) {
    node flat = NULL;
    for (int i = 0; i < k->a.rank; i++) {
        bool is_reduced = k->a.dims[i] > 1 && k->c.dims[i] == 1;
        if (!is_reduced)
            continue;
        const node index = virtual_tensor(b, &k->a, k->index_type);
        build_pointwise(b,
                        &(struct pointwise){
                            .mode = WEFT_POINTWISE_GEN_INDEX, .math = CUDNN_DATA_INT64, .x = a, .y = index, .axis = i});
        if (!flat) {
            flat = index;
            continue;
        }
        const node rows = virtual_tensor(b, &k->a, k->index_type), sum = virtual_tensor(b, &k->a, k->index_type);
        build_binary(b, WEFT_POINTWISE_MUL, CUDNN_DATA_INT64, flat, integer(b, k->a.dims[i], k), rows);
        build_binary(b, WEFT_POINTWISE_ADD, CUDNN_DATA_INT64, rows, index, sum);
        flat = sum;
    }
    return flat;
}

/* The index is the smallest one among the elements that equal the extremum. */
static void build_indices(struct builder *b, const struct reduction_key *k, node values, node extremum) {
    const int32_t math = shape_math(&k->a);
    struct shape packed = k->c;
    packed.type = k->index_type;
    shape_pack(&packed, CUDNN_TENSOR_NCHW);
    const node indices = stored_tensor(b, UID_INDICES, &packed), flat = build_flat_index(b, k, values);
    const node none = integer(b, INT32_MAX, k);
    if (!flat) { /* nothing is reduced */
        build_binary(b, WEFT_POINTWISE_MUL, CUDNN_DATA_INT64, integer(b, 0, k), integer(b, 1, k), indices);
        return;
    }
    const node is_equal = virtual_tensor(b, &k->a, CUDNN_DATA_BYTE_BOOLEAN);
    const node candidates = virtual_tensor(b, &k->a, k->index_type);
    build_binary(b, WEFT_POINTWISE_CMP_EQ, math, values, extremum, is_equal);
    build_pointwise(b, &(struct pointwise){.mode = WEFT_POINTWISE_BINARY_SELECT,
                                           .math = CUDNN_DATA_INT64,
                                           .x = flat,
                                           .b = none,
                                           .t = is_equal,
                                           .y = candidates});
    build_reduction(b, WEFT_REDUCE_TENSOR_MIN, CUDNN_DATA_INT64, candidates, indices);
}

static void build_graph_of(struct builder *b, const void *key) {
    const struct reduction_key *k = key;
    const int32_t math = shape_math(&k->a);
    struct result c = {.shape = &k->c, .alpha = k->alpha, .beta = k->beta, .uid = UID_Y, .old_uid = UID_OLD};
    const node value = result_begin(b, &c);
    node a = stored_tensor(b, UID_X, &k->a);
    if (!k->index_type) {
        build_reduction(b, (weftReduceTensorOp_t)k->op, math, a, value);
        result_end(b, &c);
        return;
    }
    /* The comparison needs the extremum in the arithmetic's type, not rounded to the result's. */
    const node extremum = virtual_tensor(b, &k->c, math);
    if (k->op == CUDNN_REDUCE_TENSOR_AMAX) {
        const node magnitude = virtual_tensor(b, &k->a, math);
        build_unary(b, WEFT_POINTWISE_ABS, math, a, magnitude);
        a = magnitude;
    }
    build_reduction(b, k->op == CUDNN_REDUCE_TENSOR_MIN ? WEFT_REDUCE_TENSOR_MIN : WEFT_REDUCE_TENSOR_MAX, math, a,
                    extremum);
    build_unary(b, WEFT_POINTWISE_IDENTITY, math, extremum, value);
    build_indices(b, k, a, extremum);
    result_end(b, &c);
}

/* ---- Function ---------------------------------------------------------------------------------------------------- */

static cudnnStatus_t reduce(cudnnHandle_t handle, cudnnReduceTensorDescriptor_t descriptor, void *indices,
                            size_t indices_bytes, const void *alpha, cudnnTensorDescriptor_t a_desc, const void *a,
                            const void *beta, cudnnTensorDescriptor_t c_desc, void *c) {
    struct reduction_key key;
    REQUIRE_HANDLE(handle);
    REQUIRE(descriptor && a_desc && c_desc, "cudnnReduceTensor: a descriptor is NULL.");
    memset(&key, 0, sizeof key);
    key.op = (int32_t)descriptor->op, key.a = a_desc->shape, key.c = c_desc->shape;
    key.alpha = read_factor(alpha, &key.c, 1), key.beta = read_factor(beta, &key.c, 0);
    if (has_indices(descriptor)) {
        bool is_wide = descriptor->indices_type == CUDNN_64BIT_INDICES;
        if (!is_wide && descriptor->indices_type != CUDNN_32BIT_INDICES)
            return fail_with(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
                             "cudnnReduceTensor: indices of type %d: expected 32 or 64 bits.",
                             (int)descriptor->indices_type);
        if (!indices || indices_bytes < (size_t)shape_elements(&key.c) * index_bytes(descriptor))
            return fail_with(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                             "cudnnReduceTensor: the indices have %zu bytes: expected %zu.", indices_bytes,
                             (size_t)shape_elements(&key.c) * index_bytes(descriptor));
        key.index_type = is_wide ? CUDNN_DATA_INT64 : CUDNN_DATA_INT32;
    }
    key.head = (struct key_head){GRAPH_REDUCTION, ALIGNMENT(a, c, key.index_type ? indices : NULL)};
    return PLAN_RUN(handle, key, build_graph_of, {UID_X, a}, {UID_Y, c}, {UID_OLD, c}, {UID_INDICES, indices});
}

cudnnStatus_t cudnnReduceTensor(cudnnHandle_t handle, cudnnReduceTensorDescriptor_t descriptor, void *indices,
                                size_t indices_bytes, void *workspace, size_t workspace_bytes, const void *alpha,
                                cudnnTensorDescriptor_t a_desc, const void *a, const void *beta,
                                cudnnTensorDescriptor_t c_desc, void *c) {
    (void)workspace, (void)workspace_bytes;
    RETURN_COUNTED(reduce(handle, descriptor, indices, indices_bytes, alpha, a_desc, a, beta, c_desc, c));
}
