/* SPDX-License-Identifier: Apache-2.0 */
/* The list of operations, one line each in ops.c. */
#ifndef WEFT_GRAPH_OPS_H
#define WEFT_GRAPH_OPS_H

#include "graph/op.h"

/* Ends with NULL. */
extern const struct op *const ops[];

/* The schema of a tensor, graph, operation or parameter descriptor; NULL if the kind is none of these. */
const struct schema *ops_find_schema(weftBackendDescriptorType_t kind);

#endif
