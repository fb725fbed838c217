/* SPDX-License-Identifier: Apache-2.0 */
/* What is computed in double on the CPU, and what in float. */
#ifndef WEFT_ENGINES_CPU_COMPUTE_TYPE_H
#define WEFT_ENGINES_CPU_COMPUTE_TYPE_H

#include "engines/engine.h"
#include "graph/ops/pointwise.h"

/* Whether a type has values that float does not hold exactly. */
static inline bool type_is_wide(int32_t type) {
    return type == WEFT_DATA_DOUBLE || type == WEFT_DATA_INT32 || type == WEFT_DATA_UINT32 || type == WEFT_DATA_INT64;
}

/* Whether a node is computed in double: as its type of arithmetic or those of its operands ask. */
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
