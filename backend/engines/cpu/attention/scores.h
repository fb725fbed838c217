/* SPDX-License-Identifier: Apache-2.0 */
/* What the scores of attention depend on beside queries and keys: which keys a query sees, bias, masks, ALiBi, score
   modifier, dropout. Forward and backward have them alike, as tiles of [keys, PANEL]. */
#ifndef WEFT_ENGINES_CPU_ATTENTION_SCORES_H
#define WEFT_ENGINES_CPU_ATTENTION_SCORES_H

#include "engines/cpu/attention/memory.h"
#include "engines/cpu/attention/tile.h"
#include "engines/cpu/core/rows_columns.h"
#include "graph/ops/attention.h"

/* Sizes, as the operation has them. Query heads that share key and value heads make a group; its queries, head after
   head, are the columns that panels are cut of. */
struct attention_sizes {
    int64_t batches, heads, rows, keys, depth, value_depth;
    int64_t k_share, v_share;       /* query heads that share a head of keys, of values */
    int64_t group, groups, columns; /* heads of a group, groups of a batch entry, columns of a group */
};

/* One execution. */
struct scores {
    const struct attention *a;
    const struct attention_sizes *sizes;
    const struct program *modifier;  /* NULL: none */
    const struct rows_columns *walk; /* of it: keys are its rows, queries its columns */
    void *const *modifier_values;
    struct bindings bindings;
    struct view bias, seq_len_q, seq_len_kv, cu_seq_len_q, cu_seq_len_kv, block_mask, dropout_mask;
    float scale;
    bool drops;
    struct tile_dropout dropout;
};

/* Up to PANEL queries of one group. Columns beyond count see all keys: they ask for no mask, and nobody reads them. */
struct panel {
    int count;
    int64_t batch, first_key, last_key;           /* keys that any of them sees: [first_key, last_key) */
    int64_t all_first, all_last;                  /* keys that each of them sees */
    int64_t head[PANEL], row[PANEL], line[PANEL]; /* line: of all rows of scores, for dropout */
    int64_t low[PANEL], high[PANEL];              /* keys that each sees: [low, high) */
    bool is_used[PANEL];                          /* the query is within those in use */
    float slope[PANEL];
};

struct attention_sizes attention_sizes_of(const struct attention *a);
struct scores scores_of(const struct attention *a, const struct attention_sizes *sizes,
                        const struct bindings *bindings);

/* Queries, or keys, in use of a batch entry. */
int64_t scores_queries(const struct scores *scores, int64_t batch);
int64_t scores_keys(const struct scores *scores, int64_t batch);

/* The panel of a group that begins at a column. */
void panel_make(struct panel *panel, const struct scores *scores, int64_t batch, int64_t group, int64_t column);

/* Keys of a tile that columns see, in it; a tile begins at a multiple of KEY_TILE. */
struct seen {
    int32_t low[PANEL], high[PANEL]; /* not set where each sees all */
    bool is_empty, is_whole;         /* no column sees any, each sees all */
};
void panel_look(struct seen *seen, const struct panel *panel, const struct scores *scores, int64_t key, int64_t keys);

/* From products of scaled queries with keys to scores, -inf where a key is not seen. room: another tile. */
void scores_finish(const struct scores *scores, const struct panel *panel, const struct seen *seen, int64_t key,
                   int64_t keys, float *tile, float *room);

/* What dropout multiplies the weights of a tile by. */
void scores_find_kept(const struct scores *scores, const struct panel *panel, int64_t key, int64_t keys,
                      float *factors);

/* A tensor that broadcasts to the scores, or a scalar, as a tile of floats; columns that are not there get 0. */
void panel_spread(const struct panel *panel, const struct view *view, int64_t key, int64_t keys, float *to);

/* Queries as floats, `ld` apart, and the same transposed, [depth, PANEL]; 0 for what is not in use. */
void panel_load(const struct panel *panel, const struct bindings *bindings, const struct tensor *tensor, int64_t depth,
                float factor, float *rows, int64_t ld, float *columns);

#endif
