/* SPDX-License-Identifier: Apache-2.0 */
/* Builds Weft's graphs for functions that are a few operations. The first failure is kept; later calls do nothing. */
#ifndef WEFT_CUDNN_BUILDER_H
#define WEFT_CUDNN_BUILDER_H

#include "src/shape.h"

typedef weftBackendDescriptor_t node; /* a tensor, parameters or an operation, owned by the builder */

enum { BUILDER_NODES_MAX = 128, BUILDER_OPS_MAX = 32 };

struct builder {
    weftHandle_t handle;
    cudnnStatus_t status;
    node nodes[BUILDER_NODES_MAX], ops[BUILDER_OPS_MAX];
    int node_count, op_count;
    int64_t next_uid;  /* of virtual tensors */
    int64_t alignment; /* of stored tensors, in bytes */
};

/* Uids of the tensors that functions bind to addresses. */
enum {
    UID_X = 1,
    UID_W,
    UID_Y,
    UID_Z,
    UID_BIAS,
    UID_DY,
    UID_DX,
    UID_DZ,
    UID_SCALE,
    UID_MEAN,
    UID_VARIANCE,
    UID_OUT_MEAN,
    UID_OUT_VARIANCE,
    UID_SAVED_MEAN,
    UID_SAVED_INVERSE,
    UID_EPSILON,
    UID_MOMENTUM,
    UID_DSCALE,
    UID_DBIAS,
    UID_SEED,
    UID_OFFSET,
    UID_MASK,
    UID_INDICES,
    /* The results before the call, which are read if their beta is not 0. */
    UID_OLD,
    UID_OLD_SCALE,
    UID_OLD_BIAS,
    UID_VIRTUAL = 1000
};

/* Creates any descriptor. */
node build(struct builder *b, weftBackendDescriptorType_t kind, int count, const weftAttribute_t *attributes);

/* Creates an operation of the graph. */
void build_op(struct builder *b, weftBackendDescriptorType_t kind, int count, const weftAttribute_t *attributes);

/* Keeps the first failure. */
void builder_check(struct builder *b, weftStatus_t status);

/* Attributes in short form. */
#define NODE(name, node_) {WEFT_ATTR_##name, WEFT_TYPE_BACKEND_DESCRIPTOR, 1, &(node_)}
#define VALUE(name, type, value) {WEFT_ATTR_##name, WEFT_TYPE_##type, 1, &(value)}
#define LIST(name, type, count, values) {WEFT_ATTR_##name, WEFT_TYPE_##type, count, values}

node stored_tensor(struct builder *b, int64_t uid, const struct shape *shape);

/* A virtual tensor of another type than the shape's. */
node virtual_tensor(struct builder *b, const struct shape *shape, int32_t type);

/* One element whose address is bound at execution; it is read on the host. */
node by_value(struct builder *b, int64_t uid, int32_t type, int rank);

/* One element that is known now: FLOAT, DOUBLE, INT32 or INT64. */
node constant(struct builder *b, double value, int32_t type, int rank);

struct pointwise {
    weftPointwiseMode_t mode;
    int32_t math;
    node x, b, t, y, dy, dx;
    double alpha1, alpha2; /* used if has_factors; they must be exact in float */
    bool has_factors;
    const double *clip, *elu_alpha, *swish_beta; /* NULL: unset */
    int64_t axis;                                /* of GEN_INDEX */
};
void build_pointwise(struct builder *b, const struct pointwise *p);

/* The usual forms: y = mode(x), y = mode(x, other). */
void build_unary(struct builder *b, weftPointwiseMode_t mode, int32_t math, node x, node y);
void build_binary(struct builder *b, weftPointwiseMode_t mode, int32_t math, node x, node other, node y);

void build_reduction(struct builder *b, weftReduceTensorOp_t op, int32_t math, node x, node y);

/* y = factor x, exact for every factor. */
void build_scaled(struct builder *b, const struct shape *shape, double factor, node x, node y);

/* The result of a function: out = alpha * value + beta * out. */
struct result {
    const struct shape *shape;
    double alpha, beta;
    int64_t uid, old_uid;
    node stored, value;
};

/* Returns the tensor that the operations have to write; result_end adds the factors. */
node result_begin(struct builder *b, struct result *result);
void result_end(struct builder *b, struct result *result);

void builder_free(struct builder *b);

#endif
