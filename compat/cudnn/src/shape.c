/* SPDX-License-Identifier: Apache-2.0 */
#include "src/shape.h"

#include <string.h>

static size_t type_bytes(int32_t type) {
    static const unsigned char bytes[] = {
        [CUDNN_DATA_FLOAT] = 4,    [CUDNN_DATA_DOUBLE] = 8,   [CUDNN_DATA_HALF] = 2,     [CUDNN_DATA_INT8] = 1,
        [CUDNN_DATA_INT32] = 4,    [CUDNN_DATA_INT8x4] = 4,   [CUDNN_DATA_UINT8] = 1,    [CUDNN_DATA_UINT8x4] = 4,
        [CUDNN_DATA_INT8x32] = 32, [CUDNN_DATA_BFLOAT16] = 2, [CUDNN_DATA_INT64] = 8,    [CUDNN_DATA_BOOLEAN] = 1,
        [CUDNN_DATA_FP8_E4M3] = 1, [CUDNN_DATA_FP8_E5M2] = 1, [CUDNN_DATA_FP8_E8M0] = 1,
    };
    return type >= 0 && type < (int)sizeof bytes ? bytes[type] : 0;
}

static void pack_in_order(struct shape *shape, int first, int64_t step) {
    for (int i = shape->rank - 1; i >= first; i--)
        shape->strides[i] = step, step *= shape->dims[i];
}

void shape_pack(struct shape *shape, cudnnTensorFormat_t format) {
    if (format != CUDNN_TENSOR_NHWC || shape->rank < 2) {
        pack_in_order(shape, 0, 1);
        return;
    }
    shape->strides[1] = 1;
    pack_in_order(shape, 2, shape->dims[1]);
    shape->strides[0] = shape_elements(shape) / shape->dims[0];
}

cudnnStatus_t shape_set(struct shape *shape, cudnnDataType_t type, int rank, const int *dims, const int *strides,
                        cudnnTensorFormat_t format) {
    REQUIRE(shape, "the descriptor is NULL. Create it first.");
    REQUIRE(dims && rank > 0 && rank <= CUDNN_DIM_MAX, "a tensor has 1 to %d dimensions, got %d.", CUDNN_DIM_MAX, rank);
    REQUIRE(type_bytes((int32_t)type), "data type %d does not exist: expected a cudnnDataType_t.", (int)type);
    if (format == CUDNN_TENSOR_NCHW_VECT_C)
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                         "the format NCHW_VECT_C is only supported by the graph API. Use NCHW or NHWC.");
    *shape = (struct shape){.type = (int32_t)type, .rank = rank};
    for (int i = 0; i < rank; i++) {
        REQUIRE(dims[i] > 0, "dimension %d has extent %d: expected at least 1.", i, dims[i]);
        shape->dims[i] = dims[i];
    }
    shape_pack(shape, format);
    for (int i = 0; strides && i < rank; i++)
        shape->strides[i] = strides[i];
    return CUDNN_STATUS_SUCCESS;
}

int64_t shape_elements(const struct shape *shape) {
    int64_t count = shape->rank > 0;
    for (int i = 0; i < shape->rank; i++)
        count *= shape->dims[i];
    return count;
}

size_t shape_element_bytes(const struct shape *shape) { return type_bytes(shape->type); }

size_t shape_bytes(const struct shape *shape) {
    int64_t last = 0;
    for (int i = 0; i < shape->rank; i++)
        last += (shape->dims[i] - 1) * shape->strides[i];
    return shape->rank ? (size_t)(last + 1) * type_bytes(shape->type) : 0;
}

bool shape_is_packed_from(const struct shape *shape, int first) {
    int64_t step = 1;
    for (int i = shape->rank - 1; i >= first; i--) {
        if (shape->dims[i] > 1 && shape->strides[i] != step)
            return false;
        step *= shape->dims[i];
    }
    return true;
}

struct shape shape_of_scalar(int32_t type, int rank) {
    struct shape shape = {.type = type, .rank = rank};
    for (int i = 0; i < rank; i++)
        shape.dims[i] = shape.strides[i] = 1;
    return shape;
}

double read_factor(const void *address, const struct shape *shape, double otherwise) {
    double number;
    float narrow;
    if (!address)
        return otherwise;
    if (shape->type != CUDNN_DATA_DOUBLE) {
        memcpy(&narrow, address, sizeof narrow);
        return narrow;
    }
    memcpy(&number, address, sizeof number);
    return number;
}
