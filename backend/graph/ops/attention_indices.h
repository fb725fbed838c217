/* SPDX-License-Identifier: Apache-2.0 */
/* Indices in memory that attention reads: lengths, ragged offsets and page tables. Defines which operands may be ragged
   and where their entries may be located, and validates the indices. */
#ifndef WEFT_GRAPH_OPS_ATTENTION_INDICES_H
#define WEFT_GRAPH_OPS_ATTENTION_INDICES_H

#include "graph/ops/attention.h"

/* Number of keys that the page table of a batch entry reaches, capped at INT64_MAX. */
int64_t attention_table_reach(const struct tensor *table, const struct tensor *container);

/* Number of queries or keys in use of a batch entry, which has `all`. attention_check_indices has checked its range. */
int64_t attention_length(const struct view *lengths, const struct view *sums, int64_t batch, int64_t all);

/* A ragged operand. Its rows are queries or keys; those of a page table are pages of `page` keys. */
struct attention_ragged {
    const struct tensor *tensor;
    const char *key;
    bool has_keys;
    int64_t page; /* keys per row; 1 except for page tables */
};

enum { ATTENTION_RAGGED_MAX = 24 };

/* Lists the ragged operands of a finalized sdpa_fwd or sdpa_bwd in the order of its rows, and returns their count. */
int attention_ragged_operands(const struct descriptor *op, struct attention_ragged list[ATTENTION_RAGGED_MAX]);

/* Rejects malformed ragged offsets, and ragged offsets on operands that do not support them. */
weftStatus_t attention_check_ragged(const struct descriptor *op, const struct attention *a);

/* Validates the indices in memory: see check_indices in op.h. */
weftStatus_t attention_check_indices(const struct descriptor *op, const struct bindings *bindings);

#endif
