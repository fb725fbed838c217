/* SPDX-License-Identifier: Apache-2.0 */
/* The largest or smallest elements along a dimension: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_TOP_K_H
#define WEFT_GRAPH_OPS_TOP_K_H

#include "graph/op.h"

struct top_k_op {
    struct descriptor base;
    int32_t mode;                        /* weftReduceTensorOp_t: MAX or MIN */
    int32_t nan_propagation;             /* weftNanPropagation_t: PROPAGATE_NAN: NaN comes first */
    int64_t axis;                        /* as set by the user: negative values count from the last dimension */
    int64_t count;                       /* k */
    struct tensor *x, *values, *indices; /* values or indices may be NULL */
};

extern const struct op top_k_op;

#endif
