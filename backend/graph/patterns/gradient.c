/* SPDX-License-Identifier: Apache-2.0 */
/* Matches the backward pass of attention. The search begins at dP = dO V^T and continues with the gradient of the
   softmax, dS = P (dP - row sums), which leads to the weights P. From P the search goes up to the scores, like in the
   forward pass, and down to O = P V and dV = P^T dO. From dS it goes down to dQ = dS K and dK = dS^T Q. The order
   matters. The scores are split (scale, bias, masks, modifier) once all their readers are known, because an operation
   that is also read elsewhere must stay with its other readers. The gradient of the modifier is read after that,
   because it must have the same scale, bias and masks. The rewrite is in rewrite.c. */
#include "graph/ops/reshape.h"
#include "graph/ops/softmax.h"
#include "graph/patterns/attention.h"
#include "graph/patterns/match.h"

#include <math.h>
#include <string.h>

/* Limits the recursion: operations between the softmax gradient and a product. */
enum { FOLLOW_DEPTH = 24 };
/* Relative difference up to which two factors count as equal: frameworks may round a scale to FLOAT in one direction
   only. */
static const double CLOSE = 1e-6;

/* Products that read one tensor of the scores' extents, through views and transposes, or -1. */
struct readers {
    int rows;                                  /* node of X y: one row per query */
    int columns;                               /* node of X^T y, or of (y^T X)^T: one row per key */
    bool is_transposed_result;                 /* the latter */
    const struct tensor *of_rows, *of_columns; /* X as each of them reads it, before the transpose */
};

/* State of the search. `s` is its result; the rest is needed during the search only. All tensors belong to the whole
   graph. */
struct gradient {
    struct attention_pattern *s;
    const struct matmul_op *product; /* dO V^T */
    const struct tensor *dp;         /* gradient of the weights, after the backward pass of dropout */
    const struct tensor *weights;    /* P, before dropout */
    const struct tensor *sums;       /* subtracted from dp */
    const struct tensor *ds;         /* gradient of the softmax's input */
    const struct tensor *result[3];  /* intermediate tensors between dp, weights, sums and ds */
    double dropout_scale;            /* scale factor of dropout in dp */
    double sums_factor;              /* of the sums: ds is the gradient times this factor, as dp lacks its inverse */
    struct readers of_weights, of_ds;
    const struct tensor *o; /* the sums are those of dO o; NULL if they are those of P dP */
};

/* ---- Queries of a tensor ----------------------------------------------------------------------------------------- */

/* The graph's entry for a tensor, with its readers in order. */
static const struct value *value_of(const struct attention_pattern *s, const struct tensor *tensor) {
    return &s->graph->values[graph_find_value(s->graph, tensor)];
}

/* Compares extents; strides may differ. */
static bool is_same_dims(const struct dims *a, const struct dims *b) {
    return a->count == b->count && memcmp(a->at, b->at, (size_t)a->count * sizeof *a->at) == 0;
}

/* The pointwise operation at a node if it has this mode and no alphas, which would scale its operands; otherwise
   NULL. */
static const struct pointwise_op *pointwise_reader(const struct attention_pattern *s, int reader, int mode) {
    const struct pointwise_op *op = pattern_is_pointwise(s, reader) ? pattern_pointwise(s, reader) : NULL;
    return op && op->pw->mode == mode && op->alpha1 == 1 && op->alpha2 == 1 ? op : NULL;
}

/* The other operand of a product if `one` is an operand, otherwise NULL. */
static const struct tensor *other_factor(const struct pointwise_op *op, const struct tensor *one) {
    return op->x == one ? op->b : op->b == one ? op->x : NULL;
}

/* The tensor before reshapes and exact conversions: frameworks often convert dO and o to FLOAT before they multiply
   them. Does not skip transposes, because this product is elementwise. */
static const struct tensor *skip_conversions(const struct attention_pattern *s, const struct tensor *tensor) {
    for (int node; (node = pattern_producer(s, tensor)) >= 0;) {
        const struct pointwise_op *same = pointwise_reader(s, node, WEFT_POINTWISE_IDENTITY);
        const struct reshape_op *view = pattern_view_at(s, node);
        if (!view && !(same && pattern_is_exact(s, same->y)))
            break;
        tensor = view ? view->x : same->x;
    }
    return tensor;
}

/* True if two products read the same elements at the same positions. Both views refer to tensors in memory, so the keys
   of q k^T and of dS k compare equal regardless of transposes. */
static bool is_same_view(const struct pattern_view *a, const struct pattern_view *b) {
    bool matches = a->tensor == b->tensor && is_same_dims(&a->dims, &b->dims);
    for (int64_t i = 0; matches && i < a->dims.count; i++)
        matches = a->dims.at[i] == 1 || a->strides.at[i] == b->strides.at[i];
    return matches;
}

/* ---- The gradient of the softmax --------------------------------------------------------------------------------- */

/* The sums before a factor, which is *factor; cuDNN's frontend multiplies them by 1, or with dropout by 1 - p. */
static const struct tensor *skip_factor(const struct attention_pattern *s, const struct tensor *sums, double *factor) {
    int node = pattern_producer(s, sums);
    const struct tensor *source = sums;
    *factor = 1;
    if (!pattern_is_pointwise(s, node) || pattern_pointwise(s, node)->pw->mode != WEFT_POINTWISE_MUL ||
        !pattern_is_exact(s, sums) || !pattern_read_factor(pattern_pointwise(s, node), &source, factor)) {
        *factor = 1;
        return sums;
    }
    return source;
}

/* The product u w of two tensors if `sums` are its row sums, under any view and factor. NULL otherwise, or if u or w is
   rounded, which attention's own sums are not. */
static const struct pointwise_op *row_sum_product(const struct attention_pattern *s, const struct tensor *sums) {
    double factor;
    sums = skip_factor(s, pattern_skip_view(s, sums), &factor);
    const struct reduction_op *sum = pattern_reduced_by(s, sums, WEFT_REDUCE_TENSOR_ADD);
    int node = sum ? pattern_producer(s, sum->x) : -1;
    bool is_exact = sum && pattern_is_exact(s, sum->y) && pattern_is_exact(s, sum->x);
    return is_exact && node >= 0 ? pointwise_reader(s, node, WEFT_POINTWISE_MUL) : NULL;
}

/* Matches P (dP - sums), the form of a framework's softmax gradient, at a subtraction node that reads dP. Fills in the
   softmax part of `g`, or leaves it unchanged and returns false. */
static bool find_difference(struct gradient *g, int reader) {
    const struct attention_pattern *s = g->s;
    const struct pointwise_op *difference = pointwise_reader(s, reader, WEFT_POINTWISE_SUB);
    const struct value *value = difference && difference->x == g->dp ? value_of(s, difference->y) : NULL;
    for (int i = 0; value && i < value->readers; i++) {
        const struct pointwise_op *product = pointwise_reader(s, value->read_by[i], WEFT_POINTWISE_MUL);
        if (!product || !row_sum_product(s, difference->b) || !pattern_is_exact(s, difference->y))
            continue;
        g->weights = other_factor(product, difference->y);
        g->sums = difference->b;
        g->ds = product->y;
        g->result[0] = difference->y;
        g->result[1] = product->y;
        return true;
    }
    return false;
}

/* Matches P dP - P sums, the form of decompositions, at the product node that reads dP. The sums use the same
   product. */
static bool find_products(struct gradient *g, int reader) {
    const struct attention_pattern *s = g->s;
    const struct pointwise_op *product = pointwise_reader(s, reader, WEFT_POINTWISE_MUL);
    const struct value *value = product && pattern_is_exact(s, product->y) ? value_of(s, product->y) : NULL;
    for (int i = 0; value && i < value->readers; i++) {
        const struct pointwise_op *difference = pointwise_reader(s, value->read_by[i], WEFT_POINTWISE_SUB);
        const struct pointwise_op *share =
            difference && difference->x == product->y && pattern_is_exact(s, difference->b)
                ? pattern_produced_by(s, difference->b, WEFT_POINTWISE_MUL)
                : NULL;
        const struct tensor *weights = other_factor(product, g->dp);
        const struct tensor *sums =
            share && share->alpha1 == 1 && share->alpha2 == 1 ? other_factor(share, weights) : NULL;
        if (!sums || !row_sum_product(s, sums))
            continue;
        g->weights = weights;
        g->sums = sums;
        g->ds = difference->y;
        g->result[0] = product->y;
        g->result[1] = share->y;
        g->result[2] = difference->y;
        return true;
    }
    return false;
}

/* The result of an operation that reads dP, if it may precede the softmax gradient: a view, a conversion, or dropout,
   whose scale factor is recorded. NULL otherwise. */
static const struct tensor *follow_dp(struct gradient *g, int reader) {
    struct attention_pattern *s = g->s;
    const struct reshape_op *view = pattern_view_at(s, reader);
    const struct tensor *source;
    double factor;
    if (view)
        return view->y;
    if (!pattern_is_pointwise(s, reader) || !pattern_is_exact(s, pattern_result(s, reader)))
        return NULL;
    if (pattern_read_factor(pattern_pointwise(s, reader), &source, &factor) && source == g->dp) {
        g->dropout_scale *= factor;
        return pattern_result(s, reader);
    }
    bool drops = pattern_match_dropout(s, pattern_pointwise(s, reader), &source, &g->dropout_scale) && source == g->dp;
    return drops ? pattern_result(s, reader) : NULL;
}

/* Follows dP to the gradient of the softmax. The search starts at every product of a graph, and stops here for most of
   them, so this has to be cheap. */
static weftStatus_t find_softmax_gradient(struct gradient *g, int node) {
    for (int depth = 0; depth < FOLLOW_DEPTH; depth++) {
        const struct value *value = value_of(g->s, g->dp);
        const struct tensor *next = NULL;
        if (!pattern_is_exact(g->s, g->dp))
            return pattern_decline_tensor(g->dp, "has a type to which attention does not round: leave it unset");
        /* Tries the difference first: if the sums are those of P dP, the product of both exists in either form. */
        for (int i = 0; i < value->readers; i++)
            if (find_difference(g, value->read_by[i]))
                return WEFT_STATUS_SUCCESS;
        for (int i = 0; i < value->readers; i++)
            if (find_products(g, value->read_by[i]))
                return WEFT_STATUS_SUCCESS;
        for (int i = 0; i < value->readers && !next; i++) {
            next = follow_dp(g, value->read_by[i]);
            TRY(next ? pattern_add(g->s, value->read_by[i]) : WEFT_STATUS_SUCCESS);
        }
        if (!next)
            break;
        g->dp = next;
    }
    return pattern_decline(g->s, node, "is not followed by the gradient of a softmax");
}

/* Adds the operations between dP and the gradient of the scores, and those of the sums: the row sums of P dP or of dO
   o, which are equal because o = P V. In the latter case g->o is the factor that is not dO. */
static weftStatus_t add_softmax_gradient(struct gradient *g) {
    struct attention_pattern *s = g->s;
    const struct tensor *sums = g->sums;
    const struct pointwise_op *factors = row_sum_product(s, sums);
    bool is_of_weights = other_factor(factors, g->weights) == g->dp;
    for (int i = 0; i < 3 && g->result[i]; i++)
        TRY(pattern_add(s, pattern_producer(s, g->result[i])));
    /* Sums of dO o that are stored are computed outside, from tensors that attention reads in either case. */
    const struct tensor *plain = skip_factor(s, pattern_skip_view(s, sums), &g->sums_factor);
    bool is_stored = pattern_is_read_outside(s, pattern_skip_view(s, sums)) || pattern_is_read_outside(s, sums);
    if (is_of_weights || !is_stored) {
        TRY(pattern_add_view(s, &sums));
        TRY(pattern_add(s, pattern_producer(s, sums)));
        TRY(pattern_add(s, pattern_producer(s, plain)));
        TRY(pattern_add(s, pattern_producer(s, factors->y)));
    }
    s->stored_sums = is_of_weights || !is_stored ? NULL : pattern_skip_view(s, sums);
    if (!(g->sums_factor > 0))
        return pattern_decline_tensor(g->sums, "has a factor that is not positive");
    g->dropout_scale /= g->sums_factor;
    if (is_of_weights)
        return WEFT_STATUS_SUCCESS;
    const struct tensor *d_o = skip_conversions(s, s->d_o.tensor), *sides[] = {factors->x, factors->b};
    for (int i = 0; i < 2 && !g->o; i++)
        if (skip_conversions(s, sides[i]) == d_o || skip_conversions(s, sides[i]) == skip_conversions(s, g->product->a))
            g->o = sides[1 - i];
    return g->o ? WEFT_STATUS_SUCCESS : pattern_decline_tensor(g->sums, "is not the row sums of P dP or of dO o");
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* Peels masks that hide differences of scores and statistics, as if they hid the scores. Sets `shifted` to the
   differences. */
static bool peel_late_masks(struct attention_pattern *s, const struct tensor **shifted) {
    const struct pointwise_op *select;
    while ((select = pattern_produced_by(s, *shifted, WEFT_POINTWISE_BINARY_SELECT))) {
        if (!pattern_is_exact(s, select->y) || pattern_add(s, pattern_producer(s, select->y)) ||
            pattern_gather(s, select->t, true) || !pattern_peel_infinite_mask(s, select))
            return false;
        *shifted = select->x;
    }
    return true;
}

/* True if one number per row is subtracted. */
static bool subtracts_rows(const struct attention_pattern *s, const struct pointwise_op *difference) {
    struct dims rows = difference->x->dims;
    rows.at[rows.count - 1] = 1;
    return difference->alpha1 == 1 && difference->alpha2 == 1 && pattern_is_exact(s, difference->y) &&
           is_same_dims(&difference->b->dims, &rows);
}

/* Matches exp(scores - statistics) with one statistic per row: weights recomputed from the statistics of a softmax. The
   statistics are assumed to belong to these scores; the portable kernels clamp weights to 1. Works on s itself and
   restores it on failure. */
static bool find_exponential(struct attention_pattern *s, const struct tensor *weights) {
    struct attention_pattern saved = *s;
    int node = pattern_producer(s, weights);
    const struct pointwise_op *exponential = pointwise_reader(s, node, WEFT_POINTWISE_EXP);
    const struct tensor *shifted = exponential ? exponential->x : NULL;
    if (!shifted)
        return false;
    s->scores = shifted; /* masks have the dims of the scores */
    const struct pointwise_op *difference =
        peel_late_masks(s, &shifted) ? pattern_produced_by(s, shifted, WEFT_POINTWISE_SUB) : NULL;
    if (!difference || !subtracts_rows(s, difference) || pattern_add(s, node) ||
        pattern_add(s, pattern_producer(s, difference->y))) {
        *s = saved;
        return false;
    }
    s->scores = difference->x;
    s->given_stats = difference->b;
    return true;
}

/* Matches from the weights up to the scores. Weights that are stored are declined: the kernels recompute weights from
   scores. */
static weftStatus_t find_softmax(struct gradient *g) {
    int node = pattern_producer(g->s, g->weights);
    if (node < 0)
        return pattern_decline_tensor(g->weights, "is stored in memory: attention recomputes weights from scores");
    if (!pattern_is_exact(g->s, g->weights))
        return pattern_decline_tensor(g->weights, "has a type to which attention does not round: leave it unset");
    return find_exponential(g->s, g->weights) ? WEFT_STATUS_SUCCESS : pattern_match_softmax(g->s, node);
}

/* ---- Products that read a tensor of the scores' extents ---------------------------------------------------------- */

/* Records a product that reads X, or the transpose of X if is_transposed. The definition has X y and X^T y. The
   gradient of a transposed operand has y^T X, the transpose of the latter. The fourth form, y X^T, does not occur. */
static weftStatus_t record_product(struct readers *r, struct attention_pattern *s, int node, const struct tensor *read,
                                   const struct tensor *x, bool is_transposed) {
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, node);
    bool is_first = op->a == read;
    if ((is_first && op->b == read) || (!is_first && is_transposed))
        return pattern_decline(s, node, "is not one of the products in the backward pass of attention");
    /* A transpose may convert, as the rounding of weights to the type of the other factor. */
    if (is_transposed && x && x->type != read->type)
        TRY(pattern_check_weights(s, read, is_first ? op->b : op->a));
    int *match = is_first && !is_transposed ? &r->rows : &r->columns;
    if (*match >= 0)
        return pattern_decline(s, node, "is a second product of the same weights or of their gradient");
    *match = node;
    if (match == &r->rows) {
        r->of_rows = x;
    } else {
        r->of_columns = x;
        r->is_transposed_result = !is_first;
    }
    return pattern_check_product(s, node);
}

/* Follows the readers of a tensor to products, and adds the operations in between. These may form several branches,
   because dQ and dK may have separate conversions. x is the tensor before its transpose, if there was one. Nodes that
   are added here and lead to no product are detected at the end, because no node of the pattern reads them. */
static weftStatus_t follow_readers(struct readers *r, struct attention_pattern *s, const struct tensor *tensor,
                                   const struct tensor *x, bool is_transposed, int depth) {
    const struct value *value = value_of(s, tensor);
    for (int i = 0; i < value->readers && depth > 0; i++) {
        int node = value->read_by[i];
        const struct descriptor *op = pattern_op(s, node);
        const struct reshape_op *view = pattern_view_at(s, node);
        const struct tensor *from, *swapped;
        if (pattern_contains(s, node))
            continue;
        if (op_of(op) == &matmul_op) {
            TRY(record_product(r, s, node, tensor, is_transposed ? x : tensor, is_transposed));
        } else if (view) {
            TRY(pattern_add(s, node));
            TRY(follow_readers(r, s, view->y, x, is_transposed, depth - 1));
        } else if (pattern_swaps(s, node, &from, &swapped) && swapped->is_virtual) {
            TRY(pattern_add(s, node));
            TRY(follow_readers(r, s, swapped, is_transposed ? NULL : tensor, !is_transposed, depth - 1));
        } else if (pattern_is_pointwise(s, node) && pattern_form(s, node) != FORM_INDEX && !is_transposed &&
                   tensor_same_dims(pattern_result(s, node), s->scores)) {
            TRY(pattern_add(s, node));
            TRY(follow_readers(r, s, pattern_result(s, node), x, false, depth - 1));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

/* Follows an operand of a product back to the weights, through conversions, views, and the same dropout as in the
   backward pass. Works on a copy: the nodes have been added already, and dropout must be matched again. */
static weftStatus_t check_dropped(const struct gradient *g, int product, const struct tensor *read,
                                  const struct tensor *other) {
    struct attention_pattern trial = *g->s; /* a copy, because the search must find nodes that the pattern contains
                                               already */
    double dropout_scale = 1, factor;
    trial.dropout = NULL, trial.drop_mask = NULL;
    for (int node; read != g->weights;) {
        const struct tensor *source;
        node = pattern_producer(&trial, read);
        if (node < 0)
            return pattern_decline(g->s, product, "does not multiply the weights");
        const struct reshape_op *view = pattern_view_at(&trial, node);
        if (view) {
            read = view->x;
            continue;
        }
        TRY(pattern_check_weights(&trial, read, other));
        if (!pattern_is_pointwise(&trial, node))
            return pattern_decline(g->s, product, "does not multiply the weights");
        if (pattern_read_factor(pattern_pointwise(&trial, node), &source, &factor))
            dropout_scale *= factor;
        else if (!pattern_match_dropout(&trial, pattern_pointwise(&trial, node), &source, &dropout_scale))
            return pattern_decline(g->s, product, "does not multiply the weights");
        read = source;
    }
    if (trial.dropout != g->s->dropout || trial.drop_mask != g->s->drop_mask ||
        (trial.drop_mask && dropout_scale != g->s->dropout_scale))
        return pattern_decline(g->s, product, "applies a different dropout than the gradient of the weights");
    return pattern_check_dropout(&trial, product, dropout_scale);
}

/* ---- O and dV ---------------------------------------------------------------------------------------------------- */

/* Adds dV or dK, [.., key, column], and `other`, dO or q, [.., query, column], as stored in memory. A transposed
   product has both transposed. factor: receives scale factors of result and operand; NULL if none are allowed. */
static weftStatus_t add_columns_result(struct attention_pattern *s, const struct readers *r,
                                       struct pattern_view *result, struct pattern_view *other, double *factor) {
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, r->columns);
    *result = pattern_view_of(op->c, op);
    *other = pattern_view_of(r->is_transposed_result ? op->a : op->b, op);
    TRY(pattern_look_through(s, other, r->columns, factor));
    if (r->is_transposed_result)
        pattern_swap_last(other);
    return pattern_follow_result(s, result, r->is_transposed_result, factor);
}

/* Adds o or dQ, [.., query, column], and `other`, values or keys, [.., key, column]. */
static weftStatus_t add_rows_result(struct attention_pattern *s, const struct readers *r, struct pattern_view *result,
                                    struct pattern_view *other, double *factor) {
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, r->rows);
    *result = pattern_view_of(op->c, op);
    *other = pattern_view_of(op->b, op);
    TRY(pattern_look_through(s, other, r->rows, factor));
    return pattern_follow_result(s, result, false, factor);
}

/* dV = dropout(P)^T dO; optional. */
static weftStatus_t find_dv(struct gradient *g) {
    struct attention_pattern *s = g->s;
    struct pattern_view d_o;
    if (g->of_weights.columns < 0)
        return WEFT_STATUS_SUCCESS;
    TRY(add_columns_result(s, &g->of_weights, &s->dv, &d_o, NULL));
    if (!is_same_view(&d_o, &s->d_o))
        return pattern_decline(s, g->of_weights.columns, "multiplies the weights by a tensor other than dO");
    return check_dropped(g, g->of_weights.columns, g->of_weights.of_columns, d_o.tensor);
}

/* If the graph computes O from the same weights, one step computes O and the gradients. The sums of dO o must use this
   O. */
static weftStatus_t find_computed_o(struct gradient *g) {
    struct attention_pattern *s = g->s;
    struct pattern_view v;
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, g->of_weights.rows);
    TRY(add_rows_result(s, &g->of_weights, &s->o, &v, NULL));
    if (!is_same_view(&v, &s->v))
        return pattern_decline(s, g->of_weights.rows, "multiplies the weights by a tensor other than the values");
    if (s->given_stats)
        return pattern_decline(s, g->of_weights.rows, "computes o from weights whose statistics are inputs");
    if (g->o && g->o != s->o.tensor && skip_conversions(s, g->o) != op->c)
        return pattern_decline_tensor(g->o, "is not the o that these weights produce");
    s->computes_o = true;
    for (const struct tensor *tensor = g->o; tensor && tensor != s->o.tensor && tensor != op->c;) {
        /* Nodes between O and its sums become part of the step. Outside, they would depend on the step and the step on
           them: a cycle. */
        int node = pattern_producer(s, tensor);
        const struct reshape_op *view = pattern_view_at(s, node);
        TRY(pattern_add(s, node));
        tensor = view ? view->x : pattern_pointwise(s, node)->x;
    }
    return check_dropped(g, g->of_weights.rows, g->of_weights.of_rows, v.tensor);
}

/* Finds a stored O through the sums of dO o. Without a stored O, a separate forward pass recomputes it. That is
   possible only if it also computes the statistics, because with given statistics the weights would differ. */
static weftStatus_t find_stored_o(struct gradient *g) {
    struct attention_pattern *s = g->s;
    if (!g->o)
        return s->given_stats
                   ? pattern_decline_tensor(g->sums, "needs o as an input, because the statistics are inputs")
                   : WEFT_STATUS_SUCCESS;
    s->o = (struct pattern_view){g->o, g->o->dims, g->o->strides, s->d_o.product_dims};
    double factor;
    const struct tensor *sums = skip_factor(s, pattern_skip_view(s, g->sums), &factor);
    return pattern_look_through(s, &s->o, pattern_producer(s, sums), NULL);
}

/* ---- After the gradient of the scores ---------------------------------------------------------------------------- */

/* True if a forward operation hides the scores where a mask is false (`keeps_true`) or true, by -inf or by a number
   that became a bound. The weights are 0 there, and so is their gradient without any further operation. The operation
   must be the last one on the scores, or all operations after it must have been peeled: a later operation could turn
   -inf into a finite number. */
static bool is_hidden_by(const struct attention_pattern *s, const struct tensor *mask, bool keeps_true) {
    const struct value *value = value_of(s, mask);
    for (int i = 0; i < value->readers; i++) {
        int index = pattern_index(s, value->read_by[i]);
        const struct pointwise_op *op =
            index >= 0 ? pointwise_reader(s, value->read_by[i], WEFT_POINTWISE_BINARY_SELECT) : NULL;
        double hidden;
        bool hides = op && op->t == mask && pattern_read_constant(keeps_true ? op->b : op->x, &hidden);
        bool is_last = hides && (op->y == s->scores || op->y == s->modified);
        bool is_peeled = hides && !s->nodes[index].modifies && !s->nodes[index].modifies_gradient && hidden < -1e30;
        if (is_peeled || (is_last && hidden == -INFINITY))
            return true;
    }
    return false;
}

/* The gradient of the scores after an operation that does not change it: a conversion, or a select that writes zeros
   where a mask hides scores. NULL if the operation is neither. */
static const struct tensor *follow_same(const struct attention_pattern *s, const struct tensor *gradient, int node) {
    const struct pointwise_op *same = pointwise_reader(s, node, WEFT_POINTWISE_IDENTITY);
    const struct pointwise_op *select = pointwise_reader(s, node, WEFT_POINTWISE_BINARY_SELECT);
    double zero;
    if (same && pattern_is_exact(s, same->y) && tensor_same_dims(same->y, gradient))
        return same->y;
    if (!select || !pattern_is_exact(s, select->y))
        return NULL;
    if (select->x == gradient && pattern_read_constant(select->b, &zero) && zero == 0 &&
        is_hidden_by(s, select->t, true))
        return select->y;
    bool is_complement = select->b == gradient && pattern_read_constant(select->x, &zero) && zero == 0;
    return is_complement && is_hidden_by(s, select->t, false) ? select->y : NULL;
}

/* Records the gradient of a bias that is smaller than the scores: the sums over the broadcast extents. */
static weftStatus_t record_dbias(struct attention_pattern *s, const struct tensor *gradient) {
    const struct value *value = value_of(s, gradient);
    for (int i = 0; s->bias && i < value->readers; i++) {
        const struct descriptor *op = pattern_op(s, value->read_by[i]);
        const struct reduction_op *sum = (const struct reduction_op *)op;
        if (op_of(op) != &reduction_op || sum->parameters->mode != WEFT_REDUCE_TENSOR_ADD || s->dbias ||
            !tensor_same_dims(sum->y, s->bias))
            continue;
        TRY(pattern_check_math(s, op, reduction_math(sum)));
        TRY(pattern_add(s, value->read_by[i]));
        s->dbias = sum->y;
    }
    return WEFT_STATUS_SUCCESS;
}

/* Follows dS to s->d_modified, the gradient of the modifier's output. Masks and bias come in between, because the
   forward pass applies them after the modifier. Also finds the gradient of the bias, which is this gradient itself if
   both have the same extents. */
static weftStatus_t find_d_modified(struct gradient *g) {
    struct attention_pattern *s = g->s;
    const struct tensor *next = g->ds;
    for (int depth = 0; next && depth < FOLLOW_DEPTH; depth++) {
        s->d_modified = next;
        next = NULL;
        TRY(record_dbias(s, s->d_modified));
        const struct value *value = value_of(s, s->d_modified);
        for (int i = 0; i < value->readers && !next; i++)
            next = pattern_contains(s, value->read_by[i]) ? follow_same(s, s->d_modified, value->read_by[i]) : NULL;
    }
    bool is_wanted = s->bias && !s->dbias && pattern_is_read_outside(s, s->d_modified);
    if (is_wanted && tensor_same_dims(s->d_modified, s->bias))
        s->dbias = s->d_modified;
    return WEFT_STATUS_SUCCESS;
}

/* Follows an operand of a product back through scale factors until their product, *factor, is attention's scale.
   Factors before that may belong to the modifier, such as the c of c tanh(x / c). If the product never reaches the
   scale, all factors are stripped, and *factor becomes a part of the modifier's gradient. */
static const struct tensor *strip_factors(const struct attention_pattern *s, const struct tensor *read, double *factor,
                                          bool *has_scale) {
    *has_scale = false;
    for (int node; read != s->d_modified && (node = pattern_producer(s, read)) >= 0;) {
        const struct reshape_op *view = pattern_view_at(s, node);
        const struct pointwise_op *op = pattern_is_pointwise(s, node) ? pattern_pointwise(s, node) : NULL;
        const struct tensor *source = NULL;
        double number = 1;
        bool is_scale = op && s->scale && !*has_scale && pointwise_reader(s, node, WEFT_POINTWISE_MUL) &&
                        other_factor(op, s->scale);
        if (view)
            source = view->x;
        else if (is_scale)
            source = other_factor(op, s->scale);
        else if (!op || !pattern_read_factor(op, &source, &number) ||
                 (number != 1 && fabs(*factor / s->scale_value - 1) < CLOSE))
            break;
        /* With a narrower tensor between factors, values would be rounded twice; attention rounds once. */
        if (source != s->d_modified && !pattern_is_exact(s, source))
            break;
        *has_scale = *has_scale || is_scale;
        *factor *= number;
        read = source;
    }
    return read;
}

/* Marks the operations between the modifier's input, the incoming gradient and a tensor of the modifier's backward
   pass. Forward operations that are no longer part of the modifier, such as masks that became bounds, are emitted again
   if the backward pass reads them. */
static void mark_gradient_nodes(struct attention_pattern *s, const struct tensor *tensor) {
    int node = pattern_producer(s, tensor), index = node < 0 ? -1 : pattern_index(s, node);
    if (index < 0 || tensor == s->d_modified || tensor == s->product || !pattern_is_pointwise(s, node) ||
        s->nodes[index].modifies || s->nodes[index].modifies_gradient)
        return;
    s->nodes[index].modifies_gradient = true;
    if (pattern_form(s, node) == FORM_INDEX)
        return;
    struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, node));
    mark_gradient_nodes(s, operands.x);
    mark_gradient_nodes(s, operands.b);
    mark_gradient_nodes(s, operands.t);
}

/* Matches dQ or dK: its operand, without the scale, is where the modifier's backward pass ends. factor: receives the
   scale factors of the result and of the other operand. One kernel computes dQ and dK, so both must read the same
   tensor with the same factor. */
static weftStatus_t find_operand_gradient(struct gradient *g, int node, const struct tensor *read, double factor,
                                          const struct tensor *other) {
    struct attention_pattern *s = g->s;
    bool has_scale;
    factor *= g->sums_factor;
    if (!pattern_is_exact(s, read) && read->type != other->type)
        return pattern_decline_tensor(read, "has a type to which attention does not round: leave it unset");
    const struct tensor *end = strip_factors(s, read, &factor, &has_scale);
    if (has_scale != (s->scale != NULL))
        return pattern_decline(s, node, "has a different scale than the scores");
    if (s->d_product && (s->d_product != end || fabs(factor / s->d_product_factor - 1) > CLOSE))
        return pattern_decline(s, node, "has a different factor than the other gradient");
    s->d_product = end;
    s->d_product_factor = factor;
    return WEFT_STATUS_SUCCESS;
}

/* cuDNN's frontend stores the sums of dQ as FLOAT, and converts them. Attention computes the converted result, from
   which a copy restores the other tensor. */
static weftStatus_t follow_sums_of_dq(struct attention_pattern *s) {
    const struct tensor *sums = s->dq.tensor;
    int node = sums->is_virtual ? -1 : pattern_sole_reader(s, sums);
    const struct pointwise_op *same = node < 0 ? NULL : pointwise_reader(s, node, WEFT_POINTWISE_IDENTITY);
    if (!same || sums->type != WEFT_DATA_FLOAT || same->y->is_virtual || same->y->type != s->q.tensor->type ||
        dtype_of((weftDataType_t)same->y->type)->bits != 16 || !tensor_same_dims(sums, same->y) ||
        !tensor_same_dims(sums, s->q.tensor))
        return WEFT_STATUS_SUCCESS;
    s->dq_sums = s->dq;
    s->dq.tensor = same->y;
    s->dq.strides = same->y->strides;
    return pattern_add(s, node);
}

/* Matches dQ = dS k and dK = dS^T q; one of them is enough. Then determines the factor that remains after attention's
   own scale. */
static weftStatus_t find_operand_gradients(struct gradient *g) {
    struct attention_pattern *s = g->s;
    const struct readers *r = &g->of_ds;
    struct pattern_view q, k;
    double of_q = 1, of_k = 1;
    if (r->rows >= 0) {
        TRY(add_rows_result(s, r, &s->dq, &k, &of_q));
        if (!is_same_view(&k, &s->k))
            return pattern_decline(s, r->rows, "multiplies the gradient of the scores by a tensor other than the keys");
        TRY(find_operand_gradient(g, r->rows, r->of_rows, of_q, k.tensor));
        TRY(follow_sums_of_dq(s));
    }
    if (r->columns >= 0) {
        TRY(add_columns_result(s, r, &s->dk, &q, &of_k));
        if (!is_same_view(&q, &s->q))
            return pattern_decline(s, r->columns,
                                   "multiplies the gradient of the scores by a tensor other than the queries");
        TRY(find_operand_gradient(g, r->columns, r->of_columns, of_k, q.tensor));
    }
    if (r->rows < 0 && r->columns < 0)
        return pattern_decline_tensor(g->ds, "is multiplied by neither keys nor queries");
    if (s->scale_value == 0) /* all factors of a gradient are 0, so the scale cannot be identified */
        return pattern_decline_tensor(g->ds, "is the gradient of scores with the scale 0");
    s->d_product_factor /= s->scale_value;
    if (fabs(s->d_product_factor - 1) < CLOSE)
        s->d_product_factor = 1;
    mark_gradient_nodes(s, s->d_product);
    return WEFT_STATUS_SUCCESS;
}

/* Checks the differences between kernels and pattern: the kernels round dS once, when it becomes an operand, and
   without a modifier they multiply it only by the scale of the scores. */
static weftStatus_t check_d_modified(const struct gradient *g) {
    const struct attention_pattern *s = g->s;
    bool is_plain = s->d_modified == s->d_product && s->d_product_factor == 1;
    if ((s->d_modified != s->d_product || (s->dbias && s->dbias != s->d_modified)) &&
        !pattern_is_exact(s, s->d_modified))
        return pattern_decline_tensor(s->d_modified, "has a type to which attention does not round: leave it unset");
    if ((!is_plain || s->dbias) && g->sums_factor != 1)
        return pattern_decline_tensor(g->sums, "has a factor, and a score modifier or a bias has a gradient");
    if (!is_plain && s->modified == s->product && !s->is_rounded && s->d_modified == s->d_product)
        return pattern_decline_tensor(g->ds, "has a different scale than the scores");
    return WEFT_STATUS_SUCCESS;
}

/* ---- The whole pattern ------------------------------------------------------------------------------------------- */

/* Removes views that other nodes read, too: they are computed outside, and attention reads their source in either case.
   Goes backwards, because a view that is removed reads the previous one. */
static void remove_views(struct attention_pattern *s) {
    for (int i = s->count; i-- > 0;) {
        const struct node *node = &s->graph->nodes[s->nodes[i].node];
        for (int k = 0; k < node->operand_count && s->nodes[i].is_view; k++)
            if (node->is_output[k] && pattern_is_read_outside(s, s->graph->values[node->operands[k]].tensor)) {
                pattern_remove(s, i);
                break;
            }
    }
}

/* Adds other inputs of the backward pass's operations, beginning with index `first`, such as the derivative of a
   modifier. They are not part of the forward modifier. */
static weftStatus_t gather_other_inputs(struct attention_pattern *s, int first) {
    for (int i = first, count = s->count; i < count; i++) {
        if (!pattern_is_pointwise(s, s->nodes[i].node))
            continue;
        struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, s->nodes[i].node));
        TRY(pattern_gather(s, operands.x, false));
        TRY(pattern_gather(s, operands.b, false));
        TRY(pattern_gather(s, operands.t, false));
    }
    return WEFT_STATUS_SUCCESS;
}

/* Matches all consumers of the weights and of dS, and the producers of the scores. Weights come first: nodes that read
   both belong to the weights. */
static weftStatus_t find_products_and_scores(struct gradient *g) {
    struct attention_pattern *s = g->s;
    g->of_weights = g->of_ds = (struct readers){.rows = -1, .columns = -1};
    TRY(follow_readers(&g->of_weights, s, g->weights, NULL, false, FOLLOW_DEPTH));
    int first = s->count;
    TRY(follow_readers(&g->of_ds, s, g->ds, NULL, false, FOLLOW_DEPTH));
    TRY(gather_other_inputs(s, first));
    TRY(find_dv(g));
    TRY(g->of_weights.rows >= 0 ? find_computed_o(g) : find_stored_o(g));
    pattern_split_scores(s);
    TRY(find_d_modified(g));
    TRY(find_operand_gradients(g));
    return check_d_modified(g);
}

/* On failure, is_gradient is true only if the reason is worth reporting: products without a subsequent softmax gradient
   are not attention at all. Time is linear in the size of the match and in the number of readers of its tensors. */
weftStatus_t attention_pattern_match_gradient(struct attention_pattern *match, const struct graph *graph, int node) {
    *match = pattern_empty(graph);
    struct gradient g = {.s = match, .dropout_scale = 1, .sums_factor = 1};
    match->is_gradient = true;
    TRY(pattern_check_product(match, node));
    g.product = (const struct matmul_op *)graph->nodes[node].op;
    g.dp = g.product->c;
    weftStatus_t status = find_softmax_gradient(&g, node);
    match->is_gradient = status == WEFT_STATUS_SUCCESS;
    TRY(status);
    match->d_o = pattern_view_of(g.product->a, g.product);
    match->v = pattern_view_of(g.product->b, g.product);
    TRY(pattern_look_through(match, &match->d_o, node, NULL));
    TRY(pattern_look_through(match, &match->v, node, NULL));
    pattern_swap_last(&match->v);
    TRY(add_softmax_gradient(&g));
    TRY(find_softmax(&g));
    TRY(pattern_check_dropout(match, node, g.dropout_scale));
    TRY(pattern_gather_scores(match));
    TRY(find_products_and_scores(&g));
    pattern_sort(match);
    remove_views(match);
    return pattern_check_closed(match);
}
