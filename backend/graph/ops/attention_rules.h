/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEFT_GRAPH_OPS_ATTENTION_RULES_H
#define WEFT_GRAPH_OPS_ATTENTION_RULES_H

#include "graph/op.h"

/* See `infer` and `check` of struct op. */
weftStatus_t attention_infer_forward(struct descriptor *descriptor);
weftStatus_t attention_infer_backward(struct descriptor *descriptor);
weftStatus_t attention_check_forward(const struct descriptor *descriptor);
weftStatus_t attention_check_backward(const struct descriptor *descriptor);

#endif
