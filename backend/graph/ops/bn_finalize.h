/* SPDX-License-Identifier: Apache-2.0 */
/* The second half of batch norm's statistics: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_BN_FINALIZE_H
#define WEFT_GRAPH_OPS_BN_FINALIZE_H

#include "graph/op.h"

struct bn_finalize_op {
    struct descriptor base;
    int32_t mode, math;
    struct tensor *sum, *sq_sum, *accum_count; /* required in training */
    struct tensor *scale, *bias, *epsilon, *momentum, *in_running_mean, *in_running_var;
    struct tensor *eq_scale, *eq_bias, *saved_mean, *saved_inv_variance, *out_mean, *out_var;
};

extern const struct op bn_finalize_op;

#endif
