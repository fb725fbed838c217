/* SPDX-License-Identifier: Apache-2.0 */
/* Attention forward: online softmax over tiles of keys. A task is a block of columns of one group, or the few columns
   of several groups, and one part of the keys. Scores and results are transposed, [keys, queries] and [depth, queries],
   so that both products read their operands as stored and the softmax runs down the columns:

       tile of keys and of values       as floats, per thread, in L2; read once for all panels of the task
         panel of queries [depth, 32]   packed once for a task, in L2
           scores [keys, 32]            product, terms, softmax, in L1
           result [depth of values, 32] sums, in L2

   If there were few tasks, keys are split, and the parts of a column are combined after all tasks. If there are few
   columns, memory bandwidth is the limit: a task reads a tile of every group before the next tile, because heads are
   adjacent within a row, and streams of 256 bytes from every 2 KiB are half as fast.

   If operands and result are bf16 and the CPU has AMX, keys, values, queries and weights are packed for AMX (packed.h)
   instead of being converted to float; scores, softmax and sums are still float. */
#include "base/number.h"
#include "engines/cpu/attention/attention.h"
#include "engines/cpu/attention/packed.h"
#include "engines/cpu/core/threads.h"
#include "engines/cpu/product/gemm.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { MOST_FEW = 6, MOST_PANELS = 16, LEAST_SPLIT = 4 * KEY_TILE, TASKS_PER_THREAD = 4 };

/* The keys and values of one group. */
struct key_rows {
    struct rows k, v;
};

/* Memory of a thread. */
struct forward_buffers {
    struct panel *panels;
    struct key_rows *key_rows; /* [groups] */
    /* [panels][depth][PANEL], packed: pairs; [panels][depth of values][PANEL]; few queries: [panels][rows] */
    float *q, *o;
    float *max, *sum;                         /* [panels][PANEL] */
    float *k, *v;                             /* key and value rows of a tile */
    float *tile, *room;                       /* [keys][PANEL] */
    float *rows;                              /* scores of a few queries, [MOST_FEW][KEY_TILE] */
    float *columns;                           /* packed: queries before packing */
    uint32_t *packed_k, *packed_v, *pairs;    /* packed: a tile of keys, of values, of weights */
    float *row;                               /* PANEL queries */
    float *result;                            /* rows, [PANEL][v_row] */
    int64_t k_row, v_row, q_floats, o_floats; /* distances between rows and between panels */
};

static int64_t lay_out(struct forward_buffers *b, const struct attention_plan *plan, char *block) {
    const struct attention_sizes *s = &plan->sizes;
    struct buffers buffers = {.block = block};
    b->k_row = padded_row(s->depth), b->v_row = padded_row(s->value_depth);
    b->q_floats = plan->has_few_queries ? MOST_FEW * b->k_row
                  : plan->is_packed     ? packed_floats(PANEL, s->depth)
                                        : s->depth * PANEL;
    b->o_floats = plan->has_few_queries ? MOST_FEW * b->v_row : packed_size(padded_rows(s->value_depth)) * PANEL;
    b->panels = buffers_alloc(&buffers, plan->panels * (int64_t)sizeof *b->panels);
    b->key_rows = buffers_alloc(&buffers, plan->groups * (int64_t)sizeof *b->key_rows);
    b->q = buffers_floats(&buffers, plan->panels * b->q_floats);
    b->o = buffers_floats(&buffers, plan->panels * b->o_floats);
    b->max = buffers_floats(&buffers, plan->panels * PANEL);
    b->sum = buffers_floats(&buffers, plan->panels * PANEL);
    b->k = buffers_floats(&buffers, padded_rows(KEY_TILE) * b->k_row);
    b->v = buffers_floats(&buffers, padded_rows(KEY_TILE) * b->v_row);
    b->tile = buffers_floats(&buffers, padded_rows(KEY_TILE) * PANEL);
    b->room = buffers_floats(&buffers, padded_rows(KEY_TILE) * PANEL);
    b->row = buffers_floats(&buffers, PANEL * b->k_row);
    b->columns = buffers_floats(&buffers, plan->is_packed ? packed_size(s->depth) * PANEL : 0);
    b->packed_k = buffers_alloc(&buffers, plan->is_packed ? 4 * packed_floats(KEY_TILE, s->depth) : 0);
    b->packed_v = buffers_alloc(&buffers, plan->is_packed ? 4 * packed_floats(s->value_depth, KEY_TILE) : 0);
    b->pairs = buffers_alloc(&buffers, plan->is_packed ? 4 * packed_floats(KEY_TILE, PANEL) : 0);
    b->rows = buffers_floats(&buffers, plan->has_few_queries ? MOST_FEW * KEY_TILE : 0);
    b->result = buffers_floats(&buffers, PANEL * b->v_row);
    return buffers.bytes;
}

/* Floats in one part of a column: value_depth sums, the maximum score and the sum of weights. */
static int64_t part_floats(const struct attention_plan *plan) { return plan->sizes.value_depth + 2; }

/* Number of blocks of groups per batch entry. */
static int64_t group_blocks(const struct attention_plan *plan) { return divide_up(plan->sizes.groups, plan->groups); }

/* The rounding of weights to bf16 may change a bf16 result by one rounding. With few queries, reading the keys is
   limited by memory anyway. */
bool attention_is_packed(const struct attention_sizes *s, const struct sdpa_fwd_op *op) {
    const struct tensor *tensors[] = {op->a.q, op->a.k, op->a.v, op->o};
    for (int i = 0; i < 4; i++)
        if (tensors[i]->type != WEFT_DATA_BFLOAT16 || tensors[i]->strides.at[3] != 1)
            return false;
    return s->columns > MOST_FEW && packed_runs();
}

void attention_plan_forward(struct attention_plan *plan, const struct sdpa_fwd_op *op) {
    const struct attention_sizes *s = &plan->sizes;
    int64_t groups = s->batches * s->groups, panels = divide_up(s->columns, PANEL);
    int64_t wanted = (int64_t)plan->threads * TASKS_PER_THREAD, most_splits = max64(1, s->keys / LEAST_SPLIT);
    struct forward_buffers buffers;
    plan->has_few_queries = s->columns <= MOST_FEW;
    plan->is_packed = attention_is_packed(s, op);
    plan->panels = max64(1, min64(MOST_PANELS, groups * panels * (plan->has_few_queries ? most_splits : 1) / wanted));
    if (plan->has_few_queries)
        plan->panels = max64(1, min64(plan->panels, s->groups));
    plan->groups = plan->has_few_queries ? plan->panels : 1;
    plan->blocks = plan->has_few_queries ? 1 : divide_up(panels, plan->panels);
    int64_t tasks = max64(1, s->batches * group_blocks(plan) * plan->blocks);
    plan->splits = plan->threads == 1 ? 1 : min64(divide_up(wanted, tasks), most_splits);
    /* There are enough tasks without splitting. */
    if (tasks >= wanted / 2)
        plan->splits = 1;
    plan->split_keys = round_up(max64(1, divide_up(s->keys, plan->splits)), KEY_TILE);
    plan->splits = max64(1, divide_up(s->keys, plan->split_keys));
    plan->thread_bytes = lay_out(&buffers, plan, NULL);
    plan->shared_bytes =
        plan->splits > 1 ? round_up(groups * s->columns * plan->splits * part_floats(plan) * 4, LINE) : 0;
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

/* The results of one head. */
struct head_results {
    struct rows o, stats, max, sum_exp;
    float sink;
    int64_t queries;
};

struct forward_job {
    const struct attention_run *run;
    const struct sdpa_fwd_op *op;
    _Atomic int64_t next;
};

static struct head_results results_of(const struct forward_job *job, int64_t batch, int64_t head) {
    const struct bindings *bindings = &job->run->scores.bindings;
    const struct sdpa_fwd_op *op = job->op;
    struct view sink = view_of(bindings, op->a.sink);
    return (struct head_results){
        .o = rows_of(bindings, op->o, NULL, batch, head),
        .stats = rows_of(bindings, op->stats, NULL, batch, head),
        .max = rows_of(bindings, op->max, NULL, batch, head),
        .sum_exp = rows_of(bindings, op->sum_exp, NULL, batch, head),
        .sink = sink.data ? (float)view_load(&sink, (const int64_t[]){0, head, 0, 0}) : -INFINITY,
        .queries = scores_queries(&job->run->scores, batch),
    };
}

/* Stores one row; o contains its sum of weighted values. The sink contributes to the sum but has no value. A row
   without keys and sink is 0. */
static void store_row(const struct head_results *to, int64_t row, int64_t depth, float *o, float max, float sum) {
    float sink = row < to->queries ? to->sink : -INFINITY, top = sink > max ? sink : max;
    double shrunk = top == -INFINITY ? 0 : top == max ? 1 : exp((double)max - top);
    double total = sink == -INFINITY ? sum * shrunk : sum * shrunk + exp((double)sink - top);
    float factor = total == 0 ? 0 : (float)(shrunk / total);
    for (int64_t d = 0; d < depth; d++)
        o[d] *= factor;
    rows_store(&to->o, row, to->queries, depth, o);
    if (to->stats.base)
        rows_store(&to->stats, row, to->queries, 1, &(float){total == 0 ? -INFINITY : (float)(top + log(total))});
    rows_store(&to->max, row, to->queries, 1, &top);
    rows_store(&to->sum_exp, row, to->queries, 1, &(float){(float)total});
}

/* The parts of a column are contiguous. */
static float *part_of(const struct attention_run *run, int64_t column, int64_t split) {
    return (float *)run->workspace + (column * run->plan->splits + split) * part_floats(run->plan);
}

/* Combines the parts of columns; a task is one head of a batch entry. */
static void join_parts(void *context, int64_t task) {
    const struct forward_job *job = context;
    const struct attention_plan *plan = job->run->plan;
    int64_t heads = plan->sizes.heads, rows = plan->sizes.rows, depth = plan->sizes.value_depth;
    struct head_results results = results_of(job, task / heads, task % heads);
    for (int64_t row = 0; row < rows; row++) {
        float *o = part_of(job->run, task * rows + row, 0), max = -INFINITY, sum = 0;
        for (int64_t i = 0; i < plan->splits; i++)
            max = o[i * (depth + 2) + depth] > max ? o[i * (depth + 2) + depth] : max;
        for (int64_t i = 0; i < plan->splits; i++) {
            const float *part = o + i * (depth + 2);
            float factor = max == -INFINITY ? 0 : (float)exp((double)part[depth] - max);
            sum += factor * part[depth + 1];
            for (int64_t d = 0; d < depth; d++)
                o[d] = i == 0 ? factor * part[d] : o[d] + factor * part[d];
        }
        store_row(&results, row, depth, o, max, sum);
    }
}

/* The sums of a panel as rows with pitch v_row. */
static float *rows_of_sums(const struct attention_plan *plan, const struct forward_buffers *b, int64_t p) {
    float *o = b->o + p * b->o_floats;
    if (plan->has_few_queries)
        return o;
    struct gemm_matrix matrix = {.base = o, .type = WEFT_DATA_FLOAT, .stride = PANEL, .depth_stride = 1};
    gemm_pack_matrix(&matrix, b->result, (int)b->v_row, 0, 0, (int)plan->sizes.value_depth, 0, PANEL);
    return b->result;
}

/* Stores a task's columns of one panel, as final results or as partial results. */
static void store_panel(const struct forward_job *job, const struct forward_buffers *b, int64_t p, int64_t split) {
    const struct attention_run *run = job->run;
    const struct panel *panel = &b->panels[p];
    int64_t depth = run->plan->sizes.value_depth;
    float *row = rows_of_sums(run->plan, b, p);
    struct head_results results = {0};
    for (int c = 0; c < panel->count; c++, row += b->v_row) {
        float max = b->max[p * PANEL + c], sum = b->sum[p * PANEL + c];
        if (run->plan->splits > 1) {
            float *part = part_of(run, panel->line[c], split);
            memcpy(part, row, (size_t)depth * sizeof *part);
            part[depth] = max, part[depth + 1] = sum;
            continue;
        }
        if (c == 0 || panel->head[c] != panel->head[c - 1])
            results = results_of(job, panel->batch, panel->head[c]);
        store_row(&results, panel->row[c], depth, row, max, sum);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

/* All panels belong to the task's only group, or each panel belongs to a different group. */
struct forward_task {
    int64_t batch, group, groups, panels, first_key, last_key, split;
};

/* Keys and values of a tile: as floats in the thread's buffers, packed, or in place if few queries read them. */
struct key_tile {
    int64_t key, keys;
    struct small_skinny skinny_k, skinny_v;
    enum small_type k_type, v_type; /* types of these */
    bool has_nonfinite;             /* values may contain infinities or NaN */
};

/* Returns rows in place in memory, or copies them to the buffer. */
static struct small_skinny skinny_rows(const struct rows *rows, int64_t key, int64_t keys, int64_t depth, float *buffer,
                                       int64_t ld, enum small_type *type) {
    *type = rows_are_in_place(rows) && rows->type == WEFT_DATA_BFLOAT16 ? SMALL_BF16 : SMALL_FLOAT;
    if (rows_are_in_place(rows))
        return (struct small_skinny){.rows = keys, .depth = depth, .matrix = rows_at(rows, key), .ld = rows->stride};
    rows_load(rows, key, keys, depth, buffer, ld);
    return (struct small_skinny){.rows = keys, .depth = depth, .matrix = buffer, .ld = ld};
}

static struct key_tile load_tile(const struct attention_plan *plan, const struct forward_buffers *b,
                                 const struct key_rows *rows, int64_t key, int64_t keys) {
    const struct attention_sizes *s = &plan->sizes;
    struct key_tile t = {.key = key, .keys = keys};
    if (plan->has_few_queries) {
        t.skinny_k = skinny_rows(&rows->k, key, keys, s->depth, b->k, b->k_row, &t.k_type);
        t.skinny_v = skinny_rows(&rows->v, key, keys, s->value_depth, b->v, b->v_row, &t.v_type);
    } else if (plan->is_packed) {
        packed_rows(&rows->k, key, keys, s->depth, b->packed_k);
        t.has_nonfinite = packed_columns(&rows->v, key, keys, s->value_depth, b->packed_v);
        if (t.has_nonfinite)
            rows_load(&rows->v, key, keys, s->value_depth, b->v, b->v_row);
    } else {
        rows_load(&rows->k, key, keys, s->depth, b->k, b->k_row);
        rows_load(&rows->v, key, keys, s->value_depth, b->v, b->v_row);
        t.has_nonfinite = tile_has_nonfinite(b->v, keys, s->value_depth, b->v_row);
    }
    return t;
}

/* Adds weighted values to a panel's result. */
static void add_values(const struct attention_plan *plan, const struct forward_buffers *b, int64_t p,
                       const struct key_tile *t) {
    int64_t depth = plan->sizes.value_depth, count = b->panels[p].count;
    float *o = b->o + p * b->o_floats;
    struct small_factor values = {b->v, 1, b->v_row}, weights = {b->tile, 0, PANEL};
    if (t->has_nonfinite) {
        tile_product_of_some(depth, count, t->keys, values, weights, o, PANEL, false);
    } else if (plan->is_packed) {
        packed_pairs(b->tile, t->keys, b->pairs);
        packed_product(depth, t->keys, b->packed_v, b->pairs, o, true);
    } else
        small_product(plan->kernel, depth, count, t->keys, values, weights, o, PANEL, true);
}

/* bf16 products are exact if queries are unscaled or scaled by a power of two; any other scale is applied to the
   scores. */
static float scale_of_queries(const struct attention_plan *plan, float scale) {
    int exponent;
    return !plan->is_packed || fabsf(frexpf(scale, &exponent)) == 0.5f ? scale : 1;
}

/* Computes scaled products of keys and queries. */
static void multiply_keys(const struct forward_job *job, const struct forward_buffers *b, int64_t p,
                          const struct key_tile *t) {
    const struct attention_plan *plan = job->run->plan;
    const float *q = b->q + p * b->q_floats, scale = job->run->scores.scale;
    if (!plan->is_packed) {
        small_product(plan->kernel, t->keys, b->panels[p].count, plan->sizes.depth,
                      (struct small_factor){b->k, b->k_row, 1}, (struct small_factor){q, 0, PANEL}, b->tile, PANEL,
                      false);
        return;
    }
    packed_product(t->keys, plan->sizes.depth, b->packed_k, (const uint32_t *)q, b->tile, false);
    if (scale_of_queries(plan, scale) != scale)
        for (int64_t i = 0; i < t->keys * PANEL; i++)
            b->tile[i] *= scale;
}

/* Computes the scores of a panel and a tile of keys, and adds the weighted values to the panel's result. */
static void visit_tile(const struct forward_job *job, const struct forward_buffers *b, int64_t p,
                       const struct key_tile *t, const struct visible *visible) {
    const struct attention_plan *plan = job->run->plan;
    const struct scores *scores = &job->run->scores;
    const struct panel *panel = &b->panels[p];
    float factor[PANEL];
    multiply_keys(job, b, p, t);
    scores_finish(scores, panel, visible, t->key, t->keys, b->tile, b->room);
    if (tile_softmax(b->tile, t->keys, b->max + p * PANEL, b->sum + p * PANEL, factor))
        tile_scale(b->o + p * b->o_floats, plan->sizes.value_depth, factor);
    if (scores->drops) {
        scores_find_dropout(scores, panel, t->key, t->keys, b->room);
        tile_multiply(b->tile, t->keys, b->room);
    }
    add_values(plan, b, p, t);
}

/* ---- Few queries: scores are rows, as computed by the products with keys in place ---- */

static void finish_rows(const struct scores *scores, const struct forward_buffers *b, const struct panel *panel,
                        const struct key_tile *t, const struct visible *visible) {
    if (visible->is_whole && !scores->modifier && !scores->a->alibi && !scores->bias.data)
        return;
    for (int64_t i = 0; i < t->keys * panel->count; i++)
        b->tile[i % t->keys * PANEL + i / t->keys] = b->rows[i / t->keys * KEY_TILE + i % t->keys];
    scores_finish(scores, panel, visible, t->key, t->keys, b->tile, b->room);
    for (int64_t i = 0; i < t->keys * panel->count; i++)
        b->rows[i / t->keys * KEY_TILE + i % t->keys] = b->tile[i % t->keys * PANEL + i / t->keys];
}

static void visit_tile_of_few(const struct forward_job *job, const struct forward_buffers *b, int64_t p,
                              const struct key_tile *t, const struct visible *visible) {
    const struct attention_plan *plan = job->run->plan;
    const struct scores *scores = &job->run->scores;
    const struct panel *panel = &b->panels[p];
    int64_t depth = plan->sizes.value_depth;
    struct small_skinny keys = t->skinny_k, values = t->skinny_v;
    float *o = b->o + p * b->o_floats;
    keys.count = values.count = panel->count;
    plan->kernel->dots[t->k_type](&keys, b->q + p * b->q_floats, b->k_row, b->rows, KEY_TILE);
    finish_rows(scores, b, panel, t, visible);
    if (scores->drops)
        scores_find_dropout(scores, panel, t->key, t->keys, b->room);
    for (int c = 0; c < panel->count; c++) {
        float factor, *weights = b->rows + c * KEY_TILE;
        bool is_changed = row_softmax(weights, t->keys, &b->max[p * PANEL + c], &b->sum[p * PANEL + c], &factor);
        for (int64_t d = 0; is_changed && d < depth; d++)
            o[c * b->v_row + d] *= factor;
        for (int64_t k = 0; scores->drops && k < t->keys; k++)
            weights[k] = weights[k] == 0 ? 0 : weights[k] * b->room[k * PANEL + c];
    }
    plan->kernel->combine[t->v_type](&values, b->rows, KEY_TILE, o, b->v_row);
}

/* Loads queries: as columns or packed for products, or as rows if there are few. */
static void load_queries(const struct forward_job *job, const struct forward_buffers *b, int64_t p) {
    const struct attention_plan *plan = job->run->plan;
    const struct scores *scores = &job->run->scores;
    float *q = b->q + p * b->q_floats;
    panel_load(&b->panels[p], &scores->bindings, scores->a->q, plan->sizes.depth, scale_of_queries(plan, scores->scale),
               b->row, b->k_row,
               plan->has_few_queries ? NULL
               : plan->is_packed     ? b->columns
                                     : q);
    if (plan->has_few_queries)
        memcpy(q, b->row, (size_t)b->q_floats * sizeof *q);
    if (plan->is_packed)
        packed_pairs(b->columns, plan->sizes.depth, (uint32_t *)q);
}

static void start_panels(const struct forward_job *job, const struct forward_buffers *b, struct forward_task *task,
                         int64_t block) {
    const struct attention_plan *plan = job->run->plan;
    const struct scores *scores = &job->run->scores;
    int64_t column = block * plan->panels * PANEL, first = INT64_MAX, last = 0;
    task->panels =
        plan->has_few_queries ? task->groups : min64(plan->panels, divide_up(plan->sizes.columns - column, PANEL));
    for (int64_t p = 0; p < task->panels; p++) {
        struct panel *panel = &b->panels[p];
        panel_init(panel, scores, task->batch, task->group + (plan->has_few_queries ? p : 0),
                   column + (plan->has_few_queries ? 0 : p * PANEL));
        load_queries(job, b, p);
        first = min64(first, panel->first_key), last = max64(last, panel->last_key);
    }
    for (int64_t i = 0; i < task->panels * PANEL; i++)
        b->max[i] = -INFINITY, b->sum[i] = 0;
    memset(b->o, 0, (size_t)(task->panels * b->o_floats) * sizeof *b->o);
    task->first_key = max64(first - first % KEY_TILE, task->split * plan->split_keys);
    task->last_key = min64(last, (task->split + 1) * plan->split_keys);
}

static void find_key_rows(const struct forward_job *job, const struct forward_buffers *b,
                          const struct forward_task *task) {
    const struct attention *a = job->run->scores.a;
    const struct attention_sizes *s = &job->run->plan->sizes;
    const struct bindings *bindings = &job->run->scores.bindings;
    for (int64_t i = 0; i < task->groups; i++) {
        int64_t head = (task->group + i) * s->group;
        b->key_rows[i].k =
            rows_of(bindings, a->k, a->k_table, task->batch, attention_shared_head(head, s->heads, a->k->dims.at[1]));
        b->key_rows[i].v =
            rows_of(bindings, a->v, a->v_table, task->batch, attention_shared_head(head, s->heads, a->v->dims.at[1]));
    }
}

/* Processes a tile of one group's keys with its panels, and prefetches the next tile meanwhile. */
static void visit_panels(const struct forward_job *job, const struct forward_buffers *b,
                         const struct forward_task *task, int64_t key, int64_t group) {
    const struct attention_plan *plan = job->run->plan;
    const struct attention_sizes *s = &plan->sizes;
    const struct key_rows *rows = &b->key_rows[group];
    const int64_t panels = task->panels / task->groups, next = key + KEY_TILE;
    const struct key_tile tile = load_tile(plan, b, rows, key, min64(KEY_TILE, task->last_key - key));
    for (int64_t i = 0; i < panels; i++) {
        struct visible visible;
        int64_t p = group * panels + i, next_keys = plan->has_few_queries ? 0 : min64(KEY_TILE, task->last_key - next);
        rows_fetch(&rows->k, next, next_keys, s->depth, i, panels);
        rows_fetch(&rows->v, next, next_keys, s->value_depth, i, panels);
        panel_find_visible(&visible, &b->panels[p], &job->run->scores, key, tile.keys);
        if (!visible.is_empty && plan->has_few_queries)
            visit_tile_of_few(job, b, p, &tile, &visible);
        else if (!visible.is_empty)
            visit_tile(job, b, p, &tile, &visible);
    }
}

/* Processes every tile of the task's keys with all of its panels. */
static void visit_keys(const struct forward_job *job, const struct forward_buffers *b,
                       const struct forward_task *task) {
    find_key_rows(job, b, task);
    for (int64_t key = task->first_key; key < task->last_key; key += KEY_TILE)
        for (int64_t group = 0; group < task->groups; group++)
            visit_panels(job, b, task, key, group);
}

static void run_task(const struct forward_job *job, const struct forward_buffers *b, int64_t index) {
    const struct attention_plan *plan = job->run->plan;
    struct forward_task task = {.split = index % plan->splits};
    index /= plan->splits;
    task.batch = index / plan->blocks / group_blocks(plan);
    task.group = index / plan->blocks % group_blocks(plan) * plan->groups;
    task.groups = min64(plan->groups, plan->sizes.groups - task.group);
    /* The last blocks come first: with causal masks they take longest. */
    start_panels(job, b, &task, plan->blocks - 1 - index % plan->blocks);
    visit_keys(job, b, &task);
    for (int64_t p = 0; p < task.panels; p++)
        store_panel(job, b, p, task.split);
}

/* Thread main loop: processes tasks until none is left. `thread` is the index of a set of buffers. */
static void run_tasks(void *context, int64_t thread) {
    struct forward_job *job = context;
    const struct attention_plan *plan = job->run->plan;
    int64_t tasks = plan->sizes.batches * group_blocks(plan) * plan->blocks * plan->splits, index;
    struct forward_buffers buffers;
    lay_out(&buffers, plan, job->run->workspace + plan->shared_bytes + thread * plan->thread_bytes);
    if (plan->is_packed)
        packed_begin();
    while ((index = atomic_fetch_add(&job->next, 1)) < tasks)
        run_task(job, &buffers, index);
    if (plan->is_packed)
        packed_end();
}

void attention_forward(const struct attention_run *run, const struct sdpa_fwd_op *op) {
    struct forward_job job = {.run = run, .op = op};
    threads_for(run->plan->threads, run_tasks, &job);
    if (run->plan->splits > 1)
        threads_for(run->plan->sizes.batches * run->plan->sizes.heads, join_parts, &job);
}
