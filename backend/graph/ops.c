/* SPDX-License-Identifier: Apache-2.0 */
/* The list of operations. Adding one is its file in ops/ and its line here. */
#include "graph/ops.h"
#include "graph/graph.h"
#include "graph/ops/matmul.h"
#include "graph/ops/pointwise.h"

const struct op *const ops[] = {
    &pointwise_op,
    &matmul_op,
    NULL,
};

const struct schema *ops_find_schema(weftBackendDescriptorType_t kind) {
    if (kind == tensor_schema.kind)
        return &tensor_schema;
    if (kind == graph_schema.kind)
        return &graph_schema;
    for (int i = 0; ops[i]; i++) {
        if (ops[i]->schema.kind == kind)
            return &ops[i]->schema;
        if (ops[i]->parameters && ops[i]->parameters->kind == kind)
            return ops[i]->parameters;
    }
    return NULL;
}
