/* SPDX-License-Identifier: Apache-2.0 */
/* Attention backward: weights are recomputed from scores and statistics, tile by tile. A task has key and value heads
   with all query heads that read them, and one part of the keys, whose gradients it sums. It iterates over the queries
   in blocks of panels; their gradients are complete at the end of a block, or are partial sums that are added after all
   tasks. Five products per tile, [keys, queries]:

       scores = k q^T, dP = v dO^T        as in the forward pass
       dv += P dO, dk += dS q             the tile is the left factor, as stored
       dq^T += k^T dS                     the tile is the right factor

   If o has 16 bits, an earlier pass finds rows in which one weight is nearly 1 and sums their P dP. This costs one more
   product for every tile, and another one for tiles with such rows. The order of summation depends only on sizes and
   the number of threads. */
#include "base/number.h"
#include "engines/cpu/attention/attention.h"
#include "engines/cpu/attention/modifier.h"
#include "engines/cpu/core/threads.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { MOST_PANELS = 8, LEAST_SPLIT = 2 * KEY_TILE };

/* Operands of a panel, and its part of dq. */
struct query_panel {
    struct panel panel;
    bool has_nonfinite;                               /* queries or gradients contain infinities or NaN */
    float *q_columns, *q_rows, *do_columns, *do_rows; /* [depth][PANEL], [PANEL][row]; q is scaled */
    float *dq;                                        /* [depth][PANEL] */
    float statistics[PANEL], mean[PANEL];             /* mean: the sum of P dP */
    float spread[PANEL];                              /* the sum of |dO o|, if mean is computed from o */
};

/* Memory of a thread. */
struct backward_buffers {
    struct query_panel *panels;
    float *k, *v;                    /* key and value rows of a tile */
    float *dk, *dv;                  /* sums of the gradients for one part of the keys */
    float *p, *dp, *products, *room; /* [keys][PANEL]; products: before the score modifier */
    float *modified;                 /* scratch memory of the modifier */
    float *row;                      /* a row of dq */
    int64_t q_row, v_row;
};

/* Number of key heads or value heads of a task; each is shared by `share` query heads. */
static int64_t heads_of_task(const struct attention_plan *plan, int64_t share) {
    return share > 0 ? plan->unit * plan->sizes.group / share : 0;
}

static int64_t lay_out(struct backward_buffers *b, const struct attention_plan *plan, char *block) {
    const struct attention_sizes *s = &plan->sizes;
    struct buffers buffers = {.block = block};
    b->q_row = padded_row(s->depth), b->v_row = padded_row(s->value_depth);
    b->panels = buffers_alloc(&buffers, plan->panels * (int64_t)sizeof *b->panels);
    for (int64_t p = 0; p < plan->panels; p++) {
        struct query_panel none, *to = block ? &b->panels[p] : &none;
        to->q_columns = buffers_floats(&buffers, s->depth * PANEL);
        to->q_rows = buffers_floats(&buffers, b->q_row * PANEL);
        to->do_columns = buffers_floats(&buffers, s->value_depth * PANEL);
        to->do_rows = buffers_floats(&buffers, b->v_row * PANEL);
        to->dq = buffers_floats(&buffers, padded_rows(s->depth) * PANEL);
    }
    b->k = buffers_floats(&buffers, padded_rows(KEY_TILE) * b->q_row);
    b->v = buffers_floats(&buffers, padded_rows(KEY_TILE) * b->v_row);
    b->dk = buffers_floats(&buffers, heads_of_task(plan, s->k_share) * padded_rows(plan->split_keys) * b->q_row);
    b->dv = buffers_floats(&buffers, heads_of_task(plan, s->v_share) * padded_rows(plan->split_keys) * b->v_row);
    b->p = buffers_floats(&buffers, padded_rows(KEY_TILE) * PANEL);
    b->dp = buffers_floats(&buffers, padded_rows(KEY_TILE) * PANEL);
    b->products = buffers_floats(&buffers, plan->modifier ? KEY_TILE * PANEL : 0);
    b->modified = buffers_floats(&buffers, plan->modifier_floats);
    b->room = buffers_floats(&buffers, padded_rows(KEY_TILE) * PANEL);
    b->row = buffers_floats(&buffers, max64(s->depth, max64(b->q_row, b->v_row)));
    return buffers.bytes;
}

/* Tasks add to a single sum if no two of them share an element of the bias. Otherwise each thread has its own sum and a
   fixed set of tasks. */
static int64_t bias_sums(const struct attention_plan *plan, const struct sdpa_bwd_op *op) {
    const int64_t *dims = op->dbias ? op->dbias->dims.at : NULL;
    if (!dims)
        return 0;
    bool is_exclusive = dims[0] == plan->sizes.batches && dims[1] == plan->sizes.heads;
    return is_exclusive && (dims[3] == plan->sizes.keys || plan->splits == 1) ? 1 : plan->threads;
}

static int64_t bias_floats(const struct sdpa_bwd_op *op) {
    return op->dbias ? round_up(tensor_elements(op->dbias), LINE / (int64_t)sizeof(float)) : 0;
}

/* Elements of one part of dq; parts are [splits][B, Hq, Sq][depth]. */
static int64_t part_floats(const struct attention_plan *plan) {
    const struct attention_sizes *s = &plan->sizes;
    return plan->splits > 1 ? round_up(s->batches * s->heads * s->rows * s->depth, LINE / (int64_t)sizeof(float)) : 0;
}

/* Sums of P dP for rows whose o is rounded: [B, Hq, Sq]. */
static int64_t mean_floats(const struct attention_plan *plan, const struct sdpa_bwd_op *op) {
    const struct attention_sizes *s = &plan->sizes;
    int64_t rows = attention_rounds_o(op) ? s->batches * s->heads * s->rows : 0;
    return round_up(rows, LINE / (int64_t)sizeof(float));
}

void attention_plan_backward(struct attention_plan *plan, const struct sdpa_bwd_op *op) {
    const struct attention_sizes *s = &plan->sizes;
    struct backward_buffers buffers;
    plan->modifier_floats = modifier_floats(&op->a.modifier);
    /* The least common multiple of the two numbers, in groups. */
    plan->unit = s->group > 0 ? s->k_share / s->group * (s->v_share / s->group) : 1;
    int64_t groups = max64(1, s->batches * s->groups / plan->unit);
    plan->panels = max64(1, min64(MOST_PANELS, divide_up(s->columns, PANEL)));
    plan->splits = plan->threads == 1 ? 1 : max64(1, min64(2 * plan->threads / groups, s->keys / LEAST_SPLIT));
    plan->split_keys = round_up(max64(1, divide_up(s->keys, plan->splits)), KEY_TILE);
    plan->splits = max64(1, divide_up(s->keys, plan->split_keys));
    plan->thread_bytes = lay_out(&buffers, plan, NULL);
    plan->shared_bytes =
        (plan->splits * part_floats(plan) + bias_sums(plan, op) * bias_floats(op) + mean_floats(plan, op)) *
        (int64_t)sizeof(float);
}

struct backward_job {
    const struct attention_run *run;
    const struct sdpa_bwd_op *op;
    _Atomic int64_t next;
    float *dq_parts, *bias_sums;
    float *means;  /* NULL if they are computed from o */
    bool is_fixed; /* each thread has a fixed set of tasks */
};

/* ---- Panels ------------------------------------------------------------------------------------------------------ */

static float load_statistic(const struct backward_job *job, const struct panel *panel, int c) {
    struct rows rows = rows_of(&job->run->scores.bindings, job->op->stats, NULL, panel->batch, panel->head[c]);
    float statistic;
    rows_load(&rows, panel->row[c], 1, 1, &statistic, 1);
    return statistic;
}

/* A query that sees no key has no gradient and is not read. */
static void load_statistics(const struct backward_job *job, struct query_panel *to) {
    struct panel *panel = &to->panel;
    for (int c = 0; c < PANEL; c++) {
        to->statistics[c] = panel->is_used[c] ? load_statistic(job, panel, c) : 0;
        if (to->statistics[c] != -INFINITY)
            continue;
        to->statistics[c] = 0;
        panel->is_used[c] = false;
        panel->low[c] = panel->high[c] = panel->all_last = 0;
    }
}

/* Sets the sums of P dP: the known ones, or computed from o, which is loaded into the buffer for values. */
static void load_means(const struct backward_job *job, const struct backward_buffers *b, struct query_panel *to,
                       const float *known) {
    int64_t depth = job->run->plan->sizes.value_depth;
    if (!known)
        panel_load(&to->panel, &job->run->scores.bindings, job->op->o, depth, 1, b->v, b->v_row, NULL);
    for (int c = 0; c < PANEL; c++) {
        to->mean[c] = known && c < to->panel.count ? known[to->panel.line[c]] : 0, to->spread[c] = 0;
        for (int64_t d = 0; d < depth && !known; d++) {
            float product = to->do_rows[c * b->v_row + d] * b->v[c * b->v_row + d];
            to->mean[c] += product, to->spread[c] += fabsf(product);
        }
    }
}

static void load_panel(const struct backward_job *job, const struct backward_buffers *b, struct query_panel *to,
                       const float *means) {
    const struct attention_sizes *s = &job->run->plan->sizes;
    const struct scores *scores = &job->run->scores;
    load_statistics(job, to);
    panel_load(&to->panel, &scores->bindings, scores->a->q, s->depth, scores->scale, to->q_rows, b->q_row,
               to->q_columns);
    panel_load(&to->panel, &scores->bindings, job->op->d_o, s->value_depth, 1, to->do_rows, b->v_row, to->do_columns);
    load_means(job, b, to, means);
    to->has_nonfinite = tile_has_nonfinite(to->q_rows, PANEL, s->depth, b->q_row) ||
                        tile_has_nonfinite(to->do_rows, PANEL, s->value_depth, b->v_row);
    memset(to->dq, 0, (size_t)(padded_rows(s->depth) * PANEL) * sizeof *to->dq);
}

/* Stores a head's gradient or one part of it. */
static void store_panel(const struct backward_job *job, const struct backward_buffers *b,
                        const struct query_panel *from, int64_t split) {
    const struct attention_run *run = job->run;
    const struct panel *panel = &from->panel;
    int64_t depth = run->plan->sizes.depth, queries = scores_queries(&run->scores, panel->batch);
    bool is_part = run->plan->splits > 1;
    struct rows to = {0};
    for (int c = 0; c < panel->count; c++) {
        float *row = is_part ? job->dq_parts + split * part_floats(run->plan) + panel->line[c] * depth : b->row;
        for (int64_t d = 0; d < depth; d++)
            row[d] = from->dq[d * PANEL + c] * run->scores.scale;
        if (is_part)
            continue;
        if (c == 0 || panel->head[c] != panel->head[c - 1])
            to = rows_of(&run->scores.bindings, job->op->dq, NULL, panel->batch, panel->head[c]);
        rows_store(&to, panel->row[c], queries, depth, row);
    }
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------- */

/* group and the following fields: current group, its key and value heads, and the sums of their gradients. */
struct backward_task {
    int64_t batch, unit, split, thread;
    int64_t group;
    struct rows k, v;
    float *dk, *dv;
};

/* Keys and values of a tile as floats, and the sums of their gradients. */
struct gradient_tile {
    int64_t key, keys;
    float *dk, *dv;
    bool has_nonfinite;
};

/* The bias is added after the products and the modifier: its gradient is that of the scores, summed over everything
   that shares an element. */
static void add_bias_gradient(const struct backward_job *job, const struct panel *panel, const float *ds, int64_t key,
                              int64_t keys, float *sums) {
    const struct tensor *dbias = job->op->dbias;
    const int64_t *dims = dbias->dims.at;
    int64_t step = dims[3] == 1 ? 0 : 1;
    for (int c = 0; c < panel->count; c++) {
        int64_t at = dims[0] == 1 ? 0 : panel->batch;
        at = at * dims[1] + (dims[1] == 1 ? 0 : panel->head[c]);
        at = at * dims[2] + (dims[2] == 1 ? 0 : panel->row[c]);
        at = at * dims[3] + step * key;
        for (int64_t k = 0; k < keys; k++)
            sums[at + k * step] += ds[k * PANEL + c];
    }
}

/* Recomputes the weights P into b->p. */
static void compute_weights(const struct backward_job *job, const struct backward_buffers *b,
                            const struct query_panel *from, const struct gradient_tile *t,
                            const struct visible *visible) {
    const struct attention_plan *plan = job->run->plan;
    const struct scores *scores = &job->run->scores;
    small_product(plan->kernel, t->keys, from->panel.count, plan->sizes.depth, (struct small_factor){b->k, b->q_row, 1},
                  (struct small_factor){from->q_columns, 0, PANEL}, b->p, PANEL, false);
    if (scores->modifier)
        memcpy(b->products, b->p, (size_t)(t->keys * PANEL) * sizeof *b->p);
    scores_finish(scores, &from->panel, visible, t->key, t->keys, b->p, b->room);
    tile_weigh(b->p, t->keys, from->statistics);
}

/* Computes dP, including dropout, whose factors remain in b->room. */
static void differentiate_weights(const struct backward_job *job, const struct backward_buffers *b,
                                  const struct query_panel *from, const struct gradient_tile *t) {
    const struct attention_plan *plan = job->run->plan;
    const struct scores *scores = &job->run->scores;
    small_product(plan->kernel, t->keys, from->panel.count, plan->sizes.value_depth,
                  (struct small_factor){b->v, b->v_row, 1}, (struct small_factor){from->do_columns, 0, PANEL}, b->dp,
                  PANEL, false);
    if (scores->drops) {
        scores_find_dropout(scores, &from->panel, t->key, t->keys, b->room);
        tile_multiply(b->dp, t->keys, b->room);
    }
}

/* Turns weights and dP into gradients of the products (dp), and applies dropout to p, which becomes the factor of
   dv. */
static void differentiate(const struct backward_job *job, const struct backward_buffers *b,
                          const struct query_panel *from, const struct gradient_tile *t, float *bias_sums) {
    const struct scores *scores = &job->run->scores;
    const struct panel *panel = &from->panel;
    differentiate_weights(job, b, from, t);
    tile_gradient(b->dp, t->keys, b->p, from->mean);
    if (bias_sums)
        add_bias_gradient(job, panel, b->dp, t->key, t->keys, bias_sums);
    if (scores->modifier)
        modifier_carry(scores, panel, t->key, t->keys, b->products, b->p, b->dp, b->modified);
    if (scores->drops)
        tile_multiply(b->p, t->keys, b->room);
}

/* Clears the padding rows, because kernels multiply whole blocks of rows, and the gradients of the next tile follow
   those of this one in memory. */
static void clear_padding(const struct attention_plan *plan, const struct backward_buffers *b, int64_t keys) {
    size_t padding = (size_t)((round_up(keys, plan->kernel->rows) - keys) * PANEL);
    memset(b->p + keys * PANEL, 0, padding * sizeof *b->p);
    memset(b->dp + keys * PANEL, 0, padding * sizeof *b->dp);
}

static void add_gradients(const struct attention_plan *plan, const struct backward_buffers *b,
                          const struct query_panel *from, const struct gradient_tile *t) {
    const struct attention_sizes *s = &plan->sizes;
    struct small_factor p = {b->p, PANEL, 1}, ds = {b->dp, PANEL, 1}, k = {b->k, 1, b->q_row};
    struct small_factor d_o = {from->do_rows, 0, b->v_row}, q = {from->q_rows, 0, b->q_row};
    int64_t count = from->panel.count;
    if (from->has_nonfinite || t->has_nonfinite) {
        tile_product_of_some(t->keys, s->value_depth, count, p, d_o, t->dv, b->v_row, true);
        tile_product_of_some(t->keys, s->depth, count, ds, q, t->dk, b->q_row, true);
        tile_product_of_some(s->depth, count, t->keys, k, (struct small_factor){b->dp, 0, PANEL}, from->dq, PANEL,
                             false);
        return;
    }
    small_product(plan->kernel, t->keys, s->value_depth, count, p, d_o, t->dv, b->v_row, true);
    small_product(plan->kernel, t->keys, s->depth, count, ds, q, t->dk, b->q_row, true);
    small_product(plan->kernel, s->depth, count, t->keys, k, (struct small_factor){b->dp, 0, PANEL}, from->dq, PANEL,
                  true);
}

/* Adds the contributions of a panel and a tile of keys to each other's gradients. */
static void visit_tile(const struct backward_job *job, const struct backward_buffers *b, const struct query_panel *from,
                       const struct gradient_tile *t, float *bias_sums) {
    struct visible visible;
    panel_find_visible(&visible, &from->panel, &job->run->scores, t->key, t->keys);
    if (visible.is_empty)
        return;
    compute_weights(job, b, from, t, &visible);
    differentiate(job, b, from, t, bias_sums);
    clear_padding(job->run->plan, b, t->keys);
    add_gradients(job->run->plan, b, from, t);
}

/* ---- Rows with one dominant weight ------------------------------------------------------------------------------- */

/* Some panels of a group of heads, and the keys that they see. */
struct row_block {
    struct rows k, v;
    int64_t panels, first, last;
    bool is_saturated[MOST_PANELS];
    struct {
        float total[PANEL], largest[PANEL], sum[PANEL];
    } of[MOST_PANELS];
};

/* Iterates over all tiles of a block: without values, it counts weights; with them, it sums their products. */
static void pass_tiles(const struct backward_job *job, const struct backward_buffers *b, struct row_block *block,
                       bool has_values) {
    const struct attention_sizes *s = &job->run->plan->sizes;
    for (int64_t key = block->first - block->first % KEY_TILE; key < block->last; key += KEY_TILE) {
        struct gradient_tile tile = {.key = key, .keys = min64(KEY_TILE, block->last - key)};
        rows_load(&block->k, key, tile.keys, s->depth, b->k, b->q_row);
        if (has_values)
            rows_load(&block->v, key, tile.keys, s->value_depth, b->v, b->v_row);
        for (int64_t p = 0; p < block->panels; p++) {
            struct visible visible;
            panel_find_visible(&visible, &b->panels[p].panel, &job->run->scores, key, tile.keys);
            if (visible.is_empty || (has_values && !block->is_saturated[p]))
                continue;
            compute_weights(job, b, &b->panels[p], &tile, &visible);
            if (has_values) {
                differentiate_weights(job, b, &b->panels[p], &tile);
                tile_collect(b->dp, tile.keys, b->p, block->of[p].sum);
            } else {
                tile_count(b->p, tile.keys, block->of[p].total, block->of[p].largest);
            }
        }
    }
}

/* The weight of a row's sink. */
static double sink_weight(const struct scores *scores, const struct query_panel *from, int c) {
    if (!scores->a->sink)
        return 0;
    struct view sink = view_of(&scores->bindings, scores->a->sink);
    const int64_t index[] = {0, from->panel.head[c], 0, 0};
    double above = view_load(&sink, index) - from->statistics[c];
    return exp(above > 0 ? 0 : above);
}

/* True if a row sums P dP directly from its weights. The total of the weights shows the rounding error of the
   statistics, so sums are divided by it. */
static bool is_saturated(const struct backward_job *job, const struct backward_buffers *b,
                         const struct row_block *block, int64_t p, int c, double *total) {
    *total = block->of[p].total[c] + sink_weight(&job->run->scores, &b->panels[p], c);
    return b->panels[p].panel.is_used[c] && attention_is_saturated(job->op, block->of[p].largest[c], *total);
}

/* Sums P dP for a block of panels. */
static void sum_block(const struct backward_job *job, const struct backward_buffers *b, int64_t batch, int64_t group,
                      int64_t column) {
    const struct attention_plan *plan = job->run->plan;
    const struct attention_sizes *s = &plan->sizes;
    const struct scores *scores = &job->run->scores;
    struct row_block block = {.panels = min64(plan->panels, divide_up(s->columns - column, PANEL)), .first = INT64_MAX};
    bool is_any = false;
    double total;
    block.k = rows_of(&scores->bindings, job->op->a.k, NULL, batch, group * s->group / s->k_share);
    block.v = rows_of(&scores->bindings, job->op->a.v, NULL, batch, group * s->group / s->v_share);
    for (int64_t p = 0; p < block.panels; p++) {
        struct query_panel *panel = &b->panels[p];
        panel_init(&panel->panel, scores, batch, group, column + p * PANEL);
        load_panel(job, b, panel, NULL);
        block.first = min64(block.first, panel->panel.first_key), block.last = max64(block.last, panel->panel.last_key);
    }
    pass_tiles(job, b, &block, false);
    for (int64_t p = 0; p < block.panels; p++) {
        for (int c = 0; c < b->panels[p].panel.count; c++)
            block.is_saturated[p] = block.is_saturated[p] || is_saturated(job, b, &block, p, c, &total);
        is_any = is_any || block.is_saturated[p];
    }
    if (is_any)
        pass_tiles(job, b, &block, true);
    for (int64_t p = 0; p < block.panels; p++) {
        const struct query_panel *panel = &b->panels[p];
        for (int c = 0; c < panel->panel.count; c++) {
            double sum = panel->mean[c];
            if (is_saturated(job, b, &block, p, c, &total))
                sum = attention_better_sum(job->op, block.of[p].sum[c] / total, sum, panel->spread[c]);
            job->means[panel->panel.line[c]] = (float)sum;
        }
    }
}

/* Thread main loop: processes blocks until none is left. */
static void sum_rows(void *context, int64_t thread) {
    struct backward_job *job = context;
    const struct attention_plan *plan = job->run->plan;
    int64_t columns = plan->panels * PANEL, blocks = divide_up(plan->sizes.columns, columns),
            groups = plan->sizes.groups;
    struct backward_buffers buffers;
    lay_out(&buffers, plan, job->run->workspace + plan->shared_bytes + thread * plan->thread_bytes);
    for (;;) {
        int64_t index = atomic_fetch_add(&job->next, 1), outer = blocks > 0 ? index / blocks : 0;
        if (index >= plan->sizes.batches * groups * blocks)
            return;
        sum_block(job, &buffers, outer / groups, outer % groups, index % blocks * columns);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

/* Processes a block of panels with all keys of the task. */
static void run_block(const struct backward_job *job, const struct backward_buffers *b,
                      const struct backward_task *task, int64_t column) {
    const struct attention_plan *plan = job->run->plan;
    const struct attention_sizes *s = &plan->sizes;
    int64_t panels = min64(plan->panels, divide_up(s->columns - column, PANEL)), first = INT64_MAX, last = 0;
    int64_t begin = task->split * plan->split_keys;
    float *bias = job->bias_sums + (job->is_fixed ? task->thread * bias_floats(job->op) : 0);
    for (int64_t p = 0; p < panels; p++) {
        panel_init(&b->panels[p].panel, &job->run->scores, task->batch, task->group, column + p * PANEL);
        load_panel(job, b, &b->panels[p], job->means);
        first = min64(first, b->panels[p].panel.first_key), last = max64(last, b->panels[p].panel.last_key);
    }
    last = min64(last, begin + plan->split_keys);
    for (int64_t key = max64(first - first % KEY_TILE, begin); key < last; key += KEY_TILE) {
        const int64_t next = key + KEY_TILE;
        struct gradient_tile tile = {.key = key, .keys = min64(KEY_TILE, last - key)};
        tile.dk = task->dk + (key - begin) * b->q_row, tile.dv = task->dv + (key - begin) * b->v_row;
        rows_load(&task->k, key, tile.keys, s->depth, b->k, b->q_row);
        rows_load(&task->v, key, tile.keys, s->value_depth, b->v, b->v_row);
        tile.has_nonfinite = tile_has_nonfinite(b->k, tile.keys, s->depth, b->q_row);
        for (int64_t p = 0; p < panels; p++) {
            rows_fetch(&task->k, next, min64(KEY_TILE, last - next), s->depth, p, panels);
            rows_fetch(&task->v, next, min64(KEY_TILE, last - next), s->value_depth, p, panels);
            visit_tile(job, b, &b->panels[p], &tile, job->op->dbias ? bias : NULL);
        }
    }
    for (int64_t p = 0; p < panels; p++)
        store_panel(job, b, &b->panels[p], task->split);
}

/* Stores the sums of a task's key heads or value heads. sums: the sums of the first head. */
static void store_keys(const struct backward_job *job, const struct backward_task *task, const struct tensor *tensor,
                       int64_t share, const float *sums, int64_t ld) {
    const struct attention_plan *plan = job->run->plan;
    int64_t begin = task->split * plan->split_keys, keys = min64(plan->split_keys, plan->sizes.keys - begin);
    int64_t used = scores_keys(&job->run->scores, task->batch), heads = heads_of_task(plan, share);
    for (int64_t head = 0; head < heads; head++, sums += padded_rows(plan->split_keys) * ld) {
        struct rows to = rows_of(&job->run->scores.bindings, tensor, NULL, task->batch, task->unit * heads + head);
        for (int64_t i = 0; i < keys; i++)
            rows_store(&to, begin + i, used, tensor->dims.at[3], sums + i * ld);
    }
}

static void run_task(const struct backward_job *job, const struct backward_buffers *b, struct backward_task task) {
    const struct attention_plan *plan = job->run->plan;
    const struct attention_sizes *s = &plan->sizes;
    const struct bindings *bindings = &job->run->scores.bindings;
    int64_t k_floats = padded_rows(plan->split_keys) * b->q_row, v_floats = padded_rows(plan->split_keys) * b->v_row;
    memset(b->dk, 0, (size_t)(heads_of_task(plan, s->k_share) * k_floats) * sizeof *b->dk);
    memset(b->dv, 0, (size_t)(heads_of_task(plan, s->v_share) * v_floats) * sizeof *b->dv);
    for (int64_t i = 0; i < plan->unit; i++) {
        int64_t head = i * s->group, first = task.unit * plan->unit * s->group;
        task.group = task.unit * plan->unit + i;
        task.k = rows_of(bindings, job->op->a.k, NULL, task.batch, (first + head) / s->k_share);
        task.v = rows_of(bindings, job->op->a.v, NULL, task.batch, (first + head) / s->v_share);
        task.dk = b->dk + head / s->k_share * k_floats, task.dv = b->dv + head / s->v_share * v_floats;
        for (int64_t column = 0; column < s->columns; column += plan->panels * PANEL)
            run_block(job, b, &task, column);
    }
    store_keys(job, &task, job->op->dk, s->k_share, b->dk, b->q_row);
    store_keys(job, &task, job->op->dv, s->v_share, b->dv, b->v_row);
}

/* Thread main loop: processes tasks until none is left, or a fixed set, so that its sums contain the same tasks in each
   run. */
static void run_tasks(void *context, int64_t thread) {
    struct backward_job *job = context;
    const struct attention_plan *plan = job->run->plan;
    int64_t units = plan->sizes.groups / plan->unit, tasks = plan->sizes.batches * units * plan->splits, index = thread;
    struct backward_buffers buffers;
    lay_out(&buffers, plan, job->run->workspace + plan->shared_bytes + thread * plan->thread_bytes);
    for (;; index += plan->threads) {
        if (!job->is_fixed)
            index = atomic_fetch_add(&job->next, 1);
        if (index >= tasks)
            return;
        int64_t at = index / plan->splits;
        run_task(job, &buffers,
                 (struct backward_task){at / units, at % units, index % plan->splits, thread, .group = 0});
    }
}

/* ---- Combining the sums of tasks --------------------------------------------------------------------------------- */

/* Adds the parts of dq for one head of a batch entry. */
static void join_parts(void *context, int64_t task) {
    const struct backward_job *job = context;
    const struct attention_plan *plan = job->run->plan;
    int64_t heads = plan->sizes.heads, rows = plan->sizes.rows, depth = plan->sizes.depth, stride = part_floats(plan);
    struct rows to = rows_of(&job->run->scores.bindings, job->op->dq, NULL, task / heads, task % heads);
    for (int64_t row = 0; row < rows; row++) {
        float *sum = job->dq_parts + (task * rows + row) * depth;
        for (int64_t i = 1; i < plan->splits; i++)
            for (int64_t d = 0; d < depth; d++)
                sum[d] += sum[i * stride + d];
        rows_store(&to, row, scores_queries(&job->run->scores, task / heads), depth, sum);
    }
}

/* Stores dbias for one of its heads. */
static void store_bias(void *context, int64_t task) {
    const struct backward_job *job = context;
    const int64_t *dims = job->op->dbias->dims.at;
    int64_t sums = bias_sums(job->run->plan, job->op), stride = bias_floats(job->op);
    struct rows to = rows_of(&job->run->scores.bindings, job->op->dbias, NULL, task / dims[1], task % dims[1]);
    for (int64_t row = 0; row < dims[2]; row++) {
        float *sum = job->bias_sums + (task * dims[2] + row) * dims[3];
        for (int64_t i = 1; i < sums; i++)
            for (int64_t d = 0; d < dims[3]; d++)
                sum[d] += sum[i * stride + d];
        rows_store(&to, row, dims[2], dims[3], sum);
    }
}

/* A row's contribution to the gradient of its head's sink, which acts as a score whose value is 0. */
static double sink_gradient(const struct panel *panel, int c, const struct query_panel *from, double sink) {
    double above = sink - from->statistics[c];
    return panel->is_used[c] ? -exp(above > 0 ? 0 : above) * from->mean[c] : 0;
}

/* Computes dsink on one thread; reads dO and o again. */
static void store_sinks(const struct backward_job *job) {
    const struct attention_plan *plan = job->run->plan;
    const struct attention_sizes *s = &plan->sizes;
    const struct bindings *bindings = &job->run->scores.bindings;
    struct view sink = view_of(bindings, job->op->a.sink), to = view_of(bindings, job->op->dsink);
    struct backward_buffers b;
    lay_out(&b, plan, job->run->workspace + plan->shared_bytes);
    for (int64_t head = 0; head < s->heads; head++) {
        const int64_t index[] = {0, head, 0, 0};
        double score = view_load(&sink, index), sum = 0;
        for (int64_t batch = 0; batch < s->batches && score != -INFINITY; batch++) {
            int64_t begin = head % s->group * s->rows;
            for (int64_t row = 0; row < s->rows; row += PANEL) {
                struct panel *panel = &b.panels[0].panel;
                panel_init(panel, &job->run->scores, batch, head / s->group, begin + row);
                load_panel(job, &b, &b.panels[0], job->means);
                for (int c = 0; c < panel->count; c++)
                    sum += panel->head[c] == head ? sink_gradient(panel, c, &b.panels[0], score) : 0;
            }
        }
        view_store(&to, index, sum);
    }
}

void attention_backward(const struct attention_run *run, const struct sdpa_bwd_op *op) {
    const struct attention_plan *plan = run->plan;
    struct backward_job job = {.run = run, .op = op, .dq_parts = (float *)run->workspace};
    job.bias_sums = job.dq_parts + plan->splits * part_floats(plan);
    job.is_fixed = bias_sums(plan, op) > 1;
    memset(job.bias_sums, 0, (size_t)(bias_sums(plan, op) * bias_floats(op)) * sizeof *job.bias_sums);
    if (attention_rounds_o(op)) {
        job.means = job.bias_sums + bias_sums(plan, op) * bias_floats(op);
        threads_for(plan->threads, sum_rows, &job);
        atomic_store(&job.next, 0);
    }
    threads_for(plan->threads, run_tasks, &job);
    if (plan->splits > 1)
        threads_for(plan->sizes.batches * plan->sizes.heads, join_parts, &job);
    if (op->dbias && view_of(&run->scores.bindings, op->dbias).data)
        threads_for(op->dbias->dims.at[0] * op->dbias->dims.at[1], store_bias, &job);
    if (op->dsink && view_of(&run->scores.bindings, op->dsink).data)
        store_sinks(&job);
}
