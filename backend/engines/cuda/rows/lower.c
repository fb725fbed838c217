/* SPDX-License-Identifier: Apache-2.0 */
/* Lowers expansions of operations (graph/expansion.h) to terms: instructions become formulas and reductions. Sums over
   dims other than the row's need their own treatment. Softmax written as five nodes uses the parts of softmax's own
   expansion. */
#include "engines/cuda/rows/plan.h"
#include "graph/ops/norm.h"
#include "graph/ops/pointwise.h"
#include "graph/ops/reduction.h"
#include "graph/ops/softmax.h"

#include <string.h>

/* An expansion that is being lowered. values[i]: the term of instruction i, or a literal, whose name is -1. `done`
   allows an expansion to be written in steps. */
struct lowering {
    struct rows *rows;
    struct expansion e;
    const char *type; /* compute type */
    int done;         /* number of lowered instructions */
    struct term_argument values[INSTRUCTIONS_MAX];
};

static bool is_op(const struct node *node, const struct op *op) { return op_of(node->op) == op; }

static bool is_computed_inside(const void *context, const struct tensor *tensor) {
    return region_producer(((const struct rows *)context)->region, tensor) != NULL;
}

/* Starts an empty expansion with the method of statistics and the values that the region produces. */
static void begin(struct lowering *l, struct rows *rows) {
    l->rows = rows;
    l->done = l->e.count = 0;
    l->e.method = rows->method;
    l->e.is_computed_inside = is_computed_inside;
    l->e.context = rows;
}

/* ---- Gradients of scale and bias --------------------------------------------------------------------------------- */

/* Statistics without a tensor of their own are stored in the workspace. */
static void save_statistics(struct lowering *l, const struct norm_backward *op) {
    struct rows *rows = l->rows;
    if (!op->inv_variance || region_producer(rows->region, op->inv_variance))
        rows->follow.at_inv = rows_save(rows, l->type, l->values[l->e.inv].name, false);
    if (l->e.mean >= 0 && (!op->mean || region_producer(rows->region, op->mean)))
        rows->follow.at_mean = rows_save(rows, l->type, l->values[l->e.mean].name, false);
}

/* Adds per-block sums of a term for each position in the row, which a second program combines. */
static weftStatus_t sum_columns(struct rows *rows, const struct tensor *sum, weftDataType_t math, int element) {
    int term = rows_reduce(rows, ROWS_COLUMN_SUM, math_name(math), element);
    rows_save(rows, math_name(math), term, true);
    return rows->failure ? rows->failure : follow_add_column(&rows->follow, sum, term, math);
}

/* Expands a reduction node over columns in the same way. */
static weftStatus_t expand_column_sum(struct rows *rows, const struct node *node) {
    const struct reduction_op *op = (const struct reduction_op *)node->op;
    weftDataType_t math = reduction_math(op);
    if (rows->sums_apart || !dtype_is_float(math))
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
             "%s: column sums are supported in float only, and only if rows stay on chip", descriptor_label(node->op));
    int element = rows_input(rows, op->x, math_name(math));
    TRY(rows->failure);
    if (!rows_find(rows, element)->spans)
        FAIL(WEFT_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "%s: its elements are constant along a row",
             descriptor_label(node->op));
    return sum_columns(rows, op->y, math, element);
}

/* A sum over all elements that share an element of the tensor: computed within the row, or left to a second program. */
static weftStatus_t lower_sum_to(struct lowering *l, const struct node *node, const struct instruction *at) {
    const struct norm_backward *op = (const struct norm_backward *)node->op;
    struct rows *rows = l->rows;
    struct follow *follow = &rows->follow;
    bool is_first;
    if (!row_space_wants_sum(rows->region, at->tensor))
        return WEFT_STATUS_SUCCESS;
    /* The element's contribution, and the row's own sum of it, or -1 if the expansion has none. */
    int element = l->values[at->arguments[0]].name, row = at->arguments[1] < 0 ? -1 : l->values[at->arguments[1]].name;
    enum follow_kind kind = row_space_sum_kind(&rows->space, at->tensor, rows->sums_apart);
    if (kind == FOLLOW_NOTHING) {
        rows_result(rows, at->tensor, l->type, row);
        return WEFT_STATUS_SUCCESS;
    }
    TRY(follow_add(follow, rows->region, node, at->tensor, kind, &is_first));
    if (kind == FOLLOW_COLUMNS)
        return sum_columns(rows, at->tensor, l->e.math, element);
    follow->math = l->e.math;
    if (kind == FOLLOW_FOLD)
        *(at->tensor == op->dscale ? &follow->at_scale : &follow->at_bias) = rows_save(rows, l->type, row, false);
    else if (is_first)
        save_statistics(l, op);
    return WEFT_STATUS_SUCCESS;
}

/* ---- Instructions ------------------------------------------------------------------------------------------------ */

/* The term of a value; creates one for literals. */
static int name_of(struct lowering *l, int value) {
    if (l->values[value].name >= 0)
        return l->values[value].name;
    return rows_formula(l->rows, l->type, OPCODE_COPY, &l->values[value], 1);
}

/* Arguments end with the first negative one. */
static int lower_formula(struct lowering *l, const struct instruction *at) {
    struct term_argument arguments[INSTRUCTION_ARGUMENTS];
    int count = 0;
    for (int i = 0; i < INSTRUCTION_ARGUMENTS && at->arguments[i] >= 0; i++)
        arguments[count++] = l->values[at->arguments[i]];
    return rows_formula(l->rows, l->type, at->opcode, arguments, count);
}

/* The reader computes its sums around the sample. If rows_first appended the sampled operand, it is the last one. */
static int lower_sample(struct lowering *l, const struct tensor *tensor) {
    int name = rows_first(l->rows, tensor, l->type);
    if (l->rows->method == STATISTICS_SHIFTED)
        l->rows->sampled = l->rows->operand_count - 1;
    return name;
}

/* OPCODE_SECOND needs no term: the second number has the next name (rows_reduce). */
static weftStatus_t lower_instruction(struct lowering *l, const struct node *node, int index) {
    const struct instruction *at = &l->e.at[index];
    struct rows *rows = l->rows;
    struct term_argument *value = &l->values[index];
    *value = (struct term_argument){-1, at->opcode, at->number};
    switch (at->opcode) {
    case OPCODE_NUMBER:
    case OPCODE_LENGTH:
    case OPCODE_COUNT:
        break; /* no term: users emit literals inline */
    case OPCODE_INPUT:
        value->name = rows_input(rows, at->tensor, l->type);
        break;
    case OPCODE_SAMPLE:
        value->name = lower_sample(l, at->tensor);
        break;
    /* The term belongs to an earlier expansion and is given by name. */
    case OPCODE_GIVEN:
        value->name = (int)at->number;
        break;
    case OPCODE_SUM:
    case OPCODE_PRODUCT:
    case OPCODE_LEAST:
    case OPCODE_LARGEST:
    case OPCODE_MOMENTS:
    case OPCODE_WEIGHTS:
        value->name = rows_reduce(rows, at->opcode, l->type, name_of(l, at->arguments[0]));
        break;
    case OPCODE_SECOND:
        value->name = l->values[at->arguments[0]].name + 1;
        break;
    case OPCODE_RESULT:
        rows_result(rows, at->tensor, l->type, name_of(l, at->arguments[0]));
        break;
    case OPCODE_SUM_TO:
        TRY(lower_sum_to(l, node, at));
        break;
    default:
        value->name = lower_formula(l, at);
    }
    return rows->failure;
}

/* Lowers the instructions written since the last call. An expansion can be continued once its terms are known. */
static weftStatus_t lower(struct lowering *l, const struct node *node) {
    l->type = math_name(l->e.math);
    for (; l->done < l->e.count; l->done++)
        TRY(lower_instruction(l, node, l->done));
    return WEFT_STATUS_SUCCESS;
}

/* Expands the weighted dy of the first program, here summed over the dims outside the scale. */
weftStatus_t rows_expand_separately(struct rows *rows, const struct follow *follow, int mean, int inv) {
    const struct norm_backward *op = (const struct norm_backward *)follow->node->op;
    struct lowering l;
    begin(&l, rows);
    expansion_begin(&l.e, op->math, op->x);
    row_space_expand_in(&rows->space, &l.e);
    norm_expand_sums(&l.e, op, follow->scale, follow->bias, mean, inv);
    return lower(&l, follow->node);
}

/* ---- Softmax as five nodes --------------------------------------------------------------------------------------- */

/* The operands of a pointwise float operation in the order of the mode's formula; x is NULL if the node is not one. */
static struct pointwise_operands operands_of(const struct node *node, weftPointwiseMode_t mode) {
    const struct pointwise_op *op = node && is_op(node, &pointwise_op) ? (const struct pointwise_op *)node->op : NULL;
    bool is_match = op && op->pw->mode == (int32_t)mode && strcmp(formula_type(op), "float") == 0 && op->alpha1 == 1 &&
                    op->alpha2 == 1;
    return is_match ? pointwise_operands(op) : (struct pointwise_operands){0};
}

/* The float reduction that a node computes, or NULL. */
static const struct reduction_op *reduction_of(const struct node *node, weftReduceTensorOp_t mode) {
    const struct reduction_op *op = node && is_op(node, &reduction_op) ? (const struct reduction_op *)node->op : NULL;
    if (!op || op->parameters->mode != (int32_t)mode)
        return NULL;
    struct expansion e;
    expansion_begin(&e, (int32_t)reduction_math(op), op->x);
    return e.math == WEFT_DATA_FLOAT ? op : NULL;
}

/* True if a value is an internal float with exactly this number of readers in the region. The exponential has two (sum
   and quotient), the others one: then only the quotient is visible outside. */
static bool is_inner(const struct rows *rows, const struct tensor *tensor, int readers) {
    int value = graph_find_value(rows->graph, tensor);
    return tensor_type_inside(tensor) == WEFT_DATA_FLOAT && rows->graph->values[value].readers == readers &&
           !region_exports(rows->region, value);
}

/* Matches backwards from the quotient. The last match wins: one softmax per region is matched. */
void rows_find_softmax(struct rows *rows) {
    rows->softmax = (struct softmax_nodes){.peak = -1, .weight = -1, .total = -1};
    for (int i = 0; i < rows->region->count; i++) {
        const struct node *quotient = region_node(rows->region, i), *exponential, *difference, *most, *sum;
        struct pointwise_operands share = operands_of(quotient, WEFT_POINTWISE_DIV), e, d;
        /* quotient = exponential / sum; */
        if (!share.x || !(exponential = region_producer(rows->region, share.x)) ||
            !(sum = region_producer(rows->region, share.b)))
            continue;
        const struct reduction_op *total = reduction_of(sum, WEFT_REDUCE_TENSOR_ADD);
        /* the sum is over this exponential; */
        e = operands_of(exponential, WEFT_POINTWISE_EXP);
        if (!e.x || !total || total->x != share.x || !(difference = region_producer(rows->region, e.x)))
            continue;
        /* difference = score - maximum of the same score. */
        d = operands_of(difference, WEFT_POINTWISE_SUB);
        most = d.x ? region_producer(rows->region, d.b) : NULL;
        const struct reduction_op *peak = reduction_of(most, WEFT_REDUCE_TENSOR_MAX);
        if (peak && peak->x == d.x && is_inner(rows, share.x, 2) && is_inner(rows, e.x, 1) &&
            is_inner(rows, share.b, 1) && tensor_type_inside(d.b) == WEFT_DATA_FLOAT)
            rows->softmax = (struct softmax_nodes){most, sum, quotient, graph_find_value(rows->graph, d.x), -1, -1, -1};
    }
}

/* Difference and exponential are not parts: they are terms of the sum's formula, and pointwise nodes without
   readers. */
static bool is_softmax_node(const struct rows *rows, const struct node *node) {
    return node == rows->softmax.most || node == rows->softmax.sum || node == rows->softmax.quotient;
}

/* Each node emits its part of one formula. A row with an infinite score or NaN is NaN throughout, because infinity
   minus itself is. peak - peak is 0, or NaN if the peak is infinite or NaN; adding it to the sum propagates NaN to the
   row. */
static weftStatus_t expand_softmax_node(struct rows *rows, const struct node *node) {
    struct softmax_nodes *parts = &rows->softmax;
    const struct tensor *score = rows->graph->values[parts->score].tensor;
    struct lowering l;
    begin(&l, rows);
    l.e.math = WEFT_DATA_FLOAT;
    row_space_expand_in(&rows->space, &l.e);
    if (node == parts->most) {
        int peak = softmax_expand_peak(&l.e, expand_input(&l.e, score));
        expand_result(&l.e, ((const struct reduction_op *)node->op)->y, peak);
        TRY(lower(&l, node));
        parts->peak = l.values[peak].name;
    } else if (node == parts->sum) {
        int x = expand_input(&l.e, score), peak = expand_given(&l.e, parts->peak);
        int weight = softmax_expand_weight(&l.e, x, peak), sum = softmax_expand_sum(&l.e, weight, peak);
        TRY(lower(&l, node));
        parts->weight = l.values[weight].name;
        parts->total = l.values[sum].name;
    } else {
        int peak = expand_given(&l.e, parts->peak), sum = expand_given(&l.e, parts->total);
        int weight = expand_given(&l.e, parts->weight), nothing = expand_subtract(&l.e, peak, peak);
        int scale = expand_divide(&l.e, expand_number(&l.e, 1), expand_add(&l.e, sum, nothing));
        expand_result(&l.e, pointwise_operands((const struct pointwise_op *)node->op).out,
                      expand_multiply(&l.e, weight, scale));
        TRY(lower(&l, node));
    }
    return WEFT_STATUS_SUCCESS;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

/* True for nodes that are lowered from an expansion; all others are pointwise. */
bool rows_expands(const struct rows *rows, const struct node *node) {
    return op_expands(node->op) || is_softmax_node(rows, node);
}

weftStatus_t rows_expand(struct rows *rows, const struct node *node) {
    struct lowering l;
    if (is_softmax_node(rows, node))
        return expand_softmax_node(rows, node);
    if (row_space_sums_columns(&rows->space, node))
        return expand_column_sum(rows, node);
    begin(&l, rows);
    TRY(expansion_of(&l.e, node->op));
    return lower(&l, node);
}
