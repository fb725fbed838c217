/* SPDX-License-Identifier: Apache-2.0 */
/* Checks shared by the product families of all engines: a region has one product, and otherwise only nodes that can be
   fused with it. This file must not know how a product is computed. */
#include "engines/product.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"

bool node_is_product(const struct node *node) { return op_of(node->op) == &matmul_op || conv_is(node->op); }

/* goes_with: accepts the operations that the family computes in the same kernel, before or after the product. */
weftStatus_t region_find_product(const struct node **out, const struct region *region,
                                 bool (*goes_with)(const struct node *node)) {
    *out = NULL;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        if (goes_with(node))
            continue;
        if (!node_is_product(node))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s is neither a matmul, a convolution nor pointwise. Only those are fused.",
                 descriptor_label(node->op));
        /* The second of two products would need the complete result of the first. */
        if (*out)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s and %s: one product is computed at a time.",
                 descriptor_label((*out)->op), descriptor_label(node->op));
        *out = node;
    }
    if (!*out)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the region has no matmul or convolution for it to follow.",
             descriptor_label(region_node(region, 0)->op));
    return WEFT_STATUS_SUCCESS;
}
