/* SPDX-License-Identifier: Apache-2.0 */
/* Selects the compute type on the CPU: double or float. */
#ifndef WEFT_ENGINES_CPU_COMPUTE_TYPE_H
#define WEFT_ENGINES_CPU_COMPUTE_TYPE_H

#include "engines/engine.h"
#include "graph/ops/pointwise.h"

/* True if a type has values that float cannot represent exactly. */
static inline bool type_is_wide(int32_t type) {
    return type == WEFT_DATA_DOUBLE || type == WEFT_DATA_INT32 || type == WEFT_DATA_UINT32 || type == WEFT_DATA_INT64;
}

/* True if a node must be computed in double because of its arithmetic type or its operand types. */
static inline bool node_is_wide(const struct pointwise_op *op) {
    struct pointwise_operands operands = pointwise_operands(op);
    const struct tensor *tensors[] = {operands.x, operands.b, operands.t, operands.out};
    bool is_wide = pointwise_math(op) == WEFT_DATA_DOUBLE || !dtype_is_float(pointwise_math(op));
    if (op->pw->mode == WEFT_POINTWISE_GEN_INDEX)
        return type_is_wide(operands.out->type) || operands.out->dims.at[op->pw->axis] > 1 << 24;
    for (int i = 0; i < 4; i++)
        is_wide = is_wide || (tensors[i] && type_is_wide(tensors[i]->type));
    return is_wide;
}

#endif
