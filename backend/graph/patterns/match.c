/* SPDX-License-Identifier: Apache-2.0 */
/* Finding attention that is spelled out, from its last product upwards: weights, dropout, softmax. From the softmax on
   scores.c goes on; gradient.c, which comes to the same softmax from another side, shares what is below the weights.
   Nothing is changed here: what is found is a list of nodes and what each tensor is to the attention. */
#include "graph/patterns/match.h"
#include "base/philox.h"
#include "graph/ops/softmax.h"

#include <math.h>
#include <string.h>

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* The kernels multiply weights in the type of the other factor: any type set that is narrower, or another one of that
   size, would give other numbers. */
weftStatus_t pattern_check_weights(const struct attention_pattern *s, const struct tensor *weights,
                                   const struct tensor *other) {
    if (!pattern_is_exact(s, weights) && weights->type != other->type)
        return pattern_decline_tensor(weights, "has a type to which attention does not round weights: leave it unset");
    return WEFT_STATUS_SUCCESS;
}

/* From a mask of ones and zeros, times a number, to the generator that draws it; *growth gets the number. NULL: nothing
   draws it. What was taken by then the caller takes back, by the count that it had. */
static const struct rng_op *find_dropout(struct attention_pattern *s, const struct tensor *mask, double *growth) {
    double number;
    /* Factors between the mask and the weights join their growth. */
    for (int node; (node = pattern_producer(s, mask)) >= 0;) {
        if (op_of(pattern_op(s, node)) == &rng_op)
            return pattern_add(s, node) ? NULL : (const struct rng_op *)pattern_op(s, node);
        if (!pattern_is_pointwise(s, node) || !pattern_is_exact(s, mask) ||
            !pattern_read_factor(pattern_pointwise(s, node), &mask, &number) || pattern_add(s, node))
            return NULL;
        *growth *= number;
    }
    return NULL;
}

/* The mask as it lies in memory before the attention, of numbers, or of booleans that are made numbers here. */
static const struct tensor *find_mask(struct attention_pattern *s, const struct tensor *mask) {
    const struct pointwise_op *conversion = pattern_produced_by(s, mask, WEFT_POINTWISE_IDENTITY);
    if (conversion && dtype_is_boolean((weftDataType_t)conversion->x->type) &&
        !pattern_add(s, pattern_producer(s, mask)))
        mask = conversion->x;
    return pattern_producer(s, mask) < 0 && !mask->is_by_value && !mask->is_constant ? mask : NULL;
}

/* The same of a mask that nothing here draws. */
static bool drops_by_mask(struct attention_pattern *s, const struct pointwise_op *op, const struct tensor **weights,
                          double *growth) {
    const struct tensor *sides[] = {op->x, op->b};
    for (int i = 0; i < 2 && op->pw->mode == WEFT_POINTWISE_MUL; i++) {
        int count = s->count;
        s->drop_mask = pattern_producer(s, sides[i]) >= 0 ? find_mask(s, sides[1 - i]) : NULL;
        if (!s->drop_mask) {
            s->count = count;
            continue;
        }
        *growth *= op->alpha1 * op->alpha2;
        *weights = sides[i];
        return true;
    }
    return false;
}

/* Either operand may be the mask. A second dropout on the same weights is none of attention: it is not looked for. */
bool pattern_match_dropout(struct attention_pattern *s, const struct pointwise_op *op, const struct tensor **weights,
                           double *growth) {
    const struct tensor *sides[] = {op->x, op->b};
    if (s->dropout || s->drop_mask)
        return false;
    for (int i = 0; i < 2 && op->pw->mode == WEFT_POINTWISE_MUL; i++) {
        /* The mask may be either side; what a vain search on one of them took is given back. */
        int count = s->count;
        double grown = *growth * op->alpha1 * op->alpha2;
        s->dropout = find_dropout(s, sides[1 - i], &grown);
        if (!s->dropout) {
            s->count = count;
            continue;
        }
        *growth = grown;
        *weights = sides[i];
        return true;
    }
    return drops_by_mask(s, op, weights, growth);
}

/* A mask broadcasts to the scores. */
static weftStatus_t check_mask(struct attention_pattern *s, int node, double growth) {
    const struct dims *dims = &s->drop_mask->dims, *scores = &s->scores->dims;
    bool fits = dims->count == scores->count;
    for (int i = 0; i < scores->count && fits; i++)
        fits = dims->at[i] == 1 || dims->at[i] == scores->at[i];
    if (!fits)
        return pattern_decline_tensor(s->drop_mask, "multiplies weights, and does not broadcast to the scores");
    if (!(growth >= 0))
        return pattern_decline(s, node, "multiplies weights that dropout keeps by a negative number");
    s->growth = growth;
    return WEFT_STATUS_SUCCESS;
}

/* Bernoulli's, of as many numbers as there are scores, so that both draw the same number for a score, and what stays
   grows by as much as is dropped. The generator's probability is that of a one, attention's that of a zero: in double
   precision both must come to the same threshold of its words. */
weftStatus_t pattern_check_dropout(struct attention_pattern *s, int node, double growth) {
    static const double CLOSE = 1e-6; /* frameworks round 1 / (1 - p) to FLOAT */
    if (s->drop_mask)
        return check_mask(s, node, growth);
    if (!s->dropout && growth != 1)
        return pattern_decline(s, node, "multiplies weights by a number, and there is no dropout");
    if (!s->dropout)
        return WEFT_STATUS_SUCCESS;
    const struct rng *rng = s->dropout->parameters;
    /* The threshold decides which words drop: 1 - p, as attention will take it, must give the same one. */
    if (rng->distribution != WEFT_RNG_DISTRIBUTION_BERNOULLI || !tensor_same_dims(s->dropout->y, s->scores) ||
        philox_threshold(1 - (1 - rng->probability)) != philox_threshold(rng->probability))
        return pattern_decline_tensor(s->dropout->y, "is no mask of dropout, Bernoulli's of the dims of the scores");
    if (!(fabs(growth * rng->probability - 1) <= CLOSE))
        return pattern_decline(s, node, "lets weights that dropout keeps grow by another number than 1 / (1 - p)");
    return WEFT_STATUS_SUCCESS;
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* A result that somebody reads, or the user gets; NULL: nobody does. */
static const struct tensor *if_wanted(const struct attention_pattern *s, const struct tensor *tensor) {
    return tensor && !value_is_dead(&s->graph->values[graph_find_value(s->graph, tensor)]) ? tensor : NULL;
}

/* A softmax node along the keys, with all that it gives beside the weights. */
static weftStatus_t take_softmax(struct attention_pattern *s, int node) {
    const struct softmax_op *op = (const struct softmax_op *)pattern_op(s, node);
    TRY(pattern_check_math(s, &op->base, (weftDataType_t)op->math));
    s->scores = op->x;
    s->sink = op->sink;
    s->stats = if_wanted(s, op->stats);
    s->max = if_wanted(s, op->max);
    s->sum_exp = if_wanted(s, op->sum_exp);
    /* Attention's rows are the keys of a query, side by side. */
    if (softmax_axis(op) != op->x->dims.count - 1)
        return pattern_decline(s, node, "sums along another dimension than the last one, that of the keys");
    if (op->is_stats_log2 && s->stats)
        return pattern_decline(s, node, "gives statistics to base 2, attention natural ones");
    return pattern_add(s, node);
}

/* Keys are the last dimension, which becomes 1; all others stay. */
const struct reduction_op *pattern_reduced_by(const struct attention_pattern *s, const struct tensor *tensor,
                                              int mode) {
    int node = pattern_producer(s, tensor);
    if (node < 0 || op_of(pattern_op(s, node)) != &reduction_op)
        return NULL;
    const struct reduction_op *op = (const struct reduction_op *)pattern_op(s, node);
    /* Rows are the last dimension, that of the keys, reduced to 1. */
    struct dims rows = op->x->dims;
    rows.at[rows.count - 1] = 1;
    bool is_rows =
        op->y->dims.count == rows.count && memcmp(op->y->dims.at, rows.at, (size_t)rows.count * sizeof *rows.at) == 0;
    return is_rows && op->parameters->mode == mode ? op : NULL;
}

/* e^(x - max), over its sum, or times the reciprocal of that: the operations of a softmax that is spelled out; those
   that were not found are NULL. */
struct softmax_parts {
    const struct pointwise_op *share, *reciprocal, *exponential, *difference;
    const struct reduction_op *sum, *max;
};

/* The quotient, and the weights and the sum that it is made of: `exponential` and `sum` are NULL where it is another
   one. */
static void find_share(struct softmax_parts *p, const struct attention_pattern *s, int node) {
    const struct pointwise_op *op = pattern_is_pointwise(s, node) ? pattern_pointwise(s, node) : NULL;
    const struct tensor *weights = NULL, *sum = NULL;
    if (!op || op->alpha1 != 1 || op->alpha2 != 1)
        return;
    if (op->pw->mode == WEFT_POINTWISE_DIV) {
        /* A quotient: weights over their sum. */
        weights = op->x;
        sum = op->b;
    } else if (op->pw->mode == WEFT_POINTWISE_MUL) {
        /* The reciprocal may stand on either side of the product. */
        bool is_second = pattern_produced_by(s, op->b, WEFT_POINTWISE_RECIPROCAL) != NULL;
        p->reciprocal = pattern_produced_by(s, is_second ? op->b : op->x, WEFT_POINTWISE_RECIPROCAL);
        weights = is_second ? op->x : op->b;
        sum = p->reciprocal && p->reciprocal->alpha1 == 1 ? p->reciprocal->x : NULL;
    }
    p->share = op;
    p->exponential = pattern_produced_by(s, weights, WEFT_POINTWISE_EXP);
    p->sum = pattern_reduced_by(s, sum, WEFT_REDUCE_TENSOR_ADD);
}

/* From the quotient up to the maximum: all of x must be the same tensor. */
static bool find_softmax(struct softmax_parts *p, const struct attention_pattern *s, int node) {
    *p = (struct softmax_parts){0};
    find_share(p, s, node);
    if (!p->exponential || !p->sum || p->sum->x != p->exponential->y || p->exponential->alpha1 != 1)
        return false;
    p->difference = pattern_produced_by(s, p->exponential->x, WEFT_POINTWISE_SUB);
    if (!p->difference || p->difference->alpha1 != 1 || p->difference->alpha2 != 1)
        return false;
    p->max = pattern_reduced_by(s, p->difference->b, WEFT_REDUCE_TENSOR_MAX);
    return p->max && p->max->x == p->difference->x;
}

/* Statistics behind a spelled softmax: max + log(sum), in either order. They are optional: what is not quite that stays
   outside, and then the sum is one of the results. */
static weftStatus_t find_statistics(struct attention_pattern *s, const struct tensor *max, const struct tensor *sum) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, sum)];
    for (int i = 0; i < value->readers; i++) {
        const struct pointwise_op *log =
            pattern_is_pointwise(s, value->read_by[i]) ? pattern_pointwise(s, value->read_by[i]) : NULL;
        /* The logarithm must lead to the sum alone: attention does not give it by itself. */
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

/* A softmax out of its operations. A maximum in the scores' own type is exact, so that one may be set; all else that is
   made on the way must be as wide as attention's sums are. */
static weftStatus_t add_softmax_parts(struct attention_pattern *s, int node) {
    struct softmax_parts p;
    if (!find_softmax(&p, s, node))
        return pattern_decline(s, node, "no softmax of scores makes its weights");
    TRY(pattern_check_math(s, &p.sum->base, reduction_math(p.sum)));
    TRY(pattern_check_math(s, &p.max->base, reduction_math(p.max)));
    s->scores = p.max->x;
    /* What attention keeps on chip. The maximum may be rounded as the scores are: it is one of them. */
    const struct tensor *kept[] = {p.exponential->y, p.difference->y, p.sum->y, p.reciprocal ? p.reciprocal->y : NULL,
                                   p.max->y};
    /* Each of these would be rounded to its type where the operations run one by one. */
    for (int i = 0; i < 5; i++)
        if (kept[i] && !pattern_is_exact(s, kept[i]) && (kept[i] != p.max->y || p.max->y->type != s->scores->type))
            return pattern_decline_tensor(kept[i], "has a type to which attention does not round: leave it unset");
    for (int i = 0; i < 5; i++)
        TRY(kept[i] ? pattern_add(s, pattern_producer(s, kept[i])) : WEFT_STATUS_SUCCESS);
    TRY(pattern_add(s, node));
    /* Before what is wanted is asked: statistics read both. */
    TRY(find_statistics(s, p.max->y, p.sum->y));
    s->max = pattern_is_read_outside(s, p.max->y) ? p.max->y : NULL;
    s->sum_exp = pattern_is_read_outside(s, p.sum->y) ? p.sum->y : NULL;
    return WEFT_STATUS_SUCCESS;
}

/* `node` makes the weights, of a softmax node as its result, or as the quotient of a spelled one. */
weftStatus_t pattern_match_softmax(struct attention_pattern *s, int node) {
    return op_of(pattern_op(s, node)) == &softmax_op ? take_softmax(s, node) : add_softmax_parts(s, node);
}

/* From the weights that values are multiplied with to the scores, over conversions, numbers and dropout, in any order:
   numbers come out as one product, which must be dropout's growth. */
static weftStatus_t find_weights(struct attention_pattern *s, int node, const struct tensor *weights) {
    double growth = 1, factor;
    int maker, last = node;
    /* Factors and dropout, in any order, until something else makes the weights: that must be the softmax. */
    for (;; last = maker) {
        const struct tensor *before;
        maker = pattern_producer(s, weights);
        if (maker < 0)
            return pattern_decline(s, node, "no softmax of scores makes its weights");
        TRY(pattern_check_weights(s, weights, s->v.tensor));
        if (!pattern_is_pointwise(s, maker))
            break;
        if (pattern_read_factor(pattern_pointwise(s, maker), &before, &factor))
            growth *= factor;
        else if (!pattern_match_dropout(s, pattern_pointwise(s, maker), &before, &growth))
            break;
        TRY(pattern_add(s, maker));
        weights = before;
    }
    TRY(pattern_match_softmax(s, maker));
    return pattern_check_dropout(s, last, growth);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* Whoever reads something else would read what is never stored. It is the last check, when all that is a part is known:
   before, a reader could still become one. */
weftStatus_t pattern_check_closed(const struct attention_pattern *s) {
    const struct tensor *given[] = {
        s->o.tensor, s->stats,     s->max,       s->sum_exp,  s->dropout ? s->dropout->y : NULL,
        s->dbias,    s->dq.tensor, s->dk.tensor, s->dv.tensor};
    for (int i = 0; i < s->count; i++) {
        const struct node *node = &s->graph->nodes[s->nodes[i].node];
        for (int k = 0; k < node->operand_count; k++) {
            const struct tensor *tensor = s->graph->values[node->operands[k]].tensor;
            /* Inputs are nobody's result here: only what these nodes make could be missed. */
            bool may = !node->is_output[k];
            for (size_t g = 0; g < sizeof given / sizeof *given; g++)
                may = may || tensor == given[g];
            if (!may && pattern_is_read_outside(s, tensor))
                return pattern_decline_tensor(tensor, "is wanted outside of the attention that it is a part of");
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
                                      .carried_factor = 1};
}

/* Upwards from the last product, so that each step has one tensor to explain. `node` may be any matmul: most end at the
   first question, whose answer is the reason that a plan tells. */
weftStatus_t attention_pattern_match(struct attention_pattern *found, const struct graph *graph, int node) {
    *found = pattern_empty(graph);
    /* The product with the values: the last of the attention's own, but for views of its result. */
    TRY(pattern_check_product(found, node));
    const struct matmul_op *op = (const struct matmul_op *)graph->nodes[node].op;
    found->o = pattern_view_of(op->c, op);
    TRY(pattern_follow_result(found, &found->o, false, NULL));
    found->v = pattern_view_of(op->b, op);
    TRY(pattern_look_through(found, &found->v, node, NULL));
    /* Between product and softmax weights may be under other extents, of batches and heads joined. */
    const struct tensor *weights = op->a;
    TRY(pattern_add_view(found, &weights));
    TRY(find_weights(found, node, weights));
    TRY(pattern_gather_scores(found));
    pattern_split_scores(found);
    return pattern_check_closed(found);
}
