/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in memory by which attention finds its operands: lengths, ragged offsets and page tables. Which operands may
   be ragged, where the entries of a ragged tensor may be, and the check of the numbers themselves. */
#ifndef WEFT_GRAPH_OPS_ATTENTION_INDICES_H
#define WEFT_GRAPH_OPS_ATTENTION_INDICES_H

#include "graph/ops/attention.h"

/* A ragged operand. Its rows are queries, keys, or, of a page table, pages of `page` keys. */
struct attention_ragged {
    const struct tensor *tensor;
    const char *key;
    bool has_keys;
    int64_t page; /* keys per row; 1 except for page tables */
};

enum { ATTENTION_RAGGED_MAX = 24 };

/* The ragged operands of a finalized sdpa_fwd or sdpa_bwd, in the order of its rows; returns their count. */
int attention_ragged_operands(const struct descriptor *op, struct attention_ragged list[ATTENTION_RAGGED_MAX]);

/* Refuses ragged offsets that are malformed, or on an operand that is not read with them. */
weftStatus_t attention_check_ragged(const struct descriptor *op, const struct attention *a);

/* Checks the numbers in memory: op.h, check_indices. */
weftStatus_t attention_check_indices(const struct descriptor *op, const struct bindings *bindings);

#endif
