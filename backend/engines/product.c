/* SPDX-License-Identifier: Apache-2.0 */
/* What the product families of all engines ask of a region: that it has one product, and only such nodes beside it as
   they can take in. It must not know how a product is computed. */
#include "engines/product.h"
#include "graph/ops/convolution.h"
#include "graph/ops/matmul.h"

bool node_is_product(const struct node *node) { return op_of(node->op) == &matmul_op || conv_is(node->op); }

/* goes_with: which other operations the family would compute in the same kernel, before or behind the product. */
weftStatus_t region_find_product(const struct node **found, const struct region *region,
                                 bool (*goes_with)(const struct node *node)) {
    *found = NULL;
    for (int i = 0; i < region->count; i++) {
        const struct node *node = region_node(region, i);
        if (goes_with(node))
            continue;
        if (!node_is_product(node))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s is neither a matmul, a convolution nor pointwise. Only those are fused here.",
                 descriptor_label(node->op));
        /* Two products in one region would need the first one's result as a whole before the second begins. */
        if (*found)
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s and %s: one product is computed at a time.",
                 descriptor_label((*found)->op), descriptor_label(node->op));
        *found = node;
    }
    if (!*found)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: there is no matmul or convolution for it to follow.",
             descriptor_label(region_node(region, 0)->op));
    return WEFT_STATUS_SUCCESS;
}
