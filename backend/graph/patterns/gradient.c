/* SPDX-License-Identifier: Apache-2.0 */
/* Finding gradients of attention that are spelled out. The search begins at dP = dO V^T. Behind it is the gradient of
   the softmax, dS = P (dP - sums of rows), which names the weights P; from these upwards the scores are found as those
   of attention forward are, and downwards O = P V and dV = P^T dO; behind dS, dQ = dS K and dK = dS^T Q. The order
   matters: scores are parted (scale, bias, masks, modifier) when all that reads them is known, as an operation that
   others read, too, would be left to these; and the way back from dS is read when the parts of the scores are known, as
   it must have the same scale, bias and masks. Nothing here writes the operations: see write.c. */
#include "graph/ops/reshape.h"
#include "graph/ops/softmax.h"
#include "graph/ops/transpose.h"
#include "graph/patterns/attention.h"
#include "graph/patterns/match.h"

#include <math.h>
#include <string.h>

/* Operations between the gradient of the softmax and a product: bounds the recursion. */
enum { FOLLOW_DEPTH = 24 };
/* Two factors that differ by less, relatively, are one: frameworks round a scale to FLOAT on one way and not on the
   other. */
static const double CLOSE = 1e-6;

/* Products that read one tensor of scores' extents, under views and transposes; -1: none. */
struct readers {
    int rows;                                  /* X y: a row for each query */
    int columns;                               /* X^T y, or (y^T X)^T: a row for each key */
    bool is_transposed_result;                 /* the latter */
    const struct tensor *of_rows, *of_columns; /* X as each reads it, before it was transposed */
};

/* The search as it goes: `s` is what is found, all else is needed until the end of the search alone. Tensors are those
   of the whole graph. */
struct gradient {
    struct attention_pattern *s;
    const struct matmul_op *product; /* dO V^T */
    const struct tensor *dp;         /* its result, without what dropout dropped of it */
    const struct tensor *weights;    /* P, before dropout */
    const struct tensor *sums;       /* subtracted from dp */
    const struct tensor *ds;         /* the gradient of the scores as the softmax takes them, */
    const struct tensor *made[3];    /* and what is made on the way to it from dp, weights and sums */
    double growth;                   /* of dp by dropout */
    struct readers of_weights, of_ds;
    const struct tensor *o; /* of which sums are made; NULL: they are made of weights */
};

/* ---- Around a tensor --------------------------------------------------------------------------------------------- */

/* A tensor of the graph, with its readers in order. */
static const struct value *value_of(const struct attention_pattern *s, const struct tensor *tensor) {
    return &s->graph->values[graph_find_value(s->graph, tensor)];
}

/* Extents alone: strides may differ. */
static bool is_same_dims(const struct dims *a, const struct dims *b) {
    return a->count == b->count && memcmp(a->at, b->at, (size_t)a->count * sizeof *a->at) == 0;
}

/* The pointwise operation at a node, of this mode and without alphas, which would scale its operands; NULL: something
   else is there. */
static const struct pointwise_op *reads_by(const struct attention_pattern *s, int reader, int mode) {
    const struct pointwise_op *op = pattern_is_pointwise(s, reader) ? pattern_pointwise(s, reader) : NULL;
    return op && op->pw->mode == mode && op->alpha1 == 1 && op->alpha2 == 1 ? op : NULL;
}

/* Of a product of two tensors, the one that is not `one`; NULL: that is none of the two. */
static const struct tensor *other_factor(const struct pointwise_op *op, const struct tensor *one) {
    return op->x == one ? op->b : op->b == one ? op->x : NULL;
}

/* A tensor under other extents, or before a conversion that keeps its numbers: dO, and o, are often made FLOAT before
   they are multiplied. Transposes are not looked through: the product of two tensors is elementwise. */
static const struct tensor *root_of(const struct attention_pattern *s, const struct tensor *tensor) {
    for (int node; (node = pattern_producer(s, tensor)) >= 0;) {
        const struct pointwise_op *same = reads_by(s, node, WEFT_POINTWISE_IDENTITY);
        const struct reshape_op *view = pattern_view_at(s, node);
        if (!view && !(same && pattern_is_exact(s, same->y)))
            break;
        tensor = view ? view->x : same->x;
    }
    return tensor;
}

/* Whether two products read the same elements at the same places. Both views have been looked through to memory, so the
   keys of q k^T and those of dS k are compared as they lie, however often they were transposed. */
static bool is_same_view(const struct pattern_view *a, const struct pattern_view *b) {
    bool is = a->tensor == b->tensor && is_same_dims(&a->dims, &b->dims);
    for (int64_t i = 0; is && i < a->dims.count; i++)
        is = a->dims.at[i] == 1 || a->strides.at[i] == b->strides.at[i];
    return is;
}

/* ---- The gradient of the softmax --------------------------------------------------------------------------------- */

/* The product u w of two tensors whose sums of rows a tensor is, under any view; NULL: it is something else, or one of
   the two is rounded on the way, as attention's own sums are not. */
static const struct pointwise_op *summed(const struct attention_pattern *s, const struct tensor *sums) {
    const struct reduction_op *sum = pattern_reduced_by(s, pattern_skip_view(s, sums), WEFT_REDUCE_TENSOR_ADD);
    int node = sum ? pattern_producer(s, sum->x) : -1;
    bool is_exact = sum && pattern_is_exact(s, sum->y) && pattern_is_exact(s, sum->x);
    return is_exact && node >= 0 ? reads_by(s, node, WEFT_POINTWISE_MUL) : NULL;
}

/* P (dP - sums), by the subtraction at a node that reads dP. A framework's softmax gradient spells it so. Fills in what
   `g` has of the softmax; false leaves it alone. */
static bool find_difference(struct gradient *g, int reader) {
    const struct attention_pattern *s = g->s;
    const struct pointwise_op *difference = reads_by(s, reader, WEFT_POINTWISE_SUB);
    const struct value *value = difference && difference->x == g->dp ? value_of(s, difference->y) : NULL;
    for (int i = 0; value && i < value->readers; i++) {
        const struct pointwise_op *product = reads_by(s, value->read_by[i], WEFT_POINTWISE_MUL);
        if (!product || !summed(s, difference->b) || !pattern_is_exact(s, difference->y))
            continue;
        g->weights = other_factor(product, difference->y);
        g->sums = difference->b;
        g->ds = product->y;
        g->made[0] = difference->y;
        g->made[1] = product->y;
        return true;
    }
    return false;
}

/* P dP - P sums, by the product at a node that reads dP: the same with the product that the sums need, too, as
   decompositions spell it. */
static bool find_products(struct gradient *g, int reader) {
    const struct attention_pattern *s = g->s;
    const struct pointwise_op *product = reads_by(s, reader, WEFT_POINTWISE_MUL);
    const struct value *value = product && pattern_is_exact(s, product->y) ? value_of(s, product->y) : NULL;
    for (int i = 0; value && i < value->readers; i++) {
        const struct pointwise_op *difference = reads_by(s, value->read_by[i], WEFT_POINTWISE_SUB);
        const struct pointwise_op *share =
            difference && difference->x == product->y && pattern_is_exact(s, difference->b)
                ? pattern_produced_by(s, difference->b, WEFT_POINTWISE_MUL)
                : NULL;
        const struct tensor *weights = other_factor(product, g->dp);
        const struct tensor *sums =
            share && share->alpha1 == 1 && share->alpha2 == 1 ? other_factor(share, weights) : NULL;
        if (!sums || !summed(s, sums))
            continue;
        g->weights = weights;
        g->sums = sums;
        g->ds = difference->y;
        g->made[0] = product->y;
        g->made[1] = share->y;
        g->made[2] = difference->y;
        return true;
    }
    return false;
}

/* What an operation that reads dP makes of it on the way to the gradient of the softmax: a view, a conversion, dropout,
   whose growth is noted; NULL: it is not on that way. */
static const struct tensor *follow_dp(struct gradient *g, int reader) {
    struct attention_pattern *s = g->s;
    const struct reshape_op *view = pattern_view_at(s, reader);
    const struct tensor *before;
    double factor;
    if (view)
        return view->y;
    if (!pattern_is_pointwise(s, reader) || !pattern_is_exact(s, pattern_result(s, reader)))
        return NULL;
    if (pattern_read_factor(pattern_pointwise(s, reader), &before, &factor) && before == g->dp) {
        g->growth *= factor;
        return pattern_result(s, reader);
    }
    bool drops = pattern_match_dropout(s, pattern_pointwise(s, reader), &before, &g->growth) && before == g->dp;
    return drops ? pattern_result(s, reader) : NULL;
}

/* Goes on from dP until the gradient of the softmax is found. Most products of a graph end here at once, which keeps
   the search cheap: it is begun at every product. */
static weftStatus_t find_softmax_gradient(struct gradient *g, int node) {
    for (int depth = 0; depth < FOLLOW_DEPTH; depth++) {
        const struct value *value = value_of(g->s, g->dp);
        const struct tensor *next = NULL;
        if (!pattern_is_exact(g->s, g->dp))
            return pattern_decline_tensor(g->dp, "has a type to which attention does not round: leave it unset");
        /* The difference first: where the sums are those of P dP, a product of both is here in any case. */
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
    return pattern_decline(g->s, node, "no gradient of a softmax is behind it");
}

/* Takes the operations from dP to the gradient of the scores, and what the sums are made of: P dP, or dO o, which is
   the same number, as o is the sum of weights times values. Of the latter g->o is the other factor than dO. */
static weftStatus_t take_softmax_gradient(struct gradient *g) {
    struct attention_pattern *s = g->s;
    const struct tensor *sums = g->sums;
    const struct pointwise_op *factors = summed(s, sums);
    bool is_of_weights = other_factor(factors, g->weights) == g->dp;
    for (int i = 0; i < 3 && g->made[i]; i++)
        TRY(pattern_add(s, pattern_producer(s, g->made[i])));
    TRY(pattern_add_view(s, &sums));
    TRY(pattern_add(s, pattern_producer(s, sums)));
    TRY(pattern_add(s, pattern_producer(s, factors->y)));
    if (is_of_weights)
        return WEFT_STATUS_SUCCESS;
    const struct tensor *d_o = root_of(s, s->d_o.tensor), *sides[] = {factors->x, factors->b};
    for (int i = 0; i < 2 && !g->o; i++)
        if (root_of(s, sides[i]) == d_o || root_of(s, sides[i]) == root_of(s, g->product->a))
            g->o = sides[1 - i];
    return g->o ? WEFT_STATUS_SUCCESS : pattern_decline_tensor(g->sums, "is no sum of P dP, or of dO o, of a row");
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* e^(scores - statistics), a number for each row: the weights made again by what a softmax has kept. Statistics are
   taken for those of these scores, as attention's own gradient takes them: the portable kernels cut weights to 1. */
static bool find_exponential(struct attention_pattern *s, const struct tensor *weights) {
    int node = pattern_producer(s, weights);
    const struct pointwise_op *exponential = reads_by(s, node, WEFT_POINTWISE_EXP);
    const struct pointwise_op *difference =
        exponential ? pattern_produced_by(s, exponential->x, WEFT_POINTWISE_SUB) : NULL;
    if (!difference || difference->alpha1 != 1 || difference->alpha2 != 1 || !pattern_is_exact(s, difference->y))
        return false;
    struct dims rows = difference->x->dims;
    rows.at[rows.count - 1] = 1;
    if (!is_same_dims(&difference->b->dims, &rows))
        return false;
    s->scores = difference->x;
    s->given_stats = difference->b;
    return !pattern_add(s, node) && !pattern_add(s, pattern_producer(s, exponential->x));
}

/* From the weights to the scores. Weights that come from memory have no scores to be made of again: reading them is
   what the kernels avoid. */
static weftStatus_t find_softmax(struct gradient *g) {
    int node = pattern_producer(g->s, g->weights);
    if (node < 0)
        return pattern_decline_tensor(g->weights, "is stored: the weights of attention are made again from scores");
    if (!pattern_is_exact(g->s, g->weights))
        return pattern_decline_tensor(g->weights, "has a type to which attention does not round: leave it unset");
    return find_exponential(g->s, g->weights) ? WEFT_STATUS_SUCCESS : pattern_match_softmax(g->s, node);
}

/* ---- Products that read a tensor of scores' extents -------------------------------------------------------------- */

/* Whether a transpose exchanges the last two dimensions, and no other. */
static bool is_swap(const struct transpose_op *op) {
    int64_t last = op->permutation.count - 1;
    bool is = last >= 1 && op->permutation.at[last] == last - 1 && op->permutation.at[last - 1] == last;
    for (int64_t i = 0; is && i < last - 1; i++)
        is = op->permutation.at[i] == i;
    return is;
}

/* Notes a product that reads X, or, where is_transposed, the transpose of X. Four forms would be possible: X y and
   X^T y are those of the definition, y^T X is the transpose of the second, as the gradient of a transposed operand is
   spelled; y X^T, the transpose of the first, is nobody's. */
static weftStatus_t note_product(struct readers *r, struct attention_pattern *s, int node, const struct tensor *read,
                                 const struct tensor *x, bool is_transposed) {
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, node);
    bool is_first = op->a == read;
    if ((is_first && op->b == read) || (!is_first && is_transposed))
        return pattern_decline(s, node, "is no product that gradients of attention have");
    int *found = is_first && !is_transposed ? &r->rows : &r->columns;
    if (*found >= 0)
        return pattern_decline(s, node, "is one more product of the same weights, or of their gradient");
    *found = node;
    if (found == &r->rows) {
        r->of_rows = x;
    } else {
        r->of_columns = x;
        r->is_transposed_result = !is_first;
    }
    return pattern_check_product(s, node);
}

/* Follows readers of a tensor to products and takes the operations on the way, one after the other or side by side: dQ
   and dK may have conversions of their own. x: the tensor before its transpose, where one is on the way. What is taken
   here and leads to no product is found at the end, as nobody in the attention reads it. */
static weftStatus_t follow_readers(struct readers *r, struct attention_pattern *s, const struct tensor *tensor,
                                   const struct tensor *x, bool is_transposed, int depth) {
    const struct value *value = value_of(s, tensor);
    for (int i = 0; i < value->readers && depth > 0; i++) {
        int node = value->read_by[i];
        const struct descriptor *op = pattern_op(s, node);
        const struct reshape_op *view = pattern_view_at(s, node);
        const struct transpose_op *transpose = (const struct transpose_op *)op;
        if (pattern_contains(s, node))
            continue;
        if (op_of(op) == &matmul_op) {
            TRY(note_product(r, s, node, tensor, is_transposed ? x : tensor, is_transposed));
        } else if (view) {
            TRY(pattern_add(s, node));
            TRY(follow_readers(r, s, view->y, x, is_transposed, depth - 1));
        } else if (op_of(op) == &transpose_op && is_swap(transpose) && transpose->y->is_virtual) {
            TRY(pattern_add(s, node));
            TRY(follow_readers(r, s, transpose->y, is_transposed ? NULL : tensor, !is_transposed, depth - 1));
        } else if (pattern_is_pointwise(s, node) && pattern_form(s, node) != FORM_INDEX && !is_transposed &&
                   tensor_same_dims(pattern_result(s, node), s->scores)) {
            TRY(pattern_add(s, node));
            TRY(follow_readers(r, s, pattern_result(s, node), x, false, depth - 1));
        }
    }
    return WEFT_STATUS_SUCCESS;
}

/* From what a product reads back to the weights: over conversions, views, and the same dropout as the gradient has.
   Searched on a copy: its operations are taken already, and dropout is to be found once more, not only the first
   time. */
static weftStatus_t check_dropped(const struct gradient *g, int product, const struct tensor *read,
                                  const struct tensor *other) {
    struct attention_pattern trial = *g->s; /* what is found again is there already */
    double growth = 1, factor;
    trial.dropout = NULL, trial.drop_mask = NULL;
    for (int node; read != g->weights;) {
        const struct tensor *before;
        node = pattern_producer(&trial, read);
        if (node < 0)
            return pattern_decline(g->s, product, "multiplies something else than the weights");
        const struct reshape_op *view = pattern_view_at(&trial, node);
        if (view) {
            read = view->x;
            continue;
        }
        TRY(pattern_check_weights(&trial, read, other));
        if (!pattern_is_pointwise(&trial, node))
            return pattern_decline(g->s, product, "multiplies something else than the weights");
        if (pattern_read_factor(pattern_pointwise(&trial, node), &before, &factor))
            growth *= factor;
        else if (!pattern_match_dropout(&trial, pattern_pointwise(&trial, node), &before, &growth))
            return pattern_decline(g->s, product, "multiplies something else than the weights");
        read = before;
    }
    if (trial.dropout != g->s->dropout || trial.drop_mask != g->s->drop_mask ||
        (trial.drop_mask && growth != g->s->growth))
        return pattern_decline(g->s, product, "has other dropout than the gradient of the weights");
    return pattern_check_dropout(&trial, product, growth);
}

/* ---- O and dV ---------------------------------------------------------------------------------------------------- */

/* dV, or dK: [.., key, column], and `other`, dO or q, [.., query, column], both as they lie in memory. A transposed
   product has both transposed. factor: what result and operand are multiplied by beside the product; NULL where none
   may be. */
static weftStatus_t take_columns(struct attention_pattern *s, const struct readers *r, struct pattern_view *result,
                                 struct pattern_view *other, double *factor) {
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, r->columns);
    *result = pattern_view_of(op->c, op);
    *other = pattern_view_of(r->is_transposed_result ? op->a : op->b, op);
    TRY(pattern_look_through(s, other, r->columns, factor));
    if (r->is_transposed_result)
        pattern_swap_last(other);
    return pattern_follow_result(s, result, r->is_transposed_result, factor);
}

/* o, or dQ: [.., query, column], and `other`, values or keys, [.., key, column]. */
static weftStatus_t take_rows(struct attention_pattern *s, const struct readers *r, struct pattern_view *result,
                              struct pattern_view *other, double *factor) {
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, r->rows);
    *result = pattern_view_of(op->c, op);
    *other = pattern_view_of(op->b, op);
    TRY(pattern_look_through(s, other, r->rows, factor));
    return pattern_follow_result(s, result, false, factor);
}

/* dV = dropout(P)^T dO; nobody may want it. */
static weftStatus_t find_dv(struct gradient *g) {
    struct attention_pattern *s = g->s;
    struct pattern_view d_o;
    if (g->of_weights.columns < 0)
        return WEFT_STATUS_SUCCESS;
    TRY(take_columns(s, &g->of_weights, &s->dv, &d_o, NULL));
    if (!is_same_view(&d_o, &s->d_o))
        return pattern_decline(s, g->of_weights.columns, "multiplies weights by something else than dO");
    return check_dropped(g, g->of_weights.columns, g->of_weights.of_columns, d_o.tensor);
}

/* O that the graph makes here of the same weights: then one step makes o and the gradients. Sums of dO o must be of
   this o. */
static weftStatus_t find_made_o(struct gradient *g) {
    struct attention_pattern *s = g->s;
    struct pattern_view v;
    const struct matmul_op *op = (const struct matmul_op *)pattern_op(s, g->of_weights.rows);
    TRY(take_rows(s, &g->of_weights, &s->o, &v, NULL));
    if (!is_same_view(&v, &s->v))
        return pattern_decline(s, g->of_weights.rows, "multiplies weights by something else than the values");
    if (s->given_stats)
        return pattern_decline(s, g->of_weights.rows, "makes o of weights whose statistics are given");
    if (g->o && g->o != s->o.tensor && root_of(s, g->o) != op->c)
        return pattern_decline_tensor(g->o, "is another o than the one that the weights make");
    s->makes_o = true;
    for (const struct tensor *tensor = g->o; tensor && tensor != s->o.tensor && tensor != op->c;) {
        /* What lies between o and its sums belongs to the step: outside it would wait for the step, and the step for
           it. */
        int node = pattern_producer(s, tensor);
        const struct reshape_op *view = pattern_view_at(s, node);
        TRY(pattern_add(s, node));
        tensor = view ? view->x : pattern_pointwise(s, node)->x;
    }
    return check_dropped(g, g->of_weights.rows, g->of_weights.of_rows, v.tensor);
}

/* O as it was stored, by the sums of dO o. Without any, a forward pass of its own makes it, which it can where it makes
   the statistics, too: with statistics that are given its weights would be others. */
static weftStatus_t find_given_o(struct gradient *g) {
    struct attention_pattern *s = g->s;
    if (!g->o)
        return s->given_stats
                   ? pattern_decline_tensor(g->sums, "takes weights whose statistics are given, and o is not")
                   : WEFT_STATUS_SUCCESS;
    s->o = (struct pattern_view){g->o, g->o->dims, g->o->strides, s->d_o.whole};
    return pattern_look_through(s, &s->o, pattern_producer(s, pattern_skip_view(s, g->sums)), NULL);
}

/* ---- Behind the gradient of the scores --------------------------------------------------------------------------- */

/* Whether a forward operation hides, where a mask is false (`keeps`) or true, scores by -inf, or by a number of which a
   bound was made. Weights are 0 there, and so is their gradient without another operation. The hiding operation must be
   the last one on the scores, or have been taken off from behind: what follows it could make -inf a number again. */
static bool is_hidden_by(const struct attention_pattern *s, const struct tensor *mask, bool keeps) {
    const struct value *value = value_of(s, mask);
    for (int i = 0; i < value->readers; i++) {
        int place = pattern_index(s, value->read_by[i]);
        const struct pointwise_op *op =
            place >= 0 ? reads_by(s, value->read_by[i], WEFT_POINTWISE_BINARY_SELECT) : NULL;
        double hidden;
        bool hides = op && op->t == mask && pattern_read_constant(keeps ? op->b : op->x, &hidden);
        bool is_last = hides && (op->y == s->scores || op->y == s->modified);
        bool is_peeled = hides && !s->nodes[place].modifies && !s->nodes[place].carries && hidden < -1e30;
        if (is_peeled || (is_last && hidden == -INFINITY))
            return true;
    }
    return false;
}

/* The gradient of the scores behind an operation that leaves it as it is: a conversion, or zeros where a mask hides and
   it is 0 anyway; NULL: the operation is another one. */
static const struct tensor *follow_same(const struct attention_pattern *s, const struct tensor *gradient, int node) {
    const struct pointwise_op *same = reads_by(s, node, WEFT_POINTWISE_IDENTITY);
    const struct pointwise_op *select = reads_by(s, node, WEFT_POINTWISE_BINARY_SELECT);
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

/* The gradient of a bias that is smaller than the scores: sums over the extents that it has not. */
static weftStatus_t note_dbias(struct attention_pattern *s, const struct tensor *gradient) {
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

/* From dS to s->carried, the gradient as the modifier's takes it: behind masks and bias, which come after the modifier
   forward. On the way is the gradient of the bias, which is the gradient itself where both have the same extents. */
static weftStatus_t find_carried(struct gradient *g) {
    struct attention_pattern *s = g->s;
    const struct tensor *next = g->ds;
    for (int depth = 0; next && depth < FOLLOW_DEPTH; depth++) {
        s->carried = next;
        next = NULL;
        TRY(note_dbias(s, s->carried));
        const struct value *value = value_of(s, s->carried);
        for (int i = 0; i < value->readers && !next; i++)
            next = pattern_contains(s, value->read_by[i]) ? follow_same(s, s->carried, value->read_by[i]) : NULL;
    }
    bool is_wanted = s->bias && !s->dbias && pattern_is_read_outside(s, s->carried);
    if (is_wanted && tensor_same_dims(s->carried, s->bias))
        s->dbias = s->carried;
    return WEFT_STATUS_SUCCESS;
}

/* From what a product reads back over factors until all of them, *factor, are attention's scale: what lies before may
   be the modifier's own, as the c of c tanh(x / c). Where they never are, all are stripped, and what is left of *factor
   becomes a part of the modifier's gradient. */
static const struct tensor *strip_factors(const struct attention_pattern *s, const struct tensor *read, double *factor,
                                          bool *has_scale) {
    *has_scale = false;
    for (int node; read != s->carried && (node = pattern_producer(s, read)) >= 0;) {
        const struct reshape_op *view = pattern_view_at(s, node);
        const struct pointwise_op *op = pattern_is_pointwise(s, node) ? pattern_pointwise(s, node) : NULL;
        const struct tensor *before = NULL;
        double number = 1;
        bool is_scale =
            op && s->scale && !*has_scale && reads_by(s, node, WEFT_POINTWISE_MUL) && other_factor(op, s->scale);
        if (view)
            before = view->x;
        else if (is_scale)
            before = other_factor(op, s->scale);
        else if (!op || !pattern_read_factor(op, &before, &number) ||
                 (number != 1 && fabs(*factor / s->scale_value - 1) < CLOSE))
            break;
        /* A narrower tensor between factors is rounded twice, and attention does it once. */
        if (before != s->carried && !pattern_is_exact(s, before))
            break;
        *has_scale = *has_scale || is_scale;
        *factor *= number;
        read = before;
    }
    return read;
}

/* Marks the operations that make a tensor of the gradient and of what the score modifier takes. Forward operations that
   are no part of the modifier, as masks that became bounds, are printed again where the gradient reads them. */
static void mark_carriers(struct attention_pattern *s, const struct tensor *tensor) {
    int node = pattern_producer(s, tensor), place = node < 0 ? -1 : pattern_index(s, node);
    if (place < 0 || tensor == s->carried || tensor == s->product || !pattern_is_pointwise(s, node) ||
        s->nodes[place].modifies || s->nodes[place].carries)
        return;
    s->nodes[place].carries = true;
    if (pattern_form(s, node) == FORM_INDEX)
        return;
    struct pointwise_operands operands = pointwise_operands(pattern_pointwise(s, node));
    mark_carriers(s, operands.x);
    mark_carriers(s, operands.b);
    mark_carriers(s, operands.t);
}

/* One of dQ and dK: what it reads, without the scale, is where the modifier's gradient ends. factor: what its result
   and other factor are multiplied by. Both have one kernel, so both must begin at the same tensor with the same factor.
   */
static weftStatus_t find_operand_gradient(struct gradient *g, int node, const struct tensor *read, double factor,
                                          const struct tensor *other) {
    struct attention_pattern *s = g->s;
    bool has_scale;
    if (!pattern_is_exact(s, read) && read->type != other->type)
        return pattern_decline_tensor(read, "has a type to which attention does not round: leave it unset");
    const struct tensor *end = strip_factors(s, read, &factor, &has_scale);
    if (has_scale != (s->scale != NULL))
        return pattern_decline(s, node, "has not the scale of the scores");
    if (s->carried_back && (s->carried_back != end || fabs(factor / s->carried_factor - 1) > CLOSE))
        return pattern_decline(s, node, "has another factor than the other gradient has");
    s->carried_back = end;
    s->carried_factor = factor;
    return WEFT_STATUS_SUCCESS;
}

/* dQ = dS k and dK = dS^T q, of which one is enough; behind them the factor that is left when each has attention's own
   scale. */
static weftStatus_t find_operand_gradients(struct gradient *g) {
    struct attention_pattern *s = g->s;
    const struct readers *r = &g->of_ds;
    struct pattern_view q, k;
    double of_q = 1, of_k = 1;
    if (r->rows >= 0) {
        TRY(take_rows(s, r, &s->dq, &k, &of_q));
        if (!is_same_view(&k, &s->k))
            return pattern_decline(s, r->rows, "multiplies the gradient of scores by something else than the keys");
        TRY(find_operand_gradient(g, r->rows, r->of_rows, of_q, k.tensor));
    }
    if (r->columns >= 0) {
        TRY(take_columns(s, r, &s->dk, &q, &of_k));
        if (!is_same_view(&q, &s->q))
            return pattern_decline(s, r->columns,
                                   "multiplies the gradient of scores by something else than the queries");
        TRY(find_operand_gradient(g, r->columns, r->of_columns, of_k, q.tensor));
    }
    if (r->rows < 0 && r->columns < 0)
        return pattern_decline_tensor(g->ds, "is multiplied by neither keys nor queries");
    if (s->scale_value == 0) /* no factor of a gradient is told from another one then */
        return pattern_decline_tensor(g->ds, "is that of scores that are all scaled by 0");
    s->carried_factor /= s->scale_value;
    if (fabs(s->carried_factor - 1) < CLOSE)
        s->carried_factor = 1;
    mark_carriers(s, s->carried_back);
    return WEFT_STATUS_SUCCESS;
}

/* What the kernels do otherwise than it is spelled: they round dS once, where it is a factor, and multiply it by the
   scale of the scores alone where there is no modifier. */
static weftStatus_t check_carried(const struct gradient *g) {
    const struct attention_pattern *s = g->s;
    bool is_plain = s->carried == s->carried_back && s->carried_factor == 1;
    if ((s->carried != s->carried_back || (s->dbias && s->dbias != s->carried)) && !pattern_is_exact(s, s->carried))
        return pattern_decline_tensor(s->carried, "has a type to which attention does not round: leave it unset");
    if (!is_plain && s->modified == s->product && !s->is_rounded && s->carried == s->carried_back)
        return pattern_decline_tensor(g->ds, "is scaled by another number than the scores are");
    return WEFT_STATUS_SUCCESS;
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* Leaves out the views that others read, too: these make them. The attention reads what is behind them in any case.
   From the last one backwards, as a view that is left out reads the one before it. */
static void drop_views(struct attention_pattern *s) {
    for (int i = s->count; i-- > 0;) {
        const struct node *node = &s->graph->nodes[s->nodes[i].node];
        for (int k = 0; k < node->operand_count && s->nodes[i].is_view; k++)
            if (node->is_output[k] && pattern_is_read_outside(s, s->graph->values[node->operands[k]].tensor)) {
                pattern_remove(s, i);
                break;
            }
    }
}

/* What the operations on the way of the gradient, those from `first` on, read beside it, as the derivative of a
   modifier. They are no part of the modifier forward. */
static weftStatus_t gather_beside(struct attention_pattern *s, int first) {
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

/* All that is made of weights and of dS, and what their scores are made of. Weights first: what reads both is on their
   side. */
static weftStatus_t find_ends(struct gradient *g) {
    struct attention_pattern *s = g->s;
    g->of_weights = g->of_ds = (struct readers){.rows = -1, .columns = -1};
    TRY(follow_readers(&g->of_weights, s, g->weights, NULL, false, FOLLOW_DEPTH));
    int first = s->count;
    TRY(follow_readers(&g->of_ds, s, g->ds, NULL, false, FOLLOW_DEPTH));
    TRY(gather_beside(s, first));
    TRY(find_dv(g));
    TRY(g->of_weights.rows >= 0 ? find_made_o(g) : find_given_o(g));
    pattern_split_scores(s);
    TRY(find_carried(g));
    TRY(find_operand_gradients(g));
    return check_carried(g);
}

/* On failure is_gradient tells whether the reason is worth telling: a product without the gradient of a softmax behind
   it is any product. Time is linear in what is found and in the readers of its tensors. */
weftStatus_t attention_pattern_match_gradient(struct attention_pattern *found, const struct graph *graph, int node) {
    *found = pattern_empty(graph);
    struct gradient g = {.s = found, .growth = 1};
    found->is_gradient = true;
    TRY(pattern_check_product(found, node));
    g.product = (const struct matmul_op *)graph->nodes[node].op;
    g.dp = g.product->c;
    weftStatus_t status = find_softmax_gradient(&g, node);
    found->is_gradient = status == WEFT_STATUS_SUCCESS;
    TRY(status);
    found->d_o = pattern_view_of(g.product->a, g.product);
    found->v = pattern_view_of(g.product->b, g.product);
    TRY(pattern_look_through(found, &found->d_o, node, NULL));
    TRY(pattern_look_through(found, &found->v, node, NULL));
    pattern_swap_last(&found->v);
    TRY(take_softmax_gradient(&g));
    TRY(find_softmax(&g));
    TRY(pattern_check_dropout(found, node, g.growth));
    TRY(pattern_gather_scores(found));
    TRY(find_ends(&g));
    pattern_sort(found);
    drop_views(found);
    return pattern_check_closed(found);
}
