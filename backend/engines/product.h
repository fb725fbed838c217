/* SPDX-License-Identifier: Apache-2.0 */
/* Regions with exactly one product, a matmul or a convolution. Shared by the families of all engines. */
#ifndef WEFT_ENGINES_PRODUCT_H
#define WEFT_ENGINES_PRODUCT_H

#include "engines/engine.h"

bool node_is_product(const struct node *node);

/* Finds the only product of a region; the family's callback must accept all other nodes. */
weftStatus_t region_find_product(const struct node **out, const struct region *region,
                                 bool (*goes_with)(const struct node *node));

#endif
