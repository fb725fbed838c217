/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/ops/attention_reference.h"
#include "base/number.h"
#include "base/philox.h"
#include "graph/ops/attention_indices.h"
#include "graph/ops/rng.h"

#include <math.h>

double attention_alibi_slope(int64_t head, int64_t heads) {
    int64_t power = 1;
    while (power * 2 <= heads)
        power *= 2;
    /* Slopes in between: the odd steps of the series for twice as many heads. */
    double step = head < power ? 8.0 * (double)(head + 1) : 4.0 * (double)(2 * (head - power) + 1);
    return exp2(-step / (double)power);
}

struct attention_run attention_run_of(const struct attention *a, const struct bindings *bindings) {
    return (struct attention_run){
        .a = a,
        .batches = a->q->dims.at[0],
        .heads = a->q->dims.at[1],
        .rows = a->q->dims.at[2],
        .columns = attention_keys(a),
        .depth = a->q->dims.at[3],
        .value_depth = a->v->dims.at[3],
        .bindings = bindings,
        .bias = view_of(bindings, a->bias),
        .seq_len_q = view_of(bindings, a->seq_len_q),
        .seq_len_kv = view_of(bindings, a->seq_len_kv),
        .cu_seq_len_q = view_of(bindings, a->cu_seq_len_q),
        .cu_seq_len_kv = view_of(bindings, a->cu_seq_len_kv),
        .sink = view_of(bindings, a->sink),
        .block_mask = view_of(bindings, a->block_mask),
        .dropout_mask = view_of(bindings, a->dropout_mask),
        /* The tensor takes precedence; check_attention rejects operations that set both. */
        .scale = view_scalar(bindings, a->scale, a->scale_value),
        .keep_scale = view_scalar(bindings, a->dropout_scale, attention_keep_scale(a)),
        .seed = (uint64_t)rng_scalar(bindings, a->dropout_seed, 0),
        .offset = (uint64_t)rng_scalar(bindings, a->dropout_offset, 0),
    };
}

struct attention_head attention_head_of(const struct attention_run *run, int64_t batch, int64_t index) {
    struct attention_head head = {.batch = batch, .index = index, .sink = -INFINITY};
    head.rows_used = attention_length(&run->seq_len_q, &run->cu_seq_len_q, batch, run->rows);
    head.columns_used = attention_length(&run->seq_len_kv, &run->cu_seq_len_kv, batch, run->columns);
    /* BOTTOM_RIGHT aligns the last query in use with the last key in use. */
    if (run->a->alignment == WEFT_DIAGONAL_BOTTOM_RIGHT)
        head.shift = head.columns_used - head.rows_used;
    if (run->a->alibi)
        head.slope = attention_alibi_slope(index, run->heads);
    if (run->sink.data)
        head.sink = view_load(&run->sink, (const int64_t[]){0, index, 0, 0});
    return head;
}

/* True if the block mask includes the tile of a score. */
static bool keeps_tile(const struct attention_run *run, const struct attention_head *head, int64_t row,
                       int64_t column) {
    if (!run->block_mask.data)
        return true;
    /* Eight key tiles per byte; the first one is the lowest bit. */
    int64_t tile = column / ATTENTION_MASK_TILE, bits = attention_mask_has_bits(run->a) ? 8 : 1;
    int64_t byte = view_load_int(&run->block_mask,
                                 (const int64_t[]){head->batch, head->index, row / ATTENTION_MASK_TILE, tile / bits});
    return bits == 1 ? byte != 0 : byte >> tile % 8 & 1;
}

/* The order matters: hidden keys are not multiplied, so that NaN in their memory has no effect. */
double attention_score(const struct attention_run *run, const struct attention_head *head, const double *q,
                       const double *k, int64_t row, int64_t column, double *product) {
    /* Bounds are at most 2^60, rows and columns are below 2^44: the sums fit into 64 bits. */
    bool seen = row < head->rows_used && column < head->columns_used &&
                column <= row + head->shift + run->a->right_bound && column > row + head->shift - run->a->left_bound;
    if (!seen || !keeps_tile(run, head, row, column))
        return -INFINITY;
    /* A boolean bias hides like a bias of -inf, before the product is computed. */
    double bias = 0;
    if (run->bias.data) {
        bias = view_load(&run->bias, (const int64_t[]){head->batch, head->index, row, column});
        if (dtype_is_boolean(run->bias.type))
            bias = bias != 0 ? 0 : -INFINITY;
        if (bias == -INFINITY)
            return -INFINITY;
    }
    double sum = 0;
    for (int64_t d = 0; d < run->depth; d++)
        sum += q[d] * k[d];
    double modified = *product = run->scale * sum;
    if (run->a->modifier.graph)
        modified = score_modifier_apply(&run->a->modifier, run->bindings,
                                        (const int64_t[]){head->batch, head->index, row, column}, *product);
    /* If the modifier returns -inf, the key is hidden. Adding a bias could turn -inf into NaN. */
    return modified == -INFINITY ? modified : modified + bias + head->slope * (double)(column - row);
}

/* One call of Philox yields four words, for four adjacent keys of a row; the
   upper 24 bits of a word decide. */
bool attention_is_drawn(const struct attention_run *run, const struct attention_head *head, int64_t row,
                        int64_t column) {
    /* The row of [B, Hq, Sq, Skv] that contains this weight, in the numbering of the rng operation. */
    uint64_t line = (uint64_t)((head->batch * run->heads + head->index) * run->rows + row);
    uint64_t block = philox_index(line, (uint64_t)column, (uint64_t)run->columns);
    unsigned word = philox_words(run->seed, run->offset, block).word[column % 4];
    return word >> 8 < philox_threshold(1 - run->a->dropout_probability);
}

double attention_dropout_factor(const struct attention_run *run, const struct attention_head *head, int64_t row,
                                int64_t column) {
    if (run->dropout_mask.data) {
        const int64_t index[] = {head->batch, head->index, row, column};
        return run->keep_scale * view_load(&run->dropout_mask, index); /* booleans are 0 and 1 */
    }
    return !attention_draws(run->a) ? 1 : attention_is_drawn(run, head, row, column) ? run->keep_scale : 0;
}

/* Subtracts the regular offset of the entry, because view_load adds it. */
struct view attention_entry(const struct bindings *bindings, const struct tensor *tensor, int64_t batch) {
    struct view view = view_of(bindings, tensor);
    if (!view.data || !tensor->ragged_offset)
        return view; /* also for an absent tensor */
    struct view offsets = view_of(bindings, tensor->ragged_offset);
    int64_t offset = view_load_int(&offsets, (const int64_t[]){batch, 0, 0, 0}) * tensor->ragged_multiplier;
    int64_t usual = view.dims[0] == 1 ? 0 : batch * view.strides[0];
    /* Ragged tensors have types of whole bytes. The pointer may be outside of the tensor, but all accesses are
       inside. */
    view.data = (char *)view.data + dtype_bytes(view.type, 1) * (offset - usual);
    return view;
}

int64_t attention_stored_rows(const struct tensor *tensor, int64_t used) {
    return tensor && tensor->ragged_offset ? min64(used, tensor->dims.at[2]) : INT64_MAX;
}

struct attention_scales attention_scales_of(const struct bindings *bindings, const struct tensor *scales,
                                            const struct tensor *operand) {
    struct attention_scales view = {.memory = view_of(bindings, scales)};
    if (scales)
        view.blocks = attention_blocks_of(scales, operand);
    return view;
}

double attention_scale_at(const struct attention_scales *scales, const int64_t index[4]) {
    if (!scales->memory.data)
        return 1;
    return dtype_load(scales->memory.type, scales->memory.data,
                      attention_scale_offset(&scales->memory, &scales->blocks, index));
}

void attention_load_head(double *to, const struct view *from, const struct attention_scales *scales, int64_t batch,
                         int64_t head, int64_t used) {
    for (int64_t s = 0; s < from->dims[2]; s++)
        for (int64_t d = 0; d < from->dims[3]; d++) {
            const int64_t index[] = {batch, head, s, d};
            *to++ = s < used ? view_load(from, index) * attention_scale_at(scales, index) : 0;
        }
}

double *scratch_take(struct scratch_cursor *cursor, int64_t count) {
    double *array = cursor->block ? cursor->block + cursor->used : NULL;
    cursor->used += count;
    return array;
}
