/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of one head of an attention's operands and results: their location in padded, ragged or paged layout, and their
   conversion to and from float. This file must not know what is computed with them. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_MEMORY_H
#define WEFT_ENGINES_CPU_ATTENTION_MEMORY_H

#include "graph/op.h"

struct rows {
    void *base; /* NULL if absent */
    weftDataType_t type;
    int bits;                    /* bits per element */
    int64_t first, stride, step; /* in elements: offset of row 0, row pitch, stride within a row */
    struct view table;           /* page table; without memory there are no pages */
    int64_t table_first, table_step;
    int64_t page_rows, page_stride;
    bool is_ragged; /* rows past the used ones belong to another entry */
};

/* Rows of head `head` of batch entry `batch`. A NULL tensor is absent; a NULL table means no pages. */
struct rows rows_of(const struct bindings *bindings, const struct tensor *tensor, const struct tensor *table,
                    int64_t batch, int64_t head);

/* Loads rows [row, row + count) as floats with pitch ld. */
void rows_load(const struct rows *rows, int64_t row, int64_t count, int64_t depth, float *to, int64_t ld);

/* Address of a row. */
const void *rows_at(const struct rows *rows, int64_t row);

/* Prefetches one of `parts` equal parts of these rows into the L2 cache during computation; nothing if count is below
   1. Without it, scattered rows would be loaded at memory latency. */
void rows_fetch(const struct rows *rows, int64_t row, int64_t count, int64_t depth, int64_t part, int64_t parts);

/* True if products of a few vectors can read the rows in place, with pitch rows->stride: not paged, and contiguous
   elements that are aligned floats or bf16. */
bool rows_are_in_place(const struct rows *rows);

/* Stores one row if it is among the `used` rows. */
void rows_store(const struct rows *rows, int64_t row, int64_t used, int64_t depth, const float *from);

#endif
