/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of one head of an attention's operands and results: where they lie, padded, ragged or in pages, and their
   way into floats and back. It must not know what is calculated of them. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_MEMORY_H
#define WEFT_ENGINES_CPU_ATTENTION_MEMORY_H

#include "graph/op.h"

struct rows {
    void *base; /* NULL: absent */
    weftDataType_t type;
    int bits;                    /* of an element */
    int64_t first, stride, step; /* in elements: of row 0, from row to row, within a row */
    struct view table;           /* which page has a row; no memory: there are no pages */
    int64_t table_first, table_step;
    int64_t page_rows, page_stride;
    bool is_ragged; /* rows beyond those in use are another entry's */
};

/* Of head `head` of batch entry `batch`; a NULL tensor is absent, a NULL table has no pages. */
struct rows rows_of(const struct bindings *bindings, const struct tensor *tensor, const struct tensor *table,
                    int64_t batch, int64_t head);

/* Rows [row, row + count) as floats, `ld` apart. */
void rows_load(const struct rows *rows, int64_t row, int64_t count, int64_t depth, float *to, int64_t ld);

/* Where a row begins. */
const void *rows_at(const struct rows *rows, int64_t row);

/* Has the CPU fetch one of `parts` equal parts of these rows into the L2 cache while it computes; of a count below 1
   none. Rows that lie apart are loaded at the memory's latency without. */
void rows_fetch(const struct rows *rows, int64_t row, int64_t count, int64_t depth, int64_t part, int64_t parts);

/* Whether rows lie as products of a few vectors read them, rows->stride apart: without pages, neighbouring floats that
   are aligned, or bf16. */
bool rows_are_in_place(const struct rows *rows);

/* One row, where it is there: `used` rows are in use. */
void rows_store(const struct rows *rows, int64_t row, int64_t used, int64_t depth, const float *from);

#endif
