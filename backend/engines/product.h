/* SPDX-License-Identifier: Apache-2.0 */
/* Regions around one product, a matmul or a convolution: what the families of all engines ask alike. */
#ifndef WEFT_ENGINES_PRODUCT_H
#define WEFT_ENGINES_PRODUCT_H

#include "engines/engine.h"

bool node_is_product(const struct node *node);

/* The one product of a region whose other nodes all go with one, as the family says. */
weftStatus_t region_find_product(const struct node **found, const struct region *region,
                                 bool (*goes_with)(const struct node *node));

#endif
