/* SPDX-License-Identifier: Apache-2.0 */
/* Finding attention that is spelled out, from its last product upwards. */
#include "graph/spelled_attention.h"
#include "base/philox.h"
#include "graph/ops/matmul.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/reduction.h"
#include "graph/ops/reshape.h"
#include "graph/ops/softmax.h"
#include "graph/ops/transpose.h"

#include <math.h>
#include <string.h>

/* A score that a constant of at most this hides has no weight beside one that is not hidden: float ends there. */
static const double HIDDEN_MOST = -1e30;

/* ---- The graph around a tensor ----------------------------------------------------------------------------------- */

/* The node that makes a tensor; -1: none, it is an input. */
static int maker_of(const struct spelled_attention *s, const struct tensor *tensor) {
    int value = tensor ? graph_find_value(s->graph, tensor) : -1;
    return value < 0 ? -1 : s->graph->values[value].producer;
}

static const struct descriptor *op_at(const struct spelled_attention *s, int node) { return s->graph->nodes[node].op; }

static bool is_pointwise(const struct spelled_attention *s, int node) {
    return node >= 0 && op_of(op_at(s, node)) == &pointwise_op;
}

static const struct pointwise_op *pointwise_at(const struct spelled_attention *s, int node) {
    return (const struct pointwise_op *)op_at(s, node);
}

static const struct tensor *result_at(const struct spelled_attention *s, int node) {
    return pointwise_operands(pointwise_at(s, node)).out;
}

static enum pointwise_form form_at(const struct spelled_attention *s, int node) {
    return pointwise_find_mode(pointwise_at(s, node)->pw->mode)->form;
}

/* The pointwise operation of this mode that makes a tensor; NULL: another one does. */
static const struct pointwise_op *made_by(const struct spelled_attention *s, const struct tensor *tensor, int mode) {
    int node = maker_of(s, tensor);
    return is_pointwise(s, node) && pointwise_at(s, node)->pw->mode == mode ? pointwise_at(s, node) : NULL;
}

static int place_of(const struct spelled_attention *s, int node) {
    for (int i = 0; i < s->count; i++)
        if (s->nodes[i] == node)
            return i;
    return -1;
}

static bool has(const struct spelled_attention *s, int node) { return place_of(s, node) >= 0; }

static weftStatus_t take(struct spelled_attention *s, int node) {
    if (s->count == SPELLED_NODES_MAX)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: attention would be spelled by more than %d operations",
             descriptor_label(op_at(s, node)), SPELLED_NODES_MAX);
    if (!has(s, node)) {
        s->modifies[s->count] = false;
        s->nodes[s->count++] = node;
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t refuse(const struct spelled_attention *s, int node, const char *what) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: %s", descriptor_label(op_at(s, node)), what);
}

static weftStatus_t refuse_tensor(const struct tensor *tensor, const char *what) {
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s %s", descriptor_label(&tensor->base), what);
}

/* Whether a tensor is read by one node alone, and by nobody who could be told. */
static bool is_private(const struct spelled_attention *s, const struct tensor *tensor, int reader) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    bool is = tensor->is_virtual;
    for (int i = 0; i < value->readers; i++)
        is = is && value->read_by[i] == reader;
    return is;
}

/* Whether the elements of y are those of x in the same order. */
static bool keeps_order(const struct reshape_op *op) {
    return tensor_is_packed(op->x) && tensor_is_packed(op->y) && tensor_elements(op->x) == tensor_elements(op->y);
}

/* The reshape, at a node, that is another view of its input's memory; NULL: something else is there. */
static const struct reshape_op *view_at(const struct spelled_attention *s, int node) {
    const struct descriptor *op = node < 0 ? NULL : op_at(s, node);
    if (!op || op_of(op) != &reshape_op || !op_of(op)->memory_of(op))
        return NULL;
    const struct reshape_op *reshape = (const struct reshape_op *)op;
    return reshape->y->is_virtual && keeps_order(reshape) ? reshape : NULL;
}

/* Scores, or weights, under the extents in which an operation made them. */
static const struct tensor *behind_view(const struct spelled_attention *s, const struct tensor *tensor) {
    const struct reshape_op *op = view_at(s, maker_of(s, tensor));
    int64_t x = op ? op->x->dims.count : 0, y = tensor->dims.count;
    bool is_of_batches = x >= 2 && y >= 2 && op->x->dims.at[x - 1] == tensor->dims.at[y - 1] &&
                         op->x->dims.at[x - 2] == tensor->dims.at[y - 2];
    return is_of_batches ? op->x : tensor;
}

/* Whether something outside of what spells the attention reads a tensor, or a view of it. */
static bool is_wanted(const struct spelled_attention *s, const struct tensor *tensor) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    bool is = !tensor->is_virtual;
    for (int i = 0; i < value->readers && !is; i++) {
        const struct reshape_op *view = view_at(s, value->read_by[i]);
        is = view ? is_wanted(s, view->y) : !has(s, value->read_by[i]);
    }
    return is;
}

/* The one node that minds a tensor's elements; -1: none does, or several. */
static int sole_reader(const struct spelled_attention *s, const struct tensor *tensor) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, tensor)];
    int found = -1;
    for (int i = 0; i < value->readers; i++) {
        int reader = value->read_by[i];
        if (is_pointwise(s, reader) && form_at(s, reader) == FORM_INDEX)
            continue;
        if (found >= 0)
            return -1;
        found = reader;
    }
    return found;
}

/* ---- Types ------------------------------------------------------------------------------------------------------- */

/* Whether a tensor keeps what attention keeps of a number on chip. */
static bool is_exact(const struct spelled_attention *s, const struct tensor *tensor) {
    return tensor->type == (int32_t)WEFT_DATA_DOUBLE || tensor->type == (int32_t)s->math;
}

static weftStatus_t note_math(struct spelled_attention *s, const struct descriptor *op, weftDataType_t math) {
    if ((math != WEFT_DATA_FLOAT && math != WEFT_DATA_DOUBLE) || (s->count && math != s->math))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: calculates in %s, attention all in FLOAT or all in DOUBLE",
             descriptor_label(op), dtype_of(math)->name);
    s->math = math;
    return WEFT_STATUS_SUCCESS;
}

/* Whether a copy of a tensor has the same numbers. */
static bool keeps_numbers(const struct spelled_attention *s, const struct tensor *from, const struct tensor *to) {
    return from->type == to->type || (is_exact(s, to) && dtype_is_float((weftDataType_t)from->type));
}

static bool is_plain(const struct tensor *tensor) {
    return !tensor->ragged_offset && tensor->vector_count == 1 && tensor->reordering == WEFT_TENSOR_REORDERING_NONE;
}

static bool read_constant(const struct tensor *tensor, double *number) {
    if (!tensor || !tensor->is_constant || tensor_elements(tensor) != 1)
        return false;
    *number = dtype_load((weftDataType_t)tensor->type, tensor->constant, 0);
    return true;
}

/* What an operation multiplies a tensor by, where that is a number: c x, x / c, and x in another type. */
static bool read_factor(const struct pointwise_op *op, const struct tensor **x, double *factor) {
    double number = 1;
    *x = op->x;
    *factor = op->alpha1;
    switch (op->pw->mode) {
    case WEFT_POINTWISE_IDENTITY:
        break;
    case WEFT_POINTWISE_MUL:
        if (!read_constant(op->b, &number)) {
            *x = op->b;
            if (!read_constant(op->x, &number))
                return false;
        }
        *factor *= op->alpha2 * number;
        break;
    case WEFT_POINTWISE_DIV:
        if (!read_constant(op->b, &number))
            return false;
        *factor /= op->alpha2 * number;
        break;
    default:
        return false;
    }
    return dtype_is_float(pointwise_math(op)) && tensor_same_dims(op->y, *x) &&
           dtype_is_float((weftDataType_t)(*x)->type);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

static weftStatus_t check_product(struct spelled_attention *s, int node) {
    if (op_of(op_at(s, node)) != &matmul_op)
        return refuse(s, node, "is no matmul: attention ends with the product of weights and values");
    const struct matmul_op *op = (const struct matmul_op *)op_at(s, node);
    if (op->m_override || op->n_override || op->k_override)
        return refuse(s, node, "has sizes that are known at run time, attention has lengths");
    if (!is_plain(op->a) || !is_plain(op->b) || !is_plain(op->c))
        return refuse(s, node, "has a tensor with ragged offsets, in vectors or in another order");
    TRY(note_math(s, &op->base, matmul_math(op)));
    return take(s, node);
}

static struct spelled_view view_of_tensor(const struct tensor *tensor, const struct matmul_op *op) {
    return (struct spelled_view){tensor, tensor->dims, tensor->strides, &op->c->dims};
}

static void swap_numbers(int64_t *a, int64_t *b) {
    int64_t number = *a;
    *a = *b;
    *b = number;
}

static void swap_last(struct spelled_view *view) {
    int64_t rank = view->dims.count;
    swap_numbers(&view->dims.at[rank - 2], &view->dims.at[rank - 1]);
    swap_numbers(&view->strides.at[rank - 2], &view->strides.at[rank - 1]);
}

/* Where the dimensions of a view lie in the input of the transpose that makes its tensor. */
static void look_through_transpose(struct spelled_view *view, const struct dims *permutation,
                                   const struct tensor *input, int64_t *order) {
    for (int64_t i = 0; i < permutation->count; i++) {
        order[i] = permutation->at[order[i]];
        view->strides.at[i] = input->strides.at[order[i]];
    }
    view->tensor = input;
}

/* Heads that are copied for each query head that shares them, [B, Hk, 1, ..] to [B, Hk, G, ..] to [B, Hk G, ..]: the
   view becomes one of those that are there. */
static bool look_through_copies(struct spelled_view *view, const struct spelled_attention *s, int *copier,
                                const int64_t *order) {
    const struct reshape_op *joined = view_at(s, maker_of(s, view->tensor));
    int node = joined ? maker_of(s, joined->x) : -1;
    if (!joined || view->dims.count != 4 || joined->x->dims.count != 5 || order[0] != 0 || order[1] != 1 ||
        !is_pointwise(s, node) || !is_private(s, joined->x, maker_of(s, view->tensor)))
        return false;
    const struct pointwise_op *op = pointwise_at(s, node);
    const int64_t *many = joined->x->dims.at, *few = op->x->dims.at;
    bool copies = op->pw->mode == WEFT_POINTWISE_IDENTITY && op->alpha1 == 1 && keeps_numbers(s, op->x, joined->x) &&
                  is_plain(op->x) && op->x->dims.count == 5 && few[2] == 1 && few[0] == many[0] && few[1] == many[1] &&
                  few[3] == many[3] && few[4] == many[4] && many[1] * many[2] == view->dims.at[1];
    if (!copies)
        return false;
    view->tensor = op->x;
    view->dims.at[1] = few[1];
    for (int i = 0; i < 4; i++)
        view->strides.at[i] = op->x->strides.at[order[i] + (order[i] >= 2)];
    *copier = node;
    return true;
}

/* One operation back from an operand of a product: a transpose, a factor where that may be, copies of heads. */
static bool look_back(struct spelled_attention *s, struct spelled_view *view, int *node, double *factor,
                      int64_t *order) {
    const struct transpose_op *transpose = (const struct transpose_op *)op_at(s, *node);
    const struct tensor *x;
    double number;
    if (op_of(op_at(s, *node)) == &transpose_op && keeps_numbers(s, transpose->x, view->tensor) &&
        is_plain(transpose->x)) {
        look_through_transpose(view, &transpose->permutation, transpose->x, order);
        return true;
    }
    if (factor && is_pointwise(s, *node) && is_exact(s, view->tensor) &&
        read_factor(pointwise_at(s, *node), &x, &number) && is_plain(x)) {
        *factor *= number;
        view->tensor = x;
        for (int64_t i = 0; i < view->dims.count; i++)
            view->strides.at[i] = x->strides.at[order[i]];
        return true;
    }
    return look_through_copies(view, s, node, order);
}

/* An operand of a product as it lies in memory, before it was transposed, and scaled where `factor` is not NULL. */
static weftStatus_t look_through(struct spelled_attention *s, struct spelled_view *view, int reader, double *factor) {
    int64_t order[WEFT_DIM_MAX], rank = view->tensor->dims.count;
    for (int i = 0; i < WEFT_DIM_MAX; i++)
        order[i] = i;
    for (int node; (node = maker_of(s, view->tensor)) >= 0 && is_private(s, view->tensor, reader); reader = node) {
        if (view->tensor->dims.count != rank || !look_back(s, view, &node, factor, order))
            break;
        TRY(take(s, node));
    }
    return WEFT_STATUS_SUCCESS;
}

/* The strides, in the order of a view, of the result of a transpose of its tensor. */
static bool follow_transpose(struct spelled_view *view, const struct transpose_op *op, int64_t *order) {
    int64_t inverse[WEFT_DIM_MAX] = {0}, last = view->dims.count - 1;
    for (int64_t i = 0; i < op->permutation.count; i++)
        inverse[op->permutation.at[i]] = i;
    if (!is_plain(op->y) || op->y->strides.at[inverse[order[last]]] != 1)
        return false;
    for (int64_t i = 0; i <= last; i++) {
        order[i] = inverse[order[i]];
        view->strides.at[i] = op->y->strides.at[order[i]];
    }
    view->tensor = op->y;
    return true;
}

/* The result as it will lie in memory: transposed, with columns side by side, and under other extents. */
static weftStatus_t look_behind(struct spelled_attention *s, struct spelled_view *view) {
    int64_t order[WEFT_DIM_MAX];
    for (int i = 0; i < WEFT_DIM_MAX; i++)
        order[i] = i;
    for (int node; (node = sole_reader(s, view->tensor)) >= 0 && is_private(s, view->tensor, node);) {
        const struct descriptor *op = op_at(s, node);
        const struct reshape_op *reshape = (const struct reshape_op *)op;
        const struct tensor *from = view->tensor;
        struct spelled_view before = *view;
        if (op_of(op) == &reshape_op && !reshape->y->is_virtual && is_plain(reshape->y) && keeps_order(reshape))
            view->tensor = reshape->y;
        else if (op_of(op) != &transpose_op || !follow_transpose(view, (const struct transpose_op *)op, order))
            return WEFT_STATUS_SUCCESS;
        if (view->tensor->type != from->type && !is_exact(s, from)) { /* it would be rounded once, and not twice */
            *view = before;
            return WEFT_STATUS_SUCCESS;
        }
        TRY(take(s, node));
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* Weights are multiplied in the type of the values: one that was set is kept where it is that. */
static weftStatus_t check_weights(const struct spelled_attention *s, const struct tensor *weights) {
    if (!is_exact(s, weights) && weights->type != s->v.tensor->type)
        return refuse_tensor(weights, "has a type to which attention does not round weights: leave it unset");
    return WEFT_STATUS_SUCCESS;
}

/* Ones and zeros, times a number. */
static const struct rng_op *find_dropout(struct spelled_attention *s, const struct tensor *mask, double *growth) {
    double number;
    for (int node; (node = maker_of(s, mask)) >= 0;) {
        if (op_of(op_at(s, node)) == &rng_op)
            return take(s, node) ? NULL : (const struct rng_op *)op_at(s, node);
        if (!is_pointwise(s, node) || !is_exact(s, mask) || !read_factor(pointwise_at(s, node), &mask, &number) ||
            take(s, node))
            return NULL;
        *growth *= number;
    }
    return NULL;
}

/* Whether an operation drops some of the weights; then `weights` are those before. */
static bool drops(struct spelled_attention *s, const struct pointwise_op *op, const struct tensor **weights,
                  double *growth) {
    const struct tensor *sides[] = {op->x, op->b};
    for (int i = 0; i < 2 && !s->dropout && op->pw->mode == WEFT_POINTWISE_MUL; i++) {
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
    return false;
}

/* Dropout as attention has it: Bernoulli's, and what stays grows by as much as is dropped. */
static weftStatus_t check_dropout(const struct spelled_attention *s, int node, double growth) {
    static const double CLOSE = 1e-6;
    if (!s->dropout && growth != 1)
        return refuse(s, node, "multiplies weights by a number, and there is no dropout");
    if (!s->dropout)
        return WEFT_STATUS_SUCCESS;
    const struct rng *rng = s->dropout->parameters;
    if (rng->distribution != WEFT_RNG_DISTRIBUTION_BERNOULLI || !tensor_same_dims(s->dropout->y, s->scores) ||
        philox_threshold(1 - (1 - rng->probability)) != philox_threshold(rng->probability))
        return refuse_tensor(s->dropout->y, "is no mask of dropout, Bernoulli's of the dims of the scores");
    if (!(fabs(growth * rng->probability - 1) <= CLOSE))
        return refuse(s, node, "lets weights that dropout keeps grow by another number than 1 / (1 - p)");
    return WEFT_STATUS_SUCCESS;
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

static const struct tensor *if_wanted(const struct spelled_attention *s, const struct tensor *tensor) {
    return tensor && !value_is_dead(&s->graph->values[graph_find_value(s->graph, tensor)]) ? tensor : NULL;
}

static weftStatus_t take_softmax(struct spelled_attention *s, int node) {
    const struct softmax_op *op = (const struct softmax_op *)op_at(s, node);
    TRY(note_math(s, &op->base, (weftDataType_t)op->math));
    s->scores = op->x;
    s->sink = op->sink;
    s->stats = if_wanted(s, op->stats);
    s->max = if_wanted(s, op->max);
    s->sum_exp = if_wanted(s, op->sum_exp);
    if (softmax_axis(op) != op->x->dims.count - 1)
        return refuse(s, node, "sums along another dimension than the last one, that of the keys");
    if (op->is_stats_log2 && s->stats)
        return refuse(s, node, "gives statistics to base 2, attention natural ones");
    return take(s, node);
}

/* The reduction of rows of x that makes a tensor; NULL: something else does. */
static const struct reduction_op *reduced_by(const struct spelled_attention *s, const struct tensor *tensor, int mode) {
    int node = maker_of(s, tensor);
    if (node < 0 || op_of(op_at(s, node)) != &reduction_op)
        return NULL;
    const struct reduction_op *op = (const struct reduction_op *)op_at(s, node);
    struct dims rows = op->x->dims;
    rows.at[rows.count - 1] = 1;
    bool is_rows =
        op->y->dims.count == rows.count && memcmp(op->y->dims.at, rows.at, (size_t)rows.count * sizeof *rows.at) == 0;
    return is_rows && op->parameters->mode == mode ? op : NULL;
}

/* e^(x - max), over its sum, or times the reciprocal of that. */
struct spelled_softmax {
    const struct pointwise_op *share, *reciprocal, *exponential, *difference;
    const struct reduction_op *sum, *max;
};

static void find_share(struct spelled_softmax *p, const struct spelled_attention *s, int node) {
    const struct pointwise_op *op = is_pointwise(s, node) ? pointwise_at(s, node) : NULL;
    const struct tensor *weights = NULL, *sum = NULL;
    if (!op || op->alpha1 != 1 || op->alpha2 != 1)
        return;
    if (op->pw->mode == WEFT_POINTWISE_DIV) {
        weights = op->x;
        sum = op->b;
    } else if (op->pw->mode == WEFT_POINTWISE_MUL) {
        bool is_second = made_by(s, op->b, WEFT_POINTWISE_RECIPROCAL) != NULL;
        p->reciprocal = made_by(s, is_second ? op->b : op->x, WEFT_POINTWISE_RECIPROCAL);
        weights = is_second ? op->x : op->b;
        sum = p->reciprocal && p->reciprocal->alpha1 == 1 ? p->reciprocal->x : NULL;
    }
    p->share = op;
    p->exponential = made_by(s, weights, WEFT_POINTWISE_EXP);
    p->sum = reduced_by(s, sum, WEFT_REDUCE_TENSOR_ADD);
}

static bool find_softmax(struct spelled_softmax *p, const struct spelled_attention *s, int node) {
    *p = (struct spelled_softmax){0};
    find_share(p, s, node);
    if (!p->exponential || !p->sum || p->sum->x != p->exponential->y || p->exponential->alpha1 != 1)
        return false;
    p->difference = made_by(s, p->exponential->x, WEFT_POINTWISE_SUB);
    if (!p->difference || p->difference->alpha1 != 1 || p->difference->alpha2 != 1)
        return false;
    p->max = reduced_by(s, p->difference->b, WEFT_REDUCE_TENSOR_MAX);
    return p->max && p->max->x == p->difference->x;
}

/* Statistics behind a spelled softmax: max + log(sum). */
static weftStatus_t find_statistics(struct spelled_attention *s, const struct tensor *max, const struct tensor *sum) {
    const struct value *value = &s->graph->values[graph_find_value(s->graph, sum)];
    for (int i = 0; i < value->readers; i++) {
        const struct pointwise_op *log = is_pointwise(s, value->read_by[i]) ? pointwise_at(s, value->read_by[i]) : NULL;
        int node = log && log->pw->mode == WEFT_POINTWISE_LOG && log->alpha1 == 1 ? sole_reader(s, log->y) : -1;
        const struct pointwise_op *add = is_pointwise(s, node) ? pointwise_at(s, node) : NULL;
        if (!add || add->pw->mode != WEFT_POINTWISE_ADD || add->alpha1 != 1 || add->alpha2 != 1 ||
            !is_exact(s, log->y) || !is_private(s, log->y, node) || (add->x != max && add->b != max))
            continue;
        s->stats = add->y;
        TRY(take(s, value->read_by[i]));
        return take(s, node);
    }
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t take_spelled_softmax(struct spelled_attention *s, int node) {
    struct spelled_softmax p;
    if (!find_softmax(&p, s, node))
        return refuse(s, node, "no softmax of scores makes its weights");
    TRY(note_math(s, &p.sum->base, reduction_math(p.sum)));
    TRY(note_math(s, &p.max->base, reduction_math(p.max)));
    s->scores = p.max->x;
    const struct tensor *kept[] = {p.exponential->y, p.difference->y, p.sum->y, p.reciprocal ? p.reciprocal->y : NULL,
                                   p.max->y};
    for (int i = 0; i < 5; i++)
        if (kept[i] && !is_exact(s, kept[i]) && (kept[i] != p.max->y || p.max->y->type != s->scores->type))
            return refuse_tensor(kept[i], "has a type to which attention does not round: leave it unset");
    for (int i = 0; i < 5; i++)
        TRY(kept[i] ? take(s, maker_of(s, kept[i])) : WEFT_STATUS_SUCCESS);
    TRY(take(s, node));
    TRY(find_statistics(s, p.max->y, p.sum->y));
    s->max = is_wanted(s, p.max->y) ? p.max->y : NULL;
    s->sum_exp = is_wanted(s, p.sum->y) ? p.sum->y : NULL;
    return WEFT_STATUS_SUCCESS;
}

/* From the weights that values are multiplied with to the scores. */
static weftStatus_t find_weights(struct spelled_attention *s, int node, const struct tensor *weights) {
    double growth = 1, factor;
    int maker, last = node;
    for (;; last = maker) {
        const struct tensor *before;
        maker = maker_of(s, weights);
        if (maker < 0)
            return refuse(s, node, "no softmax of scores makes its weights");
        TRY(check_weights(s, weights));
        if (!is_pointwise(s, maker))
            break;
        if (read_factor(pointwise_at(s, maker), &before, &factor))
            growth *= factor;
        else if (!drops(s, pointwise_at(s, maker), &before, &growth))
            break;
        TRY(take(s, maker));
        weights = before;
    }
    TRY(op_of(op_at(s, maker)) == &softmax_op ? take_softmax(s, maker) : take_spelled_softmax(s, maker));
    return check_dropout(s, last, growth);
}

/* ---- The score modifier ------------------------------------------------------------------------------------------ */

/* The pointwise operations that lead to a tensor. */
static weftStatus_t gather(struct spelled_attention *s, const struct tensor *tensor) {
    int node = maker_of(s, tensor);
    if (!is_pointwise(s, node) || has(s, node))
        return WEFT_STATUS_SUCCESS;
    TRY(take(s, node));
    s->modifies[s->count - 1] = true;
    if (form_at(s, node) == FORM_INDEX)
        return WEFT_STATUS_SUCCESS;
    struct pointwise_operands operands = pointwise_operands(pointwise_at(s, node));
    TRY(gather(s, operands.x));
    TRY(gather(s, operands.b));
    return gather(s, operands.t);
}

/* The nodes in order. */
static void sort_nodes(struct spelled_attention *s) {
    for (int i = 1; i < s->count; i++)
        for (int at = i; at > 0 && s->nodes[at - 1] > s->nodes[at]; at--) {
            int node = s->nodes[at];
            bool modifies = s->modifies[at];
            s->nodes[at] = s->nodes[at - 1];
            s->modifies[at] = s->modifies[at - 1];
            s->nodes[at - 1] = node;
            s->modifies[at - 1] = modifies;
        }
}

static void drop(struct spelled_attention *s, int place) {
    int behind = --s->count - place;
    memmove(&s->nodes[place], &s->nodes[place + 1], (size_t)behind * sizeof *s->nodes);
    memmove(&s->modifies[place], &s->modifies[place + 1], (size_t)behind * sizeof *s->modifies);
}

/* A product that makes scores of these dims. */
static bool makes_scores(const struct spelled_attention *s, const struct tensor *tensor) {
    int node = maker_of(s, behind_view(s, tensor));
    return node >= 0 && op_of(op_at(s, node)) == &matmul_op && tensor_same_dims(tensor, s->scores);
}

/* Of several products that are added, as a bias may be one, the first. */
static weftStatus_t find_product(struct spelled_attention *s, int *found) {
    s->product = makes_scores(s, s->scores) ? s->scores : NULL;
    for (int i = 0; i < s->count && !s->product; i++) {
        if (!s->modifies[i] || form_at(s, s->nodes[i]) == FORM_INDEX)
            continue;
        struct pointwise_operands operands = pointwise_operands(pointwise_at(s, s->nodes[i]));
        const struct tensor *inputs[] = {operands.x, operands.b};
        for (int k = 0; k < 2 && !s->product; k++)
            s->product = inputs[k] && makes_scores(s, inputs[k]) ? inputs[k] : NULL;
    }
    if (!s->product)
        return refuse_tensor(s->scores, "is not made of a product of queries and keys");
    *found = maker_of(s, behind_view(s, s->product));
    return check_product(s, *found);
}

/* Whether what a node makes depends on the product's elements; `depends` says it of those before. */
static bool depends_on_product(const struct spelled_attention *s, int node, const bool *depends) {
    if (form_at(s, node) == FORM_INDEX)
        return false;
    struct pointwise_operands operands = pointwise_operands(pointwise_at(s, node));
    const struct tensor *inputs[] = {operands.x, operands.b, operands.t};
    for (int k = 0; k < 3; k++) {
        int place = inputs[k] && inputs[k] != s->product ? place_of(s, maker_of(s, inputs[k])) : -1;
        if (inputs[k] == s->product || (place >= 0 && s->modifies[place] && depends[place]))
            return true;
    }
    return false;
}

/* Leaves out what can be read from memory, and is read elsewhere as well, or does not lie as the scores do. */
static void drop_shared(struct spelled_attention *s) {
    bool depends[SPELLED_NODES_MAX] = {0};
    for (int i = 0; i < s->count; i++)
        depends[i] = s->modifies[i] && depends_on_product(s, s->nodes[i], depends);
    for (int i = s->count; i-- > 0;)
        if (s->modifies[i] && !depends[i] &&
            (is_wanted(s, result_at(s, s->nodes[i])) || result_at(s, s->nodes[i])->dims.count != s->scores->dims.count))
            drop(s, i);
}

static bool is_modifier(const struct spelled_attention *s, int node) {
    int place = place_of(s, node);
    return place >= 0 && s->modifies[place];
}

/* Scales first: those of attention itself. */
static void peel_scale(struct spelled_attention *s) {
    for (int node; is_exact(s, s->product) && (node = sole_reader(s, s->product)) >= 0 && is_modifier(s, node);) {
        const struct pointwise_op *op = pointwise_at(s, node);
        const struct tensor *x, *other = op->x == s->product ? op->b : op->x;
        double factor;
        if (!is_exact(s, result_at(s, node)))
            return;
        if (read_factor(op, &x, &factor) && x == s->product) {
            s->scale_value *= factor;
        } else if (op->pw->mode == WEFT_POINTWISE_MUL && op->alpha1 == 1 && op->alpha2 == 1 && s->scale_value == 1 &&
                   !s->scale && tensor_elements(other) == 1 && !is_modifier(s, maker_of(s, other)) &&
                   dtype_is_float((weftDataType_t)other->type) && tensor_same_dims(op->y, s->product)) {
            s->scale = other;
        } else {
            return;
        }
        s->modifies[place_of(s, node)] = false;
        s->product = op->y;
        if (s->scale)
            return;
    }
}

/* ---- Masks ------------------------------------------------------------------------------------------------------- */

/* row * query + column * key + number. */
struct linear {
    double row, column, number;
};

enum { FORMULA_DEPTH = 8 };

static bool read_index(struct linear *form, const struct spelled_attention *s, const struct pointwise_op *op) {
    int64_t rank = s->scores->dims.count, axis = op->pw->axis;
    *form = (struct linear){axis == rank - 2, axis == rank - 1, 0};
    return op->y->dims.count == rank && axis >= rank - 2 && op->y->dims.at[axis] == s->scores->dims.at[axis];
}

static bool is_wide(const struct tensor *tensor) {
    return tensor->type == WEFT_DATA_INT32 || tensor->type == WEFT_DATA_INT64 || tensor->type == WEFT_DATA_FLOAT ||
           tensor->type == WEFT_DATA_DOUBLE;
}

/* A sum of indices and numbers. */
static bool read_linear(struct linear *form, const struct spelled_attention *s, const struct tensor *tensor,
                        int depth) {
    struct linear b;
    *form = (struct linear){0};
    if (read_constant(tensor, &form->number))
        return true;
    int node = maker_of(s, tensor);
    if (!is_pointwise(s, node) || depth == 0 || !is_wide(tensor))
        return false;
    const struct pointwise_op *op = pointwise_at(s, node);
    double sign = op->pw->mode == WEFT_POINTWISE_SUB ? -1 : 1;
    if (op->pw->mode == WEFT_POINTWISE_GEN_INDEX)
        return read_index(form, s, op);
    if (op->alpha1 != 1 || op->alpha2 != 1)
        return false;
    if (op->pw->mode == WEFT_POINTWISE_IDENTITY)
        return read_linear(form, s, op->x, depth - 1);
    if (op->pw->mode != WEFT_POINTWISE_ADD && op->pw->mode != WEFT_POINTWISE_SUB)
        return false;
    if (!read_linear(form, s, op->x, depth - 1) || !read_linear(&b, s, op->b, depth - 1))
        return false;
    *form = (struct linear){form->row + sign * b.row, form->column + sign * b.column, form->number + sign * b.number};
    return true;
}

static bool is_no_less(int mode) { return mode == WEFT_POINTWISE_CMP_GE || mode == WEFT_POINTWISE_CMP_GT; }

/* A comparison of indices as a bound: column <= row + number, or column >= row + number. */
static bool read_bound(const struct spelled_attention *s, const struct pointwise_op *op, bool *is_right,
                       double *number) {
    struct linear x, b;
    int mode = op->pw->mode;
    bool is_strict = mode == WEFT_POINTWISE_CMP_GT || mode == WEFT_POINTWISE_CMP_LT;
    bool compares = is_strict || mode == WEFT_POINTWISE_CMP_GE || mode == WEFT_POINTWISE_CMP_LE;
    if (!compares || op->alpha1 != 1 || op->alpha2 != 1 || !read_linear(&x, s, op->x, FORMULA_DEPTH) ||
        !read_linear(&b, s, op->b, FORMULA_DEPTH))
        return false;
    struct linear d = {x.row - b.row, x.column - b.column, x.number - b.number}; /* of which the sign counts */
    if (!(d.row == 1 && d.column == -1) && !(d.row == -1 && d.column == 1))
        return false;
    if (d.number != floor(d.number) || fabs(d.number) > INT32_MAX)
        return false;
    *is_right = is_no_less(mode) == (d.row == 1);
    *number = d.row * d.number + (is_strict ? (*is_right ? -1 : 1) : 0);
    return true;
}

/* Keeps the scores of columns up to, or from, row + number. */
static void keep_bound(struct spelled_attention *s, bool is_right, int64_t number) {
    if (is_right)
        s->right_bound = number < s->right_bound ? number : s->right_bound;
    else
        s->left_bound = 1 - number < s->left_bound ? 1 - number : s->left_bound;
}

/* Whether scores stay where a mask is true (`keeps`), or false, by bounds, or as attention's boolean bias does it. */
static bool keep_where(struct spelled_attention *s, const struct tensor *mask, bool keeps, int depth) {
    int node = maker_of(s, mask);
    const struct pointwise_op *op = is_pointwise(s, node) ? pointwise_at(s, node) : NULL;
    bool is_right;
    double number;
    if (op && depth && op->pw->mode == WEFT_POINTWISE_LOGICAL_NOT)
        return keep_where(s, op->x, !keeps, depth - 1);
    if (op && depth && op->pw->mode == (keeps ? WEFT_POINTWISE_LOGICAL_AND : WEFT_POINTWISE_LOGICAL_OR))
        return keep_where(s, op->x, keeps, depth - 1) && keep_where(s, op->b, keeps, depth - 1);
    if (op && read_bound(s, op, &is_right, &number)) {
        if (!keeps) { /* the complement begins behind it */
            is_right = !is_right;
            number += is_right ? -1 : 1;
        }
        keep_bound(s, is_right, (int64_t)number);
        return true;
    }
    if (!keeps || s->bias || !mask || !dtype_is_boolean((weftDataType_t)mask->type) || is_modifier(s, node))
        return false;
    s->bias = mask;
    return true;
}

/* Whether every query sees a key by the bounds alone. */
static bool bounds_leave_keys(const struct spelled_attention *s) {
    int64_t rank = s->scores->dims.count;
    int64_t rows = s->scores->dims.at[rank - 2], columns = s->scores->dims.at[rank - 1];
    bool first = s->right_bound >= 0 || s->right_bound == ATTENTION_UNBOUNDED;
    bool last = s->left_bound == ATTENTION_UNBOUNDED || rows - 1 - s->left_bound + 1 < columns;
    bool between = s->left_bound == ATTENTION_UNBOUNDED || s->right_bound == ATTENTION_UNBOUNDED ||
                   s->left_bound + s->right_bound > 0;
    return first && last && between;
}

/* A mask is attention's own where what it hides is -inf; a finite number gives a row of nothing else equal weights,
   and must have no such row. */
static bool peel_mask(struct spelled_attention *s, const struct tensor *mask, bool keeps, double hidden) {
    struct spelled_attention before = *s;
    bool is = hidden <= HIDDEN_MOST && keep_where(s, mask, keeps, FORMULA_DEPTH);
    if (is && hidden != -INFINITY) {
        is = s->bias == before.bias && bounds_leave_keys(s);
        s->hides_by_number = true;
    }
    if (!is)
        *s = before;
    return is;
}

/* Scores, or a number that hides them. */
static const struct tensor *peel_select(struct spelled_attention *s, const struct pointwise_op *op) {
    double hidden;
    if (op->alpha1 != 1 || op->alpha2 != 1)
        return NULL;
    if (read_constant(op->b, &hidden) && peel_mask(s, op->t, true, hidden))
        return op->x;
    return read_constant(op->x, &hidden) && peel_mask(s, op->t, false, hidden) ? op->b : NULL;
}

/* Zeros, and numbers that hide, added to scores. */
static bool is_added_mask(struct spelled_attention *s, const struct tensor *bias) {
    const struct pointwise_op *op = made_by(s, bias, WEFT_POINTWISE_BINARY_SELECT);
    double x, b;
    if (!op || op->alpha1 != 1 || op->alpha2 != 1 || !read_constant(op->x, &x) || !read_constant(op->b, &b))
        return false;
    return x == 0 ? peel_mask(s, op->t, true, b) : b == 0 && peel_mask(s, op->t, false, x);
}

static const struct tensor *peel_add(struct spelled_attention *s, const struct pointwise_op *op) {
    const struct tensor *sides[] = {op->x, op->b};
    for (int i = 0; i < 2 && op->alpha1 == 1 && op->alpha2 == 1; i++) {
        const struct tensor *scores = sides[i], *bias = sides[1 - i];
        if (scores != s->product && !is_modifier(s, maker_of(s, scores)))
            continue;
        if (is_added_mask(s, bias))
            return scores;
        bool is_read = bias != s->product && !is_modifier(s, maker_of(s, bias)) && !bias->is_constant &&
                       bias->dims.count == s->scores->dims.count && dtype_is_float((weftDataType_t)bias->type);
        if (is_read && !s->bias) {
            s->bias = bias;
            return scores;
        }
    }
    return NULL;
}

/* The scores before a bias, a mask, or a conversion that changes nothing; NULL: it is something else. */
static const struct tensor *peel(struct spelled_attention *s, const struct pointwise_op *op) {
    if (op->pw->mode == WEFT_POINTWISE_IDENTITY)
        return op->alpha1 == 1 && is_exact(s, op->y) ? op->x : NULL;
    if (op->pw->mode == WEFT_POINTWISE_ADD)
        return is_exact(s, op->y) ? peel_add(s, op) : NULL;
    const struct tensor *before = op->pw->mode == WEFT_POINTWISE_BINARY_SELECT ? peel_select(s, op) : NULL;
    return before && (is_exact(s, op->y) || op->y->type == before->type) ? before : NULL;
}

/* Bias and masks last: those of attention itself. */
static void peel_masks(struct spelled_attention *s) {
    s->modified = s->scores;
    const struct spelled_attention whole = *s;
    for (int node; s->modified != s->product; s->modifies[place_of(s, node)] = false) {
        const struct spelled_attention kept = *s;
        node = maker_of(s, s->modified);
        const struct tensor *before = peel(s, pointwise_at(s, node));
        bool leads_on = before && tensor_same_dims(before, s->scores) && sole_reader(s, before) == node &&
                        (before == s->product || is_modifier(s, maker_of(s, before)));
        if (!leads_on) {
            *s = kept;
            break;
        }
        s->modified = before;
    }
    if (s->hides_by_number && (s->modified != s->product || s->bias)) /* which may reach as low */
        *s = whole;
}

/* Keeps in the modifier what its result is made of. */
static void mark_needed(struct spelled_attention *s, const struct tensor *tensor, bool *needed) {
    int place = tensor && tensor != s->product ? place_of(s, maker_of(s, tensor)) : -1;
    if (place < 0 || !s->modifies[place] || needed[place])
        return;
    needed[place] = true;
    if (form_at(s, s->nodes[place]) == FORM_INDEX)
        return;
    struct pointwise_operands operands = pointwise_operands(pointwise_at(s, s->nodes[place]));
    mark_needed(s, operands.x, needed);
    mark_needed(s, operands.b, needed);
    mark_needed(s, operands.t, needed);
}

static weftStatus_t find_scores(struct spelled_attention *s) {
    int product = -1;
    bool needed[SPELLED_NODES_MAX] = {0};
    TRY(gather(s, s->scores));
    TRY(find_product(s, &product));
    const struct matmul_op *op = (const struct matmul_op *)op_at(s, product);
    s->q = view_of_tensor(op->a, op);
    s->k = view_of_tensor(op->b, op);
    TRY(look_through(s, &s->q, product, &s->scale_value));
    TRY(look_through(s, &s->k, product, &s->scale_value));
    swap_last(&s->k);
    sort_nodes(s);
    drop_shared(s);
    s->is_rounded = !is_exact(s, s->product);
    peel_scale(s);
    peel_masks(s);
    mark_needed(s, s->modified, needed);
    memcpy(s->modifies, needed, sizeof needed);
    return WEFT_STATUS_SUCCESS;
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* Nothing on the way but what attention gives is wanted elsewhere. */
static weftStatus_t check_closed(const struct spelled_attention *s) {
    const struct tensor *given[] = {s->o.tensor, s->stats, s->max, s->sum_exp, s->dropout ? s->dropout->y : NULL};
    for (int i = 0; i < s->count; i++) {
        const struct node *node = &s->graph->nodes[s->nodes[i]];
        for (int k = 0; k < node->operand_count; k++) {
            const struct tensor *tensor = s->graph->values[node->operands[k]].tensor;
            bool may = !node->is_output[k];
            for (int g = 0; g < 5; g++)
                may = may || tensor == given[g];
            if (!may && is_wanted(s, tensor))
                return refuse_tensor(tensor, "is wanted outside of the attention that it is a part of");
        }
    }
    return WEFT_STATUS_SUCCESS;
}

weftStatus_t spelled_attention_find(struct spelled_attention *found, const struct graph *graph, int node) {
    *found = (struct spelled_attention){.graph = graph,
                                        .scale_value = 1,
                                        .left_bound = ATTENTION_UNBOUNDED,
                                        .right_bound = ATTENTION_UNBOUNDED,
                                        .math = WEFT_DATA_FLOAT};
    TRY(check_product(found, node));
    const struct matmul_op *op = (const struct matmul_op *)graph->nodes[node].op;
    found->o = view_of_tensor(op->c, op);
    TRY(look_behind(found, &found->o));
    found->v = view_of_tensor(op->b, op);
    TRY(look_through(found, &found->v, node, NULL));
    TRY(find_weights(found, node, behind_view(found, op->a)));
    TRY(find_scores(found));
    return check_closed(found);
}
