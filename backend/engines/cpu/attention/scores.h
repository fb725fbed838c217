/* SPDX-License-Identifier: Apache-2.0 */
/* The terms of attention scores in addition to queries and keys: visible keys, bias, masks, ALiBi, score modifier,
   dropout. Shared by forward and backward, as tiles of [keys, PANEL]. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_SCORES_H
#define WEFT_ENGINES_CPU_ATTENTION_SCORES_H

#include "engines/cpu/attention/memory.h"
#include "engines/cpu/attention/tile.h"
#include "engines/cpu/core/rows_columns.h"
#include "graph/ops/attention.h"

/* Sizes of the operation. Query heads that share key and value heads form a group; its queries, head after head, are
   the columns that are divided into panels. */
struct attention_sizes {
    int64_t batches, heads, rows, keys, depth, value_depth;
    int64_t k_share, v_share;       /* query heads per key head, per value head */
    int64_t group, groups, columns; /* heads per group, groups per batch entry, columns per group */
};

/* State of one execution. */
struct scores {
    const struct attention *a;
    const struct attention_sizes *sizes;
    const struct program *modifier;  /* or NULL */
    const struct rows_columns *walk; /* loops of the modifier: keys are its rows, queries its columns */
    void *const *modifier_values;
    struct bindings bindings;
    struct view bias, seq_len_q, seq_len_kv, cu_seq_len_q, cu_seq_len_kv, block_mask, dropout_mask;
    float scale;
    bool drops;
    struct tile_dropout dropout;
};

/* Up to PANEL queries of one group. Columns past `count` see all keys, so they require no mask, and their results are
   not read. */
struct panel {
    int count;
    int64_t batch, first_key, last_key;           /* keys that any of them sees: [first_key, last_key) */
    int64_t all_first, all_last;                  /* keys that all of them see */
    int64_t head[PANEL], row[PANEL], line[PANEL]; /* line: index among all rows of scores, for dropout */
    int64_t low[PANEL], high[PANEL];              /* keys that each sees: [low, high) */
    bool is_used[PANEL];                          /* the query is within the used length */
    float slope[PANEL];
};

struct attention_sizes attention_sizes_of(const struct attention *a);
struct scores scores_of(const struct attention *a, const struct attention_sizes *sizes,
                        const struct bindings *bindings);

/* Number of queries, or keys, in use in a batch entry. */
int64_t scores_queries(const struct scores *scores, int64_t batch);
int64_t scores_keys(const struct scores *scores, int64_t batch);

/* Initializes the panel of a group that starts at a column. */
void panel_init(struct panel *panel, const struct scores *scores, int64_t batch, int64_t group, int64_t column);

/* Keys that the columns see, relative to a tile; a tile starts at a multiple of KEY_TILE. */
struct visible {
    int32_t low[PANEL], high[PANEL]; /* not set if each column sees all keys */
    bool is_empty, is_whole;         /* no column sees any key; each column sees all keys */
};
void panel_find_visible(struct visible *visible, const struct panel *panel, const struct scores *scores, int64_t key,
                        int64_t keys);

/* Turns products of scaled queries and keys into scores; -inf where a key is not seen. room: another tile. */
void scores_finish(const struct scores *scores, const struct panel *panel, const struct visible *visible, int64_t key,
                   int64_t keys, float *tile, float *room);

/* Computes the dropout factors for the weights of a tile. */
void scores_find_dropout(const struct scores *scores, const struct panel *panel, int64_t key, int64_t keys,
                         float *factors);

/* Loads a tensor that broadcasts to the scores, or a scalar, into a tile of floats; missing columns get 0. */
void panel_spread(const struct panel *panel, const struct view *view, int64_t key, int64_t keys, float *to);

/* Loads queries as floats with pitch ld, and transposed as [depth, PANEL]; unused ones are 0. */
void panel_load(const struct panel *panel, const struct bindings *bindings, const struct tensor *tensor, int64_t depth,
                float factor, float *rows, int64_t ld, float *columns);

#endif
