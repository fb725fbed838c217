/* SPDX-License-Identifier: Apache-2.0 */
/* The reshape operation as engines read it. */
#ifndef WEFT_GRAPH_OPS_RESHAPE_H
#define WEFT_GRAPH_OPS_RESHAPE_H

#include "graph/op.h"

struct reshape_op {
    struct descriptor base;
    struct tensor *x, *y;
    int32_t mode; /* weftBackendReshapeMode_t */
};

extern const struct op reshape_op;

#endif
