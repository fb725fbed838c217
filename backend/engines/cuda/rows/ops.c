/* SPDX-License-Identifier: Apache-2.0 */
/* The operations that combine elements to rows, each as terms: one function per operation, in the words of its
   definition. Printed code evaluates them in float, double or i64, as the operation's compute type says. */
#include "engines/cuda/rows/plan.h"
#include "graph/ops/bn_bwd_weights.h"
#include "graph/ops/bn_finalize.h"
#include "graph/ops/genstats.h"
#include "graph/ops/norm.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/reduction.h"
#include "graph/ops/softmax.h"

#include <stdio.h>
#include <string.h>

static bool is_op(const struct node *node, const struct op *op) { return op_of(node->op) == op; }

/* The type that an operation calculates in; that of a double x is double whatever was asked for. */
static const char *arithmetic(int32_t math, const struct tensor *x) {
    if (!dtype_is_float((weftDataType_t)math))
        return "i64";
    return math == WEFT_DATA_DOUBLE || x->type == WEFT_DATA_DOUBLE ? "double" : "float";
}

/* ---- Row spaces -------------------------------------------------------------------------------------------------- */

static void shape_of_norm(const struct tensor *x, const struct norm_shape *shape, bool is_group, struct dims *dims,
                          int64_t *parts) {
    *dims = x->dims;
    for (int64_t d = 0; d < dims->count; d++)
        parts[d] = shape->over[d] ? 1 : d == 1 && is_group ? shape->statistics.at[1] : dims->at[d];
}

static void shape_of_channels(const struct tensor *x, struct dims *dims, int64_t *parts) {
    *dims = x->dims;
    for (int64_t d = 0; d < dims->count; d++)
        parts[d] = d == 1 ? dims->at[d] : 1;
}

static const struct tensor *finalize_source(const struct bn_finalize_op *op) {
    return op->mode == WEFT_BN_FINALIZE_STATISTICS_TRAINING ? op->sum : op->in_running_mean;
}

bool rows_shape_of(const struct node *node, struct dims *dims, int64_t *parts) {
    if (is_op(node, &reduction_op)) {
        const struct reduction_op *op = (const struct reduction_op *)node->op;
        *dims = op->x->dims;
        for (int64_t d = 0; d < dims->count; d++)
            parts[d] = op->y->dims.at[d];
    } else if (is_op(node, &softmax_op)) {
        const struct softmax_op *op = (const struct softmax_op *)node->op;
        *dims = op->x->dims;
        for (int64_t d = 0; d < dims->count; d++)
            parts[d] = d == softmax_axis(op) ? 1 : dims->at[d];
    } else if (is_op(node, &norm_forward_op)) {
        const struct norm_forward *op = (const struct norm_forward *)node->op;
        struct norm_shape shape = norm_forward_shape(op);
        shape_of_norm(op->x, &shape, op->mode == WEFT_GROUP_NORM, dims, parts);
    } else if (is_op(node, &norm_backward_op)) {
        const struct norm_backward *op = (const struct norm_backward *)node->op;
        struct norm_shape shape = norm_backward_shape(op);
        shape_of_norm(op->x, &shape, op->mode == WEFT_GROUP_NORM, dims, parts);
    } else if (is_op(node, &genstats_op)) {
        shape_of_channels(((const struct genstats_op *)node->op)->x, dims, parts);
    } else if (is_op(node, &bn_bwd_weights_op)) {
        shape_of_channels(((const struct bn_bwd_weights_op *)node->op)->x, dims, parts);
    } else if (is_op(node, &bn_finalize_op)) {
        shape_of_channels(finalize_source((const struct bn_finalize_op *)node->op), dims, parts);
    } else {
        return false;
    }
    return true;
}

bool rows_serves(const struct node *node) {
    struct dims dims;
    int64_t parts[WEFT_DIM_MAX];
    return rows_shape_of(node, &dims, parts);
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

/* How each operator takes an element in, combines and finishes, in i64 where that differs. T: type, X: value. */
struct operator {
    enum total_kind total;
    const char *element, *finish, *exact_element, *exact_finish;
};

static const struct operator operators[] = {
    [WEFT_REDUCE_TENSOR_ADD] = {TOTAL_SUM, "X", "X"},
    [WEFT_REDUCE_TENSOR_MUL] = {TOTAL_PRODUCT, "X", "X"},
    [WEFT_REDUCE_TENSOR_MIN] = {TOTAL_LEAST, "X", "X"},
    [WEFT_REDUCE_TENSOR_MAX] = {TOTAL_LARGEST, "X", "X"},
    [WEFT_REDUCE_TENSOR_AMAX] = {TOTAL_LARGEST, "fabs(X)", "X < 0 ? (T)0 : X", "magnitude(X)", NULL},
    [WEFT_REDUCE_TENSOR_AVG] = {TOTAL_SUM, "X", "X / (T)a.length", NULL, "a.length ? X / a.length : 0"},
    [WEFT_REDUCE_TENSOR_NORM1] = {TOTAL_SUM, "fabs(X)", "X", "magnitude(X)", NULL},
    [WEFT_REDUCE_TENSOR_NORM2] = {TOTAL_SUM, "X * X", "sqrt(X)", "(i64)((u64)X * (u64)X)", "integer_root(X)"},
    [WEFT_REDUCE_TENSOR_MUL_NO_ZEROS] = {TOTAL_PRODUCT, "X == 0 ? (T)1 : X", "X"},
};

/* An operator's formula as a term. */
static int apply(struct rows *rows, const char *type, const char *formula, int name) {
    char text[TERM_BYTES];
    int length = 0;
    for (const char *at = formula; *at; at++)
        if (*at == 'X')
            length += snprintf(text + length, sizeof text - (size_t)length, "v%d", name);
        else if (*at == 'T')
            length += snprintf(text + length, sizeof text - (size_t)length, "%s", type);
        else
            text[length++] = *at;
    text[length] = 0;
    return rows_text(rows, type, "%s", text);
}

static weftStatus_t expand_reduction(struct rows *rows, const struct node *node) {
    const struct reduction_op *op = (const struct reduction_op *)node->op;
    size_t mode = (size_t)op->parameters->mode;
    if (mode >= sizeof operators / sizeof *operators || !operators[mode].element)
        FAIL(WEFT_STATUS_NOT_SUPPORTED, "%s: operator %zu is none that rows are combined by",
             descriptor_label(node->op), mode);
    const struct operator *row = &operators[mode];
    const char *type = arithmetic((int32_t)reduction_math(op), op->x);
    bool exact = strcmp(type, "i64") == 0;
    const char *element = exact && row->exact_element ? row->exact_element : row->element;
    const char *finish = exact && row->exact_finish ? row->exact_finish : row->finish;
    int total = rows_total(rows, row->total, type, apply(rows, type, element, rows_input(rows, op->x, type)));
    rows_result(rows, op->y, type, apply(rows, type, finish, total));
    return WEFT_STATUS_SUCCESS;
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* The largest score, with the sum of weights where one pass takes both; -inf where there is no score. */
static int total_peak(struct rows *rows, const char *type, int x) {
    return rows_total(rows, rows->taking == TAKE_IN_TURN ? TOTAL_LARGEST : TOTAL_WEIGHTS, type, x);
}

/* A weight is e to the distance from `shift`, which is finite where all scores are -inf. */
static int weight_of(struct rows *rows, const char *type, int x, int shift) {
    return rows_weight(rows, type, x, shift);
}

static int total_weights(struct rows *rows, const char *type, int weight, int peak) {
    return rows->taking == TAKE_IN_TURN ? rows_total(rows, TOTAL_SUM, type, weight) : peak + 1;
}

static weftStatus_t expand_softmax(struct rows *rows, const struct node *node) {
    const struct softmax_op *op = (const struct softmax_op *)node->op;
    const char *type = arithmetic(op->math, op->x);
    if (strcmp(type, "i64") == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: weights cannot be calculated in integers",
             descriptor_label(node->op));
    int x = rows_input(rows, op->x, type), sink = rows_input(rows, op->sink, type);
    int plain = total_peak(rows, type, x);
    int peak = sink < 0 ? plain : rows_text(rows, type, "larger(v%d, v%d)", plain, sink);
    int shift = rows_text(rows, type, "shift_of(v%d)", peak), weight = weight_of(rows, type, x, shift);
    int sum = total_weights(rows, type, weight, plain);
    if (sink >= 0 && rows->taking != TAKE_IN_TURN)
        sum = rows_text(rows, type, "v%d * weight(v%d, v%d)", sum, plain, shift);
    if (sink >= 0)
        sum = rows_text(rows, type, "v%d + weight(v%d, v%d)", sum, sink, shift);
    sum = rows_text(rows, type, "v%d != v%d ? v%d : v%d", peak, peak, peak, sum);
    int scale = rows_text(rows, type, "v%d == 0 ? (%s)0 : 1 / v%d", sum, type, sum);
    rows_result(rows, op->sum_exp, type, sum);
    rows_result(rows, op->max, type, peak);
    if (op->stats)
        rows_result(rows, op->stats, type,
                    rows_text(rows, type, "(v%d + log(v%d))%s", peak, sum,
                              op->is_stats_log2 ? " * (float)1.4426950408889634" : ""));
    rows_result(rows, op->y, type, rows_text(rows, type, "v%d * v%d", weight, scale));
    return WEFT_STATUS_SUCCESS;
}

/* The node of the region that makes a value; NULL: none. */
static const struct node *producer_of(const struct rows *rows, const struct tensor *tensor) {
    int producer = rows->graph->values[graph_find_value(rows->graph, tensor)].producer;
    return producer >= 0 && region_has(rows->region, producer) ? &rows->graph->nodes[producer] : NULL;
}

/* The operands of a pointwise operation of floats as it stands in the mode's formula; x NULL: it is another. */
static struct pointwise_operands operands_of(const struct node *node, weftPointwiseMode_t mode) {
    const struct pointwise_op *op = node && is_op(node, &pointwise_op) ? (const struct pointwise_op *)node->op : NULL;
    bool is = op && op->pw->mode == (int32_t)mode && strcmp(formula_type(op), "float") == 0 && op->alpha1 == 1 &&
              op->alpha2 == 1;
    return is ? pointwise_operands(op) : (struct pointwise_operands){0};
}

static const struct reduction_op *reduction_of(const struct node *node, weftReduceTensorOp_t mode) {
    const struct reduction_op *op = node && is_op(node, &reduction_op) ? (const struct reduction_op *)node->op : NULL;
    return op && op->parameters->mode == (int32_t)mode &&
                   strcmp(arithmetic((int32_t)reduction_math(op), op->x), "float") == 0
               ? op
               : NULL;
}

/* Whether a value is a float that nobody sees but so many nodes of the region. */
static bool is_inner(const struct rows *rows, const struct tensor *tensor, int readers) {
    int value = graph_find_value(rows->graph, tensor);
    return tensor->type == WEFT_DATA_FLOAT && rows->graph->values[value].readers == readers &&
           !region_exports(rows->region, value);
}

void rows_find_softmax(struct rows *rows) {
    rows->softmax = (struct softmax_nodes){.peak = -1, .weight = -1, .total = -1};
    for (int i = 0; i < rows->region->count; i++) {
        const struct node *quotient = region_node(rows->region, i), *exponential, *difference, *most, *sum;
        struct pointwise_operands share = operands_of(quotient, WEFT_POINTWISE_DIV), e, d;
        if (!share.x || !(exponential = producer_of(rows, share.x)) || !(sum = producer_of(rows, share.b)))
            continue;
        const struct reduction_op *total = reduction_of(sum, WEFT_REDUCE_TENSOR_ADD);
        e = operands_of(exponential, WEFT_POINTWISE_EXP);
        if (!e.x || !total || total->x != share.x || !(difference = producer_of(rows, e.x)))
            continue;
        d = operands_of(difference, WEFT_POINTWISE_SUB);
        most = d.x ? producer_of(rows, d.b) : NULL;
        const struct reduction_op *peak = reduction_of(most, WEFT_REDUCE_TENSOR_MAX);
        if (peak && peak->x == d.x && is_inner(rows, share.x, 2) && is_inner(rows, e.x, 1) &&
            is_inner(rows, share.b, 1) && d.b->type == WEFT_DATA_FLOAT)
            rows->softmax = (struct softmax_nodes){most, sum, quotient, graph_find_value(rows->graph, d.x), -1, -1, -1};
    }
}

/* A row with an infinite score or NaN is NaN throughout, as infinity minus itself is. */
static weftStatus_t expand_softmax_node(struct rows *rows, const struct node *node) {
    struct softmax_nodes *parts = &rows->softmax;
    int x = rows_input(rows, rows->graph->values[parts->score].tensor, "float");
    if (node == parts->most) {
        parts->peak = total_peak(rows, "float", x);
        rows_result(rows, ((const struct reduction_op *)node->op)->y, "float", parts->peak);
        return WEFT_STATUS_SUCCESS;
    }
    if (node == parts->sum) {
        parts->weight = weight_of(rows, "float", x, rows_text(rows, "float", "shift_of(v%d)", parts->peak));
        parts->total = total_weights(rows, "float", parts->weight, parts->peak);
        return WEFT_STATUS_SUCCESS;
    }
    int scale = rows_text(rows, "float", "1 / (v%d + (v%d - v%d))", parts->total, parts->peak, parts->peak);
    rows_result(rows, pointwise_operands((const struct pointwise_op *)node->op).out, "float",
                rows_text(rows, "float", "v%d * v%d", parts->weight, scale));
    return WEFT_STATUS_SUCCESS;
}

static bool is_softmax_node(const struct rows *rows, const struct node *node) {
    return node == rows->softmax.most || node == rows->softmax.sum || node == rows->softmax.quotient;
}

bool rows_expands(const struct rows *rows, const struct node *node) {
    return rows_serves(node) || is_softmax_node(rows, node);
}

/* ---- Norms ------------------------------------------------------------------------------------------------------- */

struct statistics {
    int mean, variance, inv; /* names; -1: none */
    int slip;                /* what the true mean has more than the rounded one; -1: not known */
    bool is_coarse;          /* x comes in few bits */
};

/* Whether x comes from memory in so few bits that its mean, rounded to float, is off by nothing that counts. */
static bool comes_in_few_bits(const struct rows *rows, const struct tensor *tensor) {
    int value = graph_find_value(rows->graph, tensor), producer = rows->graph->values[value].producer;
    return dtype_bytes((weftDataType_t)tensor->type, 1) <= 2 && !(producer >= 0 && region_has(rows->region, producer));
}

static struct statistics no_statistics(const struct rows *rows, const struct tensor *x) {
    return (struct statistics){-1, -1, -1, -1, comes_in_few_bits(rows, x)};
}

/* Mean and variance of x; 0 for rows without elements. Rows in registers are summed twice, around their mean the second
   time; streamed ones once, around elements of theirs, which keeps large common parts out of the sums: each thread
   around its own first, or all around the mean of some samples. */
static struct statistics take_statistics(struct rows *rows, const char *type, const struct tensor *tensor, int x,
                                         bool has_mean) {
    struct statistics s = no_statistics(rows, tensor);
    int count = rows_text(rows, type, "(%s)(a.length ? a.length : 1)", type), first = -1, squares;
    bool slips = !s.is_coarse;
    if (!has_mean) {
        squares = rows_total(rows, TOTAL_SUM, type, rows_text(rows, type, "v%d * v%d", x, x));
    } else if (rows->taking == TAKE_IN_TURN) {
        s.mean = rows_text(rows, type, "share(v%d, v%d)", rows_total(rows, TOTAL_SUM, type, x), count);
        int deviation = rows_text(rows, type, "v%d - v%d", x, s.mean);
        squares = rows_total(rows, TOTAL_SUM, type, rows_text(rows, type, "v%d * v%d", deviation, deviation));
        if (slips) {
            int sum = rows_total(rows, TOTAL_SUM, type, deviation);
            s.slip = rows_text(rows, type, "share(v%d, v%d)", sum, count);
            squares = rows_text(rows, type, "v%d - v%d * v%d", squares, sum, s.slip);
        }
    } else if (rows->taking == TAKE_AT_ONCE && (first = rows_first(rows, tensor, type)) >= 0) {
        int near = rows_text(rows, type, "v%d - v%d", x, first), sum = rows_total(rows, TOTAL_SUM, type, near);
        int all = rows_total(rows, TOTAL_SUM, type, rows_text(rows, type, "v%d * v%d", near, near));
        int off = rows_text(rows, type, "share(v%d, v%d)", sum, count);
        rows->sampled = rows->operand_count - 1;
        squares = rows_text(rows, type, "v%d - v%d * v%d", all, sum, off);
        s.mean = rows_text(rows, type, "v%d + v%d", off, first);
        if (slips)
            s.slip = rows_text(rows, type, "v%d - v%d + v%d", first, s.mean, off);
    } else if (slips && (first = rows_first(rows, tensor, type)) >= 0) {
        int near = rows_total(rows, TOTAL_MOMENTS, type, rows_text(rows, type, "v%d - v%d", x, first));
        squares = near + 1;
        s.mean = rows_text(rows, type, "v%d + v%d", near, first);
        s.slip = rows_text(rows, type, "v%d - v%d + v%d", first, s.mean, near);
    } else {
        s.mean = rows_total(rows, TOTAL_MOMENTS, type, x);
        squares = s.mean + 1;
    }
    s.variance = rows_text(rows, type, "v%d < 0 ? (%s)0 : share(v%d, v%d)", squares, type, squares, count);
    return s;
}

static int inverse_deviation(struct rows *rows, const char *type, int variance, int epsilon) {
    if (epsilon < 0)
        return rows_text(rows, type, "inverse_root(v%d)", variance);
    return rows_text(rows, type, "inverse_root(v%d + v%d)", variance, epsilon);
}

/* (x - mean) * factor; of coarse x, whose deviations are no smaller than its steps, as one product and a sum. */
static int deviation_times(struct rows *rows, const char *type, int x, struct statistics s, int factor) {
    if (s.mean < 0)
        return rows_text(rows, type, "v%d * v%d", x, factor);
    if (s.is_coarse)
        return rows_text(rows, type, "v%d * v%d + v%d", x, factor, rows_text(rows, type, "-v%d * v%d", s.mean, factor));
    if (s.slip < 0)
        return rows_text(rows, type, "(v%d - v%d) * v%d", x, s.mean, factor);
    int offset = rows_text(rows, type, "v%d * v%d", s.slip, factor);
    return rows_text(rows, type, "(v%d - v%d) * v%d - v%d", x, s.mean, factor, offset);
}

static int normalised(struct rows *rows, const char *type, int x, struct statistics s) {
    return deviation_times(rows, type, x, s, s.inv);
}

/* running = (1 - f) * before + f * batch; where nothing came before, the batch's. */
static void update_running(struct rows *rows, const char *type, const struct tensor *out, const struct tensor *in,
                           int batch, int factor) {
    if (!out)
        return;
    int before = rows_input(rows, in, type);
    if (before < 0 || factor < 0)
        rows_result(rows, out, type, before < 0 ? batch : before);
    else
        rows_result(rows, out, type,
                    rows_text(rows, type, "a.length ? (1 - v%d) * v%d + v%d * v%d : v%d", factor, before, factor, batch,
                              before));
}

static weftStatus_t refuse_integers(const struct node *node, const char *type) {
    if (strcmp(type, "i64") == 0)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_DATA_TYPE, "%s: statistics cannot be calculated in integers",
             descriptor_label(node->op));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t expand_norm_forward(struct rows *rows, const struct node *node) {
    const struct norm_forward *op = (const struct norm_forward *)node->op;
    const char *type = arithmetic(op->math, op->x);
    TRY(refuse_integers(node, type));
    int x = rows_input(rows, op->x, type), epsilon = rows_input(rows, op->epsilon, type);
    struct statistics s = no_statistics(rows, op->x);
    if (norm_is_inference_of_batch(op)) {
        bool given = op->inv_variance != NULL;
        s.mean = rows_input(rows, given ? op->mean : op->in_running_mean, type);
        s.inv = given ? rows_input(rows, op->inv_variance, type)
                      : inverse_deviation(rows, type, rows_input(rows, op->in_running_var, type), epsilon);
    } else {
        s = take_statistics(rows, type, op->x, x, norm_has_mean(op->mode));
        s.inv = inverse_deviation(rows, type, s.variance, epsilon);
        int factor = rows_input(rows, op->momentum, type);
        update_running(rows, type, op->out_mean, op->in_running_mean, s.mean, factor);
        if (op->out_var)
            update_running(rows, type, op->out_var, op->in_running_var,
                           rows_text(rows, type, "a.length > 1 ? v%d * ((%s)a.length / (%s)(a.length - 1)) : v%d",
                                     s.variance, type, type, s.variance),
                           factor);
        rows_result(rows, op->mean, type, s.mean);
        rows_result(rows, op->inv_variance, type, s.inv);
    }
    int scale = rows_input(rows, op->scale, type), bias = rows_input(rows, op->bias, type), factor = s.inv;
    TRY(rows->trouble);
    bool is_per_row = scale >= 0 && !rows_find(rows, scale)->spans;
    if (is_per_row)
        factor = rows_text(rows, type, "v%d * v%d", scale, s.inv);
    if (is_per_row && s.mean >= 0 && s.is_coarse) {
        int shift = bias < 0 ? rows_text(rows, type, "-v%d * v%d", s.mean, factor)
                             : rows_text(rows, type, "v%d - v%d * v%d", bias, s.mean, factor);
        rows_result(rows, op->y, type, rows_text(rows, type, "v%d * v%d + v%d", x, factor, shift));
        return WEFT_STATUS_SUCCESS;
    }
    int y = deviation_times(rows, type, x, s, factor);
    if (scale >= 0 && !is_per_row)
        y = rows_text(rows, type, bias >= 0 ? "v%d * v%d + v%d" : "v%d * v%d", scale, y, bias);
    else if (bias >= 0)
        y = rows_text(rows, type, "v%d + v%d", y, bias);
    rows_result(rows, op->y, type, y);
    return WEFT_STATUS_SUCCESS;
}

static const struct tensor *wanted(const struct rows *rows, const struct tensor *tensor) {
    return tensor && region_exports(rows->region, graph_find_value(rows->graph, tensor)) ? tensor : NULL;
}

static bool is_made_inside(const struct rows *rows, const struct tensor *tensor) {
    int producer = rows->graph->values[graph_find_value(rows->graph, tensor)].producer;
    return producer >= 0 && region_has(rows->region, producer);
}

/* dscale = sum of dy * xhat and dbias = sum of dy, over everything outside of the scale's extents. */
static weftStatus_t expand_gradients(struct rows *rows, const struct node *node, const char *type, struct statistics s,
                                     int dy, int weighted, int row_dy, int row_weighted) {
    const struct norm_backward *op = (const struct norm_backward *)node->op;
    struct follow follow = {.node = node, .type = type, .at_scale = -1, .at_bias = -1, .at_mean = -1, .at_inv = -1};
    follow.scale = wanted(rows, op->dscale);
    follow.bias = wanted(rows, op->dbias);
    const struct tensor *any = follow.scale ? follow.scale : follow.bias;
    if (!any)
        return WEFT_STATUS_SUCCESS;
    bool in_row = false, whole_row = true, in_rows = false, all_rows = true;
    for (int i = 0; i < rows->axis_count; i++) {
        bool has = rows_has_axis(rows, any, i), reduced = rows->axes[i].is_reduced;
        in_row = in_row || (reduced && has);
        whole_row = whole_row && (!reduced || has);
        in_rows = in_rows || (!reduced && has);
        all_rows = all_rows && (reduced || has);
    }
    if (!in_row && all_rows) {
        rows_result(rows, follow.scale, type, row_weighted);
        rows_result(rows, follow.bias, type, row_dy);
        return WEFT_STATUS_SUCCESS;
    }
    if (rows->follow.kind)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: the gradients of one scale at a time",
             descriptor_label(node->op));
    if (!in_row) {
        follow.kind = FOLLOW_FOLD;
        follow.at_scale = follow.scale ? rows_keep(rows, type, row_weighted, false) : -1;
        follow.at_bias = follow.bias ? rows_keep(rows, type, row_dy, false) : -1;
    } else if (!in_rows && whole_row && !rows->sums_apart) {
        follow.kind = FOLLOW_COLUMNS;
        if (follow.scale)
            rows_keep(rows, type, rows_total(rows, TOTAL_COLUMN, type, weighted), true);
        if (follow.bias)
            rows_keep(rows, type, rows_total(rows, TOTAL_COLUMN, type, dy), true);
    } else {
        if (is_made_inside(rows, op->x) || is_made_inside(rows, op->dy))
            FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                 "%s: its scale's gradient is summed in a sweep of its own, which needs x and dy in memory",
                 descriptor_label(node->op));
        follow.kind = FOLLOW_APART;
        /* Statistics that have no memory of their own are left in the workspace. */
        if (!op->inv_variance || is_made_inside(rows, op->inv_variance))
            follow.at_inv = rows_keep(rows, type, s.inv, false);
        if (s.mean >= 0 && (!op->mean || is_made_inside(rows, op->mean)))
            follow.at_mean = rows_keep(rows, type, s.mean, false);
    }
    rows->follow = follow;
    return WEFT_STATUS_SUCCESS;
}

/* dx = inv * (g - mean of g - xhat * mean of g * xhat), where g = scale * dy. */
static void store_gradient(struct rows *rows, const struct node *node, const char *type, int g, int factor,
                           int deviation, int slope, int level) {
    const struct norm_backward *op = (const struct norm_backward *)node->op;
    int dx = norm_has_mean(op->mode)
                 ? rows_text(rows, type, "v%d * v%d - (v%d * v%d + v%d)", g, factor, deviation, slope, level)
                 : rows_text(rows, type, "v%d * v%d - v%d * v%d", g, factor, deviation, slope);
    rows_result(rows, op->dx, type, dx);
}

/* A scale for each place in the row: the totals are of g itself. */
static void scaled_gradient(struct rows *rows, const struct node *node, const char *type, struct statistics s, int x,
                            int dy, int scale, int weighted) {
    int g = rows_text(rows, type, "v%d * v%d", scale, dy), count = rows_text(rows, type, "(%s)a.length", type);
    int sum_g = rows_total(rows, TOTAL_SUM, type, g);
    int sum_weighted = rows_total(rows, TOTAL_SUM, type, rows_text(rows, type, "v%d * v%d", scale, weighted));
    int slope = rows_text(rows, type, "share(v%d, v%d) * v%d", sum_weighted, count, s.inv);
    int level = rows_text(rows, type, "share(v%d, v%d) * v%d", sum_g, count, s.inv);
    if (s.mean >= 0 && !s.is_coarse) {
        store_gradient(rows, node, type, g, s.inv, normalised(rows, type, x, s), slope, level);
        return;
    }
    slope = rows_text(rows, type, "v%d * v%d", slope, s.inv);
    if (s.mean >= 0)
        level = rows_text(rows, type, "v%d - v%d * v%d", level, s.mean, slope);
    store_gradient(rows, node, type, g, s.inv, x, slope, level);
}

/* One scale for the row, or none: its gradients are the row's totals. */
static void row_gradient(struct rows *rows, const struct node *node, const char *type, struct statistics s, int x,
                         int dy, int scale, int *row_dy, int *row_weighted) {
    int one = rows_text(rows, type, "(%s)1", type), count = rows_text(rows, type, "(%s)a.length", type);
    int deviation = deviation_times(rows, type, x, s, one);
    int product = rows_total(rows, TOTAL_SUM, type, rows_text(rows, type, "v%d * v%d", dy, deviation));
    *row_dy = rows_total(rows, TOTAL_SUM, type, dy);
    *row_weighted = rows_text(rows, type, "v%d * v%d", product, s.inv);
    int factor = scale < 0 ? s.inv : rows_text(rows, type, "v%d * v%d", scale, s.inv);
    int slope = rows_text(rows, type, "share(v%d, v%d) * v%d * v%d", *row_weighted, count, factor, s.inv);
    int level = rows_text(rows, type, "share(v%d, v%d) * v%d", *row_dy, count, factor);
    if (s.mean >= 0 && s.is_coarse) {
        level = rows_text(rows, type, "v%d - v%d * v%d", level, s.mean, slope);
        deviation = x;
    }
    store_gradient(rows, node, type, dy, factor, deviation, slope, level);
}

static weftStatus_t expand_norm_backward(struct rows *rows, const struct node *node) {
    const struct norm_backward *op = (const struct norm_backward *)node->op;
    const char *type = arithmetic(op->math, op->x);
    TRY(refuse_integers(node, type));
    int x = rows_input(rows, op->x, type), dy = rows_input(rows, op->dy, type);
    struct statistics s = no_statistics(rows, op->x);
    if (op->inv_variance) {
        s.mean = rows_input(rows, op->mean, type);
        s.inv = rows_input(rows, op->inv_variance, type);
    } else {
        s = take_statistics(rows, type, op->x, x, norm_has_mean(op->mode));
        s.inv = inverse_deviation(rows, type, s.variance, rows_input(rows, op->epsilon, type));
    }
    int scale = rows_input(rows, op->scale, type), row_dy = -1, row_weighted = -1;
    int weighted = rows_text(rows, type, "v%d * v%d", dy, normalised(rows, type, x, s));
    TRY(rows->trouble);
    if (scale >= 0 && rows_find(rows, scale)->spans)
        scaled_gradient(rows, node, type, s, x, dy, scale, weighted);
    else
        row_gradient(rows, node, type, s, x, dy, scale, &row_dy, &row_weighted);
    if (row_dy < 0 && wanted(rows, op->dscale) == NULL && wanted(rows, op->dbias) == NULL)
        return WEFT_STATUS_SUCCESS;
    return expand_gradients(rows, node, type, s, dy, weighted, row_dy, row_weighted);
}

void rows_expand_apart(struct rows *rows, const struct follow *follow, int mean, int inv) {
    const struct norm_backward *op = (const struct norm_backward *)follow->node->op;
    const char *type = follow->type;
    int dy = rows_input(rows, op->dy, type);
    if (follow->scale) {
        struct statistics s = {mean, -1, inv, -1, comes_in_few_bits(rows, op->x)};
        s.mean = mean < 0 ? rows_input(rows, op->mean, type) : mean;
        s.inv = inv < 0 ? rows_input(rows, op->inv_variance, type) : inv;
        int xhat = normalised(rows, type, rows_input(rows, op->x, type), s);
        int weighted = rows_text(rows, type, "v%d * v%d", dy, xhat);
        rows_result(rows, follow->scale, type, rows_total(rows, TOTAL_SUM, type, weighted));
    }
    if (follow->bias)
        rows_result(rows, follow->bias, type, rows_total(rows, TOTAL_SUM, type, dy));
}

/* ---- Batch norm's parts ------------------------------------------------------------------------------------------ */

static weftStatus_t expand_genstats(struct rows *rows, const struct node *node) {
    const struct genstats_op *op = (const struct genstats_op *)node->op;
    const char *type = arithmetic(op->math, op->x);
    TRY(refuse_integers(node, type));
    int x = rows_input(rows, op->x, type);
    rows_result(rows, op->sum, type, rows_total(rows, TOTAL_SUM, type, x));
    int square = rows_text(rows, type, "v%d * v%d", x, x);
    rows_result(rows, op->sq_sum, type, rows_total(rows, TOTAL_SUM, type, square));
    return WEFT_STATUS_SUCCESS;
}

static weftStatus_t expand_bn_bwd_weights(struct rows *rows, const struct node *node) {
    const struct bn_bwd_weights_op *op = (const struct bn_bwd_weights_op *)node->op;
    const char *type = arithmetic(op->math, op->x);
    TRY(refuse_integers(node, type));
    int x = rows_input(rows, op->x, type), dy = rows_input(rows, op->dy, type);
    struct statistics s = {rows_input(rows, op->mean, type), -1, rows_input(rows, op->inv_variance, type), -1, false};
    int scale = rows_input(rows, op->scale, type);
    int sum = rows_total(rows, TOTAL_SUM, type, dy);
    int weighted =
        rows_total(rows, TOTAL_SUM, type, rows_text(rows, type, "v%d * v%d", dy, normalised(rows, type, x, s)));
    int factor = scale < 0 ? s.inv : rows_text(rows, type, "v%d * v%d", scale, s.inv);
    int of_x = rows_text(rows, type, "a.length ? -v%d * v%d * v%d / (%s)a.length : 0", factor, s.inv, weighted, type);
    rows_result(rows, op->dscale, type, weighted);
    rows_result(rows, op->dbias, type, sum);
    rows_result(rows, op->eq_scale_dy, type, factor);
    rows_result(rows, op->eq_scale_x, type, of_x);
    if (op->eq_bias)
        rows_result(rows, op->eq_bias, type,
                    rows_text(rows, type, "a.length ? -v%d * v%d / (%s)a.length - v%d * v%d : 0", factor, sum, type,
                              of_x, s.mean));
    return WEFT_STATUS_SUCCESS;
}

static void update_finalized(struct rows *rows, const char *type, const struct tensor *out, const struct tensor *in,
                             int batch, int factor) {
    int before = rows_input(rows, in, type);
    if (factor < 0)
        rows_result(rows, out, type, before < 0 ? batch : before);
    else
        rows_result(
            rows, out, type,
            rows_text(rows, type, "(1 - v%d) * v%d + v%d * v%d", factor, before < 0 ? batch : before, factor, batch));
}

static weftStatus_t expand_bn_finalize(struct rows *rows, const struct node *node) {
    const struct bn_finalize_op *op = (const struct bn_finalize_op *)node->op;
    const char *type = arithmetic(op->math, finalize_source(op));
    bool training = op->mode == WEFT_BN_FINALIZE_STATISTICS_TRAINING;
    TRY(refuse_integers(node, type));
    int mean, variance, unbiased, factor = -1, epsilon = rows_input(rows, op->epsilon, type);
    if (training) {
        int n = rows_input(rows, op->accum_count, type), sum = rows_input(rows, op->sum, type);
        int squares = rows_input(rows, op->sq_sum, type), momentum = rows_input(rows, op->momentum, type);
        mean = rows_text(rows, type, "v%d > 0 ? v%d / v%d : 0", n, sum, n);
        int raw = rows_text(rows, type, "v%d / v%d - v%d * v%d", squares, n, mean, mean);
        variance = rows_text(rows, type, "v%d > 0 && v%d > 0 ? v%d : 0", n, raw, raw);
        unbiased = rows_text(rows, type, "v%d > 1 ? v%d * v%d / (v%d - 1) : v%d", n, variance, n, n, variance);
        factor = momentum < 0 ? rows_text(rows, type, "(%s)(v%d > 0)", type, n)
                              : rows_text(rows, type, "v%d > 0 ? v%d : 0", n, momentum);
    } else {
        mean = rows_input(rows, op->in_running_mean, type);
        variance = rows_input(rows, op->in_running_var, type);
        unbiased = rows_text(rows, type, "(%s)0", type);
    }
    int inv = inverse_deviation(rows, type, variance, epsilon), scale = rows_input(rows, op->scale, type);
    int bias = rows_input(rows, op->bias, type);
    int eq_scale = scale < 0 ? inv : rows_text(rows, type, "v%d * v%d", scale, inv);
    int shift = rows_text(rows, type, "v%d * v%d", mean, eq_scale);
    int eq_bias = bias < 0 ? rows_text(rows, type, "-v%d", shift) : rows_text(rows, type, "v%d - v%d", bias, shift);
    update_finalized(rows, type, op->out_mean, op->in_running_mean, mean, factor);
    update_finalized(rows, type, op->out_var, op->in_running_var, unbiased, factor);
    rows_result(rows, op->eq_scale, type, eq_scale);
    rows_result(rows, op->eq_bias, type, eq_bias);
    rows_result(rows, op->saved_mean, type, mean);
    rows_result(rows, op->saved_inv_variance, type, inv);
    return WEFT_STATUS_SUCCESS;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

weftStatus_t rows_expand(struct rows *rows, const struct node *node) {
    static const struct {
        const struct op *op;
        weftStatus_t (*expand)(struct rows *rows, const struct node *node);
    } expansions[] = {
        {&reduction_op, expand_reduction},       {&softmax_op, expand_softmax},
        {&norm_forward_op, expand_norm_forward}, {&norm_backward_op, expand_norm_backward},
        {&genstats_op, expand_genstats},         {&bn_bwd_weights_op, expand_bn_bwd_weights},
        {&bn_finalize_op, expand_bn_finalize},
    };
    if (is_softmax_node(rows, node))
        return expand_softmax_node(rows, node);
    for (size_t i = 0; i < sizeof expansions / sizeof *expansions; i++)
        if (is_op(node, expansions[i].op))
            return expansions[i].expand(rows, node);
    FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s is none of the operations that rows are made of",
         descriptor_label(node->op));
}
