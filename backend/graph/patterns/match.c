/* SPDX-License-Identifier: Apache-2.0 */
/* Matches attention, starting at its last product and going up: weights, dropout, softmax. scores.c continues above the
   softmax. gradient.c reaches the same softmax from the backward pass, and shares the functions for weights and
   softmax. The matchers do not change the graph: they return a list of nodes, and the role of each tensor in the
   attention. */
#include "graph/patterns/match.h"
#include "base/philox.h"
#include "graph/ops/softmax.h"

#include <math.h>
#include <string.h>

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* The kernels multiply weights in the type of the other factor. A narrower type, or another type of the same size,
   would change the results. */
weftStatus_t pattern_check_weights(const struct attention_pattern *s, const struct tensor *weights,
                                   const struct tensor *other) {
    if (!pattern_is_exact(s, weights) && weights->type != other->type)
        return pattern_decline_tensor(weights, "has a type to which attention does not round weights: leave it unset");
    return WEFT_STATUS_SUCCESS;
}

/* Follows a mask of ones and zeros, times a number, to the generator that draws it. *scale receives the number. Returns
   NULL if no generator draws the mask; the caller then restores s->count, to drop nodes that were added. */
static const struct rng_op *find_dropout(struct attention_pattern *s, const struct tensor *mask,
                                         double *dropout_scale) {
    double number;
    /* Factors between mask and weights are part of the scale factor. */
    for (int node; (node = pattern_producer(s, mask)) >= 0;) {
        if (op_of(pattern_op(s, node)) == &rng_op)
            return pattern_add(s, node) ? NULL : (const struct rng_op *)pattern_op(s, node);
        if (!pattern_is_pointwise(s, node) || !pattern_is_exact(s, mask) ||
            !pattern_read_factor(pattern_pointwise(s, node), &mask, &number) || pattern_add(s, node))
            return NULL;
        *dropout_scale *= number;
    }
    return NULL;
}

/* The mask as stored in memory: numbers, or booleans that a node of the pattern converts to numbers. */
static const struct tensor *find_mask(struct attention_pattern *s, const struct tensor *mask) {
    const struct pointwise_op *conversion = pattern_produced_by(s, mask, WEFT_POINTWISE_IDENTITY);
    if (conversion && dtype_is_boolean((weftDataType_t)conversion->x->type) &&
        !pattern_add(s, pattern_producer(s, mask)))
        mask = conversion->x;
    return pattern_producer(s, mask) < 0 && !mask->is_by_value && !mask->is_constant ? mask : NULL;
}

/* Matches dropout by a mask that is not drawn by a generator of the graph. */
static bool drops_by_mask(struct attention_pattern *s, const struct pointwise_op *op, const struct tensor **weights,
                          double *dropout_scale) {
    const struct tensor *sides[] = {op->x, op->b};
    for (int i = 0; i < 2 && op->pw->mode == WEFT_POINTWISE_MUL; i++) {
        int count = s->count;
        s->drop_mask = pattern_producer(s, sides[i]) >= 0 ? find_mask(s, sides[1 - i]) : NULL;
        if (!s->drop_mask) {
            s->count = count;
            continue;
        }
        *dropout_scale *= op->alpha1 * op->alpha2;
        *weights = sides[i];
        return true;
    }
    return false;
}

/* Either operand may be the mask. Attention has one dropout: a second one on the same weights is not matched. */
bool pattern_match_dropout(struct attention_pattern *s, const struct pointwise_op *op, const struct tensor **weights,
                           double *dropout_scale) {
    const struct tensor *sides[] = {op->x, op->b};
    if (s->dropout || s->drop_mask)
        return false;
    for (int i = 0; i < 2 && op->pw->mode == WEFT_POINTWISE_MUL; i++) {
        /* Either operand may be the mask; nodes that a failed search has added are dropped. */
        int count = s->count;
        double grown = *dropout_scale * op->alpha1 * op->alpha2;
        s->dropout = find_dropout(s, sides[1 - i], &grown);
        if (!s->dropout) {
            s->count = count;
            continue;
        }
        *dropout_scale = grown;
        *weights = sides[i];
        return true;
    }
    return drops_by_mask(s, op, weights, dropout_scale);
}

/* Checks that a mask broadcasts to the scores. */
static weftStatus_t check_mask(struct attention_pattern *s, int node, double dropout_scale) {
    const struct dims *dims = &s->drop_mask->dims, *scores = &s->scores->dims;
    bool fits = dims->count == scores->count;
    for (int i = 0; i < scores->count && fits; i++)
        fits = dims->at[i] == 1 || dims->at[i] == scores->at[i];
    if (!fits)
        return pattern_decline_tensor(s->drop_mask, "multiplies the weights, but does not broadcast to the scores");
    if (!(dropout_scale >= 0))
        return pattern_decline(s, node, "scales the weights that dropout keeps by a negative number");
    s->dropout_scale = dropout_scale;
    return WEFT_STATUS_SUCCESS;
}

/* The generator must have a Bernoulli distribution and the dims of the scores, so that generator and attention draw the
   same number for each score, and the remaining weights must be scaled by 1 / (1 - p). The generator's probability is
   that of keeping a weight, attention's that of dropping it: in double precision both must yield the same threshold on
   random words. */
weftStatus_t pattern_check_dropout(struct attention_pattern *s, int node, double dropout_scale) {
    static const double CLOSE = 1e-6; /* frameworks round 1 / (1 - p) to FLOAT */
    if (s->drop_mask)
        return check_mask(s, node, dropout_scale);
    if (!s->dropout && dropout_scale != 1)
        return pattern_decline(s, node, "scales the weights, but there is no dropout");
    if (!s->dropout)
        return WEFT_STATUS_SUCCESS;
    const struct rng *rng = s->dropout->parameters;
    /* The threshold decides which random words drop a weight. Attention computes it from 1 - p, which must give the
       same threshold. */
    if (rng->distribution != WEFT_RNG_DISTRIBUTION_BERNOULLI || !tensor_same_dims(s->dropout->y, s->scores) ||
        philox_threshold(1 - (1 - rng->probability)) != philox_threshold(rng->probability))
        return pattern_decline_tensor(
            s->dropout->y, "is not a dropout mask: expected a Bernoulli generator with the dims of the scores");
    if (!(fabs(dropout_scale * rng->probability - 1) <= CLOSE))
        return pattern_decline(s, node, "scales the weights that dropout keeps by a factor other than 1 / (1 - p)");
    return WEFT_STATUS_SUCCESS;
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* The tensor if a node reads it or if it is an output of the graph, otherwise NULL. */
static const struct tensor *if_read(const struct attention_pattern *s, const struct tensor *tensor) {
    return tensor && !value_is_dead(&s->graph->values[graph_find_value(s->graph, tensor)]) ? tensor : NULL;
}

/* Matches a softmax node along the keys, and its optional outputs. */
static weftStatus_t add_softmax(struct attention_pattern *s, int node) {
    const struct softmax_op *op = (const struct softmax_op *)pattern_op(s, node);
    TRY(pattern_check_math(s, &op->base, (weftDataType_t)op->math));
    s->scores = op->x;
    s->sink = op->sink;
    s->stats = if_read(s, op->stats);
    s->max = if_read(s, op->max);
    s->sum_exp = if_read(s, op->sum_exp);
    /* A row of attention is contiguous: all keys of one query. */
    if (softmax_axis(op) != op->x->dims.count - 1)
        return pattern_decline(s, node, "does not sum along the last dimension, that of the keys");
    if (op->is_stats_log2 && s->stats)
        return pattern_decline(s, node, "returns statistics to base 2; those of attention are natural logarithms");
    return pattern_add(s, node);
}

/* Reduces the last dimension, the keys, to 1; all other dimensions are unchanged. */
const struct reduction_op *pattern_reduced_by(const struct attention_pattern *s, const struct tensor *tensor,
                                              int mode) {
    int node = pattern_producer(s, tensor);
    if (node < 0 || op_of(pattern_op(s, node)) != &reduction_op)
        return NULL;
    const struct reduction_op *op = (const struct reduction_op *)pattern_op(s, node);
    /* A row runs along the last dimension, the keys. */
    struct dims rows = op->x->dims;
    rows.at[rows.count - 1] = 1;
    bool is_rows =
        op->y->dims.count == rows.count && memcmp(op->y->dims.at, rows.at, (size_t)rows.count * sizeof *rows.at) == 0;
    return is_rows && op->parameters->mode == mode ? op : NULL;
}

/* Parts of a softmax: exp(x - max), divided by its sum or multiplied by the reciprocal. Parts that were not found are
   NULL. */
struct softmax_parts {
    const struct pointwise_op *share, *reciprocal, *exponential, *difference;
    const struct reduction_op *sum, *max;
};

/* Finds the quotient and its operands. `exponential` and `sum` are NULL if the node is not such a quotient. */
static void find_quotient(struct softmax_parts *p, const struct attention_pattern *s, int node) {
    const struct pointwise_op *op = pattern_is_pointwise(s, node) ? pattern_pointwise(s, node) : NULL;
    const struct tensor *weights = NULL, *sum = NULL;
    if (!op || op->alpha1 != 1 || op->alpha2 != 1)
        return;
    if (op->pw->mode == WEFT_POINTWISE_DIV) {
        weights = op->x;
        sum = op->b;
    } else if (op->pw->mode == WEFT_POINTWISE_MUL) {
        /* The reciprocal may be either operand. */
        bool is_second = pattern_produced_by(s, op->b, WEFT_POINTWISE_RECIPROCAL) != NULL;
        p->reciprocal = pattern_produced_by(s, is_second ? op->b : op->x, WEFT_POINTWISE_RECIPROCAL);
        weights = is_second ? op->x : op->b;
        sum = p->reciprocal && p->reciprocal->alpha1 == 1 ? p->reciprocal->x : NULL;
    }
    p->share = op;
    p->exponential = pattern_produced_by(s, weights, WEFT_POINTWISE_EXP);
    p->sum = pattern_reduced_by(s, sum, WEFT_REDUCE_TENSOR_ADD);
}

/* Follows the quotient up to the maximum; every part must read the same x. */
static bool find_softmax(struct softmax_parts *p, const struct attention_pattern *s, int node) {
    *p = (struct softmax_parts){0};
    find_quotient(p, s, node);
    if (!p->exponential || !p->sum || p->sum->x != p->exponential->y || p->exponential->alpha1 != 1)
        return false;
    p->difference = pattern_produced_by(s, p->exponential->x, WEFT_POINTWISE_SUB);
    if (!p->difference || p->difference->alpha1 != 1 || p->difference->alpha2 != 1)
        return false;
    p->max = pattern_reduced_by(s, p->difference->b, WEFT_REDUCE_TENSOR_MAX);
    return p->max && p->max->x == p->difference->x;
}

/* Matches the statistics max + log(sum), in either order. They are optional: if they do not match, they stay outside,
   and the sum becomes an output of the attention. */
static weftStatus_t find_statistics(struct attention_pattern *s, const struct tensor *max, const struct tensor *sum) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, sum)];
    for (int i = 0; i < value->readers; i++) {
        const struct pointwise_op *log =
            pattern_is_pointwise(s, value->read_by[i]) ? pattern_pointwise(s, value->read_by[i]) : NULL;
        /* The logarithm must be read only by the sum, because attention has no output for it. */
        int node = log && log->pw->mode == WEFT_POINTWISE_LOG && log->alpha1 == 1 ? pattern_sole_reader(s, log->y) : -1;
        const struct pointwise_op *add = pattern_is_pointwise(s, node) ? pattern_pointwise(s, node) : NULL;
        if (!add || add->pw->mode != WEFT_POINTWISE_ADD || add->alpha1 != 1 || add->alpha2 != 1 ||
            !pattern_is_exact(s, log->y) || !pattern_is_private(s, log->y, node) || (add->x != max && add->b != max))
            continue;
        s->stats = add->y;
        TRY(pattern_add(s, value->read_by[i]));
        return pattern_add(s, node);
    }
    return WEFT_STATUS_SUCCESS;
}

/* Matches a softmax that consists of several operations. The type of a maximum may be set to that of the scores,
   because it is exact. All other intermediate results need at least the precision of attention's sums. */
static weftStatus_t add_softmax_parts(struct attention_pattern *s, int node) {
    struct softmax_parts p;
    if (!find_softmax(&p, s, node))
        return pattern_decline(s, node, "its weights are not the result of a softmax");
    TRY(pattern_check_math(s, &p.sum->base, reduction_math(p.sum)));
    TRY(pattern_check_math(s, &p.max->base, reduction_math(p.max)));
    s->scores = p.max->x;
    /* Values that attention holds on chip. The maximum is one of the scores, so it may be rounded as these are. */
    const struct tensor *on_chip[] = {p.exponential->y, p.difference->y, p.sum->y,
                                      p.reciprocal ? p.reciprocal->y : NULL, p.max->y};
    /* The separate operations would round each of these to its type. */
    for (int i = 0; i < 5; i++)
        if (on_chip[i] && !pattern_is_exact(s, on_chip[i]) &&
            (on_chip[i] != p.max->y || p.max->y->type != s->scores->type))
            return pattern_decline_tensor(on_chip[i], "has a type to which attention does not round: leave it unset");
    for (int i = 0; i < 5; i++)
        TRY(on_chip[i] ? pattern_add(s, pattern_producer(s, on_chip[i])) : WEFT_STATUS_SUCCESS);
    TRY(pattern_add(s, node));
    /* Match the statistics before checking for outside readers, because they read both tensors. */
    TRY(find_statistics(s, p.max->y, p.sum->y));
    s->max = pattern_is_read_outside(s, p.max->y) ? p.max->y : NULL;
    s->sum_exp = pattern_is_read_outside(s, p.sum->y) ? p.sum->y : NULL;
    return WEFT_STATUS_SUCCESS;
}

/* `node` computes the weights: a softmax node, or the quotient of its parts. */
weftStatus_t pattern_match_softmax(struct attention_pattern *s, int node) {
    return op_of(pattern_op(s, node)) == &softmax_op ? add_softmax(s, node) : add_softmax_parts(s, node);
}

/* Follows the operand that is multiplied with the values up to the scores, through conversions, factors and dropout in
   any order. The product of the factors must be the scale factor of dropout. */
static weftStatus_t find_weights(struct attention_pattern *s, int node, const struct tensor *weights) {
    double dropout_scale = 1, factor;
    int maker, last = node;
    /* Skip factors and dropout in any order, up to the softmax. */
    for (;; last = maker) {
        const struct tensor *source;
        maker = pattern_producer(s, weights);
        if (maker < 0)
            return pattern_decline(s, node, "its weights are not the result of a softmax");
        TRY(pattern_check_weights(s, weights, s->v.tensor));
        if (!pattern_is_pointwise(s, maker))
            break;
        if (pattern_read_factor(pattern_pointwise(s, maker), &source, &factor))
            dropout_scale *= factor;
        else if (!pattern_match_dropout(s, pattern_pointwise(s, maker), &source, &dropout_scale))
            break;
        TRY(pattern_add(s, maker));
        weights = source;
    }
    TRY(pattern_match_softmax(s, maker));
    return pattern_check_dropout(s, last, dropout_scale);
}

/* ---- The whole pattern ------------------------------------------------------------------------------------------- */

/* Other readers would read values that are never stored. This is the last check, because earlier a reader might still
   become part of the pattern. */
weftStatus_t pattern_check_closed(const struct attention_pattern *s) {
    const struct tensor *given[] = {
        s->o.tensor, s->stats,     s->max,       s->sum_exp,   s->dropout ? s->dropout->y : NULL,
        s->dbias,    s->dq.tensor, s->dk.tensor, s->dv.tensor, s->dq_sums.tensor};
    for (int i = 0; i < s->count; i++) {
        const struct node *node = &s->graph->nodes[s->nodes[i].node];
        for (int k = 0; k < node->operand_count; k++) {
            const struct tensor *tensor = s->graph->values[node->operands[k]].tensor;
            /* Only results that these nodes compute can be missing. */
            bool is_intermediate = !node->is_output[k];
            for (size_t g = 0; g < sizeof given / sizeof *given; g++)
                is_intermediate = is_intermediate || tensor == given[g];
            if (!is_intermediate && pattern_is_read_outside(s, tensor))
                return pattern_decline_tensor(tensor, "is read outside of the attention that it is part of");
        }
    }
    return WEFT_STATUS_SUCCESS;
}

struct attention_pattern pattern_empty(const struct graph *graph) {
    return (struct attention_pattern){.graph = graph,
                                      .scale_value = 1,
                                      .left_bound = ATTENTION_UNBOUNDED,
                                      .right_bound = ATTENTION_UNBOUNDED,
                                      .math = WEFT_DATA_FLOAT,
                                      .d_product_factor = 1};
}

/* Goes up from the last product, so that each step has to explain one tensor. `node` may be any matmul: most of them
   fail at the first check, and plans report its reason. */
weftStatus_t attention_pattern_match(struct attention_pattern *match, const struct graph *graph, int node) {
    *match = pattern_empty(graph);
    /* The product with the values: the last node, except for views of its result. */
    TRY(pattern_check_product(match, node));
    const struct matmul_op *op = (const struct matmul_op *)graph->nodes[node].op;
    match->o = pattern_view_of(op->c, op);
    TRY(pattern_follow_result(match, &match->o, false, NULL));
    match->v = pattern_view_of(op->b, op);
    TRY(pattern_look_through(match, &match->v, node, NULL));
    /* A reshape that joins batches and heads may stand between softmax and product. */
    const struct tensor *weights = op->a;
    TRY(pattern_add_view(match, &weights));
    TRY(find_weights(match, node, weights));
    TRY(pattern_gather_scores(match));
    pattern_split_scores(match);
    return pattern_check_closed(match);
}

/* The search of the whole pattern between the softmax's input and the product. */
bool attention_pattern_match_bounds(int64_t *left_bound, int64_t *right_bound, const struct graph *graph, int input,
                                    int output) {
    struct attention_pattern s = pattern_empty(graph);
    s.product = graph->values[input].tensor;
    s.scores = graph->values[output].tensor;
    bool is_gathered = s.scores->dims.count >= 2 && !pattern_gather(&s, s.scores, true);
    if (!is_gathered)
        return false;
    pattern_split_scores(&s);
    *left_bound = s.left_bound;
    *right_bound = s.right_bound;
    return s.modified == s.product && s.scale_value == 1 && !s.scale && !s.bias;
}
