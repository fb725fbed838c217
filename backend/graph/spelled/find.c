/* SPDX-License-Identifier: Apache-2.0 */
/* Finding attention that is spelled out, from its last product upwards: weights, dropout, softmax. From the softmax on
   scores.c goes on; gradient.c, which comes to the same softmax from another side, shares what is below the weights.
   Nothing is changed here: what is found is a list of nodes and what each tensor is to the attention. */
#include "base/philox.h"
#include "graph/ops/softmax.h"
#include "graph/spelled/attention.h"
#include "graph/spelled/parts.h"

#include <math.h>
#include <string.h>

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* The kernels multiply weights in the type of the other factor: any type set that is narrower, or another one of that
   size, would give other numbers. */
weftStatus_t spelled_check_weights(const struct spelled_attention *s, const struct tensor *weights,
                                   const struct tensor *other) {
    if (!spelled_is_exact(s, weights) && weights->type != other->type)
        return spelled_refuse_tensor(weights, "has a type to which attention does not round weights: leave it unset");
    return WEFT_STATUS_SUCCESS;
}

/* From a mask of ones and zeros, times a number, to the generator that draws it; *growth gets the number. NULL: nothing
   draws it. What was taken by then the caller takes back, by the count that it had. */
static const struct rng_op *find_dropout(struct spelled_attention *s, const struct tensor *mask, double *growth) {
    double number;
    /* Factors between the mask and the weights join their growth. */
    for (int node; (node = spelled_maker(s, mask)) >= 0;) {
        if (op_of(spelled_op(s, node)) == &rng_op)
            return spelled_take(s, node) ? NULL : (const struct rng_op *)spelled_op(s, node);
        if (!spelled_is_pointwise(s, node) || !spelled_is_exact(s, mask) ||
            !spelled_read_factor(spelled_pointwise(s, node), &mask, &number) || spelled_take(s, node))
            return NULL;
        *growth *= number;
    }
    return NULL;
}

/* The mask as it lies in memory before the attention, of numbers, or of booleans that are made numbers here. */
static const struct tensor *find_mask(struct spelled_attention *s, const struct tensor *mask) {
    const struct pointwise_op *conversion = spelled_made_by(s, mask, WEFT_POINTWISE_IDENTITY);
    if (conversion && dtype_is_boolean((weftDataType_t)conversion->x->type) && !spelled_take(s, spelled_maker(s, mask)))
        mask = conversion->x;
    return spelled_maker(s, mask) < 0 && !mask->is_by_value && !mask->is_constant ? mask : NULL;
}

/* The same of a mask that nothing here draws. */
static bool drops_by_mask(struct spelled_attention *s, const struct pointwise_op *op, const struct tensor **weights,
                          double *growth) {
    const struct tensor *sides[] = {op->x, op->b};
    for (int i = 0; i < 2 && op->pw->mode == WEFT_POINTWISE_MUL; i++) {
        int count = s->count;
        s->drop_mask = spelled_maker(s, sides[i]) >= 0 ? find_mask(s, sides[1 - i]) : NULL;
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
bool spelled_drops(struct spelled_attention *s, const struct pointwise_op *op, const struct tensor **weights,
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
static weftStatus_t check_mask(struct spelled_attention *s, int node, double growth) {
    const struct dims *dims = &s->drop_mask->dims, *scores = &s->scores->dims;
    bool fits = dims->count == scores->count;
    for (int i = 0; i < scores->count && fits; i++)
        fits = dims->at[i] == 1 || dims->at[i] == scores->at[i];
    if (!fits)
        return spelled_refuse_tensor(s->drop_mask, "multiplies weights, and does not broadcast to the scores");
    if (!(growth >= 0))
        return spelled_refuse(s, node, "multiplies weights that dropout keeps by a negative number");
    s->growth = growth;
    return WEFT_STATUS_SUCCESS;
}

/* Bernoulli's, of as many numbers as there are scores, so that both draw the same number for a score, and what stays
   grows by as much as is dropped. The generator's probability is that of a one, attention's that of a zero: in double
   precision both must come to the same threshold of its words. */
weftStatus_t spelled_check_dropout(struct spelled_attention *s, int node, double growth) {
    static const double CLOSE = 1e-6; /* frameworks round 1 / (1 - p) to FLOAT */
    if (s->drop_mask)
        return check_mask(s, node, growth);
    if (!s->dropout && growth != 1)
        return spelled_refuse(s, node, "multiplies weights by a number, and there is no dropout");
    if (!s->dropout)
        return WEFT_STATUS_SUCCESS;
    const struct rng *rng = s->dropout->parameters;
    /* The threshold decides which words drop: 1 - p, as attention will take it, must give the same one. */
    if (rng->distribution != WEFT_RNG_DISTRIBUTION_BERNOULLI || !tensor_same_dims(s->dropout->y, s->scores) ||
        philox_threshold(1 - (1 - rng->probability)) != philox_threshold(rng->probability))
        return spelled_refuse_tensor(s->dropout->y, "is no mask of dropout, Bernoulli's of the dims of the scores");
    if (!(fabs(growth * rng->probability - 1) <= CLOSE))
        return spelled_refuse(s, node, "lets weights that dropout keeps grow by another number than 1 / (1 - p)");
    return WEFT_STATUS_SUCCESS;
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* A result that somebody reads, or the user gets; NULL: nobody does. */
static const struct tensor *if_wanted(const struct spelled_attention *s, const struct tensor *tensor) {
    return tensor && !value_is_dead(&s->graph->values[graph_find_value(s->graph, tensor)]) ? tensor : NULL;
}

/* A softmax node along the keys, with all that it gives beside the weights. */
static weftStatus_t take_softmax(struct spelled_attention *s, int node) {
    const struct softmax_op *op = (const struct softmax_op *)spelled_op(s, node);
    TRY(spelled_note_math(s, &op->base, (weftDataType_t)op->math));
    s->scores = op->x;
    s->sink = op->sink;
    s->stats = if_wanted(s, op->stats);
    s->max = if_wanted(s, op->max);
    s->sum_exp = if_wanted(s, op->sum_exp);
    /* Attention's rows are the keys of a query, side by side. */
    if (softmax_axis(op) != op->x->dims.count - 1)
        return spelled_refuse(s, node, "sums along another dimension than the last one, that of the keys");
    if (op->is_stats_log2 && s->stats)
        return spelled_refuse(s, node, "gives statistics to base 2, attention natural ones");
    return spelled_take(s, node);
}

/* Keys are the last dimension, which becomes 1; all others stay. */
const struct reduction_op *spelled_reduced_by(const struct spelled_attention *s, const struct tensor *tensor,
                                              int mode) {
    int node = spelled_maker(s, tensor);
    if (node < 0 || op_of(spelled_op(s, node)) != &reduction_op)
        return NULL;
    const struct reduction_op *op = (const struct reduction_op *)spelled_op(s, node);
    /* Rows are the last dimension, that of the keys, reduced to 1. */
    struct dims rows = op->x->dims;
    rows.at[rows.count - 1] = 1;
    bool is_rows =
        op->y->dims.count == rows.count && memcmp(op->y->dims.at, rows.at, (size_t)rows.count * sizeof *rows.at) == 0;
    return is_rows && op->parameters->mode == mode ? op : NULL;
}

/* e^(x - max), over its sum, or times the reciprocal of that: the operations of a softmax that is spelled out; those
   that were not found are NULL. */
struct spelled_softmax {
    const struct pointwise_op *share, *reciprocal, *exponential, *difference;
    const struct reduction_op *sum, *max;
};

/* The quotient, and the weights and the sum that it is made of: `exponential` and `sum` are NULL where it is another
   one. */
static void find_share(struct spelled_softmax *p, const struct spelled_attention *s, int node) {
    const struct pointwise_op *op = spelled_is_pointwise(s, node) ? spelled_pointwise(s, node) : NULL;
    const struct tensor *weights = NULL, *sum = NULL;
    if (!op || op->alpha1 != 1 || op->alpha2 != 1)
        return;
    if (op->pw->mode == WEFT_POINTWISE_DIV) {
        /* A quotient: weights over their sum. */
        weights = op->x;
        sum = op->b;
    } else if (op->pw->mode == WEFT_POINTWISE_MUL) {
        /* The reciprocal may stand on either side of the product. */
        bool is_second = spelled_made_by(s, op->b, WEFT_POINTWISE_RECIPROCAL) != NULL;
        p->reciprocal = spelled_made_by(s, is_second ? op->b : op->x, WEFT_POINTWISE_RECIPROCAL);
        weights = is_second ? op->x : op->b;
        sum = p->reciprocal && p->reciprocal->alpha1 == 1 ? p->reciprocal->x : NULL;
    }
    p->share = op;
    p->exponential = spelled_made_by(s, weights, WEFT_POINTWISE_EXP);
    p->sum = spelled_reduced_by(s, sum, WEFT_REDUCE_TENSOR_ADD);
}

/* From the quotient up to the maximum: all of x must be the same tensor. */
static bool find_softmax(struct spelled_softmax *p, const struct spelled_attention *s, int node) {
    *p = (struct spelled_softmax){0};
    find_share(p, s, node);
    if (!p->exponential || !p->sum || p->sum->x != p->exponential->y || p->exponential->alpha1 != 1)
        return false;
    p->difference = spelled_made_by(s, p->exponential->x, WEFT_POINTWISE_SUB);
    if (!p->difference || p->difference->alpha1 != 1 || p->difference->alpha2 != 1)
        return false;
    p->max = spelled_reduced_by(s, p->difference->b, WEFT_REDUCE_TENSOR_MAX);
    return p->max && p->max->x == p->difference->x;
}

/* Statistics behind a spelled softmax: max + log(sum), in either order. They are optional: what is not quite that stays
   outside, and then the sum is one of the results. */
static weftStatus_t find_statistics(struct spelled_attention *s, const struct tensor *max, const struct tensor *sum) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, sum)];
    for (int i = 0; i < value->readers; i++) {
        const struct pointwise_op *log =
            spelled_is_pointwise(s, value->read_by[i]) ? spelled_pointwise(s, value->read_by[i]) : NULL;
        /* The logarithm must lead to the sum alone: attention does not give it by itself. */
        int node = log && log->pw->mode == WEFT_POINTWISE_LOG && log->alpha1 == 1 ? spelled_sole_reader(s, log->y) : -1;
        const struct pointwise_op *add = spelled_is_pointwise(s, node) ? spelled_pointwise(s, node) : NULL;
        if (!add || add->pw->mode != WEFT_POINTWISE_ADD || add->alpha1 != 1 || add->alpha2 != 1 ||
            !spelled_is_exact(s, log->y) || !spelled_is_private(s, log->y, node) || (add->x != max && add->b != max))
            continue;
        s->stats = add->y;
        TRY(spelled_take(s, value->read_by[i]));
        return spelled_take(s, node);
    }
    return WEFT_STATUS_SUCCESS;
}

/* A softmax out of its operations. A maximum in the scores' own type is exact, so that one may be set; all else that is
   made on the way must be as wide as attention's sums are. */
static weftStatus_t take_spelled_softmax(struct spelled_attention *s, int node) {
    struct spelled_softmax p;
    if (!find_softmax(&p, s, node))
        return spelled_refuse(s, node, "no softmax of scores makes its weights");
    TRY(spelled_note_math(s, &p.sum->base, reduction_math(p.sum)));
    TRY(spelled_note_math(s, &p.max->base, reduction_math(p.max)));
    s->scores = p.max->x;
    /* What attention keeps on chip. The maximum may be rounded as the scores are: it is one of them. */
    const struct tensor *kept[] = {p.exponential->y, p.difference->y, p.sum->y, p.reciprocal ? p.reciprocal->y : NULL,
                                   p.max->y};
    /* Each of these would be rounded to its type where the operations run one by one. */
    for (int i = 0; i < 5; i++)
        if (kept[i] && !spelled_is_exact(s, kept[i]) && (kept[i] != p.max->y || p.max->y->type != s->scores->type))
            return spelled_refuse_tensor(kept[i], "has a type to which attention does not round: leave it unset");
    for (int i = 0; i < 5; i++)
        TRY(kept[i] ? spelled_take(s, spelled_maker(s, kept[i])) : WEFT_STATUS_SUCCESS);
    TRY(spelled_take(s, node));
    /* Before what is wanted is asked: statistics read both. */
    TRY(find_statistics(s, p.max->y, p.sum->y));
    s->max = spelled_is_wanted(s, p.max->y) ? p.max->y : NULL;
    s->sum_exp = spelled_is_wanted(s, p.sum->y) ? p.sum->y : NULL;
    return WEFT_STATUS_SUCCESS;
}

/* `node` makes the weights, of a softmax node as its result, or as the quotient of a spelled one. */
weftStatus_t spelled_take_softmax(struct spelled_attention *s, int node) {
    return op_of(spelled_op(s, node)) == &softmax_op ? take_softmax(s, node) : take_spelled_softmax(s, node);
}

/* From the weights that values are multiplied with to the scores, over conversions, numbers and dropout, in any order:
   numbers come out as one product, which must be dropout's growth. */
static weftStatus_t find_weights(struct spelled_attention *s, int node, const struct tensor *weights) {
    double growth = 1, factor;
    int maker, last = node;
    /* Factors and dropout, in any order, until something else makes the weights: that must be the softmax. */
    for (;; last = maker) {
        const struct tensor *before;
        maker = spelled_maker(s, weights);
        if (maker < 0)
            return spelled_refuse(s, node, "no softmax of scores makes its weights");
        TRY(spelled_check_weights(s, weights, s->v.tensor));
        if (!spelled_is_pointwise(s, maker))
            break;
        if (spelled_read_factor(spelled_pointwise(s, maker), &before, &factor))
            growth *= factor;
        else if (!spelled_drops(s, spelled_pointwise(s, maker), &before, &growth))
            break;
        TRY(spelled_take(s, maker));
        weights = before;
    }
    TRY(spelled_take_softmax(s, maker));
    return spelled_check_dropout(s, last, growth);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* Whoever reads something else would read what is never stored. It is the last check, when all that is a part is known:
   before, a reader could still become one. */
weftStatus_t spelled_check_closed(const struct spelled_attention *s) {
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
            if (!may && spelled_is_wanted(s, tensor))
                return spelled_refuse_tensor(tensor, "is wanted outside of the attention that it is a part of");
        }
    }
    return WEFT_STATUS_SUCCESS;
}

struct spelled_attention spelled_nothing(const struct graph *graph) {
    return (struct spelled_attention){.graph = graph,
                                      .scale_value = 1,
                                      .left_bound = ATTENTION_UNBOUNDED,
                                      .right_bound = ATTENTION_UNBOUNDED,
                                      .math = WEFT_DATA_FLOAT,
                                      .carried_factor = 1};
}

/* Upwards from the last product, so that each step has one tensor to explain. `node` may be any matmul: most end at the
   first question, whose answer is the reason that a plan tells. */
weftStatus_t spelled_attention_find(struct spelled_attention *found, const struct graph *graph, int node) {
    *found = spelled_nothing(graph);
    /* The product with the values: the last of the attention's own, but for views of its result. */
    TRY(spelled_check_product(found, node));
    const struct matmul_op *op = (const struct matmul_op *)graph->nodes[node].op;
    found->o = spelled_view_of(op->c, op);
    TRY(spelled_look_behind(found, &found->o, false, NULL));
    found->v = spelled_view_of(op->b, op);
    TRY(spelled_look_through(found, &found->v, node, NULL));
    /* Between product and softmax weights may be under other extents, of batches and heads joined. */
    const struct tensor *weights = op->a;
    TRY(spelled_take_view(found, &weights));
    TRY(find_weights(found, node, weights));
    TRY(spelled_gather_scores(found));
    spelled_part_scores(found);
    return spelled_check_closed(found);
}
