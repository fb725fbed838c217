/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/cpu/attention/scores.h"

#include "base/number.h"
#include "base/philox.h"
#include "engines/cpu/product/gemm.h"
#include "graph/ops/attention_indices.h"
#include "graph/ops/rng.h"

#include <math.h>
#include <string.h>

/* ---- One execution ----------------------------------------------------------------------------------------------- */

struct attention_sizes attention_sizes_of(const struct attention *a) {
    struct attention_sizes sizes = {.batches = a->q->dims.at[0],
                                    .heads = a->q->dims.at[1],
                                    .rows = a->q->dims.at[2],
                                    .keys = attention_keys(a),
                                    .depth = a->q->dims.at[3],
                                    .value_depth = a->v->dims.at[3]};
    if (sizes.heads == 0)
        return sizes;
    /* Each run of `group` query heads shares one key head and one value head. */
    sizes.k_share = sizes.heads / a->k->dims.at[1], sizes.v_share = sizes.heads / a->v->dims.at[1];
    sizes.group = gcd64(sizes.k_share, sizes.v_share);
    sizes.groups = sizes.heads / sizes.group;
    sizes.columns = sizes.group * sizes.rows;
    return sizes;
}

struct scores scores_of(const struct attention *a, const struct attention_sizes *sizes,
                        const struct bindings *bindings) {
    return (struct scores){
        .a = a,
        .sizes = sizes,
        .bindings = *bindings,
        .bias = view_of(bindings, a->bias),
        .seq_len_q = view_of(bindings, a->seq_len_q),
        .seq_len_kv = view_of(bindings, a->seq_len_kv),
        .cu_seq_len_q = view_of(bindings, a->cu_seq_len_q),
        .cu_seq_len_kv = view_of(bindings, a->cu_seq_len_kv),
        .block_mask = view_of(bindings, a->block_mask),
        .dropout_mask = view_of(bindings, a->dropout_mask),
        .scale = (float)view_scalar(bindings, a->scale, a->scale_value),
        .drops = attention_drops(a),
        .dropout = {.seed = (uint64_t)rng_scalar(bindings, a->dropout_seed, 0),
                    .offset = (uint64_t)rng_scalar(bindings, a->dropout_offset, 0),
                    .quads = (uint64_t)divide_up(sizes->keys, 4),
                    .threshold = philox_threshold(1 - a->dropout_probability),
                    .factor = (float)view_scalar(bindings, a->dropout_scale, attention_keep_scale(a))},
    };
}

int64_t scores_queries(const struct scores *scores, int64_t batch) {
    return attention_length(&scores->seq_len_q, &scores->cu_seq_len_q, batch, scores->sizes->rows);
}

int64_t scores_keys(const struct scores *scores, int64_t batch) {
    return attention_length(&scores->seq_len_kv, &scores->cu_seq_len_kv, batch, scores->sizes->keys);
}

/* ---- Panels ------------------------------------------------------------------------------------------------------ */

/* Bounds are at most 2^60, rows and columns below 2^44: sums do not overflow 64 bits. */
static void find_keys(struct panel *panel, int column, const struct attention *a, int64_t queries, int64_t keys) {
    int64_t row = panel->row[column];
    int64_t diagonal = row + (a->alignment == WEFT_DIAGONAL_BOTTOM_RIGHT ? keys - queries : 0);
    panel->is_used[column] = row < queries;
    panel->low[column] = max64(0, diagonal - a->left_bound + 1);
    panel->high[column] = row < queries ? min64(keys, diagonal + a->right_bound + 1) : 0;
    panel->all_first = max64(panel->all_first, panel->low[column]);
    panel->all_last = min64(panel->all_last, panel->high[column]);
    /* A column that sees no key does not extend the range. */
    if (panel->low[column] >= panel->high[column])
        return;
    panel->first_key = min64(panel->first_key, panel->low[column]);
    panel->last_key = max64(panel->last_key, panel->high[column]);
}

void panel_init(struct panel *panel, const struct scores *scores, int64_t batch, int64_t group, int64_t column) {
    const struct attention_sizes *sizes = scores->sizes;
    int64_t queries = scores_queries(scores, batch), keys = scores_keys(scores, batch);
    panel->count = (int)min64(PANEL, sizes->columns - column);
    panel->batch = batch;
    panel->first_key = keys, panel->last_key = 0;
    panel->all_first = 0, panel->all_last = keys;
    for (int c = 0; c < PANEL; c++) {
        panel->is_used[c] = false;
        panel->low[c] = 0, panel->high[c] = INT64_MAX;
        panel->head[c] = panel->row[c] = panel->line[c] = 0;
        panel->slope[c] = 0;
    }
    for (int c = 0; c < panel->count; c++) {
        int64_t head = group * sizes->group + (column + c) / sizes->rows;
        panel->head[c] = head;
        panel->row[c] = (column + c) % sizes->rows;
        panel->line[c] = (batch * sizes->heads + head) * sizes->rows + panel->row[c];
        panel->slope[c] = scores->a->alibi && (c == 0 || head != panel->head[c - 1])
                              ? (float)attention_alibi_slope(head, sizes->heads)
                              : panel->slope[c > 0 ? c - 1 : 0];
        find_keys(panel, c, scores->a, queries, keys);
    }
}

/* True if the block mask contains the tile of a column's scores. */
static bool keeps_tile(const struct scores *scores, const struct panel *panel, int column, int64_t key) {
    int64_t tile = key / ATTENTION_MASK_TILE, bits = attention_mask_has_bits(scores->a) ? 8 : 1;
    const int64_t at[] = {panel->batch, panel->head[column], panel->row[column] / ATTENTION_MASK_TILE, tile / bits};
    int64_t byte = view_load_int(&scores->block_mask, at);
    return bits == 1 ? byte != 0 : byte >> tile % 8 & 1;
}

_Static_assert((int)KEY_TILE == (int)ATTENTION_MASK_TILE, "a tile of keys has one bit of a block mask");

void panel_find_visible(struct visible *visible, const struct panel *panel, const struct scores *scores, int64_t key,
                        int64_t keys) {
    visible->is_whole = !scores->block_mask.data && key >= panel->all_first && key + keys <= panel->all_last;
    visible->is_empty = !visible->is_whole;
    if (visible->is_whole)
        return;
    visible->is_whole = true;
    for (int c = 0; c < PANEL; c++) {
        bool is_there = c >= panel->count || !scores->block_mask.data || keeps_tile(scores, panel, c, key);
        visible->low[c] = (int32_t)max64(0, min64(panel->low[c] - key, keys));
        visible->high[c] = is_there ? (int32_t)max64(0, min64(panel->high[c] - key, keys)) : 0;
        visible->is_whole = visible->is_whole && visible->low[c] == 0 && visible->high[c] == keys;
        visible->is_empty = visible->is_empty && (c >= panel->count || visible->low[c] >= visible->high[c]);
    }
}

/* Number of consecutive columns, starting at `first`, that belong to the same head, so that their rows are consecutive.
   alike: they must also have the same is_used as the first one. */
static int run_of_head(const struct panel *panel, int first, bool alike) {
    int count = 1;
    while (first + count < panel->count && panel->head[first + count] == panel->head[first] &&
           (!alike || panel->is_used[first + count] == panel->is_used[first]))
        count++;
    return count;
}

void panel_load(const struct panel *panel, const struct bindings *bindings, const struct tensor *tensor, int64_t depth,
                float factor, float *rows, int64_t ld, float *columns) {
    memset(rows, 0, (size_t)(PANEL * ld) * sizeof *rows);
    for (int first = 0, count; first < panel->count; first += count) {
        count = run_of_head(panel, first, true);
        if (!panel->is_used[first])
            continue;
        struct rows from = rows_of(bindings, tensor, NULL, panel->batch, panel->head[first]);
        rows_load(&from, panel->row[first], count, depth, rows + first * ld, ld);
    }
    for (int64_t i = 0; factor != 1 && i < PANEL * ld; i++)
        rows[i] *= factor;
    struct gemm_matrix matrix = {.base = rows, .type = WEFT_DATA_FLOAT, .stride = ld, .depth_stride = 1};
    if (columns)
        gemm_pack_matrix(&matrix, columns, PANEL, 0, 0, PANEL, 0, (int)depth);
}

/* ---- Terms ------------------------------------------------------------------------------------------------------- */

void panel_spread(const struct panel *panel, const struct view *view, int64_t key, int64_t keys, float *to) {
    /* Scalars may have any rank. */
    bool is_scalar = view->rank != 4;
    if (panel->count < PANEL)
        memset(to, 0, (size_t)(keys * PANEL) * sizeof *to);
    for (int first = 0, count; first < panel->count; first += count) {
        count = run_of_head(panel, first, false);
        const int64_t at[] = {panel->batch, panel->head[first], panel->row[first], key};
        struct gemm_matrix matrix = {.base = view->data,
                                     .type = view->type,
                                     .stride = is_scalar || view->dims[2] == 1 ? 0 : view->strides[2],
                                     .depth_stride = is_scalar || view->dims[3] == 1 ? 0 : view->strides[3],
                                     .batch_rank = 1,
                                     .batch_dims = {INT64_MAX},
                                     .batch_strides = {1}};
        gemm_pack_matrix(&matrix, to + first, PANEL, is_scalar ? 0 : view_offset(view, at), 0, count, 0, (int)keys);
    }
}

/* The modifier's program works in place on the tile: its result is a tensor with the scores' dims whose elements are
   stored in the tile. */
static void modify(const struct scores *scores, const struct panel *panel, int64_t key, int64_t keys, float *tile) {
    const struct attention_sizes *sizes = scores->sizes;
    for (int first = 0, count; first < panel->count; first += count) {
        void *values[SCORE_MODIFIER_VALUES_MAX];
        count = run_of_head(panel, first, false);
        int64_t row = (panel->batch * sizes->heads + panel->head[first]) * sizes->keys + key;
        memcpy(values, scores->modifier_values, (size_t)scores->a->modifier.graph->value_count * sizeof *values);
        values[scores->a->modifier.output] = tile + first - key * PANEL - panel->row[first];
        program_run(scores->modifier, scores->walk, values, (struct block){tile + first, PANEL}, row, keys,
                    panel->row[first], count);
    }
}

void scores_finish(const struct scores *scores, const struct panel *panel, const struct visible *visible, int64_t key,
                   int64_t keys, float *tile, float *room) {
    if (scores->modifier)
        modify(scores, panel, key, keys, tile);
    if (scores->a->alibi)
        tile_slope(tile, keys, panel->slope, panel->row, key);
    if (scores->bias.data) {
        panel_spread(panel, &scores->bias, key, keys, room);
        if (dtype_is_boolean(scores->bias.type))
            tile_mask(tile, keys, room);
        else
            tile_add(tile, keys, room);
    }
    if (!visible->is_whole)
        tile_hide(tile, keys, visible->low, visible->high);
}

void scores_find_dropout(const struct scores *scores, const struct panel *panel, int64_t key, int64_t keys,
                         float *factors) {
    const struct view *mask = &scores->dropout_mask;
    if (!mask->data) {
        tile_drop(factors, keys, &scores->dropout, panel->line, key);
        return;
    }
    float scales[PANEL];
    for (int c = 0; c < PANEL; c++)
        scales[c] = scores->dropout.factor;
    panel_spread(panel, mask, key, keys, factors);
    tile_scale(factors, keys, scales);
}
