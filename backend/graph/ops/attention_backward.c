/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of sdpa_bwd. */
#include "base/number.h"
#include "graph/ops/attention_reference.h"

#include <math.h>
#include <string.h>

/* Arrays of doubles, row by row. */
struct backward_scratch {
    double *q, *k, *v, *o, *d_o, *stats, *dq;             /* of one query head */
    double *dk, *dv;                                      /* of the key and value head that it uses */
    double *dbias, *dsink;                                /* of the whole tensor, packed */
    double *q_for_dk, *k_for_dq, *d_o_for_dv, *d_o_for_o; /* q, k and dO, or the copies given for these products */
    double *dmodifier[SCORE_MODIFIER_GRADIENTS_MAX];
};

/* Like lay_out_forward. dK and dV are accumulated over the query heads of a group, the other sums over the whole
   execution. */
static int64_t lay_out_backward(const struct sdpa_bwd_op *op, double *block, struct backward_scratch *scratch) {
    struct attention_run run = attention_run_of(&op->a, &(struct bindings){0});
    struct scratch_cursor cursor = {.block = block};
    /* Number of doubles of one head's queries, keys and result. */
    int64_t q = run.rows * run.depth, k = run.columns * run.depth, o = run.rows * run.value_depth;
    scratch->q = scratch_take(&cursor, q);
    scratch->k = scratch_take(&cursor, k);
    scratch->v = scratch_take(&cursor, run.columns * run.value_depth);
    scratch->o = scratch_take(&cursor, o);
    scratch->d_o = scratch_take(&cursor, o);
    scratch->stats = scratch_take(&cursor, run.rows);
    scratch->dq = scratch_take(&cursor, q);
    scratch->dk = scratch_take(&cursor, k);
    scratch->dv = scratch_take(&cursor, run.columns * run.value_depth);
    /* Without a gradient of the bias no memory is needed. dsink is small, so it is always allocated. */
    scratch->dbias = scratch_take(&cursor, op->dbias ? tensor_elements(op->dbias) : 0);
    scratch->dsink = scratch_take(&cursor, run.heads);
    /* Operands without a second copy use the first one. */
    scratch->q_for_dk = op->q_t ? scratch_take(&cursor, q) : scratch->q;
    scratch->k_for_dq = op->k_t ? scratch_take(&cursor, k) : scratch->k;
    scratch->d_o_for_dv = op->do_t ? scratch_take(&cursor, o) : scratch->d_o;
    scratch->d_o_for_o = op->do_f16 ? scratch_take(&cursor, o) : scratch->d_o;
    for (int64_t i = 0; i < op->a.modifier.gradients.count; i++)
        /* Gradients of the modifier's operands are packed, and summed over the scores that share an element. */
        scratch->dmodifier[i] = scratch_take(&cursor, tensor_elements(op->a.modifier.gradients.tensors[i]));
    return cursor.used + 1;
}

int64_t attention_backward_scratch_bytes(const struct descriptor *descriptor) {
    struct backward_scratch scratch;
    return lay_out_backward((const struct sdpa_bwd_op *)descriptor, NULL, &scratch) * (int64_t)sizeof(double);
}

static void clear(double *numbers, int64_t count) { memset(numbers, 0, (size_t)count * sizeof *numbers); }

/* Propagates a score's gradient through the score modifier, and accumulates the gradients of its operands. */
static double carry_back(const struct attention *a, const struct attention_run *run,
                         const struct backward_scratch *scratch, const int64_t index[4], double product, double ds) {
    const struct score_modifier *modifier = &a->modifier;
    if (!modifier->graph)
        return ds;
    for (int64_t i = 0; i < modifier->gradients.count; i++)
        /* Each operand has a derivative of its own, applied to the gradient of the modified score. */
        scratch->dmodifier[i][dims_index(&modifier->gradients.tensors[i]->dims, index)] +=
            score_modifier_carry_to(modifier, i, run->bindings, index, product, ds);
    return score_modifier_carry(modifier, run->bindings, index, product, ds);
}

/* exp(score - stats). Mathematically stats >= score, but rounding may reverse this; the result is clamped to 1. */
static double probability(double score, double stats) { return score > stats ? 1 : exp(score - stats); }

/* Conversion of a number to an operand of a product: multiplied by a scale, rounded to a type, and multiplied by the
   inverse of the scale. */
struct factor {
    double scale, descale;
    int32_t type; /* TENSOR_NO_TYPE: not rounded */
};

/* Rounds like a store into the operand's type, including saturation. */
static double as_factor(const struct factor *factor, double number) {
    double scaled = number * factor->scale, stored[1];
    if (factor->type == TENSOR_NO_TYPE)
        return scaled * factor->descale;
    dtype_store((weftDataType_t)factor->type, stored, 0, scaled);
    return dtype_load((weftDataType_t)factor->type, stored, 0) * factor->descale;
}

/* Scales of the gradients in one execution, and their largest magnitudes. */
struct backward_scales {
    struct factor weight, ds;
    double scale_dq, scale_dk, scale_dv;
    double amax_dq, amax_dk, amax_dv, amax_dp;
};

/* Absent scales are 1. Magnitudes start at 0. */
static struct backward_scales backward_scales_of(const struct sdpa_bwd_op *op, const struct bindings *bindings) {
    return (struct backward_scales){
        .weight = {view_scalar(bindings, op->scale_s, 1), view_scalar(bindings, op->descale_s, 1),
                   attention_factor_type(op->scale_s, op->a.q)},
        .ds = {view_scalar(bindings, op->scale_dp, 1), view_scalar(bindings, op->descale_dp, 1),
               attention_factor_type(op->scale_dp, op->d_o)},
        .scale_dq = view_scalar(bindings, op->scale_dq, 1),
        .scale_dk = view_scalar(bindings, op->scale_dk, 1),
        .scale_dv = view_scalar(bindings, op->scale_dv, 1),
    };
}

static void note_largest(double *largest, double number) {
    *largest = fabs(number) > *largest ? fabs(number) : *largest;
}

/* The row sum of P dP: from o, with one product for the row, or from all of its weights. */
static double sum_of_row(const struct sdpa_bwd_op *op, const struct attention_run *run,
                         const struct attention_head *head, const struct backward_scratch *scratch, int64_t row) {
    int64_t o_at = row * run->value_depth;
    double stats = scratch->stats[row], largest = 0, total = 0, by_weights = 0, by_o = 0, spread = 0;
    for (int64_t d = 0; d < run->value_depth; d++) {
        double product = scratch->d_o_for_o[o_at + d] * scratch->o[o_at + d];
        by_o += product, spread += fabs(product);
    }
    if (!attention_rounds_o(op))
        return by_o;
    if (head->sink != -INFINITY)
        total = probability(head->sink, stats);
    for (int64_t j = 0; j < run->columns; j++) {
        double scaled, product = 0;
        double s =
            attention_score(run, head, scratch->q + row * run->depth, scratch->k + j * run->depth, row, j, &scaled);
        if (s == -INFINITY)
            continue;
        double weight = probability(s, stats);
        for (int64_t d = 0; d < run->value_depth; d++)
            product += scratch->d_o[o_at + d] * scratch->v[j * run->value_depth + d];
        largest = weight > largest ? weight : largest, total += weight;
        by_weights += weight * attention_dropout_factor(run, head, row, j) * product;
    }
    return attention_is_saturated(op, largest, total) ? attention_better_sum(op, by_weights / total, by_o, spread)
                                                      : by_o;
}

/* Accumulates the contribution of one row to all gradients: dS = P (dP - row sum of P dP). */
static void backward_row(const struct sdpa_bwd_op *op, const struct attention_run *run,
                         const struct attention_head *head, const struct backward_scratch *scratch,
                         struct backward_scales *scales, int64_t row) {
    int64_t q_at = row * run->depth, o_at = row * run->value_depth;
    double stats = scratch->stats[row], mean = sum_of_row(op, run, head, scratch, row);
    /* The sink has a weight but no value: its gradient is that of a score with dP = 0. */
    if (head->sink != -INFINITY)
        scratch->dsink[head->index] -= probability(head->sink, stats) * mean;
    for (int64_t j = 0; j < run->columns; j++) {
        int64_t k_at = j * run->depth, v_at = j * run->value_depth;
        const int64_t index[] = {head->batch, head->index, row, j};
        double scaled, s = attention_score(run, head, scratch->q + q_at, scratch->k + k_at, row, j, &scaled);
        /* A hidden key has no weight, and its memory is not read. */
        if (s == -INFINITY)
            continue;
        double weight = probability(s, stats), factor = attention_dropout_factor(run, head, row, j), product = 0;
        /* P as an operand of dV is rounded to q's type if that is FP8. */
        double weight_factor = as_factor(&scales->weight, weight * factor);
        for (int64_t d = 0; d < run->value_depth; d++) {
            product += scratch->d_o[o_at + d] * scratch->v[v_at + d];
            scratch->dv[v_at + d] += weight_factor * scratch->d_o_for_dv[o_at + d];
        }
        /* The bias is added after the modifier, so its gradient is taken before the modifier's. */
        double ds = weight * (factor * product - mean);
        if (op->dbias)
            /* The gradient of a bias that broadcasts is summed over the scores that share an element. */
            scratch->dbias[dims_index(&op->dbias->dims, index)] += ds;
        /* From here on, ds is the gradient of q k^T. */
        ds = run->scale * carry_back(&op->a, run, scratch, index, scaled, ds);
        note_largest(&scales->amax_dp, ds);
        ds = as_factor(&scales->ds, ds);
        /* dQ = dS k and dK = dS^T q: each score multiplies one vector of each. */
        for (int64_t d = 0; d < run->depth; d++) {
            scratch->dq[q_at + d] += ds * scratch->k_for_dq[k_at + d];
            scratch->dk[k_at + d] += ds * scratch->q_for_dk[q_at + d];
        }
    }
}

/* Loads the operands that the gradients of one query head depend on. */
static void load_backward_head(const struct sdpa_bwd_op *op, const struct attention_run *run,
                               const struct attention_head *head, const struct backward_scratch *scratch) {
    const struct {
        const struct tensor *tensor, *scales;
        double *to;
        bool has_keys;
    } operands[] = {
        {op->a.q, op->a.descale_q, scratch->q, false},
        {op->a.k, op->a.descale_k, scratch->k, true},
        {op->a.v, op->a.descale_v, scratch->v, true},
        {op->o, op->descale_o, scratch->o, false},
        {op->d_o, op->descale_do, scratch->d_o, false},
        {op->stats, NULL, scratch->stats, false},
        {op->q_t, op->descale_q_t, scratch->q_for_dk, false},
        {op->k_t, op->descale_k_t, scratch->k_for_dq, true},
        {op->do_t, op->descale_do_t, scratch->d_o_for_dv, false},
        {op->do_f16, NULL, scratch->d_o_for_o, false},
    };
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
        /* Skips absent operands, whose array is an alias of another one: see lay_out_backward. */
        if (!operands[i].tensor)
            continue;
        struct view view = attention_entry(run->bindings, operands[i].tensor, head->batch);
        struct attention_scales scales = attention_scales_of(run->bindings, operands[i].scales, operands[i].tensor);
        attention_load_head(operands[i].to, &view, &scales, head->batch,
                            attention_shared_head(head->index, run->heads, view.dims[1]),
                            operands[i].has_keys ? head->columns_used : head->rows_used);
    }
}

/* Stores one head of a gradient with `count` numbers, multiplied by its scale. */
static void store_gradient(const struct attention_run *run, const struct tensor *tensor,
                           const struct attention_head *head, int64_t used, const double *from, int64_t count,
                           double scale, double *largest) {
    struct view view = attention_entry(run->bindings, tensor, head->batch);
    int64_t shared = attention_shared_head(head->index, run->heads, tensor->dims.at[1]);
    int64_t rows = min64(attention_stored_rows(tensor, used), tensor->dims.at[2]), columns = tensor->dims.at[3];
    /* amax is taken before the scale, because the next step's scale is computed from it. */
    for (int64_t i = 0; i < count; i++)
        note_largest(largest, from[i]);
    for (int64_t i = 0; view.data && i < rows * columns; i++)
        view_store(&view, (const int64_t[]){head->batch, shared, i / columns, i % columns}, from[i] * scale);
}

/* For keys and values, only the last query head of a group stores the sum. Heads that share a key are processed in
   sequence. */
static void store_gradients(const struct sdpa_bwd_op *op, const struct attention_run *run,
                            const struct attention_head *head, const struct backward_scratch *scratch,
                            struct backward_scales *scales) {
    /* Number of query heads per key head, and per value head. */
    int64_t key_share = run->heads / op->a.k->dims.at[1], value_share = run->heads / op->a.v->dims.at[1];
    store_gradient(run, op->dq, head, head->rows_used, scratch->dq, run->rows * run->depth, scales->scale_dq,
                   &scales->amax_dq);
    if (head->index % key_share == key_share - 1)
        store_gradient(run, op->dk, head, head->columns_used, scratch->dk, run->columns * run->depth, scales->scale_dk,
                       &scales->amax_dk);
    if (head->index % value_share == value_share - 1)
        store_gradient(run, op->dv, head, head->columns_used, scratch->dv, run->columns * run->value_depth,
                       scales->scale_dv, &scales->amax_dv);
}

/* Clears gradients that are summed over heads or over batch entries. */
static void clear_sums(const struct sdpa_bwd_op *op, const struct attention_run *run,
                       const struct backward_scratch *scratch) {
    clear(scratch->dbias, op->dbias ? tensor_elements(op->dbias) : 0);
    clear(scratch->dsink, run->heads);
    for (int64_t i = 0; i < op->a.modifier.gradients.count; i++)
        clear(scratch->dmodifier[i], tensor_elements(op->a.modifier.gradients.tensors[i]));
}

/* Called once, after all heads have been added. */
static void store_sums(const struct sdpa_bwd_op *op, const struct bindings *bindings,
                       const struct backward_scratch *scratch, const struct backward_scales *scales) {
    struct view dbias = view_of(bindings, op->dbias), dsink = view_of(bindings, op->dsink);
    struct view amax_dq = view_of(bindings, op->amax_dq), amax_dk = view_of(bindings, op->amax_dk);
    struct view amax_dv = view_of(bindings, op->amax_dv), amax_dp = view_of(bindings, op->amax_dp);
    view_store_all(&dbias, scratch->dbias);
    view_store_all(&dsink, scratch->dsink);
    view_store_all(&amax_dq, &scales->amax_dq);
    view_store_all(&amax_dk, &scales->amax_dk);
    view_store_all(&amax_dv, &scales->amax_dv);
    view_store_all(&amax_dp, &scales->amax_dp);
    for (int64_t i = 0; i < op->a.modifier.gradients.count; i++) {
        struct view gradient = view_of(bindings, op->a.modifier.gradients.tensors[i]);
        view_store_all(&gradient, scratch->dmodifier[i]);
    }
}

/* Query heads of a group are processed in sequence, so that dK and dV of the head that they share accumulate in
   place. */
void attention_reference_backward(const struct descriptor *descriptor, const struct bindings *bindings) {
    const struct sdpa_bwd_op *op = (const struct sdpa_bwd_op *)descriptor;
    struct attention_run run = attention_run_of(&op->a, bindings);
    struct backward_scales scales = backward_scales_of(op, bindings);
    struct backward_scratch scratch;
    lay_out_backward(op, bindings->scratch, &scratch);
    clear_sums(op, &run, &scratch);
    for (int64_t at = 0; at < run.batches * run.heads; at++) {
        struct attention_head head = attention_head_of(&run, at / run.heads, at % run.heads);
        load_backward_head(op, &run, &head, &scratch);
        clear(scratch.dq, run.rows * run.depth);
        /* The first query head of a group clears the sums of the shared head. */
        if (head.index % (run.heads / op->a.k->dims.at[1]) == 0)
            clear(scratch.dk, run.columns * run.depth);
        if (head.index % (run.heads / op->a.v->dims.at[1]) == 0)
            clear(scratch.dv, run.columns * run.value_depth);
        for (int64_t i = 0; i < head.rows_used; i++)
            /* Rows without visible keys have no gradient. */
            if (scratch.stats[i] != -INFINITY)
                backward_row(op, &run, &head, &scratch, &scales, i);
        store_gradients(op, &run, &head, &scratch, &scales);
    }
    store_sums(op, bindings, &scratch, &scales);
}
