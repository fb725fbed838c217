/* SPDX-License-Identifier: Apache-2.0 */
/* The grouped matrix products of a mixture of experts: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_MOE_H
#define WEFT_GRAPH_OPS_MOE_H

#include "graph/op.h"

struct moe_op {
    struct descriptor base;
    int32_t mode, math, top_k;
    struct tensor *token, *weight, *first_token_offset, *output;
    struct tensor *token_index, *token_ks;
};

struct moe_bwd_op {
    struct descriptor base;
    int32_t math;
    struct tensor *doutput, *token, *first_token_offset, *dweight;
};

/* The type in which products are accumulated. */
weftDataType_t moe_math(const struct moe_op *op);
weftDataType_t moe_bwd_math(const struct moe_bwd_op *op);

extern const struct op moe_op;
extern const struct op moe_bwd_op;

/* 1 if first_token_offset omits the first expert, whose offset is then 0; otherwise 0. */
static inline int64_t moe_left_out(const struct tensor *offsets, int64_t experts) {
    return experts - offsets->dims.at[0];
}

/* Number of rows that are distributed over the experts: the rows of token, or those that GATHER selects. */
static inline int64_t moe_rows(const struct moe_op *op) {
    const struct tensor *rows = op->mode == WEFT_MOE_GROUPED_MATMUL_MODE_GATHER ? op->token_index : op->token;
    return rows->dims.at[1];
}

#endif
