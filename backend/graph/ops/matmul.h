/* SPDX-License-Identifier: Apache-2.0 */
/* The matmul operation as engines read it. */
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

/* The type that products are summed in. */
weftDataType_t matmul_math(const struct matmul_op *op);

extern const struct op matmul_op;
extern const struct schema matmul_schema;

/* The batch entry of an operand with `extent` entries that serves entry `index` of `whole` entries: neighbours share
   one when the extent divides the whole (one key head for a group of query heads). */
static inline int64_t matmul_batch_entry(int64_t index, int64_t whole, int64_t extent) {
    return extent ? index / (whole / extent) : 0;
}

#endif
