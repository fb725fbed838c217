/* SPDX-License-Identifier: Apache-2.0 */
#include "src/builder.h"

#include <string.h>

void builder_check(struct builder *b, weftStatus_t status) {
    if (status && !b->status)
        b->status = from_weft(status);
}

node build(struct builder *b, weftBackendDescriptorType_t kind, int count, const weftAttribute_t *attributes) {
    node created = NULL;
    if (!b->status && b->node_count == BUILDER_NODES_MAX)
        b->status = fail_with(CUDNN_STATUS_INTERNAL_ERROR, "the function needs a graph of more than %d descriptors.",
                              BUILDER_NODES_MAX);
    if (b->status)
        return NULL;
    builder_check(b, weftBackendBuildDescriptor(kind, count, attributes, &created));
    if (created)
        b->nodes[b->node_count++] = created;
    return created;
}

void build_op(struct builder *b, weftBackendDescriptorType_t kind, int count, const weftAttribute_t *attributes) {
    node created = build(b, kind, count, attributes);
    if (created && b->op_count < BUILDER_OPS_MAX)
        b->ops[b->op_count++] = created;
    else if (created)
        b->status = fail_with(CUDNN_STATUS_INTERNAL_ERROR, "the function needs a graph of more than %d operations.",
                              BUILDER_OPS_MAX);
}

void builder_free(struct builder *b) {
    for (int i = 0; i < b->node_count; i++)
        weftBackendDestroyDescriptor(b->nodes[i]);
    b->node_count = b->op_count = 0;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

enum tensor_kind { STORED, VIRTUAL, BY_VALUE };

static node build_tensor(struct builder *b, enum tensor_kind kind, int64_t uid, const struct shape *shape) {
    const bool is_virtual = kind == VIRTUAL, is_by_value = kind == BY_VALUE;
    const weftDataType_t type = (weftDataType_t)shape->type;
    /* Only stored tensors have an alignment, so it comes last. */
    const weftAttribute_t attributes[] = {VALUE(TENSOR_UNIQUE_ID, INT64, uid),
                                          VALUE(TENSOR_DATA_TYPE, DATA_TYPE, type),
                                          LIST(TENSOR_DIMENSIONS, INT64, shape->rank, shape->dims),
                                          LIST(TENSOR_STRIDES, INT64, shape->rank, shape->strides),
                                          VALUE(TENSOR_IS_VIRTUAL, BOOLEAN, is_virtual),
                                          VALUE(TENSOR_IS_BY_VALUE, BOOLEAN, is_by_value),
                                          VALUE(TENSOR_BYTE_ALIGNMENT, INT64, b->alignment)};
    return build(b, WEFT_BACKEND_TENSOR_DESCRIPTOR, kind == STORED ? 7 : 6, attributes);
}

node stored_tensor(struct builder *b, int64_t uid, const struct shape *shape) {
    return build_tensor(b, STORED, uid, shape);
}

node virtual_tensor(struct builder *b, const struct shape *shape, int32_t type) {
    struct shape other = *shape;
    other.type = type;
    return build_tensor(b, VIRTUAL, b->next_uid++, &other);
}

node by_value(struct builder *b, int64_t uid, int32_t type, int rank) {
    const struct shape one = shape_of_scalar(type, rank);
    return build_tensor(b, BY_VALUE, uid, &one);
}

node constant(struct builder *b, double value, int32_t type, int rank) {
    const struct shape one = shape_of_scalar(type, rank);
    const float narrow = (float)value;
    const int32_t integer = (int32_t)value;
    const int64_t wide = (int64_t)value;
    const void *bytes = type == CUDNN_DATA_DOUBLE  ? (const void *)&value
                        : type == CUDNN_DATA_INT32 ? (const void *)&integer
                        : type == CUDNN_DATA_INT64 ? (const void *)&wide
                                                   : &narrow;
    const weftDataType_t of_weft = (weftDataType_t)type;
    const int64_t uid = b->next_uid++;
    const weftAttribute_t attributes[] = {
        VALUE(TENSOR_UNIQUE_ID, INT64, uid), VALUE(TENSOR_DATA_TYPE, DATA_TYPE, of_weft),
        LIST(TENSOR_DIMENSIONS, INT64, rank, one.dims), LIST(TENSOR_STRIDES, INT64, rank, one.strides),
        VALUE(TENSOR_CONSTANT_VALUE, VOID_PTR, bytes)};
    return build(b, WEFT_BACKEND_TENSOR_DESCRIPTOR, 5, attributes);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static node build_pointwise_parameters(struct builder *b, const struct pointwise *p) {
    const weftDataType_t math = (weftDataType_t)p->math;
    weftAttribute_t attributes[6] = {VALUE(POINTWISE_MODE, POINTWISE_MODE, p->mode),
                                     VALUE(POINTWISE_MATH_PREC, DATA_TYPE, math)};
    int count = 2;
    if (p->clip)
        attributes[count++] = (weftAttribute_t)VALUE(POINTWISE_RELU_UPPER_CLIP, DOUBLE, *p->clip);
    if (p->elu_alpha)
        attributes[count++] = (weftAttribute_t)VALUE(POINTWISE_ELU_ALPHA, DOUBLE, *p->elu_alpha);
    if (p->swish_beta)
        attributes[count++] = (weftAttribute_t)VALUE(POINTWISE_SWISH_BETA, DOUBLE, *p->swish_beta);
    if (p->mode == WEFT_POINTWISE_GEN_INDEX)
        attributes[count++] = (weftAttribute_t)VALUE(POINTWISE_AXIS, INT64, p->axis);
    return build(b, WEFT_BACKEND_POINTWISE_DESCRIPTOR, count, attributes);
}

void build_pointwise(struct builder *b, const struct pointwise *p) {
    const node parameters = build_pointwise_parameters(b, p);
    const float alpha1 = (float)p->alpha1, alpha2 = (float)p->alpha2;
    const struct {
        weftBackendAttributeName_t name;
        const node *tensor;
    } tensors[] = {
        {WEFT_ATTR_OPERATION_POINTWISE_XDESC, &p->x},   {WEFT_ATTR_OPERATION_POINTWISE_BDESC, &p->b},
        {WEFT_ATTR_OPERATION_POINTWISE_TDESC, &p->t},   {WEFT_ATTR_OPERATION_POINTWISE_YDESC, &p->y},
        {WEFT_ATTR_OPERATION_POINTWISE_DYDESC, &p->dy}, {WEFT_ATTR_OPERATION_POINTWISE_DXDESC, &p->dx},
    };
    weftAttribute_t attributes[9] = {NODE(OPERATION_POINTWISE_PW_DESCRIPTOR, parameters)};
    int count = 1;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (*tensors[i].tensor)
            attributes[count++] =
                (weftAttribute_t){tensors[i].name, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, tensors[i].tensor};
    if (p->has_factors) {
        attributes[count++] = (weftAttribute_t)VALUE(OPERATION_POINTWISE_ALPHA1, FLOAT, alpha1);
        attributes[count++] = (weftAttribute_t)VALUE(OPERATION_POINTWISE_ALPHA2, FLOAT, alpha2);
    }
    build_op(b, WEFT_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, count, attributes);
}

void build_unary(struct builder *b, weftPointwiseMode_t mode, int32_t math, node x, node y) {
    build_pointwise(b, &(struct pointwise){.mode = mode, .math = math, .x = x, .y = y});
}

void build_binary(struct builder *b, weftPointwiseMode_t mode, int32_t math, node x, node other, node y) {
    build_pointwise(b, &(struct pointwise){.mode = mode, .math = math, .x = x, .b = other, .y = y});
}

void build_reduction(struct builder *b, weftReduceTensorOp_t op, int32_t math, node x, node y) {
    const weftDataType_t type = (weftDataType_t)math;
    const node parameters = build(b, WEFT_BACKEND_REDUCTION_DESCRIPTOR, 2,
                                  (weftAttribute_t[]){VALUE(REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, op),
                                                      VALUE(REDUCTION_COMP_TYPE, DATA_TYPE, type)});
    build_op(b, WEFT_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 3,
             (weftAttribute_t[]){NODE(OPERATION_REDUCTION_DESC, parameters), NODE(OPERATION_REDUCTION_XDESC, x),
                                 NODE(OPERATION_REDUCTION_YDESC, y)});
}

static bool is_float(double number) { return (double)(float)number == number; }

void build_scaled(struct builder *b, const struct shape *shape, double factor, node x, node y) {
    const int32_t math = shape_math(shape);
    if (is_float(factor))
        build_pointwise(b, &(struct pointwise){.mode = WEFT_POINTWISE_IDENTITY,
                                               .math = math,
                                               .x = x,
                                               .y = y,
                                               .alpha1 = factor,
                                               .alpha2 = 1,
                                               .has_factors = true});
    else
        build_binary(b, WEFT_POINTWISE_MUL, math, x, constant(b, factor, math, shape->rank), y);
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

node result_begin(struct builder *b, struct result *result) {
    bool is_plain = result->alpha == 1 && result->beta == 0;
    result->stored = stored_tensor(b, result->uid, result->shape);
    result->value = is_plain ? result->stored : virtual_tensor(b, result->shape, shape_math(result->shape));
    return result->value;
}

/* The factors are attributes of the addition if they are exact in float, as attributes of pointwise operations are;
   otherwise products with constants. */
void result_end(struct builder *b, struct result *result) {
    const struct shape *shape = result->shape;
    const int32_t math = shape_math(shape);
    if (result->value == result->stored)
        return;
    if (result->beta == 0) {
        build_scaled(b, shape, result->alpha, result->value, result->stored);
        return;
    }
    struct pointwise sum = {.mode = WEFT_POINTWISE_ADD,
                            .math = math,
                            .x = result->value,
                            .b = stored_tensor(b, result->old_uid, shape),
                            .y = result->stored,
                            .alpha1 = result->alpha,
                            .alpha2 = result->beta,
                            .has_factors = true};
    if (!is_float(result->alpha) || !is_float(result->beta)) {
        const node value = virtual_tensor(b, shape, math), old = virtual_tensor(b, shape, math);
        build_scaled(b, shape, result->alpha, sum.x, value);
        build_scaled(b, shape, result->beta, sum.b, old);
        sum.x = value, sum.b = old, sum.has_factors = false;
    }
    build_pointwise(b, &sum);
}
