/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of sdpa_fwd. */
#include "base/number.h"
#include "graph/ops/attention_reference.h"

#include <math.h>
#include <string.h>

/* Translates the index of a key or value into its position in the page that a table assigns. */
static void find_page(int64_t *index, const struct view *container, const struct view *table) {
    int64_t size = container->dims[2], key = index[2];
    /* Tables are [B, 1, pages, 1]: one per batch entry, for all heads. */
    index[0] = view_load_int(table, (const int64_t[]){index[0], 0, key / size, 0});
    index[2] = key % size;
}

/* Keys or values: memory, scales, and page table. */
struct keys_view {
    struct view memory, table;
    struct attention_scales scales;
};

static struct keys_view keys_of(const struct bindings *bindings, const struct tensor *keys, const struct tensor *scales,
                                const struct tensor *table) {
    return (struct keys_view){view_of(bindings, keys), view_of(bindings, table),
                              attention_scales_of(bindings, scales, keys)};
}

/* Copies the keys in use of one head into rows of doubles. */
static void load_keys(double *to, const struct keys_view *keys, const struct attention_head *head, int64_t heads) {
    const struct view *from = &keys->memory;
    /* Rows after those in use are not written: no score reads them. */
    int64_t shared = attention_shared_head(head->index, heads, from->dims[1]);
    for (int64_t key = 0; key < head->columns_used; key++) {
        int64_t index[] = {head->batch, shared, key, 0};
        if (keys->table.data)
            find_page(index, from, &keys->table);
        for (index[3] = 0; index[3] < from->dims[3]; index[3]++)
            *to++ = view_load(from, index) * attention_scale_at(&keys->scales, index);
    }
}

/* rows: the number that exists. */
static void store_head(const struct view *to, int64_t rows, int64_t batch, int64_t head, const double *from) {
    for (int64_t s = 0; to->data && s < min64(rows, to->dims[2]); s++)
        for (int64_t d = 0; d < to->dims[3]; d++)
            view_store(to, (const int64_t[]){batch, head, s, d}, *from++);
}

struct forward_scratch {
    double *q, *k, *v, *o; /* of one head */
    double *weights;       /* of one row */
};

/* Number of doubles that an execution needs; with a block, also sets the address of each array. */
static int64_t lay_out_forward(const struct sdpa_fwd_op *op, double *block, struct forward_scratch *scratch) {
    struct attention_run run = attention_run_of(&op->a, &(struct bindings){0});
    struct scratch_cursor cursor = {.block = block};
    scratch->q = scratch_take(&cursor, run.rows * run.depth);
    scratch->k = scratch_take(&cursor, run.columns * run.depth);
    scratch->v = scratch_take(&cursor, run.columns * run.value_depth);
    scratch->o = scratch_take(&cursor, run.rows * run.value_depth);
    scratch->weights = scratch_take(&cursor, run.columns);
    return cursor.used + 1;
}

int64_t attention_forward_scratch_bytes(const struct descriptor *descriptor) {
    struct forward_scratch scratch;
    return lay_out_forward((const struct sdpa_fwd_op *)descriptor, NULL, &scratch) * (int64_t)sizeof(double);
}

/* Computes one row's weights exp(score - max), 0 for hidden keys, their maximum and their sum, including the sink.
   Subtracting the maximum avoids overflow. A row without keys and without a sink has the maximum -inf and the sum 0. */
static void weigh_row(const struct attention_run *run, const struct attention_head *head,
                      const struct forward_scratch *scratch, int64_t row, double *max, double *sum) {
    const double *q = scratch->q + row * run->depth;
    double *weights = scratch->weights;
    /* Queries after those in use have no sink either: their rows are 0. */
    double sink = row < head->rows_used ? head->sink : -INFINITY;
    *max = sink;
    for (int64_t j = 0; j < run->columns; j++) {
        double product;
        weights[j] = attention_score(run, head, q, scratch->k + j * run->depth, row, j, &product);
        *max = weights[j] > *max ? weights[j] : *max;
    }
    *sum = sink == -INFINITY ? 0 : exp(sink - *max);
    for (int64_t j = 0; j < run->columns; j++) {
        /* A second loop over the keys, because the exponentials need the maximum. */
        weights[j] = weights[j] == -INFINITY ? 0 : exp(weights[j] - *max);
        *sum += weights[j];
    }
}

/* Everything that the forward pass reads and writes. */
struct forward_views {
    const struct sdpa_fwd_op *op;
    struct keys_view k, v;
    struct attention_scales descale_q;
    struct view q, o, stats, max, sum_exp, dump;
    double weight_scale, scale_o; /* weight_scale: scale and descale of the softmax, multiplied */
    double amax_s, amax_o;
};

/* Views of ragged operands are set later, per batch entry. */
static struct forward_views forward_views_of(const struct sdpa_fwd_op *op, const struct bindings *bindings) {
    return (struct forward_views){
        .op = op,
        .k = keys_of(bindings, op->a.k, op->a.descale_k, op->a.k_table),
        .v = keys_of(bindings, op->a.v, op->a.descale_v, op->a.v_table),
        .descale_q = attention_scales_of(bindings, op->a.descale_q, op->a.q),
        .dump = view_of(bindings, op->rng_dump),
        .weight_scale = view_scalar(bindings, op->scale_s, 1) * view_scalar(bindings, op->descale_s, 1),
        .scale_o = view_scalar(bindings, op->scale_o, 1),
    };
}

/* Sets the views of operands that may be ragged to one batch entry. */
static void find_entries(struct forward_views *views, const struct bindings *bindings, int64_t batch) {
    const struct sdpa_fwd_op *op = views->op;
    views->q = attention_entry(bindings, op->a.q, batch);
    views->k.memory = attention_entry(bindings, op->a.k, batch);
    views->v.memory = attention_entry(bindings, op->a.v, batch);
    views->k.table = attention_entry(bindings, op->a.k_table, batch);
    views->v.table = attention_entry(bindings, op->a.v_table, batch);
    views->o = attention_entry(bindings, op->o, batch);
    views->stats = attention_entry(bindings, op->stats, batch);
    views->max = attention_entry(bindings, op->max, batch);
    views->sum_exp = attention_entry(bindings, op->sum_exp, batch);
}

/* Stores a statistic of a row if it is requested and the row exists. */
static void store_statistic(const struct view *to, const struct tensor *tensor, const int64_t index[4], int64_t used,
                            double value) {
    if (index[2] < attention_stored_rows(tensor, used))
        view_store_if(to, index, value);
}

/* Computes one row of o from its weights. */
static void add_values(const struct attention_run *run, const struct attention_head *head, struct forward_views *views,
                       const struct forward_scratch *scratch, int64_t row, double sum) {
    double *o = scratch->o + row * run->value_depth;
    for (int64_t j = 0; j < run->columns; j++) {
        /* Keys of weight 0 are skipped, because the value of a hidden key may be NaN. */
        double weight =
            scratch->weights[j] == 0 ? 0 : scratch->weights[j] / sum * attention_dropout_factor(run, head, row, j);
        views->amax_s = weight > views->amax_s ? weight : views->amax_s;
        for (int64_t d = 0; d < run->value_depth && weight != 0; d++)
            o[d] += weight * views->weight_scale * scratch->v[j * run->value_depth + d];
        /* 1 if dropout keeps the weight, even if the key is hidden. */
        if (views->dump.data)
            view_store(&views->dump, (const int64_t[]){head->batch, head->index, row, j},
                       attention_is_drawn(run, head, row, j));
    }
    /* amax is taken before scale_o, because the next scale_o is computed from it. */
    for (int64_t d = 0; d < run->value_depth; d++) {
        views->amax_o = fabs(o[d]) > views->amax_o ? fabs(o[d]) : views->amax_o;
        o[d] *= views->scale_o;
    }
}

/* Computes one head: loads operands as doubles with their scales, then computes each row's weights, statistics and
   result. */
static void forward_head(const struct attention_run *run, const struct attention_head *head,
                         struct forward_views *views, const struct forward_scratch *scratch) {
    const struct sdpa_fwd_op *op = views->op;
    attention_load_head(scratch->q, &views->q, &views->descale_q, head->batch, head->index, head->rows_used);
    load_keys(scratch->k, &views->k, head, run->heads);
    load_keys(scratch->v, &views->v, head, run->heads);
    memset(scratch->o, 0, (size_t)(run->rows * run->value_depth) * sizeof *scratch->o);
    for (int64_t i = 0; i < run->rows; i++) {
        double row_max, row_sum;
        const int64_t index[] = {head->batch, head->index, i, 0};
        weigh_row(run, head, scratch, i, &row_max, &row_sum);
        /* Avoids log(0) for a row without weight. */
        double total = row_sum == 0 ? -INFINITY : row_max + log(row_sum);
        store_statistic(&views->max, op->max, index, head->rows_used, row_max);
        store_statistic(&views->sum_exp, op->sum_exp, index, head->rows_used, row_sum);
        store_statistic(&views->stats, op->stats, index, head->rows_used, total);
        add_values(run, head, views, scratch, i, row_sum);
    }
    store_head(&views->o, attention_stored_rows(op->o, head->rows_used), head->batch, head->index, scratch->o);
}

/* Computes the heads in sequence; they share the scratch memory. */
void attention_reference_forward(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct sdpa_fwd_op *op = (const struct sdpa_fwd_op *)descriptor;
    struct attention_run run = attention_run_of(&op->a, bindings);
    struct forward_views views = forward_views_of(op, bindings);
    struct forward_scratch scratch;
    lay_out_forward(op, bindings->scratch, &scratch);
    for (int64_t at = 0; at < run.batches * run.heads; at++) {
        /* Heads are the inner index, batch entries the outer one. */
        struct attention_head head = attention_head_of(&run, at / run.heads, at % run.heads);
        find_entries(&views, bindings, head.batch);
        forward_head(&run, &head, &views, &scratch);
    }
    struct view amax_s = view_of(bindings, op->amax_s), amax_o = view_of(bindings, op->amax_o);
    /* The maxima over all heads and rows: one number per execution. */
    view_store_if(&amax_s, (const int64_t[]){0, 0, 0, 0}, views.amax_s);
    view_store_if(&amax_o, (const int64_t[]){0, 0, 0, 0}, views.amax_o);
}
