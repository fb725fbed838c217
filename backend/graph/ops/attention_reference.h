/* SPDX-License-Identifier: Apache-2.0 */
/* References of sdpa_fwd and sdpa_bwd, which define their results, and what both compute: scores and dropout. */
#ifndef WEFT_GRAPH_OPS_ATTENTION_REFERENCE_H
#define WEFT_GRAPH_OPS_ATTENTION_REFERENCE_H

#include "graph/ops/attention.h"

/* See `reference` and `scratch_bytes` of struct op. (attention_forward.c, attention_backward.c) */
void attention_reference_forward(const struct descriptor *descriptor, const struct bindings *bindings);
void attention_reference_backward(const struct descriptor *descriptor, const struct bindings *bindings);
int64_t attention_forward_scratch_bytes(const struct descriptor *descriptor);
int64_t attention_backward_scratch_bytes(const struct descriptor *descriptor);

/* State of one execution: sizes, and the operands that determine the scores. */
struct attention_run {
    const struct attention *a;
    int64_t batches, heads, rows, columns, depth, value_depth;
    const struct bindings *bindings;
    struct view bias, seq_len_q, seq_len_kv, cu_seq_len_q, cu_seq_len_kv, sink, block_mask, dropout_mask;
    double scale, keep_scale; /* keep_scale: factor of the weights that dropout keeps */
    uint64_t seed, offset;
};

/* Without bindings, as needed to compute the size of scratch memory, all views are empty, but sizes are set. */
struct attention_run attention_run_of(const struct attention *a, const struct bindings *bindings);

/* Values that determine the scores of one head of one batch entry. */
struct attention_head {
    int64_t batch, index;
    /* shift: of the diagonal, in keys; 0 if it begins at the top left. */
    int64_t rows_used, columns_used, shift;
    double slope;
    double sink; /* -inf: none */
};

/* Lengths, diagonal, ALiBi slope and sink of one head: everything that a score needs in addition to its vectors. */
struct attention_head attention_head_of(const struct attention_run *run, int64_t batch, int64_t index);

/* The score of key `column` (with the vector k) for query `row`; -inf if the key is hidden. product: scale q k, before
   the score modifier. */
double attention_score(const struct attention_run *run, const struct attention_head *head, const double *q,
                       const double *k, int64_t row, int64_t column, double *product);

/* True if random numbers keep a weight. */
bool attention_is_drawn(const struct attention_run *run, const struct attention_head *head, int64_t row,
                        int64_t column);

/* The factor by which dropout multiplies a weight. */
double attention_dropout_factor(const struct attention_run *run, const struct attention_head *head, int64_t row,
                                int64_t column);

/* A view of an operand whose indices {batch, ..} refer to the entry at the tensor's ragged offset, if it has one. */
struct view attention_entry(const struct bindings *bindings, const struct tensor *tensor, int64_t batch);

/* Number of rows of a result that exist: rows after those in use belong to other entries if the tensor is ragged. */
int64_t attention_stored_rows(const struct tensor *tensor, int64_t used);

/* Scales of an operand; all scales are 1 if it has no memory. */
struct attention_scales {
    struct view memory;
    struct attention_blocks blocks;
};

/* Returns a view without memory for NULL. */
struct attention_scales attention_scales_of(const struct bindings *bindings, const struct tensor *scales,
                                            const struct tensor *operand);

/* `index` is that of the element, [b, h, s, d]; the blocks determine its scale. */
double attention_scale_at(const struct attention_scales *scales, const int64_t index[4]);

/* Copies one head of a [B, H, S, D] operand, multiplied by its scales, into rows of doubles; rows from `used` on are
   0. */
void attention_load_head(double *to, const struct view *from, const struct attention_scales *scales, int64_t batch,
                         int64_t head, int64_t used);

/* Assigns arrays within a block of doubles, or only counts without a block. A block is never empty, so all arrays have
   an address. */
struct scratch_cursor {
    double *block;
    int64_t used;
};

/* The same code counts sizes and assigns arrays, so that the two agree. */
double *scratch_take(struct scratch_cursor *cursor, int64_t count);

#endif
