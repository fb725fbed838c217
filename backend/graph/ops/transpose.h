/* SPDX-License-Identifier: Apache-2.0 */
/* The transpose operation: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_TRANSPOSE_H
#define WEFT_GRAPH_OPS_TRANSPOSE_H

#include "graph/op.h"

struct transpose_op {
    struct descriptor base;
    struct tensor *x, *y;
    struct dims permutation; /* dimension i of y is dimension permutation.at[i] of x */
};

extern const struct op transpose_op;

#endif
