/* SPDX-License-Identifier: Apache-2.0 */
/* Logarithms of sums of exponentials. */
#ifndef WEFT_GRAPH_OPS_LOGSUMEXP_H
#define WEFT_GRAPH_OPS_LOGSUMEXP_H

#include "graph/op.h"

extern const struct op logsumexp_op;

#endif
