/* SPDX-License-Identifier: Apache-2.0 */
/* The matmul operation: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_MATMUL_H
#define WEFT_GRAPH_OPS_MATMUL_H

#include "graph/op.h"

struct matmul {
    struct descriptor base;
    int32_t math;
    double padding;
};

struct matmul_op {
    struct descriptor base;
    struct matmul *parameters;
    struct tensor *a, *b, *c;
    struct tensor *m_override, *n_override, *k_override;
    int64_t batch_count; /* deprecated; accepted and ignored */
};

/* The type in which products are accumulated. */
weftDataType_t matmul_math(const struct matmul_op *op);

extern const struct op matmul_op;
extern const struct schema matmul_schema;

/* The batch entry of an operand with `extent` entries that entry `index` of a result with `result_extent` entries uses.
   Adjacent entries may share one, such as the query heads of a group that share a key head. */
static inline int64_t matmul_batch_entry(int64_t index, int64_t result_extent, int64_t extent) {
    return extent ? index / (result_extent / extent) : 0;
}

#endif
