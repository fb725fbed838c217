/* SPDX-License-Identifier: Apache-2.0 */
/* The reshape operation: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_RESHAPE_H
#define WEFT_GRAPH_OPS_RESHAPE_H

#include "graph/op.h"

struct reshape_op {
    struct descriptor base;
    struct tensor *x, *y;
    int32_t mode; /* weftBackendReshapeMode_t */
};

extern const struct op reshape_op;

/* True if the elements of y are those of x in the same order, regardless of their strides. False for views of storage
   that is not packed. */
bool reshape_keeps_order(const struct reshape_op *op);

#endif
