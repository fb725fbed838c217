/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of a cumulative product. */
#ifndef WEFT_GRAPH_OPS_CUMPROD_BACKWARD_H
#define WEFT_GRAPH_OPS_CUMPROD_BACKWARD_H

#include "graph/op.h"

extern const struct op cumprod_backward_op;

#endif
