/* SPDX-License-Identifier: Apache-2.0 */
/* The paged_cache_load operation: fields that engines read. */
#ifndef WEFT_GRAPH_OPS_PAGED_CACHE_LOAD_H
#define WEFT_GRAPH_OPS_PAGED_CACHE_LOAD_H

#include "graph/op.h"

struct paged_cache_load_op {
    struct descriptor base;
    struct tensor *container;      /* [pages, H, page size, D] */
    struct tensor *table, *length; /* [B, 1, entries, 1] and [B, 1, 1, 1] */
    struct tensor *y;              /* [B, H, S, D] or [B, H, D, S] */
};

extern const struct op paged_cache_load_op;

/* True if y is [B, H, D, S]. If S equals D, the contiguous dimension of y is D. */
bool paged_cache_load_is_transposed(const struct paged_cache_load_op *op);

#endif
